//! The manifest of a backup: a JSON document whose last line has the SHA-256 of the bytes before that line.

use crate::kind::RecordKind;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::fmt;

/// The value of `format`.
const FORMAT: &str = "posthorn-backup";
/// Newest version of the format. Version 2 has messages of streams and retained messages. A backup without them has version 1,
/// which older versions of Posthorn read.
const FORMAT_VERSION: u32 = 2;
/// Oldest version that is read.
const OLDEST_VERSION: u32 = 1;
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

    pub(crate) fn names_key(&self) -> String {
        format!("{}/names.json", self.0)
    }

    pub(crate) fn manifest_key(&self) -> String {
        format!("{}/manifest.json", self.0)
    }

    pub(crate) fn part_key(&self, at: PartNumber) -> String {
        let (directory, owner, part) = match at {
            PartNumber::Queue(queue, part) => (MESSAGES, queue, part),
            PartNumber::Retained(vhost, part) => (RETAINED, vhost, part),
        };
        format!("{}/{directory}/{owner:08}/{part:08}", self.0)
    }

    /// The part that has this key.
    pub(crate) fn part_number(&self, key: &str) -> Option<PartNumber> {
        let rest = key.strip_prefix(&self.prefix())?;
        let (directory, numbers) = rest.split_once('/')?;
        let (owner, part) = numbers.split_once('/')?;
        let (owner, part) = (owner.parse().ok()?, part.parse().ok()?);
        let number = match directory {
            MESSAGES => PartNumber::Queue(owner, part),
            RETAINED => PartNumber::Retained(owner, part),
            _ => return None,
        };
        (self.part_key(number) == key).then_some(number)
    }
}

impl fmt::Display for BackupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Directory of the messages of queues.
const MESSAGES: &str = "messages";
/// Directory of retained messages.
const RETAINED: &str = "retained";

/// The position of a part in the manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartNumber {
    /// The numbers of a queue and of its part.
    Queue(usize, usize),
    /// The numbers of a virtual host with retained messages and of its part.
    Retained(usize, usize),
}

/// An object of a backup. Its name follows from its place in the manifest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectEntry {
    /// Length in bytes.
    pub bytes: u64,
    /// SHA-256 of the content, in hexadecimal digits.
    pub sha256: String,
    /// Number of messages; 0 for other objects.
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
    /// The queue is a stream: only its definition is. Older versions write it, and newer ones while the feature flag
    /// `stream_backups` is disabled.
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

/// The retained messages of a virtual host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetainedEntry {
    /// Virtual host.
    pub vhost: String,
    /// Number of messages.
    pub messages: u64,
    /// Bytes of the objects.
    pub bytes: u64,
    /// The objects with the messages, ordered by topic.
    pub objects: Vec<ObjectEntry>,
}

/// The encryption of a backup. Its manifest has no names of queues and virtual hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encryption {
    /// The format of the objects: `age`.
    pub format: String,
    /// The object with the names.
    pub names: ObjectEntry,
}

/// The names that the manifest of an encrypted backup does not have.
#[derive(Debug, Serialize, Deserialize)]
struct Names {
    /// Virtual host and name of each queue, in the order of the manifest.
    queues: Vec<(String, String)>,
    /// Virtual hosts with retained messages, in the order of the manifest.
    retained: Vec<String>,
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
    /// Virtual hosts with retained messages. Backups of version 1 have none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub retained: Vec<RetainedEntry>,
    /// The encryption of all objects besides the manifest. `None`: they are not encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
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
        "it has format '{0}' version {1}, and this version of Posthorn reads '{FORMAT}' versions {OLDEST_VERSION} to {FORMAT_VERSION}"
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
    /// Number of messages of queues.
    pub fn messages(&self) -> u64 {
        let queues = self.queues.iter();
        queues.fold(0, |sum, queue| sum.saturating_add(queue.messages))
    }

    /// Number of retained messages.
    pub fn retained_messages(&self) -> u64 {
        let retained = self.retained.iter();
        retained.fold(0, |sum, vhost| sum.saturating_add(vhost.messages))
    }

    /// Bytes of all objects besides the manifest.
    pub fn bytes(&self) -> u64 {
        let queues = self.queues.iter().map(|queue| queue.bytes);
        let retained = self.retained.iter().map(|vhost| vhost.bytes);
        let definitions = self.definitions.bytes;
        let names = self
            .encryption
            .iter()
            .map(|encryption| encryption.names.bytes);
        let all = queues.chain(retained).chain(names);
        all.fold(definitions, |sum, bytes| sum.saturating_add(bytes))
    }

    /// Encodes the names of queues and virtual hosts.
    pub(crate) fn encode_names(&self) -> Vec<u8> {
        let queues = self.queues.iter();
        let names = Names {
            queues: queues.map(|q| (q.vhost.clone(), q.name.clone())).collect(),
            retained: self.retained.iter().map(|v| v.vhost.clone()).collect(),
        };
        // Texts can always be serialized.
        serde_json::to_vec(&names).unwrap_or_default()
    }

    /// The same manifest without the names of queues and virtual hosts.
    pub(crate) fn without_names(&self) -> Manifest {
        let mut manifest = self.clone();
        for queue in &mut manifest.queues {
            queue.vhost.clear();
            queue.name.clear();
        }
        for vhost in &mut manifest.retained {
            vhost.vhost.clear();
        }
        manifest
    }

    /// Sets the names of queues and virtual hosts. Fails with the reason.
    pub(crate) fn set_names(&mut self, document: &[u8]) -> Result<(), String> {
        let names: Names = serde_json::from_slice(document).map_err(|error| error.to_string())?;
        let counts = (names.queues.len(), names.retained.len());
        if counts != (self.queues.len(), self.retained.len()) {
            return Err("its names are not those of the manifest".to_owned());
        }
        for (queue, (vhost, name)) in self.queues.iter_mut().zip(names.queues) {
            (queue.vhost, queue.name) = (vhost, name);
        }
        for (entry, vhost) in self.retained.iter_mut().zip(names.retained) {
            entry.vhost = vhost;
        }
        Ok(())
    }

    /// The entry of a part.
    pub(crate) fn part(&self, at: PartNumber) -> Option<&ObjectEntry> {
        match at {
            PartNumber::Queue(queue, part) => self.queues.get(queue)?.objects.get(part),
            PartNumber::Retained(vhost, part) => self.retained.get(vhost)?.objects.get(part),
        }
    }

    /// The kind of the records of a part.
    pub(crate) fn kind(&self, at: PartNumber) -> RecordKind {
        match at {
            PartNumber::Queue(queue, _) => {
                let kind = self.queues.get(queue).map(|queue| queue.kind.as_str());
                RecordKind::of_queue(kind.unwrap_or_default())
            }
            PartNumber::Retained(..) => RecordKind::Retained,
        }
    }

    /// The parts in their order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = PartNumber> {
        let queues = self.queues.iter().enumerate().flat_map(|(number, queue)| {
            (0..queue.objects.len()).map(move |part| PartNumber::Queue(number, part))
        });
        let retained = self.retained.iter().enumerate();
        let retained = retained.flat_map(|(number, vhost)| {
            (0..vhost.objects.len()).map(move |part| PartNumber::Retained(number, part))
        });
        queues.chain(retained)
    }

    /// The oldest version of the format that has everything of this backup.
    fn version(&self) -> u32 {
        let has_chunks = |queue: &QueueEntry| {
            RecordKind::of_queue(&queue.kind) == RecordKind::Chunks && !queue.objects.is_empty()
        };
        let is_new = self.queues.iter().any(has_chunks)
            || !self.retained.is_empty()
            || self.encryption.is_some();
        match is_new {
            true => FORMAT_VERSION,
            false => OLDEST_VERSION,
        }
    }

    /// The document.
    pub fn encode(&self) -> Vec<u8> {
        let manifest = Manifest {
            format: FORMAT.to_owned(),
            format_version: self.version(),
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
        if format != FORMAT || !(OLDEST_VERSION..=FORMAT_VERSION).contains(&format_version) {
            return Err(ManifestError::Format(format, format_version));
        }
        let manifest: Manifest = serde_json::from_str(text).map_err(json)?;
        for queue in &manifest.queues {
            if !adds_up(&queue.objects, queue.messages, queue.bytes) {
                return Err(ManifestError::Contradiction(format!(
                    "the objects of queue '{}' in vhost '{}' do not add up to its messages and bytes",
                    queue.name, queue.vhost
                )));
            }
        }
        for vhost in &manifest.retained {
            if !adds_up(&vhost.objects, vhost.messages, vhost.bytes) {
                return Err(ManifestError::Contradiction(format!(
                    "the objects of the retained messages in vhost '{}' do not add up to their number and bytes",
                    vhost.vhost
                )));
            }
        }
        Ok(manifest)
    }
}

fn adds_up(objects: &[ObjectEntry], messages: u64, bytes: u64) -> bool {
    let sum = |of: fn(&ObjectEntry) -> u64| {
        let mut objects = objects.iter();
        objects.try_fold(0u64, |sum, object| sum.checked_add(of(object)))
    };
    sum(|object| object.messages) == Some(messages) && sum(|object| object.bytes) == Some(bytes)
}
