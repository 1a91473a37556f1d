//! One peer router: its routes, and the messages exchanged with it. The link neither loses nor
//! reorders messages while it is up, but may lose any when it breaks. So both sides number what
//! they send, report what they have received, and resume from there.

use super::own_routes::{OwnRoutes, digest_of};
use super::peer_message::{
    ForwardedMessage, ForwardedMessages, InterestCounts, InterestKey, PeerMessage, PeerState,
    RouteChanges,
};
use crate::RouterAddress;
use env::Time;
use hashbrown::HashMap;
use std::collections::VecDeque;
use std::time::Duration;

/// Approximate bytes of one [`PeerMessage::Messages`].
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of numbered messages in flight without acknowledgement. A single message may exceed it.
const WINDOW_BYTES: usize = 4 << 20;
/// Received bytes of unnumbered messages after which they are acknowledged.
const PLAIN_ACK_BYTES: u64 = 256 << 10;
/// How long something may stay unacknowledged on a link that is up before the peer is asked for its
/// state.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The session that waits for a confirm, and its tag for the message; nobody waits if the tag is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConfirmWaiter {
    pub session: u64,
    pub tag: u64,
}

#[derive(Debug)]
struct UnacknowledgedMessage {
    forwarded: ForwardedMessage,
    waiter: ConfirmWaiter,
}

/// State announced to all peers.
#[derive(Debug)]
pub(crate) struct RouteAnnouncements {
    pub routes: OwnRoutes,
    /// The index up to which the metadata log is applied here.
    pub applied: u64,
    /// The newest question of this router's subscribers; see [`PeerState::question`].
    pub question: u64,
    pub until: u64,
}

/// The effect of a message from the peer.
#[derive(Debug, PartialEq)]
pub(crate) enum PeerEvent {
    /// The peer has the message that a session waits for, or nobody will ever receive it.
    Answered(ConfirmWaiter),
    /// A message for local subscribers.
    Message(ForwardedMessage),
    /// The peer's interest in a key has changed.
    Route {
        key: InterestKey,
        previous: InterestCounts,
        current: InterestCounts,
    },
    /// The peer gave up messages for this router while it was unreachable.
    Missed,
}

#[derive(Debug)]
pub(crate) struct PeerRouter {
    pub address: RouterAddress,
    pub is_up: bool,
    /// The peer was unreachable for so long that nobody waits for it.
    pub is_given_up: bool,
    down_since: Time,
    /// The peer's state is known, and messages continue from it.
    is_synced: bool,
    owes_state: bool,
    /// A message did not continue the previous one; the peer must send again.
    needs_resend: bool,
    resend_requested: bool,
    probe_at: Option<Time>,
    resync_at: Option<Time>,

    /// The peer's routes, each with the round of the full list in which it was last seen.
    rows: HashMap<InterestKey, (InterestCounts, u32), foldhash::fast::FixedState>,
    known_version: u64,
    /// The peer's routes as of when the link came up are known.
    pub has_initial_routes: bool,
    digest: u64,
    round: u32,
    sweeping: bool,

    /// The version of this router's routes that was sent to the peer.
    sent_version: u64,
    acknowledged_version: u64,
    /// The newest question that was sent to the peer, and the newest that it answered.
    sent_question: u64,
    answered_question: u64,
    /// The index up to which the peer has applied the metadata log.
    pub applied: u64,
    /// The peer's newest question and the index it requires, and the newest question that was
    /// answered.
    question: (u64, u64),
    sent_answer: u64,
    /// The peer did not answer in time: subscribers do not wait for it.
    pub is_slow: bool,

    /// The number of the next message.
    next_number: u64,
    unacknowledged: VecDeque<UnacknowledgedMessage>,
    pub bytes: usize,
    /// How many of `unacknowledged`, from the front, have been sent, and their bytes.
    in_flight: usize,
    in_flight_bytes: usize,
    plain: VecDeque<ForwardedMessage>,
    /// Bytes in `plain`.
    plain_waiting: u64,
    plain_sent: u64,
    plain_acknowledged: u64,
    lost: u64,

    /// State of the receiving direction.
    received: u64,
    received_plain: u64,
    reported_plain: u64,
    reported_lost: u64,
}

impl PeerRouter {
    pub(crate) fn new(address: RouterAddress) -> PeerRouter {
        PeerRouter {
            address,
            is_up: false,
            is_given_up: false,
            down_since: Time::ZERO,
            is_synced: false,
            owes_state: false,
            needs_resend: false,
            resend_requested: false,
            probe_at: None,
            resync_at: None,
            rows: HashMap::default(),
            known_version: 0,
            has_initial_routes: false,
            digest: 0,
            round: 0,
            sweeping: false,
            sent_version: 0,
            acknowledged_version: 0,
            sent_question: 0,
            answered_question: 0,
            applied: 0,
            question: (0, 0),
            sent_answer: 0,
            is_slow: false,
            next_number: 1,
            unacknowledged: VecDeque::new(),
            bytes: 0,
            in_flight: 0,
            in_flight_bytes: 0,
            plain: VecDeque::new(),
            plain_waiting: 0,
            plain_sent: 0,
            plain_acknowledged: 0,
            lost: 0,
            received: 0,
            received_plain: 0,
            reported_plain: 0,
            reported_lost: 0,
        }
    }

    /// The link is up (again).
    pub(crate) fn link_up(&mut self, now: Time) {
        self.is_up = true;
        self.is_given_up = false;
        self.is_slow = false;
        self.request_state(now);
    }

    fn request_state(&mut self, now: Time) {
        self.is_synced = false;
        self.owes_state = true;
        self.probe_at = Some(now + PROBE_INTERVAL);
    }

    /// The link is down.
    pub(crate) fn link_down(&mut self, now: Time) {
        if self.is_up {
            self.is_up = false;
            self.down_since = now;
            self.probe_at = None;
            self.plain.clear();
            self.plain_waiting = 0;
        }
    }

    /// Returns true if the peer knows this router's routes up to `version` and has answered
    /// `question`.
    pub(crate) fn knows(&self, version: u64, question: u64) -> bool {
        self.acknowledged_version >= version && self.answered_question >= question
    }

    /// More of the metadata log is applied here. Returns true if that answers the peer's question.
    pub(crate) fn set_applied(&mut self, applied: u64) -> bool {
        let (question, until) = self.question;
        let answers = question > self.sent_answer && until <= applied;
        self.owes_state |= answers;
        answers
    }

    /// Bytes of unnumbered messages that the peer has not acknowledged.
    pub(crate) fn plain_in_flight(&self) -> u64 {
        self.plain_sent - self.plain_acknowledged
    }

    pub(crate) fn push(&mut self, forwarded: ForwardedMessage, waiter: ConfirmWaiter) {
        self.bytes += forwarded.size();
        self.next_number += 1;
        let unacknowledged = UnacknowledgedMessage { forwarded, waiter };
        self.unacknowledged.push_back(unacknowledged);
    }

    pub(crate) fn push_plain(&mut self, forwarded: ForwardedMessage) {
        let size = forwarded.size() as u64;
        self.plain_sent += size;
        self.plain_waiting += size;
        self.plain.push_back(forwarded);
    }

    /// Counts a numbered message that the peer will not get.
    pub(crate) fn count_lost(&mut self) {
        self.lost += 1;
    }

    /// Stops waiting for the peer. Calls `confirm` for each unacknowledged message and returns
    /// their number.
    pub(crate) fn give_up(&mut self, mut confirm: impl FnMut(ConfirmWaiter)) -> usize {
        self.is_given_up = true;
        let count = self.unacknowledged.len();
        self.lost += count as u64;
        let all = self.unacknowledged.drain(..);
        all.for_each(|u| confirm(u.waiter));
        self.bytes = 0;
        self.in_flight = 0;
        self.in_flight_bytes = 0;
        count
    }

    /// Returns the peer's routes, so that they can be withdrawn.
    pub(crate) fn into_routes(self) -> impl Iterator<Item = (InterestKey, InterestCounts)> {
        self.rows.into_iter().map(|(key, (wants, _))| (key, wants))
    }

    /// The number of the oldest unacknowledged message, or of the next one if all are acknowledged.
    fn first_unacknowledged(&self) -> u64 {
        self.next_number - self.unacknowledged.len() as u64
    }

    pub(crate) fn give_up_at(&self, patience: Duration) -> Option<Time> {
        (!self.is_up && !self.is_given_up).then(|| self.down_since + patience)
    }

    pub(crate) fn wake_at(&self, patience: Duration) -> Option<Time> {
        let probe = self.probe_at.filter(|_| self.is_up);
        let resync = self.resync_at.filter(|_| self.is_up);
        let all = [probe, resync, self.give_up_at(patience)];
        Time::earliest(all)
    }

    /// Asks for the peer's state if something was unacknowledged for too long.
    pub(crate) fn tick(&mut self, now: Time) {
        if !self.is_up {
            return;
        }
        if self.resync_at.is_some_and(|at| at <= now) {
            self.resync_at = None;
            self.known_version = 0;
            self.needs_resend = true;
            self.owes_state = true;
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.resend_requested = false;
            self.request_state(now);
        }
    }

    /// Returns the next message for the peer; `None` if nothing is pending or the link is down.
    pub(crate) fn next_message(
        &mut self,
        announcements: &RouteAnnouncements,
        now: Time,
    ) -> Option<PeerMessage> {
        if !self.is_up {
            return None;
        }
        if std::mem::take(&mut self.owes_state) | (self.sent_question < announcements.question) {
            return Some(self.state_message(announcements));
        }
        if !self.is_synced {
            return None;
        }
        if self.sent_version == self.acknowledged_version
            && let Some(changes) = announcements.routes.changes_since(self.sent_version)
        {
            self.sent_version = changes.to;
            self.probe_at.get_or_insert(now + PROBE_INTERVAL);
            return Some(PeerMessage::Changes(changes));
        }
        self.next_batch(now)
    }

    fn state_message(&mut self, announcements: &RouteAnnouncements) -> PeerMessage {
        self.reported_plain = self.received_plain;
        self.sent_question = announcements.question;
        let (question, until) = self.question;
        if until <= announcements.applied {
            self.sent_answer = question;
        }
        PeerMessage::State(PeerState {
            ask: !self.is_synced,
            again: std::mem::take(&mut self.needs_resend),
            newest: announcements.routes.version(),
            routes: self.known_version,
            messages: self.received,
            plain: self.received_plain,
            first: self.first_unacknowledged(),
            lost: self.lost,
            question: announcements.question,
            until: announcements.until,
            answered: self.sent_answer,
            applied: announcements.applied,
        })
    }

    fn next_batch(&mut self, now: Time) -> Option<PeerMessage> {
        debug_assert!(self.in_flight <= self.unacknowledged.len());
        let first = self.first_unacknowledged() + self.in_flight as u64;
        let mut list = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && (self.in_flight_bytes < WINDOW_BYTES || self.in_flight == 0)
            && let Some(next) = self.unacknowledged.get(self.in_flight)
        {
            let size = next.forwarded.size();
            bytes += size;
            self.in_flight += 1;
            self.in_flight_bytes += size;
            list.push(next.forwarded.clone());
        }
        while bytes < BATCH_BYTES
            && let Some(next) = self.plain.pop_front()
        {
            let size = next.size();
            bytes += size;
            debug_assert!(
                self.plain_waiting >= size as u64,
                "a waiting message of {size} bytes was not counted"
            );
            self.plain_waiting -= size as u64;
            list.push(next);
        }
        if list.is_empty() {
            return None;
        }
        if self.in_flight > 0 {
            self.probe_at.get_or_insert(now + PROBE_INTERVAL);
        }
        let plain = self.plain_sent - self.plain_waiting;
        Some(PeerMessage::Messages(ForwardedMessages {
            first,
            plain,
            list,
        }))
    }

    /// Handles a message of the peer and appends its effects to `events`.
    pub(crate) fn handle(
        &mut self,
        peer_message: PeerMessage,
        announcements: &RouteAnnouncements,
        now: Time,
        events: &mut Vec<PeerEvent>,
    ) {
        match peer_message {
            PeerMessage::State(state) => self.handle_state(state, announcements, now, events),
            PeerMessage::Changes(changes) => self.handle_changes(changes, now, events),
            PeerMessage::Messages(messages) => self.handle_messages(messages, events),
        }
    }

    fn handle_state(
        &mut self,
        state: PeerState,
        announcements: &RouteAnnouncements,
        now: Time,
        events: &mut Vec<PeerEvent>,
    ) {
        self.owes_state |= state.ask;
        self.question = self.question.max((state.question, state.until));
        self.set_applied(announcements.applied);
        self.applied = self.applied.max(state.applied);
        self.has_initial_routes |= state.newest <= self.known_version;
        let rewind = state.again || !self.is_synced;
        let progress =
            self.acknowledge(state.messages, events) | (state.routes != self.acknowledged_version);
        let plain = match self.is_synced {
            true => state.plain,
            // Unnumbered messages that have not arrived before the link broke are lost.
            false => self.plain_sent - self.plain_waiting,
        };
        self.plain_acknowledged = plain.clamp(self.plain_acknowledged, self.plain_sent);
        // The peer claims a version that this router never had: start over.
        let known = match state.routes {
            known if known > announcements.routes.version() => 0,
            known => known,
        };
        self.acknowledged_version = known;
        if rewind {
            self.sent_version = known;
            self.in_flight = 0;
            self.in_flight_bytes = 0;
            self.is_synced = true;
        }
        self.is_slow &= !progress && !rewind && state.answered <= self.answered_question;
        self.answered_question = self.answered_question.max(state.answered);
        // The peer lacks messages that were given up: tell it not to wait for them.
        self.owes_state |= state.messages.saturating_add(1) < self.first_unacknowledged();
        self.received = self.received.max(state.first.saturating_sub(1));
        if state.lost > self.reported_lost {
            self.reported_lost = state.lost;
            events.push(PeerEvent::Missed);
        }
        let open = self.in_flight > 0 || self.sent_version != self.acknowledged_version;
        self.probe_at = match (open, progress || rewind) {
            (false, _) => None,
            (true, true) => Some(now + PROBE_INTERVAL),
            (true, false) => self.probe_at.or(Some(now + PROBE_INTERVAL)),
        };
    }

    /// Removes all messages up to this number. Returns true if there were any.
    fn acknowledge(&mut self, messages: u64, events: &mut Vec<PeerEvent>) -> bool {
        let mut progress = false;
        while self.first_unacknowledged() <= messages
            && let Some(done) = self.unacknowledged.pop_front()
        {
            let size = done.forwarded.size();
            debug_assert!(
                self.bytes >= size,
                "an unacknowledged message of {size} bytes was not counted"
            );
            self.bytes -= size;
            if self.in_flight > 0 {
                self.in_flight -= 1;
                debug_assert!(
                    self.in_flight_bytes >= size,
                    "a message of {size} bytes in flight was not counted"
                );
                self.in_flight_bytes -= size;
            }
            progress = true;
            events.push(PeerEvent::Answered(done.waiter));
        }
        progress
    }

    fn request_resend(&mut self) {
        if !self.resend_requested {
            self.resend_requested = true;
            self.needs_resend = true;
            self.owes_state = true;
        }
    }

    fn handle_changes(&mut self, changes: RouteChanges, now: Time, events: &mut Vec<PeerEvent>) {
        if changes.from == 0 {
            self.sweeping = !self.rows.is_empty();
            self.round = self.round.wrapping_add(1);
        } else if changes.from != self.known_version {
            return self.request_resend();
        }
        self.resend_requested = false;
        self.owes_state = true;
        self.known_version = changes.to;
        for (key, current) in changes.list {
            self.set_interest(key, current, events);
        }
        let Some(digest) = changes.digest else {
            return;
        };
        self.has_initial_routes = true;
        if std::mem::take(&mut self.sweeping) {
            let round = self.round;
            let old = self.rows.iter().filter(|(_, (_, r))| *r != round);
            let old: Vec<InterestKey> = old.map(|(key, _)| key.clone()).collect();
            for key in old {
                self.set_interest(key, InterestCounts::default(), events);
            }
        }
        if self.digest != digest {
            // Wait before asking again: the cause of the mismatch may persist.
            self.resync_at = Some(now + PROBE_INTERVAL);
        }
    }

    fn set_interest(
        &mut self,
        key: InterestKey,
        current: InterestCounts,
        events: &mut Vec<PeerEvent>,
    ) {
        let previous = self
            .rows
            .get(&key)
            .map(|(previous, _)| *previous)
            .unwrap_or_default();
        self.digest ^= digest_of(&key, previous) ^ digest_of(&key, current);
        match current.is_none() {
            true => drop(self.rows.remove(&key)),
            false => drop(self.rows.insert(key.clone(), (current, self.round))),
        }
        if previous != current {
            events.push(PeerEvent::Route {
                key,
                previous,
                current,
            });
        }
    }

    fn handle_messages(&mut self, messages: ForwardedMessages, events: &mut Vec<PeerEvent>) {
        self.received_plain = messages.plain;
        self.owes_state |= self.received_plain.wrapping_sub(self.reported_plain) >= PLAIN_ACK_BYTES;
        let mut number = messages.first;
        for forwarded in messages.list {
            if !forwarded.numbered {
                events.push(PeerEvent::Message(forwarded));
                continue;
            }
            if number > self.received.saturating_add(1) {
                self.request_resend();
            } else {
                self.owes_state = true;
                if number > self.received {
                    self.received = number;
                    self.resend_requested = false;
                    events.push(PeerEvent::Message(forwarded));
                }
            }
            number = number.saturating_add(1);
        }
    }
}
