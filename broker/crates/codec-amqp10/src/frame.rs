use crate::output::StackBuffer;
use crate::{Encode, MAX_DELIVERY_TAG_SIZE, Output, Transfer};

/// Bytes of a frame header (section 2.3.1).
pub const FRAME_HEADER_SIZE: usize = 8;
/// The largest frame that every peer accepts (section 2.8.19, `MIN-MAX-FRAME-SIZE`).
pub const MIN_MAX_FRAME_SIZE: u32 = 512;
/// Bytes of a protocol header (section 2.2).
pub const PROTOCOL_HEADER_SIZE: usize = 8;

/// The layer that a protocol header starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolId {
    /// The AMQP transport (section 2.2).
    Amqp,
    /// TLS inside of the connection (section 5.2.1).
    Tls,
    /// SASL (section 5.3.1).
    Sasl,
    /// A layer that the standard does not define.
    Other(u8),
}

/// The header that starts a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProtocolHeader {
    /// The layer.
    pub id: ProtocolId,
    /// Major version, minor version and revision.
    pub version: [u8; 3],
}

impl ProtocolHeader {
    /// The AMQP transport, version 1.0.0.
    pub const AMQP: Self = Self::new(ProtocolId::Amqp);
    /// SASL, version 1.0.0.
    pub const SASL: Self = Self::new(ProtocolId::Sasl);
    /// TLS, version 1.0.0.
    pub const TLS: Self = Self::new(ProtocolId::Tls);

    const fn new(id: ProtocolId) -> Self {
        Self {
            id,
            version: [1, 0, 0],
        }
    }

    /// Reads a protocol header. None if the bytes do not start with the four letters of AMQP.
    pub fn parse(bytes: &[u8; PROTOCOL_HEADER_SIZE]) -> Option<Self> {
        let [b'A', b'M', b'Q', b'P', id, version @ ..] = *bytes else {
            return None;
        };
        Some(Self {
            id: match id {
                0 => ProtocolId::Amqp,
                2 => ProtocolId::Tls,
                3 => ProtocolId::Sasl,
                other => ProtocolId::Other(other),
            },
            version,
        })
    }

    /// Returns true for version 1.0.0, the only one of this standard.
    pub fn is_supported_version(&self) -> bool {
        self.version == [1, 0, 0]
    }

    /// The header's bytes.
    pub const fn to_bytes(self) -> [u8; PROTOCOL_HEADER_SIZE] {
        let id = match self.id {
            ProtocolId::Amqp => 0,
            ProtocolId::Tls => 2,
            ProtocolId::Sasl => 3,
            ProtocolId::Other(id) => id,
        };
        let [major, minor, revision] = self.version;
        [b'A', b'M', b'Q', b'P', id, major, minor, revision]
    }
}

/// The type of a frame (section 2.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// A frame of the AMQP transport.
    Amqp,
    /// A frame of the SASL layer.
    Sasl,
}

/// A frame of either layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The frame's type.
    pub kind: FrameKind,
    /// The channel; without a meaning in SASL frames.
    pub channel: u16,
    /// Performative and payload. No bytes: a heartbeat.
    pub body: &'a [u8],
    /// Bytes of the whole frame.
    pub size: usize,
}

/// Bytes that form no frame. The condition is always `amqp:connection:framing-error`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The size is below that of the header.
    #[error("frame size {0} is below the size of the frame header, {FRAME_HEADER_SIZE}")]
    TooSmall(u32),
    /// The size is above the negotiated maximum.
    #[error("frame size {size} is above the maximum of {max}")]
    TooLarge {
        /// The frame's size.
        size: u32,
        /// The maximum.
        max: u32,
    },
    /// The data offset is inside of the header or behind the frame.
    #[error("data offset {offset} (in words of 4 bytes) is not in a frame of {size} bytes")]
    DataOffset {
        /// The data offset.
        offset: u8,
        /// The frame's size.
        size: u32,
    },
    /// The standard defines no such frame type.
    #[error("unknown frame type {0:#04x}")]
    UnknownType(u8),
}

/// Reads the frame at the start of `bytes`. None if it is not complete.
///
/// The header is checked as soon as it is there, so that a frame above `max_frame_size` is not awaited.
#[inline]
pub fn parse_frame(bytes: &[u8], max_frame_size: u32) -> Result<Option<Frame<'_>>, FrameError> {
    let Some((&[s0, s1, s2, s3, offset, kind, c0, c1], _)) =
        bytes.split_first_chunk::<FRAME_HEADER_SIZE>()
    else {
        return Ok(None);
    };
    let size = u32::from_be_bytes([s0, s1, s2, s3]);
    if (size as usize) < FRAME_HEADER_SIZE {
        return Err(FrameError::TooSmall(size));
    }
    if size > max_frame_size {
        return Err(FrameError::TooLarge {
            size,
            max: max_frame_size,
        });
    }
    let start = usize::from(offset) * 4;
    if start < FRAME_HEADER_SIZE || start > size as usize {
        return Err(FrameError::DataOffset { offset, size });
    }
    let kind = match kind {
        0 => FrameKind::Amqp,
        1 => FrameKind::Sasl,
        other => return Err(FrameError::UnknownType(other)),
    };
    let Some(body) = bytes.get(start..size as usize) else {
        return Ok(None);
    };
    Ok(Some(Frame {
        kind,
        channel: u16::from_be_bytes([c0, c1]),
        body,
        size: size as usize,
    }))
}

#[inline]
fn begin<O: Output>(out: &mut O, kind: u8, channel: u16) -> usize {
    let start = out.position();
    let [c0, c1] = channel.to_be_bytes();
    out.put(&[0, 0, 0, 0, 2, kind, c0, c1]);
    start
}

/// Writes the size into the header.
///
/// # Panics
///
/// If the frame is 4 GiB or larger; callers bound it by the peer's maximum.
#[inline]
fn end<O: Output>(out: &mut O, start: usize) {
    let size = u32::try_from(out.position() - start).expect("a frame is smaller than 4 GiB");
    out.written(start)[..4].copy_from_slice(&size.to_be_bytes());
}

/// Appends a frame of the AMQP transport.
#[inline]
pub fn encode_frame<O: Output>(out: &mut O, channel: u16, body: &(impl Encode + ?Sized)) {
    let start = begin(out, 0, channel);
    body.encode(out);
    end(out, start);
}

/// Appends a frame of the SASL layer.
pub fn encode_sasl_frame<O: Output>(out: &mut O, body: &(impl Encode + ?Sized)) {
    let start = begin(out, 1, 0);
    body.encode(out);
    end(out, start);
}

/// Appends a frame without a body.
pub fn encode_heartbeat<O: Output>(out: &mut O) {
    let start = begin(out, 0, 0);
    end(out, start);
}

/// Most bytes of a frame header and a transfer without a state: 8, the headers of its type and list with 6, and the fields.
const TRANSFER_HEAD: usize = 14 + 3 * 5 + (2 + MAX_DELIVERY_TAG_SIZE) + 2 + 2 + 1 + 3 + 5;

/// Appends the header of a transfer frame and the performative. The usual one is written in one piece.
#[inline]
fn begin_transfer<O: Output>(out: &mut O, channel: u16, transfer: &Transfer<'_>) {
    let tag = transfer.delivery_tag.map_or(0, <[u8]>::len);
    if transfer.state.is_some() || tag > MAX_DELIVERY_TAG_SIZE {
        begin(out, 0, channel);
        transfer.encode(out);
        return;
    }
    let mut head = StackBuffer::<TRANSFER_HEAD>::new();
    begin(&mut head, 0, channel);
    if !transfer.encode_plain(&mut head) {
        transfer.encode(&mut head);
    }
    out.put(head.as_slice());
}

/// Appends a frame with as much of the payload as `max_frame_size` leaves room for, and returns the number of payload bytes in it.
///
/// The payload is `parts` without their first `skip` bytes. `transfer.more` is set if payload is left over. The maximum has to
/// be [`MIN_MAX_FRAME_SIZE`] or more, and a transfer with a delivery state that does not fit in it must not be passed.
#[inline]
pub fn encode_transfer_frame<O: Output, P: AsRef<[u8]>>(
    out: &mut O,
    channel: u16,
    transfer: &mut Transfer<'_>,
    parts: &[P],
    mut skip: usize,
    max_frame_size: usize,
) -> usize {
    debug_assert!(max_frame_size >= MIN_MAX_FRAME_SIZE as usize);
    let total: usize = parts.iter().map(|part| part.as_ref().len()).sum();
    debug_assert!(skip <= total);
    let left = total - skip;
    let start = out.position();
    transfer.more = false;
    begin_transfer(out, channel, transfer);
    let mut taken = left;
    if out.position() - start + left > max_frame_size {
        out.truncate_to(start);
        transfer.more = true;
        begin_transfer(out, channel, transfer);
        taken = left.min(max_frame_size.saturating_sub(out.position() - start));
        debug_assert!(taken > 0, "the performative leaves room for payload");
    }
    let mut room = taken;
    for part in parts {
        let part = part.as_ref();
        if skip >= part.len() {
            skip -= part.len();
            continue;
        }
        let part = &part[std::mem::take(&mut skip)..];
        let part = &part[..room.min(part.len())];
        out.put(part);
        room -= part.len();
        if room == 0 {
            break;
        }
    }
    debug_assert_eq!(room, 0, "all of the payload that was counted is written");
    end(out, start);
    taken
}
