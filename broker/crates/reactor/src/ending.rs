//! Closing of client connections.

use crate::connection::ConnectionPhase;
use crate::event_loop::{CLOSE_TIMEOUT, ShardLoop};
use crate::held::TlsAndPartialFrame;
use crate::sockets::READS_PER_TURN;
use shard::ConnectionKey;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;

/// Maximum number of bytes discarded from a connection that ends.
const DISCARD_LIMIT: u32 = 1 << 20;

impl ShardLoop {
    /// Starts the close timeout, in which remaining output is sent and input discarded.
    pub(crate) fn start_close_timeout(&mut self, key: usize) {
        if let Some(connection) = self.connections.get(key) {
            let at = self.now + CLOSE_TIMEOUT;
            self.ending.push_back((at, key, connection.serial));
        }
    }

    /// Shuts down our side after all output is sent and waits for the client to close. Otherwise
    /// unread input would cause a reset, which could destroy the last output before the client
    /// reads it.
    pub(crate) fn linger(&mut self, key: usize) {
        self.forget_handshake_memory(key);
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let known = connection.is_known();
        connection.phase = ConnectionPhase::Lingering;
        connection.held = TlsAndPartialFrame::default();
        let shut = connection.socket.shutdown(Shutdown::Write);
        if known {
            self.driver.gone(ConnectionKey(key));
        }
        if shut.is_err() {
            self.remove(key);
            return;
        }
        self.enqueue(key);
    }

    /// Discards input of a lingering connection.
    pub(crate) fn discard(&mut self, key: usize) {
        for _ in 0..READS_PER_TURN {
            let Some(connection) = self.connections.get_mut(key) else {
                return;
            };
            let mut sink = [0; 4096];
            match connection.socket.read(&mut sink) {
                Ok(0) => return self.remove(key),
                Ok(n) => {
                    connection.discarded = connection.discarded.saturating_add(n as u32);
                    if connection.discarded > DISCARD_LIMIT {
                        return self.remove(key);
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    connection.readable = false;
                    return;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.remove(key),
            }
        }
    }

    /// Closes connections whose close timeout has expired.
    pub(crate) fn close_expired(&mut self) {
        while let Some(&(at, key, serial)) = self.ending.front() {
            let exists = self
                .connections
                .get(key)
                .is_some_and(|c| c.serial == serial);
            if exists && at > self.now {
                return;
            }
            self.ending.pop_front();
            if exists {
                self.close(key);
            }
        }
    }

    /// Closes the socket now, and tells the driver if it knows the connection.
    pub(crate) fn close(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let known = connection.is_known();
        if let Some(secure) = connection.held.secure_mut().filter(|_| known) {
            secure.try_end(&mut connection.socket, &mut self.workspace);
        }
        self.remove(key);
        if known {
            self.driver.gone(ConnectionKey(key));
        }
    }

    fn remove(&mut self, key: usize) {
        self.forget_handshake_memory(key);
        if let Some(mut connection) = self.connections.remove(key) {
            // Closing the descriptor would deregister it as well.
            let _ = self.poll.registry().deregister(&mut connection.socket);
        }
    }
}
