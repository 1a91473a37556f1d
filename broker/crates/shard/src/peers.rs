//! Other nodes as this shard knows them, and the cluster-wide alarms.

use crate::context::Context;
use crate::frame::AlarmReason;
use env::planted::{self, Bug};
use env::{Incarnation, NodeId};
use metadata::features::VersionFacts;
use session::ShardAddress;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub incarnation: Incarnation,
    /// Number of shards of this incarnation.
    pub shards: u16,
    pub up: bool,
}

#[derive(Debug, Default)]
pub struct Peers {
    lives: BTreeMap<NodeId, Peer>,
    /// What runs there, of those that tell.
    programs: BTreeMap<NodeId, VersionFacts>,
}

impl Peers {
    /// True when this is another life of the node than the one known: sessions of the old one are over.
    pub fn up(&mut self, node: NodeId, incarnation: Incarnation, shards: u16) -> bool {
        let before = self.lives.insert(
            node,
            Peer {
                incarnation,
                shards,
                up: true,
            },
        );
        before.is_none_or(|b| b.incarnation != incarnation)
    }

    /// What a node tells of its program when it comes up; one that does not tell may be any.
    pub fn told(&mut self, node: NodeId, program: Option<VersionFacts>) {
        if planted::is(Bug::ProgramOfBefore) && self.programs.contains_key(&node) {
            return;
        }
        match program {
            Some(program) => drop(self.programs.insert(node, program)),
            None => drop(self.programs.remove(&node)),
        }
    }

    /// What runs there; None: it is down, and comes back as whatever it likes, or it does not tell.
    pub fn program(&self, node: NodeId) -> Option<&VersionFacts> {
        self.programs.get(&node).filter(|_| self.is_up(node))
    }

    pub fn down(&mut self, node: NodeId) {
        if !planted::is(Bug::ProgramOfBefore) {
            self.programs.remove(&node);
        }
        if let Some(peer) = self.lives.get_mut(&node) {
            peer.up = false;
        }
    }

    pub fn is_up(&self, node: NodeId) -> bool {
        self.lives.get(&node).is_some_and(|p| p.up)
    }

    /// Whether it is up, in this life of it.
    pub fn is_up_as(&self, node: NodeId, incarnation: Incarnation) -> bool {
        let peer = self.lives.get(&node);
        peer.is_some_and(|p| p.up && p.incarnation == incarnation)
    }

    /// Returns true if this shard exists: of this incarnation of the own node, or of one that is linked.
    pub fn has_shard(&self, ctx: &Context, address: ShardAddress) -> bool {
        if address.node == ctx.node() {
            return address.incarnation == ctx.config().incarnation;
        }
        self.is_up_as(address.node, address.incarnation)
    }

    /// Whether it has been up in this life of the own node; the own node is known.
    pub fn is_known(&self, node: NodeId) -> bool {
        self.lives.contains_key(&node)
    }

    /// The incarnation of a node that is up.
    pub fn incarnation(&self, node: NodeId) -> Option<Incarnation> {
        let peer = self.lives.get(&node).filter(|peer| peer.up)?;
        Some(peer.incarnation)
    }

    /// Nodes whose life is known, up or down.
    pub fn lives(&self) -> impl Iterator<Item = (NodeId, Peer)> + '_ {
        self.lives.iter().map(|(n, p)| (*n, *p))
    }

    /// Other nodes that are up, with their numbers of shards.
    pub fn shards_up(&self, me: NodeId) -> impl Iterator<Item = (NodeId, u16)> + '_ {
        let others = self.lives.iter().filter(move |(n, p)| p.up && **n != me);
        others.map(|(n, p)| (*n, p.shards))
    }

    pub fn all_up(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.lives.iter().filter(|(_, p)| p.up).map(|(n, _)| *n)
    }
}

/// The alarms of each node. Publishers on all nodes are blocked while any node has one.
#[derive(Debug, Default)]
pub(crate) struct Alarms(BTreeSet<(AlarmReason, NodeId)>);

impl Alarms {
    /// True when it changed.
    pub(crate) fn set(&mut self, reason: AlarmReason, node: NodeId, on: bool) -> bool {
        if on {
            self.0.insert((reason, node))
        } else {
            self.0.remove(&(reason, node))
        }
    }

    /// A node that is gone has no alarm.
    pub(crate) fn forget(&mut self, node: NodeId) -> bool {
        let before = self.0.len();
        self.0.retain(|(_, n)| *n != node);
        before != self.0.len()
    }

    pub(crate) fn has(&self, reason: AlarmReason, node: NodeId) -> bool {
        self.0.contains(&(reason, node))
    }

    /// The text for `connection.blocked`, as RabbitMQ says it.
    pub(crate) fn in_force(&self) -> Option<&'static str> {
        let any = |reason| self.0.iter().any(|(r, _)| *r == reason);
        match (any(AlarmReason::Memory), any(AlarmReason::Disk)) {
            (true, true) => Some("low on memory & disk"),
            (true, false) => Some("low on memory"),
            (false, true) => Some("low on disk"),
            (false, false) => None,
        }
    }
}
