use std::cell::OnceCell;

use codec_amqp10::{Sections, Symbol, Timestamp, Value};
use codec_amqp091::{Short, table};
use message::{Message, Protocol};

use crate::{ApplicationValues, Fields, HeaderField, Operand, Property};

/// The priority of a message without one (AMQP 1.0, part 3, section 3.2.1).
const DEFAULT_PRIORITY: u8 = codec_amqp10::Header::DEFAULT_PRIORITY;

/// A stored message as filters read it.
///
/// Messages of AMQP 1.0 are read as they are. Messages of AMQP 0.9.1 have the fields that they have after conversion to AMQP 1.0: the
/// application properties are the headers whose names do not begin with `x-`, and the group id is the `app-id`. Messages of other
/// protocols have a header only.
#[derive(Debug)]
pub struct StoredMessage<'m> {
    message: &'m Message,
    properties: StoredProperties<'m>,
}

#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "it is on the stack while a message is compared, without an allocation"
)]
enum StoredProperties<'m> {
    Amqp10 {
        bytes: &'m [u8],
        sections: Sections,
        // Many filters do not read the properties section.
        properties: OnceCell<codec_amqp10::Properties<'m>>,
    },
    Amqp091 {
        bytes: &'m [u8],
        properties: OnceCell<Option<codec_amqp091::Properties<'m, Short<'m>>>>,
    },
    None,
}

impl<'m> StoredMessage<'m> {
    /// Prepares a message for filters. A message whose sections are damaged has a header only.
    pub fn new(message: &'m Message) -> Self {
        let bytes = message.properties();
        let properties = match message.protocol() {
            Protocol::Amqp10 => match Sections::locate(bytes) {
                Ok(sections) => StoredProperties::Amqp10 {
                    bytes,
                    sections,
                    properties: OnceCell::new(),
                },
                Err(_) => StoredProperties::None,
            },
            Protocol::Amqp091 => StoredProperties::Amqp091 {
                bytes,
                properties: OnceCell::new(),
            },
            Protocol::Mqtt | Protocol::Stream => StoredProperties::None,
        };
        Self {
            message,
            properties,
        }
    }
}

impl Fields for StoredMessage<'_> {
    fn header(&self, field: HeaderField) -> Operand<'_> {
        match field {
            HeaderField::Priority => {
                Operand::Integer(self.message.priority().unwrap_or(DEFAULT_PRIORITY).into())
            }
            HeaderField::Durable => Operand::Boolean(self.message.durable()),
        }
    }

    fn property(&self, property: Property) -> Operand<'_> {
        match &self.properties {
            StoredProperties::Amqp10 {
                bytes,
                sections,
                properties,
            } => {
                let properties =
                    properties.get_or_init(|| sections.read_properties(bytes).unwrap_or_default());
                property_amqp10(properties, property)
            }
            StoredProperties::Amqp091 { bytes, properties } => properties
                .get_or_init(|| codec_amqp091::Properties::received(bytes).ok())
                .as_ref()
                .map_or(Operand::Null, |properties| {
                    property_amqp091(properties, property)
                }),
            StoredProperties::None => Operand::Null,
        }
    }

    fn application_properties<'m>(&'m self, values: &mut ApplicationValues<'m>) {
        match &self.properties {
            StoredProperties::Amqp10 {
                bytes, sections, ..
            } => {
                let Ok(map) = sections.read_map(sections.application_properties, bytes) else {
                    return;
                };
                for (key, value) in map.encoded_entries() {
                    if let Some(name) = key.string_bytes()
                        && values.offer(name, || value.value().into()).is_break()
                    {
                        return;
                    }
                }
            }
            StoredProperties::Amqp091 { bytes, .. } => {
                let mut is_complete = false;
                // Headers before damaged bytes count.
                let _ = codec_amqp091::Properties::scan(bytes, |entry| {
                    if !is_complete && !entry.key.starts_with("x-") {
                        let offered = values.offer(entry.key.as_bytes(), || header_value(&entry));
                        is_complete = offered.is_break();
                    }
                });
            }
            StoredProperties::None => {}
        }
    }
}

fn property_amqp10<'m>(
    properties: &codec_amqp10::Properties<'m>,
    property: Property,
) -> Operand<'m> {
    let text = |value: Option<&'m str>| value.map(Value::String);
    let symbol = |value: Option<Symbol<'m>>| value.map(Value::Symbol);
    let timestamp = |value: Option<Timestamp>| value.map(Value::Timestamp);
    let value = match property {
        Property::MessageId => properties.message_id,
        Property::UserId => properties.user_id.map(Value::Binary),
        Property::To => text(properties.to),
        Property::Subject => text(properties.subject),
        Property::ReplyTo => text(properties.reply_to),
        Property::CorrelationId => properties.correlation_id,
        Property::ContentType => symbol(properties.content_type),
        Property::ContentEncoding => symbol(properties.content_encoding),
        Property::AbsoluteExpiryTime => timestamp(properties.absolute_expiry_time),
        Property::CreationTime => timestamp(properties.creation_time),
        Property::GroupId => text(properties.group_id),
        Property::GroupSequence => properties.group_sequence.map(Value::Uint),
        Property::ReplyToGroupId => text(properties.reply_to_group_id),
    };
    value.unwrap_or_default().into()
}

fn property_amqp091<'m>(
    properties: &codec_amqp091::Properties<'m, Short<'m>>,
    property: Property,
) -> Operand<'m> {
    let text = match property {
        Property::MessageId => properties.message_id,
        Property::UserId => properties.user_id,
        Property::ReplyTo => properties.reply_to,
        Property::CorrelationId => properties.correlation_id,
        Property::ContentType => properties.content_type,
        Property::ContentEncoding => properties.content_encoding,
        Property::GroupId => properties.app_id,
        Property::CreationTime => {
            return properties.timestamp.map_or(Operand::Null, milliseconds);
        }
        Property::To
        | Property::Subject
        | Property::AbsoluteExpiryTime
        | Property::GroupSequence
        | Property::ReplyToGroupId => None,
    };
    text.map_or(Operand::Null, |text| Operand::Bytes(text.0))
}

/// Milliseconds of a time in seconds.
fn milliseconds(seconds: u64) -> Operand<'static> {
    Operand::Integer(i128::from(seconds) * 1000)
}

/// The value of a header (AMQP 0.9.1, section 4.2.5.5) without a copy. The table's form was checked by the caller.
fn header_value<'m>(entry: &table::Entry<'m>) -> Operand<'m> {
    // The length of the name, the name and the type octet precede the value.
    let value = entry.raw.get(entry.key.len() + 2..).unwrap_or_default();
    let read = match entry.letter {
        b'V' => Some(Operand::Null),
        b't' => value.first().map(|byte| Operand::Boolean(*byte != 0)),
        b'b' => integer(value, i8::from_be_bytes),
        b'B' => integer(value, u8::from_be_bytes),
        b's' => integer(value, i16::from_be_bytes),
        b'u' => integer(value, u16::from_be_bytes),
        b'I' => integer(value, i32::from_be_bytes),
        b'i' => integer(value, u32::from_be_bytes),
        b'l' | b'L' => integer(value, i64::from_be_bytes),
        b'f' => first(value).map(|bytes| Operand::Float(f32::from_be_bytes(bytes).into())),
        b'd' => first(value).map(|bytes| Operand::Float(f64::from_be_bytes(bytes))),
        b'T' => first(value).map(|bytes| milliseconds(u64::from_be_bytes(bytes))),
        b'S' | b'x' => value.get(4..).map(Operand::Bytes),
        _ => Some(Operand::Opaque),
    };
    read.unwrap_or(Operand::Opaque)
}

fn first<const N: usize>(value: &[u8]) -> Option<[u8; N]> {
    value.first_chunk().copied()
}

fn integer<'m, const N: usize, T: Into<i128>>(
    value: &[u8],
    decode: fn([u8; N]) -> T,
) -> Option<Operand<'m>> {
    Some(Operand::Integer(decode(first(value)?).into()))
}
