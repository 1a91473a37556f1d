//! The server's own topics, `$SYS/...` (section 4.7.2): what it says of itself, as if it were retained, to clients that are
//! connected here. While nobody subscribes to them nothing is said and nothing is asked for.

use super::remote_subscribers::{ClientLocations, index};
use super::{MqttRouter, RouterOutput};
use crate::{Delivery, EnvelopeBuilder, SubscriberId};
use codec_mqtt::{Properties, Qos};
use env::{Time, WallTime};
use message::Message;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Filters that wait for what the server says, at most; who subscribes beyond that hears what changes.
const MAX_ASKING: usize = 4096;

/// Whether a topic, or a filter that is not shared, is one of the server's.
pub fn is_servers(topic: &str) -> bool {
    let below = topic.strip_prefix("$SYS");
    below.is_some_and(|below| below.is_empty() || below.starts_with('/'))
}

fn watches(filter: &str) -> bool {
    match filter.starts_with('$').then(|| codec_mqtt::shared(filter)) {
        None => false,
        Some(Ok(Some(shared))) => is_servers(shared.filter),
        Some(_) => is_servers(filter),
    }
}

#[derive(Default)]
pub(super) struct SysTopicTree {
    /// None: it says nothing.
    every: Option<Duration>,
    /// Subscriptions of connected clients, by vhost; none that is 0.
    watched: BTreeMap<Arc<str>, usize>,
    /// The last word on each topic; empty until the first came.
    said: BTreeMap<&'static str, Message>,
    /// Who is to be told all of it when that comes.
    asking: Vec<(SubscriberId, Box<str>)>,
    due: Option<Time>,
    /// [`RouterOutput::Figures`] is out.
    awaited: bool,
}

impl SysTopicTree {
    pub fn wake_at(&self) -> Option<Time> {
        self.due
    }

    /// Whether the figures are to be asked for.
    fn is_due(&mut self, now: Time) -> bool {
        self.due.take_if(|at| *at <= now).is_some() && !std::mem::replace(&mut self.awaited, true)
    }

    fn watch(&mut self, vhost: &Arc<str>, count: usize, more: bool) {
        if count == 0 || self.every.is_none() {
            return;
        }
        if more {
            *self.watched.entry(vhost.clone()).or_default() += count;
            // So that there is something to compare with.
            if self.said.is_empty() && !self.awaited {
                self.due = Some(Time::ZERO);
            }
            return;
        }
        if let Some(there) = self.watched.get_mut(vhost) {
            *there = there.saturating_sub(count);
            if *there == 0 {
                self.watched.remove(vhost);
            }
        }
        if self.watched.is_empty() {
            self.said.clear();
            self.asking = Vec::new();
            self.due = None;
        }
    }
}

impl MqttRouter {
    /// The server's own topics are renewed that often; None: there are none.
    pub fn set_server_interval(&mut self, every: Option<Duration>) {
        self.server.every = every;
    }

    /// Counts the server's topics among the subscriptions of a client that is connected, or takes them back.
    pub(super) fn watch_all(&mut self, who: SubscriberId, more: bool) {
        let Some(entry) = self.subscribers.get(index(who)) else {
            return;
        };
        if entry.is_connected() {
            let count = entry.filters().iter().filter(|(f, _)| watches(f)).count();
            self.server.watch(entry.vhost(), count, more);
        }
    }

    /// The same for one of its filters.
    pub(super) fn watch(&mut self, who: SubscriberId, filter: &str, more: bool) {
        if watches(filter)
            && let Some(entry) = self.subscribers.get(index(who))
            && entry.is_connected()
        {
            self.server.watch(entry.vhost(), 1, more);
        }
    }

    pub(super) fn tick_server(&mut self, now: Time) {
        if self.server.is_due(now) {
            self.outputs.push_back(RouterOutput::Figures);
        }
    }

    /// What the server says now goes to a client that has just subscribed: to `found`, or when it is known.
    pub(super) fn ask_server(
        &mut self,
        subscriber: SubscriberId,
        filter: &str,
        limit: usize,
        found: &mut Vec<Delivery>,
    ) {
        let server = &mut self.server;
        if server.every.is_none() || !is_servers(filter) {
            return;
        }
        if server.said.is_empty() {
            if server.asking.len() < MAX_ASKING {
                server.asking.push((subscriber, filter.into()));
            }
            server.due = Some(Time::ZERO);
            return self.tick_server(Time::ZERO);
        }
        let entry = self.subscribers.get(index(subscriber));
        let subscription = entry.and_then(|entry| entry.filters().get(filter));
        let room = limit.saturating_sub(found.len());
        let matching = self.server.said.iter();
        let matching = matching.filter(|(topic, _)| codec_mqtt::matches(filter, topic));
        let hits = subscription.map(|subscription| subscription.hit());
        found.extend(matching.take(room).map(|(_, message)| Delivery {
            group: 0,
            message: message.clone(),
            hits: hits.into_iter().collect(),
            retained: true,
        }));
    }

    /// The answer to [`RouterOutput::Figures`]: each of the server's topics with what it says. `exchange` is the one of MQTT clients.
    pub fn say_figures(
        &mut self,
        (now, wall): (Time, WallTime),
        exchange: &str,
        figures: impl IntoIterator<Item = (&'static str, String)>,
    ) {
        self.server.awaited = false;
        if self.server.watched.is_empty() {
            return;
        }
        self.server.due = self.server.every.map(|every| now + every);
        for (topic, value) in figures {
            let before = self.server.said.get(topic);
            if before.is_some_and(|before| before.body() == value.as_bytes()) {
                continue;
            }
            let known = before.is_some();
            let key = crate::RoutingKey::of(topic);
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
                self.tell_watchers(topic, &message);
            }
            self.server.said.insert(topic, message);
        }
        self.tell_askers();
    }

    /// A topic says something new.
    fn tell_watchers(&mut self, topic: &str, message: &Message) {
        let vhosts: SmallVec<[Arc<str>; 4]> = self.server.watched.keys().cloned().collect();
        for vhost in vhosts {
            let mut found = std::mem::take(&mut self.found);
            found.clear();
            let seats = &ClientLocations {
                subscribers: &self.subscribers,
                routers: &self.routers,
            };
            if let Some(there) = self.vhosts.get_mut(&vhost) {
                there.routes.find(topic, false, seats, &mut found);
            }
            // Other hubs tell their own; no queue has messages of QoS 0.
            self.hand_out(&found.here, message, &mut Vec::new());
            self.found = found;
        }
    }

    /// Those who subscribed before there was anything to say.
    fn tell_askers(&mut self) {
        for (subscriber, filter) in std::mem::take(&mut self.server.asking) {
            let mut found = Vec::new();
            self.ask_server(subscriber, &filter, usize::MAX, &mut found);
            let entry = self.subscribers.get(index(subscriber));
            if let Some(session) = entry.and_then(|entry| entry.session()) {
                let deliver = |delivery| RouterOutput::Deliver { session, delivery };
                self.outputs.extend(found.into_iter().map(deliver));
            }
        }
    }
}
