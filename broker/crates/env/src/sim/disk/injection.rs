//! Fault injection.

use super::{DiskState, SimDisk};
use crate::{Rng, SeededRng};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

impl SimDisk {
    /// Power fails and returns: unsynced sectors and names survive at random. Injected faults stay, except
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
        state.incarnation += 1;
    }

    /// The process ends and the machine keeps running: everything written stays, open handles fail.
    pub fn restart(&self) {
        self.state().incarnation += 1;
    }

    /// Sets the capacity of the disk in bytes; `None` removes the limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state().capacity = bytes;
    }

    /// Every sync after `n` more successful ones fails; `None` removes the fault.
    pub fn fail_syncs_after(&self, n: Option<u64>) {
        self.state().faults.syncs_left = n;
    }

    /// Syncs report success without effect, as of a drive that ignores flushes: a crash then loses the data.
    pub fn set_lying(&self, on: bool) {
        self.state().faults.lies = on;
    }

    /// Power fails at the `n`th change of the disk from now (a write, sync, name change, ...): that change
    /// may or may not happen, and nothing works until [`SimDisk::crash`].
    pub fn cut_power_after(&self, n: Option<u64>) {
        self.state().faults.changes_left = n;
    }

    /// True from the power failure until [`SimDisk::crash`].
    pub fn power_is_off(&self) -> bool {
        self.state().faults.changes_left == Some(0)
    }

    /// Imitates a copy-on-write file system: every write takes new space, even after `allocate`.
    pub fn set_copy_on_write(&self, on: bool) {
        self.state().faults.copies_on_write = on;
    }

    /// Makes reads of this file fail, or succeed again.
    pub fn set_unreadable(&self, path: &str, unreadable: bool) {
        let mut state = self.state();
        if unreadable {
            state.faults.unreadable.insert(path.to_owned());
        } else {
            state.faults.unreadable.remove(path);
        }
    }

    /// Simulates a process without free descriptors: no file can be opened or created and no directory
    /// listed, synced or removed; open files still work.
    pub fn set_out_of_descriptors(&self, on: bool) {
        self.state().faults.opens_left = on.then_some(0);
    }

    /// Calls [`SimDisk::set_out_of_descriptors`] after `n` more openings; `None` removes the fault.
    pub fn run_out_of_descriptors_after(&self, n: Option<u64>) {
        self.state().faults.opens_left = n;
    }

    /// Reads fail for lack of memory and succeed again later; nothing else fails.
    pub fn set_out_of_memory(&self, on: bool) {
        self.state().faults.out_of_memory = on;
    }

    /// Makes the whole data directory unavailable, or available again.
    pub fn set_gone(&self, gone: bool) {
        self.state().faults.gone = gone;
    }

    /// Loses everything: the disk is empty and open handles fail.
    pub fn wipe(&self) {
        let mut state = self.state();
        let incarnation = state.incarnation + 1;
        let counters = state.counters;
        *state = DiskState {
            incarnation,
            counters,
            capacity: state.capacity,
            ..DiskState::default()
        };
    }

    /// Flips the bits of `mask` in a stored byte; false if there is no such byte.
    pub fn flip(&self, path: &str, offset: u64, mask: u8) -> bool {
        let state = &mut *self.state();
        let inode = state.now.files.get(path);
        inode
            .and_then(|i| state.inodes.get_mut(i))
            .is_some_and(|i| i.flip(offset, mask))
    }

    /// Truncates a stored file to `len`; false if there is no such file.
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

    /// Files with a flipped bit that has not been overwritten, sorted.
    pub fn damaged(&self) -> Vec<String> {
        let state = self.state();
        let is_damaged = |i: &u64| state.inodes.get(i).is_some_and(|i| i.is_damaged());
        let damaged = state.now.files.iter().filter(|(_, i)| is_damaged(i));
        damaged.map(|(path, _)| path.clone()).collect()
    }

    /// An independent disk with the same contents, faults and state.
    pub fn copy(&self) -> SimDisk {
        let state = self.state().clone();
        SimDisk {
            state: Arc::new(Mutex::new(state)),
        }
    }
}
