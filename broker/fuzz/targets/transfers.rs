//! A follower that was away, and a leader that sends it entries and pieces of a checkpoint, over a net that does what the script
//! says to each frame.

use crate::script::Script;
use bytes::Bytes;
use consensus::{GroupId, Host, HostConfig, HostLimits, Membership, HostOutput, RaftHost};
use env::sim::SimDisk;
use env::{Incarnation, NodeId, Time};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

const GROUP: GroupId = GroupId(1);
const STATE: usize = 3000;
const TICK: Duration = Duration::from_millis(100);

/// What a host may hold: the state that is sent, several times over, and some thousand bytes of entries.
const MEMORY: usize = 1 << 20;

/// Frames under way at the most; older ones are lost.
const UNDER_WAY: usize = 64;

struct Member {
    host: Host,
    disk: SimDisk,
    applied: u64,
}

impl Member {
    fn new(id: u64) -> Member {
        let disk = SimDisk::new();
        let config = HostConfig {
            node: NodeId(id),
            incarnation: Incarnation(1),
            shards: 1,
            shard: 0,
            seed: id,
            limits: HostLimits {
                max_message_bytes: 256,
                max_frame_bytes: 1024,
                checkpoint_entries: 8,
                retain_entries: 2,
                max_state_bytes: 4096,
                transfer_chunk_bytes: 256,
                transfer_timeout_ticks: 20,
                ..HostLimits::default()
            },
        };
        let host = Host::new(config, Arc::new(disk.clone()), BTreeMap::new()).expect("empty");
        Member {
            host,
            disk,
            applied: 0,
        }
    }
}

struct Pair {
    members: [Member; 2],
    now: Time,
    /// From the first to the second, and back.
    frames: [VecDeque<Bytes>; 2],
}

impl Pair {
    fn new() -> Pair {
        let mut pair = Pair {
            members: [Member::new(1), Member::new(2)],
            now: Time(1),
            frames: [VecDeque::new(), VecDeque::new()],
        };
        // The second has no part in it yet: what it gets it gets from the first.
        let membership = Membership {
            voters: vec![NodeId(1)],
            learners: vec![NodeId(2)],
        };
        for (at, other) in [(0, 2), (1, 1)] {
            let host = &mut pair.members[at].host;
            host.create(GROUP, &membership);
            host.peer_up(NodeId(other), Incarnation(1), 1);
        }
        pair
    }

    fn turn(&mut self) {
        for at in 0..2 {
            self.members[at].host.tick(self.now);
            for _ in 0..8 {
                let mut out = Vec::new();
                self.members[at].host.poll(&mut out);
                if out.is_empty() {
                    break;
                }
                out.into_iter().for_each(|output| self.carry_out(at, output));
            }
            let held = self.members[at].host.memory();
            assert!(held <= MEMORY, "{held} bytes");
        }
    }

    fn carry_out(&mut self, at: usize, output: HostOutput) {
        let member = &mut self.members[at];
        match output {
            HostOutput::Append { token, .. } => member.host.durable(token),
            HostOutput::Job { id, job } => {
                let result = job.run(&member.disk);
                assert!(result.is_ok(), "{result:?}");
                member.host.job_done(id, result);
            }
            HostOutput::Committed { entries, .. } => {
                for entry in entries {
                    assert!(entry.index > member.applied, "{} again", entry.index);
                    member.applied = entry.index;
                }
            }
            HostOutput::Restore { index, state, .. } => {
                assert!(state.len() <= STATE && index > member.applied);
                member.applied = index;
            }
            HostOutput::CheckpointDue { group } => {
                let state = Bytes::from(vec![7; STATE]);
                member.host.checkpoint(group, member.applied, state, Default::default());
            }
            HostOutput::Send { frame, .. } => {
                let way = &mut self.frames[at];
                way.push_back(frame);
                if way.len() > UNDER_WAY {
                    way.pop_front();
                }
            }
            HostOutput::Failed { error, .. } => panic!("{error}"),
            _ => {}
        }
    }

    /// One frame arrives, or what the script makes of it.
    fn arrives(&mut self, way: usize, what: u8, script: &mut Script<'_>) {
        let frames = &mut self.frames[way];
        let at = match what & 8 {
            0 => 0,
            _ => script.number() as usize % frames.len().max(1),
        };
        let Some(frame) = frames.remove(at) else {
            return;
        };
        let mut bytes = frame.to_vec();
        match what % 8 {
            0..=2 => {}
            3 => return,
            4 => frames.push_back(frame),
            5 => {
                let at = script.number() as usize % bytes.len().max(1);
                let flip = script.byte().unwrap_or(1);
                bytes.iter_mut().skip(at).take(1).for_each(|b| *b ^= flip);
            }
            6 => bytes.truncate(script.number() as usize % (bytes.len() + 1)),
            _ => {
                let at = script.number() as usize % (bytes.len() + 1);
                let more = script.bytes();
                bytes.splice(at..at, more.iter().copied());
            }
        }
        let from = NodeId(way as u64 + 1);
        self.members[1 - way].host.receive(from, bytes.into());
    }
}

pub fn run(script: &mut Script<'_>) {
    let mut pair = Pair::new();
    // The first leads by itself after a while, and has a checkpoint that the other lacks.
    for _ in 0..40 {
        pair.now = pair.now + TICK;
        pair.turn();
    }
    for n in 0..24u8 {
        let _ = pair.members[0].host.propose(GROUP, Bytes::from(vec![n; 20]));
        pair.turn();
    }
    while let Some(step) = script.byte() {
        match step % 4 {
            0 => pair.arrives(0, step >> 2, script),
            1 => pair.arrives(1, step >> 2, script),
            2 => {
                let ticks = u64::from(step >> 2).min(30);
                for _ in 0..ticks {
                    pair.now = pair.now + TICK;
                    pair.turn();
                }
            }
            _ => match step >> 2 {
                0..16 => {
                    let command = Bytes::from(vec![step; 20]);
                    let _ = pair.members[0].host.propose(GROUP, command);
                }
                16..32 => pair.members[usize::from(step >> 2) % 2]
                    .host
                    .peer_down(NodeId(2 - u64::from(step >> 2) % 2)),
                _ => {
                    let at = usize::from(step >> 2) % 2;
                    let host = &mut pair.members[at].host;
                    host.peer_up(NodeId(2 - at as u64), Incarnation(1), 1);
                }
            },
        }
        pair.turn();
    }
}
