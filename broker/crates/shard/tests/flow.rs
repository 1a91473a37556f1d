//! Consumers without basic.qos on another node than their queue: a client that does not read, and one that does not acknowledge.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use message::{Table, Value};

const MIB: usize = 1 << 20;
const MESSAGES: usize = 20;

fn consume(cluster: &mut Cluster, client: &mut Client) {
    let method = Method::BasicConsume {
        queue: "q",
        consumer_tag: "c",
        no_local: false,
        no_ack: false,
        exclusive: false,
        no_wait: false,
        arguments: Table::default(),
    };
    client.send(cluster, 1, method);
}

/// Bytes that have come.
fn read(cluster: &mut Cluster, client: &Client) -> usize {
    let mut len = 0;
    client.take_raw(cluster, |piece| len += piece.len());
    client.drained(cluster);
    len
}

/// Messages of a queue on node 0 for a client of node 1; what the client holds before it has read anything.
fn until_it_reads(kind: &str) -> u64 {
    let mut cluster = Cluster::new(2);
    let mut publisher = cluster.client(0);
    let kind = [("x-queue-type", Value::from(kind))];
    publisher.declare(&mut cluster, "q", &kind);
    cluster.until("known", |c| c.knows(1, "q").then_some(()));
    let body = vec![7; MIB];
    for _ in 0..MESSAGES {
        publisher.publish(&mut cluster, "", "q", &Properties::default(), &body);
    }
    let all = MESSAGES as u64;
    cluster.until("published", |c| (c.ready(0, "q") == all).then_some(()));
    let mut client = cluster.client(1);
    consume(&mut cluster, &mut client);
    cluster.until("delivered", |c| (c.ready(0, "q") < all).then_some(()));
    cluster.settle();
    let stats = cluster.queue(0, "q").and_then(|q| q.stats);
    let held = stats.expect("there").unacknowledged;
    let waiting = client.waiting(&mut cluster);
    assert!(waiting < 3 * MIB, "{waiting} bytes wait for the socket");
    let mut len = 0;
    cluster.until("all of it", |c| {
        len += read(c, &client);
        (len > MESSAGES * MIB).then_some(())
    });
    let stats = cluster.queue(0, "q").and_then(|q| q.stats);
    assert_eq!(stats.expect("there").unacknowledged, all);
    held
}

#[test]
fn a_classic_queue_hands_out_a_window_of_bytes() {
    let held = until_it_reads("classic");
    assert!(held <= 5, "{held}");
}

#[test]
fn a_quorum_queue_sends_what_its_consumer_holds_as_it_reads() {
    assert_eq!(until_it_reads("quorum"), MESSAGES as u64);
}
