//! Clients of AMQP 0.9.1 where both protocols meet, `amq.topic`: one publishes there, and one has a queue that is bound there.
//! What they say and get is in the account of the MQTT clients.

mod bound_queue_consumer;
mod topic_publisher;

pub use bound_queue_consumer::{BoundQueueConsumer, TAP, TAPS_QUEUE};
pub use topic_publisher::TopicPublisher;

/// The exchange.
const EXCHANGE: &str = "amq.topic";
/// The channel that each of them has.
const CHANNEL: u16 = 1;

/// A topic as a routing key: levels end with a dot there.
fn key_of(topic: &str) -> String {
    topic.replace('/', ".")
}
