//! The session's side of one pair of a session and a queue. It performs no I/O.
//!
//! A [`QueueClient`] numbers requests, keeps them until the owner has applied them, and sends them again, in
//! order, to a new owner. So a confirm survives a failover, and nothing is enqueued or settled twice. It checks
//! that deliveries arrive without gaps and asks for missing ones. For consumers and gets without
//! acknowledgement it settles deliveries once the session has them, so that an owner never loses a message in
//! transit.
//!
//! The shard sends the messages of [`QueueClient::poll_send`] to [`QueueClient::owner`] and passes the events
//! of the owner to [`QueueClient::event`].

mod credit;
#[cfg(test)]
mod credit_tests;
#[cfg(test)]
mod get_tests;
mod gets;
#[cfg(test)]
mod tests;

use crate::cursor::StreamBatch;
use crate::ranges::Ranges;
use crate::sorted_map::SortedMap;
use crate::{
    ConsumerId, Delivery, DeliveryProgress, QueueEvent, QueueMessage, QueueReply, QueueType,
    RefusedPublishes, RejectReason, Request, RequestBody, ResumeConsumer, SessionId,
    SettlementOutcome,
};
use credit::CreditState;
use env::planted::{self, Bug};
use env::{NodeId, Time};
use gets::GetRequest;
use message::Message;
use std::collections::VecDeque;
use std::time::Duration;

/// Most unapplied requests; with more the session has to pause ([`QueueClient::is_full`]).
pub const MAX_IN_FLIGHT: usize = 4096;
/// Most bytes of messages in unapplied requests, with one message above it at most.
pub const MAX_IN_FLIGHT_BYTES: usize = 16 << 20;
/// Most requests in progress that have an answer; others wait behind them.
pub const MAX_UNANSWERED: usize = 64;
/// Request numbers of one numbering epoch. A session whose owner is lost continues in the next epoch, whose
/// first number tells an owner that was only unreachable to forget the previous requests.
pub const NUMBERING_EPOCH: u64 = 1 << 44;
/// Wait before unapplied requests are sent again, the first time.
pub const RESEND_FIRST: Duration = Duration::from_millis(200);
/// Longest wait before unapplied requests are sent again.
pub const RESEND_MOST: Duration = Duration::from_secs(2);
/// Interval for asking an owner on another node whether its last deliveries were lost.
pub const PROBE_EVERY: Duration = Duration::from_secs(30);
/// Automatic settlements are sent for this many deliveries at a time, or when there is nothing else to send.
const AUTO_SETTLE_EVERY: u64 = 256;
/// Redirects without progress before the client waits for a while.
const MAX_HOPS: u32 = 3;
/// Most ranges that [`QueueClient::settling`] returns.
pub const MAX_SETTLING: usize = 4096;
/// Resends without progress before another member is tried.
const MAX_IN_VAIN: u32 = 2;

/// Why a consumer ended without a request of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelReason {
    /// The queue was deleted, or does not know the consumer.
    ByQueue,
    /// The queue is not replicated, and its node is down or was restarted. Also if the queue was deleted and its owner has
    /// not said so.
    OwnerLost,
}

/// An event for the session. `T` is its tag for a publish.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientEvent<T> {
    /// The publish is applied and durable; once per publish.
    Published(T),
    /// The queue refused the publish, or it is unknown whether it was applied.
    NotPublished(T, RejectReason),
    /// The answer to a request. A `Get` that finds a message causes `Deliver` instead.
    Answer {
        /// The number that [`QueueClient::request`] returned.
        seq: u64,
        /// The answer.
        answer: QueueReply,
    },
    /// Messages in order, each once.
    Deliver {
        /// The consumer that gets them.
        consumer: ConsumerId,
        /// The messages, ascending by id.
        deliveries: Vec<Delivery>,
    },
    /// A consumer ended without a request of its session.
    Cancelled {
        /// The consumer.
        consumer: ConsumerId,
        /// Why.
        reason: CancelReason,
    },
    /// A consumer did not settle deliveries in time, and its queue has requeued them. A consumer with a prefetch has
    /// ended and must be cancelled.
    TimedOut {
        /// The consumer.
        consumer: ConsumerId,
        /// The last of these deliveries.
        up_to: u64,
    },
    /// A consumer gets messages or waits for another one to end: its first state, and each change of it or of the owner.
    Activity {
        /// The consumer.
        consumer: ConsumerId,
        /// False while another consumer is the single active one.
        is_active: bool,
        /// The owner of the queue.
        owner: NodeId,
    },
}

/// A request that the owner has not applied yet.
#[derive(Debug)]
struct UnappliedRequest<T> {
    body: RequestBody,
    tag: Option<T>,
}

/// A request that has not been answered yet.
#[derive(Debug)]
struct PendingRequest {
    seq: u64,
    /// It was sent more than once: the answer may be to a copy, and deliveries after the first answer may be
    /// lost.
    is_repeated: bool,
    body: RequestBody,
    /// The answer, while it waits for the deliveries that it counts.
    answer: Option<QueueReply>,
}

/// State of a consumer or `Get`.
#[derive(Debug)]
struct ConsumerProgress {
    /// Id of the next delivery.
    expected: u64,
    /// All deliveries up to this id have gone to the client, as reported to the owner.
    received: u64,
    /// Deliveries are settled once the session has them.
    auto_settle: bool,
    /// With `auto_settle`: the ids from this one to before `expected` are delivered and not settled yet.
    unsettled_from: u64,
    /// Its `Consume` is answered.
    is_established: bool,
    /// Number of the session's `Cancel` or `CancelAndRequeue`. Deliveries that were sent before the queue applied it still
    /// arrive.
    cancelled: Option<u64>,
    /// The last activity that an owner reported, and that owner.
    activity: Option<(bool, NodeId)>,
    /// The session does not want further deliveries; they are requeued.
    has_left: bool,
    /// When deliveries were asked for again, until the owner replies.
    resumed_at: Option<Time>,
    /// The `Get` that created it.
    get: Option<GetRequest>,
    credit: CreditState,
}

/// See the module. `T` is the session's tag for a publish.
#[derive(Debug)]
pub struct QueueClient<T> {
    session: SessionId,
    /// The queue is replicated: an owner never forgets a request that it has applied.
    is_replicated: bool,
    /// The queue is a stream: a new leader knows nothing of the sessions, and consumers are kept by the session's side.
    owner_forgets: bool,
    /// The members of the queue, tried in turn while the owner is unknown.
    members: Box<[NodeId]>,
    try_next: u32,
    owner: Option<NodeId>,
    hops: u32,
    failed_resends: u32,
    /// Unapplied requests; the first has number `first`.
    unapplied: VecDeque<UnappliedRequest<T>>,
    first: u64,
    /// How many of them were sent to the owner.
    sent: usize,
    bytes: usize,
    /// Unanswered requests, applied or not.
    unanswered: VecDeque<PendingRequest>,
    /// How many of them have an answer that waits for deliveries.
    early_answers: u32,
    /// The last request number that was considered for `unanswered`.
    registered_up_to: u64,
    /// There are deliveries to settle automatically.
    auto_settle_due: bool,
    consumers: SortedMap<ConsumerId, Box<ConsumerProgress>>,
    urgent: VecDeque<QueueMessage>,
    /// Difference (wrapping) between the request numbers that the session and the owner use: the owner's
    /// restart with each numbering epoch.
    base: u64,
    numbering_epoch: u64,
    backoff: Duration,
    resend_at: Option<Time>,
    probe_at: Option<Time>,
    now: Time,
}

impl<T: Copy> QueueClient<T> {
    /// Creates the client. `members` are those of the queue, the likeliest owner first; `owner` is given if it
    /// is known.
    pub fn new(
        session: SessionId,
        kind: QueueType,
        members: Vec<NodeId>,
        owner: Option<NodeId>,
        now: Time,
    ) -> Self {
        QueueClient {
            session,
            is_replicated: kind.is_replicated(),
            owner_forgets: false,
            owner: owner.or(members.first().copied()),
            members: members.into(),
            try_next: 1,
            hops: 0,
            failed_resends: 0,
            unapplied: VecDeque::new(),
            first: 1,
            sent: 0,
            bytes: 0,
            unanswered: VecDeque::new(),
            early_answers: 0,
            registered_up_to: 0,
            auto_settle_due: false,
            consumers: SortedMap::default(),
            urgent: VecDeque::new(),
            base: 0,
            numbering_epoch: 0,
            backoff: RESEND_FIRST,
            resend_at: None,
            probe_at: None,
            now,
        }
    }

    /// Creates the client of a stream. A new leader of a stream does not know which requests were applied. The client
    /// then starts a new numbering epoch and sends the unapplied requests again, in order: publishes without a producer
    /// can be stored twice.
    pub fn of_stream(
        session: SessionId,
        members: Vec<NodeId>,
        owner: Option<NodeId>,
        now: Time,
    ) -> Self {
        let mut client = QueueClient::new(session, QueueType::Quorum, members, owner, now);
        client.owner_forgets = true;
        client
    }

    /// The node to send to. None: the client waits before it tries one.
    pub fn owner(&self) -> Option<NodeId> {
        self.owner
    }

    /// Sets the members of the queue.
    pub fn set_members(&mut self, members: Vec<NodeId>) {
        self.members = members.into();
    }

    /// Returns true if too much is unapplied and the session has to pause.
    pub fn is_full(&self) -> bool {
        self.unapplied.len() >= MAX_IN_FLIGHT || self.bytes >= MAX_IN_FLIGHT_BYTES
    }

    /// Number of unapplied requests.
    pub fn in_flight(&self) -> usize {
        self.unapplied.len()
    }

    /// Bytes of unapplied requests.
    pub fn in_flight_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if nothing is outstanding and there is no consumer: the client may be dropped.
    pub fn is_idle(&self) -> bool {
        self.unapplied.is_empty()
            && self.unanswered.is_empty()
            && self.consumers.is_empty()
            && self.urgent.is_empty()
    }

    /// Publishes a message. `tag` is returned in `Published` or `NotPublished`; None: the session needs no
    /// event. Returns the number of the request.
    pub fn publish(&mut self, tag: Option<T>, message: Message) -> u64 {
        self.enqueue(RequestBody::Publish(message), tag)
    }

    /// Makes any other request; returns its number.
    pub fn request(&mut self, body: RequestBody) -> u64 {
        if matches!(body, RequestBody::CancelAndRequeue { .. }) {
            // Messages that the session has got without acknowledgement must not be requeued.
            self.auto_settle();
        }
        let body = self.translate_credit(body);
        self.enqueue(body, None)
    }

    /// Publishes a batch to a stream. `tag` is as in [`QueueClient::publish`].
    pub fn publish_batch(&mut self, tag: Option<T>, batch: StreamBatch) -> u64 {
        self.enqueue(RequestBody::PublishBatch(batch), tag)
    }

    fn enqueue(&mut self, body: RequestBody, tag: Option<T>) -> u64 {
        debug_assert!(self.sent <= self.unapplied.len());
        let seq = self.next_number();
        self.bytes += buffered_bytes(&body);
        self.track_consumer(seq, &body);
        reserve_first(&mut self.unapplied);
        self.unapplied.push_back(UnappliedRequest { body, tag });
        if self.owner.is_none() && self.resend_at.is_none() {
            self.resend_at = Some(self.now + self.backoff);
        }
        seq
    }

    fn next_number(&self) -> u64 {
        self.base
            .wrapping_add(self.first)
            .wrapping_add(self.unapplied.len() as u64)
    }

    fn track_consumer(&mut self, seq: u64, body: &RequestBody) {
        if self.owner_forgets {
            return;
        }
        let new_progress = |auto_settle, get| {
            Box::new(ConsumerProgress {
                expected: 1,
                received: 0,
                auto_settle,
                unsettled_from: 1,
                is_established: false,
                cancelled: None,
                activity: None,
                has_left: false,
                resumed_at: None,
                get,
                credit: CreditState::default(),
            })
        };
        match body {
            // For an existing consumer it changes the prefetch only; its delivery ids continue.
            RequestBody::Consume { consumer, spec } => {
                let fresh = new_progress(spec.no_ack, None);
                self.consumers.insert_if_absent(*consumer, fresh);
            }
            RequestBody::TakeOver(epoch_consumer) => {
                let fresh = new_progress(epoch_consumer.spec.no_ack, None);
                self.consumers.insert(epoch_consumer.consumer, fresh);
            }
            RequestBody::Get { consumer, no_ack } => {
                let get = GetRequest::new(seq);
                self.consumers
                    .insert(*consumer, new_progress(*no_ack, Some(get)));
            }
            RequestBody::GetAt(get) => {
                let progress = new_progress(get.no_ack, Some(GetRequest::new(seq)));
                self.consumers.insert(get.consumer, progress);
            }
            RequestBody::Cancel { consumer } | RequestBody::CancelAndRequeue { consumer } => {
                if let Some(progress) = self.consumers.get_mut(consumer) {
                    progress.cancelled = Some(seq);
                    progress.has_left = matches!(body, RequestBody::CancelAndRequeue { .. });
                }
            }
            _ => {}
        }
    }

    /// The next message to send to the owner. Call until None, and again after each other call.
    pub fn poll_send(&mut self) -> Option<QueueMessage> {
        self.owner?;
        if let Some(item) = self.urgent.pop_front() {
            return Some(item);
        }
        if self.sent == self.unapplied.len() {
            self.auto_settle();
        }
        let unapplied = self.unapplied.get(self.sent)?;
        let seq = self.first + self.sent as u64;
        if has_answer(&unapplied.body) {
            // A request that is sent again is already in `unanswered`, or has been answered.
            if seq > self.registered_up_to {
                if self.unanswered.len() >= MAX_UNANSWERED {
                    return None;
                }
                let body = unapplied.body.clone();
                reserve_first(&mut self.unanswered);
                self.unanswered.push_back(PendingRequest {
                    seq,
                    is_repeated: false,
                    body,
                    answer: None,
                });
                debug_assert!(self.unanswered.len() <= MAX_UNANSWERED);
                self.registered_up_to = seq;
            }
        }
        self.sent += 1;
        if self.resend_at.is_none() {
            self.resend_at = Some(self.now + self.backoff);
        }
        Some(QueueMessage::Request(Request {
            session: self.session,
            seq,
            body: unapplied.body.clone(),
        }))
    }

    /// Settles messages that were delivered without acknowledgement.
    fn auto_settle(&mut self) {
        if !std::mem::take(&mut self.auto_settle_due) {
            return;
        }
        let due: Vec<(ConsumerId, u64, u64)> = self
            .consumers
            .iter_mut()
            .filter(|(_, w)| w.auto_settle && w.unsettled_from < w.expected)
            .map(|(id, w)| {
                let from = std::mem::replace(&mut w.unsettled_from, w.expected);
                (*id, from, w.expected - 1)
            })
            .collect();
        for (consumer, from, to) in due {
            self.enqueue_settle(consumer, SettlementOutcome::Accepted, from, to);
        }
    }

    fn enqueue_settle(
        &mut self,
        consumer: ConsumerId,
        outcome: SettlementOutcome,
        from: u64,
        to: u64,
    ) {
        let ids = vec![(from, to)];
        self.enqueue(
            RequestBody::Settle {
                consumer,
                outcome,
                ids,
            },
            None,
        );
    }

    /// Handles an event of the queue from node `from`.
    pub fn event(
        &mut self,
        now: Time,
        from: NodeId,
        event: QueueEvent,
        events: &mut Vec<ClientEvent<T>>,
    ) {
        self.now = now;
        match event {
            QueueEvent::Applied { up_to } => self.on_applied(up_to, &[], events),
            QueueEvent::AppliedExcept { up_to, refused } => {
                self.on_applied(up_to, &refused, events)
            }
            QueueEvent::Answer { seq, answer } => self.on_answer(seq, answer, events),
            QueueEvent::Deliver {
                consumer,
                deliveries,
            } => self.on_deliver(consumer, deliveries, events),
            QueueEvent::Resumed { consumer, next } => self.on_resumed(consumer, next),
            QueueEvent::Cancelled { consumer } => self.on_cancelled(consumer, events),
            QueueEvent::TimedOut { consumer, up_to } => self.on_timed_out(consumer, up_to, events),
            QueueEvent::Activity {
                consumer,
                is_active,
            } => {
                // An owner that was replaced may still be heard after its successor.
                if self.owner == Some(from) {
                    self.on_activity(consumer, is_active, from, events);
                }
            }
            QueueEvent::Owner => {
                self.owner = Some(from);
                self.backoff = RESEND_FIRST;
                self.resend_all();
            }
            QueueEvent::NotOwner { leader } => {
                if self.owner == Some(from) {
                    self.on_not_owner(leader.filter(|leader| *leader != from));
                }
            }
            QueueEvent::Expecting { expected } => {
                if self.owner == Some(from) {
                    self.on_expecting(expected, events);
                }
            }
        }
        while let Some((pending, answer)) = self.next_due_answer() {
            self.report_answer(&pending, answer, events);
        }
        if cfg!(debug_assertions) {
            self.assert_consistent();
        }
    }

    /// Asserts what holds between any two calls, whatever the owner sends.
    fn assert_consistent(&self) {
        assert!(self.sent <= self.unapplied.len());
        assert_eq!(self.first / NUMBERING_EPOCH, self.numbering_epoch);
        assert!(self.unanswered.len() <= MAX_UNANSWERED);
        let pairs = self.unanswered.iter().zip(self.unanswered.iter().skip(1));
        assert!(pairs.into_iter().all(|(a, b)| a.seq < b.seq));
        let early = self.unanswered.iter().filter(|p| p.answer.is_some());
        assert_eq!(early.count(), self.early_answers as usize);
        for (consumer, progress) in self.consumers.iter().take(MAX_UNANSWERED) {
            let settled = progress.unsettled_from <= progress.expected;
            assert!(settled, "consumer {} of {:?}", consumer.0, self.session);
        }
    }

    /// The node is not the owner. Follows its redirect, unless redirects go in circles.
    fn on_not_owner(&mut self, leader: Option<NodeId>) {
        self.hops += 1;
        if leader.is_some() && self.hops <= MAX_HOPS {
            return self.owner_is(self.now, leader);
        }
        if let Some(at) = self.members.iter().position(|m| Some(*m) == leader) {
            self.try_next = at as u32;
        }
        self.owner = None;
        self.resend_at = Some(self.now + self.backoff);
    }

    fn on_applied(
        &mut self,
        up_to: u64,
        refused: &[RefusedPublishes],
        events: &mut Vec<ClientEvent<T>>,
    ) {
        let mut refused = refused.iter().copied().peekable();
        let mut progressed = false;
        // An owner cannot have applied a request that was never sent.
        while self.first <= up_to {
            let Some(unapplied) = self.unapplied.pop_front() else {
                break;
            };
            let seq = self.first;
            self.first += 1;
            self.sent = self.sent.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(buffered_bytes(&unapplied.body));
            progressed = true;
            while refused.next_if(|r| r.to < seq).is_some() {}
            let why = refused.peek().filter(|r| r.from <= seq).map(|r| r.why);
            if let Some(tag) = unapplied.tag {
                events.push(match why {
                    Some(why) => ClientEvent::NotPublished(tag, why),
                    None => ClientEvent::Published(tag),
                });
            }
            match unapplied.body {
                RequestBody::Cancel { consumer } => self.finish_cancel(consumer),
                RequestBody::CancelAndRequeue { consumer } => {
                    self.consumers.remove(&consumer);
                }
                RequestBody::Close => {
                    self.consumers = SortedMap::default();
                    self.unanswered.clear();
                    self.early_answers = 0;
                }
                _ => {}
            }
        }
        debug_assert!(self.sent <= self.unapplied.len());
        debug_assert!(!self.unapplied.is_empty() || self.bytes == 0);
        if progressed {
            self.note_progress();
        }
    }

    /// The queue has applied the cancel: requeues deliveries that the session has not got.
    fn finish_cancel(&mut self, consumer: ConsumerId) {
        self.auto_settle();
        if let Some(progress) = self.consumers.remove(&consumer)
            && !planted::is(Bug::CancelLosesDeliveries)
        {
            self.enqueue_settle(
                consumer,
                SettlementOutcome::Requeue,
                progress.expected,
                u64::MAX,
            );
        }
    }

    fn note_progress(&mut self) {
        self.backoff = RESEND_FIRST;
        self.hops = 0;
        self.failed_resends = 0;
        self.resend_at = self.awaits_owner().then(|| self.now + self.backoff);
        let has_consumers = self.consumers.values().any(|w| w.is_established);
        let remote = self.owner.is_some_and(|owner| owner != self.session.node);
        self.probe_at = (has_consumers && remote).then(|| self.now + PROBE_EVERY);
    }

    fn is_resuming(&self) -> bool {
        self.consumers.values().any(|w| w.resumed_at.is_some())
    }

    fn on_answer(&mut self, seq: u64, answer: QueueReply, events: &mut Vec<ClientEvent<T>>) {
        let Some(at) = self.unanswered.iter().position(|a| a.seq == seq) else {
            return self.on_unknown_session(seq, events);
        };
        if let Some(pending) = self.unanswered.get(at)
            && self.is_early(&pending.body, &answer)
        {
            if let Some(pending) = self.unanswered.get_mut(at)
                && pending.answer.replace(answer).is_none()
            {
                self.early_answers += 1;
            }
            return self.note_progress();
        }
        let Some(pending) = self.remove_unanswered(seq) else {
            return;
        };
        self.report_answer(&pending, answer, events);
    }

    fn report_answer(
        &mut self,
        pending: &PendingRequest,
        answer: QueueReply,
        events: &mut Vec<ClientEvent<T>>,
    ) {
        if answer == QueueReply::Empty && self.repeat_get(&pending.body) {
            return self.note_progress();
        }
        let answer = self.to_counts(&pending.body, answer);
        let caller_seq = self.caller_number(pending);
        // The queue has applied earlier requests, and the session has got the events that they caused.
        let number = self.base.wrapping_add(pending.seq);
        for progress in self.consumers.values_mut() {
            progress.has_left |= progress.cancelled.is_some_and(|cancel| cancel < number);
        }
        match (consumer_created_by(&pending.body), &answer) {
            (Some(consumer), QueueReply::Consuming | QueueReply::EpochContinues) => {
                if let Some(progress) = self.consumers.get_mut(&consumer) {
                    progress.is_established = true;
                }
                if pending.is_repeated {
                    self.request_resume(consumer);
                }
            }
            (Some(consumer), _) => self.remove_unestablished(consumer),
            (None, _) => {}
        }
        events.push(ClientEvent::Answer {
            seq: caller_seq,
            answer,
        });
        self.note_progress();
    }

    /// Handles the answer 404 to a `Close`: the queue does not know the session. If some request was applied
    /// before, the queue has applied the `Close` too and has forgotten the session since, so no request may be
    /// repeated. Otherwise all of them are yet to be applied.
    fn on_unknown_session(&mut self, seq: u64, events: &mut Vec<ClientEvent<T>>) {
        let closing = (self.unapplied.back()).is_some_and(|k| matches!(k.body, RequestBody::Close));
        let last = self.first + self.unapplied.len() as u64 - 1;
        if closing && seq == last && self.first > self.numbering_epoch * NUMBERING_EPOCH + 1 {
            self.start_over(events);
        }
    }

    /// Removes the consumer of a refused request. A consumer that existed before ends only when the queue
    /// cancels it.
    fn remove_unestablished(&mut self, consumer: ConsumerId) {
        if self
            .consumers
            .get(&consumer)
            .is_some_and(|w| !w.is_established)
        {
            self.consumers.remove(&consumer);
        }
    }

    fn remove_unanswered(&mut self, seq: u64) -> Option<PendingRequest> {
        let at = self.unanswered.iter().position(|a| a.seq == seq)?;
        let pending = self.unanswered.remove(at)?;
        self.early_answers -= u32::from(pending.answer.is_some());
        Some(pending)
    }

    fn on_deliver(
        &mut self,
        consumer: ConsumerId,
        mut deliveries: Vec<Delivery>,
        events: &mut Vec<ClientEvent<T>>,
    ) {
        let Some(progress) = self.consumers.get_mut(&consumer) else {
            return;
        };
        if progress.has_left {
            return;
        }
        let (expected, cancelled) = (progress.expected, progress.cancelled.is_some());
        deliveries.retain(|d| d.id >= expected);
        let Some(first) = deliveries.first().map(|d| d.id) else {
            return;
        };
        if first != expected && cancelled {
            // It is requeued when the cancel is applied.
            return;
        }
        if first != expected {
            return self.request_resume(consumer);
        }
        // Owners send consecutive ids. A gap within an event is handled like one between events.
        let numbered = deliveries.iter().zip(expected..);
        let consecutive = numbered.take_while(|(d, id)| d.id == *id).count();
        let gap = consecutive < deliveries.len();
        deliveries.truncate(consecutive);
        progress.expected += consecutive as u64;
        let get = progress.get;
        self.auto_settle_due |= progress.auto_settle;
        let settle_now = progress.auto_settle
            && progress.expected - progress.unsettled_from >= AUTO_SETTLE_EVERY;
        events.push(ClientEvent::Deliver {
            consumer,
            deliveries,
        });
        if settle_now {
            self.auto_settle();
        }
        if let Some(get) = get {
            self.finish_get(consumer, get.last);
        }
        if gap && !cancelled {
            self.request_resume(consumer);
        }
    }

    /// A `Get` found its message: that is its answer, and there are no further deliveries.
    fn finish_get(&mut self, consumer: ConsumerId, seq: u64) {
        self.auto_settle();
        self.consumers.remove(&consumer);
        let seq = seq.wrapping_sub(self.base);
        if self.remove_unanswered(seq).is_some() {
            self.note_progress();
        }
    }

    /// Accepted deliveries of a consumer that the owner may not have applied yet, as disjoint ascending ranges
    /// of ids, at most [`MAX_SETTLING`].
    pub fn settling(&self, consumer: ConsumerId) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        for unapplied in &self.unapplied {
            match &unapplied.body {
                RequestBody::Settle {
                    consumer: of,
                    outcome: SettlementOutcome::Accepted,
                    ids,
                } if *of == consumer => all.extend(ids),
                _ => {}
            }
        }
        Ranges::new(all).iter().take(MAX_SETTLING).collect()
    }

    /// Records that the client was sent this consumer's deliveries up to this id, which opens the flow window.
    pub fn received(&mut self, consumer: ConsumerId, up_to: u64) {
        if let Some(progress) = self.consumers.get_mut(&consumer) {
            debug_assert!(
                up_to < progress.expected,
                "the session got delivery {up_to}"
            );
            progress.received = progress.received.max(up_to);
            self.report_received(consumer, up_to);
        }
    }

    fn report_received(&mut self, consumer: ConsumerId, up_to: u64) {
        self.urgent
            .push_back(QueueMessage::Received(DeliveryProgress {
                session: self.session,
                consumer,
                up_to,
            }));
    }

    fn request_resume(&mut self, consumer: ConsumerId) {
        let Some(progress) = self.consumers.get_mut(&consumer) else {
            return;
        };
        if progress.resumed_at.is_some() {
            return;
        }
        progress.resumed_at = Some(self.now);
        let (next, received) = (progress.expected, progress.received);
        if received > 0 {
            // A new owner does not know it, and the last report may be lost.
            self.report_received(consumer, received);
        }
        self.urgent.push_back(QueueMessage::Resume(ResumeConsumer {
            session: self.session,
            consumer,
            next,
        }));
        if self.resend_at.is_none() {
            self.resend_at = Some(self.now + self.backoff);
        }
    }

    /// The owner delivers from `next` on. Missing deliveries below `next` were requeued.
    fn on_resumed(&mut self, consumer: ConsumerId, next: u64) {
        let Some(progress) = self.consumers.get_mut(&consumer) else {
            return;
        };
        if let Some(get) = &mut progress.get {
            // Its only delivery was requeued.
            get.given_back = true;
        }
        if progress.resumed_at.take().is_none() {
            return;
        }
        if next > progress.expected {
            self.auto_settle();
            self.skip(consumer, next);
        }
        self.note_progress();
    }

    fn on_cancelled(&mut self, consumer: ConsumerId, events: &mut Vec<ClientEvent<T>>) {
        let Some(progress) = self.consumers.get(&consumer) else {
            return;
        };
        if !progress.is_established {
            // From an owner that has not applied its `Consume` yet.
            return;
        }
        let was_requested = progress.cancelled.is_some();
        self.auto_settle();
        self.consumers.remove(&consumer);
        if !was_requested {
            let reason = CancelReason::ByQueue;
            events.push(ClientEvent::Cancelled { consumer, reason });
        }
    }

    fn on_timed_out(&mut self, consumer: ConsumerId, up_to: u64, events: &mut Vec<ClientEvent<T>>) {
        let progress = self.consumers.get(&consumer);
        if progress.is_some_and(|p| p.is_established && p.cancelled.is_none()) {
            events.push(ClientEvent::TimedOut { consumer, up_to });
        }
    }

    fn on_activity(
        &mut self,
        consumer: ConsumerId,
        is_active: bool,
        owner: NodeId,
        events: &mut Vec<ClientEvent<T>>,
    ) {
        let Some(progress) = self.consumers.get_mut(&consumer) else {
            return;
        };
        // The owner repeats it after the answer to a repeated request.
        if progress.is_established
            && progress.cancelled.is_none()
            && progress.activity.replace((is_active, owner)) != Some((is_active, owner))
        {
            events.push(ClientEvent::Activity {
                consumer,
                is_active,
                owner,
            });
        }
    }

    /// The owner misses requests from `expected` on.
    fn on_expecting(&mut self, expected: u64, events: &mut Vec<ClientEvent<T>>) {
        match expected.checked_sub(self.first) {
            None if self.owner_forgets => {
                // Late copies name an earlier epoch.
                if expected == self.numbering_epoch * NUMBERING_EPOCH + 1 {
                    self.renumber(events);
                }
            }
            // A new leader that has not yet applied all committed entries.
            None if self.is_replicated => {}
            // The queue is not replicated and has forgotten applied requests: it was restarted.
            None => self.start_over(events),
            Some(ahead) => {
                let ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
                self.sent = self.sent.min(ahead);
            }
        }
    }

    /// The owner does not know the session (any more). Starts a new numbering epoch with the unapplied requests. An answer
    /// that was lost with the previous owner is replaced by a refusal.
    fn renumber(&mut self, events: &mut Vec<ClientEvent<T>>) {
        let next = self.next_number();
        let first = self.first;
        let pending = std::mem::take(&mut self.unanswered);
        let (lost, mut kept): (VecDeque<_>, VecDeque<_>) =
            pending.into_iter().partition(|pending| pending.seq < first);
        for pending in lost {
            let seq = self.caller_number(&pending);
            events.push(ClientEvent::Answer {
                seq,
                answer: QueueReply::Refused {
                    code: 404,
                    text: "the leader of the stream has changed".to_owned(),
                },
            });
        }
        self.numbering_epoch += 1;
        self.first = self.numbering_epoch * NUMBERING_EPOCH + 1;
        let renumbered = |seq: u64| self.first + (seq - first);
        for pending in &mut kept {
            pending.seq = renumbered(pending.seq);
        }
        self.registered_up_to = match self.registered_up_to.checked_sub(first) {
            Some(ahead) => self.first + ahead,
            None => self.first - 1,
        };
        self.early_answers = kept.iter().filter(|p| p.answer.is_some()).count() as u32;
        self.unanswered = kept;
        let ahead = self.first.wrapping_add(self.unapplied.len() as u64);
        self.base = next.wrapping_sub(ahead);
        debug_assert!(self.first % NUMBERING_EPOCH == 1 && self.next_number() == next);
        self.resend_all();
    }

    /// Another node owns the queue now, or the owner is unknown. Sends everything again.
    pub fn owner_is(&mut self, now: Time, owner: Option<NodeId>) {
        self.now = now;
        if owner == self.owner {
            return;
        }
        self.owner = owner;
        self.backoff = RESEND_FIRST;
        self.resend_all();
    }

    /// The connection to the owner was interrupted, so that messages may be lost. Sends everything again.
    pub fn link_restored(&mut self, now: Time) {
        self.now = now;
        self.resend_all();
    }

    fn resend_all(&mut self) {
        self.urgent.clear();
        if !planted::is(Bug::NotSentAgain) {
            self.sent = 0;
        }
        // Applied requests without an answer are asked for first.
        for pending in &mut self.unanswered {
            pending.is_repeated = true;
            if pending.seq >= self.first || pending.answer.is_some() {
                continue;
            }
            self.urgent.push_back(QueueMessage::Request(Request {
                session: self.session,
                seq: pending.seq,
                body: pending.body.clone(),
            }));
        }
        let is_established: Vec<ConsumerId> = self
            .consumers
            .iter_mut()
            .filter(|(_, w)| w.is_established)
            .map(|(id, w)| {
                w.resumed_at = None;
                *id
            })
            .collect();
        for consumer in is_established {
            self.request_resume(consumer);
        }
        self.resend_at = self.awaits_owner().then(|| self.now + self.backoff);
    }

    /// The owner of a queue that is not replicated is lost with its memory. Unapplied publishes fail, consumers
    /// end, and request numbers continue in a new epoch.
    pub fn owner_lost(&mut self, events: &mut Vec<ClientEvent<T>>) {
        let consumer = self.consumers.first().map(|(consumer, _)| *consumer);
        // The owner may be lost a second time before it was told that the consumers ended.
        let ended = self
            .unapplied
            .iter()
            .find_map(|request| match request.body {
                RequestBody::Recover { consumer } => Some(consumer),
                _ => None,
            });
        let next = self.next_number();
        self.start_over(events);
        if let Some(consumer) = consumer.or(ended).filter(|_| self.unapplied.is_empty()) {
            // The owner may be alive and deliver to the ended consumers: any request of the new epoch ends
            // them.
            self.enqueue(RequestBody::Recover { consumer }, None);
            // The session did not make this request, so its numbers skip it.
            self.base = self.base.wrapping_sub(1);
            debug_assert_eq!(self.next_number(), next);
        }
    }

    /// Ends all requests and consumers, and starts a new numbering epoch.
    fn start_over(&mut self, events: &mut Vec<ClientEvent<T>>) {
        let next = self.next_number();
        let mut closing = false;
        for unapplied in std::mem::take(&mut self.unapplied) {
            if let Some(tag) = unapplied.tag {
                events.push(ClientEvent::NotPublished(tag, RejectReason::Unavailable));
            }
            closing |= matches!(unapplied.body, RequestBody::Close);
        }
        let pending = std::mem::take(&mut self.unanswered);
        self.early_answers = 0;
        for pending in pending {
            let seq = self.caller_number(&pending);
            if let Some(consumer) = consumer_created_by(&pending.body) {
                self.remove_unestablished(consumer);
            }
            events.push(ClientEvent::Answer {
                seq,
                answer: QueueReply::Refused {
                    code: 404,
                    text: "the queue's node is down or was restarted".to_owned(),
                },
            });
        }
        for (consumer, progress) in std::mem::take(&mut self.consumers).into_iter() {
            if progress.cancelled.is_none() && progress.get.is_none() {
                let reason = CancelReason::OwnerLost;
                events.push(ClientEvent::Cancelled { consumer, reason });
            }
        }
        self.numbering_epoch += 1;
        self.first = self.numbering_epoch * NUMBERING_EPOCH + 1;
        self.base = next.wrapping_sub(self.first);
        debug_assert!(self.first % NUMBERING_EPOCH == 1 && self.next_number() == next);
        self.registered_up_to = self.first - 1;
        self.auto_settle_due = false;
        self.sent = 0;
        self.bytes = 0;
        self.urgent.clear();
        self.resend_at = None;
        self.probe_at = None;
        if closing {
            // The owner may be alive and hold messages of this session: it has to learn of the end.
            self.enqueue(RequestBody::Close, None);
        }
    }

    /// Call when [`wake_at`](Self::wake_at) has come. Requests go to members for which `is_linked` returns true, if there are
    /// any.
    pub fn tick(&mut self, now: Time, is_linked: impl Fn(NodeId) -> bool) {
        self.now = now;
        if self.resend_at.is_some_and(|at| at <= now) {
            self.resend_at = None;
            self.resend(is_linked);
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = Some(now + PROBE_EVERY);
            let is_established = self.consumers.iter().filter(|(_, w)| w.is_established);
            let is_established: Vec<ConsumerId> = is_established.map(|(id, _)| *id).collect();
            for consumer in is_established {
                self.request_resume(consumer);
            }
        }
        if self.unapplied.is_empty() && self.unanswered.is_empty() && self.urgent.is_empty() {
            // An idle session keeps no room for requests. This is called long after the last one.
            self.unapplied = VecDeque::new();
            self.unanswered = VecDeque::new();
            self.urgent = VecDeque::new();
        }
    }

    /// Returns true if something is outstanding that a working owner does at once, or if consumers need an
    /// owner.
    fn awaits_owner(&self) -> bool {
        let has_consumers =
            self.owner.is_none() && self.consumers.values().any(|w| w.is_established);
        let first = self.first;
        let awaits_answer = self
            .unanswered
            .iter()
            .any(|pending| !pending.may_be_slow(first));
        has_consumers || !self.unapplied.is_empty() || awaits_answer || self.is_resuming()
    }

    /// Nothing came of the last attempt: sends everything again with a longer wait, and to another member if the owner is
    /// not linked or after some attempts.
    fn resend(&mut self, is_linked: impl Fn(NodeId) -> bool) {
        if !self.awaits_owner() {
            return;
        }
        self.backoff = (self.backoff * 2).min(RESEND_MOST);
        self.failed_resends += 1;
        let has_owner = self.owner.is_some_and(&is_linked);
        if !has_owner || self.failed_resends > MAX_IN_VAIN {
            let from = self.try_next as usize % self.members.len().max(1);
            let (before, after) = self.members.split_at(from);
            let mut in_turn = after.iter().chain(before);
            let next = in_turn.position(|member| is_linked(*member)).unwrap_or(0);
            let at = (from + next) % self.members.len().max(1);
            self.owner = self.members.get(at).copied().or(self.owner);
            self.try_next = at as u32 + 1;
            self.failed_resends = 0;
            self.hops = 0;
        }
        self.resend_all();
    }

    /// When [`tick`](Self::tick) is due.
    pub fn wake_at(&self) -> Option<Time> {
        match (self.resend_at, self.probe_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// Allocates room for the first item only: most sessions that consume have one request on its way. Busy ones double the room.
fn reserve_first<I>(items: &mut VecDeque<I>) {
    if items.capacity() == 0 {
        items.reserve_exact(1);
    }
}

/// Bytes of a request that count towards [`MAX_IN_FLIGHT_BYTES`].
fn buffered_bytes(body: &RequestBody) -> usize {
    match body {
        RequestBody::Publish(message) => message.as_bytes().len(),
        RequestBody::PublishBatch(batch) => batch.entries.len(),
        RequestBody::Settle { ids, .. } => ids.len() * size_of::<(u64, u64)>(),
        RequestBody::Modify {
            ids, modification, ..
        } => ids.len() * size_of::<(u64, u64)>() + modification.annotations.bytes(),
        RequestBody::TakeOver(epoch_consumer) => {
            let settled = epoch_consumer.settled.as_ref().map_or(0, |s| s.ids.len());
            settled * size_of::<(u64, u64)>()
        }
        _ => 0,
    }
}

/// The consumer that a request creates.
fn consumer_created_by(body: &RequestBody) -> Option<ConsumerId> {
    match body {
        RequestBody::Consume { consumer, .. } | RequestBody::Get { consumer, .. } => {
            Some(*consumer)
        }
        RequestBody::TakeOver(epoch_consumer) => Some(epoch_consumer.consumer),
        RequestBody::GetAt(get) => Some(get.consumer),
        _ => None,
    }
}

fn has_answer(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Consume { .. }
            | RequestBody::TakeOver(_)
            | RequestBody::Get { .. }
            | RequestBody::GetAt(_)
            | RequestBody::Credit { .. }
            | RequestBody::Purge
            | RequestBody::Stat
            | RequestBody::Delete { .. }
    ) || matches!(body, RequestBody::Stream(request) if request.has_answer())
}
