//! Encoding of server frames, which are never masked and never fragmented.

use crate::{CloseCode, Opcode};
use bytes::{BufMut, BytesMut};

/// Maximum payload of a control frame in bytes (section 5.5).
pub const MAX_CONTROL: usize = 125;

/// Marks the last frame of a message.
const FIN: u8 = 0x80;

/// An encoded frame header.
#[derive(Clone, Copy, Debug)]
pub struct FrameHeader {
    bytes: [u8; 10],
    len: usize,
}

impl FrameHeader {
    /// The header of a binary frame with `payload` bytes of payload.
    pub fn binary(payload: usize) -> FrameHeader {
        FrameHeader::new(Opcode::Binary, payload)
    }

    fn new(opcode: Opcode, payload: usize) -> FrameHeader {
        let mut bytes = [0; 10];
        bytes[0] = FIN | opcode.bits();
        // The shortest encoding is required (section 5.2).
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

    /// The encoded header, 2 to 10 bytes. The payload must follow.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// Appends a pong with the payload of the ping.
pub fn pong(payload: &[u8], out: &mut BytesMut) {
    control(Opcode::Pong, payload, out);
}

/// Appends a close frame. None: without a status code.
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
