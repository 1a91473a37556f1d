//! Requests, resumes and settings.

use super::reader::{put_message, put_optional, put_signed, put_text, put_varint};
use super::{CodecError, Reader, VERSION, put_table, take_table};
use crate::{
    Annotations, ConsumerId, ConsumerSpec, DeadLettering, DeliveryProgress, EpochConsumer,
    FlowMode, Modification, Overflow, QueueMessage, QueueSettings, Request, RequestBody,
    ResumeConsumer, SessionEpoch, SessionId, Settlement, SettlementOutcome,
};
use bytes::{BufMut, Bytes, BytesMut};
use env::{Incarnation, NodeId};

const REQUEST: u8 = 1;
const RESUME: u8 = 2;
const RECEIVED: u8 = 3;

const PUBLISH: u8 = 1;
const CONSUME: u8 = 2;
const CANCEL: u8 = 3;
const SETTLE: u8 = 4;
const GET: u8 = 5;
const RECOVER: u8 = 6;
const PURGE: u8 = 7;
const STAT: u8 = 8;
const DELETE: u8 = 9;
const CLOSE: u8 = 10;
const LEAVE: u8 = 11;
const SUCCEED: u8 = 12;
const CREDIT: u8 = 13;
/// As `SUCCEED`, with the line.
const SUCCEED_IN_LINE: u8 = 14;
const CREDIT_ONE_WAY: u8 = 15;
const MODIFY: u8 = 16;

/// A list of items for one queue, with its version.
pub fn encode_to_queue(items: &[QueueMessage]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(VERSION);
    for item in items {
        put_to_queue(&mut out, item);
    }
    out.freeze()
}

pub fn decode_to_queue(bytes: Bytes) -> Result<Vec<QueueMessage>, CodecError> {
    let mut reader = Reader::new(bytes);
    match reader.u8()? {
        VERSION => {}
        other => return Err(CodecError::Version(other)),
    }
    let mut items = Vec::new();
    while !reader.is_empty() {
        items.push(take_to_queue(&mut reader)?);
    }
    Ok(items)
}

/// One item without a version, for frames that carry more.
pub fn put_to_queue(out: &mut BytesMut, item: &QueueMessage) {
    match item {
        QueueMessage::Request(request) => {
            out.put_u8(REQUEST);
            put_session(out, request.session);
            put_varint(out, request.seq);
            put_body(out, &request.body);
        }
        QueueMessage::Resume(resume) => {
            out.put_u8(RESUME);
            put_session(out, resume.session);
            put_varint(out, resume.consumer.0.into());
            put_varint(out, resume.next);
        }
        QueueMessage::Received(received) => {
            out.put_u8(RECEIVED);
            put_session(out, received.session);
            put_varint(out, received.consumer.0.into());
            put_varint(out, received.up_to);
        }
    }
}

pub fn take_to_queue(reader: &mut Reader) -> Result<QueueMessage, CodecError> {
    match reader.u8()? {
        REQUEST => Ok(QueueMessage::Request(Request {
            session: take_session(reader)?,
            seq: reader.varint()?,
            body: take_body(reader)?,
        })),
        RESUME => Ok(QueueMessage::Resume(ResumeConsumer {
            session: take_session(reader)?,
            consumer: ConsumerId(reader.varint32()?),
            next: reader.varint()?,
        })),
        RECEIVED => Ok(QueueMessage::Received(DeliveryProgress {
            session: take_session(reader)?,
            consumer: ConsumerId(reader.varint32()?),
            up_to: reader.varint()?,
        })),
        found => Err(CodecError::Kind {
            what: "item",
            found,
        }),
    }
}

pub fn put_session(out: &mut BytesMut, session: SessionId) {
    out.put_u64(session.node.0);
    out.put_u64(session.incarnation.0);
    out.put_u64(session.number);
}

pub fn take_session(reader: &mut Reader) -> Result<SessionId, CodecError> {
    Ok(SessionId {
        node: NodeId(reader.u64()?),
        incarnation: Incarnation(reader.u64()?),
        number: reader.u64()?,
    })
}

pub fn put_body(out: &mut BytesMut, body: &RequestBody) {
    match body {
        RequestBody::Publish(message) => {
            out.put_u8(PUBLISH);
            put_message(out, message);
        }
        RequestBody::Consume { consumer, spec } => {
            put_consumer(out, CONSUME, *consumer);
            put_spec(out, spec);
        }
        RequestBody::Succeed(epoch_consumer) => put_epoch_consumer(out, epoch_consumer),
        RequestBody::Cancel { consumer } => put_consumer(out, CANCEL, *consumer),
        RequestBody::Leave { consumer } => put_consumer(out, LEAVE, *consumer),
        RequestBody::Credit {
            consumer,
            up_to,
            drain,
        } => {
            put_consumer(out, CREDIT, *consumer);
            put_varint(out, *up_to);
            out.put_u8((*drain).into());
        }
        RequestBody::CreditOneWay { consumer, up_to } => {
            put_consumer(out, CREDIT_ONE_WAY, *consumer);
            put_varint(out, *up_to);
        }
        RequestBody::Settle {
            consumer,
            outcome,
            ids,
        } => {
            put_consumer(out, SETTLE, *consumer);
            out.put_u8(match outcome {
                SettlementOutcome::Accepted => 0,
                SettlementOutcome::Requeue => 1,
                SettlementOutcome::Rejected => 2,
                SettlementOutcome::Released => 3,
                SettlementOutcome::Unseen => 4,
            });
            put_ranges(out, ids);
        }
        RequestBody::Modify {
            consumer,
            ids,
            modification,
        } => {
            put_consumer(out, MODIFY, *consumer);
            put_ranges(out, ids);
            let flags = u8::from(modification.delivery_failed)
                | u8::from(modification.undeliverable_here) << 1;
            out.put_u8(flags);
            put_annotations(out, &modification.annotations);
        }
        RequestBody::Get { consumer, no_ack } => {
            put_consumer(out, GET, *consumer);
            out.put_u8((*no_ack).into());
        }
        RequestBody::Recover { consumer } => put_consumer(out, RECOVER, *consumer),
        RequestBody::Purge => out.put_u8(PURGE),
        RequestBody::Stat => out.put_u8(STAT),
        RequestBody::Delete {
            if_unused,
            if_empty,
        } => out.put_slice(&[DELETE, u8::from(*if_unused) | u8::from(*if_empty) << 1]),
        RequestBody::Close => out.put_u8(CLOSE),
    }
}

pub fn take_body(reader: &mut Reader) -> Result<RequestBody, CodecError> {
    Ok(match reader.u8()? {
        PUBLISH => RequestBody::Publish(reader.message()?),
        CONSUME => RequestBody::Consume {
            consumer: take_consumer(reader)?,
            spec: take_spec(reader)?,
        },
        SUCCEED => RequestBody::Succeed(Box::new(take_epoch_consumer(reader, false)?)),
        SUCCEED_IN_LINE => RequestBody::Succeed(Box::new(take_epoch_consumer(reader, true)?)),
        CANCEL => RequestBody::Cancel {
            consumer: take_consumer(reader)?,
        },
        LEAVE => RequestBody::Leave {
            consumer: take_consumer(reader)?,
        },
        CREDIT => RequestBody::Credit {
            consumer: take_consumer(reader)?,
            up_to: reader.varint()?,
            drain: reader.bool()?,
        },
        CREDIT_ONE_WAY => RequestBody::CreditOneWay {
            consumer: take_consumer(reader)?,
            up_to: reader.varint()?,
        },
        MODIFY => RequestBody::Modify {
            consumer: take_consumer(reader)?,
            ids: take_ranges(reader)?,
            modification: Box::new(take_modification(reader)?),
        },
        SETTLE => RequestBody::Settle {
            consumer: take_consumer(reader)?,
            outcome: take_outcome(reader)?,
            ids: take_ranges(reader)?,
        },
        GET => RequestBody::Get {
            consumer: take_consumer(reader)?,
            no_ack: reader.bool()?,
        },
        RECOVER => RequestBody::Recover {
            consumer: take_consumer(reader)?,
        },
        PURGE => RequestBody::Purge,
        STAT => RequestBody::Stat,
        DELETE => {
            let flags = reader.u8()?;
            if flags > 3 {
                return Err(CodecError::Range);
            }
            RequestBody::Delete {
                if_unused: flags & 1 != 0,
                if_empty: flags & 2 != 0,
            }
        }
        CLOSE => RequestBody::Close,
        found => {
            return Err(CodecError::Kind {
                what: "request",
                found,
            });
        }
    })
}

fn put_consumer(out: &mut BytesMut, kind: u8, consumer: ConsumerId) {
    out.put_u8(kind);
    put_varint(out, consumer.0.into());
}

fn take_consumer(reader: &mut Reader) -> Result<ConsumerId, CodecError> {
    Ok(ConsumerId(reader.varint32()?))
}

fn put_epoch_consumer(out: &mut BytesMut, epoch_consumer: &EpochConsumer) {
    let kind = match epoch_consumer.epoch {
        SessionEpoch::Untold => SUCCEED,
        SessionEpoch::New | SessionEpoch::Of(_) => SUCCEED_IN_LINE,
    };
    put_consumer(out, kind, epoch_consumer.consumer);
    put_spec(out, &epoch_consumer.spec);
    out.put_u8(epoch_consumer.settled.is_some().into());
    if let Some(settled) = &epoch_consumer.settled {
        put_session(out, settled.session);
        put_varint(out, settled.consumer.0.into());
        put_ranges(out, &settled.ids);
    }
    if epoch_consumer.epoch == SessionEpoch::Untold {
        return;
    }
    put_varint(out, epoch_consumer.at);
    match epoch_consumer.epoch {
        SessionEpoch::Untold | SessionEpoch::New => out.put_u8(0),
        SessionEpoch::Of(first) => {
            out.put_u8(1);
            put_session(out, first);
        }
    }
}

fn take_epoch_consumer(reader: &mut Reader, in_epoch: bool) -> Result<EpochConsumer, CodecError> {
    let consumer = take_consumer(reader)?;
    let spec = take_spec(reader)?;
    let settled = match reader.bool()? {
        false => None,
        true => Some(Settlement {
            session: take_session(reader)?,
            consumer: take_consumer(reader)?,
            ids: take_ranges(reader)?,
        }),
    };
    let (mut epoch, mut at) = (SessionEpoch::Untold, 0);
    if in_epoch {
        at = reader.varint()?;
        epoch = match reader.bool()? {
            true => SessionEpoch::Of(take_session(reader)?),
            false => SessionEpoch::New,
        };
    }
    Ok(EpochConsumer {
        consumer,
        spec,
        settled,
        epoch,
        at,
    })
}

fn take_outcome(reader: &mut Reader) -> Result<SettlementOutcome, CodecError> {
    match reader.u8()? {
        0 => Ok(SettlementOutcome::Accepted),
        1 => Ok(SettlementOutcome::Requeue),
        2 => Ok(SettlementOutcome::Rejected),
        3 => Ok(SettlementOutcome::Released),
        4 => Ok(SettlementOutcome::Unseen),
        found => Err(CodecError::Kind {
            what: "outcome",
            found,
        }),
    }
}

fn take_modification(reader: &mut Reader) -> Result<Modification, CodecError> {
    let flags = reader.u8()?;
    if flags > 3 {
        return Err(CodecError::Range);
    }
    Ok(Modification {
        delivery_failed: flags & 1 != 0,
        undeliverable_here: flags & 2 != 0,
        annotations: take_annotations(reader)?,
    })
}

pub(crate) fn put_annotations(out: &mut BytesMut, annotations: &Annotations) {
    put_table(out, annotations.table());
}

pub(crate) fn take_annotations(reader: &mut Reader) -> Result<Annotations, CodecError> {
    Annotations::new(take_table(reader)?).map_err(|_| CodecError::Range)
}

/// Inclusive ranges.
pub(crate) fn put_ranges(out: &mut BytesMut, ids: &[(u64, u64)]) {
    put_varint(out, ids.len() as u64);
    for (from, to) in ids {
        put_varint(out, *from);
        put_varint(out, to.saturating_sub(*from));
    }
}

pub(crate) fn take_ranges(reader: &mut Reader) -> Result<Vec<(u64, u64)>, CodecError> {
    let count = reader.count(2)?;
    let mut ids = Vec::with_capacity(count);
    for _ in 0..count {
        let from = reader.varint()?;
        let to = from
            .checked_add(reader.varint()?)
            .ok_or(CodecError::Range)?;
        ids.push((from, to));
    }
    Ok(ids)
}

pub(crate) fn put_spec(out: &mut BytesMut, spec: &ConsumerSpec) {
    put_text(out, &spec.tag);
    put_varint(out, spec.channel.into());
    put_varint(out, spec.prefetch.into());
    let is_credit = spec.flow_mode == FlowMode::Credit;
    out.put_u8(u8::from(spec.no_ack) | u8::from(spec.exclusive) << 1 | u8::from(is_credit) << 2);
    put_signed(out, spec.priority.into());
    put_table(out, &spec.arguments);
}

pub(crate) fn take_spec(reader: &mut Reader) -> Result<ConsumerSpec, CodecError> {
    let tag = reader.text()?;
    let channel = u16::try_from(reader.varint()?).map_err(|_| CodecError::Range)?;
    let prefetch = reader.varint32()?;
    let flags = reader.u8()?;
    if flags > 7 {
        return Err(CodecError::Range);
    }
    Ok(ConsumerSpec {
        tag,
        channel,
        flow_mode: match flags & 4 {
            0 => FlowMode::Prefetch,
            _ => FlowMode::Credit,
        },
        prefetch,
        no_ack: flags & 1 != 0,
        exclusive: flags & 2 != 0,
        priority: i32::try_from(reader.signed()?).map_err(|_| CodecError::Range)?,
        arguments: take_table(reader)?,
    })
}

pub fn put_settings(out: &mut BytesMut, settings: &QueueSettings) {
    put_optional(out, settings.max_length);
    put_optional(out, settings.max_length_bytes);
    put_optional(out, settings.message_ttl_ms);
    put_optional(out, settings.delivery_limit.map(u64::from));
    let overflow = match settings.overflow {
        Overflow::DropHead => 0,
        Overflow::RejectPublish => 1,
        Overflow::RejectPublishDlx => 2,
    };
    let dead_letter = match settings.dead_letter {
        DeadLettering::Off => 0,
        DeadLettering::AtMostOnce => 1,
        DeadLettering::AtLeastOnce => 2,
    };
    // The upper half was 0 before there was dead lettering.
    out.put_u8(overflow | dead_letter << 4);
    out.put_u8(settings.single_active_consumer.into());
}

fn take_ways(reader: &mut Reader) -> Result<(Overflow, DeadLettering), CodecError> {
    let both = reader.u8()?;
    let unknown = |what, found| Err(CodecError::Kind { what, found });
    let overflow = match both & 0xf {
        0 => Overflow::DropHead,
        1 => Overflow::RejectPublish,
        2 => Overflow::RejectPublishDlx,
        found => return unknown("overflow", found),
    };
    let dead_letter = match both >> 4 {
        0 => DeadLettering::Off,
        1 => DeadLettering::AtMostOnce,
        2 => DeadLettering::AtLeastOnce,
        found => return unknown("dead lettering", found),
    };
    Ok((overflow, dead_letter))
}

pub fn take_settings(reader: &mut Reader) -> Result<QueueSettings, CodecError> {
    let mut settings = QueueSettings {
        max_length: reader.optional()?,
        max_length_bytes: reader.optional()?,
        message_ttl_ms: reader.optional()?,
        delivery_limit: match reader.optional()? {
            Some(limit) => Some(u32::try_from(limit).map_err(|_| CodecError::Range)?),
            None => None,
        },
        overflow: Overflow::DropHead,
        single_active_consumer: false,
        // Only settings of quorum queues are written; those have no such thing.
        max_priority: None,
        dead_letter: DeadLettering::Off,
    };
    (settings.overflow, settings.dead_letter) = take_ways(reader)?;
    settings.single_active_consumer = reader.bool()?;
    Ok(settings)
}
