//! What can be told of the queues that are led or live here.

use super::{LocalQueues, QueueReplica};
use crate::frame::OwnerStats;
use crate::stats::ShardStats;
use consensus::{GroupId, RaftHost};
use control::{QueueTotals, RaftCounters};
use env::NodeId;
use metadata::QueueId;
use queue::{ConsumerInfo, DeathCounts, DelayedDetails, Queue, ReadyDetails};

impl LocalQueues {
    /// Ids of the queues here from this one on, in order.
    pub fn ids_from(&self, first: QueueId) -> impl Iterator<Item = QueueId> {
        self.ids.range(first..).copied()
    }

    /// The Raft groups of this shard.
    pub fn raft_counters(&self) -> RaftCounters {
        let counted = self.host.counters();
        RaftCounters {
            groups: self.host.groups() as u64,
            awake: self.host.awake() as u64,
            memory: self.host.memory() as u64,
            elections_won: counted.elections_won,
            refused: counted.bad_frames + counted.refused,
            failed_transfers: counted.failed_transfers,
            postponed_jobs: counted.postponed_jobs,
        }
    }

    /// Of these queues, those that are led or live here.
    fn stats_among(&self, queues: &[QueueId]) -> Vec<OwnerStats> {
        let stats = |id: &QueueId| self.stats_of(*id, self.queues.get(id)?);
        let mut all: Vec<OwnerStats> = queues.iter().filter_map(stats).collect();
        all.sort_by_key(|s| s.queue);
        all
    }

    /// Of queues that are led or live here.
    fn stats_of(&self, queue: QueueId, owned: &QueueReplica) -> Option<OwnerStats> {
        Some(match owned {
            QueueReplica::Classic(classic) => OwnerStats {
                queue,
                members: vec![],
                online: vec![],
                stats: classic.queue.stats(),
                counters: classic.queue.counters(),
            },
            QueueReplica::Quorum(quorum) if quorum.leads() => {
                self.group_stats(queue, &quorum.queue)?
            }
            QueueReplica::Stream(stream) if stream.leads() => {
                self.group_stats(queue, &stream.replica)?
            }
            QueueReplica::Quorum(_) | QueueReplica::Stream(_) => return None,
        })
    }

    fn group_stats(&self, queue: QueueId, replica: &dyn Queue) -> Option<OwnerStats> {
        let status = self.host.status(GroupId(queue.0))?;
        Some(OwnerStats {
            queue,
            // A member that still catches up has no vote yet.
            members: status.membership.voters,
            online: status.active,
            stats: replica.stats(),
            counters: replica.counters(),
        })
    }

    /// Of these queues, those with a replica that does not lead and, as far as it knows, has `node` in its group.
    fn counting(&self, queues: &[QueueId], node: NodeId) -> Vec<QueueId> {
        let counts = |id: &QueueId| {
            let owned = self.queues.get(id)?;
            let follows = owned.has_group() && !owned.leads_group();
            let members = self
                .host
                .status(GroupId(id.0))
                .filter(|_| follows)?
                .membership;
            let is_member = members.voters.contains(&node) || members.learners.contains(&node);
            is_member.then_some(*id)
        };
        let mut all: Vec<QueueId> = queues.iter().filter_map(counts).collect();
        all.sort_unstable();
        all
    }

    /// Of these queues, the quorum queues that are led here and have ready messages.
    fn ready_details(&self, queues: &[QueueId]) -> Vec<(QueueId, ReadyDetails)> {
        let details = |id: &QueueId| match self.queues.get(id)? {
            QueueReplica::Quorum(quorum) if quorum.leads() && quorum.stats().ready > 0 => {
                Some((*id, quorum.machine().ready_details()?))
            }
            QueueReplica::Classic(_) | QueueReplica::Quorum(_) | QueueReplica::Stream(_) => None,
        };
        queues.iter().filter_map(details).collect()
    }

    /// Of these queues, the quorum queues that are led here and have delayed messages.
    fn delayed_details(&self, queues: &[QueueId]) -> Vec<(QueueId, DelayedDetails)> {
        let details = |id: &QueueId| match self.queues.get(id)? {
            QueueReplica::Quorum(quorum) if quorum.leads() => {
                Some((*id, quorum.machine().delayed_details()?))
            }
            QueueReplica::Classic(_) | QueueReplica::Quorum(_) | QueueReplica::Stream(_) => None,
        };
        queues.iter().filter_map(details).collect()
    }

    /// The body bytes of all messages of each queue that is led or lives here, in any order.
    pub(crate) fn stored_bytes(&self) -> impl Iterator<Item = (QueueId, u64)> {
        let bytes =
            |(id, owned): (&QueueId, &QueueReplica)| Some((*id, owned.stats()?.all_bytes()));
        self.queues.iter().filter_map(bytes)
    }

    /// What a shard tells of these queues, without their oldest messages. `counting`: and which of them count this node.
    pub fn told(&self, queues: &[QueueId], counting: Option<NodeId>) -> ShardStats {
        ShardStats {
            stats: self.stats_among(queues),
            ready: self.ready_details(queues),
            delayed: self.delayed_details(queues),
            heads: Vec::new(),
            counting: counting.map_or(Vec::new(), |node| self.counting(queues, node)),
        }
    }

    /// Of queues that are led or live here, together: kept, not counted.
    pub fn totals(&self) -> QueueTotals {
        self.totals
    }

    /// Messages that died here, since the shard began.
    pub fn deaths(&self) -> &DeathCounts {
        self.said.deaths()
    }

    /// The same as [`totals`](Self::totals), counted.
    #[cfg(test)]
    pub fn recount(&self) -> QueueTotals {
        let mut totals = QueueTotals::default();
        let all = self.queues.values().filter_map(QueueReplica::stats);
        all.for_each(|stats| totals.add(&stats));
        totals
    }

    /// Of a queue that is led or lives here.
    pub fn consumers(&self, queue: QueueId) -> Vec<ConsumerInfo> {
        match self.queues.get(&queue) {
            Some(QueueReplica::Classic(classic)) => classic.queue.consumers(),
            Some(QueueReplica::Quorum(quorum)) if quorum.leads() => quorum.consumers(),
            // Each replica knows the cursors that it serves.
            Some(QueueReplica::Stream(stream)) => stream.consumers(),
            Some(QueueReplica::Quorum(_)) | None => Vec::new(),
        }
    }

    /// For checks: of each replica of a quorum queue here, how far it has applied and a number for its state.
    pub fn digests(&self) -> Vec<(QueueId, u64, u64)> {
        let quorum = self.queues.iter().filter_map(|(id, owned)| match owned {
            QueueReplica::Quorum(quorum) => Some((*id, quorum.machine())),
            QueueReplica::Classic(_) | QueueReplica::Stream(_) => None,
        });
        let mut all: Vec<_> = quorum
            .map(|(id, m)| (id, m.applied(), m.digest()))
            .collect();
        all.sort_unstable();
        all
    }
}
