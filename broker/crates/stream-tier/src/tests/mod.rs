//! Tests of replicas with logs on simulated disks and a store with faults.

mod directed;
mod world;

use crate::{MemoryStore, ReadError, Remote, Tier, TierConfig};
use bytes::Bytes;
use env::sim::SimDisk;
use env::{Time, WallTime};
use ids::QueueId;
use std::sync::Arc;
use stream_log::{Chunk, ChunkReader, LogConfig, Retention, Start, StreamLog};

const STREAM: QueueId = QueueId(0xAB);
const PREFIX: &str = "cluster/";

fn log_config() -> LogConfig {
    LogConfig {
        max_segment_bytes: 600,
        ..LogConfig::default()
    }
}

/// Keep as little as possible on the disk.
const LOCAL: Retention = Retention {
    max_bytes: Some(1),
    max_age: None,
};

struct Node {
    disk: SimDisk,
    log: StreamLog,
    tier: Tier,
    remote: Arc<Remote>,
}

impl Node {
    fn new(store: &MemoryStore) -> Node {
        let disk = SimDisk::new();
        let (log, _) = StreamLog::open(&disk, STREAM, log_config(), 0).expect("opens");
        let remote = Arc::new(Remote::new(Box::new(store.clone()), PREFIX));
        let tier = new_tier(&remote);
        Node {
            disk,
            log,
            tier,
            remote,
        }
    }

    fn append(&mut self, epoch: u64, at: u64, body: &[u8]) -> Vec<Bytes> {
        let from = self.log.next_offset();
        let mut builder = self.log.builder();
        builder.push_message(body, None).expect("fits");
        let header = self.log.append(&mut builder, epoch, WallTime(at));
        header.expect("appended").expect("a chunk");
        let chunks = self.log.pending_from(from).cloned().collect();
        self.write();
        chunks
    }

    fn accept(&mut self, chunks: &[Bytes]) {
        for chunk in chunks {
            self.log.accept(chunk.clone()).expect("follows");
        }
        self.write();
    }

    fn write(&mut self) {
        while let Some(job) = self.log.take_append() {
            self.log.append_done(job.run(&self.disk)).expect("written");
        }
        self.maintain();
    }

    fn maintain(&mut self) {
        while let Some(job) = self.log.take_maintenance() {
            self.log
                .maintenance_done(job.run(&self.disk))
                .expect("done");
        }
    }

    /// Runs the jobs of the tier until there are none.
    fn work(&mut self, now: u64, retention: Retention) {
        let (now, wall) = (Time(now * 1_000_000), WallTime(now));
        while let Some(job) = self.tier.take_job(now, wall, retention, &mut self.log) {
            self.tier.done(now, job.run(&self.disk));
        }
    }

    /// Deletes local segments that are in the store. Returns true if there were any.
    fn release(&mut self, now: u64) -> bool {
        let cut = self.tier.local_cut(WallTime(now), &self.log);
        let any = cut.is_some_and(|cut| self.log.release_before(cut));
        self.maintain();
        any
    }

    /// The chunk at `offset`, from the store or the disk; the offset of the next one if there is none.
    fn read(&mut self, offset: u64) -> Result<Result<Chunk, u64>, ReadError> {
        let local = self.log.first_offset();
        if let Some(mut read) = self.tier.read_offset(offset, local) {
            (read.max_bytes, read.max_chunks) = (1, 1);
            let mut result = read.run();
            if let Some(error) = result.error {
                if let ReadError::Wrong { segment, .. } = &error {
                    self.tier.note_wrong(*segment);
                }
                return Err(error);
            }
            return Ok(result.chunks.pop().ok_or(result.next));
        }
        if offset < local {
            return Ok(Err(local));
        }
        let view = self.log.view();
        let start = Start::Offset(offset);
        let mut reader = ChunkReader::open(&self.disk, &view, start).expect("opens");
        let located = reader.next(&self.disk, &view).expect("reads");
        Ok(Ok(located.expect("a chunk").read().expect("reads")))
    }
}

fn new_tier(remote: &Arc<Remote>) -> Tier {
    let config = TierConfig {
        remote: remote.clone(),
        local: LOCAL,
    };
    Tier::new(STREAM, config, Time(0))
}
