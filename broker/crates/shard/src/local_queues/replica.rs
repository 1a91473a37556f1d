//! A queue of this shard, of any type, with what it has added to the shard's sums.

use super::stream::HostedStream;
use control::QueueTotals;
use queue::classic::ClassicQueue;
use queue::quorum::QuorumQueue;
use queue::{Queue, QueueStats};
use std::ops::{Deref, DerefMut};

pub(super) struct ClassicReplica {
    pub(super) queue: ClassicQueue,
    pub(super) auto_delete: bool,
    /// It had a consumer: an auto-delete queue goes with the last one.
    pub(super) used: bool,
    pub(super) counted: CountedStats,
}

pub(super) struct QuorumReplica {
    pub(super) queue: QuorumQueue,
    pub(super) counted: CountedStats,
}

impl Deref for QuorumReplica {
    type Target = QuorumQueue;
    fn deref(&self) -> &QuorumQueue {
        &self.queue
    }
}

impl DerefMut for QuorumReplica {
    fn deref_mut(&mut self) -> &mut QuorumQueue {
        &mut self.queue
    }
}

pub(super) enum QueueReplica {
    Classic(Box<ClassicReplica>),
    Quorum(Box<QuorumReplica>),
    Stream(Box<HostedStream>),
}

impl QueueReplica {
    pub(super) fn queue(&mut self) -> &mut dyn Queue {
        match self {
            QueueReplica::Classic(q) => &mut q.queue,
            QueueReplica::Quorum(q) => &mut q.queue,
            QueueReplica::Stream(s) => &mut s.replica,
        }
    }

    /// Returns true if the queue lives here or this replica leads it.
    pub(super) fn is_owner(&self) -> bool {
        match self {
            QueueReplica::Classic(_) => true,
            QueueReplica::Quorum(_) | QueueReplica::Stream(_) => self.leads_group(),
        }
    }

    /// Returns true if this replica leads the queue's Raft group and takes requests.
    pub(super) fn leads_group(&self) -> bool {
        match self {
            QueueReplica::Classic(_) => false,
            QueueReplica::Quorum(quorum) => quorum.leads(),
            QueueReplica::Stream(stream) => stream.leads(),
        }
    }

    /// Returns true if the queue has a Raft group.
    pub(super) fn has_group(&self) -> bool {
        !matches!(self, QueueReplica::Classic(_))
    }

    /// None: it is not led here.
    pub(super) fn stats(&self) -> Option<QueueStats> {
        match self {
            QueueReplica::Classic(classic) => Some(classic.queue.stats()),
            QueueReplica::Quorum(quorum) => quorum.leads().then(|| quorum.stats()),
            QueueReplica::Stream(stream) => stream.leads().then(|| stream.stats()),
        }
    }

    pub(super) fn counted(&mut self) -> &mut CountedStats {
        match self {
            QueueReplica::Classic(classic) => &mut classic.counted,
            QueueReplica::Quorum(quorum) => &mut quorum.counted,
            QueueReplica::Stream(stream) => &mut stream.counted,
        }
    }

    /// The end of the queue's turn: the totals follow.
    pub(super) fn count(&mut self, totals: &mut QueueTotals) {
        let stats = self.stats();
        self.counted().set(stats, totals);
    }
}

/// What a queue has added to the totals.
#[derive(Default)]
pub(super) struct CountedStats(Option<QueueStats>);

impl CountedStats {
    pub(super) fn set(&mut self, stats: Option<QueueStats>, totals: &mut QueueTotals) {
        if self.0 == stats {
            return;
        }
        if let Some(before) = &self.0 {
            totals.remove(before);
        }
        if let Some(stats) = &stats {
            totals.add(stats);
        }
        self.0 = stats;
    }
}
