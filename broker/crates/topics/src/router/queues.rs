//! Clients whose messages of QoS 1 and 2 are in a queue of their own: what the hub does for them, and what it leaves to the queue.

use super::MqttRouter;
use super::subscriber::SeatOwner;
use crate::routes::RouteMatch;
use crate::{SubscriberId, Subscription};
use codec_mqtt::Qos;
use message::Message;

/// Subscriptions of a client up to which they are compared one by one.
const FEW: usize = 32;

impl MqttRouter {
    /// The client's messages of QoS 1 and 2 go through this queue, which is bound to the filters of its own subscriptions: the
    /// hub hands out the rest.
    pub fn store_in(&mut self, subscriber: SubscriberId, queue: u64) {
        self.count_all(subscriber, false);
        if let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) {
            entry.queue = queue;
        }
        self.count_all(subscriber, true);
    }

    /// The session that had this queue is over, and the queue is being deleted.
    pub fn queue_ends(&mut self, queue: u64) {
        self.ending.insert(queue);
    }

    /// Whether [`MqttRouter::queue_ends`] was said of a queue that is still there.
    pub fn is_ending(&self, queue: u64) -> bool {
        self.ending.contains(&queue)
    }

    /// A client's queue is gone, and with it the session, unless a connection has that: it hears itself.
    pub fn queue_gone(&mut self, vhost: &str, client: &str, queue: u64) {
        self.ending.remove(&queue);
        let Some(subscriber) = self.client(vhost, client) else {
            return;
        };
        let entry = self.subscribers.get(subscriber.0 as usize);
        if entry.is_some_and(|e| e.queue == queue && !e.is_connected()) {
            self.forget(subscriber);
        }
    }

    /// A client whose session is in this queue shares a subscription, wherever its connection is or was. One that is connected
    /// here says so itself.
    pub fn adopt(
        &mut self,
        (vhost, client): (&str, &str),
        queue: u64,
        filter: &str,
        subscription: Subscription,
    ) {
        let subscriber = match self.client(vhost, client) {
            Some(known) => known,
            None => {
                let subscriber = self.seat_new(vhost, client, 0, 0);
                if let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) {
                    entry.queue = queue;
                    entry.sit(SeatOwner::Away(Box::default()));
                    self.parked += 1;
                }
                subscriber
            }
        };
        let entry = self.subscribers.get(subscriber.0 as usize);
        if entry.is_some_and(|e| e.queue == queue && !e.is_connected()) {
            self.subscribe(subscriber, filter, subscription);
        }
    }

    /// Undoes [`MqttRouter::adopt`] for one filter.
    pub fn disown(&mut self, (vhost, client): (&str, &str), filter: &str) {
        let Some(subscriber) = self.client(vhost, client) else {
            return;
        };
        let entry = self.subscribers.get(subscriber.0 as usize);
        if entry.is_some_and(|e| !e.is_connected()) {
            self.unsubscribe(subscriber, filter);
        }
    }

    /// A client's subscription with this filter.
    pub fn subscription(&self, subscriber: SubscriberId, filter: &str) -> Option<Subscription> {
        let entry = self.subscribers.get(subscriber.0 as usize)?;
        entry.filters().get(filter)
    }

    /// Appends a client's subscriptions for which its queue gave it a message: if none that is not shared puts such messages there, it was
    /// chosen for one that is.
    pub fn matching(
        &mut self,
        subscriber: SubscriberId,
        topic: &str,
        found: &mut Vec<Subscription>,
    ) {
        let Some(entry) = self.subscribers.get(subscriber.0 as usize) else {
            return;
        };
        if entry.filters().len() > FEW {
            if let Some(vhost) = self.vhosts.get_mut(entry.vhost()) {
                vhost.routes.find_of(topic, subscriber, found);
            }
            return;
        }
        let before = found.len();
        for shared in [false, true] {
            let own = found.len();
            let all = entry.filters().iter();
            found.extend(
                all.filter(|(filter, _)| match codec_mqtt::shared(filter) {
                    Ok(Some(s)) => shared && codec_mqtt::matches(s.filter, topic),
                    _ => !shared && codec_mqtt::matches(filter, topic),
                })
                .map(|(_, subscription)| subscription),
            );
            if shared && found.len() > own {
                found.drain(before..own);
            } else if found.iter().skip(before).any(Subscription::keeps) {
                return;
            }
        }
    }
}

/// For a client that has a queue: None when the message is for QoS 0. Otherwise whether the queue is to be given it because a
/// shared subscription says so; where another one matches, the exchange does.
pub(super) fn through_queue(matched: &[RouteMatch], message: &Message) -> Option<bool> {
    let kept = |f: &&RouteMatch| message.durable() && f.subscription.qos != Qos::AtMostOnce;
    let mut all = matched.iter().filter(kept).peekable();
    all.peek()?;
    Some(all.all(|f| f.is_shared()))
}
