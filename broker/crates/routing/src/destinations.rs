//! Sets of destinations: small ones inline, large ones (a fanout to 100,000 queues) as a tree.

use crate::Handle;
use hashbrown::HashMap;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(crate) type NameMap<V> = HashMap<Arc<str>, V, foldhash::fast::FixedState>;

/// From this many on a tree is used: adding and removing stay logarithmic.
const MANY: usize = 16;

/// Destinations with how often each was added.
#[derive(Clone, Debug)]
pub(crate) enum Destinations<D> {
    Few(SmallVec<[(D, u32); 1]>),
    Many(BTreeMap<D, u32>),
}

impl<D> Default for Destinations<D> {
    fn default() -> Self {
        Destinations::Few(SmallVec::new())
    }
}

impl<D: Handle> Destinations<D> {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Destinations::Few(few) => few.is_empty(),
            Destinations::Many(many) => many.is_empty(),
        }
    }

    pub(crate) fn add(&mut self, to: D) {
        match self {
            Destinations::Few(few) => {
                if let Some((_, times)) = few.iter_mut().find(|(d, _)| *d == to) {
                    *times += 1;
                } else if few.len() < MANY {
                    few.push((to, 1));
                } else {
                    let mut many: BTreeMap<D, u32> = few.drain(..).collect();
                    many.insert(to, 1);
                    *self = Destinations::Many(many);
                }
            }
            Destinations::Many(many) => *many.entry(to).or_insert(0) += 1,
        }
    }

    /// False when it was not there.
    pub(crate) fn remove(&mut self, to: D) -> bool {
        match self {
            Destinations::Few(few) => {
                let Some(at) = few.iter().position(|(d, _)| *d == to) else {
                    return false;
                };
                if few[at].1 > 1 {
                    few[at].1 -= 1;
                } else {
                    few.remove(at);
                }
                true
            }
            Destinations::Many(many) => {
                let Some(times) = many.get_mut(&to) else {
                    return false;
                };
                *times -= 1;
                if *times == 0 {
                    many.remove(&to);
                }
                true
            }
        }
    }

    pub(crate) fn each(&self, out: &mut Vec<D>) {
        match self {
            Destinations::Few(few) => out.extend(few.iter().map(|(d, _)| *d)),
            Destinations::Many(many) => out.extend(many.keys().copied()),
        }
    }
}
