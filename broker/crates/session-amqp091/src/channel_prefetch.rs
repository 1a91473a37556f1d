//! A limit on all consumers of a channel together (basic.qos with `global`). Classic queues only: RabbitMQ's quorum queues know
//! no such limit either.
//!
//! Each queue may send as much as the whole channel may have. What comes beyond that goes back as if it had never left, and the
//! consumers get nothing more until the channel has room again.

use crate::channel::Channel;
use crate::connection::AmqpSession;
use crate::connection_state::{ConnectionState, StepContext};
use message::Table;
use queue::{ConsumerId, ConsumerSpec, QueueId, RequestBody, SettlementOutcome};
use smallvec::SmallVec;

impl Channel {
    /// A limit on all the channel's consumers together, 0 is none. Their queues hear how much each needs from now on.
    pub(crate) fn limit_channel(
        &mut self,
        limit: u32,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        if self.channel_prefetch == limit {
            return;
        }
        let old = std::mem::replace(&mut self.channel_prefetch, limit);
        let mut changed: Vec<(QueueId, ConsumerId, ConsumerSpec)> = Vec::new();
        for (tag, consumer) in &self.consumers {
            let Some(s) = link.subscriptions.get(&consumer.0) else {
                continue;
            };
            let prefetch = window(s.no_ack, s.prefetch, limit);
            if !s.kind.descriptor().consumers.adjustable_credit
                || prefetch == window(s.no_ack, s.prefetch, old)
            {
                continue;
            }
            let spec = ConsumerSpec {
                tag: tag.clone(),
                channel: self.number,
                prefetch,
                no_ack: false,
                exclusive: false,
                priority: 0,
                arguments: Table::default(),
            };
            changed.push((s.queue, *consumer, spec));
        }
        for (queue, consumer, spec) in changed {
            link.tell(cx, queue, RequestBody::Consume { consumer, spec });
        }
    }

    /// Deliveries that the client may still have, those that wait for room in the outbox taken off; None is any number. What a
    /// transaction has settled counts until the commit.
    pub(crate) fn room(&self) -> Option<u64> {
        if self.channel_prefetch == 0 {
            return None;
        }
        let uncommitted = self.transaction.as_ref().map_or(0, |t| t.consumed());
        let taken = self.unacked.consumed() + uncommitted + self.held_deliveries.len();
        Some(u64::from(self.channel_prefetch).saturating_sub(taken as u64))
    }

    /// Deliveries that came although the channel is full, those without acknowledgement too: RabbitMQ's rule. From now on its
    /// consumers take turns.
    pub(crate) fn give_back(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        range: (u64, u64),
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        // First, or they would come again.
        for id in self.in_turn() {
            let Some(subscription) = link.subscriptions.get_mut(&id.0) else {
                continue;
            };
            let came = subscription.came;
            let goes_on = subscription.credit.is_none_or(|credit| credit > came);
            if subscription.kind.descriptor().consumers.adjustable_credit && goes_on {
                subscription.credit = Some(came);
                allow(id, came, subscription.queue, cx);
            }
        }
        link.settle_range(queue, consumer, SettlementOutcome::Unseen, range);
        if !link.stopped.contains(&self.number) {
            link.stopped.push(self.number);
        }
    }

    /// Its consumers, the one behind who was served last first.
    fn in_turn(&self) -> SmallVec<[ConsumerId; 8]> {
        let mut all: SmallVec<[ConsumerId; 8]> = self.consumers.values().copied().collect();
        all.sort_unstable();
        let next = all.partition_point(|id| *id <= self.served_last);
        all.rotate_left(next);
        all
    }

    /// Tells the queues of stopped consumers how much there is room for: each the same, for nobody knows which has messages.
    /// True: some are to be told again.
    fn share_room(&self, link: &mut ConnectionState, cx: &mut StepContext<'_>) -> bool {
        let room = self.room();
        if room == Some(0) {
            return true;
        }
        let alone = self.consumers.len() == 1;
        let mut stopped = false;
        for id in self.in_turn() {
            let Some(subscription) = link.subscriptions.get_mut(&id.0) else {
                continue;
            };
            let Some(credit) = subscription.credit else {
                continue;
            };
            let came = subscription.came;
            subscription.credit = match room {
                Some(room) if !alone => {
                    stopped = true;
                    if credit > came {
                        continue;
                    }
                    let uncounted = u64::from(subscription.no_ack) * UNCOUNTED;
                    Some(came.saturating_add(room.max(uncounted)))
                }
                _ => None,
            };
            let up_to = subscription.credit.unwrap_or(u64::MAX);
            allow(id, up_to, subscription.queue, cx);
        }
        stopped
    }
}

/// Deliveries without acknowledgement that a consumer on such a channel gets at a time.
const UNCOUNTED: u64 = 256;

fn allow(consumer: ConsumerId, up_to: u64, queue: QueueId, cx: &mut StepContext<'_>) {
    let body = RequestBody::Credit { consumer, up_to };
    cx.broker.request(queue, body);
}

impl AmqpSession {
    /// At the end of a step, behind the acknowledgements that made room.
    pub(crate) fn share_rooms(&mut self, cx: &mut StepContext<'_>) {
        let mut stopped = std::mem::take(&mut self.link.stopped);
        stopped.retain(|number| {
            let channel = self.channels.get(number);
            channel.is_some_and(|channel| channel.share_room(&mut self.link, cx))
        });
        self.link.stopped = stopped;
    }
}

/// What a consumer's queue is told: each may have as much as the whole channel.
pub(crate) fn window(no_ack: bool, own: u32, all: u32) -> u32 {
    match (no_ack, own, all) {
        (true, _, _) => 0,
        (false, own, 0) => own,
        (false, 0, all) => all,
        (false, own, all) => own.min(all),
    }
}
