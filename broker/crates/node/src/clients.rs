//! Where clients connect: listeners without TLS and with it, and the certificates of those and of the HTTP API.

use crate::addresses::{self, AddressError};
use crate::config::{Config, Listen};
use crate::node::NodeError;
use reactor::ClientListener;
use std::net::SocketAddr;
use std::sync::Arc;

/// Names of listeners, as RabbitMQ has them.
pub(crate) const AMQP: &str = "amqp";
pub(crate) const AMQP_TLS: &str = "amqp/ssl";

pub(crate) struct Clients {
    plain: Listen,
    secure: Listen,
    tls: Option<Arc<tls::Server>>,
    management: Option<Arc<tls::Server>>,
    certificates: Vec<tls::Watched>,
}

impl Clients {
    /// Reads the certificates for which there is a listener.
    pub fn new(config: &Config) -> Result<Clients, NodeError> {
        let mut certificates = Vec::new();
        let mut load = |listen, options: tls::Options| match listen {
            Listen::None => Ok(None),
            Listen::Any(_) | Listen::At(_) => {
                let (server, watched) = tls::Server::load(options)?;
                certificates.push(watched);
                Ok::<_, tls::FileError>(Some(server))
            }
        };
        let tls = load(config.amqp_tls, config.tls.options())?;
        let management = load(config.management_tls, config.management_options())?;
        Ok(Clients {
            plain: config.amqp,
            secure: config.amqp_tls,
            tls,
            management,
            certificates,
        })
    }

    /// Tells a port that is in use.
    pub fn check_ports(&self) -> Result<(), AddressError> {
        drop(addresses::bind_alone(AMQP, self.plain)?);
        drop(addresses::bind_alone(AMQP_TLS, self.secure)?);
        Ok(())
    }

    /// The listeners of each shard.
    pub fn bind(&self, shards: u16) -> Result<Vec<Vec<ClientListener>>, AddressError> {
        let plain = addresses::bind_shared(AMQP, self.plain, shards)?;
        let secure = addresses::bind_shared(AMQP_TLS, self.secure, shards)?;
        let mut all: Vec<Vec<ClientListener>> = Vec::new();
        all.resize_with(usize::from(shards), Vec::new);
        for (own, socket) in all.iter_mut().zip(plain) {
            own.push(ClientListener::from(socket));
        }
        for (own, socket) in all.iter_mut().zip(secure) {
            let tls = self.tls.clone();
            own.push(ClientListener { socket, tls });
        }
        Ok(all)
    }

    /// A listener's name, and where it is.
    pub fn port(listener: &ClientListener) -> (&'static str, SocketAddr) {
        let name = match listener.tls {
            None => AMQP,
            Some(_) => AMQP_TLS,
        };
        (name, listener.socket.address())
    }

    /// Of the HTTP API, where it has one.
    pub fn management(&self) -> Option<Arc<tls::Server>> {
        self.management.clone()
    }

    /// When the first of the certificates ends, in seconds since 1970; None when there is no TLS.
    pub fn expiry(&self) -> Arc<dyn Fn() -> Option<u64> + Send + Sync> {
        let servers: Vec<_> = self.tls.iter().chain(&self.management).cloned().collect();
        Arc::new(move || servers.iter().map(|server| server.expires()).min())
    }

    /// Who look after the files; for one caller.
    pub fn certificates(&mut self) -> Vec<tls::Watched> {
        std::mem::take(&mut self.certificates)
    }
}
