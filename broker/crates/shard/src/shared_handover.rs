//! Handover of shared messages at the end of a persistent MQTT session: messages that the session received as a member of a
//! shared subscription, and has not acknowledged, go to another member before its queue is deleted (section 4.8.2).
//!
//! The shard that is asked to delete the queue first removes the session's shared subscriptions, so that no router chooses
//! the session any more. Then it consumes from the queue in the session's place. It acknowledges a message when the other
//! member's queue has confirmed it, or when it was passed to a member without a queue. The queue is deleted when it is empty.
//! If this node dies before, the remaining messages are still in the queue for the next deletion.

use crate::core::Core;
use crate::metadata_client::ChangeRequester;
use crate::sessions::{HANDOVER_KEY, number};
use env::Time;
use message::{Message, Table};
use metadata::{BindingRecord, Change, ChangeError, Name, QueueId, QueueRecord};
use queue::client::ClientEvent;
use queue::{
    ConsumerId, ConsumerSpec, Delivery, EpochConsumer, QueueReply, RequestBody, SessionEpoch,
    SettlementOutcome,
};
use session::PublishTag;
use session_mqtt::SessionSubscriptions;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use topics::PassedOn;

/// Maximum number of messages of a queue that are passed on at the same time.
const PREFETCH: u32 = 64;
/// A queue that is silent for this long is deleted with its messages, because a client with Clean Start waits for it.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of queues that are handed over at the same time, because their messages are in memory. Others wait.
const MAX_ACTIVE: usize = 64;
/// The same limit for a queue that waits for its turn.
const WAITS_FOR: Duration = Duration::from_secs(30);
/// Maximum number of queues to which a message is offered in turn while they refuse it.
const MAX_OFFERS: u8 = 3;

/// A queue of a session that has ended.
struct Handover {
    vhost: Name,
    /// The deletion and its requester.
    deletion: Change,
    askers: Vec<ChangeRequester>,
    subscriptions: SessionSubscriptions,
    /// Metadata changes that must be applied before a message is passed on.
    unbinding: usize,
    consumer: ConsumerId,
    /// Pending requests: to consume, and for the number of remaining messages.
    consuming: Option<u64>,
    counting: Option<u64>,
    /// Messages whose new queues have not confirmed them.
    offered: usize,
    is_active: bool,
    until: Time,
}

/// A message that was offered to a queue and is not confirmed.
struct Offer {
    from: QueueId,
    delivery: u64,
    group: Name,
    message: Message,
    offers: u8,
}

/// All handovers of a shard; see the module.
#[derive(Default)]
pub struct SharedHandovers {
    open: BTreeMap<QueueId, Handover>,
    offers: BTreeMap<u64, Offer>,
    /// Handovers that run, and handovers that wait for their turn.
    active: usize,
    waiting: VecDeque<QueueId>,
    next_tag: u64,
    next_consumer: u32,
}

impl SharedHandovers {
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.open.values().map(|handover| handover.until).min()
    }
}

impl Core {
    fn handover_session(&self) -> u64 {
        number(self.config.index, 0, HANDOVER_KEY)
    }

    pub fn is_handover_session(&self, number: u64) -> bool {
        number == self.handover_session()
    }

    /// Starts the handover of a queue that is to be deleted. None: the handover runs, and the requester is answered when the
    /// queue is deleted.
    pub fn hand_over_first(
        &mut self,
        change: &Change,
        asker: ChangeRequester,
    ) -> Option<ChangeRequester> {
        let Change::DeleteQueue { vhost, name, id } = change else {
            return Some(asker);
        };
        // Another shard has started it.
        if matches!(asker, ChangeRequester::Shard { .. }) || session_mqtt::client_of(name).is_none()
        {
            return Some(asker);
        }
        let Some(record) = self.tree.queue(vhost, name).cloned() else {
            return Some(asker);
        };
        if id.is_some_and(|id| id != record.id) || self.tree.lost_on(record.id).is_some() {
            return Some(asker);
        }
        if let Some(handover) = self.shared_handovers.open.get_mut(&record.id) {
            handover.askers.push(asker);
            return None;
        }
        let bindings = self.tree.bindings_of_queue(record.id);
        let bindings: Vec<Arc<BindingRecord>> = bindings.into_iter().cloned().collect();
        let subscriptions = SessionSubscriptions::of(&bindings);
        if !subscriptions.has_shared() {
            return Some(asker);
        }
        self.begin_handover(&record, change.clone(), asker, subscriptions, &bindings);
        None
    }

    fn begin_handover(
        &mut self,
        record: &QueueRecord,
        deletion: Change,
        asker: ChangeRequester,
        subscriptions: SessionSubscriptions,
        bindings: &[Arc<BindingRecord>],
    ) {
        let is_shared = |b: &&Arc<BindingRecord>| session_mqtt::shared_subscription(b).is_some();
        let shared: Vec<_> = bindings.iter().filter(is_shared).collect();
        self.shared_handovers.next_consumer += 1;
        let handover = Handover {
            vhost: record.vhost.clone(),
            deletion,
            askers: vec![asker],
            subscriptions,
            unbinding: shared.len(),
            consumer: ConsumerId(self.shared_handovers.next_consumer),
            consuming: None,
            counting: None,
            offered: 0,
            is_active: false,
            until: self.now + PATIENCE,
        };
        self.shared_handovers.open.insert(record.id, handover);
        for binding in shared {
            let change = Change::Unbind(BindingRecord::clone(binding));
            self.ask(change, ChangeRequester::SharedHandover(record.id));
        }
    }

    /// Handles the removal of one of the session's shared subscriptions.
    pub fn handover_unbound(
        &mut self,
        queue: QueueId,
        result: &Result<metadata::ChangeResult, ChangeError>,
    ) {
        let Some(handover) = self.shared_handovers.open.get_mut(&queue) else {
            return;
        };
        // A refused change was made before, or the metadata group is unavailable; then later requests fail too.
        if let Err(why) = result {
            tracing::debug!(queue = queue.0, %why, "a shared subscription stays");
        }
        handover.unbinding = handover.unbinding.saturating_sub(1);
        if handover.unbinding > 0 {
            return;
        }
        handover.until = self.now + WAITS_FOR;
        self.shared_handovers.waiting.push_back(queue);
        self.begin_waiting_handovers();
    }

    fn begin_waiting_handovers(&mut self) {
        while self.shared_handovers.active < MAX_ACTIVE
            && let Some(queue) = self.shared_handovers.waiting.pop_front()
        {
            // The handover may have been given up meanwhile.
            if let Some(handover) = self.shared_handovers.open.get_mut(&queue)
                && !handover.is_active
            {
                handover.is_active = true;
                handover.until = self.now + PATIENCE;
                self.shared_handovers.active += 1;
                self.consume_for_handover(queue);
            }
        }
    }

    /// Consumes in the place of the session's connection, so that its unacknowledged messages come too.
    fn consume_for_handover(&mut self, queue: QueueId) {
        let record = self.tree.queue_by_id(queue);
        let client = record.and_then(|record| session_mqtt::client_of(&record.name));
        let (Some(client), Some(handover)) = (client, self.shared_handovers.open.get(&queue))
        else {
            return self.end_handover(queue);
        };
        let consumer = handover.consumer;
        let spec = ConsumerSpec {
            tag: client.into(),
            channel: 0,
            flow_mode: queue::FlowMode::Prefetch,
            prefetch: PREFETCH,
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: Table::default(),
        };
        let body = RequestBody::Succeed(Box::new(EpochConsumer {
            consumer,
            spec,
            settled: None,
            epoch: SessionEpoch::Untold,
            at: 0,
        }));
        let session = self.handover_session();
        let seq = self.request(session, queue, body);
        if let Some(handover) = self.shared_handovers.open.get_mut(&queue) {
            handover.consuming = Some(seq);
        }
    }

    /// Handles a queue's event for the handover session.
    pub fn handover_told(&mut self, queue: QueueId, peer_message: ClientEvent<PublishTag>) {
        match peer_message {
            ClientEvent::Published(tag) => self.offer_answered(tag.tag, true),
            ClientEvent::NotPublished(tag, _) => self.offer_answered(tag.tag, false),
            ClientEvent::Deliver { deliveries, .. } => {
                for delivery in deliveries {
                    self.pass_on_shared(queue, delivery);
                }
                self.count_rest(queue);
            }
            ClientEvent::Answer { seq, answer } => self.handover_answered(queue, seq, &answer),
            ClientEvent::Cancelled { .. } => self.end_handover(queue),
        }
    }

    fn handover_answered(&mut self, queue: QueueId, seq: u64, answer: &QueueReply) {
        let Some(handover) = self.shared_handovers.open.get_mut(&queue) else {
            return;
        };
        if let QueueReply::Refused { text, .. } = answer {
            tracing::debug!(queue = queue.0, text, "nothing is handed over");
            return self.end_handover(queue);
        }
        if handover.consuming == Some(seq) {
            handover.consuming = None;
        } else if handover.counting == Some(seq) {
            handover.counting = None;
            // All messages that were ready before this answer have been delivered.
            if handover.offered == 0 && matches!(answer, QueueReply::Count { messages: 0, .. }) {
                return self.end_handover(queue);
            }
        }
        self.count_rest(queue);
    }

    /// Requests the number of remaining messages when all received ones have been passed on.
    fn count_rest(&mut self, queue: QueueId) {
        let session = self.handover_session();
        let Some(handover) = self.shared_handovers.open.get(&queue) else {
            return;
        };
        let waits = handover.consuming.or(handover.counting).is_some();
        if waits || handover.offered > 0 {
            return;
        }
        let seq = self.request(session, queue, RequestBody::Stat);
        if let Some(handover) = self.shared_handovers.open.get_mut(&queue) {
            handover.counting = Some(seq);
        }
    }

    fn pass_on_shared(&mut self, queue: QueueId, delivery: Delivery) {
        let until = self.now + PATIENCE;
        let Some(handover) = self.shared_handovers.open.get_mut(&queue) else {
            return;
        };
        handover.until = until;
        match handover
            .subscriptions
            .share(&delivery.message, delivery.redelivered)
        {
            Some((group, message)) => self.offer(Offer {
                from: queue,
                delivery: delivery.id,
                group,
                message,
                offers: 0,
            }),
            None => self.settle_handed_over(queue, delivery.id),
        }
    }

    /// Passes a message to the next member of its group.
    fn offer(&mut self, mut offer: Offer) {
        let from = offer.from;
        let Some(handover) = self.shared_handovers.open.get_mut(&from) else {
            return;
        };
        let (vhost, message) = (handover.vhost.clone(), offer.message.clone());
        offer.offers += 1;
        let passed_on = match offer.offers <= MAX_OFFERS {
            true => (self.topics).pass_on_shared(&vhost, &offer.group, from.0, message),
            false => PassedOn::Nobody,
        };
        let PassedOn::Queue(to) = passed_on else {
            return self.settle_handed_over(from, offer.delivery);
        };
        handover.offered += 1;
        self.shared_handovers.next_tag += 1;
        let tag = self.shared_handovers.next_tag;
        let message = offer.message.clone();
        self.shared_handovers.offers.insert(tag, offer);
        let tag = PublishTag { channel: 0, tag };
        self.publish(self.handover_session(), QueueId(to), tag, message);
    }

    fn offer_answered(&mut self, tag: u64, taken: bool) {
        let Some(offer) = self.shared_handovers.offers.remove(&tag) else {
            return;
        };
        let until = self.now + PATIENCE;
        let from = offer.from;
        if let Some(handover) = self.shared_handovers.open.get_mut(&from) {
            handover.offered = handover.offered.saturating_sub(1);
            handover.until = until;
        }
        match taken {
            true => self.settle_handed_over(from, offer.delivery),
            false => self.offer(offer),
        }
        self.count_rest(from);
    }

    fn settle_handed_over(&mut self, queue: QueueId, delivery: u64) {
        let Some(handover) = self.shared_handovers.open.get(&queue) else {
            return;
        };
        let body = RequestBody::Settle {
            consumer: handover.consumer,
            outcome: SettlementOutcome::Accepted,
            ids: vec![(delivery, delivery)],
        };
        self.request(self.handover_session(), queue, body);
    }

    /// Deletes the queue and ends its handover.
    fn end_handover(&mut self, queue: QueueId) {
        let Some(handover) = self.shared_handovers.open.remove(&queue) else {
            return;
        };
        for asker in handover.askers {
            self.ask_now(handover.deletion.clone(), asker);
        }
        if handover.is_active {
            self.shared_handovers.active -= 1;
            self.begin_waiting_handovers();
        }
    }

    /// Gives up handovers of queues that do not answer or whose messages no member takes.
    pub fn tick_handovers(&mut self) {
        let now = self.now;
        let open = self.shared_handovers.open.iter();
        let late = open.filter(|(_, handover)| handover.until <= now);
        let late: Vec<QueueId> = late.map(|(queue, _)| *queue).collect();
        for queue in late {
            let record = self.tree.queue_by_id(queue);
            let name = record.map_or("", |record| &record.name);
            tracing::warn!(
                event = "shared_messages_not_handed_over",
                queue = name,
                "the queue of a session that has ended does not answer: it is deleted with messages of shared subscriptions"
            );
            self.end_handover(queue);
        }
    }
}
