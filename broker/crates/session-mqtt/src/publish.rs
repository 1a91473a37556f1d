//! PUBLISH from a client (section 3.3): routes the message to the router and the queues of the
//! exchange, and acknowledges it when all have confirmed it.

use crate::client_connection::{ClientConnection, PendingPublish, StepContext};
use crate::session::{ConnectionFailure, PacketResult};
use crate::session_queue::is_session_queue;
use crate::settings::UnauthorizedAction;
use crate::shard_service::{self, RouterAccess};
use bytes::BytesMut;
use codec_mqtt::{
    Ack, AckKind, Properties, Publish, Qos, ReasonCode, RepeatedProperties, put_user_property,
};
use conversion::MessageEnvelope;
use conversion::mqtt::{EnvelopeBuilder, RoutingKey, key_of};
use env::planted::{self, Bug};
use message::{Message, Table};
use metadata::{ChangeError, QueueId, Tree};
use routing::{HashedProperty, PublishOrigin, RoutingInput};
use session::interceptors::{self, Interceptors};
use session::{Broker, FlowState, PublishTag, TagRange, TraceEvent};
use smallvec::SmallVec;
use std::sync::Arc;
use topics::{PublishOutcome, Publisher};

impl ClientConnection {
    pub(crate) fn publish(
        &mut self,
        publish: &Publish<'_>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        // [MQTT-3.3.4-6]
        if publish
            .properties
            .subscription_identifiers()
            .next()
            .is_some()
        {
            let text = "a client may not send a subscription identifier with a message";
            return Err(ConnectionFailure::new(ReasonCode::ProtocolError, text));
        }
        let first = !std::mem::replace(&mut self.has_published, true);
        let confirm = publish.qos != Qos::AtMostOnce;
        cx.count(|t| {
            t.publishers += i64::from(first);
            t.publishes.received += 1;
            t.publishes.received_confirm += u64::from(confirm);
            t.traffic.payload_in += publish.payload.len() as u64;
            t.sizes.observe(publish.payload.len());
            // The properties of a decoded packet in its encoding.
            let properties = publish.properties.repeated.0.len();
            t.published_bytes += (publish.payload.len() + properties) as u64;
        });
        let maximum = self.settings.limits.topic_aliases;
        let mut aliases = std::mem::take(&mut self.aliases_in);
        let resolved = aliases.resolve(publish.topic, publish.properties.topic_alias, maximum);
        let outcome = match resolved {
            Ok(topic) => self.publish_to(topic, publish, cx),
            Err((reason, text)) => Err(ConnectionFailure::new(reason, text)),
        };
        self.aliases_in = aliases;
        outcome
    }

    fn publish_to(
        &mut self,
        topic: &str,
        publish: &Publish<'_>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let (id, qos) = (publish.packet_id, publish.qos);
        // [MQTT-4.3.3-10]
        if qos == Qos::ExactlyOnce && !self.state.received.insert(id) {
            let on_its_way = |u: &PendingPublish| u.packet_id == id && u.qos == qos;
            if !self.unconfirmed.iter().any(on_its_way) && !self.await_earlier_publish(id) {
                self.acknowledge(qos, id, ReasonCode::Success, cx);
            }
            return Ok(());
        }
        self.open_publish(qos, id)?;
        if is_reserved(topic) {
            // Bridges do this, so the client must not be disconnected.
            return self.acknowledge_dropped(qos, id, cx);
        }
        let key = RoutingKey::of(topic);
        let key = key.as_str();
        if !self.may_publish(cx.broker.tree(), key) {
            let text = format!("the user may not publish to '{topic}'");
            self.note_refusal(("topic", topic), "write", &text, cx);
            return self.refuse_unauthorized(qos, id, text, cx);
        }
        let interceptors = self.settings.interceptors;
        let is_changed = interceptors.is_incoming() || interceptors.mqtt_client_id;
        let repeated = is_changed.then(|| {
            let client_id = self.client_id(cx);
            with_added(&interceptors, &publish.properties, &client_id, &*cx.broker)
        });
        let changed = repeated.as_deref().map(|repeated| Properties {
            repeated: RepeatedProperties(repeated),
            ..publish.properties
        });
        let builder = EnvelopeBuilder {
            qos,
            retain: publish.retain,
            topic,
            properties: changed.as_ref().unwrap_or(&publish.properties),
            exchange: &self.settings.exchange,
            key,
            received: cx.broker.wall(),
        };
        let message = match cx.broker.router() {
            // The message leaves this node before the turn ends.
            Some(router) if qos == Qos::AtMostOnce && !publish.retain => {
                builder.build_in(router.room(), publish.payload)
            }
            _ => builder.build(publish.payload),
        };
        let Some(message) = message else {
            let text = "the message cannot be held";
            return self.refuse(qos, id, ReasonCode::UnspecifiedError, text, cx);
        };
        let mut pending_retain = 0;
        if publish.retain {
            let seq = match qos {
                Qos::AtMostOnce => 0,
                _ => self.next_seq,
            };
            if let Err(refused) = retain(
                cx.broker,
                RETAIN | seq,
                &self.account.vhost,
                topic,
                &message,
            ) {
                let reason = match refused {
                    ChangeError::PreconditionFailed(_) => ReasonCode::QuotaExceeded,
                    _ => ReasonCode::ImplementationSpecificError,
                };
                return self.refuse(qos, id, reason, refused.to_string(), cx);
            }
            self.pending_retains += 1;
            pending_retain = 1;
        }
        self.route(topic, key, (qos, id), pending_retain, message, cx)
    }

    /// Refuses a publish for which the user has no permission.
    #[cold]
    fn refuse_unauthorized(
        &mut self,
        qos: Qos,
        id: u16,
        text: String,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let reason = ReasonCode::NotAuthorized;
        match self.settings.unauthorized {
            UnauthorizedAction::AnswerOrDisconnect => self.refuse(qos, id, reason, text, cx),
            UnauthorizedAction::Answer => self.acknowledge_dropped(qos, id, cx),
            UnauthorizedAction::Disconnect => {
                self.forget(qos, id);
                Err(ConnectionFailure::new(reason, text))
            }
        }
    }

    /// Acknowledges a publish without routing it.
    fn acknowledge_dropped(&mut self, qos: Qos, id: u16, cx: &mut StepContext<'_>) -> PacketResult {
        let reason = match self.is_5() {
            true => ReasonCode::NotAuthorized,
            // 3.1.1: [MQTT-3.3.5-2]
            false => ReasonCode::Success,
        };
        self.acknowledge(qos, id, reason, cx);
        Ok(())
    }

    /// Counts an open publish of a 5.0 client, which must not exceed the Receive Maximum
    /// [MQTT-3.3.4-8].
    fn open_publish(&mut self, qos: Qos, id: u16) -> PacketResult {
        if qos == Qos::AtMostOnce || !self.is_5() {
            return Ok(());
        }
        if self.open_publishes >= self.settings.limits.receive {
            self.forget(qos, id);
            let text = "more publishes are open than the Receive Maximum";
            return Err(ConnectionFailure::new(
                ReasonCode::ReceiveMaximumExceeded,
                text,
            ));
        }
        self.open_publishes += 1;
        Ok(())
    }

    /// The metadata group has stored or rejected a retained message. Returns `None` if the token
    /// belongs to another change.
    pub(crate) fn handle_retained(
        &mut self,
        token: u64,
        accepted: bool,
        cx: &mut StepContext<'_>,
    ) -> Option<PacketResult> {
        let seq = retained_seq(token)?;
        self.pending_retains = self.pending_retains.saturating_sub(1);
        Some(match seq {
            0 => Ok(()),
            seq => self.handle_confirm(seq, accepted, cx),
        })
    }

    fn route(
        &mut self,
        topic: &str,
        key: &str,
        (qos, id): (Qos, u16),
        pending_retain: usize,
        message: Message,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let seq = match qos {
            // QoS 0 has no acknowledgement.
            Qos::AtMostOnce => 0,
            _ => self.next_seq,
        };
        let vhost = self.account.vhost.clone();
        let mut selected_queues = Vec::new();
        let publisher = Publisher {
            subscriber: self.subscriber.to_option(),
            session: cx.broker.id().number,
            tag: seq,
        };
        let outcome = publish_to_topics(
            cx.broker,
            &vhost,
            topic,
            &message,
            publisher,
            &mut selected_queues,
        );
        self.is_blocked |= outcome.behind;
        let mut routes = std::mem::take(&mut self.routes);
        queues(
            cx.broker,
            (&vhost, &self.settings.exchange),
            key,
            &message,
            &mut routes,
        );
        filter_routes(cx.broker.tree(), qos, key, &mut routes);
        self.exclude_no_local(topic, &mut routes, cx);
        add_picked(selected_queues, &mut routes);
        let tag = PublishTag(seq);
        if cx.broker.tree().traces() {
            let what = TraceEvent::Published {
                routes: &routes,
                tag,
            };
            self.trace(&message, what, cx);
        }
        let mut missing_confirms = routes.len();
        for &queue in &routes {
            let unasked =
                planted::is(Bug::BoundUnasked) && !is_session_queue(cx.broker.tree(), queue);
            missing_confirms -= usize::from(unasked);
            let tag = match unasked {
                true => PublishTag::NO_CONFIRM,
                false => tag,
            };
            self.is_blocked |=
                cx.broker.publish(queue, tag, message.to_keep()) == FlowState::Behind;
        }
        self.routes = routes;
        let receivers = (outcome.receivers + self.routes.len()) as u64;
        cx.count(|t| {
            t.publishes.routed += receivers;
            t.publishes.unroutable_dropped += u64::from(receivers == 0 && !outcome.refused);
        });
        if qos == Qos::AtMostOnce {
            return Ok(());
        }
        self.next_seq += 1;
        self.unconfirmed.push_back(PendingPublish {
            seq,
            packet_id: id,
            qos,
            missing_confirms: match planted::is(Bug::PubackEarly) {
                true => outcome.awaited + pending_retain,
                false => missing_confirms + outcome.awaited + pending_retain,
            },
            refused: false,
            is_unroutable: receivers == 0 && !outcome.matched && !outcome.refused,
        });
        if outcome.refused {
            return self.handle_reject(seq, cx);
        }
        self.acknowledge_confirmed(cx);
        Ok(())
    }

    /// Routers have confirmed publishes.
    pub(crate) fn handle_confirms(&mut self, tags: TagRange, cx: &mut StepContext<'_>) {
        for tag in tags {
            if let Some(publish) = self.unconfirmed(tag.0) {
                publish.missing_confirms = publish.missing_confirms.saturating_sub(1);
            }
        }
        self.acknowledge_confirmed(cx);
    }

    /// A queue has confirmed or rejected a publish.
    pub(crate) fn handle_confirm(
        &mut self,
        seq: u64,
        accepted: bool,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        if let Some(publish) = self.unconfirmed(seq) {
            publish.missing_confirms = publish.missing_confirms.saturating_sub(1);
        }
        if !accepted {
            return self.handle_reject(seq, cx);
        }
        self.acknowledge_confirmed(cx);
        Ok(())
    }

    fn unconfirmed(&mut self, seq: u64) -> Option<&mut PendingPublish> {
        let first = self.unconfirmed.front().map_or(0, |u| u.seq);
        let at = usize::try_from(seq.checked_sub(first)?).ok()?;
        self.unconfirmed.get_mut(at)
    }

    /// Handles a rejected publish.
    fn handle_reject(&mut self, seq: u64, cx: &mut StepContext<'_>) -> PacketResult {
        let five = self.is_5();
        let Some(publish) = self.unconfirmed(seq) else {
            return Ok(());
        };
        publish.refused = true;
        // Earlier versions have no negative acknowledgement, so the connection must end (3.1.1,
        // section 3.3.5.2).
        if !five {
            let (qos, id) = (publish.qos, publish.packet_id);
            self.forget(qos, id);
            let text = "the message was not taken";
            return Err(ConnectionFailure::new(ReasonCode::QuotaExceeded, text));
        }
        self.acknowledge_confirmed(cx);
        Ok(())
    }

    /// Acknowledges publishes with all confirms, in order.
    fn acknowledge_confirmed(&mut self, cx: &mut StepContext<'_>) {
        while let Some(publish) = self.unconfirmed.pop_front_if(|u| u.missing_confirms == 0) {
            let reason = match (publish.refused, publish.is_unroutable) {
                (true, _) => ReasonCode::QuotaExceeded,
                // Like Mosquitto: PUBREC only says that the message has arrived.
                (false, true) if publish.qos == Qos::AtLeastOnce => {
                    ReasonCode::NoMatchingSubscribers
                }
                (false, _) => ReasonCode::Success,
            };
            self.acknowledge(publish.qos, publish.packet_id, reason, cx);
        }
    }

    fn acknowledge(&mut self, qos: Qos, id: u16, reason: ReasonCode, cx: &mut StepContext<'_>) {
        let kind = match qos {
            Qos::AtMostOnce => return,
            Qos::AtLeastOnce => AckKind::PubAck,
            Qos::ExactlyOnce => AckKind::PubRec,
        };
        if reason.is_error() || qos == Qos::AtLeastOnce {
            self.publish_completed();
        }
        if reason.is_error() {
            // [MQTT-4.3.3-9]
            self.forget(qos, id);
        } else {
            cx.count(|t| t.publishes.confirmed += 1);
        }
        Ack::new(kind, id, reason).encode(self.version, cx.packet());
    }

    /// Forgets the packet identifier of a rejected publish, so that it can identify another
    /// message.
    fn forget(&mut self, qos: Qos, id: u16) {
        if qos == Qos::ExactlyOnce {
            self.state.forget_received(id);
        }
    }

    /// Rejects a publish. Ends the connection if no acknowledgement can say so.
    fn refuse(
        &mut self,
        qos: Qos,
        id: u16,
        reason: ReasonCode,
        text: impl Into<String>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        if !self.is_5() || qos == Qos::AtMostOnce {
            self.forget(qos, id);
            return Err(ConnectionFailure::new(reason, text));
        }
        self.acknowledge(qos, id, reason, cx);
        Ok(())
    }
}

/// Returns true for topics to which clients may not publish (section 4.7.2). Like Mosquitto: topics
/// of the server, except for the state of bridges, and topics that look like a shared subscription.
pub(crate) fn is_reserved(topic: &str) -> bool {
    if !topic.starts_with('$') {
        return false;
    }
    topics::is_sys_topic(topic) && !codec_mqtt::matches("$SYS/broker/connection/+/state", topic)
        || topic.starts_with("$share/")
}

/// Delivers a message to all subscribers in the cluster.
#[inline]
fn publish_to_topics(
    broker: &mut dyn Broker,
    vhost: &str,
    topic: &str,
    message: &Message,
    publisher: Publisher,
    selected_queues: &mut Vec<u64>,
) -> PublishOutcome {
    match broker.router() {
        Some(router) => router.publish(vhost, topic, message, publisher, selected_queues),
        None => PublishOutcome::default(),
    }
}

/// Adds the queues of sessions that a shared subscription selected. A queue that also matches
/// another subscription gets the message twice (section 4.8.2).
fn add_picked(selected_queues: Vec<u64>, routes: &mut Vec<QueueId>) {
    routes.extend(selected_queues.into_iter().map(QueueId));
}

/// Removes queues that must not get a message: the router delivers QoS 0 messages to sessions, and
/// AMQP has no routing keys of more than 255 bytes.
fn filter_routes(tree: &Tree, qos: Qos, key: &str, routes: &mut Vec<QueueId>) {
    let long = key.len() > MAX_KEY;
    if qos == Qos::AtMostOnce && long {
        routes.clear();
    } else if qos == Qos::AtMostOnce {
        routes.retain(|id| !is_session_queue(tree, *id));
    } else if long {
        routes.retain(|id| is_session_queue(tree, *id));
    }
}

const MAX_KEY: usize = metadata::limits::NAME_BYTES;

/// Marks the token of a change that retains a message. The rest is the tag of the publish, 0 for
/// QoS 0.
const RETAIN: u64 = 1 << 62;
const MAX_SEQ: u64 = RETAIN - 1;

/// Returns the tag of the publish whose message is being retained, 0 for QoS 0; `None` if the token
/// belongs to another change.
pub(crate) fn retained_seq(token: u64) -> Option<u64> {
    (token & !MAX_SEQ == RETAIN).then_some(token & MAX_SEQ)
}

fn retain(
    broker: &mut dyn Broker,
    token: u64,
    vhost: &str,
    topic: &str,
    message: &Message,
) -> Result<(), ChangeError> {
    // [MQTT-3.3.1-6], [MQTT-3.3.1-7]
    let retained_message = (message.body_len() > 0).then(|| message.clone());
    shard_service::retain(broker, token, (vhost, topic), retained_message)
}

/// The user properties of a publish, encoded, with those that interceptors add. AMQP consumers get them as annotations and
/// headers.
#[cold]
fn with_added(
    interceptors: &Interceptors,
    published: &Properties<'_>,
    client_id: &str,
    broker: &dyn Broker,
) -> BytesMut {
    let mut added: SmallVec<[(&str, String, bool); 3]> = SmallVec::new();
    if let Some(is_overwritten) = interceptors.received_time {
        let ms = broker.wall().0.to_string();
        added.push((interceptors::RECEIVED_TIME, ms, is_overwritten));
    }
    if let Some(is_overwritten) = interceptors.routing_node {
        let node = interceptors::routing_node(broker).to_string();
        added.push((interceptors::ROUTED_BY, node, is_overwritten));
    }
    if interceptors.mqtt_client_id {
        added.push((interceptors::MQTT_CLIENT_ID, client_id.to_owned(), true));
    }
    let mut out = BytesMut::new();
    for (name, value) in published.user_properties() {
        let replacement = added.iter().find(|(added, _, _)| *added == name);
        if !replacement.is_some_and(|(_, _, is_overwritten)| *is_overwritten) {
            put_user_property(&mut out, name, value);
        }
    }
    for (name, value, is_overwritten) in &added {
        if *is_overwritten || !published.user_properties().any(|(own, _)| own == *name) {
            put_user_property(&mut out, name, value);
        }
    }
    out
}

/// Collects the queues that are bound to the exchange.
#[inline]
fn queues(
    broker: &mut dyn Broker,
    (vhost, exchange): (&str, &str),
    key: &str,
    message: &Message,
    routes: &mut Vec<QueueId>,
) {
    routes.clear();
    let origin = PublishOrigin {
        node: broker.id().node.0,
        random: broker.wall().0,
    };
    let shown = PublishView { message, origin };
    broker.tree().route(vhost, exchange, &[key], &shown, routes);
}

/// The message as exchanges see it that are bound to the exchange of MQTT.
struct PublishView<'a> {
    message: &'a Message,
    origin: PublishOrigin,
}

impl PublishView<'_> {
    fn stored(&self) -> MessageEnvelope<'_> {
        MessageEnvelope {
            message: self.message,
            deaths: None,
        }
    }
}

impl RoutingInput for PublishView<'_> {
    fn headers(&self) -> Table {
        self.stored().headers()
    }

    fn property(&self, property: HashedProperty) -> Option<String> {
        self.stored().property(property)
    }

    fn origin(&self) -> Option<PublishOrigin> {
        Some(self.origin)
    }
}

/// Builds a will and returns it with its Will Delay Interval in seconds.
pub(crate) fn will(
    will: &codec_mqtt::Will<'_>,
    exchange: &str,
    cx: &mut StepContext<'_>,
) -> Option<(topics::Will, u32)> {
    let topic: Arc<str> = will.topic.into();
    let builder = EnvelopeBuilder {
        qos: will.qos,
        retain: will.retain,
        topic: &topic,
        properties: &will.properties,
        exchange,
        key: &key_of(&topic),
        received: cx.broker.wall(),
    };
    let waiting = topics::Will {
        message: builder.build(will.payload)?,
        topic,
        retain: will.retain,
    };
    Some((waiting, will.properties.will_delay.unwrap_or(0)))
}

/// Publishes a will, because its client is gone or did not come back in time.
pub(crate) fn publish_will(broker: &mut dyn Broker, vhost: &str, will: topics::Will) {
    let topics::Will {
        topic,
        message,
        retain: keep,
    } = will;
    if keep && let Err(error) = retain(broker, 0, vhost, &topic, &message) {
        tracing::warn!(vhost, topic = &*topic, %error, "a will is not retained");
    }
    let mut selected_queues = Vec::new();
    let no_publisher = Publisher::default();
    publish_to_topics(
        broker,
        vhost,
        &topic,
        &message,
        no_publisher,
        &mut selected_queues,
    );
    let mut routes = Vec::new();
    let key = key_of(&topic);
    queues(
        broker,
        (vhost, message.exchange()),
        &key,
        &message,
        &mut routes,
    );
    let qos = match message.durable() {
        true => Qos::AtLeastOnce,
        false => Qos::AtMostOnce,
    };
    filter_routes(broker.tree(), qos, &key, &mut routes);
    add_picked(selected_queues, &mut routes);
    let tag = PublishTag::NO_CONFIRM;
    for queue in routes {
        broker.publish(queue, tag, message.clone());
    }
}
