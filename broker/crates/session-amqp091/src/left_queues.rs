//! Auto-delete queues whose consumers ended. The method that ended them is answered after the queue
//! is deleted or turned out to have other consumers, so that its client does not see the queue any
//! more.

use crate::connection_state::{ConnectionState, StepContext};
use metadata::{Change, QueueRecord};
use queue::{QueueId, QueueReply, RequestBody};
use session::Broker;
use std::sync::Arc;

/// The queues to check, one after the other.
#[derive(Debug, Default)]
pub(crate) struct LeftQueues(Vec<Arc<QueueRecord>>);

impl LeftQueues {
    /// Selects the auto-delete queues.
    pub(crate) fn of(queues: impl Iterator<Item = QueueId>, broker: &dyn Broker) -> LeftQueues {
        let tree = broker.tree();
        let records = queues.filter_map(|q| tree.queue_by_id(q));
        let mut left: Vec<_> = records.filter(|r| r.auto_delete).cloned().collect();
        // Each queue once, in a deterministic order.
        left.sort_unstable_by_key(|r| r.id);
        left.dedup_by_key(|r| r.id);
        LeftQueues(left)
    }

    /// Asks the next queue for its number of consumers. The answer goes to `channel` (0: the
    /// connection). Returns false if no queue is left.
    pub(crate) fn send_request(
        &self,
        channel: u16,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> bool {
        let Some(record) = self.0.last() else {
            return false;
        };
        conn.send_request(cx, channel, record.id, RequestBody::Stat);
        true
    }

    /// Handles the answer of the queue that was asked. Returns the change that deletes the queue if
    /// it has no consumers. If a queue cannot answer, its owner deletes it later.
    pub(crate) fn record_answer(&mut self, answer: &QueueReply) -> Option<Change> {
        let record = self.0.pop()?;
        matches!(answer, QueueReply::Count { consumers: 0, .. }).then(|| Change::DeleteQueue {
            vhost: record.vhost.clone(),
            name: record.name.clone(),
            id: Some(record.id),
        })
    }
}
