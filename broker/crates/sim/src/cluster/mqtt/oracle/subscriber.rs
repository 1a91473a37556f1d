//! A client that subscribes: what it asked for in its session, and what it got.

use super::{is_shared, matches};
use crate::cluster::mqtt::tracked_message::MessageId;
use codec_mqtt::Qos;
use env::Time;
use metadata::QueueId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug)]
pub struct SubscriptionState {
    pub qos: Qos,
    /// When SUBSCRIBE was sent last.
    pub asked: Time,
    /// When the first SUBACK came.
    pub since: Option<Time>,
    /// The session's queue, as the client's node had it then.
    pub queue: Option<QueueId>,
}

/// A message that has reached the application.
pub struct ReceivedMessage<'a> {
    pub id: MessageId,
    pub topic: &'a str,
    /// As it was published, and as it came.
    pub qos: Qos,
    pub given: Qos,
    pub sent: Time,
    pub again: bool,
    /// It was sent again, and need not have come to this session as it was sent first.
    pub missed: bool,
    /// Sent with QoS 0 on this connection, which its client has left since, and then something was wrong.
    pub left: Option<u64>,
    pub acknowledged: Option<Time>,
    pub epoch: u64,
}

pub struct Subscriber {
    /// Of a session that outlives its connections.
    pub queue: Option<String>,
    /// That queue is one that a client of AMQP has bound. What comes back to it keeps no order with what it holds.
    pub bound: bool,
    subs: BTreeMap<String, SubscriptionState>,
    /// Shared subscriptions of a clean session on a connection that its client has left: it may be served on until it has ended,
    /// and what comes to it then comes to nobody else. With when that was.
    left: BTreeMap<String, Option<Time>>,
    /// Filters that were ever asked for in this session.
    ever: BTreeSet<String>,
    /// When the first of them was.
    began: Option<Time>,
    /// It may be the session before after all, which a node that is behind cannot tell.
    pub unclear: bool,
    /// The last number of each stream that came for the first time, by topic and QoS; of connections that were left, by those.
    order: BTreeMap<(u32, String, Qos, Option<u64>), u32>,
    /// What came, and in which epoch last.
    got: BTreeMap<MessageId, u64>,
    /// The newest message that came for a filter, by when it was sent.
    newest: BTreeMap<String, Time>,
}

impl Subscriber {
    pub fn new(queue: Option<String>) -> Subscriber {
        Subscriber {
            queue,
            bound: false,
            subs: BTreeMap::new(),
            left: BTreeMap::new(),
            ever: BTreeSet::new(),
            began: None,
            unclear: false,
            order: BTreeMap::new(),
            got: BTreeMap::new(),
            newest: BTreeMap::new(),
        }
    }

    pub fn begin_anew(&mut self) {
        let mut left = std::mem::take(&mut self.left);
        if self.queue.is_none() {
            let shared = self.subs.keys().filter(|f| is_shared(f));
            left.extend(shared.map(|f| (f.clone(), None)));
        }
        *self = Subscriber::new(self.queue.take());
        self.left = left;
    }

    /// The connection before ends by then.
    pub fn ended(&mut self, by: Time) {
        for until in self.left.values_mut() {
            until.get_or_insert(by);
        }
    }

    /// Shared subscriptions of connections that may not have ended.
    pub fn lingering(&self, now: Time) -> impl Iterator<Item = &String> {
        let lingers = move |until: &Option<Time>| until.is_none_or(|until| now <= until);
        let left = self.left.iter().filter(move |(_, until)| lingers(until));
        left.map(|(filter, _)| filter)
    }

    pub fn subscriptions(&self) -> impl Iterator<Item = (&String, &SubscriptionState)> {
        self.subs.iter()
    }

    pub fn asked(&mut self, now: Time, filter: &str, qos: Qos) {
        self.ever.insert(filter.to_owned());
        self.began.get_or_insert(now);
        let sub = self
            .subs
            .entry(filter.to_owned())
            .or_insert(SubscriptionState {
                qos,
                asked: now,
                since: None,
                queue: None,
            });
        if sub.since.is_none() {
            sub.asked = now;
        }
    }

    pub fn subscribed(&mut self, now: Time, filter: &str, queue: Option<QueueId>) {
        if let Some(sub) = self.subs.get_mut(filter) {
            sub.since.get_or_insert(now);
            sub.queue = sub.queue.or(queue);
        }
    }

    pub fn since(&self, filter: &str) -> Option<Time> {
        self.subs.get(filter).and_then(|sub| sub.since)
    }

    pub fn left(&mut self, filter: &str) {
        self.subs.remove(filter);
    }

    /// It is to have messages of QoS 1 and 2 of this topic by a subscription of its own.
    pub fn wants(&self, topic: &str) -> bool {
        let mut all = self.subs.iter();
        all.any(|(f, s)| !is_shared(f) && s.qos > Qos::AtMostOnce && matches(f, topic))
    }

    pub fn ever_wanted(&self, topic: &str) -> bool {
        self.ever.iter().any(|filter| matches(filter, topic))
    }

    /// The shared subscription that a message of this topic comes by, if it is no other.
    pub fn group_of(&self, topic: &str) -> Option<&String> {
        let mut all = self.ever.iter().filter(|f| matches(f, topic));
        all.clone().all(|f| is_shared(f)).then(|| all.next())?
    }

    /// Whether it came.
    pub fn has(&self, id: MessageId) -> bool {
        self.got.contains_key(&id)
    }

    /// It came to a session that is over and that nothing outlives: if the server did not read the acknowledgement, another
    /// member of a shared subscription gets it.
    pub fn is_handed_over(&self, id: MessageId) -> bool {
        self.queue.is_none() && !self.has(id)
    }

    pub fn heard(&mut self, filter: &str, sent: Time) {
        if let Some(newest) = self.newest.get_mut(filter) {
            *newest = sent.max(*newest);
        } else if self.ever.contains(filter) {
            self.newest.insert(filter.to_owned(), sent);
        }
    }

    pub fn newest(&self, filter: &str) -> Option<Time> {
        self.newest.get(filter).copied()
    }

    /// Whether it came before; an error when it may not come, or not now.
    pub fn takes(&mut self, receipt: &ReceivedMessage<'_>) -> Result<bool, String> {
        let ReceivedMessage {
            id, topic, again, ..
        } = *receipt;
        // Who has subscribed with QoS 0 is not waited for: a message may be on its way to that node when its publisher is answered.
        if !again
            && receipt.given != Qos::AtMostOnce
            && !self.unclear
            && let (Some(at), Some(began)) = (receipt.acknowledged, self.began)
            && at < began
        {
            return Err(format!(
                "{id:?} was acknowledged at {at:?} and came to a session of {began:?}"
            ));
        }
        let heard: Vec<String> = self.ever.iter().cloned().collect();
        for filter in heard.iter().filter(|f| matches(f, topic)) {
            self.heard(filter, receipt.sent);
        }
        let epoch = receipt.epoch;
        if let Some(last) = self.got.insert(id, epoch) {
            let exactly_once = receipt.given == Qos::ExactlyOnce && last == epoch;
            if !again && (exactly_once || self.queue.is_none()) {
                return Err(format!(
                    "{id:?} came twice with {:?} in one session",
                    receipt.given
                ));
            }
            return Ok(true);
        }
        // What is sent again may be late for a session, or a subscription, that has begun since.
        let late = match self.queue {
            Some(_) => receipt.missed,
            None => again,
        };
        if late || self.bound || self.group_of(topic).is_some() {
            return Ok(false);
        }
        let order = (id.stream(), topic.to_owned(), receipt.qos, receipt.left);
        let last = self.order.entry(order).or_default();
        let before = std::mem::replace(last, id.number());
        if before > id.number() {
            return Err(format!(
                "{id:?} of {topic} came after number {before} of its stream"
            ));
        }
        Ok(false)
    }
}
