//! Segment numbers, message locations, and messages on their way to and from a classic queue's files.

use super::record::put_message;
use bytes::BytesMut;
use message::Message;

/// A segment number has the priority above this bit.
const PRIORITY_SHIFT: u32 = 32;

/// Number of a segment: the priority of its messages, and a count from 1 within the priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentId(u64);

impl std::fmt::LowerHex for SegmentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::LowerHex::fmt(&self.0, f)
    }
}

impl SegmentId {
    pub(crate) fn new(priority: u8, count: u32) -> SegmentId {
        SegmentId(u64::from(priority) << PRIORITY_SHIFT | u64::from(count))
    }

    /// Parses a file name without its extension. None: this queue did not create the file.
    pub(crate) fn parse(stem: &str) -> Option<SegmentId> {
        let number = u64::from_str_radix(stem, 16).ok()?;
        u8::try_from(number >> PRIORITY_SHIFT).ok()?;
        Some(SegmentId(number))
    }

    /// The inverse of [`SegmentId::value`].
    pub(crate) fn of(value: u64) -> SegmentId {
        SegmentId(value)
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }

    pub(crate) fn priority(self) -> u8 {
        (self.0 >> PRIORITY_SHIFT) as u8
    }

    pub(crate) fn count(self) -> u32 {
        self.0 as u32
    }
}

/// Location of a message in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageLocation {
    pub segment: SegmentId,
    pub offset: u64,
}

/// A message to be written.
pub(super) struct PendingWrite<'a> {
    pub seq: u64,
    pub priority: u8,
    pub persistent: bool,
    /// Wall clock in milliseconds; 0: never.
    pub expires: u64,
    pub body: u32,
    pub message: &'a Message,
}

/// The part of a batch that goes to one segment.
pub(super) struct SegmentWrite {
    pub number: SegmentId,
    /// Offset in the segment.
    pub at: u64,
    pub raw: BytesMut,
    pub last_seq: u64,
    pub messages: u64,
    pub persistent: u64,
    pub persistent_bytes: u64,
}

impl SegmentWrite {
    /// `raw` is written before the messages.
    pub(crate) fn new(number: SegmentId, at: u64, raw: BytesMut) -> SegmentWrite {
        SegmentWrite {
            number,
            at,
            raw,
            last_seq: 0,
            messages: 0,
            persistent: 0,
            persistent_bytes: 0,
        }
    }

    pub(crate) fn push(&mut self, write: &PendingWrite<'_>) -> MessageLocation {
        let location = MessageLocation {
            segment: self.number,
            offset: self.at + self.raw.len() as u64,
        };
        put_message(
            &mut self.raw,
            write.seq,
            write.persistent,
            write.expires,
            write.body,
            write.message.as_bytes(),
        );
        self.last_seq = write.seq;
        self.messages += 1;
        if write.persistent {
            self.persistent += 1;
            self.persistent_bytes += u64::from(write.body);
        }
        location
    }
}

/// A message that was read from a segment.
#[derive(Debug)]
pub(super) struct LoadedMessage {
    pub seq: u64,
    pub persistent: bool,
    /// Wall clock in milliseconds; 0: never.
    pub expires: u64,
    pub body: u32,
    pub location: MessageLocation,
    pub message: Message,
}
