//! A client whose CONNECT was decoded.

use crate::MqttSettings;
use crate::active_state::ActiveState;
use crate::deliver::SendOptions;
use crate::handover::ended_queue;
use crate::packet_ids::PacketIds;
use crate::rare_state::OptionalRareState;
use crate::session::{ConnectionFailure, PacketResult, metrics_label};
use crate::session_queue::{CONSUMER, EarlierConnections, queue_name};
use crate::shard_service::RouterAccess;
use crate::state::{ClientState, MessageOwner, ParkedState};
use bytes::{Bytes, BytesMut};
use codec_mqtt::{Qos, ReasonCode, Version};
use message::Message;
use metadata::{Right, Tree};
use session::{
    Broker, DeliveryKey, MessageCounters, Outbox, RefusedPermission, SessionOwner, TraceEvent,
    TracedMessage,
};
use std::sync::Arc;
use topics::SubscriberId;

/// The environment of one step of the session.
pub(crate) struct StepContext<'a> {
    pub broker: &'a mut dyn Broker,
    pub out: &'a mut Outbox,
    /// The counts of this step; `counted` is true if there are any.
    message_counters: MessageCounters,
    counted: bool,
    /// Bytes in `out` at the start of the step.
    before: usize,
}

impl<'a> StepContext<'a> {
    pub(crate) fn new(broker: &'a mut dyn Broker, out: &'a mut Outbox) -> StepContext<'a> {
        StepContext {
            before: out.len(),
            broker,
            out,
            message_counters: MessageCounters::default(),
            counted: false,
        }
    }

    /// The buffer for the next packet to the client.
    pub(crate) fn packet(&mut self) -> &mut BytesMut {
        self.count(|t| t.traffic.packets_out += 1);
        self.out.tail()
    }

    pub(crate) fn count(&mut self, add: impl FnOnce(&mut MessageCounters)) {
        add(&mut self.message_counters);
        self.counted = true;
    }

    /// Reports the counts of a step to the node.
    pub(crate) fn flush_counters(&mut self, protocol: &'static str) {
        if std::mem::take(&mut self.counted) {
            // Nothing is removed from `out` during a step.
            let after = self.out.len();
            self.message_counters.traffic.bytes_out += after.saturating_sub(self.before) as u64;
            self.before = after;
            self.broker
                .message_counters(protocol, &self.message_counters);
            self.message_counters = MessageCounters::default();
        }
    }
}

/// A will with its Will Delay Interval in seconds.
#[derive(Clone, Debug)]
pub(crate) struct DelayedWill {
    pub will: topics::Will,
    pub delay: u32,
}

/// A publish that queues or routers have not confirmed yet.
#[derive(Debug)]
pub(crate) struct PendingPublish {
    pub seq: u64,
    pub packet_id: u16,
    pub qos: Qos,
    /// Number of missing confirms.
    pub missing_confirms: usize,
    pub refused: bool,
    /// No subscriber and no queue matched.
    pub is_unroutable: bool,
}

/// The state of an accepted client. Small while it is idle: other state is in [`ActiveState`], to
/// which it derefs, and in [`OptionalRareState`].
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub settings: Arc<MqttSettings>,
    pub version: Version,
    pub account: Arc<SessionOwner>,
    pub rare: OptionalRareState,
    /// Set as soon as the connection holds the client id.
    pub subscriber: SubscriberId,
    pub state: ClientState,
    pub ids: PacketIds,
    /// In seconds; 0 disables it.
    pub keep_alive: u16,
    /// CONNACK was sent.
    pub is_open: bool,
    /// Maximum number of unacknowledged messages to the client.
    pub quota: u16,
    /// The client's Topic Alias Maximum.
    pub aliases: u16,
    /// The tag of the next publish that queues or routers confirm. Tags are never reused, so that a
    /// late confirm is not mistaken for another one.
    pub next_seq: u64,
    pub active: Option<Box<ActiveState>>,
    /// The client has published on this connection, so that resource alarms block it.
    pub has_published: bool,
    /// Counted as a consumer, because it has subscriptions.
    pub is_consumer: bool,
    /// A resource alarm is in effect.
    pub is_alarmed: bool,
    /// The last flush left bytes in the output, so the client does not keep up.
    pub is_slow: bool,
    /// QoS 0 messages written since the client last kept up.
    pub unread: u32,
}

impl ClientConnection {
    /// The client's Maximum Packet Size in bytes.
    pub(crate) fn max_packet(&self) -> usize {
        usize::try_from(self.rare.packet).unwrap_or(usize::MAX)
    }

    /// Returns the client id. Allocates, so it is only for rare events.
    pub(crate) fn client_id(&self, cx: &mut StepContext<'_>) -> String {
        let subscriber = self.subscriber.to_option();
        let router = cx.broker.router();
        let held = router.and_then(|router| router.client_id(subscriber?));
        let name = held.or(self.rare.client_id.as_deref());
        name.unwrap_or_default().to_owned()
    }

    pub(crate) fn is_5(&self) -> bool {
        self.version.is_5()
    }

    /// Traces a message. Called if any vhost is traced.
    #[cold]
    pub(crate) fn trace(&self, message: &Message, what: TraceEvent<'_>, cx: &mut StepContext<'_>) {
        cx.broker.trace(&TracedMessage {
            vhost: &self.account.vhost,
            user: &self.account.user,
            channel: 0,
            protocol: metrics_label(self.version),
            message,
            what,
        });
    }

    /// Traces a delivery under the name of the stream that it comes from, or else under RabbitMQ's name for the client's queue.
    #[cold]
    pub(crate) fn trace_delivery(
        &self,
        message: &Message,
        sending: &SendOptions,
        cx: &mut StepContext<'_>,
    ) {
        let key = match sending.owner {
            MessageOwner::Queue(completed) => self.queue().map(|queue| DeliveryKey {
                queue,
                consumer: CONSUMER,
                id: completed.id,
            }),
            MessageOwner::Stream(delivery) => self.stream_delivery_key(delivery),
            MessageOwner::Nobody | MessageOwner::Return(_) => None,
        };
        let stream = match (sending.owner, key) {
            (MessageOwner::Stream(_), Some(key)) => cx.broker.tree().queue_by_id(key.queue),
            _ => None,
        };
        let name = match stream {
            Some(record) => record.name.to_string(),
            None => {
                let qos_bit = u8::from(sending.qos != Qos::AtMostOnce);
                format!("mqtt-subscription-{}qos{qos_bit}", self.client_id(cx))
            }
        };
        let what = TraceEvent::Delivered {
            queue: &name,
            redelivered: sending.dup,
            // The client does not acknowledge QoS 0.
            delivery: key.filter(|_| sending.qos != Qos::AtMostOnce),
        };
        self.trace(message, what, cx);
    }

    /// Counts the client as a consumer while it has subscriptions.
    pub(crate) fn count_consumer(&mut self, cx: &mut StepContext<'_>) {
        let in_router = match (self.subscriber.to_option(), cx.broker.router()) {
            (Some(subscriber), Some(router)) => router.subscriptions_of(subscriber),
            _ => 0,
        };
        let consumes = in_router + self.stream_subscriptions() > 0;
        if consumes != self.is_consumer {
            self.is_consumer = consumes;
            let more = if consumes { 1 } else { -1 };
            cx.count(|t| t.consumers += more);
        }
    }

    /// The connection ends: removes it from the counts of publishers and consumers.
    pub(crate) fn uncount(&mut self, cx: &mut StepContext<'_>) {
        let (published, consumes) = (self.has_published, self.is_consumer);
        if published || consumes {
            cx.count(|t| {
                t.publishers -= i64::from(published);
                t.consumers -= i64::from(consumes);
            });
        }
        (self.has_published, self.is_consumer) = (false, false);
    }

    /// Notes a refused permission for the audit log.
    pub(crate) fn note_refusal(
        &self,
        (kind, name): (&'static str, &str),
        permission: &'static str,
        error: &str,
        cx: &StepContext<'_>,
    ) {
        if let Some(refusals) = cx.broker.refusals() {
            refusals.add(RefusedPermission {
                user: self.account.user.clone(),
                vhost: self.account.vhost.clone(),
                kind,
                name: name.to_owned(),
                permission,
                error: error.to_owned(),
            });
        }
    }

    /// Returns true if the user may publish with this routing key. The permission on the exchange
    /// is cached.
    pub(crate) fn may_publish(&mut self, tree: &Tree, key: &str) -> bool {
        let applied = tree.applied();
        if self.write_allowed_at != Some(applied) {
            let exchange = &self.settings.exchange;
            let access = self.account.access(tree);
            if !access.permits(&self.account.vhost, Right::Write, exchange) {
                return false;
            }
            self.write_allowed_at = Some(applied);
        }
        let exchange = &self.settings.exchange;
        let vhost = &self.account.vhost;
        let access = self.account.access(tree);
        access.permits_topic(vhost, exchange, Right::Write, key)
    }

    /// Returns true if the user may subscribe. Like RabbitMQ, requires permissions on the exchange
    /// and on the queue of the subscription.
    pub(crate) fn may_subscribe(&self, qos: Qos, key: &str, cx: &mut StepContext<'_>) -> bool {
        let exchange = &self.settings.exchange;
        let qos_bit = u8::from(qos != Qos::AtMostOnce);
        let queue = format!("mqtt-subscription-{}qos{qos_bit}", self.client_id(cx));
        let tree = cx.broker.tree();
        let (access, vhost) = (self.account.access(tree), &self.account.vhost);
        access.permits(vhost, Right::Read, exchange)
            && self.may_use(tree, &queue)
            && access.permits_topic(vhost, exchange, Right::Read, key)
    }

    /// Returns true if the user has all permissions on a queue.
    pub(crate) fn may_use(&self, tree: &Tree, queue: &str) -> bool {
        let all = [Right::Configure, Right::Write, Right::Read];
        let access = self.account.access(tree);
        all.into_iter()
            .all(|right| access.permits(&self.account.vhost, right, queue))
    }

    /// Checks that the user may use the queue that this client id has now.
    pub(crate) fn may_open(&self, tree: &Tree) -> PacketResult {
        let name = self.rare.client_id.as_deref().and_then(queue_name);
        let record = name.and_then(|name| tree.queue(&self.account.vhost, &name));
        if record.is_some_and(|record| !self.may_use(tree, &record.name)) {
            let text = "the user may not use the session's queue";
            return Err(ConnectionFailure::new(ReasonCode::NotAuthorized, text));
        }
        Ok(())
    }

    /// Opens the session after the connection got the client id. `parked` is the state of the last
    /// connection to this router, `handover` the state from another shard or node. Returns false if
    /// the queue has to answer first.
    pub(crate) fn open_session(
        &mut self,
        subscriber: SubscriberId,
        parked: Option<ParkedState>,
        handover: Bytes,
        cx: &mut StepContext<'_>,
    ) -> Result<bool, ConnectionFailure> {
        self.subscriber = subscriber;
        if self.rare.session_expiry > 0 {
            self.rare.stored = Some(Box::default());
        }
        let tree = cx.broker.tree();
        let name = self.rare.client_id.as_deref().and_then(queue_name);
        // A client id without a queue name has no queue, whatever the handover says.
        let ended = name.as_ref().and_then(|_| ended_queue(&handover));
        let record = name.and_then(|name| tree.queue(&self.account.vhost, &name));
        let record = record.cloned();
        let allowed = self.may_open(tree);
        let id = record.as_ref().map(|r| r.id);
        // The other shard may know more of the metadata log than this one.
        let is_unseen = ended.is_some_and(|queue| queue.0 > tree.applied());
        let router = cx.broker.router();
        let is_deleting = router.is_some_and(|router| {
            let is_deleting =
                id.is_some_and(|id| ended == Some(id) || router.is_queue_deleting(id.0));
            // The queue was deleted in the meantime, and the session ended with it.
            if parked.as_ref().is_some_and(|parked| parked.queue != id) || is_deleting {
                router.unsubscribe_all(subscriber);
                router.use_queue(subscriber, 0);
            }
            is_deleting
        });
        let parked = parked.filter(|parked| parked.queue == id && !is_deleting);
        let mut earlier = EarlierConnections::UNKNOWN;
        self.rare.session_present = parked.is_some();
        if let Some(parked) = parked {
            (self.state, self.ids) = (parked.state, parked.ids);
            self.publish_after_earlier(cx);
            earlier = EarlierConnections {
                known: true,
                settled: parked.settled,
                epoch: parked.epoch,
                sent_earlier: parked.sent_earlier,
            };
            // In a cluster the session may have been on another node since then.
            if let Some(stored) = self.rare.stored_mut()
                && cx.broker.knows_all()
            {
                stored.fence = parked.fence;
            }
        }
        if self.rare.stored.is_some() || record.is_some() {
            self.ids.keep_low(self.settings.limits.prefetch);
        }
        let Some(record) = record else {
            if let (Some(queue), true) = (ended, is_unseen) {
                self.delete_queue(DELETE_SESSION_QUEUE, queue, cx);
                return Ok(false);
            }
            return Ok(!self.declare_queue(cx));
        };
        // Another node may have created the queue after the client id was claimed.
        allowed?;
        if self.rare.clean_start || is_deleting {
            self.delete_queue(DELETE_SESSION_QUEUE, record.id, cx);
            return Ok(false);
        }
        self.rare.session_present = true;
        if !earlier.known
            && let Some(handed_over) = self.apply_handover(handover, record.id)
        {
            earlier = handed_over;
        }
        self.resume(&record, earlier, cx);
        Ok(false)
    }
}

/// Tokens of the metadata changes that CONNACK waits for: the deletion of an earlier session and
/// the declaration of this session's queue.
pub(crate) const DELETE_SESSION_QUEUE: u64 = u64::MAX;
pub(crate) const DECLARE_SESSION_QUEUE: u64 = u64::MAX - 2;
/// Token of a change without effect. Its result means that this node has applied everything that
/// came before.
pub(crate) const SYNC: u64 = u64::MAX - 3;
