//! Exchanges and bindings in memory: one [`Bindings`] per exchange finds the destinations of a message. No
//! I/O.
//!
//! A destination is a small [`Handle`] of the caller's choice. Equal bindings are counted: a binding added
//! twice must be removed twice, and the caller decides which bindings are the same. Errors are
//! [`BadExchange`] and [`BadBinding`], whose texts equal RabbitMQ's.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod destinations;
mod direct_reply;
mod hashed;
mod headers;
mod topic;
mod words;

use destinations::{Destinations, NameMap};
pub use direct_reply::{DIRECT_REPLY_PREFIX, DIRECT_REPLY_TO, is_direct_reply_name};
use hashed::Hashed;
use headers::HeaderBindings;
use message::Table;
use std::sync::Arc;
use topic::TopicTrie;

/// A destination handle.
pub trait Handle: Copy + Ord + std::fmt::Debug {}
impl<T: Copy + Ord + std::fmt::Debug> Handle for T {}

/// The type of an exchange: how it selects destinations.
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
    /// One destination, selected by a hash (`x-consistent-hash`).
    ConsistentHash,
    /// One random destination on the publisher's node (`x-local-random`). Routing yields all destinations
    /// here, because only the caller knows their nodes.
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

    /// Returns the kind with that name, or `None` if no exchange type has it.
    pub fn from_name(name: &str) -> Option<Kind> {
        KINDS.into_iter().find(|k| k.name() == name)
    }

    /// Validates the arguments of an exchange of this kind.
    pub fn check_exchange(self, arguments: &Table) -> Result<(), BadExchange> {
        match self {
            Kind::ConsistentHash => hashed::check_exchange(arguments),
            _ => Ok(()),
        }
    }

    /// Validates the key and arguments of a binding to an exchange of this kind.
    pub fn check_binding(self, key: &str, arguments: &Table) -> Result<(), BadBinding> {
        match self {
            Kind::Headers => headers::check_arguments(arguments),
            Kind::ConsistentHash => hashed::weight(key).map(|_| ()),
            Kind::LocalRandom if !key.is_empty() => Err(BadBinding::KeyNotEmpty(key.into())),
            _ => Ok(()),
        }
    }
}

/// Why an exchange cannot be declared. Clients know the texts from RabbitMQ.
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

/// Why a binding cannot be declared. Clients know the texts from RabbitMQ.
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

/// Formats a string as RabbitMQ does in error texts: as an Erlang binary.
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

/// The parts of a message besides its routing keys that exchanges may use. A closure that returns headers is
/// an envelope without properties.
pub trait Envelope {
    /// The headers of the message. Called only by exchanges that need them.
    fn headers(&self) -> Table;
    /// A property as text; `None` if the message does not have it.
    fn property(&self, _property: Property) -> Option<String> {
        None
    }
    /// Where the message was published.
    fn origin(&self) -> Option<Origin> {
        None
    }
}

impl<F: Fn() -> Table> Envelope for F {
    fn headers(&self) -> Table {
        self()
    }
}

/// The place where a message was published, for exchanges that prefer close destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The id of the node.
    pub node: u64,
    /// A random number, different for each message.
    pub random: u64,
}

/// The bindings of one exchange.
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
    /// Creates the empty bindings of an exchange of this kind with these arguments.
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

    /// Number of bindings.
    pub fn len(&self) -> usize {
        self.len
    }

    /// True if the exchange has no binding.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a binding. `name` is the destination's name, from which all nodes compute the same hash.
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

    /// Undoes one [`Bindings::add`] with the same key, arguments and destination; does nothing if there was
    /// none.
    pub fn remove(&mut self, key: &str, arguments: &Table, to: D) {
        let removed = match &mut self.by {
            By::Direct(map) => match map.get_mut(key) {
                Some(destinations) => {
                    let removed = destinations.remove(to);
                    if destinations.is_empty() {
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

    /// Appends the destinations of a message with these keys; a destination may appear more than once. Each
    /// part of the message is requested at most once, and only if the exchange needs it.
    pub fn route(&self, keys: &[&str], message: &dyn Envelope, out: &mut Vec<D>) {
        match &self.by {
            By::Direct(map) => {
                for key in keys {
                    if let Some(destinations) = map.get(*key) {
                        destinations.append_to(out);
                    }
                }
            }
            By::Fanout(all) => all.append_to(out),
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

    /// Routes one key whose words are divided by an ASCII character other than a dot. For topic exchanges;
    /// other kinds have no words.
    pub fn route_words(&self, key: &str, separator: u8, out: &mut Vec<D>) {
        if let By::Topic(trie) = &self.by {
            trie.route(key, separator, out);
        }
    }
}
