//! A queue on its owner, as the owning shard sees it.

use crate::{
    ConsumerId, ConsumerSpec, DeadIncarnation, DeadLettering, DeadReason, DeathCounts, Delivery,
    QueueCounters, QueueEvent, QueueMessage, QueueSettings, QueueStats, QueueType, SessionId,
};
use env::{NodeId, Time, WallTime};
use message::Message;

/// Both clocks at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    pub now: Time,
    pub wall: WallTime,
}

/// An event and whom it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressedEvent {
    pub session: SessionId,
    pub event: QueueEvent,
}

/// What a queue's step leaves to be carried out.
#[derive(Debug, Default)]
pub struct QueueOutput {
    /// In order per session.
    pub events: Vec<AddressedEvent>,
    /// Messages that left the queue without having been accepted, to be passed on at most once.
    pub dead: Vec<(DeadReason, Message)>,
    /// The same, but kept by the queue under these numbers until they have been passed on.
    pub kept_dead: Vec<(u64, DeadReason, Message)>,
    /// Messages that died, whatever becomes of them.
    pub deaths: Option<Box<DeathCounts>>,
    /// Damage and failures to be logged; the queue goes on with what it has.
    pub faults: Vec<String>,
    /// Files that the queue wrote are not there any more: its node must not go on.
    pub gone: Option<String>,
}

/// How far back a delivery looks for one to the same consumer to join: consumers that take turns share few events.
const LOOK_BACK: usize = 16;

impl QueueOutput {
    /// Adds an event. Of several reports of progress in a row only the last one matters.
    pub fn event(&mut self, session: SessionId, event: QueueEvent) {
        if let Some(last) = self.events.last_mut()
            && last.session == session
            && let Some(before) = progress(&last.event)
            && progress(&event).is_some_and(|now| now >= before)
        {
            last.event = event;
            return;
        }
        self.events.push(AddressedEvent { session, event });
    }

    /// Adds a delivery, to an earlier event when nothing but deliveries to other sessions lies between.
    pub fn deliver(&mut self, session: SessionId, consumer: ConsumerId, delivery: Delivery) {
        for earlier in self.events.iter_mut().rev().take(LOOK_BACK) {
            let QueueEvent::Deliver {
                consumer: to,
                deliveries,
            } = &mut earlier.event
            else {
                break;
            };
            if earlier.session == session {
                if *to == consumer {
                    deliveries.push(delivery);
                    return;
                }
                // Another one, it may be of the same channel, which gets messages in the queue's order (4.7).
                break;
            }
        }
        let deliveries = vec![delivery];
        let event = QueueEvent::Deliver {
            consumer,
            deliveries,
        };
        self.event(session, event);
    }

    /// A delivery cannot be made and is passed over: who asked for deliveries from it on hears that they come from the next on.
    pub fn pass_over(&mut self, session: SessionId, consumer: ConsumerId, id: u64) {
        for earlier in self.events.iter_mut().rev() {
            match &mut earlier.event {
                QueueEvent::Resumed { consumer: of, next }
                    if earlier.session == session && *of == consumer =>
                {
                    if *next == id {
                        *next += 1;
                    }
                    return;
                }
                _ => {}
            }
        }
    }

    /// A message died.
    pub fn died(&mut self, kind: QueueType, way: DeadLettering, reason: DeadReason) {
        let deaths = self.deaths.get_or_insert_default();
        deaths.count(kind, way, reason);
    }

    pub fn add_deaths(&mut self, deaths: Box<DeathCounts>) {
        match &mut self.deaths {
            Some(ours) => ours.add(&deaths),
            None => self.deaths = Some(deaths),
        }
    }

    /// Adds all that another one holds.
    pub fn append(&mut self, other: &mut QueueOutput) {
        self.events.append(&mut other.events);
        self.dead.append(&mut other.dead);
        self.kept_dead.append(&mut other.kept_dead);
        if let Some(deaths) = other.deaths.take() {
            self.add_deaths(deaths);
        }
        self.faults.append(&mut other.faults);
        self.gone = self.gone.take().or(other.gone.take());
    }

    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.dead.is_empty()
            && self.kept_dead.is_empty()
            && self.deaths.is_none()
            && self.faults.is_empty()
            && self.gone.is_none()
    }
}

/// Up to where a report says all there is to say.
fn progress(event: &QueueEvent) -> Option<u64> {
    match event {
        QueueEvent::Applied { up_to } | QueueEvent::AppliedExcept { up_to, .. } => Some(*up_to),
        _ => None,
    }
}

/// A consumer, for listings.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerInfo {
    pub session: SessionId,
    pub consumer: ConsumerId,
    pub spec: ConsumerSpec,
    pub unacknowledged: u64,
    /// Gets messages: not suspended, and not waiting behind the single active one.
    pub active: bool,
}

/// A queue that this shard owns. Every call may leave work in `out`.
pub trait Queue {
    fn step(&mut self, at: Timestamps, item: QueueMessage, out: &mut QueueOutput);
    /// Time moved on; call when [`wake_at`](Self::wake_at) has come.
    fn tick(&mut self, at: Timestamps, out: &mut QueueOutput);
    /// The end of a turn of the shard: what can be written or proposed together now is.
    fn flush(&mut self, at: Timestamps, out: &mut QueueOutput);
    /// When it wants a tick; None while it is idle.
    fn wake_at(&self) -> Option<Time>;
    /// A session is over and will not close itself.
    fn session_gone(&mut self, at: Timestamps, session: SessionId, out: &mut QueueOutput);
    /// Earlier lives of a node are over.
    fn node_gone(&mut self, at: Timestamps, gone: DeadIncarnation, out: &mut QueueOutput);
    /// New effective settings; no effect when they are the old ones.
    fn configure(&mut self, at: Timestamps, settings: &QueueSettings, out: &mut QueueOutput);
    fn stats(&self) -> QueueStats;
    fn counters(&self) -> QueueCounters;
    /// It has consumers that can be reached.
    fn in_use(&self) -> bool;
    /// Dead messages wait to be taken and passed on.
    fn has_dead(&self) -> bool;
    fn consumers(&self) -> Vec<ConsumerInfo>;
    /// The nodes that have sessions here, each once.
    fn session_nodes(&self) -> Vec<NodeId>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{message, number};

    fn delivery(n: u64) -> Delivery {
        Delivery {
            id: n,
            redelivered: false,
            attempts: None,
            left: 0,
            message: message(n, None, None, 8),
            annotations: None,
        }
    }

    fn session(number: u64) -> SessionId {
        SessionId {
            number,
            ..SessionId::default()
        }
    }

    /// A channel may have several consumers and gets messages in the order in which they were in the queue (4.7).
    #[test]
    fn consumers_of_one_session_keep_the_queues_order() {
        let mut out = QueueOutput::default();
        let turns = [(1, 1), (2, 9), (1, 2), (2, 9), (1, 1), (2, 9), (1, 1)];
        for (n, (by, consumer)) in (1..).zip(turns) {
            out.deliver(session(by), ConsumerId(consumer), delivery(n));
        }
        let of = |by| {
            let mine = out.events.iter().filter(move |a| a.session == session(by));
            let delivered = mine.map(|a| match &a.event {
                QueueEvent::Deliver { deliveries, .. } => deliveries,
                other => panic!("{other:?}"),
            });
            delivered.flatten().map(|d| number(&d.message)).collect()
        };
        let (first, second): (Vec<u64>, Vec<u64>) = (of(1), of(2));
        assert_eq!((first, second), (vec![1, 3, 5, 7], vec![2, 4, 6]));
        // Of the other session's only one, and of this one's the last two.
        assert_eq!(out.events.len(), 4);
    }
}
