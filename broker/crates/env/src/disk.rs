//! The disk as storage code sees it: a directory of files, blocking calls, every failure reported.

use std::io;

/// One directory tree, the node's data directory. Paths are relative, `/`-separated, never `..`.
///
/// Contract: what was written is durable only after `File::sync_data`; a created, renamed or removed name is
/// durable only after `sync_dir` of its directory. An error from either is fatal to the node: callers never retry.
pub trait Disk: Send + Sync {
    /// Creates a new file for reading and writing; `AlreadyExists` when it is there.
    fn create(&self, path: &str) -> io::Result<Box<dyn File>>;
    /// Opens an existing file for reading and writing; `NotFound` when it is not there.
    fn open(&self, path: &str) -> io::Result<Box<dyn File>>;
    /// Removes a file; `NotFound` if it does not exist. Durable after [`Disk::sync_dir`] of its directory.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Replaces `to` when it exists.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Creates a directory and its parents; no error when it is there.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// Removes a directory with all that is in it; no error when it is not there.
    fn remove_dir(&self, path: &str) -> io::Result<()>;
    /// Names (not paths) in a directory, sorted; empty when it does not exist.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Makes created, renamed and removed names of a directory durable.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Bytes that can still be written.
    fn available(&self) -> io::Result<u64>;
    /// Whether a file that is only written to now and then may stay open between two writes. False while descriptors are
    /// short: then it is opened anew for each write.
    fn may_keep_open(&self) -> bool {
        true
    }
}

/// The cause of an error when the process is out of descriptors or memory. Nothing is wrong with the file: the same call
/// works once others have given some back.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Shortage(pub String);

/// What to do about a [`Shortage`] that does not end by itself.
pub const SHORTAGE_REMEDY: &str =
    "raise the limit of open files (`ulimit -n`) or give the node more memory";

/// Whether a call failed because a resource is short that others may give back: descriptors, memory or space.
pub fn is_shortage(error: &io::Error) -> bool {
    let cause = error.get_ref();
    is_full(error) || cause.is_some_and(|cause| cause.is::<Shortage>())
}

/// An open file. Its methods take `&self`, because threads share files; they do not move a cursor.
pub trait File: Send + Sync {
    /// Reads until `buf` is full or the file ends; returns the count.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes all of `data`, or fails with some prefix written.
    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()>;
    /// Length in bytes, unsynced writes included.
    fn len(&self) -> io::Result<u64>;
    /// Returns true if the length is 0.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }
    /// Cuts the file off, or grows it with zeros that may not have space of their own yet.
    fn truncate(&self, len: u64) -> io::Result<()>;
    /// Makes the file at least `len` bytes long with space of its own: writes below `len` do not run out of space
    /// on file systems that overwrite in place. New bytes are zero. Fails without effect when space is short.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Makes all writes so far durable, with the length that is needed to read them (`fdatasync`).
    fn sync_data(&self) -> io::Result<()>;
}

/// Checks a path of a [`Disk`]: relative, `/` between names, no empty, `.` or `..` name. The root itself is `""`.
pub fn check_path(path: &str) -> io::Result<()> {
    let good = path.is_empty()
        || path
            .split('/')
            .all(|name| !matches!(name, "" | "." | "..") && !name.contains('\0'));
    if good {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("not a path inside the data directory: {path:?}"),
    ))
}

/// Whether a write failed for want of space, quota or file size: it may work later, and nothing is wrong with the disk.
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// The directory a path is in; `""` for the root's own children.
pub fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}
