//! Messages that are reported while the node records spans, and the deliveries that the client settles later.

use crate::fake::World;
use bytes::BytesMut;
use codec_mqtt::{
    AckKind, Packet, Properties, Publish, Qos, ReasonCode, RepeatedProperties, Version,
    put_user_property,
};

const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

fn publish(w: &mut World, c: usize, topic: &str, qos: Qos, id: u16) {
    let mut repeated = BytesMut::new();
    put_user_property(&mut repeated, "traceparent", CONTEXT);
    let publish = Publish {
        dup: false,
        qos,
        retain: false,
        topic,
        packet_id: id,
        properties: Properties {
            repeated: RepeatedProperties(&repeated),
            ..Properties::default()
        },
        payload: b"x",
    };
    w.send(c, &Packet::Publish(publish));
}

fn traced(w: &mut World) -> Vec<String> {
    w.settle();
    std::mem::take(&mut w.node.traced)
}

fn persistent(w: &mut World) -> usize {
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.client_id = "k";
        connect.clean_start = false;
        connect.properties.session_expiry = Some(3600);
    });
    assert!(w.output(c)[0].starts_with("CONNACK 0x00"));
    c
}

#[test]
fn nothing_is_reported_unless_the_tree_says_so() {
    let mut w = World::default();
    let c = persistent(&mut w);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    publish(&mut w, c, "a", Qos::AtLeastOnce, 1);
    w.ack(c, AckKind::PubAck, 1, ReasonCode::Success);
    assert_eq!(traced(&mut w), [""; 0]);
}

#[test]
fn delivery_of_a_session_queue_ends_with_the_acknowledgement() {
    let mut w = World::default();
    w.node.tree.trace_all();
    let c = persistent(&mut w);
    w.subscribe(c, "a", Qos::ExactlyOnce);
    let queue = w.node.session_queue("k").expect("the session's queue").id.0;
    let p = w.client(Version::V5, "p");
    publish(&mut w, p, "a", Qos::AtLeastOnce, 1);
    publish(&mut w, p, "a", Qos::ExactlyOnce, 2);
    let delivered = |id| {
        format!(
            "mqtt50 deliver mqtt-subscription-kqos1, settled by Some(({queue}, 1, {id})): {CONTEXT}"
        )
    };
    let published = |tag| format!("mqtt50 publish to 1 queues, tag {tag}: {CONTEXT}");
    let expected = [published(1), delivered(1), published(2), delivered(2)];
    assert_eq!(traced(&mut w), expected);
    w.ack(c, AckKind::PubAck, 1, ReasonCode::Success);
    assert_eq!(traced(&mut w), [format!("settle {queue}/1: [(1, 1)]")]);
    w.ack(c, AckKind::PubRec, 2, ReasonCode::Success);
    assert_eq!(traced(&mut w), [""; 0]);
    w.ack(c, AckKind::PubComp, 2, ReasonCode::Success);
    assert_eq!(traced(&mut w), [format!("settle {queue}/1: [(2, 2)]")]);
}

#[test]
fn delivery_without_a_queue_is_settled_when_it_is_written() {
    let mut w = World::default();
    w.node.tree.trace_all();
    let c = w.client(Version::V311, "old");
    w.subscribe(c, "a/#", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    publish(&mut w, p, "a", Qos::AtMostOnce, 0);
    publish(&mut w, p, "a/b", Qos::AtLeastOnce, 1);
    let expected = [
        format!("mqtt50 publish to 0 queues, tag 0: {CONTEXT}"),
        format!("mqtt311 deliver mqtt-subscription-oldqos0, settled by None: {CONTEXT}"),
        format!("mqtt50 publish to 0 queues, tag 1: {CONTEXT}"),
        format!("mqtt311 deliver mqtt-subscription-oldqos1, settled by None: {CONTEXT}"),
    ];
    assert_eq!(traced(&mut w), expected);
}

#[test]
fn message_of_an_earlier_connection_is_reported_as_delivered_again() {
    let mut w = World::default();
    w.node.tree.trace_all();
    let c = persistent(&mut w);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let queue = w.node.session_queue("k").expect("the session's queue").id.0;
    let p = w.client(Version::V5, "p");
    publish(&mut w, p, "a", Qos::AtLeastOnce, 1);
    traced(&mut w);
    w.cut(c);
    let c = persistent(&mut w);
    let again = traced(&mut w);
    let [line] = &*again else { panic!("{again:?}") };
    let expected = format!(
        "mqtt50 deliver mqtt-subscription-kqos1 again, settled by Some(({queue}, 1, 1)): {CONTEXT}"
    );
    assert_eq!(*line, expected);
    w.ack(c, AckKind::PubAck, 1, ReasonCode::Success);
    assert_eq!(traced(&mut w), [format!("settle {queue}/1: [(1, 1)]")]);
}
