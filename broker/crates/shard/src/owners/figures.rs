//! What can be told of the queues that are led or live here.

use super::{Owned, Owners};
use crate::frame::OwnerStats;
use consensus::{GroupId, RaftHost};
use control::QueueTotals;
use env::NodeId;
use metadata::QueueId;
use queue::{ConsumerInfo, Queue};

impl Owners {
    pub fn stats(&self, only: Option<QueueId>) -> Vec<OwnerStats> {
        let mut all: Vec<OwnerStats> = match only {
            Some(id) => self
                .queues
                .get(&id)
                .and_then(|o| self.stats_of(id, o))
                .into_iter()
                .collect(),
            None => self
                .queues
                .iter()
                .filter_map(|(id, o)| self.stats_of(*id, o))
                .collect(),
        };
        all.sort_by_key(|s| s.queue);
        all
    }

    /// Of queues that are led or live here.
    fn stats_of(&self, queue: QueueId, owned: &Owned) -> Option<OwnerStats> {
        Some(match owned {
            Owned::Classic(classic) => OwnerStats {
                queue,
                members: vec![],
                online: vec![],
                stats: classic.queue.stats(),
                counters: classic.queue.counters(),
            },
            Owned::Quorum(quorum) if quorum.leads() => {
                let status = self.host.status(GroupId(queue.0))?;
                OwnerStats {
                    queue,
                    // Who has a vote: one that still catches up does not count yet.
                    members: status.membership.voters,
                    online: status.active,
                    stats: quorum.stats(),
                    counters: quorum.counters(),
                }
            }
            Owned::Quorum(_) => return None,
        })
    }

    /// Queues with a replica here that does not lead and, as far as it knows, has `node` in its group.
    pub fn counting(&self, node: NodeId) -> Vec<QueueId> {
        let counts = |(id, owned): (&QueueId, &Owned)| {
            let follows = matches!(owned, Owned::Quorum(quorum) if !quorum.leads());
            let members = self
                .host
                .status(GroupId(id.0))
                .filter(|_| follows)?
                .membership;
            let is_member = members.voters.contains(&node) || members.learners.contains(&node);
            is_member.then_some(*id)
        };
        let mut all: Vec<QueueId> = self.queues.iter().filter_map(counts).collect();
        all.sort_unstable();
        all
    }

    /// Of queues that are led or live here, together.
    pub fn totals(&self) -> QueueTotals {
        let mut totals = QueueTotals::default();
        for owned in self.queues.values() {
            match owned {
                Owned::Classic(classic) => totals.add(&classic.queue.stats()),
                Owned::Quorum(quorum) if quorum.leads() => totals.add(&quorum.stats()),
                Owned::Quorum(_) => {}
            }
        }
        totals
    }

    /// Of queues that are led or live here, by queue.
    pub fn consumers(&self) -> Vec<(QueueId, ConsumerInfo)> {
        let listed = self.queues.iter().map(|(id, owned)| match owned {
            Owned::Classic(classic) => (*id, classic.queue.consumers()),
            Owned::Quorum(quorum) if quorum.leads() => (*id, quorum.consumers()),
            Owned::Quorum(_) => (*id, Vec::new()),
        });
        let mut all: Vec<_> = listed
            .flat_map(|(id, consumers)| consumers.into_iter().map(move |c| (id, c)))
            .collect();
        all.sort_by_key(|(id, _)| *id);
        all
    }

    /// For checks: of each replica of a quorum queue here, how far it has applied and a number for its state.
    pub fn digests(&self) -> Vec<(QueueId, u64, u64)> {
        let quorum = self.queues.iter().filter_map(|(id, owned)| match owned {
            Owned::Quorum(quorum) => Some((*id, quorum.machine())),
            Owned::Classic(_) => None,
        });
        let mut all: Vec<_> = quorum
            .map(|(id, m)| (id, m.applied(), m.digest()))
            .collect();
        all.sort_unstable();
        all
    }
}
