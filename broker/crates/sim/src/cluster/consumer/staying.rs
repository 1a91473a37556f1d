//! A client that keeps its channel and has a queue of its own. It starts consumers there and cancels them at once, with
//! deliveries on the way. A delivery that one of them loses does not return before the channel ends.

use super::super::amqp::AmqpClient;
use super::super::client::ClientContext;
use super::super::oracle::STEADY;
use super::Consumer;
use env::Rng;

/// Maximum number of pending cancel requests. It is always used up, so that some are pending whenever a connection
/// between nodes breaks.
const MAX_PENDING_CANCELS: usize = 8;

impl Consumer {
    pub(crate) fn with_own_queue() -> Consumer {
        Consumer {
            keeps_channel: true,
            ..Consumer::default()
        }
    }

    /// Takes an action of a client with a queue of its own.
    pub(super) fn consume_and_cancel(
        &mut self,
        wire: &mut AmqpClient,
        cx: &mut ClientContext<'_>,
    ) -> Result<(), String> {
        let oldest = self.deliveries.keys().next().copied();
        match (cx.rng.below(10), oldest) {
            (0..4, Some(tag)) => self.ack(tag, wire, cx)?,
            (4..6, Some(tag)) => self.nack(tag, wire, cx)?,
            _ => {
                let steady = cx.oracle.queues.iter().position(|q| q.name == STEADY);
                while self.cancelling.len() < MAX_PENDING_CANCELS {
                    let before = self.last_consumer;
                    self.consume(steady.unwrap_or_default(), wire, cx);
                    if self.last_consumer == before {
                        break;
                    }
                    self.cancel(self.last_consumer, wire);
                }
            }
        }
        Ok(())
    }
}
