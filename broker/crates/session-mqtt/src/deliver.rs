//! PUBLISH to a client (sections 3.3 and 4.3 to 4.6).

use crate::aliases::Alias;
use crate::client_connection::{ClientConnection, StepContext};
use crate::session::{ConnectionFailure, PacketResult};
use crate::shard_service::RouterAccess;
use crate::state::{InflightMessage, MessageOwner, QueuedMessage, effective_qos};
use codec_mqtt::{Ack, AckKind, ForwardedPublish, MAX_PACKET, Qos, ReasonCode};
use conversion::mqtt::Envelope;
use queue::QueueType;
use smallvec::SmallVec;
use topics::Delivery;

/// Size in bytes above which waiting messages, or one in flight, are reported to the memory budget
/// of the node. Smaller ones are not worth the time.
const MIN_REPORTED_BYTES: usize = 8192;

/// The options of one transmission of a message.
pub(crate) struct SendOptions {
    pub qos: Qos,
    packet_id: u16,
    pub dup: bool,
    pub owner: MessageOwner,
}

impl ClientConnection {
    /// Delivers a message from the router.
    pub(crate) fn deliver(&mut self, delivery: Delivery, cx: &mut StepContext<'_>) -> PacketResult {
        let properties = delivery.message.properties();
        let Ok(envelope) = Envelope::read(properties) else {
            return Ok(());
        };
        if effective_qos(&delivery, &envelope) == Qos::AtMostOnce {
            self.deliver_unacknowledged(&delivery, &envelope, cx);
            return Ok(());
        }
        if !self.state.push_waiting(delivery, &self.settings.limits) {
            let text = "too many messages wait for this client";
            return Err(ConnectionFailure::new(ReasonCode::QuotaExceeded, text));
        }
        self.send_waiting(cx);
        Ok(())
    }

    /// Delivers a QoS 0 message, or drops it if the client does not keep up and its mailbox is
    /// full.
    fn deliver_unacknowledged(
        &mut self,
        delivery: &Delivery,
        envelope: &Envelope<'_>,
        cx: &mut StepContext<'_>,
    ) {
        if cx.out.is_empty() {
            self.unread = 0;
        }
        let limit = self.settings.limits.mailbox;
        let has_room = |cx: &mut StepContext<'_>| {
            let bytes = delivery.message.as_bytes().len();
            cx.broker.admit_unread(cx.out.len(), bytes)
        };
        if self.is_slow && (limit > 0 && self.unread >= limit || !has_room(cx)) {
            if let Some(router) = cx.broker.router() {
                router.count_dropped();
            }
            return;
        }
        self.unread = self.unread.saturating_add(1);
        let sending = SendOptions {
            qos: Qos::AtMostOnce,
            packet_id: 0,
            dup: false,
            owner: MessageOwner::Nobody,
        };
        if self.send(delivery, envelope, &sending, cx) {
            cx.count(|t| t.queueless.deliver_no_ack += 1);
            sample(delivery, None, cx);
        }
    }

    /// Sends waiting messages within the client's quota [MQTT-3.3.4-9] and the limit of the output.
    /// Messages that an earlier connection left unacknowledged go first, in order [MQTT-4.4.0-1],
    /// [MQTT-4.6.0-1].
    pub(crate) fn send_waiting(&mut self, cx: &mut StepContext<'_>) {
        if !self.is_open {
            return;
        }
        let quota = usize::from(self.quota);
        let mut outstanding = self.state.outstanding();
        let again = self.state.inflight.len() > outstanding;
        while again && outstanding < quota && self.has_room(cx) {
            // Skip messages that the queue has not delivered again yet.
            let mut all = self.state.inflight.iter();
            let Some(at) = all.position(|i| !i.sent && !i.awaits_return()) else {
                break;
            };
            outstanding += usize::from(self.send_again(at, cx));
        }
        loop {
            if !self.state.has_waiting() {
                return;
            }
            if outstanding >= quota || !self.has_room(cx) || !self.state.has_id(&self.ids) {
                break;
            }
            let Some(next) = self.state.next_waiting() else {
                return;
            };
            outstanding += usize::from(self.send_first(next, cx));
        }
        if self.state.waiting_bytes() > MIN_REPORTED_BYTES {
            cx.broker.note_held();
        }
    }

    fn has_room(&self, cx: &StepContext<'_>) -> bool {
        cx.out.len() < self.settings.limits.outbox
    }

    /// Returns true if the client must acknowledge it.
    fn send_again(&mut self, at: usize, cx: &mut StepContext<'_>) -> bool {
        let Some(inflight) = self.state.inflight.get_mut(at) else {
            return false;
        };
        inflight.sent = true;
        let packet_id = inflight.packet_id;
        if inflight.released {
            let release = Ack::new(AckKind::PubRel, packet_id, ReasonCode::Success);
            release.encode(self.version, cx.packet());
            return true;
        }
        let owner = inflight.owner;
        let sending = SendOptions {
            qos: inflight.qos,
            packet_id,
            dup: true,
            owner,
        };
        let delivery = inflight.delivery.clone();
        let sent = delivery.is_some_and(|delivery| self.send_read(&delivery, &sending, cx));
        if sent {
            self.count(owner, cx, |d| {
                d.deliver += 1;
                d.redeliver += 1;
            });
        }
        if !sent {
            self.remove_inflight(at);
        }
        sent
    }

    /// Counts an event of a message with this owner.
    pub(crate) fn count(
        &self,
        owner: MessageOwner,
        cx: &mut StepContext<'_>,
        add: impl FnOnce(&mut session::DeliveryCounters),
    ) {
        let kind = self.queue_type(owner);
        cx.count(|t| match kind {
            Some(kind) => add(t.of(kind)),
            None => add(&mut t.queueless),
        });
    }

    /// The type of the queue that a message comes from.
    fn queue_type(&self, owner: MessageOwner) -> Option<QueueType> {
        match owner {
            MessageOwner::Nobody => None,
            MessageOwner::Queue(_) | MessageOwner::Return(_) => {
                self.rare.stored.as_ref().map(|stored| stored.kind)
            }
            MessageOwner::Stream(_) => Some(QueueType::Stream),
        }
    }

    /// The client has acknowledged a message.
    pub(crate) fn message_acked(&mut self, at: usize, cx: &mut StepContext<'_>) {
        if let Some(inflight) = self.state.inflight.get(at) {
            self.count(inflight.owner, cx, |d| d.ack += 1);
        }
        self.remove_inflight(at);
    }

    /// Removes a message in flight, acknowledged or not.
    pub(crate) fn remove_inflight(&mut self, at: usize) {
        let done = self.state.inflight.remove(at);
        if let Some(done) = done {
            self.settle(done.owner);
        }
    }

    /// The client needs a delivery no longer.
    fn settle(&mut self, owner: MessageOwner) {
        match owner {
            MessageOwner::Queue(queue_message) => self.settle_delivery(queue_message),
            MessageOwner::Stream(delivery) => self.settle_stream_delivery(delivery),
            MessageOwner::Nobody | MessageOwner::Return(_) => {}
        }
    }

    /// Sends a waiting message. Returns true if the client must acknowledge it.
    fn send_first(&mut self, next: QueuedMessage, cx: &mut StepContext<'_>) -> bool {
        let owner = next.owner;
        let is_outstanding = self.send_new(next, cx);
        if !is_outstanding {
            self.settle(owner);
        }
        is_outstanding
    }

    fn send_new(&mut self, next: QueuedMessage, cx: &mut StepContext<'_>) -> bool {
        let delivery = next.delivery;
        // [MQTT-3.3.2-5]
        if !topics::is_fresh(&delivery.message, cx.broker.wall()) {
            return false;
        }
        let properties = delivery.message.properties();
        let Ok(envelope) = Envelope::read(properties) else {
            return false;
        };
        let qos = effective_qos(&delivery, &envelope);
        if qos == Qos::AtMostOnce {
            // From a stream: messages of QoS 0 of the router do not wait.
            let sending = SendOptions {
                qos,
                packet_id: 0,
                dup: false,
                owner: next.owner,
            };
            if self.send(&delivery, &envelope, &sending, cx) {
                self.count(next.owner, cx, |d| d.deliver_no_ack += 1);
                sample(&delivery, self.queue_type(next.owner), cx);
            }
            return false;
        }
        let Some(packet_id) = self.state.new_id(&mut self.ids) else {
            return false;
        };
        let sending = SendOptions {
            qos,
            packet_id,
            dup: next.dup,
            owner: next.owner,
        };
        let sent = self.send(&delivery, &envelope, &sending, cx);
        if sent {
            self.count(next.owner, cx, |d| d.deliver += 1);
            if !next.dup {
                sample(&delivery, self.queue_type(next.owner), cx);
            }
            if delivery.message.as_bytes().len() > MIN_REPORTED_BYTES {
                cx.broker.note_held();
            }
            self.state.inflight.push_back(InflightMessage {
                packet_id,
                qos,
                delivery: Some(delivery),
                released: false,
                sent: true,
                owner: next.owner,
            });
        }
        sent
    }

    fn send_read(
        &mut self,
        delivery: &Delivery,
        sending: &SendOptions,
        cx: &mut StepContext<'_>,
    ) -> bool {
        let properties = delivery.message.properties();
        match Envelope::read(properties) {
            Ok(envelope) => self.send(delivery, &envelope, sending, cx),
            Err(_) => false,
        }
    }

    /// Writes a PUBLISH. Returns false if it exceeds the client's Maximum Packet Size
    /// [MQTT-3.1.2-25].
    fn send(
        &mut self,
        delivery: &Delivery,
        envelope: &Envelope<'_>,
        sending: &SendOptions,
        cx: &mut StepContext<'_>,
    ) -> bool {
        let message = &delivery.message;
        let alias = self.aliases_out.of(envelope.raw_topic, self.aliases);
        let named = delivery.hits.iter().map(|hit| hit.identifier);
        let identifiers: SmallVec<[u32; 8]> = named.filter(|&id| id != 0).collect();
        let as_published = delivery.hits.iter().any(|hit| hit.retain_as_published);
        let forward = ForwardedPublish {
            dup: sending.dup,
            qos: sending.qos,
            // [MQTT-3.3.1-12], [MQTT-3.3.1-13]
            retain: delivery.retained || envelope.retain && as_published,
            topic: match alias {
                Alias::Known(_) => &[],
                Alias::New(_) | Alias::None => envelope.raw_topic,
            },
            packet_id: sending.packet_id,
            message_expiry: remaining_expiry(message, cx),
            alias: match alias {
                Alias::Known(number) | Alias::New(number) => Some(number),
                Alias::None => None,
            },
            subscription_identifiers: &identifiers,
            kept: envelope.kept,
        };
        let payload = message.body_len();
        // [MQTT-3.1.2-24]
        if forward.wire_len(self.version, payload) > self.max_packet().min(MAX_PACKET) {
            return false;
        }
        forward.encode_head(self.version, payload, cx.packet());
        cx.count(|t| t.traffic.payload_out += payload as u64);
        cx.out
            .push_part(message.body(), || message.body_part(0..payload));
        if let Alias::New(_) = alias {
            self.aliases_out.add_topic(envelope.raw_topic);
        }
        if cx.broker.tree().traces() {
            self.trace_delivery(message, sending, cx);
        }
        true
    }
}

/// Offers the latency of a delivery. A retained message was published before its subscription, so it has none.
fn sample(delivery: &Delivery, queue_type: Option<QueueType>, cx: &mut StepContext<'_>) {
    if !delivery.retained {
        cx.count(|t| t.sample_delivery(queue_type, || delivery.message.received()));
    }
}

/// The remaining Message Expiry Interval [MQTT-3.3.2-6], rounded up to seconds.
fn remaining_expiry(message: &message::Message, cx: &StepContext<'_>) -> Option<u32> {
    let end = message.received().0.saturating_add(message.ttl_ms()?);
    let left = end.saturating_sub(cx.broker.wall().0).div_ceil(1000);
    Some(u32::try_from(left).unwrap_or(u32::MAX))
}
