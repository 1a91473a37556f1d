//! A shard of one of three nodes, with a quorum queue and a classic one, that gets any frame from the two others.

use crate::script::Script;
use bytes::Bytes;
use env::sim::SimDisk;
use env::{Incarnation, NodeId, Time, WallTime};
use metadata::features::Version;
use metadata::{Change, Name, NodeRecord, QueueId, QueueType, QueueRecord, UserRecord};
use session::Protocols;
use shard::{Effect, Founding, Frame, RecoveredShard, Shard, ShardConfig, ShardDriver};
use std::sync::Arc;
use std::time::Duration;

/// What it may send in answer to an input of 4 KiB, in bytes, in one turn.
const ANSWERS: usize = 8 << 20;

struct Rig {
    shard: Shard,
    disk: SimDisk,
    now: Time,
    ended: bool,
}

fn record(id: u64) -> NodeRecord {
    NodeRecord {
        id: NodeId(id),
        name: format!("n{id}").into(),
        address: format!("n{id}:1").into(),
        voter: true,
        maintenance: false,
    }
}

fn config() -> ShardConfig {
    ShardConfig {
        node: NodeId(1),
        incarnation: Incarnation(1),
        name: "n1".into(),
        address: "n1:1".into(),
        client_addresses: Vec::new(),
        shards: 1,
        index: 0,
        // Alone at first, so that it leads and has queues; the others come later.
        founding: Some(Founding {
            cluster: "0123".into(),
            nodes: vec![record(1)],
            user: UserRecord {
                name: "guest".into(),
                password: None,
                tags: Vec::new(),
                limits: Vec::new(),
            },
            default_queue_type: None,
            features: Version::default().facts().features,
        }),
        seed: 1,
        placement: shard::Placement::default(),
        budget: shard::MemoryBudget::default(),
        // Its service takes frames of routers on other shards.
        protocols: Protocols::new(vec![Arc::new(session_mqtt::MqttProtocol {
            settings: Arc::new(session_mqtt::MqttSettings::default()),
        })]),
        program: Version::default(),
        machine: Box::from(*b"machine"),
        tier: None,
        groups: consensus::HostLimits::default(),
        resources: shard::ResourceMeter::default(),
        confirms: Default::default(),
        deliveries: Default::default(),
        restrictions: metadata::restrictions::Restrictions::none(),
        consumer_timeout: Default::default(),
    }
}

fn queue(name: &str, kind: QueueType) -> Change {
    let mut arguments = message::Table::default();
    arguments.set("x-queue-type", kind.name().into());
    Change::DeclareQueue(QueueRecord {
        id: QueueId(0),
        vhost: "/".into(),
        name: Name::from(name),
        kind,
        durable: true,
        auto_delete: false,
        exclusive: None,
        arguments,
        members: vec![NodeId(1)],
        declared_by: "guest".into(),
    })
}

impl Rig {
    fn new() -> Rig {
        let disk = SimDisk::new();
        let now = Time(1);
        let shard = Shard::new(
            config(),
            RecoveredShard::default(),
            Arc::new(disk.clone()),
            now,
            WallTime(1),
        );
        let mut rig = Rig {
            shard: shard.expect("an empty disk"),
            disk,
            now,
            ended: false,
        };
        rig.pass(40);
        for change in [
            queue("q", QueueType::Quorum),
            queue("c", QueueType::Classic),
            Change::PutNode(record(2)),
            Change::PutNode(record(3)),
        ] {
            let reply = Box::new(|result: Result<_, _>| assert!(result.is_ok(), "{result:?}"));
            rig.shard.control(control::ControlRequest::Change { change, reply });
            rig.pass(3);
        }
        for node in 2..=3 {
            rig.shard.peer_up(NodeId(node), Incarnation(1), 1);
        }
        rig.pass(3);
        rig
    }

    fn pass(&mut self, ticks: u64) {
        for _ in 0..ticks {
            self.now = self.now + Duration::from_millis(100);
            self.turn();
        }
    }

    fn turn(&mut self) {
        self.shard.tick(self.now, WallTime(self.now.0 / 1_000_000));
        let mut sent = 0;
        for _ in 0..16 {
            let mut effects = Vec::new();
            self.shard.poll(&mut effects);
            if effects.is_empty() {
                break;
            }
            for effect in effects {
                match effect {
                    Effect::Append { token, .. } => self.shard.durable(token),
                    Effect::Job { id, job } => {
                        let result = job.run(&self.disk);
                        self.shard.job_done(id, result);
                    }
                    Effect::Peer { frame, .. } => sent += frame.len(),
                    // Another node may say that this one was removed, and have a flag enabled.
                    Effect::Fatal(why) => {
                        let said = ["was removed", "does not know the feature flag"];
                        assert!(said.iter().any(|s| why.contains(s)), "{why}");
                        self.ended = true;
                        return;
                    }
                    _ => {}
                }
            }
        }
        assert!(sent <= ANSWERS, "{sent} bytes in one turn");
    }
}

pub fn run(script: &mut Script<'_>) {
    let mut rig = Rig::new();
    while !rig.ended
        && let Some(step) = script.byte()
    {
        let from = NodeId(2 + u64::from(step >> 7));
        match step % 8 {
            0..=4 => {
                let frame = Bytes::copy_from_slice(script.bytes());
                // Only what has a meaning goes on: that others are refused is seen elsewhere.
                if Frame::decode(frame.clone()).is_ok() {
                    rig.shard.peer_frame(from, frame);
                }
            }
            5 => rig.pass(u64::from(step >> 3).min(8)),
            6 => rig.shard.peer_down(from),
            _ => rig.shard.peer_up(
                from,
                Incarnation(u64::from(step >> 3) % 4),
                1 + u16::from(step >> 5),
            ),
        }
        rig.turn();
    }
}
