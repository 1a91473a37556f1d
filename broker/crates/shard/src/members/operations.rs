//! What operators ask for: members, leaders, maintenance, nodes that leave. Decided with what all owners tell just then.

use super::rebalance::LedQueue;
use super::resize::{CurrentMembers, resized};
use crate::cluster::Topology;
use control::{
    ForgetProgress, MaintenanceProgress, MemberChange, MemberOutcome, QueueFacts, RecoveryStep,
    Reply,
};
use env::NodeId;
use metadata::{ChangeError, QueueId};
use std::collections::{BTreeMap, BTreeSet};

/// What is done when the facts about the queues are there.
pub enum Plan {
    Members {
        queues: Vec<QueueId>,
        change: MemberChange,
        reply: Reply<Vec<MemberOutcome>>,
    },
    Forget {
        node: NodeId,
        /// The queues that are asked are those of the tree after this change. None: older programs of the cluster do not
        /// know what came to a node later.
        seen: u64,
        reply: Reply<Result<ForgetProgress, ChangeError>>,
    },
    RecoverQueues(Reply<Result<RecoveryStep, ChangeError>>),
    Rebalance(Reply<u32>),
    Drained {
        on: bool,
        connections_left: u32,
        reply: Reply<MaintenanceProgress>,
    },
}

/// A queue, the members it has, and those it is to have.
pub(super) type MembershipDecision = (QueueId, Vec<NodeId>, Result<Vec<NodeId>, ChangeError>);

/// Changes of members whose answers are collected.
#[derive(Default)]
pub(crate) struct PendingMemberChanges {
    next: u64,
    open: BTreeMap<u64, CollectedOutcomes>,
}

struct CollectedOutcomes {
    left: usize,
    outcomes: Vec<MemberOutcome>,
    reply: Reply<Vec<MemberOutcome>>,
}

impl PendingMemberChanges {
    /// Collects this many outcomes for an operator. Returns the token of the collection.
    pub(crate) fn begin(&mut self, count: usize, reply: Reply<Vec<MemberOutcome>>) -> u64 {
        self.next += 1;
        let token = self.next;
        let collected = CollectedOutcomes {
            left: count,
            outcomes: Vec::new(),
            reply,
        };
        self.open.insert(token, collected);
        self.finish(token);
        token
    }

    pub(crate) fn take(&mut self, token: u64, outcome: MemberOutcome) {
        let Some(open) = self.open.get_mut(&token) else {
            return;
        };
        open.outcomes.push(outcome);
        open.left = open.left.saturating_sub(1);
        self.finish(token);
    }

    fn finish(&mut self, token: u64) {
        if self.open.get(&token).is_some_and(|open| open.left == 0)
            && let Some(mut done) = self.open.remove(&token)
        {
            done.outcomes.sort_by_key(|o| o.queue);
            (done.reply)(done.outcomes);
        }
    }
}

/// What operators may do.
impl Topology<'_> {
    pub fn decide_members(
        &self,
        queues: &[QueueId],
        change: MemberChange,
        facts: &[QueueFacts],
    ) -> Vec<MembershipDecision> {
        let facts: BTreeMap<QueueId, &QueueFacts> = facts.iter().map(|f| (f.id, f)).collect();
        let candidates = self.candidates();
        let decide = |id: &QueueId| {
            let Some(record) = self.tree().queue_by_id(*id) else {
                let gone = ChangeError::NotFound("the queue is gone".into());
                return (*id, Vec::new(), Err(gone));
            };
            let now = CurrentMembers {
                record,
                facts: facts.get(id).copied(),
                candidates: &candidates,
                up: &|n| self.is_up(n),
                name: &|n| self.name_of(n),
            };
            (*id, record.members.clone(), resized(change, &now))
        };
        queues.iter().map(decide).collect()
    }

    /// Why a node cannot be forgotten that a queue without a leader counts among its members, and what can be done.
    pub fn without_leader(&self, queue: QueueId, node: NodeId) -> ChangeError {
        let record = self.tree().queue_by_id(queue);
        let (name, vhost) =
            record.map_or_else(Default::default, |r| (r.name.clone(), r.vhost.clone()));
        let members = record.map_or(&[][..], |r| &r.members);
        let needed: BTreeSet<NodeId> = members.iter().copied().chain([node]).collect();
        // A node that was removed never returns, and has no name.
        let there = needed
            .into_iter()
            .filter(|n| self.tree().node(*n).is_some());
        let down = there.filter(|n| !self.is_up(*n));
        let down: Vec<String> = down.map(|n| format!("'{}'", self.name_of(n))).collect();
        let way_out = match down.is_empty() {
            true => "try again in a moment".to_owned(),
            false => format!("start node(s) {}, or delete the queue", down.join(", ")),
        };
        ChangeError::Unavailable(format!(
            "queue '{name}' in vhost '{vhost}' has no leader that can be reached, and node '{}' is a member of it or may be one: {way_out}",
            self.name_of(node)
        ))
    }

    /// Whether a node that runs may be forgotten: it takes no clients, and hears of its end from the one that is asked.
    pub fn may_leave(&self, node: NodeId) -> Result<(), ChangeError> {
        let name = self.name_of(node);
        if node == self.ctx().node() {
            return Err(ChangeError::PreconditionFailed(format!(
                "node '{name}' cannot forget itself; ask another one"
            )));
        }
        match self.tree().node(node) {
            Some(known) if !known.maintenance => Err(ChangeError::PreconditionFailed(format!(
                "node '{name}' is running; begin its maintenance, or stop it, before it is forgotten"
            ))),
            _ => Ok(()),
        }
    }

    /// Who leads which quorum queue, and who could.
    pub fn led(&self, facts: &[QueueFacts]) -> Vec<LedQueue> {
        let able = |n: &NodeId| {
            let node = self.tree().node(*n);
            node.is_some_and(|n| !n.maintenance && self.is_up(n.id))
        };
        let is_quorum = |f: &&QueueFacts| {
            let record = self.tree().queue_by_id(f.id);
            record.is_some_and(|r| r.kind.is_replicated())
        };
        let led = facts.iter().filter(is_quorum).filter_map(|f| {
            let there = f.members.iter().filter(|n| f.online.contains(n));
            Some(LedQueue {
                queue: f.id,
                leader: f.leader?,
                able: there.filter(|n| able(n)).copied().collect(),
            })
        });
        led.collect()
    }
}
