//! Tests of the API over real HTTP on loopback, with a fake node that holds a tree and statistics.

mod api;
mod authorisation;
mod browse;
mod clients;
mod documents;
mod export;
mod messages;
mod operations;
mod rates;
mod replicas;
mod retained_export;
mod rights;
mod slow;
mod stream_export;
mod streams;
mod ui;
mod words;

use crate::{Config, LiveSettings, Node, prometheus, router, serve};
use auth::HashAlgorithm;
use base64::Engine as _;
use control::{
    BrowseFacts, BrowseFilter, ConnectionFacts, ConsumerFacts, ControlRequest, Counters,
    ForgetProgress, ImportOutcome, MaintenanceProgress, MemberChange, MemberOutcome,
    MembershipRequest, MoveOutcome, MoveRequest, MoveTarget, NodeFacts, PublishResult, QueueFacts,
    Readiness, RecoveryStep, ReplicaFacts, ReplicaStatus, VotingState,
};
use env::{NodeId, WallTime};
use message::Message;
use metadata::features::{Version, VersionFacts};
use metadata::{Change, ChangeError, NodeRecord, QueueId, QueueType, Tree, UserRecord};
use queue::cursor::{StreamChunks, StreamReply, StreamRequest};
use queue::{
    BrowsePage, BrowsePosition, BrowsedMessage, BrowsedState, Delivery, Losses, QueueReply,
    QueueStats, RequestBody, SettlementOutcome,
};
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use stream_log::Chunk;

/// State of the fake node. Tests change it under the lock.
pub(crate) struct FakeNode {
    pub(crate) tree: Tree,
    index: u64,
    pub(crate) stats: BTreeMap<QueueId, QueueStats>,
    pub(crate) ready: BTreeMap<QueueId, queue::ReadyDetails>,
    pub(crate) delayed: BTreeMap<QueueId, queue::DelayedDetails>,
    pub(crate) heads: BTreeMap<QueueId, queue::HeadMessage>,
    pub(crate) critical: Vec<QueueId>,
    pub(crate) readiness: Readiness,
    pub(crate) progress: MaintenanceProgress,
    pub(crate) connections: Vec<ConnectionFacts>,
    pub(crate) consumers: Vec<ConsumerFacts>,
    /// Replicas of streams.
    pub(crate) streams: Vec<control::StreamReplicaFacts>,
    pub(crate) counters: Counters,
    /// Counters of other nodes.
    pub(crate) other_counters: Vec<(NodeId, Counters)>,
    /// Messages per queue, in order.
    pub(crate) messages: BTreeMap<QueueId, Vec<Message>>,
    /// Unacknowledged messages, by queue and position.
    pub(crate) unacknowledged: BTreeSet<(QueueId, u64)>,
    /// Delayed messages by queue and position, and when they are due.
    pub(crate) due: BTreeMap<(QueueId, u64), u64>,
    /// No queue has a leader that answers.
    pub(crate) is_leaderless: bool,
    /// Chunks of streams, in order.
    pub(crate) chunks: BTreeMap<QueueId, Vec<Chunk>>,
    pub(crate) requests: Vec<RequestBody>,
    /// Requests are dropped, as by a stopping node.
    pub(crate) stopping: bool,
    /// Requests are held unanswered, as by a shard that hangs.
    pub(crate) held_requests: Option<Vec<ControlRequest>>,
    /// All nodes except the first are down.
    pub(crate) is_alone: bool,
    pub(crate) disk_alarm: bool,
    /// Nodes that support the additional feature flag `later`.
    pub(crate) newer_nodes: Vec<NodeId>,
    /// Number of queues on a node that is to be forgotten.
    pub(crate) queues_to_move: u32,
    /// Responses to requests for a recovery, in reverse order.
    pub(crate) recovery: Vec<Result<RecoveryStep, ChangeError>>,
    /// The nodes that each of these requests named.
    pub(crate) named_lost: Vec<Vec<NodeId>>,
    /// Number of requests for queue statistics and for connections.
    pub(crate) queue_requests: u32,
    pub(crate) connection_requests: u32,
    /// Traffic counts, and the number of names in each request for them.
    pub(crate) traffic: control::TrafficFacts,
    pub(crate) requested_names: Vec<usize>,
}

pub(crate) fn node(id: u64) -> NodeRecord {
    NodeRecord {
        id: NodeId(id),
        name: format!("c-{}", id - 1).into(),
        address: format!("c-{}:25672", id - 1).into(),
        voter: true,
        maintenance: false,
    }
}

pub(crate) fn user(name: &str, password: &str, tags: &[&str]) -> UserRecord {
    UserRecord {
        name: name.into(),
        password: auth::hash_with(HashAlgorithm::Sha256, password.as_bytes(), b"salt").ok(),
        tags: tags.iter().map(|t| (*t).into()).collect(),
        limits: Vec::new(),
    }
}

impl FakeNode {
    pub(crate) fn apply(
        &mut self,
        change: Change,
    ) -> Result<metadata::ChangeResult, metadata::ChangeError> {
        self.index += 1;
        let decoded = Change::decode(&change.encode()).unwrap();
        self.tree.apply(self.index, &decoded)
    }

    /// Forms a cluster whose feature flags are disabled, as after an upgrade.
    pub(crate) fn form_cluster(&mut self) {
        (self.tree, self.index) = (Tree::default(), 0);
        self.apply(Change::Bootstrap {
            cluster: "test".into(),
            nodes: vec![node(1), node(2), node(3)],
            user: user("guest", "guest", &["administrator"]),
        })
        .unwrap();
    }

    /// Declares a classic queue on the first node.
    pub(crate) fn declare(&mut self, name: &str) {
        let result = self.apply(Change::DeclareQueue(metadata::QueueRecord {
            id: QueueId(0),
            vhost: "/".into(),
            name: name.into(),
            kind: QueueType::Classic,
            durable: true,
            auto_delete: false,
            exclusive: None,
            arguments: message::Table::default(),
            members: vec![NodeId(1)],
            declared_by: "guest".into(),
        }));
        if let Ok(metadata::ChangeResult::Queue { record, .. }) = result {
            self.stats.insert(record.id, QueueStats::default());
        }
    }

    fn facts(&self, only: Option<QueueId>) -> Vec<QueueFacts> {
        let queues = self.tree.all_queues();
        let queues = queues.filter(|q| only.is_none_or(|id| id == q.id));
        queues
            .map(|q| QueueFacts {
                id: q.id,
                leader: self.stats.get(&q.id).and(q.members.first().copied()),
                members: q.members.clone(),
                online: match q.kind.is_replicated() {
                    true => q.members.clone(),
                    false => Vec::new(),
                },
                stats: self.stats.get(&q.id).cloned(),
                counters: queue::QueueCounters::default(),
                ready: self.ready.get(&q.id).cloned(),
                delayed: self.delayed.get(&q.id).copied(),
                head: self.heads.get(&q.id).copied(),
            })
            .collect()
    }

    fn counters(&self) -> Vec<(NodeId, Counters)> {
        let mut own = self.counters.clone();
        self.stats.values().for_each(|s| own.queues.add(s));
        own.connections = self.connections.len() as u64;
        let channels = self.connections.iter().map(|c| c.channels.len() as u64);
        own.channels = channels.sum();
        let mut all = vec![(NodeId(1), own)];
        all.extend(self.other_counters.iter().cloned());
        all
    }

    fn stream_replicas(
        &self,
        of: control::StreamFilter,
        everywhere: bool,
    ) -> Vec<control::StreamReplicaFacts> {
        let mut found = self.streams.clone();
        found.retain(|r| {
            (everywhere || r.node == NodeId(1)) && of.queue.is_none_or(|id| id == r.queue)
        });
        for replica in &mut found {
            if !of.tracking {
                replica.tracking = None;
            }
            if !of.readers {
                replica.readers.clear();
            }
        }
        found
    }

    fn nodes(&self) -> Vec<NodeFacts> {
        let nodes = self.tree.nodes();
        nodes
            .map(|n| NodeFacts {
                id: n.id,
                name: n.name.to_string(),
                running: !self.is_alone || n.id == NodeId(1),
                maintenance: n.maintenance,
                voter: n.voter,
                address: n.address.to_string(),
                zone: self.tree.zone(n.id).to_owned(),
                client_addresses: self.tree.client_addresses(n.id).to_vec(),
                uptime_s: (n.id == NodeId(1)).then_some(5),
                memory_alarm: false,
                disk_alarm: self.disk_alarm && n.id == NodeId(2),
                version: match self.is_alone && n.id != NodeId(1) {
                    true => None,
                    false => Some(self.version_of(n.id)),
                },
            })
            .collect()
    }

    fn version_of(&self, node: NodeId) -> VersionFacts {
        let mut facts = Version::default().facts();
        if self.newer_nodes.contains(&node) {
            facts.features.push("later".into());
        }
        facts
    }

    fn publish(
        &mut self,
        vhost: &str,
        build: Box<dyn FnOnce(WallTime) -> Result<Message, String> + Send>,
    ) -> Result<PublishResult, metadata::ChangeError> {
        let message = build(WallTime(1)).map_err(metadata::ChangeError::Invalid)?;
        let keys: Vec<&str> = message.routing_keys().collect();
        let mut routes = Vec::new();
        let headers = message::Table::default;
        self.tree
            .route(vhost, message.exchange(), &keys, &headers, &mut routes);
        drop(keys);
        for queue in &routes {
            let messages = self.messages.entry(*queue).or_default();
            messages.push(message.clone());
        }
        Ok(PublishResult {
            routed: !routes.is_empty(),
            taken: true,
        })
    }

    fn get(&mut self, queue: QueueId, count: u32, settle: SettlementOutcome) -> Vec<Delivery> {
        let messages = self.messages.entry(queue).or_default();
        let count = messages.len().min(count as usize);
        let delivered: Vec<Message> = match settle {
            SettlementOutcome::Requeue
            | SettlementOutcome::Released
            | SettlementOutcome::Unseen => messages[..count].to_vec(),
            SettlementOutcome::Accepted | SettlementOutcome::Rejected => {
                messages.drain(..count).collect()
            }
        };
        let delivery = |(at, message): (usize, Message)| Delivery {
            id: at as u64 + 1,
            redelivered: false,
            attempts: None,
            acquired: 0,
            left: 0,
            message,
            annotations: None,
        };
        delivered.into_iter().enumerate().map(delivery).collect()
    }

    /// The position of a message is its index plus one.
    fn browse(&self, of: &BrowseFilter) -> BrowsePage {
        let queue = QueueId(of.queue);
        let request = of.request(0);
        let all = self.messages.get(&queue).map_or(&[][..], Vec::as_slice);
        let from = request
            .from
            .map_or(0, |from| from.number)
            .max(request.least);
        let numbered = all.iter().zip(1u64..);
        let state = |number: u64| match () {
            () if self.unacknowledged.contains(&(queue, number)) => BrowsedState::Unacknowledged,
            () if self.due.contains_key(&(queue, number)) => BrowsedState::Delayed,
            () => BrowsedState::Ready,
        };
        let mut listed = numbered.filter(|(_, number)| {
            let is_wanted = request.state.is_none_or(|wanted| wanted == state(*number));
            (from..=request.most).contains(number) && is_wanted
        });
        let browsed = |(message, number): (&Message, u64)| BrowsedMessage {
            at: BrowsePosition {
                number,
                ..BrowsePosition::default()
            },
            state: state(number),
            due_at: self.due.get(&(queue, number)).copied(),
            redelivered: false,
            failed: Some(0),
            acquired: 0,
            body_len: message.body_len() as u64,
            body_start: request.body_start,
            message: message
                .with_body_part(request.body_start as usize, request.body_bytes as usize)
                .unwrap(),
        };
        let messages = listed.by_ref().take(request.messages as usize);
        let messages = messages.map(browsed).collect();
        let next = listed.next().map(|(_, number)| BrowsePosition {
            number,
            ..BrowsePosition::default()
        });
        BrowsePage {
            messages,
            next,
            last_number: None,
        }
    }

    fn move_messages(&mut self, request: MoveRequest) -> MoveOutcome {
        let mut outcome = MoveOutcome::default();
        let vhost = self.tree.queue_by_id(request.queue).unwrap().vhost.clone();
        let mut left = Vec::new();
        for listed in &request.messages {
            let index = listed.at.number as usize - 1;
            let message = self.messages[&request.queue][index].clone();
            let published = match &request.target {
                MoveTarget::Nothing => Ok(PublishResult {
                    routed: true,
                    taken: true,
                }),
                MoveTarget::Exchange {
                    exchange,
                    routing_key,
                } => {
                    let key = routing_key.as_deref();
                    let keys = key.as_ref().map(std::slice::from_ref);
                    let message = message.republished(exchange, keys).unwrap();
                    self.publish(&vhost, Box::new(move |_| Ok(message)))
                }
                MoveTarget::FirstDeath => {
                    let queue = message.deaths().unwrap().first().unwrap().queue.clone();
                    let message = message.republished("", Some(&[&queue])).unwrap();
                    self.publish(&vhost, Box::new(move |_| Ok(message)))
                }
            };
            match published.unwrap().routed {
                true => left.push(index),
                false => outcome.unroutable += 1,
            }
        }
        outcome.moved = left.len() as u64;
        let messages = self.messages.get_mut(&request.queue).unwrap();
        for index in left.into_iter().rev() {
            messages.remove(index);
        }
        outcome
    }

    fn queue_request(&mut self, queue: QueueId, body: RequestBody) -> QueueReply {
        self.requests.push(body.clone());
        if let RequestBody::Stream(request) = &body
            && let Some(reply) = self.stream_request(queue, request)
        {
            return reply;
        }
        let stats = self.stats.entry(queue).or_default();
        match body {
            RequestBody::Delete { if_empty: true, .. } if stats.ready > 0 => QueueReply::Refused {
                code: 406,
                text: "queue 'q' in vhost '/' is not empty".into(),
            },
            _ => {
                let messages = stats.ready;
                stats.ready = 0;
                QueueReply::Count {
                    messages,
                    consumers: stats.consumers,
                }
            }
        }
    }

    /// Answers have at most two chunks.
    fn stream_request(&mut self, queue: QueueId, request: &StreamRequest) -> Option<QueueReply> {
        let chunks = self.chunks.get_mut(&queue)?;
        let end_of = |chunks: &[Chunk]| chunks.last().map_or(0, |c| c.header().next_offset());
        let reply = match request {
            StreamRequest::ResolveOffset { .. } => StreamReply::Offset(Some(end_of(chunks))),
            StreamRequest::ReadChunks { from, end } => {
                let is_within = |chunk: &&Chunk| {
                    let header = chunk.header();
                    header.first_offset >= *from && header.next_offset() <= *end
                };
                let read: Vec<&Chunk> = chunks.iter().filter(is_within).take(2).collect();
                StreamReply::Chunks(StreamChunks {
                    next: read
                        .last()
                        .map_or(*from, |last| last.header().next_offset()),
                    chunks: read
                        .into_iter()
                        .map(|chunk| chunk.bytes().clone())
                        .collect(),
                })
            }
            StreamRequest::AppendChunks { at, .. } if *at != end_of(chunks) => {
                return Some(QueueReply::Refused {
                    code: 409,
                    text: format!("it ends at offset {} instead of {at}", end_of(chunks)),
                });
            }
            StreamRequest::AppendChunks { chunks: new, .. } => {
                for bytes in new {
                    let chunk = Chunk::decode(bytes.clone()).unwrap();
                    let (at, time) = (end_of(chunks), chunk.header().timestamp);
                    chunks.extend(chunk.renumbered(at, 1, time));
                }
                StreamReply::Offset(Some(end_of(chunks)))
            }
            _ => return None,
        };
        Some(QueueReply::Stream(reply))
    }

    /// Applies membership changes at once, except for queues whose name starts with `stuck`.
    fn membership(&mut self, request: MembershipRequest) {
        match request {
            MembershipRequest::Change {
                queues,
                change,
                reply,
            } => {
                let each = queues.into_iter();
                reply(each.map(|q| self.change_members(q, change)).collect());
            }
            MembershipRequest::Replicas { queue, reply } => {
                let record = self.tree.queue_by_id(queue).unwrap();
                let facts = record.members.iter().zip(0u64..).map(|(node, at)| {
                    let replica = (at < 2).then_some(ReplicaStatus {
                        is_leader: at == 0,
                        term: 4,
                        last_index: 9,
                        written: 9,
                        applied: 8,
                        commit: 8,
                        checkpoint: 1,
                        is_candidate: false,
                    });
                    let vote = if at < 2 {
                        VotingState::Voter
                    } else {
                        VotingState::Promotable
                    };
                    ReplicaFacts {
                        node: *node,
                        vote,
                        replica,
                    }
                });
                reply(facts.collect());
            }
            MembershipRequest::Forget { node, reply } => reply(match self.queues_to_move {
                _ if !self.is_alone => {
                    let text = format!("node {} is running", node.0);
                    Err(ChangeError::PreconditionFailed(text))
                }
                0 => {
                    let result = self.apply(Change::ForgetNode { id: node });
                    result.map(|_| ForgetProgress::Forgotten)
                }
                queues => Ok(ForgetProgress::Moving { queues }),
            }),
            MembershipRequest::RecoverMajority { lost, reply } => {
                self.named_lost.push(lost);
                let nothing = RecoveryStep::Queues {
                    outcomes: Vec::new(),
                    left: 0,
                };
                reply(self.recovery.pop().unwrap_or(Ok(nothing)));
            }
        }
    }

    fn change_members(&mut self, queue: QueueId, change: MemberChange) -> MemberOutcome {
        let record = self.tree.queue_by_id(queue).unwrap().clone();
        let from = record.members.clone();
        let mut to = from.clone();
        match change {
            MemberChange::Add(node) => to.push(node),
            MemberChange::Remove(node) | MemberChange::Evacuate(node) => to.retain(|m| *m != node),
            MemberChange::Replace { old, new } => {
                to.retain(|m| *m != old);
                to.push(new);
            }
        }
        let result = if record.name.starts_with("stuck") {
            let text = format!("queue '{}' would lose its majority", record.name);
            Err(metadata::ChangeError::PreconditionFailed(text))
        } else {
            let change = Change::ReplaceQueueMembers {
                id: queue,
                from,
                to: to.clone(),
            };
            self.apply(change).map(|_| to)
        };
        MemberOutcome { queue, result }
    }

    fn serve(&mut self, request: ControlRequest) {
        if self.stopping {
            return;
        }
        if let Some(held_requests) = &mut self.held_requests {
            held_requests.push(request);
            return;
        }
        match request {
            ControlRequest::Read(look) => look(&self.tree),
            ControlRequest::Walk(mut walk) => while !walk.step(&self.tree, 2).done {},
            ControlRequest::Change { change, reply } => {
                let result = self.apply(change);
                if let Ok(metadata::ChangeResult::Queue {
                    record,
                    created: true,
                }) = &result
                {
                    self.stats.insert(record.id, QueueStats::default());
                }
                reply(result);
            }
            ControlRequest::PlaceQueue { record, reply } => {
                let replicas = self.tree.placement_request(&record).initial;
                let all = match (record.kind.is_replicated(), replicas) {
                    (false, _) => 1,
                    (true, 0) => 3,
                    (true, n) => u64::from(n),
                };
                reply((1..=all).map(NodeId).collect());
            }
            ControlRequest::Queues { only, reply } => {
                self.queue_requests += 1;
                reply(self.facts(only));
            }
            ControlRequest::OwnQueues { reply } => {
                let own = |f: &QueueFacts| f.leader == Some(NodeId(1));
                reply(self.facts(None).into_iter().filter(own).collect());
            }
            ControlRequest::Queue { queue, body, reply } => {
                let answer = self.queue_request(queue, body);
                reply(Ok(answer));
            }
            ControlRequest::Nodes { reply } => reply(self.nodes()),
            ControlRequest::QuorumCritical { reply } => reply(self.critical.clone()),
            ControlRequest::Connections { reply } => {
                self.connection_requests += 1;
                reply(self.connections.clone());
            }
            ControlRequest::Consumers { reply } => reply(self.consumers.clone()),
            ControlRequest::Counters { reply, .. } => reply(self.counters()),
            ControlRequest::Streams {
                of,
                everywhere,
                reply,
            } => reply(self.stream_replicas(of, everywhere)),
            ControlRequest::Traffic { of, reply } => {
                let requested_name_count = of.vhosts.len() + of.exchanges.len();
                self.requested_names.push(requested_name_count);
                let mut facts = self.traffic.clone();
                facts.vhosts.retain(|name, _| of.vhosts.contains(name));
                let is_requested = |vhost: &String, name: &String| {
                    let pair = (vhost.clone(), name.clone());
                    of.exchanges.contains(&pair)
                };
                for (vhost, exchanges) in &mut facts.exchanges {
                    exchanges.retain(|name, _| is_requested(vhost, name));
                }
                reply(facts);
            }
            ControlRequest::Publish {
                vhost,
                build,
                reply,
                ..
            } => reply(self.publish(&vhost, build)),
            ControlRequest::Get {
                queue,
                count,
                settle,
                reply,
                ..
            } => reply(Ok(self.get(queue, count, settle))),
            ControlRequest::Browse { of, reply } => {
                let page = BrowseFacts::new(Ok(self.browse(&of)));
                reply((!self.is_leaderless).then_some(page));
            }
            ControlRequest::Move { request, reply } => reply(Ok(self.move_messages(request))),
            ControlRequest::Import { request, reply } => {
                let stored = request.messages.len() as u64;
                let queue = self.messages.entry(request.queue).or_default();
                queue.extend(request.messages);
                reply(Ok(ImportOutcome {
                    stored,
                    ..ImportOutcome::default()
                }));
            }
            ControlRequest::CloseConnection { name, reply, .. } => {
                let before = self.connections.len();
                self.connections.retain(|c| c.name != name);
                reply(self.connections.len() < before);
            }
            ControlRequest::Maintenance { on, reply } => {
                self.progress.on = on;
                reply(self.progress);
            }
            ControlRequest::Readiness { reply } => reply(self.readiness.clone()),
            ControlRequest::Membership(request) => self.membership(request),
            ControlRequest::RebalanceQueues { reply } => reply(3),
            ControlRequest::StateClientAddresses { .. } => {}
        }
    }
}

/// A running server. Dropping it stops it.
pub(crate) struct Server {
    pub(crate) fake: Arc<Mutex<FakeNode>>,
    pub(crate) address: SocketAddr,
    pub(crate) metrics: SocketAddr,
    agent: ureq::Agent,
    stop: Option<tokio::sync::watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let thread_result = thread.join();
            assert!(thread_result.is_ok() || std::thread::panicking());
        }
    }
}

/// A response: status, body (null if empty) and the `WWW-Authenticate` header.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: u16,
    pub(crate) body: Json,
    pub(crate) challenge: Option<String>,
}

impl TestResponse {
    /// The reason as text, whatever its JSON type.
    pub(crate) fn reason_text(&self) -> String {
        let reason = &self.body["reason"];
        reason
            .as_str()
            .map_or_else(|| reason.to_string(), str::to_owned)
    }

    pub(crate) fn reason(&self) -> &str {
        self.body["reason"].as_str().unwrap_or("")
    }
}

fn fake() -> FakeNode {
    let mut fake = FakeNode {
        chunks: BTreeMap::new(),
        tree: Tree::default(),
        index: 0,
        stats: BTreeMap::new(),
        ready: BTreeMap::new(),
        delayed: BTreeMap::new(),
        heads: BTreeMap::new(),
        critical: Vec::new(),
        readiness: Readiness::Ready,
        progress: MaintenanceProgress {
            on: false,
            leaders_left: 0,
            connections_left: 0,
        },
        connections: Vec::new(),
        consumers: Vec::new(),
        streams: Vec::new(),
        counters: Counters::default(),
        other_counters: Vec::new(),
        messages: BTreeMap::new(),
        unacknowledged: BTreeSet::new(),
        due: BTreeMap::new(),
        is_leaderless: false,
        requests: Vec::new(),
        stopping: false,
        held_requests: None,
        is_alone: false,
        disk_alarm: false,
        newer_nodes: Vec::new(),
        queues_to_move: 0,
        recovery: Vec::new(),
        named_lost: Vec::new(),
        queue_requests: 0,
        connection_requests: 0,
        traffic: control::TrafficFacts::default(),
        requested_names: Vec::new(),
    };
    fake.form_cluster();
    for feature in metadata::features::KNOWN {
        let name = feature.name.into();
        fake.apply(Change::EnableFeature { name }).unwrap();
    }
    fake
}

impl Server {
    pub(crate) fn start() -> Server {
        Server::start_with(|_| {})
    }

    pub(crate) fn start_with(change: impl FnOnce(&mut Config)) -> Server {
        let mut settings = Config::new(NodeId(1), "c-0");
        settings.live = LiveSettings::new(Vec::new(), Some(1_800_000));
        settings.cluster_name = "test".to_owned();
        settings.listeners = vec![("amqp".into(), 5672)];
        change(&mut settings);
        let fake = Arc::new(Mutex::new(fake()));
        let shared = fake.clone();
        let node: Node = Arc::new(move |request| shared.lock().unwrap().serve(request));
        let bind = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (http, metrics) = (bind(), bind());
        let (address, metrics_address) =
            (http.local_addr().unwrap(), metrics.local_addr().unwrap());
        let (stop, stopped) = tokio::sync::watch::channel(());
        let thread = std::thread::spawn(move || run(node, settings, http, metrics, stopped));
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        Server {
            fake,
            address,
            metrics: metrics_address,
            agent: config.build().new_agent(),
            stop: Some(stop),
            thread: Some(thread),
        }
    }

    /// Sends a request as `guest`.
    pub(crate) fn ask(&self, method: &str, path: &str, body: Option<Json>) -> TestResponse {
        self.ask_as(Some(("guest", "guest")), method, path, body)
    }

    pub(crate) fn ask_as(
        &self,
        who: Option<(&str, &str)>,
        method: &str,
        path: &str,
        body: Option<Json>,
    ) -> TestResponse {
        let body = body.map_or_else(Vec::new, |b| b.to_string().into_bytes());
        self.send(who, method, path, body)
    }

    pub(crate) fn send(
        &self,
        who: Option<(&str, &str)>,
        method: &str,
        path: &str,
        body: Vec<u8>,
    ) -> TestResponse {
        let url = format!("http://{}{path}", self.address);
        let mut request = ureq::http::Request::builder().method(method).uri(url);
        if let Some((name, password)) = who {
            let pair =
                base64::engine::general_purpose::STANDARD.encode(format!("{name}:{password}"));
            request = request.header("Authorization", format!("Basic {pair}"));
        }
        let mut response = self.agent.run(request.body(body).unwrap()).unwrap();
        let text = response.body_mut().read_to_string().unwrap();
        let challenge = response.headers().get("www-authenticate");
        TestResponse {
            status: response.status().as_u16(),
            challenge: challenge.map(|c| c.to_str().unwrap().to_owned()),
            body: serde_json::from_str(&text).unwrap_or(Json::Null),
        }
    }

    /// The cursor of the next page, if any, and the body of an export.
    pub(crate) fn export(&self, path: &str) -> (Option<String>, Vec<u8>) {
        let url = format!("http://{}{path}", self.address);
        let pair = base64::engine::general_purpose::STANDARD.encode("guest:guest");
        let request = self.agent.get(url);
        let request = request.header("Authorization", format!("Basic {pair}"));
        let mut response = request.call().unwrap();
        assert_eq!(response.status(), 200);
        let next = response.headers().get("x-next-cursor");
        let next = next.map(|next| next.to_str().unwrap().to_owned());
        let body = response.body_mut().with_config().limit(1 << 30);
        (next, body.read_to_vec().unwrap())
    }

    pub(crate) fn get(&self, path: &str) -> Json {
        let response = self.ask("GET", path, None);
        assert_eq!(response.status, 200, "{path}: {response:?}");
        response.body
    }

    pub(crate) fn put(&self, path: &str, body: Json) -> u16 {
        self.ask("PUT", path, Some(body)).status
    }

    pub(crate) fn delete(&self, path: &str) -> u16 {
        self.ask("DELETE", path, None).status
    }

    /// Adds a user with all permissions in `/`, bypassing the API to avoid the expensive hash.
    pub(crate) fn add_user(&self, name: &str, tags: &[&str]) {
        let mut fake = self.fake.lock().unwrap();
        fake.apply(Change::PutUser(user(name, "secret", tags)))
            .unwrap();
        fake.apply(Change::PutPermission(metadata::PermissionRecord {
            user: name.into(),
            vhost: "/".into(),
            configure: ".*".into(),
            write: ".*".into(),
            read: ".*".into(),
        }))
        .unwrap();
    }

    pub(crate) fn quorum(&self, name: &str) {
        let body = json!({"durable": true, "arguments": {"x-queue-type": "quorum"}});
        assert_eq!(self.put(&format!("/api/queues/%2F/{name}"), body), 201);
    }

    /// Declares a stream, which the first node leads and which stores an offset for `app`.
    pub(crate) fn stream(&self, name: &str) {
        let body = json!({"durable": true, "arguments": {"x-queue-type": "stream"}});
        assert_eq!(self.put(&format!("/api/queues/%2F/{name}"), body), 201);
        let mut fake = self.fake.lock().unwrap();
        let queue = fake.tree.queue("/", name).unwrap().id.0;
        fake.streams.push(control::StreamReplicaFacts {
            queue,
            node: NodeId(1),
            leads: true,
            tracking: Some(control::StreamTrackingFacts {
                offsets: BTreeMap::from([("app".into(), 60)]),
                writers: BTreeMap::from([("producer".into(), 40)]),
            }),
            ..control::StreamReplicaFacts::default()
        });
    }

    pub(crate) fn set_stats(&self, name: &str, ready: u64, unacknowledged: u64) {
        let mut fake = self.fake.lock().unwrap();
        let id = fake.tree.queue("/", name).unwrap().id;
        let stats = QueueStats {
            ready,
            unacknowledged,
            consumers: 1,
            bytes: 100 * ready,
            unacknowledged_bytes: 50 * unacknowledged,
            ..QueueStats::default()
        };
        fake.stats.insert(id, stats);
    }

    pub(crate) fn set_lost_counts(&self, name: &str, messages: u64, segments: u64) {
        let mut fake = self.fake.lock().unwrap();
        let id = fake.tree.queue("/", name).unwrap().id;
        fake.stats.entry(id).or_default().lost = Losses { messages, segments };
    }
}

fn run(
    node: Node,
    config: Config,
    http: std::net::TcpListener,
    metrics: std::net::TcpListener,
    stopped: tokio::sync::watch::Receiver<()>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let wait = |mut stopped: tokio::sync::watch::Receiver<()>| async move {
        // An error means that the sender was dropped, which is the stop signal.
        let _ = stopped.changed().await;
    };
    runtime.block_on(async {
        let api = router(node.clone(), config.clone()).unwrap();
        let prometheus = prometheus(node, config.clone()).unwrap();
        let (gate, metrics_gate) = (config.api_gate(), config.metrics_gate());
        let (a, b) = tokio::join!(
            serve((http, None), api, (&config, &gate), wait(stopped.clone())),
            serve(
                (metrics, None),
                prometheus,
                (&config, &metrics_gate),
                wait(stopped.clone())
            ),
        );
        a.unwrap();
        b.unwrap();
    });
}
