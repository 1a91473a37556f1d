//! Sparse tables with integer keys that grow one block at a time.
//!
//! Values in [`Slots`] and [`Slab`] are never moved, at most one block per table is partially unused, and a
//! block that becomes empty is freed: a million entries take a million times the size of one. [`IndexSet`] is a set
//! of log indexes.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod index_set;
mod slab;

pub use index_set::IndexSet;
pub use slab::Slab;

/// Entries per block.
const BLOCK: usize = 128;

#[derive(Clone, Debug)]
struct Block<T> {
    /// [`BLOCK`] entries, or none if the block is empty.
    entries: Box<[Option<T>]>,
    live: usize,
}

impl<T> Default for Block<T> {
    fn default() -> Self {
        Block {
            entries: Box::default(),
            live: 0,
        }
    }
}

/// Values under keys that the caller chooses. Keys should be small, because each block below the highest one
/// takes 24 bytes.
#[derive(Clone, Debug)]
pub struct Slots<T> {
    blocks: Vec<Block<T>>,
    len: usize,
}

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Slots {
            blocks: Vec::new(),
            len: 0,
        }
    }
}

impl<T> Slots<T> {
    /// Number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if there is no value.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the value under `key`, or `None` if there is none.
    pub fn get(&self, key: usize) -> Option<&T> {
        let block = self.blocks.get(key / BLOCK)?;
        block.entries.get(key % BLOCK)?.as_ref()
    }

    /// Returns the value under `key` for modification, or `None` if there is none.
    pub fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        let block = self.blocks.get_mut(key / BLOCK)?;
        block.entries.get_mut(key % BLOCK)?.as_mut()
    }

    /// Sets the value under `key` and returns the previous one.
    pub fn put(&mut self, key: usize, value: T) -> Option<T> {
        let at = key / BLOCK;
        if self.blocks.len() <= at {
            self.blocks.resize_with(at + 1, Block::default);
        }
        let block = self.blocks.get_mut(at)?;
        if block.entries.is_empty() {
            block.entries = (0..BLOCK).map(|_| None).collect();
        }
        let before = block.entries.get_mut(key % BLOCK)?.replace(value);
        if before.is_none() {
            block.live += 1;
            self.len += 1;
        }
        before
    }

    /// Removes and returns the value under `key`. Frees the memory of a block that becomes empty, except the
    /// first.
    pub fn take(&mut self, key: usize) -> Option<T> {
        let block = self.blocks.get_mut(key / BLOCK)?;
        let value = block.entries.get_mut(key % BLOCK)?.take()?;
        block.live -= 1;
        self.len -= 1;
        // The first block stays, for tables whose few entries come and go.
        if block.live == 0 && key >= BLOCK {
            block.entries = Box::default();
        }
        Some(value)
    }

    /// Keys and values in key order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        let blocks = self.blocks.iter().enumerate();
        blocks.flat_map(|(at, block)| {
            let entries = block.entries.iter().enumerate();
            entries.filter_map(move |(i, entry)| Some((at * BLOCK + i, entry.as_ref()?)))
        })
    }

    /// The first value with a key of at least `key`. Skips empty blocks.
    pub fn first_from(&self, key: usize) -> Option<(usize, &T)> {
        let mut first = key % BLOCK;
        for (at, block) in self.blocks.iter().enumerate().skip(key / BLOCK) {
            let entries = block.entries.iter().enumerate().skip(first);
            let mut found =
                entries.filter_map(|(i, entry)| Some((at * BLOCK + i, entry.as_ref()?)));
            if let Some(found) = found.next() {
                return Some(found);
            }
            first = 0;
        }
        None
    }

    /// Keys and values in key order, for modification.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        let blocks = self.blocks.iter_mut().enumerate();
        blocks.flat_map(|(at, block)| {
            let entries = block.entries.iter_mut().enumerate();
            entries.filter_map(move |(i, entry)| Some((at * BLOCK + i, entry.as_mut()?)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn slots_behave_as_a_map(steps in proptest::collection::vec((0usize..1000, any::<Option<u16>>()), 0..400)) {
            let mut slots = Slots::default();
            let mut model = BTreeMap::new();
            for (key, value) in steps {
                match value {
                    Some(value) => prop_assert_eq!(slots.put(key, value), model.insert(key, value)),
                    None => prop_assert_eq!(slots.take(key), model.remove(&key)),
                }
                prop_assert_eq!(slots.get(key), model.get(&key));
                prop_assert_eq!(slots.get_mut(key), model.get_mut(&key));
                prop_assert_eq!(slots.len(), model.len());
            }
            prop_assert!(slots.iter().eq(model.iter().map(|(k, v)| (*k, v))));
            prop_assert!(slots.iter_mut().eq(model.iter_mut().map(|(k, v)| (*k, v))));
        }
    }

    #[test]
    fn empty_blocks_are_freed() {
        let mut slots = Slots::default();
        for key in 0..10 * BLOCK {
            slots.put(key, key);
        }
        for key in 0..10 * BLOCK {
            slots.take(key);
        }
        let allocated: usize = slots.blocks.iter().map(|b| b.entries.len()).sum();
        assert_eq!((allocated, slots.len()), (BLOCK, 0));
    }
}
