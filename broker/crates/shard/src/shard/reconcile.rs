//! Brings the members of groups and the tree together: reviews of groups, replicas that leave, nodes that join, are released or
//! are replaced.

use super::ShardState;
use crate::Route;
use crate::frame::Frame;
use crate::members::REVIEWS_PER_TURN;
use crate::members::frame::MembershipMessage;
use crate::membership::{MembershipStep, WantedMembers, next_step};
use crate::metadata_client::{ChangeRequester, MetadataLeader};
use crate::placement;
use consensus::{Departure, GroupId, GroupStatus, MembershipChange};
use control::{ReplicaFacts, Reply};
use env::NodeId;
use metadata::features::CLIENT_ADDRESSES;
use metadata::{Change, NodeRecord, QueueId, QueueRecord};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Maximum number of lost MQTT sessions that are ended at a time.
const MAX_ENDED_SESSIONS: usize = 500;

impl ShardState {
    /// Leader of the metadata group: brings its members and the tree's node records together.
    pub fn reconcile_metadata_members(&mut self) {
        let me = self.ctx.node();
        let Some(status) = self
            .queues
            .local()
            .metadata_status()
            .filter(|s| s.is_leader)
        else {
            self.cluster.forget_joins();
            return;
        };
        let nodes: Vec<NodeRecord> = self
            .metadata
            .tree()
            .nodes()
            .map(|n| (**n).clone())
            .collect();
        let out = self.cluster.members_mut().releases.held(self.ctx.now());
        let mut candidates = self.topology().candidates();
        candidates.retain(|c| !out.contains(&c.node));
        let voters = placement::metadata_voters(&status.membership.voters, &candidates);
        let ids = candidates.iter().map(|c| c.node);
        let learners: Vec<NodeId> = ids.filter(|n| !voters.contains(n)).collect();
        let wanted = WantedMembers {
            voters: &voters,
            learners: &learners,
            drained: &self.topology().drained(),
        };
        self.queues
            .local_mut()
            .membership_step(GroupId(0), next_step(me, wanted, &status));
        let tree = self.metadata.tree();
        let requests = self.cluster.review_nodes(&self.ctx, tree, &nodes);
        self.ask_all(requests);
        self.end_lost_sessions();
        for node in nodes {
            let voter = status.membership.voters.contains(&node.id);
            if node.voter != voter {
                self.ask(
                    Change::PutNode(NodeRecord { voter, ..node }),
                    ChangeRequester::Nobody,
                );
            }
        }
    }

    /// Finds the groups that are to be looked at in the turns that follow.
    pub fn reconcile_queue_members(&mut self) {
        let local = self.queues.local();
        let review = &mut self.cluster.members_mut().review;
        if review.plan(self.ctx.now(), || local.led_queues()) {
            self.topology().check_counts();
        }
    }

    /// Looks at as many of them as one turn may.
    pub fn reconcile_due_queues(&mut self) {
        for _ in 0..REVIEWS_PER_TURN {
            let Some(id) = self.cluster.members_mut().review.next() else {
                return;
            };
            let local = self.queues.local();
            let status = local.led_status(id);
            // A leader of a stream may wait for the log of a member that is lost.
            let status = status.or_else(|| local.waiting_stream_status(id));
            let record = self.metadata.tree().queue_by_id(id).cloned();
            if let (Some(status), Some(record)) = (status, record)
                && !self.reconcile_queue(&record, &status)
            {
                self.cluster.members_mut().review.queue(id);
            }
        }
    }

    /// True when nothing is to be done any more.
    fn reconcile_queue(&mut self, record: &Arc<QueueRecord>, status: &GroupStatus) -> bool {
        let tree = self.metadata.tree();
        let ended = self
            .queues
            .local_mut()
            .end_removed(record.id, |node| tree.is_forgotten(node));
        // There may be more sessions in what is yet to be applied.
        let all_known = status.applied == status.last_index;
        self.members_are_right(record, status) && ended && all_known
    }

    /// As [`ShardState::reconcile_queue`], of who is in the group.
    fn members_are_right(&mut self, record: &Arc<QueueRecord>, status: &GroupStatus) -> bool {
        if let Some(members) = self.topology().other_members(record) {
            self.ask_for_members(record, members);
            return false;
        }
        let wanted = WantedMembers {
            voters: &record.members,
            learners: &[],
            drained: &self.topology().drained(),
        };
        match next_step(self.ctx.node(), wanted, status) {
            MembershipStep::Done => true,
            step => {
                let is_lost = |step: &MembershipStep| match step {
                    // A stream without a leader because of a node that does not come back goes on without it.
                    MembershipStep::Change(MembershipChange::Remove(node)) => {
                        self.metadata.tree().is_forgotten(*node)
                    }
                    _ => false,
                };
                if is_lost(&step) || self.queues.local().stream_allows(record.id, &step) {
                    self.queues
                        .local_mut()
                        .membership_step(GroupId(record.id.0), step);
                }
                false
            }
        }
    }

    fn ask_for_members(&mut self, record: &QueueRecord, to: Vec<NodeId>) {
        let id = record.id;
        if to.is_empty() || !self.cluster.members_mut().review.begin_change(id) {
            return;
        }
        tracing::info!(event = "queue_members_change", queue = %record.name, vhost = %record.vhost, ?to);
        let from = record.members.clone();
        self.ask(
            Change::ReplaceQueueMembers { id, from, to },
            ChangeRequester::Review(id),
        );
    }

    /// Tells the cluster where this node is.
    pub fn tell_zone(&mut self) {
        let id = self.ctx.node();
        let zone = self.ctx.config().placement.zone.clone();
        if self.metadata.tree().node(id).is_some() && self.metadata.tree().zone(id) != &*zone {
            self.ask(Change::SetZone { id, zone }, ChangeRequester::Nobody);
        }
    }

    /// States the addresses of this node's client listeners, once every node can read them.
    pub fn state_client_addresses(&mut self) {
        let node = self.ctx.node();
        let tree = self.metadata.tree();
        let mut addresses = self.client_addresses.clone();
        addresses.sort();
        addresses.dedup();
        let is_possible = tree.feature_enabled(CLIENT_ADDRESSES.name) && tree.node(node).is_some();
        if is_possible && tree.client_addresses(node) != addresses {
            let change = Change::PutClientAddresses { node, addresses };
            self.ask(change, ChangeRequester::Nobody);
        }
    }

    /// Goes on with replicas that are to go: what is gone is forgotten, leaders are asked about the others.
    pub fn review_departures(&mut self) {
        let local = self.queues.local();
        let departures = &mut self.cluster.members_mut().departures;
        for queue in departures.take_deleted(|queue| local.has_replica(queue)) {
            self.queues.local_mut().departed(queue);
            self.cluster.members_mut().leaders.forget(queue);
            if let Some(record) = self.metadata.tree().queue_by_id(queue).cloned() {
                tracing::info!(event = "replica_deleted", queue = %record.name, vhost = %record.vhost);
                // This node may be a member again by now.
                self.queue_added(&record, false);
            }
        }
        for queue in self.cluster.members_mut().departures.turn() {
            let members = self
                .metadata
                .tree()
                .queue_by_id(queue)
                .map(|r| r.members.clone());
            for member in members.unwrap_or_default() {
                if self.topology().is_up(member) {
                    let peer_message = MembershipMessage::DepartureRequest { queue };
                    self.ctx.send_to_peer(
                        member,
                        Route::Owner(queue.0),
                        &Frame::Members(peer_message),
                    );
                }
            }
        }
    }

    /// Another node has a replica of a queue that may be led here.
    pub fn departure_asked(&mut self, from: NodeId, queue: QueueId) {
        if let Some(told) = self.queues.local().departure(queue, from) {
            let peer_message = MembershipMessage::Depart { queue, told };
            self.ctx
                .send_to_peer(from, Route::Owner(queue.0), &Frame::Members(peer_message));
        }
    }

    pub fn depart(&mut self, queue: QueueId, told: Departure) {
        let me = self.ctx.node();
        let is_out = |r: &QueueRecord| !r.members.contains(&me);
        let Some(record) = self
            .metadata
            .tree()
            .queue_by_id(queue)
            .filter(|r| is_out(r))
        else {
            return;
        };
        tracing::debug!(event = "replica_departs", queue = %record.name, ?told);
        if self.queues.local_mut().depart(queue, told) {
            self.dead_letters.forget(queue);
            self.cluster.members_mut().departures.begin_leaving(queue);
        }
    }

    /// Sees to it that a node has no part in the metadata group. True when it has none, as far as is known here.
    pub fn release(&mut self, node: NodeId) -> bool {
        match self.metadata.leader() {
            Some(MetadataLeader::Me) => self.release_asked(node),
            Some(MetadataLeader::Other(to)) => {
                let peer_message = Frame::Members(MembershipMessage::Release { node });
                self.ctx.send_to_peer(to, Route::Shard(0), &peer_message);
            }
            Some(MetadataLeader::Unknown) | None => {}
        }
        let members = self.queues.local().metadata_status().map(|s| s.membership);
        members.is_some_and(|m| !m.voters.contains(&node) && !m.learners.contains(&node))
    }

    pub fn release_asked(&mut self, node: NodeId) {
        if self.metadata.tree().node(node).is_some() {
            self.cluster
                .members_mut()
                .releases
                .ask(self.ctx.now(), node);
        }
    }

    /// Deletes lost queues that store sessions of clients: when the queue is lost, the session is over, and its client gets a new
    /// one. No operator needs to decide that, and there may be thousands.
    pub fn end_lost_sessions(&mut self) {
        let lost = self.metadata.tree().lost_queues().filter_map(|(id, node)| {
            let record = self.metadata.tree().queue_by_id(id)?;
            let client = self.services.client_of(record)?;
            (!self.queues.is_deleting(id)).then(|| (id, client.to_owned(), node.clone()))
        });
        let lost: Vec<(QueueId, String, _)> = lost.take(MAX_ENDED_SESSIONS).collect();
        for (id, client_id, node) in lost {
            tracing::warn!(event = "session_lost", client_id, %node);
            self.queues.begin_deletion(id);
            self.delete(id);
        }
    }

    /// Asks every node that can be reached: one that is no member may still have a replica.
    pub fn ask_replicas(&mut self, queue: QueueId, reply: Reply<Vec<ReplicaFacts>>) {
        let wanted = self
            .metadata
            .tree()
            .queue_by_id(queue)
            .map(|r| r.members.clone());
        let me = self.ctx.node();
        let asked: BTreeSet<NodeId> = self.cluster.peers().all_up().chain([me]).collect();
        let now = self.ctx.now();
        let queries = &mut self.cluster.members_mut().questions;
        let token = queries.begin(now, asked.clone(), wanted.unwrap_or_default(), reply);
        let reply_shard = self.ctx.shard();
        let peer_message = MembershipMessage::ReplicaRequest {
            token,
            reply_shard,
            queue,
        };
        for node in asked.into_iter().filter(|n| *n != me) {
            self.ctx.send_to_peer(
                node,
                Route::Owner(queue.0),
                &Frame::Members(peer_message.clone()),
            );
        }
        match self.ctx.owner_shard(queue) {
            shard if shard == reply_shard => self.replica_asked(me, token, reply_shard, queue),
            shard => self.ctx.send_to_shard(shard, Frame::Members(peer_message)),
        }
    }

    pub fn replica_asked(&mut self, from: NodeId, token: u64, reply_shard: u16, queue: QueueId) {
        let told = self.queues.local().tell_replica(queue);
        if from == self.ctx.node() && reply_shard == self.ctx.shard() {
            return self.cluster.members_mut().questions.take(from, token, told);
        }
        let frame = Frame::Members(MembershipMessage::Replica { token, told });
        if from == self.ctx.node() {
            self.ctx.send_to_shard(reply_shard, frame);
        } else {
            self.ctx
                .send_to_peer(from, Route::Shard(reply_shard), &frame);
        }
    }
}
