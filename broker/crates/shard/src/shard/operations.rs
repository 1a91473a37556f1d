//! Routes the requests of operators: members of queues, leaders, maintenance, nodes that leave. Each is decided with what all
//! owners of queues report at that time.

use super::ShardState;
use crate::Route;
use crate::frame::Frame;
use crate::members::Plan;
use crate::members::frame::MembershipMessage;
use crate::members::rebalance::{self, LedQueue};
use crate::metadata_client::ChangeRequester;
use control::{
    ForgetProgress, MaintenanceProgress, MemberChange, MemberOutcome, MembershipRequest,
    QueueFacts, Reply,
};
use env::NodeId;
use metadata::{Change, ChangeError, ChangeResult, QueueId};

impl ShardState {
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
            MembershipRequest::Forget { reply, .. }
                if self.metadata.tree().nodes().next().is_none() =>
            {
                let text = "this node does not know its cluster yet; ask again";
                reply(Err(ChangeError::Unavailable(text.into())));
            }
            MembershipRequest::Forget { node, reply } => {
                let seen = self.metadata.tree().applied();
                self.gather_for(None, Plan::Forget { node, seen, reply });
            }
            MembershipRequest::RecoverMajority { lost, reply } => {
                self.recover_majority(&lost, reply);
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
            Plan::RecoverQueues(reply) => self.recover_queues(facts, reply),
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
        let decided = self.topology().decide_members(&queues, change, facts);
        let changes = &mut self.cluster.members_mut().changes;
        let token = changes.begin(decided.len(), reply);
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
                    self.cluster.members_mut().changes.take(token, outcome);
                }
            }
        }
    }

    /// A step towards a cluster without this node; asked again until it is forgotten.
    fn forget_node(
        &mut self,
        node: NodeId,
        seen: u64,
        facts: &[QueueFacts],
        reply: Reply<Result<ForgetProgress, ChangeError>>,
    ) {
        let runs = self.topology().is_up(node);
        if runs && let Err(refused) = self.topology().may_leave(node) {
            return reply(Err(refused));
        }
        // A queue that is to have other members counts it until its group has taken it out: its vote may be needed.
        let counts = |f: &&QueueFacts| {
            let record = self.metadata.tree().queue_by_id(f.id);
            record.is_some_and(|r| {
                let replicated = r.kind.is_replicated();
                // Without a leader nobody can tell: members that run may be new and have nothing of the queue yet, so
                // that this node has its only copy. A node that runs has told: it is in the facts if it has a replica.
                let dark = !runs && f.leader.is_none();
                replicated && (dark || r.members.contains(&node) || f.members.contains(&node))
            })
        };
        let queues: Vec<QueueId> = facts.iter().filter(counts).map(|f| f.id).collect();
        if queues.is_empty() {
            if let Err(refused) = self.metadata.tree().may_forget(node) {
                return reply(Err(refused));
            }
            if runs && !self.release(node) {
                return reply(Ok(ForgetProgress::Moving { queues: 0 }));
            }
            let then = Box::new(move |result: Result<ChangeResult, ChangeError>| {
                reply(result.map(|_| ForgetProgress::Forgotten));
            });
            let id = node;
            let change = Change::ForgetFreeNode { id, seen };
            return self.ask(change, ChangeRequester::Control(then));
        }
        let left = queues.len() as u32;
        let mut counting = facts.iter().filter(counts);
        let stuck = counting.find(|f| f.leader.is_none());
        let stuck = stuck.map(|f| self.topology().without_leader(f.id, node));
        let then = Box::new(move |outcomes: Vec<MemberOutcome>| {
            let refused = outcomes.into_iter().find_map(|o| o.result.err());
            // The way out of it is in what is told of those that are stuck.
            reply(match stuck.or(refused) {
                Some(refused) => Err(refused),
                None => Ok(ForgetProgress::Moving { queues: left }),
            });
        });
        self.change_members(queues, MemberChange::Evacuate(node), facts, then);
    }

    fn rebalance(&mut self, facts: &[QueueFacts]) -> u32 {
        let led = self.topology().led(facts);
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
            shard => self.ctx.send_to_shard(shard, Frame::Members(peer_message)),
        }
    }

    /// Leaders on this node that somebody else could take over.
    fn leaders_left(&self, facts: &[QueueFacts]) -> u32 {
        let me = self.ctx.node();
        let movable = |l: &&LedQueue| l.leader == me && l.able.iter().any(|n| *n != me);
        let queues = self.topology().led(facts).iter().filter(movable).count();
        let avoid = self.topology().drained();
        let metadata = self
            .queues
            .local()
            .metadata_is_movable(&self.topology().transfer_targets(&avoid));
        queues as u32 + u32::from(metadata)
    }

    pub fn take_members_message(&mut self, from: NodeId, peer_message: MembershipMessage) {
        match peer_message {
            MembershipMessage::Lead { queue, to } => self.queues.local_mut().hand_over(queue, to),
            MembershipMessage::ReplicaRequest {
                token,
                reply_shard,
                queue,
            } => self.replica_asked(from, token, reply_shard, queue),
            MembershipMessage::Replica { token, told } => {
                self.cluster.members_mut().questions.take(from, token, told)
            }
            MembershipMessage::DepartureRequest { queue } => self.departure_asked(from, queue),
            MembershipMessage::Depart { queue, told } => self.depart(queue, told),
            MembershipMessage::Removed => self.end_removed(),
            MembershipMessage::Release { node } => self.release_asked(node),
            MembershipMessage::PositionRequest {
                token,
                reply_shard,
                group,
                lost,
            } => self.position_asked((from, reply_shard, token), group, lost),
            MembershipMessage::Position { token, told } => self.take_position(from, token, told),
            MembershipMessage::RecoverMajority {
                token,
                reply_shard,
                group,
                lost,
            } => self.recovery_asked((from, reply_shard, token), group, &lost),
            MembershipMessage::MajorityRecovery { token, refused } => {
                let recoveries = &mut self.cluster.members_mut().recoveries;
                recoveries.take_answer(from, token, refused.as_deref());
            }
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
