//! PUBLISH from a client (section 3.3): to the hub, to the exchange's queues, and the answer when all have it.

use crate::client_connection::{ClientConnection, PendingPublish, StepContext};
use crate::session::{Failure, PacketResult};
use crate::session_queue::of_session;
use codec_mqtt::{Ack, AckKind, Publish, Qos, Reason};
use env::planted::{self, Bug};
use message::{Message, Table};
use metadata::{ChangeError, QueueId, Tree};
use routing::{Envelope as Shown, Origin};
use session::{Broker, FlowState, PublishTag, TraceEvent};
use std::sync::Arc;
use topics::{EnvelopeBuilder, PublishOutcome, Publisher};

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
            return Err(Failure::new(Reason::ProtocolError, text));
        }
        let first = !std::mem::replace(&mut self.published, true);
        let confirm = publish.qos != Qos::AtMostOnce;
        cx.count(|t| {
            t.publishers += i64::from(first);
            t.publishes.received += 1;
            t.publishes.received_confirm += u64::from(confirm);
            t.traffic.payload_in += publish.payload.len() as u64;
        });
        let maximum = self.settings.limits.topic_aliases;
        let mut aliases = std::mem::take(&mut self.aliases_in);
        let resolved = aliases.resolve(publish.topic, publish.properties.topic_alias, maximum);
        let outcome = match resolved {
            Ok(topic) => self.publish_to(topic, publish, cx),
            Err((reason, text)) => Err(Failure::new(reason, text)),
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
            if !self.unconfirmed.iter().any(on_its_way) && !self.await_earlier(id) {
                self.answer(qos, id, Reason::Success, cx);
            }
            return Ok(());
        }
        self.owe(qos, id)?;
        if is_reserved(topic) {
            return self.leave_out(qos, id, cx);
        }
        let key = topics::RoutingKey::of(topic);
        let key = key.as_str();
        if !self.may_publish(cx.broker.tree(), key) {
            let text = format!("the user may not publish to '{topic}'");
            return self.refuse(qos, id, Reason::NotAuthorized, text, cx);
        }
        let builder = EnvelopeBuilder {
            qos,
            retain: publish.retain,
            topic,
            properties: &publish.properties,
            exchange: &self.settings.exchange,
            key,
            received: cx.broker.wall(),
        };
        let message = match cx.broker.topics() {
            // It is on its way out when this turn ends.
            Some(router) if qos == Qos::AtMostOnce && !publish.retain => {
                builder.build_in(router.room(), publish.payload)
            }
            _ => builder.build(publish.payload),
        };
        let Some(message) = message else {
            let text = "the message cannot be held";
            return self.refuse(qos, id, Reason::UnspecifiedError, text, cx);
        };
        let mut waits = 0;
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
                    ChangeError::PreconditionFailed(_) => Reason::QuotaExceeded,
                    _ => Reason::ImplementationSpecificError,
                };
                return self.refuse(qos, id, reason, refused.to_string(), cx);
            }
            self.retaining += 1;
            waits = 1;
        }
        self.route(topic, key, (qos, id), waits, message, cx)
    }

    /// A publish to where clients may not, and where a client that does must not be sent away: bridges do.
    fn leave_out(&mut self, qos: Qos, id: u16, cx: &mut StepContext<'_>) -> PacketResult {
        let reason = match self.is_5() {
            true => Reason::NotAuthorized,
            // 3.1.1: [MQTT-3.3.5-2]
            false => Reason::Success,
        };
        self.answer(qos, id, reason, cx);
        Ok(())
    }

    /// A client of 5.0 has one more publish open, and not more than it was told it may [MQTT-3.3.4-8].
    fn owe(&mut self, qos: Qos, id: u16) -> PacketResult {
        if qos == Qos::AtMostOnce || !self.is_5() {
            return Ok(());
        }
        if self.owed >= self.settings.limits.receive {
            self.forget(qos, id);
            let text = "more publishes are open than the Receive Maximum";
            return Err(Failure::new(Reason::ReceiveMaximumExceeded, text));
        }
        self.owed += 1;
        Ok(())
    }

    /// The cluster has what the client retained, or not. False: the token is another change's.
    pub(crate) fn retained(
        &mut self,
        token: u64,
        taken: bool,
        cx: &mut StepContext<'_>,
    ) -> Option<PacketResult> {
        let seq = retained_seq(token)?;
        self.retaining = self.retaining.saturating_sub(1);
        Some(match seq {
            0 => Ok(()),
            seq => self.confirmed(seq, taken, cx),
        })
    }

    fn route(
        &mut self,
        topic: &str,
        key: &str,
        (qos, id): (Qos, u16),
        waits: usize,
        message: Message,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        let seq = match qos {
            // QoS 0 has no acknowledgement.
            Qos::AtMostOnce => 0,
            _ => self.next_seq,
        };
        let vhost = self.account.vhost.clone();
        let mut picked = Vec::new();
        let publisher = Publisher {
            subscriber: self.subscriber.to_option(),
            session: cx.broker.id().number,
            channel: 0,
            tag: seq,
        };
        let heard = hear(cx.broker, &vhost, topic, &message, publisher, &mut picked);
        self.behind |= heard.behind;
        let mut routes = std::mem::take(&mut self.routes);
        queues(cx.broker, &vhost, &self.settings.exchange, key, &mut routes);
        keep_routes(cx.broker.tree(), qos, key, &mut routes);
        self.keep_local(topic, &mut routes, cx);
        add_picked(picked, &mut routes);
        let tag = PublishTag {
            channel: 0,
            tag: seq,
        };
        let mut left = routes.len();
        for &queue in &routes {
            let unasked = planted::is(Bug::BoundUnasked) && !of_session(cx.broker.tree(), queue);
            left -= usize::from(unasked);
            let tag = match unasked {
                true => PublishTag { tag: 0, ..tag },
                false => tag,
            };
            self.behind |= cx.broker.publish(queue, tag, message.to_keep()) == FlowState::Behind;
        }
        if cx.broker.tree().traces() {
            let what = TraceEvent::Published { routes: &routes };
            self.trace(&message, what, cx);
        }
        self.routes = routes;
        let reached = (heard.receivers + self.routes.len()) as u64;
        cx.count(|t| {
            t.publishes.routed += reached;
            t.publishes.unroutable_dropped += u64::from(reached == 0 && !heard.refused);
        });
        if qos == Qos::AtMostOnce {
            return Ok(());
        }
        self.next_seq += 1;
        self.unconfirmed.push_back(PendingPublish {
            seq,
            packet_id: id,
            qos,
            left: match planted::is(Bug::PubackEarly) {
                true => heard.awaited + waits,
                false => left + heard.awaited + waits,
            },
            refused: false,
            lonely: reached == 0 && !heard.matched && !heard.refused,
        });
        if heard.refused {
            return self.not_taken(seq, cx);
        }
        self.answer_confirmed(cx);
        Ok(())
    }

    /// The word of a queue or another hub on a publish.
    pub(crate) fn confirmed(
        &mut self,
        seq: u64,
        taken: bool,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        if let Some(publish) = self.unconfirmed(seq) {
            publish.left = publish.left.saturating_sub(1);
        }
        if !taken {
            return self.not_taken(seq, cx);
        }
        self.answer_confirmed(cx);
        Ok(())
    }

    fn unconfirmed(&mut self, seq: u64) -> Option<&mut PendingPublish> {
        let first = self.unconfirmed.front().map_or(0, |u| u.seq);
        let at = usize::try_from(seq.checked_sub(first)?).ok()?;
        self.unconfirmed.get_mut(at)
    }

    /// A publish is not everywhere it should be.
    fn not_taken(&mut self, seq: u64, cx: &mut StepContext<'_>) -> PacketResult {
        let five = self.is_5();
        let Some(publish) = self.unconfirmed(seq) else {
            return Ok(());
        };
        publish.refused = true;
        // Earlier versions cannot be told: rather no connection than a lie (3.1.1, section 3.3.5.2).
        if !five {
            let (qos, id) = (publish.qos, publish.packet_id);
            self.forget(qos, id);
            let text = "the message was not taken";
            return Err(Failure::new(Reason::QuotaExceeded, text));
        }
        self.answer_confirmed(cx);
        Ok(())
    }

    /// Answers publishes that are everywhere they belong, in their order.
    fn answer_confirmed(&mut self, cx: &mut StepContext<'_>) {
        while let Some(publish) = self.unconfirmed.pop_front_if(|u| u.left == 0) {
            let reason = match (publish.refused, publish.lonely) {
                (true, _) => Reason::QuotaExceeded,
                // As mosquitto: PUBREC only says that the message has come.
                (false, true) if publish.qos == Qos::AtLeastOnce => Reason::NoMatchingSubscribers,
                (false, _) => Reason::Success,
            };
            self.answer(publish.qos, publish.packet_id, reason, cx);
        }
    }

    fn answer(&mut self, qos: Qos, id: u16, reason: Reason, cx: &mut StepContext<'_>) {
        let kind = match qos {
            Qos::AtMostOnce => return,
            Qos::AtLeastOnce => AckKind::PubAck,
            Qos::ExactlyOnce => AckKind::PubRec,
        };
        if reason.is_error() || qos == Qos::AtLeastOnce {
            self.owe_less();
        }
        if reason.is_error() {
            // [MQTT-4.3.3-9]
            self.forget(qos, id);
        } else {
            cx.count(|t| t.publishes.confirmed += 1);
        }
        Ack::new(kind, id, reason).encode(self.version, cx.packet());
    }

    /// A publish that was not taken: the same packet identifier is another message.
    fn forget(&mut self, qos: Qos, id: u16) {
        if qos == Qos::ExactlyOnce {
            self.state.forget_received(id);
        }
    }

    /// A publish that is not taken. Without an answer that could say so the connection ends.
    fn refuse(
        &mut self,
        qos: Qos,
        id: u16,
        reason: Reason,
        text: impl Into<String>,
        cx: &mut StepContext<'_>,
    ) -> PacketResult {
        if !self.is_5() || qos == Qos::AtMostOnce {
            self.forget(qos, id);
            return Err(Failure::new(reason, text));
        }
        self.answer(qos, id, reason, cx);
        Ok(())
    }
}

/// Topics that are not for clients (section 4.7.2), as with mosquitto: those of the server, but for what bridges tell of
/// themselves, and what looks like a shared subscription.
pub(crate) fn is_reserved(topic: &str) -> bool {
    if !topic.starts_with('$') {
        return false;
    }
    topics::is_sys_topic(topic) && !codec_mqtt::matches("$SYS/broker/connection/+/state", topic)
        || topic.starts_with("$share/")
}

/// To everybody who subscribed, here and elsewhere.
fn hear(
    broker: &mut dyn Broker,
    vhost: &str,
    topic: &str,
    message: &Message,
    publisher: Publisher,
    picked: &mut Vec<u64>,
) -> PublishOutcome {
    match broker.topics() {
        Some(router) => router.publish(vhost, topic, message, publisher, picked),
        None => PublishOutcome::default(),
    }
}

/// Queues of sessions that share a subscription, and were chosen. One that is there for other subscriptions has the message twice
/// (section 4.8.2).
fn add_picked(picked: Vec<u64>, routes: &mut Vec<QueueId>) {
    routes.extend(picked.into_iter().map(QueueId));
}

/// Leaves out queues that a message is not for. Of QoS 0 the hub hands out what sessions get, and a key beyond 255 bytes is
/// more than AMQP could tell.
fn keep_routes(tree: &Tree, qos: Qos, key: &str, routes: &mut Vec<QueueId>) {
    let long = key.len() > MAX_KEY;
    if qos == Qos::AtMostOnce && long {
        routes.clear();
    } else if qos == Qos::AtMostOnce {
        routes.retain(|id| !of_session(tree, *id));
    } else if long {
        routes.retain(|id| of_session(tree, *id));
    }
}

const MAX_KEY: usize = metadata::limits::NAME_BYTES;

/// In the token of a change that retains a message; the rest is the publish's number, 0 for QoS 0.
const RETAIN: u64 = 1 << 62;
const MAX_SEQ: u64 = RETAIN - 1;

/// The number of the publish whose message is being retained, 0 for QoS 0. None: the token is another change's.
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
    let kept = (message.body_len() > 0).then(|| message.clone());
    broker.retain(token, vhost, topic, kept)
}

/// The queues that are bound to the exchange.
fn queues(
    broker: &mut dyn Broker,
    vhost: &str,
    exchange: &str,
    key: &str,
    routes: &mut Vec<QueueId>,
) {
    routes.clear();
    let origin = Origin {
        node: broker.id().node.0,
        random: broker.wall().0,
    };
    let shown = PublishView { origin };
    broker.tree().route(vhost, exchange, &[key], &shown, routes);
}

/// What exchanges that are bound to the exchange see: MQTT messages have no headers.
struct PublishView {
    origin: Origin,
}

impl Shown for PublishView {
    fn headers(&self) -> Table {
        Table::default()
    }

    fn origin(&self) -> Option<Origin> {
        Some(self.origin)
    }
}

/// A will as it waits, and how long (seconds).
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
        key: &topics::key_of(&topic),
        received: cx.broker.wall(),
    };
    let waiting = topics::Will {
        message: builder.build(will.payload)?,
        topic,
        retain: will.retain,
    };
    Some((waiting, will.properties.will_delay.unwrap_or(0)))
}

/// Publishes a will: its client is gone, or did not come back in time.
pub fn publish_will(broker: &mut dyn Broker, vhost: &str, will: topics::Will) {
    let topics::Will {
        topic,
        message,
        retain: keep,
    } = will;
    if keep && let Err(why) = retain(broker, 0, vhost, &topic, &message) {
        tracing::warn!(vhost, topic = &*topic, %why, "a will is not retained");
    }
    let mut picked = Vec::new();
    let nobody = Publisher::default();
    hear(broker, vhost, &topic, &message, nobody, &mut picked);
    let mut routes = Vec::new();
    let key = topics::key_of(&topic);
    queues(broker, vhost, message.exchange(), &key, &mut routes);
    let qos = match message.durable() {
        true => Qos::AtLeastOnce,
        false => Qos::AtMostOnce,
    };
    keep_routes(broker.tree(), qos, &key, &mut routes);
    add_picked(picked, &mut routes);
    let tag = PublishTag { channel: 0, tag: 0 };
    for queue in routes {
        broker.publish(queue, tag, message.clone());
    }
}
