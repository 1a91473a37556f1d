//! Message groups against a naive model: lists of messages that are searched for each delivery.

use super::command::Command;
use super::grouped_tests::grouped;
use super::machine::Machine;
use super::tests::{Rig, deliveries, message, number, session, settings, spec};
use crate::{
    BrowsePosition, BrowseRequest, ConsumerId, DelayedRetry, DelayedReturns, Modification,
    PositionedGet, QueueEvent, QueueOutput, QueueSettings, RequestBody, SettlementOutcome,
    schedule,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const PUBLISHER: u64 = 9;
const SESSIONS: u64 = 4;
const RETRY_MS: u64 = 100;

/// A random step. Consumers are those of sessions 1 to [`SESSIONS`], one of each session.
#[derive(Clone, Debug)]
enum Step {
    /// Group 0 is none.
    Publish {
        group: u8,
        priority: u8,
        ttl_ms: Option<u64>,
        delay_ms: Option<u64>,
    },
    Consume {
        by: u64,
        prefetch: u32,
        priority: i32,
    },
    Cancel {
        by: u64,
    },
    Close {
        by: u64,
    },
    Get {
        by: u64,
    },
    /// Takes one of the messages that are ready or delayed by its position.
    GetAt {
        by: u64,
        pick: u8,
    },
    /// Settles one of the unsettled deliveries.
    Settle {
        pick: u8,
        outcome: u8,
    },
    Suspect {
        by: u64,
    },
    Trust {
        by: u64,
    },
    Time {
        ms: u64,
    },
    Purge,
    Checkpoint,
}

fn step() -> impl Strategy<Value = Step> {
    let by = 1..=SESSIONS;
    let times = || proptest::option::weighted(0.15, 20u64..300);
    prop_oneof![
        8 => (0u8..5, 0u8..4, times(), times()).prop_map(|(group, priority, ttl_ms, delay_ms)| Step::Publish { group, priority, ttl_ms, delay_ms }),
        3 => (by.clone(), 1u32..4, 0i32..2).prop_map(|(by, prefetch, priority)| Step::Consume { by, prefetch, priority }),
        1 => by.clone().prop_map(|by| Step::Cancel { by }),
        1 => by.clone().prop_map(|by| Step::Close { by }),
        1 => by.clone().prop_map(|by| Step::Get { by }),
        2 => (by.clone(), any::<u8>()).prop_map(|(by, pick)| Step::GetAt { by, pick }),
        8 => (any::<u8>(), 0u8..6).prop_map(|(pick, outcome)| Step::Settle { pick, outcome }),
        1 => by.clone().prop_map(|by| Step::Suspect { by }),
        1 => by.prop_map(|by| Step::Trust { by }),
        1 => (1u64..150).prop_map(|ms| Step::Time { ms }),
        1 => Just(Step::Purge),
        2 => Just(Step::Checkpoint),
    ]
}

/// Where a message is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Ready,
    /// The session, the number of its consumer, and the delivery id.
    Unsettled(u64, u32, u64),
    /// Until this time of the clock.
    Delayed(u64),
    Gone,
}

/// A message of the model. The index in the list is its position in the log.
#[derive(Clone, Debug)]
struct Message {
    group: u8,
    priority: u8,
    expires: u64,
    state: State,
    /// Requeued messages, and scheduled ones that are due, precede the others.
    is_requeued: bool,
    was_delivered: bool,
    failed: u32,
    /// Its state before it was taken by its position.
    taken_from: Option<State>,
}

/// A consumer of the model.
#[derive(Clone, Debug)]
struct Consumer {
    id: u32,
    prefetch: u32,
    priority: i32,
    is_cancelled: bool,
    is_suspended: bool,
}

struct Model {
    rig: Rig,
    messages: Vec<Message>,
    consumers: BTreeMap<u64, Consumer>,
    next_consumer: BTreeMap<u64, u32>,
    delivery_limit: Option<u32>,
}

impl Model {
    fn new(delivery_limit: Option<u32>) -> Model {
        let mut rig = Rig::new(QueueSettings {
            delivery_limit,
            ..settings()
        });
        rig.enable_groups();
        rig.enable_scheduled_delivery();
        rig.enable_delivery_counts();
        rig.delay_returns(Some(DelayedRetry {
            returns: DelayedReturns::Failed,
            min_ms: RETRY_MS,
            max_ms: RETRY_MS,
        }));
        Model {
            rig,
            messages: Vec::new(),
            consumers: BTreeMap::new(),
            next_consumer: BTreeMap::new(),
            delivery_limit,
        }
    }

    fn next_id(&mut self, by: u64) -> u32 {
        let next = self.next_consumer.entry(by).or_default();
        *next += 1;
        *next
    }

    /// The consumer with unsettled messages of a group.
    fn owner(&self, group: u8) -> Option<(u64, u32)> {
        let mut of_group = self.messages.iter().filter(|m| m.group == group);
        of_group.find_map(|m| match (m.state, m.taken_from) {
            // A message that was taken from its place of the group owns nothing.
            (State::Unsettled(by, consumer, _), None) => Some((by, consumer)),
            _ => None,
        })
    }

    fn waits(&self, group: u8) -> bool {
        let mut of_group = self.messages.iter().filter(|m| m.group == group);
        of_group.any(|m| match m.taken_from.unwrap_or(m.state) {
            State::Delayed(_) => m.was_delivered,
            _ => m.taken_from.is_some(),
        })
    }

    /// The order in which messages of one group are served.
    fn key(&self, n: usize) -> (bool, u8, usize) {
        let message = &self.messages[n];
        match message.is_requeued {
            true => (false, 0, n),
            false => (true, 31 - message.priority, n),
        }
    }

    /// Ready messages of the group that go before this one.
    fn precedes(&self, n: usize) -> Option<usize> {
        let group = self.messages[n].group;
        let is_before = |other: &usize| {
            let message = &self.messages[*other];
            message.group == group
                && message.state == State::Ready
                && self.key(*other) < self.key(n)
        };
        (0..self.messages.len()).find(is_before)
    }

    fn unsettled_of(&self, by: u64, id: u32) -> usize {
        let is_own =
            |m: &&Message| matches!(m.state, State::Unsettled(s, c, _) if (s, c) == (by, id));
        self.messages.iter().filter(is_own).count()
    }

    fn can_receive(&self, by: u64) -> bool {
        let Some(consumer) = self.consumers.get(&by) else {
            return false;
        };
        let unsettled = self.unsettled_of(by, consumer.id);
        !consumer.is_cancelled && !consumer.is_suspended && unsettled < consumer.prefetch as usize
    }

    /// Makes a message ready again, or delays it if its delivery failed.
    fn requeue(&mut self, n: usize, has_failed: bool, is_delayed: bool) {
        let clock = self.rig.wall;
        let message = &mut self.messages[n];
        if let Some(place) = message.taken_from.take() {
            message.state = place;
            return;
        }
        message.failed += u32::from(has_failed);
        message.is_requeued = true;
        message.was_delivered = true;
        let is_over = self
            .delivery_limit
            .is_some_and(|limit| message.failed > limit);
        let has_expired = message.expires != 0 && message.expires <= clock;
        message.state = match () {
            () if has_failed && is_over => State::Gone,
            () if is_delayed && has_failed && !has_expired => State::Delayed(clock + RETRY_MS),
            () => State::Ready,
        };
    }

    fn requeue_all(&mut self, by: u64, has_failed: bool) {
        for n in 0..self.messages.len() {
            if matches!(self.messages[n].state, State::Unsettled(s, ..) if s == by) {
                self.requeue(n, has_failed, true);
            }
        }
    }

    /// Applies deliveries and deaths of the queue, and checks each against the state before it.
    fn observe(&mut self, out: &QueueOutput) -> Result<(), TestCaseError> {
        let clock = self.rig.wall;
        for message in &mut self.messages {
            let has_expired = message.expires != 0 && message.expires <= clock;
            match message.state {
                State::Delayed(_) | State::Ready if has_expired => message.state = State::Gone,
                State::Delayed(due) if due <= clock => message.state = State::Ready,
                _ => {}
            }
        }
        // The output lists the deliveries of one consumer together. They must have an order in which each was allowed.
        let mut left: Vec<(u64, u32, u64, usize)> = deliveries(out)
            .iter()
            .map(|(by, consumer, delivery)| {
                let n = number(&delivery.message) as usize;
                (*by, *consumer, delivery.id, n)
            })
            .collect();
        while !left.is_empty() {
            let allowed = left.iter().position(|(by, consumer, id, n)| {
                let is_first = !left
                    .iter()
                    .any(|(b, c, i, _)| (b, c) == (by, consumer) && i < id);
                is_first && self.is_allowed(*by, *consumer, *n)
            });
            let Some(at) = allowed else {
                return Err(TestCaseError::fail(format!(
                    "none of the deliveries {left:?} is allowed: {:#?}",
                    self.messages
                )));
            };
            let (by, consumer, id, n) = left.remove(at);
            self.messages[n].state = State::Unsettled(by, consumer, id);
        }
        self.check_progress()
    }

    fn is_allowed(&self, by: u64, consumer: u32, n: usize) -> bool {
        let message = &self.messages[n];
        if message.state != State::Ready {
            return false;
        }
        if message.group == 0 {
            return true;
        }
        let is_own = self
            .owner(message.group)
            .is_none_or(|owner| owner == (by, consumer));
        is_own && !self.waits(message.group) && self.precedes(n).is_none()
    }

    /// No message waits for a consumer that could get it.
    fn check_progress(&self) -> Result<(), TestCaseError> {
        let is_idle = (1..=SESSIONS).any(|by| self.can_receive(by));
        for (n, message) in self.messages.iter().enumerate() {
            if message.state != State::Ready {
                continue;
            }
            let is_stuck = match (message.group, self.owner(message.group)) {
                (0, _) => is_idle,
                (group, _) if self.waits(group) => false,
                (_, None) => is_idle,
                (_, Some((by, id))) => {
                    self.consumers.get(&by).is_some_and(|c| c.id == id) && self.can_receive(by)
                }
            };
            prop_assert!(!is_stuck, "message {n} could be delivered: {message:?}");
        }
        let count =
            |is: fn(&State) -> bool| self.messages.iter().filter(|m| is(&m.state)).count() as u64;
        let stats = self.rig.machine.stats();
        prop_assert_eq!(stats.ready, count(|s| *s == State::Ready));
        prop_assert_eq!(
            stats.unacknowledged,
            count(|s| matches!(s, State::Unsettled(..)))
        );
        prop_assert_eq!(stats.delayed, count(|s| matches!(s, State::Delayed(_))));
        let groups = self
            .rig
            .machine
            .ready
            .groups()
            .expect("the queue has groups");
        groups.assert_consistent();
        Ok(())
    }

    fn run(&mut self, step: Step) -> Result<(), TestCaseError> {
        let out = match step {
            Step::Publish {
                group,
                priority,
                ttl_ms,
                delay_ms,
            } => {
                let n = self.messages.len();
                // Others expire only at the head of their level.
                let ttl_ms = ttl_ms.filter(|_| group > 0);
                self.trust(PUBLISHER);
                let mut published = message(n as u64, Some(priority), ttl_ms);
                if group > 0 {
                    published = grouped(&published, &group.to_string());
                }
                if let Some(delay) = delay_ms {
                    published = schedule(&published, delay).expect("a small message");
                }
                let due = self.rig.wall + delay_ms.unwrap_or(0);
                self.messages.push(Message {
                    group,
                    priority,
                    expires: ttl_ms.map_or(0, |ttl| due + ttl),
                    state: match delay_ms {
                        None => State::Ready,
                        Some(_) => State::Delayed(due),
                    },
                    is_requeued: delay_ms.is_some(),
                    was_delivered: false,
                    failed: 0,
                    taken_from: None,
                });
                self.rig.one(PUBLISHER, RequestBody::Publish(published))
            }
            Step::Consume {
                by,
                prefetch,
                priority,
            } => {
                if self.consumers.get(&by).is_some_and(|c| !c.is_cancelled) {
                    return Ok(());
                }
                let id = self.next_id(by);
                let consumer = Consumer {
                    id,
                    prefetch,
                    priority,
                    is_cancelled: false,
                    is_suspended: false,
                };
                let spec = spec(prefetch, consumer.priority);
                self.trust(by);
                self.consumers.insert(by, consumer);
                self.rig.consume(by, id, spec)
            }
            Step::Cancel { by } => {
                let Some(consumer) = self.consumers.get_mut(&by) else {
                    return Ok(());
                };
                consumer.is_cancelled = true;
                let consumer = ConsumerId(consumer.id);
                self.trust(by);
                self.rig.one(by, RequestBody::Cancel { consumer })
            }
            Step::Close { by } => {
                self.trust(by);
                self.consumers.remove(&by);
                self.requeue_all(by, true);
                let out = self.rig.one(by, RequestBody::Close);
                // A closed session cannot be used again; another session of the node continues under its number.
                self.rig.machine.checkout.closed.clear();
                self.rig.machine.checkout.closed_set.clear();
                self.rig.seqs.remove(&session(by));
                out
            }
            Step::Get { by } => {
                self.trust(by);
                let consumer = ConsumerId(self.next_id(by));
                let no_ack = false;
                self.rig.one(by, RequestBody::Get { consumer, no_ack })
            }
            Step::GetAt { by, pick } => {
                let in_place = (0..self.messages.len()).filter(|n| {
                    matches!(self.messages[*n].state, State::Ready | State::Delayed(_))
                });
                let in_place: Vec<usize> = in_place.collect();
                let picked = in_place.get(usize::from(pick) % in_place.len().max(1));
                let Some(n) = picked.copied() else {
                    return Ok(());
                };
                self.trust(by);
                let consumer = self.next_id(by);
                let get = PositionedGet {
                    consumer: ConsumerId(consumer),
                    no_ack: false,
                    at: self.position_of(n),
                };
                let message = &mut self.messages[n];
                let is_kept = message.group > 0 || matches!(message.state, State::Delayed(_));
                message.taken_from = is_kept.then_some(message.state);
                message.state = State::Unsettled(by, consumer, 1);
                let mut out = self.rig.one(by, RequestBody::GetAt(Box::new(get)));
                let all = deliveries(&out);
                let mut own = all.iter().filter(|(s, c, _)| (*s, *c) == (by, consumer));
                let own = own.next().map(|(.., d)| number(&d.message));
                prop_assert_eq!(own, Some(n as u64));
                out.events.retain(|addressed| match &addressed.event {
                    QueueEvent::Deliver { consumer: to, .. } => {
                        addressed.session != session(by) || to.0 != consumer
                    }
                    _ => true,
                });
                out
            }
            Step::Settle { pick, outcome } => {
                let unsettled = (0..self.messages.len())
                    .filter(|n| matches!(self.messages[*n].state, State::Unsettled(..)));
                let unsettled: Vec<usize> = unsettled.collect();
                let Some(n) = unsettled
                    .get(usize::from(pick) % unsettled.len().max(1))
                    .copied()
                else {
                    return Ok(());
                };
                let State::Unsettled(by, consumer, id) = self.messages[n].state else {
                    return Ok(());
                };
                self.trust(by);
                let modify = |delivery_failed| {
                    let modification = Modification {
                        delivery_failed,
                        ..Modification::default()
                    };
                    RequestBody::Modify {
                        consumer: ConsumerId(consumer),
                        ids: vec![(id, id)],
                        modification: Box::new(modification),
                    }
                };
                let settle = |outcome| RequestBody::Settle {
                    consumer: ConsumerId(consumer),
                    ids: vec![(id, id)],
                    outcome,
                };
                if outcome <= 2 {
                    self.messages[n].taken_from = None;
                    self.messages[n].state = State::Gone;
                }
                let request = match outcome {
                    0 | 1 => settle(SettlementOutcome::Accepted),
                    2 => settle(SettlementOutcome::Rejected),
                    3 => {
                        self.requeue(n, false, true);
                        settle(SettlementOutcome::Requeue)
                    }
                    4 => {
                        self.requeue(n, false, true);
                        modify(false)
                    }
                    _ => {
                        self.requeue(n, true, true);
                        modify(true)
                    }
                };
                self.rig.one(by, request)
            }
            Step::Suspect { by } => {
                let node = session(by).node;
                let is_suspended = self.rig.machine.is_suspended(node);
                for by in (1..=SESSIONS).filter(|by| session(*by).node == node) {
                    if let Some(consumer) = self.consumers.get_mut(&by) {
                        consumer.is_suspended = true;
                    }
                    if !is_suspended {
                        self.requeue_all(by, false);
                    }
                }
                self.rig.command(Command::NodeSuspected(node).encode())
            }
            Step::Trust { by } => {
                self.trust(by);
                self.rig
                    .command(Command::NodeTrusted(session(by).node).encode())
            }
            Step::Time { ms } => self.rig.pass(ms),
            Step::Purge => {
                for message in &mut self.messages {
                    if matches!(message.state, State::Ready | State::Delayed(_)) {
                        message.state = State::Gone;
                    }
                }
                // The publisher's node is that of a session.
                self.trust(PUBLISHER);
                self.rig.one(PUBLISHER, RequestBody::Purge)
            }
            Step::Checkpoint => {
                let state = self.rig.machine.snapshot();
                let label = "queue 'q' in vhost '/'".into();
                let again = Machine::restore(label, state.clone()).expect("a checkpoint");
                prop_assert_eq!(again.snapshot(), state);
                self.rig.machine = again;
                self.rig.machine.begin_leading();
                return Ok(());
            }
        };
        self.observe(&out)
    }

    /// The position of a message in a listing.
    fn position_of(&self, n: usize) -> BrowsePosition {
        let log = &self.rig.log;
        let mut read = |index: u64| log.get(index as usize - 1).cloned().into();
        let mut request = BrowseRequest {
            from: None,
            least: 0,
            most: u64::MAX,
            messages: 100,
            body_bytes: 8,
            body_start: 0,
            state: None,
            unexpired_at: None,
        };
        loop {
            let page = self.rig.machine.browse(&request, &mut read);
            let page = page.expect("a page");
            let mut listed = page.messages.iter();
            if let Some(found) = listed.find(|b| number(&b.message) as usize == n) {
                return found.at;
            }
            request.from = Some(page.next.expect("the message is listed"));
        }
    }

    /// A request shows that the node of a session can be reached.
    fn trust(&mut self, by: u64) {
        let node = session(by).node;
        for (by, consumer) in &mut self.consumers {
            if session(*by).node == node {
                consumer.is_suspended = false;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn groups_behave_like_the_model(
        steps in proptest::collection::vec(step(), 1..150),
        delivery_limit in proptest::option::of(0u32..3),
    ) {
        let mut model = Model::new(delivery_limit);
        for step in steps {
            model.run(step)?;
        }
    }
}
