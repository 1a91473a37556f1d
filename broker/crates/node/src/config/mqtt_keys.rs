//! MQTT keys. Names and values are RabbitMQ's.

use super::keys::{BOOL, ConfigKey, LISTEN, filled, number};
use super::values::{Listen, parse_bool, parse_bytes, parse_ms};
use session_mqtt::{MqttSettings, SessionLimits, UnauthorizedAction};
use std::time::Duration;

/// MQTT settings.
#[derive(Clone, Debug, PartialEq)]
pub struct MqttConfig {
    /// MQTT without TLS.
    pub plain: Listen,
    /// MQTT with TLS.
    pub tls: Listen,
    /// None: `default_vhost`.
    pub vhost: Option<String>,
    /// The topic exchange that publishes go through.
    pub exchange: String,
    /// None: no $SYS topics.
    pub sys_interval: Option<Duration>,
    /// Clients may connect without a user name.
    pub allow_anonymous: bool,
    /// Clients may connect with a user name and no password.
    pub name_without_password: bool,
    /// What a refused publish or subscription means for the connection.
    pub unauthorized: UnauthorizedAction,
    /// The name of the user comes from the client certificate.
    pub by_certificate: bool,
    /// Limits of a session.
    pub limits: SessionLimits,
}

impl Default for MqttConfig {
    fn default() -> MqttConfig {
        let settings = MqttSettings::default();
        MqttConfig {
            plain: Listen::None,
            tls: Listen::None,
            vhost: None,
            exchange: settings.exchange.to_string(),
            sys_interval: Some(Duration::from_secs(10)),
            allow_anonymous: true,
            name_without_password: settings.name_without_password,
            unauthorized: settings.unauthorized,
            by_certificate: settings.by_certificate,
            limits: settings.limits,
        }
    }
}

/// Packet size in bytes, up to the maximum of the protocol.
fn packet(text: &str) -> Option<usize> {
    let bytes = parse_bytes(text)?;
    let largest = codec_mqtt::MAX_PACKET as u64;
    (64..=largest).contains(&bytes).then_some(bytes as usize)
}

fn seconds(text: &str) -> Option<u32> {
    match text {
        "infinity" => Some(u32::MAX),
        text => number(text, 0, u32::MAX),
    }
}

/// An interval in seconds; 0: disabled.
fn interval(text: &str) -> Option<Option<Duration>> {
    let seconds: u32 = number(text, 0, 65_535)?;
    Some((seconds > 0).then(|| Duration::from_secs(seconds.into())))
}

const PACKET: &str = "64 to 268435460; bytes, or a number with kB, MB, GB, KiB, MiB or GiB";

/// All keys, in the order of the reference.
pub(super) const MQTT_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "mqtt.listeners.tcp",
        accepts: "none",
        default: "",
        doc: "`none` turns the MQTT listener without TLS off.",
        set: |c, _, v| (v == "none").then(|| c.mqtt.plain = Listen::None),
    },
    ConfigKey {
        name: "mqtt.listeners.tcp.default",
        accepts: LISTEN,
        default: "none",
        doc: "MQTT listener without TLS, by convention 1883, where a single node without \
              configured `listeners` has it on loopback.",
        set: |c, _, v| Listen::parse(v).map(|l| c.mqtt.plain = l),
    },
    ConfigKey {
        name: "mqtt.listeners.ssl.default",
        accepts: LISTEN,
        default: "none",
        doc: "MQTT listener with TLS, by convention 8883, which needs `ssl_options.certfile` and \
              `ssl_options.keyfile`.",
        set: |c, _, v| Listen::parse(v).map(|l| c.mqtt.tls = l),
    },
    ConfigKey {
        name: "mqtt.vhost",
        accepts: "a name of 1 to 255 bytes",
        default: "",
        doc: "Virtual host of MQTT clients whose user name does not start with a virtual host and \
              a colon; `default_vhost` by default.",
        set: |c, _, v| filled(v).map(|n| c.mqtt.vhost = Some(n)),
    },
    ConfigKey {
        name: "mqtt.exchange",
        accepts: "a name of 1 to 255 bytes",
        default: "amq.topic",
        doc: "Topic exchange that AMQP and MQTT clients share.",
        set: |c, _, v| filled(v).map(|n| c.mqtt.exchange = n),
    },
    ConfigKey {
        name: "mqtt.sys_interval",
        accepts: "seconds, 0 to 65535",
        default: "10",
        doc: "Interval at which subscribers of `$SYS/broker/...` get changed values; 0 turns \
              these topics off.",
        set: |c, _, v| interval(v).map(|every| c.mqtt.sys_interval = every),
    },
    ConfigKey {
        name: "mqtt.allow_anonymous",
        accepts: BOOL,
        default: "true",
        doc: "Lets MQTT clients without a user name log in as `anonymous_login_user`.",
        set: |c, _, v| parse_bool(v).map(|on| c.mqtt.allow_anonymous = on),
    },
    ConfigKey {
        name: "mqtt.allow_user_name_without_password",
        accepts: BOOL,
        default: "false",
        doc: "Lets MQTT clients with any user name and no password log in as \
              `anonymous_login_user`, which needs `mqtt.allow_anonymous`.",
        set: |c, _, v| parse_bool(v).map(|on| c.mqtt.name_without_password = on),
    },
    ConfigKey {
        name: "mqtt.disconnect_on_unauthorized",
        accepts: BOOL,
        default: "",
        doc: "Closes connections of MQTT clients without the permission for a publish or a \
              subscription, or keeps them open. Unset: a publish closes the connection if it \
              cannot be refused otherwise.",
        set: |c, _, v| {
            parse_bool(v).map(|on| {
                c.mqtt.unauthorized = match on {
                    true => UnauthorizedAction::Disconnect,
                    false => UnauthorizedAction::Answer,
                }
            })
        },
    },
    ConfigKey {
        name: "mqtt.ssl_cert_login",
        accepts: BOOL,
        default: "false",
        doc: "Lets MQTT clients without a user name log in as the user of their certificate \
              (`ssl_cert_login_from`), which needs `ssl_options.verify = verify_peer`.",
        set: |c, _, v| parse_bool(v).map(|on| c.mqtt.by_certificate = on),
    },
    ConfigKey {
        name: "mqtt.prefetch",
        accepts: "1 to 65535",
        default: "10",
        doc: "Largest number of unacknowledged messages to an MQTT client.",
        set: |c, _, v| number(v, 1, u16::MAX).map(|n| c.mqtt.limits.prefetch = n),
    },
    ConfigKey {
        name: "mqtt.max_session_expiry_interval_seconds",
        accepts: "0 to 4294967295, or infinity",
        default: "86400",
        doc: "Longest time that an MQTT session without a connection is kept.",
        set: |c, _, v| seconds(v).map(|n| c.mqtt.limits.session_expiry = n),
    },
    ConfigKey {
        name: "mqtt.max_keep_alive_seconds",
        accepts: "0 to 65535",
        default: "0",
        doc: "Longest keep alive of MQTT clients, or 0 for no limit; clients of 5.0 get it as \
              Server Keep Alive, others with a longer one or none are refused.",
        set: |c, _, v| number(v, 0, u16::MAX).map(|n| c.mqtt.limits.keep_alive = n),
    },
    ConfigKey {
        name: "mqtt.topic_alias_maximum",
        accepts: "0 to 65535",
        default: "16",
        doc: "Number of topic aliases of an MQTT connection in each direction; 0 turns them off.",
        set: |c, _, v| number(v, 0, u16::MAX).map(|n| c.mqtt.limits.topic_aliases = n),
    },
    ConfigKey {
        name: "mqtt.max_packet_size_unauthenticated",
        accepts: PACKET,
        default: "200704",
        doc: "Largest CONNECT packet of MQTT clients; 64 connections of a shard at a time may \
              send one of more than 64 KiB.",
        set: |c, _, v| packet(v).map(|n| c.mqtt.limits.packet_unauthenticated = n),
    },
    ConfigKey {
        name: "mqtt.max_packet_size_authenticated",
        accepts: PACKET,
        default: "16777216",
        doc: "Largest size of other packets of MQTT clients.",
        set: |c, _, v| packet(v).map(|n| c.mqtt.limits.packet = n),
    },
    ConfigKey {
        name: "mqtt.mailbox_soft_limit",
        accepts: "0 to 4294967295",
        default: "200",
        doc: "Number of QoS 0 messages that may wait for an MQTT client that does not read; \
              further ones are dropped, unless the value is 0.",
        set: |c, _, v| number(v, 0, u32::MAX).map(|n| c.mqtt.limits.mailbox = n),
    },
    ConfigKey {
        name: "mqtt.login_timeout",
        accepts: "milliseconds, 100 to 600000",
        default: "10000",
        doc: "Time within which the CONNECT of an MQTT connection must be accepted.",
        set: |c, _, v| parse_ms(v, 100, 600_000).map(|t| c.mqtt.limits.login = t),
    },
];
