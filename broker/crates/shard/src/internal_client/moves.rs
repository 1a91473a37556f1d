//! Messages that the control plane takes out of a queue by their positions: to delete them, or to publish them elsewhere.
//!
//! Each message is taken like one of a consumer, published, and acknowledged once its targets have confirmed it. So it is never
//! lost, and a consumer cannot get it meanwhile. The requester is told that a message was moved once the queue has applied the
//! acknowledgement. If this node ends before that, the queue has the message again, and the target may have a copy. If the
//! source or a target changes its leader, their clients send the requests again.

use super::{InternalClient, InternalClientOutput, too_many};
use crate::context::Context;
use control::{
    ListedMessage, MAX_MOVED, MoveOutcome, MoveRequest, MoveTarget, PublishResult, Reply,
};
use env::Time;
use message::Message;
use metadata::features::MESSAGE_MOVES;
use metadata::{ChangeError, Name, QueueId, Tree};
use queue::{ConsumerId, Delivery, PositionedGet, QueueReply, RequestBody, SettlementOutcome};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A requester gets its answer after this time at the latest.
const WITHIN: Duration = Duration::from_secs(3);
/// Maximum number of pending moves.
const MAX_MOVES: usize = 16;
/// Messages of one move that are taken and not settled, and bytes of their bodies after which no further one is taken.
const WINDOW: usize = 64;
const WINDOW_BYTES: u64 = 4 << 20;

/// A message that is taken, or was asked for.
struct OpenMessage {
    /// Number of the request to the source.
    seq: u64,
    /// Bytes of its body.
    bytes: u64,
    /// When it becomes ready in its queue, if it is delayed there.
    due_at: Option<u64>,
    /// The message is out of the queue and on its way to its targets.
    is_taken: bool,
}

struct PendingMove {
    queue: QueueId,
    vhost: Name,
    user: Name,
    target: MoveTarget,
    waiting: VecDeque<ListedMessage>,
    open: BTreeMap<ConsumerId, OpenMessage>,
    /// Messages that this node has acknowledged. The queue may not have applied it yet, and has them again if this node ends now.
    unconfirmed: u64,
    /// Number of the request that the queue answers once it has applied all acknowledgements, and 0 until the request has one.
    confirming: Option<u64>,
    outcome: MoveOutcome,
    /// No further message is taken.
    has_ended: bool,
    until: Time,
    /// `None`: answered.
    reply: Option<Reply<Result<MoveOutcome, ChangeError>>>,
}

/// The message of a move for which a publish is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MovedMessage {
    token: u64,
    consumer: ConsumerId,
}

/// A message to be published for a move.
pub(crate) struct MovePublish {
    pub moved: MovedMessage,
    /// The queue that it comes from.
    pub source: QueueId,
    pub vhost: Name,
    pub user: Name,
    pub message: Message,
    /// When it would become ready in its queue, in milliseconds of the wall clock. `None`: it was ready.
    pub due_at: Option<u64>,
    /// The queue that gets it. `None`: its exchange routes it.
    pub to: Option<QueueId>,
}

/// Where a message of a move goes.
enum Destination {
    Nowhere,
    Publish(Message, Option<QueueId>),
    Stays(fn(&mut MoveOutcome) -> &mut u64),
    Fails(String),
}

#[derive(Default)]
pub(crate) struct Moves(BTreeMap<u64, PendingMove>);

impl Moves {
    pub(super) fn wake_at(&self) -> Option<Time> {
        let waiting = self.0.values().filter(|m| m.reply.is_some());
        waiting.map(|m| m.until).min()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The move that has asked a queue for a message with this consumer.
    fn find(&self, queue: QueueId, consumer: ConsumerId) -> Option<u64> {
        let has = |m: &PendingMove| m.queue == queue && m.open.contains_key(&consumer);
        self.0.iter().find(|(_, m)| has(m)).map(|(token, _)| *token)
    }

    /// The move that waits for the answer to a request, and the consumer of the request.
    fn find_request(&self, queue: QueueId, seq: u64) -> Option<MovedMessage> {
        let of_queue = self.0.iter().filter(|(_, m)| m.queue == queue);
        of_queue
            .filter_map(|(token, m)| {
                let mut open = m.open.iter();
                let (consumer, _) = open.find(|(_, o)| o.seq == seq && !o.is_taken)?;
                Some(MovedMessage {
                    token: *token,
                    consumer: *consumer,
                })
            })
            .next()
    }
}

impl InternalClient {
    pub(crate) fn begin_move(
        &mut self,
        ctx: &Context,
        tree: &Tree,
        request: MoveRequest,
        reply: Reply<Result<MoveOutcome, ChangeError>>,
    ) {
        let Some(record) = tree.queue_by_id(request.queue) else {
            return reply(Err(ChangeError::NotFound("the queue is gone".into())));
        };
        if !tree.feature_enabled(MESSAGE_MOVES.name) {
            let text = format!(
                "messages of queue '{}' cannot be taken by position: feature flag '{}' is not enabled; enable it once all \
                 nodes run this version",
                record.name, MESSAGE_MOVES.name
            );
            return reply(Err(ChangeError::PreconditionFailed(text)));
        }
        if self.moves.0.len() >= MAX_MOVES {
            return reply(Err(too_many()));
        }
        let token = self.tag();
        let mut waiting: VecDeque<_> = request.messages.into();
        waiting.truncate(MAX_MOVED);
        let pending = PendingMove {
            queue: request.queue,
            vhost: record.vhost.clone(),
            user: request.user,
            target: request.target,
            waiting,
            open: BTreeMap::new(),
            unconfirmed: 0,
            confirming: None,
            outcome: MoveOutcome::default(),
            has_ended: false,
            until: ctx.now() + WITHIN,
            reply: Some(reply),
        };
        self.moves.0.insert(token, pending);
        self.advance_move(token);
    }

    /// Asks for further messages of a move, or ends it.
    fn advance_move(&mut self, token: u64) {
        let Some(pending) = self.moves.0.get_mut(&token) else {
            return;
        };
        let mut bytes: u64 = pending.open.values().map(|open| open.bytes).sum();
        while !pending.has_ended
            && bytes < WINDOW_BYTES
            && pending.open.len() < WINDOW
            && let Some(listed) = pending.waiting.pop_front()
        {
            bytes = bytes.saturating_add(listed.body_bytes);
            self.next_consumer += 1;
            let consumer = ConsumerId(self.next_consumer);
            let open = OpenMessage {
                seq: 0,
                bytes: listed.body_bytes,
                due_at: listed.due_at,
                is_taken: false,
            };
            pending.open.insert(consumer, open);
            let get = PositionedGet {
                consumer,
                no_ack: false,
                at: listed.at,
            };
            self.outputs.push_back(InternalClientOutput::Request {
                queue: pending.queue,
                body: RequestBody::GetAt(Box::new(get)),
                get: Some(token),
            });
        }
        if !pending.open.is_empty() || pending.confirming.is_some() {
            return;
        }
        if pending.unconfirmed > 0 && pending.reply.is_some() {
            // Its number follows.
            pending.confirming = Some(0);
            self.outputs.push_back(InternalClientOutput::Request {
                queue: pending.queue,
                body: RequestBody::Stat,
                get: Some(token),
            });
            return;
        }
        self.answer_move(token);
        self.moves.0.remove(&token);
    }

    fn answer_move(&mut self, token: u64) {
        let Some(pending) = self.moves.0.get_mut(&token) else {
            return;
        };
        let Some(reply) = pending.reply.take() else {
            return;
        };
        let mut outcome = std::mem::take(&mut pending.outcome);
        let taken = pending.open.values().filter(|open| open.is_taken);
        let taken = taken.count() as u64;
        outcome.pending = taken + pending.unconfirmed;
        outcome.untried = (pending.waiting.len() + pending.open.len()) as u64 - taken;
        pending.waiting.clear();
        reply(Ok(outcome));
    }

    /// The request for a message of a move has this number.
    pub(super) fn note_move_request(&mut self, token: u64, consumer: ConsumerId, seq: u64) {
        let pending = self.moves.0.get_mut(&token);
        if let Some(open) = pending.and_then(|m| m.open.get_mut(&consumer)) {
            open.seq = seq;
        }
    }

    /// The request that waits for the acknowledgements of a move has this number.
    pub(super) fn note_confirming(&mut self, token: u64, seq: u64) {
        if let Some(pending) = self.moves.0.get_mut(&token) {
            pending.confirming = Some(seq);
        }
    }

    /// The queue has applied the acknowledgements of a move. Returns false if no move has sent the request.
    fn handle_confirmed(&mut self, queue: QueueId, seq: u64, answer: &QueueReply) -> bool {
        let is_asked = |m: &PendingMove| m.queue == queue && m.confirming == Some(seq);
        let mut moves = self.moves.0.iter_mut();
        let Some((token, pending)) = moves.find(|(_, m)| is_asked(m)) else {
            return false;
        };
        let token = *token;
        match answer {
            QueueReply::Refused { text, .. } => pending.end(text.clone()),
            _ => pending.outcome.moved += std::mem::take(&mut pending.unconfirmed),
        }
        self.answer_move(token);
        self.moves.0.remove(&token);
        true
    }

    /// The queue has no such message, or refuses the request. Returns false if no move has sent the request.
    pub(super) fn handle_move_answer(
        &mut self,
        queue: QueueId,
        seq: u64,
        answer: &QueueReply,
    ) -> bool {
        if self.handle_confirmed(queue, seq, answer) {
            return true;
        }
        let Some(MovedMessage { token, consumer }) = self.moves.find_request(queue, seq) else {
            return false;
        };
        if let Some(pending) = self.moves.0.get_mut(&token) {
            pending.open.remove(&consumer);
            match answer {
                QueueReply::Refused { text, .. } => {
                    pending.outcome.untried += 1;
                    pending.end(text.clone());
                }
                _ => pending.outcome.missing += 1,
            }
        }
        self.advance_move(token);
        true
    }

    /// A message of a move was taken. Returns the delivery if no move has asked for it.
    pub(super) fn handle_move_delivery(
        &mut self,
        tree: &Tree,
        queue: QueueId,
        consumer: ConsumerId,
        delivery: Delivery,
    ) -> Option<Delivery> {
        let Some(token) = self.moves.find(queue, consumer) else {
            return Some(delivery);
        };
        let user = self.moves.0.get(&token).map(|m| m.user.clone());
        if let Some(user) = user {
            self.report_delivery(tree, queue, &user, false, &delivery);
        }
        let Some(pending) = self.moves.0.get_mut(&token) else {
            return Some(delivery);
        };
        let destination = match pending.reply.is_some() && !pending.has_ended {
            true => pending.destination(tree, &delivery.message),
            // Its requester has got an answer already, or an earlier message was refused.
            false => Destination::Stays(|outcome| &mut outcome.untried),
        };
        let moved = MovedMessage { token, consumer };
        match destination {
            Destination::Publish(message, to) => {
                let open = pending.open.get_mut(&consumer);
                let due_at = open.and_then(|open| {
                    open.is_taken = true;
                    open.due_at
                });
                let publish = MovePublish {
                    moved,
                    source: queue,
                    vhost: pending.vhost.clone(),
                    user: pending.user.clone(),
                    message,
                    due_at,
                    to,
                };
                self.outputs
                    .push_back(InternalClientOutput::Move(Box::new(publish)));
            }
            Destination::Nowhere => {
                self.end_accepted(moved);
            }
            Destination::Stays(count) => {
                self.end_returned(moved, count);
            }
            Destination::Fails(error) => {
                pending.end(error);
                self.end_returned(moved, |o| &mut o.refused);
            }
        }
        None
    }

    /// Acknowledges a message of a move. It counts as moved once the queue has applied that.
    fn end_accepted(&mut self, MovedMessage { token, consumer }: MovedMessage) {
        let Some(pending) = self.moves.0.get_mut(&token) else {
            return;
        };
        pending.open.remove(&consumer);
        pending.unconfirmed += 1;
        let queue = pending.queue;
        self.settle(queue, consumer, SettlementOutcome::Accepted, 1);
        self.advance_move(token);
    }

    /// Returns a message of a move to its queue, and counts it.
    fn end_returned(
        &mut self,
        MovedMessage { token, consumer }: MovedMessage,
        count: fn(&mut MoveOutcome) -> &mut u64,
    ) {
        let Some(pending) = self.moves.0.get_mut(&token) else {
            return;
        };
        pending.open.remove(&consumer);
        *count(&mut pending.outcome) += 1;
        let queue = pending.queue;
        self.settle(queue, consumer, SettlementOutcome::Released, 1);
        self.advance_move(token);
    }

    /// All targets of a message have answered, or it could not be published.
    pub(super) fn handle_moved(
        &mut self,
        moved: MovedMessage,
        result: Result<PublishResult, ChangeError>,
    ) {
        type Count = fn(&mut MoveOutcome) -> &mut u64;
        let (error, count): (Option<String>, Count) = match result {
            Ok(PublishResult {
                routed: true,
                taken: true,
            }) => return self.end_accepted(moved),
            Ok(PublishResult { routed: false, .. }) => (None, |o| &mut o.unroutable),
            Ok(PublishResult { taken: false, .. }) => {
                let text =
                    "a target queue did not take the message: it is full, or it cannot be reached";
                (Some(text.into()), |o| &mut o.refused)
            }
            Err(error) => (Some(error.to_string()), |o| &mut o.refused),
        };
        if let Some(pending) = self.moves.0.get_mut(&moved.token)
            && let Some(error) = error
        {
            pending.end(error);
        }
        self.end_returned(moved, count);
    }

    /// Answers the requesters whose time is up. Messages on their way are settled later.
    pub(super) fn tick_moves(&mut self, now: Time) {
        let is_late = |m: &PendingMove| m.reply.is_some() && now >= m.until;
        let late = self.moves.0.iter().filter(|(_, m)| is_late(m));
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            if let Some(pending) = self.moves.0.get_mut(&token) {
                pending.end("not every queue answered in time".into());
            }
            self.answer_move(token);
        }
    }

    /// Ends the moves out of a queue that is gone. Its messages that are on their way may arrive.
    pub(super) fn end_moves_of(&mut self, queue: QueueId) {
        let of_queue = self.moves.0.iter().filter(|(_, m)| m.queue == queue);
        let ended: Vec<u64> = of_queue.map(|(token, _)| *token).collect();
        for token in ended {
            if let Some(pending) = self.moves.0.get_mut(&token) {
                pending.end("the queue is gone".into());
            }
            self.answer_move(token);
            self.moves.0.remove(&token);
        }
    }
}

impl PendingMove {
    fn end(&mut self, error: String) {
        self.has_ended = true;
        self.outcome.error.get_or_insert(error);
    }

    fn destination(&self, tree: &Tree, message: &Message) -> Destination {
        let publish = |message: Result<Message, _>, to| match message {
            Ok(message) => Destination::Publish(message, to),
            Err::<_, message::DecodeError>(error) => Destination::Fails(error.to_string()),
        };
        match &self.target {
            MoveTarget::Nothing => Destination::Nowhere,
            MoveTarget::Exchange {
                exchange,
                routing_key,
            } => {
                let key = routing_key.as_deref();
                let keys = key.as_ref().map(std::slice::from_ref);
                publish(message.republished(exchange, keys), None)
            }
            MoveTarget::FirstDeath => {
                let deaths = message.deaths();
                let Some(death) = deaths.as_ref().and_then(|deaths| deaths.first()) else {
                    return Destination::Stays(|outcome| &mut outcome.without_history);
                };
                let queue = tree.queue(&self.vhost, &death.queue);
                let Some(queue) = queue.filter(|queue| queue.id != self.queue) else {
                    return Destination::Stays(|outcome| &mut outcome.without_queue);
                };
                let keys: Vec<&str> = death.routing_keys.iter().map(|key| &**key).collect();
                let message = message.republished(&death.exchange, Some(&keys));
                publish(message, Some(queue.id))
            }
        }
    }
}
