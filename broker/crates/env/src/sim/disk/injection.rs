//! What a test does to the disk.

use super::{SimDisk, State};
use crate::{Rng, SeededRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

impl SimDisk {
    /// Power fails and comes back: unsynced sectors and names survive as chance has it. Injected faults stay, but for
    /// [`SimDisk::cut_power_after`].
    pub fn crash(&self, rng: &mut SeededRng) {
        let state = &mut *self.state();
        state.faults.changes_left = None;
        let mut left: BTreeMap<String, u64> = BTreeMap::new();
        for change in &state.pending {
            *left.entry(change.dir().to_owned()).or_default() += 1;
        }
        for count in left.values_mut() {
            *count = rng.below(*count + 1);
        }
        for change in std::mem::take(&mut state.pending) {
            if let Some(count) = left.get_mut(change.dir()).filter(|c| **c > 0) {
                *count -= 1;
                state.durable.apply(&change);
            }
        }
        state.durable.drop_orphans();
        state.now = state.durable.clone();
        let named: BTreeSet<u64> = state.now.files.values().copied().collect();
        state.inodes.retain(|number, _| named.contains(number));
        for inode in state.inodes.values_mut() {
            inode.crash(rng);
        }
        state.life += 1;
    }

    /// The process ends and the machine stays: everything written is kept, handles fail.
    pub fn restart(&self) {
        self.state().life += 1;
    }

    /// Bytes the disk holds in all; `None`: no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// After `n` more successful syncs each one fails; `None`: no fault.
    pub fn fail_syncs_after(&self, n: Option<u64>) {
        self.state().faults.syncs_left = n;
    }

    /// Syncs say yes and do nothing, as of a drive that ignores flushes: what rests on them is then lost by a crash.
    pub fn set_lying(&self, on: bool) {
        self.state().faults.lies = on;
    }

    /// The power goes off with the `n`th change of the disk from now (a write, sync, new name, ...): it may happen
    /// or not, and nothing works until [`SimDisk::crash`].
    pub fn cut_power_after(&self, n: Option<u64>) {
        self.state().faults.changes_left = n;
    }

    /// Returns true from the power cut until [`SimDisk::crash`].
    pub fn power_is_off(&self) -> bool {
        self.state().faults.changes_left == Some(0)
    }

    /// As on file systems that never overwrite in place: every write takes new space, `allocate` or not.
    pub fn set_copy_on_write(&self, on: bool) {
        self.state().faults.copies_on_write = on;
    }

    /// Reads of this file fail (or no longer do).
    pub fn set_unreadable(&self, path: &str, unreadable: bool) {
        let mut state = self.state();
        if unreadable {
            state.faults.unreadable.insert(path.to_owned());
        } else {
            state.faults.unreadable.remove(path);
        }
    }

    /// No file can be opened or created and no directory listed, synced or removed, as in a process that has used up its
    /// descriptors; open files still work.
    pub fn set_out_of_descriptors(&self, on: bool) {
        self.state().faults.opens_left = on.then_some(0);
    }

    /// [`SimDisk::set_out_of_descriptors`] after `n` more openings; `None`: no shortage.
    pub fn run_out_of_descriptors_after(&self, n: Option<u64>) {
        self.state().faults.opens_left = n;
    }

    /// Reads fail for want of memory and work again later; nothing else fails.
    pub fn set_out_of_memory(&self, on: bool) {
        self.state().faults.out_of_memory = on;
    }

    /// The whole directory stops answering (or comes back).
    pub fn set_gone(&self, gone: bool) {
        self.state().faults.gone = gone;
    }

    /// Everything is lost: an empty disk, handles fail.
    pub fn wipe(&self) {
        let mut state = self.state();
        let life = state.life + 1;
        let counters = state.counters;
        *state = State {
            life,
            counters,
            capacity: state.capacity,
            ..State::default()
        };
    }

    /// Flips the bits of `mask` in a stored byte; false when there is no such byte.
    pub fn flip(&self, path: &str, offset: u64, mask: u8) -> bool {
        let state = &mut *self.state();
        let inode = state.now.files.get(path);
        inode
            .and_then(|i| state.inodes.get_mut(i))
            .is_some_and(|i| i.flip(offset, mask))
    }

    /// Cuts a stored file off at `len`; false when there is no such file.
    pub fn lose_end(&self, path: &str, len: u64) -> bool {
        let state = &mut *self.state();
        let inode = state.now.files.get(path);
        match inode.and_then(|i| state.inodes.get_mut(i)) {
            Some(inode) => {
                inode.lose_end(len);
                true
            }
            None => false,
        }
    }

    /// Files in which a bit is flipped and has not been written over since, sorted.
    pub fn damaged(&self) -> Vec<String> {
        let state = self.state();
        let is_damaged = |i: &u64| state.inodes.get(i).is_some_and(|i| i.is_damaged());
        let damaged = state.now.files.iter().filter(|(_, i)| is_damaged(i));
        damaged.map(|(path, _)| path.clone()).collect()
    }

    /// A disk of its own with the same contents and faults, in the same state.
    pub fn copy(&self) -> SimDisk {
        let state = self.state().clone();
        SimDisk {
            state: Arc::new(Mutex::new(state)),
        }
    }
}
