//! The runtime of a shard's thread: an event loop that drives any [`shard::ShardDriver`], and the
//! rings between threads.
//!
//! Each shard has one thread with one `mio` poll, and no lock on the data path. Input reaches a
//! shard from its sockets, from bounded single-producer rings (one per producing thread) or from
//! its [`Mailbox`]. The main types are [`ShardLoop`], [`ring`] and [`Wake`].
#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]

mod admission_rate;
mod connection;
mod ending;
mod event_loop;
mod gather;
mod held;
mod listener;
mod ports;
mod ring;
mod scratch;
mod secure;
mod sockets;
mod wake;

pub use event_loop::{LoopConfig, LoopError, LoopParts, Report, ShardLoop};
pub use listener::{BindError, BoundAddress, ClientListener, bind};
pub use ports::{
    Inbound, Links, Mailbox, MailboxFull, MailboxInlet, ToJobs, ToPeers, ToWal, mailbox,
};
pub use ring::{Receiver, Sender, ring};
pub use wake::Wake;
