//! This shard's hub among those of the cluster: who is there, and how they are reached.

pub mod frame;

use crate::Route;
use crate::core::Core;
use crate::frame::Frame;
use env::planted::{self, Bug};
use env::{Incarnation, NodeId};
use frame::{HubFrame, HubWord};
use metadata::features;
use topics::Place;

impl Core {
    /// This shard's own hub.
    pub fn hub_place(&self) -> Place {
        Place {
            node: self.config.node,
            incarnation: self.config.incarnation,
            shard: self.config.index,
        }
    }

    /// The other hubs that are there now, in the same order on every node: of the other shards here, and of all shards of
    /// nodes that are up, once the whole cluster understands their words. Nodes of a cluster have the same number of shards.
    pub fn hubs_there(&self) -> Vec<Place> {
        let me = (self.config.node, self.config.incarnation);
        let others = match self.tree.feature_enabled(features::MQTT_CLUSTER.name) {
            true => self.peers.lives().filter(|(_, p)| p.up).collect(),
            false => Vec::new(),
        };
        let others = others.into_iter().map(|(n, p)| (n, p.incarnation));
        let mut nodes: Vec<_> = others.filter(|(n, _)| *n != me.0).collect();
        nodes.push(me);
        nodes.sort_unstable();
        let shards = 0..self.config.shards;
        let all = nodes.into_iter().flat_map(|(node, incarnation)| {
            shards.clone().map(move |shard| Place {
                node,
                incarnation,
                shard,
            })
        });
        all.filter(|place| *place != self.hub_place()).collect()
    }

    /// To another hub. Between nodes it may be lost when the link breaks.
    pub fn send_hub_word(&mut self, to: Place, word: HubWord) {
        let frame = Frame::Hub(HubFrame {
            from: (self.config.incarnation, self.config.index),
            to: to.incarnation,
            word,
        });
        match to.node == self.config.node {
            true => self.send_to_shard(to.shard, &frame),
            false => self.send_to_peer(to.node, Route::Shard(to.shard), &frame),
        }
    }

    /// From another hub.
    pub fn take_hub_frame(&mut self, node: NodeId, frame: HubFrame) {
        let (incarnation, shard) = frame.from;
        let from = Place {
            node,
            incarnation,
            shard,
        };
        if frame.to != self.config.incarnation || !self.hub_is_there(from) {
            return;
        }
        match frame.word {
            HubWord::Topics(word) => self.topics.hear(from, word),
            HubWord::Claims(words) => self.topics.hear_claims(from, words),
            HubWord::Wills(words) => self.topics.hear_wills(from, words),
        }
    }

    fn hub_is_there(&self, place: Place) -> bool {
        if place.node == self.config.node {
            return place.incarnation == self.config.incarnation;
        }
        self.peers.is_up_as(place.node, place.incarnation)
    }

    /// What this hub has for others, gathered in a turn.
    pub fn flush_hubs(&mut self) {
        while let Some((to, word)) = self.topics.say() {
            self.send_hub_word(to, HubWord::Topics(word));
        }
        while let Some((to, words)) = self.topics.say_wills() {
            self.send_hub_word(to, HubWord::Wills(words));
        }
        while let Some((to, words)) = self.topics.say_claims() {
            self.send_hub_word(to, HubWord::Claims(words));
        }
    }

    /// Client ids are shared out among the hubs that are there.
    fn share_out_claims(&mut self) {
        let (me, others) = (self.hub_place(), self.hubs_there());
        self.topics.set_hubs(me, others);
        let wills = self.tree.feature_enabled(features::MQTT_WILLS.name);
        self.topics.set_wills(wills);
        let handover = self.tree.feature_enabled(features::MQTT_HANDOVER.name);
        self.topics.set_handover(handover);
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
    pub fn hubs_node_up(&mut self, node: NodeId, incarnation: Incarnation) {
        if !planted::is(Bug::DeadHubKept) {
            self.topics.forget_hubs(node, Some(incarnation));
        }
        // Words may have been lost, even where the link was down for too short a time to be noticed.
        let (me, mut others) = (self.hub_place(), self.hubs_there());
        others.retain(|place| place.node != node);
        self.topics.set_hubs(me, others);
        self.share_out_claims();
        for place in self.hubs_there() {
            if place.node == node {
                self.topics.meet(place);
            }
        }
    }

    pub fn hubs_node_down(&mut self, node: NodeId) {
        self.topics.part(node);
        self.share_out_claims();
    }

    /// Nodes may have left the cluster for good.
    pub fn forget_removed_hubs(&mut self) {
        let known = self.peers.lives().map(|(node, _)| node);
        let removed: Vec<NodeId> = known.filter(|n| self.tree.is_forgotten(*n)).collect();
        for node in removed {
            self.topics.forget_hubs(node, None);
        }
    }

    /// Hubs may have come, or the cluster may have begun to understand their words.
    pub fn meet_hubs(&mut self) {
        for place in self.hubs_there() {
            self.topics.meet(place);
        }
        self.share_out_claims();
    }
}
