//! A map for few entries: a sorted vector, because a B-tree allocates room for eleven entries with the first one.

/// A map in ascending order of its keys. Insertion takes time in proportion to the entries behind the new one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SortedMap<K, V>(Vec<(K, V)>);

impl<K, V> Default for SortedMap<K, V> {
    fn default() -> Self {
        SortedMap(Vec::new())
    }
}

impl<K: Ord, V> SortedMap<K, V> {
    #[inline]
    fn position(&self, key: &K) -> Result<usize, usize> {
        match &self.0[..] {
            [(only, _)] if only == key => Ok(0),
            entries => entries.binary_search_by(|(found, _)| found.cmp(key)),
        }
    }

    #[inline]
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        let at = self.position(key).ok()?;
        self.0.get(at).map(|(_, value)| value)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = self.position(key).ok()?;
        self.0.get_mut(at).map(|(_, value)| value)
    }

    /// Adds an entry. Returns the value that it replaces.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<V> {
        match self.position(&key) {
            Ok(at) => {
                let (_, found) = self.0.get_mut(at)?;
                Some(std::mem::replace(found, value))
            }
            Err(at) => {
                self.insert_at(at, key, value);
                None
            }
        }
    }

    /// Adds an entry unless the map has one with this key.
    pub(crate) fn insert_if_absent(&mut self, key: K, value: V) {
        if let Err(at) = self.position(&key) {
            self.insert_at(at, key, value);
        }
    }

    fn insert_at(&mut self, at: usize, key: K, value: V) {
        if self.0.capacity() == 0 {
            // Most maps get no second entry.
            self.0.reserve_exact(1);
        }
        self.0.insert(at, (key, value));
        debug_assert!(self.0.is_sorted_by(|(a, _), (b, _)| a < b));
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.position(key).ok()?;
        Some(self.0.remove(at).1)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The entry with the lowest key.
    pub(crate) fn first(&self) -> Option<(&K, &V)> {
        self.iter().next()
    }

    /// The entries in ascending order of their keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut V)> {
        self.0.iter_mut().map(|(key, value)| (&*key, value))
    }

    pub(crate) fn into_iter(self) -> impl Iterator<Item = (K, V)> {
        self.0.into_iter()
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.0.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.0.iter_mut().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn it_behaves_like_a_b_tree(steps in prop::collection::vec((0..4u8, 0..12u32, any::<u8>()), 0..60)) {
            let mut map = SortedMap::default();
            let mut model = BTreeMap::new();
            for (step, key, value) in steps {
                match step {
                    0 => prop_assert_eq!(map.insert(key, value), model.insert(key, value)),
                    1 => {
                        map.insert_if_absent(key, value);
                        model.entry(key).or_insert(value);
                    }
                    2 => prop_assert_eq!(map.remove(&key), model.remove(&key)),
                    _ => {
                        prop_assert_eq!(map.get(&key), model.get(&key));
                        prop_assert_eq!(map.get_mut(&key), model.get_mut(&key));
                    }
                }
                prop_assert!(map.iter().eq(model.iter()));
                prop_assert!(map.values().eq(model.values()));
                prop_assert!(map.values_mut().eq(model.values_mut()));
                prop_assert!(map.iter_mut().eq(model.iter_mut()));
                prop_assert_eq!(map.first(), model.first_key_value());
                prop_assert_eq!(map.is_empty(), model.is_empty());
            }
            prop_assert!(map.into_iter().eq(model));
        }
    }
}
