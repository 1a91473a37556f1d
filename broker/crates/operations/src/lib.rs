//! Checks and plans of the operations that clients perform on exchanges, queues and bindings.
//!
//! Every protocol and the HTTP API offer the same operations under the same rules: permissions, reserved names,
//! exclusive queues and equivalence of repeated declarations. A [`Caller`] is the identity that performs an operation.
//! Its functions check against one metadata tree and return what remains to be done: nothing, a metadata
//! [`Change`](metadata::Change) to propose, or a request to a queue. They have no side effects and never wait.
//!
//! A refused operation is an [`OperationError`]. Each protocol maps its [`ErrorKind`] to its own codes. The texts are
//! those of RabbitMQ, because clients match on them.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod access;
mod bindings;
mod deduplication;
mod direct_reply;
mod error;
mod exchanges;
mod groups;
mod names;
mod queues;
mod schedule;
mod super_streams;
#[cfg(test)]
mod tests;

pub use access::{Caller, Resource};
pub use bindings::BindingOperation;
pub use deduplication::deduplicate;
pub use error::{ErrorKind, OperationError, OperationResult};
pub use exchanges::ExchangePlan;
pub use groups::assign_group;
pub use names::generated_name;
pub use queues::{QueueDeclaration, QueueDeclarationPlan, QueueDeletion, QueueDeletionPlan};
pub use routing::{DIRECT_REPLY_TO, is_direct_reply_name};
pub use schedule::{check_scheduled, delay_of, reads_delays};
pub use super_streams::{
    MAX_PARTITIONS, SUPER_STREAM, StreamCreationError, SuperStreamDeclaration, is_stream,
    partition_order, partitions_of, stream_arguments, stream_deletion, stream_name,
    stream_of_binding,
};
