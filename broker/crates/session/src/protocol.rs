//! The protocols that a node offers: for each one a factory of sessions, and the names of its listeners.
//!
//! A node is given its protocols as a list ([`Protocols`]). Event loops and shards pass a protocol's position in that list
//! around ([`ProtocolId`]) and know nothing else about it.

use crate::{MAX_SERVICES, ServiceRegistration, Session};
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

    /// The protocol's part of a new shard. Protocols can share a service; a shard has it once.
    fn service(&self) -> Option<ServiceRegistration> {
        None
    }
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

    /// The services of all protocols for a new shard, each once.
    ///
    /// # Panics
    ///
    /// If there are more than [`MAX_SERVICES`].
    pub fn services(&self) -> Vec<ServiceRegistration> {
        let mut services: Vec<ServiceRegistration> = Vec::new();
        for registration in self.0.iter().filter_map(|protocol| protocol.service()) {
            let id = registration.service.id();
            if services.iter().all(|known| known.service.id() != id) {
                services.push(registration);
            }
        }
        assert!(services.len() <= MAX_SERVICES, "too many services");
        services
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
    use crate::{ServiceId, ServiceStates, ShardService};

    #[derive(Debug)]
    struct ProtocolWithService(u8);

    /// A service without functions.
    struct ServiceWithoutFunctions(u8);

    static INERT: [ServiceWithoutFunctions; 2] =
        [ServiceWithoutFunctions(0), ServiceWithoutFunctions(1)];

    impl ShardService for ServiceWithoutFunctions {
        fn id(&self) -> ServiceId {
            ServiceId(self.0)
        }
    }

    impl Protocol for ProtocolWithService {
        fn listener_names(&self) -> [&'static str; 2] {
            ["routed", "routed/ssl"]
        }

        fn session(&self, _: &ConnectionInfo, _: Time) -> Box<dyn Session> {
            unreachable!("no connection is accepted")
        }

        fn service(&self) -> Option<ServiceRegistration> {
            let service = INERT.get(usize::from(self.0))?;
            Some(ServiceRegistration {
                service,
                state: Box::new(self.0),
                event: Box::new(None::<()>),
            })
        }
    }

    #[test]
    fn protocols_that_share_a_service_have_it_once() {
        let protocols: Vec<Arc<dyn Protocol>> = [1, 9, 0, 1]
            .map(|id| Arc::new(ProtocolWithService(id)) as Arc<dyn Protocol>)
            .into();
        let services = Protocols::new(protocols).services();
        let ids: Vec<ServiceId> = services.iter().map(|s| s.service.id()).collect();
        assert_eq!(ids, [ServiceId(1), ServiceId(0)]);
    }

    #[test]
    fn state_is_found_by_its_type() {
        let mut states = ServiceStates::default();
        assert_eq!(states.get::<u8>(), None);
        states.push(Box::new(7u8));
        states.push(Box::new("text"));
        *states.get_mut::<u8>().unwrap() += 1;
        assert_eq!(states.get::<u8>(), Some(&8));
        assert_eq!(states.get::<&str>(), Some(&"text"));
        assert_eq!(states.get::<u16>(), None);
    }

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
