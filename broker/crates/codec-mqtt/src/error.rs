//! What can be wrong with a packet, and the reason code that says so (section 4.13).

use crate::{PacketKind, Reason};

/// Why bytes are no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("packet ends early")]
    Short,
    #[error("{0} bytes are left over at the end of the packet")]
    Trailing(usize),
    #[error("a length has more bytes than it may or needs")]
    LengthEncoding,
    #[error("packet of {size} bytes, at most {max} are taken")]
    TooLarge { size: usize, max: usize },
    #[error("a string is not UTF-8")]
    Utf8,
    #[error("a string holds U+0000")]
    NullCharacter,
    #[error("a name holds a control character or what is no character")]
    UnwantedCharacter,
    #[error("a client id holds a control character or what is no character")]
    ClientId,
    #[error("packet type {0} does not exist in this version")]
    UnknownKind(u8),
    #[error("{0:?} may not have the flags {1:#06b}")]
    Flags(PacketKind, u8),
    #[error("quality of service 3")]
    Qos,
    #[error("a reserved bit is set")]
    ReservedBit,
    #[error("DUP is set on a message of quality of service 0")]
    DupWithoutQos,
    #[error("packet identifier 0")]
    PacketId,
    #[error("packet identifier 0 on a subscription")]
    SubscriptionPacketId,
    #[error("the protocol is not MQTT")]
    ProtocolName,
    #[error("protocol level {0} is not known")]
    ProtocolLevel(u8),
    #[error("will QoS or will retain without a will")]
    WillFlags,
    #[error("a password without a user name")]
    PasswordWithoutUser,
    #[error("property {0:#04x} is not known")]
    UnknownProperty(u8),
    #[error("property {0:#04x} does not belong in this packet")]
    PropertyMisplaced(u8),
    #[error("property {0:#04x} comes twice")]
    PropertyTwice(u8),
    #[error("property {0:#04x} has a value it may not have")]
    PropertyValue(u8),
    #[error("authentication data without an authentication method")]
    AuthenticationMethod,
    #[error("topic alias 0")]
    TopicAlias,
    #[error("reason code {0:#04x} does not belong in this packet")]
    ReasonCode(u8),
    #[error("no topic filter")]
    NoFilter,
    #[error("retain handling 3")]
    RetainHandling,
    #[error("No Local on a shared subscription")]
    NoLocalShared,
    #[error("not a topic name")]
    TopicName,
    #[error("a will without a topic")]
    NoTopic,
    #[error("the response topic is not a topic name")]
    ResponseTopic,
    #[error("not a topic filter")]
    TopicFilter,
    #[error("not a shared subscription's filter")]
    SharedFilter,
}

impl DecodeError {
    /// What DISCONNECT, or CONNACK, tells the client: the standard's word where it has one, mosquitto's choice where it leaves it
    /// open. What is no topic name or filter is malformed: 0x8F and 0x90 are for those that are "correctly formed".
    pub fn reason(&self) -> Reason {
        match self {
            DecodeError::TooLarge { .. } => Reason::PacketTooLarge,
            DecodeError::ProtocolName | DecodeError::ProtocolLevel(_) => {
                Reason::UnsupportedProtocolVersion
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
            | DecodeError::UnknownKind(_) => Reason::ProtocolError,
            // Both are wrong, the flags and that it came; the choice between the two is mosquitto's.
            DecodeError::Flags(PacketKind::ConnAck | PacketKind::Auth, _) => Reason::ProtocolError,
            DecodeError::ClientId => Reason::ClientIdentifierNotValid,
            DecodeError::TopicAlias => Reason::TopicAliasInvalid,
            _ => Reason::MalformedPacket,
        }
    }
}
