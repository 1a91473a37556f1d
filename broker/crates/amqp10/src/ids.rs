use std::fmt;

use codec_amqp10::MAX_DELIVERY_TAG_SIZE;

/// A session of a connection. An id is not used again when its session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId {
    pub(crate) channel: u16,
    pub(crate) generation: u32,
}

impl SessionId {
    /// The channel of the frames that the engine sends.
    pub fn channel(self) -> u16 {
        self.channel
    }
}

/// A link of a connection. An id is not used again when its link was detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId {
    pub(crate) channel: u16,
    /// The handle of the frames that the engine sends.
    pub(crate) handle: u16,
    pub(crate) generation: u32,
}

impl LinkId {
    /// The channel of the frames that the engine sends.
    pub fn channel(self) -> u16 {
        self.channel
    }

    /// A number that identifies the link within its connection. Never 0, and not used again before it wraps.
    pub fn number(self) -> u32 {
        self.generation
    }

    /// The handle in the frames that the engine sends.
    pub fn handle(self) -> u32 {
        u32::from(self.handle)
    }
}

/// At most 32 bytes: a delivery tag or a transaction id.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct ShortBytes {
    len: u8,
    bytes: [u8; MAX_DELIVERY_TAG_SIZE],
}

impl ShortBytes {
    /// Copies the bytes. None if there are more than 32.
    #[inline]
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; MAX_DELIVERY_TAG_SIZE];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self {
            len: from.len() as u8,
            bytes,
        })
    }

    /// The bytes.
    #[inline]
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl fmt::Debug for ShortBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x?}", self.as_slice())
    }
}
