//! A client whose CONNECT was understood.

use crate::Settings;
use crate::active_state::ActiveState;
use crate::deliver::SendOptions;
use crate::packet_ids::PacketIds;
use crate::rare_state::OptionalRareState;
use crate::session::{Failure, PacketResult};
use crate::session_queue::{EarlierConnections, queue_name};
use crate::state::{ClientState, ParkedState};
use bytes::{Bytes, BytesMut};
use codec_mqtt::{Qos, Reason, Version};
use message::Message;
use metadata::{Right, Tree};
use session::{Broker, MessageCounters, Outbox, SessionOwner, TraceEvent, TracedMessage};
use std::sync::Arc;
use topics::SubscriberId;

/// The world during one step.
pub(crate) struct StepContext<'a> {
    pub broker: &'a mut dyn Broker,
    pub out: &'a mut Outbox,
    /// What this step has counted; `counted`: something.
    message_counters: MessageCounters,
    counted: bool,
    /// Bytes in `out` when the step began.
    before: usize,
}

impl<'a> StepContext<'a> {
    pub fn new(broker: &'a mut dyn Broker, out: &'a mut Outbox) -> StepContext<'a> {
        StepContext {
            before: out.len(),
            broker,
            out,
            message_counters: MessageCounters::default(),
            counted: false,
        }
    }

    /// Where the next packet to the client goes.
    pub fn packet(&mut self) -> &mut BytesMut {
        self.count(|t| t.traffic.packets_out += 1);
        self.out.tail()
    }

    pub fn count(&mut self, add: impl FnOnce(&mut MessageCounters)) {
        add(&mut self.message_counters);
        self.counted = true;
    }

    /// The end of a step: its counts go to the node.
    pub fn flush_counters(&mut self, protocol: &'static str) {
        if std::mem::take(&mut self.counted) {
            // Nothing is taken from there within a step.
            let after = self.out.len();
            self.message_counters.traffic.bytes_out += after.saturating_sub(self.before) as u64;
            self.before = after;
            self.broker
                .message_counters(protocol, &self.message_counters);
            self.message_counters = MessageCounters::default();
        }
    }
}

/// A will, with the time it waits (seconds).
#[derive(Clone, Debug)]
pub(crate) struct DelayedWill {
    pub will: topics::Will,
    pub delay: u32,
}

/// A publish on its way to queues.
#[derive(Debug)]
pub(crate) struct PendingPublish {
    pub seq: u64,
    pub packet_id: u16,
    pub qos: Qos,
    /// Queues that have not answered.
    pub left: usize,
    pub refused: bool,
    /// Nobody was there to get it.
    pub lonely: bool,
}

/// What a client is. Small while it is idle: the rest is in [`ActiveState`], which it derefs to, and in its extras.
#[derive(Debug)]
pub(crate) struct ClientConnection {
    pub settings: Arc<Settings>,
    pub version: Version,
    pub account: Arc<SessionOwner>,
    pub extras: OptionalRareState,
    /// Once the client id is its own.
    pub subscriber: SubscriberId,
    pub state: ClientState,
    pub ids: PacketIds,
    /// Seconds; 0: none.
    pub keep_alive: u16,
    /// CONNACK is out.
    pub open: bool,
    /// Unacknowledged messages at most.
    pub quota: u16,
    /// Topic aliases that the client takes.
    pub aliases: u16,
    /// Of the next publish that queues or other hubs answer. Never used twice: an answer that comes late must not pass for another's.
    pub next_seq: u64,
    pub traffic: Option<Box<ActiveState>>,
    /// It has published on this connection: an alarm stops it.
    pub published: bool,
    /// It counts as a consumer: it has subscriptions.
    pub consumes: bool,
    /// An alarm is in force.
    pub alarm: bool,
    /// The last flush left bytes behind: the client does not keep up.
    pub busy: bool,
    /// Messages of QoS 0 written since the client kept up.
    pub unread: u32,
}

impl ClientConnection {
    /// Bytes of a packet that the client takes.
    pub fn max_packet(&self) -> usize {
        usize::try_from(self.extras.packet).unwrap_or(usize::MAX)
    }

    /// The name that it has, for what is rare.
    pub fn client_id(&self, cx: &mut StepContext<'_>) -> String {
        let subscriber = self.subscriber.known();
        let router = cx.broker.topics();
        let held = router.and_then(|router| router.client_id(subscriber?));
        let name = held.or(self.extras.client_id.as_deref());
        name.unwrap_or_default().to_owned()
    }

    pub fn is_5(&self) -> bool {
        self.version.is_5()
    }

    /// A vhost is traced: maybe this one.
    #[cold]
    pub fn trace(&self, message: &Message, what: TraceEvent<'_>, cx: &mut StepContext<'_>) {
        cx.broker.trace(&TracedMessage {
            vhost: &self.account.vhost,
            user: &self.account.user,
            channel: 0,
            message,
            what,
        });
    }

    /// The same of a delivery, under the name that RabbitMQ has for the client's queue.
    #[cold]
    pub fn trace_delivery(
        &self,
        message: &Message,
        sending: &SendOptions,
        cx: &mut StepContext<'_>,
    ) {
        let which = u8::from(sending.qos != Qos::AtMostOnce);
        let queue = format!("mqtt-subscription-{}qos{which}", self.client_id(cx));
        let what = TraceEvent::Delivered {
            queue: &queue,
            redelivered: sending.dup,
        };
        self.trace(message, what, cx);
    }

    /// It is a consumer as long as it has subscriptions.
    pub fn count_consumer(&mut self, cx: &mut StepContext<'_>) {
        let consumes = match (self.subscriber.known(), cx.broker.topics()) {
            (Some(subscriber), Some(router)) => router.subscriptions_of(subscriber) > 0,
            _ => false,
        };
        if consumes != self.consumes {
            self.consumes = consumes;
            let more = if consumes { 1 } else { -1 };
            cx.count(|t| t.consumers += more);
        }
    }

    /// The connection ends: it counts as publisher and consumer no more.
    pub fn uncount(&mut self, cx: &mut StepContext<'_>) {
        let (published, consumes) = (self.published, self.consumes);
        if published || consumes {
            cx.count(|t| {
                t.publishers -= i64::from(published);
                t.consumers -= i64::from(consumes);
            });
        }
        (self.published, self.consumes) = (false, false);
    }

    /// Whether the user has the right to publish with this routing key. The exchange's part is remembered.
    pub fn may_publish(&mut self, tree: &Tree, key: &str) -> bool {
        let applied = tree.applied();
        if self.writable != Some(applied) {
            let exchange = &self.settings.exchange;
            if !tree.permitted(
                &self.account.user,
                &self.account.vhost,
                Right::Write,
                exchange,
            ) {
                return false;
            }
            self.writable = Some(applied);
        }
        let exchange = &self.settings.exchange;
        tree.topic_permitted(
            &self.account.user,
            &self.account.vhost,
            exchange,
            Right::Write,
            key,
        )
    }

    /// Whether the user may have a subscription: RabbitMQ's rights on the queue that stands for it and on the exchange.
    pub fn may_subscribe(&self, qos: Qos, key: &str, cx: &mut StepContext<'_>) -> bool {
        let exchange = &self.settings.exchange;
        let which = u8::from(qos != Qos::AtMostOnce);
        let queue = format!("mqtt-subscription-{}qos{which}", self.client_id(cx));
        let tree = cx.broker.tree();
        tree.permitted(
            &self.account.user,
            &self.account.vhost,
            Right::Read,
            exchange,
        ) && self.may_use(tree, &queue)
            && tree.topic_permitted(
                &self.account.user,
                &self.account.vhost,
                exchange,
                Right::Read,
                key,
            )
    }

    /// Whether the user has all rights on a queue.
    pub fn may_use(&self, tree: &Tree, queue: &str) -> bool {
        let all = [Right::Configure, Right::Write, Right::Read];
        all.into_iter()
            .all(|right| tree.permitted(&self.account.user, &self.account.vhost, right, queue))
    }

    /// Whether the user may have the session that its client id has by now.
    pub fn may_open(&self, tree: &Tree) -> PacketResult {
        let name = self.extras.client_id.as_deref().and_then(queue_name);
        let record = name.and_then(|name| tree.queue(&self.account.vhost, &name));
        if record.is_some_and(|record| !self.may_use(tree, &record.name)) {
            let text = "the user may not use the session's queue";
            return Err(Failure::new(Reason::NotAuthorized, text));
        }
        Ok(())
    }

    /// The session's queue and state, once the client id is the connection's own: `kept` is what the last connection left here,
    /// `handover` the state from another shard or node. False: the queue has to answer first.
    pub fn open_session(
        &mut self,
        subscriber: SubscriberId,
        kept: Option<ParkedState>,
        handover: Bytes,
        cx: &mut StepContext<'_>,
    ) -> Result<bool, Failure> {
        self.subscriber = subscriber;
        if self.extras.session_expiry > 0 {
            self.extras.stored = Some(Box::default());
        }
        let tree = cx.broker.tree();
        let name = self.extras.client_id.as_deref().and_then(queue_name);
        let record = name.and_then(|name| tree.queue(&self.account.vhost, &name));
        let record = record.cloned();
        let allowed = self.may_open(tree);
        let id = record.as_ref().map(|r| r.id);
        let router = cx.broker.topics();
        let over = router.is_some_and(|router| {
            let over = id.is_some_and(|id| router.is_ending(id.0));
            // Its queue went meanwhile, and with that the session.
            if kept.as_ref().is_some_and(|kept| kept.queue != id) || over {
                router.unsubscribe_all(subscriber);
                router.store_in(subscriber, 0);
            }
            over
        });
        let kept = kept.filter(|kept| kept.queue == id && !over);
        let mut past = EarlierConnections::UNKNOWN;
        self.extras.present = kept.is_some();
        if let Some(kept) = kept {
            (self.state, self.ids) = (kept.state, kept.ids);
            self.publish_after_earlier(cx);
            past = EarlierConnections {
                known: true,
                settled: kept.settled,
                epoch: kept.epoch,
                sent_earlier: kept.sent_earlier,
            };
            // In a cluster the session may have been elsewhere since.
            if let Some(stored) = self.extras.stored_mut()
                && cx.broker.knows_all()
            {
                stored.fence = kept.fence;
            }
        }
        if self.extras.stored.is_some() || record.is_some() {
            self.ids.keep_low(self.settings.limits.prefetch);
        }
        let Some(record) = record else {
            return Ok(!self.make_queue(cx));
        };
        // Another node may have made the queue since the client id was claimed.
        allowed?;
        if self.extras.clean_start || over {
            self.delete_queue(OPENING, &record, cx);
            return Ok(false);
        }
        self.extras.present = true;
        if !past.known
            && let Some(handed_over) = self.take_handover(handover, record.id)
        {
            past = handed_over;
        }
        self.resume(&record, past, cx);
        Ok(false)
    }
}

/// The tokens of the changes that CONNACK waits for: an earlier session ends, this one gets its queue.
pub(crate) const OPENING: u64 = u64::MAX;
pub(crate) const MAKING: u64 = u64::MAX - 2;
/// The token of the change that is none: when it is answered this node has what was done before.
pub(crate) const LEARNING: u64 = u64::MAX - 3;
