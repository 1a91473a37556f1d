//! Connections and channels of limited users and virtual hosts on other shards and nodes, and publishers of those with rate limits.
//! Shards announce their own numbers as these change, and each decides by the numbers it knows: see
//! `docs/decisions/0013-limits.md` and `docs/decisions/0027-quotas.md`. Unlimited ones are not announced.

pub(crate) mod frame;

use crate::context::Context;
use crate::frame::Frame;
use crate::logged_in::LoggedInSessions;
use crate::peers::Peers;
use crate::quotas::{Quotas, has_rates};
use env::{NodeId, Time};
use frame::{LimitUsageFrame, MAX_USES, PublisherActivityFrame};
use metadata::{MAX_CHANNELS, MAX_CONNECTIONS, Name, Tree};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Add;
use std::time::Duration;

/// A shard tells at most so often.
const EVERY: Duration = Duration::from_millis(50);
/// Names remembered of one other shard; what it tells of more is not counted.
const MAX_NAMES: usize = 100_000;

/// Who has limits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitSubject {
    User(Name),
    Vhost(Name),
}

/// Open connections and channels.
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
    /// Subjects with rate limits that have active publishers, by shard.
    publishing: BTreeMap<(NodeId, u16), BTreeSet<LimitSubject>>,
    /// Subjects whose publishers on this shard must be announced: they are active, or they are not any more.
    changed_publishing: BTreeSet<LimitSubject>,
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

    /// The number of other shards that have active publishers of a subject.
    pub(crate) fn publishing_elsewhere(&self, subject: &LimitSubject) -> u32 {
        let all = self.publishing.values();
        let count = all.filter(|subjects| subjects.contains(subject)).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    /// Another shard announces publishers.
    pub(crate) fn hear_publishing(&mut self, from: NodeId, frame: PublisherActivityFrame) {
        let known = self.publishing.entry((from, frame.shard)).or_default();
        for (subject, is_active) in frame.subjects {
            if !is_active {
                known.remove(&subject);
            } else if known.len() < MAX_NAMES {
                known.insert(subject);
            }
        }
    }

    /// The subject has no rate limits any more.
    pub(crate) fn forget_publishing(&mut self, subject: &LimitSubject) {
        for subjects in self.publishing.values_mut() {
            subjects.remove(subject);
        }
    }

    /// Its clients are gone, or out of reach; or it is back, and tells anew.
    pub(crate) fn forget_node(&mut self, node: NodeId) {
        self.others.retain(|(known, _), _| *known != node);
        self.publishing.retain(|(known, _), _| *known != node);
    }

    /// It is gone from the tree.
    pub(crate) fn forget(&mut self, holder: &LimitSubject) {
        for told in self.others.values_mut() {
            told.remove(holder);
        }
        self.forget_publishing(holder);
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.has_changes().then_some(self.tell_at)
    }

    fn has_changes(&self) -> bool {
        !self.changed.is_empty() || !self.changed_publishing.is_empty()
    }

    /// The subjects whose usage, and those whose publishers, must be announced now.
    fn due(&mut self, now: Time) -> (BTreeSet<LimitSubject>, BTreeSet<LimitSubject>) {
        if now < self.tell_at || !self.has_changes() {
            return Default::default();
        }
        self.tell_at = now + EVERY;
        let changed = std::mem::take(&mut self.changed);
        (changed, std::mem::take(&mut self.changed_publishing))
    }

    /// The subject has active publishers on this shard or has none any more, or it has new rate limits. After a new limit other
    /// shards may remember an old state, so every shard announces its publishers.
    pub(crate) fn note_publishing(&mut self, subject: LimitSubject) {
        self.changed_publishing.insert(subject);
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
        (sessions, quotas): (&LoggedInSessions, &Quotas),
        (node, shards): (NodeId, u16),
    ) {
        if node != ctx.node() {
            let subjects = limited_here(tree, sessions);
            let mut frames = usage_frames(ctx.shard(), tree, sessions, &subjects);
            let subjects = quotas.subjects().into_iter();
            let publishing = subjects.filter(|subject| quotas.is_active(subject));
            frames.extend(activity_frames(ctx.shard(), quotas, publishing));
            for frame in frames {
                ctx.send_to_shards_of_peer(node, shards, &frame);
            }
        }
    }

    /// Announces the changed usage to all other shards, at most once per [`EVERY`].
    pub(crate) fn flush(
        &mut self,
        ctx: &mut Context,
        tree: &Tree,
        (sessions, quotas): (&LoggedInSessions, &Quotas),
        peers: &Peers,
    ) {
        if !self.has_changes() {
            return;
        }
        let (subjects, publishing) = self.due(ctx.now());
        let mut frames = usage_frames(ctx.shard(), tree, sessions, &subjects);
        let publishing = publishing
            .into_iter()
            .filter(|subject| has_rates(tree, subject));
        frames.extend(activity_frames(ctx.shard(), quotas, publishing));
        let me = ctx.node();
        for frame in frames {
            ctx.send_to_other_shards(&frame);
            for (peer, shards) in peers.shards_up(me) {
                ctx.send_to_shards_of_peer(peer, shards, &frame);
            }
        }
    }
}

fn is_limited(tree: &Tree, subject: &LimitSubject) -> bool {
    match subject {
        LimitSubject::User(name) => tree.user(name).is_some_and(|user| {
            let mut limits = user.limits.iter().map(|(limit, _)| &**limit);
            limits.any(|limit| limit == MAX_CONNECTIONS || limit == MAX_CHANNELS)
        }),
        LimitSubject::Vhost(name) => tree.vhost(name).is_some_and(|vhost| {
            vhost.limit(MAX_CONNECTIONS).is_some() || vhost.limit(MAX_CHANNELS).is_some()
        }),
    }
}

/// Frames that announce the publishers of these subjects on this shard.
fn activity_frames(
    shard: u16,
    quotas: &Quotas,
    subjects: impl Iterator<Item = LimitSubject>,
) -> Vec<Frame> {
    let subjects: Vec<(LimitSubject, bool)> = subjects
        .map(|subject| {
            let is_active = quotas.is_active(&subject);
            (subject, is_active)
        })
        .collect();
    let frame = |part: &[(LimitSubject, bool)]| {
        Frame::PublisherActivity(PublisherActivityFrame {
            shard,
            subjects: part.to_vec(),
        })
    };
    subjects.chunks(MAX_USES).map(frame).collect()
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
        let due = |usage: &mut LimitUsage, ms| {
            let (changed, publishing) = usage.due(at(ms));
            (changed.len(), publishing.len())
        };
        assert_eq!(due(&mut limit_usage, 5), (1, 0));
        assert_eq!(
            (limit_usage.wake_at(), due(&mut limit_usage, 100)),
            (None, (0, 0))
        );
        limit_usage.changed.insert(user("u"));
        assert_eq!(due(&mut limit_usage, 54), (0, 0));
        limit_usage.changed.insert(user("v"));
        limit_usage.note_publishing(user("w"));
        assert_eq!(limit_usage.wake_at(), Some(at(55)));
        assert_eq!(due(&mut limit_usage, 55), (2, 1));
    }

    #[test]
    fn shards_with_active_publishers_are_counted_until_they_stop_or_are_gone() {
        let mut usage = LimitUsage::default();
        let told = |shard, name: &str, is_active| PublisherActivityFrame {
            shard,
            subjects: vec![(user(name), is_active)],
        };
        usage.hear_publishing(NodeId(1), told(0, "u", true));
        usage.hear_publishing(NodeId(1), told(1, "u", true));
        usage.hear_publishing(NodeId(1), told(1, "u", true));
        usage.hear_publishing(NodeId(2), told(0, "u", true));
        assert_eq!(usage.publishing_elsewhere(&user("u")), 3);
        assert_eq!(usage.publishing_elsewhere(&user("v")), 0);
        usage.hear_publishing(NodeId(1), told(1, "u", false));
        assert_eq!(usage.publishing_elsewhere(&user("u")), 2);
        usage.forget_node(NodeId(2));
        assert_eq!(usage.publishing_elsewhere(&user("u")), 1);
        usage.forget(&user("u"));
        assert_eq!(usage.publishing_elsewhere(&user("u")), 0);
    }
}
