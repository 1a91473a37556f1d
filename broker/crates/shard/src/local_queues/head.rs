//! The oldest ready message of queues that are led or live here.

use super::LocalQueues;
use super::reading::commands;
use super::replica::QueueReplica;
use conversion::View;
use message::Message;
use metadata::QueueId;
use queue::{HeadLookup, HeadMessage};

impl LocalQueues {
    /// The oldest ready message of a queue. None if the queue is not led here and does not live here.
    pub fn head(&mut self, queue: QueueId) -> HeadLookup {
        match self.queues.get_mut(&queue) {
            Some(QueueReplica::Classic(classic)) => classic.queue.head(describe),
            Some(QueueReplica::Quorum(quorum)) if quorum.leads() => {
                // Damage is reported when the queue itself reads the message.
                let mut damage = None;
                let mut read = commands(&self.host, queue, &mut damage);
                quorum.queue.head(&mut read, describe)
            }
            Some(QueueReplica::Stream(stream)) if stream.leads() => HeadLookup {
                message: stream.replica.oldest_message().map(|stored| HeadMessage {
                    received: u64::try_from(stored).unwrap_or(0),
                    timestamp: None,
                }),
                has_read: false,
            },
            Some(QueueReplica::Quorum(_) | QueueReplica::Stream(_)) | None => HeadLookup::default(),
        }
    }
}

/// Properties that cannot be decoded have no timestamp.
fn describe(message: &Message) -> HeadMessage {
    let created_ms = View::of(message).ok().and_then(|view| view.created_ms);
    let created_ms = created_ms.and_then(|ms| u64::try_from(ms).ok());
    HeadMessage {
        received: message.received().0,
        timestamp: created_ms.map(|ms| ms / 1_000),
    }
}
