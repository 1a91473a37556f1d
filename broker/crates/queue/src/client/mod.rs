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

use crate::ranges::Ranges;
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
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Most unapplied requests; with more the session has to pause ([`QueueClient::is_full`]).
pub const MAX_IN_FLIGHT: usize = 4096;
/// Most bytes of messages in unapplied requests, with one message above it at most.
pub const MAX_IN_FLIGHT_BYTES: usize = 16 << 20;
/// Most requests in progress that have an answer; others wait behind them.
pub const MAX_UNANSWERED: usize = 64;
/// Request numbers of one numbering epoch. A session whose owner is lost continues in the next epoch, whose
/// first number tells an owner that was only unreachable to forget the previous requests.
pub const EPOCH: u64 = 1 << 44;
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
    /// The queue ended a consumer.
    Cancelled {
        /// The consumer.
        consumer: ConsumerId,
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
    again: bool,
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
    session_state: bool,
    /// Number of the session's `Cancel` or `Leave`. Deliveries that were sent before the queue applied it still
    /// arrive.
    cancelled: Option<u64>,
    /// The session does not want further deliveries; they are requeued.
    left: bool,
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
    lasting: bool,
    /// The members of the queue, tried in turn while the owner is unknown.
    members: Vec<NodeId>,
    try_next: usize,
    owner: Option<NodeId>,
    hops: u32,
    in_vain: u32,
    /// Unapplied requests; the first has number `first`.
    kept: VecDeque<UnappliedRequest<T>>,
    first: u64,
    /// How many of them were sent to the owner.
    sent: usize,
    bytes: usize,
    /// Unanswered requests, applied or not.
    unanswered: VecDeque<PendingRequest>,
    /// How many of them have an answer that waits for deliveries.
    early_answers: usize,
    /// The last request number that was considered for `unanswered`.
    asked_up_to: u64,
    /// There are deliveries to settle automatically.
    auto_due: bool,
    watches: BTreeMap<ConsumerId, ConsumerProgress>,
    urgent: VecDeque<QueueMessage>,
    /// Difference (wrapping) between the request numbers that the session and the owner use: the owner's
    /// restart with each numbering epoch.
    base: u64,
    epoch: u64,
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
            lasting: kind.is_replicated(),
            owner: owner.or(members.first().copied()),
            members,
            try_next: 1,
            hops: 0,
            in_vain: 0,
            kept: VecDeque::new(),
            first: 1,
            sent: 0,
            bytes: 0,
            unanswered: VecDeque::new(),
            early_answers: 0,
            asked_up_to: 0,
            auto_due: false,
            watches: BTreeMap::new(),
            urgent: VecDeque::new(),
            base: 0,
            epoch: 0,
            backoff: RESEND_FIRST,
            resend_at: None,
            probe_at: None,
            now,
        }
    }

    /// The node to send to. None: the client waits before it tries one.
    pub fn owner(&self) -> Option<NodeId> {
        self.owner
    }

    /// Sets the members of the queue.
    pub fn set_members(&mut self, members: Vec<NodeId>) {
        self.members = members;
    }

    /// Returns true if too much is unapplied and the session has to pause.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= MAX_IN_FLIGHT || self.bytes >= MAX_IN_FLIGHT_BYTES
    }

    /// Number of unapplied requests.
    pub fn in_flight(&self) -> usize {
        self.kept.len()
    }

    /// Bytes of unapplied requests.
    pub fn in_flight_bytes(&self) -> usize {
        self.bytes
    }

    /// Returns true if nothing is outstanding and there is no consumer: the client may be dropped.
    pub fn is_idle(&self) -> bool {
        self.kept.is_empty()
            && self.unanswered.is_empty()
            && self.watches.is_empty()
            && self.urgent.is_empty()
    }

    /// Publishes a message. `tag` is returned in `Published` or `NotPublished`; None: the session needs no
    /// event. Returns the number of the request.
    pub fn publish(&mut self, tag: Option<T>, message: Message) -> u64 {
        self.keep(RequestBody::Publish(message), tag)
    }

    /// Makes any other request; returns its number.
    pub fn request(&mut self, body: RequestBody) -> u64 {
        if matches!(body, RequestBody::Leave { .. }) {
            // Messages that the session has got without acknowledgement must not be requeued.
            self.auto_settle();
        }
        let body = self.translate_credit(body);
        self.keep(body, None)
    }

    fn keep(&mut self, body: RequestBody, tag: Option<T>) -> u64 {
        let seq = self.next_number();
        self.bytes += weight(&body);
        self.watch(seq, &body);
        self.kept.push_back(UnappliedRequest { body, tag });
        if self.owner.is_none() && self.resend_at.is_none() {
            self.resend_at = Some(self.now + self.backoff);
        }
        seq
    }

    fn next_number(&self) -> u64 {
        self.base
            .wrapping_add(self.first)
            .wrapping_add(self.kept.len() as u64)
    }

    fn watch(&mut self, seq: u64, body: &RequestBody) {
        let watch = |auto_settle, get| ConsumerProgress {
            expected: 1,
            received: 0,
            auto_settle,
            unsettled_from: 1,
            session_state: false,
            cancelled: None,
            left: false,
            resumed_at: None,
            get,
            credit: CreditState::default(),
        };
        match body {
            // For an existing consumer it changes the prefetch only; its delivery ids continue.
            RequestBody::Consume { consumer, spec } => {
                let fresh = watch(spec.no_ack, None);
                self.watches.entry(*consumer).or_insert(fresh);
            }
            RequestBody::Succeed(epoch_consumer) => {
                let fresh = watch(epoch_consumer.spec.no_ack, None);
                self.watches.insert(epoch_consumer.consumer, fresh);
            }
            RequestBody::Get { consumer, no_ack } => {
                let get = GetRequest::new(seq);
                self.watches.insert(*consumer, watch(*no_ack, Some(get)));
            }
            RequestBody::Cancel { consumer } | RequestBody::Leave { consumer } => {
                if let Some(watch) = self.watches.get_mut(consumer) {
                    watch.cancelled = Some(seq);
                    watch.left = matches!(body, RequestBody::Leave { .. });
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
        if self.sent == self.kept.len() {
            self.auto_settle();
        }
        let kept = self.kept.get(self.sent)?;
        let seq = self.first + self.sent as u64;
        if has_answer(&kept.body) {
            // A request that is sent again is already in `unanswered`, or has been answered.
            if seq > self.asked_up_to {
                if self.unanswered.len() >= MAX_UNANSWERED {
                    return None;
                }
                let body = kept.body.clone();
                self.unanswered.push_back(PendingRequest {
                    seq,
                    again: false,
                    body,
                    answer: None,
                });
                self.asked_up_to = seq;
            }
        }
        self.sent += 1;
        if self.resend_at.is_none() {
            self.resend_at = Some(self.now + self.backoff);
        }
        Some(QueueMessage::Request(Request {
            session: self.session,
            seq,
            body: kept.body.clone(),
        }))
    }

    /// Settles messages that were delivered without acknowledgement.
    fn auto_settle(&mut self) {
        if !std::mem::take(&mut self.auto_due) {
            return;
        }
        let due: Vec<(ConsumerId, u64, u64)> = self
            .watches
            .iter_mut()
            .filter(|(_, w)| w.auto_settle && w.unsettled_from < w.expected)
            .map(|(id, w)| {
                let from = std::mem::replace(&mut w.unsettled_from, w.expected);
                (*id, from, w.expected - 1)
            })
            .collect();
        for (consumer, from, to) in due {
            self.keep_settle(consumer, SettlementOutcome::Accepted, from, to);
        }
    }

    fn keep_settle(
        &mut self,
        consumer: ConsumerId,
        outcome: SettlementOutcome,
        from: u64,
        to: u64,
    ) {
        let ids = vec![(from, to)];
        self.keep(
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
        told: &mut Vec<ClientEvent<T>>,
    ) {
        self.now = now;
        match event {
            QueueEvent::Applied { up_to } => self.applied(up_to, &[], told),
            QueueEvent::AppliedExcept { up_to, refused } => self.applied(up_to, &refused, told),
            QueueEvent::Answer { seq, answer } => self.answered(seq, answer, told),
            QueueEvent::Deliver {
                consumer,
                deliveries,
            } => self.delivered(consumer, deliveries, told),
            QueueEvent::Resumed { consumer, next } => self.resumed(consumer, next),
            QueueEvent::Cancelled { consumer } => self.cancelled(consumer, told),
            QueueEvent::Owner => {
                self.owner = Some(from);
                self.backoff = RESEND_FIRST;
                self.send_again();
            }
            QueueEvent::NotOwner { leader } => {
                if self.owner == Some(from) {
                    self.passed_on(leader.filter(|leader| *leader != from));
                }
            }
            QueueEvent::Expecting { expected } => {
                if self.owner == Some(from) {
                    self.expecting(expected, told);
                }
            }
        }
        while let Some((asked, answer)) = self.next_due_answer() {
            self.tell_answer(&asked, answer, told);
        }
    }

    /// The node is not the owner. Follows its redirect, unless redirects go in circles.
    fn passed_on(&mut self, leader: Option<NodeId>) {
        self.hops += 1;
        if leader.is_some() && self.hops <= MAX_HOPS {
            return self.owner_is(self.now, leader);
        }
        if let Some(at) = self.members.iter().position(|m| Some(*m) == leader) {
            self.try_next = at;
        }
        self.owner = None;
        self.resend_at = Some(self.now + self.backoff);
    }

    fn applied(
        &mut self,
        up_to: u64,
        refused: &[RefusedPublishes],
        told: &mut Vec<ClientEvent<T>>,
    ) {
        let mut refused = refused.iter().copied().peekable();
        let mut progressed = false;
        // An owner cannot have applied a request that was never sent.
        while self.first <= up_to {
            let Some(kept) = self.kept.pop_front() else {
                break;
            };
            let seq = self.first;
            self.first += 1;
            self.sent = self.sent.saturating_sub(1);
            self.bytes = self.bytes.saturating_sub(weight(&kept.body));
            progressed = true;
            while refused.next_if(|r| r.to < seq).is_some() {}
            let why = refused.peek().filter(|r| r.from <= seq).map(|r| r.why);
            if let Some(tag) = kept.tag {
                told.push(match why {
                    Some(why) => ClientEvent::NotPublished(tag, why),
                    None => ClientEvent::Published(tag),
                });
            }
            match kept.body {
                RequestBody::Cancel { consumer } => self.finish_cancel(consumer),
                RequestBody::Leave { consumer } => {
                    self.watches.remove(&consumer);
                }
                RequestBody::Close => {
                    self.watches.clear();
                    self.unanswered.clear();
                    self.early_answers = 0;
                }
                _ => {}
            }
        }
        if progressed {
            self.progress();
        }
    }

    /// The queue has applied the cancel: requeues deliveries that the session has not got.
    fn finish_cancel(&mut self, consumer: ConsumerId) {
        self.auto_settle();
        if let Some(watch) = self.watches.remove(&consumer)
            && !planted::is(Bug::CancelLosesDeliveries)
        {
            self.keep_settle(
                consumer,
                SettlementOutcome::Requeue,
                watch.expected,
                u64::MAX,
            );
        }
    }

    fn progress(&mut self) {
        self.backoff = RESEND_FIRST;
        self.hops = 0;
        self.in_vain = 0;
        self.resend_at = self.waits().then(|| self.now + self.backoff);
        let stands = self.watches.values().any(|w| w.session_state);
        let remote = self.owner.is_some_and(|owner| owner != self.session.node);
        self.probe_at = (stands && remote).then(|| self.now + PROBE_EVERY);
    }

    fn resuming(&self) -> bool {
        self.watches.values().any(|w| w.resumed_at.is_some())
    }

    fn answered(&mut self, seq: u64, answer: QueueReply, told: &mut Vec<ClientEvent<T>>) {
        let Some(at) = self.unanswered.iter().position(|a| a.seq == seq) else {
            return self.end_is_unknown(seq, told);
        };
        if let Some(asked) = self.unanswered.get(at)
            && self.is_early(&asked.body, &answer)
        {
            if let Some(asked) = self.unanswered.get_mut(at)
                && asked.answer.replace(answer).is_none()
            {
                self.early_answers += 1;
            }
            return self.progress();
        }
        let Some(asked) = self.forget_question(seq) else {
            return;
        };
        self.tell_answer(&asked, answer, told);
    }

    fn tell_answer(
        &mut self,
        asked: &PendingRequest,
        answer: QueueReply,
        told: &mut Vec<ClientEvent<T>>,
    ) {
        if answer == QueueReply::Empty && self.get_again(&asked.body) {
            return self.progress();
        }
        let answer = self.to_counts(&asked.body, answer);
        let told_as = self.caller_number(asked);
        // The queue has applied earlier requests, and the session has got the events that they caused.
        let number = self.base.wrapping_add(asked.seq);
        for watch in self.watches.values_mut() {
            watch.left |= watch.cancelled.is_some_and(|cancel| cancel < number);
        }
        match (consumer_asked_for(&asked.body), &answer) {
            (Some(consumer), QueueReply::Consuming | QueueReply::GoesOn) => {
                if let Some(watch) = self.watches.get_mut(&consumer) {
                    watch.session_state = true;
                }
                if asked.again {
                    self.ask_resume(consumer);
                }
            }
            (Some(consumer), _) => self.unwatch(consumer),
            (None, _) => {}
        }
        told.push(ClientEvent::Answer {
            seq: told_as,
            answer,
        });
        self.progress();
    }

    /// Handles the answer 404 to a `Close`: the queue does not know the session. If some request was applied
    /// before, the queue has applied the `Close` too and has forgotten the session since, so no request may be
    /// repeated. Otherwise all of them are yet to be applied.
    fn end_is_unknown(&mut self, seq: u64, told: &mut Vec<ClientEvent<T>>) {
        let closing = (self.kept.back()).is_some_and(|k| matches!(k.body, RequestBody::Close));
        let last = self.first + self.kept.len() as u64 - 1;
        if closing && seq == last && self.first > self.epoch * EPOCH + 1 {
            self.start_over(told);
        }
    }

    /// Removes the consumer of a refused request. A consumer that existed before ends only when the queue
    /// cancels it.
    fn unwatch(&mut self, consumer: ConsumerId) {
        if self
            .watches
            .get(&consumer)
            .is_some_and(|w| !w.session_state)
        {
            self.watches.remove(&consumer);
        }
    }

    fn forget_question(&mut self, seq: u64) -> Option<PendingRequest> {
        let at = self.unanswered.iter().position(|a| a.seq == seq)?;
        let asked = self.unanswered.remove(at)?;
        self.early_answers -= usize::from(asked.answer.is_some());
        Some(asked)
    }

    fn delivered(
        &mut self,
        consumer: ConsumerId,
        mut deliveries: Vec<Delivery>,
        told: &mut Vec<ClientEvent<T>>,
    ) {
        let Some(watch) = self.watches.get_mut(&consumer) else {
            return;
        };
        if watch.left {
            return;
        }
        let (expected, cancelled) = (watch.expected, watch.cancelled.is_some());
        deliveries.retain(|d| d.id >= expected);
        let Some(first) = deliveries.first().map(|d| d.id) else {
            return;
        };
        if first != expected && cancelled {
            // It is requeued when the cancel is applied.
            return;
        }
        if first != expected {
            return self.ask_resume(consumer);
        }
        // Owners send consecutive ids. A gap within an event is handled like one between events.
        let run = deliveries.iter().zip(expected..);
        let good = run.take_while(|(d, id)| d.id == *id).count();
        let gap = good < deliveries.len();
        deliveries.truncate(good);
        watch.expected += good as u64;
        let get = watch.get;
        self.auto_due |= watch.auto_settle;
        let settle_now =
            watch.auto_settle && watch.expected - watch.unsettled_from >= AUTO_SETTLE_EVERY;
        told.push(ClientEvent::Deliver {
            consumer,
            deliveries,
        });
        if settle_now {
            self.auto_settle();
        }
        if let Some(get) = get {
            self.got(consumer, get.last);
        }
        if gap && !cancelled {
            self.ask_resume(consumer);
        }
    }

    /// A `Get` found its message: that is its answer, and there are no further deliveries.
    fn got(&mut self, consumer: ConsumerId, seq: u64) {
        self.auto_settle();
        self.watches.remove(&consumer);
        let seq = seq.wrapping_sub(self.base);
        if self.forget_question(seq).is_some() {
            self.progress();
        }
    }

    /// Accepted deliveries of a consumer that the owner may not have applied yet, as disjoint ascending ranges
    /// of ids, at most [`MAX_SETTLING`].
    pub fn settling(&self, consumer: ConsumerId) -> Vec<(u64, u64)> {
        let mut all: Vec<(u64, u64)> = Vec::new();
        for kept in &self.kept {
            match &kept.body {
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
        if let Some(watch) = self.watches.get_mut(&consumer) {
            watch.received = watch.received.max(up_to);
            self.tell_received(consumer, up_to);
        }
    }

    fn tell_received(&mut self, consumer: ConsumerId, up_to: u64) {
        self.urgent
            .push_back(QueueMessage::Received(DeliveryProgress {
                session: self.session,
                consumer,
                up_to,
            }));
    }

    fn ask_resume(&mut self, consumer: ConsumerId) {
        let Some(watch) = self.watches.get_mut(&consumer) else {
            return;
        };
        if watch.resumed_at.is_some() {
            return;
        }
        watch.resumed_at = Some(self.now);
        let (next, received) = (watch.expected, watch.received);
        if received > 0 {
            // A new owner does not know it, and the last report may be lost.
            self.tell_received(consumer, received);
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
    fn resumed(&mut self, consumer: ConsumerId, next: u64) {
        let Some(watch) = self.watches.get_mut(&consumer) else {
            return;
        };
        if let Some(get) = &mut watch.get {
            // Its only delivery was requeued.
            get.given_back = true;
        }
        if watch.resumed_at.take().is_none() {
            return;
        }
        if next > watch.expected {
            self.auto_settle();
            self.skip(consumer, next);
        }
        self.progress();
    }

    fn cancelled(&mut self, consumer: ConsumerId, told: &mut Vec<ClientEvent<T>>) {
        let Some(watch) = self.watches.get(&consumer) else {
            return;
        };
        if !watch.session_state {
            // From an owner that has not applied its `Consume` yet.
            return;
        }
        let silent = watch.cancelled.is_some();
        self.auto_settle();
        self.watches.remove(&consumer);
        if !silent {
            told.push(ClientEvent::Cancelled { consumer });
        }
    }

    /// The owner misses requests from `expected` on.
    fn expecting(&mut self, expected: u64, told: &mut Vec<ClientEvent<T>>) {
        match expected.checked_sub(self.first) {
            // A new leader that has not yet applied all committed entries.
            None if self.lasting => {}
            // The queue is not replicated and has forgotten applied requests: it was restarted.
            None => self.start_over(told),
            Some(ahead) => {
                let ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
                self.sent = self.sent.min(ahead);
            }
        }
    }

    /// Another node owns the queue now, or the owner is unknown. Sends everything again.
    pub fn owner_is(&mut self, now: Time, owner: Option<NodeId>) {
        self.now = now;
        if owner == self.owner {
            return;
        }
        self.owner = owner;
        self.backoff = RESEND_FIRST;
        self.send_again();
    }

    /// The connection to the owner was interrupted, so that messages may be lost. Sends everything again.
    pub fn link_restored(&mut self, now: Time) {
        self.now = now;
        self.send_again();
    }

    fn send_again(&mut self) {
        self.urgent.clear();
        if !planted::is(Bug::NotSentAgain) {
            self.sent = 0;
        }
        // Applied requests without an answer are asked for first.
        for asked in &mut self.unanswered {
            asked.again = true;
            if asked.seq >= self.first || asked.answer.is_some() {
                continue;
            }
            self.urgent.push_back(QueueMessage::Request(Request {
                session: self.session,
                seq: asked.seq,
                body: asked.body.clone(),
            }));
        }
        let session_state: Vec<ConsumerId> = self
            .watches
            .iter_mut()
            .filter(|(_, w)| w.session_state)
            .map(|(id, w)| {
                w.resumed_at = None;
                *id
            })
            .collect();
        for consumer in session_state {
            self.ask_resume(consumer);
        }
        self.resend_at = self.waits().then(|| self.now + self.backoff);
    }

    /// The owner of a queue that is not replicated is lost with its memory. Unapplied publishes fail, consumers
    /// end, and request numbers continue in a new epoch.
    pub fn owner_lost(&mut self, told: &mut Vec<ClientEvent<T>>) {
        let stood = self
            .watches
            .first_key_value()
            .map(|(consumer, _)| *consumer);
        self.start_over(told);
        if let Some(consumer) = stood.filter(|_| self.kept.is_empty()) {
            // The owner may be alive and deliver to the ended consumers: any request of the new epoch ends
            // them.
            self.keep(RequestBody::Recover { consumer }, None);
            // The session did not make this request, so its numbers skip it.
            self.base = self.base.wrapping_sub(1);
        }
    }

    /// Ends all requests and consumers, and starts a new numbering epoch.
    fn start_over(&mut self, told: &mut Vec<ClientEvent<T>>) {
        let next = self.next_number();
        let mut closing = false;
        for kept in std::mem::take(&mut self.kept) {
            if let Some(tag) = kept.tag {
                told.push(ClientEvent::NotPublished(tag, RejectReason::Unavailable));
            }
            closing |= matches!(kept.body, RequestBody::Close);
        }
        let asked = std::mem::take(&mut self.unanswered);
        self.early_answers = 0;
        for asked in asked {
            let seq = self.caller_number(&asked);
            if let Some(consumer) = consumer_asked_for(&asked.body) {
                self.unwatch(consumer);
            }
            told.push(ClientEvent::Answer {
                seq,
                answer: QueueReply::Refused {
                    code: 404,
                    text: "the queue's node is down or was restarted".to_owned(),
                },
            });
        }
        for (consumer, watch) in std::mem::take(&mut self.watches) {
            if watch.cancelled.is_none() && watch.get.is_none() {
                told.push(ClientEvent::Cancelled { consumer });
            }
        }
        self.epoch += 1;
        self.first = self.epoch * EPOCH + 1;
        self.base = next.wrapping_sub(self.first);
        self.asked_up_to = self.first - 1;
        self.auto_due = false;
        self.sent = 0;
        self.bytes = 0;
        self.urgent.clear();
        self.resend_at = None;
        self.probe_at = None;
        if closing {
            // The owner may be alive and hold messages of this session: it has to learn of the end.
            self.keep(RequestBody::Close, None);
        }
    }

    /// Call when [`wake_at`](Self::wake_at) has come.
    pub fn tick(&mut self, now: Time) {
        self.now = now;
        if self.resend_at.is_some_and(|at| at <= now) {
            self.resend_at = None;
            self.send_in_vain();
        }
        if self.probe_at.is_some_and(|at| at <= now) {
            self.probe_at = Some(now + PROBE_EVERY);
            let session_state = self.watches.iter().filter(|(_, w)| w.session_state);
            let session_state: Vec<ConsumerId> = session_state.map(|(id, _)| *id).collect();
            for consumer in session_state {
                self.ask_resume(consumer);
            }
        }
    }

    /// Returns true if something is outstanding that a working owner does at once, or if consumers need an
    /// owner.
    fn waits(&self) -> bool {
        let stands = self.owner.is_none() && self.watches.values().any(|w| w.session_state);
        let first = self.first;
        let waits_for_answer = self.unanswered.iter().any(|asked| !asked.is_patient(first));
        stands || !self.kept.is_empty() || waits_for_answer || self.resuming()
    }

    /// Nothing came of the last attempt: sends everything again with a longer wait, and after some attempts to
    /// another member.
    fn send_in_vain(&mut self) {
        if !self.waits() {
            return;
        }
        self.backoff = (self.backoff * 2).min(RESEND_MOST);
        self.in_vain += 1;
        if self.owner.is_none() || self.in_vain > MAX_IN_VAIN {
            let next = self.members.get(self.try_next % self.members.len().max(1));
            self.owner = next.copied().or(self.owner);
            self.try_next = self.try_next.wrapping_add(1);
            self.in_vain = 0;
            self.hops = 0;
        }
        self.send_again();
    }

    /// When [`tick`](Self::tick) is due.
    pub fn wake_at(&self) -> Option<Time> {
        match (self.resend_at, self.probe_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

/// Bytes of a request that count towards [`MAX_IN_FLIGHT_BYTES`].
fn weight(body: &RequestBody) -> usize {
    match body {
        RequestBody::Publish(message) => message.as_bytes().len(),
        RequestBody::Settle { ids, .. } => ids.len() * size_of::<(u64, u64)>(),
        RequestBody::Modify {
            ids, modification, ..
        } => ids.len() * size_of::<(u64, u64)>() + modification.annotations.bytes(),
        RequestBody::Succeed(epoch_consumer) => {
            let settled = epoch_consumer.settled.as_ref().map_or(0, |s| s.ids.len());
            settled * size_of::<(u64, u64)>()
        }
        _ => 0,
    }
}

/// The consumer that a request creates.
fn consumer_asked_for(body: &RequestBody) -> Option<ConsumerId> {
    match body {
        RequestBody::Consume { consumer, .. } | RequestBody::Get { consumer, .. } => {
            Some(*consumer)
        }
        RequestBody::Succeed(epoch_consumer) => Some(epoch_consumer.consumer),
        _ => None,
    }
}

fn has_answer(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Consume { .. }
            | RequestBody::Succeed(_)
            | RequestBody::Get { .. }
            | RequestBody::Credit { .. }
            | RequestBody::Purge
            | RequestBody::Stat
            | RequestBody::Delete { .. }
    )
}
