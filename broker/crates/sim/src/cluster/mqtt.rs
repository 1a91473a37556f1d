//! Clients that speak MQTT 5.0 to the nodes, and the rules that what they see must keep (docs/internals/simulation.md).

mod client;
mod clients;
mod dying_node;
mod expiring_session;
mod inbound;
mod oracle;
mod outbound;
mod retained;
mod routes;
mod tracked_message;
mod wire;

pub use clients::{FIRST, MqttClients};
pub use oracle::{MqttOracle, QueueLookup};
pub use routes::{ShardIncarnation, knows};
pub use tracked_message::MessageId;
pub use wire::ReceivedPublish;
