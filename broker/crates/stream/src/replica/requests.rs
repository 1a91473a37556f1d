//! Requests of sessions to the leader.

use super::{Purpose, Role, StreamReplica};
use crate::fault::{self, Fault};
use crate::jobs::{ReadJob, ReadResult, Work};
use crate::sessions::Admission;
use crate::{MAX_BATCH_BYTES, MAX_WAITING_SESSIONS, consumer_rules, entry};
use codec_stream::{PublishedBody, PublishedMessage, PublishedMessages};
use message::Message;
use queue::cursor::{CursorStart, StreamBatch, StreamReply, StreamRequest, StreamStats};
use queue::{
    ConsumerId, ConsumerInfo, ConsumerSpec, FlowMode, QueueEvent, QueueOutput, QueueReply,
    RejectReason, Request, RequestBody, SessionId,
};
use std::collections::BTreeSet;
use stream_log::{Deduplication, MAX_ENTRY_BYTES, MAX_NAME_BYTES, Start, SubBatch};

impl StreamReplica {
    pub(super) fn request(&mut self, request: Request, out: &mut QueueOutput) {
        let Request { session, seq, body } = request;
        if !self.leads() {
            return self.redirect(session, out);
        }
        match self.sessions.check(session, seq) {
            Admission::Apply => {}
            Admission::Gap { .. } if fault::is(Fault::GapApplied) => {}
            Admission::Duplicate => {
                if let Some(known) = self.sessions.get(session) {
                    if let Some(answer) = known.answer(seq) {
                        out.event(session, QueueEvent::Answer { seq, answer });
                    }
                    if seq <= known.done {
                        out.event(session, known.progress());
                    }
                }
                return;
            }
            Admission::Gap { expected } => {
                if !self.stalled.contains_key(&session) {
                    out.event(session, QueueEvent::Expecting { expected });
                }
                return;
            }
            Admission::Ignore => {
                if matches!(body, RequestBody::Close) {
                    out.event(session, QueueEvent::Applied { up_to: seq });
                }
                return;
            }
        }
        if takes_room(&body) && !self.has_room() {
            return self.stall(session, seq);
        }
        self.stalled.remove(&session);
        self.sessions.admit(session, seq);
        self.touched.insert(session);
        self.apply(session, seq, body, out);
    }

    /// This replica does not take requests: tells the session the leader, or when to come back.
    fn redirect(&mut self, session: SessionId, out: &mut QueueOutput) {
        let me = self.config.node;
        let is_next = self.raft.leader == Some(me);
        if (is_next || self.raft.leader.is_none()) && self.waiting.len() < MAX_WAITING_SESSIONS {
            self.waiting.insert(session);
        }
        if !is_next {
            let leader = self.raft.leader;
            out.event(session, QueueEvent::NotOwner { leader });
        }
    }

    fn apply(&mut self, session: SessionId, seq: u64, body: RequestBody, out: &mut QueueOutput) {
        let label = self.config.label.clone();
        if self.is_deleted {
            return self.apply_after_deletion(session, seq, &body, out);
        }
        match body {
            RequestBody::Publish(message) => self.publish(session, seq, &message),
            RequestBody::PublishBatch(batch) => self.publish_batch(session, seq, &batch),
            RequestBody::Stream(request) => self.stream_request(session, seq, request, out),
            RequestBody::Consume { consumer, spec } => {
                let answer = match consumer_rules(&spec, &label, self.at.wall) {
                    Ok(_) => {
                        if let Some(known) = self.sessions.get_mut(session) {
                            known.consumers.insert(consumer, spec);
                        }
                        QueueReply::Consuming
                    }
                    Err(refused) => refused,
                };
                self.answer(session, seq, answer, out);
            }
            RequestBody::TakeOver(_) => {
                let text = format!("{label} cannot be the queue of an MQTT session");
                self.answer(session, seq, refused(540, text), out);
            }
            RequestBody::Cancel { consumer } | RequestBody::CancelAndRequeue { consumer } => {
                if let Some(known) = self.sessions.get_mut(session) {
                    known.consumers.remove(&consumer);
                }
            }
            // The session's side keeps the positions of its consumers.
            RequestBody::Settle { .. }
            | RequestBody::Modify { .. }
            | RequestBody::CreditOneWay { .. }
            | RequestBody::Recover { .. } => {}
            RequestBody::Credit { drain, .. } => {
                let answer = QueueReply::Credited {
                    last: 0,
                    available: 0,
                    drained: drain,
                };
                self.answer(session, seq, answer, out);
            }
            RequestBody::Get { .. } | RequestBody::GetAt(_) => {
                let text = format!("basic.get not supported by stream queues {label}");
                self.answer(session, seq, refused(540, text), out);
            }
            RequestBody::Purge => {
                let text = format!("queue.purge not supported by stream queues {label}");
                self.answer(session, seq, refused(540, text), out);
            }
            RequestBody::Stat => {
                let stats = queue::Queue::stats(self);
                let answer = QueueReply::Count {
                    messages: stats.ready,
                    consumers: stats.consumers,
                };
                self.answer(session, seq, answer, out);
            }
            RequestBody::Delete { .. } => {
                self.is_deleted = true;
                self.purge_store();
                let consumers = queue::Queue::stats(self).consumers;
                // As in RabbitMQ, no messages are counted.
                let answer = QueueReply::Count {
                    messages: 0,
                    consumers,
                };
                self.answer(session, seq, answer, out);
                let text = format!("no {label}");
                self.cursors.refuse_all(&text, &mut self.cursor_events);
            }
            RequestBody::Close => {
                self.touched.remove(&session);
                self.building.remove(&session);
                self.sessions.close(session);
                self.cursors.end_sessions(|of| *of == session);
                out.event(session, QueueEvent::Applied { up_to: seq });
            }
        }
    }

    fn apply_after_deletion(
        &mut self,
        session: SessionId,
        seq: u64,
        body: &RequestBody,
        out: &mut QueueOutput,
    ) {
        match body {
            RequestBody::Publish(_) | RequestBody::PublishBatch(_) => self.refuse(session, seq),
            RequestBody::Consume { .. }
            | RequestBody::TakeOver(_)
            | RequestBody::Get { .. }
            | RequestBody::GetAt(_)
            | RequestBody::Credit { .. }
            | RequestBody::Purge
            | RequestBody::Stat
            | RequestBody::Delete { .. }
            | RequestBody::Stream(_) => {
                let text = format!("no {}", self.config.label);
                self.answer(session, seq, refused(404, text), out);
            }
            RequestBody::Close => {
                self.touched.remove(&session);
                self.sessions.close(session);
                out.event(session, QueueEvent::Applied { up_to: seq });
            }
            _ => {}
        }
    }

    fn refuse(&mut self, session: SessionId, seq: u64) {
        if let Some(known) = self.sessions.get_mut(session) {
            known.refuse(seq, RejectReason::Unavailable);
        }
    }

    // Publishing.

    fn publish(&mut self, session: SessionId, seq: u64, message: &Message) {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        entry::encode(message, &mut bytes);
        let is_stored = bytes.len() <= MAX_ENTRY_BYTES && {
            let filter = entry::filter_value(&bytes);
            self.push_message(&bytes, filter)
        };
        match is_stored {
            true => self.note_published(session, 1),
            false => self.refuse(session, seq),
        }
        if bytes.capacity() <= MAX_SCRATCH_BYTES {
            self.scratch = bytes;
        }
    }

    fn note_published(&mut self, session: SessionId, messages: u64) {
        self.counters.publish += messages;
        self.building.insert(session);
    }

    /// Makes room in the builder for an entry.
    fn make_room(&mut self) -> bool {
        !self.builder.is_full() || self.cut()
    }

    fn push_message(&mut self, body: &[u8], filter: Option<&[u8]>) -> bool {
        self.make_room() && self.builder.push_message(body, filter).is_ok()
    }

    fn publish_batch(&mut self, session: SessionId, seq: u64, batch: &StreamBatch) {
        let messages = PublishedMessages::from_parts(batch.version, batch.count, &batch.entries);
        let is_small = batch.entries.len() <= MAX_BATCH_BYTES || batch.count == 1;
        let name = batch.producer.as_ref().map(|name| name.as_bytes());
        let is_named = name.is_none_or(|name| name.len() <= MAX_NAME_BYTES);
        // The whole batch is checked before any entry is stored.
        let is_valid = messages.iter().all(|message| {
            message.is_ok_and(|message| match message.body {
                PublishedBody::Message(body) => body.len() <= MAX_ENTRY_BYTES,
                PublishedBody::SubBatch { data, .. } => data.len() <= MAX_ENTRY_BYTES,
            })
        });
        if !is_small || !is_named || !is_valid {
            return self.refuse(session, seq);
        }
        for message in messages.iter().flatten() {
            if let Some(name) = name
                && let Some(committed_above) = self.duplicate_of(name, message.publishing_id)
            {
                if let Some(known) = self.sessions.get_mut(session) {
                    known.awaits = known.awaits.max(committed_above.saturating_add(1));
                }
                continue;
            }
            let records = match self.push_published(&message) {
                Some(records) => records,
                // The log is not writable any more, or there are no further offsets: the batch is not confirmed.
                None => return self.refuse(session, seq),
            };
            self.note_published(session, u64::from(records));
            if let Some(name) = name {
                self.set_sequence(name, message.publishing_id);
            }
        }
    }

    /// The offset of the chunk that has this message already, if it is a duplicate.
    fn duplicate_of(&self, producer: &[u8], sequence: u64) -> Option<u64> {
        let log = self.log.as_ref()?;
        match log.deduplicate(&self.builder, producer, sequence) {
            Deduplication::New => None,
            Deduplication::Duplicate { committed_above }
                if fault::is(Fault::SequencesLost) && committed_above < self.opened_at =>
            {
                None
            }
            Deduplication::Duplicate { committed_above } => Some(committed_above),
        }
    }

    fn push_published(&mut self, message: &PublishedMessage<'_>) -> Option<u16> {
        if !self.make_room() {
            return None;
        }
        let filter = message.filter.map(str::as_bytes);
        match message.body {
            PublishedBody::Message(body) => {
                self.builder.push_message(body, filter).ok()?;
                Some(1)
            }
            PublishedBody::SubBatch {
                compression,
                records,
                uncompressed_len,
                data,
            } => {
                let batch = SubBatch {
                    compression,
                    records,
                    uncompressed_len,
                    data,
                };
                self.builder.push_sub_batch(&batch, filter).ok()?;
                Some(records)
            }
        }
    }

    /// States the newest sequence of a producer in the chunk that has its message.
    fn set_sequence(&mut self, producer: &[u8], sequence: u64) {
        // A chunk has room for the names of more producers than publish in one turn; without the name a duplicate could be
        // stored, but nothing is lost.
        if let Err(error) = self.builder.set_sequence(producer, sequence) {
            self.faults.push(format!("{}: {error}", self.config.label));
        }
    }

    // Requests of the stream protocol.

    fn stream_request(
        &mut self,
        session: SessionId,
        seq: u64,
        request: StreamRequest,
        out: &mut QueueOutput,
    ) {
        match request {
            StreamRequest::StoreOffset { name, offset } => self.store_offset(&name, offset),
            StreamRequest::QueryOffset { name } => {
                self.cut();
                let tracking = self.log.as_ref().map(|log| log.tracking());
                let offset = tracking.and_then(|tracking| tracking.offset(name.as_bytes()));
                let answer = QueueReply::Stream(StreamReply::Offset(offset));
                self.answer_once_committed(session, seq, answer, out);
            }
            StreamRequest::QueryPublisher { name } => {
                self.cut();
                let tracking = self.log.as_ref().map(|log| log.tracking());
                let known = tracking.and_then(|tracking| tracking.sequence(name.as_bytes()));
                let id = known.map(|known| known.sequence);
                let answer = QueueReply::Stream(StreamReply::PublishingId(id));
                self.answer_once_committed(session, seq, answer, out);
            }
            StreamRequest::ResolveOffset { start } => {
                let Some(ends) = self.ends() else { return };
                let offset = match start {
                    CursorStart::First => ends.first,
                    CursorStart::Next => ends.readable,
                    CursorStart::Offset(offset) => offset.min(ends.readable).max(ends.first),
                    CursorStart::Last => {
                        return self.find_position(session, seq, Start::Last, false);
                    }
                    CursorStart::Timestamp(time) => {
                        let time = i64::try_from(time.0).unwrap_or(i64::MAX);
                        return self.find_position(session, seq, Start::Timestamp(time), false);
                    }
                };
                let answer = QueueReply::Stream(StreamReply::Offset(Some(offset)));
                self.answer(session, seq, answer, out);
            }
            StreamRequest::Stats => self.find_position(session, seq, Start::Last, true),
            StreamRequest::ReadChunks { from, end } => {
                self.read_chunks((session, seq), from, end, out);
            }
            StreamRequest::AppendChunks { at, chunks } => {
                self.append_chunks((session, seq), at, chunks, out);
            }
        }
    }

    fn store_offset(&mut self, name: &str, offset: u64) {
        let Some(log) = &self.log else { return };
        match log.store_offset(&mut self.builder, name.as_bytes(), offset) {
            Ok(true) => {}
            Ok(false) => {
                let label = &self.config.label;
                self.faults.push(format!(
                    "{label}: the offset of '{name}' is not stored: too many consumers have stored offsets"
                ));
            }
            Err(error) => self.faults.push(format!("{}: {error}", self.config.label)),
        }
    }

    /// The answer depends on everything that the log has now.
    pub(super) fn answer_once_committed(
        &mut self,
        session: SessionId,
        seq: u64,
        answer: QueueReply,
        out: &mut QueueOutput,
    ) {
        let end = self.log.as_ref().map_or(0, |log| log.next_offset());
        match end <= self.committed_offset() {
            true => self.answer(session, seq, answer, out),
            false => self.deferred.push_back((end, session, seq, answer)),
        }
    }

    fn find_position(&mut self, session: SessionId, seq: u64, start: Start, stats: bool) {
        let remote = self.remote_start(start);
        let Some(log) = &mut self.log else { return };
        let work = match remote {
            Some(read) => Work::ReadRemote(read),
            None => Work::Read(Box::new(ReadJob {
                view: log.view(),
                start,
                reader: None,
                max_bytes: 0,
                max_chunks: 0,
                end: log.readable(),
                only: None,
            })),
        };
        let purpose = Purpose::Answer {
            session,
            seq,
            stats,
        };
        self.start_job(purpose, work);
    }

    pub(super) fn position_found(
        &mut self,
        session: SessionId,
        seq: u64,
        stats: bool,
        result: &ReadResult,
        out: &mut QueueOutput,
    ) {
        if !matches!(self.role, Role::Open { .. }) {
            return;
        }
        let Some(log) = &self.log else { return };
        if let Some(error) = &result.error {
            let text = format!("{}: {error}", self.config.label);
            self.faults.push(text.clone());
            return self.answer(session, seq, refused(541, text), out);
        }
        let (first, readable) = (self.stream_start(log), log.readable());
        let reply = match stats {
            false => StreamReply::Offset(Some(result.next)),
            true => StreamReply::Stats(StreamStats {
                first_offset: (first < readable).then_some(first),
                last_chunk: (result.next < readable).then_some(result.next),
                committed: (first < readable).then(|| readable.saturating_sub(1)),
            }),
        };
        self.answer(session, seq, QueueReply::Stream(reply), out);
    }

    // Consumers.

    /// Consumers that sessions registered, and cursors of other protocols.
    pub(super) fn consumer_keys(&self) -> BTreeSet<(SessionId, ConsumerId)> {
        let sessions = self.sessions.iter();
        let registered = sessions.flat_map(|(session, known)| {
            known
                .consumers
                .keys()
                .map(move |consumer| (*session, *consumer))
        });
        let cursors = self.cursors.iter().map(|(session, id, _)| (session, id));
        registered.chain(cursors).collect()
    }

    pub(super) fn list_consumers(&self) -> Vec<ConsumerInfo> {
        let registered = self.sessions.iter().flat_map(|(session, known)| {
            let consumers = known.consumers.iter();
            consumers.map(move |(consumer, spec)| (*session, *consumer, spec.clone()))
        });
        let is_registered = |session: SessionId, id: &ConsumerId| {
            let known = self.sessions.get(session);
            known.is_some_and(|known| known.consumers.contains_key(id))
        };
        let cursors = self.cursors.iter().filter_map(|(session, id, spec)| {
            let spec = ConsumerSpec {
                tag: spec.tag.clone(),
                channel: spec.channel,
                flow_mode: FlowMode::Credit,
                prefetch: 0,
                no_ack: true,
                exclusive: false,
                priority: 0,
                arguments: spec.arguments.clone(),
                filter: None,
            };
            (!is_registered(session, &id)).then_some((session, id, spec))
        });
        let all = registered.chain(cursors);
        all.map(|(session, consumer, spec)| ConsumerInfo {
            session,
            consumer,
            spec,
            unacknowledged: 0,
            active: !self.unreachable.contains(&session.node),
        })
        .collect()
    }
}

/// Most bytes of the buffer for conversions that is kept.
const MAX_SCRATCH_BYTES: usize = 64 << 10;

fn takes_room(body: &RequestBody) -> bool {
    matches!(
        body,
        RequestBody::Publish(_)
            | RequestBody::PublishBatch(_)
            | RequestBody::Stream(
                StreamRequest::StoreOffset { .. } | StreamRequest::AppendChunks { .. }
            )
    )
}

pub(super) fn refused(code: u16, text: String) -> QueueReply {
    QueueReply::Refused { code, text }
}
