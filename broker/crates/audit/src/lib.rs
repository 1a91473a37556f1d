//! Audit records: the user, the origin, the operation, the object and the outcome.
//!
//! Records come from two places. The shard makes those of client connections: logins, refused permissions, changes of
//! the metadata ([`change_description`] classifies every [`metadata::Change`]) and purges. The dispatcher of the HTTP
//! API makes those of requests, from the table of its routes. Both give them to an [`AuditSink`], which never blocks.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod change;
mod operation;
mod record;
mod refusals;
mod sink;

pub use change::{ChangeDescription, change_description};
pub use operation::Operation;
pub use record::{AuditRecord, Client, MAX_TEXT, Outcome, rfc3339};
pub use refusals::{Refusals, RefusedPermission};
pub use sink::{AuditReceiver, AuditSink, Received, channels};
