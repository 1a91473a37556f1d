//! The shard's client connections: a slot each, found by the number in a [`SessionId`] without a search.

use crate::listener_origin::{ListenerOrigins, Origin, PeerAddress};
use crate::listings::channel_counts;
use crate::wake_times::{NEVER, WakeTimes};
use crate::walks::COST_OF_CLIENT;
use crate::{ConnectionInfo, ConnectionKey};
use control::{
    ChannelFacts, ConnectionFacts, LinkFacts, LinkFilterFacts, LinkSessionFacts,
    StreamConsumerFacts, StreamPublisherFacts, StreamSessionFacts, WalkProgress,
};
use env::{NodeId, Time, WallTime};
use metadata::SessionId;
use session::{BufferPool, Outbox, ServiceStates, Session, SessionState};
use slots::Slots;
use std::net::{IpAddr, Ipv4Addr};

/// The keys in the numbers of the shard's own sessions; no driver reaches them.
const CONTROL_KEY: u64 = KEY_MASK;
const DEAD_LETTER_KEY: u64 = KEY_MASK - 1;
const INTERNAL_CLIENT_KEY: u64 = KEY_MASK - 2;
const FIREHOSE_KEY: u64 = KEY_MASK - 3;
/// The key of the first service. Further services have the keys below.
const SERVICE_KEY: u64 = KEY_MASK - 4;
const KEY_BITS: u32 = 24;
const KEY_MASK: u64 = (1 << KEY_BITS) - 1;

/// A session's number: shard in the top 8 bits, then a serial of 32 bits, then the connection's key of 24 bits.
pub(crate) fn number(shard: u16, serial: u32, key: u64) -> u64 {
    (u64::from(shard) << 56) | (u64::from(serial) << KEY_BITS) | (key & KEY_MASK)
}

/// A session of the shard itself, which belongs to no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InternalSession {
    /// Sends the requests of the control plane to queues.
    Control,
    /// Publishes dead letters.
    DeadLetters,
    /// Publishes and gets messages for the control plane.
    InternalClient,
    /// Publishes copies of messages that are traced.
    Firehose,
    /// Of the service at this position.
    Service(usize),
}

impl InternalSession {
    pub(crate) fn number(self, shard: u16) -> u64 {
        let key = match self {
            InternalSession::Control => CONTROL_KEY,
            InternalSession::DeadLetters => DEAD_LETTER_KEY,
            InternalSession::InternalClient => INTERNAL_CLIENT_KEY,
            InternalSession::Firehose => FIREHOSE_KEY,
            InternalSession::Service(at) => SERVICE_KEY - at as u64,
        };
        number(shard, 0, key)
    }

    /// The internal session with this number. `None`: it is the session of a client.
    #[inline]
    pub(crate) fn from_number(number: u64) -> Option<InternalSession> {
        let serial_and_key = number & ((1 << 56) - 1);
        // See FIRST_SERIAL.
        if serial_and_key > KEY_MASK {
            return None;
        }
        match serial_and_key {
            CONTROL_KEY => Some(InternalSession::Control),
            DEAD_LETTER_KEY => Some(InternalSession::DeadLetters),
            INTERNAL_CLIENT_KEY => Some(InternalSession::InternalClient),
            FIREHOSE_KEY => Some(InternalSession::Firehose),
            key => {
                let at = (SERVICE_KEY - key) as usize;
                (at < session::MAX_SERVICES).then_some(InternalSession::Service(at))
            }
        }
    }
}

/// The shard that has this session, on its node.
pub(crate) fn shard_of_session(id: SessionId) -> u16 {
    (id.number >> 56) as u16
}

/// The key of its connection.
pub(crate) fn key_of(number: u64) -> usize {
    (number & KEY_MASK) as usize
}

/// A connection. Most are idle, and there may be a million.
pub(crate) struct ConnectionSlot {
    pub session: Box<dyn Session>,
    pub outbox: Outbox,
    /// Bytes that the session has taken.
    pub received: u64,
    serial: u32,
    /// When [`WakeTimes`] has it, in its own unit.
    wake: u32,
    /// See [`Sessions::moment`].
    connected: u32,
    listener_origin: u32,
    peer: PeerAddress,
    pub session_state: SessionState,
    pub marks: Marks,
}

/// Facts about a connection that the shard keeps, in one byte.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Marks(u8);

impl Marks {
    const DIRTY: u8 = 1;
    const CHARGED: u8 = 2;
    const TOUCHED: u8 = 4;
    const RATE_LIMITED: u8 = 8;
    const THROTTLED: u8 = 16;

    fn set(&mut self, mark: u8, on: bool) {
        match on {
            true => self.0 |= mark,
            false => self.0 &= !mark,
        }
    }

    /// `Effect::Flush` is owed.
    pub(crate) fn is_dirty(self) -> bool {
        self.0 & Marks::DIRTY != 0
    }

    pub(crate) fn set_dirty(&mut self, on: bool) {
        self.set(Marks::DIRTY, on);
    }

    /// The memory budget has an entry for it.
    pub(crate) fn is_charged(self) -> bool {
        self.0 & Marks::CHARGED != 0
    }

    pub(crate) fn set_charged(&mut self, on: bool) {
        self.set(Marks::CHARGED, on);
    }

    /// The memory budget is to look at it.
    pub(crate) fn is_touched(self) -> bool {
        self.0 & Marks::TOUCHED != 0
    }

    pub(crate) fn set_touched(&mut self, on: bool) {
        self.set(Marks::TOUCHED, on);
    }

    /// A rate limit applies to its session.
    pub(crate) fn is_rate_limited(self) -> bool {
        self.0 & Marks::RATE_LIMITED != 0
    }

    pub(crate) fn set_rate_limited(&mut self, on: bool) {
        self.set(Marks::RATE_LIMITED, on);
    }

    /// It is not read, because a rate limit is exceeded.
    pub(crate) fn is_throttled(self) -> bool {
        self.0 & Marks::THROTTLED != 0
    }

    pub(crate) fn set_throttled(&mut self, on: bool) {
        self.set(Marks::THROTTLED, on);
    }
}

// A line of the cache, and a block of them is as large as the allocator's.
const _: () = assert!(size_of::<Option<ConnectionSlot>>() <= 64);

impl ConnectionSlot {
    fn number(&self, shard: u16, key: usize) -> u64 {
        number(shard, self.serial, key as u64)
    }

    /// The state for the driver: a connection that is throttled is not read.
    pub(crate) fn driver_state(&self) -> SessionState {
        match self.session_state {
            SessionState::Open if self.marks.is_throttled() => SessionState::Paused,
            session_state => session_state,
        }
    }

    fn origin<'a>(&self, entrances: &'a ListenerOrigins) -> Origin<'a> {
        Origin::new(entrances, self.listener_origin, self.peer)
    }

    /// Visits bytes that other connections may hold as well: messages, and output written by reference.
    pub(crate) fn visit_shared(&self, visit: &mut dyn FnMut(&[u8])) {
        self.outbox.visit_shared(visit);
        self.session
            .visit_messages(&mut |message| visit(message.body()));
    }

    fn facts(
        &self,
        node: NodeId,
        number: u64,
        origin: Origin<'_>,
        services: &ServiceStates,
    ) -> ConnectionFacts {
        let info = self.session.info(services);
        let details = self.session.details();
        let tls = details.tls.as_deref();
        let channel = |c: session::ChannelDetails| ChannelFacts {
            number: c.number,
            confirm: c.confirm,
            transactional: c.transactional,
            flow_blocked: c.flow_blocked,
            prefetch: c.prefetch,
            global_prefetch: c.global_prefetch,
            consumers: c.consumers,
            auto_ack: c.auto_ack,
            unacknowledged: c.unacknowledged,
            unconfirmed: c.unconfirmed,
            uncommitted: c.uncommitted,
            acks_uncommitted: c.acks_uncommitted,
            counts: channel_counts(&c.publishes, &c.deliveries),
            links: c.links.map(|links| link_session(*links)),
        };
        ConnectionFacts {
            name: origin.name(),
            node,
            number,
            user: info.user,
            vhost: info.vhost,
            protocol: info.protocol.to_owned(),
            client_name: info.client_name,
            client_properties: control::json::object(&details.client_properties),
            peer: origin.peer().to_string(),
            local: origin.local().to_string(),
            tls: origin.has_tls(),
            state: match details.state {
                "running" if self.marks.is_throttled() => "flow".to_owned(),
                state => state.to_owned(),
            },
            auth_mechanism: details.auth_mechanism.to_owned(),
            tls_protocol: tls.map_or("", |tls| tls.protocol).to_owned(),
            tls_suite: tls.map_or("", |tls| tls.cipher).to_owned(),
            certificate: tls.and_then(|tls| tls.subject.as_deref().map(str::to_owned)),
            connected_ms: 0,
            heartbeat_s: details.heartbeat_s,
            frame_max: details.frame_max,
            channel_max: details.channel_max,
            received_bytes: self.received,
            sent_bytes: self.outbox.sent(),
            pending_bytes: self.outbox.len() as u64,
            channels: details.channels.into_iter().map(channel).collect(),
            stream: details.stream.map(|stream| stream_session(*stream)),
        }
    }
}

fn stream_session(session: session::StreamSessionDetails) -> StreamSessionFacts {
    let publisher = |p: session::StreamPublisherDetails| StreamPublisherFacts {
        id: p.id,
        stream: p.stream,
        reference: p.reference,
        published: p.published,
        confirmed: p.confirmed,
        errored: p.errored,
    };
    let consumer = |c: session::StreamConsumerDetails| StreamConsumerFacts {
        id: c.id,
        stream: c.stream,
        credit: c.credit,
        consumed: c.consumed,
        offset: c.offset,
        active: c.is_active,
        properties: c.properties.into_iter().collect(),
    };
    StreamSessionFacts {
        publishers: session.publishers.into_iter().map(publisher).collect(),
        consumers: session.consumers.into_iter().map(consumer).collect(),
    }
}

fn link_session(session: session::LinkSessionDetails) -> LinkSessionFacts {
    let all = |links: Vec<session::LinkDetails>| links.into_iter().map(link).collect();
    LinkSessionFacts {
        handle_max: session.handle_max,
        next_incoming_id: session.next_incoming_id,
        incoming_window: session.incoming_window,
        next_outgoing_id: session.next_outgoing_id,
        remote_incoming_window: session.remote_incoming_window,
        remote_outgoing_window: session.remote_outgoing_window,
        incoming: all(session.incoming),
        outgoing: all(session.outgoing),
    }
}

fn link(link: session::LinkDetails) -> LinkFacts {
    LinkFacts {
        handle: link.handle,
        name: link.name,
        address: link.address,
        queue: link.queue,
        settle_mode: link.settle_mode.to_owned(),
        max_message_size: link.max_message_size,
        delivery_count: link.delivery_count,
        credit: link.credit,
        unconfirmed: link.unconfirmed,
        filters: link.filters.into_iter().map(link_filter).collect(),
    }
}

fn link_filter(filter: session::LinkFilter) -> LinkFilterFacts {
    LinkFilterFacts {
        name: filter.name,
        descriptor: control::json::value(&filter.descriptor),
        value: control::json::value(&filter.value),
    }
}

/// A connection at work, and who it is.
pub(crate) struct ActiveConnection<'a> {
    pub slot: &'a mut ConnectionSlot,
    pub number: u64,
    pub origin: Origin<'a>,
}

pub(crate) struct Sessions {
    shard: u16,
    slots: Slots<ConnectionSlot>,
    serial: u32,
    wakes: WakeTimes,
    entrances: ListenerOrigins,
    /// When the first connection came.
    began: Option<WallTime>,
    /// For outboxes that have something in them.
    pub spares: BufferPool,
}

/// The lowest serial of a client's session: 0 is that of internal sessions.
const FIRST_SERIAL: u32 = 1;

/// Milliseconds: as exactly as it is remembered when a connection came.
const MOMENT: u64 = 64;

impl Sessions {
    pub(crate) fn new(shard: u16) -> Sessions {
        Sessions {
            shard,
            slots: Slots::default(),
            serial: FIRST_SERIAL - 1,
            wakes: WakeTimes::default(),
            entrances: ListenerOrigins::default(),
            began: None,
            spares: BufferPool::default(),
        }
    }

    /// A connection that comes at this time.
    pub(crate) fn insert(
        &mut self,
        key: ConnectionKey,
        session: Box<dyn Session>,
        info: &ConnectionInfo,
        wall: WallTime,
    ) {
        let serial = self.next_serial();
        let (listener_origin, peer) = self.entrances.enter(info);
        let slot = ConnectionSlot {
            session,
            outbox: Outbox::default(),
            received: 0,
            serial,
            wake: NEVER,
            connected: self.moment(wall),
            listener_origin,
            peer,
            session_state: SessionState::Open,
            marks: Marks::default(),
        };
        self.slots.put(key.0, slot);
        self.leave(key);
    }

    /// 2^32 connections of one shard in one life of a process: at 1,000 a second, 49 days before a serial comes again, and
    /// then only a session that is still open on the same key could be mixed up.
    fn next_serial(&mut self) -> u32 {
        self.serial = self.serial.checked_add(1).unwrap_or(FIRST_SERIAL);
        self.serial
    }

    /// A time in units of [`MOMENT`] since the first connection; eight years have fewer than 2^32.
    fn moment(&mut self, wall: WallTime) -> u32 {
        let began = self.began.get_or_insert(wall);
        let units = wall.0.saturating_sub(began.0) / MOMENT;
        u32::try_from(units).unwrap_or(u32::MAX)
    }

    pub(crate) fn get(&mut self, key: ConnectionKey) -> Option<&mut ConnectionSlot> {
        self.slots.get_mut(key.0)
    }

    /// A connection with the buffers for what it may write.
    pub(crate) fn enter(&mut self, key: ConnectionKey) -> Option<ActiveConnection<'_>> {
        let slot = self.slots.get_mut(key.0)?;
        self.spares.lend(&mut slot.outbox);
        Some(ActiveConnection {
            number: slot.number(self.shard, key.0),
            origin: slot.origin(&self.entrances),
            slot,
        })
    }

    /// Undoes [`Sessions::enter`] where nothing is to be written, and notes when the session wants to be woken.
    #[inline]
    pub(crate) fn leave(&mut self, key: ConnectionKey) {
        let Some(slot) = self.slots.get_mut(key.0) else {
            return;
        };
        self.spares.take_back(&mut slot.outbox);
        if let Some(time) = slot.session.wake_at() {
            self.wakes.note(&mut slot.wake, time, key.0);
        }
    }

    /// The number of a connection's session.
    pub(crate) fn number(&self, key: ConnectionKey) -> Option<u64> {
        Some(self.slots.get(key.0)?.number(self.shard, key.0))
    }

    /// By number: None when that session is gone, whoever has its key now.
    pub(crate) fn by_number(&self, number: u64) -> Option<ConnectionKey> {
        let key = key_of(number);
        let slot = self.slots.get(key)?;
        (slot.number(self.shard, key) == number).then_some(ConnectionKey(key))
    }

    /// By the name that listings have for it.
    pub(crate) fn by_name(&self, name: &str) -> Option<ConnectionKey> {
        let mut all = self.slots.iter();
        let (key, _) = all.find(|(_, slot)| slot.origin(&self.entrances).name() == *name)?;
        Some(ConnectionKey(key))
    }

    /// The name that listings have for a connection; empty: it is gone.
    pub(crate) fn name(&self, key: ConnectionKey) -> String {
        let slot = self.slots.get(key.0);
        slot.map_or_else(String::new, |slot| slot.origin(&self.entrances).name())
    }

    /// Where a connection comes from.
    pub(crate) fn address(&self, key: ConnectionKey) -> IpAddr {
        let slot = self.slots.get(key.0);
        let peer = slot.map(|slot| slot.origin(&self.entrances).peer().ip());
        peer.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ip| ip.to_canonical())
    }

    pub(crate) fn remove(&mut self, key: ConnectionKey) {
        if let Some(mut slot) = self.slots.take(key.0) {
            self.spares.take_back(&mut slot.outbox);
            self.entrances.leave(slot.listener_origin, slot.peer);
        }
    }

    /// The first connection whose key is not below `from`, and its key.
    pub(crate) fn next_facts(
        &self,
        from: usize,
        node: NodeId,
        services: &ServiceStates,
    ) -> Option<(usize, ConnectionFacts)> {
        let (key, slot) = self.slots.first_from(from)?;
        let origin = slot.origin(&self.entrances);
        let number = slot.number(self.shard, key);
        let mut facts = slot.facts(node, number, origin, services);
        let began = self.began.map_or(0, |began| began.0);
        facts.connected_ms = began + u64::from(slot.connected) * MOMENT;
        Some((key, facts))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The earliest wake-up that any session asked for; it may have moved to later since.
    pub(crate) fn wake_at(&self) -> Option<Time> {
        self.wakes.first()
    }

    /// True if a session is due for a tick.
    pub(crate) fn has_due(&mut self, now: Time) -> bool {
        self.wakes.set_time(now);
        self.wakes.first().is_some_and(|first| first <= now)
    }

    /// Sessions that are to be ticked now; each is noted again by the step that follows.
    pub(crate) fn due(&mut self, now: Time) -> Vec<ConnectionKey> {
        let mut due = Vec::new();
        while let Some((time, keys)) = self.wakes.take(now) {
            for key in keys {
                let slot = self.slots.get_mut(key as usize);
                // Another one may have the key now, or have asked to be woken earlier since.
                if let Some(slot) = slot.filter(|slot| slot.wake == time) {
                    slot.wake = NEVER;
                    due.push(ConnectionKey(key as usize));
                }
            }
        }
        due
    }

    /// Facts about the connections from `next` on.
    pub(crate) fn facts_from(
        &self,
        next: &mut usize,
        node: NodeId,
        services: &ServiceStates,
        limit: usize,
    ) -> (Vec<ConnectionFacts>, WalkProgress) {
        let mut part = Vec::new();
        let (mut looked_at, mut done) = (0, true);
        while let Some((key, facts)) = self.next_facts(*next, node, services) {
            *next = key + 1;
            looked_at += COST_OF_CLIENT * (1 + facts.channels.len());
            part.push(facts);
            if looked_at >= limit {
                done = false;
                break;
            }
        }
        (part, WalkProgress { looked_at, done })
    }

    pub(crate) fn iter_mut(
        &mut self,
    ) -> impl Iterator<Item = (ConnectionKey, &mut ConnectionSlot)> {
        let all = self.slots.iter_mut();
        all.map(|(key, slot)| (ConnectionKey(key), slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serials_start_again_without_that_of_internal_sessions() {
        let mut sessions = Sessions::new(0);
        assert_eq!(sessions.next_serial(), FIRST_SERIAL);
        sessions.serial = u32::MAX;
        let number = number(0, sessions.next_serial(), CONTROL_KEY);
        assert_eq!(InternalSession::from_number(number), None);
    }

    #[test]
    fn internal_sessions_are_known_by_their_numbers_and_clients_are_none() {
        for shard in [0, 3] {
            let services = (0..session::MAX_SERVICES).map(InternalSession::Service);
            let all = [
                InternalSession::Control,
                InternalSession::DeadLetters,
                InternalSession::InternalClient,
                InternalSession::Firehose,
            ];
            for session in all.into_iter().chain(services) {
                let number = session.number(shard);
                assert_eq!(InternalSession::from_number(number), Some(session));
            }
            let after_last = number(shard, 0, SERVICE_KEY - session::MAX_SERVICES as u64);
            for client in [
                after_last,
                number(shard, 1, SERVICE_KEY),
                number(shard, 1, CONTROL_KEY),
            ] {
                assert_eq!(InternalSession::from_number(client), None);
            }
        }
    }
}
