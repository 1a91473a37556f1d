//! Connections and channels of limited users and virtual hosts on other shards and nodes. Shards announce their own numbers as these
//! change, and each decides by the numbers it knows: see `docs/decisions/0013-limits.md`. Unlimited ones are not announced.

pub(crate) mod frame;

use crate::context::Context;
use crate::frame::Frame;
use crate::logged_in::LoggedInSessions;
use crate::peers::Peers;
use env::{NodeId, Time};
use frame::{LimitUsageFrame, MAX_USES};
use metadata::{Name, Tree};
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
pub(crate) struct LimitUsage {
    /// By shard, of those that have anything open.
    others: BTreeMap<(NodeId, u16), BTreeMap<LimitSubject, OpenCounts>>,
    /// What others are to be told of.
    changed: BTreeSet<LimitSubject>,
    /// Not before.
    tell_at: Time,
}

impl LimitUsage {
    /// What all other shards have open.
    pub(crate) fn elsewhere(&self, holder: &LimitSubject) -> OpenCounts {
        let all = self.others.values().filter_map(|told| told.get(holder));
        all.fold(OpenCounts::default(), |sum, open| sum + *open)
    }

    /// Another shard tells what it has open now.
    pub(crate) fn hear(&mut self, from: NodeId, told: LimitUsageFrame) {
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
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.others.retain(|(known, _), _| *known != node);
    }

    /// It is gone from the tree.
    pub(crate) fn forget(&mut self, holder: &LimitSubject) {
        for told in self.others.values_mut() {
            told.remove(holder);
        }
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
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

    /// The usage of a user or a virtual host on this shard has changed, or its limits have. After a new limit other shards know
    /// nothing or have old numbers, so every shard announces its usage, also if nothing is open.
    pub(crate) fn note(&mut self, tree: &Tree, subject: LimitSubject) {
        if is_limited(tree, &subject) {
            self.changed.insert(subject);
        }
    }

    /// As [`LimitUsage::note`] for everything that is open on this shard.
    pub(crate) fn note_all(&mut self, tree: &Tree, sessions: &LoggedInSessions) {
        self.changed.extend(limited_here(tree, sessions));
    }

    /// Sends all usage of this shard to the shards of a node that knows nothing of it, or has forgotten it.
    pub(crate) fn send_to(
        &self,
        ctx: &mut Context,
        tree: &Tree,
        sessions: &LoggedInSessions,
        (node, shards): (NodeId, u16),
    ) {
        if node != ctx.node() {
            let subjects = limited_here(tree, sessions);
            for frame in usage_frames(ctx.shard(), tree, sessions, &subjects) {
                ctx.send_to_shards_of_peer(node, shards, &frame);
            }
        }
    }

    /// Announces the changed usage to all other shards, at most once per [`EVERY`].
    pub(crate) fn flush(
        &mut self,
        ctx: &mut Context,
        tree: &Tree,
        sessions: &LoggedInSessions,
        peers: &Peers,
    ) {
        if self.changed.is_empty() {
            return;
        }
        let subjects = self.due(ctx.now());
        if subjects.is_empty() {
            return;
        }
        let me = ctx.node();
        for frame in usage_frames(ctx.shard(), tree, sessions, &subjects) {
            ctx.send_to_other_shards(&frame);
            for (peer, shards) in peers.shards_up(me) {
                ctx.send_to_shards_of_peer(peer, shards, &frame);
            }
        }
    }
}

fn is_limited(tree: &Tree, subject: &LimitSubject) -> bool {
    match subject {
        LimitSubject::User(name) => tree.user(name).is_some_and(|u| !u.limits.is_empty()),
        LimitSubject::Vhost(name) => {
            let vhost = tree.vhost(name);
            vhost.is_some_and(|v| v.limit("max-connections").is_some())
        }
    }
}

/// Everything under limits that is open on this shard.
fn limited_here(tree: &Tree, sessions: &LoggedInSessions) -> BTreeSet<LimitSubject> {
    let (users, vhosts) = sessions.names();
    let users = users.cloned().map(LimitSubject::User);
    let all = users.chain(vhosts.cloned().map(LimitSubject::Vhost));
    all.filter(|subject| is_limited(tree, subject)).collect()
}

fn usage_frames(
    shard: u16,
    tree: &Tree,
    sessions: &LoggedInSessions,
    subjects: &BTreeSet<LimitSubject>,
) -> Vec<Frame> {
    let limited = subjects.iter().filter(|subject| is_limited(tree, subject));
    let limit_usage: Vec<(LimitSubject, OpenCounts)> = limited
        .map(|subject| match subject {
            LimitSubject::User(name) => (subject.clone(), sessions.of_user(name)),
            LimitSubject::Vhost(name) => (subject.clone(), sessions.of_vhost(name)),
        })
        .collect();
    let frame = |part: &[(LimitSubject, OpenCounts)]| {
        Frame::LimitUsage(LimitUsageFrame {
            shard,
            limit_usage: part.to_vec(),
        })
    };
    limit_usage.chunks(MAX_USES).map(frame).collect()
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
