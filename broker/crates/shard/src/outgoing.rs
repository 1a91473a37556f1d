//! What a turn has for other shards and nodes.

use crate::context::QueueLocation;
use crate::core::Core;
use crate::frame::Frame;
use crate::{Route, sessions};
use env::NodeId;
use metadata::{QueueId, SessionId};
use queue::{QueueEvent, QueueMessage};
use std::collections::BTreeMap;

/// A frame takes nothing more once it has this many bytes of messages. With the largest message on top, and with a consumer's
/// whole window, it stays well below what a link between nodes carries in one piece.
const FULL: usize = 8 << 20;

/// Gathered, so that a burst travels as one frame.
#[derive(Default)]
pub struct Outgoing {
    requests: BTreeMap<(QueueLocation, QueueId), Vec<QueueMessage>>,
    events: BTreeMap<((QueueLocation, u16), SessionId, QueueId), Vec<QueueEvent>>,
}

impl Outgoing {
    fn event(
        &mut self,
        to: (QueueLocation, u16),
        session: SessionId,
        queue: QueueId,
        event: QueueEvent,
    ) {
        self.events
            .entry((to, session, queue))
            .or_default()
            .push(event);
    }
}

impl Core {
    /// A session's side has something for a queue whose owner is believed to be on `node`.
    pub fn send_request(&mut self, node: NodeId, queue: QueueId, message: QueueMessage) {
        match self.ctx.locate(queue, node) {
            QueueLocation::Here => self.requests.push_back((queue, message)),
            elsewhere => self
                .outgoing
                .requests
                .entry((elsewhere, queue))
                .or_default()
                .push(message),
        }
    }

    /// A queue's word for a session, wherever that is.
    pub fn send_event(&mut self, session: SessionId, queue: QueueId, event: QueueEvent) {
        let shard = sessions::shard_of_session(session);
        if session.node != self.ctx.node() {
            return self.outgoing.event(
                (QueueLocation::Node(session.node), shard),
                session,
                queue,
                event,
            );
        }
        if session.incarnation != self.ctx.config().incarnation {
            return;
        }
        if shard == self.ctx.shard() {
            self.events
                .push_back((self.ctx.node(), session.number, queue, event));
        } else {
            self.outgoing
                .event((QueueLocation::Shard(shard), shard), session, queue, event);
        }
    }

    /// Sends what has gathered for other shards and nodes, a frame for each queue and direction, or some when it is much.
    pub fn flush_outgoing(&mut self) {
        if self.outgoing.requests.is_empty() && self.outgoing.events.is_empty() {
            return;
        }
        let mut outgoing = std::mem::take(&mut self.outgoing);
        for ((place, queue), all) in std::mem::take(&mut outgoing.requests) {
            for messages in pieces(all, QueueMessage::message_bytes) {
                let frame = Frame::ToQueue { queue, messages };
                self.send_to(place, Route::Owner(queue.0), &frame);
            }
        }
        for (((place, shard), session, queue), all) in std::mem::take(&mut outgoing.events) {
            for events in pieces(all, QueueEvent::message_bytes) {
                let frame = Frame::Events {
                    session,
                    queue,
                    events,
                };
                self.send_to(place, Route::Shard(shard), &frame);
            }
        }
        self.outgoing = outgoing;
    }

    fn send_to(&mut self, place: QueueLocation, route: Route, frame: &Frame) {
        match place {
            QueueLocation::Here => {}
            QueueLocation::Shard(shard) => self.ctx.send_to_shard(shard, frame),
            QueueLocation::Node(node) => self.ctx.send_to_peer(node, route, frame),
        }
    }
}

/// What goes into one frame each, in order.
fn pieces<T>(all: Vec<T>, bytes: fn(&T) -> usize) -> Vec<Vec<T>> {
    if all.iter().map(bytes).sum::<usize>() <= FULL {
        return vec![all];
    }
    let mut pieces = Vec::new();
    let (mut piece, mut len) = (Vec::new(), 0);
    for item in all {
        if len >= FULL {
            pieces.push(std::mem::take(&mut piece));
            len = 0;
        }
        len += bytes(&item);
        piece.push(item);
    }
    pieces.push(piece);
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_are_what_there_was_and_none_is_too_large(all in proptest::collection::vec(0usize..FULL, 1..40)) {
            let pieces = pieces(all.clone(), |len| *len);
            for piece in &pieces {
                let before_last: usize = piece.split_last().map_or(0, |(_, rest)| rest.iter().sum());
                prop_assert!(!piece.is_empty() && before_last < FULL);
            }
            prop_assert_eq!(pieces.concat(), all);
        }
    }
}
