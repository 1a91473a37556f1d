//! Carries out the outputs of the member of the replication.

use super::{LogTask, Purpose, Role, StreamEffect, StreamReplica, recent};
use crate::cursors::RecentChunk;
use crate::fault::{self, Fault};
use crate::jobs::{ReadJob, ReadResult, Work};
use crate::{MAX_WAITING_BYTES, PeerMessage, READ_BYTES};
use env::NodeId;
use queue::{QueueOutput, Timestamps};
use stream_log::{AppendError, LogError, Start, TruncateError};
use stream_replication::{Attachment, ChunkHeader, MemberMessage, Output};

fn member_header(header: &stream_log::ChunkHeader) -> ChunkHeader {
    ChunkHeader {
        epoch: header.epoch,
        first: header.first_offset,
        next: header.next_offset(),
    }
}

impl StreamReplica {
    /// A message of another replica.
    pub fn receive(
        &mut self,
        at: Timestamps,
        from: NodeId,
        message: PeerMessage,
        out: &mut QueueOutput,
    ) {
        self.at = at;
        let Some(member) = &mut self.member else {
            return;
        };
        match message.message {
            MemberMessage::Chunks { .. } => self.receive_chunks(from, &message),
            message => member.receive(from, message, at.now),
        }
        self.settle(out);
    }

    fn receive_chunks(&mut self, from: NodeId, message: &PeerMessage) {
        if self.task_bytes + message.chunk_bytes() > MAX_WAITING_BYTES {
            return;
        }
        let chunks = match message.verified_chunks() {
            Ok(chunks) => chunks,
            Err(fault) => {
                let label = &self.config.label;
                let text = format!("{label}: node {} sent a damaged chunk: {fault}", from.0);
                return self.faults.push(text);
            }
        };
        let headers: Vec<ChunkHeader> = chunks.iter().map(|c| member_header(c.header())).collect();
        let Some(member) = &mut self.member else {
            return;
        };
        let token = member.receive_chunks(from, &message.message, &headers, self.at.now);
        if let Some(token) = token {
            self.task_bytes += chunks.iter().map(|c| c.bytes().len()).sum::<usize>();
            let chunks = chunks.into();
            let task = LogTask::Accept { token, chunks };
            self.tasks.push_back(task);
        }
    }

    /// Carries out the outputs of the member, and works on the log as far as possible.
    pub(crate) fn carry_out(&mut self, out: &mut QueueOutput) {
        loop {
            let outputs = match &mut self.member {
                Some(member) => member.poll(),
                None => return,
            };
            let had_outputs = !outputs.is_empty();
            for output in outputs {
                self.carry_out_one(output, out);
            }
            let worked = self.work(out);
            if !had_outputs && !worked {
                return;
            }
        }
    }

    fn carry_out_one(&mut self, output: Output, out: &mut QueueOutput) {
        match output {
            Output::Send { to, message } => {
                let message = PeerMessage {
                    message,
                    chunks: Vec::new(),
                };
                self.effects.push_back(StreamEffect::Send { to, message });
            }
            Output::SendChunks {
                to,
                attachment,
                first,
                end,
                bytes,
                committed,
            } => self.feed(to, attachment, (first, end), bytes, committed),
            Output::WriteMarker { epoch } => self.tasks.push_back(LogTask::Marker { epoch }),
            Output::Opened { epoch } => self.open(epoch, out),
            Output::Closed => self.close(out),
            Output::Committed(offset) => {
                if let Some(log) = &mut self.log {
                    log.commit(offset);
                }
                self.committed_up_to(offset, out);
                self.cursors.readable_advanced();
                self.retain();
            }
            Output::Truncate { next } => {
                self.clear_recent();
                self.feeders.clear();
                self.cursors
                    .detach_beyond(Some(next), &mut self.cursor_events);
                self.tasks.push_back(LogTask::Truncate { next });
            }
            Output::Reset { start } => {
                self.clear_recent();
                self.feeders.clear();
                self.cursors.detach_beyond(None, &mut self.cursor_events);
                self.tasks
                    .push_back(LogTask::Restart { start: Some(start) });
            }
            Output::TransferLeadership { to } => {
                self.effects.push_back(StreamEffect::TransferLeadership(to))
            }
            Output::Intact => {
                let (stream, machine) = (self.config.stream, self.config.machine.clone());
                self.start_job(Purpose::Record, Work::RecordMachine { stream, machine });
            }
            Output::LostCommitted { from, to } => {
                let label = &self.config.label;
                self.faults.push(format!(
                    "{label}: the confirmed messages from offset {from} to {to} are lost: more replicas lost the ends of \
                     their logs than the stream can bear"
                ));
                // The log refuses to drop chunks that it knows to be committed.
                self.tasks.push_back(LogTask::Restart { start: None });
            }
        }
    }

    /// Does the tasks of the log that can be done. Returns true if any was.
    fn work(&mut self, out: &mut QueueOutput) -> bool {
        let mut worked = false;
        while self.log.is_some() {
            let Some(task) = self.tasks.pop_front() else {
                break;
            };
            if let Some(unfinished) = self.work_on(task, out) {
                self.tasks.push_front(unfinished);
                break;
            }
            worked = true;
        }
        worked
    }

    /// Returns the task if it has to wait.
    fn work_on(&mut self, task: LogTask, out: &mut QueueOutput) -> Option<LogTask> {
        let still = self.is_log_still();
        let log = self.log.as_mut()?;
        match task {
            LogTask::Accept { token, mut chunks } => {
                while let Some(chunk) = chunks.pop_front() {
                    match self.log.as_mut()?.accept_chunk(&chunk) {
                        Ok(_) => {}
                        Err(AppendError::Busy | AppendError::Truncating) => {
                            chunks.push_front(chunk);
                            return Some(LogTask::Accept { token, chunks });
                        }
                        Err(error) => {
                            self.refused_by_log(&error);
                            return None;
                        }
                    }
                    let header = *chunk.header();
                    let bytes = chunk.bytes().clone();
                    self.task_bytes = self.task_bytes.saturating_sub(bytes.len());
                    self.issued.push_back((header.next_offset(), token));
                    if !self.cursors.is_empty() {
                        self.keep_recent(RecentChunk { header, bytes });
                    }
                }
                None
            }
            LogTask::Truncate { .. } if fault::is(Fault::TruncationForgotten) => None,
            LogTask::Truncate { next } => {
                if log.is_truncating() || !still {
                    return Some(LogTask::Truncate { next });
                }
                match log.truncate(next) {
                    Ok(()) => {
                        self.issued.clear();
                        // The next task waits until the log is truncated.
                        None
                    }
                    Err(TruncateError::Busy) => Some(LogTask::Truncate { next }),
                    Err(error @ TruncateError::Committed { .. }) => {
                        self.faults.push(format!("{}: {error}", self.config.label));
                        self.tasks.push_front(LogTask::Truncate { next });
                        self.tasks.push_front(LogTask::Restart { start: None });
                        None
                    }
                }
            }
            LogTask::Restart { start } => {
                if !still || log.is_truncating() {
                    return Some(LogTask::Restart { start });
                }
                self.issued.clear();
                let is_intact = self.is_intact();
                self.start_open(start, is_intact);
                None
            }
            LogTask::Marker { epoch } => {
                let member = self.member.as_ref()?;
                if member.writing() != Some(epoch) {
                    return None;
                }
                if log.next_offset() == 0 && member.log().next() == 0 {
                    // Nothing was ever stored: the first chunk takes the place of the marker, and its message gets offset 0.
                    self.open(epoch, out);
                    return None;
                }
                match log.append_marker(epoch, self.at.wall) {
                    Ok(_) => {
                        self.role = Role::Opening { epoch };
                        self.note_appended();
                    }
                    Err(AppendError::Busy | AppendError::Truncating) => {
                        return Some(LogTask::Marker { epoch });
                    }
                    Err(error) => self.refused_by_log(&error),
                }
                None
            }
        }
    }

    /// The log took no chunk although the member did: they contradict each other.
    pub(crate) fn refused_by_log(&mut self, error: &AppendError) {
        let text = format!("{}: a chunk cannot be stored: {error}", self.config.label);
        self.effects.push_back(StreamEffect::Fatal(text));
    }

    /// Tells the member of the chunks that the log took as those of the leader.
    pub(crate) fn note_appended(&mut self) {
        let (Some(log), Some(member)) = (&mut self.log, &mut self.member) else {
            return;
        };
        let from = member.log().next();
        let chunks: Vec<_> = log.pending_from(from).cloned().collect();
        for bytes in chunks {
            let Some(chunk) = recent(&bytes) else {
                debug_assert!(false, "the log holds a chunk without a header");
                return;
            };
            let Some(member) = &mut self.member else {
                return;
            };
            let header = member_header(&chunk.header);
            match member.append(header) {
                Some(token) => self.issued.push_back((header.next, token)),
                None => {
                    let label = &self.config.label;
                    let text = format!("{label}: the replication does not take {header:?}");
                    return self.effects.push_back(StreamEffect::Fatal(text));
                }
            }
            let has_readers = self.voters.len() + self.learners.len() > 1;
            if has_readers || !self.cursors.is_empty() {
                self.keep_recent(chunk);
            }
        }
    }

    /// Sends chunks to a follower, from memory or from the disk.
    fn feed(
        &mut self,
        to: NodeId,
        attachment: Attachment,
        (first, end): (u64, u64),
        bytes: u64,
        committed: u64,
    ) {
        let limit = usize::try_from(bytes).unwrap_or(usize::MAX).min(READ_BYTES);
        let at = self
            .recent
            .partition_point(|chunk| chunk.header.first_offset < first);
        let (mut chunks, mut taken, mut next) = (Vec::new(), 0, first);
        for chunk in self.recent.range(at..) {
            let is_next = chunk.header.first_offset == next && chunk.header.next_offset() <= end;
            if !is_next || taken >= limit {
                break;
            }
            taken += chunk.bytes.len();
            next = chunk.header.next_offset();
            chunks.push(chunk.bytes.clone());
        }
        if !chunks.is_empty() {
            self.feeders.remove(&to);
            return self.send_chunks(to, attachment, (first, next), committed, chunks);
        }
        let Some(log) = &mut self.log else {
            return self.not_readable(to, attachment, first);
        };
        let reader = self.feeders.remove(&to).filter(|r| r.offset() == first);
        let job = ReadJob {
            view: log.replication_view(),
            start: Start::Offset(first),
            reader,
            max_bytes: limit.max(1),
            max_chunks: usize::MAX,
            end,
            only: None,
        };
        let purpose = Purpose::Feed {
            to,
            attachment,
            first,
            committed,
        };
        self.start_job(purpose, Work::Read(Box::new(job)));
    }

    pub(super) fn feed_done(
        &mut self,
        to: NodeId,
        attachment: Attachment,
        (first, committed): (u64, u64),
        result: ReadResult,
    ) {
        let starts = result.chunks.first().map(|c| c.header().first_offset);
        if let Some(error) = &result.error
            && !matches!(error, LogError::Deleted { .. })
        {
            let label = &self.config.label;
            let text = format!("{label}: chunks for node {} cannot be read: {error}", to.0);
            self.faults.push(text);
        }
        if starts != Some(first) {
            return self.not_readable(to, attachment, first);
        }
        let next = result
            .chunks
            .last()
            .map_or(first, |c| c.header().next_offset());
        if let Some(reader) = result.reader {
            self.feeders.insert(to, reader);
        }
        let chunks = result.chunks.iter().map(|c| c.bytes().clone()).collect();
        self.send_chunks(to, attachment, (first, next), committed, chunks);
    }

    fn not_readable(&mut self, to: NodeId, attachment: Attachment, first: u64) {
        let now = self.at.now;
        if let Some(member) = &mut self.member {
            member.sent_chunks(to, attachment, first, 0, now);
        }
    }

    fn send_chunks(
        &mut self,
        to: NodeId,
        attachment: Attachment,
        (first, next): (u64, u64),
        committed: u64,
        chunks: Vec<bytes::Bytes>,
    ) {
        // The term may have ended while the chunks were read.
        let Some(member) = &mut self.member else {
            return;
        };
        let Some(epoch) = member.writing() else {
            return;
        };
        let message = PeerMessage {
            message: MemberMessage::Chunks {
                epoch,
                attachment,
                first,
                committed,
            },
            chunks,
        };
        let bytes = message.chunk_bytes() as u64;
        member.sent_chunks(to, attachment, next, bytes, self.at.now);
        self.effects.push_back(StreamEffect::Send { to, message });
    }
}
