//! A queue of this shard: of either type, with what it has added to the shard's sums.

use control::QueueTotals;
use queue::classic::ClassicQueue;
use queue::quorum::QuorumQueue;
use queue::{Queue, QueueStats};
use std::ops::{Deref, DerefMut};

pub(super) struct Classic {
    pub(super) queue: ClassicQueue,
    pub(super) auto_delete: bool,
    /// It had a consumer: an auto-delete queue goes with the last one.
    pub(super) used: bool,
    pub(super) counted: Counted,
}

pub(super) struct Quorum {
    pub(super) queue: QuorumQueue,
    pub(super) counted: Counted,
}

impl Deref for Quorum {
    type Target = QuorumQueue;
    fn deref(&self) -> &QuorumQueue {
        &self.queue
    }
}

impl DerefMut for Quorum {
    fn deref_mut(&mut self) -> &mut QuorumQueue {
        &mut self.queue
    }
}

pub(super) enum Owned {
    Classic(Box<Classic>),
    Quorum(Box<Quorum>),
}

impl Owned {
    pub(super) fn queue(&mut self) -> &mut dyn Queue {
        match self {
            Owned::Classic(q) => &mut q.queue,
            Owned::Quorum(q) => &mut q.queue,
        }
    }

    /// None: it is not led here.
    pub(super) fn stats(&self) -> Option<QueueStats> {
        match self {
            Owned::Classic(classic) => Some(classic.queue.stats()),
            Owned::Quorum(quorum) => quorum.leads().then(|| quorum.stats()),
        }
    }

    pub(super) fn counted(&mut self) -> &mut Counted {
        match self {
            Owned::Classic(classic) => &mut classic.counted,
            Owned::Quorum(quorum) => &mut quorum.counted,
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
pub(super) struct Counted(Option<QueueStats>);

impl Counted {
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
