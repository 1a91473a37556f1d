//! The prefetch limit of a whole channel (basic.qos with `global`). It applies to classic queues
//! only, as in RabbitMQ.
//!
//! Each queue may send as many deliveries as the whole channel allows. Deliveries beyond the limit
//! are returned as if they had never been sent, and the consumers get no more until the channel has
//! capacity again.

use crate::channel::Channel;
use crate::connection::AmqpSession;
use crate::connection_state::{ConnectionState, StepContext};
use message::Table;
use queue::{ConsumerId, ConsumerSpec, QueueId, RequestBody, SettlementOutcome};
use smallvec::SmallVec;

impl Channel {
    /// Sets the limit on all consumers of the channel together; 0 is unlimited. Queues of consumers
    /// whose prefetch changes are updated.
    pub(crate) fn limit_channel(
        &mut self,
        limit: u32,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        if self.channel_prefetch == limit {
            return;
        }
        let old = std::mem::replace(&mut self.channel_prefetch, limit);
        let mut changed: Vec<(QueueId, ConsumerId, ConsumerSpec)> = Vec::new();
        for (tag, consumer) in &self.consumers {
            let Some(s) = conn.subscriptions.get(&consumer.0) else {
                continue;
            };
            let prefetch = effective_prefetch(s.no_ack, s.prefetch, limit);
            if !s.kind.descriptor().consumers.adjustable_credit
                || prefetch == effective_prefetch(s.no_ack, s.prefetch, old)
            {
                continue;
            }
            let spec = ConsumerSpec {
                tag: tag.clone(),
                channel: self.number,
                flow_mode: queue::FlowMode::Prefetch,
                prefetch,
                no_ack: false,
                exclusive: false,
                priority: 0,
                arguments: Table::default(),
                filter: None,
            };
            changed.push((s.queue, *consumer, spec));
        }
        for (queue, consumer, spec) in changed {
            conn.send_oneway(cx, queue, RequestBody::Consume { consumer, spec });
        }
    }

    /// The number of deliveries that the client may still receive, less those that wait for space
    /// in the outbox. None is unlimited. Deliveries that a transaction has settled count until the
    /// commit.
    pub(crate) fn remaining_prefetch(&self) -> Option<u64> {
        if self.channel_prefetch == 0 {
            return None;
        }
        let uncommitted = self.transaction.as_ref().map_or(0, |t| t.consumed());
        let used = self.unacked.consumed() + uncommitted + self.held_deliveries.len();
        Some(u64::from(self.channel_prefetch).saturating_sub(used as u64))
    }

    /// Returns deliveries that arrived although the channel is full, including those without
    /// acknowledgement, as RabbitMQ does. From now on the channel's consumers take turns.
    pub(crate) fn return_excess(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        range: (u64, u64),
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        // Revoke the credit first, or the queues would send these deliveries again.
        for id in self.round_robin() {
            let Some(subscription) = conn.subscriptions.get_mut(&id.0) else {
                continue;
            };
            let last = subscription.last_delivery;
            let may_receive = subscription.credit.is_none_or(|credit| credit > last);
            if subscription.kind.descriptor().consumers.adjustable_credit && may_receive {
                subscription.credit = Some(last);
                send_credit(id, last, subscription.queue, cx);
            }
        }
        conn.settle_range(queue, consumer, SettlementOutcome::Unseen, range);
        if !conn.throttled_channels.contains(&self.number) {
            conn.throttled_channels.push(self.number);
        }
    }

    /// The consumers in round-robin order, starting after the one that was served last.
    fn round_robin(&self) -> SmallVec<[ConsumerId; 8]> {
        let mut all: SmallVec<[ConsumerId; 8]> = self.consumers.values().copied().collect();
        all.sort_unstable();
        let next = all.partition_point(|id| *id <= self.last_served);
        all.rotate_left(next);
        all
    }

    /// Grants credit to the queues of stopped consumers. Each gets the whole remaining prefetch
    /// because it is unknown which queue has messages. Returns true if consumers remain stopped.
    fn grant_credit(&self, conn: &mut ConnectionState, cx: &mut StepContext<'_>) -> bool {
        let remaining_prefetch = self.remaining_prefetch();
        if remaining_prefetch == Some(0) {
            return true;
        }
        let is_single = self.consumers.len() == 1;
        let mut stopped = false;
        for id in self.round_robin() {
            let Some(subscription) = conn.subscriptions.get_mut(&id.0) else {
                continue;
            };
            let Some(credit) = subscription.credit else {
                continue;
            };
            let last = subscription.last_delivery;
            subscription.credit = match remaining_prefetch {
                Some(remaining_prefetch) if !is_single => {
                    stopped = true;
                    if credit > last {
                        continue;
                    }
                    let minimum = u64::from(subscription.no_ack) * UNCOUNTED;
                    Some(last.saturating_add(remaining_prefetch.max(minimum)))
                }
                _ => None,
            };
            let up_to = subscription.credit.unwrap_or(u64::MAX);
            send_credit(id, up_to, subscription.queue, cx);
        }
        stopped
    }
}

/// Deliveries that a consumer without acknowledgement gets per turn on such a channel.
const UNCOUNTED: u64 = 256;

fn send_credit(consumer: ConsumerId, up_to: u64, queue: QueueId, cx: &mut StepContext<'_>) {
    let body = RequestBody::CreditOneWay { consumer, up_to };
    cx.broker.request(queue, body);
}

impl AmqpSession {
    /// Runs at the end of a step, after the acknowledgements that freed capacity.
    pub(crate) fn grant_credits(&mut self, cx: &mut StepContext<'_>) {
        let mut stopped = std::mem::take(&mut self.conn.throttled_channels);
        stopped.retain(|number| {
            let channel = self.channels.get(number);
            channel.is_some_and(|channel| channel.grant_credit(&mut self.conn, cx))
        });
        self.conn.throttled_channels = stopped;
    }
}

/// The prefetch that a consumer's queue is given: at most that of the whole channel.
pub(crate) fn effective_prefetch(no_ack: bool, own: u32, all: u32) -> u32 {
    match (no_ack, own, all) {
        (true, _, _) => 0,
        (false, own, 0) => own,
        (false, 0, all) => all,
        (false, own, all) => own.min(all),
    }
}
