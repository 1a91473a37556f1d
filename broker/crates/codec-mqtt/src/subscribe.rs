//! SUBSCRIBE, SUBACK, UNSUBSCRIBE and UNSUBACK (sections 3.8 to 3.11).

use crate::field::{PacketReader, put_string};
use crate::frame::put_packet;
use crate::{DecodeError, PacketType, Properties, PropertyLocation, Qos, Version, topic};
use bytes::{BufMut, BytesMut};

const NO_LOCAL: u8 = 0x04;
const RETAIN_AS_PUBLISHED: u8 = 0x08;

/// When retained messages are sent (section 3.3.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RetainHandling {
    /// On every SUBSCRIBE.
    #[default]
    Send = 0,
    /// Only if the subscription did not exist.
    SendIfNew = 1,
    /// Never.
    DoNotSend = 2,
}

/// Subscription options (section 3.8.3.1). Clients of 3.1 and 3.1.1 send only `qos`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct SubscribeOptions {
    /// The maximum QoS of deliveries.
    pub qos: Qos,
    /// Messages of the same client id are not delivered.
    pub no_local: bool,
    /// Deliveries keep the retain flag of the publisher.
    pub retain_as_published: bool,
    /// When retained messages are sent.
    pub retain_handling: RetainHandling,
}

impl SubscribeOptions {
    /// Encodes the options as in 5.0.
    pub fn to_byte(self) -> u8 {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        self.qos as u8
            | flag(self.no_local, NO_LOCAL)
            | flag(self.retain_as_published, RETAIN_AS_PUBLISHED)
            | (self.retain_handling as u8) << 4
    }

    /// [MQTT-3.8.3-5]; 3.1.1: [MQTT-3.8.3-4] (printed as 3-8.3-4).
    pub fn from_byte(byte: u8, version: Version) -> Result<SubscribeOptions, DecodeError> {
        let reserved = if version.is_5() { 0xC0 } else { 0xFC };
        if byte & reserved != 0 {
            return Err(DecodeError::ReservedBit);
        }
        Ok(SubscribeOptions {
            qos: Qos::decode(byte & 0b11)?,
            no_local: byte & NO_LOCAL != 0,
            retain_as_published: byte & RETAIN_AS_PUBLISHED != 0,
            retain_handling: match byte >> 4 & 0b11 {
                0 => RetainHandling::Send,
                1 => RetainHandling::SendIfNew,
                2 => RetainHandling::DoNotSend,
                _ => return Err(DecodeError::RetainHandling),
            },
        })
    }
}

/// A request for subscriptions (section 3.8).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Subscribe<'a> {
    /// Never 0.
    pub packet_id: u16,
    /// Empty before 5.0.
    pub properties: Properties<'a>,
    /// At least one.
    pub filters: SubscriptionFilters<'a>,
}

/// Topic filters with their options in encoded form. They are valid strings; the session checks
/// whether they are valid filters, because each gets a reason code of its own in SUBACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubscriptionFilters<'a> {
    raw: &'a [u8],
    version: Version,
}

impl<'a> SubscriptionFilters<'a> {
    /// Wraps filters written by [`SubscriptionFilters::put`], to encode a packet.
    pub fn new(raw: &'a [u8], version: Version) -> SubscriptionFilters<'a> {
        SubscriptionFilters { raw, version }
    }

    /// Appends an encoded filter for [`SubscriptionFilters::new`].
    pub fn put(out: &mut BytesMut, filter: &str, options: SubscribeOptions) {
        put_string(out, filter);
        out.put_u8(options.to_byte());
    }

    /// The filters, in the order of the packet.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, SubscribeOptions)> + use<'a> {
        let mut from = PacketReader::new(self.raw);
        let version = self.version;
        std::iter::from_fn(move || next_filter(&mut from, version).ok())
    }
}

fn next_filter<'a>(
    from: &mut PacketReader<'a>,
    version: Version,
) -> Result<(&'a str, SubscribeOptions), DecodeError> {
    let filter = from.name()?;
    let options = SubscribeOptions::from_byte(from.u8()?, version)?;
    Ok((filter, options))
}

fn subscription_packet_id(from: &mut PacketReader<'_>) -> Result<u16, DecodeError> {
    from.packet_id().map_err(|error| match error {
        DecodeError::PacketId => DecodeError::SubscriptionPacketId,
        other => other,
    })
}

impl<'a> Subscribe<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<Subscribe<'a>, DecodeError> {
        let mut from = PacketReader::new(body);
        let packet_id = subscription_packet_id(&mut from)?;
        let properties = match version {
            Version::V5 => Properties::read(&mut from, PropertyLocation::Subscribe)?,
            _ => Properties::default(),
        };
        let filters = SubscriptionFilters {
            raw: from.rest(),
            version,
        };
        // [MQTT-3.8.3-2]
        if from.is_empty() {
            return Err(DecodeError::NoFilter);
        }
        while !from.is_empty() {
            let (filter, options) = next_filter(&mut from, version)?;
            // [MQTT-3.8.3-4]
            if options.no_local && filter.starts_with(topic::SHARE) {
                return Err(DecodeError::NoLocalShared);
            }
        }
        Ok(Subscribe {
            packet_id,
            properties,
            filters,
        })
    }

    /// Appends the packet in the form of a version.
    pub fn encode(&self, version: Version, out: &mut BytesMut) {
        put_packet(out, PacketType::Subscribe, |out| {
            out.put_u16(self.packet_id);
            if version.is_5() {
                self.properties.put(out);
            }
            out.put_slice(self.filters.raw);
        });
    }
}

/// The answer to SUBSCRIBE (section 3.9).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SubAck<'a> {
    /// The packet identifier of the SUBSCRIBE.
    pub packet_id: u16,
    /// Not sent before 5.0.
    pub properties: Properties<'a>,
    /// One reason code per filter, in order [MQTT-3.9.3-1]; in 3.1.1 0x00, 0x01, 0x02 or 0x80.
    pub reasons: &'a [u8],
}

impl<'a> SubAck<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<SubAck<'a>, DecodeError> {
        let mut from = PacketReader::new(body);
        Ok(SubAck {
            packet_id: from.packet_id()?,
            properties: match version {
                Version::V5 => Properties::read(&mut from, PropertyLocation::Ack)?,
                _ => Properties::default(),
            },
            reasons: from.rest(),
        })
    }

    /// Appends the packet in the form of a version.
    pub fn encode(&self, version: Version, out: &mut BytesMut) {
        put_packet(out, PacketType::SubAck, |out| {
            out.put_u16(self.packet_id);
            if version.is_5() {
                self.properties.put(out);
            }
            out.put_slice(self.reasons);
        });
    }
}

/// A request to end subscriptions (section 3.10).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Unsubscribe<'a> {
    /// Never 0.
    pub packet_id: u16,
    /// Empty before 5.0.
    pub properties: Properties<'a>,
    /// At least one.
    pub filters: UnsubscribeFilters<'a>,
}

/// Topic filters in encoded form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsubscribeFilters<'a>(&'a [u8]);

impl<'a> UnsubscribeFilters<'a> {
    /// Wraps filters written by [`UnsubscribeFilters::put`], to encode a packet.
    pub fn new(raw: &'a [u8]) -> UnsubscribeFilters<'a> {
        UnsubscribeFilters(raw)
    }

    /// Appends an encoded filter for [`UnsubscribeFilters::new`].
    pub fn put(out: &mut BytesMut, filter: &str) {
        put_string(out, filter);
    }

    /// The filters, in the order of the packet.
    pub fn iter(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut from = PacketReader::new(self.0);
        std::iter::from_fn(move || from.name().ok())
    }
}

impl<'a> Unsubscribe<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<Unsubscribe<'a>, DecodeError> {
        let mut from = PacketReader::new(body);
        let packet_id = subscription_packet_id(&mut from)?;
        let properties = match version {
            Version::V5 => Properties::read(&mut from, PropertyLocation::Unsubscribe)?,
            _ => Properties::default(),
        };
        let filters = UnsubscribeFilters(from.rest());
        // [MQTT-3.10.3-2]
        if from.is_empty() {
            return Err(DecodeError::NoFilter);
        }
        while !from.is_empty() {
            from.name()?;
        }
        Ok(Unsubscribe {
            packet_id,
            properties,
            filters,
        })
    }

    /// Appends the packet in the form of a version.
    pub fn encode(&self, version: Version, out: &mut BytesMut) {
        put_packet(out, PacketType::Unsubscribe, |out| {
            out.put_u16(self.packet_id);
            if version.is_5() {
                self.properties.put(out);
            }
            out.put_slice(self.filters.0);
        });
    }
}

/// The answer to UNSUBSCRIBE (section 3.11).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnsubAck<'a> {
    /// The packet identifier of the UNSUBSCRIBE.
    pub packet_id: u16,
    /// Not sent before 5.0.
    pub properties: Properties<'a>,
    /// One reason code per filter, in order [MQTT-3.11.3-1]; none in 3.1 and 3.1.1.
    pub reasons: &'a [u8],
}

impl<'a> UnsubAck<'a> {
    pub(crate) fn decode(body: &'a [u8], version: Version) -> Result<UnsubAck<'a>, DecodeError> {
        let mut from = PacketReader::new(body);
        let packet_id = from.packet_id()?;
        if !version.is_5() {
            from.finish()?;
            return Ok(UnsubAck {
                packet_id,
                properties: Properties::default(),
                reasons: &[],
            });
        }
        Ok(UnsubAck {
            packet_id,
            properties: Properties::read(&mut from, PropertyLocation::Ack)?,
            reasons: from.rest(),
        })
    }

    /// Appends the packet in the form of a version.
    pub fn encode(&self, version: Version, out: &mut BytesMut) {
        put_packet(out, PacketType::UnsubAck, |out| {
            out.put_u16(self.packet_id);
            if version.is_5() {
                self.properties.put(out);
                out.put_slice(self.reasons);
            }
        });
    }
}
