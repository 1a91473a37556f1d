//! Content headers (section 4.2.6.1) and the properties of class basic.
//!
//! The property flags and list stay as the publisher encoded them; [`Properties`] is a view onto them.

use crate::field::{Field, Reader, Short, Writer};
use crate::{DecodeError, table};
use bytes::{BufMut, BytesMut};
use message::{Table, Value};

/// A content header frame's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHeader<'a> {
    /// Class of the method that carries content; 60 for `basic`.
    pub class_id: u16,
    /// Unused, and zero.
    pub weight: u16,
    /// Of the whole body, over all its frames.
    pub body_size: u64,
    /// Property flags and property list.
    pub properties: &'a [u8],
}

impl<'a> ContentHeader<'a> {
    /// Reads the fixed fields. The properties are not checked; see [`Properties::decode`].
    pub fn decode(payload: &'a [u8]) -> Result<ContentHeader<'a>, DecodeError> {
        let mut from = Reader::new(payload);
        let class_id = u16::read(&mut from)?;
        let weight = u16::read(&mut from)?;
        let body_size = u64::read(&mut from)?;
        Ok(ContentHeader {
            class_id,
            weight,
            body_size,
            properties: from.rest(),
        })
    }
}

/// Property flags have the first property in the highest bit. Bit 1 is unused and passed over, bit 0 would say that more
/// flags follow.
const MORE_FLAGS: u16 = 0b1;

/// The properties of a basic message, borrowed. `S` is what short strings are: text for who makes them, [`Short`] for what
/// clients sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties<'a, S = &'a str> {
    /// MIME type of the body.
    pub content_type: Option<S>,
    /// MIME encoding of the body, for example `gzip`.
    pub content_encoding: Option<S>,
    /// The entries of the headers table, undecoded; their form has been checked.
    pub headers: Option<&'a [u8]>,
    /// 1 is transient, 2 is persistent; other values are transient too.
    pub delivery_mode: Option<u8>,
    /// Higher is more urgent.
    pub priority: Option<u8>,
    /// Application's identifier of the request that a reply belongs to.
    pub correlation_id: Option<S>,
    /// Routing key for replies.
    pub reply_to: Option<S>,
    /// Milliseconds as decimal digits, if the publisher kept to the rules.
    pub expiration: Option<S>,
    /// Application's identifier of the message.
    pub message_id: Option<S>,
    /// Seconds since the Unix epoch.
    pub timestamp: Option<u64>,
    /// The property `type`: application's name of the kind of message.
    pub kind: Option<S>,
    /// User name of the publisher; must be that of the connection.
    pub user_id: Option<S>,
    /// Application's own identifier.
    pub app_id: Option<S>,
    /// Deprecated by the specification, and passed on unchanged.
    pub cluster_id: Option<S>,
}

impl Default for Properties<'_> {
    fn default() -> Self {
        Properties {
            content_type: None,
            content_encoding: None,
            headers: None,
            delivery_mode: None,
            priority: None,
            correlation_id: None,
            reply_to: None,
            expiration: None,
            message_id: None,
            timestamp: None,
            kind: None,
            user_id: None,
            app_id: None,
            cluster_id: None,
        }
    }
}

impl<'a> Properties<'a> {
    /// Reads property flags and list to the last byte; tables are walked, not copied. All text must be UTF-8.
    pub fn decode(raw: &'a [u8]) -> Result<Properties<'a>, DecodeError> {
        Properties::read(raw, |_| ())
    }
}

impl<'a> Properties<'a, Short<'a>> {
    /// Like [`Properties::decode`], whatever the short strings are; names in the headers must be UTF-8.
    pub fn received(raw: &'a [u8]) -> Result<Self, DecodeError> {
        Properties::read(raw, |_| ())
    }

    /// Like [`Properties::received`]; calls `each` for every header on the way.
    pub fn scan(raw: &'a [u8], each: impl FnMut(table::Entry<'a>)) -> Result<Self, DecodeError> {
        Properties::read(raw, each)
    }
}

impl<'a, S: Field<'a>> Properties<'a, S> {
    fn read(
        raw: &'a [u8],
        mut each: impl FnMut(table::Entry<'a>),
    ) -> Result<Properties<'a, S>, DecodeError> {
        let mut from = Reader::new(raw);
        let flags = u16::read(&mut from)?;
        if flags & MORE_FLAGS != 0 {
            return Err(DecodeError::PropertyFlags(flags));
        }
        let mut bit = 16;
        let mut next = || {
            bit -= 1;
            flags >> bit & 1 == 1
        };
        fn field<'a, T: Field<'a>>(
            there: bool,
            from: &mut Reader<'a>,
        ) -> Result<Option<T>, DecodeError> {
            there.then(|| T::read(from)).transpose()
        }
        let properties = Properties {
            content_type: field(next(), &mut from)?,
            content_encoding: field(next(), &mut from)?,
            headers: {
                let entries: Option<&'a [u8]> = field(next(), &mut from)?;
                if let Some(entries) = entries {
                    table::walk(entries, &mut each)?;
                }
                entries
            },
            delivery_mode: field(next(), &mut from)?,
            priority: field(next(), &mut from)?,
            correlation_id: field(next(), &mut from)?,
            reply_to: field(next(), &mut from)?,
            expiration: field(next(), &mut from)?,
            message_id: field(next(), &mut from)?,
            timestamp: field(next(), &mut from)?,
            kind: field(next(), &mut from)?,
            user_id: field(next(), &mut from)?,
            app_id: field(next(), &mut from)?,
            cluster_id: field(next(), &mut from)?,
        };
        from.finish()?;
        Ok(properties)
    }

    /// The headers, decoded; empty when there are none.
    pub fn header_table(&self) -> Result<Table, DecodeError> {
        self.headers.map_or(Ok(Table::default()), table::decode)
    }

    /// Appends property flags and list.
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_edited(&[], out);
    }

    /// The same with some headers removed or replaced.
    pub fn encode_edited(&self, edits: &[HeaderEdit<'_>], out: &mut BytesMut) {
        let at = out.len();
        out.put_u16(0);
        let mut flags = 0u16;
        let mut bit = 16;
        let mut next = |there: bool| {
            bit -= 1;
            flags |= u16::from(there) << bit;
        };
        fn field<'f, T: Field<'f>>(value: &Option<T>, out: &mut BytesMut) -> bool {
            if let Some(value) = value {
                value.write(&mut Writer::new(out));
            }
            value.is_some()
        }
        next(field(&self.content_type, out));
        next(field(&self.content_encoding, out));
        next(encode_headers(self.headers, edits, out));
        next(field(&self.delivery_mode, out));
        next(field(&self.priority, out));
        next(field(&self.correlation_id, out));
        next(field(&self.reply_to, out));
        next(field(&self.expiration, out));
        next(field(&self.message_id, out));
        next(field(&self.timestamp, out));
        next(field(&self.kind, out));
        next(field(&self.user_id, out));
        next(field(&self.app_id, out));
        next(field(&self.cluster_id, out));
        if let Some(slot) = out.get_mut(at..at + 2) {
            slot.copy_from_slice(&flags.to_be_bytes());
        }
    }
}

/// A header to be removed (`None`) or set.
#[derive(Clone, Debug, PartialEq)]
pub struct HeaderEdit<'e> {
    /// Name of the header.
    pub key: &'e str,
    /// The new value; None removes the header.
    pub value: Option<Value>,
}

/// Whether there is a table at all.
fn encode_headers(entries: Option<&[u8]>, edits: &[HeaderEdit<'_>], out: &mut BytesMut) -> bool {
    if entries.is_none() && edits.iter().all(|e| e.value.is_none()) {
        return false;
    }
    table::with_length(out, |out| {
        // Walked before, when it was decoded: cannot fail now.
        let _ = table::walk(entries.unwrap_or(&[]), |entry| {
            if !edits.iter().any(|e| e.key == entry.key) {
                out.extend_from_slice(entry.raw);
            }
        });
        for edit in edits {
            if let Some(value) = &edit.value {
                edit.key.write(&mut Writer::new(out));
                table::encode_value(value, out);
            }
        }
    });
    true
}
