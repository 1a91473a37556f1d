//! Connections and channels of limited users and virtual hosts on other shards and nodes. Shards announce their own numbers as these
//! change, and each decides by the numbers it knows: see `docs/decisions/0013-limits.md`. Unlimited ones are not announced.

pub mod frame;

use crate::Route;
use crate::core::Core;
use crate::frame::Frame;
use env::{NodeId, Time};
use frame::{LimitUsageFrame, MAX_USES};
use metadata::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::time::Duration;

/// A shard tells at most so often.
const EVERY: Duration = Duration::from_millis(50);
/// Names remembered of one other shard; what it tells of more is not counted.
const MAX_NAMES: usize = 100_000;

/// Who has limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LimitSubject {
    User(Name),
    Vhost(Name),
}

/// What is open. Channels are counted for users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenCounts {
    pub connections: u64,
    pub channels: u64,
}

impl Add for OpenCounts {
    type Output = OpenCounts;

    fn add(self, other: OpenCounts) -> OpenCounts {
        OpenCounts {
            connections: self.connections.saturating_add(other.connections),
            channels: self.channels.saturating_add(other.channels),
        }
    }
}

#[derive(Default)]
pub struct LimitUsage {
    /// By shard, of those that have anything open.
    others: BTreeMap<(NodeId, u16), BTreeMap<LimitSubject, OpenCounts>>,
    /// What others are to be told of.
    changed: BTreeSet<LimitSubject>,
    /// Not before.
    tell_at: Time,
}

impl LimitUsage {
    /// What all other shards have open.
    pub fn elsewhere(&self, holder: &LimitSubject) -> OpenCounts {
        let all = self.others.values().filter_map(|told| told.get(holder));
        all.fold(OpenCounts::default(), |sum, open| sum + *open)
    }

    /// Another shard tells what it has open now.
    pub fn hear(&mut self, from: NodeId, told: LimitUsageFrame) {
        let known = self.others.entry((from, told.shard)).or_default();
        for (holder, open) in told.limit_usage {
            if open == OpenCounts::default() {
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
    pub fn forget(&mut self, holder: &LimitSubject) {
        for told in self.others.values_mut() {
            told.remove(holder);
        }
    }

    pub fn wake_at(&self) -> Option<Time> {
        (!self.changed.is_empty()).then_some(self.tell_at)
    }

    /// What is to be told now.
    fn due(&mut self, now: Time) -> BTreeSet<LimitSubject> {
        if now < self.tell_at || self.changed.is_empty() {
            return BTreeSet::new();
        }
        self.tell_at = now + EVERY;
        std::mem::take(&mut self.changed)
    }
}

impl Core {
    fn is_limited(&self, holder: &LimitSubject) -> bool {
        match holder {
            LimitSubject::User(name) => self.tree.user(name).is_some_and(|u| !u.limits.is_empty()),
            LimitSubject::Vhost(name) => {
                let vhost = self.tree.vhost(name);
                vhost.is_some_and(|v| v.limit("max-connections").is_some())
            }
        }
    }

    /// What it has open here is something else now; or it has other limits. If it had none others know nothing of it, or what is long
    /// past: so all tell, also that nothing is open.
    pub fn note_use(&mut self, holder: LimitSubject) {
        if self.is_limited(&holder) {
            self.limit_usage.changed.insert(holder);
        }
    }

    /// The tree was replaced.
    pub fn keep_counts(&mut self) {
        let tree = &self.tree;
        self.all_counters
            .keep_vhosts(|name| tree.vhost_exists(name));
        self.tell_all_limit_usage();
    }

    /// Everything that is open here under limits.
    fn limited_here(&self) -> BTreeSet<LimitSubject> {
        let (users, vhosts) = self.accounts.names();
        let users = users.cloned().map(LimitSubject::User);
        let all = users.chain(vhosts.cloned().map(LimitSubject::Vhost));
        all.filter(|holder| self.is_limited(holder)).collect()
    }

    pub fn tell_all_limit_usage(&mut self) {
        let all = self.limited_here();
        self.limit_usage.changed.extend(all);
    }

    /// A node that knows nothing yet, or has forgotten it.
    pub fn tell_limit_usage_to(&mut self, node: NodeId) {
        if node != self.ctx.node() {
            for frame in self.use_frames(&self.limited_here()) {
                self.send_limit_usage(node, &frame);
            }
        }
    }

    /// The end of a turn: others hear what has changed.
    pub fn flush_limit_usage(&mut self) {
        if self.limit_usage.changed.is_empty() {
            return;
        }
        let holders = self.limit_usage.due(self.ctx.now());
        if holders.is_empty() {
            return;
        }
        let me = self.ctx.node();
        let peers = self.peers.all_up().filter(|node| *node != me);
        let peers: Vec<NodeId> = peers.collect();
        for frame in self.use_frames(&holders) {
            self.ctx.send_to_other_shards(&frame);
            for peer in &peers {
                self.send_limit_usage(*peer, &frame);
            }
        }
    }

    fn send_limit_usage(&mut self, node: NodeId, frame: &Frame) {
        for shard in 0..self.ctx.config().shards {
            self.ctx.send_to_peer(node, Route::Shard(shard), frame);
        }
    }

    fn use_frames(&self, holders: &BTreeSet<LimitSubject>) -> Vec<Frame> {
        let limited = holders.iter().filter(|holder| self.is_limited(holder));
        let limit_usage: Vec<(LimitSubject, OpenCounts)> = limited
            .map(|holder| match holder {
                LimitSubject::User(name) => (holder.clone(), self.accounts.of_user(name)),
                LimitSubject::Vhost(name) => (holder.clone(), self.accounts.of_vhost(name)),
            })
            .collect();
        let frame = |part: &[(LimitSubject, OpenCounts)]| {
            Frame::Uses(LimitUsageFrame {
                shard: self.ctx.shard(),
                limit_usage: part.to_vec(),
            })
        };
        limit_usage.chunks(MAX_USES).map(frame).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(name: &str) -> LimitSubject {
        LimitSubject::User(name.into())
    }

    fn open(connections: u64, channels: u64) -> OpenCounts {
        OpenCounts {
            connections,
            channels,
        }
    }

    fn told(shard: u16, limit_usage: &[(LimitSubject, OpenCounts)]) -> LimitUsageFrame {
        let limit_usage = limit_usage.to_vec();
        LimitUsageFrame { shard, limit_usage }
    }

    #[test]
    fn the_newest_word_of_each_shard_counts_until_its_node_is_gone() {
        let mut limit_usage = LimitUsage::default();
        let (a, b) = (NodeId(1), NodeId(2));
        limit_usage.hear(a, told(0, &[(user("u"), open(3, 9))]));
        limit_usage.hear(a, told(1, &[(user("u"), open(1, 0))]));
        limit_usage.hear(
            b,
            told(0, &[(user("u"), open(5, 1)), (user("v"), open(1, 1))]),
        );
        // A user is no virtual host of the same name.
        limit_usage.hear(
            b,
            told(0, &[(LimitSubject::Vhost("u".into()), open(100, 0))]),
        );
        assert_eq!(limit_usage.elsewhere(&user("u")), open(9, 10));
        limit_usage.hear(a, told(0, &[(user("u"), open(1, 1))]));
        limit_usage.hear(a, told(1, &[(user("u"), open(0, 0))]));
        assert_eq!(limit_usage.elsewhere(&user("u")), open(6, 2));
        limit_usage.forget_node(b);
        assert_eq!(limit_usage.elsewhere(&user("u")), open(1, 1));
        limit_usage.forget(&user("u"));
        assert_eq!(limit_usage.elsewhere(&user("u")), OpenCounts::default());
    }

    #[test]
    fn no_more_names_are_remembered_than_the_limit() {
        let mut limit_usage = LimitUsage::default();
        for n in 0..MAX_NAMES as u64 + 5 {
            limit_usage.hear(NodeId(1), told(0, &[(user(&n.to_string()), open(1, 0))]));
        }
        let known = &limit_usage.others[&(NodeId(1), 0)];
        assert_eq!(known.len(), MAX_NAMES);
        limit_usage.hear(NodeId(1), told(0, &[(user("0"), open(7, 0))]));
        assert_eq!(limit_usage.elsewhere(&user("0")), open(7, 0));
    }

    #[test]
    fn a_burst_is_told_together() {
        let mut limit_usage = LimitUsage::default();
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        limit_usage.changed.insert(user("u"));
        assert_eq!(limit_usage.wake_at(), Some(at(0)));
        assert_eq!(limit_usage.due(at(5)).len(), 1);
        assert_eq!(
            (limit_usage.wake_at(), limit_usage.due(at(100)).len()),
            (None, 0)
        );
        limit_usage.changed.insert(user("u"));
        assert_eq!(limit_usage.due(at(54)).len(), 0);
        limit_usage.changed.insert(user("v"));
        assert_eq!(limit_usage.wake_at(), Some(at(55)));
        assert_eq!(limit_usage.due(at(55)).len(), 2);
    }
}
