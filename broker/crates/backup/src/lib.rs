//! The archive of a backup: definitions, and the messages of queues.
//!
//! A backup with the name `NAME` is the objects below `NAME/` in an object store:
//!
//! ```text
//! NAME/definitions.json           the document of GET /api/definitions
//! NAME/messages/<queue>/<part>    records of messages; numbers with eight digits from 0
//! NAME/manifest.json              written last: without it the backup is incomplete
//! ```
//!
//! The manifest names each queue and each object with its length and SHA-256. [`records`] is the format of the parts, which
//! is also that of the HTTP API. An archive is untrusted input: names, lengths and counts are checked, each object is read
//! with a limit, and errors name the object.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod archive;
mod directory;
mod manifest;
mod prefix;
pub mod records;

pub use archive::{
    ArchiveError, ArchiveWriter, ArchivedBackup, BackupInfo, MAX_DEFINITIONS_BYTES,
    MAX_MANIFEST_BYTES, MAX_PART_BYTES, PART_BYTES, Verified, delete, list, open, read_definitions,
    read_part, verify,
};
pub use directory::DirectoryStore;
pub use manifest::{
    BackupName, Manifest, ManifestError, NameError, ObjectEntry, QueueContent, QueueEntry,
};
pub use prefix::PrefixStore;
pub use stream_tier::{ObjectStore, StoreError};

#[cfg(test)]
mod tests;
