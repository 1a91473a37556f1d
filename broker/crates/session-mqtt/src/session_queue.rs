//! The queue of a session that outlives its connection. The queue is the session: it stores the QoS
//! 1 and 2 messages, and the subscriptions are its bindings.
//!
//! The arguments of a binding hold the options of the subscription, as in RabbitMQ. Subscriptions
//! with QoS 0 and shared subscriptions are bindings too, with a key that matches no message: the
//! router serves these, and the binding only stores them.

use crate::client_connection::{ClientConnection, DECLARE_SESSION_QUEUE, StepContext};
use crate::completed::{CompletedMessage, CompletedMessages};
use crate::handover::{EarlierSentMessages, Handover};
use crate::session::{ConnectionFailure, PacketResult};
use crate::shard_service::RouterAccess;
use crate::state::{MessageOwner, QueuedMessage};
use bytes::Bytes;
use codec_mqtt::{Ack, AckKind, Qos, ReasonCode};
use conversion::mqtt::{self, Envelope, key_of, topic_of};
use message::{Message, Protocol, Table, Value};
use metadata::{BindingRecord, Change, Destination, Name, QueueId, QueueRecord, QueueType, Tree};
use queue::{
    ConsumerId, ConsumerSpec, EpochConsumer, QueueReply, RequestBody, SessionEpoch, SessionId,
    Settlement, SettlementOutcome,
};
use session::RequestSeq;
use smallvec::SmallVec;
use std::sync::Arc;
use topics::{Delivery, MqttRouter, SubscriberId, Subscription, SubscriptionMatch};

/// Prefix of the key of a binding that must match nothing: no topic contains this character
/// [MQTT-4.7.3-2].
const UNMATCHED_PREFIX: char = '\0';
const FILTER: &str = "x-mqtt-filter";
const OPTIONS: &str = "x-mqtt-subscription-opts";
/// The option that identifies the connection that created the binding.
const FENCE: &str = "fence";
const EXPIRES: &str = "x-expires";
/// Maximum bytes of a queue name and of a binding key.
const MAX_NAME: usize = metadata::limits::NAME_BYTES;
/// The only consumer of a connection on the session's queue.
pub(crate) const CONSUMER: ConsumerId = ConsumerId(1);

/// The queue of a session as its connection sees it.
#[derive(Debug)]
pub(crate) struct SessionQueue {
    /// `None` if the user may not use the queue, until there is a subscription that it may have.
    pub queue: Option<QueueId>,
    /// The type of the queue.
    pub kind: QueueType,
    /// The pending consume request.
    pending_request: Option<RequestSeq>,
    /// The pending or last consume request named `epoch`.
    epoch_sent: bool,
    /// Messages that arrived before the answer. Bounded by the prefetch of the consumer.
    early_deliveries: Vec<queue::Delivery>,
    /// The first of the connections that know what was sent to the client: this one, and earlier
    /// ones on this shard or on others that handed over their state. `None` if the queue has not
    /// answered.
    pub epoch: Option<SessionId>,
    pub consuming: bool,
    /// Settlements of the previous connection, until the queue has processed them.
    previous_settlement: Option<Box<Settlement>>,
    /// Completed deliveries as ranges, sent at the end of the step.
    settled: Vec<(u64, u64)>,
    /// The packet identifiers that earlier connections used are unknown.
    pub unknown_past: bool,
    /// The messages that earlier connections sent.
    pub sent_earlier: EarlierSentMessages,
    /// There is a QoS 2 subscription.
    exactly_once: bool,
    /// Distinguishes the bindings of this connection from earlier ones; 0 if none was drawn. A node
    /// that was cut off applies the changes of its clients when it is back, although the clients
    /// may be elsewhere by then. Its unbind changes name the bindings that it knew, with all
    /// arguments, so they do not match bindings created since.
    pub fence: u32,
    /// Reused buffer for the subscriptions that a message matches.
    found: Vec<Subscription>,
}

/// Knowledge about the earlier connections of a session.
pub(crate) struct EarlierConnections {
    /// The last connection was on this shard.
    pub known: bool,
    /// Its settlements that the queue may not have processed.
    pub settled: Option<Box<Settlement>>,
    pub epoch: Option<SessionId>,
    pub sent_earlier: EarlierSentMessages,
}

impl EarlierConnections {
    pub(crate) const UNKNOWN: EarlierConnections = EarlierConnections {
        known: false,
        settled: None,
        epoch: None,
        sent_earlier: EarlierSentMessages::Unknown,
    };
}

impl Default for SessionQueue {
    fn default() -> SessionQueue {
        SessionQueue {
            queue: None,
            kind: QueueType::default(),
            pending_request: None,
            epoch_sent: false,
            early_deliveries: Vec::new(),
            epoch: None,
            consuming: false,
            previous_settlement: None,
            settled: Vec::new(),
            unknown_past: false,
            sent_earlier: EarlierSentMessages::NOTHING,
            exactly_once: false,
            fence: 0,
            found: Vec::new(),
        }
    }
}

/// Returns RabbitMQ's name of the queue with a client's QoS 1 and 2 messages; `None` if the client
/// id is too long for a queue name.
pub(crate) fn queue_name(client_id: &str) -> Option<Name> {
    let name = format!("mqtt-subscription-{client_id}qos1");
    (name.len() <= MAX_NAME).then(|| name.into())
}

/// Returns a filter as the routing key of a binding.
pub(crate) fn binding_key(filter: &str) -> String {
    key_of(filter).replace('+', "*")
}

/// The value of `x-expires` in milliseconds; `None`: never.
fn expires_ms(session_expiry: u32) -> Option<u64> {
    (session_expiry < u32::MAX).then(|| u64::from(session_expiry) * 1000)
}

impl ClientConnection {
    pub(crate) fn queue(&self) -> Option<QueueId> {
        self.rare.stored.as_ref().and_then(|stored| stored.queue)
    }

    /// Returns the record of a new queue for this session, with the vhost's default queue type.
    pub(crate) fn new_queue(&self, cx: &mut StepContext<'_>) -> Option<QueueRecord> {
        let vhost = cx.broker.tree().vhost(&self.account.vhost)?;
        let kind = vhost.default_queue_type.unwrap_or_default();
        let mut arguments = Table::default();
        arguments.set("x-queue-type", Value::from(kind.name()));
        if let Some(ms) = expires_ms(self.rare.session_expiry) {
            arguments.set(EXPIRES, Value::I64(ms as i64));
        }
        if kind.descriptor().delivery_limit.is_some() {
            // Disconnects of the client are not failures to process the message.
            arguments.set("x-delivery-limit", Value::I64(-1));
        }
        let mut record = QueueRecord {
            id: QueueId(0),
            vhost: self.account.vhost.clone(),
            name: queue_name(self.rare.client_id.as_deref()?)?,
            kind,
            durable: true,
            auto_delete: false,
            exclusive: None,
            arguments,
            members: Vec::new(),
            declared_by: self.account.user.clone(),
        };
        record.members = cx.broker.place_queue(&record);
        Some(record)
    }

    /// Declares the queue of a persistent session. CONNACK promises that the session survives, even
    /// if the node fails [MQTT-3.1.2-5]. Returns false if the session ends with its connection or
    /// the user may not have the queue.
    pub(crate) fn declare_queue(&mut self, cx: &mut StepContext<'_>) -> bool {
        if self.rare.session_expiry == 0 {
            return false;
        }
        let Some(record) = self.new_queue(cx) else {
            return false;
        };
        if !self.may_use(cx.broker.tree(), &record.name) {
            let text = "the user may not use the session's queue";
            self.note_refusal(("queue", &record.name), "configure", text, cx);
            return false;
        }
        cx.broker
            .change(DECLARE_SESSION_QUEUE, Change::DeclareQueue(record));
        true
    }

    /// Returns the fence of this connection's bindings; 0 if they have none.
    pub(crate) fn fence(&mut self, cx: &mut StepContext<'_>) -> u32 {
        match self.rare.stored_mut() {
            Some(stored) => {
                if stored.fence == 0 {
                    stored.fence = (cx.broker.random() as u32).max(1);
                }
                stored.fence
            }
            None => 0,
        }
    }

    /// A change of this connection has an unknown outcome and may still be applied at any time.
    /// Draws a new fence, so that the change does not undo later bindings.
    pub(crate) fn reset_fence(&mut self) {
        if let Some(stored) = self.rare.stored_mut() {
            stored.fence = 0;
        }
    }

    /// Returns the bindings that store a subscription. There may be several if changes of earlier
    /// connections were applied late.
    pub(crate) fn bindings_of(&self, filter: &str, cx: &StepContext<'_>) -> Vec<BindingRecord> {
        let Some(queue) = self.queue() else {
            return Vec::new();
        };
        let tree = cx.broker.tree();
        let exchange = &*self.settings.exchange;
        let [plain, aside] = [false, true].map(|aside| key_of_binding(filter, aside));
        let all = [plain, aside].into_iter().flat_map(|key| {
            let all = tree.bindings_of_queue_with_key(queue, exchange, &key);
            all.map(|binding| (**binding).clone()).collect::<Vec<_>>()
        });
        let named =
            |b: &BindingRecord| b.arguments.get(FILTER).and_then(Value::as_str) == Some(filter);
        all.filter(named).collect()
    }

    /// Returns the binding that stores a subscription; `None` if the filter is too long.
    pub(crate) fn binding(
        &self,
        filter: &str,
        subscription: Subscription,
        fence: u32,
    ) -> Option<BindingRecord> {
        let shared = codec_mqtt::shared(filter).ok().flatten();
        let aside = shared.is_some() || subscription.qos == Qos::AtMostOnce;
        let key = key_of_binding(filter, aside);
        let mut options = Table::default();
        if fence != 0 {
            options.set(FENCE, Value::U32(fence));
        }
        if subscription.identifier != 0 {
            options.set("id", Value::U32(subscription.identifier));
        }
        options.set("no-local", Value::Bool(subscription.no_local));
        options.set("qos", Value::U8(subscription.qos as u8));
        options.set(
            "retain-as-published",
            Value::Bool(subscription.retain_as_published),
        );
        let mut arguments = Table::default();
        arguments.set(FILTER, Value::from(filter));
        arguments.set(OPTIONS, Value::Table(options));
        (key.len() <= MAX_NAME).then_some(BindingRecord {
            vhost: self.account.vhost.clone(),
            source: self.settings.exchange.clone(),
            destination: Destination::Queue(queue_name(self.rare.client_id.as_deref()?)?),
            routing_key: key.into(),
            arguments,
        })
    }

    /// Registers the subscriptions stored in the queue's bindings in the router.
    fn restore_subscriptions(&mut self, queue: QueueId, cx: &mut StepContext<'_>) {
        let tree = cx.broker.tree();
        let exchange = &*self.settings.exchange;
        let all = tree.bindings_of_queue(queue);
        let ours = all.iter().filter(|b| &*b.source == exchange);
        let kept: Vec<_> = ours
            .filter_map(|b| read_subscription(&b.arguments))
            .collect();
        let (Some(subscriber), Some(router)) = (self.subscriber.to_option(), cx.broker.router())
        else {
            return;
        };
        router.unsubscribe_all(subscriber);
        router.use_queue(subscriber, queue.0);
        for (filter, subscription) in kept {
            self.rare.note_subscription(&subscription);
            if let Some(stored) = self.rare.stored_mut() {
                stored.exactly_once |= subscription.qos == Qos::ExactlyOnce;
            }
            router.subscribe(subscriber, &filter, subscription);
        }
    }

    /// Resumes a session with an existing queue and starts to consume.
    pub(crate) fn resume(
        &mut self,
        record: &QueueRecord,
        earlier: EarlierConnections,
        cx: &mut StepContext<'_>,
    ) {
        let fence = self.rare.stored.as_ref().map_or(0, |s| s.fence);
        self.rare.stored = Some(Box::new(SessionQueue {
            fence,
            epoch: earlier.epoch,
            queue: Some(record.id),
            unknown_past: !earlier.known,
            sent_earlier: earlier.sent_earlier,
            previous_settlement: earlier.settled,
            ..SessionQueue::default()
        }));
        self.restore_subscriptions(record.id, cx);
        // Release them now: this connection may end before the queue answers, and the next one
        // would not know the identifiers either.
        let stored = self.rare.stored.as_ref();
        if stored.is_some_and(|stored| stored.unknown_past && stored.exactly_once) {
            self.state.release_all(&self.ids);
        }
        self.consume(cx);
    }

    /// Sends PUBREL for all identifiers that an earlier incarnation of the node may have used. They
    /// are free when the client has answered.
    pub(crate) fn send_pubrels(&mut self, cx: &mut StepContext<'_>) {
        for id in self.state.releasing() {
            let release = Ack::new(AckKind::PubRel, id, ReasonCode::Success);
            release.encode(self.version, cx.packet());
        }
    }

    /// Sets the expiry of the queue to that of the session.
    pub(crate) fn update_queue_expiry(&self, cx: &mut StepContext<'_>) {
        let Some(record) = self.queue_record(cx) else {
            return;
        };
        let said = record.arguments.get(EXPIRES).and_then(Value::as_integer);
        let expires_ms = expires_ms(self.rare.session_expiry);
        // A queue without expiry is deleted when the connection ends.
        if self.rare.session_expiry > 0 && said.and_then(|ms| u64::try_from(ms).ok()) != expires_ms
        {
            let id = record.id;
            cx.broker
                .change(0, Change::SetQueueExpires { id, expires_ms });
        }
    }

    /// The queue was declared for this connection.
    pub(crate) fn queue_declared(&mut self, queue: QueueId, cx: &mut StepContext<'_>) {
        if let Some(stored) = self.rare.stored_mut() {
            stored.queue = Some(queue);
        }
        if let (Some(subscriber), Some(router)) = (self.subscriber.to_option(), cx.broker.router())
        {
            router.use_queue(subscriber, queue.0);
        }
        self.consume(cx);
        // CONNACK does not wait for the answer, and the next connection may come before it. This
        // connection begins the epoch, unless another one has consumed since.
        if let Some(stored) = self.rare.stored_mut().filter(|s| s.epoch_sent) {
            stored.epoch = Some(cx.broker.id());
        }
    }

    /// Uses state that another shard or node handed over if it belongs to the session with this
    /// queue. The queue must still confirm it.
    pub(crate) fn apply_handover(
        &mut self,
        handover: Bytes,
        queue: QueueId,
    ) -> Option<EarlierConnections> {
        let handover = Handover::decode(handover).filter(|h| h.queue == queue)?;
        if !handover.received.is_empty() {
            self.state.received = handover.received;
        }
        Some(EarlierConnections {
            epoch: Some(handover.epoch),
            sent_earlier: handover.sent,
            ..EarlierConnections::UNKNOWN
        })
    }

    fn consume(&mut self, cx: &mut StepContext<'_>) {
        let tag = self.rare.client_id.as_deref().unwrap_or_default().into();
        let learned = self.rare.applied_at_connect;
        let Some(stored) = self.rare.stored_mut() else {
            return;
        };
        let Some(queue) = stored.queue else {
            return;
        };
        let spec = ConsumerSpec {
            tag,
            channel: 0,
            flow_mode: queue::FlowMode::Prefetch,
            prefetch: self.quota.into(),
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: Table::default(),
            filter: None,
        };
        let consumer = CONSUMER;
        if let Some(record) = cx.broker.tree().queue_by_id(queue) {
            stored.kind = record.kind;
        }
        let epoch = match stored.epoch {
            None => SessionEpoch::New,
            Some(first) => SessionEpoch::Of(first),
        };
        let consumer = EpochConsumer {
            consumer,
            spec,
            settled: stored.previous_settlement.as_deref().cloned(),
            epoch,
            at: learned,
        };
        let seq = (cx.broker).request(queue, RequestBody::TakeOver(Box::new(consumer)));
        (stored.pending_request, stored.epoch_sent) = (Some(seq), true);
        stored.consuming = true;
    }

    /// Handles an answer of the queue. Returns true if it answers the pending request.
    pub(crate) fn handle_queue_answer(
        &mut self,
        queue: QueueId,
        seq: RequestSeq,
        answer: QueueReply,
        cx: &mut StepContext<'_>,
    ) -> Result<bool, ConnectionFailure> {
        // Section 3.14.2.1: Server Unavailable is allowed only in CONNACK.
        let reason = match self.is_open {
            true => ReasonCode::ImplementationSpecificError,
            false => ReasonCode::ServerUnavailable,
        };
        let Some(stored) = self.rare.stored_mut() else {
            return Ok(false);
        };
        if stored.queue != Some(queue) || stored.pending_request != Some(seq) {
            return Ok(false);
        }
        stored.pending_request = None;
        if let QueueReply::Refused { text, .. } = answer {
            stored.consuming = false;
            return Err(ConnectionFailure::new(reason, text));
        }
        stored.previous_settlement = None;
        let early_deliveries = std::mem::take(&mut stored.early_deliveries);
        self.epoch_continues(answer == QueueReply::EpochContinues, cx);
        self.handle_deliveries(queue, early_deliveries, cx);
        Ok(true)
    }

    /// Continues the session. `goes_on`: no connection outside of the named epoch has consumed
    /// since.
    fn epoch_continues(&mut self, goes_on: bool, cx: &StepContext<'_>) {
        let stored = self.rare.stored_mut();
        let Some(stored) = stored.filter(|stored| stored.epoch_sent) else {
            return;
        };
        if !goes_on || stored.epoch.is_none() {
            stored.epoch = Some(cx.broker.id());
        }
        // If CONNACK did not wait for the answer, the session had no queue, and this connection has
        // assigned its own identifiers.
        if goes_on || self.is_open {
            return;
        }
        // Other connections have used the packet identifiers of both directions. With an identifier
        // for which the client still awaits PUBREL, it would mistake a new message for the old one
        // [MQTT-4.3.3-10].
        stored.sent_earlier = EarlierSentMessages::Unknown;
        let released = std::mem::replace(&mut stored.unknown_past, true);
        let exactly_once = stored.exactly_once || self.state.has_exactly_once();
        self.state.forget_packet_ids();
        if exactly_once && !released {
            self.state.release_all(&self.ids);
        }
    }

    /// The queue has cancelled the consumer.
    pub(crate) fn consumer_cancelled(
        &mut self,
        queue: QueueId,
        cx: &StepContext<'_>,
    ) -> PacketResult {
        let Some(stored) = self.rare.stored_mut().filter(|s| s.queue == Some(queue)) else {
            return Ok(());
        };
        stored.consuming = false;
        if cx.broker.tree().queue_by_id(queue).is_none() {
            stored.queue = None;
            // The session ends with its queue.
            self.rare.session_expiry = 0;
            let text = "the session's queue was deleted";
            return Err(ConnectionFailure::new(
                ReasonCode::AdministrativeAction,
                text,
            ));
        }
        let text =
            "the session's queue cannot be reached, or serves another connection of the client";
        Err(ConnectionFailure::new(
            ReasonCode::ImplementationSpecificError,
            text,
        ))
    }

    /// Handles messages from the queue.
    pub(crate) fn handle_deliveries(
        &mut self,
        queue: QueueId,
        all: Vec<queue::Delivery>,
        cx: &mut StepContext<'_>,
    ) {
        let stored = self.rare.stored_mut();
        let Some(stored) = stored.filter(|stored| stored.queue == Some(queue)) else {
            return;
        };
        if stored.pending_request.is_some() {
            return stored.early_deliveries.extend(all);
        }
        for delivery in all {
            let redelivered = delivery.redelivered;
            let queue_message = CompletedMessage {
                id: delivery.id,
                mark: delivery.mark(),
            };
            if !redelivered {
                // The queue redelivers first: everything delivered to earlier connections has
                // arrived.
                self.state.inflight.retain(|i| !i.awaits_return());
                self.forget_sent_earlier();
            }
            if redelivered && self.is_completed(queue_message) {
                self.settle_delivery(queue_message);
                continue;
            }
            if redelivered && self.is_inflight(&delivery.message, queue_message) {
                continue;
            }
            match self.convert_delivery(delivery.message, cx) {
                Some(delivery) => {
                    // [MQTT-3.3.1-1], [MQTT-3.3.1-3]: a redelivered message may not have been sent,
                    // because its connection ended before.
                    let stored = self.rare.stored.as_ref();
                    let sent = stored.is_some_and(|s| s.sent_earlier.may_have(queue_message.mark));
                    let owner = MessageOwner::Queue(queue_message);
                    self.count(owner, cx, |d| d.redeliver += u64::from(redelivered));
                    self.state.push_from_queue(QueuedMessage {
                        delivery,
                        owner,
                        dup: redelivered && sent,
                    });
                }
                None => self.settle_delivery(queue_message),
            }
        }
        self.send_waiting(cx);
    }

    /// A queue that knows the order of connections redelivers the messages of earlier ones first,
    /// so they have all arrived.
    fn forget_sent_earlier(&mut self) {
        let stored = self.rare.stored_mut();
        if let Some(stored) = stored.filter(|s| s.epoch_sent) {
            stored.sent_earlier = EarlierSentMessages::NOTHING;
        }
    }

    /// The queue redelivers a message that the client has completed: it must not be sent again
    /// [MQTT-4.3.3-6].
    fn is_completed(&mut self, queue_message: CompletedMessage) -> bool {
        let known = !self.state.completed.is_empty();
        known
            && queue_message
                .mark
                .is_some_and(|mark| self.state.completed.take(mark))
    }

    /// The queue redelivers a message that has a packet identifier: it is sent again even if the
    /// subscriptions have changed [MQTT-4.4.0-1], [MQTT-3.10.4-3].
    fn is_inflight(&mut self, message: &Message, queue_message: CompletedMessage) -> bool {
        if self.state.inflight.is_empty() {
            return false;
        }
        match message.protocol() {
            Protocol::Mqtt if !message.has_died() => {
                self.state.match_redelivery(message, queue_message)
            }
            _ => message.routing_keys().any(|key| {
                let ours = mqtt::convert(message, key, &self.settings.exchange);
                ours.is_some_and(|ours| self.state.match_redelivery(&ours, queue_message))
            }),
        }
    }

    /// Converts a message from the queue for the client. Returns `None` if it matches no
    /// subscription any more, or with QoS 0, in which case the router has delivered it.
    fn convert_delivery(&mut self, message: Message, cx: &mut StepContext<'_>) -> Option<Delivery> {
        let found = &mut self.rare.stored_mut()?.found;
        found.clear();
        convert_queue_message(
            message,
            &self.settings.exchange,
            self.subscriber.to_option()?,
            cx.broker.router()?,
            found,
        )
    }

    /// The client has completed a delivery from the queue.
    pub(crate) fn settle_delivery(&mut self, queue_message: CompletedMessage) {
        let Some(stored) = self.rare.stored_mut() else {
            return;
        };
        let id = queue_message.id;
        match stored.settled.last_mut() {
            Some((_, to)) if to.checked_add(1) == Some(id) => *to = id,
            _ => stored.settled.push((id, id)),
        }
        if let Some(mark) = queue_message.mark {
            self.state.completed.add(mark, self.quota);
        }
    }

    /// The client is idle: forgets completed messages that the queue has processed.
    pub(crate) fn forget_completed(&mut self, cx: &StepContext<'_>) {
        let heard = |queue| cx.broker.settling(queue, CONSUMER).is_empty();
        if !self.state.completed.is_empty() && self.queue().is_none_or(heard) {
            self.state.completed = CompletedMessages::NONE;
        }
    }

    /// Sends the settlements of the step to the queue.
    pub(crate) fn flush_settled(&mut self, cx: &mut StepContext<'_>) {
        self.flush_settled_streams(cx);
        let Some(stored) = self.rare.stored_mut().filter(|s| !s.settled.is_empty()) else {
            return;
        };
        let ids = std::mem::take(&mut stored.settled);
        if let (Some(queue), true) = (stored.queue, stored.consuming) {
            let body = RequestBody::Settle {
                consumer: CONSUMER,
                outcome: SettlementOutcome::Accepted,
                ids,
            };
            cx.broker.request(queue, body);
        }
    }

    /// The connection ends: requeues unacknowledged messages before another connection consumes.
    /// Returns the settlements that the queue may not have processed.
    pub(crate) fn leave_queue(&mut self, cx: &mut StepContext<'_>) -> Option<Box<Settlement>> {
        self.flush_settled(cx);
        let stored = self.rare.stored_mut()?;
        let queue = stored.queue?;
        let settled = match stored.previous_settlement.take() {
            // This connection has received nothing yet.
            Some(before) => Some(before),
            None => settling(queue, cx),
        };
        if stored.consuming {
            let consumer = CONSUMER;
            cx.broker
                .request(queue, RequestBody::CancelAndRequeue { consumer });
        }
        settled
    }

    fn queue_record(&self, cx: &StepContext<'_>) -> Option<Arc<QueueRecord>> {
        cx.broker.tree().queue_by_id(self.queue()?).cloned()
    }

    /// The session has ended: deletes its queue.
    pub(crate) fn delete_own_queue(&self, cx: &mut StepContext<'_>) {
        if let Some(record) = self.queue_record(cx) {
            self.delete_queue(0, record.id, cx);
        }
    }

    /// Deletes a queue of this client id.
    pub(crate) fn delete_queue(&self, token: u64, id: QueueId, cx: &mut StepContext<'_>) {
        let client = self.rare.client_id.as_deref();
        let Some(name) = client.and_then(queue_name) else {
            debug_assert!(false, "client {client:?} has no queue {id:?}");
            return;
        };
        if let Some(router) = cx.broker.router() {
            router.queue_deleting(id.0);
        }
        let change = Change::DeleteQueue {
            vhost: self.account.vhost.clone(),
            name,
            id: Some(id),
        };
        cx.broker.change(token, change);
    }

    /// Removes the session's own queue from the routes if all matching subscriptions use No Local.
    pub(crate) fn exclude_no_local(
        &self,
        topic: &str,
        routes: &mut Vec<QueueId>,
        cx: &mut StepContext<'_>,
    ) {
        let (Some(queue), Some(subscriber)) = (self.queue(), self.subscriber.to_option()) else {
            return;
        };
        if !self.rare.no_local || !routes.contains(&queue) {
            return;
        }
        if let Some(router) = cx.broker.router() {
            let mut found = Vec::new();
            router.matching(subscriber, topic, &mut found);
            if found.iter().all(|s| s.no_local || s.qos == Qos::AtMostOnce) {
                routes.retain(|id| *id != queue);
            }
        }
    }
}

/// Returns the settlements of this connection that the queue may not have processed.
fn settling(queue: QueueId, cx: &StepContext<'_>) -> Option<Box<Settlement>> {
    let ids = cx.broker.settling(queue, CONSUMER);
    let settled = Settlement {
        session: cx.broker.id(),
        consumer: CONSUMER,
        ids,
    };
    (!settled.ids.is_empty()).then(|| Box::new(settled))
}

/// See [`ClientConnection::convert_delivery`]; `found` must be empty. `exchange` is that of MQTT.
fn convert_queue_message(
    message: Message,
    exchange: &str,
    subscriber: SubscriberId,
    router: &mut MqttRouter,
    found: &mut Vec<Subscription>,
) -> Option<Delivery> {
    let message = match message.protocol() {
        Protocol::Mqtt if !message.has_died() => {
            let raw = message.properties();
            let topic = Envelope::read(raw).ok()?.topic().ok()?;
            router.matching(subscriber, topic, found);
            message
        }
        _ => message.routing_keys().find_map(|key| {
            let topic = topic_of(key);
            // Only the server publishes to these topics.
            if topics::is_sys_topic(&topic) {
                return None;
            }
            router.matching(subscriber, &topic, found);
            let of_client = !found.is_empty();
            of_client.then(|| mqtt::convert(&message, key, exchange))?
        })?,
    };
    let hits: SmallVec<[SubscriptionMatch; 1]> = found.iter().map(|s| s.to_match()).collect();
    let best = hits.iter().map(|hit| hit.qos).max()?;
    (message.durable() && best > Qos::AtMostOnce).then_some(Delivery {
        group: 0,
        message,
        hits,
        retained: false,
    })
}

/// Returns the binding key of a filter. `aside`: a key that matches no message.
fn key_of_binding(filter: &str, aside: bool) -> String {
    let shared = codec_mqtt::shared(filter).ok().flatten();
    let mut key = binding_key(shared.map_or(filter, |s| s.filter));
    if aside {
        key.insert(0, UNMATCHED_PREFIX);
    }
    key
}

pub(crate) fn is_session_queue(tree: &Tree, queue: QueueId) -> bool {
    tree.queue_by_id(queue)
        .is_some_and(|q| client_of(&q.name).is_some())
}

/// Returns the client id from the name of a session's queue; `None` if it is another queue.
pub(crate) fn client_of(queue: &str) -> Option<&str> {
    queue
        .strip_prefix("mqtt-subscription-")?
        .strip_suffix("qos1")
}

/// Returns the subscription that a binding of a session's queue stores; `None` if it stores none.
pub(crate) fn subscription_of(binding: &BindingRecord) -> Option<(String, Subscription)> {
    read_subscription(&binding.arguments)
}

/// Returns the shared subscription that a binding of a session's queue stores; `None` if it stores
/// none.
pub(crate) fn shared_subscription(binding: &BindingRecord) -> Option<(String, Subscription)> {
    let found = read_subscription(&binding.arguments)?;
    codec_mqtt::shared(&found.0)
        .ok()?
        .is_some()
        .then_some(found)
}

/// Returns true if two bindings of a queue store the same subscription of the same connection.
pub(crate) fn is_same(one: &BindingRecord, other: &BindingRecord) -> bool {
    let identity = |b: &BindingRecord| (read_subscription(&b.arguments), fence_of(&b.arguments));
    one.routing_key == other.routing_key && identity(one) == identity(other)
}

fn fence_of(arguments: &Table) -> Option<i64> {
    let Value::Table(options) = arguments.get(OPTIONS)? else {
        return None;
    };
    options.get(FENCE).and_then(Value::as_integer)
}

/// Reads a subscription from the arguments of a binding; `None` if it stores none.
fn read_subscription(arguments: &Table) -> Option<(String, Subscription)> {
    let filter = arguments.get(FILTER)?.as_str()?;
    codec_mqtt::shared(filter).ok()?;
    let Value::Table(options) = arguments.get(OPTIONS)? else {
        return None;
    };
    let flag = |key| options.get(key) == Some(&Value::Bool(true));
    let number = |key| options.get(key).and_then(Value::as_integer);
    let qos = number("qos").and_then(|n| u8::try_from(n).ok());
    let identifier = number("id").and_then(|n| u32::try_from(n).ok());
    let subscription = Subscription {
        qos: Qos::from_bits(qos?)?,
        no_local: flag("no-local"),
        retain_as_published: flag("retain-as-published"),
        identifier: identifier.unwrap_or(0),
    };
    Some((filter.to_owned(), subscription))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_queue_name_contains_client_id() {
        let name = queue_name("c").unwrap();
        assert_eq!(&*name, "mqtt-subscription-cqos1");
        assert_eq!(client_of(&name), Some("c"));
        assert_eq!(client_of("mqtt-subscription-cqos0"), None);
        assert_eq!(queue_name(&"c".repeat(MAX_NAME)), None);
    }

    #[test]
    fn binding_key_uses_amqp_wildcards() {
        assert_eq!(binding_key("a/+/b.c/#"), "a.*.b/c.#");
    }
}
