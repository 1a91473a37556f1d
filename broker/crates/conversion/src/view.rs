//! The neutral view of a message, borrowed from its stored form.

use crate::{ADDITIONAL_KEYS, EXTENSION, MAX_VALUES, amqp10};
use bytes::Bytes;
use codec_amqp091::table;
use codec_mqtt::{Qos, RepeatedProperties};
use message::{Message, Value};
use std::borrow::Cow;
use std::ops::Range;

/// A message without its protocol. A field is `None` if the message, or its protocol, does not have
/// the property.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View<'a> {
    /// The message survives a restart of its node.
    pub durable: bool,
    /// The publisher's priority.
    pub priority: Option<u8>,
    /// The publisher's time to live in milliseconds.
    pub ttl_ms: Option<u64>,
    /// MIME type of the body.
    pub content_type: Option<&'a str>,
    /// MIME encoding of the body.
    pub content_encoding: Option<&'a str>,
    /// The application's id of the message.
    pub message_id: Option<Id<'a>>,
    /// The application's id of the request that the message answers.
    pub correlation_id: Option<Id<'a>>,
    /// Address for replies: a queue in AMQP 0.9.1, an address in AMQP 1.0.
    pub reply_to: Option<&'a str>,
    /// Response Topic of MQTT.
    pub reply_topic: Option<ReplyTopic<'a>>,
    /// Address of the destination (AMQP 1.0).
    pub to: Option<&'a str>,
    /// Purpose of the message (AMQP 1.0).
    pub subject: Option<&'a str>,
    /// User name of the publisher.
    pub user_id: Option<&'a [u8]>,
    /// Property `type` of AMQP 0.9.1.
    pub kind: Option<&'a str>,
    /// Group of the message in AMQP 1.0; id of the application in AMQP 0.9.1.
    pub group_id: Option<&'a str>,
    /// Position in the group (AMQP 1.0).
    pub group_sequence: Option<u32>,
    /// Group for replies (AMQP 1.0).
    pub reply_to_group_id: Option<&'a str>,
    /// Cluster id of AMQP 0.9.1.
    pub cluster_id: Option<&'a str>,
    /// When the application made the message, in milliseconds since the Unix epoch.
    pub created_ms: Option<i64>,
    /// When the message expires (AMQP 1.0), in milliseconds since the Unix epoch.
    pub expires_ms: Option<i64>,
    /// QoS of an MQTT publish.
    pub qos: Option<Qos>,
    /// Payload Format Indicator of MQTT.
    pub is_text: Option<bool>,
    /// Headers of the application and annotations.
    pub headers: Headers<'a>,
    /// The body.
    pub body: Body<'a>,
}

/// A message id or correlation id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id<'a> {
    /// Text.
    Text(&'a str),
    /// Bytes.
    Binary(&'a [u8]),
    /// A number.
    Ulong(u64),
    /// A UUID.
    Uuid([u8; 16]),
    /// Bytes of a protocol without types, which may be text.
    Untyped(&'a [u8]),
}

/// Prefix of a UUID as text.
const URN: &str = "urn:uuid:";

impl<'a> Id<'a> {
    /// The id as bytes: text for numbers and UUIDs.
    pub(crate) fn to_bytes(self) -> Cow<'a, [u8]> {
        match self {
            Id::Text(text) => Cow::Borrowed(text.as_bytes()),
            Id::Binary(bytes) | Id::Untyped(bytes) => Cow::Borrowed(bytes),
            Id::Ulong(number) => Cow::Owned(number.to_string().into_bytes()),
            Id::Uuid(uuid) => Cow::Owned(urn(uuid).into_bytes()),
        }
    }

    /// The UUID in text of the form `urn:uuid:…`.
    pub(crate) fn uuid_of(text: &[u8]) -> Option<[u8; 16]> {
        let digits = text.strip_prefix(URN.as_bytes())?;
        let mut uuid = [0; 16];
        let mut written = 0;
        for (n, part) in digits.split(|byte| *byte == b'-').enumerate() {
            if part.len() != *[8, 4, 4, 4, 12].get(n)? {
                return None;
            }
            for pair in part.chunks_exact(2) {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let octet = digit(pair[0])? << 4 | digit(pair[1])?;
                *uuid.get_mut(written)? = octet as u8;
                written += 1;
            }
        }
        (written == uuid.len()).then_some(uuid)
    }
}

/// Text of a UUID, as RabbitMQ writes it for protocols without UUIDs.
pub(crate) fn urn(uuid: [u8; 16]) -> String {
    let mut text = URN.to_owned();
    for (n, octet) in uuid.iter().enumerate() {
        if matches!(n, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        for digit in [octet >> 4, octet & 15] {
            text.extend(char::from_digit(digit.into(), 16));
        }
    }
    text
}

/// The topic for the response to an MQTT message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyTopic<'a> {
    /// The exchange of MQTT.
    pub exchange: Cow<'a, str>,
    /// The topic name.
    pub topic: &'a str,
}

/// Origin of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A header that brokers and plugins use: an AMQP 1.0 message annotation. In the other protocols
    /// its name begins with `x-`, or it is `CC`.
    Annotation,
    /// A header of the application.
    Application,
}

impl Scope {
    fn of(name: &str) -> Scope {
        match name.starts_with(EXTENSION) {
            true => Scope::Annotation,
            false => Scope::Application,
        }
    }
}

/// A header, decoded.
#[derive(Clone, Debug, PartialEq)]
pub struct Header<'a> {
    /// Its origin.
    pub scope: Scope,
    /// Its name.
    pub name: &'a str,
    /// Its value. A timestamp has seconds.
    pub value: Value,
}

/// The headers of a message, in the encoding of its protocol, which was checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Headers<'a>(pub(crate) Encoding<'a>);

#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum Encoding<'a> {
    #[default]
    Empty,
    /// Entries of an AMQP 0.9.1 table.
    Table(&'a [u8]),
    /// Message annotations and application properties of AMQP 1.0.
    Maps {
        annotations: codec_amqp10::Map<'a>,
        application: codec_amqp10::Map<'a>,
    },
    /// User properties of MQTT.
    UserProperties(RepeatedProperties<'a>),
}

/// The number of values that may still be decoded.
pub(crate) struct Budget(u32);

impl Budget {
    pub(crate) fn full() -> Budget {
        Budget(MAX_VALUES)
    }

    pub(crate) fn spend(&mut self) -> Option<()> {
        self.0 = self.0.checked_sub(1)?;
        Some(())
    }
}

impl<'a> Headers<'a> {
    /// Calls `each` with every header, in the order of the message. Several headers can have the
    /// same name. Leaves out headers beyond [`MAX_VALUES`] and values of types that no other protocol
    /// has.
    pub fn for_each(&self, mut each: impl FnMut(Header<'a>)) {
        let mut budget = Budget::full();
        match self.0 {
            Encoding::Empty => {}
            Encoding::Table(entries) => {
                // Cannot fail: the decoder has walked over the table.
                let _ = table::walk(entries, |entry| {
                    if let Ok(value) = entry.decode() {
                        let scope = match value {
                            // Routing keys, which belong to the broker.
                            Value::Array(_) if entry.key == ADDITIONAL_KEYS => Scope::Annotation,
                            _ => Scope::of(entry.key),
                        };
                        each(Header {
                            scope,
                            name: entry.key,
                            value,
                        });
                    }
                });
            }
            Encoding::Maps {
                annotations,
                application,
            } => amqp10::headers(annotations, application, &mut budget, &mut each),
            Encoding::UserProperties(properties) => {
                let all = codec_mqtt::Properties {
                    repeated: properties,
                    ..codec_mqtt::Properties::default()
                };
                for (name, value) in all.user_properties() {
                    if budget.spend().is_none() {
                        break;
                    }
                    each(Header {
                        scope: Scope::of(name),
                        name,
                        value: Value::from(value),
                    });
                }
            }
        }
    }
}

impl PartialEq for Headers<'_> {
    fn eq(&self, other: &Headers<'_>) -> bool {
        let list = |headers: &Headers<'_>| {
            let mut all = Vec::new();
            headers
                .for_each(|header| all.push((header.scope, header.name.to_owned(), header.value)));
            all
        };
        list(self) == list(other)
    }
}

/// The body of a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Body<'a> {
    /// Bytes: one or more data sections in AMQP 1.0.
    Bytes(Part<'a>),
    /// AMQP 1.0 sections: sequences or one value, and the footer.
    Sections(Part<'a>),
}

impl Default for Body<'_> {
    fn default() -> Self {
        Body::Bytes(Part::Stored { at: 0, bytes: &[] })
    }
}

impl<'a> Body<'a> {
    /// The bytes: of the application, or the encoded sections.
    pub fn part(&self) -> &Part<'a> {
        match self {
            Body::Bytes(part) | Body::Sections(part) => part,
        }
    }

    pub(crate) fn into_part(self) -> Part<'a> {
        match self {
            Body::Bytes(part) | Body::Sections(part) => part,
        }
    }
}

/// Bytes that are part of a stored body, or were joined from several parts of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// A part of the stored body.
    Stored {
        /// Its offset in the stored body.
        at: usize,
        /// The part.
        bytes: &'a [u8],
    },
    /// A copy.
    Joined(Bytes),
}

impl<'a> Part<'a> {
    /// The whole stored body.
    #[inline]
    pub fn whole(message: &'a Message) -> Part<'a> {
        Part::Stored {
            at: 0,
            bytes: message.body(),
        }
    }

    /// The bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match self {
            Part::Stored { bytes, .. } => bytes,
            Part::Joined(bytes) => bytes,
        }
    }

    /// The bytes in `range`. Shares the buffer of `message`, from which this part comes, if the
    /// message is large.
    pub fn share(&self, message: &Message, range: Range<usize>) -> Bytes {
        match self {
            Part::Stored { at, .. } => message.body_part(at + range.start..at + range.end),
            Part::Joined(bytes) => bytes.slice(range),
        }
    }
}
