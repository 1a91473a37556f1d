//! Connections between nodes. A lost frame breaks its connection, and all frames on the way on it are lost too.
//!
//! The failure detector replaces a broken connection when the network allows it, and reports that to both ends.

use crate::network::Link;
use env::NodeId;
use std::collections::{BTreeMap, BTreeSet};

type Pair = (NodeId, NodeId);

#[derive(Debug, Default)]
pub(crate) struct Connections {
    broken: BTreeSet<Pair>,
    /// Number of connections that each pair has replaced.
    replaced: BTreeMap<Pair, u64>,
}

fn pair((a, b): Link) -> Pair {
    (a.min(b), a.max(b))
}

impl Connections {
    /// The connection on which a frame sent now travels. `None` while it is broken.
    pub(crate) fn current(&self, link: Link) -> Option<u64> {
        let pair = pair(link);
        let replaced = self.replaced.get(&pair).copied().unwrap_or(0);
        (!self.broken.contains(&pair)).then_some(replaced)
    }

    pub(crate) fn cut(&mut self, link: Link) {
        self.broken.insert(pair(link));
    }

    /// Replaces the broken connections that the network allows, and returns their pairs.
    pub(crate) fn replace_broken(&mut self, possible: impl Fn(Link) -> bool) -> Vec<Pair> {
        let replaceable: Vec<Pair> = (self.broken.iter().copied())
            .filter(|(a, b)| possible((*a, *b)) && possible((*b, *a)))
            .collect();
        for pair in &replaceable {
            self.broken.remove(pair);
            *self.replaced.entry(*pair).or_default() += 1;
        }
        replaceable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_connection_is_broken_both_ways_until_replaced() {
        let (forward, back) = ((NodeId(1), NodeId(2)), (NodeId(2), NodeId(1)));
        let mut connections = Connections::default();
        let first = connections.current(forward);
        assert!(first.is_some());
        connections.cut(back);
        assert_eq!(connections.current(forward), None);
        assert!(connections.replace_broken(|link| link != back).is_empty());
        assert_eq!(connections.replace_broken(|_| true), [forward]);
        assert!(connections.current(back).is_some_and(|c| Some(c) != first));
    }
}
