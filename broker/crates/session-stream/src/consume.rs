//! Consumers: each one is a cursor of a stream, or a member of a group of single active consumers.

use crate::groups::{self, GroupKey};
use crate::publish::MAX_REFERENCE_BYTES;
use crate::session::{StepContext, StreamSession, count_error};
use bytes::Bytes;
use codec_stream::{
    CommittedChunk, List, OffsetSpecification, Property, ResponseCode, ServerCommand,
    encode_deliver_head,
};
use env::{NodeId, Time, WallTime};
use message::{Table, Value};
use metadata::{Name, QueueId, QueueRecord, Right};
use operations::Resource;
use queue::ConsumerId;
use queue::cursor::{
    CursorClient, CursorEvent, CursorNotice, CursorSend, CursorSpec, CursorStart, MessageBatch,
    StreamRequest,
};
use session::{Broker, EntriesEvent, StreamConsumerDetails, TracedEntries};
use std::time::Duration;
use stream_log::{Entries, Entry, EntryBody};

/// Most properties of a consumer, filters included.
const MAX_PROPERTIES: usize = 1024;
/// Most chunks that a replica may send ahead to one consumer.
const MAX_CREDIT: u64 = 16;
/// Size of a chunk that is assumed until the first one arrives, in bytes.
const EXPECTED_CHUNK: usize = 64 << 10;
/// Interval at which an attachment to a replica is tried again.
const ATTACH_INTERVAL: Duration = Duration::from_secs(2);
/// Time without a chunk after which a replica on another node is asked for its position, as messages may be lost.
const PROBE_INTERVAL: Duration = Duration::from_secs(20);
/// Length of a chunk header in bytes.
const CHUNK_HEADER: usize = 48;
/// Bits of a cursor's number that hold the client's subscription id.
const ID_BITS: u32 = 8;

/// A subscription as the client asks for it.
pub(crate) struct Subscription<'a> {
    pub correlation_id: u32,
    pub id: u8,
    pub stream: &'a str,
    pub offset: OffsetSpecification,
    pub credit: u16,
}

/// The membership of a single active consumer.
#[derive(Clone, Debug)]
pub(crate) struct Membership {
    pub key: GroupKey,
    pub is_active: bool,
    /// The correlation id of the newest consumer update, until the client answers, and the time at which it must have
    /// answered.
    pub update: Option<(u32, Time)>,
}

/// A consumer of a stream.
#[derive(Debug)]
pub(crate) struct Consumer {
    /// The number of the cursor, never used again on the connection.
    pub cursor_id: ConsumerId,
    pub stream: Name,
    pub queue: QueueId,
    spec: CursorSpec,
    members: Vec<NodeId>,
    /// None: a single active consumer that is not active, or waits for the client's answer.
    cursor: Option<CursorClient>,
    /// The node of the replica.
    replica: NodeId,
    /// Chunks that the client may be sent and that no replica was allowed to send yet.
    pub credit: u64,
    /// Size of recent chunks in bytes.
    chunk_size: usize,
    /// Time of the last chunk, attachment or probe.
    asked_at: Time,
    /// Replicas that have refused to serve the consumer since one served it.
    refusals: usize,
    pub membership: Option<Membership>,
    pub properties: Vec<(String, String)>,
    pub consumed: u64,
    /// Offset after the newest message that was sent.
    pub next_offset: u64,
}

impl Consumer {
    /// Bytes that the replica may still send.
    fn expected(&self) -> usize {
        let credit = self.cursor.as_ref().map_or(0, CursorClient::credit);
        usize::try_from(credit)
            .unwrap_or(usize::MAX)
            .saturating_mul(self.chunk_size)
    }

    /// For listings.
    pub(crate) fn details(&self, id: u8) -> StreamConsumerDetails {
        let sent_ahead = self.cursor.as_ref().map_or(0, CursorClient::credit);
        StreamConsumerDetails {
            id,
            stream: self.stream.to_string(),
            credit: self.credit.saturating_add(sent_ahead),
            consumed: self.consumed,
            offset: self.next_offset,
            is_active: self.membership.as_ref().is_none_or(|m| m.is_active),
            properties: self.properties.clone(),
        }
    }

    fn send(&mut self, send: CursorSend, cx: &mut StepContext<'_>) {
        self.replica = send.to;
        cx.broker.cursor(self.queue, send);
    }

    /// Starts the cursor without credit.
    fn start(&mut self, start: CursorStart, cx: &mut StepContext<'_>) {
        self.spec.start = start;
        let replicas = preferred(&self.members, cx.broker);
        if replicas.is_empty() {
            return;
        }
        let mut cursor = CursorClient::new(self.cursor_id, self.spec.clone(), replicas, 0);
        let send = cursor.attach();
        self.cursor = Some(cursor);
        self.asked_at = cx.broker.now();
        self.send(send, cx);
    }

    fn stop(&mut self, cx: &mut StepContext<'_>) {
        if let Some(mut cursor) = self.cursor.take() {
            self.credit = self.credit.saturating_add(cursor.credit());
            let send = cursor.detach();
            self.send(send, cx);
        }
    }
}

/// The nodes with a replica, this one and reachable ones first.
fn preferred(members: &[NodeId], broker: &dyn Broker) -> Vec<NodeId> {
    let own = broker.id().node;
    let mut members = members.to_vec();
    members.sort_by_key(|node| (*node != own, !broker.is_reachable(*node), node.0));
    members
}

/// None: the specification names no position.
pub(crate) fn start_of(offset: OffsetSpecification) -> Option<CursorStart> {
    Some(match offset {
        OffsetSpecification::None => return None,
        OffsetSpecification::First => CursorStart::First,
        OffsetSpecification::Last => CursorStart::Last,
        OffsetSpecification::Next => CursorStart::Next,
        OffsetSpecification::Offset(offset) => CursorStart::Offset(offset),
        OffsetSpecification::Timestamp(ms) => {
            CursorStart::Timestamp(WallTime(u64::try_from(ms).unwrap_or(0)))
        }
    })
}

/// The filters in the properties of a subscription, as arguments of AMQP 0.9.1 consumers.
fn filter_arguments(properties: &[(String, String)]) -> Table {
    let filters = properties
        .iter()
        .filter(|(key, _)| key.starts_with("filter."));
    let filters: Vec<Value> = filters
        .map(|(_, value)| Value::String(value.clone().into()))
        .collect();
    let mut arguments = Table::default();
    if !filters.is_empty() {
        arguments.set("x-stream-filter", Value::Array(filters));
        let matches_unfiltered = property(properties, "match-unfiltered") == Some("true");
        arguments.set("x-stream-match-unfiltered", Value::Bool(matches_unfiltered));
    }
    arguments
}

pub(crate) fn property<'p>(properties: &'p [(String, String)], key: &str) -> Option<&'p str> {
    let mut properties = properties.iter();
    let found = properties.find(|(name, _)| name == key);
    found.map(|(_, value)| value.as_str())
}

impl StreamSession {
    pub(crate) fn subscribe(
        &mut self,
        request: &Subscription<'_>,
        properties: List<'_, Property<'_>>,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        self.check(Right::Read, Resource::Queue(request.stream), cx)?;
        if properties.len() > MAX_PROPERTIES {
            return Err(ResponseCode::PRECONDITION_FAILED);
        }
        let properties: Vec<(String, String)> = properties
            .iter()
            .map(|property| (property.key.to_owned(), property.value.to_owned()))
            .collect();
        let name = property(&properties, "name");
        if name.is_some_and(|name| name.len() > MAX_REFERENCE_BYTES) {
            return Err(ResponseCode::PRECONDITION_FAILED);
        }
        let record = self.available_stream(request.stream, cx)?;
        if self.consumers.contains_key(&request.id) {
            return Err(ResponseCode::SUBSCRIPTION_ID_ALREADY_EXISTS);
        }
        let is_single_active = property(&properties, "single-active-consumer") == Some("true");
        let key = match (is_single_active, name) {
            (false, _) => None,
            (true, None | Some("")) => return Err(ResponseCode::PRECONDITION_FAILED),
            (true, Some(name)) => Some(self.group_key(&record, name, &properties, cx)),
        };
        let start = start_of(request.offset).unwrap_or(CursorStart::Next);
        let consumer = self.new_consumer(request, &record, properties, start, cx.broker.now());
        let cursor_id = consumer.cursor_id;
        crate::users::add(cx.broker, consumer.queue);
        self.consumers.insert(request.id, consumer);
        self.count(|counters| counters.consumers += 1);
        let code = ResponseCode::OK;
        self.respond(
            codec_stream::CommandKey::Subscribe,
            request.correlation_id,
            code,
            cx,
        );
        let Some(consumer) = self.consumers.get_mut(&request.id) else {
            return Ok(());
        };
        match key {
            None => consumer.start(start, cx),
            Some(key) => {
                consumer.membership = Some(Membership {
                    key: key.clone(),
                    is_active: false,
                    update: None,
                });
                groups::join(cx.broker, key, cursor_id);
            }
        }
        Ok(())
    }

    /// The group of a single active consumer.
    fn group_key(
        &self,
        record: &QueueRecord,
        name: &str,
        properties: &[(String, String)],
        cx: &StepContext<'_>,
    ) -> GroupKey {
        let super_stream = property(properties, "super-stream");
        let partition = super_stream.and_then(|super_stream| {
            let tree = cx.broker.tree();
            crate::lookup::partition_index(tree, &self.vhost, super_stream, &record.name)
        });
        GroupKey {
            queue: record.id,
            name: name.into(),
            partition,
        }
    }

    fn new_consumer(
        &mut self,
        request: &Subscription<'_>,
        record: &QueueRecord,
        properties: Vec<(String, String)>,
        start: CursorStart,
        now: Time,
    ) -> Consumer {
        let serial = self.next_serial();
        Consumer {
            cursor_id: ConsumerId(serial << ID_BITS | u32::from(request.id)),
            stream: record.name.clone(),
            queue: record.id,
            spec: CursorSpec {
                tag: request.id.to_string().into(),
                channel: 0,
                start,
                arguments: filter_arguments(&properties),
            },
            members: record.members.clone(),
            cursor: None,
            replica: NodeId(0),
            credit: request.credit.into(),
            chunk_size: EXPECTED_CHUNK,
            asked_at: now,
            refusals: 0,
            membership: None,
            properties,
            consumed: 0,
            next_offset: 0,
        }
    }

    pub(crate) fn unsubscribe(
        &mut self,
        id: u8,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        match self.remove_consumer(id, cx) {
            true => Ok(()),
            false => Err(ResponseCode::SUBSCRIPTION_ID_DOES_NOT_EXIST),
        }
    }

    /// Returns false if there is no consumer with this id.
    pub(crate) fn remove_consumer(&mut self, id: u8, cx: &mut StepContext<'_>) -> bool {
        let Some(mut consumer) = self.consumers.remove(&id) else {
            return false;
        };
        crate::users::remove(cx.broker, consumer.queue);
        consumer.stop(cx);
        if let Some(membership) = consumer.membership {
            groups::leave(cx.broker, &membership.key, consumer.cursor_id);
        }
        self.count(|counters| counters.consumers -= 1);
        true
    }

    pub(crate) fn add_credit(&mut self, id: u8, credit: u16, cx: &mut StepContext<'_>) {
        let code = match self.consumers.get_mut(&id) {
            None => ResponseCode::SUBSCRIPTION_ID_DOES_NOT_EXIST,
            Some(consumer) => {
                consumer.credit = consumer.credit.saturating_add(credit.into());
                if consumer.cursor.is_some() {
                    return;
                }
                // The credit counts once the consumer is active.
                ResponseCode::PRECONDITION_FAILED
            }
        };
        count_error(code, cx);
        ServerCommand::Credit {
            code,
            subscription_id: id,
        }
        .encode(cx.out.tail());
    }

    /// Lets replicas send chunks as far as the credit of the consumers and the space in the outbox allow. Beyond the limit
    /// there is at most one chunk for each consumer.
    pub(crate) fn pass_credit(&mut self, cx: &mut StepContext<'_>) {
        if self.consumers.is_empty() {
            return;
        }
        let expected: usize = self.consumers.values().map(Consumer::expected).sum();
        let limit = self.settings.limits.outbox_deliveries;
        let mut room = limit.saturating_sub(cx.out.len().saturating_add(expected));
        for consumer in self.consumers.values_mut() {
            let Some(cursor) = &mut consumer.cursor else {
                continue;
            };
            // Renewed by halves, as each renewal is a message to the replica.
            if consumer.credit == 0 || cursor.credit() > MAX_CREDIT / 2 {
                continue;
            }
            let fitting = (room / consumer.chunk_size) as u64;
            // Consumers that wait for messages hold credit, which must not starve the others.
            let least = u64::from(cursor.credit() == 0 && cx.out.len() < limit);
            let more = fitting
                .max(least)
                .min(MAX_CREDIT - cursor.credit())
                .min(consumer.credit);
            if more == 0 {
                continue;
            }
            room = room.saturating_sub(consumer.chunk_size.saturating_mul(more as usize));
            consumer.credit -= more;
            let send = cursor.add_credit(more);
            consumer.send(send, cx);
        }
    }

    pub(crate) fn handle_cursor_event(
        &mut self,
        queue: QueueId,
        event: CursorEvent,
        cx: &mut StepContext<'_>,
    ) {
        let cursor_id = match &event {
            CursorEvent::Attached { cursor, .. }
            | CursorEvent::Batch { cursor, .. }
            | CursorEvent::Detached { cursor, .. }
            | CursorEvent::Refused { cursor, .. } => *cursor,
        };
        let id = cursor_id.0 as u8;
        let found = self.consumers.get_mut(&id);
        let Some(consumer) = found.filter(|c| c.cursor_id == cursor_id && c.queue == queue) else {
            return;
        };
        let Some(cursor) = &mut consumer.cursor else {
            return;
        };
        let is_detached = matches!(event, CursorEvent::Detached { .. });
        let mut notices = Vec::new();
        let send = cursor.handle(event, &mut notices);
        if let Some(send) = send {
            consumer.refusals += usize::from(is_detached);
            if is_detached && consumer.refusals >= consumer.members.len() {
                // No replica serves the consumer now, so the next attempt waits.
                consumer.refusals = 0;
                consumer.asked_at = cx.broker.now();
            } else {
                consumer.send(send, cx);
            }
        }
        for notice in notices {
            match notice {
                CursorNotice::Attached { next } => {
                    if let Some(consumer) = self.consumers.get_mut(&id) {
                        consumer.next_offset = next;
                    }
                }
                CursorNotice::Batch(batch) => self.deliver(id, &batch, cx),
                CursorNotice::Refused { text } => {
                    let Some(consumer) = self.consumers.get(&id) else {
                        return;
                    };
                    let stream = consumer.stream.clone();
                    tracing::info!(peer = %self.peer, %stream, text, "the stream ended a consumer");
                    return self.drop_stream(&stream, cx);
                }
            }
        }
    }

    /// Sends a chunk as it is stored, without its filter and trailer.
    fn deliver(&mut self, id: u8, batch: &MessageBatch, cx: &mut StepContext<'_>) {
        let reads_committed = self.reads_committed;
        let Some(consumer) = self.consumers.get_mut(&id) else {
            return;
        };
        let Some((header, data)) = split_chunk(&batch.bytes) else {
            tracing::error!(stream = %consumer.stream, offset = batch.first, "a chunk of the stream is malformed");
            let stream = consumer.stream.clone();
            return self.drop_stream(&stream, cx);
        };
        consumer.chunk_size = data
            .len()
            .max(consumer.chunk_size / 2 + data.len() / 2)
            .max(1);
        consumer.refusals = 0;
        consumer.consumed += u64::from(batch.count);
        consumer.next_offset = batch.next();
        consumer.asked_at = cx.broker.now();
        let committed = CommittedChunk(reads_committed.then_some(batch.first));
        // A chunk is far smaller than the size field allows.
        let len = (CHUNK_HEADER + data.len()) as u32;
        if encode_deliver_head(id, committed, len, cx.out.tail()).is_err() {
            return;
        }
        cx.out.tail().extend_from_slice(&header);
        if cx.broker.tree().traces() {
            let traced = TracedEntries {
                vhost: &self.vhost,
                stream: &consumer.stream,
                event: EntriesEvent::Delivered {
                    received: batch.received,
                },
            };
            let mut messages = delivered_messages(&header, &data, batch.first);
            cx.broker.trace_entries(&traced, &mut messages);
        }
        cx.out.push(data);
        let queue = consumer.queue;
        let count = u64::from(batch.count);
        let kind = cx
            .broker
            .tree()
            .queue_by_id(queue)
            .map(|record| record.kind);
        if let Some(kind) = kind {
            self.count(|counters| {
                counters.of(kind).deliver_no_ack += count;
                counters.sample_delivery(Some(kind), || batch.received);
            });
        }
    }

    pub(crate) fn store_offset(
        &mut self,
        reference: &str,
        stream: &str,
        offset: u64,
        cx: &mut StepContext<'_>,
    ) -> Result<(), ResponseCode> {
        let is_consumed = self.consumers.values().any(|c| *c.stream == *stream);
        if !is_consumed {
            self.check(Right::Read, Resource::Queue(stream), cx)?;
        }
        if reference.is_empty() || reference.len() > MAX_REFERENCE_BYTES {
            return Err(ResponseCode::PRECONDITION_FAILED);
        }
        let record = self.find_stream(stream, cx)?;
        let name = reference.into();
        let request = StreamRequest::StoreOffset { name, offset };
        cx.broker
            .request(record.id, queue::RequestBody::Stream(request));
        Ok(())
    }

    /// Attaches cursors again, moves them to other replicas and asks silent replicas for their position.
    pub(crate) fn check_consumers(&mut self, cx: &mut StepContext<'_>) {
        let now = cx.broker.now();
        let mut is_late = false;
        for consumer in self.consumers.values_mut() {
            let update = consumer.membership.as_ref().and_then(|m| m.update);
            is_late |= update.is_some_and(|(_, until)| now >= until);
            if let Some(record) = cx.broker.tree().queue_by_id(consumer.queue)
                && record.members != consumer.members
                && !record.members.is_empty()
            {
                consumer.members = record.members.clone();
                let replicas = preferred(&consumer.members, cx.broker);
                let cursor = consumer.cursor.as_mut();
                if let Some(send) = cursor.and_then(|cursor| cursor.set_replicas(replicas)) {
                    consumer.asked_at = now;
                    consumer.send(send, cx);
                }
            }
            let is_remote = consumer.replica != cx.broker.id().node;
            let is_lost = !cx.broker.is_reachable(consumer.replica);
            let Some(cursor) = &mut consumer.cursor else {
                continue;
            };
            let idle = now.since(consumer.asked_at);
            let send = if is_lost && consumer.members.len() > 1 {
                cursor.node_lost(consumer.replica)
            } else if !cursor.is_attached() && idle >= ATTACH_INTERVAL {
                Some(cursor.attach())
            } else if is_remote && cursor.credit() > 0 && idle >= PROBE_INTERVAL {
                Some(cursor.probe())
            } else {
                None
            };
            if let Some(send) = send {
                consumer.asked_at = now;
                consumer.send(send, cx);
            }
        }
        if is_late {
            self.close("the client did not answer a consumer update", cx);
        }
    }

    /// Tells a single active consumer that it is active, or is not any more.
    pub(crate) fn set_active(
        &mut self,
        cursor_id: ConsumerId,
        is_active: bool,
        cx: &mut StepContext<'_>,
    ) {
        let id = cursor_id.0 as u8;
        let until = cx.broker.now() + self.settings.limits.consumer_update;
        let update = self.next_update;
        let found = self.consumers.get_mut(&id);
        let Some(consumer) = found.filter(|c| c.cursor_id == cursor_id) else {
            return;
        };
        let Some(membership) = &mut consumer.membership else {
            return;
        };
        if membership.is_active == is_active {
            return;
        }
        membership.is_active = is_active;
        membership.update = Some((update, until));
        if !is_active {
            consumer.stop(cx);
        }
        self.next_update = update.wrapping_add(1);
        ServerCommand::ConsumerUpdate {
            correlation_id: update,
            subscription_id: id,
            is_active,
        }
        .encode(cx.out.tail());
    }

    /// Handles the client's answer to a consumer update.
    pub(crate) fn handle_consumer_update(
        &mut self,
        correlation_id: u32,
        code: ResponseCode,
        offset: OffsetSpecification,
        cx: &mut StepContext<'_>,
    ) {
        if code != ResponseCode::OK {
            tracing::info!(peer = %self.peer, code = code.0, "the client refused a consumer update");
        }
        let mut consumers = self.consumers.values_mut();
        let answers = |c: &&mut Consumer| {
            let update = c.membership.as_ref().and_then(|m| m.update);
            update.is_some_and(|(id, _)| id == correlation_id)
        };
        let Some(consumer) = consumers.find(answers) else {
            return;
        };
        let Some(membership) = &mut consumer.membership else {
            return;
        };
        membership.update = None;
        if !membership.is_active {
            let key = membership.key.clone();
            return groups::step_down(cx.broker, &key, consumer.cursor_id);
        }
        if consumer.cursor.is_none() {
            let start = start_of(offset).unwrap_or(consumer.spec.start);
            consumer.start(start, cx);
        }
    }
}

/// The messages of a chunk from an offset on: the client skips those before the offset that it asked for. Messages of compressed
/// sub-batches are left out.
#[cold]
fn delivered_messages<'a>(
    header: &[u8; CHUNK_HEADER],
    data: &'a [u8],
    from: u64,
) -> impl Iterator<Item = &'a [u8]> {
    let entries = u16::from_be_bytes([header[2], header[3]]);
    let first = u64::from_be_bytes(std::array::from_fn(|at| header[24 + at]));
    let all = Entries::from_parts(entries, first..u64::MAX, data);
    let of_entry = |entry: Entry<'a>| {
        let (single, sub_batch) = match entry.body {
            EntryBody::Message(message) => (Some(message), None),
            EntryBody::SubBatch(sub_batch) => (None, sub_batch.messages()),
        };
        let messages = single
            .into_iter()
            .chain(sub_batch.into_iter().flatten().flatten());
        (entry.offset..).zip(messages)
    };
    all.flatten()
        .flat_map(of_entry)
        .filter(move |(offset, _)| *offset >= from)
        .map(|(_, message)| message)
}

/// The header for clients and the entries of a chunk that is encoded as in its file. None: it is malformed.
fn split_chunk(chunk: &Bytes) -> Option<([u8; CHUNK_HEADER], Bytes)> {
    let mut header = *chunk.first_chunk::<CHUNK_HEADER>()?;
    let data_len = u32::from_be_bytes(*header.get(36..40)?.first_chunk::<4>()?) as usize;
    let filter_len = usize::from(header[44]);
    // The bytes that the protocol reserves.
    header[45..].fill(0);
    let start = match chunk.len() - CHUNK_HEADER == data_len {
        true => CHUNK_HEADER,
        false => CHUNK_HEADER + filter_len,
    };
    let end = start
        .checked_add(data_len)
        .filter(|end| *end <= chunk.len())?;
    Some((header, chunk.slice(start..end)))
}
