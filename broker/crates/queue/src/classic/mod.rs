//! Classic queues (Q2, Q13): one replica, on the disk of its node, stepped by its shard.
//!
//! A message goes to a small buffer. The buffer is written when it is full, and at the end of the turn if a publisher waits for a
//! confirm; under load, and while consumers acknowledge at once, some milliseconds later (`pacing.rs`). A message that is
//! delivered and settled before that is never written. A persistent publish is confirmed when it is written (not synced) or
//! settled, a transient one when it is buffered. A restart finds exactly the unsettled persistent messages. Which of them were
//! out before is kept by a clean stop only (module `stopped`); otherwise all are delivered as redelivered.
//!
//! With `x-max-priority` higher ones go first, always; limits and times to live look at the head of the whole queue, so
//! that a limit drops high ones first and low ones expire behind high ones only when those are gone.

mod clean_stop;
mod dead_letter_buffer;
#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod format_tests;
mod inventory;
#[cfg(test)]
mod inventory_tests;
mod location;
#[cfg(test)]
mod model_comparison_tests;
mod pacing;
#[cfg(test)]
mod pacing_tests;
#[cfg(test)]
mod priority_tests;
mod record;
mod scan;
mod segment_header;
mod segments;
#[cfg(test)]
mod shortage_tests;
mod store;
#[cfg(test)]
pub(crate) mod tests;

pub use segments::{READ_AHEAD, SEGMENT_BYTES};
pub use store::{BUFFER_BYTES, BUFFER_MESSAGES};

use crate::checkout::{Admission, Checkout, MessageStore, begins_anew};
use crate::{
    ConsumerInfo, DeadIncarnation, DeadLettering, Name, Overflow, Queue, QueueCounters, QueueEvent,
    QueueId, QueueMessage, QueueOutput, QueueReply, QueueSettings, QueueStats, QueueType,
    RejectReason, Request, RequestBody, SessionId, SettlementOutcome, Timestamps,
};
use env::{Disk, Incarnation, NodeId, Time, WallTime};
use message::Message;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use store::{ClassicStore, Item};

/// The longest a persistent message that somebody waits for stays unwritten.
pub const WRITE_AFTER: Duration = Duration::from_millis(2);
/// The longest any message stays unwritten, and a settlement unrecorded.
pub const WRITE_AT_LAST: Duration = Duration::from_millis(200);
/// Wait before a failed write or read is tried again.
pub const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Open files are let go after this long without writing.
pub const REST_AFTER: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub struct ClassicQueue {
    settings: QueueSettings,
    checkout: Checkout<Item>,
    store: ClassicStore,
    /// Per session, publishes that are not safe yet: (request, message) numbers.
    unsafe_yet: BTreeMap<SessionId, VecDeque<(u64, u64)>>,
    /// Sessions to be told how far they are.
    dirty: BTreeSet<SessionId>,
    write_at: Option<Time>,
    acks_at: Option<Time>,
    rest_at: Option<Time>,
    retry_at: Option<Time>,
    expire_at: Option<WallTime>,
    /// The disk does not take writes: publishes are refused.
    full: bool,
    /// Its files could not be read yet, and nothing is wrong with them: all that needs them is refused.
    unopened: bool,
    /// Something may have come back from a channel that ends, and nobody was served since.
    unserved: bool,
    at: Timestamps,
}

impl ClassicQueue {
    /// A new queue; whatever is on disk under its id is removed.
    pub fn create(
        disk: Arc<dyn Disk>,
        id: QueueId,
        label: Name,
        settings: QueueSettings,
        incarnation: Incarnation,
    ) -> io::Result<ClassicQueue> {
        let mut queue = ClassicQueue::around(disk, id, label, settings, incarnation);
        queue.store.segments.destroy()?;
        Ok(queue)
    }

    /// The queue as its files say, in this life of the node. Damage is told in the first output. While descriptors or
    /// memory are short, or the disk fails to read, the queue is there and refuses what needs its files; it tries again by
    /// itself.
    pub fn open(
        disk: Arc<dyn Disk>,
        id: QueueId,
        label: Name,
        settings: QueueSettings,
        incarnation: Incarnation,
    ) -> io::Result<ClassicQueue> {
        let mut queue = ClassicQueue::around(disk, id, label, settings, incarnation);
        match queue.store.recover() {
            Ok(()) => queue.opened(),
            Err(error) if is_lasting(&error) => return Err(error),
            Err(error) => {
                queue.unopened = true;
                queue.retry_at = Some(Time::ZERO);
                let fault = format!(
                    "{}: its files cannot be opened now: {error}. Requests are refused until they can; nothing is lost",
                    queue.checkout.label
                );
                queue.store.output.faults.push(fault);
            }
        }
        Ok(queue)
    }

    fn opened(&mut self) {
        self.unopened = false;
        let label = &self.checkout.label;
        for fault in &mut self.store.output.faults {
            *fault = format!("{label}: {fault}");
        }
        if self.store.may_expire {
            // Heads may have expired meanwhile.
            self.expire_at = Some(WallTime(0));
        }
        // What was out is back, or the limits are new.
        self.keep_limits();
    }

    fn open_again(&mut self) {
        match self.store.recover() {
            Ok(()) => {
                self.opened();
                self.serve();
            }
            Err(error) => {
                if is_lasting(&error) {
                    self.store.cannot("cannot be opened", &error);
                }
                self.retry_at = Some(self.at.now + RETRY_AFTER);
            }
        }
    }

    fn around(
        disk: Arc<dyn Disk>,
        id: QueueId,
        label: Name,
        settings: QueueSettings,
        incarnation: Incarnation,
    ) -> ClassicQueue {
        let mut store =
            ClassicStore::new(disk, id, settings.max_priority.unwrap_or(0), incarnation);
        store.message_ttl_ms = settings.message_ttl_ms;
        store.dead_letter_buffer.open = settings.dead_letter != DeadLettering::Off;
        ClassicQueue {
            // Attempts are not counted here (Q9 is the quorum queue's).
            checkout: Checkout::new(
                label,
                QueueType::Classic,
                settings.single_active_consumer,
                None,
            ),
            settings,
            store,
            unsafe_yet: BTreeMap::new(),
            dirty: BTreeSet::new(),
            write_at: None,
            acks_at: None,
            rest_at: None,
            retry_at: None,
            expire_at: None,
            full: false,
            unopened: false,
            unserved: false,
            at: Timestamps::default(),
        }
    }

    /// The queue is deleted: its consumers are told, its files removed.
    pub fn destroy(&mut self, out: &mut QueueOutput) {
        self.adopt(out);
        if !self.checkout.deleted {
            self.checkout.end(&mut self.store);
        }
        self.store.destroy();
        self.finish(out);
    }

    /// It takes nothing any more: its record is to go.
    pub fn deleted(&self) -> bool {
        self.checkout.deleted
    }

    /// Writes everything that is not written, for a clean stop.
    pub fn write_all(&mut self, out: &mut QueueOutput) -> io::Result<()> {
        self.adopt(out);
        let written = self.write_rest();
        self.finish(out);
        written
    }

    fn write_rest(&mut self) -> io::Result<()> {
        self.store.write()?;
        self.store.segments.flush_acks()?;
        self.store.leave_stopped()?;
        self.store.segments.count_current();
        self.store.segments.rest();
        self.write_at = None;
        self.acks_at = None;
        Ok(())
    }

    /// A node cannot be reached: its consumers get nothing, and what they hold goes to others.
    pub fn peer_down(&mut self, at: Timestamps, node: NodeId, out: &mut QueueOutput) {
        self.begin(at, out);
        self.checkout.suspect_node(&mut self.store, node);
        self.serve();
        self.finish(out);
    }

    pub fn peer_up(&mut self, at: Timestamps, node: NodeId, out: &mut QueueOutput) {
        self.begin(at, out);
        self.checkout.trust_node(&mut self.store, node);
        self.serve();
        self.finish(out);
    }

    /// The beginning of every call, as [`finish`](Self::finish) is the end.
    fn begin(&mut self, at: Timestamps, out: &mut QueueOutput) {
        self.adopt(out);
        self.at = at;
        self.store.wall = at.wall;
        self.store.pacing.set_time(at.now);
        if self.expire_at.is_some_and(|expires| expires <= at.wall) {
            self.expire_at = self.store.expire();
        }
    }

    /// Ended sessions grow older by a clock that nobody sets: what is remembered of them is in memory only.
    fn uptime_ms(&self) -> u64 {
        self.at.now.0 / 1_000_000
    }

    /// Dead messages for the shard to pass on: `most` of them and about so many bytes, in [`QueueOutput::dead`].
    pub fn take_dead(
        &mut self,
        at: Timestamps,
        most: usize,
        most_bytes: usize,
        out: &mut QueueOutput,
    ) {
        self.begin(at, out);
        self.store.take_dead(most, most_bytes);
        self.finish(out);
    }

    fn request(&mut self, request: Request) {
        let Request { session, seq, body } = request;
        match self.checkout.admit(&mut self.store, session, seq) {
            Admission::Apply if begins_anew(seq) => {
                self.unsafe_yet.remove(&session);
            }
            Admission::Apply => {}
            Admission::Again => {
                self.checkout
                    .answer_again(&mut self.store, session, seq, &body);
                self.dirty.insert(session);
                return;
            }
            Admission::Gap { expected } => {
                return self
                    .store
                    .event(session, QueueEvent::Expecting { expected });
            }
            Admission::Closed => {
                return self
                    .store
                    .event(session, QueueEvent::Applied { up_to: seq });
            }
            Admission::Ignore => return,
        }
        self.dirty.insert(session);
        if ends(&body) {
            // Nobody is served from between them.
            let clock = self.uptime_ms();
            self.checkout
                .apply(&mut self.store, session, seq, body, clock);
            self.unserved = true;
            return;
        }
        self.serve_at_last();
        if let Some(refusal) = self.refusal(&body) {
            let answer = QueueReply::Refused {
                code: 406,
                text: refusal,
            };
            return self
                .store
                .event(session, QueueEvent::Answer { seq, answer });
        }
        match body {
            RequestBody::Publish(message) => self.publish(session, seq, message),
            RequestBody::Close => {
                let clock = self.uptime_ms();
                self.checkout.close(&mut self.store, session, clock);
                self.unsafe_yet.remove(&session);
                self.store
                    .event(session, QueueEvent::Applied { up_to: seq });
            }
            body => {
                let clock = self.uptime_ms();
                let delete = matches!(body, RequestBody::Delete { .. });
                let unseen = unseen(&body);
                self.checkout
                    .apply(&mut self.store, session, seq, body, clock);
                if unseen {
                    // A limit is not to drop what somebody else would have been given in the first place.
                    self.checkout.dispatch(&mut self.store);
                }
                if delete && self.checkout.deleted {
                    self.store.destroy();
                }
            }
        }
        self.serve();
    }

    /// Why a request cannot be answered: it needs messages that cannot be read now. To say that there are none would be
    /// wrong.
    fn refusal(&mut self, body: &RequestBody) -> Option<String> {
        let readable = match body {
            RequestBody::Get { .. } => !self.unopened && self.store.can_read_head(),
            RequestBody::Stat | RequestBody::Purge | RequestBody::Delete { .. } => !self.unopened,
            _ => true,
        };
        let label = &self.checkout.label;
        (!readable).then(|| format!("{label} cannot be read at the moment: try again later"))
    }

    /// At the end of the turn, and before anybody can tell whether it has been done.
    fn serve_at_last(&mut self) {
        if self.unserved {
            self.serve();
        }
    }

    /// After messages may have come back or consumers have come: what expired while it was out goes first, then what is too
    /// much, and the rest is handed out.
    fn serve(&mut self) {
        self.unserved = false;
        if self.store.may_expire {
            self.store.expire();
        }
        self.keep_limits();
        self.checkout.dispatch(&mut self.store);
    }

    fn publish(&mut self, session: SessionId, seq: u64, message: Message) {
        let body = message.body_len() as u64;
        let refused = if self.checkout.deleted || self.full || self.unopened {
            Some(RejectReason::Unavailable)
        } else if self.settings.overflow != Overflow::DropHead && self.over(1, body) {
            if self.settings.overflow == Overflow::RejectPublishDlx {
                self.store.bury_refused(&message);
            }
            Some(RejectReason::MaxLength)
        } else {
            None
        };
        if let Some(why) = refused {
            return self.checkout.refuse(session, seq, why);
        }
        self.checkout.counters.publish += 1;
        let persistent = message.durable();
        let number = self.store.push(message, session);
        if persistent {
            let waiting = self.unsafe_yet.entry(session).or_default();
            waiting.push_back((seq, number));
        }
        let due = if persistent {
            self.store.pacing.due(self.checkout.live > 0)
        } else {
            self.at.now + WRITE_AT_LAST
        };
        self.write_at = Some(self.write_at.map_or(due, |at| at.min(due)));
        self.checkout.dispatch(&mut self.store);
        self.keep_limits();
        if self.store.buffer_is_full() {
            self.write();
        }
    }

    fn over(&self, messages: u64, bytes: u64) -> bool {
        let length = self.store.ready().saturating_add(messages);
        let bytes = self.store.ready_bytes().saturating_add(bytes);
        self.settings.max_length.is_some_and(|max| length > max)
            || self
                .settings
                .max_length_bytes
                .is_some_and(|max| bytes > max)
    }

    fn keep_limits(&mut self) {
        if self.settings.overflow == Overflow::DropHead {
            while self.store.ready() > 0 && self.over(0, 0) && self.store.drop_head() {}
        }
    }

    fn write(&mut self) {
        if !self.store.has_unwritten() {
            self.full = false;
            self.write_at = None;
            return;
        }
        match self.store.write() {
            Ok(()) => {
                self.full = false;
                self.write_at = None;
                self.rest_at = Some(self.at.now + REST_AFTER);
            }
            Err(error) => {
                if !self.full {
                    self.store.cannot("cannot write", &error);
                }
                self.full = true;
                self.write_at = Some(self.at.now + RETRY_AFTER);
            }
        }
    }

    fn write_acks(&mut self) {
        self.acks_at = None;
        if let Err(error) = self.store.segments.flush_acks() {
            let what = format!("classic queue cannot record what is settled: {error}");
            self.store.output.faults.push(what);
            self.acks_at = Some(self.at.now + RETRY_AFTER);
        }
    }

    /// The end of every call: moves the output of the store to the caller's, and sets the clocks.
    fn finish(&mut self, out: &mut QueueOutput) {
        self.expire_at = None;
        if self.store.may_expire {
            self.expire_at = self.store.expire();
        }
        self.checkout.finish_drains(&mut self.store);
        if self.store.stalled && self.retry_at.is_none() {
            self.retry_at = Some(self.at.now + RETRY_AFTER);
        }
        if self.store.segments.has_acks() && self.acks_at.is_none() {
            self.acks_at = Some(self.at.now + WRITE_AT_LAST);
        }
        if !self.store.safer.is_empty() {
            // Few, mostly one that is there: the trees are not merged.
            self.dirty.extend(std::mem::take(&mut self.store.safer));
        }
        std::mem::swap(out, &mut self.store.output);
    }

    /// What the shelf puts out joins what is in `out` already: deliveries of several calls become one event.
    fn adopt(&mut self, out: &mut QueueOutput) {
        std::mem::swap(out, &mut self.store.output);
        if !out.is_empty() {
            self.store.output.append(out);
        }
    }

    /// Tells sessions how far they are safe.
    fn report(&mut self, out: &mut QueueOutput) {
        if self.dirty.is_empty() {
            return;
        }
        for session in std::mem::take(&mut self.dirty) {
            let Some(state) = self.checkout.sessions.get(&session) else {
                self.unsafe_yet.remove(&session);
                continue;
            };
            let mut up_to = state.last;
            if let Some(waiting) = self.unsafe_yet.get_mut(&session) {
                let store = &self.store;
                while waiting.front().is_some_and(|(_, n)| store.is_safe(*n)) {
                    waiting.pop_front();
                }
                match waiting.front() {
                    Some((seq, _)) => up_to = seq - 1,
                    None => {
                        self.unsafe_yet.remove(&session);
                    }
                }
            }
            let event = self.checkout.report(session, up_to);
            out.event(session, event);
        }
    }
}

/// Whether trying again cannot help: a file is another queue's, of a newer version, or gone.
fn is_lasting(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::NotFound
    )
}

/// Part of the end of a channel, which several requests may be.
fn ends(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Recover { .. } | RequestBody::Cancel { .. } | RequestBody::Leave { .. }
    )
}

/// Gives back what never reached its client.
fn unseen(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Settle {
            outcome: SettlementOutcome::Unseen,
            ..
        }
    )
}

impl Queue for ClassicQueue {
    fn step(&mut self, at: Timestamps, item: QueueMessage, out: &mut QueueOutput) {
        self.begin(at, out);
        match item {
            QueueMessage::Request(request) => self.request(request),
            QueueMessage::Resume(r) => {
                let store = &mut self.store;
                if !self.checkout.resume(store, r.session, r.consumer, r.next) {
                    let consumer = r.consumer;
                    self.store
                        .event(r.session, QueueEvent::Cancelled { consumer });
                }
            }
            QueueMessage::Received(r) => {
                let store = &mut self.store;
                self.checkout
                    .received(store, r.session, r.consumer, r.up_to);
                self.checkout.dispatch(store);
            }
        }
        self.finish(out);
    }

    fn tick(&mut self, at: Timestamps, out: &mut QueueOutput) {
        self.begin(at, out);
        let due = |when: Option<Time>| when.is_some_and(|when| when <= at.now);
        if due(self.write_at) {
            self.write();
        }
        if due(self.acks_at) {
            self.write_acks();
        }
        if due(self.rest_at) {
            self.rest_at = None;
            self.store.segments.rest();
        }
        if due(self.retry_at) {
            self.retry_at = None;
            self.store.stalled = false;
            match self.unopened {
                true => self.open_again(),
                false => self.checkout.dispatch(&mut self.store),
            }
        }
        self.finish(out);
        self.report(out);
    }

    fn flush(&mut self, at: Timestamps, out: &mut QueueOutput) {
        self.begin(at, out);
        self.serve_at_last();
        if self.write_at.is_some_and(|when| when <= at.now) {
            self.write();
        }
        self.finish(out);
        self.report(out);
    }

    fn wake_at(&self) -> Option<Time> {
        let expire = self.expire_at.map(|expires| {
            let wait = expires.0.saturating_sub(self.at.wall.0);
            self.at.now + Duration::from_millis(wait)
        });
        let all = [
            self.write_at,
            self.acks_at,
            self.rest_at,
            self.retry_at,
            expire,
        ];
        all.into_iter().flatten().min()
    }

    fn session_gone(&mut self, at: Timestamps, session: SessionId, out: &mut QueueOutput) {
        self.begin(at, out);
        let clock = self.uptime_ms();
        self.checkout.close(&mut self.store, session, clock);
        self.unsafe_yet.remove(&session);
        self.serve();
        self.finish(out);
    }

    fn node_gone(&mut self, at: Timestamps, gone: DeadIncarnation, out: &mut QueueOutput) {
        self.begin(at, out);
        self.checkout.gone_node(&mut self.store, gone);
        let over = |s: &SessionId| s.node == gone.node && s.incarnation < gone.before;
        self.unsafe_yet.retain(|session, _| !over(session));
        self.serve();
        self.finish(out);
    }

    fn configure(&mut self, at: Timestamps, settings: &QueueSettings, out: &mut QueueOutput) {
        self.begin(at, out);
        if self.settings == *settings {
            return self.finish(out);
        }
        self.settings = settings.clone();
        self.store.message_ttl_ms = settings.message_ttl_ms;
        let dead_letter = settings.dead_letter != DeadLettering::Off;
        self.store.open_dead_letter_buffer(dead_letter);
        self.checkout
            .set_limits(settings.single_active_consumer, None);
        self.serve();
        self.finish(out);
    }

    fn stats(&self) -> QueueStats {
        QueueStats {
            ready: self.store.ready(),
            unacknowledged: self.checkout.out,
            consumers: self.checkout.live,
            bytes: self.store.bytes(),
            unacknowledged_bytes: self.store.out_bytes(),
            lost: self.store.lost,
            ..QueueStats::default()
        }
    }

    fn counters(&self) -> QueueCounters {
        self.checkout.counters
    }

    fn in_use(&self) -> bool {
        self.checkout.in_use()
    }

    fn has_dead(&self) -> bool {
        !self.store.dead_letter_buffer.is_empty()
    }

    fn consumers(&self) -> Vec<ConsumerInfo> {
        self.checkout.listing()
    }

    fn session_nodes(&self) -> Vec<NodeId> {
        self.checkout.session_nodes()
    }
}
