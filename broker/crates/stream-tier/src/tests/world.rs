//! Three replicas, leaders that do not know that they were deposed, and a store with faults, under a seed. The naive model is
//! the list of committed chunks.

use super::*;
use crate::fault::{self, Fault};
use crate::jobs::TierJob;
use crate::{MemoryFaults, RemoteRead};
use env::{Rng, SeededRng};

const NODES: usize = 3;
const STEPS: usize = 600;

struct World {
    rng: SeededRng,
    store: MemoryStore,
    nodes: Vec<Node>,
    jobs: Vec<Option<TierJob>>,
    /// The epoch in which a replica believes that it leads.
    leads: Vec<Option<u64>>,
    /// The leader and its epoch.
    leader: (usize, u64),
    /// Committed chunks, in order.
    truth: Vec<Chunk>,
    /// Chunks that only the leader has.
    uncommitted: Vec<Bytes>,
    /// In milliseconds.
    now: u64,
}

fn faults(rng: &mut SeededRng) -> MemoryFaults {
    let mut chance = |limit| {
        if rng.chance(1, 2) {
            rng.below(limit)
        } else {
            0
        }
    };
    MemoryFaults {
        fails: chance(60),
        fails_after: chance(60),
        wrong_write: chance(60),
        wrong_read: chance(60),
        lost_write: chance(60),
        is_gone: chance(10) == 1,
        capacity: match chance(10) {
            1 => Some(10_000),
            _ => None,
        },
    }
}

impl World {
    fn new(seed: u64) -> World {
        let store = MemoryStore::new(seed ^ 1);
        let mut world = World {
            rng: SeededRng::new(seed),
            nodes: (0..NODES).map(|_| Node::new(&store)).collect(),
            jobs: (0..NODES).map(|_| None).collect(),
            leads: vec![None; NODES],
            leader: (0, 1),
            truth: Vec::new(),
            uncommitted: Vec::new(),
            now: 1_000,
            store,
        };
        world.lead(0, Some(1));
        world
    }

    fn time(&self) -> Time {
        Time(self.now * 1_000_000)
    }

    fn lead(&mut self, node: usize, epoch: Option<u64>) {
        let now = self.time();
        self.leads[node] = epoch;
        self.nodes[node].tier.set_leading(epoch, now);
    }

    fn node(&mut self) -> usize {
        self.rng.below(NODES as u64) as usize
    }

    fn append(&mut self) {
        let (leader, epoch) = self.leader;
        let len = 50 + self.rng.below(200) as usize;
        let body = vec![self.rng.next_u64() as u8; len];
        let chunks = self.nodes[leader].append(epoch, self.now, &body);
        self.uncommitted.extend(chunks);
        if self.rng.chance(1, 4) {
            self.commit();
        }
    }

    fn commit(&mut self) {
        let chunks = std::mem::take(&mut self.uncommitted);
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if at != self.leader.0 {
                node.accept(&chunks);
            }
            let end = node.log.next_offset();
            node.log.commit(end);
        }
        let decode = |chunk| Chunk::decode(chunk).expect("valid");
        self.truth.extend(chunks.into_iter().map(decode));
    }

    /// Another replica leads. The old leader finds out now or later, but it drops what nobody else has now, as it could be
    /// read by nobody.
    fn elect(&mut self) {
        let (old, epoch) = self.leader;
        self.uncommitted.clear();
        let end = self.truth.last().map_or(0, |c| c.header().next_offset());
        self.nodes[old].log.truncate(end).expect("still");
        self.nodes[old].maintain();
        self.leader = (self.node(), epoch + 1);
        if self.leader.0 != old && self.rng.chance(1, 3) {
            self.lead(old, None);
        }
        self.lead(self.leader.0, Some(epoch + 1));
    }

    fn step(&mut self) {
        self.now += self.rng.below(2_000);
        let at = self.node();
        match self.rng.below(100) {
            0..22 => self.append(),
            22..23 => self.elect(),
            23..26 if at != self.leader.0 => self.lead(at, None),
            26..27 => {
                // The process starts again.
                self.jobs[at] = None;
                self.nodes[at].tier = new_tier(&self.nodes[at].remote);
                self.leads[at] = None;
                if at == self.leader.0 {
                    self.elect();
                }
            }
            27..29 => {
                let faults = faults(&mut self.rng);
                self.store.set_faults(faults);
            }
            29..31 => self.store.set_faults(MemoryFaults::default()),
            31..60 => {
                let (now, wall) = (self.time(), WallTime(self.now));
                let node = &mut self.nodes[at];
                if self.jobs[at].is_none() {
                    let none = Retention::default();
                    self.jobs[at] = node.tier.take_job(now, wall, none, &mut node.log);
                }
            }
            60..90 => {
                let now = self.time();
                if let Some(job) = self.jobs[at].take() {
                    let node = &mut self.nodes[at];
                    node.tier.done(now, job.run(&node.disk));
                }
            }
            90..95 => self.release(at),
            _ => self.read(at),
        }
    }

    /// Deletes local segments, after which the store must have every committed chunk that the replica lacks, in manifests that
    /// any replica finds.
    fn release(&mut self, at: usize) {
        if !self.nodes[at].release(self.now) {
            return;
        }
        let copy = self.sound_copy();
        let mut reader = new_tier(&copy);
        let empty = &mut Node::new(&self.store).log;
        let job = reader.take_job(Time(0), WallTime(0), Retention::default(), empty);
        reader.done(Time(0), job.expect("loads").run(&self.nodes[at].disk));
        let local = self.nodes[at].log.first_offset();
        for chunk in &self.truth {
            let offset = chunk.header().first_offset;
            if offset < local {
                let read = reader.read_offset(offset, local);
                expect_chunk(read.expect("the store has the segment"), chunk);
            }
        }
    }

    /// The objects in a store without faults.
    fn sound_copy(&self) -> Arc<Remote> {
        let copy = MemoryStore::new(0);
        for (key, object) in self.store.objects() {
            copy.set(&key, Some(object));
        }
        Arc::new(Remote::new(Box::new(copy), PREFIX))
    }

    /// A read returns the right messages or an error.
    fn read(&mut self, at: usize) {
        if self.truth.is_empty() || !self.nodes[at].tier.is_loaded() {
            return;
        }
        let chunk = self.rng.below(self.truth.len() as u64) as usize;
        let chunk = &self.truth[chunk];
        if let Ok(found) = self.nodes[at].read(chunk.header().first_offset) {
            assert_eq!(found.as_ref().ok(), Some(chunk), "replica {at}");
        }
    }

    /// The store works again: everything reaches it, and every replica reads everything.
    fn heal(&mut self) {
        self.store.set_faults(MemoryFaults::default());
        self.commit();
        let leader = self.leader.0;
        for at in 0..NODES {
            if let Some(job) = self.jobs[at].take() {
                let now = self.time();
                let node = &mut self.nodes[at];
                node.tier.done(now, job.run(&node.disk));
            }
            if at != leader {
                self.lead(at, None);
            }
        }
        for _ in 0..4 {
            self.now += 100_000;
            for at in [leader, 0, 1, 2] {
                self.nodes[at].work(self.now, Retention::default());
            }
        }
        for at in 0..NODES {
            self.release(at);
            let node = &mut self.nodes[at];
            let is_short = node.log.segments().len() <= 2;
            assert!(is_short, "replica {at}: {:?}", node.tier);
            for chunk in &self.truth {
                let offset = chunk.header().first_offset;
                assert_eq!(node.read(offset), Ok(Ok(chunk.clone())), "offset {offset}");
            }
        }
    }
}

fn expect_chunk(mut read: RemoteRead, chunk: &Chunk) {
    (read.max_bytes, read.max_chunks) = (1, 1);
    let result = read.run();
    assert_eq!((result.error, result.chunks.first()), (None, Some(chunk)));
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step();
    }
    world.heal();
}

#[test]
fn nothing_is_lost_and_nothing_wrong_is_read_with_faults() {
    for seed in 0..60 {
        let result = std::panic::catch_unwind(|| run(seed));
        assert!(result.is_ok(), "seed {seed}");
    }
}

#[test]
fn planted_faults_are_found() {
    for planted in [
        Fault::UploadsUncommitted,
        Fault::NotVerified,
        Fault::DeletesBeforePublish,
        Fault::StaleLeaderPublishes,
        Fault::WrongBytesAccepted,
    ] {
        fault::plant(Some(planted));
        let found = (0..60).find(|seed| std::panic::catch_unwind(|| run(*seed)).is_err());
        fault::plant(None);
        assert!(found.is_some(), "{planted:?} is not found");
    }
}
