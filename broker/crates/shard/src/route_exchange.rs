//! This shard's hub among those of the cluster: who is there, and how they are reached.

pub mod frame;

use crate::Route;
use crate::core::Core;
use crate::frame::Frame;
use env::planted::{self, Bug};
use env::{Incarnation, NodeId};
use frame::{RouterFrame, RouterMessage};
use topics::RouterAddress;

impl Core {
    /// This shard's own hub.
    pub fn router_place(&self) -> RouterAddress {
        RouterAddress {
            node: self.config.node,
            incarnation: self.config.incarnation,
            shard: self.config.index,
        }
    }

    /// The other hubs that are there now, in the same order on every node: of the other shards here, and of all shards of
    /// nodes that are up. Nodes of a cluster have the same number of shards.
    pub fn routers_there(&self) -> Vec<RouterAddress> {
        let me = (self.config.node, self.config.incarnation);
        let others = self.peers.lives().filter(|(_, p)| p.up);
        let others = others.map(|(n, p)| (n, p.incarnation));
        let mut nodes: Vec<_> = others.filter(|(n, _)| *n != me.0).collect();
        nodes.push(me);
        nodes.sort_unstable();
        let shards = 0..self.config.shards;
        let all = nodes.into_iter().flat_map(|(node, incarnation)| {
            shards.clone().map(move |shard| RouterAddress {
                node,
                incarnation,
                shard,
            })
        });
        all.filter(|place| *place != self.router_place()).collect()
    }

    /// To another hub. Between nodes it may be lost when the link breaks.
    pub fn send_hub_message(&mut self, to: RouterAddress, peer_message: RouterMessage) {
        let frame = Frame::Hub(RouterFrame {
            from: (self.config.incarnation, self.config.index),
            to: to.incarnation,
            peer_message,
        });
        match to.node == self.config.node {
            true => self.send_to_shard(to.shard, &frame),
            false => self.send_to_peer(to.node, Route::Shard(to.shard), &frame),
        }
    }

    /// From another hub.
    pub fn take_router_frame(&mut self, node: NodeId, frame: RouterFrame) {
        let (incarnation, shard) = frame.from;
        let from = RouterAddress {
            node,
            incarnation,
            shard,
        };
        if frame.to != self.config.incarnation || !self.router_is_there(from) {
            return;
        }
        match frame.peer_message {
            RouterMessage::Topics(peer_message) => self.topics.hear(from, peer_message),
            RouterMessage::Claims(peer_messages) => self.topics.hear_claims(from, peer_messages),
            RouterMessage::Wills(peer_messages) => self.topics.hear_wills(from, peer_messages),
        }
    }

    fn router_is_there(&self, place: RouterAddress) -> bool {
        if place.node == self.config.node {
            return place.incarnation == self.config.incarnation;
        }
        self.peers.is_up_as(place.node, place.incarnation)
    }

    /// What this hub has for others, gathered in a turn.
    pub fn flush_routers(&mut self) {
        while let Some((to, peer_message)) = self.topics.say() {
            self.send_hub_message(to, RouterMessage::Topics(peer_message));
        }
        while let Some((to, peer_messages)) = self.topics.say_wills() {
            self.send_hub_message(to, RouterMessage::Wills(peer_messages));
        }
        while let Some((to, peer_messages)) = self.topics.say_claims() {
            self.send_hub_message(to, RouterMessage::Claims(peer_messages));
        }
    }

    /// Client ids are shared out among the hubs that are there.
    fn share_out_claims(&mut self) {
        let (me, others) = (self.router_place(), self.routers_there());
        self.topics.set_routers(me, others);
        self.topics.set_wills(true);
        self.topics.set_handover(true);
        self.see_majority();
    }

    /// The cluster's nodes, or those that are up, may have changed.
    pub fn see_majority(&mut self) {
        let majority = self.is_with_majority();
        self.topics.set_majority(majority);
    }

    /// Whether more than half of the nodes that vote on metadata are up, this one among them.
    fn is_with_majority(&self) -> bool {
        let voters = self.tree.nodes().filter(|node| node.voter);
        let (mut all, mut there) = (0, 0);
        for node in voters {
            all += 1;
            there += usize::from(node.id == self.me() || self.peers.is_up(node.id));
        }
        there * 2 > all
    }

    /// A node is up: its hubs may have missed what was said, or are of a new life.
    pub fn routers_node_up(&mut self, node: NodeId, incarnation: Incarnation) {
        if !planted::is(Bug::DeadHubKept) {
            self.topics.forget_routers(node, Some(incarnation));
        }
        // Words may have been lost, even where the link was down for too short a time to be noticed.
        let (me, mut others) = (self.router_place(), self.routers_there());
        others.retain(|place| place.node != node);
        self.topics.set_routers(me, others);
        self.topics.set_wills(true);
        self.topics.set_handover(true);
        self.share_out_claims();
        for place in self.routers_there() {
            if place.node == node {
                self.topics.meet(place);
            }
        }
    }

    pub fn routers_node_down(&mut self, node: NodeId) {
        self.topics.part(node);
        self.share_out_claims();
    }

    /// Nodes may have left the cluster for good.
    pub fn forget_removed_routers(&mut self) {
        let known = self.peers.lives().map(|(node, _)| node);
        let removed: Vec<NodeId> = known.filter(|n| self.tree.is_forgotten(*n)).collect();
        for node in removed {
            self.topics.forget_routers(node, None);
        }
    }

    /// Hubs may have come, or the cluster may have begun to understand their words.
    pub fn meet_routers(&mut self) {
        for place in self.routers_there() {
            self.topics.meet(place);
        }
        self.share_out_claims();
    }
}
