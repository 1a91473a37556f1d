//! Client listeners with and without TLS, and the certificates of client and HTTP listeners.

use crate::addresses::{self, AddressError};
use crate::config::{Config, Listen};
use crate::node::NodeError;
use metadata::ClientAddress;
use reactor::ClientListener;
use session::{Protocol, ProtocolId, Protocols};
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

/// A protocol of the node with its listeners.
pub struct Registration {
    /// Makes the sessions.
    pub protocol: Arc<dyn Protocol>,
    /// The listener without TLS.
    pub plain: Listen,
    /// The listener with TLS.
    pub secure: Listen,
    /// Bytes of the largest frame or packet that a client can send.
    pub largest_frame: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Tls,
}

/// A configured listener of a protocol.
#[derive(Clone, Copy)]
struct Endpoint {
    protocol: ProtocolId,
    name: &'static str,
    transport: Transport,
    listen: Listen,
}

fn endpoints(registrations: &[Registration]) -> Vec<Endpoint> {
    let mut all = Vec::new();
    for (at, registration) in registrations.iter().enumerate() {
        let protocol = ProtocolId(at as u8);
        let [plain, secure] = registration.protocol.listener_names();
        for (name, transport, listen) in [
            (plain, Transport::Tcp, registration.plain),
            (secure, Transport::Tls, registration.secure),
        ] {
            all.push(Endpoint {
                protocol,
                name,
                transport,
                listen,
            });
        }
    }
    all
}

/// A client listener that is bound.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoundListener {
    /// The listener's name, such as `amqp/ssl`.
    pub(crate) name: &'static str,
    /// The bound address.
    pub(crate) address: SocketAddr,
    protocol: ProtocolId,
    tls: bool,
}

pub(crate) struct ClientListeners {
    endpoints: Vec<Endpoint>,
    protocols: Protocols,
    largest_frame: usize,
    tls: Option<Arc<tls::ServerTls>>,
    management: Option<Arc<tls::ServerTls>>,
    prometheus: Option<Arc<tls::ServerTls>>,
    operator: Option<Arc<tls::ServerTls>>,
    certificates: Vec<tls::WatchedFiles>,
    bound_ports: Arc<OnceLock<Vec<(&'static str, u16)>>>,
}

impl ClientListeners {
    /// Loads the certificates of all enabled TLS listeners.
    pub(crate) fn new(
        config: &Config,
        registrations: Vec<Registration>,
    ) -> Result<ClientListeners, NodeError> {
        let endpoints = endpoints(&registrations);
        let mut certificates = Vec::new();
        let mut load = |is_enabled, options: tls::TlsOptions| match is_enabled {
            false => Ok(None),
            true => {
                let (server, watched) = tls::ServerTls::load(options)?;
                certificates.push(watched);
                Ok::<_, tls::FileError>(Some(server))
            }
        };
        let secure = |e: &Endpoint| e.transport == Transport::Tls && e.listen != Listen::None;
        let tls = load(endpoints.iter().any(secure), config.tls.options())?;
        let management = config.management_tls != Listen::None;
        let management = load(management, config.management_options())?;
        let prometheus = config.prometheus_tls != Listen::None;
        let prometheus = load(prometheus, config.prometheus_options())?;
        let operator = config.operator.listener != Listen::None;
        let operator = load(operator, config.operator_options())?;
        let listening = registrations
            .iter()
            .filter(|r| r.plain != Listen::None || r.secure != Listen::None);
        let largest_frame = listening.map(|r| r.largest_frame).max().unwrap_or(0);
        let protocols = registrations.into_iter().map(|r| r.protocol).collect();
        Ok(ClientListeners {
            endpoints,
            protocols: Protocols::new(protocols),
            largest_frame,
            tls,
            management,
            prometheus,
            operator,
            certificates,
            bound_ports: Arc::default(),
        })
    }

    /// All protocols, in the order of their registration.
    pub(crate) fn protocols(&self) -> &Protocols {
        &self.protocols
    }

    /// Bytes of the largest frame that a client of a protocol with a listener can send.
    pub(crate) fn largest_frame(&self) -> usize {
        self.largest_frame
    }

    /// Names and configured ports of all listeners.
    pub(crate) fn configured(&self) -> impl Iterator<Item = (&'static str, Option<u16>)> {
        self.endpoints.iter().map(|e| (e.name, e.listen.port()))
    }

    /// Fails if a port is in use.
    pub(crate) fn check_ports(&self) -> Result<(), AddressError> {
        for endpoint in &self.endpoints {
            drop(addresses::bind_exclusive(endpoint.name, endpoint.listen)?);
        }
        Ok(())
    }

    /// Binds the listeners of each shard.
    pub(crate) fn bind(&self, shards: u16) -> Result<Vec<Vec<ClientListener>>, AddressError> {
        let mut all: Vec<Vec<ClientListener>> = Vec::new();
        all.resize_with(usize::from(shards), Vec::new);
        for endpoint in &self.endpoints {
            let sockets = addresses::bind_shared(endpoint.name, endpoint.listen, shards)?;
            for (own, socket) in all.iter_mut().zip(sockets) {
                let tls = match endpoint.transport {
                    Transport::Tcp => None,
                    Transport::Tls => self.tls.clone(),
                };
                own.push(ClientListener {
                    socket,
                    tls,
                    protocol: endpoint.protocol,
                });
            }
        }
        Ok(all)
    }

    /// The ports of the listeners, once they are bound.
    pub(crate) fn bound_ports(&self) -> Arc<OnceLock<Vec<(&'static str, u16)>>> {
        self.bound_ports.clone()
    }

    /// Notes the ports of the listeners of a shard, which all shards share.
    pub(crate) fn note_bound(&self, listeners: &[ClientListener]) {
        let ports = listeners.iter().map(|listener| self.port(listener));
        let ports = ports.map(|(name, address)| (name, address.port()));
        // They are bound once.
        let _ = self.bound_ports.set(ports.collect());
    }

    /// A listener's name and bound address.
    pub(crate) fn port(&self, listener: &ClientListener) -> (&'static str, SocketAddr) {
        let protocol = self.protocols.get(listener.protocol);
        let names = protocol.map_or([""; 2], |protocol| protocol.listener_names());
        let name = names[usize::from(listener.tls.is_some())];
        (name, listener.socket.address())
    }

    /// A client listener and the address to which it is bound.
    pub(crate) fn bound(&self, listener: &ClientListener) -> BoundListener {
        let (name, address) = self.port(listener);
        BoundListener {
            name,
            address,
            protocol: listener.protocol,
            tls: listener.tls.is_some(),
        }
    }

    /// The addresses of these listeners, as clients reach them. An address that the configuration
    /// states, for the node `node` or for all, takes precedence over the advertised host and the
    /// bound port. Listeners without either are left out: the host has no name.
    pub(crate) fn addresses(
        &self,
        config: &Config,
        node: &str,
        listeners: &[BoundListener],
    ) -> Vec<ClientAddress> {
        let address = |listener: &BoundListener| {
            let (name, bound) = (listener.name, listener.address);
            let own = (node.to_owned(), name.to_owned());
            let stated = config.advertised_nodes.get(&own);
            let stated = stated.or_else(|| config.advertised_listeners.get(name));
            let (host, port) = match stated {
                Some(stated) => (stated.host.clone(), stated.port),
                None => {
                    let part = config.advertised_parts.get(name);
                    let host = match part.and_then(|part| part.host.clone()) {
                        Some(host) => host,
                        None => addresses::advertised_host(config, Some(bound)).ok()?,
                    };
                    let port = part.and_then(|part| part.port);
                    (host, port.unwrap_or(bound.port()))
                }
            };
            let [protocol, _] = self.protocols.get(listener.protocol)?.listener_names();
            Some(ClientAddress {
                protocol: protocol.into(),
                tls: listener.tls,
                host: host.into(),
                port,
            })
        };
        listeners.iter().filter_map(address).collect()
    }

    /// TLS of the HTTP API, if enabled.
    pub(crate) fn management(&self) -> Option<Arc<tls::ServerTls>> {
        self.management.clone()
    }

    /// TLS of the metrics endpoint, if enabled.
    pub(crate) fn prometheus(&self) -> Option<Arc<tls::ServerTls>> {
        self.prometheus.clone()
    }

    /// TLS of the operator's listener, if enabled.
    pub(crate) fn operator(&self) -> Option<Arc<tls::ServerTls>> {
        self.operator.clone()
    }

    /// Returns the earliest expiry of the certificates in seconds since 1970; None without TLS.
    pub(crate) fn expiry(&self) -> Arc<dyn Fn() -> Option<u64> + Send + Sync> {
        let http = [&self.management, &self.prometheus, &self.operator];
        let http = http.into_iter().flatten();
        let servers: Vec<_> = self.tls.iter().chain(http).cloned().collect();
        Arc::new(move || servers.iter().map(|server| server.expires()).min())
    }

    /// Takes the watchers of the certificate files. They can be taken once.
    pub(crate) fn certificates(&mut self) -> Vec<tls::WatchedFiles> {
        std::mem::take(&mut self.certificates)
    }
}
