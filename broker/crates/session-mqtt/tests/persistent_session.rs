//! A persistent session under faults between its connections: each acknowledged publish reaches the
//! subscriber, in order, and exactly once with QoS 2 unless the node is killed.

use crate::fake::World;
use codec_mqtt::{AckKind, Qos, ReasonCode, Version};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug)]
enum Step {
    Publish(Qos),
    /// The subscriber sends its next acknowledgement.
    Answer,
    /// Its connection breaks; it reconnects at the next step that needs it.
    Cut,
    /// It reconnects before its broken connection is noticed.
    TakeOver,
    /// Delays the requests of its connection to the queue, and delivers them.
    Delay,
    DeliverDelayed,
    /// A delayed request of an earlier connection reaches the queue.
    TakeOverConsumer,
    /// The node is killed.
    Kill,
}

fn steps(kills: bool) -> impl Strategy<Value = Step> {
    let qos = prop_oneof![Just(Qos::AtLeastOnce), Just(Qos::ExactlyOnce)];
    prop_oneof![
        6 => qos.prop_map(Step::Publish),
        8 => Just(Step::Answer),
        1 => Just(Step::Cut),
        1 => Just(Step::TakeOver),
        1 => Just(Step::Delay),
        1 => Just(Step::DeliverDelayed),
        1 => Just(Step::TakeOverConsumer),
        u32::from(kills) => Just(Step::Kill),
    ]
}

/// A subscriber that keeps the session state that the standard requires (section 4.3.3, method B),
/// and its application.
struct Subscriber {
    version: Version,
    connection: usize,
    /// Packet identifiers of QoS 2 that await PUBREL.
    received: BTreeSet<u16>,
    pending_acks: VecDeque<(AckKind, u16)>,
    delivered: Vec<u32>,
}

impl Subscriber {
    fn connect(w: &mut World, version: Version) -> usize {
        let c = w.open(version);
        w.connect(c, |connect| {
            connect.client_id = "keeper";
            connect.clean_start = false;
            if version.is_5() {
                connect.properties.session_expiry = Some(3600);
                connect.properties.receive_maximum = std::num::NonZeroU16::new(4);
            }
        });
        c
    }

    fn reconnect(&mut self, w: &mut World) {
        self.connection = Subscriber::connect(w, self.version);
        self.pending_acks.clear();
    }

    fn read(&mut self, w: &mut World) {
        for line in w.output(self.connection) {
            let mut words = line.split(' ');
            match words.next() {
                Some("PUBLISH") => self.message(&line),
                Some("PUBREL") => {
                    let id = words.next().and_then(|id| id.parse().ok());
                    let id = id.expect("an identifier");
                    self.received.remove(&id);
                    self.pending_acks.push_back((AckKind::PubComp, id));
                }
                _ => {}
            }
        }
    }

    fn message(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let payload = words[2].parse().expect("a number");
        let id: u16 = words[4][1..].parse().expect("an identifier");
        match words[3] {
            "q1" => {
                self.delivered.push(payload);
                self.pending_acks.push_back((AckKind::PubAck, id));
            }
            _ => {
                if self.received.insert(id) {
                    self.delivered.push(payload);
                }
                self.pending_acks.push_back((AckKind::PubRec, id));
            }
        }
    }

    fn answer(&mut self, w: &mut World) -> bool {
        self.read(w);
        if w.is_closed(self.connection) {
            self.reconnect(w);
            self.read(w);
        }
        let Some((kind, id)) = self.pending_acks.pop_front() else {
            return false;
        };
        w.ack(self.connection, kind, id, ReasonCode::Success);
        self.read(w);
        true
    }
}

/// The result of a script: the acknowledged publishes by QoS, the messages that the application
/// got, and the length of the queue.
fn play(version: Version, script: Vec<Step>) -> (BTreeMap<u32, Qos>, Vec<u32>, usize) {
    let mut w = World::default();
    let mut s = Subscriber {
        version,
        connection: Subscriber::connect(&mut w, version),
        received: BTreeSet::new(),
        pending_acks: VecDeque::new(),
        delivered: Vec::new(),
    };
    w.output(s.connection);
    w.subscribe(s.connection, "a", Qos::ExactlyOnce);
    let mut p = w.client(Version::V5, "p");
    let mut acknowledged = BTreeMap::new();
    for (n, step) in (1u32..).zip(script) {
        match step {
            Step::Publish(qos) => {
                w.publish(p, "a", qos, 1, &n.to_string());
                let output = w.output(p);
                if output == ["PUBACK 1"] || output == ["PUBREC 1"] {
                    acknowledged.insert(n, qos);
                }
                if qos == Qos::ExactlyOnce {
                    w.ack(p, AckKind::PubRel, 1, ReasonCode::Success);
                    w.output(p);
                }
            }
            Step::Answer => drop(s.answer(&mut w)),
            Step::Cut => {
                s.read(&mut w);
                w.cut(s.connection);
            }
            Step::TakeOver => {
                s.read(&mut w);
                s.reconnect(&mut w);
            }
            Step::Delay => w.delay(s.connection),
            Step::DeliverDelayed => w.deliver_delayed(),
            Step::TakeOverConsumer => {
                s.read(&mut w);
                w.take_over_consumer("keeper");
            }
            Step::Kill => {
                s.read(&mut w);
                w.kill();
                p = w.client(Version::V5, "p");
            }
        }
    }
    w.deliver_delayed();
    while s.answer(&mut w) {}
    let queue = w.node.session_queue("keeper").expect("the session's queue");
    (acknowledged, s.delivered, w.node.queue_len(queue.id))
}

/// The numbers in the order of their first occurrence.
fn first_occurrences(delivered: &[u32]) -> Vec<u32> {
    let mut seen = BTreeSet::new();
    let all = delivered.iter().copied();
    all.filter(|n| seen.insert(*n)).collect()
}

proptest! {
    #[test]
    fn acknowledged_publishes_arrive_in_order(five: bool, script in vec(steps(true), 1..120)) {
        let version = if five { Version::V5 } else { Version::V311 };
        let (acknowledged, delivered, remaining) = play(version, script);
        let all: Vec<u32> = acknowledged.keys().copied().collect();
        prop_assert_eq!(first_occurrences(&delivered), all);
        prop_assert_eq!(remaining, 0, "the queue keeps what was acknowledged");
    }

    #[test]
    fn qos_2_is_exactly_once_without_restart(five: bool, script in vec(steps(false), 1..120)) {
        let version = if five { Version::V5 } else { Version::V311 };
        let (acknowledged, delivered, _) = play(version, script);
        for (n, qos) in acknowledged.iter().filter(|(_, qos)| **qos == Qos::ExactlyOnce) {
            let times = delivered.iter().filter(|d| *d == n).count();
            prop_assert_eq!(times, 1, "{} of {:?}", n, qos);
        }
    }
}
