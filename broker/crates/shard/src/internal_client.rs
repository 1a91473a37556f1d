//! The client of the control plane: it publishes the messages of the HTTP API to exchanges, and gets messages from queues.
//!
//! Its publishes and gets are counted and traced like those of an AMQP 0.9.1 client, because the control plane of RabbitMQ is
//! one. A message that it got is settled here, with the answer or when the time is up, so that no message stays with a session
//! whose requester is gone.
//!
//! Owns: the publishes and gets that are not answered.
//!
//! Inputs: requests of the control plane, events of queues for the session [`InternalSession::InternalClient`], time.
//!
//! Outputs: answers to requesters, and [`InternalClientOutput`]s that the loop carries out.
//!
//! [`InternalSession::InternalClient`]: crate::sessions::InternalSession::InternalClient

mod imports;
mod moves;

pub(crate) use imports::ImportPublish;
pub(crate) use moves::{MovePublish, MovedMessage};

use crate::context::Context;
use control::{PublishResult, Reply};
use env::{Time, WallTime};
use imports::Imports;
use message::Message;
use metadata::{ChangeError, Name, QueueId, RouteResult, Tree};
use moves::Moves;
use queue::client::ClientEvent;
use queue::{ConsumerId, Delivery, Modification, QueueReply, RequestBody, SettlementOutcome};
use routing::RoutingInput;
use session::{AnnounceOutcome, MessageCounters, PublishTag};
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// A requester gets its answer after this time at the latest.
const WITHIN: Duration = Duration::from_secs(3);
/// Maximum number of pending publishes, and of pending gets.
const MAX_PENDING: usize = 256;
/// The protocol label of its messages.
pub(crate) const PROTOCOL: &str = "amqp091";

struct PendingPublish {
    vhost: Name,
    /// Queues, and other shards with subscribers, that have not answered.
    left: usize,
    taken: bool,
    until: Time,
    reply: PublishReply,
}

/// Who learns the result of a publish.
pub(crate) enum PublishReply {
    Requester(Reply<Result<PublishResult, ChangeError>>),
    /// The move that the message belongs to. It waits as long as it takes.
    Move(MovedMessage),
    /// The number of the import that the message belongs to.
    Import(u64),
}

struct PendingGet {
    queue: QueueId,
    user: Name,
    /// Messages still wanted, and bytes of bodies.
    left: u32,
    bytes: usize,
    settle: SettlementOutcome,
    taken: Vec<(ConsumerId, Delivery)>,
    /// The request that is out: its consumer and its number.
    asked: (ConsumerId, u64),
    until: Time,
    reply: Reply<Result<Vec<Delivery>, ChangeError>>,
}

/// Builds the message at this time, or says why it is invalid.
pub(crate) type BuildMessage = Box<dyn FnOnce(WallTime) -> Result<Message, String> + Send>;

/// A message that is routed, and not announced to subscribers without a queue yet.
pub(crate) struct RoutedPublish {
    pub tag: PublishTag,
    pub vhost: Name,
    user: Name,
    pub message: Message,
    pub routes: Vec<QueueId>,
    reply: PublishReply,
}

/// What the loop does for the internal client.
pub(crate) enum InternalClientOutput {
    Publish {
        queue: QueueId,
        tag: PublishTag,
        message: Message,
    },
    /// A message of a move is to be published.
    Move(Box<MovePublish>),
    /// A message of an import is to be stored.
    Import(Box<ImportPublish>),
    /// `get`: the get or move that waits for the answer; see [`InternalClient::note_request`].
    Request {
        queue: QueueId,
        body: RequestBody,
        get: Option<u64>,
    },
    Count {
        vhost: Name,
        counted: Box<MessageCounters>,
    },
    Trace {
        vhost: Name,
        user: Name,
        message: Message,
        event: TracedEvent,
    },
}

/// A [`TraceEvent`] with its parts.
pub(crate) enum TracedEvent {
    Published(Vec<QueueId>, PublishTag),
    Delivered { queue: Name, redelivered: bool },
}

#[derive(Default)]
pub(crate) struct InternalClient {
    next_tag: u64,
    next_consumer: u32,
    publishing: BTreeMap<u64, PendingPublish>,
    taking: BTreeMap<u64, PendingGet>,
    moves: Moves,
    imports: Imports,
    outputs: VecDeque<InternalClientOutput>,
}

impl InternalClient {
    /// Returns true if nothing is pending, as in most turns.
    #[inline]
    fn is_idle(&self) -> bool {
        self.publishing.is_empty()
            && self.taking.is_empty()
            && self.moves.is_empty()
            && self.imports.is_empty()
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        if self.is_idle() {
            return None;
        }
        let publishing = self.publishing.values();
        let publishing = publishing.filter(|p| matches!(p.reply, PublishReply::Requester(_)));
        publishing
            .map(|p| p.until)
            .chain(self.taking.values().map(|t| t.until))
            .chain(self.moves.wake_at())
            .chain(self.imports.wake_at())
            .min()
    }

    fn tag(&mut self) -> u64 {
        self.next_tag += 1;
        self.next_tag
    }

    fn find(&self, is: impl Fn(&PendingGet) -> bool) -> Option<u64> {
        self.taking
            .iter()
            .find(|(_, t)| is(t))
            .map(|(token, _)| *token)
    }

    pub(crate) fn next_output(&mut self) -> Option<InternalClientOutput> {
        self.outputs.pop_front()
    }

    fn count(&mut self, vhost: &Name, note: impl FnOnce(&mut MessageCounters)) {
        let mut counted = Box::<MessageCounters>::default();
        note(&mut counted);
        let vhost = vhost.clone();
        self.outputs
            .push_back(InternalClientOutput::Count { vhost, counted });
    }

    fn trace(
        &mut self,
        tree: &Tree,
        (vhost, user): (&Name, &Name),
        message: &Message,
        event: impl FnOnce() -> TracedEvent,
    ) {
        if tree.traces() {
            self.outputs.push_back(InternalClientOutput::Trace {
                vhost: vhost.clone(),
                user: user.clone(),
                message: message.clone(),
                event: event(),
            });
        }
    }

    /// Routes a message that is to be published. Returns `None` if the request was refused. `alarm`: the alarm that blocks
    /// publishers.
    pub(crate) fn begin_publish(
        &mut self,
        ctx: &Context,
        tree: &Tree,
        alarm: Option<&'static str>,
        (vhost, user): (&Name, &Name),
        build: BuildMessage,
        reply: PublishReply,
    ) -> Option<RoutedPublish> {
        let routed = match (self.publishing.len(), &reply) {
            (MAX_PENDING.., PublishReply::Requester(_)) => Err(too_many()),
            _ => route(ctx, tree, alarm, vhost, build),
        };
        match routed {
            Ok((message, routes)) => Some(RoutedPublish {
                tag: PublishTag(self.tag()),
                vhost: vhost.clone(),
                user: user.clone(),
                message,
                routes,
                reply,
            }),
            Err(refused) => {
                self.answer_publish(reply, Err(refused));
                None
            }
        }
    }

    fn answer_publish(&mut self, reply: PublishReply, result: Result<PublishResult, ChangeError>) {
        match reply {
            PublishReply::Requester(reply) => reply(result),
            PublishReply::Move(moved) => self.handle_moved(moved, result),
            PublishReply::Import(token) => self.handle_imported(token, result),
        }
    }

    /// Routes a message of a move. Returns `None` if it cannot be published; then it stays in its queue.
    pub(crate) fn begin_moved_publish(
        &mut self,
        ctx: &Context,
        tree: &Tree,
        alarm: Option<&'static str>,
        publish: MovePublish,
    ) -> Option<RoutedPublish> {
        let MovePublish {
            moved,
            source,
            vhost,
            user,
            message,
            due_at,
            to,
        } = publish;
        let reply = PublishReply::Move(moved);
        // A message that was published with a delay keeps the rest of it, and is not delayed a second time.
        let delay = due_at.map_or(0, |due| due.saturating_sub(ctx.wall().0));
        let (message, delay) = match queue::reschedule(&message, delay) {
            Ok(Some(scheduled)) => (scheduled, delay),
            Ok(None) => (message, 0),
            Err(error) => {
                self.answer_publish(reply, Err(ChangeError::Invalid(error.to_string())));
                return None;
            }
        };
        let begun = match to {
            Some(queue) if alarm.is_none() => Some(RoutedPublish {
                tag: PublishTag(self.tag()),
                vhost,
                user,
                message,
                routes: vec![queue],
                reply,
            }),
            _ => {
                let build = Box::new(move |_| Ok(message));
                self.begin_publish(ctx, tree, alarm, (&vhost, &user), build, reply)
            }
        }?;
        if begun.routes.contains(&source) {
            let name = tree.queue_by_id(source).map(|queue| queue.name.to_string());
            let text = format!(
                "the target leads back to queue '{}': choose another exchange or routing key",
                name.unwrap_or_default()
            );
            self.answer_publish(begun.reply, Err(ChangeError::PreconditionFailed(text)));
            return None;
        }
        if delay > 0
            && let Err(error) = operations::check_scheduled(tree, &begun.routes)
        {
            let error = ChangeError::PreconditionFailed(error.to_string());
            self.answer_publish(begun.reply, Err(error));
            return None;
        }
        Some(begun)
    }

    /// Publishes a message that was announced to subscribers without a queue.
    pub(crate) fn finish_publish(
        &mut self,
        ctx: &Context,
        tree: &Tree,
        publish: RoutedPublish,
        announced: AnnounceOutcome,
    ) {
        let RoutedPublish {
            tag,
            vhost,
            user,
            message,
            routes,
            reply,
        } = publish;
        let routed = routes.len() + announced.receivers;
        // A confirm is expected, and the message is returned if it is unroutable.
        self.count(&vhost, |counted| {
            counted.publishes.received = 1;
            counted.publishes.received_confirm = 1;
            counted.publishes.routed = routed as u64;
            counted.publishes.unroutable_returned = u64::from(routed == 0);
        });
        self.trace(tree, (&vhost, &user), &message, || {
            TracedEvent::Published(routes.clone(), tag)
        });
        let left = routes.len() + announced.awaited;
        if left == 0 {
            let result = PublishResult {
                routed: routed > 0,
                taken: !announced.refused,
            };
            return self.answer_publish(reply, Ok(result));
        }
        let publishing = PendingPublish {
            vhost,
            left,
            taken: !announced.refused,
            until: ctx.now() + WITHIN,
            reply,
        };
        self.publishing.insert(tag.0, publishing);
        let publishes = routes
            .into_iter()
            .map(|queue| InternalClientOutput::Publish {
                queue,
                tag,
                message: message.clone(),
            });
        self.outputs.extend(publishes);
    }

    pub(crate) fn begin_get(
        &mut self,
        ctx: &Context,
        tree: &Tree,
        (queue, user): (QueueId, Name),
        (count, bytes): (u32, usize),
        settle: SettlementOutcome,
        reply: Reply<Result<Vec<Delivery>, ChangeError>>,
    ) {
        if self.taking.len() >= MAX_PENDING {
            return reply(Err(too_many()));
        }
        if tree.queue_by_id(queue).is_none() {
            return reply(Err(ChangeError::NotFound("the queue is gone".into())));
        }
        let token = self.tag();
        let taking = PendingGet {
            queue,
            user,
            left: count.max(1),
            bytes,
            settle,
            taken: Vec::new(),
            asked: (ConsumerId(0), 0),
            until: ctx.now() + WITHIN,
            reply,
        };
        self.taking.insert(token, taking);
        self.take_next(token);
    }

    /// Requests one more message for a get, or ends it.
    fn take_next(&mut self, token: u64) {
        let Some(taking) = self.taking.get_mut(&token) else {
            return;
        };
        if taking.left == 0 || taking.bytes == 0 {
            return self.end_get(token, None);
        }
        self.next_consumer += 1;
        let consumer = ConsumerId(self.next_consumer);
        taking.asked = (consumer, 0);
        let no_ack = taking.settle == SettlementOutcome::Accepted;
        self.outputs.push_back(InternalClientOutput::Request {
            queue: taking.queue,
            body: RequestBody::Get { consumer, no_ack },
            get: Some(token),
        });
    }

    /// The request of a get or of a move has this number. `consumer`: that of the message which a move asks for.
    pub(crate) fn note_request(&mut self, token: u64, consumer: Option<ConsumerId>, seq: u64) {
        match consumer {
            Some(consumer) => self.note_move_request(token, consumer, seq),
            None => self.note_confirming(token, seq),
        }
        if let Some(taking) = self.taking.get_mut(&token) {
            taking.asked.1 = seq;
        }
    }

    fn settle(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        outcome: SettlementOutcome,
        id: u64,
    ) {
        let ids = vec![(id, id)];
        let body = match outcome {
            // `reject_requeue_true` in the HTTP API, which is like basic.reject.
            SettlementOutcome::Requeue => RequestBody::Modify {
                consumer,
                ids,
                modification: Box::new(Modification::failed()),
            },
            outcome => RequestBody::Settle {
                consumer,
                outcome,
                ids,
            },
        };
        self.outputs.push_back(InternalClientOutput::Request {
            queue,
            body,
            get: None,
        });
    }

    /// Settles the messages that were got and answers the requester: with the refusal only if there are none.
    fn end_get(&mut self, token: u64, refused: Option<ChangeError>) {
        let Some(taking) = self.taking.remove(&token) else {
            return;
        };
        for (consumer, delivery) in &taking.taken {
            self.settle(taking.queue, *consumer, taking.settle, delivery.id);
        }
        let deliveries: Vec<Delivery> = taking.taken.into_iter().map(|(_, d)| d).collect();
        (taking.reply)(match refused {
            Some(refused) if deliveries.is_empty() => Err(refused),
            _ => Ok(deliveries),
        });
    }

    /// An event of a queue.
    pub(crate) fn handle_event(
        &mut self,
        tree: &Tree,
        queue: QueueId,
        event: ClientEvent<PublishTag>,
    ) {
        match event {
            ClientEvent::Published(tag) => self.handle_publish_result(tag, true),
            ClientEvent::NotPublished(tag, _) => self.handle_publish_result(tag, false),
            ClientEvent::Deliver {
                consumer,
                deliveries,
            } => {
                for delivery in deliveries {
                    self.handle_delivery(tree, queue, consumer, delivery);
                }
            }
            ClientEvent::Answer { seq, answer } => {
                if !self.moves.is_empty() && self.handle_move_answer(queue, seq, &answer) {
                    return;
                }
                let asked = |t: &PendingGet| t.queue == queue && t.asked.1 == seq;
                if let Some(token) = self.find(asked) {
                    let refused = match answer {
                        QueueReply::Refused { text, .. } => {
                            Some(ChangeError::PreconditionFailed(text))
                        }
                        _ => None,
                    };
                    self.end_get(token, refused);
                }
            }
            ClientEvent::Cancelled { .. }
            | ClientEvent::TimedOut { .. }
            | ClientEvent::Activity { .. } => {}
        }
    }

    /// A queue has confirmed or refused a message, or another shard has confirmed it for its subscribers.
    pub(crate) fn handle_publish_result(&mut self, tag: PublishTag, is_taken: bool) {
        let Some(publishing) = self.publishing.get_mut(&tag.0) else {
            return;
        };
        publishing.taken &= is_taken;
        publishing.left = publishing.left.saturating_sub(1);
        if publishing.left == 0
            && let Some(done) = self.publishing.remove(&tag.0)
        {
            self.count(&done.vhost, |counted| {
                counted.publishes.confirmed += u64::from(done.taken);
            });
            let result = PublishResult {
                routed: true,
                taken: done.taken,
            };
            self.answer_publish(done.reply, Ok(result));
        }
    }

    fn handle_delivery(
        &mut self,
        tree: &Tree,
        queue: QueueId,
        consumer: ConsumerId,
        delivery: Delivery,
    ) {
        let asked = |t: &PendingGet| t.queue == queue && t.asked.0 == consumer;
        let Some(token) = self.find(asked) else {
            if let Some(delivery) = self.handle_move_delivery(tree, queue, consumer, delivery) {
                // Its requester has got an answer already.
                self.settle(queue, consumer, SettlementOutcome::Released, delivery.id);
            }
            return;
        };
        if let Some(taking) = self.taking.get(&token) {
            let is_settled = taking.settle == SettlementOutcome::Accepted;
            let user = taking.user.clone();
            self.report_delivery(tree, queue, &user, is_settled, &delivery);
        }
        if let Some(taking) = self.taking.get_mut(&token) {
            taking.left -= 1;
            taking.bytes = taking.bytes.saturating_sub(delivery.message.body_len());
            taking.taken.push((consumer, delivery));
        }
        self.take_next(token);
    }

    /// Counts and traces a message that was got from a queue.
    fn report_delivery(
        &mut self,
        tree: &Tree,
        queue: QueueId,
        user: &Name,
        is_settled: bool,
        delivery: &Delivery,
    ) {
        let Some(record) = tree.queue_by_id(queue) else {
            return;
        };
        self.count(&record.vhost, |counted| {
            let counts = counted.of(record.kind);
            counts.get = u64::from(!is_settled);
            counts.get_no_ack = u64::from(is_settled);
            counts.redeliver = u64::from(delivery.redelivered);
        });
        self.trace(tree, (&record.vhost, user), &delivery.message, || {
            TracedEvent::Delivered {
                queue: record.name.clone(),
                redelivered: delivery.redelivered,
            }
        });
    }

    /// Answers the requests whose time is up.
    pub(crate) fn tick(&mut self, now: Time) {
        if self.is_idle() {
            return;
        }
        self.tick_moves(now);
        self.tick_imports(now);
        let is_late = |_: &u64, p: &mut PendingPublish| {
            now >= p.until && matches!(p.reply, PublishReply::Requester(_))
        };
        let publishing: Vec<_> = self.publishing.extract_if(.., is_late).collect();
        for (_, publishing) in publishing {
            let text = "not every queue confirmed the message in time; it may still arrive";
            let late = Err(ChangeError::Unavailable(text.into()));
            self.answer_publish(publishing.reply, late);
        }
        let late = self.taking.iter().filter(|(_, t)| now >= t.until);
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            let text = "the queue did not answer in time";
            self.end_get(token, Some(ChangeError::Unavailable(text.into())));
        }
    }

    pub(crate) fn handle_queue_removed(&mut self, queue: QueueId) {
        self.end_moves_of(queue);
        while let Some(token) = self.find(|t| t.queue == queue) {
            let gone = ChangeError::NotFound("the queue is gone".into());
            self.end_get(token, Some(gone));
        }
    }
}

/// Builds a message and finds its queues.
fn route(
    ctx: &Context,
    tree: &Tree,
    alarm: Option<&'static str>,
    vhost: &Name,
    build: BuildMessage,
) -> Result<(Message, Vec<QueueId>), ChangeError> {
    if let Some(alarm) = alarm {
        let text = format!("publishers are blocked: the cluster is {alarm}");
        return Err(ChangeError::Unavailable(text));
    }
    let message = build(ctx.wall()).map_err(ChangeError::Invalid)?;
    let mut routes = Vec::new();
    let keys: SmallVec<[&str; 4]> = message.routing_keys().collect();
    let deaths = message.deaths();
    let envelope = conversion::MessageEnvelope {
        message: &message,
        deaths: deaths.as_ref(),
    };
    let result = tree.publish(vhost, message.exchange(), &keys, &envelope, &mut routes);
    drop(keys);
    if result == RouteResult::NoExchange {
        let exchange = message.exchange();
        let text = format!("no exchange '{exchange}' in vhost '{vhost}'");
        return Err(ChangeError::NotFound(text));
    }
    let exchange = tree.exchange(vhost, message.exchange()).map(|e| &**e);
    let invalid = |error: &dyn std::fmt::Display| ChangeError::Invalid(error.to_string());
    let headers = || envelope.headers();
    let identified = match tree.has_deduplicating_queues() {
        true => operations::deduplicate(tree, &routes, &message, headers)
            .map_err(|error| invalid(&error))?,
        false => None,
    };
    let headers = || envelope.headers();
    let grouped = match tree.has_queues_with_groups() {
        true => {
            let identified = identified.as_ref().unwrap_or(&message);
            let group_id = envelope.group_id();
            operations::assign_group(tree, &routes, identified, group_id.as_deref(), headers)
                .map_err(|error| invalid(&error))?
        }
        false => None,
    };
    let delay = match operations::reads_delays(exchange) {
        true => operations::delay_of(&envelope.headers()),
        false => None,
    };
    let message = grouped.or(identified).unwrap_or(message);
    if let Some(delay) = delay {
        operations::check_scheduled(tree, &routes).map_err(|error| invalid(&error))?;
        let scheduled = queue::schedule(&message, delay).map_err(|error| invalid(&error))?;
        return Ok((scheduled, routes));
    }
    Ok((message, routes))
}

fn too_many() -> ChangeError {
    ChangeError::Unavailable("too many messages are on their way through the control plane".into())
}
