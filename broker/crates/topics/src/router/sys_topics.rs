//! The topics `$SYS/...` (section 4.7.2): statistics of the server, delivered like retained
//! messages to clients that are connected here. Nothing is published or collected while nobody
//! subscribes to them.

use super::remote_subscribers::{ClientLocations, index};
use super::{MqttRouter, RouterOutput};
use crate::{Delivery, SubscriberId};
use codec_mqtt::{Properties, Qos};
use conversion::mqtt::{EnvelopeBuilder, RoutingKey};
use env::{Time, WallTime};
use message::Message;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Maximum number of subscriptions that wait for the first values. Further subscribers only receive
/// changes.
const MAX_WAITING: usize = 4096;

/// Returns true if a topic or a non-shared filter is below `$SYS`.
pub fn is_sys_topic(topic: &str) -> bool {
    let below = topic.strip_prefix("$SYS");
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

fn is_sys_topic_filter(filter: &str) -> bool {
    match filter.starts_with('$').then(|| codec_mqtt::shared(filter)) {
        None => false,
        Some(Ok(Some(shared))) => is_sys_topic(shared.filter),
        Some(_) => is_sys_topic(filter),
    }
}

#[derive(Default)]
pub(super) struct SysTopicTree {
    /// The interval between updates; `None` disables the topics.
    interval: Option<Duration>,
    /// Number of subscriptions of connected clients per vhost; vhosts with none have no entry.
    subscriptions: BTreeMap<Arc<str>, usize>,
    /// The latest message of each topic; empty until the first values arrive.
    latest: BTreeMap<&'static str, Message>,
    /// Subscriptions that get all values as soon as these arrive.
    waiting: Vec<(SubscriberId, Box<str>)>,
    next_update: Option<Time>,
    /// [`RouterOutput::SysTopicsDue`] is unanswered.
    is_requested: bool,
}

impl SysTopicTree {
    pub(super) fn wake_at(&self) -> Option<Time> {
        self.next_update
    }

    /// Returns true if the values must be requested now.
    fn is_due(&mut self, now: Time) -> bool {
        self.next_update.take_if(|at| *at <= now).is_some()
            && !std::mem::replace(&mut self.is_requested, true)
    }

    fn count_subscription(&mut self, vhost: &Arc<str>, count: usize, add: bool) {
        if count == 0 || self.interval.is_none() {
            return;
        }
        if add {
            *self.subscriptions.entry(vhost.clone()).or_default() += count;
            // Fetch the values once, so that later updates can be compared with them.
            if self.latest.is_empty() && !self.is_requested {
                self.next_update = Some(Time::ZERO);
            }
            return;
        }
        if let Some(current) = self.subscriptions.get_mut(vhost) {
            *current = current.saturating_sub(count);
            if *current == 0 {
                self.subscriptions.remove(vhost);
            }
        }
        if self.subscriptions.is_empty() {
            self.latest.clear();
            self.waiting = Vec::new();
            self.next_update = None;
        }
    }
}

impl MqttRouter {
    /// Sets the interval between updates; `None` disables the topics.
    pub fn set_sys_topic_interval(&mut self, interval: Option<Duration>) {
        self.sys_topics.interval = interval;
    }

    /// Counts the `$SYS` subscriptions of a connected client, or removes them from the count.
    pub(super) fn count_sys_subscriptions(&mut self, subscriber: SubscriberId, add: bool) {
        let Some(entry) = self.subscribers.get(index(subscriber)) else {
            return;
        };
        if entry.is_connected() {
            let count = entry
                .filters()
                .iter()
                .filter(|(f, _)| is_sys_topic_filter(f))
                .count();
            self.sys_topics
                .count_subscription(entry.vhost(), count, add);
        }
    }

    /// Like `count_sys_subscriptions`, for one filter.
    pub(super) fn count_sys_subscription(
        &mut self,
        subscriber: SubscriberId,
        filter: &str,
        add: bool,
    ) {
        if is_sys_topic_filter(filter)
            && let Some(entry) = self.subscribers.get(index(subscriber))
            && entry.is_connected()
        {
            self.sys_topics.count_subscription(entry.vhost(), 1, add);
        }
    }

    pub(super) fn tick_sys_topics(&mut self, now: Time) {
        if self.sys_topics.is_due(now) {
            self.outputs.push_back(RouterOutput::SysTopicsDue);
        }
    }

    /// Appends the current values to `found` for a client that has just subscribed, or remembers
    /// the subscription until there are values.
    pub(super) fn append_sys_topics(
        &mut self,
        subscriber: SubscriberId,
        filter: &str,
        limit: usize,
        found: &mut Vec<Delivery>,
    ) {
        let server = &mut self.sys_topics;
        if server.interval.is_none() || !is_sys_topic(filter) {
            return;
        }
        if server.latest.is_empty() {
            if server.waiting.len() < MAX_WAITING {
                server.waiting.push((subscriber, filter.into()));
            }
            server.next_update = Some(Time::ZERO);
            return self.tick_sys_topics(Time::ZERO);
        }
        let entry = self.subscribers.get(index(subscriber));
        let subscription = entry.and_then(|entry| entry.filters().get(filter));
        let room = limit.saturating_sub(found.len());
        let matching = self.sys_topics.latest.iter();
        let matching = matching.filter(|(topic, _)| codec_mqtt::matches(filter, topic));
        let hits = subscription.map(|subscription| subscription.to_match());
        found.extend(matching.take(room).map(|(_, message)| Delivery {
            group: 0,
            message: message.clone(),
            hits: hits.into_iter().collect(),
            retained: true,
        }));
    }

    /// Answers [`RouterOutput::SysTopicsDue`] with the value of each topic. `exchange` is the exchange
    /// of MQTT messages.
    pub fn set_sys_topics(
        &mut self,
        (now, wall): (Time, WallTime),
        exchange: &str,
        values: impl IntoIterator<Item = (&'static str, String)>,
    ) {
        self.sys_topics.is_requested = false;
        if self.sys_topics.subscriptions.is_empty() {
            return;
        }
        self.sys_topics.next_update = self.sys_topics.interval.map(|interval| now + interval);
        for (topic, value) in values {
            let before = self.sys_topics.latest.get(topic);
            if before.is_some_and(|before| before.body() == value.as_bytes()) {
                continue;
            }
            let known = before.is_some();
            let key = RoutingKey::of(topic);
            let builder = EnvelopeBuilder {
                qos: Qos::AtMostOnce,
                retain: true,
                topic,
                properties: &Properties::default(),
                exchange,
                key: key.as_str(),
                received: wall,
            };
            let Some(message) = builder.build(value.as_bytes()) else {
                continue;
            };
            if known {
                self.deliver_sys_topic(topic, &message);
            }
            self.sys_topics.latest.insert(topic, message);
        }
        self.deliver_to_waiting();
    }

    /// Delivers the new value of a topic.
    fn deliver_sys_topic(&mut self, topic: &str, message: &Message) {
        let vhosts: SmallVec<[Arc<str>; 4]> =
            self.sys_topics.subscriptions.keys().cloned().collect();
        for vhost in vhosts {
            let mut found = std::mem::take(&mut self.found);
            found.clear();
            let locations = &ClientLocations {
                subscribers: &self.subscribers,
                routers: &self.routers,
            };
            if let Some(vhost_state) = self.vhosts.get_mut(&vhost) {
                vhost_state
                    .routes
                    .find(topic, false, locations, &mut self.cache, &mut found);
            }
            // Each router informs its own clients, and QoS 0 messages go to no queue.
            self.deliver_local(&found.here, message, &mut Vec::new());
            self.found = found;
        }
    }

    /// Delivers the values to clients that subscribed before there were any.
    fn deliver_to_waiting(&mut self) {
        for (subscriber, filter) in std::mem::take(&mut self.sys_topics.waiting) {
            let mut found = Vec::new();
            self.append_sys_topics(subscriber, &filter, usize::MAX, &mut found);
            let entry = self.subscribers.get(index(subscriber));
            if let Some(session) = entry.and_then(|entry| entry.session()) {
                let deliver = |delivery| RouterOutput::Deliver { session, delivery };
                self.outputs.extend(found.into_iter().map(deliver));
            }
        }
    }
}
