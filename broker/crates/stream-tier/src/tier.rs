//! The state machine of one replica.

use crate::fault::{self, Fault};
use crate::format::{MAX_SEGMENTS, Manifest, ManifestId, SegmentEntry};
use crate::jobs::{
    Outcome, Published, ReadStart, RemoteRead, TierError, TierJob, TierJobResult, Work,
};
use crate::store::Remote;
use env::{Time, WallTime};
use ids::QueueId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stream_log::{LogError, Retention, Segment, StreamLog};

/// Wait after the first failure of a job.
const FIRST_RETRY: Duration = Duration::from_secs(1);
/// Longest wait after a failure.
const LAST_RETRY: Duration = Duration::from_secs(60);
/// How often a follower loads the manifest, and the leader looks for segments in the store that are due.
const REFRESH: Duration = Duration::from_secs(30);

/// Settings of tiered storage.
#[derive(Clone, Debug)]
pub struct TierConfig {
    /// The store of the node.
    pub remote: Arc<Remote>,
    /// Local segments that are in the store are deleted according to these limits. Without limits they stay as long as the
    /// stream's own retention keeps them.
    pub local: Retention,
}

/// Names the objects of a segment.
fn upload_of(entry: &SegmentEntry) -> (u64, u64) {
    (entry.epoch, entry.attempt)
}

/// See the crate.
#[derive(Debug)]
pub struct Tier {
    stream: QueueId,
    config: TierConfig,
    /// The epoch in which this replica leads.
    leading: Option<u64>,
    /// A leader of a later epoch has published.
    is_superseded: bool,
    /// The newest manifest that is known to count; None until it was loaded.
    published: Option<Manifest>,
    /// The leader has loaded the manifest in its epoch.
    is_current: bool,
    /// Segments of another leader's manifest were added, and have to be published.
    must_publish: bool,
    /// The greatest manifest of another epoch that `published` has the segments of.
    known: ManifestId,
    /// The manifest that is being published.
    draft: Option<Box<Manifest>>,
    next_version: u64,
    next_attempt: u64,
    /// Uploaded and verified, but not in a published manifest.
    uploaded: Vec<SegmentEntry>,
    /// In no manifest any more; the objects are to be deleted.
    garbage: Vec<SegmentEntry>,
    /// Segments with a missing or wrong object, by first offset, and the upload that it belongs to.
    wrong: BTreeMap<u64, (u64, u64)>,
    /// The epoch in which the running job was started.
    running: Option<Option<u64>>,
    failures: u32,
    retry_at: Option<Time>,
    refresh_at: Time,
    has_reported_limit: bool,
    faults: Vec<String>,
}

impl Tier {
    /// A replica that has not loaded the manifest.
    pub fn new(stream: QueueId, config: TierConfig, now: Time) -> Tier {
        Tier {
            stream,
            config,
            leading: None,
            is_superseded: false,
            published: None,
            is_current: false,
            must_publish: false,
            known: ManifestId::default(),
            draft: None,
            next_version: 1,
            next_attempt: 1,
            uploaded: Vec::new(),
            garbage: Vec::new(),
            wrong: BTreeMap::new(),
            running: None,
            failures: 0,
            retry_at: None,
            refresh_at: now,
            has_reported_limit: false,
            faults: Vec::new(),
        }
    }

    /// Returns true once the manifest was loaded: the segments in the store are known.
    pub fn is_loaded(&self) -> bool {
        self.published.is_some()
    }

    fn segments(&self) -> &[SegmentEntry] {
        self.published.as_ref().map_or(&[], |m| &m.segments)
    }

    /// First offset in the store. None if nothing is known to be there.
    pub fn first_offset(&self) -> Option<u64> {
        self.segments().first().map(|entry| entry.first_offset)
    }

    /// Timestamp of the first chunk in the store. None if nothing is known to be there.
    pub fn first_timestamp(&self) -> Option<i64> {
        self.segments().first().map(|entry| entry.first_timestamp)
    }

    /// Bytes of the segments in the store that end at or before `offset`.
    pub fn bytes_before(&self, offset: u64) -> u64 {
        let before = self
            .segments()
            .iter()
            .take_while(|s| s.next_offset <= offset);
        before.map(|s| s.bytes).sum()
    }

    /// Faults to be logged.
    pub fn take_faults(&mut self) -> Vec<String> {
        std::mem::take(&mut self.faults)
    }

    /// This replica leads in an epoch, or does not lead.
    pub fn set_leading(&mut self, epoch: Option<u64>, now: Time) {
        if self.leading == epoch {
            return;
        }
        self.leading = epoch;
        self.is_superseded = false;
        self.is_current = false;
        self.must_publish = false;
        self.draft = None;
        self.next_version = 1;
        self.next_attempt = 1;
        // Their objects stay in the store unused, which costs space but loses nothing.
        self.uploaded.clear();
        self.garbage.clear();
        self.failures = 0;
        self.retry_at = None;
        self.refresh_at = now;
    }

    /// When to call [`Tier::take_job`] next if nothing else happens.
    pub fn wake_at(&self) -> Option<Time> {
        match self.running {
            Some(_) => None,
            None => Some(self.retry_at.unwrap_or(self.refresh_at)),
        }
    }

    /// The next job, if there is one and none is running. `retention` is that of the stream.
    pub fn take_job(
        &mut self,
        now: Time,
        wall: WallTime,
        retention: Retention,
        log: &mut StreamLog,
    ) -> Option<TierJob> {
        if self.running.is_some() || self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        self.retry_at = None;
        let work = self.next_work(now, wall, retention, log)?;
        self.running = Some(self.leading);
        Some(TierJob {
            remote: self.config.remote.clone(),
            stream: self.stream,
            work,
        })
    }

    fn next_work(
        &mut self,
        now: Time,
        wall: WallTime,
        retention: Retention,
        log: &mut StreamLog,
    ) -> Option<Work> {
        let is_due = now >= self.refresh_at;
        if is_due {
            self.refresh_at = now + REFRESH;
        }
        let leading = self.leading.filter(|_| !self.is_superseded);
        let must_load = match leading {
            Some(_) => !self.is_current,
            None => is_due || self.published.is_none(),
        };
        if must_load {
            return Some(Work::Load);
        }
        let epoch = leading?;
        let due = self.count_due(wall, retention, log);
        if due > 0 || self.must_publish || !self.uploaded.is_empty() {
            return Some(self.publish(epoch, due));
        }
        if !self.garbage.is_empty() {
            return Some(Work::Remove(self.garbage.clone()));
        }
        self.upload(epoch, log)
    }

    /// The number of the oldest segments in the store that the retention of the stream deletes. Its limits apply to the
    /// store and the local log as a whole.
    fn count_due(&self, wall: WallTime, retention: Retention, log: &StreamLog) -> usize {
        let segments = self.segments();
        let oldest = oldest_time(wall, retention);
        let is_in_store = |local: &&Segment| self.entry_of(local.first_offset).is_some();
        let only_local = log.segments().filter(|local| !is_in_store(local));
        let local: u64 = only_local.map(|local| local.bytes).sum();
        let mut bytes = local + segments.iter().map(|s| s.bytes).sum::<u64>();
        let due = segments.iter().take_while(|segment| {
            let is_surplus = retention.max_bytes.is_some_and(|max| bytes > max);
            bytes -= segment.bytes;
            is_surplus || segment.last_timestamp < oldest
        });
        due.count()
    }

    fn entry_of(&self, first_offset: u64) -> Option<&SegmentEntry> {
        let segments = self.segments();
        let at = segments.binary_search_by_key(&first_offset, |s| s.first_offset);
        at.ok().and_then(|at| segments.get(at))
    }

    fn publish(&mut self, epoch: u64, due: usize) -> Work {
        let mut manifest = Manifest {
            stream: self.stream,
            id: ManifestId {
                epoch,
                version: self.next_version,
            },
            known: self.known,
            segments: self.segments().get(due..).unwrap_or_default().to_vec(),
        };
        for entry in &self.uploaded {
            manifest.insert(entry, true);
        }
        // A name is used once: a write that seemed to fail may be done later.
        self.next_version += 1;
        self.draft = Some(Box::new(manifest.clone()));
        Work::Publish(Box::new(manifest))
    }

    fn upload(&mut self, epoch: u64, log: &mut StreamLog) -> Option<Work> {
        let committed = match fault::is(Fault::UploadsUncommitted) {
            true => log.written(),
            false => log.readable(),
        };
        let newest = log.segments().len().saturating_sub(1);
        let is_candidate = |segment: &&Segment| {
            let is_wanted = match self.entry_of(segment.first_offset) {
                Some(entry) => self.is_wrong(entry),
                None => !self.overlaps(segment),
            };
            segment.is_sealed && segment.next_offset <= committed && is_wanted
        };
        let segment = log.segments().take(newest).find(is_candidate)?.clone();
        if self.segments().len() >= MAX_SEGMENTS {
            if !std::mem::replace(&mut self.has_reported_limit, true) {
                let text = format!(
                    "{MAX_SEGMENTS} segments are in the object store, so further ones stay on the disk alone: set \
                     max-age or max-length-bytes of the stream, or larger segments"
                );
                self.faults.push(text);
            }
            return None;
        }
        let entry = SegmentEntry {
            first_offset: segment.first_offset,
            next_offset: segment.next_offset,
            epoch,
            attempt: self.next_attempt,
            bytes: segment.bytes,
            parts: 0,
            index_bytes: 0,
            index_crc: 0,
            first_timestamp: segment.first_timestamp,
            last_timestamp: segment.last_timestamp,
        };
        self.next_attempt += 1;
        let view = match fault::is(Fault::UploadsUncommitted) {
            true => log.replication_view(),
            false => log.view(),
        };
        Some(Work::Upload { view, entry })
    }

    fn overlaps(&self, segment: &Segment) -> bool {
        let segments = self.segments();
        let at = segments.partition_point(|s| s.next_offset <= segment.first_offset);
        let other = segments.get(at);
        other.is_some_and(|other| other.first_offset < segment.next_offset)
    }

    fn is_wrong(&self, entry: &SegmentEntry) -> bool {
        self.wrong.get(&entry.first_offset) == Some(&upload_of(entry))
    }

    /// Handles the result of a job.
    pub fn done(&mut self, now: Time, result: TierJobResult) {
        let started_in = self.running.take().flatten();
        let is_stale = started_in != self.leading;
        match result.0 {
            Outcome::Loaded(Ok(manifest)) => {
                let empty = || Manifest {
                    stream: self.stream,
                    id: ManifestId::default(),
                    known: ManifestId::default(),
                    segments: Vec::new(),
                };
                let manifest = manifest.map_or_else(empty, |manifest| *manifest);
                self.loaded(manifest, is_stale);
                self.succeeded();
            }
            Outcome::Uploaded(Ok(entry)) => {
                if !is_stale {
                    self.uploaded.push(entry);
                }
                self.succeeded();
            }
            // Retention deleted it meanwhile.
            Outcome::Uploaded(Err(TierError::Local(LogError::Deleted { .. }))) => {}
            Outcome::Published(Ok(published)) => {
                if !is_stale {
                    self.published(published);
                }
                self.succeeded();
            }
            Outcome::Removed(Ok(())) => {
                if !is_stale {
                    self.garbage.clear();
                }
                self.succeeded();
            }
            Outcome::Loaded(Err(error))
            | Outcome::Uploaded(Err(error))
            | Outcome::Published(Err(error))
            | Outcome::Removed(Err(error)) => self.failed(now, &error),
        }
        let is_replaced = |first: &u64, upload: &(u64, u64)| {
            let segments = self.published.as_ref().map_or(&[][..], |m| &m.segments);
            let entry = segments.iter().find(|s| s.first_offset == *first);
            entry.is_none_or(|entry| upload_of(entry) != *upload)
        };
        let mut wrong = std::mem::take(&mut self.wrong);
        wrong.retain(|first, upload| !is_replaced(first, upload));
        self.wrong = wrong;
    }

    fn succeeded(&mut self) {
        self.failures = 0;
    }

    fn failed(&mut self, now: Time, error: &TierError) {
        self.draft = None;
        let wait = FIRST_RETRY.saturating_mul(1 << self.failures.min(10));
        let wait = wait.min(LAST_RETRY);
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(now + wait);
        let wait = wait.as_secs();
        let text = format!(
            "{error}; the next try is in {wait} s, until then the segments stay on the disk"
        );
        self.faults.push(text);
    }

    fn loaded(&mut self, manifest: Manifest, is_stale: bool) {
        // The store forgot a newer one: the segments are still to be found.
        let is_older = self.published.as_ref().is_some_and(|p| p.id > manifest.id);
        if !is_older {
            self.published = Some(manifest);
        }
        let id = self
            .published
            .as_ref()
            .map_or(ManifestId::default(), |p| p.id);
        if let Some(epoch) = self.leading
            && !is_stale
        {
            self.is_superseded = id.epoch > epoch;
            self.is_current = true;
            self.known = match id.epoch == epoch {
                true => self.known,
                false => id,
            };
            if id.epoch == epoch {
                self.next_version = self.next_version.max(id.version + 1);
            }
        }
    }

    fn published(&mut self, published: Published) {
        let Some(draft) = self.draft.take() else {
            return;
        };
        match published {
            Published::Newest => {
                let is_listed = |entry: &SegmentEntry| draft.segments.contains(entry);
                let old = self.published.take().map_or(Vec::new(), |old| old.segments);
                let removed = old.into_iter().filter(|entry| !is_listed(entry));
                self.garbage.extend(removed);
                self.uploaded.retain(|entry| !is_listed(entry));
                self.must_publish = false;
                self.published = Some(*draft);
            }
            Published::Other(other) => {
                self.known = other.id;
                if self.leading.is_none_or(|epoch| other.id.epoch > epoch) {
                    self.is_superseded = true;
                    self.uploaded.clear();
                    self.garbage.clear();
                    self.published = Some(*other);
                    return;
                }
                // A deposed leader was faster. Its segments are verified, and it may have deleted its local ones.
                self.must_publish = true;
                if let Some(own) = &mut self.published {
                    own.merge(&other);
                    let own = &own.segments;
                    self.uploaded.retain(|entry| !own.contains(entry));
                }
            }
        }
    }

    /// The offset up to which whole local segments may be deleted because they are in the store and exceed the local
    /// limits. None if there are none.
    pub fn local_cut(&self, wall: WallTime, log: &StreamLog) -> Option<u64> {
        // A leader must not rely on a manifest that a later leader has not seen.
        let is_known = self.published.is_some() && !self.must_publish;
        if !is_known || (self.leading.is_some() && !self.is_current) {
            return None;
        }
        let oldest = oldest_time(wall, self.config.local);
        let mut bytes = log.bytes();
        let newest = log.segments().len().saturating_sub(1);
        let mut cut = None;
        for segment in log.segments().take(newest) {
            let is_surplus = self.config.local.max_bytes.is_some_and(|max| bytes > max);
            let is_due = is_surplus || segment.last_timestamp < oldest;
            if !is_due || !self.has(segment) {
                break;
            }
            bytes -= segment.bytes;
            cut = Some(segment.next_offset);
        }
        cut
    }

    /// True if the published manifest lists the segment, and its objects are not known to be wrong.
    fn has(&self, segment: &Segment) -> bool {
        let uploaded = self.uploaded.iter();
        let mut uploaded = uploaded.filter(|_| fault::is(Fault::DeletesBeforePublish));
        let entry = self.entry_of(segment.first_offset);
        let entry = entry.or_else(|| uploaded.find(|s| s.first_offset == segment.first_offset));
        entry.is_some_and(|entry| {
            entry.next_offset == segment.next_offset
                && entry.bytes == segment.bytes
                && !self.is_wrong(entry)
        })
    }

    // Reading.

    /// A read of the chunk that has `offset`, or of the first one in the store behind it. None if the local log is to be
    /// read, which starts at `local`.
    pub fn read_offset(&self, offset: u64, local: u64) -> Option<RemoteRead> {
        let segments = self.segments();
        let at = segments.partition_point(|s| s.next_offset <= offset);
        let entry = segments.get(at).filter(|s| s.first_offset < local)?;
        let start = ReadStart::Offset(offset.max(entry.first_offset));
        (offset < local).then(|| self.read(entry, start))
    }

    /// A read of the first chunk in the store that is not older than `timestamp`. None if the local log is to be read, which
    /// starts at `local`.
    pub fn read_timestamp(&self, timestamp: i64, local: u64) -> Option<RemoteRead> {
        let mut segments = self.segments().iter();
        let entry = segments.find(|s| s.last_timestamp >= timestamp)?;
        let is_remote = entry.first_offset < local;
        is_remote.then(|| self.read(entry, ReadStart::Timestamp(timestamp)))
    }

    fn read(&self, entry: &SegmentEntry, start: ReadStart) -> RemoteRead {
        RemoteRead {
            remote: self.config.remote.clone(),
            stream: self.stream,
            entry: entry.clone(),
            start,
            max_bytes: 0,
            max_chunks: 0,
            only: None,
            is_read_ahead: false,
        }
    }

    /// A read has found a missing or wrong object. Returns true if it was not known.
    pub fn note_wrong(&mut self, first_offset: u64) -> bool {
        let Some(entry) = self.entry_of(first_offset) else {
            return false;
        };
        let upload = upload_of(entry);
        self.wrong.insert(first_offset, upload) != Some(upload)
    }
}

fn oldest_time(wall: WallTime, retention: Retention) -> i64 {
    let now = i64::try_from(wall.0).unwrap_or(i64::MAX);
    retention.max_age.map_or(i64::MIN, |age| {
        now.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX))
    })
}
