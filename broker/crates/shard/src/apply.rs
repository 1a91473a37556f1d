//! The metadata log meets this shard: committed changes go into the tree, and what they made or removed is carried out.

use crate::core::Core;
use crate::directory::{Asker, Directory, Leader, Send};
use crate::frame::{Frame, Origin};
use crate::joiners::is_member;
use crate::membership::{Step, next_step};
use crate::{Effect, Route};
use bytes::Bytes;
use consensus::Committed;
use env::NodeId;
use metadata::{Change, Done, NodeRecord, QueueKind, QueueRecord, Refused, Tree, TreeEvent};
use queue::GoneNode;
use std::sync::Arc;

impl Core {
    /// Shard 0: entries of the metadata group.
    pub fn apply_metadata(&mut self, entries: Vec<Committed>) {
        for entry in entries {
            let Some(directory) = &mut self.directory else {
                return;
            };
            let taken = directory.committed(self.now, entry.command);
            self.applied = entry.index;
            let Some((change, asker)) = taken else {
                continue;
            };
            if self.config.shards > 1 {
                let done_for = match &asker {
                    Asker::Shard { shard, token } => Some((*shard, *token)),
                    _ => None,
                };
                self.send_to_other_shards(&Frame::Applied {
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
        let me = self.config.node;
        let heard = self.directory.as_ref().is_some_and(Directory::is_heard);
        if self.caught_up || !heard || self.tree.node(me).is_none() {
            return;
        }
        self.send_to_other_shards(&Frame::CaughtUp);
        self.is_caught_up();
    }

    pub fn is_caught_up(&mut self) {
        self.caught_up = true;
        if !self.draining {
            self.effects.push(Effect::Listen(true));
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
            .filter(|(shard, _)| *shard == self.config.index)
            .and_then(|(_, token)| self.asked.remove(&token));
        if let Some(asker) = asker {
            self.answer(asker, result);
        }
    }

    fn apply_change(&mut self, index: u64, change: &Change) -> Result<Done, Refused> {
        let result = self.tree.apply(index, change);
        for event in self.tree.take_events() {
            self.carry_out_event(event);
        }
        result
    }

    fn carry_out_event(&mut self, event: TreeEvent) {
        match event {
            TreeEvent::QueueAdded(record) => self.queue_added(&record, true),
            TreeEvent::QueueRemoved(record) => self.queue_removed(&record),
            TreeEvent::QueueMembersChanged(record) => {
                self.replacing.remove(&record.id);
                self.queue_added(&record, false);
                self.queue_members_changed(record.id, &record.members);
            }
            TreeEvent::PolicyChanged(ids) => {
                for id in ids {
                    self.refresh_settings(id);
                }
            }
            TreeEvent::NodeAdded(_) | TreeEvent::NodeChanged(_) | TreeEvent::NodeRemoved(_) => {
                self.nodes_changed()
            }
            // Sessions look these up when they need them.
            TreeEvent::VhostRemoved(_) | TreeEvent::PermissionsChanged { .. } => {}
        }
    }

    /// A queue is in the tree. `declared`: by the very entry being applied, so that its first members found its group;
    /// otherwise this node's replica, if it has none, starts empty and is filled by the leader.
    pub fn queue_added(&mut self, record: &Arc<QueueRecord>, declared: bool) {
        if self.owner_shard(record.id) != self.config.index
            || !record.members.contains(&self.config.node)
        {
            return;
        }
        match record.kind {
            QueueKind::Classic => {
                let settings = crate::turn::queue_part(&self.tree.queue_settings(record));
                self.owners.open_classic(record, &settings);
            }
            QueueKind::Quorum => self.owners.open_quorum(record, declared),
        }
        self.refresh_settings(record.id);
    }

    fn queue_removed(&mut self, record: &QueueRecord) {
        self.deleting.remove(&record.id);
        self.owners.remove(record.id);
        self.dead_letters.forget(record.id);
        self.clients_queue_removed(record.id);
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
            self.answer(asker, Err(Refused::Unavailable(text.into())));
        }
        if self.config.shards > 1 {
            self.send_to_other_shards(&Frame::Restored {
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
        let removed: Vec<_> = before
            .all_queues()
            .filter(|q| self.tree.queue_by_id(q.id).is_none())
            .cloned()
            .collect();
        for record in removed {
            self.queue_removed(&record);
        }
        let all: Vec<_> = self.tree.all_queues().cloned().collect();
        for record in all {
            self.queue_added(&record, false);
        }
        self.nodes_changed();
    }

    fn fatal_checkpoint(&mut self, error: &str) {
        self.effects.push(Effect::Fatal(format!(
            "metadata checkpoint cannot be read: {error}"
        )));
    }

    fn nodes_changed(&mut self) {
        if self.config.index == 0 {
            self.effects.push(Effect::Nodes(
                self.tree.nodes().map(|n| (**n).clone()).collect(),
            ));
        }
    }

    /// Leader of the metadata group: another node's change.
    pub fn propose_for(&mut self, origin: Origin, change: &Change) {
        if self
            .directory
            .as_ref()
            .is_some_and(|d| d.leader() == Leader::Me)
        {
            // Refused when leadership is lost meanwhile; the asking node sends it again.
            drop(
                self.owners
                    .propose_metadata(crate::directory::command(origin, change)),
            );
        }
    }

    pub fn metadata_leadership(&mut self, leader: Option<NodeId>, is_leader: bool) {
        let Some(directory) = &mut self.directory else {
            return;
        };
        let leader = match leader {
            _ if is_leader => Leader::Me,
            Some(node) => Leader::Other(node),
            None => Leader::Unknown,
        };
        let mut sends: Vec<Send> = Vec::new();
        directory.leader_changed(self.now, leader, &mut sends);
        self.carry_out(sends);
    }

    /// The first leader of a new cluster gives it its first contents.
    pub fn bootstrap_if_new(&mut self) {
        let leads = self
            .directory
            .as_ref()
            .is_some_and(|d| d.leader() == Leader::Me);
        if !leads || self.bootstrapping || self.tree.nodes().next().is_some() {
            return;
        }
        let Some(founding) = self.config.founding.clone() else {
            return;
        };
        self.bootstrapping = true;
        self.ask(
            Change::Bootstrap {
                cluster: founding.cluster,
                nodes: founding.nodes,
                user: founding.user,
            },
            Asker::Nobody,
        );
        // Nobody is there yet who would not understand.
        for feature in metadata::features::KNOWN {
            let name = feature.name.into();
            self.ask(Change::EnableFeature { name }, Asker::Nobody);
        }
    }

    /// A linked node wants to be a member of the cluster, now or when it is possible.
    pub fn join_requested(&mut self, node: NodeRecord) {
        self.joiners.ask(&node);
        self.join(node);
    }

    /// Asks once more for nodes that wait.
    pub fn ask_for_joiners(&mut self) {
        for node in self.joiners.waiting(&self.tree) {
            self.join(node);
        }
    }

    /// A node wants to be a member of the cluster: asked by itself here or through another node.
    pub fn join(&mut self, node: NodeRecord) {
        let Some(directory) = &self.directory else {
            return;
        };
        match directory.leader() {
            Leader::Me => self.admit_node(node),
            Leader::Other(to) => self.send_to_peer(to, Route::Shard(0), &Frame::Join { node }),
            // Whoever is linked to it asks again.
            Leader::Unknown => {}
        }
    }

    fn admit_node(&mut self, node: NodeRecord) {
        if is_member(&self.tree, &node) || self.joining.contains(&node.id) {
            return;
        }
        let voter = self.tree.node(node.id).is_some_and(|n| n.voter);
        // The same name under another id: it lost its directory and comes back as a new node.
        let replaced: Vec<_> = self
            .tree
            .nodes()
            .filter(|n| n.name == node.name && n.id != node.id)
            .map(|n| n.id)
            .collect();
        for id in replaced {
            tracing::warn!(event = "node_replaced", name = %node.name, old = id.0, new = node.id.0);
            self.ask(Change::DeleteNode { id }, Asker::Nobody);
        }
        tracing::info!(event = "node_joins", name = %node.name, id = node.id.0);
        self.joining.insert(node.id);
        self.ask(Change::PutNode(NodeRecord { voter, ..node }), Asker::Nobody);
    }

    /// Leader of the metadata group: brings its members and the tree's node records together, a step a second.
    pub fn reconcile_metadata_members(&mut self) {
        let me = self.config.node;
        let Some(status) = self.owners.metadata_status().filter(|s| s.is_leader) else {
            self.joining.clear();
            return;
        };
        let nodes: Vec<NodeRecord> = self.tree.nodes().map(|n| (**n).clone()).collect();
        self.joining.retain(|id| !nodes.iter().any(|n| n.id == *id));
        let wanted: Vec<NodeId> = nodes.iter().map(|n| n.id).collect();
        self.owners
            .membership_step(consensus::GroupId(0), next_step(me, &wanted, &status));
        for node in nodes {
            let voter = status.membership.voters.contains(&node.id);
            if node.voter != voter {
                self.ask(Change::PutNode(NodeRecord { voter, ..node }), Asker::Nobody);
            }
        }
    }

    /// Queues led here: members as the tree wants them; members that the cluster forgot are replaced.
    pub fn reconcile_queue_members(&mut self) {
        let me = self.config.node;
        for (id, status) in self.owners.led_groups() {
            let Some(record) = self.tree.queue_by_id(id).cloned() else {
                continue;
            };
            let known: Vec<NodeId> = self.tree.nodes().map(|n| n.id).collect();
            if record.members.iter().any(|m| !known.contains(m)) {
                self.replace_forgotten(&record, &known);
                continue;
            }
            match next_step(me, &record.members, &status) {
                Step::Done => {}
                step => self.owners.membership_step(consensus::GroupId(id.0), step),
            }
        }
    }

    fn replace_forgotten(&mut self, record: &QueueRecord, known: &[NodeId]) {
        let mut members: Vec<NodeId> = record
            .members
            .iter()
            .copied()
            .filter(|m| known.contains(m))
            .collect();
        let load = self.queue_loads();
        let mut others: Vec<NodeId> = known
            .iter()
            .copied()
            .filter(|n| !members.contains(n))
            .collect();
        others.sort_by_key(|n| (!self.peers.is_up(*n), load(*n), *n));
        members.extend(
            others
                .into_iter()
                .take(record.members.len() - members.len()),
        );
        if members != record.members && self.replacing.insert(record.id) {
            self.ask(
                Change::SetQueueMembers {
                    id: record.id,
                    members,
                },
                Asker::Nobody,
            );
        }
    }

    pub fn peer_up(&mut self, node: NodeId, incarnation: env::Incarnation) {
        let new_life = self.peers.up(node, incarnation);
        self.owners.peer_up(node, incarnation);
        if new_life {
            self.owners.node_gone(GoneNode {
                node,
                before: incarnation,
            });
        }
        self.clients_node_up(node);
    }

    pub fn peer_down(&mut self, node: NodeId) {
        self.peers.down(node);
        self.alarms.forget(node);
        self.joiners.forget(node);
        self.owners.peer_down(node);
        self.clients_node_down(node);
    }
}

/// The step a membership decision asks of the consensus host.
pub enum MembershipAction {
    Change(consensus::MembershipChange),
    Transfer(NodeId),
}

impl Step {
    pub fn action(self) -> Option<MembershipAction> {
        match self {
            Step::Change(change) => Some(MembershipAction::Change(change)),
            Step::TransferTo(node) => Some(MembershipAction::Transfer(node)),
            Step::Wait | Step::Done => None,
        }
    }
}
