//! The second workload: whole nodes. Shards with their queues and sessions, clients that speak AMQP 0.9.1 and MQTT
//! to them, faults all along; and the rules that must hold.

mod account;
mod amqp;
mod bridge;
mod client;
mod consumer;
mod keeper;
mod lane;
mod ledger;
mod letter;
mod mqtt;
mod node;
mod operator;
mod publisher;
mod run;
mod seat;
mod touched;
mod versions;

pub use node::{Node, Note, Reply, Request};
pub use run::{Options, Report, run};
