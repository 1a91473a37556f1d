//! A node: its configuration, identity, cluster formation, peer links and threads.
#![forbid(unsafe_code)]

pub mod alarms;
pub mod config;
pub mod formation;
pub mod identity;
pub mod jobs;
pub mod links;
pub mod log_thread;
pub mod peering;
mod resolver;
mod socket;
pub mod tls;
pub mod wire;
