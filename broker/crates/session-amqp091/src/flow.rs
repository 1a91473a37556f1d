//! How far a consumer's queue may go ahead of what the client was sent ([`queue::FLOW_WINDOW`]).
//!
//! What waits in the outbox has a bound of its own, so a delivery that was written there is as good as gone: a client that does
//! not read stops its consumers with a window's messages in memory. What it leaves unacknowledged costs some bytes each,
//! here and in the queue, and has no bound but basic.qos, until the node is short of memory.

use crate::channel::Channel;
use crate::connection::AmqpSession;
use crate::connection_state::{ConnectionState, StepContext};
use queue::{ConsumerId, Delivery, FLOW_WINDOW, QueueId};

/// What was written to the client since the queue was told last.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WrittenDeliveries {
    messages: u32,
    bytes: u64,
    up_to: u64,
}

impl WrittenDeliveries {
    pub fn add(&mut self, delivery: &Delivery) {
        self.messages += 1;
        self.bytes += delivery.message.body_len() as u64;
        self.up_to = delivery.id;
    }

    fn extend(&mut self, more: WrittenDeliveries) {
        self.messages += more.messages;
        self.bytes += more.bytes;
        self.up_to = more.up_to;
    }

    /// The queue is to be told.
    fn is_due(&self) -> bool {
        self.messages >= FLOW_WINDOW.messages / 2 || self.bytes >= FLOW_WINDOW.bytes / 2
    }
}

/// A consumer whose queue is not told for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WithheldConsumer {
    channel: u16,
    queue: QueueId,
    consumer: ConsumerId,
}

impl Channel {
    /// Takes note of what was written for a consumer, and tells its queue now and then.
    pub(crate) fn note_written(
        &self,
        (queue, consumer): (QueueId, ConsumerId),
        written: WrittenDeliveries,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Some(subscription) = link.subscriptions.get_mut(&consumer.0) else {
            return;
        };
        // Without acknowledgement what is written is settled, and says as much.
        if subscription.no_ack || written.messages == 0 {
            return;
        }
        subscription.written.extend(written);
        if !subscription.written.is_due() {
            return;
        }
        if self.keeps_too_much(link) {
            let withheld = WithheldConsumer {
                channel: self.number,
                queue,
                consumer,
            };
            if !link.withheld.contains(&withheld) {
                link.withheld.push(withheld);
            }
            return;
        }
        tell(queue, consumer, link, cx);
    }

    fn keeps_too_much(&self, link: &ConnectionState) -> bool {
        self.unacked.len() >= link.limits.unacknowledged_in_alarm
            && link.alarm.is_some_and(|alarm| alarm.contains("memory"))
    }
}

impl AmqpSession {
    /// Tells queues what they were not told while their channels kept too much.
    pub(crate) fn tell_withheld(&mut self, cx: &mut StepContext<'_>) {
        for withheld in std::mem::take(&mut self.link.withheld) {
            let Some(channel) = self.channels.get(&withheld.channel) else {
                continue;
            };
            match channel.keeps_too_much(&self.link) {
                true => self.link.withheld.push(withheld),
                false => tell(withheld.queue, withheld.consumer, &mut self.link, cx),
            }
        }
    }
}

fn tell(
    queue: QueueId,
    consumer: ConsumerId,
    link: &mut ConnectionState,
    cx: &mut StepContext<'_>,
) {
    if let Some(subscription) = link.subscriptions.get_mut(&consumer.0) {
        let written = std::mem::take(&mut subscription.written);
        cx.broker.received(queue, consumer, written.up_to);
    }
}
