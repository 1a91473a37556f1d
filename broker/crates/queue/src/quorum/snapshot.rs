//! Checkpoints of the machine: everything but the messages.
//!
//! Versioned; written in one order only, so that replicas with the same history have the same bytes.

use super::annotations::MessageAnnotations;
use super::dead_letter::DeadLetters;
use super::effects::LogLocation;
use super::machine::Machine;
use super::ready::{LogMessage, Ready, RequeuedMessage};
use crate::checkout::{
    Checkout, Consumer, KnownEpoch, PendingDrain, SessionRecord, UnsettledMessage, WaitingConsumer,
};
use crate::codec::{
    CodecError, Reader, put_annotations, put_answer, put_refusal, put_session, put_settings,
    put_spec, put_varint, take_annotations, take_answer, take_refusal, take_session, take_settings,
    take_spec,
};
use crate::{ConsumerId, DeadReason, FlowMode, Name, SessionId};
use bytes::{BufMut, Bytes, BytesMut};
use env::{Incarnation, NodeId};
use std::cmp::Reverse;
use std::sync::Arc;

/// Format of checkpoints, and the only one that is read.
const FORMAT: u8 = 6;
/// FNV-1a, 64 bits.
const DIGEST_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const DIGEST_PRIME: u64 = 0x0000_0100_0000_01b3;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("checkpoint of a quorum queue is damaged: {0}")]
pub struct RestoreError(#[from] CodecError);

impl Machine {
    pub fn snapshot(&self) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u8(FORMAT);
        put_settings(&mut out, &self.settings);
        put_varint(&mut out, self.clock);
        put_varint(&mut out, self.applied);
        put_varint(&mut out, self.unreadable);
        out.put_u8(self.ready.turn);
        out.put_u8(self.blocked.into());
        put_ready(&mut out, &self.ready);
        put_checkout(&mut out, &self.checkout);
        put_message_annotations(&mut out, &self.annotations);
        put_dead(&mut out, &self.dead);
        out.freeze()
    }

    /// The machine that wrote `state`.
    pub fn restore(label: Name, state: Bytes) -> Result<Machine, RestoreError> {
        let mut reader = Reader::new(state);
        match reader.u8()? {
            FORMAT => {}
            other => return Err(CodecError::Version(other).into()),
        }
        let mut machine = Machine::new(label, take_settings(&mut reader)?);
        machine.clock = reader.varint()?;
        machine.applied = reader.varint()?;
        machine.unreadable = reader.varint()?;
        machine.ready.turn = reader.u8()?;
        machine.blocked = reader.bool()?;
        take_ready(&mut reader, &mut machine.ready)?;
        take_postponed(&mut reader, &mut machine.ready)?;
        take_checkout(&mut reader, &mut machine.checkout)?;
        take_message_annotations(&mut reader, &mut machine.annotations)?;
        take_dead(&mut reader, &mut machine.dead)?;
        let out = machine.checkout.consumers.values();
        let out = out.flat_map(|c| c.out.values().map(|o| u64::from(o.item.body)));
        machine.out_bytes = out.sum();
        machine.checkout.forget_flow();
        Ok(machine)
    }

    /// A number that is equal on replicas with equal state.
    pub fn digest(&self) -> u64 {
        self.snapshot().iter().fold(DIGEST_BASIS, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(DIGEST_PRIME)
        })
    }
}

/// Bytes of most messages in a checkpoint: two of an index or an offset, none or one of the other, two of a body.
const USUAL_BYTES: usize = 5;

/// Messages as differences to the one before: a few bytes each.
fn put_ready(out: &mut BytesMut, ready: &Ready) {
    // At once: growing by doubling would take three times as much memory for a moment.
    let waiting = usize::try_from(ready.len()).unwrap_or(0);
    out.reserve(waiting.saturating_mul(USUAL_BYTES));
    put_varint(out, ready.fresh().count() as u64);
    let (mut index, mut offset) = (0, 0);
    for held in ready.fresh() {
        let base = if held.index == index { offset } else { 0 };
        put_varint(out, held.index.wrapping_sub(index));
        put_varint(out, u64::from(held.offset.wrapping_sub(base)));
        put_varint(out, u64::from(held.body) << 2 | flags(&held));
        if held.expires != 0 {
            put_varint(out, held.expires);
        }
        (index, offset) = (held.index, held.offset);
    }
    put_varint(out, ready.returned().count() as u64);
    for returned in ready.returned() {
        put_returned(out, &returned);
    }
    put_varint(out, ready.postponed().count() as u64);
    for (after, returned) in ready.postponed() {
        put_varint(out, after.index);
        put_varint(out, after.offset.into());
        put_returned(out, &returned);
    }
}

fn put_returned(out: &mut BytesMut, returned: &RequeuedMessage) {
    put_held(out, &returned.held);
    put_varint(out, returned.attempts.into());
}

fn flags(held: &LogMessage) -> u64 {
    u64::from(held.high) | u64::from(held.expires != 0) << 1
}

fn take_ready(reader: &mut Reader, ready: &mut Ready) -> Result<(), CodecError> {
    let (mut index, mut offset) = (0u64, 0u32);
    for _ in 0..reader.count(3)? {
        let delta = reader.varint()?;
        let base = if delta == 0 { offset } else { 0 };
        index = index.wrapping_add(delta);
        offset = base.wrapping_add(reader.varint32()?);
        let held = take_rest(reader, index, offset)?;
        ready.push(&held);
    }
    for _ in 0..reader.count(4)? {
        let held = take_held(reader)?;
        ready.give_back(held, reader.varint32()?);
    }
    Ok(())
}

fn take_postponed(reader: &mut Reader, ready: &mut Ready) -> Result<(), CodecError> {
    for _ in 0..reader.count(6)? {
        let after = LogLocation {
            index: reader.varint()?,
            offset: reader.varint32()?,
        };
        let held = take_held(reader)?;
        ready.postpone(held, reader.varint32()?, after);
    }
    Ok(())
}

fn put_dead(out: &mut BytesMut, dead: &DeadLetters) {
    put_varint(out, dead.next());
    put_varint(out, dead.len());
    for (id, held, reason) in dead.kept() {
        put_varint(out, id);
        out.put_u8(reason as u8);
        put_held(out, held);
    }
}

fn take_dead(reader: &mut Reader, dead: &mut DeadLetters) -> Result<(), CodecError> {
    let next = reader.varint()?;
    for _ in 0..reader.count(5)? {
        let id = reader.varint()?;
        let found = reader.u8()?;
        let what = "death";
        let reason = DeadReason::from_byte(found).ok_or(CodecError::Kind { what, found })?;
        dead.keep(id, take_held(reader)?, reason);
    }
    dead.number_from(next);
    Ok(())
}

fn put_held(out: &mut BytesMut, held: &LogMessage) {
    put_varint(out, held.index);
    put_varint(out, held.offset.into());
    put_varint(out, u64::from(held.body) << 2 | flags(held));
    if held.expires != 0 {
        put_varint(out, held.expires);
    }
}

fn take_held(reader: &mut Reader) -> Result<LogMessage, CodecError> {
    let index = reader.varint()?;
    let offset = reader.varint32()?;
    take_rest(reader, index, offset)
}

fn take_rest(reader: &mut Reader, index: u64, offset: u32) -> Result<LogMessage, CodecError> {
    let packed = reader.varint()?;
    Ok(LogMessage {
        index,
        offset,
        body: u32::try_from(packed >> 2).map_err(|_| CodecError::Range)?,
        high: packed & 1 != 0,
        expires: if packed & 2 != 0 { reader.varint()? } else { 0 },
    })
}

fn put_checkout(out: &mut BytesMut, checkout: &Checkout<LogMessage>) {
    out.put_u8(checkout.deleted.into());
    put_varint(out, checkout.next_consumer);
    put_varint(out, checkout.next_ticket);
    put_varint(out, checkout.active.unwrap_or(0));
    put_varint(out, checkout.exclusive.unwrap_or(0));
    put_varint(out, checkout.sessions.len() as u64);
    for (session, state) in &checkout.sessions {
        put_session(out, *session);
        put_session_state(out, state);
    }
    put_varint(out, checkout.consumers.len() as u64);
    for (number, consumer) in &checkout.consumers {
        put_varint(out, *number);
        put_consumer(out, consumer);
    }
    put_varint(out, checkout.closed.len() as u64);
    for (at, session) in &checkout.closed {
        put_varint(out, *at);
        put_session(out, *session);
    }
    put_varint(out, checkout.gone.len() as u64);
    for (node, before) in &checkout.gone {
        out.put_u64(node.0);
        out.put_u64(before.0);
    }
    put_varint(out, checkout.suspended.len() as u64);
    for node in &checkout.suspended {
        out.put_u64(node.0);
    }
    out.put_u8(checkout.epoch.is_some().into());
    if let Some(KnownEpoch { first, at }) = checkout.epoch {
        put_session(out, first);
        put_varint(out, at);
    }
    put_varint(out, checkout.drains.len() as u64);
    for (number, drain) in &checkout.drains {
        put_varint(out, *number);
        put_session(out, drain.session);
        put_varint(out, drain.seq);
    }
}

fn take_checkout(
    reader: &mut Reader,
    checkout: &mut Checkout<LogMessage>,
) -> Result<(), CodecError> {
    checkout.deleted = reader.bool()?;
    checkout.next_consumer = reader.varint()?;
    checkout.next_ticket = reader.varint()?;
    checkout.active = Some(reader.varint()?).filter(|number| *number != 0);
    checkout.exclusive = Some(reader.varint()?).filter(|number| *number != 0);
    for _ in 0..reader.count(27)? {
        let session = take_session(reader)?;
        let state = take_session_state(reader)?;
        checkout.sessions.insert(session, state);
    }
    for _ in 0..reader.count(30)? {
        let number = reader.varint()?;
        let consumer = take_consumer(reader)?;
        location_consumer(checkout, number, consumer);
    }
    for _ in 0..reader.count(25)? {
        let at = reader.varint()?;
        let session = take_session(reader)?;
        checkout.closed.push_back((at, session));
        checkout.closed_set.insert(session);
    }
    for _ in 0..reader.count(16)? {
        let node = NodeId(reader.u64()?);
        checkout.gone.insert(node, Incarnation(reader.u64()?));
    }
    for _ in 0..reader.count(8)? {
        checkout.suspended.insert(NodeId(reader.u64()?));
    }
    if reader.bool()? {
        let first = take_session(reader)?;
        let at = reader.varint()?;
        checkout.epoch = Some(KnownEpoch { first, at });
    }
    for _ in 0..reader.count(26)? {
        let number = reader.varint()?;
        let session = take_session(reader)?;
        let seq = reader.varint()?;
        checkout
            .drains
            .insert(number, PendingDrain { session, seq });
    }
    Ok(())
}

/// The indexes over consumers are not written: they follow from the consumers.
fn location_consumer(
    checkout: &mut Checkout<LogMessage>,
    number: u64,
    consumer: Consumer<LogMessage>,
) {
    let priority = Reverse(consumer.spec.priority);
    if let Some(state) = checkout.sessions.get_mut(&consumer.session) {
        state.consumers.insert(consumer.id, number);
    }
    if consumer.takes_turns() {
        checkout.candidates.insert((priority, number));
    }
    if let Some(ticket) = consumer.ticket {
        let turn = WaitingConsumer { ticket, number };
        checkout.service.insert(priority.0, turn);
    }
    if !consumer.get && !consumer.cancelled {
        checkout.live += 1;
    }
    checkout.out += consumer.out.len() as u64;
    checkout.consumers.insert(number, consumer);
}

fn put_message_annotations(out: &mut BytesMut, annotations: &MessageAnnotations) {
    put_varint(out, annotations.len() as u64);
    for (at, annotations) in annotations.iter() {
        put_varint(out, at.index);
        put_varint(out, at.offset.into());
        put_annotations(out, annotations);
    }
}

fn take_message_annotations(
    reader: &mut Reader,
    annotations: &mut MessageAnnotations,
) -> Result<(), CodecError> {
    for _ in 0..reader.count(3)? {
        let at = LogLocation {
            index: reader.varint()?,
            offset: reader.varint32()?,
        };
        // In memory of its own, not a part of the checkpoint's.
        let own = take_annotations(reader)?.to_keep();
        annotations.add(at, &Arc::new(own));
    }
    Ok(())
}

fn put_session_state(out: &mut BytesMut, state: &SessionRecord) {
    put_varint(out, state.last);
    put_varint(out, state.refused.len() as u64);
    for refusal in &state.refused {
        put_refusal(out, refusal);
    }
    put_varint(out, state.answers.len() as u64);
    for (seq, answer) in &state.answers {
        put_varint(out, *seq);
        put_answer(out, answer);
    }
}

fn take_session_state(reader: &mut Reader) -> Result<SessionRecord, CodecError> {
    let mut state = SessionRecord {
        last: reader.varint()?,
        ..SessionRecord::default()
    };
    for _ in 0..reader.count(3)? {
        state.refused.push_back(take_refusal(reader)?);
    }
    for _ in 0..reader.count(2)? {
        let seq = reader.varint()?;
        state.answers.push_back((seq, take_answer(reader)?));
    }
    Ok(state)
}

fn put_consumer(out: &mut BytesMut, consumer: &Consumer<LogMessage>) {
    put_session(out, consumer.session);
    put_varint(out, consumer.id.0.into());
    put_spec(out, &consumer.spec);
    out.put_u8(
        u8::from(consumer.get)
            | u8::from(consumer.cancelled) << 1
            | u8::from(consumer.suspended) << 2
            | u8::from(consumer.lasting) << 3
            | u8::from(consumer.succeeded) << 4,
    );
    put_varint(out, consumer.next_id);
    if consumer.spec.flow_mode == FlowMode::Credit {
        put_varint(out, consumer.credit);
    }
    put_varint(out, consumer.ticket.unwrap_or(0));
    put_varint(out, consumer.out.len() as u64);
    for (id, held) in consumer.out.iter() {
        put_varint(out, id);
        put_held(out, &held.item);
        put_varint(out, held.attempts.into());
        put_varint(out, held.left);
        out.put_u8(held.redelivered.into());
    }
}

fn take_consumer(reader: &mut Reader) -> Result<Consumer<LogMessage>, CodecError> {
    let session: SessionId = take_session(reader)?;
    let id = ConsumerId(reader.varint32()?);
    let spec = take_spec(reader)?;
    let flags = reader.u8()?;
    let mut consumer = Consumer::new(session, id, spec, flags & 1 != 0);
    consumer.cancelled = flags & 2 != 0;
    consumer.suspended = flags & 4 != 0;
    consumer.lasting = flags & 8 != 0;
    consumer.succeeded = flags & 16 != 0;
    consumer.next_id = reader.varint()?;
    if consumer.spec.flow_mode == FlowMode::Credit {
        consumer.credit = reader.varint()?;
    }
    consumer.ticket = Some(reader.varint()?).filter(|ticket| *ticket != 0);
    for _ in 0..reader.count(7)? {
        let id = reader.varint()?;
        let held = UnsettledMessage {
            item: take_held(reader)?,
            attempts: reader.varint32()?,
            left: reader.varint()?,
            redelivered: reader.bool()?,
        };
        // They were written in their order, and the next one is behind them.
        if id >= consumer.next_id || !consumer.out.push(id, held) {
            return Err(CodecError::Range);
        }
    }
    Ok(consumer)
}
