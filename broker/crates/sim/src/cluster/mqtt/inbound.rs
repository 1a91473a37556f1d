//! QoS 1 and QoS 2 messages that a client receives, and its answers to them.

use super::wire::{MqttConnection, ReceivedPublish};
use codec_mqtt::{Ack, AckKind, Packet, Qos, ReasonCode};
use std::collections::{BTreeSet, VecDeque};

#[derive(Default)]
pub(super) struct Inbound {
    /// Packet identifiers of QoS 2 messages that the client has and that have no PUBREL yet. They come again with the
    /// same message [MQTT-4.3.3-10].
    unreleased: BTreeSet<u16>,
    /// Pending answers of this connection, in the order of the packets that they answer [MQTT-4.6.0-2].
    answers: VecDeque<(AckKind, u16)>,
}

impl Inbound {
    /// A connection begins. `present`: it continues the session.
    pub(super) fn begin_connection(&mut self, present: bool) {
        self.answers.clear();
        if !present {
            self.unreleased.clear();
        }
    }

    /// Returns true if the message is for the application.
    pub(super) fn received(&mut self, publish: &ReceivedPublish) -> bool {
        let (kind, is_new) = match publish.qos {
            Qos::AtMostOnce => return true,
            Qos::AtLeastOnce => (AckKind::PubAck, true),
            Qos::ExactlyOnce => (AckKind::PubRec, self.unreleased.insert(publish.packet_id)),
        };
        self.answers.push_back((kind, publish.packet_id));
        is_new
    }

    pub(super) fn pubrel_received(&mut self, packet_id: u16) {
        self.unreleased.remove(&packet_id);
        self.answers.push_back((AckKind::PubComp, packet_id));
    }

    /// Sends this many pending answers.
    pub(super) fn answer(&mut self, wire: &mut MqttConnection, max: usize) {
        for (kind, id) in self.answers.drain(..max.min(self.answers.len())) {
            wire.send(&Packet::Ack(Ack::new(kind, id, ReasonCode::Success)));
        }
    }

    pub(super) fn pending_answers(&self) -> usize {
        self.answers.len()
    }
}
