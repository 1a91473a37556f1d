//! A loop's work on its client connections: accept, read, write.

use crate::connection::{Connection, Phase};
use crate::event_loop::{ACCEPT_REST, ShardLoop};
use crate::secure::{SHAKES_PER_TURN, Secure};
use bytes::BytesMut;
use mio::net::TcpStream;
use mio::{Interest, Token};
use session::{ConnectionInfo, ProtocolId};
use session::{Outbox, SessionState};
use shard::ConnectionKey;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Reads of one connection per turn.
pub(crate) const READS_PER_TURN: usize = 4;

/// How long a client may have to wait for its turn; who would have to wait for longer is left to the kernel.
const LOBBY_TIME: Duration = Duration::from_secs(10);

/// Clients that wait for their turn, whatever the pace.
const LOBBY: usize = 65_536;

/// Connections served per turn.
const SERVES_PER_TURN: usize = 4096;

/// Pieces of an outbox per writev.
const PIECES_PER_WRITE: usize = 64;

/// Bytes written to one connection per turn and round.
pub(crate) const WRITE_PER_ROUND: usize = 1 << 20;

/// What one flush of a connection came to.
pub(crate) enum FlushResult {
    /// Nothing is left.
    Empty,
    /// The round's share is used up.
    Some,
    Blocked,
    Broken,
}

impl ShardLoop {
    pub(crate) fn enqueue(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if !connection.queued && connection.wants_service() {
            connection.queued = true;
            self.queue.push_back(key);
        }
    }

    pub(crate) fn mark_dirty(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if !connection.dirty && connection.phase != Phase::Lingering {
            connection.dirty = true;
            self.dirty.push(key);
        }
    }

    /// Accepts this turn's share of every listener, and lets in as many as the pace allows. True when more may wait.
    pub(crate) fn accept_all(&mut self) -> bool {
        let rests = self.accept_rest_until.is_some_and(|until| self.now < until);
        if !rests {
            self.accept_rest_until = None;
        }
        self.let_in_at = None;
        let mut more = false;
        for i in 0..self.listeners.len() {
            more |= !rests && self.accept_some(i);
            more |= self.let_in(i);
        }
        more
    }

    fn accept_some(&mut self, i: usize) -> bool {
        let lobby = self.pace.within(LOBBY_TIME).clamp(1, LOBBY);
        for _ in 0..self.config.accepts_per_turn {
            let waiting: usize = self.listeners.iter().map(|l| l.waiting.len()).sum();
            let Some(listener) = self.listeners.get_mut(i).filter(|l| l.ready) else {
                return false;
            };
            if self.connections.len() + waiting >= self.config.rest_at {
                self.rest(i, "as many connections as descriptors allow");
                return false;
            }
            if waiting >= lobby {
                return false;
            }
            let Some(socket) = &listener.socket else {
                return false;
            };
            match socket.accept() {
                Ok(accepted) => {
                    listener.waiting.push_back(accepted);
                    if std::mem::take(&mut self.resting) {
                        tracing::info!(event = "listener.accepts_again", address = %listener.address);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    listener.ready = false;
                    return false;
                }
                // The client gave up before we looked.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    self.rest(i, &error.to_string());
                    return false;
                }
            }
        }
        true
    }

    fn let_in(&mut self, i: usize) -> bool {
        for _ in 0..self.config.accepts_per_turn {
            let Some(listener) = self.listeners.get_mut(i) else {
                return false;
            };
            if listener.waiting.is_empty() || listener.tls.is_some() && self.shakes_wait {
                return false;
            }
            if let Err(again) = self.pace.look(self.now) {
                self.let_in_at = Some(again);
                return false;
            }
            if let Some((socket, peer)) = listener.waiting.pop_front() {
                self.pace.took(self.now);
                self.admit(i, socket, peer);
            }
        }
        true
    }

    /// Nothing can be accepted for now. Said once, until it can.
    fn rest(&mut self, i: usize, why: &str) {
        self.accept_rest_until = Some(self.now + ACCEPT_REST);
        let Some(listener) = self.listeners.get(i).filter(|_| !self.resting) else {
            return;
        };
        self.resting = true;
        tracing::warn!(
            event = "listener.accept_rests",
            address = %listener.address,
            connections = self.connections.len(),
            why
        );
    }

    fn admit(&mut self, i: usize, mut socket: TcpStream, peer: SocketAddr) {
        if self.connections.len() >= self.config.max_connections {
            if !self.refusing {
                self.refusing = true;
                let limit = self.config.max_connections;
                tracing::warn!(
                    event = "listener.connection_limit",
                    limit,
                    "new connections are closed"
                );
            }
            return;
        }
        self.refusing = false;
        let Ok(local) = socket.local_addr() else {
            return;
        };
        let listener = self.listeners.get(i);
        let protocol = listener.map_or(ProtocolId::default(), |l| l.protocol);
        let tls = listener.and_then(|l| l.tls.as_ref());
        let secure = match tls.map(Secure::accept).transpose() {
            Ok(secure) => secure,
            Err(error) => {
                tracing::warn!(event = "connection.tls_failed", %peer, error);
                return;
            }
        };
        // Without it the socket still works.
        let _ = socket.set_nodelay(true);
        let key = self.connections.vacant_key();
        if let Err(error) =
            self.poll
                .registry()
                .register(&mut socket, Token(key), Interest::READABLE)
        {
            tracing::warn!(event = "connection.register_failed", %error);
            return;
        }
        self.next_serial = self.next_serial.wrapping_add(1);
        let shaking = secure.is_some();
        let connection = Connection::new(socket, protocol, self.next_serial, secure);
        self.connections.insert(connection);
        if shaking {
            let at = self.now + self.config.tls_handshake;
            self.shaking.push_back((at, key, self.next_serial));
            return;
        }
        let info = ConnectionInfo {
            protocol,
            peer,
            local,
            tls: None,
        };
        self.driver.connected(ConnectionKey(key), info);
    }

    /// Serves connections with something to read.
    pub(crate) fn serve_queue(&mut self) {
        let mut shakes = 0;
        // What is queued again meanwhile waits for the next turn.
        for _ in 0..self.queue.len().min(SERVES_PER_TURN) {
            if self.backlogged() {
                return;
            }
            if self.taken >= self.config.bytes_per_turn {
                break;
            }
            let Some(key) = self.queue.pop_front() else {
                break;
            };
            if let Some(connection) = self.connections.get_mut(key) {
                if connection.phase == Phase::Shaking {
                    shakes += 1;
                    if shakes > SHAKES_PER_TURN {
                        self.queue.push_back(key);
                        continue;
                    }
                }
                connection.queued = false;
                match connection.phase {
                    Phase::Lingering => self.discard(key),
                    _ => self.serve(key),
                }
                self.enqueue(key);
            }
        }
        self.shakes_wait = shakes > SHAKES_PER_TURN;
    }

    fn serve(&mut self, key: usize) {
        self.serve_rest(key);
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(key) else {
                return;
            };
            // TLS that failed has ended it meanwhile.
            let over = connection.phase == Phase::Lingering;
            if over || !connection.readable || !connection.wants_service() {
                return;
            }
            let before = match connection.held.secure() {
                Some(secure) => secure.rest(),
                None => connection.held.small_partial(),
            };
            let is_behind_partial = !before.is_empty();
            let read = self.scratch.read(before, &mut connection.socket);
            match read {
                Ok(None) => return self.close(key),
                Ok(Some((bytes, full))) => {
                    self.taken += bytes.len() as u64;
                    // A short read has emptied the socket; the next bytes make a new event.
                    connection.readable = full || connection.hung_up;
                    if connection.held.secure().is_some() {
                        self.unseal(key, bytes);
                    } else {
                        if is_behind_partial {
                            connection.held.take_partial();
                        }
                        self.received(key, bytes);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    connection.readable = false;
                    return;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.close(key),
            }
        }
    }

    /// Whole frames that a pause left behind.
    fn serve_rest(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if std::mem::take(&mut connection.resume)
            && connection.session_state == SessionState::Open
            && connection.held.has_partial()
        {
            self.received(key, BytesMut::new());
        }
    }

    pub(crate) fn received(&mut self, key: usize, bytes: BytesMut) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let (mut input, is_own) = match connection.held.take_partial() {
            None => (bytes, false),
            Some(mut partial) => {
                partial.extend_from_slice(&bytes);
                (partial, true)
            }
        };
        let session_state = self.driver.received(ConnectionKey(key), &mut input);
        if session_state == SessionState::Open && input.len() > self.config.max_partial {
            tracing::warn!(event = "connection.frame_too_large", bytes = input.len());
            return self.close(key);
        }
        connection.held.keep(input, is_own);
        self.stand(key, session_state);
    }

    fn stand(&mut self, key: usize, session_state: SessionState) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let before = std::mem::replace(&mut connection.session_state, session_state);
        match session_state {
            SessionState::Closing if connection.phase == Phase::Serving => {
                connection.phase = Phase::Flushing;
                self.end_within_deadline(key);
                self.mark_dirty(key);
            }
            SessionState::Open if before == SessionState::Paused => {
                connection.resume = true;
                self.enqueue(key);
            }
            _ => {}
        }
    }

    pub(crate) fn flush_dirty(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        for key in dirty.drain(..) {
            if let Some(connection) = self.connections.get_mut(key) {
                connection.dirty = false;
                self.flush(key);
            }
        }
        // What was marked meanwhile is in the new list; keep the larger allocation.
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
    }

    fn flush(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        match connection.phase {
            Phase::Shaking => return self.flush_shaking(key),
            Phase::Lingering => return,
            Phase::Serving | Phase::Flushing => {}
        }
        let Some((outbox, _)) = self.driver.outbox(ConnectionKey(key)) else {
            return self.close(key);
        };
        let before = outbox.len();
        let last = connection.phase == Phase::Flushing;
        let socket = &mut connection.socket;
        let flushed = match connection.held.secure_mut() {
            None => write_some(socket, outbox),
            Some(secure) => secure.write_some(socket, outbox, &mut self.workspace, last),
        };
        let left = outbox.len();
        if matches!(flushed, FlushResult::Broken) {
            return self.close(key);
        }
        if connection.held.secure().is_some() {
            self.tell_sealed(key);
        }
        if left < before {
            self.driver.drained(ConnectionKey(key));
        }
        self.after_flush(key, &flushed);
    }

    /// Looks again at the connection after the driver may have changed its mind about it.
    fn after_flush(&mut self, key: usize, flushed: &FlushResult) {
        let Some((outbox, session_state)) = self.driver.outbox(ConnectionKey(key)) else {
            return self.close(key);
        };
        let left = outbox.len();
        if left > self.config.outbox_limit {
            tracing::warn!(
                event = "connection.too_slow",
                bytes = left,
                "client does not read"
            );
            return self.close(key);
        }
        self.stand(key, session_state);
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let was_glutted =
            std::mem::replace(&mut connection.glutted, left > self.config.outbox_pause);
        let blocked = matches!(flushed, FlushResult::Blocked);
        let unglutted = was_glutted && !connection.glutted;
        // A connection with TLS says its last word in the flush that follows.
        let over = connection.phase == Phase::Flushing && left == 0 && connection.is_silent();
        self.set_blocked(key, blocked);
        if over {
            return self.linger(key);
        }
        if unglutted {
            self.enqueue(key);
        }
        if left > 0 && !blocked {
            self.mark_dirty(key);
        }
    }

    /// Whether the socket took less than there was: then it tells when there is room.
    pub(crate) fn set_blocked(&mut self, key: usize, blocked: bool) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        if blocked == connection.blocked {
            return;
        }
        connection.blocked = blocked;
        let interest = if blocked {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        let registry = self.poll.registry();
        if registry
            .reregister(&mut connection.socket, Token(key), interest)
            .is_err()
        {
            self.close(key);
        }
    }
}

fn write_some(socket: &mut TcpStream, outbox: &mut Outbox) -> FlushResult {
    let mut written = 0;
    while !outbox.is_empty() {
        if written >= WRITE_PER_ROUND {
            return FlushResult::Some;
        }
        match write_once(socket, outbox) {
            Ok(0) => return FlushResult::Broken,
            Ok(n) => {
                outbox.consume(n);
                written += n;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => return FlushResult::Blocked,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return FlushResult::Broken,
        }
    }
    FlushResult::Empty
}

fn write_once(socket: &mut TcpStream, outbox: &mut Outbox) -> io::Result<usize> {
    let pieces = outbox.pieces();
    if let (1, Some(piece)) = (pieces.len(), pieces.front()) {
        return socket.write(piece);
    }
    let mut slices = [IoSlice::new(&[]); PIECES_PER_WRITE];
    let mut count = 0;
    for (slice, piece) in slices.iter_mut().zip(pieces) {
        *slice = IoSlice::new(piece);
        count += 1;
    }
    socket.write_vectored(slices.get(..count).unwrap_or_default())
}
