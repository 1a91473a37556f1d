//! Errors of the write-ahead log.
use crate::format;
use env::NodeId;
use env::disk::{SHORTAGE_REMEDY, is_full, is_shortage};
use std::io;

/// Why an operation on the log failed. [`WalError::is_fatal`] tells which errors stop the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalError {
    /// The disk is full. Nothing of the batch is in the log; the same call succeeds once there is space.
    #[error("write-ahead log: no space left on the disk ({error})")]
    Full {
        /// The operating system's error.
        error: String,
    },
    /// Descriptors or memory are short. Otherwise as [`WalError::Full`].
    #[error(
        "write-ahead log: {file} cannot be used now: {error}; {}",
        SHORTAGE_REMEDY
    )]
    Shortage {
        /// Path of the file.
        file: String,
        /// The operating system's error.
        error: String,
    },
    /// A record exceeds [`crate::MAX_RECORD_BYTES`]. Nothing of the batch is in the log.
    #[error("write-ahead log: a record of {bytes} bytes is over the limit of {limit}")]
    TooLarge {
        /// Length of the record in bytes.
        bytes: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// An fsync failed. The state of the disk is unknown, so the node must stop.
    #[error("write-ahead log: fsync of {file} failed: {error}")]
    Sync {
        /// Path of the file.
        file: String,
        /// The operating system's error.
        error: String,
    },
    /// Another operation on a file failed.
    #[error("write-ahead log: {file}: {error}")]
    Io {
        /// Path of the file.
        file: String,
        /// The operating system's error.
        error: String,
    },
    /// Durable records are damaged or missing.
    #[error("write-ahead log: {file} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// Path of the file.
        file: String,
        /// Offset of the damage in bytes.
        offset: u64,
        /// The damage at that position.
        what: String,
    },
    /// Log files are missing.
    #[error("write-ahead log: {missing} is missing from {directory}/: {what}")]
    Missing {
        /// The directory of the log.
        directory: &'static str,
        /// Paths of the missing files.
        missing: String,
        /// How the loss was detected.
        what: String,
    },
    /// The file was written by a newer version of the broker.
    #[error(
        "write-ahead log: {file} has format version {version}, this version of Posthorn reads up to {known}: \
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
    /// The file belongs to another node.
    #[error(
        "write-ahead log: {file} belongs to node {:016x}, this is node {:016x}", found.0, expected.0
    )]
    OtherNode {
        /// Path of the file.
        file: String,
        /// This node.
        expected: NodeId,
        /// The node named in the file.
        found: NodeId,
    },
    /// An earlier call failed fatally.
    #[error("write-ahead log: stopped after an earlier failure: {0}")]
    Stopped(String),
}

impl WalError {
    pub(crate) fn io(file: &str, error: &io::Error) -> WalError {
        if is_full(error) {
            return WalError::Full {
                error: error.to_string(),
            };
        }
        let (file, text) = (file.to_owned(), error.to_string());
        match is_shortage(error) {
            true => WalError::Shortage { file, error: text },
            false => WalError::Io { file, error: text },
        }
    }

    /// A directory sync failed. If the directory could not be opened for lack of a descriptor, no fsync was
    /// attempted.
    pub(crate) fn sync_dir(dir: &str, error: &io::Error) -> WalError {
        match is_shortage(error) && !is_full(error) {
            true => WalError::io(dir, error),
            false => WalError::sync(dir, error),
        }
    }

    pub(crate) fn sync(file: &str, error: &io::Error) -> WalError {
        WalError::Sync {
            file: file.to_owned(),
            error: error.to_string(),
        }
    }

    /// The files from `first` to `last` are missing.
    pub(crate) fn missing(first: u64, last: u64, what: impl Into<String>) -> WalError {
        let (from, to) = (format::path(first), format::path(last));
        WalError::Missing {
            directory: format::DIR,
            missing: match first == last {
                true => from,
                false => format!("{from} to {to}"),
            },
            what: what.into(),
        }
    }

    pub(crate) fn corrupt(file: &str, offset: u64, what: impl Into<String>) -> WalError {
        WalError::Corrupt {
            file: file.to_owned(),
            offset,
            what: what.into(),
        }
    }

    /// True if the same call can succeed later: space, descriptors or memory are short.
    pub fn is_passing(&self) -> bool {
        matches!(self, WalError::Full { .. } | WalError::Shortage { .. })
    }

    /// True if the log must not be used after this error.
    pub fn is_fatal(&self) -> bool {
        !self.is_passing() && !matches!(self, WalError::TooLarge { .. })
    }
}
