//! One other hub: what it is there for, and what goes to and fro. No word is lost or changes its place as long as the link lasts;
//! when it breaks, anything may be. So both number what they send, tell what they have, and go on from there.

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

/// Bytes of one word with messages, about.
const BATCH_BYTES: usize = 256 << 10;
/// Bytes of numbered messages that are on their way and not acknowledged; one may always be.
const WINDOW_BYTES: usize = 4 << 20;
/// Bytes of messages that are not numbered, after which the other side is told that they came.
const TELL_PLAIN: u64 = 256 << 10;
/// How long something may be unacknowledged on a link that is up, before it is asked about.
const PROBE: Duration = Duration::from_secs(1);

/// A session that waits for an answer, and its words for the message; tag 0: nobody waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waiter {
    pub session: u64,
    pub channel: u16,
    pub tag: u64,
}

#[derive(Debug)]
struct Unacknowledged {
    sent: ForwardedMessage,
    waiter: Waiter,
}

/// What this hub has to say to all others alike.
#[derive(Debug)]
pub(crate) struct RouteAnnouncements {
    pub routes: OwnRoutes,
    /// How much of the metadata log is applied here.
    pub applied: u64,
    /// What subscribers of this hub wait for; see [`PeerState::question`].
    pub question: u64,
    pub until: u64,
}

/// What came of something that the other hub said.
#[derive(Debug, PartialEq)]
pub(crate) enum PeerEvent {
    /// It has a message that a session waits for, or nobody will have it.
    Answered(Waiter),
    /// A message for subscribers here.
    Message(ForwardedMessage),
    /// It is there for something else than before.
    Route {
        key: InterestKey,
        was: InterestCounts,
        is: InterestCounts,
    },
    /// Messages for this hub were given up while it was out of reach.
    Missed,
}

#[derive(Debug)]
pub(crate) struct PeerRouter {
    pub address: RouterAddress,
    pub up: bool,
    /// It has been out of reach for so long that nobody waits for it.
    pub given_up: bool,
    down_since: Time,
    /// What it has is known, and what is sent follows that.
    synced: bool,
    owes_state: bool,
    /// Something did not fit; it was asked to send again.
    again: bool,
    asked_again: bool,
    probe_at: Option<Time>,
    resync_at: Option<Time>,

    /// Its routes, at which version of them, in which round of telling all of them.
    rows: HashMap<InterestKey, (InterestCounts, u32), foldhash::fast::FixedState>,
    known: u64,
    /// All that it had when it was met is known.
    pub introduced: bool,
    digest: u64,
    round: u32,
    sweeping: bool,

    /// This hub's routes over there.
    told: u64,
    acknowledged: u64,
    /// The newest question that it heard, and that it answered.
    asked: u64,
    answered: u64,
    /// How much of the metadata log it has applied.
    pub applied: u64,
    /// Its own question, and which of these was answered.
    question: (u64, u64),
    told_answer: u64,
    /// It did not answer for a long time: no subscriber waits for it.
    pub slow: bool,

    /// Number of the next message.
    next: u64,
    unacknowledged: VecDeque<Unacknowledged>,
    pub bytes: usize,
    /// Of these, the first ones that were sent.
    flying: usize,
    flying_bytes: usize,
    plain: VecDeque<ForwardedMessage>,
    /// Bytes of the same.
    plain_waiting: u64,
    plain_sent: u64,
    plain_acknowledged: u64,
    lost: u64,

    /// The other direction.
    taken: u64,
    their_plain: u64,
    told_plain: u64,
    their_lost: u64,
}

impl PeerRouter {
    pub fn new(address: RouterAddress) -> PeerRouter {
        PeerRouter {
            address,
            up: false,
            given_up: false,
            down_since: Time::ZERO,
            synced: false,
            owes_state: false,
            again: false,
            asked_again: false,
            probe_at: None,
            resync_at: None,
            rows: HashMap::default(),
            known: 0,
            introduced: false,
            digest: 0,
            round: 0,
            sweeping: false,
            told: 0,
            acknowledged: 0,
            asked: 0,
            answered: 0,
            applied: 0,
            question: (0, 0),
            told_answer: 0,
            slow: false,
            next: 1,
            unacknowledged: VecDeque::new(),
            bytes: 0,
            flying: 0,
            flying_bytes: 0,
            plain: VecDeque::new(),
            plain_waiting: 0,
            plain_sent: 0,
            plain_acknowledged: 0,
            lost: 0,
            taken: 0,
            their_plain: 0,
            told_plain: 0,
            their_lost: 0,
        }
    }

    /// The link is there (again).
    pub fn greet(&mut self, now: Time) {
        self.up = true;
        self.given_up = false;
        self.slow = false;
        self.ask(now);
    }

    fn ask(&mut self, now: Time) {
        self.synced = false;
        self.owes_state = true;
        self.probe_at = Some(now + PROBE);
    }

    /// The link is broken.
    pub fn part(&mut self, now: Time) {
        if self.up {
            self.up = false;
            self.down_since = now;
            self.probe_at = None;
            self.plain.clear();
            self.plain_waiting = 0;
        }
    }

    /// It knows this hub's routes up to this version, and has answered this question.
    pub fn knows(&self, version: u64, question: u64) -> bool {
        self.acknowledged >= version && self.answered >= question
    }

    /// More of the metadata log is applied here. Whether that answers what it asked.
    pub fn applied_here(&mut self, applied: u64) -> bool {
        let (question, until) = self.question;
        let answers = question > self.told_answer && until <= applied;
        self.owes_state |= answers;
        answers
    }

    /// Bytes of messages that are not numbered and of which it has not said that they came.
    pub fn plain_flying(&self) -> u64 {
        self.plain_sent - self.plain_acknowledged
    }

    pub fn push(&mut self, sent: ForwardedMessage, waiter: Waiter) {
        self.bytes += sent.size();
        self.next += 1;
        let unacknowledged = Unacknowledged { sent, waiter };
        self.unacknowledged.push_back(unacknowledged);
    }

    pub fn push_plain(&mut self, sent: ForwardedMessage) {
        let size = sent.size() as u64;
        self.plain_sent += size;
        self.plain_waiting += size;
        self.plain.push_back(sent);
    }

    /// A numbered message that it will not get.
    pub fn lose(&mut self) {
        self.lost += 1;
    }

    /// Nobody waits for it any more: `answered` hears who did.
    pub fn give_up(&mut self, mut answered: impl FnMut(Waiter)) -> usize {
        self.given_up = true;
        let count = self.unacknowledged.len();
        self.lost += count as u64;
        let all = self.unacknowledged.drain(..);
        all.for_each(|u| answered(u.waiter));
        self.bytes = 0;
        self.flying = 0;
        self.flying_bytes = 0;
        count
    }

    /// Its routes, for who forgets it.
    pub fn into_routes(self) -> impl Iterator<Item = (InterestKey, InterestCounts)> {
        self.rows.into_iter().map(|(key, (wants, _))| (key, wants))
    }

    /// Number of the oldest message that is still to be acknowledged, or of the next one.
    fn first(&self) -> u64 {
        self.next - self.unacknowledged.len() as u64
    }

    pub fn give_up_at(&self, patience: Duration) -> Option<Time> {
        (!self.up && !self.given_up).then(|| self.down_since + patience)
    }

    pub fn wake_at(&self, patience: Duration) -> Option<Time> {
        let probe = self.probe_at.filter(|_| self.up);
        let resync = self.resync_at.filter(|_| self.up);
        let all = [probe, resync, self.give_up_at(patience)];
        all.into_iter().flatten().min()
    }

    /// Asks about what has not been acknowledged for a while.
    pub fn tick(&mut self, now: Time) {
        if !self.up {
            return;
        }
        if self.resync_at.is_some_and(|at| at <= now) {
            self.resync_at = None;
            self.known = 0;
            self.again = true;
            self.owes_state = true;
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.asked_again = false;
            self.ask(now);
        }
    }

    /// The next word for it. None: there is nothing to say, or nobody to say it to.
    pub fn say(&mut self, news: &RouteAnnouncements, now: Time) -> Option<PeerMessage> {
        if !self.up {
            return None;
        }
        if std::mem::take(&mut self.owes_state) | (self.asked < news.question) {
            return Some(self.state(news));
        }
        if !self.synced {
            return None;
        }
        if self.told == self.acknowledged
            && let Some(changes) = news.routes.since(self.told)
        {
            self.told = changes.to;
            self.probe_at.get_or_insert(now + PROBE);
            return Some(PeerMessage::Changes(changes));
        }
        self.messages(now)
    }

    fn state(&mut self, news: &RouteAnnouncements) -> PeerMessage {
        self.told_plain = self.their_plain;
        self.asked = news.question;
        let (question, until) = self.question;
        if until <= news.applied {
            self.told_answer = question;
        }
        PeerMessage::State(PeerState {
            ask: !self.synced,
            again: std::mem::take(&mut self.again),
            newest: news.routes.version(),
            routes: self.known,
            messages: self.taken,
            plain: self.their_plain,
            first: self.first(),
            lost: self.lost,
            question: news.question,
            until: news.until,
            answered: self.told_answer,
            applied: news.applied,
        })
    }

    fn messages(&mut self, now: Time) -> Option<PeerMessage> {
        let first = self.first() + self.flying as u64;
        let mut list = Vec::new();
        let mut bytes = 0;
        while bytes < BATCH_BYTES
            && (self.flying_bytes < WINDOW_BYTES || self.flying == 0)
            && let Some(next) = self.unacknowledged.get(self.flying)
        {
            let size = next.sent.size();
            bytes += size;
            self.flying += 1;
            self.flying_bytes += size;
            list.push(next.sent.clone());
        }
        while bytes < BATCH_BYTES
            && let Some(next) = self.plain.pop_front()
        {
            let size = next.size();
            bytes += size;
            self.plain_waiting -= size as u64;
            list.push(next);
        }
        if list.is_empty() {
            return None;
        }
        if self.flying > 0 {
            self.probe_at.get_or_insert(now + PROBE);
        }
        let plain = self.plain_sent - self.plain_waiting;
        Some(PeerMessage::Messages(ForwardedMessages {
            first,
            plain,
            list,
        }))
    }

    /// What it says; `events` get what comes of it.
    pub fn hear(
        &mut self,
        peer_message: PeerMessage,
        news: &RouteAnnouncements,
        now: Time,
        events: &mut Vec<PeerEvent>,
    ) {
        match peer_message {
            PeerMessage::State(state) => self.hear_state(state, news, now, events),
            PeerMessage::Changes(changes) => self.hear_changes(changes, now, events),
            PeerMessage::Messages(messages) => self.hear_messages(messages, events),
        }
    }

    fn hear_state(
        &mut self,
        state: PeerState,
        news: &RouteAnnouncements,
        now: Time,
        events: &mut Vec<PeerEvent>,
    ) {
        self.owes_state |= state.ask;
        self.question = self.question.max((state.question, state.until));
        self.applied_here(news.applied);
        self.applied = self.applied.max(state.applied);
        self.introduced |= state.newest <= self.known;
        let rewind = state.again || !self.synced;
        let progress =
            self.acknowledge(state.messages, events) | (state.routes != self.acknowledged);
        let plain = match self.synced {
            true => state.plain,
            // What has not come by now does not come.
            false => self.plain_sent - self.plain_waiting,
        };
        self.plain_acknowledged = plain.clamp(self.plain_acknowledged, self.plain_sent);
        // A version that this hub never had is of no use.
        let known = match state.routes {
            known if known > news.routes.version() => 0,
            known => known,
        };
        self.acknowledged = known;
        if rewind {
            self.told = known;
            self.flying = 0;
            self.flying_bytes = 0;
            self.synced = true;
        }
        self.slow &= !progress && !rewind && state.answered <= self.answered;
        self.answered = self.answered.max(state.answered);
        // It has none of those that were given up: it must hear that they will not come.
        self.owes_state |= state.messages.saturating_add(1) < self.first();
        self.taken = self.taken.max(state.first.saturating_sub(1));
        if state.lost > self.their_lost {
            self.their_lost = state.lost;
            events.push(PeerEvent::Missed);
        }
        let open = self.flying > 0 || self.told != self.acknowledged;
        self.probe_at = match (open, progress || rewind) {
            (false, _) => None,
            (true, true) => Some(now + PROBE),
            (true, false) => self.probe_at.or(Some(now + PROBE)),
        };
    }

    /// It has all messages up to this one. True: that is news.
    fn acknowledge(&mut self, messages: u64, events: &mut Vec<PeerEvent>) -> bool {
        let mut news = false;
        while self.first() <= messages
            && let Some(done) = self.unacknowledged.pop_front()
        {
            let size = done.sent.size();
            self.bytes -= size;
            if self.flying > 0 {
                self.flying -= 1;
                self.flying_bytes -= size;
            }
            news = true;
            events.push(PeerEvent::Answered(done.waiter));
        }
        news
    }

    fn does_not_fit(&mut self) {
        if !self.asked_again {
            self.asked_again = true;
            self.again = true;
            self.owes_state = true;
        }
    }

    fn hear_changes(&mut self, changes: RouteChanges, now: Time, events: &mut Vec<PeerEvent>) {
        if changes.from == 0 {
            self.sweeping = !self.rows.is_empty();
            self.round = self.round.wrapping_add(1);
        } else if changes.from != self.known {
            return self.does_not_fit();
        }
        self.asked_again = false;
        self.owes_state = true;
        self.known = changes.to;
        for (key, is) in changes.list {
            self.set(key, is, events);
        }
        let Some(digest) = changes.digest else {
            return;
        };
        self.introduced = true;
        if std::mem::take(&mut self.sweeping) {
            let round = self.round;
            let old = self.rows.iter().filter(|(_, (_, r))| *r != round);
            let old: Vec<InterestKey> = old.map(|(key, _)| key.clone()).collect();
            for key in old {
                self.set(key, InterestCounts::default(), events);
            }
        }
        if self.digest != digest {
            // Not at once: whatever is wrong may be so again.
            self.resync_at = Some(now + PROBE);
        }
    }

    fn set(&mut self, key: InterestKey, is: InterestCounts, events: &mut Vec<PeerEvent>) {
        let was = self.rows.get(&key).map(|(was, _)| *was).unwrap_or_default();
        self.digest ^= digest_of(&key, was) ^ digest_of(&key, is);
        match is.is_none() {
            true => drop(self.rows.remove(&key)),
            false => drop(self.rows.insert(key.clone(), (is, self.round))),
        }
        if was != is {
            events.push(PeerEvent::Route { key, was, is });
        }
    }

    fn hear_messages(&mut self, messages: ForwardedMessages, events: &mut Vec<PeerEvent>) {
        self.their_plain = messages.plain;
        self.owes_state |= self.their_plain.wrapping_sub(self.told_plain) >= TELL_PLAIN;
        let mut number = messages.first;
        for sent in messages.list {
            if !sent.numbered {
                events.push(PeerEvent::Message(sent));
                continue;
            }
            if number > self.taken.saturating_add(1) {
                self.does_not_fit();
            } else {
                self.owes_state = true;
                if number > self.taken {
                    self.taken = number;
                    self.asked_again = false;
                    events.push(PeerEvent::Message(sent));
                }
            }
            number = number.saturating_add(1);
        }
    }
}
