//! Messages that the control plane publishes and takes, by a session of its own: a message put into an exchange from the
//! HTTP API, and a look at what stands at the front of a queue. Counted and traced as what a client over AMQP 0.9.1 does:
//! with RabbitMQ the control plane is one.
//!
//! What was taken is settled here, together with the answer or when the time is up, so that nothing stays with a session
//! whose asker is gone.

use crate::core::Core;
use crate::sessions::{ERRAND_KEY, number};
use control::{Published, Reply};
use env::{Time, WallTime};
use message::{Deaths, Message};
use metadata::{Name, QueueId, Refused, RouteResult};
use queue::client::Told;
use queue::{Answer, ConsumerId, Delivery, Outcome, RequestBody};
use session::{PublishTag, Tally, Trace, Traced};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::time::Duration;

/// An answer is given by then, with what there is.
const WITHIN: Duration = Duration::from_secs(3);
/// Publishes, and takings, under way at once.
const MAX_ERRANDS: usize = 256;
/// What it counts as.
const PROTOCOL: &str = "amqp091";

struct Publishing {
    vhost: Name,
    /// Queues, and other nodes for their MQTT clients, that have not answered.
    left: usize,
    taken: bool,
    until: Time,
    reply: Reply<Result<Published, Refused>>,
}

struct Taking {
    queue: QueueId,
    user: Name,
    /// Messages still wanted, and bytes of bodies.
    left: u32,
    bytes: usize,
    settle: Outcome,
    taken: Vec<(ConsumerId, Delivery)>,
    /// The request that is out: its consumer and its number.
    asked: (ConsumerId, u64),
    until: Time,
    reply: Reply<Result<Vec<Delivery>, Refused>>,
}

#[derive(Default)]
pub struct Errands {
    next_tag: u64,
    next_consumer: u32,
    publishing: BTreeMap<u64, Publishing>,
    taking: BTreeMap<u64, Taking>,
}

impl Errands {
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

    fn find(&self, is: impl Fn(&Taking) -> bool) -> Option<u64> {
        self.taking
            .iter()
            .find(|(_, t)| is(t))
            .map(|(token, _)| *token)
    }
}

fn too_many() -> Refused {
    Refused::Unavailable("too many messages are on their way through the control plane".into())
}

impl Core {
    /// What the control plane did, among what clients did.
    fn count(&mut self, vhost: &Name, note: impl FnOnce(&mut Tally)) {
        let mut tally = Tally::default();
        note(&mut tally);
        self.tally_in(vhost, PROTOCOL, &tally);
    }

    /// A message with a confirm wanted, and returned if it has nowhere to go.
    fn count_published(&mut self, vhost: &Name, routes: usize) {
        self.count(vhost, |tally| {
            tally.publishes.received = 1;
            tally.publishes.received_confirm = 1;
            tally.publishes.routed = routes as u64;
            tally.publishes.unroutable_returned = u64::from(routes == 0);
        });
    }

    fn trace_errand(&mut self, vhost: &str, user: &str, message: &Message, what: Trace<'_>) {
        if !self.tree.traces() {
            return;
        }
        // RabbitMQ's control plane has a connection without an address, too; its name is the node's.
        let name = self.config.name.clone();
        let traced = Traced {
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
        let Some(taking) = self.errands.taking.get(&token) else {
            return;
        };
        let (user, no_ack) = (taking.user.clone(), taking.settle == Outcome::Accepted);
        let Some(record) = self.tree.queue_by_id(taking.queue).cloned() else {
            return;
        };
        self.count(&record.vhost, |tally| {
            let counts = tally.of(record.kind);
            counts.get = u64::from(!no_ack);
            counts.get_no_ack = u64::from(no_ack);
            counts.redeliver = u64::from(delivery.redelivered);
        });
        let what = Trace::Delivered {
            queue: &record.name,
            redelivered: delivery.redelivered,
        };
        self.trace_errand(&record.vhost, &user, &delivery.message, what);
    }

    fn errand_session(&self) -> u64 {
        number(self.config.index, 0, ERRAND_KEY)
    }

    pub fn is_errand_session(&self, number: u64) -> bool {
        number == self.errand_session()
    }

    pub fn publish_errand(
        &mut self,
        (vhost, user): (&Name, &Name),
        build: Box<dyn FnOnce(WallTime) -> Result<Message, String> + Send>,
        reply: Reply<Result<Published, Refused>>,
    ) {
        if self.errands.publishing.len() >= MAX_ERRANDS {
            return reply(Err(too_many()));
        }
        if let Some(alarm) = self.alarms.in_force() {
            let text = format!("publishers are blocked: the cluster is {alarm}");
            return reply(Err(Refused::Unavailable(text)));
        }
        let message = match build(self.wall) {
            Ok(message) => message,
            Err(text) => return reply(Err(Refused::Invalid(text))),
        };
        let mut routes = Vec::new();
        let keys: SmallVec<[&str; 4]> = message.routing_keys().collect();
        let deaths = Deaths::default();
        let envelope = session_amqp091::MessageEnvelope {
            message: &message,
            deaths: &deaths,
        };
        let result = (self.tree).publish(vhost, message.exchange(), &keys, &envelope, &mut routes);
        drop(keys);
        if result == RouteResult::NoExchange {
            let exchange = message.exchange();
            let text = format!("no exchange '{exchange}' in vhost '{vhost}'");
            return reply(Err(Refused::NotFound(text)));
        }
        let tag = PublishTag {
            channel: 0,
            tag: self.errands.tag(),
        };
        let session = self.errand_session();
        let heard = self.announce(session, tag, (vhost, &message), &mut routes);
        let routed = routes.len() + heard.receivers;
        self.count_published(vhost, routed);
        let what = Trace::Published { routes: &routes };
        self.trace_errand(vhost, user, &message, what);
        let left = routes.len() + heard.awaited;
        if left == 0 {
            return reply(Ok(Published {
                routed: routed > 0,
                taken: !heard.refused,
            }));
        }
        let publishing = Publishing {
            vhost: vhost.clone(),
            left,
            taken: !heard.refused,
            until: self.now + WITHIN,
            reply,
        };
        self.errands.publishing.insert(tag.tag, publishing);
        for queue in routes {
            self.publish(session, queue, tag, message.clone());
        }
    }

    pub fn get_errand(
        &mut self,
        (queue, user): (QueueId, Name),
        (count, bytes): (u32, usize),
        settle: Outcome,
        reply: Reply<Result<Vec<Delivery>, Refused>>,
    ) {
        if self.errands.taking.len() >= MAX_ERRANDS {
            return reply(Err(too_many()));
        }
        if self.tree.queue_by_id(queue).is_none() {
            return reply(Err(Refused::NotFound("the queue is gone".into())));
        }
        let token = self.errands.tag();
        let taking = Taking {
            queue,
            user,
            left: count.max(1),
            bytes,
            settle,
            taken: Vec::new(),
            asked: (ConsumerId(0), 0),
            until: self.now + WITHIN,
            reply,
        };
        self.errands.taking.insert(token, taking);
        self.take_next(token);
    }

    /// Asks for one more, or ends it.
    fn take_next(&mut self, token: u64) {
        let session = self.errand_session();
        let Some(taking) = self.errands.taking.get(&token) else {
            return;
        };
        if taking.left == 0 || taking.bytes == 0 {
            return self.end_taking(token, None);
        }
        let queue = taking.queue;
        let no_ack = taking.settle == Outcome::Accepted;
        self.errands.next_consumer += 1;
        let consumer = ConsumerId(self.errands.next_consumer);
        let seq = self.request(session, queue, RequestBody::Get { consumer, no_ack });
        if let Some(taking) = self.errands.taking.get_mut(&token) {
            taking.asked = (consumer, seq);
        }
    }

    /// Settles what was taken and answers: with a refusal only when nothing was.
    fn end_taking(&mut self, token: u64, refused: Option<Refused>) {
        let Some(taking) = self.errands.taking.remove(&token) else {
            return;
        };
        let session = self.errand_session();
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
    pub fn errand_told(&mut self, queue: QueueId, word: Told<PublishTag>) {
        match word {
            Told::Published(tag) => self.errand_published(tag.tag, true),
            Told::NotPublished(tag, _) => self.errand_published(tag.tag, false),
            Told::Deliver {
                consumer,
                deliveries,
            } => {
                for delivery in deliveries {
                    self.errand_delivery(queue, consumer, delivery);
                }
            }
            Told::Answer { seq, answer } => {
                let asked = |t: &Taking| t.queue == queue && t.asked.1 == seq;
                if let Some(token) = self.errands.find(asked) {
                    let refused = match answer {
                        Answer::Refused { text, .. } => Some(Refused::PreconditionFailed(text)),
                        _ => None,
                    };
                    self.end_taking(token, refused);
                }
            }
            Told::Cancelled { .. } => {}
        }
    }

    /// A queue has answered, or another node for its MQTT clients.
    pub fn errand_published(&mut self, tag: u64, taken: bool) {
        let Some(publishing) = self.errands.publishing.get_mut(&tag) else {
            return;
        };
        publishing.taken &= taken;
        publishing.left = publishing.left.saturating_sub(1);
        if publishing.left == 0
            && let Some(done) = self.errands.publishing.remove(&tag)
        {
            self.count(&done.vhost, |tally| {
                tally.publishes.confirmed += u64::from(done.taken);
            });
            (done.reply)(Ok(Published {
                routed: true,
                taken: done.taken,
            }));
        }
    }

    fn errand_delivery(&mut self, queue: QueueId, consumer: ConsumerId, delivery: Delivery) {
        let asked = |t: &Taking| t.queue == queue && t.asked.0 == consumer;
        let Some(token) = self.errands.find(asked) else {
            // Nobody waits for it any more.
            let body = RequestBody::Settle {
                consumer,
                outcome: Outcome::Released,
                ids: vec![(delivery.id, delivery.id)],
            };
            self.request(self.errand_session(), queue, body);
            return;
        };
        self.taken(token, &delivery);
        if let Some(taking) = self.errands.taking.get_mut(&token) {
            taking.left -= 1;
            taking.bytes = taking.bytes.saturating_sub(delivery.message.body_len());
            taking.taken.push((consumer, delivery));
        }
        self.take_next(token);
    }

    /// Answers those whose time is up.
    pub fn tick_errands(&mut self) {
        if self.errands.publishing.is_empty() && self.errands.taking.is_empty() {
            return;
        }
        let now = self.now;
        let late = |_: &u64, p: &mut Publishing| now >= p.until;
        let publishing: Vec<_> = self.errands.publishing.extract_if(.., late).collect();
        for (_, publishing) in publishing {
            let text = "not every queue confirmed the message in time; it may still arrive";
            (publishing.reply)(Err(Refused::Unavailable(text.into())));
        }
        let late = self.errands.taking.iter().filter(|(_, t)| now >= t.until);
        let late: Vec<u64> = late.map(|(token, _)| *token).collect();
        for token in late {
            let text = "the queue did not answer in time";
            self.end_taking(token, Some(Refused::Unavailable(text.into())));
        }
    }

    pub fn errands_queue_removed(&mut self, queue: QueueId) {
        while let Some(token) = self.errands.find(|t| t.queue == queue) {
            let gone = Refused::NotFound("the queue is gone".into());
            self.end_taking(token, Some(gone));
        }
    }
}
