//! The matches of recently published topics, so that a topic that is published again need not be looked up in the trie.

use super::Route;
use std::hash::BuildHasher;

/// Topics that are kept, at most.
const SLOTS: usize = 1024;
/// Longer topics are not kept, in bytes.
const MAX_TOPIC_LEN: usize = 256;
/// Topics that match more are not kept. With the longest topics, a full cache takes below 1 MiB.
const MAX_ROUTES: usize = 16;

/// The state of one [`Routes`](super::Routes) between two changes. No two have the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Version(u64);

/// A table of topics of all vhosts. Each topic has one slot that it may be in, which it shares with others.
#[derive(Debug)]
pub(crate) struct RouteCache {
    /// Empty until a topic is looked up. The length is a power of two.
    slots: Vec<Slot>,
    size: usize,
    /// The newest one.
    version: Version,
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// The version of the routes when they were stored; the default in an empty slot.
    version: Version,
    topic: Box<str>,
    routes: Box<[Route]>,
    /// Hash of the topic that was looked up last and not found. A topic is stored when it is not found twice in
    /// succession, so that topics that are published once do not replace others.
    missed: u64,
}

/// The place of a topic.
pub(super) enum Entry<'a> {
    /// The matches of the topic.
    Occupied(&'a [Route]),
    Vacant(VacantEntry<'a>),
}

pub(super) struct VacantEntry<'a> {
    slot: &'a mut Slot,
    version: Version,
    /// True if the same topic was not found here before.
    is_repeated: bool,
}

impl Default for RouteCache {
    fn default() -> RouteCache {
        RouteCache::with_slots(SLOTS)
    }
}

impl RouteCache {
    pub(super) fn with_slots(size: usize) -> RouteCache {
        assert!(size.is_power_of_two(), "{size} slots");
        RouteCache {
            slots: Vec::new(),
            size,
            version: Version::default(),
        }
    }

    pub(super) fn next_version(&mut self) -> Version {
        self.version.0 += 1;
        self.version
    }

    pub(super) fn entry(&mut self, topic: &str, version: Version) -> Entry<'_> {
        debug_assert!(version != Version::default(), "routes without a version");
        if self.slots.is_empty() {
            self.slots.resize(self.size, Slot::default());
        }
        let hash = foldhash::fast::FixedState::default().hash_one(topic.as_bytes());
        let place = hash as usize & (self.slots.len() - 1);
        let slot = &mut self.slots[place];
        if slot.version == version && *slot.topic == *topic {
            return Entry::Occupied(&slot.routes);
        }
        let is_repeated = slot.missed == hash;
        slot.missed = hash;
        Entry::Vacant(VacantEntry {
            slot,
            version,
            is_repeated,
        })
    }
}

impl VacantEntry<'_> {
    /// Stores the matches of the topic, if it is worth it.
    pub(super) fn store(self, topic: &str, routes: &[Route]) {
        if !self.is_repeated || topic.len() > MAX_TOPIC_LEN || routes.len() > MAX_ROUTES {
            return;
        }
        self.slot.version = self.version;
        self.slot.topic = topic.into();
        self.slot.routes = routes.into();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SubscriberId;
    use crate::routes::{Routes, Subscription};
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Subscribe(usize, &'static str, u32),
        Unsubscribe(usize, &'static str, u32),
        Publish(usize, &'static str),
    }

    const FILTERS: [&str; 7] = ["a/b", "a/+", "#", "+/b", "$SYS/a", "$share/g/a/#", "a.b/*"];
    const TOPICS: [&str; 6] = ["a/b", "a/c", "b", "$SYS/a", "a.b/*", "c/b"];

    fn step() -> impl Strategy<Value = Step> {
        let filter = || proptest::sample::select(&FILTERS[..]);
        let publish = (0..2usize, proptest::sample::select(&TOPICS[..]));
        prop_oneof![
            (0..2usize, filter(), 0..3u32).prop_map(|(v, f, s)| Step::Subscribe(v, f, s)),
            (0..2usize, filter(), 0..3u32).prop_map(|(v, f, s)| Step::Unsubscribe(v, f, s)),
            publish.clone().prop_map(|(v, t)| Step::Publish(v, t)),
            publish.prop_map(|(v, t)| Step::Publish(v, t)),
        ]
    }

    fn found(routes: &mut Routes, topic: &str, cache: &mut RouteCache) -> Vec<Route> {
        routes.look_up(topic, cache);
        let mut found = routes.scratch.clone();
        found.sort_unstable();
        found
    }

    /// Number of slots that have a topic.
    fn stored(cache: &RouteCache) -> usize {
        let none = Version::default();
        cache.slots.iter().filter(|s| s.version != none).count()
    }

    proptest! {
        #[test]
        fn a_cached_topic_matches_what_the_trie_has(
            steps in proptest::collection::vec(step(), 1..80), size in 0..4u32,
        ) {
            let mut cache = RouteCache::with_slots(1 << size);
            let mut vhosts = [Routes::default(), Routes::default()];
            for step in steps {
                match step {
                    Step::Subscribe(vhost, filter, subscriber) => {
                        vhosts[vhost].add(filter, SubscriberId(subscriber), Subscription::default());
                    }
                    Step::Unsubscribe(vhost, filter, subscriber) => {
                        vhosts[vhost].remove(filter, SubscriberId(subscriber), Subscription::default());
                    }
                    Step::Publish(vhost, topic) => {
                        let routes = &mut vhosts[vhost];
                        let cached = found(routes, topic, &mut cache);
                        routes.scratch.clear();
                        routes.search(topic);
                        let mut expected = routes.scratch.clone();
                        expected.sort_unstable();
                        prop_assert_eq!(cached, expected, "{} in {}", topic, vhost);
                    }
                }
            }
        }
    }

    #[test]
    fn a_topic_that_is_published_twice_is_stored() {
        let (mut routes, mut cache) = (Routes::default(), RouteCache::with_slots(1));
        routes.add("a/+", SubscriberId(1), Subscription::default());
        for (published, expected) in [(1, 0), (2, 1), (3, 1)] {
            assert_eq!(found(&mut routes, "a/b", &mut cache).len(), 1);
            assert_eq!(stored(&cache), expected, "after {published}");
        }
        // Others that are published once do not replace it.
        for topic in ["a/c", "a/d", "a/e"] {
            assert_eq!(found(&mut routes, topic, &mut cache).len(), 1);
            assert_eq!(&*cache.slots[0].topic, "a/b");
        }
    }

    #[test]
    fn neither_long_topics_nor_long_lists_are_stored() {
        let (mut routes, mut cache) = (Routes::default(), RouteCache::default());
        let long = "a".repeat(MAX_TOPIC_LEN + 1);
        for n in 0..=MAX_ROUTES as u32 {
            routes.add("many", SubscriberId(n), Subscription::default());
        }
        routes.add("+", SubscriberId(1), Subscription::default());
        for _ in 0..3 {
            assert_eq!(found(&mut routes, &long, &mut cache).len(), 1);
            assert_eq!(found(&mut routes, "many", &mut cache).len(), MAX_ROUTES + 2);
        }
        assert_eq!(stored(&cache), 0);
        let full = size_of::<Slot>() + MAX_TOPIC_LEN + MAX_ROUTES * size_of::<Route>();
        assert!(full * SLOTS < 1 << 20, "{} bytes", full * SLOTS);
    }
}
