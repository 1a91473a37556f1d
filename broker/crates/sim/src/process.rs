//! The interface between the simulated world and the software of a node, which is sans-io.

use bytes::Bytes;
use consensus::{JobId, JobResult, StorageJob, WalToken};
use env::{Incarnation, NodeId, Time, WallTime};
use std::fmt::Debug;

/// The software of a node between a start and the crash after it: a whole shard, or a single Raft host. The world does
/// for it what the reactor, the log thread and the storage thread do in production.
pub trait Process {
    /// A message of a client to the node, or a change of the client's connection.
    type Request: Debug;
    /// A message of the node to a client.
    type Reply: Debug;
    /// An observation for the oracles.
    type Note: Debug;

    /// A periodic tick, or one that [`Process::wake_at`] requested.
    fn tick(&mut self, now: Time, wall: WallTime);
    /// Called at the start of a turn, before its events are handled, for software that reads the clock there.
    fn turn(&mut self, _now: Time, _wall: WallTime) {}
    /// When the software needs its next tick, if that is before the periodic one.
    fn wake_at(&self) -> Option<Time> {
        None
    }
    /// A frame of another node has arrived.
    fn peer_frame(&mut self, from: NodeId, frame: Bytes);
    /// A node is reachable. Called again for a node that is already up when its connection was replaced, because frames
    /// may be lost.
    fn peer_up(&mut self, node: NodeId, incarnation: Incarnation);
    /// A node is considered to be down.
    fn peer_down(&mut self, node: NodeId);
    /// The records that were appended with this token are durable.
    fn durable(&mut self, token: WalToken);
    /// A log file is complete. Called before the tokens of records in the next file become durable.
    fn wal_rolled(&mut self, file: u64);
    /// A storage job has ended.
    fn job_done(&mut self, id: JobId, result: JobResult);
    /// A request of a client has arrived.
    fn request(&mut self, client: u64, request: Self::Request);
    /// Moves all pending actions to `out`, in order.
    fn poll(&mut self, out: &mut Vec<Action<Self>>);
}

/// An action that the world must carry out, in order.
pub enum Action<P: Process + ?Sized> {
    /// Append records to the log and report the token when they are durable.
    Append {
        /// Reported when the records are durable.
        token: WalToken,
        /// The records of one batch.
        records: Vec<wal::Record>,
    },
    /// Run a job on the storage thread.
    Job {
        /// Identifies the job in its result.
        id: JobId,
        /// The work.
        job: Box<dyn StorageJob>,
    },
    /// Send a frame to another node.
    Send {
        /// The receiver.
        to: NodeId,
        /// The encoded frame.
        frame: Bytes,
    },
    /// The log files up to this number are no longer needed.
    FreeWal {
        /// Number of the newest file to free.
        up_to: u64,
    },
    /// Send a reply to a client.
    Reply {
        /// The receiver.
        client: u64,
        /// The reply.
        reply: P::Reply,
    },
    /// Report to the oracles.
    Note(P::Note),
    /// The software ends with this error.
    Fatal(String),
}
