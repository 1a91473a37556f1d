//! Frames from peers that no correct host sends. None may end the process.

use crate::harness::{Cluster, GROUP, voters};
use bytes::{BufMut, Bytes, BytesMut};
use consensus::RaftHost;
use env::{NodeId, Rng, SeededRng};
use std::time::Duration;

fn varint(out: &mut BytesMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Numbers near the given ones, and extreme ones.
fn random_number(rng: &mut SeededRng, near: &[u64]) -> u64 {
    match rng.below(10) {
        0 => 0,
        1 => rng.next_u64() >> 2,
        2 => (1 << 62) - 1,
        _ => {
            let base = near[rng.below(near.len() as u64) as usize];
            (base + rng.below(7)).saturating_sub(3)
        }
    }
}

/// A well-formed frame of any kind with arbitrary fields.
fn random_frame(rng: &mut SeededRng, terms: &[u64], indexes: &[u64]) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(1);
    let kind = 1 + rng.below(15) as u8;
    out.put_u8(kind);
    varint(&mut out, GROUP.0);
    if kind >= 11 {
        // The id of a transfer.
        varint(&mut out, rng.below(5));
    }
    if kind <= 11 {
        varint(&mut out, random_number(rng, terms));
    }
    if matches!(kind, 2..=6) {
        out.put_u8(rng.below(4) as u8);
    }
    let fields = match kind {
        1 => 0,
        2 => 4,
        3 | 5 => 4,
        4 | 6 => 2,
        7 | 8 | 10 => 1,
        11 => 4,
        13 => 1,
        _ => 0,
    };
    for field in 0..fields {
        let near = if field % 2 == 0 { indexes } else { terms };
        varint(&mut out, random_number(rng, near));
    }
    match kind {
        1 => {
            varint(&mut out, random_number(rng, indexes));
            varint(&mut out, random_number(rng, terms));
            varint(&mut out, random_number(rng, indexes));
            let count = rng.below(4);
            varint(&mut out, count);
            for _ in 0..count {
                out.put_u8(rng.below(4) as u8);
                varint(&mut out, random_number(rng, terms));
                let len = rng.below(20);
                varint(&mut out, len);
                out.put_bytes(7, len as usize);
            }
        }
        11 => {
            let mut members = BytesMut::new();
            for count in [1 + rng.below(4), rng.below(2)] {
                varint(&mut members, count);
                (0..count).for_each(|_| members.put_u64_le(rng.below(5)));
            }
            varint(&mut out, members.len() as u64);
            out.put_slice(&members);
        }
        12 => {
            varint(&mut out, rng.below(4));
            out.put_u8(rng.below(2) as u8);
            let len = rng.below(40);
            varint(&mut out, len);
            (0..len).for_each(|_| out.put_u8(rng.next_u64() as u8));
        }
        _ => {}
    }
    out.freeze()
}

/// One host receives only arbitrary frames, from members and other nodes, in every role.
#[test]
fn arbitrary_frames_do_not_panic_a_host() {
    for seed in crate::harness::seeds(0, 60) {
        println!("SEEDS={seed}..{}", seed + 1);
        let mut cluster = Cluster::new(seed, 3);
        let joiner = seed % 5 == 4;
        let members = if joiner { voters(2..=4) } else { voters(1..=3) };
        cluster.create(GROUP, &members);
        if seed % 2 == 0 && !joiner {
            cluster.elect(GROUP);
            for n in 0..(seed % 7) * 20 {
                cluster.commit(GROUP, n % 2 == 0, 30);
            }
        }
        let victim = match seed % 3 {
            0 => cluster.leader(GROUP).unwrap_or(NodeId(1)),
            n => NodeId(n),
        };
        // Only the victim's own behaviour is checked: commits made up by an attacker are not valid elsewhere.
        let others = cluster.ids().into_iter().filter(|n| *n != victim);
        for other in others.collect::<Vec<_>>() {
            cluster.crash(other);
        }
        let mut rng = SeededRng::new(seed);
        for round in 0..1500 {
            let Some(status) = cluster.nodes[&victim].status(GROUP) else {
                break;
            };
            let terms = [status.term, status.term + 1, 1];
            let indexes = [
                status.commit,
                status.last_index,
                status.first_index,
                status.applied,
            ];
            let from = NodeId(1 + rng.below(6));
            let frame = random_frame(&mut rng, &terms, &indexes);
            let node = cluster.nodes.get_mut(&victim).expect("node exists");
            let host = node.host.as_mut().expect("host runs");
            host.receive(from, frame);
            if round % 3 == 0 {
                // The oracle must not compare histories forged by the attacker.
                cluster.oracle = crate::harness::Oracle::default();
                cluster.step();
            }
        }
        let counters = cluster.nodes[&victim].host.as_ref().map(|h| h.counters());
        assert!(counters.is_some_and(|c| c.refused > 0), "{counters:?}");
    }
}

#[test]
fn noise_is_counted_and_valid_frames_are_processed() {
    let mut cluster = Cluster::new(3, 3);
    cluster.create(GROUP, &voters(1..=3));
    cluster.elect(GROUP);
    let mut rng = SeededRng::new(9);
    for _ in 0..500 {
        let len = rng.below(60) as usize;
        let noise: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
        let to = NodeId(1 + rng.below(3));
        let from = NodeId(1 + to.0 % 3);
        let node = cluster.nodes.get_mut(&to).expect("node exists");
        let host = node.host.as_mut().expect("host runs");
        host.receive(from, noise.into());
        cluster.step();
    }
    cluster.converge(GROUP);
    let bad: u64 = cluster
        .nodes
        .values()
        .filter_map(|n| n.host.as_ref())
        .map(|h| h.counters().bad_frames)
        .sum();
    assert!(bad > 400);
    cluster.run(Duration::from_secs(1));
}
