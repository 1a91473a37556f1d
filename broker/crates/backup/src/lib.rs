//! The archive of a backup: definitions, the messages of queues, and retained MQTT messages.
//!
//! A backup with the name `NAME` is the objects below `NAME/` in an object store:
//!
//! ```text
//! NAME/definitions.json           the document of GET /api/definitions
//! NAME/messages/<queue>/<part>    records of messages; numbers with eight digits from 0
//! NAME/retained/<vhost>/<part>    records of retained MQTT messages
//! NAME/names.json                 names of queues and virtual hosts, if the backup is encrypted
//! NAME/manifest.json              written last: without it the backup is incomplete
//! ```
//!
//! The manifest names each queue and each object with its length and SHA-256. [`records`], [`chunks`] and [`retained`] are the
//! formats of the parts of queues, of streams and of retained messages, which are also those of the HTTP API. An archive is untrusted input: names, lengths and counts are checked, each object is read
//! with a limit, and errors name the object. All objects but the manifest can be encrypted, see [`age`].
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

pub mod age;
mod archive;
pub mod chunks;
mod directory;
mod frame;
mod kind;
mod manifest;
mod prefix;
pub mod records;
pub mod retained;

pub use archive::{
    ArchiveError, ArchiveWriter, ArchivedBackup, BackupInfo, MAX_DEFINITIONS_BYTES,
    MAX_MANIFEST_BYTES, MAX_PART_BYTES, PART_BYTES, Verified, delete, list, open, open_with_names,
    read_definitions, read_part, verify,
};
pub use directory::DirectoryStore;
pub use frame::RecordsError;
pub use kind::RecordKind;
pub use manifest::{
    BackupName, Encryption, Manifest, ManifestError, NameError, ObjectEntry, PartNumber,
    QueueContent, QueueEntry, RetainedEntry,
};
pub use prefix::PrefixStore;
pub use stream_tier::{ObjectStore, StoreError};

#[cfg(test)]
mod tests;
