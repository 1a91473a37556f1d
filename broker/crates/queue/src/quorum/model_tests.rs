//! The machine against a model: every message is in exactly one state, and replicas are equal, after any
//! history.

use super::command::Command;
use super::machine::Machine;
use super::tests::{Rig, answers, deliveries, live, message, number, session, settings, spec};
use super::{Effect, Effects};
use crate::{
    ConsumerId, EpochConsumer, Overflow, QueueEvent, QueueOutput, QueueReply, QueueSettings,
    RequestBody, SessionEpoch, SessionId, Settlement, SettlementOutcome,
};
use env::{NodeId, WallTime};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// A random step.
#[derive(Clone, Debug)]
enum Step {
    Publish {
        by: u64,
        count: u8,
        priority: u8,
    },
    Consume {
        by: u64,
        prefetch: u32,
        priority: i32,
    },
    /// The next connection of the session that outlives its connections consumes.
    TakeOver {
        by: u64,
        prefetch: u32,
        done: u8,
    },
    Cancel {
        by: u64,
    },
    Settle {
        by: u64,
        outcome: u8,
        pick: u8,
    },
    Get {
        by: u64,
    },
    Recover {
        by: u64,
    },
    Close {
        by: u64,
    },
    Suspect {
        node: u64,
    },
    Trust {
        node: u64,
    },
    Time {
        by: u16,
    },
    Limit {
        max: Option<u64>,
        reject: bool,
        sac: bool,
    },
    Purge,
    Repeat {
        back: u8,
    },
    Checkpoint,
}

fn step() -> impl Strategy<Value = Step> {
    let by = 0u64..5;
    prop_oneof![
        6 => (by.clone(), 1u8..5, 0u8..8).prop_map(|(by, count, priority)| Step::Publish { by, count, priority }),
        3 => (by.clone(), 0u32..4, -1i32..2).prop_map(|(by, prefetch, priority)| Step::Consume { by, prefetch, priority }),
        2 => (by.clone(), 1u32..5, 0u8..4).prop_map(|(by, prefetch, done)| Step::TakeOver { by, prefetch, done }),
        1 => by.clone().prop_map(|by| Step::Cancel { by }),
        8 => (by.clone(), 0u8..6, any::<u8>()).prop_map(|(by, outcome, pick)| Step::Settle { by, outcome, pick }),
        1 => by.clone().prop_map(|by| Step::Get { by }),
        1 => by.clone().prop_map(|by| Step::Recover { by }),
        1 => by.prop_map(|by| Step::Close { by }),
        1 => (1u64..4).prop_map(|node| Step::Suspect { node }),
        1 => (1u64..4).prop_map(|node| Step::Trust { node }),
        1 => any::<u16>().prop_map(|by| Step::Time { by }),
        1 => (proptest::option::of(1u64..6), any::<bool>(), any::<bool>()).prop_map(|(max, reject, sac)| Step::Limit { max, reject, sac }),
        1 => Just(Step::Purge),
        2 => any::<u8>().prop_map(|back| Step::Repeat { back }),
        1 => Just(Step::Checkpoint),
    ]
}

/// The expected state: every message is in exactly one place.
struct Model {
    rig: Rig,
    twin: Machine,
    next_message: u64,
    next_consumer: u32,
    /// Session numbers; a closed session gets a new one.
    slots: Vec<u64>,
    next_session: u64,
    windows: BTreeMap<(u64, u32), usize>,
    /// Consumers of the session that outlives its connections; the last one may still exist.
    persistent: Vec<(u64, u32)>,
    out: BTreeMap<(u64, u32), BTreeMap<u64, u64>>,
    dequeued: BTreeSet<u64>,
    settled: BTreeSet<u64>,
    dead: BTreeSet<u64>,
    purged: u64,
    /// Last message that was delivered for the first time, by priority level.
    high_water: BTreeMap<u8, u64>,
    is_strict: bool,
}

impl Model {
    fn new() -> Model {
        Model {
            rig: Rig::new(QueueSettings {
                delivery_limit: Some(3),
                ..settings()
            }),
            twin: Machine::new(
                "queue 'q' in vhost '/'".into(),
                QueueSettings {
                    delivery_limit: Some(3),
                    ..settings()
                },
            ),
            next_message: 1,
            next_consumer: 1,
            slots: (10..15).collect(),
            next_session: 20,
            windows: BTreeMap::new(),
            persistent: Vec::new(),
            out: BTreeMap::new(),
            dequeued: BTreeSet::new(),
            settled: BTreeSet::new(),
            dead: BTreeSet::new(),
            purged: 0,
            high_water: BTreeMap::new(),
            is_strict: false,
        }
    }

    fn serve_strictly(&mut self) -> Result<(), TestCaseError> {
        self.is_strict = true;
        let out = self.rig.enable_strict_priorities();
        self.observe(out)
    }

    fn run(&mut self, step: Step) -> Result<(), TestCaseError> {
        let out = match step {
            Step::Publish {
                by,
                count,
                priority,
            } => {
                let slot = self.slots[by as usize];
                let first = self.next_message;
                self.next_message += u64::from(count);
                let publish = |n| (slot, RequestBody::Publish(message(n, Some(priority), None)));
                self.rig
                    .batch((first..self.next_message).map(publish).collect())
            }
            Step::Consume {
                by,
                prefetch,
                priority,
            } => {
                let slot = self.slots[by as usize];
                let consumer = self.next_consumer;
                self.next_consumer += 1;
                let window = if prefetch == 0 {
                    2000
                } else {
                    prefetch as usize
                };
                self.windows.insert((slot, consumer), window);
                self.rig.consume(slot, consumer, spec(prefetch, priority))
            }
            Step::TakeOver { by, prefetch, done } => self.take_over(by, prefetch, done)?,
            Step::Cancel { by } => match self.consumer_of(by) {
                Some((slot, consumer)) => {
                    self.persistent.retain(|key| *key != (slot, consumer));
                    let consumer = ConsumerId(consumer);
                    self.rig.one(slot, RequestBody::Cancel { consumer })
                }
                None => return Ok(()),
            },
            Step::Settle { by, outcome, pick } => return self.settle(by, outcome, pick),
            Step::Get { by } => {
                let slot = self.slots[by as usize];
                let consumer = ConsumerId(self.next_consumer);
                self.windows.insert((slot, consumer.0), 1);
                self.next_consumer += 1;
                let no_ack = false;
                self.rig.one(slot, RequestBody::Get { consumer, no_ack })
            }
            Step::Recover { by } => match self.consumer_of(by) {
                Some((slot, consumer)) => {
                    self.out.remove(&(slot, consumer));
                    let consumer = ConsumerId(consumer);
                    self.rig.one(slot, RequestBody::Recover { consumer })
                }
                None => return Ok(()),
            },
            Step::Close { by } => {
                let slot = self.slots[by as usize];
                self.slots[by as usize] = self.next_session;
                self.next_session += 1;
                self.out.retain(|(s, _), _| *s != slot);
                self.rig.one(slot, RequestBody::Close)
            }
            step @ (Step::Suspect { .. }
            | Step::Trust { .. }
            | Step::Time { .. }
            | Step::Limit { .. }) => self.logged(step),
            Step::Purge => {
                let out = self.rig.one(self.slots[0], RequestBody::Purge);
                let Some(QueueReply::Count { messages, .. }) = answers(&out).pop() else {
                    return Err(TestCaseError::fail("purge is answered"));
                };
                self.purged += messages;
                out
            }
            Step::Repeat { back } => return self.repeat(back),
            Step::Checkpoint => {
                let state = self.twin.snapshot();
                self.twin = Machine::restore("queue 'q' in vhost '/'".into(), state).unwrap();
                return Ok(());
            }
        };
        self.observe(out)
    }

    /// The next connection settles deliveries of the previous one.
    fn take_over(
        &mut self,
        by: u64,
        prefetch: u32,
        done: u8,
    ) -> Result<QueueOutput, TestCaseError> {
        let slot = self.slots[by as usize];
        let consumer = self.next_consumer;
        self.next_consumer += 1;
        let last = self.persistent.last().copied();
        let held = last.and_then(|last| self.out.remove(&last));
        let mut ids = Vec::new();
        for (id, n) in held.into_iter().flatten().take(done.into()) {
            prop_assert!(self.settled.insert(n), "settled twice");
            ids.push((id, id));
        }
        let settled = last.map(|(slot, consumer)| Settlement {
            session: session(slot),
            consumer: ConsumerId(consumer),
            ids,
        });
        self.persistent.push((slot, consumer));
        self.windows.insert((slot, consumer), prefetch as usize);
        let next = EpochConsumer {
            consumer: ConsumerId(consumer),
            spec: spec(prefetch, 0),
            settled,
            epoch: last.map_or(SessionEpoch::New, |(slot, _)| {
                SessionEpoch::Of(session(slot))
            }),
            at: 0,
        };
        Ok(self.rig.one(slot, RequestBody::TakeOver(Box::new(next))))
    }

    /// A batch that was applied before changes nothing; other commands have no number and are not repeated.
    fn repeat(&mut self, back: u8) -> Result<(), TestCaseError> {
        let at = self.rig.log.len().checked_sub(1 + back as usize);
        let Some(command) = at.map(|at| self.rig.log[at].clone()) else {
            return Ok(());
        };
        if command.get(1) != Some(&1) {
            return Ok(());
        }
        let before = self.rig.machine.stats();
        self.rig.command(command.clone());
        prop_assert_eq!(before, self.rig.machine.stats());
        let index = self.rig.log.len() as u64;
        self.twin
            .apply(index, &command, &mut Effects::discarding())
            .unwrap();
        Ok(())
    }

    /// Commands other than requests.
    fn logged(&mut self, step: Step) -> QueueOutput {
        match step {
            Step::Suspect { node } => {
                let persistent = &self.persistent;
                self.out.retain(|key, _| {
                    session(key.0).node != NodeId(node) || persistent.contains(key)
                });
                self.rig
                    .command(Command::NodeSuspected(NodeId(node)).encode())
            }
            Step::Trust { node } => self
                .rig
                .command(Command::NodeTrusted(NodeId(node)).encode()),
            Step::Time { by } => {
                self.rig.wall += u64::from(by);
                self.rig
                    .command(Command::Time(WallTime(self.rig.wall)).encode())
            }
            Step::Limit { max, reject, sac } => {
                let overflow = if reject {
                    Overflow::RejectPublish
                } else {
                    Overflow::DropHead
                };
                self.rig.command(
                    Command::Settings(QueueSettings {
                        max_length: max,
                        overflow,
                        delivery_limit: Some(3),
                        single_active_consumer: sac,
                        ..settings()
                    })
                    .encode(),
                )
            }
            other => panic!("{other:?} is a request"),
        }
    }

    fn consumer_of(&self, by: u64) -> Option<(u64, u32)> {
        let slot = self.slots[by as usize];
        let mut of = self.windows.keys().filter(|(s, _)| *s == slot);
        of.next_back().copied()
    }

    fn settle(&mut self, by: u64, outcome: u8, pick: u8) -> Result<(), TestCaseError> {
        let slot = self.slots[by as usize];
        let held: Vec<(u32, u64, u64)> = self
            .out
            .iter()
            .filter(|((s, _), _)| *s == slot)
            .flat_map(|((_, c), ids)| ids.iter().map(|(id, n)| (*c, *id, *n)))
            .collect();
        if held.is_empty() {
            return Ok(());
        }
        let (consumer, id, n) = held[pick as usize % held.len()];
        self.out.get_mut(&(slot, consumer)).unwrap().remove(&id);
        let outcome = match outcome {
            0 => SettlementOutcome::Requeue,
            1 => SettlementOutcome::Rejected,
            _ => SettlementOutcome::Accepted,
        };
        if outcome == SettlementOutcome::Accepted {
            prop_assert!(self.settled.insert(n), "settled twice");
        }
        let out = self.rig.settle(slot, consumer, outcome, id);
        self.observe(out)
    }

    fn observe(&mut self, out: QueueOutput) -> Result<(), TestCaseError> {
        for (reason, message) in &out.dead {
            let _ = reason;
            prop_assert!(self.dead.insert(number(message)), "dead twice");
        }
        // First deliveries within a priority are in publish order.
        let before = self.high_water.clone();
        let mut within = BTreeMap::new();
        for (s, consumer, delivery) in deliveries(&out) {
            let n = number(&delivery.message);
            prop_assert!(!self.settled.contains(&n), "settled came back");
            if self.dequeued.insert(n) {
                prop_assert!(!delivery.redelivered);
                let level = match (self.is_strict, delivery.message.priority().unwrap()) {
                    (true, priority) => priority,
                    (false, priority) => u8::from(priority >= 5),
                };
                // Deliveries of one step are grouped by consumer.
                let last = before.get(&level).copied().unwrap_or(0);
                prop_assert!(last < n, "order between steps");
                let is_own = within.insert((s, consumer, level), n).unwrap_or(0);
                prop_assert!(is_own < n, "order of a consumer");
                let most = self.high_water.entry(level).or_default();
                *most = n.max(*most);
            } else {
                prop_assert!(delivery.redelivered);
            }
            let elsewhere = self.out.values().any(|ids| ids.values().any(|m| *m == n));
            prop_assert!(!elsewhere, "in two places");
            let ids = self.out.entry((s, consumer)).or_default();
            ids.insert(delivery.id, n);
            let window = self.windows.get(&(s, consumer)).copied().unwrap_or(0);
            prop_assert!(ids.len() <= window, "window");
        }
        self.check_twin()?;
        let stats = self.rig.machine.stats();
        let out: usize = self.out.values().map(BTreeMap::len).sum();
        prop_assert_eq!(stats.unacknowledged, out as u64);
        Ok(())
    }

    fn check_twin(&mut self) -> Result<(), TestCaseError> {
        let index = self.rig.log.len() as u64;
        let command = self.rig.log.last().unwrap().clone();
        self.twin
            .apply(index, &command, &mut Effects::discarding())
            .unwrap();
        prop_assert_eq!(self.twin.digest(), self.rig.machine.digest());
        prop_assert_eq!(live(&self.twin), live(&self.rig.machine));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn every_message_is_in_exactly_one_state(
        steps in proptest::collection::vec(step(), 1..80),
        is_strict: bool,
    ) {
        let mut model = Model::new();
        if is_strict {
            model.serve_strictly()?;
        }
        for step in steps {
            model.run(step)?;
        }
        // Every accepted message is ready, unsettled, settled, dead or purged.
        let stats = model.rig.machine.stats();
        let refused = refused_of(&model.rig);
        let accounted = stats.ready + stats.unacknowledged + model.purged + refused
            + model.settled.len() as u64 + model.dead.len() as u64;
        prop_assert_eq!(accounted, model.next_message - 1);
    }
}

/// Number of refused publishes, counted by replaying the log.
fn refused_of(rig: &Rig) -> u64 {
    let mut machine = Machine::new(
        "queue 'q' in vhost '/'".into(),
        QueueSettings {
            delivery_limit: Some(3),
            ..settings()
        },
    );
    let mut refused: BTreeMap<(SessionId, u64), u64> = BTreeMap::new();
    for (n, command) in rig.log.iter().enumerate() {
        let mut effects = Effects::collecting();
        machine.apply(n as u64 + 1, command, &mut effects).unwrap();
        for effect in effects.list {
            if let Effect::Event {
                session,
                event: QueueEvent::AppliedExcept { refused: list, .. },
            } = effect
            {
                for r in list {
                    refused.insert((session, r.from), r.to - r.from + 1);
                }
            }
        }
    }
    refused.values().sum()
}
