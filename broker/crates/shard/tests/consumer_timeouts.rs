//! Acknowledgement timeouts of quorum queues in a cluster, behind their feature flag.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use message::Value;
use metadata::features::QUORUM_CONSUMER_TIMEOUTS;
use std::time::Duration;

const QUEUE: &str = "work";
const TIMEOUT: Duration = Duration::from_secs(8);

fn declare(c: &mut Cluster, client: &mut Client) {
    let timeout = i64::try_from(TIMEOUT.as_millis()).expect("a short timeout");
    let arguments = [
        ("x-queue-type", Value::from("quorum")),
        ("x-consumer-timeout", Value::I64(timeout)),
    ];
    client.declare(c, QUEUE, &arguments);
    client.publish(c, "", QUEUE, &Properties::default(), b"m");
}

#[test]
fn message_of_a_consumer_that_does_not_acknowledge_returns_to_its_queue() {
    let mut c = Cluster::new(3);
    for at in 0..3 {
        let mut client = c.client(at);
        declare(&mut c, &mut client);
        client.consume(&mut c, QUEUE);
        let got = client.delivery(&mut c);
        let started = c.wall.0;
        c.until("the message is ready", |c| {
            (c.ready(0, QUEUE) == 1).then_some(())
        });
        let passed = Duration::from_millis(c.wall.0 - started);
        assert!(passed >= TIMEOUT && passed <= TIMEOUT * 5 / 4, "{passed:?}");
        // A late acknowledgement has no effect.
        client.acknowledge(&mut c, got.tag);
        c.settle();
        let stats = c.queue(0, QUEUE).and_then(|q| q.stats).expect("a leader");
        assert_eq!((stats.ready, stats.consumers), (1, 0), "node {at}");
        let mut other = c.client(0);
        let again = other.must_get(&mut c, QUEUE);
        assert_eq!(again.body[..], b"m"[..]);
        other.acknowledge(&mut c, again.tag);
        c.settle();
    }
}

#[test]
fn without_the_flag_the_message_stays_with_its_consumer() {
    let mut c = Cluster::without_feature(1, QUORUM_CONSUMER_TIMEOUTS.name);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    client.consume(&mut c, QUEUE);
    let got = client.delivery(&mut c);
    c.pass(TIMEOUT * 2);
    assert_eq!(c.ready(0, QUEUE), 0);
    let delivery_tag = got.tag;
    let multiple = false;
    let ack = Method::BasicAck {
        delivery_tag,
        multiple,
    };
    client.send(&mut c, 1, ack);
    c.settle();
    let stats = c.queue(0, QUEUE).and_then(|q| q.stats).expect("a leader");
    assert_eq!(stats.messages(), 0);
}
