//! A client that keeps its channel and has a queue for itself, from which it consumes and cancels at once: its consumers come and
//! go with deliveries on their way. What one of them loses does not come back before the channel ends.

use super::super::amqp::AmqpClient;
use super::super::client::Context;
use super::super::oracle::STEADY;
use super::Consumer;
use env::Rng;

/// Cancels on their way, of who comes and goes: as many as there may be, so that some are whenever a connection between nodes breaks.
const MOST_CANCELS: usize = 8;

impl Consumer {
    pub fn staying() -> Consumer {
        Consumer {
            stays: true,
            ..Consumer::default()
        }
    }

    /// What somebody who stays with one queue does.
    pub(super) fn come_and_go(
        &mut self,
        wire: &mut AmqpClient,
        cx: &mut Context<'_>,
    ) -> Result<(), String> {
        let oldest = self.held.keys().next().copied();
        match (cx.rng.below(10), oldest) {
            (0..4, Some(tag)) => self.ack(tag, wire, cx)?,
            (4..6, Some(tag)) => self.nack(tag, wire, cx)?,
            _ => {
                let steady = cx.oracle.queues.iter().position(|q| q.name == STEADY);
                while self.cancelling.len() < MOST_CANCELS {
                    let before = self.next;
                    self.consume(steady.unwrap_or_default(), wire, cx);
                    if self.next == before {
                        break;
                    }
                    self.cancel(self.next, wire);
                }
            }
        }
        Ok(())
    }
}
