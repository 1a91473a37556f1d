//! The fixed header (section 2.1): where a packet begins and ends.

use crate::field::{self, MAX_VARIABLE, put_measured};
use crate::{DecodeError, Version};
use bytes::{BufMut, BytesMut};

/// The longest packet that the format can hold, header included.
pub const MAX_PACKET: usize = MAX_VARIABLE + 5;

const DUP: u8 = 0b1000;

/// Packet types, with their numbers on the wire (section 2.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum PacketType {
    /// Section 3.1.
    Connect = 1,
    /// Section 3.2.
    ConnAck = 2,
    /// Section 3.3.
    Publish = 3,
    /// Section 3.4.
    PubAck = 4,
    /// Section 3.5.
    PubRec = 5,
    /// Section 3.6.
    PubRel = 6,
    /// Section 3.7.
    PubComp = 7,
    /// Section 3.8.
    Subscribe = 8,
    /// Section 3.9.
    SubAck = 9,
    /// Section 3.10.
    Unsubscribe = 10,
    /// Section 3.11.
    UnsubAck = 11,
    /// Section 3.12.
    PingReq = 12,
    /// Section 3.13.
    PingResp = 13,
    /// Section 3.14.
    Disconnect = 14,
    /// Section 3.15; only in 5.0.
    Auth = 15,
}

const KINDS: [PacketType; 15] = [
    PacketType::Connect,
    PacketType::ConnAck,
    PacketType::Publish,
    PacketType::PubAck,
    PacketType::PubRec,
    PacketType::PubRel,
    PacketType::PubComp,
    PacketType::Subscribe,
    PacketType::SubAck,
    PacketType::Unsubscribe,
    PacketType::UnsubAck,
    PacketType::PingReq,
    PacketType::PingResp,
    PacketType::Disconnect,
    PacketType::Auth,
];

impl PacketType {
    fn from_bits(bits: u8) -> Option<PacketType> {
        KINDS.get(usize::from(bits).checked_sub(1)?).copied()
    }

    /// Returns true for packets that only servers send.
    pub fn is_server_only(self) -> bool {
        matches!(
            self,
            PacketType::ConnAck | PacketType::SubAck | PacketType::UnsubAck | PacketType::PingResp
        )
    }

    /// The required flags (section 2.1.3); `None` for PUBLISH, whose flags carry information.
    fn flags(self) -> Option<u8> {
        match self {
            PacketType::Publish => None,
            PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe => Some(0b0010),
            _ => Some(0),
        }
    }

    /// Returns true if a packet of this version may have these flags. 3.1 has DUP on more packets
    /// than PUBLISH (its section 2.1) and does not define the flags of CONNECT (its section 3.1).
    pub(crate) fn allows(self, flags: u8, version: Version) -> bool {
        let fixed = self.flags();
        match (self, version) {
            (PacketType::Connect, Version::V31) => true,
            (
                PacketType::PubRel | PacketType::Subscribe | PacketType::Unsubscribe,
                Version::V31,
            ) => fixed == Some(flags & !DUP),
            _ => fixed.is_none_or(|must| must == flags),
        }
    }

    pub(crate) fn first_byte(self) -> u8 {
        (self as u8) << 4 | self.flags().unwrap_or(0)
    }
}

/// A packet whose body has not been decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawPacket<'a> {
    /// The high four bits of the first byte.
    pub kind: PacketType,
    /// The low four bits of the first byte.
    pub flags: u8,
    /// The bytes after the fixed header.
    pub body: &'a [u8],
    /// The remaining length has more bytes than necessary: an error in 5.0 [MQTT-1.5.5-1], ignored
    /// before.
    pub overlong: bool,
    wire_len: usize,
}

impl RawPacket<'_> {
    /// Size of the whole packet in bytes.
    pub fn wire_len(&self) -> usize {
        self.wire_len
    }
}

/// Returns the first packet, or `None` if it is incomplete. Reports errors in its header, and
/// packets of more than `max` bytes including the header, before the rest has arrived.
#[inline]
pub fn parse_frame(bytes: &[u8], max: usize) -> Result<Option<RawPacket<'_>>, DecodeError> {
    let Some((&first, rest)) = bytes.split_first() else {
        return Ok(None);
    };
    let bits = first >> 4;
    let kind = PacketType::from_bits(bits).ok_or(DecodeError::UnknownKind(bits))?;
    let flags = first & 0x0F;
    // Flags that only 3.1 allows are checked when the packet is decoded.
    if !kind.allows(flags, Version::V31) {
        return Err(DecodeError::Flags(kind, flags));
    }
    let Some(length) = field::variable(rest)? else {
        return Ok(None);
    };
    let size = 1 + length.len + length.value;
    if size > max {
        return Err(DecodeError::TooLarge { size, max });
    }
    Ok(bytes.get(1 + length.len..size).map(|body| RawPacket {
        kind,
        flags,
        body,
        overlong: length.overlong,
        wire_len: size,
    }))
}

/// Appends a packet: its fixed header and the output of `write`.
pub(crate) fn put_packet(out: &mut BytesMut, kind: PacketType, write: impl FnOnce(&mut BytesMut)) {
    out.put_u8(kind.first_byte());
    put_measured(out, write);
}

/// Appends a PINGREQ, which only clients send.
pub fn encode_pingreq(out: &mut BytesMut) {
    put_packet(out, PacketType::PingReq, |_| ());
}

/// Appends a PINGRESP, which only servers send.
pub fn encode_pingresp(out: &mut BytesMut) {
    put_packet(out, PacketType::PingResp, |_| ());
}
