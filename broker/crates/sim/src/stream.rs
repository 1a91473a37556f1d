//! The stream scenario: the members of one stream replicate its log over a network that loses, repeats and reorders
//! messages, while processes and machines stop.
//!
//! The Raft group is a model: it has what the replication relies on (a term is durable on a majority before its leader leads,
//! and has one leader), and gives the leadership to anybody. Disks and the network are those of this module, so that writes
//! complete late and lose their unsynced end.

mod history;
mod node;
mod run;

pub use run::{Options, Report, run};
