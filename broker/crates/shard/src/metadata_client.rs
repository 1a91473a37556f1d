//! The metadata group as shard 0 hosts it: who asks for a change, who proposes it, and how an answer finds its way back.
//!
//! Every node numbers the changes it asks for, from 1 in each life. The leader proposes them as they come; the state
//! machine takes a node's change only when its number follows the last one taken, so a change that was sent twice is
//! applied once, and one that was lost holds back those behind it until the asking node sends it again. Each node
//! applies the log itself, so the asker computes the answer from its own tree: no answer travels.

use crate::frame::{Frame, Origin};
use audit::AuditRecord;
use bytes::{BufMut, Bytes, BytesMut};
use control::Reply;
use env::{Incarnation, NodeId, Time};
use metadata::{Change, ChangeError, ChangeResult, QueueId};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::{DecodeCause, DecodeError, Decoded, Reader, Wire};

/// Changes of this node that wait for their commit, at most; more are refused.
pub(crate) const MAX_PENDING: usize = 10_000;
/// After this long without an answer the asker is told; the change may still happen.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(30);
/// Sent again after this long without progress.
const AGAIN_AFTER: Duration = Duration::from_millis(500);
/// Version byte of a command in the log and of the snapshot's head.
const VERSION: u8 = 1;

/// Who waits for a change's result.
pub enum ChangeRequester {
    Nobody,
    /// A session of shard 0.
    Session {
        number: u64,
        token: u64,
        /// The audit record without its outcome.
        record: Option<Box<AuditRecord>>,
    },
    /// Another shard of this node; its token.
    Shard {
        shard: u16,
        token: u64,
    },
    Control(Reply<Result<ChangeResult, ChangeError>>),
    /// One of several queues whose members an operator changes.
    Members {
        token: u64,
        queue: QueueId,
        to: Vec<NodeId>,
    },
    /// The review of a queue's members.
    Review(QueueId),
    /// A queue whose deletion nobody else may see to.
    Deletion(QueueId),
    /// A service of this shard, by its position; its token.
    Service {
        at: usize,
        token: u64,
    },
    /// A node that joins.
    Join(NodeId),
    /// A node that another one has replaced.
    Replacement(NodeId),
}

struct PendingChange {
    number: u64,
    change: Change,
    asker: ChangeRequester,
    since: Time,
}

/// Where proposals can go now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataLeader {
    Unknown,
    Me,
    Other(NodeId),
}

/// What the shard must do about pending changes.
pub(crate) enum ProposalAction {
    Propose(Bytes),
    Forward { to: NodeId, frame: Frame },
}

/// The numbering side of the state machine: replicated, part of the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct OriginTable(BTreeMap<NodeId, (Incarnation, u64)>);

impl OriginTable {
    /// Whether a change with this origin is next; takes its number when it is.
    fn take(&mut self, origin: Origin) -> bool {
        let last = self.0.entry(origin.node).or_insert((origin.incarnation, 0));
        if origin.incarnation < last.0 {
            return false;
        }
        if origin.incarnation > last.0 {
            *last = (origin.incarnation, 0);
        }
        if origin.number != last.1 + 1 {
            return false;
        }
        last.1 = origin.number;
        true
    }
}

pub(crate) struct MetadataClient {
    me: NodeId,
    incarnation: Incarnation,
    next: u64,
    pending: VecDeque<PendingChange>,
    leader: MetadataLeader,
    sent_at: Time,
    origins: OriginTable,
}

impl MetadataClient {
    pub(crate) fn new(me: NodeId, incarnation: Incarnation) -> MetadataClient {
        MetadataClient {
            me,
            incarnation,
            next: 1,
            pending: VecDeque::new(),
            leader: MetadataLeader::Unknown,
            sent_at: Time::ZERO,
            origins: OriginTable::default(),
        }
    }

    pub(crate) fn leader(&self) -> MetadataLeader {
        self.leader
    }

    /// Whether a change asked in this life is applied here: then so is everything that was committed before this life.
    pub(crate) fn is_heard(&self) -> bool {
        self.taken() > 0
    }

    /// The number of the last change of this life that is applied here; 0: none.
    fn taken(&self) -> u64 {
        let last = self.origins.0.get(&self.me);
        last.filter(|(life, _)| *life == self.incarnation)
            .map_or(0, |(_, number)| *number)
    }

    /// Takes in a change; gives the asker back when there is no room.
    pub(crate) fn ask(
        &mut self,
        now: Time,
        change: Change,
        asker: ChangeRequester,
        out: &mut Vec<ProposalAction>,
    ) -> Result<(), ChangeRequester> {
        if self.pending.len() >= MAX_PENDING {
            return Err(asker);
        }
        let number = self.next;
        self.next += 1;
        self.pending.push_back(PendingChange {
            number,
            change,
            asker,
            since: now,
        });
        if let Some(last) = self.pending.back() {
            out.extend(self.send(last));
        }
        if self.pending.len() == 1 {
            self.sent_at = now;
        }
        Ok(())
    }

    fn send(&self, p: &PendingChange) -> Option<ProposalAction> {
        let origin = Origin {
            node: self.me,
            incarnation: self.incarnation,
            number: p.number,
        };
        match self.leader {
            MetadataLeader::Unknown => None,
            MetadataLeader::Me => Some(ProposalAction::Propose(command(origin, &p.change))),
            MetadataLeader::Other(to) => Some(ProposalAction::Forward {
                to,
                frame: Frame::Propose {
                    origin,
                    change: p.change.clone(),
                },
            }),
        }
    }

    pub(crate) fn leader_changed(
        &mut self,
        now: Time,
        leader: MetadataLeader,
        out: &mut Vec<ProposalAction>,
    ) {
        if leader != self.leader {
            self.leader = leader;
            self.send_all(now, out);
        }
    }

    fn send_all(&mut self, now: Time, out: &mut Vec<ProposalAction>) {
        self.sent_at = now;
        out.extend(self.pending.iter().filter_map(|p| self.send(p)));
    }

    /// Changes wait for their answer.
    pub(crate) fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Sends again what got no answer; returns the askers to be told that theirs takes too long.
    pub(crate) fn tick(
        &mut self,
        now: Time,
        out: &mut Vec<ProposalAction>,
    ) -> Vec<ChangeRequester> {
        if !self.has_pending() {
            return Vec::new();
        }
        if now.since(self.sent_at) >= AGAIN_AFTER {
            self.send_all(now, out);
        }
        let late = self
            .pending
            .iter_mut()
            .take_while(|p| now.since(p.since) >= ANSWER_WITHIN);
        late.map(|p| std::mem::replace(&mut p.asker, ChangeRequester::Nobody))
            .filter(|a| !matches!(a, ChangeRequester::Nobody))
            .collect()
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        (!self.pending.is_empty()).then(|| self.sent_at + AGAIN_AFTER)
    }

    /// A committed command: the change to apply, and who asked when it was this node in this life. None: to be skipped.
    /// What cannot be read must not be skipped: those that can read it would go on with another tree.
    pub(crate) fn committed(
        &mut self,
        now: Time,
        command: Bytes,
    ) -> Result<Option<(Change, ChangeRequester)>, DecodeError> {
        let (origin, change) = decode_command(&command)?;
        if !self.origins.take(origin) {
            return Ok(None);
        }
        let mine = origin.node == self.me && origin.incarnation == self.incarnation;
        if !mine {
            return Ok(Some((change, ChangeRequester::Nobody)));
        }
        // Numbers are taken in order, so ours is at the front.
        self.sent_at = now;
        let asker = match self.pending.front() {
            Some(p) if p.number == origin.number => self
                .pending
                .pop_front()
                .map_or(ChangeRequester::Nobody, |p| p.asker),
            _ => ChangeRequester::Nobody,
        };
        Ok(Some((change, asker)))
    }

    /// Encodes a snapshot: the number of the last change of each node, then the snapshot of the tree.
    pub(crate) fn snapshot(&self, tree: &[u8]) -> Bytes {
        let count = self.origins.0.len();
        let mut out = BytesMut::with_capacity(16 + count * Origin::MIN_LEN + tree.len());
        out.put_u8(VERSION);
        out.put_u32(count as u32);
        for (node, (incarnation, number)) in &self.origins.0 {
            let origin = Origin {
                node: *node,
                incarnation: *incarnation,
                number: *number,
            };
            origin.put(&mut out);
        }
        out.put_slice(tree);
        out.freeze()
    }

    /// Restores the numbers of the last changes from a snapshot. Returns the snapshot of the tree, and the requesters of
    /// changes that it contains: the changes were made, but their entries are not applied here.
    pub(crate) fn restore(
        &mut self,
        state: Bytes,
    ) -> Result<(Bytes, Vec<ChangeRequester>), DecodeError> {
        let mut from = Reader::shared("snapshot of the metadata group", &state);
        check_version(&mut from)?;
        let origins: Vec<Origin> = from.get()?;
        let origins = origins.into_iter();
        self.origins = OriginTable(
            origins
                .map(|o| (o.node, (o.incarnation, o.number)))
                .collect(),
        );
        let taken = self.taken();
        let made = self
            .pending
            .iter()
            .take_while(|p| p.number <= taken)
            .count();
        let unanswered = self.pending.drain(..made).map(|p| p.asker).collect();
        Ok((from.take_rest(), unanswered))
    }
}

/// Decodes what [`command`] encodes.
pub(crate) fn decode_command(command: &Bytes) -> Decoded<(Origin, Change)> {
    let mut from = Reader::shared("metadata command", command);
    check_version(&mut from)?;
    Ok((from.get()?, Change::decode(&from.take_rest())?))
}

fn check_version(from: &mut Reader<'_>) -> Decoded<()> {
    match from.u8()? {
        VERSION => Ok(()),
        other => Err(from.error(DecodeCause::Version(other))),
    }
}

/// A change as it stands in the log; also what the leader proposes for another node.
pub(crate) fn command(origin: Origin, change: &Change) -> Bytes {
    let mut out = BytesMut::with_capacity(128);
    out.put_u8(VERSION);
    origin.put(&mut out);
    out.put_slice(&change.encode());
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vhost(name: &str) -> Change {
        Change::PutVhost {
            name: name.into(),
            description: "".into(),
            tags: vec![],
        }
    }

    fn proposals(out: &mut Vec<ProposalAction>) -> Vec<Bytes> {
        out.drain(..)
            .filter_map(|s| {
                if let ProposalAction::Propose(b) = s {
                    Some(b)
                } else {
                    None
                }
            })
            .collect()
    }

    #[test]
    fn a_change_sent_twice_is_applied_once_and_a_gap_waits() {
        let mut d = MetadataClient::new(NodeId(1), Incarnation(1));
        let mut out = Vec::new();
        d.leader_changed(Time::ZERO, MetadataLeader::Me, &mut out);
        for name in ["a", "b"] {
            assert!(
                d.ask(
                    Time::ZERO,
                    vhost(name),
                    ChangeRequester::Session {
                        number: 1,
                        token: 9,
                        record: None,
                    },
                    &mut out
                )
                .is_ok()
            );
        }
        let sent = proposals(&mut out);
        assert_eq!(sent.len(), 2);
        assert!(
            d.committed(Time::ZERO, sent[1].clone()).unwrap().is_none(),
            "2 before 1 waits"
        );
        let first = d.committed(Time::ZERO, sent[0].clone()).unwrap();
        assert!(matches!(
            first,
            Some((_, ChangeRequester::Session { token: 9, .. }))
        ));
        assert!(
            d.committed(Time::ZERO, sent[0].clone()).unwrap().is_none(),
            "a second time"
        );
        assert!(d.tick(Time::ZERO + AGAIN_AFTER, &mut out).is_empty());
        let again = proposals(&mut out);
        assert_eq!(again, vec![sent[1].clone()]);
        assert!(d.committed(Time::ZERO, again[0].clone()).unwrap().is_some());
    }

    #[test]
    fn what_cannot_be_read_is_not_skipped() {
        let mut d = MetadataClient::new(NodeId(1), Incarnation(1));
        let origin = Origin {
            node: NodeId(2),
            incarnation: Incarnation(1),
            number: 1,
        };
        let good = command(origin, &vhost("x"));
        let mut later = good.to_vec();
        later[0] = VERSION + 1;
        let mut unknown = good.to_vec();
        // The change's own tag follows version, origin and the change's version.
        unknown[1 + 24 + 1] = 250;
        for bad in [later, unknown, Vec::new(), good[..good.len() - 1].to_vec()] {
            assert!(d.committed(Time::ZERO, bad.into()).is_err());
        }
        let taken = d.committed(Time::ZERO, good);
        assert!(matches!(taken, Ok(Some(_))), "its number is not used up");
    }

    #[test]
    fn numbering_survives_a_snapshot() {
        let mut d = MetadataClient::new(NodeId(1), Incarnation(1));
        let other = |number| {
            command(
                Origin {
                    node: NodeId(2),
                    incarnation: Incarnation(4),
                    number,
                },
                &vhost("x"),
            )
        };
        assert!(d.committed(Time::ZERO, other(1)).unwrap().is_some());
        let snapshot = d.snapshot(b"tree");
        let mut e = MetadataClient::new(NodeId(3), Incarnation(1));
        assert_eq!(&e.restore(snapshot).unwrap().0[..], b"tree");
        assert!(e.committed(Time::ZERO, other(1)).unwrap().is_none());
        assert!(e.committed(Time::ZERO, other(2)).unwrap().is_some());
    }

    #[test]
    fn an_older_life_is_ignored_and_a_newer_one_starts_at_one() {
        let mut d = MetadataClient::new(NodeId(1), Incarnation(1));
        let from = |life, number| {
            command(
                Origin {
                    node: NodeId(2),
                    incarnation: Incarnation(life),
                    number,
                },
                &vhost("x"),
            )
        };
        assert!(d.committed(Time::ZERO, from(2, 1)).unwrap().is_some());
        assert!(d.committed(Time::ZERO, from(1, 1)).unwrap().is_none());
        assert!(d.committed(Time::ZERO, from(3, 2)).unwrap().is_none());
        assert!(d.committed(Time::ZERO, from(3, 1)).unwrap().is_some());
    }

    #[test]
    fn a_late_answer_is_told_and_the_number_kept() {
        let mut d = MetadataClient::new(NodeId(1), Incarnation(1));
        let mut out = Vec::new();
        assert!(
            d.ask(
                Time::ZERO,
                vhost("a"),
                ChangeRequester::Session {
                    number: 1,
                    token: 1,
                    record: None,
                },
                &mut out
            )
            .is_ok()
        );
        assert!(out.is_empty(), "no leader yet");
        assert_eq!(d.tick(Time::ZERO + ANSWER_WITHIN, &mut out).len(), 1);
        d.leader_changed(Time::ZERO, MetadataLeader::Other(NodeId(2)), &mut out);
        assert!(matches!(
            out[0],
            ProposalAction::Forward { to: NodeId(2), .. }
        ));
    }
}
