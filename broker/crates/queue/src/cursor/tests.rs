//! Cursors over lost messages, lost replicas and truncation.

use super::memory::{MemoryBatch, MemoryLog};
use super::{
    AddressedCursorEvent, CursorClient, CursorEvent, CursorNotice, CursorSend, CursorSource,
    CursorSpec, CursorStart,
};
use crate::{ConsumerId, SessionId};
use bytes::Bytes;
use env::{NodeId, WallTime};
use message::Table;
use proptest::prelude::*;
use std::collections::VecDeque;

const CURSOR: ConsumerId = ConsumerId(3);

fn session() -> SessionId {
    SessionId {
        number: 9,
        ..SessionId::default()
    }
}

fn spec(start: CursorStart) -> CursorSpec {
    CursorSpec {
        tag: "c".into(),
        channel: 1,
        start,
        arguments: Table::default(),
    }
}

/// Messages `numbers`, each one byte.
fn batch(numbers: std::ops::Range<u64>) -> MemoryBatch {
    let messages = numbers.map(|n| Bytes::from(vec![n as u8])).collect();
    MemoryBatch {
        producer: None,
        sequences: Vec::new(),
        messages,
    }
}

/// Two replicas, one client, and a link that loses what it is told to lose.
struct Rig {
    replicas: [MemoryLog; 2],
    client: CursorClient,
    to_replica: VecDeque<CursorSend>,
    to_client: VecDeque<CursorEvent>,
    started_at: Option<u64>,
    /// Offset and content of each message.
    read: Vec<(u64, u8)>,
    batches: u64,
}

impl Rig {
    fn new(start: CursorStart, credit: u64) -> Rig {
        let mut client = CursorClient::new(CURSOR, spec(start), vec![NodeId(0), NodeId(1)], credit);
        let first = client.attach();
        Rig {
            replicas: Default::default(),
            client,
            to_replica: VecDeque::from([first]),
            to_client: VecDeque::new(),
            started_at: None,
            read: Vec::new(),
            batches: 0,
        }
    }

    fn publish(&mut self, count: u64) {
        let next = self.replicas[0].next();
        self.replicas[0].publish(WallTime(next), batch(next..next + count));
        let leader = self.replicas[0].clone();
        self.replicas[1].replicate(&leader);
    }

    fn replica_turn(&mut self) {
        let mut out: Vec<AddressedCursorEvent> = Vec::new();
        if let Some(CursorSend { to, request }) = self.to_replica.pop_front() {
            self.replicas[to.0 as usize].handle(session(), request, &mut out);
        }
        for replica in &mut self.replicas {
            while replica.send_batches(4, &mut out) {}
        }
        self.to_client
            .extend(out.into_iter().map(|sent| sent.event));
    }

    fn client_turn(&mut self) {
        let Some(event) = self.to_client.pop_front() else {
            return;
        };
        let mut notices = Vec::new();
        let send = self.client.handle(event, &mut notices);
        self.to_replica.extend(send);
        for notice in notices {
            match notice {
                CursorNotice::Attached { next } => {
                    assert_eq!(self.started_at.replace(next), None, "started twice");
                }
                CursorNotice::Batch(batch) => {
                    self.batches += 1;
                    assert_eq!(batch.bytes.len(), batch.count as usize);
                    let contents = batch.bytes.iter().copied();
                    self.read.extend((batch.first..).zip(contents));
                }
                CursorNotice::Refused { text } => panic!("{text}"),
            }
        }
    }

    /// Delivers everything, and repeats what may be lost, until nothing changes.
    fn settle(&mut self) {
        for _ in 0..20 {
            while !self.to_replica.is_empty() || !self.to_client.is_empty() {
                self.replica_turn();
                self.client_turn();
            }
            let send = match self.client.is_attached() {
                true => self.client.probe(),
                false => self.client.attach(),
            };
            self.to_replica.push_back(send);
            self.replica_turn();
        }
    }
}

#[test]
fn start_selects_the_first_message() {
    let cases = [
        (CursorStart::First, 2),
        (CursorStart::Last, 5),
        (CursorStart::Next, 9),
        (CursorStart::Offset(3), 3),
        (CursorStart::Offset(0), 0),
        (CursorStart::Timestamp(WallTime(3)), 5),
    ];
    for (start, expected) in cases {
        let mut rig = Rig::new(start, 10);
        rig.publish(2);
        rig.publish(3);
        rig.publish(4);
        rig.replicas.iter_mut().for_each(|r| r.truncate(2));
        rig.settle();
        assert_eq!(rig.started_at, Some(expected), "{start:?}");
        // A cursor below the oldest message goes on there.
        let offsets: Vec<u64> = rig.read.iter().map(|(offset, _)| *offset).collect();
        assert_eq!(offsets, (expected.max(2)..9).collect::<Vec<_>>());
    }
}

#[test]
fn credit_counts_batches() {
    let mut rig = Rig::new(CursorStart::First, 2);
    for _ in 0..5 {
        rig.publish(2);
    }
    rig.settle();
    assert_eq!((rig.batches, rig.client.credit()), (2, 0));
    let more = rig.client.add_credit(1);
    // Repeated credit is not added again.
    rig.to_replica.extend([more.clone(), more]);
    rig.settle();
    assert_eq!((rig.batches, rig.read.len()), (3, 6));
}

#[test]
fn cursor_continues_at_another_replica() {
    let mut rig = Rig::new(CursorStart::First, 100);
    rig.publish(3);
    rig.settle();
    let attach = rig.client.node_lost(NodeId(0)).unwrap();
    assert_eq!(attach.to, NodeId(1));
    rig.to_replica.push_back(attach);
    rig.publish(2);
    rig.settle();
    assert_eq!(rig.client.node_lost(NodeId(0)), None);
    let offsets: Vec<u64> = rig.read.iter().map(|(offset, _)| *offset).collect();
    assert_eq!(offsets, [0, 1, 2, 3, 4]);
    assert_eq!(rig.client.set_replicas(vec![NodeId(0), NodeId(1)]), None);
    let moved = rig.client.set_replicas(vec![NodeId(0)]).unwrap();
    assert_eq!(moved.to, NodeId(0));
}

#[test]
fn duplicate_messages_of_a_producer_are_dropped() {
    let mut log = MemoryLog::default();
    let named = |first: u64, count: u64| MemoryBatch {
        producer: Some("p".into()),
        sequences: (first..first + count).collect(),
        ..batch(first..first + count)
    };
    assert_eq!(log.publish(WallTime(1), named(1, 3)), 3);
    // After a reconnection, the producer sends again what was not confirmed.
    assert_eq!(log.publish(WallTime(2), named(2, 4)), 2);
    assert_eq!(log.publish(WallTime(3), named(2, 2)), 0);
    assert_eq!(log.next(), 5);
    let another = MemoryBatch {
        producer: Some("q".into()),
        ..named(1, 1)
    };
    assert_eq!(log.publish(WallTime(4), another), 1);
    let unordered = MemoryBatch {
        sequences: vec![2, 1],
        ..named(1, 2)
    };
    assert!(!unordered.is_valid());
    let incomplete = MemoryBatch {
        sequences: vec![1],
        ..named(1, 2)
    };
    assert!(!incomplete.is_valid());
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Publish(u64),
    Replica,
    Client,
    Credit(u64),
    LoseRequest,
    LoseEvent,
    Probe,
    /// The replica that serves the cursor restarts.
    Restart(usize),
    LoseNode(u64),
    Truncate,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1u64..4).prop_map(Step::Publish),
        6 => Just(Step::Replica),
        6 => Just(Step::Client),
        2 => (1u64..4).prop_map(Step::Credit),
        1 => Just(Step::LoseRequest),
        1 => Just(Step::LoseEvent),
        2 => Just(Step::Probe),
        1 => (0usize..2).prop_map(Step::Restart),
        1 => (0u64..2).prop_map(Step::LoseNode),
        1 => Just(Step::Truncate),
    ]
}

proptest! {
    /// Every message is read once, in order and with its content, whatever is lost on the way; except messages that
    /// retention removed before they were read. Batches never exceed the credit.
    #[test]
    fn each_message_is_read_once(steps in prop::collection::vec(step(), 0..120)) {
        let mut rig = Rig::new(CursorStart::First, 2);
        let mut granted = 2;
        let mut truncated = false;
        for step in steps {
            match step {
                Step::Publish(count) => rig.publish(count),
                Step::Replica => rig.replica_turn(),
                Step::Client => rig.client_turn(),
                Step::Credit(batches) => {
                    granted += batches;
                    let send = rig.client.add_credit(batches);
                    rig.to_replica.push_back(send);
                }
                Step::LoseRequest => drop(rig.to_replica.pop_front()),
                Step::LoseEvent => drop(rig.to_client.pop_front()),
                Step::Probe => {
                    let send = match rig.client.is_attached() {
                        true => rig.client.probe(),
                        false => rig.client.attach(),
                    };
                    rig.to_replica.push_back(send);
                }
                Step::Restart(at) => rig.replicas[at].forget_cursors(),
                Step::LoseNode(node) => {
                    let send = rig.client.node_lost(NodeId(node));
                    rig.to_replica.extend(send);
                }
                Step::Truncate => {
                    let below = rig.replicas[0].next() / 2;
                    rig.replicas.iter_mut().for_each(|r| r.truncate(below));
                    truncated = true;
                }
            }
            prop_assert!(rig.batches <= granted, "{} batches of {granted}", rig.batches);
        }
        let send = rig.client.add_credit(1000);
        rig.to_replica.push_back(send);
        rig.settle();
        let started = rig.started_at.unwrap();
        let offsets: Vec<u64> = rig.read.iter().map(|(offset, _)| *offset).collect();
        prop_assert!(offsets.is_sorted_by(|a, b| a < b), "{offsets:?}");
        prop_assert!(rig.read.iter().all(|(offset, content)| *offset as u8 == *content));
        if !truncated {
            prop_assert_eq!(offsets, (started..rig.replicas[0].next()).collect::<Vec<_>>());
        } else {
            let retained = rig.replicas[0].first().max(started)..rig.replicas[0].next();
            prop_assert!(retained.into_iter().all(|offset| offsets.contains(&offset)));
        }
    }
}
