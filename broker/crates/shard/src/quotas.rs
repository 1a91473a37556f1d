//! Rate limits of users and virtual hosts on this shard: see `docs/decisions/0027-quotas.md`.
//!
//! A [`Quota`] has a token bucket for messages and one for bytes. It gets this shard's share of the limit: the limit divided by
//! the number of shards with active publishers. A message that overdraws a bucket is accepted. Its connection is then not read
//! until the deficit is refilled.

mod bucket;

use crate::FixedState;
use crate::limit_usage::LimitSubject;
use bucket::TokenBucket;
use env::Time;
use hashbrown::HashMap;
use metadata::{MAX_BYTE_RATE, MAX_MESSAGE_RATE, Tree, find_limit};
use slots::Slab;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// A shard has active publishers of a subject for this long after the last message, and while connections are throttled.
const ACTIVE_FOR: Duration = Duration::from_secs(2);

/// The shortest pause of a connection. A fast publisher would otherwise be woken for each message.
const MIN_PAUSE: Duration = Duration::from_millis(5);

/// The delay between sessions that are released together and the next ones, so that the former can take their tokens.
const NEXT_RELEASE: Duration = Duration::from_millis(1);

/// Input bytes per message that are assumed before any message was received: fewer than most have, so that the first piece of
/// input does not overdraw the bucket by many messages.
const INITIAL_INPUT_BYTES: u64 = 16;

/// The place of a quota among [`Quotas::quotas`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QuotaIndex(u32);

/// The quotas that apply to a session: of its user and of its virtual host.
pub(crate) type SessionQuotas = [Option<QuotaIndex>; 2];

/// The rates of a user or a virtual host in the whole cluster, per second. None: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Rates {
    messages: Option<u64>,
    bytes: Option<u64>,
}

impl Rates {
    fn of(tree: &Tree, subject: &LimitSubject) -> Option<Rates> {
        let rates = match subject {
            LimitSubject::User(name) => Rates::from_limits(&tree.user(name)?.limits),
            LimitSubject::Vhost(name) => Rates::from_limits(&tree.vhost(name)?.limits),
        };
        (rates != Rates::default()).then_some(rates)
    }

    fn from_limits(limits: &[(metadata::Name, i64)]) -> Rates {
        // The metadata has no rate of 0.
        let rate = |name| find_limit(limits, name).filter(|rate| *rate > 0);
        Rates {
            messages: rate(MAX_MESSAGE_RATE),
            bytes: rate(MAX_BYTE_RATE),
        }
    }
}

/// Returns true if the subject has rate limits in the tree.
pub(crate) fn has_rates(tree: &Tree, subject: &LimitSubject) -> bool {
    Rates::of(tree, subject).is_some()
}

/// A session whose connection is not read.
struct ThrottledSession {
    number: u64,
    since: Time,
}

/// The rate limits of one user or virtual host on this shard.
struct Quota {
    subject: LimitSubject,
    rates: Rates,
    messages: Option<TokenBucket>,
    bytes: Option<TokenBucket>,
    /// Shards with active publishers, this one included.
    shards: u32,
    /// The session that has waited longest is first.
    throttled: VecDeque<ThrottledSession>,
    /// Other shards were told that this one has active publishers.
    is_active: bool,
    active_until: Time,
    /// A low estimate of the input bytes per message: it falls at once and rises slowly.
    input_bytes: u64,
    /// The entry in [`Quotas::due`].
    due: Option<Time>,
}

impl Quota {
    fn buckets_mut(&mut self) -> impl Iterator<Item = &mut TokenBucket> {
        self.messages.iter_mut().chain(&mut self.bytes)
    }

    fn set_rates(&mut self, now: Time, rates: Rates) {
        let shards = self.shards;
        let set = |bucket: &mut Option<TokenBucket>, rate: Option<u64>| {
            *bucket = rate.map(|rate| TokenBucket::new(now, rate, shards));
        };
        if self.rates.messages != rates.messages {
            set(&mut self.messages, rates.messages);
        }
        if self.rates.bytes != rates.bytes {
            set(&mut self.bytes, rates.bytes);
        }
        self.rates = rates;
    }

    fn set_shards(&mut self, now: Time, shards: u32) {
        self.shards = shards;
        self.buckets_mut()
            .for_each(|bucket| bucket.set_shards(now, shards));
    }

    /// The time at which no bucket is negative, if nothing is taken before. None: now.
    fn ready_at(&mut self, now: Time) -> Option<Time> {
        self.buckets_mut()
            .filter_map(|bucket| bucket.ready_at(now))
            .max()
    }

    /// Messages that may be received before a bucket is negative, at least 1.
    fn available_messages(&mut self, now: Time) -> u64 {
        let input_bytes = self.input_bytes;
        let messages = self.messages.as_mut().map(|b| b.available(now));
        let bytes = self.bytes.as_mut().map(|b| b.available(now) / input_bytes);
        let least = messages.into_iter().chain(bytes).min();
        least.unwrap_or(u64::MAX).max(1)
    }
}

/// The quotas of users and virtual hosts with sessions on this shard, now or earlier.
#[derive(Default)]
pub(crate) struct Quotas {
    quotas: Slab<Quota>,
    by_subject: HashMap<LimitSubject, QuotaIndex, FixedState>,
    /// When quotas need [`Quotas::tick`].
    due: BTreeSet<(Time, QuotaIndex)>,
    /// Sessions whose connections are to be read again.
    released: Vec<u64>,
    /// Pauses that have ended, of all connections together.
    paused: Duration,
    /// Messages taken from buckets.
    charged: u64,
}

impl Quotas {
    /// Creates or changes the quota of a subject by its limits in the tree, or removes it. `shards` is the number of shards with
    /// active publishers, this one included.
    pub(crate) fn refresh(
        &mut self,
        now: Time,
        tree: &Tree,
        subject: &LimitSubject,
        shards: u32,
    ) -> Option<QuotaIndex> {
        let Some(rates) = Rates::of(tree, subject) else {
            self.remove(now, subject);
            return None;
        };
        if let Some(&index) = self.by_subject.get(subject) {
            if let Some(quota) = self.quotas.get_mut(index.0 as usize) {
                quota.set_rates(now, rates);
                // A higher limit ends pauses earlier.
                if !quota.throttled.is_empty() {
                    self.schedule(index, now);
                }
            }
            return Some(index);
        }
        debug_assert!(
            tree.feature_enabled(metadata::features::QUOTAS.name),
            "rates are set only while the flag is enabled"
        );
        let mut quota = Quota {
            subject: subject.clone(),
            rates: Rates::default(),
            messages: None,
            bytes: None,
            shards,
            throttled: VecDeque::new(),
            is_active: false,
            active_until: now,
            input_bytes: INITIAL_INPUT_BYTES,
            due: None,
        };
        quota.set_rates(now, rates);
        let index = QuotaIndex(self.quotas.insert(quota) as u32);
        self.by_subject.insert(subject.clone(), index);
        Some(index)
    }

    /// The subject has no rate limits any more: its connections are read again.
    pub(crate) fn remove(&mut self, now: Time, subject: &LimitSubject) {
        let index = self.by_subject.remove(subject);
        let Some((index, quota)) =
            index.and_then(|index| Some((index, self.quotas.remove(index.0 as usize)?)))
        else {
            return;
        };
        if let Some(at) = quota.due {
            self.due.remove(&(at, index));
        }
        for session in quota.throttled {
            self.paused += now.since(session.since);
            self.released.push(session.number);
        }
    }

    /// All subjects that have a quota, in order.
    pub(crate) fn subjects(&self) -> Vec<LimitSubject> {
        let mut all: Vec<_> = self.by_subject.keys().cloned().collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn index_of(&self, subject: &LimitSubject) -> Option<QuotaIndex> {
        self.by_subject.get(subject).copied()
    }

    /// The number of shards with active publishers has changed; this one counts as one of them.
    pub(crate) fn set_shards(&mut self, now: Time, subject: &LimitSubject, shards: u32) {
        debug_assert!(shards > 0, "this shard is one of them");
        if let Some(&index) = self.by_subject.get(subject)
            && let Some(quota) = self.quotas.get_mut(index.0 as usize)
        {
            quota.set_shards(now, shards);
            // A larger share ends pauses earlier.
            if !quota.throttled.is_empty() {
                self.schedule(index, now);
            }
        }
    }

    /// Returns true if this shard has active publishers of the subject.
    pub(crate) fn is_active(&self, subject: &LimitSubject) -> bool {
        let index = self.by_subject.get(subject);
        let quota = index.and_then(|index| self.quotas.get(index.0 as usize));
        quota.is_some_and(|quota| quota.is_active)
    }

    /// Takes received messages from the buckets of a session. Returns the subjects that other shards must be told about.
    pub(crate) fn charge(
        &mut self,
        now: Time,
        session: SessionQuotas,
        (messages, bytes): (u64, u64),
    ) -> [Option<LimitSubject>; 2] {
        self.charged += messages;
        session.map(|index| {
            let index = index?;
            let quota = self.quotas.get_mut(index.0 as usize)?;
            if let Some(bucket) = &mut quota.messages {
                bucket.take(now, messages);
            }
            if let Some(bucket) = &mut quota.bytes {
                bucket.take(now, bytes);
            }
            quota.active_until = now + ACTIVE_FOR;
            if std::mem::replace(&mut quota.is_active, true) {
                return None;
            }
            let subject = quota.subject.clone();
            self.schedule(index, now + ACTIVE_FOR);
            Some(subject)
        })
    }

    /// Bytes of input that the session may handle before the buckets are checked again. None: a bucket is negative.
    pub(crate) fn readable_bytes(&mut self, now: Time, session: SessionQuotas) -> Option<usize> {
        let mut least = u64::MAX;
        for index in session.into_iter().flatten() {
            let Some(quota) = self.quotas.get_mut(index.0 as usize) else {
                continue;
            };
            if quota.ready_at(now).is_some() {
                return None;
            }
            let input_bytes = quota.input_bytes;
            least = least.min(quota.available_messages(now).saturating_mul(input_bytes));
        }
        Some(usize::try_from(least).unwrap_or(usize::MAX))
    }

    /// Messages taken from buckets since the shard started.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// A session has received so many messages in so many bytes of input.
    pub(crate) fn note_input(&mut self, session: SessionQuotas, messages: u64, bytes: usize) {
        debug_assert!(messages > 0);
        for index in session.into_iter().flatten() {
            if let Some(quota) = self.quotas.get_mut(index.0 as usize) {
                let each = (bytes as u64 / messages).max(1);
                let average = (3 * quota.input_bytes).saturating_add(each).div_ceil(4);
                quota.input_bytes = each.min(average);
            }
        }
    }

    /// The connection of a session with a negative bucket is not read until [`Quotas::take_released`] has the session.
    pub(crate) fn throttle(&mut self, now: Time, session: SessionQuotas, number: u64) {
        let all = session.into_iter().flatten();
        let negative = all.filter_map(|index| {
            let quota = self.quotas.get_mut(index.0 as usize)?;
            Some((quota.ready_at(now)?, index))
        });
        let Some((ready_at, index)) = negative.max() else {
            self.released.push(number);
            return;
        };
        if let Some(quota) = self.quotas.get_mut(index.0 as usize) {
            quota
                .throttled
                .push_back(ThrottledSession { number, since: now });
        }
        self.schedule(index, ready_at.max(now + MIN_PAUSE));
    }

    /// The connection of a throttled session is gone.
    pub(crate) fn forget_throttled(&mut self, now: Time, session: SessionQuotas, number: u64) {
        for index in session.into_iter().flatten() {
            let Some(quota) = self.quotas.get_mut(index.0 as usize) else {
                continue;
            };
            let mut throttled = quota.throttled.iter();
            if let Some(at) = throttled.position(|session| session.number == number)
                && let Some(session) = quota.throttled.remove(at)
            {
                self.paused += now.since(session.since);
            }
        }
    }

    /// The quota needs [`Quotas::tick`] at this time, or earlier.
    fn schedule(&mut self, index: QuotaIndex, at: Time) {
        let Some(quota) = self.quotas.get_mut(index.0 as usize) else {
            return;
        };
        match quota.due {
            Some(due) if due <= at => return,
            Some(due) => drop(self.due.remove(&(due, index))),
            None => {}
        }
        quota.due = Some(at);
        self.due.insert((at, index));
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        match self.released.is_empty() {
            true => self.due.first().map(|(at, _)| *at),
            false => Some(Time::ZERO),
        }
    }

    /// Releases sessions whose buckets are refilled. Returns subjects whose publishers on this shard are not active any more.
    pub(crate) fn tick(&mut self, now: Time) -> Vec<LimitSubject> {
        let mut inactive = Vec::new();
        while let Some(&(at, index)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            let Some(quota) = self.quotas.get_mut(index.0 as usize) else {
                continue;
            };
            quota.due = None;
            let later = now + NEXT_RELEASE;
            if !quota.throttled.is_empty() {
                let next = match quota.ready_at(now) {
                    Some(at) => at,
                    None => {
                        // Further sessions follow in the next turn, if these leave any tokens.
                        let count = quota.available_messages(now);
                        let count = usize::try_from(count).unwrap_or(usize::MAX);
                        let count = count.min(quota.throttled.len());
                        for session in quota.throttled.drain(..count) {
                            self.paused += now.since(session.since);
                            self.released.push(session.number);
                        }
                        quota.active_until = now + ACTIVE_FOR;
                        match quota.throttled.is_empty() {
                            true => quota.active_until,
                            false => later,
                        }
                    }
                };
                self.schedule(index, next);
            } else if quota.active_until > now {
                let until = quota.active_until;
                self.schedule(index, until);
            } else if std::mem::replace(&mut quota.is_active, false) {
                inactive.push(quota.subject.clone());
            }
        }
        inactive
    }

    /// Sessions whose connections are to be read again.
    pub(crate) fn take_released(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.released)
    }

    /// The time for which connections were paused, of all connections together.
    pub(crate) fn paused(&self, now: Time) -> Duration {
        let throttled = self.quotas.iter().flat_map(|(_, quota)| &quota.throttled);
        self.paused + throttled.map(|s| now.since(s.since)).sum::<Duration>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metadata::{Change, Name};

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    fn vhost() -> LimitSubject {
        LimitSubject::Vhost("v".into())
    }

    fn set_limit(tree: &mut Tree, index: u64, limit: &str, value: Option<i64>) {
        let (vhost, limit): (Name, Name) = ("v".into(), limit.into());
        let change = Change::SetVhostLimit {
            vhost,
            limit,
            value,
        };
        tree.apply(index, &change).expect("the limit is set");
    }

    /// A tree whose virtual host has this message rate.
    fn tree(rate: i64) -> Tree {
        let mut tree = Tree::default();
        let put = Change::PutVhost {
            name: "v".into(),
            description: "".into(),
            tags: Vec::new(),
        };
        tree.apply(1, &put).expect("a virtual host");
        let name = metadata::features::QUOTAS.name.into();
        let enable = Change::EnableFeature { name };
        tree.apply(2, &enable).expect("the flag is enabled");
        set_limit(&mut tree, 3, MAX_MESSAGE_RATE, Some(rate));
        tree
    }

    fn quotas(rate: i64) -> (Quotas, SessionQuotas) {
        let mut quotas = Quotas::default();
        let index = quotas.refresh(at(0), &tree(rate), &vhost(), 1);
        assert!(index.is_some());
        (quotas, [None, index])
    }

    fn released(quotas: &mut Quotas, ms: u64) -> Vec<u64> {
        quotas.tick(at(ms));
        quotas.take_released()
    }

    #[test]
    fn sessions_are_released_in_their_order_as_many_as_there_are_tokens() {
        let (mut quotas, session) = quotas(10);
        quotas.charge(at(0), session, (15, 0));
        assert_eq!(quotas.readable_bytes(at(0), session), None);
        (1..=5).for_each(|number| quotas.throttle(at(0), session, number));
        assert_eq!(quotas.wake_at(), Some(at(500)));
        assert_eq!(released(&mut quotas, 499), [0; 0]);
        // With no token one session may overdraw the bucket again.
        assert_eq!(released(&mut quotas, 500), [1]);
        quotas.charge(at(500), session, (1, 0));
        assert_eq!(released(&mut quotas, 501), [0; 0]);
        assert_eq!(quotas.wake_at(), Some(at(600)));
        assert_eq!(released(&mut quotas, 800), [2, 3]);
        // They do not use their tokens.
        assert_eq!(released(&mut quotas, 801), [4, 5]);
        assert_eq!(quotas.paused(at(2000)), Duration::from_millis(3702));
    }

    #[test]
    fn pause_has_a_minimum_duration() {
        let (mut quotas, session) = quotas(1_000_000);
        quotas.charge(at(0), session, (1_000_001, 0));
        quotas.throttle(at(0), session, 1);
        assert_eq!(quotas.wake_at(), Some(at(0) + MIN_PAUSE));
    }

    #[test]
    fn cleared_and_changed_limits_end_pauses() {
        let (mut quotas, session) = quotas(1);
        quotas.charge(at(0), session, (1000, 0));
        quotas.throttle(at(0), session, 1);
        let mut tree = tree(1);
        set_limit(&mut tree, 4, MAX_MESSAGE_RATE, Some(1000));
        assert_eq!(quotas.refresh(at(10), &tree, &vhost(), 1), session[1]);
        assert_eq!(released(&mut quotas, 10), [1]);
        quotas.charge(at(10), session, (5000, 0));
        quotas.throttle(at(10), session, 2);
        set_limit(&mut tree, 5, MAX_MESSAGE_RATE, Some(-1));
        assert_eq!(quotas.refresh(at(20), &tree, &vhost(), 1), None);
        assert_eq!(quotas.wake_at(), Some(Time::ZERO));
        assert_eq!(released(&mut quotas, 20), [2]);
        assert_eq!(quotas.wake_at(), None);
        assert_eq!(quotas.paused(at(20)), Duration::from_millis(20));
    }

    #[test]
    fn larger_share_ends_pauses_earlier() {
        let (mut quotas, session) = quotas(10);
        quotas.set_shards(at(0), &vhost(), 10);
        quotas.charge(at(0), session, (11, 0));
        quotas.throttle(at(0), session, 1);
        assert_eq!(quotas.wake_at(), Some(at(2000)), "while it is active");
        quotas.set_shards(at(1000), &vhost(), 1);
        assert_eq!(released(&mut quotas, 1000), [0; 0]);
        assert_eq!(quotas.wake_at(), Some(at(1900)));
        assert_eq!(released(&mut quotas, 1900), [1]);
    }

    #[test]
    fn publishers_are_active_while_they_publish_or_wait() {
        let (mut quotas, session) = quotas(1);
        assert!(!quotas.is_active(&vhost()));
        let announced = quotas.charge(at(0), session, (1, 0));
        assert_eq!(announced, [None, Some(vhost())]);
        assert_eq!(quotas.charge(at(1000), session, (10, 0)), [None, None]);
        quotas.throttle(at(1000), session, 1);
        assert_eq!(quotas.tick(at(8000)), []);
        assert!(quotas.is_active(&vhost()));
        assert_eq!(quotas.tick(at(10_000)), []);
        assert_eq!(quotas.take_released(), [1]);
        assert_eq!(quotas.wake_at(), Some(at(12_000)));
        assert_eq!(quotas.tick(at(12_000)), [vhost()]);
        assert!(!quotas.is_active(&vhost()));
        assert_eq!(quotas.wake_at(), None);
    }

    #[test]
    fn session_that_is_gone_is_not_released() {
        let (mut quotas, session) = quotas(1);
        quotas.charge(at(0), session, (3, 0));
        quotas.throttle(at(0), session, 1);
        quotas.throttle(at(0), session, 2);
        quotas.forget_throttled(at(1500), session, 1);
        quotas.forget_throttled(at(1500), session, 7);
        assert_eq!(quotas.paused(at(1500)), Duration::from_millis(3000));
        assert_eq!(released(&mut quotas, 2000), [2]);
    }
}
