//! Subscribers of other hubs: what they are told of those here, and messages that come from them.

use super::subscriber::Subscriber;
use super::{MqttRouter, RouterOutput, Vhost};
use crate::exchange::RouteExchange;
use crate::exchange::RouterId;
use crate::exchange::own_routes::InterestClass;
use crate::exchange::peer::{PeerEvent, Waiter};
use crate::exchange::peer_message::{ForwardedMessage, InterestCounts, InterestKey, PeerMessage};
use crate::routes::{MemberLocation, MemberLocations};
use crate::{Envelope, RouterAddress, SubscriberId, Subscription};
use codec_mqtt::Qos;
use env::{Incarnation, NodeId};
use slots::Slab;
use std::sync::Arc;

/// How often a message goes on to another hub because the member of a group that it was for had left.
const MAX_HOPS: u8 = 3;

impl MqttRouter {
    /// Another hub is there, perhaps again after its link was broken.
    pub fn meet(&mut self, address: RouterAddress) {
        if !self.routers.meet(address) {
            return;
        }
        let all: Vec<SubscriberId> = self
            .subscribers
            .iter()
            .map(|(key, _)| SubscriberId(key as u32))
            .collect();
        all.into_iter().for_each(|who| self.count_all(who, true));
    }

    /// The hubs of another node are out of reach.
    pub fn part(&mut self, node: NodeId) {
        self.routers.part(node);
        self.wills.part(node, self.claims.now);
        self.carry_on();
    }

    /// Only this life of another node is left; None: not even that.
    pub fn forget_routers(&mut self, node: NodeId, but: Option<Incarnation>) {
        self.wills.meet(node, but, self.claims.now);
        let mut events = Vec::new();
        for id in self.routers.of_other_lives(node, but) {
            self.routers.remove(id, &mut events);
            events.drain(..).for_each(|event| self.happened(id, event));
        }
        self.carry_on();
    }

    /// Whether this hub knows what there is to know of all others that can be reached: before, a message may not find its
    /// subscribers.
    pub fn is_introduced(&self) -> bool {
        self.routers.is_introduced()
    }

    /// What another hub says.
    pub fn hear(&mut self, from: RouterAddress, peer_message: PeerMessage) {
        let mut events = std::mem::take(&mut self.events);
        if let Some(id) = self.routers.hear(from, peer_message, &mut events) {
            events.drain(..).for_each(|event| self.happened(id, event));
        }
        self.events = events;
        self.carry_on();
    }

    /// The next word for another hub, at the end of a turn. None: there is no more to say.
    pub fn say(&mut self) -> Option<(RouterAddress, PeerMessage)> {
        self.routers.say()
    }

    /// This much of the metadata log is applied here.
    pub fn set_applied(&mut self, index: u64) {
        self.routers.set_applied(index);
        self.carry_on();
    }

    /// Whether a session must wait until its subscriptions are known to the other hubs, be they routes or bindings, and until this
    /// shard has applied what the others have (so that what was retained there is found here): [`RouterOutput::Known`] tells when.
    pub fn announce(&mut self, session: u64) -> bool {
        self.routers.announce(session)
    }

    pub(super) fn tick_routers(&mut self, now: env::Time) {
        let mut events = std::mem::take(&mut self.events);
        self.routers.tick(now, &mut events);
        if !events.is_empty() {
            for event in events.drain(..) {
                if let PeerEvent::Answered(waiter) = event {
                    self.heard(waiter);
                }
            }
        }
        self.events = events;
        self.carry_on();
    }

    /// Who need not wait any more is told.
    fn carry_on(&mut self) {
        while let Some(session) = self.routers.announced() {
            self.outputs.push_back(RouterOutput::Known { session });
        }
        while let Some(session) = self.routers.relieved() {
            self.outputs.push_back(RouterOutput::Relieved { session });
        }
    }

    fn heard(&mut self, waiter: Waiter) {
        if waiter.tag != 0 {
            self.outputs.push_back(RouterOutput::Heard {
                session: waiter.session,
                channel: waiter.channel,
                tag: waiter.tag,
            });
        }
    }

    fn happened(&mut self, router: RouterId, event: PeerEvent) {
        match event {
            PeerEvent::Answered(waiter) => self.heard(waiter),
            PeerEvent::Message(sent) => self.take_in(sent),
            PeerEvent::Route { key, was, is } => self.route(router, key, was, is),
            PeerEvent::Missed => self.tell_missed(),
        }
    }

    fn route(
        &mut self,
        router: RouterId,
        key: InterestKey,
        was: InterestCounts,
        is: InterestCounts,
    ) {
        match key {
            InterestKey::Filter { vhost, filter } => {
                let vhost = self.vhosts.entry(vhost).or_default();
                vhost.routes.set_router(&filter, router, was, is);
            }
            InterestKey::Group { vhost, filter } => {
                let vhost = self.vhosts.entry(vhost).or_default();
                vhost.routes.set_members(&filter, router, is);
            }
            InterestKey::Seat { queue } if !is.is_none() => {
                self.routers.seats.insert(queue, router);
            }
            InterestKey::Seat { queue } => {
                if self.routers.seats.get(&queue) == Some(&router) {
                    self.routers.seats.remove(&queue);
                }
            }
        }
    }

    /// Messages of QoS 1 or 2 were given up while this hub was out of reach. Clients that may have missed one must know: those whose
    /// messages are in no queue.
    fn tell_missed(&mut self) {
        for (_, entry) in self.subscribers.iter() {
            let acknowledged = |(_, s): (&str, Subscription)| s.qos != Qos::AtMostOnce;
            if let Some(session) = entry.session()
                && entry.queue == 0
                && entry.filters().iter().any(acknowledged)
            {
                self.outputs.push_back(RouterOutput::Missed { session });
            }
        }
    }

    /// A message that another hub has for subscribers here.
    fn take_in(&mut self, sent: ForwardedMessage) {
        let properties = sent.message.properties();
        let Ok(envelope) = Envelope::read(properties) else {
            return;
        };
        let topic = envelope.topic;
        match &sent.group {
            Some(group) => self.take_shared(&sent, group),
            None => {
                let mut found = std::mem::take(&mut self.found);
                found.clear();
                if let Some(vhost) = self.vhosts.get_mut(&sent.vhost) {
                    vhost.routes.find_here(topic, &mut found.here);
                }
                let mut queues = Vec::new();
                self.hand_out(&found.here, &sent.message, &mut queues);
                self.found = found;
            }
        }
    }

    /// For one member of a group, who may have left meanwhile: then for another one.
    pub(super) fn take_shared(&mut self, sent: &ForwardedMessage, group: &Arc<str>) {
        let durable = sent.message.durable();
        let MqttRouter {
            vhosts,
            subscribers,
            routers,
            ..
        } = self;
        let Some(vhost) = vhosts.get_mut(&sent.vhost) else {
            return;
        };
        let seats = &ClientLocations {
            subscribers,
            routers,
        };
        let number = vhost.routes.group_number(group);
        let pick = vhost.routes.pick(group, durable, false, seats);
        let pick = match pick {
            None if sent.hops < MAX_HOPS => vhost.routes.pick(group, durable, true, seats),
            pick => pick,
        };
        let Some(pick) = pick else {
            return;
        };
        let mut found = std::mem::take(&mut self.found);
        found.clear();
        found.picked(pick, (group, number));
        let mut queues = Vec::new();
        self.hand_out(&found.here, &sent.message, &mut queues);
        for queue in queues {
            let message = sent.message.clone();
            self.outputs
                .push_back(RouterOutput::ToQueue { queue, message });
        }
        for bound in &found.routers {
            let on = ForwardedMessage {
                hops: sent.hops + 1,
                numbered: bound.numbered,
                ..sent.clone()
            };
            self.routers.send(bound.router, on, Default::default());
        }
        self.found = found;
    }

    /// Counts all that a subscriber is there for, or takes it back.
    pub(super) fn count_all(&mut self, who: SubscriberId, more: bool) {
        let Some(own) = self.routers.own() else {
            return;
        };
        let Some(entry) = self.subscribers.get(index(who)) else {
            return;
        };
        for (filter, subscription) in entry.filters().iter() {
            if let Some((key, class)) = counts_as(entry, filter, subscription) {
                own.count(key, class, more);
            }
        }
        self.routers.routes_changed();
    }

    /// The same for one of its filters.
    pub(super) fn count(
        &mut self,
        who: SubscriberId,
        filter: &str,
        wants: Subscription,
        more: bool,
    ) {
        let Some(own) = self.routers.own() else {
            return;
        };
        let entry = self.subscribers.get(index(who));
        if let Some((key, class)) = entry.and_then(|entry| counts_as(entry, filter, wants)) {
            own.count(key, class, more);
            self.routers.routes_changed();
        }
    }
}

pub(super) fn index(who: SubscriberId) -> usize {
    who.0 as usize
}

/// Where clients are.
pub(super) struct ClientLocations<'a> {
    pub subscribers: &'a Slab<Subscriber>,
    pub routers: &'a RouteExchange,
}

impl MemberLocations for ClientLocations<'_> {
    fn seating(&self, who: SubscriberId) -> MemberLocation {
        let Some(entry) = self.subscribers.get(index(who)) else {
            return MemberLocation::Away;
        };
        let stored = entry.queue != 0;
        if entry.is_connected() {
            return MemberLocation::Here { stored };
        }
        match self.routers.seats.get(&entry.queue) {
            Some(router) if stored => MemberLocation::Elsewhere(*router),
            _ => MemberLocation::Away,
        }
    }

    fn is_up(&self, router: RouterId) -> bool {
        self.routers.is_up(router)
    }
}

/// What other hubs are told because of a subscription: what the client's queue does not get for it.
fn counts_as(
    entry: &Subscriber,
    filter: &str,
    wants: Subscription,
) -> Option<(InterestKey, InterestClass)> {
    let connected = entry.is_connected();
    let (stored, at_most_once) = (entry.queue != 0, wants.qos == Qos::AtMostOnce);
    let shared = matches!(codec_mqtt::shared(filter), Ok(Some(_)));
    let vhost = entry.vhost().clone();
    let class = match (at_most_once, stored) {
        (true, _) => InterestClass::Plain,
        (false, true) => InterestClass::Stored,
        (false, false) => InterestClass::Acknowledged,
    };
    match (shared, stored) {
        // Every hub knows the members whose sessions are in queues; what they do not know is where these are connected.
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
    /// Nobody is here and nobody elsewhere has a subscription.
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.routes.is_empty()
    }
}
