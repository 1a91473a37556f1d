//! Scenario `metadata`: nodes with a write-ahead log, a Raft host and the metadata tree; clients that change the tree;
//! faults; and the rules that must hold.

mod clients;
mod kept_commands;
mod operator;
mod oracle;
mod replica;
mod run;

pub use replica::{Note, Replica, Reply, Request};
pub use run::{Options, Report, run};
