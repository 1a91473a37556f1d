//! Exchanges, bindings and the topic trie: in memory, one [`Bindings`] per exchange, no I/O.
//!
//! A destination is whatever small handle the caller uses. What is bound twice in the same way must be unbound twice:
//! the caller knows which bindings are the same one.
#![forbid(unsafe_code)]
#![warn(missing_docs, unreachable_pub)]

mod destinations;
mod hashed;
mod headers;
mod topic;
mod words;

use destinations::{Destinations, NameMap};
use hashed::Hashed;
use headers::HeaderBindings;
use message::Table;
use std::sync::Arc;
use topic::TopicTrie;

/// A destination handle.
pub trait Handle: Copy + Ord + std::fmt::Debug {}
impl<T: Copy + Ord + std::fmt::Debug> Handle for T {}

/// How an exchange picks destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Destinations whose binding key equals the routing key.
    Direct,
    /// All destinations.
    Fanout,
    /// Destinations whose binding key matches the routing key word by word, with `*` and `#`.
    Topic,
    /// Destinations whose binding arguments match the headers of the message.
    Headers,
    /// One destination, by a hash (`x-consistent-hash`).
    ConsistentHash,
    /// One destination of those on the publisher's node (`x-local-random`). Here it yields all: the caller knows where
    /// they are.
    LocalRandom,
}

const KINDS: [Kind; 6] = [
    Kind::Direct,
    Kind::Fanout,
    Kind::Topic,
    Kind::Headers,
    Kind::ConsistentHash,
    Kind::LocalRandom,
];

impl Kind {
    /// The name of the exchange type in AMQP and the HTTP API.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Direct => "direct",
            Kind::Fanout => "fanout",
            Kind::Topic => "topic",
            Kind::Headers => "headers",
            Kind::ConsistentHash => "x-consistent-hash",
            Kind::LocalRandom => "x-local-random",
        }
    }

    /// Returns the kind with that name, or None if no exchange type has it.
    pub fn from_name(name: &str) -> Option<Kind> {
        KINDS.into_iter().find(|k| k.name() == name)
    }

    /// Whether an exchange of this kind takes these arguments.
    pub fn check_exchange(self, arguments: &Table) -> Result<(), BadExchange> {
        match self {
            Kind::ConsistentHash => hashed::check_exchange(arguments),
            _ => Ok(()),
        }
    }

    /// Whether an exchange of this kind takes a binding with this key and these arguments.
    pub fn check_binding(self, key: &str, arguments: &Table) -> Result<(), BadBinding> {
        match self {
            Kind::Headers => headers::check_arguments(arguments),
            Kind::ConsistentHash => hashed::weight(key).map(|_| ()),
            Kind::LocalRandom if !key.is_empty() => Err(BadBinding::KeyNotEmpty(key.into())),
            _ => Ok(()),
        }
    }
}

/// Why an exchange cannot be. The texts are those clients know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadExchange {
    /// `hash-property` names a property that cannot be hashed.
    #[error("Unsupported property: {0}")]
    Property(String),
    /// Both `hash-header` and `hash-property` are set.
    #[error("hash-header and hash-property are mutually exclusive")]
    HeaderAndProperty,
    /// The named argument is not a string.
    #[error("{0} is not a string")]
    NotText(&'static str),
}

/// Why a binding cannot be. The texts are those clients know.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadBinding {
    /// `x-match` has a value that is not one of the four.
    #[error("Invalid x-match field value {}; expected all, any, all-with-x, or any-with-x", binary(.0))]
    Match(String),
    /// `x-match` is not a string; the text names its type.
    #[error("Invalid x-match field type {0}; expected longstr")]
    MatchType(String),
    /// The weight of a consistent-hash binding is 0 or negative.
    #[error("The binding key must be greater than 0")]
    WeightBelowOne,
    /// The binding key of a consistent-hash exchange is not a number.
    #[error("The binding key must be an integer: {}", binary(.0))]
    NoWeight(String),
    /// A local-random exchange takes no binding key.
    #[error("Non empty binding '{0}' key not permitted")]
    KeyNotEmpty(String),
}

/// As RabbitMQ shows a string within an error.
fn binary(text: &str) -> String {
    match text {
        "" => "<<>>".into(),
        text => format!("<<\"{text}\">>"),
    }
}

/// A property that a consistent hash exchange can hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property {
    /// `correlation_id`
    CorrelationId,
    /// `message_id`
    MessageId,
    /// `timestamp`, in seconds since the Unix epoch, as decimal digits.
    Timestamp,
}

impl Property {
    fn from_name(name: &str) -> Option<Property> {
        match name {
            "correlation_id" => Some(Property::CorrelationId),
            "message_id" => Some(Property::MessageId),
            "timestamp" => Some(Property::Timestamp),
            _ => None,
        }
    }
}

/// What of a message exchanges may look at besides its routing keys. A closure that makes the headers is one without
/// properties.
pub trait Envelope {
    /// The headers of the message. Called only by exchanges that need them.
    fn headers(&self) -> Table;
    /// As text; None when the message does not have it.
    fn property(&self, _property: Property) -> Option<String> {
        None
    }
    /// Where it is published.
    fn origin(&self) -> Option<Origin> {
        None
    }
}

impl<F: Fn() -> Table> Envelope for F {
    fn headers(&self) -> Table {
        self()
    }
}

/// Where a message is published, for exchanges that choose what is near.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The node's id.
    pub node: u64,
    /// Another one for each message.
    pub random: u64,
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
    Hashed(Hashed<D>),
}

impl<D: Handle> Bindings<D> {
    /// For an exchange of this kind with these arguments.
    pub fn new(kind: Kind, arguments: &Table) -> Bindings<D> {
        let by = match kind {
            Kind::Direct => By::Direct(NameMap::default()),
            Kind::Fanout | Kind::LocalRandom => By::Fanout(Destinations::default()),
            Kind::Topic => By::Topic(TopicTrie::default()),
            Kind::Headers => By::Headers(HeaderBindings::default()),
            Kind::ConsistentHash => By::Hashed(Hashed::new(arguments)),
        };
        Bindings { by, len: 0 }
    }

    /// Bindings added and not removed.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the exchange has no binding.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// `name` is the destination's, so that all nodes hash alike.
    pub fn add(&mut self, key: &Arc<str>, arguments: &Table, to: D, name: &str) {
        self.len += 1;
        match &mut self.by {
            By::Direct(map) => map.entry(key.clone()).or_default().add(to),
            By::Fanout(all) => all.add(to),
            By::Topic(trie) => trie.add(key, to),
            By::Headers(list) => list.add(arguments, to),
            By::Hashed(all) => all.add(key, to, hashed::identity(name)),
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
            By::Hashed(all) => all.remove(key, to),
        };
        self.len -= usize::from(removed);
    }

    /// Appends the destinations of a message with these keys; one may come more than once. Of the message each thing is
    /// asked for once at most, and only by an exchange that looks at it.
    pub fn route(&self, keys: &[&str], message: &dyn Envelope, out: &mut Vec<D>) {
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
                    trie.route(key, b'.', out);
                }
            }
            By::Headers(list) => {
                if !list.is_empty() {
                    list.route(&message.headers(), out);
                }
            }
            By::Hashed(all) => all.route(keys, message, out),
        }
    }

    /// The same for one key whose words stand between other separators than dots, an ASCII character. Of a topic exchange;
    /// others have no words.
    pub fn route_words(&self, key: &str, separator: u8, out: &mut Vec<D>) {
        if let By::Topic(trie) = &self.by {
            trie.route(key, separator, out);
        }
    }
}
