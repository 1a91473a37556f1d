//! User properties that the node adds to messages, as AMQP consumers see them.

use crate::fake::World;
use bytes::BytesMut;
use codec_amqp10::{Sections, Value as Amqp10Value};
use codec_amqp091::Properties as Amqp;
use codec_mqtt::{Qos, RepeatedProperties, Version, put_user_property};
use conversion::{amqp10, amqp091};
use message::{Message, Table, Value};
use session::interceptors::{Interceptors, routing_node};
use session_mqtt::MqttSettings;

fn world(interceptors: Interceptors) -> World {
    World::new(MqttSettings {
        interceptors,
        ..MqttSettings::default()
    })
}

/// Publishes a message with user properties and returns it as it reaches a queue.
fn queued(w: &mut World, version: Version, own: &[(&str, &str)]) -> Message {
    w.node.queue("q", "a");
    let p = w.client(version, "device-1");
    let mut users = BytesMut::new();
    for (name, value) in own {
        put_user_property(&mut users, name, value);
    }
    let users: &'static [u8] = users.to_vec().leak();
    w.publish_with(p, "a", Qos::AtLeastOnce, 1, "m", |publish| {
        publish.properties.repeated = RepeatedProperties(users);
    });
    let (_, message) = w.node.queued.pop().expect("a message");
    message
}

/// The headers and the timestamp that AMQP 0.9.1 consumers get.
fn headers(message: &Message) -> (Table, Option<u64>) {
    let encoded = amqp091::convert(message);
    let properties = Amqp::received(&encoded.properties).unwrap();
    (properties.header_table().unwrap(), properties.timestamp)
}

const ALL: Interceptors = Interceptors {
    received_time: Some(true),
    routing_node: Some(true),
    mqtt_client_id: true,
    sent_time: false,
};

#[test]
fn publish_of_every_version_gets_client_id_node_and_time() {
    for version in [Version::V311, Version::V5] {
        let mut w = world(ALL);
        let now = w.node.wall.0;
        let message = queued(&mut w, version, &[]);
        let (headers, timestamp) = headers(&message);
        let node = routing_node(&w.node);
        assert_eq!(
            headers.get("x-opt-mqtt-client-id"),
            Some(&Value::from("device-1"))
        );
        assert_eq!(headers.get("x-routed-by"), Some(&Value::from(&*node)));
        assert_eq!(
            headers.get("timestamp_in_ms"),
            Some(&Value::I64(now as i64))
        );
        assert_eq!(timestamp, Some(now / 1000));
        let encoded = amqp10::convert(&message);
        let sections = Sections::parse(&encoded.annotations).unwrap();
        let annotations = sections
            .read_map(sections.message_annotations, &encoded.annotations)
            .unwrap();
        assert_eq!(
            annotations.get("x-opt-mqtt-client-id"),
            Some(Amqp10Value::String("device-1"))
        );
    }
}

#[test]
fn user_properties_of_the_publisher_are_kept_or_replaced() {
    let own = [
        ("x-routed-by", "elsewhere"),
        ("x-opt-mqtt-client-id", "another"),
        ("colour", "red"),
    ];
    for is_overwritten in [false, true] {
        let mut w = world(Interceptors {
            routing_node: Some(is_overwritten),
            ..ALL
        });
        let message = queued(&mut w, Version::V5, &own);
        let (headers, _) = headers(&message);
        let node = routing_node(&w.node);
        let expected = if is_overwritten { &*node } else { "elsewhere" };
        assert_eq!(headers.get("x-routed-by"), Some(&Value::from(expected)));
        assert_eq!(
            headers.get("x-opt-mqtt-client-id"),
            Some(&Value::from("device-1"))
        );
        assert_eq!(headers.get("colour"), Some(&Value::from("red")));
    }
}

#[test]
fn publish_is_unchanged_without_interceptors() {
    let mut w = world(Interceptors::default());
    let message = queued(&mut w, Version::V5, &[("colour", "red")]);
    let (headers, timestamp) = headers(&message);
    let names: Vec<&str> = headers.0.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["x-mqtt-publish-qos", "x-mqtt-dup", "colour"]);
    assert_eq!(timestamp, None);
}
