//! The state of a replica, for listings and metrics.

use super::StreamReplica;
use env::NodeId;
use queue::{ConsumerId, SessionId};
use stream_log::Tracking;

/// The state of a replica, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaStatus {
    /// The replica leads and takes requests.
    pub leads: bool,
    /// The term of the Raft group, as this replica knows it.
    pub epoch: u64,
    /// The first retained offset, in the log or in the object store.
    pub first_offset: u64,
    /// The offset after the last written message.
    pub next_offset: u64,
    /// The offset after the last committed message, as far as this replica knows.
    pub committed_offset: u64,
    /// Number of segment files on this node.
    pub segments: u64,
    /// Number of chunks in these files.
    pub chunks: u64,
    /// Size of these files in bytes.
    pub bytes: u64,
    /// Consumers that read from this replica.
    pub readers: u64,
    /// The highest number of committed messages that a consumer of this replica has not been sent.
    pub max_lag: u64,
    /// For a leader: the offset after the last message that each other member has written. None: it is not attached.
    pub followers: Vec<(NodeId, Option<u64>)>,
}

impl StreamReplica {
    /// The state of the log, its readers and its copies. None while the log is opened.
    pub fn status(&self) -> Option<ReplicaStatus> {
        let log = self.log.as_ref()?;
        let (first, readable) = (self.stream_start(log), log.readable());
        let followers = match &self.member {
            Some(member) if self.leads() => member.followers(),
            _ => Vec::new(),
        };
        let segments = log.segments();
        Some(ReplicaStatus {
            leads: self.leads(),
            epoch: self.raft.term,
            first_offset: first,
            next_offset: log.written(),
            committed_offset: readable,
            segments: segments.len() as u64,
            chunks: segments.map(|segment| u64::from(segment.chunks)).sum(),
            bytes: log.bytes(),
            readers: self.cursors.len() as u64,
            max_lag: self.lags().map(|(_, _, lag)| lag).max().unwrap_or(0),
            followers,
        })
    }

    /// For each consumer that reads from this replica the number of committed messages that it has not been sent. A
    /// consumer whose position is not known yet is left out.
    pub fn lags(&self) -> impl Iterator<Item = (SessionId, ConsumerId, u64)> {
        let ends = self.log.as_ref();
        let ends = ends.map_or((0, 0), |log| (self.stream_start(log), log.readable()));
        self.cursors.lags(ends.0, ends.1)
    }

    /// The stored offsets and the producers' sequences. None while the log is opened.
    pub fn tracking(&self) -> Option<&Tracking> {
        self.log.as_ref().map(|log| log.tracking())
    }
}
