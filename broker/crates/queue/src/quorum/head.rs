//! The oldest ready message of a quorum queue.

use super::effects::{CommandReader, LogLocation, LogRead, ReadError};
use super::leader::QuorumQueue;
use super::machine::Machine;
use crate::{DescribeMessage, HeadLookup, HeadMessage};

/// A message that was read.
#[derive(Clone, Copy, Debug)]
pub(super) struct KnownHead {
    at: LogLocation,
    /// `None`: the message is lost.
    message: Option<HeadMessage>,
}

impl QuorumQueue {
    /// The oldest ready message, as far as this member has applied its log; for the leader. `read` returns the command of a
    /// log entry. It is called if another message is the oldest than in the call before.
    pub fn head(
        &mut self,
        read: &mut dyn FnMut(u64) -> LogRead,
        describe: DescribeMessage,
    ) -> HeadLookup {
        self.machine.head(&mut self.head, read, describe)
    }
}

impl Machine {
    /// See [`QuorumQueue::head`]. `known`: from the call before.
    pub(super) fn head(
        &self,
        known: &mut Option<Box<KnownHead>>,
        read: &mut dyn FnMut(u64) -> LogRead,
        describe: DescribeMessage,
    ) -> HeadLookup {
        let Some(at) = self.ready.oldest() else {
            *known = None;
            return HeadLookup::default();
        };
        if let Some(known) = known
            && known.at == at
        {
            return HeadLookup {
                message: known.message,
                has_read: false,
            };
        }
        let message = match CommandReader::new(read).message(at) {
            Ok(message) => Some(describe(&message)),
            // Reported when it is delivered.
            Err(ReadError::Lost(_)) => None,
            Err(ReadError::Shortage) => {
                return HeadLookup {
                    message: None,
                    has_read: true,
                };
            }
        };
        *known = Some(Box::new(KnownHead { at, message }));
        HeadLookup {
            message,
            has_read: true,
        }
    }
}
