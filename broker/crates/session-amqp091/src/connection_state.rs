//! What all channels of a connection share.

use crate::Limits;
use crate::flow::{WithheldConsumer, WrittenDeliveries};
use crate::unacked::DeliveryOrigin;
use bytes::BytesMut;
use codec_amqp091::{Method, encode_method};
use env::{Time, WallTime};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use message::Message;
use metadata::{Name, QueueType};
use queue::{ConsumerId, Delivery, QueueId, RequestBody, SettlementOutcome};
use session::{Broker, MessageCounters, Outbox, RequestSeq, TraceEvent, TracedMessage};
use std::collections::VecDeque;
use std::sync::Arc;

/// The world during one step.
pub(crate) struct StepContext<'a> {
    pub broker: &'a mut dyn Broker,
    pub out: &'a mut Outbox,
}

impl StepContext<'_> {
    pub fn send(&mut self, channel: u16, method: &Method<'_>) {
        encode_method(self.out.tail(), channel, method);
    }
}

/// What the client says it understands, in `capabilities` of its properties.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Capabilities {
    pub consumer_cancel_notify: bool,
    pub connection_blocked: bool,
    pub authentication_failure_close: bool,
    /// It stops publishing on channel.flow. No client says so itself: these are known to.
    pub flow: bool,
}

/// A consumer, or a `basic.get` that has not been answered.
#[derive(Debug)]
pub(crate) struct Subscription {
    pub queue: QueueId,
    pub channel: u16,
    pub tag: Name,
    pub no_ack: bool,
    pub get: bool,
    /// Of basic.qos when it began; 0: no limit of its own.
    pub prefetch: u32,
    /// The queue's type: messages are counted by it.
    pub kind: QueueType,
    pub written: WrittenDeliveries,
    /// The delivery that came last.
    pub came: u64,
    /// How far its queue may go, when a limit on the channel stopped it.
    pub credit: Option<u64>,
}

/// Settlements collected during a step: one request for many acknowledgements.
#[derive(Debug)]
struct Settlement {
    queue: QueueId,
    consumer: ConsumerId,
    outcome: SettlementOutcome,
    ids: Vec<(u64, u64)>,
}

#[derive(Debug)]
pub(crate) struct ConnectionState {
    pub limits: Arc<Limits>,
    pub vhost: Name,
    pub user: Name,
    /// May publish in another's name (tag `impersonator`).
    pub impersonator: bool,
    pub capabilities: Capabilities,
    pub frame_max: u32,
    /// The exchange published to last, and the state of the tree in which the user was found to have the right to.
    pub writable: Option<(u64, Name)>,
    /// An alarm is in force, and why.
    pub alarm: Option<&'static str>,
    /// A publish came during the alarm.
    pub blocked: bool,
    /// Exclusive queues were declared here.
    pub owns_queues: bool,
    pub subscriptions: HashMap<u32, Subscription, FixedState>,
    /// Answers that channels wait for.
    asked: Vec<(QueueId, RequestSeq, u16)>,
    /// When the oldest of the channels' waits may be over; looked at again then.
    pub wait_deadline: Option<Time>,
    in_flight_messages: usize,
    in_flight_bytes: usize,
    /// Too much is on its way to queues; until half of it has arrived.
    flooded: bool,
    /// A queue asked for no more publishes.
    pub behind: bool,
    /// Channels that hold a publish back.
    pub holding: usize,
    /// The client does not read what is sent to it; until half of it is gone.
    pub congested: bool,
    /// When deliveries that nobody acknowledges are looked for again; None while there are no deliveries.
    pub ack_check: Option<Time>,
    /// Consumers that get no more while their channels keep too much.
    pub withheld: Vec<WithheldConsumer>,
    /// Channels with consumers that their limit stopped.
    pub stopped: Vec<u16>,
    /// Octets in the channels' `held` buffers.
    pub held: usize,
    /// Octets of unfinished bodies.
    pub partial: usize,
    /// Octets that unfinished publishes hold beside their bodies.
    pub begun: usize,
    /// Publishes of several body frames that were completed.
    pub finished: u32,
    /// A channel may have a transaction or deliveries that wait for room in the outbox.
    pub channels_hold: bool,
    /// Scratch for routing.
    pub routes: Vec<QueueId>,
    /// Scratch for properties that must be changed on their way.
    pub scratch: BytesMut,
    settlements: VecDeque<Settlement>,
    /// What this step has counted; None until something was.
    message_counters: Option<Box<MessageCounters>>,
    counted: bool,
    next_consumer: u32,
    next_token: u64,
    next_epoch: u32,
    draws: u64,
}

impl ConnectionState {
    pub fn new(limits: Arc<Limits>) -> ConnectionState {
        ConnectionState {
            limits,
            vhost: "".into(),
            user: "".into(),
            impersonator: false,
            capabilities: Capabilities::default(),
            frame_max: HANDSHAKE_FRAME_MAX,
            writable: None,
            alarm: None,
            blocked: false,
            owns_queues: false,
            subscriptions: HashMap::with_hasher(FixedState::default()),
            asked: Vec::new(),
            wait_deadline: None,
            in_flight_messages: 0,
            in_flight_bytes: 0,
            flooded: false,
            behind: false,
            holding: 0,
            congested: false,
            ack_check: None,
            withheld: Vec::new(),
            stopped: Vec::new(),
            held: 0,
            partial: 0,
            begun: 0,
            finished: 0,
            channels_hold: false,
            routes: Vec::new(),
            scratch: BytesMut::new(),
            settlements: VecDeque::new(),
            message_counters: None,
            counted: false,
            next_consumer: 0,
            next_token: 0,
            next_epoch: 0,
            draws: 0,
        }
    }

    pub fn new_consumer(&mut self) -> ConsumerId {
        self.next_consumer += 1;
        ConsumerId(self.next_consumer)
    }

    /// Tells lives of the same channel number apart.
    pub fn new_epoch(&mut self) -> u32 {
        self.next_epoch = self.next_epoch.wrapping_add(1);
        self.next_epoch
    }

    /// A number to choose among equals by, another one for each message. Anybody may guess it.
    pub fn draw(&mut self, now: WallTime) -> u64 {
        self.draws = self.draws.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut n = self.draws ^ now.0;
        n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ (n >> 31)
    }

    /// A token for `Broker::change`, never 0; its low 16 bits are the channel.
    pub fn new_token(&mut self, channel: u16) -> u64 {
        self.next_token += 1;
        self.next_token << 16 | u64::from(channel)
    }

    /// Queues with a consumer of a channel.
    pub fn consumed_by(&self, channel: u16) -> impl Iterator<Item = QueueId> {
        let all = self.subscriptions.values();
        all.filter(move |s| s.channel == channel && !s.get)
            .map(|s| s.queue)
    }

    /// Consumers that end together get nothing of what the others give back: it would come to the next one as
    /// redelivered once more often than a client saw it.
    pub fn stop(&mut self, ending: impl Fn(&Subscription) -> bool, cx: &mut StepContext<'_>) {
        let all = self.subscriptions.iter().filter(|(_, s)| ending(s));
        let mut all: Vec<(QueueId, ConsumerId)> =
            all.map(|(id, s)| (s.queue, ConsumerId(*id))).collect();
        // The map's order is nobody's business.
        all.sort_unstable();
        for of_one_queue in all.chunk_by(|a, b| a.0 == b.0).filter(|c| c.len() > 1) {
            for &(queue, consumer) in of_one_queue {
                self.tell(cx, queue, RequestBody::Cancel { consumer });
            }
        }
    }

    /// Sends a request whose answer the channel waits for.
    pub fn ask(
        &mut self,
        cx: &mut StepContext<'_>,
        channel: u16,
        queue: QueueId,
        body: RequestBody,
    ) {
        self.flush_settlements(cx);
        let seq = cx.broker.request(queue, body);
        self.asked.push((queue, seq, channel));
    }

    /// Who asked; at most once.
    pub fn answered(&mut self, queue: QueueId, seq: RequestSeq) -> Option<u16> {
        let at = self
            .asked
            .iter()
            .position(|&(q, s, _)| q == queue && s == seq)?;
        Some(self.asked.swap_remove(at).2)
    }

    /// The channel no longer waits.
    pub fn forget_asked(&mut self, channel: u16) {
        self.asked.retain(|&(_, _, c)| c != channel);
    }

    /// Sends a request that has no answer, after the settlements before it.
    pub fn tell(&mut self, cx: &mut StepContext<'_>, queue: QueueId, body: RequestBody) {
        self.flush_settlements(cx);
        cx.broker.request(queue, body);
    }

    /// Settles at the end of the step, together with its neighbours.
    pub fn settle(&mut self, origin: DeliveryOrigin, outcome: SettlementOutcome) {
        self.settle_range(
            origin.queue,
            origin.consumer,
            outcome,
            (origin.id, origin.id),
        );
    }

    pub fn settle_range(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        outcome: SettlementOutcome,
        (from, to): (u64, u64),
    ) {
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

    /// A vhost is traced: maybe this one.
    #[cold]
    pub fn trace(
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
            message,
            what,
        });
    }

    /// The same of a delivery.
    #[cold]
    pub fn trace_delivery(
        &self,
        channel: u16,
        queue: QueueId,
        delivery: &Delivery,
        cx: &mut StepContext<'_>,
    ) {
        let Some(record) = cx.broker.tree().queue_by_id(queue).cloned() else {
            return;
        };
        let what = TraceEvent::Delivered {
            queue: &record.name,
            redelivered: delivery.redelivered,
        };
        self.trace(channel, &delivery.message, what, cx);
    }

    /// Counts something; the node hears of it at the end of the step.
    pub fn count(&mut self, add: impl FnOnce(&mut MessageCounters)) {
        self.counted = true;
        add(self.message_counters.get_or_insert_default());
    }

    /// Tells the node what was counted.
    pub fn flush_counters(&mut self, cx: &mut StepContext<'_>) {
        if std::mem::take(&mut self.counted)
            && let Some(message_counters) = &mut self.message_counters
        {
            cx.broker.message_counters(PROTOCOL, message_counters);
            **message_counters = MessageCounters::default();
        }
    }

    /// Acknowledgements, once for all that leave together.
    fn count_acks(&mut self, s: &Settlement, cx: &StepContext<'_>) {
        if s.outcome != SettlementOutcome::Accepted {
            return;
        }
        let kind = match self.subscriptions.get(&s.consumer.0) {
            Some(subscription) if subscription.no_ack => return,
            Some(subscription) => Some(subscription.kind),
            // Cancelled, or a basic.get's.
            None => cx.broker.tree().queue_by_id(s.queue).map(|q| q.kind),
        };
        if let Some(kind) = kind {
            let acks: u64 = s.ids.iter().map(|(from, to)| to - from + 1).sum();
            self.count(|t| t.of(kind).ack += acks);
        }
    }

    pub fn flush_settlements(&mut self, cx: &mut StepContext<'_>) {
        while let Some(s) = self.settlements.pop_front() {
            self.count_acks(&s, cx);
            let body = RequestBody::Settle {
                consumer: s.consumer,
                outcome: s.outcome,
                ids: s.ids,
            };
            cx.broker.request(s.queue, body);
        }
    }

    /// A message leaves for queues.
    pub fn departed(&mut self, size: u32) {
        self.in_flight_messages += 1;
        self.in_flight_bytes += size as usize;
        self.flooded |= self.in_flight_messages > self.limits.in_flight_messages
            || self.in_flight_bytes > self.limits.in_flight_bytes;
    }

    /// Queues do not keep up: publishes are held back while everything else goes on (A9-4).
    pub fn publishes_wait(&self) -> bool {
        self.flooded || self.behind
    }

    /// All its queues have answered, or nobody waits for them any more.
    pub fn arrived(&mut self, size: u32) {
        self.in_flight_messages = self.in_flight_messages.saturating_sub(1);
        self.in_flight_bytes = self.in_flight_bytes.saturating_sub(size as usize);
        self.flooded &= self.in_flight_messages > self.limits.in_flight_messages / 2
            || self.in_flight_bytes > self.limits.in_flight_bytes / 2;
    }

    /// Compares what waits for the socket with its bounds.
    pub fn weigh(&mut self, outbox: &Outbox) {
        let bound = if self.congested {
            self.limits.outbox / 2
        } else {
            self.limits.outbox
        };
        self.congested = outbox.len() > bound;
    }
}

/// As metrics call it.
pub(crate) const PROTOCOL: &str = "amqp091";

/// Before tune-ok frames are of the protocol's minimum (section 4.2.3), as in RabbitMQ 4.0; of the payload, as after it.
pub(crate) const HANDSHAKE_FRAME_MAX: u32 = codec_amqp091::FRAME_MIN_SIZE;
