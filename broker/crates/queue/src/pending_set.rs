//! A set for work that waits for the end of a turn.

/// A set keeps its capacity when it is emptied, up to this many items.
const KEPT_CAPACITY: usize = 1024;

/// A set that is filled item by item, and emptied as a whole in the order of its items. Mostly it has few items, and the same
/// one is added many times in a row: a tree would cost an allocation and several searches for that.
#[derive(Debug)]
pub struct PendingSet<T> {
    /// In any order, an item possibly several times.
    items: Vec<T>,
}

impl<T> Default for PendingSet<T> {
    fn default() -> PendingSet<T> {
        PendingSet { items: Vec::new() }
    }
}

impl<T: Copy + Ord> PendingSet<T> {
    /// Adds an item, unless the set has it.
    #[inline]
    pub fn insert(&mut self, item: T) {
        if self.items.last() == Some(&item) {
            return;
        }
        if self.items.len() == self.items.capacity() {
            self.grow();
        }
        self.items.push(item);
    }

    /// Removes repeated items, and grows when that freed little: the capacity is at most four times the number of items.
    #[cold]
    fn grow(&mut self) {
        self.items.sort_unstable();
        self.items.dedup();
        if self.items.len() >= self.items.capacity() / 2 {
            self.items.reserve(self.items.len().max(4));
        }
    }

    /// Returns true if nothing was added since the set was emptied.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Removes an item.
    pub fn remove(&mut self, item: T) {
        self.items.retain(|i| *i != item);
    }

    /// Empties the set. Returns its items in order, each once. [`Self::reuse`] takes the vector back.
    #[inline]
    pub fn take(&mut self) -> Vec<T> {
        let mut items = std::mem::take(&mut self.items);
        if items.len() > 1 {
            items.sort_unstable();
            items.dedup();
        }
        items
    }

    /// Takes back the vector that [`Self::take`] returned, if no item was added meanwhile.
    #[inline]
    pub fn reuse(&mut self, mut items: Vec<T>) {
        if self.items.is_empty() && items.capacity() <= KEPT_CAPACITY {
            items.clear();
            self.items = items;
        }
    }
}

impl<T: Copy + Ord> Extend<T> for PendingSet<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, items: I) {
        items.into_iter().for_each(|item| self.insert(item));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u16),
        Remove(u16),
        Empty { reuse: bool },
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            20 => (0..40u16).prop_map(Op::Insert),
            3 => (0..40u16).prop_map(Op::Remove),
            1 => any::<bool>().prop_map(|reuse| Op::Empty { reuse }),
        ]
    }

    proptest! {
        #[test]
        fn it_has_what_a_tree_would_have(ops in prop::collection::vec(op(), 0..400)) {
            let (mut set, mut model) = (PendingSet::default(), BTreeSet::new());
            for op in ops {
                match op {
                    Op::Insert(item) => {
                        set.insert(item);
                        model.insert(item);
                    }
                    Op::Remove(item) => {
                        set.remove(item);
                        model.remove(&item);
                    }
                    Op::Empty { reuse } => {
                        let items = set.take();
                        prop_assert_eq!(&items, &std::mem::take(&mut model).into_iter().collect::<Vec<_>>());
                        prop_assert!(set.is_empty());
                        if reuse {
                            set.reuse(items);
                        }
                    }
                }
                prop_assert_eq!(set.is_empty(), model.is_empty());
            }
        }
    }

    #[test]
    fn its_capacity_is_bounded_by_its_items() {
        let mut set = PendingSet::default();
        for item in 0..100_000u64 {
            set.insert(item % 10);
        }
        assert!(set.items.capacity() <= 40, "{}", set.items.capacity());
        for item in 0..100_000u64 {
            set.insert(item);
        }
        let items = set.take();
        assert_eq!(items, (0..100_000).collect::<Vec<_>>());
        set.reuse(items);
        assert_eq!(set.items.capacity(), 0, "a large capacity is given up");
    }
}
