//! How a loop's client connections end.

use crate::connection::Phase;
use crate::event_loop::{CLOSE_TIMEOUT, ShardLoop};
use crate::held::Held;
use crate::sockets::READS_PER_TURN;
use shard::ConnectionKey;
use std::io::{ErrorKind, Read};
use std::net::Shutdown;

/// Bytes read and thrown away of a connection that ends.
const DISCARD_LIMIT: u32 = 1 << 20;

impl ShardLoop {
    /// It has a while for what is still to be said and read.
    pub(crate) fn end_within_deadline(&mut self, key: usize) {
        if let Some(connection) = self.connections.get(key) {
            let at = self.now + CLOSE_TIMEOUT;
            self.ending.push_back((at, key, connection.serial));
        }
    }

    /// Everything is written: shut our side and wait for the client to close, so that a reset for bytes we did not
    /// read does not take the last words from it.
    pub(crate) fn linger(&mut self, key: usize) {
        self.forget_sealed(key);
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let known = connection.is_known();
        connection.phase = Phase::Lingering;
        connection.held = Held::default();
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

    /// Ends what did not end by itself in time.
    pub(crate) fn end_late(&mut self) {
        while let Some(&(at, key, serial)) = self.ending.front() {
            let alive = self
                .connections
                .get(key)
                .is_some_and(|c| c.serial == serial);
            if alive && at > self.now {
                return;
            }
            self.ending.pop_front();
            if alive {
                self.close(key);
            }
        }
    }

    /// Closes the socket now and tells the driver, when it has not been told.
    pub(crate) fn close(&mut self, key: usize) {
        let Some(connection) = self.connections.get_mut(key) else {
            return;
        };
        let known = connection.is_known();
        if let Some(secure) = connection.held.secure_mut().filter(|_| known) {
            secure.end_at_once(&mut connection.socket, &mut self.workspace);
        }
        self.remove(key);
        if known {
            self.driver.gone(ConnectionKey(key));
        }
    }

    fn remove(&mut self, key: usize) {
        self.forget_sealed(key);
        if let Some(mut connection) = self.connections.remove(key) {
            // Closing the descriptor would do it too.
            let _ = self.poll.registry().deregister(&mut connection.socket);
        }
    }
}
