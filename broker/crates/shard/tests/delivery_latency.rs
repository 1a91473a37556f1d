//! The time from the acceptance of a message to its first delivery.

use crate::cluster::browser::Browser;
use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use control::DeliveryTimings;
use message::Value;
use queue::QueueType;
use std::sync::Arc;
use std::time::Duration;

fn start(size: usize) -> (Cluster, Arc<DeliveryTimings>) {
    let timings = Arc::<DeliveryTimings>::default();
    (Cluster::with_deliveries(size, &timings), timings)
}

fn publish(c: &mut Cluster, client: &mut Client, queue: &str) {
    let durable = Properties {
        delivery_mode: Some(2),
        ..Properties::default()
    };
    client.publish(c, "", queue, &durable, b"m");
}

/// The number of measured deliveries and the sum of their latencies in whole seconds.
fn measured(timings: &DeliveryTimings, queue_type: QueueType) -> (u64, u64) {
    let read = timings.queues[queue_type].snapshot();
    (read.count, read.sum as u64)
}

#[test]
fn latency_is_measured_on_the_node_of_the_consumer() {
    for queue_type in [QueueType::Classic, QueueType::Quorum] {
        let (mut c, timings) = start(3);
        let mut publisher = c.client(0);
        let kind = [("x-queue-type", Value::from(queue_type.name()))];
        publisher.declare(&mut c, "q", &kind);
        publish(&mut c, &mut publisher, "q");
        c.until("the message", |c| (c.ready(0, "q") > 0).then_some(()));
        c.pass(Duration::from_secs(7));
        assert_eq!(measured(&timings, queue_type), (0, 0));
        let mut consumer = c.client(1);
        consumer.consume(&mut c, "q");
        let got = consumer.delivery(&mut c);
        assert_eq!(measured(&timings, queue_type), (1, 7), "{queue_type:?}");
        consumer.acknowledge(&mut c, got.tag);
        for other in QueueType::ALL {
            let count = timings.queues[other].snapshot().count;
            assert_eq!(count, u64::from(other == queue_type), "{other:?}");
        }
        assert_eq!(timings.queueless.snapshot().count, 0);
    }
}

#[test]
fn redeliveries_gets_and_browsing_are_not_measured() {
    let (mut c, timings) = start(1);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    publish(&mut c, &mut client, "q");
    c.until("the message", |c| (c.ready(0, "q") > 0).then_some(()));
    let mut browser = Browser::new(&mut c, 0, "q");
    assert_eq!(browser.drain(&mut c), ["m"]);
    let got = client.must_get(&mut c, "q");
    let requeue = Method::BasicReject {
        delivery_tag: got.tag,
        requeue: true,
    };
    client.send(&mut c, 1, requeue);
    client.consume(&mut c, "q");
    client.delivery(&mut c);
    assert_eq!(measured(&timings, QueueType::Classic), (0, 0));
    publish(&mut c, &mut client, "q");
    client.delivery(&mut c);
    assert_eq!(measured(&timings, QueueType::Classic), (1, 0));
}

#[test]
fn one_delivery_of_a_turn_is_measured() {
    let (mut c, timings) = start(1);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    for _ in 0..3 {
        publish(&mut c, &mut client, "q");
    }
    c.until("the messages", |c| (c.ready(0, "q") == 3).then_some(()));
    client.consume(&mut c, "q");
    for _ in 0..3 {
        client.delivery(&mut c);
    }
    assert_eq!(measured(&timings, QueueType::Classic).0, 1);
}
