//! Flow control between a queue and a consumer: how far the queue may send ahead of the deliveries
//! written to the client ([`queue::FLOW_WINDOW`]).
//!
//! The outbox has its own limit, so a delivery in the outbox counts as sent. A client that does not
//! read stops its consumers with one window of messages in memory. An unacknowledged delivery takes
//! a few bytes here and in the queue; their number is limited by basic.qos only, until a memory
//! alarm.

use crate::channel::Channel;
use crate::connection::AmqpSession;
use crate::connection_state::{ConnectionState, StepContext};
use queue::{ConsumerId, QueueId};
use session::WrittenDeliveries;

/// A consumer whose queue gets no report while its channel has too many unacknowledged deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WithheldConsumer {
    channel: u16,
    queue: QueueId,
    consumer: ConsumerId,
}

impl Channel {
    /// Records deliveries written for a consumer and reports them to its queue when due.
    pub(crate) fn record_written(
        &self,
        (queue, consumer): (QueueId, ConsumerId),
        written: WrittenDeliveries,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Some(subscription) = conn.subscriptions.get_mut(&consumer.0) else {
            return;
        };
        // Without acknowledgements, the settlement of a written delivery serves as the report.
        if subscription.no_ack || written.is_empty() {
            return;
        }
        subscription.written.extend(written);
        if !subscription.written.is_due() {
            return;
        }
        if self.exceeds_alarm_limit(conn) {
            let withheld = WithheldConsumer {
                channel: self.number,
                queue,
                consumer,
            };
            if !conn.withheld.contains(&withheld) {
                conn.withheld.push(withheld);
            }
            return;
        }
        report(queue, consumer, conn, cx);
    }

    /// Returns true if a memory alarm is in effect and the channel has too many unacknowledged
    /// deliveries.
    fn exceeds_alarm_limit(&self, conn: &ConnectionState) -> bool {
        self.unacked.len() >= conn.limits.unacknowledged_in_alarm
            && conn.alarm.is_some_and(|alarm| alarm.contains("memory"))
    }
}

impl AmqpSession {
    /// Reports to queues whose reports were withheld, if their channels are below the limit again.
    pub(crate) fn report_withheld(&mut self, cx: &mut StepContext<'_>) {
        for withheld in std::mem::take(&mut self.conn.withheld) {
            let Some(channel) = self.channels.get(&withheld.channel) else {
                continue;
            };
            match channel.exceeds_alarm_limit(&self.conn) {
                true => self.conn.withheld.push(withheld),
                false => report(withheld.queue, withheld.consumer, &mut self.conn, cx),
            }
        }
    }
}

fn report(
    queue: QueueId,
    consumer: ConsumerId,
    conn: &mut ConnectionState,
    cx: &mut StepContext<'_>,
) {
    if let Some(subscription) = conn.subscriptions.get_mut(&consumer.0) {
        let written = std::mem::take(&mut subscription.written);
        cx.broker.received(queue, consumer, written.up_to());
    }
}
