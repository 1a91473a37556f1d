//! Scenario `cluster`: whole nodes. Shards with queues and sessions; AMQP 0.9.1 and MQTT clients; faults; and the rules
//! that must hold.

mod amq_topic;
mod amqp;
mod amqp10;
mod byte_stream;
mod client;
mod consistency;
mod consumer;
mod mqtt;
mod node;
mod operator;
mod oracle;
mod publisher;
mod queue_admin;
mod run;
mod settlement_tracker;
mod shard_host;
mod streams;
mod tracked_message;
mod versions;

pub use node::{Node, Note, Reply, Request};
pub use run::{Options, Report, run};
