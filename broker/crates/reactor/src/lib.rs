//! The threads' side of a shard: an event loop that drives any [`shard::ShardDriver`], and the rings between threads.
//!
//! One thread per shard, one `mio` poll per thread, no lock on the data path. Everything that reaches a shard comes
//! from its sockets, from bounded single-producer rings (one per producing thread) or from its [`Mailbox`].
#![forbid(unsafe_code)]

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
