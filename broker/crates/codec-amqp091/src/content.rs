//! Content headers (section 4.2.6.1) and the properties of class basic.
//!
//! Property flags and list stay in the publisher's encoding; [`Properties`] is a view of them.

use crate::field::{Field, Reader, Short, Writer};
use crate::{DecodeError, table};
use bytes::{BufMut, BytesMut};
use message::{Table, Value};

/// The payload of a content header frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentHeader<'a> {
    /// Class of the method with content; 60 is `basic`.
    pub class_id: u16,
    /// Unused; must be zero.
    pub weight: u16,
    /// Size of the whole body in octets, over all frames.
    pub body_size: u64,
    /// Encoded property flags and property list.
    pub properties: &'a [u8],
}

impl<'a> ContentHeader<'a> {
    /// Decodes the fixed fields. The properties are not validated; see [`Properties::decode`].
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

/// The first property has the highest bit. Bit 1 is unused and ignored. Bit 0 announces another
/// word of flags.
const MORE_FLAGS: u16 = 0b1;

/// The borrowed properties of a basic message. `S` is the type of short strings: `&str` for
/// encoding, [`Short`] for properties from clients, which may not be UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties<'a, S = &'a str> {
    /// MIME type of the body.
    pub content_type: Option<S>,
    /// MIME encoding of the body, for example `gzip`.
    pub content_encoding: Option<S>,
    /// The encoded entries of the headers table. Their form has been validated.
    pub headers: Option<&'a [u8]>,
    /// 1 is transient, 2 is persistent. Other values count as transient.
    pub delivery_mode: Option<u8>,
    /// Higher values have precedence.
    pub priority: Option<u8>,
    /// The application's identifier of the request that a reply belongs to.
    pub correlation_id: Option<S>,
    /// Routing key for replies.
    pub reply_to: Option<S>,
    /// Time to live in milliseconds as decimal digits, if the publisher follows the rules.
    pub expiration: Option<S>,
    /// The application's identifier of the message.
    pub message_id: Option<S>,
    /// Seconds since the Unix epoch.
    pub timestamp: Option<u64>,
    /// The property `type`: the application's message type.
    pub kind: Option<S>,
    /// User name of the publisher, which must be that of the connection.
    pub user_id: Option<S>,
    /// The identifier of the publishing application.
    pub app_id: Option<S>,
    /// Deprecated by the specification; forwarded unchanged.
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
    /// Decodes the complete property flags and list. Tables are validated but not copied. All text
    /// must be UTF-8.
    pub fn decode(raw: &'a [u8]) -> Result<Properties<'a>, DecodeError> {
        Properties::read(raw, |_| ())
    }
}

impl<'a> Properties<'a, Short<'a>> {
    /// As [`Properties::decode`], but values of short strings need not be UTF-8. Names of headers
    /// must be.
    pub fn received(raw: &'a [u8]) -> Result<Self, DecodeError> {
        Properties::read(raw, |_| ())
    }

    /// As [`Properties::received`]; calls `each` for every header.
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
            present: bool,
            from: &mut Reader<'a>,
        ) -> Result<Option<T>, DecodeError> {
            present.then(|| T::read(from)).transpose()
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

    /// Decodes the headers; empty if there are none.
    pub fn header_table(&self) -> Result<Table, DecodeError> {
        self.headers.map_or(Ok(Table::default()), table::decode)
    }

    /// Appends the encoded property flags and list.
    pub fn encode(&self, out: &mut BytesMut) {
        self.encode_edited(&[], out);
    }

    /// As [`Properties::encode`], with some headers removed or replaced.
    pub fn encode_edited(&self, edits: &[HeaderEdit<'_>], out: &mut BytesMut) {
        let at = out.len();
        out.put_u16(0);
        let mut flags = 0u16;
        let mut bit = 16;
        let mut next = |present: bool| {
            bit -= 1;
            flags |= u16::from(present) << bit;
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

/// A change to one header: removal (`None`) or a new value.
#[derive(Clone, Debug, PartialEq)]
pub struct HeaderEdit<'e> {
    /// The name of the header.
    pub key: &'e str,
    /// The new value; None removes the header.
    pub value: Option<Value>,
}

/// Encodes the headers. Returns false if there is no table.
fn encode_headers(entries: Option<&[u8]>, edits: &[HeaderEdit<'_>], out: &mut BytesMut) -> bool {
    if entries.is_none() && edits.iter().all(|e| e.value.is_none()) {
        return false;
    }
    table::with_length(out, |out| {
        // The entries were validated by the decoder, so this cannot fail.
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
