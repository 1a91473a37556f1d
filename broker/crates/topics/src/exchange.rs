//! State that a router keeps about the other routers of the cluster.
//!
//! Each router announces its routes to all others: the filters for which it has subscribers,
//! without the subscribers themselves ([`own_routes`]). The others forward each matching message to
//! it at most once ([`peer`]).

pub(crate) mod own_routes;
pub(crate) mod peer;
pub(crate) mod peer_message;

use crate::RouterAddress;
use env::{Incarnation, NodeId, Time};
use hashbrown::HashMap;
use own_routes::OwnRoutes;
use peer::{ConfirmWaiter, PeerEvent, PeerRouter, RouteAnnouncements};
use peer_message::{ForwardedMessage, PeerMessage};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// The local number of another router.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RouterId(u32);

/// Limits on the state kept for other routers and on waiting for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteExchangeLimits {
    /// Unacknowledged bytes of QoS 1 and 2 messages per peer above which publishers are blocked.
    pub bytes: usize,
    /// Unacknowledged bytes of QoS 1 and 2 messages per peer from which on messages are refused.
    pub hard_bytes: usize,
    /// Bytes of QoS 0 messages in transit per peer above which such messages are dropped.
    pub plain_bytes: u64,
    /// How long a peer may be unreachable until it is given up. Its unacknowledged messages are
    /// then confirmed to their publishers, and lost if the peer is still alive.
    pub patience: Duration,
    /// Maximum time that a SUBACK waits until the other routers know the subscription.
    pub announce: Duration,
    /// Number of removed filters that are remembered, so that a peer that missed a removal does not
    /// need the full list.
    pub removed_routes: usize,
}

impl Default for RouteExchangeLimits {
    fn default() -> RouteExchangeLimits {
        RouteExchangeLimits {
            bytes: 16 << 20,
            hard_bytes: 64 << 20,
            plain_bytes: 8 << 20,
            patience: Duration::from_secs(5),
            announce: Duration::from_secs(5),
            removed_routes: 65_536,
        }
    }
}

/// The result of sending a message to another router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendOutcome {
    /// The message is queued. `behind`: the publisher should wait before it sends more.
    Taken { behind: bool },
    /// A QoS 0 message was dropped: the limit is reached or the link is down.
    Dropped,
    /// The peer was given up, so nobody waits for its acknowledgement.
    GivenUp,
    /// The hard limit is reached.
    Refused,
}

/// A session that waits until its subscriptions are known to the other routers.
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
    /// `None` until there is another router.
    announcements: Option<RouteAnnouncements>,
    /// The index up to which the metadata log is applied here.
    applied: u64,
    peers: Slab<PeerRouter>,
    by_address: BTreeMap<RouterAddress, RouterId>,
    /// Routers for which a message may be pending.
    dirty: BTreeSet<RouterId>,
    /// The router where the client with this queue is connected, for clients with shared
    /// subscriptions.
    pub client_routers: HashMap<u64, RouterId, foldhash::fast::FixedState>,
    pending_announcements: VecDeque<PendingAnnouncement>,
    /// Sessions that were told to stop publishing.
    blocked: BTreeSet<u64>,
    /// QoS 0 messages that exceeded the limit or had no link.
    pub dropped: u64,
    /// QoS 1 and 2 messages for unreachable routers that were given up.
    pub lost: u64,
}

impl RouteExchange {
    pub(crate) fn new(limits: RouteExchangeLimits) -> RouteExchange {
        RouteExchange {
            limits,
            now: Time::ZERO,
            announcements: None,
            applied: 0,
            peers: Slab::new(),
            by_address: BTreeMap::new(),
            dirty: BTreeSet::new(),
            client_routers: HashMap::default(),
            pending_announcements: VecDeque::new(),
            blocked: BTreeSet::new(),
            dropped: 0,
            lost: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.peers.len()
    }

    /// A link to this router is up. Returns true for the first router ever: [`RouteExchange::own_routes_mut`]
    /// must then be filled.
    pub(crate) fn link_up(&mut self, address: RouterAddress) -> bool {
        let id = match self.by_address.get(&address) {
            Some(&id) => id,
            None => {
                // Fewer than 2^32 routers fit in any cluster.
                let id = RouterId(self.peers.insert(PeerRouter::new(address)) as u32);
                self.by_address.insert(address, id);
                id
            }
        };
        let now = self.now;
        if let Some(router) = self.peers.get_mut(id.0 as usize) {
            router.link_up(now);
        }
        self.dirty.insert(id);
        let first = self.announcements.is_none();
        if first {
            self.announcements = Some(RouteAnnouncements {
                routes: OwnRoutes::new(self.limits.removed_routes),
                applied: self.applied,
                question: 0,
                until: 0,
            });
        }
        first
    }

    /// The routes announced to other routers; `None` if there are no others.
    pub(crate) fn own_routes_mut(&mut self) -> Option<&mut OwnRoutes> {
        self.announcements
            .as_mut()
            .map(|announcements| &mut announcements.routes)
    }

    /// The metadata log is applied up to this index.
    pub(crate) fn set_applied(&mut self, applied: u64) {
        self.applied = applied;
        let Some(announcements) = &mut self.announcements else {
            return;
        };
        announcements.applied = applied;
        for (id, router) in self.peers.iter_mut() {
            if router.set_applied(applied) {
                self.dirty.insert(RouterId(id as u32));
            }
        }
    }

    pub(crate) fn link_down(&mut self, node: NodeId) {
        let now = self.now;
        for (_, router) in self.peers.iter_mut() {
            if router.address.node == node {
                router.link_down(now);
            }
        }
    }

    pub(crate) fn is_up(&self, id: RouterId) -> bool {
        let router = self.peers.get(id.0 as usize);
        router.is_some_and(|router| router.is_up)
    }

    /// Returns true if the routes of all reachable routers, as of when their links came up, are
    /// known.
    pub(crate) fn has_peer_routes(&self) -> bool {
        let mut all = self.peers.iter();
        all.all(|(_, router)| router.has_initial_routes || !router.is_up)
    }

    /// Returns the routers of a node that belong to other incarnations than this one.
    pub(crate) fn other_incarnations(
        &self,
        node: NodeId,
        incarnation: Option<Incarnation>,
    ) -> Vec<RouterId> {
        let all = self.by_address.iter();
        all.filter(|(address, _)| address.node == node && Some(address.incarnation) != incarnation)
            .map(|(_, id)| *id)
            .collect()
    }

    /// Removes a router that is gone for good. Confirms its unacknowledged messages and withdraws
    /// its routes.
    pub(crate) fn remove(&mut self, id: RouterId, events: &mut Vec<PeerEvent>) {
        let Some(mut router) = self.peers.try_remove(id.0 as usize) else {
            return;
        };
        self.by_address.remove(&router.address);
        self.dirty.remove(&id);
        router.give_up(|waiter| events.push(PeerEvent::Answered(waiter)));
        events.extend(
            router
                .into_routes()
                .map(|(key, previous)| PeerEvent::Route {
                    key,
                    previous,
                    current: Default::default(),
                }),
        );
    }

    pub(crate) fn handle(
        &mut self,
        from: RouterAddress,
        peer_message: PeerMessage,
        events: &mut Vec<PeerEvent>,
    ) -> Option<RouterId> {
        let id = *self.by_address.get(&from)?;
        let router = self.peers.get_mut(id.0 as usize)?;
        let announcements = self.announcements.as_ref()?;
        router.handle(peer_message, announcements, self.now, events);
        self.dirty.insert(id);
        Some(id)
    }

    /// Returns true if [`RouteExchange::next_message`] can return a message.
    pub(crate) fn has_messages(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Returns the next message and its receiver; `None` if nothing is pending.
    pub(crate) fn next_message(&mut self) -> Option<(RouterAddress, PeerMessage)> {
        let announcements = self.announcements.as_ref()?;
        while let Some(&id) = self.dirty.first() {
            let router = self.peers.get_mut(id.0 as usize);
            if let Some(router) = router
                && let Some(peer_message) = router.next_message(announcements, self.now)
            {
                return Some((router.address, peer_message));
            }
            self.dirty.remove(&id);
        }
        None
    }

    /// The routes of this router have changed.
    pub(crate) fn routes_changed(&mut self) {
        self.dirty.extend(self.by_address.values());
    }

    pub(crate) fn send(
        &mut self,
        id: RouterId,
        forwarded: ForwardedMessage,
        waiter: ConfirmWaiter,
    ) -> SendOutcome {
        let Some(router) = self.peers.get_mut(id.0 as usize) else {
            return SendOutcome::Dropped;
        };
        if !forwarded.numbered {
            let in_flight = router.plain_in_flight();
            let room =
                in_flight == 0 || in_flight + forwarded.size() as u64 <= self.limits.plain_bytes;
            if !router.is_up || !room {
                self.dropped += 1;
                return SendOutcome::Dropped;
            }
            router.push_plain(forwarded);
            self.dirty.insert(id);
            return SendOutcome::Taken { behind: false };
        }
        if router.is_given_up {
            router.count_lost();
            self.lost += 1;
            return SendOutcome::GivenUp;
        }
        if router.bytes >= self.limits.hard_bytes {
            return SendOutcome::Refused;
        }
        router.push(forwarded, waiter);
        self.dirty.insert(id);
        let behind = router.bytes > self.limits.bytes;
        if behind && waiter.session != 0 {
            self.blocked.insert(waiter.session);
        }
        SendOutcome::Taken { behind }
    }

    /// Returns a session that may publish again.
    pub(crate) fn next_unblocked(&mut self) -> Option<u64> {
        if self.blocked.is_empty() {
            return None;
        }
        let low = self.limits.bytes / 2;
        let full = |(_, router): (usize, &PeerRouter)| router.bytes > low;
        match self.peers.iter().any(full) {
            true => None,
            false => self.blocked.pop_first(),
        }
    }

    /// The routers whose answer subscribers wait for.
    fn awaited_peers(&self) -> impl Iterator<Item = &PeerRouter> {
        let all = self.peers.iter().map(|(_, router)| router);
        all.filter(|router| router.is_up && !router.is_slow)
    }

    /// Returns true if a session must wait until the other routers know the current routes of this
    /// router, and this router has applied the metadata log as far as they have.
    /// [`RouteExchange::next_announced`] returns the session when it may continue.
    pub(crate) fn announce(&mut self, session: u64) -> bool {
        if self.awaited_peers().next().is_none() {
            return false;
        }
        let Some(announcements) = &mut self.announcements else {
            return false;
        };
        announcements.question += 1;
        announcements.until = announcements.applied;
        self.pending_announcements.push_back(PendingAnnouncement {
            version: announcements.routes.version(),
            question: announcements.question,
            until: self.now + self.limits.announce,
            session,
        });
        self.routes_changed();
        true
    }

    /// Returns a session that need not wait any longer.
    pub(crate) fn next_announced(&mut self) -> Option<u64> {
        let PendingAnnouncement {
            version,
            question,
            until,
            ..
        } = *self.pending_announcements.front()?;
        let late = until <= self.now;
        if late {
            for (_, router) in self.peers.iter_mut() {
                router.is_slow |= router.is_up && !router.knows(version, question);
            }
        }
        let all =
            |router: &PeerRouter| router.knows(version, question) && router.applied <= self.applied;
        let done = late || self.awaited_peers().all(all);
        let first = self.pending_announcements.pop_front_if(|_| done);
        first.map(|first| first.session)
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        let patience = self.limits.patience;
        let routers = self.peers.iter();
        let routers = routers
            .filter_map(|(_, router)| router.wake_at(patience))
            .min();
        let announcing = self.pending_announcements.front().map(|first| first.until);
        Time::earliest([routers, announcing])
    }

    /// Sets the time for the following calls.
    pub(crate) fn set_time(&mut self, now: Time) {
        self.now = now;
    }

    pub(crate) fn tick(&mut self, now: Time, events: &mut Vec<PeerEvent>) {
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
