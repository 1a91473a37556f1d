//! Messages that the client has completed but that the session's queue may deliver again: the queue
//! had not processed their settlement when the connection's consumer ended, and settlements of a
//! removed consumer are ignored.

use queue::MessageId;
use std::collections::VecDeque;

/// Maximum number of remembered messages, whatever the client's Receive Maximum is.
const MAX_MARKS: usize = 1024;

/// The identification of a message in the session's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CompletedMessage {
    /// The delivery number for the connection's consumer.
    pub id: u64,
    /// The number for all consumers.
    pub mark: Option<MessageId>,
}

/// The newest completed messages, oldest first. The queue processes settlements in order and has at
/// most Receive Maximum messages in flight, so the messages that it may deliver again are among the
/// newest Receive Maximum ones.
#[derive(Debug)]
pub(crate) struct CompletedMessages {
    marks: VecDeque<MessageId>,
    /// The largest Receive Maximum of any connection of the session, at most [`MAX_MARKS`].
    room: usize,
}

impl CompletedMessages {
    pub(crate) const NONE: CompletedMessages = CompletedMessages {
        marks: VecDeque::new(),
        room: 0,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.marks.is_empty()
    }

    /// Records a completed message. `quota` is the Receive Maximum of the connection.
    pub(crate) fn add(&mut self, mark: MessageId, quota: u16) {
        self.room = self.room.max(quota.into()).min(MAX_MARKS);
        while self.marks.len() >= self.room {
            self.marks.pop_front();
        }
        self.marks.push_back(mark);
    }

    pub(crate) fn marks(&self) -> impl Iterator<Item = MessageId> {
        self.marks.iter().copied()
    }

    /// The queue delivers a message again. Returns true if the client has completed it.
    pub(crate) fn take(&mut self, mark: MessageId) -> bool {
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

    /// The mark of a message with this number and publish time.
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
            acquired: 0,
            left: number,
            message: builder.build(0, []).expect("a message"),
            annotations: None,
        };
        delivery.mark().expect("it has a number")
    }

    #[test]
    fn message_is_identified_by_number_and_publish_time() {
        let mut completed = CompletedMessages::NONE;
        completed.add(mark(7, 100), 2);
        assert!(!completed.take(mark(7, 101)) && !completed.take(mark(8, 100)));
        assert!(completed.take(mark(7, 100)) && !completed.take(mark(7, 100)));
        assert!(completed.is_empty());
    }

    #[test]
    fn marks_are_limited_by_largest_receive_maximum() {
        let mut completed = CompletedMessages::NONE;
        for number in 1..=5 {
            completed.add(mark(number, 1), 3);
        }
        // A later connection has a smaller Receive Maximum.
        completed.add(mark(6, 1), 1);
        assert!(!completed.take(mark(3, 1)));
        assert!((4..=6).all(|number| completed.take(mark(number, 1))));
        for number in 1..=2000 {
            completed.add(mark(number, 1), u16::MAX);
        }
        assert_eq!(completed.marks.len(), MAX_MARKS);
        assert!(completed.take(mark(2000, 1)));
    }
}
