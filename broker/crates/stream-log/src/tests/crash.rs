//! Crashes: the process ends or power fails at any point, and the log is recovered.
//!
//! The oracle keeps the content that every offset ever had in the current history. After a crash the log must be a front of
//! that history, at least up to the sealed segments, with the tracking data of that front.

use super::*;
use crate::fault::{self, Fault};
use crate::{Retention, Tracking};
use env::{Rng, SeededRng};
use std::collections::BTreeMap;

/// Seeds that the tests run.
const SEEDS: u64 = 400;
/// Seeds within which each planted fault is found.
const PLANTED_SEEDS: u64 = 4_000;

/// Length of every message: equal lengths make it likely that old bytes fit where new ones are.
const MESSAGE_BYTES: usize = 180;

type Check = Result<(), String>;

fn ensure(holds: bool, what: impl FnOnce() -> String) -> Check {
    if holds { Ok(()) } else { Err(what()) }
}

struct World {
    rng: SeededRng,
    disk: SimDisk,
    log: StreamLog,
    /// Body by offset.
    history: BTreeMap<u64, Vec<u8>>,
    /// Tracking data by the end of each chunk.
    tracking: BTreeMap<u64, Tracking>,
    /// Epoch by first offset of each chunk.
    epochs: BTreeMap<u64, u64>,
    epoch: u64,
    now: u64,
    bodies: u32,
    /// First offset of which the segment may have been deleted.
    retained: u64,
    /// Offset up to which the log is durable.
    durable: u64,
    /// Offset of a truncation whose job was interrupted.
    truncating: Option<u64>,
    /// Chunks up to here were written, so they survive a restart.
    written: u64,
}

impl World {
    fn new(seed: u64) -> World {
        let disk = SimDisk::new();
        let (log, _) = open(&disk);
        World {
            rng: SeededRng::new(seed),
            disk,
            log,
            history: BTreeMap::new(),
            tracking: BTreeMap::from([(0, Tracking::default())]),
            epochs: BTreeMap::new(),
            epoch: 1,
            now: 1000,
            bodies: 0,
            retained: 0,
            durable: 0,
            truncating: None,
            written: 0,
        }
    }

    fn append(&mut self) {
        let before = self.log.next_offset();
        let mut builder = self.log.builder();
        for _ in 0..1 + self.rng.below(3) {
            self.bodies += 1;
            let body = self.bodies.to_be_bytes().repeat(MESSAGE_BYTES / 4);
            builder.push_message(&body, None).expect("fits");
        }
        if self.rng.below(2) == 0 {
            let producer = [self.rng.below(4) as u8];
            builder
                .set_sequence(&producer, self.bodies.into())
                .expect("fits");
        }
        if self.rng.below(4) == 0 {
            let name = [self.rng.below(4) as u8];
            builder.set_offset(&name, before).expect("fits");
        }
        self.now += 1;
        let first = self.bodies - builder.records() + 1;
        let appended = self
            .log
            .append(&mut builder, self.epoch, WallTime(self.now));
        let Ok(Some(header)) = appended else {
            return;
        };
        if header.first_offset > before {
            // The snapshot that started a segment.
            let mut tracking = self.tracking.get(&before).cloned().unwrap_or_default();
            tracking.drop_offsets_below(self.log.first_offset());
            self.tracking.insert(header.first_offset, tracking);
            self.epochs.insert(before, self.epoch);
        }
        for (n, offset) in (header.first_offset..header.next_offset()).enumerate() {
            let body = (first + n as u32).to_be_bytes().repeat(MESSAGE_BYTES / 4);
            self.history.insert(offset, body);
        }
        self.tracking
            .insert(header.next_offset(), self.log.tracking().clone());
        self.epochs.insert(header.first_offset, self.epoch);
    }

    /// Runs an append job, with readers while it is running. Returns false if power failed.
    fn write(&mut self) -> Result<bool, String> {
        let Some(job) = self.log.take_append() else {
            return Ok(true);
        };
        self.check_readable()?;
        let result = job.run(&self.disk);
        if self.disk.power_is_off() {
            return Ok(false);
        }
        self.log.append_done(result).map_err(|e| e.to_string())?;
        self.written = self.log.written();
        Ok(true)
    }

    /// Runs a maintenance job. Returns false if power failed.
    fn maintain(&mut self) -> Result<bool, String> {
        let sealed_before = self.log.segments().filter(|s| s.is_sealed).count();
        let Some(job) = self.log.take_maintenance() else {
            return Ok(true);
        };
        let result = job.run(&self.disk);
        if self.disk.power_is_off() {
            return Ok(false);
        }
        self.log
            .maintenance_done(result)
            .map_err(|e| e.to_string())?;
        if let Some(offset) = self.truncating.take_if(|_| !self.log.is_truncating()) {
            ensure(self.log.next_offset() == offset, || {
                format!("truncated at {offset}, ends at {}", self.log.next_offset())
            })?;
            self.forget_from(offset);
            // A segment that was sealed takes chunks again.
            self.durable = self.durable.min(offset);
            self.written = offset;
            if self.log.segments().len() == 0 {
                // Nothing is left, not even the position of the log.
                self.written = 0;
                self.tracking.insert(offset, Tracking::default());
            }
        }
        let sealed = self.log.segments().filter(|s| s.is_sealed);
        let sealed: Vec<u64> = sealed.map(|s| s.next_offset).collect();
        if sealed.len() > sealed_before {
            self.durable = self.durable.max(sealed.last().copied().unwrap_or(0));
        }
        Ok(true)
    }

    fn forget_from(&mut self, offset: u64) {
        self.history.retain(|at, _| *at < offset);
        self.epochs.retain(|first, _| *first < offset);
        self.tracking.retain(|end, _| *end <= offset);
    }

    fn commit(&mut self) {
        let committed = self.rng.below(self.log.written() + 1);
        self.log.commit(committed);
    }

    fn retain(&mut self) -> Check {
        let retention = Retention {
            max_bytes: Some(self.rng.below(5000)),
            max_age: None,
        };
        self.log.set_config(LogConfig {
            retention,
            ..config()
        });
        if self.log.retain(WallTime(self.now)) {
            self.retained = self.log.first_offset();
            let readable = self.log.readable();
            return ensure(self.retained <= readable, || {
                format!(
                    "retention deleted up to {}, committed are {readable}",
                    self.retained
                )
            });
        }
        Ok(())
    }

    /// A new leader lacks the newest chunks of this follower.
    fn truncate(&mut self) {
        let from = self.log.readable();
        let boundaries: Vec<u64> = self.epochs.range(from..).map(|(first, _)| *first).collect();
        if boundaries.is_empty() {
            return;
        }
        let offset = boundaries[self.rng.below(boundaries.len() as u64) as usize];
        if offset < self.log.next_offset() && self.log.truncate(offset).is_ok() {
            self.truncating = Some(offset);
            self.epoch += 1;
        }
    }

    /// Everything that was written can be read and is what was appended.
    fn check_readable(&mut self) -> Check {
        let view = self.log.replication_view();
        let chunks = read_chunks(&self.disk, &view, Start::First)
            .map_err(|e| format!("written chunks are not readable: {e}"))?;
        let found = messages(&chunks);
        let expected = self.history.range(view.first_offset()..view.end());
        let expected = expected.map(|(offset, body)| (*offset, body.clone()));
        ensure(expected.eq(found.iter().cloned()), || {
            format!(
                "messages up to {} differ from what was appended",
                view.end()
            )
        })
    }

    /// Ends the process, with power or without.
    fn crash(&mut self) -> Check {
        // A job that was interrupted did not finish because the process was killed, or because power failed.
        let mut is_restart = self.rng.below(3) == 0;
        match is_restart {
            true => {
                self.disk.cut_power_after(None);
                self.disk.restart();
            }
            false => self.disk.crash(&mut self.rng),
        }
        // Power may fail during recovery, too, or the process is killed again.
        while self.rng.below(4) == 0 {
            let changes = 1 + self.rng.below(6);
            self.disk.cut_power_after(Some(changes));
            let recovered = StreamLog::open(&self.disk, STREAM, config(), 0).map(drop);
            if self.disk.power_is_off() && self.rng.below(3) == 0 {
                self.disk.cut_power_after(None);
                self.disk.restart();
            } else if self.disk.power_is_off() {
                self.disk.crash(&mut self.rng);
                is_restart = false;
            } else {
                recovered.map_err(|e| e.to_string())?;
            }
        }
        self.disk.cut_power_after(None);
        let opened = StreamLog::open(&self.disk, STREAM, config(), 0);
        let (log, cut) = opened.map_err(|e| e.to_string())?;
        let loses = cut.as_ref().is_some_and(|cut| cut.has_lost_chunks);
        ensure(!is_restart || !loses, || {
            format!("a loss is reported after a restart: {cut:?}")
        })?;
        self.log = log;
        let (first, next) = (self.log.first_offset(), self.log.next_offset());
        // A running truncation may have removed any part above its offset.
        let interrupted = self.truncating.take();
        let limit = interrupted.unwrap_or(u64::MAX);
        let newest = self.tracking.last_key_value().map_or(0, |(end, _)| *end);
        ensure(next <= newest, || {
            format!("the log ends at {next}, appended were {newest}")
        })?;
        // Retention may have deleted all that was durable.
        let durable = self.durable.min(limit);
        let durable = if self.retained < durable { durable } else { 0 };
        ensure(next >= durable, || {
            format!("the log ends at {next}, durable were {durable}")
        })?;
        ensure(first <= self.retained.max(durable), || {
            format!("the log starts at {first}, kept were {}", self.retained)
        })?;
        if is_restart {
            // A truncation that leaves nothing does not keep the position of the log, and says so.
            let is_position_lost = interrupted.is_some() && self.log.segments().len() == 0;
            let written = match is_position_lost {
                true => 0,
                false => self.written.min(limit),
            };
            ensure(next >= written, || {
                format!("the log ends at {next} after a restart, written were {written}")
            })?;
        }
        self.forget_from(next);
        self.check_readable()?;
        let tracking = self.tracking.get(&next);
        if first < next {
            ensure(tracking == Some(self.log.tracking()), || {
                format!(
                    "tracking at {next}: {:?}, not {tracking:?}",
                    self.log.tracking()
                )
            })?;
        } else {
            // Everything was lost, including the tracking data.
            self.tracking.insert(next, Tracking::default());
        }
        let mut epochs: Vec<u64> = self
            .epochs
            .range(first..)
            .map(|(_, epoch)| *epoch)
            .collect();
        epochs.dedup();
        let found: Vec<u64> = self.log.epochs().iter().map(|e| e.epoch).collect();
        ensure(found == epochs, || {
            format!("epochs {found:?}, not {epochs:?}")
        })?;
        self.durable = next.min(self.durable);
        self.retained = first;
        self.written = next;
        // The replica follows another leader now, or leads in a new epoch.
        self.epoch += 1;
        // A second recovery finds the same log.
        if self.rng.below(2) == 0 {
            let (again, cut) = open(&self.disk.copy());
            ensure(again.next_offset() == next && cut.is_none(), || {
                format!(
                    "a second recovery ends at {}, not {next}: {cut:?}",
                    again.next_offset()
                )
            })?;
        }
        Ok(())
    }

    fn step(&mut self) -> Check {
        if self.rng.below(12) == 0 {
            let changes = 1 + self.rng.below(12);
            self.disk.cut_power_after(Some(changes));
        }
        if self.rng.below(30) == 0 {
            let used: u64 = self.disk.files().iter().map(|(_, len)| len).sum();
            let room = self.rng.below(600);
            self.disk.set_capacity(Some(used + room));
        } else {
            self.disk.set_capacity(None);
        }
        let has_power = match self.rng.below(16) {
            0..6 => {
                self.append();
                true
            }
            6..10 => self.write()?,
            10..12 => self.maintain()?,
            12 => {
                self.commit();
                true
            }
            13 => {
                self.retain()?;
                true
            }
            14 => {
                self.truncate();
                true
            }
            _ => {
                if !self.disk.power_is_off() {
                    self.check_readable()?;
                }
                true
            }
        };
        if !has_power || self.disk.power_is_off() || self.rng.below(25) == 0 {
            self.disk.set_capacity(None);
            return self.crash();
        }
        Ok(())
    }
}

fn run(seed: u64) -> Check {
    let mut world = World::new(seed);
    for step in 0..150 {
        world
            .step()
            .map_err(|what| format!("seed {seed}, step {step}: {what}"))?;
    }
    Ok(())
}

#[test]
fn log_is_a_front_of_its_history_after_crashes() {
    for seed in 0..SEEDS {
        if let Err(what) = run(seed) {
            panic!("{what}");
        }
    }
}

/// Each planted fault is found by the test above.
#[test]
fn planted_faults_are_found() {
    let faults = [
        Fault::SealBeforeSync,
        Fault::LaterSegmentsKept,
        Fault::TruncationNotSynced,
        Fault::RemovalNotCompleted,
        Fault::WrittenEarly,
        Fault::SnapshotIncomplete,
        Fault::UncommittedDeleted,
        Fault::FullForgotten,
    ];
    for planted in faults {
        let found = (0..PLANTED_SEEDS).find_map(|seed| {
            fault::plant(Some(planted));
            let found = run(seed).err();
            fault::plant(None);
            // Only the planted fault may be the cause.
            found.filter(|_| run(seed).is_ok())
        });
        assert!(found.is_some(), "{planted:?} was not found");
        println!("{planted:?}: {}", found.unwrap_or_default());
    }
}
