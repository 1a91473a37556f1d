//! What reaches MQTT clients other than from MQTT clients, and what they leave behind.

use crate::core::Core;
use crate::sessions::{CONTROL_KEY, number};
use crate::view::View;
use message::Message;
use std::net::{Ipv4Addr, SocketAddr};

impl Core {
    /// What an AMQP client published, to MQTT clients; how many they are.
    pub fn announce(&mut self, vhost: &str, message: &Message) -> usize {
        if *message.exchange() != *self.config.mqtt.exchange || !self.topics.is_listening(vhost) {
            return 0;
        }
        let mut heard = 0;
        for key in message.routing_keys() {
            if let Some(translated) = session_mqtt::from_amqp091(message, key) {
                let topic = topics::topic_of(key);
                heard += self.topics.publish(vhost, &topic, &translated, None);
            }
        }
        heard
    }

    /// A client did not come back: its will is published for the node.
    pub fn publish_will(&mut self, vhost: &str, will: topics::Will) {
        let mut view = View {
            number: number(self.config.index, 0, CONTROL_KEY),
            peer: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            core: self,
        };
        session_mqtt::publish_will(&mut view, vhost, will);
    }
}
