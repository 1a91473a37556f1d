//! Names of what lies in a classic queue's files: segments, places in them, messages on their way in and out.

use super::record::put_message;
use bytes::BytesMut;
use message::Message;

/// Bits of a segment's number below its lane.
const LANE_SHIFT: u32 = 32;

/// A segment's number: its lane (the priority of its messages) and a count from 1 within the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SegmentId(u64);

impl std::fmt::LowerHex for SegmentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::LowerHex::fmt(&self.0, f)
    }
}

impl SegmentId {
    pub fn new(lane: u8, count: u32) -> SegmentId {
        SegmentId(u64::from(lane) << LANE_SHIFT | u64::from(count))
    }

    /// None when a file of this number is not of our making.
    pub fn parse(stem: &str) -> Option<SegmentId> {
        let number = u64::from_str_radix(stem, 16).ok()?;
        u8::try_from(number >> LANE_SHIFT).ok()?;
        Some(SegmentId(number))
    }

    /// As [`SegmentId::value`] gave it.
    pub fn of(value: u64) -> SegmentId {
        SegmentId(value)
    }

    pub fn value(self) -> u64 {
        self.0
    }

    pub fn lane(self) -> u8 {
        (self.0 >> LANE_SHIFT) as u8
    }

    pub fn count(self) -> u32 {
        self.0 as u32
    }
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MessageLocation {
    pub segment: SegmentId,
    pub offset: u64,
}

/// A message to be written.
pub(super) struct PendingWrite<'a> {
    pub seq: u64,
    pub lane: u8,
    pub persistent: bool,
    /// Wall clock in milliseconds; 0 is never.
    pub expires: u64,
    pub body: u32,
    pub message: &'a Message,
}

/// What of a batch goes to one segment.
pub(super) struct SegmentWrite {
    pub number: SegmentId,
    /// Where in the segment it goes.
    pub at: u64,
    pub raw: BytesMut,
    pub last_seq: u64,
    pub messages: u64,
    pub persistent: u64,
    pub persistent_bytes: u64,
}

impl SegmentWrite {
    /// `raw`: what goes before its messages.
    pub fn new(number: SegmentId, at: u64, raw: BytesMut) -> SegmentWrite {
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

    pub fn push(&mut self, draft: &PendingWrite<'_>) -> MessageLocation {
        let location = MessageLocation {
            segment: self.number,
            offset: self.at + self.raw.len() as u64,
        };
        put_message(
            &mut self.raw,
            draft.seq,
            draft.persistent,
            draft.expires,
            draft.body,
            draft.message.as_bytes(),
        );
        self.last_seq = draft.seq;
        self.messages += 1;
        if draft.persistent {
            self.persistent += 1;
            self.persistent_bytes += u64::from(draft.body);
        }
        location
    }
}

/// A message that was read.
#[derive(Debug)]
pub(super) struct LoadedMessage {
    pub seq: u64,
    pub persistent: bool,
    /// Wall clock in milliseconds; 0 is never.
    pub expires: u64,
    pub body: u32,
    pub location: MessageLocation,
    pub message: Message,
}
