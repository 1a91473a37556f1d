//! A simulated file: its current contents, and the durable contents of each unsynced sector.

use crate::{Rng, SeededRng};
use std::collections::BTreeMap;

/// Unit that a disk writes atomically, in bytes.
pub(crate) const SECTOR: u64 = 512;

#[derive(Clone, Debug, Default)]
pub(crate) struct Inode {
    data: Vec<u8>,
    durable_len: u64,
    /// Sector number to its durable contents (zeros beyond the old end of the file). Other sectors are as in
    /// `data`.
    undo: BTreeMap<u64, Box<[u8; SECTOR as usize]>>,
    /// Offsets and masks of flipped bits in `data`.
    flipped: BTreeMap<u64, u8>,
    /// Flipped bits in the contents kept in `undo`.
    flipped_before: BTreeMap<u64, u8>,
}

impl Inode {
    pub(crate) fn len(&self) -> u64 {
        self.data.len() as u64
    }

    pub(crate) fn read_at(&self, offset: u64, buf: &mut [u8]) -> usize {
        let Some(rest) = usize::try_from(offset)
            .ok()
            .and_then(|o| self.data.get(o..))
        else {
            return 0;
        };
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        n
    }

    fn sector(&self, number: u64) -> Box<[u8; SECTOR as usize]> {
        let mut old = Box::new([0; SECTOR as usize]);
        self.read_at(number * SECTOR, &mut old[..]);
        old
    }

    fn save_durable(&mut self, from: u64, to: u64) {
        if from >= to {
            return;
        }
        for number in from / SECTOR..=(to - 1) / SECTOR {
            if !self.undo.contains_key(&number) {
                let old = self.sector(number);
                self.undo.insert(number, old);
            }
        }
    }

    pub(crate) fn write_at(&mut self, offset: u64, bytes: &[u8]) {
        let end = offset + bytes.len() as u64;
        self.save_durable(offset, end);
        self.clear_overwritten_flips(offset, end);
        if end > self.len() {
            self.data.resize(end as usize, 0);
        }
        self.data[offset as usize..end as usize].copy_from_slice(bytes);
    }

    /// Shortens or extends the file. New bytes are zero, after a crash too: file systems do not expose old
    /// blocks.
    pub(crate) fn set_len(&mut self, len: u64) {
        self.save_durable(len, self.len());
        self.clear_overwritten_flips(len, u64::MAX);
        self.data.resize(len as usize, 0);
    }

    pub(crate) fn sync(&mut self) {
        self.undo.clear();
        self.flipped_before.clear();
        self.durable_len = self.len();
    }

    /// Loses power: each unsynced sector is old or new, and the length is the old one, the new one or in
    /// between.
    pub(crate) fn crash(&mut self, rng: &mut SeededRng) {
        let (old, new) = (self.durable_len, self.len());
        let whole = old.max(new);
        self.data.resize(whole as usize, 0);
        let all = match rng.below(4) {
            0 => Some(true),
            1 => Some(false),
            _ => None,
        };
        for (number, content) in std::mem::take(&mut self.undo) {
            let survives = all.unwrap_or_else(|| rng.chance(1, 2));
            if survives {
                continue;
            }
            let flips = self
                .flipped_before
                .range(number * SECTOR..(number + 1) * SECTOR);
            self.flipped.extend(flips);
            let from = (number * SECTOR).min(whole) as usize;
            let to = ((number + 1) * SECTOR).min(whole) as usize;
            self.data[from..to].copy_from_slice(&content[..to - from]);
        }
        let len = match (all, rng.below(3)) {
            (Some(true), _) | (None, 0) => new,
            (Some(false), _) | (None, 1) => old,
            _ => old.min(new) + rng.below(whole - old.min(new) + 1),
        };
        self.data.resize(len as usize, 0);
        self.flipped.split_off(&len);
        self.flipped_before.clear();
        self.durable_len = len;
    }

    /// Flips stored bits durably. Returns false if the offset is beyond the end.
    pub(crate) fn flip(&mut self, offset: u64, mask: u8) -> bool {
        let Some(byte) = usize::try_from(offset)
            .ok()
            .and_then(|o| self.data.get_mut(o))
        else {
            return false;
        };
        *byte ^= mask;
        let flipped = self.flipped.entry(offset).or_default();
        *flipped ^= mask;
        if *flipped == 0 {
            self.flipped.remove(&offset);
        }
        if let Some(old) = self.undo.get_mut(&(offset / SECTOR)) {
            old[(offset % SECTOR) as usize] ^= mask;
        }
        true
    }

    /// True if stored bits differ from those written.
    pub(crate) fn is_damaged(&self) -> bool {
        !self.flipped.is_empty()
    }

    fn clear_overwritten_flips(&mut self, from: u64, to: u64) {
        while let Some((offset, mask)) = self.flipped.range(from..to).next() {
            let (offset, mask) = (*offset, *mask);
            self.flipped.remove(&offset);
            self.flipped_before.insert(offset, mask);
        }
    }

    /// Loses the end of the stored file, durably.
    pub(crate) fn lose_end(&mut self, len: u64) {
        self.data.truncate(len as usize);
        self.clear_overwritten_flips(len, u64::MAX);
        self.sync();
    }
}
