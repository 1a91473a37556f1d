//! Writing the log.

use crate::error::WalError;
use crate::format::{self, NEW_FILE, RecordEncoder, SEAL_BYTES, TERMINATOR};
use crate::manifest::Manifest;
use crate::recover::{HardState, RecordReader, Recovered, read_header};
use crate::{GroupId, MAX_RECORD_BYTES, Record, RecordBody};
use env::disk::is_full;
use env::planted::{self, Bug};
use env::{Disk, File, NodeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod bounds;
mod roll;

/// Encoded records are written to the file in pieces of about this size.
const SCRATCH_BYTES: usize = 4 << 20;
/// Far below the largest durable distance that a record can hold.
const MAX_UNSYNCED_RECORDS: u64 = 1 << 30;

/// Configuration of a log.
#[derive(Clone, Debug)]
pub struct WalConfig {
    /// The node that the log belongs to.
    pub node: NodeId,
    /// A file is completed if the next batch would exceed this size. A batch is never split over files.
    pub max_file_bytes: u64,
    /// Files are allocated on the disk in steps of this size.
    pub grow_bytes: u64,
    /// Number of deleted files kept for reuse. Syncing a reused file needs no metadata update.
    pub spare_files: usize,
    /// Random number that no client knows, drawn anew at each start.
    pub salt: u64,
}

/// Limit of a file's size while space is short ([`Wal::save_space`]).
const SHORT_FILE_BYTES: u64 = 4 << 20;

impl WalConfig {
    /// The default limits.
    pub fn new(node: NodeId, salt: u64) -> WalConfig {
        WalConfig {
            node,
            max_file_bytes: 64 << 20,
            grow_bytes: 4 << 20,
            spare_files: 1,
            salt,
        }
    }
}

/// A completed file, to which nothing will be appended. It can be deleted once its contents are stored
/// elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletedFile {
    /// Number of the file.
    pub file: u64,
}

/// The log of a node. Its calls block; it belongs to the log's thread.
///
/// Each file starts with the newest hard state and checkpoint of every group, so deleting the oldest files
/// (with [`Wal::delete_through`]) loses entries and nothing else.
pub struct Wal {
    disk: Arc<dyn Disk>,
    config: WalConfig,
    /// Complete files, ascending.
    complete: Vec<u64>,
    spares: BTreeSet<u64>,
    /// The file being written; `None` until the first append.
    active: Option<ActiveFile>,
    /// The last file of an earlier incarnation, if it has no seal yet.
    unsealed: Option<UnsealedFile>,
    next_sequence: u64,
    /// Newest durable sequence number.
    durable: u64,
    /// The state of each group that new files repeat.
    carried: BTreeMap<GroupId, CarriedState>,
    scratch: Vec<u8>,
    /// A completed file that has not been reported yet.
    rolled: Option<CompletedFile>,
    /// The active file's name is not durable yet, so nothing may be acknowledged.
    is_name_unsynced: bool,
    /// Space is short.
    is_space_short: bool,
    /// `None` until the first file is started in a directory without a manifest.
    manifest: Option<Manifest>,
    /// The durable sequence number recorded in the manifest.
    noted_durable: u64,
    /// The fatal error after which every call fails.
    stopped: Option<String>,
}

/// The file being written.
struct ActiveFile {
    number: u64,
    path: String,
    file: Box<dyn File>,
    nonce: u64,
    /// Offset of the next record.
    position: u64,
    /// The file has allocated space up to this offset.
    allocated: u64,
    /// Offset of the first record after the repeated state.
    first_position: u64,
}

/// The last file of an earlier incarnation, which lacks its seal.
struct UnsealedFile {
    number: u64,
    position: u64,
    nonce: u64,
}

/// The state of a group that each new file repeats.
#[derive(Clone, Copy, Default)]
struct CarriedState {
    hard_state: Option<HardState>,
    checkpointed: Option<(u64, u64)>,
}

impl Wal {
    /// Recovers the log and prepares it for appending to a new file. The only changes to the disk are
    /// creating the directory, syncing the newest file and removing leftovers of unfinished files.
    pub fn open(disk: Arc<dyn Disk>, config: WalConfig) -> Result<(Wal, Recovered), WalError> {
        let dir = format::DIR;
        disk.create_dir(dir).map_err(|e| WalError::io(dir, &e))?;
        disk.sync_dir("").map_err(|e| WalError::sync_dir(dir, &e))?;
        let names = disk.list(dir).map_err(|e| WalError::io(dir, &e))?;
        let number_in = |extension| {
            names
                .iter()
                .filter_map(move |n| format::parse_name(n, extension))
        };
        let files: Vec<u64> = number_in("wal").collect();
        let manifest = Manifest::open(&*disk, config.node)?;
        let mut wal = Wal {
            disk,
            config,
            complete: files.clone(),
            spares: number_in("spare").collect(),
            active: None,
            unsealed: None,
            next_sequence: 1,
            durable: 0,
            carried: BTreeMap::new(),
            scratch: Vec::new(),
            rolled: None,
            is_name_unsynced: false,
            is_space_short: false,
            noted_durable: manifest.as_ref().map_or(0, |m| m.bounds.durable),
            manifest,
            stopped: None,
        };
        let recovered = wal.recover(files)?;
        wal.remove_leftovers(&names)?;
        for (group, state) in &recovered.groups {
            if state.hard_state.is_some() || state.checkpointed.is_some() {
                let carried = CarriedState {
                    hard_state: state.hard_state,
                    checkpointed: state.checkpointed,
                };
                wal.carried.insert(*group, carried);
            }
        }
        Ok((wal, recovered))
    }

    fn recover(&mut self, files: Vec<u64>) -> Result<Recovered, WalError> {
        let mut recovered = Recovered::default();
        let mut previous: Option<u64> = None;
        let mut has_manifest = false;
        self.check_newest_file(files.last().copied())?;
        for (at, number) in files.iter().enumerate() {
            let path = format::path(*number);
            if let Some(before) = previous.filter(|p| p + 1 != *number) {
                let what = format!(
                    "{path} is there and does not continue {}",
                    format::path(before)
                );
                return Err(WalError::missing(before + 1, *number - 1, what));
            }
            let (file, header) = read_header(&*self.disk, *number, self.config.node)?;
            if previous.is_some() && header.first_sequence != self.next_sequence {
                let what = "it does not continue the file before it";
                return Err(WalError::corrupt(&path, 0, what));
            }
            previous = Some(*number);
            has_manifest = header.has_manifest;
            let last = at + 1 == files.len();
            let reader = RecordReader::new(&*file, header)?;
            let end = reader.read_all(last, &mut |record| recovered.fold(record))?;
            if last {
                // A killed process may have left it unsynced, and from here on everything read counts as
                // durable.
                file.sync_data().map_err(|e| WalError::sync(&path, &e))?;
            }
            self.next_sequence = end.next_sequence;
            self.unsealed = (!end.sealed).then_some(UnsealedFile {
                number: *number,
                position: end.position,
                nonce: header.nonce,
            });
            if last {
                self.check_durable(&path, end.position)?;
            }
            recovered.torn = end.torn;
        }
        self.check_manifest(has_manifest, files.first().copied())?;
        self.durable = self.next_sequence - 1;
        recovered.files = files;
        Ok(recovered)
    }

    fn remove_leftovers(&mut self, names: &[String]) -> Result<(), WalError> {
        let mut leftovers = Vec::new();
        if names.iter().any(|n| NEW_FILE.ends_with(n.as_str())) {
            leftovers.push(NEW_FILE.to_owned());
        }
        while self.spares.len() > self.config.spare_files {
            leftovers.extend(self.spares.pop_first().map(format::spare_path));
        }
        for path in leftovers {
            self.disk
                .remove(&path)
                .map_err(|e| WalError::io(&path, &e))?;
        }
        Ok(())
    }

    /// Appends the records, all of them or, on an error, none. They are durable after [`Wal::sync`].
    pub fn append(&mut self, records: &[Record]) -> Result<Option<CompletedFile>, WalError> {
        self.append_all(records.iter())
    }

    /// [`Wal::append`] for the records of many batches: one write, unless they are very large.
    pub fn append_all<'a>(
        &mut self,
        records: impl Iterator<Item = &'a Record> + Clone,
    ) -> Result<Option<CompletedFile>, WalError> {
        self.check_running()?;
        let mut bytes = 0;
        if self.next_sequence - self.durable > MAX_UNSYNCED_RECORDS {
            self.sync()?;
        }
        for record in records.clone() {
            let len = format::encoded_len(record);
            if len > MAX_RECORD_BYTES {
                return Err(WalError::TooLarge {
                    bytes: len,
                    limit: MAX_RECORD_BYTES,
                });
            }
            bytes += len;
        }
        if bytes == 0 {
            return Ok(None);
        }
        let result = self
            .make_room(bytes)
            .and_then(|()| self.write(records.clone()));
        self.stop_if_fatal(result)?;
        for record in records {
            self.remember(record);
        }
        Ok(self.rolled.take())
    }

    /// Makes everything appended durable, and records that in the manifest.
    pub fn sync(&mut self) -> Result<(), WalError> {
        self.check_running()?;
        let result = self.sync_active().and_then(|()| self.note_durable());
        self.stop_if_fatal(result)
    }

    /// Shuts down: makes everything durable and completes the file, so that the next start notices any later
    /// damage to it.
    pub fn close(mut self) -> Result<(), WalError> {
        self.check_running()?;
        self.grow(SEAL_BYTES + TERMINATOR)?;
        self.seal()?;
        self.update_manifest(self.oldest())
    }

    /// Deletes the files up to and including `file`, whose contents are no longer needed. The active file
    /// stays.
    pub fn delete_through(&mut self, file: u64) -> Result<(), WalError> {
        self.check_running()?;
        if self.complete.first().is_none_or(|first| *first > file) {
            return Ok(());
        }
        if self.active.is_none() {
            // A newer file must first repeat the hard states of the old files.
            let result = self.start_file();
            self.stop_if_fatal(result)?;
        }
        let result = self
            .sync_name()
            .and_then(|()| self.record_deletion(file))
            .and_then(|()| self.delete_oldest(file));
        self.stop_if_fatal(result)
    }

    /// Sets whether space is short. While it is, files are small and none is kept for reuse: obsolete records
    /// are soon in a complete file, and deleting that file frees its space.
    pub fn save_space(&mut self, on: bool) -> Result<(), WalError> {
        self.check_running()?;
        self.is_space_short = on;
        match on {
            true => self.drop_spares(),
            false => Ok(()),
        }
    }

    fn max_file_bytes(&self) -> u64 {
        match self.is_space_short {
            true => self.config.max_file_bytes.min(SHORT_FILE_BYTES),
            false => self.config.max_file_bytes,
        }
    }

    fn spare_files(&self) -> usize {
        match self.is_space_short {
            true => 0,
            false => self.config.spare_files,
        }
    }

    /// Numbers of all files, ascending; the last one is being written.
    pub fn files(&self) -> Vec<u64> {
        let active = self.active.as_ref().map(|a| a.number);
        self.complete.iter().copied().chain(active).collect()
    }

    fn check_running(&self) -> Result<(), WalError> {
        match &self.stopped {
            Some(error) => Err(WalError::Stopped(error.clone())),
            None => Ok(()),
        }
    }

    fn stop_if_fatal<T>(&mut self, result: Result<T, WalError>) -> Result<T, WalError> {
        if let Err(error) = &result
            && error.is_fatal()
        {
            self.stopped = Some(error.to_string());
        }
        result
    }

    /// Makes sure that the active file can take `bytes` more, a seal and a terminator.
    fn make_room(&mut self, bytes: u64) -> Result<(), WalError> {
        let needed = bytes + SEAL_BYTES + TERMINATOR;
        if !self.has_room(needed, self.max_file_bytes()) {
            match self.start_file() {
                // A file over the short limit is better than none.
                Err(error)
                    if error.is_passing() && self.has_room(needed, self.config.max_file_bytes) => {}
                other => other?,
            }
        }
        self.sync_name()?;
        // Before a record in the file can be acknowledged. Retried here if there was no space for it earlier.
        self.record_newest_file()?;
        match self.grow(needed) {
            Err(WalError::Full { .. }) if !self.spares.is_empty() => {
                self.drop_spares()?;
                self.grow(needed)
            }
            other => other,
        }
    }

    fn has_room(&self, needed: u64, max: u64) -> bool {
        self.active.as_ref().is_some_and(|a| {
            a.position == a.first_position || a.position + needed <= max.max(a.first_position * 2)
        })
    }

    fn grow(&mut self, needed: u64) -> Result<(), WalError> {
        let step = self.config.grow_bytes.max(1);
        let limit = self.max_file_bytes();
        let Some(active) = &mut self.active else {
            return Ok(());
        };
        let end = active.position + needed;
        if end <= active.allocated {
            return Ok(());
        }
        let rounded = end.next_multiple_of(step).min(limit.max(end));
        let allocated = match active.file.allocate(rounded) {
            Ok(()) => rounded,
            Err(e) if is_full(&e) => {
                let exact = active.file.allocate(end);
                exact.map_err(|e| WalError::io(&active.path, &e))?;
                end
            }
            Err(e) => return Err(WalError::io(&active.path, &e)),
        };
        active.allocated = allocated;
        Ok(())
    }

    fn write<'a>(&mut self, records: impl Iterator<Item = &'a Record>) -> Result<(), WalError> {
        let Some(active) = &mut self.active else {
            return Err(WalError::Stopped("no file is open".to_owned()));
        };
        let mut position = active.position;
        let mut sequence = self.next_sequence;
        let mut records = records.peekable();
        self.scratch.clear();
        while let Some(record) = records.next() {
            let mut encoder = RecordEncoder {
                out: &mut self.scratch,
                nonce: active.nonce,
                sequence,
                durable: self.durable,
            };
            encoder.record(record);
            sequence = encoder.sequence;
            let at_end = records.peek().is_none();
            if at_end {
                self.scratch.extend_from_slice(&[0; TERMINATOR as usize]);
            }
            if at_end || self.scratch.len() >= SCRATCH_BYTES {
                if let Err(error) = active.file.write_at(position, &self.scratch) {
                    return self.undo_write(&error);
                }
                position += self.scratch.len() as u64;
                self.scratch.clear();
                self.scratch.shrink_to(SCRATCH_BYTES);
            }
        }
        active.position = position - TERMINATOR;
        self.next_sequence = sequence;
        Ok(())
    }

    /// Removes the remains of a write that failed for lack of space: they must not pass for a continuation of
    /// later records.
    fn undo_write(&mut self, error: &std::io::Error) -> Result<(), WalError> {
        let Some(active) = &mut self.active else {
            return Ok(());
        };
        let file = &active.file;
        if is_full(error) {
            file.truncate(active.position)
                .and_then(|()| file.sync_data())
                .map_err(|e| WalError::sync(&active.path, &e))?;
            active.allocated = active.position;
            self.durable = self.next_sequence - 1;
        }
        Err(WalError::io(&active.path, error))
    }

    fn sync_active(&mut self) -> Result<(), WalError> {
        let newest = self.next_sequence - 1;
        debug_assert!(
            self.durable <= newest,
            "a record is durable before it exists"
        );
        if let Some(active) = &self.active
            && self.durable < newest
        {
            let synced = active.file.sync_data();
            if !planted::is(Bug::FailedFsyncForgotten) {
                synced.map_err(|e| WalError::sync(&active.path, &e))?;
            }
            self.durable = newest;
        }
        Ok(())
    }

    fn remember(&mut self, record: &Record) {
        match record.body {
            RecordBody::HardState { term, vote, commit } => {
                let carried = self.carried.entry(record.group).or_default();
                carried.hard_state = Some(HardState { term, vote, commit });
            }
            RecordBody::Checkpointed { index, term } => {
                let carried = self.carried.entry(record.group).or_default();
                carried.checkpointed = Some((index, term));
            }
            RecordBody::Deleted => {
                self.carried.remove(&record.group);
            }
            RecordBody::Entry(_) => {}
        }
    }
}
