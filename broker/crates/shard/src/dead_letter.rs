//! Dead messages on their way through dead letter exchanges (Q12).
//!
//! The shard that owns a queue takes its dead messages, routes them in its own tree and publishes them to the queues
//! they go to, as a session of its own. At most once: when a queue on the other side takes no more, the source waits for
//! [`PATIENCE`] and then goes on without it. At least once: the source keeps a message until every queue it goes to has
//! confirmed it, and what has no way at the moment is tried again every [`RETRY_AFTER`].

use crate::clients::QueueClients;
use crate::core::{Core, FixedState};
use crate::sessions::{DEAD_LETTER_KEY, number};
use env::Time;
use env::planted::{self, Bug};
use hashbrown::HashMap;
use message::{DeadReason, Deaths, Dying, Message};
use metadata::{EffectiveSettings, Name, QueueId, QueueRecord, QueueType, RouteResult, Tree};
use queue::QueueOutput;
use queue::client::ClientEvent;
use queue::quorum::DeadRead;
use session::PublishTag;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Messages, and about how many bytes of them, that are taken from a queue at a time.
const BATCH: usize = 64;
const BATCH_BYTES: usize = 1 << 20;
/// Messages passed on in one turn of the shard; the rest waits for the next.
const TURN: usize = 1024;
/// Bytes of messages on their way to all queues behind dead letter exchanges; beyond it they count as full.
pub const MAX_BYTES: usize = 64 << 20;
/// How long messages wait, at most once, for a queue that takes no more.
const PATIENCE: Duration = Duration::from_secs(10);
/// Wait before a message without a way, or refused on it, is tried again (at least once).
const RETRY_AFTER: Duration = Duration::from_secs(2);

/// Where a queue's dead messages go.
#[derive(Clone, Debug, PartialEq)]
struct DeadLetterTarget {
    vhost: Name,
    queue: Name,
    kind: QueueType,
    exchange: Name,
    routing_key: Option<Name>,
}

/// A message that its queue keeps until all is confirmed.
#[derive(Debug, Default)]
struct PendingDeadLetter {
    tag: u64,
    waiting: SmallVec<[QueueId; 2]>,
    confirmed: SmallVec<[QueueId; 2]>,
    /// None: it was not announced to subscribers without a queue.
    announced: Option<Announcement>,
}

impl PendingDeadLetter {
    fn knows(&self, queue: QueueId) -> bool {
        self.waiting.contains(&queue) || self.confirmed.contains(&queue)
    }

    /// Returns true if a queue or a subscriber has it.
    fn reached(&self) -> bool {
        !self.confirmed.is_empty() || self.announced.is_some_and(|a| a.has_receivers)
    }

    /// Returns true if no answer is missing.
    fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.announced.is_none_or(|a| a.awaited == 0)
    }
}

/// A message that was announced to subscribers without a queue.
#[derive(Clone, Copy, Debug)]
struct Announcement {
    /// There are such subscribers, here or on other shards.
    has_receivers: bool,
    /// Other shards that have not confirmed it.
    awaited: usize,
}

#[derive(Debug, Default)]
struct DeadLetterSource {
    way: Option<DeadLetterTarget>,
    /// Taken from the queue and not passed on yet.
    held: VecDeque<(DeadReason, Message)>,
    stalled_since: Option<Time>,
    pending: BTreeMap<u64, PendingDeadLetter>,
    again: BTreeSet<u64>,
    retry_at: Option<Time>,
    told_of_cycle: bool,
    told_of_no_way: bool,
}

/// What became of dead messages; the sum over a shard's life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeadLetterCounts {
    /// Passed on to one queue at least.
    pub routed: u64,
    /// Gone, at most once: no such exchange, no queue behind it, or only such that close a cycle.
    pub unroutable: u64,
    /// Copies that a full queue did not take in time.
    pub overflowed: u64,
    /// Confirmed by all queues they went to, at least once.
    pub confirmed: u64,
}

#[derive(Debug, Default)]
pub struct DeadLetters {
    sources: BTreeMap<QueueId, DeadLetterSource>,
    /// Sources to be looked at.
    ready: BTreeSet<QueueId>,
    stalled: BTreeSet<QueueId>,
    due: BTreeSet<(Time, QueueId)>,
    tags: HashMap<u64, (QueueId, u64), FixedState>,
    next_tag: u64,
    budget: usize,
    pub counts: DeadLetterCounts,
}

impl DeadLetters {
    /// Where a queue's dead messages go from now on.
    pub fn set_way(&mut self, record: &QueueRecord, settings: &EffectiveSettings) {
        let Some(exchange) = &settings.dead_letter_exchange else {
            if let Some(source) = self.sources.get_mut(&record.id) {
                source.way = None;
                self.ready.insert(record.id);
            }
            return;
        };
        let way = DeadLetterTarget {
            vhost: record.vhost.clone(),
            queue: record.name.clone(),
            kind: record.kind,
            exchange: exchange.clone(),
            routing_key: settings.dead_letter_routing_key.clone(),
        };
        let source = self.sources.entry(record.id).or_default();
        if source.way.as_ref() == Some(&way) {
            return;
        }
        source.way = Some(way);
        source.told_of_cycle = false;
        source.told_of_no_way = false;
        self.ready.insert(record.id);
    }

    /// The queue is gone, or another node's.
    pub fn forget(&mut self, queue: QueueId) {
        let Some(source) = self.sources.remove(&queue) else {
            return;
        };
        for pending in source.pending.values() {
            self.tags.remove(&pending.tag);
        }
        if let Some(at) = source.retry_at {
            self.due.remove(&(at, queue));
        }
        self.ready.remove(&queue);
        self.stalled.remove(&queue);
    }

    /// The queue has dead messages.
    pub fn note(&mut self, queue: QueueId) {
        if !self.stalled.contains(&queue) {
            self.ready.insert(queue);
        }
    }

    /// A queue behind an exchange has taken something: who waits may go on.
    pub fn relieve(&mut self) {
        self.ready.append(&mut self.stalled);
    }

    pub fn begin_turn(&mut self) {
        self.budget = TURN;
    }

    pub fn wake_at(&self, now: Time) -> Option<Time> {
        if !self.ready.is_empty() {
            return Some(now);
        }
        let since = |q| self.sources.get(q).and_then(|s| s.stalled_since);
        let stalled = self.stalled.iter().filter_map(since).min();
        let patience = stalled.map(|since| since + PATIENCE);
        let retry = self.due.first().map(|(at, _)| *at);
        [patience, retry].into_iter().flatten().min()
    }

    /// Sources whose time has come.
    pub fn tick(&mut self, now: Time) {
        while let Some((at, queue)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(at, queue));
            if let Some(source) = self.sources.get_mut(&queue) {
                source.retry_at = None;
            }
            self.ready.insert(queue);
        }
        if self.stalled.is_empty() {
            return;
        }
        let sources = &self.sources;
        let late = |q: &QueueId| {
            let since = sources.get(q).and_then(|s| s.stalled_since);
            since.is_none_or(|since| since + PATIENCE <= now)
        };
        let late: Vec<QueueId> = self.stalled.iter().copied().filter(late).collect();
        for queue in late {
            self.stalled.remove(&queue);
            self.ready.insert(queue);
        }
    }

    fn stall(&mut self, queue: QueueId, now: Time) {
        if let Some(source) = self.sources.get_mut(&queue) {
            source.stalled_since.get_or_insert(now);
            self.stalled.insert(queue);
        }
    }

    fn try_again(&mut self, queue: QueueId, id: u64, now: Time) {
        let Some(source) = self.sources.get_mut(&queue) else {
            return;
        };
        source.again.insert(id);
        if source.retry_at.is_none() {
            let at = now + RETRY_AFTER;
            source.retry_at = Some(at);
            self.due.insert((at, queue));
        }
    }

    fn pending(&mut self, queue: QueueId, id: u64) -> Option<&mut PendingDeadLetter> {
        self.sources.get_mut(&queue)?.pending.get_mut(&id)
    }

    /// Records the announcement of a message. Returns true if it was refused (`None`).
    fn record_announcement(
        &mut self,
        queue: QueueId,
        id: u64,
        announced: Option<Announcement>,
    ) -> bool {
        if let Some(pending) = self.pending(queue, id) {
            pending.announced = announced;
        }
        announced.is_none()
    }

    fn drop_pending(&mut self, queue: QueueId, id: u64) {
        let Some(source) = self.sources.get_mut(&queue) else {
            return;
        };
        source.again.remove(&id);
        if let Some(pending) = source.pending.remove(&id) {
            self.tags.remove(&pending.tag);
        }
    }
}

/// A dead message with its history, and the queues it goes to.
struct RoutedDeadLetter {
    message: Message,
    routes: Vec<QueueId>,
    /// Queues left out because they would close a cycle.
    cycles: usize,
}

/// None when the message cannot be built, which a container that could be read can always be.
fn route(
    tree: &Tree,
    way: &DeadLetterTarget,
    reason: DeadReason,
    message: &Message,
    at: env::WallTime,
) -> Option<RoutedDeadLetter> {
    let mut deaths = message.deaths().unwrap_or_default();
    deaths.record(&Dying {
        queue: &way.queue,
        reason,
        exchange: message.exchange(),
        routing_keys: message.open_routing_keys(),
        ttl_ms: message.ttl_ms(),
        failed: way.kind.descriptor().rejection_counts_as_failure && reason == DeadReason::Rejected,
        at,
    });
    let key = way.routing_key.as_deref();
    let dead = message.dead_lettered(&way.exchange, key, &deaths).ok()?;
    let mut routes = Vec::new();
    let keys: SmallVec<[&str; 4]> = dead.routing_keys().collect();
    let envelope = conversion::MessageEnvelope {
        message: &dead,
        deaths: Some(&deaths),
    };
    let result = tree.route(&way.vhost, &way.exchange, &keys, &envelope, &mut routes);
    debug_assert!(result == RouteResult::Routed || routes.is_empty());
    let all = routes.len();
    // A client that rejects may well mean a cycle.
    if reason != DeadReason::Rejected {
        routes.retain(|q| !closes_cycle(tree, &deaths, *q));
    }
    let cycles = all - routes.len();
    drop(keys);
    Some(RoutedDeadLetter {
        message: dead,
        routes,
        cycles,
    })
}

fn closes_cycle(tree: &Tree, deaths: &Deaths, queue: QueueId) -> bool {
    let record = tree.queue_by_id(queue);
    record.is_some_and(|record| deaths.is_cycle(&record.name))
}

impl QueueClients {
    /// Whether a queue behind a dead letter exchange should get no more for now.
    fn is_full(&self, session: u64, queue: QueueId) -> bool {
        self.in_flight_bytes(session) >= MAX_BYTES || self.link_is_full(session, queue)
    }
}

impl Core {
    fn dead_letter_session(&self) -> u64 {
        number(self.ctx.shard(), 0, DEAD_LETTER_KEY)
    }

    pub fn is_dead_letter_session(&self, number: u64) -> bool {
        number == self.dead_letter_session()
    }

    /// Passes on what queues have; true when anything happened.
    pub fn pass_on_dead(&mut self) -> bool {
        let mut worked = false;
        while let Some(queue) = self.local_queues.next_dying() {
            self.dead_letters.note(queue);
        }
        while self.dead_letters.budget > 0
            && let Some(queue) = self.dead_letters.ready.pop_first()
        {
            worked |= self.pass_on_from(queue);
        }
        worked
    }

    fn pass_on_from(&mut self, queue: QueueId) -> bool {
        let mut worked = self.pass_on_again(queue);
        let mut out = QueueOutput::default();
        if self.pass_on_held(queue) {
            self.local_queues
                .take_dead(queue, BATCH, BATCH_BYTES, &mut out);
            let taken = out.dead.len() + out.kept_dead.len();
            worked |= taken > 0;
            self.dead_letters.budget = self.dead_letters.budget.saturating_sub(taken);
        }
        for (id, reason, message) in out.kept_dead {
            // Of an earlier leadership, perhaps.
            self.dead_letters.drop_pending(queue, id);
            self.pass_on_surely(queue, id, reason, &message);
        }
        if let Some(source) = self.dead_letters.sources.get_mut(&queue) {
            source.held.extend(out.dead);
            self.pass_on_held(queue);
        }
        worked
    }

    /// At most once; false when it has to wait.
    fn pass_on_held(&mut self, queue: QueueId) -> bool {
        loop {
            let Some(source) = self.dead_letters.sources.get_mut(&queue) else {
                return true;
            };
            let Some((reason, message)) = source.held.pop_front() else {
                return true;
            };
            let Some(way) = source.way.clone() else {
                continue;
            };
            let late = source
                .stalled_since
                .is_some_and(|since| since + PATIENCE <= self.ctx.now());
            let Some(routed) = route(&self.tree, &way, reason, &message, self.ctx.wall()) else {
                continue;
            };
            let session = self.dead_letter_session();
            let full = |q: &QueueId| self.clients.is_full(session, *q);
            let blocked = routed.routes.iter().filter(|q| full(q)).count();
            if blocked > 0 && !late {
                if let Some(source) = self.dead_letters.sources.get_mut(&queue) {
                    source.held.push_front((reason, message));
                }
                self.dead_letters.stall(queue, self.ctx.now());
                return false;
            }
            self.pass_on_once(queue, &way, routed, blocked);
        }
    }

    fn pass_on_once(
        &mut self,
        queue: QueueId,
        way: &DeadLetterTarget,
        mut routed: RoutedDeadLetter,
        blocked: usize,
    ) {
        let session = self.dead_letter_session();
        let nobody = PublishTag::NO_CONFIRM;
        let published = (&*way.vhost, &routed.message);
        let announced = self.announce(session, nobody, published, &mut routed.routes);
        let reached = routed.routes.len() + announced.receivers;
        self.warn_of(queue, way, routed.cycles, reached > 0);
        let counts = &mut self.dead_letters.counts;
        counts.overflowed += blocked as u64;
        match reached {
            0 => counts.unroutable += 1,
            all if all > blocked => counts.routed += 1,
            _ => {}
        }
        if blocked == 0
            && let Some(source) = self.dead_letters.sources.get_mut(&queue)
        {
            source.stalled_since = None;
        }
        for target in routed.routes {
            if blocked == 0 || !self.clients.is_full(session, target) {
                self.publish(session, target, nobody, routed.message.clone());
            }
        }
    }

    /// Once per queue and way: messages that die here go nowhere, or round in a circle.
    fn warn_of(&mut self, queue: QueueId, way: &DeadLetterTarget, cycles: usize, reached: bool) {
        let Some(source) = self.dead_letters.sources.get_mut(&queue) else {
            return;
        };
        let (name, vhost, exchange) = (&way.queue, &way.vhost, &way.exchange);
        if cycles > 0 && !std::mem::replace(&mut source.told_of_cycle, true) {
            tracing::warn!(event = "dead_letter_cycle", queue = %name, %vhost, %exchange);
        }
        if !reached && cycles == 0 && !std::mem::replace(&mut source.told_of_no_way, true) {
            tracing::warn!(event = "dead_letter_unroutable", queue = %name, %vhost, %exchange);
        }
    }

    /// At least once: what could not be passed on before.
    fn pass_on_again(&mut self, queue: QueueId) -> bool {
        let Some(source) = self.dead_letters.sources.get_mut(&queue) else {
            return false;
        };
        if source.retry_at.is_some() {
            return false;
        }
        let again = std::mem::take(&mut source.again);
        let worked = !again.is_empty();
        for id in again {
            match self.local_queues.read_dead(queue, id) {
                DeadRead::Message(reason, message) => {
                    self.pass_on_surely(queue, id, reason, &message);
                }
                DeadRead::Gone => self.dead_letters.drop_pending(queue, id),
                DeadRead::Shortage => self.dead_letters.try_again(queue, id, self.ctx.now()),
            }
        }
        worked
    }

    fn pass_on_surely(&mut self, queue: QueueId, id: u64, reason: DeadReason, message: &Message) {
        let session = self.dead_letter_session();
        let dead = &mut self.dead_letters;
        let Some(source) = dead.sources.get_mut(&queue) else {
            return;
        };
        let way = source.way.clone();
        let pending = source.pending.entry(id).or_insert_with(|| {
            dead.next_tag += 1;
            dead.tags.insert(dead.next_tag, (queue, id));
            PendingDeadLetter {
                tag: dead.next_tag,
                ..PendingDeadLetter::default()
            }
        });
        let tag = PublishTag(pending.tag);
        let routed = way
            .as_ref()
            .and_then(|way| route(&self.tree, way, reason, message, self.ctx.wall()));
        let (Some(way), Some(mut routed)) = (way, routed) else {
            return self.dead_letters.try_again(queue, id, self.ctx.now());
        };
        let unrouted = routed.routes.is_empty();
        routed.routes.retain(|q| !pending.knows(*q));
        let all = routed.routes.len();
        routed.routes.retain(|q| !self.clients.is_full(session, *q));
        let room = routed.routes.len() == all;
        let refused = room && pending.announced.is_none() && {
            let published = (&*way.vhost, &routed.message);
            let (announced, picked) = self.announce_dead_letter(session, tag, published);
            routed.routes.extend(picked);
            self.dead_letters.record_announcement(queue, id, announced)
        };
        let Some(pending) = self.dead_letters.pending(queue, id) else {
            return;
        };
        // Once to each queue, also to one of a session that shares and subscribes: it is known by its id what has confirmed.
        routed.routes.sort_unstable();
        routed.routes.dedup();
        routed.routes.retain(|q| !pending.knows(*q));
        pending.waiting.extend(routed.routes.iter().copied());
        let nowhere = unrouted && routed.routes.is_empty() && !pending.reached();
        let done = pending.is_done() && room && !nowhere && !refused;
        self.warn_of(queue, &way, routed.cycles, !nowhere);
        if done {
            return self.passed_on(queue, id);
        }
        if nowhere || !room || refused {
            self.dead_letters.try_again(queue, id, self.ctx.now());
        }
        let early = planted::is(Bug::DeadLetterLost) && !routed.routes.is_empty();
        for target in routed.routes {
            self.publish(session, target, tag, routed.message.clone());
        }
        if early {
            self.passed_on(queue, id);
        }
    }

    fn passed_on(&mut self, queue: QueueId, id: u64) {
        self.dead_letters.drop_pending(queue, id);
        self.dead_letters.counts.confirmed += 1;
        self.local_queues.passed_on(queue, id);
    }

    /// Announces a message to subscribers without a queue. Returns the announcement, `None` if it was refused, and the queues
    /// that must receive the message because of them.
    fn announce_dead_letter(
        &mut self,
        session: u64,
        tag: PublishTag,
        published: (&str, &Message),
    ) -> (Option<Announcement>, Vec<QueueId>) {
        let mut picked = Vec::new();
        let outcome = self.announce(session, tag, published, &mut picked);
        let announced = Announcement {
            has_receivers: outcome.receivers > 0,
            awaited: outcome.awaited,
        };
        ((!outcome.refused).then_some(announced), picked)
    }

    /// A queue behind a dead letter exchange tells what became of a message.
    pub fn dead_letter_told(&mut self, target: QueueId, peer_message: ClientEvent<PublishTag>) {
        let (tag, taken) = match peer_message {
            ClientEvent::Published(tag) => (tag.0, true),
            ClientEvent::NotPublished(tag, _) => (tag.0, false),
            ClientEvent::Answer { .. }
            | ClientEvent::Deliver { .. }
            | ClientEvent::Cancelled { .. } => return,
        };
        let Some(&(queue, id)) = self.dead_letters.tags.get(&tag) else {
            return;
        };
        let source = self.dead_letters.sources.get_mut(&queue);
        let Some((pending, again)) =
            source.and_then(|s| Some((s.pending.get_mut(&id)?, s.again.contains(&id))))
        else {
            return;
        };
        pending.waiting.retain(|q| *q != target);
        if !taken {
            return self.dead_letters.try_again(queue, id, self.ctx.now());
        }
        pending.confirmed.push(target);
        if pending.is_done() && !again {
            self.passed_on(queue, id);
        }
    }

    /// Another shard has a dead letter for its subscribers.
    pub fn dead_letter_confirmed(&mut self, tag: u64) {
        let Some(&(queue, id)) = self.dead_letters.tags.get(&tag) else {
            return;
        };
        let again = |s: &DeadLetterSource| s.again.contains(&id);
        let again = self.dead_letters.sources.get(&queue).is_some_and(again);
        let Some(pending) = self.dead_letters.pending(queue, id) else {
            return;
        };
        if let Some(announced) = &mut pending.announced {
            announced.awaited = announced.awaited.saturating_sub(1);
        }
        if pending.is_done() && !again {
            self.passed_on(queue, id);
        }
    }
}
