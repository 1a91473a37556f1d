//! The interface to an object store, and the names of objects.

use crate::cache::PartCache;
use crate::format::{ManifestId, SegmentEntry};
use bytes::Bytes;
use ids::QueueId;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why a call on the store failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// There is no such object.
    #[error("object '{key}' does not exist")]
    Missing {
        /// The key.
        key: String,
    },
    /// The object exists already, so it was not written.
    #[error("object '{key}' exists already")]
    Exists {
        /// The key.
        key: String,
    },
    /// The store did not do the call: it cannot be reached, is slow or full, or refuses. It may have been done all the
    /// same. The same call can succeed later.
    #[error("{call} of object '{key}' failed: {error}")]
    Unavailable {
        /// The call.
        call: &'static str,
        /// The key.
        key: String,
        /// The error of the store or of the connection.
        error: String,
    },
}

/// An object store. It must be consistent: a call that begins after a write has ended sees the write, in listings too.
/// All calls block and give up after a time.
pub trait ObjectStore: Send + Sync + fmt::Debug {
    /// Creates an object.
    ///
    /// # Errors
    ///
    /// [`StoreError::Exists`] if there is one with this key, or [`StoreError::Unavailable`].
    fn create(&self, key: &str, content: Bytes) -> Result<(), StoreError>;

    /// Reads an object of at most `limit` bytes; of a larger one it returns the first `limit + 1` bytes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Missing`] or [`StoreError::Unavailable`].
    fn get(&self, key: &str, limit: u64) -> Result<Bytes, StoreError>;

    /// The length of an object in bytes.
    ///
    /// # Errors
    ///
    /// [`StoreError::Missing`] or [`StoreError::Unavailable`].
    fn head(&self, key: &str) -> Result<u64, StoreError>;

    /// The keys that begin with `prefix` and are greater than `after`, ascending; at most 1000 of them, which are the
    /// first. An empty answer means that there are no more.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>, StoreError>;

    /// Deletes an object; succeeds if it does not exist.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    fn delete(&self, key: &str) -> Result<(), StoreError>;
}

/// Counters of a node since its start.
#[derive(Debug, Default)]
pub struct TierCounters {
    /// Segments that were uploaded and verified.
    pub uploaded_segments: AtomicU64,
    /// Bytes of these segments.
    pub uploaded_bytes: AtomicU64,
    /// Bytes of parts that were fetched for readers.
    pub fetched_bytes: AtomicU64,
    /// Calls and verifications that failed.
    pub errors: AtomicU64,
}

impl TierCounters {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// The store of a node, with the parts that were read ahead. All replicas of the node share it.
#[derive(Debug)]
pub struct Remote {
    pub(crate) store: Box<dyn ObjectStore>,
    prefix: String,
    cache: Mutex<PartCache>,
    /// The counters.
    pub counters: TierCounters,
}

impl Remote {
    /// `prefix` begins all keys; it is empty or ends in `/`.
    pub fn new(store: Box<dyn ObjectStore>, prefix: &str) -> Remote {
        Remote {
            store,
            prefix: prefix.to_owned(),
            cache: Mutex::default(),
            counters: TierCounters::default(),
        }
    }

    pub(crate) fn cache(&self) -> MutexGuard<'_, PartCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stream_prefix(&self, stream: QueueId) -> String {
        format!("{}streams/{:016x}/", self.prefix, stream.0)
    }

    pub(crate) fn manifest_prefix(&self, stream: QueueId) -> String {
        format!("{}manifest/", self.stream_prefix(stream))
    }

    pub(crate) fn manifest_key(&self, stream: QueueId, id: ManifestId) -> String {
        let ManifestId { epoch, version } = id;
        format!("{}{epoch:020}-{version:020}", self.manifest_prefix(stream))
    }

    /// The identity in the name of a manifest.
    pub(crate) fn manifest_id(&self, stream: QueueId, key: &str) -> Option<ManifestId> {
        let name = key.strip_prefix(&self.manifest_prefix(stream))?;
        let (epoch, version) = name.split_once('-')?;
        let id = ManifestId {
            epoch: epoch.parse().ok()?,
            version: version.parse().ok()?,
        };
        (self.manifest_key(stream, id) == key).then_some(id)
    }

    fn segment_prefix(&self, stream: QueueId, entry: &SegmentEntry) -> String {
        let SegmentEntry {
            first_offset,
            epoch,
            attempt,
            ..
        } = entry;
        let stream = self.stream_prefix(stream);
        format!("{stream}segments/{first_offset:020}-{epoch:020}-{attempt:020}/")
    }

    pub(crate) fn index_key(&self, stream: QueueId, entry: &SegmentEntry) -> String {
        format!("{}index", self.segment_prefix(stream, entry))
    }

    pub(crate) fn part_key(&self, stream: QueueId, entry: &SegmentEntry, part: u32) -> String {
        format!("{}part-{part:08}", self.segment_prefix(stream, entry))
    }
}
