//! Client connections with TLS: records in, records out, handshakes a few at a time.
//!
//! Between two events a connection owns its keys and what has come of a record that is not whole; plain bytes and
//! sealed ones go through buffers that all connections of the thread share.

use crate::connection::Phase;
use crate::event_loop::ShardLoop;
use crate::scratch::READ_CHUNK;
use crate::sockets::{FlushResult, WRITE_PER_ROUND};
use auth::TlsPeer;
use bytes::BytesMut;
use mio::net::TcpStream;
use session::{ConnectionInfo, Outbox};
use shard::ConnectionKey;
use std::io::{self, ErrorKind, Write};
use std::sync::Arc;
use tls::{Channel, ChannelError, Outgoing, ReceiveOutcome};

/// Steps of handshakes per turn: each may take a millisecond, which a shard owes to its other connections.
pub(crate) const SHAKES_PER_TURN: usize = 4;

/// Plain bytes that are sealed for one write.
const SEAL_AT_ONCE: usize = 64 << 10;

/// Plain bytes of a record; smaller pieces of an outbox go into one together.
const RECORD: usize = 16 << 10;

/// What all TLS connections of a thread use, one after the other. Empty between two uses.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    plain: BytesMut,
    gathered: Vec<u8>,
    out: Outgoing,
    /// What was found out about the last client: those without a certificate mostly differ in nothing.
    last: Arc<TlsPeer>,
}

/// A connection's TLS.
pub(crate) struct Secure {
    channel: Channel,
    server: Arc<tls::Server>,
    /// Sealed, and not yet taken by the socket: at most what one write was to take.
    waiting: BytesMut,
    /// close_notify has been sealed.
    ended: bool,
    /// Bytes that the connection held when the memory budget was told of them last.
    told: u32,
}

impl Secure {
    /// For a connection that was accepted now.
    pub fn accept(server: &Arc<tls::Server>) -> Result<Box<Secure>, String> {
        let channel = server.accept().map_err(|e| e.to_string())?;
        Ok(Box::new(Secure {
            channel,
            server: server.clone(),
            waiting: BytesMut::new(),
            ended: false,
            told: 0,
        }))
    }

    /// Bytes that the next ones complete.
    pub fn rest(&self) -> &[u8] {
        self.channel.rest()
    }

    /// Bytes that wait here: of a record that is not complete, and of those that the socket does not take.
    fn held(&self) -> usize {
        self.channel.rest().len() + self.waiting.len()
    }

    /// Whether the last word is said, and out.
    pub fn is_silent(&self) -> bool {
        self.ended && self.waiting.is_empty()
    }

    fn unseal(
        &mut self,
        input: &mut [u8],
        work: &mut Workspace,
    ) -> Result<ReceiveOutcome, ChannelError> {
        if work.plain.capacity() < input.len() {
            work.plain.reserve(input.len().max(READ_CHUNK));
        }
        let received = self.channel.receive(input, &mut work.plain, &mut work.out);
        self.waiting.extend_from_slice(work.out.filled());
        work.out.clear();
        received
    }

    /// Writes what waits. False: the socket took less.
    fn write_waiting(&mut self, socket: &mut TcpStream) -> io::Result<bool> {
        if self.waiting.is_empty() {
            return Ok(true);
        }
        let taken = write_all(socket, &self.waiting)?;
        if taken < self.waiting.len() {
            let _ = self.waiting.split_to(taken);
            return Ok(false);
        }
        self.waiting = BytesMut::new();
        Ok(true)
    }

    /// Writes what was sealed; nothing waits before it.
    fn write_sealed(&mut self, socket: &mut TcpStream, work: &mut Workspace) -> io::Result<bool> {
        let sealed = work.out.filled();
        let taken = write_all(socket, sealed);
        if let Ok(taken) = taken {
            let rest = sealed.get(taken..).unwrap_or_default();
            self.waiting = BytesMut::from(rest);
        }
        work.out.clear();
        taken.map(|_| self.waiting.is_empty())
    }

    /// Seals a write's worth of the outbox. How many plain bytes that were.
    fn seal(&mut self, outbox: &mut Outbox, work: &mut Workspace) -> Result<usize, ChannelError> {
        let mut sealed = 0;
        while sealed < SEAL_AT_ONCE {
            let pieces = outbox.pieces();
            let Some(first) = pieces.front() else {
                break;
            };
            let part = if first.len() >= RECORD || pieces.len() == 1 {
                let most = SEAL_AT_ONCE - sealed;
                first.get(..first.len().min(most)).unwrap_or_default()
            } else {
                work.gathered.clear();
                for piece in pieces {
                    let room = RECORD - work.gathered.len();
                    let part = piece.get(..piece.len().min(room));
                    work.gathered.extend_from_slice(part.unwrap_or_default());
                    if work.gathered.len() == RECORD {
                        break;
                    }
                }
                &work.gathered[..]
            };
            self.channel.seal(part, &mut work.out)?;
            let taken = part.len();
            outbox.consume(taken);
            sealed += taken;
        }
        Ok(sealed)
    }

    /// The share of one round. `last`: nothing follows what is in the outbox.
    pub fn write_some(
        &mut self,
        socket: &mut TcpStream,
        outbox: &mut Outbox,
        work: &mut Workspace,
        last: bool,
    ) -> FlushResult {
        let mut written = 0;
        let mut free = self.write_waiting(socket);
        loop {
            match free {
                Ok(true) => {}
                Ok(false) => return FlushResult::Blocked,
                Err(_) => return FlushResult::Broken,
            }
            if outbox.is_empty() {
                break;
            }
            if written >= WRITE_PER_ROUND {
                return FlushResult::Some;
            }
            match self.seal(outbox, work) {
                Ok(sealed) => written += sealed,
                Err(error) => {
                    tracing::warn!(event = "connection.tls_failed", %error);
                    work.out.clear();
                    return FlushResult::Broken;
                }
            }
            free = self.write_sealed(socket, work);
        }
        match last && !self.ended {
            true => self.end(socket, work),
            false => FlushResult::Empty,
        }
    }

    /// Says close_notify. Nothing waits before it.
    fn end(&mut self, socket: &mut TcpStream, work: &mut Workspace) -> FlushResult {
        self.ended = true;
        self.channel.end(&mut work.out);
        match self.write_sealed(socket, work) {
            Ok(true) => FlushResult::Empty,
            Ok(false) => FlushResult::Blocked,
            Err(_) => FlushResult::Broken,
        }
    }

    /// The last word of a connection that is about to be closed, when there is room for it.
    pub fn end_at_once(&mut self, socket: &mut TcpStream, work: &mut Workspace) {
        if self.waiting.is_empty() && !self.ended {
            self.end(socket, work);
        }
    }
}

/// How many bytes the socket took.
fn write_all(socket: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut taken = 0;
    while let Some(rest) = bytes.get(taken..).filter(|rest| !rest.is_empty()) {
        match socket.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => taken += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(taken)
}

impl ShardLoop {
    /// Bytes of a connection with TLS, behind those that waited for them: what they say goes to the driver.
    pub(crate) fn unseal(&mut self, key: usize, mut input: BytesMut) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let Some(secure) = connection.held.secure_mut() else {
            return;
        };
        let received = secure.unseal(&mut input, &mut self.workspace);
        let plain = self.workspace.plain.split();
        let answers = !secure.waiting.is_empty();
        let shaken = connection.phase == Phase::Shaking && !secure.channel.is_handshaking();
        let received = match received {
            Ok(received) => received,
            Err(broken) => return self.refuse(key, &broken),
        };
        if answers {
            self.mark_dirty(key);
        }
        if shaken {
            self.forget_sealed(key);
            self.shaken(key);
        }
        self.tell_sealed(key);
        if !plain.is_empty() {
            self.received(key, plain);
        }
        if received == ReceiveOutcome::Ended {
            self.close(key);
        }
    }

    /// The handshake is over: the driver gets to know the connection.
    fn shaken(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let Some(secure) = connection.held.secure() else {
            return;
        };
        let addresses = (
            connection.socket.peer_addr(),
            connection.socket.local_addr(),
        );
        let (Ok(peer), Ok(local)) = addresses else {
            return self.close(key);
        };
        let found = secure.server.peer(&secure.channel);
        if *self.workspace.last != found {
            self.workspace.last = Arc::new(found);
        }
        let tls = Some(self.workspace.last.clone());
        connection.phase = Phase::Serving;
        let info = ConnectionInfo {
            protocol: connection.protocol,
            peer,
            local,
            tls,
        };
        self.driver.connected(ConnectionKey(key), info);
    }

    /// Answers of a handshake; the driver has nothing to say yet.
    pub(crate) fn flush_shaking(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let Some(secure) = connection.held.secure_mut() else {
            return;
        };
        match secure.write_waiting(&mut connection.socket) {
            Ok(free) => {
                self.tell_sealed(key);
                self.set_blocked(key, !free);
            }
            Err(_) => self.close(key),
        }
    }

    /// Tells the memory budget what a connection holds for TLS, if that has changed.
    pub(crate) fn tell_sealed(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let Some(secure) = connection.held.secure_mut() else {
            return;
        };
        let held = u32::try_from(secure.held()).unwrap_or(u32::MAX);
        let told = std::mem::replace(&mut secure.told, held);
        if told == held {
            return;
        }
        if connection.phase == Phase::Shaking {
            self.shaking_bytes = self.shaking_bytes - told as usize + held as usize;
        } else if connection.is_known() {
            self.driver.sealed(ConnectionKey(key), held as usize);
        }
    }

    /// The connection is no longer one that agrees on TLS.
    pub(crate) fn forget_sealed(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let is_shaking = connection.phase == Phase::Shaking;
        if let Some(secure) = connection.held.secure_mut().filter(|_| is_shaking) {
            self.shaking_bytes -= std::mem::take(&mut secure.told) as usize;
        }
    }

    /// Closes handshakes while the node's memory budget is exceeded, those that hold most first.
    pub(crate) fn shed_handshakes(&mut self) {
        if self.shaking_bytes == self.shaking_told {
            return;
        }
        self.shaking_told = self.shaking_bytes;
        let mut need = self.driver.handshakes(self.shaking_bytes);
        if need == 0 {
            return;
        }
        let mut held: Vec<(u32, usize)> = Vec::new();
        for &(_, key, serial) in &self.shaking {
            let connection = self.connections.get(key).filter(|c| c.serial == serial);
            let shaking = connection.filter(|c| c.phase == Phase::Shaking);
            held.extend(shaking.and_then(|c| Some((c.held.secure()?.told, key))));
        }
        // The oldest first among equals.
        held.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (bytes, key) in held {
            if need == 0 {
                break;
            }
            need = need.saturating_sub(bytes as usize);
            let peer = self.connections.get(key).map(|c| c.socket.peer_addr());
            let peer = peer.and_then(Result::ok);
            let peer = peer.map_or_else(String::new, |peer| peer.to_string());
            tracing::warn!(
                event = "memory_budget.connection_closed",
                peer,
                class = "unauthenticated",
                bytes,
                setting = "memory_budget.unauthenticated",
                "the node's memory budget is exceeded"
            );
            self.close(key);
        }
        self.shaking_told = self.shaking_bytes;
        self.driver.handshakes(self.shaking_bytes);
    }

    /// This is not TLS, or none that we speak with this client: it hears why, as far as its socket takes that.
    fn refuse(&mut self, key: usize, why: &ChannelError) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let peer = connection.socket.peer_addr();
        let peer = peer.map_or_else(|_| String::new(), |p| p.to_string());
        let handshake = connection.phase == Phase::Shaking;
        tracing::info!(event = "connection.tls_failed", peer, handshake, error = %why);
        if let Some(secure) = connection.held.secure_mut() {
            // It may be gone.
            let _ = secure.write_waiting(&mut connection.socket);
        }
        self.end_within_deadline(key);
        self.linger(key);
    }

    /// Ends connections that did not agree on TLS in time.
    pub(crate) fn end_slow_handshakes(&mut self) {
        while let Some(&(at, key, serial)) = self.shaking.front() {
            let connection = self.connections.get(key).filter(|c| c.serial == serial);
            let slow = connection.filter(|c| c.phase == Phase::Shaking);
            if slow.is_some() && at > self.now {
                return;
            }
            self.shaking.pop_front();
            if let Some(connection) = slow {
                let peer = connection.socket.peer_addr();
                let peer = peer.map_or_else(|_| String::new(), |p| p.to_string());
                tracing::info!(event = "connection.tls_timeout", peer);
                self.close(key);
            }
        }
    }
}
