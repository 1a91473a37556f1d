//! QoS 1 and QoS 2 messages that a client publishes, until the server has them: the client's part of the session state
//! (section 4.1).

use super::tracked_message::MessageId;
use super::wire::MqttConnection;
use bytes::Bytes;
use codec_mqtt::{Ack, AckKind, Packet, Properties, Publish, Qos, ReasonCode};
use std::collections::VecDeque;

/// A message to publish.
#[derive(Clone, Debug)]
pub(super) struct Draft {
    /// `None`: the payload is empty, which clears the retained message.
    pub id: Option<MessageId>,
    pub topic: String,
    pub qos: Qos,
    pub retain: bool,
}

/// A publish without its final answer.
#[derive(Clone, Debug)]
struct OpenPublish {
    packet_id: u16,
    draft: Draft,
    /// A unique number, also for messages without payload.
    number: u64,
    /// PUBREC has arrived.
    has_pubrec: bool,
}

#[derive(Default)]
pub(super) struct Outbound {
    open: VecDeque<OpenPublish>,
    last_packet_id: u16,
}

/// The meaning of a server's answer for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerOutcome {
    /// The server has taken responsibility for the message.
    Acknowledged(u64),
    Rejected(u64),
    /// Nothing changed.
    Nothing,
}

fn send_publish(wire: &mut MqttConnection, open: &OpenPublish, dup: bool) {
    let payload = open.draft.id.map_or(Bytes::new(), MessageId::payload);
    wire.send(&Packet::Publish(Publish {
        dup: dup && open.draft.qos != Qos::AtMostOnce,
        qos: open.draft.qos,
        retain: open.draft.retain,
        topic: &open.draft.topic,
        packet_id: open.packet_id,
        properties: Properties::default(),
        payload: &payload,
    }));
}

impl Outbound {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    pub(super) fn publish(&mut self, wire: &mut MqttConnection, draft: Draft, number: u64) {
        let needs_answer = draft.qos != Qos::AtMostOnce;
        if needs_answer {
            // Few publishes are open at a time, so the next identifier is free.
            self.last_packet_id = self.last_packet_id % 1000 + 1;
        }
        let open = OpenPublish {
            packet_id: if needs_answer { self.last_packet_id } else { 0 },
            draft,
            number,
            has_pubrec: false,
        };
        send_publish(wire, &open, false);
        if needs_answer {
            self.open.push_back(open);
        }
    }

    /// The session continues on a new connection [MQTT-4.4.0-1]. Returns the numbers of the messages that are sent
    /// again.
    pub(super) fn resume(&self, wire: &mut MqttConnection) -> Vec<u64> {
        let mut resent = Vec::new();
        for open in &self.open {
            if open.has_pubrec {
                let release = Ack::new(AckKind::PubRel, open.packet_id, ReasonCode::Success);
                wire.send(&Packet::Ack(release));
            } else {
                send_publish(wire, open, true);
                resent.push(open.number);
            }
        }
        resent
    }

    /// The session has ended. Returns the numbers of the messages that the server has not acknowledged.
    pub(super) fn forget(&mut self) -> Vec<u64> {
        let open = std::mem::take(&mut self.open);
        let unanswered = open.into_iter().filter(|open| !open.has_pubrec);
        unanswered.map(|open| open.number).collect()
    }

    /// Handles an answer. An error means that the server broke the protocol.
    pub(super) fn handle_answer(
        &mut self,
        wire: &mut MqttConnection,
        (kind, packet_id, reason): (AckKind, u16, ReasonCode),
    ) -> Result<AnswerOutcome, String> {
        let index = self.open.iter().position(|o| o.packet_id == packet_id);
        let unexpected = || format!("{kind:?} for packet identifier {packet_id}: {reason:?}");
        let index = index.ok_or_else(unexpected)?;
        let open = self.open.get_mut(index).ok_or_else(unexpected)?;
        let number = open.number;
        let is_qos_2 = open.draft.qos == Qos::ExactlyOnce;
        match kind {
            AckKind::PubAck if !is_qos_2 => {}
            AckKind::PubRec if is_qos_2 && reason.is_error() => {}
            AckKind::PubRec if is_qos_2 => {
                let is_first = !std::mem::replace(&mut open.has_pubrec, true);
                let release = Ack::new(AckKind::PubRel, packet_id, ReasonCode::Success);
                wire.send(&Packet::Ack(release));
                return Ok(match is_first {
                    true => AnswerOutcome::Acknowledged(number),
                    false => AnswerOutcome::Nothing,
                });
            }
            AckKind::PubComp if open.has_pubrec => {
                self.open.remove(index);
                return Ok(AnswerOutcome::Nothing);
            }
            _ => return Err(unexpected()),
        }
        self.open.remove(index);
        match reason {
            ReasonCode::Success | ReasonCode::NoMatchingSubscribers => {
                Ok(AnswerOutcome::Acknowledged(number))
            }
            ReasonCode::QuotaExceeded | ReasonCode::ImplementationSpecificError => {
                Ok(AnswerOutcome::Rejected(number))
            }
            _ => Err(unexpected()),
        }
    }
}
