//! Log entries and checkpoints of quorum queues as version 0.2 wrote them.

use super::command::{self, BatchReader, DecodedCommand};
use super::deduplicator::Deduplicator;
use super::delayed::DelayedMessage;
use super::grouped::PreviousOwner;
use super::ready::{DEFAULT_LEVEL, LogMessage, RequeuedMessage};
use super::{Batch, Command, Configuration, Effects, LogLocation, LogRead, Machine, effects};
use crate::checkout::{Consumer, PendingDrain, SessionRecord, UnsettledMessage};
use crate::codec::format_tests::{CRATE, annotations, message, session, spec};
use crate::groups::GroupId;
use crate::{
    Annotations, ConsumerFilter, ConsumerId, DeadIncarnation, DeadLettering, DeadReason,
    DeduplicationId, DelayedRetry, DelayedReturns, DeliveryCounts, EpochConsumer, FlowMode,
    Modification, Name, Overflow, QueueReply, QueueSettings, QuorumFeatures, QuorumSettings,
    Request, RequestBody, SessionEpoch, SessionId, SettlementOutcome,
};
use bytes::Bytes;
use env::{Incarnation, NodeId, WallTime};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use wire::Decoded;

golden::variant_names! {
    fn command_name(Command) {
        Command::Time(_) => "time",
        Command::Settings(_) => "settings",
        Command::GoneNode(_) => "gone-node",
        Command::NodeSuspected(_) => "node-suspected",
        Command::NodeTrusted(_) => "node-trusted",
        Command::GoneSession(_) => "gone-session",
        Command::PassedOn(_) => "passed-on",
        Command::Configure(_) => "configure",
        Command::ConsumerTimedOut { .. } => "consumer-timed-out",
        Command::Assign { .. } => "assign",
    }
    fn overflow_name(Overflow) {
        Overflow::DropHead => "drop-head",
        Overflow::RejectPublish => "reject-publish",
        Overflow::RejectPublishDlx => "reject-publish-dlx",
    }
    fn dead_lettering_name(DeadLettering) {
        DeadLettering::Off => "off",
        DeadLettering::AtMostOnce => "at-most-once",
        DeadLettering::AtLeastOnce => "at-least-once",
    }
}

const CONSUMER: ConsumerId = ConsumerId(1);
const STRICT: QuorumFeatures = QuorumFeatures {
    strict_priorities: true,
    delivery_counts: false,
    delayed_retry: false,
    scheduled_delivery: false,
    deduplication: false,
    message_groups: false,
    exact_expiry: false,
};
const DELAYING: QuorumFeatures = QuorumFeatures {
    strict_priorities: true,
    delivery_counts: true,
    delayed_retry: true,
    scheduled_delivery: false,
    deduplication: false,
    message_groups: false,
    exact_expiry: false,
};
const SCHEDULING: QuorumFeatures = QuorumFeatures {
    strict_priorities: true,
    delivery_counts: true,
    delayed_retry: false,
    scheduled_delivery: true,
    deduplication: false,
    message_groups: false,
    exact_expiry: false,
};
const DEDUPLICATING: QuorumFeatures = QuorumFeatures {
    strict_priorities: true,
    delivery_counts: true,
    delayed_retry: false,
    scheduled_delivery: false,
    deduplication: true,
    message_groups: false,
    exact_expiry: false,
};
const GROUPING: QuorumFeatures = QuorumFeatures {
    strict_priorities: true,
    delivery_counts: true,
    delayed_retry: true,
    scheduled_delivery: true,
    deduplication: false,
    message_groups: true,
    exact_expiry: false,
};
const GROUPS_ONLY: QuorumFeatures = QuorumFeatures {
    strict_priorities: false,
    delivery_counts: false,
    delayed_retry: false,
    scheduled_delivery: false,
    deduplication: false,
    message_groups: true,
    exact_expiry: false,
};
const COUNTING: QuorumFeatures = QuorumFeatures {
    strict_priorities: true,
    delivery_counts: true,
    delayed_retry: false,
    scheduled_delivery: false,
    deduplication: false,
    message_groups: false,
    exact_expiry: false,
};

const EXACT: QuorumFeatures = QuorumFeatures {
    strict_priorities: true,
    delivery_counts: true,
    delayed_retry: false,
    scheduled_delivery: false,
    deduplication: false,
    message_groups: false,
    exact_expiry: true,
};

fn settings(overflow: Overflow, dead_letter: DeadLettering) -> QueueSettings {
    QueueSettings {
        max_length: Some(1000),
        max_length_bytes: Some(1 << 40),
        overflow,
        delivery_limit: Some(20),
        message_ttl_ms: Some(60_000),
        single_active_consumer: true,
        max_priority: Some(9),
        dead_letter,
        quorum: QuorumSettings::default(),
    }
}

fn delaying(settings: QueueSettings) -> QueueSettings {
    QueueSettings {
        quorum: QuorumSettings {
            deduplication_window_ms: None,
            delayed_retry: Some(DelayedRetry {
                returns: DelayedReturns::Failed,
                min_ms: 1000,
                max_ms: 30_000,
            }),
        },
        ..settings
    }
}

fn unlimited() -> QueueSettings {
    QueueSettings {
        max_length: None,
        max_length_bytes: None,
        overflow: Overflow::DropHead,
        delivery_limit: None,
        message_ttl_ms: None,
        single_active_consumer: false,
        max_priority: None,
        dead_letter: DeadLettering::Off,
        quorum: QuorumSettings::default(),
    }
}

fn decode_command(raw: &[u8]) -> Result<Command, String> {
    match command::decode(&Bytes::copy_from_slice(raw)) {
        Ok(DecodedCommand::Other(command)) => Ok(command),
        Ok(DecodedCommand::Batch { .. }) => Err("a batch".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn commands_of_version_0_2_are_decoded() {
    let all_settings = [
        settings(Overflow::RejectPublish, DeadLettering::AtMostOnce),
        settings(Overflow::RejectPublishDlx, DeadLettering::AtLeastOnce),
        unlimited(),
    ];
    golden::assert_covers(all_settings.iter().map(|s| &s.overflow), overflow_name);
    golden::assert_covers(
        all_settings.iter().map(|s| &s.dead_letter),
        dead_lettering_name,
    );
    let mut all: Vec<Command> = all_settings.into_iter().map(Command::Settings).collect();
    all.extend([
        Command::Time(WallTime(1_790_000_000_123)),
        Command::GoneNode(DeadIncarnation {
            node: NodeId(u64::MAX),
            before: Incarnation(3),
        }),
        Command::NodeSuspected(NodeId(2)),
        Command::NodeTrusted(NodeId(2)),
        Command::GoneSession(session()),
        Command::PassedOn(vec![(1, 1), (300, 70_000)]),
        Command::ConsumerTimedOut {
            session: session(),
            consumer: CONSUMER,
            up_to: 300,
        },
        Command::Assign {
            session: session(),
            consumer: CONSUMER,
            messages: vec![(300, 300), (70_000, 70_000)],
            drained: None,
        },
        Command::Assign {
            session: session(),
            consumer: CONSUMER,
            messages: Vec::new(),
            drained: Some(300),
        },
        Command::Configure(Configuration {
            features: STRICT,
            settings: settings(Overflow::RejectPublish, DeadLettering::AtMostOnce),
        }),
        Command::Configure(Configuration {
            features: DELAYING,
            settings: delaying(settings(Overflow::DropHead, DeadLettering::Off)),
        }),
        Command::Configure(Configuration {
            features: SCHEDULING,
            settings: settings(Overflow::DropHead, DeadLettering::Off),
        }),
        Command::Configure(Configuration {
            features: DEDUPLICATING,
            settings: deduplicating(settings(Overflow::DropHead, DeadLettering::Off)),
        }),
        Command::Configure(Configuration {
            features: GROUPING,
            settings: settings(Overflow::DropHead, DeadLettering::Off),
        }),
        Command::Configure(Configuration {
            features: EXACT,
            settings: settings(Overflow::DropHead, DeadLettering::Off),
        }),
    ]);
    golden::verify(CRATE, "0.2/quorum-command", |files| {
        let encode = |command: &Command| command.encode().to_vec();
        files.check_enum(&all, command_name, encode, decode_command);
    });
}

fn other_session() -> SessionId {
    SessionId {
        node: NodeId(3),
        incarnation: Incarnation(1),
        number: 1,
    }
}

#[derive(Debug)]
struct DecodedBatch {
    wall: WallTime,
    requests: Vec<Request>,
}

fn encode_batch(batch: &DecodedBatch) -> Vec<u8> {
    let mut out = Batch::default();
    for request in &batch.requests {
        out.push(request);
    }
    out.take(batch.wall).expect("requests").to_vec()
}

fn read_requests(mut from: BatchReader<'_>, command: &Bytes) -> Decoded<Vec<Request>> {
    let mut requests = Vec::new();
    while let Some(run) = from.next_run()? {
        for n in 0..u64::from(run.count) {
            let (body, offset) = from.next_request()?;
            if let RequestBody::Publish(message) = &body {
                let entry = LogRead::Command(command.clone());
                let at = LogLocation { index: 1, offset };
                let read = effects::read_message(&entry, at);
                assert_eq!(read.ok().as_ref(), Some(message), "the offset of a message");
            }
            requests.push(Request {
                session: run.session,
                seq: run.first + n,
                body,
            });
        }
    }
    Ok(requests)
}

fn decode_batch(raw: &[u8]) -> Result<DecodedBatch, String> {
    let raw = Bytes::copy_from_slice(raw);
    match command::decode(&raw) {
        Ok(DecodedCommand::Batch { wall, requests }) => Ok(DecodedBatch {
            wall,
            requests: read_requests(requests, &raw).map_err(|e| e.to_string())?,
        }),
        Ok(DecodedCommand::Other(_)) => Err("not a batch".into()),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn batches_of_version_0_2_are_decoded() {
    let request = |session, seq, body| Request { session, seq, body };
    let publish = || RequestBody::Publish(message(None, None));
    // A run of two requests, a gap, and another session.
    let batch = DecodedBatch {
        wall: WallTime(1_790_000_000_123),
        requests: vec![
            request(session(), 300, publish()),
            request(session(), 301, publish()),
            request(session(), 303, RequestBody::Stat),
            request(other_session(), 1, RequestBody::Purge),
        ],
    };
    golden::verify(CRATE, "0.2/quorum-batch", |files| {
        files.check("batch", &batch, encode_batch, decode_batch);
    });
}

/// A state machine that is shown by its public figures. That it encodes to the same bytes again covers the rest.
struct State(Machine);

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let machine = &self.0;
        f.debug_struct("State")
            .field("settings", machine.settings())
            .field("applied", &machine.applied())
            .field("stats", &machine.stats())
            .field("consumers", &machine.consumers())
            .field("entries", &super::tests::live(machine))
            .finish()
    }
}

/// Applies commands to a state machine.
struct Log {
    machine: Machine,
    index: u64,
    wall: u64,
    seqs: BTreeMap<SessionId, u64>,
}

impl Log {
    fn new(settings: QueueSettings) -> Log {
        Log {
            machine: Machine::new("queue 'q' in vhost '/'".into(), settings),
            index: 0,
            wall: 1_790_000_000_000,
            seqs: BTreeMap::new(),
        }
    }

    fn apply(&mut self, command: &Bytes) {
        self.index += 1;
        let applied = self
            .machine
            .apply(self.index, command, &mut Effects::collecting());
        applied.expect("a known command");
    }

    fn request(&mut self, session: SessionId, bodies: impl IntoIterator<Item = RequestBody>) {
        let mut batch = Batch::default();
        for body in bodies {
            let seq = self.seqs.entry(session).or_default();
            *seq += 1;
            batch.push(&Request {
                session,
                seq: *seq,
                body,
            });
        }
        self.wall += 1;
        let command = batch.take(WallTime(self.wall)).expect("requests");
        self.apply(&command);
    }

    fn publish(&mut self, count: usize, priority: Option<u8>, ttl_ms: Option<u64>) {
        let publishes = (0..count).map(|_| RequestBody::Publish(message(priority, ttl_ms)));
        self.request(session(), publishes);
    }

    fn settle(&mut self, by: SessionId, outcome: SettlementOutcome, id: u64) {
        let settle = RequestBody::Settle {
            consumer: CONSUMER,
            outcome,
            ids: vec![(id, id)],
        };
        self.request(by, [settle]);
    }
}

fn consumer_session(number: u64) -> SessionId {
    SessionId {
        number,
        ..other_session()
    }
}

/// Messages of each kind in the queue, unsettled ones, dead letters, refused publishes and consumers of each kind.
fn busy_queue() -> Machine {
    let mut log = Log::new(QueueSettings {
        max_length: Some(9),
        message_ttl_ms: None,
        single_active_consumer: false,
        ..settings(Overflow::RejectPublish, DeadLettering::AtLeastOnce)
    });
    log.publish(4, None, None);
    log.publish(1, Some(9), None);
    log.publish(1, None, Some(60_000));
    let plain = crate::ConsumerSpec {
        exclusive: false,
        prefetch: 3,
        ..spec(FlowMode::Prefetch)
    };
    let consume = |spec: &crate::ConsumerSpec| RequestBody::Consume {
        consumer: CONSUMER,
        spec: spec.clone(),
    };
    let (one, two, three) = (
        consumer_session(1),
        consumer_session(2),
        consumer_session(3),
    );
    log.request(one, [consume(&plain)]);
    log.settle(one, SettlementOutcome::Rejected, 1);
    log.settle(one, SettlementOutcome::Requeue, 2);
    let modify = RequestBody::Modify {
        consumer: CONSUMER,
        ids: vec![(3, 3)],
        modification: Box::new(Modification {
            delivery_failed: true,
            undeliverable_here: false,
            annotations: annotations(),
        }),
    };
    log.request(one, [modify]);
    let credit = crate::ConsumerSpec {
        flow_mode: FlowMode::Credit,
        ..plain.clone()
    };
    let drain = RequestBody::Credit {
        consumer: CONSUMER,
        up_to: 1,
        drain: false,
    };
    log.request(two, [consume(&credit), drain]);
    log.request(two, [RequestBody::Cancel { consumer: CONSUMER }]);
    log.request(three, [RequestBody::Stat, RequestBody::Close]);
    let four = consumer_session(4);
    log.request(four, [consume(&plain)]);
    // The last ones exceed the limit.
    log.publish(12, None, None);
    log.request(four, [RequestBody::CancelAndRequeue { consumer: CONSUMER }]);
    let gone = DeadIncarnation {
        node: NodeId(8),
        before: Incarnation(4),
    };
    log.apply(&Command::GoneNode(gone).encode());
    log.apply(&Command::NodeSuspected(NodeId(9)).encode());
    // A drain waits only while the flow window is full, which takes many messages.
    let drain = PendingDrain {
        session: two,
        seq: 3,
    };
    log.machine.checkout.drains.insert(2, drain);
    log.machine
}

/// The queue of an MQTT session, whose client has connected twice. Requeued messages are postponed, and a drain waits.
fn session_queue() -> Machine {
    let mut log = Log::new(unlimited());
    log.publish(5, None, None);
    let succeed = |epoch| {
        RequestBody::TakeOver(Box::new(EpochConsumer {
            consumer: CONSUMER,
            spec: crate::ConsumerSpec {
                exclusive: false,
                prefetch: 2,
                ..spec(FlowMode::Prefetch)
            },
            settled: None,
            epoch,
            at: 70_000,
        }))
    };
    let (one, two) = (consumer_session(1), consumer_session(2));
    log.request(one, [succeed(SessionEpoch::New)]);
    log.request(two, [succeed(SessionEpoch::Of(one))]);
    log.settle(two, SettlementOutcome::Requeue, 1);
    log.machine
}

/// A queue that changes to strict priorities while it has messages, with messages of several levels, one with a TTL,
/// requeued ones, an unsettled one and a dead letter.
fn strict_queue() -> Machine {
    let mut log = Log::new(QueueSettings {
        delivery_limit: None,
        message_ttl_ms: None,
        single_active_consumer: false,
        ..settings(Overflow::RejectPublish, DeadLettering::AtLeastOnce)
    });
    log.publish(2, Some(2), None);
    log.publish(2, Some(9), None);
    let configure = Command::Configure(Configuration {
        features: STRICT,
        settings: log.machine.settings().clone(),
    });
    log.apply(&configure.encode());
    for priority in [0, 4, 9, 31, 200] {
        log.publish(2, Some(priority), None);
    }
    log.publish(1, None, Some(60_000));
    let one = consumer_session(1);
    let spec = crate::ConsumerSpec {
        exclusive: false,
        prefetch: 4,
        ..spec(FlowMode::Prefetch)
    };
    let consume = RequestBody::Consume {
        consumer: CONSUMER,
        spec,
    };
    log.request(one, [consume]);
    log.request(one, [RequestBody::Cancel { consumer: CONSUMER }]);
    log.settle(one, SettlementOutcome::Requeue, 1);
    log.settle(one, SettlementOutcome::Released, 2);
    log.settle(one, SettlementOutcome::Rejected, 3);
    log.machine
}

/// A queue that counts deliveries, with one message that failed, one that was only returned, an unsettled one that was
/// delivered before, and a postponed one.
fn counting_queue() -> Machine {
    let mut log = Log::new(QueueSettings {
        delivery_limit: None,
        message_ttl_ms: None,
        single_active_consumer: false,
        ..settings(Overflow::DropHead, DeadLettering::Off)
    });
    log.publish(5, None, None);
    let one = consumer_session(1);
    let spec = crate::ConsumerSpec {
        exclusive: false,
        prefetch: 4,
        ..spec(FlowMode::Prefetch)
    };
    let consume = RequestBody::Consume {
        consumer: CONSUMER,
        spec,
    };
    log.request(one, [consume]);
    // Two failures that count as one delivery, since the queue did not count before.
    log.settle(one, SettlementOutcome::Requeue, 1);
    let configure = Command::Configure(Configuration {
        features: COUNTING,
        settings: log.machine.settings().clone(),
    });
    log.apply(&configure.encode());
    log.settle(one, SettlementOutcome::Released, 2);
    log.request(one, [RequestBody::Cancel { consumer: CONSUMER }]);
    let failed = RequestBody::Modify {
        consumer: CONSUMER,
        ids: vec![(3, 3)],
        modification: Box::new(Modification {
            delivery_failed: true,
            ..Modification::default()
        }),
    };
    log.request(one, [failed]);
    log.settle(one, SettlementOutcome::Released, 4);
    log.settle(one, SettlementOutcome::Released, 5);
    log.machine
}

/// A queue with a consumer that has a filter, an assigned message, and a drain in progress.
fn filtering_queue() -> Machine {
    let mut log = Log::new(unlimited());
    log.publish(3, None, None);
    let one = consumer_session(1);
    let consume = RequestBody::Consume {
        consumer: CONSUMER,
        spec: crate::ConsumerSpec {
            exclusive: false,
            filter: ConsumerFilter::new(b"filter"),
            ..spec(FlowMode::Credit)
        },
    };
    let credit = RequestBody::Credit {
        consumer: CONSUMER,
        up_to: 10,
        drain: true,
    };
    log.request(one, [consume, credit]);
    let second = log.machine.ready.fresh().nth(1).expect("three messages");
    let number = second.location().number();
    let assign = Command::Assign {
        session: one,
        consumer: CONSUMER,
        messages: vec![(number, number)],
        drained: None,
    };
    log.apply(&assign.encode());
    log.machine
}

/// A queue that delays returned messages, with a ready one, one that failed, one that was only returned, and one with a
/// TTL whose client chose the time.
fn delaying_queue() -> Machine {
    let mut log = Log::new(unlimited());
    log.publish(3, None, None);
    log.publish(1, None, Some(60_000));
    let one = consumer_session(1);
    let consume = RequestBody::Consume {
        consumer: CONSUMER,
        spec: crate::ConsumerSpec {
            exclusive: false,
            prefetch: 3,
            ..spec(FlowMode::Prefetch)
        },
    };
    log.request(one, [consume]);
    let configure = Command::Configure(Configuration {
        features: DELAYING,
        settings: QueueSettings {
            quorum: QuorumSettings {
                deduplication_window_ms: None,
                delayed_retry: Some(DelayedRetry {
                    returns: DelayedReturns::All,
                    min_ms: 1000,
                    max_ms: 30_000,
                }),
            },
            ..unlimited()
        },
    });
    log.apply(&configure.encode());
    let modify = |id, delivery_failed, at: Option<i64>| {
        let entry = |at| ("x-opt-delivery-time".into(), message::Value::I64(at));
        let table = message::Table(at.map(entry).into_iter().collect());
        RequestBody::Modify {
            consumer: CONSUMER,
            ids: vec![(id, id)],
            modification: Box::new(Modification {
                delivery_failed,
                undeliverable_here: false,
                annotations: Annotations::new(table).unwrap(),
            }),
        }
    };
    log.request(one, [modify(1, true, None)]);
    log.settle(one, SettlementOutcome::Released, 2);
    log.request(one, [RequestBody::Cancel { consumer: CONSUMER }]);
    log.settle(one, SettlementOutcome::Requeue, 3);
    log.request(one, [modify(4, false, Some(1_790_000_500_000))]);
    log.publish(1, None, None);
    log.machine
}

/// A queue with a ready message and two scheduled ones, one of them with a TTL.
fn scheduling_queue() -> Machine {
    let mut log = Log::new(unlimited());
    let configure = Command::Configure(Configuration {
        features: SCHEDULING,
        settings: unlimited(),
    });
    log.apply(&configure.encode());
    let scheduled = [None, Some(60_000)].map(|ttl_ms| {
        let scheduled = crate::schedule(&message(None, ttl_ms), 5000);
        RequestBody::Publish(scheduled.expect("a small message"))
    });
    log.request(session(), scheduled);
    log.publish(1, None, None);
    log.machine
}

fn deduplicating(settings: QueueSettings) -> QueueSettings {
    QueueSettings {
        quorum: QuorumSettings {
            deduplication_window_ms: Some(600_000),
            delayed_retry: None,
        },
        ..settings
    }
}

/// A queue that remembers two publishers and two values.
fn deduplicating_queue() -> Machine {
    let mut log = Log::new(unlimited());
    let configure = Command::Configure(Configuration {
        features: DEDUPLICATING,
        settings: deduplicating(unlimited()),
    });
    log.apply(&configure.encode());
    let ids = [
        DeduplicationId::numbered("orders", 300),
        DeduplicationId::numbered("invoices", 2),
        DeduplicationId::numbered("orders", 300),
        DeduplicationId::value("a"),
        DeduplicationId::value("b"),
        DeduplicationId::value("a"),
    ];
    let publishes = ids.map(|id| {
        let identified = crate::deduplicate(&message(None, None), &id);
        RequestBody::Publish(identified.expect("a small message"))
    });
    log.request(session(), publishes);
    log.machine
}

/// A queue with groups: unsettled, requeued, delayed and new messages, one without a group, and previous owners of groups
/// with and without messages.
fn grouping_queue() -> Machine {
    let mut log = Log::new(unlimited());
    let configure = Command::Configure(Configuration {
        features: GROUPING,
        settings: unlimited(),
    });
    log.apply(&configure.encode());
    let grouped = |group: &str, priority, ttl_ms| {
        let plain = message(priority, ttl_ms);
        crate::assign_group(&plain, GroupId::of(group)).expect("a small message")
    };
    let publish = |message| RequestBody::Publish(message);
    log.request(
        session(),
        [
            publish(grouped("a", None, None)),
            publish(grouped("b", None, None)),
            publish(grouped("c", None, None)),
            publish(grouped("a", None, Some(60_000))),
            publish(message(None, None)),
        ],
    );
    let one = consumer_session(1);
    let consume = RequestBody::Consume {
        consumer: CONSUMER,
        spec: crate::ConsumerSpec {
            exclusive: false,
            prefetch: 4,
            ..spec(FlowMode::Prefetch)
        },
    };
    log.request(one, [consume]);
    log.settle(one, SettlementOutcome::Accepted, 3);
    let later = crate::schedule(&grouped("d", None, None), 5000).expect("a small message");
    log.request(
        session(),
        [publish(later), publish(grouped("b", None, None))],
    );
    let at = message::Table(vec![(
        "x-opt-delivery-time".into(),
        message::Value::I64(1_790_000_500_000),
    )]);
    let delay = RequestBody::Modify {
        consumer: CONSUMER,
        ids: vec![(2, 2)],
        modification: Box::new(Modification {
            delivery_failed: true,
            undeliverable_here: false,
            annotations: Annotations::new(at).unwrap(),
        }),
    };
    log.request(one, [delay, RequestBody::Cancel { consumer: CONSUMER }]);
    log.settle(one, SettlementOutcome::Requeue, 4);
    log.request(
        session(),
        [
            publish(grouped("a", Some(9), None)),
            publish(grouped("e", None, None)),
            publish(message(None, None)),
        ],
    );
    log.machine
}

/// A queue whose messages expire on time, with three that expire before others ahead of them. One is requeued.
fn exact_queue() -> Machine {
    let mut log = Log::new(unlimited());
    let configure = Command::Configure(Configuration {
        features: EXACT,
        settings: unlimited(),
    });
    log.apply(&configure.encode());
    log.publish(2, None, None);
    log.publish(1, None, Some(60_000));
    log.publish(1, Some(9), Some(70_000));
    log.publish(1, Some(9), Some(50_000));
    log.publish(1, None, Some(40_000));
    let one = consumer_session(1);
    let consume = RequestBody::Consume {
        consumer: CONSUMER,
        spec: crate::ConsumerSpec {
            exclusive: false,
            prefetch: 1,
            ..spec(FlowMode::Prefetch)
        },
    };
    log.request(one, [consume, RequestBody::Cancel { consumer: CONSUMER }]);
    log.settle(one, SettlementOutcome::Released, 1);
    log.machine
}

#[test]
fn checkpoints_of_version_0_2_are_decoded() {
    let exact = exact_queue();
    assert_eq!((exact.stats().ready, exact.ready.early_len()), (6, 3));
    assert_eq!(exact.ready.returned().count(), 1);

    let grouping = grouping_queue();
    let stats = grouping.stats();
    assert_eq!(
        (stats.ready, stats.unacknowledged, stats.delayed),
        (5, 2, 2)
    );
    let groups = grouping.ready.groups().expect("the queue has groups");
    let owned = |previous: PreviousOwner| (previous.group, previous.consumer);
    let previous: Vec<_> = groups.previous_owners().map(owned).collect();
    assert_eq!(previous, [(GroupId::of("b"), 1)]);
    let idle: Vec<_> = groups.idle_owners().map(owned).collect();
    assert_eq!(idle, [(GroupId::of("c"), 1)]);
    assert_eq!(groups.requeued(), 1);

    let deduplicating = deduplicating_queue();
    let publishers = deduplicating
        .deduplicator
        .publishers()
        .map(|(_, last)| last);
    assert_eq!(publishers.collect::<Vec<_>>(), [2, 300]);
    let values = deduplicating.deduplicator.values().len();
    assert_eq!((values, deduplicating.stats().ready), (2, 4));

    let scheduling = scheduling_queue();
    let stats = scheduling.stats();
    assert_eq!((stats.delayed, stats.ready), (2, 1));

    let delaying = delaying_queue();
    let stats = delaying.stats();
    assert_eq!(
        (stats.delayed, stats.ready, stats.unacknowledged),
        (4, 1, 0)
    );

    let counting = counting_queue();
    let waiting = counting.ready.returned();
    let postponed = counting.ready.postponed().map(|(_, requeued)| requeued);
    let counts = |r: super::ready::RequeuedMessage| (r.counts.failed, r.counts.acquired());
    let counts: Vec<_> = waiting.chain(postponed).map(counts).collect();
    assert_eq!(counts, [(0, 1), (0, 1), (1, 1), (1, 1)]);
    let unsettled = counting.checkout.consumers.values();
    let unsettled: Vec<_> = unsettled
        .flat_map(|c| c.out.values().map(|o| o.counts.acquired()))
        .collect();
    assert_eq!(unsettled, [1]);
    let busy = busy_queue();
    // The sample has what it is meant to have.
    let stats = busy.stats();
    assert!(
        stats.ready > 0 && stats.unacknowledged > 0 && stats.dead > 0,
        "{stats:?}"
    );
    assert!(busy.checkout.epoch.is_none() && !busy.checkout.suspended.is_empty());
    assert!(busy.annotations.len() == 1 && busy.ready.returned().count() > 0);
    assert!(
        busy.checkout
            .sessions
            .values()
            .any(|s| !s.refused.is_empty())
    );
    assert!(
        busy.checkout
            .sessions
            .values()
            .any(|s| !s.answers.is_empty())
    );
    assert_eq!(
        (busy.checkout.closed.len(), busy.checkout.gone.len()),
        (1, 1)
    );
    let session_queue = session_queue();
    assert!(session_queue.checkout.epoch.is_some());
    assert!(session_queue.ready.postponed().count() > 0);
    let strict = strict_queue();
    let details = strict.ready_details().expect("strict priorities");
    assert_eq!(
        details.by_priority,
        [(0, 2), (4, 6), (9, 2), (31, 2)],
        "the requeued message is in the default level"
    );
    assert_eq!((details.returned, strict.stats().unacknowledged), (1, 1));
    assert_eq!(
        (strict.dead.len(), strict.ready.postponed().count()),
        (1, 1)
    );
    let filtering = filtering_queue();
    let (stats, drains) = (filtering.stats(), filtering.checkout.drains.len());
    assert_eq!((stats.ready, stats.unacknowledged, drains), (2, 1, 1));
    let reasons: Vec<DeadReason> = busy.dead.kept().map(|(_, _, reason)| reason).collect();
    assert_eq!(reasons, [DeadReason::Rejected]);
    golden::verify(CRATE, "0.2/quorum-checkpoint", |files| {
        let encode = |state: &State| state.0.snapshot().to_vec();
        let decode = |raw: &[u8]| {
            let label = "queue 'q' in vhost '/'".into();
            Machine::restore(label, Bytes::copy_from_slice(raw)).map(State)
        };
        let empty = Machine::new("queue 'q' in vhost '/'".into(), unlimited());
        files.check("empty", &State(empty), encode, decode);
        files.check("busy", &State(busy), encode, decode);
        files.check("session-queue", &State(session_queue), encode, decode);
        files.check("strict-priorities", &State(strict), encode, decode);
        files.check("delivery-counts", &State(counting), encode, decode);
        files.check("delayed-retry", &State(delaying), encode, decode);
        files.check("scheduled-delivery", &State(scheduling), encode, decode);
        files.check("deduplication", &State(deduplicating), encode, decode);
        files.check("message-groups", &State(grouping), encode, decode);
        files.check("exact-expiry", &State(exact), encode, decode);
        files.check("consumer-filters", &State(filtering), encode, decode);
    });
}

/// The decoder compares the number of items in a list with the bytes that follow. Many of the shortest items, with nothing
/// behind them, fail if it expects more bytes of an item than that has.
#[test]
fn a_checkpoint_of_the_shortest_items_is_decoded() {
    const ITEMS: u64 = 100;
    let sessions = || {
        (0..ITEMS).map(|number| SessionId {
            number,
            ..session()
        })
    };
    let shortest = LogMessage {
        index: 0,
        offset: 0,
        body: 0,
        level: DEFAULT_LEVEL,
        group: None,
        expires: 0,
    };
    let at = |index| LogLocation { index, offset: 0 };
    let spec = crate::ConsumerSpec {
        tag: "".into(),
        arguments: Default::default(),
        ..spec(FlowMode::Prefetch)
    };
    type Fill<'a> = &'a dyn Fn(&mut Machine);
    let numbered = |m: &mut Machine, fill: &dyn Fn(&mut Deduplicator, Name)| {
        m.enable_features(DEDUPLICATING);
        (0..ITEMS).for_each(|n| fill(&mut m.deduplicator, n.to_string().as_str().into()));
    };
    let group = |n: u64| GroupId::from_number(u32::try_from(n + 1).unwrap()).unwrap();
    let grouped = |index| LogMessage {
        index,
        group: Some(group(index)),
        ..shortest
    };
    let lists: [(&str, Fill<'_>); 22] = [
        ("requeued messages of groups", &|m| {
            m.enable_features(GROUPS_ONLY);
            let counts = DeliveryCounts::default();
            (0..ITEMS).for_each(|index| m.ready.give_back(grouped(index), counts))
        }),
        ("new messages of groups", &|m| {
            m.enable_features(GROUPS_ONLY);
            (0..ITEMS).for_each(|index| m.ready.push(&grouped(index)))
        }),
        ("previous owners of groups", &|m| {
            m.enable_features(GROUPS_ONLY);
            for index in 0..ITEMS {
                m.ready.push(&grouped(index));
                m.ready.own(Some(group(index)), 1);
                m.ready.settle(Some(group(index)));
            }
        }),
        ("previous owners of groups without messages", &|m| {
            m.enable_features(GROUPS_ONLY);
            for index in 0..ITEMS {
                m.ready.own(Some(group(index)), 1);
                m.ready.settle(Some(group(index)));
            }
        }),
        ("publishers", &|m| {
            numbered(m, &|all, name| all.restore_publisher(name, 0))
        }),
        ("values", &|m| {
            numbered(m, &|all, value| all.restore_value(value, 0))
        }),
        ("fresh messages", &|m| {
            (0..ITEMS).for_each(|index| m.ready.push(&LogMessage { index, ..shortest }))
        }),
        ("fresh messages of one level", &|m| {
            m.enable_features(STRICT);
            (0..ITEMS).for_each(|index| m.ready.push(&LogMessage { index, ..shortest }))
        }),
        ("fresh messages of all levels", &|m| {
            m.enable_features(STRICT);
            (0..32).for_each(|level| m.ready.push(&LogMessage { level, ..shortest }))
        }),
        ("requeued messages", &|m| {
            (0..ITEMS).for_each(|_| m.ready.give_back(shortest, DeliveryCounts::default()))
        }),
        ("postponed messages", &|m| {
            (0..ITEMS).for_each(|_| m.ready.postpone(shortest, DeliveryCounts::default(), at(0)))
        }),
        ("delayed messages", &|m| {
            m.enable_features(QuorumFeatures {
                delayed_retry: true,
                ..QuorumFeatures::default()
            });
            let counts = DeliveryCounts::new(0, 1);
            let requeued = RequeuedMessage {
                held: shortest,
                counts,
            };
            (0..ITEMS).for_each(|_| m.delayed.push(&DelayedMessage { due: 0, requeued }))
        }),
        ("sessions", &|m| {
            m.checkout
                .sessions
                .extend(sessions().map(|s| (s, Default::default())))
        }),
        ("answers", &|m| {
            let answers = (0..ITEMS).map(|seq| (seq, QueueReply::Empty)).collect();
            m.checkout.sessions.insert(
                session(),
                Box::new(SessionRecord {
                    answers,
                    ..Default::default()
                }),
            );
        }),
        ("consumers", &|m| {
            let consumer = || Consumer::new(session(), ConsumerId(0), spec.clone(), false);
            m.checkout
                .consumers
                .extend((0..ITEMS).map(|number| (number, Box::new(consumer()))));
        }),
        ("unsettled messages", &|m| {
            let mut consumer = Consumer::new(session(), ConsumerId(0), spec.clone(), false);
            consumer.next_id = ITEMS;
            for id in 0..ITEMS {
                let unsettled = UnsettledMessage {
                    item: shortest,
                    counts: DeliveryCounts::default(),
                    left: 0,
                };
                assert!(consumer.out.push(id, unsettled));
            }
            m.checkout.consumers.insert(1, Box::new(consumer));
        }),
        ("closed sessions", &|m| {
            m.checkout.closed.extend(sessions().map(|s| (0, s)))
        }),
        ("gone nodes", &|m| {
            m.checkout
                .gone
                .extend((0..ITEMS).map(|n| (NodeId(n), Incarnation(0))))
        }),
        ("suspended nodes", &|m| {
            m.checkout.suspended.extend((0..ITEMS).map(NodeId))
        }),
        ("drains", &|m| {
            let drain = |seq| PendingDrain {
                session: session(),
                seq,
            };
            m.checkout
                .drains
                .extend((0..ITEMS).map(|number| (number, drain(number))));
        }),
        ("annotations", &|m| {
            let none = Arc::new(Annotations::new(Default::default()).unwrap());
            (0..ITEMS).for_each(|index| m.annotations.add(at(index), &none));
        }),
        ("dead letters", &|m| {
            (0..ITEMS).for_each(|id| m.dead.keep(id, shortest, DeadReason::Expired))
        }),
    ];
    for (list, fill) in lists {
        let mut machine = Machine::new("queue 'q' in vhost '/'".into(), unlimited());
        let empty = machine.snapshot().len();
        fill(&mut machine);
        let state = machine.snapshot();
        assert!(state.len() > empty, "{list} are not in the checkpoint");
        match Machine::restore("queue 'q' in vhost '/'".into(), state.clone()) {
            Ok(restored) => assert_eq!(restored.snapshot(), state, "{list}"),
            Err(error) => panic!("{list}: {error}"),
        }
    }
}
