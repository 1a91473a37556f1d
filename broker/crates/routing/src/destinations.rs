//! Sets of destinations: a single one inline, a few in a list, many (a fanout to 100,000 queues) in a tree.

use crate::DestinationHandle;
use hashbrown::HashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) type NameMap<V> = HashMap<Arc<str>, V, foldhash::fast::FixedState>;

/// Sets with more destinations are trees, so that adding and removing stay logarithmic.
const MAX_LIST_LEN: usize = 16;

/// Destinations, each with the number of times it was added. Most sets have at most one, and there may be
/// millions of sets.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::box_collection,
    reason = "most sets are small and in nodes of a trie"
)]
pub(crate) enum Destinations<D> {
    #[default]
    None,
    /// One destination that was added once.
    One(D),
    Few(Box<Vec<(D, u32)>>),
    Many(Box<BTreeMap<D, u32>>),
}

impl<D: DestinationHandle> Destinations<D> {
    pub(crate) fn is_empty(&self) -> bool {
        matches!(self, Destinations::None)
    }

    pub(crate) fn add(&mut self, to: D) {
        match self {
            Destinations::None => *self = Destinations::One(to),
            Destinations::One(one) => {
                let mut few = Vec::with_capacity(2);
                few.push((*one, 1));
                *self = Destinations::Few(Box::new(few));
                self.add(to);
            }
            Destinations::Few(few) => {
                if let Some((_, times)) = few.iter_mut().find(|(d, _)| *d == to) {
                    *times += 1;
                } else if few.len() < MAX_LIST_LEN {
                    few.push((to, 1));
                } else {
                    let mut many: BTreeMap<D, u32> = few.drain(..).collect();
                    many.insert(to, 1);
                    *self = Destinations::Many(Box::new(many));
                }
            }
            Destinations::Many(many) => *many.entry(to).or_insert(0) += 1,
        }
    }

    /// Removes one addition of `to`. Returns false if there was none.
    pub(crate) fn remove(&mut self, to: D) -> bool {
        let (times, left) = match self {
            Destinations::None => return false,
            Destinations::One(one) if *one != to => return false,
            Destinations::One(_) => (0, 0),
            Destinations::Few(few) => {
                let Some(at) = few.iter().position(|(d, _)| *d == to) else {
                    return false;
                };
                debug_assert!(few[at].1 > 0, "destination {to:?} is listed without uses");
                few[at].1 -= 1;
                let times = few[at].1;
                if times == 0 {
                    few.remove(at);
                }
                (times, few.len())
            }
            Destinations::Many(many) => {
                let Some(times) = many.get_mut(&to) else {
                    return false;
                };
                debug_assert!(*times > 0, "destination {to:?} is listed without uses");
                *times -= 1;
                let times = *times;
                if times == 0 {
                    many.remove(&to);
                }
                (times, many.len())
            }
        };
        if (times, left) == (0, 0) {
            *self = Destinations::None;
        }
        true
    }

    pub(crate) fn append_to(&self, out: &mut Vec<D>) {
        match self {
            Destinations::None => {}
            Destinations::One(one) => out.push(*one),
            Destinations::Few(few) => out.extend(few.iter().map(|(d, _)| *d)),
            Destinations::Many(many) => out.extend(many.keys().copied()),
        }
    }
}
