//! The stored form of messages.

use super::*;
use crate::entry::{decode, encode, filter_value};
use message::Value;

fn headers(message: &Message) -> Vec<(String, Value)> {
    let view = conversion::View::of(message).expect("decodes");
    let mut all = Vec::new();
    view.headers
        .for_each(|header| all.push((header.name.to_owned(), header.value)));
    all
}

#[test]
fn message_keeps_exchange_key_and_body_and_gets_its_offset() {
    let mut bytes = Vec::new();
    encode(&message(b"hello"), &mut bytes);
    let stored = decode(&bytes, 7, WallTime(9), "s").expect("decodes");
    assert_eq!((stored.exchange(), stored.routing_key()), ("ex", "key"));
    assert!(stored.durable());
    assert_eq!(stored.received(), WallTime(9));
    assert_eq!(
        headers(&stored),
        vec![("x-stream-offset".to_owned(), Value::I64(7))]
    );
    let view = conversion::View::of(&stored).expect("decodes");
    let conversion::Body::Bytes(part) = &view.body else {
        panic!("{:?}", view.body);
    };
    assert_eq!(part.bytes(), b"hello");
}

#[test]
fn offset_of_an_earlier_stream_is_replaced() {
    let mut bytes = Vec::new();
    encode(&message(b"hello"), &mut bytes);
    let first = decode(&bytes, 7, WallTime(9), "s").expect("decodes");
    let mut again = Vec::new();
    encode(&first, &mut again);
    let second = decode(&again, 12, WallTime(9), "t").expect("decodes");
    assert_eq!(
        headers(&second),
        vec![("x-stream-offset".to_owned(), Value::I64(12))]
    );
}

#[test]
fn bytes_that_are_no_message_become_a_body() {
    let stored = decode(b"\xffnot a section", 3, WallTime(9), "s").expect("decodes");
    assert_eq!((stored.exchange(), stored.routing_key()), ("", "s"));
    let view = conversion::View::of(&stored).expect("decodes");
    let conversion::Body::Bytes(part) = &view.body else {
        panic!("{:?}", view.body);
    };
    assert_eq!(part.bytes(), b"\xffnot a section");
}

#[test]
fn filter_value_is_the_annotation_of_the_publisher() {
    let mut annotations = Vec::new();
    codec_amqp10::encode_section_descriptor(
        &mut annotations,
        codec_amqp10::SectionKind::MessageAnnotations,
    );
    let mut map = codec_amqp10::map(&mut annotations);
    map.push(&codec_amqp10::Symbol::from_static("x-stream-filter-value"));
    map.push("europe");
    map.finish();
    let mut body = Vec::new();
    codec_amqp10::encode_data_section(&mut body, b"b");
    let builder = MessageBuilder {
        protocol: Protocol::Amqp10,
        durable: false,
        priority: None,
        ttl_ms: None,
        received: WallTime(5),
        exchange: "",
        routing_keys: &["s"],
        properties: &annotations,
    };
    let message = builder.build(body.len(), [&body[..]]).expect("builds");
    let mut bytes = Vec::new();
    encode(&message, &mut bytes);
    assert_eq!(filter_value(&bytes), Some(&b"europe"[..]));
    bytes.clear();
    encode(&super::message(b"x"), &mut bytes);
    assert_eq!(filter_value(&bytes), None);
}
