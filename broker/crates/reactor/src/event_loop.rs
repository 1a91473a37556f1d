//! The event loop of a shard's thread.

use crate::admission_rate::AdmissionRate;
use crate::connection::{Connection, ConnectionPhase};
use crate::gather::GatherDelay;
use crate::listener::{BindError, ClientListener, Listener, bind};
use crate::ports::{
    LinkMessage, MailboxInlet, ShardMessage, StorageMessage, ThreadRings, WalMessage,
};
use crate::ring::Receiver;
use crate::scratch::Scratch;
use crate::secure::TlsBuffers;
use crate::wake::ThreadWaker;
use control::NodeTimings;
use env::{Clock, Time};
use mio::{Events, Interest, Poll, Token};
use shard::{Effect, ShardDriver};
use slots::Slab;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

/// The token of the waker. Listeners count down from the next lower value; connections count up
/// from 0.
pub(crate) const WAKE: Token = Token(usize::MAX);

/// Maximum number of items taken from one ring per turn, so that a busy thread does not starve the
/// sockets.
const INBOUND_PER_TURN: usize = 1024;

/// Rounds of effects and writes per turn. The rest is left for the next turn, after new events.
const ROUNDS_PER_TURN: usize = 8;

/// Number of items waiting for a full ring above which clients are not read. The output of the
/// current turn comes on top.
const BACKLOG_PAUSE: usize = 1024;

/// Time until a full ring is tried again.
const BACKLOG_RETRY: Duration = Duration::from_millis(1);

/// Time for which accepting pauses when descriptors or kernel memory are exhausted.
pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Time for a closing connection to receive the remaining output and to close its side.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Limits of one shard's loop.
#[derive(Clone, Debug)]
pub struct LoopConfig {
    /// Maximum number of connections of this shard. Further ones are closed directly after they are
    /// accepted. The node may change it.
    pub max_connections: Arc<AtomicUsize>,
    /// Connections accepted per listener and turn, so that mass reconnects do not block other work.
    pub accepts_per_turn: usize,
    /// Connections accepted per second by this shard; 0: unlimited.
    pub accepts_per_second: u32,
    /// Bytes read from clients per turn. Until the turn ends, messages need more memory than on the
    /// wire.
    pub bytes_per_turn: u64,
    /// Time limit of the TLS handshake.
    pub tls_handshake: Duration,
    /// Number of connections at which accepting pauses until one ends; further clients wait in the
    /// kernel's backlog. For limits that are not a policy, such as the number of descriptors.
    pub accept_pause_at: usize,
    /// Maximum size of an incomplete frame in bytes. Must exceed the largest frame that a session
    /// accepts.
    pub max_partial: usize,
    /// Size of the output in bytes above which a connection is not read.
    pub outbox_pause: usize,
    /// Size of the output in bytes above which a connection is closed.
    pub outbox_limit: usize,
}

impl Default for LoopConfig {
    fn default() -> LoopConfig {
        LoopConfig {
            max_connections: Arc::new(AtomicUsize::new(1 << 20)),
            accepts_per_turn: 64,
            accepts_per_second: 0,
            bytes_per_turn: 2 << 20,
            tls_handshake: Duration::from_secs(10),
            accept_pause_at: usize::MAX,
            max_partial: 1 << 20,
            outbox_pause: 4 << 20,
            outbox_limit: 256 << 20,
        }
    }
}

/// A report of a loop to the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoopReport {
    /// The shard failed because its storage failed. The process must end with this text.
    Fatal(String),
    /// After [`ShardMessage::ShutDown`]: the driver has drained and every client was notified.
    Drained,
}

/// The reason why a loop ended.
#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    /// The operating system's poll failed.
    #[error("event loop: {0}")]
    Poll(#[from] io::Error),
    /// A listener cannot be opened.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// The components of a loop.
pub struct LoopParts {
    /// The shard.
    pub driver: Box<dyn ShardDriver>,
    /// The limits.
    pub config: LoopConfig,
    /// The clock.
    pub clock: Arc<dyn Clock + Send + Sync>,
    /// The poll that `wake` was made for; see [`ShardLoop::poll_and_wake`].
    pub poll: Poll,
    /// Wakes this loop.
    pub wake: Arc<ThreadWaker>,
    /// One ring per thread that sends to this shard.
    pub rings: Vec<Receiver<ShardMessage>>,
    /// The receiving end of the mailbox.
    pub mailbox: MailboxInlet,
    /// The rings to other threads.
    pub links: ThreadRings,
    /// The client listeners, opened when the driver requests it ([`Effect::Listen`]).
    pub listeners: Vec<ClientListener>,
    /// Receives reports.
    pub report: Box<dyn FnMut(LoopReport)>,
    /// Takes the durations of turns, and the index of the shard.
    pub timings: (Arc<NodeTimings>, u16),
}

/// The event loop of a shard.
pub struct ShardLoop {
    pub(crate) driver: Box<dyn ShardDriver>,
    pub(crate) config: LoopConfig,
    clock: Arc<dyn Clock + Send + Sync>,
    timings: (Arc<NodeTimings>, u16),
    pub(crate) poll: Poll,
    wake: Arc<ThreadWaker>,
    rings: Vec<Receiver<ShardMessage>>,
    mailbox: MailboxInlet,
    links: ThreadRings,
    report: Box<dyn FnMut(LoopReport)>,
    pub(crate) listeners: Vec<Listener>,
    /// The driver wants its listeners open.
    pub(crate) listening: bool,
    pub(crate) accept_paused_until: Option<Time>,
    pub(crate) admission_rate: AdmissionRate,
    /// The time at which a waiting connection may be admitted.
    pub(crate) admit_at: Option<Time>,
    gather: GatherDelay,
    /// Number of bytes read from clients in this turn.
    pub(crate) bytes_read: u64,
    /// Accepting is paused, and this was logged.
    pub(crate) accept_paused: bool,
    /// The connection limit is reached, and this was logged.
    pub(crate) refusing: bool,
    pub(crate) connections: Slab<Connection>,
    pub(crate) next_serial: u32,
    pub(crate) scratch: Scratch,
    pub(crate) workspace: TlsBuffers,
    /// Connections to serve, each at most once.
    pub(crate) queue: VecDeque<usize>,
    /// Connections to flush, each at most once.
    pub(crate) dirty: Vec<usize>,
    /// Close deadlines of connections (time, slot, serial), in order of time.
    pub(crate) ending: VecDeque<(Time, usize, u32)>,
    /// Handshake deadlines of connections, in the same form.
    pub(crate) handshaking: VecDeque<(Time, usize, u32)>,
    /// Number of bytes held by connections in the TLS handshake.
    pub(crate) handshake_bytes: usize,
    /// The value of `handshake_bytes` last reported to the driver.
    pub(crate) reported_handshake_bytes: usize,
    /// More handshake steps were pending than one turn takes.
    pub(crate) handshakes_wait: bool,
    effects: Vec<Effect>,
    pub(crate) now: Time,
    shutting_down: bool,
    drained: bool,
    stop: bool,
}

impl ShardLoop {
    /// Creates the poll of a new loop and the waker that its rings and mailbox need.
    pub fn poll_and_wake() -> io::Result<(Poll, Arc<ThreadWaker>)> {
        let poll = Poll::new()?;
        let wake = ThreadWaker::for_poll(poll.registry(), WAKE)?;
        Ok((poll, Arc::new(wake)))
    }

    /// Creates a loop; [`ShardLoop::run`] starts it.
    pub fn new(parts: LoopParts) -> Result<ShardLoop, LoopError> {
        let accepts_per_second = parts.config.accepts_per_second;
        let now = parts.clock.now();
        Ok(ShardLoop {
            driver: parts.driver,
            config: parts.config,
            now,
            clock: parts.clock,
            poll: parts.poll,
            wake: parts.wake,
            rings: parts.rings,
            mailbox: parts.mailbox,
            links: parts.links,
            report: parts.report,
            timings: parts.timings,
            listeners: parts.listeners.into_iter().map(Listener::of).collect(),
            listening: false,
            accept_paused_until: None,
            admit_at: None,
            admission_rate: AdmissionRate::per_second(accepts_per_second),
            gather: GatherDelay::new(now),
            bytes_read: 0,
            accept_paused: false,
            refusing: false,
            connections: Slab::new(),
            next_serial: 0,
            scratch: Scratch::default(),
            workspace: TlsBuffers::default(),
            queue: VecDeque::new(),
            dirty: Vec::new(),
            ending: VecDeque::new(),
            handshaking: VecDeque::new(),
            handshake_bytes: 0,
            reported_handshake_bytes: 0,
            handshakes_wait: false,
            effects: Vec::new(),
            shutting_down: false,
            drained: false,
            stop: false,
        })
    }

    /// Runs until [`ShardMessage::Stop`] or until the driver fails.
    pub fn run(mut self) -> Result<(), LoopError> {
        let mut events = Events::with_capacity(1024);
        let mut timeout = Some(Duration::ZERO);
        while !self.stop {
            match self.poll.poll(&mut events, timeout) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e.into()),
            }
            self.now = self.clock.now();
            self.driver.tick(self.now, self.clock.wall());
            for event in &events {
                self.note(event);
            }
            let more = self.turn()?;
            let (timings, shard) = &self.timings;
            if let Some(turns) = timings.turns_of(*shard) {
                turns.observe(self.clock.now().since(self.now));
            }
            let bytes_read = std::mem::take(&mut self.bytes_read);
            timeout = if more {
                Some(Duration::ZERO)
            } else {
                wait(self.gather.wait(bytes_read, self.now));
                self.timeout()
            };
        }
        Ok(())
    }

    /// Records an event; [`ShardLoop::turn`] does the work.
    fn note(&mut self, event: &mio::event::Event) {
        let Token(token) = event.token();
        if token == WAKE.0 {
            return;
        }
        let from_end = WAKE.0 - token - 1;
        if let Some(listener) = self.listeners.get_mut(from_end) {
            listener.ready = true;
            return;
        }
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        if event.is_readable() {
            connection.readable = true;
        }
        if event.is_read_closed() || event.is_error() {
            connection.readable = true;
            connection.hung_up = true;
        }
        if event.is_error() || (event.is_read_closed() && event.is_write_closed()) {
            // A reset: input could not be answered any more.
            self.close(token);
            return;
        }
        let writable = event.is_writable() && connection.blocked;
        self.enqueue(token);
        if writable {
            self.mark_dirty(token);
        }
    }

    /// Runs one turn. Returns true if more work is pending.
    fn turn(&mut self) -> Result<bool, LoopError> {
        self.wake.begin_turn();
        let mut more = self.take_inbound();
        more |= self.accept_all();
        let handshakes_waited = self.handshakes_wait;
        self.serve_queue();
        // Listeners with TLS were skipped while handshakes waited.
        more |= handshakes_waited && !self.handshakes_wait;
        more |= self.settle()?;
        self.close_expired();
        self.close_slow_handshakes();
        self.shed_handshakes();
        self.links.flush();
        self.report_drained();
        // While a ring is full, its retry interval determines the pace, not the waiting clients.
        Ok(more || (!self.queue.is_empty() && !self.backlogged()))
    }

    fn take_inbound(&mut self) -> bool {
        let mut more = false;
        for i in 0..self.rings.len() {
            for taken in 0.. {
                if taken == INBOUND_PER_TURN {
                    more = true;
                    break;
                }
                let Some(item) = self.rings.get_mut(i).and_then(Receiver::receive) else {
                    break;
                };
                self.inbound(item);
            }
        }
        while let Ok(item) = self.mailbox.0.try_recv() {
            self.inbound(item);
        }
        more
    }

    fn inbound(&mut self, item: ShardMessage) {
        match item {
            ShardMessage::Local { from, message } => self.driver.shard_message(from, message),
            ShardMessage::Durable(token) => self.driver.durable(token),
            ShardMessage::WalRolled { file } => self.driver.wal_rolled(file),
            ShardMessage::JobDone { id, result } => self.driver.job_done(id, result),
            ShardMessage::PeerVersion { node, version } => self.driver.peer_program(node, version),
            ShardMessage::PeerUp {
                node,
                incarnation,
                shards,
            } => self.driver.peer_up(node, incarnation, shards),
            ShardMessage::PeerDown { node } => self.driver.peer_down(node),
            ShardMessage::PeerFrame { from, frame } => self.driver.peer_frame(from, frame),
            ShardMessage::Join(node) => self.driver.join_requested(node),
            ShardMessage::Alarm { reason, on } => self.driver.alarm(reason, on),
            ShardMessage::Checked { id, right } => self.driver.checked(id, right),
            ShardMessage::Identified { id, result } => self.driver.identified(id, result),
            ShardMessage::Control(request) => self.driver.control(request),
            ShardMessage::ShutDown if !self.shutting_down => {
                self.shutting_down = true;
                self.driver.shut_down();
            }
            ShardMessage::ShutDown => {}
            ShardMessage::Stop => self.stop = true,
        }
    }

    /// Carries out effects and flushes until both are done. Returns true if the rounds of this turn
    /// are used up first.
    fn settle(&mut self) -> Result<bool, LoopError> {
        for _ in 0..ROUNDS_PER_TURN {
            let had_effects = self.carry_out()?;
            if self.stop || (!had_effects && self.dirty.is_empty()) {
                return Ok(false);
            }
            self.flush_dirty();
        }
        Ok(true)
    }

    /// Carries out the driver's effects. Returns true if there were any.
    fn carry_out(&mut self) -> Result<bool, LoopError> {
        let mut effects = std::mem::take(&mut self.effects);
        self.driver.poll(&mut effects);
        let any = !effects.is_empty();
        for effect in effects.drain(..) {
            match effect {
                Effect::Append { token, records } => {
                    self.links.wal.send(WalMessage::Append { token, records });
                }
                Effect::Job { id, job } => self.links.jobs.send(StorageMessage { id, job }),
                Effect::Peer { to, route, frame } => {
                    self.links
                        .peers
                        .send(LinkMessage::Send { to, route, frame });
                }
                Effect::Shard { to, from, message } => {
                    match self.links.shards.get_mut(usize::from(to)) {
                        Some(Some(ring)) => ring.send(ShardMessage::Local { from, message }),
                        // A message to this shard itself is delivered directly. A message to a
                        // shard that does not exist is an error.
                        Some(None) => self.driver.shard_message(from, message),
                        None => tracing::error!(event = "shard.no_such_shard", to),
                    }
                }
                Effect::Flush(connection) => self.mark_dirty(connection.0),
                Effect::WalFree { up_to } => self.links.wal.send(WalMessage::Free { up_to }),
                Effect::Nodes(nodes) => self.links.peers.send(LinkMessage::Nodes(nodes)),
                Effect::Listen(on) => self.listen(on)?,
                Effect::Fatal(text) => {
                    self.stop = true;
                    (self.report)(LoopReport::Fatal(text));
                    break;
                }
            }
        }
        self.effects = effects;
        Ok(any)
    }

    fn listen(&mut self, on: bool) -> Result<(), LoopError> {
        if on == self.listening {
            return Ok(());
        }
        self.listening = on;
        for i in 0..self.listeners.len() {
            let Some(listener) = self.listeners.get_mut(i) else {
                continue;
            };
            if on {
                let (bound, address) = (listener.bound.take(), listener.address);
                let bound = bound.map_or_else(|| bind(address), Ok)?;
                self.open_listener(i, bound.listen()?)?;
            } else {
                listener.socket = None;
                listener.ready = false;
                listener.waiting.clear();
            }
        }
        Ok(())
    }

    fn open_listener(&mut self, i: usize, socket: std::net::TcpListener) -> Result<(), LoopError> {
        socket.set_nonblocking(true)?;
        let mut socket = mio::net::TcpListener::from_std(socket);
        let token = Token(WAKE.0 - 1 - i);
        self.poll
            .registry()
            .register(&mut socket, token, Interest::READABLE)?;
        if let Some(listener) = self.listeners.get_mut(i) {
            listener.socket = Some(socket);
            listener.ready = true;
        }
        Ok(())
    }

    /// Returns true if clients must wait because another thread does not keep up.
    pub(crate) fn backlogged(&self) -> bool {
        self.links.backlog() > BACKLOG_PAUSE
    }

    fn report_drained(&mut self) {
        if !self.shutting_down || self.drained || !self.driver.drained_fully() {
            return;
        }
        let is_flushing = |c: &Connection| c.phase == ConnectionPhase::Flushing || c.dirty;
        if self.connections.iter().any(|(_, c)| is_flushing(c)) {
            return;
        }
        self.drained = true;
        (self.report)(LoopReport::Drained);
    }

    /// Time until the next deadline, or None.
    fn timeout(&self) -> Option<Duration> {
        let ending = self.ending.front().map(|(at, _, _)| *at);
        let handshaking = self.handshaking.front().map(|(at, _, _)| *at);
        let next = [
            self.driver.wake_at(),
            ending,
            handshaking,
            self.accept_paused_until,
            self.admit_at,
        ]
        .into_iter()
        .flatten()
        .min()
        .map(|at| at.since(self.clock.now()));
        if self.links.backlog() > 0 {
            return Some(next.unwrap_or(BACKLOG_RETRY).min(BACKLOG_RETRY));
        }
        next
    }
}

/// Sleeps; input accumulates in the kernel and in the rings.
#[expect(clippy::disallowed_methods, reason = "the delay itself is the purpose")]
fn wait(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}
