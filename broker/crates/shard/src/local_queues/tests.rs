use super::*;
use consensus::{HostConfig, HostLimits};
use env::sim::SimDisk;
use message::Table;
use metadata::QueueType;
use queue::quorum::Command;
use queue::{Request, RequestBody};
use std::time::Duration;

fn settings() -> EffectiveSettings {
    EffectiveSettings {
        queue: FIRST_SETTINGS,
        features: Default::default(),
        dead_letter_exchange: None,
        dead_letter_routing_key: None,
        expires_ms: None,
        consumer_timeout_ms: None,
        times_out_consumers: false,
        stream: metadata::StreamSettings::default(),
    }
}

fn local_queues() -> LocalQueues {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let config = HostConfig {
        node: NodeId(1),
        incarnation: Incarnation(1),
        shards: 1,
        shard: 0,
        seed: 1,
        limits: HostLimits::default(),
    };
    let host = Host::new(config, Arc::clone(&disk), BTreeMap::new()).expect("an empty disk");
    LocalQueues::new(NodeId(1), Incarnation(1), host, disk)
}

fn record(kind: QueueType) -> QueueRecord {
    QueueRecord {
        id: QueueId(7),
        vhost: "/".into(),
        name: "q".into(),
        kind,
        durable: true,
        auto_delete: false,
        exclusive: None,
        arguments: Table::default(),
        members: vec![NodeId(1)],
        declared_by: "guest".into(),
    }
}

fn committed(index: u64) -> HostOutput {
    HostOutput::Committed {
        group: GroupId(7),
        entries: vec![CommittedEntry {
            index,
            term: 1,
            command: Bytes::new(),
        }],
    }
}

/// At a start a queue's log may be read before the metadata log tells of the queue; the turn that tells of it may bring
/// newer entries of the queue too.
#[test]
fn what_was_held_for_a_queue_is_applied_before_what_is_newer() {
    let mut local_queues = local_queues();
    let record = record(QueueType::Quorum);
    for index in [1, 2] {
        local_queues.queue_out.push(committed(index));
    }
    local_queues.turn(&mut Vec::new());
    assert!(local_queues.recovering());
    local_queues.queue_out.push(committed(3));
    local_queues.open(&record, &settings(), false);
    let order: Vec<u64> = local_queues
        .queue_out
        .iter()
        .filter_map(|output| match output {
            HostOutput::Committed { entries, .. } => entries.first().map(|e| e.index),
            _ => None,
        })
        .collect();
    assert_eq!(order, [1, 2, 3]);
    assert!(!local_queues.recovering());
}

#[test]
fn a_queue_that_took_its_deletion_is_over_until_it_is_removed() {
    let mut local_queues = local_queues();
    let record = record(QueueType::Classic);
    local_queues.open(&record, &settings(), true);
    local_queues.turn(&mut Vec::new());
    assert_eq!(local_queues.over(), []);
    let session = SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number: 1,
    };
    let body = RequestBody::Delete {
        if_unused: false,
        if_empty: false,
    };
    let request = Request {
        session,
        seq: 1,
        body,
    };
    local_queues.step(record.id, QueueMessage::Request(request));
    local_queues.turn(&mut Vec::new());
    assert_eq!(local_queues.over(), [record.id]);
    local_queues.remove(record.id);
    assert_eq!(local_queues.over(), []);
}

/// A node that starts reads the queue's declaration again, and not yet its deletion, which its log of the queue has.
#[test]
fn a_queue_that_was_deleted_is_not_founded_once_more() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new());
    let config = HostConfig {
        node: NodeId(1),
        incarnation: Incarnation(2),
        shards: 1,
        shard: 0,
        seed: 1,
        limits: HostLimits::default(),
    };
    let record = record(QueueType::Quorum);
    let deleted = wal::RecoveredGroup {
        deleted: true,
        ..wal::RecoveredGroup::default()
    };
    let recovered = BTreeMap::from([(GroupId(record.id.0), deleted)]);
    let host = Host::new(config, Arc::clone(&disk), recovered).expect("a good log");
    let mut local_queues = LocalQueues::new(NodeId(1), Incarnation(2), host, disk);
    local_queues.open(&record, &settings(), true);
    assert!(!local_queues.has(record.id) && !local_queues.has_replica(record.id));
    // Another queue is.
    let other = QueueRecord {
        id: QueueId(8),
        ..record
    };
    local_queues.open(&other, &settings(), true);
    assert!(local_queues.has_replica(other.id));
}

/// The session of a client that looks in for a moment lives for its whole time after that [MQTT-3.1.2-23]: both requests may wait for
/// a leader, and come together.
#[test]
fn a_consumer_that_comes_and_goes_within_a_turn_renews_the_lease() {
    let mut local_queues = local_queues();
    let leased = record(QueueType::Classic);
    let at = |ms| Timestamps {
        now: Time::ZERO + Duration::from_millis(ms),
        wall: env::WallTime(1),
    };
    local_queues.set_time(at(0));
    local_queues.open(&leased, &settings(), true);
    local_queues.set_expires(leased.id, Some(100));
    local_queues.turn(&mut Vec::new());
    local_queues.set_time(at(60));
    let consumer = queue::ConsumerId(1);
    let spec = queue::ConsumerSpec {
        tag: "c".into(),
        channel: 0,
        flow_mode: queue::FlowMode::Prefetch,
        prefetch: 1,
        no_ack: false,
        exclusive: false,
        priority: 0,
        arguments: Table::default(),
        filter: None,
    };
    let session = SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number: 1,
    };
    let bodies = [
        RequestBody::Consume { consumer, spec },
        RequestBody::CancelAndRequeue { consumer },
    ];
    for (seq, body) in (1..).zip(bodies) {
        local_queues.step(
            leased.id,
            QueueMessage::Request(Request { session, seq, body }),
        );
    }
    local_queues.turn(&mut Vec::new());
    for (ms, ended) in [(159, vec![]), (160, vec![leased.id])] {
        local_queues.set_time(at(ms));
        local_queues.tick();
        assert_eq!(local_queues.take_unused(), ended, "after {ms} ms");
    }
}

#[test]
fn the_totals_are_those_of_the_queues() {
    let mut local_queues = local_queues();
    let classic = record(QueueType::Classic);
    local_queues.open(&classic, &settings(), true);
    let quorum = QueueRecord {
        id: QueueId(8),
        ..record(QueueType::Quorum)
    };
    local_queues.open(&quorum, &settings(), true);
    let session = SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number: 1,
    };
    let builder = message::MessageBuilder {
        protocol: message::Protocol::Amqp091,
        durable: false,
        priority: None,
        ttl_ms: None,
        received: env::WallTime(1),
        exchange: "",
        routing_keys: &["q"],
        properties: &[],
    };
    let message = builder.build(1, [&b"x"[..]]).expect("a message");
    for seq in 1..=3 {
        let body = RequestBody::Publish(message.clone());
        local_queues.step(
            classic.id,
            QueueMessage::Request(Request { session, seq, body }),
        );
        local_queues.turn(&mut Vec::new());
        assert_eq!(local_queues.totals(), local_queues.recount());
    }
    assert_eq!(
        (local_queues.totals().queues, local_queues.totals().ready),
        (1, 3)
    );
    local_queues.remove(classic.id);
    assert_eq!(local_queues.totals(), QueueTotals::default());
    assert_eq!(local_queues.totals(), local_queues.recount());
}

/// What a newer program wrote ends the node, as an entry of the metadata log does. The queue's other members are served by newer programs.
#[test]
fn a_command_that_is_not_understood_is_told_and_nothing_behind_it_is_applied() {
    let mut local_queues = local_queues();
    let record = record(QueueType::Quorum);
    local_queues.open(&record, &settings(), true);
    let time = Command::Time(env::WallTime(1)).encode();
    let newer = [&[time[0] + 1], &time[1..]].concat().into();
    let entries = [time.clone(), newer, time].into_iter().zip(1..);
    local_queues.queue_out.push(HostOutput::Committed {
        group: GroupId(7),
        entries: entries
            .map(|(command, index)| CommittedEntry {
                index,
                term: 1,
                command,
            })
            .collect(),
    });
    let mut told = Vec::new();
    local_queues.turn(&mut told);
    let told = told.iter().filter_map(|item| match item {
        GroupOutput::Unreadable { queue, unreadable } => Some((*queue, unreadable.to_string())),
        _ => None,
    });
    let text = "entry 2 of its log cannot be read: quorum queue command has version 2, which this version of Posthorn cannot read";
    assert_eq!(told.collect::<Vec<_>>(), [(record.id, text.to_owned())]);
    let applied: Vec<u64> = local_queues
        .digests()
        .into_iter()
        .map(|(_, index, _)| index)
        .collect();
    assert_eq!(applied, [1]);
}
