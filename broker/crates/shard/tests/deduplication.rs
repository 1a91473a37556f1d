//! Quorum queues that store a message once that is published again.

use crate::cluster::{Client, Cluster, arguments};
use bytes::BytesMut;
use codec_amqp091::{Method, Properties, table};
use message::Value;
use metadata::Change;
use metadata::features::PUBLISHER_DEDUPLICATION;
use std::time::Duration;

const QUEUE: &str = "orders";
const WINDOW_MS: i32 = 60_000;

fn declare(c: &mut Cluster, client: &mut Client) {
    let list = [
        ("x-queue-type", Value::from("quorum")),
        ("x-message-deduplication", Value::Bool(true)),
        ("x-deduplication-window", Value::I32(WINDOW_MS)),
    ];
    client.declare(c, QUEUE, &list);
}

fn publish(c: &mut Cluster, client: &mut Client, exchange: &str, headers: &[(&str, Value)]) {
    let mut encoded = BytesMut::new();
    table::encode(&arguments(headers), &mut encoded);
    let properties = Properties {
        headers: Some(&encoded[4..]),
        delivery_mode: Some(2),
        ..Properties::default()
    };
    client.publish(c, exchange, QUEUE, &properties, b"m");
}

fn publish_numbered(c: &mut Cluster, client: &mut Client, number: i32) {
    let headers = [
        ("x-publisher-id", Value::from("shop")),
        ("x-publishing-id", Value::I32(number)),
    ];
    publish(c, client, "", &headers);
}

fn publish_value(c: &mut Cluster, client: &mut Client, value: &str) {
    publish(
        c,
        client,
        "",
        &[("x-deduplication-header", Value::from(value))],
    );
}

fn select_confirms(c: &mut Cluster, client: &mut Client) {
    client.call(c, 1, Method::ConfirmSelect { no_wait: false });
}

/// Checkpoints after a few entries: the next leader restores what the queue remembers from one.
#[test]
fn copies_are_recognised_by_the_next_leader() {
    let mut c = Cluster::with_nodes_and_checkpoints(3, 4);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    select_confirms(&mut c, &mut client);
    for number in 1..=20 {
        publish_numbered(&mut c, &mut client, number);
        client.until_confirmed(&mut c, number as u64);
    }
    let (other, mut client) = c.kill_leader(QUEUE);
    select_confirms(&mut c, &mut client);
    for number in 15..=22 {
        publish_numbered(&mut c, &mut client, number);
    }
    client.until_confirmed(&mut c, 8);
    c.until("copies are not stored", |c| {
        (c.ready(other, QUEUE) == 22).then_some(())
    });
}

#[test]
fn copies_are_recognised_after_a_restart() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    select_confirms(&mut c, &mut client);
    publish_value(&mut c, &mut client, "v");
    client.until_confirmed(&mut c, 1);
    c.kill(0);
    c.back(0);
    let mut client = c.client(0);
    select_confirms(&mut c, &mut client);
    publish_value(&mut c, &mut client, "v");
    publish_value(&mut c, &mut client, "w");
    client.until_confirmed(&mut c, 2);
    c.until("the copy is not stored", |c| {
        (c.ready(0, QUEUE) == 2).then_some(())
    });
    c.pass(Duration::from_millis(WINDOW_MS as u64));
    publish_value(&mut c, &mut client, "v");
    client.until_confirmed(&mut c, 3);
    c.until("the window is over", |c| {
        (c.ready(0, QUEUE) == 3).then_some(())
    });
}

/// Each queue of a message decides for itself.
#[test]
fn other_queues_of_the_message_store_copies() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    client.declare(&mut c, "classic", &[]);
    client.declare(&mut c, "quorum", &[("x-queue-type", Value::from("quorum"))]);
    client.declare_exchange(&mut c, "all", "fanout");
    for queue in [QUEUE, "classic", "quorum"] {
        client.bind(&mut c, queue, "all", "", &[]);
    }
    select_confirms(&mut c, &mut client);
    for _ in 0..2 {
        publish(
            &mut c,
            &mut client,
            "all",
            &[("x-deduplication-header", Value::I32(7))],
        );
    }
    client.until_confirmed(&mut c, 2);
    for (queue, stored) in [(QUEUE, 1), ("classic", 2), ("quorum", 2)] {
        c.until(queue, |c| (c.ready(0, queue) == stored).then_some(()));
    }
}

#[test]
fn invalid_header_closes_the_channel() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    client.declare(&mut c, "plain", &[("x-queue-type", Value::from("quorum"))]);
    declare(&mut c, &mut client);
    let invalid = [("x-publishing-id", Value::I32(1))];
    publish(&mut c, &mut client, "", &invalid);
    let closed = client.next_method(&mut c);
    assert!(closed.contains("reply_code: 406"), "{closed}");
    assert!(closed.contains("'x-publisher-id'"), "{closed}");
    assert_eq!(c.ready(0, QUEUE), 0);
}

#[test]
fn queue_needs_the_feature_flag() {
    let flag = PUBLISHER_DEDUPLICATION.name;
    let mut c = Cluster::without_feature(3, flag);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    select_confirms(&mut c, &mut client);
    publish_value(&mut c, &mut client, "v");
    publish_value(&mut c, &mut client, "v");
    client.until_confirmed(&mut c, 2);
    c.until("both are stored", |c| {
        (c.ready(0, QUEUE) == 2).then_some(())
    });
    c.change(Change::EnableFeature { name: flag.into() });
    c.settle();
    for _ in 0..2 {
        publish_value(&mut c, &mut client, "w");
    }
    client.until_confirmed(&mut c, 4);
    c.until("one is stored", |c| (c.ready(0, QUEUE) == 3).then_some(()));
    // Other types do not have the arguments from now on.
    let declare = Method::QueueDeclare {
        queue: "classic",
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: arguments(&[("x-message-deduplication", Value::Bool(true))]),
    };
    let refused = client.ask(&mut c, 1, declare).expect_err("a classic queue");
    assert!(refused.contains("x-message-deduplication"), "{refused}");
}
