//! Messages that the control plane publishes and takes, by a session of its own: a message put into an exchange from the
//! HTTP API, and a look at what stands at the front of a queue. Counted and traced as what a client over AMQP 0.9.1 does:
//! with RabbitMQ the control plane is one.
//!
//! What was taken is settled here, together with the answer or when the time is up, so that nothing stays with a session
//! whose asker is gone.

use crate::core::Core;
use crate::sessions::{ERRAND_KEY, number};
use control::{PublishResult, Reply};
use env::{Time, WallTime};
use message::Message;
use metadata::{ChangeError, Name, QueueId, RouteResult};
use queue::client::ClientEvent;
use queue::{ConsumerId, Delivery, QueueReply, RequestBody, SettlementOutcome};
use session::{MessageCounters, PublishTag, TraceEvent, TracedMessage};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::time::Duration;

/// An answer is given by then, with what there is.
const WITHIN: Duration = Duration::from_secs(3);
/// Publishes, and takings, under way at once.
const MAX_ERRANDS: usize = 256;
/// What it counts as.
const PROTOCOL: &str = "amqp091";

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

#[derive(Default)]
pub struct InternalClient {
    next_tag: u64,
    next_consumer: u32,
    publishing: BTreeMap<u64, PendingPublish>,
    taking: BTreeMap<u64, PendingGet>,
}

impl InternalClient {
    pub fn wake_at(&self) -> Option<Time> {
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
}

fn too_many() -> ChangeError {
    ChangeError::Unavailable("too many messages are on their way through the control plane".into())
}

impl Core {
    /// What the control plane did, among what clients did.
    fn count(&mut self, vhost: &Name, note: impl FnOnce(&mut MessageCounters)) {
        let mut message_counters = MessageCounters::default();
        note(&mut message_counters);
        self.limits
            .count_internal_messages(&self.tree, vhost, PROTOCOL, &message_counters);
    }

    /// A message with a confirm wanted, and returned if it has nowhere to go.
    fn count_published(&mut self, vhost: &Name, routes: usize) {
        self.count(vhost, |message_counters| {
            message_counters.publishes.received = 1;
            message_counters.publishes.received_confirm = 1;
            message_counters.publishes.routed = routes as u64;
            message_counters.publishes.unroutable_returned = u64::from(routes == 0);
        });
    }

    fn trace_internal(&mut self, vhost: &str, user: &str, message: &Message, what: TraceEvent<'_>) {
        if !self.tree.traces() {
            return;
        }
        // RabbitMQ's control plane has a connection without an address, too; its name is the node's.
        let name = self.ctx.config().name.clone();
        let traced = TracedMessage {
            vhost,
            user,
            channel: 1,
            message,
            what,
        };
        self.trace(&format_args!("<{name}.http>"), &traced);
    }

    /// Tells of a message that was taken from a queue.
    fn taken(&mut self, token: u64, delivery: &Delivery) {
        let Some(taking) = self.internal_client.taking.get(&token) else {
            return;
        };
        let (user, no_ack) = (
            taking.user.clone(),
            taking.settle == SettlementOutcome::Accepted,
        );
        let Some(record) = self.tree.queue_by_id(taking.queue).cloned() else {
            return;
        };
        self.count(&record.vhost, |message_counters| {
            let counts = message_counters.of(record.kind);
            counts.get = u64::from(!no_ack);
            counts.get_no_ack = u64::from(no_ack);
            counts.redeliver = u64::from(delivery.redelivered);
        });
        let what = TraceEvent::Delivered {
            queue: &record.name,
            redelivered: delivery.redelivered,
        };
        self.trace_internal(&record.vhost, &user, &delivery.message, what);
    }

    fn internal_session(&self) -> u64 {
        number(self.ctx.shard(), 0, ERRAND_KEY)
    }

    pub fn is_internal_session(&self, number: u64) -> bool {
        number == self.internal_session()
    }

    pub fn publish_internal(
        &mut self,
        (vhost, user): (&Name, &Name),
        build: Box<dyn FnOnce(WallTime) -> Result<Message, String> + Send>,
        reply: Reply<Result<PublishResult, ChangeError>>,
    ) {
        if self.internal_client.publishing.len() >= MAX_ERRANDS {
            return reply(Err(too_many()));
        }
        if let Some(alarm) = self.alarms.in_force() {
            let text = format!("publishers are blocked: the cluster is {alarm}");
            return reply(Err(ChangeError::Unavailable(text)));
        }
        let message = match build(self.ctx.wall()) {
            Ok(message) => message,
            Err(text) => return reply(Err(ChangeError::Invalid(text))),
        };
        let mut routes = Vec::new();
        let keys: SmallVec<[&str; 4]> = message.routing_keys().collect();
        let envelope = conversion::MessageEnvelope {
            message: &message,
            deaths: None,
        };
        let result = (self.tree).publish(vhost, message.exchange(), &keys, &envelope, &mut routes);
        drop(keys);
        if result == RouteResult::NoExchange {
            let exchange = message.exchange();
            let text = format!("no exchange '{exchange}' in vhost '{vhost}'");
            return reply(Err(ChangeError::NotFound(text)));
        }
        let tag = PublishTag(self.internal_client.tag());
        let session = self.internal_session();
        let announced = self.announce(session, tag, (vhost, &message), &mut routes);
        let routed = routes.len() + announced.receivers;
        self.count_published(vhost, routed);
        let what = TraceEvent::Published { routes: &routes };
        self.trace_internal(vhost, user, &message, what);
        let left = routes.len() + announced.awaited;
        if left == 0 {
            return reply(Ok(PublishResult {
                routed: routed > 0,
                taken: !announced.refused,
            }));
        }
        let publishing = PendingPublish {
            vhost: vhost.clone(),
            left,
            taken: !announced.refused,
            until: self.ctx.now() + WITHIN,
            reply,
        };
        self.internal_client.publishing.insert(tag.0, publishing);
        for queue in routes {
            self.publish(session, queue, tag, message.clone());
        }
    }

    pub fn get_internal(
        &mut self,
        (queue, user): (QueueId, Name),
        (count, bytes): (u32, usize),
        settle: SettlementOutcome,
        reply: Reply<Result<Vec<Delivery>, ChangeError>>,
    ) {
        if self.internal_client.taking.len() >= MAX_ERRANDS {
            return reply(Err(too_many()));
        }
        if self.tree.queue_by_id(queue).is_none() {
            return reply(Err(ChangeError::NotFound("the queue is gone".into())));
        }
        let token = self.internal_client.tag();
        let taking = PendingGet {
            queue,
            user,
            left: count.max(1),
            bytes,
            settle,
            taken: Vec::new(),
            asked: (ConsumerId(0), 0),
            until: self.ctx.now() + WITHIN,
            reply,
        };
        self.internal_client.taking.insert(token, taking);
        self.take_next(token);
    }

    /// Asks for one more, or ends it.
    fn take_next(&mut self, token: u64) {
        let session = self.internal_session();
        let Some(taking) = self.internal_client.taking.get(&token) else {
            return;
        };
        if taking.left == 0 || taking.bytes == 0 {
            return self.end_taking(token, None);
        }
        let queue = taking.queue;
        let no_ack = taking.settle == SettlementOutcome::Accepted;
        self.internal_client.next_consumer += 1;
        let consumer = ConsumerId(self.internal_client.next_consumer);
        let seq = self.request(session, queue, RequestBody::Get { consumer, no_ack });
        if let Some(taking) = self.internal_client.taking.get_mut(&token) {
            taking.asked = (consumer, seq);
        }
    }

    /// Settles what was taken and answers: with a refusal only when nothing was.
    fn end_taking(&mut self, token: u64, refused: Option<ChangeError>) {
        let Some(taking) = self.internal_client.taking.remove(&token) else {
            return;
        };
        let session = self.internal_session();
        for (consumer, delivery) in &taking.taken {
            let body = RequestBody::Settle {
                consumer: *consumer,
                outcome: taking.settle,
                ids: vec![(delivery.id, delivery.id)],
            };
            self.request(session, taking.queue, body);
        }
        let deliveries: Vec<Delivery> = taking.taken.into_iter().map(|(_, d)| d).collect();
        (taking.reply)(match refused {
            Some(refused) if deliveries.is_empty() => Err(refused),
            _ => Ok(deliveries),
        });
    }

    /// A queue's word to the control plane's own session.
    pub fn internal_told(&mut self, queue: QueueId, peer_message: ClientEvent<PublishTag>) {
        match peer_message {
            ClientEvent::Published(tag) => self.internal_published(tag.0, true),
            ClientEvent::NotPublished(tag, _) => self.internal_published(tag.0, false),
            ClientEvent::Deliver {
                consumer,
                deliveries,
            } => {
                for delivery in deliveries {
                    self.internal_delivery(queue, consumer, delivery);
                }
            }
            ClientEvent::Answer { seq, answer } => {
                let asked = |t: &PendingGet| t.queue == queue && t.asked.1 == seq;
                if let Some(token) = self.internal_client.find(asked) {
                    let refused = match answer {
                        QueueReply::Refused { text, .. } => {
                            Some(ChangeError::PreconditionFailed(text))
                        }
                        _ => None,
                    };
                    self.end_taking(token, refused);
                }
            }
            ClientEvent::Cancelled { .. } => {}
        }
    }

    /// A queue has answered, or another shard for its subscribers.
    pub fn internal_published(&mut self, tag: u64, taken: bool) {
        let Some(publishing) = self.internal_client.publishing.get_mut(&tag) else {
            return;
        };
        publishing.taken &= taken;
        publishing.left = publishing.left.saturating_sub(1);
        if publishing.left == 0
            && let Some(done) = self.internal_client.publishing.remove(&tag)
        {
            self.count(&done.vhost, |message_counters| {
                message_counters.publishes.confirmed += u64::from(done.taken);
            });
            (done.reply)(Ok(PublishResult {
                routed: true,
                taken: done.taken,
            }));
        }
    }

    fn internal_delivery(&mut self, queue: QueueId, consumer: ConsumerId, delivery: Delivery) {
        let asked = |t: &PendingGet| t.queue == queue && t.asked.0 == consumer;
        let Some(token) = self.internal_client.find(asked) else {
            // Nobody waits for it any more.
            let body = RequestBody::Settle {
                consumer,
                outcome: SettlementOutcome::Released,
                ids: vec![(delivery.id, delivery.id)],
            };
            self.request(self.internal_session(), queue, body);
            return;
        };
        self.taken(token, &delivery);
        if let Some(taking) = self.internal_client.taking.get_mut(&token) {
            taking.left -= 1;
            taking.bytes = taking.bytes.saturating_sub(delivery.message.body_len());
            taking.taken.push((consumer, delivery));
        }
        self.take_next(token);
    }

    /// Answers those whose time is up.
    pub fn tick_internal_client(&mut self) {
        if self.internal_client.publishing.is_empty() && self.internal_client.taking.is_empty() {
            return;
        }
        let now = self.ctx.now();
        let late = |_: &u64, p: &mut PendingPublish| now >= p.until;
        let publishing: Vec<_> = self
            .internal_client
            .publishing
            .extract_if(.., late)
            .collect();
        for (_, publishing) in publishing {
            let text = "not every queue confirmed the message in time; it may still arrive";
            (publishing.reply)(Err(ChangeError::Unavailable(text.into())));
        }
        let late = self
            .internal_client
            .taking
            .iter()
            .filter(|(_, t)| now >= t.until);
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            let text = "the queue did not answer in time";
            self.end_taking(token, Some(ChangeError::Unavailable(text.into())));
        }
    }

    pub fn internal_client_queue_removed(&mut self, queue: QueueId) {
        while let Some(token) = self.internal_client.find(|t| t.queue == queue) {
            let gone = ChangeError::NotFound("the queue is gone".into());
            self.end_taking(token, Some(gone));
        }
    }
}
