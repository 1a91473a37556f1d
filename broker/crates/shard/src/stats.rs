//! Figures of queues, gathered from their owners on every shard and node for the control plane.

use crate::frame::OwnerStats;
use crate::members::Plan;
use control::{QueueFacts, Reply};
use env::{NodeId, Time};
use metadata::{QueueId, Tree};
use queue::QueueCounters;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// An owner that has not answered by then is left out.
pub const GATHER_WITHIN: Duration = Duration::from_secs(2);
/// Requests that gather at the same time, at most; the oldest is answered early beyond that.
const MAX_GATHERING: usize = 256;

/// What the figures are for.
pub enum Then {
    Tell(Reply<Vec<QueueFacts>>),
    CarryOut(Plan),
}

impl Then {
    /// The node that replicas are asked about.
    pub fn counting(&self) -> Option<NodeId> {
        match self {
            Then::CarryOut(Plan::Forget { node, .. }) => Some(*node),
            Then::CarryOut(_) | Then::Tell(_) => None,
        }
    }
}

/// What came of it.
pub struct Finished {
    pub facts: Vec<QueueFacts>,
    /// Nobody who was asked is missing.
    pub from_all: bool,
    pub then: Then,
}

/// What a shard tells, or a part of it.
#[derive(Debug, Default)]
pub struct ShardStats {
    pub stats: Vec<OwnerStats>,
    pub counting: Vec<QueueId>,
}

struct Gathering {
    then: Then,
    only: Option<QueueId>,
    /// The node that replicas are asked about.
    counting: Option<NodeId>,
    /// Queues with a replica that counts it, whoever leads.
    counted: BTreeSet<QueueId>,
    /// Answers still to come: (node, shard) ends with its `last` frame; counted, not named.
    left: usize,
    found: BTreeMap<QueueId, (NodeId, OwnerStats)>,
    until: Time,
}

#[derive(Default)]
pub struct StatsRequests {
    next: u64,
    gathering: BTreeMap<u64, Gathering>,
}

impl StatsRequests {
    /// Begins one that waits for `asked` answers; returns its token and what must be answered early to make room.
    pub fn begin(
        &mut self,
        now: Time,
        only: Option<QueueId>,
        asked: usize,
        then: Then,
    ) -> (u64, Option<u64>) {
        self.next += 1;
        let gathering = Gathering {
            counting: then.counting(),
            counted: BTreeSet::new(),
            then,
            only,
            left: asked,
            found: BTreeMap::new(),
            until: now + GATHER_WITHIN,
        };
        self.gathering.insert(self.next, gathering);
        let early = (self.gathering.len() > MAX_GATHERING)
            .then(|| self.gathering.keys().next().copied())
            .flatten();
        (self.next, early)
    }

    /// Takes an answer in; true when all are there.
    pub fn take(&mut self, token: u64, from: NodeId, last: bool, told: ShardStats) -> bool {
        let Some(g) = self.gathering.get_mut(&token) else {
            return false;
        };
        let ShardStats { stats, counting } = told;
        g.counted.extend(counting);
        g.found
            .extend(stats.into_iter().map(|s| (s.queue, (from, s))));
        g.left -= usize::from(last && g.left > 0);
        g.left == 0
    }

    /// Those whose time is up.
    pub fn late(&self, now: Time) -> Vec<u64> {
        self.gathering
            .iter()
            .filter(|(_, g)| now >= g.until)
            .map(|(t, _)| *t)
            .collect()
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.gathering.values().map(|g| g.until).min()
    }

    /// What is there: every queue of the tree, with figures where its owner told. Without a leader's word a queue's members
    /// are those it is to have, and the node that replicas were asked about if one of them counts it.
    pub fn finish(&mut self, token: u64, tree: &Tree) -> Option<Finished> {
        let g = self.gathering.remove(&token)?;
        let queues: Vec<_> = match g.only {
            Some(id) => tree.queue_by_id(id).into_iter().collect(),
            None => tree.all_queues().collect(),
        };
        let mut found = g.found;
        let facts = queues
            .into_iter()
            .map(|record| match found.remove(&record.id) {
                Some((owner, told)) => QueueFacts {
                    id: record.id,
                    leader: Some(owner),
                    members: told.members,
                    online: told.online,
                    stats: Some(told.stats),
                    counters: told.counters,
                },
                None => QueueFacts {
                    id: record.id,
                    leader: None,
                    members: {
                        let counted = g.counting.filter(|_| g.counted.contains(&record.id));
                        let new = counted.filter(|n| !record.members.contains(n));
                        record.members.iter().copied().chain(new).collect()
                    },
                    online: vec![],
                    stats: None,
                    counters: QueueCounters::default(),
                },
            });
        Some(Finished {
            facts: facts.collect(),
            from_all: g.left == 0,
            then: g.then,
        })
    }
}
