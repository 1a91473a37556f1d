//! The other hubs of the cluster, as one of them sees them.
//!
//! Each hub owns its routes: what it has subscribers for, by filter, not by subscriber ([`own_routes`]). It tells every other hub, and gets
//! from each one message at most of those that are for its subscribers ([`peer`]).

pub(crate) mod own_routes;
pub(crate) mod peer;
pub(crate) mod peer_message;

use crate::RouterAddress;
use env::{Incarnation, NodeId, Time};
use hashbrown::HashMap;
use own_routes::OwnRoutes;
use peer::{PeerEvent, PeerRouter, RouteAnnouncements, Waiter};
use peer_message::{ForwardedMessage, PeerMessage};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// A hub that this one knows of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RouterId(u32);

/// Bounds of what is kept for other hubs, and of waiting for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteExchangeLimits {
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

impl Default for RouteExchangeLimits {
    fn default() -> RouteExchangeLimits {
        RouteExchangeLimits {
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
pub(crate) enum SendOutcome {
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
struct PendingAnnouncement {
    version: u64,
    question: u64,
    until: Time,
    session: u64,
}

pub(crate) struct RouteExchange {
    limits: RouteExchangeLimits,
    now: Time,
    /// None until there is another hub.
    news: Option<RouteAnnouncements>,
    /// How much of the metadata log is applied here.
    applied: u64,
    peers: Slab<PeerRouter>,
    by_address: BTreeMap<RouterAddress, RouterId>,
    /// Those that may have to be told something.
    dirty: BTreeSet<RouterId>,
    /// Where the clients are whose sessions are in these queues, and who share subscriptions.
    pub seats: HashMap<u64, RouterId, foldhash::fast::FixedState>,
    announcing: VecDeque<PendingAnnouncement>,
    /// Sessions that were told to wait.
    behind: BTreeSet<u64>,
    /// Messages of QoS 0 that had no room or no link.
    pub dropped: u64,
    /// Messages of QoS 1 and 2 that were for hubs out of reach.
    pub lost: u64,
}

impl RouteExchange {
    pub fn new(limits: RouteExchangeLimits) -> RouteExchange {
        RouteExchange {
            limits,
            now: Time::ZERO,
            news: None,
            applied: 0,
            peers: Slab::new(),
            by_address: BTreeMap::new(),
            dirty: BTreeSet::new(),
            seats: HashMap::default(),
            announcing: VecDeque::new(),
            behind: BTreeSet::new(),
            dropped: 0,
            lost: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// True: it is the first one, so [`RouteExchange::own`] is still to be filled.
    pub fn meet(&mut self, address: RouterAddress) -> bool {
        let id = match self.by_address.get(&address) {
            Some(&id) => id,
            None => {
                // Fewer than 2^32 hubs fit in any cluster.
                let id = RouterId(self.peers.insert(PeerRouter::new(address)) as u32);
                self.by_address.insert(address, id);
                id
            }
        };
        let now = self.now;
        if let Some(router) = self.peers.get_mut(id.0 as usize) {
            router.greet(now);
        }
        self.dirty.insert(id);
        let first = self.news.is_none();
        if first {
            self.news = Some(RouteAnnouncements {
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
        for (id, router) in self.peers.iter_mut() {
            if router.applied_here(applied) {
                self.dirty.insert(RouterId(id as u32));
            }
        }
    }

    pub fn part(&mut self, node: NodeId) {
        let now = self.now;
        for (_, router) in self.peers.iter_mut() {
            if router.address.node == node {
                router.part(now);
            }
        }
    }

    pub fn is_up(&self, id: RouterId) -> bool {
        let router = self.peers.get(id.0 as usize);
        router.is_some_and(|router| router.up)
    }

    /// The routes of all hubs that can be reached are known, as they were when they were met.
    pub fn is_introduced(&self) -> bool {
        let mut all = self.peers.iter();
        all.all(|(_, router)| router.introduced || !router.up)
    }

    /// The hubs of a node that are not of this life of it.
    pub fn of_other_lives(&self, node: NodeId, life: Option<Incarnation>) -> Vec<RouterId> {
        let all = self.by_address.iter();
        all.filter(|(address, _)| address.node == node && Some(address.incarnation) != life)
            .map(|(_, id)| *id)
            .collect()
    }

    /// A hub is no more: who waited for it is answered; what it was there for is to be undone.
    pub fn remove(&mut self, id: RouterId, events: &mut Vec<PeerEvent>) {
        let Some(mut router) = self.peers.try_remove(id.0 as usize) else {
            return;
        };
        self.by_address.remove(&router.address);
        self.dirty.remove(&id);
        router.give_up(|waiter| events.push(PeerEvent::Answered(waiter)));
        events.extend(router.into_routes().map(|(key, was)| PeerEvent::Route {
            key,
            was,
            is: Default::default(),
        }));
    }

    pub fn hear(
        &mut self,
        from: RouterAddress,
        peer_message: PeerMessage,
        events: &mut Vec<PeerEvent>,
    ) -> Option<RouterId> {
        let id = *self.by_address.get(&from)?;
        let router = self.peers.get_mut(id.0 as usize)?;
        let news = self.news.as_ref()?;
        router.hear(peer_message, news, self.now, events);
        self.dirty.insert(id);
        Some(id)
    }

    /// The next word, and for whom. None: there is nothing to say.
    pub fn say(&mut self) -> Option<(RouterAddress, PeerMessage)> {
        let news = self.news.as_ref()?;
        while let Some(&id) = self.dirty.first() {
            let router = self.peers.get_mut(id.0 as usize);
            if let Some(router) = router
                && let Some(peer_message) = router.say(news, self.now)
            {
                return Some((router.address, peer_message));
            }
            self.dirty.remove(&id);
        }
        None
    }

    /// This hub's routes have changed.
    pub fn routes_changed(&mut self) {
        self.dirty.extend(self.by_address.values());
    }

    pub fn send(&mut self, id: RouterId, sent: ForwardedMessage, waiter: Waiter) -> SendOutcome {
        let Some(router) = self.peers.get_mut(id.0 as usize) else {
            return SendOutcome::Dropped;
        };
        if !sent.numbered {
            let flying = router.plain_flying();
            let room = flying == 0 || flying + sent.size() as u64 <= self.limits.plain_bytes;
            if !router.up || !room {
                self.dropped += 1;
                return SendOutcome::Dropped;
            }
            router.push_plain(sent);
            self.dirty.insert(id);
            return SendOutcome::Taken { behind: false };
        }
        if router.given_up {
            router.lose();
            self.lost += 1;
            return SendOutcome::GivenUp;
        }
        if router.bytes >= self.limits.hard_bytes {
            return SendOutcome::Refused;
        }
        router.push(sent, waiter);
        self.dirty.insert(id);
        let behind = router.bytes > self.limits.bytes;
        if behind && waiter.session != 0 {
            self.behind.insert(waiter.session);
        }
        SendOutcome::Taken { behind }
    }

    /// A session that may publish again.
    pub fn relieved(&mut self) -> Option<u64> {
        if self.behind.is_empty() {
            return None;
        }
        let low = self.limits.bytes / 2;
        let full = |(_, router): (usize, &PeerRouter)| router.bytes > low;
        match self.peers.iter().any(full) {
            true => None,
            false => self.behind.pop_first(),
        }
    }

    /// The hubs that subscribers wait for.
    fn waited_for(&self) -> impl Iterator<Item = &PeerRouter> {
        let all = self.peers.iter().map(|(_, router)| router);
        all.filter(|router| router.up && !router.slow)
    }

    /// Whether a session must wait until the others know what is known here now, and until what the others know is known
    /// here; [`RouteExchange::announced`] tells when.
    pub fn announce(&mut self, session: u64) -> bool {
        if self.waited_for().next().is_none() {
            return false;
        }
        let Some(news) = &mut self.news else {
            return false;
        };
        news.question += 1;
        news.until = news.applied;
        self.announcing.push_back(PendingAnnouncement {
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
        let PendingAnnouncement {
            version,
            question,
            until,
            ..
        } = *self.announcing.front()?;
        let late = until <= self.now;
        if late {
            for (_, router) in self.peers.iter_mut() {
                router.slow |= router.up && !router.knows(version, question);
            }
        }
        let all =
            |router: &PeerRouter| router.knows(version, question) && router.applied <= self.applied;
        let done = late || self.waited_for().all(all);
        let first = self.announcing.pop_front_if(|_| done);
        first.map(|first| first.session)
    }

    pub fn wake_at(&self) -> Option<Time> {
        let patience = self.limits.patience;
        let routers = self.peers.iter();
        let routers = routers
            .filter_map(|(_, router)| router.wake_at(patience))
            .min();
        let announcing = self.announcing.front().map(|first| first.until);
        [routers, announcing].into_iter().flatten().min()
    }

    pub fn tick(&mut self, now: Time, events: &mut Vec<PeerEvent>) {
        self.now = now;
        let patience = self.limits.patience;
        for (id, router) in self.peers.iter_mut() {
            if router.wake_at(patience).is_none_or(|at| at > now) {
                continue;
            }
            router.tick(now);
            self.dirty.insert(RouterId(id as u32));
            if router.give_up_at(patience).is_some_and(|at| at <= now) {
                let given_up = router.give_up(|waiter| events.push(PeerEvent::Answered(waiter)));
                self.lost += given_up as u64;
            }
        }
    }
}
