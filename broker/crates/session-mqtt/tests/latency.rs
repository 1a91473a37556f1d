//! Deliveries that sessions offer for the measurement of their latency.

use crate::fake::World;
use codec_mqtt::{AckKind, Qos, ReasonCode, Version};
use env::WallTime;
use metadata::QueueType;
use std::time::Duration;

/// The age of each offered message in milliseconds, with the type of its queue.
fn ages(w: &mut World) -> Vec<(Option<QueueType>, u64)> {
    w.settle();
    let WallTime(now) = w.node.wall;
    let samples = std::mem::take(&mut w.node.samples);
    let age = |(queue_type, WallTime(received))| (queue_type, now - received);
    samples.into_iter().map(age).collect()
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
fn deliveries_without_a_queue_are_offered() {
    let mut w = World::default();
    let c = w.client(Version::V5, "c");
    w.subscribe(c, "a/#", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a/0", Qos::AtMostOnce, 0, "x");
    assert_eq!(ages(&mut w), [(None, 0)]);
    w.publish(p, "a/1", Qos::AtLeastOnce, 1, "x");
    assert_eq!(ages(&mut w), [(None, 0)]);
}

#[test]
fn message_that_waited_for_its_client_is_offered_with_its_age() {
    let mut w = World::default();
    let c = persistent(&mut w);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    w.cut(c);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    assert_eq!(ages(&mut w), []);
    w.advance(Duration::from_secs(5));
    let c = persistent(&mut w);
    assert_eq!(ages(&mut w), [(Some(QueueType::Classic), 5_000)]);
    // The same message once more.
    w.cut(c);
    let c = persistent(&mut w);
    assert_eq!(ages(&mut w), []);
    w.ack(c, AckKind::PubAck, 1, ReasonCode::Success);
    assert_eq!(ages(&mut w), []);
}

#[test]
fn retained_message_of_a_new_subscription_is_not_offered() {
    let mut w = World::default();
    let p = w.client(Version::V5, "p");
    w.publish_with(p, "a", Qos::AtMostOnce, 0, "x", |publish| {
        publish.retain = true;
    });
    w.settle();
    let c = w.client(Version::V5, "c");
    w.subscribe_with(c, "a", codec_mqtt::SubscribeOptions::default(), None);
    assert_eq!(
        w.output(c).last().map(String::as_str),
        Some("PUBLISH a x q0 retain")
    );
    assert_eq!(ages(&mut w), []);
}
