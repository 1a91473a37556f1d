//! What of a client's session outlives its connection (section 4.1), but for its subscriptions, which the hub has.

use crate::completed::{Completed, Given};
use crate::packet_ids::PacketIds;
use crate::{Limits, Settings};
use codec_mqtt::Qos;
use env::planted::{self, Bug};
use message::Message;
use metadata::QueueId;
use queue::Settled;
use std::any::Any;
use std::collections::{BTreeSet, VecDeque};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use topics::{Delivery, Envelope, Parked};

/// Whose a message is until the client is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owed {
    /// This session's alone.
    Nobody,
    /// The session's queue's.
    Queue(Given),
    /// The queue's, which will give it again.
    Return,
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
    pub owed: Owed,
}

impl Inflight {
    pub fn awaits_return(&self) -> bool {
        self.owed == Owed::Return
    }
}

/// A message of QoS 1 or 2 without a packet identifier yet.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub delivery: Delivery,
    /// It is from the session's queue.
    pub owed: Option<Given>,
    /// An earlier connection may have sent it.
    pub dup: bool,
}

/// It derefs to what is there only while messages are under way.
#[derive(Debug, Default)]
pub(crate) struct ClientState(Option<Box<UnderWay>>);

#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    /// Packet identifiers that were released for an earlier life of the node, and PUBCOMP has not come.
    releasing: BTreeSet<u16>,
    /// Packet identifiers of QoS 2 publishes that await PUBREL.
    pub received: BTreeSet<u16>,
    /// In the order in which they were sent.
    pub inflight: VecDeque<Inflight>,
    waiting: VecDeque<Waiting>,
    waiting_bytes: usize,
    /// Messages of the session's queue that the client is done with.
    pub completed: Completed,
}

static NOTHING: UnderWay = UnderWay {
    releasing: BTreeSet::new(),
    received: BTreeSet::new(),
    inflight: VecDeque::new(),
    waiting: VecDeque::new(),
    waiting_bytes: 0,
    completed: Completed::NONE,
};

impl UnderWay {
    /// Whether it could as well not be there.
    fn is_over(&self) -> bool {
        self.releasing.is_empty()
            && self.received.is_empty()
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
    type Target = UnderWay;

    fn deref(&self) -> &UnderWay {
        self.0.as_deref().unwrap_or(&NOTHING)
    }
}

impl DerefMut for ClientState {
    fn deref_mut(&mut self) -> &mut UnderWay {
        self.0.get_or_insert_default()
    }
}

/// A session without its connection.
#[derive(Debug)]
pub(crate) struct Kept {
    pub state: ClientState,
    pub ids: PacketIds,
    /// The queue that the session had when its connection ended.
    pub queue: Option<QueueId>,
    /// What that may not have heard of.
    pub settled: Option<Box<Settled>>,
    /// See [`Stored`](crate::stored::Stored).
    pub line: Option<u64>,
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

    /// Puts a message of QoS 1 or 2 behind the others. False: there is no room.
    pub fn wait(&mut self, delivery: Delivery, limits: &Limits) -> bool {
        let size = delivery.message.as_bytes().len();
        if self.waiting.len() >= limits.waiting_messages
            || self.waiting_bytes + size > limits.waiting_bytes
        {
            return false;
        }
        self.wait_given(Waiting {
            delivery,
            owed: None,
            dup: false,
        });
        true
    }

    /// As [`ClientState::wait`], for what the session's queue gave: that is no more than it was asked for.
    pub fn wait_given(&mut self, waiting: Waiting) {
        self.waiting_bytes += waiting.delivery.message.as_bytes().len();
        self.waiting.push_back(waiting);
    }

    /// The queue gives a message again. Whether it is one that has a packet identifier.
    pub fn returned(&mut self, message: &Message, given: Given) -> bool {
        let same = |i: &&mut Inflight| {
            let known = i.delivery.as_ref().map(|d| d.message.as_bytes());
            i.awaits_return() && known == Some(message.as_bytes())
        };
        let found = self.inflight.iter_mut().find(same);
        if let Some(inflight) = found {
            inflight.owed = Owed::Queue(given);
            return true;
        }
        false
    }

    pub fn next_waiting(&mut self) -> Option<Waiting> {
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
        let all = std::mem::take(&mut under_way.inflight);
        let ours = all.into_iter().filter(|i| i.owed == Owed::Nobody);
        for delivery in ours
            .filter(|i| !i.released)
            .rev()
            .filter_map(|i| i.delivery)
        {
            under_way.waiting_bytes += delivery.message.as_bytes().len();
            under_way.waiting.push_front(Waiting {
                delivery,
                owed: None,
                dup: true,
            });
        }
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
            if let Owed::Queue(_) = inflight.owed {
                inflight.owed = Owed::Return;
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

impl Parked for Kept {
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
