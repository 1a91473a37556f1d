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

use crate::context::Context;
use control::{PublishResult, Reply};
use env::{Time, WallTime};
use message::Message;
use metadata::{ChangeError, Name, QueueId, RouteResult, Tree};
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
    reply: Reply<Result<PublishResult, ChangeError>>,
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
    reply: Reply<Result<PublishResult, ChangeError>>,
}

/// What the loop does for the internal client.
pub(crate) enum InternalClientOutput {
    Publish {
        queue: QueueId,
        tag: PublishTag,
        message: Message,
    },
    /// `get`: the get that waits for the answer; see [`InternalClient::note_request`].
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
    outputs: VecDeque<InternalClientOutput>,
}

impl InternalClient {
    pub(crate) fn wake_at(&self) -> Option<Time> {
        let publishing = self.publishing.values().map(|p| p.until);
        publishing
            .chain(self.taking.values().map(|t| t.until))
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
        reply: Reply<Result<PublishResult, ChangeError>>,
    ) -> Option<RoutedPublish> {
        let routed = match self.publishing.len() {
            MAX_PENDING.. => Err(too_many()),
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
                reply(Err(refused));
                None
            }
        }
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
            return reply(Ok(PublishResult {
                routed: routed > 0,
                taken: !announced.refused,
            }));
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

    /// The request of a get has this number.
    pub(crate) fn note_request(&mut self, token: u64, seq: u64) {
        if let Some(taking) = self.taking.get_mut(&token) {
            taking.asked.1 = seq;
        }
    }

    fn settle(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        outcome: SettlementOutcome,
        delivery: &Delivery,
    ) {
        let ids = vec![(delivery.id, delivery.id)];
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
            self.settle(taking.queue, *consumer, taking.settle, delivery);
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
            (done.reply)(Ok(PublishResult {
                routed: true,
                taken: done.taken,
            }));
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
            // Its requester has got an answer already.
            return self.settle(queue, consumer, SettlementOutcome::Released, &delivery);
        };
        self.report_delivery(tree, token, &delivery);
        if let Some(taking) = self.taking.get_mut(&token) {
            taking.left -= 1;
            taking.bytes = taking.bytes.saturating_sub(delivery.message.body_len());
            taking.taken.push((consumer, delivery));
        }
        self.take_next(token);
    }

    /// Counts and traces a message that was got from a queue.
    fn report_delivery(&mut self, tree: &Tree, token: u64, delivery: &Delivery) {
        let Some(taking) = self.taking.get(&token) else {
            return;
        };
        let is_settled = taking.settle == SettlementOutcome::Accepted;
        let user = taking.user.clone();
        let Some(record) = tree.queue_by_id(taking.queue) else {
            return;
        };
        self.count(&record.vhost, |counted| {
            let counts = counted.of(record.kind);
            counts.get = u64::from(!is_settled);
            counts.get_no_ack = u64::from(is_settled);
            counts.redeliver = u64::from(delivery.redelivered);
        });
        self.trace(tree, (&record.vhost, &user), &delivery.message, || {
            TracedEvent::Delivered {
                queue: record.name.clone(),
                redelivered: delivery.redelivered,
            }
        });
    }

    /// Answers the requests whose time is up.
    pub(crate) fn tick(&mut self, now: Time) {
        if self.publishing.is_empty() && self.taking.is_empty() {
            return;
        }
        let is_late = |_: &u64, p: &mut PendingPublish| now >= p.until;
        let publishing: Vec<_> = self.publishing.extract_if(.., is_late).collect();
        for (_, publishing) in publishing {
            let text = "not every queue confirmed the message in time; it may still arrive";
            (publishing.reply)(Err(ChangeError::Unavailable(text.into())));
        }
        let late = self.taking.iter().filter(|(_, t)| now >= t.until);
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            let text = "the queue did not answer in time";
            self.end_get(token, Some(ChangeError::Unavailable(text.into())));
        }
    }

    pub(crate) fn handle_queue_removed(&mut self, queue: QueueId) {
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
    let envelope = conversion::MessageEnvelope {
        message: &message,
        deaths: None,
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
