//! The links of one session by queue. Most sessions use few queues, for which a table with hashes is larger and slower.

use crate::FixedState;
use hashbrown::HashMap;
use metadata::QueueId;

/// Entries up to which they are searched one by one.
const FEW: usize = 8;

/// A map of boxed values in any order.
pub(super) enum LinkTable<V> {
    /// At most [`FEW`].
    Few(Vec<(QueueId, Box<V>)>),
    /// There were more than [`FEW`].
    Many(Box<HashMap<QueueId, Box<V>, FixedState>>),
}

impl<V> Default for LinkTable<V> {
    fn default() -> Self {
        LinkTable::Few(Vec::new())
    }
}

impl<V> LinkTable<V> {
    #[inline]
    pub(super) fn get(&self, queue: &QueueId) -> Option<&V> {
        match self {
            LinkTable::Few(entries) => {
                let entry = entries.iter().find(|(found, _)| found == queue);
                entry.map(|(_, value)| &**value)
            }
            LinkTable::Many(entries) => entries.get(queue).map(Box::as_ref),
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, queue: &QueueId) -> Option<&mut V> {
        match self {
            LinkTable::Few(entries) => {
                let entry = entries.iter_mut().find(|(found, _)| found == queue);
                entry.map(|(_, value)| &mut **value)
            }
            LinkTable::Many(entries) => entries.get_mut(queue).map(Box::as_mut),
        }
    }

    /// The value of a queue, which `make` makes if there is none.
    #[inline]
    pub(super) fn get_or_insert_with(
        &mut self,
        queue: QueueId,
        make: impl FnOnce() -> V,
    ) -> &mut V {
        if let LinkTable::Few(entries) = self
            && entries.len() == FEW
            && !entries.iter().any(|(found, _)| *found == queue)
        {
            let many = std::mem::take(entries).into_iter().collect();
            *self = LinkTable::Many(Box::new(many));
        }
        match self {
            LinkTable::Few(entries) => {
                let found = entries.iter().position(|(found, _)| *found == queue);
                let at = found.unwrap_or_else(|| {
                    // Most sessions use one queue.
                    entries.reserve_exact(1);
                    entries.push((queue, Box::new(make())));
                    entries.len() - 1
                });
                &mut entries[at].1
            }
            LinkTable::Many(entries) => entries.entry(queue).or_insert_with(|| Box::new(make())),
        }
    }

    pub(super) fn remove(&mut self, queue: &QueueId) -> Option<Box<V>> {
        match self {
            LinkTable::Few(entries) => {
                let at = entries.iter().position(|(found, _)| found == queue)?;
                Some(entries.swap_remove(at).1)
            }
            LinkTable::Many(entries) => entries.remove(queue),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            LinkTable::Few(entries) => entries.is_empty(),
            LinkTable::Many(entries) => entries.is_empty(),
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (QueueId, &V)> {
        let (few, many) = match self {
            LinkTable::Few(entries) => (&entries[..], None),
            LinkTable::Many(entries) => (&[][..], Some(entries.iter())),
        };
        let few = few.iter().map(|(queue, value)| (*queue, &**value));
        let many = many.into_iter().flatten();
        few.chain(many.map(|(queue, value)| (*queue, &**value)))
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = QueueId> {
        self.iter().map(|(queue, _)| queue)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_behaves_like_a_map(steps in prop::collection::vec((0..3u8, 0..16u64, any::<u8>()), 0..80)) {
            let mut table = LinkTable::default();
            let mut model = BTreeMap::new();
            for (step, queue, value) in steps {
                let queue = QueueId(queue);
                match step {
                    0 => {
                        let found = *table.get_or_insert_with(queue, || value);
                        prop_assert_eq!(found, *model.entry(queue).or_insert(value));
                    }
                    1 => prop_assert_eq!(table.remove(&queue).map(|v| *v), model.remove(&queue)),
                    _ => {
                        prop_assert_eq!(table.get(&queue), model.get(&queue));
                        prop_assert_eq!(table.get_mut(&queue), model.get_mut(&queue));
                    }
                }
                let mut all: Vec<_> = table.iter().map(|(queue, value)| (queue, *value)).collect();
                all.sort_unstable();
                prop_assert!(all.into_iter().eq(model.iter().map(|(queue, value)| (*queue, *value))));
                prop_assert_eq!((table.keys().count(), table.values().count()), (model.len(), model.len()));
                prop_assert_eq!(table.is_empty(), model.is_empty());
            }
        }
    }
}
