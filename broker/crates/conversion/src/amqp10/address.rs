//! Addresses (version 2 of RabbitMQ) to which responses are sent, percent-encoded:
//! `/exchanges/{exchange}/{key}` for a topic and `/queues/{queue}` for a queue of direct reply-to.

use crate::ReplyTopic;
use crate::mqtt::key_of;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use routing::DIRECT_REPLY_PREFIX;
use std::borrow::Cow;

/// All characters that are not unreserved (RFC 3986, section 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The address to which a client publishes the response.
pub fn address_of(reply: &ReplyTopic<'_>) -> String {
    let key = key_of(reply.topic);
    let exchange = utf8_percent_encode(&reply.exchange, RESERVED);
    let key = utf8_percent_encode(&key, RESERVED);
    format!("/exchanges/{exchange}/{key}")
}

/// The routing key of an address at this exchange; `None` for every other address.
pub fn key_of_address<'a>(address: &'a str, exchange: &str) -> Option<Cow<'a, str>> {
    let (name, key) = address.strip_prefix("/exchanges/")?.split_once('/')?;
    let name = percent_decode_str(name).decode_utf8().ok()?;
    let key = percent_decode_str(key).decode_utf8().ok()?;
    (name == exchange && !key.is_empty()).then_some(key)
}

/// The address of a queue of direct reply-to; every other text is returned unchanged.
pub fn reply_address(reply_to: &str) -> Cow<'_, str> {
    match reply_to.starts_with(DIRECT_REPLY_PREFIX) {
        true => Cow::Owned(format!(
            "/queues/{}",
            utf8_percent_encode(reply_to, RESERVED)
        )),
        false => Cow::Borrowed(reply_to),
    }
}

/// The queue of direct reply-to with this address; every other text is returned unchanged.
pub fn reply_queue(reply_to: &str) -> Cow<'_, str> {
    reply_to
        .strip_prefix("/queues/")
        .and_then(|name| percent_decode_str(name).decode_utf8().ok())
        .filter(|name| name.starts_with(DIRECT_REPLY_PREFIX))
        .unwrap_or(Cow::Borrowed(reply_to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn response_topic_is_an_address_at_the_exchange_of_mqtt() {
        let reply = ReplyTopic {
            exchange: "amq.topic".into(),
            topic: "a/b.c d/é%",
        };
        let address = address_of(&reply);
        assert_eq!(address, "/exchanges/amq.topic/a.b%2Fc%20d.%C3%A9%25");
        let key = key_of_address(&address, "amq.topic");
        assert_eq!(key.as_deref(), Some("a.b/c d.é%"));
        for other in [
            "/exchanges/x/a.b",
            "/exchanges/amq.topic",
            "/exchanges/amq.topic/",
            "/exchanges/amq.topic/%ff",
            "/queues/q",
            "q",
        ] {
            assert_eq!(key_of_address(other, "amq.topic"), None, "{other}");
        }
    }

    #[test]
    fn queue_of_direct_reply_to_has_an_address() {
        let queue = "amq.rabbitmq.reply-to.g1h2/+A.b==";
        let address = "/queues/amq.rabbitmq.reply-to.g1h2%2F%2BA.b%3D%3D";
        assert_eq!(reply_address(queue), address);
        assert_eq!(reply_queue(address), queue);
        for other in [
            "",
            "replies",
            "amq.rabbitmq.reply-to",
            "/queues/replies",
            "/queues/amq.rabbitmq.reply-to.%ff",
            "/exchanges/amq.topic/amq.rabbitmq.reply-to.a",
        ] {
            assert_eq!(reply_address(other), other);
            assert_eq!(reply_queue(other), other);
        }
    }
}
