//! Client listeners with and without TLS, and the certificates of client and HTTP listeners.

use crate::addresses::{self, AddressError};
use crate::config::{Config, Listen};
use crate::node::NodeError;
use reactor::ClientListener;
use shard::ClientProtocol;
use std::net::SocketAddr;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Transport {
    Tcp,
    Tls,
}

/// RabbitMQ's listener names.
fn name(protocol: ClientProtocol, transport: Transport) -> &'static str {
    match (protocol, transport) {
        (ClientProtocol::Amqp, Transport::Tcp) => "amqp",
        (ClientProtocol::Amqp, Transport::Tls) => "amqp/ssl",
        (ClientProtocol::Mqtt, Transport::Tcp) => "mqtt",
        (ClientProtocol::Mqtt, Transport::Tls) => "mqtt/ssl",
        (ClientProtocol::WebMqtt, Transport::Tcp) => "http/web-mqtt",
        (ClientProtocol::WebMqtt, Transport::Tls) => "https/web-mqtt",
    }
}

fn listeners(config: &Config) -> [(ClientProtocol, Transport, Listen); 6] {
    let (amqp, mqtt) = (ClientProtocol::Amqp, ClientProtocol::Mqtt);
    let web = ClientProtocol::WebMqtt;
    [
        (amqp, Transport::Tcp, config.amqp),
        (amqp, Transport::Tls, config.amqp_tls),
        (mqtt, Transport::Tcp, config.mqtt.plain),
        (mqtt, Transport::Tls, config.mqtt.tls),
        (web, Transport::Tcp, config.web_mqtt.plain),
        (web, Transport::Tls, config.web_mqtt.tls),
    ]
}

/// Names and configured ports of all client listeners.
pub(crate) fn configured(config: &Config) -> impl Iterator<Item = (&'static str, Option<u16>)> {
    let all = listeners(config).into_iter();
    all.map(|(protocol, transport, listen)| (name(protocol, transport), listen.port()))
}

pub(crate) struct Clients {
    listeners: [(ClientProtocol, Transport, Listen); 6],
    tls: Option<Arc<tls::Server>>,
    management: Option<Arc<tls::Server>>,
    prometheus: Option<Arc<tls::Server>>,
    operator: Option<Arc<tls::Server>>,
    certificates: Vec<tls::Watched>,
}

impl Clients {
    /// Loads the certificates of all enabled TLS listeners.
    pub fn new(config: &Config) -> Result<Clients, NodeError> {
        let listeners = listeners(config);
        let mut certificates = Vec::new();
        let mut load = |is_enabled, options: tls::Options| match is_enabled {
            false => Ok(None),
            true => {
                let (server, watched) = tls::Server::load(options)?;
                certificates.push(watched);
                Ok::<_, tls::FileError>(Some(server))
            }
        };
        let secure =
            |l: &(ClientProtocol, Transport, Listen)| l.1 == Transport::Tls && l.2 != Listen::None;
        let tls = load(listeners.iter().any(secure), config.tls.options())?;
        let management = config.management_tls != Listen::None;
        let management = load(management, config.management_options())?;
        let prometheus = config.prometheus_tls != Listen::None;
        let prometheus = load(prometheus, config.prometheus_options())?;
        let operator = config.operator.listener != Listen::None;
        let operator = load(operator, config.operator_options())?;
        Ok(Clients {
            listeners,
            tls,
            management,
            prometheus,
            operator,
            certificates,
        })
    }

    /// Fails if a port is already in use.
    pub fn check_ports(&self) -> Result<(), AddressError> {
        for (protocol, transport, listen) in self.listeners {
            drop(addresses::bind_exclusive(
                name(protocol, transport),
                listen,
            )?);
        }
        Ok(())
    }

    /// Binds the listeners of each shard.
    pub fn bind(&self, shards: u16) -> Result<Vec<Vec<ClientListener>>, AddressError> {
        let mut all: Vec<Vec<ClientListener>> = Vec::new();
        all.resize_with(usize::from(shards), Vec::new);
        for (protocol, transport, listen) in self.listeners {
            let sockets = addresses::bind_shared(name(protocol, transport), listen, shards)?;
            for (own, socket) in all.iter_mut().zip(sockets) {
                let tls = match transport {
                    Transport::Tcp => None,
                    Transport::Tls => self.tls.clone(),
                };
                own.push(ClientListener {
                    socket,
                    tls,
                    protocol,
                });
            }
        }
        Ok(all)
    }

    /// The name and address of a listener.
    pub fn port(listener: &ClientListener) -> (&'static str, SocketAddr) {
        let transport = match listener.tls {
            None => Transport::Tcp,
            Some(_) => Transport::Tls,
        };
        let name = name(listener.protocol, transport);
        (name, listener.socket.address())
    }

    /// TLS of the HTTP API, if enabled.
    pub fn management(&self) -> Option<Arc<tls::Server>> {
        self.management.clone()
    }

    /// TLS of the metrics endpoint, if enabled.
    pub fn prometheus(&self) -> Option<Arc<tls::Server>> {
        self.prometheus.clone()
    }

    /// TLS of the operator's listener, if enabled.
    pub fn operator(&self) -> Option<Arc<tls::Server>> {
        self.operator.clone()
    }

    /// Returns the earliest expiry of the certificates in seconds since 1970; None without TLS.
    pub fn expiry(&self) -> Arc<dyn Fn() -> Option<u64> + Send + Sync> {
        let http = [&self.management, &self.prometheus, &self.operator];
        let http = http.into_iter().flatten();
        let servers: Vec<_> = self.tls.iter().chain(http).cloned().collect();
        Arc::new(move || servers.iter().map(|server| server.expires()).min())
    }

    /// Takes the watchers of the certificate files. They can be taken once.
    pub fn certificates(&mut self) -> Vec<tls::Watched> {
        std::mem::take(&mut self.certificates)
    }
}
