//! Addresses of queues and exchanges: version 2 of RabbitMQ's address format. Names are percent-encoded (RFC 3986).
//!
//! | address | node |
//! |---|---|
//! | `/queues/:queue` | source or target: a queue |
//! | `/exchanges/:exchange/:routing-key` | target: an exchange with a routing key |
//! | `/exchanges/:exchange` | target: an exchange with an empty routing key |
//! | `/management` | source and target of the management node |

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

/// The address of the management node.
pub(crate) const MANAGEMENT: &str = "/management";

/// Longest name and routing key in bytes. The other protocols allow no longer ones.
const MAX_NAME: usize = 255;

/// Characters that stay as they are: the unreserved ones of RFC 3986.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// The exchange and routing key that a target address stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Empty: the default exchange.
    pub exchange: String,
    pub routing_key: String,
    /// The address names the queue `routing_key`.
    pub is_queue: bool,
}

/// Why an address cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    #[error(
        "address '{0}' has version 1, which is not supported; use /queues/:queue or /exchanges/:exchange/:routing-key"
    )]
    Version1(String),
    #[error("bad address '{0}': {1}")]
    Malformed(String, &'static str),
}

/// Reads a target address, or the property `to` of a message to the anonymous terminus.
pub(crate) fn parse_target(address: &str) -> Result<Destination, AddressError> {
    let malformed = |why| AddressError::Malformed(address.to_owned(), why);
    if let Some(queue) = address.strip_prefix("/queues/") {
        return Ok(Destination {
            exchange: String::new(),
            routing_key: queue_name(queue).map_err(malformed)?,
            is_queue: true,
        });
    }
    let Some(rest) = address.strip_prefix("/exchanges/") else {
        return Err(AddressError::Version1(address.to_owned()));
    };
    let (exchange, key) = rest.split_once('/').unwrap_or((rest, ""));
    if key.contains('/') {
        return Err(malformed(
            "a slash in a routing key has to be encoded as %2F",
        ));
    }
    let exchange = decode(exchange).map_err(malformed)?;
    if exchange.is_empty() || exchange == "amq.default" {
        return Err(malformed(
            "the default exchange has no address; use /queues/:queue",
        ));
    }
    Ok(Destination {
        exchange,
        routing_key: decode(key).map_err(malformed)?,
        is_queue: false,
    })
}

/// Reads a source address and returns the name of its queue.
pub(crate) fn parse_source(address: &str) -> Result<String, AddressError> {
    match address.strip_prefix("/queues/") {
        Some(queue) => {
            queue_name(queue).map_err(|why| AddressError::Malformed(address.to_owned(), why))
        }
        None if address.starts_with("/exchanges/") => Err(AddressError::Malformed(
            address.to_owned(),
            "the source of messages must be a queue",
        )),
        None => Err(AddressError::Version1(address.to_owned())),
    }
}

/// The address of a queue.
pub(crate) fn queue_address(queue: &str) -> String {
    format!("/queues/{}", encode(queue))
}

/// The address of a target.
pub(crate) fn target_address(target: &Destination) -> String {
    if target.is_queue {
        return queue_address(&target.routing_key);
    }
    let exchange = encode(&target.exchange);
    match &*target.routing_key {
        "" => format!("/exchanges/{exchange}"),
        key => format!("/exchanges/{exchange}/{}", encode(key)),
    }
}

/// Percent-encodes a name.
pub(crate) fn encode(name: &str) -> String {
    utf8_percent_encode(name, ENCODED).to_string()
}

fn queue_name(encoded: &str) -> Result<String, &'static str> {
    if encoded.contains('/') {
        return Err("a slash in a queue name has to be encoded as %2F");
    }
    match decode(encoded)? {
        name if name.is_empty() => Err("the queue name is empty"),
        name => Ok(name),
    }
}

/// Decodes a percent-encoded name.
pub(crate) fn decode(encoded: &str) -> Result<String, &'static str> {
    let is_hex = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_hexdigit);
    let bytes = encoded.as_bytes();
    let is_bad_escape = |at: usize| !is_hex(bytes.get(at + 1)) || !is_hex(bytes.get(at + 2));
    if encoded.match_indices('%').any(|(at, _)| is_bad_escape(at)) {
        return Err("a percent sign must be followed by two hexadecimal digits");
    }
    let name = percent_decode_str(encoded).decode_utf8();
    let name = name.map_err(|_| "a name is not UTF-8")?;
    if name.len() > MAX_NAME {
        return Err("a name or routing key is longer than 255 bytes");
    }
    Ok(name.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exchange(exchange: &str, routing_key: &str) -> Destination {
        Destination {
            exchange: exchange.into(),
            routing_key: routing_key.into(),
            is_queue: false,
        }
    }

    fn queue(name: &str) -> Destination {
        Destination {
            exchange: String::new(),
            routing_key: name.into(),
            is_queue: true,
        }
    }

    #[test]
    fn target_addresses_are_decoded() {
        let long = "k".repeat(255);
        for (address, expected) in [
            ("/queues/orders", queue("orders")),
            ("/queues/a%2Fb%20%C3%A9", queue("a/b é")),
            ("/queues/a+b", queue("a+b")),
            ("/exchanges/amq.topic", exchange("amq.topic", "")),
            ("/exchanges/amq.topic/", exchange("amq.topic", "")),
            ("/exchanges/x/a.b", exchange("x", "a.b")),
            ("/exchanges/a%2fb/%25", exchange("a/b", "%")),
            (&*format!("/exchanges/x/{long}"), exchange("x", &long)),
        ] {
            assert_eq!(parse_target(address), Ok(expected), "{address}");
        }
    }

    #[test]
    fn wrong_target_addresses_are_refused() {
        let long = format!("/queues/{}", "q".repeat(256));
        for address in [
            "/queues/",
            "/queues/a/b",
            "/queues/%",
            "/queues/%2",
            "/queues/%g0",
            "/queues/%FF",
            "/exchanges/",
            "/exchanges//key",
            "/exchanges/amq.default/key",
            "/exchanges/x/a/b",
            &*long,
        ] {
            let error = parse_target(address).unwrap_err();
            assert!(
                matches!(error, AddressError::Malformed(..)),
                "{address}: {error}"
            );
        }
        for address in [
            "",
            "orders",
            "/queue/orders",
            "/exchange/x/k",
            "/topic/a",
            "queues/q",
        ] {
            let error = parse_target(address).unwrap_err();
            assert!(
                matches!(error, AddressError::Version1(_)),
                "{address}: {error}"
            );
        }
    }

    #[test]
    fn source_addresses_name_a_queue() {
        assert_eq!(parse_source("/queues/a%20b").as_deref(), Ok("a b"));
        for address in ["/exchanges/x/k", "/queues/", "q", "/queues/a/b"] {
            assert!(parse_source(address).is_err(), "{address}");
        }
    }

    proptest! {
        #[test]
        fn queue_addresses_round_trip(name in "\\PC{1,60}") {
            prop_assert_eq!(parse_source(&queue_address(&name)), Ok(name));
        }

        #[test]
        fn target_addresses_round_trip(
            exchange in "[^.]\\PC{0,30}",
            routing_key in "\\PC{0,60}",
            is_queue: bool,
        ) {
            let routing_key = match (is_queue, routing_key.is_empty()) {
                (true, true) => "q".to_owned(),
                _ => routing_key,
            };
            let exchange = if is_queue { String::new() } else { exchange };
            let target = Destination { exchange, routing_key, is_queue };
            prop_assert_eq!(parse_target(&target_address(&target)), Ok(target));
        }

        #[test]
        fn any_address_is_accepted_or_refused(address: String) {
            let _ = (parse_target(&address), parse_source(&address));
        }
    }
}
