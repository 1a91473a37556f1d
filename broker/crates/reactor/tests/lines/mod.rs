//! A test driver whose frames are lines, and a thread that runs it in an event loop.

use bytes::{Bytes, BytesMut};
use consensus::{JobId, JobResult, WalToken};
use control::ControlRequest;
use env::{Clock, Incarnation, NodeId, Time, WallTime};
use metadata::NodeRecord;
use reactor::{
    ClientListener, LoopConfig, LoopParts, LoopReport, Mailbox, Sender, ShardLoop, ShardMessage,
    ThreadRings, ThreadWaker,
};
use session::{ConnectionInfo, Outbox, SessionState};
use shard::{ConnectionKey, Effect, Frame, LocalMessage, ShardDriver};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Size of a piece of a flood in bytes.
const PIECE: u32 = 1 << 20;

/// Number of flood bytes above which the outbox is not refilled.
const FLOOD_AHEAD: usize = 2 << 20;

/// Limit of the bytes held by all TLS handshakes.
pub const HANDSHAKES: usize = 260 << 10;

struct TestClock(Instant);

impl Clock for TestClock {
    fn now(&self) -> Time {
        Time(u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
    fn wall(&self) -> WallTime {
        WallTime(0)
    }
}

#[derive(Default)]
struct Line {
    outbox: Outbox,
    session_state: Option<SessionState>,
    subscribed: bool,
    /// Number of pieces left, and the next number to write.
    flood: (u32, u32),
}

impl Line {
    fn session_state(&self) -> SessionState {
        self.session_state.unwrap_or(SessionState::Open)
    }

    fn write_line(&mut self, text: &str) {
        self.outbox.tail().extend_from_slice(text.as_bytes());
        self.outbox.tail().extend_from_slice(b"\n");
    }

    fn refill(&mut self) {
        while self.flood.0 > 0 && self.outbox.len() < FLOOD_AHEAD {
            let mut piece = BytesMut::new();
            for _ in 0..PIECE / 4 {
                piece.extend_from_slice(&self.flood.1.to_be_bytes());
                self.flood.1 += 1;
            }
            self.outbox.push(piece.freeze());
            self.flood.0 -= 1;
        }
    }
}

struct Lines {
    connections: BTreeMap<usize, Line>,
    alive: Arc<AtomicUsize>,
    effects: Vec<Effect>,
    paused_lines: usize,
    /// Bytes of lines received since the last poll.
    bytes_received: usize,
    /// The maximum of `bytes_received`.
    max_received: Arc<AtomicUsize>,
    /// "hold" blocks until a message arrives here.
    held: mpsc::Receiver<()>,
    draining: bool,
    /// Signalled after the first effect, which opens the listener, was carried out.
    opened: Option<mpsc::Sender<()>>,
    polled: bool,
}

impl Lines {
    fn frame(&mut self, key: ConnectionKey, text: &str) {
        let paused = self.paused_lines;
        let Some(line) = self.connections.get_mut(&key.0) else {
            return;
        };
        match text {
            "pause" => {
                line.session_state = Some(SessionState::Paused);
                line.write_line("paused");
            }
            "count" => line.write_line(&paused.to_string()),
            "resume" => {
                line.write_line("resumed");
                for (k, other) in &mut self.connections {
                    if other.session_state == Some(SessionState::Paused) {
                        other.session_state = None;
                        self.effects.push(Effect::Flush(ConnectionKey(*k)));
                    }
                }
            }
            "close" => {
                line.session_state = Some(SessionState::Closing);
                line.write_line("closing");
            }
            "subscribe" => {
                line.subscribed = true;
                line.write_line("subscribed");
            }
            "listen off" => {
                line.write_line("off");
                self.effects.push(Effect::Listen(false));
            }
            "listen on" => {
                line.write_line("on");
                self.effects.push(Effect::Listen(true));
            }
            "hold" => drop(self.held.recv()),
            "fatal" => self
                .effects
                .push(Effect::Fatal("storage failed".to_owned())),
            other => match other.strip_prefix("flood ").and_then(|n| n.parse().ok()) {
                Some(pieces) => {
                    line.flood = (pieces, 0);
                    line.refill();
                }
                None => line.write_line(other),
            },
        }
        self.effects.push(Effect::Flush(key));
    }
}

impl ShardDriver for Lines {
    fn tick(&mut self, _: Time, _: WallTime) {}
    fn wake_at(&self) -> Option<Time> {
        None
    }
    fn connected(&mut self, connection: ConnectionKey, _: ConnectionInfo) {
        let old = self.connections.insert(connection.0, Line::default());
        assert!(old.is_none(), "slot used twice");
        self.alive.store(self.connections.len(), Ordering::SeqCst);
    }
    fn received(&mut self, connection: ConnectionKey, input: &mut BytesMut) -> SessionState {
        loop {
            let line = self.connections.get(&connection.0).expect("alive");
            if line.session_state() != SessionState::Open {
                self.paused_lines += usize::from(line.session_state() != SessionState::Paused);
                return line.session_state();
            }
            let Some(end) = input.iter().position(|b| *b == b'\n') else {
                return line.session_state();
            };
            let frame = input.split_to(end + 1);
            self.bytes_received += frame.len();
            let text = String::from_utf8_lossy(&frame[..end]).into_owned();
            self.frame(connection, &text);
        }
    }
    fn handshakes(&mut self, bytes: usize) -> usize {
        bytes.saturating_sub(HANDSHAKES)
    }
    fn outbox(&mut self, connection: ConnectionKey) -> Option<(&mut Outbox, SessionState)> {
        let line = self.connections.get_mut(&connection.0)?;
        let session_state = line.session_state();
        Some((&mut line.outbox, session_state))
    }
    fn drained(&mut self, connection: ConnectionKey) {
        if let Some(line) = self.connections.get_mut(&connection.0) {
            line.refill();
        }
    }
    fn gone(&mut self, connection: ConnectionKey) {
        let line = self.connections.remove(&connection.0);
        assert!(line.is_some(), "gone twice");
        self.alive.store(self.connections.len(), Ordering::SeqCst);
    }
    fn peer_up(&mut self, _: NodeId, _: Incarnation, _: u16) {}
    fn peer_down(&mut self, _: NodeId) {}
    fn peer_frame(&mut self, _: NodeId, _: Bytes) {}
    fn shard_message(&mut self, _: u16, message: LocalMessage) {
        let LocalMessage::Frame(message) = message else {
            return;
        };
        let Frame::Raft(frame) = *message else {
            return;
        };
        for (key, line) in &mut self.connections {
            if line.subscribed {
                line.outbox.push(frame.clone());
                self.effects.push(Effect::Flush(ConnectionKey(*key)));
            }
        }
    }
    fn durable(&mut self, _: WalToken) {}
    fn wal_rolled(&mut self, _: u64) {}
    fn job_done(&mut self, _: JobId, _: JobResult) {}
    fn control(&mut self, _: ControlRequest) {}
    fn join_requested(&mut self, _: NodeRecord) {}
    fn alarm(&mut self, _: &'static str, _: bool) {}
    fn shut_down(&mut self) {
        self.draining = true;
        for (key, line) in &mut self.connections {
            line.write_line("shutdown");
            line.session_state = Some(SessionState::Closing);
            self.effects.push(Effect::Flush(ConnectionKey(*key)));
        }
    }
    fn drained_fully(&self) -> bool {
        self.draining
    }
    fn poll(&mut self, out: &mut Vec<Effect>) {
        if std::mem::replace(&mut self.polled, true) {
            let _ = self.opened.take().map(|sender| sender.send(()));
        }
        let bytes = std::mem::take(&mut self.bytes_received);
        self.max_received.fetch_max(bytes, Ordering::SeqCst);
        out.append(&mut self.effects);
    }
}

/// An event loop on its own thread.
pub struct Harness {
    pub address: SocketAddr,
    pub mailbox: Mailbox,
    /// The ring of another shard. It is small, so that it overflows.
    pub ring: Sender<ShardMessage>,
    pub reports: mpsc::Receiver<LoopReport>,
    /// Ends a "hold".
    pub release: mpsc::Sender<()>,
    /// The maximum number of bytes of lines received in one turn.
    pub max_received: Arc<AtomicUsize>,
    alive: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Harness {
    pub fn start(config: LoopConfig) -> io::Result<Harness> {
        Harness::listening(config, None)
    }

    /// Starts a loop with or without TLS on its listener.
    pub fn listening(config: LoopConfig, tls: Option<Arc<tls::ServerTls>>) -> io::Result<Harness> {
        let socket =
            reactor::bind(SocketAddr::from(([127, 0, 0, 1], 0))).map_err(io::Error::other)?;
        let address = socket.address();
        let listener = ClientListener {
            socket,
            tls,
            protocol: session::ProtocolId::default(),
        };
        let (poll, wake) = ShardLoop::poll_and_wake()?;
        let (mailbox, inlet) = reactor::mailbox(wake.clone());
        let (ring, receiver) = reactor::ring(16, wake.clone());
        let (report, reports) = mpsc::channel();
        let alive = Arc::new(AtomicUsize::new(0));
        let count = alive.clone();
        let max_received = Arc::new(AtomicUsize::new(0));
        let shared_max = max_received.clone();
        let (release, held) = mpsc::channel();
        let (opened, open) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let nowhere = Arc::new(ThreadWaker::for_thread());
            let links = ThreadRings {
                wal: reactor::ring(1, nowhere.clone()).0,
                jobs: reactor::ring(1, nowhere.clone()).0,
                peers: reactor::ring(1, nowhere).0,
                shards: vec![None],
            };
            let driver = Lines {
                connections: BTreeMap::new(),
                alive: count,
                effects: vec![Effect::Listen(true)],
                paused_lines: 0,
                bytes_received: 0,
                max_received: shared_max,
                held,
                draining: false,
                opened: Some(opened),
                polled: false,
            };
            let parts = LoopParts {
                timings: (Arc::default(), 0),
                driver: Box::new(driver),
                config,
                clock: Arc::new(TestClock(instant())),
                poll,
                wake,
                rings: vec![receiver],
                mailbox: inlet,
                links,
                listeners: vec![listener],
                report: Box::new(move |r| drop(report.send(r))),
            };
            ShardLoop::new(parts).expect("loop").run().expect("run");
        });
        open.recv().map_err(io::Error::other)?;
        Ok(Harness {
            address,
            mailbox,
            ring,
            reports,
            release,
            max_received,
            alive,
            thread: Some(thread),
        })
    }

    /// Waits until the driver has this many connections.
    pub fn wait_for_connections(&self, count: usize) -> io::Result<()> {
        let deadline = instant() + Duration::from_secs(30);
        while self.alive.load(Ordering::SeqCst) != count {
            if instant() > deadline {
                return Err(io::Error::other("connections did not end"));
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    pub fn join(mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("loop thread");
        }
    }
}

impl Drop for Harness {
    fn drop(&mut self) {
        let _ = self.mailbox.post(ShardMessage::Stop);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(
                std::thread::panicking() || ended.is_ok(),
                "loop thread failed"
            );
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock of the tests")]
fn instant() -> Instant {
    Instant::now()
}

pub fn connect(node: &Harness) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(node.address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

pub fn read_line(stream: &mut impl Read) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        if byte[0] == b'\n' {
            return String::from_utf8(line).map_err(io::Error::other);
        }
        line.push(byte[0]);
    }
}

/// Reads and checks all pieces of a flood.
pub fn read_flood(stream: &mut impl Read, pieces: u32) -> io::Result<()> {
    let mut next = 0u32;
    let mut piece = vec![0; PIECE as usize];
    for _ in 0..pieces {
        stream.read_exact(&mut piece)?;
        for word in piece.chunks_exact(4) {
            assert_eq!(word, next.to_be_bytes());
            next += 1;
        }
    }
    Ok(())
}
