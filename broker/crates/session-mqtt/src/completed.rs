//! What a client is done with and its session's queue may give again: the queue had not heard of it when the connection's consumer
//! came to its end, and whoever settles for a consumer that is over settles nothing.

use queue::MessageId;
use std::collections::VecDeque;

/// Messages that are remembered at most, whatever the client's Receive Maximum is.
const MOST: usize = 1024;

/// A message from the session's queue, as that knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletedMessage {
    /// To the connection's consumer.
    pub id: u64,
    /// To all of them.
    pub mark: Option<MessageId>,
}

/// The last messages that the client was done with, the earliest first. A queue hears of them in their order and has no more out
/// than the client's Receive Maximum, so those that it has not heard of are among the last so many.
#[derive(Debug)]
pub(crate) struct CompletedMessages {
    marks: VecDeque<MessageId>,
    /// The largest Receive Maximum that a connection of the session had.
    room: usize,
}

impl CompletedMessages {
    pub const NONE: CompletedMessages = CompletedMessages {
        marks: VecDeque::new(),
        room: 0,
    };

    pub fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// The client is done with one, on a connection that may have so many unacknowledged.
    pub fn add(&mut self, mark: MessageId, quota: u16) {
        self.room = self.room.max(quota.into()).min(MOST);
        while self.marks.len() >= self.room {
            self.marks.pop_front();
        }
        self.marks.push_back(mark);
    }

    pub fn marks(&self) -> impl Iterator<Item = MessageId> {
        self.marks.iter().copied()
    }

    /// The queue gives one again: whether the client was done with it.
    pub fn take(&mut self, mark: MessageId) -> bool {
        let at = self.marks.iter().position(|known| *known == mark);
        at.and_then(|at| self.marks.remove(at)).is_some()
    }
}

impl Default for CompletedMessages {
    fn default() -> CompletedMessages {
        CompletedMessages::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::WallTime;
    use message::{MessageBuilder, Protocol};

    /// Of a message with this number, published at this time.
    fn mark(number: u64, received: u64) -> MessageId {
        let builder = MessageBuilder {
            protocol: Protocol::Mqtt,
            durable: true,
            priority: None,
            ttl_ms: None,
            received: WallTime(received),
            exchange: "",
            routing_keys: &[],
            properties: &[],
        };
        let delivery = queue::Delivery {
            id: 1,
            redelivered: true,
            attempts: None,
            left: number,
            message: builder.build(0, []).expect("a message"),
        };
        delivery.mark().expect("it has a number")
    }

    #[test]
    fn a_message_is_known_by_its_number_and_its_time() {
        let mut completed = CompletedMessages::NONE;
        completed.add(mark(7, 100), 2);
        assert!(!completed.take(mark(7, 101)) && !completed.take(mark(8, 100)));
        assert!(completed.take(mark(7, 100)) && !completed.take(mark(7, 100)));
        assert!(completed.is_empty());
    }

    #[test]
    fn as_many_are_remembered_as_a_connection_could_have_open() {
        let mut completed = CompletedMessages::NONE;
        for number in 1..=5 {
            completed.add(mark(number, 1), 3);
        }
        // A later connection has fewer.
        completed.add(mark(6, 1), 1);
        assert!(!completed.take(mark(3, 1)));
        assert!((4..=6).all(|number| completed.take(mark(number, 1))));
        for number in 1..=2000 {
            completed.add(mark(number, 1), u16::MAX);
        }
        assert_eq!(completed.marks.len(), MOST);
        assert!(completed.take(mark(2000, 1)));
    }
}
