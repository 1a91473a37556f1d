//! Dead letters on their way through dead letter exchanges.
//!
//! The shard that owns a queue takes its dead messages, routes them in its own tree and publishes them to their target queues in
//! the session [`InternalSession::DeadLetters`]. At most once: if a target is full, the source waits for [`PATIENCE`] and then
//! leaves it out. At least once: the source keeps a message until every target has confirmed it, and retries a message without
//! a route every [`RETRY_AFTER`].
//!
//! Owns: for each source queue its target exchange, the messages that were taken and not published, and those that are not
//! confirmed.
//!
//! Inputs: the settings of queues, messages that queues gave up, confirms of targets, time. The tree and the queue clients are
//! read-only arguments.
//!
//! Outputs: return values that say what the loop publishes, and which messages the source queue may drop.

use crate::FixedState;
use crate::clients::QueueClients;
use crate::context::Context;
use crate::sessions::InternalSession;
use env::Time;
use hashbrown::HashMap;
use message::{DeadReason, Deaths, Dying, Message};
use metadata::{EffectiveSettings, Name, QueueId, QueueRecord, QueueType, RouteResult, Tree};
use queue::client::ClientEvent;
use routing::RoutingInput;
use session::{AnnounceOutcome, PublishTag};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Messages, and about how many bytes of them, that are taken from a queue at a time.
pub(crate) const BATCH: usize = 64;
pub(crate) const BATCH_BYTES: usize = 1 << 20;
/// Messages passed on in one turn of the shard; the rest waits for the next.
const TURN: usize = 1024;
/// Bytes of messages on their way to all queues behind dead letter exchanges; beyond it they count as full.
pub(crate) const MAX_BYTES: usize = 64 << 20;
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
pub(crate) struct DeadLetterCounts {
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
pub(crate) struct DeadLetters {
    sources: BTreeMap<QueueId, DeadLetterSource>,
    /// Sources to be looked at.
    ready: BTreeSet<QueueId>,
    stalled: BTreeSet<QueueId>,
    due: BTreeSet<(Time, QueueId)>,
    tags: HashMap<u64, (QueueId, u64), FixedState>,
    next_tag: u64,
    budget: usize,
    counts: DeadLetterCounts,
}

impl DeadLetters {
    /// Where a queue's dead messages go from now on.
    pub(crate) fn set_way(&mut self, record: &QueueRecord, settings: &EffectiveSettings) {
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
    pub(crate) fn forget(&mut self, queue: QueueId) {
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
    pub(crate) fn note(&mut self, queue: QueueId) {
        if !self.stalled.contains(&queue) {
            self.ready.insert(queue);
        }
    }

    /// A queue behind an exchange has taken something: who waits may go on.
    pub(crate) fn relieve(&mut self) {
        self.ready.append(&mut self.stalled);
    }

    pub(crate) fn counts(&self) -> DeadLetterCounts {
        self.counts
    }

    pub(crate) fn begin_turn(&mut self) {
        self.budget = TURN;
    }

    pub(crate) fn wake_at(&self, now: Time) -> Option<Time> {
        if !self.ready.is_empty() {
            return Some(now);
        }
        let since = |q| self.sources.get(q).and_then(|s| s.stalled_since);
        let stalled = self.stalled.iter().filter_map(since).min();
        let patience = stalled.map(|since| since + PATIENCE);
        let retry = self.due.first().map(|(at, _)| *at);
        Time::earliest([patience, retry])
    }

    /// Sources whose time has come.
    pub(crate) fn tick(&mut self, now: Time) {
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

    pub(crate) fn try_again(&mut self, queue: QueueId, id: u64, now: Time) {
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

    pub(crate) fn drop_pending(&mut self, queue: QueueId, id: u64) {
        let Some(source) = self.sources.get_mut(&queue) else {
            return;
        };
        source.again.remove(&id);
        if let Some(pending) = source.pending.remove(&id) {
            self.tags.remove(&pending.tag);
        }
    }

    /// Returns true if a source has work.
    pub(crate) fn has_sources(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next source with work, while this turn may publish more.
    pub(crate) fn next_source(&mut self) -> Option<QueueId> {
        if self.budget == 0 {
            return None;
        }
        self.ready.pop_first()
    }

    /// Messages that a queue has dropped, to be published at most once. Returns false if the queue has no dead letter exchange.
    pub(crate) fn hold(&mut self, queue: QueueId, dead: Vec<(DeadReason, Message)>) -> bool {
        let Some(source) = self.sources.get_mut(&queue) else {
            return false;
        };
        source.held.extend(dead);
        true
    }

    /// Counts messages that were taken from a queue in this turn.
    pub(crate) fn count_taken(&mut self, taken: usize) {
        self.budget = self.budget.saturating_sub(taken);
    }

    /// The next message to be published at most once.
    pub(crate) fn next_held(
        &mut self,
        ctx: &Context,
        tree: &Tree,
        clients: &QueueClients,
        queue: QueueId,
    ) -> HeldDeadLetter {
        let session = InternalSession::DeadLetters.number(ctx.shard());
        loop {
            let Some(source) = self.sources.get_mut(&queue) else {
                return HeldDeadLetter::None;
            };
            let Some((reason, message)) = source.held.pop_front() else {
                return HeldDeadLetter::None;
            };
            let Some(target) = source.way.clone() else {
                continue;
            };
            let is_late = source
                .stalled_since
                .is_some_and(|since| since + PATIENCE <= ctx.now());
            let Some(routed) = route(tree, &target, reason, &message, ctx.wall()) else {
                continue;
            };
            let full = routed
                .routes
                .iter()
                .filter(|q| clients.is_full(session, **q));
            let full = full.count();
            if full > 0 && !is_late {
                source.held.push_front((reason, message));
                self.stall(queue, ctx.now());
                return HeldDeadLetter::Stalled;
            }
            return HeldDeadLetter::Ready(UnconfirmedDeadLetter {
                target,
                message: routed.message,
                routes: routed.routes,
                cycles: routed.cycles,
                full,
            });
        }
    }

    /// Records a message that is published at most once. `receivers`: its subscribers without a queue.
    pub(crate) fn record_unconfirmed(
        &mut self,
        queue: QueueId,
        letter: &UnconfirmedDeadLetter,
        receivers: usize,
    ) {
        let reached = letter.routes.len() + receivers;
        self.warn(queue, &letter.target, letter.cycles, reached > 0);
        self.counts.overflowed += letter.full as u64;
        match reached {
            0 => self.counts.unroutable += 1,
            all if all > letter.full => self.counts.routed += 1,
            _ => {}
        }
        if letter.full == 0
            && let Some(source) = self.sources.get_mut(&queue)
        {
            source.stalled_since = None;
        }
    }

    /// Warns once per queue and target about messages that are unroutable or go round in a cycle.
    fn warn(&mut self, queue: QueueId, target: &DeadLetterTarget, cycles: usize, reached: bool) {
        let Some(source) = self.sources.get_mut(&queue) else {
            return;
        };
        let (name, vhost, exchange) = (&target.queue, &target.vhost, &target.exchange);
        if cycles > 0 && !std::mem::replace(&mut source.told_of_cycle, true) {
            tracing::warn!(event = "dead_letter_cycle", queue = %name, %vhost, %exchange);
        }
        if !reached && cycles == 0 && !std::mem::replace(&mut source.told_of_no_way, true) {
            tracing::warn!(event = "dead_letter_unroutable", queue = %name, %vhost, %exchange);
        }
    }

    /// Messages to be published at least once that are due for a retry.
    pub(crate) fn take_retries(&mut self, queue: QueueId) -> BTreeSet<u64> {
        match self.sources.get_mut(&queue) {
            Some(source) if source.retry_at.is_none() => std::mem::take(&mut source.again),
            _ => BTreeSet::new(),
        }
    }

    /// Routes a message that its queue keeps until all targets have confirmed it. Returns `None` if it has no route and is
    /// retried.
    pub(crate) fn prepare(
        &mut self,
        ctx: &Context,
        tree: &Tree,
        clients: &QueueClients,
        (queue, id): (QueueId, u64),
        (reason, message): (DeadReason, &Message),
    ) -> Option<ConfirmedDeadLetter> {
        let session = InternalSession::DeadLetters.number(ctx.shard());
        let source = self.sources.get_mut(&queue)?;
        let pending = source.pending.entry(id).or_insert_with(|| {
            self.next_tag += 1;
            self.tags.insert(self.next_tag, (queue, id));
            PendingDeadLetter {
                tag: self.next_tag,
                ..PendingDeadLetter::default()
            }
        });
        let tag = PublishTag(pending.tag);
        let target = source.way.clone();
        let routed = target
            .as_ref()
            .and_then(|target| route(tree, target, reason, message, ctx.wall()));
        let (Some(target), Some(routed)) = (target, routed) else {
            self.try_again(queue, id, ctx.now());
            return None;
        };
        let RoutedDeadLetter {
            message,
            mut routes,
            cycles,
        } = routed;
        let is_unrouted = routes.is_empty();
        routes.retain(|q| !pending.knows(*q));
        let all = routes.len();
        routes.retain(|q| !clients.is_full(session, *q));
        let has_room = routes.len() == all;
        Some(ConfirmedDeadLetter {
            tag,
            target,
            message,
            routes,
            cycles,
            is_unrouted,
            has_room,
            needs_announcement: has_room && pending.announced.is_none(),
        })
    }

    /// Records a message whose targets are known now. `announced`: the outcome if it was announced to subscribers without a
    /// queue. Returns its targets and whether it is confirmed by all.
    pub(crate) fn record_prepared(
        &mut self,
        now: Time,
        (queue, id): (QueueId, u64),
        letter: &mut ConfirmedDeadLetter,
        announced: Option<AnnounceOutcome>,
    ) -> Option<Confirmation> {
        let is_refused = announced.is_some_and(|outcome| {
            let announced = Announcement {
                has_receivers: outcome.receivers > 0,
                awaited: outcome.awaited,
            };
            self.record_announcement(queue, id, (!outcome.refused).then_some(announced))
        });
        let pending = self.pending(queue, id)?;
        // Once to each queue, also to one of a session that shares and subscribes: confirms are known by the queue's id.
        letter.routes.sort_unstable();
        letter.routes.dedup();
        letter.routes.retain(|q| !pending.knows(*q));
        pending.waiting.extend(letter.routes.iter().copied());
        let is_nowhere = letter.is_unrouted && letter.routes.is_empty() && !pending.reached();
        let is_complete = pending.is_done() && letter.has_room && !is_nowhere && !is_refused;
        self.warn(queue, &letter.target, letter.cycles, !is_nowhere);
        if is_complete {
            return Some(Confirmation::Complete);
        }
        if is_nowhere || !letter.has_room || is_refused {
            self.try_again(queue, id, now);
        }
        Some(Confirmation::Awaited)
    }

    /// All targets have confirmed a message.
    pub(crate) fn complete(&mut self, queue: QueueId, id: u64) {
        self.drop_pending(queue, id);
        self.counts.confirmed += 1;
    }

    /// A target has confirmed or refused a message. Returns the message's queue and id if it is confirmed by all targets.
    pub(crate) fn handle_target_event(
        &mut self,
        now: Time,
        target: QueueId,
        event: &ClientEvent<PublishTag>,
    ) -> Option<(QueueId, u64)> {
        let (tag, is_taken) = match event {
            ClientEvent::Published(tag) => (tag.0, true),
            ClientEvent::NotPublished(tag, _) => (tag.0, false),
            ClientEvent::Answer { .. }
            | ClientEvent::Deliver { .. }
            | ClientEvent::Cancelled { .. }
            | ClientEvent::TimedOut { .. }
            | ClientEvent::Activity { .. } => return None,
        };
        let (queue, id) = *self.tags.get(&tag)?;
        let source = self.sources.get_mut(&queue)?;
        let is_retried = source.again.contains(&id);
        let pending = source.pending.get_mut(&id)?;
        pending.waiting.retain(|q| *q != target);
        if !is_taken {
            self.try_again(queue, id, now);
            return None;
        }
        pending.confirmed.push(target);
        (pending.is_done() && !is_retried).then_some((queue, id))
    }

    /// Another shard has a message for its subscribers. Returns as [`DeadLetters::handle_target_event`].
    pub(crate) fn handle_announcement_confirmed(&mut self, tag: u64) -> Option<(QueueId, u64)> {
        let (queue, id) = *self.tags.get(&tag)?;
        let source = self.sources.get_mut(&queue)?;
        let is_retried = source.again.contains(&id);
        let pending = source.pending.get_mut(&id)?;
        if let Some(announced) = &mut pending.announced {
            announced.awaited = announced.awaited.saturating_sub(1);
        }
        (pending.is_done() && !is_retried).then_some((queue, id))
    }
}

/// The next message of a source that is published at most once.
pub(crate) enum HeldDeadLetter {
    None,
    /// A target is full: the source waits.
    Stalled,
    Ready(UnconfirmedDeadLetter),
}

/// A message that is published at most once.
pub(crate) struct UnconfirmedDeadLetter {
    target: DeadLetterTarget,
    pub message: Message,
    pub routes: Vec<QueueId>,
    cycles: usize,
    /// Targets that were full when it was routed.
    full: usize,
}

impl UnconfirmedDeadLetter {
    pub(crate) fn vhost(&self) -> &str {
        &self.target.vhost
    }

    /// Returns true if the message goes to this target.
    pub(crate) fn goes_to(&self, clients: &QueueClients, session: u64, target: QueueId) -> bool {
        self.full == 0 || !clients.is_full(session, target)
    }
}

/// A message that its source queue keeps until all targets have confirmed it.
pub(crate) struct ConfirmedDeadLetter {
    pub tag: PublishTag,
    target: DeadLetterTarget,
    pub message: Message,
    pub routes: Vec<QueueId>,
    cycles: usize,
    /// The exchange had no queue for it.
    is_unrouted: bool,
    /// No target was full.
    has_room: bool,
    /// Subscribers without a queue do not have it yet.
    pub needs_announcement: bool,
}

impl ConfirmedDeadLetter {
    pub(crate) fn vhost(&self) -> &str {
        &self.target.vhost
    }
}

/// The state of a message that is published at least once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Confirmation {
    Awaited,
    Complete,
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
    let grouped = match tree.has_queues_with_groups() {
        true => with_group(tree, &routes, &envelope),
        false => None,
    };
    Some(RoutedDeadLetter {
        message: grouped.unwrap_or(dead),
        routes,
        cycles,
    })
}

/// The dead letter with its group. `None`: it needs none. An invalid header is no reason to lose the message.
#[cold]
fn with_group(
    tree: &Tree,
    routes: &[QueueId],
    dead: &conversion::MessageEnvelope<'_>,
) -> Option<Message> {
    let group_id = dead.group_id();
    let headers = || dead.headers();
    operations::assign_group(tree, routes, dead.message, group_id.as_deref(), headers)
        .ok()
        .flatten()
}

fn closes_cycle(tree: &Tree, deaths: &Deaths, queue: QueueId) -> bool {
    let record = tree.queue_by_id(queue);
    record.is_some_and(|record| deaths.is_cycle(&record.name))
}

impl QueueClients {
    /// Returns true if a target of dead letters should get no more for now.
    pub fn is_full(&self, session: u64, queue: QueueId) -> bool {
        self.in_flight_bytes(session) >= MAX_BYTES || self.link_is_full(session, queue)
    }
}
