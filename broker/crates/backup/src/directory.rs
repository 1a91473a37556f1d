//! An object store in a directory of a file system.
//!
//! An object is a file with mode 0600. It is written under another name, synced, and renamed, and then its directory is
//! synced. So a file with the name of an object is whole, also after a crash.

use bytes::Bytes;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use stream_tier::{ObjectStore, StoreError};

/// The end of the names of files that are being written. No object has such a name.
const UNFINISHED: &str = ".unfinished";
/// Most keys of an answer of [`ObjectStore::list`].
const MAX_LISTED: usize = 1000;
/// Most directories below each other.
const MAX_DEPTH: usize = 8;

/// The objects below a directory. One process writes a backup at a time.
#[derive(Debug)]
pub struct DirectoryStore {
    root: PathBuf,
}

fn unavailable(call: &'static str, key: &str, error: &io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::NotFound => StoreError::Missing {
            key: key.to_owned(),
        },
        io::ErrorKind::AlreadyExists => StoreError::Exists {
            key: key.to_owned(),
        },
        _ => StoreError::Unavailable {
            call,
            key: key.to_owned(),
            error: error.to_string(),
        },
    }
}

fn make_directories(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

impl DirectoryStore {
    /// The store in an existing directory.
    ///
    /// # Errors
    ///
    /// If the path is not a directory or cannot be read.
    pub fn open(root: &Path) -> io::Result<DirectoryStore> {
        std::fs::read_dir(root)?;
        let root = root.to_owned();
        Ok(DirectoryStore { root })
    }

    /// The store in a directory, which is created with mode 0700 if it does not exist.
    ///
    /// # Errors
    ///
    /// If the directory cannot be created or read.
    pub fn create(root: &Path) -> io::Result<DirectoryStore> {
        if !root.is_dir() {
            make_directories(root)?;
        }
        DirectoryStore::open(root)
    }

    /// The file of an object. A key that leads out of the directory is refused.
    fn path(&self, call: &'static str, key: &str) -> Result<PathBuf, StoreError> {
        let is_plain = |part: &str| {
            !part.is_empty()
                && part != "."
                && part != ".."
                && !part.ends_with(UNFINISHED)
                && !part.contains(['\0', '\\'])
        };
        match key.split('/').all(is_plain) {
            true => Ok(self.root.join(key)),
            false => Err(StoreError::Unavailable {
                call,
                key: key.to_owned(),
                error: "this is no name of an object".to_owned(),
            }),
        }
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let directory = path.parent().unwrap_or(&self.root);
        make_directories(directory)?;
        if path.try_exists()? {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let mut unfinished = path.as_os_str().to_owned();
        unfinished.push(UNFINISHED);
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&unfinished)?;
        file.write_all(content)?;
        file.sync_all()?;
        drop(file);
        std::fs::rename(&unfinished, path)?;
        // The entries of new directories too.
        let above = directory.ancestors();
        for directory in above.take_while(|directory| directory.starts_with(&self.root)) {
            sync_directory(directory)?;
        }
        Ok(())
    }

    /// Adds the keys below a directory.
    fn collect(&self, path: &Path, depth: usize, keys: &mut Vec<String>) -> io::Result<()> {
        if depth > MAX_DEPTH {
            return Ok(());
        }
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let path = entry.path();
            let Some(key) = path.strip_prefix(&self.root).ok().and_then(Path::to_str) else {
                continue;
            };
            if kind.is_dir() {
                self.collect(&path, depth + 1, keys)?;
            } else if kind.is_file() && !key.ends_with(UNFINISHED) {
                keys.push(key.to_owned());
            }
        }
        Ok(())
    }
}

impl ObjectStore for DirectoryStore {
    fn create(&self, key: &str, content: Bytes) -> Result<(), StoreError> {
        let path = self.path("create", key)?;
        self.write(&path, &content)
            .map_err(|error| unavailable("create", key, &error))
    }

    fn get(&self, key: &str, limit: u64) -> Result<Bytes, StoreError> {
        let path = self.path("get", key)?;
        let read = || {
            let mut content = Vec::new();
            let file = File::open(&path)?;
            file.take(limit.saturating_add(1))
                .read_to_end(&mut content)?;
            Ok::<_, io::Error>(Bytes::from(content))
        };
        read().map_err(|error| unavailable("get", key, &error))
    }

    fn head(&self, key: &str) -> Result<u64, StoreError> {
        let path = self.path("head", key)?;
        let found = std::fs::metadata(path).map_err(|error| unavailable("head", key, &error))?;
        Ok(found.len())
    }

    fn list(&self, prefix: &str, after: &str) -> Result<Vec<String>, StoreError> {
        let fails = |error: io::Error| unavailable("list", prefix, &error);
        // A prefix that ends a directory limits the search to that directory.
        let start = match prefix.strip_suffix('/') {
            Some(directory) => self.path("list", directory)?,
            None => self.root.clone(),
        };
        let mut keys = Vec::new();
        match self.collect(&start, 0, &mut keys) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && start != self.root => {}
            result => result.map_err(fails)?,
        }
        keys.retain(|key| key.starts_with(prefix) && key.as_str() > after);
        keys.sort_unstable();
        keys.truncate(MAX_LISTED);
        Ok(keys)
    }

    fn delete(&self, key: &str) -> Result<(), StoreError> {
        let path = self.path("delete", key)?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(unavailable("delete", key, &error));
            }
            _ => {}
        }
        // Directories without objects go, too. One that has others cannot be removed.
        let above = path.ancestors().skip(1);
        for directory in above.take_while(|d| d.starts_with(&self.root) && *d != self.root) {
            if std::fs::remove_dir(directory).is_err() {
                break;
            }
        }
        Ok(())
    }
}
