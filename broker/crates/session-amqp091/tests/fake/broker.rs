//! An in-memory node. The tests of the AMQP 1.0 session use it too.

use auth::{HashAlgorithm, hash_with};
use env::{Incarnation, NodeId, Time, WallTime};
use message::{Message, Table};
use metadata::{
    Change, ChangeError, ChangeResult, NodeRecord, PermissionRecord, QueueId, QueueType, SessionId,
    Tree, UserRecord,
};
use queue::client::CancelReason;
use queue::{
    BrowsePage, BrowsePosition, BrowseRequest, BrowsedMessage, ConsumerId, ConsumerSpec, Delivery,
    FLOW_WINDOW, FlowMode, QueueReply, RejectReason, RequestBody, SettlementOutcome,
};
use session::{
    Broker, BrowseAnswer, BrowsedPage, ControlEvent, FlowState, PasswordCheck, PublishTag,
    QueueNotification, RequestSeq, SessionEvent,
};
use std::collections::{BTreeMap, VecDeque};

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
    /// The label of counters that the session must report.
    pub protocol: &'static str,
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
    /// How often counters were reported.
    pub counter_reports: u32,
    /// The node does not read the connection.
    pub is_throttled: bool,
    /// The limit of channels is that of the vhost, not of the user.
    pub vhost_limits_channels: bool,
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
    /// The queues that are browsed.
    pub browsed: BTreeMap<QueueId, BrowsedQueue>,
    /// The requests for pages, in order.
    pub page_requests: Vec<(QueueId, BrowseRequest)>,
    /// The error instead of pages.
    pub page_error: Option<&'static str>,
    /// Pages are answered by `answer_page` only.
    pub hold_pages: bool,
    held_pages: VecDeque<(u64, QueueId, BrowseRequest)>,
}

/// The messages of a queue for clients that browse it.
#[derive(Default)]
pub struct BrowsedQueue {
    /// By descending level and then by number, as in listings.
    pub messages: Vec<BrowsedMessage>,
    pub last_number: u64,
    /// The incarnation of the node that has the queue.
    pub incarnation: u64,
    /// Most bytes of a body in a page. 0: no limit.
    pub body_bytes: usize,
}

impl BrowsedQueue {
    fn page(&self, request: &BrowseRequest) -> BrowsePage {
        let from = request.from.as_ref().map(key);
        let is_listed = |message: &&BrowsedMessage| {
            (request.least..=request.most).contains(&message.at.number)
                && from.is_none_or(|from| key(&message.at) >= from)
                && request.state.is_none_or(|state| message.state == state)
        };
        let mut listed = self.messages.iter().filter(is_listed);
        let limit = match self.body_bytes {
            0 => usize::MAX,
            limit => limit,
        };
        let cut = |browsed: &BrowsedMessage| BrowsedMessage {
            body_start: request.body_start,
            message: (browsed.message)
                .with_body_part(
                    request.body_start as usize,
                    limit.min(request.body_bytes as usize),
                )
                .unwrap(),
            ..browsed.clone()
        };
        let mut messages: Vec<BrowsedMessage> = Vec::new();
        let is_full = |messages: &Vec<BrowsedMessage>| {
            let is_cut = |m: &BrowsedMessage| (m.message.body_len() as u64) < m.body_len;
            messages.len() == request.messages as usize || messages.last().is_some_and(is_cut)
        };
        while !is_full(&messages)
            && let Some(browsed) = listed.next()
        {
            messages.push(cut(browsed));
        }
        BrowsePage {
            messages,
            next: listed.next().map(|browsed| browsed.at),
            last_number: Some(self.last_number),
        }
    }
}

fn key(at: &BrowsePosition) -> (std::cmp::Reverse<u8>, u64) {
    (std::cmp::Reverse(at.level), at.number)
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
    /// Answers the oldest request for a page. Returns false if there is none.
    pub fn answer_page(&mut self) -> bool {
        let Some((token, queue, request)) = self.held_pages.pop_front() else {
            return false;
        };
        let page = match self.page_error {
            Some(error) => Err(error.to_owned()),
            None => {
                let browsed = self.browsed.entry(queue).or_default();
                Ok(BrowsedPage {
                    owner: NodeId(1),
                    incarnation: Incarnation(browsed.incarnation),
                    page: browsed.page(&request),
                })
            }
        };
        let answer = Box::new(BrowseAnswer { token, page });
        self.notices
            .push_back(QueueNotification::Browsed { queue, answer }.into());
        true
    }

    pub fn new() -> FakeBroker {
        let mut broker = FakeBroker {
            protocol: "amqp091",
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
            counter_reports: 0,
            is_throttled: false,
            vhost_limits_channels: false,
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
            browsed: BTreeMap::new(),
            page_requests: Vec::new(),
            page_error: None,
            hold_pages: false,
            held_pages: VecDeque::new(),
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
                                reason: CancelReason::ByQueue,
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
        self.settle_oldest_publishes(self.unconfirmed.len());
    }

    /// Confirms this many of the publishes collected while `silent`.
    pub fn settle_oldest_publishes(&mut self, count: usize) {
        for (queue, tag) in self.unconfirmed.drain(..count) {
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
                filter: None,
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
                let credit = match spec.flow_mode {
                    FlowMode::Prefetch => u64::MAX,
                    FlowMode::Credit => 0,
                };
                let c = FakeConsumer {
                    spec,
                    cancelled: false,
                    next: 0,
                    received: 0,
                    credit,
                    out: BTreeMap::new(),
                };
                q.consumers.insert(consumer.0, c);
                Some(QueueReply::Consuming)
            }
            RequestBody::Cancel { consumer } => {
                q.consumers.get_mut(&consumer.0)?.cancelled = true;
                None
            }
            RequestBody::Credit {
                consumer,
                up_to,
                drain,
            } => {
                q.consumers.get_mut(&consumer.0)?.credit = up_to;
                // The answer follows the deliveries.
                self.push(queue);
                let q = self.queues.get_mut(&queue)?;
                let available = q.ready.len() as u64;
                let c = q.consumers.get_mut(&consumer.0)?;
                if drain {
                    c.credit = c.next;
                }
                Some(QueueReply::Credited {
                    last: c.next,
                    available,
                    drained: drain,
                })
            }
            RequestBody::CreditOneWay { consumer, up_to } => {
                q.consumers.get_mut(&consumer.0)?.credit = up_to;
                None
            }
            RequestBody::CancelAndRequeue { consumer } => {
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
                let unsettled = |(from, to)| c.out.range(from..=to).map(|(id, _)| *id);
                let settled: Vec<u64> = ids.into_iter().flat_map(unsettled).collect();
                for id in settled.into_iter().rev() {
                    match (c.out.remove(&id), outcome) {
                        (
                            Some((m, n)),
                            SettlementOutcome::Requeue | SettlementOutcome::Released,
                        ) => q.ready.push_front((m, n + 1)),
                        (Some((m, n)), SettlementOutcome::Unseen) => q.ready.push_front((m, n)),
                        _ => {}
                    }
                }
                None
            }
            RequestBody::Modify { consumer, ids, .. } => {
                let c = q.consumers.get_mut(&consumer.0)?;
                let unsettled = |(from, to)| c.out.range(from..=to).map(|(id, _)| *id);
                let settled: Vec<u64> = ids.into_iter().flat_map(unsettled).collect();
                for id in settled.into_iter().rev() {
                    if let Some((m, n)) = c.out.remove(&id) {
                        q.ready.push_front((m, n + 1));
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
            | RequestBody::TakeOver(_)
            | RequestBody::GetAt(_)
            | RequestBody::PublishBatch(_)
            | RequestBody::Stream(_)
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
            acquired: attempts,
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
    fn publish_batch(
        &mut self,
        _: QueueId,
        _: PublishTag,
        _: queue::cursor::StreamBatch,
    ) -> FlowState {
        unreachable!("no client of this protocol publishes batches")
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
    // Tests send the notification of a deleted queue to every session.
    fn watch(&mut self, _: QueueId) {}
    fn browse(&mut self, queue: QueueId, request: &BrowseRequest, _: Option<NodeId>) -> u64 {
        self.page_requests.push((queue, *request));
        let token = self.page_requests.len() as u64;
        self.held_pages.push_back((token, queue, *request));
        if !self.hold_pages {
            self.answer_page();
        }
        token
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
    fn is_throttled(&self) -> bool {
        self.is_throttled
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
        assert_eq!(protocol, self.protocol);
        self.message_counters.add(message_counters);
        self.counter_reports += 1;
    }
    fn next_event(&mut self) -> Option<SessionEvent> {
        self.notices.pop_front()
    }
    fn open_channel(&mut self) -> Result<(), session::ChannelLimit> {
        match self.channels_left.checked_sub(1) {
            Some(left) => self.channels_left = left,
            None => {
                return Err(session::ChannelLimit {
                    of_vhost: self.vhost_limits_channels,
                    limit: 2,
                });
            }
        }
        Ok(())
    }
    fn close_channel(&mut self) {
        self.channels_left += 1;
    }
    fn note_login(&mut self, attempt: &session::LoginAttempt<'_>) {
        assert_eq!(attempt.protocol, self.protocol);
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
        self.verdict.unwrap_or(right)
    }
}
