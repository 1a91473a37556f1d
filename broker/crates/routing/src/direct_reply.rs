//! Names of direct reply-to, which are routing keys of the default exchange in every protocol.

/// The pseudo queue that clients of AMQP 0.9.1 consume from and put into the reply-to property of a request.
pub const DIRECT_REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// Prefix of the names of the queues that implement it.
pub const DIRECT_REPLY_PREFIX: &str = "amq.rabbitmq.reply-to.";

/// Returns true for the pseudo queue and for the queues that implement it. Clients must not use those by name.
pub fn is_direct_reply_name(name: &str) -> bool {
    name.starts_with(DIRECT_REPLY_TO)
}
