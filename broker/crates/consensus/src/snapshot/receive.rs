//! The receiving side of a checkpoint transfer.

use super::{Checkpoint, CheckpointContents};
use crate::JobId;
use crate::codec::Offer;
use crate::entry::{self, Position};
use bytes::Bytes;
use env::NodeId;
use std::collections::VecDeque;

/// Limit of a chunk; no host sends larger ones.
const MAX_CHUNK_BYTES: usize = 4 << 20;

/// A checkpoint that is being received.
#[derive(Debug)]
pub(crate) struct IncomingCheckpoint {
    pub id: u64,
    pub from: NodeId,
    /// The leader's term.
    pub term: u64,
    pub contents: CheckpointContents,
    /// The running job that stages a chunk or installs the checkpoint.
    pub job: Option<JobId>,
    /// Number of the next chunk to receive.
    next: u32,
    /// Received chunks that are not being staged yet.
    waiting: VecDeque<(Bytes, bool)>,
    /// Number of staged chunks.
    staged: u32,
    staged_bytes: u64,
    /// The chunk being staged: its length, and whether it is the last.
    staging: Option<(u64, bool)>,
    /// All chunks are staged.
    complete: bool,
    /// Ticks since the last progress.
    pub idle_ticks: u32,
}

/// What to do after a chunk was staged.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum StagingResult {
    /// Acknowledge all chunks before this number.
    Ack(u32),
    /// Everything is staged; install the checkpoint.
    Complete { bytes: u64 },
}

impl IncomingCheckpoint {
    /// Returns `None` if no correct node can have sent this offer.
    pub(crate) fn new(
        from: NodeId,
        offer: Offer,
        max_state_bytes: u64,
    ) -> Option<IncomingCheckpoint> {
        let membership = entry::decode_membership(offer.membership)?;
        let valid = offer.state_bytes <= max_state_bytes
            && offer.index > 0
            && offer.index_term > 0
            && offer.index_term <= offer.term
            && offer.entries <= offer.index;
        valid.then(|| IncomingCheckpoint {
            id: offer.id,
            from,
            term: offer.term,
            contents: CheckpointContents {
                checkpoint: Checkpoint {
                    position: Position {
                        index: offer.index,
                        term: offer.index_term,
                    },
                    membership,
                    on_disk: true,
                },
                state_bytes: offer.state_bytes,
                entries: offer.entries,
            },
            job: None,
            next: 0,
            waiting: VecDeque::new(),
            staged: 0,
            staged_bytes: 0,
            staging: None,
            complete: false,
            idle_ticks: 0,
        })
    }

    /// Accepts a chunk. Returns false if it is not the next one or exceeds the window: the caller must then
    /// acknowledge what is staged.
    pub(crate) fn accept_chunk(
        &mut self,
        number: u32,
        last: bool,
        data: Bytes,
        window: usize,
    ) -> bool {
        let ended = self.complete || self.waiting.back().is_some_and(|(_, last)| *last);
        let ended = ended || self.staging.is_some_and(|(_, last)| last);
        let has_room = self.waiting.len() < window && data.len() <= MAX_CHUNK_BYTES;
        if number != self.next || ended || !has_room {
            return false;
        }
        debug_assert!(
            self.staged as usize + self.waiting.len() <= self.next as usize,
            "transfer {}: chunk {number} was staged before it was received",
            self.id
        );
        self.next += 1;
        self.idle_ticks = 0;
        self.waiting.push_back((data, last));
        true
    }

    /// The number of staged chunks, to be acknowledged.
    pub(crate) fn staged_chunks(&self) -> u32 {
        self.staged
    }

    /// The next chunk to stage and its offset, unless a job is running.
    pub(crate) fn next_to_stage(&mut self) -> Option<(u64, Bytes)> {
        if self.job.is_some() || self.staging.is_some() {
            return None;
        }
        let (data, last) = self.waiting.pop_front()?;
        self.staging = Some((data.len() as u64, last));
        Some((self.staged_bytes, data))
    }

    pub(crate) fn finish_staging(&mut self) -> Option<StagingResult> {
        let (bytes, last) = self.staging.take()?;
        debug_assert!(
            self.staged < self.next,
            "transfer {}: chunk {} was not received",
            self.id,
            self.staged
        );
        self.staged += 1;
        self.staged_bytes += bytes;
        self.idle_ticks = 0;
        if last {
            self.complete = true;
            return Some(StagingResult::Complete {
                bytes: self.staged_bytes,
            });
        }
        Some(StagingResult::Ack(self.staged))
    }
}
