//! A node: its configuration, identity, cluster formation, peer links and threads.
#![deny(missing_docs, unreachable_pub)]
#![forbid(unsafe_code)]

pub mod addresses;
pub mod alarms;
mod audit_log;
mod checks;
mod clients;
pub mod config;
pub mod control_door;
pub mod data_dir;
mod event_exchange;
pub mod formation;
pub mod identity;
pub mod jobs;
pub mod link_tls;
pub mod links;
mod listener_text;
pub mod log_thread;
pub mod logging;
pub mod machine;
pub mod node;
mod not_ready;
pub mod peering;
mod resolver;
mod shard_count;
mod socket;
mod telemetry_export;
mod threads;
mod watch;
pub mod wire;

pub use clients::Registration;
pub use node::{
    ControlParts, ControlServer, NodeError, NodeParts, ShardFactory, ShardMaterial, run,
};
pub use telemetry_export::MetricExport;
pub use threads::ThreadNotification;
