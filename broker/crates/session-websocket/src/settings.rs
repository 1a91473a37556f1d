//! What the configuration says about WebSocket.

/// How clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The only path, `/` first (`web_mqtt.ws_path`).
    pub path: String,
    /// Subprotocols, the best first.
    pub protocols: &'static [&'static str],
    /// Pages of which origins may connect; empty: all (`web_mqtt.allow_origins`).
    pub origins: Vec<String>,
    /// Bytes of a frame's payload at most (`web_mqtt.ws_opts.max_frame_size`). No memory depends on it: payload is passed on
    /// as it comes.
    pub max_frame: u64,
}

impl Settings {
    /// For MQTT [MQTT-6.0.0-3]; the second is the name that 3.1's clients used.
    pub const MQTT: &'static [&'static str] = &["mqtt", "mqttv3.1"];
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            path: "/ws".to_owned(),
            protocols: Settings::MQTT,
            origins: Vec::new(),
            max_frame: i64::MAX as u64,
        }
    }
}
