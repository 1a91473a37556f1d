//! Recovery of a lost majority: one step of an operator's request, and the part of the nodes that it asks.
//!
//! The metadata come first, because only they can say that a node does not return. Then its removal is a change of the tree,
//! and the queues whose members were removed follow.

use super::ShardState;
use crate::Route;
use crate::frame::Frame;
use crate::members::Plan;
use crate::members::frame::{LogPosition, LostNodes, MAX_LOST, MembershipMessage, PositionReport};
use crate::members::majority::{RecoveryRequest, RecoveryRequester};
use crate::metadata_client::{ChangeRequester, MetadataLeader};
use consensus::{GroupId, RecoverMajorityError};
use control::{QueueFacts, RecoveryStep, Reply};
use env::NodeId;
use metadata::features::MAJORITY_RECOVERY;
use metadata::{Change, ChangeError, ChangeResult, QueueId};
use std::collections::BTreeSet;
use std::time::Duration;

/// A node that was linked less than this ago may only be slow, or restart.
const MIN_ABSENCE: Duration = Duration::from_secs(30);

/// The id of the metadata group.
const METADATA: u64 = 0;

/// Whom to answer: node, shard and token.
type Asker = (NodeId, u16, u64);

impl ShardState {
    /// Does the next step of a recovery.
    pub fn recover_majority(
        &mut self,
        lost: &[NodeId],
        reply: Reply<Result<RecoveryStep, ChangeError>>,
    ) {
        if let Err(refused) = self.may_be_lost(lost) {
            return reply(Err(refused));
        }
        let has_leader = match self.metadata.leader() {
            Some(MetadataLeader::Me) => true,
            Some(MetadataLeader::Other(leader)) => !lost.contains(&leader),
            Some(MetadataLeader::Unknown) | None => false,
        };
        if !has_leader {
            let requester = RecoveryRequester::Metadata(reply);
            return self.begin_recovery(METADATA, lost.to_vec(), requester);
        }
        let there = lost
            .iter()
            .find(|n| self.metadata.tree().node(**n).is_some());
        let Some(id) = there.copied() else {
            return self.gather_for(None, Plan::RecoverQueues(reply));
        };
        let then = Box::new(move |result: Result<ChangeResult, ChangeError>| {
            reply(result.map(|_| RecoveryStep::Forgotten));
        });
        let change = Change::ForgetLostNode { id };
        self.ask(change, ChangeRequester::Control(then));
    }

    /// Whether these nodes can be given up, as far as is known here.
    fn may_be_lost(&self, lost: &[NodeId]) -> Result<(), ChangeError> {
        let tree = self.metadata.tree();
        if !tree.feature_enabled(MAJORITY_RECOVERY.name) {
            return Err(ChangeError::PreconditionFailed(format!(
                "feature flag '{}' is not enabled in this cluster",
                MAJORITY_RECOVERY.name
            )));
        }
        if lost.len() > MAX_LOST {
            return Err(ChangeError::Invalid(format!(
                "a request names at most {MAX_LOST} lost nodes, not {}",
                lost.len()
            )));
        }
        for node in lost {
            let name = self.topology().name_of(*node);
            if *node == self.ctx.node() {
                return Err(ChangeError::PreconditionFailed(format!(
                    "node '{name}' answers this request, so it is not lost"
                )));
            }
            if self.topology().is_up(*node) {
                return Err(ChangeError::PreconditionFailed(format!(
                    "node '{name}' is running, so it is not lost"
                )));
            }
            let (started, now) = (self.ctx.started(), self.ctx.now());
            let absence = self.cluster.absence(*node, started, now);
            if absence < MIN_ABSENCE {
                return Err(ChangeError::Unavailable(format!(
                    "node '{name}' may only be slow or restart: it has been down for {} s of the {} s that are required; try again",
                    absence.as_secs(),
                    MIN_ABSENCE.as_secs()
                )));
            }
        }
        Ok(())
    }

    /// Begins with the queues of which at least half of the members were removed permanently.
    pub fn recover_queues(
        &mut self,
        facts: &[QueueFacts],
        reply: Reply<Result<RecoveryStep, ChangeError>>,
    ) {
        // The leader of a stream does not give it up before another one has a newer term.
        let has_majority = |f: &&QueueFacts| f.online.len() * 2 > f.members.len();
        let led = facts.iter().filter(|f| f.leader.is_some());
        let led = led.filter(has_majority).map(|f| f.id);
        let led: BTreeSet<QueueId> = led.collect();
        let tree = self.metadata.tree();
        let without: Vec<QueueId> = tree
            .all_queues()
            .filter(|q| q.kind.is_replicated() && !led.contains(&q.id))
            .filter(|q| tree.lost_on(q.id).is_none())
            .filter(|q| {
                let gone = q.members.iter().filter(|n| tree.is_forgotten(**n)).count();
                gone > 0 && gone * 2 >= q.members.len()
            })
            .map(|q| q.id)
            .collect();
        let count = without.len();
        let lost: Vec<NodeId> = tree.forgotten_nodes().collect();
        let recoveries = &mut self.cluster.members_mut().recoveries;
        let begun = recoveries.take_turn(without);
        let collection = recoveries.collect(begun.len(), count - begun.len(), reply);
        for queue in begun {
            let requester = RecoveryRequester::Queue { collection, queue };
            self.begin_recovery(queue.0, lost.clone(), requester);
        }
    }

    /// Asks every node that can be reached for its position.
    fn begin_recovery(&mut self, group: u64, lost: Vec<NodeId>, requester: RecoveryRequester) {
        let me = self.ctx.node();
        let asked: BTreeSet<NodeId> = self.cluster.peers().all_up().chain([me]).collect();
        // A removed node has no connection to anybody, so only nodes that are still members are asked about.
        let tree = self.metadata.tree();
        let known = lost.iter().copied().filter(|n| tree.node(*n).is_some());
        let known = LostNodes(known.collect());
        let now = self.ctx.now();
        let recoveries = &mut self.cluster.members_mut().recoveries;
        let token = recoveries.begin(now, group, asked.clone(), lost, requester);
        let message = MembershipMessage::PositionRequest {
            token,
            reply_shard: self.ctx.shard(),
            group,
            lost: known,
        };
        for node in asked {
            self.send_to_owner(node, group, message.clone());
        }
    }

    /// Sends a message to the shard of a node that has the group, also on this node.
    fn send_to_owner(&mut self, node: NodeId, group: u64, message: MembershipMessage) {
        let me = self.ctx.node();
        if node != me {
            let route = match group {
                METADATA => Route::Shard(0),
                queue => Route::Owner(queue),
            };
            return self.ctx.send_to_peer(node, route, &Frame::Members(message));
        }
        match consensus::shard_of(group, self.ctx.config().shards) {
            shard if shard == self.ctx.shard() => self.take_members_message(me, message),
            shard => self.ctx.send_to_shard(shard, Frame::Members(message)),
        }
    }

    fn answer_asker(&mut self, (node, shard, _): Asker, message: MembershipMessage) {
        let me = self.ctx.node();
        if node != me {
            let frame = Frame::Members(message);
            self.ctx.send_to_peer(node, Route::Shard(shard), &frame);
        } else if shard == self.ctx.shard() {
            self.take_members_message(me, message);
        } else {
            self.ctx.send_to_shard(shard, Frame::Members(message));
        }
    }

    /// Another node compares the replicas of a group.
    pub fn position_asked(&mut self, asker: Asker, group: u64, lost: LostNodes) {
        let position = self.queues.local().group_status(GroupId(group)).map(|s| {
            let mut position = LogPosition {
                last_term: s.last_term,
                last_index: s.last_index,
                applied: s.applied,
                leader: s.leader,
                ..LogPosition::default()
            };
            let votes = &mut position.votes;
            s.membership.voters.iter().for_each(|n| votes.add(*n, true));
            let learners = s.membership.learners.iter();
            learners.for_each(|n| votes.add(*n, false));
            position
        });
        let mut connected = lost.0;
        connected.retain(|n| self.cluster.peers().is_up(*n));
        let told = PositionReport {
            position,
            connected: LostNodes(connected),
        };
        let token = asker.2;
        self.answer_asker(asker, MembershipMessage::Position { token, told });
    }

    pub fn take_position(&mut self, from: NodeId, token: u64, told: PositionReport) {
        let now = self.ctx.now();
        let (members, tree) = (self.cluster.members_mut(), self.metadata.tree());
        let name = |node| crate::cluster::name_in(tree, node);
        let request = members
            .recoveries
            .take_position((from, now), token, told, &name);
        self.request_recoveries(request);
    }

    pub fn tick_recoveries(&mut self) {
        let now = self.ctx.now();
        let (members, tree) = (self.cluster.members_mut(), self.metadata.tree());
        let name = |node| crate::cluster::name_in(tree, node);
        let requests = members.recoveries.tick(now, &name);
        self.request_recoveries(requests);
    }

    fn request_recoveries(&mut self, requests: impl IntoIterator<Item = RecoveryRequest>) {
        for request in requests {
            let message = MembershipMessage::RecoverMajority {
                token: request.token,
                reply_shard: self.ctx.shard(),
                group: request.group,
                lost: request.lost,
            };
            self.send_to_owner(request.node, request.group, message);
        }
    }

    /// This node has the newest log of a group that lost its majority.
    pub fn recovery_asked(&mut self, asker: Asker, group: u64, lost: &LostNodes) {
        let result = self
            .queues
            .local_mut()
            .recover_majority(GroupId(group), &lost.0);
        match &result {
            Ok(()) => tracing::warn!(event = "majority_recovered", group, lost = ?lost.0),
            Err(error) => tracing::warn!(event = "majority_recovery_refused", group, %error),
        }
        let refused = result.err().map(|error| {
            let name = self.topology().name_of(self.ctx.node());
            let why = match error {
                RecoverMajorityError::HasLeader { leader } => {
                    format!("node '{}' leads", self.topology().name_of(leader))
                }
                other => other.to_string(),
            };
            format!("node '{name}' cannot continue: {why}")
                .as_str()
                .into()
        });
        let token = asker.2;
        self.answer_asker(
            asker,
            MembershipMessage::MajorityRecovery { token, refused },
        );
    }
}
