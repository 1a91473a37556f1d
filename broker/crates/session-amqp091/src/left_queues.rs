//! Auto-delete queues that consumers have left. Whoever left one does not see it again: what it asked for is answered when
//! the queue is gone, or has other consumers.

use crate::connection_state::{ConnectionState, StepContext};
use metadata::{Change, QueueRecord};
use queue::{QueueId, QueueReply, RequestBody};
use session::Broker;
use std::sync::Arc;

/// They are looked at one after the other.
#[derive(Debug, Default)]
pub(crate) struct LeftQueues(Vec<Arc<QueueRecord>>);

impl LeftQueues {
    /// Those of some queues that are auto-delete.
    pub fn of(queues: impl Iterator<Item = QueueId>, broker: &dyn Broker) -> LeftQueues {
        let tree = broker.tree();
        let there = queues.filter_map(|q| tree.queue_by_id(q));
        let mut left: Vec<_> = there.filter(|r| r.auto_delete).cloned().collect();
        // Each once, and in an order that is nobody's chance.
        left.sort_unstable_by_key(|r| r.id);
        left.dedup_by_key(|r| r.id);
        LeftQueues(left)
    }

    /// Asks the next how many consumers it has, to be answered to a channel (0: the connection). False: there is none.
    pub fn ask(&self, channel: u16, link: &mut ConnectionState, cx: &mut StepContext<'_>) -> bool {
        let Some(record) = self.0.last() else {
            return false;
        };
        link.ask(cx, channel, record.id, RequestBody::Stat);
        true
    }

    /// The answer of the queue that was asked: the change that takes it away when nobody consumes from it. A queue that
    /// cannot answer is seen to by its owner.
    pub fn answered(&mut self, answer: &QueueReply) -> Option<Change> {
        let record = self.0.pop()?;
        matches!(answer, QueueReply::Count { consumers: 0, .. }).then(|| Change::DeleteQueue {
            vhost: record.vhost.clone(),
            name: record.name.clone(),
            id: Some(record.id),
        })
    }
}
