//! AMQP 1.0: sections (section 3.2), and the stored form of a message.
//!
//! # Stored form
//!
//! A message of [`Protocol::Amqp10`] has in its container:
//!
//! - properties: the sections message-annotations, properties and application-properties as they
//!   were received, in this order. Each is optional.
//! - body: the sections of the body (data, sequences, or one value) and the footer as they were
//!   received.
//!
//! The bare message is never changed (section 3.2). The header is in the container's fields
//! `durable`, `priority` and `ttl_ms`. Delivery annotations are for one hop and are not stored.
//! [`Received`] finds these parts in a received message. A message of another protocol has the same
//! parts once [`convert`] has converted it.

mod address;
mod annotations;
mod value;

pub use address::{address_of, key_of_address, reply_address, reply_queue};
pub use annotations::{AddedAnnotation, add_annotations, encode_annotations};

use crate::view::{Budget, Encoding};
use crate::{
    ADDITIONAL_KEYS, Body, DecodeError, EXTENSION, Header as NamedValue, Headers, Id, Part,
    RECEIVED_TIME, Scope, View,
};
use bytes::BytesMut;
use codec_amqp10::{
    Encode, Header, Map, Output, Properties, SectionKind, Sections, Symbol, Timestamp, Uuid, Value,
    encode_data_section_start, encode_section_descriptor, map,
};
use message::{Message, Protocol};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::BTreeSet;

/// Annotation for the property `type` of AMQP 0.9.1.
const BASIC_TYPE: &str = "x-basic-type";
/// Annotation for the header `CC` of AMQP 0.9.1.
const CC: &str = "x-cc";
/// Annotations that the broker writes itself. Those of a publisher would contradict them.
const OWN: [&str; 4] = [EXCHANGE, ROUTING_KEY, DEATHS, "x-death"];
const EXCHANGE: &str = "x-exchange";
const ROUTING_KEY: &str = "x-routing-key";
const DEATHS: &str = "x-opt-deaths";
/// Prefix of annotations that stand for properties of AMQP 0.9.1.
const BASIC: &str = "x-basic-";

/// A received message, split into the parts of the stored form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'a> {
    /// Where the parts are.
    pub sections: Sections,
    /// Message annotations, properties and application properties.
    pub properties: &'a [u8],
    /// Body and footer.
    pub body: &'a [u8],
}

impl<'a> Received<'a> {
    /// Finds the parts of a message and checks its sections, except for the contents of the body.
    #[inline]
    pub fn parse(message: &'a [u8]) -> Result<Received<'a>, codec_amqp10::DecodeError> {
        let sections = Sections::parse(message)?;
        let size = sections.size as usize;
        let body = (sections.body.map(|body| body.start))
            .or(sections.footer.map(|footer| footer.start))
            .map_or(size, |start| start as usize);
        let annotations = sections
            .message_annotations
            .map(|section| section.start as usize);
        let start = annotations.unwrap_or(sections.bare().start).min(body);
        Ok(Received {
            sections,
            properties: message.get(start..body).unwrap_or_default(),
            body: message.get(body..).unwrap_or_default(),
        })
    }
}

/// A message as AMQP 1.0 sections, without the header. The parts follow each other on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Encoded<'m> {
    /// The message-annotations section; empty if there is none. See [`encode_annotations`].
    pub annotations: Cow<'m, [u8]>,
    /// The properties and application-properties sections, each optional.
    pub properties: Cow<'m, [u8]>,
    /// The beginning of the data section whose bytes are `body`; empty if `body` has whole sections.
    pub body_start: SmallVec<[u8; 8]>,
    /// The sections of the body and the footer.
    pub body: Part<'m>,
}

/// Converts a message. One whose stored form cannot be decoded has no properties; its stored body is
/// a data section.
pub fn convert(message: &Message) -> Encoded<'_> {
    if message.protocol() == Protocol::Amqp10 {
        let stored = message.properties();
        let bare = match stored {
            [] => 0,
            _ => Sections::locate(stored).map_or(stored.len(), |sections| sections.bare().start),
        };
        let (annotations, properties) = stored.split_at_checked(bare).unwrap_or_default();
        return Encoded {
            annotations: Cow::Borrowed(annotations),
            properties: Cow::Borrowed(properties),
            body_start: SmallVec::new(),
            body: Part::whole(message),
        };
    }
    match View::of(message) {
        Ok(view) => encode(view),
        Err(_) => encode(View {
            body: Body::Bytes(Part::whole(message)),
            ..View::default()
        }),
    }
}

/// Converts a value that is not part of a message, such as an argument of a queue. Values in lists and maps that no
/// other protocol has are left out. `None` if the value itself is one, or has more than [`crate::MAX_VALUES`] values.
pub fn decode_value(value: &Value<'_>) -> Option<message::Value> {
    value::decode(value, &mut Budget::full())
}

/// Appends a value of another protocol.
pub fn encode_value<O: Output>(value: &message::Value, out: &mut O) {
    value::encode(value, out);
}

/// The header of a delivery, from the container's fields.
pub fn header(message: &Message) -> Header {
    Header {
        durable: message.durable(),
        priority: message.priority().unwrap_or(Header::DEFAULT_PRIORITY),
        ttl: message
            .ttl_ms()
            .map(|ms| u32::try_from(ms).unwrap_or(u32::MAX)),
        ..Header::default()
    }
}

/// Returns true if these bytes are the sections of a body, perhaps with a footer.
pub(crate) fn is_body(bytes: &[u8]) -> bool {
    let is_body_alone = |sections: Sections| sections.body.is_some_and(|body| body.start == 0);
    Sections::parse(bytes).is_ok_and(is_body_alone)
}

pub(crate) fn decode(message: &Message) -> Result<View<'_>, DecodeError> {
    let stored = message.properties();
    let sections = Sections::parse(stored)?;
    let properties = sections.read_properties(stored)?;
    let annotations = sections.read_map(sections.message_annotations, stored)?;
    let application = sections.read_map(sections.application_properties, stored)?;
    Ok(View {
        content_type: properties.content_type.map(Symbol::as_str),
        content_encoding: properties.content_encoding.map(Symbol::as_str),
        message_id: properties.message_id.and_then(id),
        correlation_id: properties.correlation_id.and_then(id),
        reply_to: properties.reply_to,
        to: properties.to,
        subject: properties.subject,
        user_id: properties.user_id,
        kind: annotations.get(BASIC_TYPE).and_then(|kind| kind.as_text()),
        group_id: properties.group_id,
        group_sequence: properties.group_sequence,
        reply_to_group_id: properties.reply_to_group_id,
        created_ms: properties.creation_time.map(|time| time.0),
        expires_ms: properties.absolute_expiry_time.map(|time| time.0),
        headers: Headers(Encoding::Maps {
            annotations,
            application,
        }),
        body: decode_body(message)?,
        ..View::default()
    })
}

fn id(value: Value<'_>) -> Option<Id<'_>> {
    match value {
        Value::String(text) => Some(Id::Text(text)),
        Value::Binary(bytes) => Some(Id::Binary(bytes)),
        Value::Ulong(number) => Some(Id::Ulong(number)),
        Value::Uuid(uuid) => Some(Id::Uuid(uuid.0)),
        _ => None,
    }
}

fn decode_body(message: &Message) -> Result<Body<'_>, DecodeError> {
    let stored = message.body();
    let sections = Sections::parse(stored)?;
    let Some(body) = sections.body else {
        return Ok(Body::default());
    };
    if body.kind != SectionKind::Data {
        return Ok(Body::Sections(Part::whole(message)));
    }
    let mut data = sections.read_body(stored).filter_map(|value| match value {
        Ok(Value::Binary(bytes)) => Some(bytes),
        _ => None,
    });
    Ok(Body::Bytes(match body.count {
        1 => {
            let bytes = data.next().unwrap_or_default();
            // The bytes are at the end of the section.
            let at = (body.end as usize).saturating_sub(bytes.len());
            Part::Stored { at, bytes }
        }
        _ => {
            let mut joined = BytesMut::with_capacity(stored.len());
            data.for_each(|bytes| joined.extend_from_slice(bytes));
            Part::Joined(joined.freeze())
        }
    }))
}

/// Calls `each` with the annotations whose names begin with `x-`, then with the application
/// properties.
pub(crate) fn headers<'a>(
    annotations: Map<'a>,
    application: Map<'a>,
    budget: &mut Budget,
    each: &mut impl FnMut(NamedValue<'a>),
) {
    for (key, value) in annotations {
        let name = match key {
            Value::Symbol(name) if name.as_str() == CC => ADDITIONAL_KEYS,
            Value::Symbol(name) => name.as_str(),
            _ => continue,
        };
        let is_extension = name.starts_with(EXTENSION) || name == ADDITIONAL_KEYS;
        if !is_extension || name.starts_with(BASIC) || OWN.contains(&name) {
            continue;
        }
        // The seconds of other timestamps are not exact enough for it.
        let value = match value {
            Value::Timestamp(Timestamp(ms)) if name == RECEIVED_TIME => {
                budget.spend().map(|()| message::Value::I64(ms))
            }
            value => value::decode(&value, budget),
        };
        if let Some(value) = value {
            each(NamedValue {
                scope: Scope::Annotation,
                name,
                value,
            });
        }
    }
    for (key, value) in application {
        // Section 3.2.5: the keys are strings.
        if let Value::String(name) = key
            && let Some(value) = value::decode(&value, budget)
        {
            each(NamedValue {
                scope: Scope::Application,
                name,
                value,
            });
        }
    }
}

/// Encodes a message.
pub fn encode(view: View<'_>) -> Encoded<'_> {
    let (annotations, application) = encode_headers(&view);
    let mut properties = encode_properties(&view);
    properties.extend_from_slice(&application);
    let mut body_start = SmallVec::new();
    if let Body::Bytes(part) = &view.body {
        let mut start = Vec::new();
        encode_data_section_start(&mut start, part.bytes().len());
        body_start = SmallVec::from_vec(start);
    }
    Encoded {
        annotations: Cow::Owned(annotations),
        properties: Cow::Owned(properties),
        body_start,
        body: view.body.into_part(),
    }
}

/// The properties section; empty if the message has none of its properties.
fn encode_properties(view: &View<'_>) -> Vec<u8> {
    let reply_queue = view.reply_to.map(reply_address);
    let reply_topic = view.reply_topic.as_ref().map(address_of);
    let properties = Properties {
        message_id: view.message_id.map(value_of),
        user_id: view.user_id,
        to: view.to,
        subject: view.subject,
        reply_to: reply_queue.as_deref().or(reply_topic.as_deref()),
        correlation_id: view.correlation_id.map(value_of),
        content_type: view.content_type.and_then(Symbol::new),
        content_encoding: view.content_encoding.and_then(Symbol::new),
        absolute_expiry_time: view.expires_ms.map(Timestamp),
        creation_time: view.created_ms.map(Timestamp),
        group_id: view.group_id,
        group_sequence: view.group_sequence,
        reply_to_group_id: view.reply_to_group_id,
    };
    let mut out = Vec::new();
    if properties != Properties::default() {
        properties.encode(&mut out);
    }
    out
}

/// An id. Text of a UUID becomes one, so that it equals the id that an AMQP 1.0 client gave.
fn value_of(id: Id<'_>) -> Value<'_> {
    match id {
        Id::Text(text) => match Id::uuid_of(text.as_bytes()) {
            Some(uuid) => Value::Uuid(Uuid(uuid)),
            None => Value::String(text),
        },
        Id::Untyped(bytes) => match Id::uuid_of(bytes) {
            Some(uuid) => Value::Uuid(Uuid(uuid)),
            None => Value::Binary(bytes),
        },
        Id::Binary(bytes) => Value::Binary(bytes),
        Id::Ulong(number) => Value::Ulong(number),
        Id::Uuid(uuid) => Value::Uuid(Uuid(uuid)),
    }
}

/// The sections message-annotations and application-properties; each is empty if it has no entry. Of
/// headers with the same name only the first is kept, because keys of a map are unique (part 1,
/// section 1.6.23).
fn encode_headers(view: &View<'_>) -> (Vec<u8>, Vec<u8>) {
    let (mut annotations, mut application) = (Vec::new(), Vec::new());
    encode_section_descriptor(&mut annotations, SectionKind::MessageAnnotations);
    encode_section_descriptor(&mut application, SectionKind::ApplicationProperties);
    let mut names = BTreeSet::new();
    let (mut annotation_count, mut application_count) = (0, 0);
    let mut annotation_map = map(&mut annotations);
    let mut application_map = map(&mut application);
    if let Some(kind) = view.kind {
        annotation_map.push(&Symbol::from_static(BASIC_TYPE));
        annotation_map.push(&kind);
        annotation_count += 1;
        names.insert((true, BASIC_TYPE));
    }
    view.headers.for_each(|header| {
        let is_annotation = header.scope == Scope::Annotation;
        let name = match header.name {
            ADDITIONAL_KEYS if is_annotation => CC,
            name => name,
        };
        let symbol = Symbol::new(name);
        let is_possible = match is_annotation {
            true => symbol.is_some(),
            // Section 3.2.5: values are simple.
            false => !value::is_compound(&header.value),
        };
        if !is_possible
            || !value::is_encodable(&header.value)
            || !names.insert((is_annotation, name))
        {
            return;
        }
        match symbol.filter(|_| is_annotation) {
            Some(symbol) => {
                annotation_map.push(&symbol);
                annotation_map.push_with(|out| value::encode(&header.value, out));
                annotation_count += 1;
            }
            None => {
                application_map.push(name);
                application_map.push_with(|out| value::encode(&header.value, out));
                application_count += 1;
            }
        }
    });
    annotation_map.finish();
    application_map.finish();
    if annotation_count == 0 {
        annotations.clear();
    }
    if application_count == 0 {
        application.clear();
    }
    (annotations, application)
}
