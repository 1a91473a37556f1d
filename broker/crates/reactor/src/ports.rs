//! What threads say to each other.

use crate::ring::Sender;
use crate::wake::Wake;
use bytes::Bytes;
use consensus::{JobId, JobResult, StorageJob, WalToken};
use control::ControlRequest;
use env::{Incarnation, NodeId};
use metadata::NodeRecord;
use metadata::features::VersionFacts;
use shard::{CheckId, ClusterView, Route};
use std::sync::Arc;
use std::sync::mpsc;

/// To a shard.
pub enum Inbound {
    Frame {
        from: u16,
        frame: Bytes,
    },
    Durable(WalToken),
    WalRolled {
        file: u64,
    },
    JobDone {
        id: JobId,
        result: JobResult,
    },
    /// Before `PeerUp`; to shard 0 only.
    PeerProgram {
        node: NodeId,
        program: Option<VersionFacts>,
    },
    PeerUp {
        node: NodeId,
        incarnation: Incarnation,
    },
    PeerDown {
        node: NodeId,
    },
    PeerFrame {
        from: NodeId,
        frame: Bytes,
    },
    Join(NodeRecord),
    Alarm {
        reason: &'static str,
        on: bool,
    },
    /// A password check is done.
    Checked {
        id: CheckId,
        right: bool,
    },
    Control(ControlRequest),
    /// Begin to drain; the loop reports [`crate::Report::Drained`].
    ShutDown,
    /// End the loop now.
    Stop,
}

/// To the log thread.
pub enum ToWal {
    Append {
        token: WalToken,
        records: Vec<wal::Record>,
    },
    Free {
        up_to: u64,
    },
}

/// To the storage thread.
pub struct ToJobs {
    pub id: JobId,
    pub job: Box<dyn StorageJob>,
}

/// To the thread of the peer links.
pub enum ToPeers {
    Send {
        to: NodeId,
        route: Route,
        frame: Bytes,
    },
    Nodes(ClusterView),
}

/// A shard's ways out.
pub struct Links {
    pub wal: Sender<ToWal>,
    pub jobs: Sender<ToJobs>,
    pub peers: Sender<ToPeers>,
    /// By shard index; None at the shard's own.
    pub shards: Vec<Option<Sender<Inbound>>>,
}

impl Links {
    /// Wakes everyone who got something this turn.
    pub fn flush(&mut self) {
        self.wal.flush();
        self.jobs.flush();
        self.peers.flush();
        for shard in self.shards.iter_mut().flatten() {
            shard.flush();
        }
    }

    /// The longest queue of items that found their ring full.
    pub fn backlog(&self) -> usize {
        let shards = self.shards.iter().flatten().map(Sender::backlog).max();
        self.wal
            .backlog()
            .max(self.jobs.backlog())
            .max(self.peers.backlog())
            .max(shards.unwrap_or(0))
    }
}

/// Requests that wait in a mailbox at the most.
const MAILBOX_CAPACITY: usize = 1024;

/// A way to a shard for any thread, for what is rare: control requests, alarms, shutting down.
#[derive(Clone)]
pub struct Mailbox {
    sender: mpsc::SyncSender<Inbound>,
    wake: Arc<Wake>,
}

/// The shard's end of its [`Mailbox`].
pub struct MailboxInlet(pub(crate) mpsc::Receiver<Inbound>);

#[derive(Debug, thiserror::Error)]
#[error("the shard has too many requests waiting, or is gone")]
pub struct MailboxFull;

impl MailboxInlet {
    /// Everything that waits now.
    pub fn drain(&self) -> Vec<Inbound> {
        self.0.try_iter().collect()
    }
}

/// A mailbox whose posts wake the loop of `wake`.
pub fn mailbox(wake: Arc<Wake>) -> (Mailbox, MailboxInlet) {
    let (sender, receiver) = mpsc::sync_channel(MAILBOX_CAPACITY);
    (Mailbox { sender, wake }, MailboxInlet(receiver))
}

impl Mailbox {
    /// Never blocks. What is refused is dropped, and with it its way back.
    pub fn post(&self, message: Inbound) -> Result<(), MailboxFull> {
        self.sender.try_send(message).map_err(|_| MailboxFull)?;
        self.wake.wake();
        Ok(())
    }

    /// Waits for room. False when the shard is gone.
    pub fn post_waiting(&self, message: Inbound) -> bool {
        // Woken first too: a full mailbox means that the shard has not looked yet.
        self.wake.wake();
        let sent = self.sender.send(message).is_ok();
        self.wake.wake();
        sent
    }
}
