//! WebSocket configuration.

/// Configuration of a WebSocket listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketSettings {
    /// The only path, with the leading `/` (`web_mqtt.ws_path`).
    pub path: String,
    /// Supported subprotocols in order of preference.
    pub protocols: &'static [&'static str],
    /// Allowed origins of web pages; empty: all (`web_mqtt.allow_origins`).
    pub origins: Vec<String>,
    /// Maximum payload of a frame in bytes (`web_mqtt.ws_opts.max_frame_size`). Memory use does not
    /// depend on it, because payload is passed on as it arrives.
    pub max_frame: u64,
}

impl WebSocketSettings {
    /// The subprotocols of MQTT [MQTT-6.0.0-3]. Clients of MQTT 3.1 use the second name.
    pub const MQTT: &'static [&'static str] = &["mqtt", "mqttv3.1"];
}

impl Default for WebSocketSettings {
    fn default() -> WebSocketSettings {
        WebSocketSettings {
            path: "/ws".to_owned(),
            protocols: WebSocketSettings::MQTT,
            origins: Vec::new(),
            max_frame: i64::MAX as u64,
        }
    }
}
