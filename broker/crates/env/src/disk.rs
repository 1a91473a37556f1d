//! The disk interface of storage code: a directory tree of files, blocking calls, every failure reported.

use std::io;
use std::os::fd::BorrowedFd;

/// A directory tree: the node's data directory. Paths are relative, `/`-separated, and never contain `..`.
///
/// Contract: written bytes are durable only after [`File::sync_data`]; a created, renamed or removed name is
/// durable only after [`Disk::sync_dir`] of its directory. An error from either is fatal to the node: callers
/// never retry.
pub trait Disk: Send + Sync {
    /// Creates a new file for reading and writing; `AlreadyExists` if it exists.
    fn create(&self, path: &str) -> io::Result<Box<dyn File>>;
    /// Opens an existing file for reading and writing; `NotFound` if it does not exist.
    fn open(&self, path: &str) -> io::Result<Box<dyn File>>;
    /// Removes a file; `NotFound` if it does not exist. Durable after [`Disk::sync_dir`] of its directory.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Renames a file, replacing `to` if it exists.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Creates a directory and its parents; succeeds if it exists.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// Removes a directory and its contents; succeeds if it does not exist.
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// Names (not paths) in a directory, sorted; empty if the directory does not exist.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Makes created, renamed and removed names of a directory durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Free space in bytes.
    fn available(&self) -> io::Result<u64>;
    /// True if a rarely written file may stay open between two writes. False while descriptors are short:
    /// then it must be opened again for each write.
    fn may_keep_open(&self) -> bool {
        true
    }
}

/// Error payload for a shortage of descriptors or memory in the process. The file is intact: the same call
/// succeeds once the resources are released.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ResourceShortage(pub String);

/// Remedy, for error texts, of a [`ResourceShortage`] that does not end by itself.
pub const SHORTAGE_REMEDY: &str =
    "raise the limit of open files (`ulimit -n`) or give the node more memory";

/// True if a call failed because descriptors, memory or space are short; it may succeed later.
pub fn is_shortage(error: &io::Error) -> bool {
    let cause = error.get_ref();
    is_full(error) || cause.is_some_and(|cause| cause.is::<ResourceShortage>())
}

/// An open file. Its methods take `&self`, because threads share files; there is no cursor.
pub trait File: Send + Sync {
    /// Reads until `buf` is full or the file ends; returns the number of bytes read.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Reads `len` bytes, or fewer at the end of the file. An implementation need not clear the memory first.
    fn read_vec_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let n = self.read_at(offset, &mut bytes)?;
        bytes.truncate(n);
        Ok(bytes)
    }
    /// Writes all of `data`. On an error, some prefix may have been written.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Length in bytes, including unsynced writes.
    fn len(&self) -> io::Result<u64>;
    /// Returns true if the length is 0.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Shortens the file, or extends it with zeros for which no space is reserved.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Extends the file to at least `len` bytes and reserves space for them: on file systems that overwrite
    /// in place, writes below `len` do not run out of space. New bytes are zero. Has no effect if it fails
    /// for lack of space.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Makes all writes so far durable, including the file length needed to read them (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;
    /// The descriptor of the file, for `sendfile`; `None` if the operating system has no such file.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// Validates a path of a [`Disk`]: relative, `/` between names, no empty, `.` or `..` name. The root is `""`.
pub fn check_path(path: &str) -> io::Result<()> {
    let is_valid = path.is_empty()
        || path
            .split('/')
            .all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0'));
    if is_valid {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("not a path inside the data directory: {path:?}"),
    ))
}

/// True if a write failed for lack of space, quota or file size. It may succeed later, and the disk is
/// intact.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// The parent directory of a path; `""` for children of the root.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}
