//! Built-in message interceptors, under the names of RabbitMQ: headers and annotations that a node adds to messages that
//! it receives or delivers. All are off by default, and messages are then not touched.

use crate::Broker;
use metadata::Name;

/// The annotation with the time at which the broker received a message, in milliseconds since the Unix epoch.
pub const RECEIVED_TIME: &str = "x-opt-rabbitmq-received-time";
/// The annotation and header with the name of the node that received a message.
pub const ROUTED_BY: &str = "x-routed-by";
/// The annotation and header with the time of the delivery, in milliseconds since the Unix epoch.
pub const SENT_TIME: &str = "x-opt-rabbitmq-sent-time";
/// The annotation with the client id of the MQTT publisher.
pub const MQTT_CLIENT_ID: &str = "x-opt-mqtt-client-id";

/// The interceptors of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interceptors {
    /// Received messages get the time of their arrival. The value tells whether it replaces that of the publisher.
    pub received_time: Option<bool>,
    /// Received messages get the name of the node. The value tells whether it replaces that of the publisher.
    pub routing_node: Option<bool>,
    /// Messages of MQTT clients get the client id, which replaces that of the publisher.
    pub mqtt_client_id: bool,
    /// Deliveries get the time at which they are sent.
    pub sent_time: bool,
}

impl Interceptors {
    /// Whether received messages of any protocol change.
    pub fn is_incoming(&self) -> bool {
        self.received_time.is_some() || self.routing_node.is_some()
    }
}

/// The name of the node on which the session is.
pub fn routing_node(broker: &dyn Broker) -> Name {
    let node = broker.tree().node(broker.id().node);
    node.map_or_else(|| "".into(), |node| node.name.clone())
}
