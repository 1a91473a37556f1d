use super::*;
use crate::{
    ConsumerId, ConsumerSpec, DeadLettering, DeadReason, Delivery, DeliveryProgress, QueueReply,
    SettlementOutcome,
};
use env::rng::SeededRng;
use env::sim::SimDisk;
use env::{Incarnation, NodeId};
use message::{MessageBuilder, Protocol, Table};
use proptest::prelude::*;
use std::collections::BTreeSet;

pub(crate) fn settings() -> QueueSettings {
    QueueSettings {
        max_length: None,
        max_length_bytes: None,
        overflow: Overflow::DropHead,
        delivery_limit: None,
        message_ttl_ms: None,
        single_active_consumer: false,
        max_priority: None,
        dead_letter: DeadLettering::AtMostOnce,
        quorum: Default::default(),
    }
}

pub(super) fn session(number: u64) -> SessionId {
    SessionId {
        node: NodeId(1),
        incarnation: Incarnation(1),
        number,
    }
}

fn message(n: u64, durable: bool, len: usize) -> Message {
    let mut body = n.to_be_bytes().to_vec();
    body.resize(len.max(8), 7);
    MessageBuilder {
        protocol: Protocol::Amqp091,
        durable,
        priority: None,
        ttl_ms: None,
        received: WallTime(1000),
        exchange: "",
        routing_keys: &["q"],
        properties: &[],
    }
    .build(body.len(), [&body[..]])
    .unwrap()
}

pub(super) fn number(message: &Message) -> u64 {
    u64::from_be_bytes(message.body()[..8].try_into().unwrap())
}

pub(crate) struct Rig {
    pub disk: SimDisk,
    pub queue: ClassicQueue,
    pub incarnation: Incarnation,
    seqs: BTreeMap<u64, u64>,
    pub at: Timestamps,
}

impl Rig {
    pub(crate) fn new(settings: QueueSettings) -> Rig {
        let disk = SimDisk::new();
        let queue = open(&disk, settings, Incarnation(1));
        Rig {
            disk,
            queue,
            incarnation: Incarnation(1),
            seqs: BTreeMap::new(),
            at: Timestamps {
                now: Time(1),
                wall: WallTime(1000),
            },
        }
    }

    pub(crate) fn request(&mut self, by: u64, body: RequestBody) -> QueueOutput {
        let seq = self.seqs.entry(by).or_default();
        *seq += 1;
        let request = Request {
            session: session(by),
            seq: *seq,
            body,
        };
        let mut out = QueueOutput::default();
        self.queue
            .step(self.at, QueueMessage::Request(request), &mut out);
        self.queue.flush(self.at, &mut out);
        self.take_dead(&mut out);
        out
    }

    /// Publishes in one turn.
    fn request_together(&mut self, by: u64, bodies: Vec<RequestBody>) -> QueueOutput {
        let mut out = QueueOutput::default();
        for body in bodies {
            let seq = self.seqs.entry(by).or_default();
            *seq += 1;
            let request = Request {
                session: session(by),
                seq: *seq,
                body,
            };
            self.queue
                .step(self.at, QueueMessage::Request(request), &mut out);
        }
        self.queue.flush(self.at, &mut out);
        out
    }

    pub(crate) fn take_dead(&mut self, out: &mut QueueOutput) {
        self.queue.take_dead(self.at, usize::MAX, usize::MAX, out);
        self.queue.flush(self.at, out);
    }

    pub(crate) fn publish(&mut self, n: u64, durable: bool, len: usize) -> QueueOutput {
        self.request(9, RequestBody::Publish(message(n, durable, len)))
    }

    /// Makes several requests in one turn.
    pub(crate) fn publish_together(
        &mut self,
        numbers: impl Iterator<Item = u64>,
        durable: bool,
        len: usize,
    ) -> QueueOutput {
        let bodies = numbers.map(|n| RequestBody::Publish(message(n, durable, len)));
        self.request_together(9, bodies.collect())
    }

    pub(crate) fn consume(&mut self, by: u64, consumer: u32, prefetch: u32) -> QueueOutput {
        let spec = ConsumerSpec {
            tag: "c".into(),
            channel: 1,
            flow_mode: crate::FlowMode::Prefetch,
            prefetch,
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: Table::default(),
            filter: None,
        };
        let consumer = ConsumerId(consumer);
        self.request(by, RequestBody::Consume { consumer, spec })
    }

    pub(crate) fn settle(
        &mut self,
        by: u64,
        consumer: u32,
        outcome: SettlementOutcome,
        id: u64,
    ) -> QueueOutput {
        let consumer = ConsumerId(consumer);
        let ids = vec![(id, id)];
        self.request(
            by,
            RequestBody::Settle {
                consumer,
                outcome,
                ids,
            },
        )
    }

    /// The client of a session was sent deliveries up to an id.
    pub(crate) fn received(&mut self, by: u64, consumer: ConsumerId, up_to: u64) -> QueueOutput {
        let received = DeliveryProgress {
            session: session(by),
            consumer,
            up_to,
        };
        let mut out = QueueOutput::default();
        self.queue
            .step(self.at, QueueMessage::Received(received), &mut out);
        self.queue.flush(self.at, &mut out);
        self.take_dead(&mut out);
        out
    }

    pub(crate) fn pass(&mut self, time: Duration) -> QueueOutput {
        self.at.now = self.at.now + time;
        self.at.wall.0 += time.as_millis() as u64;
        let mut out = QueueOutput::default();
        self.queue.tick(self.at, &mut out);
        self.take_dead(&mut out);
        out
    }

    /// Restarts the process. Unwritten messages are lost, unless it `stops` cleanly.
    pub(crate) fn restart(&mut self, stops: bool) {
        if stops {
            self.queue.write_all(&mut QueueOutput::default()).unwrap();
        }
        self.incarnation.0 += 1;
        self.queue = open(&self.disk, self.queue.settings.clone(), self.incarnation);
        self.seqs.clear();
    }

    /// The oldest ready message: its number, and whether a file was read.
    pub(crate) fn head(&mut self) -> (Option<u64>, bool) {
        let found = self.queue.head(crate::model::describe_number);
        (found.message.map(|head| head.received), found.has_read)
    }

    /// Path and length of the first segment.
    fn first_segment(&self) -> (String, u64) {
        let mut files = self.disk.files();
        files.retain(|(path, _)| path.ends_with(".seg"));
        files.remove(0)
    }

    /// Takes and settles all messages with one consumer.
    pub(crate) fn drain(&mut self) -> (Vec<u64>, Vec<String>) {
        let (mut all, mut faults) = (Vec::new(), Vec::new());
        let mut out = self.consume(77, 900, 50);
        loop {
            let got = deliveries(&out);
            faults.append(&mut out.faults);
            if got.is_empty() {
                return (all, faults);
            }
            all.extend(got.iter().map(|d| number(&d.message)));
            let ids = vec![(1, got.last().unwrap().id)];
            out = self.request(
                77,
                RequestBody::Settle {
                    consumer: ConsumerId(900),
                    outcome: SettlementOutcome::Accepted,
                    ids,
                },
            );
        }
    }
}

fn open(disk: &SimDisk, settings: QueueSettings, incarnation: Incarnation) -> ClassicQueue {
    let label = "queue 'q' in vhost '/'".into();
    let disk = Arc::new(disk.clone());
    ClassicQueue::open(disk, QueueId(5), label, settings, incarnation).unwrap()
}

fn deliveries(out: &QueueOutput) -> Vec<Delivery> {
    let of = |a: &crate::AddressedEvent| match &a.event {
        QueueEvent::Deliver { deliveries, .. } => deliveries.clone(),
        _ => Vec::new(),
    };
    out.events.iter().flat_map(of).collect()
}

fn numbers(out: &QueueOutput) -> Vec<u64> {
    deliveries(out).iter().map(|d| number(&d.message)).collect()
}

pub(super) fn applied(out: &QueueOutput) -> Option<u64> {
    let up_to = |a: &crate::AddressedEvent| match &a.event {
        QueueEvent::Applied { up_to } | QueueEvent::AppliedExcept { up_to, .. } => Some(*up_to),
        _ => None,
    };
    out.events.iter().filter_map(up_to).next_back()
}

#[test]
fn persistent_publish_is_confirmed_when_written_and_transient_when_buffered() {
    let mut rig = Rig::new(settings());
    assert_eq!(applied(&rig.publish(1, false, 10)), Some(1));
    assert_eq!(rig.disk.counters().bytes_written, 0);
    assert_eq!(applied(&rig.publish(2, true, 10)), Some(2));
    assert!(rig.disk.counters().bytes_written > 0);
    assert_eq!(rig.disk.counters().syncs, 0);
}

#[test]
fn message_settled_before_the_write_is_never_written() {
    let mut rig = Rig::new(settings());
    rig.consume(1, 1, 10);
    let before = rig.disk.counters().bytes_written;
    for n in 1..=100 {
        let out = rig.publish(n, true, 10);
        assert_eq!(numbers(&out), [n]);
        assert_eq!(applied(&out), Some(n - 1));
        let out = rig.settle(1, 1, SettlementOutcome::Accepted, n);
        // It is consumed and settled first, which confirms it.
        let confirm = QueueEvent::Applied { up_to: n };
        let events = |a: &crate::AddressedEvent| a.session == session(9) && a.event == confirm;
        assert!(out.events.iter().any(events));
    }
    rig.pass(WRITE_AT_LAST);
    assert_eq!(rig.disk.counters().bytes_written, before);
    assert_eq!(rig.queue.stats().bytes, 0);
}

/// The stats of an empty queue.
fn nothing() -> QueueStats {
    QueueStats::default()
}

#[test]
fn restart_recovers_exactly_the_unsettled_persistent_messages() {
    let mut rig = Rig::new(settings());
    for n in 1..=40 {
        rig.publish(n, n % 4 != 0, 50);
    }
    rig.consume(1, 1, 12);
    let stats = rig.queue.stats();
    let bytes = (stats.bytes, stats.unacknowledged_bytes);
    assert_eq!(bytes, (40 * 50, 12 * 50));
    for id in [1, 2, 3, 5, 9] {
        rig.settle(1, 1, SettlementOutcome::Accepted, id);
    }
    rig.pass(WRITE_AT_LAST);
    rig.pass(WRITE_AT_LAST);
    rig.restart(false);
    let left: Vec<u64> = (1..=40)
        .filter(|n| n % 4 != 0 && ![1, 2, 3, 5, 9].contains(n))
        .collect();
    assert_eq!(rig.queue.stats().ready, left.len() as u64);
    assert_eq!(rig.queue.stats().bytes, 50 * left.len() as u64);
    let out = rig.consume(1, 1, 1);
    assert!(
        deliveries(&out)
            .iter()
            .all(|d| d.redelivered && d.attempts.is_none())
    );
    rig.request(1, RequestBody::Close);
    assert_eq!(rig.drain(), (left, vec![]));
    rig.restart(true);
    assert_eq!(rig.queue.stats().ready, 0);
}

/// The remaining messages, and whether they are redelivered.
fn redelivered(rig: &mut Rig) -> Vec<(u64, bool)> {
    let out = rig.consume(3, 1, 0);
    let all = deliveries(&out).into_iter();
    all.map(|d| (number(&d.message), d.redelivered)).collect()
}

#[test]
fn clean_stop_records_undelivered_messages_and_a_crash_does_not() {
    let left = |seen: u64| (1..=6).map(|n| (n, n <= seen)).collect::<Vec<_>>();
    // Two are unsettled when the node stops, and one more is delivered after that.
    for (late, restarts, seen) in [(false, 1, 2), (true, 1, 6), (false, 2, 6)] {
        let mut rig = Rig::new(settings());
        (1..=6).for_each(|n| drop(rig.publish(n, true, 50)));
        rig.consume(1, 1, 2);
        rig.queue.write_all(&mut QueueOutput::default()).unwrap();
        if late {
            rig.consume(1, 2, 1);
        }
        // An incarnation that ends without a clean stop, whatever it did.
        (0..restarts).for_each(|_| rig.restart(false));
        assert_eq!(redelivered(&mut rig), left(seen), "{late} {restarts}");
    }
    // Delivered late, and stopped after that.
    let mut rig = Rig::new(settings());
    (1..=6).for_each(|n| drop(rig.publish(n, true, 50)));
    rig.queue.write_all(&mut QueueOutput::default()).unwrap();
    rig.consume(1, 1, 3);
    rig.restart(true);
    rig.publish(7, true, 50);
    rig.restart(true);
    let mut all = left(3);
    all.push((7, false));
    assert_eq!(redelivered(&mut rig), all);
}

#[test]
fn clean_stop_records_undelivered_messages_of_each_priority() {
    let mut settings = settings();
    settings.max_priority = Some(9);
    let mut rig = Rig::new(settings);
    for n in 1..=6 {
        let priority = Some(if n % 2 == 0 { 7 } else { 1 });
        let publish = RequestBody::Publish(crate::model::message(n, priority, None, 8));
        rig.request(9, publish);
    }
    rig.consume(1, 1, 2);
    rig.restart(true);
    let all = [2, 4, 6, 1, 3, 5].map(|n| (n, n == 2 || n == 4));
    assert_eq!(redelivered(&mut rig), all);
}

/// Unsettled messages stay when the ready ones are purged.
#[test]
fn purge_keeps_unsettled_deliveries() {
    let mut rig = Rig::new(settings());
    (1..=6).for_each(|n| drop(rig.publish(n, true, 50)));
    rig.consume(1, 1, 2);
    rig.request(8, RequestBody::Purge);
    rig.request(1, RequestBody::Close);
    rig.publish(7, true, 50);
    rig.restart(true);
    assert_eq!(redelivered(&mut rig), [(1, true), (2, true), (7, false)]);
}

#[test]
fn long_queue_needs_bounded_memory_and_frees_its_disk_space() {
    let mut rig = Rig::new(settings());
    let count = 30_000;
    for n in 1..=count {
        rig.publish(n, n % 2 == 0, 1000);
    }
    assert!(rig.disk.files().len() >= 3, "{:?}", rig.disk.files());
    let store = &rig.queue.store;
    assert!(store.memory_messages() < 3 * BUFFER_MESSAGES);
    let (all, faults) = rig.drain();
    assert_eq!((all.len() as u64, faults.len()), (count, 0));
    assert!(all.is_sorted());
    rig.pass(WRITE_AT_LAST);
    let left: u64 = rig.disk.files().iter().map(|(_, len)| len).sum();
    assert!(left < SEGMENT_BYTES, "{:?}", rig.disk.files());
    rig.pass(WRITE_AT_LAST);
    rig.pass(REST_AFTER);
    assert_eq!(rig.queue.wake_at(), None);
}

#[test]
fn requeued_messages_keep_their_position_written_or_not() {
    for written in [false, true] {
        let mut rig = Rig::new(settings());
        rig.consume(1, 1, 3);
        for n in 1..=5 {
            rig.publish(n, true, 10);
        }
        if written {
            rig.pass(WRITE_AFTER);
        }
        rig.settle(1, 1, SettlementOutcome::Accepted, 2);
        rig.request(1, RequestBody::Close);
        assert_eq!(rig.drain().0, [1, 3, 4, 5]);
    }
}

/// Two consumers of a channel have the odd and the even messages; then the channel ends.
fn channel_with_two_consumers(settings: QueueSettings) -> (Rig, Vec<RequestBody>) {
    let mut rig = Rig::new(settings);
    let consumers = [1, 2].map(ConsumerId);
    for consumer in consumers {
        rig.consume(1, consumer.0, 0);
    }
    (1..=6).for_each(|n| drop(rig.publish(n, false, 10)));
    let leave = |consumer| RequestBody::CancelAndRequeue { consumer };
    (rig, consumers.map(leave).to_vec())
}

#[test]
fn messages_of_a_closed_channel_are_requeued_in_order_before_any_delivery() {
    let (mut rig, end) = channel_with_two_consumers(settings());
    rig.consume(2, 1, 0);
    let out = rig.request_together(1, end);
    assert_eq!(numbers(&out), [1, 2, 3, 4, 5, 6]);
    let to_the_other = |a: &crate::AddressedEvent| match a.event {
        QueueEvent::Deliver { .. } => a.session == session(2),
        _ => true,
    };
    assert!(out.events.iter().all(to_the_other));
}

#[test]
fn limit_drops_requeued_messages_of_a_closed_channel_before_any_delivery() {
    let (mut rig, mut end) = channel_with_two_consumers(QueueSettings {
        max_length: Some(2),
        ..settings()
    });
    // Later requests of the same turn take effect after the requeue.
    let get = |n| RequestBody::Get {
        consumer: ConsumerId(n),
        no_ack: true,
    };
    end.extend([7, 8, 9].map(get));
    let out = rig.request_together(1, end);
    assert_eq!(numbers(&out), [5, 6]);
    let empty = |a: &crate::AddressedEvent| match &a.event {
        QueueEvent::Answer { answer, .. } => *answer == QueueReply::Empty,
        _ => false,
    };
    assert!(out.events.iter().any(empty), "{:?}", out.events);
}

#[test]
fn unseen_delivery_goes_to_another_consumer_before_a_limit_drops_it() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(2),
        ..settings()
    });
    rig.consume(1, 1, 0);
    (1..=3).for_each(|n| drop(rig.publish(n, false, 10)));
    rig.request(
        1,
        RequestBody::Cancel {
            consumer: ConsumerId(1),
        },
    );
    rig.consume(2, 1, 1);
    let unseen = RequestBody::Settle {
        consumer: ConsumerId(1),
        outcome: SettlementOutcome::Unseen,
        ids: vec![(1, 3)],
    };
    let out = rig.request(1, unseen);
    assert_eq!(numbers(&out), [1]);
    assert!(out.dead.is_empty());
    assert_eq!(rig.queue.stats().ready, 2);
}

#[test]
fn request_that_arrives_after_its_node_died_takes_nothing() {
    let mut rig = Rig::new(settings());
    for n in 1..=2 {
        rig.publish(n, true, 10);
    }
    rig.consume(2, 1, 10);
    let node = session(2).node;
    let mut out = QueueOutput::default();
    rig.queue.peer_down(rig.at, node, &mut out);
    assert_eq!(rig.queue.stats().unacknowledged, 0);
    let get = RequestBody::Get {
        consumer: ConsumerId(2),
        no_ack: false,
    };
    rig.request(2, get);
    let stats = rig.queue.stats();
    assert_eq!((stats.ready, stats.unacknowledged), (2, 0));
    rig.queue.peer_up(rig.at, node, &mut out);
    assert_eq!(rig.queue.stats().unacknowledged, 2);
}

#[test]
fn full_disk_stops_only_publishers() {
    let mut rig = Rig::new(settings());
    for n in 1..=10 {
        rig.publish(n, true, 100);
    }
    rig.pass(WRITE_AFTER);
    rig.disk.set_capacity(Some(0));
    let out = rig.publish(11, true, 100);
    assert_eq!((applied(&out), out.faults.len()), (Some(10), 1));
    // Refused now, while the messages in memory wait.
    let out = rig.publish(12, true, 100);
    let refused = |a: &crate::AddressedEvent| match &a.event {
        QueueEvent::AppliedExcept { refused, .. } => refused.first().map(|r| (r.from, r.why)),
        _ => None,
    };
    assert_eq!(
        out.events.iter().find_map(refused),
        Some((12, RejectReason::Unavailable))
    );
    // Consumers continue, and settling the unwritten message confirms it.
    let (all, _) = rig.drain();
    assert_eq!(all, (1..=11).collect::<Vec<_>>());
    rig.disk.set_capacity(None);
    rig.pass(RETRY_AFTER);
    rig.publish(13, true, 100);
    assert_eq!(applied(&rig.pass(WRITE_AFTER)), Some(13));
    rig.restart(true);
    assert_eq!(rig.drain().0, [13]);
}

#[test]
fn damaged_record_loses_only_itself_and_is_reported() {
    for (at, lost) in [(20, 1), (40, 1)] {
        let mut rig = Rig::new(settings());
        for n in 1..=50 {
            rig.publish(n, true, 100);
        }
        rig.pass(WRITE_AFTER);
        let (path, len) = rig.first_segment();
        let front = segment_header::LEN as u64;
        let record = (len - front) / 50;
        // Within the header, or within the payload, of the fifth.
        assert!(rig.disk.flip(&path, front + 4 * record + at - 10, 0x40));
        rig.restart(false);
        let mut out = QueueOutput::default();
        rig.queue.flush(rig.at, &mut out);
        let (all, mut faults) = rig.drain();
        faults.append(&mut out.faults);
        assert_eq!(all.len(), 50 - lost);
        assert!(!all.contains(&5) && all.is_sorted());
        assert!(faults.iter().any(|f| f.contains(&path)), "{faults:?}");
        assert_eq!(rig.queue.stats().ready, 0);
    }
}

#[test]
fn missing_file_stops_the_node() {
    let mut rig = Rig::new(settings());
    for n in 1..=200 {
        rig.publish(n, true, 4000);
    }
    rig.pass(WRITE_AFTER);
    let (path, _) = rig.first_segment();
    rig.disk.set_gone(true);
    let mut out = rig.consume(1, 1, 0);
    assert_eq!(deliveries(&out).len() as u64 + rig.queue.stats().ready, 200);
    let gone = out
        .gone
        .take()
        .expect("some of them were on the disk alone");
    assert!(gone.contains(&path), "{gone}");
}

#[test]
fn torn_tail_is_truncated() {
    let mut rig = Rig::new(settings());
    for n in 1..=5 {
        rig.publish(n, true, 100);
    }
    rig.pass(WRITE_AFTER);
    let (path, len) = rig.first_segment();
    assert!(rig.disk.lose_end(&path, len - 30));
    rig.restart(false);
    assert_eq!(rig.queue.stats().ready, 4);
    let faults = rig.publish(6, true, 100).faults;
    assert_eq!(rig.drain(), (vec![1, 2, 3, 4, 6], vec![]));
    assert!(faults.iter().any(|f| f.contains("torn")), "{faults:?}");
    rig.restart(true);
    assert_eq!(rig.queue.stats().ready, 0);
}

#[test]
fn limits_and_ttl_drop_messages_at_the_head() {
    let mut rig = Rig::new(QueueSettings {
        max_length: Some(3),
        message_ttl_ms: Some(500),
        ..settings()
    });
    let mut dead = Vec::new();
    for n in 1..=5 {
        dead.extend(rig.publish(n, true, 10).dead);
    }
    let reasons: Vec<_> = dead.iter().map(|d| (d.0, number(&d.1))).collect();
    assert_eq!(
        reasons,
        [(DeadReason::MaxLength, 1), (DeadReason::MaxLength, 2)]
    );
    rig.pass(WRITE_AFTER);
    let wait = Duration::from_millis(500);
    assert!(rig.queue.wake_at().unwrap() <= rig.at.now + wait);
    let out = rig.pass(wait);
    let reasons: Vec<_> = out.dead.iter().map(|d| (d.0, number(&d.1))).collect();
    let expired = [3, 4, 5].map(|n| (DeadReason::Expired, n));
    assert_eq!(reasons, expired);
    assert_eq!(rig.queue.stats(), nothing());
}

#[test]
fn message_that_expired_while_unsettled_is_not_redelivered() {
    let mut rig = Rig::new(QueueSettings {
        message_ttl_ms: Some(0),
        ..settings()
    });
    rig.consume(1, 1, 1);
    // A consumer with room gets it at once.
    assert_eq!(numbers(&rig.publish(1, true, 10)), [1]);
    let out = rig.settle(1, 1, SettlementOutcome::Requeue, 1);
    assert!(numbers(&out).is_empty());
    let reasons: Vec<_> = out.dead.iter().map(|d| (d.0, number(&d.1))).collect();
    assert_eq!(reasons, [(DeadReason::Expired, 1)]);
    assert_eq!(rig.queue.stats().ready, 0);
}

#[test]
fn exclusive_consumer_is_refused_with_single_active_consumer() {
    let mut rig = Rig::new(QueueSettings {
        single_active_consumer: true,
        ..settings()
    });
    let spec = ConsumerSpec {
        tag: "c".into(),
        channel: 1,
        flow_mode: crate::FlowMode::Prefetch,
        prefetch: 1,
        no_ack: false,
        exclusive: true,
        priority: 0,
        arguments: Table::default(),
        filter: None,
    };
    let consumer = ConsumerId(1);
    let out = rig.request(1, RequestBody::Consume { consumer, spec });
    let refused = out.events.iter().any(|addressed| {
        let QueueEvent::Answer { answer, .. } = &addressed.event else {
            return false;
        };
        matches!(answer, QueueReply::Refused { code: 403, .. })
    });
    assert!(refused, "{:?}", out.events);
    rig.consume(1, 2, 1);
    assert_eq!(rig.queue.stats().consumers, 1);
}

#[test]
fn purge_and_delete_report_the_removed_messages() {
    let mut rig = Rig::new(settings());
    for n in 1..=10 {
        rig.publish(n, true, 10);
    }
    rig.consume(1, 1, 2);
    rig.pass(WRITE_AFTER);
    rig.publish(11, true, 10);
    let count = |out: &QueueOutput| {
        let of = |a: &crate::AddressedEvent| match &a.event {
            QueueEvent::Answer {
                answer: QueueReply::Count { messages, .. },
                ..
            } => Some(*messages),
            _ => None,
        };
        out.events.iter().find_map(of)
    };
    assert_eq!(count(&rig.request(2, RequestBody::Purge)), Some(9));
    assert_eq!(rig.queue.stats().unacknowledged, 2);
    rig.publish(12, true, 10);
    rig.restart(true);
    assert_eq!(rig.queue.stats().ready, 3);
    rig.publish(13, true, 10);
    let delete = RequestBody::Delete {
        if_unused: false,
        if_empty: false,
    };
    assert_eq!(count(&rig.request(2, delete)), Some(4));
    assert_eq!(rig.disk.files(), []);
    assert_eq!(rig.queue.stats(), nothing());
}

#[test]
fn prefetch_of_a_consumer_can_change_while_it_has_unsettled_messages() {
    let mut rig = Rig::new(settings());
    for n in 1..=5 {
        rig.publish(n, false, 8);
    }
    assert_eq!(numbers(&rig.consume(1, 1, 1)), [1]);
    let out = rig.consume(1, 1, 3);
    assert_eq!(numbers(&out), [2, 3]);
    assert_eq!(rig.queue.consumers().len(), 1);
    assert!(numbers(&rig.consume(1, 1, 2)).is_empty());
    assert!(numbers(&rig.settle(1, 1, SettlementOutcome::Accepted, 1)).is_empty());
    assert_eq!(
        numbers(&rig.settle(1, 1, SettlementOutcome::Accepted, 2)),
        [4]
    );
    // It does not revive a cancelled consumer.
    let consumer = ConsumerId(1);
    rig.request(1, RequestBody::Cancel { consumer });
    assert!(numbers(&rig.consume(1, 1, 9)).is_empty());
    assert_eq!(rig.queue.consumers().len(), 0);
}

#[test]
fn session_from_before_a_restart_is_asked_for_its_first_request() {
    let mut rig = Rig::new(settings());
    rig.publish(1, true, 10);
    rig.restart(true);
    rig.seqs.insert(9, 1);
    let out = rig.publish(2, true, 10);
    assert_eq!(
        out.events.first().map(|a| &a.event),
        Some(&QueueEvent::Expecting { expected: 1 })
    );
}

#[test]
fn session_that_lost_its_owner_starts_a_new_numbering_epoch() {
    let mut rig = Rig::new(settings());
    rig.consume(9, 1, 5);
    rig.publish(1, true, 10);
    // The node was unreachable for a while: the session was told that its requests are lost, and starts a new
    // numbering epoch.
    rig.seqs.insert(9, crate::client::NUMBERING_EPOCH);
    let out = rig.publish(2, true, 10);
    assert_eq!(numbers(&out), [0u64; 0]);
    assert_eq!(rig.queue.stats().ready, 2);
    let up_to = crate::client::NUMBERING_EPOCH + 1;
    assert_eq!(applied(&out), Some(up_to));
    let out = rig.consume(9, 2, 5);
    assert_eq!(numbers(&out), [1, 2]);
    // Late copies of earlier requests are ignored.
    rig.seqs.insert(9, 0);
    rig.publish(3, true, 10);
    assert_eq!(rig.queue.stats().unacknowledged, 2);
    let gap = crate::client::NUMBERING_EPOCH * 2 + 4;
    rig.seqs.insert(9, gap - 1);
    let out = rig.publish(4, true, 10);
    let expected = crate::client::NUMBERING_EPOCH * 2 + 1;
    let events = |a: &crate::AddressedEvent| a.event == QueueEvent::Expecting { expected };
    assert!(out.events.iter().any(events));
}

#[derive(Clone, Debug)]
enum Step {
    Publish { durable: bool, len: usize },
    Take { settle: u8, count: u8 },
    Pass { ms: u64 },
    Purge,
    Restart { stops: bool },
    Full { on: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (any::<bool>(), prop_oneof![Just(8usize), 9..3000usize, 60_000..90_000usize]).prop_map(|(durable, len)| Step::Publish { durable, len }),
        4 => (0u8..4, 1u8..6).prop_map(|(settle, count)| Step::Take { settle, count }),
        2 => (0u64..400).prop_map(|ms| Step::Pass { ms }),
        1 => any::<bool>().prop_map(|stops| Step::Restart { stops }),
        1 => any::<bool>().prop_map(|on| Step::Full { on }),
        1 => Just(Step::Purge),
    ]
}

/// The queue against a list. A crash may lose unconfirmed messages and redeliver recently settled ones.
struct Model {
    rig: Rig,
    next: u64,
    next_get: u32,
    queue: BTreeMap<u64, (bool, bool)>,
    late_settled: BTreeSet<u64>,
    safe: BTreeMap<u64, u64>,
    /// Delivered before, as far as the queue may know.
    seen: BTreeSet<u64>,
}

impl Model {
    fn new() -> Model {
        Model {
            rig: Rig::new(settings()),
            next: 1,
            next_get: 1,
            queue: BTreeMap::new(),
            late_settled: BTreeSet::new(),
            safe: BTreeMap::new(),
            seen: BTreeSet::new(),
        }
    }

    fn note(&mut self, out: &QueueOutput) {
        let is_own = out.events.iter().filter(|a| a.session == session(9));
        let mut refused = Vec::new();
        let mut up_to = None;
        for addressed in is_own {
            match &addressed.event {
                QueueEvent::Applied { up_to: n } => up_to = Some(*n),
                QueueEvent::AppliedExcept {
                    up_to: n,
                    refused: list,
                } => {
                    up_to = Some(*n);
                    refused.extend(list.iter().copied());
                }
                _ => {}
            }
        }
        for r in &refused {
            for seq in r.from..=r.to {
                if let Some(n) = self.safe.remove(&seq) {
                    self.queue.remove(&n);
                }
            }
        }
        let Some(up_to) = up_to else { return };
        while let Some(first) = self.safe.first_entry() {
            if *first.key() > up_to {
                break;
            }
            let n = first.remove();
            if let Some(entry) = self.queue.get_mut(&n) {
                entry.1 = true;
            }
        }
    }

    fn run(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Publish { durable, len } => {
                let n = self.next;
                self.next += 1;
                self.queue.insert(n, (durable, false));
                let seq = self.rig.seqs.get(&9).copied().unwrap_or(0) + 1;
                self.safe.insert(seq, n);
                let out = self.rig.publish(n, durable, len);
                self.note(&out);
            }
            Step::Take { settle, count } => self.take(settle, count)?,
            Step::Pass { ms } => {
                let out = self.rig.pass(Duration::from_millis(ms));
                if ms >= 200 {
                    let out = self.rig.pass(Duration::from_millis(ms));
                    self.note(&out);
                    if !self.rig.queue.store.segments.has_acks() {
                        self.late_settled.clear();
                    }
                }
                self.note(&out);
            }
            Step::Purge => {
                let out = self.rig.request(8, RequestBody::Purge);
                self.note(&out);
                self.queue.clear();
            }
            Step::Full { on } => {
                self.rig.disk.set_capacity(on.then_some(0));
            }
            Step::Restart { stops } => {
                if stops {
                    self.rig.disk.set_capacity(None);
                }
                self.rig.restart(stops);
                self.restarted(stops)?;
            }
        }
        prop_assert_eq!(self.rig.queue.stats().ready, self.queue.len() as u64);
        Ok(())
    }

    /// Takes some messages, and settles or requeues each as it arrives.
    fn take(&mut self, settle: u8, count: u8) -> Result<(), TestCaseError> {
        for _ in 0..count {
            let consumer = self.next_get;
            self.next_get += 1;
            let no_ack = false;
            let get = RequestBody::Get {
                consumer: ConsumerId(consumer),
                no_ack,
            };
            let out = self.rig.request(7, get);
            self.note(&out);
            let first = self.queue.keys().next().copied();
            prop_assert_eq!(numbers(&out).first().copied(), first);
            let Some(first) = first else { return Ok(()) };
            let redelivered = deliveries(&out).first().map(|d| d.redelivered);
            prop_assert_eq!(redelivered, Some(!self.seen.insert(first)));
            let outcome = match settle {
                0 => SettlementOutcome::Requeue,
                1 => SettlementOutcome::Rejected,
                _ => SettlementOutcome::Accepted,
            };
            let out = self.rig.settle(7, consumer, outcome, 1);
            if outcome != SettlementOutcome::Requeue {
                self.queue.remove(&first);
                self.late_settled.insert(first);
            }
            self.note(&out);
        }
        Ok(())
    }

    fn restarted(&mut self, stops: bool) -> Result<(), TestCaseError> {
        self.safe.clear();
        let mut probe = Rig {
            disk: self.rig.disk.clone(),
            queue: open(&self.rig.disk, settings(), self.rig.incarnation),
            incarnation: self.rig.incarnation,
            seqs: BTreeMap::new(),
            at: self.rig.at,
        };
        let mut found = BTreeSet::new();
        let mut out = probe.consume(1, 1, 0);
        loop {
            let got = numbers(&out);
            if got.is_empty() {
                break;
            }
            for n in got {
                prop_assert!(found.insert(n), "twice");
            }
            out = probe.consume(1, found.len() as u32 + 1, 0);
        }
        for (n, (durable, safe)) in &self.queue {
            let left = found.contains(n);
            prop_assert!(!left || *durable, "transient {} came back", n);
            let must = *durable && (stops || *safe);
            prop_assert!(left || !must, "{} is lost", n);
        }
        for n in &found {
            let late = !stops && self.late_settled.contains(n);
            prop_assert!(late || self.queue.contains_key(n), "{} came back", n);
        }
        if !stops {
            self.seen.extend(&found);
        }
        self.queue = found.into_iter().map(|n| (n, (true, true))).collect();
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    #[test]
    fn queue_behaves_like_a_list_across_restarts(steps in proptest::collection::vec(step(), 1..60)) {
        let mut model = Model::new();
        for step in steps {
            model.run(step)?;
        }
    }

    /// A crash of the machine may lose anything, since nothing is synced; the rest can be read and used.
    #[test]
    fn queue_opens_after_any_crash_of_the_machine(seed: u64, count in 1u64..400, len in 8usize..4000) {
        let mut rig = Rig::new(settings());
        for n in 1..=count {
            rig.publish(n, true, len);
            if n % 7 == 0 {
                rig.pass(WRITE_AFTER);
            }
        }
        rig.drain_some(count / 3);
        rig.pass(WRITE_AT_LAST);
        rig.disk.crash(&mut SeededRng::new(seed));
        rig.disk.restart();
        rig.restart(false);
        let (all, _) = rig.drain();
        prop_assert!(all.is_sorted());
        prop_assert_eq!(rig.queue.stats().ready, 0);
        rig.publish(count + 1, true, len);
        rig.restart(true);
        prop_assert_eq!(rig.drain().0, vec![count + 1]);
    }
}

#[test]
fn get_does_not_count_expired_messages_as_left() {
    let mut rig = Rig::new(settings());
    for (n, ttl) in [(1, None), (2, Some(5)), (3, Some(5)), (4, None)] {
        rig.request(
            9,
            RequestBody::Publish(crate::model::message(n, None, ttl, 8)),
        );
    }
    rig.at.wall.0 += 10;
    let get = RequestBody::Get {
        consumer: ConsumerId(1),
        no_ack: false,
    };
    let got = rig.request(1, get);
    let got: Vec<_> = deliveries(&got)
        .iter()
        .map(|d| (number(&d.message), d.left))
        .collect();
    assert_eq!(got, [(1, 1)]);
}

impl Rig {
    fn drain_some(&mut self, count: u64) {
        let out = self.consume(66, 1, count as u32 + 1);
        for delivery in deliveries(&out) {
            self.settle(66, 1, SettlementOutcome::Accepted, delivery.id);
        }
        self.request(66, RequestBody::Close);
    }
}

#[test]
fn deliveries_to_a_persistent_session_carry_the_message_number() {
    let mut rig = Rig::new(settings());
    for n in 1..=2 {
        rig.publish(n, true, 10);
    }
    let connect = |rig: &mut Rig, by| {
        let spec = ConsumerSpec {
            tag: "keeper".into(),
            channel: 0,
            flow_mode: crate::FlowMode::Prefetch,
            prefetch: 2,
            no_ack: false,
            exclusive: false,
            priority: 0,
            arguments: Table::default(),
            filter: None,
        };
        let next = crate::EpochConsumer {
            consumer: ConsumerId(1),
            spec,
            settled: None,
            epoch: crate::SessionEpoch::New,
            at: 0,
        };
        let out = rig.request(by, RequestBody::TakeOver(Box::new(next)));
        let marks = deliveries(&out).iter().map(|d| d.mark()).collect();
        let marks: Vec<Option<crate::MessageId>> = marks;
        marks
    };
    let first = connect(&mut rig, 1);
    assert_eq!(first.len(), 2);
    assert!(first[0].is_some() && first[0] != first[1]);
    assert_eq!(connect(&mut rig, 2), first);
}
