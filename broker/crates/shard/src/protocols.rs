//! The protocols that clients speak: a session for each connection, by its listener.

use crate::config::ShardConfig;
use crate::sessions::is_loopback;
use crate::{ClientProtocol, ConnectionInfo};
use env::Time;
use metadata::Name;
use session::Session;
use session_amqp091::{AmqpSession, Limits, Logins};
use session_mqtt::MqttSession;
use session_websocket::WebSocketSession;
use std::sync::Arc;
use std::time::Duration;

/// What a message of a client may have besides its body: the largest frame of properties.
const MESSAGE_OVERHEAD: usize = 16 << 20;

/// What sessions of a shard share.
pub struct Protocols {
    cluster_name: Name,
    product: Name,
    version: Name,
    limits: Arc<Limits>,
    logins: Arc<Logins>,
    mqtt: Arc<session_mqtt::Settings>,
    web_mqtt: Arc<session_websocket::Settings>,
}

impl Protocols {
    pub fn new(config: &ShardConfig) -> Protocols {
        let given = &config.limits;
        let message = given.max_message_size as usize;
        let least = Limits::default();
        let limits = Limits {
            // One message of the largest size, and as much of others as without it.
            partial: least.partial.max(message + MESSAGE_OVERHEAD),
            transaction: least.transaction.max(message + MESSAGE_OVERHEAD),
            frame_max: given.frame_max,
            channel_max: given.channel_max,
            heartbeat: given.heartbeat_s,
            message: u64::from(given.max_message_size),
            handshake: Duration::from_millis(given.handshake_timeout_ms),
            acknowledgement: given.consumer_timeout_ms.map(Duration::from_millis),
            ..least
        };
        let anonymous = config.anonymous.as_ref();
        let logins = Logins {
            mechanisms: config.mechanisms.clone(),
            loopback_users: config.loopback_users.clone(),
            anonymous: anonymous.map(|(user, password)| auth::Credentials {
                user: user.to_string(),
                password: password.as_bytes().to_vec(),
            }),
        };
        Protocols {
            cluster_name: config.cluster_name.clone(),
            product: config.product.clone(),
            version: config.version.clone(),
            limits: Arc::new(limits),
            logins: Arc::new(logins),
            mqtt: Arc::new(config.mqtt.clone()),
            web_mqtt: Arc::new(config.web_mqtt.clone()),
        }
    }

    /// For a connection accepted `now`.
    pub fn session(&self, info: &ConnectionInfo, now: Time) -> Box<dyn Session> {
        let peer_is_loopback = is_loopback(info);
        match info.protocol {
            ClientProtocol::Amqp => {
                let config = session_amqp091::SessionConfig {
                    peer_is_loopback,
                    peer: info.peer.to_string(),
                    tls: info.tls.clone(),
                    server_name: self.cluster_name.clone(),
                    product: self.product.clone(),
                    version: self.version.clone(),
                    limits: self.limits.clone(),
                    logins: self.logins.clone(),
                };
                Box::new(AmqpSession::new(config, now))
            }
            ClientProtocol::Mqtt => Box::new(self.mqtt(info, now)),
            ClientProtocol::WebMqtt => {
                let inner = Box::new(self.mqtt(info, now));
                let settings = self.web_mqtt.clone();
                Box::new(WebSocketSession::new(inner, settings, info.peer))
            }
        }
    }

    fn mqtt(&self, info: &ConnectionInfo, now: Time) -> MqttSession {
        let config = session_mqtt::SessionConfig {
            peer_is_loopback: is_loopback(info),
            tls: info.tls.clone(),
            settings: self.mqtt.clone(),
        };
        MqttSession::new(config, now)
    }
}
