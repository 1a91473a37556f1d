//! Whole clusters on one thread under one seed, with oracles.
//!
//! [`World`] owns virtual time, the net and the machines with their disks; a [`Process`] is what runs on a machine
//! between two crashes; a [`Scenario`] starts processes, plays the clients, injects faults and checks the rules.
//! Everything that happens goes into a [`Trace`]: the same seed gives the same hash.
#![forbid(unsafe_code)]

pub mod cluster;
mod connections;
pub mod faults;
mod machine;
pub mod metadata;
mod network;
mod process;
mod scheduler;
mod trace;
mod world;

pub use network::{Link, Network};
pub use process::{Action, Process};
pub use scheduler::Scheduler;
pub use trace::Trace;
pub use world::{Scenario, Start, Stop, Violation, World, WorldConfig};
