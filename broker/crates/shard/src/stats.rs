//! Figures of queues, gathered from their owners on every shard and node for the control plane.

use crate::frame::OwnerStats;
use crate::members::Plan;
use control::{QueueFacts, Reply, WalkProgress};
use env::{NodeId, Time};
use metadata::{QueueId, QueueRecord, Tree};
use queue::{DelayedDetails, HeadMessage, QueueCounters, ReadyDetails};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Owners that have told nothing for so long are left out.
pub(crate) const GATHER_WITHIN: Duration = Duration::from_secs(2);
/// Requests that gather at the same time, at most; the oldest is answered early beyond that.
const MAX_GATHERING: usize = 256;

/// What the figures are for.
pub enum StatsPurpose {
    Tell(Reply<Vec<QueueFacts>>),
    /// Only of the queues of this node, as they come.
    TellOwn(Vec<QueueFacts>, Reply<Vec<QueueFacts>>),
    /// Only the ids of those that fit.
    Select(Select),
    CarryOut(Plan),
}

pub(crate) type Predicate = Box<dyn Fn(&QueueRecord, &QueueFacts) -> bool + Send>;

/// Queues that fit.
pub struct Select {
    pub fits: Predicate,
    pub found: Vec<QueueId>,
    pub reply: Reply<Vec<QueueId>>,
}

impl StatsPurpose {
    /// The node that replicas are asked about.
    pub fn counting(&self) -> Option<NodeId> {
        match self {
            StatsPurpose::CarryOut(Plan::Forget { node, .. }) => Some(*node),
            _ => None,
        }
    }
}

/// What a shard tells, or a part of it.
#[derive(Debug, Default)]
pub struct ShardStats {
    pub stats: Vec<OwnerStats>,
    pub counting: Vec<QueueId>,
    /// Of quorum queues with ready messages.
    pub ready: Vec<(QueueId, ReadyDetails)>,
    /// Of quorum queues with delayed messages.
    pub delayed: Vec<(QueueId, DelayedDetails)>,
    /// The oldest ready message of each queue that has one.
    pub heads: Vec<(QueueId, HeadMessage)>,
}

/// Details that precede the statistics of their queues.
#[derive(Debug, Default)]
struct Details {
    ready: BTreeMap<QueueId, ReadyDetails>,
    delayed: BTreeMap<QueueId, DelayedDetails>,
    heads: BTreeMap<QueueId, HeadMessage>,
}

impl Details {
    fn add_to(&mut self, owner: NodeId, told: OwnerStats) -> QueueFacts {
        let delayed = self.delayed.remove(&told.queue);
        let mut stats = told.stats;
        if let Some(delayed) = delayed {
            stats.delayed = delayed.messages;
            stats.delayed_bytes = delayed.bytes;
        }
        QueueFacts {
            id: told.queue,
            leader: Some(owner),
            members: told.members,
            online: told.online,
            stats: Some(stats),
            counters: told.counters,
            ready: self.ready.remove(&told.queue),
            delayed,
            head: self.heads.remove(&told.queue),
        }
    }
}

struct PendingStats {
    then: StatsPurpose,
    only: Option<QueueId>,
    /// The node that replicas are asked about.
    counting: Option<NodeId>,
    /// Queues with a replica that counts it, whoever leads.
    counted: BTreeSet<QueueId>,
    /// Answers still to come: (node, shard) ends with its `last` frame; counted, not named.
    left: usize,
    found: BTreeMap<QueueId, (NodeId, OwnerStats)>,
    details: Details,
    until: Time,
}

#[derive(Default)]
pub(crate) struct StatsRequests {
    next: u64,
    gathering: BTreeMap<u64, PendingStats>,
}

impl StatsRequests {
    /// Begins one that waits for `asked` answers; returns its token and what must be answered early to make room.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        only: Option<QueueId>,
        asked: usize,
        then: StatsPurpose,
    ) -> (u64, Option<u64>) {
        self.next += 1;
        let gathering = PendingStats {
            counting: then.counting(),
            counted: BTreeSet::new(),
            then,
            only,
            left: asked,
            found: BTreeMap::new(),
            details: Details::default(),
            until: now + GATHER_WITHIN,
        };
        self.gathering.insert(self.next, gathering);
        let early = (self.gathering.len() > MAX_GATHERING)
            .then(|| self.gathering.keys().next().copied())
            .flatten();
        (self.next, early)
    }

    /// Takes an answer in, or a part of one; true when all are there.
    pub(crate) fn take(
        &mut self,
        token: u64,
        (from, now): (NodeId, Time),
        last: bool,
        told: ShardStats,
    ) -> bool {
        let Some(g) = self.gathering.get_mut(&token) else {
            return false;
        };
        g.until = now + GATHER_WITHIN;
        let ShardStats {
            stats,
            counting,
            ready,
            delayed,
            heads,
        } = told;
        g.counted.extend(counting);
        g.details.ready.extend(ready);
        g.details.delayed.extend(delayed);
        g.details.heads.extend(heads);
        let stats = stats.into_iter();
        match &mut g.then {
            StatsPurpose::TellOwn(facts, _) => {
                facts.extend(stats.map(|s| g.details.add_to(from, s)));
            }
            _ => g.found.extend(stats.map(|s| (s.queue, (from, s)))),
        }
        g.left -= usize::from(last && g.left > 0);
        g.left == 0
    }

    /// Takes in details about ready messages, which precede the statistics of their queues.
    pub(crate) fn take_ready(&mut self, token: u64, ready: Vec<(QueueId, ReadyDetails)>) {
        if let Some(g) = self.gathering.get_mut(&token) {
            g.details.ready.extend(ready);
        }
    }

    /// Takes in details about delayed messages, which precede the statistics of their queues.
    pub(crate) fn take_delayed(&mut self, token: u64, delayed: Vec<(QueueId, DelayedDetails)>) {
        if let Some(g) = self.gathering.get_mut(&token) {
            g.details.delayed.extend(delayed);
        }
    }

    /// Takes in the oldest ready messages, which precede the statistics of their queues.
    pub(crate) fn take_heads(&mut self, token: u64, heads: Vec<(QueueId, HeadMessage)>) {
        if let Some(g) = self.gathering.get_mut(&token) {
            g.details.heads.extend(heads);
        }
    }

    /// Answers of other shards or nodes are awaited.
    pub(crate) fn is_gathering(&self) -> bool {
        !self.gathering.is_empty()
    }

    /// Those whose time is up.
    pub(crate) fn late(&self, now: Time) -> Vec<u64> {
        self.gathering
            .iter()
            .filter(|(_, g)| now >= g.until)
            .map(|(t, _)| *t)
            .collect()
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.gathering.values().map(|g| g.until).min()
    }

    /// Ends the wait.
    pub(crate) fn finish(&mut self, token: u64) -> Option<StatsResult> {
        let g = self.gathering.remove(&token)?;
        Some(match g.then {
            StatsPurpose::TellOwn(facts, reply) => StatsResult::Own(facts, reply),
            then => StatsResult::Merge(Box::new(Merge {
                next: g.only.unwrap_or(QueueId::NONE),
                last: g.only.unwrap_or(QueueId(u64::MAX)),
                counting: g.counting,
                counted: g.counted,
                found: g.found,
                details: g.details,
                facts: Vec::new(),
                from_all: g.left == 0,
                then,
            })),
        })
    }
}

/// All have told, or their time is up.
pub(crate) enum StatsResult {
    Own(Vec<QueueFacts>, Reply<Vec<QueueFacts>>),
    Merge(Box<Merge>),
}

/// Puts together what owners told and what the tree says: every queue of the tree, with figures where its owner told.
pub struct Merge {
    next: QueueId,
    last: QueueId,
    counting: Option<NodeId>,
    counted: BTreeSet<QueueId>,
    found: BTreeMap<QueueId, (NodeId, OwnerStats)>,
    details: Details,
    pub facts: Vec<QueueFacts>,
    /// Nobody who was asked is missing.
    pub from_all: bool,
    pub then: StatsPurpose,
}

impl Merge {
    /// True if it is about one queue.
    pub fn is_single(&self) -> bool {
        self.next == self.last
    }

    /// Goes on with so many queues at most. The last step has seen all queues that the tree has then, for ids only grow.
    pub fn step(&mut self, tree: &Tree, limit: usize) -> WalkProgress {
        let mut looked_at = 0;
        let last = self.last;
        let ids = tree.queue_ids_from(self.next);
        for id in ids.take_while(|id| *id <= last).take(limit) {
            looked_at += 1;
            self.next = QueueId(id.0.saturating_add(1));
            let Some(record) = tree.queue_by_id(id) else {
                continue;
            };
            let facts = self.facts_about(record);
            match &mut self.then {
                StatsPurpose::Select(select) if (select.fits)(record, &facts) => {
                    select.found.push(id)
                }
                StatsPurpose::Select(_) => {}
                _ => self.facts.push(facts),
            }
        }
        WalkProgress {
            looked_at,
            done: looked_at < limit,
        }
    }

    /// Without a leader's word a queue's members are those it is to have, and the node that replicas were asked about if one of
    /// them counts it.
    fn facts_about(&mut self, record: &QueueRecord) -> QueueFacts {
        if let Some((owner, told)) = self.found.remove(&record.id) {
            return self.details.add_to(owner, told);
        }
        let counted = self.counting.filter(|_| self.counted.contains(&record.id));
        let new = counted.filter(|n| !record.members.contains(n));
        QueueFacts {
            id: record.id,
            leader: None,
            members: record.members.iter().copied().chain(new).collect(),
            online: vec![],
            stats: None,
            counters: QueueCounters::default(),
            ready: None,
            delayed: None,
            head: None,
        }
    }
}
