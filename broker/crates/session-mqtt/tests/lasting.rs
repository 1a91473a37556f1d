//! A session that lasts, whatever happens between its connections: what a publisher was told is safe reaches the subscriber, in
//! order, and with QoS 2 once while the node lives.

mod fake;

use codec_mqtt::{AckKind, Qos, Reason, Version};
use fake::World;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Debug)]
enum Step {
    Publish(Qos),
    /// The subscriber says the next thing that it owes.
    Answer,
    /// Its connection breaks; it comes back with the next step that needs it.
    Cut,
    /// It comes back before its broken connection is noticed.
    TakeOver,
    /// From now on its queue hears of its connection late; and now it does.
    Delay,
    Hear,
    /// A request of an earlier connection to its queue was on its way for long, and comes now.
    Usurp,
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
        1 => Just(Step::Hear),
        1 => Just(Step::Usurp),
        u32::from(kills) => Just(Step::Kill),
    ]
}

/// A subscriber that keeps what the standard wants it to keep (section 4.3.3, method B), and its application.
struct Subscriber {
    version: Version,
    connection: usize,
    /// Packet identifiers of QoS 2 that await PUBREL.
    received: BTreeSet<u16>,
    owes: VecDeque<(AckKind, u16)>,
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

    fn again(&mut self, w: &mut World) {
        self.connection = Subscriber::connect(w, self.version);
        self.owes.clear();
    }

    fn read(&mut self, w: &mut World) {
        for epoch in w.said(self.connection) {
            let mut words = epoch.split(' ');
            match words.next() {
                Some("PUBLISH") => self.message(&epoch),
                Some("PUBREL") => {
                    let id = words.next().and_then(|id| id.parse().ok());
                    let id = id.expect("an identifier");
                    self.received.remove(&id);
                    self.owes.push_back((AckKind::PubComp, id));
                }
                _ => {}
            }
        }
    }

    fn message(&mut self, epoch: &str) {
        let words: Vec<&str> = epoch.split(' ').collect();
        let payload = words[2].parse().expect("a number");
        let id: u16 = words[4][1..].parse().expect("an identifier");
        match words[3] {
            "q1" => {
                self.delivered.push(payload);
                self.owes.push_back((AckKind::PubAck, id));
            }
            _ => {
                if self.received.insert(id) {
                    self.delivered.push(payload);
                }
                self.owes.push_back((AckKind::PubRec, id));
            }
        }
    }

    fn answer(&mut self, w: &mut World) -> bool {
        self.read(w);
        if w.is_closed(self.connection) {
            self.again(w);
            self.read(w);
        }
        let Some((kind, id)) = self.owes.pop_front() else {
            return false;
        };
        w.ack(self.connection, kind, id, Reason::Success);
        self.read(w);
        true
    }
}

/// What came of a script: what was acknowledged, by QoS, and what the application got.
fn play(version: Version, script: Vec<Step>) -> (BTreeMap<u32, Qos>, Vec<u32>, usize) {
    let mut w = World::default();
    let mut s = Subscriber {
        version,
        connection: Subscriber::connect(&mut w, version),
        received: BTreeSet::new(),
        owes: VecDeque::new(),
        delivered: Vec::new(),
    };
    w.said(s.connection);
    w.subscribe(s.connection, "a", Qos::ExactlyOnce);
    let mut p = w.client(Version::V5, "p");
    let mut safe = BTreeMap::new();
    for (n, step) in (1u32..).zip(script) {
        match step {
            Step::Publish(qos) => {
                w.publish(p, "a", qos, 1, &n.to_string());
                let told = w.said(p);
                if told == ["PUBACK 1"] || told == ["PUBREC 1"] {
                    safe.insert(n, qos);
                }
                if qos == Qos::ExactlyOnce {
                    w.ack(p, AckKind::PubRel, 1, Reason::Success);
                    w.said(p);
                }
            }
            Step::Answer => drop(s.answer(&mut w)),
            Step::Cut => {
                s.read(&mut w);
                w.cut(s.connection);
            }
            Step::TakeOver => {
                s.read(&mut w);
                s.again(&mut w);
            }
            Step::Delay => w.delay(s.connection),
            Step::Hear => w.hear(),
            Step::Usurp => {
                s.read(&mut w);
                w.usurp("keeper");
            }
            Step::Kill => {
                s.read(&mut w);
                w.kill();
                p = w.client(Version::V5, "p");
            }
        }
    }
    w.hear();
    while s.answer(&mut w) {}
    let queue = w.node.stored("keeper").expect("the session's queue");
    (safe, s.delivered, w.node.kept(queue.id))
}

/// The numbers in the order in which they came first.
fn firsts(delivered: &[u32]) -> Vec<u32> {
    let mut seen = BTreeSet::new();
    let all = delivered.iter().copied();
    all.filter(|n| seen.insert(*n)).collect()
}

proptest! {
    #[test]
    fn what_is_safe_arrives_in_order(five: bool, script in vec(steps(true), 1..120)) {
        let version = if five { Version::V5 } else { Version::V311 };
        let (safe, delivered, left) = play(version, script);
        let all: Vec<u32> = safe.keys().copied().collect();
        prop_assert_eq!(firsts(&delivered), all);
        prop_assert_eq!(left, 0, "the queue keeps what was acknowledged");
    }

    #[test]
    fn exactly_once_holds_while_the_node_lives(five: bool, script in vec(steps(false), 1..120)) {
        let version = if five { Version::V5 } else { Version::V311 };
        let (safe, delivered, _) = play(version, script);
        for (n, qos) in safe.iter().filter(|(_, qos)| **qos == Qos::ExactlyOnce) {
            let times = delivered.iter().filter(|d| *d == n).count();
            prop_assert_eq!(times, 1, "{} of {:?}", n, qos);
        }
    }
}
