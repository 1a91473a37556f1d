//! The data directory of a node: locking, identity, and recovery of the log.

use crate::config::Config;
use crate::identity::{ClusterRecord, Identity, IdentityError};
use env::real::{OpenFiles, RealDisk, WriteBudget};
use env::{Disk, Rng};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use wal::{GroupId, Record, RecordBody, Recovered, Wal, WalConfig, WalError};

const LOCK: &str = "lock";

/// Group of a marker record: with it, the log is never empty once this node belongs to a cluster.
const MARKER_GROUP: GroupId = GroupId(u64::MAX);

/// Why a data directory cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// A file operation failed.
    #[error("data directory {path}: {error}")]
    Io {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        error: io::Error,
    },
    /// Another process has locked the directory.
    #[error("data directory {path} is in use by another process")]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// The identity of the node is missing, damaged or too new.
    #[error("data directory {path}: {error}")]
    Identity {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        error: IdentityError,
    },
    /// The log cannot be read.
    #[error("data directory {path}: {error}{}", remedy(.error))]
    Log {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        error: WalError,
    },
}

/// The remedy for a damaged log. Nothing is deleted without an operator.
fn remedy(error: &WalError) -> &'static str {
    match error {
        WalError::Corrupt { .. } | WalError::Missing { .. } => {
            "\nNothing was changed. A single node: put a copy of the directory in its place. A node of a cluster \
             whose others are up: move the directory away and start the node again; it joins as a new one and gets \
             its data from them."
        }
        _ => "",
    }
}

/// The locked directory. Other processes cannot use it until it is dropped.
pub struct DataDir {
    path: PathBuf,
    disk: Arc<RealDisk>,
    identity: Arc<Mutex<Identity>>,
    _lock: File,
}

impl DataDir {
    /// Locks the directory, creating it if needed, and starts a new incarnation.
    pub fn open(path: &Path, name: &str, rng: &mut dyn Rng) -> Result<DataDir, DataDirError> {
        let io = |error| DataDirError::Io {
            path: path.to_owned(),
            error,
        };
        let disk = RealDisk::open(path).map_err(io)?;
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path.join(LOCK))
            .map_err(io)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let path = path.to_owned();
                return Err(DataDirError::InUse { path });
            }
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
        let identity =
            Identity::start(&disk, name, rng).map_err(|error| DataDirError::Identity {
                path: path.to_owned(),
                error,
            })?;
        Ok(DataDir {
            path: path.to_owned(),
            disk: Arc::new(disk),
            identity: Arc::new(Mutex::new(identity)),
            _lock: lock,
        })
    }

    /// The disk that holds the directory.
    pub fn disk(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }

    /// Counter of the open files in the directory.
    pub fn open_files(&self) -> Arc<OpenFiles> {
        self.disk.open_files()
    }

    /// Number of bytes to write before free space is checked again.
    pub fn write_budget(&self) -> Arc<WriteBudget> {
        self.disk.write_budget()
    }

    /// The identity that is stored in the directory.
    pub fn identity(&self) -> Identity {
        let guard = self.identity.lock();
        guard.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns a function that stores the cluster in the identity, durably. It is called once, from
    /// any thread.
    pub fn persist(&self) -> impl FnMut(&ClusterRecord) -> Result<(), String> + Send + use<> {
        let (disk, identity) = (self.disk.clone(), self.identity.clone());
        move |record| {
            let mut identity = identity.lock().unwrap_or_else(PoisonError::into_inner);
            let mut changed = identity.clone();
            changed.cluster = Some(record.clone());
            changed.store(&*disk).map_err(|e| e.to_string())?;
            *identity = changed;
            Ok(())
        }
    }

    /// Opens and recovers the log. Afterwards it is not empty.
    pub fn open_log(&self, config: &Config, salt: u64) -> Result<(Wal, Recovered), DataDirError> {
        let wrap = |error| DataDirError::Log {
            path: self.path.clone(),
            error,
        };
        let wal_config = WalConfig {
            max_file_bytes: config.wal_file_bytes,
            ..WalConfig::new(self.identity().node, salt)
        };
        let (mut wal, mut recovered) = Wal::open(self.disk(), wal_config).map_err(wrap)?;
        if let Some(torn) = &recovered.torn {
            tracing::warn!(
                event = "wal.torn_tail",
                file = torn.file,
                offset = torn.offset,
                bytes = torn.bytes
            );
        }
        if recovered.files.is_empty() {
            // Written before this node makes any promise: from now on an empty log means a lost
            // one.
            let marker = Record {
                group: MARKER_GROUP,
                body: RecordBody::Deleted,
            };
            wal.append(&[marker]).map_err(wrap)?;
            wal.sync().map_err(wrap)?;
        }
        recovered.groups.remove(&MARKER_GROUP);
        Ok((wal, recovered))
    }
}
