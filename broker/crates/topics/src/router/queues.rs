//! Clients whose QoS 1 and 2 messages are stored in a queue of their own: which messages the router
//! delivers and which it leaves to the queue.

use super::MqttRouter;
use super::subscriber::SeatOwner;
use crate::routes::RouteMatch;
use crate::{SubscriberId, Subscription};
use codec_mqtt::Qos;
use message::Message;

/// Up to this number of subscriptions, they are compared one by one.
const FEW: usize = 32;

impl MqttRouter {
    /// From now on the client's QoS 1 and 2 messages go through this queue, which is bound to the
    /// filters of its non-shared subscriptions. The router delivers only the other messages.
    pub fn use_queue(&mut self, subscriber: SubscriberId, queue: u64) {
        self.count_routes(subscriber, false);
        if let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) {
            entry.queue = queue;
        }
        self.count_routes(subscriber, true);
    }

    /// The session with this queue has ended, and the queue is being deleted.
    pub fn queue_deleting(&mut self, queue: u64) {
        self.deleting_queues.insert(queue);
    }

    /// Returns true if [`MqttRouter::queue_deleting`] was called for a queue that still exists.
    pub fn is_queue_deleting(&self, queue: u64) -> bool {
        self.deleting_queues.contains(&queue)
    }

    /// A client's queue was deleted, which ends the session. A connected session notices it itself.
    pub fn queue_deleted(&mut self, vhost: &str, client: &str, queue: u64) {
        self.deleting_queues.remove(&queue);
        let Some(subscriber) = self.client(vhost, client) else {
            return;
        };
        let entry = self.subscribers.get(subscriber.0 as usize);
        if entry.is_some_and(|e| e.queue == queue && !e.is_connected()) {
            self.remove_client(subscriber);
        }
    }

    /// A client whose session is stored in this queue has a shared subscription, wherever it is
    /// connected. A client that is connected here subscribes itself.
    pub fn add_queue_member(
        &mut self,
        (vhost, client): (&str, &str),
        queue: u64,
        filter: &str,
        subscription: Subscription,
    ) {
        let subscriber = match self.client(vhost, client) {
            Some(known) => known,
            None => {
                let subscriber = self.add_client(vhost, client, 0, 0);
                if let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) {
                    entry.queue = queue;
                    entry.set_owner(SeatOwner::Away(Box::default()));
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

    /// Undoes [`MqttRouter::add_queue_member`] for one filter.
    pub fn remove_queue_member(&mut self, (vhost, client): (&str, &str), filter: &str) {
        let Some(subscriber) = self.client(vhost, client) else {
            return;
        };
        let entry = self.subscribers.get(subscriber.0 as usize);
        if entry.is_some_and(|e| !e.is_connected()) {
            self.unsubscribe(subscriber, filter);
        }
    }

    /// Returns a client's subscription with this filter.
    pub fn subscription(&self, subscriber: SubscriberId, filter: &str) -> Option<Subscription> {
        let entry = self.subscribers.get(subscriber.0 as usize)?;
        entry.filters().get(filter)
    }

    /// Appends the subscriptions of a client that explain a message from its queue. If none of its
    /// non-shared subscriptions stores messages in the queue, a shared subscription selected it.
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
                vhost
                    .routes
                    .find_client_subscriptions(topic, subscriber, &mut self.cache, found);
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
            } else if found.iter().skip(before).any(Subscription::is_stored) {
                return;
            }
        }
    }
}

/// For a client with a queue: returns `None` if the message is delivered with QoS 0. Otherwise
/// returns true if the router must put it into the queue for a shared subscription, and false if
/// the exchange does so because a non-shared subscription matches.
pub(super) fn is_for_queue(matched: &[RouteMatch], message: &Message) -> Option<bool> {
    let kept = |f: &&RouteMatch| message.durable() && f.subscription.qos != Qos::AtMostOnce;
    let mut all = matched.iter().filter(kept).peekable();
    all.peek()?;
    Some(all.all(|f| f.is_shared()))
}
