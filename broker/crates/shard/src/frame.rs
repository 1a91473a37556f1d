//! Frames between shards, on one node and between nodes. A frame has one message. The last field of a frame may have no
//! length: it ends with the frame.

use crate::limit_usage::frame::{LimitUsageFrame, PublisherActivityFrame};
use crate::members::frame::MembershipMessage;
use crate::stored_bytes::frame::StoredBytesFrame;
use bytes::{BufMut, Bytes, BytesMut};
use env::{Incarnation, NodeId};
use metadata::{Change, NodeRecord, QueueId, SessionId};
use queue::codec::VersionedList;
use queue::cursor::{CursorEvent, CursorRequest};
use queue::{QueueCounters, QueueEvent, QueueMessage, QueueStats};
use session::ServiceId;
use stream::PeerMessage;
use wire::{AtMost, Decoded, Encoding, Reader, Rest, Wire, wire_enum, wire_struct};

/// Most queues in one `StatsReply`. The sender splits longer answers.
pub(crate) const MAX_STATS: usize = 10_000;

/// Statistics of a queue from its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerStats {
    /// The queue.
    pub queue: QueueId,
    /// Voters.
    pub members: Vec<NodeId>,
    /// Members that this node has a connection to.
    pub online: Vec<NodeId>,
    /// Its messages and consumers.
    pub stats: QueueStats,
    /// Its counters since the owner started.
    pub counters: QueueCounters,
}

/// The origin of a metadata change. Each incarnation of a node numbers its changes consecutively from 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The number of the change.
    pub number: u64,
}

/// A message between shards.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// A frame of the consensus host of a shard, for groups of the receiving shard.
    Raft(Bytes),
    /// Messages for the owner of a queue, in order.
    ToQueue {
        /// The queue.
        queue: QueueId,
        /// Requests and reports of sessions.
        messages: Vec<QueueMessage>,
    },
    /// Events from the owner of a queue for a session of the receiving shard, in order.
    Events {
        /// The session.
        session: SessionId,
        /// The queue.
        queue: QueueId,
        /// The events.
        events: Vec<QueueEvent>,
    },
    /// A change for the metadata leader to propose.
    Propose {
        /// The origin of the change, by which the leader recognises a repetition.
        origin: Origin,
        /// The change.
        change: Change,
    },
    /// From shard 0 to the other shards of its node: a change was applied at this index. `done_for` is the shard that
    /// requested it, and its token.
    Applied {
        /// The index in the metadata log.
        index: u64,
        /// The change.
        change: Change,
        /// The shard that requested it, and its token.
        done_for: Option<(u16, u64)>,
    },
    /// From shard 0 to the other shards of its node: a snapshot of the whole tree, before the changes that follow.
    Restored {
        /// The index of the last change in it.
        index: u64,
        /// The encoded tree.
        tree: Bytes,
    },
    /// From another shard of the node to shard 0: a session requests a change.
    ChangeRequest {
        /// The shard of the session.
        shard: u16,
        /// Identifies the request on that shard.
        token: u64,
        /// The change.
        change: Change,
    },
    /// The answer to `ChangeRequest` if the change was refused or its outcome is unknown.
    ChangeRefused {
        /// The token of the request.
        token: u64,
        /// The reason.
        why: String,
    },
    /// Requests statistics of all queues that the shard owns or, with `only`, of one queue. With `counting`, also the
    /// replicas whose group counts this node.
    StatsRequest {
        /// Identifies the request on the requesting shard.
        token: u64,
        /// The shard that the answer goes to.
        reply_shard: u16,
        /// The only queue to report. None: all.
        only: Option<QueueId>,
        /// Report also the groups that count this node.
        counting: Option<NodeId>,
    },
    /// The answer to `StatsRequest`, in one or several parts.
    StatsReply {
        /// The token of the request.
        token: u64,
        /// No further part follows.
        last: bool,
        /// Statistics of queues; at most `MAX_STATS`.
        stats: Vec<OwnerStats>,
        /// Queues with a follower here whose group has the node of the request; at most `MAX_STATS`.
        counting: Vec<QueueId>,
    },
    /// Details about ready messages of queues whose statistics follow in a `StatsReply`, of queues with a feature that
    /// older versions do not know.
    ReadyDetails {
        /// The token of the request.
        token: u64,
        /// The details by queue; at most `MAX_STATS`.
        ready: Vec<(QueueId, queue::ReadyDetails)>,
    },
    /// Details about delayed messages of queues whose statistics follow in a `StatsReply`, of queues with a feature that
    /// older versions do not know.
    DelayedDetails {
        /// The token of the request.
        token: u64,
        /// The details by queue; at most `MAX_STATS`.
        delayed: Vec<(QueueId, queue::DelayedDetails)>,
    },
    /// The oldest ready messages of queues whose statistics follow in a `StatsReply`. Sent with the feature flag
    /// `head_message_ages`.
    HeadMessages {
        /// The token of the request.
        token: u64,
        /// The messages by queue; at most `MAX_STATS`.
        heads: Vec<(QueueId, queue::HeadMessage)>,
    },
    /// A node of the cluster raised or cleared an alarm.
    Alarm {
        /// The resource that is short.
        reason: AlarmReason,
        /// False: the alarm was cleared.
        on: bool,
    },
    /// To the metadata leader: this node requests to become a member.
    Join {
        /// The record of the sending node.
        node: NodeRecord,
    },
    /// From shard 0 to the other shards of its node: the tree has caught up with the cluster, so clients are accepted.
    CaughtUp,
    /// A `control::Question` for each shard.
    ControlQuestion {
        /// Identifies the question on the asking shard.
        token: u64,
        /// The shard that the answer goes to.
        reply_shard: u16,
        /// The encoded question.
        question: Bytes,
    },
    /// A part of an answer, `control::Facts`.
    ControlAnswer {
        /// The token of the question.
        token: u64,
        /// No further part follows.
        last: bool,
        /// The encoded part.
        facts: Bytes,
    },
    /// A message about the members of a queue.
    Members(MembershipMessage),
    /// From a service to the same service on another shard.
    Service(ServiceFrame),
    /// Open connections and channels of users and virtual hosts with limits on another shard.
    LimitUsage(LimitUsageFrame),
    /// Users and virtual hosts with rate limits that have active publishers on another shard.
    PublisherActivity(PublisherActivityFrame),
    /// What the queues of virtual hosts with a quota store that another shard leads.
    StoredBytes(StoredBytesFrame),
    /// From a replica of a stream to another one.
    Replica {
        /// The stream.
        queue: QueueId,
        /// The message.
        message: PeerMessage,
    },
    /// Requests of a session's cursors to a replica of a stream, in order.
    CursorRequests {
        /// The session.
        session: SessionId,
        /// The stream.
        queue: QueueId,
        /// The requests.
        requests: Vec<CursorRequest>,
    },
    /// Events from a replica of a stream for cursors of a session of the receiving shard, in order.
    CursorEvents {
        /// The session.
        session: SessionId,
        /// The stream.
        queue: QueueId,
        /// The events.
        events: Vec<CursorEvent>,
    },
    /// Streams that the sender leads, with the terms; at most `MAX_STATS`.
    StreamLeaders {
        /// The streams and their terms.
        streams: Vec<(QueueId, u64)>,
    },
}

/// A frame between services. Only the incarnation of the receiving node that it names accepts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFrame {
    /// The service.
    pub service: ServiceId,
    /// The incarnation of the sending node, and its shard.
    pub from: (Incarnation, u16),
    /// The incarnation of the receiving node.
    pub to: Incarnation,
    /// Opaque to the shard.
    pub body: Bytes,
}

impl ServiceFrame {
    /// Encodes a whole [`Frame`] whose body `write` appends, so that the body is not copied.
    pub fn encode_with(
        service: ServiceId,
        from: (Incarnation, u16),
        to: Incarnation,
        write: &mut dyn FnMut(&mut BytesMut),
    ) -> Bytes {
        let header = ServiceFrame {
            service,
            from,
            to,
            body: Bytes::new(),
        };
        let mut out = BytesMut::new();
        Frame::Service(header).put(&mut out);
        write(&mut out);
        out.freeze()
    }
}

/// The resource that is short during an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlarmReason {
    /// Memory.
    Memory,
    /// Disk space.
    Disk,
}

impl AlarmReason {
    pub fn text(self) -> &'static str {
        match self {
            AlarmReason::Memory => "memory",
            AlarmReason::Disk => "disk",
        }
    }
}

/// A frame from another shard cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame from another shard cannot be read")]
pub struct FrameError;

wire_enum!(Frame, "a frame between shards" {
    1 = Raft(frame: Bytes as Rest),
    2 = ToQueue { queue: QueueId, messages: Vec<QueueMessage> as VersionedList },
    3 = Events { session: SessionId, queue: QueueId, events: Vec<QueueEvent> as VersionedList },
    4 = Propose { origin: Origin, change: Change as VersionedChange },
    5 = Applied { index: u64, done_for: Option<(u16, u64)>, change: Change as VersionedChange },
    6 = Restored { index: u64, tree: Bytes as Rest },
    7 = ChangeRequest { shard: u16, token: u64, change: Change as VersionedChange },
    8 = ChangeRefused { token: u64, why: String },
    9 = StatsRequest { token: u64, reply_shard: u16, only: Option<QueueId>, counting: Option<NodeId> },
    10 = StatsReply {
        token: u64,
        last: bool,
        stats: Vec<OwnerStats> as AtMost<MAX_STATS>,
        counting: Vec<QueueId> as AtMost<MAX_STATS>,
    },
    11 = Alarm { reason: AlarmReason, on: bool },
    12 = Join { node: NodeRecord },
    13 = CaughtUp,
    14 = ControlQuestion { token: u64, reply_shard: u16, question: Bytes as Rest },
    15 = ControlAnswer { token: u64, last: bool, facts: Bytes as Rest },
    16 = Members(message: MembershipMessage),
    17 = Service(frame: ServiceFrame),
    18 = LimitUsage(usage: LimitUsageFrame),
    19 = Replica { queue: QueueId, message: PeerMessage },
    20 = CursorRequests { session: SessionId, queue: QueueId, requests: Vec<CursorRequest> as VersionedList },
    21 = CursorEvents { session: SessionId, queue: QueueId, events: Vec<CursorEvent> as VersionedList },
    22 = StreamLeaders { streams: Vec<(QueueId, u64)> as AtMost<MAX_STATS> },
    23 = ReadyDetails { token: u64, ready: Vec<(QueueId, queue::ReadyDetails)> as AtMost<MAX_STATS> },
    24 = DelayedDetails { token: u64, delayed: Vec<(QueueId, queue::DelayedDetails)> as AtMost<MAX_STATS> },
    25 = PublisherActivity(activity: PublisherActivityFrame),
    26 = StoredBytes(stored: StoredBytesFrame),
    27 = HeadMessages { token: u64, heads: Vec<(QueueId, queue::HeadMessage)> as AtMost<MAX_STATS> },
});
wire_enum!(AlarmReason, "an alarm" { 0 = Memory, 1 = Disk });
wire_struct!(Origin {
    node: NodeId,
    incarnation: Incarnation,
    number: u64,
});
wire_struct!(OwnerStats {
    queue: QueueId,
    members: Vec<NodeId>,
    online: Vec<NodeId>,
    stats: QueueStats,
    counters: QueueCounters,
});

impl Wire for ServiceFrame {
    fn put(&self, out: &mut BytesMut) {
        out.put_u8(self.service.0);
        self.from.put(out);
        self.to.put(out);
        Rest::put(&self.body, out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        Ok(ServiceFrame {
            service: ServiceId(from.get()?),
            from: from.get()?,
            to: from.get()?,
            body: Rest::get(from)?,
        })
    }
}

/// The encoding of a change as the last field: with its version, as in the log of the metadata group.
enum VersionedChange {}

impl Encoding<Change> for VersionedChange {
    fn put(change: &Change, out: &mut BytesMut) {
        out.put_slice(&change.encode());
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Change> {
        Change::decode(&from.take_rest())
    }
}

/// Bytes of the fields besides messages in most frames.
const TYPICAL_BYTES: usize = 64;

impl Frame {
    /// Encodes the frame.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(TYPICAL_BYTES + self.message_bytes());
        self.put(&mut out);
        out.freeze()
    }

    /// Decodes a frame. Parts of it share its buffer.
    ///
    /// # Errors
    ///
    /// If the bytes are not a frame of this version.
    pub fn decode(frame: Bytes) -> Decoded<Frame> {
        wire::decode("frame from another shard", &frame)
    }

    /// Bytes of the parts that can be large, so that the buffer is allocated once.
    fn message_bytes(&self) -> usize {
        match self {
            Frame::Raft(bytes) | Frame::Restored { tree: bytes, .. } => bytes.len(),
            Frame::ToQueue { messages, .. } => {
                messages.iter().map(QueueMessage::message_bytes).sum()
            }
            Frame::Events { events, .. } => events.iter().map(QueueEvent::message_bytes).sum(),
            Frame::Replica { message, .. } => message.chunk_bytes(),
            Frame::CursorEvents { events, .. } => {
                events.iter().map(CursorEvent::message_bytes).sum()
            }
            _ => 0,
        }
    }
}

#[cfg(test)]
mod format_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use queue::Losses;
    use wire::DecodeCause;

    fn reply() -> Frame {
        let stats = |queue: u64| OwnerStats {
            queue: QueueId(queue),
            members: vec![NodeId(1), NodeId(2)],
            online: vec![NodeId(2)],
            stats: QueueStats {
                ready: 3,
                unacknowledged: 2,
                consumers: 1,
                bytes: 500,
                unacknowledged_bytes: 200 + queue,
                dead: 1,
                dead_bytes: 9,
                lost: Losses {
                    messages: queue,
                    segments: 1,
                },
                ..QueueStats::default()
            },
            counters: QueueCounters::default(),
        };
        Frame::StatsReply {
            token: 7,
            last: true,
            stats: vec![stats(1), stats(2)],
            counting: vec![QueueId(5)],
        }
    }

    #[test]
    fn statistics_of_queues_come_back() {
        let frame = reply();
        assert_eq!(Frame::decode(frame.encode()), Ok(frame));
    }

    #[test]
    fn service_frame_comes_back_and_cut_header_is_refused() {
        let service_frame = ServiceFrame {
            service: ServiceId(1),
            from: (Incarnation(3), 1),
            to: Incarnation(4),
            body: Bytes::from_static(b"body"),
        };
        let written = ServiceFrame::encode_with(
            service_frame.service,
            service_frame.from,
            service_frame.to,
            &mut |out| out.put_slice(&service_frame.body),
        );
        let frame = Frame::Service(service_frame);
        assert_eq!(frame.encode(), written);
        assert_eq!(Frame::decode(written.clone()), Ok(frame));
        for cut in 1..written.len() - 4 {
            let cut = Frame::decode(written.slice(..cut));
            assert_eq!(cut.map_err(|e| e.cause), Err(DecodeCause::Short));
        }
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let join = Frame::Join {
            node: NodeRecord {
                id: NodeId(1),
                name: "n".into(),
                address: "a".into(),
                voter: true,
                maintenance: false,
            },
        };
        for frame in [join, Frame::CaughtUp, reply()] {
            let longer = [&frame.encode()[..], &[0]].concat();
            assert!(Frame::decode(Bytes::from(longer)).is_err(), "{frame:?}");
        }
    }

    #[test]
    fn undefined_alarm_is_refused() {
        let alarm = Frame::Alarm {
            reason: AlarmReason::Memory,
            on: true,
        };
        let encoded = alarm.encode();
        assert_eq!(Frame::decode(encoded.clone()), Ok(alarm));
        for at in 1..encoded.len() {
            let mut altered = encoded.to_vec();
            altered[at] = 7;
            assert!(Frame::decode(Bytes::from(altered)).is_err(), "byte {at}");
        }
    }

    /// A cause that is cut within a character cannot be decoded, and the client gets no answer.
    #[test]
    fn long_cause_of_a_refused_change_arrives() {
        let refused = Frame::ChangeRefused {
            token: 1,
            why: "é".repeat(600),
        };
        assert!(Frame::decode(refused.encode()).is_ok());
        let shifted = Frame::ChangeRefused {
            token: 1,
            why: format!("x{}", "é".repeat(600)),
        };
        assert_eq!(Frame::decode(shifted.encode()), Ok(shifted));
    }
}
