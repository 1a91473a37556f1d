//! Message annotations of a delivery: those of the publisher and those of the broker.

use super::{DEATHS, EXCHANGE, ROUTING_KEY};
use crate::amqp091::companions;
use codec_amqp10::{
    Map, Output, SectionKind, Sections, Symbol, Timestamp, Value, encode_section_descriptor, map,
};
use message::{Death, Message, Table};

/// Appends the message-annotations section of a delivery: the publisher's section, which is
/// [`Encoded::annotations`](super::Encoded), with the exchange and the routing key of the message and
/// with its dead-letter history, as in RabbitMQ. `modified` has the annotations of receivers that
/// modified the message. Of the publisher's annotations those with the same names are replaced.
pub fn encode_annotations<O: Output>(
    message: &Message,
    published: &[u8],
    modified: &Table,
    out: &mut O,
) {
    if published.is_empty() && modified.0.is_empty() && !message.has_died() {
        return encode_origin(message, out);
    }
    let own = match published {
        [] => Map::default(),
        _ => Sections::parse(published)
            .and_then(|sections| sections.read_map(sections.message_annotations, published))
            .unwrap_or_default(),
    };
    let deaths = message.deaths();
    let companions = deaths.as_ref().map(companions).unwrap_or_default();
    let is_added = |name: &str| {
        matches!(name, EXCHANGE | ROUTING_KEY)
            || deaths.is_some() && name == DEATHS
            || companions.iter().any(|(companion, _)| *companion == name)
    };
    encode_section_descriptor(out, SectionKind::MessageAnnotations);
    let mut writer = map(out);
    for (key, value) in own {
        let is_replaced = |name: &str| is_added(name) || modified.get(name).is_some();
        if !key.as_text().is_some_and(is_replaced) {
            writer.push(&key);
            writer.push(&value);
        }
    }
    for (name, value) in modified.0.iter().filter(|(name, _)| !is_added(name)) {
        if let Some(name) = Symbol::new(name) {
            writer.push(&name);
            writer.push_with(|out| super::value::encode(value, out));
        }
    }
    writer.push(&Symbol::from_static(EXCHANGE));
    writer.push(message.exchange());
    writer.push(&Symbol::from_static(ROUTING_KEY));
    writer.push(message.routing_key());
    for (name, value) in &companions {
        if let Some(name) = Symbol::new(name) {
            writer.push(&name);
            writer.push_with(|out| super::value::encode(value, out));
        }
    }
    if let Some(deaths) = &deaths {
        writer.push(&Symbol::from_static(DEATHS));
        writer.push_with(|out| encode_deaths(deaths.records(), out));
    }
    writer.finish();
}

/// Appends the section with the exchange and the routing key only.
fn encode_origin<O: Output>(message: &Message, out: &mut O) {
    encode_section_descriptor(out, SectionKind::MessageAnnotations);
    let mut writer = map(out);
    writer.push_with(|out| out.put(EXCHANGE_KEY));
    writer.push(message.exchange());
    writer.push_with(|out| out.put(ROUTING_KEY_KEY));
    writer.push(message.routing_key());
    writer.finish();
}

/// The encoded symbols [`EXCHANGE`] and [`ROUTING_KEY`].
const EXCHANGE_KEY: &[u8] = b"\xa3\x0ax-exchange";
const ROUTING_KEY_KEY: &[u8] = b"\xa3\x0dx-routing-key";

/// An annotation to add to a message.
#[derive(Clone, Debug)]
pub struct AddedAnnotation<'a> {
    /// The name, in ASCII.
    pub name: &'static str,
    /// The value.
    pub value: Value<'a>,
    /// It replaces an annotation of the publisher.
    pub is_overwritten: bool,
}

/// Adds message annotations to stored properties, which begin with the message-annotations section if there is one.
pub fn add_annotations(properties: &[u8], added: &[AddedAnnotation<'_>]) -> Vec<u8> {
    let sections = Sections::parse(properties).ok();
    let own = sections
        .as_ref()
        .and_then(|sections| {
            let section = sections.message_annotations;
            sections.read_map(section, properties).ok()
        })
        .unwrap_or_default();
    let bare = sections.map_or(0, |sections| sections.bare().start);
    let of_name = |name: &str| added.iter().find(|a| a.name == name);
    let mut out = Vec::new();
    encode_section_descriptor(&mut out, SectionKind::MessageAnnotations);
    let mut writer = map(&mut out);
    for (key, value) in own {
        let replacement = key.as_text().and_then(of_name);
        if !replacement.is_some_and(|a| a.is_overwritten) {
            writer.push(&key);
            writer.push(&value);
        }
    }
    for annotation in added {
        if annotation.is_overwritten || own.get(annotation.name).is_none() {
            writer.push(&Symbol::from_static(annotation.name));
            writer.push(&annotation.value);
        }
    }
    writer.finish();
    out.extend_from_slice(properties.get(bare..).unwrap_or_default());
    out
}

/// Format codes of arrays and of their elements (part 1, section 1.6).
const ARRAY32: u8 = 0xf0;
const MAP32: u8 = 0xd1;
const STRING32: u8 = 0xb1;

/// Appends an array. `elements` are encoded without their constructor `code`.
fn encode_array<O: Output>(code: u8, count: usize, elements: &[u8], out: &mut O) {
    let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes();
    out.put_byte(ARRAY32);
    out.put(&size(elements.len() + 5));
    out.put(&size(count));
    out.put_byte(code);
    out.put(elements);
}

/// Appends an array of maps, the most recent death first. A history has a bounded size.
fn encode_deaths<O: Output>(deaths: &[Death], out: &mut O) {
    let mut elements = Vec::new();
    for death in deaths {
        let start = elements.len();
        encode_death(death, &mut elements);
        with_long_header(start, &mut elements);
    }
    encode_array(MAP32, deaths.len(), &elements, out);
}

/// Replaces the header of the map at `start` by that of an element of an array of maps: sizes of four
/// bytes and no constructor.
fn with_long_header(start: usize, out: &mut Vec<u8>) {
    let header = match out.get(start..) {
        Some([MAP32, ..]) => {
            out.remove(start);
            return;
        }
        // MAP8: constructor, size including the count, count.
        Some([_, size, count, ..]) => [u32::from(*size) + 3, u32::from(*count)],
        _ => return,
    };
    let [size, count] = header.map(u32::to_be_bytes);
    out.splice(start..start + 3, size.into_iter().chain(count));
}

fn encode_death(death: &Death, out: &mut Vec<u8>) {
    let name = Symbol::from_static;
    let time = |ms: u64| Value::Timestamp(Timestamp(i64::try_from(ms).unwrap_or(i64::MAX)));
    let mut writer = map(out);
    if let Some(ttl) = death.ttl_ms {
        writer.push(&name("ttl"));
        writer.push(&u32::try_from(ttl).unwrap_or(u32::MAX));
    }
    writer.push(&name("queue"));
    writer.push(&*death.queue);
    writer.push(&name("reason"));
    writer.push(&name(death.reason.name()));
    writer.push(&name("count"));
    writer.push(&death.count);
    writer.push(&name("first-time"));
    writer.push(&time(death.first.0));
    writer.push(&name("last-time"));
    writer.push(&time(death.last.0));
    writer.push(&name("exchange"));
    writer.push(&*death.exchange);
    writer.push(&name("routing-keys"));
    writer.push_with(|out| {
        let mut keys = Vec::new();
        for key in &death.routing_keys {
            keys.put(&u32::try_from(key.len()).unwrap_or(u32::MAX).to_be_bytes());
            keys.put(key.as_bytes());
        }
        encode_array(STRING32, death.routing_keys.len(), &keys, out);
    });
    writer.finish();
}
