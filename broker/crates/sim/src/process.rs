//! What a simulated node runs: one life of a node's software, sans-io.

use bytes::Bytes;
use consensus::{JobId, JobResult, StorageJob, WalToken};
use env::{Incarnation, NodeId, Time, WallTime};
use std::fmt::Debug;

/// A node's software between a start and the crash after it. A whole shard fits behind this as well as a single
/// Raft host: the world does for it what reactor, log thread and storage thread do in production.
pub trait Process {
    /// What a client sends, connection matters included.
    type Request: Debug;
    /// What a client gets.
    type Reply: Debug;
    /// What the oracles want to know.
    type Note: Debug;

    fn tick(&mut self, now: Time, wall: WallTime);
    /// Before what just came in is carried on; for software that reads the clock at the start of a turn.
    fn turn(&mut self, _now: Time, _wall: WallTime) {}
    /// When it wants a tick that the world would not give it by then.
    fn wake_at(&self) -> Option<Time> {
        None
    }
    fn peer_frame(&mut self, from: NodeId, frame: Bytes);
    /// Told again of a node that is up: the connection was replaced, frames may be lost.
    fn peer_up(&mut self, node: NodeId, incarnation: Incarnation);
    fn peer_down(&mut self, node: NodeId);
    fn durable(&mut self, token: WalToken);
    /// A log file was completed; comes before the tokens of what is in the next one.
    fn wal_rolled(&mut self, file: u64);
    fn job_done(&mut self, id: JobId, result: JobResult);
    fn request(&mut self, client: u64, request: Self::Request);
    /// Everything there is to do now, in order.
    fn poll(&mut self, out: &mut Vec<Action<Self>>);
}

/// What the world must carry out, in order.
pub enum Action<P: Process + ?Sized> {
    Append {
        token: WalToken,
        records: Vec<wal::Record>,
    },
    Job {
        id: JobId,
        job: Box<dyn StorageJob>,
    },
    Send {
        to: NodeId,
        frame: Bytes,
    },
    /// Log files up to this are not needed any more.
    FreeWal {
        up_to: u64,
    },
    Reply {
        client: u64,
        reply: P::Reply,
    },
    Note(P::Note),
    /// The software gives up.
    Fatal(String),
}
