//! Exact expiry: messages expire on time, wherever they are in the service order.

use super::command::Command;
use super::effects::LogLocation;
use super::machine::{DUE_PER_COMMAND, Machine};
use super::ready::{DEFAULT_LEVEL, HIGHEST_LEVEL, LogMessage, Ready};
use super::tests::{Rig, deliveries, message, number, settings, spec};
use crate::{
    ConsumerId, DeadReason, DeliveryCounts, Overflow, QueueOutput, QueueSettings, RequestBody,
    SettlementOutcome,
};
use env::WallTime;
use proptest::prelude::*;
use std::cmp::Reverse;

fn publish(n: u64, priority: u8, ttl_ms: Option<u64>) -> (u64, RequestBody) {
    (9, RequestBody::Publish(message(n, Some(priority), ttl_ms)))
}

fn expired(out: &QueueOutput) -> Vec<u64> {
    let letters = out.dead.iter();
    assert!(
        letters
            .clone()
            .all(|(reason, _)| *reason == DeadReason::Expired)
    );
    letters.map(|(_, message)| number(message)).collect()
}

fn delivered(out: &QueueOutput) -> Vec<u64> {
    let all = deliveries(out);
    all.iter().map(|(_, _, d)| number(&d.message)).collect()
}

fn exact() -> Rig {
    let mut rig = Rig::new(settings());
    rig.enable_exact_expiry();
    rig
}

#[test]
fn message_expires_behind_one_without_a_ttl() {
    for is_strict in [false, true] {
        let mut rig = exact();
        if is_strict {
            rig.enable_strict_priorities();
        }
        rig.batch(vec![
            publish(1, 0, None),
            publish(2, 0, Some(300)),
            publish(3, 0, Some(100)),
            publish(4, 9, None),
            publish(5, 9, Some(200)),
        ]);
        assert_eq!(rig.machine.next_timer(), Some(WallTime(1100)));
        assert_eq!(expired(&rig.pass(99)), [] as [u64; 0]);
        assert_eq!(expired(&rig.pass(1)), [3]);
        let stats = rig.machine.stats();
        assert_eq!((stats.ready, stats.bytes), (4, 32));
        assert_eq!(rig.machine.next_timer(), Some(WallTime(1200)));
        assert_eq!(expired(&rig.pass(500)), [5, 2]);
        assert_eq!(
            (rig.machine.stats().ready, rig.machine.next_timer()),
            (2, None)
        );
        let out = rig.consume(1, 1, spec(0, 0));
        assert_eq!(delivered(&out), [4, 1]);
    }
}

#[test]
fn requeued_and_postponed_messages_expire_on_time() {
    for delivery_limit in [Some(20), None] {
        let mut rig = Rig::new(QueueSettings {
            delivery_limit,
            ..settings()
        });
        rig.enable_exact_expiry();
        let ttls = [None, Some(300), Some(200), Some(400), None];
        let publishes = (1..).zip(ttls).map(|(n, ttl)| publish(n, 4, ttl));
        rig.batch(publishes.collect());
        rig.consume(1, 1, spec(5, 0));
        rig.one(
            1,
            RequestBody::Cancel {
                consumer: ConsumerId(1),
            },
        );
        for id in [1, 4, 2, 3, 5] {
            rig.settle(1, 1, SettlementOutcome::Requeue, id);
        }
        assert_eq!(rig.machine.next_timer(), Some(WallTime(1200)));
        assert_eq!(expired(&rig.pass(200)), [3]);
        rig.restore();
        assert_eq!(expired(&rig.pass(100)), [2]);
        assert_eq!(expired(&rig.pass(100)), [4]);
        let out = rig.consume(2, 1, spec(0, 0));
        assert_eq!(delivered(&out), [1, 5], "{delivery_limit:?}");
    }
}

#[test]
fn unacknowledged_message_expires_when_it_returns() {
    let mut rig = exact();
    rig.batch(vec![publish(1, 4, Some(100)), publish(2, 4, None)]);
    rig.consume(1, 1, spec(1, 0));
    assert_eq!(expired(&rig.pass(500)), [] as [u64; 0]);
    assert_eq!(rig.machine.stats().unacknowledged, 1);
    let out = rig.settle(1, 1, SettlementOutcome::Requeue, 1);
    assert_eq!((expired(&out), delivered(&out)), (vec![1], vec![2]));
}

#[test]
fn queue_without_the_feature_changes_when_it_is_enabled() {
    let mut rig = Rig::new(settings());
    rig.batch(vec![
        publish(1, 4, None),
        publish(2, 4, Some(100)),
        publish(3, 4, Some(500)),
    ]);
    assert_eq!(expired(&rig.pass(200)), [] as [u64; 0]);
    assert_eq!(
        (rig.machine.stats().ready, rig.machine.next_timer()),
        (3, None)
    );
    assert_eq!(expired(&rig.enable_exact_expiry()), [2]);
    assert_eq!(rig.machine.next_timer(), Some(WallTime(1500)));
    // A leader whose metadata lags cannot disable it.
    rig.command(Command::Settings(settings()).encode());
    assert_eq!(expired(&rig.pass(300)), [3]);
}

#[test]
fn restored_queue_expires_like_the_others() {
    let mut rig = exact();
    rig.enable_strict_priorities();
    let ttl = |n: u64| (!n.is_multiple_of(3)).then_some(100 + n * 7919 % 500);
    rig.batch(
        (1..=60)
            .map(|n| publish(n, (n % 7) as u8, ttl(n)))
            .collect(),
    );
    let mut restored = Machine::restore("q".into(), rig.machine.snapshot()).unwrap();
    let mut effects = super::Effects::discarding();
    for _ in 0..60 {
        rig.pass(10);
        let command = rig.log.last().unwrap().clone();
        let index = rig.log.len() as u64;
        restored.apply(index, &command, &mut effects).unwrap();
        assert_eq!(restored.digest(), rig.machine.digest());
        assert_eq!(restored.next_timer(), rig.machine.next_timer());
    }
    assert_eq!(rig.machine.stats().ready, 20);
}

#[test]
fn length_limit_counts_messages_only_until_they_expire() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(2),
        overflow: Overflow::RejectPublish,
        ..settings()
    });
    rig.enable_exact_expiry();
    rig.batch(vec![
        publish(1, 4, None),
        publish(2, 4, Some(100)),
        publish(3, 4, Some(100)),
    ]);
    assert_eq!(rig.machine.stats().ready, 3);
    rig.publish([4]);
    assert_eq!(rig.machine.stats().ready, 3, "the publish is refused");
    assert_eq!(expired(&rig.pass(100)), [2, 3]);
    rig.publish([5]);
    assert_eq!(rig.machine.stats().ready, 2);
}

const MANY: u64 = DUE_PER_COMMAND as u64 * 2 + 100;

/// A queue with a message without a TTL and many messages behind it that expire at the same time.
fn crowded(settings: QueueSettings) -> Rig {
    let mut rig = Rig::new(settings);
    rig.enable_exact_expiry();
    rig.batch(vec![publish(1, 4, None)]);
    let mut n = 2;
    while n < MANY + 2 {
        let next = (n + 1000).min(MANY + 2);
        rig.batch((n..next).map(|n| publish(n, 4, Some(100))).collect());
        n = next;
    }
    rig
}

#[test]
fn command_drops_a_bounded_number_of_messages() {
    let mut rig = crowded(settings());
    let most = DUE_PER_COMMAND as usize;
    assert_eq!(rig.pass(100).dead.len(), most);
    // The next one is due at once.
    assert_eq!(rig.machine.next_timer(), Some(WallTime(1100)));
    assert_eq!(rig.pass(0).dead.len(), most);
    rig.restore();
    assert_eq!(rig.pass(0).dead.len(), 100);
    assert_eq!(
        (rig.machine.stats().ready, rig.machine.next_timer()),
        (1, None)
    );
}

#[test]
fn expired_messages_that_are_not_dropped_yet_are_not_delivered() {
    let mut rig = crowded(settings());
    let get = |consumer| RequestBody::Get {
        consumer: ConsumerId(consumer),
        no_ack: true,
    };
    rig.wall += 100;
    let out = rig.one(1, get(1));
    assert_eq!(delivered(&out), [1]);
    rig.publish([9999]);
    assert!(rig.machine.stats().ready > 0);
    let out = rig.batch(vec![publish(10_000, 4, None)]);
    assert_eq!(out.dead.len(), 100);

    // A consumer gets the first message that has not expired, once the others are dropped.
    let mut rig = crowded(settings());
    rig.one(1, get(1));
    rig.publish([9999]);
    rig.wall += 100;
    let out = rig.consume(1, 2, spec(1, 0));
    assert_eq!(delivered(&out), [] as [u64; 0]);
    // One more than the command may drop was offered to the consumer.
    let dropped = out.dead.len();
    assert!((DUE_PER_COMMAND as usize..MANY as usize).contains(&dropped));
    let mut found = Vec::new();
    while found.is_empty() {
        found = delivered(&rig.pass(0));
    }
    assert_eq!((found, rig.machine.stats().ready), (vec![9999], 0));

    // A get is not told that the queue is empty.
    let mut rig = crowded(settings());
    rig.one(1, get(1));
    rig.publish([9999]);
    rig.wall += 100;
    let out = rig.one(1, get(2));
    assert_eq!(delivered(&out), [9999]);
}

#[test]
fn length_limit_drops_expired_messages_before_others() {
    let mut rig = crowded(settings());
    let first = rig.pass(100).dead.len();
    let limited = QueueSettings {
        max_length: Some(1),
        ..settings()
    };
    let out = rig.command(Command::Settings(limited).encode());
    assert_eq!((first + expired(&out).len()) as u64, MANY);
    let out = rig.consume(1, 1, spec(0, 0));
    assert_eq!(delivered(&out), [1]);
}

fn held(index: u64, level: u8, expires: u64) -> LogMessage {
    LogMessage {
        index,
        offset: 60,
        body: 12,
        level,
        group: None,
        expires,
    }
}

#[test]
fn messages_in_order_of_their_expiry_have_no_entries() {
    let mut ready = Ready::new();
    ready.serve_strictly();
    ready.expire_exactly();
    let count = 100_000;
    for n in 1..=count {
        ready.push(&held(n, DEFAULT_LEVEL, 5_000 + n));
    }
    assert_eq!(ready.early_len(), 0);
    // Messages without a TTL behind them neither.
    (1..=1000).for_each(|n| ready.push(&held(count + n, DEFAULT_LEVEL, 0)));
    assert_eq!(ready.early_len(), 0);
    assert!(
        ready.memory() <= 17 * count as usize + (16 << 10),
        "{}",
        ready.memory()
    );
    while ready.pop_expired(u64::MAX).is_some() {}
    assert_eq!(ready.len(), 1000);
}

#[test]
fn message_without_a_ttl_costs_entries_only_while_it_is_there() {
    let mut ready = Ready::new();
    ready.expire_exactly();
    ready.push(&held(1, DEFAULT_LEVEL, 0));
    (2..=10).for_each(|n| ready.push(&held(n, DEFAULT_LEVEL, 500)));
    assert_eq!(ready.early_len(), 9);
    while ready.pop().is_some() {}
    assert_eq!(ready.early_len(), 0);
    ready.push(&held(11, DEFAULT_LEVEL, 600));
    assert_eq!(ready.early_len(), 0);
    // The chunk of the first message is gone when the next one is full.
    ready.push(&held(12, DEFAULT_LEVEL, 0));
    (13..=3000).for_each(|n| ready.push(&held(n, DEFAULT_LEVEL, 1000)));
    (0..2500).for_each(|_| assert!(ready.pop().is_some()));
    let before = ready.early_len();
    ready.push(&held(3001, DEFAULT_LEVEL, 1000));
    assert_eq!(ready.early_len(), before);
}

#[test]
fn memory_is_freed_when_messages_leave_from_the_middle() {
    let mut ready = Ready::new();
    ready.expire_exactly();
    let count = 200_000u64;
    for n in 1..=count {
        let is_lasting = n.is_multiple_of(500);
        let expires = if is_lasting { 0 } else { 1 + n * 7919 % 1000 };
        ready.push(&held(n, DEFAULT_LEVEL, expires));
    }
    while ready.pop_expired(2000).is_some() {}
    let rest = ready.len();
    assert_eq!((rest, ready.early_len()), (count / 500, 0));
    let memory = ready.memory() as u64;
    assert!(memory <= rest * 64, "{memory} bytes for {rest} messages");
    let numbers: Vec<u64> = ready.fresh().map(|held| held.index).collect();
    assert!(numbers.iter().copied().eq((1..=rest).map(|n| n * 500)));
}

/// Messages behind those of a chunk that is gone are still compared with the others ahead of them.
#[test]
fn chunks_that_are_left_decide_which_messages_are_early() {
    const CHUNK: u64 = 1024;
    // First with whole chunks, then with two that are joined because most of their messages left.
    for is_joined in [false, true] {
        let mut ready = Ready::new();
        ready.expire_exactly();
        (1..=CHUNK).for_each(|n| ready.push(&held(n, DEFAULT_LEVEL, 0)));
        (1..=2 * CHUNK).for_each(|n| ready.push(&held(CHUNK + n, DEFAULT_LEVEL, 5000)));
        let others = (1..=2 * CHUNK).filter(|n| is_joined && n % 10 != 0);
        for n in others {
            let taken = ready.take_at(held(CHUNK + n, DEFAULT_LEVEL, 0).location());
            assert!(taken.is_some());
        }
        (1..=CHUNK).for_each(|_| assert!(ready.pop().is_some()));
        ready.push(&held(4 * CHUNK, DEFAULT_LEVEL, 3000));
        assert_eq!(ready.next_expiry(), Some(3000), "{is_joined}");
        let expired = ready.pop_expired(3000).map(|held| held.index);
        assert_eq!(expired, Some(4 * CHUNK));
    }
}

/// All members must drop the same messages, so older versions decide until the feature is enabled.
#[test]
fn command_without_the_feature_drops_all_expired_messages_at_the_head() {
    let mut rig = Rig::new(settings());
    for first in (1..=MANY).step_by(1000) {
        let numbers = first..(first + 1000).min(MANY + 1);
        rig.batch(numbers.map(|n| publish(n, 4, Some(100))).collect());
    }
    assert_eq!(rig.pass(100).dead.len() as u64, MANY);
}

/// The ready messages as a list.
#[derive(Default)]
struct Naive {
    /// Messages in service order within a rank. Ranks: requeued ones, levels in descending order, postponed ones.
    messages: Vec<(u8, Reverse<u8>, i64, LogMessage)>,
    front: i64,
    joined: i64,
}

impl Naive {
    fn add(&mut self, rank: u8, held: LogMessage) {
        self.joined += 1;
        let level = if rank == 1 { held.level } else { 0 };
        self.messages
            .push((rank, Reverse(level), self.joined, held));
    }

    fn add_in_front(&mut self, held: LogMessage) {
        self.front -= 1;
        self.messages.push((0, Reverse(0), self.front, held));
    }

    fn remove(&mut self, index: u64) {
        let found = self.messages.iter().position(|m| m.3.index == index);
        self.messages.swap_remove(found.unwrap());
    }

    fn pop_expired(&mut self, clock: u64) -> Option<LogMessage> {
        let expired =
            |m: &&(u8, Reverse<u8>, i64, LogMessage)| m.3.expires != 0 && m.3.expires <= clock;
        let all = self.messages.iter().filter(expired);
        let first = all
            .min_by_key(|m| (m.3.expires, m.0, m.1, m.2))
            .map(|m| m.3)?;
        self.remove(first.index);
        Some(first)
    }

    fn next_expiry(&self) -> Option<u64> {
        let expiries = self.messages.iter().map(|m| m.3.expires);
        expiries.filter(|expires| *expires != 0).min()
    }
}

#[derive(Clone, Debug)]
enum Change {
    /// Messages with this TTL, or with different ones.
    Publish {
        count: u64,
        level: u8,
        ttl: Option<u64>,
        spread: u64,
    },
    Pop {
        count: u64,
    },
    TakeAt {
        pick: usize,
        count: usize,
    },
    Requeue {
        pick: u64,
        how: u8,
    },
    Pass {
        ms: u64,
    },
    Enable,
    Clear,
}

fn change() -> impl Strategy<Value = Change> {
    let ttl = proptest::option::of(1u64..3000);
    let spread = prop_oneof![Just(0), 1u64..2000];
    prop_oneof![
        6 => (1u64..900, 3u8..6, ttl, spread)
            .prop_map(|(count, level, ttl, spread)| Change::Publish { count, level, ttl, spread }),
        3 => (1u64..900).prop_map(|count| Change::Pop { count }),
        3 => (any::<usize>(), 1usize..300).prop_map(|(pick, count)| Change::TakeAt { pick, count }),
        3 => (any::<u64>(), 0u8..3).prop_map(|(pick, how)| Change::Requeue { pick, how }),
        4 => (1u64..400).prop_map(|ms| Change::Pass { ms }),
        1 => Just(Change::Enable),
        1 => Just(Change::Clear),
    ]
}

fn run(changes: Vec<Change>) -> Result<(), TestCaseError> {
    let (mut ready, mut naive) = (Ready::new(), Naive::default());
    ready.serve_strictly();
    let (mut index, mut clock) = (0u64, 1u64);
    for change in changes {
        match change {
            Change::Publish {
                count,
                level,
                ttl,
                spread,
            } => {
                for _ in 0..count {
                    index += 1;
                    let ttl = ttl.map(|ttl| ttl + index * 7919 % (spread + 1));
                    let message = held(index, level, ttl.map_or(0, |ttl| clock + ttl));
                    ready.push(&message);
                    naive.add(1, message);
                }
            }
            Change::Pop { count } => {
                for _ in 0..count {
                    let Some(dequeued) = ready.pop() else { break };
                    naive.remove(dequeued.item.index);
                }
            }
            Change::TakeAt { pick, count } => {
                let first = pick % naive.messages.len().max(1);
                let taken: Vec<LogMessage> = naive
                    .messages
                    .iter()
                    .skip(first)
                    .take(count)
                    .map(|m| m.3)
                    .collect();
                for message in taken {
                    let dequeued = ready.take_at(message.location());
                    prop_assert_eq!(dequeued.map(|d| d.item), Some(message));
                    naive.remove(message.index);
                }
            }
            Change::Requeue { pick, how } => {
                for n in 0..pick % 100 {
                    index += 1;
                    let ttl = 1 + pick.wrapping_add(n * 7919) % 1500;
                    let expires = if ttl.is_multiple_of(3) {
                        0
                    } else {
                        clock + ttl
                    };
                    let message = held(index, HIGHEST_LEVEL, expires);
                    let counts = DeliveryCounts::new(1, 1);
                    let after = LogLocation { index, offset: 0 };
                    match how {
                        0 => ready.give_back(message, counts),
                        1 => ready.requeue_in_front(message, counts),
                        _ => ready.postpone(message, counts, after),
                    }
                    match how {
                        0 => naive.add(0, message),
                        1 => naive.add_in_front(message),
                        _ => naive.add(2, message),
                    }
                }
            }
            Change::Pass { ms } => clock += ms,
            Change::Enable => ready.expire_exactly(),
            Change::Clear => {
                prop_assert_eq!(ready.clear(), naive.messages.len() as u64);
                naive.messages.clear();
            }
        }
        if !ready.is_exact() {
            continue;
        }
        while let Some(expected) = naive.pop_expired(clock) {
            prop_assert_eq!(ready.pop_expired(clock), Some(expected));
        }
        prop_assert_eq!(ready.pop_expired(clock), None);
        prop_assert_eq!(ready.next_expiry(), naive.next_expiry());
        prop_assert_eq!(ready.len(), naive.messages.len() as u64);
        let bytes: u64 = naive.messages.iter().map(|m| u64::from(m.3.body)).sum();
        prop_assert_eq!(ready.bytes(), bytes);
        let expiring = ready.fresh().filter(|held| held.expires != 0).count();
        prop_assert!(ready.early_len() <= expiring);
    }
    // The others are still in their order.
    naive.messages.sort_by_key(|m| (m.0, m.1, m.2));
    let fresh: Vec<u64> = ready.fresh().map(|held| held.index).collect();
    let expected = naive
        .messages
        .iter()
        .filter(|m| m.0 == 1)
        .map(|m| m.3.index);
    prop_assert_eq!(fresh, expected.collect::<Vec<u64>>());
    let requeued = ready.returned().chain(ready.postponed().map(|(_, r)| r));
    let requeued: Vec<u64> = requeued.map(|r| r.held.index).collect();
    let expected = naive
        .messages
        .iter()
        .filter(|m| m.0 != 1)
        .map(|m| m.3.index);
    prop_assert_eq!(requeued, expected.collect::<Vec<u64>>());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn ready_messages_expire_in_the_order_of_their_times(
        changes in proptest::collection::vec(change(), 1..40),
        is_exact: bool,
    ) {
        let first = is_exact.then_some(Change::Enable);
        run(first.into_iter().chain(changes).collect())?;
    }
}
