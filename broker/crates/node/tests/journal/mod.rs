//! A shard driver that journals lines and gossips them, and nodes that run it.

use bytes::{Bytes, BytesMut};
use consensus::{JobId, JobResult, WalToken};
use control::{ControlRequest, Readiness};
use env::{Incarnation, NodeId, Time, WallTime};
use metadata::NodeRecord;
use node::config::{ConfigSources, load};
use node::{NodeError, NodeParts, Registration, ShardMaterial, ThreadNotification};
use session::{ConnectionInfo, Outbox, Protocol, Session, SessionState};
use shard::{
    ConnectionKey, Effect, Frame, LocalMessage, RecoveredShard, Route, ShardConfig, ShardDriver,
};
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;
use wal::{Entry, GroupId, Record, RecordBody};

/// Number of polls of a condition and the pause between them; sufficient for a loaded machine.
const TRIES: usize = 3000;
const PAUSE: Duration = Duration::from_millis(10);

/// Number of polls that take some seconds, for conditions that must not occur.
pub const SOME_SECONDS: usize = 200;

/// The protocol of the journal. Its driver reads lines itself.
#[derive(Debug)]
struct Lines;

impl Protocol for Lines {
    fn listener_names(&self) -> [&'static str; 2] {
        ["amqp", "amqp/ssl"]
    }

    fn session(&self, _: &ConnectionInfo, _: Time) -> Box<dyn Session> {
        unreachable!("the journal has no sessions")
    }
}

#[derive(Default)]
struct Line {
    outbox: Outbox,
    closing: bool,
}

/// The group of this shard's journal. Groups are assigned to shards by number, so it is found by
/// search.
fn own_group(config: &ShardConfig) -> GroupId {
    let own = (1..).find(|g| shard::shard_of(*g, config.shards) == config.index);
    GroupId(own.unwrap_or(1))
}

struct Journal {
    config: ShardConfig,
    group: GroupId,
    next: u64,
    lines: BTreeMap<usize, Line>,
    waiting: VecDeque<(WalToken, usize)>,
    up: BTreeMap<NodeId, Incarnation>,
    joined: Vec<String>,
    heard: Vec<String>,
    alarms: Vec<&'static str>,
    effects: Vec<Effect>,
    /// The first effect, which opens the listeners, was returned.
    polled: bool,
    stopping: bool,
}

impl Journal {
    fn new(config: ShardConfig, recovered: &RecoveredShard) -> Journal {
        let group = own_group(&config);
        let next = recovered
            .groups
            .get(&group)
            .and_then(|g| g.entries.last())
            .map_or(1, |e| e.index + 1);
        Journal {
            config,
            group,
            next,
            lines: BTreeMap::new(),
            waiting: VecDeque::new(),
            up: BTreeMap::new(),
            joined: Vec::new(),
            heard: Vec::new(),
            alarms: Vec::new(),
            effects: vec![
                Effect::Listen(true),
                // The journal claims to have applied all of its cluster's enabled features.
                Effect::Nodes(shard::ClusterView {
                    nodes: Vec::new(),
                    enabled: Some(Vec::new()),
                }),
            ],
            polled: false,
            stopping: false,
        }
    }

    fn say(&mut self, key: usize, text: &str) {
        if let Some(line) = self.lines.get_mut(&key) {
            line.outbox.tail().extend_from_slice(text.as_bytes());
            line.outbox.tail().extend_from_slice(b"\n");
            self.effects.push(Effect::Flush(ConnectionKey(key)));
        }
    }

    fn command(&mut self, key: usize, text: &str) {
        match text.split_once(' ').unwrap_or((text, "")) {
            ("put", data) => {
                let token = WalToken(self.next);
                let entry = Entry {
                    index: self.next,
                    term: 1,
                    kind: 0,
                    data: Bytes::copy_from_slice(data.as_bytes()),
                };
                self.next += 1;
                self.effects.push(Effect::Append {
                    token,
                    records: vec![Record {
                        group: self.group,
                        body: RecordBody::Entry(entry),
                    }],
                });
                self.waiting.push_back((token, key));
            }
            ("next", _) => self.say(key, &self.next.to_string()),
            ("who", _) => {
                let founders = self.config.founding.as_ref().map_or(0, |f| f.nodes.len());
                let text = format!(
                    "{} {} founders={founders}",
                    self.config.name, self.config.index
                );
                self.say(key, &text);
            }
            ("peers", _) => self.say(key, &self.up.len().to_string()),
            ("joined", _) => self.say(key, &self.joined.join(",")),
            ("alarms", _) => self.say(key, &self.alarms.join(",")),
            ("tell", text) => {
                let frame = Bytes::from(format!("{}:{text}", self.config.name));
                for to in self.up.keys() {
                    let (to, frame) = (*to, frame.clone());
                    let route = Route::Owner(self.group.0);
                    self.effects.push(Effect::Peer { to, route, frame });
                }
                self.say(key, "told");
            }
            ("shards", text) => {
                let from = self.config.index;
                for to in (0..self.config.shards).filter(|to| *to != from) {
                    let message = Frame::Raft(Bytes::from(format!("{from}:{text}"))).into();
                    self.effects.push(Effect::Shard { to, from, message });
                }
                self.say(key, "told");
            }
            ("heard", _) => self.say(key, &self.heard.join(",")),
            _ => self.say(key, "what?"),
        }
    }
}

impl ShardDriver for Journal {
    fn tick(&mut self, _: Time, _: WallTime) {}
    fn wake_at(&self) -> Option<Time> {
        None
    }
    fn connected(&mut self, connection: ConnectionKey, _: ConnectionInfo) {
        self.lines.insert(connection.0, Line::default());
    }
    fn received(&mut self, connection: ConnectionKey, input: &mut BytesMut) -> SessionState {
        while let Some(end) = input.iter().position(|b| *b == b'\n') {
            let line = input.split_to(end + 1);
            let text = String::from_utf8_lossy(&line[..end]).into_owned();
            self.command(connection.0, &text);
        }
        SessionState::Open
    }
    fn outbox(&mut self, connection: ConnectionKey) -> Option<(&mut Outbox, SessionState)> {
        let line = self.lines.get_mut(&connection.0)?;
        let session_state = if line.closing {
            SessionState::Closing
        } else {
            SessionState::Open
        };
        Some((&mut line.outbox, session_state))
    }
    fn drained(&mut self, _: ConnectionKey) {}
    fn gone(&mut self, connection: ConnectionKey) {
        self.lines.remove(&connection.0);
    }
    fn peer_up(&mut self, node: NodeId, incarnation: Incarnation, _: u16) {
        self.up.insert(node, incarnation);
    }
    fn peer_down(&mut self, node: NodeId) {
        self.up.remove(&node);
    }
    fn peer_frame(&mut self, _: NodeId, frame: Bytes) {
        self.heard
            .push(String::from_utf8_lossy(&frame).into_owned());
    }
    fn shard_message(&mut self, _: u16, message: LocalMessage) {
        let LocalMessage::Frame(message) = message else {
            return;
        };
        let Frame::Raft(frame) = *message else {
            return;
        };
        self.heard
            .push(String::from_utf8_lossy(&frame).into_owned());
    }
    fn durable(&mut self, token: WalToken) {
        while let Some((first, key)) = self.waiting.front().copied() {
            if first > token {
                return;
            }
            self.waiting.pop_front();
            self.say(key, &format!("ok {}", first.0));
        }
    }
    fn wal_rolled(&mut self, _: u64) {}
    fn job_done(&mut self, _: JobId, _: JobResult) {}
    fn control(&mut self, request: ControlRequest) {
        if let ControlRequest::Readiness { reply } = request {
            reply(match self.polled {
                true => Readiness::Ready,
                false => Readiness::NotReady("does not listen yet".to_owned()),
            });
        }
    }
    fn join_requested(&mut self, node: NodeRecord) {
        self.joined.push(node.name.to_string());
    }
    fn alarm(&mut self, reason: &'static str, on: bool) {
        self.alarms.retain(|r| *r != reason);
        if on {
            self.alarms.push(reason);
        }
    }
    fn shut_down(&mut self) {
        self.stopping = true;
        for (key, line) in &mut self.lines {
            line.closing = true;
            line.outbox.tail().extend_from_slice(b"bye\n");
            self.effects.push(Effect::Flush(ConnectionKey(*key)));
        }
    }
    fn drained_fully(&self) -> bool {
        self.stopping
    }
    fn poll(&mut self, out: &mut Vec<Effect>) {
        self.polled = true;
        out.append(&mut self.effects);
    }
}

/// A directory that is deleted with the test.
pub struct Scratch(pub PathBuf);

impl Scratch {
    pub fn new(name: &str) -> io::Result<Scratch> {
        let path =
            std::env::temp_dir().join(format!("posthorn-node-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path)?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A node in this process.
pub struct RunningNode {
    notices: Sender<ThreadNotification>,
    thread: JoinHandle<Result<(), NodeError>>,
    ready: PathBuf,
}

/// Ports that were free a moment ago.
pub fn free_ports(count: usize) -> io::Result<Vec<u16>> {
    let held: Vec<TcpListener> = (0..count)
        .map(|_| TcpListener::bind(("127.0.0.1", 0)))
        .collect::<io::Result<_>>()?;
    held.iter().map(|l| Ok(l.local_addr()?.port())).collect()
}

/// Starts a node with its directory below `scratch`.
pub fn start(scratch: &Path, name: &str, flags: &[String]) -> Result<RunningNode, String> {
    let dir = scratch.join(name);
    let ready = scratch.join(format!("{name}.ready"));
    let mut all = vec![
        format!("cluster.node={name}"),
        format!("data_dir={}", dir.display()),
        "listeners.tcp.default=127.0.0.1:0".to_owned(),
        "shards=2".to_owned(),
        "shutdown_timeout=10000".to_owned(),
    ];
    all.extend_from_slice(flags);
    let config = load(&ConfigSources {
        flags: all,
        ..ConfigSources::default()
    })
    .map_err(|e| e.to_string())?;
    let make = |material: ShardMaterial| -> Result<Box<dyn ShardDriver>, String> {
        Ok(Box::new(Journal::new(material.config, &material.recovered)))
    };
    let protocols = vec![Registration {
        protocol: Arc::new(Lines),
        plain: config.amqp,
        secure: config.amqp_tls,
        largest_frame: 1 << 16,
    }];
    let parts = NodeParts {
        config,
        protocols,
        version: metadata::features::Version::default(),
        make_shard: Arc::new(make),
        serve_control: None,
        ready_file: Some(ready.clone()),
    };
    let (notices, inbox) = channel();
    let own = notices.clone();
    let thread = std::thread::spawn(move || node::run(parts, (own, inbox)));
    Ok(RunningNode {
        notices,
        thread,
        ready,
    })
}

impl RunningNode {
    /// The client address, once the node is ready.
    pub fn address(&self) -> Result<SocketAddr, String> {
        let text = eventually(|| {
            if self.thread.is_finished() {
                return Some(Err("the node ended".to_owned()));
            }
            std::fs::read_to_string(&self.ready).ok().map(Ok)
        })
        .ok_or("not ready in time")??;
        let ready: serde_json::Value = serde_json::from_str(&text).map_err(|e| e.to_string())?;
        let address = ready["addresses"]["amqp"].as_str().ok_or("no address")?;
        address
            .parse()
            .map_err(|e: std::net::AddrParseError| e.to_string())
    }

    pub fn is_ready(&self) -> bool {
        self.ready.exists()
    }

    pub fn client(&self) -> Result<Client, String> {
        let stream = TcpStream::connect(self.address()?).map_err(|e| e.to_string())?;
        stream
            .set_read_timeout(Some(Duration::from_secs(30)))
            .map_err(|e| e.to_string())?;
        Ok(Client(BufReader::new(stream)))
    }

    /// Stops gracefully.
    pub fn stop(self) -> Result<(), String> {
        self.notices
            .send(ThreadNotification::Stop)
            .map_err(|e| e.to_string())?;
        self.end()
    }

    /// Returns the result of the node.
    pub fn end(self) -> Result<(), String> {
        match self.thread.join() {
            Ok(result) => result.map_err(|e| e.to_string()),
            Err(_) => Err("panicked".to_owned()),
        }
    }
}

pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn send(&mut self, text: &str) -> Result<(), String> {
        self.0
            .get_mut()
            .write_all(format!("{text}\n").as_bytes())
            .map_err(|e| e.to_string())
    }

    pub fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        self.0.read_line(&mut line).map_err(|e| e.to_string())?;
        Ok(line.trim_end().to_owned())
    }

    pub fn ask(&mut self, text: &str) -> Result<String, String> {
        self.send(text)?;
        self.line()
    }

    /// Repeats a request until the response is the expected one.
    pub fn until(&mut self, text: &str, expected: &str) -> Result<(), String> {
        let mut last = String::new();
        let reached = eventually(|| match self.ask(text) {
            Ok(answer) if answer == expected => Some(Ok(())),
            Ok(answer) => {
                last = answer;
                None
            }
            Err(e) => Some(Err(e)),
        });
        reached.unwrap_or_else(|| Err(format!("`{text}` stayed `{last}` instead of `{expected}`")))
    }
}

/// Polls a condition.
pub fn eventually<T>(condition: impl FnMut() -> Option<T>) -> Option<T> {
    within(TRIES, condition)
}

/// Polls a condition this many times.
pub fn within<T>(tries: usize, mut condition: impl FnMut() -> Option<T>) -> Option<T> {
    for _ in 0..tries {
        if let Some(found) = condition() {
            return Some(found);
        }
        std::thread::park_timeout(PAUSE);
    }
    None
}
