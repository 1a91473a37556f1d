//! What comes from other nodes: frames of a link, frames between shards, a Raft host that hears anything from members
//! and strangers, in any order with time and its own disk, one that hears a real leader whose frames are lost, doubled, mixed
//! up, cut, grown and bent, and a whole shard that gets any frame. No panic, bounded memory, and what is read is written the same.
#![no_main]
mod script;
mod shard_frames;
mod transfers;

use bytes::{Bytes, BytesMut};
use consensus::{
    GroupId, Host, HostConfig, HostLimits, Membership, MembershipChange, HostOutput, RaftHost,
};
use env::sim::SimDisk;
use env::{Disk, Incarnation, NodeId, Time};
use libfuzzer_sys::fuzz_target;
use node::wire;
use script::Script;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What a host may hold of frames that an input of 4 KiB made.
const MEMORY: usize = 1 << 20;

fuzz_target!(|input: &[u8]| {
    let mut script = Script(input);
    match script.byte().unwrap_or(0) % 5 {
        0 => link(script.0),
        1 => between_shards(script.0),
        2 => raft(&mut script),
        3 => transfers::run(&mut script),
        _ => shard_frames::run(&mut script),
    }
});

fn link(input: &[u8]) {
    for limit in [wire::MAX_HANDSHAKE_FRAME, wire::MAX_FRAME] {
        let mut input = BytesMut::from(input);
        while let Ok(Some(frame)) = wire::decode(&mut input, limit) {
            let mut written = BytesMut::from(&wire::encode(&frame)[..]);
            let again = wire::decode(&mut written, usize::MAX);
            assert_eq!(again.expect("its own frame"), Some(frame));
        }
    }
}

fn between_shards(input: &[u8]) {
    if let Ok(frame) = shard::Frame::decode(Bytes::copy_from_slice(input)) {
        let written = frame.encode();
        let again = shard::Frame::decode(written.clone()).expect("its own frame");
        // Not the frames themselves: a table may hold a number that is not equal to itself.
        assert_eq!(again.encode(), written);
    }
}

struct Node {
    host: Host,
    disk: SimDisk,
    now: Time,
    out: Vec<HostOutput>,
    /// Batches that are not durable yet, if the script holds them back.
    held: Vec<consensus::WalToken>,
    holds: bool,
}

const GROUPS: [GroupId; 2] = [GroupId(1), GroupId(2)];

/// A member of a group of three, and of a group of its own.
fn node() -> Node {
    let disk = SimDisk::new();
    let config = HostConfig {
        node: NodeId(1),
        incarnation: Incarnation(1),
        shards: 1,
        shard: 0,
        seed: 1,
        limits: HostLimits {
            max_message_bytes: 256,
            max_frame_bytes: 1024,
            checkpoint_entries: 8,
            retain_entries: 2,
            max_state_bytes: 4096,
            ..HostLimits::default()
        },
    };
    let shared: Arc<dyn Disk> = Arc::new(disk.clone());
    let host = Host::new(config, shared, BTreeMap::new()).expect("an empty disk");
    let mut node = Node {
        host,
        disk,
        now: Time(1),
        out: Vec::new(),
        held: Vec::new(),
        holds: false,
    };
    for (group, voters) in GROUPS.into_iter().zip([3, 1]) {
        node.host.create(
            group,
            &Membership {
                voters: (1..=voters).map(NodeId).collect(),
                learners: Vec::new(),
            },
        );
    }
    for n in 2..=3 {
        node.host.peer_up(NodeId(n), Incarnation(1), 1);
    }
    node.turn();
    node
}

impl Node {
    fn turn(&mut self) {
        self.host.tick(self.now);
        // Jobs and what is durable bring more to do.
        for _ in 0..8 {
            let mut out = std::mem::take(&mut self.out);
            self.host.poll(&mut out);
            if out.is_empty() {
                break;
            }
            for output in out.drain(..) {
                self.carry_out(output);
            }
            self.out = out;
        }
        assert!(self.host.memory() <= MEMORY, "{} bytes", self.host.memory());
    }

    fn carry_out(&mut self, output: HostOutput) {
        match output {
            HostOutput::Append { token, .. } if self.holds => self.held.push(token),
            HostOutput::Append { token, .. } => self.host.durable(token),
            HostOutput::Job { id, job } => {
                let result = job.run(&self.disk);
                assert!(result.is_ok(), "{result:?}");
                self.host.job_done(id, result);
            }
            HostOutput::CheckpointDue { group } => {
                let applied = self.host.status(group).map_or(0, |s| s.applied);
                let state = Bytes::from_static(b"state");
                self.host.checkpoint(group, applied, state, Default::default());
            }
            HostOutput::Failed { error, .. } => panic!("{error}"),
            _ => {}
        }
    }
}

fn raft(script: &mut Script<'_>) {
    let mut node = node();
    while let Some(step) = script.byte() {
        let group = GROUPS[usize::from(step >> 4) % GROUPS.len()];
        let from = NodeId(2 + u64::from(step >> 5) % 3);
        match step % 16 {
            0..=7 => {
                // The version is right, so that there is more to it.
                let frame = [&[1], script.bytes()].concat();
                node.host.receive(from, Bytes::from(frame));
            }
            8 => node
                .host
                .receive(from, Bytes::copy_from_slice(script.bytes())),
            9 => node.now = node.now + Duration::from_millis(100 * script.number().min(100)),
            10 => drop(
                node.host
                    .propose(group, Bytes::copy_from_slice(script.bytes())),
            ),
            11 => {
                let change = match script.byte().unwrap_or(0) % 3 {
                    0 => MembershipChange::AddLearner(from),
                    1 => MembershipChange::Promote(from),
                    _ => MembershipChange::Remove(from),
                };
                drop(node.host.change_membership(group, change));
            }
            12 => node.host.peer_down(from),
            13 => {
                let shards = 1 + (script.number() % 256) as u16;
                node.host.peer_up(from, Incarnation(script.number()), shards);
            }
            14 => {
                node.holds = !node.holds;
                for token in std::mem::take(&mut node.held) {
                    node.host.durable(token);
                }
            }
            _ => drop(node.host.transfer_leader(group, from)),
        }
        node.turn();
    }
}
