//! An in-memory node with its router, and any number of clients that exchange bytes with it.

mod store;

use auth::{HashAlgorithm, TlsPeer, hash_with};
use bytes::BytesMut;
use codec_mqtt::{
    Ack, AckKind, Connect, Packet, Properties, Publish, Qos, ReasonCode, Subscribe,
    SubscribeOptions, SubscriptionFilters, Unsubscribe, UnsubscribeFilters, Version, Will,
    parse_frame,
};
use env::{Incarnation, NodeId, Time, WallTime};
use message::{Message, Table};
use metadata::{
    BindingRecord, Change, ChangeError, ChangeResult, Destination, NodeRecord, PermissionRecord,
    QueueId, QueueRecord, QueueType, SessionId, Tree, TreeEvent, UserRecord,
};
use queue::{ConsumerId, QueueReply, RejectReason, RequestBody};
use session::{
    Broker, ControlEvent, FlowState, MessageCounters, NodeStatus, Outbox, PasswordCheck,
    PublishTag, QueueNotification, RequestSeq, ServiceHost, ServiceId, ServiceStates, Session,
    SessionEvent, SessionState, ShardAddress, ShardService, TickOutcome, TraceEvent, TracedMessage,
};
use session_mqtt::{MqttService, MqttSession, MqttSettings, MqttShard, SessionConfig};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use store::Store;
use topics::{MqttRouter, RouterOutput};

pub struct Node {
    pub now: Time,
    pub wall: WallTime,
    pub tree: Tree,
    index: u64,
    random: u64,
    services: ServiceStates,
    pub events: VecDeque<(u64, SessionEvent)>,
    /// Sessions whose requests reach their queues late: see [`World::deliver_delayed`].
    delayed_sessions: BTreeSet<u64>,
    delayed: Vec<(u64, QueueId, Option<RequestBody>)>,
    /// Messages published to queues.
    pub queued: Vec<(QueueId, Message)>,
    /// The queues of sessions.
    stores: BTreeMap<QueueId, Store>,
    /// The metadata group rejects every change.
    pub rejects_changes: bool,
    requests: u64,
    /// Queues do not confirm publishes; their tags are collected in `unconfirmed`.
    pub withholds_confirms: bool,
    pub unconfirmed: Vec<(u64, QueueId, PublishTag)>,
    pub flow: Option<FlowState>,
    pub alarm: Option<&'static str>,
    /// The node does not read the connections.
    pub is_throttled: bool,
    pub draining: bool,
    pub password_check: Option<PasswordCheck>,
    /// Successful and failed logins.
    pub logins: (u32, u32),
    pub admits: bool,
    /// Free slots for clients that send a large CONNECT.
    pub connect_slots: usize,
    /// Traced messages with their contexts, and the settlements of their deliveries, in order.
    pub traced: Vec<String>,
    /// Deliveries that sessions offered for their latency: queue type, and when the message was accepted.
    pub samples: Vec<(Option<QueueType>, WallTime)>,
    /// Counts of the sessions, by protocol.
    pub all_counters: BTreeMap<&'static str, MessageCounters>,
    /// The number of the session that is running.
    number: u64,
}

fn user(name: &str) -> UserRecord {
    UserRecord {
        name: name.into(),
        password: hash_with(HashAlgorithm::Sha256, name.as_bytes(), b"salt").ok(),
        tags: Vec::new(),
        limits: Vec::new(),
    }
}

impl Node {
    fn new(settings: &Arc<MqttSettings>) -> Node {
        let mut node = Node {
            now: Time(1),
            wall: WallTime(1_700_000_000_000),
            tree: Tree::default(),
            index: 0,
            random: 0,
            services: ServiceStates::default(),
            events: VecDeque::new(),
            delayed_sessions: BTreeSet::new(),
            delayed: Vec::new(),
            queued: Vec::new(),
            stores: BTreeMap::new(),
            rejects_changes: false,
            requests: 0,
            withholds_confirms: false,
            unconfirmed: Vec::new(),
            flow: None,
            alarm: None,
            is_throttled: false,
            draining: false,
            password_check: None,
            logins: (0, 0),
            admits: true,
            connect_slots: 1,
            traced: Vec::new(),
            samples: Vec::new(),
            all_counters: BTreeMap::new(),
            number: 0,
        };
        let shard = MqttShard::new(settings.clone());
        node.services.push(Box::new(shard));
        node.apply(Change::Bootstrap {
            cluster: "test".into(),
            nodes: vec![NodeRecord {
                id: NodeId(1),
                name: "one".into(),
                address: "127.0.0.1:25672".into(),
                voter: true,
                maintenance: false,
            }],
            user: user("guest"),
        });
        node.apply(Change::PutVhost {
            name: "other".into(),
            description: "".into(),
            tags: Vec::new(),
        });
        node.apply(Change::PutUser(user("small")));
        node.apply(Change::PutPermission(PermissionRecord {
            user: "small".into(),
            vhost: "other".into(),
            configure: "^mqtt-subscription-mine".into(),
            write: "^(mqtt-subscription-mine|amq.topic)".into(),
            read: ".*".into(),
        }));
        node
    }

    pub fn router(&mut self) -> &mut MqttRouter {
        let shard: &mut MqttShard = self.services.get_mut().expect("the service has a state");
        &mut shard.router
    }

    pub fn apply(&mut self, change: Change) -> ChangeResult {
        self.index += 1;
        self.tree
            .apply(self.index, &change)
            .expect("a change that can be made")
    }

    /// Declares a queue as an AMQP client and binds it to the topic exchange.
    pub fn queue(&mut self, name: &str, key: &str) -> QueueId {
        let done = self.apply(Change::DeclareQueue(QueueRecord {
            id: QueueId(0),
            vhost: "/".into(),
            name: name.into(),
            kind: QueueType::Classic,
            durable: true,
            auto_delete: false,
            exclusive: None,
            arguments: Table::default(),
            members: vec![NodeId(1)],
            declared_by: "guest".into(),
        }));
        self.apply(Change::Bind(BindingRecord {
            vhost: "/".into(),
            source: "amq.topic".into(),
            destination: Destination::Queue(name.into()),
            routing_key: key.into(),
            arguments: Table::default(),
        }));
        match done {
            ChangeResult::Queue { record, .. } => record.id,
            other => panic!("{other:?}"),
        }
    }
}

impl Node {
    /// The socket of a session is closed, so its consumers are removed.
    fn session_closed(&mut self, number: u64) {
        for (queue, store) in &mut self.stores {
            match self.delayed_sessions.contains(&number) {
                true => self.delayed.push((number, *queue, None)),
                false => store.session_over(number, self.now),
            }
        }
    }

    /// Deletes queues that were unused for their expiry.
    fn expire(&mut self) {
        let due = |(id, store): (&QueueId, &Store)| {
            let record = self.tree.queue_by_id(*id)?;
            let ms = record.arguments.get("x-expires")?.as_integer()?;
            let time = Duration::from_millis(ms as u64);
            store.unused_since().filter(|at| *at + time <= self.now)?;
            Some(record.clone())
        };
        let due: Vec<_> = self.stores.iter().filter_map(due).collect();
        for record in due {
            let (vhost, name) = (record.vhost.clone(), record.name.clone());
            self.number = 0;
            self.change(
                0,
                Change::DeleteQueue {
                    vhost,
                    name,
                    id: None,
                },
            );
        }
        self.events.retain(|(number, _)| *number > 0);
    }

    /// Returns the queue of a client's session.
    pub fn session_queue(&self, client: &str) -> Option<Arc<QueueRecord>> {
        let name = format!("mqtt-subscription-{client}qos1");
        self.tree.queue("/", &name).cloned()
    }

    /// Number of messages in a queue, ready or unacknowledged.
    pub fn queue_len(&self, queue: QueueId) -> usize {
        self.stores.get(&queue).map_or(0, Store::len)
    }

    /// Returns true if the queue's consumer named the previous connection.
    pub fn is_epoch_consumer(&self, queue: QueueId) -> bool {
        self.stores.get(&queue).is_some_and(|s| s.is_epoch_consumer)
    }

    /// An AMQP client publishes to a session's queue.
    pub fn amqp(&mut self, queue: QueueId, message: Message) {
        if let Some(store) = self.stores.get_mut(&queue) {
            store.publish(message);
            self.events.extend(store.next(queue));
        }
    }
}

impl Broker for Node {
    fn id(&self) -> SessionId {
        session_of(self.number)
    }
    fn now(&self) -> Time {
        self.now
    }
    fn wall(&self) -> WallTime {
        self.wall
    }
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.random
    }
    fn tree(&self) -> &Tree {
        &self.tree
    }
    fn change(&mut self, token: u64, change: Change) {
        self.index += 1;
        let result = match self.rejects_changes {
            true => Err(ChangeError::Unavailable("no leader".into())),
            false => self.tree.apply(self.index, &change),
        };
        let number = self.number;
        self.events
            .push_back((number, ControlEvent::Changed { token, result }.into()));
        for event in self.tree.take_events() {
            MqttService.tree_event(self, &event);
            match event {
                TreeEvent::QueueAdded(record) => {
                    self.stores.insert(record.id, Store::default());
                }
                TreeEvent::QueueRemoved(record) => {
                    let consumer = self.stores.remove(&record.id).and_then(|s| s.consumer());
                    self.events
                        .extend(consumer.map(|number| (number, store::cancelled(record.id))));
                }
                _ => {}
            }
        }
    }
    fn place(&mut self, _: QueueType, _: u32) -> Vec<NodeId> {
        vec![NodeId(1)]
    }
    fn publish_batch(
        &mut self,
        _: QueueId,
        _: PublishTag,
        _: queue::cursor::StreamBatch,
    ) -> FlowState {
        unreachable!("no client of this protocol publishes batches")
    }
    fn browse(&mut self, _: QueueId, _: &queue::BrowseRequest, _: Option<NodeId>) -> u64 {
        unreachable!("no client of this protocol browses")
    }
    fn watch(&mut self, _: QueueId) {
        unreachable!("no client of this protocol browses")
    }
    fn cursor(&mut self, _: QueueId, _: queue::cursor::CursorSend) {
        unreachable!("no client of this protocol has cursors")
    }
    fn leader_of(&self, _: &metadata::QueueRecord) -> Option<NodeId> {
        None
    }
    fn is_reachable(&self, _: NodeId) -> bool {
        true
    }
    fn publish(&mut self, queue: QueueId, tag: PublishTag, message: Message) -> FlowState {
        if let Some(store) = self.stores.get_mut(&queue) {
            store.publish(message.clone());
            self.events.extend(store.next(queue));
        }
        self.queued.push((queue, message));
        match (self.withholds_confirms, tag.0) {
            (_, 0) => {}
            (true, _) => self.unconfirmed.push((self.number, queue, tag)),
            (false, _) => self.events.push_back((
                self.number,
                QueueNotification::Published { queue, tag }.into(),
            )),
        }
        self.flow.unwrap_or(FlowState::Steady)
    }
    fn request(&mut self, queue: QueueId, body: RequestBody) -> RequestSeq {
        self.requests += 1;
        let seq = RequestSeq(self.requests);
        let number = self.number;
        if self.tree.traces()
            && let RequestBody::Settle { consumer, ids, .. } = &body
        {
            let line = format!("settle {}/{}: {ids:?}", queue.0, consumer.0);
            self.traced.push(line);
        }
        if self.delayed_sessions.contains(&number) {
            self.delayed.push((number, queue, Some(body)));
            return seq;
        }
        let by = self.id();
        if let Some(store) = self.stores.get_mut(&queue) {
            let answer = store.request(by, body, self.now);
            self.events.extend(answer.map(|answer| {
                let session_event = QueueNotification::Answer { queue, seq, answer };
                (number, session_event.into())
            }));
            self.events.extend(store.next(queue));
        }
        seq
    }
    fn settling(&self, queue: QueueId, _: ConsumerId) -> Vec<(u64, u64)> {
        let mut settling = Vec::new();
        for (number, of, body) in &self.delayed {
            match body {
                Some(RequestBody::Settle { ids, .. }) if (*number, *of) == (self.number, queue) => {
                    settling.extend(ids);
                }
                _ => {}
            }
        }
        settling
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
    fn hold_unknown(&mut self, begins: bool) -> bool {
        match begins {
            true if self.connect_slots == 0 => return false,
            true => self.connect_slots -= 1,
            false => self.connect_slots += 1,
        }
        true
    }
    fn admit(&mut self, _: &str) -> Result<(), u64> {
        if self.admits { Ok(()) } else { Err(3) }
    }
    fn open_channel(&mut self) -> Result<(), session::ChannelLimit> {
        Ok(())
    }
    fn close_channel(&mut self) {}
    fn message_counters(&mut self, protocol: &'static str, message_counters: &MessageCounters) {
        let sample = message_counters.sample;
        self.samples
            .extend(sample.map(|sample| (sample.queue_type, sample.received)));
        self.all_counters
            .entry(protocol)
            .or_default()
            .add(message_counters);
    }
    fn trace(&mut self, traced: &TracedMessage<'_>) {
        let context = conversion::trace::context(traced.message);
        let context = context.map_or("none".to_owned(), |context| context.to_string());
        let event = match traced.what {
            TraceEvent::Published { routes, tag } => {
                format!("publish to {} queues, tag {}", routes.len(), tag.0)
            }
            TraceEvent::Delivered {
                queue,
                redelivered,
                delivery,
            } => {
                let again = if redelivered { " again" } else { "" };
                let key = delivery.map(|key| (key.queue.0, key.consumer.0, key.id));
                format!("deliver {queue}{again}, settled by {key:?}")
            }
        };
        let line = format!("{} {event}: {context}", traced.protocol);
        self.traced.push(line);
    }
    fn services(&mut self) -> Option<&mut ServiceStates> {
        Some(&mut self.services)
    }
    fn change_by_service(&mut self, _: ServiceId, token: u64, change: Change) {
        let result = match self.rejects_changes {
            true => Err(ChangeError::Unavailable("no leader".into())),
            false => Ok(self.apply(change)),
        };
        for event in self.tree.take_events() {
            MqttService.tree_event(self, &event);
        }
        MqttService.change_answered(self, token, result);
    }
    fn note_login(&mut self, attempt: &session::LoginAttempt<'_>) {
        assert_eq!(attempt.protocol, "mqtt");
        match attempt.refusal.is_none() {
            true => self.logins.0 += 1,
            false => self.logins.1 += 1,
        }
    }
    fn verify(&mut self, _: &str, hash: &auth::PasswordHash, password: &[u8]) -> PasswordCheck {
        let right = match auth::verify(hash, password) {
            true => PasswordCheck::Right,
            false => PasswordCheck::Wrong,
        };
        self.password_check.unwrap_or(right)
    }
}

/// The node has one shard, and no other nodes.
impl ServiceHost for Node {
    fn address(&self) -> ShardAddress {
        ShardAddress {
            node: NodeId(1),
            incarnation: Incarnation(1),
            shard: 0,
        }
    }
    fn shards(&self) -> u16 {
        1
    }
    fn nodes(&self) -> Vec<NodeStatus> {
        Vec::new()
    }
    fn is_up(&self, _: NodeId) -> bool {
        false
    }
    fn send(&mut self, to: ShardAddress, _: &mut dyn FnMut(&mut BytesMut)) {
        panic!("there is no other shard: {to:?}");
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
    fn delete_postponed(&mut self, queue: QueueId) {
        panic!("the deletion of {queue:?} was not postponed");
    }
    fn collect_counters(&mut self) {}
    fn version(&self) -> &'static str {
        "test"
    }
    fn started_at(&self) -> Time {
        Time(1)
    }
}

/// A connection: the session and the client's end.
struct Connection {
    session: MqttSession,
    out: Outbox,
    session_state: SessionState,
    input: BytesMut,
    got: BytesMut,
    closed: bool,
    /// The client does not read.
    is_stalled: bool,
    version: Version,
}

pub struct World {
    pub node: Node,
    settings: Arc<MqttSettings>,
    connections: Vec<Connection>,
}

fn session_of(number: u64) -> SessionId {
    SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number,
    }
}

impl Default for World {
    fn default() -> World {
        World::new(MqttSettings::default())
    }
}

impl World {
    pub fn new(settings: MqttSettings) -> World {
        let settings = Arc::new(settings);
        World {
            node: Node::new(&settings),
            settings,
            connections: Vec::new(),
        }
    }

    /// Opens a connection on which nothing was sent yet.
    pub fn open(&mut self, version: Version) -> usize {
        self.open_from(version, true)
    }

    pub fn open_from(&mut self, version: Version, peer_is_loopback: bool) -> usize {
        self.open_over(version, peer_is_loopback, None)
    }

    /// Opens a connection, over TLS if `tls` is set.
    pub fn open_over(
        &mut self,
        version: Version,
        peer_is_loopback: bool,
        tls: Option<TlsPeer>,
    ) -> usize {
        let config = SessionConfig {
            peer_is_loopback,
            tls: tls.map(Arc::new),
            settings: self.settings.clone(),
        };
        self.connections.push(Connection {
            session: MqttSession::new(config, self.node.now),
            out: Outbox::default(),
            session_state: SessionState::Open,
            input: BytesMut::new(),
            got: BytesMut::new(),
            closed: false,
            is_stalled: false,
            version,
        });
        self.connections.len() - 1
    }

    /// Connects a client and reads its CONNACK.
    pub fn client(&mut self, version: Version, id: &str) -> usize {
        let c = self.open(version);
        self.connect(c, |connect| connect.client_id = leak(id));
        let output = self.output(c);
        assert!(output[0].starts_with("CONNACK 0x00"), "{output:?}");
        c
    }

    /// Sends CONNECT of a clean session without a user name, as changed by `change`.
    pub fn connect(&mut self, c: usize, change: impl FnOnce(&mut Connect<'static>)) {
        let mut connect = Connect {
            version: self.connections[c].version,
            clean_start: true,
            keep_alive: 0,
            properties: Properties::default(),
            client_id: "c",
            will: None,
            user_name: None,
            password: None,
        };
        change(&mut connect);
        self.send(c, &Packet::Connect(connect));
    }

    pub fn send(&mut self, c: usize, packet: &Packet<'_>) {
        let mut raw = BytesMut::new();
        packet.encode(self.connections[c].version, &mut raw);
        self.send_raw(c, &raw);
    }

    pub fn send_raw(&mut self, c: usize, raw: &[u8]) {
        self.connections[c].input.extend_from_slice(raw);
        self.receive(c);
        self.settle();
    }

    fn receive(&mut self, c: usize) {
        let connection = &mut self.connections[c];
        if connection.closed || connection.session_state != SessionState::Open {
            return;
        }
        self.node.number = c as u64 + 1;
        connection.session_state =
            connection
                .session
                .receive(&mut connection.input, &mut self.node, &mut connection.out);
    }

    pub fn publish(&mut self, c: usize, topic: &str, qos: Qos, id: u16, payload: &str) {
        self.publish_with(c, topic, qos, id, payload, |_| ());
    }

    pub fn publish_with(
        &mut self,
        c: usize,
        topic: &str,
        qos: Qos,
        id: u16,
        payload: &str,
        change: impl FnOnce(&mut Publish<'_>),
    ) {
        let mut publish = Publish {
            dup: false,
            qos,
            retain: false,
            topic,
            packet_id: id,
            properties: Properties::default(),
            payload: payload.as_bytes(),
        };
        change(&mut publish);
        self.send(c, &Packet::Publish(publish));
    }

    pub fn ack(&mut self, c: usize, kind: AckKind, id: u16, reason: ReasonCode) {
        self.send(c, &Packet::Ack(Ack::new(kind, id, reason)));
    }

    /// Subscribes to one filter without reading SUBACK.
    pub fn subscribe_with(
        &mut self,
        c: usize,
        filter: &str,
        options: SubscribeOptions,
        identifier: Option<u32>,
    ) {
        let mut repeated = BytesMut::new();
        if let Some(identifier) = identifier {
            codec_mqtt::put_subscription_identifier(&mut repeated, identifier);
        }
        let mut raw = BytesMut::new();
        SubscriptionFilters::put(&mut raw, filter, options);
        let version = self.connections[c].version;
        self.send(
            c,
            &Packet::Subscribe(Subscribe {
                packet_id: 1,
                properties: Properties {
                    repeated: codec_mqtt::RepeatedProperties(&repeated),
                    ..Properties::default()
                },
                filters: SubscriptionFilters::new(&raw, version),
            }),
        );
    }

    /// Subscribes to one filter, which must be granted.
    pub fn subscribe(&mut self, c: usize, filter: &str, qos: Qos) {
        let options = SubscribeOptions {
            qos,
            ..SubscribeOptions::default()
        };
        self.subscribe_with(c, filter, options, None);
        let output = self.output(c);
        assert_eq!(output, [format!("SUBACK 1 [{}]", qos as u8)]);
    }

    pub fn unsubscribe(&mut self, c: usize, filters: &[&str]) {
        let mut raw = BytesMut::new();
        for filter in filters {
            UnsubscribeFilters::put(&mut raw, filter);
        }
        self.send(
            c,
            &Packet::Unsubscribe(Unsubscribe {
                packet_id: 2,
                properties: Properties::default(),
                filters: UnsubscribeFilters::new(&raw),
            }),
        );
    }

    /// The client's connection breaks.
    pub fn cut(&mut self, c: usize) {
        let connection = &mut self.connections[c];
        if !connection.closed {
            connection.closed = true;
            self.node.number = c as u64 + 1;
            connection.session.gone(&mut self.node);
            self.node.session_closed(c as u64 + 1);
        }
        self.settle();
    }

    /// Delays the requests of this client's session to queues until [`World::deliver_delayed`].
    pub fn delay(&mut self, c: usize) {
        self.node.delayed_sessions.insert(c as u64 + 1);
    }

    /// The queue rejects the last delayed request.
    pub fn refuse(&mut self) {
        let (number, queue, _) = self.node.delayed.pop().expect("something is late");
        let answer = QueueReply::Refused {
            code: 404,
            text: "the queue's node is down".to_owned(),
        };
        let seq = RequestSeq(self.node.requests);
        let session_event = QueueNotification::Answer { queue, seq, answer };
        self.node.events.push_back((number, session_event.into()));
        self.settle();
    }

    /// Delivers the delayed requests to the queues.
    pub fn deliver_delayed(&mut self) {
        self.node.delayed_sessions.clear();
        for (number, queue, body) in std::mem::take(&mut self.node.delayed) {
            let Some(store) = self.node.stores.get_mut(&queue) else {
                continue;
            };
            store.late(session_of(number), body, self.node.now);
            self.node.events.extend(store.next(queue));
        }
        self.settle();
    }

    /// A late request of an earlier connection takes over the consumer of the session's queue, and
    /// leaves.
    pub fn take_over_consumer(&mut self, client: &str) {
        let queue = self
            .node
            .session_queue(client)
            .expect("the session's queue")
            .id;
        let store = self.node.stores.get_mut(&queue);
        let ended = store.and_then(|store| store.end_consumer(self.node.now));
        let told = ended.map(|number| (number, store::cancelled(queue)));
        self.node.events.extend(told);
        self.settle();
    }

    /// The client has used its session at another node in between, and this node does not know.
    pub fn consumed_elsewhere(&mut self, client: &str) {
        let queue = self
            .node
            .session_queue(client)
            .expect("the session's queue")
            .id;
        let by = SessionId {
            node: NodeId(2),
            ..session_of(1)
        };
        let store = self.node.stores.get_mut(&queue);
        store.expect("a queue").consumed_elsewhere(by);
    }

    /// Kills and restarts the process: its memory is lost.
    pub fn kill(&mut self) {
        for connection in &mut self.connections {
            connection.closed = true;
        }
        let shard = MqttShard::new(self.settings.clone());
        self.node.services = ServiceStates::default();
        self.node.services.push(Box::new(shard));
        MqttService.tree_replaced(&mut self.node);
        self.node.events.clear();
        self.node.unconfirmed.clear();
        self.node.delayed_sessions.clear();
        self.node.delayed.clear();
        for c in 0..self.connections.len() {
            self.node.session_closed(c as u64 + 1);
        }
    }

    pub fn session_event(&mut self, c: usize, session_event: SessionEvent) {
        self.node.events.push_back((c as u64 + 1, session_event));
        self.settle();
    }

    /// Advances the time.
    pub fn advance(&mut self, time: Duration) {
        self.node.now = self.node.now + time;
        self.node.wall = WallTime(self.node.wall.0 + time.as_millis() as u64);
        let (now, wall) = (self.node.now, self.node.wall);
        if MqttService.tick(&mut self.node.services, now, wall) == TickOutcome::Due {
            MqttService.carry_out_due(&mut self.node);
        }
        self.node.expire();
        for c in 0..self.connections.len() {
            let connection = &mut self.connections[c];
            if !connection.closed
                && connection
                    .session
                    .wake_at()
                    .is_some_and(|at| at <= self.node.now)
            {
                self.node.number = c as u64 + 1;
                connection.session_state =
                    connection.session.tick(&mut self.node, &mut connection.out);
            }
        }
        self.settle();
    }

    /// Stops or resumes reading.
    pub fn set_stalled(&mut self, c: usize, stalled: bool) {
        self.connections[c].is_stalled = stalled;
        self.settle();
    }

    /// The socket has taken only a part of the output.
    pub fn partial_flush(&mut self, c: usize) {
        let connection = &mut self.connections[c];
        self.node.number = c as u64 + 1;
        connection.session_state = connection
            .session
            .drained(&mut self.node, &mut connection.out);
    }

    pub fn is_paused(&self, c: usize) -> bool {
        self.connections[c].session_state == SessionState::Paused
    }

    pub fn is_closed(&self, c: usize) -> bool {
        self.connections[c].closed
    }

    /// Runs until nothing is pending.
    pub fn settle(&mut self) {
        loop {
            let mut worked = false;
            while let Some(output) = self.node.router().take() {
                worked = true;
                match output {
                    RouterOutput::Deliver { session, .. }
                    | RouterOutput::TakenOver { session }
                    | RouterOutput::ClaimAgain { session }
                    | RouterOutput::LateAnswer { session, .. } => {
                        self.send_router_output(session, output);
                    }
                    RouterOutput::Will { .. }
                    | RouterOutput::ToQueue { .. }
                    | RouterOutput::SysTopicsDue => {
                        self.node.number = 0;
                        MqttService.carry_out(&mut self.node, &mut Some(output));
                    }
                    other => panic!("there is no other router: {other:?}"),
                }
            }
            while let Some((number, session_event)) = self.node.events.pop_front() {
                worked = true;
                self.send_event(number, session_event);
            }
            for c in 0..self.connections.len() {
                worked |= self.flush(c);
            }
            if !worked {
                return;
            }
        }
    }

    fn send_router_output(&mut self, number: u64, output: RouterOutput) {
        let connection = &mut self.connections[number as usize - 1];
        if !connection.closed {
            self.node.number = number;
            let (node, out) = (&mut self.node, &mut connection.out);
            let session = &mut connection.session;
            connection.session_state = session.service_event(&mut Some(output), node, out);
        }
    }

    fn send_event(&mut self, number: u64, session_event: SessionEvent) {
        let connection = &mut self.connections[number as usize - 1];
        if !connection.closed {
            self.node.number = number;
            connection.session_state = connection.session.session_event(
                session_event,
                &mut self.node,
                &mut connection.out,
            );
        } else {
            MqttService.late_session_event(&mut self.node, number, &session_event);
        }
    }

    fn flush(&mut self, c: usize) -> bool {
        let connection = &mut self.connections[c];
        if connection.closed {
            return false;
        }
        let mut worked = false;
        if !connection.is_stalled && !connection.out.is_empty() {
            worked = true;
            let pieces: Vec<bytes::Bytes> = connection.out.pieces().iter().cloned().collect();
            for piece in pieces {
                connection.got.extend_from_slice(&piece);
                connection.out.consume(piece.len());
            }
            self.node.number = c as u64 + 1;
            connection.session_state = connection
                .session
                .drained(&mut self.node, &mut connection.out);
        }
        let connection = &mut self.connections[c];
        if connection.session_state == SessionState::Closing && connection.out.is_empty() {
            connection.closed = true;
            self.node.number = c as u64 + 1;
            connection.session.gone(&mut self.node);
            self.node.session_closed(c as u64 + 1);
            return true;
        }
        let left = connection.input.len();
        if left > 0 && connection.session_state == SessionState::Open {
            self.receive(c);
            worked |= self.connections[c].input.len() != left;
        }
        worked
    }

    /// Reads the client's input since the last call, one line per packet; "END" if the connection
    /// is closed.
    pub fn output(&mut self, c: usize) -> Vec<String> {
        let connection = &mut self.connections[c];
        let got = connection.got.split();
        let mut output = Vec::new();
        let mut at = 0;
        while let Some(frame) = parse_frame(&got[at..], usize::MAX).expect("a packet") {
            at += frame.wire_len();
            output.push(describe(
                &Packet::decode(&frame, connection.version).expect("a packet"),
            ));
        }
        assert_eq!(at, got.len(), "part of a packet");
        if connection.closed {
            output.push("END".to_owned());
        }
        output
    }

    /// Like [`World::output`], as bytes.
    pub fn bytes(&mut self, c: usize) -> Vec<u8> {
        self.connections[c].got.split().to_vec()
    }
}

/// A will without properties.
pub fn will(topic: &'static str, qos: Qos, retain: bool) -> Option<Will<'static>> {
    Some(Will {
        qos,
        retain,
        properties: Properties::default(),
        topic,
        payload: b"gone",
    })
}

/// Leaks the text; tests are short.
pub fn leak(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

fn describe(packet: &Packet<'_>) -> String {
    match packet {
        Packet::ConnAck(p) => {
            let mut line = format!("CONNACK {:#04x}", p.reason as u8);
            if p.session_present {
                line += " present";
            }
            if let Some(text) = p.properties.reason_string {
                line += &format!(" ({text})");
            }
            line
        }
        Packet::Publish(p) => {
            let payload = String::from_utf8_lossy(p.payload);
            let mut line = format!("PUBLISH {} {payload} q{}", p.topic, p.qos as u8);
            if p.packet_id > 0 {
                line += &format!(" #{}", p.packet_id);
            }
            if p.dup {
                line += " dup";
            }
            if p.retain {
                line += " retain";
            }
            let ids: Vec<u32> = p.properties.subscription_identifiers().collect();
            if !ids.is_empty() {
                line += &format!(" ids{ids:?}");
            }
            if let Some(alias) = p.properties.topic_alias {
                line += &format!(" alias{alias}");
            }
            if let Some(expiry) = p.properties.message_expiry {
                line += &format!(" expiry{expiry}");
            }
            line
        }
        Packet::Ack(p) => {
            let name = format!("{:?}", p.kind).to_uppercase();
            match p.reason {
                ReasonCode::Success => format!("{name} {}", p.packet_id),
                reason => format!("{name} {} {:#04x}", p.packet_id, reason as u8),
            }
        }
        Packet::SubAck(p) => format!("SUBACK {} {:?}", p.packet_id, p.reasons),
        Packet::UnsubAck(p) => format!("UNSUBACK {} {:?}", p.packet_id, p.reasons),
        Packet::PingResp => "PINGRESP".to_owned(),
        Packet::Disconnect(p) => format!("DISCONNECT {:#04x}", p.reason as u8),
        other => panic!("no server says {other:?}"),
    }
}

/// Rejects all unconfirmed publishes.
pub fn refuse_all(world: &mut World) {
    for (number, queue, tag) in std::mem::take(&mut world.node.unconfirmed) {
        let why = RejectReason::MaxLength;
        world.node.events.push_back((
            number,
            QueueNotification::NotPublished { queue, tag, why }.into(),
        ));
    }
    world.settle();
}

/// Confirms all unconfirmed publishes.
pub fn confirm_all(world: &mut World) {
    for (number, queue, tag) in std::mem::take(&mut world.node.unconfirmed) {
        world
            .node
            .events
            .push_back((number, QueueNotification::Published { queue, tag }.into()));
    }
    world.settle();
}
