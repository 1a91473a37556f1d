//! Decoding of client frames (section 5.2), in place.

use crate::{CloseCode, MAX_CONTROL, Opcode};
use std::ops::Range;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0F;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7F;

/// Length of a masking key in bytes.
const KEY: usize = 4;

/// A violation of the protocol by the client. The connection must be closed with
/// [`ProtocolViolation::code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolViolation {
    /// Clients must mask every frame (section 5.1).
    #[error("frame is not masked")]
    Unmasked,
    /// Reserved bits belong to extensions, and this server negotiates none (section 5.2).
    #[error("reserved bit is set without a negotiated extension")]
    Reserved,
    /// The opcode is reserved (section 5.2).
    #[error("unknown opcode")]
    UnknownOpcode,
    /// Control frames must not be fragmented (section 5.5).
    #[error("control frame is fragmented")]
    FragmentedControl,
    /// A control frame has at most [`MAX_CONTROL`](crate::MAX_CONTROL) bytes (section 5.5).
    #[error("control frame has more than 125 bytes of payload")]
    LongControl,
    /// Lengths must use the shortest encoding, and the highest bit must be 0 (section 5.2).
    #[error("payload length is not minimal or is 2^63 or more")]
    BadLength,
    /// A continuation frame without a message that it continues (section 5.4).
    #[error("continuation frame without a fragmented message")]
    LooseContinuation,
    /// A data frame before the fragmented message was complete (section 5.4).
    #[error("new message before the fragmented one is complete")]
    Interleaved,
    /// AMQP and MQTT over WebSocket use binary frames only.
    #[error("text frames are not supported, use binary frames")]
    Text,
    /// The payload is longer than the limit of the decoder.
    #[error("frame payload exceeds the limit")]
    TooBig,
    /// The code is reserved or undefined; see [`CloseCode::received`].
    #[error("close frame has an invalid status code")]
    BadCloseCode,
    /// The reason of a close frame must be UTF-8 (section 5.5.1).
    #[error("close frame has a reason that is not UTF-8")]
    BadCloseReason,
}

impl ProtocolViolation {
    /// The status code for closing the connection.
    pub fn code(self) -> CloseCode {
        match self {
            ProtocolViolation::Text => CloseCode::UNSUPPORTED_DATA,
            ProtocolViolation::TooBig => CloseCode::TOO_BIG,
            ProtocolViolation::BadCloseReason => CloseCode::INVALID_PAYLOAD,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

/// The result of [`Decoder::step`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeStep {
    /// More input is needed.
    Starved,
    /// A ping. The server must send a pong with the same payload, which is at this position of the
    /// buffer until the next step.
    Ping(Range<usize>),
    /// A close frame; the client sends nothing more. The server must answer with the same code.
    Close(Option<CloseCode>),
}

/// A data frame whose payload is incomplete.
#[derive(Clone, Copy, Debug)]
struct OpenFrame {
    left: u64,
    /// Rotated so that the first byte applies to the next byte of the payload.
    key: [u8; KEY],
}

/// The state of the receiving side of a connection.
#[derive(Clone, Debug)]
pub struct Decoder {
    open: Option<OpenFrame>,
    /// The current message has more frames.
    fragmented: bool,
    max_frame: u64,
}

struct DecodedHeader {
    opcode: Opcode,
    fin: bool,
    payload: u64,
    key: [u8; KEY],
    /// Length of the header in bytes.
    len: usize,
}

impl Decoder {
    /// Creates a decoder that accepts data frames with up to `max_frame` bytes of payload.
    pub fn new(max_frame: u64) -> Decoder {
        Decoder {
            open: None,
            fragmented: false,
            max_frame,
        }
    }

    /// Decodes frames from `buffer[*read..]` and moves their unmasked payload to
    /// `buffer[*written..]`. Both positions advance, and `written` never exceeds `read`. Returns
    /// when a frame needs an action or when input is missing. In the latter case the caller passes
    /// the bytes from `read` on again, with more input after them.
    pub fn step(
        &mut self,
        buffer: &mut [u8],
        read: &mut usize,
        written: &mut usize,
    ) -> Result<DecodeStep, ProtocolViolation> {
        debug_assert!(*written <= *read && *read <= buffer.len());
        loop {
            if let Some(open) = &mut self.open {
                if !take_payload(open, buffer, read, written) {
                    return Ok(DecodeStep::Starved);
                }
                self.open = None;
            }
            let wire = buffer.get(*read..).unwrap_or_default();
            let Some(header) = self.header(wire)? else {
                return Ok(DecodeStep::Starved);
            };
            if !header.opcode.is_control() {
                *read += header.len;
                self.fragmented = !header.fin;
                self.open = Some(OpenFrame {
                    left: header.payload,
                    key: header.key,
                });
                continue;
            }
            let start = *read + header.len;
            let payload = start..start + header.payload as usize;
            let Some(bytes) = buffer.get_mut(payload.clone()) else {
                return Ok(DecodeStep::Starved);
            };
            unmask(bytes, header.key);
            *read = payload.end;
            match header.opcode {
                Opcode::Ping => return Ok(DecodeStep::Ping(payload)),
                Opcode::Close => return Ok(DecodeStep::Close(close_code(bytes)?)),
                _ => {}
            }
        }
    }

    /// Decodes a frame header. Returns None if it is incomplete, but reports violations as early as
    /// possible.
    fn header(&self, wire: &[u8]) -> Result<Option<DecodedHeader>, ProtocolViolation> {
        let [first, second, rest @ ..] = wire else {
            return Ok(None);
        };
        if first & RESERVED != 0 {
            return Err(ProtocolViolation::Reserved);
        }
        let opcode = Opcode::of(first & OPCODE).ok_or(ProtocolViolation::UnknownOpcode)?;
        let fin = first & FIN != 0;
        self.check_order(opcode, fin)?;
        if second & MASKED == 0 {
            return Err(ProtocolViolation::Unmasked);
        }
        let short = second & LENGTH;
        if opcode.is_control() && usize::from(short) > MAX_CONTROL {
            return Err(ProtocolViolation::LongControl);
        }
        let Some((payload, rest)) = length(short, rest)? else {
            return Ok(None);
        };
        if !opcode.is_control() && payload > self.max_frame {
            return Err(ProtocolViolation::TooBig);
        }
        let Some(key) = rest.first_chunk() else {
            return Ok(None);
        };
        Ok(Some(DecodedHeader {
            opcode,
            fin,
            payload,
            key: *key,
            len: wire.len() - rest.len() + KEY,
        }))
    }

    /// Checks the order of frames (section 5.4).
    fn check_order(&self, opcode: Opcode, fin: bool) -> Result<(), ProtocolViolation> {
        match opcode {
            Opcode::Text => Err(ProtocolViolation::Text),
            Opcode::Binary if self.fragmented => Err(ProtocolViolation::Interleaved),
            Opcode::Continuation if !self.fragmented => Err(ProtocolViolation::LooseContinuation),
            opcode if opcode.is_control() && !fin => Err(ProtocolViolation::FragmentedControl),
            _ => Ok(()),
        }
    }
}

/// Decodes the payload length. Returns the length and the remaining input, or None if it is
/// incomplete.
fn length(short: u8, rest: &[u8]) -> Result<Option<(u64, &[u8])>, ProtocolViolation> {
    let (length, minimum, rest) = match short {
        126 => match rest.split_first_chunk() {
            Some((bytes, rest)) => (u64::from(u16::from_be_bytes(*bytes)), 126, rest),
            None => return Ok(None),
        },
        127 => match rest.split_first_chunk() {
            Some((bytes, rest)) => (u64::from_be_bytes(*bytes), 1 << 16, rest),
            None => return Ok(None),
        },
        short => (u64::from(short), 0, rest),
    };
    if length < minimum || length > i64::MAX as u64 {
        return Err(ProtocolViolation::BadLength);
    }
    Ok(Some((length, rest)))
}

/// Unmasks and moves the available part of a payload. Returns true if the payload is complete.
fn take_payload(
    open: &mut OpenFrame,
    buffer: &mut [u8],
    read: &mut usize,
    written: &mut usize,
) -> bool {
    let available = buffer.len().saturating_sub(*read);
    let part = usize::try_from(open.left).map_or(available, |left| left.min(available));
    let end = *read + part;
    unmask(buffer.get_mut(*read..end).unwrap_or_default(), open.key);
    if read != written {
        buffer.copy_within(*read..end, *written);
    }
    open.key.rotate_left(part % KEY);
    debug_assert!(
        open.left >= part as u64,
        "{part} bytes of a payload with {} bytes left",
        open.left
    );
    open.left -= part as u64;
    *read = end;
    *written += part;
    open.left == 0
}

/// Applies the masking key (section 5.3).
fn unmask(payload: &mut [u8], key: [u8; KEY]) {
    let mut whole = payload.chunks_exact_mut(KEY);
    for chunk in &mut whole {
        for (byte, key) in chunk.iter_mut().zip(key) {
            *byte ^= key;
        }
    }
    for (byte, key) in whole.into_remainder().iter_mut().zip(key) {
        *byte ^= key;
    }
}

/// Decodes the payload of a close frame (section 5.5.1).
fn close_code(payload: &[u8]) -> Result<Option<CloseCode>, ProtocolViolation> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(None),
            _ => Err(ProtocolViolation::BadCloseCode),
        };
    };
    let code =
        CloseCode::received(u16::from_be_bytes(*code)).ok_or(ProtocolViolation::BadCloseCode)?;
    match std::str::from_utf8(reason) {
        Ok(_) => Ok(Some(code)),
        Err(_) => Err(ProtocolViolation::BadCloseReason),
    }
}
