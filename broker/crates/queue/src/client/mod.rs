//! The session's side of one (session, queue) pair, sans-io.
//!
//! Numbers requests, keeps them until the owner has applied them and sends them again, in order, to whoever owns the
//! queue by then; so a confirm survives a failover and nothing is enqueued or settled twice. Watches that deliveries
//! come without gaps and asks for what is missing. For consumers and gets without acknowledgement it settles in the
//! session's stead, when the session has the message: owners never lose a message on the way.
//!
//! The shard sends what [`QueueClient::poll_send`] gives to [`QueueClient::owner`] and feeds back events.

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

/// Requests kept at most before the session has to pause ([`QueueClient::is_full`]).
pub const MAX_IN_FLIGHT: usize = 4096;
/// Bytes of messages in them.
pub const MAX_IN_FLIGHT_BYTES: usize = 16 << 20;
/// Requests with an answer that are out at a time; others wait behind them.
pub const MAX_UNANSWERED: usize = 64;
/// A session that was told that its owner is lost numbers its requests from the next multiple of this on. An owner that
/// was only out of reach sees by it that what came before is over.
pub const EPOCH: u64 = 1 << 44;
/// Wait before what is kept is sent again: at first, and at most.
pub const RESEND_FIRST: Duration = Duration::from_millis(200);
pub const RESEND_MOST: Duration = Duration::from_secs(2);
/// How often an owner on another node is asked whether deliveries were lost at the end of what came.
pub const PROBE_EVERY: Duration = Duration::from_secs(30);
/// Deliveries settled in the session's stead are told in ranges of this many, or when nothing else is to do.
const AUTO_SETTLE_EVERY: u64 = 256;
/// Owners that pass the session on without anything getting done before it waits a while.
const MAX_HOPS: u32 = 3;
/// Ranges of ids that [`QueueClient::settling`] tells.
pub const MAX_SETTLING: usize = 4096;
/// Times everything is sent again in vain before another member is tried.
const MAX_IN_VAIN: u32 = 2;

/// What the session hears.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientEvent<T> {
    /// Safe on the queue; once per publish.
    Published(T),
    NotPublished(T, RejectReason),
    /// `seq` is what [`QueueClient::request`] returned. A `Get` that found something is told as `Deliver` instead.
    Answer {
        seq: u64,
        answer: QueueReply,
    },
    Deliver {
        consumer: ConsumerId,
        deliveries: Vec<Delivery>,
    },
    Cancelled {
        consumer: ConsumerId,
    },
}

#[derive(Debug)]
struct UnappliedRequest<T> {
    body: RequestBody,
    tag: Option<T>,
}

#[derive(Debug)]
struct PendingRequest {
    seq: u64,
    /// Asked more than once: what came between may have been lost with the first answer.
    again: bool,
    body: RequestBody,
    /// It has come and waits for deliveries.
    answer: Option<QueueReply>,
}

#[derive(Debug)]
struct ConsumerProgress {
    /// The delivery id that comes next.
    expected: u64,
    /// All up to this id has gone to the client, as far as the owner was told.
    received: u64,
    auto_settle: bool,
    /// Delivered without acknowledgement and not settled yet: ids from here to `expected`.
    unsettled_from: u64,
    /// Its `Consume` is answered (a `Get`'s message has come).
    session_state: bool,
    /// The session cancelled it: what was on its way before the queue heard of that still comes.
    /// The number of that request.
    cancelled: Option<u64>,
    /// The session is done with it: what still comes goes back.
    left: bool,
    /// A `ResumeConsumer` is out: since when.
    resumed_at: Option<Time>,
    /// The `Get` that made it.
    get: Option<GetRequest>,
    credit: CreditState,
}

/// See the module. `T` is the session's own word for a publish.
#[derive(Debug)]
pub struct QueueClient<T> {
    session: SessionId,
    /// Whether owners keep what they once applied through a change or restart of the owner.
    lasting: bool,
    /// Where the queue may be, to be tried in turn when nobody says who owns it.
    members: Vec<NodeId>,
    try_next: usize,
    owner: Option<NodeId>,
    hops: u32,
    in_vain: u32,
    /// Requests not yet applied; the first has number `first`.
    kept: VecDeque<UnappliedRequest<T>>,
    first: u64,
    /// How many of them were sent to the owner.
    sent: usize,
    bytes: usize,
    /// Requests with an answer that have none yet, applied or not.
    unanswered: VecDeque<PendingRequest>,
    /// How many of them wait for deliveries.
    early_answers: usize,
    /// Up to where requests with an answer have been put there.
    asked_up_to: u64,
    /// Something was delivered that is to be settled in the session's stead.
    auto_due: bool,
    watches: BTreeMap<ConsumerId, ConsumerProgress>,
    urgent: VecDeque<QueueMessage>,
    /// What callers' numbers are ahead of the owner's (wrapping): callers' go on when the owner's start anew.
    base: u64,
    epoch: u64,
    backoff: Duration,
    resend_at: Option<Time>,
    probe_at: Option<Time>,
    now: Time,
}

impl<T: Copy> QueueClient<T> {
    /// `members`: where the queue may be, the likeliest owner first; `owner` when it is known.
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

    pub fn owner(&self) -> Option<NodeId> {
        self.owner
    }

    /// The queue's members changed.
    pub fn set_members(&mut self, members: Vec<NodeId>) {
        self.members = members;
    }

    /// The session should pause: too much is on its way.
    pub fn is_full(&self) -> bool {
        self.kept.len() >= MAX_IN_FLIGHT || self.bytes >= MAX_IN_FLIGHT_BYTES
    }

    pub fn in_flight(&self) -> usize {
        self.kept.len()
    }

    pub fn in_flight_bytes(&self) -> usize {
        self.bytes
    }

    /// Nothing is outstanding and no consumer stands: the client may be dropped.
    pub fn is_idle(&self) -> bool {
        self.kept.is_empty()
            && self.unanswered.is_empty()
            && self.watches.is_empty()
            && self.urgent.is_empty()
    }

    /// Hands over a message. `tag` comes back in `Published` or `NotPublished`; None when nobody waits for it.
    pub fn publish(&mut self, tag: Option<T>, message: Message) -> u64 {
        self.keep(RequestBody::Publish(message), tag)
    }

    /// Any other request; returns its number.
    pub fn request(&mut self, body: RequestBody) -> u64 {
        if matches!(body, RequestBody::Leave { .. }) {
            // What the session has seen without acknowledging is not to come again.
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
            // Of a consumer that stands it is a new window, and deliveries go on as they were.
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

    /// The next thing to send to the owner; call until None, then again after anything happened.
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
            // One that is sent again is among the unanswered already, or was answered.
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

    /// Turns what was delivered without acknowledgement into settles.
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

    /// An event of the queue, from `from`.
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

    /// The owner is none. Goes where it says, unless it is being sent in circles.
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
        // An owner cannot have applied what was never sent to any.
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

    /// The consumer gets nothing new. What it was sent and the session has not seen goes back.
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
        // What was asked before is applied, and the session has been given what came of it.
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

    /// `Close` is answered where the session is not known. When something was applied before, the end was too, and forgotten
    /// before its answer came through: nothing that is kept is to be done again. Otherwise all of it is yet to be done.
    fn end_is_unknown(&mut self, seq: u64, told: &mut Vec<ClientEvent<T>>) {
        let closing = (self.kept.back()).is_some_and(|k| matches!(k.body, RequestBody::Close));
        let last = self.first + self.kept.len() as u64 - 1;
        if closing && seq == last && self.first > self.epoch * EPOCH + 1 {
            self.start_over(told);
        }
    }

    /// What was to begin with a request that was refused. One that stood already ends when the queue says so.
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
            // Goes back when the cancel is applied.
            return;
        }
        if first != expected {
            return self.ask_resume(consumer);
        }
        // Consecutive as owners send them; a broken one's gap is treated like any other.
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

    /// A `Get` found its message: that is its answer, and nothing more comes.
    fn got(&mut self, consumer: ConsumerId, seq: u64) {
        self.auto_settle();
        self.watches.remove(&consumer);
        let seq = seq.wrapping_sub(self.base);
        if self.forget_question(seq).is_some() {
            self.progress();
        }
    }

    /// What a consumer's session is done with and the owner may not have heard of: ascending ranges of ids that do not touch,
    /// [`MAX_SETTLING`] at most.
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

    /// The client was sent this consumer's deliveries up to this one: as many again may come.
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
            // The owner may be another one, or not have heard it.
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

    /// The owner begins again: what lies below `next` and has not come went elsewhere.
    fn resumed(&mut self, consumer: ConsumerId, next: u64) {
        let Some(watch) = self.watches.get_mut(&consumer) else {
            return;
        };
        if let Some(get) = &mut watch.get {
            // Its only delivery is below `next`.
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
            // Of an owner that has not seen its `Consume` yet.
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
            // A leader that has yet to apply what its predecessors did.
            None if self.lasting => {}
            // It has forgotten what it once applied: a queue that lives in one place was started anew.
            None => self.start_over(told),
            Some(ahead) => {
                let ahead = usize::try_from(ahead).unwrap_or(usize::MAX);
                self.sent = self.sent.min(ahead);
            }
        }
    }

    /// Another node owns the queue now, or nobody knows who: everything is sent again.
    pub fn owner_is(&mut self, now: Time, owner: Option<NodeId>) {
        self.now = now;
        if owner == self.owner {
            return;
        }
        self.owner = owner;
        self.backoff = RESEND_FIRST;
        self.send_again();
    }

    /// Frames to or from the owner may have been lost.
    pub fn link_restored(&mut self, now: Time) {
        self.now = now;
        self.send_again();
    }

    fn send_again(&mut self) {
        self.urgent.clear();
        if !planted::is(Bug::NotSentAgain) {
            self.sent = 0;
        }
        // Applied, but the answer is missing: ask again, first.
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

    /// The owner of a queue that lives in one place is gone with all it held in memory: what was not applied is not
    /// taken, consumers are over, and numbering starts again.
    pub fn owner_lost(&mut self, told: &mut Vec<ClientEvent<T>>) {
        let stood = self
            .watches
            .first_key_value()
            .map(|(consumer, _)| *consumer);
        self.start_over(told);
        if let Some(consumer) = stood.filter(|_| self.kept.is_empty()) {
            // It may live and go on delivering to consumers that are no more: any request of the new numbering ends them.
            self.keep(RequestBody::Recover { consumer }, None);
            // Nobody asked for it: callers' numbers go on as if it were not there.
            self.base = self.base.wrapping_sub(1);
        }
    }

    /// What was asked of an owner that has forgotten it, or is believed to, is over.
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
            // It may live and hold messages for this session: it has to hear of the end.
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

    /// Returns true if something is outstanding that a working owner does at once, or an owner has to be found for consumers that stand.
    fn waits(&self) -> bool {
        let stands = self.owner.is_none() && self.watches.values().any(|w| w.session_state);
        let first = self.first;
        let waits_for_answer = self.unanswered.iter().any(|asked| !asked.is_patient(first));
        stands || !self.kept.is_empty() || waits_for_answer || self.resuming()
    }

    /// Nothing came of what was sent: again, after a longer wait, and after a while to another member.
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

    pub fn wake_at(&self) -> Option<Time> {
        match (self.resend_at, self.probe_at) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }
}

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

/// The consumer that a request is to make.
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
