//! Encodings of [`QueueEvent`] and its parts.

use crate::cursor::StreamReply;
use crate::{
    Annotations, ConsumerId, Delivery, QueueEvent, QueueReply, RefusedPublishes, RejectReason,
};
use env::NodeId;
use message::Message;
use std::sync::Arc;
use wire::{Varint, wire_enum, wire_struct};

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
});
wire_enum!(QueueReply, "a queue reply" {
    1 = Consuming,
    2 = Empty,
    3 = Count { messages: u64 as Varint, consumers: u32 as Varint },
    4 = NotTaken(reason: RejectReason),
    5 = Refused { code: u16, text: String },
    6 = GoesOn,
    7 = Credited { last: u64 as Varint, available: u64 as Varint, drained: bool },
    8 = Stream(reply: StreamReply),
});
wire_enum!(RejectReason, "a reason for a rejected publish" { 0 = MaxLength, 1 = Unavailable });
wire_struct!(RefusedPublishes {
    from: u64 as Varint,
    to: u64 as Varint,
    why: RejectReason,
});
wire_struct!(Delivery {
    id: u64 as Varint,
    redelivered: bool,
    attempts: Option<u32> as Varint,
    left: u64 as Varint,
    annotations: Option<Arc<Annotations>>,
    message: Message,
});
