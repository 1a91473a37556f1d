//! Chunks for backups: reads of the committed log, and appends to a log that is restored.

use super::requests::refused;
use super::{Purpose, Role, StreamReplica};
use crate::jobs::{ReadJob, ReadResult, Work};
use bytes::Bytes;
use queue::cursor::{MAX_APPEND_BYTES, MAX_READ_BYTES, StreamChunks, StreamReply};
use queue::{QueueEvent, QueueOutput, QueueReply, SessionId};
use stream_log::{AppendError, Chunk, ChunkKind, FilterMatcher, LogError, Start};

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

    /// Appends chunks of a backup if the log ends at `at`.
    pub(super) fn append_chunks(
        &mut self,
        (session, seq): (SessionId, u64),
        at: u64,
        chunks: Vec<Bytes>,
        out: &mut QueueOutput,
    ) {
        match self.try_append_chunks(session, at, chunks) {
            Ok(end) => {
                let answer = QueueReply::Stream(StreamReply::Offset(Some(end)));
                self.answer_once_committed(session, seq, answer, out);
            }
            Err((code, text)) => {
                let text = format!("{}: {text}", self.config.label);
                self.answer(session, seq, refused(code, text), out);
            }
        }
    }

    /// Returns the offset after the chunks, or the code and the text of the refusal.
    fn try_append_chunks(
        &mut self,
        session: SessionId,
        at: u64,
        chunks: Vec<Bytes>,
    ) -> Result<u64, (u16, String)> {
        let bytes: usize = chunks.iter().map(Bytes::len).sum();
        if bytes > MAX_APPEND_BYTES && chunks.len() > 1 {
            let text = format!("chunks of {bytes} bytes; the most at once is {MAX_APPEND_BYTES}");
            return Err((406, text));
        }
        // All are checked before the first one is stored.
        let mut decoded = Vec::with_capacity(chunks.len());
        for bytes in chunks {
            let chunk = Chunk::decode(bytes);
            let chunk = chunk.map_err(|fault| (406, format!("a chunk is invalid: {fault}")))?;
            if chunk.header().kind != ChunkKind::Messages {
                return Err((406, "a chunk has no messages".to_owned()));
            }
            decoded.push(chunk);
        }
        let is_cut = self.cut();
        let (Role::Open { epoch }, Some(log), true) = (self.role, &mut self.log, is_cut) else {
            return Err((541, "it cannot be written now: try again later".to_owned()));
        };
        let end = log.next_offset();
        if end != at {
            let text = format!(
                "it ends at offset {end} instead of {at}: it has other messages, or these are stored already"
            );
            return Err((409, text));
        }
        let wall = self.at.wall;
        let mut records = 0;
        let mut append = || {
            for chunk in &decoded {
                log.append_copy(chunk, epoch, wall)?;
                records += u64::from(chunk.header().records);
            }
            Ok(())
        };
        let result: Result<(), AppendError> = append();
        let end = log.next_offset();
        self.note_appended();
        self.counters.publish += records;
        if let Some(known) = self.sessions.get_mut(session) {
            known.awaits = known.awaits.max(end);
        }
        match result {
            Ok(()) => Ok(end),
            Err(error) => Err((541, error.to_string())),
        }
    }
}

/// The log has room for the chunks of a request that was not refused for lack of room, unless it is one large chunk.
const _: () = assert!(MAX_APPEND_BYTES <= crate::MAX_BATCH_BYTES);
