//! Figures of queues, gathered from their owners on every shard and node for the control plane.

use crate::frame::OwnerStats;
use crate::members::Plan;
use control::{QueueFacts, Reply};
use env::{NodeId, Time};
use metadata::{QueueId, Tree};
use queue::QueueCounters;
use std::collections::BTreeMap;
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

struct Gathering {
    then: Then,
    only: Option<QueueId>,
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
    pub fn take(&mut self, token: u64, from: NodeId, last: bool, stats: Vec<OwnerStats>) -> bool {
        let Some(g) = self.gathering.get_mut(&token) else {
            return false;
        };
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

    /// What is there: every queue of the tree, with figures where its owner told.
    pub fn finish(&mut self, token: u64, tree: &Tree) -> Option<(Vec<QueueFacts>, Then)> {
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
                    members: record.members.clone(),
                    online: vec![],
                    stats: None,
                    counters: QueueCounters::default(),
                },
            });
        Some((facts.collect(), g.then))
    }
}
