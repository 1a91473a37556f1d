//! WebSocket configuration. The names of keys are those below the prefix of the protocol, for example `web_mqtt`.

/// Configuration of a WebSocket listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketSettings {
    /// The only path, with the leading `/` (`ws_path`).
    pub path: String,
    /// Supported subprotocols in order of preference.
    pub protocols: &'static [&'static str],
    /// Allowed origins of web pages; empty: all (`allow_origins`).
    pub origins: Vec<String>,
    /// Maximum payload of a frame in bytes (`ws_opts.max_frame_size`). Memory use does not
    /// depend on it, because payload is passed on as it arrives.
    pub max_frame: u64,
}

impl WebSocketSettings {
    /// The subprotocols of MQTT [MQTT-6.0.0-3]. Clients of MQTT 3.1 use the second name.
    pub const MQTT: &'static [&'static str] = &["mqtt", "mqttv3.1"];

    /// The subprotocol of AMQP 1.0 (AMQP WebSocket Binding 1.0, section 2.1).
    pub const AMQP10: &'static [&'static str] = &["amqp"];

    /// The largest payload that a frame can have (RFC 6455, section 5.2).
    pub const UNLIMITED_FRAME: u64 = i64::MAX as u64;

    /// The default settings with these subprotocols: the path `/ws`, all origins, and frames of any size.
    pub fn new(protocols: &'static [&'static str]) -> WebSocketSettings {
        WebSocketSettings {
            path: "/ws".to_owned(),
            protocols,
            origins: Vec::new(),
            max_frame: WebSocketSettings::UNLIMITED_FRAME,
        }
    }
}
