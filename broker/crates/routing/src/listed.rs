//! `x-modulus-hash` and `x-random` exchanges: each message goes to one of all destinations, whatever the binding keys
//! are.

use crate::hashed::{EMPTY, hash_bytes, mix};
use crate::{DestinationHandle, RoutingInput};
use std::cell::Cell;

#[derive(Clone, Debug)]
struct ListedDestination<D> {
    name: Box<str>,
    to: D,
    /// Number of bindings to the destination.
    uses: u32,
}

/// The destinations of an exchange, each once, ordered by name. The order and therefore the choice by hash are the same
/// on all nodes.
#[derive(Clone, Debug)]
pub(crate) struct DestinationList<D> {
    sorted: Vec<ListedDestination<D>>,
}

impl<D> Default for DestinationList<D> {
    fn default() -> DestinationList<D> {
        DestinationList { sorted: Vec::new() }
    }
}

impl<D: DestinationHandle> DestinationList<D> {
    fn position(&self, name: &str, to: D) -> Result<usize, usize> {
        self.sorted
            .binary_search_by(|d| (*d.name).cmp(name).then(d.to.cmp(&to)))
    }

    pub(crate) fn add(&mut self, to: D, name: &str) {
        match self.position(name, to) {
            Ok(at) => self.sorted[at].uses += 1,
            Err(at) => self.sorted.insert(
                at,
                ListedDestination {
                    name: name.into(),
                    to,
                    uses: 1,
                },
            ),
        }
    }

    /// Removes one binding to the destination. Returns false if there was none.
    pub(crate) fn remove(&mut self, to: D, name: &str) -> bool {
        let Ok(at) = self.position(name, to) else {
            return false;
        };
        self.sorted[at].uses -= 1;
        if self.sorted[at].uses == 0 {
            self.sorted.remove(at);
        }
        true
    }

    /// Appends the destination whose position is the hash of all routing keys modulo the number of destinations.
    pub(crate) fn route_by_hash(&self, keys: &[&str], out: &mut Vec<D>) {
        if self.sorted.is_empty() {
            return;
        }
        // The length separates the keys from each other.
        let hash = keys.iter().fold(EMPTY, |hash, key| {
            hash_bytes(hash_bytes(hash, &key.len().to_be_bytes()), key.as_bytes())
        });
        self.append(mix(hash), out);
    }

    /// Appends a random destination. A message without an origin has no random number: such messages take turns
    /// pseudo-randomly with the help of `turn`.
    pub(crate) fn route_at_random(
        &self,
        message: &dyn RoutingInput,
        turn: &Cell<u64>,
        out: &mut Vec<D>,
    ) {
        if self.sorted.is_empty() {
            return;
        }
        let random = match message.origin() {
            Some(origin) => origin.random,
            None => {
                turn.set(turn.get().wrapping_add(1));
                turn.get()
            }
        };
        self.append(mix(random), out);
    }

    fn append(&self, number: u64, out: &mut Vec<D>) {
        let at = number % self.sorted.len().max(1) as u64;
        out.extend(self.sorted.get(at as usize).map(|d| d.to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PublishOrigin;
    use message::Table;
    use std::collections::BTreeMap;

    fn list(names: &[&str]) -> DestinationList<u32> {
        let mut all = DestinationList::default();
        for name in names {
            all.add(name.len() as u32, name);
        }
        all
    }

    fn by_hash(all: &DestinationList<u32>, keys: &[&str]) -> Option<u32> {
        let mut out = Vec::new();
        all.route_by_hash(keys, &mut out);
        assert!(out.len() <= 1);
        out.first().copied()
    }

    #[test]
    fn modulus_hash_selects_the_same_destination_in_any_order_of_bindings() {
        let (all, other) = (
            list(&["a", "bb", "ccc"]),
            list(&["ccc", "a", "bb", "a", "a"]),
        );
        let mut counts = BTreeMap::new();
        for n in 0..3000 {
            let key = n.to_string();
            let to = by_hash(&all, &[&key]).unwrap();
            assert_eq!(by_hash(&other, &[&key]), Some(to));
            *counts.entry(to).or_insert(0) += 1;
        }
        assert!(
            counts.values().all(|n| (850..1150).contains(n)),
            "{counts:?}"
        );
        assert_eq!(by_hash(&list(&[]), &["k"]), None);
    }

    #[test]
    fn modulus_hash_covers_all_routing_keys() {
        let all = list(&["a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg"]);
        let second_keys: Vec<String> = (0..50).map(|n| n.to_string()).collect();
        let to = |key: &String| by_hash(&all, &["first", key]);
        assert!(second_keys.iter().any(|key| to(key) != to(&second_keys[0])));
    }

    #[test]
    fn destination_stays_until_its_last_binding_is_removed() {
        let mut all = list(&["a", "a", "bb"]);
        assert!(all.remove(1, "a") && all.remove(2, "bb"));
        assert_eq!(by_hash(&all, &["k"]), Some(1));
        assert!(all.remove(1, "a") && !all.remove(1, "a"));
        assert_eq!(by_hash(&all, &["k"]), None);
    }

    #[test]
    fn random_choice_uses_all_destinations_with_and_without_an_origin() {
        struct Published(u64);
        impl RoutingInput for Published {
            fn headers(&self) -> Table {
                Table::default()
            }
            fn origin(&self) -> Option<PublishOrigin> {
                Some(PublishOrigin {
                    node: 1,
                    random: self.0,
                })
            }
        }
        let all = list(&["a", "bb", "ccc"]);
        let turn = Cell::new(0);
        let none = Table::default;
        for is_published in [true, false] {
            let mut counts = BTreeMap::new();
            for n in 0..3000 {
                let mut out = Vec::new();
                match is_published {
                    true => all.route_at_random(&Published(n), &turn, &mut out),
                    false => all.route_at_random(&none, &turn, &mut out),
                }
                assert_eq!(out.len(), 1);
                *counts.entry(out[0]).or_insert(0) += 1;
            }
            assert_eq!(counts.len(), 3);
            assert!(
                counts.values().all(|n| (850..1150).contains(n)),
                "{counts:?}"
            );
        }
    }
}
