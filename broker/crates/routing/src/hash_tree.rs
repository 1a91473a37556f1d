//! Weighted rendezvous hashing in a tree (the skeleton-based variant): the destinations of a consistent-hash exchange
//! are the leaves of a radix tree over the hashes of their names. From the root on, the children of each node compute a
//! score from the message's hash, their position and the weight below them, and the highest score wins.
//!
//! A lookup takes time logarithmic in the number of destinations. Shares follow the weights exactly. The result depends
//! on the set of bindings, not on their order. A changed weight moves messages only towards the destinations whose share
//! grows, or to other destinations in the same subtree.

use crate::DestinationHandle;
use crate::hashed::mix;

/// Bits of the position that each level of the tree uses.
const LEVEL_BITS: u32 = 4;
/// The deepest level of inner nodes. Destinations with equal positions share a leaf.
const LAST_LEVEL: u32 = 64 / LEVEL_BITS - 1;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WeightedDestination<D> {
    pub(crate) to: D,
    /// The hash of the destination's name.
    pub(crate) identity: u64,
    pub(crate) weight: u64,
}

#[derive(Clone, Debug)]
enum Node<D> {
    /// Bindings of one position. The first has the highest weight, and takes the messages.
    Leaf(Vec<WeightedDestination<D>>),
    /// Children, ordered by their part of the position.
    Inner(Vec<Child<D>>),
}

#[derive(Clone, Debug)]
struct Child<D> {
    part: u8,
    /// A number that depends on the place of the child in the tree.
    seed: u64,
    /// The sum of the weights of the leaves.
    weight: u128,
    node: Node<D>,
}

/// All bindings of one exchange.
#[derive(Clone, Debug)]
pub(crate) struct HashTree<D> {
    root: Node<D>,
}

impl<D> Default for HashTree<D> {
    fn default() -> HashTree<D> {
        HashTree {
            root: Node::Leaf(Vec::new()),
        }
    }
}

/// The place of a destination in the tree, from the highest bits on.
fn position(identity: u64) -> u64 {
    mix(identity)
}

fn part(position: u64, level: u32) -> u8 {
    (position >> (64 - LEVEL_BITS * (level + 1)) & ((1 << LEVEL_BITS) - 1)) as u8
}

fn seed(position: u64, level: u32) -> u64 {
    let prefix = position >> (64 - LEVEL_BITS * (level + 1));
    mix(prefix ^ u64::from(level + 1) << 60 ^ 0x9e37_79b9_7f4a_7c15)
}

impl<D: DestinationHandle> Node<D> {
    fn weight(&self) -> u128 {
        match self {
            Node::Leaf(bindings) => bindings.first().map_or(0, |b| u128::from(b.weight)),
            Node::Inner(children) => children.iter().map(|c| c.weight).sum(),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Node::Leaf(bindings) => bindings.is_empty(),
            Node::Inner(children) => children.is_empty(),
        }
    }

    fn add(&mut self, added: WeightedDestination<D>, level: u32) {
        let at = position(added.identity);
        if let Node::Leaf(bindings) = self {
            let is_same = bindings
                .first()
                .is_none_or(|b| position(b.identity) == at || level > LAST_LEVEL);
            if is_same {
                let index =
                    bindings.partition_point(|b| (b.weight, added.to) > (added.weight, b.to));
                return bindings.insert(index, added);
            }
            let bindings = std::mem::take(bindings);
            let first = bindings.first().map_or(0, |b| position(b.identity));
            let node = Node::Leaf(bindings);
            *self = Node::Inner(vec![Child {
                part: part(first, level),
                seed: seed(first, level),
                weight: node.weight(),
                node,
            }]);
        }
        if let Node::Inner(children) = self {
            let part = part(at, level);
            let index = match children.binary_search_by_key(&part, |c| c.part) {
                Ok(index) => index,
                Err(index) => {
                    let child = Child {
                        part,
                        seed: seed(at, level),
                        weight: 0,
                        node: Node::Leaf(Vec::new()),
                    };
                    children.insert(index, child);
                    index
                }
            };
            let child = &mut children[index];
            child.node.add(added, level + 1);
            child.weight = child.node.weight();
        }
    }

    fn remove(&mut self, removed: &WeightedDestination<D>, level: u32) -> bool {
        match self {
            Node::Leaf(bindings) => {
                let index = bindings.iter().position(|b| b == removed);
                index.map(|index| bindings.remove(index)).is_some()
            }
            Node::Inner(children) => {
                let part = part(position(removed.identity), level);
                let Ok(index) = children.binary_search_by_key(&part, |c| c.part) else {
                    return false;
                };
                let child = &mut children[index];
                if !child.node.remove(removed, level + 1) {
                    return false;
                }
                child.weight = child.node.weight();
                if child.node.is_empty() {
                    children.remove(index);
                }
                // A leaf moves up to the place where a tree without the removed destination has it.
                if let [
                    Child {
                        node: Node::Leaf(leaf),
                        ..
                    },
                ] = &mut children[..]
                {
                    *self = Node::Leaf(std::mem::take(leaf));
                }
                true
            }
        }
    }

    fn for_each<'a>(&'a self, visit: &mut impl FnMut(&'a WeightedDestination<D>)) {
        match self {
            Node::Leaf(bindings) => bindings.iter().for_each(visit),
            Node::Inner(children) => children.iter().for_each(|c| c.node.for_each(visit)),
        }
    }
}

impl<D: DestinationHandle> HashTree<D> {
    pub(crate) fn add(&mut self, added: WeightedDestination<D>) {
        self.root.add(added, 0);
    }

    /// Returns false if there is no such binding.
    pub(crate) fn remove(&mut self, removed: &WeightedDestination<D>) -> bool {
        self.root.remove(removed, 0)
    }

    /// The destination of a message with this hash.
    pub(crate) fn find(&self, hash: u64) -> Option<D> {
        let mut node = &self.root;
        loop {
            match node {
                Node::Leaf(bindings) => return bindings.first().map(|b| b.to),
                Node::Inner(children) => match &children[..] {
                    [] => return None,
                    [only] => node = &only.node,
                    [first, others @ ..] => {
                        let mut best = (first, score(hash, first));
                        for child in others {
                            let score = score(hash, child);
                            if score > best.1 {
                                best = (child, score);
                            }
                        }
                        node = &best.0.node;
                    }
                },
            }
        }
    }

    /// Calls `visit` with every binding.
    pub(crate) fn for_each<'a>(&'a self, mut visit: impl FnMut(&'a WeightedDestination<D>)) {
        self.root.for_each(&mut visit);
    }
}

/// The score of a child. The probability that it is the highest is in proportion to the weights.
fn score<D>(hash: u64, child: &Child<D>) -> f64 {
    child.weight as f64 / negative_ln(mix(hash ^ child.seed) >> 12)
}

/// -ln((bits + 0.5) / 2^52) for bits below 2^52. Only additions, multiplications and divisions of IEEE 754, so that the
/// result is the same on every processor and with every C library.
fn negative_ln(bits: u64) -> f64 {
    // Exact: the number has at most 53 bits.
    let number = (2 * bits + 1) as f64;
    let raw = number.to_bits();
    let exponent = (raw >> 52) as i64 - 1023;
    let fraction = f64::from_bits(raw & ((1 << 52) - 1) | 1023 << 52);
    // Between the square roots of 1/2 and of 2.
    let (fraction, exponent) = match fraction > std::f64::consts::SQRT_2 {
        true => (fraction / 2.0, exponent + 1),
        false => (fraction, exponent),
    };
    // The series of the inverse hyperbolic tangent.
    let t = (fraction - 1.0) / (fraction + 1.0);
    let square = t * t;
    let series = 1.0 + square * (1.0 / 3.0 + square * (0.2 + square * (1.0 / 7.0 + square / 9.0)));
    (53 - exponent) as f64 * std::f64::consts::LN_2 - 2.0 * t * series
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hashed::identity;
    use std::collections::BTreeMap;

    fn named(to: u64, weight: u64) -> WeightedDestination<u64> {
        WeightedDestination {
            to,
            identity: identity(&format!("q{to}")),
            weight,
        }
    }

    fn tree(all: impl IntoIterator<Item = (u64, u64)>) -> HashTree<u64> {
        let mut tree = HashTree::default();
        for (to, weight) in all {
            tree.add(named(to, weight));
        }
        tree
    }

    const HASHES: u64 = 60_000;

    fn find(tree: &HashTree<u64>, n: u64) -> u64 {
        tree.find(mix(n)).unwrap()
    }

    #[test]
    fn logarithm_agrees_with_the_standard_library() {
        for bits in (0..2000)
            .map(|n| mix(n) >> 12)
            .chain([0, 1, (1 << 52) - 1, 1 << 51, 3 << 50])
        {
            let expected = -((bits as f64 + 0.5) / (1u64 << 52) as f64).ln();
            let actual = negative_ln(bits);
            assert!(actual > 0.0, "{bits}");
            assert!(
                (actual - expected).abs() < 1e-8,
                "{bits}: {actual} {expected}"
            );
        }
    }

    #[test]
    fn shares_are_proportional_to_weights_with_many_destinations() {
        let weight = |to: u64| 1 + to % 3;
        let all = tree((0..600).map(|to| (to, weight(to))));
        let mut counts = [0; 4];
        let mut each = BTreeMap::new();
        for n in 0..HASHES {
            let to = find(&all, n);
            counts[weight(to) as usize] += 1;
            *each.entry(to).or_insert(0u64) += 1;
        }
        // Weights 1, 2 and 3 are equally frequent.
        for weight in 1..4 {
            let expected = HASHES * weight / 6;
            let actual = counts[weight as usize];
            assert!(
                actual * 20 > expected * 19 && actual * 20 < expected * 21,
                "{counts:?}"
            );
        }
        // 50 messages for each unit of weight are expected.
        assert_eq!(each.len(), 600);
        let is_fair = |(to, n): (&u64, &u64)| *n > 20 * weight(*to) && *n < 90 * weight(*to);
        assert!(each.iter().all(is_fair), "{each:?}");
    }

    /// The least possible share moves to an added destination. The tree may move it once for each level.
    #[test]
    fn added_destination_moves_few_messages() {
        for len in [2, 10, 100, 1000] {
            let (before, after) = (
                tree((0..len).map(|to| (to, 1))),
                tree((0..=len).map(|to| (to, 1))),
            );
            let mut moved = 0;
            for n in 0..HASHES {
                moved += u64::from(find(&before, n) != find(&after, n));
            }
            let least = HASHES / (len + 1);
            assert!(
                moved < least * 4,
                "{len} destinations: {moved} moved, {least} is the least"
            );
        }
    }

    #[test]
    fn result_depends_on_the_set_of_bindings_only() {
        let mut changed = tree(
            (0..40)
                .rev()
                .map(|to| (to, 2))
                .chain((20..90).map(|to| (to, 5))),
        );
        for to in 20..90 {
            assert!(changed.remove(&named(to, 5)));
            assert!(!changed.remove(&named(to, 5)));
        }
        let expected = tree((0..40).map(|to| (to, 2)));
        for n in 0..5000 {
            assert_eq!(find(&changed, n), find(&expected, n));
        }
        for to in 0..40 {
            assert!(changed.remove(&named(to, 2)));
        }
        assert_eq!(changed.find(1), None);
        assert!(changed.root.is_empty());
    }

    #[test]
    fn destinations_with_equal_names_share_a_leaf_and_huge_weights_do_not_overflow() {
        let mut all = tree((0..3).map(|to| (to, u64::MAX)));
        let twin = |to, weight| WeightedDestination {
            to,
            identity: 7,
            weight,
        };
        for (to, weight) in [(9, 1), (8, u64::MAX), (7, u64::MAX)] {
            all.add(twin(to, weight));
        }
        let mut counts = BTreeMap::new();
        for n in 0..HASHES {
            *counts.entry(find(&all, n)).or_insert(0) += 1;
        }
        assert_eq!(counts.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 7]);
        assert!(counts.values().all(|n| *n > HASHES / 5), "{counts:?}");
        assert!(all.remove(&twin(7, u64::MAX)) && all.remove(&twin(8, u64::MAX)));
        assert!((0..3).all(|to| all.remove(&named(to, u64::MAX))));
        assert_eq!(find(&all, 0), 9);
    }
}
