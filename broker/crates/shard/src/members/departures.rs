//! Replicas of queues of which this node is no longer a member: kept until the queue's leader says that they are not
//! needed, then deleted. A node that was down at that time learns of it from its metadata.

use metadata::QueueId;
use std::collections::BTreeSet;

/// Leaders are asked about this many at a time; the others follow when these are gone or have been asked.
const ASK_AT_ONCE: usize = 500;

#[derive(Debug, Default)]
pub(crate) struct Departures {
    leftovers: BTreeSet<QueueId>,
    /// Their replicas are being deleted.
    leaving: BTreeSet<QueueId>,
    /// Where asking goes on.
    next: QueueId,
}

impl Departures {
    pub(crate) fn note(&mut self, queue: QueueId, is_member: bool) {
        match is_member {
            true => self.leftovers.remove(&queue),
            false => self.leftovers.insert(queue),
        };
    }

    pub(crate) fn forget(&mut self, queue: QueueId) {
        self.leftovers.remove(&queue);
        self.leaving.remove(&queue);
    }

    /// Forgets the replicas that have been deleted, and returns their queues.
    pub(crate) fn take_deleted(&mut self, has_replica: impl Fn(QueueId) -> bool) -> Vec<QueueId> {
        let leaving = self.leaving.iter().copied();
        let deleted: Vec<QueueId> = leaving.filter(|queue| !has_replica(*queue)).collect();
        deleted.iter().for_each(|queue| self.forget(*queue));
        deleted
    }

    /// The deletion of a replica has begun.
    pub(crate) fn begin_leaving(&mut self, queue: QueueId) {
        self.leaving.insert(queue);
    }

    /// The next to ask about, going round.
    pub(crate) fn turn(&mut self) -> Vec<QueueId> {
        let later = self.leftovers.range(self.next..);
        let all = later.chain(self.leftovers.range(..self.next));
        let turn: Vec<QueueId> = all.take(ASK_AT_ONCE).copied().collect();
        self.next = turn.last().map_or(QueueId(0), |q| QueueId(q.0 + 1));
        turn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_their_turn() {
        let mut departures = Departures::default();
        let last = 2 * ASK_AT_ONCE as u64 + 7;
        for id in 1..=last {
            departures.note(QueueId(id), false);
        }
        departures.note(QueueId(3), true);
        let mut asked = BTreeSet::new();
        for _ in 0..3 {
            let turn = departures.turn();
            assert_eq!(turn.len(), ASK_AT_ONCE);
            asked.extend(turn);
        }
        assert_eq!(asked.len() as u64, last - 1);
        let all: Vec<QueueId> = asked.into_iter().collect();
        all.iter().for_each(|q| departures.forget(*q));
        assert!(departures.turn().is_empty());
    }
}
