//! Acknowledgement timeouts: the time after which the leader ends a consumer, and the messages that return.

use super::command::Command;
use super::tests::{Rig, deliveries, number, session, settings, spec};
use super::timeouts::{ConsumerTimeouts, DefaultTimeout};
use super::{LogRead, QuorumQueue};
use crate::{
    ConsumerId, ConsumerSpec, EpochConsumer, FlowMode, Queue, QueueEvent, QueueMessage,
    QueueOutput, Request, RequestBody, SessionEpoch, SettlementOutcome, Timestamps,
};
use bytes::Bytes;
use env::Time;
use message::Value;
use std::time::Duration;

const CONSUMER: ConsumerId = ConsumerId(1);

fn numbers(out: &QueueOutput) -> Vec<u64> {
    let number = |d: &(u64, u32, crate::Delivery)| number(&d.2.message);
    deliveries(out).iter().map(number).collect()
}

/// Sessions and last deliveries of the events that a consumer's time is over.
fn timed_out(out: &QueueOutput) -> Vec<(u64, u64)> {
    let event = |a: &crate::AddressedEvent| match a.event {
        QueueEvent::TimedOut { up_to, .. } => Some((a.session.number, up_to)),
        _ => None,
    };
    out.events.iter().filter_map(event).collect()
}

fn time_out(rig: &mut Rig, by: u64, up_to: u64) -> QueueOutput {
    let command = Command::ConsumerTimedOut {
        session: session(by),
        consumer: CONSUMER,
        up_to,
    };
    rig.command(command.encode())
}

fn credit() -> ConsumerSpec {
    ConsumerSpec {
        flow_mode: FlowMode::Credit,
        ..spec(0, 0)
    }
}

#[test]
fn consumer_with_a_prefetch_ends_and_all_its_messages_return() {
    let mut rig = Rig::new(settings());
    rig.enable_delivery_counts();
    rig.publish(1..=3);
    rig.consume(1, 1, spec(2, 0));
    rig.consume(2, 1, spec(3, 0));
    let out = time_out(&mut rig, 1, 1);
    assert_eq!(timed_out(&out), [(1, u64::MAX)]);
    assert_eq!(numbers(&out), [1, 2]);
    let all = deliveries(&out);
    assert!(all.iter().all(|d| d.0 == 2 && d.2.redelivered), "{all:?}");
    assert_eq!(all[0].2.attempts, Some(0), "it is no failure");
    assert_eq!(rig.machine.stats().consumers, 1);
    // A late acknowledgement has no effect, and the session cancels the consumer.
    rig.settle(1, 1, SettlementOutcome::Accepted, 1);
    assert_eq!(rig.machine.stats().unacknowledged, 3);
    assert_eq!(timed_out(&time_out(&mut rig, 1, 9)), []);
    rig.one(1, RequestBody::Cancel { consumer: CONSUMER });
    assert_eq!(rig.machine.checkout.consumers.len(), 1);
}

#[test]
fn session_that_lost_the_event_is_told_that_its_consumer_ended() {
    let mut rig = Rig::new(settings());
    rig.publish(1..=1);
    rig.consume(1, 1, spec(1, 0));
    time_out(&mut rig, 1, 1);
    let resume = crate::ResumeConsumer {
        session: session(1),
        consumer: CONSUMER,
        next: 2,
    };
    let mut effects = super::Effects::collecting();
    rig.machine.resume(&resume, &mut effects);
    let event = QueueEvent::Cancelled { consumer: CONSUMER };
    let session = session(1);
    assert_eq!(effects.list, [super::Effect::Event { session, event }]);
}

#[test]
fn consumer_with_credit_continues_without_the_late_deliveries() {
    let mut rig = Rig::new(settings());
    rig.publish(1..=4);
    rig.consume(1, 1, credit());
    let more = |up_to| RequestBody::CreditOneWay {
        consumer: CONSUMER,
        up_to,
    };
    assert_eq!(numbers(&rig.one(1, more(3))), [1, 2, 3]);
    let out = time_out(&mut rig, 1, 2);
    assert_eq!(timed_out(&out), [(1, 2)]);
    let stats = rig.machine.stats();
    assert_eq!((stats.ready, stats.unacknowledged), (3, 1));
    assert_eq!(numbers(&rig.one(1, more(5))), [1, 2]);
    // A message that was settled meanwhile is not reported.
    rig.settle(1, 1, SettlementOutcome::Accepted, 3);
    assert_eq!(timed_out(&time_out(&mut rig, 1, 3)), []);
}

#[test]
fn messages_of_a_get_and_of_a_cancelled_consumer_return_silently() {
    for cancels in [false, true] {
        let mut rig = Rig::new(settings());
        rig.publish(1..=1);
        if cancels {
            rig.consume(1, 1, spec(1, 0));
            rig.one(1, RequestBody::Cancel { consumer: CONSUMER });
        } else {
            let no_ack = false;
            let consumer = CONSUMER;
            rig.one(1, RequestBody::Get { consumer, no_ack });
        }
        let out = time_out(&mut rig, 1, 1);
        assert_eq!(timed_out(&out), []);
        let stats = rig.machine.stats();
        assert_eq!((stats.ready, stats.unacknowledged), (1, 0));
        assert!(rig.machine.checkout.consumers.is_empty());
    }
}

/// A leader that is the only member of its group.
struct Leader {
    queue: QuorumQueue,
    log: Vec<Bytes>,
    at: Timestamps,
    seq: u64,
}

impl Leader {
    fn new(timeouts: ConsumerTimeouts) -> Leader {
        let mut queue = QuorumQueue::new("queue 'q' in vhost '/'".into(), settings());
        queue.set_consumer_timeouts(timeouts);
        let mut out = QueueOutput::default();
        queue.leadership(1, Some(session(1).node), true, &mut out);
        Leader {
            queue,
            log: Vec::new(),
            at: Timestamps::default(),
            seq: 0,
        }
    }

    /// Ends a turn and applies its proposals, until there is nothing more to do.
    fn turn(&mut self, out: &mut QueueOutput) {
        self.queue.flush(self.at, out);
        while let Some(command) = self.queue.take_proposal() {
            self.log.push(command.clone());
            let index = self.log.len() as u64;
            self.queue.applied(index, 1, &command).unwrap();
            let log = &self.log;
            let mut read = |index: u64| LogRead::from(log.get(index as usize - 1).cloned());
            self.queue.resolve(&mut read, out);
            self.queue.flush(self.at, out);
        }
    }

    fn request(&mut self, body: RequestBody) -> QueueOutput {
        self.seq += 1;
        let request = Request {
            session: session(1),
            seq: self.seq,
            body,
        };
        let mut out = QueueOutput::default();
        self.queue
            .step(self.at, QueueMessage::Request(request), &mut out);
        self.turn(&mut out);
        out
    }

    fn publish(&mut self, numbers: std::ops::RangeInclusive<u64>) {
        for n in numbers {
            self.request(RequestBody::Publish(super::tests::message(n, None, None)));
        }
    }

    fn consume(&mut self, spec: ConsumerSpec) {
        let consumer = CONSUMER;
        self.request(RequestBody::Consume { consumer, spec });
    }

    fn settle(&mut self, id: u64) {
        self.request(RequestBody::Settle {
            consumer: CONSUMER,
            outcome: SettlementOutcome::Accepted,
            ids: vec![(id, id)],
        });
    }

    /// Lets the leader work whenever it asks for a tick. Returns the time until the first timeout, if one comes within
    /// this time.
    fn first_timeout(&mut self, within: Duration) -> Option<Duration> {
        let start = self.at.now;
        let end = start + within;
        while let Some(at) = self.queue.wake_at().filter(|at| *at <= end) {
            self.at.now = at;
            let mut out = QueueOutput::default();
            self.queue.tick(self.at, &mut out);
            self.turn(&mut out);
            if !timed_out(&out).is_empty() {
                return Some(at.since(start));
            }
        }
        self.at.now = end;
        None
    }
}

fn enabled(queue_ms: Option<u64>) -> ConsumerTimeouts {
    ConsumerTimeouts {
        is_enabled: true,
        queue_ms,
        default: DefaultTimeout::new(Some(100_000)),
    }
}

#[test]
fn consumer_that_does_not_settle_ends_within_a_quarter_more_than_its_timeout() {
    for (own, queue_ms, expected) in [
        (None, Some(8000), 8000),
        (None, None, 100_000),
        (Some(800), Some(8000), 800),
        (Some(12_000), Some(8000), 12_000),
    ] {
        let mut leader = Leader::new(enabled(queue_ms));
        leader.publish(1..=3);
        let mut own_spec = spec(2, 0);
        if let Some(ms) = own {
            own_spec.arguments.set("x-consumer-timeout", Value::I64(ms));
        }
        leader.consume(own_spec);
        let expected = Duration::from_millis(expected);
        let after = leader.first_timeout(expected * 2).expect("a timeout");
        assert!(
            expected <= after && after <= expected * 5 / 4,
            "{own:?}, {queue_ms:?}: {after:?}"
        );
        assert_eq!(leader.queue.stats().ready, 3);
        assert_eq!(leader.first_timeout(expected * 3), None, "it has ended");
        assert_eq!(leader.queue.wake_at(), None, "nothing is unsettled");
    }
}

#[test]
fn changed_default_applies_to_existing_queues() {
    let timeouts = enabled(None);
    let mut leader = Leader::new(timeouts.clone());
    leader.publish(1..=1);
    leader.consume(spec(1, 0));
    timeouts.default.set(None);
    assert_eq!(leader.first_timeout(Duration::from_secs(1000)), None);
    timeouts.default.set(Some(1000));
    assert!(leader.first_timeout(Duration::from_secs(130)).is_some());
}

#[test]
fn consumer_that_settles_in_time_does_not_end() {
    let mut leader = Leader::new(enabled(Some(8000)));
    leader.publish(1..=20);
    leader.consume(spec(2, 0));
    for id in 1..=20 {
        assert_eq!(leader.first_timeout(Duration::from_secs(3)), None);
        leader.settle(id);
    }
    assert_eq!(leader.queue.stats().messages(), 0);
}

#[test]
fn time_of_each_delivery_counts_and_not_that_of_the_last_settlement() {
    let mut leader = Leader::new(enabled(Some(8000)));
    leader.publish(1..=2);
    leader.consume(spec(2, 0));
    assert_eq!(leader.first_timeout(Duration::from_secs(7)), None);
    leader.settle(1);
    let after = leader.first_timeout(Duration::from_secs(8));
    let after = after.expect("a timeout of the second delivery");
    assert!(after <= Duration::from_secs(3), "{after:?}");
}

#[test]
fn queue_without_the_flag_or_without_unsettled_deliveries_checks_nothing() {
    let mut without = Leader::new(ConsumerTimeouts {
        is_enabled: false,
        ..enabled(Some(1000))
    });
    without.publish(1..=1);
    without.consume(spec(1, 0));
    assert_eq!(without.queue.wake_at(), None);
    let mut idle = Leader::new(enabled(Some(1000)));
    idle.publish(1..=1);
    assert_eq!(idle.queue.wake_at(), None::<Time>);
}

#[test]
fn session_that_outlives_its_connections_has_no_timeout() {
    let mut leader = Leader::new(enabled(Some(1000)));
    leader.publish(1..=1);
    leader.request(RequestBody::TakeOver(Box::new(EpochConsumer {
        consumer: CONSUMER,
        spec: spec(1, 0),
        settled: None,
        epoch: SessionEpoch::New,
        at: 0,
    })));
    assert_eq!(leader.queue.stats().unacknowledged, 1);
    assert_eq!(leader.first_timeout(Duration::from_secs(100)), None);
}
