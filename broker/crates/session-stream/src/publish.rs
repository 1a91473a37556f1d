//! Publishers, and their messages until the stream has stored them.

use crate::session::{StepContext, StreamSession, count_error};
use bytes::{Buf, Bytes, BytesMut};
use codec_stream::{
    List, PublishedBody, PublishedMessages, PublishingError, ResponseCode, ServerCommand,
};
use env::NodeId;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use metadata::{Name, QueueId, Right};
use operations::Resource;
use queue::cursor::StreamBatch;
use session::{EntriesEvent, FlowState, PublishTag, StreamPublisherDetails, TracedEntries};
use smallvec::SmallVec;
use std::ops::Range;
use stream_log::SubBatchMessages;

/// Longest name of a publisher or consumer in bytes.
pub(crate) const MAX_REFERENCE_BYTES: usize = 255;
/// Messages of a publish frame of at least this many bytes pass on by reference, and shorter ones are copied, because they
/// would keep the buffer of the socket allocated.
const BY_REFERENCE: usize = 32 << 10;
/// Memory of a batch in flight besides its messages, in bytes.
const BATCH_OVERHEAD: usize = 96;
/// Bytes of a confirm or an error before the publishing ids: size, key, version, publisher and count.
const CONFIRM_HEAD: usize = 13;
/// Publishing ids of one frame if the frame size has no limit.
const MAX_IDS: usize = 65_536;

/// A publisher of a stream.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// Unlike the client's id, never used again on the connection.
    pub serial: u32,
    pub stream: Name,
    pub queue: QueueId,
    /// The name for deduplication.
    pub reference: Option<Name>,
    /// The leader of the stream when the publisher was declared.
    pub leader: Option<NodeId>,
    pub published: u64,
    pub confirmed: u64,
    pub errored: u64,
}

impl Publisher {
    /// For listings.
    pub(crate) fn details(&self, id: u8) -> StreamPublisherDetails {
        StreamPublisherDetails {
            id,
            stream: self.stream.to_string(),
            reference: self.reference.as_deref().unwrap_or_default().to_owned(),
            published: self.published,
            confirmed: self.confirmed,
            errored: self.errored,
        }
    }
}

/// Publishing ids as runs of consecutive numbers: first id and count.
type IdRuns = SmallVec<[(u64, u32); 1]>;

fn push_id(runs: &mut IdRuns, id: u64) {
    match runs.last_mut() {
        Some((first, count))
            if first.checked_add(u64::from(*count)) == Some(id) && *count < u32::MAX =>
        {
            *count += 1;
        }
        _ => runs.push((id, 1)),
    }
}

fn ids(runs: &IdRuns) -> impl Iterator<Item = u64> + '_ {
    let of_run = |&(first, count): &(u64, u32)| (0..u64::from(count)).map(move |n| first + n);
    runs.iter().flat_map(of_run)
}

/// A batch that the stream has not answered.
#[derive(Debug)]
struct Batch {
    publisher: u8,
    serial: u32,
    bytes: usize,
    ids: IdRuns,
}

/// The batches of a connection that streams have not answered, and confirms that were not sent.
#[derive(Debug, Default)]
pub(crate) struct Unconfirmed {
    batches: HashMap<u64, Batch, FixedState>,
    next_tag: u64,
    bytes: usize,
    /// The limit of `bytes` was exceeded. Cleared when it falls below half of it.
    is_exceeded: bool,
    /// The publisher of `confirmed`.
    publisher: u8,
    confirmed: Vec<u64>,
}

impl Unconfirmed {
    pub(crate) fn is_exceeded(&self) -> bool {
        self.is_exceeded
    }

    pub(crate) fn clear(&mut self) {
        self.batches.clear();
        self.bytes = 0;
        self.is_exceeded = false;
        self.confirmed.clear();
    }

    fn add(&mut self, batch: Batch, limit: usize) -> PublishTag {
        self.next_tag += 1;
        self.bytes += batch.bytes;
        self.is_exceeded |= self.bytes > limit;
        self.batches.insert(self.next_tag, batch);
        PublishTag(self.next_tag)
    }

    fn take(&mut self, tag: PublishTag, limit: usize) -> Option<Batch> {
        let batch = self.batches.remove(&tag.0)?;
        self.bytes = self.bytes.saturating_sub(batch.bytes);
        self.is_exceeded &= self.bytes > limit / 2;
        Some(batch)
    }
}

/// A publish frame that was read.
pub(crate) struct PlannedPublish {
    publisher: u8,
    serial: u32,
    queue: QueueId,
    reference: Option<Name>,
    version: u16,
    count: u32,
    /// The messages in the input.
    range: Range<usize>,
    ids: IdRuns,
}

/// The messages of a batch. Those of compressed sub-batches are left out.
fn published_messages(batch: &StreamBatch) -> impl Iterator<Item = &[u8]> {
    let all = PublishedMessages::from_parts(batch.version, batch.count, &batch.entries);
    all.iter().flatten().flat_map(|message| {
        let (single, sub_batch) = match message.body {
            PublishedBody::Message(body) => (Some(body), None),
            PublishedBody::SubBatch {
                compression: 0,
                records,
                data,
                ..
            } => (None, Some(SubBatchMessages::new(data, records))),
            PublishedBody::SubBatch { .. } => (None, None),
        };
        single
            .into_iter()
            .chain(sub_batch.into_iter().flatten().flatten())
    })
}

impl StreamSession {
    pub(crate) fn declare_publisher(
        &mut self,
        id: u8,
        reference: &str,
        stream: &str,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        if self.is_alarmed {
            return Err(ResponseCode::PRECONDITION_FAILED);
        }
        self.check(Right::Write, Resource::Queue(stream), cx)?;
        if reference.len() > MAX_REFERENCE_BYTES || self.publishers.contains_key(&id) {
            return Err(ResponseCode::PRECONDITION_FAILED);
        }
        let has_reference = |p: &crate::publish::Publisher| {
            *p.stream == *stream && p.reference.as_deref() == Some(reference)
        };
        if self.publishers.values().any(has_reference) {
            return Err(ResponseCode::PRECONDITION_FAILED);
        }
        let record = self.available_stream(stream, cx)?;
        let publisher = Publisher {
            serial: self.next_serial(),
            stream: record.name.clone(),
            queue: record.id,
            reference: (!reference.is_empty()).then(|| reference.into()),
            leader: cx.broker.leader_of(&record),
            published: 0,
            confirmed: 0,
            errored: 0,
        };
        crate::users::add(cx.broker, publisher.queue);
        self.publishers.insert(id, publisher);
        self.count(|counters| counters.publishers += 1);
        Ok(())
    }

    pub(crate) fn delete_publisher(
        &mut self,
        id: u8,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        match self.remove_publisher(id, cx) {
            true => Ok(()),
            false => Err(ResponseCode::PUBLISHER_DOES_NOT_EXIST),
        }
    }

    /// Returns false if there is no publisher with this id.
    pub(crate) fn remove_publisher(&mut self, id: u8, cx: &mut StepContext<'_>) -> bool {
        let Some(publisher) = self.publishers.remove(&id) else {
            return false;
        };
        crate::users::remove(cx.broker, publisher.queue);
        self.count(|counters| counters.publishers -= 1);
        true
    }

    /// Reads the messages of a publish frame. None: they were refused.
    pub(crate) fn plan_publish(
        &mut self,
        id: u8,
        messages: &PublishedMessages<'_>,
        input: &[u8],
        cx: &mut StepContext<'_>,
    ) -> Option<PlannedPublish> {
        let mut runs = IdRuns::new();
        for message in messages.iter() {
            match message {
                Ok(message) => push_id(&mut runs, message.publishing_id),
                Err(error) => {
                    self.close_malformed(&error, cx);
                    return None;
                }
            }
        }
        let Some(publisher) = self.publishers.get_mut(&id) else {
            self.flush_confirms(cx);
            let code = ResponseCode::PUBLISHER_DOES_NOT_EXIST;
            self.send_errors(id, &runs, code, cx);
            return None;
        };
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        if count == 0 {
            return None;
        }
        publisher.published += u64::from(count);
        let encoded = messages.encoded();
        // `encoded` is a part of `input`.
        let start = (encoded.as_ptr() as usize).saturating_sub(input.as_ptr() as usize);
        Some(PlannedPublish {
            publisher: id,
            serial: publisher.serial,
            queue: publisher.queue,
            reference: publisher.reference.clone(),
            version: messages.version(),
            count,
            range: start..start + encoded.len(),
            ids: runs,
        })
    }

    /// Passes the messages of a publish to the stream and removes `read` bytes of the input.
    pub(crate) fn publish(
        &mut self,
        publish: PlannedPublish,
        input: &mut BytesMut,
        read: usize,
        cx: &mut StepContext<'_>,
    ) {
        let entries = match publish.range.len() < BY_REFERENCE {
            true => {
                let entries = input.get(publish.range).unwrap_or_default();
                let entries = Bytes::copy_from_slice(entries);
                input.advance(read);
                entries
            }
            false => input.split_to(read).freeze().slice(publish.range),
        };
        let batch = Batch {
            publisher: publish.publisher,
            serial: publish.serial,
            bytes: entries.len() + BATCH_OVERHEAD + publish.ids.len() * size_of::<(u64, u32)>(),
            ids: publish.ids,
        };
        let count = u64::from(publish.count);
        let bytes = entries.len() as u64;
        self.count(|counters| {
            counters.published_bytes += bytes;
            counters.publishes.received += count;
            counters.publishes.received_confirm += count;
            counters.publishes.routed += count;
        });
        let publisher = batch.publisher;
        let tag = self.unconfirmed.add(batch, self.settings.limits.in_flight);
        let batch = StreamBatch {
            producer: publish.reference,
            version: publish.version,
            count: publish.count,
            entries,
        };
        if cx.broker.tree().traces() {
            self.trace_published(publisher, tag, &batch, cx);
        }
        if cx.broker.publish_batch(publish.queue, tag, batch) == FlowState::Behind {
            self.is_behind = true;
        }
    }

    /// Reports the messages of a batch for their spans.
    #[cold]
    fn trace_published(
        &self,
        publisher: u8,
        tag: PublishTag,
        batch: &StreamBatch,
        cx: &mut StepContext<'_>,
    ) {
        let Some(publisher) = self.publishers.get(&publisher) else {
            return;
        };
        let traced = TracedEntries {
            vhost: &self.vhost,
            stream: &publisher.stream,
            event: EntriesEvent::Published(tag),
        };
        cx.broker
            .trace_entries(&traced, &mut published_messages(batch));
    }

    /// Takes the batch of a tag. None: its publisher was deleted.
    fn take_batch(&mut self, tag: PublishTag) -> Option<Batch> {
        let batch = self.unconfirmed.take(tag, self.settings.limits.in_flight)?;
        let publisher = self.publishers.get(&batch.publisher)?;
        (publisher.serial == batch.serial).then_some(batch)
    }

    /// A stream has stored a batch.
    pub(crate) fn confirm(&mut self, tag: PublishTag, cx: &mut StepContext<'_>) {
        let Some(batch) = self.take_batch(tag) else {
            return;
        };
        if batch.publisher != self.unconfirmed.publisher {
            self.flush_confirms(cx);
            self.unconfirmed.publisher = batch.publisher;
        }
        let before = self.unconfirmed.confirmed.len();
        self.unconfirmed.confirmed.extend(ids(&batch.ids));
        let count = (self.unconfirmed.confirmed.len() - before) as u64;
        if let Some(publisher) = self.publishers.get_mut(&batch.publisher) {
            publisher.confirmed += count;
        }
        self.count(|counters| counters.publishes.confirmed += count);
    }

    /// A stream did not store a batch.
    pub(crate) fn reject(
        &mut self,
        tag: PublishTag,
        code: ResponseCode,
        is_deleted: bool,
        cx: &mut StepContext<'_>,
    ) {
        let Some(batch) = self.take_batch(tag) else {
            return;
        };
        self.flush_confirms(cx);
        let count = ids(&batch.ids).count() as u64;
        if let Some(publisher) = self.publishers.get_mut(&batch.publisher) {
            publisher.errored += count;
        }
        self.send_errors(batch.publisher, &batch.ids, code, cx);
        if is_deleted && let Some(publisher) = self.publishers.get(&batch.publisher) {
            let stream = publisher.stream.clone();
            self.drop_stream(&stream, cx);
        }
    }

    /// Publishing ids of one frame, if each takes `bytes` bytes.
    fn ids_per_frame(&self, bytes: usize) -> usize {
        match self.connection.frame_max() as usize {
            0 => MAX_IDS,
            max => (max.saturating_sub(CONFIRM_HEAD) / bytes).clamp(1, MAX_IDS),
        }
    }

    /// Sends the confirms that were collected.
    pub(crate) fn flush_confirms(&mut self, cx: &mut StepContext<'_>) {
        if self.unconfirmed.confirmed.is_empty() {
            return;
        }
        for ids in self.unconfirmed.confirmed.chunks(self.ids_per_frame(8)) {
            ServerCommand::PublishConfirm {
                publisher_id: self.unconfirmed.publisher,
                publishing_ids: List::from(ids),
            }
            .encode(cx.out.tail());
        }
        self.unconfirmed.confirmed.clear();
        if self.unconfirmed.confirmed.capacity() > MAX_IDS {
            self.unconfirmed.confirmed.shrink_to(MAX_IDS);
        }
    }

    fn send_errors(
        &mut self,
        publisher_id: u8,
        runs: &IdRuns,
        code: ResponseCode,
        cx: &mut StepContext<'_>,
    ) {
        count_error(code, cx);
        let errors: Vec<PublishingError> = ids(runs)
            .map(|publishing_id| PublishingError {
                publishing_id,
                code,
            })
            .collect();
        for errors in errors.chunks(self.ids_per_frame(10)) {
            ServerCommand::PublishError {
                publisher_id,
                errors: List::from(errors),
            }
            .encode(cx.out.tail());
        }
    }

    /// Drops the publishers of streams whose leader is on another node than before, so that the client connects to that
    /// node.
    pub(crate) fn check_leaders(&mut self, cx: &mut StepContext<'_>) {
        let mut moved: Vec<Name> = Vec::new();
        for publisher in self.publishers.values_mut() {
            let record = cx.broker.tree().queue_by_id(publisher.queue).cloned();
            let leader = record.and_then(|record| cx.broker.leader_of(&record));
            match (publisher.leader, leader) {
                (Some(before), Some(now)) if before != now => moved.push(publisher.stream.clone()),
                (None, Some(_)) => publisher.leader = leader,
                _ => {}
            }
        }
        moved.sort_unstable();
        moved.dedup();
        for stream in moved {
            self.drop_stream(&stream, cx);
        }
    }
}
