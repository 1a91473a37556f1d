//! A simulated data directory with the faults of real disks.

use super::inode::Inode;
use crate::disk::{ResourceShortage, check_path, parent};
use crate::{Disk, File};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod injection;

/// Numbers of operations since the disk was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of `write_at`, including those that failed for lack of space.
    pub writes: u64,
    /// Successful calls of `sync_data` and `sync_dir`.
    pub syncs: u64,
    /// Bytes written by `write_at`.
    pub bytes_written: u64,
    /// Bytes returned by `read_at`.
    pub bytes_read: u64,
}

/// A directory tree in memory. Clones share the same disk.
///
/// Name changes are journalled as in a file system: a prefix of a directory's unsynced changes survives
/// [`SimDisk::crash`]. Any subset of a file's unsynced sectors survives. Handles from before a crash fail.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Clone, Debug, Default)]
struct DiskState {
    /// A file without a name stays until the next crash, for open handles.
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    now: DirectoryEntries,
    durable: DirectoryEntries,
    /// Name changes that are not durable, oldest first.
    pending: Vec<NameChange>,
    /// Number of crashes: a handle from before a crash fails.
    incarnation: u64,
    capacity: Option<u64>,
    faults: InjectedFaults,
    counters: Counters,
}

#[derive(Clone, Debug, Default)]
struct InjectedFaults {
    gone: bool,
    /// Number of successful syncs before every later one fails.
    syncs_left: Option<u64>,
    unreadable: BTreeSet<String>,
    /// Number of files and directories that can be opened before descriptors run out.
    opens_left: Option<u64>,
    /// Reads fail for lack of memory.
    out_of_memory: bool,
    copies_on_write: bool,
    lies: bool,
    /// Number of changes before power fails.
    changes_left: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct DirectoryEntries {
    files: BTreeMap<String, u64>,
    dirs: BTreeSet<String>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Link(String, u64),
    Unlink(String),
    Rename(String, String),
    MakeDir(String),
    DropDir(String),
}

impl NameChange {
    fn is_in(&self, dir: &str) -> bool {
        match self {
            NameChange::Link(path, _)
            | NameChange::Unlink(path)
            | NameChange::MakeDir(path)
            | NameChange::DropDir(path) => parent(path) == dir,
            NameChange::Rename(from, to) => parent(from) == dir || parent(to) == dir,
        }
    }

    fn dir(&self) -> &str {
        match self {
            NameChange::Link(path, _)
            | NameChange::Unlink(path)
            | NameChange::MakeDir(path)
            | NameChange::DropDir(path)
            | NameChange::Rename(_, path) => parent(path),
        }
    }
}

impl DirectoryEntries {
    fn apply(&mut self, change: &NameChange) {
        match change {
            NameChange::Link(path, inode) => {
                self.files.insert(path.clone(), *inode);
            }
            NameChange::Unlink(path) => {
                self.files.remove(path);
            }
            NameChange::Rename(from, to) => {
                if let Some(inode) = self.files.remove(from) {
                    self.files.insert(to.clone(), inode);
                }
            }
            NameChange::MakeDir(path) => {
                self.dirs.insert(path.clone());
            }
            NameChange::DropDir(path) => {
                self.dirs.remove(path);
            }
        }
    }

    fn has_dir(&self, dir: &str) -> bool {
        dir.is_empty() || self.dirs.contains(dir)
    }

    /// Drops the contents of directories that did not survive.
    fn drop_orphans(&mut self) {
        loop {
            let orphan = self.dirs.iter().find(|d| !self.has_dir(parent(d))).cloned();
            match orphan {
                Some(dir) => self.dirs.remove(&dir),
                None => break,
            };
        }
        let dirs = &self.dirs;
        self.files
            .retain(|path, _| parent(path).is_empty() || dirs.contains(parent(path)));
    }
}

const GONE: &str = "the directory is gone";

fn error(kind: ErrorKind, what: &str, path: &str) -> io::Error {
    io::Error::new(kind, format!("{path}: {what} (simulated)"))
}

impl DiskState {
    fn check(&self, path: &str) -> io::Result<()> {
        check_path(path)?;
        if self.faults.gone {
            return Err(error(ErrorKind::NotFound, GONE, path));
        }
        self.check_power(path)
    }

    fn check_power(&self, path: &str) -> io::Result<()> {
        if self.faults.changes_left == Some(0) {
            return Err(error(ErrorKind::Other, "power is off", path));
        }
        Ok(())
    }

    /// Called before each change: counts down to the power failure.
    fn count_change(&mut self, path: &str) -> io::Result<()> {
        self.check_power(path)?;
        if let Some(left) = &mut self.faults.changes_left {
            *left -= 1;
        }
        Ok(())
    }

    fn push_name_change(&mut self, change: NameChange) {
        self.now.apply(&change);
        self.pending.push(change);
    }

    fn used(&self) -> u64 {
        self.now
            .files
            .values()
            .filter_map(|i| self.inodes.get(i))
            .map(Inode::len)
            .sum()
    }

    /// How many of `wanted` more bytes fit.
    fn room(&self, wanted: u64) -> u64 {
        match self.capacity {
            Some(capacity) => capacity.saturating_sub(self.used()).min(wanted),
            None => wanted,
        }
    }

    fn sync_name_changes(&mut self, dir: &str) {
        let pending = std::mem::take(&mut self.pending);
        for change in pending {
            if change.is_in(dir) {
                self.durable.apply(&change);
            } else {
                self.pending.push(change);
            }
        }
    }

    fn sync_allowed(&mut self, path: &str) -> io::Result<()> {
        match &mut self.faults.syncs_left {
            Some(0) => Err(error(ErrorKind::Other, "fsync failed", path)),
            Some(n) => {
                *n -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl DiskState {
    /// Called before each opening: counts down to the descriptor shortage.
    fn take_descriptor(&mut self, path: &str) -> io::Result<()> {
        match &mut self.faults.opens_left {
            Some(0) => {
                let text = format!("{path}: too many open files (simulated)");
                return Err(io::Error::other(ResourceShortage(text)));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    fn check_memory(&self, path: &str) -> io::Result<()> {
        if self.faults.out_of_memory {
            let text = format!("{path}: cannot allocate memory (simulated)");
            return Err(io::Error::other(ResourceShortage(text)));
        }
        Ok(())
    }
}

impl SimDisk {
    /// An empty disk without limits and faults.
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        // A panic elsewhere cannot leave the tree inconsistent: every change is made under one guard.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The counters since the disk was created.
    pub fn counters(&self) -> Counters {
        self.state().counters
    }

    /// Path and length of every file, sorted.
    pub fn files(&self) -> Vec<(String, u64)> {
        let state = self.state();
        state
            .now
            .files
            .iter()
            .map(|(path, i)| (path.clone(), state.inodes.get(i).map_or(0, Inode::len)))
            .collect()
    }

    fn handle(&self, state: &DiskState, path: &str, inode: u64) -> Box<dyn File> {
        Box::new(SimFile {
            disk: self.clone(),
            incarnation: state.incarnation,
            inode,
            path: path.to_owned(),
        })
    }
}

impl Disk for SimDisk {
    fn create(&self, path: &str) -> io::Result<Box<dyn File>> {
        let state = &mut *self.state();
        state.check(path)?;
        state.take_descriptor(path)?;
        if state.now.files.contains_key(path) || state.now.has_dir(path) {
            return Err(error(ErrorKind::AlreadyExists, "exists", path));
        }
        if !state.now.has_dir(parent(path)) {
            return Err(error(ErrorKind::NotFound, "no such directory", path));
        }
        if state.capacity.is_some() && state.room(1) == 0 {
            return Err(error(ErrorKind::StorageFull, "no space left", path));
        }
        state.count_change(path)?;
        state.next_inode += 1;
        let inode = state.next_inode;
        state.inodes.insert(inode, Inode::default());
        state.push_name_change(NameChange::Link(path.to_owned(), inode));
        Ok(self.handle(state, path, inode))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn File>> {
        let mut state = self.state();
        state.check(path)?;
        state.take_descriptor(path)?;
        match state.now.files.get(path) {
            Some(inode) => Ok(self.handle(&state, path, *inode)),
            None => Err(error(ErrorKind::NotFound, "no such file", path)),
        }
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check(path)?;
        if !state.now.files.contains_key(path) {
            return Err(error(ErrorKind::NotFound, "no such file", path));
        }
        state.count_change(path)?;
        state.push_name_change(NameChange::Unlink(path.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check(from)?;
        state.check(to)?;
        if !state.now.files.contains_key(from) || !state.now.has_dir(parent(to)) {
            return Err(error(ErrorKind::NotFound, "no such file", from));
        }
        state.count_change(from)?;
        state.push_name_change(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check(path)?;
        let ends = path.match_indices('/').map(|(at, _)| at);
        for end in ends.chain([path.len()]) {
            let dir = &path[..end];
            if state.now.files.contains_key(dir) {
                return Err(error(ErrorKind::AlreadyExists, "is a file", dir));
            }
            if !state.now.has_dir(dir) {
                state.count_change(path)?;
                state.push_name_change(NameChange::MakeDir(dir.to_owned()));
            }
        }
        Ok(())
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        let state = &mut *self.state();
        state.check(path)?;
        state.take_descriptor(path)?;
        if path.is_empty() {
            return Err(error(ErrorKind::InvalidInput, "is the root", path));
        }
        let inside = |p: &str| {
            p.strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let files: Vec<String> = (state.now.files.keys())
            .filter(|p| inside(p))
            .cloned()
            .collect();
        // In sorted order a parent precedes its children; removal goes in reverse.
        let dirs: Vec<String> = (state.now.dirs.iter())
            .filter(|p| inside(p))
            .cloned()
            .collect();
        for file in files {
            state.count_change(&file)?;
            state.push_name_change(NameChange::Unlink(file));
        }
        for dir in dirs.into_iter().rev() {
            state.count_change(&dir)?;
            state.push_name_change(NameChange::DropDir(dir));
        }
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let mut state = self.state();
        state.check(dir)?;
        state.take_descriptor(dir)?;
        let mut names: Vec<String> = (state.now.files.keys())
            .chain(&state.now.dirs)
            .filter(|p| !p.is_empty() && parent(p) == dir)
            .map(|p| p.rsplit('/').next().unwrap_or(p).to_owned())
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check(dir)?;
        state.take_descriptor(dir)?;
        if !state.now.has_dir(dir) {
            return Err(error(ErrorKind::NotFound, "no such directory", dir));
        }
        state.sync_allowed(dir)?;
        state.count_change(dir)?;
        state.check_power(dir)?;
        state.sync_name_changes(dir);
        state.counters.syncs += 1;
        Ok(())
    }

    fn available(&self) -> io::Result<u64> {
        let state = self.state();
        state.check("")?;
        Ok(state
            .capacity
            .map_or(u64::MAX, |c| c.saturating_sub(state.used())))
    }

    fn may_keep_open(&self) -> bool {
        self.state().faults.opens_left != Some(0)
    }
}

struct SimFile {
    disk: SimDisk,
    incarnation: u64,
    inode: u64,
    path: String,
}

impl SimFile {
    fn with<T>(
        &self,
        act: impl FnOnce(&mut DiskState, &mut Inode) -> io::Result<T>,
    ) -> io::Result<T> {
        let state = &mut *self.disk.state();
        state.check_power(&self.path)?;
        if state.faults.gone {
            return Err(error(ErrorKind::NotFound, GONE, &self.path));
        }
        if state.incarnation != self.incarnation {
            return Err(error(ErrorKind::NotFound, "handle is dead", &self.path));
        }
        // Removed from the map during the call, so that `act` can access both.
        let Some(mut inode) = state.inodes.remove(&self.inode) else {
            return Err(error(ErrorKind::NotFound, "handle is dead", &self.path));
        };
        let result = act(state, &mut inode);
        state.inodes.insert(self.inode, inode);
        result
    }

    /// How much of `wanted` this file can grow, which is not counted in `state` during the call.
    fn room(state: &DiskState, inode: &Inode, wanted: u64) -> u64 {
        match state.capacity {
            Some(_) => state.room(inode.len() + wanted).saturating_sub(inode.len()),
            None => wanted,
        }
    }
}

impl File for SimFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.with(|state, inode| {
            if state.faults.unreadable.contains(&self.path) {
                return Err(error(ErrorKind::Other, "read failed", &self.path));
            }
            state.check_memory(&self.path)?;
            let n = inode.read_at(offset, buf);
            state.counters.bytes_read += n as u64;
            Ok(n)
        })
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.with(|state, inode| {
            state.count_change(&self.path)?;
            let end = offset.saturating_add(data.len() as u64);
            let growth = if state.faults.copies_on_write {
                data.len() as u64
            } else {
                end.saturating_sub(inode.len())
            };
            let short = growth - Self::room(state, inode, growth);
            let accepted = data.len() as u64 - short.min(data.len() as u64);
            let written = &data[..accepted as usize];
            if !written.is_empty() {
                inode.write_at(offset, written);
            }
            state.counters.writes += 1;
            state.counters.bytes_written += accepted;
            if short > 0 {
                return Err(error(ErrorKind::StorageFull, "no space left", &self.path));
            }
            // A write interrupted by the power failure is partly on the disk, and its caller gets an error.
            state.check_power(&self.path)
        })
    }

    fn len(&self) -> io::Result<u64> {
        self.with(|_, inode| Ok(inode.len()))
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.with(|state, inode| {
            let growth = len.saturating_sub(inode.len());
            if Self::room(state, inode, growth) < growth {
                return Err(error(ErrorKind::StorageFull, "no space left", &self.path));
            }
            state.count_change(&self.path)?;
            inode.set_len(len);
            state.check_power(&self.path)
        })
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        if len <= self.len()? {
            return Ok(());
        }
        self.truncate(len)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.with(|state, inode| {
            state.sync_allowed(&self.path)?;
            state.count_change(&self.path)?;
            state.check_power(&self.path)?;
            if !state.faults.lies {
                inode.sync();
            }
            state.counters.syncs += 1;
            Ok(())
        })
    }
}
