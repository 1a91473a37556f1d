//! Names and locations of a stream's files.
//!
//! A stream's files are in `streams/<number of the queue, hexadecimal>/`. The name of a segment is its first offset in
//! 20 decimal digits: `.segment`, `.index` and `.seal`.

use crate::LogError;
use crate::format::{FILE_HEADER_BYTES, FileHeaderFault, FileKind, VERSION};
use env::{Disk, File};
use ids::QueueId;
use std::io::ErrorKind;

const DIR: &str = "streams";
const TEMPORARY: &str = ".tmp";
/// The mark that files are being removed or cut.
const REMOVING: &str = "removing";

/// The directory of a stream.
pub(crate) fn stream_dir(stream: QueueId) -> String {
    format!("{DIR}/{:016x}", stream.0)
}

pub(crate) fn segment_path(stream: QueueId, first_offset: u64) -> String {
    format!("{DIR}/{:016x}/{first_offset:020}.segment", stream.0)
}

pub(crate) fn index_path(stream: QueueId, first_offset: u64) -> String {
    format!("{DIR}/{:016x}/{first_offset:020}.index", stream.0)
}

pub(crate) fn seal_path(stream: QueueId, first_offset: u64) -> String {
    format!("{DIR}/{:016x}/{first_offset:020}.seal", stream.0)
}

/// First offsets of a stream's files, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StreamFiles {
    pub segments: Vec<u64>,
    pub indexes: Vec<u64>,
    pub seals: Vec<u64>,
    /// There is a mark of [`begin_removal`].
    pub is_removing: bool,
}

fn parse(name: &str) -> Option<(u64, &str)> {
    let (digits, extension) = name.split_once('.')?;
    let first_offset = digits.parse().ok()?;
    (format!("{first_offset:020}") == digits).then_some((first_offset, extension))
}

/// Lists a stream's files, and removes leftovers of interrupted writes.
pub(crate) fn list(disk: &dyn Disk, stream: QueueId) -> Result<StreamFiles, LogError> {
    let dir = stream_dir(stream);
    let mut files = StreamFiles::default();
    for name in disk.list(&dir).map_err(|e| LogError::io(&dir, &e))? {
        if name.ends_with(TEMPORARY) {
            remove(disk, &format!("{dir}/{name}"))?;
            continue;
        }
        match parse(&name) {
            Some((first, "segment")) => files.segments.push(first),
            Some((first, "index")) => files.indexes.push(first),
            Some((first, "seal")) => files.seals.push(first),
            _ => files.is_removing |= name == REMOVING,
        }
    }
    for list in [&mut files.segments, &mut files.indexes, &mut files.seals] {
        list.sort_unstable();
    }
    Ok(files)
}

/// Lists the streams that have a directory, ascending.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn list_streams(disk: &dyn Disk) -> Result<Vec<QueueId>, LogError> {
    let names = disk.list(DIR).map_err(|e| LogError::io(DIR, &e))?;
    let number = |name: &String| {
        let number = u64::from_str_radix(name, 16).ok()?;
        (format!("{number:016x}") == *name).then_some(QueueId(number))
    };
    Ok(names.iter().filter_map(number).collect())
}

/// Deletes all files of a stream durably; succeeds if there are none.
///
/// # Errors
///
/// If the directory cannot be removed or its removal cannot be synced.
pub fn delete_stream(disk: &dyn Disk, stream: QueueId) -> Result<(), LogError> {
    let dir = stream_dir(stream);
    disk.remove_dir(&dir).map_err(|e| LogError::io(&dir, &e))?;
    let names = disk.list("").map_err(|e| LogError::io(DIR, &e))?;
    match names.iter().any(|name| name == DIR) {
        true => sync_dir(disk, DIR),
        false => Ok(()),
    }
}

/// Largest content of the file that names the machine, in bytes.
const MAX_MACHINE_BYTES: u64 = 255;

fn machine_path(stream: QueueId) -> String {
    format!("{DIR}/{:016x}/machine", stream.0)
}

/// The run of a machine in which the log was known to be intact last; `None` if there is no such record. Chunks are
/// not synced, so a log that another run of the machine left may have lost its end.
///
/// # Errors
///
/// If the file cannot be read.
pub fn read_machine(disk: &dyn Disk, stream: QueueId) -> Result<Option<Vec<u8>>, LogError> {
    read_small(disk, &machine_path(stream), MAX_MACHINE_BYTES)
}

/// Removes the record durably: the log is not intact.
///
/// # Errors
///
/// If the file or its directory cannot be written.
pub(crate) fn remove_machine(disk: &dyn Disk, stream: QueueId) -> Result<(), LogError> {
    remove(disk, &machine_path(stream))?;
    sync_dir(disk, &stream_dir(stream))
}

/// Records the run of the machine in which the log is intact. Not synced: a lost record only means that the log counts
/// as not intact.
///
/// # Errors
///
/// If the file cannot be written.
pub fn write_machine(disk: &dyn Disk, stream: QueueId, machine: &[u8]) -> Result<(), LogError> {
    debug_assert!(machine.len() as u64 <= MAX_MACHINE_BYTES);
    let path = machine_path(stream);
    let io = |e: std::io::Error| LogError::io(&path, &e);
    let file = match disk.open(&path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let dir = stream_dir(stream);
            disk.create_dir(&dir).map_err(|e| LogError::io(&dir, &e))?;
            disk.create(&path).map_err(io)?
        }
        other => other.map_err(io)?,
    };
    file.truncate(0).map_err(io)?;
    file.write_at(0, machine).map_err(io)
}

/// Makes the directory of a stream durable in its parents.
pub(crate) fn sync_parents(disk: &dyn Disk) -> Result<(), LogError> {
    sync_dir(disk, "")?;
    sync_dir(disk, DIR)
}

pub(crate) fn sync_dir(disk: &dyn Disk, dir: &str) -> Result<(), LogError> {
    disk.sync_dir(dir).map_err(|e| LogError::sync(dir, &e))
}

/// Removes a file; succeeds if it does not exist.
pub(crate) fn remove(disk: &dyn Disk, path: &str) -> Result<(), LogError> {
    match disk.remove(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        other => other.map_err(|e| LogError::io(path, &e)),
    }
}

/// Removes a segment with its index and seal. The segment goes last, so an index without a segment proves that the
/// segment was lost, unless power failed. Recovery reads a segment without the other two.
pub(crate) fn remove_segment(
    disk: &dyn Disk,
    stream: QueueId,
    first_offset: u64,
) -> Result<(), LogError> {
    remove(disk, &seal_path(stream, first_offset))?;
    remove(disk, &index_path(stream, first_offset))?;
    remove(disk, &segment_path(stream, first_offset))
}

/// Marks that files are being removed or cut. If the process ends before the result is durable, recovery makes it
/// durable: otherwise a part could return after a power failure, and chunks of two histories would look like one.
pub(crate) fn begin_removal(disk: &dyn Disk, stream: QueueId) -> Result<(), LogError> {
    let path = format!("{}/{REMOVING}", stream_dir(stream));
    match disk.create(&path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
        other => other.map(drop).map_err(|e| LogError::io(&path, &e)),
    }
}

/// Removes the mark of [`begin_removal`] after the result was made durable.
pub(crate) fn end_removal(disk: &dyn Disk, stream: QueueId) -> Result<(), LogError> {
    remove(disk, &format!("{}/{REMOVING}", stream_dir(stream)))
}

/// Creates a file with its header, or empties it if an interrupted call created it.
pub(crate) fn create(
    disk: &dyn Disk,
    path: &str,
    kind: FileKind,
) -> Result<Box<dyn File>, LogError> {
    let io = |e: std::io::Error| LogError::io(path, &e);
    let file = match disk.create(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            let dir = env::disk::parent(path);
            disk.create_dir(dir).map_err(|e| LogError::io(dir, &e))?;
            disk.create(path).map_err(io)?
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let file = disk.open(path).map_err(io)?;
            file.truncate(0).map_err(io)?;
            file
        }
        other => other.map_err(io)?,
    };
    file.write_at(0, &kind.header()).map_err(io)?;
    Ok(file)
}

pub(crate) fn open(disk: &dyn Disk, path: &str) -> Result<Box<dyn File>, LogError> {
    disk.open(path).map_err(|e| LogError::io(path, &e))
}

/// Checks the header of a segment or index file. Returns false if it is not valid.
pub(crate) fn has_valid_header(
    file: &dyn File,
    path: &str,
    kind: FileKind,
) -> Result<bool, LogError> {
    let mut header = [0; FILE_HEADER_BYTES as usize];
    let n = file
        .read_at(0, &mut header)
        .map_err(|e| LogError::io(path, &e))?;
    match kind.check_header(header.get(..n).unwrap_or_default()) {
        Ok(()) => Ok(true),
        Err(FileHeaderFault::Invalid) => Ok(false),
        Err(FileHeaderFault::Newer(version)) => Err(LogError::Newer {
            file: path.to_owned(),
            version,
            known: VERSION,
        }),
    }
}

/// Writes a small file durably under its final name, replacing it.
pub(crate) fn write_durably(disk: &dyn Disk, path: &str, content: &[u8]) -> Result<(), LogError> {
    let temporary = format!("{path}{TEMPORARY}");
    let io = |e: std::io::Error| LogError::io(&temporary, &e);
    remove(disk, &temporary)?;
    let file = disk.create(&temporary).map_err(io)?;
    let written = file.write_at(0, content).map_err(io);
    if written.is_err() {
        // Report the original error; `list` removes a leftover.
        let _ = disk.remove(&temporary);
    }
    written?;
    file.sync_data()
        .map_err(|e| LogError::sync(&temporary, &e))?;
    disk.rename(&temporary, path)
        .map_err(|e| LogError::io(path, &e))?;
    sync_dir(disk, env::disk::parent(path))
}

/// Reads a whole file of at most `limit` bytes; `None` if it is longer or does not exist.
pub(crate) fn read_small(
    disk: &dyn Disk,
    path: &str,
    limit: u64,
) -> Result<Option<Vec<u8>>, LogError> {
    let io = |e: std::io::Error| LogError::io(path, &e);
    let file = match disk.open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
        other => other.map_err(io)?,
    };
    let len = file.len().map_err(io)?;
    if len > limit {
        return Ok(None);
    }
    let mut bytes = vec![0; len as usize];
    let n = file.read_at(0, &mut bytes).map_err(io)?;
    bytes.truncate(n);
    Ok(Some(bytes))
}
