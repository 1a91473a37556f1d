//! The interface of a queue to the shard that hosts it: the trait [`Queue`], and the output of its calls.

use crate::{
    ConsumerId, ConsumerSpec, DeadIncarnation, DeadLettering, DeadReason, DeathCounts, Delivery,
    QueueCounters, QueueEvent, QueueMessage, QueueSettings, QueueStats, QueueType, SessionId,
};
use env::{NodeId, Time, WallTime};
use message::Message;

/// Both clocks at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// The monotonic clock.
    pub now: Time,
    /// The wall clock.
    pub wall: WallTime,
}

/// An event and the session that it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct AddressedEvent {
    /// The receiver.
    pub session: SessionId,
    /// The event.
    pub event: QueueEvent,
}

/// Work that a call of a queue leaves to the shard.
#[derive(Debug, Default)]
pub struct QueueOutput {
    /// Events, in order per session.
    pub events: Vec<AddressedEvent>,
    /// Dead letters to be forwarded at most once.
    pub dead: Vec<(DeadReason, Message)>,
    /// Dead letters to be forwarded at least once: the queue keeps each under this number until it has been
    /// forwarded.
    pub kept_dead: Vec<(u64, DeadReason, Message)>,
    /// Counts of messages that died, whether or not they are forwarded.
    pub deaths: Option<Box<DeathCounts>>,
    /// Damage and failures to be logged; the queue continues with the messages that it can read.
    pub faults: Vec<String>,
    /// Files that the queue wrote have disappeared, for this reason: the node must stop.
    pub gone: Option<String>,
}

/// How many events back a delivery looks for one to the same consumer to join: consumers served in turn share
/// few events.
const LOOK_BACK: usize = 16;

impl QueueOutput {
    /// Adds an event. Of consecutive progress events to one session only the last one is kept.
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

    /// Adds a delivery. It joins an earlier event if only deliveries to other sessions lie between.
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
                    debug_assert!(deliveries.last().is_none_or(|last| last.id <= delivery.id));
                    deliveries.push(delivery);
                    return;
                }
                // A consumer of the same channel, which gets messages in queue order (AMQP 0.9.1, section 4.7).
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

    /// Skips a delivery that cannot be made. A session that asked for deliveries from this one on learns that
    /// they continue with the next.
    pub fn skip_delivery(&mut self, session: SessionId, consumer: ConsumerId, id: u64) {
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

    /// Counts a dead message.
    pub fn count_death(&mut self, kind: QueueType, mode: DeadLettering, reason: DeadReason) {
        let deaths = self.deaths.get_or_insert_default();
        deaths.count(kind, mode, reason);
    }

    /// Adds counts of dead messages.
    pub fn add_deaths(&mut self, deaths: Box<DeathCounts>) {
        match &mut self.deaths {
            Some(ours) => ours.add(&deaths),
            None => self.deaths = Some(deaths),
        }
    }

    /// Moves the content of another output into this one.
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

    /// Returns true if there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.dead.is_empty()
            && self.kept_dead.is_empty()
            && self.deaths.is_none()
            && self.faults.is_empty()
            && self.gone.is_none()
    }
}

/// Returns the request number that a progress event reports.
fn progress(event: &QueueEvent) -> Option<u64> {
    match event {
        QueueEvent::Applied { up_to } | QueueEvent::AppliedExcept { up_to, .. } => Some(*up_to),
        _ => None,
    }
}

/// A consumer, for listings.
#[derive(Clone, Debug, PartialEq)]
pub struct ConsumerInfo {
    /// The session of the consumer.
    pub session: SessionId,
    /// Its number within the session.
    pub consumer: ConsumerId,
    /// Its properties.
    pub spec: ConsumerSpec,
    /// Its unsettled deliveries.
    pub unacknowledged: u64,
    /// Its node can be reached, and no other consumer is the single active one.
    pub active: bool,
}

/// A queue, or a member of a replicated queue, that this shard hosts. Every call may add work to `out`.
pub trait Queue {
    /// Handles a message of a session.
    fn step(&mut self, at: Timestamps, item: QueueMessage, out: &mut QueueOutput);
    /// Does work that is due; call at [`wake_at`](Self::wake_at).
    fn tick(&mut self, at: Timestamps, out: &mut QueueOutput);
    /// Ends a turn of the shard: flushes the writes and proposals that were batched during it.
    fn flush(&mut self, at: Timestamps, out: &mut QueueOutput);
    /// When the next tick is due; None: no tick is needed.
    fn wake_at(&self) -> Option<Time>;
    /// Ends a session that cannot send `Close` itself.
    fn session_gone(&mut self, at: Timestamps, session: SessionId, out: &mut QueueOutput);
    /// Ends the sessions of earlier incarnations of a node.
    fn node_gone(&mut self, at: Timestamps, gone: DeadIncarnation, out: &mut QueueOutput);
    /// Applies new effective settings. No effect if they are unchanged.
    fn configure(&mut self, at: Timestamps, settings: &QueueSettings, out: &mut QueueOutput);
    /// Message and consumer counts.
    fn stats(&self) -> QueueStats;
    /// Message rates since the queue has its current leader.
    fn counters(&self) -> QueueCounters;
    /// Returns true if a consumer exists whose node can be reached.
    fn in_use(&self) -> bool;
    /// Returns true if dead letters can be taken and forwarded now.
    fn has_dead(&self) -> bool;
    /// The consumers, for listings.
    fn consumers(&self) -> Vec<ConsumerInfo>;
    /// The nodes that have sessions at this queue, each once.
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
            acquired: 0,
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

    /// A channel with several consumers gets messages in queue order (AMQP 0.9.1, section 4.7).
    #[test]
    fn deliveries_to_consumers_of_one_session_keep_queue_order() {
        let mut out = QueueOutput::default();
        let turns = [(1, 1), (2, 9), (1, 2), (2, 9), (1, 1), (2, 9), (1, 1)];
        for (n, (by, consumer)) in (1..).zip(turns) {
            out.deliver(session(by), ConsumerId(consumer), delivery(n));
        }
        let of = |by| {
            let is_own = out.events.iter().filter(move |a| a.session == session(by));
            let delivered = is_own.map(|a| match &a.event {
                QueueEvent::Deliver { deliveries, .. } => deliveries,
                other => panic!("{other:?}"),
            });
            delivered.flatten().map(|d| number(&d.message)).collect()
        };
        let (first, second): (Vec<u64>, Vec<u64>) = (of(1), of(2));
        assert_eq!((first, second), (vec![1, 3, 5, 7], vec![2, 4, 6]));
        // One event for session 2, three for session 1: only its last two deliveries join.
        assert_eq!(out.events.len(), 4);
    }
}
