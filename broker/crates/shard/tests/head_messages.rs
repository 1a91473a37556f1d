//! The oldest ready message of each queue, behind its feature flag.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use control::ControlRequest;
use message::Value;
use metadata::Change;
use metadata::features::HEAD_MESSAGE_AGES;
use queue::HeadMessage;
use std::time::Duration;

const QUEUE: &str = "work";
/// Messages are published with this time between them.
const APART: Duration = Duration::from_secs(60);

fn declare(c: &mut Cluster, client: &mut Client, kind: &'static str) {
    client.declare(c, QUEUE, &[("x-queue-type", Value::from(kind))]);
}

/// Publishes a message and waits until it is ready. Returns the first and the last moment at which it can have been received.
fn publish(c: &mut Cluster, client: &mut Client, timestamp: Option<u64>) -> (u64, u64) {
    let (from, ready) = (c.wall.0, c.ready(0, QUEUE));
    let properties = Properties {
        timestamp,
        delivery_mode: Some(2),
        ..Properties::default()
    };
    client.publish(c, "", QUEUE, &properties, b"body");
    c.until("the message is ready", |c| {
        (c.ready(0, QUEUE) > ready).then_some(())
    });
    let until = c.wall.0;
    c.pass(APART);
    (from, until)
}

/// The head of the queue, which is the same in lists and alone, on every node.
fn head(c: &mut Cluster) -> Option<HeadMessage> {
    let nodes = c.nodes_known(0).len();
    let mut found = Vec::new();
    for at in 0..nodes {
        found.push(c.queue(at, QUEUE).expect("the queue").head);
        let list = c.ask(at, |reply| ControlRequest::Queues { only: None, reply });
        found.extend(list.into_iter().map(|facts| facts.head));
    }
    let first = found[0];
    assert!(found.iter().all(|head| *head == first), "{found:?}");
    first
}

fn assert_received(head: Option<HeadMessage>, (from, until): (u64, u64)) {
    let received = head.expect("a head").received;
    assert!(
        (from..=until).contains(&received),
        "{received} {from} {until}"
    );
}

fn requeue(c: &mut Cluster, client: &mut Client, delivery_tag: u64) {
    let nack = Method::BasicNack {
        delivery_tag,
        multiple: false,
        requeue: true,
    };
    client.send(c, 1, nack);
    c.settle();
}

fn head_follows_the_messages(kind: &'static str) {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client, kind);
    assert_eq!(head(&mut c), None, "an empty queue");
    let first = publish(&mut c, &mut client, Some(1_700_000_000));
    let second = publish(&mut c, &mut client, None);
    let of_first = head(&mut c);
    assert_received(of_first, first);
    assert_eq!(of_first.and_then(|h| h.timestamp), Some(1_700_000_000));
    let got = client.must_get(&mut c, QUEUE);
    let of_second = head(&mut c);
    assert_received(of_second, second);
    assert_eq!(of_second.and_then(|h| h.timestamp), None);
    requeue(&mut c, &mut client, got.tag);
    assert_eq!(head(&mut c), of_first);
    for _ in 0..2 {
        let got = client.must_get(&mut c, QUEUE);
        client.acknowledge(&mut c, got.tag);
    }
    c.settle();
    assert_eq!(head(&mut c), None);
    let third = publish(&mut c, &mut client, None);
    assert_received(head(&mut c), third);
}

#[test]
fn head_of_a_classic_queue_is_its_oldest_ready_message() {
    head_follows_the_messages("classic");
}

#[test]
fn head_of_a_quorum_queue_is_its_oldest_ready_message() {
    head_follows_the_messages("quorum");
}

#[test]
fn expired_message_is_not_the_head() {
    for kind in ["classic", "quorum"] {
        let mut c = Cluster::new(1);
        let mut client = c.client(0);
        declare(&mut c, &mut client, kind);
        let short = Properties {
            expiration: Some("5000"),
            ..Properties::default()
        };
        client.publish(&mut c, "", QUEUE, &short, b"body");
        c.until("the message is ready", |c| {
            (c.ready(0, QUEUE) == 1).then_some(())
        });
        let expiring = head(&mut c);
        assert!(expiring.is_some());
        c.pass(Duration::from_secs(1));
        let lasting = publish(&mut c, &mut client, None);
        c.until("the first message has expired", |c| {
            (c.ready(0, QUEUE) == 1).then_some(())
        });
        assert_ne!(head(&mut c), expiring, "{kind}");
        assert_received(head(&mut c), lasting);
    }
}

#[test]
fn next_leader_knows_the_head() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client, "quorum");
    publish(&mut c, &mut client, Some(7));
    publish(&mut c, &mut client, Some(8));
    let before = head(&mut c);
    assert!(before.is_some());
    let (other, _client) = c.kill_leader(QUEUE);
    c.until("the messages are there", |c| {
        (c.ready(other, QUEUE) == 2).then_some(())
    });
    assert_eq!(c.queue(other, QUEUE).and_then(|q| q.head), before);
}

#[test]
fn head_of_a_stream_is_its_oldest_chunk_of_messages() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client, "stream");
    c.pass(APART);
    assert_eq!(head(&mut c), None, "an empty stream");
    let first = publish(&mut c, &mut client, None);
    publish(&mut c, &mut client, None);
    assert_received(head(&mut c), first);
    client.limit_prefetch(&mut c, 10);
    let consuming = client.consume_stream(&mut c, QUEUE, Value::from("first"));
    assert_eq!(consuming, Ok(()));
    let got = client.delivery(&mut c);
    client.acknowledge(&mut c, got.tag);
    c.settle();
    assert_received(head(&mut c), first);
}

#[test]
fn long_list_with_heads_has_every_queue() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    let names: Vec<String> = (0..300).map(|n| format!("q{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        let kind = ["quorum", "classic"][n % 2];
        client.declare(&mut c, name, &[("x-queue-type", Value::from(kind))]);
        client.publish(&mut c, "", name, &Properties::default(), b"body");
    }
    c.until("all messages are ready", |c| {
        let all = c.ask(1, |reply| ControlRequest::Queues { only: None, reply });
        let has_head = all.iter().filter(|q| q.head.is_some()).count();
        (all.len() == names.len() && has_head == names.len()).then_some(())
    });
}

#[test]
fn without_the_flag_heads_are_absent_until_it_is_enabled() {
    let flag = HEAD_MESSAGE_AGES.name;
    let mut c = Cluster::without_feature(3, flag);
    let mut client = c.client(0);
    declare(&mut c, &mut client, "quorum");
    let first = publish(&mut c, &mut client, None);
    assert_eq!(head(&mut c), None);
    c.change(Change::EnableFeature { name: flag.into() });
    c.settle();
    assert_received(head(&mut c), first);
}
