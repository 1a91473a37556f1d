//! Keys of MQTT over WebSocket. Names and values are RabbitMQ's.

use super::Config;
use super::keys::{ConfigKey, LISTEN, filled, number};
use super::values::{Listen, parse_bytes};
use session_websocket::WebSocketSettings;

/// Listeners and session settings of MQTT over WebSocket.
#[derive(Clone, Debug, PartialEq)]
pub struct WebMqttConfig {
    /// WebSocket without TLS.
    pub plain: Listen,
    /// WebSocket with TLS.
    pub tls: Listen,
    /// Settings of a connection.
    pub settings: WebSocketSettings,
}

impl Default for WebMqttConfig {
    fn default() -> WebMqttConfig {
        WebMqttConfig {
            plain: Listen::None,
            tls: Listen::None,
            settings: WebSocketSettings::default(),
        }
    }
}

fn plain(config: &mut Config, _: &str, value: &str) -> Option<()> {
    config.web_mqtt.plain = Listen::parse(value)?;
    Some(())
}

fn tls(config: &mut Config, _: &str, value: &str) -> Option<()> {
    config.web_mqtt.tls = Listen::parse(value)?;
    Some(())
}

/// A request path.
fn target(text: &str) -> Option<String> {
    let good = text.starts_with('/') && !text.contains(['?', '#', ' ']);
    filled(text).filter(|_| good)
}

fn frame(text: &str) -> Option<u64> {
    match text {
        "infinity" => Some(WebSocketSettings::default().max_frame),
        text => parse_bytes(text).filter(|bytes| *bytes > 0),
    }
}

/// All keys, in the order of the reference.
pub(super) const WEB_MQTT_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "web_mqtt.tcp.port",
        accepts: LISTEN,
        default: "none",
        doc: "MQTT over WebSocket without TLS, by convention 15675.",
        set: plain,
    },
    ConfigKey {
        name: "web_mqtt.tcp.listener",
        accepts: LISTEN,
        default: "none",
        doc: "The same as `web_mqtt.tcp.port`.",
        set: plain,
    },
    ConfigKey {
        name: "web_mqtt.ssl.port",
        accepts: LISTEN,
        default: "none",
        doc: "MQTT over WebSocket with TLS, by convention 15676, which needs \
              `ssl_options.certfile` and `ssl_options.keyfile`.",
        set: tls,
    },
    ConfigKey {
        name: "web_mqtt.ssl.listener",
        accepts: LISTEN,
        default: "none",
        doc: "The same as `web_mqtt.ssl.port`.",
        set: tls,
    },
    ConfigKey {
        name: "web_mqtt.ws_path",
        accepts: "a path that begins with /",
        default: "/ws",
        doc: "Path at which WebSocket clients connect; other paths answer 404.",
        set: |c, _, v| target(v).map(|path| c.web_mqtt.settings.path = path),
    },
    ConfigKey {
        name: "web_mqtt.ws_opts.max_frame_size",
        accepts: "bytes, or a number with kB, MB, GB, KiB, MiB or GiB, or infinity",
        default: "infinity",
        doc: "Largest payload of a WebSocket frame, independent of \
              `mqtt.max_packet_size_authenticated`.",
        set: |c, _, v| frame(v).map(|bytes| c.web_mqtt.settings.max_frame = bytes),
    },
    ConfigKey {
        name: "web_mqtt.allow_origins.*",
        accepts: "an origin, such as https://example.com",
        default: "",
        doc: "Permitted origins of web pages, one for each number (`web_mqtt.allow_origins.1`, \
              ...), by default all; clients that are no browsers send no origin and are permitted.",
        set: |c, place, v| {
            number::<u32>(place, 0, u32::MAX)?;
            filled(v).map(|origin| c.web_mqtt.settings.origins.push(origin))
        },
    },
];
