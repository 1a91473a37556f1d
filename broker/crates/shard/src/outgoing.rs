//! Requests and events between sessions and queues that are on their way in this turn.

use crate::context::{Context, QueueLocation};
use crate::frame::Frame;
use crate::{Route, sessions};
use env::NodeId;
use metadata::features::CONSUMER_ACTIVITY;
use metadata::{QueueId, SessionId, Tree};
use queue::cursor::{CursorEvent, CursorRequest, CursorSend};
use queue::{QueueEvent, QueueMessage};
use std::collections::{BTreeMap, VecDeque};

/// A frame takes nothing more once it has this many bytes of messages. With the largest message on top, and with a consumer's
/// whole window, it stays well below what a link between nodes carries in one piece.
const FULL: usize = 8 << 20;

/// What is for other shards and nodes is gathered, so that a burst travels as one frame.
#[derive(Default)]
pub(crate) struct Outgoing {
    /// From sessions to queues of this shard.
    pub(super) local_requests: VecDeque<(QueueId, QueueMessage)>,
    /// To sessions of this shard: the node of the queue's owner, the session and the queue.
    pub(super) local_events: VecDeque<(NodeId, u64, QueueId, QueueEvent)>,
    /// Requests of cursors to replicas of this shard.
    pub(super) local_cursors: VecDeque<(QueueId, SessionId, CursorRequest)>,
    /// To cursors of sessions of this shard: the node of the replica, the session and the queue.
    pub(super) local_cursor_events: VecDeque<(NodeId, u64, QueueId, CursorEvent)>,
    cursors: BTreeMap<(QueueLocation, SessionId, QueueId), Vec<CursorRequest>>,
    cursor_events: BTreeMap<((QueueLocation, u16), SessionId, QueueId), Vec<CursorEvent>>,
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

impl Outgoing {
    /// A request of a session of this shard to a queue whose owner is believed to be on `node`.
    pub(crate) fn send_request(
        &mut self,
        ctx: &Context,
        node: NodeId,
        queue: QueueId,
        message: QueueMessage,
    ) {
        match ctx.locate(queue, node) {
            QueueLocation::Here => self.local_requests.push_back((queue, message)),
            elsewhere => {
                let requests = self.requests.entry((elsewhere, queue));
                requests.or_default().push(message);
            }
        }
    }

    /// A request of a cursor of a session of this shard to a replica.
    pub(crate) fn send_cursor(
        &mut self,
        ctx: &Context,
        session: SessionId,
        queue: QueueId,
        send: CursorSend,
    ) {
        let CursorSend { to, request } = send;
        match ctx.locate(queue, to) {
            QueueLocation::Here => self.local_cursors.push_back((queue, session, request)),
            elsewhere => {
                let requests = self.cursors.entry((elsewhere, session, queue));
                requests.or_default().push(request);
            }
        }
    }

    /// An event of a replica of this shard for a cursor of a session anywhere.
    pub(crate) fn send_cursor_event(
        &mut self,
        ctx: &Context,
        session: SessionId,
        queue: QueueId,
        event: CursorEvent,
    ) {
        let shard = sessions::shard_of_session(session);
        let location = if session.node != ctx.node() {
            QueueLocation::Node(session.node)
        } else if session.incarnation != ctx.config().incarnation {
            return;
        } else if shard == ctx.shard() {
            let event = (ctx.node(), session.number, queue, event);
            return self.local_cursor_events.push_back(event);
        } else {
            QueueLocation::Shard(shard)
        };
        self.cursor_events
            .entry(((location, shard), session, queue))
            .or_default()
            .push(event);
    }

    /// An event of a queue of this shard for a session anywhere.
    pub(crate) fn send_event(
        &mut self,
        tree: &Tree,
        ctx: &Context,
        session: SessionId,
        queue: QueueId,
        event: QueueEvent,
    ) {
        let shard = sessions::shard_of_session(session);
        if session.node != ctx.node() {
            // A queue ends no consumer while its cluster lacks the flag for the event `TimedOut`.
            if matches!(event, QueueEvent::Activity { .. })
                && !tree.feature_enabled(CONSUMER_ACTIVITY.name)
            {
                // A node of an older version could not read it.
                return;
            }
            return self.event(
                (QueueLocation::Node(session.node), shard),
                session,
                queue,
                event,
            );
        }
        if session.incarnation != ctx.config().incarnation {
            return;
        }
        if shard == ctx.shard() {
            self.local_events
                .push_back((ctx.node(), session.number, queue, event));
        } else {
            self.event((QueueLocation::Shard(shard), shard), session, queue, event);
        }
    }

    /// Sends what has gathered for other shards and nodes: a frame for each queue and direction, or several if it is much.
    #[inline]
    pub(crate) fn flush(&mut self, ctx: &mut Context) {
        // To take an empty map out and drop it costs instructions in every turn.
        if !self.requests.is_empty() || !self.events.is_empty() {
            self.send_frames(ctx);
        }
        if !self.cursors.is_empty() || !self.cursor_events.is_empty() {
            self.send_cursor_frames(ctx);
        }
    }

    #[cold]
    fn send_cursor_frames(&mut self, ctx: &mut Context) {
        for ((location, session, queue), requests) in std::mem::take(&mut self.cursors) {
            let frame = Frame::CursorRequests {
                session,
                queue,
                requests,
            };
            send_to(ctx, location, Route::Owner(queue.0), frame);
        }
        for (((location, shard), session, queue), all) in std::mem::take(&mut self.cursor_events) {
            for events in pieces(all, CursorEvent::message_bytes) {
                let frame = Frame::CursorEvents {
                    session,
                    queue,
                    events,
                };
                send_to(ctx, location, Route::Shard(shard), frame);
            }
        }
    }

    fn send_frames(&mut self, ctx: &mut Context) {
        for ((location, queue), all) in std::mem::take(&mut self.requests) {
            for messages in pieces(all, QueueMessage::message_bytes) {
                let frame = Frame::ToQueue { queue, messages };
                send_to(ctx, location, Route::Owner(queue.0), frame);
            }
        }
        for (((location, shard), session, queue), all) in std::mem::take(&mut self.events) {
            for events in pieces(all, QueueEvent::message_bytes) {
                let frame = Frame::Events {
                    session,
                    queue,
                    events,
                };
                send_to(ctx, location, Route::Shard(shard), frame);
            }
        }
    }
}

fn send_to(ctx: &mut Context, location: QueueLocation, route: Route, frame: Frame) {
    match location {
        QueueLocation::Here => {}
        QueueLocation::Shard(shard) => ctx.send_to_shard(shard, frame),
        QueueLocation::Node(node) => ctx.send_to_peer(node, route, &frame),
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
