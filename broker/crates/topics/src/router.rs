//! The MQTT router of a shard: its clients, connected and disconnected, and the outputs for their
//! sessions.

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
use crate::retained::RetainedTree;
use crate::routes::{Matches, RouteCache, Routes};
use crate::wills::Wills;
use crate::{Delivery, HANDOVER_BYTES, SubscriberId, Subscription};
use bytes::Bytes;
use clients::Clients;
use env::planted::{self, Bug};
use env::{Time, WallTime};
pub use handover::PassedOn;
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
pub use sys_topics::is_sys_topic;

type NameMap<V> = HashMap<Arc<str>, V, foldhash::fast::FixedState>;

/// Limits on the state that clients can create in a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterLimits {
    /// Maximum number of retained messages per vhost.
    pub retained_messages: usize,
    /// Maximum bytes of retained messages per vhost.
    pub retained_bytes: usize,
    /// Maximum number of parked sessions over all vhosts.
    pub parked: usize,
    /// Limits on the state kept for other routers.
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

/// The session of a disconnected client.
pub trait ParkedSession: Send {
    /// Stores a message for the client. Returns false if it was dropped.
    fn deliver(&mut self, delivery: Delivery) -> bool;
    /// A queue or another router confirmed or rejected a publish of an earlier connection
    /// ([`MqttRouter::expect_late_answers`]).
    fn answered(&mut self, session: u64, tag: u64, taken: bool) {
        let _ = (session, tag, taken);
    }
    /// Returns true if all of these publishes are answered.
    fn is_settled(&self) -> bool {
        true
    }
    /// The session continues at another router. Returns the state to hand over, at most
    /// [`HANDOVER_BYTES`](crate::HANDOVER_BYTES); empty if there is none.
    fn hand_over(&mut self) -> Bytes {
        Bytes::new()
    }
    /// The session has ended. Returns the messages that another member of a shared subscription
    /// must receive.
    fn take_undelivered(&mut self) -> Vec<Delivery> {
        Vec::new()
    }

    /// Converts the state for a downcast to its concrete type.
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

/// A message to publish if its client does not come back.
#[derive(Clone, Debug, PartialEq)]
pub struct Will {
    /// The topic name.
    pub topic: Arc<str>,
    /// The message.
    pub message: Message,
    /// True if the will must be retained.
    pub retain: bool,
}

/// The result of [`MqttRouter::claim`].
pub enum ClaimOutcome {
    /// The session now holds the client id.
    Granted {
        /// The client.
        subscriber: SubscriberId,
        /// The state of the client's last connection to this router, if any. The caller must call
        /// either [`MqttRouter::session_resumed`] or, if it rejects the new connection,
        /// [`MqttRouter::leave`] with this state.
        previous: SessionRelease,
        /// Session state from the router where the client was before
        /// ([`ParkedSession::hand_over`]); empty if there is none.
        handover: Bytes,
    },
    /// Another connection holds the id and was told to leave: claim again after
    /// [`RouterOutput::ClaimAgain`].
    Wait,
}

/// The state in which a connection releases its client id.
#[derive(Default)]
pub struct SessionRelease {
    /// `None` if the session has ended.
    pub state: Option<Box<dyn ParkedSession>>,
    /// When the session expires; `None`: never.
    pub until: Option<Time>,
    /// The will and the time to publish it. It is published earlier if the session ends before.
    pub will: Option<(Time, Will)>,
    /// Messages of shared subscriptions that another member must receive, if the session has ended.
    pub undelivered: Vec<Delivery>,
    /// If the session has ended: what the next holder of the client id must know, as in
    /// [`ClaimOutcome::Granted`]. At most [`HANDOVER_BYTES`](crate::HANDOVER_BYTES).
    pub handover: Box<[u8]>,
}

/// An output of the router for a session or for the shard.
#[derive(Debug)]
pub enum RouterOutput {
    /// To a session: deliver a message.
    Deliver {
        /// The number of the session.
        session: u64,
        /// The message to deliver.
        delivery: Delivery,
    },
    /// To a session: another connection claims its client id, or replaces its waiting claim; it
    /// must disconnect.
    TakenOver {
        /// The number of the session.
        session: u64,
    },
    /// To a session with a waiting claim: claim again.
    ClaimAgain {
        /// The number of the session.
        session: u64,
    },
    /// Publish this will, because its client did not come back.
    Will {
        /// The vhost of the client.
        vhost: Arc<str>,
        /// The will.
        will: Will,
    },
    /// To a session: other routers have received the messages with these tags, or will never be
    /// able to.
    Confirmed {
        /// The number of the session.
        session: u64,
        /// The tag of the first message.
        first: u64,
        /// The tag of the last message. Each tag between the two is that of another one.
        last: u64,
    },
    /// To a session: a publish of its client's earlier session `publisher` was confirmed or
    /// rejected.
    LateAnswer {
        /// The number of the session.
        session: u64,
        /// The client.
        client: SubscriberId,
        /// The number of the session that published the message.
        publisher: u64,
        /// The tag of the message.
        tag: u64,
        /// True if the publish was confirmed, false if it was rejected.
        taken: bool,
    },
    /// To a session that got [`PublishOutcome::behind`]: it may publish again.
    Unblocked {
        /// The number of the session.
        session: u64,
    },
    /// To a session that waits after [`MqttRouter::announce`]: its subscriptions are known to the
    /// other routers.
    Announced {
        /// The number of the session.
        session: u64,
    },
    /// To a session: this node was unreachable, and QoS 1 or 2 messages for the session are lost.
    MessagesLost {
        /// The number of the session.
        session: u64,
    },
    /// Store this message in the queue of the member that a shared subscription selected.
    ToQueue {
        /// The number of the queue.
        queue: u64,
        /// The message.
        message: Message,
    },
    /// To a session: call [`MqttRouter::replicate_will`] again, because the replica of its will must
    /// move.
    ReplicateWill {
        /// The number of the session.
        session: u64,
    },
    /// Clients are subscribed to `$SYS` topics: call [`MqttRouter::set_sys_topics`].
    SysTopicsDue,
}

/// The publisher of a message.
#[derive(Clone, Copy, Debug, Default)]
pub struct Publisher {
    /// `None` if the publisher is not a client of this router.
    pub subscriber: Option<SubscriberId>,
    /// The session that receives confirms of other routers; 0 if there is none.
    pub session: u64,
    /// The session's number for the message, for [`RouterOutput::Confirmed`]; 0 if it does not wait
    /// for confirms.
    pub tag: u64,
}

/// The result of a publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PublishOutcome {
    /// At least one local subscription matched, possibly only one of the publisher with No Local.
    pub matched: bool,
    /// Number of local subscribers and other routers that receive the message.
    pub receivers: usize,
    /// Number of other routers that will confirm the message, each with a [`RouterOutput::Confirmed`].
    pub awaited: usize,
    /// Another router does not keep up: stop publishing until [`RouterOutput::Unblocked`].
    pub behind: bool,
    /// Another router's queue is full, so it does not get the message.
    pub refused: bool,
}

/// The vhost's limit on retained messages is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedLimitReached;

/// Counters and gauges for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterCounters {
    /// Connected clients.
    pub connected: usize,
    /// Parked sessions.
    pub parked: usize,
    /// Maximum number of clients, connected or parked, at any time.
    pub peak: usize,
    /// Sessions that expired since the start.
    pub expired: u64,
    /// Subscriptions of all clients.
    pub subscriptions: usize,
    /// Retained messages.
    pub retained: usize,
    /// Messages dropped because a parked session was full, since the start.
    pub not_kept: u64,
    /// QoS 0 messages dropped because a client did not read fast enough, since the start.
    pub dropped: u64,
    /// Replicas of wills kept for clients of other nodes.
    pub wills: usize,
    /// Replicas of wills that exceeded the limit, since the start.
    pub wills_not_kept: u64,
    /// Number of known other routers.
    pub routers: usize,
    /// QoS 0 messages dropped because another router is slow or unreachable, since the start.
    pub dropped_between: u64,
    /// QoS 1 and 2 messages lost because another router was unreachable for too long, since the
    /// start.
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
    /// `None` until the vhost has its first client.
    name: Option<Arc<VhostName>>,
    clients: Clients,
    routes: Routes,
    retained: RetainedTree,
}

/// The MQTT router of one shard; see the crate documentation.
pub struct MqttRouter {
    limits: RouterLimits,
    vhosts: NameMap<Vhost>,
    subscribers: Slab<Subscriber>,
    /// Local sessions that claim the id of a connected client, and get it when that leaves.
    waiting: BTreeMap<SubscriberId, u64>,
    /// The next expiry or will of each disconnected client.
    timers: BTreeSet<(Time, SubscriberId)>,
    outputs: VecDeque<RouterOutput>,
    /// Recent results of all `vhosts`.
    cache: RouteCache,
    found: Matches,
    room: Room,
    /// Queues of ended sessions that are not deleted yet.
    deleting_queues: BTreeSet<u64>,
    routers: RouteExchange,
    /// Reused buffer for the events of other routers.
    events: Vec<PeerEvent>,
    claims: Claims,
    late_answers: LateAnswers,
    sys_topics: SysTopicTree,
    wills: Wills,
    parked: usize,
    subscriptions: usize,
    /// Maximum number of clients, connected or disconnected, at any time.
    peak: usize,
    /// Sessions that expired since the start.
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
    /// Creates a router without clients.
    pub fn new(limits: RouterLimits) -> MqttRouter {
        MqttRouter {
            claims: Claims::default(),
            routers: RouteExchange::new(limits.routers.clone()),
            limits,
            vhosts: NameMap::default(),
            subscribers: Slab::new(),
            waiting: BTreeMap::new(),
            timers: BTreeSet::new(),
            outputs: VecDeque::new(),
            cache: RouteCache::default(),
            found: Matches::default(),
            room: Room::default(),
            deleting_queues: BTreeSet::new(),
            events: Vec::new(),
            late_answers: LateAnswers::default(),
            sys_topics: SysTopicTree::default(),
            wills: Wills::default(),
            parked: 0,
            subscriptions: 0,
            peak: 0,
            expired: 0,
            not_kept: 0,
            dropped: 0,
        }
    }

    /// Returns true if [`MqttRouter::take`] can return an output.
    pub fn has_output(&self) -> bool {
        !self.outputs.is_empty() || !self.claims.own_messages.is_empty()
    }

    /// Returns true if messages for other routers were collected.
    pub fn has_frames(&self) -> bool {
        self.routers.has_messages() || self.wills.has_frames() || self.claims.has_frames()
    }

    /// Takes the next output, in order.
    pub fn take(&mut self) -> Option<RouterOutput> {
        if self.outputs.is_empty() {
            self.handle_own_messages();
        }
        self.outputs.pop_front()
    }

    /// Returns the client with this id in a vhost, connected or disconnected.
    fn client(&self, vhost: &str, client: &str) -> Option<SubscriberId> {
        let vhost_state = self.vhosts.get(vhost)?;
        vhost_state.clients.find(client, &self.subscribers)
    }

    /// Returns a client's id. Sessions do not store it, to stay small.
    pub fn client_id(&self, subscriber: SubscriberId) -> Option<&str> {
        let entry = self.subscribers.get(subscriber.0 as usize)?;
        Some(entry.client())
    }

    /// Claims a client id for a session. The client's previous session continues, unless `clean`:
    /// then it ends.
    pub fn claim(&mut self, vhost: &str, client: &str, session: u64, clean: bool) -> ClaimOutcome {
        let known = self.client(vhost, client);
        let entry = known.and_then(|known| self.subscribers.get_mut(known.0 as usize));
        let held = entry.as_ref().map_or(0, |entry| entry.stamp);
        let yielding = known.is_some_and(|known| self.claims.yielding.contains_key(&known));
        if held == 0 || yielding {
            return match self.claim_from_owner(vhost, client, session, clean, yielding) {
                Some(granted) => self.assign_seat(known, (vhost, client), session, clean, granted),
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
        self.assign_seat(known, (vhost, client), session, clean, held)
    }

    /// Gives the client id to the session, with this stamp and handover. A known client must be
    /// disconnected.
    fn assign_seat(
        &mut self,
        known: Option<SubscriberId>,
        (vhost, client): (&str, &str),
        session: u64,
        clean: bool,
        (stamp, handover): (u64, Bytes),
    ) -> ClaimOutcome {
        let known_client = known.and_then(|known| {
            let entry = self.subscribers.get_mut(known.0 as usize)?;
            Some((known, entry))
        });
        let Some((subscriber, entry)) = known_client else {
            return ClaimOutcome::Granted {
                subscriber: self.add_client(vhost, client, session, stamp),
                previous: SessionRelease::default(),
                handover,
            };
        };
        if clean {
            // The router continues to hold the id: a stamp of 0 keeps `remove_client` from releasing it.
            entry.stamp = 0;
            self.remove_client(subscriber);
            let new = self.add_client(vhost, client, session, stamp);
            self.move_report(subscriber, new);
            return ClaimOutcome::Granted {
                subscriber: new,
                previous: SessionRelease::default(),
                handover,
            };
        }
        entry.stamp = stamp;
        let previous = self.change_seat(subscriber, SeatOwner::Connected(session));
        let Some(SeatOwner::Away(away)) = previous else {
            return ClaimOutcome::Wait;
        };
        let DisconnectedClient { state, until, will } = *away;
        self.stop_timer(subscriber, next_timer(until, &will));
        debug_assert!(
            self.parked > 0,
            "the parked session of client {subscriber:?} was not counted"
        );
        self.parked -= 1;
        let previous = SessionRelease {
            state,
            until,
            will,
            ..SessionRelease::default()
        };
        ClaimOutcome::Granted {
            subscriber,
            previous,
            handover,
        }
    }

    /// Replaces the owner of a client's seat, announces the effect to other routers and returns the
    /// previous owner; `None` if there is no such client.
    fn change_seat(&mut self, subscriber: SubscriberId, seat: SeatOwner) -> Option<SeatOwner> {
        self.count_routes(subscriber, false);
        self.count_sys_subscriptions(subscriber, false);
        let entry = self.subscribers.get_mut(subscriber.0 as usize)?;
        let previous = entry.set_owner(seat);
        self.count_routes(subscriber, true);
        self.count_sys_subscriptions(subscriber, true);
        Some(previous)
    }

    fn add_client(&mut self, vhost: &str, client: &str, session: u64, stamp: u64) -> SubscriberId {
        let vhost: Arc<str> = match self.vhosts.get_key_value(vhost) {
            Some((name, _)) => name.clone(),
            None => vhost.into(),
        };
        let vhost_state = self.vhosts.entry(vhost.clone()).or_default();
        let name = vhost_state
            .name
            .get_or_insert_with(|| Arc::new(VhostName(vhost)));
        let new = Subscriber::new(name.clone(), client, session, stamp);
        // Fewer than 2^32 clients fit in memory.
        let subscriber = SubscriberId(self.subscribers.insert(new) as u32);
        self.peak = self.peak.max(self.subscribers.len());
        vhost_state.clients.insert(subscriber, &self.subscribers);
        subscriber
    }

    /// A session stops waiting for a client id.
    pub fn withdraw(&mut self, vhost: &str, client: &str, session: u64) {
        if let Some(subscriber) = self.client(vhost, client)
            && self.waiting.get(&subscriber) == Some(&session)
        {
            self.waiting.remove(&subscriber);
        }
        self.withdraw_claim(vhost, client, session);
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
                self.not_kept += move_to_parked(&mut self.outputs, session, state.as_mut());
                let timer = next_timer(leave.until, &leave.will);
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
                let handover = match self.claims.handover_enabled {
                    true => leave.handover.into(),
                    false => Bytes::new(),
                };
                self.remove_client_with(subscriber, handover);
                self.hand_over_undelivered(&vhost, undelivered);
                let will = leave
                    .will
                    .map(|(_, will)| RouterOutput::Will { vhost, will });
                self.outputs.extend(will);
            }
        }
        self.outputs
            .extend(waiting.map(|session| RouterOutput::ClaimAgain { session }));
        self.seat_released(subscriber, id);
    }

    /// A client's connection was accepted. `will` is the pending will of its last connection, if
    /// there is one.
    pub fn session_resumed(&mut self, subscriber: SubscriberId, will: Option<(Time, Will)>) {
        self.wills.drop(subscriber);
        if let (Some(entry), Some(will)) = (self.subscribers.get(subscriber.0 as usize), will) {
            let vhost = entry.vhost().clone();
            self.cancel_will(&vhost, Some(will));
        }
    }

    /// The client has come back before the Will Delay Interval has passed, so its will is not
    /// published [MQTT-3.1.3-9].
    fn cancel_will(&mut self, vhost: &str, will: Option<(Time, Will)>) {
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

    /// Ends a client's session: publishes its will and removes its subscriptions.
    fn remove_client(&mut self, subscriber: SubscriberId) {
        self.remove_client_with(subscriber, Bytes::new());
    }

    /// As [`MqttRouter::remove_client`], with a handover for the next holder of the client id.
    fn remove_client_with(&mut self, subscriber: SubscriberId, handover: Bytes) {
        debug_assert!(
            handover.len() <= HANDOVER_BYTES,
            "a handover of {} bytes",
            handover.len()
        );
        self.count_routes(subscriber, false);
        self.count_sys_subscriptions(subscriber, false);
        let Some(mut entry) = self.subscribers.remove(subscriber.0 as usize) else {
            return;
        };
        self.wills.drop(subscriber);
        self.late_answers.remove_client(subscriber);
        self.report_free((entry.vhost(), entry.client()), entry.stamp, handover);
        if let Some(vhost) = self.vhosts.get_mut(entry.vhost()) {
            vhost.clients.remove(entry.client(), subscriber);
            for (filter, subscription) in entry.filters().iter() {
                vhost.routes.remove(filter, subscriber, subscription);
            }
        }
        debug_assert!(
            self.subscriptions >= entry.filters().len(),
            "subscriptions of client {subscriber:?} were not counted"
        );
        self.subscriptions -= entry.filters().len();
        if let Some(away) = entry.away_mut() {
            let DisconnectedClient { until, will, state } = std::mem::take(away);
            let undelivered = state.map(|mut state| state.take_undelivered());
            debug_assert!(
                self.parked > 0,
                "the parked session of client {subscriber:?} was not counted"
            );
            self.parked -= 1;
            self.stop_timer(subscriber, next_timer(until, &will));
            let vhost = entry.vhost().clone();
            self.hand_over_undelivered(&vhost, undelivered.unwrap_or_default());
            self.outputs
                .extend(will.map(|(_, will)| RouterOutput::Will { vhost, will }));
        }
        // Other routers may wait for its id.
        self.confirm_arrived(subscriber);
    }

    /// Removes all subscriptions of a client.
    pub fn unsubscribe_all(&mut self, subscriber: SubscriberId) {
        self.count_routes(subscriber, false);
        self.count_sys_subscriptions(subscriber, false);
        let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
            return;
        };
        let filters = entry.take_filters();
        debug_assert!(
            self.subscriptions >= filters.len(),
            "subscriptions of client {subscriber:?} were not counted"
        );
        self.subscriptions -= filters.len();
        if let Some(vhost) = self.vhosts.get_mut(entry.vhost()) {
            for (filter, subscription) in filters.iter() {
                vhost.routes.remove(filter, subscriber, subscription);
            }
        }
    }

    /// Returns true if this replaced an existing subscription.
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
        // Add the new one first, so that other routers see no gap.
        self.count_route(subscriber, filter, subscription, true);
        match old {
            Some(old) => self.count_route(subscriber, filter, old, false),
            None => self.count_sys_subscription(subscriber, filter, true),
        }
        old.is_some()
    }

    /// Returns false if there was no such subscription.
    pub fn unsubscribe(&mut self, subscriber: SubscriberId, filter: &str) -> bool {
        let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
            return false;
        };
        let Some(subscription) = entry.remove(filter) else {
            return false;
        };
        debug_assert!(
            self.subscriptions > 0,
            "subscription {filter:?} of client {subscriber:?} was not counted"
        );
        self.subscriptions -= 1;
        if let Some(vhost) = self.vhosts.get_mut(entry.vhost()) {
            vhost.routes.remove(filter, subscriber, subscription);
        }
        self.count_route(subscriber, filter, subscription, false);
        self.count_sys_subscription(subscriber, filter, false);
        true
    }

    /// Number of subscriptions of a client.
    pub fn subscriptions_of(&self, subscriber: SubscriberId) -> usize {
        let entry = self.subscribers.get(subscriber.0 as usize);
        entry.map_or(0, |entry| entry.filters().len())
    }

    /// Returns true if any client or other router has a subscription in the vhost.
    pub fn has_subscribers(&self, vhost: &str) -> bool {
        let vhost_state = self.vhosts.get(vhost);
        vhost_state.is_some_and(|vhost_state| !vhost_state.routes.is_empty())
    }

    /// Retains a message for later subscribers; `None` removes the retained message.
    pub fn retain(
        &mut self,
        vhost: &str,
        topic: &str,
        message: Option<Message>,
    ) -> Result<(), RetainedLimitReached> {
        if !self.vhosts.contains_key(vhost) {
            self.vhosts.insert(vhost.into(), Vhost::default());
        }
        let Some(vhost_state) = self.vhosts.get_mut(vhost) else {
            return Ok(());
        };
        let Some(message) = message else {
            vhost_state.retained.remove(topic);
            return Ok(());
        };
        let old = vhost_state.retained.size_of(topic);
        let bytes = vhost_state.retained.bytes() - old.unwrap_or(0) + message.as_bytes().len();
        let messages = vhost_state.retained.len() + usize::from(old.is_none());
        if messages > self.limits.retained_messages || bytes > self.limits.retained_bytes {
            return Err(RetainedLimitReached);
        }
        vhost_state.retained.set(topic, message);
        Ok(())
    }

    /// Removes the retained messages of all vhosts.
    pub fn clear_retained(&mut self) {
        for vhost in self.vhosts.values_mut() {
            vhost.retained = RetainedTree::default();
        }
    }

    /// Appends the retained messages for a client's filter until `found` has `limit` entries, and
    /// the current `$SYS` messages. Returns false if there are more. `asked` is the subscription as
    /// it was requested, even if a later filter of the same packet has replaced it.
    pub fn retained_for(
        &mut self,
        subscriber: SubscriberId,
        (filter, asked): (&str, Subscription),
        now: WallTime,
        limit: usize,
        found: &mut Vec<Delivery>,
    ) -> bool {
        self.append_sys_topics(subscriber, filter, limit, found);
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
                    hits: SmallVec::from_buf([asked.to_match()]),
                    retained: true,
                    group: 0,
                });
            }
            room
        })
    }

    /// The buffer for messages that do not outlive the turn.
    pub fn room(&mut self) -> &mut Room {
        &mut self.room
    }

    /// Counts a QoS 0 message that was dropped because its client does not read fast enough.
    pub fn count_dropped(&mut self) {
        self.dropped += 1;
    }

    /// Returns the current counters.
    pub fn counts(&self) -> RouterCounters {
        RouterCounters {
            connected: self.subscribers.len() - self.parked,
            parked: self.parked,
            peak: self.peak,
            expired: self.expired,
            subscriptions: self.subscriptions,
            retained: self.vhosts.values().map(|v| v.retained.len()).sum(),
            not_kept: self.not_kept,
            dropped: self.dropped,
            wills: self.wills.peer_will_count(),
            wills_not_kept: self.wills.rejected,
            routers: self.routers.len(),
            dropped_between: self.routers.dropped,
            lost_between: self.routers.lost,
        }
    }

    /// Removes the retained messages and disconnected sessions of a deleted vhost. Connected
    /// clients keep their state until they leave.
    pub fn remove_vhost(&mut self, vhost: &str) {
        let away: Vec<SubscriberId> = self
            .subscribers
            .iter()
            .filter(|(_, s)| **s.vhost() == *vhost && !s.is_connected())
            .map(|(key, _)| SubscriberId(key as u32))
            .collect();
        for subscriber in away {
            self.remove_client(subscriber);
        }
        if let Some(vhost_state) = self.vhosts.get_mut(vhost) {
            vhost_state.retained = RetainedTree::default();
            if vhost_state.is_empty() {
                self.vhosts.remove(vhost);
            }
        }
    }

    /// The time at which [`MqttRouter::tick`] must be called next.
    pub fn wake_at(&self) -> Option<Time> {
        let timer = self.timers.first().map(|(at, _)| *at);
        let own = self.claims.wake_at();
        let wills = self.wills.wake_at(self.claims.now);
        Time::earliest([
            timer,
            own,
            wills,
            self.routers.wake_at(),
            self.sys_topics.wake_at(),
        ])
    }

    /// Advances the time: expires sessions and publishes wills that are due.
    pub fn tick(&mut self, now: Time) {
        self.tick_routers(now);
        self.tick_sys_topics(now);
        self.send_replicas(now);
        self.publish_due_wills(now);
        self.report_holdings();
        self.release_unsettled();
        self.grant_overdue_claims();
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
                self.remove_client(subscriber);
                continue;
            }
            let until = *until;
            let due_will = will
                .take()
                .map(|(_, will)| RouterOutput::Will { vhost, will });
            self.outputs.extend(due_will);
            self.wills.drop(subscriber);
            self.timers.extend(until.map(|at| (at, subscriber)));
        }
    }
}

/// Moves undelivered messages of a session into its parked state. Returns how many were dropped.
fn move_to_parked(
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

/// The time of the next timer of a disconnected client.
fn next_timer(until: Option<Time>, will: &Option<(Time, Will)>) -> Option<Time> {
    let will = will.as_ref().map(|(at, _)| *at);
    Time::earliest([until, will])
}
