//! Figures of queues, gathered from their owners on every shard and node for the control plane.

use crate::frame::OwnerStats;
use crate::members::Plan;
use control::{QueueFacts, Reply};
use env::{NodeId, Time};
use metadata::{QueueId, Tree};
use queue::QueueCounters;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// An owner that has not answered by then is left out.
pub const GATHER_WITHIN: Duration = Duration::from_secs(2);
/// Requests that gather at the same time, at most; the oldest is answered early beyond that.
const MAX_GATHERING: usize = 256;

/// Queues whose figures are told in one turn: more, and what clients send would have to wait.
pub const STEP: usize = 1_000;
/// Walks that wait for their turn, at most: who asks beyond that hears nothing, and does without.
const MAX_WALKS: usize = 1_024;

/// Who wants the figures of all queues here.
#[derive(Clone, Copy)]
pub struct Asked {
    pub from: NodeId,
    pub token: u64,
    pub reply_shard: u16,
    /// The node that replicas are asked about.
    pub counting: Option<NodeId>,
}

/// Answers that take several turns, one after the other.
#[derive(Default)]
pub struct Walks {
    waiting: VecDeque<Asked>,
    /// Of the first one: the queues that are still to be told of.
    left: Option<std::vec::IntoIter<QueueId>>,
}

impl Walks {
    pub fn add(&mut self, asked: Asked) {
        if self.waiting.len() < MAX_WALKS {
            self.waiting.push_back(asked);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next step of the first one: the queues of this turn, and whether they are the last. `all` lists them when it begins.
    pub fn step(
        &mut self,
        all: impl FnOnce() -> Vec<QueueId>,
    ) -> Option<(Asked, Vec<QueueId>, bool)> {
        let asked = *self.waiting.front()?;
        let left = self.left.get_or_insert_with(|| all().into_iter());
        let part: Vec<QueueId> = left.by_ref().take(STEP).collect();
        let last = left.len() == 0;
        if last {
            self.left = None;
            self.waiting.pop_front();
        }
        Some((asked, part, last))
    }
}

/// What the figures are for.
pub enum Then {
    Tell(Reply<Vec<QueueFacts>>),
    /// Only of the queues of this node, as they come.
    TellOwn(Vec<QueueFacts>, Reply<Vec<QueueFacts>>),
    CarryOut(Plan),
}

impl Then {
    /// The node that replicas are asked about.
    pub fn counting(&self) -> Option<NodeId> {
        match self {
            Then::CarryOut(Plan::Forget { node, .. }) => Some(*node),
            Then::CarryOut(_) | Then::Tell(_) | Then::TellOwn(..) => None,
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
        let stats = stats.into_iter();
        match &mut g.then {
            Then::TellOwn(facts, _) => facts.extend(stats.map(|s| facts_of(from, s))),
            _ => g.found.extend(stats.map(|s| (s.queue, (from, s)))),
        }
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
        let then = match g.then {
            Then::TellOwn(facts, reply) => {
                return Some(Finished {
                    facts,
                    from_all: g.left == 0,
                    then: Then::Tell(reply),
                });
            }
            then => then,
        };
        let queues: Vec<_> = match g.only {
            Some(id) => tree.queue_by_id(id).into_iter().collect(),
            None => tree.all_queues().collect(),
        };
        let mut found = g.found;
        let facts = queues
            .into_iter()
            .map(|record| match found.remove(&record.id) {
                Some((owner, told)) => facts_of(owner, told),
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
            then,
        })
    }
}

fn facts_of(owner: NodeId, told: OwnerStats) -> QueueFacts {
    QueueFacts {
        id: told.queue,
        leader: Some(owner),
        members: told.members,
        online: told.online,
        stats: Some(told.stats),
        counters: told.counters,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_takes_as_many_steps_as_it_needs_and_the_next_one_waits() {
        let mut walks = Walks::default();
        let asked = |token| Asked {
            from: NodeId(1),
            token,
            reply_shard: 0,
            counting: None,
        };
        walks.add(asked(1));
        walks.add(asked(2));
        let all = || (1..=STEP as u64 + 1).map(QueueId).collect::<Vec<_>>();
        let (first, part, last) = walks.step(all).expect("a walk");
        assert_eq!((first.token, part.len(), last), (1, STEP, false));
        let (first, part, last) = walks.step(Vec::new).expect("the rest of it");
        assert_eq!((first.token, part.len(), last), (1, 1, true));
        let (second, part, last) = walks.step(Vec::new).expect("the next");
        assert_eq!((second.token, part.len(), last), (2, 0, true));
        assert!(walks.is_empty() && walks.step(all).is_none());
    }

    #[test]
    fn only_so_many_wait() {
        let mut walks = Walks::default();
        for token in 0..2 * MAX_WALKS as u64 {
            walks.add(Asked {
                from: NodeId(1),
                token,
                reply_shard: 0,
                counting: None,
            });
        }
        assert_eq!(walks.waiting.len(), MAX_WALKS);
    }
}
