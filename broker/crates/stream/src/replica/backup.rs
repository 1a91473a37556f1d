//! Chunks for backups: reads of the committed log, and appends to a log that is restored.

use super::requests::refused;
use super::{Purpose, Role, StreamReplica};
use crate::jobs::{ReadJob, ReadResult, Work};
use bytes::Bytes;
use queue::cursor::{MAX_READ_BYTES, StreamChunks, StreamReply};
use queue::{QueueEvent, QueueOutput, QueueReply, SessionId};
use stream_log::{Chunk, ChunkKind, FilterMatcher, LogError, Start};

/// Most chunks of one answer.
const MAX_CHUNKS: usize = 4_096;

impl StreamReplica {
    /// Reads chunks with messages from `from` on that end at `end` or before.
    pub(super) fn read_chunks(
        &mut self,
        (session, seq): (SessionId, u64),
        from: u64,
        end: u64,
        out: &mut QueueOutput,
    ) {
        let Some(log) = &mut self.log else { return };
        let local = log.first_offset();
        let (from, remote) = match &self.tier {
            Some(tier) if from < local && !tier.is_loaded() => {
                let text = format!(
                    "the segments of {} in the object store are not known yet: try again later",
                    self.config.label
                );
                return self.answer(session, seq, refused(541, text), out);
            }
            Some(tier) => match tier.read_offset(from, local) {
                Some(read) => (from, Some(read)),
                None => (from.max(local), None),
            },
            None => (from.max(local), None),
        };
        let end = end.min(log.readable());
        if from >= end {
            let chunks = StreamChunks {
                next: from,
                chunks: Vec::new(),
            };
            let answer = QueueReply::Stream(StreamReply::Chunks(chunks));
            return self.answer(session, seq, answer, out);
        }
        // Every chunk with messages.
        let only = Some(FilterMatcher::default());
        let work = match remote {
            Some(mut read) => {
                (read.max_bytes, read.max_chunks) = (MAX_READ_BYTES, MAX_CHUNKS);
                read.only = only;
                Work::ReadRemote(Box::new(read))
            }
            None => Work::Read(Box::new(ReadJob {
                view: log.view(),
                start: Start::Offset(from),
                reader: None,
                max_bytes: MAX_READ_BYTES,
                max_chunks: MAX_CHUNKS,
                end,
                only,
            })),
        };
        self.start_job(Purpose::Export { session, seq, from }, work);
    }

    /// A read of [`Self::read_chunks`] is complete.
    pub(super) fn chunks_read(
        &mut self,
        (session, seq): (SessionId, u64),
        from: u64,
        result: ReadResult,
        out: &mut QueueOutput,
    ) {
        if !self.leads() {
            return;
        }
        let next = match &result.error {
            None => result.next.max(from),
            // The chunks before the error are good; the next request meets it again.
            Some(_) if !result.chunks.is_empty() => result.next,
            // Retention was faster.
            Some(LogError::Deleted { .. }) => self.first_offset().unwrap_or(from).max(from),
            Some(error) => {
                let text = format!("{}: {error}", self.config.label);
                return self.answer(session, seq, refused(541, text), out);
            }
        };
        let mut answer = StreamChunks {
            next,
            chunks: Vec::with_capacity(result.chunks.len()),
        };
        let mut bytes = 0;
        for chunk in &result.chunks {
            bytes += chunk.bytes().len();
            if bytes > MAX_READ_BYTES && !answer.chunks.is_empty() {
                answer.next = chunk.header().first_offset;
                break;
            }
            answer.chunks.push(chunk.bytes().clone());
        }
        debug_assert!(
            answer.chunks.len() <= 1
                || answer.chunks.iter().map(Bytes::len).sum::<usize>() <= MAX_READ_BYTES
        );
        let Some(known) = self.sessions.get_mut(session) else {
            return;
        };
        // The session may lose the answer. It would be too large to keep, so the repeated request gets no chunks.
        let repeated = StreamChunks {
            next: from,
            chunks: Vec::new(),
        };
        known.record_answer(seq, QueueReply::Stream(StreamReply::Chunks(repeated)));
        let answer = QueueReply::Stream(StreamReply::Chunks(answer));
        out.event(session, QueueEvent::Answer { seq, answer });
    }

    /// Appends a chunk of a backup if the log ends at `at`.
    pub(super) fn append_chunk(
        &mut self,
        (session, seq): (SessionId, u64),
        at: u64,
        chunk: Bytes,
        out: &mut QueueOutput,
    ) {
        let label = self.config.label.clone();
        let chunk = match Chunk::decode(chunk) {
            Ok(chunk) if chunk.header().kind == ChunkKind::Messages => chunk,
            Ok(_) => {
                let text = format!("a chunk for {label} has no messages");
                return self.answer(session, seq, refused(406, text), out);
            }
            Err(fault) => {
                let text = format!("a chunk for {label} is invalid: {fault}");
                return self.answer(session, seq, refused(406, text), out);
            }
        };
        let is_cut = self.cut();
        let (Role::Open { epoch }, Some(log), true) = (self.role, &mut self.log, is_cut) else {
            let text = format!("{label} cannot be written now: try again later");
            return self.answer(session, seq, refused(541, text), out);
        };
        let next = log.next_offset();
        if next != at {
            let text = format!(
                "{label} ends at offset {next} instead of {at}: it has other messages, or the chunk is stored already"
            );
            return self.answer(session, seq, refused(409, text), out);
        }
        let header = match log.append_copy(&chunk, epoch, self.at.wall) {
            Ok(header) => header,
            Err(error) => {
                let text = format!("{label}: {error}");
                return self.answer(session, seq, refused(541, text), out);
            }
        };
        let end = header.next_offset();
        self.note_appended();
        self.counters.publish += u64::from(header.records);
        if let Some(known) = self.sessions.get_mut(session) {
            known.awaits = known.awaits.max(end);
        }
        let answer = QueueReply::Stream(StreamReply::Offset(Some(end)));
        self.answer_once_committed(session, seq, answer, out);
    }
}
