//! The state of a channel and the dispatch of its methods.

use crate::confirms::{Confirms, SettledPublish};
use crate::connection_state::{ClientOutcome, ConnectionState, StepContext};
use crate::content::PublishAssembly;
use crate::failure::{Failure, MethodResult, ReplyCode, refuse};
use crate::left_queues::LeftQueues;
use crate::method_failure::MethodFailure;
use crate::publish_tag::{EPOCH_MASK, SEQ_MASK, TagParts};
use crate::replies::ReplyConsumer;
use crate::retry::RetriedMethod;
use crate::transaction::Transaction;
use crate::unacked::UnackedDeliveries;
use crate::wait::WaitReason;
use bytes::{Bytes, BytesMut};
use codec_amqp091::{Frame, FrameKind, Method, encode_ack};
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
    /// We sent channel.close: everything except close-ok is dropped.
    Closing,
    /// The channel is removed from the connection.
    Closed,
}

/// A method that waits for the metadata group or for a queue.
#[derive(Debug)]
pub(crate) struct PendingMethod {
    pub wait: WaitReason,
    /// The token of `Broker::change`; 0 if it waits for a queue.
    pub token: u64,
    /// Class and method id, for channel.close or connection.close.
    pub ids: (u16, u16),
    pub since: Time,
}

/// The last confirm in the outbox, valid while nothing was written after it.
#[derive(Clone, Copy, Debug)]
struct LastAck {
    position: OutboxPosition,
    tag: u64,
}

/// A delivery that waits for space in the outbox.
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
    /// Frames that arrived while `waiting` or `is_holding`.
    pub held_frames: BytesMut,
    /// Tags of cancelled consumers that may still have unacknowledged deliveries. Never more than
    /// there are unacknowledged deliveries.
    cancelled: BTreeMap<ConsumerId, Name>,
    /// A publish is held back because queues have a backlog. Later frames are held as well, except
    /// acknowledgements.
    pub is_holding: bool,
    /// Only publish frames are held.
    only_publishes: bool,
    /// channel.flow with active=false was sent last.
    flow_stopped: bool,
    /// channel.flow was sent at least once, so channel.flow-ok from the client is expected.
    flow_requested: bool,
    pub assembly: Option<Box<PublishAssembly>>,
    /// The queue that an empty queue name refers to.
    pub last_queue: Name,
    pub consumers: BTreeMap<Name, ConsumerId>,
    /// The prefetch of consumers started from now on (basic.qos with global=false).
    pub prefetch: u32,
    /// Maximum number of unacknowledged deliveries of the channel (global=true); 0 is unlimited.
    pub channel_prefetch: u32,
    pub unacked: UnackedDeliveries,
    pub held_deliveries: VecDeque<HeldDelivery>,
    pub next_delivery: u64,
    /// The consumer of the last delivery.
    pub last_served: ConsumerId,
    pub confirms: Confirms,
    /// The publish number that precedes delivery tag 1. None before confirm.select.
    pub confirm_base: Option<u64>,
    last_ack: Option<LastAck>,
    /// The consumer of direct reply-to.
    pub replies: Option<Box<ReplyConsumer>>,
    /// Set by tx.select.
    pub transaction: Option<Box<Transaction>>,
    /// Allocated with the first message.
    counts: Option<Box<ChannelCounters>>,
}

/// Message counters of a channel.
#[derive(Debug, Default)]
pub(crate) struct ChannelCounters {
    pub publishes: PublishCounters,
    pub deliveries: DeliveryCounters,
}

impl Channel {
    pub(crate) fn new(number: u16, epoch: u32) -> Channel {
        Channel {
            number,
            epoch: epoch & EPOCH_MASK,
            state: ChannelState::Starting,
            waiting: None,
            held_frames: BytesMut::new(),
            is_holding: false,
            only_publishes: false,
            flow_stopped: false,
            flow_requested: false,
            assembly: None,
            last_queue: "".into(),
            consumers: BTreeMap::new(),
            prefetch: 0,
            channel_prefetch: 0,
            unacked: UnackedDeliveries::default(),
            held_deliveries: VecDeque::new(),
            next_delivery: 0,
            last_served: ConsumerId(0),
            confirms: Confirms::default(),
            confirm_base: None,
            last_ack: None,
            cancelled: BTreeMap::new(),
            replies: None,
            transaction: None,
            counts: None,
        }
    }

    pub(crate) fn counts(&mut self) -> &mut ChannelCounters {
        self.counts.get_or_insert_default()
    }

    /// For listings.
    pub(crate) fn details(&self, conn: &ConnectionState) -> ChannelDetails {
        let counts = self.counts.as_deref();
        let (messages, settlements) = self
            .transaction
            .as_ref()
            .map_or((0, 0), |t| t.uncommitted());
        let confirms = self.confirm_base.is_some();
        let is_auto_ack = |id: &ConsumerId| conn.subscriptions.get(&id.0).is_some_and(|s| s.no_ack);
        let auto_ack = self.consumers.iter().filter(|(_, id)| is_auto_ack(id));
        ChannelDetails {
            number: self.number,
            confirm: confirms,
            transactional: self.transaction.is_some(),
            flow_blocked: self.flow_stopped,
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
            links: None,
        }
    }

    pub(crate) fn publish_tag(&self, seq: u64) -> PublishTag {
        let parts = TagParts {
            channel: self.number,
            epoch: self.epoch,
            seq: seq & SEQ_MASK,
        };
        parts.pack()
    }

    /// Handles a frame of this channel. An error carries the ids of the failed method.
    pub(crate) fn frame(
        &mut self,
        frame: Frame<'_>,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), MethodFailure> {
        if self.waiting.is_some() || self.must_hold(&frame, conn, cx) {
            if self.is_holding && self.only_publishes && self.try_settle_early(&frame, conn, cx) {
                return Ok(());
            }
            let is_publish = frame.kind != FrameKind::Method || is_publish(&frame);
            self.only_publishes =
                is_publish && (self.only_publishes || self.held_frames.is_empty());
            let before = self.held_frames.len();
            frame.encode(&mut self.held_frames);
            conn.held_bytes += self.held_frames.len() - before;
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
                match self.method(method, conn, cx) {
                    Ok(()) => Ok(()),
                    Err(Failure {
                        unknown: Some(_), ..
                    }) if !cx.broker.knows_all() => {
                        let retry = RetriedMethod::Method(Bytes::copy_from_slice(frame.payload));
                        self.check_log_for(retry, ids, conn, cx);
                        Ok(())
                    }
                    Err(failure) => Err(MethodFailure { failure, ids }),
                }
            }
            FrameKind::Method | FrameKind::Header | FrameKind::Body => {
                crate::content::frame(self, frame, conn, cx).map_err(|failure| {
                    // Undecodable frames are reported with class and method 0.
                    let undecodable = failure.code == ReplyCode::FrameError;
                    let ids = if idle || undecodable {
                        (0, 0)
                    } else {
                        (60, 40)
                    };
                    MethodFailure { failure, ids }
                })
            }
            FrameKind::Heartbeat | FrameKind::Unknown(_) => Ok(()),
        }
    }

    /// Returns true if this frame must wait for queues with a backlog: a publish and everything
    /// after it. Clients that support channel.flow are asked to stop.
    pub(crate) fn must_hold(
        &mut self,
        frame: &Frame<'_>,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> bool {
        if !self.is_holding
            && conn.must_hold_publishes()
            && self.state == ChannelState::Open
            && is_publish(frame)
        {
            self.is_holding = true;
            conn.holding_channels += 1;
            if conn.capabilities.flow && !self.flow_stopped {
                self.flow_stopped = true;
                self.flow_requested = true;
                cx.send(self.number, &Method::ChannelFlow { active: false });
            }
        }
        self.is_holding
    }

    /// Lets the client publish again once no frame is held.
    pub(crate) fn resume_flow(&mut self, cx: &mut StepContext<'_>) {
        if self.flow_stopped && self.held_frames.is_empty() && self.state == ChannelState::Open {
            self.flow_stopped = false;
            cx.send(self.number, &Method::ChannelFlow { active: true });
        }
    }

    /// Ends the hold if the queues have caught up. Returns true if held frames can be processed.
    pub(crate) fn try_resume(&mut self, conn: &mut ConnectionState) -> bool {
        if self.is_holding && !conn.must_hold_publishes() {
            self.is_holding = false;
            conn.holding_channels -= 1;
        }
        self.waiting.is_none() && !self.is_holding
    }

    /// Processes an acknowledgement ahead of held publishes, so that they do not block consumers.
    /// An invalid one keeps its position, and so do acknowledgements in a transaction, where order
    /// matters.
    fn try_settle_early(
        &mut self,
        frame: &Frame<'_>,
        conn: &mut ConnectionState,
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
        self.unacked.contains(tag) && self.method(method, conn, cx).is_ok()
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

    pub(crate) fn method(
        &mut self,
        method: Method<'_>,
        conn: &mut ConnectionState,
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
                    &mut conn.spare_assembly,
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
                queue::SettlementOutcome::Accepted.into(),
                conn,
                cx,
            ),
            Method::BasicNack {
                delivery_tag,
                multiple,
                requeue,
            } => {
                let outcome = match requeue {
                    true => queue::SettlementOutcome::Requeue,
                    false => queue::SettlementOutcome::Rejected,
                };
                self.settle(delivery_tag, multiple, outcome.into(), conn, cx)
            }
            Method::BasicReject {
                delivery_tag,
                requeue,
            } => {
                let outcome = match requeue {
                    true => ClientOutcome::Failed,
                    false => queue::SettlementOutcome::Rejected.into(),
                };
                self.settle(delivery_tag, false, outcome, conn, cx)
            }
            other => self.handle_rare_method(other, conn, cx),
        }
    }

    fn handle_rare_method(
        &mut self,
        method: Method<'_>,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        match method {
            Method::ChannelOpen {} => refuse!(ChannelError, "second 'channel.open' seen"),
            Method::ChannelClose { .. } => {
                let queues = conn.consumed_by(self.number);
                let left = LeftQueues::of(queues, cx.broker);
                self.release(conn, cx);
                self.delete_left_queues(left, true, conn, cx);
                Ok(())
            }
            Method::ChannelFlow { active: true } => {
                cx.send(self.number, &Method::ChannelFlowOk { active: true });
                Ok(())
            }
            Method::ChannelFlow { active: false } => refuse!(NotImplemented, "active=false"),
            Method::ChannelFlowOk { .. } if self.flow_requested => Ok(()),
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
                self.transaction_method(method, conn, cx)
            }
            Method::BasicQos { .. }
            | Method::BasicConsume { .. }
            | Method::BasicCancel { .. }
            | Method::BasicGet { .. }
            | Method::BasicRecover { .. }
            | Method::BasicRecoverAsync { .. } => self.consuming_method(method, conn, cx),
            Method::ExchangeDeclare { .. }
            | Method::ExchangeDelete { .. }
            | Method::ExchangeBind { .. }
            | Method::ExchangeUnbind { .. } => self.exchange_method(method, conn, cx),
            Method::QueueDeclare { .. }
            | Method::QueueBind { .. }
            | Method::QueueUnbind { .. }
            | Method::QueuePurge { .. }
            | Method::QueueDelete { .. } => self.queue_method(method, conn, cx),
            _ => refuse!(CommandInvalid, "unimplemented method"),
        }
    }

    /// Makes the channel wait. Its later frames are held until [`Channel::waiting`] is cleared.
    pub(crate) fn wait(
        &mut self,
        wait: WaitReason,
        token: u64,
        ids: (u16, u16),
        conn: &mut ConnectionState,
        cx: &StepContext<'_>,
    ) {
        let since = cx.broker.now();
        conn.wait_deadline
            .get_or_insert(since + conn.limits.operation);
        self.waiting = Some(Box::new(PendingMethod {
            wait,
            token,
            ids,
            since,
        }));
    }

    /// Handles the answer of one queue to a publish.
    pub(crate) fn record_answer(
        &mut self,
        tag: PublishTag,
        accepted: bool,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let TagParts { epoch, seq, .. } = TagParts::unpack(tag);
        if epoch != self.epoch {
            return;
        }
        let seq = self.confirms.expand(seq);
        let slots = self.confirms.slots();
        if let Some(settled) = self.confirms.record_answer(seq, accepted) {
            conn.remove_in_flight(settled.size);
            conn.replace_confirm_slots(slots, self.confirms.slots());
            if let Some(transaction) = &mut self.transaction {
                transaction.failed |= !settled.accepted;
            }
            self.count_confirm(settled, conn);
            self.confirm(settled, cx);
        }
    }

    /// Counts a confirm that is sent to the client.
    pub(crate) fn count_confirm(&mut self, settled: SettledPublish, conn: &mut ConnectionState) {
        if settled.accepted && self.confirm_base.is_some_and(|base| settled.seq > base) {
            self.counts().publishes.confirmed += 1;
            conn.count(|t| t.publishes.confirmed += 1);
        }
    }

    /// Sends a confirm if the channel has confirms enabled. Consecutive acks with nothing written
    /// in between are merged into one.
    pub(crate) fn confirm(&mut self, settled: SettledPublish, cx: &mut StepContext<'_>) {
        let Some(tag) = self
            .confirm_base
            .and_then(|base| settled.seq.checked_sub(base))
        else {
            return;
        };
        if tag == 0 || self.state != ChannelState::Open {
            return;
        }
        if !settled.accepted {
            // The default of the specification. The field has no meaning for publishers.
            let requeue = true;
            let nack = Method::BasicNack {
                delivery_tag: tag,
                // RabbitMQ sets it whenever it is true.
                multiple: settled.in_order,
                requeue,
            };
            cx.send(self.number, &nack);
            return;
        }
        let merge = settled.in_order
            && self
                .last_ack
                .is_some_and(|last| last.tag + 1 == tag && last.position == cx.out.position());
        if merge {
            let tail = cx.out.tail();
            tail.truncate(tail.len().saturating_sub(ACK_FRAME));
        }
        encode_ack(cx.out.tail(), self.number, tag, merge);
        self.last_ack = settled.in_order.then(|| LastAck {
            position: cx.out.position(),
            tag,
        });
    }

    /// Ends the channel: stops its consumers and requeues their unacknowledged deliveries.
    pub(crate) fn release(&mut self, conn: &mut ConnectionState, cx: &mut StepContext<'_>) {
        conn.stop(|s| s.channel == self.number, cx);
        self.release_stopped(conn, cx);
    }

    /// As [`Channel::release`], for a channel whose consumers have been stopped already.
    pub(crate) fn release_stopped(&mut self, conn: &mut ConnectionState, cx: &mut StepContext<'_>) {
        let waiting = self.waiting.take();
        let waiting = waiting.and_then(|w| w.wait.into_publish());
        conn.holding_channels -= usize::from(std::mem::take(&mut self.is_holding));
        self.end_replies(conn, cx);
        conn.forget_requests(self.number);
        conn.held_bytes = conn.held_bytes.saturating_sub(self.held_frames.len());
        self.held_frames = BytesMut::new();
        for assembly in waiting.into_iter().chain(self.assembly.take()) {
            assembly.subtract_from_totals(conn);
        }
        // The client has not seen held deliveries; they are requeued with the unacknowledged ones.
        // Within a queue the order is RabbitMQ's: by consumer in order of creation, cancelled ones
        // included, then basic.get.
        let abandoned = self.transaction.take().into_iter();
        let unacked = self.unacked.take_all().into_iter();
        let held = self.held_deliveries.drain(..);
        let mut out: Vec<(QueueId, bool, ConsumerId)> = unacked
            .chain(abandoned.flat_map(|t| t.abandon()))
            .map(|o| (o.origin.queue, o.by_get, o.origin.consumer))
            .chain(held.map(|h| (h.queue, false, h.consumer)))
            .collect();
        let number = self.number;
        let removed = conn.subscriptions.extract_if(|_, s| s.channel == number);
        let mut ended: Vec<(QueueId, ConsumerId)> =
            removed.map(|(id, s)| (s.queue, ConsumerId(id))).collect();
        // Do not depend on the order of the hash map.
        ended.sort_unstable();
        out.extend(
            ended
                .iter()
                .map(|&(queue, consumer)| (queue, false, consumer)),
        );
        out.sort_unstable();
        out.dedup();
        let has_ended = |queue, consumer| ended.binary_search(&(queue, consumer)).is_ok();
        for per_queue in out.chunk_by(|a, b| a.0 == b.0) {
            // Two or more consumers of one queue were stopped above. A single one must be cancelled
            // before deliveries ahead of its own are requeued, or it would receive them.
            let is_single = per_queue
                .iter()
                .filter(|(q, _, c)| has_ended(*q, *c))
                .count()
                == 1;
            for &(queue, _, consumer) in per_queue.iter().skip(1).filter(|_| is_single) {
                if has_ended(queue, consumer) {
                    conn.send_oneway(cx, queue, RequestBody::Cancel { consumer });
                }
            }
            // The deliveries count as failed, also those of basic.get and of cancelled consumers.
            for &(queue, _, consumer) in per_queue {
                let body = RequestBody::CancelAndRequeue { consumer };
                conn.send_oneway(cx, queue, body);
            }
        }
        self.subtract_from_totals(conn);
        for size in self.confirms.in_flight() {
            conn.remove_in_flight(size);
        }
        conn.replace_confirm_slots(self.confirms.slots(), 0);
        self.confirms = Confirms::default();
    }

    /// Subtracts the channel from the numbers of consumers and publishers.
    pub(crate) fn subtract_from_totals(&mut self, conn: &mut ConnectionState) {
        let consumers = std::mem::take(&mut self.consumers).len() as i64;
        let counts = self.counts.take();
        let published = counts.is_some_and(|c| c.publishes.received > 0);
        if published || consumers > 0 {
            conn.count(|t| {
                t.publishers -= i64::from(published);
                t.consumers -= consumers;
            });
        }
    }

    pub(crate) fn forget_consumer(
        &mut self,
        tag: &str,
        conn: &mut ConnectionState,
    ) -> Option<ConsumerId> {
        let consumer = self.consumers.remove(tag)?;
        conn.count(|t| t.consumers -= 1);
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
        debug_assert!(self.cancelled.len() <= self.unacked.len());
        Some(consumer)
    }

    /// The tag of a current or cancelled consumer of this channel; empty if unknown.
    pub(crate) fn tag_of<'a>(&'a self, consumer: ConsumerId, conn: &'a ConnectionState) -> &'a str {
        let subscription = conn.subscriptions.get(&consumer.0).map(|s| &*s.tag);
        let cancelled = || self.cancelled.get(&consumer).map(|tag| &**tag);
        subscription.or_else(cancelled).unwrap_or("")
    }
}

fn is_publish(frame: &Frame<'_>) -> bool {
    frame.kind == FrameKind::Method && frame.payload.starts_with(&[0, 60, 0, 40])
}

/// Octets of a basic.ack or basic.nack frame: 8 frame overhead, 4 ids, 8 tag, 1 flags.
const ACK_FRAME: usize = 21;
