//! State that the channels of a connection share.

use crate::Limits;
use crate::confirms::SLOT_BYTES;
use crate::content::PublishAssembly;
use crate::flow::WithheldConsumer;
use crate::unacked::DeliveryOrigin;
use bytes::BytesMut;
use codec_amqp091::{Method, encode_method};
use env::{Time, WallTime};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use message::Message;
use metadata::{Identity, Name, QueueType};
use queue::{ConsumerId, Delivery, Modification, QueueId, RequestBody, SettlementOutcome};
use session::{
    Broker, DeliveryKey, MessageCounters, Outbox, RequestSeq, TraceEvent, TracedMessage,
    WrittenDeliveries,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// The node and the output during one step.
pub(crate) struct StepContext<'a> {
    pub broker: &'a mut dyn Broker,
    pub out: &'a mut Outbox,
}

impl StepContext<'_> {
    pub(crate) fn send(&mut self, channel: u16, method: &Method<'_>) {
        encode_method(self.out.tail(), channel, method);
    }
}

/// Features in the `capabilities` table of the client properties.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capabilities {
    pub consumer_cancel_notify: bool,
    pub connection_blocked: bool,
    pub authentication_failure_close: bool,
    /// The client stops publishing on channel.flow. No client announces it; it is derived from the
    /// client's product and platform.
    pub flow: bool,
}

/// A consumer, or a pending `basic.get`.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub queue: QueueId,
    pub channel: u16,
    pub tag: Name,
    pub no_ack: bool,
    pub get: bool,
    /// The prefetch of basic.qos when the consumer started; 0: unlimited.
    pub prefetch: u32,
    /// The queue's type, which labels message counters.
    pub kind: QueueType,
    pub written: WrittenDeliveries,
    /// The id of the last delivery received from the queue.
    pub last_delivery: u64,
    /// The last delivery id that its queue may send, if the channel's limit stopped the consumer.
    pub credit: Option<u64>,
}

/// The effect of a client's settlement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientOutcome {
    Settled(SettlementOutcome),
    /// basic.reject with requeue: the delivery has failed. basic.nack leaves open whether it has.
    Failed,
}

impl From<SettlementOutcome> for ClientOutcome {
    fn from(outcome: SettlementOutcome) -> ClientOutcome {
        ClientOutcome::Settled(outcome)
    }
}

/// Settlements collected during a step and sent as one request.
#[derive(Debug)]
struct Settlement {
    queue: QueueId,
    consumer: ConsumerId,
    outcome: ClientOutcome,
    ids: Vec<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub limits: Arc<Limits>,
    pub vhost: Name,
    pub user: Name,
    /// The identity from an external backend.
    pub identity: Option<Arc<Identity>>,
    /// May publish with the user id of another user (tag `impersonator`).
    pub impersonator: bool,
    pub capabilities: Capabilities,
    pub frame_max: u32,
    /// Cache of the last permission check: the tree's version and the exchange that the user may
    /// write to.
    pub writable: Option<(u64, Name)>,
    /// The reason of the alarm in effect.
    pub alarm: Option<&'static str>,
    /// A publish arrived during the alarm.
    pub blocked: bool,
    /// Exclusive queues were declared on this connection.
    pub owns_queues: bool,
    pub subscriptions: HashMap<u32, Subscription, FixedState>,
    /// Requests that channels wait for.
    pending_requests: Vec<(QueueId, RequestSeq, u16)>,
    /// The earliest time at which a channel's wait can expire.
    pub wait_deadline: Option<Time>,
    in_flight_messages: usize,
    in_flight_bytes: usize,
    /// The limits of messages in flight to queues were exceeded. Cleared when half of them is
    /// answered.
    in_flight_exceeded: bool,
    /// Records of unsettled publishes, of all channels.
    confirm_slots: usize,
    /// Their limit was exceeded. Cleared when half of them are gone.
    confirms_exceeded: bool,
    /// A queue has a backlog and asked for no more publishes.
    pub behind: bool,
    /// Number of channels that hold publishes back.
    pub holding_channels: usize,
    /// The outbox limit was exceeded. Cleared when the outbox falls below half of it.
    pub congested: bool,
    /// The next check for the acknowledgement timeout; None while there are no deliveries.
    pub ack_check: Option<Time>,
    /// Consumers whose queues get no progress report, because their channels have too many
    /// unacknowledged deliveries.
    pub withheld: Vec<WithheldConsumer>,
    /// Channels with consumers that the channel's prefetch stopped.
    pub throttled_channels: Vec<u16>,
    /// Octets of held frames in all channels.
    pub held_bytes: usize,
    /// Octets of incomplete message bodies.
    pub partial: usize,
    /// Octets that incomplete publishes hold besides their bodies.
    pub publish_overhead: usize,
    /// Number of completed publishes with more than one body frame; wraps around.
    pub finished: u32,
    /// A channel may have a transaction, or deliveries that wait for space in the outbox.
    pub channels_may_hold: bool,
    /// Reused for routing results.
    pub routes: Vec<QueueId>,
    /// Reused for properties that must be rewritten.
    pub scratch: BytesMut,
    /// The buffers of the last publish, for the next one of any channel.
    pub spare_assembly: Option<Box<PublishAssembly>>,
    settlements: VecDeque<Settlement>,
    /// Counters of this step.
    message_counters: Option<Box<MessageCounters>>,
    counted: bool,
    next_consumer: u32,
    next_token: u64,
    next_epoch: u32,
    random_state: u64,
}

impl ConnectionState {
    pub(crate) fn new(limits: Arc<Limits>) -> ConnectionState {
        ConnectionState {
            limits,
            vhost: "".into(),
            user: "".into(),
            identity: None,
            impersonator: false,
            capabilities: Capabilities::default(),
            frame_max: HANDSHAKE_FRAME_MAX,
            writable: None,
            alarm: None,
            blocked: false,
            owns_queues: false,
            subscriptions: HashMap::with_hasher(FixedState::default()),
            pending_requests: Vec::new(),
            wait_deadline: None,
            in_flight_messages: 0,
            in_flight_bytes: 0,
            in_flight_exceeded: false,
            confirm_slots: 0,
            confirms_exceeded: false,
            behind: false,
            holding_channels: 0,
            congested: false,
            ack_check: None,
            withheld: Vec::new(),
            throttled_channels: Vec::new(),
            held_bytes: 0,
            partial: 0,
            publish_overhead: 0,
            finished: 0,
            channels_may_hold: false,
            routes: Vec::new(),
            scratch: BytesMut::new(),
            spare_assembly: None,
            settlements: VecDeque::new(),
            message_counters: None,
            counted: false,
            next_consumer: 0,
            next_token: 0,
            next_epoch: 0,
            random_state: 0,
        }
    }

    pub(crate) fn new_consumer(&mut self) -> ConsumerId {
        self.next_consumer += 1;
        ConsumerId(self.next_consumer)
    }

    /// Distinguishes successive channels with the same number.
    pub(crate) fn new_epoch(&mut self) -> u32 {
        self.next_epoch = self.next_epoch.wrapping_add(1);
        self.next_epoch
    }

    /// A predictable number that differs for each message, to choose among equal targets.
    pub(crate) fn next_random(&mut self, now: WallTime) -> u64 {
        self.random_state = self.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut n = self.random_state ^ now.0;
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    /// Creates a token for `Broker::change`. It is never 0; its low 16 bits are the channel.
    pub(crate) fn new_token(&mut self, channel: u16) -> u64 {
        self.next_token += 1;
        self.next_token << 16 | u64::from(channel)
    }

    /// Queues with a consumer on this channel.
    pub(crate) fn consumed_by(&self, channel: u16) -> impl Iterator<Item = QueueId> {
        let all = self.subscriptions.values();
        all.filter(move |s| s.channel == channel && !s.get)
            .map(|s| s.queue)
    }

    /// Stops consumers that end together before any of them requeues. Otherwise one would receive
    /// the deliveries of another, and the next consumer would see a redelivery too many.
    pub(crate) fn stop(
        &mut self,
        ending: impl Fn(&Subscription) -> bool,
        cx: &mut StepContext<'_>,
    ) {
        let all = self.subscriptions.iter().filter(|(_, s)| ending(s));
        let mut all: Vec<(QueueId, ConsumerId)> =
            all.map(|(id, s)| (s.queue, ConsumerId(*id))).collect();
        // Do not depend on the order of the hash map.
        all.sort_unstable();
        for per_queue in all.chunk_by(|a, b| a.0 == b.0).filter(|c| c.len() > 1) {
            for &(queue, consumer) in per_queue {
                self.send_oneway(cx, queue, RequestBody::Cancel { consumer });
            }
        }
    }

    /// Sends a request to a queue; the channel waits for the answer.
    pub(crate) fn send_request(
        &mut self,
        cx: &mut StepContext<'_>,
        channel: u16,
        queue: QueueId,
        body: RequestBody,
    ) {
        self.flush_settlements(cx);
        let seq = cx.broker.request(queue, body);
        self.pending_requests.push((queue, seq, channel));
    }

    /// Removes a request and returns the channel that sent it.
    pub(crate) fn take_request(&mut self, queue: QueueId, seq: RequestSeq) -> Option<u16> {
        let at = self
            .pending_requests
            .iter()
            .position(|&(q, s, _)| q == queue && s == seq)?;
        Some(self.pending_requests.swap_remove(at).2)
    }

    /// Forgets the requests of a channel that no longer waits.
    pub(crate) fn forget_requests(&mut self, channel: u16) {
        self.pending_requests.retain(|&(_, _, c)| c != channel);
    }

    /// Sends a request without an answer, after the settlements of this step.
    pub(crate) fn send_oneway(
        &mut self,
        cx: &mut StepContext<'_>,
        queue: QueueId,
        body: RequestBody,
    ) {
        self.flush_settlements(cx);
        cx.broker.request(queue, body);
    }

    /// Settles a delivery at the end of the step, merged with adjacent ones.
    pub(crate) fn settle(&mut self, origin: DeliveryOrigin, outcome: impl Into<ClientOutcome>) {
        self.settle_range(
            origin.queue,
            origin.consumer,
            outcome,
            (origin.id, origin.id),
        );
    }

    pub(crate) fn settle_range(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        outcome: impl Into<ClientOutcome>,
        (from, to): (u64, u64),
    ) {
        let outcome = outcome.into();
        if let Some(last) = self.settlements.back_mut()
            && last.queue == queue
            && last.consumer == consumer
            && last.outcome == outcome
        {
            match last.ids.last_mut() {
                Some(range) if range.1.checked_add(1) == Some(from) => range.1 = to,
                _ => last.ids.push((from, to)),
            }
            return;
        }
        self.settlements.push_back(Settlement {
            queue,
            consumer,
            outcome,
            ids: vec![(from, to)],
        });
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

    /// Reports a delivery while tracing is enabled for some vhost. `consumer`: the one that settles it; None: it is settled.
    #[cold]
    pub(crate) fn trace_delivery(
        &self,
        channel: u16,
        (queue, consumer): (QueueId, Option<ConsumerId>),
        delivery: &Delivery,
        cx: &mut StepContext<'_>,
    ) {
        let Some(record) = cx.broker.tree().queue_by_id(queue).cloned() else {
            return;
        };
        let what = TraceEvent::Delivered {
            queue: &record.name,
            redelivered: delivery.redelivered,
            delivery: consumer.map(|consumer| DeliveryKey {
                queue,
                consumer,
                id: delivery.id,
            }),
        };
        self.trace(channel, &delivery.message, what, cx);
    }

    /// Updates counters that are reported to the node at the end of the step.
    pub(crate) fn count(&mut self, add: impl FnOnce(&mut MessageCounters)) {
        self.counted = true;
        add(self.message_counters.get_or_insert_default());
    }

    /// Reports the counters of this step to the node.
    pub(crate) fn flush_counters(&mut self, cx: &mut StepContext<'_>) {
        if std::mem::take(&mut self.counted)
            && let Some(message_counters) = &mut self.message_counters
        {
            cx.broker.message_counters(PROTOCOL, message_counters);
            **message_counters = MessageCounters::default();
        }
    }

    /// Counts the acknowledgements of one settlement.
    fn count_acks(&mut self, s: &Settlement, cx: &StepContext<'_>) {
        if s.outcome != SettlementOutcome::Accepted.into() {
            return;
        }
        let kind = match self.subscriptions.get(&s.consumer.0) {
            Some(subscription) if subscription.no_ack => return,
            Some(subscription) => Some(subscription.kind),
            // A cancelled consumer, or a basic.get.
            None => cx.broker.tree().queue_by_id(s.queue).map(|q| q.kind),
        };
        if let Some(kind) = kind {
            let acks: u64 = s.ids.iter().map(|(from, to)| to - from + 1).sum();
            self.count(|t| t.of(kind).ack += acks);
        }
    }

    pub(crate) fn flush_settlements(&mut self, cx: &mut StepContext<'_>) {
        while let Some(s) = self.settlements.pop_front() {
            self.count_acks(&s, cx);
            let body = match s.outcome {
                ClientOutcome::Settled(outcome) => RequestBody::Settle {
                    consumer: s.consumer,
                    outcome,
                    ids: s.ids,
                },
                ClientOutcome::Failed => RequestBody::Modify {
                    consumer: s.consumer,
                    ids: s.ids,
                    modification: Box::new(Modification::failed()),
                },
            };
            cx.broker.request(s.queue, body);
        }
    }

    /// Counts a message sent to queues.
    pub(crate) fn add_in_flight(&mut self, size: u32) {
        self.in_flight_messages += 1;
        self.in_flight_bytes += size as usize;
        self.in_flight_exceeded |= self.in_flight_messages > self.limits.in_flight_messages
            || self.in_flight_bytes > self.limits.in_flight_bytes;
    }

    /// Returns true if publishes must be held because queues have a backlog. Other methods
    /// continue.
    pub(crate) fn must_hold_publishes(&self) -> bool {
        self.in_flight_exceeded || self.confirms_exceeded || self.behind
    }

    /// Counts the records of a channel's unsettled publishes, which were `before` and are `after`.
    pub(crate) fn replace_confirm_slots(&mut self, before: usize, after: usize) {
        self.confirm_slots = (self.confirm_slots + after).saturating_sub(before);
        let (bytes, limit) = (self.confirm_slots * SLOT_BYTES, self.limits.confirm_bytes);
        self.confirms_exceeded = bytes > limit || self.confirms_exceeded && bytes > limit / 2;
    }

    /// Removes a message that all queues have answered, or that no channel waits for any more.
    pub(crate) fn remove_in_flight(&mut self, size: u32) {
        self.in_flight_messages = self.in_flight_messages.saturating_sub(1);
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(size as usize);
        self.in_flight_exceeded &= self.in_flight_messages > self.limits.in_flight_messages / 2
            || self.in_flight_bytes > self.limits.in_flight_bytes / 2;
    }

    /// Updates the congestion state from the size of the outbox.
    pub(crate) fn update_congestion(&mut self, outbox: &Outbox) {
        let bound = if self.congested {
            self.limits.outbox / 2
        } else {
            self.limits.outbox
        };
        self.congested = outbox.len() > bound;
    }
}

/// The label in metrics.
pub(crate) const PROTOCOL: &str = "amqp091";

/// Before tune-ok the frame size is limited to the protocol's minimum (section 4.2.3), as in
/// RabbitMQ 4.0. It limits the payload, as after tune-ok.
pub(crate) const HANDSHAKE_FRAME_MAX: u32 = codec_amqp091::FRAME_MIN_SIZE;

/// The same where passwords may be access tokens, which are long.
pub(crate) const TOKEN_HANDSHAKE_FRAME_MAX: u32 = 20 * 1024;
