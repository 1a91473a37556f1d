//! PUBACK, PUBREC, PUBREL and PUBCOMP (sections 3.4 to 3.7), which share one format.

use crate::field::PacketReader;
use crate::frame::put_packet;
use crate::{DecodeError, PacketType, Properties, PropertyLocation, ReasonCode, Version};
use bytes::{BufMut, BytesMut};

/// The step of a QoS 1 or QoS 2 delivery that an acknowledgement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AckKind {
    /// Answers a PUBLISH of QoS 1 (section 3.4).
    PubAck,
    /// Answers a PUBLISH of QoS 2 (section 3.5).
    PubRec,
    /// Answers PUBREC (section 3.6).
    PubRel,
    /// Answers PUBREL and ends the delivery (section 3.7).
    PubComp,
}

impl AckKind {
    fn packet(self) -> PacketType {
        match self {
            AckKind::PubAck => PacketType::PubAck,
            AckKind::PubRec => PacketType::PubRec,
            AckKind::PubRel => PacketType::PubRel,
            AckKind::PubComp => PacketType::PubComp,
        }
    }

    /// [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.6.2-1], [MQTT-3.7.2-1]
    fn allows_reason(self, reason: ReasonCode) -> bool {
        match self {
            AckKind::PubAck | AckKind::PubRec => matches!(
                reason,
                ReasonCode::Success
                    | ReasonCode::NoMatchingSubscribers
                    | ReasonCode::UnspecifiedError
                    | ReasonCode::ImplementationSpecificError
                    | ReasonCode::NotAuthorized
                    | ReasonCode::TopicNameInvalid
                    | ReasonCode::PacketIdentifierInUse
                    | ReasonCode::QuotaExceeded
                    | ReasonCode::PayloadFormatInvalid
            ),
            AckKind::PubRel | AckKind::PubComp => {
                matches!(
                    reason,
                    ReasonCode::Success | ReasonCode::PacketIdentifierNotFound
                )
            }
        }
    }
}

/// A decoded acknowledgement of any kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ack<'a> {
    /// The packet type.
    pub kind: AckKind,
    /// The packet identifier of the PUBLISH; never 0.
    pub packet_id: u16,
    /// `Success` in 3.1 and 3.1.1, which have no reason codes.
    pub reason: ReasonCode,
    /// Empty before 5.0.
    pub properties: Properties<'a>,
}

impl<'a> Ack<'a> {
    /// Creates an acknowledgement without properties.
    pub fn new(kind: AckKind, packet_id: u16, reason: ReasonCode) -> Ack<'a> {
        Ack {
            kind,
            packet_id,
            reason,
            properties: Properties::default(),
        }
    }

    pub(crate) fn decode(
        kind: AckKind,
        body: &'a [u8],
        version: Version,
    ) -> Result<Ack<'a>, DecodeError> {
        let mut from = PacketReader::new(body);
        let mut ack = Ack::new(kind, from.packet_id()?, ReasonCode::Success);
        if version.is_5() && !from.is_empty() {
            let code = from.u8()?;
            ack.reason = ReasonCode::from_byte(code)
                .filter(|reason| kind.allows_reason(*reason))
                .ok_or(DecodeError::ReasonCode(code))?;
            if !from.is_empty() {
                ack.properties = Properties::read(&mut from, PropertyLocation::Ack)?;
            }
        }
        from.finish()?;
        Ok(ack)
    }

    /// Appends the packet in its shortest form: 4 bytes on success.
    pub fn encode(&self, version: Version, out: &mut BytesMut) {
        put_packet(out, self.kind.packet(), |out| {
            out.put_u16(self.packet_id);
            let plain = self.properties.is_empty();
            if version.is_5() && (self.reason != ReasonCode::Success || !plain) {
                out.put_u8(self.reason as u8);
                if !plain {
                    self.properties.put(out);
                }
            }
        });
    }
}
