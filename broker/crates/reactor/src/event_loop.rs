//! The loop of a shard's thread.

use crate::admission_rate::AdmissionRate;
use crate::connection::{Connection, Phase};
use crate::gather::Gather;
use crate::listener::{BindError, ClientListener, Listener, bind};
use crate::ports::{Inbound, Links, MailboxInlet, ToJobs, ToPeers, ToWal};
use crate::ring::Receiver;
use crate::scratch::Scratch;
use crate::secure::Workspace;
use crate::wake::Wake;
use env::{Clock, Time};
use mio::{Events, Interest, Poll, Token};
use shard::{Effect, ShardDriver};
use slots::Slab;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Token of the waker. Listeners count down from the one below; connections count up from 0.
pub(crate) const WAKE: Token = Token(usize::MAX);

/// Items taken from one ring per turn, so that a busy thread does not keep the sockets waiting.
const INBOUND_PER_TURN: usize = 1024;

/// Rounds of carrying out effects and writing per turn; what is left goes into the next turn, after new events.
const ROUNDS_PER_TURN: usize = 8;

/// Items that found their ring full, from which on clients are not read. What one turn produces comes on top.
const BACKLOG_PAUSE: usize = 1024;

/// How soon a full ring is tried again.
const BACKLOG_RETRY: Duration = Duration::from_millis(1);

/// How long accepting rests when there are no more descriptors or no kernel memory, before the next look.
pub(crate) const ACCEPT_REST: Duration = Duration::from_millis(100);

/// How long a connection that ends may take to receive its last bytes and close its side.
pub(crate) const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Bounds of one shard's loop.
#[derive(Clone, Debug)]
pub struct LoopConfig {
    /// Connections of this shard at the same time; more are closed right after they were accepted.
    pub max_connections: usize,
    /// Connections accepted per listener and turn: a storm of reconnects is taken in between other work (M9).
    pub accepts_per_turn: usize,
    /// Connections accepted per second by this shard; 0: no bound (M9).
    pub accepts_per_second: u32,
    /// Bytes that a turn reads from clients: a message is larger in memory than on the wire until the turn is over.
    pub bytes_per_turn: u64,
    /// How long a client may take to agree on TLS.
    pub tls_handshake: Duration,
    /// With this many connections accepting rests until one ends; further ones wait in the kernel's backlog. For limits
    /// that are not a policy, like that of descriptors.
    pub rest_at: usize,
    /// Bytes of a frame that is not whole yet. Above the largest frame that a session accepts.
    pub max_partial: usize,
    /// A connection with more than this to be written is not read.
    pub outbox_pause: usize,
    /// A connection with more than this to be written is cut off.
    pub outbox_limit: usize,
}

impl Default for LoopConfig {
    fn default() -> LoopConfig {
        LoopConfig {
            max_connections: 1 << 20,
            accepts_per_turn: 64,
            accepts_per_second: 0,
            bytes_per_turn: 2 << 20,
            tls_handshake: Duration::from_secs(10),
            rest_at: usize::MAX,
            max_partial: 1 << 20,
            outbox_pause: 4 << 20,
            outbox_limit: 256 << 20,
        }
    }
}

/// What a loop tells the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// The shard gave up (storage failed): the process must end with this text.
    Fatal(String),
    /// After [`Inbound::ShutDown`]: the driver has drained and every client has been told.
    Drained,
}

#[derive(Debug, thiserror::Error)]
pub enum LoopError {
    #[error("event loop: {0}")]
    Poll(#[from] io::Error),
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// What a loop is made of.
pub struct LoopParts {
    pub driver: Box<dyn ShardDriver>,
    pub config: LoopConfig,
    pub clock: Arc<dyn Clock + Send + Sync>,
    /// The poll that `wake` was made for, see [`ShardLoop::poll_and_wake`].
    pub poll: Poll,
    pub wake: Arc<Wake>,
    /// One per thread that sends to this shard.
    pub rings: Vec<Receiver<Inbound>>,
    pub mailbox: MailboxInlet,
    pub links: Links,
    /// They open when the driver says so ([`Effect::Listen`]).
    pub listeners: Vec<ClientListener>,
    pub report: Box<dyn FnMut(Report)>,
}

/// A shard's thread.
pub struct ShardLoop {
    pub(crate) driver: Box<dyn ShardDriver>,
    pub(crate) config: LoopConfig,
    clock: Arc<dyn Clock + Send + Sync>,
    pub(crate) poll: Poll,
    wake: Arc<Wake>,
    rings: Vec<Receiver<Inbound>>,
    mailbox: MailboxInlet,
    links: Links,
    report: Box<dyn FnMut(Report)>,
    pub(crate) listeners: Vec<Listener>,
    /// Whether the driver wants its listeners open.
    pub(crate) listening: bool,
    pub(crate) accept_rest_until: Option<Time>,
    pub(crate) pace: AdmissionRate,
    /// When somebody who waits may be let in.
    pub(crate) let_in_at: Option<Time>,
    gather: Gather,
    /// Bytes that this turn read from clients.
    pub(crate) taken: u64,
    /// Why nothing is accepted, as it was logged.
    pub(crate) resting: bool,
    pub(crate) refusing: bool,
    pub(crate) connections: Slab<Connection>,
    pub(crate) next_serial: u32,
    pub(crate) scratch: Scratch,
    pub(crate) workspace: Workspace,
    /// Connections that may be served, each at most once.
    pub(crate) queue: VecDeque<usize>,
    /// Connections to flush, each at most once.
    pub(crate) dirty: Vec<usize>,
    /// Deadlines of ending connections (slot, serial), in order of time.
    pub(crate) ending: VecDeque<(Time, usize, u32)>,
    /// The same of those that agree on TLS.
    pub(crate) shaking: VecDeque<(Time, usize, u32)>,
    /// Bytes that connections hold which agree on TLS, and what the driver was told of that last.
    pub(crate) shaking_bytes: usize,
    pub(crate) shaking_told: usize,
    /// There were more steps of handshakes to take than one turn takes.
    pub(crate) shakes_wait: bool,
    effects: Vec<Effect>,
    pub(crate) now: Time,
    shutting_down: bool,
    drained: bool,
    stop: bool,
}

impl ShardLoop {
    /// The poll of a new loop and the waker that its rings and mailbox need.
    pub fn poll_and_wake() -> io::Result<(Poll, Arc<Wake>)> {
        let poll = Poll::new()?;
        let wake = Wake::for_poll(poll.registry(), WAKE)?;
        Ok((poll, Arc::new(wake)))
    }

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
            listeners: parts.listeners.into_iter().map(Listener::of).collect(),
            listening: false,
            accept_rest_until: None,
            let_in_at: None,
            pace: AdmissionRate::per_second(accepts_per_second),
            gather: Gather::new(now),
            taken: 0,
            resting: false,
            refusing: false,
            connections: Slab::new(),
            next_serial: 0,
            scratch: Scratch::default(),
            workspace: Workspace::default(),
            queue: VecDeque::new(),
            dirty: Vec::new(),
            ending: VecDeque::new(),
            shaking: VecDeque::new(),
            shaking_bytes: 0,
            shaking_told: 0,
            shakes_wait: false,
            effects: Vec::new(),
            shutting_down: false,
            drained: false,
            stop: false,
        })
    }

    /// Runs until told to stop, or until the driver gives up.
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
            let taken = std::mem::take(&mut self.taken);
            timeout = if more {
                Some(Duration::ZERO)
            } else {
                wait(self.gather.wait(taken, self.now));
                self.timeout()
            };
        }
        Ok(())
    }

    /// Remembers what an event says; the work is done in [`ShardLoop::turn`].
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
            // Reset: there is nothing to read any more that we could answer.
            self.close(token);
            return;
        }
        let writable = event.is_writable() && connection.blocked;
        self.enqueue(token);
        if writable {
            self.mark_dirty(token);
        }
    }

    /// One turn. True when there is more to do at once.
    fn turn(&mut self) -> Result<bool, LoopError> {
        self.wake.begin_turn();
        let mut more = self.take_inbound();
        more |= self.accept_all();
        let shakes_waited = self.shakes_wait;
        self.serve_queue();
        // Listeners with TLS were passed over meanwhile.
        more |= shakes_waited && !self.shakes_wait;
        more |= self.settle()?;
        self.end_late();
        self.end_slow_handshakes();
        self.shed_handshakes();
        self.links.flush();
        self.report_drained();
        // While a ring is full its retry, and not the waiting clients, sets the pace.
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

    fn inbound(&mut self, item: Inbound) {
        match item {
            Inbound::Frame { from, frame } => self.driver.shard_frame(from, frame),
            Inbound::Durable(token) => self.driver.durable(token),
            Inbound::WalRolled { file } => self.driver.wal_rolled(file),
            Inbound::JobDone { id, result } => self.driver.job_done(id, result),
            Inbound::PeerProgram { node, program } => self.driver.peer_program(node, program),
            Inbound::PeerUp { node, incarnation } => self.driver.peer_up(node, incarnation),
            Inbound::PeerDown { node } => self.driver.peer_down(node),
            Inbound::PeerFrame { from, frame } => self.driver.peer_frame(from, frame),
            Inbound::Join(node) => self.driver.join_requested(node),
            Inbound::Alarm { reason, on } => self.driver.alarm(reason, on),
            Inbound::Checked { id, right } => self.driver.checked(id, right),
            Inbound::Control(request) => self.driver.control(request),
            Inbound::ShutDown if !self.shutting_down => {
                self.shutting_down = true;
                self.driver.shut_down();
            }
            Inbound::ShutDown => {}
            Inbound::Stop => self.stop = true,
        }
    }

    /// Carries out effects and flushes until both are done, or the turn's rounds are used up (true).
    fn settle(&mut self) -> Result<bool, LoopError> {
        for _ in 0..ROUNDS_PER_TURN {
            let carried = self.carry_out()?;
            if self.stop || (!carried && self.dirty.is_empty()) {
                return Ok(false);
            }
            self.flush_dirty();
        }
        Ok(true)
    }

    /// True when the driver had anything to do.
    fn carry_out(&mut self) -> Result<bool, LoopError> {
        let mut effects = std::mem::take(&mut self.effects);
        self.driver.poll(&mut effects);
        let any = !effects.is_empty();
        for effect in effects.drain(..) {
            match effect {
                Effect::Append { token, records } => {
                    self.links.wal.send(ToWal::Append { token, records });
                }
                Effect::Job { id, job } => self.links.jobs.send(ToJobs { id, job }),
                Effect::Peer { to, route, frame } => {
                    self.links.peers.send(ToPeers::Send { to, route, frame });
                }
                Effect::Shard { to, from, frame } => {
                    match self.links.shards.get_mut(usize::from(to)) {
                        Some(Some(ring)) => ring.send(Inbound::Frame { from, frame }),
                        // To itself, or to a shard that is not there: the first is answered, the second cannot be.
                        Some(None) => self.driver.shard_frame(from, frame),
                        None => tracing::error!(event = "shard.no_such_shard", to),
                    }
                }
                Effect::Flush(connection) => self.mark_dirty(connection.0),
                Effect::WalFree { up_to } => self.links.wal.send(ToWal::Free { up_to }),
                Effect::Nodes(nodes) => self.links.peers.send(ToPeers::Nodes(nodes)),
                Effect::Listen(on) => self.listen(on)?,
                Effect::Fatal(text) => {
                    self.stop = true;
                    (self.report)(Report::Fatal(text));
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

    /// Whether clients must wait because another thread does not keep up.
    pub(crate) fn backlogged(&self) -> bool {
        self.links.backlog() > BACKLOG_PAUSE
    }

    fn report_drained(&mut self) {
        if !self.shutting_down || self.drained || !self.driver.drained_fully() {
            return;
        }
        let telling = |c: &Connection| c.phase == Phase::Flushing || c.dirty;
        if self.connections.iter().any(|(_, c)| telling(c)) {
            return;
        }
        self.drained = true;
        (self.report)(Report::Drained);
    }

    /// How long there is nothing to do.
    fn timeout(&self) -> Option<Duration> {
        let ending = self.ending.front().map(|(at, _, _)| *at);
        let shaking = self.shaking.front().map(|(at, _, _)| *at);
        let next = [
            self.driver.wake_at(),
            ending,
            shaking,
            self.accept_rest_until,
            self.let_in_at,
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

/// What comes meanwhile waits in the kernel and in the rings.
#[expect(clippy::disallowed_methods, reason = "time itself is waited for")]
fn wait(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}
