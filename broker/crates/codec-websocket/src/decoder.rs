//! Frames from the client (section 5.2), taken apart in place.

use crate::{CloseCode, MAX_CONTROL, Opcode};
use std::ops::Range;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0F;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7F;

/// Bytes of a masking key.
const KEY: usize = 4;

/// The client does what the protocol does not allow; the connection is to be closed with [`Violation::code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Clients must mask every frame (section 5.1).
    #[error("a frame that is not masked")]
    Unmasked,
    /// Reserved bits belong to extensions, and this server negotiates none (section 5.2).
    #[error("a reserved bit is set and no extension was agreed on")]
    Reserved,
    /// The opcode is reserved (section 5.2).
    #[error("an unknown kind of frame")]
    UnknownOpcode,
    /// Control frames must not be fragmented (section 5.5).
    #[error("a control frame in fragments")]
    FragmentedControl,
    /// A control frame has at most [`MAX_CONTROL`](crate::MAX_CONTROL) bytes (section 5.5).
    #[error("a control frame with more than 125 bytes")]
    LongControl,
    /// Lengths must use the shortest encoding, and the highest bit must be 0 (section 5.2).
    #[error("a length that is not written with the fewest bytes, or above 2^63")]
    BadLength,
    /// A continuation frame without a message that it continues (section 5.4).
    #[error("a continuation of nothing")]
    LooseContinuation,
    /// A data frame before the fragmented message was complete (section 5.4).
    #[error("a new message within another")]
    Interleaved,
    /// AMQP and MQTT over WebSocket use binary frames only.
    #[error("a text frame")]
    Text,
    /// The payload is longer than the limit of the decoder.
    #[error("a frame that is too large")]
    TooBig,
    /// The code is reserved or undefined; see [`CloseCode::received`].
    #[error("a close frame with a status code that nobody may send")]
    BadCloseCode,
    /// The reason of a close frame must be UTF-8 (section 5.5.1).
    #[error("a close frame whose reason is not UTF-8")]
    BadCloseReason,
}

impl Violation {
    /// The status code that the server closes the connection with.
    pub fn code(self) -> CloseCode {
        match self {
            Violation::Text => CloseCode::UNSUPPORTED_DATA,
            Violation::TooBig => CloseCode::TOO_BIG,
            Violation::BadCloseReason => CloseCode::INVALID_PAYLOAD,
            _ => CloseCode::PROTOCOL_ERROR,
        }
    }
}

/// What [`Decoder::step`] came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It needs more bytes.
    Starved,
    /// To be answered with a pong with the same payload, which is here in the buffer until the next step.
    Ping(Range<usize>),
    /// The client sends nothing any more. It is to be answered with the same code.
    Close(Option<CloseCode>),
}

/// A data frame whose payload has not come wholly.
#[derive(Clone, Copy, Debug)]
struct Open {
    left: u64,
    /// Its next byte is that of the next byte of payload.
    key: [u8; KEY],
}

/// The receiving side of a connection.
#[derive(Clone, Debug)]
pub struct Decoder {
    open: Option<Open>,
    /// The message has more frames than have come.
    fragmented: bool,
    max_frame: u64,
}

struct Header {
    opcode: Opcode,
    fin: bool,
    payload: u64,
    key: [u8; KEY],
    /// Bytes of the header itself.
    len: usize,
}

impl Decoder {
    /// Data frames may have `max_frame` bytes of payload.
    pub fn new(max_frame: u64) -> Decoder {
        Decoder {
            open: None,
            fragmented: false,
            max_frame,
        }
    }

    /// Takes frames from `buffer[*read..]`, and puts their payload, unmasked, at `buffer[*written..]`; both positions move on, and
    /// `written` is never ahead of `read`. Comes back for frames that want something, and when bytes are missing: what is
    /// behind `read` then is to be given again with what follows it.
    pub fn step(
        &mut self,
        buffer: &mut [u8],
        read: &mut usize,
        written: &mut usize,
    ) -> Result<Step, Violation> {
        loop {
            if let Some(open) = &mut self.open {
                if !take_payload(open, buffer, read, written) {
                    return Ok(Step::Starved);
                }
                self.open = None;
            }
            let wire = buffer.get(*read..).unwrap_or_default();
            let Some(header) = self.header(wire)? else {
                return Ok(Step::Starved);
            };
            if !header.opcode.is_control() {
                *read += header.len;
                self.fragmented = !header.fin;
                self.open = Some(Open {
                    left: header.payload,
                    key: header.key,
                });
                continue;
            }
            let start = *read + header.len;
            let payload = start..start + header.payload as usize;
            let Some(bytes) = buffer.get_mut(payload.clone()) else {
                return Ok(Step::Starved);
            };
            unmask(bytes, header.key);
            *read = payload.end;
            match header.opcode {
                Opcode::Ping => return Ok(Step::Ping(payload)),
                Opcode::Close => return Ok(Step::Close(close_code(bytes)?)),
                _ => {}
            }
        }
    }

    /// None: it has not come wholly. What is wrong shows as soon as it can.
    fn header(&self, wire: &[u8]) -> Result<Option<Header>, Violation> {
        let [first, second, rest @ ..] = wire else {
            return Ok(None);
        };
        if first & RESERVED != 0 {
            return Err(Violation::Reserved);
        }
        let opcode = Opcode::of(first & OPCODE).ok_or(Violation::UnknownOpcode)?;
        let fin = first & FIN != 0;
        self.check_order(opcode, fin)?;
        // Section 5.1
        if second & MASKED == 0 {
            return Err(Violation::Unmasked);
        }
        let short = second & LENGTH;
        if opcode.is_control() && usize::from(short) > MAX_CONTROL {
            return Err(Violation::LongControl);
        }
        let Some((payload, rest)) = length(short, rest)? else {
            return Ok(None);
        };
        if !opcode.is_control() && payload > self.max_frame {
            return Err(Violation::TooBig);
        }
        let Some(key) = rest.first_chunk() else {
            return Ok(None);
        };
        Ok(Some(Header {
            opcode,
            fin,
            payload,
            key: *key,
            len: wire.len() - rest.len() + KEY,
        }))
    }

    /// Section 5.4
    fn check_order(&self, opcode: Opcode, fin: bool) -> Result<(), Violation> {
        match opcode {
            Opcode::Text => Err(Violation::Text),
            Opcode::Binary if self.fragmented => Err(Violation::Interleaved),
            Opcode::Continuation if !self.fragmented => Err(Violation::LooseContinuation),
            opcode if opcode.is_control() && !fin => Err(Violation::FragmentedControl),
            _ => Ok(()),
        }
    }
}

/// The payload's length and what follows it. None: it has not come wholly.
fn length(short: u8, rest: &[u8]) -> Result<Option<(u64, &[u8])>, Violation> {
    let (length, least, rest) = match short {
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
    if length < least || length > i64::MAX as u64 {
        return Err(Violation::BadLength);
    }
    Ok(Some((length, rest)))
}

/// Moves what has come of a payload. True: that was all.
fn take_payload(open: &mut Open, buffer: &mut [u8], read: &mut usize, written: &mut usize) -> bool {
    let there = buffer.len().saturating_sub(*read);
    let part = usize::try_from(open.left).map_or(there, |left| left.min(there));
    let end = *read + part;
    unmask(buffer.get_mut(*read..end).unwrap_or_default(), open.key);
    if read != written {
        buffer.copy_within(*read..end, *written);
    }
    open.key.rotate_left(part % KEY);
    open.left -= part as u64;
    *read = end;
    *written += part;
    open.left == 0
}

/// Section 5.3
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

/// Section 5.5.1
fn close_code(payload: &[u8]) -> Result<Option<CloseCode>, Violation> {
    let Some((code, reason)) = payload.split_first_chunk() else {
        return match payload {
            [] => Ok(None),
            _ => Err(Violation::BadCloseCode),
        };
    };
    let code = CloseCode::received(u16::from_be_bytes(*code)).ok_or(Violation::BadCloseCode)?;
    match std::str::from_utf8(reason) {
        Ok(_) => Ok(Some(code)),
        Err(_) => Err(Violation::BadCloseReason),
    }
}
