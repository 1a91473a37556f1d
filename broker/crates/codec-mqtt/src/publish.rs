//! PUBLISH (section 3.3).

use crate::field::{PacketReader, put_binary, put_string, put_variable, variable_len};
use crate::property::{put_subscription_identifier, subscription_identifier_len};
use crate::{
    DecodeError, MAX_STRING, PacketType, Properties, PropertyLocation, Qos, Version, topic,
};
use bytes::{BufMut, BytesMut};

const DUP: u8 = 0b1000;
const RETAIN: u8 = 0b0001;
/// Identifiers of properties that the server sets itself when it forwards a message.
const MESSAGE_EXPIRY: u8 = 0x02;
const TOPIC_ALIAS: u8 = 0x23;

/// An application message as a client sends it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Publish<'a> {
    /// The sender may have sent this packet before.
    pub dup: bool,
    /// QoS of this transmission.
    pub qos: Qos,
    /// The message replaces the retained message of its topic.
    pub retain: bool,
    /// Empty if the topic alias is used instead (5.0).
    pub topic: &'a str,
    /// 0 with QoS 0, which has no identifier [MQTT-2.2.1-2].
    pub packet_id: u16,
    /// Empty before 5.0.
    pub properties: Properties<'a>,
    /// Any bytes, possibly none; an empty retained message deletes the one of its topic.
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    pub(crate) fn decode(
        flags: u8,
        body: &'a [u8],
        version: Version,
    ) -> Result<Publish<'a>, DecodeError> {
        let qos = Qos::decode(flags >> 1 & 0b11)?;
        let dup = flags & DUP != 0;
        // [MQTT-3.3.1-2]
        if dup && qos == Qos::AtMostOnce {
            return Err(DecodeError::DupWithoutQos);
        }
        let mut from = PacketReader::new(body);
        let topic = from.name()?;
        let packet_id = match qos {
            Qos::AtMostOnce => 0,
            _ => from.packet_id()?,
        };
        let properties = match version {
            Version::V5 => Properties::read(&mut from, PropertyLocation::Publish)?,
            _ => Properties::default(),
        };
        // [MQTT-3.3.2-8]
        if properties.topic_alias == Some(0) {
            return Err(DecodeError::TopicAlias);
        }
        // [MQTT-3.3.2-2]
        match (topic, properties.topic_alias) {
            ("", Some(_)) => {}
            // Neither a name nor an alias is a Protocol Error (section 3.3.2.1).
            ("", None) if version.is_5() => return Err(DecodeError::PropertyValue(TOPIC_ALIAS)),
            (name, _) => topic::check_name(name)?,
        }
        // [MQTT-3.3.2-14]
        if let Some(response) = properties.response_topic {
            topic::check_name(response).map_err(|_| DecodeError::ResponseTopic)?;
        }
        Ok(Publish {
            dup,
            qos,
            retain: flags & RETAIN != 0,
            topic,
            packet_id,
            properties,
            payload: from.rest(),
        })
    }

    /// Appends the packet as a client sends it.
    pub fn encode(&self, version: Version, out: &mut BytesMut) {
        let mut body = BytesMut::new();
        put_string(&mut body, self.topic);
        if self.qos != Qos::AtMostOnce {
            body.put_u16(self.packet_id);
        }
        if version.is_5() {
            self.properties.put(&mut body);
        }
        out.put_u8(first_byte(self.dup, self.qos, self.retain));
        put_variable(out, body.len() + self.payload.len());
        out.put_slice(&body);
        out.put_slice(self.payload);
    }
}

fn first_byte(dup: bool, qos: Qos, retain: bool) -> u8 {
    let dup = if dup { DUP } else { 0 };
    PacketType::Publish.first_byte() | dup | (qos as u8) << 1 | u8::from(retain)
}

/// A message forwarded to a subscriber, without the payload. Most properties were encoded once,
/// when the message arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForwardedPublish<'a> {
    /// The subscriber may have received this packet before.
    pub dup: bool,
    /// QoS of this transmission.
    pub qos: Qos,
    /// The message was retained, or the subscription has Retain As Published.
    pub retain: bool,
    /// The topic name in UTF-8, at most [`MAX_STRING`] bytes. Empty if only `alias` is sent.
    pub topic: &'a [u8],
    /// Not used with QoS 0.
    pub packet_id: u16,
    /// The remaining expiry in seconds.
    pub message_expiry: Option<u32>,
    /// Topic alias of the connection to this subscriber.
    pub alias: Option<u16>,
    /// Identifiers of the subscriptions that match.
    pub subscription_identifiers: &'a [u32],
    /// Encoded properties that are forwarded unchanged ([`Properties::put_kept`]).
    pub kept: &'a [u8],
}

impl ForwardedPublish<'_> {
    fn properties_len(&self) -> usize {
        let identifiers = self.subscription_identifiers.iter();
        self.kept.len()
            + if self.message_expiry.is_some() { 5 } else { 0 }
            + if self.alias.is_some() { 3 } else { 0 }
            + identifiers
                .map(|&id| subscription_identifier_len(id))
                .sum::<usize>()
    }

    fn remaining_len(&self, version: Version, payload: usize) -> usize {
        let properties = match version {
            Version::V5 => {
                let len = self.properties_len();
                variable_len(len) + len
            }
            _ => 0,
        };
        let id = if self.qos == Qos::AtMostOnce { 0 } else { 2 };
        2 + self.topic.len() + id + properties + payload
    }

    /// Size in bytes of the whole packet with a payload of this size.
    pub fn wire_len(&self, version: Version, payload: usize) -> usize {
        let remaining = self.remaining_len(version, payload);
        1 + variable_len(remaining) + remaining
    }

    /// Appends everything before the payload, which must follow. The whole packet has at most
    /// [`crate::MAX_PACKET`] bytes.
    pub fn encode_head(&self, version: Version, payload: usize, out: &mut BytesMut) {
        debug_assert!(
            self.topic.len() <= MAX_STRING,
            "a topic of {} bytes",
            self.topic.len()
        );
        let remaining = self.remaining_len(version, payload);
        out.reserve(5 + remaining - payload);
        out.put_u8(first_byte(self.dup, self.qos, self.retain));
        put_variable(out, remaining);
        put_binary(out, self.topic);
        if self.qos != Qos::AtMostOnce {
            out.put_u16(self.packet_id);
        }
        if !version.is_5() {
            return;
        }
        put_variable(out, self.properties_len());
        if let Some(seconds) = self.message_expiry {
            out.put_u8(MESSAGE_EXPIRY);
            out.put_u32(seconds);
        }
        if let Some(alias) = self.alias {
            out.put_u8(TOPIC_ALIAS);
            out.put_u16(alias);
        }
        for &id in self.subscription_identifiers {
            put_subscription_identifier(out, id);
        }
        out.put_slice(self.kept);
    }
}
