//! Properties of MQTT 5.0 (section 2.2.2): their identifiers, types and the packets that may have
//! them.

use crate::DecodeError;
use crate::field::{
    MAX_VARIABLE, PacketReader, put_binary, put_measured, put_string, put_variable, variable_len,
};
use bytes::{BufMut, BytesMut};
use std::num::{NonZeroU16, NonZeroU32};

/// The packet, or part of a packet, that contains properties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum PropertyLocation {
    /// CONNECT.
    Connect = 1,
    /// The will properties within CONNECT.
    Will = 2,
    /// CONNACK.
    ConnAck = 4,
    /// PUBLISH.
    Publish = 8,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK and UNSUBACK.
    Ack = 16,
    /// SUBSCRIBE.
    Subscribe = 32,
    /// UNSUBSCRIBE.
    Unsubscribe = 64,
    /// DISCONNECT.
    Disconnect = 128,
    /// AUTH.
    Auth = 256,
}

const SUBSCRIPTION_IDENTIFIER: u8 = 0x0B;
const USER_PROPERTY: u8 = 0x26;

/// The value of a property.
trait PropertyValue<'a>: Sized {
    /// Returns `None` for a value out of range.
    fn read(from: &mut PacketReader<'a>) -> Result<Option<Self>, DecodeError>;
    fn write(&self, out: &mut BytesMut);
}

impl<'a> PropertyValue<'a> for bool {
    fn read(from: &mut PacketReader<'a>) -> Result<Option<bool>, DecodeError> {
        Ok(match from.u8()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        })
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u8((*self).into());
    }
}

impl<'a> PropertyValue<'a> for u16 {
    fn read(from: &mut PacketReader<'a>) -> Result<Option<u16>, DecodeError> {
        from.u16().map(Some)
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u16(*self);
    }
}

impl<'a> PropertyValue<'a> for u32 {
    fn read(from: &mut PacketReader<'a>) -> Result<Option<u32>, DecodeError> {
        from.u32().map(Some)
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u32(*self);
    }
}

impl<'a> PropertyValue<'a> for NonZeroU16 {
    fn read(from: &mut PacketReader<'a>) -> Result<Option<NonZeroU16>, DecodeError> {
        from.u16().map(NonZeroU16::new)
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u16(self.get());
    }
}

impl<'a> PropertyValue<'a> for NonZeroU32 {
    fn read(from: &mut PacketReader<'a>) -> Result<Option<NonZeroU32>, DecodeError> {
        from.u32().map(NonZeroU32::new)
    }
    fn write(&self, out: &mut BytesMut) {
        out.put_u32(self.get());
    }
}

impl<'a> PropertyValue<'a> for &'a str {
    fn read(from: &mut PacketReader<'a>) -> Result<Option<&'a str>, DecodeError> {
        from.string().map(Some)
    }
    fn write(&self, out: &mut BytesMut) {
        put_string(out, self);
    }
}

impl<'a> PropertyValue<'a> for &'a [u8] {
    fn read(from: &mut PacketReader<'a>) -> Result<Option<&'a [u8]>, DecodeError> {
        from.binary().map(Some)
    }
    fn write(&self, out: &mut BytesMut) {
        put_binary(out, self);
    }
}

macro_rules! properties {
    ($($(#[$doc:meta])* $id:literal $name:ident: $ty:ty, $($place:ident)|+;)*) => {
        /// A packet's properties, borrowed from it.
        #[derive(Clone, Copy, Debug, Default)]
        pub struct Properties<'a> {
            $($(#[$doc])* pub $name: Option<$ty>,)*
            /// Those that may come more than once: user properties and subscription identifiers. What was decoded has all
            /// properties here; of these bytes only the two kinds are looked at.
            pub repeated: RepeatedProperties<'a>,
        }

        impl<'a> Properties<'a> {
            /// Reads a property that may occur only once. Returns false if no such property has
            /// this identifier.
            fn take_single(&mut self, id: u8, place: PropertyLocation, from: &mut PacketReader<'a>) -> Result<bool, DecodeError> {
                match id {
                    $($id => {
                        if (0 $(| PropertyLocation::$place as u16)+) & place as u16 == 0 {
                            return Err(DecodeError::PropertyMisplaced(id));
                        }
                        if self.$name.is_some() {
                            return Err(DecodeError::PropertyTwice(id));
                        }
                        let value = <$ty>::read(from)?;
                        self.$name = Some(value.ok_or(DecodeError::PropertyValue(id))?);
                    })*
                    _ => return Ok(false),
                }
                Ok(true)
            }

            fn put_singles(&self, out: &mut BytesMut) {
                $(if let Some(value) = &self.$name {
                    out.put_u8($id);
                    value.write(out);
                })*
            }

            fn has_no_singles(&self) -> bool {
                true $(&& self.$name.is_none())*
            }

            fn singles_equal(&self, other: &Properties<'_>) -> bool {
                true $(&& self.$name == other.$name)*
            }

            /// Skips a property that has been validated.
            fn skip_single(id: u8, from: &mut PacketReader<'a>) -> Result<(), DecodeError> {
                match id {
                    $($id => <$ty>::read(from).map(|_| ()),)*
                    _ => Err(DecodeError::UnknownProperty(id)),
                }
            }
        }
    };
}

properties! {
    /// The payload is UTF-8.
    0x01 payload_format: bool, Publish | Will;
    /// Seconds.
    0x02 message_expiry: u32, Publish | Will;
    /// MIME type, or what the application agreed on.
    0x03 content_type: &'a str, Publish | Will;
    /// Topic name for the response to a request.
    0x08 response_topic: &'a str, Publish | Will;
    /// Identifies the request that a response belongs to.
    0x09 correlation_data: &'a [u8], Publish | Will;
    /// In seconds; `u32::MAX`: never.
    0x11 session_expiry: u32, Connect | ConnAck | Disconnect;
    /// The client id that the server assigned.
    0x12 assigned_client_id: &'a str, ConnAck;
    /// Seconds.
    0x13 server_keep_alive: u16, ConnAck;
    /// Name of the method of enhanced authentication.
    0x15 authentication_method: &'a str, Connect | ConnAck | Auth;
    /// Data of the authentication method.
    0x16 authentication_data: &'a [u8], Connect | ConnAck | Auth;
    /// False: reason strings and user properties only in PUBLISH, CONNACK and DISCONNECT.
    0x17 request_problem_information: bool, Connect;
    /// Seconds.
    0x18 will_delay: u32, Will;
    /// The client asks for `response_information`.
    0x19 request_response_information: bool, Connect;
    /// Basis of the response topics of this client.
    0x1A response_information: &'a str, ConnAck;
    /// Another server to use.
    0x1C server_reference: &'a str, ConnAck | Disconnect;
    /// Human-readable explanation.
    0x1F reason_string: &'a str, ConnAck | Ack | Disconnect | Auth;
    /// Maximum number of QoS 1 and 2 messages in flight; absent: 65,535.
    0x21 receive_maximum: NonZeroU16, Connect | ConnAck;
    /// The highest topic alias that is accepted; absent: 0, none.
    0x22 topic_alias_maximum: u16, Connect | ConnAck;
    /// 0 is valid here; the reader of PUBLISH rejects it with a reason code of its own.
    0x23 topic_alias: u16, Publish;
    /// False: 0, true: 1; absent: 2.
    0x24 maximum_qos: bool, ConnAck;
    /// Absent: true.
    0x25 retain_available: bool, ConnAck;
    /// Bytes.
    0x27 maximum_packet_size: NonZeroU32, Connect | ConnAck;
    /// Absent: true.
    0x28 wildcard_subscription_available: bool, ConnAck;
    /// Absent: true.
    0x29 subscription_identifier_available: bool, ConnAck;
    /// Absent: true.
    0x2A shared_subscription_available: bool, ConnAck;
}

impl PartialEq for Properties<'_> {
    fn eq(&self, other: &Properties<'_>) -> bool {
        self.singles_equal(other)
            && self.user_properties().eq(other.user_properties())
            && self
                .subscription_identifiers()
                .eq(other.subscription_identifiers())
    }
}

impl<'a> Properties<'a> {
    /// Reads the length and the properties.
    pub(crate) fn read(
        from: &mut PacketReader<'a>,
        place: PropertyLocation,
    ) -> Result<Properties<'a>, DecodeError> {
        let len = from.variable()?;
        Properties::decode(from.take(len)?, place)
    }

    /// Decodes properties without the length in front.
    pub fn decode(
        section: &'a [u8],
        place: PropertyLocation,
    ) -> Result<Properties<'a>, DecodeError> {
        let mut properties = Properties {
            repeated: RepeatedProperties(section),
            ..Properties::default()
        };
        let mut from = PacketReader::new(section);
        let mut identified = false;
        while !from.is_empty() {
            // Identifiers are variable byte integers; all known ones have one byte.
            let id = u8::try_from(from.variable()?).map_err(|_| DecodeError::LengthEncoding)?;
            match id {
                USER_PROPERTY => {
                    from.string()?;
                    from.string()?;
                }
                SUBSCRIPTION_IDENTIFIER => {
                    if !matches!(
                        place,
                        PropertyLocation::Publish | PropertyLocation::Subscribe
                    ) {
                        return Err(DecodeError::PropertyMisplaced(id));
                    }
                    if identified && place == PropertyLocation::Subscribe {
                        return Err(DecodeError::PropertyTwice(id));
                    }
                    identified = true;
                    if from.variable()? == 0 {
                        return Err(DecodeError::PropertyValue(id));
                    }
                }
                id => {
                    if !properties.take_single(id, place, &mut from)? {
                        return Err(DecodeError::UnknownProperty(id));
                    }
                }
            }
        }
        if properties.authentication_data.is_some() && properties.authentication_method.is_none() {
            return Err(DecodeError::AuthenticationMethod);
        }
        Ok(properties)
    }

    /// Appends the properties with their length in front.
    pub(crate) fn put(&self, out: &mut BytesMut) {
        put_measured(out, |out| {
            self.put_singles(out);
            self.put_identifiers(out);
            self.put_user(out);
        });
    }

    fn put_identifiers(&self, out: &mut BytesMut) {
        for id in self.subscription_identifiers() {
            put_subscription_identifier(out, id);
        }
    }

    fn put_user(&self, out: &mut BytesMut) {
        for (name, value) in self.user_properties() {
            put_user_property(out, name, value);
        }
    }

    /// Appends the properties that a server forwards unchanged (sections 3.3.2.3.2 to 3.3.2.3.9),
    /// without a length: for [`crate::ForwardedPublish::kept`].
    pub fn put_kept(&self, out: &mut BytesMut) {
        let kept = Properties {
            payload_format: self.payload_format,
            content_type: self.content_type,
            response_topic: self.response_topic,
            correlation_data: self.correlation_data,
            ..Properties::default()
        };
        kept.put_singles(out);
        self.put_user(out);
    }

    /// Returns true if there are no properties.
    pub(crate) fn is_empty(&self) -> bool {
        self.has_no_singles() && self.repeated.walk().next().is_none()
    }

    /// User properties, in the order of the packet.
    pub fn user_properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.repeated.walk().filter_map(|item| match item {
            RepeatedProperty::User(name, value) => Some((name, value)),
            RepeatedProperty::Subscription(_) => None,
        })
    }

    /// Subscription identifiers, in the order of the packet.
    pub fn subscription_identifiers(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.repeated.walk().filter_map(|item| match item {
            RepeatedProperty::Subscription(id) => Some(id),
            RepeatedProperty::User(..) => None,
        })
    }
}

/// Encoded properties of which only user properties and subscription identifiers are read.
#[derive(Clone, Copy, Debug, Default)]
pub struct RepeatedProperties<'a>(pub &'a [u8]);

enum RepeatedProperty<'a> {
    User(&'a str, &'a str),
    Subscription(u32),
}

impl<'a> RepeatedProperties<'a> {
    fn walk(self) -> impl Iterator<Item = RepeatedProperty<'a>> + use<'a> {
        let mut from = PacketReader::new(self.0);
        std::iter::from_fn(move || next_repeated(&mut from).ok().flatten())
    }
}

fn next_repeated<'a>(
    from: &mut PacketReader<'a>,
) -> Result<Option<RepeatedProperty<'a>>, DecodeError> {
    while !from.is_empty() {
        match from.u8()? {
            USER_PROPERTY => {
                return Ok(Some(RepeatedProperty::User(from.string()?, from.string()?)));
            }
            SUBSCRIPTION_IDENTIFIER => {
                let id = from.variable()?;
                return Ok(Some(RepeatedProperty::Subscription(id as u32)));
            }
            id => Properties::skip_single(id, from)?,
        }
    }
    Ok(None)
}

/// Appends a user property to [`Properties::repeated`].
pub fn put_user_property(out: &mut BytesMut, name: &str, value: &str) {
    out.put_u8(USER_PROPERTY);
    put_string(out, name);
    put_string(out, value);
}

/// Appends a subscription identifier (1 to 268,435,455) to [`Properties::repeated`].
pub fn put_subscription_identifier(out: &mut BytesMut, id: u32) {
    out.put_u8(SUBSCRIPTION_IDENTIFIER);
    put_variable(out, id as usize & MAX_VARIABLE);
}

/// The size of the output of [`put_subscription_identifier`] in bytes.
pub(crate) fn subscription_identifier_len(id: u32) -> usize {
    1 + variable_len(id as usize & MAX_VARIABLE)
}
