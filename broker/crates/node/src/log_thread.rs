//! The thread of the write-ahead log: collects the records of all shards and makes them durable
//! with one sync.

use consensus::WalToken;
use control::NodeTimings;
use env::{Clock, Disk};
use reactor::{Receiver, Sender, ShardMessage, ThreadWaker, WalMessage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use wal::{WalError, Writer};

/// Maximum number of bytes queued while the disk is full. Beyond it the shards' rings fill up, and
/// clients wait.
const MAX_QUEUED: u64 = 64 << 20;

/// Publishers are blocked below this free space, whatever `disk_free_limit` says: the rest is
/// reserved for settlements, deletions and the checkpoints that free the log.
pub(crate) const KEEP_FREE: u64 = 32 << 20;

/// Publishers are unblocked at this multiple of the limit.
const CLEAR_FACTOR: u64 = 2;

/// Retry interval for a full disk.
const FULL_RETRY: Duration = Duration::from_millis(250);

/// Sleep time of an idle thread.
const IDLE: Duration = Duration::from_secs(60);

/// Minimum time from the start of a sync of a stream of records to the start of the next one. A sync
/// costs some 0.1 ms of processor time with the wake-ups around it, whatever it covers.
const STREAM_SYNC_INTERVAL: Duration = Duration::from_micros(500);

/// Minimum number of bytes per sync of a stream. Clients may wait for fewer one by one, and must not
/// wait longer.
const STREAM_SYNC_BYTES: u64 = 2 << 10;

/// Called when the disk becomes (almost) full (true) or has space again (false).
pub type DiskFullCallback = Box<dyn FnMut(bool) + Send>;

/// The disk that holds the log.
pub struct LogDisk {
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// For log messages.
    pub directory: String,
    /// Free disk space in bytes below which the disk counts as full; see `KEEP_FREE`.
    pub keep_free: u64,
    /// Called when the disk becomes full, and when it has space again.
    pub on_full: DiskFullCallback,
}

/// The thread that writes and syncs the write-ahead log.
pub struct LogThread {
    writer: Writer<(usize, WalToken)>,
    rings: Vec<Receiver<WalMessage>>,
    shards: Vec<Sender<ShardMessage>>,
    /// The newest file that each shard no longer needs.
    freed: Vec<u64>,
    deleted: u64,
    /// A write failed for lack of space.
    is_full: bool,
    /// Free space is below `keep_free`.
    is_short: bool,
    space: LogDisk,
    durable: Vec<(usize, WalToken)>,
    clock: Arc<dyn Clock + Send + Sync>,
    timings: Arc<NodeTimings>,
    /// Before the next turn, so that its sync covers more records.
    delay: Duration,
}

impl LogThread {
    /// `rings` and `shards` are indexed by shard.
    pub fn new(
        writer: Writer<(usize, WalToken)>,
        rings: Vec<Receiver<WalMessage>>,
        shards: Vec<Sender<ShardMessage>>,
        space: LogDisk,
        (clock, timings): (Arc<dyn Clock + Send + Sync>, Arc<NodeTimings>),
    ) -> LogThread {
        LogThread {
            writer,
            freed: vec![0; rings.len()],
            rings,
            shards,
            deleted: 0,
            is_full: false,
            is_short: false,
            space,
            durable: Vec::new(),
            delay: Duration::ZERO,
            clock,
            timings,
        }
    }

    /// Runs until `stop` is set and all previous records are written. An error is fatal to the
    /// node.
    pub fn run(mut self, wake: &Arc<ThreadWaker>, stop: &AtomicBool) -> Result<(), WalError> {
        loop {
            // Read before the turn: records sent before it was set are already in the rings.
            let stopping = stop.load(Ordering::Acquire);
            let more = self.turn()?;
            if stopping && (self.writer.is_idle() || self.is_full) {
                return self.writer.close();
            }
            wait(self.delay);
            if more {
                wake.begin_turn();
                continue;
            }
            wake.wait(self.pause());
        }
    }

    /// Sleep time unless another thread wakes this one.
    fn pause(&self) -> Duration {
        let backlog = self.shards.iter().any(|s| s.backlog() > 0);
        // Files whose deletion failed may be what keeps the disk full.
        let lacks_space = self.alarmed() || self.deletable() > self.deleted;
        match (backlog, lacks_space) {
            (true, _) => Duration::from_millis(1),
            (false, true) => FULL_RETRY,
            (false, false) => IDLE,
        }
    }

    /// Takes queued records, writes a part of them with one sync, and notifies the shards. Returns
    /// true if there is more to write.
    pub fn turn(&mut self) -> Result<bool, WalError> {
        self.delay = Duration::ZERO;
        self.take();
        if self.is_short || !self.writer.is_idle() {
            self.look_at_space()?;
        }
        if !self.writer.is_idle() {
            let begun = self.clock.now();
            let progress = self.writer.step(&mut self.durable)?;
            let duration = self.clock.now().since(begun);
            self.timings.log_writes.observe(duration);
            self.delay = delay_after(progress.bytes, duration);
            self.note_full(progress.full);
            if let Some(rolled) = progress.rolled {
                // Sent before the notifications of this step: their records are in the next file.
                tracing::info!(event = "wal.rolled", file = rolled.file);
                self.tell(|| ShardMessage::WalRolled { file: rolled.file });
            }
            self.answer();
        }
        self.delete_freed()?;
        for shard in &mut self.shards {
            shard.flush();
        }
        Ok(!self.is_full && (!self.writer.is_idle() || self.rings.iter().any(|r| !r.is_empty())))
    }

    fn take(&mut self) {
        for (shard, ring) in self.rings.iter_mut().enumerate() {
            while self.writer.queued_bytes() < MAX_QUEUED {
                match ring.receive() {
                    Some(WalMessage::Append { token, records }) => {
                        self.writer.push((shard, token), records)
                    }
                    Some(WalMessage::Free { up_to }) => {
                        if let Some(freed) = self.freed.get_mut(shard) {
                            *freed = up_to.max(*freed);
                        }
                    }
                    None => break,
                }
            }
        }
    }

    /// Tokens become durable in order, so the newest one per shard is sufficient.
    fn answer(&mut self) {
        for (shard, sender) in self.shards.iter_mut().enumerate() {
            let newest = self.durable.iter().rev().find(|(s, _)| *s == shard);
            if let Some((_, token)) = newest {
                sender.send(ShardMessage::Durable(*token));
            }
        }
        self.durable.clear();
    }

    /// When space is short, files are kept short as well, so that records of settled messages are
    /// soon in a file that can be deleted.
    fn look_at_space(&mut self) -> Result<(), WalError> {
        let Ok(free) = self.space.disk.available() else {
            // If free space is unknown, continue: the write reports its own failure.
            return Ok(());
        };
        let bound = match self.is_short {
            true => self.space.keep_free * CLEAR_FACTOR,
            false => self.space.keep_free,
        };
        if (free < bound) == self.is_short {
            return Ok(());
        }
        let before = self.alarmed();
        self.is_short = !self.is_short;
        let directory = &self.space.directory;
        if self.is_short {
            tracing::warn!(
                event = "wal.disk_short",
                directory,
                free,
                "publishers wait until there is space"
            );
        } else {
            tracing::info!(event = "wal.disk_has_space", directory, free);
        }
        self.tell_space(before);
        match self.writer.wal().save_space(self.is_short) {
            // Shortening files is an optimization: continue without it.
            Err(error) if !error.is_fatal() => Ok(()),
            other => other,
        }
    }

    fn note_full(&mut self, is_full: bool) {
        if is_full == self.is_full {
            return;
        }
        let before = self.alarmed();
        self.is_full = is_full;
        let directory = &self.space.directory;
        if is_full {
            let error = self.writer.full_error();
            tracing::error!(
                event = "wal.disk_full",
                directory,
                error,
                "nothing is confirmed until the log can be written"
            );
        } else {
            tracing::info!(event = "wal.disk_written_again", directory);
        }
        self.tell_space(before);
    }

    fn alarmed(&self) -> bool {
        self.is_full || self.is_short
    }

    fn tell_space(&mut self, before: bool) {
        let now = self.alarmed();
        if before != now {
            (self.space.on_full)(now);
        }
    }

    /// The newest file that no shard needs.
    fn deletable(&self) -> u64 {
        self.freed.iter().copied().min().unwrap_or(0)
    }

    fn delete_freed(&mut self) -> Result<(), WalError> {
        let up_to = self.deletable();
        if up_to <= self.deleted {
            return Ok(());
        }
        match self.writer.wal().delete_through(up_to) {
            Ok(()) => {
                tracing::info!(event = "wal.deleted", up_to);
                self.deleted = up_to;
                Ok(())
            }
            // Starting the next file may fail for lack of space: it is retried soon.
            Err(error) if !error.is_fatal() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn tell(&mut self, message: impl Fn() -> ShardMessage) {
        for shard in &mut self.shards {
            shard.send(message());
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the delay between two syncs is time, not a condition"
)]
fn wait(time: Duration) {
    if !time.is_zero() {
        std::thread::sleep(time);
    }
}

/// The delay after a sync of this many bytes that took this long.
fn delay_after(bytes: u64, took: Duration) -> Duration {
    match bytes >= STREAM_SYNC_BYTES {
        true => STREAM_SYNC_INTERVAL.saturating_sub(took),
        false => Duration::ZERO,
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

    struct TestThread {
        disk: SimDisk,
        thread: LogThread,
        to_wal: Vec<Sender<WalMessage>>,
        from_wal: Vec<Receiver<ShardMessage>>,
        is_full: Arc<Mutex<Vec<bool>>>,
    }

    type Result = std::result::Result<(), Box<dyn std::error::Error>>;

    fn config() -> WalConfig {
        WalConfig {
            max_file_bytes: 1 << 20,
            grow_bytes: 64 << 10,
            ..WalConfig::new(NodeId(1), 1)
        }
    }

    fn rig(disk: SimDisk) -> std::result::Result<TestThread, WalError> {
        let (wal, _) = Wal::open(Arc::new(disk.clone()), config())?;
        let wake = Arc::new(ThreadWaker::for_thread());
        let (to_wal, rings) = (0..2).map(|_| reactor::ring(64, wake.clone())).unzip();
        let (shards, from_wal) = (0..2).map(|_| reactor::ring(1024, wake.clone())).unzip();
        let is_full = Arc::new(Mutex::new(Vec::new()));
        let seen = is_full.clone();
        let space = LogDisk {
            disk: Arc::new(disk.clone()),
            directory: "simulated".to_owned(),
            keep_free: 0,
            on_full: Box::new(move |on| seen.lock().expect("lock").push(on)),
        };
        Ok(TestThread {
            disk,
            thread: LogThread::new(
                Writer::new(wal),
                rings,
                shards,
                space,
                (Arc::new(env::real::RealClock::new()), Arc::default()),
            ),
            to_wal,
            from_wal,
            is_full,
        })
    }

    fn append(group: u64, index: u64, size: usize) -> WalMessage {
        let entry = Entry {
            index,
            term: 1,
            kind: 0,
            data: Bytes::from(vec![7; size]),
        };
        WalMessage::Append {
            token: WalToken(index),
            records: vec![Record {
                group: GroupId(group),
                body: RecordBody::Entry(entry),
            }],
        }
    }

    fn drain_notifications(ring: &mut Receiver<ShardMessage>) -> Vec<String> {
        let all = std::iter::from_fn(|| ring.receive());
        all.map(|i| match i {
            ShardMessage::Durable(token) => format!("durable {}", token.0),
            ShardMessage::WalRolled { file } => format!("rolled {file}"),
            _ => "other".to_owned(),
        })
        .collect()
    }

    #[test]
    fn one_sync_covers_all_queued_records() -> Result {
        let mut rig = rig(SimDisk::new())?;
        rig.to_wal[0].send(append(2, 1, 10));
        rig.thread.turn()?;
        let before = rig.disk.counters().syncs;
        drain_notifications(&mut rig.from_wal[0]);
        for i in 2..=30 {
            rig.to_wal[0].send(append(2, i, 100));
            rig.to_wal[1].send(append(3, i, 100));
        }
        assert!(!rig.thread.turn()?);
        assert_eq!(rig.disk.counters().syncs - before, 1);
        assert_eq!(rig.thread.timings.log_writes.snapshot().count, 2);
        assert_eq!(drain_notifications(&mut rig.from_wal[0]), ["durable 30"]);
        assert_eq!(drain_notifications(&mut rig.from_wal[1]), ["durable 30"]);
        // Records reported as durable survive the worst crash.
        rig.disk.crash(&mut SeededRng::new(5));
        let (_, recovered) = Wal::open(Arc::new(rig.disk.clone()), config())?;
        let entries = |g| recovered.groups.get(&GroupId(g)).map(|g| g.entries.len());
        assert_eq!((entries(2), entries(3)), (Some(30), Some(29)));
        Ok(())
    }

    #[test]
    fn only_fast_syncs_of_a_stream_are_delayed() {
        let fast = Duration::from_micros(100);
        assert_eq!(delay_after(2048, fast), Duration::from_micros(400));
        assert_eq!(delay_after(u64::MAX, STREAM_SYNC_INTERVAL), Duration::ZERO);
        assert_eq!(delay_after(2048, Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(delay_after(2047, fast), Duration::ZERO);
        assert_eq!(delay_after(0, fast), Duration::ZERO);
    }

    #[test]
    fn delay_depends_on_the_bytes_of_the_last_sync() -> Result {
        let mut rig = rig(SimDisk::new())?;
        // As on a machine on which no sync takes any time.
        rig.thread.clock = Arc::new(env::sim::SimClock::default());
        rig.to_wal[0].send(append(2, 1, 4096));
        rig.thread.turn()?;
        assert_eq!(rig.thread.delay, STREAM_SYNC_INTERVAL);
        // Nothing was synced.
        rig.thread.turn()?;
        assert_eq!(rig.thread.delay, Duration::ZERO);
        rig.to_wal[0].send(append(2, 2, 10));
        rig.thread.turn()?;
        assert_eq!(rig.thread.delay, Duration::ZERO);
        Ok(())
    }

    #[test]
    fn full_disk_delays_confirms_without_loss() -> Result {
        let mut rig = rig(SimDisk::new())?;
        rig.to_wal[0].send(append(2, 1, 10));
        rig.thread.turn()?;
        assert_eq!(drain_notifications(&mut rig.from_wal[0]), ["durable 1"]);
        let used: u64 = rig.disk.files().iter().map(|(_, len)| len).sum();
        rig.disk.set_capacity(Some(used));
        for i in 2..=40 {
            rig.to_wal[0].send(append(2, i, 10_000));
        }
        assert!(!rig.thread.turn()?, "must wait instead of spinning");
        let partly = drain_notifications(&mut rig.from_wal[0]);
        assert!(!partly.contains(&"durable 40".to_owned()));
        assert!(!rig.thread.turn()?);
        assert_eq!(
            *rig.is_full.lock().map_err(|e| e.to_string())?,
            [true],
            "reported once"
        );
        rig.disk.set_capacity(None);
        while rig.thread.turn()? {}
        assert_eq!(
            drain_notifications(&mut rig.from_wal[0])
                .last()
                .map(String::as_str),
            Some("durable 40")
        );
        assert_eq!(
            *rig.is_full.lock().map_err(|e| e.to_string())?,
            [true, false]
        );
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
    fn low_space_blocks_publishers_but_not_settlements() -> Result {
        let mut rig = rig(SimDisk::new())?;
        rig.thread.space.keep_free = 1 << 20;
        rig.to_wal[0].send(append(2, 1, 100_000));
        rig.thread.turn()?;
        assert!(rig.is_full.lock().map_err(|e| e.to_string())?.is_empty());
        let used = |disk: &SimDisk| -> u64 { disk.files().iter().map(|(_, len)| len).sum() };
        rig.disk.set_capacity(Some(used(&rig.disk) + 900_000));
        // Everything is still written.
        for i in 2..=5 {
            rig.to_wal[0].send(append(2, i, 10_000));
            assert!(!rig.thread.turn()?);
        }
        assert_eq!(
            drain_notifications(&mut rig.from_wal[0])
                .last()
                .map(String::as_str),
            Some("durable 5")
        );
        assert_eq!(*rig.is_full.lock().map_err(|e| e.to_string())?, [true]);
        // The alarm has hysteresis: slightly above the limit does not clear it.
        rig.disk.set_capacity(Some(used(&rig.disk) + (3 << 19)));
        rig.thread.turn()?;
        assert_eq!(*rig.is_full.lock().map_err(|e| e.to_string())?, [true]);
        rig.disk.set_capacity(Some(used(&rig.disk) + (5 << 19)));
        rig.thread.turn()?;
        assert_eq!(
            *rig.is_full.lock().map_err(|e| e.to_string())?,
            [true, false]
        );
        Ok(())
    }

    #[test]
    fn queue_is_bounded_while_the_disk_is_full() -> Result {
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
    fn failed_sync_is_fatal_and_confirms_nothing() -> Result {
        let mut rig = rig(SimDisk::new())?;
        rig.to_wal[0].send(append(2, 1, 10));
        rig.thread.turn()?;
        drain_notifications(&mut rig.from_wal[0]);
        rig.disk.fail_syncs_after(Some(0));
        rig.to_wal[0].send(append(2, 2, 10));
        let error = rig.thread.turn().err().ok_or("must fail")?;
        assert!(error.is_fatal());
        assert!(drain_notifications(&mut rig.from_wal[0]).is_empty());
        Ok(())
    }

    #[test]
    fn files_are_deleted_when_every_shard_has_freed_them() -> Result {
        let mut rig = rig(SimDisk::new())?;
        for i in 1..=40 {
            rig.to_wal[0].send(append(2, i, 100_000));
            rig.thread.turn()?;
        }
        let notifications = drain_notifications(&mut rig.from_wal[0]);
        let rolled: Vec<&String> = notifications
            .iter()
            .filter(|t| t.starts_with("rolled"))
            .collect();
        assert!(rolled.len() >= 2);
        assert_eq!(
            drain_notifications(&mut rig.from_wal[1]).len(),
            rolled.len()
        );
        let files = rig.thread.writer.wal().files();
        let oldest = files.first().copied().ok_or("no file")?;
        rig.to_wal[0].send(WalMessage::Free { up_to: oldest });
        rig.thread.turn()?;
        assert_eq!(rig.thread.writer.wal().files(), files);
        rig.to_wal[1].send(WalMessage::Free { up_to: oldest });
        rig.thread.turn()?;
        assert_eq!(rig.thread.writer.wal().files()[..], files[1..]);
        Ok(())
    }

    #[test]
    fn deletion_is_retried_after_a_full_disk_has_space() -> Result {
        let mut first = rig(SimDisk::new())?;
        for i in 1..=40 {
            first.to_wal[0].send(append(2, i, 100_000));
            first.thread.turn()?;
        }
        // After a restart the log has no file of its own yet, and the contents of the old ones are
        // not needed.
        let mut rig = rig(first.disk.clone())?;
        assert_eq!(rig.thread.pause(), IDLE);
        let files = rig.thread.writer.wal().files();
        let newest = files.last().copied().ok_or("no file")?;
        rig.disk.set_capacity(Some(0));
        for shard in &mut rig.to_wal {
            shard.send(WalMessage::Free { up_to: newest });
        }
        assert!(!rig.thread.turn()?);
        assert_eq!(rig.thread.writer.wal().files(), files);
        assert_eq!(rig.thread.pause(), FULL_RETRY);
        rig.disk.set_capacity(None);
        assert!(!rig.thread.turn()?);
        assert!(rig.thread.writer.wal().files().iter().all(|f| *f > newest));
        assert_eq!(rig.thread.pause(), IDLE);
        Ok(())
    }

    #[test]
    fn rolled_is_sent_before_records_of_the_new_file() -> Result {
        let mut rig = rig(SimDisk::new())?;
        let mut notifications = Vec::new();
        for i in 1..=30 {
            rig.to_wal[0].send(append(2, i, 100_000));
            rig.thread.turn()?;
            notifications.extend(drain_notifications(&mut rig.from_wal[0]));
        }
        let at = notifications
            .iter()
            .position(|t| t.starts_with("rolled"))
            .ok_or("never rolled")?;
        // Every entry reported durable before is in files up to that one: exactly those entries are
        // gone without them.
        let before = at as u64;
        let file: u64 = notifications[at].trim_start_matches("rolled ").parse()?;
        rig.thread.writer.wal().delete_through(file)?;
        let (_, recovered) = Wal::open(Arc::new(rig.disk.clone()), config())?;
        let group = recovered.groups.get(&GroupId(2)).ok_or("no group")?;
        assert_eq!(group.entries.first().map(|e| e.index), Some(before + 1));
        Ok(())
    }
}
