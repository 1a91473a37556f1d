//! Quorum queues that deliver the messages of each group in order and to one consumer at a time.

use crate::cluster::{Client, Cluster, Got, arguments};
use bytes::BytesMut;
use codec_amqp091::{Method, Properties, table};
use message::Value;
use metadata::Change;
use metadata::features::MESSAGE_GROUPS;

const QUEUE: &str = "orders";
const GROUPS: [(&str, Value); 1] = [("x-message-groups", Value::Bool(true))];

fn declare(c: &mut Cluster, client: &mut Client) {
    let list = [
        ("x-queue-type", Value::from("quorum")),
        ("x-message-groups", Value::Bool(true)),
    ];
    client.declare(c, QUEUE, &list);
}

fn publish(c: &mut Cluster, client: &mut Client, queue: &str, header: (&str, Value), body: &str) {
    let mut encoded = BytesMut::new();
    table::encode(&arguments(&[header]), &mut encoded);
    let properties = Properties {
        headers: Some(&encoded[4..]),
        delivery_mode: Some(2),
        ..Properties::default()
    };
    client.publish(c, "", queue, &properties, body.as_bytes());
}

fn publish_to_group(c: &mut Cluster, client: &mut Client, group: &str, body: &str) {
    publish(c, client, QUEUE, ("x-message-group", group.into()), body);
}

fn select_confirms(c: &mut Cluster, client: &mut Client) {
    client.call(c, 1, Method::ConfirmSelect { no_wait: false });
}

fn consume(c: &mut Cluster, client: &mut Client, prefetch_count: u16) {
    let qos = Method::BasicQos {
        prefetch_size: 0,
        prefetch_count,
        global: false,
    };
    client.call(c, 1, qos);
    client.consume(c, QUEUE);
}

fn next(c: &mut Cluster, client: &mut Client) -> Got {
    c.until("a delivery", |c| client.delivery_now(c))
}

fn body(got: &Got) -> &str {
    std::str::from_utf8(&got.body).expect("text")
}

/// Waits for a delivery with this body. Returns its delivery tag.
fn expect(c: &mut Cluster, client: &mut Client, expected: &str) -> u64 {
    let got = next(c, client);
    assert_eq!(body(&got), expected);
    got.tag
}

fn ack(c: &mut Cluster, client: &mut Client, delivery_tag: u64) {
    let multiple = false;
    let ack = Method::BasicAck {
        delivery_tag,
        multiple,
    };
    client.send(c, 1, ack);
    c.settle();
}

fn expect_nothing(c: &mut Cluster, client: &mut Client) {
    c.settle();
    assert!(client.delivery_now(c).is_none());
}

#[test]
fn group_is_delivered_in_order_to_one_consumer_at_a_time() {
    let mut c = Cluster::new(1);
    let (mut one, mut other) = (c.client(0), c.client(0));
    declare(&mut c, &mut one);
    consume(&mut c, &mut one, 1);
    consume(&mut c, &mut other, 1);
    let mut publisher = c.client(0);
    select_confirms(&mut c, &mut publisher);
    for (group, body) in [("a", "a1"), ("a", "a2"), ("b", "b1"), ("a", "a3")] {
        publish_to_group(&mut c, &mut publisher, group, body);
    }
    let jms = ("JMSXGroupID", Value::from("b"));
    publish(&mut c, &mut publisher, QUEUE, jms, "b2");
    publisher.until_confirmed(&mut c, 5);
    let first = expect(&mut c, &mut one, "a1");
    let second = expect(&mut c, &mut other, "b1");
    expect_nothing(&mut c, &mut one);
    ack(&mut c, &mut other, second);
    let second = expect(&mut c, &mut other, "b2");
    ack(&mut c, &mut other, second);
    expect_nothing(&mut c, &mut other);
    ack(&mut c, &mut one, first);
    expect(&mut c, &mut one, "a2");
    // The consumer cancels and keeps its message, and then ends.
    let cancel = Method::BasicCancel {
        consumer_tag: "c",
        no_wait: false,
    };
    one.call(&mut c, 1, cancel);
    expect_nothing(&mut c, &mut other);
    let close = Method::ChannelClose {
        reply_code: 200,
        reply_text: "",
        class_id: 0,
        method_id: 0,
    };
    one.call(&mut c, 1, close);
    let third = expect(&mut c, &mut other, "a2");
    ack(&mut c, &mut other, third);
    expect(&mut c, &mut other, "a3");
}

#[test]
fn next_leader_knows_the_owner_of_a_group() {
    // Checkpoints after a few entries: the next leader restores the owners from one.
    let mut c = Cluster::with_nodes_and_checkpoints(3, 4);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    let leader = c.until("a leader", |c| c.queue(0, QUEUE)?.leader).0 as usize - 1;
    let survivors: Vec<usize> = (0..3).filter(|at| *at != leader).collect();
    let mut consumers: Vec<Client> = survivors.iter().map(|at| c.client(*at)).collect();
    for consumer in &mut consumers {
        consume(&mut c, consumer, 1);
    }
    let mut publisher = c.client(survivors[0]);
    select_confirms(&mut c, &mut publisher);
    for n in 1..=3 {
        for group in ["a", "b"] {
            publish_to_group(&mut c, &mut publisher, group, &format!("{group}{n}"));
        }
    }
    publisher.until_confirmed(&mut c, 6);
    let mut owned = Vec::new();
    for consumer in &mut consumers {
        let got = next(&mut c, consumer);
        owned.push((got.tag, body(&got)[..1].to_owned()));
        assert_eq!(&body(&got)[1..], "1");
    }
    assert_ne!(owned[0].1, owned[1].1, "each has a group");
    c.kill(leader);
    for (consumer, (tag, group)) in consumers.iter_mut().zip(owned) {
        ack(&mut c, consumer, tag);
        let second = expect(&mut c, consumer, &format!("{group}2"));
        ack(&mut c, consumer, second);
        expect(&mut c, consumer, &format!("{group}3"));
    }
}

#[test]
fn dead_letter_has_the_group_of_its_headers() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    let dead_lettering = [
        ("x-dead-letter-exchange", Value::from("")),
        ("x-dead-letter-routing-key", Value::from(QUEUE)),
    ];
    client.declare(&mut c, "first", &dead_lettering);
    select_confirms(&mut c, &mut client);
    for body in ["a1", "a2"] {
        let header = ("x-message-group", Value::from("a"));
        publish(&mut c, &mut client, "first", header, body);
    }
    client.until_confirmed(&mut c, 2);
    for _ in 0..2 {
        let got = client.must_get(&mut c, "first");
        let reject = Method::BasicReject {
            delivery_tag: got.tag,
            requeue: false,
        };
        client.send(&mut c, 1, reject);
    }
    c.until("both are dead letters", |c| {
        (c.ready(0, QUEUE) == 2).then_some(())
    });
    let mut other = c.client(0);
    let first = client.must_get(&mut c, QUEUE);
    assert_eq!(body(&first), "a1");
    assert!(other.get(&mut c, QUEUE).is_none(), "the group is owned");
    ack(&mut c, &mut client, first.tag);
    assert_eq!(body(&other.must_get(&mut c, QUEUE)), "a2");
}

#[test]
fn invalid_header_closes_the_channel() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    let invalid = ("JMSXGroupID", Value::Bool(true));
    publish(&mut c, &mut client, QUEUE, invalid, "m");
    let closed = client.next_method(&mut c);
    assert!(closed.contains("reply_code: 406"), "{closed}");
    assert!(closed.contains("'JMSXGroupID'"), "{closed}");
}

#[test]
fn queue_needs_the_feature_flag() {
    let flag = MESSAGE_GROUPS.name;
    let mut c = Cluster::without_feature(3, flag);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    consume(&mut c, &mut client, 1);
    let mut publisher = c.client(0);
    select_confirms(&mut c, &mut publisher);
    for body in ["a1", "a2"] {
        publish_to_group(&mut c, &mut publisher, "a", body);
    }
    publisher.until_confirmed(&mut c, 2);
    expect(&mut c, &mut client, "a1");
    let mut other = c.client(0);
    assert_eq!(body(&other.must_get(&mut c, QUEUE)), "a2");
    c.change(Change::EnableFeature { name: flag.into() });
    c.settle();
    for body in ["b1", "b2"] {
        publish_to_group(&mut c, &mut publisher, "b", body);
    }
    publisher.until_confirmed(&mut c, 4);
    assert_eq!(body(&other.must_get(&mut c, QUEUE)), "b1");
    assert!(client.get(&mut c, QUEUE).is_none(), "the group is owned");
    // Other types do not have the argument from now on.
    let declare = Method::QueueDeclare {
        queue: "classic",
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: arguments(&GROUPS),
    };
    let refused = client.ask(&mut c, 1, declare).expect_err("a classic queue");
    assert!(refused.contains("x-message-groups"), "{refused}");
    assert!(refused.contains("rabbit_classic_queue"), "{refused}");
}
