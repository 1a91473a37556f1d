//! A node with one member of the stream and its disk.

use super::history::Chunk;
use env::{Incarnation, NodeId, Rng, SeededRng, Time};
use std::collections::VecDeque;
use stream_replication::{EpochTable, LogState, Member, WriteToken};

/// Work of the disk, done in order.
#[derive(Debug)]
pub(super) enum Job {
    Write {
        token: WriteToken,
        chunks: Vec<Chunk>,
    },
    Truncate {
        next: u64,
    },
    Reset {
        start: u64,
    },
}

#[derive(Debug)]
pub(super) struct Node {
    pub id: NodeId,
    /// None while the process does not run.
    pub member: Option<Member>,
    pub jobs: VecDeque<Job>,
    /// The chunks that are written.
    pub log: Vec<Chunk>,
    /// The oldest retained offset.
    pub start: u64,
    /// Everything before this offset survives a stop of the machine.
    synced: u64,
    /// Recorded on the disk.
    pub intact: bool,
    /// The term of the Raft group, on the disk.
    pub term: u64,
    incarnation: u64,
}

impl Node {
    pub(super) fn new(id: NodeId) -> Node {
        Node {
            id,
            member: None,
            jobs: VecDeque::new(),
            log: Vec::new(),
            start: 0,
            synced: 0,
            intact: true,
            term: 0,
            incarnation: 0,
        }
    }

    /// The offset after the last written chunk.
    pub(super) fn next(&self) -> u64 {
        self.log
            .last()
            .map_or(self.start, |chunk| chunk.header.next)
    }

    pub(super) fn start(&mut self, voters: &[NodeId], learners: &[NodeId], now: Time) {
        debug_assert!(self.member.is_none(), "{:?} runs", self.id);
        self.incarnation += 1;
        let mut epochs = EpochTable::starting_at(self.start);
        for Chunk { header, .. } in &self.log {
            let added = epochs.append(header.epoch, header.first, header.next);
            assert!(
                added,
                "{header:?} does not follow in the log of {:?}",
                self.id
            );
        }
        let log = LogState {
            epochs,
            intact: self.intact,
        };
        let mut member = Member::new(self.id, Incarnation(self.incarnation), log);
        member.set_members(voters, learners, now);
        member.set_term(self.term, None, now);
        self.member = Some(member);
    }

    /// The process ends. The writes that were not given to the operating system are lost.
    pub(super) fn kill(&mut self) {
        self.member = None;
        self.jobs.clear();
    }

    /// The machine ends. Everything that is not synced may be lost.
    pub(super) fn lose_power(&mut self, rng: &mut SeededRng) {
        self.kill();
        let kept = self
            .log
            .partition_point(|chunk| chunk.header.next <= self.synced);
        let unsynced = (self.log.len() - kept) as u64;
        let survivors = kept + rng.below(unsynced + 1) as usize;
        self.log.truncate(survivors);
        self.intact = false;
    }

    pub(super) fn sync(&mut self) {
        self.synced = self.next();
    }

    /// Retention deletes some of the oldest committed chunks, in its turn among the other work of the disk.
    pub(super) fn trim(&mut self, rng: &mut SeededRng) {
        let Some(member) = &mut self.member else {
            return;
        };
        let committed = member.committed().min(self.synced);
        let free = self
            .log
            .partition_point(|chunk| chunk.header.next <= committed);
        // The last committed chunk stays.
        let free = free.saturating_sub(1) as u64;
        let deleted = rng.below(free + 1) as usize;
        let Some(last) = deleted.checked_sub(1) else {
            return;
        };
        self.start = self.log[last].header.next;
        self.log.drain(..deleted);
        member.trimmed(self.start);
    }

    /// Does the next job of the disk.
    pub(super) fn work(&mut self, now: Time) {
        match self.jobs.pop_front() {
            None => {}
            Some(Job::Write { token, chunks }) => {
                self.log.extend(chunks);
                let next = self.next();
                if let Some(member) = &mut self.member {
                    member.written(token, next, now);
                }
            }
            Some(Job::Truncate { next }) => {
                self.log.retain(|chunk| chunk.header.next <= next);
                self.synced = self.synced.min(next);
            }
            Some(Job::Reset { start }) => {
                self.log.clear();
                self.start = start;
                self.synced = start;
            }
        }
    }
}
