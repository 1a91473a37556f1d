//! Names of direct reply-to, which RabbitMQ's clients of every protocol share.

/// The pseudo queue that clients consume from and put into the reply-to property of a request.
pub const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Returns true for the pseudo queue and for the queues that implement it. Clients must not use those by name.
pub fn is_direct_reply_name(name: &str) -> bool {
    name.starts_with(DIRECT_REPLY_TO)
}
