//! AMQP 1.0 messages in the broker's message container, and their form on the way to a client.
//!
//! The container keeps the bare message as it was received. Its properties are the sections message-annotations,
//! properties and application-properties, in this order and each optional. Its body are the body sections and the
//! footer. The fields of the header become those of the container. Delivery annotations are for the broker only and
//! are dropped.

use crate::values::{Encoded, to_table};
use bytes::{BufMut, Bytes, BytesMut};
use codec_amqp10::{
    CompoundWriter, DecodeError, Encode, Header, Map, Properties, Reader, Section, SectionKind,
    SectionReader, Sections, Symbol, Timestamp, Value, encode_data_section,
    encode_section_descriptor, list, map,
};
use message::{Death, Deaths, Protocol, Table, Value as Field};
use queue::{Annotations, Delivery};
use routing::{Envelope, Origin, Property};
use session::BY_REFERENCE;
use smallvec::SmallVec;

/// The annotation with additional routing keys.
const CC: &str = "x-cc";

/// A message as a client sent it.
#[derive(Debug)]
pub(crate) struct ReceivedMessage<'a> {
    bytes: &'a [u8],
    sections: Sections,
    pub durable: bool,
    pub priority: Option<u8>,
    pub ttl_ms: Option<u64>,
}

impl<'a> ReceivedMessage<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<ReceivedMessage<'a>, DecodeError> {
        let sections = Sections::parse(bytes)?;
        let header = sections.read_header(bytes)?;
        let priority = has_priority(sections.header, bytes).then_some(header.priority);
        Ok(ReceivedMessage {
            bytes,
            sections,
            durable: header.durable,
            priority,
            ttl_ms: header.ttl.map(u64::from),
        })
    }

    fn body_start(&self) -> usize {
        let footer = self.sections.footer.map(|section| section.start);
        let body = self.sections.body.map(|body| body.start);
        body.or(footer).unwrap_or(self.sections.size) as usize
    }

    /// The sections that the container keeps as properties.
    pub(crate) fn properties_part(&self) -> &'a [u8] {
        let dropped = self.sections.delivery_annotations.or(self.sections.header);
        let start = dropped.map_or(0, |section| section.end as usize);
        self.bytes.get(start..self.body_start()).unwrap_or_default()
    }

    /// The sections that the container keeps as body.
    pub(crate) fn body_part(&self) -> &'a [u8] {
        self.bytes.get(self.body_start()..).unwrap_or_default()
    }

    pub(crate) fn properties(&self) -> Result<Properties<'a>, DecodeError> {
        self.sections.read_properties(self.bytes)
    }

    /// The additional routing keys, from the annotation `x-cc`. The error is a value that is not a list of strings.
    pub(crate) fn copy_keys(&self) -> Result<SmallVec<[&'a str; 4]>, Value<'a>> {
        let section = self.sections.message_annotations;
        let annotations = self
            .sections
            .read_map(section, self.bytes)
            .unwrap_or_default();
        let text = |value: Value<'a>| match value {
            Value::String(text) if text.len() <= 255 => Ok(text),
            other => Err(other),
        };
        match annotations.get(CC) {
            None => Ok(SmallVec::new()),
            Some(Value::List(keys)) => keys.iter().map(text).collect(),
            Some(other) => Err(other),
        }
    }
}

/// Returns true if the header sets the priority. The codec returns the default otherwise, but a message without a
/// priority is not one with priority 4: a priority queue serves it last.
fn has_priority(header: Option<Section>, bytes: &[u8]) -> bool {
    let value = header.and_then(|section| bytes.get(section.value_range()));
    match value.map(|value| Reader::new(value).read::<Value<'_>>()) {
        Some(Ok(Value::List(fields))) => fields.iter().nth(1).is_some_and(|f| !f.is_null()),
        _ => false,
    }
}

/// The view of exchanges on a message that is published.
pub(crate) struct PublishView<'m, 'a> {
    pub message: &'m ReceivedMessage<'a>,
    pub origin: Origin,
}

impl Envelope for PublishView<'_, '_> {
    fn headers(&self) -> Table {
        let ReceivedMessage {
            bytes, sections, ..
        } = self.message;
        let read = |section| sections.read_map(section, bytes).unwrap_or_default();
        let mut table = to_table(read(sections.application_properties));
        // A headers exchange with `all-with-x` or `any-with-x` also matches annotations.
        let annotations = to_table(read(sections.message_annotations));
        let is_extension = |key: &str| key.starts_with("x-");
        table.0.extend(
            annotations
                .0
                .into_iter()
                .filter(|(key, _)| is_extension(key)),
        );
        table
    }

    fn property(&self, property: Property) -> Option<String> {
        let properties = self.message.properties().ok()?;
        match property {
            Property::CorrelationId => id_text(properties.correlation_id?),
            Property::MessageId => id_text(properties.message_id?),
            Property::Timestamp => Some((properties.creation_time?.0 / 1000).to_string()),
        }
    }

    fn origin(&self) -> Option<Origin> {
        Some(self.origin)
    }
}

/// The text of a message id or correlation id.
fn id_text(id: Value<'_>) -> Option<String> {
    match id {
        Value::String(text) => Some(text.to_owned()),
        Value::Ulong(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The parts of a message for [`amqp10::OutgoingDelivery`].
pub(crate) type Parts = SmallVec<[Bytes; 2]>;

/// Encodes a delivery for a client: header and message annotations of this delivery, then the bare message. `scratch`
/// is reused for small messages.
pub(crate) fn encode_delivery(delivery: &Delivery, scratch: &mut BytesMut) -> Parts {
    let message = &delivery.message;
    let mut parts = Parts::new();
    encode_header(delivery, scratch);
    let stored = match message.protocol() {
        Protocol::Amqp10 => message.properties(),
        // The other protocols have no sections.
        _ => &[],
    };
    let first = SectionReader::new(stored).next();
    let annotations = first.and_then(Result::ok);
    let annotations = annotations.filter(|s| s.kind == SectionKind::MessageAnnotations);
    let own = annotations.and_then(|section| {
        let value = stored.get(section.value_range())?;
        Reader::new(value).read::<Map<'_>>().ok()
    });
    encode_annotations(delivery, own.unwrap_or_default(), scratch);
    let rest = annotations.map_or(0, |section| section.end as usize);
    scratch.extend_from_slice(stored.get(rest..).unwrap_or_default());
    if message.protocol() != Protocol::Amqp10 {
        encode_data_section(scratch, message.body());
    } else if message.body_len() < BY_REFERENCE {
        scratch.extend_from_slice(message.body());
    } else {
        parts.push(scratch.split().freeze());
        parts.push(message.body_part(0..message.body_len()));
        return parts;
    }
    parts.push(scratch.split().freeze());
    parts
}

fn encode_header(delivery: &Delivery, out: &mut BytesMut) {
    let message = &delivery.message;
    let attempts = delivery.attempts.unwrap_or(0);
    // A dead letter has no time to live any more.
    let ttl = message.ttl_ms().filter(|_| !message.has_died());
    let header = Header {
        durable: message.durable(),
        priority: message.priority().unwrap_or(Header::DEFAULT_PRIORITY),
        ttl: ttl.map(|ms| u32::try_from(ms).unwrap_or(u32::MAX)),
        first_acquirer: !delivery.redelivered && attempts == 0,
        delivery_count: attempts,
    };
    header.encode(out);
}

/// Annotations that the broker adds on the way to a client. They replace those of the publisher.
const ADDED: [&str; 9] = [
    "x-exchange",
    "x-routing-key",
    "x-opt-deaths",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-exchange",
    "x-last-death-queue",
    "x-last-death-reason",
];

fn encode_annotations(delivery: &Delivery, own: Map<'_>, out: &mut BytesMut) {
    let message = &delivery.message;
    let deaths = message.deaths();
    // Annotations of receivers that modified the message: before it was dead-lettered, and in this queue.
    let earlier = Annotations::of(message);
    let modified = [earlier.as_ref(), delivery.annotations.as_deref()];
    let modified = || {
        modified
            .iter()
            .flatten()
            .map(|annotations| annotations.table())
    };
    let later = delivery.annotations.as_deref().map(Annotations::table);
    // Without deaths only the first two are added.
    let added = match deaths {
        Some(_) => &ADDED[..],
        None => ADDED.get(..2).unwrap_or_default(),
    };
    encode_section_descriptor(out, SectionKind::MessageAnnotations);
    let mut writer = map(out);
    for (key, value) in own {
        let is_replaced = |key| added.contains(&key) || modified().any(|t| t.get(key).is_some());
        if key.as_text().is_some_and(is_replaced) {
            continue;
        }
        writer.push(&key);
        writer.push(&value);
    }
    for (key, value) in earlier
        .iter()
        .flat_map(|annotations| &annotations.table().0)
    {
        if later.is_none_or(|later| later.get(key).is_none()) {
            encode_annotation(key, value, &mut writer);
        }
    }
    for (key, value) in later.into_iter().flat_map(|table| &table.0) {
        encode_annotation(key, value, &mut writer);
    }
    let mut add = |key: &'static str, value: &str| {
        writer.push(&Symbol::from_static(key));
        writer.push(value);
    };
    add("x-exchange", message.exchange());
    add("x-routing-key", message.routing_key());
    if let Some(deaths) = &deaths {
        if let Some(first) = deaths.first() {
            add("x-first-death-exchange", &first.exchange);
            add("x-first-death-queue", &first.queue);
            add("x-first-death-reason", first.reason.name());
        }
        if let Some(last) = deaths.last() {
            add("x-last-death-exchange", deaths.last_exchange());
            add("x-last-death-queue", &last.queue);
            add("x-last-death-reason", last.reason.name());
        }
        writer.push(&const { Symbol::from_static("x-opt-deaths") });
        writer.push_with(|out| encode_deaths(deaths, out));
    }
    writer.finish();
}

fn encode_annotation(key: &str, value: &Field, writer: &mut CompoundWriter<'_, BytesMut>) {
    // Keys come from symbols of clients.
    if let Some(key) = Symbol::new(key) {
        writer.push(&key);
        writer.push(&Encoded(value));
    }
}

/// Format codes of the array of maps with which RabbitMQ encodes the dead-letter history.
const ARRAY32: u8 = 0xf0;
const MAP32: u8 = 0xd1;

/// An array has one constructor for all of its elements, so each map is encoded in its long form without its code.
fn encode_deaths(deaths: &Deaths, out: &mut BytesMut) {
    let mut elements = BytesMut::new();
    let mut one = BytesMut::new();
    for death in deaths.records() {
        one.clear();
        let count = encode_death(death, &mut one);
        elements.put_u32(u32::try_from(one.len() + 4).unwrap_or(u32::MAX));
        elements.put_u32(count);
        elements.extend_from_slice(&one);
    }
    out.put_u8(ARRAY32);
    out.put_u32(u32::try_from(elements.len() + 5).unwrap_or(u32::MAX));
    out.put_u32(deaths.records().len() as u32);
    out.put_u8(MAP32);
    out.extend_from_slice(&elements);
}

/// Encodes keys and values, and returns their number.
fn encode_death(death: &Death, out: &mut BytesMut) -> u32 {
    let key = |out: &mut BytesMut, name: &'static str| Symbol::from_static(name).encode(out);
    let time = |ms: u64| Timestamp(i64::try_from(ms).unwrap_or(i64::MAX));
    key(out, "queue");
    death.queue.encode(out);
    key(out, "reason");
    Value::Symbol(Symbol::from_static(death.reason.name())).encode(out);
    key(out, "count");
    death.count.encode(out);
    key(out, "first-time");
    time(death.first.0).encode(out);
    key(out, "last-time");
    time(death.last.0).encode(out);
    key(out, "exchange");
    death.exchange.encode(out);
    key(out, "routing-keys");
    let mut keys = list(out);
    for routing_key in &death.routing_keys {
        keys.push(&**routing_key);
    }
    keys.finish();
    let Some(ttl) = death.ttl_ms else {
        return 14;
    };
    key(out, "ttl");
    u32::try_from(ttl).unwrap_or(u32::MAX).encode(out);
    16
}
