//! The cluster as a shard knows it, and the shard's part in changing it.
//!
//! Owns: which nodes are linked ([`Peers`]), alarms, nodes that join, changes of group members in progress ([`Members`]), and
//! whether this node is drained.
//!
//! Inputs: links that come and go, frames about members, requests of operators, time. The tree is a read-only argument.
//!
//! Outputs: changes of the tree as [`ChangeRequest`]s, frames through the [`Context`], and decisions through [`Topology`].

use crate::Route;
use crate::context::Context;
use crate::frame::Frame;
use crate::joining_nodes::{JoiningNodes, is_member};
use crate::local_queues::transfer_targets::TransferTargets;
use crate::members::Members;
use crate::members::frame::MembershipMessage;
use crate::metadata_client::{ChangeRequester, MetadataLeader};
use crate::metadata_replica::MetadataReplica;
use crate::peers::{Alarms, Peers};
use crate::placement::{self, Candidate};
use env::planted::{self, Bug};
use env::{Incarnation, NodeId, Time};
use metadata::{Change, ChangeError, ChangeResult, NodeRecord, QueueRecord, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How often members of groups are compared with the tree, and leaders told of dead nodes.
const RECONCILE_EVERY: Duration = Duration::from_secs(1);

/// Name of a node, or its id if it has none.
pub(crate) fn name_in(tree: &Tree, node: NodeId) -> String {
    let known = tree.node(node).map(|n| n.name.to_string());
    known.unwrap_or_else(|| format!("{:016x}", node.0))
}

/// A change of the tree that the loop requests.
pub(crate) type ChangeRequest = (Change, ChangeRequester);

pub(crate) struct Cluster {
    peers: Peers,
    alarms: Alarms,
    joining_nodes: JoiningNodes,
    /// Nodes whose `PutNode` was requested.
    joining: BTreeSet<NodeId>,
    members: Members,
    /// When the nodes that are down were last linked, of those that were in this life of the node.
    left_at: BTreeMap<NodeId, Time>,
    is_draining: bool,
    reconcile_at: Time,
}

impl Cluster {
    pub(crate) fn new(now: Time) -> Cluster {
        Cluster {
            peers: Peers::default(),
            alarms: Alarms::default(),
            joining_nodes: JoiningNodes::default(),
            joining: BTreeSet::new(),
            members: Members::default(),
            left_at: BTreeMap::new(),
            is_draining: false,
            reconcile_at: now,
        }
    }

    /// Returns true once per [`RECONCILE_EVERY`].
    pub(crate) fn begin_reconciliation(&mut self, now: Time) -> bool {
        let is_due = now >= self.reconcile_at;
        if is_due {
            self.reconcile_at = now + RECONCILE_EVERY;
        }
        is_due
    }

    pub(crate) fn wake_at(&self, now: Time) -> Option<Time> {
        let review = self.members.review.is_due().then_some(now);
        let queries = self.members.questions.wake_at();
        let recoveries = self.members.recoveries.wake_at();
        Time::earliest([review, queries, recoveries, Some(self.reconcile_at)])
    }

    pub(crate) fn peers(&self) -> &Peers {
        &self.peers
    }

    pub(crate) fn peers_mut(&mut self) -> &mut Peers {
        &mut self.peers
    }

    pub(crate) fn alarms(&self) -> &Alarms {
        &self.alarms
    }

    pub(crate) fn alarms_mut(&mut self) -> &mut Alarms {
        &mut self.alarms
    }

    pub(crate) fn members(&self) -> &Members {
        &self.members
    }

    pub(crate) fn members_mut(&mut self) -> &mut Members {
        &mut self.members
    }

    /// Returns true while this node is in maintenance or shuts down.
    pub(crate) fn is_draining(&self) -> bool {
        self.is_draining
    }

    pub(crate) fn set_draining(&mut self, on: bool) {
        self.is_draining = on;
    }

    /// How long a node has been down, as far as this node has seen it since `started`.
    pub(crate) fn absence(&self, node: NodeId, started: Time, now: Time) -> Duration {
        match self.peers.is_up(node) {
            true => Duration::ZERO,
            false => now.since(self.left_at.get(&node).copied().unwrap_or(started)),
        }
    }

    /// A node is linked. Returns true if its incarnation is a new one: sessions of earlier ones are over.
    pub(crate) fn handle_node_up(
        &mut self,
        node: NodeId,
        incarnation: Incarnation,
        shards: u16,
    ) -> bool {
        self.members.review.all();
        self.left_at.remove(&node);
        self.peers.up(node, incarnation, shards)
    }

    pub(crate) fn handle_node_down(&mut self, now: Time, node: NodeId) {
        self.peers.down(node);
        self.left_at.insert(node, now);
        self.members.review.all();
        self.alarms.forget(node);
        self.joining_nodes.forget(node);
    }

    /// A linked node requests to join. The request is repeated until the tree has the node.
    pub(crate) fn begin_join(
        &mut self,
        ctx: &mut Context,
        metadata: &MetadataReplica,
        node: NodeRecord,
    ) -> Vec<ChangeRequest> {
        if metadata.tree().is_forgotten(node.id) && !planted::is(Bug::RemovedReturns) {
            tracing::warn!(event = "node_was_removed", name = %node.name, id = node.id.0);
            let removed = Frame::Members(MembershipMessage::Removed);
            ctx.send_to_peer(node.id, Route::Shard(0), &removed);
            return Vec::new();
        }
        self.joining_nodes.ask(&node);
        self.join(ctx, metadata, node)
    }

    /// Repeats the requests of nodes that are not members yet.
    pub(crate) fn repeat_joins(
        &mut self,
        ctx: &mut Context,
        metadata: &MetadataReplica,
    ) -> Vec<ChangeRequest> {
        let waiting = self.joining_nodes.waiting(metadata.tree()).into_iter();
        waiting
            .flat_map(|node| self.join(ctx, metadata, node))
            .collect()
    }

    /// A node requests to join, here or through another node: the leader of the metadata group admits it.
    pub(crate) fn join(
        &mut self,
        ctx: &mut Context,
        metadata: &MetadataReplica,
        node: NodeRecord,
    ) -> Vec<ChangeRequest> {
        match metadata.leader() {
            Some(MetadataLeader::Me) => return self.admit(ctx, metadata.tree(), node),
            Some(MetadataLeader::Other(to)) => {
                ctx.send_to_peer(to, Route::Shard(0), &Frame::Join { node });
            }
            // The node to which it is linked repeats the request.
            Some(MetadataLeader::Unknown) | None => {}
        }
        Vec::new()
    }

    fn admit(&mut self, ctx: &Context, tree: &Tree, node: NodeRecord) -> Vec<ChangeRequest> {
        if is_member(tree, &node) || self.joining.contains(&node.id) {
            return Vec::new();
        }
        // A new cluster gets its first contents before it has members: a member lets clients in, and would know no users. The
        // node repeats its request.
        if tree.nodes().next().is_none() {
            return Vec::new();
        }
        // The same name under another id: the node lost its directory and comes back as a new node.
        let same_name = tree
            .nodes()
            .filter(|n| n.name == node.name && n.id != node.id);
        let replaced: Vec<NodeId> = same_name.map(|n| n.id).collect();
        let topology = self.topology(ctx, tree);
        if replaced.iter().any(|id| topology.is_up(*id)) {
            // The end of the earlier node is not noticed yet, or two processes have one name. The node repeats its request.
            tracing::warn!(event = "node_name_taken", name = %node.name, id = node.id.0);
            return Vec::new();
        }
        let voter = tree.node(node.id).is_some_and(|n| n.voter);
        let (id, new) = (node.id, NodeRecord { voter, ..node });
        // The change that removes the earlier node adds the new one.
        if !replaced.is_empty() {
            let requests = replaced.iter().filter_map(|old| self.replace(*old, &new));
            return requests.collect();
        }
        tracing::info!(event = "node_joins", name = %new.name, id = id.0);
        self.joining.insert(id);
        vec![(Change::PutNode(new), ChangeRequester::Join(id))]
    }

    /// The outcome of a node's request to join. A refused node repeats it.
    pub(crate) fn handle_join_result(
        &mut self,
        node: NodeId,
        result: &Result<ChangeResult, ChangeError>,
    ) {
        self.joining.remove(&node);
        if let Err(why) = result {
            tracing::warn!(event = "node_join_refused", id = node.0, %why);
        }
    }

    /// Another node leads the metadata group: it admits nodes.
    pub(crate) fn forget_joins(&mut self) {
        self.joining.clear();
    }

    /// Compares joining nodes with those of the tree. Of two nodes with one name the one that is down is replaced.
    pub(crate) fn review_nodes(
        &mut self,
        ctx: &Context,
        tree: &Tree,
        nodes: &[NodeRecord],
    ) -> Vec<ChangeRequest> {
        self.joining.retain(|id| !nodes.iter().any(|n| n.id == *id));
        self.members.replacements.retain(nodes);
        let topology = self.topology(ctx, tree);
        let (up, down): (Vec<_>, Vec<_>) = nodes.iter().partition(|n| topology.is_up(n.id));
        let replaced = down.into_iter().filter_map(|old| {
            let new = up.iter().find(|n| n.name == old.name)?;
            self.replace(old.id, new)
        });
        replaced.collect()
    }

    /// Requests the removal of `old`, whose name `new` has.
    fn replace(&mut self, old: NodeId, new: &NodeRecord) -> Option<ChangeRequest> {
        self.members.replacements.begin(old, new).then(|| {
            let new = new.clone();
            let change = Change::ReplaceNode { old, new };
            (change, ChangeRequester::Replacement(old))
        })
    }

    pub(crate) fn topology<'a>(&'a self, ctx: &'a Context, tree: &'a Tree) -> Topology<'a> {
        Topology {
            ctx,
            tree,
            peers: &self.peers,
            members: &self.members,
        }
    }
}

/// The nodes of the cluster with what the tree and the links say about them.
#[derive(Clone, Copy)]
pub struct Topology<'a> {
    ctx: &'a Context,
    tree: &'a Tree,
    peers: &'a Peers,
    members: &'a Members,
}

impl<'a> Topology<'a> {
    pub fn tree(&self) -> &'a Tree {
        self.tree
    }

    pub fn ctx(&self) -> &'a Context {
        self.ctx
    }

    pub fn is_up(&self, node: NodeId) -> bool {
        node == self.ctx.node() || self.peers.is_up(node)
    }

    /// The node's name, or its id if the tree does not have it.
    pub fn name_of(&self, node: NodeId) -> String {
        name_in(self.tree, node)
    }

    /// Nodes in maintenance, to which leaders must not move.
    pub fn drained(&self) -> Vec<NodeId> {
        let drained = self.tree.nodes().filter(|n| n.maintenance);
        drained.map(|n| n.id).collect()
    }

    /// The nodes that may take over leaders of this node, except those to `avoid`.
    pub fn transfer_targets(&self, avoid: &'a [NodeId]) -> TransferTargets<'a> {
        TransferTargets {
            me: self.ctx.node(),
            tree: self.tree,
            peers: self.peers,
            avoid,
        }
    }

    /// The nodes as placement sees them. The cost does not depend on the number of queues, because each declaration asks. A
    /// queue's leader is known where this shard has a replica; of other queues it is taken to be the first member.
    pub fn candidates(&self) -> Vec<Candidate<'a>> {
        let leaders = &self.members.leaders;
        let each = self.tree.nodes().map(|n| Candidate {
            node: n.id,
            zone: self.tree.zone(n.id),
            available: self.is_up(n.id) && !n.maintenance,
            replicas: self.tree.member_count(n.id),
            leaders: leaders.count(self.tree, n.id),
        });
        each.collect()
    }

    /// Members for a queue that is about to be declared, the first leader first.
    pub fn place(&self, queue: &QueueRecord) -> Vec<NodeId> {
        let me = self.ctx.node();
        if !queue.kind.is_replicated() {
            return vec![me];
        }
        let request = self.tree.placement_request(queue);
        let target = request
            .target
            .max(self.ctx.config().placement.target_group_size);
        let replicas = match request.initial {
            0 => target.max(placement::DEFAULT_REPLICAS),
            initial => initial,
        };
        let candidates = self.candidates();
        let mut members = placement::new_members(me, &candidates, replicas);
        placement::lead_first(&mut members, me, &candidates, request.locator);
        members
    }

    /// Asserts in builds with debug assertions that the counts of [`Topology::candidates`] are those of a recount.
    pub fn check_counts(&self) {
        #[cfg(debug_assertions)]
        {
            assert!(self.tree.member_counts_match_queues());
            let recount = self.members.leaders.recount(self.tree);
            for node in self.tree.nodes() {
                let counted = self.members.leaders.count(self.tree, node.id);
                assert_eq!(recount.get(&node.id).copied().unwrap_or_default(), counted);
            }
        }
    }
}
