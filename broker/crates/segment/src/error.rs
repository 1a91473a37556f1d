//! Errors of segment and checkpoint files.
use env::disk::{SHORTAGE_REMEDY, is_full, is_shortage};
use std::io;
use wal::GroupId;

/// Why a segment or checkpoint file could not be written or read. Each error names the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The disk is full. Partial files were removed; the same call succeeds once there is space.
    #[error("{file}: no space left on the disk ({error})")]
    Full {
        /// Path of the file.
        file: String,
        /// The operating system's error.
        error: String,
    },
    /// Descriptors or memory are short; the file itself is intact. Otherwise as [`SegmentError::Full`],
    /// except that a completed file may stay, and a repeated call writes another one.
    #[error("{file} cannot be used now: {error}; {}", SHORTAGE_REMEDY)]
    Shortage {
        /// Path of the file.
        file: String,
        /// The operating system's error.
        error: String,
    },
    /// An fsync failed. The state of the disk is unknown, so the node must stop.
    #[error("fsync of {file} failed: {error}")]
    Sync {
        /// Path of the file.
        file: String,
        /// The operating system's error.
        error: String,
    },
    /// Another operation on the file failed.
    #[error("{file}: {error}")]
    Io {
        /// Path of the file.
        file: String,
        /// The operating system's error.
        error: String,
    },
    /// The file is damaged.
    #[error("{file} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// Path of the file.
        file: String,
        /// Offset of the damage in bytes.
        offset: u64,
        /// The damage at that position.
        what: String,
    },
    /// The file was written by a newer version of the broker.
    #[error(
        "{file} has format version {version}, this version of Posthorn reads up to {known}: \
         it was written by a newer version and is left untouched"
    )]
    Newer {
        /// Path of the file.
        file: String,
        /// Format version of the file.
        version: u8,
        /// Newest format version that this version reads.
        known: u8,
    },
    /// The file belongs to another group.
    #[error("{file} belongs to group {:016x}, not to {:016x}", found.0, expected.0)]
    OtherGroup {
        /// Path of the file.
        file: String,
        /// The group in whose directory the file is.
        expected: GroupId,
        /// The group named in the file.
        found: GroupId,
    },
    /// A limit of the format is exceeded.
    #[error("{file}: {what} has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        /// Path of the file.
        file: String,
        /// The object that is too large.
        what: &'static str,
        /// Its length in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// The entries were not in ascending order.
    #[error("group {:016x}: entry {index} does not follow {after}", group.0)]
    Unordered {
        /// The group of the entries.
        group: GroupId,
        /// Index of the previous entry.
        after: u64,
        /// Index of the entry out of order.
        index: u64,
    },
}

impl SegmentError {
    /// A failed operation on a file, other than an fsync.
    pub fn io(file: &str, error: &io::Error) -> SegmentError {
        let (file, text) = (file.to_owned(), error.to_string());
        match error {
            full if is_full(full) => SegmentError::Full { file, error: text },
            short if is_shortage(short) => SegmentError::Shortage { file, error: text },
            _ => SegmentError::Io { file, error: text },
        }
    }

    pub(crate) fn sync(file: &str, error: &io::Error) -> SegmentError {
        if is_shortage(error) && !is_full(error) {
            // The directory could not be opened, so no fsync was attempted.
            return SegmentError::io(file, error);
        }
        SegmentError::Sync {
            file: file.to_owned(),
            error: error.to_string(),
        }
    }

    /// True if the same call can succeed later: space, descriptors or memory are short.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            SegmentError::Full { .. } | SegmentError::Shortage { .. }
        )
    }

    pub(crate) fn corrupt(file: &str, offset: u64, what: impl Into<String>) -> SegmentError {
        SegmentError::Corrupt {
            file: file.to_owned(),
            offset,
            what: what.into(),
        }
    }
}
