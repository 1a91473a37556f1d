//! What is told of messages that died: each once, by the node that leads the queue, whatever becomes of them; and nothing of
//! those that did not die.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use control::{ControlRequest, Counters, DeadLetterReasons, DeadLetterTotals};
use message::Value;
use queue::QueueType;
use std::time::Duration;

type Arguments = Vec<(&'static str, Value)>;

fn text(s: &str) -> Value {
    Value::from(s)
}

fn counters(c: &mut Cluster) -> Counters {
    let each = c.ask(0, |reply| ControlRequest::Counters {
        everywhere: true,
        reply,
    });
    let mut sum = Counters::default();
    each.iter().for_each(|(_, counters)| sum.add(counters));
    sum
}

/// Until it is so; what is counted later than that is too much.
fn come_to(c: &mut Cluster, of: fn(Counters) -> DeadLetterTotals, expected: DeadLetterTotals) {
    for _ in 0..200 {
        if of(counters(c)) == expected {
            return;
        }
        c.pass(Duration::from_millis(20));
    }
    assert_eq!(of(counters(c)), expected);
}

fn publish(c: &mut Cluster, client: &mut Client, queue: &str) {
    client.publish(c, "", queue, &Properties::default(), b"m");
}

fn requeue(c: &mut Cluster, client: &mut Client, queue: &str) {
    let got = client.must_get(c, queue);
    let method = Method::BasicReject {
        delivery_tag: got.tag,
        requeue: true,
    };
    client.send(c, 1, method);
}

/// Two die of the length, one of its age, one of a rejection, and in quorum queues one of deliveries; one is acknowledged by
/// being taken away with its queue.
fn die(c: &mut Cluster, client: &mut Client, kind: &'static str, with: &[(&'static str, Value)]) {
    let named = |more: &[(&'static str, Value)]| -> Arguments {
        let kind = [("x-queue-type", text(kind))];
        [&kind, with, more].concat()
    };
    let at_least_once = with
        .iter()
        .any(|(_, v)| v.as_str() == Some("at-least-once"));
    if !at_least_once {
        client.declare(c, "short", &named(&[("x-max-length", Value::I32(1))]));
        (0..3).for_each(|_| publish(c, client, "short"));
    }
    client.declare(c, "soon", &named(&[("x-message-ttl", Value::I32(20))]));
    publish(c, client, "soon");
    client.declare(c, "refused", &named(&[]));
    publish(c, client, "refused");
    publish(c, client, "refused");
    let got = client.must_get(c, "refused");
    client.reject(c, got.tag);
    if kind == "quorum" {
        client.declare(c, "tried", &named(&[("x-delivery-limit", Value::I32(1))]));
        publish(c, client, "tried");
        requeue(c, client, "tried");
        requeue(c, client, "tried");
    }
    c.pass(Duration::from_millis(100));
}

fn reasons(maxlen: u64, delivery_limit: u64) -> DeadLetterReasons {
    DeadLetterReasons {
        maxlen,
        expired: 1,
        rejected: 1,
        delivery_limit,
    }
}

#[test]
fn of_a_classic_queue_with_and_without_a_way() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    die(&mut c, &mut client, "classic", &[]);
    let off = DeadLetterTotals {
        disabled: reasons(2, 0),
        ..DeadLetterTotals::default()
    };
    come_to(&mut c, |c| c.dead_letters[QueueType::Classic], off);
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    let way = [("x-dead-letter-exchange", text("amq.fanout"))];
    die(&mut c, &mut client, "classic", &way);
    let once = DeadLetterTotals {
        at_most_once: reasons(2, 0),
        ..DeadLetterTotals::default()
    };
    come_to(&mut c, |c| c.dead_letters[QueueType::Classic], once);
    // A refused publish is dead where somebody wants those.
    let dlx = [
        ("x-overflow", text("reject-publish-dlx")),
        ("x-max-length", Value::I32(0)),
    ];
    client.declare(&mut c, "full", &dlx);
    publish(&mut c, &mut client, "full");
    let mut refused = once;
    refused.disabled.maxlen = 1;
    come_to(&mut c, |c| c.dead_letters[QueueType::Classic], refused);
    assert_eq!(
        counters(&mut c).dead_letters[QueueType::Quorum],
        DeadLetterTotals::default()
    );
}

#[test]
fn of_a_quorum_queue_one_node_counts() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    die(&mut c, &mut client, "quorum", &[]);
    let off = DeadLetterTotals {
        disabled: reasons(2, 1),
        ..DeadLetterTotals::default()
    };
    come_to(&mut c, |c| c.dead_letters[QueueType::Quorum], off);
    for queue in ["short", "soon", "refused", "tried"] {
        let delete = Method::QueueDelete {
            queue,
            if_unused: false,
            if_empty: false,
            no_wait: false,
        };
        client.call(&mut c, 1, delete);
    }
    let way = [("x-dead-letter-exchange", text("amq.fanout"))];
    die(&mut c, &mut client, "quorum", &way);
    let both = DeadLetterTotals {
        at_most_once: reasons(2, 1),
        ..off
    };
    // What queues that are gone had counted stays.
    come_to(&mut c, |c| c.dead_letters[QueueType::Quorum], both);
    assert_eq!(
        counters(&mut c).dead_letters[QueueType::Classic],
        DeadLetterTotals::default()
    );
}

#[test]
fn at_least_once_tells_what_was_confirmed() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "dead", &[("x-queue-type", text("quorum"))]);
    let way = [
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text("dead")),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ];
    die(&mut c, &mut client, "quorum", &way);
    let surely = DeadLetterTotals {
        at_least_once: reasons(0, 1),
        confirmed: 3,
        ..DeadLetterTotals::default()
    };
    come_to(&mut c, |c| c.dead_letters[QueueType::Quorum], surely);
    assert_eq!(c.ready(0, "dead"), 3);
}
