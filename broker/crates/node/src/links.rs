//! The thread of the links to other nodes: sockets, TLS and rings around [`Peering`].

use crate::identity::ClusterRecord;
use crate::link_tls::LinkTls;
use crate::peering::{HANDSHAKE_TIMEOUT, LinkId, Peering, PeeringAction, TargetId};
use crate::resolver::{ResolveTarget, Resolver};
use crate::socket::{ReadOutcome, Socket};
use crate::wire::{self, DATA_HEADER, Frame, MAX_FRAME, MAX_HANDSHAKE_FRAME};
use bytes::Bytes;
use env::{Clock, NodeId, Time};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use reactor::{LinkMessage, Receiver, Sender, ShardMessage, ThreadWaker};
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

/// Maximum number of frames taken from one shard's ring per turn.
const OUTBOUND_PER_TURN: usize = 1024;

/// Links are not read while more frames than this wait for a full shard ring.
const BACKLOG_PAUSE: usize = 1024;

/// Retry interval for a full ring.
const BACKLOG_RETRY: Duration = Duration::from_millis(1);

/// Interval of checks for changed certificate files.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of connections accepted per turn, and the pause after a failed accept.
const ACCEPTS_PER_TURN: usize = 16;
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Stores a cluster record durably. An error stops the node.
pub type StoreClusterRecord = Box<dyn FnMut(&ClusterRecord) -> Result<(), String> + Send>;

/// Parts of the link thread.
pub struct LinkParts {
    /// The state machine of all links.
    pub peering: Peering,
    /// The clocks of the node.
    pub clock: Arc<dyn Clock + Send + Sync>,
    /// The poll of the thread.
    pub poll: Poll,
    /// Wakes the thread.
    pub wake: Arc<ThreadWaker>,
    /// None: this is a single node.
    pub listener: Option<std::net::TcpListener>,
    /// None: no TLS, only between loopback addresses.
    pub tls: Option<LinkTls>,
    /// From the shards, indexed by shard.
    pub rings: Vec<Receiver<LinkMessage>>,
    /// To the shards, indexed by shard.
    pub shards: Vec<Sender<ShardMessage>>,
    /// Maximum number of bytes buffered for one peer.
    pub peer_buffer: usize,
    /// Stores the record of the cluster durably.
    pub persist: StoreClusterRecord,
    /// The state of the links, for other threads.
    pub status: Arc<LinkStatus>,
}

/// State of the thread that other threads may read.
#[derive(Debug, Default)]
pub struct LinkStatus {
    waiting: Mutex<Option<String>>,
    stop: AtomicBool,
}

impl LinkStatus {
    /// The reason why this node has no cluster yet.
    pub fn waiting(&self) -> Option<String> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Closes all links and ends the thread. Wake the thread after this call.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

enum LinkThreadState {
    /// A connection attempt to a target, with its deadline.
    Connecting {
        target: TargetId,
        host: String,
        until: Time,
    },
    Linked(LinkId),
}

struct LinkEntry {
    socket: Socket,
    state: LinkThreadState,
}

/// Creates the poll of the thread and the waker that its rings need.
pub fn poll_and_wake() -> io::Result<(Poll, Arc<ThreadWaker>)> {
    let poll = Poll::new()?;
    let wake = ThreadWaker::for_poll(poll.registry(), WAKE)?;
    Ok((poll, Arc::new(wake)))
}

/// The thread that has all connections to other nodes.
pub struct LinkThread {
    peering: Peering,
    clock: Arc<dyn Clock + Send + Sync>,
    poll: Poll,
    wake: Arc<ThreadWaker>,
    listener: Option<TcpListener>,
    accept_ready: bool,
    accept_paused_until: Option<Time>,
    tls: Option<LinkTls>,
    refresh_at: Time,
    rings: Vec<Receiver<LinkMessage>>,
    shards: Vec<Sender<ShardMessage>>,
    peer_buffer: usize,
    persist: StoreClusterRecord,
    status: Arc<LinkStatus>,
    resolver: Resolver,
    sockets: Slab<LinkEntry>,
    by_link: BTreeMap<LinkId, usize>,
    next_link: u64,
    dials: usize,
    scratch: Vec<u8>,
    now: Time,
}

impl LinkThread {
    /// A thread of these parts; an error of the operating system otherwise.
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
            accept_paused_until: None,
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

    /// Runs until stopped. An error is fatal to the node.
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

    /// Returns true if there is more work to do immediately.
    fn turn(&mut self) -> Result<bool, String> {
        self.wake.begin_turn();
        if self.now >= self.refresh_at {
            self.refresh_at = self.now + REFRESH_INTERVAL;
            if let Some(tls) = &mut self.tls {
                tls.refresh();
            }
        }
        let mut more = self.accept();
        self.finish_connecting();
        more |= self.read_all();
        self.peering.tick(self.now);
        more |= self.take_outbound();
        while let Some((resolve_target, address, addresses)) = self.resolver.answer() {
            self.resolved(resolve_target, &address.host, addresses);
        }
        self.act()?;
        self.write_all();
        self.act()?;
        for shard in &mut self.shards {
            shard.flush();
        }
        let waiting = self.peering.waiting();
        let mut published_reason = self.status.lock();
        if published_reason.as_deref() != waiting {
            *published_reason = waiting.map(str::to_owned);
        }
        Ok(more)
    }

    fn timeout(&self) -> Duration {
        let connecting = self.sockets.iter().filter_map(|(_, e)| match e.state {
            LinkThreadState::Connecting { until, .. } => Some(until),
            LinkThreadState::Linked(_) => None,
        });
        let next = connecting
            .chain(self.accept_paused_until)
            .chain([self.peering.wake_at()])
            .min()
            .map_or(Duration::ZERO, |at| at.since(self.clock.now()));
        if self.shards.iter().any(|s| s.backlog() > 0) {
            return next.min(BACKLOG_RETRY);
        }
        next
    }

    fn accept(&mut self) -> bool {
        if let Some(until) = self.accept_paused_until {
            if self.now < until {
                return false;
            }
            self.accept_paused_until = None;
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
                    self.accept_paused_until = Some(self.now + ACCEPT_PAUSE);
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
        if self
            .add(stream, tls, LinkThreadState::Linked(link))
            .is_none()
        {
            self.peering.closed(link);
        }
    }

    fn new_link(&mut self) -> LinkId {
        self.next_link += 1;
        LinkId(self.next_link)
    }

    /// Registers a connection; None if that failed.
    fn add(
        &mut self,
        mut stream: TcpStream,
        tls: Option<rustls::Connection>,
        state: LinkThreadState,
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
        if let LinkThreadState::Linked(link) = state {
            self.by_link.insert(link, key);
        }
        let socket = Socket::new(stream, tls);
        entry.insert(LinkEntry { socket, state });
        Some(key)
    }

    fn resolved(
        &mut self,
        resolve_target: ResolveTarget,
        host: &str,
        addresses: Result<Vec<SocketAddr>, String>,
    ) {
        match (resolve_target, addresses) {
            (ResolveTarget::Expand, addresses) => {
                self.peering.expanded(&addresses.unwrap_or_default())
            }
            (ResolveTarget::Dial(target), Err(why)) => self.peering.dial_failed(target, &why),
            (ResolveTarget::Dial(target), Ok(addresses)) => {
                // Each attempt uses another address of the name.
                self.dials = self.dials.wrapping_add(1);
                let at = self.dials.checked_rem(addresses.len()).unwrap_or(0);
                match addresses.get(at) {
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
        let state = LinkThreadState::Connecting {
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
            LinkThreadState::Connecting {
                target,
                host,
                until,
            } => {
                let due = e.socket.writable || *until <= self.now;
                due.then(|| (key, *target, host.clone()))
            }
            LinkThreadState::Linked(_) => None,
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
        // The link works without it, too.
        let _ = entry.socket.stream.set_nodelay(true);
        if let Some(tls) = tls {
            entry.socket.begin_tls(tls);
        }
        entry.state = LinkThreadState::Linked(link);
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
                // We stopped reading ourselves, so the silence must not count as a timeout.
                self.peering.note_activity(link);
                continue;
            }
            let Some(entry) = self.sockets.get_mut(key).filter(|e| e.socket.readable) else {
                continue;
            };
            match entry.socket.read(&mut self.scratch) {
                Ok((any, end)) => {
                    if any {
                        self.peering.note_activity(link);
                        self.take_frames(link, key);
                    }
                    more |= end == ReadOutcome::More;
                    if end == ReadOutcome::Closed {
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
            // The frame may have closed the link. Frames after it are ignored.
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
            Some(ring) => ring.send(ShardMessage::PeerFrame { from, frame }),
            None => tracing::warn!(event = "peer.no_such_shard", shard),
        }
    }

    fn take_outbound(&mut self) -> bool {
        let mut more = false;
        for i in 0..self.rings.len() {
            for received in 0.. {
                if received == OUTBOUND_PER_TURN {
                    more = true;
                    break;
                }
                match self.rings.get_mut(i).and_then(Receiver::receive) {
                    Some(LinkMessage::Send { to, route, frame }) => self.send(to, route, frame),
                    Some(LinkMessage::Nodes(view)) => {
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
            // Dropping single frames would leave undetected gaps; a closed link is noticed by both
            // sides.
            return self.lose(link, "its send buffer is full");
        }
        socket.queue(&header, frame);
    }

    fn socket_of(&mut self, link: LinkId) -> Option<&mut Socket> {
        let key = self.by_link.get(&link)?;
        self.sockets.get_mut(*key).map(|e| &mut e.socket)
    }

    /// Performs the actions of the peering.
    fn act(&mut self) -> Result<(), String> {
        while let Some(action) = self.peering.poll() {
            match action {
                PeeringAction::Dial { target, address } => {
                    self.resolver.ask(ResolveTarget::Dial(target), address)
                }
                PeeringAction::Expand(address) => self.resolver.ask(ResolveTarget::Expand, address),
                PeeringAction::Send { link, frame } => {
                    if let Some(socket) = self.socket_of(link) {
                        socket.out.push(wire::encode(&frame));
                    }
                }
                PeeringAction::Close { link } => self.close(link),
                PeeringAction::PeerVersion { node, version } => {
                    if let Some(first) = self.shards.first_mut() {
                        first.send(ShardMessage::PeerVersion { node, version });
                    }
                }
                PeeringAction::End(why) => return Err(why),
                PeeringAction::Up {
                    node,
                    incarnation,
                    shards,
                } => self.tell(|| ShardMessage::PeerUp {
                    node,
                    incarnation,
                    shards,
                }),
                PeeringAction::Store(record) => (self.persist)(&record)?,
                PeeringAction::Down { node } => self.tell(|| ShardMessage::PeerDown { node }),
                PeeringAction::Join(node) => {
                    if let Some(first) = self.shards.first_mut() {
                        first.send(ShardMessage::Join(node));
                    }
                }
                PeeringAction::Adopt(record) => {
                    (self.persist)(&record)?;
                    self.peering.adopted(record);
                }
            }
        }
        Ok(())
    }

    fn tell(&mut self, message: impl Fn() -> ShardMessage) {
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

    /// Flushes what it can and closes the link. The peering has already been informed.
    fn close(&mut self, link: LinkId) {
        if let Some(key) = self.by_link.remove(&link) {
            if let Some(entry) = self.sockets.get_mut(key) {
                let _ = entry.socket.write();
                let _ = entry.socket.stream.shutdown(std::net::Shutdown::Write);
            }
            self.remove(key);
        }
    }

    /// Removes a broken link and informs the peering.
    fn lose(&mut self, link: LinkId, why: &str) {
        tracing::info!(event = "peer.link_lost", link = link.0, why);
        if let Some(key) = self.by_link.remove(&link) {
            self.remove(key);
        }
        self.peering.closed(link);
    }

    fn remove(&mut self, key: usize) {
        if let Some(mut entry) = self.sockets.try_remove(key) {
            // Closing the descriptor would also remove it.
            let _ = self.poll.registry().deregister(&mut entry.socket.stream);
        }
    }
}
