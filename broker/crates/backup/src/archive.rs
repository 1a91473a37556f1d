//! Writing, reading and verifying a backup in an object store.

use crate::age::{self, AgeError, Identity, Recipient, encrypted_limit};
use crate::frame::RecordsError;
use crate::manifest::{
    BackupName, Encryption, Manifest, ManifestError, ObjectEntry, PartNumber, QueueContent,
    QueueEntry, RetainedEntry, sha256,
};
use crate::records::MAX_CONTENT_BYTES;
use audit::rfc3339;
use bytes::Bytes;
use env::WallTime;
use stream_tier::{ObjectStore, StoreError};

/// Bytes after which a part ends. Its last message may exceed them.
pub const PART_BYTES: usize = 16 << 20;
/// Most bytes of a part: a message has to fit into one.
pub const MAX_PART_BYTES: u64 = (PART_BYTES + MAX_CONTENT_BYTES + (1 << 10)) as u64;
/// Most bytes of the definitions.
pub const MAX_DEFINITIONS_BYTES: u64 = 256 << 20;
/// Most bytes of a manifest.
pub const MAX_MANIFEST_BYTES: u64 = 64 << 20;
/// The only format of encrypted objects.
const ENCRYPTION: &str = "age";
/// Attempts of a call that the store did not do.
const ATTEMPTS: usize = 3;

/// Why a backup cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Objects with this name exist.
    #[error(
        "a backup '{0}' exists, complete or not, or other objects have this name: choose another name, or delete them"
    )]
    Exists(BackupName),
    /// There are no objects with this name.
    #[error("there is no backup '{0}'")]
    Missing(BackupName),
    /// There is no manifest.
    #[error(
        "backup '{0}' is incomplete: it has no manifest, because it was not finished. Use another one, or delete it"
    )]
    Incomplete(BackupName),
    /// The manifest is damaged.
    #[error("the manifest of backup '{name}' is not usable: {error}")]
    Manifest {
        /// The backup.
        name: BackupName,
        /// The reason.
        error: ManifestError,
    },
    /// An object is not the one that was written.
    #[error("object '{key}' is damaged: {reason}. Use another backup")]
    Damaged {
        /// Its key.
        key: String,
        /// The reason.
        reason: String,
    },
    /// The backup is encrypted, and there is no identity.
    #[error("backup '{0}' is encrypted: give the file of an identity that can decrypt it")]
    Encrypted(BackupName),
    /// No identity can decrypt an object.
    #[error(
        "object '{key}' cannot be decrypted with the given identity: it is encrypted for other recipients"
    )]
    WrongIdentity {
        /// Its key.
        key: String,
    },
    /// An object was not encrypted.
    #[error("object '{key}' cannot be encrypted: {error}")]
    NotEncrypted {
        /// Its key.
        key: String,
        /// The reason.
        error: AgeError,
    },
    /// An object was read back with other bytes than were written.
    #[error(
        "object '{key}' was written, and read back with other bytes: do not rely on this store"
    )]
    NotVerified {
        /// Its key.
        key: String,
    },
    /// The server has sent something else than records.
    #[error("the messages of {owner} cannot be read: {error}")]
    Records {
        /// The queue or the virtual host.
        owner: String,
        /// The reason.
        error: RecordsError,
    },
}

/// Facts about a backup that is begun.
#[derive(Clone, Debug, Default)]
pub struct BackupInfo {
    /// Name of the cluster.
    pub cluster: String,
    /// Version of the broker.
    pub broker_version: String,
    /// When it is started, in milliseconds since 1970.
    pub started_ms: u64,
    /// Recipients for whom the objects are encrypted. Empty: they are not encrypted.
    pub recipients: Vec<Recipient>,
}

/// Encrypts an object, if there are recipients.
fn seal(recipients: &[Recipient], key: &str, content: Bytes) -> Result<Bytes, ArchiveError> {
    if recipients.is_empty() {
        return Ok(content);
    }
    let sealed = age::encrypt(recipients, &content).map_err(|error| ArchiveError::NotEncrypted {
        key: key.to_owned(),
        error,
    });
    Ok(sealed?.into())
}

/// Decrypts an object, if its backup is encrypted.
fn unseal(
    (name, manifest): (&BackupName, &Manifest),
    identities: &[Identity],
    key: &str,
    content: Bytes,
) -> Result<Bytes, ArchiveError> {
    if manifest.encryption.is_none() {
        return Ok(content);
    }
    if identities.is_empty() {
        return Err(ArchiveError::Encrypted(name.clone()));
    }
    let key = key.to_owned();
    match age::decrypt(identities, &content) {
        Ok(content) => Ok(content.into()),
        Err(AgeError::WrongIdentity) => Err(ArchiveError::WrongIdentity { key }),
        Err(error) => Err(ArchiveError::Damaged {
            key,
            reason: error.to_string(),
        }),
    }
}

/// Makes a call again if the store did not do it.
fn retry<T>(mut call: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    for _ in 1..ATTEMPTS {
        match call() {
            Err(StoreError::Unavailable { .. }) => {}
            result => return result,
        }
    }
    call()
}

/// Writes an object and reads it back.
fn write(store: &dyn ObjectStore, key: &str, content: &Bytes) -> Result<(), ArchiveError> {
    let mut attempts = 0;
    let written = retry(|| {
        attempts += 1;
        match store.create(key, content.clone()) {
            // An attempt before has created it. It is compared below.
            Err(StoreError::Exists { .. }) if attempts > 1 => Ok(()),
            result => result,
        }
    });
    written?;
    let read = retry(|| store.get(key, content.len() as u64))?;
    match read == *content {
        true => Ok(()),
        false => Err(ArchiveError::NotVerified {
            key: key.to_owned(),
        }),
    }
}

/// Writes a backup. Memory: one part, and the entries of the manifest.
pub struct ArchiveWriter<'a> {
    store: &'a dyn ObjectStore,
    name: BackupName,
    manifest: Manifest,
    recipients: Vec<Recipient>,
    /// The open queue or virtual host.
    open: Option<OpenEntry>,
    part: Vec<u8>,
    part_messages: u64,
}

/// The entry that gets messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OpenEntry {
    Queue,
    Retained,
}

/// An error of a page, before its queue is known.
enum PageError {
    Records(RecordsError),
    Archive(ArchiveError),
}

impl From<RecordsError> for PageError {
    fn from(error: RecordsError) -> PageError {
        PageError::Records(error)
    }
}

impl std::fmt::Debug for ArchiveWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ArchiveWriter({})", self.name)
    }
}

impl<'a> ArchiveWriter<'a> {
    /// Begins a backup with its definitions.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Exists`], or the store failed.
    pub fn begin(
        store: &'a dyn ObjectStore,
        name: BackupName,
        info: BackupInfo,
        definitions: &Bytes,
    ) -> Result<ArchiveWriter<'a>, ArchiveError> {
        if !retry(|| store.list(&name.prefix(), ""))?.is_empty() {
            return Err(ArchiveError::Exists(name));
        }
        let key = name.definitions_key();
        let definitions = seal(&info.recipients, &key, definitions.clone())?;
        match write(store, &key, &definitions) {
            // Another process has begun a backup with this name.
            Err(ArchiveError::Store(StoreError::Exists { .. })) => {
                return Err(ArchiveError::Exists(name));
            }
            result => result?,
        }
        let manifest = Manifest {
            cluster: info.cluster,
            broker_version: info.broker_version,
            started_ms: info.started_ms,
            started_at: rfc3339(WallTime(info.started_ms)),
            definitions: ObjectEntry::of(&definitions, 0),
            ..Manifest::default()
        };
        Ok(ArchiveWriter {
            store,
            name,
            manifest,
            recipients: info.recipients,
            open: None,
            part: Vec::new(),
            part_messages: 0,
        })
    }

    /// Begins the next queue.
    pub fn begin_queue(&mut self, vhost: &str, name: &str, kind: &str) {
        debug_assert!(
            self.open.is_none(),
            "queue '{name}': the one before is open"
        );
        self.open = Some(OpenEntry::Queue);
        self.manifest.queues.push(QueueEntry {
            vhost: vhost.to_owned(),
            name: name.to_owned(),
            kind: kind.to_owned(),
            ..QueueEntry::default()
        });
    }

    /// Begins the retained messages of a virtual host.
    pub fn begin_retained(&mut self, vhost: &str) {
        debug_assert!(self.open.is_none(), "vhost '{vhost}': a queue is open");
        self.open = Some(OpenEntry::Retained);
        self.manifest.retained.push(RetainedEntry {
            vhost: vhost.to_owned(),
            ..RetainedEntry::default()
        });
    }

    /// The number of the next part.
    fn next_part(&self) -> Option<PartNumber> {
        match self.open? {
            OpenEntry::Queue => {
                let queue = self.manifest.queues.last()?;
                let number = self.manifest.queues.len() - 1;
                Some(PartNumber::Queue(number, queue.objects.len()))
            }
            OpenEntry::Retained => {
                let vhost = self.manifest.retained.last()?;
                let number = self.manifest.retained.len() - 1;
                Some(PartNumber::Retained(number, vhost.objects.len()))
            }
        }
    }

    /// Adds messages of the open queue or virtual host, as records of its kind. Returns their number.
    ///
    /// # Errors
    ///
    /// [`ArchiveError::Records`] if a record is invalid, or the store failed.
    pub fn append(&mut self, page: Bytes) -> Result<u64, ArchiveError> {
        let Some(at) = self.next_part() else {
            debug_assert!(false, "no queue is open");
            return Ok(0);
        };
        let kind = self.manifest.kind(at);
        let mut added = 0;
        let result = kind.each(page, |record, messages| {
            if self.part.is_empty() {
                kind.begin(&mut self.part);
            }
            self.part.extend_from_slice(record);
            self.part_messages += messages;
            added += messages;
            match self.part.len() >= PART_BYTES {
                true => self.end_part().map_err(PageError::Archive),
                false => Ok(()),
            }
        });
        match result {
            Ok(()) => Ok(added),
            Err(PageError::Archive(error)) => Err(error),
            Err(PageError::Records(error)) => Err(ArchiveError::Records {
                owner: self.owner(),
                error,
            }),
        }
    }

    /// Names the open queue or virtual host.
    fn owner(&self) -> String {
        let (queue, vhost) = (self.manifest.queues.last(), self.manifest.retained.last());
        match (self.open, queue, vhost) {
            (Some(OpenEntry::Queue), Some(queue), _) => {
                format!("queue '{}' in vhost '{}'", queue.name, queue.vhost)
            }
            (Some(OpenEntry::Retained), _, Some(vhost)) => {
                format!("the retained topics in vhost '{}'", vhost.vhost)
            }
            _ => "no queue".to_owned(),
        }
    }

    fn end_part(&mut self) -> Result<(), ArchiveError> {
        let Some(at) = self.next_part() else {
            return Ok(());
        };
        let key = self.name.part_key(at);
        let content = Bytes::from(std::mem::take(&mut self.part));
        let content = seal(&self.recipients, &key, content)?;
        let entry = ObjectEntry::of(&content, std::mem::take(&mut self.part_messages));
        write(self.store, &key, &content)?;
        let (messages, bytes, objects) = match at {
            PartNumber::Queue(number, _) => match self.manifest.queues.get_mut(number) {
                Some(queue) => (&mut queue.messages, &mut queue.bytes, &mut queue.objects),
                None => return Ok(()),
            },
            PartNumber::Retained(number, _) => match self.manifest.retained.get_mut(number) {
                Some(vhost) => (&mut vhost.messages, &mut vhost.bytes, &mut vhost.objects),
                None => return Ok(()),
            },
        };
        *messages += entry.messages;
        *bytes += entry.bytes;
        objects.push(entry);
        Ok(())
    }

    /// Ends the queue and returns its entry.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn end_queue(&mut self, content: QueueContent) -> Result<QueueEntry, ArchiveError> {
        debug_assert_eq!(self.open, Some(OpenEntry::Queue));
        self.end_entry()?;
        let Some(queue) = self.manifest.queues.last_mut() else {
            return Ok(QueueEntry::default());
        };
        queue.content = content;
        Ok(queue.clone())
    }

    /// Ends the retained messages of the virtual host. One without messages gets no entry.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn end_retained(&mut self) -> Result<(), ArchiveError> {
        debug_assert_eq!(self.open, Some(OpenEntry::Retained));
        self.end_entry()?;
        self.manifest.retained.pop_if(|vhost| vhost.messages == 0);
        Ok(())
    }

    fn end_entry(&mut self) -> Result<(), ArchiveError> {
        if !self.part.is_empty() {
            self.end_part()?;
        }
        self.open = None;
        Ok(())
    }

    /// Writes the manifest, which makes the backup complete. Returns it with all names.
    ///
    /// # Errors
    ///
    /// The store failed.
    pub fn finish(mut self, finished_ms: u64) -> Result<Manifest, ArchiveError> {
        debug_assert!(self.open.is_none(), "the last queue has ended");
        self.manifest.finished_ms = finished_ms;
        self.manifest.finished_at = rfc3339(WallTime(finished_ms));
        let document = match self.recipients.is_empty() {
            true => self.manifest.encode(),
            false => {
                let key = self.name.names_key();
                let names = Bytes::from(self.manifest.encode_names());
                let names = seal(&self.recipients, &key, names)?;
                write(self.store, &key, &names)?;
                self.manifest.encryption = Some(Encryption {
                    format: ENCRYPTION.to_owned(),
                    names: ObjectEntry::of(&names, 0),
                });
                self.manifest.without_names().encode()
            }
        };
        let document = Bytes::from(document);
        write(self.store, &self.name.manifest_key(), &document)?;
        Ok(self.manifest)
    }
}

/// Reads an object that must be the one of an entry.
fn read(
    store: &dyn ObjectStore,
    key: &str,
    entry: &ObjectEntry,
    limit: u64,
) -> Result<Bytes, ArchiveError> {
    let damaged = |reason: String| ArchiveError::Damaged {
        key: key.to_owned(),
        reason,
    };
    if entry.bytes > limit {
        return Err(damaged(format!(
            "the manifest says {} bytes, and the limit is {limit}",
            entry.bytes
        )));
    }
    let content = match retry(|| store.get(key, entry.bytes)) {
        Err(StoreError::Missing { .. }) => return Err(damaged("it is missing".to_owned())),
        result => result?,
    };
    if content.len() as u64 != entry.bytes {
        let relation = match content.len() as u64 > entry.bytes {
            true => "more",
            false => "fewer",
        };
        return Err(damaged(format!(
            "it has {relation} bytes than the {} of the manifest",
            entry.bytes
        )));
    }
    match sha256(&content) == entry.sha256 {
        true => Ok(content),
        false => Err(damaged(
            "its SHA-256 is not that of the manifest".to_owned(),
        )),
    }
}

/// Reads the manifest of a backup.
///
/// # Errors
///
/// [`ArchiveError::Missing`], [`ArchiveError::Incomplete`], [`ArchiveError::Manifest`], or the store failed.
pub fn open(store: &dyn ObjectStore, name: &BackupName) -> Result<Manifest, ArchiveError> {
    let key = name.manifest_key();
    let document = match retry(|| store.get(&key, MAX_MANIFEST_BYTES)) {
        Err(StoreError::Missing { .. }) => {
            let objects = retry(|| store.list(&name.prefix(), ""))?;
            return Err(match objects.is_empty() {
                true => ArchiveError::Missing(name.clone()),
                false => ArchiveError::Incomplete(name.clone()),
            });
        }
        result => result?,
    };
    let unusable = |error| ArchiveError::Manifest {
        name: name.clone(),
        error,
    };
    if document.len() as u64 > MAX_MANIFEST_BYTES {
        let text = format!("it has more than {MAX_MANIFEST_BYTES} bytes");
        return Err(unusable(ManifestError::Contradiction(text)));
    }
    Manifest::decode(&document).map_err(unusable)
}

/// Reads the manifest of a backup, with the names that only an identity reveals if the backup is encrypted.
///
/// # Errors
///
/// As [`open`], [`ArchiveError::Encrypted`], [`ArchiveError::WrongIdentity`] or [`ArchiveError::Damaged`].
pub fn open_with_names(
    store: &dyn ObjectStore,
    name: &BackupName,
    identities: &[Identity],
) -> Result<Manifest, ArchiveError> {
    let mut manifest = open(store, name)?;
    let Some(encryption) = manifest.encryption.clone() else {
        return Ok(manifest);
    };
    let key = name.names_key();
    let names = read(
        store,
        &key,
        &encryption.names,
        encrypted_limit(MAX_MANIFEST_BYTES),
    )?;
    let names = unseal((name, &manifest), identities, &key, names)?;
    let set = manifest.set_names(&names);
    set.map_err(|reason| ArchiveError::Damaged { key, reason })?;
    Ok(manifest)
}

/// Reads the definitions of a backup. Identities are needed if it is encrypted.
///
/// # Errors
///
/// [`ArchiveError::Damaged`], [`ArchiveError::Encrypted`], [`ArchiveError::WrongIdentity`], or the store failed.
pub fn read_definitions(
    store: &dyn ObjectStore,
    name: &BackupName,
    manifest: &Manifest,
    identities: &[Identity],
) -> Result<Bytes, ArchiveError> {
    let key = name.definitions_key();
    let limit = encrypted_limit(MAX_DEFINITIONS_BYTES);
    let content = read(store, &key, &manifest.definitions, limit)?;
    unseal((name, manifest), identities, &key, content)
}

/// Reads a part without looking into it. Its length and its SHA-256 are right.
fn read_raw_part(
    store: &dyn ObjectStore,
    (name, manifest): (&BackupName, &Manifest),
    at: PartNumber,
) -> Result<Bytes, ArchiveError> {
    let key = name.part_key(at);
    match manifest.part(at) {
        Some(entry) => read(store, &key, entry, encrypted_limit(MAX_PART_BYTES)),
        None => Err(ArchiveError::Damaged {
            key,
            reason: "it is not in the manifest".to_owned(),
        }),
    }
}

/// Reads a part. Its length, its SHA-256, its records and the number of their messages are right. Identities are needed if the
/// backup is encrypted. Memory: the part, and its encrypted form.
///
/// # Errors
///
/// [`ArchiveError::Damaged`], [`ArchiveError::Encrypted`], [`ArchiveError::WrongIdentity`], or the store failed.
pub fn read_part(
    store: &dyn ObjectStore,
    name: &BackupName,
    manifest: &Manifest,
    at: PartNumber,
    identities: &[Identity],
) -> Result<Bytes, ArchiveError> {
    let key = name.part_key(at);
    let damaged = |reason: String| ArchiveError::Damaged {
        key: key.clone(),
        reason,
    };
    let content = read_raw_part(store, (name, manifest), at)?;
    let content = unseal((name, manifest), identities, &key, content)?;
    let mut messages = 0u64;
    let checked = manifest.kind(at).each(content.clone(), |_, count| {
        messages = messages.saturating_add(count);
        Ok::<(), RecordsError>(())
    });
    checked.map_err(|error| damaged(error.to_string()))?;
    let stated = manifest.part(at).map_or(0, |entry| entry.messages);
    match messages == stated {
        true => Ok(content),
        false => Err(damaged(format!(
            "it has {messages} messages, and the manifest says {stated}"
        ))),
    }
}

/// The result of a verification.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Objects, with the manifest.
    pub objects: u64,
    /// Messages.
    pub messages: u64,
    /// Bytes of the objects without the manifest.
    pub bytes: u64,
}

/// Reads a whole backup and checks each object and each message. `progress` gets the result so far after each object. Of an
/// encrypted backup without identities, the lengths and the SHA-256 of the encrypted objects are checked; names are empty then.
///
/// # Errors
///
/// The first object that is damaged, or the store failed.
pub fn verify(
    store: &dyn ObjectStore,
    name: &BackupName,
    identities: &[Identity],
    progress: &mut dyn FnMut(&Verified),
) -> Result<Manifest, ArchiveError> {
    let mut manifest = open(store, name)?;
    let is_readable = manifest.encryption.is_none() || !identities.is_empty();
    let mut verified = Verified {
        objects: 2,
        messages: 0,
        bytes: manifest.definitions.bytes,
    };
    if let Some(encryption) = &manifest.encryption {
        verified.objects += 1;
        verified.bytes += encryption.names.bytes;
    }
    if is_readable {
        manifest = open_with_names(store, name, identities)?;
        read_definitions(store, name, &manifest, identities)?;
    } else {
        let limit = encrypted_limit(MAX_DEFINITIONS_BYTES);
        read(store, &name.definitions_key(), &manifest.definitions, limit)?;
        if let Some(encryption) = &manifest.encryption {
            let limit = encrypted_limit(MAX_MANIFEST_BYTES);
            read(store, &name.names_key(), &encryption.names, limit)?;
        }
    }
    progress(&verified);
    for at in manifest.parts() {
        match is_readable {
            true => read_part(store, name, &manifest, at, identities)?,
            false => read_raw_part(store, (name, &manifest), at)?,
        };
        let entry = manifest.part(at);
        verified.objects += 1;
        verified.messages += entry.map_or(0, |entry| entry.messages);
        verified.bytes += entry.map_or(0, |entry| entry.bytes);
        progress(&verified);
    }
    Ok(manifest)
}

/// A backup of a store.
#[derive(Debug)]
pub struct ArchivedBackup {
    /// Its name.
    pub name: BackupName,
    /// Its manifest, or why it cannot be used.
    pub manifest: Result<Manifest, ArchiveError>,
}

/// The backups of a store by name. Other objects are left out: a backup has definitions or a manifest.
///
/// # Errors
///
/// The store failed.
pub fn list(store: &dyn ObjectStore) -> Result<Vec<ArchivedBackup>, ArchiveError> {
    let mut found = Vec::new();
    let mut after = String::new();
    loop {
        let keys = retry(|| store.list("", &after))?;
        let Some(last) = keys.last() else {
            return Ok(found);
        };
        let name = keys.iter().find_map(|key| {
            let (name, _) = key.split_once('/')?;
            BackupName::new(name).ok()
        });
        match name {
            // '0' follows '/': the other objects of the backup are passed over.
            Some(name) => {
                after = format!("{name}0");
                let manifest = match open(store, &name) {
                    Err(ArchiveError::Store(error)) => return Err(error.into()),
                    Err(ArchiveError::Incomplete(_)) if !has_definitions(store, &name)? => continue,
                    result => result,
                };
                found.push(ArchivedBackup { name, manifest });
            }
            None => after.clone_from(last),
        }
    }
}

fn has_definitions(store: &dyn ObjectStore, name: &BackupName) -> Result<bool, StoreError> {
    match retry(|| store.head(&name.definitions_key())) {
        Err(StoreError::Missing { .. }) => Ok(false),
        result => result.map(|_| true),
    }
}

/// Returns true if a key is one that this crate writes.
fn is_own(name: &BackupName, key: &str) -> bool {
    let others = [
        name.definitions_key(),
        name.manifest_key(),
        name.names_key(),
    ];
    others.iter().any(|own| own == key) || name.part_number(key).is_some()
}

/// Deletes a backup, complete or not. Its manifest goes first: without it, the rest is an incomplete backup. Definitions go
/// last: without them, nothing is a backup. Other objects stay. Returns the number of objects.
///
/// # Errors
///
/// [`ArchiveError::Missing`], or the store failed.
pub fn delete(store: &dyn ObjectStore, name: &BackupName) -> Result<u64, ArchiveError> {
    let definitions = name.definitions_key();
    let mut deleted = 0;
    let mut after = String::new();
    let first = retry(|| store.list(&name.prefix(), ""))?;
    if first.iter().any(|key| is_own(name, key)) {
        retry(|| store.delete(&name.manifest_key()))?;
    }
    let mut keys = first;
    while let Some(last) = keys.last() {
        after.clone_from(last);
        for key in keys.iter().filter(|key| is_own(name, key)) {
            deleted += 1;
            if *key != definitions {
                retry(|| store.delete(key))?;
            }
        }
        keys = retry(|| store.list(&name.prefix(), &after))?;
    }
    if deleted > 0 {
        retry(|| store.delete(&definitions))?;
    }
    match deleted {
        0 => Err(ArchiveError::Missing(name.clone())),
        deleted => Ok(deleted),
    }
}
