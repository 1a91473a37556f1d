//! Replication of a stream's log.
//!
//! A stream is a log of chunks on several nodes. A Raft group of its own decides the members and the leader; the chunks
//! are copied outside Raft, because they are large and no state machine consumes them. [`Member`] is the replication of
//! one stream on one node, as a step function: its owner tells it the Raft group's term and leader, messages of other
//! members and completed writes, and carries out the [`Output`]s.
//!
//! # Why a confirmed chunk is not lost
//!
//! The epoch of a chunk is the Raft term of the leader that wrote it. A member accepts chunks of its current term only,
//! and Raft makes a term durable before the member answers in it. The rules are those of a Raft log:
//!
//! - **Election.** The leader of a new term first asks the members for the ends of their logs. It begins to write when it
//!   has the answers of a majority and none is further than its own log, by the epoch of the last chunk and then by the
//!   next offset. Otherwise it hands the leadership to the member with the furthest log.
//! - **Match.** A follower sends the end of its log. The leader compares it with its table of epochs, and the follower
//!   drops chunks that the leader does not have.
//! - **Commit.** A chunk is committed when a majority has written it, and after the leader's first chunk of its epoch (the
//!   marker) is on a majority too. Chunks of earlier epochs are committed with the marker, never by counting them.
//!
//! Nothing waits for fsync. A machine that stops can therefore lose the end of its log, and its member cannot tell how
//! much. Such a log is not *intact*, and its end does not count towards the majority of an election until the log has
//! reached what its leader had when it attached. If the logs of a majority are not intact, the election needs an answer of every voter: then
//! nothing is lost that any disk still has.
//!
//! # Lost messages
//!
//! Any message can be lost, repeated or late. A sender repeats a message while it lacks the answer, and everything
//! repeats nothing once all members have everything: an idle stream sends nothing and has no timer.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod epochs;
mod follower;
mod leader;
mod member;
mod message;
#[cfg(test)]
mod tests;

pub use epochs::{EpochTable, LogEnd};
pub use member::{ChunkHeader, LogState, Member, Output, WriteToken};
pub use message::{Attachment, MemberMessage};

use std::time::Duration;

/// Time without progress after which a request is repeated.
pub const RETRY: Duration = Duration::from_millis(500);

/// Most bytes of chunks on their way to one follower. At 10 ms between two nodes this is 800 MB/s.
pub const MAX_IN_FLIGHT_BYTES: u64 = 8 << 20;
/// Most transfers on their way to one follower.
pub const MAX_IN_FLIGHT_TRANSFERS: usize = 1024;
