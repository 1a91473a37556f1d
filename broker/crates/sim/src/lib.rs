//! Deterministic simulator: runs whole clusters on one thread under one seed and checks them with oracles.
//!
//! [`World`] owns virtual time, the network and the machines with their disks. A [`Process`] is the software that a
//! machine runs between two crashes. A [`Scenario`] starts processes, plays the clients, injects faults and checks the
//! rules. Every event goes into a [`Trace`]: the same seed gives the same hash.
//!
//! [`metadata`], [`cluster`] and [`stream`] are the scenarios. `docs/internals/simulation.md` describes workloads, faults,
//! oracles and planted bugs.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

pub mod cluster;
mod connections;
pub mod faults;
mod machine;
pub mod metadata;
mod network;
mod process;
mod scheduler;
pub mod stream;
mod trace;
mod world;

pub use network::{Link, Network};
pub use process::{Action, Process};
pub use scheduler::Scheduler;
pub use trace::Trace;
pub use world::{Scenario, Start, Stop, Violation, World, WorldConfig};
