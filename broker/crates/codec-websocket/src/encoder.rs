//! Frames from the server: never masked, never in fragments.

use crate::{CloseCode, Opcode};
use bytes::{BufMut, BytesMut};

/// Bytes of a control frame's payload at most (section 5.5).
pub const MAX_CONTROL: usize = 125;

/// FIN: the first frame of a message is its last.
const FIN: u8 = 0x80;

/// The bytes in front of a payload.
#[derive(Clone, Copy, Debug)]
pub struct FrameHeader {
    bytes: [u8; 10],
    len: usize,
}

impl FrameHeader {
    /// Of a binary frame with a payload of `payload` bytes.
    pub fn binary(payload: usize) -> FrameHeader {
        FrameHeader::new(Opcode::Binary, payload)
    }

    fn new(opcode: Opcode, payload: usize) -> FrameHeader {
        let mut bytes = [0; 10];
        bytes[0] = FIN | opcode.bits();
        // As few bytes as possible (section 5.2).
        let len = match payload {
            0..=125 => {
                bytes[1] = payload as u8;
                2
            }
            126..=0xFFFF => {
                bytes[1] = 126;
                bytes[2..4].copy_from_slice(&(payload as u16).to_be_bytes());
                4
            }
            _ => {
                bytes[1] = 127;
                bytes[2..].copy_from_slice(&(payload as u64).to_be_bytes());
                10
            }
        };
        FrameHeader { bytes, len }
    }

    /// The encoded header, 2 to 10 bytes; the payload follows.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The answer to a ping, with its payload.
pub fn pong(payload: &[u8], out: &mut BytesMut) {
    control(Opcode::Pong, payload, out);
}

/// A close frame; None: without a status code.
pub fn close(code: Option<CloseCode>, out: &mut BytesMut) {
    match code {
        Some(code) => control(Opcode::Close, &code.number().to_be_bytes(), out),
        None => control(Opcode::Close, &[], out),
    }
}

fn control(opcode: Opcode, payload: &[u8], out: &mut BytesMut) {
    let payload = payload.get(..MAX_CONTROL).unwrap_or(payload);
    out.put_slice(FrameHeader::new(opcode, payload.len()).bytes());
    out.put_slice(payload);
}
