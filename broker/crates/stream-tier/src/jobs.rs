//! The work on the store. Jobs block, so they run on threads of their own.

use crate::PART_BYTES;
use crate::fault::{self, Fault};
use crate::format::{
    MAX_INDEX_BYTES, MAX_MANIFEST_BYTES, Manifest, ManifestId, PartEntry, SegmentEntry,
    SegmentIndex,
};
use crate::store::{Remote, StoreError, TierCounters};
use bytes::{Bytes, BytesMut};
use env::Disk;
use ids::QueueId;
use std::sync::Arc;
use stream_log::{
    Chunk, ChunkHeader, ChunkKind, ChunkReader, FilterMatcher, LogError, LogView, MAX_CHUNK_BYTES,
    Start,
};

/// Most chunks that one read skips because no reader wants them.
const MAX_SKIPPED: usize = 4_096;

/// The threads on which a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreLane {
    /// Uploads and the manifest: can take long.
    Upload,
    /// Reads, which clients wait for.
    Fetch,
}

/// Why a job of the upload lane failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TierError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Local(#[from] LogError),
    #[error("object '{key}' is wrong: {reason}")]
    Wrong { key: String, reason: String },
}

#[derive(Debug)]
pub(crate) enum Work {
    Load,
    Upload { view: LogView, entry: SegmentEntry },
    Publish(Box<Manifest>),
    Remove(Vec<SegmentEntry>),
}

/// A job for the store of a replica. Its result goes to [`Tier::done`](crate::Tier::done).
#[derive(Debug)]
pub struct TierJob {
    pub(crate) remote: Arc<Remote>,
    pub(crate) stream: QueueId,
    pub(crate) work: Work,
}

/// The result of a publication that did not fail.
#[derive(Debug)]
pub(crate) enum Published {
    /// It is the newest manifest.
    Newest,
    /// Another leader published since; this is its manifest.
    Other(Box<Manifest>),
}

#[derive(Debug)]
pub(crate) enum Outcome {
    Loaded(Result<Option<Box<Manifest>>, TierError>),
    Uploaded(Result<SegmentEntry, TierError>),
    Published(Result<Published, TierError>),
    Removed(Result<(), TierError>),
}

/// The result of a [`TierJob`].
#[derive(Debug)]
pub struct TierJobResult(pub(crate) Outcome);

impl TierJob {
    /// Does the work.
    pub fn run(self, disk: &dyn Disk) -> TierJobResult {
        let (remote, stream) = (&*self.remote, self.stream);
        let outcome = match self.work {
            Work::Load => Outcome::Loaded(load_newest(remote, stream)),
            Work::Upload { view, entry } => {
                Outcome::Uploaded(upload(remote, stream, disk, &view, entry))
            }
            Work::Publish(manifest) => Outcome::Published(publish(remote, &manifest)),
            Work::Remove(entries) => Outcome::Removed(remove(remote, stream, &entries)),
        };
        let failed = matches!(
            &outcome,
            Outcome::Loaded(Err(_))
                | Outcome::Uploaded(Err(_))
                | Outcome::Published(Err(_))
                | Outcome::Removed(Err(_))
        );
        TierCounters::add(&remote.counters.errors, u64::from(failed));
        TierJobResult(outcome)
    }
}

impl TierJob {
    /// The result if the job is not run. The state machine repeats it later.
    pub fn refuse(self) -> TierJobResult {
        let refused = || {
            TierError::Store(StoreError::Unavailable {
                call: "job",
                key: self.remote.stream_prefix(self.stream),
                error: "the job was not run".to_owned(),
            })
        };
        TierJobResult(match &self.work {
            Work::Load => Outcome::Loaded(Err(refused())),
            Work::Upload { .. } => Outcome::Uploaded(Err(refused())),
            Work::Publish(_) => Outcome::Published(Err(refused())),
            Work::Remove(_) => Outcome::Removed(Err(refused())),
        })
    }
}

fn wrong(key: &str, reason: impl ToString) -> TierError {
    TierError::Wrong {
        key: key.to_owned(),
        reason: reason.to_string(),
    }
}

/// Reads an object that must have this length and checksum.
fn get_verified(remote: &Remote, key: &str, len: u64, crc: u32) -> Result<Bytes, TierError> {
    let bytes = remote.store.get(key, len)?;
    if fault::is(Fault::WrongBytesAccepted) {
        return Ok(bytes);
    }
    if bytes.len() as u64 != len {
        let reason = format!("it has not {len} bytes");
        return Err(wrong(key, reason));
    }
    match crc32fast::hash(&bytes) == crc {
        true => Ok(bytes),
        false => Err(wrong(key, "its checksum differs")),
    }
}

/// Identities of all manifests, ascending.
fn list_manifests(remote: &Remote, stream: QueueId) -> Result<Vec<ManifestId>, TierError> {
    let prefix = remote.manifest_prefix(stream);
    let (mut ids, mut after) = (Vec::new(), String::new());
    loop {
        let page = remote.store.list(&prefix, &after)?;
        let Some(last) = page.last() else {
            ids.sort_unstable();
            return Ok(ids);
        };
        after.clone_from(last);
        ids.extend(
            page.iter()
                .filter_map(|key| remote.manifest_id(stream, key)),
        );
    }
}

fn load(remote: &Remote, stream: QueueId, id: ManifestId) -> Result<Box<Manifest>, TierError> {
    let key = remote.manifest_key(stream, id);
    let bytes = remote.store.get(&key, MAX_MANIFEST_BYTES)?;
    if bytes.len() as u64 > MAX_MANIFEST_BYTES {
        return Err(wrong(&key, "it is too long for a manifest"));
    }
    let manifest = Manifest::decode(&bytes).map_err(|error| wrong(&key, error))?;
    match manifest.stream == stream && manifest.id == id {
        true => Ok(Box::new(manifest)),
        false => Err(wrong(&key, "it is another manifest")),
    }
}

/// The newest manifest, with the segments of those that other leaders published at the same time.
fn load_newest(remote: &Remote, stream: QueueId) -> Result<Option<Box<Manifest>>, TierError> {
    let ids = list_manifests(remote, stream)?;
    let Some(newest) = ids.last() else {
        return Ok(None);
    };
    let mut manifest = load(remote, stream, *newest)?;
    let known = manifest.known;
    let is_concurrent = |id: &&ManifestId| id.epoch != newest.epoch && **id > known;
    for id in ids.iter().rev().filter(is_concurrent) {
        manifest.merge(&*load(remote, stream, *id)?);
    }
    Ok(Some(manifest))
}

/// Publishes a manifest. It counts only if a listing after the write shows no manifest of another leader that it does not
/// know: of two leaders that publish at the same time, at least one sees the other.
fn publish(remote: &Remote, manifest: &Manifest) -> Result<Published, TierError> {
    let (stream, id) = (manifest.stream, manifest.id);
    let key = remote.manifest_key(stream, id);
    let encoded = manifest.encode();
    remote.store.create(&key, encoded.clone())?;
    let (len, crc) = (encoded.len() as u64, crc32fast::hash(&encoded));
    if let Err(error) = get_verified(remote, &key, len, crc) {
        if matches!(error, TierError::Wrong { .. }) {
            // A manifest that nobody can read must not stay the newest one. The next one has another name.
            remote.store.delete(&key)?;
        }
        return Err(error);
    }
    let ids = list_manifests(remote, stream)?;
    let overwrites = fault::is(Fault::StaleLeaderPublishes);
    let is_other = |other: &&ManifestId| other.epoch != id.epoch && !overwrites;
    let other = ids.iter().rev().find(is_other);
    if let Some(other) = other
        && *other > manifest.known
    {
        return Ok(Published::Other(load(remote, stream, *other)?));
    }
    if !ids.contains(&id) {
        return Err(wrong(&key, "it is not listed after it was written"));
    }
    // The one before stays for readers that have listed it. What cannot be deleted now is deleted next time.
    let older = ids.iter().filter(|other| **other < id || overwrites);
    let kept = ids.iter().rev().find(|other| **other < id);
    for old in older.filter(|old| **old != id && Some(*old) != kept) {
        let _ = remote.store.delete(&remote.manifest_key(stream, *old));
    }
    Ok(Published::Newest)
}

/// Uploads a segment, reads it back and compares it. Deletes its objects if that fails.
fn upload(
    remote: &Remote,
    stream: QueueId,
    disk: &dyn Disk,
    view: &LogView,
    mut entry: SegmentEntry,
) -> Result<SegmentEntry, TierError> {
    match upload_and_verify(remote, stream, disk, view, &mut entry) {
        Ok(()) => Ok(entry),
        Err(error) => {
            // Objects that cannot be deleted now stay unused.
            let _ = remove(remote, stream, &[entry]);
            Err(error)
        }
    }
}

fn upload_and_verify(
    remote: &Remote,
    stream: QueueId,
    disk: &dyn Disk,
    view: &LogView,
    entry: &mut SegmentEntry,
) -> Result<(), TierError> {
    let start = Start::Offset(entry.first_offset);
    let mut reader = ChunkReader::open(disk, view, start)?;
    let mut index = SegmentIndex {
        stream,
        first_offset: entry.first_offset,
        next_offset: entry.next_offset,
        parts: Vec::new(),
    };
    let mut part = BytesMut::new();
    let mut first = (entry.first_offset, entry.first_timestamp);
    loop {
        let is_complete = reader.offset() >= entry.next_offset;
        if !part.is_empty() && (is_complete || part.len() >= PART_BYTES) {
            let bytes = part.split().freeze();
            let key = remote.part_key(stream, entry, entry.parts);
            index.parts.push(PartEntry {
                first_offset: first.0,
                first_timestamp: first.1,
                bytes: bytes.len() as u32,
                crc: crc32fast::hash(&bytes),
            });
            entry.parts += 1;
            remote.store.create(&key, bytes)?;
        }
        if is_complete {
            break;
        }
        let Some(located) = reader.next(disk, view)? else {
            let reason = format!("the local segment ends at offset {}", reader.offset());
            return Err(wrong(&remote.index_key(stream, entry), reason));
        };
        let chunk = located.read()?;
        if part.is_empty() {
            first = (chunk.header().first_offset, chunk.header().timestamp);
        }
        part.extend_from_slice(chunk.bytes());
    }
    let key = remote.index_key(stream, entry);
    let encoded = index.encode();
    if encoded.len() as u64 > MAX_INDEX_BYTES {
        return Err(wrong(&key, "it is too long for an index"));
    }
    entry.index_bytes = encoded.len() as u32;
    entry.index_crc = crc32fast::hash(&encoded);
    remote.store.create(&key, encoded)?;
    if !fault::is(Fault::NotVerified) {
        verify(remote, stream, entry, &index)?;
    }
    TierCounters::add(&remote.counters.uploaded_segments, 1);
    TierCounters::add(&remote.counters.uploaded_bytes, entry.bytes);
    Ok(())
}

/// Reads a segment back from the store and compares lengths and checksums.
fn verify(
    remote: &Remote,
    stream: QueueId,
    entry: &SegmentEntry,
    index: &SegmentIndex,
) -> Result<(), TierError> {
    let key = remote.index_key(stream, entry);
    get_verified(remote, &key, entry.index_bytes.into(), entry.index_crc)?;
    for (number, part) in (0..).zip(&index.parts) {
        let key = remote.part_key(stream, entry, number);
        let len = remote.store.head(&key)?;
        if len != u64::from(part.bytes) {
            let reason = format!("it has {len} bytes, not {}", part.bytes);
            return Err(wrong(&key, reason));
        }
        get_verified(remote, &key, len, part.crc)?;
    }
    Ok(())
}

fn remove(remote: &Remote, stream: QueueId, entries: &[SegmentEntry]) -> Result<(), TierError> {
    for entry in entries {
        for part in 0..entry.parts {
            remote.store.delete(&remote.part_key(stream, entry, part))?;
        }
        remote.store.delete(&remote.index_key(stream, entry))?;
    }
    Ok(())
}

/// Deletes all objects of a stream that was deleted.
///
/// # Errors
///
/// The first failure. The call can be repeated.
pub fn purge(remote: &Remote, stream: QueueId) -> Result<(), StoreError> {
    let prefix = remote.stream_prefix(stream);
    loop {
        let page = remote.store.list(&prefix, "")?;
        if page.is_empty() {
            return Ok(());
        }
        for key in &page {
            remote.store.delete(key)?;
        }
    }
}

/// The first chunk that a reader wants, within one segment of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadStart {
    /// The chunk that has this offset.
    Offset(u64),
    /// The first chunk that is not older, in milliseconds since the Unix epoch.
    Timestamp(i64),
}

/// Finds or reads chunks of a segment in the store. One read takes at most one part.
#[derive(Debug)]
pub struct RemoteRead {
    pub(crate) remote: Arc<Remote>,
    pub(crate) stream: QueueId,
    pub(crate) entry: SegmentEntry,
    pub(crate) start: ReadStart,
    /// Bytes after which no further chunk is read; 0: only find the position.
    pub max_bytes: usize,
    /// Most chunks.
    pub max_chunks: usize,
    /// Skip chunks without messages, and those that the filter rules out.
    pub only: Option<FilterMatcher>,
    /// Only fetch the part into memory.
    pub is_read_ahead: bool,
}

/// Why a read failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The store does not answer; the same read can succeed later.
    #[error("{0}")]
    Unavailable(String),
    /// The segment in the store is missing or wrong: it counts as absent.
    #[error("the segment from offset {segment} in the object store counts as absent: {reason}")]
    Wrong {
        /// First offset of the segment.
        segment: u64,
        /// The object and the error.
        reason: String,
    },
}

/// The result of a [`RemoteRead`].
#[derive(Debug)]
pub struct RemoteResult {
    /// The chunks, verified.
    pub chunks: Vec<Chunk>,
    /// The position after the last chunk that was read or skipped, or the position that was found.
    pub next: u64,
    /// The error that ended the read.
    pub error: Option<ReadError>,
    /// The part at this offset, in the same segment, is next and not in memory.
    pub read_ahead: Option<u64>,
}

impl RemoteRead {
    /// Does the work.
    pub fn run(&self) -> RemoteResult {
        let mut result = RemoteResult {
            chunks: Vec::new(),
            next: match self.start {
                ReadStart::Offset(offset) => offset,
                ReadStart::Timestamp(_) => self.entry.first_offset,
            },
            error: None,
            read_ahead: None,
        };
        if let Err(error) = self.read(&mut result) {
            TierCounters::add(&self.remote.counters.errors, 1);
            result.error = Some(match error {
                TierError::Store(StoreError::Unavailable { .. }) | TierError::Local(_) => {
                    ReadError::Unavailable(error.to_string())
                }
                TierError::Store(_) | TierError::Wrong { .. } => ReadError::Wrong {
                    segment: self.entry.first_offset,
                    reason: error.to_string(),
                },
            });
        }
        result
    }

    /// An object from memory or from the store. A second read makes sure that it is the object which is wrong, not the
    /// connection.
    fn fetch(&self, key: &str, len: u64, crc: u32) -> Result<Bytes, TierError> {
        let cached = self.remote.cache().get(key);
        if let Some(bytes) = cached {
            return Ok(bytes);
        }
        let mut found = get_verified(&self.remote, key, len, crc);
        if matches!(found, Err(TierError::Wrong { .. })) {
            found = get_verified(&self.remote, key, len, crc);
        }
        let bytes = found?;
        TierCounters::add(&self.remote.counters.fetched_bytes, len);
        self.remote.cache().insert(key, bytes.clone());
        Ok(bytes)
    }

    fn index(&self) -> Result<SegmentIndex, TierError> {
        let entry = &self.entry;
        let key = self.remote.index_key(self.stream, entry);
        let bytes = self.fetch(&key, entry.index_bytes.into(), entry.index_crc)?;
        let index = SegmentIndex::decode(&bytes).map_err(|error| wrong(&key, error))?;
        let is_right = index.stream == self.stream
            && index.first_offset == entry.first_offset
            && index.next_offset == entry.next_offset
            && index.parts.len() == entry.parts as usize;
        match is_right {
            true => Ok(index),
            false => Err(wrong(&key, "it is the index of another segment")),
        }
    }

    fn read(&self, result: &mut RemoteResult) -> Result<(), TierError> {
        let index = self.index()?;
        let parts = &index.parts;
        // Chunks with the same timestamp can be in two parts, so the search begins in the last older one.
        let above = match self.start {
            ReadStart::Offset(offset) => parts.partition_point(|p| p.first_offset <= offset),
            ReadStart::Timestamp(time) => parts.partition_point(|p| p.first_timestamp < time),
        };
        let at = above.saturating_sub(1);
        let Some(part) = parts.get(at) else {
            return Ok(());
        };
        let key = self.remote.part_key(self.stream, &self.entry, at as u32);
        let bytes = self.fetch(&key, part.bytes.into(), part.crc)?;
        if self.is_read_ahead {
            return Ok(());
        }
        let end = parts
            .get(at + 1)
            .map_or(index.next_offset, |p| p.first_offset);
        self.read_part(&key, &bytes, (part.first_offset, end), result)?;
        if let Some(next) = parts.get(at + 1) {
            let key = self
                .remote
                .part_key(self.stream, &self.entry, at as u32 + 1);
            let is_in_memory = self.remote.cache().contains(&key);
            result.read_ahead = (!is_in_memory).then_some(next.first_offset);
        }
        Ok(())
    }

    fn read_part(
        &self,
        key: &str,
        bytes: &Bytes,
        (first, end): (u64, u64),
        result: &mut RemoteResult,
    ) -> Result<(), TierError> {
        let (mut position, mut offset) = (0, first);
        let (mut taken, mut skipped) = (0, 0);
        while offset < end {
            let rest = bytes.slice(position..);
            let damaged = |fault: stream_log::ChunkFault| {
                wrong(key, format!("the chunk at offset {offset}: {fault}"))
            };
            let (header, _) = ChunkHeader::decode(&rest).map_err(damaged)?;
            if header.first_offset != offset || header.next_offset() > end {
                let found = header.first_offset;
                return Err(wrong(
                    key,
                    format!("it has offset {found} instead of {offset}"),
                ));
            }
            let len = header.chunk_len().min(MAX_CHUNK_BYTES as u64) as usize;
            let next = header.next_offset();
            let is_before = match self.start {
                ReadStart::Offset(from) => next <= from,
                ReadStart::Timestamp(from) => header.timestamp < from,
            };
            if is_before {
                position += len;
                offset = next;
                result.next = next;
                continue;
            }
            if taken >= self.max_bytes
                || result.chunks.len() >= self.max_chunks
                || skipped >= MAX_SKIPPED
            {
                break;
            }
            let chunk = rest.get(..len).unwrap_or(&rest);
            // A copy: a slice would keep the whole part in memory as long as a slow client needs one chunk.
            let chunk = Chunk::decode(Bytes::copy_from_slice(chunk)).map_err(damaged)?;
            let is_wanted = self.only.as_ref().is_none_or(|filter| {
                header.kind == ChunkKind::Messages && filter.may_match(chunk.filter())
            });
            if is_wanted {
                taken += len;
                result.chunks.push(chunk);
            } else {
                skipped += 1;
            }
            position += len;
            offset = next;
            result.next = next;
        }
        if self.max_bytes == 0 {
            result.next = offset;
        }
        Ok(())
    }
}
