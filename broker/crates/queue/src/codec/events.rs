//! Encodings of [`QueueEvent`] and its parts.

use crate::cursor::StreamReply;
use crate::{ConsumerId, Delivery, QueueEvent, QueueReply, RefusedPublishes, RejectReason};
use bytes::{BufMut, BytesMut};
use env::NodeId;
use message::Message;
use wire::{DecodeCause, Decoded, Reader, Varint, Wire, put_varint, wire_enum, wire_struct};

wire_enum!(QueueEvent, "a queue event" {
    1 = Applied { up_to: u64 as Varint },
    2 = Answer { seq: u64 as Varint, answer: QueueReply },
    3 = Deliver { consumer: ConsumerId, deliveries: Vec<Delivery> },
    4 = Cancelled { consumer: ConsumerId },
    5 = NotOwner { leader: Option<NodeId> },
    6 = Expecting { expected: u64 as Varint },
    7 = AppliedExcept { up_to: u64 as Varint, refused: Vec<RefusedPublishes> },
    8 = Resumed { consumer: ConsumerId, next: u64 as Varint },
    9 = Owner,
    10 = Activity { consumer: ConsumerId, is_active: bool },
    11 = TimedOut { consumer: ConsumerId, up_to: u64 as Varint },
});
wire_enum!(QueueReply, "a queue reply" {
    1 = Consuming,
    2 = Empty,
    3 = Count { messages: u64 as Varint, consumers: u32 as Varint },
    4 = NotTaken(reason: RejectReason),
    5 = Refused { code: u16, text: String },
    6 = EpochContinues,
    7 = Credited { last: u64 as Varint, available: u64 as Varint, drained: bool },
    8 = Stream(reply: StreamReply),
});
wire_enum!(RejectReason, "a reason for a rejected publish" { 0 = MaxLength, 1 = Unavailable });
wire_struct!(RefusedPublishes {
    from: u64 as Varint,
    to: u64 as Varint,
    why: RejectReason,
});

/// Forms of the counts in a delivery.
const UNCOUNTED: u8 = 0;
/// Failed deliveries only. Queues without the feature `delivery_counts` send it, which older versions can read.
const FAILED: u8 = 1;
/// Failed and all deliveries.
const FAILED_AND_ALL: u8 = 2;

impl Wire for Delivery {
    // The counts and the absence of annotations take a byte each.
    const MIN_LEN: usize = 1 + bool::MIN_LEN + 1 + 1 + 1 + Message::MIN_LEN;

    fn put(&self, out: &mut BytesMut) {
        put_varint(out, self.id);
        self.redelivered.put(out);
        match (self.attempts, self.acquired) {
            (None, _) => out.put_u8(UNCOUNTED),
            (Some(failed), 0) => {
                out.put_u8(FAILED);
                put_varint(out, failed.into());
            }
            (Some(failed), acquired) => {
                out.put_u8(FAILED_AND_ALL);
                put_varint(out, failed.into());
                put_varint(out, acquired.into());
            }
        }
        put_varint(out, self.left);
        self.annotations.put(out);
        self.message.put(out);
    }

    fn get(from: &mut Reader<'_>) -> Decoded<Delivery> {
        let (id, redelivered) = (from.varint()?, from.get()?);
        let (attempts, acquired) = match from.u8()? {
            UNCOUNTED => (None, 0),
            FAILED => (Some(from.varint32()?), 0),
            FAILED_AND_ALL => (Some(from.varint32()?), from.varint32()?),
            other => return Err(from.error(DecodeCause::Tag("counts of a delivery", other))),
        };
        Ok(Delivery {
            id,
            redelivered,
            attempts,
            acquired,
            left: from.varint()?,
            annotations: from.get()?,
            message: from.get()?,
        })
    }
}
