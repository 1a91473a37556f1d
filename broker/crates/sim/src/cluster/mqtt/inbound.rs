//! What a client gets with QoS 1 and 2, and owes answers for.

use super::wire::{MqttConnection, ReceivedPublish};
use codec_mqtt::{Ack, AckKind, Packet, Qos, Reason};
use std::collections::{BTreeSet, VecDeque};

#[derive(Default)]
pub struct Inbound {
    /// Messages of QoS 2 that the client has and that were not released: their identifiers come again with the same message
    /// [MQTT-4.3.3-10].
    held: BTreeSet<u16>,
    /// In the order of what they answer [MQTT-4.6.0-2]; of this connection.
    answers: VecDeque<(AckKind, u16)>,
}

impl Inbound {
    /// Another connection begins; the session goes on, or it does not.
    pub fn begin(&mut self, present: bool) {
        self.answers.clear();
        if !present {
            self.held.clear();
        }
    }

    /// Whether the message is one for the application.
    pub fn arrived(&mut self, arrival: &ReceivedPublish) -> bool {
        let (kind, new) = match arrival.qos {
            Qos::AtMostOnce => return true,
            Qos::AtLeastOnce => (AckKind::PubAck, true),
            Qos::ExactlyOnce => (AckKind::PubRec, self.held.insert(arrival.packet_id)),
        };
        self.answers.push_back((kind, arrival.packet_id));
        new
    }

    pub fn released(&mut self, packet_id: u16) {
        self.held.remove(&packet_id);
        self.answers.push_back((AckKind::PubComp, packet_id));
    }

    /// Gives this many answers.
    pub fn answer(&mut self, wire: &mut MqttConnection, most: usize) {
        for (kind, id) in self.answers.drain(..most.min(self.answers.len())) {
            wire.say(&Packet::Ack(Ack::new(kind, id, Reason::Success)));
        }
    }

    pub fn owes(&self) -> usize {
        self.answers.len()
    }
}
