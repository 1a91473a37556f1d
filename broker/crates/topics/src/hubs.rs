//! The other hubs of the cluster, as one of them sees them.
//!
//! Each hub owns its routes: what it has subscribers for, by filter, not by subscriber ([`own`]). It tells every other hub, and gets
//! from each one message at most of those that are for its subscribers ([`neighbour`]).

pub(crate) mod neighbour;
pub(crate) mod own;
pub(crate) mod word;

use crate::Place;
use env::{Incarnation, NodeId, Time};
use hashbrown::HashMap;
use neighbour::{Event, Neighbour, News, Waiter};
use own::OwnRoutes;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use word::{Sent, Word};

/// A hub that this one knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HubId(u32);

/// Bounds of what is kept for other hubs, and of waiting for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubLimits {
    /// Bytes of messages of QoS 1 and 2 that one other hub has not acknowledged, above which publishers are not read.
    pub bytes: usize,
    /// The same, above which a message is refused.
    pub hard_bytes: usize,
    /// Bytes of messages of QoS 0 on their way to one other hub, above which they are dropped.
    pub plain_bytes: u64,
    /// How long a hub may be out of reach until nobody waits for it any more: messages for it are answered, and lost if
    /// it is still there.
    pub patience: Duration,
    /// How long a subscriber waits for other hubs to know at most.
    pub announce: Duration,
    /// Filters that nobody has any more and that are remembered, so that who missed it need not be told everything.
    pub gone: usize,
}

impl Default for HubLimits {
    fn default() -> HubLimits {
        HubLimits {
            bytes: 16 << 20,
            hard_bytes: 64 << 20,
            plain_bytes: 8 << 20,
            patience: Duration::from_secs(5),
            announce: Duration::from_secs(5),
            gone: 65_536,
        }
    }
}

/// What became of a message for another hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// It is on its way; `behind`: the publisher should wait before it sends more.
    Taken { behind: bool },
    /// Of QoS 0: there is no room, or no link.
    Dropped,
    /// There is nobody any more who waits for it, so nobody does for this.
    GivenUp,
    /// There is no room.
    Refused,
}

/// A subscriber whose answer waits until others know.
#[derive(Clone, Copy, Debug)]
struct Announcing {
    version: u64,
    question: u64,
    until: Time,
    session: u64,
}

pub(crate) struct Hubs {
    limits: HubLimits,
    now: Time,
    /// None until there is another hub.
    news: Option<News>,
    /// How much of the metadata log is applied here.
    applied: u64,
    neighbours: Slab<Neighbour>,
    by_place: BTreeMap<Place, HubId>,
    /// Those that may have to be told something.
    dirty: BTreeSet<HubId>,
    /// Where the clients are whose sessions are in these queues, and who share subscriptions.
    pub seats: HashMap<u64, HubId, foldhash::fast::FixedState>,
    announcing: VecDeque<Announcing>,
    /// Sessions that were told to wait.
    behind: BTreeSet<u64>,
    /// Messages of QoS 0 that had no room or no link.
    pub dropped: u64,
    /// Messages of QoS 1 and 2 that were for hubs out of reach.
    pub lost: u64,
}

impl Hubs {
    pub fn new(limits: HubLimits) -> Hubs {
        Hubs {
            limits,
            now: Time::ZERO,
            news: None,
            applied: 0,
            neighbours: Slab::new(),
            by_place: BTreeMap::new(),
            dirty: BTreeSet::new(),
            seats: HashMap::default(),
            announcing: VecDeque::new(),
            behind: BTreeSet::new(),
            dropped: 0,
            lost: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.neighbours.len()
    }

    /// True: it is the first one, so [`Hubs::own`] is still to be filled.
    pub fn meet(&mut self, place: Place) -> bool {
        let id = match self.by_place.get(&place) {
            Some(&id) => id,
            None => {
                // Fewer than 2^32 hubs fit in any cluster.
                let id = HubId(self.neighbours.insert(Neighbour::new(place)) as u32);
                self.by_place.insert(place, id);
                id
            }
        };
        let now = self.now;
        if let Some(hub) = self.neighbours.get_mut(id.0 as usize) {
            hub.greet(now);
        }
        self.dirty.insert(id);
        let first = self.news.is_none();
        if first {
            self.news = Some(News {
                routes: OwnRoutes::new(self.limits.gone),
                applied: self.applied,
                question: 0,
                until: 0,
            });
        }
        first
    }

    /// What the others are told of this one. None: there are none.
    pub fn own(&mut self) -> Option<&mut OwnRoutes> {
        self.news.as_mut().map(|news| &mut news.routes)
    }

    /// This much of the metadata log is applied here.
    pub fn set_applied(&mut self, applied: u64) {
        self.applied = applied;
        let Some(news) = &mut self.news else {
            return;
        };
        news.applied = applied;
        for (id, hub) in self.neighbours.iter_mut() {
            if hub.applied_here(applied) {
                self.dirty.insert(HubId(id as u32));
            }
        }
    }

    pub fn part(&mut self, node: NodeId) {
        let now = self.now;
        for (_, hub) in self.neighbours.iter_mut() {
            if hub.place.node == node {
                hub.part(now);
            }
        }
    }

    pub fn is_up(&self, id: HubId) -> bool {
        let hub = self.neighbours.get(id.0 as usize);
        hub.is_some_and(|hub| hub.up)
    }

    /// The routes of all hubs that can be reached are known, as they were when they were met.
    pub fn is_introduced(&self) -> bool {
        let mut all = self.neighbours.iter();
        all.all(|(_, hub)| hub.introduced || !hub.up)
    }

    /// The hubs of a node that are not of this life of it.
    pub fn of_other_lives(&self, node: NodeId, life: Option<Incarnation>) -> Vec<HubId> {
        let all = self.by_place.iter();
        all.filter(|(place, _)| place.node == node && Some(place.incarnation) != life)
            .map(|(_, id)| *id)
            .collect()
    }

    /// A hub is no more: who waited for it is answered; what it was there for is to be undone.
    pub fn remove(&mut self, id: HubId, events: &mut Vec<Event>) {
        let Some(mut hub) = self.neighbours.try_remove(id.0 as usize) else {
            return;
        };
        self.by_place.remove(&hub.place);
        self.dirty.remove(&id);
        hub.give_up(|waiter| events.push(Event::Answered(waiter)));
        events.extend(hub.into_routes().map(|(key, was)| Event::Route {
            key,
            was,
            is: Default::default(),
        }));
    }

    pub fn hear(&mut self, from: Place, word: Word, events: &mut Vec<Event>) -> Option<HubId> {
        let id = *self.by_place.get(&from)?;
        let hub = self.neighbours.get_mut(id.0 as usize)?;
        let news = self.news.as_ref()?;
        hub.hear(word, news, self.now, events);
        self.dirty.insert(id);
        Some(id)
    }

    /// The next word, and for whom. None: there is nothing to say.
    pub fn say(&mut self) -> Option<(Place, Word)> {
        let news = self.news.as_ref()?;
        while let Some(&id) = self.dirty.first() {
            let hub = self.neighbours.get_mut(id.0 as usize);
            if let Some(hub) = hub
                && let Some(word) = hub.say(news, self.now)
            {
                return Some((hub.place, word));
            }
            self.dirty.remove(&id);
        }
        None
    }

    /// This hub's routes have changed.
    pub fn routes_changed(&mut self) {
        self.dirty.extend(self.by_place.values());
    }

    pub fn send(&mut self, id: HubId, sent: Sent, waiter: Waiter) -> Sending {
        let Some(hub) = self.neighbours.get_mut(id.0 as usize) else {
            return Sending::Dropped;
        };
        if !sent.numbered {
            let flying = hub.plain_flying();
            let room = flying == 0 || flying + sent.size() as u64 <= self.limits.plain_bytes;
            if !hub.up || !room {
                self.dropped += 1;
                return Sending::Dropped;
            }
            hub.push_plain(sent);
            self.dirty.insert(id);
            return Sending::Taken { behind: false };
        }
        if hub.given_up {
            hub.lose();
            self.lost += 1;
            return Sending::GivenUp;
        }
        if hub.bytes >= self.limits.hard_bytes {
            return Sending::Refused;
        }
        hub.push(sent, waiter);
        self.dirty.insert(id);
        let behind = hub.bytes > self.limits.bytes;
        if behind && waiter.session != 0 {
            self.behind.insert(waiter.session);
        }
        Sending::Taken { behind }
    }

    /// A session that may publish again.
    pub fn relieved(&mut self) -> Option<u64> {
        if self.behind.is_empty() {
            return None;
        }
        let low = self.limits.bytes / 2;
        let full = |(_, hub): (usize, &Neighbour)| hub.bytes > low;
        match self.neighbours.iter().any(full) {
            true => None,
            false => self.behind.pop_first(),
        }
    }

    /// The hubs that subscribers wait for.
    fn waited_for(&self) -> impl Iterator<Item = &Neighbour> {
        let all = self.neighbours.iter().map(|(_, hub)| hub);
        all.filter(|hub| hub.up && !hub.slow)
    }

    /// Whether a session must wait until the others know what is known here now, and until what the others know is known
    /// here; [`Hubs::announced`] tells when.
    pub fn announce(&mut self, session: u64) -> bool {
        if self.waited_for().next().is_none() {
            return false;
        }
        let Some(news) = &mut self.news else {
            return false;
        };
        news.question += 1;
        news.until = news.applied;
        self.announcing.push_back(Announcing {
            version: news.routes.version(),
            question: news.question,
            until: self.now + self.limits.announce,
            session,
        });
        self.routes_changed();
        true
    }

    /// A session that need not wait any more.
    pub fn announced(&mut self) -> Option<u64> {
        let Announcing {
            version,
            question,
            until,
            ..
        } = *self.announcing.front()?;
        let late = until <= self.now;
        if late {
            for (_, hub) in self.neighbours.iter_mut() {
                hub.slow |= hub.up && !hub.knows(version, question);
            }
        }
        let all = |hub: &Neighbour| hub.knows(version, question) && hub.applied <= self.applied;
        let done = late || self.waited_for().all(all);
        let first = self.announcing.pop_front_if(|_| done);
        first.map(|first| first.session)
    }

    pub fn wake_at(&self) -> Option<Time> {
        let patience = self.limits.patience;
        let hubs = self.neighbours.iter();
        let hubs = hubs.filter_map(|(_, hub)| hub.wake_at(patience)).min();
        let announcing = self.announcing.front().map(|first| first.until);
        [hubs, announcing].into_iter().flatten().min()
    }

    pub fn tick(&mut self, now: Time, events: &mut Vec<Event>) {
        self.now = now;
        let patience = self.limits.patience;
        for (id, hub) in self.neighbours.iter_mut() {
            if hub.wake_at(patience).is_none_or(|at| at > now) {
                continue;
            }
            hub.tick(now);
            self.dirty.insert(HubId(id as u32));
            if hub.give_up_at(patience).is_some_and(|at| at <= now) {
                let given_up = hub.give_up(|waiter| events.push(Event::Answered(waiter)));
                self.lost += given_up as u64;
            }
        }
    }
}
