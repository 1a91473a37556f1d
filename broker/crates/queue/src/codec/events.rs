//! Events.

use super::reader::{put_message, put_optional, put_text, put_varint};
use super::{CodecError, Reader, VERSION, put_annotations, take_annotations};
use crate::{ConsumerId, Delivery, QueueEvent, QueueReply, RefusedPublishes, RejectReason};
use bytes::{BufMut, Bytes, BytesMut};
use env::NodeId;
use std::sync::Arc;

const APPLIED: u8 = 1;
const ANSWER: u8 = 2;
const DELIVER: u8 = 3;
const CANCELLED: u8 = 4;
const NOT_OWNER: u8 = 5;
const EXPECTING: u8 = 6;
const APPLIED_EXCEPT: u8 = 7;
const RESUMED: u8 = 8;
const OWNER: u8 = 9;

const CONSUMING: u8 = 1;
const EMPTY: u8 = 2;
const COUNT: u8 = 3;
const NOT_TAKEN: u8 = 4;
const REFUSED: u8 = 5;
const GOES_ON: u8 = 6;
const CREDITED: u8 = 7;

/// The least bytes a delivery takes: id, flags, left, message length.
const DELIVERY_MIN: usize = 7;

/// A list of events of one queue for one session, with its version.
pub fn encode_events(events: &[QueueEvent]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(VERSION);
    for event in events {
        put_event(&mut out, event);
    }
    out.freeze()
}

pub fn decode_events(bytes: Bytes) -> Result<Vec<QueueEvent>, CodecError> {
    let mut reader = Reader::new(bytes);
    match reader.u8()? {
        VERSION => {}
        other => return Err(CodecError::Version(other)),
    }
    let mut events = Vec::new();
    while !reader.is_empty() {
        events.push(take_event(&mut reader)?);
    }
    Ok(events)
}

/// One event without a version, for frames that carry more.
pub fn put_event(out: &mut BytesMut, event: &QueueEvent) {
    match event {
        QueueEvent::Applied { up_to } => {
            out.put_u8(APPLIED);
            put_varint(out, *up_to);
        }
        QueueEvent::AppliedExcept { up_to, refused } => {
            out.put_u8(APPLIED_EXCEPT);
            put_varint(out, *up_to);
            put_varint(out, refused.len() as u64);
            for refusal in refused {
                put_refusal(out, refusal);
            }
        }
        QueueEvent::Answer { seq, answer } => {
            out.put_u8(ANSWER);
            put_varint(out, *seq);
            put_answer(out, answer);
        }
        QueueEvent::Deliver {
            consumer,
            deliveries,
        } => {
            out.put_u8(DELIVER);
            put_varint(out, consumer.0.into());
            put_varint(out, deliveries.len() as u64);
            for delivery in deliveries {
                put_delivery(out, delivery);
            }
        }
        QueueEvent::Cancelled { consumer } => {
            out.put_u8(CANCELLED);
            put_varint(out, consumer.0.into());
        }
        QueueEvent::Resumed { consumer, next } => {
            out.put_u8(RESUMED);
            put_varint(out, consumer.0.into());
            put_varint(out, *next);
        }
        QueueEvent::Owner => out.put_u8(OWNER),
        QueueEvent::NotOwner { leader } => {
            out.put_u8(NOT_OWNER);
            put_optional(out, leader.map(|n| n.0));
        }
        QueueEvent::Expecting { expected } => {
            out.put_u8(EXPECTING);
            put_varint(out, *expected);
        }
    }
}

pub fn take_event(reader: &mut Reader) -> Result<QueueEvent, CodecError> {
    Ok(match reader.u8()? {
        APPLIED => QueueEvent::Applied {
            up_to: reader.varint()?,
        },
        APPLIED_EXCEPT => {
            let up_to = reader.varint()?;
            let count = reader.count(3)?;
            let mut refused = Vec::with_capacity(count);
            for _ in 0..count {
                refused.push(take_refusal(reader)?);
            }
            QueueEvent::AppliedExcept { up_to, refused }
        }
        ANSWER => QueueEvent::Answer {
            seq: reader.varint()?,
            answer: take_answer(reader)?,
        },
        DELIVER => {
            let consumer = ConsumerId(reader.varint32()?);
            let count = reader.count(DELIVERY_MIN)?;
            let mut deliveries = Vec::with_capacity(count);
            for _ in 0..count {
                deliveries.push(take_delivery(reader)?);
            }
            QueueEvent::Deliver {
                consumer,
                deliveries,
            }
        }
        CANCELLED => QueueEvent::Cancelled {
            consumer: ConsumerId(reader.varint32()?),
        },
        RESUMED => QueueEvent::Resumed {
            consumer: ConsumerId(reader.varint32()?),
            next: reader.varint()?,
        },
        OWNER => QueueEvent::Owner,
        NOT_OWNER => QueueEvent::NotOwner {
            leader: reader.optional()?.map(NodeId),
        },
        EXPECTING => QueueEvent::Expecting {
            expected: reader.varint()?,
        },
        found => {
            return Err(CodecError::Kind {
                what: "event",
                found,
            });
        }
    })
}

pub(crate) fn put_refusal(out: &mut BytesMut, refusal: &RefusedPublishes) {
    put_varint(out, refusal.from);
    put_varint(out, refusal.to.saturating_sub(refusal.from));
    put_reject(out, refusal.why);
}

pub(crate) fn take_refusal(reader: &mut Reader) -> Result<RefusedPublishes, CodecError> {
    let from = reader.varint()?;
    let to = from
        .checked_add(reader.varint()?)
        .ok_or(CodecError::Range)?;
    Ok(RefusedPublishes {
        from,
        to,
        why: take_reject(reader)?,
    })
}

fn put_reject(out: &mut BytesMut, why: RejectReason) {
    out.put_u8(match why {
        RejectReason::MaxLength => 0,
        RejectReason::Unavailable => 1,
    });
}

fn take_reject(reader: &mut Reader) -> Result<RejectReason, CodecError> {
    match reader.u8()? {
        0 => Ok(RejectReason::MaxLength),
        1 => Ok(RejectReason::Unavailable),
        found => Err(CodecError::Kind {
            what: "reject",
            found,
        }),
    }
}

pub(crate) fn put_answer(out: &mut BytesMut, answer: &QueueReply) {
    match answer {
        QueueReply::Consuming => out.put_u8(CONSUMING),
        QueueReply::GoesOn => out.put_u8(GOES_ON),
        QueueReply::Empty => out.put_u8(EMPTY),
        QueueReply::Count {
            messages,
            consumers,
        } => {
            out.put_u8(COUNT);
            put_varint(out, *messages);
            put_varint(out, (*consumers).into());
        }
        QueueReply::Credited {
            last,
            available,
            drained,
        } => {
            out.put_u8(CREDITED);
            put_varint(out, *last);
            put_varint(out, *available);
            out.put_u8((*drained).into());
        }
        QueueReply::NotTaken(why) => {
            out.put_u8(NOT_TAKEN);
            put_reject(out, *why);
        }
        QueueReply::Refused { code, text } => {
            out.put_u8(REFUSED);
            out.put_u16(*code);
            put_text(out, text);
        }
    }
}

pub(crate) fn take_answer(reader: &mut Reader) -> Result<QueueReply, CodecError> {
    Ok(match reader.u8()? {
        CONSUMING => QueueReply::Consuming,
        GOES_ON => QueueReply::GoesOn,
        EMPTY => QueueReply::Empty,
        COUNT => QueueReply::Count {
            messages: reader.varint()?,
            consumers: reader.varint32()?,
        },
        CREDITED => QueueReply::Credited {
            last: reader.varint()?,
            available: reader.varint()?,
            drained: reader.bool()?,
        },
        NOT_TAKEN => QueueReply::NotTaken(take_reject(reader)?),
        REFUSED => QueueReply::Refused {
            code: u16::from_be_bytes(reader.fixed()?),
            text: reader.text()?.to_string(),
        },
        found => {
            return Err(CodecError::Kind {
                what: "answer",
                found,
            });
        }
    })
}

fn put_delivery(out: &mut BytesMut, delivery: &Delivery) {
    put_varint(out, delivery.id);
    let annotations = delivery.annotations.as_deref();
    out.put_u8(
        u8::from(delivery.redelivered)
            | u8::from(delivery.attempts.is_some()) << 1
            | u8::from(annotations.is_some()) << 2,
    );
    if let Some(attempts) = delivery.attempts {
        put_varint(out, attempts.into());
    }
    put_varint(out, delivery.left);
    if let Some(annotations) = annotations {
        put_annotations(out, annotations);
    }
    put_message(out, &delivery.message);
}

fn take_delivery(reader: &mut Reader) -> Result<Delivery, CodecError> {
    let id = reader.varint()?;
    let flags = reader.u8()?;
    if flags > 7 {
        return Err(CodecError::Range);
    }
    let attempts = if flags & 2 != 0 {
        Some(reader.varint32()?)
    } else {
        None
    };
    let left = reader.varint()?;
    let annotations = match flags & 4 {
        0 => None,
        _ => Some(Arc::new(take_annotations(reader)?)),
    };
    Ok(Delivery {
        id,
        redelivered: flags & 1 != 0,
        attempts,
        left,
        message: reader.message()?,
        annotations,
    })
}
