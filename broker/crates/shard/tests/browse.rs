//! Receivers of AMQP 1.0 that browse queues on other shards and nodes.

use crate::cluster::browser::{Browsed, Browser};
use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use message::Value;
use metadata::features::EXACT_EXPIRY;
use queue::QueueStats;
use std::time::Duration;

const KINDS: [&str; 2] = ["classic", "quorum"];

fn kind(kind: &str) -> [(&'static str, Value); 1] {
    [("x-queue-type", Value::from(kind))]
}

fn durable() -> Properties<'static> {
    Properties {
        delivery_mode: Some(2),
        ..Properties::default()
    }
}

fn fill(c: &mut Cluster, client: &mut Client, queue: &str, numbers: std::ops::Range<u32>) {
    for n in numbers {
        client.publish(c, "", queue, &durable(), n.to_string().as_bytes());
    }
}

fn ready(c: &mut Cluster, at: usize, queue: &str, count: u64) {
    c.until("the messages", |c| {
        (c.ready(at, queue) == count).then_some(())
    });
}

fn stats(c: &mut Cluster, at: usize, queue: &str) -> QueueStats {
    c.until("statistics", |c| c.queue(at, queue)?.stats)
}

fn texts(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(|n| n.to_string()).collect()
}

/// A classic or quorum queue `q` with ready messages from 3 to 299, of which a consumer has the three before them.
fn queue_with_consumer(c: &mut Cluster, of: &str) -> Client {
    let mut client = c.client(0);
    client.declare(c, "q", &kind(of));
    fill(c, &mut client, "q", 0..300);
    ready(c, 0, "q", 300);
    client.limit_prefetch(c, 3);
    client.consume(c, "q");
    for n in 0..3 {
        assert_eq!(client.delivery(c).body, n.to_string().as_bytes());
    }
    client
}

#[test]
fn ready_messages_are_copied_on_every_node_and_the_queue_is_not_changed() {
    for of in KINDS {
        let mut c = Cluster::new(3);
        let client = queue_with_consumer(&mut c, of);
        let before = stats(&mut c, 0, "q");
        for at in 0..3 {
            let mut browser = Browser::new(&mut c, at, "q");
            assert_eq!(browser.drain(&mut c), texts(3..300), "{of} {at}");
            assert_eq!(browser.drain(&mut c), texts([]), "{of} {at}");
        }
        assert_eq!(stats(&mut c, 0, "q"), before, "{of}");
        let queue = c.queue_id(0, "q").expect("the queue");
        for browsed in c.messages(0, queue) {
            assert!(!browsed.redelivered && browsed.acquired == 0, "{of}");
        }
        client.close(&mut c);
        let mut client = c.client(1);
        for n in 0..300u32 {
            let got = client.must_get(&mut c, "q");
            assert_eq!(got.body, n.to_string().as_bytes(), "{of}");
        }
    }
}

#[test]
fn ready_messages_are_copied_on_every_shard() {
    for of in KINDS {
        let mut c = Cluster::of_shards(2);
        queue_with_consumer(&mut c, of);
        for at in 0..2 {
            let mut browser = Browser::new(&mut c, at, "q");
            assert_eq!(browser.drain(&mut c), texts(3..300), "{of} {at}");
        }
    }
}

#[test]
fn messages_are_shown_by_priority_and_later_ones_follow() {
    for of in KINDS {
        let mut c = Cluster::new(3);
        let mut client = c.client(0);
        let mut arguments = kind(of).to_vec();
        if of == "classic" {
            arguments.push(("x-max-priority", Value::I64(9)));
        }
        client.declare(&mut c, "q", &arguments);
        let publish = |c: &mut Cluster, client: &mut Client, priority, body: &str| {
            let properties = Properties {
                priority: Some(priority),
                ..durable()
            };
            client.publish(c, "", "q", &properties, body.as_bytes());
        };
        for n in 0..150 {
            publish(&mut c, &mut client, [1, 6, 9][n % 3], &n.to_string());
        }
        ready(&mut c, 1, "q", 150);
        let mut browser = Browser::new(&mut c, 1, "q");
        browser.credit(&mut c, 1_000, false);
        let mut expected = texts((0..150).filter(|n| n % 3 == 2));
        expected.extend(texts((0..150).filter(|n| n % 3 == 1)));
        expected.extend(texts((0..150).filter(|n| n % 3 == 0)));
        assert_eq!(browser.bodies(&mut c, 150), expected, "{of}");
        publish(&mut c, &mut client, 1, "low");
        publish(&mut c, &mut client, 9, "high");
        let mut later = browser.bodies(&mut c, 2);
        later.sort();
        assert_eq!(later, ["high", "low"], "{of}");
        assert_eq!(browser.drain(&mut c), texts([]), "{of}");
    }
}

#[test]
fn expired_messages_are_not_shown() {
    for of in KINDS {
        // With exact expiry, a quorum queue has no expired messages.
        let mut c = Cluster::without_feature(3, EXACT_EXPIRY.name);
        let mut client = c.client(0);
        client.declare(&mut c, "q", &kind(of));
        fill(&mut c, &mut client, "q", 0..1);
        let expiring = Properties {
            expiration: Some("1000"),
            ..durable()
        };
        for n in 1..150u32 {
            client.publish(&mut c, "", "q", &expiring, n.to_string().as_bytes());
        }
        fill(&mut c, &mut client, "q", 150..160);
        ready(&mut c, 0, "q", 160);
        for at in 0..3 {
            let mut browser = Browser::new(&mut c, at, "q");
            assert_eq!(browser.drain(&mut c), texts(0..160), "{of} {at}");
        }
        c.pass(Duration::from_secs(2));
        // They are removed when they reach the head of the queue.
        assert_eq!(c.ready(0, "q"), 160);
        let expected = texts((0..1).chain(150..160));
        for at in 0..3 {
            let mut browser = Browser::new(&mut c, at, "q");
            assert_eq!(browser.drain(&mut c), expected, "{of} {at}");
        }
    }
}

#[test]
fn browser_continues_with_the_next_leader() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &kind("quorum"));
    fill(&mut c, &mut client, "q", 0..300);
    ready(&mut c, 0, "q", 300);
    let leader = c.queue(0, "q").and_then(|q| q.leader).expect("a leader");
    let leader = leader.0 as usize - 1;
    let mut browser = Browser::new(&mut c, (leader + 1) % 3, "q");
    browser.credit(&mut c, 130, false);
    assert_eq!(browser.bodies(&mut c, 130), texts(0..130));
    c.kill(leader);
    assert_eq!(browser.drain(&mut c), texts(130..300));
    let other = (leader + 2) % 3;
    let mut client = c.until("a client", |c| c.try_client(other).ok());
    fill(&mut c, &mut client, "q", 300..310);
    ready(&mut c, other, "q", 310);
    assert_eq!(browser.drain(&mut c), texts(300..310));
}

#[test]
fn browser_of_a_queue_without_a_majority_is_detached() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &kind("quorum"));
    fill(&mut c, &mut client, "q", 0..5);
    ready(&mut c, 0, "q", 5);
    let mut browser = Browser::new(&mut c, 0, "q");
    c.kill(1);
    c.kill(2);
    c.pass(Duration::from_secs(5));
    browser.credit(&mut c, 10, true);
    let detached = Browsed::Detached("amqp:internal-error".into());
    assert_eq!(browser.next(&mut c), detached);
}

#[test]
fn end_of_its_node_detaches_the_browser_of_a_classic_queue() {
    let mut c = Cluster::new(3);
    let mut client = c.client(2);
    client.declare(&mut c, "q", &kind("classic"));
    fill(&mut c, &mut client, "q", 0..5);
    ready(&mut c, 0, "q", 5);
    let home = c.queue(0, "q").and_then(|q| q.leader).expect("a home");
    let home = home.0 as usize - 1;
    let mut browser = Browser::new(&mut c, (home + 1) % 3, "q");
    browser.credit(&mut c, 2, false);
    assert_eq!(browser.bodies(&mut c, 2), texts(0..2));
    c.kill(home);
    browser.credit(&mut c, 2, false);
    let detached = Browsed::Detached("amqp:not-found".into());
    assert_eq!(browser.next(&mut c), detached);
}

#[test]
fn deletion_detaches_browsers_with_and_without_credit() {
    for of in KINDS {
        let mut c = Cluster::new(3);
        let mut client = c.client(0);
        client.declare(&mut c, "q", &kind(of));
        let mut browsers: Vec<Browser> = (0..3).map(|at| Browser::new(&mut c, at, "q")).collect();
        browsers[0].credit(&mut c, 5, false);
        let delete = Method::QueueDelete {
            queue: "q",
            // Quorum queues do not support it.
            if_unused: of == "classic",
            if_empty: false,
            no_wait: false,
        };
        client.call(&mut c, 1, delete);
        for browser in &mut browsers {
            let detached = Browsed::Detached("amqp:resource-deleted".into());
            assert_eq!(browser.next(&mut c), detached, "{of}");
        }
    }
}

#[test]
fn browser_does_not_keep_a_queue_from_expiring() {
    for of in KINDS {
        let mut c = Cluster::new(3);
        let mut client = c.client(0);
        let mut arguments = kind(of).to_vec();
        arguments.push(("x-expires", Value::I64(3_000)));
        client.declare(&mut c, "q", &arguments);
        let mut browser = Browser::new(&mut c, 1, "q");
        browser.credit(&mut c, 5, false);
        let detached = Browsed::Detached("amqp:resource-deleted".into());
        assert_eq!(browser.next(&mut c), detached, "{of}");
    }
}

#[test]
fn browser_does_not_count_as_the_single_active_consumer() {
    for of in KINDS {
        let mut c = Cluster::new(3);
        let mut client = c.client(0);
        let mut arguments = kind(of).to_vec();
        arguments.push(("x-single-active-consumer", Value::Bool(true)));
        client.declare(&mut c, "q", &arguments);
        fill(&mut c, &mut client, "q", 0..5);
        ready(&mut c, 0, "q", 5);
        let mut browser = Browser::new(&mut c, 1, "q");
        browser.credit(&mut c, 2, false);
        assert_eq!(browser.bodies(&mut c, 2), texts(0..2));
        client.consume(&mut c, "q");
        for n in 0..5 {
            assert_eq!(client.delivery(&mut c).body, n.to_string().as_bytes());
        }
        assert_eq!(stats(&mut c, 0, "q").consumers, 1);
        assert_eq!(browser.drain(&mut c), texts([]), "{of}");
    }
}

#[test]
fn large_messages_are_copied_whole() {
    // A page for another node has at most 4 MiB of a body.
    const SIZE: usize = 5 << 20;
    for of in KINDS {
        let mut c = Cluster::new(3);
        let mut client = c.client(0);
        client.declare(&mut c, "q", &kind(of));
        let body = |n: u8| -> String {
            let digit = char::from(b'0' + n);
            (0..SIZE)
                .map(|at| if at % 1_000 == 0 { 'x' } else { digit })
                .collect()
        };
        for n in 0..2 {
            client.publish(&mut c, "", "q", &durable(), body(n).as_bytes());
        }
        ready(&mut c, 0, "q", 2);
        let owner = c.queue(0, "q").and_then(|q| q.leader).expect("an owner");
        let owner = owner.0 as usize - 1;
        for at in [owner, (owner + 1) % 3] {
            let mut browser = Browser::new(&mut c, at, "q");
            let shown = browser.drain(&mut c);
            assert_eq!(shown.len(), 2, "{of} {at}");
            assert!((0..2).zip(&shown).all(|(n, copy)| *copy == body(n)));
        }
    }
}
