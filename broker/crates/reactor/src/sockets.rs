//! Input and output of client connections: accept, read and write.

use crate::connection::{Connection, ConnectionPhase};
use crate::event_loop::{ACCEPT_PAUSE, ShardLoop};
use crate::secure::{HANDSHAKES_PER_TURN, TlsConnection};
use bytes::BytesMut;
use mio::net::TcpStream;
use mio::{Interest, Token};
use session::{ConnectionInfo, ProtocolId};
use session::{Outbox, SessionState};
use shard::ConnectionKey;
use std::io::{self, ErrorKind, IoSlice, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Maximum number of reads of one connection per turn.
pub(crate) const READS_PER_TURN: usize = 4;

/// Maximum time that an accepted client waits for admission. Further clients are left in the
/// kernel's backlog.
const MAX_ADMISSION_WAIT: Duration = Duration::from_secs(10);

/// Maximum number of accepted clients that wait for admission, regardless of the rate.
const MAX_WAITING: usize = 65_536;

/// Maximum number of connections served per turn.
const SERVES_PER_TURN: usize = 4096;

/// Maximum number of outbox pieces per writev.
const PIECES_PER_WRITE: usize = 64;

/// Bytes written to one connection per round.
pub(crate) const WRITE_PER_ROUND: usize = 1 << 20;

/// The result of flushing a connection.
pub(crate) enum FlushResult {
    /// All output was written.
    Empty,
    /// The round's share is used up.
    Some,
    /// The socket accepts no more.
    Blocked,
    /// The socket failed.
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
        if !connection.dirty && connection.phase != ConnectionPhase::Lingering {
            connection.dirty = true;
            self.dirty.push(key);
        }
    }

    /// Accepts this turn's share of every listener and admits connections as the rate allows.
    /// Returns true if more may be pending.
    pub(crate) fn accept_all(&mut self) -> bool {
        let is_paused = self
            .accept_paused_until
            .is_some_and(|until| self.now < until);
        if !is_paused {
            self.accept_paused_until = None;
        }
        self.admit_at = None;
        let mut more = false;
        for i in 0..self.listeners.len() {
            more |= !is_paused && self.accept_some(i);
            more |= self.admit_waiting(i);
        }
        more
    }

    fn accept_some(&mut self, i: usize) -> bool {
        let max_waiting = self
            .admission_rate
            .within(MAX_ADMISSION_WAIT)
            .clamp(1, MAX_WAITING);
        for _ in 0..self.config.accepts_per_turn {
            let waiting: usize = self.listeners.iter().map(|l| l.waiting.len()).sum();
            let Some(listener) = self.listeners.get_mut(i).filter(|l| l.ready) else {
                return false;
            };
            if self.connections.len() + waiting >= self.config.accept_pause_at {
                self.pause_accepting(i, "as many connections as descriptors allow");
                return false;
            }
            if waiting >= max_waiting {
                return false;
            }
            let Some(socket) = &listener.socket else {
                return false;
            };
            match socket.accept() {
                Ok(accepted) => {
                    listener.waiting.push_back(accepted);
                    if std::mem::take(&mut self.accept_paused) {
                        tracing::info!(event = "listener.accepts_again", address = %listener.address);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    listener.ready = false;
                    return false;
                }
                // The client gave up before it was accepted.
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    self.pause_accepting(i, &error.to_string());
                    return false;
                }
            }
        }
        true
    }

    fn admit_waiting(&mut self, i: usize) -> bool {
        for _ in 0..self.config.accepts_per_turn {
            let Some(listener) = self.listeners.get_mut(i) else {
                return false;
            };
            if listener.waiting.is_empty() || listener.tls.is_some() && self.handshakes_wait {
                return false;
            }
            if let Err(retry_at) = self.admission_rate.check(self.now) {
                self.admit_at = Some(retry_at);
                return false;
            }
            if let Some((socket, peer)) = listener.waiting.pop_front() {
                self.admission_rate.record(self.now);
                self.admit(i, socket, peer);
            }
        }
        true
    }

    /// Pauses accepting. The pause is logged once until accepting succeeds again.
    fn pause_accepting(&mut self, i: usize, why: &str) {
        self.accept_paused_until = Some(self.now + ACCEPT_PAUSE);
        let Some(listener) = self.listeners.get(i).filter(|_| !self.accept_paused) else {
            return;
        };
        self.accept_paused = true;
        tracing::warn!(
            event = "listener.accept_rests",
            address = %listener.address,
            connections = self.connections.len(),
            why
        );
    }

    /// Registers an accepted connection, or closes it if the connection limit is reached.
    fn admit(&mut self, i: usize, mut socket: TcpStream, peer: SocketAddr) {
        let limit = self.config.max_connections.load(Ordering::Relaxed);
        if self.connections.len() >= limit {
            if !self.refusing {
                self.refusing = true;
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
        let secure = match tls.map(TlsConnection::accept).transpose() {
            Ok(secure) => secure,
            Err(error) => {
                tracing::warn!(event = "connection.tls_failed", %peer, error);
                return;
            }
        };
        // A failure only affects latency.
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
        let is_secure = secure.is_some();
        let connection = Connection::new(socket, protocol, self.next_serial, secure);
        self.connections.insert(connection);
        if is_secure {
            let at = self.now + self.config.tls_handshake;
            self.handshaking.push_back((at, key, self.next_serial));
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

    /// Serves connections that have input.
    pub(crate) fn serve_queue(&mut self) {
        let mut handshakes = 0;
        // Connections queued meanwhile wait for the next turn.
        for _ in 0..self.queue.len().min(SERVES_PER_TURN) {
            if self.backlogged() {
                return;
            }
            if self.bytes_read >= self.config.bytes_per_turn {
                break;
            }
            let Some(key) = self.queue.pop_front() else {
                break;
            };
            if let Some(connection) = self.connections.get_mut(key) {
                if connection.phase == ConnectionPhase::Handshaking {
                    handshakes += 1;
                    if handshakes > HANDSHAKES_PER_TURN {
                        self.queue.push_back(key);
                        continue;
                    }
                }
                connection.queued = false;
                match connection.phase {
                    ConnectionPhase::Lingering => self.discard(key),
                    _ => self.serve(key),
                }
                self.enqueue(key);
            }
        }
        self.handshakes_wait = handshakes > HANDSHAKES_PER_TURN;
    }

    fn serve(&mut self, key: usize) {
        self.serve_buffered(key);
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(key) else {
                return;
            };
            // A TLS error in this loop may have ended the connection.
            let has_ended = connection.phase == ConnectionPhase::Lingering;
            if has_ended || !connection.readable || !connection.wants_service() {
                return;
            }
            let before = match connection.held.secure() {
                Some(secure) => secure.rest(),
                None => connection.held.small_partial(),
            };
            let follows_partial = !before.is_empty();
            let read = self.scratch.read(before, &mut connection.socket);
            match read {
                Ok(None) => return self.close(key),
                Ok(Some((bytes, full))) => {
                    self.bytes_read += bytes.len() as u64;
                    // A short read has emptied the socket. Further input causes a new event.
                    connection.readable = full || connection.hung_up;
                    if connection.held.secure().is_some() {
                        self.unseal(key, bytes);
                    } else {
                        if follows_partial {
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

    /// Serves complete frames that a pause left in the buffer.
    fn serve_buffered(&mut self, key: usize) {
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

    /// Passes plain input to the driver and stores the rest.
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
        connection.held.store_partial(input, is_own);
        self.update_state(key, session_state);
    }

    /// Acts on a change of the session's state.
    fn update_state(&mut self, key: usize, session_state: SessionState) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let before = std::mem::replace(&mut connection.session_state, session_state);
        match session_state {
            SessionState::Closing if connection.phase == ConnectionPhase::Serving => {
                connection.phase = ConnectionPhase::Flushing;
                self.start_close_timeout(key);
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
        // Connections marked meanwhile are in the new list. Keep the larger allocation.
        if self.dirty.is_empty() {
            self.dirty = dirty;
        }
    }

    fn flush(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        match connection.phase {
            ConnectionPhase::Handshaking => return self.flush_handshake(key),
            ConnectionPhase::Lingering => return,
            ConnectionPhase::Serving | ConnectionPhase::Flushing => {}
        }
        let Some((outbox, _)) = self.driver.outbox(ConnectionKey(key)) else {
            return self.close(key);
        };
        let before = outbox.len();
        let last = connection.phase == ConnectionPhase::Flushing;
        let socket = &mut connection.socket;
        let flushed = match connection.held.secure_mut() {
            None => write_some(socket, outbox),
            Some(secure) => secure.write_some(socket, outbox, &mut self.workspace, last),
        };
        let unsent = outbox.len();
        if matches!(flushed, FlushResult::Broken) {
            return self.close(key);
        }
        if connection.held.secure().is_some() {
            self.report_tls_memory(key);
        }
        if unsent < before {
            self.driver.drained(ConnectionKey(key));
        }
        self.after_flush(key, &flushed);
    }

    /// Updates the connection after a flush, because the driver may have added output or changed
    /// the session's state.
    fn after_flush(&mut self, key: usize, flushed: &FlushResult) {
        let Some((outbox, session_state)) = self.driver.outbox(ConnectionKey(key)) else {
            return self.close(key);
        };
        let unsent = outbox.len();
        if unsent > self.config.outbox_limit {
            tracing::warn!(
                event = "connection.too_slow",
                bytes = unsent,
                "client does not read"
            );
            return self.close(key);
        }
        self.update_state(key, session_state);
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let was_exceeded = std::mem::replace(
            &mut connection.output_exceeded,
            unsent > self.config.outbox_pause,
        );
        let blocked = matches!(flushed, FlushResult::Blocked);
        let resumes_reading = was_exceeded && !connection.output_exceeded;
        // With TLS, close_notify is sent by the following flush.
        let is_complete = connection.phase == ConnectionPhase::Flushing
            && unsent == 0
            && connection.tls_finished();
        self.set_blocked(key, blocked);
        if is_complete {
            return self.linger(key);
        }
        if resumes_reading {
            self.enqueue(key);
        }
        if unsent > 0 && !blocked {
            self.mark_dirty(key);
        }
    }

    /// Records whether the socket blocks. While it does, a writable event is requested.
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
