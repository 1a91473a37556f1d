//! The session state that outlives a connection (section 4.1), except for the subscriptions, which
//! the router has.

use crate::completed::{CompletedMessage, CompletedMessages};
use crate::handover::{EarlierSentMessages, Handover};
use crate::packet_ids::PacketIds;
use crate::stream_subscriptions::StreamDelivery;
use crate::{MqttSettings, SessionLimits};
use bytes::Bytes;
use codec_mqtt::Qos;
use conversion::mqtt::Envelope;
use env::planted::{self, Bug};
use message::Message;
use metadata::{QueueId, SessionId};
use queue::{MessageId, Settlement};
use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use topics::{Delivery, ParkedSession};

/// The owner of a message until the client has completed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageOwner {
    /// Only this session has the message.
    Nobody,
    /// The session's queue, which has delivered it to this connection.
    Queue(CompletedMessage),
    /// The session's queue, which will deliver it again. Its number there, if the queue reports it.
    Return(Option<MessageId>),
    /// A stream, which has delivered it to this connection.
    Stream(StreamDelivery),
}

/// A QoS 1 or 2 message with a packet identifier.
#[derive(Debug)]
pub(crate) struct InflightMessage {
    pub packet_id: u16,
    pub qos: Qos,
    /// `None` if it is not needed any more.
    pub delivery: Option<Delivery>,
    /// PUBREC has arrived, so PUBREL is sent [MQTT-4.3.3-6].
    pub released: bool,
    /// Sent on this connection. Messages of earlier connections are sent again with DUP.
    pub sent: bool,
    pub owner: MessageOwner,
}

impl InflightMessage {
    pub(crate) fn awaits_return(&self) -> bool {
        matches!(self.owner, MessageOwner::Return(_))
    }
}

/// A QoS 1 or 2 message without a packet identifier.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub delivery: Delivery,
    /// Not [`MessageOwner::Return`].
    pub owner: MessageOwner,
    /// An earlier connection may have sent it.
    pub dup: bool,
}

/// A QoS 2 publish of an earlier connection with missing confirms.
#[derive(Debug)]
pub(crate) struct UnansweredPublish {
    /// The session number of that connection and its tag of the publish.
    pub session: u64,
    pub seq: u64,
    pub packet_id: u16,
    /// Number of missing confirms.
    pub missing_confirms: usize,
    /// This connection's tag of the publish, if the client has sent it again: PUBREC waits for the
    /// same confirms.
    pub resent: Option<u64>,
}

/// Optional [`InFlightState`], allocated only while messages are in flight. Derefs to it.
#[derive(Debug, Default)]
pub(crate) struct ClientState(Option<Box<InFlightState>>);

#[derive(Debug, Default)]
pub(crate) struct InFlightState {
    /// Packet identifiers released on behalf of an earlier incarnation of the node, whose PUBCOMP
    /// has not arrived.
    releasing: BTreeSet<u16>,
    /// Packet identifiers of QoS 2 publishes that await PUBREL.
    pub received: BTreeSet<u16>,
    /// Received publishes whose confirms are missing.
    pub unanswered: Vec<UnansweredPublish>,
    /// In the order of sending.
    pub inflight: VecDeque<InflightMessage>,
    waiting: VecDeque<QueuedMessage>,
    waiting_bytes: usize,
    /// A message was dropped because the limit was reached. The waiting messages are then not
    /// redelivered to other members, who could not hold them either.
    overrun: bool,
    /// Messages of the session's queue that the client has completed.
    pub completed: CompletedMessages,
}

static NOTHING: InFlightState = InFlightState {
    releasing: BTreeSet::new(),
    received: BTreeSet::new(),
    unanswered: Vec::new(),
    inflight: VecDeque::new(),
    waiting: VecDeque::new(),
    waiting_bytes: 0,
    overrun: false,
    completed: CompletedMessages::NONE,
};

impl InFlightState {
    /// Returns true if this state can be freed.
    fn is_unused(&self) -> bool {
        self.releasing.is_empty()
            && self.received.is_empty()
            && self.unanswered.is_empty()
            && self.inflight.is_empty()
            && self.waiting.is_empty()
            && self.completed.is_empty()
    }

    /// Returns true if a packet identifier is in use.
    fn has(&self, id: u16) -> bool {
        self.inflight.iter().any(|i| i.packet_id == id) || self.releasing.contains(&id)
    }
}

impl Deref for ClientState {
    type Target = InFlightState;

    fn deref(&self) -> &InFlightState {
        self.0.as_deref().unwrap_or(&NOTHING)
    }
}

impl DerefMut for ClientState {
    fn deref_mut(&mut self) -> &mut InFlightState {
        self.0.get_or_insert_default()
    }
}

/// A session without a connection.
#[derive(Debug)]
pub(crate) struct ParkedState {
    pub state: ClientState,
    pub ids: PacketIds,
    /// The queue of the session when its connection ended.
    pub queue: Option<QueueId>,
    /// Settlements that the queue may not have processed.
    pub settled: Option<Box<Settlement>>,
    /// See [`SessionQueue`](crate::session_queue::SessionQueue).
    pub epoch: Option<SessionId>,
    pub sent_earlier: EarlierSentMessages,
    /// The fence of its connection's bindings, or 0 if a change of the connection is unanswered.
    pub fence: u32,
    pub settings: Arc<MqttSettings>,
}

/// Capacity of the waiting list that an empty one keeps.
const KEPT_CAPACITY: usize = 64;

/// Returns the QoS of a delivery: the maximum that the subscriptions grant, but not above the
/// published one [MQTT-3.8.4-8], [MQTT-3.3.4-2].
pub(crate) fn effective_qos(delivery: &Delivery, envelope: &Envelope<'_>) -> Qos {
    let granted = delivery.hits.iter().map(|hit| hit.qos).max();
    granted.unwrap_or_default().min(envelope.qos)
}

impl ClientState {
    /// Frees the state if nothing is in flight.
    pub(crate) fn free_unused(&mut self) {
        self.0.take_if(|in_flight| in_flight.is_unused());
    }

    /// The session has ended: returns the messages that other members of shared subscriptions must
    /// get instead. A QoS 2 message that was sent goes to no other client [MQTT-4.8.2-5].
    pub(crate) fn take_undelivered(&mut self) -> Vec<Delivery> {
        let Some(in_flight) = self.0.as_deref_mut() else {
            return Vec::new();
        };
        let inflight = std::mem::take(&mut in_flight.inflight).into_iter();
        let unacknowledged = inflight
            .filter(|i| i.owner == MessageOwner::Nobody && i.qos == Qos::AtLeastOnce)
            .filter_map(|i| i.delivery);
        let waiting = match in_flight.overrun {
            true => VecDeque::new(),
            false => std::mem::take(&mut in_flight.waiting),
        };
        let unsent = waiting
            .into_iter()
            .filter(|w| w.owner == MessageOwner::Nobody && !(w.dup && is_exactly_once(&w.delivery)))
            .map(|w| w.delivery);
        let all = unacknowledged.chain(unsent);
        all.filter(|delivery| delivery.group != 0).collect()
    }

    /// Appends a QoS 1 or 2 message to the waiting ones. Returns false if the limit is reached. A
    /// single waiting message may exceed the byte limit, because other protocols allow larger
    /// messages.
    pub(crate) fn push_waiting(&mut self, delivery: Delivery, limits: &SessionLimits) -> bool {
        let size = delivery.message.as_bytes().len();
        let over_bytes = self.waiting_bytes + size > limits.waiting_bytes;
        if self.waiting.len() >= limits.waiting_messages || (over_bytes && !self.waiting.is_empty())
        {
            self.overrun = true;
            return false;
        }
        self.push_from_queue(QueuedMessage {
            delivery,
            owner: MessageOwner::Nobody,
            dup: false,
        });
        true
    }

    /// Like [`ClientState::push_waiting`], for messages from the session's queue or a stream, which are bounded
    /// by the prefetch.
    pub(crate) fn push_from_queue(&mut self, waiting: QueuedMessage) {
        self.waiting_bytes += waiting.delivery.message.as_bytes().len();
        self.waiting.push_back(waiting);
    }

    /// The queue redelivers a message. Returns true if it has a packet identifier.
    pub(crate) fn match_redelivery(
        &mut self,
        message: &Message,
        queue_message: CompletedMessage,
    ) -> bool {
        let same = |i: &&mut InflightMessage| {
            let known = i.delivery.as_ref().map(|d| d.message.as_bytes());
            i.awaits_return() && known == Some(message.as_bytes())
        };
        let found = self.inflight.iter_mut().find(same);
        if let Some(inflight) = found {
            inflight.owner = MessageOwner::Queue(queue_message);
            return true;
        }
        false
    }

    pub(crate) fn next_waiting(&mut self) -> Option<QueuedMessage> {
        let next = self.waiting.pop_front()?;
        debug_assert!(
            self.waiting_bytes >= next.delivery.message.as_bytes().len(),
            "waiting messages of {} bytes were not counted",
            next.delivery.message.as_bytes().len()
        );
        self.waiting_bytes -= next.delivery.message.as_bytes().len();
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT_CAPACITY {
            self.waiting = VecDeque::new();
        }
        Some(next)
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes of messages that wait to be sent.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Bytes of messages that the client has not acknowledged, sent or not.
    pub(crate) fn held(&self) -> usize {
        let sent = self.inflight.iter().filter_map(|i| i.delivery.as_ref());
        self.waiting_bytes + sent.map(|d| d.message.as_bytes().len()).sum::<usize>()
    }

    pub(crate) fn visit_messages(&self, visit: &mut dyn FnMut(&Message)) {
        let sent = self.inflight.iter().filter_map(|i| i.delivery.as_ref());
        let waiting = self.waiting.iter().map(|w| &w.delivery);
        sent.chain(waiting).for_each(|d| visit(&d.message));
    }

    /// Returns true if a packet identifier is free.
    pub(crate) fn has_id(&self, ids: &PacketIds) -> bool {
        let all = ids.all();
        let few = self.inflight.len() < usize::from(*all.end());
        few && self.releasing.is_empty() || all.into_iter().any(|id| !self.has(id))
    }

    pub(crate) fn new_id(&self, ids: &mut PacketIds) -> Option<u16> {
        ids.next(|id| self.has(id))
    }

    /// Marks all identifiers that another incarnation of the node may have used as unreleased.
    pub(crate) fn release_all(&mut self, ids: &PacketIds) {
        self.releasing = ids.all().collect();
    }

    /// Returns true if a QoS 2 message is in flight to the client.
    pub(crate) fn has_exactly_once(&self) -> bool {
        let mut all = self.inflight.iter();
        all.any(|i| i.qos == Qos::ExactlyOnce)
    }

    /// The client was connected elsewhere, so the packet identifiers of both directions are
    /// unknown. The queue redelivers its messages; the others are sent again.
    pub(crate) fn forget_packet_ids(&mut self) {
        let Some(in_flight) = self.0.as_deref_mut() else {
            return;
        };
        in_flight.received.clear();
        in_flight.unanswered.clear();
        let all = std::mem::take(&mut in_flight.inflight);
        let ours = all.into_iter().filter(|i| i.owner == MessageOwner::Nobody);
        for delivery in ours
            .filter(|i| !i.released)
            .rev()
            .filter_map(|i| i.delivery)
        {
            in_flight.waiting_bytes += delivery.message.as_bytes().len();
            in_flight.waiting.push_front(QueuedMessage {
                delivery,
                owner: MessageOwner::Nobody,
                dup: true,
            });
        }
    }

    /// Forgets a packet identifier of the client. Returns true if it was known.
    pub(crate) fn forget_received(&mut self, id: u16) -> bool {
        let Some(in_flight) = self.0.as_deref_mut() else {
            return false;
        };
        in_flight.unanswered.retain(|u| u.packet_id != id);
        in_flight.received.remove(&id)
    }

    /// A publish of an earlier connection was confirmed or rejected. Returns it if this was the
    /// final answer.
    pub(crate) fn record_answer(
        &mut self,
        session: u64,
        seq: u64,
        accepted: bool,
    ) -> Option<UnansweredPublish> {
        let in_flight = self.0.as_deref_mut()?;
        let mut all = in_flight.unanswered.iter_mut();
        let at = all.position(|u| (u.session, u.seq) == (session, seq))?;
        let publish = in_flight.unanswered.get_mut(at)?;
        publish.missing_confirms = publish.missing_confirms.saturating_sub(1);
        if accepted && publish.missing_confirms > 0 {
            return None;
        }
        let publish = in_flight.unanswered.remove(at);
        if !accepted {
            in_flight.received.remove(&publish.packet_id);
        }
        Some(publish)
    }

    /// The numbers of the queue's messages that earlier connections sent and this one has not.
    pub(crate) fn pending_redeliveries(&self) -> impl Iterator<Item = Option<MessageId>> {
        let again = self.waiting.iter().filter(|w| w.dup);
        again.filter_map(|w| match w.owner {
            MessageOwner::Queue(queue_message) => Some(queue_message.mark),
            _ => None,
        })
    }

    /// Packet identifiers for which PUBREL must be sent.
    pub(crate) fn releasing(&self) -> impl Iterator<Item = u16> {
        self.releasing.iter().copied()
    }

    /// PUBCOMP has arrived. Returns true if it answers one of [`ClientState::releasing`].
    pub(crate) fn was_released(&mut self, id: u16) -> bool {
        let in_flight = self.0.as_mut();
        in_flight.is_some_and(|in_flight| in_flight.releasing.remove(&id))
    }

    pub(crate) fn position(&self, packet_id: u16) -> Option<usize> {
        // Usually the first: clients acknowledge in order [MQTT-4.6.0-2].
        self.inflight.iter().position(|i| i.packet_id == packet_id)
    }

    /// Number of messages that the client must acknowledge on this connection.
    pub(crate) fn outstanding(&self) -> usize {
        self.inflight.iter().filter(|i| i.sent).count()
    }

    /// The connection has ended: all messages must be sent again, and those of the queue have been
    /// requeued.
    pub(crate) fn prepare_resend(&mut self) {
        let Some(in_flight) = self.0.as_deref_mut() else {
            return;
        };
        if planted::is(Bug::PacketIdForgotten) {
            let kept = |i: &InflightMessage| i.qos != Qos::ExactlyOnce;
            in_flight.inflight.retain(kept);
        }
        for inflight in &mut in_flight.inflight {
            inflight.sent = false;
            match inflight.owner {
                MessageOwner::Queue(queue_message) => {
                    inflight.owner = MessageOwner::Return(queue_message.mark);
                }
                // The subscription ends with the connection, so only this session has the message.
                MessageOwner::Stream(_) => inflight.owner = MessageOwner::Nobody,
                MessageOwner::Nobody | MessageOwner::Return(_) => {}
            }
        }
        in_flight
            .waiting
            .retain(|w| w.owner == MessageOwner::Nobody);
        let sizes = in_flight
            .waiting
            .iter()
            .map(|w| w.delivery.message.as_bytes().len());
        in_flight.waiting_bytes = sizes.sum();
        self.free_unused();
    }
}

fn is_exactly_once(delivery: &Delivery) -> bool {
    let properties = delivery.message.properties();
    Envelope::read(properties).is_ok_and(|e| effective_qos(delivery, &e) == Qos::ExactlyOnce)
}

impl ParkedSession for ParkedState {
    fn deliver(&mut self, delivery: Delivery) -> bool {
        let properties = delivery.message.properties();
        let Ok(envelope) = Envelope::read(properties) else {
            return false;
        };
        match effective_qos(&delivery, &envelope) {
            // QoS 0 messages need not be stored (section 4.5); RabbitMQ stores them, Mosquitto does
            // not.
            Qos::AtMostOnce => true,
            _ => self.state.push_waiting(delivery, &self.settings.limits),
        }
    }

    fn take_undelivered(&mut self) -> Vec<Delivery> {
        self.state.take_undelivered()
    }

    fn is_settled(&self) -> bool {
        self.state.unanswered.is_empty()
    }

    fn hand_over(&mut self) -> Bytes {
        let (Some(queue), Some(epoch)) = (self.queue, self.epoch) else {
            return Bytes::new();
        };
        let mut received = std::mem::take(&mut self.state.received);
        // Queues may not have stored these messages, so PUBREC must not confirm them.
        for publish in &self.state.unanswered {
            received.remove(&publish.packet_id);
        }
        let mut sent = std::mem::replace(&mut self.sent_earlier, EarlierSentMessages::Unknown);
        for inflight in &self.state.inflight {
            if let MessageOwner::Return(mark) = inflight.owner {
                sent.add(mark);
            }
        }
        for mark in self.state.completed.marks() {
            sent.add(Some(mark));
        }
        let handover = Handover {
            queue,
            epoch,
            received,
            sent,
        };
        handover.encode()
    }

    fn answered(&mut self, session: u64, tag: u64, accepted: bool) {
        self.state.record_answer(session, tag, accepted);
        self.state.free_unused();
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreleased_identifiers_are_not_reused() {
        let (mut state, mut ids) = (ClientState::default(), PacketIds::default());
        ids.keep_low(10);
        assert!(state.has_id(&ids) && state.0.is_none());
        state.release_all(&ids);
        assert_eq!(state.releasing().count(), 64);
        assert_eq!((state.has_id(&ids), state.new_id(&mut ids)), (false, None));
        assert!(state.was_released(7) && !state.was_released(7));
        assert!(state.has_id(&ids));
        state.free_unused();
        assert_eq!(state.new_id(&mut ids), Some(7));
        for id in 1..=64 {
            state.was_released(id);
        }
        state.free_unused();
        assert!(state.0.is_none());
    }
}
