//! What of a client's session outlives its connection (section 4.1), but for its subscriptions, which the hub has.

use crate::Settings;
use codec_mqtt::Qos;
use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use topics::{Delivery, Envelope, Parked};

/// How far a message of QoS 1 or 2 is.
#[derive(Debug)]
pub(crate) enum Stage {
    /// PUBLISH is out, or will be again.
    Published { qos: Qos, delivery: Delivery },
    /// PUBREC has come, PUBREL is out [MQTT-4.3.3-6].
    Released,
}

#[derive(Debug)]
pub(crate) struct Inflight {
    pub packet_id: u16,
    pub stage: Stage,
    /// On this connection; messages from before it go again, with DUP.
    pub sent: bool,
}

#[derive(Debug)]
pub(crate) struct ClientState {
    settings: Arc<Settings>,
    /// Packet identifiers of QoS 2 publishes that await PUBREL.
    pub received: BTreeSet<u16>,
    /// In the order in which they were sent.
    pub inflight: VecDeque<Inflight>,
    waiting: VecDeque<Delivery>,
    waiting_bytes: usize,
    last_id: u16,
}

/// The QoS a message goes out with: the best that a subscription allows, and no better than it was published with
/// [MQTT-3.8.4-8], [MQTT-3.3.4-2].
pub(crate) fn quality(delivery: &Delivery, envelope: &Envelope<'_>) -> Qos {
    let granted = delivery.hits.iter().map(|hit| hit.qos).max();
    granted.unwrap_or_default().min(envelope.qos)
}

impl ClientState {
    pub fn new(settings: Arc<Settings>) -> ClientState {
        ClientState {
            settings,
            received: BTreeSet::new(),
            inflight: VecDeque::new(),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            last_id: 0,
        }
    }

    /// Puts a message of QoS 1 or 2 behind the others. False: there is no room.
    pub fn wait(&mut self, delivery: Delivery) -> bool {
        let limits = &self.settings.limits;
        let size = delivery.message.as_bytes().len();
        if self.waiting.len() >= limits.waiting_messages
            || self.waiting_bytes + size > limits.waiting_bytes
        {
            return false;
        }
        self.waiting_bytes += size;
        self.waiting.push_back(delivery);
        true
    }

    pub fn next_waiting(&mut self) -> Option<Delivery> {
        let next = self.waiting.pop_front()?;
        self.waiting_bytes -= next.message.as_bytes().len();
        if self.waiting.is_empty() {
            self.waiting = VecDeque::new();
        }
        Some(next)
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// A packet identifier that is not in use [MQTT-2.2.1-4]. At most `u16::MAX` - 1 messages are in flight.
    pub fn new_id(&mut self) -> u16 {
        loop {
            self.last_id = self.last_id.checked_add(1).unwrap_or(1);
            let id = self.last_id;
            if !self.inflight.iter().any(|i| i.packet_id == id) {
                return id;
            }
        }
    }

    pub fn position(&self, packet_id: u16) -> Option<usize> {
        // Mostly the first: clients acknowledge in order [MQTT-4.6.0-2].
        self.inflight.iter().position(|i| i.packet_id == packet_id)
    }

    /// Messages that the client owes an answer for on this connection.
    pub fn outstanding(&self) -> usize {
        self.inflight.iter().filter(|i| i.sent).count()
    }

    /// The connection is over: everything will have to be sent again.
    pub fn rewind(&mut self) {
        for inflight in &mut self.inflight {
            inflight.sent = false;
        }
    }
}

impl Parked for ClientState {
    fn deliver(&mut self, delivery: Delivery) -> bool {
        let properties = delivery.message.properties();
        let Ok(envelope) = Envelope::read(&properties) else {
            return false;
        };
        match quality(&delivery, &envelope) {
            // Need not be kept (section 4.5); RabbitMQ keeps them, mosquitto does not.
            Qos::AtMostOnce => true,
            _ => self.wait(delivery),
        }
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
