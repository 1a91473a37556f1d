//! An in-memory node, and a client that exchanges frames with the session.
#![allow(dead_code, reason = "each test file uses a part of it")]

use auth::{HashAlgorithm, hash_with};
use bytes::{Bytes, BytesMut};
use codec_amqp091::{
    ContentHeader, Frame, FrameKind, Method, PROTOCOL_HEADER, Properties, encode_body,
    encode_content_header, encode_heartbeat, encode_method, parse_frame,
};
use env::{Incarnation, NodeId, Time, WallTime};
use message::{Message, Table};
use metadata::{
    Change, ChangeError, ChangeResult, NodeRecord, PermissionRecord, QueueId, QueueType, SessionId,
    Tree, UserRecord,
};
use queue::{
    ConsumerId, ConsumerSpec, Delivery, FLOW_WINDOW, QueueReply, RejectReason, RequestBody,
    SettlementOutcome,
};
use session::{
    Broker, ControlEvent, FlowState, Outbox, PasswordCheck, PublishTag, QueueNotification,
    RequestSeq, Session, SessionEvent, SessionState,
};
use session_amqp091::{AmqpSession, SessionConfig};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

#[derive(Default)]
pub struct FakeQueue {
    pub ready: VecDeque<(Message, u32)>,
    pub consumers: BTreeMap<u32, FakeConsumer>,
    seq: u64,
}

pub struct FakeConsumer {
    pub spec: ConsumerSpec,
    pub cancelled: bool,
    next: u64,
    /// Deliveries up to this one were written to the client.
    pub received: u64,
    /// The last delivery that may be sent.
    pub credit: u64,
    pub out: BTreeMap<u64, (Message, u32)>,
}

impl FakeConsumer {
    /// Returns true if the consumer may get another delivery.
    pub fn has_capacity(&self) -> bool {
        let in_flight = || {
            self.out
                .range(self.received + 1..)
                .map(|(_, (m, _))| m.body_len())
        };
        let limit = self.spec.prefetch as usize;
        (limit == 0 || self.out.len() < limit)
            && self.next < self.credit
            && in_flight().count() < FLOW_WINDOW.messages as usize
            && (in_flight().sum::<usize>() as u64) < FLOW_WINDOW.bytes
    }
}

pub struct FakeBroker {
    pub id: SessionId,
    pub now: Time,
    pub tree: Tree,
    index: u64,
    random: u64,
    pub queues: BTreeMap<QueueId, FakeQueue>,
    pub notices: VecDeque<SessionEvent>,
    pub alarm: Option<&'static str>,
    pub draining: bool,
    /// The result of password checks, if not the real one.
    pub verdict: Option<PasswordCheck>,
    /// Numbers of successful and failed logins.
    pub logins: (u32, u32),
    pub admits: bool,
    /// The connection limit of the vhost is reached.
    pub vhost_is_full: bool,
    /// The sum of all reported counters.
    pub message_counters: session::MessageCounters,
    pub channels_left: u32,
    /// Queues accept requests without answering; publishes are collected in `unconfirmed`.
    pub silent: bool,
    /// The cluster has no other nodes.
    pub is_single_node: bool,
    /// Changes are applied only by `apply_next`.
    pub hold_log: bool,
    log: VecDeque<(u64, Change)>,
    /// The home node of every queue is this one, and it is down.
    pub lost_home: Option<metadata::Name>,
    /// Queues that answer publishes with `FlowState::Behind`.
    pub slow_queues: Vec<QueueId>,
    pub unconfirmed: Vec<(QueueId, PublishTag)>,
    /// The reason to reject every publish.
    pub reject: Option<RejectReason>,
    /// The requests to queues, in order.
    pub requests: Vec<(QueueId, RequestBody)>,
    pub changes: Vec<Change>,
}

pub const ME: SessionId = SessionId {
    node: NodeId(1),
    incarnation: Incarnation(1),
    number: 7,
};

fn user(name: &str, tags: &[&str]) -> UserRecord {
    UserRecord {
        name: name.into(),
        password: hash_with(HashAlgorithm::Sha256, name.as_bytes(), b"salt").ok(),
        tags: tags.iter().map(|&t| t.into()).collect(),
        limits: Vec::new(),
    }
}

impl FakeBroker {
    pub fn new() -> FakeBroker {
        let mut broker = FakeBroker {
            id: ME,
            now: Time(1),
            tree: Tree::default(),
            index: 0,
            random: 0,
            queues: BTreeMap::new(),
            notices: VecDeque::new(),
            alarm: None,
            draining: false,
            verdict: None,
            logins: (0, 0),
            admits: true,
            vhost_is_full: false,
            message_counters: session::MessageCounters::default(),
            channels_left: 10_000,
            silent: false,
            is_single_node: false,
            hold_log: false,
            log: VecDeque::new(),
            lost_home: None,
            slow_queues: Vec::new(),
            unconfirmed: Vec::new(),
            reject: None,
            requests: Vec::new(),
            changes: Vec::new(),
        };
        broker.must(Change::Bootstrap {
            cluster: "test".into(),
            nodes: vec![NodeRecord {
                id: NodeId(1),
                name: "one".into(),
                address: "127.0.0.1:25672".into(),
                voter: true,
                maintenance: false,
            }],
            user: user("guest", &["administrator"]),
        });
        broker.must(Change::PutVhost {
            name: "other".into(),
            description: "".into(),
            tags: Vec::new(),
        });
        // A user whose permissions cover only names that start with "mine".
        broker.must(Change::PutUser(user("small", &[])));
        broker.must(Change::PutPermission(PermissionRecord {
            user: "small".into(),
            vhost: "/".into(),
            configure: "^mine".into(),
            write: "^mine".into(),
            read: "^mine".into(),
        }));
        broker.changes.clear();
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
            self.queues.insert(record.id, FakeQueue::default());
        }
        let tree = &self.tree;
        let deleted: Vec<QueueId> = self
            .queues
            .keys()
            .copied()
            .filter(|&q| tree.queue_by_id(q).is_none())
            .collect();
        for queue in deleted {
            if let Some(q) = self.queues.remove(&queue) {
                for (&id, c) in q.consumers.iter().filter(|(_, c)| !c.cancelled) {
                    if c.spec.tag.as_bytes() != b"\0get" {
                        self.notices.push_back(
                            QueueNotification::Cancelled {
                                queue,
                                consumer: ConsumerId(id),
                            }
                            .into(),
                        );
                    }
                }
            }
        }
        result
    }

    pub fn must(&mut self, change: Change) -> ChangeResult {
        self.apply(&change).unwrap()
    }

    pub fn queue(&self, vhost: &str, name: &str) -> Option<&FakeQueue> {
        self.queues.get(&self.tree.queue(vhost, name)?.id)
    }

    pub fn queue_id(&self, name: &str) -> QueueId {
        self.tree.queue("/", name).unwrap().id
    }

    /// Confirms the publishes collected while `silent`.
    pub fn settle_publishes(&mut self) {
        for (queue, tag) in std::mem::take(&mut self.unconfirmed) {
            self.notices
                .push_back(QueueNotification::Published { queue, tag }.into());
        }
    }

    /// Commits a change of another node to the log that this node has not applied yet.
    pub fn change_from_other_node(&mut self, change: Change) {
        self.hold_log = true;
        self.log.push_back((0, change));
    }

    /// Applies the next held change. Returns false if there is none.
    pub fn apply_next(&mut self) -> bool {
        let Some((token, change)) = self.log.pop_front() else {
            return false;
        };
        let result = self.apply(&change);
        self.notices
            .push_back(ControlEvent::Changed { token, result }.into());
        true
    }

    fn push(&mut self, queue: QueueId) {
        let Some(q) = self.queues.get_mut(&queue) else {
            return;
        };
        loop {
            let best = q
                .consumers
                .iter_mut()
                .filter(|(_, c)| !c.cancelled)
                .filter(|(_, c)| c.has_capacity())
                .max_by_key(|(id, c)| (c.spec.priority, std::cmp::Reverse(**id)));
            let Some((&id, c)) = best else { return };
            let Some((message, attempts)) = q.ready.pop_front() else {
                return;
            };
            let delivery = c.take(message, attempts, q.ready.len());
            let to = ConsumerId(id);
            // Deliveries to one consumer are batched.
            match self.notices.back_mut() {
                Some(SessionEvent::Queue(QueueNotification::Deliver {
                    queue: from,
                    consumer,
                    deliveries,
                })) if *from == queue && *consumer == to => deliveries.push(delivery),
                _ => self.notices.push_back(
                    QueueNotification::Deliver {
                        queue,
                        consumer: to,
                        deliveries: vec![delivery],
                    }
                    .into(),
                ),
            }
        }
    }

    fn get(&mut self, queue: QueueId, consumer: ConsumerId, no_ack: bool) -> Option<QueueReply> {
        let q = self.queues.get_mut(&queue)?;
        let Some((message, attempts)) = q.ready.pop_front() else {
            return Some(QueueReply::Empty);
        };
        let mut c = FakeConsumer {
            spec: ConsumerSpec {
                tag: "\0get".into(),
                channel: 0,
                flow_mode: queue::FlowMode::Prefetch,
                prefetch: 1,
                no_ack,
                exclusive: false,
                priority: 0,
                arguments: Table::default(),
            },
            cancelled: true,
            next: 0,
            received: 0,
            credit: u64::MAX,
            out: BTreeMap::new(),
        };
        let delivery = c.take(message, attempts, q.ready.len());
        if no_ack {
            c.out.clear();
        }
        q.consumers.insert(consumer.0, c);
        self.notices.push_back(
            QueueNotification::Deliver {
                queue,
                consumer,
                deliveries: vec![delivery],
            }
            .into(),
        );
        None
    }

    fn answer(&mut self, queue: QueueId, body: RequestBody) -> Option<QueueReply> {
        let q = self.queues.get_mut(&queue)?;
        match body {
            RequestBody::Consume { consumer, spec } => {
                if let Some(c) = q.consumers.get_mut(&consumer.0) {
                    c.spec.prefetch = spec.prefetch;
                    return Some(QueueReply::Consuming);
                }
                let live = q.consumers.values().filter(|c| !c.cancelled).count();
                let exclusive = q
                    .consumers
                    .values()
                    .any(|c| !c.cancelled && c.spec.exclusive);
                if exclusive || spec.exclusive && live > 0 {
                    let name = &self.tree.queue_by_id(queue)?.name;
                    let text = format!("queue '{name}' in vhost '/' in exclusive use");
                    return Some(QueueReply::Refused { code: 403, text });
                }
                let c = FakeConsumer {
                    spec,
                    cancelled: false,
                    next: 0,
                    received: 0,
                    credit: u64::MAX,
                    out: BTreeMap::new(),
                };
                q.consumers.insert(consumer.0, c);
                Some(QueueReply::Consuming)
            }
            RequestBody::Cancel { consumer } => {
                q.consumers.get_mut(&consumer.0)?.cancelled = true;
                None
            }
            RequestBody::CreditOneWay { consumer, up_to } => {
                q.consumers.get_mut(&consumer.0)?.credit = up_to;
                None
            }
            RequestBody::Leave { consumer } => {
                let c = q.consumers.get_mut(&consumer.0)?;
                c.cancelled = true;
                let out = std::mem::take(&mut c.out);
                for (m, n) in out.into_values().rev() {
                    q.ready.push_front((m, n + 1));
                }
                None
            }
            RequestBody::Settle {
                consumer,
                outcome,
                ids,
            } => {
                let c = q.consumers.get_mut(&consumer.0)?;
                for id in ids.into_iter().flat_map(|(from, to)| (from..=to).rev()) {
                    match (c.out.remove(&id), outcome) {
                        (Some((m, n)), SettlementOutcome::Requeue) => {
                            q.ready.push_front((m, n + 1))
                        }
                        (Some((m, n)), SettlementOutcome::Unseen) => q.ready.push_front((m, n)),
                        _ => {}
                    }
                }
                None
            }
            RequestBody::Recover { consumer } => {
                let out = std::mem::take(&mut q.consumers.get_mut(&consumer.0)?.out);
                for (m, n) in out.into_values().rev() {
                    q.ready.push_front((m, n + 1));
                }
                None
            }
            RequestBody::Get { consumer, no_ack } => self.get(queue, consumer, no_ack),
            RequestBody::Purge => {
                let messages = q.ready.len() as u64;
                q.ready.clear();
                Some(QueueReply::Count {
                    messages,
                    consumers: 0,
                })
            }
            RequestBody::Stat => Some(q.count()),
            RequestBody::Delete {
                if_unused,
                if_empty,
            } => {
                let text = |state: &str| format!("queue in vhost '/' {state}");
                if if_unused && q.consumers.values().any(|c| !c.cancelled) {
                    return Some(QueueReply::Refused {
                        code: 406,
                        text: text("in use"),
                    });
                }
                if if_empty && !q.ready.is_empty() {
                    return Some(QueueReply::Refused {
                        code: 406,
                        text: text("not empty"),
                    });
                }
                Some(q.count())
            }
            RequestBody::Publish(_)
            | RequestBody::Succeed(_)
            | RequestBody::Credit { .. }
            | RequestBody::Modify { .. }
            | RequestBody::Close => None,
        }
    }
}

impl FakeQueue {
    fn count(&self) -> QueueReply {
        QueueReply::Count {
            messages: self.ready.len() as u64,
            consumers: self.consumers.values().filter(|c| !c.cancelled).count() as u32,
        }
    }
}

impl FakeConsumer {
    fn take(&mut self, message: Message, attempts: u32, left: usize) -> Delivery {
        self.next += 1;
        self.out.insert(self.next, (message.clone(), attempts));
        Delivery {
            id: self.next,
            redelivered: attempts > 0,
            attempts: Some(attempts),
            left: left as u64,
            message,
            annotations: None,
        }
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
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.random
    }
    fn tree(&self) -> &Tree {
        &self.tree
    }
    fn knows_all(&self) -> bool {
        self.is_single_node
    }
    fn change(&mut self, token: u64, change: Change) {
        self.changes.push(change.clone());
        if self.hold_log {
            return self.log.push_back((token, change));
        }
        let result = self.apply(&change);
        if !self.silent {
            self.notices
                .push_back(ControlEvent::Changed { token, result }.into());
        }
    }
    fn unreachable_home(&self, _: &metadata::QueueRecord) -> Option<metadata::Name> {
        self.lost_home.clone()
    }
    fn place(&mut self, _: QueueType, _: u32) -> Vec<NodeId> {
        vec![NodeId(1)]
    }
    fn publish(&mut self, queue: QueueId, tag: PublishTag, message: Message) -> FlowState {
        if let Some(why) = self.reject {
            self.notices
                .push_back(QueueNotification::NotPublished { queue, tag, why }.into());
            return FlowState::Steady;
        }
        if let Some(q) = self.queues.get_mut(&queue) {
            q.ready.push_back((message, 0));
        }
        if self.silent {
            self.unconfirmed.push((queue, tag));
        } else {
            self.notices
                .push_back(QueueNotification::Published { queue, tag }.into());
            self.push(queue);
        }
        match self.slow_queues.contains(&queue) {
            true => FlowState::Behind,
            false => FlowState::Steady,
        }
    }
    fn request(&mut self, queue: QueueId, body: RequestBody) -> RequestSeq {
        self.requests.push((queue, body.clone()));
        let seq = match self.queues.get_mut(&queue) {
            Some(q) => {
                q.seq += 1;
                RequestSeq(q.seq)
            }
            None => RequestSeq(0),
        };
        if !self.silent {
            if let Some(answer) = self.answer(queue, body) {
                self.notices
                    .push_back(QueueNotification::Answer { queue, seq, answer }.into());
            }
            self.push(queue);
        }
        seq
    }
    fn received(&mut self, queue: QueueId, consumer: ConsumerId, up_to: u64) {
        let q = self.queues.get_mut(&queue);
        if let Some(c) = q.and_then(|q| q.consumers.get_mut(&consumer.0)) {
            assert!(c.received < up_to && up_to <= c.next, "{up_to}");
            c.received = up_to;
        }
        self.push(queue);
    }
    fn publishers_blocked(&self) -> Option<&'static str> {
        self.alarm
    }
    fn draining(&self) -> bool {
        self.draining
    }
    fn admit(&mut self, _: &str) -> Result<(), u64> {
        if self.admits { Ok(()) } else { Err(3) }
    }
    fn admit_to(&mut self, _: &str) -> Result<(), u64> {
        if self.vhost_is_full { Err(5) } else { Ok(()) }
    }
    fn message_counters(
        &mut self,
        protocol: &'static str,
        message_counters: &session::MessageCounters,
    ) {
        assert_eq!(protocol, "amqp091");
        self.message_counters.add(message_counters);
    }
    fn open_channel(&mut self) -> Result<(), u64> {
        match self.channels_left.checked_sub(1) {
            Some(left) => self.channels_left = left,
            None => return Err(2),
        }
        Ok(())
    }
    fn close_channel(&mut self) {
        self.channels_left += 1;
    }
    fn count_login(&mut self, protocol: &'static str, succeeded: bool) {
        assert_eq!(protocol, "amqp091");
        match succeeded {
            true => self.logins.0 += 1,
            false => self.logins.1 += 1,
        }
    }
    fn verify(&mut self, _: &str, hash: &auth::PasswordHash, password: &[u8]) -> PasswordCheck {
        let right = match auth::verify(hash, password) {
            true => PasswordCheck::Right,
            false => PasswordCheck::Wrong,
        };
        self.verdict.unwrap_or(right)
    }
}

/// A connection: the session under test, its node, and the client side.
pub struct Conn {
    pub session: AmqpSession,
    pub broker: FakeBroker,
    pub out: Outbox,
    pub session_state: SessionState,
    pub received: BytesMut,
    input: BytesMut,
}

pub fn capabilities() -> Table {
    let mut inner = Table::default();
    for name in [
        "consumer_cancel_notify",
        "connection.blocked",
        "authentication_failure_close",
    ] {
        inner.set(name, message::Value::Bool(true));
    }
    let mut table = Table::default();
    table.set("capabilities", message::Value::Table(inner));
    table.set("connection_name", "tester".into());
    table
}

impl Conn {
    pub fn new(config: SessionConfig) -> Conn {
        Conn::on(FakeBroker::new(), config)
    }

    pub fn on(broker: FakeBroker, config: SessionConfig) -> Conn {
        Conn {
            session: AmqpSession::new(config, broker.now),
            broker,
            out: Outbox::default(),
            session_state: SessionState::Open,
            received: BytesMut::new(),
            input: BytesMut::new(),
        }
    }

    /// A connection after connection.open-ok.
    pub fn open_as(config: SessionConfig, user: &str) -> Conn {
        let mut conn = Conn::new(config);
        conn.log_in(user);
        conn
    }

    pub fn log_in(&mut self, user: &str) {
        self.raw(&PROTOCOL_HEADER);
        assert!(matches!(self.next_method(), (0, "connection.start")));
        let response = format!("\0{user}\0{user}");
        self.send(
            0,
            Method::ConnectionStartOk {
                client_properties: capabilities(),
                mechanism: "PLAIN",
                response: response.as_bytes(),
                locale: "en_US",
            },
        );
        self.expect(
            0,
            Method::ConnectionTune {
                channel_max: 2047,
                frame_max: 131_072,
                heartbeat: 60,
            },
        );
        self.send(
            0,
            Method::ConnectionTuneOk {
                channel_max: 2047,
                frame_max: 131_072,
                heartbeat: 10,
            },
        );
        self.send(0, Method::ConnectionOpen { virtual_host: "/" });
        self.expect(0, Method::ConnectionOpenOk {});
    }

    pub fn open() -> Conn {
        Conn::open_as(SessionConfig::default(), "guest")
    }

    /// An open connection with channel 1.
    pub fn with_channel() -> Conn {
        let mut conn = Conn::open();
        conn.open_channel(1);
        conn
    }

    pub fn open_channel(&mut self, channel: u16) {
        self.send(channel, Method::ChannelOpen {});
        self.expect(channel, Method::ChannelOpenOk {});
    }

    /// Passes bytes to the session and delivers the resulting events.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        if self.session_state != SessionState::Closing {
            self.session_state =
                self.session
                    .receive(&mut self.input, &mut self.broker, &mut self.out);
        }
        self.settle();
    }

    /// Delivers the node's events until there are none.
    pub fn settle(&mut self) {
        while let Some(session_event) = self.broker.notices.pop_front() {
            self.session_state =
                self.session
                    .session_event(session_event, &mut self.broker, &mut self.out);
        }
    }

    /// Reads the session's output as a socket would.
    pub fn drain(&mut self) {
        loop {
            let pieces: Vec<Bytes> = self.out.pieces().iter().cloned().collect();
            if pieces.is_empty() {
                return;
            }
            for piece in pieces {
                self.out.consume(piece.len());
                self.received.extend_from_slice(&piece);
            }
            self.session_state = self.session.drained(&mut self.broker, &mut self.out);
            self.settle();
        }
    }

    pub fn send(&mut self, channel: u16, method: Method<'_>) {
        let mut bytes = BytesMut::new();
        encode_method(&mut bytes, channel, &method);
        self.raw(&bytes);
    }

    pub fn heartbeat(&mut self) {
        let mut bytes = BytesMut::new();
        encode_heartbeat(&mut bytes);
        self.raw(&bytes);
    }

    pub fn publish_with(
        &mut self,
        channel: u16,
        exchange: &str,
        key: &str,
        mandatory: bool,
        properties: &Properties<'_>,
        body: &[u8],
    ) {
        let mut bytes = BytesMut::new();
        let method = Method::BasicPublish {
            exchange,
            routing_key: key,
            mandatory,
            immediate: false,
        };
        encode_method(&mut bytes, channel, &method);
        let mut raw = BytesMut::new();
        properties.encode(&mut raw);
        encode_content_header(&mut bytes, channel, body.len() as u64, &raw);
        encode_body(&mut bytes, channel, body, 131_072);
        self.raw(&bytes);
    }

    pub fn publish(&mut self, channel: u16, exchange: &str, key: &str, body: &[u8]) {
        self.publish_with(channel, exchange, key, false, &Properties::default(), body);
    }

    /// The next frame that the client receives.
    pub fn next_frame(&mut self) -> Option<(FrameKind, u16, Bytes)> {
        self.drain();
        let frame: Frame<'_> = parse_frame(&self.received, 131_072).unwrap()?;
        let (kind, channel, len) = (frame.kind, frame.channel, frame.wire_len());
        let mut whole = self.received.split_to(len).freeze();
        let payload = whole.split_to(len - 1).slice(7..);
        Some((kind, channel, payload))
    }

    pub fn next_method(&mut self) -> (u16, &'static str) {
        let (kind, channel, payload) = self.next_frame().expect("a frame");
        assert_eq!(kind, FrameKind::Method);
        (channel, Method::decode(&payload).unwrap().name())
    }

    pub fn expect(&mut self, channel: u16, method: Method<'_>) {
        let (kind, number, payload) = self
            .next_frame()
            .unwrap_or_else(|| panic!("expected {method:?}, got no frame"));
        assert_eq!(kind, FrameKind::Method, "expected {method:?}");
        assert_eq!(
            (number, Method::decode(&payload).unwrap()),
            (channel, method)
        );
    }

    /// Reads the header and body frames after deliver, return or get-ok. Returns the properties and
    /// the body.
    pub fn expect_content(&mut self, channel: u16) -> (Bytes, Vec<u8>) {
        let (kind, number, payload) = self.next_frame().expect("a header");
        assert_eq!((kind, number), (FrameKind::Header, channel));
        let header = ContentHeader::decode(&payload).unwrap();
        let properties = payload.slice_ref(header.properties);
        let mut body = Vec::new();
        while (body.len() as u64) < header.body_size {
            let (kind, number, payload) = self.next_frame().expect("a body");
            assert_eq!((kind, number), (FrameKind::Body, channel));
            body.extend_from_slice(&payload);
        }
        (properties, body)
    }

    pub fn expect_nothing(&mut self) {
        let frame = self.next_frame();
        let method = frame
            .as_ref()
            .map(|(_, _, p)| format!("{:?}", Method::decode(p)));
        assert!(frame.is_none(), "{frame:?} {method:?}");
    }

    pub fn expect_channel_close(&mut self, channel: u16, code: u16, text: &str, ids: (u16, u16)) {
        self.expect(
            channel,
            Method::ChannelClose {
                reply_code: code,
                reply_text: text,
                class_id: ids.0,
                method_id: ids.1,
            },
        );
        self.send(channel, Method::ChannelCloseOk {});
    }

    pub fn expect_connection_close(&mut self, code: u16, text: &str, ids: (u16, u16)) {
        self.expect(
            0,
            Method::ConnectionClose {
                reply_code: code,
                reply_text: text,
                class_id: ids.0,
                method_id: ids.1,
            },
        );
    }

    pub fn declare(&mut self, channel: u16, queue: &str) {
        self.send(channel, queue_declare(queue));
        self.expect(
            channel,
            Method::QueueDeclareOk {
                queue,
                message_count: 0,
                consumer_count: 0,
            },
        );
    }

    pub fn consume(&mut self, channel: u16, queue: &str, tag: &str, no_ack: bool) {
        self.send(channel, consume(queue, tag, no_ack));
        self.expect(channel, Method::BasicConsumeOk { consumer_tag: tag });
    }

    pub fn expect_deliver(
        &mut self,
        channel: u16,
        tag: &str,
        delivery_tag: u64,
        key: &str,
        body: &[u8],
    ) {
        self.expect_redeliver(channel, tag, delivery_tag, false, key, body);
    }

    pub fn expect_redeliver(
        &mut self,
        channel: u16,
        tag: &str,
        delivery_tag: u64,
        redelivered: bool,
        key: &str,
        body: &[u8],
    ) {
        self.expect(
            channel,
            Method::BasicDeliver {
                consumer_tag: tag,
                delivery_tag,
                redelivered,
                exchange: "",
                routing_key: key,
            },
        );
        assert_eq!(self.expect_content(channel).1, body);
    }

    pub fn advance(&mut self, time: Duration) {
        self.broker.now = self.broker.now + time;
        self.session_state = self.session.tick(&mut self.broker, &mut self.out);
        self.settle();
    }
}

pub fn queue_declare(queue: &str) -> Method<'_> {
    Method::QueueDeclare {
        queue,
        passive: false,
        durable: true,
        exclusive: false,
        auto_delete: false,
        no_wait: false,
        arguments: Table::default(),
    }
}

pub fn queue_delete(queue: &str) -> Method<'_> {
    Method::QueueDelete {
        queue,
        if_unused: false,
        if_empty: false,
        no_wait: false,
    }
}

pub fn exchange_declare<'a>(exchange: &'a str, kind: &'a str) -> Method<'a> {
    Method::ExchangeDeclare {
        exchange,
        kind,
        passive: false,
        durable: true,
        auto_delete: false,
        internal: false,
        no_wait: false,
        arguments: Table::default(),
    }
}

pub fn consume<'a>(queue: &'a str, tag: &'a str, no_ack: bool) -> Method<'a> {
    Method::BasicConsume {
        queue,
        consumer_tag: tag,
        no_local: false,
        no_ack,
        exclusive: false,
        no_wait: false,
        arguments: Table::default(),
    }
}

/// A connection with channel 1 and queue `q`, which contains the messages "1" to `messages`.
pub fn with_queue(messages: u64) -> Conn {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    for n in 1..=messages {
        conn.publish(1, "", "q", n.to_string().as_bytes());
    }
    conn
}

/// The ready messages of queue `q`.
pub fn ready(conn: &Conn) -> Vec<String> {
    let queue = conn.broker.queue("/", "q").unwrap();
    queue
        .ready
        .iter()
        .map(|(m, _)| String::from_utf8_lossy(m.body()).into_owned())
        .collect()
}
