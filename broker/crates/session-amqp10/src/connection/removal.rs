//! Ends of links, sessions and consumers, and the release of everything that belongs to them.

use super::{Amqp10Session, Link};
use crate::ended;
use crate::refusal::Refusal;
use crate::state::StepContext;
use crate::wait::WaitReason;
use amqp10::{LinkId, SessionId};
use codec_amqp10::{Condition, DeliveryState};
use metadata::{Change, Name, QueueId};
use queue::client::CancelReason;
use queue::{RequestBody, SettlementOutcome};

impl Amqp10Session {
    /// Requeues the deliveries of a link that is detached. As in RabbitMQ, they do not count as failed attempts, unlike
    /// those of a session or connection that ends.
    pub(super) fn release_unsettled(&mut self, number: u32, cx: &mut StepContext<'_>) {
        let Some(Link::Consumer(consumer)) = self.links.get(&number) else {
            return;
        };
        if consumer.is_settled || !consumer.has_deliveries() {
            return;
        }
        let (queue, consumer) = (consumer.queue, consumer.id);
        // Without credit the consumer does not get its own deliveries back.
        let stop = RequestBody::CreditOneWay { consumer, up_to: 0 };
        self.state.send_oneway(queue, stop, cx);
        let release = RequestBody::Settle {
            consumer,
            outcome: SettlementOutcome::Released,
            ids: vec![(1, u64::MAX)],
        };
        self.state.send_oneway(queue, release, cx);
    }

    /// Releases everything that belongs to a link that has ended.
    pub(crate) fn remove_link(&mut self, number: u32, cx: &mut StepContext<'_>) {
        self.state.abandon_waits(number);
        let Some(link) = self.links.remove(&number) else {
            return;
        };
        self.state.holding.retain(|&holding| holding != number);
        self.browsers.remove(number);
        let dynamic_queue = match link {
            Link::Publisher(publisher) => {
                self.state.remove_in_flight(publisher.unconfirmed.bytes());
                self.state.count_links(-1, 0, cx);
                publisher.dynamic_queue
            }
            Link::Consumer(consumer) => {
                self.fail_transactions_of(consumer.link);
                let body = RequestBody::CancelAndRequeue {
                    consumer: consumer.id,
                };
                self.state.send_oneway(consumer.queue, body, cx);
                self.state.count_links(0, -1, cx);
                consumer.dynamic_queue
            }
            Link::Browser(_) => None,
            Link::Management(management) => {
                self.remove_management(management.link);
                None
            }
            Link::Coordinator(coordinator) => {
                self.remove_coordinator(&coordinator);
                None
            }
        };
        if let Some(name) = dynamic_queue {
            self.delete_dynamic_queue(name, cx);
        }
    }

    fn delete_dynamic_queue(&mut self, name: Name, cx: &mut StepContext<'_>) {
        let caller = self.state.caller(cx.broker);
        let Some(id) = caller.queue(&name).map(|record| record.id) else {
            return;
        };
        let change = Change::DeleteQueue {
            vhost: self.state.vhost.clone(),
            name,
            id: Some(id),
        };
        self.state.change(change, 0, WaitReason::Abandoned, cx);
    }

    /// Releases the links of a session that has ended.
    pub(super) fn remove_session(&mut self, session: SessionId, cx: &mut StepContext<'_>) {
        let Some(at) = self.sessions.iter().position(|&other| other == session) else {
            return;
        };
        self.sessions.swap_remove(at);
        cx.broker.close_channel();
        let mut numbers: Vec<u32> = Vec::new();
        let channel = session.channel();
        for (&number, link) in &self.links {
            if link.id().channel() == channel {
                numbers.push(number);
            }
        }
        self.remove_links(numbers, cx);
    }

    fn remove_links(&mut self, mut numbers: Vec<u32>, cx: &mut StepContext<'_>) {
        // Do not depend on the order of the hash map.
        numbers.sort_unstable();
        self.stop_consumers(&numbers, cx);
        for number in numbers {
            self.remove_link(number, cx);
        }
    }

    /// Stops consumers that end together before any of them requeues. Otherwise one would receive the deliveries of
    /// another, and the next consumer would see a redelivery too many.
    fn stop_consumers(&mut self, numbers: &[u32], cx: &mut StepContext<'_>) {
        let consumers = numbers
            .iter()
            .filter_map(|number| match self.links.get(number) {
                Some(Link::Consumer(consumer)) => Some((consumer.queue, consumer.id)),
                _ => None,
            });
        let mut consumers: Vec<_> = consumers.collect();
        consumers.sort_unstable();
        for per_queue in consumers
            .chunk_by(|a, b| a.0 == b.0)
            .filter(|c| c.len() > 1)
        {
            for &(queue, consumer) in per_queue {
                self.state
                    .send_oneway(queue, RequestBody::Cancel { consumer }, cx);
            }
        }
    }

    /// Releases all links and sessions of a connection that has ended. Does nothing when called again.
    pub(super) fn release(&mut self, cx: &mut StepContext<'_>) {
        let numbers = self.links.keys().copied().collect();
        self.remove_links(numbers, cx);
        for _ in self.sessions.drain(..) {
            cx.broker.close_channel();
        }
        self.state.waits.clear();
        if std::mem::take(&mut self.state.owns_queues) {
            let session = cx.broker.id();
            let change = Change::EndSession { session };
            self.state.change(change, 0, WaitReason::Abandoned, cx);
        }
    }

    pub(super) fn source_deleted(&self) -> Refusal {
        let text = format!("a queue in vhost '{}' was deleted", self.state.vhost);
        Refusal::new(Condition::ResourceDeleted, text)
    }

    /// Handles a consumer that ended without a request of the client.
    pub(super) fn handle_cancelled(
        &mut self,
        queue: QueueId,
        number: u32,
        reason: CancelReason,
        cx: &mut StepContext<'_>,
    ) {
        let Some(Link::Consumer(consumer)) = self.links.get(&number) else {
            return;
        };
        debug_assert_eq!(queue, consumer.queue, "a consumer has one queue");
        let link = consumer.link;
        let exists = cx.broker.tree().queue_by_id(queue).is_some();
        let refusal = if exists && reason == CancelReason::OwnerLost {
            let (name, vhost) = (&consumer.queue_name, &self.state.vhost);
            let text = format!(
                "queue '{name}' in vhost '{vhost}' is not available: its node is down or was restarted; attach again when the node is up"
            );
            Refusal::new(Condition::InternalError, text)
        } else {
            self.source_deleted()
        };
        self.detach(link, &refusal, cx);
    }

    /// Ends the links whose target is a queue that was deleted, as RabbitMQ does, so that a client hears of it before its
    /// next message.
    pub(super) fn detach_from_removed_queues(&mut self, cx: &mut StepContext<'_>) {
        let mut refused: Vec<(LinkId, Refusal)> = Vec::new();
        for link in self.links.values() {
            if let Link::Publisher(publisher) = link
                && let Err(refusal) = publisher.check_target(&self.state, cx)
            {
                refused.push((publisher.link, refusal));
            }
        }
        // Do not depend on the order of the hash map.
        refused.sort_unstable_by_key(|(link, _)| link.number());
        for (link, refusal) in refused {
            self.detach(link, &refusal, cx);
        }
    }

    /// Releases deliveries that the client did not settle in time. The link stays attached.
    pub(super) fn handle_timed_out(&mut self, number: u32, up_to: u64, cx: &mut StepContext<'_>) {
        let Some(Link::Consumer(consumer)) = self.links.get(&number) else {
            return;
        };
        tracing::info!(
            peer = %self.peer,
            queue = %consumer.queue_name,
            "receiver did not settle deliveries in time"
        );
        let (link, released) = (consumer.link, DeliveryState::RELEASED);
        ended(
            self.engine
                .settle_link(link, up_to, &released, cx.out.tail()),
        );
    }
}
