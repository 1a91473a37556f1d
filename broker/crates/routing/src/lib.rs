//! Exchanges, bindings and the topic trie (R1, R4): in memory, one [`Bindings`] an exchange, no I/O.
//!
//! A destination is whatever small handle the caller uses. What is bound twice in the same way must be unbound twice:
//! the caller knows which bindings are the same one.
#![forbid(unsafe_code)]

mod destinations;
mod headers;
mod topic;

use destinations::{Destinations, NameMap};
use headers::HeaderBindings;
pub use headers::{BadMatch, check_arguments};
use message::Table;
use std::sync::Arc;
use topic::TopicTrie;

/// A destination handle.
pub trait Handle: Copy + Ord + std::fmt::Debug {}
impl<T: Copy + Ord + std::fmt::Debug> Handle for T {}

/// How an exchange picks destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Direct,
    Fanout,
    Topic,
    Headers,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Direct => "direct",
            Kind::Fanout => "fanout",
            Kind::Topic => "topic",
            Kind::Headers => "headers",
        }
    }

    pub fn from_name(name: &str) -> Option<Kind> {
        [Kind::Direct, Kind::Fanout, Kind::Topic, Kind::Headers]
            .into_iter()
            .find(|k| k.name() == name)
    }
}

/// What is bound to one exchange.
#[derive(Clone, Debug)]
pub struct Bindings<D> {
    by: By<D>,
    len: usize,
}

#[derive(Clone, Debug)]
enum By<D> {
    Direct(NameMap<Destinations<D>>),
    Fanout(Destinations<D>),
    Topic(TopicTrie<D>),
    Headers(HeaderBindings<D>),
}

impl<D: Handle> Bindings<D> {
    pub fn new(kind: Kind) -> Bindings<D> {
        let by = match kind {
            Kind::Direct => By::Direct(NameMap::default()),
            Kind::Fanout => By::Fanout(Destinations::default()),
            Kind::Topic => By::Topic(TopicTrie::default()),
            Kind::Headers => By::Headers(HeaderBindings::default()),
        };
        Bindings { by, len: 0 }
    }

    /// Bindings added and not removed.
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn add(&mut self, key: &Arc<str>, arguments: &Table, to: D) {
        self.len += 1;
        match &mut self.by {
            By::Direct(map) => map.entry(key.clone()).or_default().add(to),
            By::Fanout(all) => all.add(to),
            By::Topic(trie) => trie.add(key, to),
            By::Headers(list) => list.add(arguments, to),
        }
    }

    /// Undoes one [`Bindings::add`] with the same words; does nothing when there was none.
    pub fn remove(&mut self, key: &str, arguments: &Table, to: D) {
        let removed = match &mut self.by {
            By::Direct(map) => match map.get_mut(key) {
                Some(there) => {
                    let removed = there.remove(to);
                    if there.is_empty() {
                        map.remove(key);
                    }
                    removed
                }
                None => false,
            },
            By::Fanout(all) => all.remove(to),
            By::Topic(trie) => trie.remove(key, to),
            By::Headers(list) => list.remove(arguments, to),
        };
        self.len -= usize::from(removed);
    }

    /// Appends the destinations of a message with these keys; one may come more than once. `headers` is asked for once
    /// at most, and only by an exchange that looks at them.
    pub fn route(&self, keys: &[&str], headers: &dyn Fn() -> Table, out: &mut Vec<D>) {
        match &self.by {
            By::Direct(map) => {
                for key in keys {
                    if let Some(there) = map.get(*key) {
                        there.each(out);
                    }
                }
            }
            By::Fanout(all) => all.each(out),
            By::Topic(trie) => {
                for key in keys {
                    trie.route(key, out);
                }
            }
            By::Headers(list) => {
                if !list.is_empty() {
                    list.route(&headers(), out);
                }
            }
        }
    }
}
