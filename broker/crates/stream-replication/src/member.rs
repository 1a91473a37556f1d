//! One member of one stream.

use crate::follower::Follower;
use crate::leader::Leader;
use crate::{Attachment, EpochTable, MemberMessage};
use env::{Incarnation, NodeId, Time};
use std::collections::BTreeSet;

/// The log that a member finds when it starts.
#[derive(Clone, Debug, Default)]
pub struct LogState {
    /// The epochs of the chunks on disk.
    pub epochs: EpochTable,
    /// The log cannot have lost its end: the machine has not stopped since the member last wrote, or the end was synced.
    pub intact: bool,
}

/// Numbers the writes between two truncations, so that a completed write of chunks that were dropped meanwhile counts for
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteToken(pub(crate) u64);

/// What a chunk says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// The epoch of the leader that wrote it.
    pub epoch: u64,
    /// The offset of its first entry.
    pub first: u64,
    /// The offset after its last entry.
    pub next: u64,
}

/// Work for the owner of a [`Member`], in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a message to another member. It may be lost.
    Send {
        /// The member.
        to: NodeId,
        /// The message.
        message: MemberMessage,
    },
    /// Read whole chunks of the log, at least one, and send them behind [`MemberMessage::Chunks`]. Then call
    /// [`Member::sent_chunks`].
    SendChunks {
        /// The follower.
        to: NodeId,
        /// For the message, and for [`Member::sent_chunks`].
        attachment: Attachment,
        /// The offset of the first chunk.
        first: u64,
        /// The offset after the last chunk that may be sent.
        end: u64,
        /// Bytes after which no further chunk begins.
        bytes: u64,
        /// For the message.
        committed: u64,
    },
    /// This member leads. Write a marker, a chunk that clients do not see, with [`Member::append`]; its followers may
    /// be behind until then.
    WriteMarker {
        /// The epoch of the marker and of all chunks until [`Output::Closed`].
        epoch: u64,
    },
    /// The marker is committed: publishes are accepted, and everything that was ever confirmed is in this log.
    Opened {
        /// The epoch.
        epoch: u64,
    },
    /// This member leads no longer. Publishes that are not committed may come into the log or not.
    Closed,
    /// Everything before this offset is committed and can be read by consumers.
    Committed(u64),
    /// Drop all chunks from this offset on, after the writes before this output.
    Truncate {
        /// The offset after the last chunk that stays.
        next: u64,
    },
    /// Delete the log and begin an empty one at this offset, after the writes before this output.
    Reset {
        /// The offset of the next chunk.
        start: u64,
    },
    /// Hand the leadership of the Raft group to this member, whose log has more.
    TransferLeadership {
        /// The member.
        to: NodeId,
    },
    /// The log has all that was confirmed: record that it is intact in this run of the machine.
    Intact,
    /// Chunks that this member had seen as committed are not in the leader's log: more members lost the ends of their logs
    /// than the stream can bear. They are dropped next.
    LostCommitted {
        /// The offset of the first lost chunk.
        from: u64,
        /// The offset after the last lost chunk.
        to: u64,
    },
}

/// What this member does in its term.
#[derive(Debug)]
pub(crate) enum Role {
    /// No leader is known.
    Waiting,
    Leader(Leader),
    Follower(Follower),
}

/// The state that leading and following share.
#[derive(Debug)]
pub(crate) struct Core {
    pub id: NodeId,
    pub voters: BTreeSet<NodeId>,
    pub learners: BTreeSet<NodeId>,
    /// Members whose node cannot be reached. Nothing is repeated for them.
    pub unreachable: BTreeSet<NodeId>,
    /// The term of the Raft group, and epoch of the leader.
    pub term: u64,
    /// The log with the writes that have not completed.
    pub log: EpochTable,
    /// The offset after the last written chunk.
    pub written: u64,
    pub token: WriteToken,
    pub intact: bool,
    pub committed: u64,
    pub outputs: Vec<Output>,
}

impl Core {
    pub(crate) fn send(&mut self, to: NodeId, message: MemberMessage) {
        debug_assert!(to != self.id, "{to:?} sends to itself");
        debug_assert_eq!(message.epoch(), self.term, "a message of another epoch");
        self.outputs.push(Output::Send { to, message });
    }

    /// Sets the committed offset unless it is known already.
    pub(crate) fn commit(&mut self, offset: u64) {
        let offset = offset.min(self.written);
        if offset > self.committed {
            self.committed = offset;
            self.outputs.push(Output::Committed(offset));
        }
    }

    pub(crate) fn is_member(&self, node: NodeId) -> bool {
        self.voters.contains(&node) || self.learners.contains(&node)
    }

    /// Members but this one, in the order of their ids.
    pub(crate) fn others(&self) -> Vec<NodeId> {
        let members = self.voters.union(&self.learners);
        members.copied().filter(|node| *node != self.id).collect()
    }

    pub(crate) fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }

    /// Drops chunks from `next` on, or the whole log if it begins later.
    pub(crate) fn truncate(&mut self, next: u64) {
        if next >= self.log.next() {
            return;
        }
        if next < self.committed {
            self.outputs.push(Output::LostCommitted {
                from: next.max(self.log.start()),
                to: self.committed,
            });
            self.committed = next;
        }
        if next < self.log.start() {
            return self.reset(0);
        }
        self.log.truncate(next);
        self.written = self.written.min(next);
        self.token.0 += 1;
        self.outputs.push(Output::Truncate { next });
    }

    /// Deletes the log. The leader's log begins at `start`, and everything before was committed.
    pub(crate) fn reset(&mut self, start: u64) {
        self.log = EpochTable::starting_at(start);
        self.written = start;
        self.committed = start;
        self.token.0 += 1;
        self.outputs.push(Output::Reset { start });
    }
}

/// One member of one stream: a step function. Its owner calls it with all that happens, then takes the [`Output`]s with
/// [`poll`](Self::poll) until there are none, and calls [`tick`](Self::tick) at [`deadline`](Self::deadline).
#[derive(Debug)]
pub struct Member {
    core: Core,
    role: Role,
    incarnation: Incarnation,
    attachments: u64,
}

impl Member {
    /// A member that starts with the log on its disk. It waits for [`set_members`](Self::set_members) and a term.
    pub fn new(id: NodeId, incarnation: Incarnation, log: LogState) -> Member {
        let written = log.epochs.next();
        Member {
            core: Core {
                id,
                voters: BTreeSet::new(),
                learners: BTreeSet::new(),
                unreachable: BTreeSet::new(),
                term: 0,
                committed: log.epochs.start(),
                log: log.epochs,
                written,
                token: WriteToken::default(),
                intact: log.intact,
                outputs: Vec::new(),
            },
            role: Role::Waiting,
            incarnation,
            attachments: 0,
        }
    }

    /// The members of the Raft group, as applied on this node. A member that is added or removed changes the majority at once.
    pub fn set_members(&mut self, voters: &[NodeId], learners: &[NodeId], now: Time) {
        self.core.voters = voters.iter().copied().collect();
        self.core.learners = learners.iter().copied().collect();
        debug_assert!(
            self.core.voters.is_disjoint(&self.core.learners),
            "a member votes and learns: {:?}, {:?}",
            self.core.voters,
            self.core.learners
        );
        if let Role::Leader(leader) = &mut self.role {
            leader.members_changed(&mut self.core, now);
        }
    }

    /// The Raft group is in this term, with this leader if it is known. The term is durable.
    ///
    /// This member leads if `leader` is itself. The owner says so only after it has applied an entry of the term, so that
    /// its members are the newest committed ones.
    ///
    /// # Panics
    ///
    /// In debug builds, if the term goes back, or has another leader than it had.
    pub fn set_term(&mut self, term: u64, leader: Option<NodeId>, now: Time) {
        debug_assert!(
            term >= self.core.term,
            "term {term} after {}",
            self.core.term
        );
        let known = self.leader();
        if term == self.core.term && (known.is_some() || leader.is_none()) {
            debug_assert!(
                leader.is_none() || known == leader,
                "term {term} has leaders {known:?} and {leader:?}"
            );
            return;
        }
        if let Role::Leader(_) = self.role {
            self.core.outputs.push(Output::Closed);
        }
        self.core.term = term;
        self.role = match leader {
            None => Role::Waiting,
            Some(leader) if leader == self.core.id => {
                Role::Leader(Leader::new(&mut self.core, now))
            }
            Some(leader) => {
                let mut follower = Follower::new(leader);
                let attachment = self.next_attachment();
                follower.attach(&mut self.core, attachment, now);
                Role::Follower(follower)
            }
        };
    }

    /// The leader of the current term, if it is known.
    pub fn leader(&self) -> Option<NodeId> {
        match &self.role {
            Role::Waiting => None,
            Role::Leader(_) => Some(self.core.id),
            Role::Follower(follower) => Some(follower.leader()),
        }
    }

    /// The epoch of new chunks if this member leads and [`Output::WriteMarker`] came.
    pub fn writing(&self) -> Option<u64> {
        match &self.role {
            Role::Leader(leader) if leader.writes() => Some(self.core.term),
            _ => None,
        }
    }

    /// Everything before this offset is committed. Consumers can read it.
    pub fn committed(&self) -> u64 {
        self.core.committed
    }

    /// The epochs of the log, with chunks whose write has not completed.
    pub fn log(&self) -> &EpochTable {
        &self.core.log
    }

    /// True if the log cannot have lost its end, or has got it back.
    pub fn is_intact(&self) -> bool {
        self.core.intact
    }

    /// For a leader: followers that have written everything, in the order of their ids. They can take over without delay.
    pub fn caught_up(&self) -> Vec<NodeId> {
        match &self.role {
            Role::Leader(leader) => leader.caught_up(&self.core),
            _ => Vec::new(),
        }
    }

    /// For a leader: the offset after the last message that each other member has written, in the order of their ids. None:
    /// the member is not attached.
    pub fn followers(&self) -> Vec<(NodeId, Option<u64>)> {
        match &self.role {
            Role::Leader(leader) => leader.followers(&self.core),
            _ => Vec::new(),
        }
    }

    /// True if this member leads and a majority of the voters has written everything that is committed. Only then may the
    /// voters change: another change before could leave the committed chunks on a minority.
    pub fn voters_have_committed(&self) -> bool {
        match &self.role {
            Role::Leader(leader) => leader.voters_have_committed(&self.core),
            _ => false,
        }
    }

    /// The node of a member can be reached or not. Without this, every node counts as reachable.
    pub fn set_reachable(&mut self, node: NodeId, reachable: bool, now: Time) {
        if !reachable {
            self.core.unreachable.insert(node);
        } else if !self.core.unreachable.remove(&node) {
            return;
        }
        match &mut self.role {
            Role::Waiting => {}
            Role::Leader(leader) => leader.reachability_changed(&mut self.core, node, now),
            Role::Follower(follower) if follower.leader() != node => {}
            Role::Follower(_) => self.attach(now),
        }
    }

    /// The leader adds a chunk of its epoch. The owner writes it, and then calls [`written`](Self::written) with the token.
    /// None if this member does not lead, or the header does not follow the log.
    #[must_use]
    pub fn append(&mut self, chunk: ChunkHeader) -> Option<WriteToken> {
        let Role::Leader(leader) = &mut self.role else {
            return None;
        };
        if !leader.writes() || chunk.epoch != self.core.term {
            return None;
        }
        if !self.core.log.append(chunk.epoch, chunk.first, chunk.next) {
            return None;
        }
        leader.appended(chunk.next);
        Some(self.core.token)
    }

    /// The log is written up to `next`: a write that was issued with this token is complete.
    pub fn written(&mut self, token: WriteToken, next: u64, now: Time) {
        if token != self.core.token {
            return;
        }
        debug_assert!(
            next <= self.core.log.next(),
            "written up to {next}, beyond the log"
        );
        let next = next.min(self.core.log.next());
        if next <= self.core.written {
            return;
        }
        self.core.written = next;
        match &mut self.role {
            Role::Waiting => {}
            Role::Leader(leader) => leader.progressed(&mut self.core, now),
            Role::Follower(follower) => follower.progressed(&mut self.core),
        }
    }

    /// Retention deleted everything before `start`. The last committed chunk always stays: without it, a log that then
    /// drops its uncommitted end would no longer know its epoch, and lose elections to shorter logs.
    ///
    /// # Panics
    ///
    /// In debug builds, if no committed chunk stays.
    pub fn trimmed(&mut self, start: u64) {
        debug_assert!(
            start < self.core.committed,
            "retention deleted up to {start}, but only {} is committed",
            self.core.committed
        );
        self.core.log.trim(start);
    }

    /// The owner has sent chunks, as [`Output::SendChunks`] asked: up to `next`, `bytes` in all. It calls this with `next`
    /// equal to the first offset if the chunks cannot be read now.
    pub fn sent_chunks(
        &mut self,
        to: NodeId,
        attachment: Attachment,
        next: u64,
        bytes: u64,
        now: Time,
    ) {
        if let Role::Leader(leader) = &mut self.role {
            leader.sent_chunks(&mut self.core, to, attachment, (next, bytes), now);
        }
    }

    /// A message of another member, but [`MemberMessage::Chunks`].
    pub fn receive(&mut self, from: NodeId, message: MemberMessage, now: Time) {
        if message.epoch() != self.core.term {
            return;
        }
        // Any member of this term may ask; the answer says nothing but the end of the log.
        match (&mut self.role, message) {
            (_, MemberMessage::AskEnd { epoch }) => {
                let end = self.core.log.end();
                let intact = self.core.intact;
                let message = MemberMessage::End { epoch, end, intact };
                if from != self.core.id {
                    self.core.send(from, message);
                }
            }
            (Role::Leader(leader), message) => leader.receive(&mut self.core, from, message, now),
            (Role::Follower(follower), message) if follower.leader() == from => {
                if follower.receive(&mut self.core, message) {
                    self.attach(now);
                }
            }
            (Role::Waiting | Role::Follower(_), _) => {}
        }
    }

    /// Chunks of another member, which the owner has checked: consecutive, with valid checksums. If the result is a token, the
    /// owner writes all of them and then calls [`written`](Self::written) with it. If not, it drops them.
    #[must_use]
    pub fn receive_chunks(
        &mut self,
        from: NodeId,
        message: &MemberMessage,
        chunks: &[ChunkHeader],
        now: Time,
    ) -> Option<WriteToken> {
        let Role::Follower(follower) = &mut self.role else {
            return None;
        };
        if follower.leader() != from || message.epoch() != self.core.term {
            return None;
        }
        match follower.receive_chunks(&mut self.core, message, chunks) {
            Ok(token) => token,
            Err(crate::follower::Gap) => {
                self.attach(now);
                None
            }
        }
    }

    /// When to call [`tick`](Self::tick). None while no answer is missing.
    pub fn deadline(&self) -> Option<Time> {
        match &self.role {
            Role::Waiting => None,
            Role::Leader(leader) => leader.deadline(&self.core),
            Role::Follower(follower) => follower.deadline(&self.core),
        }
    }

    /// Repeats what has had no answer for [`RETRY`](crate::RETRY).
    pub fn tick(&mut self, now: Time) {
        match &mut self.role {
            Role::Waiting => {}
            Role::Leader(leader) => leader.tick(&mut self.core, now),
            Role::Follower(follower) => {
                if follower.deadline(&self.core).is_some_and(|at| at <= now) {
                    self.attach(now);
                }
            }
        }
    }

    /// Takes the outputs since the last call, in their order.
    pub fn poll(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.core.outputs)
    }

    fn next_attachment(&mut self) -> Attachment {
        self.attachments += 1;
        Attachment {
            incarnation: self.incarnation.0,
            number: self.attachments,
        }
    }

    /// Attaches to the leader, or attaches anew.
    fn attach(&mut self, now: Time) {
        let attachment = self.next_attachment();
        if let Role::Follower(follower) = &mut self.role {
            follower.attach(&mut self.core, attachment, now);
        }
    }
}
