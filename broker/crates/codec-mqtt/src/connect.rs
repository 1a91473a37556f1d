//! CONNECT and CONNACK (sections 3.1 and 3.2).

use crate::field::{PacketReader, put_binary, put_string};
use crate::frame::put_packet;
use crate::{
    DecodeError, PacketType, Properties, PropertyLocation, Qos, ReasonCode, ReturnCode, Version,
    topic,
};
use bytes::{BufMut, BytesMut};

const USER_NAME: u8 = 0x80;
const PASSWORD: u8 = 0x40;
const WILL_RETAIN: u8 = 0x20;
const WILL: u8 = 0x04;
const CLEAN_START: u8 = 0x02;
const RESERVED: u8 = 0x01;

/// The first packet of a client (section 3.1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Connect<'a> {
    /// The protocol level, which decides how every later packet is read.
    pub version: Version,
    /// Clean Session in 3.1 and 3.1.1, where it also says that the session ends with the connection.
    pub clean_start: bool,
    /// In seconds; 0 disables it.
    pub keep_alive: u16,
    /// Empty before 5.0.
    pub properties: Properties<'a>,
    /// Empty if the server must assign one.
    pub client_id: &'a str,
    /// Published by the server if the connection ends without DISCONNECT.
    pub will: Option<Will<'a>>,
    /// User name, in a form that depends on the server.
    pub user_name: Option<&'a str>,
    /// Any bytes; only together with a user name before 5.0.
    pub password: Option<&'a [u8]>,
}

/// A message that the server publishes when the connection ends without DISCONNECT.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Will<'a> {
    /// QoS with which it is published.
    pub qos: Qos,
    /// It replaces the retained message of its topic.
    pub retain: bool,
    /// Will properties; empty before 5.0.
    pub properties: Properties<'a>,
    /// Topic name, already validated.
    pub topic: &'a str,
    /// Any bytes, possibly none.
    pub payload: &'a [u8],
}

impl<'a> Connect<'a> {
    pub(crate) fn decode(body: &'a [u8]) -> Result<Connect<'a>, DecodeError> {
        let mut from = PacketReader::new(body);
        let version = version(&mut from)?;
        let flags = from.u8()?;
        // [MQTT-3.1.2-3]; 3.1 does not define the bit.
        if flags & RESERVED != 0 && version != Version::V31 {
            return Err(DecodeError::ReservedBit);
        }
        // [MQTT-3.1.2-11], [MQTT-3.1.2-13]
        if flags & WILL == 0 && flags & (WILL_RETAIN | 0x18) != 0 {
            return Err(DecodeError::WillFlags);
        }
        // 3.1.1: [MQTT-3.1.2-22]; 5.0 allows it.
        if !version.is_5() && flags & PASSWORD != 0 && flags & USER_NAME == 0 {
            return Err(DecodeError::PasswordWithoutUser);
        }
        let keep_alive = from.u16()?;
        let properties = match version {
            Version::V5 => Properties::read(&mut from, PropertyLocation::Connect)?,
            _ => Properties::default(),
        };
        let client_id = from.name().map_err(|error| match error {
            DecodeError::UnwantedCharacter => DecodeError::ClientId,
            other => other,
        })?;
        let will = match flags & WILL {
            0 => None,
            _ => Some(Will::read(&mut from, flags, version)?),
        };
        let user_name = match flags & USER_NAME {
            0 => None,
            _ => Some(from.name()?),
        };
        let password = match flags & PASSWORD {
            0 => None,
            _ => Some(from.binary()?),
        };
        from.finish()?;
        Ok(Connect {
            version,
            clean_start: flags & CLEAN_START != 0,
            keep_alive,
            properties,
            client_id,
            will,
            user_name,
            password,
        })
    }

    /// Appends the packet in the form of its version.
    pub fn encode(&self, out: &mut BytesMut) {
        put_packet(out, PacketType::Connect, |out| {
            put_string(out, protocol_name(self.version));
            out.put_u8(self.version as u8);
            out.put_u8(self.flags());
            out.put_u16(self.keep_alive);
            if self.version.is_5() {
                self.properties.put(out);
            }
            put_string(out, self.client_id);
            if let Some(will) = &self.will {
                if self.version.is_5() {
                    will.properties.put(out);
                }
                put_string(out, will.topic);
                put_binary(out, will.payload);
            }
            if let Some(name) = self.user_name {
                put_string(out, name);
            }
            if let Some(password) = self.password {
                put_binary(out, password);
            }
        });
    }

    fn flags(&self) -> u8 {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        let will = self.will.as_ref().map_or(0, |will| {
            WILL | flag(will.retain, WILL_RETAIN) | (will.qos as u8) << 3
        });
        will | flag(self.clean_start, CLEAN_START)
            | flag(self.user_name.is_some(), USER_NAME)
            | flag(self.password.is_some(), PASSWORD)
    }
}

impl<'a> Will<'a> {
    fn read(
        from: &mut PacketReader<'a>,
        flags: u8,
        version: Version,
    ) -> Result<Will<'a>, DecodeError> {
        let will = Will {
            qos: Qos::decode(flags >> 3 & 0b11)?,
            retain: flags & WILL_RETAIN != 0,
            properties: match version {
                Version::V5 => Properties::read(from, PropertyLocation::Will)?,
                _ => Properties::default(),
            },
            topic: from.name()?,
            payload: from.binary()?,
        };
        if will.topic.is_empty() {
            return Err(DecodeError::NoTopic);
        }
        topic::check_name(will.topic)?;
        if let Some(response) = will.properties.response_topic {
            topic::check_name(response).map_err(|_| DecodeError::ResponseTopic)?;
        }
        Ok(will)
    }
}

fn protocol_name(version: Version) -> &'static str {
    match version {
        Version::V31 => "MQIsdp",
        _ => "MQTT",
    }
}

/// Removes Mosquitto's bridge flag, the highest bit of the levels of 3.1 and 3.1.1.
fn without_bridge_flag(level: u8) -> u8 {
    match level {
        0x83 | 0x84 => level & 0x7F,
        level => level,
    }
}

/// Returns true if the body of a CONNECT has the bridge flag: the client is another broker, which
/// wants neither its own messages back nor the retain flag removed.
pub fn is_bridge(body: &[u8]) -> bool {
    let mut from = PacketReader::new(body);
    let level = from.binary().and_then(|_| from.u8());
    level.is_ok_and(|level| level != without_bridge_flag(level))
}

fn version(from: &mut PacketReader<'_>) -> Result<Version, DecodeError> {
    let name = from.binary()?;
    if !matches!(name, b"MQTT" | b"MQIsdp") {
        return Err(DecodeError::ProtocolName);
    }
    let level = from.u8()?;
    match Version::from_level(without_bridge_flag(level)) {
        Some(version) if name == protocol_name(version).as_bytes() => Ok(version),
        _ => Err(DecodeError::ProtocolLevel(level)),
    }
}

/// The server's answer to CONNECT (section 3.2).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConnAck<'a> {
    /// The server has the session of an earlier connection; false if it refuses the connection.
    pub session_present: bool,
    /// Clients of 3.1 and 3.1.1 get the nearest return code.
    pub reason: ReasonCode,
    /// Not sent before 5.0.
    pub properties: Properties<'a>,
}

impl<'a> ConnAck<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<ConnAck<'a>, DecodeError> {
        let mut from = PacketReader::new(body);
        let flags = from.u8()?;
        // [MQTT-3.2.2-1]
        if flags & !1 != 0 {
            return Err(DecodeError::ReservedBit);
        }
        let code = from.u8()?;
        let (reason, properties) = match version {
            Version::V5 => (
                ReasonCode::from_byte(code),
                Properties::read(&mut from, PropertyLocation::ConnAck)?,
            ),
            _ => (
                ReturnCode::from_byte(code).map(ReturnCode::reason),
                Properties::default(),
            ),
        };
        from.finish()?;
        Ok(ConnAck {
            session_present: flags & 1 != 0,
            reason: reason.ok_or(DecodeError::ReasonCode(code))?,
            properties,
        })
    }

    /// Appends the packet in the form of a version.
    pub fn encode(&self, version: Version, out: &mut BytesMut) {
        put_packet(out, PacketType::ConnAck, |out| {
            // The flag came with 3.1.1; the byte was reserved before.
            let present = self.session_present && version != Version::V31;
            out.put_u8(present.into());
            match version {
                Version::V5 => {
                    out.put_u8(self.reason as u8);
                    self.properties.put(out);
                }
                _ => out.put_u8(self.reason.return_code() as u8),
            }
        });
    }
}
