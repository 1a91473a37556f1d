//! The stored form of messages: an entry of a stream is a message as AMQP 1.0 sections, as clients of the stream protocol
//! and RabbitMQ have it.

use codec_amqp10::{
    Encode, Header, Map, SectionKind, Sections, Symbol, Value, encode_section_descriptor, map,
};
use conversion::amqp10::{Received, convert, encode_annotations, header};
use env::WallTime;
use message::{Message, MessageBuilder, Protocol, Table};

/// The annotation with the offset of a delivery.
pub const OFFSET: &str = "x-stream-offset";
/// The annotation with the filter value of a published message.
pub const FILTER_VALUE: &str = "x-stream-filter-value";
const EXCHANGE: &str = "x-exchange";
const ROUTING_KEY: &str = "x-routing-key";

/// Appends a message as an entry, without the length. The exchange and the routing key become annotations.
pub fn encode(message: &Message, out: &mut Vec<u8>) {
    let header = header(message);
    if header != Header::default() {
        header.encode(out);
    }
    let encoded = convert(message);
    encode_annotations(message, &encoded.annotations, &Table::default(), out);
    out.extend_from_slice(&encoded.properties);
    out.extend_from_slice(&encoded.body_start);
    out.extend_from_slice(encoded.body.bytes());
}

/// The filter value of an entry: the annotation `x-stream-filter-value`.
pub fn filter_value(entry: &[u8]) -> Option<&[u8]> {
    let sections = Sections::locate(entry).ok()?;
    let annotations = sections
        .read_map(sections.message_annotations, entry)
        .ok()?;
    annotations
        .get(FILTER_VALUE)
        .and_then(|value| value.as_text())
        .map(str::as_bytes)
        .filter(|value| !value.is_empty())
}

/// Decodes an entry. An entry that is not a message of AMQP 1.0 becomes the body of one.
pub fn decode(entry: &[u8], offset: u64, received: WallTime, queue: &str) -> Option<Message> {
    let Ok(parts) = Received::parse(entry) else {
        return decode_opaque(entry, offset, received, queue);
    };
    let sections = parts.sections;
    let header = sections.read_header(entry).unwrap_or_default();
    let annotations = sections
        .read_map(sections.message_annotations, entry)
        .unwrap_or_default();
    let text = |name: &str| annotations.get(name).and_then(|value| value.as_text());
    let exchange = text(EXCHANGE).filter(|name| name.len() <= 255);
    let key = text(ROUTING_KEY).filter(|name| name.len() <= 255);
    let mut properties = Vec::with_capacity(parts.properties.len() + 32);
    encode_own_annotations(&annotations, offset, &mut properties);
    let bare = sections.bare().start;
    let body = entry.len().saturating_sub(parts.body.len());
    properties.extend_from_slice(entry.get(bare..body).unwrap_or_default());
    let key = key.unwrap_or(queue);
    let builder = MessageBuilder {
        protocol: Protocol::Amqp10,
        durable: header.durable,
        priority: (header.priority != Header::DEFAULT_PRIORITY).then_some(header.priority),
        ttl_ms: header.ttl.map(u64::from),
        received,
        exchange: exchange.unwrap_or_default(),
        routing_keys: &[key],
        properties: &properties,
    };
    builder.build(parts.body.len(), [parts.body]).ok()
}

fn decode_opaque(entry: &[u8], offset: u64, received: WallTime, queue: &str) -> Option<Message> {
    let mut properties = Vec::new();
    encode_own_annotations(&Map::default(), offset, &mut properties);
    let mut start = Vec::new();
    codec_amqp10::encode_data_section_start(&mut start, entry.len());
    let builder = MessageBuilder {
        protocol: Protocol::Amqp10,
        durable: true,
        priority: None,
        ttl_ms: None,
        received,
        exchange: "",
        routing_keys: &[queue],
        properties: &properties,
    };
    let len = start.len() + entry.len();
    builder.build(len, [&start[..], entry]).ok()
}

/// The annotations of the publisher, and the offset. The exchange and the routing key are fields of the container.
fn encode_own_annotations(published: &Map<'_>, offset: u64, out: &mut Vec<u8>) {
    encode_section_descriptor(out, SectionKind::MessageAnnotations);
    let mut writer = map(out);
    for (key, value) in *published {
        let is_replaced = |name: &str| [EXCHANGE, ROUTING_KEY, OFFSET].contains(&name);
        if !key.as_text().is_some_and(is_replaced) {
            writer.push(&key);
            writer.push(&value);
        }
    }
    writer.push(&Symbol::from_static(OFFSET));
    // A signed number, as in RabbitMQ: clients rely on the type.
    writer.push(&Value::Long(i64::try_from(offset).unwrap_or(i64::MAX)));
    writer.finish();
}
