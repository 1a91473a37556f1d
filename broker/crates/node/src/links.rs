//! The thread of the links to other nodes: sockets, TLS and rings around [`Peering`].

use crate::identity::ClusterRecord;
use crate::link_tls::Tls;
use crate::peering::{Action, HANDSHAKE_TIMEOUT, LinkId, Peering, TargetId};
use crate::resolver::{ResolveTarget, Resolver};
use crate::socket::{ReadEnd, Socket};
use crate::wire::{self, DATA_HEADER, Frame, MAX_FRAME, MAX_HANDSHAKE_FRAME};
use bytes::Bytes;
use env::{Clock, NodeId, Time};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use reactor::{Inbound, Receiver, Sender, ToPeers, Wake};
use shard::{Route, shard_of};
use slab::Slab;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const WAKE: Token = Token(usize::MAX);
const LISTENER: Token = Token(usize::MAX - 1);

/// Frames taken from one shard's ring per turn.
const OUTBOUND_PER_TURN: usize = 1024;

/// Frames that found a shard's ring full, from which on links are not read.
const BACKLOG_PAUSE: usize = 1024;

/// How soon a full ring is tried again.
const BACKLOG_RETRY: Duration = Duration::from_millis(1);

/// How often the certificate files are looked at.
const REFRESH: Duration = Duration::from_secs(5);

/// Connections accepted per turn, and how long accepting rests after an error of the system.
const ACCEPTS_PER_TURN: usize = 16;
const ACCEPT_REST: Duration = Duration::from_millis(100);

/// Makes a cluster record durable; an error ends the node.
pub type Persist = Box<dyn FnMut(&ClusterRecord) -> Result<(), String> + Send>;

/// What the thread of links is made of.
pub struct LinkParts {
    pub peering: Peering,
    pub clock: Arc<dyn Clock + Send + Sync>,
    pub poll: Poll,
    pub wake: Arc<Wake>,
    /// None: this node is alone.
    pub listener: Option<std::net::TcpListener>,
    /// None: plain, between loopback addresses only.
    pub tls: Option<Tls>,
    /// From the shards, by index.
    pub rings: Vec<Receiver<ToPeers>>,
    /// To the shards, by index.
    pub shards: Vec<Sender<Inbound>>,
    /// Bytes that may wait for one peer.
    pub peer_buffer: usize,
    pub persist: Persist,
    pub status: Arc<LinkStatus>,
}

/// What others may know of the thread.
#[derive(Debug, Default)]
pub struct LinkStatus {
    waiting: Mutex<Option<String>>,
    stop: AtomicBool,
}

impl LinkStatus {
    /// Why this node has no cluster yet.
    pub fn waiting(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says goodbye to all peers and ends the thread; wake it after this.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

enum State {
    /// Being connected for a target; given up at the time.
    Connecting {
        target: TargetId,
        host: String,
        until: Time,
    },
    Linked(LinkId),
}

struct Entry {
    socket: Socket,
    state: State,
}

/// The poll of the thread and the waker its rings need.
pub fn poll_and_wake() -> io::Result<(Poll, Arc<Wake>)> {
    let poll = Poll::new()?;
    let wake = Wake::for_poll(poll.registry(), WAKE)?;
    Ok((poll, Arc::new(wake)))
}

pub struct LinkThread {
    peering: Peering,
    clock: Arc<dyn Clock + Send + Sync>,
    poll: Poll,
    wake: Arc<Wake>,
    listener: Option<TcpListener>,
    accept_ready: bool,
    accept_rest_until: Option<Time>,
    tls: Option<Tls>,
    refresh_at: Time,
    rings: Vec<Receiver<ToPeers>>,
    shards: Vec<Sender<Inbound>>,
    peer_buffer: usize,
    persist: Persist,
    status: Arc<LinkStatus>,
    resolver: Resolver,
    sockets: Slab<Entry>,
    by_link: BTreeMap<LinkId, usize>,
    next_link: u64,
    dials: usize,
    scratch: Vec<u8>,
    now: Time,
}

impl LinkThread {
    pub fn new(parts: LinkParts) -> io::Result<LinkThread> {
        let listener = parts
            .listener
            .map(|listener| {
                listener.set_nonblocking(true)?;
                let mut listener = TcpListener::from_std(listener);
                parts
                    .poll
                    .registry()
                    .register(&mut listener, LISTENER, Interest::READABLE)?;
                io::Result::Ok(listener)
            })
            .transpose()?;
        let resolver = Resolver::start(parts.wake.clone())?;
        Ok(LinkThread {
            peering: parts.peering,
            now: parts.clock.now(),
            clock: parts.clock,
            poll: parts.poll,
            wake: parts.wake,
            accept_ready: listener.is_some(),
            accept_rest_until: None,
            listener,
            tls: parts.tls,
            refresh_at: Time::ZERO,
            rings: parts.rings,
            shards: parts.shards,
            peer_buffer: parts.peer_buffer,
            persist: parts.persist,
            status: parts.status,
            resolver,
            sockets: Slab::new(),
            by_link: BTreeMap::new(),
            next_link: 0,
            dials: 0,
            scratch: vec![0; 64 << 10],
        })
    }

    /// Runs until told to stop; an error is fatal to the node.
    pub fn run(mut self) -> Result<(), String> {
        let mut events = Events::with_capacity(256);
        let mut timeout = Duration::ZERO;
        loop {
            match self.poll.poll(&mut events, Some(timeout)) {
                Err(e) if e.kind() != ErrorKind::Interrupted => {
                    return Err(format!("peer links: {e}"));
                }
                _ => {}
            }
            self.now = self.clock.now();
            for event in &events {
                self.note(event);
            }
            let more = self.turn()?;
            if self.status.stop.load(Ordering::Acquire) {
                self.peering.stop();
                self.act()?;
                return Ok(());
            }
            timeout = if more { Duration::ZERO } else { self.timeout() };
        }
    }

    fn note(&mut self, event: &mio::event::Event) {
        match event.token() {
            WAKE => {}
            LISTENER => self.accept_ready = true,
            Token(key) => {
                if let Some(entry) = self.sockets.get_mut(key) {
                    entry.socket.readable |=
                        event.is_readable() || event.is_read_closed() || event.is_error();
                    entry.socket.writable |=
                        event.is_writable() || event.is_write_closed() || event.is_error();
                }
            }
        }
    }

    /// True when there is more to do at once.
    fn turn(&mut self) -> Result<bool, String> {
        self.wake.begin_turn();
        if self.now >= self.refresh_at {
            self.refresh_at = self.now + REFRESH;
            if let Some(tls) = &mut self.tls {
                tls.refresh();
            }
        }
        let mut more = self.accept();
        self.finish_connecting();
        more |= self.read_all();
        self.peering.tick(self.now);
        more |= self.take_outbound();
        while let Some((asked, address, found)) = self.resolver.answer() {
            self.resolved(asked, &address.host, found);
        }
        self.act()?;
        self.write_all();
        self.act()?;
        for shard in &mut self.shards {
            shard.flush();
        }
        let waiting = self.peering.waiting();
        let mut shown = self.status.lock();
        if shown.as_deref() != waiting {
            *shown = waiting.map(str::to_owned);
        }
        Ok(more)
    }

    fn timeout(&self) -> Duration {
        let connecting = self.sockets.iter().filter_map(|(_, e)| match e.state {
            State::Connecting { until, .. } => Some(until),
            State::Linked(_) => None,
        });
        let next = connecting
            .chain(self.accept_rest_until)
            .chain([self.peering.wake_at()])
            .min()
            .map_or(Duration::ZERO, |at| at.since(self.clock.now()));
        if self.shards.iter().any(|s| s.backlog() > 0) {
            return next.min(BACKLOG_RETRY);
        }
        next
    }

    fn accept(&mut self) -> bool {
        if let Some(until) = self.accept_rest_until {
            if self.now < until {
                return false;
            }
            self.accept_rest_until = None;
        }
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listener.as_ref().filter(|_| self.accept_ready) else {
                return false;
            };
            match listener.accept() {
                Ok((stream, from)) => self.admit(stream, from),
                Err(e) if e.kind() == ErrorKind::WouldBlock => self.accept_ready = false,
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    tracing::warn!(event = "peer.accept_failed", %error);
                    self.accept_rest_until = Some(self.now + ACCEPT_REST);
                    return false;
                }
            }
        }
        self.accept_ready
    }

    fn admit(&mut self, stream: TcpStream, from: SocketAddr) {
        let tls = match &self.tls {
            None if !from.ip().to_canonical().is_loopback() => {
                tracing::warn!(event = "peer.plain_refused", %from, "without cluster.auth only loopback may link");
                return;
            }
            None => None,
            Some(tls) => match tls.accept() {
                Ok(connection) => Some(connection),
                Err(error) => {
                    tracing::warn!(event = "peer.tls_failed", %from, %error);
                    return;
                }
            },
        };
        let link = self.new_link();
        if !self.peering.accepted(link) {
            tracing::warn!(event = "peer.too_many_strangers", %from);
            return;
        }
        if self.add(stream, tls, State::Linked(link)).is_none() {
            self.peering.closed(link);
        }
    }

    fn new_link(&mut self) -> LinkId {
        self.next_link += 1;
        LinkId(self.next_link)
    }

    /// Registers a connection; None when that failed.
    fn add(
        &mut self,
        mut stream: TcpStream,
        tls: Option<rustls::Connection>,
        state: State,
    ) -> Option<usize> {
        let entry = self.sockets.vacant_entry();
        let key = entry.key();
        let interest = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self
            .poll
            .registry()
            .register(&mut stream, Token(key), interest)
        {
            tracing::warn!(event = "peer.register_failed", %error);
            return None;
        }
        if let State::Linked(link) = state {
            self.by_link.insert(link, key);
        }
        let socket = Socket::new(stream, tls);
        entry.insert(Entry { socket, state });
        Some(key)
    }

    fn resolved(
        &mut self,
        asked: ResolveTarget,
        host: &str,
        found: Result<Vec<SocketAddr>, String>,
    ) {
        match (asked, found) {
            (ResolveTarget::Expand, found) => self.peering.expanded(&found.unwrap_or_default()),
            (ResolveTarget::Dial(target), Err(why)) => self.peering.dial_failed(target, &why),
            (ResolveTarget::Dial(target), Ok(found)) => {
                // Another address of the name with each attempt.
                self.dials = self.dials.wrapping_add(1);
                let at = self.dials.checked_rem(found.len()).unwrap_or(0);
                match found.get(at) {
                    Some(address) => self.connect(target, host, *address),
                    None => self.peering.dial_failed(target, "the name has no address"),
                }
            }
        }
    }

    fn connect(&mut self, target: TargetId, host: &str, address: SocketAddr) {
        if self.tls.is_none() && !address.ip().to_canonical().is_loopback() {
            return self
                .peering
                .dial_failed(target, "not on loopback, and cluster.auth is not set");
        }
        let state = State::Connecting {
            target,
            host: host.to_owned(),
            until: self.now + HANDSHAKE_TIMEOUT,
        };
        let added = match TcpStream::connect(address) {
            Ok(stream) => self.add(stream, None, state),
            Err(error) => return self.peering.dial_failed(target, &error.to_string()),
        };
        if added.is_none() {
            self.peering.dial_failed(target, "cannot register");
        }
    }

    /// Connections that were made, or failed, or take too long.
    fn finish_connecting(&mut self) {
        let pending = self.sockets.iter().filter_map(|(key, e)| match &e.state {
            State::Connecting {
                target,
                host,
                until,
            } => {
                let due = e.socket.writable || *until <= self.now;
                due.then(|| (key, *target, host.clone()))
            }
            State::Linked(_) => None,
        });
        let due: Vec<(usize, TargetId, String)> = pending.collect();
        for (key, target, host) in due {
            if let Err(why) = self.connected(key, target, &host) {
                self.remove(key);
                self.peering.dial_failed(target, &why);
            }
        }
    }

    fn connected(&mut self, key: usize, target: TargetId, host: &str) -> Result<(), String> {
        let tls = self.tls.as_ref().map(|tls| tls.dial(host)).transpose();
        let tls = tls.map_err(|e| e.to_string())?;
        let link = self.new_link();
        let entry = self.sockets.get_mut(key).ok_or("gone")?;
        if let Ok(Some(error)) | Err(error) = entry.socket.stream.take_error() {
            return Err(error.to_string());
        }
        let peer = entry.socket.stream.peer_addr();
        peer.map_err(|_| "not connected in time")?;
        // Without it the link still works.
        let _ = entry.socket.stream.set_nodelay(true);
        if let Some(tls) = tls {
            entry.socket.begin_tls(tls);
        }
        entry.state = State::Linked(link);
        self.by_link.insert(link, key);
        self.peering.dialled(target, link);
        Ok(())
    }

    fn read_all(&mut self) -> bool {
        let paused = self.shards.iter().any(|s| s.backlog() > BACKLOG_PAUSE);
        let mut more = false;
        let linked: Vec<(LinkId, usize)> = self.by_link.iter().map(|(l, k)| (*l, *k)).collect();
        for (link, key) in linked {
            if paused {
                // Not reading is our doing, so silence says nothing.
                self.peering.heard(link);
                continue;
            }
            let Some(entry) = self.sockets.get_mut(key).filter(|e| e.socket.readable) else {
                continue;
            };
            match entry.socket.read(&mut self.scratch) {
                Ok((any, end)) => {
                    if any {
                        self.peering.heard(link);
                        self.take_frames(link, key);
                    }
                    more |= end == ReadEnd::More;
                    if end == ReadEnd::Closed {
                        self.lose(link, "closed by the other side");
                    }
                }
                Err(error) => self.lose(link, &error.to_string()),
            }
        }
        more
    }

    fn take_frames(&mut self, link: LinkId, key: usize) {
        loop {
            let limit = if self.peering.identified(link) {
                MAX_FRAME
            } else {
                MAX_HANDSHAKE_FRAME
            };
            let Some(entry) = self.sockets.get_mut(key) else {
                return;
            };
            match wire::decode(&mut entry.socket.input, limit) {
                Ok(Some(Frame::Data { route, body })) => {
                    if let Some(from) = self.peering.established(link) {
                        self.deliver(from, route, body);
                    }
                }
                Ok(Some(frame)) => self.peering.frame(link, frame),
                Ok(None) => return,
                Err(error) => return self.lose(link, &error.to_string()),
            }
            // The frame may have ended the link; what is left in it does not count then.
            if !self.by_link.contains_key(&link) {
                return;
            }
        }
    }

    fn deliver(&mut self, from: NodeId, route: Route, frame: Bytes) {
        let count = u16::try_from(self.shards.len()).unwrap_or(u16::MAX);
        let shard = match route {
            Route::Shard(shard) => shard,
            Route::Owner(key) => shard_of(key, count),
        };
        match self.shards.get_mut(usize::from(shard)) {
            Some(ring) => ring.send(Inbound::PeerFrame { from, frame }),
            None => tracing::warn!(event = "peer.no_such_shard", shard),
        }
    }

    fn take_outbound(&mut self) -> bool {
        let mut more = false;
        for i in 0..self.rings.len() {
            for taken in 0.. {
                if taken == OUTBOUND_PER_TURN {
                    more = true;
                    break;
                }
                match self.rings.get_mut(i).and_then(Receiver::receive) {
                    Some(ToPeers::Send { to, route, frame }) => self.send(to, route, frame),
                    Some(ToPeers::Nodes(view)) => {
                        self.peering.set_nodes(&view.nodes);
                        self.peering.set_enabled(view.enabled);
                    }
                    None => break,
                }
            }
        }
        more
    }

    fn send(&mut self, to: NodeId, route: Route, frame: Bytes) {
        let Some(link) = self.peering.link_of(to) else {
            return;
        };
        let Some(header) = wire::data_header(route, frame.len()) else {
            tracing::error!(event = "peer.frame_too_large", bytes = frame.len());
            return;
        };
        let limit = self.peer_buffer;
        let Some(socket) = self.socket_of(link) else {
            return;
        };
        if !socket.has_room(DATA_HEADER + frame.len(), limit) {
            // Dropping single frames would leave holes that nobody notices; a closed link is noticed by both sides.
            return self.lose(link, "its send buffer is full");
        }
        socket.queue(&header, frame);
    }

    fn socket_of(&mut self, link: LinkId) -> Option<&mut Socket> {
        let key = self.by_link.get(&link)?;
        self.sockets.get_mut(*key).map(|e| &mut e.socket)
    }

    /// Carries out what the peering wants.
    fn act(&mut self) -> Result<(), String> {
        while let Some(action) = self.peering.poll() {
            match action {
                Action::Dial { target, address } => {
                    self.resolver.ask(ResolveTarget::Dial(target), address)
                }
                Action::Expand(address) => self.resolver.ask(ResolveTarget::Expand, address),
                Action::Send { link, frame } => {
                    if let Some(socket) = self.socket_of(link) {
                        socket.out.push(wire::encode(&frame));
                    }
                }
                Action::Close { link } => self.close(link),
                Action::Program { node, program } => {
                    if let Some(first) = self.shards.first_mut() {
                        first.send(Inbound::PeerVersion {
                            node,
                            version: program,
                        });
                    }
                }
                Action::End(why) => return Err(why),
                Action::Up { node, incarnation } => {
                    self.tell(|| Inbound::PeerUp { node, incarnation })
                }
                Action::Down { node } => self.tell(|| Inbound::PeerDown { node }),
                Action::Join(node) => {
                    if let Some(first) = self.shards.first_mut() {
                        first.send(Inbound::Join(node));
                    }
                }
                Action::Adopt(record) => {
                    (self.persist)(&record)?;
                    self.peering.adopted(record);
                }
            }
        }
        Ok(())
    }

    fn tell(&mut self, message: impl Fn() -> Inbound) {
        for shard in &mut self.shards {
            shard.send(message());
        }
    }

    fn write_all(&mut self) {
        let linked: Vec<(LinkId, usize)> = self.by_link.iter().map(|(l, k)| (*l, *k)).collect();
        for (link, key) in linked {
            if let Some(entry) = self.sockets.get_mut(key)
                && let Err(error) = entry.socket.write()
            {
                self.lose(link, &error.to_string());
            }
        }
    }

    /// Last words, then the end; the peering knows.
    fn close(&mut self, link: LinkId) {
        if let Some(key) = self.by_link.remove(&link) {
            if let Some(entry) = self.sockets.get_mut(key) {
                let _ = entry.socket.write();
                let _ = entry.socket.stream.shutdown(std::net::Shutdown::Write);
            }
            self.remove(key);
        }
    }

    /// The link broke, or is broken off.
    fn lose(&mut self, link: LinkId, why: &str) {
        tracing::info!(event = "peer.link_lost", link = link.0, why);
        if let Some(key) = self.by_link.remove(&link) {
            self.remove(key);
        }
        self.peering.closed(link);
    }

    fn remove(&mut self, key: usize) {
        if let Some(mut entry) = self.sockets.try_remove(key) {
            // Closing the descriptor would do it too.
            let _ = self.poll.registry().deregister(&mut entry.socket.stream);
        }
    }
}
