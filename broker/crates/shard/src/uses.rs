//! Connections and channels of limited users and virtual hosts on other shards and nodes. Shards announce their own numbers as these
//! change, and each decides by the numbers it knows: see `docs/decisions/0013-limits.md`. Unlimited ones are not announced.

pub mod frame;

use crate::Route;
use crate::core::Core;
use crate::frame::Frame;
use env::{NodeId, Time};
use frame::{MAX_USES, UsesFrame};
use metadata::{Name, features};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::time::Duration;

/// A shard tells at most so often.
const EVERY: Duration = Duration::from_millis(50);
/// Names remembered of one other shard; what it tells of more is not counted.
const MAX_NAMES: usize = 100_000;

/// Who has limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    User(Name),
    Vhost(Name),
}

/// What is open. Channels are counted for users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    pub connections: u64,
    pub channels: u64,
}

impl Add for Open {
    type Output = Open;

    fn add(self, other: Open) -> Open {
        Open {
            connections: self.connections.saturating_add(other.connections),
            channels: self.channels.saturating_add(other.channels),
        }
    }
}

#[derive(Default)]
pub struct Uses {
    /// By shard, of those that have anything open.
    others: BTreeMap<(NodeId, u16), BTreeMap<Holder, Open>>,
    /// What others are to be told of.
    changed: BTreeSet<Holder>,
    /// Not before.
    tell_at: Time,
}

impl Uses {
    /// What all other shards have open.
    pub fn elsewhere(&self, holder: &Holder) -> Open {
        let all = self.others.values().filter_map(|told| told.get(holder));
        all.fold(Open::default(), |sum, open| sum + *open)
    }

    /// Another shard tells what it has open now.
    pub fn hear(&mut self, from: NodeId, told: UsesFrame) {
        let known = self.others.entry((from, told.shard)).or_default();
        for (holder, open) in told.uses {
            if open == Open::default() {
                known.remove(&holder);
            } else if known.len() < MAX_NAMES || known.contains_key(&holder) {
                known.insert(holder, open);
            }
        }
    }

    /// Its clients are gone, or out of reach; or it is back, and tells anew.
    pub fn forget_node(&mut self, node: NodeId) {
        self.others.retain(|(known, _), _| *known != node);
    }

    /// It is gone from the tree.
    pub fn forget(&mut self, holder: &Holder) {
        for told in self.others.values_mut() {
            told.remove(holder);
        }
    }

    pub fn wake_at(&self) -> Option<Time> {
        (!self.changed.is_empty()).then_some(self.tell_at)
    }

    /// What is to be told now.
    fn due(&mut self, now: Time) -> BTreeSet<Holder> {
        if now < self.tell_at || self.changed.is_empty() {
            return BTreeSet::new();
        }
        self.tell_at = now + EVERY;
        std::mem::take(&mut self.changed)
    }
}

impl Core {
    fn is_limited(&self, holder: &Holder) -> bool {
        match holder {
            Holder::User(name) => self.tree.user(name).is_some_and(|u| !u.limits.is_empty()),
            Holder::Vhost(name) => {
                let vhost = self.tree.vhost(name);
                vhost.is_some_and(|v| v.limit("max-connections").is_some())
            }
        }
    }

    /// What it has open here is something else now; or it has other limits. If it had none others know nothing of it, or what is long
    /// past: so all tell, also that nothing is open.
    pub fn note_use(&mut self, holder: Holder) {
        if self.is_limited(&holder) {
            self.uses.changed.insert(holder);
        }
    }

    /// The tree was replaced.
    pub fn keep_counts(&mut self) {
        let tree = &self.tree;
        self.tallies.keep_vhosts(|name| tree.vhost_exists(name));
        self.tell_all_uses();
    }

    /// Everything that is open here under limits.
    fn limited_here(&self) -> BTreeSet<Holder> {
        let (users, vhosts) = self.accounts.names();
        let users = users.cloned().map(Holder::User);
        let all = users.chain(vhosts.cloned().map(Holder::Vhost));
        all.filter(|holder| self.is_limited(holder)).collect()
    }

    pub fn tell_all_uses(&mut self) {
        let all = self.limited_here();
        self.uses.changed.extend(all);
    }

    /// A node that knows nothing yet, or has forgotten it.
    pub fn tell_uses_to(&mut self, node: NodeId) {
        if node != self.config.node && self.nodes_hear_uses() {
            for frame in self.use_frames(&self.limited_here()) {
                self.send_uses(node, &frame);
            }
        }
    }

    /// The end of a turn: others hear what has changed.
    pub fn flush_uses(&mut self) {
        if self.uses.changed.is_empty() {
            return;
        }
        let holders = self.uses.due(self.now);
        if holders.is_empty() {
            return;
        }
        let me = self.config.node;
        let peers = self.peers.all_up().filter(|node| *node != me);
        let peers: Vec<NodeId> = peers.filter(|_| self.nodes_hear_uses()).collect();
        for frame in self.use_frames(&holders) {
            self.send_to_other_shards(&frame);
            for peer in &peers {
                self.send_uses(*peer, &frame);
            }
        }
    }

    fn nodes_hear_uses(&self) -> bool {
        self.tree.feature_enabled(features::CLUSTER_LIMITS.name)
    }

    fn send_uses(&mut self, node: NodeId, frame: &Frame) {
        for shard in 0..self.config.shards {
            self.send_to_peer(node, Route::Shard(shard), frame);
        }
    }

    fn use_frames(&self, holders: &BTreeSet<Holder>) -> Vec<Frame> {
        let limited = holders.iter().filter(|holder| self.is_limited(holder));
        let uses: Vec<(Holder, Open)> = limited
            .map(|holder| match holder {
                Holder::User(name) => (holder.clone(), self.accounts.of_user(name)),
                Holder::Vhost(name) => (holder.clone(), self.accounts.of_vhost(name)),
            })
            .collect();
        let frame = |part: &[(Holder, Open)]| {
            Frame::Uses(UsesFrame {
                shard: self.config.index,
                uses: part.to_vec(),
            })
        };
        uses.chunks(MAX_USES).map(frame).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> Holder {
        Holder::User(name.into())
    }

    fn open(connections: u64, channels: u64) -> Open {
        Open {
            connections,
            channels,
        }
    }

    fn told(shard: u16, uses: &[(Holder, Open)]) -> UsesFrame {
        let uses = uses.to_vec();
        UsesFrame { shard, uses }
    }

    #[test]
    fn the_newest_word_of_each_shard_counts_until_its_node_is_gone() {
        let mut uses = Uses::default();
        let (a, b) = (NodeId(1), NodeId(2));
        uses.hear(a, told(0, &[(user("u"), open(3, 9))]));
        uses.hear(a, told(1, &[(user("u"), open(1, 0))]));
        uses.hear(
            b,
            told(0, &[(user("u"), open(5, 1)), (user("v"), open(1, 1))]),
        );
        // A user is no virtual host of the same name.
        uses.hear(b, told(0, &[(Holder::Vhost("u".into()), open(100, 0))]));
        assert_eq!(uses.elsewhere(&user("u")), open(9, 10));
        uses.hear(a, told(0, &[(user("u"), open(1, 1))]));
        uses.hear(a, told(1, &[(user("u"), open(0, 0))]));
        assert_eq!(uses.elsewhere(&user("u")), open(6, 2));
        uses.forget_node(b);
        assert_eq!(uses.elsewhere(&user("u")), open(1, 1));
        uses.forget(&user("u"));
        assert_eq!(uses.elsewhere(&user("u")), Open::default());
    }

    #[test]
    fn no_more_names_are_remembered_than_the_limit() {
        let mut uses = Uses::default();
        for n in 0..MAX_NAMES as u64 + 5 {
            uses.hear(NodeId(1), told(0, &[(user(&n.to_string()), open(1, 0))]));
        }
        let known = &uses.others[&(NodeId(1), 0)];
        assert_eq!(known.len(), MAX_NAMES);
        uses.hear(NodeId(1), told(0, &[(user("0"), open(7, 0))]));
        assert_eq!(uses.elsewhere(&user("0")), open(7, 0));
    }

    #[test]
    fn a_burst_is_told_together() {
        let mut uses = Uses::default();
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        uses.changed.insert(user("u"));
        assert_eq!(uses.wake_at(), Some(at(0)));
        assert_eq!(uses.due(at(5)).len(), 1);
        assert_eq!((uses.wake_at(), uses.due(at(100)).len()), (None, 0));
        uses.changed.insert(user("u"));
        assert_eq!(uses.due(at(54)).len(), 0);
        uses.changed.insert(user("v"));
        assert_eq!(uses.wake_at(), Some(at(55)));
        assert_eq!(uses.due(at(55)).len(), 2);
    }
}
