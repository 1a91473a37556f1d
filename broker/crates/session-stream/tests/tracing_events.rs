//! Messages that are reported while the node records spans.

use crate::fake::{FIRST, OK, World};
use bytes::BytesMut;
use codec_stream::{
    ClientCommand, OffsetSpecification, PublishedBody, PublishedMessage, PublishedMessages,
};

/// Messages of an uncompressed sub-batch.
fn sub_batch(bodies: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    for body in bodies {
        data.extend_from_slice(&u32::try_from(body.len()).unwrap().to_be_bytes());
        data.extend_from_slice(body.as_bytes());
    }
    data
}

fn body(body: PublishedBody<'_>) -> PublishedMessage<'_> {
    PublishedMessage {
        publishing_id: 1,
        filter: None,
        body,
    }
}

fn batch(compression: u8, records: u16, data: &[u8]) -> PublishedMessage<'_> {
    body(PublishedBody::SubBatch {
        compression,
        records,
        uncompressed_len: 9,
        data,
    })
}

fn publish(world: &mut World, messages: &[PublishedMessage<'_>]) {
    let mut buffer = BytesMut::new();
    let messages = PublishedMessages::encode(messages, &mut buffer);
    world.send(
        0,
        &ClientCommand::Publish {
            publisher_id: 1,
            messages,
        },
    );
}

fn traced(world: &mut World) -> Vec<String> {
    std::mem::take(&mut world.broker.traced)
}

#[test]
fn nothing_is_reported_unless_the_tree_says_so() {
    let mut world = World::open();
    assert_eq!(world.declare_publisher(1, "", "s"), OK);
    assert_eq!(world.subscribe(0, 1, "s", FIRST, 10, &[]), OK);
    world.publish(0, 1, &[(1, "a")]);
    assert_eq!(traced(&mut world), [""; 0]);
}

#[test]
fn messages_and_uncompressed_sub_batches_are_reported() {
    let mut world = World::open();
    world.broker.tree.trace_all();
    assert_eq!(world.declare_publisher(1, "", "s"), OK);
    let (plain, gzip) = (sub_batch(&["b", "c"]), *b"compressed");
    let messages = [
        body(PublishedBody::Message(b"a")),
        batch(0, 2, &plain),
        batch(1, 3, &gzip),
        body(PublishedBody::Message(b"d")),
        // The sub-batch claims more messages than it has.
        batch(0, 9, &plain),
    ];
    publish(&mut world, &messages);
    let expected =
        |event: &str| ["a", "b", "c", "d", "b", "c"].map(|body| format!("{event} {body}"));
    assert_eq!(traced(&mut world), expected("published 1 / s"));
    assert_eq!(world.subscribe(0, 1, "s", FIRST, 10, &[]), OK);
    assert_eq!(traced(&mut world), expected("delivered 1700000000000 / s"));
}

#[test]
fn messages_before_the_offset_of_the_consumer_are_not_reported() {
    let mut world = World::open();
    world.broker.tree.trace_all();
    assert_eq!(world.declare_publisher(1, "", "s"), OK);
    let plain = sub_batch(&["b", "c", "d"]);
    let messages = [
        body(PublishedBody::Message(b"a")),
        batch(0, 3, &plain),
        body(PublishedBody::Message(b"e")),
    ];
    publish(&mut world, &messages);
    traced(&mut world);
    // The third message is in the middle of the sub-batch.
    let offset = OffsetSpecification::Offset(2);
    assert_eq!(world.subscribe(0, 1, "s", offset, 10, &[]), OK);
    let expected = ["c", "d", "e"].map(|body| format!("delivered 1700000000000 / s {body}"));
    assert_eq!(traced(&mut world), expected);
}
