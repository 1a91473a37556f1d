//! The server side of WebSocket (RFC 6455) for protocols in binary frames, without I/O and without
//! buffers. Section numbers refer to the RFC.
//!
//! [`answer`] handles the opening handshake. Afterwards [`Decoder`] removes frame headers in the
//! receive buffer: payload moves to the front, regardless of frame boundaries. [`FrameHeader`],
//! [`pong`] and [`close`] encode frames. Extensions are not supported.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod close;
mod decoder;
mod encoder;
mod handshake;

pub use close::CloseCode;
pub use decoder::{DecodeStep, Decoder, ProtocolViolation};
pub use encoder::{FrameHeader, MAX_CONTROL, close, pong};
pub use handshake::{EndpointOffer, HandshakeRefusal, HandshakeResponse, MAX_REQUEST, answer};

/// The type of a frame (section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// A continuation of a fragmented message.
    Continuation,
    /// UTF-8 text. The broker's protocols are binary, so this is a protocol violation.
    Text,
    /// Application data.
    Binary,
    /// The last frame of its sender.
    Close,
    /// A request for a pong with the same payload.
    Ping,
    /// The answer to a ping, or an unsolicited pong.
    Pong,
}

impl Opcode {
    fn of(bits: u8) -> Option<Opcode> {
        Some(match bits {
            0x0 => Opcode::Continuation,
            0x1 => Opcode::Text,
            0x2 => Opcode::Binary,
            0x8 => Opcode::Close,
            0x9 => Opcode::Ping,
            0xA => Opcode::Pong,
            _ => return None,
        })
    }

    fn bits(self) -> u8 {
        match self {
            Opcode::Continuation => 0x0,
            Opcode::Text => 0x1,
            Opcode::Binary => 0x2,
            Opcode::Close => 0x8,
            Opcode::Ping => 0x9,
            Opcode::Pong => 0xA,
        }
    }

    fn is_control(self) -> bool {
        self.bits() & 0x8 != 0
    }
}
