//! Messages that are imported, listed, deleted, moved and sent back to the queues where they died.

use crate::cluster::{Client, Cluster};
use codec_amqp091::{Method, Properties};
use control::{
    ControlRequest, ImportOutcome, ImportRequest, ListedMessage, MoveOutcome, MoveRequest,
    MoveTarget,
};
use message::Value;
use metadata::features::MESSAGE_MOVES;
use metadata::{ChangeError, QueueId};
use queue::{BrowsedMessage, BrowsedState};
use std::sync::mpsc;
use std::time::Duration;

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

fn id(c: &mut Cluster, at: usize, queue: &str) -> QueueId {
    c.until("the queue", |c| c.queue_id(at, queue))
}

fn bodies(listed: &[BrowsedMessage]) -> Vec<String> {
    let text = |b: &BrowsedMessage| String::from_utf8_lossy(b.message.body()).into_owned();
    listed.iter().map(text).collect()
}

fn texts(numbers: impl IntoIterator<Item = u32>) -> Vec<String> {
    numbers.into_iter().map(|n| n.to_string()).collect()
}

fn request(queue: QueueId, listed: &[BrowsedMessage], target: MoveTarget) -> MoveRequest {
    MoveRequest {
        queue,
        user: "guest".into(),
        messages: listed.iter().map(ListedMessage::from).collect(),
        target,
    }
}

fn to_queue(name: &str) -> MoveTarget {
    MoveTarget::Exchange {
        exchange: "".into(),
        routing_key: Some(name.into()),
    }
}

fn carry_out(c: &mut Cluster, at: usize, request: MoveRequest) -> MoveOutcome {
    let outcome = c.ask(at, |reply| ControlRequest::Move { request, reply });
    outcome.expect("an outcome")
}

fn moved(count: u64) -> MoveOutcome {
    MoveOutcome {
        moved: count,
        ..MoveOutcome::default()
    }
}

#[test]
fn listing_tells_states_and_changes_nothing() {
    for kind_of in ["classic", "quorum"] {
        let mut c = Cluster::new(3);
        let mut client = c.client(0);
        client.declare(&mut c, "q", &kind(kind_of));
        fill(&mut c, &mut client, "q", 0..20);
        ready(&mut c, 1, "q", 20);
        client.limit_prefetch(&mut c, 3);
        client.consume(&mut c, "q");
        for n in 0..3 {
            assert_eq!(client.delivery(&mut c).body, n.to_string().as_bytes());
        }
        let queue = id(&mut c, 2, "q");
        for at in 0..3 {
            let listed = c.messages(at, queue);
            assert_eq!(bodies(&listed), texts(0..20), "{kind_of}");
            let state = |n: usize| match n {
                0..3 => BrowsedState::Unacknowledged,
                _ => BrowsedState::Ready,
            };
            for (n, browsed) in listed.iter().enumerate() {
                assert_eq!(browsed.state, state(n), "{kind_of} {n}");
                assert!(!browsed.redelivered);
            }
        }
        client.close(&mut c);
        ready(&mut c, 1, "q", 20);
        // The deliveries are marked, and not those that were only listed.
        let listed = c.messages(1, queue);
        assert_eq!(bodies(&listed), texts(0..20), "{kind_of}");
        let marked: Vec<bool> = listed.iter().map(|b| b.redelivered).collect();
        let expected: Vec<bool> = (0..20).map(|n| n < 3).collect();
        assert_eq!(marked, expected, "{kind_of}");
    }
}

fn import(c: &mut Cluster, at: usize, queue: QueueId, from: &[BrowsedMessage]) -> ImportOutcome {
    let request = ImportRequest {
        queue,
        user: "guest".into(),
        messages: from.iter().map(|b| b.message.clone()).collect(),
    };
    let outcome = c.ask(at, |reply| ControlRequest::Import { request, reply });
    outcome.expect("an outcome")
}

#[test]
fn imported_messages_are_stored_in_exactly_one_queue_in_their_order() {
    for kind_of in ["classic", "quorum"] {
        let mut c = Cluster::new(3);
        let mut client = c.client(0);
        client.declare(&mut c, "from", &kind("quorum"));
        client.declare(&mut c, "to", &kind(kind_of));
        // More than one window.
        fill(&mut c, &mut client, "from", 0..1_200);
        ready(&mut c, 1, "from", 1_200);
        let (from, to) = (id(&mut c, 2, "from"), id(&mut c, 2, "to"));
        let listed = c.messages(2, from);
        let outcome = import(&mut c, 2, to, &listed);
        let expected = ImportOutcome {
            stored: 1_200,
            ..ImportOutcome::default()
        };
        assert_eq!(outcome, expected, "{kind_of}");
        let imported = c.messages(0, to);
        let messages = |listed: &[BrowsedMessage]| -> Vec<_> {
            listed.iter().map(|b| b.message.clone()).collect()
        };
        // Their routing key is still the name of the other queue.
        assert_eq!(messages(&imported), messages(&listed), "{kind_of}");
        ready(&mut c, 1, "from", 1_200);
    }
}

#[test]
fn import_ends_with_the_first_message_that_the_queue_refuses() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "from", &kind("quorum"));
    let arguments = [
        ("x-queue-type", Value::from("quorum")),
        ("x-max-length", Value::I64(10)),
        ("x-overflow", Value::from("reject-publish")),
    ];
    client.declare(&mut c, "to", &arguments);
    fill(&mut c, &mut client, "from", 0..1_200);
    ready(&mut c, 1, "from", 1_200);
    let (from, to) = (id(&mut c, 1, "from"), id(&mut c, 1, "to"));
    let listed = c.messages(1, from);
    let outcome = import(&mut c, 1, to, &listed);
    assert!(outcome.refused > 0, "{outcome:?}");
    assert!(outcome.untried > 0, "{outcome:?}");
    assert!(outcome.error.is_some(), "{outcome:?}");
    let total = outcome.stored + outcome.refused + outcome.pending + outcome.untried;
    assert_eq!(total, 1_200, "{outcome:?}");
    ready(&mut c, 0, "to", outcome.stored);
}

#[test]
fn import_that_is_not_confirmed_is_answered() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "from", &kind("quorum"));
    client.declare(&mut c, "to", &kind("quorum"));
    fill(&mut c, &mut client, "from", 0..5);
    ready(&mut c, 2, "from", 5);
    let (from, to) = (id(&mut c, 2, "from"), id(&mut c, 2, "to"));
    let listed = c.messages(2, from);
    c.kill(0);
    c.kill(1);
    let outcome = import(&mut c, 2, to, &listed);
    let expected = ImportOutcome {
        pending: 5,
        error: Some("the queue did not confirm all messages in time".into()),
        ..ImportOutcome::default()
    };
    assert_eq!(outcome, expected);
}

#[test]
fn chosen_messages_are_deleted_and_an_unacknowledged_one_is_not() {
    for kind_of in ["classic", "quorum"] {
        let mut c = Cluster::new(3);
        let mut client = c.client(0);
        client.declare(&mut c, "q", &kind(kind_of));
        fill(&mut c, &mut client, "q", 0..10);
        ready(&mut c, 1, "q", 10);
        let got = client.must_get(&mut c, "q");
        assert_eq!(&*got.body, b"0");
        let queue = id(&mut c, 2, "q");
        let listed = c.messages(2, queue);
        let chosen: Vec<_> = [7, 0, 3].map(|n: usize| listed[n].clone()).into();
        let outcome = carry_out(&mut c, 2, request(queue, &chosen, MoveTarget::Nothing));
        let expected = MoveOutcome {
            missing: 1,
            ..moved(2)
        };
        assert_eq!(outcome, expected, "{kind_of}");
        let left = texts([0, 1, 2, 4, 5, 6, 8, 9]);
        c.until("the rest", |c| {
            (bodies(&c.messages(0, queue)) == left).then_some(())
        });
    }
}

#[test]
fn messages_are_moved_in_order_between_queue_types() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "from", &kind("quorum"));
    client.declare(&mut c, "to", &kind("classic"));
    fill(&mut c, &mut client, "from", 0..150);
    ready(&mut c, 1, "from", 150);
    let (from, to) = (id(&mut c, 2, "from"), id(&mut c, 2, "to"));
    let listed = c.messages(2, from);
    let outcome = carry_out(&mut c, 2, request(from, &listed, to_queue("to")));
    assert_eq!(outcome, moved(150));
    ready(&mut c, 1, "to", 150);
    ready(&mut c, 1, "from", 0);
    let listed = c.messages(0, to);
    assert_eq!(bodies(&listed), texts(0..150));
    // And back, with the routing keys that the messages have.
    let target = MoveTarget::Exchange {
        exchange: "".into(),
        routing_key: Some("from".into()),
    };
    assert_eq!(
        carry_out(&mut c, 1, request(to, &listed, target)),
        moved(150)
    );
    ready(&mut c, 1, "to", 0);
    assert_eq!(bodies(&c.messages(0, from)), texts(0..150));
}

#[test]
fn message_that_its_target_does_not_take_stays() {
    let mut c = Cluster::new(1);
    let mut client = c.client(0);
    client.declare(&mut c, "from", &kind("quorum"));
    let full = [
        ("x-max-length", Value::I32(2)),
        ("x-overflow", Value::from("reject-publish")),
    ];
    client.declare(&mut c, "full", &full);
    fill(&mut c, &mut client, "from", 0..5);
    ready(&mut c, 0, "from", 5);
    let from = id(&mut c, 0, "from");
    let listed = c.messages(0, from);
    let outcome = carry_out(&mut c, 0, request(from, &listed, to_queue("nowhere")));
    assert_eq!((outcome.moved, outcome.unroutable), (0, 5));
    let outcome = carry_out(&mut c, 0, request(from, &listed, to_queue("from")));
    assert_eq!(outcome.moved, 0);
    let error = outcome.error.expect("a reason");
    assert!(error.contains("leads back to queue 'from'"), "{error}");
    let outcome = carry_out(&mut c, 0, request(from, &listed, to_queue("full")));
    assert_eq!((outcome.moved, outcome.refused), (2, 3), "{outcome:?}");
    ready(&mut c, 0, "from", 3);
    let unknown = MoveTarget::Exchange {
        exchange: "unknown".into(),
        routing_key: None,
    };
    let outcome = carry_out(&mut c, 0, request(from, &listed, unknown));
    let error = outcome.error.expect("a reason");
    assert!(
        error.contains("no exchange 'unknown' in vhost '/'"),
        "{error}"
    );
    ready(&mut c, 0, "from", 3);
}

/// Begins a move of 200 messages, and kills the leader of a queue some rounds later. Returns true if the move was still
/// running.
fn move_while_the_leader_of_goes(victim: &str, rounds: usize) -> bool {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare(&mut c, "from", &kind("quorum"));
    client.declare(&mut c, "to", &kind("quorum"));
    fill(&mut c, &mut client, "from", 0..200);
    ready(&mut c, 1, "from", 200);
    let from = id(&mut c, 0, "from");
    let leader = c.queue(0, victim).and_then(|facts| facts.leader);
    let leader = leader.expect("a leader").0 as usize - 1;
    let at = (leader + 1) % 3;
    let listed = c.messages(at, from);
    let (tx, outcomes) = mpsc::channel();
    let reply = Box::new(move |outcome| tx.send(outcome).expect("a receiver"));
    let request = request(from, &listed, to_queue("to"));
    let to = id(&mut c, at, "to");
    c.begin(at, ControlRequest::Move { request, reply });
    for _ in 0..rounds {
        c.round();
    }
    let early = outcomes.try_recv().ok();
    let is_running = early.is_none();
    c.kill(leader);
    let outcome = early.unwrap_or_else(|| {
        c.until("an outcome", |c| {
            c.pass(Duration::from_millis(100));
            outcomes.try_recv().ok()
        })
    });
    let outcome = outcome.expect("an outcome");
    assert_eq!(
        outcome.missing + outcome.refused + outcome.unroutable,
        0,
        "{outcome:?}"
    );
    // Messages on their way arrive, and each one is in one of the queues, once.
    c.until("all messages in one queue each", |c| {
        c.pass(Duration::from_millis(100));
        let facts = [c.queue(at, "from")?.stats?, c.queue(at, "to")?.stats?];
        let unacknowledged: u64 = facts.iter().map(|stats| stats.unacknowledged).sum();
        let ready: u64 = facts.iter().map(|stats| stats.ready).sum();
        (unacknowledged == 0 && ready == 200).then_some(())
    });
    let (mut all, moved) = (c.messages(at, from), c.messages(at, to));
    assert!(moved.len() as u64 >= outcome.moved, "{outcome:?}");
    all.extend(moved);
    let mut all = bodies(&all);
    all.sort_by_key(|body| body.parse::<u32>().expect("a number"));
    assert_eq!(all, texts(0..200));
    is_running
}

fn move_while_the_leader_of_goes_at_any_time(victim: &str) {
    let runs = 1..30;
    let interrupted = runs.filter(|rounds| move_while_the_leader_of_goes(victim, *rounds));
    let interrupted = interrupted.count();
    assert!(interrupted >= 5, "{interrupted} moves were running");
}

#[test]
fn move_survives_the_loss_of_the_leader_of_the_source() {
    move_while_the_leader_of_goes_at_any_time("from");
}

#[test]
fn move_survives_the_loss_of_the_leader_of_the_target() {
    move_while_the_leader_of_goes_at_any_time("to");
}

#[test]
fn dead_letters_go_back_to_the_queue_where_they_died_first() {
    let mut c = Cluster::new(3);
    let mut client = c.client(0);
    client.declare_exchange(&mut c, "events", "topic");
    client.declare_exchange(&mut c, "dlx", "fanout");
    client.declare(&mut c, "dead", &kind("quorum"));
    client.bind(&mut c, "dead", "dlx", "", &[]);
    for name in ["work", "copy", "gone"] {
        let list = [
            ("x-queue-type", Value::from("quorum")),
            ("x-dead-letter-exchange", Value::from("dlx")),
        ];
        client.declare(&mut c, name, &list);
        client.bind(&mut c, name, "events", &format!("{name}.#"), &[]);
    }
    client.bind(&mut c, "copy", "events", "work.#", &[]);
    for key in ["work.1", "work.2", "gone.1"] {
        client.publish(&mut c, "events", key, &durable(), key.as_bytes());
    }
    ready(&mut c, 1, "work", 2);
    for name in ["work", "work", "gone"] {
        let got = client.must_get(&mut c, name);
        client.reject(&mut c, got.tag);
    }
    ready(&mut c, 1, "dead", 3);
    client.publish(&mut c, "", "dead", &durable(), b"no history");
    ready(&mut c, 1, "dead", 4);
    let delete = Method::QueueDelete {
        queue: "gone",
        if_unused: false,
        if_empty: false,
        no_wait: false,
    };
    client.call(&mut c, 1, delete);
    let dead = id(&mut c, 1, "dead");
    let listed = c.messages(1, dead);
    assert_eq!(listed.len(), 4);
    let outcome = carry_out(&mut c, 1, request(dead, &listed, MoveTarget::FirstDeath));
    let expected = MoveOutcome {
        without_history: 1,
        without_queue: 1,
        ..moved(2)
    };
    assert_eq!(outcome, expected);
    ready(&mut c, 1, "work", 2);
    // The exchange and the key are those of the publisher, and no other queue gets a copy.
    let got = client.must_get(&mut c, "work");
    assert_eq!((&*got.exchange, &*got.routing_key), ("events", "work.1"));
    assert!(got.headers().get("x-death").is_some());
    assert_eq!(c.ready(1, "copy"), 2);
    assert_eq!(bodies(&c.messages(1, dead)).len(), 2);
}

#[test]
fn move_needs_the_feature_flag() {
    let mut c = Cluster::without_feature(1, MESSAGE_MOVES.name);
    let mut client = c.client(0);
    client.declare(&mut c, "q", &[]);
    fill(&mut c, &mut client, "q", 0..1);
    ready(&mut c, 0, "q", 1);
    let queue = id(&mut c, 0, "q");
    let listed = c.messages(0, queue);
    let request = request(queue, &listed, MoveTarget::Nothing);
    let outcome = c.ask(0, |reply| ControlRequest::Move { request, reply });
    let Err(ChangeError::PreconditionFailed(text)) = outcome else {
        panic!("{outcome:?}");
    };
    assert!(text.contains("feature flag 'message_moves'"), "{text}");
    assert_eq!(c.ready(0, "q"), 1);
}
