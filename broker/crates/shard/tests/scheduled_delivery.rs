//! Messages that are delivered at the time that their publisher set.

use crate::cluster::{Client, Cluster, arguments};
use bytes::BytesMut;
use codec_amqp091::{Method, Properties, table};
use control::{ControlRequest, ListedMessage, MoveOutcome, MoveRequest, MoveTarget};
use message::Value;
use metadata::Change;
use metadata::QueueId;
use metadata::features::SCHEDULED_DELIVERY;
use queue::{BrowsedMessage, BrowsedState};
use std::sync::mpsc;
use std::time::Duration;

const EXCHANGE: &str = "later";
const QUEUE: &str = "work";
const DELAY: Duration = Duration::from_secs(20);

fn declare_exchange(c: &mut Cluster, client: &mut Client) -> Result<(), String> {
    let method = Method::ExchangeDeclare {
        exchange: EXCHANGE,
        kind: "x-delayed-message",
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: arguments(&[("x-delayed-type", Value::from("topic"))]),
    };
    client.ask(c, 1, method).map(|_| ())
}

fn declare(c: &mut Cluster, client: &mut Client) {
    declare_exchange(c, client).unwrap_or_else(|error| panic!("{error}"));
    client.declare(c, QUEUE, &[("x-queue-type", Value::from("quorum"))]);
    client.bind(c, QUEUE, EXCHANGE, "job.#", &[]);
}

fn publish(c: &mut Cluster, client: &mut Client, delay: Duration, body: &[u8]) {
    let ms = i32::try_from(delay.as_millis()).expect("a short delay");
    let mut headers = BytesMut::new();
    table::encode(&arguments(&[("x-delay", Value::I32(ms))]), &mut headers);
    let properties = Properties {
        headers: Some(&headers[4..]),
        delivery_mode: Some(2),
        ..Properties::default()
    };
    client.publish(c, EXCHANGE, "job.one", &properties, body);
}

fn waiting(c: &mut Cluster, at: usize) -> u64 {
    let details = c.queue(at, QUEUE).and_then(|q| q.delayed);
    details.map_or(0, |details| details.messages)
}

#[test]
fn messages_come_when_they_are_due() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    client.call(&mut c, 1, Method::ConfirmSelect { no_wait: false });
    let start = c.wall.0;
    publish(&mut c, &mut client, DELAY * 2, b"second");
    publish(&mut c, &mut client, DELAY, b"first");
    publish(&mut c, &mut client, Duration::ZERO, b"at once");
    // A message that waits is confirmed like any other.
    client.until_confirmed(&mut c, 3);
    assert_eq!(waiting(&mut c, 1), 2);
    for (delay, body) in [
        (Duration::ZERO, &b"at once"[..]),
        (DELAY, b"first"),
        (DELAY * 2, b"second"),
    ] {
        let due = start + delay.as_millis() as u64;
        c.until("the message is ready", |c| {
            (c.ready(0, QUEUE) == 1).then_some(())
        });
        assert!(c.wall.0 >= due);
        let got = client.must_get(&mut c, QUEUE);
        assert_eq!(got.body[..], *body);
        assert!(client.get(&mut c, QUEUE).is_none());
    }
}

#[test]
fn next_leader_delivers_on_time() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    let start = c.wall.0;
    publish(&mut c, &mut client, DELAY, b"m");
    c.until("the message waits", |c| (waiting(c, 2) == 1).then_some(()));
    let (other, mut client) = c.kill_leader(QUEUE);
    c.until("the message is ready", |c| {
        (c.ready(other, QUEUE) == 1).then_some(())
    });
    assert!(c.wall.0 >= start + DELAY.as_millis() as u64);
    assert_eq!(client.must_get(&mut c, QUEUE).body[..], b"m"[..]);
}

#[test]
fn queue_that_cannot_hold_messages_back_closes_the_channel() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    client.declare(&mut c, "classic", &[]);
    client.declare_exchange(&mut c, "all", "fanout");
    client.bind(&mut c, "classic", "all", "", &[]);
    let bind = Method::ExchangeBind {
        destination: "all",
        source: EXCHANGE,
        routing_key: "#",
        no_wait: false,
        arguments: arguments(&[]),
    };
    client.call(&mut c, 1, bind);
    publish(&mut c, &mut client, Duration::ZERO, b"m");
    c.until("the message is ready", |c| {
        (c.ready(0, "classic") == 1).then_some(())
    });
    publish(&mut c, &mut client, DELAY, b"m");
    let closed = client.next_method(&mut c);
    assert!(closed.contains("reply_code: 540"), "{closed}");
    assert!(closed.contains("queue 'classic' in vhost '/'"), "{closed}");
    assert_eq!((c.ready(0, "classic"), waiting(&mut c, 0)), (1, 0));
}

#[test]
fn exchange_needs_the_feature_flag() {
    let flag = SCHEDULED_DELIVERY.name;
    let mut c = Cluster::without_feature(3, flag);
    let mut client = c.client(0);
    client.declare(&mut c, QUEUE, &[("x-queue-type", Value::from("quorum"))]);
    let refused = declare_exchange(&mut c, &mut client).expect_err("no flag");
    assert!(refused.contains(flag), "{refused}");
    c.change(Change::EnableFeature { name: flag.into() });
    c.settle();
    // A queue of an older version holds messages back from now on.
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    publish(&mut c, &mut client, DELAY, b"m");
    c.until("the message waits", |c| (waiting(c, 0) == 1).then_some(()));
}

fn move_request(queue: QueueId, listed: &[BrowsedMessage], to: Option<&str>) -> MoveRequest {
    MoveRequest {
        queue,
        user: "guest".into(),
        messages: listed.iter().map(ListedMessage::from).collect(),
        target: match to {
            None => MoveTarget::Nothing,
            Some(to) => MoveTarget::Exchange {
                exchange: "".into(),
                routing_key: Some(to.into()),
            },
        },
    }
}

fn carry_out(c: &mut Cluster, request: MoveRequest) -> MoveOutcome {
    let outcome = c.ask(0, |reply| ControlRequest::Move { request, reply });
    outcome.expect("an outcome")
}

/// Numbers and due times of delayed messages.
fn due_times(listed: &[BrowsedMessage]) -> Vec<(u64, Option<u64>)> {
    listed.iter().map(|b| (b.at.number, b.due_at)).collect()
}

/// The node that is killed while it cancels messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Killed {
    /// The leader of the queue.
    Leader,
    /// The node that carries out the request.
    Asking,
}

/// Cancels delayed messages, and kills a node some rounds later. Returns true if the request was still running.
fn cancel_while_a_node_goes(killed: Killed, rounds: usize) -> bool {
    const COUNT: u64 = 80;
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    for n in 0..COUNT {
        publish(&mut c, &mut client, Duration::from_secs(3600), &[n as u8]);
    }
    c.until("the delayed messages", |c| {
        (waiting(c, 1) == COUNT).then_some(())
    });
    let queue = c.until("the queue", |c| c.queue_id(0, QUEUE));
    let leader = c.queue(0, QUEUE).and_then(|facts| facts.leader);
    let leader = leader.expect("a leader").0 as usize - 1;
    let (at, other) = ((leader + 1) % 3, (leader + 2) % 3);
    let listed = c.messages(at, queue);
    let before = due_times(&listed);
    let (tx, outcomes) = mpsc::channel();
    let reply = Box::new(move |outcome| drop(tx.send(outcome)));
    let request = move_request(queue, &listed, None);
    c.begin(at, ControlRequest::Move { request, reply });
    for _ in 0..rounds {
        c.round();
    }
    let early = outcomes.try_recv().ok();
    let is_running = early.is_none();
    let outcome = match killed {
        Killed::Leader => {
            c.kill(leader);
            let outcome = early.unwrap_or_else(|| {
                c.until("an outcome", |c| {
                    c.pass(Duration::from_millis(100));
                    outcomes.try_recv().ok()
                })
            });
            Some(outcome)
        }
        Killed::Asking => {
            c.kill(at);
            early
        }
    };
    let deleted = outcome.map_or(0, |outcome| outcome.expect("an outcome").moved);
    c.until("no message on its way", |c| {
        c.pass(Duration::from_millis(100));
        let stats = c.queue(other, QUEUE)?.stats?;
        (stats.unacknowledged == 0).then_some(())
    });
    let listed = c.messages(other, queue);
    let is_delayed = |b: &BrowsedMessage| b.state == BrowsedState::Delayed && !b.redelivered;
    assert!(listed.iter().all(is_delayed), "{listed:?}");
    let left = due_times(&listed);
    assert!(left.iter().all(|message| before.contains(message)));
    assert!(left.len() as u64 + deleted <= COUNT, "{deleted} deleted");
    is_running
}

/// How many of some requests were interrupted.
fn interrupted(killed: Killed) -> usize {
    let runs = 1..24;
    runs.filter(|rounds| cancel_while_a_node_goes(killed, *rounds))
        .count()
}

#[test]
fn delayed_messages_are_cancelled_while_the_leader_changes() {
    let interrupted = interrupted(Killed::Leader);
    assert!(interrupted >= 3, "{interrupted} requests were running");
}

/// The last requests of the node are applied after the others know that it is dead.
#[test]
fn messages_that_a_dead_node_was_cancelling_are_returned() {
    let interrupted = interrupted(Killed::Asking);
    assert!(interrupted >= 3, "{interrupted} requests were running");
}

#[test]
fn moved_message_keeps_the_rest_of_its_delay() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    declare(&mut c, &mut client);
    client.declare(&mut c, "quorum", &[("x-queue-type", Value::from("quorum"))]);
    client.declare(
        &mut c,
        "classic",
        &[("x-queue-type", Value::from("classic"))],
    );
    for body in [b"1", b"2"] {
        publish(&mut c, &mut client, DELAY, body);
    }
    c.until("the delayed messages", |c| {
        (waiting(c, 0) == 2).then_some(())
    });
    c.pass(DELAY / 2);
    let [from, quorum, classic] =
        [QUEUE, "quorum", "classic"].map(|name| c.queue_id(0, name).expect("the queue"));
    let listed = c.messages(0, from);
    let outcome = carry_out(&mut c, move_request(from, &listed[..1], Some("classic")));
    let error = outcome.error.expect("a reason");
    assert!(error.contains("cannot hold messages back"), "{error}");
    c.until("the message is back", |c| {
        (waiting(c, 0) == 2).then_some(())
    });
    assert_eq!(due_times(&c.messages(0, from)), due_times(&listed));
    let outcome = carry_out(&mut c, move_request(from, &listed[..1], Some("quorum")));
    assert_eq!(outcome.moved, 1, "{outcome:?}");
    let moved = c.messages(0, quorum);
    assert_eq!(moved[0].state, BrowsedState::Delayed);
    let (due, before) = (moved[0].due_at.expect("a time"), listed[0].due_at);
    let before = before.expect("a time");
    assert!((before..before + 5_000).contains(&due), "{due} {before}");
    // A message that was delayed is not delayed again.
    c.pass(DELAY);
    let ready = c.messages(0, from);
    assert_eq!(ready[0].state, BrowsedState::Ready);
    let outcome = carry_out(&mut c, move_request(from, &ready, Some("quorum")));
    assert_eq!(outcome.moved, 1, "{outcome:?}");
    let moved = c.messages(0, quorum);
    assert!(moved.iter().all(|b| b.state == BrowsedState::Ready));
    let outcome = carry_out(&mut c, move_request(quorum, &moved, Some("classic")));
    assert_eq!(outcome.moved, 2, "{outcome:?}");
    assert_eq!(c.messages(0, classic).len(), 2);
}
