//! The runtime of a shard's thread: an event loop that drives any [`shard::ShardDriver`], and the
//! rings between threads.
//!
//! Each shard has one thread with one `mio` poll, and no lock on the data path. Input reaches a
//! shard from its sockets, from bounded single-producer rings (one per producing thread) or from
//! its [`Mailbox`]. The main types are [`ShardLoop`], [`ring`] and [`ThreadWaker`].
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

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

pub use event_loop::{LoopConfig, LoopError, LoopParts, LoopReport, ShardLoop};
pub use listener::{BindError, BoundAddress, ClientListener, bind};
pub use ports::{
    LinkMessage, Mailbox, MailboxFull, MailboxInlet, ShardMessage, StorageMessage, ThreadRings,
    WalMessage, mailbox,
};
pub use ring::{Receiver, Sender, ring};
pub use wake::ThreadWaker;
