//! The hub: who is here, who is away, and what each is told.

mod claims;
mod clients;
mod filters;
mod handover;
mod late_answers;
mod name;
mod owner;
mod publish;
mod queues;
mod remote_subscribers;
mod subscriber;
mod sys_topics;
mod wills;

use crate::claims::Claims;
use crate::exchange::peer::PeerEvent;
use crate::exchange::{RouteExchange, RouteExchangeLimits};
use crate::retained::Retained;
use crate::routes::{Matches, Routes};
use crate::wills::Wills;
use crate::{Delivery, SubscriberId, Subscription};
use bytes::Bytes;
use clients::Clients;
use env::planted::{self, Bug};
use env::{Time, WallTime};
use hashbrown::HashMap;
use late_answers::LateAnswers;
use message::{Message, Room};
use slots::Slab;
use smallvec::SmallVec;
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use subscriber::{DisconnectedClient, SeatOwner, Subscriber, VhostName};
use sys_topics::SysTopicTree;
pub use sys_topics::is_servers;

type ByName<V> = HashMap<Arc<str>, V, foldhash::fast::FixedState>;

/// Bounds of what clients may make a hub hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterLimits {
    /// Retained messages of a vhost.
    pub retained_messages: usize,
    /// Bytes of the same.
    pub retained_bytes: usize,
    /// Clients that are away and whose sessions are kept, over all vhosts.
    pub parked: usize,
    /// Of what is kept for other hubs.
    pub routers: RouteExchangeLimits,
}

impl Default for RouterLimits {
    fn default() -> RouterLimits {
        RouterLimits {
            retained_messages: 1_000_000,
            retained_bytes: 256 << 20,
            parked: 1_000_000,
            routers: RouteExchangeLimits::default(),
        }
    }
}

/// A client's session while no connection has it.
pub trait ParkedSession: Send {
    /// A message for it. False: it was not kept.
    fn deliver(&mut self, delivery: Delivery) -> bool;
    /// A queue or another hub answers a publish of one of its earlier connections ([`MqttRouter::expect_late_answers`]).
    fn answered(&mut self, session: u64, tag: u64, taken: bool) {
        let _ = (session, tag, taken);
    }
    /// Whether all of those are answered.
    fn is_settled(&self) -> bool {
        true
    }
    /// The session goes on at another hub: the state that goes with it, [`HANDOVER_BYTES`](crate::HANDOVER_BYTES) at most. Empty:
    /// none does.
    fn hand_over(&mut self) -> Bytes {
        Bytes::new()
    }
    /// The session is over: what another member of a shared subscription is to have.
    fn take_undelivered(&mut self) -> Vec<Delivery> {
        Vec::new()
    }
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// A message to be published when its client does not come back.
#[derive(Clone, Debug, PartialEq)]
pub struct Will {
    pub topic: Arc<str>,
    pub message: Message,
    pub retain: bool,
}

/// What came of [`MqttRouter::claim`].
pub enum ClaimOutcome {
    /// The client id is the asker's.
    Granted {
        subscriber: SubscriberId,
        /// What its last connection left here, if anything. It is not over yet: the asker says either [`MqttRouter::came_back`] or, when its
        /// own connection is not let in, [`MqttRouter::leave`] with what was left.
        left: SessionRelease,
        /// State of the session from the hub that it was at ([`ParkedSession::hand_over`]); empty: there is none.
        handover: Bytes,
    },
    /// Another connection has it and has been told to leave: claim again on [`RouterOutput::Free`].
    Wait,
}

/// How a connection leaves its client id.
#[derive(Default)]
pub struct SessionRelease {
    /// None: the session is over.
    pub state: Option<Box<dyn ParkedSession>>,
    /// When the session is over; None: never.
    pub until: Option<Time>,
    /// To be published at that time, or when the session is over if that comes first.
    pub will: Option<(Time, Will)>,
    /// Of a session that is over: messages of shared subscriptions that another member is to have.
    pub undelivered: Vec<Delivery>,
}

/// What a hub has to say.
#[derive(Debug)]
pub enum RouterOutput {
    /// To a session, by its number.
    Deliver { session: u64, delivery: Delivery },
    /// To a session: another connection claims its client id, or the claim that it waits for; it must leave.
    TakenOver { session: u64 },
    /// To a session that waits: claim again.
    Free { session: u64 },
    /// A client did not come back: publish this.
    Will { vhost: Arc<str>, will: Will },
    /// To a session: another hub has its message with this tag, or will never be there to have it.
    Heard {
        session: u64,
        channel: u16,
        tag: u64,
    },
    /// To a session: a publish of its client's earlier connection `publisher` was answered.
    AnsweredLate {
        session: u64,
        client: SubscriberId,
        publisher: u64,
        tag: u64,
        taken: bool,
    },
    /// To a session that was told [`PublishOutcome::behind`].
    Relieved { session: u64 },
    /// To a session that waits after [`MqttRouter::announce`].
    Known { session: u64 },
    /// To a session: this node was out of reach, and messages of QoS 1 or 2 that were for it here are lost.
    Missed { session: u64 },
    /// A member of a group has its messages in this queue, and is to have this one.
    ToQueue { queue: u64, message: Message },
    /// To a session: another hub is to keep its will ([`MqttRouter::keep_will`]).
    TellWill { session: u64 },
    /// Somebody listens to the server's own topics: [`MqttRouter::say_figures`] what they say.
    Figures,
}

/// Who publishes a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Publisher {
    /// None: no client of the hub's.
    pub subscriber: Option<SubscriberId>,
    /// The session that hears of other hubs; 0: none does.
    pub session: u64,
    /// Its words for the message, for [`RouterOutput::Heard`]; tag 0: it does not wait.
    pub channel: u16,
    pub tag: u64,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishOutcome {
    /// Somebody here has subscribed to it, were it only the publisher, who does not want it back.
    pub matched: bool,
    /// Subscribers here, and other hubs.
    pub receivers: usize,
    /// Other hubs that will say when they have it: [`RouterOutput::Heard`] comes as often.
    pub awaited: usize,
    /// Another hub does not keep up: publish no more until [`RouterOutput::Relieved`].
    pub behind: bool,
    /// There was no room for it on its way to another hub.
    pub refused: bool,
}

/// There is no room for another retained message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedLimitReached;

/// Figures for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterCounters {
    pub connected: usize,
    pub parked: usize,
    /// Most of both that there ever were at the same time.
    pub most: usize,
    /// Sessions that ended because their time was over, since the start.
    pub expired: u64,
    pub subscriptions: usize,
    pub retained: usize,
    /// Messages that a client that was away had no room for, since the start.
    pub not_kept: u64,
    /// Messages of QoS 0 that were dropped because a client did not read (Q6), since the start.
    pub dropped: u64,
    /// Wills of other nodes' clients that this hub keeps.
    pub wills: usize,
    /// Those that it had no room for, since the start.
    pub wills_not_kept: u64,
    /// Other hubs that are known.
    pub routers: usize,
    /// Messages of QoS 0 that were dropped because another hub does not keep up or cannot be reached, since the start.
    pub dropped_between: u64,
    /// Messages of QoS 1 and 2 that another hub does not get because it could not be reached for too long, since the start.
    pub lost_between: u64,
}

impl std::ops::AddAssign for PublishOutcome {
    fn add_assign(&mut self, other: PublishOutcome) {
        self.matched |= other.matched;
        self.receivers += other.receivers;
        self.awaited += other.awaited;
        self.behind |= other.behind;
        self.refused |= other.refused;
    }
}

#[derive(Default)]
struct Vhost {
    /// None: it has had no client.
    name: Option<Arc<VhostName>>,
    clients: Clients,
    routes: Routes,
    retained: Retained,
}

pub struct MqttRouter {
    limits: RouterLimits,
    vhosts: ByName<Vhost>,
    subscribers: Slab<Subscriber>,
    /// Sessions that claim what a connected client has, and come next.
    waiting: BTreeMap<SubscriberId, u64>,
    /// When something is due for a client that is away.
    timers: BTreeSet<(Time, SubscriberId)>,
    outputs: VecDeque<RouterOutput>,
    found: Matches,
    room: Room,
    /// Queues of sessions that are over, until they are gone.
    ending: BTreeSet<u64>,
    routers: RouteExchange,
    /// Room for what other hubs say.
    events: Vec<PeerEvent>,
    claims: Claims,
    late: LateAnswers,
    server: SysTopicTree,
    wills: Wills,
    parked: usize,
    subscriptions: usize,
    /// Clients, connected or away, that there ever were at the same time.
    most: usize,
    /// Sessions that ended because their time was over, since the start.
    expired: u64,
    not_kept: u64,
    dropped: u64,
}

impl Default for MqttRouter {
    fn default() -> MqttRouter {
        MqttRouter::new(RouterLimits::default())
    }
}

impl MqttRouter {
    pub fn new(limits: RouterLimits) -> MqttRouter {
        MqttRouter {
            claims: Claims::default(),
            routers: RouteExchange::new(limits.routers.clone()),
            limits,
            vhosts: ByName::default(),
            subscribers: Slab::new(),
            waiting: BTreeMap::new(),
            timers: BTreeSet::new(),
            outputs: VecDeque::new(),
            found: Matches::default(),
            room: Room::default(),
            ending: BTreeSet::new(),
            events: Vec::new(),
            late: LateAnswers::default(),
            server: SysTopicTree::default(),
            wills: Wills::default(),
            parked: 0,
            subscriptions: 0,
            most: 0,
            expired: 0,
            not_kept: 0,
            dropped: 0,
        }
    }

    /// What there is to say, in order.
    pub fn take(&mut self) -> Option<RouterOutput> {
        if self.outputs.is_empty() {
            self.hear_own_messages();
        }
        self.outputs.pop_front()
    }

    /// Who has this client id in a vhost, connected or away.
    fn client(&self, vhost: &str, client: &str) -> Option<SubscriberId> {
        let there = self.vhosts.get(vhost)?;
        there.clients.find(client, &self.subscribers)
    }

    /// A client's id: it stands here alone, for sessions are small.
    pub fn client_id(&self, subscriber: SubscriberId) -> Option<&str> {
        let entry = self.subscribers.get(subscriber.0 as usize)?;
        Some(entry.client())
    }

    /// Makes a client id the session's. Its old session goes on, unless `clean`: then that is over.
    pub fn claim(&mut self, vhost: &str, client: &str, session: u64, clean: bool) -> ClaimOutcome {
        let known = self.client(vhost, client);
        let entry = known.and_then(|known| self.subscribers.get_mut(known.0 as usize));
        let held = entry.as_ref().map_or(0, |entry| entry.stamp);
        let yielding = known.is_some_and(|known| self.claims.yielding.contains_key(&known));
        if held == 0 || yielding {
            return match self.ask(vhost, client, session, clean, yielding) {
                Some(granted) => self.sit(known, (vhost, client), session, clean, granted),
                None => ClaimOutcome::Wait,
            };
        }
        let has = entry.and_then(|entry| entry.session());
        if let (Some(subscriber), Some(has)) = (known, has) {
            let leaves = self.waiting.insert(subscriber, session).unwrap_or(has);
            self.outputs
                .push_back(RouterOutput::TakenOver { session: leaves });
            return ClaimOutcome::Wait;
        }
        let held = (held, Bytes::new());
        self.sit(known, (vhost, client), session, clean, held)
    }

    /// The client id is the session's, under this stamp and with this handover; what is known of the client is away.
    fn sit(
        &mut self,
        known: Option<SubscriberId>,
        (vhost, client): (&str, &str),
        session: u64,
        clean: bool,
        (stamp, handover): (u64, Bytes),
    ) -> ClaimOutcome {
        let there = known.and_then(|known| {
            let entry = self.subscribers.get_mut(known.0 as usize)?;
            Some((known, entry))
        });
        let Some((subscriber, entry)) = there else {
            return ClaimOutcome::Granted {
                subscriber: self.seat_new(vhost, client, session, stamp),
                left: SessionRelease::default(),
                handover,
            };
        };
        if clean {
            // The id stays here.
            entry.stamp = 0;
            self.forget(subscriber);
            let new = self.seat_new(vhost, client, session, stamp);
            self.hold_on(subscriber, new);
            return ClaimOutcome::Granted {
                subscriber: new,
                left: SessionRelease::default(),
                handover,
            };
        }
        entry.stamp = stamp;
        let was = self.change_seat(subscriber, SeatOwner::Connected(session));
        let Some(SeatOwner::Away(away)) = was else {
            return ClaimOutcome::Wait;
        };
        let DisconnectedClient { state, until, will } = *away;
        self.stop_timer(subscriber, due(until, &will));
        self.parked -= 1;
        let left = SessionRelease {
            state,
            until,
            will,
            undelivered: Vec::new(),
        };
        ClaimOutcome::Granted {
            subscriber,
            left,
            handover,
        }
    }

    /// Other hubs hear what this means for them. What was before; None: there is no such client.
    fn change_seat(&mut self, subscriber: SubscriberId, seat: SeatOwner) -> Option<SeatOwner> {
        self.count_all(subscriber, false);
        self.watch_all(subscriber, false);
        let entry = self.subscribers.get_mut(subscriber.0 as usize)?;
        let was = entry.sit(seat);
        self.count_all(subscriber, true);
        self.watch_all(subscriber, true);
        Some(was)
    }

    fn seat_new(&mut self, vhost: &str, client: &str, session: u64, stamp: u64) -> SubscriberId {
        let vhost: Arc<str> = match self.vhosts.get_key_value(vhost) {
            Some((name, _)) => name.clone(),
            None => vhost.into(),
        };
        let there = self.vhosts.entry(vhost.clone()).or_default();
        let name = there.name.get_or_insert_with(|| Arc::new(VhostName(vhost)));
        let new = Subscriber::new(name.clone(), client, session, stamp);
        // Fewer than 2^32 clients fit in any memory.
        let subscriber = SubscriberId(self.subscribers.insert(new) as u32);
        self.most = self.most.max(self.subscribers.len());
        there.clients.insert(subscriber, &self.subscribers);
        subscriber
    }

    /// A session that waits for a client id gives up.
    pub fn withdraw(&mut self, vhost: &str, client: &str, session: u64) {
        if let Some(subscriber) = self.client(vhost, client)
            && self.waiting.get(&subscriber) == Some(&session)
        {
            self.waiting.remove(&subscriber);
        }
        self.ask_no_more(vhost, client, session);
    }

    /// The connection of a client ends.
    pub fn leave(&mut self, subscriber: SubscriberId, leave: SessionRelease) {
        let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
            return;
        };
        let Some(session) = entry.session() else {
            return;
        };
        let waiting = self.waiting.remove(&subscriber);
        let id = entry.id();
        if leave.will.is_none() {
            self.wills.drop(subscriber);
        }
        match leave.state {
            Some(mut state) if self.parked < self.limits.parked => {
                self.not_kept += take_back(&mut self.outputs, session, state.as_mut());
                let timer = due(leave.until, &leave.will);
                let away = DisconnectedClient {
                    state: Some(state),
                    until: leave.until,
                    will: leave.will,
                };
                self.change_seat(subscriber, SeatOwner::Away(Box::new(away)));
                self.parked += 1;
                self.timers.extend(timer.map(|at| (at, subscriber)));
            }
            state => {
                let vhost = entry.vhost().clone();
                let mut undelivered = leave.undelivered;
                undelivered.extend(
                    state
                        .map(|mut state| state.take_undelivered())
                        .into_iter()
                        .flatten(),
                );
                if entry.filters().len() > 0 {
                    undelivered.extend(handover::take_unsent(&mut self.outputs, session));
                }
                self.forget(subscriber);
                self.hand_over(&vhost, undelivered);
                let will = leave
                    .will
                    .map(|(_, will)| RouterOutput::Will { vhost, will });
                self.outputs.extend(will);
            }
        }
        self.outputs
            .extend(waiting.map(|session| RouterOutput::Free { session }));
        self.left(subscriber, id);
    }

    /// A client is let in whose last connection had left this will, or none.
    pub fn came_back(&mut self, subscriber: SubscriberId, will: Option<(Time, Will)>) {
        self.wills.drop(subscriber);
        if let (Some(entry), Some(will)) = (self.subscribers.get(subscriber.0 as usize), will) {
            let vhost = entry.vhost().clone();
            self.spare(&vhost, Some(will));
        }
    }

    /// A client has come back: its will is not published [MQTT-3.1.3-9].
    fn spare(&mut self, vhost: &str, will: Option<(Time, Will)>) {
        if let (true, Some((_, will))) = (planted::is(Bug::WillInSpite), will) {
            let vhost = vhost.into();
            self.outputs.push_back(RouterOutput::Will { vhost, will });
        }
    }

    fn stop_timer(&mut self, subscriber: SubscriberId, at: Option<Time>) {
        if let Some(at) = at {
            self.timers.remove(&(at, subscriber));
        }
    }

    /// Its session is over: its will is published, its subscriptions go.
    fn forget(&mut self, subscriber: SubscriberId) {
        self.count_all(subscriber, false);
        self.watch_all(subscriber, false);
        let Some(mut entry) = self.subscribers.remove(subscriber.0 as usize) else {
            return;
        };
        self.wills.drop(subscriber);
        self.late.forget(subscriber);
        self.let_go((entry.vhost(), entry.client()), entry.stamp, Bytes::new());
        if let Some(vhost) = self.vhosts.get_mut(entry.vhost()) {
            vhost.clients.remove(entry.client(), subscriber);
            for (filter, subscription) in entry.filters().iter() {
                vhost.routes.remove(filter, subscriber, subscription);
            }
        }
        self.subscriptions -= entry.filters().len();
        if let Some(away) = entry.away_mut() {
            let DisconnectedClient { until, will, state } = std::mem::take(away);
            let undelivered = state.map(|mut state| state.take_undelivered());
            self.parked -= 1;
            self.stop_timer(subscriber, due(until, &will));
            let vhost = entry.vhost().clone();
            self.hand_over(&vhost, undelivered.unwrap_or_default());
            self.outputs
                .extend(will.map(|(_, will)| RouterOutput::Will { vhost, will }));
        }
        // Hubs may wait for its id.
        self.settle(subscriber);
    }

    /// Ends all subscriptions of a client.
    pub fn unsubscribe_all(&mut self, subscriber: SubscriberId) {
        self.count_all(subscriber, false);
        self.watch_all(subscriber, false);
        let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
            return;
        };
        let filters = entry.take_filters();
        self.subscriptions -= filters.len();
        if let Some(vhost) = self.vhosts.get_mut(entry.vhost()) {
            for (filter, subscription) in filters.iter() {
                vhost.routes.remove(filter, subscriber, subscription);
            }
        }
    }

    /// Whether the subscription was there before: then it is replaced.
    pub fn subscribe(
        &mut self,
        subscriber: SubscriberId,
        filter: &str,
        subscription: Subscription,
    ) -> bool {
        let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
            return false;
        };
        let Some(vhost) = self.vhosts.get_mut(entry.vhost()) else {
            return false;
        };
        let old = entry.add(filter, subscription);
        self.subscriptions += usize::from(old.is_none());
        if old == Some(subscription) {
            return true;
        }
        if let Some(old) = old {
            vhost.routes.remove(filter, subscriber, old);
        }
        vhost.routes.add(filter, subscriber, subscription);
        // The new one first: others need not hear that nobody was there in between.
        self.count(subscriber, filter, subscription, true);
        match old {
            Some(old) => self.count(subscriber, filter, old, false),
            None => self.watch(subscriber, filter, true),
        }
        old.is_some()
    }

    /// False: there was no such subscription.
    pub fn unsubscribe(&mut self, subscriber: SubscriberId, filter: &str) -> bool {
        let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
            return false;
        };
        let Some(subscription) = entry.remove(filter) else {
            return false;
        };
        self.subscriptions -= 1;
        if let Some(vhost) = self.vhosts.get_mut(entry.vhost()) {
            vhost.routes.remove(filter, subscriber, subscription);
        }
        self.count(subscriber, filter, subscription, false);
        self.watch(subscriber, filter, false);
        true
    }

    /// How many subscriptions a client has.
    pub fn subscriptions_of(&self, subscriber: SubscriberId) -> usize {
        let entry = self.subscribers.get(subscriber.0 as usize);
        entry.map_or(0, |entry| entry.filters().len())
    }

    /// Whether anybody in a vhost has a subscription.
    pub fn is_listening(&self, vhost: &str) -> bool {
        let there = self.vhosts.get(vhost);
        there.is_some_and(|there| !there.routes.is_empty())
    }

    /// Keeps a message for those who subscribe later; None removes what is kept.
    pub fn retain(
        &mut self,
        vhost: &str,
        topic: &str,
        message: Option<Message>,
    ) -> Result<(), RetainedLimitReached> {
        if !self.vhosts.contains_key(vhost) {
            self.vhosts.insert(vhost.into(), Vhost::default());
        }
        let Some(there) = self.vhosts.get_mut(vhost) else {
            return Ok(());
        };
        let Some(message) = message else {
            there.retained.remove(topic);
            return Ok(());
        };
        let old = there.retained.size_of(topic);
        let bytes = there.retained.bytes() - old.unwrap_or(0) + message.as_bytes().len();
        let messages = there.retained.len() + usize::from(old.is_none());
        if messages > self.limits.retained_messages || bytes > self.limits.retained_bytes {
            return Err(RetainedLimitReached);
        }
        there.retained.set(topic, message);
        Ok(())
    }

    /// Forgets what is retained in all vhosts.
    pub fn clear_retained(&mut self) {
        for vhost in self.vhosts.values_mut() {
            vhost.retained = Retained::default();
        }
    }

    /// Appends what is retained for a client's filter, until there are `limit`, and what the server says under it. False: there is
    /// more. `asked`: as it was subscribed to, though the same packet may have changed that since.
    pub fn retained_for(
        &mut self,
        subscriber: SubscriberId,
        (filter, asked): (&str, Subscription),
        now: WallTime,
        limit: usize,
        found: &mut Vec<Delivery>,
    ) -> bool {
        self.ask_server(subscriber, filter, limit, found);
        let Some(entry) = self.subscribers.get(subscriber.0 as usize) else {
            return true;
        };
        if entry.filters().get(filter).is_none() {
            return true;
        }
        let Some(vhost) = self.vhosts.get(entry.vhost()) else {
            return true;
        };
        vhost.retained.matching(filter, now, |message| {
            let room = found.len() < limit;
            if room {
                found.push(Delivery {
                    message: message.clone(),
                    hits: SmallVec::from_buf([asked.hit()]),
                    retained: true,
                    group: 0,
                });
            }
            room
        })
    }

    /// Where a message may be laid out that no longer is there when the turn ends.
    pub fn room(&mut self) -> &mut Room {
        &mut self.room
    }

    /// A message of QoS 0 was dropped because its client does not read.
    pub fn count_dropped(&mut self) {
        self.dropped += 1;
    }

    pub fn counts(&self) -> RouterCounters {
        RouterCounters {
            connected: self.subscribers.len() - self.parked,
            parked: self.parked,
            most: self.most,
            expired: self.expired,
            subscriptions: self.subscriptions,
            retained: self.vhosts.values().map(|v| v.retained.len()).sum(),
            not_kept: self.not_kept,
            dropped: self.dropped,
            wills: self.wills.kept(),
            wills_not_kept: self.wills.not_kept,
            routers: self.routers.len(),
            dropped_between: self.routers.dropped,
            lost_between: self.routers.lost,
        }
    }

    /// The vhost is no more: retained messages and sessions of clients that are away go. What clients that are connected
    /// have stays until they leave.
    pub fn remove_vhost(&mut self, vhost: &str) {
        let away: Vec<SubscriberId> = self
            .subscribers
            .iter()
            .filter(|(_, s)| **s.vhost() == *vhost && !s.is_connected())
            .map(|(key, _)| SubscriberId(key as u32))
            .collect();
        for subscriber in away {
            self.forget(subscriber);
        }
        if let Some(there) = self.vhosts.get_mut(vhost) {
            there.retained = Retained::default();
            if there.is_empty() {
                self.vhosts.remove(vhost);
            }
        }
    }

    pub fn wake_at(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let own = self.claims.wake_at();
        let wills = self.wills.wake_at(self.claims.now);
        [
            timer,
            own,
            wills,
            self.routers.wake_at(),
            self.server.wake_at(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has come to `now`: sessions end, wills are published.
    pub fn tick(&mut self, now: Time) {
        self.tick_routers(now);
        self.tick_server(now);
        self.tell_keepers(now);
        self.publish_kept(now);
        self.tell_owners();
        self.settle_late();
        self.lose_patience();
        while let Some(&(at, subscriber)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
                continue;
            };
            let vhost = entry.vhost().clone();
            let Some(DisconnectedClient { until, will, .. }) = entry.away_mut() else {
                continue;
            };
            if until.is_some_and(|until| until <= now) {
                self.expired += 1;
                self.forget(subscriber);
                continue;
            }
            let until = *until;
            let due = will
                .take()
                .map(|(_, will)| RouterOutput::Will { vhost, will });
            self.outputs.extend(due);
            self.wills.drop(subscriber);
            self.timers.extend(until.map(|at| (at, subscriber)));
        }
    }
}

/// What a session was to be given and has not been waits for its client instead. How many messages found no room.
fn take_back(
    outputs: &mut VecDeque<RouterOutput>,
    session: u64,
    state: &mut dyn ParkedSession,
) -> u64 {
    let mut not_kept = 0;
    for output in std::mem::take(outputs) {
        match output {
            RouterOutput::Deliver {
                session: to,
                delivery,
            } if to == session => not_kept += u64::from(!state.deliver(delivery)),
            other => outputs.push_back(other),
        }
    }
    not_kept
}

/// The first thing that time brings to a client that is away.
fn due(until: Option<Time>, will: &Option<(Time, Will)>) -> Option<Time> {
    let will = will.as_ref().map(|(at, _)| *at);
    [until, will].into_iter().flatten().min()
}
