//! The cluster as a shard knows it, and the shard's part in changing it.
//!
//! Owns: which nodes are linked ([`Peers`]), alarms, nodes that join, changes of group members in progress ([`Members`]), and
//! whether this node is drained.
//!
//! Inputs: links that come and go, frames about members, requests of operators, time. The tree is a read-only argument.
//!
//! Outputs: what is read through [`Topology`] and the queries; the loop requests changes of the tree and steps of groups.

use crate::context::Context;
use crate::joining_nodes::JoiningNodes;
use crate::local_queues::transfer_targets::TransferTargets;
use crate::members::Members;
use crate::peers::{Alarms, Peers};
use crate::placement::{self, Candidate};
use env::{NodeId, Time};
use metadata::{QueueRecord, Tree};
use std::collections::BTreeSet;
use std::time::Duration;

/// How often members of groups are compared with the tree, and leaders told of dead nodes.
const RECONCILE_EVERY: Duration = Duration::from_secs(1);

pub struct Cluster {
    pub(crate) peers: Peers,
    pub(crate) alarms: Alarms,
    pub(crate) joining_nodes: JoiningNodes,
    /// Nodes whose `PutNode` was requested.
    pub(crate) joining: BTreeSet<NodeId>,
    pub(crate) members: Members,
    pub(crate) is_draining: bool,
    reconcile_at: Time,
}

impl Cluster {
    pub fn new(now: Time) -> Cluster {
        Cluster {
            peers: Peers::default(),
            alarms: Alarms::default(),
            joining_nodes: JoiningNodes::default(),
            joining: BTreeSet::new(),
            members: Members::default(),
            is_draining: false,
            reconcile_at: now,
        }
    }

    /// Returns true once per [`RECONCILE_EVERY`].
    pub fn begin_reconciliation(&mut self, now: Time) -> bool {
        let is_due = now >= self.reconcile_at;
        if is_due {
            self.reconcile_at = now + RECONCILE_EVERY;
        }
        is_due
    }

    pub fn wake_at(&self, now: Time) -> Option<Time> {
        let review = self.members.review.is_due().then_some(now);
        let queries = self.members.questions.wake_at();
        [review, queries, Some(self.reconcile_at)]
            .into_iter()
            .flatten()
            .min()
    }

    pub fn topology<'a>(&'a self, ctx: &'a Context, tree: &'a Tree) -> Topology<'a> {
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
        let known = self.tree.node(node).map(|n| n.name.to_string());
        known.unwrap_or_else(|| format!("{:016x}", node.0))
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
            assert!(self.tree.member_counts_are_right());
            let recount = self.members.leaders.recount(self.tree);
            for node in self.tree.nodes() {
                let counted = self.members.leaders.count(self.tree, node.id);
                assert_eq!(recount.get(&node.id).copied().unwrap_or_default(), counted);
            }
        }
    }
}
