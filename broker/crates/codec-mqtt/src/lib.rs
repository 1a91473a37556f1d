//! MQTT 3.1, 3.1.1 and 5.0: converts bytes to typed packets and back.
//!
//! Sections are those of MQTT Version 5.0, unless 3.1.1 is named. Packets borrow from the input:
//! decoding neither copies nor allocates, whatever a packet contains. Lists (topic filters, user
//! properties) are validated once and iterated on demand.
//!
//! [`parse_frame`] finds a packet in a stream, [`Packet::decode`] decodes it. This crate checks
//! everything that depends only on the packet; checks that depend on a session (is this packet
//! identifier in use?) are left to the caller.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod acknowledge;
mod closing;
mod connect;
mod error;
mod field;
mod frame;
mod packet;
mod property;
mod publish;
mod reason;
mod subscribe;
mod topic;

pub use acknowledge::{Ack, AckKind};
pub use closing::{Auth, Disconnect};
pub use connect::{ConnAck, Connect, Will, is_bridge};
pub use error::DecodeError;
pub use field::MAX_STRING;
pub use frame::{MAX_PACKET, PacketType, RawPacket, encode_pingreq, encode_pingresp, parse_frame};
pub use packet::Packet;
pub use property::{
    Properties, PropertyLocation, RepeatedProperties, put_subscription_identifier,
    put_user_property,
};
pub use publish::{ForwardedPublish, Publish};
pub use reason::{ReasonCode, ReturnCode};
pub use subscribe::{
    RetainHandling, SubAck, Subscribe, SubscribeOptions, SubscriptionFilters, UnsubAck,
    Unsubscribe, UnsubscribeFilters,
};
pub use topic::{SharedFilter, check_filter, check_name, matches, shared};

/// Protocol level of CONNECT (section 3.1.2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Version {
    /// MQTT 3.1.
    V31 = 3,
    /// MQTT 3.1.1.
    V311 = 4,
    /// MQTT 5.0.
    V5 = 5,
}

impl Version {
    /// Returns the version with that protocol level, or None if it is unknown. Bridge bits must be masked before.
    pub fn from_level(level: u8) -> Option<Version> {
        match level {
            3 => Some(Version::V31),
            4 => Some(Version::V311),
            5 => Some(Version::V5),
            _ => None,
        }
    }

    /// Returns true for the version whose packets have properties and reason codes.
    pub fn is_5(self) -> bool {
        self == Version::V5
    }
}

/// Quality of service (section 4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Qos {
    /// QoS 0: delivered without acknowledgement.
    #[default]
    AtMostOnce = 0,
    /// QoS 1: delivered until PUBACK, possibly twice.
    AtLeastOnce = 1,
    /// QoS 2: delivered with the handshake of PUBREC, PUBREL and PUBCOMP.
    ExactlyOnce = 2,
}

impl Qos {
    /// Returns `None` for 3, which is invalid.
    pub fn from_bits(bits: u8) -> Option<Qos> {
        match bits {
            0 => Some(Qos::AtMostOnce),
            1 => Some(Qos::AtLeastOnce),
            2 => Some(Qos::ExactlyOnce),
            _ => None,
        }
    }

    pub(crate) fn decode(bits: u8) -> Result<Qos, DecodeError> {
        Qos::from_bits(bits).ok_or(DecodeError::Qos)
    }
}
