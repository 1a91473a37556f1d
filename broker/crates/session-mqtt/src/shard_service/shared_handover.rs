//! Handover of shared messages at the end of a persistent session: messages that the session
//! received as a member of a shared subscription, and has not acknowledged, go to another member
//! before its queue is deleted (section 4.8.2).
//!
//! The shard that is asked to delete the queue first removes the session's shared subscriptions, so
//! that no router chooses the session any more. Then it consumes from the queue in the session's
//! place. It acknowledges a message when the other member's queue has confirmed it, or when it was
//! passed to a member without a queue. The queue is deleted when it is empty. If this node dies
//! before, the remaining messages are still in the queue for the next deletion.

use super::{ProposedChange, state};
use crate::session_queue::{client_of, shared_subscription};
use crate::shared::SessionSubscriptions;
use env::Time;
use message::{Message, Table};
use metadata::{BindingRecord, Change, ChangeError, ChangeResult, Name, QueueId, QueueRecord};
use queue::{
    ConsumerId, ConsumerSpec, Delivery, EpochConsumer, QueueReply, RequestBody, SessionEpoch,
    SettlementOutcome,
};
use session::{PublishTag, QueueNotification, RequestSeq, ServiceHost};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use topics::PassedOn;

/// Maximum number of messages of a queue that are passed on at the same time.
const PREFETCH: u32 = 64;
/// A queue that is silent for this long is deleted with its messages, because a client with Clean
/// Start waits for it.
const PATIENCE: Duration = Duration::from_secs(3);
/// Maximum number of queues that are handed over at the same time, because their messages are in
/// memory. Others wait.
const MAX_ACTIVE: usize = 64;
/// The same limit for a queue that waits for its turn.
const WAITS_FOR: Duration = Duration::from_secs(30);
/// Maximum number of queues to which a message is offered in turn while they refuse it.
const MAX_OFFERS: u8 = 3;

/// A queue of a session that has ended.
struct SharedQueueHandover {
    vhost: Name,
    subscriptions: SessionSubscriptions,
    /// Metadata changes that must be applied before a message is passed on.
    unbinding: usize,
    consumer: ConsumerId,
    /// Pending requests: to consume, and for the number of remaining messages.
    consuming: Option<RequestSeq>,
    counting: Option<RequestSeq>,
    /// Messages whose new queues have not confirmed them.
    offered: usize,
    is_active: bool,
    until: Time,
}

/// A message that was offered to a queue and is not confirmed.
struct OfferedMessage {
    from: QueueId,
    delivery: u64,
    group: Name,
    message: Message,
    offers: u8,
}

/// All handovers of a shard; see the module.
#[derive(Default)]
pub(super) struct SharedHandovers {
    open: BTreeMap<QueueId, SharedQueueHandover>,
    offers: BTreeMap<u64, OfferedMessage>,
    /// Number of handovers that run.
    active: usize,
    /// Handovers that wait for their turn.
    waiting: VecDeque<QueueId>,
    next_tag: u64,
    next_consumer: u32,
}

impl SharedHandovers {
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        self.open.values().map(|handover| handover.until).min()
    }
}

fn handover_of(host: &mut dyn ServiceHost, queue: QueueId) -> Option<&mut SharedQueueHandover> {
    state(host)?.handovers.open.get_mut(&queue)
}

/// Begins the handover of a queue that is to be deleted. Returns false if it has nothing to hand
/// over.
pub(super) fn begin(host: &mut dyn ServiceHost, record: &QueueRecord) -> bool {
    if client_of(&record.name).is_none() {
        return false;
    }
    let bindings = host.tree().bindings_of_queue(record.id);
    let bindings: Vec<Arc<BindingRecord>> = bindings.into_iter().cloned().collect();
    let subscriptions = SessionSubscriptions::of(&bindings);
    if !subscriptions.has_shared() {
        return false;
    }
    let is_shared = |b: &&Arc<BindingRecord>| shared_subscription(b).is_some();
    let shared: Vec<_> = bindings.iter().filter(is_shared).collect();
    let until = host.now() + PATIENCE;
    let Some(shard) = state(host) else {
        return false;
    };
    shard.handovers.next_consumer += 1;
    let handover = SharedQueueHandover {
        vhost: record.vhost.clone(),
        subscriptions,
        unbinding: shared.len(),
        consumer: ConsumerId(shard.handovers.next_consumer),
        consuming: None,
        counting: None,
        offered: 0,
        is_active: false,
        until,
    };
    shard.handovers.open.insert(record.id, handover);
    for binding in shared {
        let change = Change::Unbind(BindingRecord::clone(binding));
        let Some(shard) = state(host) else { break };
        let token = shard.propose(ProposedChange::Unbind(record.id));
        host.change(token, change);
    }
    true
}

/// Handles the removal of one of the session's shared subscriptions.
pub(super) fn unbound(
    host: &mut dyn ServiceHost,
    queue: QueueId,
    result: &Result<ChangeResult, ChangeError>,
) {
    let until = host.now() + WAITS_FOR;
    let Some(shard) = state(host) else { return };
    let Some(handover) = shard.handovers.open.get_mut(&queue) else {
        return;
    };
    // A refused change was made before, or the metadata group is unavailable; then later requests
    // fail too.
    if let Err(why) = result {
        tracing::debug!(queue = queue.0, %why, "a shared subscription stays");
    }
    handover.unbinding = handover.unbinding.saturating_sub(1);
    if handover.unbinding > 0 {
        return;
    }
    handover.until = until;
    shard.handovers.waiting.push_back(queue);
    begin_waiting(host);
}

fn begin_waiting(host: &mut dyn ServiceHost) {
    let until = host.now() + PATIENCE;
    while let Some(shard) = state(host)
        && shard.handovers.active < MAX_ACTIVE
        && let Some(queue) = shard.handovers.waiting.pop_front()
    {
        // The handover may have been given up meanwhile.
        if let Some(handover) = shard.handovers.open.get_mut(&queue)
            && !handover.is_active
        {
            handover.is_active = true;
            handover.until = until;
            shard.handovers.active += 1;
            consume(host, queue);
        }
    }
}

/// Consumes in the place of the session's connection, so that its unacknowledged messages come too.
fn consume(host: &mut dyn ServiceHost, queue: QueueId) {
    let record = host.tree().queue_by_id(queue);
    let client: Option<Name> = record
        .and_then(|record| client_of(&record.name))
        .map(Name::from);
    let (Some(client), Some(handover)) = (client, handover_of(host, queue)) else {
        return end(host, queue);
    };
    let spec = ConsumerSpec {
        tag: client,
        channel: 0,
        flow_mode: queue::FlowMode::Prefetch,
        prefetch: PREFETCH,
        no_ack: false,
        exclusive: false,
        priority: 0,
        arguments: Table::default(),
        filter: None,
    };
    let body = RequestBody::TakeOver(Box::new(EpochConsumer {
        consumer: handover.consumer,
        spec,
        settled: None,
        epoch: SessionEpoch::New,
        at: 0,
    }));
    let seq = host.request(queue, body);
    if let Some(handover) = handover_of(host, queue) {
        handover.consuming = Some(seq);
    }
}

/// Handles a notification of a queue: one that is handed over, or one that gets its messages.
pub(super) fn queue_notification(host: &mut dyn ServiceHost, notification: QueueNotification) {
    match notification {
        QueueNotification::Published { tag, .. } => offer_answered(host, tag, true),
        QueueNotification::NotPublished { tag, .. } => offer_answered(host, tag, false),
        QueueNotification::Deliver {
            queue, deliveries, ..
        } => {
            for delivery in deliveries {
                pass_on(host, queue, delivery);
            }
            count_rest(host, queue);
        }
        QueueNotification::Answer { queue, seq, answer } => {
            handle_answer(host, queue, seq, &answer);
        }
        QueueNotification::Cancelled { queue, .. } | QueueNotification::TimedOut { queue, .. } => {
            end(host, queue)
        }
        // The service has no cursors, and its consumers have no credit.
        QueueNotification::Removed { .. }
        | QueueNotification::Cursor { .. }
        | QueueNotification::Browsed { .. }
        | QueueNotification::Activity { .. } => {}
    }
}

fn handle_answer(host: &mut dyn ServiceHost, queue: QueueId, seq: RequestSeq, answer: &QueueReply) {
    let Some(handover) = handover_of(host, queue) else {
        return;
    };
    if let QueueReply::Refused { text, .. } = answer {
        tracing::debug!(queue = queue.0, text, "nothing is handed over");
        return end(host, queue);
    }
    if handover.consuming == Some(seq) {
        handover.consuming = None;
    } else if handover.counting == Some(seq) {
        handover.counting = None;
        // All messages that were ready before this answer have been delivered.
        if handover.offered == 0 && matches!(answer, QueueReply::Count { messages: 0, .. }) {
            return end(host, queue);
        }
    }
    count_rest(host, queue);
}

/// Requests the number of remaining messages when all received ones have been passed on.
fn count_rest(host: &mut dyn ServiceHost, queue: QueueId) {
    let Some(handover) = handover_of(host, queue) else {
        return;
    };
    let waits = handover.consuming.or(handover.counting).is_some();
    if waits || handover.offered > 0 {
        return;
    }
    let seq = host.request(queue, RequestBody::Stat);
    if let Some(handover) = handover_of(host, queue) {
        handover.counting = Some(seq);
    }
}

fn pass_on(host: &mut dyn ServiceHost, queue: QueueId, delivery: Delivery) {
    let until = host.now() + PATIENCE;
    let Some(handover) = handover_of(host, queue) else {
        return;
    };
    handover.until = until;
    match handover
        .subscriptions
        .share(&delivery.message, delivery.redelivered)
    {
        Some((group, message)) => {
            let offer = OfferedMessage {
                from: queue,
                delivery: delivery.id,
                group,
                message,
                offers: 0,
            };
            offer_to_next(host, offer);
        }
        None => settle(host, queue, delivery.id),
    }
}

/// Passes a message to the next member of its group.
fn offer_to_next(host: &mut dyn ServiceHost, mut offer: OfferedMessage) {
    let from = offer.from;
    let Some(shard) = state(host) else { return };
    let Some(handover) = shard.handovers.open.get_mut(&from) else {
        return;
    };
    offer.offers += 1;
    let message = offer.message.clone();
    let passed_on = match offer.offers <= MAX_OFFERS {
        true => {
            let router = &mut shard.router;
            router.pass_on_shared(&handover.vhost, &offer.group, from.0, message)
        }
        false => PassedOn::Nobody,
    };
    let PassedOn::Queue(to) = passed_on else {
        return settle(host, from, offer.delivery);
    };
    handover.offered += 1;
    shard.handovers.next_tag += 1;
    let tag = shard.handovers.next_tag;
    let message = offer.message.clone();
    shard.handovers.offers.insert(tag, offer);
    host.publish(QueueId(to), PublishTag(tag), message);
}

fn offer_answered(host: &mut dyn ServiceHost, tag: PublishTag, taken: bool) {
    let until = host.now() + PATIENCE;
    let Some(shard) = state(host) else { return };
    let Some(offer) = shard.handovers.offers.remove(&tag.0) else {
        return;
    };
    let from = offer.from;
    if let Some(handover) = shard.handovers.open.get_mut(&from) {
        handover.offered = handover.offered.saturating_sub(1);
        handover.until = until;
    }
    match taken {
        true => settle(host, from, offer.delivery),
        false => offer_to_next(host, offer),
    }
    count_rest(host, from);
}

/// Acknowledges a message that is handed over.
fn settle(host: &mut dyn ServiceHost, queue: QueueId, delivery: u64) {
    let Some(handover) = handover_of(host, queue) else {
        return;
    };
    let body = RequestBody::Settle {
        consumer: handover.consumer,
        outcome: SettlementOutcome::Accepted,
        ids: vec![(delivery, delivery)],
    };
    host.request(queue, body);
}

/// Deletes the queue and ends its handover.
fn end(host: &mut dyn ServiceHost, queue: QueueId) {
    let handovers = state(host).map(|shard| &mut shard.handovers);
    let Some(handover) = handovers.and_then(|handovers| handovers.open.remove(&queue)) else {
        return;
    };
    host.delete_postponed(queue);
    if handover.is_active {
        if let Some(shard) = state(host) {
            debug_assert!(
                shard.handovers.active > 0,
                "the active handover of queue {} was not counted",
                queue.0
            );
            shard.handovers.active -= 1;
        }
        begin_waiting(host);
    }
}

/// Gives up handovers of queues that do not answer or whose messages no member takes.
pub(super) fn tick(host: &mut dyn ServiceHost) {
    let now = host.now();
    let Some(shard) = state(host) else { return };
    let open = shard.handovers.open.iter();
    let late = open.filter(|(_, handover)| handover.until <= now);
    let late: Vec<QueueId> = late.map(|(queue, _)| *queue).collect();
    for queue in late {
        let record = host.tree().queue_by_id(queue);
        let name = record.map_or("", |record| &record.name);
        tracing::warn!(
            event = "shared_messages_not_handed_over",
            queue = name,
            "the queue of a session that has ended does not answer: it is deleted with messages of shared subscriptions"
        );
        end(host, queue);
    }
}
