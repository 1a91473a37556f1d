//! Connections between nodes, for software that counts on them: a lost frame takes its connection along.
//!
//! What is on the way on a connection that breaks is lost too. The detector makes a new one when the net lets it, and
//! both ends are told.

use crate::network::Link;
use env::NodeId;
use std::collections::{BTreeMap, BTreeSet};

type Pair = (NodeId, NodeId);

#[derive(Debug, Default)]
pub(crate) struct Connections {
    broken: BTreeSet<Pair>,
    /// Counts the connections of a pair.
    made: BTreeMap<Pair, u64>,
}

fn pair((a, b): Link) -> Pair {
    (a.min(b), a.max(b))
}

impl Connections {
    /// The connection that a frame sent now travels on; None while it is broken.
    pub fn current(&self, link: Link) -> Option<u64> {
        let pair = pair(link);
        let made = self.made.get(&pair).copied().unwrap_or(0);
        (!self.broken.contains(&pair)).then_some(made)
    }

    pub fn cut(&mut self, link: Link) {
        self.broken.insert(pair(link));
    }

    /// Makes those connections anew that can be; the pairs they join.
    pub fn mend(&mut self, possible: impl Fn(Link) -> bool) -> Vec<Pair> {
        let mended: Vec<Pair> = (self.broken.iter().copied())
            .filter(|(a, b)| possible((*a, *b)) && possible((*b, *a)))
            .collect();
        for pair in &mended {
            self.broken.remove(pair);
            *self.made.entry(*pair).or_default() += 1;
        }
        mended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_connection_is_broken_both_ways_until_another_is_made() {
        let (there, back) = ((NodeId(1), NodeId(2)), (NodeId(2), NodeId(1)));
        let mut all = Connections::default();
        let first = all.current(there);
        assert!(first.is_some());
        all.cut(back);
        assert_eq!(all.current(there), None);
        assert!(all.mend(|link| link != back).is_empty());
        assert_eq!(all.mend(|_| true), [there]);
        assert!(all.current(back).is_some_and(|c| Some(c) != first));
    }
}
