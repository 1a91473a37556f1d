//! DISCONNECT and AUTH (sections 3.14 and 3.15).

use crate::field::PacketReader;
use crate::frame::put_packet;
use crate::{DecodeError, PacketType, Properties, PropertyLocation, ReasonCode, Version};
use bytes::{BufMut, BytesMut};

/// The last packet of a connection (section 3.14). Before 5.0 only clients send it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Disconnect<'a> {
    /// `Success` in 3.1 and 3.1.1, which have no reason codes.
    pub reason: ReasonCode,
    /// Empty before 5.0.
    pub properties: Properties<'a>,
}

/// Returns true for the reason codes that DISCONNECT may have (section 3.14.2.1).
fn is_disconnect_reason(reason: ReasonCode) -> bool {
    match reason {
        ReasonCode::Success | ReasonCode::DisconnectWithWill => true,
        ReasonCode::UnsupportedProtocolVersion
        | ReasonCode::ClientIdentifierNotValid
        | ReasonCode::BadUserNameOrPassword
        | ReasonCode::ServerUnavailable
        | ReasonCode::Banned
        | ReasonCode::BadAuthenticationMethod
        | ReasonCode::PacketIdentifierInUse
        | ReasonCode::PacketIdentifierNotFound => false,
        other => other.is_error(),
    }
}

impl<'a> Disconnect<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<Disconnect<'a>, DecodeError> {
        let mut from = PacketReader::new(body);
        let mut disconnect = Disconnect {
            reason: ReasonCode::Success,
            properties: Properties::default(),
        };
        if version.is_5() && !from.is_empty() {
            let code = from.u8()?;
            disconnect.reason = ReasonCode::from_byte(code)
                .filter(|reason| is_disconnect_reason(*reason))
                .ok_or(DecodeError::ReasonCode(code))?;
            if !from.is_empty() {
                disconnect.properties = Properties::read(&mut from, PropertyLocation::Disconnect)?;
            }
        }
        from.finish()?;
        Ok(disconnect)
    }

    /// Appends the packet in its shortest form.
    pub fn encode(&self, version: Version, out: &mut BytesMut) {
        put_packet(out, PacketType::Disconnect, |out| {
            if version.is_5() {
                put_reason(self.reason, &self.properties, out);
            }
        });
    }
}

/// A step of enhanced authentication (section 3.15); only in 5.0.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Auth<'a> {
    /// `Success`, `ContinueAuthentication` or `ReAuthenticate`.
    pub reason: ReasonCode,
    /// Authentication method and data.
    pub properties: Properties<'a>,
}

impl<'a> Auth<'a> {
    pub(crate) fn decode(body: &'a [u8]) -> Result<Auth<'a>, DecodeError> {
        let mut from = PacketReader::new(body);
        if from.is_empty() {
            return Ok(Auth {
                reason: ReasonCode::Success,
                properties: Properties::default(),
            });
        }
        let code = from.u8()?;
        let reason = match ReasonCode::from_byte(code) {
            Some(
                reason @ (ReasonCode::Success
                | ReasonCode::ContinueAuthentication
                | ReasonCode::ReAuthenticate),
            ) => reason,
            _ => return Err(DecodeError::ReasonCode(code)),
        };
        let properties = Properties::read(&mut from, PropertyLocation::Auth)?;
        from.finish()?;
        Ok(Auth { reason, properties })
    }

    /// Appends the packet.
    pub fn encode(&self, out: &mut BytesMut) {
        put_packet(out, PacketType::Auth, |out| {
            if self.reason != ReasonCode::Success || !self.properties.is_empty() {
                out.put_u8(self.reason as u8);
                self.properties.put(out);
            }
        });
    }
}

fn put_reason(reason: ReasonCode, properties: &Properties<'_>, out: &mut BytesMut) {
    let plain = properties.is_empty();
    if reason != ReasonCode::Success || !plain {
        out.put_u8(reason as u8);
        if !plain {
            properties.put(out);
        }
    }
}
