//! Errors of the files of a stream.

use env::disk::{SHORTAGE_REMEDY, is_full, is_shortage};
use ids::QueueId;
use std::io;

/// Why a file of a stream could not be written or read. Each error names the file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LogError {
    /// The disk is full. The same call succeeds once there is space.
    #[error("{file}: no space left on the disk ({error})")]
    Full {
        /// Path of the file.
        file: String,
        /// The operating system's error.
        error: String,
    },
    /// Descriptors or memory are short; the file itself is intact.
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
    /// The file is damaged. Another replica or the object store may have it undamaged.
    #[error("{file} is damaged at byte {position}: {what}")]
    Corrupt {
        /// Path of the file.
        file: String,
        /// Position of the damage in bytes.
        position: u64,
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
        version: u32,
        /// Newest format version that this version reads.
        known: u32,
    },
    /// The object store with old segments does not have the data now. The same call can succeed later.
    #[error("{error}")]
    Remote {
        /// The object and the error.
        error: String,
    },
    /// The offset is no longer in the log of this replica: retention deleted it.
    #[error("stream {}: offset {offset} was deleted by retention, the first offset is {first_offset}", stream.0)]
    Deleted {
        /// The stream.
        stream: QueueId,
        /// The offset that was asked for.
        offset: u64,
        /// First offset in the log.
        first_offset: u64,
    },
}

impl LogError {
    /// A failed operation on a file, other than an fsync.
    pub(crate) fn io(file: &str, error: &io::Error) -> LogError {
        let (file, text) = (file.to_owned(), error.to_string());
        match error {
            full if is_full(full) => LogError::Full { file, error: text },
            short if is_shortage(short) => LogError::Shortage { file, error: text },
            _ => LogError::Io { file, error: text },
        }
    }

    pub(crate) fn sync(file: &str, error: &io::Error) -> LogError {
        if is_shortage(error) && !is_full(error) {
            // The directory could not be opened, so no fsync was attempted.
            return LogError::io(file, error);
        }
        LogError::Sync {
            file: file.to_owned(),
            error: error.to_string(),
        }
    }

    pub(crate) fn corrupt(file: &str, position: u64, what: impl ToString) -> LogError {
        LogError::Corrupt {
            file: file.to_owned(),
            position,
            what: what.to_string(),
        }
    }

    /// True if the same call can succeed later: space, descriptors or memory are short.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            LogError::Full { .. } | LogError::Shortage { .. } | LogError::Remote { .. }
        )
    }
}
