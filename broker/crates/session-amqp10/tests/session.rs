//! Scenarios of publishing, consuming and errors.

use crate::fake::{Client, Seen, message};
use amqp10::LinkId;
use codec_amqp10::{
    DeliveryState, Map, Modified, Outcome, Reader, Sections, SenderSettleMode, Symbol, map,
};
use metadata::QueueType;
use metadata::features::STREAM_QUEUES;
use queue::client::CancelReason;
use queue::{Modification, QueueReply, RejectReason, RequestBody, SettlementOutcome};
use session::{
    ControlEvent, PasswordCheck, QueueNotification, RequestSeq, SessionEvent, SessionState,
};
use session_amqp10::{Amqp10Config, Limits};

const ACCEPTED: DeliveryState<'static> = DeliveryState::ACCEPTED;

fn accepted(id: u32) -> Seen {
    Seen::Outcome(id, "accepted".into())
}

/// The requests to queues of a kind, without their queues.
fn settlements(client: &Client) -> Vec<(SettlementOutcome, Vec<(u64, u64)>)> {
    let requests = client.broker.requests.iter();
    let all = requests.filter_map(|(_, body)| match body {
        RequestBody::Settle { outcome, ids, .. } => Some((*outcome, ids.clone())),
        _ => None,
    });
    all.collect()
}

#[test]
fn wrong_password_is_refused_and_counted() {
    let mut client = Client::new(Amqp10Config::default(), "guest", "wrong", None);
    client.pump();
    assert!(matches!(
        client.seen.pop_front(),
        Some(Seen::Closed(Some(_)))
    ));
    assert_eq!(client.broker.logins, (0, 1));
    assert_eq!(
        client.state,
        SessionState::Open,
        "the socket closes after a delay"
    );
}

#[test]
fn login_waits_for_a_password_check_on_another_thread() {
    let mut client = Client::new(Amqp10Config::default(), "guest", "guest", None);
    client.broker.verdict = Some(PasswordCheck::Later);
    client.pump();
    client.nothing_seen();
    assert_eq!(client.state, SessionState::Paused);
    client.broker.notices.push_back(
        ControlEvent::Verified {
            verdict: true.into(),
        }
        .into(),
    );
    client.deliver_events();
    client.pump();
    client.expect(Seen::Opened);
    assert_eq!(client.broker.logins, (1, 0));
}

#[test]
fn shutdown_during_a_password_check_is_a_temporary_error() {
    let mut client = Client::new(Amqp10Config::default(), "guest", "guest", None);
    client.broker.verdict = Some(PasswordCheck::Later);
    client.pump();
    (client.broker.notices).push_back(ControlEvent::Shutdown.into());
    client.deliver_events();
    client.pump();
    // The code sys-temp of sasl-outcome (section 5.3.3.6), a ubyte.
    assert!(
        client.received.ends_with(&[0x50, 4]),
        "{:?}",
        client.received
    );
    assert_eq!(client.broker.logins, (0, 0));
}

#[test]
fn open_is_refused_with_the_condition_of_its_cause() {
    let refused = |hostname: &str, prepare: fn(&mut Client)| {
        let host = Some(hostname);
        let mut client = Client::new(Amqp10Config::default(), "guest", "guest", host);
        prepare(&mut client);
        client.pump();
        // A close must not be the first frame (section 2.4.3).
        client.expect(Seen::Opened);
        assert_eq!(client.server_container, "posthorn");
        let mut properties = client.server_properties.iter();
        assert!(properties.any(|(key, _)| key == "node"));
        client.seen.pop_front()
    };
    let closed = |condition: &str| Some(Seen::Closed(Some(condition.into())));
    assert_eq!(refused("vhost:missing", |_| {}), closed("amqp:not-found"));
    assert_eq!(
        refused("vhost:other", |_| {}),
        closed("amqp:unauthorized-access")
    );
    assert_eq!(
        refused("host", |c| c.broker.admits = false),
        closed("amqp:resource-limit-exceeded")
    );
    assert_eq!(
        refused("host", |c| c.broker.vhost_is_full = true),
        closed("amqp:resource-limit-exceeded")
    );
    assert_eq!(
        refused("host", |c| c.broker.draining = true),
        closed("amqp:internal-error")
    );
}

#[test]
fn open_names_the_node_that_the_client_is_connected_to() {
    let (client, _) = Client::open();
    let property = |name: &str| {
        let mut properties = client.server_properties.iter();
        let found = properties.find(|(key, _)| key == name);
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!(property("node"), Some("one"));
    assert_eq!(property("product"), Some("RabbitMQ"));
}

#[test]
fn publish_is_accepted_after_the_queue_has_confirmed_it() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let link = client.publisher(session, "/queues/q");
    client.broker.silent = true;
    let ids = [client.send(link, "a"), client.send(link, "b")];
    client.nothing_seen();
    client.broker.settle_publishes();
    client.pump();
    client.expect(accepted(ids[0]));
    client.expect(accepted(ids[1]));
    let counters = &client.broker.message_counters;
    assert_eq!(
        (counters.publishes.received, counters.publishes.confirmed),
        (2, 2)
    );
    assert_eq!((counters.publishes.routed, counters.publishers), (2, 1));
    // A body is an encoded section of six bytes.
    assert_eq!(counters.published_bytes, 2 * 6);
    assert_eq!((counters.sizes.counts[0], counters.sizes.bytes), (2, 2 * 6));
}

#[test]
fn unroutable_publish_is_released() {
    let (mut client, session) = Client::open();
    let link = client.publisher(session, "/exchanges/amq.topic/key");
    let id = client.send(link, "a");
    client.expect(Seen::Outcome(id, "released".into()));
    assert_eq!(
        client.broker.message_counters.publishes.unroutable_returned,
        1
    );
}

#[test]
fn rejected_publish_names_queue_and_reason() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let link = client.publisher(session, "/queues/q");
    client.broker.reject = Some(RejectReason::MaxLength);
    let id = client.send(link, "a");
    let outcome = "rejected amqp:resource-limit-exceeded q maxlen";
    client.expect(Seen::Outcome(id, outcome.into()));
    client.broker.reject = Some(RejectReason::Unavailable);
    let id = client.send(link, "a");
    client.expect(Seen::Outcome(
        id,
        "rejected amqp:internal-error q unavailable".into(),
    ));
}

#[test]
fn anonymous_terminus_rejects_messages_without_a_target() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let link = client.try_publisher(session, None);
    client.expect(Seen::Attached(link));
    let id = client.send_message(link, message(Some("/queues/q"), "a"), false);
    client.expect(accepted(id));
    for (to, condition) in [
        (None, "amqp:precondition-failed"),
        (Some("q"), "amqp:precondition-failed"),
        (Some("/exchanges/missing"), "amqp:not-found"),
    ] {
        let id = client.send_message(link, message(to, "b"), false);
        client.expect(Seen::Outcome(id, format!("rejected {condition}")));
    }
    // Nobody would hear of the error of a settled message.
    client.send_message(link, message(None, "c"), true);
    client.expect(Seen::Detached(Some("amqp:precondition-failed".into())));
}

/// The client sees an attach without the terminus of the server, and then the error (section 2.6.3).
fn expect_refused(client: &mut Client, link: LinkId, condition: &str) {
    client.expect(Seen::Attached(link));
    client.expect(Seen::Detached(Some(condition.to_owned())));
}

#[test]
fn refused_attach_detaches_the_link_with_the_condition_of_its_cause() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let other = client.publisher(session, "/queues/q");
    for (address, condition) in [
        ("/queues/missing", "amqp:not-found"),
        ("/exchanges/missing", "amqp:not-found"),
        ("orders", "amqp:invalid-field"),
    ] {
        let link = client.try_publisher(session, Some(address));
        expect_refused(&mut client, link, condition);
    }
    for (address, condition) in [
        ("/queues/missing", "amqp:not-found"),
        ("/exchanges/amq.topic", "amqp:invalid-field"),
        ("orders", "amqp:invalid-field"),
    ] {
        let link = client.try_consumer(session, address, SenderSettleMode::Mixed);
        expect_refused(&mut client, link, condition);
    }
    // The other links of the session go on.
    let id = client.send(other, "a");
    client.expect(accepted(id));
    assert_eq!(client.broker.message_counters.publishers, 1);
}

#[test]
fn attach_without_permission_ends_the_session() {
    let ended = Seen::Ended(Some("amqp:unauthorized-access".to_owned()));
    let (mut client, session) = Client::open_with(Amqp10Config::default(), "small");
    client.try_publisher(session, Some("/exchanges/amq.topic"));
    client.expect(ended.clone());
    // Other sessions go on.
    let session = client.begin();
    client.declare("yours");
    client.try_consumer(session, "/queues/yours", SenderSettleMode::Mixed);
    client.expect(ended);
}

#[test]
fn attach_waits_for_the_log_if_the_tree_may_be_outdated() {
    let (mut client, session) = Client::open();
    client.broker.is_single_node = false;
    client.broker.hold_log = true;
    let link = client.try_consumer(session, "/queues/q", SenderSettleMode::Mixed);
    client.nothing_seen();
    client.broker.hold_log = false;
    client.declare("q");
    assert!(client.broker.apply_next());
    client.pump();
    client.expect(Seen::Attached(link));
}

#[test]
fn attach_to_a_missing_queue_is_refused_after_the_tree_has_caught_up() {
    let (mut client, session) = Client::open();
    client.broker.is_single_node = false;
    let link = client.try_consumer(session, "/queues/q", SenderSettleMode::Mixed);
    expect_refused(&mut client, link, "amqp:not-found");
    assert_eq!(client.broker.changes.len(), 1, "the log is asked once");
}

#[test]
fn publish_waits_for_the_log_and_keeps_the_order() {
    let (mut client, session) = Client::open();
    client.broker.is_single_node = false;
    client.declare("q");
    let link = client.try_publisher(session, None);
    client.expect(Seen::Attached(link));
    client.broker.hold_log = true;
    client.send_message(link, message(Some("/exchanges/x"), "a"), false);
    assert_eq!(client.state, SessionState::Paused);
    client.send_message(link, message(Some("/queues/q"), "b"), false);
    client.nothing_seen();
    assert!(client.broker.apply_next());
    client.pump();
    client.expect(Seen::Outcome(0, "rejected amqp:not-found".into()));
    client.expect(accepted(1));
}

#[test]
fn consumer_gets_as_many_messages_as_it_has_credit() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let to = client.publisher(session, "/queues/q");
    for body in ["a", "b", "c"] {
        client.send(to, body);
    }
    client.seen.clear();
    let from = client.consumer(session, "/queues/q");
    client.credit(from, 2, false);
    let ids = [client.expect_message("a"), client.expect_message("b")];
    client.nothing_seen();
    client.settle(from, ids[0], &ACCEPTED);
    client.settle(from, ids[1], &ACCEPTED);
    client.credit(from, 5, false);
    let id = client.expect_message("c");
    client.settle(from, id, &DeliveryState::Outcome(Outcome::Rejected(None)));
    let expected = [
        (SettlementOutcome::Accepted, vec![(1, 1)]),
        (SettlementOutcome::Accepted, vec![(2, 2)]),
        (SettlementOutcome::Rejected, vec![(3, 3)]),
    ];
    assert_eq!(settlements(&client), expected);
    let delivered = client.broker.message_counters.deliveries[metadata::QueueType::Classic];
    assert_eq!((delivered.deliver, delivered.ack), (3, 2));
}

/// The node of the session.
const OWN_NODE: env::NodeId = env::NodeId(1);

/// The values of the link state property with which the client was told its activity, in order.
fn told_activity(client: &Client) -> Vec<bool> {
    const KEY: &[u8] = b"rabbitmq:active";
    let values = client.received.windows(KEY.len() + 1);
    let told = values.filter_map(|bytes| match bytes.split_at(KEY.len()) {
        (KEY, [0x41]) => Some(true),
        (KEY, [0x42]) => Some(false),
        _ => None,
    });
    told.collect()
}

#[test]
fn receiver_is_told_its_activity_after_the_first_credit_and_after_changes() {
    let (mut client, session) = Client::open();
    let queue = client.declare("q");
    let from = client.consumer(session, "/queues/q");
    let change = |client: &mut Client, is_active, owner| {
        client
            .broker
            .notices
            .push_back(SessionEvent::Queue(QueueNotification::Activity {
                queue,
                consumer: queue::ConsumerId(from.number()),
                is_active,
                owner,
            }));
        client.deliver_events();
        client.pump();
    };
    change(&mut client, false, OWN_NODE);
    assert!(told_activity(&client).is_empty());
    client.credit(from, 1, false);
    assert_eq!(told_activity(&client), [false]);
    client.credit(from, 2, false);
    change(&mut client, true, OWN_NODE);
    assert_eq!(told_activity(&client), [false, true]);
    let told_leaders = |client: &Client| {
        let key = b"posthorn:leader";
        let values = client.received.windows(key.len());
        values.filter(|bytes| bytes == key).count()
    };
    assert_eq!(told_leaders(&client), 1);
    // A node that is not in the cluster has no name.
    change(&mut client, true, env::NodeId(99));
    assert_eq!(
        (told_activity(&client).len(), told_leaders(&client)),
        (2, 1)
    );
    change(&mut client, true, OWN_NODE);
    assert_eq!(
        (told_activity(&client).len(), told_leaders(&client)),
        (2, 2)
    );
}

#[test]
fn drain_uses_up_the_credit_after_the_ready_messages() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let to = client.publisher(session, "/queues/q");
    client.send(to, "a");
    client.seen.clear();
    let from = client.consumer(session, "/queues/q");
    client.credit(from, 10, true);
    client.expect_message("a");
    client.expect(Seen::Drained(from));
    client.send(to, "b");
    client
        .seen
        .retain(|seen| matches!(seen, Seen::Message { .. }));
    client.nothing_seen();
    client.credit(from, 1, false);
    client.expect_message("b");
}

#[test]
fn draining_receiver_is_told_its_activity() {
    let (mut client, session) = Client::open();
    let queue = client.declare("q");
    let to = client.publisher(session, "/queues/q");
    client.send(to, "a");
    client.seen.clear();
    let from = client.consumer(session, "/queues/q");
    let activity = QueueNotification::Activity {
        queue,
        consumer: queue::ConsumerId(from.number()),
        is_active: true,
        owner: OWN_NODE,
    };
    client
        .broker
        .notices
        .push_back(SessionEvent::Queue(activity));
    client.deliver_events();
    client.seen.clear();
    client.credit(from, 10, true);
    client.expect_message("a");
    client.expect(Seen::Drained(from));
    assert_eq!(told_activity(&client), [true]);
}

#[test]
fn settled_consumer_settles_when_the_message_is_written() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let to = client.publisher(session, "/queues/q");
    client.send(to, "a");
    client.seen.clear();
    let from = client.try_consumer(session, "/queues/q", SenderSettleMode::Settled);
    client.expect(Seen::Attached(from));
    client.credit(from, 1, false);
    client.expect_message("a");
    assert_eq!(
        settlements(&client),
        [(SettlementOutcome::Accepted, vec![(1, 1)])]
    );
}

#[test]
fn modified_outcome_carries_the_annotations_of_extensions() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let to = client.publisher(session, "/queues/q");
    client.send(to, "a");
    client.seen.clear();
    let from = client.consumer(session, "/queues/q");
    client.credit(from, 1, false);
    let id = client.expect_message("a");
    let mut annotations = Vec::new();
    let mut writer = map(&mut annotations);
    for key in ["x-opt-note", "x-note", "other"] {
        writer.push(&Symbol::from_static(key));
        writer.push("value");
    }
    writer.finish();
    let modified = Modified {
        delivery_failed: true,
        undeliverable_here: false,
        message_annotations: Reader::new(&annotations).read::<Map<'_>>().ok(),
    };
    client.settle(
        from,
        id,
        &DeliveryState::Outcome(Outcome::Modified(modified)),
    );
    let modification = client
        .broker
        .requests
        .iter()
        .find_map(|(_, body)| match body {
            RequestBody::Modify {
                ids, modification, ..
            } if *ids == [(1, 1)] => Some(&**modification),
            _ => None,
        });
    let Some(Modification {
        delivery_failed: true,
        annotations,
        ..
    }) = modification
    else {
        panic!("{modification:?}");
    };
    let keys: Vec<&str> = annotations
        .table()
        .0
        .iter()
        .map(|(key, _)| &**key)
        .collect();
    assert_eq!(keys, ["x-opt-note", "x-note"]);
}

#[test]
fn bare_message_reaches_the_consumer_unchanged() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let to = client.publisher(session, "/queues/q");
    let bare = message(Some("elsewhere"), "body");
    client.send_message(to, bare.clone(), false);
    client.seen.clear();
    let from = client.consumer(session, "/queues/q");
    client.credit(from, 1, false);
    let Some(Seen::Message { payload, .. }) = client.seen.pop_front() else {
        panic!("no message");
    };
    let sections = Sections::parse(&payload).unwrap();
    assert_eq!(&payload[sections.bare()], &bare);
    let annotations = sections
        .read_map(sections.message_annotations, &payload)
        .unwrap();
    let text = |key| annotations.get(key).and_then(|value| value.as_text());
    assert_eq!(
        (text("x-exchange"), text("x-routing-key")),
        (Some(""), Some("q"))
    );
}

#[test]
fn detach_returns_deliveries_and_ends_the_consumer() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let to = client.publisher(session, "/queues/q");
    client.send(to, "a");
    client.seen.clear();
    let from = client.consumer(session, "/queues/q");
    client.credit(from, 1, false);
    client.expect_message("a");
    client.detach(from);
    assert_eq!(client.broker.queue("/", "q").unwrap().ready.len(), 1);
    let again = client.consumer(session, "/queues/q");
    client.credit(again, 1, false);
    client.expect_message("a");
    assert_eq!(client.broker.message_counters.consumers, 1);
}

#[test]
fn end_of_a_session_stops_its_consumers_before_it_returns_deliveries() {
    let (mut client, session) = Client::open();
    client.declare("q");
    for _ in 0..2 {
        client.consumer(session, "/queues/q");
    }
    client.broker.requests.clear();
    client.end(session);
    let kinds: Vec<&str> = client
        .broker
        .requests
        .iter()
        .map(|(_, body)| match body {
            RequestBody::Cancel { .. } => "cancel",
            RequestBody::CancelAndRequeue { .. } => "leave",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["cancel", "cancel", "leave", "leave"]);
    assert_eq!(client.broker.channels_left, 10_000);
}

#[test]
fn deleted_queue_detaches_its_consumers_only() {
    let (mut client, session) = Client::open();
    client.declare("q");
    client.declare("other");
    client.consumer(session, "/queues/q");
    let other = client.publisher(session, "/queues/other");
    delete(&mut client, "q");
    client.pump();
    client.expect(Seen::Detached(Some("amqp:resource-deleted".into())));
    let id = client.send(other, "a");
    client.expect(accepted(id));
}

#[test]
fn deliveries_of_a_detached_link_are_released_without_a_failed_attempt() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let publisher = client.publisher(session, "/queues/q");
    for body in ["a", "b"] {
        client.send(publisher, body);
        client.seen.clear();
    }
    let consumer = client.consumer(session, "/queues/q");
    client.credit(consumer, 2, false);
    client.expect_message("a");
    client.expect_message("b");
    client.detach(consumer);
    client.nothing_seen();
    let released = Some((SettlementOutcome::Released, vec![(1, u64::MAX)]));
    assert_eq!(settlements(&client).pop(), released);

    // A session that ends leaves them to the queue, which counts the attempt.
    let consumer = client.consumer(session, "/queues/q");
    client.credit(consumer, 1, false);
    client.expect_message("a");
    let before = settlements(&client).len();
    client.end(session);
    assert_eq!(settlements(&client).len(), before);
}

fn delete(client: &mut Client, queue: &str) {
    client.broker.must(metadata::Change::DeleteQueue {
        vhost: "/".into(),
        name: queue.into(),
        id: None,
    });
}

#[test]
fn publish_to_a_deleted_target_queue_is_released_and_detaches_the_link() {
    let detached = Seen::Detached(Some("amqp:resource-deleted".into()));
    let (mut client, session) = Client::open();
    client.declare("q");
    let link = client.publisher(session, "/queues/q");
    delete(&mut client, "q");
    let id = client.send(link, "a");
    client.expect(Seen::Outcome(id, "released".into()));
    client.expect(detached.clone());
    // A queue that is deleted while a message is on its way to it.
    client.declare("q");
    let link = client.publisher(session, "/queues/q");
    let other = client.publisher(session, "/exchanges/amq.fanout");
    client.broker.silent = true;
    let id = client.send(link, "a");
    client.nothing_seen();
    delete(&mut client, "q");
    let why = RejectReason::Unavailable;
    for (queue, tag) in std::mem::take(&mut client.broker.unconfirmed) {
        let refused = QueueNotification::NotPublished { queue, tag, why };
        client.broker.notices.push_back(refused.into());
    }
    client.pump();
    client.expect(Seen::Outcome(id, "released".into()));
    client.expect(detached);
    // Other links go on.
    let id = client.send(other, "b");
    client.expect(Seen::Outcome(id, "released".into()));
    assert_eq!(client.broker.message_counters.publishers, 1);
}

#[test]
fn credit_for_a_deleted_queue_detaches_with_the_deletion() {
    for (is_deleted, condition) in [
        (false, "amqp:internal-error"),
        (true, "amqp:resource-deleted"),
    ] {
        let (mut client, session) = Client::open();
        let queue = client.declare("q");
        let link = client.consumer(session, "/queues/q");
        client.broker.silent = true;
        client.credit(link, 1, false);
        client.nothing_seen();
        if is_deleted {
            delete(&mut client, "q");
        }
        let requests = client.broker.requests.iter();
        let seq = requests.filter(|(to, _)| *to == queue).count() as u64;
        let refused = QueueNotification::Answer {
            queue,
            seq: RequestSeq(seq),
            answer: QueueReply::Refused {
                code: 541,
                text: "the queue's node is down".to_owned(),
            },
        };
        client.broker.notices.push_back(refused.into());
        client.pump();
        client.expect(Seen::Detached(Some(condition.into())));
    }
}

#[test]
fn receiver_of_a_queue_whose_node_is_down_is_not_told_of_a_deletion() {
    for (is_deleted, condition) in [
        (false, "amqp:internal-error"),
        (true, "amqp:resource-deleted"),
    ] {
        let (mut client, session) = Client::open();
        let queue = client.declare("q");
        client.consumer(session, "/queues/q");
        let consumer = client
            .broker
            .requests
            .iter()
            .find_map(|(_, body)| match body {
                RequestBody::Consume { consumer, .. } => Some(*consumer),
                _ => None,
            });
        if is_deleted {
            client.broker.silent = true;
            delete(&mut client, "q");
        }
        let cancelled = QueueNotification::Cancelled {
            queue,
            consumer: consumer.expect("the receiver is a consumer"),
            reason: CancelReason::OwnerLost,
        };
        client.broker.notices.push_back(cancelled.into());
        client.pump();
        client.expect(Seen::Detached(Some(condition.into())));
    }
}

#[test]
fn deletion_of_a_queue_detaches_its_publishers() {
    let (mut client, session) = Client::open();
    let queue = client.declare("q");
    let other = client.declare("other");
    client.publisher(session, "/queues/q");
    let second = client.begin();
    client.publisher(second, "/queues/q");
    let exchange = client.publisher(session, "/exchanges/amq.fanout");
    let to_other = client.publisher(session, "/queues/other");
    delete(&mut client, "q");
    let removed = |queue| QueueNotification::Removed { queue }.into();
    client.broker.notices.push_back(removed(queue));
    client.pump();
    for _ in 0..2 {
        client.expect(Seen::Detached(Some("amqp:resource-deleted".into())));
    }
    // A queue that was declared again is another one.
    client.broker.notices.push_back(removed(other));
    client.pump();
    client.nothing_seen();
    for (link, outcome) in [(exchange, "released"), (to_other, "accepted")] {
        let id = client.send(link, "a");
        client.expect(Seen::Outcome(id, outcome.into()));
    }
}

#[test]
fn undecodable_message_detaches_with_a_decode_error() {
    let section = |code: u8, value: &[u8]| [&[0, 0x53, code], value].concat();
    let body = section(0x75, b"\xa0\x01a");
    let string_key = section(0x72, b"\xc1\x07\x02\xa1\x03x-a\x41");
    let ulong_key = section(0x71, b"\xc1\x04\x02\x53\x05\x41");
    for message in [
        vec![0xff],
        section(0x79, b"\xa0\x01a"),
        section(0x75, b"\xa1\x01a"),
        section(0x73, b"\xc0\x02\x01\x40\x40"),
        [string_key, body.clone()].concat(),
        [ulong_key, body.clone()].concat(),
    ] {
        let (mut client, session) = Client::open();
        client.declare("q");
        let link = client.publisher(session, "/queues/q");
        client.send_message(link, message.clone(), false);
        client.expect(Seen::Detached(Some("amqp:decode-error".into())));
        // Symbols are the keys of annotations.
        let link = client.publisher(session, "/queues/q");
        let symbol_key = section(0x72, b"\xc1\x07\x02\xa3\x03x-a\x41");
        let id = client.send_message(link, [symbol_key, body.clone()].concat(), false);
        client.expect(accepted(id));
    }
}

fn enable_streams(client: &mut Client) {
    client.broker.must(metadata::Change::EnableFeature {
        name: STREAM_QUEUES.name.into(),
    });
}

#[test]
fn source_names_its_distribution_mode() {
    let (mut client, session) = Client::open();
    enable_streams(&mut client);
    for (name, kind, mode) in [
        ("classic", QueueType::Classic, "move"),
        ("quorum", QueueType::Quorum, "move"),
        ("stream", QueueType::Stream, "copy"),
    ] {
        client.declare_type(name, kind);
        let link = client.consumer(session, &format!("/queues/{name}"));
        let source = client.answer(link).source.unwrap();
        assert_eq!(source.distribution_mode.map(Symbol::as_str), Some(mode));
    }
}

#[test]
fn slow_queue_withholds_credit_from_its_own_link_only() {
    let (mut client, session) = Client::open();
    let slow = client.declare("slow");
    client.declare("fast");
    client.broker.slow_queues.push(slow);
    let to_slow = client.publisher(session, "/queues/slow");
    let to_fast = client.publisher(session, "/queues/fast");
    let sent = |client: &mut Client, link| {
        (0..1000)
            .take_while(|_| {
                let credit = client
                    .engine
                    .sessions()
                    .flat_map(|s| s.links)
                    .find(|l| l.link == link);
                let has_credit = credit.is_some_and(|link| link.credit > 0);
                if has_credit {
                    client.send(link, "a");
                }
                has_credit
            })
            .count()
    };
    assert_eq!(
        sent(&mut client, to_slow),
        170,
        "the first credit is not renewed"
    );
    assert_eq!(sent(&mut client, to_fast), 1000);
    client.broker.slow_queues.clear();
    client
        .broker
        .notices
        .push_back(ControlEvent::Unblocked.into());
    client.pump();
    assert_eq!(sent(&mut client, to_slow), 1000);
}

#[test]
fn alarm_stops_publishers_but_not_consumers() {
    let (mut client, session) = Client::open();
    client.declare("q");
    let to = client.publisher(session, "/queues/q");
    client.send(to, "a");
    client.seen.clear();
    client
        .broker
        .notices
        .push_back(ControlEvent::Blocked(Some("low on memory")).into());
    client.pump();
    let window = |client: &Client| {
        client
            .engine
            .sessions()
            .next()
            .unwrap()
            .remote_incoming_window
    };
    assert_eq!(window(&client), 0);
    let from = client.consumer(session, "/queues/q");
    client.credit(from, 1, false);
    client.expect_message("a");
    client
        .broker
        .notices
        .push_back(ControlEvent::Blocked(None).into());
    client.pump();
    assert_eq!(window(&client), 400);
}

#[test]
fn client_that_does_not_read_is_sent_a_bounded_number_of_messages() {
    let limits = Limits {
        outbox_deliveries: 4096,
        ..Limits::default()
    };
    let (mut client, session) = Client::open_with(
        Amqp10Config {
            limits,
            ..Amqp10Config::default()
        },
        "guest",
    );
    client.declare("q");
    let to = client.publisher(session, "/queues/q");
    let body = "x".repeat(1000);
    for _ in 0..50 {
        client.send(to, &body);
    }
    client.seen.clear();
    let from = client.consumer(session, "/queues/q");
    client.is_deaf = true;
    client.credit(from, u32::MAX, false);
    assert!(client.out.len() < 4096 + 2048, "{}", client.out.len());
    client.is_deaf = false;
    client.pump();
    let received = client
        .seen
        .iter()
        .filter(|seen| matches!(seen, Seen::Message { .. }));
    assert_eq!(received.count(), 50);
}

/// A receiver whose client does not read, with ten messages of which some wait in the session.
fn deaf_receiver() -> (Client, LinkId) {
    let limits = Limits {
        outbox_deliveries: 4096,
        ..Limits::default()
    };
    let config = Amqp10Config {
        limits,
        ..Amqp10Config::default()
    };
    let (mut client, session) = Client::open_with(config, "guest");
    client.declare("q");
    let to = client.publisher(session, "/queues/q");
    let body = "x".repeat(1000);
    for _ in 0..10 {
        client.send(to, &body);
    }
    client.seen.clear();
    let from = client.consumer(session, "/queues/q");
    client.is_deaf = true;
    (client, from)
}

#[test]
fn messages_return_in_their_order_if_the_client_takes_its_credit_back() {
    let (mut client, from) = deaf_receiver();
    client.credit(from, 10, false);
    client.credit(from, 0, false);
    let returned = settlements(&client);
    let [(SettlementOutcome::Unseen, ids)] = &returned[..] else {
        panic!("{returned:?}");
    };
    let [(first, 10)] = ids[..] else {
        panic!("one range up to the last delivery, got {ids:?}");
    };
    assert!((2..10).contains(&first), "{first}");
}

#[test]
fn answer_to_a_drain_does_not_use_up_credit_that_was_granted_after_it() {
    let (mut client, from) = deaf_receiver();
    // The answer waits for a message that the session holds.
    client.credit(from, 5, true);
    client.credit_after_reading(from, 8, true);
    let seen = std::mem::take(&mut client.seen);
    let messages = seen
        .iter()
        .filter(|seen| matches!(seen, Seen::Message { .. }));
    assert_eq!(messages.count(), 8);
    assert_eq!(seen.back(), Some(&Seen::Drained(from)));
    assert_eq!(seen.len(), 9);
}

#[test]
fn answer_to_a_drain_does_not_count_messages_that_it_follows_as_available() {
    let (mut client, from) = deaf_receiver();
    client.credit(from, 10, true);
    client.is_deaf = false;
    client.pump();
    let seen = std::mem::take(&mut client.seen);
    assert_eq!(seen.back(), Some(&Seen::Drained(from)));
    assert_eq!(seen.len(), 11);
    let sessions = client.engine.sessions().flat_map(|session| session.links);
    let available: Vec<u32> = sessions
        .filter(|link| link.link == from)
        .map(|link| link.available)
        .collect();
    assert_eq!(available, [0]);
}

#[test]
fn operator_closes_the_connection_with_the_reason() {
    let (mut client, session) = Client::open();
    client.declare("q");
    client.consumer(session, "/queues/q");
    client.broker.notices.push_back(
        ControlEvent::Close {
            text: "maintenance".into(),
        }
        .into(),
    );
    client.pump();
    client.expect(Seen::Closed(Some("amqp:internal-error".into())));
    assert_eq!(client.state, SessionState::Closing);
    let requests = &client.broker.requests;
    assert!(
        requests
            .iter()
            .any(|(_, body)| matches!(body, RequestBody::CancelAndRequeue { .. }))
    );
}

#[test]
fn late_deliveries_are_released_and_their_link_stays() {
    let (mut client, session) = Client::open();
    let queue = client.declare("q");
    let to = client.publisher(session, "/queues/q");
    for body in ["a", "b"] {
        client.send(to, body);
    }
    client.seen.clear();
    let from = client.consumer(session, "/queues/q");
    client.credit(from, 2, false);
    let ids = [client.expect_message("a"), client.expect_message("b")];
    client
        .broker
        .notices
        .push_back(SessionEvent::Queue(QueueNotification::TimedOut {
            queue,
            consumer: queue::ConsumerId(from.number()),
            up_to: 1,
        }));
    client.deliver_events();
    client.pump();
    // The broker has settled the first one, so its outcome goes nowhere.
    client.settle(from, ids[0], &ACCEPTED);
    assert!(settlements(&client).is_empty());
    client.settle(from, ids[1], &ACCEPTED);
    let expected = [(SettlementOutcome::Accepted, vec![(2, 2)])];
    assert_eq!(settlements(&client), expected);
}
