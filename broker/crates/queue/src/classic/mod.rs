//! Classic queues: one replica, on the disk of its node, stepped by its shard.
//!
//! New messages go to a small write buffer. It is written when it is full, and at the end of the turn if a
//! publisher waits for a confirm; under load, and while consumers acknowledge at once, some milliseconds later
//! (see `pacing.rs`). A message that is settled before the write is never written. A persistent publish is
//! confirmed when it is written (not synced) or settled, a transient one when it is buffered. A restart
//! recovers exactly the unsettled persistent messages. After a clean stop the queue knows which of them were
//! delivered before (see `clean_stop.rs`); otherwise all of them are redelivered.
//!
//! With `x-max-priority`, messages of higher priority always go first. Limits and TTLs apply to the head of the
//! whole queue: a limit drops messages of high priority first, and messages of low priority expire only once
//! there are none of higher priority.

#[cfg(test)]
mod browse_tests;
mod clean_stop;
mod dead_letter_buffer;
#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod format_tests;
#[cfg(test)]
mod head_tests;
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
mod selection;
#[cfg(test)]
mod shortage_tests;
mod store;
#[cfg(test)]
pub(crate) mod tests;

pub use segments::{READ_AHEAD, SEGMENT_BYTES};
pub use store::{BUFFER_BYTES, BUFFER_MESSAGES};

use crate::browse::page_limit;
use crate::checkout::{Admission, Checkout, MessageStore, starts_numbering_epoch};
use crate::selection::Selection;
use crate::{
    BrowsePage, BrowseRequest, ConsumerInfo, DeadIncarnation, DeadLettering, DeliveryCounts,
    DescribeMessage, HeadLookup, Name, Overflow, PendingSet, Queue, QueueCounters, QueueEvent,
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

/// Longest time that a persistent message stays unwritten while its publisher waits for a confirm.
pub const WRITE_AFTER: Duration = Duration::from_millis(2);
/// Longest time that any message stays unwritten, or its settlement unrecorded.
pub const WRITE_AT_LAST: Duration = Duration::from_millis(200);
/// Wait before a failed write or read is repeated.
pub const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Open files are closed after this long without a write.
pub const REST_AFTER: Duration = Duration::from_secs(10);

/// A session without unconfirmed publishes keeps the capacity for this many.
const KEPT_UNCONFIRMED: usize = 16;

/// See the module.
#[derive(Debug)]
pub struct ClassicQueue {
    settings: QueueSettings,
    checkout: Checkout<Item>,
    store: ClassicStore,
    /// Per session the publishes that may not be confirmed yet, as pairs of request and message number. An open session may have
    /// none.
    unconfirmed: BTreeMap<SessionId, VecDeque<(u64, u64)>>,
    /// Sessions whose progress is to be reported.
    unreported: PendingSet<SessionId>,
    write_at: Option<Time>,
    acks_at: Option<Time>,
    close_files_at: Option<Time>,
    retry_at: Option<Time>,
    expire_at: Option<WallTime>,
    /// The disk accepts no writes: publishes are refused.
    disk_full: bool,
    /// The files could not be opened yet, for lack of resources: requests that need them are refused.
    unopened: bool,
    /// Messages may have been requeued by the end of a channel, and none have been delivered since.
    delivery_pending: bool,
    /// Nodes that the failure detector reported down.
    unreachable: BTreeSet<NodeId>,
    /// The search for messages of consumers with filters.
    selection: Selection,
    at: Timestamps,
}

impl ClassicQueue {
    /// Creates an empty queue. Removes any files under its id.
    pub fn create(
        disk: Arc<dyn Disk>,
        id: QueueId,
        label: Name,
        settings: QueueSettings,
        incarnation: Incarnation,
    ) -> io::Result<ClassicQueue> {
        let mut queue = ClassicQueue::new_unopened(disk, id, label, settings, incarnation);
        queue.store.segments.destroy()?;
        Ok(queue)
    }

    /// Opens a queue from its files, in this incarnation of the node. The first output reports damage. While
    /// file descriptors or memory are short, or the disk fails to read, the queue refuses requests that need
    /// its files and tries again by itself. Fails if trying again cannot help.
    pub fn open(
        disk: Arc<dyn Disk>,
        id: QueueId,
        label: Name,
        settings: QueueSettings,
        incarnation: Incarnation,
    ) -> io::Result<ClassicQueue> {
        let mut queue = ClassicQueue::new_unopened(disk, id, label, settings, incarnation);
        match queue.store.recover() {
            Ok(()) => queue.finish_open(),
            Err(error) if is_permanent(&error) => return Err(error),
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

    fn finish_open(&mut self) {
        self.unopened = false;
        let label = &self.checkout.label;
        for fault in &mut self.store.output.faults {
            *fault = format!("{label}: {fault}");
        }
        if self.store.may_expire {
            // Messages at the head may have expired while the queue was closed.
            self.expire_at = Some(WallTime(0));
        }
        // Unsettled messages are ready again, and the limits may be new.
        self.enforce_limits();
    }

    fn retry_open(&mut self) {
        match self.store.recover() {
            Ok(()) => {
                self.finish_open();
                self.serve();
            }
            Err(error) => {
                if is_permanent(&error) {
                    self.store.report_failure("cannot be opened", &error);
                }
                self.retry_at = Some(self.at.now + RETRY_AFTER);
            }
        }
    }

    fn new_unopened(
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
            // A classic queue has no delivery limit.
            checkout: Checkout::new(
                label,
                QueueType::Classic,
                settings.single_active_consumer,
                None,
            ),
            settings,
            store,
            unconfirmed: BTreeMap::new(),
            unreported: PendingSet::default(),
            write_at: None,
            acks_at: None,
            close_files_at: None,
            retry_at: None,
            expire_at: None,
            disk_full: false,
            unopened: false,
            delivery_pending: false,
            unreachable: BTreeSet::new(),
            selection: Selection::default(),
            at: Timestamps::default(),
        }
    }

    /// Deletes the queue: cancels its consumers and removes its files.
    pub fn destroy(&mut self, out: &mut QueueOutput) {
        self.swap_output(out);
        if !self.checkout.deleted {
            self.checkout.end_queue(&mut self.store);
        }
        self.store.destroy();
        self.finish(out);
    }

    /// Returns true if the queue was deleted by a client, so that its metadata record must be removed.
    pub fn deleted(&self) -> bool {
        self.checkout.deleted
    }

    /// Writes everything that is not written, for a clean stop. Fails if the disk accepts no writes.
    pub fn write_all(&mut self, out: &mut QueueOutput) -> io::Result<()> {
        self.swap_output(out);
        let written = self.write_remaining();
        self.finish(out);
        written
    }

    fn write_remaining(&mut self) -> io::Result<()> {
        self.store.write()?;
        self.store.segments.flush_acks()?;
        self.store.record_clean_stop()?;
        self.store.segments.record_active_counts();
        self.store.segments.close_files();
        self.write_at = None;
        self.acks_at = None;
        Ok(())
    }

    /// The failure detector reports a node down: suspends its consumers and requeues their messages.
    pub fn peer_down(&mut self, at: Timestamps, node: NodeId, out: &mut QueueOutput) {
        self.begin(at, out);
        self.unreachable.insert(node);
        self.checkout.suspect_node(&mut self.store, node);
        self.serve();
        self.finish(out);
    }

    /// The failure detector reports a node up.
    pub fn peer_up(&mut self, at: Timestamps, node: NodeId, out: &mut QueueOutput) {
        self.begin(at, out);
        self.unreachable.remove(&node);
        self.checkout.trust_node(&mut self.store, node);
        self.serve();
        self.finish(out);
    }

    /// Starts a call; [`finish`](Self::finish) ends it.
    fn begin(&mut self, at: Timestamps, out: &mut QueueOutput) {
        self.swap_output(out);
        self.at = at;
        self.store.wall = at.wall;
        self.store.pacing.set_time(at.now);
        if self.expire_at.is_some_and(|expires| expires <= at.wall) {
            self.expire_at = self.store.expire();
        }
    }

    /// Milliseconds since the node started. Closed sessions age by this clock, since they are in memory only
    /// and nobody sets it.
    fn uptime_ms(&self) -> u64 {
        self.at.now.0 / 1_000_000
    }

    /// A page of the messages of the queue. Fails if they cannot be read at the moment.
    pub fn browse(&mut self, request: &BrowseRequest) -> Result<BrowsePage, String> {
        let consumers = &self.checkout.consumers;
        let unsettled = |offer: &mut dyn FnMut(&Item, DeliveryCounts)| {
            for consumer in consumers.values() {
                for out in consumer.out.values() {
                    offer(&out.item, out.counts);
                }
            }
        };
        let page = match self.unopened {
            true => Err(io::Error::other("its files cannot be opened now")),
            false => self.store.browse(request, page_limit(request), &unsettled),
        };
        let label = &self.checkout.label;
        page.map_err(|error| {
            format!("{label} cannot be read at the moment: {error}: try again later")
        })
    }

    /// The oldest ready message. It is read if it is not in memory and another one is the oldest than in the call before.
    pub fn head(&mut self, describe: DescribeMessage) -> HeadLookup {
        if self.unopened {
            return HeadLookup::default();
        }
        // Reported when the queue itself reads.
        self.store.head(describe).unwrap_or(HeadLookup {
            message: None,
            has_read: true,
        })
    }

    /// Moves dead letters to [`QueueOutput::dead`]: at most `most` and about `most_bytes`.
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
            Admission::Apply if starts_numbering_epoch(seq) => {
                self.unconfirmed.remove(&session);
            }
            Admission::Apply => {}
            Admission::Duplicate => {
                self.checkout
                    .repeat_answer(&mut self.store, session, seq, &body);
                self.unreported.insert(session);
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
        self.unreported.insert(session);
        if is_channel_end(&body) {
            // The end of a channel takes several requests; delivering between them would change the order.
            let clock = self.uptime_ms();
            self.checkout
                .apply(&mut self.store, session, seq, body, clock);
            self.delivery_pending = true;
            return;
        }
        self.serve_pending();
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
                self.unconfirmed.remove(&session);
                self.store
                    .event(session, QueueEvent::Applied { up_to: seq });
            }
            body => {
                let clock = self.uptime_ms();
                let delete = matches!(body, RequestBody::Delete { .. });
                let is_unseen = requeues_unseen(&body);
                self.checkout
                    .apply(&mut self.store, session, seq, body, clock);
                if is_unseen {
                    // A length limit must not drop a message that another consumer would have got in the first
                    // place.
                    self.checkout.dispatch(&mut self.store);
                }
                if delete && self.checkout.deleted {
                    self.store.destroy();
                }
            }
        }
        self.serve();
    }

    /// Why a request must be refused: it needs messages that cannot be read now. Reporting an empty queue would
    /// be wrong.
    fn refusal(&mut self, body: &RequestBody) -> Option<String> {
        let readable = match body {
            RequestBody::Get { .. } => !self.unopened && self.store.can_read_head(),
            RequestBody::GetAt(_) => !self.unopened,
            RequestBody::Stat | RequestBody::Purge | RequestBody::Delete { .. } => !self.unopened,
            _ => true,
        };
        let label = &self.checkout.label;
        (!readable).then(|| format!("{label} cannot be read at the moment: try again later"))
    }

    /// Delivers after the end of a channel: at the end of the turn, or before the next request whose effect
    /// depends on it.
    fn serve_pending(&mut self) {
        if self.delivery_pending {
            self.serve();
        }
    }

    /// Call after messages were requeued or consumers added: removes expired messages, enforces the limits, and
    /// delivers the rest.
    fn serve(&mut self) {
        self.delivery_pending = false;
        if self.store.may_expire {
            self.store.expire();
        }
        self.enforce_limits();
        self.checkout.dispatch(&mut self.store);
    }

    fn publish(&mut self, session: SessionId, seq: u64, message: Message) {
        let body = message.body_len() as u64;
        let refused = if self.checkout.deleted || self.disk_full || self.unopened {
            Some(RejectReason::Unavailable)
        } else if self.settings.overflow != Overflow::DropHead && self.exceeds_limits(1, body) {
            if self.settings.overflow == Overflow::RejectPublishDlx {
                self.store.dead_letter_refused(&message);
            }
            Some(RejectReason::MaxLength)
        } else {
            None
        };
        if let Some(reason) = refused {
            return self.checkout.record_refusal(session, seq, reason);
        }
        self.checkout.counters.publish += 1;
        let persistent = message.durable();
        let number = self.store.push(message, session);
        if persistent {
            let waiting = self.unconfirmed.entry(session).or_default();
            debug_assert!(waiting.back().is_none_or(|(last, _)| *last < seq));
            waiting.push_back((seq, number));
        }
        let due = if persistent {
            self.store.pacing.due(self.checkout.live > 0)
        } else {
            self.at.now + WRITE_AT_LAST
        };
        self.write_at = Some(self.write_at.map_or(due, |at| at.min(due)));
        self.checkout.dispatch(&mut self.store);
        self.enforce_limits();
        if self.store.buffer_is_full() {
            self.write();
        }
        debug_assert!(self.disk_full || !self.store.buffer_is_full());
    }

    fn exceeds_limits(&self, messages: u64, bytes: u64) -> bool {
        let length = self.store.ready().saturating_add(messages);
        let bytes = self.store.ready_bytes().saturating_add(bytes);
        self.settings.max_length.is_some_and(|max| length > max)
            || self
                .settings
                .max_length_bytes
                .is_some_and(|max| bytes > max)
    }

    fn enforce_limits(&mut self) {
        if self.settings.overflow == Overflow::DropHead {
            while self.store.ready() > 0 && self.exceeds_limits(0, 0) && self.store.drop_head() {}
        }
    }

    fn write(&mut self) {
        if !self.store.has_unwritten() {
            self.disk_full = false;
            self.write_at = None;
            return;
        }
        match self.store.write() {
            Ok(()) => {
                debug_assert!(!self.store.has_unwritten());
                self.disk_full = false;
                self.write_at = None;
                self.close_files_at = Some(self.at.now + REST_AFTER);
            }
            Err(error) => {
                if !self.disk_full {
                    self.store.report_failure("cannot write", &error);
                }
                self.disk_full = true;
                self.write_at = Some(self.at.now + RETRY_AFTER);
            }
        }
    }

    fn write_acks(&mut self) {
        self.acks_at = None;
        if let Err(error) = self.store.segments.flush_acks() {
            let fault = format!("classic queue cannot record what is settled: {error}");
            self.store.output.faults.push(fault);
            self.acks_at = Some(self.at.now + RETRY_AFTER);
        }
    }

    /// Ends a call: moves the output of the store to the caller's, and sets the timers.
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
        if !self.store.newly_safe.is_empty() {
            let newly_safe = self.store.newly_safe.take();
            self.unreported.extend(newly_safe.iter().copied());
            self.store.newly_safe.reuse(newly_safe);
        }
        if cfg!(debug_assertions) {
            self.store.assert_consistent();
            assert!(self.checkout.out > 0 || self.store.out_bytes() == 0);
        }
        std::mem::swap(out, &mut self.store.output);
    }

    /// Lets the store append to the caller's output, so that deliveries of several calls join in one event.
    fn swap_output(&mut self, out: &mut QueueOutput) {
        std::mem::swap(out, &mut self.store.output);
        if !out.is_empty() {
            self.store.output.append(out);
        }
    }

    /// Reports progress to sessions: publishes that are durable.
    fn report_progress(&mut self, out: &mut QueueOutput) {
        if self.unreported.is_empty() {
            return;
        }
        let unreported = self.unreported.take();
        for session in unreported.iter().copied() {
            let Some(state) = self.checkout.sessions.get(&session) else {
                self.unconfirmed.remove(&session);
                continue;
            };
            let mut up_to = state.last;
            if let Some(waiting) = self.unconfirmed.get_mut(&session) {
                let store = &self.store;
                while waiting.front().is_some_and(|(_, n)| store.is_safe(*n)) {
                    waiting.pop_front();
                }
                match waiting.front() {
                    Some((seq, _)) => up_to = seq - 1,
                    None if waiting.capacity() > KEPT_UNCONFIRMED => {
                        self.unconfirmed.remove(&session);
                    }
                    // The next publish of the session finds its place.
                    None => {}
                }
            }
            let event = self.checkout.progress_event(session, up_to);
            out.event(session, event);
        }
        self.unreported.reuse(unreported);
    }
}

/// Returns true if trying again cannot help: a file belongs to another queue or a newer version, or is missing.
fn is_permanent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::NotFound
    )
}

/// Returns true for requests that are part of the end of a channel.
fn is_channel_end(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Recover { .. }
            | RequestBody::Cancel { .. }
            | RequestBody::CancelAndRequeue { .. }
    )
}

/// Returns true if the request requeues deliveries that were never sent to the client.
fn requeues_unseen(body: &RequestBody) -> bool {
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
            QueueMessage::Request(request) => {
                let node = request.session.node;
                self.request(request);
                if !self.unreachable.is_empty() && self.unreachable.contains(&node) {
                    // The request was on its way when its node died. It ended the suspicion, and what it took would stay
                    // with the dead node.
                    self.checkout.suspect_node(&mut self.store, node);
                    self.delivery_pending = true;
                }
            }
            QueueMessage::Resume(resume) => {
                let store = &mut self.store;
                if !self
                    .checkout
                    .resume(store, resume.session, resume.consumer, resume.next)
                {
                    let consumer = resume.consumer;
                    self.store
                        .event(resume.session, QueueEvent::Cancelled { consumer });
                }
            }
            QueueMessage::Received(progress) => {
                let store = &mut self.store;
                self.checkout.open_flow_window(
                    store,
                    progress.session,
                    progress.consumer,
                    progress.up_to,
                );
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
        if due(self.close_files_at) {
            self.close_files_at = None;
            self.store.segments.close_files();
        }
        if due(self.retry_at) {
            self.retry_at = None;
            self.store.stalled = false;
            match self.unopened {
                true => self.retry_open(),
                false => self.checkout.dispatch(&mut self.store),
            }
        }
        self.finish(out);
        self.report_progress(out);
    }

    fn flush(&mut self, at: Timestamps, out: &mut QueueOutput) {
        self.begin(at, out);
        self.serve_pending();
        if self.write_at.is_some_and(|when| when <= at.now) {
            self.write();
        }
        self.finish(out);
        self.report_progress(out);
    }

    fn wake_at(&self) -> Option<Time> {
        let expire = self.expire_at.map(|expires| {
            let wait = expires.0.saturating_sub(self.at.wall.0);
            self.at.now + Duration::from_millis(wait)
        });
        let search = self.selection.has_more() && self.retry_at.is_none();
        let all = [
            self.write_at,
            self.acks_at,
            self.close_files_at,
            self.retry_at,
            expire,
            search.then_some(self.at.now),
        ];
        Time::earliest(all)
    }

    fn session_gone(&mut self, at: Timestamps, session: SessionId, out: &mut QueueOutput) {
        self.begin(at, out);
        let clock = self.uptime_ms();
        self.checkout.close(&mut self.store, session, clock);
        self.unconfirmed.remove(&session);
        self.serve();
        self.finish(out);
    }

    fn node_gone(&mut self, at: Timestamps, dead: DeadIncarnation, out: &mut QueueOutput) {
        self.begin(at, out);
        self.checkout.end_incarnations(&mut self.store, dead);
        let is_over = |s: &SessionId| s.node == dead.node && s.incarnation < dead.before;
        self.unconfirmed.retain(|session, _| !is_over(session));
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
