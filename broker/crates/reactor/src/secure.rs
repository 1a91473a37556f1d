//! Client connections with TLS: encryption, decryption and a limited number of handshakes per turn.
//!
//! Between two events a connection owns its keys and an incomplete record. Plain and encrypted
//! bytes pass through buffers that all connections of the thread share.

use crate::connection::ConnectionPhase;
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
use tls::{ChannelError, OutgoingBytes, ReceiveOutcome, TlsChannel};

/// Maximum number of handshake steps per turn. Each may take a millisecond, which delays all other
/// connections of the shard.
pub(crate) const HANDSHAKES_PER_TURN: usize = 4;

/// Maximum number of plain bytes encrypted for one write.
const SEAL_PER_WRITE: usize = 64 << 10;

/// Maximum number of plain bytes in a record. Smaller pieces of an outbox are combined.
const RECORD: usize = 16 << 10;

/// Buffers shared by all TLS connections of a thread; empty between two uses.
#[derive(Debug, Default)]
pub(crate) struct TlsBuffers {
    plain: BytesMut,
    gathered: Vec<u8>,
    out: OutgoingBytes,
    /// The identity of the last client. It is shared, because clients without a certificate mostly
    /// have equal values.
    last_peer: Arc<TlsPeer>,
}

/// The TLS state of a connection.
pub(crate) struct TlsConnection {
    channel: TlsChannel,
    server: Arc<tls::ServerTls>,
    /// Encrypted output that the socket has not accepted: at most one write.
    unsent: BytesMut,
    /// close_notify was encrypted.
    ended: bool,
    /// Number of held bytes last reported to the memory budget.
    reported: u32,
}

impl TlsConnection {
    /// Creates the state of a new connection.
    pub(crate) fn accept(server: &Arc<tls::ServerTls>) -> Result<Box<TlsConnection>, String> {
        let channel = server.accept().map_err(|e| e.to_string())?;
        Ok(Box::new(TlsConnection {
            channel,
            server: server.clone(),
            unsent: BytesMut::new(),
            ended: false,
            reported: 0,
        }))
    }

    /// Buffered input that is still incomplete.
    pub(crate) fn rest(&self) -> &[u8] {
        self.channel.rest()
    }

    /// Number of bytes held: incomplete input and unsent output.
    fn held(&self) -> usize {
        self.channel.rest().len() + self.unsent.len()
    }

    /// Returns true if close_notify was sent.
    pub(crate) fn is_finished(&self) -> bool {
        self.ended && self.unsent.is_empty()
    }

    /// Decrypts input into the workspace.
    fn unseal(
        &mut self,
        input: &mut [u8],
        work: &mut TlsBuffers,
    ) -> Result<ReceiveOutcome, ChannelError> {
        if work.plain.capacity() < input.len() {
            work.plain.reserve(input.len().max(READ_CHUNK));
        }
        let received = self.channel.receive(input, &mut work.plain, &mut work.out);
        self.unsent.extend_from_slice(work.out.filled());
        work.out.clear();
        received
    }

    /// Writes unsent output. Returns false if the socket did not accept all of it.
    fn write_unsent(&mut self, socket: &mut TcpStream) -> io::Result<bool> {
        if self.unsent.is_empty() {
            return Ok(true);
        }
        let written = write_all(socket, &self.unsent)?;
        if written < self.unsent.len() {
            let _ = self.unsent.split_to(written);
            return Ok(false);
        }
        self.unsent = BytesMut::new();
        Ok(true)
    }

    /// Writes encrypted output. `unsent` must be empty.
    fn write_sealed(&mut self, socket: &mut TcpStream, work: &mut TlsBuffers) -> io::Result<bool> {
        let sealed = work.out.filled();
        let written = write_all(socket, sealed);
        if let Ok(written) = written {
            let rest = sealed.get(written..).unwrap_or_default();
            self.unsent = BytesMut::from(rest);
        }
        work.out.clear();
        written.map(|_| self.unsent.is_empty())
    }

    /// Encrypts as much of the outbox as one write takes. Returns the number of plain bytes.
    fn seal(&mut self, outbox: &mut Outbox, work: &mut TlsBuffers) -> Result<usize, ChannelError> {
        let mut sealed = 0;
        while sealed < SEAL_PER_WRITE {
            let pieces = outbox.pieces();
            let Some(first) = pieces.front() else {
                break;
            };
            let part = if first.len() >= RECORD || pieces.len() == 1 {
                let max = SEAL_PER_WRITE - sealed;
                first.get(..first.len().min(max)).unwrap_or_default()
            } else {
                work.gathered.clear();
                for piece in pieces {
                    let space = RECORD - work.gathered.len();
                    let part = piece.get(..piece.len().min(space));
                    work.gathered.extend_from_slice(part.unwrap_or_default());
                    if work.gathered.len() == RECORD {
                        break;
                    }
                }
                &work.gathered[..]
            };
            self.channel.seal(part, &mut work.out)?;
            let consumed = part.len();
            outbox.consume(consumed);
            sealed += consumed;
        }
        Ok(sealed)
    }

    /// Writes one round's share of the outbox. `last`: close_notify follows the content of the
    /// outbox.
    pub(crate) fn write_some(
        &mut self,
        socket: &mut TcpStream,
        outbox: &mut Outbox,
        work: &mut TlsBuffers,
        last: bool,
    ) -> FlushResult {
        let mut written = 0;
        let mut all_sent = self.write_unsent(socket);
        loop {
            match all_sent {
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
            all_sent = self.write_sealed(socket, work);
        }
        match last && !self.ended {
            true => self.end(socket, work),
            false => FlushResult::Empty,
        }
    }

    /// Sends close_notify. `unsent` must be empty.
    fn end(&mut self, socket: &mut TcpStream, work: &mut TlsBuffers) -> FlushResult {
        self.ended = true;
        self.channel.end(&mut work.out);
        match self.write_sealed(socket, work) {
            Ok(true) => FlushResult::Empty,
            Ok(false) => FlushResult::Blocked,
            Err(_) => FlushResult::Broken,
        }
    }

    /// Sends close_notify on a connection that is about to be closed, if no other output is
    /// pending.
    pub(crate) fn try_end(&mut self, socket: &mut TcpStream, work: &mut TlsBuffers) {
        if self.unsent.is_empty() && !self.ended {
            self.end(socket, work);
        }
    }
}

/// Writes until the socket blocks. Returns the number of bytes written.
fn write_all(socket: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match socket.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => written += n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(written)
}

impl ShardLoop {
    /// Handles input of a TLS connection, which starts with the buffered incomplete input. Plain
    /// bytes go to the driver.
    pub(crate) fn unseal(&mut self, key: usize, mut input: BytesMut) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let Some(secure) = connection.held.secure_mut() else {
            return;
        };
        let received = secure.unseal(&mut input, &mut self.workspace);
        let plain = self.workspace.plain.split();
        let has_output = !secure.unsent.is_empty();
        let handshake_done =
            connection.phase == ConnectionPhase::Handshaking && !secure.channel.is_handshaking();
        let received = match received {
            Ok(received) => received,
            Err(error) => return self.refuse(key, &error),
        };
        if has_output {
            self.mark_dirty(key);
        }
        if handshake_done {
            self.forget_handshake_memory(key);
            self.handshake_done(key);
        }
        self.report_tls_memory(key);
        if !plain.is_empty() {
            self.received(key, plain);
        }
        if received == ReceiveOutcome::Ended {
            self.close(key);
        }
    }

    /// Reports the connection to the driver after its handshake.
    fn handshake_done(&mut self, key: usize) {
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
        let identity = secure.server.peer(&secure.channel);
        if *self.workspace.last_peer != identity {
            self.workspace.last_peer = Arc::new(identity);
        }
        let tls = Some(self.workspace.last_peer.clone());
        connection.phase = ConnectionPhase::Serving;
        let info = ConnectionInfo {
            protocol: connection.protocol,
            peer,
            local,
            tls,
        };
        self.driver.connected(ConnectionKey(key), info);
    }

    /// Writes handshake output. The driver does not know the connection yet.
    pub(crate) fn flush_handshake(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let Some(secure) = connection.held.secure_mut() else {
            return;
        };
        match secure.write_unsent(&mut connection.socket) {
            Ok(all_sent) => {
                self.report_tls_memory(key);
                self.set_blocked(key, !all_sent);
            }
            Err(_) => self.close(key),
        }
    }

    /// Reports the TLS memory of a connection to the memory budget if it has changed.
    pub(crate) fn report_tls_memory(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let Some(secure) = connection.held.secure_mut() else {
            return;
        };
        let held = u32::try_from(secure.held()).unwrap_or(u32::MAX);
        let reported = std::mem::replace(&mut secure.reported, held);
        if reported == held {
            return;
        }
        if connection.phase == ConnectionPhase::Handshaking {
            self.handshake_bytes = self.handshake_bytes - reported as usize + held as usize;
        } else if connection.is_known() {
            self.driver.sealed(ConnectionKey(key), held as usize);
        }
    }

    /// Removes the connection from the memory of handshakes.
    pub(crate) fn forget_handshake_memory(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let is_handshaking = connection.phase == ConnectionPhase::Handshaking;
        if let Some(secure) = connection.held.secure_mut().filter(|_| is_handshaking) {
            debug_assert!(
                self.handshake_bytes >= secure.reported as usize,
                "the handshake of connection {key} was not counted"
            );
            self.handshake_bytes -= std::mem::take(&mut secure.reported) as usize;
        }
    }

    /// Closes handshakes while they exceed the node's memory budget, the largest first.
    pub(crate) fn shed_handshakes(&mut self) {
        if self.handshake_bytes == self.reported_handshake_bytes {
            return;
        }
        self.reported_handshake_bytes = self.handshake_bytes;
        let mut excess = self.driver.handshakes(self.handshake_bytes);
        if excess == 0 {
            return;
        }
        let mut held: Vec<(u32, usize)> = Vec::new();
        for &(_, key, serial) in &self.handshaking {
            let connection = self.connections.get(key).filter(|c| c.serial == serial);
            let handshaking = connection.filter(|c| c.phase == ConnectionPhase::Handshaking);
            held.extend(handshaking.and_then(|c| Some((c.held.secure()?.reported, key))));
        }
        // The oldest first among equals, since the sort is stable.
        held.sort_by_key(|(bytes, _)| std::cmp::Reverse(*bytes));
        for (bytes, key) in held {
            if excess == 0 {
                break;
            }
            excess = excess.saturating_sub(bytes as usize);
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
        self.reported_handshake_bytes = self.handshake_bytes;
        self.driver.handshakes(self.handshake_bytes);
    }

    /// Closes a connection after a TLS error. The alert is sent as far as the socket accepts it.
    fn refuse(&mut self, key: usize, why: &ChannelError) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let peer = connection.socket.peer_addr();
        let peer = peer.map_or_else(|_| String::new(), |p| p.to_string());
        let handshake = connection.phase == ConnectionPhase::Handshaking;
        tracing::info!(event = "connection.tls_failed", peer, handshake, error = %why);
        if let Some(secure) = connection.held.secure_mut() {
            // The peer may have closed the socket.
            let _ = secure.write_unsent(&mut connection.socket);
        }
        self.start_close_timeout(key);
        self.linger(key);
    }

    /// Closes connections that did not complete the handshake in time.
    pub(crate) fn close_slow_handshakes(&mut self) {
        while let Some(&(at, key, serial)) = self.handshaking.front() {
            let connection = self.connections.get(key).filter(|c| c.serial == serial);
            let handshaking = connection.filter(|c| c.phase == ConnectionPhase::Handshaking);
            if handshaking.is_some() && at > self.now {
                return;
            }
            self.handshaking.pop_front();
            if let Some(connection) = handshaking {
                let peer = connection.socket.peer_addr();
                let peer = peer.map_or_else(|_| String::new(), |p| p.to_string());
                tracing::info!(event = "connection.tls_timeout", peer);
                self.close(key);
            }
        }
    }
}
