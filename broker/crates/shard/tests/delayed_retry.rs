//! Delayed retry of quorum queues in a cluster, behind its feature flag.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use message::Value;
use metadata::Change;
use metadata::features::QUORUM_DELAYED_RETRY;
use queue::DelayedDetails;
use std::time::Duration;

const QUEUE: &str = "work";
const DELAY: Duration = Duration::from_secs(20);

fn declare(c: &mut Cluster, client: &mut Client) {
    let delay = i64::try_from(DELAY.as_millis()).expect("a short delay");
    let arguments = [
        ("x-queue-type", Value::from("quorum")),
        ("x-delayed-retry-type", Value::from("failed")),
        ("x-delayed-retry-min", Value::I64(delay)),
        ("x-delayed-retry-max", Value::I64(10 * delay)),
    ];
    client.declare(c, QUEUE, &arguments);
    client.publish(c, "", QUEUE, &Properties::default(), b"m");
}

/// Rejects the message of a delivery with requeue, which counts as a failure.
fn fail(c: &mut Cluster, client: &mut Client, delivery_tag: u64) {
    let requeue = true;
    client.send(
        c,
        1,
        Method::BasicReject {
            delivery_tag,
            requeue,
        },
    );
    c.settle();
}

fn delayed(c: &mut Cluster, at: usize) -> Option<DelayedDetails> {
    c.queue(at, QUEUE).and_then(|q| q.delayed)
}

#[test]
fn failed_message_waits_longer_after_each_failure() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    for failures in 1..=3u32 {
        let got = client.must_get(&mut c, QUEUE);
        let failed_at = c.wall.0;
        fail(&mut c, &mut client, got.tag);
        let due = failed_at + u64::from(failures) * DELAY.as_millis() as u64;
        for at in 0..3 {
            let details = delayed(&mut c, at).expect("a delayed message");
            assert_eq!((details.messages, details.bytes), (1, 1), "node {at}");
            assert_eq!(details.next_at, details.last_at);
            assert!(details.next_at >= due, "{details:?}, {due}");
            let stats = c.queue(at, QUEUE).and_then(|q| q.stats).expect("a leader");
            assert_eq!((stats.ready, stats.messages()), (0, 1), "node {at}");
        }
        c.pass(DELAY * (failures - 1));
        assert!(client.get(&mut c, QUEUE).is_none(), "{failures} failures");
        c.until("the message is ready", |c| {
            (c.ready(1, QUEUE) == 1).then_some(())
        });
        assert!(c.wall.0 >= due);
        assert_eq!(delayed(&mut c, 1), None);
    }
}

#[test]
fn returned_message_is_ready_at_once_if_only_failed_ones_are_delayed() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    let got = client.must_get(&mut c, QUEUE);
    let nack = Method::BasicNack {
        delivery_tag: got.tag,
        multiple: false,
        requeue: true,
    };
    client.send(&mut c, 1, nack);
    assert_eq!(client.must_get(&mut c, QUEUE).body[..], b"m"[..]);
}

#[test]
fn next_leader_delivers_a_delayed_message_on_time() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    let got = client.must_get(&mut c, QUEUE);
    fail(&mut c, &mut client, got.tag);
    let due = delayed(&mut c, 0).expect("a delayed message").next_at;
    let (other, mut client) = c.kill_leader(QUEUE);
    assert!(c.wall.0 < due, "still delayed");
    assert!(client.get(&mut c, QUEUE).is_none());
    c.until("the message is ready", |c| {
        (c.ready(other, QUEUE) == 1).then_some(())
    });
    assert!(c.wall.0 >= due);
    assert_eq!(client.must_get(&mut c, QUEUE).body[..], b"m"[..]);
}

#[test]
fn without_the_flag_messages_are_ready_at_once_until_it_is_enabled() {
    let flag = QUORUM_DELAYED_RETRY.name;
    let mut c = Cluster::without_feature(3, flag);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    let got = client.must_get(&mut c, QUEUE);
    fail(&mut c, &mut client, got.tag);
    assert_eq!(delayed(&mut c, 0), None);
    let got = client.must_get(&mut c, QUEUE);
    c.change(Change::EnableFeature { name: flag.into() });
    c.settle();
    fail(&mut c, &mut client, got.tag);
    assert_eq!(delayed(&mut c, 2).map(|d| d.messages), Some(1));
}
