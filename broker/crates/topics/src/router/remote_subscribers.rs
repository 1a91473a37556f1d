//! Subscribers of other routers: announces local subscriptions to them and handles messages that
//! they forward.

use super::subscriber::Subscriber;
use super::{MqttRouter, RouterOutput, Vhost};
use crate::exchange::RouteExchange;
use crate::exchange::RouterId;
use crate::exchange::own_routes::InterestClass;
use crate::exchange::peer::{ConfirmWaiter, PeerEvent};
use crate::exchange::peer_message::{ForwardedMessage, InterestCounts, InterestKey, PeerMessage};
use crate::routes::{MemberLocation, MemberLocations};
use crate::{RouterAddress, SubscriberId, Subscription};
use codec_mqtt::Qos;
use conversion::mqtt::Envelope;
use env::{Incarnation, NodeId};
use slots::Slab;
use std::sync::Arc;

/// How often a message may be forwarded because the selected member of a shared subscription has
/// left.
const MAX_HOPS: u8 = 3;

impl MqttRouter {
    /// A link to another router is up, perhaps again.
    pub fn router_up(&mut self, address: RouterAddress) {
        if !self.routers.link_up(address) {
            return;
        }
        let all: Vec<SubscriberId> = self
            .subscribers
            .iter()
            .map(|(key, _)| SubscriberId(key as u32))
            .collect();
        all.into_iter()
            .for_each(|subscriber| self.count_routes(subscriber, true));
    }

    /// The routers of another node are unreachable.
    pub fn node_down(&mut self, node: NodeId) {
        self.routers.link_down(node);
        self.wills.node_down(node, self.claims.now);
        self.wake_waiting();
    }

    /// Forgets all incarnations of another node but this one; all of them if `None`.
    pub fn forget_routers(&mut self, node: NodeId, but: Option<Incarnation>) {
        self.wills.node_up(node, but, self.claims.now);
        let mut events = Vec::new();
        for id in self.routers.other_incarnations(node, but) {
            self.routers.remove(id, &mut events);
            events
                .drain(..)
                .for_each(|event| self.handle_peer_event(id, event));
        }
        self.wake_waiting();
    }

    /// Returns true if this router knows the routes of all reachable routers. Before that, a
    /// message may miss subscribers.
    pub fn has_peer_routes(&self) -> bool {
        self.routers.has_peer_routes()
    }

    /// Handles a message of another router.
    pub fn handle_peer_message(&mut self, from: RouterAddress, peer_message: PeerMessage) {
        let mut events = std::mem::take(&mut self.events);
        if let Some(id) = self.routers.handle(from, peer_message, &mut events) {
            events
                .drain(..)
                .for_each(|event| self.handle_peer_event(id, event));
        }
        self.events = events;
        self.wake_waiting();
    }

    /// Returns the next message for another router, at the end of a turn; `None` if there is none.
    pub fn next_peer_message(&mut self) -> Option<(RouterAddress, PeerMessage)> {
        self.routers.next_message()
    }

    /// The metadata log is applied up to this index.
    pub fn set_applied(&mut self, index: u64) {
        self.routers.set_applied(index);
        self.wake_waiting();
    }

    /// Returns true if a session must wait until the other routers know its subscriptions, be they
    /// routes or bindings, and until this shard has applied the metadata log as far as they have,
    /// so that it finds messages retained there. [`RouterOutput::Announced`] follows.
    pub fn announce(&mut self, session: u64) -> bool {
        self.routers.announce(session)
    }

    pub(super) fn tick_routers(&mut self, now: env::Time) {
        self.routers.tick(now, &mut self.events);
        if !self.events.is_empty() {
            let mut events = std::mem::take(&mut self.events);
            for event in events.drain(..) {
                if let PeerEvent::Answered(waiter) = event {
                    self.confirm(waiter);
                }
            }
            self.events = events;
        }
        self.wake_waiting();
    }

    /// Wakes sessions that need not wait any longer.
    fn wake_waiting(&mut self) {
        while let Some(session) = self.routers.next_announced() {
            self.outputs.push_back(RouterOutput::Announced { session });
        }
        while let Some(session) = self.routers.next_unblocked() {
            self.outputs.push_back(RouterOutput::Unblocked { session });
        }
    }

    fn confirm(&mut self, waiter: ConfirmWaiter) {
        if waiter.tag == 0 {
            return;
        }
        if let Some(RouterOutput::Confirmed { session, last, .. }) = self.outputs.back_mut()
            && *session == waiter.session
            && last.checked_add(1) == Some(waiter.tag)
        {
            *last = waiter.tag;
            return;
        }
        self.outputs.push_back(RouterOutput::Confirmed {
            session: waiter.session,
            first: waiter.tag,
            last: waiter.tag,
        });
    }

    fn handle_peer_event(&mut self, router: RouterId, event: PeerEvent) {
        match event {
            PeerEvent::Answered(waiter) => self.confirm(waiter),
            PeerEvent::Message(forwarded) => self.deliver_forwarded(forwarded),
            PeerEvent::Route {
                key,
                previous,
                current,
            } => self.set_route(router, key, previous, current),
            PeerEvent::Missed => self.report_lost_messages(),
        }
    }

    fn set_route(
        &mut self,
        router: RouterId,
        key: InterestKey,
        previous: InterestCounts,
        current: InterestCounts,
    ) {
        match key {
            InterestKey::Filter { vhost, filter } => {
                let vhost = self.vhosts.entry(vhost).or_default();
                vhost.routes.set_router(&filter, router, previous, current);
            }
            InterestKey::Group { vhost, filter } => {
                let vhost = self.vhosts.entry(vhost).or_default();
                vhost.routes.set_members(&filter, router, current);
            }
            InterestKey::Seat { queue } if !current.is_none() => {
                self.routers.client_routers.insert(queue, router);
            }
            InterestKey::Seat { queue } => {
                if self.routers.client_routers.get(&queue) == Some(&router) {
                    self.routers.client_routers.remove(&queue);
                }
            }
        }
    }

    /// QoS 1 or 2 messages were given up while this router was unreachable. Informs the clients
    /// that may have missed one: those without a queue.
    fn report_lost_messages(&mut self) {
        for (_, entry) in self.subscribers.iter() {
            let acknowledged = |(_, s): (&str, Subscription)| s.qos != Qos::AtMostOnce;
            if let Some(session) = entry.session()
                && entry.queue == 0
                && entry.filters().iter().any(acknowledged)
            {
                self.outputs
                    .push_back(RouterOutput::MessagesLost { session });
            }
        }
    }

    /// Delivers a message forwarded by another router.
    fn deliver_forwarded(&mut self, forwarded: ForwardedMessage) {
        let properties = forwarded.message.properties();
        let Ok(topic) = Envelope::read(properties).and_then(|envelope| envelope.topic()) else {
            return;
        };
        match &forwarded.group {
            Some(group) => self.deliver_shared(&forwarded, group),
            None => {
                let mut found = std::mem::take(&mut self.found);
                found.clear();
                if let Some(vhost) = self.vhosts.get_mut(&forwarded.vhost) {
                    vhost
                        .routes
                        .find_here(topic, &mut self.cache, &mut found.here);
                }
                let mut queues = Vec::new();
                self.deliver_local(&found.here, &forwarded.message, &mut queues);
                self.found = found;
            }
        }
    }

    /// Delivers a message to one member of a shared subscription; to another one if the selected
    /// member has left.
    pub(super) fn deliver_shared(&mut self, forwarded: &ForwardedMessage, group: &Arc<str>) {
        let mut queues = Vec::new();
        self.pass_to_member(forwarded, group, &mut queues);
        for queue in queues {
            let message = forwarded.message.clone();
            self.outputs
                .push_back(RouterOutput::ToQueue { queue, message });
        }
    }

    /// Passes a message to one member of a group: to its connection, to its router, or by adding its
    /// queue to `queues`. Returns false if the group has no member.
    pub(super) fn pass_to_member(
        &mut self,
        forwarded: &ForwardedMessage,
        group: &Arc<str>,
        queues: &mut Vec<u64>,
    ) -> bool {
        let durable = forwarded.message.durable();
        let MqttRouter {
            vhosts,
            subscribers,
            routers,
            ..
        } = self;
        let Some(vhost) = vhosts.get_mut(&forwarded.vhost) else {
            return false;
        };
        let locations = &ClientLocations {
            subscribers,
            routers,
        };
        let number = vhost.routes.group_number(group);
        let pick = vhost.routes.pick(group, durable, false, locations);
        let pick = match pick {
            None if forwarded.hops < MAX_HOPS => vhost.routes.pick(group, durable, true, locations),
            pick => pick,
        };
        let Some(pick) = pick else {
            return false;
        };
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        found.add_choice(pick, (group, number));
        self.deliver_local(&found.here, &forwarded.message, queues);
        for bound in &found.routers {
            let on = ForwardedMessage {
                hops: forwarded.hops + 1,
                numbered: bound.numbered,
                ..forwarded.clone()
            };
            self.routers.send(bound.router, on, Default::default());
        }
        self.found = found;
        true
    }

    /// Adds a subscriber's routes to the announced ones, or removes them.
    pub(super) fn count_routes(&mut self, subscriber: SubscriberId, add: bool) {
        let Some(own) = self.routers.own_routes_mut() else {
            return;
        };
        let Some(entry) = self.subscribers.get(index(subscriber)) else {
            return;
        };
        for (filter, subscription) in entry.filters().iter() {
            if let Some((key, class)) = interest_of(entry, filter, subscription) {
                own.count_route(key, class, add);
            }
        }
        self.routers.routes_changed();
    }

    /// Like `count_routes`, for one filter.
    pub(super) fn count_route(
        &mut self,
        subscriber: SubscriberId,
        filter: &str,
        subscription: Subscription,
        add: bool,
    ) {
        let Some(own) = self.routers.own_routes_mut() else {
            return;
        };
        let entry = self.subscribers.get(index(subscriber));
        if let Some((key, class)) = entry.and_then(|entry| interest_of(entry, filter, subscription))
        {
            own.count_route(key, class, add);
            self.routers.routes_changed();
        }
    }
}

pub(super) fn index(subscriber: SubscriberId) -> usize {
    subscriber.0 as usize
}

/// Locations of clients for shared subscriptions.
pub(super) struct ClientLocations<'a> {
    pub subscribers: &'a Slab<Subscriber>,
    pub routers: &'a RouteExchange,
}

impl MemberLocations for ClientLocations<'_> {
    fn location_of(&self, subscriber: SubscriberId) -> MemberLocation {
        let Some(entry) = self.subscribers.get(index(subscriber)) else {
            return MemberLocation::Away;
        };
        let stored = entry.queue != 0;
        if entry.is_connected() {
            return MemberLocation::Here { stored };
        }
        match self.routers.client_routers.get(&entry.queue) {
            Some(router) if stored => MemberLocation::Elsewhere(*router),
            _ => MemberLocation::Away,
        }
    }

    fn is_up(&self, router: RouterId) -> bool {
        self.routers.is_up(router)
    }
}

/// The interest that a subscription adds to the announced routes: the messages that do not come
/// through the client's queue.
fn interest_of(
    entry: &Subscriber,
    filter: &str,
    subscription: Subscription,
) -> Option<(InterestKey, InterestClass)> {
    let connected = entry.is_connected();
    let (stored, at_most_once) = (entry.queue != 0, subscription.qos == Qos::AtMostOnce);
    let shared = matches!(codec_mqtt::shared(filter), Ok(Some(_)));
    let vhost = entry.vhost().clone();
    let class = match (at_most_once, stored) {
        (true, _) => InterestClass::Plain,
        (false, true) => InterestClass::Stored,
        (false, false) => InterestClass::Acknowledged,
    };
    match (shared, stored) {
        // Members with a queue are known to every router from the metadata; only where they are
        // connected must be announced.
        (true, true) if connected => Some((
            InterestKey::Seat { queue: entry.queue },
            InterestClass::Stored,
        )),
        (true, false) if connected => {
            let filter = filter.into();
            Some((InterestKey::Group { vhost, filter }, class))
        }
        (false, stored) if connected || !stored => {
            let filter = filter.into();
            Some((InterestKey::Filter { vhost, filter }, class))
        }
        _ => None,
    }
}

impl Vhost {
    /// Returns true if the vhost has no clients and no routes, local or remote.
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.routes.is_empty()
    }
}
