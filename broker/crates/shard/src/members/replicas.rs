//! The state that each replica of a queue reports: requested from all nodes that may have one, complete when all have
//! answered or the time is up.

use super::frame::ReplicaReport;
use crate::stats::GATHER_WITHIN;
use control::{ReplicaFacts, Reply, VotingState};
use env::{NodeId, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Questions that are open at the same time; the oldest is answered early beyond that.
const MAX_OPEN: usize = 256;

struct ReplicaQuery {
    reply: Reply<Vec<ReplicaFacts>>,
    /// Members as they are to be: told about whether they answer or not.
    wanted: Vec<NodeId>,
    silent: BTreeSet<NodeId>,
    told: BTreeMap<NodeId, ReplicaReport>,
    until: Time,
}

#[derive(Default)]
pub(crate) struct ReplicaQueries {
    next: u64,
    open: BTreeMap<u64, ReplicaQuery>,
}

impl ReplicaQueries {
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.open.values().map(|q| q.until).min()
    }

    pub(crate) fn tick(&mut self, now: Time) {
        if self.open.is_empty() {
            return;
        }
        let late = self.open.extract_if(.., |_, q| now >= q.until);
        let late: Vec<ReplicaQuery> = late.map(|(_, q)| q).collect();
        late.into_iter().for_each(ReplicaQuery::finish);
    }

    /// Begins a query of these nodes. `members`: the nodes that the answer names in any case. Returns its token.
    pub(crate) fn begin(
        &mut self,
        now: Time,
        asked: BTreeSet<NodeId>,
        members: Vec<NodeId>,
        reply: Reply<Vec<ReplicaFacts>>,
    ) -> u64 {
        self.next += 1;
        let question = ReplicaQuery {
            reply,
            wanted: members,
            silent: asked,
            told: BTreeMap::new(),
            until: now + GATHER_WITHIN,
        };
        self.open.insert(self.next, question);
        if self.open.len() > MAX_OPEN
            && let Some((_, oldest)) = self.open.pop_first()
        {
            oldest.finish();
        }
        self.next
    }

    pub(crate) fn take(&mut self, from: NodeId, token: u64, told: ReplicaReport) {
        let Some(question) = self.open.get_mut(&token) else {
            return;
        };
        if question.silent.remove(&from) {
            question.told.insert(from, told);
        }
        if question.silent.is_empty()
            && let Some(question) = self.open.remove(&token)
        {
            question.finish();
        }
    }
}

impl ReplicaQuery {
    fn finish(self) {
        let leaders = self.told.values().filter(|t| {
            let leads = |r: &control::ReplicaStatus| r.is_leader;
            t.replica.as_ref().is_some_and(leads)
        });
        // One that has been replaced may not know it yet.
        let leader = leaders.max_by_key(|t| t.replica.map(|r| r.term));
        let votes: BTreeMap<NodeId, VotingState> =
            leader.map(|t| t.votes.iter().collect()).unwrap_or_default();
        let holds = |n: &&NodeId| self.told.get(*n).is_some_and(|t| t.replica.is_some());
        let nodes: BTreeSet<NodeId> = self
            .wanted
            .iter()
            .chain(votes.keys())
            .chain(self.told.keys().filter(holds))
            .copied()
            .collect();
        let facts = nodes.into_iter().map(|node| ReplicaFacts {
            node,
            vote: match (leader, votes.get(&node)) {
                (None, _) => VotingState::Unknown,
                (Some(_), vote) => vote.copied().unwrap_or(VotingState::None),
            },
            replica: self.told.get(&node).and_then(|t| t.replica),
        });
        (self.reply)(facts.collect());
    }
}
