//! Frames (section 4.2.3): type, channel, size, payload, end marker.

use crate::{FRAME_END, FRAME_OVERHEAD, Method, Shown};
use bytes::{BufMut, BytesMut};

/// The type of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A method with its arguments.
    Method,
    /// The properties and the body size of a message.
    Header,
    /// A part of a message body.
    Body,
    /// A heartbeat, on channel 0.
    Heartbeat,
    /// A type octet that the protocol does not define.
    Unknown(u8),
}

impl FrameKind {
    fn from_octet(octet: u8) -> FrameKind {
        match octet {
            1 => FrameKind::Method,
            2 => FrameKind::Header,
            3 => FrameKind::Body,
            8 => FrameKind::Heartbeat,
            other => FrameKind::Unknown(other),
        }
    }

    /// The type octet on the wire.
    pub fn octet(self) -> u8 {
        match self {
            FrameKind::Method => 1,
            FrameKind::Header => 2,
            FrameKind::Body => 3,
            FrameKind::Heartbeat => 8,
            FrameKind::Unknown(other) => other,
        }
    }
}

/// A complete frame, borrowed from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The type of the frame.
    pub kind: FrameKind,
    /// Channel number; 0 is the connection.
    pub channel: u16,
    /// The content without frame header and end marker.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// Size of the encoded frame in octets.
    pub fn wire_len(&self) -> usize {
        self.payload.len() + FRAME_OVERHEAD
    }

    /// Appends the encoded frame.
    pub fn encode(&self, out: &mut BytesMut) {
        begin_frame(out, self.kind.octet(), self.channel, self.payload.len());
        out.extend_from_slice(self.payload);
        out.put_u8(FRAME_END);
    }
}

/// A framing error. The start of the next frame is unknown, so later input cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("type {octet}, all octets = <<>>: {{frame_too_large,{size},{max}}}")]
    /// The frame header announces more than frame-max allows.
    TooLarge {
        /// Type octet of the frame.
        octet: u8,
        /// Payload size in octets that the frame header announces.
        size: u32,
        /// Payload size in octets that frame-max allows.
        max: u32,
    },
    /// The octet after the payload is not [`FRAME_END`].
    #[error("type {octet}, {payload}: {{invalid_frame_end_marker,{marker}}}")]
    EndMarker {
        /// Type octet of the frame.
        octet: u8,
        /// The first bytes of the payload.
        payload: Shown,
        /// The octet found in place of the end marker.
        marker: u8,
    },
}

/// Parses the frame at the front of `input`. Returns None if it is incomplete. A payload of
/// `frame_max` octets is accepted, although it exceeds frame-max by the frame overhead, because
/// some clients do not count the overhead.
#[inline]
pub fn parse_frame(input: &[u8], frame_max: u32) -> Result<Option<Frame<'_>>, FrameError> {
    let Some((head, rest)) = input.split_first_chunk::<7>() else {
        return Ok(None);
    };
    let [octet, c1, c0, s3, s2, s1, s0] = *head;
    let size = u32::from_be_bytes([s3, s2, s1, s0]);
    if size > frame_max {
        return Err(FrameError::TooLarge {
            octet,
            size,
            max: frame_max.saturating_sub(FRAME_OVERHEAD as u32),
        });
    }
    let Some((payload, end)) = rest.split_at_checked(size as usize) else {
        return Ok(None);
    };
    let Some(&marker) = end.first() else {
        return Ok(None);
    };
    if marker != FRAME_END {
        return Err(end_marker_error(octet, payload, marker));
    }
    Ok(Some(Frame {
        kind: FrameKind::from_octet(octet),
        channel: u16::from_be_bytes([c1, c0]),
        payload,
    }))
}

/// Separate from [`parse_frame`] to keep that function small enough for inlining.
#[cold]
#[inline(never)]
fn end_marker_error(octet: u8, payload: &[u8], marker: u8) -> FrameError {
    FrameError::EndMarker {
        octet,
        payload: Shown::of(payload),
        marker,
    }
}

#[inline]
fn begin_frame(out: &mut BytesMut, octet: u8, channel: u16, len: usize) {
    out.reserve(len + FRAME_OVERHEAD);
    out.put_u8(octet);
    out.put_u16(channel);
    out.put_u32(len as u32);
}

/// Appends a method frame.
#[inline]
pub fn encode_method(out: &mut BytesMut, channel: u16, method: &Method<'_>) {
    let at = out.len();
    begin_frame(out, 1, channel, 0);
    method.encode(out);
    let len = (out.len() - at - 7) as u32;
    if let Some(slot) = out.get_mut(at + 3..at + 7) {
        slot.copy_from_slice(&len.to_be_bytes());
    }
    out.put_u8(FRAME_END);
}

/// Appends a content header frame of class basic. `properties` are the encoded flags and list.
#[inline]
pub fn encode_content_header(out: &mut BytesMut, channel: u16, body_size: u64, properties: &[u8]) {
    begin_frame(out, 2, channel, 12 + properties.len());
    out.put_u16(60);
    out.put_u16(0);
    out.put_u64(body_size);
    out.extend_from_slice(properties);
    out.put_u8(FRAME_END);
}

/// Appends the header of a body frame. `len` bytes and [`FRAME_END`] must follow.
#[inline]
pub fn open_body(out: &mut BytesMut, channel: u16, len: usize) {
    begin_frame(out, 3, channel, len);
}

/// Appends a body as frames of at most `frame_max` octets.
pub fn encode_body(out: &mut BytesMut, channel: u16, body: &[u8], frame_max: u32) {
    for piece in body.chunks((frame_max as usize).saturating_sub(FRAME_OVERHEAD).max(1)) {
        open_body(out, channel, piece.len());
        out.extend_from_slice(piece);
        out.put_u8(FRAME_END);
    }
}

/// Appends a heartbeat frame.
pub fn encode_heartbeat(out: &mut BytesMut) {
    begin_frame(out, 8, 0, 0);
    out.put_u8(FRAME_END);
}
