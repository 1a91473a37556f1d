//! Starting, completing, deleting and reusing log files.

use super::{ActiveFile, CarriedState, CompletedFile, Wal};
use crate::error::WalError;
use crate::format::{self, HEADER_BYTES, Header, NEW_FILE, RecordEncoder, SEAL_BYTES, TERMINATOR};
use crate::{Record, RecordBody};
use env::File;
use env::disk::{is_full, is_shortage};
use env::planted::{self, Bug};

impl Wal {
    /// Completes the active file, if any, and starts the next.
    ///
    /// The new file is created under a temporary name and is durable, including the repeated state, before it
    /// gets its final name: a file with a log file's name is never incomplete. On `Full` nothing has changed.
    /// On `Shortage` either nothing has changed, or the new file exists and [`Wal::sync_name`] must be called
    /// again.
    pub(super) fn start_file(&mut self) -> Result<(), WalError> {
        let number = 1 + self
            .active
            .as_ref()
            .map(|a| a.number)
            .or(self.complete.last().copied())
            .or(self.spares.last().copied())
            .unwrap_or(0);
        // The header of the new file states that a manifest exists.
        self.ensure_manifest()?;
        let will_seal = self.active.is_some() || self.unsealed.is_some();
        let first_sequence = self.next_sequence + u64::from(will_seal);
        let (temporary, next, sequence) = self.create_next(number, first_sequence)?;
        if let Err(error) = self
            .grow(SEAL_BYTES + TERMINATOR)
            .and_then(|()| self.seal())
        {
            drop(next);
            self.remove_temporary(&temporary)?;
            return Err(error);
        }
        if let Some(ActiveFile { number, .. }) = self.active.take() {
            self.complete.push(number);
            self.rolled = Some(CompletedFile { file: number });
        }
        self.disk
            .rename(&temporary, &next.path)
            .map_err(|e| WalError::sync(&next.path, &e))?;
        self.active = Some(next);
        self.next_sequence = sequence;
        self.durable = sequence - 1;
        self.is_name_unsynced = true;
        self.sync_name()
    }

    /// Makes the name of the active file durable.
    pub(super) fn sync_name(&mut self) -> Result<(), WalError> {
        if self.is_name_unsynced && !planted::is(Bug::NameNotSynced) {
            self.disk
                .sync_dir(format::DIR)
                .map_err(|e| WalError::sync_dir(format::DIR, &e))?;
        }
        self.is_name_unsynced = false;
        Ok(())
    }

    /// Creates the next file under a temporary name; returns that name, the file and its next sequence
    /// number.
    fn create_next(
        &mut self,
        number: u64,
        first_sequence: u64,
    ) -> Result<(String, ActiveFile, u64), WalError> {
        let header = Header {
            node: self.config.node,
            number,
            first_sequence,
            nonce: nonce(self.config.salt, number),
            repeated: self.repeated_records(),
            has_manifest: true,
        };
        let mut bytes = Vec::new();
        let sequence = self.encode_start(&header, &mut bytes);
        let position = bytes.len() as u64;
        bytes.extend_from_slice(&[0; TERMINATOR as usize]);

        let spare = self.spares.pop_last();
        let temporary = spare.map_or(NEW_FILE.to_owned(), format::spare_path);
        let opened = match spare {
            Some(_) => self.disk.open(&temporary),
            None => self.disk.create(&temporary),
        };
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                self.spares.extend(spare);
                return Err(WalError::io(&temporary, &error));
            }
        };
        match fill(&*file, &bytes, &temporary) {
            Ok(allocated) => {
                let next = ActiveFile {
                    number,
                    path: format::path(number),
                    file,
                    nonce: header.nonce,
                    position,
                    allocated,
                    first_position: position,
                };
                Ok((temporary, next, sequence))
            }
            Err(error) => {
                drop(file);
                self.remove_temporary(&temporary)?;
                Err(error)
            }
        }
    }

    /// Number of records written by [`Wal::encode_start`].
    fn repeated_records(&self) -> u64 {
        let records_of = |c: &CarriedState| {
            u64::from(c.hard_state.is_some()) + u64::from(c.checkpointed.is_some())
        };
        self.carried.values().map(records_of).sum()
    }

    /// Encodes the header and the newest state of every group.
    fn encode_start(&self, header: &Header, bytes: &mut Vec<u8>) -> u64 {
        header.encode(bytes);
        debug_assert_eq!(bytes.len() as u64, HEADER_BYTES);
        let mut encoder = RecordEncoder {
            out: bytes,
            nonce: header.nonce,
            sequence: header.first_sequence,
            durable: header.first_sequence - 1,
        };
        for (group, carried) in &self.carried {
            let checkpointed = carried
                .checkpointed
                .map(|(index, term)| RecordBody::Checkpointed { index, term });
            let hard_state = carried.hard_state.map(|h| RecordBody::HardState {
                term: h.term,
                vote: h.vote,
                commit: h.commit,
            });
            for body in checkpointed.into_iter().chain(hard_state) {
                encoder.record(&Record {
                    group: *group,
                    body,
                });
            }
        }
        encoder.sequence
    }

    fn remove_temporary(&self, temporary: &str) -> Result<(), WalError> {
        let removed = self.disk.remove(temporary);
        removed.map_err(|e| WalError::sync(temporary, &e))
    }

    /// Appends the seal and makes the whole file durable. Does nothing if there is no unsealed file.
    pub(super) fn seal(&mut self) -> Result<(), WalError> {
        let mut bytes = Vec::with_capacity(SEAL_BYTES as usize);
        let mut encoder = |nonce| {
            RecordEncoder {
                out: &mut bytes,
                nonce,
                sequence: self.next_sequence,
                durable: self.durable,
            }
            .seal();
        };
        if let Some(active) = &self.active {
            encoder(active.nonce);
            let written = active.file.write_at(active.position, &bytes);
            written.map_err(|e| WalError::io(&active.path, &e))?;
            let synced = active.file.sync_data();
            synced.map_err(|e| WalError::sync(&active.path, &e))?;
        } else if let Some(unsealed) = &self.unsealed {
            encoder(unsealed.nonce);
            let path = format::path(unsealed.number);
            let file = self.disk.open(&path).map_err(|e| WalError::io(&path, &e))?;
            file.truncate(unsealed.position)
                .and_then(|()| file.write_at(unsealed.position, &bytes))
                .map_err(|e| WalError::io(&path, &e))?;
            file.sync_data().map_err(|e| WalError::sync(&path, &e))?;
            self.unsealed = None;
        } else {
            return Ok(());
        }
        self.durable = self.next_sequence;
        self.next_sequence += 1;
        Ok(())
    }

    pub(super) fn delete_oldest(&mut self, through: u64) -> Result<(), WalError> {
        debug_assert!(self.complete.is_sorted(), "files are deleted oldest first");
        while let Some(number) = self.complete.first().copied().filter(|n| *n <= through) {
            let path = format::path(number);
            let result = if self.can_keep_as_spare(&path)? {
                let renamed = self.disk.rename(&path, &format::spare_path(number));
                self.spares.insert(number);
                renamed
            } else {
                self.disk.remove(&path)
            };
            result.map_err(|e| WalError::io(&path, &e))?;
            self.complete.remove(0);
        }
        self.disk
            .sync_dir(format::DIR)
            .map_err(|e| WalError::sync_dir(format::DIR, &e))
    }

    fn can_keep_as_spare(&self, path: &str) -> Result<bool, WalError> {
        if self.spares.len() >= self.spare_files() {
            return Ok(false);
        }
        match self.disk.open(path).and_then(|f| f.len()) {
            Ok(len) => Ok(len <= self.config.max_file_bytes),
            // Removing a file takes no descriptor.
            Err(e) if is_shortage(&e) => Ok(false),
            Err(e) => Err(WalError::io(path, &e)),
        }
    }

    pub(super) fn drop_spares(&mut self) -> Result<(), WalError> {
        while let Some(number) = self.spares.pop_first() {
            let path = format::spare_path(number);
            let removed = self.disk.remove(&path);
            removed.map_err(|e| WalError::io(&path, &e))?;
        }
        Ok(())
    }
}

/// Writes the beginning of a file durably; returns the offset up to which the file is allocated.
fn fill(file: &dyn File, bytes: &[u8], path: &str) -> Result<u64, WalError> {
    let needed = bytes.len() as u64 + SEAL_BYTES;
    file.allocate(needed)
        .and_then(|()| file.write_at(0, bytes))
        .map_err(|e| WalError::io(path, &e))?;
    match file.sync_data() {
        Err(e) if is_full(&e) => Err(WalError::io(path, &e)),
        Err(e) => Err(WalError::sync(path, &e)),
        Ok(()) => file.len().map_err(|e| WalError::io(path, &e)),
    }
}

/// A nonce that only the writer can predict: splitmix64 of the node's salt and the file's number.
fn nonce(salt: u64, number: u64) -> u64 {
    let mut z = salt.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
