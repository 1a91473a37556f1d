//! The queue of a session that outlives its connection (M2): it is the session, its messages of QoS 1 and 2 wait there, and its
//! subscriptions are bindings that end there.
//!
//! What a subscription asks for is in the binding's arguments, as in RabbitMQ. Subscriptions of QoS 0 and shared ones are bindings
//! too, under a key that no message has: the hub serves those, and the binding keeps them.

use crate::client_connection::{ClientConnection, MAKING, StepContext};
use crate::completed::{CompletedMessage, CompletedMessages};
use crate::handover::{Handover, SentEarlier};
use crate::session::{Failure, PacketResult};
use crate::state::QueuedMessage;
use bytes::Bytes;
use codec_mqtt::{Ack, AckKind, Qos, Reason};
use message::{Message, Protocol, Table, Value};
use metadata::{BindingRecord, Change, Destination, Name, QueueId, QueueRecord, QueueType, Tree};
use queue::{
    ConsumerId, ConsumerSpec, EpochConsumer, QueueReply, RequestBody, SessionEpoch, SessionId,
    Settlement, SettlementOutcome,
};
use session::RequestSeq;
use smallvec::SmallVec;
use std::sync::Arc;
use topics::{
    Delivery, Envelope, MqttRouter, SubscriberId, Subscription, SubscriptionMatch, key_of, topic_of,
};

/// In front of the key of a binding that is to match nothing: no topic has this character [MQTT-4.7.3-2].
const ASIDE: char = '\0';
const FILTER: &str = "x-mqtt-filter";
const OPTIONS: &str = "x-mqtt-subscription-opts";
/// In the options: which connection made the binding.
const FENCE: &str = "fence";
const EXPIRES: &str = "x-expires";
/// Bytes of a queue's name and of a binding's key.
const MAX_NAME: usize = metadata::limits::NAME_BYTES;
/// The only one that a connection has.
const CONSUMER: ConsumerId = ConsumerId(1);

/// A session's queue, as its connection sees it.
#[derive(Debug)]
pub(crate) struct SessionQueue {
    /// None: the user may not have it, until there is a subscription that it may.
    pub queue: Option<QueueId>,
    /// Its type.
    pub kind: QueueType,
    /// The question whether messages may come.
    asked: Option<RequestSeq>,
    /// It was asked with `epoch`.
    told_epoch: bool,
    /// What came before the answer to that: no more than the queue was asked for.
    early: Vec<queue::Delivery>,
    /// The connections that know what the client was sent, by the first of them: this one, and those before it at this shard, or
    /// at others that handed over what they knew. None: the queue has not said so.
    pub epoch: Option<SessionId>,
    pub consuming: bool,
    /// What the connection before had done, until the queue has heard it.
    before: Option<Box<Settlement>>,
    /// Deliveries that are done with, as ranges; told at the end of the step.
    settled: Vec<(u64, u64)>,
    /// Nothing is known of the packet identifiers that earlier connections gave to messages.
    pub unknown_past: bool,
    /// Which messages they sent.
    pub sent_earlier: SentEarlier,
    /// There is a subscription of QoS 2.
    exactly_once: bool,
    /// What tells the bindings of this connection from earlier ones'; 0: none was drawn. A node that is cut off makes what its
    /// clients asked for when it is back, and they may be elsewhere by then: it undoes the bindings that it knew, by all their
    /// arguments, and not those that were made since.
    pub fence: u32,
    /// Room for the subscriptions that a message matches.
    found: Vec<Subscription>,
}

/// What is known of a session's earlier connections.
pub(crate) struct EarlierConnections {
    /// The last one was at this shard.
    pub known: bool,
    /// What it had done, as far as the queue may not have heard.
    pub settled: Option<Box<Settlement>>,
    pub epoch: Option<SessionId>,
    pub sent_earlier: SentEarlier,
}

impl EarlierConnections {
    pub const UNKNOWN: EarlierConnections = EarlierConnections {
        known: false,
        settled: None,
        epoch: None,
        sent_earlier: SentEarlier::Unknown,
    };
}

impl Default for SessionQueue {
    fn default() -> SessionQueue {
        SessionQueue {
            queue: None,
            kind: QueueType::default(),
            asked: None,
            told_epoch: false,
            early: Vec::new(),
            epoch: None,
            consuming: false,
            before: None,
            settled: Vec::new(),
            unknown_past: false,
            sent_earlier: SentEarlier::NOTHING,
            exactly_once: false,
            fence: 0,
            found: Vec::new(),
        }
    }
}

/// RabbitMQ's name of the queue with a client's messages of QoS 1 and 2. None: the client id is too long for one.
pub(crate) fn queue_name(client_id: &str) -> Option<Name> {
    let name = format!("mqtt-subscription-{client_id}qos1");
    (name.len() <= MAX_NAME).then(|| name.into())
}

/// A filter as the routing key of a binding.
pub(crate) fn binding_key(filter: &str) -> String {
    key_of(filter).replace('+', "*")
}

/// Milliseconds for `x-expires`; None: never.
fn expires_ms(session_expiry: u32) -> Option<u64> {
    (session_expiry < u32::MAX).then(|| u64::from(session_expiry) * 1000)
}

impl ClientConnection {
    pub(crate) fn queue(&self) -> Option<QueueId> {
        self.extras.stored.as_ref().and_then(|stored| stored.queue)
    }

    /// The queue that this session is to have, of the vhost's type.
    pub(crate) fn new_queue(&self, cx: &mut StepContext<'_>) -> Option<QueueRecord> {
        let vhost = cx.broker.tree().vhost(&self.account.vhost)?;
        let kind = vhost.default_queue_type.unwrap_or_default();
        let mut arguments = Table::default();
        arguments.set("x-queue-type", Value::from(kind.name()));
        if let Some(ms) = expires_ms(self.extras.session_expiry) {
            arguments.set(EXPIRES, Value::I64(ms as i64));
        }
        if kind.descriptor().delivery_limit.is_some() {
            // A client that often breaks off has not failed at the message.
            arguments.set("x-delivery-limit", Value::I64(-1));
        }
        let mut record = QueueRecord {
            id: QueueId(0),
            vhost: self.account.vhost.clone(),
            name: queue_name(self.extras.client_id.as_deref()?)?,
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

    /// Asks for the queue of a session that is to be kept: CONNACK promises that it will be there, whatever becomes of the node
    /// [MQTT-3.1.2-5]. False: the session ends with its connection, or its user may have no such queue.
    pub(crate) fn make_queue(&mut self, cx: &mut StepContext<'_>) -> bool {
        if self.extras.session_expiry == 0 {
            return false;
        }
        let record = self.new_queue(cx);
        let record = record.filter(|r| self.may_use(cx.broker.tree(), &r.name));
        let Some(record) = record else {
            return false;
        };
        cx.broker.change(MAKING, Change::DeclareQueue(record));
        true
    }

    /// The number in the bindings of this connection; 0: there is none in them.
    pub(crate) fn fence(&mut self, cx: &mut StepContext<'_>) -> u32 {
        match self.extras.stored_mut() {
            Some(stored) => {
                if stored.fence == 0 {
                    stored.fence = (cx.broker.random() as u32).max(1);
                }
                stored.fence
            }
            None => 0,
        }
    }

    /// A change that this connection asked for may be made or not, at any time: what it binds from now on must not be undone by it.
    pub(crate) fn doubt(&mut self) {
        if let Some(stored) = self.extras.stored_mut() {
            stored.fence = 0;
        }
    }

    /// The bindings that keep a subscription: more than one where those of earlier connections came late.
    pub(crate) fn bindings_of(&self, filter: &str, cx: &StepContext<'_>) -> Vec<BindingRecord> {
        let Some(queue) = self.queue() else {
            return Vec::new();
        };
        let tree = cx.broker.tree();
        let exchange = &*self.settings.exchange;
        let [plain, aside] = [false, true].map(|aside| key_of_binding(filter, aside));
        let all = [plain, aside].into_iter().flat_map(|key| {
            let all = tree.bindings_of_queue_under(queue, exchange, &key);
            all.map(|binding| (**binding).clone()).collect::<Vec<_>>()
        });
        let named =
            |b: &BindingRecord| b.arguments.get(FILTER).and_then(Value::as_str) == Some(filter);
        all.filter(named).collect()
    }

    /// The binding that a subscription is. None: the filter is too long for one.
    pub(crate) fn binding(
        &self,
        filter: &str,
        wanted: Subscription,
        fence: u32,
    ) -> Option<BindingRecord> {
        let shared = codec_mqtt::shared(filter).ok().flatten();
        let aside = shared.is_some() || wanted.qos == Qos::AtMostOnce;
        let key = key_of_binding(filter, aside);
        let mut options = Table::default();
        if fence != 0 {
            options.set(FENCE, Value::U32(fence));
        }
        if wanted.identifier != 0 {
            options.set("id", Value::U32(wanted.identifier));
        }
        options.set("no-local", Value::Bool(wanted.no_local));
        options.set("qos", Value::U8(wanted.qos as u8));
        options.set(
            "retain-as-published",
            Value::Bool(wanted.retain_as_published),
        );
        let mut arguments = Table::default();
        arguments.set(FILTER, Value::from(filter));
        arguments.set(OPTIONS, Value::Table(options));
        (key.len() <= MAX_NAME).then_some(BindingRecord {
            vhost: self.account.vhost.clone(),
            source: self.settings.exchange.clone(),
            destination: Destination::Queue(queue_name(self.extras.client_id.as_deref()?)?),
            routing_key: key.into(),
            arguments,
        })
    }

    /// The client's subscriptions are those that its queue has: the hub hears of them.
    fn restore_subscriptions(&mut self, queue: QueueId, cx: &mut StepContext<'_>) {
        let tree = cx.broker.tree();
        let exchange = &*self.settings.exchange;
        let all = tree.bindings_of_queue(queue);
        let ours = all.iter().filter(|b| &*b.source == exchange);
        let kept: Vec<_> = ours.filter_map(|b| subscription_of(&b.arguments)).collect();
        let (Some(subscriber), Some(router)) = (self.subscriber.known(), cx.broker.topics()) else {
            return;
        };
        router.unsubscribe_all(subscriber);
        router.store_in(subscriber, queue.0);
        for (filter, subscription) in kept {
            self.extras.note_no_local(&subscription);
            if let Some(stored) = self.extras.stored_mut() {
                stored.exactly_once |= subscription.qos == Qos::ExactlyOnce;
            }
            router.subscribe(subscriber, &filter, subscription);
        }
    }

    /// The session has this queue from an earlier connection: messages come when the queue agrees.
    pub(crate) fn resume(
        &mut self,
        record: &QueueRecord,
        past: EarlierConnections,
        cx: &mut StepContext<'_>,
    ) {
        let fence = self.extras.stored.as_ref().map_or(0, |s| s.fence);
        self.extras.stored = Some(Box::new(SessionQueue {
            fence,
            epoch: past.epoch,
            queue: Some(record.id),
            unknown_past: !past.known,
            sent_earlier: past.sent_earlier,
            before: past.settled,
            ..SessionQueue::default()
        }));
        self.restore_subscriptions(record.id, cx);
        // Now: this connection may end before it is told, and the next one knows no more of what was before.
        let stored = self.extras.stored.as_ref();
        if stored.is_some_and(|stored| stored.unknown_past && stored.exactly_once) {
            self.state.release_all(&self.ids);
        }
        self.consume(cx);
    }

    /// The client may wait for PUBREL of messages that an earlier life of the node sent it: their identifiers are free again
    /// when it has come.
    pub(crate) fn tell_released(&mut self, cx: &mut StepContext<'_>) {
        for id in self.state.releasing() {
            let release = Ack::new(AckKind::PubRel, id, Reason::Success);
            release.encode(self.version, cx.packet());
        }
    }

    /// The queue lives as long as the session without a connection.
    pub(crate) fn agree_on_expiry(&self, cx: &mut StepContext<'_>) {
        let Some(record) = self.queue_record(cx) else {
            return;
        };
        let said = record.arguments.get(EXPIRES).and_then(Value::as_integer);
        let expires_ms = expires_ms(self.extras.session_expiry);
        // Ends with this connection: it is deleted then.
        if self.extras.session_expiry > 0
            && said.and_then(|ms| u64::try_from(ms).ok()) != expires_ms
        {
            let id = record.id;
            cx.broker
                .change(0, Change::SetQueueExpires { id, expires_ms });
        }
    }

    /// The queue was made for this connection.
    pub(crate) fn queue_made(&mut self, queue: QueueId, cx: &mut StepContext<'_>) {
        if let Some(stored) = self.extras.stored_mut() {
            stored.queue = Some(queue);
        }
        if let (Some(subscriber), Some(router)) = (self.subscriber.known(), cx.broker.topics()) {
            router.store_in(subscriber, queue.0);
        }
        self.consume(cx);
        // CONNACK does not wait for the answer, and the next connection may come before it: the line is this connection's unless
        // another one has asked since.
        if let Some(stored) = self.extras.stored_mut().filter(|s| s.told_epoch) {
            stored.epoch = Some(cx.broker.id());
        }
    }

    /// State that another shard or node handed over, if it is of the session that has this queue. The queue has to confirm it.
    pub(crate) fn take_handover(
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
        let tag = self.extras.client_id.as_deref().unwrap_or_default().into();
        let learned = self.extras.learned;
        let Some(stored) = self.extras.stored_mut() else {
            return;
        };
        let Some(queue) = stored.queue else {
            return;
        };
        let spec = ConsumerSpec {
            tag,
            channel: 0,
            prefetch: self.quota.into(),
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: Table::default(),
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
            settled: stored.before.as_deref().cloned(),
            epoch,
            at: learned,
        };
        let seq = (cx.broker).request(queue, RequestBody::Succeed(Box::new(consumer)));
        (stored.asked, stored.told_epoch) = (Some(seq), true);
        stored.consuming = true;
    }

    /// The queue's answer. True: it was the one that was waited for.
    pub(crate) fn answered(
        &mut self,
        queue: QueueId,
        seq: RequestSeq,
        answer: QueueReply,
        cx: &mut StepContext<'_>,
    ) -> Result<bool, Failure> {
        // Section 3.14.2.1: a server that is not available says so in CONNACK alone.
        let reason = match self.open {
            true => Reason::ImplementationSpecificError,
            false => Reason::ServerUnavailable,
        };
        let Some(stored) = self.extras.stored_mut() else {
            return Ok(false);
        };
        if stored.queue != Some(queue) || stored.asked != Some(seq) {
            return Ok(false);
        }
        stored.asked = None;
        if let QueueReply::Refused { text, .. } = answer {
            stored.consuming = false;
            return Err(Failure::new(reason, text));
        }
        stored.before = None;
        let early = std::mem::take(&mut stored.early);
        self.continues(answer == QueueReply::GoesOn, cx);
        self.take(queue, early, cx);
        Ok(true)
    }

    /// The session goes on from where the line of connections had it that this one named; or others have consumed since.
    fn continues(&mut self, goes_on: bool, cx: &StepContext<'_>) {
        let stored = self.extras.stored_mut();
        let Some(stored) = stored.filter(|stored| stored.told_epoch) else {
            return;
        };
        if !goes_on || stored.epoch.is_none() {
            stored.epoch = Some(cx.broker.id());
        }
        // Where CONNACK did not wait for the answer, the session had no queue, and this connection has given out identifiers of its own.
        if goes_on || self.open {
            return;
        }
        // Packet identifiers, in both directions, are what others made of them: under one that the client still waits for PUBREL of, it
        // takes a new message for the one that it has [MQTT-4.3.3-10].
        stored.sent_earlier = SentEarlier::Unknown;
        let released = std::mem::replace(&mut stored.unknown_past, true);
        let exactly_once = stored.exactly_once || self.state.has_exactly_once();
        self.state.forget_ids();
        if exactly_once && !released {
            self.state.release_all(&self.ids);
        }
    }

    /// The queue will give no more messages.
    pub(crate) fn queue_lost(&mut self, queue: QueueId, cx: &StepContext<'_>) -> PacketResult {
        let Some(stored) = self.extras.stored_mut().filter(|s| s.queue == Some(queue)) else {
            return Ok(());
        };
        stored.consuming = false;
        if cx.broker.tree().queue_by_id(queue).is_none() {
            stored.queue = None;
            // With the queue the session is over.
            self.extras.session_expiry = 0;
            let text = "the session's queue was deleted";
            return Err(Failure::new(Reason::AdministrativeAction, text));
        }
        let text =
            "the session's queue cannot be reached, or serves another connection of the client";
        Err(Failure::new(Reason::ImplementationSpecificError, text))
    }

    /// Messages from the queue.
    pub(crate) fn take(
        &mut self,
        queue: QueueId,
        all: Vec<queue::Delivery>,
        cx: &mut StepContext<'_>,
    ) {
        let stored = self.extras.stored_mut();
        let Some(stored) = stored.filter(|stored| stored.queue == Some(queue)) else {
            return;
        };
        if stored.asked.is_some() {
            return stored.early.extend(all);
        }
        for delivery in all {
            let again = delivery.redelivered;
            let given = CompletedMessage {
                id: delivery.id,
                mark: delivery.mark(),
            };
            if !again {
                // All that had been given to earlier connections has come.
                self.state.inflight.retain(|i| !i.awaits_return());
                self.forget_sent_earlier();
            }
            if again && self.is_completed(given) {
                self.settle(given);
                continue;
            }
            if again && self.is_under_way(&delivery.message, given) {
                continue;
            }
            match self.understood(delivery.message, cx) {
                Some(delivery) => {
                    // [MQTT-3.3.1-1], [MQTT-3.3.1-3]: the queue also gives again what it gave to a connection that ended before it
                    // was sent.
                    let stored = self.extras.stored.as_ref();
                    let sent = stored.is_some_and(|s| s.sent_earlier.may_have(given.mark));
                    self.count(true, cx, |d| d.redeliver += u64::from(again));
                    self.state.wait_given(QueuedMessage {
                        delivery,
                        owed: Some(given),
                        dup: again && sent,
                    });
                }
                None => self.settle(given),
            }
        }
        self.send_waiting(cx);
    }

    /// A queue that knows which connections follow each other gives to the next one first what the earlier ones had.
    fn forget_sent_earlier(&mut self) {
        let stored = self.extras.stored_mut();
        if let Some(stored) = stored.filter(|s| s.told_epoch) {
            stored.sent_earlier = SentEarlier::NOTHING;
        }
    }

    /// The queue gives a message again that the client is done with: it is not sent again [MQTT-4.3.3-6].
    fn is_completed(&mut self, given: CompletedMessage) -> bool {
        let known = !self.state.completed.is_empty();
        known
            && given
                .mark
                .is_some_and(|mark| self.state.completed.take(mark))
    }

    /// The queue gives a message again that has a packet identifier: it is sent again whatever the client has subscribed to
    /// since [MQTT-4.4.0-1], [MQTT-3.10.4-3].
    fn is_under_way(&mut self, message: &Message, given: CompletedMessage) -> bool {
        if self.state.inflight.is_empty() {
            return false;
        }
        match message.protocol() {
            Protocol::Mqtt if !message.has_died() => self.state.returned(message, given),
            _ => message.routing_keys().any(|key| {
                let ours = crate::for_topic(message, key);
                ours.is_some_and(|ours| self.state.returned(&ours, given))
            }),
        }
    }

    /// A message from the queue as the client is to see it. None: it is not for the client (any more), or of QoS 0, and then the
    /// hub has handed it out.
    fn understood(&mut self, message: Message, cx: &mut StepContext<'_>) -> Option<Delivery> {
        let found = &mut self.extras.stored_mut()?.found;
        found.clear();
        understand(
            message,
            self.subscriber.known()?,
            cx.broker.topics()?,
            found,
        )
    }

    /// The client is done with a delivery of the queue.
    pub(crate) fn settle(&mut self, given: CompletedMessage) {
        let Some(stored) = self.extras.stored_mut() else {
            return;
        };
        let id = given.id;
        match stored.settled.last_mut() {
            Some((_, to)) if to.checked_add(1) == Some(id) => *to = id,
            _ => stored.settled.push((id, id)),
        }
        if let Some(mark) = given.mark {
            self.state.completed.add(mark, self.quota);
        }
    }

    /// The client does nothing: what the queue has heard of need not be remembered.
    pub(crate) fn forget_completed(&mut self, cx: &StepContext<'_>) {
        let heard = |queue| cx.broker.settling(queue, CONSUMER).is_empty();
        if !self.state.completed.is_empty() && self.queue().is_none_or(heard) {
            self.state.completed = CompletedMessages::NONE;
        }
    }

    /// Tells the queue what is done with.
    pub(crate) fn flush_settled(&mut self, cx: &mut StepContext<'_>) {
        let Some(stored) = self.extras.stored_mut().filter(|s| !s.settled.is_empty()) else {
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

    /// The connection ends: what the client has not acknowledged goes back, before another connection asks for it.
    /// What is done with and the queue may not have heard of.
    pub(crate) fn leave_queue(&mut self, cx: &mut StepContext<'_>) -> Option<Box<Settlement>> {
        self.flush_settled(cx);
        let stored = self.extras.stored_mut()?;
        let queue = stored.queue?;
        let settled = match stored.before.take() {
            // This connection got nothing yet.
            Some(before) => Some(before),
            None => settling(queue, cx),
        };
        if stored.consuming {
            let consumer = CONSUMER;
            cx.broker.request(queue, RequestBody::Leave { consumer });
        }
        settled
    }

    fn queue_record(&self, cx: &StepContext<'_>) -> Option<Arc<QueueRecord>> {
        cx.broker.tree().queue_by_id(self.queue()?).cloned()
    }

    /// The session is over, and its queue with it.
    pub(crate) fn delete_own_queue(&self, cx: &mut StepContext<'_>) {
        if let Some(record) = self.queue_record(cx) {
            self.delete_queue(0, &record, cx);
        }
    }

    pub(crate) fn delete_queue(&self, token: u64, record: &QueueRecord, cx: &mut StepContext<'_>) {
        if let Some(router) = cx.broker.topics() {
            router.queue_ends(record.id.0);
        }
        let change = Change::DeleteQueue {
            vhost: record.vhost.clone(),
            name: record.name.clone(),
            id: Some(record.id),
        };
        cx.broker.change(token, change);
    }

    /// A subscription may not want what its own client publishes: then the session's queue does not get it.
    pub(crate) fn keep_local(
        &self,
        topic: &str,
        routes: &mut Vec<QueueId>,
        cx: &mut StepContext<'_>,
    ) {
        let (Some(queue), Some(subscriber)) = (self.queue(), self.subscriber.known()) else {
            return;
        };
        if !self.extras.no_local || !routes.contains(&queue) {
            return;
        }
        if let Some(router) = cx.broker.topics() {
            let mut found = Vec::new();
            router.matching(subscriber, topic, &mut found);
            if found.iter().all(|s| s.no_local || s.qos == Qos::AtMostOnce) {
                routes.retain(|id| *id != queue);
            }
        }
    }
}

/// What this connection is done with and its queue may not have heard of.
fn settling(queue: QueueId, cx: &StepContext<'_>) -> Option<Box<Settlement>> {
    let ids = cx.broker.settling(queue, CONSUMER);
    let settled = Settlement {
        session: cx.broker.id(),
        consumer: CONSUMER,
        ids,
    };
    (!settled.ids.is_empty()).then(|| Box::new(settled))
}

/// See [`ClientConnection::understood`]; `found` is empty.
fn understand(
    message: Message,
    subscriber: SubscriberId,
    router: &mut MqttRouter,
    found: &mut Vec<Subscription>,
) -> Option<Delivery> {
    let message = match message.protocol() {
        Protocol::Mqtt if !message.has_died() => {
            let raw = message.properties();
            let topic = Envelope::read(raw).ok()?.topic;
            router.matching(subscriber, topic, found);
            message
        }
        _ => message.routing_keys().find_map(|key| {
            let topic = topic_of(key);
            // Only the server itself speaks there.
            if topics::is_servers(&topic) {
                return None;
            }
            router.matching(subscriber, &topic, found);
            let of_client = !found.is_empty();
            of_client.then(|| crate::for_topic(&message, key))?
        })?,
    };
    let hits: SmallVec<[SubscriptionMatch; 1]> = found.iter().map(|s| s.hit()).collect();
    let best = hits.iter().map(|hit| hit.qos).max()?;
    (message.durable() && best > Qos::AtMostOnce).then_some(Delivery {
        group: 0,
        message,
        hits,
        retained: false,
    })
}

/// A filter as a binding's key; `aside`: as one that no message has.
fn key_of_binding(filter: &str, aside: bool) -> String {
    let shared = codec_mqtt::shared(filter).ok().flatten();
    let mut key = binding_key(shared.map_or(filter, |s| s.filter));
    if aside {
        key.insert(0, ASIDE);
    }
    key
}

pub(crate) fn of_session(tree: &Tree, queue: QueueId) -> bool {
    tree.queue_by_id(queue)
        .is_some_and(|q| client_of(&q.name).is_some())
}

/// The client that a session's queue belongs to, from its name.
pub fn client_of(queue: &str) -> Option<&str> {
    queue
        .strip_prefix("mqtt-subscription-")?
        .strip_suffix("qos1")
}

/// The shared subscription that a binding of a session's queue keeps; None: it keeps none, or one that is not shared.
pub fn shared_subscription(binding: &BindingRecord) -> Option<(String, Subscription)> {
    let found = subscription_of(&binding.arguments)?;
    codec_mqtt::shared(&found.0)
        .ok()?
        .is_some()
        .then_some(found)
}

/// Whether two bindings of a queue keep the same subscription for the same connection.
pub(crate) fn is_same(one: &BindingRecord, other: &BindingRecord) -> bool {
    let what = |b: &BindingRecord| (subscription_of(&b.arguments), fence_of(&b.arguments));
    one.routing_key == other.routing_key && what(one) == what(other)
}

fn fence_of(arguments: &Table) -> Option<i64> {
    let Value::Table(options) = arguments.get(OPTIONS)? else {
        return None;
    };
    options.get(FENCE).and_then(Value::as_integer)
}

/// What a binding's arguments say of a subscription; None: it is not one.
fn subscription_of(arguments: &Table) -> Option<(String, Subscription)> {
    let filter = arguments.get(FILTER)?.as_str()?;
    codec_mqtt::shared(filter).ok()?;
    let Value::Table(options) = arguments.get(OPTIONS)? else {
        return None;
    };
    let yes = |key| options.get(key) == Some(&Value::Bool(true));
    let number = |key| options.get(key).and_then(Value::as_integer);
    let qos = number("qos").and_then(|n| u8::try_from(n).ok());
    let identifier = number("id").and_then(|n| u32::try_from(n).ok());
    let subscription = Subscription {
        qos: Qos::from_bits(qos?)?,
        no_local: yes("no-local"),
        retain_as_published: yes("retain-as-published"),
        identifier: identifier.unwrap_or(0),
    };
    Some((filter.to_owned(), subscription))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_sessions_are_known_by_their_names() {
        let name = queue_name("c").unwrap();
        assert_eq!(&*name, "mqtt-subscription-cqos1");
        assert_eq!(client_of(&name), Some("c"));
        assert_eq!(client_of("mqtt-subscription-cqos0"), None);
        assert_eq!(queue_name(&"c".repeat(MAX_NAME)), None);
    }

    #[test]
    fn a_key_has_amqps_wildcards() {
        assert_eq!(binding_key("a/+/b.c/#"), "a.*.b/c.#");
    }
}
