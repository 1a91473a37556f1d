//! A table that assigns the keys.

use crate::Slots;

/// Values under keys that the table assigns: the key freed last, or the next new one.
#[derive(Clone, Debug)]
pub struct Slab<T> {
    slots: Slots<T>,
    /// Freed keys, all below `next`.
    free: Vec<u32>,
    next: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab {
            slots: Slots::default(),
            free: Vec::new(),
            next: 0,
        }
    }
}

impl<T> Slab<T> {
    /// Creates an empty table without allocating.
    pub fn new() -> Slab<T> {
        Slab::default()
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// True if there is no value.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The key that [`Slab::insert`] would assign.
    pub fn vacant_key(&self) -> usize {
        self.free.last().map_or(self.next, |free| *free) as usize
    }

    /// Adds a value and returns its key, which is that of [`Slab::vacant_key`].
    pub fn insert(&mut self, value: T) -> usize {
        let key = self.free.pop().unwrap_or_else(|| {
            // Fewer than 2^32 values fit in memory.
            self.next += 1;
            self.next - 1
        });
        self.slots.put(key as usize, value);
        key as usize
    }

    /// Removes and returns the value under `key`. A later [`Slab::insert`] reuses the key.
    pub fn remove(&mut self, key: usize) -> Option<T> {
        let removed = self.slots.take(key)?;
        if self.slots.is_empty() {
            self.free = Vec::new();
            self.next = 0;
        } else {
            self.free.push(key as u32);
        }
        Some(removed)
    }

    /// Returns the value under `key`, or `None` if there is none.
    pub fn get(&self, key: usize) -> Option<&T> {
        self.slots.get(key)
    }

    /// Returns the value under `key` for modification, or `None` if there is none.
    pub fn get_mut(&mut self, key: usize) -> Option<&mut T> {
        self.slots.get_mut(key)
    }

    /// Keys and values in key order.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.slots.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_keys_are_reused() {
        let mut slab = Slab::new();
        let keys: Vec<usize> = (0..300).map(|n| slab.insert(n)).collect();
        assert_eq!(keys, (0..300).collect::<Vec<_>>());
        assert_eq!(
            (slab.remove(7), slab.remove(7), slab.remove(9)),
            (Some(7), None, Some(9))
        );
        assert_eq!(slab.vacant_key(), 9);
        assert_eq!(
            (slab.insert(1), slab.insert(2), slab.insert(3)),
            (9, 7, 300)
        );
        assert_eq!((slab.len(), slab.get(7)), (301, Some(&2)));
        assert_eq!(slab.get_mut(300), Some(&mut 3));
        let all: Vec<usize> = slab.iter().map(|(key, _)| key).collect();
        for key in all {
            slab.remove(key);
        }
        assert!(slab.is_empty());
        assert_eq!(slab.insert(0), 0);
    }
}
