//! AMQP 0.9.1 as a protocol of a node.

use crate::{AmqpSession, Limits, SessionConfig};
use env::Time;
use session::{ConnectionInfo, LoginConfig, Protocol, Session};
use std::sync::Arc;

/// Factory of AMQP 0.9.1 sessions, with what all of them share.
#[derive(Clone, Debug)]
pub struct Amqp091 {
    /// `cluster_name` in the server properties.
    pub cluster_name: Arc<str>,
    /// `product` in the server properties.
    pub product: Arc<str>,
    /// `version` in the server properties.
    pub version: Arc<str>,
    /// Limits of a connection.
    pub limits: Arc<Limits>,
    /// Mechanisms and users of logins.
    pub logins: Arc<LoginConfig>,
}

impl Protocol for Amqp091 {
    fn listener_names(&self) -> [&'static str; 2] {
        ["amqp", "amqp/ssl"]
    }

    fn session(&self, connection: &ConnectionInfo, now: Time) -> Box<dyn Session> {
        let config = SessionConfig {
            peer_is_loopback: connection.is_loopback(),
            peer: connection.peer.to_string(),
            tls: connection.tls.clone(),
            server_name: self.cluster_name.clone(),
            product: self.product.clone(),
            version: self.version.clone(),
            limits: self.limits.clone(),
            logins: self.logins.clone(),
        };
        Box::new(AmqpSession::new(config, now))
    }
}
