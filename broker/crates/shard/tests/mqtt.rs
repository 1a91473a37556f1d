//! MQTT and AMQP 0.9.1 clients of one node, through everything between their bytes.
#![forbid(unsafe_code)]

mod cluster;

use bytes::BytesMut;
use cluster::Cluster;
use cluster::mqtt::MqttClient;
use codec_amqp091::{Properties as Amqp, table};
use codec_mqtt::{Properties, Qos, Repeated, Will, put_user_property};
use message::{Table, Value};
use std::time::Duration;

#[test]
fn what_mqtt_publishes_amqp_gets_and_the_answer_waits_for_the_queue() {
    let mut cluster = Cluster::new(1);
    let mut amqp = cluster.client(0);
    let quorum = [("x-queue-type", Value::from("quorum"))];
    amqp.declare(&mut cluster, "q", &quorum);
    amqp.bind(&mut cluster, "q", "amq.topic", "a.*", &[]);
    let mut mqtt = MqttClient::new(&mut cluster, 0, "m", 0, None);
    assert_eq!(mqtt.said(&mut cluster), ["CONNACK Success false"]);
    let mut users = BytesMut::new();
    put_user_property(&mut users, "k", "v");
    let properties = Properties {
        content_type: Some("text/plain"),
        response_topic: Some("re/ply"),
        repeated: Repeated(&users),
        ..Properties::default()
    };
    mqtt.publish(&mut cluster, "a/b", Qos::AtLeastOnce, b"hello", properties);
    let told = cluster.until("PUBACK", |c| mqtt.said(c).pop());
    assert_eq!(told, "PubAck Success");
    let got = amqp.get(&mut cluster, "q").expect("a message");
    assert_eq!((&*got.exchange, &*got.routing_key), ("amq.topic", "a.b"));
    assert_eq!(got.headers().get("k"), Some(&Value::from("v")));
    let reply = Some(Value::from("re.ply"));
    assert_eq!(got.headers().get("x-opt-reply-to-topic"), reply.as_ref());
}

#[test]
fn what_amqp_publishes_mqtt_gets() {
    let mut cluster = Cluster::new(1);
    let mut amqp = cluster.client(0);
    let mut mqtt = MqttClient::new(&mut cluster, 0, "m", 0, None);
    mqtt.subscribe(&mut cluster, "a/+", Qos::AtLeastOnce);
    mqtt.said(&mut cluster);
    let mut headers = Table::default();
    headers.set("k", "v".into());
    let mut raw = BytesMut::new();
    table::encode(&headers, &mut raw);
    let durable = Amqp {
        delivery_mode: Some(2),
        headers: Some(&raw[4..]),
        ..Amqp::default()
    };
    amqp.publish(&mut cluster, "amq.topic", "a.b", &durable, b"one");
    amqp.publish(&mut cluster, "amq.topic", "a.c", &Amqp::default(), b"two");
    amqp.publish(&mut cluster, "amq.topic", "b", &durable, b"not for it");
    amqp.publish(&mut cluster, "amq.fanout", "a.b", &durable, b"elsewhere");
    let said = mqtt.said(&mut cluster);
    assert_eq!(said, ["a/b one q1 [(\"k\", \"v\")]", "a/c two q0 []"]);
}

#[test]
fn clients_change_hands_and_wills_wait() {
    let mut cluster = Cluster::new(1);
    let mut watcher = MqttClient::new(&mut cluster, 0, "w", 0, None);
    watcher.subscribe(&mut cluster, "will", Qos::AtMostOnce);
    watcher.said(&mut cluster);
    let will = || {
        Some(Will {
            qos: Qos::AtMostOnce,
            retain: false,
            properties: Properties {
                will_delay: Some(5),
                ..Properties::default()
            },
            topic: "will",
            payload: b"gone",
        })
    };
    let mut first = MqttClient::new(&mut cluster, 0, "c", 60, will());
    first.subscribe(&mut cluster, "a", Qos::AtLeastOnce);
    let mut second = MqttClient::new(&mut cluster, 0, "c", 60, will());
    let told = first.said(&mut cluster);
    assert_eq!(
        told.last().map(String::as_str),
        Some("DISCONNECT SessionTakenOver")
    );
    first.cut(&mut cluster);
    assert_eq!(second.said(&mut cluster), ["CONNACK Success true"]);
    second.cut(&mut cluster);
    watcher.publish(
        &mut cluster,
        "a",
        Qos::AtLeastOnce,
        b"kept",
        Properties::default(),
    );
    assert_eq!(watcher.said(&mut cluster), ["PubAck Success"]);
    cluster.pass(Duration::from_secs(4));
    assert_eq!(watcher.said(&mut cluster), [""; 0]);
    cluster.pass(Duration::from_secs(2));
    assert_eq!(watcher.said(&mut cluster), ["will gone q0 []"]);
    let mut third = MqttClient::new(&mut cluster, 0, "c", 60, None);
    assert_eq!(
        third.said(&mut cluster),
        ["CONNACK Success true", "a kept q1 []"]
    );
}
