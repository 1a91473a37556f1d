//! What shards say to each other, on one node and between nodes. Integers big-endian; one frame, one message.

use crate::limit_usage::frame::LimitUsageFrame;
use crate::members::frame::MembershipMessage;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use env::{Incarnation, NodeId};
use metadata::{Change, NodeRecord, QueueId, SessionId};
use queue::{DeliveryCounters, Losses, QueueCounters, QueueEvent, QueueMessage, QueueStats};
use session::ServiceId;

/// Longest name or address in a frame.
const MAX_NAME: usize = 1024;
/// Most queues in one answer to `StatsRequest`; more are split over several frames by the sender.
pub const MAX_STATS: usize = 10_000;

/// A queue's owner tells about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerStats {
    pub queue: QueueId,
    /// Voters.
    pub members: Vec<NodeId>,
    pub online: Vec<NodeId>,
    pub stats: QueueStats,
    pub counters: QueueCounters,
}

/// Who asked for a metadata change: numbered consecutively from 1 in each life of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub node: NodeId,
    pub incarnation: Incarnation,
    pub number: u64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    /// A frame of the consensus host of the same shard over there.
    Raft(Bytes),
    /// For the owner of a queue, in order.
    ToQueue {
        queue: QueueId,
        messages: Vec<QueueMessage>,
    },
    /// From the owner of a queue, for a session here, in order.
    Events {
        session: SessionId,
        queue: QueueId,
        events: Vec<QueueEvent>,
    },
    /// A change for the metadata leader to propose.
    Propose {
        origin: Origin,
        change: Change,
    },
    /// Shard 0 to the other shards of its node: applied at this index; `done_for` is the shard and token that asked.
    Applied {
        index: u64,
        change: Change,
        done_for: Option<(u16, u64)>,
    },
    /// A whole tree, in front of what is applied from here on.
    Restored {
        index: u64,
        tree: Bytes,
    },
    /// Another shard's session asks for a change (to shard 0 of the same node).
    ChangeRequest {
        shard: u16,
        token: u64,
        change: Change,
    },
    /// Shard 0 to one that asked for a change: it did not come of it, or nobody knows.
    ChangeRefused {
        token: u64,
        why: String,
    },
    /// For each shard: what its queues count. `only`: one queue. `counting`: and which of its replicas count this node.
    StatsRequest {
        token: u64,
        reply_shard: u16,
        only: Option<QueueId>,
        counting: Option<NodeId>,
    },
    StatsReply {
        token: u64,
        last: bool,
        stats: Vec<OwnerStats>,
        /// Queues with a replica here that does not lead and has that node in its group; `MAX_STATS` at most.
        counting: Vec<QueueId>,
    },
    /// A node of the cluster raised or cleared an alarm.
    Alarm {
        reason: AlarmReason,
        on: bool,
    },
    /// For the metadata leader: this node wants to be a member.
    Join {
        node: NodeRecord,
    },
    /// Shard 0 to the other shards of its node: the tree has caught up with the cluster, clients may come.
    CaughtUp,
    /// A `control::Question` for each shard.
    Ask {
        token: u64,
        reply_shard: u16,
        question: Bytes,
    },
    /// A part of an answer, `control::Facts`.
    Told {
        token: u64,
        last: bool,
        facts: Bytes,
    },
    Members(MembershipMessage),
    /// From a service to the same one on another shard.
    Service(ServiceFrame),
    /// What another shard has open for users and virtual hosts with limits.
    Uses(LimitUsageFrame),
}

/// A frame between services. It is for one incarnation of the receiving node; another one ignores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFrame {
    pub service: ServiceId,
    /// The incarnation of the sending node, and its shard.
    pub from: (Incarnation, u16),
    /// The incarnation of the receiving node.
    pub to: Incarnation,
    /// Only the service can read it.
    pub body: Bytes,
}

impl ServiceFrame {
    /// A whole frame whose body is written by `write`, without a copy.
    pub fn encode_with(
        service: ServiceId,
        from: (Incarnation, u16),
        to: Incarnation,
        write: &mut dyn FnMut(&mut BytesMut),
    ) -> Bytes {
        let mut out = BytesMut::new();
        ServiceFrame::encode_header(service, from, to, &mut out);
        write(&mut out);
        out.freeze()
    }

    fn encode_header(
        service: ServiceId,
        from: (Incarnation, u16),
        to: Incarnation,
        out: &mut BytesMut,
    ) {
        out.put_u8(SERVICE);
        out.put_u8(service.0);
        out.put_u64(from.0.0);
        out.put_u16(from.1);
        out.put_u64(to.0);
    }

    fn encode(&self, out: &mut BytesMut) {
        ServiceFrame::encode_header(self.service, self.from, self.to, out);
        out.put_slice(&self.body);
    }

    fn decode(mut frame: Bytes) -> Result<ServiceFrame, FrameError> {
        Ok(ServiceFrame {
            service: ServiceId(u8(&mut frame)?),
            from: (Incarnation(u64(&mut frame)?), u16(&mut frame)?),
            to: Incarnation(u64(&mut frame)?),
            body: frame,
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AlarmReason {
    Memory,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame from another shard cannot be read")]
pub struct FrameError;

const RAFT: u8 = 1;
const TO_QUEUE: u8 = 2;
const EVENTS: u8 = 3;
const PROPOSE: u8 = 4;
const APPLIED: u8 = 5;
const RESTORED: u8 = 6;
const CHANGE_REQUEST: u8 = 7;
const STATS_REQUEST: u8 = 8;
const STATS_REPLY: u8 = 9;
const ALARM: u8 = 10;
const JOIN: u8 = 11;
const CAUGHT_UP: u8 = 12;
const CHANGE_REFUSED: u8 = 13;
const ASK: u8 = 40;
const TOLD: u8 = 41;
const MEMBERS: u8 = 20;
const SERVICE: u8 = 30;
const USES: u8 = 50;

impl Frame {
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Frame::Raft(frame) => {
                out.reserve(1 + frame.len());
                out.put_u8(RAFT);
                out.put_slice(frame);
            }
            Frame::ToQueue { queue, messages } => {
                out.put_u8(TO_QUEUE);
                out.put_u64(queue.0);
                out.put_slice(&queue::codec::encode_to_queue(messages));
            }
            Frame::Events {
                session,
                queue,
                events,
            } => {
                out.put_u8(EVENTS);
                put_session(&mut out, *session);
                out.put_u64(queue.0);
                out.put_slice(&queue::codec::encode_events(events));
            }
            Frame::Propose { origin, change } => {
                out.put_u8(PROPOSE);
                put_origin(&mut out, *origin);
                out.put_slice(&change.encode());
            }
            Frame::Applied {
                index,
                change,
                done_for,
            } => {
                out.put_u8(APPLIED);
                out.put_u64(*index);
                let (shard, token) = done_for.unwrap_or((u16::MAX, 0));
                out.put_u16(shard);
                out.put_u64(token);
                out.put_slice(&change.encode());
            }
            Frame::Restored { index, tree } => {
                out.put_u8(RESTORED);
                out.put_u64(*index);
                out.put_slice(tree);
            }
            Frame::ChangeRequest {
                shard,
                token,
                change,
            } => {
                out.put_u8(CHANGE_REQUEST);
                out.put_u16(*shard);
                out.put_u64(*token);
                out.put_slice(&change.encode());
            }
            Frame::ChangeRefused { token, why } => {
                out.put_u8(CHANGE_REFUSED);
                out.put_u64(*token);
                put_name(&mut out, why);
            }
            Frame::StatsRequest {
                token,
                reply_shard,
                only,
                counting,
            } => {
                out.put_u8(STATS_REQUEST);
                out.put_u64(*token);
                out.put_u16(*reply_shard);
                out.put_u64(only.map_or(0, |q| q.0));
                out.put_u64(counting.map_or(0, |n| n.0));
            }
            Frame::StatsReply {
                token,
                last,
                stats,
                counting,
            } => {
                encode_stats(&mut out, *token, *last, stats);
                out.put_u32(counting.len() as u32);
                counting.iter().for_each(|q| out.put_u64(q.0));
                // Behind all that nodes of older versions read.
                for s in stats {
                    out.put_u64(s.stats.unacknowledged_bytes.unwrap_or(0));
                }
                for s in stats {
                    out.put_u64(s.stats.lost.messages);
                    out.put_u64(s.stats.lost.segments);
                }
            }
            Frame::Alarm { reason, on } => {
                out.put_u8(ALARM);
                out.put_u8(*reason as u8);
                out.put_u8(u8::from(*on));
            }
            Frame::Join { node } => {
                out.put_u8(JOIN);
                out.put_u64(node.id.0);
                put_name(&mut out, &node.name);
                put_name(&mut out, &node.address);
                out.put_u8(u8::from(node.voter));
                out.put_u8(u8::from(node.maintenance));
            }
            Frame::CaughtUp => out.put_u8(CAUGHT_UP),
            Frame::Ask {
                token,
                reply_shard,
                question,
            } => {
                out.put_u8(ASK);
                out.put_u64(*token);
                out.put_u16(*reply_shard);
                out.put_slice(question);
            }
            Frame::Told { token, last, facts } => {
                out.put_u8(TOLD);
                out.put_u64(*token);
                out.put_u8(u8::from(*last));
                out.put_slice(facts);
            }
            Frame::Members(peer_message) => {
                out.put_u8(MEMBERS);
                peer_message.encode(&mut out);
            }
            Frame::Service(frame) => frame.encode(&mut out),
            Frame::Uses(told) => {
                out.put_u8(USES);
                told.encode(&mut out);
            }
        }
        out.freeze()
    }

    pub fn decode(mut frame: Bytes) -> Result<Frame, FrameError> {
        let kind = u8(&mut frame)?;
        Ok(match kind {
            RAFT => Frame::Raft(frame),
            TO_QUEUE => Frame::ToQueue {
                queue: QueueId(u64(&mut frame)?),
                messages: queue::codec::decode_to_queue(frame).map_err(|_| FrameError)?,
            },
            EVENTS => Frame::Events {
                session: session(&mut frame)?,
                queue: QueueId(u64(&mut frame)?),
                events: queue::codec::decode_events(frame).map_err(|_| FrameError)?,
            },
            PROPOSE => Frame::Propose {
                origin: origin(&mut frame)?,
                change: change(frame)?,
            },
            APPLIED => {
                let index = u64(&mut frame)?;
                let (shard, token) = (u16(&mut frame)?, u64(&mut frame)?);
                let done_for = (shard != u16::MAX).then_some((shard, token));
                Frame::Applied {
                    index,
                    done_for,
                    change: change(frame)?,
                }
            }
            RESTORED => Frame::Restored {
                index: u64(&mut frame)?,
                tree: frame,
            },
            CHANGE_REQUEST => Frame::ChangeRequest {
                shard: u16(&mut frame)?,
                token: u64(&mut frame)?,
                change: change(frame)?,
            },
            CHANGE_REFUSED => Frame::ChangeRefused {
                token: u64(&mut frame)?,
                why: name(&mut frame)?,
            },
            STATS_REQUEST => {
                let (token, reply_shard, only) =
                    (u64(&mut frame)?, u16(&mut frame)?, u64(&mut frame)?);
                // A node of an older version does not ask.
                let counting = u64(&mut frame).unwrap_or(0);
                Frame::StatsRequest {
                    token,
                    reply_shard,
                    only: (only != 0).then_some(QueueId(only)),
                    counting: (counting != 0).then_some(NodeId(counting)),
                }
            }
            STATS_REPLY => decode_stats(frame)?,
            ALARM => {
                let reason = if u8(&mut frame)? == AlarmReason::Disk as u8 {
                    AlarmReason::Disk
                } else {
                    AlarmReason::Memory
                };
                Frame::Alarm {
                    reason,
                    on: u8(&mut frame)? != 0,
                }
            }
            JOIN => {
                let id = NodeId(u64(&mut frame)?);
                let (name, address) = (name(&mut frame)?.into(), name(&mut frame)?.into());
                let (voter, maintenance) = (u8(&mut frame)? != 0, u8(&mut frame)? != 0);
                Frame::Join {
                    node: NodeRecord {
                        id,
                        name,
                        address,
                        voter,
                        maintenance,
                    },
                }
            }
            CAUGHT_UP => Frame::CaughtUp,
            ASK => Frame::Ask {
                token: u64(&mut frame)?,
                reply_shard: u16(&mut frame)?,
                question: frame,
            },
            TOLD => Frame::Told {
                token: u64(&mut frame)?,
                last: u8(&mut frame)? != 0,
                facts: frame,
            },
            MEMBERS => Frame::Members(MembershipMessage::decode(frame)?),
            SERVICE => Frame::Service(ServiceFrame::decode(frame)?),
            USES => Frame::Uses(LimitUsageFrame::decode(frame)?),
            _ => return Err(FrameError),
        })
    }
}

fn encode_stats(out: &mut BytesMut, token: u64, last: bool, stats: &[OwnerStats]) {
    out.put_u8(STATS_REPLY);
    out.put_u64(token);
    out.put_u8(u8::from(last));
    out.put_u32(stats.len() as u32);
    for s in stats {
        out.put_u64(s.queue.0);
        for nodes in [&s.members, &s.online] {
            out.put_u8(nodes.len().min(255) as u8);
            nodes.iter().take(255).for_each(|n| out.put_u64(n.0));
        }
        out.put_u64(s.stats.ready);
        out.put_u64(s.stats.unacknowledged);
        out.put_u32(s.stats.consumers);
        out.put_u64(s.stats.bytes);
        out.put_u64(s.stats.dead);
        out.put_u64(s.stats.dead_bytes);
        let (publish, d) = (s.counters.publish, &s.counters.deliveries);
        for count in [
            publish,
            d.deliver,
            d.deliver_no_ack,
            d.get,
            d.get_no_ack,
            d.get_empty,
            d.redeliver,
            d.ack,
        ] {
            out.put_u64(count);
        }
    }
}

fn decode_counters(frame: &mut Bytes) -> Result<QueueCounters, FrameError> {
    Ok(QueueCounters {
        publish: u64(frame)?,
        deliveries: DeliveryCounters {
            deliver: u64(frame)?,
            deliver_no_ack: u64(frame)?,
            get: u64(frame)?,
            get_no_ack: u64(frame)?,
            get_empty: u64(frame)?,
            redeliver: u64(frame)?,
            ack: u64(frame)?,
        },
    })
}

fn decode_stats(mut frame: Bytes) -> Result<Frame, FrameError> {
    let (token, last, count) = (
        u64(&mut frame)?,
        u8(&mut frame)? != 0,
        u32(&mut frame)? as usize,
    );
    if count > MAX_STATS {
        return Err(FrameError);
    }
    let mut stats = Vec::with_capacity(count.min(frame.len() / 118 + 1));
    for _ in 0..count {
        let queue = QueueId(u64(&mut frame)?);
        let members = nodes(&mut frame)?;
        let online = nodes(&mut frame)?;
        let figures = QueueStats {
            ready: u64(&mut frame)?,
            unacknowledged: u64(&mut frame)?,
            consumers: u32(&mut frame)?,
            bytes: u64(&mut frame)?,
            dead: u64(&mut frame)?,
            dead_bytes: u64(&mut frame)?,
            ..QueueStats::default()
        };
        stats.push(OwnerStats {
            queue,
            members,
            online,
            stats: figures,
            counters: decode_counters(&mut frame)?,
        });
    }
    // A node of an older version does not tell.
    let count = u32(&mut frame).unwrap_or(0) as usize;
    if count > MAX_STATS {
        return Err(FrameError);
    }
    let counting = (0..count).map(|_| Ok(QueueId(u64(&mut frame)?)));
    let counting = counting.collect::<Result<_, FrameError>>()?;
    // Nor this.
    for s in &mut stats {
        s.stats.unacknowledged_bytes = u64(&mut frame).ok();
    }
    // Nor this.
    for s in &mut stats {
        s.stats.lost = Losses {
            messages: u64(&mut frame).unwrap_or(0),
            segments: u64(&mut frame).unwrap_or(0),
        };
    }
    Ok(Frame::StatsReply {
        token,
        last,
        stats,
        counting,
    })
}

fn nodes(frame: &mut Bytes) -> Result<Vec<NodeId>, FrameError> {
    let count = u8(frame)?;
    (0..count).map(|_| Ok(NodeId(u64(frame)?))).collect()
}

fn change(frame: Bytes) -> Result<Change, FrameError> {
    Change::decode(&frame).map_err(|_| FrameError)
}

fn put_session(out: &mut BytesMut, s: SessionId) {
    out.put_u64(s.node.0);
    out.put_u64(s.incarnation.0);
    out.put_u64(s.number);
}

fn session(frame: &mut Bytes) -> Result<SessionId, FrameError> {
    Ok(SessionId {
        node: NodeId(u64(frame)?),
        incarnation: Incarnation(u64(frame)?),
        number: u64(frame)?,
    })
}

pub(crate) fn put_origin(out: &mut BytesMut, o: Origin) {
    out.put_u64(o.node.0);
    out.put_u64(o.incarnation.0);
    out.put_u64(o.number);
}

pub(crate) fn origin(frame: &mut Bytes) -> Result<Origin, FrameError> {
    Ok(Origin {
        node: NodeId(u64(frame)?),
        incarnation: Incarnation(u64(frame)?),
        number: u64(frame)?,
    })
}

pub(crate) fn put_name(out: &mut BytesMut, name: &str) {
    let bytes = &name.as_bytes()[..name.len().min(MAX_NAME)];
    out.put_u16(bytes.len() as u16);
    out.put_slice(bytes);
}

pub(crate) fn name(frame: &mut Bytes) -> Result<String, FrameError> {
    let len = u16(frame)? as usize;
    if len > MAX_NAME || frame.len() < len {
        return Err(FrameError);
    }
    String::from_utf8(frame.split_to(len).to_vec()).map_err(|_| FrameError)
}

pub(crate) fn u8(frame: &mut Bytes) -> Result<u8, FrameError> {
    frame.try_get_u8().map_err(|_| FrameError)
}

pub(crate) fn u16(frame: &mut Bytes) -> Result<u16, FrameError> {
    frame.try_get_u16().map_err(|_| FrameError)
}

pub(crate) fn u32(frame: &mut Bytes) -> Result<u32, FrameError> {
    frame.try_get_u32().map_err(|_| FrameError)
}

pub(crate) fn u64(frame: &mut Bytes) -> Result<u64, FrameError> {
    frame.try_get_u64().map_err(|_| FrameError)
}

#[cfg(test)]
mod tests {
    use super::*;

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
                unacknowledged_bytes: Some(200 + queue),
                dead: 1,
                dead_bytes: 9,
                lost: Losses {
                    messages: queue,
                    segments: 1,
                },
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
    fn figures_of_queues_come_back_as_they_went() {
        let frame = reply();
        assert_eq!(Frame::decode(frame.encode()), Ok(frame));
    }

    #[test]
    fn service_frame_roundtrips_and_a_cut_header_is_refused() {
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
            assert_eq!(Frame::decode(written.slice(..cut)), Err(FrameError));
        }
    }

    #[test]
    fn what_a_node_of_an_older_version_leaves_out_is_not_known() {
        let frame = reply().encode();
        let older = frame.slice(..frame.len() - 6 * size_of::<u64>());
        let Ok(Frame::StatsReply {
            stats, counting, ..
        }) = Frame::decode(older)
        else {
            panic!("an older node's answer is read");
        };
        let known: Vec<_> = stats.iter().map(|s| s.stats.unacknowledged_bytes).collect();
        assert_eq!((known, counting), (vec![None, None], vec![QueueId(5)]));
    }
}
