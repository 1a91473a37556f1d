//! A simulated data directory with the faults of real ones.

use super::inode::Inode;
use crate::disk::{Shortage, check_path, parent};
use crate::{Disk, File};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

mod injection;

/// What was asked of the disk since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls of `write_at`, those that found no space included.
    pub writes: u64,
    /// Successful `sync_data` and `sync_dir`.
    pub syncs: u64,
    /// Bytes that `write_at` wrote.
    pub bytes_written: u64,
    /// Bytes that `read_at` returned.
    pub bytes_read: u64,
}

/// A directory tree in memory. Clones show the same disk.
///
/// Names are journalled as a file system does it: of the unsynced changes of one directory a prefix survives
/// [`SimDisk::crash`]. Of a file's unsynced sectors any subset survives. Handles from before a crash fail.
#[derive(Clone, Debug, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// A file without a name stays until the next crash, for handles that are still open.
    inodes: BTreeMap<u64, Inode>,
    next_inode: u64,
    now: Names,
    durable: Names,
    /// Changes of names that are not durable, oldest first.
    pending: Vec<NameChange>,
    /// Counts crashes: a handle of an earlier life fails.
    life: u64,
    capacity: Option<u64>,
    faults: Faults,
    counters: Counters,
}

#[derive(Clone, Debug, Default)]
struct Faults {
    gone: bool,
    /// Successful syncs left before every later one fails.
    syncs_left: Option<u64>,
    unreadable: BTreeSet<String>,
    /// Files and directories that can be opened before none can be for want of descriptors.
    opens_left: Option<u64>,
    /// The kernel has no memory for reads.
    out_of_memory: bool,
    copies_on_write: bool,
    lies: bool,
    /// Changes of the disk left before the power goes off.
    changes_left: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Names {
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

impl Names {
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

    /// Nothing survives in a directory that did not.
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

impl State {
    fn check(&self, path: &str) -> io::Result<()> {
        check_path(path)?;
        if self.faults.gone {
            return Err(error(ErrorKind::NotFound, GONE, path));
        }
        self.powered(path)
    }

    fn powered(&self, path: &str) -> io::Result<()> {
        if self.faults.changes_left == Some(0) {
            return Err(error(ErrorKind::Other, "power is off", path));
        }
        Ok(())
    }

    /// Before each change: counts down to the power cut.
    fn spend(&mut self, path: &str) -> io::Result<()> {
        self.powered(path)?;
        if let Some(left) = &mut self.faults.changes_left {
            *left -= 1;
        }
        Ok(())
    }

    fn change(&mut self, change: NameChange) {
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

impl State {
    /// Before each opening of a file or directory: counts down to the shortage.
    fn take_descriptor(&mut self, path: &str) -> io::Result<()> {
        match &mut self.faults.opens_left {
            Some(0) => {
                let text = format!("{path}: too many open files (simulated)");
                return Err(io::Error::other(Shortage(text)));
            }
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(())
    }

    fn check_memory(&self, path: &str) -> io::Result<()> {
        if self.faults.out_of_memory {
            let text = format!("{path}: cannot allocate memory (simulated)");
            return Err(io::Error::other(Shortage(text)));
        }
        Ok(())
    }
}

impl SimDisk {
    /// Empty, without a limit, without faults.
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked elsewhere leaves the tree whole: every change is made under one guard.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters since the disk was created.
    pub fn counters(&self) -> Counters {
        self.state().counters
    }

    /// Every file's path and length, sorted.
    pub fn files(&self) -> Vec<(String, u64)> {
        let state = self.state();
        state
            .now
            .files
            .iter()
            .map(|(path, i)| (path.clone(), state.inodes.get(i).map_or(0, Inode::len)))
            .collect()
    }

    fn handle(&self, state: &State, path: &str, inode: u64) -> Box<dyn File> {
        Box::new(SimFile {
            disk: self.clone(),
            life: state.life,
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
        state.spend(path)?;
        state.next_inode += 1;
        let inode = state.next_inode;
        state.inodes.insert(inode, Inode::default());
        state.change(NameChange::Link(path.to_owned(), inode));
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
        state.spend(path)?;
        state.change(NameChange::Unlink(path.to_owned()));
        Ok(())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.check(from)?;
        state.check(to)?;
        if !state.now.files.contains_key(from) || !state.now.has_dir(parent(to)) {
            return Err(error(ErrorKind::NotFound, "no such file", from));
        }
        state.spend(from)?;
        state.change(NameChange::Rename(from.to_owned(), to.to_owned()));
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
                state.spend(path)?;
                state.change(NameChange::MakeDir(dir.to_owned()));
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
        // Sorted, so a directory's parent is before it; removed the other way round.
        let dirs: Vec<String> = (state.now.dirs.iter())
            .filter(|p| inside(p))
            .cloned()
            .collect();
        for file in files {
            state.spend(&file)?;
            state.change(NameChange::Unlink(file));
        }
        for dir in dirs.into_iter().rev() {
            state.spend(&dir)?;
            state.change(NameChange::DropDir(dir));
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
        state.spend(dir)?;
        state.powered(dir)?;
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
    life: u64,
    inode: u64,
    path: String,
}

impl SimFile {
    fn with<T>(&self, act: impl FnOnce(&mut State, &mut Inode) -> io::Result<T>) -> io::Result<T> {
        let state = &mut *self.disk.state();
        state.powered(&self.path)?;
        if state.faults.gone {
            return Err(error(ErrorKind::NotFound, GONE, &self.path));
        }
        if state.life != self.life {
            return Err(error(ErrorKind::NotFound, "handle is dead", &self.path));
        }
        // Taken out for the call so that `act` can see both; nothing else runs under the guard.
        let Some(mut inode) = state.inodes.remove(&self.inode) else {
            return Err(error(ErrorKind::NotFound, "handle is dead", &self.path));
        };
        let result = act(state, &mut inode);
        state.inodes.insert(self.inode, inode);
        result
    }

    /// Room for this file to grow by `wanted`, itself not counted in `state` during the call.
    fn room(state: &State, inode: &Inode, wanted: u64) -> u64 {
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
            state.spend(&self.path)?;
            let end = offset.saturating_add(data.len() as u64);
            let growth = if state.faults.copies_on_write {
                data.len() as u64
            } else {
                end.saturating_sub(inode.len())
            };
            let short = growth - Self::room(state, inode, growth);
            let fits = data.len() as u64 - short.min(data.len() as u64);
            let written = &data[..fits as usize];
            if !written.is_empty() {
                inode.write_at(offset, written);
            }
            state.counters.writes += 1;
            state.counters.bytes_written += fits;
            if short > 0 {
                return Err(error(ErrorKind::StorageFull, "no space left", &self.path));
            }
            // A write that the power cut into is on the disk in part, and nobody knows.
            state.powered(&self.path)
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
            state.spend(&self.path)?;
            inode.set_len(len);
            state.powered(&self.path)
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
            state.spend(&self.path)?;
            state.powered(&self.path)?;
            if !state.faults.lies {
                inode.sync();
            }
            state.counters.syncs += 1;
            Ok(())
        })
    }
}
