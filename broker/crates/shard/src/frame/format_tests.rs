//! Frames between shards, and log entries and snapshots of the metadata group, as version 0.2 wrote them.

use super::*;
use crate::limit_usage::{LimitSubject, OpenCounts};
use crate::members::frame::{
    GroupVoters, LogPosition, LostNodes, MembershipMessage, PositionReport, ReplicaReport,
};
use crate::metadata_client::{self, MetadataClient};
use consensus::Departure;
use control::ReplicaStatus;
use env::Time;
use queue::ConsumerId;
use queue::cursor::{CursorEvent, CursorRequest};
use queue::{DeliveryCounters, Losses, Request, RequestBody};
use stream::PeerMessage;
use stream_replication::{Attachment, MemberMessage};
use wire::DecodeError;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
const QUEUE: QueueId = QueueId(70_000);

golden::variant_names! {
    fn frame_name(Frame) {
        Frame::Raft(_) => "raft",
        Frame::ToQueue { .. } => "to-queue",
        Frame::Events { .. } => "events",
        Frame::Propose { .. } => "propose",
        Frame::Applied { .. } => "applied",
        Frame::Restored { .. } => "restored",
        Frame::ChangeRequest { .. } => "change-request",
        Frame::ChangeRefused { .. } => "change-refused",
        Frame::StatsRequest { .. } => "stats-request",
        Frame::StatsReply { .. } => "stats-reply",
        Frame::Alarm { .. } => "alarm",
        Frame::Join { .. } => "join",
        Frame::CaughtUp => "caught-up",
        Frame::ControlQuestion { .. } => "ask",
        Frame::ControlAnswer { .. } => "told",
        Frame::Members(MembershipMessage::Lead { .. }) => "members-lead",
        Frame::Members(MembershipMessage::ReplicaRequest { .. }) => "members-replica-request",
        Frame::Members(MembershipMessage::Replica { .. }) => "members-replica",
        Frame::Members(MembershipMessage::DepartureRequest { .. }) => "members-departure-request",
        Frame::Members(MembershipMessage::Depart { .. }) => "members-depart",
        Frame::Members(MembershipMessage::Removed) => "members-removed",
        Frame::Members(MembershipMessage::Release { .. }) => "members-release",
        Frame::Members(MembershipMessage::Drain { .. }) => "members-drain",
        Frame::Members(MembershipMessage::PositionRequest { .. }) => "members-position-request",
        Frame::Members(MembershipMessage::Position { .. }) => "members-position",
        Frame::Members(MembershipMessage::RecoverMajority { .. }) => "members-recover-majority",
        Frame::Members(MembershipMessage::MajorityRecovery { .. }) => "members-majority-recovery",
        Frame::Service(_) => "service",
        Frame::LimitUsage(_) => "uses",
        Frame::PublisherActivity(_) => "publisher-activity",
        Frame::StoredBytes(_) => "stored-bytes",
        Frame::Replica { .. } => "replica",
        Frame::CursorRequests { .. } => "cursor-requests",
        Frame::CursorEvents { .. } => "cursor-events",
        Frame::StreamLeaders { .. } => "stream-leaders",
        Frame::ReadyDetails { .. } => "ready-details",
        Frame::DelayedDetails { .. } => "delayed-details",
        Frame::HeadMessages { .. } => "head-messages",
    }
    fn alarm_name(AlarmReason) {
        AlarmReason::Memory => "memory",
        AlarmReason::Disk => "disk",
    }
    fn subject_name(LimitSubject) {
        LimitSubject::User(_) => "user",
        LimitSubject::Vhost(_) => "vhost",
    }
}

fn session() -> SessionId {
    SessionId {
        node: NodeId(u64::MAX),
        incarnation: Incarnation(2),
        number: 300,
    }
}

fn origin() -> Origin {
    Origin {
        node: NodeId(9),
        incarnation: Incarnation(2),
        number: 1,
    }
}

fn change() -> Change {
    Change::DeleteUser {
        name: "guest é".into(),
    }
}

fn owner_stats() -> OwnerStats {
    OwnerStats {
        queue: QUEUE,
        members: vec![NodeId(1), NodeId(2)],
        online: vec![NodeId(2)],
        stats: QueueStats {
            ready: 3,
            unacknowledged: 2,
            consumers: 1,
            bytes: 500,
            unacknowledged_bytes: 200,
            dead: 4,
            dead_bytes: 9,
            lost: Losses {
                messages: 5,
                segments: 6,
            },
            ..QueueStats::default()
        },
        counters: QueueCounters {
            publish: 1,
            deliveries: DeliveryCounters {
                deliver: 2,
                deliver_no_ack: 3,
                get: 4,
                get_no_ack: 5,
                get_empty: 6,
                redeliver: 7,
                ack: 8,
            },
        },
    }
}

fn membership_messages() -> Vec<MembershipMessage> {
    let mut votes = GroupVoters::default();
    votes.add(NodeId(1), true);
    votes.add(NodeId(2), false);
    let replica = ReplicaStatus {
        is_leader: true,
        is_candidate: false,
        term: 3,
        last_index: 9,
        written: 8,
        applied: 6,
        commit: 7,
        checkpoint: u64::MAX,
    };
    let report = ReplicaReport {
        replica: Some(replica),
        votes,
    };
    let departure = Departure { term: 1, commit: 2 };
    vec![
        MembershipMessage::Lead {
            queue: QUEUE,
            to: NodeId(2),
        },
        MembershipMessage::ReplicaRequest {
            token: 4,
            reply_shard: 2,
            queue: QUEUE,
        },
        MembershipMessage::Replica {
            token: 4,
            told: report.clone(),
        },
        MembershipMessage::Replica {
            token: 4,
            told: ReplicaReport::default(),
        },
        MembershipMessage::DepartureRequest { queue: QUEUE },
        MembershipMessage::Depart {
            queue: QUEUE,
            told: departure,
        },
        MembershipMessage::Removed,
        MembershipMessage::Release { node: NodeId(7) },
        MembershipMessage::Drain { on: true },
        MembershipMessage::PositionRequest {
            token: 4,
            reply_shard: 2,
            group: 0,
            lost: LostNodes(vec![NodeId(2), NodeId(3)]),
        },
        MembershipMessage::Position {
            token: 4,
            told: PositionReport {
                position: Some(LogPosition {
                    last_term: 3,
                    last_index: 300,
                    applied: 299,
                    leader: Some(NodeId(2)),
                    votes: report.votes,
                }),
                connected: LostNodes(vec![NodeId(3)]),
            },
        },
        MembershipMessage::RecoverMajority {
            token: 4,
            reply_shard: 2,
            group: QUEUE.0,
            lost: LostNodes(vec![NodeId(2)]),
        },
        MembershipMessage::MajorityRecovery {
            token: 4,
            refused: Some("it leads".into()),
        },
    ]
}

fn metadata_frames() -> Vec<Frame> {
    let applied = |done_for| Frame::Applied {
        index: 300,
        change: change(),
        done_for,
    };
    vec![
        Frame::Propose {
            origin: origin(),
            change: change(),
        },
        applied(None),
        applied(Some((1, 70_000))),
        Frame::Restored {
            index: 300,
            tree: Bytes::from_static(b"tree"),
        },
        Frame::ChangeRequest {
            shard: 1,
            token: 70_000,
            change: change(),
        },
        Frame::ChangeRefused {
            token: 70_000,
            why: "cause é".into(),
        },
        Frame::Join {
            node: NodeRecord {
                id: NodeId(2),
                name: "broker-1".into(),
                address: "broker-1.local:25672".into(),
                voter: true,
                maintenance: false,
            },
        },
        Frame::CaughtUp,
    ]
}

fn other_frames() -> Vec<Frame> {
    let request = QueueMessage::Request(Request {
        session: session(),
        seq: 300,
        body: RequestBody::Stat,
    });
    let open = |connections, channels| OpenCounts {
        connections,
        channels,
    };
    let limit_usage = vec![
        (LimitSubject::User("user é".into()), open(1, u64::MAX)),
        (LimitSubject::Vhost("/".into()), open(0, 2)),
    ];
    golden::assert_covers(limit_usage.iter().map(|(subject, _)| subject), subject_name);
    let stats_request = |only, counting| Frame::StatsRequest {
        token: 7,
        reply_shard: 1,
        only,
        counting,
    };
    vec![
        Frame::Raft(Bytes::from_static(b"frame")),
        Frame::ToQueue {
            queue: QUEUE,
            messages: vec![request.clone(), request],
        },
        Frame::Events {
            session: session(),
            queue: QUEUE,
            events: vec![QueueEvent::Owner, QueueEvent::Applied { up_to: 300 }],
        },
        stats_request(None, None),
        stats_request(Some(QUEUE), Some(NodeId(2))),
        Frame::StatsReply {
            token: 7,
            last: true,
            stats: vec![owner_stats()],
            counting: vec![QUEUE],
        },
        Frame::ReadyDetails {
            token: 7,
            ready: vec![(
                QUEUE,
                queue::ReadyDetails {
                    by_priority: vec![(4, 70_000), (31, 1)],
                    returned: 3,
                },
            )],
        },
        Frame::DelayedDetails {
            token: 7,
            delayed: vec![(
                QUEUE,
                queue::DelayedDetails {
                    messages: 3,
                    bytes: 70_000,
                    next_at: 1_790_000_000_123,
                    last_at: 1_790_000_060_000,
                },
            )],
        },
        Frame::HeadMessages {
            token: 7,
            heads: vec![
                (
                    QUEUE,
                    queue::HeadMessage {
                        received: 1_790_000_000_123,
                        timestamp: Some(1_780_000_000),
                    },
                ),
                (
                    QueueId(3),
                    queue::HeadMessage {
                        received: 1,
                        timestamp: None,
                    },
                ),
            ],
        },
        Frame::ControlQuestion {
            token: 7,
            reply_shard: 1,
            question: Bytes::from_static(b"question"),
        },
        Frame::ControlAnswer {
            token: 7,
            last: false,
            facts: Bytes::from_static(b"facts"),
        },
        Frame::Service(ServiceFrame {
            service: ServiceId(1),
            from: (Incarnation(3), 1),
            to: Incarnation(4),
            body: Bytes::from_static(b"body"),
        }),
        Frame::LimitUsage(LimitUsageFrame {
            shard: 1,
            limit_usage,
        }),
        Frame::PublisherActivity(PublisherActivityFrame {
            shard: 300,
            subjects: vec![
                (LimitSubject::User("user é".into()), true),
                (LimitSubject::Vhost("/".into()), false),
            ],
        }),
        Frame::StoredBytes(StoredBytesFrame {
            shard: 300,
            vhosts: vec![("vhost é".into(), 70_000), ("/".into(), 0)],
        }),
    ]
}

/// Frames about streams.
fn stream_frames() -> Vec<Frame> {
    let request = CursorRequest::Detach {
        cursor: ConsumerId(9),
    };
    let event = CursorEvent::Attached {
        cursor: ConsumerId(9),
        attachment: 2,
        next: 70_000,
    };
    let message = PeerMessage {
        message: MemberMessage::Chunks {
            epoch: 7,
            attachment: Attachment {
                incarnation: 5,
                number: 2,
            },
            first: 70_000,
            committed: 69_000,
        },
        chunks: vec![Bytes::from_static(b"chunk")],
    };
    vec![
        Frame::Replica {
            queue: QUEUE,
            message,
        },
        Frame::CursorRequests {
            session: session(),
            queue: QUEUE,
            requests: vec![request.clone(), request],
        },
        Frame::CursorEvents {
            session: session(),
            queue: QUEUE,
            events: vec![event.clone(), event],
        },
        Frame::StreamLeaders {
            streams: vec![(QUEUE, 7), (QueueId(1), 300)],
        },
    ]
}

#[test]
fn frames_of_version_0_2_are_decoded() {
    let reasons = [AlarmReason::Memory, AlarmReason::Disk];
    golden::assert_covers(&reasons, alarm_name);
    let alarms = reasons.into_iter().map(|reason| Frame::Alarm {
        reason,
        on: reason == AlarmReason::Disk,
    });
    let members = membership_messages().into_iter().map(Frame::Members);
    let all: Vec<Frame> = other_frames()
        .into_iter()
        .chain(metadata_frames())
        .chain(alarms)
        .chain(members)
        .chain(stream_frames())
        .collect();
    golden::verify(CRATE, "0.2/frames", |files| {
        let encode = |frame: &Frame| frame.encode().to_vec();
        let decode = |raw: &[u8]| Frame::decode(Bytes::copy_from_slice(raw));
        files.check_enum(&all, frame_name, encode, decode);
    });
}

#[derive(Debug)]
struct Command {
    origin: Origin,
    change: Change,
}

#[test]
fn metadata_commands_of_version_0_2_are_decoded() {
    let command = Command {
        origin: origin(),
        change: change(),
    };
    golden::verify(CRATE, "0.2/metadata-command", |files| {
        let encode = |c: &Command| metadata_client::command(c.origin, &c.change).to_vec();
        let decode = |raw: &[u8]| -> Result<Command, DecodeError> {
            let raw = Bytes::copy_from_slice(raw);
            let (origin, change) = metadata_client::decode_command(&raw)?;
            Ok(Command { origin, change })
        };
        files.check("command", &command, encode, decode);
    });
}

#[test]
fn metadata_snapshots_of_version_0_2_are_decoded() {
    let client = || MetadataClient::new(NodeId(1), Incarnation(1));
    let command = metadata_client::command(origin(), &change());
    let mut writer = client();
    let committed = writer.committed(Time::ZERO, command.clone());
    assert!(committed.expect("a known command").is_some());
    golden::verify(CRATE, "0.2/metadata-snapshot", |files| {
        let written = writer.snapshot(b"tree");
        let Some(stored) = files.check_bytes("snapshot", &written) else {
            return;
        };
        let mut reader = client();
        let (tree, unanswered) = reader.restore(Bytes::from(stored)).expect("a snapshot");
        assert_eq!((&*tree, unanswered.len()), (&b"tree"[..], 0));
        assert_eq!(reader.snapshot(&tree), written);
        // The numbering was restored: the same change is not applied again.
        let again = reader.committed(Time::ZERO, command);
        assert!(again.expect("a known command").is_none());
    });
}
