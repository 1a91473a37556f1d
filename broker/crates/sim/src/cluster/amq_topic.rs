//! AMQP 0.9.1 clients of `amq.topic`, where both protocols meet: one publishes there, and one has a queue with a
//! binding there. The oracle of the MQTT clients checks both.

mod bound_queue_consumer;
mod topic_publisher;

pub(super) use bound_queue_consumer::{BOUND_CONSUMER, BOUND_QUEUE, BoundQueueConsumer};
pub(super) use topic_publisher::TopicPublisher;

/// Name of the exchange.
const EXCHANGE: &str = "amq.topic";
/// The channel that each client uses.
const CHANNEL: u16 = 1;

/// The routing key of a topic: its levels are separated by dots.
fn routing_key_of(topic: &str) -> String {
    topic.replace('/', ".")
}
