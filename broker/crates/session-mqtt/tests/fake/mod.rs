//! A node in memory with its hub, and any number of clients that speak in bytes.
#![allow(dead_code, reason = "every test file uses its own part")]

mod store;

use auth::{HashAlgorithm, TlsPeer, hash_with};
use bytes::BytesMut;
use codec_mqtt::{
    Ack, AckKind, Connect, Filters, Packet, Properties, Publish, Qos, Reason, Subscribe,
    SubscribeOptions, Unsubscribe, UnsubscribeFilters, Version, Will, parse_frame,
};
use env::{Incarnation, NodeId, Time, WallTime};
use message::{Message, Table};
use metadata::{
    BindingRecord, Change, ChangeError, ChangeResult, Destination, NodeRecord, PermissionRecord,
    QueueId, QueueRecord, QueueType, SessionId, Tree, TreeEvent, UserRecord,
};
use queue::{ConsumerId, QueueReply, RejectReason, RequestBody};
use session::{
    Broker, FlowState, MessageCounters, Outbox, PasswordCheck, PublishTag, RequestSeq, Session,
    SessionEvent, SessionState,
};
use session_mqtt::{MqttSession, SessionConfig, Settings, publish_will};
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
    pub router: MqttRouter,
    pub notices: VecDeque<(u64, SessionEvent)>,
    /// Requests of these sessions reach their queues late: see [`World::hear`].
    late: BTreeSet<u64>,
    held: Vec<(u64, QueueId, Option<RequestBody>)>,
    /// What queues were given.
    pub queued: Vec<(QueueId, Message)>,
    /// The queues of sessions.
    stores: BTreeMap<QueueId, Store>,
    /// The metadata group refuses everything.
    pub refuses: bool,
    requests: u64,
    /// Queues say nothing; the tags are kept here.
    pub silent: bool,
    pub unconfirmed: Vec<(u64, QueueId, PublishTag)>,
    pub flow: Option<FlowState>,
    pub alarm: Option<&'static str>,
    pub draining: bool,
    pub verdict: Option<PasswordCheck>,
    /// Logins that succeeded, and those that failed.
    pub logins: (u32, u32),
    pub admits: bool,
    /// Clients that may send a large CONNECT.
    pub places: usize,
    /// What sessions have counted, by protocol.
    pub all_counters: BTreeMap<&'static str, MessageCounters>,
    /// The session that calls.
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
    fn new() -> Node {
        let mut node = Node {
            now: Time(1),
            wall: WallTime(1_700_000_000_000),
            tree: Tree::default(),
            index: 0,
            random: 0,
            router: MqttRouter::default(),
            notices: VecDeque::new(),
            late: BTreeSet::new(),
            held: Vec::new(),
            queued: Vec::new(),
            stores: BTreeMap::new(),
            refuses: false,
            requests: 0,
            silent: false,
            unconfirmed: Vec::new(),
            flow: None,
            alarm: None,
            draining: false,
            verdict: None,
            logins: (0, 0),
            admits: true,
            places: 1,
            all_counters: BTreeMap::new(),
            number: 0,
        };
        node.must(Change::Bootstrap {
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
        node.must(Change::PutVhost {
            name: "other".into(),
            description: "".into(),
            tags: Vec::new(),
        });
        node.must(Change::PutUser(user("small")));
        node.must(Change::PutPermission(PermissionRecord {
            user: "small".into(),
            vhost: "other".into(),
            configure: "^mqtt-subscription-mine".into(),
            write: "^(mqtt-subscription-mine|amq.topic)".into(),
            read: ".*".into(),
        }));
        node
    }

    pub fn must(&mut self, change: Change) -> ChangeResult {
        self.index += 1;
        self.tree
            .apply(self.index, &change)
            .expect("a change that can be made")
    }

    /// A queue that an AMQP client bound to the topic exchange.
    pub fn queue(&mut self, name: &str, key: &str) -> QueueId {
        let done = self.must(Change::DeclareQueue(QueueRecord {
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
        self.must(Change::Bind(BindingRecord {
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
    /// The socket of a session is gone: so are its consumers.
    fn over(&mut self, number: u64) {
        for (queue, store) in &mut self.stores {
            match self.late.contains(&number) {
                true => self.held.push((number, *queue, None)),
                false => store.session_over(number, self.now),
            }
        }
    }

    /// Queues that nobody used for their time go.
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
        self.notices.retain(|(number, _)| *number > 0);
    }

    /// The session's queue of a client.
    pub fn stored(&self, client: &str) -> Option<Arc<QueueRecord>> {
        let name = format!("mqtt-subscription-{client}qos1");
        self.tree.queue("/", &name).cloned()
    }

    /// Messages that a queue has, given out or not.
    pub fn kept(&self, queue: QueueId) -> usize {
        self.stores.get(&queue).map_or(0, Store::len)
    }

    /// Whether a queue's consumer says that it follows the one before.
    pub fn is_epoch_consumer(&self, queue: QueueId) -> bool {
        self.stores.get(&queue).is_some_and(|s| s.succeeded)
    }

    /// A message from an AMQP client to a session's queue.
    pub fn amqp(&mut self, queue: QueueId, message: Message) {
        if let Some(store) = self.stores.get_mut(&queue) {
            store.publish(message);
            self.notices.extend(store.next(queue));
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
        let result = match self.refuses {
            true => Err(ChangeError::Unavailable("no leader".into())),
            false => self.tree.apply(self.index, &change),
        };
        let number = self.number;
        self.notices
            .push_back((number, SessionEvent::Changed { token, result }));
        for event in self.tree.take_events() {
            match event {
                TreeEvent::QueueAdded(record) => {
                    self.stores.insert(record.id, Store::default());
                }
                TreeEvent::QueueRemoved(record) => {
                    if let Some(client) = session_mqtt::client_of(&record.name) {
                        self.router.queue_gone(&record.vhost, client, record.id.0);
                    }
                    let consumer = self.stores.remove(&record.id).and_then(|s| s.consumer());
                    self.notices
                        .extend(consumer.map(|number| (number, store::cancelled(record.id))));
                }
                _ => {}
            }
        }
    }
    fn place(&mut self, _: QueueType, _: u32) -> Vec<NodeId> {
        vec![NodeId(1)]
    }
    fn publish(&mut self, queue: QueueId, tag: PublishTag, message: Message) -> FlowState {
        if let Some(store) = self.stores.get_mut(&queue) {
            store.publish(message.clone());
            self.notices.extend(store.next(queue));
        }
        self.queued.push((queue, message));
        match (self.silent, tag.tag) {
            (_, 0) => {}
            (true, _) => self.unconfirmed.push((self.number, queue, tag)),
            (false, _) => self
                .notices
                .push_back((self.number, SessionEvent::Published { queue, tag })),
        }
        self.flow.unwrap_or(FlowState::Steady)
    }
    fn request(&mut self, queue: QueueId, body: RequestBody) -> RequestSeq {
        self.requests += 1;
        let seq = RequestSeq(self.requests);
        let number = self.number;
        if self.late.contains(&number) {
            self.held.push((number, queue, Some(body)));
            return seq;
        }
        let by = self.id();
        if let Some(store) = self.stores.get_mut(&queue) {
            let answer = store.request(by, body, self.now);
            self.notices.extend(answer.map(|answer| {
                let session_event = SessionEvent::Answer { queue, seq, answer };
                (number, session_event)
            }));
            self.notices.extend(store.next(queue));
        }
        seq
    }
    fn settling(&self, queue: QueueId, _: ConsumerId) -> Vec<(u64, u64)> {
        let mut settling = Vec::new();
        for (number, of, body) in &self.held {
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
    fn draining(&self) -> bool {
        self.draining
    }
    fn hold_unknown(&mut self, begins: bool) -> bool {
        match begins {
            true if self.places == 0 => return false,
            true => self.places -= 1,
            false => self.places += 1,
        }
        true
    }
    fn admit(&mut self, _: &str) -> Result<(), u64> {
        if self.admits { Ok(()) } else { Err(3) }
    }
    fn open_channel(&mut self) -> Result<(), u64> {
        Ok(())
    }
    fn close_channel(&mut self) {}
    fn message_counters(&mut self, protocol: &'static str, message_counters: &MessageCounters) {
        self.all_counters
            .entry(protocol)
            .or_default()
            .add(message_counters);
    }
    fn topics(&mut self) -> Option<&mut MqttRouter> {
        Some(&mut self.router)
    }
    fn retain(
        &mut self,
        token: u64,
        vhost: &str,
        topic: &str,
        message: Option<Message>,
    ) -> Result<(), ChangeError> {
        let taken = self.router.retain(vhost, topic, message);
        taken.map_err(|_| ChangeError::PreconditionFailed("no room".into()))?;
        let result = match self.refuses {
            true => Err(ChangeError::Unavailable("no leader".into())),
            false => Ok(ChangeResult::Changed),
        };
        let number = self.number;
        self.notices
            .extend((token != 0).then_some((number, SessionEvent::Changed { token, result })));
        Ok(())
    }
    fn count_login(&mut self, protocol: &'static str, succeeded: bool) {
        assert_eq!(protocol, "mqtt");
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

/// A connection: the session, and the client's end.
struct Seat {
    session: MqttSession,
    out: Outbox,
    session_state: SessionState,
    input: BytesMut,
    got: BytesMut,
    closed: bool,
    /// The client does not read.
    stuck: bool,
    version: Version,
}

pub struct World {
    pub node: Node,
    settings: Arc<Settings>,
    seats: Vec<Seat>,
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
        World::new(Settings::default())
    }
}

impl World {
    pub fn new(settings: Settings) -> World {
        World {
            node: Node::new(),
            settings: Arc::new(settings),
            seats: Vec::new(),
        }
    }

    /// A connection on which nothing was sent yet.
    pub fn open(&mut self, version: Version) -> usize {
        self.open_from(version, true)
    }

    pub fn open_from(&mut self, version: Version, peer_is_loopback: bool) -> usize {
        self.open_over(version, peer_is_loopback, None)
    }

    /// A connection over TLS, if `tls`.
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
        self.seats.push(Seat {
            session: MqttSession::new(config, self.node.now),
            out: Outbox::default(),
            session_state: SessionState::Open,
            input: BytesMut::new(),
            got: BytesMut::new(),
            closed: false,
            stuck: false,
            version,
        });
        self.seats.len() - 1
    }

    /// A client that is connected and has read its CONNACK.
    pub fn client(&mut self, version: Version, id: &str) -> usize {
        let c = self.open(version);
        self.connect(c, |connect| connect.client_id = unstatic(id));
        let said = self.said(c);
        assert!(said[0].starts_with("CONNACK 0x00"), "{said:?}");
        c
    }

    /// CONNECT of a clean session without a user name, changed as wanted.
    pub fn connect(&mut self, c: usize, change: impl FnOnce(&mut Connect<'static>)) {
        let mut connect = Connect {
            version: self.seats[c].version,
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
        packet.encode(self.seats[c].version, &mut raw);
        self.send_raw(c, &raw);
    }

    pub fn send_raw(&mut self, c: usize, raw: &[u8]) {
        self.seats[c].input.extend_from_slice(raw);
        self.receive(c);
        self.settle();
    }

    fn receive(&mut self, c: usize) {
        let seat = &mut self.seats[c];
        if seat.closed || seat.session_state != SessionState::Open {
            return;
        }
        self.node.number = c as u64 + 1;
        seat.session_state = seat
            .session
            .receive(&mut seat.input, &mut self.node, &mut seat.out);
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

    pub fn ack(&mut self, c: usize, kind: AckKind, id: u16, reason: Reason) {
        self.send(c, &Packet::Ack(Ack::new(kind, id, reason)));
    }

    /// One filter, without reading the SUBACK.
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
        Filters::put(&mut raw, filter, options);
        let version = self.seats[c].version;
        self.send(
            c,
            &Packet::Subscribe(Subscribe {
                packet_id: 1,
                properties: Properties {
                    repeated: codec_mqtt::Repeated(&repeated),
                    ..Properties::default()
                },
                filters: Filters::new(&raw, version),
            }),
        );
    }

    /// One filter; granted.
    pub fn subscribe(&mut self, c: usize, filter: &str, qos: Qos) {
        let options = SubscribeOptions {
            qos,
            ..SubscribeOptions::default()
        };
        self.subscribe_with(c, filter, options, None);
        let said = self.said(c);
        assert_eq!(said, [format!("SUBACK 1 [{}]", qos as u8)]);
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

    /// The client's socket breaks.
    pub fn cut(&mut self, c: usize) {
        let seat = &mut self.seats[c];
        if !seat.closed {
            seat.closed = true;
            self.node.number = c as u64 + 1;
            seat.session.gone(&mut self.node);
            self.node.over(c as u64 + 1);
        }
        self.settle();
    }

    /// From now on no queue hears what this client's session asks, until [`World::hear`].
    pub fn delay(&mut self, c: usize) {
        self.node.late.insert(c as u64 + 1);
    }

    /// A queue refuses what was asked last, instead of hearing it.
    pub fn refuse(&mut self) {
        let (number, queue, _) = self.node.held.pop().expect("something is late");
        let answer = QueueReply::Refused {
            code: 404,
            text: "the queue's node is down".to_owned(),
        };
        let seq = RequestSeq(self.node.requests);
        let session_event = SessionEvent::Answer { queue, seq, answer };
        self.node.notices.push_back((number, session_event));
        self.settle();
    }

    /// Queues hear what was late.
    pub fn hear(&mut self) {
        self.node.late.clear();
        for (number, queue, body) in std::mem::take(&mut self.node.held) {
            let Some(store) = self.node.stores.get_mut(&queue) else {
                continue;
            };
            store.late(session_of(number), body, self.node.now);
            self.node.notices.extend(store.next(queue));
        }
        self.settle();
    }

    /// An earlier connection of a client takes the queue of its session from the one that is there, and leaves it.
    pub fn usurp(&mut self, client: &str) {
        let queue = self.node.stored(client).expect("the session's queue").id;
        let store = self.node.stores.get_mut(&queue);
        let ended = store.and_then(|store| store.end_consumer(self.node.now));
        let told = ended.map(|number| (number, store::cancelled(queue)));
        self.node.notices.extend(told);
        self.settle();
    }

    /// The client has used its session at another node meanwhile, and this one has not heard of it.
    pub fn consumed_elsewhere(&mut self, client: &str) {
        let queue = self.node.stored(client).expect("the session's queue").id;
        let by = SessionId {
            node: NodeId(2),
            ..session_of(1)
        };
        let store = self.node.stores.get_mut(&queue);
        store.expect("a queue").consumed_elsewhere(by);
    }

    /// The process is killed and starts again: what was in memory is gone.
    pub fn kill(&mut self) {
        for seat in &mut self.seats {
            seat.closed = true;
        }
        self.node.router = MqttRouter::default();
        for queue in self.node.tree.queues("/") {
            let client = session_mqtt::client_of(&queue.name).unwrap_or_default();
            for binding in self.node.tree.bindings_of_queue(queue.id) {
                if let Some((filter, shared)) = session_mqtt::shared_subscription(binding) {
                    let router = &mut self.node.router;
                    router.adopt(("/", client), queue.id.0, &filter, shared);
                }
            }
        }
        self.node.notices.clear();
        self.node.unconfirmed.clear();
        self.node.late.clear();
        self.node.held.clear();
        for c in 0..self.seats.len() {
            self.node.over(c as u64 + 1);
        }
    }

    pub fn session_event(&mut self, c: usize, session_event: SessionEvent) {
        self.node.notices.push_back((c as u64 + 1, session_event));
        self.settle();
    }

    /// Time passes.
    pub fn after(&mut self, time: Duration) {
        self.node.now = self.node.now + time;
        self.node.wall = WallTime(self.node.wall.0 + time.as_millis() as u64);
        self.node.router.tick(self.node.now);
        self.node.expire();
        for c in 0..self.seats.len() {
            let seat = &mut self.seats[c];
            if !seat.closed && seat.session.wake_at().is_some_and(|at| at <= self.node.now) {
                self.node.number = c as u64 + 1;
                seat.session_state = seat.session.tick(&mut self.node, &mut seat.out);
            }
        }
        self.settle();
    }

    /// Stops, or goes on, reading.
    pub fn stick(&mut self, c: usize, stuck: bool) {
        self.seats[c].stuck = stuck;
        self.settle();
    }

    /// The socket took some of what there is: the session hears that not all of it went.
    pub fn trickle(&mut self, c: usize) {
        let seat = &mut self.seats[c];
        self.node.number = c as u64 + 1;
        seat.session_state = seat.session.drained(&mut self.node, &mut seat.out);
    }

    pub fn is_paused(&self, c: usize) -> bool {
        self.seats[c].session_state == SessionState::Paused
    }

    pub fn is_closed(&self, c: usize) -> bool {
        self.seats[c].closed
    }

    pub fn outbox_len(&self, c: usize) -> usize {
        self.seats[c].out.len()
    }

    /// Everything goes as far as it can.
    pub fn settle(&mut self) {
        loop {
            let mut worked = false;
            while let Some(output) = self.node.router.take() {
                worked = true;
                match output {
                    RouterOutput::Deliver { session, delivery } => {
                        self.tell(session, SessionEvent::Topic(delivery))
                    }
                    RouterOutput::TakenOver { session } => {
                        self.tell(session, SessionEvent::TakenOver)
                    }
                    RouterOutput::Free { session } => self.tell(session, SessionEvent::ClaimAgain),
                    RouterOutput::AnsweredLate {
                        session,
                        client: _,
                        publisher,
                        tag,
                        taken,
                    } => {
                        let session_event = SessionEvent::AnsweredLate {
                            publisher,
                            tag,
                            taken,
                        };
                        self.tell(session, session_event);
                    }
                    RouterOutput::Will { vhost, will } => {
                        publish_will(&mut self.node, &vhost, will)
                    }
                    RouterOutput::ToQueue { queue, message } => {
                        let tag = PublishTag { channel: 0, tag: 0 };
                        self.node.number = 0;
                        self.node.publish(QueueId(queue), tag, message);
                    }
                    other => panic!("there is no other hub: {other:?}"),
                }
            }
            while let Some((number, session_event)) = self.node.notices.pop_front() {
                worked = true;
                self.tell(number, session_event);
            }
            for c in 0..self.seats.len() {
                worked |= self.flush(c);
            }
            if !worked {
                return;
            }
        }
    }

    fn tell(&mut self, number: u64, session_event: SessionEvent) {
        let seat = &mut self.seats[number as usize - 1];
        if !seat.closed {
            self.node.number = number;
            seat.session_state =
                seat.session
                    .session_event(session_event, &mut self.node, &mut seat.out);
        } else if let Some((tag, taken)) =
            session_mqtt::publish_answer(&session_event, &self.node.tree)
        {
            self.node.router.answer_late(number, tag, taken);
        }
    }

    fn flush(&mut self, c: usize) -> bool {
        let seat = &mut self.seats[c];
        if seat.closed {
            return false;
        }
        let mut worked = false;
        if !seat.stuck && !seat.out.is_empty() {
            worked = true;
            let pieces: Vec<bytes::Bytes> = seat.out.pieces().iter().cloned().collect();
            for piece in pieces {
                seat.got.extend_from_slice(&piece);
                seat.out.consume(piece.len());
            }
            self.node.number = c as u64 + 1;
            seat.session_state = seat.session.drained(&mut self.node, &mut seat.out);
        }
        let seat = &mut self.seats[c];
        if seat.session_state == SessionState::Closing && seat.out.is_empty() {
            seat.closed = true;
            self.node.number = c as u64 + 1;
            seat.session.gone(&mut self.node);
            self.node.over(c as u64 + 1);
            return true;
        }
        let left = seat.input.len();
        if left > 0 && seat.session_state == SessionState::Open {
            self.receive(c);
            worked |= self.seats[c].input.len() != left;
        }
        worked
    }

    /// What the client has read since it was asked last, a line for each packet; "END" when the connection is closed.
    pub fn said(&mut self, c: usize) -> Vec<String> {
        let seat = &mut self.seats[c];
        let got = seat.got.split();
        let mut said = Vec::new();
        let mut at = 0;
        while let Some(frame) = parse_frame(&got[at..], usize::MAX).expect("a packet") {
            at += frame.wire_len();
            said.push(show(
                &Packet::decode(&frame, seat.version).expect("a packet"),
            ));
        }
        assert_eq!(at, got.len(), "part of a packet");
        if seat.closed {
            said.push("END".to_owned());
        }
        said
    }

    /// The same, as bytes.
    pub fn bytes(&mut self, c: usize) -> Vec<u8> {
        self.seats[c].got.split().to_vec()
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

/// Tests are short: what they name may stay.
pub fn unstatic(text: &str) -> &'static str {
    Box::leak(text.to_owned().into_boxed_str())
}

fn show(packet: &Packet<'_>) -> String {
    match packet {
        Packet::ConnAck(p) => {
            let mut epoch = format!("CONNACK {:#04x}", p.reason as u8);
            if p.session_present {
                epoch += " present";
            }
            if let Some(text) = p.properties.reason_string {
                epoch += &format!(" ({text})");
            }
            epoch
        }
        Packet::Publish(p) => {
            let payload = String::from_utf8_lossy(p.payload);
            let mut epoch = format!("PUBLISH {} {payload} q{}", p.topic, p.qos as u8);
            if p.packet_id > 0 {
                epoch += &format!(" #{}", p.packet_id);
            }
            if p.dup {
                epoch += " dup";
            }
            if p.retain {
                epoch += " retain";
            }
            let ids: Vec<u32> = p.properties.subscription_identifiers().collect();
            if !ids.is_empty() {
                epoch += &format!(" ids{ids:?}");
            }
            if let Some(alias) = p.properties.topic_alias {
                epoch += &format!(" alias{alias}");
            }
            if let Some(expiry) = p.properties.message_expiry {
                epoch += &format!(" expiry{expiry}");
            }
            epoch
        }
        Packet::Ack(p) => {
            let name = format!("{:?}", p.kind).to_uppercase();
            match p.reason {
                Reason::Success => format!("{name} {}", p.packet_id),
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

/// Refuses every publish that waits for an answer.
pub fn refuse_all(world: &mut World) {
    for (number, queue, tag) in std::mem::take(&mut world.node.unconfirmed) {
        let why = RejectReason::MaxLength;
        world
            .node
            .notices
            .push_back((number, SessionEvent::NotPublished { queue, tag, why }));
    }
    world.settle();
}

/// Confirms every publish that waits for an answer.
pub fn confirm_all(world: &mut World) {
    for (number, queue, tag) in std::mem::take(&mut world.node.unconfirmed) {
        world
            .node
            .notices
            .push_back((number, SessionEvent::Published { queue, tag }));
    }
    world.settle();
}
