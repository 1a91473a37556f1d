//! What reaches MQTT clients other than from MQTT clients, and what they leave behind.

use crate::core::Core;
use crate::listener_origin::Origin;
use crate::sessions::{CONTROL_KEY, number};
use crate::view::View;
use conversion::mqtt;
use message::Message;
use metadata::{BindingRecord, Destination, QueueId};
use session::{PublishTag, SessionEvent};
use smallvec::SmallVec;
use topics::{PublishOutcome, Publisher};

impl Core {
    /// What comes by the exchange of MQTT and not from a client of MQTT, to MQTT clients. Queues of those who share a
    /// subscription are added to `routes`.
    pub fn announce(
        &mut self,
        session: u64,
        tag: PublishTag,
        (vhost, message): (&str, &Message),
        routes: &mut Vec<QueueId>,
    ) -> PublishOutcome {
        let mut heard = PublishOutcome::default();
        if !self.topics.has_subscribers(vhost) || !self.comes_by_topics(vhost, message) {
            return heard;
        }
        let publisher = Publisher {
            subscriber: None,
            session,
            channel: tag.channel,
            tag: tag.tag,
        };
        let mut picked: Vec<u64> = Vec::new();
        for key in message.routing_keys() {
            let exchange = &self.config.mqtt.exchange;
            if let Some(translated) = mqtt::convert(message, key, exchange) {
                let topic = mqtt::topic_of(key);
                // Only the server itself speaks there.
                if topics::is_sys_topic(&topic) {
                    continue;
                }
                let mut of_key = Vec::new();
                let router = &mut self.topics;
                heard += router.publish(vhost, &topic, &translated, publisher, &mut of_key);
                // A queue gets a message once, whatever the number of its keys.
                of_key.retain(|queue| !picked.contains(queue));
                picked.extend(of_key);
            }
        }
        // One that is there for other subscriptions, too, has it twice (section 4.8.2).
        routes.extend(picked.into_iter().map(QueueId));
        heard
    }

    /// Another node has for its MQTT clients what this shard itself published. False: a session did.
    pub fn heard(&mut self, session: u64, tag: u64) -> bool {
        if self.is_internal_session(session) {
            self.internal_published(tag, true);
        } else if self.is_dead_letter_session(session) {
            self.dead_letter_heard(tag);
        } else {
            return false;
        }
        true
    }

    /// A notice for a session whose connection has ended: MQTT sessions outlive theirs, and hear answers to publishes.
    pub fn tell_late(&mut self, session: u64, session_event: &SessionEvent) {
        if let Some((tag, taken)) = session_mqtt::publish_answer(session_event, &self.tree) {
            self.topics.answer_late(session, tag, taken);
        }
    }

    fn comes_by_topics(&self, vhost: &str, message: &Message) -> bool {
        let (from, by) = (message.exchange(), &*self.config.mqtt.exchange);
        if *from == *by {
            return true;
        }
        let keys: SmallVec<[&str; 4]> = message.routing_keys().collect();
        let deaths = message.deaths();
        let envelope = conversion::MessageEnvelope {
            message,
            deaths: deaths.as_ref(),
        };
        self.tree.comes_by(vhost, (from, by), &keys, &envelope)
    }

    /// A member of a group has left before its message came, and the next one has a queue.
    pub fn pass_to_queue(&mut self, queue: QueueId, message: Message) {
        let nobody = PublishTag { channel: 0, tag: 0 };
        self.publish(self.control_session(), queue, nobody, message);
    }

    fn control_session(&self) -> u64 {
        number(self.config.index, 0, CONTROL_KEY)
    }

    /// A binding that keeps a shared subscription of a session: from now on its queue may be chosen.
    pub fn session_bound(&mut self, binding: &BindingRecord) {
        let Destination::Queue(name) = &binding.destination else {
            return;
        };
        if binding.source != self.config.mqtt.exchange {
            return;
        }
        let found = session_mqtt::shared_subscription(binding);
        if let (Some((filter, subscription)), Some(client), Some(queue)) = (
            found,
            session_mqtt::client_of(name),
            self.tree.queue(&binding.vhost, name),
        ) {
            let client = (&*binding.vhost, client);
            self.topics
                .add_queue_member(client, queue.id.0, &filter, subscription);
        }
    }

    pub fn session_unbound(&mut self, binding: &BindingRecord) {
        let Destination::Queue(name) = &binding.destination else {
            return;
        };
        let found = session_mqtt::shared_subscription(binding);
        let (Some((filter, _)), Some(client)) = (found, session_mqtt::client_of(name)) else {
            return;
        };
        let client = (&*binding.vhost, client);
        let Some(queue) = self.tree.queue(&binding.vhost, name).map(|q| q.id) else {
            return self.topics.remove_queue_member(client, &filter);
        };
        // The subscription may have been changed: then it has another binding by now.
        let (source, key) = (&binding.source, &binding.routing_key);
        let mut others = self.tree.bindings_of_queue_under(queue, source, key);
        let other = others.find_map(|b| {
            let found = session_mqtt::shared_subscription(b);
            found.filter(|(other, _)| *other == filter)
        });
        drop(others);
        match other {
            Some((filter, now)) => self.topics.add_queue_member(client, queue.0, &filter, now),
            None => self.topics.remove_queue_member(client, &filter),
        }
    }

    /// The tree was replaced.
    pub fn sessions_replaced(&mut self) {
        let queues = self.tree.all_queues();
        let sessions = queues.filter(|q| session_mqtt::client_of(&q.name).is_some());
        let bindings: Vec<_> = sessions
            .flat_map(|q| self.tree.bindings_of_queue(q.id))
            .cloned()
            .collect();
        for binding in bindings {
            self.session_bound(&binding);
        }
    }

    /// A client did not come back: its will is published for the node.
    pub fn publish_will(&mut self, vhost: &str, will: topics::Will) {
        let mut view = View {
            number: self.control_session(),
            origin: Origin::HERE,
            core: self,
        };
        session_mqtt::publish_will(&mut view, vhost, will);
    }
}
