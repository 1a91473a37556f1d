//! RabbitMQ's firehose: copies of messages for tracing. The copy has the body of the message; its
//! headers describe the message, as AMQP 0.9.1 has it, and the event. Also here: the W3C trace
//! context of a message.

use crate::view::Encoding;
use crate::{View, amqp091};
use bytes::{Bytes, BytesMut};
use codec_amqp10::{Decode as _, Reader, Section, SectionKind, SectionReader};
use codec_amqp091::{Properties, Short, table};
use message::{Message, MessageBuilder, Protocol, Table, Value};
use telemetry::TraceContext;

/// Maximum length of a routing key in bytes.
const MAX_KEY: usize = 255;

/// Names of the W3C trace context.
const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// The W3C trace context of a message: of its headers in AMQP 0.9.1, of its message annotations or else its application
/// properties in AMQP 1.0, of its user properties in MQTT. None: it has none, or an invalid one.
#[cold]
pub fn context(message: &Message) -> Option<TraceContext> {
    let view = View::of(message).ok()?;
    let mut found = Found::default();
    if let Encoding::Maps { annotations, .. } = view.headers.0 {
        // The view leaves out annotations without the prefix of the broker's own.
        for (name, value) in annotations {
            if let (codec_amqp10::Value::Symbol(name), codec_amqp10::Value::String(text)) =
                (name, value)
            {
                found.note(name.as_str(), text);
            }
        }
        if let Some(context) = found.context() {
            return Some(context);
        }
        found = Found::default();
    }
    view.headers.for_each(|header| {
        if let Some(text) = header.value.as_str() {
            found.note(header.name, text);
        }
    });
    found.context()
}

/// The parts of an entry of a stream that a span needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryParts {
    /// The W3C trace context: of the message annotations, or else of the application properties. None: the entry has none, or an
    /// invalid one.
    pub context: Option<TraceContext>,
    /// Bytes of the body. An entry that is not a message of AMQP 1.0 is a body as a whole.
    pub body_len: usize,
}

/// Reads an entry of a stream, which clients write unchecked. Sections are skipped by their sizes up to the body, and only the two
/// that may have the context are searched.
#[cold]
pub fn entry_parts(entry: &[u8]) -> EntryParts {
    let mut context = None;
    for section in SectionReader::located(entry) {
        let Ok(section) = section else { break };
        match section.kind {
            SectionKind::MessageAnnotations | SectionKind::ApplicationProperties => {
                context = context.or_else(|| context_in(section, entry));
            }
            kind if kind.is_body() => {
                let body_len = entry.len().saturating_sub(section.range().start);
                return EntryParts { context, body_len };
            }
            _ => {}
        }
    }
    EntryParts {
        context,
        body_len: entry.len(),
    }
}

/// The context in a section that is a map.
fn context_in(section: Section, entry: &[u8]) -> Option<TraceContext> {
    let value = entry.get(section.value_range())?;
    let Ok(codec_amqp10::Value::Map(map)) = codec_amqp10::Value::decode(&mut Reader::new(value))
    else {
        return None;
    };
    let mut found = Found::default();
    for (name, value) in map {
        if let (Some(name), Some(text)) = (name.as_text(), value.as_text()) {
            found.note(name, text);
        }
    }
    found.context()
}

/// The first of duplicate headers counts.
#[derive(Default)]
struct Found {
    parent: Option<String>,
    state: Option<String>,
}

impl Found {
    fn note(&mut self, name: &str, text: &str) {
        match name {
            PARENT => self.parent.get_or_insert_with(|| text.to_owned()),
            STATE => self.state.get_or_insert_with(|| text.to_owned()),
            _ => return,
        };
    }

    fn context(&self) -> Option<TraceContext> {
        TraceContext::parse(self.parent.as_deref()?, self.state.as_deref())
    }
}

/// Builds the copy for `exchange` and `key` with the additional headers `extra`. None if the
/// message cannot be built.
pub fn copy(
    message: &Message,
    (exchange, key): (&str, &str),
    node: &str,
    extra: Table,
) -> Option<Message> {
    let mut headers = Table::default();
    headers.set("exchange_name", Value::from(message.exchange()));
    let keys = message.routing_keys().map(Value::from);
    headers.set("routing_keys", Value::Array(keys.collect()));
    let original = amqp091::convert(message);
    headers.set("properties", Value::Table(properties(&original.properties)));
    headers.set("node", Value::from(node));
    for (name, value) in extra.0 {
        headers.set(&name, value);
    }
    let mut entries = BytesMut::new();
    table::encode(&headers, &mut entries);
    let mut raw = BytesMut::new();
    let encoded = Properties {
        headers: entries.get(4..),
        ..Properties::default()
    };
    encoded.encode(&mut raw);
    let body = original.body.bytes();
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: false,
        priority: None,
        ttl_ms: None,
        received: message.received(),
        exchange,
        routing_keys: &[truncate(key)],
        properties: &raw,
    };
    builder.build(body.len(), [body]).ok()
}

fn truncate(key: &str) -> &str {
    key.get(..key.floor_char_boundary(MAX_KEY)).unwrap_or(key)
}

/// The properties of the message under RabbitMQ's names; absent ones are omitted.
fn properties(raw: &[u8]) -> Table {
    let mut result = Table::default();
    let Ok(decoded) = Properties::received(raw) else {
        return result;
    };
    let headers = decoded.headers.and_then(|raw| table::decode(raw).ok());
    let text = |text: Option<Short<'_>>| text.map(|t| Value::String(Bytes::copy_from_slice(t.0)));
    let number = |number: Option<u8>| number.map(|n| Value::I32(n.into()));
    let all = [
        ("content_type", text(decoded.content_type)),
        ("content_encoding", text(decoded.content_encoding)),
        ("headers", headers.map(Value::Table)),
        ("delivery_mode", number(decoded.delivery_mode)),
        ("priority", number(decoded.priority)),
        ("correlation_id", text(decoded.correlation_id)),
        ("reply_to", text(decoded.reply_to)),
        ("expiration", text(decoded.expiration)),
        ("message_id", text(decoded.message_id)),
        ("timestamp", decoded.timestamp.map(|t| Value::I64(t as i64))),
        ("type", text(decoded.kind)),
        ("user_id", text(decoded.user_id)),
        ("app_id", text(decoded.app_id)),
        ("cluster_id", text(decoded.cluster_id)),
    ];
    for (name, value) in all {
        if let Some(value) = value {
            result.set(name, value);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::WallTime;

    const CONTEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const OTHER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b8-01";

    fn stored(protocol: Protocol, properties: &[u8]) -> Message {
        let builder = MessageBuilder {
            protocol,
            durable: false,
            priority: None,
            ttl_ms: None,
            received: WallTime(9),
            exchange: "",
            routing_keys: &["q"],
            properties,
        };
        // A data section of AMQP 1.0 with one byte.
        let body = [0x00, 0x53, 0x75, 0xa0, 0x01, b'b'];
        builder.build(body.len(), [&body[..]]).unwrap()
    }

    fn parent(message: &Message) -> Option<(String, Option<String>)> {
        let context = context(message)?;
        let state = context.state.clone().map(String::from);
        Some((context.to_string(), state))
    }

    #[test]
    fn context_is_in_the_headers_of_amqp091() {
        let message = |headers: &[(&str, Value)]| {
            let headers = headers.iter().map(|(k, v)| ((*k).into(), v.clone()));
            let mut entries = BytesMut::new();
            table::encode(&Table(headers.collect()), &mut entries);
            let mut raw = BytesMut::new();
            let encoded = Properties::<&str> {
                headers: entries.get(4..),
                ..Properties::default()
            };
            encoded.encode(&mut raw);
            stored(Protocol::Amqp091, &raw)
        };
        let headers = [
            ("a", Value::I32(1)),
            ("tracestate", "a=b".into()),
            ("traceparent", CONTEXT.into()),
            ("traceparent", OTHER.into()),
        ];
        let expected = Some((CONTEXT.to_owned(), Some("a=b".to_owned())));
        assert_eq!(parent(&message(&headers)), expected);
        for value in [Value::I32(1), Value::Void, Value::Table(Table::default())] {
            assert_eq!(parent(&message(&[("traceparent", value)])), None);
        }
        assert_eq!(parent(&message(&[("tracestate", "a=b".into())])), None);
    }

    #[test]
    fn annotations_of_amqp10_take_precedence_over_application_properties() {
        use codec_amqp10::{SectionKind, Symbol, encode_section_descriptor, map};
        let message = |annotations: &[&str], application: &[&str]| {
            let mut raw = Vec::new();
            encode_section_descriptor(&mut raw, SectionKind::MessageAnnotations);
            let mut entries = map(&mut raw);
            for text in annotations {
                entries.push(&Symbol::from_static("traceparent"));
                entries.push(*text);
            }
            entries.finish();
            encode_section_descriptor(&mut raw, SectionKind::ApplicationProperties);
            let mut entries = map(&mut raw);
            for text in application {
                entries.push("traceparent");
                entries.push(*text);
                entries.push("tracestate");
                entries.push("a=b");
            }
            entries.finish();
            stored(Protocol::Amqp10, &raw)
        };
        let of_annotation = Some((CONTEXT.to_owned(), None));
        assert_eq!(parent(&message(&[CONTEXT], &[OTHER])), of_annotation);
        let of_property = Some((OTHER.to_owned(), Some("a=b".to_owned())));
        assert_eq!(parent(&message(&[], &[OTHER])), of_property);
        assert_eq!(parent(&message(&["invalid"], &[OTHER])), of_property);
        assert_eq!(parent(&message(&[], &[])), None);
    }

    fn entry(annotations: &[(&str, &str)], application: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
        use codec_amqp10::{Symbol, encode_data_section, encode_section_descriptor, map};
        let mut raw = Vec::new();
        encode_section_descriptor(&mut raw, SectionKind::MessageAnnotations);
        let mut entries = map(&mut raw);
        for (name, text) in annotations {
            entries.push(&Symbol::new(name).unwrap());
            entries.push(*text);
        }
        entries.finish();
        encode_section_descriptor(&mut raw, SectionKind::ApplicationProperties);
        let mut entries = map(&mut raw);
        for (name, text) in application {
            entries.push(*name);
            entries.push(*text);
        }
        entries.finish();
        encode_data_section(&mut raw, body);
        raw
    }

    #[test]
    fn context_of_an_entry_of_a_stream_is_in_annotations_or_else_in_application_properties() {
        let text = |raw: &[u8]| {
            let context = entry_parts(raw).context?;
            let state = context.state.clone().map(String::from);
            Some((context.to_string(), state))
        };
        let own = [("x-a", "b"), ("traceparent", CONTEXT)];
        let property = [("tracestate", "a=b"), ("traceparent", OTHER)];
        assert_eq!(
            text(&entry(&own, &property, b"x")),
            Some((CONTEXT.to_owned(), None))
        );
        let of_property = Some((OTHER.to_owned(), Some("a=b".to_owned())));
        assert_eq!(text(&entry(&[], &property, b"x")), of_property);
        let invalid = [("traceparent", "00-x")];
        assert_eq!(text(&entry(&invalid, &property, b"x")), of_property);
        assert_eq!(text(&entry(&[], &[], b"x")), None);
        // A body that looks like a context.
        assert_eq!(text(&entry(&[], &[], &entry(&own, &property, b""))), None);
    }

    #[test]
    fn body_of_an_entry_of_a_stream_is_measured_as_that_of_a_message() {
        let parts = entry_parts(&entry(&[("traceparent", CONTEXT)], &[], b"hello"));
        assert!(parts.context.is_some());
        // The descriptor of the section, the constructor and the size.
        assert_eq!(parts.body_len, 5 + 5);
        for opaque in [&b"plain text"[..], &[0; 7], &[]] {
            let expected = EntryParts {
                context: None,
                body_len: opaque.len(),
            };
            assert_eq!(entry_parts(opaque), expected);
        }
    }

    proptest::proptest! {
        #[test]
        fn damaged_entries_of_a_stream_are_read_without_panic(
            at in 0usize..200,
            byte: u8,
            end in 0usize..200,
            noise: Vec<u8>,
        ) {
            let mut raw = entry(&[("traceparent", CONTEXT)], &[("tracestate", "a=b")], b"hello");
            if let Some(changed) = raw.get_mut(at) {
                *changed = byte;
            }
            raw.truncate(end.max(1));
            proptest::prop_assert!(entry_parts(&raw).body_len <= raw.len());
            proptest::prop_assert!(entry_parts(&noise).body_len <= noise.len());
        }
    }

    #[test]
    fn context_is_in_the_user_properties_of_mqtt() {
        use codec_mqtt::{Properties, Qos, RepeatedProperties, put_user_property};
        let message = |properties: &[(&str, &str)]| {
            let mut repeated = BytesMut::new();
            for (name, value) in properties {
                put_user_property(&mut repeated, name, value);
            }
            let properties = Properties {
                repeated: RepeatedProperties(&repeated),
                ..Properties::default()
            };
            let builder = crate::mqtt::EnvelopeBuilder {
                qos: Qos::AtLeastOnce,
                retain: false,
                topic: "t",
                properties: &properties,
                exchange: "amq.topic",
                key: "t",
                received: WallTime(9),
            };
            builder.build(b"body").unwrap()
        };
        let both = [("traceparent", CONTEXT), ("tracestate", "a=b")];
        let expected = Some((CONTEXT.to_owned(), Some("a=b".to_owned())));
        assert_eq!(parent(&message(&both)), expected);
        assert_eq!(parent(&message(&[])), None);
        // Properties that cannot be decoded.
        assert_eq!(parent(&stored(Protocol::Mqtt, &[0xff; 9])), None);
        assert_eq!(parent(&stored(Protocol::Amqp10, &[0xff; 9])), None);
        assert_eq!(parent(&stored(Protocol::Amqp091, &[0xff; 9])), None);
    }

    #[test]
    fn copy_describes_the_original_message() {
        let mut raw = BytesMut::new();
        let original = Properties {
            content_type: Some("text/plain"),
            delivery_mode: Some(2),
            ..Properties::default()
        };
        original.encode(&mut raw);
        let builder = MessageBuilder {
            protocol: Protocol::Amqp091,
            durable: true,
            priority: None,
            ttl_ms: Some(5),
            received: WallTime(9),
            exchange: "orders",
            routing_keys: &["a", "b"],
            properties: &raw,
        };
        let message = builder.build(4, [&b"body"[..]]).unwrap();
        let mut extra = Table::default();
        extra.set("user", Value::from("guest"));
        let key = format!("publish.{}", "ü".repeat(200));
        let copy = copy(&message, ("amq.rabbitmq.trace", &key), "one", extra).unwrap();
        assert_eq!(copy.body(), b"body");
        assert_eq!(copy.exchange(), "amq.rabbitmq.trace");
        assert_eq!(
            copy.routing_key().len(),
            254,
            "truncated at a character boundary"
        );
        assert!(!copy.durable() && copy.ttl_ms().is_none());
        let raw = copy.properties();
        let decoded = Properties::decode(raw).unwrap();
        let headers = table::decode(decoded.headers.unwrap()).unwrap();
        let text = |name: &str| headers.get(name).and_then(Value::as_str);
        assert_eq!(
            (text("exchange_name"), text("node"), text("user")),
            (Some("orders"), Some("one"), Some("guest"))
        );
        let keys = ["a", "b"].map(Value::from);
        assert_eq!(
            headers.get("routing_keys"),
            Some(&Value::Array(keys.to_vec()))
        );
        let Some(Value::Table(properties)) = headers.get("properties") else {
            panic!("{headers:?}");
        };
        assert_eq!(properties.get("delivery_mode"), Some(&Value::I32(2)));
        assert_eq!(properties.0.len(), 2);
    }
}
