//! Annotations that the node adds to messages.

use crate::fake::{Client, Seen};
use codec_amqp10::{
    Encode, Properties, SectionKind, Sections, Symbol, Value, encode_data_section,
    encode_section_descriptor, map,
};
use session::Broker;
use session::interceptors::{Interceptors, routing_node};
use session_amqp10::{Amqp10Config, Limits};

fn open(interceptors: Interceptors) -> (Client, amqp10::SessionId) {
    let config = Amqp10Config {
        limits: Limits {
            interceptors,
            ..Limits::default()
        },
        ..Amqp10Config::default()
    };
    let (mut client, session) = Client::open_with(config, "guest");
    client.declare("q");
    (client, session)
}

/// A message with annotations and the property `subject`.
fn annotated(annotations: &[(&'static str, Value<'_>)]) -> Vec<u8> {
    let mut message = Vec::new();
    if !annotations.is_empty() {
        encode_section_descriptor(&mut message, SectionKind::MessageAnnotations);
        let mut writer = map(&mut message);
        for (name, value) in annotations {
            writer.push(&Symbol::from_static(name));
            writer.push(value);
        }
        writer.finish();
    }
    let properties = Properties {
        subject: Some("s"),
        ..Properties::default()
    };
    properties.encode(&mut message);
    encode_data_section(&mut message, b"m");
    message
}

/// Sends a message through the queue and returns it as it is delivered.
fn delivered(client: &mut Client, session: amqp10::SessionId, message: Vec<u8>) -> Vec<u8> {
    let publisher = client.publisher(session, "/queues/q");
    let consumer = client.consumer(session, "/queues/q");
    client.credit(consumer, 10, false);
    client.send_message(publisher, message, true);
    loop {
        let seen = client.seen.pop_front().expect("a message");
        if let Seen::Message { payload, .. } = seen {
            return payload;
        }
    }
}

/// Calls `check` with the annotations of a message.
fn with_annotations(message: &[u8], check: impl FnOnce(codec_amqp10::Map<'_>)) {
    let sections = Sections::parse(message).unwrap();
    assert_eq!(
        sections.read_properties(message).unwrap().subject,
        Some("s")
    );
    check(
        sections
            .read_map(sections.message_annotations, message)
            .unwrap(),
    );
}

#[test]
fn publish_gets_the_time_of_arrival_and_the_name_of_the_node() {
    for is_overwritten in [false, true] {
        let interceptors = Interceptors {
            received_time: Some(is_overwritten),
            routing_node: Some(is_overwritten),
            ..Interceptors::default()
        };
        for published in [false, true] {
            let (mut client, session) = open(interceptors);
            let now = Value::Timestamp(codec_amqp10::Timestamp(client.broker.wall().0 as i64));
            let node = routing_node(&client.broker);
            let own: &[(&'static str, Value<'_>)] = match published {
                true => &[
                    ("x-own", Value::Uint(1)),
                    ("x-routed-by", Value::String("elsewhere")),
                ],
                false => &[],
            };
            let message = delivered(&mut client, session, annotated(own));
            with_annotations(&message, |annotations| {
                let expected = match published && !is_overwritten {
                    true => "elsewhere",
                    false => &node,
                };
                assert_eq!(
                    annotations.get("x-routed-by"),
                    Some(Value::String(expected))
                );
                assert_eq!(annotations.get("x-opt-rabbitmq-received-time"), Some(now));
                assert_eq!(
                    annotations.get("x-own"),
                    published.then_some(Value::Uint(1))
                );
            });
        }
    }
}

#[test]
fn delivery_gets_the_time_at_which_it_is_sent() {
    let (mut client, session) = open(Interceptors {
        sent_time: true,
        ..Interceptors::default()
    });
    let now = Value::Long(client.broker.wall().0 as i64);
    let message = delivered(&mut client, session, annotated(&[]));
    with_annotations(&message, |annotations| {
        assert_eq!(annotations.get("x-opt-rabbitmq-sent-time"), Some(now));
    });
}

#[test]
fn received_time_reaches_amqp091_consumers_in_milliseconds() {
    let (mut client, session) = open(Interceptors {
        received_time: Some(true),
        ..Interceptors::default()
    });
    let now = client.broker.wall().0;
    let publisher = client.publisher(session, "/queues/q");
    client.send_message(publisher, annotated(&[]), true);
    let queue = client.broker.queue("/", "q").expect("a queue");
    let (message, _) = queue.ready.front().expect("a message");
    let encoded = conversion::amqp091::convert(message);
    let properties = codec_amqp091::Properties::received(&encoded.properties).unwrap();
    let headers = properties.header_table().unwrap();
    assert_eq!(
        headers.get("timestamp_in_ms"),
        Some(&message::Value::I64(now as i64))
    );
    assert_eq!(properties.timestamp, Some(now / 1000));
}
