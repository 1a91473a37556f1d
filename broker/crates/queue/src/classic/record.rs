//! Records in the files of a classic queue. Integers are big-endian.
//!
//! ```text
//! segment:  file header; records; a footer when it is full
//! record:   payload length u32 | seq u64 | flags u8 | body length u32 | header CRC-32 | payload CRC-32 | payload
//! payload:  time of expiry u64 (wall clock in ms) if the flag is set | message container
//! footer:   a record with the footer flag; payload: persistent messages u64, their body bytes u64, last seq u64
//! ack file: file header; first seq u64 | last seq u64 | CRC-32, for ranges of settled persistent messages
//! ```
//! The header has its own checksum, so that a damaged payload costs one message.

use bytes::{BufMut, Bytes, BytesMut};
use message::Message;
use wire::{Reader, Wire, wire_struct};

pub(super) const HEADER: usize = 25;
/// Bytes of the header that its checksum covers.
const COVERED: usize = 17;
const FOOTER_PAYLOAD: usize = RecordFooter::MIN_LEN;
pub(super) const FOOTER_LEN: usize = HEADER + FOOTER_PAYLOAD;
const ACK_COVERED: usize = 16;
pub(super) const ACK_LEN: usize = ACK_COVERED + CRC_LEN;
pub(super) const CRC_LEN: usize = 4;

const PERSISTENT: u8 = 1;
const EXPIRES: u8 = 2;
const FOOTER: u8 = 0x80;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub len: u32,
    pub seq: u64,
    pub persistent: bool,
    pub footer: bool,
    /// The payload begins with the time of expiry.
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

wire_struct!(RecordFooter {
    messages: u64,
    bytes: u64,
    last_seq: u64,
});

/// The name of the format in errors, which are not reported: the caller reports the damaged file.
const FORMAT: &str = "classic queue record";

/// Appends the CRC-32 of the bytes from `start` on.
pub(super) fn put_crc(out: &mut BytesMut, start: usize) {
    let crc = crc32fast::hash(out.get(start..).unwrap_or_default());
    out.put_u32(crc);
}

/// Reads the first `covered` bytes, which a CRC-32 follows. `None` if they are cut off or damaged.
pub(super) fn checked(raw: &[u8], covered: usize) -> Option<Reader<'_>> {
    let (covered, rest) = raw.split_at_checked(covered)?;
    let crc: u32 = Reader::new(FORMAT, rest).get().ok()?;
    (crc32fast::hash(covered) == crc).then(|| Reader::new(FORMAT, covered))
}

impl RecordHeader {
    /// Decodes the header at the front of `raw`. `None` if it is cut off or damaged.
    pub(super) fn parse(raw: &[u8]) -> Option<RecordHeader> {
        let mut from = checked(raw, COVERED)?;
        let (len, seq) = (from.get().ok()?, from.get().ok()?);
        let flags = from.u8().ok()?;
        let body = from.get().ok()?;
        let payload_crc = raw.get(COVERED + CRC_LEN..)?;
        Some(RecordHeader {
            len,
            seq,
            persistent: flags & PERSISTENT != 0,
            footer: flags & FOOTER != 0,
            expires: flags & EXPIRES != 0,
            body,
            payload_crc: Reader::new(FORMAT, payload_crc).get().ok()?,
        })
    }

    pub(super) fn payload_is_whole(&self, payload: &[u8]) -> bool {
        crc32fast::hash(payload) == self.payload_crc
    }

    /// Decodes the message of a complete payload and its time of expiry (wall clock in ms, 0 if it does not expire).
    pub(super) fn message(&self, payload: &Bytes) -> Option<(Message, u64)> {
        if !self.payload_is_whole(payload) {
            return None;
        }
        let mut from = Reader::shared(FORMAT, payload);
        let expires = match self.expires {
            true => from.get().ok()?,
            false => 0,
        };
        Some((Message::decode(from.take_rest()).ok()?, expires))
    }

    /// Header and payload.
    pub(super) fn total(&self) -> u64 {
        HEADER as u64 + u64::from(self.len)
    }
}

/// Appends a message. `expires` is a wall clock in ms, or 0 if the message does not expire.
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
    let payload = wire::encode(footer);
    put(out, footer.last_seq, FOOTER, 0, &[], &payload);
}

fn put(out: &mut BytesMut, seq: u64, flags: u8, body: u32, expiry: &[u8], rest: &[u8]) {
    let start = out.len();
    let len = expiry.len() + rest.len();
    out.put_u32(u32::try_from(len).unwrap_or(u32::MAX));
    out.put_u64(seq);
    out.put_u8(flags);
    out.put_u32(body);
    put_crc(out, start);
    let mut crc = crc32fast::Hasher::new();
    crc.update(expiry);
    crc.update(rest);
    out.put_u32(crc.finalize());
    out.put_slice(expiry);
    out.put_slice(rest);
}

/// Decodes the footer in the last [`FOOTER_LEN`] bytes of a file. `None` if there is none.
pub(super) fn parse_footer(raw: &[u8]) -> Option<RecordFooter> {
    let header = RecordHeader::parse(raw)?;
    let payload = raw.get(HEADER..FOOTER_LEN)?;
    if !header.footer || header.len as usize != FOOTER_PAYLOAD || !header.payload_is_whole(payload)
    {
        return None;
    }
    Reader::new(FORMAT, payload).get().ok()
}

pub(super) fn put_ack(out: &mut BytesMut, first: u64, last: u64) {
    let start = out.len();
    out.put_u64(first);
    out.put_u64(last);
    put_crc(out, start);
}

pub(super) fn parse_ack(raw: &[u8]) -> Option<(u64, u64)> {
    let range: (u64, u64) = checked(raw, ACK_COVERED)?.get().ok()?;
    (range.0 <= range.1).then_some(range)
}
