//! Keys of MQTT and AMQP 1.0 over WebSocket. Names and values are RabbitMQ's.

use super::Config;
use super::keys::{ConfigKey, LISTEN, filled, number};
use super::values::{Listen, parse_bytes};
use session_websocket::WebSocketSettings;

/// Listeners and session settings of a protocol over WebSocket.
#[derive(Clone, Debug, PartialEq)]
pub struct WebConfig {
    pub plain: Listen,
    pub tls: Listen,
    pub settings: WebSocketSettings,
}

impl WebConfig {
    /// No listeners, and the default settings with these subprotocols.
    pub fn new(protocols: &'static [&'static str]) -> WebConfig {
        WebConfig {
            plain: Listen::None,
            tls: Listen::None,
            settings: WebSocketSettings::new(protocols),
        }
    }
}

/// A request path.
fn target(text: &str) -> Option<String> {
    let good = text.starts_with('/') && !text.contains(['?', '#', ' ']);
    filled(text).filter(|_| good)
}

fn frame(text: &str) -> Option<u64> {
    match text {
        "infinity" => Some(WebSocketSettings::UNLIMITED_FRAME),
        text => parse_bytes(text).filter(|bytes| *bytes > 0),
    }
}

/// Defines the keys of one protocol: the field of [`Config`], the prefix of the keys, the name of the protocol, its
/// conventional ports, and the key of the limit of the protocol in the frames.
macro_rules! web_keys {
    ($field:ident, $prefix:literal, $protocol:literal, $plain:literal, $tls:literal, $limit:literal) => {
        &[
            ConfigKey {
                name: concat!($prefix, ".tcp.port"),
                accepts: LISTEN,
                default: "none",
                doc: concat!(
                    $protocol,
                    " over WebSocket without TLS, by convention ",
                    $plain,
                    "."
                ),
                set: |c, _, v| Listen::parse(v).map(|listen| c.$field.plain = listen),
            },
            ConfigKey {
                name: concat!($prefix, ".tcp.listener"),
                accepts: LISTEN,
                default: "none",
                doc: concat!("The same as `", $prefix, ".tcp.port`."),
                set: |c, _, v| Listen::parse(v).map(|listen| c.$field.plain = listen),
            },
            ConfigKey {
                name: concat!($prefix, ".ssl.port"),
                accepts: LISTEN,
                default: "none",
                doc: concat!(
                    $protocol,
                    " over WebSocket with TLS, by convention ",
                    $tls,
                    ", which needs `ssl_options.certfile` and `ssl_options.keyfile`."
                ),
                set: |c, _, v| Listen::parse(v).map(|listen| c.$field.tls = listen),
            },
            ConfigKey {
                name: concat!($prefix, ".ssl.listener"),
                accepts: LISTEN,
                default: "none",
                doc: concat!("The same as `", $prefix, ".ssl.port`."),
                set: |c, _, v| Listen::parse(v).map(|listen| c.$field.tls = listen),
            },
            ConfigKey {
                name: concat!($prefix, ".ws_path"),
                accepts: "a path that begins with /",
                default: "/ws",
                doc: "Path at which WebSocket clients connect; other paths answer 404.",
                set: |c, _, v| target(v).map(|path| c.$field.settings.path = path),
            },
            ConfigKey {
                name: concat!($prefix, ".ws_opts.max_frame_size"),
                accepts: "bytes, or a number with kB, MB, GB, KiB, MiB or GiB, or infinity",
                default: "infinity",
                doc: concat!(
                    "Largest payload of a WebSocket frame, independent of `",
                    $limit,
                    "`."
                ),
                set: |c, _, v| frame(v).map(|bytes| c.$field.settings.max_frame = bytes),
            },
            ConfigKey {
                name: concat!($prefix, ".allow_origins.*"),
                accepts: "an origin, such as https://example.com",
                default: "",
                doc: concat!(
                    "Permitted origins of web pages, one for each number (`",
                    $prefix,
                    ".allow_origins.1`, ...), by default all; clients that are no browsers send no \
                     origin and are permitted."
                ),
                set: |c, place, v| {
                    number::<u32>(place, 0, u32::MAX)?;
                    filled(v).map(|origin| c.$field.settings.origins.push(origin))
                },
            },
        ]
    };
}

/// The keys of MQTT over WebSocket, in the order of the reference.
pub const WEB_MQTT_KEYS: &[ConfigKey] = web_keys!(
    web_mqtt,
    "web_mqtt",
    "MQTT",
    15675,
    15676,
    "mqtt.max_packet_size_authenticated"
);

/// The keys of AMQP 1.0 over WebSocket, in the order of the reference.
pub const WEB_AMQP_KEYS: &[ConfigKey] =
    web_keys!(web_amqp, "web_amqp", "AMQP 1.0", 15678, 15677, "frame_max");
