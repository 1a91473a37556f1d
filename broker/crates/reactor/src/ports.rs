//! Messages between the threads of a node, and the channels that carry them.

use crate::ring::Sender;
use crate::wake::ThreadWaker;
use bytes::Bytes;
use consensus::{JobId, JobResult, StorageJob, WalToken};
use control::ControlRequest;
use env::{Incarnation, NodeId};
use metadata::NodeRecord;
use metadata::features::VersionFacts;
use shard::{CheckId, ClusterView, LocalMessage, Route};
use std::sync::Arc;
use std::sync::mpsc;

/// A message to a shard.
pub enum ShardMessage {
    /// A message from another shard of this node.
    Local {
        /// The index of the sending shard.
        from: u16,
        /// The message.
        message: LocalMessage,
    },
    /// The batch with this token and all earlier ones are durable.
    Durable(WalToken),
    /// The WAL has started a new file. All tokens that were durable before are in this file or an
    /// older one.
    WalRolled {
        /// The number of the completed file.
        file: u64,
    },
    /// A storage job has finished.
    JobDone {
        /// The id of the job.
        id: JobId,
        /// Its result.
        result: JobResult,
    },
    /// The version and feature flags of a peer. Sent before [`ShardMessage::PeerUp`], to shard 0 only.
    PeerVersion {
        /// The peer.
        node: NodeId,
        /// None if the peer did not send them.
        version: Option<VersionFacts>,
    },
    /// The link to a peer is up.
    PeerUp {
        /// The peer.
        node: NodeId,
        /// Its incarnation.
        incarnation: Incarnation,
        /// Number of shards of this incarnation.
        shards: u16,
    },
    /// The link to a peer is down.
    PeerDown {
        /// The peer.
        node: NodeId,
    },
    /// A frame from a peer.
    PeerFrame {
        /// The peer.
        from: NodeId,
        /// The encoded frame.
        frame: Bytes,
    },
    /// A node asks to join the cluster.
    Join(NodeRecord),
    /// A resource alarm was raised or cleared.
    Alarm {
        /// The reason.
        reason: &'static str,
        /// True if it was raised.
        on: bool,
    },
    /// A password check has finished.
    Checked {
        /// The id of the check.
        id: CheckId,
        /// The password matches.
        right: bool,
    },
    /// An external backend has checked a password.
    Identified {
        /// The id of the identification.
        id: u64,
        /// The answer.
        result: shard::IdentificationResult,
    },
    /// A request of the control plane.
    Control(ControlRequest),
    /// Start to drain. The loop reports [`crate::LoopReport::Drained`] when done.
    ShutDown,
    /// End the loop immediately.
    Stop,
}

/// A message to the WAL thread.
pub enum WalMessage {
    /// Append records and confirm them with [`ShardMessage::Durable`].
    Append {
        /// The token to confirm.
        token: WalToken,
        /// The records.
        records: Vec<wal::Record>,
    },
    /// This shard needs no file up to this one any more.
    Free {
        /// The number of the file.
        up_to: u64,
    },
}

/// A job for the storage thread.
pub struct StorageMessage {
    /// The id of the job, returned in [`ShardMessage::JobDone`].
    pub id: JobId,
    /// The job.
    pub job: Box<dyn StorageJob>,
}

/// A message to the thread of the peer links.
pub enum LinkMessage {
    /// Send a frame to a peer.
    Send {
        /// The peer.
        to: NodeId,
        /// The receiving shard.
        route: Route,
        /// The encoded frame.
        frame: Bytes,
    },
    /// The nodes of the cluster have changed.
    Nodes(ClusterView),
}

/// The rings from a shard to the other threads.
pub struct ThreadRings {
    /// To the WAL thread.
    pub wal: Sender<WalMessage>,
    /// To the storage thread.
    pub jobs: Sender<StorageMessage>,
    /// To the thread of the peer links.
    pub peers: Sender<LinkMessage>,
    /// To the other shards, by shard index. None for the shard itself.
    pub shards: Vec<Option<Sender<ShardMessage>>>,
}

impl ThreadRings {
    /// Wakes all threads that received something in this turn.
    pub fn flush(&mut self) {
        self.wal.flush();
        self.jobs.flush();
        self.peers.flush();
        for shard in self.shards.iter_mut().flatten() {
            shard.flush();
        }
    }

    /// The largest number of items that wait for a full ring.
    pub fn backlog(&self) -> usize {
        let shards = self.shards.iter().flatten().map(Sender::backlog).max();
        self.wal
            .backlog()
            .max(self.jobs.backlog())
            .max(self.peers.backlog())
            .max(shards.unwrap_or(0))
    }
}

/// Maximum number of messages in a mailbox.
const MAILBOX_CAPACITY: usize = 1024;

/// A channel to a shard for any thread, for rare messages: control requests, alarms and shutdown.
#[derive(Clone)]
pub struct Mailbox {
    sender: mpsc::SyncSender<ShardMessage>,
    wake: Arc<ThreadWaker>,
}

/// The receiving end of a [`Mailbox`].
pub struct MailboxInlet(pub(crate) mpsc::Receiver<ShardMessage>);

/// The mailbox of a shard is full or closed.
#[derive(Debug, thiserror::Error)]
#[error("the mailbox of the shard is full or closed")]
pub struct MailboxFull;

impl MailboxInlet {
    /// Takes all pending messages.
    pub fn drain(&self) -> Vec<ShardMessage> {
        self.0.try_iter().collect()
    }
}

/// Creates a mailbox that wakes the loop of `wake`.
pub fn mailbox(wake: Arc<ThreadWaker>) -> (Mailbox, MailboxInlet) {
    let (sender, receiver) = mpsc::sync_channel(MAILBOX_CAPACITY);
    (Mailbox { sender, wake }, MailboxInlet(receiver))
}

impl Mailbox {
    /// Sends a message without blocking. On an error the message is dropped, including its reply
    /// channel.
    pub fn post(&self, message: ShardMessage) -> Result<(), MailboxFull> {
        self.sender.try_send(message).map_err(|_| MailboxFull)?;
        self.wake.wake();
        Ok(())
    }

    /// Sends a message, blocking while the mailbox is full. Returns false if the shard has ended.
    pub fn post_waiting(&self, message: ShardMessage) -> bool {
        // Wake the shard first: a full mailbox means that it has not read it yet.
        self.wake.wake();
        let sent = self.sender.send(message).is_ok();
        self.wake.wake();
        sent
    }
}
