//! The records of a classic queue's files. Integers are big-endian.
//!
//! ```text
//! segment:  preamble; records; when it is full a footer
//! record:   length u32 | seq u64 | flags u8 | body length u32 | header crc u32 | payload crc u32 | payload
//! payload:  when it expires u64, if flags say so | message container
//! footer:   a record whose flags say so; payload: persistent messages u64, their body bytes u64, last seq u64
//! ack file: preamble; from u64 | to u64 | crc u32, for ranges of persistent messages that are settled
//! ```
//! Headers have a checksum of their own, so that one damaged payload costs one message.

use bytes::{BufMut, Bytes, BytesMut};
use message::Message;

pub(super) const HEADER: usize = 25;
/// Bytes of the header that its checksum covers.
const COVERED: usize = 17;
const FOOTER_PAYLOAD: usize = 24;
pub(super) const FOOTER_LEN: usize = HEADER + FOOTER_PAYLOAD;
pub(super) const ACK_LEN: usize = 20;

/// Bytes of an expiry at the front of a payload.
pub(super) const EXPIRY_LEN: usize = 8;

const PERSISTENT: u8 = 1;
const EXPIRES: u8 = 2;
const FOOTER: u8 = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub len: u32,
    pub seq: u64,
    pub persistent: bool,
    pub footer: bool,
    /// The payload begins with the wall clock at which it expires.
    pub expires: bool,
    pub body: u32,
    payload_crc: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RecordFooter {
    pub messages: u64,
    pub bytes: u64,
    pub last_seq: u64,
}

impl RecordHeader {
    /// The header at the front of `raw`; None when it is cut short or damaged.
    pub fn parse(raw: &[u8]) -> Option<RecordHeader> {
        let raw: &[u8; HEADER] = raw.get(..HEADER)?.try_into().ok()?;
        if crc32fast::hash(&raw[..COVERED]) != be32(raw, COVERED)? {
            return None;
        }
        let flags = raw[12];
        Some(RecordHeader {
            len: be32(raw, 0)?,
            seq: be64(raw, 4)?,
            persistent: flags & PERSISTENT != 0,
            footer: flags & FOOTER != 0,
            expires: flags & EXPIRES != 0,
            body: be32(raw, 13)?,
            payload_crc: be32(raw, COVERED + 4)?,
        })
    }

    pub fn payload_is_whole(&self, payload: &[u8]) -> bool {
        crc32fast::hash(payload) == self.payload_crc
    }

    /// The message of a whole payload and when it expires (wall clock in milliseconds, 0 is never).
    pub fn message(&self, payload: &Bytes) -> Option<(Message, u64)> {
        if !self.payload_is_whole(payload) {
            return None;
        }
        let (expires, container) = if self.expires {
            let rest = payload.len().checked_sub(EXPIRY_LEN)?;
            (be64(payload, 0)?, payload.slice(payload.len() - rest..))
        } else {
            (0, payload.clone())
        };
        Some((Message::decode(container).ok()?, expires))
    }

    /// Header and payload.
    pub fn total(&self) -> u64 {
        HEADER as u64 + u64::from(self.len)
    }
}

pub(super) fn be32(raw: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(raw.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn be64(raw: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(raw.get(at..at + 8)?.try_into().ok()?))
}

/// `expires`: wall clock in milliseconds, 0 is never.
pub(super) fn put_message(
    out: &mut BytesMut,
    seq: u64,
    persistent: bool,
    expires: u64,
    body: u32,
    container: &[u8],
) {
    let flags = (u8::from(persistent) * PERSISTENT) | (u8::from(expires != 0) * EXPIRES);
    let expiry = expires.to_be_bytes();
    let expiry: &[u8] = if expires != 0 { &expiry } else { &[] };
    put(out, seq, flags, body, expiry, container);
}

pub(super) fn put_footer(out: &mut BytesMut, footer: &RecordFooter) {
    let mut payload = BytesMut::with_capacity(FOOTER_PAYLOAD);
    payload.put_u64(footer.messages);
    payload.put_u64(footer.bytes);
    payload.put_u64(footer.last_seq);
    put(out, footer.last_seq, FOOTER, 0, &[], &payload);
}

fn put(out: &mut BytesMut, seq: u64, flags: u8, body: u32, expiry: &[u8], rest: &[u8]) {
    let start = out.len();
    let len = expiry.len() + rest.len();
    out.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    out.put_u64(seq);
    out.put_u8(flags);
    out.put_u32(body);
    let crc = crc32fast::hash(&out[start..]);
    out.put_u32(crc);
    let mut crc = crc32fast::Hasher::new();
    crc.update(expiry);
    crc.update(rest);
    out.put_u32(crc.finalize());
    out.put_slice(expiry);
    out.put_slice(rest);
}

/// The footer in a file's last [`FOOTER_LEN`] bytes, if there is one.
pub(super) fn parse_footer(raw: &[u8]) -> Option<RecordFooter> {
    let header = RecordHeader::parse(raw)?;
    let payload = raw.get(HEADER..FOOTER_LEN)?;
    if !header.footer || header.len as usize != FOOTER_PAYLOAD || !header.payload_is_whole(payload)
    {
        return None;
    }
    Some(RecordFooter {
        messages: be64(payload, 0)?,
        bytes: be64(payload, 8)?,
        last_seq: be64(payload, 16)?,
    })
}

pub(super) fn put_ack(out: &mut BytesMut, from: u64, to: u64) {
    let start = out.len();
    out.put_u64(from);
    out.put_u64(to);
    let crc = crc32fast::hash(&out[start..]);
    out.put_u32(crc);
}

pub(super) fn parse_ack(raw: &[u8]) -> Option<(u64, u64)> {
    let raw = raw.get(..ACK_LEN)?;
    (crc32fast::hash(&raw[..16]) == be32(raw, 16)?).then_some(())?;
    let (from, to) = (be64(raw, 0)?, be64(raw, 8)?);
    (from <= to).then_some((from, to))
}
