//! What operators ask for: members, leaders, maintenance, nodes that leave. Decided with what all owners tell just then.

use super::frame::MembershipMessage;
use super::rebalance::{self, LedQueue};
use super::resize::{CurrentMembers, resized};
use crate::Route;
use crate::core::Core;
use crate::frame::Frame;
use crate::local_queues::transfer_targets::TransferTargets;
use crate::metadata_client::ChangeRequester;
use crate::placement;
use control::{
    Forgetting, MaintenanceProgress, MemberChange, MemberOutcome, MembershipRequest, QueueFacts,
    Reply,
};
use env::NodeId;
use metadata::{Change, ChangeError, ChangeResult, QueueId, QueueRecord};
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
        reply: Reply<Result<Forgetting, ChangeError>>,
    },
    Rebalance(Reply<u32>),
    Drained {
        on: bool,
        connections_left: u32,
        reply: Reply<MaintenanceProgress>,
    },
}

/// A queue, the members it has, and those it is to have.
type MembershipDecision = (QueueId, Vec<NodeId>, Result<Vec<NodeId>, ChangeError>);

/// Changes of members whose answers are collected.
#[derive(Default)]
pub struct PendingMemberChanges {
    next: u64,
    open: BTreeMap<u64, CollectedOutcomes>,
}

struct CollectedOutcomes {
    left: usize,
    outcomes: Vec<MemberOutcome>,
    reply: Reply<Vec<MemberOutcome>>,
}

impl PendingMemberChanges {
    fn take(&mut self, token: u64, outcome: MemberOutcome) {
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

impl Core {
    pub fn membership_request(&mut self, request: MembershipRequest) {
        match request {
            MembershipRequest::Change {
                queues,
                change,
                reply,
            } => {
                let only = match queues[..] {
                    [one] => Some(one),
                    _ => None,
                };
                let plan = Plan::Members {
                    queues,
                    change,
                    reply,
                };
                self.gather_for(only, plan);
            }
            MembershipRequest::Replicas { queue, reply } => self.ask_replicas(queue, reply),
            // A founder that is forgotten before the cluster has its first contents could never be given them.
            MembershipRequest::Forget { reply, .. } if self.tree.nodes().next().is_none() => {
                let text = "this node does not know its cluster yet; ask again";
                reply(Err(ChangeError::Unavailable(text.into())));
            }
            MembershipRequest::Forget { node, reply } => {
                let seen = self.tree.applied();
                self.gather_for(None, Plan::Forget { node, seen, reply });
            }
        }
    }

    pub fn carry_out_plan(&mut self, plan: Plan, facts: &[QueueFacts]) {
        match plan {
            Plan::Members {
                queues,
                change,
                reply,
            } => self.change_members(queues, change, facts, reply),
            Plan::Forget { node, seen, reply } => self.forget_node(node, seen, facts, reply),
            Plan::Rebalance(reply) => reply(self.rebalance(facts)),
            Plan::Drained {
                on,
                connections_left,
                reply,
            } => reply(MaintenanceProgress {
                on,
                leaders_left: self.leaders_left(facts),
                connections_left,
            }),
        }
    }

    fn change_members(
        &mut self,
        queues: Vec<QueueId>,
        change: MemberChange,
        facts: &[QueueFacts],
        reply: Reply<Vec<MemberOutcome>>,
    ) {
        let decided = self.decide_members(&queues, change, facts);
        let changes = &mut self.members.changes;
        changes.next += 1;
        let token = changes.next;
        let collected = CollectedOutcomes {
            left: decided.len(),
            outcomes: Vec::new(),
            reply,
        };
        changes.open.insert(token, collected);
        changes.finish(token);
        for (queue, from, result) in decided {
            match result {
                Ok(to) if to != from => {
                    let change = Change::ReplaceQueueMembers {
                        id: queue,
                        from,
                        to: to.clone(),
                    };
                    self.ask(change, ChangeRequester::Members { token, queue, to });
                }
                result => {
                    let outcome = MemberOutcome { queue, result };
                    self.members.changes.take(token, outcome);
                }
            }
        }
    }

    fn decide_members(
        &self,
        queues: &[QueueId],
        change: MemberChange,
        facts: &[QueueFacts],
    ) -> Vec<MembershipDecision> {
        let facts: BTreeMap<QueueId, &QueueFacts> = facts.iter().map(|f| (f.id, f)).collect();
        let candidates = self.candidates();
        let decide = |id: &QueueId| {
            let Some(record) = self.tree.queue_by_id(*id) else {
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

    pub fn members_changed(
        &mut self,
        token: u64,
        queue: QueueId,
        to: Vec<NodeId>,
        result: Result<ChangeResult, ChangeError>,
    ) {
        let result = result.map(|_| to);
        self.members
            .changes
            .take(token, MemberOutcome { queue, result });
    }

    fn name_of(&self, node: NodeId) -> String {
        let known = self.tree.node(node).map(|n| n.name.to_string());
        known.unwrap_or_else(|| format!("{:016x}", node.0))
    }

    /// A step towards a cluster without this node; asked again until it is forgotten.
    fn forget_node(
        &mut self,
        node: NodeId,
        seen: u64,
        facts: &[QueueFacts],
        reply: Reply<Result<Forgetting, ChangeError>>,
    ) {
        let runs = self.is_up(node);
        if runs && let Err(refused) = self.may_leave(node) {
            return reply(Err(refused));
        }
        // A queue that is to have other members counts it until its group has taken it out: its vote may be needed.
        let counts = |f: &&QueueFacts| {
            let record = self.tree.queue_by_id(f.id);
            record.is_some_and(|r| {
                let replicated = r.kind.is_replicated();
                // Nobody can tell while one that may lead it is down.
                let dark = f.leader.is_none() && r.members.iter().any(|m| !self.is_up(*m));
                replicated && (dark || r.members.contains(&node) || f.members.contains(&node))
            })
        };
        let queues: Vec<QueueId> = facts.iter().filter(counts).map(|f| f.id).collect();
        if queues.is_empty() {
            if let Err(refused) = self.tree.may_forget(node) {
                return reply(Err(refused));
            }
            if runs && !self.release(node) {
                return reply(Ok(Forgetting::Moving { queues: 0 }));
            }
            let then = Box::new(move |result: Result<ChangeResult, ChangeError>| {
                reply(result.map(|_| Forgetting::Forgotten));
            });
            let id = node;
            let change = Change::ForgetFreeNode { id, seen };
            return self.ask(change, ChangeRequester::Control(then));
        }
        let left = queues.len() as u32;
        let mut counting = facts.iter().filter(counts);
        let stuck = counting.find(|f| f.leader.is_none());
        let stuck = stuck.map(|f| self.without_leader(f.id, node));
        let then = Box::new(move |outcomes: Vec<MemberOutcome>| {
            let refused = outcomes.into_iter().find_map(|o| o.result.err());
            // The way out of it is in what is told of those that are stuck.
            reply(match stuck.or(refused) {
                Some(refused) => Err(refused),
                None => Ok(Forgetting::Moving { queues: left }),
            });
        });
        self.change_members(queues, MemberChange::Evacuate(node), facts, then);
    }

    /// Why a node cannot be forgotten that a queue without a leader counts among its members, and what can be done.
    fn without_leader(&self, queue: QueueId, node: NodeId) -> ChangeError {
        let record = self.tree.queue_by_id(queue);
        let (name, vhost) =
            record.map_or_else(Default::default, |r| (r.name.clone(), r.vhost.clone()));
        let members = record.map_or(&[][..], |r| &r.members);
        let needed: BTreeSet<NodeId> = members.iter().copied().chain([node]).collect();
        let down = needed.into_iter().filter(|n| !self.is_up(*n));
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
    fn may_leave(&self, node: NodeId) -> Result<(), ChangeError> {
        let name = self.name_of(node);
        if node == self.ctx.node() {
            return Err(ChangeError::PreconditionFailed(format!(
                "node '{name}' cannot forget itself; ask another one"
            )));
        }
        match self.tree.node(node) {
            Some(known) if !known.maintenance => Err(ChangeError::PreconditionFailed(format!(
                "node '{name}' is running; begin its maintenance, or stop it, before it is forgotten"
            ))),
            _ => Ok(()),
        }
    }

    /// Who leads which quorum queue, and who could.
    fn led(&self, facts: &[QueueFacts]) -> Vec<LedQueue> {
        let able = |n: &NodeId| {
            let node = self.tree.node(*n);
            node.is_some_and(|n| !n.maintenance && self.is_up(n.id))
        };
        let is_quorum = |f: &&QueueFacts| {
            let record = self.tree.queue_by_id(f.id);
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

    fn rebalance(&mut self, facts: &[QueueFacts]) -> u32 {
        let led = self.led(facts);
        let moves = rebalance::plan(&led);
        let count = moves.len() as u32;
        tracing::info!(event = "queue_leaders_rebalance", moves = count);
        for (queue, to) in moves {
            let leader = led.iter().find(|l| l.queue == queue).map(|l| l.leader);
            self.ask_to_lead(queue, leader.unwrap_or(to), to);
        }
        count
    }

    /// Asks the queue's leader to hand it over.
    fn ask_to_lead(&mut self, queue: QueueId, leader: NodeId, to: NodeId) {
        let peer_message = MembershipMessage::Lead { queue, to };
        if leader != self.ctx.node() {
            return self.ctx.send_to_peer(
                leader,
                Route::Owner(queue.0),
                &Frame::Members(peer_message),
            );
        }
        match self.ctx.owner_shard(queue) {
            shard if shard == self.ctx.shard() => self.queues.local_mut().hand_over(queue, to),
            shard => self.ctx.send_to_shard(shard, &Frame::Members(peer_message)),
        }
    }

    /// Leaders on this node that somebody else could take over.
    fn leaders_left(&self, facts: &[QueueFacts]) -> u32 {
        let me = self.ctx.node();
        let movable = |l: &&LedQueue| l.leader == me && l.able.iter().any(|n| *n != me);
        let queues = self.led(facts).iter().filter(movable).count();
        let avoid = self.drained();
        let metadata = self
            .queues
            .local()
            .metadata_is_movable(&self.transfer_targets(&avoid));
        queues as u32 + u32::from(metadata)
    }

    /// Who may take over what is led here; `avoid`: nodes that are not to.
    pub fn transfer_targets<'a>(&'a self, avoid: &'a [NodeId]) -> TransferTargets<'a> {
        TransferTargets {
            me: self.ctx.node(),
            tree: &self.tree,
            peers: &self.peers,
            avoid,
        }
    }

    /// Nodes that leaders are not to move to.
    pub fn drained(&self) -> Vec<NodeId> {
        let drained = self.tree.nodes().filter(|n| n.maintenance);
        drained.map(|n| n.id).collect()
    }

    /// Members for a queue that is about to be declared, the one that is to lead it first.
    pub fn place(&self, queue: &QueueRecord) -> Vec<NodeId> {
        let me = self.ctx.node();
        if !queue.kind.is_replicated() {
            return vec![me];
        }
        let placement_request = self.tree.placement_request(queue);
        let target = placement_request
            .target
            .max(self.ctx.config().placement.target_group_size);
        let replicas = match placement_request.initial {
            0 => target.max(placement::DEFAULT_REPLICAS),
            said => said,
        };
        let candidates = self.candidates();
        let mut members = placement::new_members(me, &candidates, replicas);
        placement::lead_first(&mut members, me, &candidates, placement_request.locator);
        members
    }

    pub fn take_members_message(&mut self, from: NodeId, peer_message: MembershipMessage) {
        match peer_message {
            MembershipMessage::Lead { queue, to } => self.queues.local_mut().hand_over(queue, to),
            MembershipMessage::ReplicaRequest {
                token,
                reply_shard,
                queue,
            } => self.replica_asked(from, token, reply_shard, queue),
            MembershipMessage::Replica { token, told } => self.replica_told(from, token, told),
            MembershipMessage::DepartureRequest { queue } => self.departure_asked(from, queue),
            MembershipMessage::Depart { queue, told } => self.depart(queue, told),
            MembershipMessage::Removed => self.end_removed(),
            MembershipMessage::Release { node } => self.release_asked(node),
            // Between shards of one node; the shard takes it.
            MembershipMessage::Drain { .. } => {}
        }
    }

    /// This node was removed from its cluster: what it has is no longer the cluster's, and it must serve nobody with it.
    pub fn end_removed(&mut self) {
        self.ctx.push_effect(crate::Effect::Fatal(format!(
            "node '{}' was removed from its cluster; empty its data directory and it joins as a new node",
            self.ctx.config().name
        )));
    }
}
