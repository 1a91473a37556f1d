//! Links on which a client consumes: credit, deliveries and their outcomes.

use crate::ended;
use crate::filters;
use crate::state::{ConnectionState, DeliveryOutcome, StepContext};
use crate::stored::with_encoded_delivery;
use crate::wait::WaitReason;
use ::filter::Filter;
use amqp10::{Connection, CreditState, LinkId, OutgoingDeliveryOf, SendError};
use codec_amqp10::{Map, Reader, Symbol, map};
use env::NodeId;
use metadata::{Name, QueueId, QueueRecord, QueueType, Tree};
use queue::{ConsumerId, Delivery, RequestBody, SettlementOutcome};
use session::{DeliveryKey, TraceEvent, WrittenDeliveries};
use std::collections::VecDeque;
use std::num::NonZeroU64;

/// The answer that the client expects to its flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ExpectedFlow {
    /// The credit that is left has to be used up.
    drain: bool,
    echo: bool,
}

#[derive(Debug)]
pub(crate) struct Consumer {
    pub link: LinkId,
    pub queue: QueueId,
    pub queue_name: Name,
    pub kind: QueueType,
    pub id: ConsumerId,
    /// Deliveries are sent settled.
    pub is_settled: bool,
    /// The queue of a dynamic source, which ends with the link.
    pub dynamic_queue: Option<Name>,
    /// The source is a queue of direct reply-to: deliveries for which the client has no credit or no window are
    /// dropped.
    pub is_volatile: bool,
    /// Messages that do not satisfy all of them are not sent. Of streams only.
    pub conditions: Box<[Filter]>,
    /// The filters that have an effect, for the answer to the attach and for listings.
    pub effective_filters: Option<Box<[u8]>>,
    /// The last delivery that was not sent because of the conditions, and that the queue was not told yet.
    skipped: Option<NonZeroU64>,
    /// The last delivery that the queue's credit allows.
    up_to: u64,
    /// Deliveries that the client may still be sent.
    credit: u32,
    /// The id of the last delivery from the queue.
    last: u64,
    /// Messages of the queue that wait for credit, by its last answer.
    ready: u64,
    /// Deliveries that wait for the session's window or for space in the outbox. The queue sends at most
    /// [`queue::FLOW_WINDOW`].
    pub held: VecDeque<Delivery>,
    written: WrittenDeliveries,
    /// The queue was told the credit and did not answer.
    is_crediting: bool,
    /// The client changed its credit meanwhile.
    is_credit_due: bool,
    /// The flow that the next answer of the queue completes.
    expected: ExpectedFlow,
    /// A flow that waits until the held deliveries are sent.
    due: ExpectedFlow,
    /// The queue has answered a credit.
    was_credited: bool,
    /// State that the client does not know.
    unreported: LinkProperties,
    /// The state that the client knows.
    reported: LinkProperties,
}

/// State of a link that flows report as properties.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct LinkProperties {
    /// This is the active consumer. RabbitMQ has this property.
    is_active: Option<bool>,
    /// The node that leads the queue, to which the client may move its connection.
    leader: Option<NonZeroU64>,
}

impl LinkProperties {
    fn encode(&self, tree: &Tree) -> Vec<u8> {
        let mut encoded = Vec::new();
        let mut properties = map(&mut encoded);
        if let Some(is_active) = self.is_active {
            properties.push(&const { Symbol::from_static("rabbitmq:active") });
            properties.push(&is_active);
        }
        let leader = self.leader.map(|leader| NodeId(leader.get()));
        if let Some(node) = leader.and_then(|leader| tree.node(leader)) {
            properties.push(&const { Symbol::from_static("posthorn:leader") });
            properties.push(&*node.name);
        }
        properties.finish();
        encoded
    }
}

/// Capacity that the list of held deliveries keeps.
const KEEP: usize = 16;

impl Consumer {
    pub(crate) fn new(link: LinkId, queue: &QueueRecord, is_settled: bool) -> Consumer {
        Consumer {
            link,
            queue: queue.id,
            queue_name: queue.name.clone(),
            kind: queue.kind,
            id: ConsumerId(link.number()),
            is_settled,
            dynamic_queue: None,
            is_volatile: false,
            conditions: Box::default(),
            effective_filters: None,
            skipped: None,
            up_to: 0,
            credit: 0,
            last: 0,
            ready: 0,
            held: VecDeque::new(),
            written: WrittenDeliveries::default(),
            is_crediting: false,
            is_credit_due: false,
            expected: ExpectedFlow::default(),
            due: ExpectedFlow::default(),
            was_credited: false,
            unreported: LinkProperties::default(),
            reported: LinkProperties::default(),
        }
    }

    /// Returns true if the queue has sent deliveries. They may be settled.
    pub(crate) fn has_deliveries(&self) -> bool {
        self.last > 0
    }

    /// Takes over the credit of the client.
    pub(crate) fn set_credit(
        &mut self,
        credit: CreditState,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        debug_assert!(!self.is_volatile, "the queue sends replies without credit");
        self.credit = credit.credit;
        // Messages that wait for the window must not be kept from others if the client takes its credit back.
        // They return in the order in which the queue serves them again.
        let kept = self.held.len().min(self.credit as usize);
        for delivery in self.held.split_off(kept) {
            self.give_back(delivery.id, state);
        }
        // A flow that waits for held deliveries would use up the new credit as well.
        let due = std::mem::take(&mut self.due);
        self.expected.drain = credit.drain;
        self.expected.echo |= credit.echo || due.echo;
        self.is_credit_due = true;
        self.send_credit(state, cx);
    }

    /// Takes over the credit of the client of a volatile source. There is nothing to drain.
    pub(crate) fn set_volatile_credit(
        &mut self,
        credit: CreditState,
        engine: &mut Connection,
        cx: &mut StepContext<'_>,
    ) {
        self.credit = credit.credit;
        self.due.drain |= credit.drain;
        self.due.echo |= credit.echo;
        self.send_due_flow(engine, cx);
    }

    /// Tells the queue the credit, unless it has an answer open. A session that drains must wait for the answer before it
    /// sends other credit, and one open request bounds the memory that flows can take.
    fn send_credit(&mut self, state: &mut ConnectionState, cx: &mut StepContext<'_>) {
        if self.is_crediting || !std::mem::take(&mut self.is_credit_due) {
            return;
        }
        self.is_crediting = true;
        let unused = u64::from(self.credit).saturating_sub(self.held.len() as u64);
        self.up_to = self.last.saturating_add(unused);
        let body = RequestBody::Credit {
            consumer: self.id,
            up_to: self.up_to,
            drain: self.expected.drain,
        };
        state.request(self.queue, body, self.link.number(), WaitReason::Credit, cx);
    }

    /// Handles the queue's answer to a credit, which follows the deliveries that the credit caused.
    pub(crate) fn handle_credited(
        &mut self,
        available: u64,
        is_drained: bool,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        self.is_crediting = false;
        self.was_credited = true;
        self.report_activity(engine, cx);
        self.ready = available;
        self.update_available(engine);
        if self.is_credit_due {
            return self.send_credit(state, cx);
        }
        // If the queue used the whole credit, also for messages that were not sent, there may be more.
        let has_unused_credit = self.credit as usize > self.held.len();
        let may_have_more =
            !self.conditions.is_empty() && self.last >= self.up_to && has_unused_credit;
        let is_drained = is_drained && !may_have_more;
        // Without credit there is nothing to drain, and the client still expects the answer.
        if self.expected.drain && !is_drained && self.credit > 0 {
            self.is_credit_due = true;
            return self.send_credit(state, cx);
        }
        let expected = std::mem::take(&mut self.expected);
        self.due.drain |= expected.drain;
        self.due.echo |= expected.echo;
        self.send_due_flow(engine, cx);
    }

    /// Informs the engine of the number of messages that wait for credit, at the queue and here.
    fn update_available(&self, engine: &mut Connection) {
        let available = self.ready.saturating_add(self.held.len() as u64);
        let available = u32::try_from(available).unwrap_or(u32::MAX);
        ended(engine.set_available(self.link, available));
    }

    /// Handles a change of the single active consumer that concerns this one, or of the queue's owner.
    pub(crate) fn handle_activity(
        &mut self,
        is_active: bool,
        owner: NodeId,
        engine: &mut Connection,
        cx: &mut StepContext<'_>,
    ) {
        self.unreported = LinkProperties {
            is_active: Some(is_active),
            leader: NonZeroU64::new(owner.0),
        };
        self.report_activity(engine, cx);
    }

    /// Tells the client what it does not know of the link's state: as in RabbitMQ after the first credit, and after
    /// each change. A client that drains takes the next flow for the answer, so the state follows it.
    fn report_activity(&mut self, engine: &mut Connection, cx: &mut StepContext<'_>) {
        if !self.was_credited || self.expected.drain || self.due.drain {
            return;
        }
        let unreported = std::mem::take(&mut self.unreported);
        let news = LinkProperties {
            is_active: unreported
                .is_active
                .filter(|it| self.reported.is_active != Some(*it)),
            leader: unreported
                .leader
                .filter(|it| self.reported.leader != Some(*it)),
        };
        if news != LinkProperties::default() {
            self.reported = unreported;
            let encoded = news.encode(cx.broker.tree());
            if let Ok(properties) = Reader::new(&encoded).read::<Map<'_>>() {
                ended(engine.report_properties(self.link, properties, cx.tail()));
            }
        }
    }

    /// Answers the client's flow. The answer must not overtake deliveries.
    fn send_due_flow(&mut self, engine: &mut Connection, cx: &mut StepContext<'_>) {
        if self.due == ExpectedFlow::default() || !self.held.is_empty() {
            return;
        }
        // Held deliveries were sent since the queue's answer.
        self.update_available(engine);
        let due = std::mem::take(&mut self.due);
        if due.drain {
            self.credit = 0;
            ended(engine.drained(self.link, cx.tail()));
            self.report_activity(engine, cx);
        } else {
            ended(engine.report_flow(self.link, false, cx.tail()));
        }
    }

    /// Returns a delivery that the client was not sent to the queue.
    fn give_back(&self, id: u64, state: &mut ConnectionState) {
        let outcome = DeliveryOutcome::Settled(SettlementOutcome::Unseen);
        state.settle(self.queue, self.id, outcome, id);
    }

    /// Sends deliveries of the queue, or holds them until the client can be sent more. The error ends the link.
    pub(crate) fn deliver(
        &mut self,
        deliveries: Vec<Delivery>,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), SendError> {
        if let Some(last) = deliveries.last() {
            self.last = last.id;
        }
        if self.is_volatile {
            return self.deliver_replies(deliveries, engine, state, cx);
        }
        let now_ms = cx.broker.wall().0;
        for delivery in deliveries {
            if !self.conditions.is_empty()
                && !filters::matches(&self.conditions, &delivery.message, now_ms)
            {
                self.skipped = NonZeroU64::new(delivery.id);
                continue;
            }
            if self.credit as usize <= self.held.len() {
                // Sent before the queue knew of the reduced credit.
                self.give_back(delivery.id, state);
            } else if !self.held.is_empty() {
                self.held.push_back(delivery);
            } else if !self.try_send(&delivery, engine, state, cx)? {
                state.holding.push(self.link.number());
                self.held.push_back(delivery);
            }
        }
        self.send_held(engine, state, cx)
    }

    /// Sends replies of direct reply-to. As in RabbitMQ, those that the client cannot be sent now are dropped.
    fn deliver_replies(
        &mut self,
        deliveries: Vec<Delivery>,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), SendError> {
        for delivery in deliveries {
            match self.send(&delivery, engine, state, cx) {
                Ok(()) => {
                    self.credit = self.credit.saturating_sub(1);
                    state.count_consumed(self.kind, &delivery, true);
                    if cx.broker.tree().traces() {
                        self.trace(&delivery, true, state, cx);
                    }
                }
                Err(error) if is_temporary(&error) => {}
                Err(error) => return Err(error),
            }
            let outcome = DeliveryOutcome::Settled(SettlementOutcome::Accepted);
            state.settle(self.queue, self.id, outcome, delivery.id);
        }
        Ok(())
    }

    /// Sends held deliveries while the client can be sent more. The error ends the link.
    pub(crate) fn send_held(
        &mut self,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), SendError> {
        while let Some(delivery) = self.held.pop_front() {
            match self.try_send(&delivery, engine, state, cx) {
                Ok(true) => {}
                unsent => {
                    self.held.push_front(delivery);
                    return unsent.map(|_| ());
                }
            }
        }
        state.holding.retain(|&number| number != self.link.number());
        self.note_skipped(state, cx);
        if self.held.capacity() > KEEP {
            self.held.shrink_to(0);
        }
        self.send_due_flow(engine, cx);
        Ok(())
    }

    /// Sends a delivery. Returns false if it has to wait. The error ends the link.
    fn try_send(
        &mut self,
        delivery: &Delivery,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<bool, SendError> {
        match self.send(delivery, engine, state, cx) {
            Ok(()) => {}
            Err(error) if is_temporary(&error) => return Ok(false),
            Err(error) => return Err(error),
        }
        self.credit = self.credit.saturating_sub(1);
        state.count_consumed(self.kind, delivery, self.is_settled);
        if self.is_settled {
            let outcome = DeliveryOutcome::Settled(SettlementOutcome::Accepted);
            state.settle(self.queue, self.id, outcome, delivery.id);
        } else {
            self.written.add(delivery);
            if self.written.is_due() {
                let written = std::mem::take(&mut self.written);
                cx.broker.received(self.queue, self.id, written.up_to());
            }
        }
        if cx.broker.tree().traces() {
            self.trace(delivery, self.is_settled, state, cx);
        }
        Ok(true)
    }

    /// Reports skipped messages to the queue, and gives it the credit that they used.
    fn note_skipped(&mut self, state: &mut ConnectionState, cx: &mut StepContext<'_>) {
        if let Some(skipped) = self.skipped.take() {
            self.written = WrittenDeliveries::default();
            cx.broker
                .received(self.queue, self.id, skipped.get().max(self.last));
            self.is_credit_due = true;
            self.send_credit(state, cx);
        }
    }

    fn send(
        &self,
        delivery: &Delivery,
        engine: &mut Connection,
        state: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), SendError> {
        send_delivery(self.link, self.is_settled, delivery, engine, state, cx)
    }

    #[cold]
    fn trace(
        &self,
        delivery: &Delivery,
        is_settled: bool,
        state: &ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let key = (!is_settled).then_some(DeliveryKey {
            queue: self.queue,
            consumer: self.id,
            id: delivery.id,
        });
        trace_delivery(self.link, self.queue, delivery, key, state, cx);
    }
}

/// Returns true if the message can be sent later.
pub(crate) fn is_temporary(error: &SendError) -> bool {
    matches!(
        error,
        SendError::WindowClosed
            | SendError::OutputFull
            | SendError::TooManyUnsettled
            | SendError::NoCredit
    )
}

/// Encodes and sends a delivery if the client can be sent one now.
pub(crate) fn send_delivery(
    link: LinkId,
    is_settled: bool,
    delivery: &Delivery,
    engine: &mut Connection,
    state: &mut ConnectionState,
    cx: &mut StepContext<'_>,
) -> Result<(), SendError> {
    engine.check_send(link, is_settled, cx.tail())?;
    let sends_time = state.settings.limits.interceptors.sent_time;
    let sent = sends_time.then(|| cx.broker.wall());
    let (short, long);
    let tag: &[u8] = match u32::try_from(delivery.id) {
        Ok(id) => {
            short = id.to_be_bytes();
            &short
        }
        Err(_) => {
            long = delivery.id.to_be_bytes();
            &long
        }
    };
    with_encoded_delivery(delivery, sent, &mut state.scratch, |parts| {
        let outgoing = OutgoingDeliveryOf {
            tag,
            message_format: 0,
            settled: is_settled,
            parts,
            token: delivery.id,
        };
        engine.send(link, &outgoing, cx.tail()).map(|_| ())
    })
}

/// Reports a delivery while tracing is enabled for some vhost. `key`: the delivery that the session settles later.
#[cold]
pub(crate) fn trace_delivery(
    link: LinkId,
    queue: QueueId,
    delivery: &Delivery,
    key: Option<DeliveryKey>,
    state: &ConnectionState,
    cx: &mut StepContext<'_>,
) {
    let Some(record) = cx.broker.tree().queue_by_id(queue).cloned() else {
        return;
    };
    let what = TraceEvent::Delivered {
        queue: &record.name,
        redelivered: delivery.redelivered,
        delivery: key,
    };
    state.trace(link.channel(), &delivery.message, what, cx);
}
