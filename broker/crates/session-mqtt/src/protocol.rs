//! MQTT as a protocol of a node.

use crate::{MqttService, MqttSession, MqttSettings, SessionConfig};
use env::Time;
use session::{ConnectionInfo, Protocol, ServiceRegistration, Session};
use std::sync::Arc;

/// Factory of MQTT sessions, with the settings that all of them share.
#[derive(Clone, Debug)]
pub struct MqttProtocol {
    /// Settings of every session.
    pub settings: Arc<MqttSettings>,
}

impl Protocol for MqttProtocol {
    fn listener_names(&self) -> [&'static str; 2] {
        ["mqtt", "mqtt/ssl"]
    }

    fn session(&self, connection: &ConnectionInfo, now: Time) -> Box<dyn Session> {
        let config = SessionConfig {
            peer_is_loopback: connection.is_loopback(),
            tls: connection.tls.clone(),
            settings: self.settings.clone(),
        };
        Box::new(MqttSession::new(config, now))
    }

    fn service(&self) -> Option<ServiceRegistration> {
        Some(MqttService::registration(&self.settings))
    }
}
