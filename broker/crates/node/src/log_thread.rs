//! The thread of the write-ahead log: what all shards want durable, one sync for everything that waits (Q3, Q10).

use consensus::WalToken;
use reactor::{Inbound, Receiver, Sender, ToWal, Wake};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wal::{WalError, Writer};

/// Bytes that wait for a full disk; with more the shards' rings are left full, and clients wait.
const MAX_QUEUED: u64 = 64 << 20;

/// How soon a full disk is tried again.
const FULL_RETRY: Duration = Duration::from_millis(250);

/// How long the thread sleeps when nobody wakes it.
const IDLE: Duration = Duration::from_secs(60);

/// What the thread tells the node about the disk: true when it is full, false when there is space again.
pub type DiskFull = Box<dyn FnMut(bool) + Send>;

pub struct LogThread {
    writer: Writer<(usize, WalToken)>,
    rings: Vec<Receiver<ToWal>>,
    shards: Vec<Sender<Inbound>>,
    /// Newest file that each shard no longer needs.
    freed: Vec<u64>,
    deleted: u64,
    full: bool,
    on_full: DiskFull,
    durable: Vec<(usize, WalToken)>,
}

impl LogThread {
    /// `rings` and `shards` by shard index.
    pub fn new(
        writer: Writer<(usize, WalToken)>,
        rings: Vec<Receiver<ToWal>>,
        shards: Vec<Sender<Inbound>>,
        on_full: DiskFull,
    ) -> LogThread {
        LogThread {
            writer,
            freed: vec![0; rings.len()],
            rings,
            shards,
            deleted: 0,
            full: false,
            on_full,
            durable: Vec::new(),
        }
    }

    /// Runs until `stop` is set and everything that came before is written. An error is fatal to the node.
    pub fn run(mut self, wake: &Arc<Wake>, stop: &AtomicBool) -> Result<(), WalError> {
        loop {
            // Read first: what was sent before it was set is in the rings.
            let stopping = stop.load(Ordering::Acquire);
            let more = self.turn()?;
            if stopping && (self.writer.is_idle() || self.full) {
                return self.writer.close();
            }
            if more {
                wake.begin_turn();
                continue;
            }
            let backlog = self.shards.iter().any(|s| s.backlog() > 0);
            wake.wait(match (backlog, self.full) {
                (true, _) => Duration::from_millis(1),
                (false, true) => FULL_RETRY,
                (false, false) => IDLE,
            });
        }
    }

    /// Takes what waits, writes a part of it under one sync and answers. True when more waits.
    pub fn turn(&mut self) -> Result<bool, WalError> {
        self.take();
        if !self.writer.is_idle() {
            let progress = self.writer.step(&mut self.durable)?;
            self.note_full(progress.full);
            if let Some(rolled) = progress.rolled {
                // Before the answers for this step: those records are in the next file.
                tracing::info!(event = "wal.rolled", file = rolled.file);
                self.tell(|| Inbound::WalRolled { file: rolled.file });
            }
            self.answer();
        }
        self.delete_freed()?;
        for shard in &mut self.shards {
            shard.flush();
        }
        Ok(!self.full && (!self.writer.is_idle() || self.rings.iter().any(|r| !r.is_empty())))
    }

    fn take(&mut self) {
        for (shard, ring) in self.rings.iter_mut().enumerate() {
            while self.writer.queued_bytes() < MAX_QUEUED {
                match ring.receive() {
                    Some(ToWal::Append { token, records }) => {
                        self.writer.push((shard, token), records)
                    }
                    Some(ToWal::Free { up_to }) => {
                        if let Some(freed) = self.freed.get_mut(shard) {
                            *freed = up_to.max(*freed);
                        }
                    }
                    None => break,
                }
            }
        }
    }

    /// Tokens are durable in order, so the newest of each shard says all.
    fn answer(&mut self) {
        for (shard, sender) in self.shards.iter_mut().enumerate() {
            let newest = self.durable.iter().rev().find(|(s, _)| *s == shard);
            if let Some((_, token)) = newest {
                sender.send(Inbound::Durable(*token));
            }
        }
        self.durable.clear();
    }

    fn note_full(&mut self, full: bool) {
        if full != self.full {
            self.full = full;
            if full {
                tracing::error!(
                    event = "wal.disk_full",
                    "nothing is confirmed until there is space"
                );
            } else {
                tracing::info!(event = "wal.disk_has_space");
            }
            (self.on_full)(full);
        }
    }

    fn delete_freed(&mut self) -> Result<(), WalError> {
        let up_to = self.freed.iter().copied().min().unwrap_or(0);
        if up_to <= self.deleted {
            return Ok(());
        }
        match self.writer.wal().delete_through(up_to) {
            Ok(()) => {
                tracing::info!(event = "wal.deleted", up_to);
                self.deleted = up_to;
                Ok(())
            }
            // Starting the next file may need space that is not there: tried again with the next turn.
            Err(error) if !error.is_fatal() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn tell(&mut self, message: impl Fn() -> Inbound) {
        for shard in &mut self.shards {
            shard.send(message());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use env::sim::SimDisk;
    use env::{NodeId, SeededRng};
    use std::sync::Mutex;
    use wal::{Entry, GroupId, Record, RecordBody, Wal, WalConfig};

    struct Rig {
        disk: SimDisk,
        thread: LogThread,
        to_wal: Vec<Sender<ToWal>>,
        from_wal: Vec<Receiver<Inbound>>,
        full: Arc<Mutex<Vec<bool>>>,
    }

    type Result = std::result::Result<(), Box<dyn std::error::Error>>;

    fn config() -> WalConfig {
        WalConfig {
            max_file_bytes: 1 << 20,
            grow_bytes: 64 << 10,
            ..WalConfig::new(NodeId(1), 1)
        }
    }

    fn rig(disk: SimDisk) -> std::result::Result<Rig, WalError> {
        let (wal, _) = Wal::open(Arc::new(disk.clone()), config())?;
        let wake = Arc::new(Wake::for_thread());
        let (to_wal, rings) = (0..2).map(|_| reactor::ring(64, wake.clone())).unzip();
        let (shards, from_wal) = (0..2).map(|_| reactor::ring(1024, wake.clone())).unzip();
        let full = Arc::new(Mutex::new(Vec::new()));
        let seen = full.clone();
        let on_full = Box::new(move |on| seen.lock().expect("lock").push(on));
        Ok(Rig {
            disk,
            thread: LogThread::new(Writer::new(wal), rings, shards, on_full),
            to_wal,
            from_wal,
            full,
        })
    }

    fn append(group: u64, index: u64, size: usize) -> ToWal {
        let entry = Entry {
            index,
            term: 1,
            kind: 0,
            data: Bytes::from(vec![7; size]),
        };
        ToWal::Append {
            token: WalToken(index),
            records: vec![Record {
                group: GroupId(group),
                body: RecordBody::Entry(entry),
            }],
        }
    }

    fn said(ring: &mut Receiver<Inbound>) -> Vec<String> {
        let all = std::iter::from_fn(|| ring.receive());
        all.map(|i| match i {
            Inbound::Durable(token) => format!("durable {}", token.0),
            Inbound::WalRolled { file } => format!("rolled {file}"),
            _ => "other".to_owned(),
        })
        .collect()
    }

    #[test]
    fn one_sync_for_all_that_waits() -> Result {
        let mut rig = rig(SimDisk::new())?;
        rig.to_wal[0].send(append(2, 1, 10));
        rig.thread.turn()?;
        let before = rig.disk.counters().syncs;
        said(&mut rig.from_wal[0]);
        for i in 2..=30 {
            rig.to_wal[0].send(append(2, i, 100));
            rig.to_wal[1].send(append(3, i, 100));
        }
        assert!(!rig.thread.turn()?);
        assert_eq!(rig.disk.counters().syncs - before, 1);
        assert_eq!(said(&mut rig.from_wal[0]), ["durable 30"]);
        assert_eq!(said(&mut rig.from_wal[1]), ["durable 30"]);
        // What was said to be durable survives the worst crash.
        rig.disk.crash(&mut SeededRng::new(5));
        let (_, recovered) = Wal::open(Arc::new(rig.disk.clone()), config())?;
        let entries = |g| recovered.groups.get(&GroupId(g)).map(|g| g.entries.len());
        assert_eq!((entries(2), entries(3)), (Some(30), Some(29)));
        Ok(())
    }

    #[test]
    fn a_full_disk_confirms_nothing_loses_nothing_and_goes_on() -> Result {
        let mut rig = rig(SimDisk::new())?;
        rig.to_wal[0].send(append(2, 1, 10));
        rig.thread.turn()?;
        assert_eq!(said(&mut rig.from_wal[0]), ["durable 1"]);
        let used: u64 = rig.disk.files().iter().map(|(_, len)| len).sum();
        rig.disk.set_capacity(Some(used));
        for i in 2..=40 {
            rig.to_wal[0].send(append(2, i, 10_000));
        }
        assert!(!rig.thread.turn()?, "waits instead of spinning");
        let partly = said(&mut rig.from_wal[0]);
        assert!(!partly.contains(&"durable 40".to_owned()));
        assert!(!rig.thread.turn()?);
        assert_eq!(
            *rig.full.lock().map_err(|e| e.to_string())?,
            [true],
            "told once"
        );
        rig.disk.set_capacity(None);
        while rig.thread.turn()? {}
        assert_eq!(
            said(&mut rig.from_wal[0]).last().map(String::as_str),
            Some("durable 40")
        );
        assert_eq!(*rig.full.lock().map_err(|e| e.to_string())?, [true, false]);
        let (_, recovered) = Wal::open(Arc::new(rig.disk.clone()), config())?;
        let entries = recovered.groups.get(&GroupId(2)).map(|g| g.entries.clone());
        let indexes: Vec<u64> = entries
            .unwrap_or_default()
            .iter()
            .map(|e| e.index)
            .collect();
        assert_eq!(indexes, (1..=40).collect::<Vec<_>>());
        Ok(())
    }

    #[test]
    fn a_full_disk_bounds_what_is_taken() -> Result {
        let mut rig = rig(SimDisk::new())?;
        rig.disk.set_capacity(Some(4096));
        for i in 1..=200 {
            rig.to_wal[0].send(append(2, i, 1 << 20));
        }
        rig.thread.turn()?;
        rig.to_wal[0].flush();
        rig.thread.turn()?;
        rig.to_wal[0].flush();
        assert!(rig.thread.writer.queued_bytes() < MAX_QUEUED + (2 << 20));
        assert!(rig.to_wal[0].backlog() > 0);
        Ok(())
    }

    #[test]
    fn a_failed_sync_is_fatal_and_nothing_is_said() -> Result {
        let mut rig = rig(SimDisk::new())?;
        rig.to_wal[0].send(append(2, 1, 10));
        rig.thread.turn()?;
        said(&mut rig.from_wal[0]);
        rig.disk.fail_syncs_after(Some(0));
        rig.to_wal[0].send(append(2, 2, 10));
        let error = rig.thread.turn().err().ok_or("must fail")?;
        assert!(error.is_fatal());
        assert!(said(&mut rig.from_wal[0]).is_empty());
        Ok(())
    }

    #[test]
    fn files_go_when_every_shard_has_freed_them() -> Result {
        let mut rig = rig(SimDisk::new())?;
        for i in 1..=40 {
            rig.to_wal[0].send(append(2, i, 100_000));
            rig.thread.turn()?;
        }
        let told = said(&mut rig.from_wal[0]);
        let rolled: Vec<&String> = told.iter().filter(|t| t.starts_with("rolled")).collect();
        assert!(rolled.len() >= 2);
        assert_eq!(said(&mut rig.from_wal[1]).len(), rolled.len());
        let files = rig.thread.writer.wal().files();
        let oldest = files.first().copied().ok_or("no file")?;
        rig.to_wal[0].send(ToWal::Free { up_to: oldest });
        rig.thread.turn()?;
        assert_eq!(rig.thread.writer.wal().files(), files);
        rig.to_wal[1].send(ToWal::Free { up_to: oldest });
        rig.thread.turn()?;
        assert_eq!(rig.thread.writer.wal().files()[..], files[1..]);
        Ok(())
    }

    #[test]
    fn rolled_comes_before_what_the_new_file_holds() -> Result {
        let mut rig = rig(SimDisk::new())?;
        let mut told = Vec::new();
        for i in 1..=30 {
            rig.to_wal[0].send(append(2, i, 100_000));
            rig.thread.turn()?;
            told.extend(said(&mut rig.from_wal[0]));
        }
        let at = told
            .iter()
            .position(|t| t.starts_with("rolled"))
            .ok_or("never rolled")?;
        // Every entry said to be durable before lies in files up to that one: exactly those are gone without it.
        let before = at as u64;
        let file: u64 = told[at].trim_start_matches("rolled ").parse()?;
        rig.thread.writer.wal().delete_through(file)?;
        let (_, recovered) = Wal::open(Arc::new(rig.disk.clone()), config())?;
        let group = recovered.groups.get(&GroupId(2)).ok_or("no group")?;
        assert_eq!(group.entries.first().map(|e| e.index), Some(before + 1));
        Ok(())
    }
}
