use super::command::Command;
use super::machine::Machine;
use super::tests::{Rig, live, message, number, settings, spec};
use super::{DeadRead, LogRead, MAX_PASSING, QuorumQueue};
use crate::{
    DeadLettering, DeadReason, Overflow, Queue, QueueEvent, QueueOutput, QueueSettings,
    RequestBody, SettlementOutcome, Timestamps,
};
use bytes::Bytes;
use env::{NodeId, WallTime};

fn at_least_once() -> QueueSettings {
    QueueSettings {
        overflow: Overflow::RejectPublish,
        dead_letter: DeadLettering::AtLeastOnce,
        ..settings()
    }
}

fn configured(rig: &mut Rig, dead_letter: DeadLettering) -> Vec<u64> {
    let settings = QueueSettings {
        dead_letter,
        ..at_least_once()
    };
    let out = rig.command(Command::Settings(settings).encode());
    out.dead.iter().map(|d| number(&d.1)).collect()
}

#[test]
fn kept_dead_letters_are_neither_ready_nor_unsettled_and_count_towards_limits() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(3),
        ..at_least_once()
    });
    rig.publish(1..=2);
    rig.consume(1, 1, spec(1, 0));
    let out = rig.settle(1, 1, SettlementOutcome::Rejected, 1);
    assert!(out.dead.is_empty());
    let stats = rig.machine.stats();
    assert_eq!((stats.ready, stats.unacknowledged), (0, 1));
    assert_eq!((stats.dead, stats.dead_bytes), (1, 8));
    assert_eq!(live(&rig.machine), [1]);
    // One dead letter and three ready messages exceed the limit.
    rig.publish(3..=5);
    let out = rig.publish([6]);
    let refused = |e: &QueueEvent| matches!(e, QueueEvent::AppliedExcept { .. });
    assert!(out.events.iter().any(|a| refused(&a.event)));
    rig.command(Command::PassedOn(vec![(1, 1)]).encode());
    assert_eq!(rig.machine.stats().dead, 0);
    rig.publish([7]);
    assert_eq!(rig.machine.stats().ready, 3, "three are not yet few enough");
    rig.settle(1, 1, SettlementOutcome::Accepted, 2);
    rig.publish([8]);
    assert_eq!(rig.machine.stats().ready, 3);
}

#[test]
fn snapshot_keeps_dead_letters_and_their_numbers() {
    let mut rig = Rig::new(at_least_once());
    rig.publish(1..=3);
    rig.consume(1, 1, spec(5, 0));
    rig.settle(1, 1, SettlementOutcome::Rejected, 2);
    rig.settle(1, 1, SettlementOutcome::Rejected, 1);
    let state = rig.machine.snapshot();
    let twin = Machine::restore("queue 'q' in vhost '/'".into(), state.clone()).unwrap();
    assert_eq!(twin.snapshot(), state);
    assert_eq!(twin.stats(), rig.machine.stats());
    assert_eq!(live(&twin), [1]);
    for cut in 0..state.len() {
        let _ = Machine::restore("".into(), state.slice(..cut));
    }
    // Numbers continue, or a late command would remove another message.
    rig.command(Command::PassedOn(vec![(1, 2)]).encode());
    let state = rig.machine.snapshot();
    let mut twin = Machine::restore("queue 'q' in vhost '/'".into(), state).unwrap();
    let late = Command::PassedOn(vec![(1, 2)]).encode();
    let reject = rig.settle(1, 1, SettlementOutcome::Rejected, 3);
    assert!(reject.dead.is_empty());
    let command = rig.log.last().unwrap().clone();
    let index = rig.log.len() as u64;
    let mut effects = super::Effects::discarding();
    twin.apply(index, &command, &mut effects).unwrap();
    twin.apply(index + 1, &late, &mut effects).unwrap();
    assert_eq!(twin.stats().dead, 1);
}

#[test]
fn strategy_change_forwards_kept_dead_letters_or_drops_them() {
    let mut rig = Rig::new(at_least_once());
    rig.publish(1..=4);
    rig.consume(1, 1, spec(5, 0));
    rig.settle(1, 1, SettlementOutcome::Rejected, 1);
    rig.settle(1, 1, SettlementOutcome::Rejected, 2);
    assert!(configured(&mut rig, DeadLettering::AtLeastOnce).is_empty());
    assert_eq!(configured(&mut rig, DeadLettering::AtMostOnce), [1, 2]);
    assert_eq!(rig.machine.stats().dead, 0);
    assert!(configured(&mut rig, DeadLettering::AtLeastOnce).is_empty());
    rig.settle(1, 1, SettlementOutcome::Rejected, 3);
    assert_eq!(rig.machine.stats().dead, 1);
    assert!(configured(&mut rig, DeadLettering::Off).is_empty());
    let stats = rig.machine.stats();
    assert_eq!((stats.dead, stats.dead_bytes), (0, 0));
    assert!(
        rig.settle(1, 1, SettlementOutcome::Rejected, 4)
            .dead
            .is_empty()
    );
    assert!(live(&rig.machine).is_empty());
}

/// A leader without followers that has applied a log.
struct Leader {
    queue: QuorumQueue,
    log: Vec<Bytes>,
}

impl Leader {
    fn of(rig: &Rig, settings: QueueSettings) -> Leader {
        let mut leader = Leader {
            queue: QuorumQueue::new("queue 'q' in vhost '/'".into(), settings),
            log: Vec::new(),
        };
        let out = &mut QueueOutput::default();
        leader.queue.leadership(1, Some(NodeId(1)), true, out);
        for command in &rig.log {
            leader.apply(command.clone());
        }
        leader
    }

    fn apply(&mut self, command: Bytes) {
        self.log.push(command);
        let index = self.log.len() as u64;
        self.queue
            .applied(index, 1, &self.log[index as usize - 1])
            .unwrap();
    }

    fn take(&mut self, most: usize, most_bytes: usize) -> QueueOutput {
        let log = &self.log;
        let mut read = |index: u64| log.get(index as usize - 1).cloned().into();
        let mut out = QueueOutput::default();
        self.queue.take_dead(most, most_bytes, &mut read, &mut out);
        out
    }

    fn turn(&mut self) {
        self.queue
            .flush(Timestamps::default(), &mut QueueOutput::default());
        while let Some(command) = self.queue.take_proposal() {
            self.apply(command);
        }
    }
}

fn expired(count: u64, settings: QueueSettings) -> Leader {
    let mut rig = Rig::new(settings.clone());
    for n in 1..=count {
        rig.one(9, RequestBody::Publish(message(n, None, Some(1))));
    }
    rig.command(Command::Time(WallTime(5000)).encode());
    Leader::of(&rig, settings)
}

#[test]
fn window_of_dead_letters_advances_with_confirms() {
    let all = MAX_PASSING as u64 + 10;
    let mut leader = expired(all, at_least_once());
    let first = leader.take(usize::MAX, usize::MAX);
    assert_eq!(first.kept_dead.len(), MAX_PASSING);
    assert_eq!(first.kept_dead[0].1, DeadReason::Expired);
    assert!(!leader.queue.has_dead());
    leader.queue.passed_on(3);
    leader.queue.passed_on(1);
    leader.queue.passed_on(1);
    leader.turn();
    assert_eq!(leader.queue.stats().dead, all - 2);
    assert!(leader.queue.has_dead());
    let next = leader.take(usize::MAX, usize::MAX).kept_dead;
    let next: Vec<_> = next.iter().map(|d| (d.0, number(&d.2))).collect();
    let w = MAX_PASSING as u64;
    assert_eq!(next, [(w + 1, w + 1), (w + 2, w + 2)]);
    let log = leader.log.clone();
    let mut read = |index: u64| log.get(index as usize - 1).cloned().into();
    assert_eq!(leader.queue.read_dead(1, &mut read), DeadRead::Gone);
    let again = leader.queue.read_dead(2, &mut read);
    assert!(matches!(again, DeadRead::Message(_, m) if number(&m) == 2));
}

#[test]
fn at_most_once_dead_letters_survive_a_snapshot_until_taken() {
    let mut leader = expired(10, settings());
    assert_eq!(leader.queue.checkpoint().live.ranges(), [(1, 10)]);
    let mut dequeued = Vec::new();
    while leader.queue.has_dead() {
        let out = leader.take(4, 1);
        assert_eq!(out.dead.len(), 1, "one is more than a byte");
        dequeued.extend(out.dead.iter().map(|d| number(&d.1)));
    }
    assert_eq!(dequeued, (1..=10).collect::<Vec<_>>());
    assert!(leader.queue.checkpoint().live.is_empty());
}

#[test]
fn follower_hands_out_no_dead_letters() {
    let mut leader = expired(3, at_least_once());
    let out = &mut QueueOutput::default();
    leader.queue.leadership(2, Some(NodeId(2)), false, out);
    assert!(!leader.queue.has_dead());
    assert!(leader.take(9, 9).is_empty());
    // A new leader does not hand any out either, before it knows which ones were confirmed.
    leader.queue.leadership(3, Some(NodeId(1)), true, out);
    assert!(!leader.queue.has_dead());
    leader.queue.flush(Timestamps::default(), out);
    assert!(leader.queue.has_proposals(), "it finds out");
}

/// Order is kept, no message is lost, and the shard is not kept busy meanwhile.
#[test]
fn dead_letters_wait_for_file_descriptors() {
    for mode in [DeadLettering::AtMostOnce, DeadLettering::AtLeastOnce] {
        let settings = QueueSettings {
            dead_letter: mode,
            ..at_least_once()
        };
        let mut rig = Rig::new(settings.clone());
        rig.publish(1..=3);
        rig.consume(1, 1, spec(5, 0));
        for id in 1..=3 {
            rig.settle(1, 1, SettlementOutcome::Rejected, id);
        }
        let mut leader = Leader::of(&rig, settings);
        let mut out = QueueOutput::default();
        let mut short = |_| LogRead::Shortage;
        leader.queue.take_dead(9, usize::MAX, &mut short, &mut out);
        assert!(out.is_empty(), "{out:?}");
        assert!(!leader.queue.has_dead(), "not before the next attempt");
        assert!(leader.queue.wake_at().is_some());
        let later = Timestamps {
            now: env::Time::ZERO + std::time::Duration::from_secs(1),
            ..Timestamps::default()
        };
        leader.queue.tick(later, &mut out);
        assert!(leader.queue.has_dead());
        let out = leader.take(9, usize::MAX);
        let kept = out.kept_dead.iter().map(|(_, _, m)| number(m));
        let all: Vec<u64> = out
            .dead
            .iter()
            .map(|(_, m)| number(m))
            .chain(kept)
            .collect();
        assert_eq!(all, [1, 2, 3]);
        if mode == DeadLettering::AtLeastOnce {
            let again = leader.queue.read_dead(1, &mut short);
            assert_eq!(again, DeadRead::Shortage);
        }
    }
}
