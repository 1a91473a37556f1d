use env::disk::{SHORTAGE_REMEDY, is_full, is_shortage};
use std::io;
use wal::GroupId;

/// Why a segment or checkpoint file could not be written or read. Each names the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// No space. What was begun is gone again; the same call works once there is space.
    #[error("{file}: no space left on the disk ({error})")]
    Full { file: String, error: String },
    /// Descriptors or memory are short, and nothing is wrong with the file. As for [`SegmentError::Full`], but a file that
    /// was completed may stay; a repeated call makes another one.
    #[error("{file} cannot be used now: {error}; {}", SHORTAGE_REMEDY)]
    Shortage { file: String, error: String },
    /// What the disk holds after a failed fsync is unknown, so the node must not go on.
    #[error("fsync of {file} failed: {error}")]
    Sync { file: String, error: String },
    #[error("{file}: {error}")]
    Io { file: String, error: String },
    #[error("{file} is damaged at byte {offset}: {what}")]
    Corrupt {
        file: String,
        offset: u64,
        what: String,
    },
    #[error(
        "{file} has format version {version}, this program knows up to {known}: \
         it was written by a newer one and is left untouched"
    )]
    Newer {
        file: String,
        version: u8,
        known: u8,
    },
    #[error("{file} belongs to group {:016x}, not to {:016x}", found.0, expected.0)]
    OtherGroup {
        file: String,
        expected: GroupId,
        found: GroupId,
    },
    /// Over a limit of the format.
    #[error("{file}: {what} has {bytes} bytes, the limit is {limit}")]
    TooLarge {
        file: String,
        what: &'static str,
        bytes: u64,
        limit: u64,
    },
    /// Entries were given in another order than ascending.
    #[error("group {:016x}: entry {index} does not follow {after}", group.0)]
    Unordered {
        group: GroupId,
        after: u64,
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
            // The directory could not be opened: there was no fsync that could fail.
            return SegmentError::io(file, error);
        }
        SegmentError::Sync {
            file: file.to_owned(),
            error: error.to_string(),
        }
    }

    /// Returns true if the same call can succeed later: space, descriptors or memory are short.
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
