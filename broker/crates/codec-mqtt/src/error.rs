//! Errors in packets and their reason codes (section 4.13).

use crate::{PacketType, ReasonCode};

/// The reason why bytes are not a valid packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A field points beyond the end of the packet.
    #[error("packet ends early")]
    Short,
    /// Bytes after the last field.
    #[error("{0} bytes are left over at the end of the packet")]
    Trailing(usize),
    /// A variable byte integer has more than four bytes, or an overlong form (section 1.5.5).
    #[error("a length has more bytes than it may or needs")]
    LengthEncoding,
    #[error("packet of {size} bytes, at most {max} are taken")]
    /// Longer than the limit of the reader.
    TooLarge {
        /// Bytes of the packet, as its fixed header announces them.
        size: usize,
        /// The limit, in bytes.
        max: usize,
    },
    /// Section 1.5.4.
    #[error("a string is not UTF-8")]
    Utf8,
    /// [MQTT-1.5.4-2]
    #[error("a string holds U+0000")]
    NullCharacter,
    /// The specification allows a server to reject these (section 1.5.4).
    #[error("a name holds a control character or what is no character")]
    UnwantedCharacter,
    /// As [`DecodeError::UnwantedCharacter`], with the reason code of client ids.
    #[error("a client id holds a control character or what is no character")]
    ClientId,
    /// The type in the high four bits of the first byte.
    #[error("packet type {0} does not exist in this version")]
    UnknownKind(u8),
    /// The low four bits of the first byte are fixed, except for PUBLISH (section 2.1.3).
    #[error("{0:?} may not have the flags {1:#06b}")]
    Flags(PacketType, u8),
    /// [MQTT-3.3.1-4], also for wills and subscriptions.
    #[error("quality of service 3")]
    Qos,
    /// A bit that must be 0, in CONNECT, CONNACK or subscription options.
    #[error("a reserved bit is set")]
    ReservedBit,
    /// [MQTT-3.3.1-2]
    #[error("DUP is set on a message of quality of service 0")]
    DupWithoutQos,
    /// [MQTT-2.2.1-3] and [MQTT-2.2.1-4], in packets that concern one PUBLISH.
    #[error("packet identifier 0")]
    PacketId,
    /// [MQTT-2.2.1-3], in SUBSCRIBE and UNSUBSCRIBE.
    #[error("packet identifier 0 on a subscription")]
    SubscriptionPacketId,
    /// CONNECT begins with another protocol's name (section 3.1.2.1).
    #[error("the protocol is not MQTT")]
    ProtocolName,
    /// The level in CONNECT (section 3.1.2.2).
    #[error("protocol level {0} is not known")]
    ProtocolLevel(u8),
    /// [MQTT-3.1.2-11], [MQTT-3.1.2-13]
    #[error("will QoS or will retain without a will")]
    WillFlags,
    /// Section 3.1.2.9 of 3.1.1; allowed in 5.0.
    #[error("a password without a user name")]
    PasswordWithoutUser,
    /// The identifier is in no version of the specification.
    #[error("property {0:#04x} is not known")]
    UnknownProperty(u8),
    /// Section 2.2.2.2 lists the packets of each property.
    #[error("property {0:#04x} does not belong in this packet")]
    PropertyMisplaced(u8),
    /// Only user properties and subscription identifiers may repeat.
    #[error("property {0:#04x} comes twice")]
    PropertyTwice(u8),
    /// The value is outside its range, for example 0 for the receive maximum.
    #[error("property {0:#04x} has a value it may not have")]
    PropertyValue(u8),
    /// Section 3.1.2.11.10.
    #[error("authentication data without an authentication method")]
    AuthenticationMethod,
    /// [MQTT-3.3.2-8]
    #[error("topic alias 0")]
    TopicAlias,
    /// The code does not exist, or its packet may not have it.
    #[error("reason code {0:#04x} does not belong in this packet")]
    ReasonCode(u8),
    /// [MQTT-3.8.3-2], [MQTT-3.10.3-2]
    #[error("no topic filter")]
    NoFilter,
    /// [MQTT-3.8.3-5], retain handling has three values.
    #[error("retain handling 3")]
    RetainHandling,
    /// [MQTT-3.8.3-4]
    #[error("No Local on a shared subscription")]
    NoLocalShared,
    /// Empty, or with a wildcard [MQTT-3.3.2-2].
    #[error("not a topic name")]
    TopicName,
    /// The topic of a will is empty.
    #[error("a will without a topic")]
    NoTopic,
    /// [MQTT-3.3.2-14]
    #[error("the response topic is not a topic name")]
    ResponseTopic,
    /// Empty, or a wildcard is not alone in its level (section 4.7.1).
    #[error("not a topic filter")]
    TopicFilter,
    /// [MQTT-4.8.2-1], [MQTT-4.8.2-2]
    #[error("not a shared subscription's filter")]
    SharedFilter,
}

impl DecodeError {
    /// Returns the reason code for DISCONNECT or CONNACK: the one that the standard requires, or
    /// Mosquitto's choice if it leaves a choice. An invalid topic name or filter is a malformed
    /// packet, because 0x8F and 0x90 are for "correctly formed" ones.
    pub fn reason(&self) -> ReasonCode {
        match self {
            DecodeError::TooLarge { .. } => ReasonCode::PacketTooLarge,
            DecodeError::ProtocolName | DecodeError::ProtocolLevel(_) => {
                ReasonCode::UnsupportedProtocolVersion
            }
            DecodeError::PacketId
            | DecodeError::PropertyTwice(_)
            | DecodeError::PropertyValue(_)
            | DecodeError::AuthenticationMethod
            | DecodeError::ReasonCode(_)
            | DecodeError::NoFilter
            | DecodeError::NoTopic
            | DecodeError::RetainHandling
            | DecodeError::NoLocalShared
            | DecodeError::ResponseTopic
            | DecodeError::SharedFilter
            | DecodeError::UnknownKind(_) => ReasonCode::ProtocolError,
            // Both the flags and the packet are errors; the choice between them is Mosquitto's.
            DecodeError::Flags(PacketType::ConnAck | PacketType::Auth, _) => {
                ReasonCode::ProtocolError
            }
            DecodeError::ClientId => ReasonCode::ClientIdentifierNotValid,
            DecodeError::TopicAlias => ReasonCode::TopicAliasInvalid,
            _ => ReasonCode::MalformedPacket,
        }
    }
}
