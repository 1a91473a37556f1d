use crate::format;
use env::NodeId;
use env::disk::{SHORTAGE_REMEDY, is_full, is_shortage};
use std::io;

/// Why the log could not do as asked. [`WalError::is_fatal`] tells which of them end the node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WalError {
    /// No space. Nothing of the batch is in the log; the same call works once there is space again.
    #[error("write-ahead log: no space left on the disk ({error})")]
    Full { error: String },
    /// Descriptors or memory are short. As for [`WalError::Full`].
    #[error(
        "write-ahead log: {file} cannot be used now: {error}; {}",
        SHORTAGE_REMEDY
    )]
    Shortage { file: String, error: String },
    /// A record is over `MAX_RECORD_BYTES`. Nothing of the batch is in the log.
    #[error("write-ahead log: a record of {bytes} bytes is over the limit of {limit}")]
    TooLarge { bytes: u64, limit: u64 },
    /// What the disk holds after a failed fsync is unknown, so the node must not go on.
    #[error("write-ahead log: fsync of {file} failed: {error}")]
    Sync { file: String, error: String },
    #[error("write-ahead log: {file}: {error}")]
    Io { file: String, error: String },
    /// Durable records are damaged or missing.
    #[error("write-ahead log: {file} is damaged at byte {offset}: {what}")]
    Corrupt {
        file: String,
        offset: u64,
        what: String,
    },
    /// Files of the log are missing.
    #[error("write-ahead log: {missing} is missing from {directory}/: {what}")]
    Missing {
        directory: &'static str,
        missing: String,
        what: String,
    },
    #[error(
        "write-ahead log: {file} has format version {version}, this program knows up to {known}: \
         it was written by a newer one and is left untouched"
    )]
    Newer {
        file: String,
        version: u8,
        known: u8,
    },
    #[error(
        "write-ahead log: {file} belongs to node {:016x}, this is node {:016x}", found.0, expected.0
    )]
    OtherNode {
        file: String,
        expected: NodeId,
        found: NodeId,
    },
    /// An earlier call failed for good.
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

    /// A directory could not be synced. If it could not be opened for want of a descriptor, no fsync failed.
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

    /// Returns true if the same call can succeed later: space, descriptors or memory are short.
    pub fn is_passing(&self) -> bool {
        matches!(self, WalError::Full { .. } | WalError::Shortage { .. })
    }

    /// Returns false if the log goes on after this error.
    pub fn is_fatal(&self) -> bool {
        !self.is_passing() && !matches!(self, WalError::TooLarge { .. })
    }
}
