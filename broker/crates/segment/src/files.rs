//! Names and locations of a group's files.

use crate::SegmentError;
use env::Disk;
use wal::GroupId;

const DIR: &str = "segments";
pub(crate) const TEMPORARY: &str = ".tmp";
const CHECKPOINT: &str = "checkpoint-";

/// Name of a segment of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentName {
    /// Index of its first entry.
    pub first: u64,
    /// Sequence number, increasing with every segment that the group writes.
    pub n: u32,
}

/// The files of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupFiles {
    /// Ascending by first index, then by `n`.
    pub segments: Vec<SegmentName>,
    /// Indexes, ascending. More than one if a deletion was interrupted; the last one is valid.
    pub checkpoints: Vec<u64>,
}

fn parse_hex<const DIGITS: usize>(text: &str) -> Option<u64> {
    let plain = text.len() == DIGITS
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    plain.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

impl SegmentName {
    fn parse(name: &str) -> Option<SegmentName> {
        let (first, n) = name.strip_suffix(".seg")?.split_once('-')?;
        Some(SegmentName {
            first: parse_hex::<16>(first)?,
            n: u32::try_from(parse_hex::<8>(n)?).ok()?,
        })
    }
}

pub(crate) fn group_dir(group: GroupId) -> String {
    format!("{DIR}/{:016x}", group.0)
}

pub(crate) fn segment_path(group: GroupId, name: SegmentName) -> String {
    format!(
        "{DIR}/{:016x}/{:016x}-{:08x}.seg",
        group.0, name.first, name.n
    )
}

pub(crate) fn checkpoint_path(group: GroupId, index: u64) -> String {
    format!("{DIR}/{:016x}/{CHECKPOINT}{index:016x}", group.0)
}

/// Lists the groups that have a directory, ascending.
pub fn list_groups(disk: &dyn Disk) -> Result<Vec<GroupId>, SegmentError> {
    let names = disk.list(DIR).map_err(|e| SegmentError::io(DIR, &e))?;
    let groups = names.iter().filter_map(|n| parse_hex::<16>(n));
    Ok(groups.map(GroupId).collect())
}

/// Lists a group's files, and removes leftovers of interrupted writes.
pub fn list_group(disk: &dyn Disk, group: GroupId) -> Result<GroupFiles, SegmentError> {
    let dir = group_dir(group);
    let mut files = GroupFiles::default();
    for name in disk.list(&dir).map_err(|e| SegmentError::io(&dir, &e))? {
        if name.ends_with(TEMPORARY) {
            let path = format!("{dir}/{name}");
            disk.remove(&path)
                .map_err(|e| SegmentError::io(&path, &e))?;
        } else if let Some(segment) = SegmentName::parse(&name) {
            files.segments.push(segment);
        } else if let Some(index) = name.strip_prefix(CHECKPOINT).and_then(parse_hex::<16>) {
            files.checkpoints.push(index);
        }
    }
    files.segments.sort_unstable();
    files.checkpoints.sort_unstable();
    Ok(files)
}

/// Creates the group's directory durably if it does not exist; returns the names in it.
pub(crate) fn ensure_dir(disk: &dyn Disk, group: GroupId) -> Result<Vec<String>, SegmentError> {
    let dir = group_dir(group);
    let names = disk.list(&dir).map_err(|e| SegmentError::io(&dir, &e))?;
    if names.is_empty() {
        disk.create_dir(&dir)
            .map_err(|e| SegmentError::io(&dir, &e))?;
        for parent in ["", DIR] {
            disk.sync_dir(parent)
                .map_err(|e| SegmentError::sync(&dir, &e))?;
        }
    }
    Ok(names)
}

/// The sequence number of the next segment.
pub(crate) fn next_n(names: &[String]) -> u32 {
    let segments = names.iter().filter_map(|n| SegmentName::parse(n));
    segments
        .map(|s| s.n)
        .max()
        .map_or(1, |n| n.saturating_add(1))
}

fn remove_file(disk: &dyn Disk, dir: &str, path: &str) -> Result<(), SegmentError> {
    match disk.remove(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        other => other.map_err(|e| SegmentError::io(path, &e))?,
    }
    disk.sync_dir(dir).map_err(|e| SegmentError::sync(dir, &e))
}

/// Deletes a segment; succeeds if it does not exist. A [`Segment`](crate::Segment) whose file is open can
/// still be read.
pub fn delete_segment(
    disk: &dyn Disk,
    group: GroupId,
    name: SegmentName,
) -> Result<(), SegmentError> {
    remove_file(disk, &group_dir(group), &segment_path(group, name))
}

/// Deletes a checkpoint; succeeds if it does not exist.
pub fn delete_checkpoint(disk: &dyn Disk, group: GroupId, index: u64) -> Result<(), SegmentError> {
    remove_file(disk, &group_dir(group), &checkpoint_path(group, index))
}

/// Deletes all files of a group; succeeds if there are none.
pub fn delete_group(disk: &dyn Disk, group: GroupId) -> Result<(), SegmentError> {
    let dir = group_dir(group);
    disk.remove_dir(&dir)
        .map_err(|e| SegmentError::io(&dir, &e))?;
    let names = disk.list("").map_err(|e| SegmentError::io(DIR, &e))?;
    if names.iter().any(|name| name == DIR) {
        disk.sync_dir(DIR)
            .map_err(|e| SegmentError::sync(DIR, &e))?;
    }
    Ok(())
}

/// Creates a temporary file, replacing a leftover.
pub(crate) fn create_temporary(
    disk: &dyn Disk,
    temporary: &str,
) -> Result<Box<dyn env::File>, SegmentError> {
    let io = |e: std::io::Error| SegmentError::io(temporary, &e);
    match disk.create(temporary) {
        Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
            disk.remove(temporary).map_err(io)?;
            disk.create(temporary).map_err(io)
        }
        other => other.map_err(io),
    }
}

/// Makes a finished temporary file durable under its final name.
pub(crate) fn publish(
    disk: &dyn Disk,
    file: &dyn env::File,
    temporary: &str,
    path: &str,
) -> Result<(), SegmentError> {
    file.sync_data()
        .map_err(|e| SegmentError::sync(temporary, &e))?;
    disk.rename(temporary, path)
        .map_err(|e| SegmentError::io(path, &e))?;
    disk.sync_dir(env::disk::parent(path))
        .map_err(|e| SegmentError::sync(path, &e))
}
