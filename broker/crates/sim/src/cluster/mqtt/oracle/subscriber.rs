//! A client that subscribes: the filters of its session, and the messages that it received.

use super::{is_shared, matches};
use crate::cluster::mqtt::tracked_message::MessageId;
use codec_mqtt::Qos;
use env::Time;
use metadata::QueueId;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Copy, Debug)]
pub(super) struct SubscriptionState {
    pub qos: Qos,
    /// When SUBSCRIBE was sent last.
    pub subscribe_sent: Time,
    /// When the first SUBACK arrived.
    pub since: Option<Time>,
    /// The session's queue, as the client's node knew it then.
    pub queue: Option<QueueId>,
}

/// A message that has reached the application.
pub(crate) struct ReceivedMessage<'a> {
    pub id: MessageId,
    pub topic: &'a str,
    /// QoS of the publish, and QoS of the delivery.
    pub qos: Qos,
    pub granted_qos: Qos,
    pub sent: Time,
    pub may_come_twice: bool,
    /// It was sent again, and its first sending may have missed this session.
    pub may_miss: bool,
    /// For QoS 0: the connection on which it was sent, if that one was abandoned and there was a fault after that.
    pub abandoned: Option<u64>,
    pub acknowledged: Option<Time>,
    pub epoch: u64,
}

pub(super) struct Subscriber {
    /// Queue of a session that survives its connections.
    pub queue: Option<String>,
    /// An AMQP client has bound the queue. Messages that return to it have no order relative to its unacknowledged
    /// ones.
    pub bound: bool,
    subscriptions: BTreeMap<String, SubscriptionState>,
    /// Shared subscriptions of a clean session whose connection the client has left, with the time at which that
    /// connection ends at the latest. Until then the connection may still receive messages, which no other member gets.
    abandoned_groups: BTreeMap<String, Option<Time>>,
    /// All filters of this session, including removed ones.
    all_filters: BTreeSet<String>,
    /// When the first of them was requested.
    session_start: Option<Time>,
    /// The server may have continued the earlier session, which a node that lags behind cannot tell.
    pub is_uncertain: bool,
    /// Number of the last first delivery of each stream, by topic and QoS. Abandoned connections have an order of their
    /// own.
    order: BTreeMap<(u32, String, Qos, Option<u64>), u32>,
    /// Received messages, with the epoch of their last delivery.
    received: BTreeMap<MessageId, u64>,
    /// When the newest message that came for a filter was sent.
    newest_by_filter: BTreeMap<String, Time>,
}

impl Subscriber {
    pub(super) fn new(queue: Option<String>) -> Subscriber {
        Subscriber {
            queue,
            bound: false,
            subscriptions: BTreeMap::new(),
            abandoned_groups: BTreeMap::new(),
            all_filters: BTreeSet::new(),
            session_start: None,
            is_uncertain: false,
            order: BTreeMap::new(),
            received: BTreeMap::new(),
            newest_by_filter: BTreeMap::new(),
        }
    }

    pub(super) fn start_new_session(&mut self) {
        let mut abandoned_groups = std::mem::take(&mut self.abandoned_groups);
        if self.queue.is_none() {
            let shared = self.subscriptions.keys().filter(|f| is_shared(f));
            abandoned_groups.extend(shared.map(|f| (f.clone(), None)));
        }
        *self = Subscriber::new(self.queue.take());
        self.abandoned_groups = abandoned_groups;
    }

    /// The earlier connection ends at `by` at the latest.
    pub(super) fn end_old_connections(&mut self, by: Time) {
        for until in self.abandoned_groups.values_mut() {
            until.get_or_insert(by);
        }
    }

    /// Shared subscriptions of connections that may not have ended.
    pub(super) fn lingering_groups(&self, now: Time) -> impl Iterator<Item = &String> {
        let is_lingering = move |until: &Option<Time>| until.is_none_or(|until| now <= until);
        let abandoned_groups = self
            .abandoned_groups
            .iter()
            .filter(move |(_, until)| is_lingering(until));
        abandoned_groups.map(|(filter, _)| filter)
    }

    pub(super) fn subscriptions(&self) -> impl Iterator<Item = (&String, &SubscriptionState)> {
        self.subscriptions.iter()
    }

    pub(super) fn subscribe_sent(&mut self, now: Time, filter: &str, qos: Qos) {
        self.all_filters.insert(filter.to_owned());
        self.session_start.get_or_insert(now);
        let subscription =
            self.subscriptions
                .entry(filter.to_owned())
                .or_insert(SubscriptionState {
                    qos,
                    subscribe_sent: now,
                    since: None,
                    queue: None,
                });
        if subscription.since.is_none() {
            subscription.subscribe_sent = now;
        }
    }

    pub(super) fn subscribed(&mut self, now: Time, filter: &str, queue: Option<QueueId>) {
        if let Some(subscription) = self.subscriptions.get_mut(filter) {
            subscription.since.get_or_insert(now);
            subscription.queue = subscription.queue.or(queue);
        }
    }

    pub(super) fn since(&self, filter: &str) -> Option<Time> {
        self.subscriptions
            .get(filter)
            .and_then(|subscription| subscription.since)
    }

    pub(super) fn unsubscribe(&mut self, filter: &str) {
        self.subscriptions.remove(filter);
    }

    /// Whether its own subscriptions include QoS 1 and 2 messages of this topic.
    pub(super) fn is_subscribed_to(&self, topic: &str) -> bool {
        let mut all = self.subscriptions.iter();
        all.any(|(filter, subscription)| {
            !is_shared(filter) && subscription.qos > Qos::AtMostOnce && matches(filter, topic)
        })
    }

    pub(super) fn ever_subscribed_to(&self, topic: &str) -> bool {
        self.all_filters.iter().any(|filter| matches(filter, topic))
    }

    /// The shared subscription for messages of this topic, if no other subscription matches.
    pub(super) fn group_of(&self, topic: &str) -> Option<&String> {
        let mut all = self.all_filters.iter().filter(|f| matches(f, topic));
        all.clone().all(|f| is_shared(f)).then(|| all.next())?
    }

    /// Whether the message has been received.
    pub(super) fn has_received(&self, id: MessageId) -> bool {
        self.received.contains_key(&id)
    }

    /// Whether the message went to a session that has ended without a queue. If the server did not read the
    /// acknowledgement, another member of the shared subscription gets the message.
    pub(super) fn may_go_to_other_member(&self, id: MessageId) -> bool {
        self.queue.is_none() && !self.has_received(id)
    }

    pub(super) fn received_for_group(&mut self, filter: &str, sent: Time) {
        if let Some(newest_by_filter) = self.newest_by_filter.get_mut(filter) {
            *newest_by_filter = sent.max(*newest_by_filter);
        } else if self.all_filters.contains(filter) {
            self.newest_by_filter.insert(filter.to_owned(), sent);
        }
    }

    pub(super) fn newest_of(&self, filter: &str) -> Option<Time> {
        self.newest_by_filter.get(filter).copied()
    }

    /// Records a receipt. Returns whether the message came before, or an error if it must not come, or not now.
    pub(super) fn check_receipt(&mut self, receipt: &ReceivedMessage<'_>) -> Result<bool, String> {
        let ReceivedMessage {
            id,
            topic,
            may_come_twice,
            ..
        } = *receipt;
        // The cluster does not wait for subscribers with QoS 0: a message may still be on its way to their node when
        // its publisher gets the answer.
        if !may_come_twice
            && receipt.granted_qos != Qos::AtMostOnce
            && !self.is_uncertain
            && let (Some(at), Some(session_start)) = (receipt.acknowledged, self.session_start)
            && at < session_start
        {
            return Err(format!(
                "{id:?} was acknowledged at {at:?} and came to a session of {session_start:?}"
            ));
        }
        let filters: Vec<String> = self.all_filters.iter().cloned().collect();
        for filter in filters.iter().filter(|f| matches(f, topic)) {
            self.received_for_group(filter, receipt.sent);
        }
        let epoch = receipt.epoch;
        if let Some(last) = self.received.insert(id, epoch) {
            let exactly_once = receipt.granted_qos == Qos::ExactlyOnce && last == epoch;
            if !may_come_twice && (exactly_once || self.queue.is_none()) {
                return Err(format!(
                    "{id:?} came twice with {:?} in one session",
                    receipt.granted_qos
                ));
            }
            return Ok(true);
        }
        // A repetition may come late to a session, or a subscription, that began after the first sending.
        let may_be_late = match self.queue {
            Some(_) => receipt.may_miss,
            None => may_come_twice,
        };
        if may_be_late || self.bound || self.group_of(topic).is_some() {
            return Ok(false);
        }
        let order = (
            id.stream(),
            topic.to_owned(),
            receipt.qos,
            receipt.abandoned,
        );
        let last = self.order.entry(order).or_default();
        let previous = std::mem::replace(last, id.number());
        if previous > id.number() {
            return Err(format!(
                "{id:?} of {topic} came after number {previous} of its stream"
            ));
        }
        Ok(false)
    }
}
