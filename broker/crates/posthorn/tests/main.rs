//! The integration tests of this crate, as one program: linking each file by itself takes longer than the tests.
#![forbid(unsafe_code)]

mod audit;
mod audit_clients;
mod client;
mod client_ids;
mod command_line;
mod completion;
mod configuration;
mod ctl;
mod damage;
mod descriptors;
mod full_disk;
mod log_events;
mod membership;
mod mqtt;
mod mqtt_client;
mod mqtt_cluster;
mod next_version;
mod nodes;
mod oauth2;
mod opentelemetry;
mod process;
mod program;
mod secrets;
mod shard_counts;
mod states;
mod streams;
mod tls;
mod upgrade;
