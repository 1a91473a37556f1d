//! Fields of commands: numbers, texts, byte strings and lists.

use crate::{CommandKey, DecodeError, Reason};
use bytes::{BufMut, BytesMut};
use std::fmt;

/// Most items of a list, except for the messages of a publish and the ids of a confirm, which the frame size limits.
pub const MAX_ITEMS: u32 = 65_536;
/// Longest text in bytes. Writers truncate longer ones at a character boundary.
pub const MAX_TEXT_BYTES: usize = i16::MAX as usize;

/// Reads the fields of a command from front to back.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    pub rest: &'a [u8],
    pub command: CommandKey,
    pub version: u16,
    /// Name of the current field, for errors.
    pub field: &'static str,
}

type Decoded<T> = Result<T, DecodeError>;

impl<'a> Reader<'a> {
    pub(crate) fn error(&self, reason: Reason) -> DecodeError {
        DecodeError::Field {
            command: self.command,
            field: self.field,
            reason,
        }
    }

    pub(crate) fn named<T: Field<'a>>(&mut self, field: &'static str) -> Decoded<T> {
        self.field = field;
        T::get(self)
    }

    pub(crate) fn take(&mut self, len: usize) -> Decoded<&'a [u8]> {
        match self.rest.split_at_checked(len) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(self.error(Reason::Truncated)),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        match self.rest.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(*taken)
            }
            None => Err(self.error(Reason::Truncated)),
        }
    }

    /// The length of a text; `None` if the text is null.
    fn text_len(&mut self) -> Decoded<Option<usize>> {
        match i16::from_be_bytes(self.array()?) {
            -1 => Ok(None),
            len => match usize::try_from(len) {
                Ok(len) => Ok(Some(len)),
                Err(_) => Err(self.error(Reason::NegativeLength)),
            },
        }
    }

    /// The number of items of a list of which each takes at least `min_len` bytes.
    pub(crate) fn count(&mut self, min_len: usize, limit: u32) -> Decoded<u32> {
        let count = u32::from_be_bytes(self.array()?);
        if count > limit {
            return Err(self.error(Reason::TooMany));
        }
        let least = (count as usize).checked_mul(min_len);
        match least.is_some_and(|least| least <= self.rest.len()) {
            true => Ok(count),
            false => Err(self.error(Reason::Truncated)),
        }
    }

    pub(crate) fn end(&self) -> Decoded<()> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(self.error(Reason::Trailing)),
        }
    }
}

/// A field with one encoding.
pub(crate) trait Field<'a>: Sized {
    fn get(from: &mut Reader<'a>) -> Decoded<Self>;
    fn put(&self, out: &mut BytesMut);
}

macro_rules! integers {
    ($($type:ty, $put:ident);*) => { $(
        impl Field<'_> for $type {
            fn get(from: &mut Reader<'_>) -> Decoded<Self> {
                Ok(<$type>::from_be_bytes(from.array()?))
            }

            fn put(&self, out: &mut BytesMut) {
                out.$put(*self);
            }
        }
    )* };
}
integers!(u8, put_u8; u16, put_u16; u32, put_u32; u64, put_u64; i64, put_i64);

impl Field<'_> for bool {
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        match from.array()? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(from.error(Reason::Undefined)),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u8(u8::from(*self));
    }
}

impl<'a> Field<'a> for &'a str {
    /// A null text is read as an empty one.
    fn get(from: &mut Reader<'a>) -> Decoded<Self> {
        let len = from.text_len()?.unwrap_or(0);
        let bytes = from.take(len)?;
        std::str::from_utf8(bytes).map_err(|_| from.error(Reason::Utf8))
    }

    fn put(&self, out: &mut BytesMut) {
        let end = self.floor_char_boundary(MAX_TEXT_BYTES);
        out.put_u16(end as u16);
        out.put_slice(&self.as_bytes()[..end]);
    }
}

/// A byte string with a length of four bytes; `None` is null.
impl<'a> Field<'a> for Option<&'a [u8]> {
    fn get(from: &mut Reader<'a>) -> Decoded<Self> {
        match i32::from_be_bytes(from.array()?) {
            -1 => Ok(None),
            len => match usize::try_from(len) {
                Ok(len) => from.take(len).map(Some),
                Err(_) => Err(from.error(Reason::NegativeLength)),
            },
        }
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            Some(bytes) => {
                out.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
                out.put_slice(bytes);
            }
            None => out.put_i32(-1),
        }
    }
}

/// A value that is missing if the frame ends before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailing<T>(pub T);

impl<'a> Field<'a> for Trailing<Option<&'a [u8]>> {
    fn get(from: &mut Reader<'a>) -> Decoded<Self> {
        match from.rest.is_empty() {
            true => Ok(Trailing(None)),
            false => <Option<&'a [u8]>>::get(from).map(Trailing),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        if self.0.is_some() {
            self.0.put(out);
        }
    }
}

impl<'a, T: Item<'a>> Field<'a> for Trailing<List<'a, T>> {
    fn get(from: &mut Reader<'a>) -> Decoded<Self> {
        match from.rest.is_empty() {
            true => Ok(Trailing(List(Items::Slice(Default::default())))),
            false => List::get(from).map(Trailing),
        }
    }

    fn put(&self, out: &mut BytesMut) {
        if !self.0.is_empty() {
            self.0.put(out);
        }
    }
}

/// The bytes up to the end of the frame.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Remainder<'a>(pub &'a [u8]);

impl fmt::Debug for Remainder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.0)
    }
}

impl<'a> Field<'a> for Remainder<'a> {
    fn get(from: &mut Reader<'a>) -> Decoded<Self> {
        Ok(Remainder(std::mem::take(&mut from.rest)))
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_slice(self.0);
    }
}

/// An item of a list.
#[allow(private_bounds, reason = "no other crate defines items")]
pub trait Item<'a>: Field<'a> + Copy + PartialEq + fmt::Debug + 'a {
    /// Fewest bytes of an encoded item.
    const MIN_LEN: usize;
    /// Most items of a list.
    const LIMIT: u32 = MAX_ITEMS;
}

impl<'a> Item<'a> for &'a str {
    const MIN_LEN: usize = 2;
}

impl Item<'_> for u16 {
    const MIN_LEN: usize = 2;
}

/// A publishing id: the size of the frame limits their number.
impl Item<'_> for u64 {
    const MIN_LEN: usize = 8;
    const LIMIT: u32 = u32::MAX;
}

/// A list in a frame, or one that is to be encoded. Its items are read on demand.
#[derive(Clone, Copy)]
pub struct List<'a, T>(Items<'a, T>);

#[derive(Clone, Copy)]
enum Items<'a, T> {
    /// Number of items, and their verified encoding.
    Encoded(u32, Source<'a>),
    Slice(&'a [T]),
}

#[derive(Clone, Copy)]
struct Source<'a> {
    bytes: &'a [u8],
    command: CommandKey,
    version: u16,
}

impl<'a> Source<'a> {
    fn reader(self) -> Reader<'a> {
        Reader {
            rest: self.bytes,
            command: self.command,
            version: self.version,
            field: "item",
        }
    }
}

impl<'a, T> From<&'a [T]> for List<'a, T> {
    fn from(items: &'a [T]) -> List<'a, T> {
        List(Items::Slice(items))
    }
}

impl<'a, T: Item<'a>> List<'a, T> {
    /// Number of items.
    pub fn len(&self) -> usize {
        match &self.0 {
            Items::Encoded(count, _) => *count as usize,
            Items::Slice(items) => items.len(),
        }
    }

    /// Returns true if there are no items.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The items in order.
    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (left, mut reader, slice) = match self.0 {
            Items::Encoded(count, source) => (count, Some(source.reader()), Default::default()),
            Items::Slice(items) => (0, None, items),
        };
        // The encoding was verified, so `get` does not fail.
        let encoded = (0..left).map_while(move |_| T::get(reader.as_mut()?).ok());
        encoded.chain(slice.iter().copied())
    }
}

impl<'a, T: Item<'a>> fmt::Debug for List<'a, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<'a, T: Item<'a>> PartialEq for List<'a, T> {
    fn eq(&self, other: &List<'a, T>) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'a, T: Item<'a>> Field<'a> for List<'a, T> {
    fn get(from: &mut Reader<'a>) -> Decoded<Self> {
        let count = from.count(T::MIN_LEN, T::LIMIT)?;
        let start = from.rest;
        for _ in 0..count {
            T::get(from)?;
        }
        let len = start.len() - from.rest.len();
        let source = Source {
            bytes: start.get(..len).unwrap_or_default(),
            command: from.command,
            version: from.version,
        };
        Ok(List(Items::Encoded(count, source)))
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u32(u32::try_from(self.len()).unwrap_or(u32::MAX));
        match self.0 {
            Items::Encoded(_, source) => out.put_slice(source.bytes),
            Items::Slice(items) => items.iter().for_each(|item| item.put(out)),
        }
    }
}

/// Implements [`Field`] and [`Item`] for a struct from its fields in order.
macro_rules! item {
    ($name:ident $(<$life:lifetime>)? { $($field:ident),* }, $min_len:expr $(, $limit:expr)?) => {
        impl<'a> Field<'a> for $name $(<$life>)? {
            fn get(from: &mut Reader<'a>) -> Decoded<Self> {
                Ok($name { $($field: from.named(stringify!($field))?),* })
            }

            fn put(&self, out: &mut BytesMut) {
                $(self.$field.put(out);)*
            }
        }

        impl<'a> Item<'a> for $name $(<$life>)? {
            const MIN_LEN: usize = $min_len;
            $(const LIMIT: u32 = $limit;)?
        }
    };
}

/// A property or an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Property<'a> {
    /// The name.
    pub key: &'a str,
    /// The value.
    pub value: &'a str,
}

item!(Property<'a> { key, value }, 4);

/// A statistic of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statistic<'a> {
    /// The name.
    pub key: &'a str,
    /// The value.
    pub value: i64,
}

item!(Statistic<'a> { key, value }, 10);

/// The versions of a command that one side supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommandVersions {
    /// Key of the command.
    pub key: u16,
    /// Lowest version.
    pub min: u16,
    /// Highest version.
    pub max: u16,
}

item!(CommandVersions { key, min, max }, 6);

/// A message that was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishingError {
    /// Publishing id of the message.
    pub publishing_id: u64,
    /// The reason.
    pub code: ResponseCode,
}

item!(
    PublishingError {
        publishing_id,
        code
    },
    10,
    u32::MAX
);

/// A node that clients can connect to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broker<'a> {
    /// Number of the node in this response.
    pub reference: u16,
    /// Name or address of the host.
    pub host: &'a str,
    /// TCP port.
    pub port: u32,
}

item!(Broker<'a> { reference, host, port }, 8);

/// The replicas of a stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StreamMetadata<'a> {
    /// Name of the stream.
    pub stream: &'a str,
    /// [`ResponseCode::OK`], or why there is no metadata.
    pub code: ResponseCode,
    /// Number of the leader's node; [`NO_LEADER`] if there is no leader.
    pub leader: u16,
    /// Numbers of the nodes of the other replicas.
    pub replicas: List<'a, u16>,
}

/// The number of no node.
pub const NO_LEADER: u16 = u16::MAX;

item!(StreamMetadata<'a> { stream, code, leader, replicas }, 10);

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResponseCode(pub u16);

impl ResponseCode {
    /// The request succeeded.
    pub const OK: ResponseCode = ResponseCode(1);
    /// There is no stream with this name.
    pub const STREAM_DOES_NOT_EXIST: ResponseCode = ResponseCode(2);
    /// The connection has a subscription with this id.
    pub const SUBSCRIPTION_ID_ALREADY_EXISTS: ResponseCode = ResponseCode(3);
    /// The connection has no subscription with this id.
    pub const SUBSCRIPTION_ID_DOES_NOT_EXIST: ResponseCode = ResponseCode(4);
    /// There is a stream with this name.
    pub const STREAM_ALREADY_EXISTS: ResponseCode = ResponseCode(5);
    /// The stream has no leader, or not here.
    pub const STREAM_NOT_AVAILABLE: ResponseCode = ResponseCode(6);
    /// The SASL mechanism is not supported.
    pub const SASL_MECHANISM_NOT_SUPPORTED: ResponseCode = ResponseCode(7);
    /// The credentials are wrong.
    pub const AUTHENTICATION_FAILURE: ResponseCode = ResponseCode(8);
    /// The SASL exchange is malformed.
    pub const SASL_ERROR: ResponseCode = ResponseCode(9);
    /// The SASL exchange goes on.
    pub const SASL_CHALLENGE: ResponseCode = ResponseCode(10);
    /// The user may only connect from the same host.
    pub const SASL_AUTHENTICATION_FAILURE_LOOPBACK: ResponseCode = ResponseCode(11);
    /// The user has no access to the virtual host.
    pub const VIRTUAL_HOST_ACCESS_FAILURE: ResponseCode = ResponseCode(12);
    /// The command is unknown or not allowed in this state.
    pub const UNKNOWN_FRAME: ResponseCode = ResponseCode(13);
    /// The frame is larger than the negotiated maximum.
    pub const FRAME_TOO_LARGE: ResponseCode = ResponseCode(14);
    /// The node failed.
    pub const INTERNAL_ERROR: ResponseCode = ResponseCode(15);
    /// The user lacks a permission.
    pub const ACCESS_REFUSED: ResponseCode = ResponseCode(16);
    /// An argument is invalid or contradicts the state.
    pub const PRECONDITION_FAILED: ResponseCode = ResponseCode(17);
    /// The connection has no publisher with this id.
    pub const PUBLISHER_DOES_NOT_EXIST: ResponseCode = ResponseCode(18);
    /// No offset is stored under this reference.
    pub const NO_OFFSET: ResponseCode = ResponseCode(19);
    /// A renewal of credentials uses another SASL mechanism than the login.
    pub const SASL_CANNOT_CHANGE_MECHANISM: ResponseCode = ResponseCode(20);
    /// A renewal of credentials is for another user than the login.
    pub const SASL_CANNOT_CHANGE_USERNAME: ResponseCode = ResponseCode(21);
}

impl Field<'_> for ResponseCode {
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        u16::get(from).map(ResponseCode)
    }

    fn put(&self, out: &mut BytesMut) {
        self.0.put(out);
    }
}

/// The position at which a consumer starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffsetSpecification {
    /// No position: the answer of a consumer that becomes inactive.
    None,
    /// The oldest message.
    First,
    /// The newest chunk.
    Last,
    /// The next message.
    Next,
    /// This offset.
    Offset(u64),
    /// The first chunk that is not older, in milliseconds since the Unix epoch.
    Timestamp(i64),
}

impl Field<'_> for OffsetSpecification {
    fn get(from: &mut Reader<'_>) -> Decoded<Self> {
        let position = match u16::get(from)? {
            0 => OffsetSpecification::None,
            1 => OffsetSpecification::First,
            2 => OffsetSpecification::Last,
            3 => OffsetSpecification::Next,
            4 => return Ok(OffsetSpecification::Offset(u64::get(from)?)),
            5 => return Ok(OffsetSpecification::Timestamp(i64::get(from)?)),
            _ => return Err(from.error(Reason::Undefined)),
        };
        // In answers to a consumer update, rstream sends an offset behind each kind of position, and
        // RabbitMQ ignores it.
        if from.command == CommandKey::ConsumerUpdate && from.rest.len() == size_of::<u64>() {
            from.rest = &[];
        }
        Ok(position)
    }

    fn put(&self, out: &mut BytesMut) {
        match self {
            OffsetSpecification::None => out.put_u16(0),
            OffsetSpecification::First => out.put_u16(1),
            OffsetSpecification::Last => out.put_u16(2),
            OffsetSpecification::Next => out.put_u16(3),
            OffsetSpecification::Offset(offset) => {
                out.put_u16(4);
                out.put_u64(*offset);
            }
            OffsetSpecification::Timestamp(timestamp) => {
                out.put_u16(5);
                out.put_i64(*timestamp);
            }
        }
    }
}
