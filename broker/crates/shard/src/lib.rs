//! One shard of a node, sans-io: its sessions, its queues, its Raft groups, and on shard 0 the metadata group.
//!
//! The driver (a reactor thread, or the simulator) calls in with what happened and then [`Shard::poll`]s for
//! [`Effect`]s. A shard never blocks, but for reads of entries that have left memory.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod audit_trail;
mod browsers;
mod clients;
mod cluster;
pub mod config;
mod confirm_sampler;
mod context;
mod counters;
mod critical;
mod dead_letter;
mod delivery_sampler;
mod firehose;
mod frame;
mod internal_client;
mod joining_nodes;
mod lease;
mod limit_usage;
mod limits;
mod listener_origin;
mod listings;
mod local_message;
mod local_queues;
mod logged_in;
mod logins;
mod members;
mod membership;
mod metadata_client;
mod metadata_replica;
mod outgoing;
mod peers;
mod placement;
mod precedence;
mod queues;
mod quotas;
mod reports;
mod sessions;
mod shard;
mod span_recorder;
mod stats;
mod stored_bytes;
mod stream_leaders;
mod wake_times;
mod walks;

pub use config::{Founding, Placement, RecoveredShard, ResourceMeter, ShardConfig};
#[doc(hidden)]
pub use frame::{Frame, FrameError};
pub use local_message::LocalMessage;
pub use local_queues::StreamLogState;
pub use logins::{
    Check, CheckId, Identification, IdentificationResult, LoginBackend, StartCheck,
    StartIdentification,
};
pub use queue::quorum::DefaultTimeout;
pub use shard::{MemoryBudget, NodeMemory, Shard};
pub use span_recorder::SpanSettings;

use bytes::{Bytes, BytesMut};
use control::ControlRequest;
use env::{Incarnation, NodeId, Time, WallTime};
use metadata::features::VersionFacts;
use metadata::{Name, NodeRecord};
use session::{ConnectionInfo, Outbox, SessionState};

type FixedState = foldhash::fast::FixedState;

/// A client connection's slot at the driver, unique among the shard's live connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionKey(pub usize);

/// The reason that a shard cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A Raft group cannot be trusted any more.
    #[error(transparent)]
    Group(#[from] consensus::RecoveryError),
    /// The directory of the streams cannot be read.
    #[error(transparent)]
    Streams(#[from] stream_log::LogError),
}

/// Which of the receiving node's shards a frame is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// The shard with this index.
    Shard(u16),
    /// The shard that owns this queue or group there; see [`shard_of`].
    Owner(u64),
}

pub use consensus::shard_of;

/// Largest number of shards of a node: the number of a session has eight bits for its shard.
pub const MAX_SHARDS: u16 = 256;

/// Work for the driver, which carries it out in order.
pub enum Effect {
    /// To the write-ahead log, in order; answer with [`Shard::durable`].
    Append {
        /// Identifies the records in the answer.
        token: consensus::WalToken,
        /// The records, in order.
        records: Vec<wal::Record>,
    },
    /// To the storage thread; answer with [`Shard::job_done`].
    Job {
        /// Identifies the job in the answer.
        id: consensus::JobId,
        /// The job.
        job: Box<dyn consensus::StorageJob>,
    },
    /// To a peer; may be lost when it is down or its buffer is full.
    Peer {
        /// The receiving node.
        to: NodeId,
        /// Its shard.
        route: Route,
        /// The encoded frame.
        frame: Bytes,
    },
    /// To another shard of this node; never lost, in order.
    Shard {
        /// The receiving shard.
        to: u16,
        /// The sending shard.
        from: u16,
        /// The message.
        message: LocalMessage,
    },
    /// This connection's outbox has bytes, or its standing changed without bytes read.
    Flush(ConnectionKey),
    /// The node must stop now: storage failed. Exit code 1 and this text.
    Fatal(String),
    /// Client listeners must be closed (false) or open (true). They are closed until the first of these.
    Listen(bool),
    /// This shard needs no log file up to and with this number; see [`ShardDriver::wal_rolled`].
    WalFree {
        /// The number of the last file that is not needed.
        up_to: u64,
    },
    /// Shard 0 only: the cluster as the metadata tree has it now, so that the driver keeps a link to each node and to no other.
    Nodes(ClusterView),
}

/// The cluster as the links to other nodes need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterView {
    /// The nodes of the cluster.
    pub nodes: Vec<NodeRecord>,
    /// The feature flags that are on. None: this node has not caught up, and does not know.
    pub enabled: Option<Vec<Name>>,
}

/// The calls a driver makes. `Shard` implements it; a driver's tests may use another.
pub trait ShardDriver {
    /// Time moved; call at least when `wake_at` says so and before each burst of other calls.
    fn tick(&mut self, now: Time, wall: WallTime);
    /// The time at which `tick` must be called at the latest. None: there is nothing to wait for.
    fn wake_at(&self) -> Option<Time>;
    /// A client has connected, over TLS after its handshake.
    fn connected(&mut self, connection: ConnectionKey, info: ConnectionInfo);
    /// Bytes arrived. Whole frames are taken from `input`, a partial one is left for the driver to keep.
    fn received(&mut self, connection: ConnectionKey, input: &mut BytesMut) -> SessionState;
    /// The driver holds so many bytes of TLS for the connection: an incomplete record, and records that the socket does not take.
    fn sealed(&mut self, _connection: ConnectionKey, _bytes: usize) {}
    /// TLS handshakes of connections that the shard does not know yet hold so many bytes in all. Returns how many of them the driver
    /// must free.
    fn handshakes(&mut self, _bytes: usize) -> usize {
        0
    }
    /// The output for the connection. The driver consumes the bytes that it has written.
    fn outbox(&mut self, connection: ConnectionKey) -> Option<(&mut Outbox, SessionState)>;
    /// The socket took bytes.
    fn drained(&mut self, connection: ConnectionKey);
    /// The socket is closed, by whichever side.
    fn gone(&mut self, connection: ConnectionKey);
    /// The version that a node has announced; None: it announces none. Before [`ShardDriver::peer_up`]; shard 0 only.
    fn peer_program(&mut self, _node: NodeId, _program: Option<VersionFacts>) {}
    /// A peer is up. Its number of shards is the same as long as its incarnation is.
    fn peer_up(&mut self, node: NodeId, incarnation: Incarnation, shards: u16);
    /// The connection to a peer has ended, and frames on their way may be lost.
    fn peer_down(&mut self, node: NodeId);
    /// A frame from a peer. One that cannot be decoded is logged and dropped.
    fn peer_frame(&mut self, from: NodeId, frame: Bytes);
    /// A message from another shard of this node.
    fn shard_message(&mut self, from: u16, message: LocalMessage);
    /// The records of an [`Effect::Append`] are durable.
    fn durable(&mut self, token: consensus::WalToken);
    /// The log goes on in a new file: every token that was durable before this call lies in `file` or an older one,
    /// every later one in a newer. Answer with [`Effect::WalFree`] when nothing up to `file` is needed any more.
    fn wal_rolled(&mut self, file: u64);
    /// An [`Effect::Job`] is done.
    fn job_done(&mut self, id: consensus::JobId, result: consensus::JobResult);
    /// A request of the node's management. Shard 0 only.
    fn control(&mut self, request: ControlRequest);
    /// A node that the handshake showed to be new in this cluster asks to be a member. Shard 0 only.
    fn join_requested(&mut self, node: NodeRecord);
    /// The result of a password check that was begun through [`StartCheck`].
    fn checked(&mut self, _id: CheckId, _right: bool) {}
    /// The answer to an [`Identification`].
    fn identified(&mut self, _id: u64, _result: IdentificationResult) {}
    /// Disk or memory alarm of this node on or off.
    fn alarm(&mut self, reason: &'static str, on: bool);
    /// SIGTERM: tell clients, move leaders. Drained when `drained_fully` is true.
    fn shut_down(&mut self);
    /// Returns true if the shard has nothing left to do before the process ends.
    fn drained_fully(&self) -> bool;
    /// Takes the effects of the calls since the last poll, in order.
    fn poll(&mut self, out: &mut Vec<Effect>);
}
