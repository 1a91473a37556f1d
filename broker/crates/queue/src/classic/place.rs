//! Names of what lies in a classic queue's files: segments, places in them, messages on their way in and out.

use super::record::put_message;
use bytes::BytesMut;
use message::Message;

/// Bits of a segment's number below its lane.
const LANE_SHIFT: u32 = 32;

/// A segment's number: its lane (the priority of its messages) and a count from 1 within the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number(u64);

impl std::fmt::LowerHex for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::LowerHex::fmt(&self.0, f)
    }
}

impl Number {
    pub fn new(lane: u8, count: u32) -> Number {
        Number(u64::from(lane) << LANE_SHIFT | u64::from(count))
    }

    /// None when a file of this number is not of our making.
    pub fn parse(stem: &str) -> Option<Number> {
        let number = u64::from_str_radix(stem, 16).ok()?;
        u8::try_from(number >> LANE_SHIFT).ok()?;
        Some(Number(number))
    }

    /// As [`Number::value`] gave it.
    pub fn of(value: u64) -> Number {
        Number(value)
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
pub(super) struct Place {
    pub segment: Number,
    pub offset: u64,
}

/// A message to be written.
pub(super) struct Draft<'a> {
    pub seq: u64,
    pub lane: u8,
    pub persistent: bool,
    /// Wall clock in milliseconds; 0 is never.
    pub expires: u64,
    pub body: u32,
    pub message: &'a Message,
}

/// What of a batch goes to one segment.
pub(super) struct Part {
    pub number: Number,
    /// Where in the segment it goes.
    pub at: u64,
    pub raw: BytesMut,
    pub last_seq: u64,
    pub messages: u64,
    pub persistent: u64,
    pub persistent_bytes: u64,
}

impl Part {
    /// `raw`: what goes before its messages.
    pub fn new(number: Number, at: u64, raw: BytesMut) -> Part {
        Part {
            number,
            at,
            raw,
            last_seq: 0,
            messages: 0,
            persistent: 0,
            persistent_bytes: 0,
        }
    }

    pub fn push(&mut self, draft: &Draft<'_>) -> Place {
        let place = Place {
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
        place
    }
}

/// A message that was read.
#[derive(Debug)]
pub(super) struct Loaded {
    pub seq: u64,
    pub persistent: bool,
    /// Wall clock in milliseconds; 0 is never.
    pub expires: u64,
    pub body: u32,
    pub place: Place,
    pub message: Message,
}
