//! Quorum queues: each is a Raft group whose log holds the messages.
//!
//! [`Machine`] is the replicated state: the same commands in the same order leave the same state on every
//! member. [`QuorumQueue`] is a member of the group. While it leads, it batches requests into commands and
//! turns the effects of the machine into events for sessions.

mod annotations;
mod browse;
#[allow(missing_docs)]
mod command;
mod dead_letter;
#[cfg(test)]
mod dead_letter_tests;
#[cfg(test)]
mod deduplication_tests;
mod deduplicator;
mod delayed;
#[cfg(test)]
mod delayed_tests;
mod effects;
#[cfg(test)]
mod expiry_tests;
#[cfg(test)]
mod flow_tests;
#[cfg(test)]
mod format_tests;
mod grouped;
#[cfg(test)]
mod grouped_model_tests;
#[cfg(test)]
mod grouped_tests;
mod head;
#[cfg(test)]
mod head_tests;
mod leader;
#[cfg(test)]
mod leader_tests;
mod machine;
#[cfg(test)]
mod model_comparison_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod order_tests;
mod ready;
#[cfg(test)]
mod scheduled_tests;
mod selection;
#[cfg(test)]
mod session_epoch_tests;
#[allow(missing_docs)]
mod snapshot;
mod taken;
#[cfg(test)]
mod taken_tests;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod timeout_tests;
mod timeouts;

pub use command::{Batch, Command, Configuration, MAX_BATCH_BYTES, MAX_BATCH_REQUESTS};
pub use dead_letter::{DeadRead, MAX_PASSING, MAX_PASSING_BYTES};
pub use effects::{Effect, Effects, LogLocation, LogRead};
pub use leader::{Checkpoint, QuorumQueue};
pub use machine::{Machine, UnknownCommand};
pub use snapshot::RestoreError;
pub use timeouts::{ConsumerTimeouts, DefaultTimeout};
