//! The oracle for MQTT messages.
//!
//! After the acknowledgement of a message the cluster owes it: each subscribed session that survives its connection
//! gets it, at least once. The clients know which sessions are subscribed (SUBACK). If there was a fault, the bindings
//! that the publisher's node knows count instead, because the cluster does not wait for a node that is cut off.

mod delayed_wills;
mod subscriber;

use super::tracked_message::MessageId;
use super::wire::ReceivedPublish;
use codec_mqtt::Qos;
use env::Time;
use metadata::QueueId;
use std::collections::{BTreeMap, BTreeSet};
use subscriber::Subscriber;

pub(super) use subscriber::ReceivedMessage;

#[cfg(test)]
mod tests;

/// Outcome of a publish, as the publisher knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublishOutcome {
    Open,
    Acknowledged(Time),
    /// A will that must be published when its client's node has been down for long enough.
    Due,
    /// Rejected, never answered, or QoS 0: the message may come or not.
    Unknown,
    /// A will that must not be published, unless there was a fault since its connection began (`since`): the client
    /// sent DISCONNECT or returned in time.
    Cancelled(Time),
    /// A will that must not be published: the client sent DISCONNECT and no fault can have kept it from arriving.
    MustNotCome,
    /// A will of a connection that began at `since`. It must be published when its client has left, and not before it
    /// is due.
    Delayed {
        since: Time,
        due: Time,
    },
}

impl PublishOutcome {
    /// Whether the cluster owes the message, or will owe it when it is due.
    fn is_owed(self) -> bool {
        matches!(
            self,
            PublishOutcome::Acknowledged(_) | PublishOutcome::Due | PublishOutcome::Delayed { .. }
        )
    }
}

/// A QoS 0 message on a connection that its client abandoned for another one.
#[derive(Clone, Copy, Debug)]
struct AbandonedPublish {
    connection: u64,
    at: Time,
}

#[derive(Clone, Debug)]
struct TrackedMessage {
    topic: String,
    qos: Qos,
    sent: Time,
    outcome: PublishOutcome,
    /// Its client sent it again without knowing whether it had arrived, so it may come twice.
    may_come_twice: bool,
    /// For QoS 0: the connection on which it was sent, after that one was abandoned.
    abandoned: Option<AbandonedPublish>,
    /// Clients whose sessions must get it, and those whose sessions could not miss its first sending.
    owed_clients: BTreeSet<usize>,
    first_owed: BTreeSet<usize>,
    /// Shared subscriptions that must get it.
    owed_groups: BTreeSet<String>,
    /// The client that got it for each shared subscription.
    shared_receivers: BTreeMap<String, usize>,
}

/// Looks up a session's queue by name and filter in the bindings that the client's shard knows. Returns the id of the
/// bound queue.
pub(crate) type QueueLookup<'a> = &'a dyn Fn(&str, &str) -> Option<QueueId>;

#[derive(Default)]
pub(crate) struct MqttOracle {
    messages: BTreeMap<MessageId, TrackedMessage>,
    subscribers: BTreeMap<usize, Subscriber>,
    /// Wills of clients that have left, which must still come.
    pending_wills: BTreeSet<MessageId>,
    /// Until when a fault of network or nodes may have effects, as in the AMQP oracle.
    pub faults_until: Time,
    pub acknowledged: u64,
    pub received: u64,
    /// Received messages that had come before.
    pub received_again: u64,
}

/// The filter of a subscription without the prefix of a shared subscription.
pub(super) fn plain_filter(filter: &str) -> &str {
    match codec_mqtt::shared(filter) {
        Ok(Some(shared)) => shared.filter,
        _ => filter,
    }
}

pub(super) fn is_shared(filter: &str) -> bool {
    plain_filter(filter) != filter
}

fn matches(filter: &str, topic: &str) -> bool {
    codec_mqtt::matches(plain_filter(filter), topic)
}

impl MqttOracle {
    /// Whether faults since then can have no effects.
    pub(crate) fn no_faults_since(&self, then: Time) -> bool {
        self.faults_until < then
    }

    /// Adds a client. `queue`: the queue of its session, if the session survives connections.
    pub(crate) fn add(&mut self, mqtt_client: usize, queue: Option<String>) {
        self.subscribers.insert(mqtt_client, Subscriber::new(queue));
    }

    /// Adds an AMQP client that binds a queue of this name.
    pub(crate) fn add_bound_queue(&mut self, mqtt_client: usize, queue: &str) {
        let mut subscriber = Subscriber::new(Some(queue.to_owned()));
        subscriber.bound = true;
        self.subscribers.insert(mqtt_client, subscriber);
    }

    fn subscriber(&mut self, mqtt_client: usize) -> Result<&mut Subscriber, String> {
        let subscriber = self.subscribers.get_mut(&mqtt_client);
        subscriber.ok_or_else(|| format!("client {mqtt_client} is unknown"))
    }

    /// Sessions and shared subscriptions that cannot miss a message published now.
    fn owed(
        &self,
        now: Time,
        (topic, qos): (&str, Qos),
        find_bound_queue: QueueLookup<'_>,
    ) -> (BTreeSet<usize>, BTreeSet<String>) {
        let (mut owed, mut groups, mut lossy_groups) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        if qos == Qos::AtMostOnce {
            return (owed, groups);
        }
        for (mqtt_client, subscriber) in &self.subscribers {
            lossy_groups.extend(subscriber.lingering_groups(now).cloned());
            for (filter, subscription) in subscriber.subscriptions() {
                if !matches(filter, topic) || subscription.qos == Qos::AtMostOnce {
                    continue;
                }
                let Some(queue) = &subscriber.queue else {
                    // A member without a queue may get the message and lose it.
                    lossy_groups.insert(filter.clone());
                    continue;
                };
                // Unlike SUBACK, the answer to a bind does not mean that every node knows the binding.
                let is_calm = !subscriber.bound
                    && subscription.since.is_some()
                    && self.no_faults_since(subscription.subscribe_sent);
                let is_known = subscription.queue.is_some()
                    && find_bound_queue(queue, filter) == subscription.queue;
                if subscription.since.is_none() || !(is_calm || is_known) {
                    continue;
                }
                match is_shared(filter) {
                    true => drop(groups.insert(filter.clone())),
                    false => drop(owed.insert(*mqtt_client)),
                }
            }
        }
        groups.retain(|group| !lossy_groups.contains(group));
        (owed, groups)
    }

    /// A client publishes a message.
    pub(crate) fn sent(
        &mut self,
        now: Time,
        id: MessageId,
        (topic, qos): (&str, Qos),
        find_bound_queue: QueueLookup<'_>,
    ) {
        tracing::debug!(message = id.0, topic, ?qos, "posted");
        let (owed_clients, owed_groups) = self.owed(now, (topic, qos), find_bound_queue);
        let message = TrackedMessage {
            topic: topic.to_owned(),
            qos,
            sent: now,
            outcome: PublishOutcome::Open,
            may_come_twice: false,
            abandoned: None,
            first_owed: owed_clients.clone(),
            owed_clients,
            owed_groups,
            shared_receivers: BTreeMap::new(),
        };
        self.messages.insert(id, message);
    }

    /// The client sends a message again because it does not know whether the first one arrived. The acknowledgement is
    /// that of the repetition.
    pub(crate) fn sent_again(
        &mut self,
        now: Time,
        id: MessageId,
        find_bound_queue: QueueLookup<'_>,
    ) {
        self.resend(now, id, false, find_bound_queue);
    }

    /// The same within a session that the server has kept on the same shard. Without a fault since, the server accepts
    /// a QoS 2 message once [MQTT-4.3.3-10].
    pub(crate) fn sent_again_in_session(
        &mut self,
        now: Time,
        id: MessageId,
        find_bound_queue: QueueLookup<'_>,
    ) {
        let message = self.messages.get(&id);
        let is_once =
            message.is_some_and(|p| p.qos == Qos::ExactlyOnce && self.no_faults_since(p.sent));
        self.resend(now, id, is_once, find_bound_queue);
    }

    fn resend(
        &mut self,
        now: Time,
        id: MessageId,
        is_once: bool,
        find_bound_queue: QueueLookup<'_>,
    ) {
        tracing::debug!(message = id.0, is_once, "posted again");
        let Some((topic, qos)) = self.messages.get(&id).map(|p| (p.topic.clone(), p.qos)) else {
            return;
        };
        let (owed, groups) = self.owed(now, (&topic, qos), find_bound_queue);
        if let Some(message) = self.messages.get_mut(&id) {
            message.may_come_twice |= !is_once;
            message
                .owed_clients
                .retain(|mqtt_client| owed.contains(mqtt_client));
            message.owed_groups.retain(|group| groups.contains(group));
        }
    }

    /// The client abandons the connection on which it sent this QoS 0 message, and does not send it again.
    pub(crate) fn abandoned(&mut self, at: Time, connection: u64, id: MessageId) {
        if let Some(message) = self.messages.get_mut(&id) {
            message.abandoned = Some(AbandonedPublish { connection, at });
        }
    }

    pub(crate) fn acknowledged(&mut self, now: Time, id: MessageId) {
        tracing::debug!(message = id.0, "acknowledged");
        self.acknowledged += 1;
        if let Some(message) = self.messages.get_mut(&id) {
            message.outcome = PublishOutcome::Acknowledged(now);
        }
    }

    /// The outcome of the publish will not be known.
    pub(crate) fn unknown(&mut self, id: MessageId) {
        if let Some(message) = self.messages.get_mut(&id) {
            message.outcome = PublishOutcome::Unknown;
        }
    }

    /// A client has set a will on a connection.
    pub(crate) fn will_set(&mut self, now: Time, id: MessageId, topic: &str) {
        self.sent(now, id, (topic, Qos::AtLeastOnce), &|_, _| None);
        self.unknown(id);
        // The node that publishes the will may be unable to tell the one that keeps the copy.
        if let Some(message) = self.messages.get_mut(&id) {
            message.may_come_twice = true;
        }
    }

    /// The connection ends without DISCONNECT, and without a fault: the will must be published.
    pub(crate) fn will_due(&mut self, now: Time, id: MessageId, find_bound_queue: QueueLookup<'_>) {
        let Some((topic, qos)) = self.messages.get(&id).map(|p| (p.topic.clone(), p.qos)) else {
            return;
        };
        let (owed, owed_groups) = self.owed(now, (&topic, qos), find_bound_queue);
        if let Some(message) = self.messages.get_mut(&id) {
            message.sent = now;
            message.outcome = PublishOutcome::Acknowledged(now);
            message.may_come_twice = false;
            (message.owed_clients, message.owed_groups) = (owed, owed_groups);
        }
    }

    /// The node of the connection is killed, without another fault: the will must be published some time later.
    pub(crate) fn will_of_dead_node_due(
        &mut self,
        now: Time,
        id: MessageId,
        find_bound_queue: QueueLookup<'_>,
    ) {
        self.will_due(now, id, find_bound_queue);
        if let Some(message) = self.messages.get_mut(&id) {
            message.outcome = PublishOutcome::Due;
        }
    }

    /// The client sends DISCONNECT on a connection that began at `since`.
    pub(crate) fn will_cancelled(&mut self, since: Time, id: MessageId) {
        if let Some(message) = self.messages.get_mut(&id) {
            message.outcome = PublishOutcome::Cancelled(since);
        }
    }

    /// The client has sent DISCONNECT, and its connection ended because of that.
    pub(crate) fn will_must_not_come(&mut self, id: MessageId) {
        if let Some(message) = self.messages.get_mut(&id) {
            message.outcome = PublishOutcome::MustNotCome;
        }
    }

    /// The client has sent SUBSCRIBE.
    pub(crate) fn subscribe_sent(&mut self, now: Time, mqtt_client: usize, filter: &str, qos: Qos) {
        if let Ok(subscriber) = self.subscriber(mqtt_client) {
            subscriber.subscribe_sent(now, filter, qos);
        }
    }

    /// The client has received SUBACK.
    pub(crate) fn subscribed(
        &mut self,
        now: Time,
        mqtt_client: usize,
        filter: &str,
        find_bound_queue: QueueLookup<'_>,
    ) {
        tracing::debug!(mqtt_client, filter, "subscribed");
        if let Ok(subscriber) = self.subscriber(mqtt_client) {
            let queue = subscriber
                .queue
                .as_ref()
                .and_then(|q| find_bound_queue(q, filter));
            subscriber.subscribed(now, filter, queue);
        }
    }

    /// When the client received the first SUBACK for this filter.
    pub(crate) fn subscribed_since(&self, mqtt_client: usize, filter: &str) -> Option<Time> {
        let subscriber = self.subscribers.get(&mqtt_client)?;
        subscriber.since(filter)
    }

    pub(crate) fn is_subscribed(&self, mqtt_client: usize) -> bool {
        let subscriber = self.subscribers.get(&mqtt_client);
        subscriber.is_some_and(|l| {
            l.subscriptions()
                .any(|(_, subscription)| subscription.since.is_some())
        })
    }

    /// The client has sent UNSUBSCRIBE: messages on the way need not come any more.
    pub(crate) fn unsubscribe_sent(&mut self, mqtt_client: usize, filter: &str) {
        tracing::debug!(mqtt_client, filter, "unsubscribes");
        let Some(subscriber) = self.subscribers.get_mut(&mqtt_client) else {
            return;
        };
        subscriber.unsubscribe(filter);
        for message in self.messages.values_mut() {
            if !subscriber.is_subscribed_to(&message.topic) {
                message.owed_clients.remove(&mqtt_client);
                message.first_owed.remove(&mqtt_client);
            }
            message.owed_groups.remove(filter);
        }
    }

    /// The server's session may be the earlier one or another one.
    pub(crate) fn session_is_uncertain(&mut self, mqtt_client: usize) {
        if let Some(subscriber) = self.subscribers.get_mut(&mqtt_client) {
            subscriber.is_uncertain = true;
        }
    }

    /// The session has ended.
    pub(crate) fn session_ended(&mut self, mqtt_client: usize) {
        tracing::debug!(mqtt_client, "session over");
        let Some(subscriber) = self.subscribers.get_mut(&mqtt_client) else {
            return;
        };
        for message in self.messages.values_mut() {
            message.owed_clients.remove(&mqtt_client);
            message.first_owed.remove(&mqtt_client);
            for (filter, _) in subscriber.subscriptions() {
                message.owed_groups.remove(filter);
            }
        }
        subscriber.start_new_session();
    }

    /// The client's connection is accepted. The earlier one has ended, or ends when faults have no more effects.
    pub(crate) fn accepted(&mut self, now: Time, mqtt_client: usize) {
        let old_connection_ends_at = self.faults_until.max(now);
        if let Some(subscriber) = self.subscribers.get_mut(&mqtt_client) {
            subscriber.end_old_connections(old_connection_ends_at);
        }
    }

    /// A message has reached the application. `epoch`: the number of times that the session's connection moved to
    /// another shard.
    pub(crate) fn received(
        &mut self,
        now: Time,
        mqtt_client: usize,
        publish: &ReceivedPublish,
        epoch: u64,
    ) -> Result<(), String> {
        let ReceivedPublish {
            topic,
            qos,
            retained,
            ..
        } = publish;
        let subscriber = self.subscriber(mqtt_client)?;
        if !subscriber.ever_subscribed_to(topic) {
            return Err(format!(
                "client {mqtt_client} got a message of {topic} and never subscribed to it"
            ));
        }
        if publish.payload.is_empty() {
            // An empty payload clears the retained message.
            return Ok(());
        }
        let id = MessageId::read(&publish.payload)?;
        tracing::debug!(message = id.0, mqtt_client, ?qos, retained, "arrived");
        self.received += 1;
        let faults_until = self.faults_until;
        let message = self.messages.get_mut(&id);
        let message = message.ok_or_else(|| format!("{id:?} was never published"))?;
        if message.topic != *topic || *qos > message.qos {
            return Err(format!("{id:?} came as {topic} {qos:?} and is {message:?}"));
        }
        let must_not_come = match message.outcome {
            PublishOutcome::Cancelled(since) => faults_until < since,
            PublishOutcome::MustNotCome => true,
            _ => false,
        };
        if must_not_come {
            return Err(format!(
                "{id:?} is the will of a client that had said goodbye, or was back in time"
            ));
        }
        // Without a fault, a will comes when it is due, and once.
        let is_certain = match message.outcome {
            PublishOutcome::Delayed { since, due } if faults_until < since && now < due => {
                return Err(format!("{id:?} is a will that is not due before {due:?}"));
            }
            PublishOutcome::Delayed { since, .. } => faults_until < since,
            _ => false,
        };
        let may_come_twice = message.may_come_twice && !is_certain;
        if *retained {
            return Ok(());
        }
        message.owed_clients.remove(&mqtt_client);
        // A node that was paused or cut off reads the message when it continues, after the messages of the client's
        // next connection.
        let abandoned = message
            .abandoned
            .filter(|abandoned| faults_until >= abandoned.at);
        let receipt = ReceivedMessage {
            id,
            topic,
            qos: message.qos,
            granted_qos: *qos,
            sent: message.sent,
            may_come_twice,
            may_miss: may_come_twice && !message.first_owed.contains(&mqtt_client),
            abandoned: abandoned.map(|abandoned| abandoned.connection),
            acknowledged: match message.outcome {
                PublishOutcome::Acknowledged(at) => Some(at),
                _ => None,
            },
            epoch,
        };
        let subscriber = self.subscribers.get_mut(&mqtt_client);
        let came_before = subscriber.map(|l| l.check_receipt(&receipt)).transpose()?;
        self.received_again += u64::from(came_before == Some(true));
        self.check_shared_subscription(mqtt_client, id)
    }

    /// A message has reached an AMQP client. A repetition must be marked as redelivered, unless the message may exist
    /// twice.
    pub(crate) fn delivered_to_bound_queue(
        &mut self,
        now: Time,
        mqtt_client: usize,
        publish: &ReceivedPublish,
        redelivered: bool,
    ) -> Result<(), String> {
        let id = MessageId::read(&publish.payload)?;
        let may_come_twice = self
            .messages
            .get(&id)
            .is_some_and(|message| message.may_come_twice);
        let came_before = self
            .subscribers
            .get(&mqtt_client)
            .is_some_and(|l| l.has_received(id));
        if came_before && !redelivered && !may_come_twice {
            return Err(format!("{id:?} came to a queue twice, and is not marked"));
        }
        self.received(now, mqtt_client, publish, 0)
    }

    /// One member of each shared subscription gets the message, unless its client sent it twice.
    fn check_shared_subscription(
        &mut self,
        mqtt_client: usize,
        id: MessageId,
    ) -> Result<(), String> {
        let (Some(message), Some(subscriber)) = (
            self.messages.get_mut(&id),
            self.subscribers.get(&mqtt_client),
        ) else {
            return Ok(());
        };
        let Some(group) = subscriber.group_of(&message.topic) else {
            return Ok(());
        };
        let (group, sent) = (group.clone(), message.sent);
        message.owed_groups.remove(&group);
        let first = *message
            .shared_receivers
            .entry(group.clone())
            .or_insert(mqtt_client);
        // A session that ended before its acknowledgement was read leaves the message to another member (section
        // 4.8.2).
        let may_go_to_other_member = self
            .subscribers
            .get(&first)
            .is_some_and(|l| l.may_go_to_other_member(id));
        if first != mqtt_client && may_go_to_other_member {
            message.shared_receivers.insert(group.clone(), mqtt_client);
        } else if first != mqtt_client && !message.may_come_twice {
            return Err(format!(
                "{id:?} came to clients {first} and {mqtt_client}, which share {group}"
            ));
        }
        for other in self.subscribers.values_mut() {
            other.received_for_group(&group, sent);
        }
        Ok(())
    }

    /// Whether the client has received a message for this filter that was published after `since`.
    pub(crate) fn has_received_since(&self, mqtt_client: usize, filter: &str, since: Time) -> bool {
        let subscriber = self.subscribers.get(&mqtt_client);
        subscriber.is_some_and(|l| l.newest_of(filter) >= Some(since))
    }

    /// Number of the messages that the cluster still owes, and some of them.
    pub(crate) fn count_owed(&self) -> (u64, Vec<String>) {
        let is_open = |p: &&TrackedMessage| {
            p.outcome.is_owed() && !(p.owed_clients.is_empty() && p.owed_groups.is_empty())
        };
        let count = self.messages.values().filter(is_open).count() as u64;
        let all = self.messages.iter().filter(|(_, p)| is_open(p));
        let examples = all.take(4).map(|(id, p)| format!("{id:?} {p:?}"));
        (count, examples.collect())
    }

    pub(crate) fn published(&self) -> u64 {
        self.messages.len() as u64
    }
}
