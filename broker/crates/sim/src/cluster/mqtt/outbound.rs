//! What a client publishes with QoS 1 and 2, until the server has it: the client's half of the session (section 4.1).

use super::tracked_message::MessageId;
use super::wire::MqttConnection;
use bytes::Bytes;
use codec_mqtt::{Ack, AckKind, Packet, Properties, Publish, Qos, Reason};
use std::collections::VecDeque;

/// A message as it is published.
#[derive(Clone, Debug)]
pub struct Draft {
    /// None with an empty payload, which clears what is retained.
    pub id: Option<MessageId>,
    pub topic: String,
    pub qos: Qos,
    pub retain: bool,
}

/// One that is open.
#[derive(Clone, Debug)]
struct OpenPublish {
    packet_id: u16,
    draft: Draft,
    /// A number of its own, also where there is no payload.
    number: u64,
    /// PUBREC has come.
    released: bool,
}

#[derive(Default)]
pub struct Outbound {
    open: VecDeque<OpenPublish>,
    last_id: u16,
}

/// What an answer of the server means for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerMeaning {
    /// The server answers for it.
    Taken(u64),
    Refused(u64),
    /// Nothing new.
    Nothing,
}

fn say(wire: &mut MqttConnection, open: &OpenPublish, dup: bool) {
    let payload = open.draft.id.map_or(Bytes::new(), MessageId::payload);
    wire.say(&Packet::Publish(Publish {
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
    pub fn len(&self) -> usize {
        self.open.len()
    }

    pub fn publish(&mut self, wire: &mut MqttConnection, draft: Draft, number: u64) {
        let acknowledged = draft.qos != Qos::AtMostOnce;
        if acknowledged {
            // Few are open at a time: the next one is free.
            self.last_id = self.last_id % 1000 + 1;
        }
        let open = OpenPublish {
            packet_id: if acknowledged { self.last_id } else { 0 },
            draft,
            number,
            released: false,
        };
        say(wire, &open, false);
        if acknowledged {
            self.open.push_back(open);
        }
    }

    /// The session goes on with another connection [MQTT-4.4.0-1]; the numbers of messages that are sent again.
    pub fn resume(&self, wire: &mut MqttConnection) -> Vec<u64> {
        let mut again = Vec::new();
        for open in &self.open {
            if open.released {
                let release = Ack::new(AckKind::PubRel, open.packet_id, Reason::Success);
                wire.say(&Packet::Ack(release));
            } else {
                say(wire, open, true);
                again.push(open.number);
            }
        }
        again
    }

    /// The session is over; the numbers of messages that nobody has answered for.
    pub fn forget(&mut self) -> Vec<u64> {
        let open = std::mem::take(&mut self.open);
        let unanswered = open.into_iter().filter(|open| !open.released);
        unanswered.map(|open| open.number).collect()
    }

    /// An error is a fault of the server.
    pub fn answered(
        &mut self,
        wire: &mut MqttConnection,
        (kind, packet_id, reason): (AckKind, u16, Reason),
    ) -> Result<AnswerMeaning, String> {
        let at = self.open.iter().position(|o| o.packet_id == packet_id);
        let strange = || format!("{kind:?} for packet identifier {packet_id}: {reason:?}");
        let at = at.ok_or_else(strange)?;
        let open = self.open.get_mut(at).ok_or_else(strange)?;
        let number = open.number;
        let two = open.draft.qos == Qos::ExactlyOnce;
        match kind {
            AckKind::PubAck if !two => {}
            AckKind::PubRec if two && reason.is_error() => {}
            AckKind::PubRec if two => {
                let first = !std::mem::replace(&mut open.released, true);
                let release = Ack::new(AckKind::PubRel, packet_id, Reason::Success);
                wire.say(&Packet::Ack(release));
                return Ok(match first {
                    true => AnswerMeaning::Taken(number),
                    false => AnswerMeaning::Nothing,
                });
            }
            AckKind::PubComp if open.released => {
                self.open.remove(at);
                return Ok(AnswerMeaning::Nothing);
            }
            _ => return Err(strange()),
        }
        self.open.remove(at);
        match reason {
            Reason::Success | Reason::NoMatchingSubscribers => Ok(AnswerMeaning::Taken(number)),
            Reason::QuotaExceeded | Reason::ImplementationSpecificError => {
                Ok(AnswerMeaning::Refused(number))
            }
            _ => Err(strange()),
        }
    }
}
