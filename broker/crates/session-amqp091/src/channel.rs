//! A channel: what it holds, and which method goes where.

use crate::confirms::{Confirms, SettledPublish};
use crate::connection_state::{ConnectionState, StepContext};
use crate::content::PublishAssembly;
use crate::failure::{Failure, MethodResult, ReplyCode, refuse};
use crate::left_queues::LeftQueues;
use crate::method_failure::MethodFailure;
use crate::replies::ReplyConsumer;
use crate::retry::RetriedMethod;
use crate::transaction::Transaction;
use crate::unacked::UnackedDeliveries;
use crate::wait::WaitReason;
use bytes::{Bytes, BytesMut};
use codec_amqp091::{Frame, FrameKind, Method};
use env::Time;
use metadata::Name;
use queue::{ConsumerId, Delivery, QueueId, RequestBody};
use session::{ChannelDetails, DeliveryCounters, OutboxPosition, PublishCounters, PublishTag};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelState {
    /// Before channel.open.
    Starting,
    Open,
    /// We sent channel.close: everything but close-ok is dropped.
    Closing,
    /// To be forgotten.
    Closed,
}

/// A method that waits for the metadata group or for a queue.
#[derive(Debug)]
pub(crate) struct PendingMethod {
    pub wait: WaitReason,
    /// Of `Broker::change`; 0 when it waits for an answer.
    pub token: u64,
    /// Class and method, for a refusal.
    pub ids: (u16, u16),
    pub since: Time,
}

/// The last confirm written, as long as nothing was written behind it.
#[derive(Clone, Copy, Debug)]
struct LastAck {
    stamp: OutboxPosition,
    tag: u64,
}

/// A delivery that waits for room in the outbox.
#[derive(Debug)]
pub(crate) struct HeldDelivery {
    pub queue: QueueId,
    pub consumer: ConsumerId,
    pub delivery: Delivery,
}

#[derive(Debug)]
pub(crate) struct Channel {
    pub number: u16,
    epoch: u32,
    pub state: ChannelState,
    pub waiting: Option<Box<PendingMethod>>,
    /// Frames that came while `waiting` or `holding`.
    pub held_frames: BytesMut,
    /// Tags of cancelled consumers that may hold something still; no more of them than what is held.
    cancelled: BTreeMap<ConsumerId, Name>,
    /// A publish is held back because queues are behind, and so is what came after it, except acknowledgements.
    pub holding: bool,
    /// Nothing but publishes is held.
    only_publishes: bool,
    /// The client was told to stop publishing (channel.flow).
    stopped: bool,
    /// It was told so at least once: its answers are welcome.
    told_flow: bool,
    pub assembly: Option<Box<PublishAssembly>>,
    /// What "" means as a queue name.
    pub last_queue: Name,
    pub consumers: BTreeMap<Name, ConsumerId>,
    /// For consumers from now on (basic.qos with global=false).
    pub prefetch: u32,
    /// Unacknowledged deliveries of the channel at most, 0 is no limit (global=true).
    pub channel_prefetch: u32,
    pub unacked: UnackedDeliveries,
    pub held_deliveries: VecDeque<HeldDelivery>,
    pub next_delivery: u64,
    /// The consumer that the last delivery was for.
    pub served_last: ConsumerId,
    pub confirms: Confirms,
    /// Publish number after which delivery tag 1 comes; None without confirm.select.
    pub confirm_base: Option<u64>,
    last_ack: Option<LastAck>,
    /// Its consumer of direct replies.
    pub replies: Option<Box<ReplyConsumer>>,
    /// After tx.select.
    pub transaction: Option<Box<Transaction>>,
    /// None until there was a message.
    counts: Option<Box<ChannelCounters>>,
}

/// What happened to messages of a channel.
#[derive(Debug, Default)]
pub(crate) struct ChannelCounters {
    pub publishes: PublishCounters,
    pub deliveries: DeliveryCounters,
}

/// A publish tag's bits: the channel's epoch above, the publish number below.
const SEQ_BITS: u32 = 44;
const SEQ_MASK: u64 = (1 << SEQ_BITS) - 1;

impl Channel {
    pub fn new(number: u16, epoch: u32) -> Channel {
        Channel {
            number,
            epoch: epoch & ((1 << (64 - SEQ_BITS)) - 1),
            state: ChannelState::Starting,
            waiting: None,
            held_frames: BytesMut::new(),
            holding: false,
            only_publishes: false,
            stopped: false,
            told_flow: false,
            assembly: None,
            last_queue: "".into(),
            consumers: BTreeMap::new(),
            prefetch: 0,
            channel_prefetch: 0,
            unacked: UnackedDeliveries::default(),
            held_deliveries: VecDeque::new(),
            next_delivery: 0,
            served_last: ConsumerId(0),
            confirms: Confirms::default(),
            confirm_base: None,
            last_ack: None,
            cancelled: BTreeMap::new(),
            replies: None,
            transaction: None,
            counts: None,
        }
    }

    pub fn counts(&mut self) -> &mut ChannelCounters {
        self.counts.get_or_insert_default()
    }

    /// For listings.
    pub fn details(&self, link: &ConnectionState) -> ChannelDetails {
        let counts = self.counts.as_deref();
        let (messages, settlements) = self
            .transaction
            .as_ref()
            .map_or((0, 0), |t| t.uncommitted());
        let confirms = self.confirm_base.is_some();
        let silent = |id: &ConsumerId| link.subscriptions.get(&id.0).is_some_and(|s| s.no_ack);
        let auto_ack = self.consumers.iter().filter(|(_, id)| silent(id));
        ChannelDetails {
            number: self.number,
            confirm: confirms,
            transactional: self.transaction.is_some(),
            flow_blocked: self.stopped,
            prefetch: self.prefetch,
            global_prefetch: self.channel_prefetch,
            consumers: self.consumers.len() as u32,
            auto_ack: auto_ack.map(|(tag, _)| tag.to_string()).collect(),
            unacknowledged: self.unacked.len() as u64,
            unconfirmed: if confirms {
                self.confirms.in_flight().count() as u64
            } else {
                0
            },
            uncommitted: messages as u64,
            acks_uncommitted: settlements as u64,
            publishes: counts.map_or_else(PublishCounters::default, |c| c.publishes),
            deliveries: counts.map_or_else(DeliveryCounters::default, |c| c.deliveries),
        }
    }

    pub fn publish_tag(&self, seq: u64) -> PublishTag {
        PublishTag {
            channel: self.number,
            tag: u64::from(self.epoch) << SEQ_BITS | seq & SEQ_MASK,
        }
    }

    /// A frame for this channel. On failure the ids are those of the method at fault.
    pub fn frame(
        &mut self,
        frame: Frame<'_>,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), MethodFailure> {
        if self.waiting.is_some() || self.must_hold(&frame, link, cx) {
            if self.holding && self.only_publishes && self.settles_now(&frame, link, cx) {
                return Ok(());
            }
            let publish = frame.kind != FrameKind::Method || is_publish(&frame);
            self.only_publishes = publish && (self.only_publishes || self.held_frames.is_empty());
            let before = self.held_frames.len();
            frame.encode(&mut self.held_frames);
            link.held += self.held_frames.len() - before;
            return Ok(());
        }
        if self.state == ChannelState::Closing {
            return self.closing_frame(frame, cx);
        }
        let idle = self.assembly.as_ref().is_none_or(|a| a.is_idle());
        match frame.kind {
            FrameKind::Method if idle => {
                let method = Method::decode(frame.payload)
                    .map_err(|error| MethodFailure::undecodable(&error, frame.payload))?;
                let ids = method.ids();
                match self.method(method, link, cx) {
                    Ok(()) => Ok(()),
                    Err(Failure {
                        unknown: Some(name),
                        ..
                    }) if !cx.broker.knows_all() => {
                        let again = RetriedMethod::Method(Bytes::copy_from_slice(frame.payload));
                        self.ask_the_log_of(name, again, ids, link, cx);
                        Ok(())
                    }
                    Err(failure) => Err(MethodFailure { failure, ids }),
                }
            }
            FrameKind::Method | FrameKind::Header | FrameKind::Body => {
                crate::content::frame(self, frame, link, cx).map_err(|failure| {
                    // A frame that cannot be read belongs to no method.
                    let unread = failure.code == ReplyCode::FrameError;
                    let ids = if idle || unread { (0, 0) } else { (60, 40) };
                    MethodFailure { failure, ids }
                })
            }
            FrameKind::Heartbeat | FrameKind::Unknown(_) => Ok(()),
        }
    }

    /// Whether this frame has to wait for queues that are behind: a publish has, and all that follows it. A client that
    /// understands is told.
    pub fn must_hold(
        &mut self,
        frame: &Frame<'_>,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> bool {
        if !self.holding
            && link.publishes_wait()
            && self.state == ChannelState::Open
            && is_publish(frame)
        {
            self.holding = true;
            link.holding += 1;
            if link.capabilities.flow && !self.stopped {
                self.stopped = true;
                self.told_flow = true;
                cx.send(self.number, &Method::ChannelFlow { active: false });
            }
        }
        self.holding
    }

    /// Lets the client publish again when nothing of it is held.
    pub fn let_flow(&mut self, cx: &mut StepContext<'_>) {
        if self.stopped && self.held_frames.is_empty() && self.state == ChannelState::Open {
            self.stopped = false;
            cx.send(self.number, &Method::ChannelFlow { active: true });
        }
    }

    /// Whether held frames may go on: nothing is waited for and queues keep up.
    pub fn goes_on(&mut self, link: &mut ConnectionState) -> bool {
        if self.holding && !link.publishes_wait() {
            self.holding = false;
            link.holding -= 1;
        }
        self.waiting.is_none() && !self.holding
    }

    /// An acknowledgement overtakes publishes that wait, so that they do not stop consumers. One that is wrong keeps its
    /// place, and so do those of a transaction, whose order matters.
    fn settles_now(
        &mut self,
        frame: &Frame<'_>,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> bool {
        if frame.kind != FrameKind::Method || self.transaction.is_some() {
            return false;
        }
        let Ok(method) = Method::decode(frame.payload) else {
            return false;
        };
        let tag = match &method {
            Method::BasicAck { delivery_tag, .. }
            | Method::BasicNack { delivery_tag, .. }
            | Method::BasicReject { delivery_tag, .. } => *delivery_tag,
            _ => return false,
        };
        self.unacked.owes(tag) && self.method(method, link, cx).is_ok()
    }

    fn closing_frame(
        &mut self,
        frame: Frame<'_>,
        cx: &mut StepContext<'_>,
    ) -> Result<(), MethodFailure> {
        if frame.kind != FrameKind::Method {
            return Ok(());
        }
        match Method::decode(frame.payload) {
            Ok(Method::ChannelCloseOk {}) => self.state = ChannelState::Closed,
            Ok(Method::ChannelClose { .. }) => {
                cx.send(self.number, &Method::ChannelCloseOk {});
            }
            Ok(open @ Method::ChannelOpen {}) => return Err(MethodFailure::opened_twice(&open)),
            _ => {}
        }
        Ok(())
    }

    pub fn method(
        &mut self,
        method: Method<'_>,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        if self.state == ChannelState::Starting {
            let Method::ChannelOpen {} = method else {
                refuse!(ChannelError, "expected 'channel.open'");
            };
            self.state = ChannelState::Open;
            cx.send(self.number, &Method::ChannelOpenOk {});
            return Ok(());
        }
        match method {
            Method::BasicPublish {
                exchange,
                routing_key,
                mandatory,
                immediate,
            } => {
                PublishAssembly::start(
                    &mut self.assembly,
                    exchange,
                    routing_key,
                    mandatory,
                    immediate,
                );
                Ok(())
            }
            Method::BasicAck {
                delivery_tag,
                multiple,
            } => self.settle(
                delivery_tag,
                multiple,
                queue::SettlementOutcome::Accepted,
                link,
                cx,
            ),
            Method::BasicNack {
                delivery_tag,
                multiple,
                requeue,
            } => self.settle(delivery_tag, multiple, rejection(requeue), link, cx),
            Method::BasicReject {
                delivery_tag,
                requeue,
            } => self.settle(delivery_tag, false, rejection(requeue), link, cx),
            other => self.rarer_method(other, link, cx),
        }
    }

    fn rarer_method(
        &mut self,
        method: Method<'_>,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        match method {
            Method::ChannelOpen {} => refuse!(ChannelError, "second 'channel.open' seen"),
            Method::ChannelClose { .. } => {
                let queues = link.consumed_by(self.number);
                let left = LeftQueues::of(queues, cx.broker);
                self.release(link, cx);
                self.go_on_leaving(left, true, link, cx);
                Ok(())
            }
            Method::ChannelFlow { active: true } => {
                cx.send(self.number, &Method::ChannelFlowOk { active: true });
                Ok(())
            }
            Method::ChannelFlow { active: false } => refuse!(NotImplemented, "active=false"),
            Method::ChannelFlowOk { .. } if self.told_flow => Ok(()),
            Method::AccessRequest { .. } => {
                cx.send(self.number, &Method::AccessRequestOk { ticket: 1 });
                Ok(())
            }
            Method::ConfirmSelect { .. } if self.transaction.is_some() => {
                refuse!(PreconditionFailed, "cannot switch from tx to confirm mode")
            }
            Method::ConfirmSelect { no_wait } => {
                if self.confirm_base.is_none() {
                    self.confirm_base = Some(self.confirms.next() - 1);
                }
                if !no_wait {
                    cx.send(self.number, &Method::ConfirmSelectOk {});
                }
                Ok(())
            }
            Method::TxSelect {} | Method::TxCommit {} | Method::TxRollback {} => {
                self.transaction_method(method, link, cx)
            }
            Method::BasicQos { .. }
            | Method::BasicConsume { .. }
            | Method::BasicCancel { .. }
            | Method::BasicGet { .. }
            | Method::BasicRecover { .. }
            | Method::BasicRecoverAsync { .. } => self.consuming_method(method, link, cx),
            Method::ExchangeDeclare { .. }
            | Method::ExchangeDelete { .. }
            | Method::ExchangeBind { .. }
            | Method::ExchangeUnbind { .. } => self.exchange_method(method, link, cx),
            Method::QueueDeclare { .. }
            | Method::QueueBind { .. }
            | Method::QueueUnbind { .. }
            | Method::QueuePurge { .. }
            | Method::QueueDelete { .. } => self.queue_method(method, link, cx),
            _ => refuse!(CommandInvalid, "unimplemented method"),
        }
    }

    /// Starts to wait: frames of this channel are held until it is over.
    pub fn wait(
        &mut self,
        wait: WaitReason,
        token: u64,
        ids: (u16, u16),
        link: &mut ConnectionState,
        cx: &StepContext<'_>,
    ) {
        let since = cx.broker.now();
        link.wait_deadline
            .get_or_insert(since + link.limits.operation);
        self.waiting = Some(Box::new(PendingMethod {
            wait,
            token,
            ids,
            since,
        }));
    }

    /// The queue's word on a publish.
    pub fn answered(
        &mut self,
        tag: PublishTag,
        taken: bool,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        if tag.tag >> SEQ_BITS != u64::from(self.epoch) {
            return;
        }
        if let Some(settled) = self.confirms.answered(tag.tag & SEQ_MASK, taken) {
            link.arrived(settled.size);
            if let Some(transaction) = &mut self.transaction {
                transaction.failed |= !settled.taken;
            }
            self.count_confirm(settled, link);
            self.confirm(settled, cx);
        }
    }

    /// Counts a confirm that the client is to get.
    pub fn count_confirm(&mut self, settled: SettledPublish, link: &mut ConnectionState) {
        if settled.taken && self.confirm_base.is_some_and(|base| settled.seq > base) {
            self.counts().publishes.confirmed += 1;
            link.count(|t| t.publishes.confirmed += 1);
        }
    }

    /// Tells the client, if it asked for confirms. Consecutive acks that nothing was written between become one.
    pub fn confirm(&mut self, settled: SettledPublish, cx: &mut StepContext<'_>) {
        let Some(tag) = self
            .confirm_base
            .and_then(|base| settled.seq.checked_sub(base))
        else {
            return;
        };
        if tag == 0 || self.state != ChannelState::Open {
            return;
        }
        if !settled.taken {
            // The standard's default, which says nothing to a publisher.
            let requeue = true;
            let nack = Method::BasicNack {
                delivery_tag: tag,
                // RabbitMQ says so whenever it is true.
                multiple: settled.in_order,
                requeue,
            };
            cx.send(self.number, &nack);
            return;
        }
        let merge = settled.in_order
            && self
                .last_ack
                .is_some_and(|last| last.tag + 1 == tag && last.stamp == cx.out.stamp());
        if merge {
            let tail = cx.out.tail();
            tail.truncate(tail.len().saturating_sub(ACK_FRAME));
        }
        cx.send(
            self.number,
            &Method::BasicAck {
                delivery_tag: tag,
                multiple: merge,
            },
        );
        self.last_ack = settled.in_order.then(|| LastAck {
            stamp: cx.out.stamp(),
            tag,
        });
    }

    /// The channel ends: its consumers go, what they have out returns to the queues.
    pub fn release(&mut self, link: &mut ConnectionState, cx: &mut StepContext<'_>) {
        link.stop(|s| s.channel == self.number, cx);
        self.let_go(link, cx);
    }

    /// The same for one of whose consumers none gets anything any more.
    pub fn let_go(&mut self, link: &mut ConnectionState, cx: &mut StepContext<'_>) {
        let waiting = self.waiting.take();
        let waiting = waiting.and_then(|w| w.wait.into_publish());
        link.holding -= usize::from(std::mem::take(&mut self.holding));
        self.end_replies(link, cx);
        link.forget_asked(self.number);
        link.held = link.held.saturating_sub(self.held_frames.len());
        self.held_frames = BytesMut::new();
        for assembly in waiting.into_iter().chain(self.assembly.take()) {
            assembly.uncount(link);
        }
        // Held deliveries have not been seen by the client; like the rest they go back. Of each queue in RabbitMQ's order: consumer by
        // consumer, cancelled ones too, as they came, and then what was got.
        let abandoned = self.transaction.take().into_iter();
        let owed = self.unacked.take_all().into_iter();
        let held = self.held_deliveries.drain(..);
        let mut out: Vec<(QueueId, bool, ConsumerId)> = owed
            .chain(abandoned.flat_map(|t| t.abandon()))
            .map(|o| (o.origin.queue, o.got, o.origin.consumer))
            .chain(held.map(|h| (h.queue, false, h.consumer)))
            .collect();
        let number = self.number;
        let gone = link.subscriptions.extract_if(|_, s| s.channel == number);
        let mut ended: Vec<(QueueId, ConsumerId)> =
            gone.map(|(id, s)| (s.queue, ConsumerId(id))).collect();
        // The map's order is nobody's business.
        ended.sort_unstable();
        out.extend(
            ended
                .iter()
                .map(|&(queue, consumer)| (queue, false, consumer)),
        );
        out.sort_unstable();
        out.dedup();
        let has_ended = |queue, consumer| ended.binary_search(&(queue, consumer)).is_ok();
        for of_one_queue in out.chunk_by(|a, b| a.0 == b.0) {
            // More than one has been stopped before; a single one is to get nothing of what goes back in front of it either.
            let one = of_one_queue
                .iter()
                .filter(|(q, _, c)| has_ended(*q, *c))
                .count()
                == 1;
            for &(queue, _, consumer) in of_one_queue.iter().skip(1).filter(|_| one) {
                if has_ended(queue, consumer) {
                    link.tell(cx, queue, RequestBody::Cancel { consumer });
                }
            }
            for &(queue, _, consumer) in of_one_queue {
                let body = match has_ended(queue, consumer) {
                    true => RequestBody::Leave { consumer },
                    false => RequestBody::Recover { consumer },
                };
                link.tell(cx, queue, body);
            }
        }
        self.uncount(link);
        for size in self.confirms.in_flight() {
            link.arrived(size);
        }
        self.confirms = Confirms::default();
    }

    /// Its consumers are no more, and it publishes no more.
    pub fn uncount(&mut self, link: &mut ConnectionState) {
        let consumers = std::mem::take(&mut self.consumers).len() as i64;
        let counts = self.counts.take();
        let published = counts.is_some_and(|c| c.publishes.received > 0);
        if published || consumers > 0 {
            link.count(|t| {
                t.publishers -= i64::from(published);
                t.consumers -= consumers;
            });
        }
    }

    pub(crate) fn forget_consumer(
        &mut self,
        tag: &str,
        link: &mut ConnectionState,
    ) -> Option<ConsumerId> {
        let consumer = self.consumers.remove(tag)?;
        link.count(|t| t.consumers -= 1);
        if self.unacked.len() == 0 {
            self.cancelled.clear();
        } else {
            self.cancelled.insert(consumer, tag.into());
        }
        if self.cancelled.len() > self.unacked.len() {
            let holding: BTreeSet<ConsumerId> =
                self.unacked.iter().map(|o| o.origin.consumer).collect();
            self.cancelled
                .retain(|consumer, _| holding.contains(consumer));
        }
        Some(consumer)
    }

    /// The tag that a consumer of this channel has, or had.
    pub(crate) fn tag_of<'a>(&'a self, consumer: ConsumerId, link: &'a ConnectionState) -> &'a str {
        let subscription = link.subscriptions.get(&consumer.0).map(|s| &*s.tag);
        let before = || self.cancelled.get(&consumer).map(|tag| &**tag);
        subscription.or_else(before).unwrap_or("")
    }
}

fn is_publish(frame: &Frame<'_>) -> bool {
    frame.kind == FrameKind::Method && frame.payload.starts_with(&[0, 60, 0, 40])
}

/// Octets of a basic.ack or basic.nack frame: overhead 8, ids 4, tag 8, bits 1.
const ACK_FRAME: usize = 21;

fn rejection(requeue: bool) -> queue::SettlementOutcome {
    if requeue {
        queue::SettlementOutcome::Requeue
    } else {
        queue::SettlementOutcome::Rejected
    }
}
