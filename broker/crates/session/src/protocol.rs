//! The protocols that a node offers: for each one a factory of sessions, and the names of its listeners.
//!
//! A node is given its protocols as a list ([`Protocols`]). Event loops and shards pass a protocol's position in that list
//! around ([`ProtocolId`]) and know nothing else about it.

use crate::Session;
use auth::TlsPeer;
use env::Time;
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

/// A protocol's position in the node's list. Meaningful within one process only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProtocolId(pub u8);

/// A connection of a client that was accepted.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The protocol of the listener.
    pub protocol: ProtocolId,
    /// The client's address.
    pub peer: SocketAddr,
    /// The listener's address as the client reached it.
    pub local: SocketAddr,
    /// Facts about the client's TLS connection. None: the connection is not encrypted.
    pub tls: Option<Arc<TlsPeer>>,
}

impl ConnectionInfo {
    /// True if the client is on this machine. Some users can log in from there only (`loopback_users`).
    pub fn is_loopback(&self) -> bool {
        self.peer.ip().to_canonical().is_loopback()
    }
}

/// A protocol that clients speak, with its settings.
pub trait Protocol: Debug + Send + Sync {
    /// Names of the listener without TLS and of the one with TLS, as RabbitMQ's API lists them.
    fn listener_names(&self) -> [&'static str; 2];

    /// The session of a connection that was accepted at `now`.
    fn session(&self, connection: &ConnectionInfo, now: Time) -> Box<dyn Session>;
}

/// The protocols of a node. Cloning counts a reference.
#[derive(Clone, Debug, Default)]
pub struct Protocols(Arc<[Arc<dyn Protocol>]>);

impl Protocols {
    /// Most protocols of a node.
    pub const MAX: usize = u8::MAX as usize + 1;

    /// The list of these protocols. Their ids are their positions.
    ///
    /// # Panics
    ///
    /// If there are more than [`Protocols::MAX`].
    pub fn new(protocols: Vec<Arc<dyn Protocol>>) -> Protocols {
        assert!(protocols.len() <= Protocols::MAX, "too many protocols");
        Protocols(protocols.into())
    }

    /// The protocol of that id, if the list has it.
    pub fn get(&self, id: ProtocolId) -> Option<&dyn Protocol> {
        self.0.get(usize::from(id.0)).map(|protocol| &**protocol)
    }

    /// The session of a connection that was accepted at `now`.
    ///
    /// # Panics
    ///
    /// If the list does not have the connection's protocol.
    pub fn session(&self, connection: &ConnectionInfo, now: Time) -> Box<dyn Session> {
        match self.get(connection.protocol) {
            Some(protocol) => protocol.session(connection, now),
            None => unreachable!("{:?} is not registered", connection.protocol),
        }
    }

    /// All protocols with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (ProtocolId, &dyn Protocol)> {
        let numbered = self.0.iter().enumerate();
        numbered.map(|(at, protocol)| (ProtocolId(at as u8), &**protocol))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_peers_are_recognised_in_both_address_families() {
        let from = |peer: &str| {
            let info = ConnectionInfo {
                protocol: ProtocolId(0),
                peer: peer.parse().unwrap(),
                local: "192.0.2.1:5672".parse().unwrap(),
                tls: None,
            };
            info.is_loopback()
        };
        assert!(from("127.0.0.1:40000"));
        assert!(from("[::1]:40000"));
        assert!(from("[::ffff:127.0.0.1]:40000"));
        assert!(!from("192.0.2.7:40000"));
        assert!(!from("[2001:db8::1]:40000"));
    }
}
