//! An in-memory node with streams, and the service of consumer groups.

use auth::{HashAlgorithm, hash_with};
use bytes::{Bytes, BytesMut};
use codec_stream::{ClientCommand, PublishedBody};
use env::{Incarnation, NodeId, Time, WallTime};
use message::{Message, Value};
use metadata::{
    Change, ChangeError, ChangeResult, NodeRecord, PermissionRecord, QueueId, QueueRecord,
    QueueType, SessionId, Tree, UserRecord,
};
use queue::cursor::{
    CursorEvent, CursorRequest, CursorSend, CursorStart, MessageBatch, StreamBatch, StreamReply,
    StreamRequest, StreamStats,
};
use queue::{ConsumerId, QueueReply, RejectReason, RequestBody};
use session::{
    Broker, ControlEvent, EntriesEvent, FlowState, NodeStatus, PasswordCheck, Protocol, PublishTag,
    QueueNotification, RequestSeq, ServiceHost, ServiceOutput, ServiceRegistration, ServiceStates,
    SessionEvent, ShardAddress, ShardService, TickOutcome, TracedEntries,
};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use stream_log::{Chunk, ChunkBuilder, SubBatch};

pub const NODE: NodeId = NodeId(1);
pub const OTHER_NODE: NodeId = NodeId(2);

#[derive(Debug)]
pub struct FakeCursor {
    pub attachment: u32,
    pub next: u64,
    pub sent: u64,
    pub total: u64,
    pub arguments: message::Table,
    pub start: CursorStart,
}

/// One stream: a chunk for each batch that was published.
#[derive(Debug, Default)]
pub struct FakeStream {
    pub chunks: Vec<Chunk>,
    pub next: u64,
    pub sequences: BTreeMap<String, u64>,
    pub offsets: BTreeMap<String, u64>,
    pub cursors: BTreeMap<(u64, ConsumerId), FakeCursor>,
    requests: u64,
}

impl FakeStream {
    /// Returns false if an entry is malformed.
    fn publish(&mut self, batch: &StreamBatch, now: u64) -> bool {
        let mut frame = vec![0, 2, 0, batch.version as u8, 0];
        frame.extend_from_slice(&batch.count.to_be_bytes());
        frame.extend_from_slice(&batch.entries);
        let Ok(ClientCommand::Publish { messages, .. }) = ClientCommand::decode(&frame) else {
            return false;
        };
        let mut builder = ChunkBuilder::new(16);
        for message in messages.iter() {
            let Ok(message) = message else { return false };
            if let Some(producer) = &batch.producer {
                let highest = self.sequences.entry(producer.to_string()).or_default();
                if message.publishing_id <= *highest {
                    continue;
                }
                *highest = message.publishing_id;
            }
            let filter = message.filter.map(str::as_bytes);
            let pushed = match message.body {
                PublishedBody::Message(body) => builder.push_message(body, filter),
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
                    builder.push_sub_batch(&batch, filter)
                }
            };
            pushed.unwrap();
        }
        if let Some(chunk) = builder.finish(self.next, 1, now as i64) {
            self.next = chunk.header().next_offset();
            self.chunks.push(chunk);
        }
        true
    }

    fn resolve(&self, start: CursorStart) -> u64 {
        let first = |chunk: &Chunk| chunk.header().first_offset;
        match start {
            CursorStart::First => self.chunks.first().map_or(self.next, first),
            CursorStart::Last => self.chunks.last().map_or(self.next, first),
            CursorStart::Next => self.next,
            CursorStart::Offset(offset) => offset,
            CursorStart::Timestamp(time) => {
                let mut chunks = self.chunks.iter();
                let found = chunks.find(|chunk| chunk.header().timestamp as u64 >= time.0);
                found.map_or(self.next, first)
            }
        }
    }

    fn answer(&mut self, request: StreamRequest) -> Option<StreamReply> {
        Some(match request {
            StreamRequest::StoreOffset { name, offset } => {
                self.offsets.insert(name.to_string(), offset);
                return None;
            }
            StreamRequest::QueryOffset { name } => {
                StreamReply::Offset(self.offsets.get(&*name).copied())
            }
            StreamRequest::QueryPublisher { name } => {
                StreamReply::PublishingId(self.sequences.get(&*name).copied())
            }
            StreamRequest::ResolveOffset { start } => {
                let offset = self.resolve(start);
                StreamReply::Offset((!self.chunks.is_empty()).then_some(offset))
            }
            StreamRequest::Stats => {
                let last = self.chunks.last();
                StreamReply::Stats(StreamStats {
                    first_offset: self.chunks.first().map(|c| c.header().first_offset),
                    last_chunk: last.map(|c| c.header().first_offset),
                    committed: self.next.checked_sub(1),
                })
            }
            StreamRequest::ReadChunks { .. } | StreamRequest::AppendChunks { .. } => {
                unreachable!("sessions neither read nor append whole chunks")
            }
        })
    }
}

pub struct FakeBroker {
    pub id: SessionId,
    /// Events of messages that were reported for their spans.
    pub traced: Vec<String>,
    pub now: Time,
    pub tree: Tree,
    index: u64,
    pub streams: BTreeMap<QueueId, FakeStream>,
    /// Events for sessions by number.
    pub events: VecDeque<(u64, SessionEvent)>,
    pub alarm: Option<&'static str>,
    /// The node does not read the connections.
    pub is_throttled: bool,
    pub draining: bool,
    /// The result of password checks, if not the real one.
    pub verdict: Option<PasswordCheck>,
    /// Numbers of successful and failed logins.
    pub logins: (u32, u32),
    /// Open connections.
    pub connections: i64,
    /// Errors that clients were sent, in order.
    pub errors: Vec<&'static str>,
    pub admits: bool,
    /// The tree has every committed change.
    pub knows_all: bool,
    /// Changes are applied only by `apply_next`.
    pub hold_log: bool,
    log: VecDeque<(u64, u64, Change)>,
    /// Publishes are stored and collected in `unconfirmed`.
    pub holds_confirms: bool,
    pub unconfirmed: Vec<(u64, QueueId, PublishTag)>,
    /// The reason to reject every publish.
    pub reject: Option<RejectReason>,
    /// Publishes are answered with `FlowState::Behind`.
    pub is_slow: bool,
    /// Requests to streams are not answered.
    pub is_silent: bool,
    pub batches: Vec<StreamBatch>,
    pub counters: session::MessageCounters,
    pub leader: Option<NodeId>,
    pub unreachable: Vec<NodeId>,
    states: ServiceStates,
    service: &'static dyn ShardService,
    event: Option<Box<dyn Any + Send>>,
}

fn user(name: &str, tags: &[&str]) -> UserRecord {
    UserRecord {
        name: name.into(),
        password: hash_with(HashAlgorithm::Sha256, name.as_bytes(), b"salt").ok(),
        tags: tags.iter().map(|&t| t.into()).collect(),
        limits: Vec::new(),
    }
}

fn node(id: NodeId, name: &str, host: &str) -> NodeRecord {
    NodeRecord {
        id,
        name: name.into(),
        address: format!("{host}:25672").as_str().into(),
        voter: true,
        maintenance: false,
    }
}

impl FakeBroker {
    pub fn new(protocol: &dyn Protocol) -> FakeBroker {
        let ServiceRegistration {
            service,
            state,
            event,
        } = protocol.service().unwrap();
        let mut states = ServiceStates::default();
        states.push(state);
        let mut broker = FakeBroker {
            traced: Vec::new(),
            id: SessionId {
                node: NODE,
                incarnation: Incarnation(1),
                number: 7,
            },
            now: Time(1),
            tree: Tree::default(),
            index: 0,
            streams: BTreeMap::new(),
            events: VecDeque::new(),
            alarm: None,
            is_throttled: false,
            draining: false,
            verdict: None,
            logins: (0, 0),
            connections: 0,
            errors: Vec::new(),
            admits: true,
            knows_all: true,
            hold_log: false,
            log: VecDeque::new(),
            holds_confirms: false,
            unconfirmed: Vec::new(),
            reject: None,
            is_slow: false,
            is_silent: false,
            batches: Vec::new(),
            counters: session::MessageCounters::default(),
            leader: Some(NODE),
            unreachable: Vec::new(),
            states,
            service,
            event: Some(event),
        };
        broker.must(Change::Bootstrap {
            cluster: "test".into(),
            nodes: vec![
                node(NODE, "one", "one.example"),
                node(OTHER_NODE, "two", "two.example"),
            ],
            user: user("guest", &["administrator"]),
        });
        for feature in metadata::features::KNOWN {
            let name = feature.name.into();
            broker.must(Change::EnableFeature { name });
        }
        // A user whose permissions cover only names that start with "mine".
        broker.must(Change::PutUser(user("small", &[])));
        broker.must(Change::PutPermission(PermissionRecord {
            user: "small".into(),
            vhost: "/".into(),
            configure: "^mine".into(),
            write: "^mine".into(),
            read: "^mine".into(),
        }));
        broker
    }

    fn apply(&mut self, change: &Change) -> Result<ChangeResult, ChangeError> {
        self.index += 1;
        let result = self.tree.apply(self.index, change);
        if let Ok(ChangeResult::Queue {
            record,
            created: true,
        }) = &result
        {
            self.streams.insert(record.id, FakeStream::default());
        }
        let tree = &self.tree;
        let is_gone = |queue: &QueueId| tree.queue_by_id(*queue).is_none();
        let deleted: Vec<QueueId> = self.streams.keys().copied().filter(is_gone).collect();
        for queue in deleted {
            let Some(stream) = self.streams.remove(&queue) else {
                continue;
            };
            for ((session, cursor), state) in stream.cursors {
                let event = CursorEvent::Refused {
                    cursor,
                    attachment: state.attachment,
                    text: "the stream was deleted".to_owned(),
                };
                self.cursor_event(session, queue, event);
            }
        }
        for event in self.tree.take_events() {
            self.service.tree_event(self, &event);
        }
        result
    }

    pub fn must(&mut self, change: Change) -> ChangeResult {
        self.apply(&change).unwrap()
    }

    pub fn stream(&mut self, name: &str) -> &mut FakeStream {
        let id = self.tree.queue("/", name).unwrap().id;
        self.streams.get_mut(&id).unwrap()
    }

    /// Declares a stream without a client.
    pub fn declare(&mut self, name: &str) -> QueueId {
        let mut arguments = message::Table::default();
        let kind = message::Value::String(Bytes::from_static(b"stream"));
        arguments.set("x-queue-type", kind);
        let record = QueueRecord {
            id: QueueId::default(),
            vhost: "/".into(),
            name: name.into(),
            kind: QueueType::Stream,
            durable: true,
            auto_delete: false,
            exclusive: None,
            arguments,
            members: vec![NODE, OTHER_NODE],
            declared_by: "guest".into(),
        };
        match self.must(Change::DeclareQueue(record)) {
            ChangeResult::Queue { record, .. } => record.id,
            other => panic!("{other:?}"),
        }
    }

    fn notify(&mut self, session: u64, event: impl Into<SessionEvent>) {
        self.events.push_back((session, event.into()));
    }

    fn cursor_event(&mut self, session: u64, queue: QueueId, event: CursorEvent) {
        let notification = QueueNotification::Cursor {
            queue,
            from: NODE,
            event,
        };
        self.notify(session, notification);
    }

    /// Confirms the publishes that were held.
    pub fn confirm_held(&mut self) {
        for (session, queue, tag) in std::mem::take(&mut self.unconfirmed) {
            self.notify(session, QueueNotification::Published { queue, tag });
        }
    }

    /// Commits a change that this node has not applied yet.
    pub fn change_from_other_node(&mut self, change: Change) {
        self.log.push_back((0, 0, change));
    }

    /// Applies the next held change. Returns false if there is none.
    pub fn apply_next(&mut self) -> bool {
        let Some((session, token, change)) = self.log.pop_front() else {
            return false;
        };
        let result = self.apply(&change);
        self.notify(session, ControlEvent::Changed { token, result });
        true
    }

    /// Sends chunks as far as the credit of the cursors goes.
    fn send_chunks(&mut self, queue: QueueId) {
        let Some(stream) = self.streams.get_mut(&queue) else {
            return;
        };
        let mut events = Vec::new();
        for ((session, cursor), state) in &mut stream.cursors {
            let next_chunk = |next: u64| {
                stream
                    .chunks
                    .iter()
                    .find(|c| c.header().next_offset() > next)
            };
            while state.sent < state.total
                && let Some(chunk) = next_chunk(state.next)
            {
                let header = chunk.header();
                let first = header.first_offset.max(state.next);
                let batch = MessageBatch {
                    from: state.next,
                    first,
                    count: (header.next_offset() - first) as u32,
                    received: WallTime(header.timestamp as u64),
                    bytes: chunk.bytes().clone(),
                };
                state.sent += 1;
                state.next = batch.next();
                let event = CursorEvent::Batch {
                    cursor: *cursor,
                    attachment: state.attachment,
                    batch,
                };
                events.push((*session, event));
            }
        }
        for (session, event) in events {
            self.cursor_event(session, queue, event);
        }
    }

    /// Lets the service of consumer groups work. Returns events for sessions.
    pub fn run_service(&mut self) -> Vec<(u64, Box<dyn Any + Send>)> {
        let service = self.service;
        if service.tick(&mut self.states, self.now, WallTime(0)) == TickOutcome::Due {
            service.carry_out_due(self);
        }
        let mut outputs: Vec<(u64, Box<dyn Any + Send>)> = Vec::new();
        let Some(mut place) = self.event.take() else {
            return outputs;
        };
        while let Some(output) = service.next_output(&mut self.states, &mut *place) {
            match output {
                ServiceOutput::Work => service.carry_out(self, &mut *place),
                ServiceOutput::Event { session } => {
                    let full = std::mem::replace(&mut place, self.empty_place());
                    outputs.push((session, full));
                }
                other => panic!("{other:?}"),
            }
        }
        self.event = Some(place);
        outputs
    }

    fn empty_place(&self) -> Box<dyn Any + Send> {
        session_stream::StreamProtocol::new(Default::default())
            .service()
            .unwrap()
            .event
    }
}

impl Broker for FakeBroker {
    fn id(&self) -> SessionId {
        self.id
    }
    fn now(&self) -> Time {
        self.now
    }
    fn wall(&self) -> WallTime {
        WallTime(1_700_000_000_000)
    }
    fn random(&mut self) -> u64 {
        4
    }
    fn tree(&self) -> &Tree {
        &self.tree
    }
    fn knows_all(&self) -> bool {
        self.knows_all
    }
    fn change(&mut self, token: u64, change: Change) {
        let session = self.id.number;
        if self.hold_log {
            return self.log.push_back((session, token, change));
        }
        let result = self.apply(&change);
        self.notify(session, ControlEvent::Changed { token, result });
    }
    fn place(&mut self, _: QueueType, _: u32) -> Vec<NodeId> {
        vec![NODE, OTHER_NODE]
    }
    fn place_queue(&mut self, queue: &QueueRecord) -> Vec<NodeId> {
        let mut members = self.place(queue.kind, 0);
        let locator = queue.arguments.get("x-queue-leader-locator");
        if locator.and_then(Value::as_str) == Some("balanced") {
            let led = |node: &NodeId| {
                let queues = self.tree.all_queues();
                queues.filter(|q| q.members.first() == Some(node)).count()
            };
            members.sort_by_key(led);
        }
        members
    }
    fn publish(&mut self, _: QueueId, _: PublishTag, _: Message) -> FlowState {
        panic!("a stream gets batches");
    }
    fn publish_batch(&mut self, queue: QueueId, tag: PublishTag, batch: StreamBatch) -> FlowState {
        let session = self.id.number;
        let now = self.wall().0;
        self.batches.push(batch.clone());
        let why = match self.streams.get_mut(&queue) {
            _ if self.reject.is_some() => self.reject,
            None => Some(RejectReason::Unavailable),
            Some(stream) => match stream.publish(&batch, now) {
                true => None,
                false => Some(RejectReason::MaxLength),
            },
        };
        match why {
            Some(why) => self.notify(session, QueueNotification::NotPublished { queue, tag, why }),
            None if self.holds_confirms => self.unconfirmed.push((session, queue, tag)),
            None => self.notify(session, QueueNotification::Published { queue, tag }),
        }
        self.send_chunks(queue);
        match self.is_slow {
            true => FlowState::Behind,
            false => FlowState::Steady,
        }
    }
    fn trace_entries(
        &mut self,
        traced: &TracedEntries<'_>,
        messages: &mut dyn Iterator<Item = &[u8]>,
    ) {
        for message in messages {
            let text = String::from_utf8_lossy(message);
            let (vhost, stream) = (traced.vhost, traced.stream);
            let event = match traced.event {
                EntriesEvent::Published(tag) => format!("published {}", tag.0),
                EntriesEvent::Delivered { received } => format!("delivered {}", received.0),
            };
            self.traced.push(format!("{event} {vhost} {stream} {text}"));
        }
    }
    fn browse(&mut self, _: QueueId, _: &queue::BrowseRequest, _: Option<NodeId>) -> u64 {
        unreachable!("no client of this protocol browses")
    }
    fn watch(&mut self, _: QueueId) {
        unreachable!("no client of this protocol browses")
    }
    fn cursor(&mut self, queue: QueueId, send: CursorSend) {
        let session = self.id.number;
        let Some(stream) = self.streams.get_mut(&queue) else {
            return;
        };
        match send.request {
            CursorRequest::Attach {
                cursor,
                attachment,
                spec,
                total,
            } => {
                let next = stream.resolve(spec.start);
                let state = FakeCursor {
                    attachment,
                    next,
                    sent: 0,
                    total,
                    arguments: spec.arguments,
                    start: spec.start,
                };
                stream.cursors.insert((session, cursor), state);
                let event = CursorEvent::Attached {
                    cursor,
                    attachment,
                    next,
                };
                self.cursor_event(session, queue, event);
            }
            CursorRequest::Credit { cursor, total, .. } => {
                if let Some(state) = stream.cursors.get_mut(&(session, cursor)) {
                    state.total = state.total.max(total);
                }
            }
            CursorRequest::Detach { cursor } => {
                stream.cursors.remove(&(session, cursor));
            }
        }
        self.send_chunks(queue);
    }
    fn leader_of(&self, _: &QueueRecord) -> Option<NodeId> {
        self.leader
    }
    fn is_reachable(&self, node: NodeId) -> bool {
        !self.unreachable.contains(&node)
    }
    fn request(&mut self, queue: QueueId, body: RequestBody) -> RequestSeq {
        let session = self.id.number;
        let Some(stream) = self.streams.get_mut(&queue) else {
            return RequestSeq(0);
        };
        stream.requests += 1;
        let seq = RequestSeq(stream.requests);
        let RequestBody::Stream(request) = body else {
            panic!("{body:?}");
        };
        if let Some(reply) = stream.answer(request)
            && !self.is_silent
        {
            let answer = QueueReply::Stream(reply);
            self.notify(session, QueueNotification::Answer { queue, seq, answer });
        }
        seq
    }
    fn publishers_blocked(&self) -> Option<&'static str> {
        self.alarm
    }
    fn is_throttled(&self) -> bool {
        self.is_throttled
    }
    fn draining(&self) -> bool {
        self.draining
    }
    fn admit(&mut self, _: &str) -> Result<(), u64> {
        if self.admits { Ok(()) } else { Err(3) }
    }
    fn message_counters(&mut self, protocol: &'static str, counters: &session::MessageCounters) {
        assert_eq!(protocol, "stream");
        self.counters.add(counters);
    }
    fn open_channel(&mut self) -> Result<(), session::ChannelLimit> {
        panic!("the protocol has no channels");
    }
    fn close_channel(&mut self) {}
    fn services(&mut self) -> Option<&mut ServiceStates> {
        Some(&mut self.states)
    }
    fn note_login(&mut self, attempt: &session::LoginAttempt<'_>) {
        assert_eq!(attempt.protocol, "stream");
        match attempt.refusal.is_none() {
            true => self.logins.0 += 1,
            false => self.logins.1 += 1,
        }
    }
    fn count_stream_connection(&mut self, change: i64) {
        self.connections += change;
    }
    fn count_stream_error(&mut self, error: &'static str) {
        self.errors.push(error);
    }
    fn verify(&mut self, _: &str, hash: &auth::PasswordHash, password: &[u8]) -> PasswordCheck {
        let right = match auth::verify(hash, password) {
            true => PasswordCheck::Right,
            false => PasswordCheck::Wrong,
        };
        self.verdict.unwrap_or(right)
    }
}

impl ServiceHost for FakeBroker {
    fn address(&self) -> ShardAddress {
        ShardAddress {
            node: NODE,
            incarnation: Incarnation(1),
            shard: 0,
        }
    }
    fn shards(&self) -> u16 {
        1
    }
    fn nodes(&self) -> Vec<NodeStatus> {
        vec![NodeStatus {
            node: OTHER_NODE,
            incarnation: Incarnation(1),
            shards: 1,
            is_up: self.is_reachable(OTHER_NODE),
        }]
    }
    fn is_up(&self, node: NodeId) -> bool {
        self.is_reachable(node)
    }
    fn send(&mut self, _: ShardAddress, write: &mut dyn FnMut(&mut BytesMut)) {
        // The other node does not answer.
        write(&mut BytesMut::new());
    }
    fn pass(&mut self, shard: u16, _: Box<dyn std::any::Any + Send>) {
        panic!("there is no other shard: {shard}");
    }
    fn notify(&mut self, session: u64, event: ControlEvent) {
        self.events.push_back((session, event.into()));
    }
    fn reaches_exchange(&self, _: &str, _: &Message, _: &str) -> bool {
        false
    }
    fn delete_postponed(&mut self, _: QueueId) {}
    fn collect_counters(&mut self) {}
    fn version(&self) -> &'static str {
        "test"
    }
    fn started_at(&self) -> Time {
        Time(0)
    }
}
