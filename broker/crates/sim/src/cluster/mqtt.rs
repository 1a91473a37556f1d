//! MQTT 5.0 clients of the nodes, and the oracle for the messages that they send and receive
//! (docs/internals/simulation.md).

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

pub(super) use clients::{FIRST_CLIENT, MqttClients, shards_of};
pub(super) use oracle::{MqttOracle, QueueLookup};
pub(super) use routes::{ShardIncarnation, find_bound_queue};
pub(super) use tracked_message::MessageId;
pub(super) use wire::ReceivedPublish;
