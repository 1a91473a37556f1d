//! The first workload: the metadata group. Nodes with a log, a Raft host and the tree; clients that change it;
//! faults all along; and the rules that must hold.

mod clients;
mod kept_commands;
mod operator;
mod oracle;
mod replica;
mod run;

pub use replica::{Note, Replica, Reply, Request};
pub use run::{Options, Report, run};
