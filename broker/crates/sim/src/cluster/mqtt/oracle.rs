//! The account of all that MQTT clients published, and the rules that what reaches them must keep.
//!
//! An acknowledgement makes the cluster answerable for a message: each session that outlives its connection and was subscribed
//! gets it, at least once. Who is subscribed is what the clients know (SUBACK), and for a publisher whose node had not heard of that
//! what its node knows: a node that is cut off cannot be waited for.

mod delayed_wills;
mod subscriber;

use super::tracked_message::MessageId;
use super::wire::ReceivedPublish;
use codec_mqtt::Qos;
use env::Time;
use metadata::QueueId;
use std::collections::{BTreeMap, BTreeSet};
use subscriber::Subscriber;

pub use subscriber::ReceivedMessage;

#[cfg(test)]
mod tests;

/// What the publisher knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PublishOutcome {
    Open,
    Acknowledged(Time),
    /// A will that is to be published when its client's node has been away for long enough.
    Due,
    /// Refused, or never answered, or of QoS 0: it may come or not.
    Unknown,
    /// A will that is not to be published: its client, with a connection of then, said goodbye or came back in time.
    Cancelled(Time),
    /// The same, and nothing can have kept the goodbye from being heard.
    Forsworn,
    /// A will of a connection of then that is not to be published before it is due, and that is to be when its client has left.
    Waits {
        since: Time,
        due: Time,
    },
}

impl PublishOutcome {
    /// The cluster answers for it, or will when its time has come.
    fn is_open(self) -> bool {
        matches!(
            self,
            PublishOutcome::Acknowledged(_) | PublishOutcome::Due | PublishOutcome::Waits { .. }
        )
    }
}

/// A connection that its client has left for another one.
#[derive(Clone, Copy, Debug)]
struct AbandonedConnection {
    connection: u64,
    at: Time,
}

#[derive(Clone, Debug)]
struct TrackedMessage {
    topic: String,
    qos: Qos,
    sent: Time,
    outcome: PublishOutcome,
    /// By its client, which does not know whether it has arrived: there may be two of it.
    again: bool,
    /// With QoS 0: the connection on which its client sent it, when that was left.
    left: Option<AbandonedConnection>,
    /// Sessions that are to have it, by device; and those that could not miss it when it was sent first.
    owed: BTreeSet<usize>,
    first: BTreeSet<usize>,
    /// Groups that are to have it.
    owed_groups: BTreeSet<String>,
    /// Who got it of those that share a subscription.
    shared: BTreeMap<String, usize>,
}

/// What the place that a client is connected to knows of a session's queue with this name and a filter of it: the queue that has it.
pub type QueueLookup<'a> = &'a dyn Fn(&str, &str) -> Option<QueueId>;

#[derive(Default)]
pub struct MqttOracle {
    posts: BTreeMap<MessageId, TrackedMessage>,
    listeners: BTreeMap<usize, Subscriber>,
    /// Wills that clients have left and that are to come.
    waiting: BTreeSet<MessageId>,
    /// Until when something may be wrong with net or nodes, as the ledger has it.
    pub disturbed: Time,
    pub acknowledged: u64,
    pub received: u64,
    /// Of those, the ones that had come before.
    pub received_again: u64,
}

/// A shared subscription's filter without what makes it one.
pub fn plain(filter: &str) -> &str {
    match codec_mqtt::shared(filter) {
        Ok(Some(shared)) => shared.filter,
        _ => filter,
    }
}

pub fn is_shared(filter: &str) -> bool {
    plain(filter) != filter
}

fn matches(filter: &str, topic: &str) -> bool {
    codec_mqtt::matches(plain(filter), topic)
}

impl MqttOracle {
    /// Nothing was wrong since then.
    pub fn calm_since(&self, then: Time) -> bool {
        self.disturbed < then
    }

    /// A client of the workload; `queue`: of its session, if that outlives connections.
    pub fn join(&mut self, mqtt_client: usize, queue: Option<String>) {
        self.listeners.insert(mqtt_client, Subscriber::new(queue));
    }

    /// A client of AMQP that binds a queue of this name.
    pub fn join_bound(&mut self, mqtt_client: usize, queue: &str) {
        let mut listener = Subscriber::new(Some(queue.to_owned()));
        listener.bound = true;
        self.listeners.insert(mqtt_client, listener);
    }

    fn listener(&mut self, mqtt_client: usize) -> Result<&mut Subscriber, String> {
        let listener = self.listeners.get_mut(&mqtt_client);
        listener.ok_or_else(|| format!("device {mqtt_client} is nobody"))
    }

    /// Sessions and groups that cannot miss what is published now.
    fn owed(
        &self,
        now: Time,
        (topic, qos): (&str, Qos),
        knows: QueueLookup<'_>,
    ) -> (BTreeSet<usize>, BTreeSet<String>) {
        let (mut owed, mut groups, mut loose) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        if qos == Qos::AtMostOnce {
            return (owed, groups);
        }
        for (mqtt_client, listener) in &self.listeners {
            loose.extend(listener.lingering(now).cloned());
            for (filter, sub) in listener.subscriptions() {
                if !matches(filter, topic) || sub.qos == Qos::AtMostOnce {
                    continue;
                }
                let Some(queue) = &listener.queue else {
                    // A member without a queue may take it along.
                    loose.insert(filter.clone());
                    continue;
                };
                // Who binds a queue is not told that every node knows of it, as SUBACK tells.
                let calm = !listener.bound && sub.since.is_some() && self.calm_since(sub.asked);
                let known = sub.queue.is_some() && knows(queue, filter) == sub.queue;
                if sub.since.is_none() || !(calm || known) {
                    continue;
                }
                match is_shared(filter) {
                    true => drop(groups.insert(filter.clone())),
                    false => drop(owed.insert(*mqtt_client)),
                }
            }
        }
        groups.retain(|group| !loose.contains(group));
        (owed, groups)
    }

    /// A client publishes.
    pub fn sent(
        &mut self,
        now: Time,
        id: MessageId,
        (topic, qos): (&str, Qos),
        knows: QueueLookup<'_>,
    ) {
        tracing::debug!(post = id.0, topic, ?qos, "posted");
        let (owed, owed_groups) = self.owed(now, (topic, qos), knows);
        let post = TrackedMessage {
            topic: topic.to_owned(),
            qos,
            sent: now,
            outcome: PublishOutcome::Open,
            again: false,
            left: None,
            first: owed.clone(),
            owed,
            owed_groups,
            shared: BTreeMap::new(),
        };
        self.posts.insert(id, post);
    }

    /// It does not know whether it came, and publishes it again: what is acknowledged is this.
    pub fn sent_again(&mut self, now: Time, id: MessageId, knows: QueueLookup<'_>) {
        self.repeated(now, id, false, knows);
    }

    /// The same in a session that the server has kept since, at the same place: it takes a message of QoS 2 once, if nothing was
    /// wrong meanwhile [MQTT-4.3.3-10].
    pub fn sent_again_in_session(&mut self, now: Time, id: MessageId, knows: QueueLookup<'_>) {
        let post = self.posts.get(&id);
        let once = post.is_some_and(|p| p.qos == Qos::ExactlyOnce && self.calm_since(p.sent));
        self.repeated(now, id, once, knows);
    }

    fn repeated(&mut self, now: Time, id: MessageId, once: bool, knows: QueueLookup<'_>) {
        tracing::debug!(post = id.0, once, "posted again");
        let Some((topic, qos)) = self.posts.get(&id).map(|p| (p.topic.clone(), p.qos)) else {
            return;
        };
        let (owed, groups) = self.owed(now, (&topic, qos), knows);
        if let Some(post) = self.posts.get_mut(&id) {
            post.again |= !once;
            post.owed.retain(|mqtt_client| owed.contains(mqtt_client));
            post.owed_groups.retain(|group| groups.contains(group));
        }
    }

    /// Its client leaves the connection on which it sent this with QoS 0, and sends nothing of it again.
    pub fn left_behind(&mut self, at: Time, connection: u64, id: MessageId) {
        if let Some(post) = self.posts.get_mut(&id) {
            post.left = Some(AbandonedConnection { connection, at });
        }
    }

    pub fn acknowledged(&mut self, now: Time, id: MessageId) {
        tracing::debug!(post = id.0, "acknowledged");
        self.acknowledged += 1;
        if let Some(post) = self.posts.get_mut(&id) {
            post.outcome = PublishOutcome::Acknowledged(now);
        }
    }

    /// Nobody will say what became of it.
    pub fn unknown(&mut self, id: MessageId) {
        if let Some(post) = self.posts.get_mut(&id) {
            post.outcome = PublishOutcome::Unknown;
        }
    }

    /// A client has a will while its connection lasts.
    pub fn willed(&mut self, now: Time, id: MessageId, topic: &str) {
        self.sent(now, id, (topic, Qos::AtLeastOnce), &|_, _| None);
        self.unknown(id);
        // Who publishes it may be unable to tell whoever keeps it.
        if let Some(post) = self.posts.get_mut(&id) {
            post.again = true;
        }
    }

    /// The connection ends without a word, and nothing is wrong: the will is published.
    pub fn will_is_due(&mut self, now: Time, id: MessageId, knows: QueueLookup<'_>) {
        let Some((topic, qos)) = self.posts.get(&id).map(|p| (p.topic.clone(), p.qos)) else {
            return;
        };
        let (owed, owed_groups) = self.owed(now, (&topic, qos), knows);
        if let Some(post) = self.posts.get_mut(&id) {
            post.sent = now;
            post.outcome = PublishOutcome::Acknowledged(now);
            post.again = false;
            (post.owed, post.owed_groups) = (owed, owed_groups);
        }
    }

    /// The node of its connection dies, and nothing else is wrong: the will is published by and by.
    pub fn will_becomes_due(&mut self, now: Time, id: MessageId, knows: QueueLookup<'_>) {
        self.will_is_due(now, id, knows);
        if let Some(post) = self.posts.get_mut(&id) {
            post.outcome = PublishOutcome::Due;
        }
    }

    /// The client says goodbye on a connection of `since`.
    pub fn will_is_cancelled(&mut self, since: Time, id: MessageId) {
        if let Some(post) = self.posts.get_mut(&id) {
            post.outcome = PublishOutcome::Cancelled(since);
        }
    }

    /// The client has said goodbye, and its connection ended for that.
    pub fn will_is_forsworn(&mut self, id: MessageId) {
        if let Some(post) = self.posts.get_mut(&id) {
            post.outcome = PublishOutcome::Forsworn;
        }
    }

    /// SUBSCRIBE is sent.
    pub fn asked(&mut self, now: Time, mqtt_client: usize, filter: &str, qos: Qos) {
        if let Ok(listener) = self.listener(mqtt_client) {
            listener.asked(now, filter, qos);
        }
    }

    /// SUBACK has come.
    pub fn subscribed(
        &mut self,
        now: Time,
        mqtt_client: usize,
        filter: &str,
        knows: QueueLookup<'_>,
    ) {
        tracing::debug!(mqtt_client, filter, "subscribed");
        if let Ok(listener) = self.listener(mqtt_client) {
            let queue = listener.queue.as_ref().and_then(|q| knows(q, filter));
            listener.subscribed(now, filter, queue);
        }
    }

    /// When the device was told that it is subscribed, last.
    pub fn subscribed_since(&self, mqtt_client: usize, filter: &str) -> Option<Time> {
        let listener = self.listeners.get(&mqtt_client)?;
        listener.since(filter)
    }

    pub fn is_subscribed(&self, mqtt_client: usize) -> bool {
        let listener = self.listeners.get(&mqtt_client);
        listener.is_some_and(|l| l.subscriptions().any(|(_, sub)| sub.since.is_some()))
    }

    /// UNSUBSCRIBE is sent: messages that are under way need not come any more.
    pub fn leaves(&mut self, mqtt_client: usize, filter: &str) {
        tracing::debug!(mqtt_client, filter, "unsubscribes");
        let Some(listener) = self.listeners.get_mut(&mqtt_client) else {
            return;
        };
        listener.left(filter);
        for post in self.posts.values_mut() {
            if !listener.wants(&post.topic) {
                post.owed.remove(&mqtt_client);
                post.first.remove(&mqtt_client);
            }
            post.owed_groups.remove(filter);
        }
    }

    /// The session that is there may be the one before or another one.
    pub fn session_is_unclear(&mut self, mqtt_client: usize) {
        if let Some(listener) = self.listeners.get_mut(&mqtt_client) {
            listener.unclear = true;
        }
    }

    /// The session is over.
    pub fn session_over(&mut self, mqtt_client: usize) {
        tracing::debug!(mqtt_client, "session over");
        let Some(listener) = self.listeners.get_mut(&mqtt_client) else {
            return;
        };
        for post in self.posts.values_mut() {
            post.owed.remove(&mqtt_client);
            post.first.remove(&mqtt_client);
            for (filter, _) in listener.subscriptions() {
                post.owed_groups.remove(filter);
            }
        }
        listener.begin_anew();
    }

    /// A connection is accepted: the one before has ended, or does when nothing is wrong any more.
    pub fn accepted(&mut self, now: Time, mqtt_client: usize) {
        let ended = self.disturbed.max(now);
        if let Some(listener) = self.listeners.get_mut(&mqtt_client) {
            listener.ended(ended);
        }
    }

    /// A message has reached the application. `epoch`: how often the session's connection came to another place.
    pub fn arrived(
        &mut self,
        now: Time,
        mqtt_client: usize,
        arrival: &ReceivedPublish,
        epoch: u64,
    ) -> Result<(), String> {
        let ReceivedPublish {
            topic,
            qos,
            retained,
            ..
        } = arrival;
        let listener = self.listener(mqtt_client)?;
        if !listener.ever_wanted(topic) {
            return Err(format!(
                "device {mqtt_client} got a message of {topic} and never asked for that"
            ));
        }
        if arrival.payload.is_empty() {
            // Clears what is retained.
            return Ok(());
        }
        let id = MessageId::read(&arrival.payload)?;
        tracing::debug!(post = id.0, mqtt_client, ?qos, retained, "arrived");
        self.received += 1;
        let calm = self.disturbed;
        let post = self.posts.get_mut(&id);
        let post = post.ok_or_else(|| format!("{id:?} was never published"))?;
        if post.topic != *topic || *qos > post.qos {
            return Err(format!("{id:?} came as {topic} {qos:?} and is {post:?}"));
        }
        let forsworn = match post.outcome {
            PublishOutcome::Cancelled(since) => calm < since,
            PublishOutcome::Forsworn => true,
            _ => false,
        };
        if forsworn {
            return Err(format!(
                "{id:?} is the will of a client that had said goodbye, or was back in time"
            ));
        }
        // When nothing is wrong a will comes at its time, and once.
        let surely = match post.outcome {
            PublishOutcome::Waits { since, due } if calm < since && now < due => {
                return Err(format!("{id:?} is a will that is not due before {due:?}"));
            }
            PublishOutcome::Waits { since, .. } => calm < since,
            _ => false,
        };
        let again = post.again && !surely;
        if *retained {
            return Ok(());
        }
        post.owed.remove(&mqtt_client);
        // A node that stood still, or was cut off, reads it when it goes on: after what its client sent on the next connection.
        let left = post.left.filter(|left| calm >= left.at);
        let receipt = ReceivedMessage {
            id,
            topic,
            qos: post.qos,
            given: *qos,
            sent: post.sent,
            again,
            missed: again && !post.first.contains(&mqtt_client),
            left: left.map(|left| left.connection),
            acknowledged: match post.outcome {
                PublishOutcome::Acknowledged(at) => Some(at),
                _ => None,
            },
            epoch,
        };
        let listener = self.listeners.get_mut(&mqtt_client);
        let before = listener.map(|l| l.takes(&receipt)).transpose()?;
        self.received_again += u64::from(before == Some(true));
        self.shared(mqtt_client, id)
    }

    /// A message has reached a client of AMQP. What it had before must be marked, unless there may be two of it.
    pub fn tapped(
        &mut self,
        now: Time,
        mqtt_client: usize,
        arrival: &ReceivedPublish,
        redelivered: bool,
    ) -> Result<(), String> {
        let id = MessageId::read(&arrival.payload)?;
        let twice = self.posts.get(&id).is_some_and(|post| post.again);
        let came = self.listeners.get(&mqtt_client).is_some_and(|l| l.has(id));
        if came && !redelivered && !twice {
            return Err(format!("{id:?} came to a queue twice, and is not marked"));
        }
        self.arrived(now, mqtt_client, arrival, 0)
    }

    /// One of each group gets it, unless its client published it twice.
    fn shared(&mut self, mqtt_client: usize, id: MessageId) -> Result<(), String> {
        let (Some(post), Some(listener)) =
            (self.posts.get_mut(&id), self.listeners.get(&mqtt_client))
        else {
            return Ok(());
        };
        let Some(group) = listener.group_of(&post.topic) else {
            return Ok(());
        };
        let (group, sent) = (group.clone(), post.sent);
        post.owed_groups.remove(&group);
        let first = *post.shared.entry(group.clone()).or_insert(mqtt_client);
        // A session that ended before its acknowledgement was read leaves the message to another member (section 4.8.2).
        let is_handed_over = self
            .listeners
            .get(&first)
            .is_some_and(|l| l.is_handed_over(id));
        if first != mqtt_client && is_handed_over {
            post.shared.insert(group.clone(), mqtt_client);
        } else if first != mqtt_client && !post.again {
            return Err(format!(
                "{id:?} came to devices {first} and {mqtt_client}, which share {group}"
            ));
        }
        for other in self.listeners.values_mut() {
            other.heard(&group, sent);
        }
        Ok(())
    }

    /// Whether the device has heard something of the filter that was published since.
    pub fn has_heard(&self, mqtt_client: usize, filter: &str, since: Time) -> bool {
        let listener = self.listeners.get(&mqtt_client);
        listener.is_some_and(|l| l.newest(filter) >= Some(since))
    }

    /// Messages that the cluster still owes, and some of them.
    pub fn owes(&self) -> (u64, Vec<String>) {
        let open = |p: &&TrackedMessage| {
            p.outcome.is_open() && !(p.owed.is_empty() && p.owed_groups.is_empty())
        };
        let count = self.posts.values().filter(open).count() as u64;
        let all = self.posts.iter().filter(|(_, p)| open(p));
        let some = all.take(4).map(|(id, p)| format!("{id:?} {p:?}"));
        (count, some.collect())
    }

    pub fn posted(&self) -> u64 {
        self.posts.len() as u64
    }
}
