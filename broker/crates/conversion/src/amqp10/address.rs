//! Addresses (version 2 of RabbitMQ) of topics for responses: `/exchanges/{exchange}/{key}`, both
//! percent-encoded.

use crate::ReplyTopic;
use crate::mqtt::key_of;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
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
}
