//! The sending side of a checkpoint transfer.

use super::stream::put_entry;
use crate::codec::{Offer, Transfer};
use crate::entry::Position;
use crate::jobs::JobOutcome;
use crate::store::Segments;
use crate::{GroupId, JobId};
use bytes::{BufMut, Bytes, BytesMut};
use env::Disk;
use segment::{Segment, SegmentError};
use slots::IndexSet;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wal::Entry;

/// Where live entries are read from: entries that are not in a segment yet, and the segments.
#[derive(Clone, Debug)]
pub(crate) struct EntrySources {
    memory: Arc<BTreeMap<u64, Entry>>,
    segments: Vec<Arc<Segment>>,
}

impl EntrySources {
    pub(crate) fn new(memory: BTreeMap<u64, Entry>, segments: &Segments) -> EntrySources {
        EntrySources {
            memory: Arc::new(memory),
            segments: segments.all().to_vec(),
        }
    }

    fn read(&self, index: u64) -> Result<Option<Entry>, SegmentError> {
        if let Some(entry) = self.memory.get(&index) {
            return Ok(Some(entry.clone()));
        }
        for segment in self.segments.iter().rev() {
            if let Some(entry) = segment.read(index)? {
                return Ok(Some(entry));
            }
        }
        Ok(None)
    }
}

/// The result of a read job.
#[derive(Debug)]
pub(crate) enum CheckpointPart {
    /// The contents of the checkpoint file.
    Opened(segment::Checkpoint),
    /// Encoded entries, and the index of the last one.
    Entries { data: BytesMut, upto: u64 },
    /// The checkpoint was replaced by a newer one.
    Replaced,
    /// A live entry is stored nowhere: this node's data is damaged.
    Missing(u64),
}

/// A job that reads the checkpoint file.
pub(crate) fn open(
    group: GroupId,
    index: u64,
) -> impl FnOnce(&dyn Disk) -> Result<JobOutcome, SegmentError> + Send + 'static {
    move |disk| {
        // A newer checkpoint may have replaced it before this job ran.
        if !segment::list_group(disk, group)?
            .checkpoints
            .contains(&index)
        {
            return Ok(JobOutcome::Read(CheckpointPart::Replaced));
        }
        let checkpoint = segment::read_checkpoint(disk, group, index)?;
        Ok(JobOutcome::Read(CheckpointPart::Opened(checkpoint)))
    }
}

/// Progress of an outgoing transfer.
#[derive(Debug)]
enum SendPhase {
    /// The checkpoint file is being read.
    Opening,
    /// Entries are being read and chunks sent.
    Sending,
    /// Everything is sent; the receiver installs it.
    Ending,
}

/// A checkpoint that is being sent.
#[derive(Debug)]
pub(crate) struct OutgoingCheckpoint {
    pub id: u64,
    /// The leader's term when the transfer began; it is aborted when the term changes.
    pub term: u64,
    pub position: Position,
    sources: EntrySources,
    live: Arc<IndexSet>,
    phase: SendPhase,
    /// The running job that reads for this transfer.
    pub job: Option<JobId>,
    /// Live entries up to and including this index are read.
    read_upto: u64,
    /// Stream bytes that are not in a chunk yet.
    ready: BytesMut,
    /// The end of the stream is in `ready`.
    complete: bool,
    hasher: crc32fast::Hasher,
    /// Sent and unacknowledged chunks; the first has number `acked`.
    sent: VecDeque<(Bytes, bool)>,
    acked: u32,
    /// Ticks since the last acknowledgement.
    pub idle_ticks: u32,
    offer: Option<Offer>,
}

impl OutgoingCheckpoint {
    pub(crate) fn new(
        id: u64,
        term: u64,
        position: Position,
        sources: EntrySources,
    ) -> OutgoingCheckpoint {
        OutgoingCheckpoint {
            id,
            term,
            position,
            sources,
            live: Arc::default(),
            phase: SendPhase::Opening,
            job: None,
            read_upto: 0,
            ready: BytesMut::new(),
            complete: false,
            hasher: crc32fast::Hasher::new(),
            sent: VecDeque::new(),
            acked: 0,
            idle_ticks: 0,
            offer: None,
        }
    }

    /// Starts a transfer of the founding checkpoint, which has no file and no contents.
    pub(crate) fn begin_empty(&mut self, membership: Bytes) -> Transfer {
        self.begin(segment::Checkpoint {
            index: self.position.index,
            term: self.position.term,
            membership,
            ..segment::Checkpoint::default()
        })
    }

    /// The checkpoint file was read: returns the first message to send.
    pub(crate) fn begin(&mut self, checkpoint: segment::Checkpoint) -> Transfer {
        let offer = Offer {
            id: self.id,
            term: self.term,
            index: checkpoint.index,
            index_term: checkpoint.term,
            membership: checkpoint.membership,
            state_bytes: checkpoint.state.len() as u64,
            entries: checkpoint.live.len(),
        };
        self.offer = Some(offer.clone());
        self.live = Arc::new(checkpoint.live);
        self.push(&checkpoint.state);
        self.phase = SendPhase::Sending;
        self.finish_if_complete();
        Transfer::Begin(offer)
    }

    fn push(&mut self, data: &[u8]) {
        self.hasher.update(data);
        self.ready.put_slice(data);
    }

    fn next_live(&self) -> Option<u64> {
        let after = self.read_upto;
        let ranges = self.live.ranges();
        let at = ranges.partition_point(|(_, last)| *last <= after);
        ranges.get(at).map(|(first, _)| (*first).max(after + 1))
    }

    fn finish_if_complete(&mut self) {
        if self.next_live().is_none() && !self.complete {
            let crc = self.hasher.clone().finalize();
            self.ready.put_u32_le(crc);
            self.complete = true;
        }
    }

    /// The job that reads more entries, if there is room for more.
    pub(crate) fn next_read(
        &self,
        chunk_bytes: usize,
    ) -> Option<impl FnOnce(&dyn Disk) -> Result<JobOutcome, SegmentError> + Send + 'static> {
        let can_read = matches!(self.phase, SendPhase::Sending)
            && self.job.is_none()
            && !self.complete
            && self.ready.len() < chunk_bytes;
        let from = self.next_live().filter(|_| can_read)?;
        let (sources, live) = (self.sources.clone(), Arc::clone(&self.live));
        Some(move |_: &dyn Disk| read_entries(&sources, &live, from, chunk_bytes))
    }

    pub(crate) fn push_entries(&mut self, data: &[u8], upto: u64) {
        self.push(data);
        self.read_upto = upto;
        self.finish_if_complete();
    }

    /// The next chunk, if the window is open and a chunk is ready.
    pub(crate) fn next_chunk(&mut self, chunk_bytes: usize, window: usize) -> Option<Transfer> {
        if !matches!(self.phase, SendPhase::Sending) || self.sent.len() >= window {
            return None;
        }
        if self.ready.len() < chunk_bytes && !self.complete {
            return None;
        }
        let data = self
            .ready
            .split_to(self.ready.len().min(chunk_bytes))
            .freeze();
        let last = self.complete && self.ready.is_empty();
        if last {
            self.phase = SendPhase::Ending;
        }
        let number = self.acked.checked_add(self.sent.len() as u32)?;
        self.sent.push_back((data.clone(), last));
        Some(Transfer::Chunk {
            id: self.id,
            number,
            last,
            data,
        })
    }

    /// The receiver has every chunk before `next`.
    pub(crate) fn acknowledge(&mut self, next: u32) {
        while self.acked < next && self.sent.pop_front().is_some() {
            self.acked += 1;
            self.idle_ticks = 0;
        }
    }

    /// Every message that may have been lost.
    pub(crate) fn resend(&self) -> Vec<Transfer> {
        let begin = self.offer.clone().filter(|_| self.acked == 0);
        let chunks = self
            .sent
            .iter()
            .zip(self.acked..)
            .map(|((data, last), n)| Transfer::Chunk {
                id: self.id,
                number: n,
                last: *last,
                data: data.clone(),
            });
        begin
            .map(Transfer::Begin)
            .into_iter()
            .chain(chunks)
            .collect()
    }
}

fn read_entries(
    sources: &EntrySources,
    live: &IndexSet,
    from: u64,
    bytes: usize,
) -> Result<JobOutcome, SegmentError> {
    let mut data = BytesMut::new();
    let mut upto = from;
    let at = live.ranges().partition_point(|(_, last)| *last < from);
    let ranges = live.ranges().get(at..).unwrap_or_default();
    let indexes = ranges.iter().flat_map(|(f, l)| (*f).max(from)..=*l);
    for index in indexes {
        if data.len() >= bytes {
            break;
        }
        match sources.read(index)? {
            Some(entry) => put_entry(&mut data, &entry),
            None => return Ok(JobOutcome::Read(CheckpointPart::Missing(index))),
        }
        upto = index;
    }
    Ok(JobOutcome::Read(CheckpointPart::Entries { data, upto }))
}
