//! The client protocols of the broker. This is the only place that names them all: a new protocol is one more entry of
//! [`registrations`].

use crate::amqp::AmqpProtocol;
use env::Time;
use metadata::Name;
use metadata::deprecated::DeprecatedFeature;
use node::Registration;
use node::config::Config;
use session::{ConnectionInfo, Protocol, ServiceRegistration, Session};
use session_amqp10::{Amqp10, Amqp10Config};
use session_amqp091::{Amqp091, LoginConfig};
use session_mqtt::MqttProtocol;
use session_stream::{StreamConfig, StreamProtocol};
use session_websocket::WebSocket;
use std::sync::{Arc, PoisonError, RwLock};

/// All protocols with their listeners and settings.
pub(crate) fn registrations(config: &Config) -> Vec<Registration> {
    let amqp = amqp(config);
    let web_amqp = WebSocket {
        inner: amqp.amqp10.clone(),
        listener_names: ["http/web-amqp", "https/web-amqp"],
        settings: Arc::new(config.web_amqp.settings.clone()),
    };
    // A method frame and the beginning of the next one.
    let largest_amqp_frame = config.limits.frame_max as usize * 2;
    let mqtt = Arc::new(mqtt(config));
    let web_mqtt = WebSocket {
        inner: mqtt.clone(),
        listener_names: ["http/web-mqtt", "https/web-mqtt"],
        settings: Arc::new(config.web_mqtt.settings.clone()),
    };
    vec![
        Registration {
            protocol: Arc::new(amqp),
            plain: config.amqp,
            secure: config.amqp_tls,
            largest_frame: largest_amqp_frame,
        },
        Registration {
            protocol: mqtt,
            plain: config.mqtt.plain,
            secure: config.mqtt.tls,
            largest_frame: config.mqtt.limits.packet,
        },
        Registration {
            protocol: Arc::new(web_mqtt),
            plain: config.web_mqtt.plain,
            secure: config.web_mqtt.tls,
            largest_frame: config.mqtt.limits.packet,
        },
        Registration {
            protocol: Arc::new(web_amqp),
            plain: config.web_amqp.plain,
            secure: config.web_amqp.tls,
            largest_frame: largest_amqp_frame,
        },
        Registration {
            protocol: Arc::new(stream(config)),
            plain: config.stream.plain,
            secure: config.stream.tls,
            largest_frame: largest_stream_frame(config),
        },
    ]
}

/// A protocol whose settings a reload replaces. Connections keep the settings with which they began. The shards have the first
/// protocol's service, whose settings no reload changes.
#[derive(Debug)]
pub(crate) struct ReloadableProtocol {
    first: Arc<dyn Protocol>,
    now: RwLock<Arc<dyn Protocol>>,
}

impl ReloadableProtocol {
    /// New connections get sessions of this protocol.
    pub(crate) fn replace(&self, protocol: Arc<dyn Protocol>) {
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = protocol;
    }
}

impl Protocol for ReloadableProtocol {
    fn listener_names(&self) -> [&'static str; 2] {
        self.first.listener_names()
    }

    fn session(&self, connection: &ConnectionInfo, now: Time) -> Box<dyn Session> {
        let protocol = self.now.read().unwrap_or_else(PoisonError::into_inner);
        protocol.session(connection, now)
    }

    fn service(&self) -> Option<ServiceRegistration> {
        self.first.service()
    }
}

/// All protocols, and the handles through which a reload replaces their settings, in the same order.
pub(crate) fn reloadable_registrations(
    config: &Config,
) -> (Vec<Registration>, Vec<Arc<ReloadableProtocol>>) {
    let wrap = |registration: Registration| {
        let protocol = Arc::new(ReloadableProtocol {
            now: RwLock::new(registration.protocol.clone()),
            first: registration.protocol,
        });
        let registration = Registration {
            protocol: protocol.clone(),
            ..registration
        };
        (registration, protocol)
    };
    registrations(config).into_iter().map(wrap).unzip()
}

/// Refuses a configuration that advertises a listener that no protocol has.
pub(crate) fn check_advertised_listeners(config: &Config) -> Result<(), String> {
    let registrations = registrations(config);
    let all = registrations.iter().map(|r| r.protocol.listener_names());
    let names: Vec<_> = all.flatten().collect();
    let listed = config.advertised_nodes.keys();
    let mut of_nodes = listed.filter(|(_, listener)| !names.contains(&listener.as_str()));
    if let Some((node, listener)) = of_nodes.next() {
        return Err(format!(
            "`advertised_nodes.{node}.{listener}`: no such listener; expected one of {}",
            names.join(", ")
        ));
    }
    let unknown = (config.advertised_listeners.keys()).find(|name| !names.contains(&name.as_str()));
    unknown.map_or(Ok(()), |unknown| {
        Err(format!(
            "`advertised_listeners.{unknown}`: no such listener; expected one of {}",
            names.join(", ")
        ))
    })
}

fn amqp(config: &Config) -> AmqpProtocol {
    let logins = Arc::new(LoginConfig {
        mechanisms: config.mechanisms(),
        loopback_users: names(&config.loopback_users),
        anonymous: anonymous(config),
        has_external_backend: config.backends.has_external(),
        has_internal_backend: config.backends.has_internal(),
    });
    AmqpProtocol {
        amqp091: amqp091(config, logins.clone()),
        amqp10: Arc::new(amqp10(config, logins)),
    }
}

fn amqp10(config: &Config, logins: Arc<LoginConfig>) -> Amqp10 {
    let limits = &config.limits;
    let limits = session_amqp10::Limits {
        frame: limits.frame_max,
        idle: std::time::Duration::from_secs(limits.heartbeat_s.into()),
        handshake: limits.handshake_timeout,
        interceptors: config.interceptors,
        ..session_amqp10::Limits::default()
    }
    .with_message_size(limits.max_message_size);
    Amqp10::new(Amqp10Config {
        cluster_name: config.cluster.name.clone(),
        product: config.product.clone(),
        version: config.version.clone(),
        default_vhost: config.default_vhost.as_str().into(),
        limits,
        logins,
    })
}

fn amqp091(config: &Config, logins: Arc<LoginConfig>) -> Amqp091 {
    let limits = &config.limits;
    let limits = session_amqp091::Limits {
        frame_max: limits.frame_max,
        channel_max: limits.channel_max,
        heartbeat: limits.heartbeat_s,
        handshake: limits.handshake_timeout,
        acknowledgement: limits
            .consumer_timeout_ms
            .map(std::time::Duration::from_millis),
        permits_global_qos: config
            .restrictions
            .permitted
            .contains(DeprecatedFeature::GlobalQos),
        interceptors: config.interceptors,
        ..session_amqp091::Limits::default()
    }
    .with_message_size(limits.max_message_size);
    Amqp091 {
        cluster_name: config.cluster.name.as_str().into(),
        product: config.product.as_str().into(),
        version: config.version.as_str().into(),
        limits: Arc::new(limits),
        logins,
    }
}

fn mqtt(config: &Config) -> MqttProtocol {
    let vhost = config.mqtt.vhost.as_ref().unwrap_or(&config.default_vhost);
    let settings = session_mqtt::MqttSettings {
        limits: config.mqtt.limits.clone(),
        vhost: vhost.as_str().into(),
        exchange: config.mqtt.exchange.as_str().into(),
        sys_interval: config.mqtt.sys_interval,
        loopback_users: names(&config.loopback_users),
        anonymous: anonymous(config).filter(|_| config.mqtt.allow_anonymous),
        name_without_password: config.mqtt.name_without_password,
        by_certificate: config.mqtt.by_certificate,
        unauthorized: config.mqtt.unauthorized,
        has_external_backend: config.backends.has_external(),
        has_internal_backend: config.backends.has_internal(),
        interceptors: config.interceptors,
    };
    MqttProtocol {
        settings: Arc::new(settings),
    }
}

fn stream(config: &Config) -> StreamProtocol {
    let logins = LoginConfig {
        mechanisms: config.mechanisms(),
        loopback_users: names(&config.loopback_users),
        anonymous: anonymous(config),
        has_external_backend: config.backends.has_external(),
        has_internal_backend: config.backends.has_internal(),
    };
    StreamProtocol::new(StreamConfig {
        cluster_name: config.cluster.name.clone(),
        product: config.product.clone(),
        version: config.version.clone(),
        limits: session_stream::Limits {
            frame: config.stream.frame_max,
            heartbeat: config.stream.heartbeat,
            handshake: config.limits.handshake_timeout,
            ..session_stream::Limits::default()
        },
        logins: Arc::new(logins),
    })
}

/// The largest frame of a stream client in bytes, with its size field.
fn largest_stream_frame(config: &Config) -> usize {
    let frame = match config.stream.frame_max {
        0 => codec_stream::MAX_FRAME_MAX,
        max => max,
    };
    frame as usize + codec_stream::SIZE_BYTES
}

/// The user of clients that name none.
fn anonymous(config: &Config) -> Option<auth::Credentials> {
    let user = config.anonymous_user.as_ref()?;
    Some(auth::Credentials {
        user: user.clone(),
        password: config.anonymous_pass.as_bytes().to_vec(),
    })
}

fn names(list: &[String]) -> Vec<Name> {
    list.iter().map(|name| name.as_str().into()).collect()
}
