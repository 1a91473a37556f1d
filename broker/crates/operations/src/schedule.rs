//! Publishes with a delay.

use crate::error::{OperationResult, refuse};
use message::Table;
use metadata::{ExchangeRecord, QueueId, Tree};
use routing::ExchangeType;

/// The header with a delay in milliseconds that a delayed message exchange reads.
const DELAY: &str = "x-delay";

/// Returns true if a message that is published to this exchange (`None`: the default exchange) may have a
/// [delay](delay_of).
#[inline]
pub fn reads_delays(exchange: Option<&ExchangeRecord>) -> bool {
    exchange.is_some_and(|exchange| *exchange.kind == *ExchangeType::DelayedMessage.name())
}

/// Returns the delay in milliseconds of a message with these headers that is published to a delayed message exchange.
/// `None`: the message is delivered at once.
///
/// A delay that is not positive or not a number is none, as for RabbitMQ's plugin. A number as text is one, because the
/// user properties of MQTT are text.
pub fn delay_of(headers: &Table) -> Option<u64> {
    let delay = headers.get(DELAY)?;
    let delay = match delay.as_str() {
        Some(text) => text.parse().ok()?,
        None => delay.as_integer()?,
    };
    u64::try_from(delay).ok().filter(|delay| *delay > 0)
}

/// Checks that all queues of a message with a delay can hold it back.
///
/// # Errors
///
/// The first queue that cannot.
pub fn check_scheduled(tree: &Tree, queues: &[QueueId]) -> OperationResult {
    let mut records = queues.iter().filter_map(|id| tree.queue_by_id(*id));
    match records.find(|queue| !queue.kind.descriptor().scheduled_delivery) {
        Some(queue) => refuse!(
            NotImplemented,
            "queue '{}' in vhost '{}' of type {} cannot hold messages back, and this one has a delay: declare it with \
             x-queue-type=quorum",
            queue.name,
            queue.vhost,
            queue.kind.name()
        ),
        None => Ok(()),
    }
}
