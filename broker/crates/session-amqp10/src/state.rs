//! State that the links of a connection share.

use crate::config::Settings;
use crate::wait::{Wait, WaitKey, WaitReason};
use bytes::BytesMut;
use env::{Time, WallTime};
use message::Message;
use metadata::{Change, Identity, Name, QueueType};
use operations::Caller;
use queue::{ConsumerId, Delivery, Modification, QueueId, RequestBody, SettlementOutcome};
use session::{Broker, MessageCounters, Outbox, TraceEvent, TracedMessage};
use std::sync::Arc;

/// The label in metrics.
pub(crate) const PROTOCOL: &str = "amqp10";

/// The node and the output during one step.
pub(crate) struct StepContext<'a> {
    pub broker: &'a mut dyn Broker,
    pub out: &'a mut Outbox,
}

impl StepContext<'_> {
    pub(crate) fn tail(&mut self) -> &mut BytesMut {
        self.out.tail()
    }
}

/// The outcome of deliveries, for their queue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum DeliveryOutcome {
    Settled(SettlementOutcome),
    Modified(Box<Modification>),
}

/// Outcomes collected during a step and sent as one request.
#[derive(Debug)]
struct Settlement {
    queue: QueueId,
    consumer: ConsumerId,
    outcome: DeliveryOutcome,
    ids: Vec<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub settings: Arc<Settings>,
    pub user: Name,
    /// The identity from an external backend.
    pub identity: Option<Arc<Identity>>,
    pub vhost: Name,
    /// May publish with the user id of another user (tag `impersonator`).
    pub impersonator: bool,
    /// Exclusive queues were declared on this connection.
    pub owns_queues: bool,
    /// Bytes of messages that queues have not answered.
    pub in_flight: usize,
    /// The limit of `in_flight` was exceeded. Cleared when it falls below half of it.
    pub in_flight_exceeded: bool,
    /// Numbers of links with deliveries that cannot be sent yet.
    pub holding: Vec<u32>,
    pub waits: Vec<Wait>,
    /// Completed messages of more than one transfer; wraps around.
    pub finished: u32,
    /// Reused for routing results.
    pub routes: Vec<QueueId>,
    /// Reused for outgoing messages.
    pub scratch: Vec<u8>,
    settlements: Vec<Settlement>,
    counters: Option<Box<MessageCounters>>,
    next_token: u64,
    random_state: u64,
}

impl ConnectionState {
    pub(crate) fn new(settings: Arc<Settings>) -> ConnectionState {
        ConnectionState {
            settings,
            user: "".into(),
            identity: None,
            vhost: "".into(),
            impersonator: false,
            owns_queues: false,
            in_flight: 0,
            in_flight_exceeded: false,
            holding: Vec::new(),
            waits: Vec::new(),
            finished: 0,
            routes: Vec::new(),
            scratch: Vec::new(),
            settlements: Vec::new(),
            counters: None,
            next_token: 0,
            random_state: 0,
        }
    }

    /// The connection's user in its vhost, checked against the node's tree.
    pub(crate) fn caller<'a>(&'a self, broker: &'a dyn Broker) -> Caller<'a> {
        Caller {
            tree: broker.tree(),
            user: &self.user,
            identity: self.identity.as_deref(),
            vhost: &self.vhost,
            session: Some(broker.id()),
            is_operator: false,
            refusals: broker.refusals(),
        }
    }

    /// A predictable number that differs for each message, to choose among equal targets.
    pub(crate) fn next_random(&mut self, now: WallTime) -> u64 {
        self.random_state = self.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut n = self.random_state ^ now.0;
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    fn wait(&mut self, key: WaitKey, link: u32, reason: WaitReason, now: Time) {
        let deadline = now + self.settings.limits.operation;
        self.waits.push(Wait {
            key,
            link,
            deadline,
            reason,
        });
    }

    /// Proposes a metadata change for a link and waits for its result.
    pub(crate) fn change(
        &mut self,
        change: Change,
        link: u32,
        reason: WaitReason,
        cx: &mut StepContext<'_>,
    ) {
        self.flush_settlements(cx);
        self.next_token += 1;
        cx.broker.change(self.next_token, change);
        let key = WaitKey::Change(self.next_token);
        self.wait(key, link, reason, cx.broker.now());
    }

    /// Waits until this node has applied the metadata log up to now.
    pub(crate) fn catch_up(
        &mut self,
        name: Name,
        link: u32,
        reason: WaitReason,
        cx: &mut StepContext<'_>,
    ) {
        // This change passes through the log without effect, because no queue has this id.
        let change = Change::DeleteQueue {
            vhost: self.vhost.clone(),
            name,
            id: Some(QueueId::NONE),
        };
        self.change(change, link, reason, cx);
    }

    /// Sends a request to a queue for a link and waits for the answer.
    pub(crate) fn request(
        &mut self,
        queue: QueueId,
        body: RequestBody,
        link: u32,
        reason: WaitReason,
        cx: &mut StepContext<'_>,
    ) {
        self.flush_settlements(cx);
        let seq = cx.broker.request(queue, body);
        self.wait(WaitKey::Queue(queue, seq), link, reason, cx.broker.now());
    }

    /// Sends a request without an answer, after the outcomes of this step.
    pub(crate) fn send_oneway(
        &mut self,
        queue: QueueId,
        body: RequestBody,
        cx: &mut StepContext<'_>,
    ) {
        self.flush_settlements(cx);
        cx.broker.request(queue, body);
    }

    /// Removes a wait.
    pub(crate) fn take_wait(&mut self, key: WaitKey) -> Option<Wait> {
        let at = self.waits.iter().position(|wait| wait.key == key)?;
        let wait = self.waits.swap_remove(at);
        if self.waits.is_empty() {
            // An idle connection keeps no room for them.
            self.waits = Vec::new();
        }
        Some(wait)
    }

    /// Forgets the reasons of a link's waits. The waits stay until they are answered, so that their number
    /// bounds the open requests.
    pub(crate) fn abandon_waits(&mut self, link: u32) {
        for wait in self.waits.iter_mut().filter(|wait| wait.link == link) {
            wait.reason = WaitReason::Abandoned;
        }
    }

    /// Records the outcome of a delivery. Sent at the end of the step, merged with those of adjacent deliveries.
    pub(crate) fn settle(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        outcome: DeliveryOutcome,
        id: u64,
    ) {
        if let Some(last) = self.settlements.last_mut()
            && last.queue == queue
            && last.consumer == consumer
            && last.outcome == outcome
        {
            match last.ids.last_mut() {
                Some(range) if range.1 + 1 == id => range.1 = id,
                _ => last.ids.push((id, id)),
            }
            return;
        }
        self.settlements.push(Settlement {
            queue,
            consumer,
            outcome,
            ids: vec![(id, id)],
        });
    }

    pub(crate) fn flush_settlements(&mut self, cx: &mut StepContext<'_>) {
        for settlement in self.settlements.drain(..) {
            let Settlement {
                queue,
                consumer,
                outcome,
                ids,
            } = settlement;
            let body = match outcome {
                DeliveryOutcome::Settled(outcome) => RequestBody::Settle {
                    consumer,
                    outcome,
                    ids,
                },
                DeliveryOutcome::Modified(modification) => RequestBody::Modify {
                    consumer,
                    ids,
                    modification,
                },
            };
            cx.broker.request(queue, body);
        }
    }

    pub(crate) fn add_in_flight(&mut self, size: u32) {
        self.in_flight += size as usize;
        self.in_flight_exceeded |= self.in_flight > self.settings.limits.in_flight;
    }

    pub(crate) fn remove_in_flight(&mut self, size: usize) {
        self.in_flight = self.in_flight.saturating_sub(size);
        self.in_flight_exceeded &= self.in_flight > self.settings.limits.in_flight / 2;
    }

    /// Updates counters that are reported to the node at the end of the step.
    pub(crate) fn count(&mut self, add: impl FnOnce(&mut MessageCounters)) {
        add(self.counters.get_or_insert_default());
    }

    /// Counts a link that begins or, with -1, one that ends. Idle connections need no other counters.
    pub(crate) fn count_links(&self, publishers: i64, consumers: i64, cx: &mut StepContext<'_>) {
        let counters = MessageCounters {
            publishers,
            consumers,
            ..MessageCounters::default()
        };
        cx.broker.message_counters(PROTOCOL, &counters);
    }

    /// Counts a delivery to a client that the queue has given up, or gives up with the settlement, and offers its latency.
    pub(crate) fn count_consumed(
        &mut self,
        kind: QueueType,
        delivery: &Delivery,
        is_settled: bool,
    ) {
        if !self.count_delivery(kind, delivery, is_settled) {
            self.count(|counters| {
                counters.sample_delivery(Some(kind), || delivery.message.received());
            });
        }
    }

    /// Counts a delivery to a client. Returns true if it is a redelivery.
    pub(crate) fn count_delivery(
        &mut self,
        kind: QueueType,
        delivery: &Delivery,
        is_settled: bool,
    ) -> bool {
        let is_redelivered = delivery.redelivered || delivery.attempts.is_some_and(|n| n > 0);
        self.count(|counters| {
            let deliveries = counters.of(kind);
            deliveries.redeliver += u64::from(is_redelivered);
            match is_settled {
                true => deliveries.deliver_no_ack += 1,
                false => deliveries.deliver += 1,
            }
        });
        is_redelivered
    }

    /// Reports the counters of this step to the node.
    pub(crate) fn flush_counters(&mut self, cx: &mut StepContext<'_>) {
        if let Some(counters) = &mut self.counters
            && **counters != MessageCounters::default()
        {
            cx.broker.message_counters(PROTOCOL, counters);
            **counters = MessageCounters::default();
        }
    }

    /// Reports a message event while tracing is enabled for some vhost.
    #[cold]
    pub(crate) fn trace(
        &self,
        channel: u16,
        message: &Message,
        what: TraceEvent<'_>,
        cx: &mut StepContext<'_>,
    ) {
        cx.broker.trace(&TracedMessage {
            vhost: &self.vhost,
            user: &self.user,
            channel,
            protocol: PROTOCOL,
            message,
            what,
        });
    }
}
