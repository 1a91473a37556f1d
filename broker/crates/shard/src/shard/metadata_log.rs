//! Routes the metadata log: requested changes to the group, and the effects of applied changes to the services.

use super::ShardState;
use crate::cluster::ChangeRequest;
use crate::frame::{Frame, Origin};
use crate::members::frame::MembershipMessage;
use crate::metadata_client::ChangeRequester;
use crate::metadata_replica::MetadataAction;
use crate::{Effect, Route};
use bytes::Bytes;
use consensus::CommittedEntry;
use control::MemberOutcome;
use env::NodeId;
use env::planted::{self, Bug};
use metadata::{Change, ChangeError, ChangeResult, NodeRecord, QueueId, QueueRecord, TreeEvent};
use queue::DeadIncarnation;
use queue::quorum::UnknownCommand;
use session::ControlEvent;
use std::sync::Arc;

impl ShardState {
    /// Requests a metadata change. The requester is answered when this shard has applied it.
    pub fn ask(&mut self, change: Change, requester: ChangeRequester) {
        // Services and other shards of this node do not declare objects for clients.
        if let ChangeRequester::Session { .. } | ChangeRequester::Control(_) = &requester {
            let restrictions = &self.ctx.config().restrictions;
            if let Err(refused) = restrictions.check(self.metadata.tree(), &change) {
                return self.answer(requester, Err(refused));
            }
        }
        if let Some(requester) = self.postpone_deletion(&change, requester) {
            self.ask_now(change, requester);
        }
    }

    pub fn ask_all(&mut self, requests: Vec<ChangeRequest>) {
        for (change, requester) in requests {
            self.ask(change, requester);
        }
    }

    /// As [`ShardState::ask`], without asking services whether a deletion must wait.
    pub fn ask_now(&mut self, change: Change, requester: ChangeRequester) {
        let actions = self.metadata.request(&mut self.ctx, change, requester);
        self.carry_out_metadata(actions);
    }

    fn carry_out_metadata(&mut self, actions: Vec<MetadataAction>) {
        for action in actions {
            match action {
                // A refusal means that leadership is lost; the change is sent again to the next leader.
                MetadataAction::Propose(command) => {
                    drop(self.queues.local_mut().propose_metadata(command));
                }
                MetadataAction::Answer(requester, result) => self.answer(requester, result),
            }
        }
    }

    /// Answers the requester of a change.
    fn answer(&mut self, requester: ChangeRequester, result: Result<ChangeResult, ChangeError>) {
        match requester {
            ChangeRequester::Nobody => {}
            ChangeRequester::Session {
                number,
                token,
                record,
            } => {
                if let (Some(record), Some(trail)) = (record, self.ctx.audit()) {
                    trail.change_answered(*record, &result);
                }
                let changed = ControlEvent::Changed { token, result };
                self.ctx.notify(number, changed.into());
            }
            ChangeRequester::Control(reply) => reply(result),
            ChangeRequester::Members { token, queue, to } => {
                let result = result.map(|_| to);
                let outcome = MemberOutcome { queue, result };
                self.cluster.members_mut().changes.take(token, outcome);
            }
            ChangeRequester::Review(queue) => self.cluster.members_mut().review.answered(queue),
            // The node that found the queue asks again.
            ChangeRequester::Deletion(queue) if result.is_err() => self.queues.end_deletion(queue),
            ChangeRequester::Deletion(_) => {}
            ChangeRequester::Service { at, token } => {
                self.with_service(at, |service, view| {
                    service.change_answered(view, token, result);
                });
            }
            ChangeRequester::Join(node) => {
                self.audit_join(node, &result);
                self.cluster.handle_join_result(node, &result);
            }
            ChangeRequester::Replacement(node) => {
                self.audit_join(node, &result);
                self.cluster
                    .members_mut()
                    .replacements
                    .answered(node, result);
            }
            // It answers from its own tree when it applies the change, unless the change has not come through the log.
            ChangeRequester::Shard { shard, token } => {
                if let Err(ChangeError::Unavailable(why)) = result {
                    let refused = Frame::ChangeRefused { token, why };
                    self.ctx.send_to_shard(shard, refused);
                }
            }
        }
    }

    fn audit_join(&self, node: NodeId, result: &Result<ChangeResult, ChangeError>) {
        if let Some(trail) = self.ctx.audit() {
            let record = self.metadata.tree().node(node);
            let id = || format!("{:016x}", node.0);
            let name = record.map_or_else(id, |record| record.name.to_string());
            trail.node_joined(&name, result);
        }
    }

    /// Shard 0: entries of the metadata group are committed.
    pub fn apply_metadata(&mut self, entries: Vec<CommittedEntry>) {
        for entry in entries {
            let index = entry.index;
            match self.metadata.take_committed(&mut self.ctx, entry) {
                Ok(Some((change, requester))) => {
                    let result = self.apply_change(index, &change);
                    self.answer(requester, result);
                }
                Ok(None) => {}
                Err(error) => return self.ctx.push_effect(Effect::Fatal(error)),
            }
        }
        self.open_when_caught_up();
    }

    /// Shard 0: lets clients of the node's shards connect once the tree has caught up.
    fn open_when_caught_up(&mut self) {
        if self.metadata.has_just_caught_up(&self.ctx) {
            self.ctx.send_to_other_shards(&Frame::CaughtUp);
            self.handle_caught_up();
        }
    }

    pub fn handle_caught_up(&mut self) {
        self.metadata.begin_handshake(self.ctx.now());
        self.tell_links();
        self.listen_when_ready();
    }

    /// Opens the listeners when the other nodes and the services are ready.
    pub fn listen_when_ready(&mut self) {
        let services = &self.services;
        let are_ready = || services.are_ready();
        let now = self.ctx.now();
        if self
            .metadata
            .end_handshake(now, self.cluster.peers(), are_ready)
            && !self.cluster.is_draining()
        {
            self.ctx.push_effect(Effect::Listen(true));
        }
    }

    /// Other shards than 0: shard 0 has applied a change.
    pub fn handle_applied(&mut self, index: u64, change: &Change, done_for: Option<(u16, u64)>) {
        let result = self.apply_change(index, change);
        let requester = done_for
            .filter(|(shard, _)| *shard == self.ctx.shard())
            .and_then(|(_, token)| self.metadata.take_requester(token));
        if let Some(requester) = requester {
            self.answer(requester, result);
        }
    }

    /// Other shards than 0: a change that this one requested is not in the log, as far as shard 0 knows.
    pub fn handle_change_refused(&mut self, token: u64, why: String) {
        if let Some(requester) = self.metadata.take_requester(token) {
            self.answer(requester, Err(ChangeError::Unavailable(why)));
        }
    }

    fn apply_change(&mut self, index: u64, change: &Change) -> Result<ChangeResult, ChangeError> {
        let result = self.metadata.apply(index, change);
        if result.is_ok() {
            self.each_service(|service, view| service.change_applied(view, change));
        }
        if let Change::EnableFeature { .. } | Change::EnableKnownFeature { .. } = change {
            self.features_changed();
        }
        self.limits
            .handle_change(self.ctx.now(), self.metadata.tree(), change);
        for event in self.metadata.take_events() {
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
                self.cluster
                    .members_mut()
                    .leaders
                    .members_changed(self.metadata.tree(), record.id);
                self.cluster.members_mut().review.queue(record.id);
                self.queue_added(&record, false);
                self.queues
                    .handle_members_changed(&mut self.ctx, record.id, &record.members);
            }
            TreeEvent::QueueLost { queue, node } => self.queue_lost(&queue, &node),
            TreeEvent::PolicyChanged(ids) => {
                for id in ids {
                    self.refresh_settings(id);
                    self.cluster.members_mut().review.queue(id);
                }
            }
            TreeEvent::NodeAdded(_) | TreeEvent::NodeChanged(_) => self.nodes_changed(),
            TreeEvent::NodeRemoved(node) => {
                self.nodes_changed();
                self.tell_removed(&node);
            }
            TreeEvent::VhostRemoved(name) => {
                self.limits
                    .handle_vhost_removed(self.ctx.now(), self.metadata.tree(), name);
            }
            // Services look after these.
            TreeEvent::Retained { .. } => {}
            TreeEvent::PermissionsChanged { user }
                if self.metadata.tree().user(&user).is_none() =>
            {
                self.limits
                    .handle_user_removed(self.ctx.now(), self.metadata.tree(), user);
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
            self.cluster
                .members_mut()
                .departures
                .note(record.id, is_member);
        }
        if !is_member && !leftover {
            return;
        }
        let settings = self.metadata.tree().queue_settings(record);
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
        self.cluster.members_mut().departures.forget(record.id);
        self.cluster.members_mut().review.forget(record.id);
        self.cluster.members_mut().leaders.forget(record.id);
        self.queues.local_mut().remove(record.id);
        self.dead_letters.forget(record.id);
        self.end_queue_clients(record.id);
    }

    /// Shard 0: a checkpoint of the metadata group was installed.
    pub fn restore_metadata(&mut self, index: u64, state: Bytes) {
        match self.metadata.read_checkpoint(&mut self.ctx, index, state) {
            Ok(Some((tree, answers))) => {
                self.carry_out_metadata(answers);
                self.restore_tree(index, &tree);
                self.open_when_caught_up();
            }
            Ok(None) => {}
            Err(error) => self.ctx.push_effect(Effect::Fatal(error)),
        }
    }

    /// Replaces the tree by that of a checkpoint, and carries out what is different in it.
    pub fn restore_tree(&mut self, index: u64, state: &[u8]) {
        let before = match self.metadata.replace_tree(index, state) {
            Ok(before) => before,
            Err(error) => return self.ctx.push_effect(Effect::Fatal(error)),
        };
        self.limits
            .handle_new_tree(self.ctx.now(), self.metadata.tree());
        let removed: Vec<_> = before
            .all_queues()
            .filter(|q| self.metadata.tree().queue_by_id(q.id).is_none())
            .cloned()
            .collect();
        for record in removed {
            self.service_tree_event(&TreeEvent::QueueRemoved(record.clone()));
            self.queue_removed(&record);
        }
        self.cluster
            .members_mut()
            .leaders
            .restore(self.metadata.tree());
        let all: Vec<_> = self.metadata.tree().all_queues().cloned().collect();
        for record in all {
            self.queue_added(&record, false);
            let known = before.queue_by_id(record.id);
            if known.is_some_and(|known| known.members != record.members) {
                self.queues
                    .handle_members_changed(&mut self.ctx, record.id, &record.members);
            }
        }
        let newly_lost = self
            .metadata
            .tree()
            .lost_queues()
            .filter(|(id, _)| before.lost_on(*id).is_none());
        let newly_lost: Vec<_> = newly_lost.map(|(id, node)| (id, node.clone())).collect();
        for (id, node) in newly_lost {
            if let Some(record) = self.metadata.tree().queue_by_id(id).cloned() {
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
        let record = self.metadata.tree().queue_by_id(queue);
        let label = record.map_or_else(
            || "a queue".into(),
            |record| crate::local_queues::label(record),
        );
        self.ctx.push_effect(Effect::Fatal(format!(
            "{label} (group {:016x}): {unreadable}: version {program} does not understand what a newer one wrote, run that one",
            queue.0
        )));
    }

    /// A node that runs while it is removed is in no group any more, and hears of it in no other way.
    fn tell_removed(&mut self, node: &NodeRecord) {
        let runs = self.ctx.is_first_shard() && self.cluster.peers().is_up(node.id);
        if runs && self.metadata.tree().is_forgotten(node.id) {
            let peer_message = Frame::Members(MembershipMessage::Removed);
            self.ctx
                .send_to_peer(node.id, Route::Shard(0), &peer_message);
        }
    }

    fn nodes_changed(&mut self) {
        self.cluster.members_mut().review.all();
        self.each_service(|service, view| service.nodes_changed(view));
        for queue in self.queues.local().classic_queues() {
            let tree = self.metadata.tree();
            self.queues
                .local_mut()
                .end_removed(queue, |node| tree.is_forgotten(node));
        }
        if self.metadata.tree().is_forgotten(self.ctx.node()) {
            self.end_removed();
        }
        self.tell_links();
    }

    fn tell_links(&mut self) {
        if self.ctx.is_first_shard() {
            let cluster = self.metadata.cluster_view();
            self.ctx.push_effect(Effect::Nodes(cluster));
        }
    }

    /// A flag that this program does not know means that it would go on differently from the others.
    fn features_changed(&mut self) {
        let enabled = self.metadata.tree().enabled_features().map(|f| &**f);
        if let Some(why) = self.ctx.config().program.explain_incompatibility(enabled)
            && !planted::is(Bug::MisfitGoesOn)
        {
            return self.ctx.push_effect(Effect::Fatal(why));
        }
        self.each_service(|service, view| service.features_changed(view));
        self.limits.announce_all_usage(self.metadata.tree());
        self.tell_links();
        // The leader of each quorum queue logs features that the cluster has enabled.
        for queue in self.queues.local().led_quorum_queues() {
            self.refresh_settings(queue);
        }
    }

    /// Another node forwards a change.
    pub fn handle_forwarded_change(&mut self, origin: Origin, change: &Change) {
        let action = self.metadata.handle_forwarded(origin, change);
        self.carry_out_metadata(action.into_iter().collect());
    }

    pub fn handle_metadata_leader(&mut self, leader: Option<NodeId>, is_me: bool) {
        let actions = self.metadata.handle_leader(&mut self.ctx, leader, is_me);
        self.carry_out_metadata(actions);
    }

    /// Sends changes again that are not answered, and gives a new cluster its first contents.
    pub fn tick_metadata(&mut self) {
        if self.metadata.has_pending() {
            let actions = self.metadata.tick(&mut self.ctx);
            self.carry_out_metadata(actions);
        }
        if self.metadata.needs_bootstrap() {
            let founding = self.ctx.config().founding.as_ref();
            for change in self.metadata.begin_bootstrap(founding) {
                self.ask(change, ChangeRequester::Nobody);
            }
        }
    }

    /// A linked node requests to join the cluster.
    pub fn begin_join(&mut self, node: NodeRecord) {
        let requests = self.cluster.begin_join(&mut self.ctx, &self.metadata, node);
        self.ask_all(requests);
    }

    /// Another node passes on the request of a node to join.
    pub fn handle_join(&mut self, node: NodeRecord) {
        let requests = self.cluster.join(&mut self.ctx, &self.metadata, node);
        self.ask_all(requests);
    }

    pub fn peer_up(&mut self, node: NodeId, incarnation: env::Incarnation, shards: u16) {
        let is_new = self.cluster.handle_node_up(node, incarnation, shards);
        self.queues.local_mut().peer_up(node, incarnation, shards);
        if is_new {
            self.queues.local_mut().node_gone(DeadIncarnation {
                node,
                before: incarnation,
            });
        }
        self.queues.handle_node_up(&mut self.ctx, node);
        self.route_queue_outputs();
        self.tell_stream_leaders(node, shards);
        self.each_service(|service, view| service.node_up(view, node, incarnation));
        self.limits
            .handle_node_up(&mut self.ctx, self.metadata.tree(), (node, shards));
    }

    pub fn peer_down(&mut self, node: NodeId) {
        self.cluster.handle_node_down(self.ctx.now(), node);
        self.queues.local_mut().peer_down(node);
        self.queues.handle_node_down(&mut self.ctx, node);
        self.route_queue_outputs();
        let failed = self.browsers.handle_node_down(node);
        self.notify_browsers(failed);
        self.each_service(|service, view| service.node_down(view, node));
        self.limits.handle_node_down(self.ctx.now(), node);
    }
}
