//! The queues behind direct reply-to, which are the same for every protocol.
//!
//! A consumer of replies has an exclusive queue with an unguessable name. Requests carry that name, and the default
//! exchange routes replies to it from anywhere in the cluster. The queue is deleted with its consumer.

use crate::Caller;
use crate::names::generated_name;
use message::Table;
use metadata::{QueueId, QueueRecord, QueueType};
use routing::DIRECT_REPLY_PREFIX;

impl Caller<'_> {
    /// A new queue for replies, without its members. Needs no permission.
    ///
    /// # Panics
    ///
    /// If debug assertions are enabled and the caller has no session.
    pub fn direct_reply_queue(&self, random: [u64; 4]) -> QueueRecord {
        debug_assert!(self.session.is_some(), "an exclusive queue has an owner");
        // The name has two parts like RabbitMQ's, because test suites of clients match that
        // pattern.
        let [a, b, c, d] = random;
        let name = generated_name(DIRECT_REPLY_PREFIX, [a, b]) + ".";
        QueueRecord {
            id: QueueId::default(),
            vhost: self.vhost.clone(),
            name: (generated_name(&name, [c, d]) + "==").into(),
            kind: QueueType::default(),
            durable: false,
            auto_delete: false,
            exclusive: self.session,
            arguments: Table::default(),
            members: Vec::new(),
            declared_by: self.user.into(),
        }
    }
}
