//! The metadata log meets this shard: committed changes go into the tree, and what they made or removed is carried out.

use crate::core::Core;
use crate::frame::{Frame, Origin};
use crate::members::frame::MembershipMessage;
use crate::metadata_client::{ChangeRequester, MetadataClient, MetadataLeader, ProposalAction};
use crate::{ClusterView, Effect, Route};
use bytes::Bytes;
use consensus::Committed;
use env::planted::{self, Bug};
use env::{NodeId, Time};
use metadata::{
    Change, ChangeError, ChangeResult, NodeRecord, QueueId, QueueRecord, Tree, TreeEvent,
};
use queue::DeadIncarnation;
use queue::quorum::UnknownCommand;
use std::sync::Arc;
use std::time::Duration;

/// How long a shard that could take clients waits until its services are ready.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// The same for nodes of the cluster that it has not met in this life: most often they are there, and links take a moment.
const MEETING: Duration = Duration::from_secs(1);

/// Until when clients are kept waiting for other nodes.
#[derive(Clone, Copy, Debug)]
pub struct PeerHandshake {
    meet_by: Time,
    by: Time,
}

impl PeerHandshake {
    pub fn wake_at(self, now: Time) -> Time {
        match self.meet_by > now {
            true => self.meet_by,
            false => self.by,
        }
    }
}

impl Core {
    /// Shard 0: entries of the metadata group.
    pub fn apply_metadata(&mut self, entries: Vec<Committed>) {
        for entry in entries {
            let Some(directory) = &mut self.directory else {
                return;
            };
            let taken = directory.committed(self.ctx.now(), entry.command);
            self.applied = entry.index;
            let (change, asker) = match taken {
                Ok(Some(taken)) => taken,
                Ok(None) => continue,
                Err(error) => {
                    let program = self.ctx.config().program.version;
                    return self.ctx.push_effect(Effect::Fatal(format!(
                        "entry {} of the metadata log cannot be read by version {program}: {error}",
                        entry.index
                    )));
                }
            };
            if self.ctx.config().shards > 1 {
                let done_for = match &asker {
                    ChangeRequester::Shard { shard, token } => Some((*shard, *token)),
                    _ => None,
                };
                self.ctx.send_to_other_shards(&Frame::Applied {
                    index: entry.index,
                    change: change.clone(),
                    done_for,
                });
            }
            let result = self.apply_change(entry.index, &change);
            self.answer(asker, result);
        }
        self.open_when_caught_up();
    }

    /// Shard 0: clients may come as soon as the first change of this life is applied here. It went through the log, so
    /// whatever was committed before this life is applied too. In a node's very first life it must also be a member: that
    /// brings it what the cluster was founded with.
    fn open_when_caught_up(&mut self) {
        let me = self.ctx.node();
        let heard = self
            .directory
            .as_ref()
            .is_some_and(MetadataClient::is_heard);
        if self.caught_up || !heard || self.tree.node(me).is_none() {
            return;
        }
        self.ctx.send_to_other_shards(&Frame::CaughtUp);
        self.is_caught_up();
    }

    pub fn is_caught_up(&mut self) {
        self.caught_up = true;
        self.handshake = Some(PeerHandshake {
            meet_by: self.ctx.now() + MEETING,
            by: self.ctx.now() + INTRODUCTION,
        });
        self.tell_links();
        self.listen_when_introduced();
    }

    fn has_met_all(&self) -> bool {
        let mut nodes = self.tree.nodes();
        nodes.all(|node| self.peers.is_known(node.id))
    }

    /// Opens the listeners when the services are ready: a message that is published before would not reach all subscribers. Shards
    /// that do not answer must not keep clients out for ever.
    pub fn listen_when_introduced(&mut self) {
        let Some(PeerHandshake { meet_by, by }) = self.handshake else {
            return;
        };
        let met = meet_by <= self.ctx.now() || self.has_met_all();
        if by > self.ctx.now() && !(met && self.services.are_ready()) {
            return;
        }
        self.handshake = None;
        if !self.draining {
            self.ctx.push_effect(Effect::Listen(true));
        }
    }

    /// Other shards: what shard 0 has applied.
    pub fn applied_on_shard_0(
        &mut self,
        index: u64,
        change: &Change,
        done_for: Option<(u16, u64)>,
    ) {
        self.applied = index;
        let result = self.apply_change(index, change);
        let asker = done_for
            .filter(|(shard, _)| *shard == self.ctx.shard())
            .and_then(|(_, token)| self.asked.remove(&token));
        if let Some(asker) = asker {
            self.answer(asker, result);
        }
    }

    /// Other shards: a change that this one asked for is not in the log, as far as shard 0 knows.
    pub fn refused_on_shard_0(&mut self, token: u64, why: String) {
        if let Some(asker) = self.asked.remove(&token) {
            self.answer(asker, Err(ChangeError::Unavailable(why)));
        }
    }

    fn apply_change(&mut self, index: u64, change: &Change) -> Result<ChangeResult, ChangeError> {
        let result = self.tree.apply(index, change);
        if result.is_ok() {
            self.each_service(|service, view| service.change_applied(view, change));
        }
        if let Change::EnableFeature { .. } | Change::EnableKnownFeature { .. } = change {
            self.features_changed();
        }
        self.limits.handle_change(&self.tree, change);
        for event in self.tree.take_events() {
            self.carry_out_event(event);
        }
        self.each_service(|service, view| service.applied(view, index));
        result
    }

    fn carry_out_event(&mut self, event: TreeEvent) {
        self.service_tree_event(&event);
        match event {
            TreeEvent::QueueAdded(record) => self.queue_added(&record, true),
            TreeEvent::QueueRemoved(record) => self.queue_removed(&record),
            TreeEvent::QueueMembersChanged(record) => {
                self.members.leaders.members_changed(&self.tree, record.id);
                self.members.review.queue(record.id);
                self.queue_added(&record, false);
                self.queues
                    .handle_members_changed(record.id, &record.members);
            }
            TreeEvent::QueueLost { queue, node } => self.queue_lost(&queue, &node),
            TreeEvent::PolicyChanged(ids) => {
                for id in ids {
                    self.refresh_settings(id);
                    self.members.review.queue(id);
                }
            }
            TreeEvent::NodeAdded(_) | TreeEvent::NodeChanged(_) => self.nodes_changed(),
            TreeEvent::NodeRemoved(node) => {
                self.nodes_changed();
                self.tell_removed(&node);
            }
            TreeEvent::VhostRemoved(name) => {
                self.limits.handle_vhost_removed(name);
            }
            // Services look after these.
            TreeEvent::Retained { .. } => {}
            TreeEvent::PermissionsChanged { user } if self.tree.user(&user).is_none() => {
                self.limits.handle_user_removed(user);
            }
            // Sessions look these up when they need them.
            TreeEvent::PermissionsChanged { .. } => {}
        }
    }

    /// A queue is in the tree. `declared`: by the very entry being applied, so that its first members found its group;
    /// otherwise this node's replica, if it has none, starts empty and is filled by the leader.
    pub fn queue_added(&mut self, record: &Arc<QueueRecord>, declared: bool) {
        if self.ctx.owner_shard(record.id) != self.ctx.shard() {
            return;
        }
        let is_member = record.members.contains(&self.ctx.node());
        let is_replicated = record.kind.is_replicated();
        let leftover = !is_member && is_replicated && self.queues.local().has_replica(record.id);
        if is_replicated && (is_member || leftover) {
            self.members.departures.note(record.id, is_member);
        }
        if !is_member && !leftover {
            return;
        }
        let settings = self.tree.queue_settings(record).queue;
        let is_founding = declared && is_member;
        self.queues.local_mut().open(record, &settings, is_founding);
        self.refresh_settings(record.id);
    }

    /// The queue's only copy is gone: what sessions wait for from it never comes.
    fn queue_lost(&mut self, record: &QueueRecord, node: &str) {
        if self.ctx.is_first_shard() {
            tracing::error!(
                event = "queue_lost",
                queue = %record.name,
                vhost = %record.vhost,
                node,
                "the queue's only copy was on a node that lost its data directory; delete the queue, then declare it again"
            );
        }
        self.end_queue_clients(record.id);
    }

    fn queue_removed(&mut self, record: &QueueRecord) {
        self.queues.end_deletion(record.id);
        self.members.departures.forget(record.id);
        self.members.review.forget(record.id);
        self.members.leaders.forget(record.id);
        self.queues.local_mut().remove(record.id);
        self.dead_letters.forget(record.id);
        self.end_queue_clients(record.id);
    }

    /// Shard 0 has installed a checkpoint of the metadata group.
    pub fn restore_metadata(&mut self, index: u64, state: Bytes) {
        let Some(directory) = &mut self.directory else {
            return;
        };
        let restored = directory.restore(state).map_err(|e| e.to_string());
        let (tree, unanswered) = match restored {
            Ok(parts) => parts,
            Err(error) => return self.fatal_checkpoint(&error),
        };
        for asker in unanswered {
            let text = "the change was made, but what came of it is not known here";
            self.answer(asker, Err(ChangeError::Unavailable(text.into())));
        }
        if self.ctx.config().shards > 1 {
            self.ctx.send_to_other_shards(&Frame::Restored {
                index,
                tree: tree.clone(),
            });
        }
        self.restored_on_shard_0(index, &tree);
        self.open_when_caught_up();
    }

    pub fn restored_on_shard_0(&mut self, index: u64, state: &[u8]) {
        let before = std::mem::take(&mut self.tree);
        self.tree = match Tree::restore(state) {
            Ok(tree) => tree,
            Err(error) => return self.fatal_checkpoint(&error.to_string()),
        };
        self.applied = index;
        self.tree.take_traffic(&before);
        self.limits.handle_new_tree(&self.tree);
        let removed: Vec<_> = before
            .all_queues()
            .filter(|q| self.tree.queue_by_id(q.id).is_none())
            .cloned()
            .collect();
        for record in removed {
            self.service_tree_event(&TreeEvent::QueueRemoved(record.clone()));
            self.queue_removed(&record);
        }
        self.members.leaders.restore(&self.tree);
        let all: Vec<_> = self.tree.all_queues().cloned().collect();
        for record in all {
            self.queue_added(&record, false);
        }
        let newly_lost = self
            .tree
            .lost_queues()
            .filter(|(id, _)| before.lost_on(*id).is_none());
        let newly_lost: Vec<_> = newly_lost.map(|(id, node)| (id, node.clone())).collect();
        for (id, node) in newly_lost {
            if let Some(record) = self.tree.queue_by_id(id).cloned() {
                self.queue_lost(&record, &node);
            }
        }
        self.each_service(|service, view| service.tree_replaced(view));
        self.features_changed();
        self.nodes_changed();
        self.each_service(|service, view| service.applied(view, index));
    }

    /// A member that went on without the command would differ from the others, and tell clients so: this node ends, and they go on.
    pub fn unreadable(&mut self, queue: QueueId, unreadable: &UnknownCommand) {
        let program = self.ctx.config().program.version;
        let record = self.tree.queue_by_id(queue);
        let label = record.map_or_else(
            || "a queue".into(),
            |record| crate::local_queues::label(record),
        );
        self.ctx.push_effect(Effect::Fatal(format!(
            "{label} (group {:016x}): {unreadable}: version {program} does not understand what a newer one wrote, run that one",
            queue.0
        )));
    }

    fn fatal_checkpoint(&mut self, error: &str) {
        self.ctx.push_effect(Effect::Fatal(format!(
            "metadata checkpoint cannot be read: {error}"
        )));
    }

    /// A node that runs while it is removed is in no group any more, and hears of it in no other way.
    fn tell_removed(&mut self, node: &NodeRecord) {
        let runs = self.ctx.is_first_shard() && self.peers.is_up(node.id);
        if runs && self.tree.is_forgotten(node.id) {
            let peer_message = Frame::Members(MembershipMessage::Removed);
            self.ctx
                .send_to_peer(node.id, Route::Shard(0), &peer_message);
        }
    }

    fn nodes_changed(&mut self) {
        self.members.review.all();
        self.each_service(|service, view| service.nodes_changed(view));
        for queue in self.queues.local().classic_queues() {
            let tree = &self.tree;
            self.queues
                .local_mut()
                .end_removed(queue, |node| tree.is_forgotten(node));
        }
        if self.tree.is_forgotten(self.ctx.node()) {
            self.end_removed();
        }
        self.tell_links();
    }

    fn tell_links(&mut self) {
        if !self.ctx.is_first_shard() {
            return;
        }
        let enabled = || self.tree.enabled_features().cloned().collect();
        self.ctx.push_effect(Effect::Nodes(ClusterView {
            nodes: self.tree.nodes().map(|n| (**n).clone()).collect(),
            enabled: self.caught_up.then(enabled),
        }));
    }

    /// A flag that this program does not know means that it would go on differently from the others.
    fn features_changed(&mut self) {
        let enabled = self.tree.enabled_features().map(|f| &**f);
        if let Some(why) = self.ctx.config().program.misfit(enabled)
            && !planted::is(Bug::MisfitGoesOn)
        {
            return self.ctx.push_effect(Effect::Fatal(why));
        }
        self.each_service(|service, view| service.features_changed(view));
        self.limits.announce_all_usage(&self.tree);
        self.tell_links();
    }

    /// Leader of the metadata group: another node's change.
    pub fn propose_for(&mut self, origin: Origin, change: &Change) {
        if self
            .directory
            .as_ref()
            .is_some_and(|d| d.leader() == MetadataLeader::Me)
        {
            // Refused when leadership is lost meanwhile; the asking node sends it again.
            drop(
                self.queues
                    .local_mut()
                    .propose_metadata(crate::metadata_client::command(origin, change)),
            );
        }
    }

    pub fn metadata_leadership(&mut self, leader: Option<NodeId>, is_leader: bool) {
        let Some(directory) = &mut self.directory else {
            return;
        };
        let leader = match leader {
            _ if is_leader => MetadataLeader::Me,
            Some(node) => MetadataLeader::Other(node),
            None => MetadataLeader::Unknown,
        };
        let mut sends: Vec<ProposalAction> = Vec::new();
        directory.leader_changed(self.ctx.now(), leader, &mut sends);
        self.carry_out(sends);
    }

    /// The first leader of a new cluster gives it its first contents.
    pub fn bootstrap_if_new(&mut self) {
        let leads = self
            .directory
            .as_ref()
            .is_some_and(|d| d.leader() == MetadataLeader::Me);
        if !leads || self.bootstrapping || self.tree.nodes().next().is_some() {
            return;
        }
        let Some(founding) = self.ctx.config().founding.clone() else {
            return;
        };
        self.bootstrapping = true;
        self.ask(
            Change::Bootstrap {
                cluster: founding.cluster,
                nodes: founding.nodes,
                user: founding.user,
            },
            ChangeRequester::Nobody,
        );
        for name in founding.features {
            self.ask(Change::EnableFeature { name }, ChangeRequester::Nobody);
        }
        if let Some(kind) = founding.default_queue_type {
            let change = Change::SetDefaultQueueType {
                vhost: "/".into(),
                kind: Some(kind),
            };
            self.ask(change, ChangeRequester::Nobody);
        }
    }

    /// A linked node wants to be a member of the cluster, now or when it is possible.
    pub fn join_requested(&mut self, node: NodeRecord) {
        if self.tree.is_forgotten(node.id) && !planted::is(Bug::RemovedReturns) {
            tracing::warn!(event = "node_was_removed", name = %node.name, id = node.id.0);
            let peer_message = Frame::Members(MembershipMessage::Removed);
            return self
                .ctx
                .send_to_peer(node.id, Route::Shard(0), &peer_message);
        }
        self.joining_nodes.ask(&node);
        self.join(node);
    }

    /// Asks once more for nodes that wait.
    pub fn ask_for_joining_nodes(&mut self) {
        for node in self.joining_nodes.waiting(&self.tree) {
            self.join(node);
        }
    }

    /// A node wants to be a member of the cluster: asked by itself here or through another node.
    pub fn join(&mut self, node: NodeRecord) {
        let Some(directory) = &self.directory else {
            return;
        };
        match directory.leader() {
            MetadataLeader::Me => self.admit_node(node),
            MetadataLeader::Other(to) => {
                self.ctx
                    .send_to_peer(to, Route::Shard(0), &Frame::Join { node })
            }
            // Whoever is linked to it asks again.
            MetadataLeader::Unknown => {}
        }
    }

    pub fn peer_up(&mut self, node: NodeId, incarnation: env::Incarnation) {
        let new_life = self.peers.up(node, incarnation);
        self.members.review.all();
        self.queues.local_mut().peer_up(node, incarnation);
        if new_life {
            self.queues.local_mut().node_gone(DeadIncarnation {
                node,
                before: incarnation,
            });
        }
        self.queues.handle_node_up(&mut self.ctx, node);
        self.route_queue_outputs();
        self.each_service(|service, view| service.node_up(view, node, incarnation));
        self.limits.handle_node_up(&mut self.ctx, &self.tree, node);
    }

    pub fn peer_down(&mut self, node: NodeId) {
        self.peers.down(node);
        self.members.review.all();
        self.alarms.forget(node);
        self.joining_nodes.forget(node);
        self.queues.local_mut().peer_down(node);
        self.queues.handle_node_down(&mut self.ctx, node);
        self.route_queue_outputs();
        self.each_service(|service, view| service.node_down(view, node));
        self.limits.handle_node_down(node);
    }
}
