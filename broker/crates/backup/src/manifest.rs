//! The manifest of a backup: a JSON document whose last line has the SHA-256 of the bytes before that line.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;

/// The value of `format`.
const FORMAT: &str = "posthorn-backup";
/// Version of the format.
const FORMAT_VERSION: u32 = 1;
/// Most bytes of the name of a backup.
const MAX_NAME_BYTES: usize = 128;
/// What begins the last line.
const CHECKSUM: &str = ",\n  \"manifest_sha256\": \"";

/// The name of a backup: 1 to 128 letters, digits, `-`, `_` and `.`, of which `.` is not the first.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackupName(String);

/// A text is not the name of a backup.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is not a name of a backup: it must have 1 to 128 letters, digits, '-', '_' and '.', and not begin with '.'"
)]
pub struct NameError(String);

impl BackupName {
    /// Checks a name.
    ///
    /// # Errors
    ///
    /// If it has other characters, or too many or none.
    pub fn new(name: &str) -> Result<BackupName, NameError> {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        let is_valid = (1..=MAX_NAME_BYTES).contains(&name.len())
            && name.chars().all(is_plain)
            && !name.starts_with('.');
        match is_valid {
            true => Ok(BackupName(name.to_owned())),
            false => Err(NameError(name.chars().take(MAX_NAME_BYTES).collect())),
        }
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn prefix(&self) -> String {
        format!("{}/", self.0)
    }

    pub(crate) fn definitions_key(&self) -> String {
        format!("{}/definitions.json", self.0)
    }

    pub(crate) fn manifest_key(&self) -> String {
        format!("{}/manifest.json", self.0)
    }

    pub(crate) fn part_key(&self, queue: usize, part: usize) -> String {
        format!("{}/messages/{queue:08}/{part:08}", self.0)
    }
}

impl fmt::Display for BackupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An object of a backup. Its name follows from its place in the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectEntry {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, in hexadecimal digits.
    pub sha256: String,
    /// Number of records; 0 for other objects.
    #[serde(default)]
    pub messages: u64,
}

impl ObjectEntry {
    /// The entry of an object with this content.
    pub fn of(content: &[u8], messages: u64) -> ObjectEntry {
        ObjectEntry {
            bytes: content.len() as u64,
            sha256: sha256(content),
            messages,
        }
    }
}

/// Whether the messages of a queue are in the backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueContent {
    /// They are.
    #[default]
    Included,
    /// The queue is a stream: only its definition is.
    StreamNotIncluded,
    /// The queue was deleted during the backup: only its definition is.
    Deleted,
}

/// A queue of a backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueEntry {
    /// Virtual host.
    pub vhost: String,
    /// Name.
    pub name: String,
    /// Type: `classic`, `quorum` or `stream`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether its messages are in the backup.
    pub content: QueueContent,
    /// Number of messages.
    pub messages: u64,
    /// Bytes of the objects.
    pub bytes: u64,
    /// The objects with its messages, in the order of the queue.
    pub objects: Vec<ObjectEntry>,
}

/// The manifest of a complete backup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub(crate) format: String,
    pub(crate) format_version: u32,
    /// Name of the cluster.
    pub cluster: String,
    /// Version of the broker.
    pub broker_version: String,
    /// When the backup was started, in milliseconds since 1970. It has all messages that were in their queues then and until
    /// they were read.
    pub started_ms: u64,
    /// When the last message was read, in milliseconds since 1970.
    pub finished_ms: u64,
    /// The same times as texts.
    pub started_at: String,
    /// See `started_at`.
    pub finished_at: String,
    /// The definitions.
    pub definitions: ObjectEntry,
    /// The queues in their order.
    pub queues: Vec<QueueEntry>,
}

/// Why a document is not a manifest.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// Its last line is missing or does not fit.
    #[error("its checksum is wrong or missing")]
    Checksum,
    /// It is not JSON, or members are missing.
    #[error("it cannot be parsed: {0}")]
    Json(String),
    /// Another format, or a newer version.
    #[error(
        "it has format '{0}' version {1}, and this version of Posthorn reads '{FORMAT}' version {FORMAT_VERSION}"
    )]
    Format(String, u32),
    /// Numbers contradict each other.
    #[error("{0}")]
    Contradiction(String),
}

pub(crate) fn sha256(content: &[u8]) -> String {
    let digest = Sha256::digest(content);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Manifest {
    /// Number of messages.
    pub fn messages(&self) -> u64 {
        let queues = self.queues.iter();
        queues.fold(0, |sum, queue| sum.saturating_add(queue.messages))
    }

    /// Bytes of all objects besides the manifest.
    pub fn bytes(&self) -> u64 {
        let queues = self.queues.iter();
        let definitions = self.definitions.bytes;
        queues.fold(definitions, |sum, queue| sum.saturating_add(queue.bytes))
    }

    /// The document.
    pub fn encode(&self) -> Vec<u8> {
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            format_version: FORMAT_VERSION,
            ..self.clone()
        };
        // Texts and numbers can always be serialized.
        let text = serde_json::to_string_pretty(&manifest).unwrap_or_default();
        let text = text.strip_suffix("\n}").unwrap_or(&text);
        let sum = sha256(text.as_bytes());
        format!("{text}{CHECKSUM}{sum}\"\n}}\n").into_bytes()
    }

    /// Reads a document. Memory: a small multiple of its length.
    ///
    /// # Errors
    ///
    /// The contradiction.
    pub fn decode(document: &[u8]) -> Result<Manifest, ManifestError> {
        let text = std::str::from_utf8(document);
        let text = text.map_err(|error| ManifestError::Json(error.to_string()))?;
        let (covered, sum) = text.rsplit_once(CHECKSUM).ok_or(ManifestError::Checksum)?;
        if sum.strip_suffix("\"\n}\n") != Some(&sha256(covered.as_bytes())) {
            return Err(ManifestError::Checksum);
        }
        #[derive(Deserialize)]
        struct Format {
            format: String,
            format_version: u32,
        }
        let json = |error: serde_json::Error| ManifestError::Json(error.to_string());
        let Format {
            format,
            format_version,
        } = serde_json::from_str(text).map_err(json)?;
        if format != FORMAT || format_version != FORMAT_VERSION {
            return Err(ManifestError::Format(format, format_version));
        }
        let manifest: Manifest = serde_json::from_str(text).map_err(json)?;
        for queue in &manifest.queues {
            let sum = |of: fn(&ObjectEntry) -> u64| {
                let mut objects = queue.objects.iter();
                objects.try_fold(0u64, |sum, object| sum.checked_add(of(object)))
            };
            let is_right = sum(|object| object.messages) == Some(queue.messages)
                && sum(|object| object.bytes) == Some(queue.bytes);
            if !is_right {
                return Err(ManifestError::Contradiction(format!(
                    "the objects of queue '{}' in vhost '{}' do not add up to its messages and bytes",
                    queue.name, queue.vhost
                )));
            }
        }
        Ok(manifest)
    }
}
