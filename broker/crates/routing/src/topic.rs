//! The topic trie: binding keys are split at dots; `*` matches one word, `#` matches zero or more words (AMQP
//! 0.9.1, section 3.1.3.3).
//!
//! Words are interned and edges are kept in one table, so a match costs about one lookup per word, whatever
//! the number of bindings. Keys with many `#` cannot cause exponential work: a `#` node is visited once per
//! position.

use crate::DestinationHandle;
use crate::destinations::Destinations;
use crate::words::{HASH, STAR, WordTable};
use hashbrown::{HashSet, HashTable};
use slots::Slab;
use smallvec::SmallVec;
use std::hash::BuildHasher;

type FixedHash = foldhash::fast::FixedState;

const ROOT: u32 = 0;
/// Absent node.
const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Node<D> {
    parent: u32,
    /// The word on the edge to this node.
    word: u32,
    star: u32,
    hash: u32,
    /// Number of children over plain words; those edges are in `edges`.
    word_children: u32,
    destinations: Destinations<D>,
}

impl<D> Node<D> {
    fn new(parent: u32, word: u32) -> Node<D> {
        Node {
            parent,
            word,
            star: NONE,
            hash: NONE,
            word_children: 0,
            destinations: Destinations::default(),
        }
    }
}

fn edge_hash(parent: u32, word: u32) -> u64 {
    FixedHash::default().hash_one(u64::from(parent) << 32 | u64::from(word))
}

#[derive(Clone, Debug)]
pub(crate) struct TopicTrie<D> {
    nodes: Slab<Node<D>>,
    /// Edges over plain words: numbers of the child nodes, hashed by the parent and the word in the node.
    edges: HashTable<u32>,
    words: WordTable,
}

impl<D> Default for TopicTrie<D> {
    fn default() -> Self {
        let mut nodes = Slab::new();
        // The first node inserted has number ROOT.
        nodes.insert(Node::new(NONE, NONE));
        TopicTrie {
            nodes,
            edges: HashTable::new(),
            words: WordTable::default(),
        }
    }
}

impl<D: DestinationHandle> TopicTrie<D> {
    pub(crate) fn add(&mut self, key: &str, to: D) {
        let mut at = ROOT;
        for text in split(key) {
            at = self.find_or_add_child(at, text);
        }
        if let Some(node) = self.nodes.get_mut(at as usize) {
            node.destinations.add(to);
        }
    }

    pub(crate) fn remove(&mut self, key: &str, to: D) -> bool {
        let mut at = ROOT;
        for text in split(key) {
            let word = self.words.find_in_binding_key(text);
            match word.and_then(|word| self.child(at, word)) {
                Some(next) => at = next,
                None => return false,
            }
        }
        let node = self.nodes.get_mut(at as usize);
        let removed = node.is_some_and(|node| node.destinations.remove(to));
        self.prune(at);
        removed
    }

    /// Finds the destinations of a key whose words are divided by `separator`, an ASCII character.
    pub(crate) fn route(&self, key: &str, separator: u8, out: &mut Vec<D>) {
        let mut at = ROOT;
        let mut rest = (!key.is_empty()).then_some(key.as_bytes());
        // Nodes without wildcards have at most one successor for a word, so they need no stack. A word that no
        // binding has ends the walk before the others are looked up.
        loop {
            let Some(node) = self.nodes.get(at as usize) else {
                return;
            };
            if node.star != NONE || node.hash != NONE {
                return self.route_wildcards(at, rest, separator, out);
            }
            let Some(text) = rest else {
                return node.destinations.append_to(out);
            };
            if node.word_children == 0 {
                return;
            }
            let end = text.iter().position(|byte| *byte == separator);
            let (word, after) = match end {
                Some(end) => (&text[..end], Some(&text[end + 1..])),
                None => (text, None),
            };
            let next = self.words.find_in_routing_key(word);
            match next.and_then(|word| self.edge(at, word)) {
                Some(next) => (at, rest) = (next, after),
                None => return,
            }
        }
    }

    /// As [`TopicTrie::route`], from a node to which a plain word leads; `rest` is the key after that word.
    fn route_wildcards(&self, from: u32, rest: Option<&[u8]>, separator: u8, out: &mut Vec<D>) {
        let mut words: SmallVec<[Option<u32>; 16]> = SmallVec::new();
        if let Some(rest) = rest {
            for word in rest.split(|byte| *byte == separator) {
                words.push(self.words.find_in_routing_key(word));
            }
        }
        let mut walk: SmallVec<[(u32, usize); 16]> = SmallVec::new();
        let mut seen: HashSet<(u32, usize), FixedHash> = HashSet::default();
        let words = words.as_slice();
        // The top of the stack, kept out of it because it is nearly always the only element.
        let mut top = Some((from, 0));
        while let Some((at, position)) = top.take().or_else(|| walk.pop()) {
            let mut push = |next| {
                if let Some(below) = top.replace(next) {
                    walk.push(below);
                }
            };
            let Some(node) = self.nodes.get(at as usize) else {
                continue;
            };
            let is_hash = at != ROOT && node.word == HASH;
            if is_hash && !seen.insert((at, position)) {
                continue;
            }
            if node.hash != NONE {
                push((node.hash, position));
            }
            let Some(word) = words.get(position) else {
                node.destinations.append_to(out);
                continue;
            };
            if is_hash {
                // `#` matches this word as well.
                push((at, position + 1));
            }
            if node.star != NONE {
                push((node.star, position + 1));
            }
            if node.word_children > 0
                && let Some(word) = word
                && let Some(next) = self.edge(at, *word)
            {
                push((next, position + 1));
            }
        }
    }

    fn edge(&self, at: u32, word: u32) -> Option<u32> {
        let found = self.edges.find(edge_hash(at, word), |child| {
            let child = self.nodes.get(*child as usize);
            child.is_some_and(|child| (child.parent, child.word) == (at, word))
        });
        found.copied()
    }

    fn child(&self, at: u32, word: u32) -> Option<u32> {
        let node = self.nodes.get(at as usize)?;
        match word {
            STAR => (node.star != NONE).then_some(node.star),
            HASH => (node.hash != NONE).then_some(node.hash),
            _ => self.edge(at, word),
        }
    }

    fn find_or_add_child(&mut self, at: u32, text: &str) -> u32 {
        let word = self.words.find_in_binding_key(text);
        if let Some(found) = word.and_then(|word| self.child(at, word)) {
            return found;
        }
        let word = self.words.add(text);
        // Fewer than 2^32 nodes fit in memory.
        let child = self.nodes.insert(Node::new(at, word)) as u32;
        let Some(node) = self.nodes.get_mut(at as usize) else {
            return child;
        };
        match word {
            STAR => node.star = child,
            HASH => node.hash = child,
            _ => {
                node.word_children += 1;
                let nodes = &self.nodes;
                let hash_of = |child: &u32| {
                    let child = nodes.get(*child as usize);
                    child.map_or(0, |child| edge_hash(child.parent, child.word))
                };
                let hash = edge_hash(at, word);
                self.edges.insert_unique(hash, child, hash_of);
            }
        }
        child
    }

    /// Removes this node and its ancestors as far as they lead nowhere.
    fn prune(&mut self, mut at: u32) {
        while at != ROOT {
            let Some(node) = self.nodes.get(at as usize) else {
                return;
            };
            let needed = !node.destinations.is_empty()
                || node.word_children > 0
                || node.star != NONE
                || node.hash != NONE;
            if needed {
                return;
            }
            let (parent, word) = (node.parent, node.word);
            let Some(above) = self.nodes.get_mut(parent as usize) else {
                return;
            };
            match word {
                STAR => above.star = NONE,
                HASH => above.hash = NONE,
                _ => {
                    debug_assert!(
                        above.word_children > 0,
                        "node {parent} has an edge over word {word} but no word children"
                    );
                    above.word_children -= 1;
                    let hash = edge_hash(parent, word);
                    if let Ok(edge) = self.edges.find_entry(hash, |child| *child == at) {
                        edge.remove();
                    }
                    self.words.remove(word);
                }
            }
            self.nodes.remove(at as usize);
            at = parent;
        }
    }
}

/// The words of a key; the empty key has none.
fn split(key: &str) -> impl Iterator<Item = &str> {
    let none = key.is_empty();
    key.split('.').filter(move |_| !none)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A direct implementation of the definition, word by word.
    fn matches_by_definition(pattern: &[&str], key: &[&str]) -> bool {
        match (pattern.split_first(), key.split_first()) {
            (None, None) => true,
            (Some((&"#", rest)), None) => matches_by_definition(rest, key),
            (Some((&"#", rest)), Some((_, after))) => {
                matches_by_definition(rest, key) || matches_by_definition(pattern, after)
            }
            (Some((&"*", rest)), Some((_, after))) => matches_by_definition(rest, after),
            (Some((p, rest)), Some((k, after))) => p == k && matches_by_definition(rest, after),
            _ => false,
        }
    }

    fn matched(trie: &TopicTrie<usize>, key: &str) -> BTreeSet<usize> {
        let mut out = Vec::new();
        trie.route(key, b'.', &mut out);
        out.into_iter().collect()
    }

    #[test]
    fn specification_examples_match() {
        let mut trie = TopicTrie::default();
        for (n, key) in ["*.stock.#", "usd.stock", "#", "*", "a..b", ""]
            .iter()
            .enumerate()
        {
            trie.add(key, n);
        }
        assert_eq!(matched(&trie, "usd.stock"), BTreeSet::from([0, 1, 2]));
        assert_eq!(matched(&trie, "eur.stock.db"), BTreeSet::from([0, 2]));
        assert_eq!(matched(&trie, "stock.nasdaq"), BTreeSet::from([2]));
        assert_eq!(matched(&trie, "one"), BTreeSet::from([2, 3]));
        assert_eq!(matched(&trie, ""), BTreeSet::from([2, 5]));
        assert_eq!(matched(&trie, "a..b"), BTreeSet::from([2, 4]));
        assert_eq!(matched(&trie, "*.stock"), BTreeSet::from([0, 2]));
    }

    #[test]
    fn keys_with_many_hashes_take_linear_time() {
        let mut trie = TopicTrie::default();
        trie.add(&["#.a"; 60].join("."), 1);
        trie.add(&["#"; 100].join("."), 2);
        assert_eq!(matched(&trie, &["a"; 59].join(".")), BTreeSet::from([2]));
        assert_eq!(
            matched(&trie, &["a"; 120].join(".")),
            BTreeSet::from([1, 2])
        );
        assert_eq!(matched(&trie, &["b"; 120].join(".")), BTreeSet::from([2]));
    }

    proptest! {
        #[test]
        fn trie_agrees_with_the_definition(
            steps in proptest::collection::vec((any::<bool>(), "([ab*#]\\.){0,4}[ab*#]?", 0usize..4), 1..40),
            keys in proptest::collection::vec("([abc]\\.){0,4}[abc]?", 1..12),
        ) {
            let mut trie = TopicTrie::default();
            let mut model: Vec<(String, usize)> = Vec::new();
            for (add, key, to) in steps {
                let at = model.iter().position(|(k, t)| (k, t) == (&key, &to));
                if add {
                    trie.add(&key, to);
                    model.push((key, to));
                } else {
                    prop_assert_eq!(trie.remove(&key, to), at.is_some());
                    if let Some(at) = at {
                        model.remove(at);
                    }
                }
            }
            for key in &keys {
                let words: Vec<&str> = split(key).collect();
                let expected: BTreeSet<usize> = model.iter()
                    .filter(|(p, _)| matches_by_definition(&split(p).collect::<Vec<_>>(), &words)).map(|(_, t)| *t).collect();
                prop_assert_eq!(matched(&trie, key), expected, "{}", key);
            }
            for (key, to) in model {
                prop_assert!(trie.remove(&key, to));
            }
            // No nodes, edges or words are leaked.
            prop_assert_eq!(trie.nodes.len(), 1);
            prop_assert!(trie.edges.is_empty() && trie.words.is_empty());
        }
    }
}
