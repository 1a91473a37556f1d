//! What of a client's session outlives its connection (section 4.1), but for its subscriptions, which the hub has.

use crate::completed::{CompletedMessage, CompletedMessages};
use crate::handover::{Handover, SentEarlier};
use crate::packet_ids::PacketIds;
use crate::{Limits, Settings};
use bytes::Bytes;
use codec_mqtt::Qos;
use env::planted::{self, Bug};
use message::Message;
use metadata::{QueueId, SessionId};
use queue::{MessageId, Settlement};
use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use topics::{Delivery, Envelope, ParkedSession};

/// Whose a message is until the client is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MessageOwner {
    /// This session's alone.
    Nobody,
    /// The session's queue's.
    Queue(CompletedMessage),
    /// The queue's, which will give it again. Its number there, if the queue says it.
    Return(Option<MessageId>),
}

/// A message of QoS 1 or 2 under a packet identifier.
#[derive(Debug)]
pub(crate) struct Inflight {
    pub packet_id: u16,
    pub qos: Qos,
    /// As long as it may be needed.
    pub delivery: Option<Delivery>,
    /// PUBREC has come, PUBREL is what goes out [MQTT-4.3.3-6].
    pub released: bool,
    /// On this connection; what is from before goes again, with DUP.
    pub sent: bool,
    pub owed: MessageOwner,
}

impl Inflight {
    pub fn awaits_return(&self) -> bool {
        matches!(self.owed, MessageOwner::Return(_))
    }
}

/// A message of QoS 1 or 2 without a packet identifier yet.
#[derive(Debug)]
pub(crate) struct QueuedMessage {
    pub delivery: Delivery,
    /// It is from the session's queue.
    pub owed: Option<CompletedMessage>,
    /// An earlier connection may have sent it.
    pub dup: bool,
}

/// A publish of QoS 2 of an earlier connection that queues or other hubs have not all answered.
#[derive(Debug)]
pub(crate) struct UnansweredPublish {
    /// The session of that connection, and its number for the publish.
    pub session: u64,
    pub seq: u64,
    pub packet_id: u16,
    /// Answers that are missing.
    pub left: usize,
    /// This connection's number for it, if the client has sent it again: PUBREC waits for the same answers.
    pub resent: Option<u64>,
}

/// It derefs to what is there only while messages are under way.
#[derive(Debug, Default)]
pub(crate) struct ClientState(Option<Box<InFlightState>>);

#[derive(Debug, Default)]
pub(crate) struct InFlightState {
    /// Packet identifiers that were released for an earlier life of the node, and PUBCOMP has not come.
    releasing: BTreeSet<u16>,
    /// Packet identifiers of QoS 2 publishes that await PUBREL.
    pub received: BTreeSet<u16>,
    /// Of these the ones whose answers are missing.
    pub unanswered: Vec<UnansweredPublish>,
    /// In the order in which they were sent.
    pub inflight: VecDeque<Inflight>,
    waiting: VecDeque<QueuedMessage>,
    waiting_bytes: usize,
    /// A message found no room: what waits is not handed to others, who have no more room.
    overrun: bool,
    /// Messages of the session's queue that the client is done with.
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
    /// Whether it could as well not be there.
    fn is_over(&self) -> bool {
        self.releasing.is_empty()
            && self.received.is_empty()
            && self.unanswered.is_empty()
            && self.inflight.is_empty()
            && self.waiting.is_empty()
            && self.completed.is_empty()
    }

    /// Whether a packet identifier is not to be used now.
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

/// A session without its connection.
#[derive(Debug)]
pub(crate) struct ParkedState {
    pub state: ClientState,
    pub ids: PacketIds,
    /// The queue that the session had when its connection ended.
    pub queue: Option<QueueId>,
    /// What that may not have heard of.
    pub settled: Option<Box<Settlement>>,
    /// See [`SessionQueue`](crate::stored::Stored).
    pub epoch: Option<SessionId>,
    pub sent_earlier: SentEarlier,
    /// The number in the bindings of its connection, if all that that asked for was answered; else 0.
    pub fence: u32,
    pub settings: Arc<Settings>,
}

/// Room for messages that wait which a client keeps when none does.
const KEPT_ROOM: usize = 64;

/// The QoS a message goes out with: the best that a subscription allows, and no better than it was published with
/// [MQTT-3.8.4-8], [MQTT-3.3.4-2].
pub(crate) fn quality(delivery: &Delivery, envelope: &Envelope<'_>) -> Qos {
    let granted = delivery.hits.iter().map(|hit| hit.qos).max();
    granted.unwrap_or_default().min(envelope.qos)
}

impl ClientState {
    /// Gives back what is not needed while nothing is under way.
    pub fn rest(&mut self) {
        self.0.take_if(|under_way| under_way.is_over());
    }

    /// The session is over: what other members of shared subscriptions are to have instead. A message of QoS 2 that was sent goes
    /// to nobody else [MQTT-4.8.2-5].
    pub fn take_undelivered(&mut self) -> Vec<Delivery> {
        let Some(under_way) = self.0.as_deref_mut() else {
            return Vec::new();
        };
        let inflight = std::mem::take(&mut under_way.inflight).into_iter();
        let unacknowledged = inflight
            .filter(|i| i.owed == MessageOwner::Nobody && i.qos == Qos::AtLeastOnce)
            .filter_map(|i| i.delivery);
        let waiting = match under_way.overrun {
            true => VecDeque::new(),
            false => std::mem::take(&mut under_way.waiting),
        };
        let unsent = waiting
            .into_iter()
            .filter(|w| w.owed.is_none() && !(w.dup && is_exactly_once(&w.delivery)))
            .map(|w| w.delivery);
        let all = unacknowledged.chain(unsent);
        all.filter(|delivery| delivery.group != 0).collect()
    }

    /// Puts a message of QoS 1 or 2 behind the others. False: there is no room. One that waits alone may exceed the limit:
    /// another protocol takes larger messages.
    pub fn wait(&mut self, delivery: Delivery, limits: &Limits) -> bool {
        let size = delivery.message.as_bytes().len();
        let over_bytes = self.waiting_bytes + size > limits.waiting_bytes;
        if self.waiting.len() >= limits.waiting_messages || (over_bytes && !self.waiting.is_empty())
        {
            self.overrun = true;
            return false;
        }
        self.wait_given(QueuedMessage {
            delivery,
            owed: None,
            dup: false,
        });
        true
    }

    /// As [`ClientState::wait`], for what the session's queue gave: that is no more than it was asked for.
    pub fn wait_given(&mut self, waiting: QueuedMessage) {
        self.waiting_bytes += waiting.delivery.message.as_bytes().len();
        self.waiting.push_back(waiting);
    }

    /// The queue gives a message again. Whether it is one that has a packet identifier.
    pub fn returned(&mut self, message: &Message, given: CompletedMessage) -> bool {
        let same = |i: &&mut Inflight| {
            let known = i.delivery.as_ref().map(|d| d.message.as_bytes());
            i.awaits_return() && known == Some(message.as_bytes())
        };
        let found = self.inflight.iter_mut().find(same);
        if let Some(inflight) = found {
            inflight.owed = MessageOwner::Queue(given);
            return true;
        }
        false
    }

    pub fn next_waiting(&mut self) -> Option<QueuedMessage> {
        let next = self.waiting.pop_front()?;
        self.waiting_bytes -= next.delivery.message.as_bytes().len();
        if self.waiting.is_empty() && self.waiting.capacity() > KEPT_ROOM {
            self.waiting = VecDeque::new();
        }
        Some(next)
    }

    pub fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes of messages that wait to be sent.
    pub fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    /// Bytes of messages that the client has not acknowledged, sent or not.
    pub fn held(&self) -> usize {
        let sent = self.inflight.iter().filter_map(|i| i.delivery.as_ref());
        self.waiting_bytes + sent.map(|d| d.message.as_bytes().len()).sum::<usize>()
    }

    pub fn visit_messages(&self, visit: &mut dyn FnMut(&Message)) {
        let sent = self.inflight.iter().filter_map(|i| i.delivery.as_ref());
        let waiting = self.waiting.iter().map(|w| &w.delivery);
        sent.chain(waiting).for_each(|d| visit(&d.message));
    }

    /// Whether a message can be sent: a packet identifier is free.
    pub fn has_id(&self, ids: &PacketIds) -> bool {
        let all = ids.all();
        let few = self.inflight.len() < usize::from(*all.end());
        few && self.releasing.is_empty() || all.into_iter().any(|id| !self.has(id))
    }

    pub fn new_id(&self, ids: &mut PacketIds) -> Option<u16> {
        ids.next(|id| self.has(id))
    }

    /// What another life of the node may have used is not used again before it is released.
    pub fn release_all(&mut self, ids: &PacketIds) {
        self.releasing = ids.all().collect();
    }

    /// Whether a message of QoS 2 is under way to the client.
    pub fn has_exactly_once(&self) -> bool {
        let mut all = self.inflight.iter();
        all.any(|i| i.qos == Qos::ExactlyOnce)
    }

    /// The client has been elsewhere: what packet identifiers stand for, in both directions, is not known any more. What is the queue's
    /// comes from there again; the rest is sent once more.
    pub fn forget_ids(&mut self) {
        let Some(under_way) = self.0.as_deref_mut() else {
            return;
        };
        under_way.received.clear();
        under_way.unanswered.clear();
        let all = std::mem::take(&mut under_way.inflight);
        let ours = all.into_iter().filter(|i| i.owed == MessageOwner::Nobody);
        for delivery in ours
            .filter(|i| !i.released)
            .rev()
            .filter_map(|i| i.delivery)
        {
            under_way.waiting_bytes += delivery.message.as_bytes().len();
            under_way.waiting.push_front(QueuedMessage {
                delivery,
                owed: None,
                dup: true,
            });
        }
    }

    /// Forgets a packet identifier of the client's. True: it was known.
    pub fn forget_received(&mut self, id: u16) -> bool {
        let Some(under_way) = self.0.as_deref_mut() else {
            return false;
        };
        under_way.unanswered.retain(|u| u.packet_id != id);
        under_way.received.remove(&id)
    }

    /// A publish of an earlier connection was answered. The publish, if that was the last answer that it needed.
    pub fn answered(&mut self, session: u64, seq: u64, taken: bool) -> Option<UnansweredPublish> {
        let under_way = self.0.as_deref_mut()?;
        let mut all = under_way.unanswered.iter_mut();
        let at = all.position(|u| (u.session, u.seq) == (session, seq))?;
        let publish = under_way.unanswered.get_mut(at)?;
        publish.left = publish.left.saturating_sub(1);
        if taken && publish.left > 0 {
            return None;
        }
        let publish = under_way.unanswered.remove(at);
        if !taken {
            under_way.received.remove(&publish.packet_id);
        }
        Some(publish)
    }

    /// Messages from the session's queue that earlier connections sent and this one has not: their numbers there.
    pub fn unsent_again(&self) -> impl Iterator<Item = Option<MessageId>> {
        let again = self.waiting.iter().filter(|w| w.dup);
        again.filter_map(|w| w.owed.map(|given| given.mark))
    }

    /// Those that PUBREL has to go out for.
    pub fn releasing(&self) -> impl Iterator<Item = u16> {
        self.releasing.iter().copied()
    }

    /// PUBCOMP has come. Whether it is for one of [`ClientState::releasing`].
    pub fn was_released(&mut self, id: u16) -> bool {
        let under_way = self.0.as_mut();
        under_way.is_some_and(|under_way| under_way.releasing.remove(&id))
    }

    pub fn position(&self, packet_id: u16) -> Option<usize> {
        // Mostly the first: clients acknowledge in order [MQTT-4.6.0-2].
        self.inflight.iter().position(|i| i.packet_id == packet_id)
    }

    /// Messages that the client owes an answer for on this connection.
    pub fn outstanding(&self) -> usize {
        self.inflight.iter().filter(|i| i.sent).count()
    }

    /// The connection is over: everything will have to be sent again, and what is the queue's has gone back there.
    pub fn rewind(&mut self) {
        let Some(under_way) = self.0.as_deref_mut() else {
            return;
        };
        if planted::is(Bug::PacketIdForgotten) {
            let kept = |i: &Inflight| i.qos != Qos::ExactlyOnce;
            under_way.inflight.retain(kept);
        }
        for inflight in &mut under_way.inflight {
            inflight.sent = false;
            if let MessageOwner::Queue(given) = inflight.owed {
                inflight.owed = MessageOwner::Return(given.mark);
            }
        }
        under_way.waiting.retain(|w| w.owed.is_none());
        let sizes = under_way
            .waiting
            .iter()
            .map(|w| w.delivery.message.as_bytes().len());
        under_way.waiting_bytes = sizes.sum();
        self.rest();
    }
}

fn is_exactly_once(delivery: &Delivery) -> bool {
    let properties = delivery.message.properties();
    Envelope::read(properties).is_ok_and(|e| quality(delivery, &e) == Qos::ExactlyOnce)
}

impl ParkedSession for ParkedState {
    fn deliver(&mut self, delivery: Delivery) -> bool {
        let properties = delivery.message.properties();
        let Ok(envelope) = Envelope::read(properties) else {
            return false;
        };
        match quality(&delivery, &envelope) {
            // Need not be kept (section 4.5); RabbitMQ keeps them, mosquitto does not.
            Qos::AtMostOnce => true,
            _ => self.state.wait(delivery, &self.settings.limits),
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
        // It is not known whether queues have these messages: PUBREC for them must not say so.
        for publish in &self.state.unanswered {
            received.remove(&publish.packet_id);
        }
        let mut sent = std::mem::replace(&mut self.sent_earlier, SentEarlier::Unknown);
        for inflight in &self.state.inflight {
            if let MessageOwner::Return(mark) = inflight.owed {
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

    fn answered(&mut self, session: u64, tag: u64, taken: bool) {
        self.state.answered(session, tag, taken);
        self.state.rest();
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_released_for_an_earlier_life_is_not_used_before() {
        let (mut state, mut ids) = (ClientState::default(), PacketIds::default());
        ids.keep_low(10);
        assert!(state.has_id(&ids) && state.0.is_none());
        state.release_all(&ids);
        assert_eq!(state.releasing().count(), 64);
        assert_eq!((state.has_id(&ids), state.new_id(&mut ids)), (false, None));
        assert!(state.was_released(7) && !state.was_released(7));
        assert!(state.has_id(&ids));
        state.rest();
        assert_eq!(state.new_id(&mut ids), Some(7));
        for id in 1..=64 {
            state.was_released(id);
        }
        state.rest();
        assert!(state.0.is_none());
    }
}
