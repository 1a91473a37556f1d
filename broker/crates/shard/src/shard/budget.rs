//! One memory budget per node for bytes that clients make it hold: input of clients that have not logged in, messages that are not
//! complete, and output that nobody reads.
//!
//! A connection has an entry here only while it holds something. Steps note such connections; their entries are brought up to date at
//! the beginning of the next turn, when the sockets have taken what they could. While the budget is exceeded, connections are closed:
//! those without a login first, then those that hold most above their share.

use crate::ConnectionKey;
use crate::FixedState;
use crate::sessions::{ConnectionSlot, Sessions};
use crate::shard::Shard;
use env::Time;
use hashbrown::HashMap;
use session::{ControlEvent, SessionState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How often unfinished messages are looked at.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// A connection that holds less than this is closed last: that frees little, and the client may be about to finish.
const LEAST: usize = 4096;

/// The driver may stop reading a client with this much output or more.
const PAUSED: usize = 1 << 20;

/// What an entry costs beside its bytes: buffers, and the kernel's part of the socket.
const OVERHEAD: usize = 1024;

/// Bytes held by all shards of a node.
#[derive(Debug, Default)]
pub struct NodeMemory {
    all: AtomicUsize,
    unauthenticated: AtomicUsize,
}

impl NodeMemory {
    /// Bytes that count against the budget now.
    pub fn all(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// The part of clients that have not logged in.
    pub fn unauthenticated(&self) -> usize {
        self.unauthenticated.load(Ordering::Relaxed)
    }
}

/// The budget of a node and its parts, in bytes.
#[derive(Clone, Debug)]
pub struct MemoryBudget {
    /// `memory_budget.relative` of the memory limit, or `memory_budget.absolute`.
    pub bytes: usize,
    /// `memory_budget.unauthenticated` of that.
    pub unauthenticated: usize,
    /// `memory_budget.per_connection` of that.
    pub per_connection: usize,
    /// `memory_budget.per_address` of that.
    pub per_address: usize,
    /// `memory_budget.unfinished_timeout`. None: a client may leave a message unfinished for ever.
    pub unfinished_timeout: Option<Duration>,
    /// The same for all shards of the node.
    pub node: Arc<NodeMemory>,
}

impl MemoryBudget {
    /// A budget with the default shares.
    pub fn of(bytes: usize) -> MemoryBudget {
        MemoryBudget {
            bytes,
            unauthenticated: bytes / 4,
            per_connection: bytes / 8,
            per_address: bytes / 2,
            unfinished_timeout: Some(Duration::from_secs(30)),
            node: Arc::default(),
        }
    }
}

impl Default for MemoryBudget {
    /// No bound: nothing is known of the machine's memory.
    fn default() -> MemoryBudget {
        MemoryBudget::of(usize::MAX)
    }
}

/// Why a connection holds memory, for logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Unauthenticated,
    Unfinished,
    Unread,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Class::Unauthenticated => "unauthenticated",
            Class::Unfinished => "unfinished",
            Class::Unread => "unread",
        }
    }
}

/// The bytes that one connection holds.
#[derive(Clone, Copy, Debug)]
struct Charge {
    class: Class,
    total: usize,
    /// Of a frame that is not complete: the driver keeps them.
    partial: usize,
    /// Of TLS: the driver keeps them.
    sealed: usize,
    /// When the client last made progress: finished a message, or read.
    since: Time,
    /// When the client last finished a frame.
    framed: Time,
    /// When the client last sent something.
    heard: Time,
    /// When the node last did not read the client: it could not continue its message then.
    excused: Time,
    /// Changes with each progress.
    progress: u64,
}

/// A connection that may be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Candidate {
    key: ConnectionKey,
    address: IpAddr,
    class: Class,
    bytes: usize,
    /// Milliseconds since its last progress.
    age: u64,
}

impl Candidate {
    /// The connection with the greatest rank is closed first: the one that is furthest above its share, then the one that has held
    /// most for longest.
    fn rank(&self, share: usize) -> (usize, u128, ConnectionKey) {
        let held = self.bytes as u128 * u128::from(self.age + 1);
        (self.bytes.saturating_sub(share), held, self.key)
    }
}

/// The account of one shard.
pub(crate) struct Account {
    pub limits: MemoryBudget,
    shards: usize,
    charges: HashMap<usize, Charge, FixedState>,
    all: usize,
    unauthenticated: usize,
    /// Bytes of TLS handshakes: they have no session yet.
    handshakes: usize,
    /// Bytes that several connections hold together, counted more than once in `all`; and `all` when they were counted.
    shared: (usize, usize),
    /// What this shard has added to the node's counters.
    published: (usize, usize),
    /// Something was counted since.
    is_changed: bool,
    touched: Vec<ConnectionKey>,
    /// There are entries, or there is something to look at.
    is_active: bool,
    /// Bytes that were admitted since the last look ([`Account::admit_unread`]).
    admitted: usize,
    check_at: Time,
}

impl Account {
    pub(crate) fn new(limits: MemoryBudget, shards: u16) -> Account {
        Account {
            limits,
            shards: usize::from(shards).max(1),
            charges: HashMap::default(),
            all: 0,
            unauthenticated: 0,
            handshakes: 0,
            shared: (0, 0),
            published: (0, 0),
            is_changed: false,
            touched: Vec::new(),
            is_active: false,
            admitted: 0,
            check_at: Time::ZERO,
        }
    }

    /// Whether [`Shard::keep_budget`] has anything to do. Most of the time it has not.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// The connection's entry is to be brought up to date.
    #[cold]
    pub(crate) fn touch(&mut self, key: ConnectionKey, slot: &mut ConnectionSlot) {
        if !slot.marks.is_touched() {
            slot.marks.set_touched(true);
            self.touched.push(key);
            self.is_active = true;
        }
    }

    /// The same from within a step. A session that notes much in one step is looked at once.
    pub(crate) fn note(&mut self, key: ConnectionKey) {
        if self.touched.last() != Some(&key) {
            self.touched.push(key);
            self.is_active = true;
        }
    }

    /// See [`session::Broker::admit_unread`]. A client gets at most half of what is free and not set aside for others, so that any number
    /// of them together never use up the budget.
    pub(crate) fn admit_unread(&mut self, waiting: usize, bytes: usize) -> bool {
        let used = self.limits.node.all().saturating_add(self.admitted);
        let free = (self.limits.bytes / 4 * 3).saturating_sub(used);
        let is_admitted = waiting + bytes <= self.limits.per_connection.min(free / 2);
        if is_admitted {
            self.admitted += bytes;
            self.is_active = true;
        }
        is_admitted
    }

    /// The client has sent something, and the driver keeps so many bytes of it. `is_framed`: it has finished at least one frame.
    pub(crate) fn heard(&mut self, key: ConnectionKey, partial: usize, is_framed: bool, now: Time) {
        let charge = self.entry(key, now);
        charge.partial = partial;
        charge.heard = now;
        if is_framed {
            charge.framed = now;
        }
    }

    /// The driver keeps so many bytes for TLS.
    pub(crate) fn sealed(&mut self, key: ConnectionKey, sealed: usize, now: Time) {
        self.entry(key, now).sealed = sealed;
    }

    /// TLS handshakes hold so many bytes. How many of them are too many.
    pub(crate) fn handshakes(&mut self, bytes: usize) -> usize {
        self.handshakes = bytes;
        self.publish();
        self.excess().map_or(0, |(unauthenticated, all)| {
            unauthenticated.max(all).min(bytes)
        })
    }

    fn entry(&mut self, key: ConnectionKey, now: Time) -> &mut Charge {
        self.is_active = true;
        self.charges.entry(key.0).or_insert(Charge {
            class: Class::Unauthenticated,
            total: 0,
            partial: 0,
            sealed: 0,
            since: now,
            framed: now,
            heard: now,
            excused: Time::ZERO,
            progress: u64::MAX,
        })
    }

    /// The connection is gone.
    pub(crate) fn release(&mut self, key: ConnectionKey) {
        if let Some(charge) = self.charges.remove(&key.0) {
            self.count(charge, Charge { total: 0, ..charge });
        }
    }

    fn count(&mut self, before: Charge, after: Charge) {
        self.is_changed = true;
        self.is_active = true;
        self.all = self.all - before.total + after.total;
        if before.class == Class::Unauthenticated {
            self.unauthenticated -= before.total;
        }
        if after.class == Class::Unauthenticated {
            self.unauthenticated += after.total;
        }
    }

    /// Brings an entry up to date. False: there is nothing to be kept.
    fn charge(&mut self, key: ConnectionKey, slot: &ConnectionSlot, now: Time) -> bool {
        let held = slot.session.held();
        let unread = slot.outbox.len() + held.unread;
        let progress = slot.outbox.sent().wrapping_add(u64::from(held.finished));
        let before = *self.entry(key, now);
        let of_session = slot.session.unfinished();
        let unfinished = before.partial + before.sealed + of_session;
        let mut after = before;
        after.class = match (held.is_authenticated, unfinished >= unread) {
            (false, _) => Class::Unauthenticated,
            (true, true) => Class::Unfinished,
            (true, false) => Class::Unread,
        };
        after.total = match unfinished + unread {
            0 => 0,
            bytes => bytes + OVERHEAD,
        };
        if held.is_authenticated {
            if progress != before.progress {
                after.since = now;
            } else if of_session == 0 && unread == 0 {
                // Every message before the incomplete frame is finished.
                after.since = before.framed;
            }
        }
        after.progress = progress;
        self.count(before, after);
        if after.total == 0 {
            self.charges.remove(&key.0);
            return false;
        }
        self.charges.insert(key.0, after);
        true
    }

    /// Tells the node what changed.
    fn publish(&mut self) {
        self.is_changed = false;
        let (shared, of) = self.shared;
        // What is shared becomes less as connections take it.
        let shared = match self.all < of {
            true => (shared as u128 * self.all as u128 / of as u128) as usize,
            false => shared,
        };
        let now = (
            self.all - shared.min(self.all) + self.handshakes,
            self.unauthenticated + self.handshakes,
        );
        let node = &self.limits.node;
        let tell = |counter: &AtomicUsize, before: usize, now: usize| {
            if before != now {
                // It wraps around for a negative difference.
                counter.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            }
        };
        tell(&node.all, self.published.0, now.0);
        tell(&node.unauthenticated, self.published.1, now.1);
        self.published = now;
    }

    /// Bytes of clients without login, and of all, that this shard is to free. None: there is room. The shards that hold more than
    /// their part see to it; there is always one. More is freed than must be, so that not every turn has to look.
    fn excess(&self) -> Option<(usize, usize)> {
        let limits = &self.limits;
        let over = |held: usize, limit: usize, own: usize| {
            let is_over = held > limit && own >= limit / self.shards;
            is_over.then(|| {
                let most = own.saturating_sub(limit / self.shards / 8 * 7);
                (held - limit / 8 * 7).min(most)
            })
        };
        let node = &limits.node;
        let unauthenticated = over(
            node.unauthenticated(),
            limits.unauthenticated,
            self.published.1,
        );
        let all = over(node.all(), limits.bytes, self.published.0);
        match (unauthenticated, all) {
            (None, None) => None,
            (unauthenticated, all) => Some((unauthenticated.unwrap_or(0), all.unwrap_or(0))),
        }
    }

    /// Entries whose clients left a message unfinished for too long, in order.
    fn late(&mut self, sessions: &mut Sessions, now: Time) -> Vec<ConnectionKey> {
        let Some(timeout) = self.limits.unfinished_timeout else {
            return Vec::new();
        };
        let mut late = Vec::new();
        for (&key, charge) in &mut self.charges {
            let Some(slot) = sessions.get(ConnectionKey(key)) else {
                continue;
            };
            if slot.driver_state() == SessionState::Paused || slot.outbox.len() > PAUSED {
                charge.excused = now;
            }
            // Logins have their own timeouts.
            if charge.class == Class::Unauthenticated {
                continue;
            }
            let frame = (charge.partial > 0).then_some(charge.heard);
            let since = frame
                .into_iter()
                .chain(slot.session.unfinished_since())
                .min();
            if since.is_some_and(|since| since.max(charge.excused) + timeout <= now) {
                late.push(ConnectionKey(key));
            }
        }
        // The order of the map must not decide.
        late.sort_unstable();
        late
    }
}

/// Takes connections with the greatest ranks, one by one, until they hold so many bytes together: of the address that is furthest
/// above its share first.
fn choose(all: Vec<Candidate>, limits: &MemoryBudget, need: usize) -> Vec<Candidate> {
    struct Address {
        held: usize,
        /// By rank.
        connections: Vec<Candidate>,
    }
    let mut addresses: BTreeMap<IpAddr, Address> = BTreeMap::new();
    for candidate in all {
        let address = addresses.entry(candidate.address).or_insert(Address {
            held: 0,
            connections: Vec::new(),
        });
        address.held += candidate.bytes;
        address.connections.push(candidate);
    }
    let rank = |ip: IpAddr, address: &Address| {
        let first = address.connections.last()?;
        let excess = address.held.saturating_sub(limits.per_address);
        Some((excess, first.rank(limits.per_connection), ip))
    };
    let mut next = BTreeSet::new();
    for (ip, address) in &mut addresses {
        address
            .connections
            .sort_unstable_by_key(|c| c.rank(limits.per_connection));
        next.extend(rank(*ip, address));
    }
    let (mut chosen, mut freed) = (Vec::new(), 0);
    while freed < need
        && let Some((_, _, ip)) = next.pop_last()
        && let Some(address) = addresses.get_mut(&ip)
    {
        if let Some(candidate) = address.connections.pop() {
            freed += candidate.bytes;
            address.held -= candidate.bytes;
            chosen.push(candidate);
        }
        next.extend(rank(ip, address));
    }
    chosen
}

/// Those to be closed: first clients without login, then others, at last those that hold next to nothing.
fn victims(
    candidates: Vec<Candidate>,
    limits: &MemoryBudget,
    (unauthenticated, all): (usize, usize),
) -> Vec<Candidate> {
    let (large, small): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|c| c.bytes >= LEAST);
    let of = |from: &[Candidate], without_login: bool| -> Vec<Candidate> {
        let is_it = |c: &&Candidate| (c.class == Class::Unauthenticated) == without_login;
        from.iter().filter(is_it).copied().collect()
    };
    let (mut without_login, mut more) = (unauthenticated, all);
    let mut victims = Vec::new();
    for from in [&large, &small] {
        for is_first in [true, false] {
            let need = match is_first {
                true => without_login.max(more),
                false => more,
            };
            for victim in choose(of(from, is_first), limits, need) {
                more = more.saturating_sub(victim.bytes);
                if is_first {
                    without_login = without_login.saturating_sub(victim.bytes);
                }
                victims.push(victim);
            }
        }
    }
    victims
}

impl Shard {
    /// Brings the account up to date, and closes connections while the budget is exceeded.
    pub(crate) fn keep_budget(&mut self) {
        let now = self.state.ctx.now();
        self.state.limits.budget().admitted = 0;
        if !self.state.limits.budget().touched.is_empty() {
            self.charge_touched(now);
        }
        if self.state.limits.budget().is_changed {
            self.state.limits.budget().publish();
        }
        if !self.state.limits.budget().charges.is_empty()
            && now >= self.state.limits.budget().check_at
        {
            self.state.limits.budget().check_at = now + CHECK_EVERY;
            self.end_unfinished(now);
        }
        if self.state.limits.budget().excess().is_some() {
            self.shed(now);
        }
        let budget = self.state.limits.budget();
        budget.is_active =
            !budget.charges.is_empty() || !budget.touched.is_empty() || budget.is_changed;
    }

    /// The client has sent something, and the driver keeps so many bytes of it.
    #[cold]
    pub(crate) fn note_input(&mut self, key: ConnectionKey, partial: usize, is_framed: bool) {
        if let Some(slot) = self.sessions.get(key) {
            let now = self.state.ctx.now();
            self.state
                .limits
                .budget()
                .heard(key, partial, is_framed, now);
            slot.marks.set_charged(true);
            self.state.limits.budget().touch(key, slot);
        }
    }

    fn charge_touched(&mut self, now: Time) {
        let mut touched = std::mem::take(&mut self.state.limits.budget().touched);
        for key in touched.drain(..) {
            if let Some(slot) = self.sessions.get(key) {
                slot.marks.set_touched(false);
                let is_charged = self.state.limits.budget().charge(key, slot, now);
                slot.marks.set_charged(is_charged);
            }
        }
        self.state.limits.budget().touched = touched;
    }

    fn shed(&mut self, now: Time) {
        let candidates = self.candidates(now);
        self.state.limits.budget().publish();
        // What connections share may have been the difference.
        let Some(excess) = self.state.limits.budget().excess() else {
            return;
        };
        for victim in victims(candidates, &self.state.limits.budget().limits, excess) {
            let (class, bytes) = (victim.class, victim.bytes);
            let limits = &self.state.limits.budget().limits;
            let (setting, limit) = match (class, excess.0) {
                (Class::Unauthenticated, 1..) => {
                    ("memory_budget.unauthenticated", limits.unauthenticated)
                }
                _ => ("memory_budget.relative", limits.bytes),
            };
            tracing::warn!(
                event = "memory_budget.connection_closed",
                peer = self.sessions.name(victim.key),
                class = class.name(),
                bytes,
                limit,
                setting,
                "the node's memory budget is exceeded"
            );
            let text = format!(
                "the node's memory budget is exceeded ({setting}), and this connection holds {bytes} bytes of {} data",
                class.name()
            );
            self.end_for_memory(victim.key, text);
        }
    }

    /// All connections with an entry. What several of them hold together is divided among them.
    fn candidates(&mut self, now: Time) -> Vec<Candidate> {
        let mut keys: Vec<usize> = self.state.limits.budget().charges.keys().copied().collect();
        keys.sort_unstable();
        let mut holders: HashMap<usize, usize, FixedState> = HashMap::default();
        for &key in &keys {
            if let Some(slot) = self.sessions.get(ConnectionKey(key)) {
                slot.visit_shared(&mut |piece| {
                    *holders.entry(piece.as_ptr() as usize).or_default() += 1;
                });
            }
        }
        let (mut candidates, mut shared) = (Vec::new(), 0);
        for key in keys {
            let Some(charge) = self.state.limits.budget().charges.get(&key) else {
                continue;
            };
            let key = ConnectionKey(key);
            let Some(slot) = self.sessions.get(key) else {
                continue;
            };
            let mut others = 0;
            slot.visit_shared(&mut |piece| {
                let count = holders.get(&(piece.as_ptr() as usize)).copied();
                let count = count.unwrap_or(1).max(1);
                others += piece.len() - piece.len() / count;
            });
            let others = others.min(charge.total);
            shared += others;
            candidates.push(Candidate {
                key,
                address: self.sessions.address(key),
                class: charge.class,
                bytes: charge.total - others,
                age: now.since(charge.since).as_millis() as u64,
            });
        }
        self.state.limits.budget().shared = (shared, self.state.limits.budget().all);
        candidates
    }

    /// Ends connections whose client has begun a message and does not continue it.
    fn end_unfinished(&mut self, now: Time) {
        for key in self.state.limits.budget().late(&mut self.sessions, now) {
            let limits = &self.state.limits.budget().limits;
            let patience = limits.unfinished_timeout.unwrap_or_default();
            tracing::warn!(
                event = "memory_budget.unfinished_timeout",
                peer = self.sessions.name(key),
                milliseconds = patience.as_millis() as u64,
                setting = "memory_budget.unfinished_timeout",
                "a message was begun and not continued"
            );
            let text = format!(
                "a message was begun and not continued for {} ms (memory_budget.unfinished_timeout)",
                patience.as_millis()
            );
            self.end_for_memory(key, text);
        }
    }

    fn end_for_memory(&mut self, key: ConnectionKey, text: String) {
        let Some(slot) = self.sessions.get(key) else {
            return;
        };
        let can_hear = slot.outbox.is_empty();
        if !can_hear {
            slot.outbox.clear();
        }
        let session_event = ControlEvent::Shed { text, can_hear }.into();
        self.step(key, |s, view, out| {
            s.session_event(session_event, view, out)
        });
        let Some(slot) = self.sessions.get(key) else {
            return;
        };
        if !can_hear {
            slot.outbox.clear();
        }
        // The driver frees what it keeps as soon as it has flushed the connection.
        if slot.session_state == SessionState::Closing && slot.marks.is_charged() {
            slot.marks.set_charged(false);
            self.state.limits.budget().release(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn candidate(key: usize, address: u8, class: Class, bytes: usize, age: u64) -> Candidate {
        Candidate {
            key: ConnectionKey(key),
            address: IpAddr::from([10, 0, 0, address]),
            class,
            bytes,
            age,
        }
    }

    fn keys(victims: &[Candidate]) -> Vec<usize> {
        victims.iter().map(|victim| victim.key.0).collect()
    }

    #[test]
    fn the_address_furthest_above_its_share_is_first() {
        let limits = MemoryBudget::of(16 * MIB);
        let mut all = vec![candidate(1, 1, Class::Unread, 7 * MIB, 10_000)];
        // Each of these is small, and together they exceed the share of an address.
        all.extend((10..20).map(|key| candidate(key, 2, Class::Unfinished, MIB, key as u64)));
        let chosen = choose(all, &limits, 4 * MIB);
        // Two bring the address down to its share; then the large connection is furthest above its own.
        assert_eq!(keys(&chosen), [19, 18, 1]);
    }

    #[test]
    fn clients_without_login_are_first_and_those_with_next_to_nothing_last() {
        let limits = MemoryBudget::of(16 * MIB);
        let all = vec![
            candidate(1, 1, Class::Unfinished, 8 * MIB, 10_000),
            candidate(2, 1, Class::Unauthenticated, 64 << 10, 1),
            candidate(3, 1, Class::Unauthenticated, 64 << 10, 2),
            candidate(4, 1, Class::Unauthenticated, 100, 9_000),
            candidate(5, 1, Class::Unread, MIB, 1),
        ];
        let few = victims(all.clone(), &limits, (100 << 10, 0));
        assert_eq!(keys(&few), [3, 2], "the oldest first");
        let more = victims(all.clone(), &limits, (0, 5 * MIB));
        assert_eq!(keys(&more), [3, 2, 1]);
        let everything = victims(all, &limits, (0, usize::MAX));
        assert_eq!(keys(&everything), [3, 2, 1, 5, 4]);
    }

    #[test]
    fn the_shard_with_more_than_its_part_frees_and_others_do_not() {
        let limits = MemoryBudget::of(8 * MIB);
        let mut shards = [
            Account::new(limits.clone(), 2),
            Account::new(limits.clone(), 2),
        ];
        shards[0].handshakes = MIB / 2;
        shards[1].handshakes = 8 * MIB;
        shards.iter_mut().for_each(Account::publish);
        assert_eq!(limits.node.all(), 8 * MIB + MIB / 2);
        assert_eq!(shards[0].excess(), None);
        let (unauthenticated, all) = shards[1].excess().unwrap_or_default();
        assert!(all >= MIB && unauthenticated >= all);
        shards[1].handshakes = 0;
        shards[1].publish();
        assert_eq!((limits.node.all(), shards[1].excess()), (MIB / 2, None));
    }
}
