//! The packet of any type.

use crate::{
    Ack, AckKind, Auth, ConnAck, Connect, DecodeError, Disconnect, PacketType, Publish, RawPacket,
    SubAck, Subscribe, UnsubAck, Unsubscribe, Version, encode_pingreq, encode_pingresp,
};
use bytes::BytesMut;

/// A decoded packet. It borrows from its frame, and its form has been checked.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(
    clippy::large_enum_variant,
    reason = "lives on the stack for the length of a step; a box would be an allocation for each packet"
)]
pub enum Packet<'a> {
    /// CONNECT.
    Connect(Connect<'a>),
    /// CONNACK.
    ConnAck(ConnAck<'a>),
    /// PUBLISH.
    Publish(Publish<'a>),
    /// PUBACK, PUBREC, PUBREL, PUBCOMP.
    Ack(Ack<'a>),
    /// SUBSCRIBE.
    Subscribe(Subscribe<'a>),
    /// SUBACK.
    SubAck(SubAck<'a>),
    /// UNSUBSCRIBE.
    Unsubscribe(Unsubscribe<'a>),
    /// UNSUBACK.
    UnsubAck(UnsubAck<'a>),
    /// PINGREQ.
    PingReq,
    /// PINGRESP.
    PingResp,
    /// DISCONNECT.
    Disconnect(Disconnect<'a>),
    /// AUTH.
    Auth(Auth<'a>),
}

impl<'a> Packet<'a> {
    /// Decodes a packet. `version` is that of the connection; CONNECT contains its own.
    #[inline]
    pub fn decode(frame: &RawPacket<'a>, version: Version) -> Result<Packet<'a>, DecodeError> {
        let body = frame.body;
        if frame.overlong && version.is_5() && frame.kind != PacketType::Connect {
            return Err(DecodeError::LengthEncoding);
        }
        let allowed = |version| match frame.kind.allows(frame.flags, version) {
            true => Ok(()),
            false => Err(DecodeError::Flags(frame.kind, frame.flags)),
        };
        if frame.kind != PacketType::Connect {
            allowed(version)?;
        }
        let ack = |kind| Ack::decode(kind, body, version).map(Packet::Ack);
        match frame.kind {
            PacketType::Publish => Publish::decode(frame.flags, body, version).map(Packet::Publish),
            PacketType::PubAck => ack(AckKind::PubAck),
            PacketType::PubRec => ack(AckKind::PubRec),
            PacketType::PubRel => ack(AckKind::PubRel),
            PacketType::PubComp => ack(AckKind::PubComp),
            PacketType::Connect => {
                let connect = Connect::decode(body)?;
                allowed(connect.version)?;
                match frame.overlong && connect.version.is_5() {
                    true => Err(DecodeError::LengthEncoding),
                    false => Ok(Packet::Connect(connect)),
                }
            }
            PacketType::ConnAck => ConnAck::decode(body, version).map(Packet::ConnAck),
            PacketType::Subscribe => Subscribe::decode(body, version).map(Packet::Subscribe),
            PacketType::SubAck => SubAck::decode(body, version).map(Packet::SubAck),
            PacketType::Unsubscribe => Unsubscribe::decode(body, version).map(Packet::Unsubscribe),
            PacketType::UnsubAck => UnsubAck::decode(body, version).map(Packet::UnsubAck),
            PacketType::PingReq => empty(body, Packet::PingReq),
            PacketType::PingResp => empty(body, Packet::PingResp),
            PacketType::Disconnect => Disconnect::decode(body, version).map(Packet::Disconnect),
            PacketType::Auth if version.is_5() => Auth::decode(body).map(Packet::Auth),
            PacketType::Auth => Err(DecodeError::UnknownKind(PacketType::Auth as u8)),
        }
    }

    /// Appends the packet in the form of a version.
    pub fn encode(&self, version: Version, out: &mut BytesMut) {
        match self {
            Packet::Connect(packet) => packet.encode(out),
            Packet::ConnAck(packet) => packet.encode(version, out),
            Packet::Publish(packet) => packet.encode(version, out),
            Packet::Ack(packet) => packet.encode(version, out),
            Packet::Subscribe(packet) => packet.encode(version, out),
            Packet::SubAck(packet) => packet.encode(version, out),
            Packet::Unsubscribe(packet) => packet.encode(version, out),
            Packet::UnsubAck(packet) => packet.encode(version, out),
            Packet::PingReq => encode_pingreq(out),
            Packet::PingResp => encode_pingresp(out),
            Packet::Disconnect(packet) => packet.encode(version, out),
            Packet::Auth(packet) => packet.encode(out),
        }
    }
}

fn empty<'a>(body: &[u8], packet: Packet<'a>) -> Result<Packet<'a>, DecodeError> {
    match body.len() {
        0 => Ok(packet),
        n => Err(DecodeError::Trailing(n)),
    }
}
