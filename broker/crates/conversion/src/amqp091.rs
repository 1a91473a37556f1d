//! AMQP 0.9.1: properties with a table of headers, and a body of bytes.

mod deaths;

pub(crate) use deaths::companions;
pub use deaths::death_edits;

use crate::mqtt::key_of;
use crate::view::{Encoding, urn};
use crate::{
    AMQP10_TYPE, Body, CORRELATION_ID, DecodeError, Headers, Id, MESSAGE_ID, Part, RECEIVED_TIME,
    REPLY_TOPIC, View, amqp10,
};
use bytes::{Bytes, BytesMut};
use codec_amqp091::{Properties, Short, table};
use message::{Message, Protocol, Table, Value};
use routing::HashedProperty;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Most bytes of a short string (section 4.2.5.3).
const MAX_SHORT: usize = 255;
/// Encoded properties without any property.
const NO_PROPERTIES: &[u8] = &[0, 0];

/// A message in the form of AMQP 0.9.1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded<'m> {
    /// Property flags and list for a content header.
    pub properties: Cow<'m, [u8]>,
    /// The body.
    pub body: Part<'m>,
}

/// Converts a message. One whose stored form cannot be decoded has no properties and its stored
/// body.
#[inline]
pub fn convert(message: &Message) -> Encoded<'_> {
    match message.protocol() {
        Protocol::Amqp091 => Encoded {
            properties: Cow::Borrowed(message.properties()),
            body: Part::whole(message),
        },
        _ => from_other(message),
    }
}

fn from_other(message: &Message) -> Encoded<'_> {
    View::of(message).map_or_else(
        |_| Encoded {
            properties: Cow::Borrowed(NO_PROPERTIES),
            body: Part::whole(message),
        },
        encode,
    )
}

pub(crate) fn decode(message: &Message) -> Result<View<'_>, DecodeError> {
    let properties = Properties::received(message.properties())?;
    let kind = properties.kind.and_then(Short::text);
    let whole = Part::whole(message);
    Ok(View {
        content_type: properties.content_type.and_then(Short::text),
        content_encoding: properties.content_encoding.and_then(Short::text),
        message_id: properties.message_id.map(id),
        correlation_id: properties.correlation_id.map(id),
        reply_to: properties.reply_to.and_then(Short::text),
        user_id: properties.user_id.map(|user| user.0),
        kind,
        group_id: properties.app_id.and_then(Short::text),
        cluster_id: properties.cluster_id.and_then(Short::text),
        created_ms: properties
            .timestamp
            .and_then(|seconds| i64::try_from(seconds.checked_mul(1000)?).ok()),
        headers: Headers(properties.headers.map_or(Encoding::Empty, Encoding::Table)),
        body: match kind == Some(AMQP10_TYPE) && amqp10::is_body(message.body()) {
            true => Body::Sections(whole),
            false => Body::Bytes(whole),
        },
        ..View::default()
    })
}

fn id(short: Short<'_>) -> Id<'_> {
    short.text().map_or(Id::Untyped(short.0), Id::Text)
}

/// Encodes a message.
pub fn encode(view: View<'_>) -> Encoded<'_> {
    let mut properties = BytesMut::new();
    encode_properties(&view, &mut properties);
    Encoded {
        properties: Cow::Owned(properties.into()),
        body: view.body.into_part(),
    }
}

/// The header with the time at which the broker received a message, under the name that RabbitMQ's plugin gave it.
const TIMESTAMP_IN_MS: &str = "timestamp_in_ms";

/// The value of an annotation with a time, which is text in a message of MQTT.
fn milliseconds(value: &Value) -> Option<i64> {
    value.as_integer().or_else(|| value.as_str()?.parse().ok())
}

fn encode_properties(view: &View<'_>, out: &mut BytesMut) {
    let mut headers = HeaderTable::default();
    if let Some(qos) = view.qos {
        headers.set("x-mqtt-publish-qos", Value::U8(qos as u8));
        headers.set("x-mqtt-dup", Value::Bool(false));
    }
    if let Some(reply) = &view.reply_topic {
        headers.set(REPLY_TOPIC, Value::from(&*key_of(reply.topic)));
    }
    let correlation_id = view
        .correlation_id
        .and_then(|id| short_id(id, |value| headers.set(CORRELATION_ID, value)));
    let message_id = view
        .message_id
        .and_then(|id| short_id(id, |value| headers.set(MESSAGE_ID, value)));
    let mut received_ms = None;
    view.headers.for_each(|header| {
        if header.name == RECEIVED_TIME
            && let Some(ms) = milliseconds(&header.value)
        {
            headers.set(TIMESTAMP_IN_MS, Value::I64(ms));
            received_ms = Some(ms);
        } else if header.name.len() <= MAX_SHORT {
            headers.set(header.name, header.value);
        }
    });
    let mut entries = BytesMut::new();
    if !headers.table.is_empty() {
        table::encode(&headers.table, &mut entries);
    }
    let reply_to = view.reply_to.map(amqp10::reply_queue);
    let expiration = view.ttl_ms.map(|ms| ms.to_string());
    let user = view.user_id.and_then(|user| std::str::from_utf8(user).ok());
    let seconds = |ms: i64| u64::try_from(ms).ok().map(|ms| ms / 1000);
    let properties = Properties {
        content_type: short(view.content_type),
        content_encoding: short(view.content_encoding),
        headers: entries.get(4..),
        delivery_mode: view.durable.then_some(2),
        priority: view.priority,
        correlation_id: correlation_id.as_deref(),
        reply_to: short(reply_to.as_deref()),
        expiration: expiration.as_deref(),
        message_id: message_id.as_deref(),
        timestamp: view.created_ms.or(received_ms).and_then(seconds),
        kind: match view.body {
            Body::Sections(_) => Some(AMQP10_TYPE),
            Body::Bytes(_) => short(view.kind),
        },
        user_id: short(user).filter(|user| !user.contains('\0')),
        app_id: short(view.group_id),
        cluster_id: short(view.cluster_id),
    };
    properties.encode(out);
}

fn short(text: Option<&str>) -> Option<&str> {
    text.filter(|text| text.len() <= MAX_SHORT)
}

/// An id as a short string. One that is not text, or is too long, goes into a header instead.
fn short_id<'a>(id: Id<'a>, set_header: impl FnOnce(Value)) -> Option<Cow<'a, str>> {
    match id {
        Id::Text(text) if text.len() <= MAX_SHORT => Some(Cow::Borrowed(text)),
        Id::Text(text) => {
            set_header(Value::from(text));
            None
        }
        Id::Ulong(number) => Some(Cow::Owned(number.to_string())),
        Id::Uuid(uuid) => Some(Cow::Owned(urn(uuid))),
        Id::Untyped([]) => None,
        Id::Binary(bytes) | Id::Untyped(bytes) => {
            let text = std::str::from_utf8(bytes)
                .ok()
                .filter(|text| matches!(id, Id::Untyped(_)) && text.len() <= MAX_SHORT);
            if text.is_none() {
                set_header(Value::Binary(Bytes::copy_from_slice(bytes)));
            }
            text.map(Cow::Borrowed)
        }
    }
}

/// A table in which the last value of a name replaces earlier ones, without a search of the table
/// for each name.
#[derive(Default)]
struct HeaderTable<'a> {
    table: Table,
    positions: BTreeMap<&'a str, usize>,
}

impl<'a> HeaderTable<'a> {
    fn set(&mut self, name: &'a str, value: Value) {
        let table = &mut self.table.0;
        let at = *self.positions.entry(name).or_insert(table.len());
        match table.get_mut(at) {
            Some((_, slot)) => *slot = value,
            None => table.push((name.into(), value)),
        }
    }
}

/// The text of a property, for exchanges that route by it.
pub fn property_text(
    properties: &Properties<'_, Short<'_>>,
    property: HashedProperty,
) -> Option<String> {
    match property {
        HashedProperty::CorrelationId => {
            properties.correlation_id.map(|id| id.lossy().into_owned())
        }
        HashedProperty::MessageId => properties.message_id.map(|id| id.lossy().into_owned()),
        HashedProperty::Timestamp => properties.timestamp.map(|t| t.to_string()),
    }
}
