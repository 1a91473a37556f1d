//! Conversion of stored messages between protocols.
//!
//! A message keeps the encoding of the protocol that published it ([`Message::protocol`]). Each
//! protocol has one decoder, from its stored form to the neutral [`View`], and one encoder, from the
//! view to its own form:
//!
//! - [`amqp091`]: properties and body of AMQP 0.9.1.
//! - [`amqp10`]: sections of AMQP 1.0, and their stored form.
//! - [`mqtt`]: the stored form of MQTT messages, and messages for MQTT subscribers.
//!
//! The encoders hand out a message of their own protocol as it is: nothing is decoded, copied or
//! allocated. The results are those of RabbitMQ; `docs/reference/conversions.md` has the tables.
//!
//! Also here, because every protocol needs it: the view of exchanges on a message
//! ([`MessageEnvelope`]) and the copies for RabbitMQ's firehose ([`trace`]).
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

pub mod amqp091;
pub mod amqp10;
mod envelope;
pub mod mqtt;
pub mod trace;
mod view;

pub use envelope::MessageEnvelope;
pub use view::{Body, Header, Headers, Id, Part, ReplyTopic, Scope, View};

use message::{Message, Protocol};

/// Most values of headers that are converted, nested ones included: a value takes up to fifty times
/// its encoded size in memory. With the headers that the AMQP 0.9.1 encoder adds, a table stays
/// within [`codec_amqp091::table::MAX_VALUES`].
pub const MAX_VALUES: u32 = codec_amqp091::table::MAX_VALUES - 8;

/// Prefix of the names that are headers of the broker and its plugins in AMQP 0.9.1 and message
/// annotations in AMQP 1.0.
const EXTENSION: &str = "x-";
/// `type` of AMQP 0.9.1 for a body of AMQP 1.0 sections.
const AMQP10_TYPE: &str = "amqp-1.0";
/// Header of AMQP 0.9.1 and annotation of AMQP 1.0 with the routing key of an MQTT response topic.
const REPLY_TOPIC: &str = "x-opt-reply-to-topic";
/// Header for a correlation id that is not a short string of AMQP 0.9.1.
const CORRELATION_ID: &str = "x-correlation-id";
/// Header for a message id that is not a short string of AMQP 0.9.1.
const MESSAGE_ID: &str = "x-message-id";
/// Header with additional routing keys.
const ADDITIONAL_KEYS: &str = "CC";

/// Annotation with the time at which the broker received a message, in milliseconds since the Unix epoch. AMQP 0.9.1
/// has it as a header of another name and as `timestamp`.
const RECEIVED_TIME: &str = "x-opt-rabbitmq-received-time";

/// The stored properties or body of a message cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Properties that are not AMQP 0.9.1.
    #[error("properties of AMQP 0.9.1: {0}")]
    Amqp091(#[from] codec_amqp091::DecodeError),
    /// Sections that are not AMQP 1.0.
    #[error("sections of AMQP 1.0: {0}")]
    Amqp10(#[from] codec_amqp10::DecodeError),
    /// Properties that are not those of a stored MQTT message.
    #[error("properties of MQTT")]
    Mqtt,
    /// A protocol without a decoder.
    #[error("messages of {0:?} cannot be converted")]
    Protocol(Protocol),
}

impl From<mqtt::EnvelopeError> for DecodeError {
    fn from(_: mqtt::EnvelopeError) -> DecodeError {
        DecodeError::Mqtt
    }
}

impl<'a> View<'a> {
    /// Decodes the properties of a stored message and finds its body.
    pub fn of(message: &'a Message) -> Result<View<'a>, DecodeError> {
        let view = match message.protocol() {
            Protocol::Amqp091 => amqp091::decode(message)?,
            Protocol::Amqp10 => amqp10::decode(message)?,
            Protocol::Mqtt => mqtt::decode(message)?,
            other => return Err(DecodeError::Protocol(other)),
        };
        Ok(View {
            durable: message.durable(),
            priority: message.priority(),
            ttl_ms: message.ttl_ms(),
            ..view
        })
    }
}
