//! Keys of the built-in message interceptors. Names and values are RabbitMQ's.

use super::keys::{BOOL, ConfigKey};
use super::values::parse_bool;

const OVERWRITE: &str = "true (replaces the publisher's), false (keeps the publisher's) or none";

/// Parses the key of an interceptor that is enabled by either value. The outer `None`: invalid.
fn overwrite(text: &str) -> Option<Option<bool>> {
    match text {
        "none" => Some(None),
        text => parse_bool(text).map(Some),
    }
}

pub(super) const INTERCEPTOR_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "message_interceptors.incoming.set_header_timestamp.overwrite",
        accepts: OVERWRITE,
        default: "none",
        doc: "Adds the time of arrival to messages that clients publish to this node: `timestamp_in_ms` and `timestamp` in \
              AMQP 0.9.1, the annotation `x-opt-rabbitmq-received-time` in AMQP 1.0.",
        set: |c, _, v| overwrite(v).map(|on| c.interceptors.received_time = on),
    },
    ConfigKey {
        name: "message_interceptors.incoming.set_header_routing_node.overwrite",
        accepts: OVERWRITE,
        default: "none",
        doc: "Adds the name of this node to messages that clients publish to it, as `x-routed-by`.",
        set: |c, _, v| overwrite(v).map(|on| c.interceptors.routing_node = on),
    },
    ConfigKey {
        name: "message_interceptors.outgoing.timestamp.enabled",
        accepts: BOOL,
        default: "false",
        doc: "Adds `x-opt-rabbitmq-sent-time`, in milliseconds, to deliveries to AMQP clients.",
        set: |c, _, v| parse_bool(v).map(|on| c.interceptors.sent_time = on),
    },
    ConfigKey {
        name: "mqtt.message_interceptors.incoming.set_client_id_annotation.enabled",
        accepts: BOOL,
        default: "false",
        doc: "Adds the client id of the publisher to messages of MQTT clients, as `x-opt-mqtt-client-id`.",
        set: |c, _, v| parse_bool(v).map(|on| c.interceptors.mqtt_client_id = on),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use session::interceptors::Interceptors;

    #[test]
    fn interceptors_are_off_until_their_key_is_set() {
        let mut config = Config::default();
        assert_eq!(config.interceptors, Interceptors::default());
        for (key, value) in INTERCEPTOR_KEYS
            .iter()
            .zip(["false", "true", "true", "true"])
        {
            assert_eq!((key.set)(&mut config, "", value), Some(()), "{}", key.name);
        }
        let expected = Interceptors {
            received_time: Some(false),
            routing_node: Some(true),
            mqtt_client_id: true,
            sent_time: true,
        };
        assert_eq!(config.interceptors, expected);
        let first = INTERCEPTOR_KEYS.first().expect("a key");
        assert_eq!((first.set)(&mut config, "", "none"), Some(()));
        assert_eq!(config.interceptors.received_time, None);
        assert_eq!((first.set)(&mut config, "", "always"), None);
    }
}
