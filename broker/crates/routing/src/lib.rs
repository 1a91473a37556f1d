//! Exchanges and bindings in memory: one [`Bindings`] per exchange finds the destinations of a message. No
//! I/O.
//!
//! A destination is a small [`DestinationHandle`] of the caller's choice. Equal bindings are counted: a binding added
//! twice must be removed twice, and the caller decides which bindings are the same. Errors are
//! [`ExchangeArgumentError`] and [`BindingArgumentError`], whose texts equal RabbitMQ's.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod destinations;
mod direct_reply;
mod hash_tree;
mod hashed;
mod headers;
mod listed;
mod topic;
mod words;

use destinations::{Destinations, NameMap};
pub use direct_reply::{DIRECT_REPLY_PREFIX, DIRECT_REPLY_TO, is_direct_reply_name};
use hashed::ConsistentHashBindings;
use headers::HeaderBindings;
use listed::DestinationList;
use message::{Table, Value};
use std::cell::Cell;
use std::sync::Arc;
use topic::TopicTrie;

/// A destination handle.
pub trait DestinationHandle: Copy + Ord + std::fmt::Debug {}
impl<T: Copy + Ord + std::fmt::Debug> DestinationHandle for T {}

/// The argument of a delayed message exchange that names the type by which it selects destinations.
const DELAYED_TYPE: &str = "x-delayed-type";

/// The type of an exchange: how it selects destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeType {
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
    /// One destination, selected by the hash of the routing keys modulo the number of destinations
    /// (`x-modulus-hash`).
    ModulusHash,
    /// One random destination (`x-random`).
    Random,
    /// Like the exchange type in the argument `x-delayed-type`, for messages that are delivered after the delay in their
    /// header `x-delay` (`x-delayed-message`).
    DelayedMessage,
}

const EXCHANGE_TYPES: [ExchangeType; 9] = [
    ExchangeType::Direct,
    ExchangeType::Fanout,
    ExchangeType::Topic,
    ExchangeType::Headers,
    ExchangeType::ConsistentHash,
    ExchangeType::LocalRandom,
    ExchangeType::ModulusHash,
    ExchangeType::Random,
    ExchangeType::DelayedMessage,
];

impl ExchangeType {
    /// The name of the exchange type in AMQP and the HTTP API.
    pub fn name(self) -> &'static str {
        match self {
            ExchangeType::Direct => "direct",
            ExchangeType::Fanout => "fanout",
            ExchangeType::Topic => "topic",
            ExchangeType::Headers => "headers",
            ExchangeType::ConsistentHash => "x-consistent-hash",
            ExchangeType::LocalRandom => "x-local-random",
            ExchangeType::ModulusHash => "x-modulus-hash",
            ExchangeType::Random => "x-random",
            ExchangeType::DelayedMessage => "x-delayed-message",
        }
    }

    /// Returns the type with that name, or `None` if no exchange type has it.
    pub fn from_name(name: &str) -> Option<ExchangeType> {
        EXCHANGE_TYPES.into_iter().find(|k| k.name() == name)
    }

    /// Returns the type by which an exchange with these arguments selects destinations: the one in `x-delayed-type` for
    /// [`ExchangeType::DelayedMessage`], and the exchange's own type otherwise.
    ///
    /// # Errors
    ///
    /// If the argument does not name a type that a delayed message exchange can have.
    pub fn selecting_type(self, arguments: &Table) -> Result<ExchangeType, ExchangeArgumentError> {
        if self != ExchangeType::DelayedMessage {
            return Ok(self);
        }
        let name = arguments.get(DELAYED_TYPE).and_then(Value::as_str);
        let found = name.and_then(ExchangeType::from_name);
        // Queues that hold messages back are on several nodes, and none of them is local.
        let is_possible = |kind: &ExchangeType| {
            !matches!(
                kind,
                ExchangeType::DelayedMessage | ExchangeType::LocalRandom
            )
        };
        found
            .filter(is_possible)
            .ok_or(ExchangeArgumentError::DelayedType)
    }

    /// Validates the arguments of an exchange of this type.
    ///
    /// # Errors
    ///
    /// If RabbitMQ refuses the arguments too.
    pub fn check_exchange(self, arguments: &Table) -> Result<(), ExchangeArgumentError> {
        match self.selecting_type(arguments)? {
            ExchangeType::ConsistentHash => hashed::check_exchange(arguments),
            _ => Ok(()),
        }
    }

    /// Validates the key and arguments of a binding to an exchange with this [selecting type](Self::selecting_type).
    ///
    /// # Errors
    ///
    /// If RabbitMQ refuses the binding too.
    pub fn check_binding(self, key: &str, arguments: &Table) -> Result<(), BindingArgumentError> {
        match self {
            ExchangeType::Headers => headers::check_arguments(arguments),
            ExchangeType::ConsistentHash => hashed::weight(key).map(|_| ()),
            ExchangeType::LocalRandom if !key.is_empty() => {
                Err(BindingArgumentError::KeyNotEmpty(key.into()))
            }
            _ => Ok(()),
        }
    }
}

/// Why an exchange cannot be declared. Clients know the texts from RabbitMQ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExchangeArgumentError {
    /// `hash-property` names a property that cannot be hashed.
    #[error("Unsupported property: {0}")]
    UnsupportedProperty(String),
    /// Both `hash-header` and `hash-property` are set.
    #[error("hash-header and hash-property are mutually exclusive")]
    HeaderAndProperty,
    /// The named argument is not a string.
    #[error("{0} is not a string")]
    NotText(&'static str),
    /// `x-delayed-type` is missing or names no type that a delayed message exchange can have.
    #[error("Invalid argument, 'x-delayed-type' must be an existing exchange type")]
    DelayedType,
}

/// Why a binding cannot be declared. Clients know the texts from RabbitMQ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BindingArgumentError {
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
pub enum HashedProperty {
    /// `correlation_id`
    CorrelationId,
    /// `message_id`
    MessageId,
    /// `timestamp`, in seconds since the Unix epoch, as decimal digits.
    Timestamp,
}

impl HashedProperty {
    fn from_name(name: &str) -> Option<HashedProperty> {
        match name {
            "correlation_id" => Some(HashedProperty::CorrelationId),
            "message_id" => Some(HashedProperty::MessageId),
            "timestamp" => Some(HashedProperty::Timestamp),
            _ => None,
        }
    }
}

/// The parts of a message besides its routing keys that exchanges may use. A closure that returns headers
/// stands for a message without properties.
pub trait RoutingInput {
    /// The headers of the message. Called only by exchanges that need them.
    fn headers(&self) -> Table;
    /// A property as text; `None` if the message does not have it.
    fn property(&self, _property: HashedProperty) -> Option<String> {
        None
    }
    /// Where the message was published.
    fn origin(&self) -> Option<PublishOrigin> {
        None
    }
}

impl<F: Fn() -> Table> RoutingInput for F {
    fn headers(&self) -> Table {
        self()
    }
}

/// The place where a message was published, for exchanges that prefer close destinations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishOrigin {
    /// The id of the node.
    pub node: u64,
    /// A random number, different for each message.
    pub random: u64,
}

/// The bindings of one exchange.
#[derive(Clone, Debug)]
pub struct Bindings<D> {
    index: BindingIndex<D>,
    len: usize,
}

#[derive(Clone, Debug)]
enum BindingIndex<D> {
    Direct(NameMap<Destinations<D>>),
    Fanout(Destinations<D>),
    Topic(TopicTrie<D>),
    Headers(HeaderBindings<D>),
    ConsistentHash(ConsistentHashBindings<D>),
    ModulusHash(DestinationList<D>),
    /// With the number of messages without an origin.
    Random(DestinationList<D>, Cell<u64>),
}

impl<D: DestinationHandle> Bindings<D> {
    /// Creates the empty bindings of an exchange of this type with these arguments.
    pub fn new(kind: ExchangeType, arguments: &Table) -> Bindings<D> {
        let selecting_type = kind.selecting_type(arguments);
        debug_assert!(selecting_type.is_ok(), "the arguments were checked");
        let index = match selecting_type.unwrap_or(ExchangeType::Direct) {
            ExchangeType::Direct | ExchangeType::DelayedMessage => {
                BindingIndex::Direct(NameMap::default())
            }
            ExchangeType::Fanout | ExchangeType::LocalRandom => {
                BindingIndex::Fanout(Destinations::default())
            }
            ExchangeType::Topic => BindingIndex::Topic(TopicTrie::default()),
            ExchangeType::Headers => BindingIndex::Headers(HeaderBindings::default()),
            ExchangeType::ConsistentHash => {
                BindingIndex::ConsistentHash(ConsistentHashBindings::new(arguments))
            }
            ExchangeType::ModulusHash => BindingIndex::ModulusHash(DestinationList::default()),
            ExchangeType::Random => {
                BindingIndex::Random(DestinationList::default(), Cell::default())
            }
        };
        Bindings { index, len: 0 }
    }

    /// Makes a consistent-hash exchange select destinations in logarithmic time. All nodes must do so at the same entry of
    /// the log, because the selected destinations are others. Exchanges of other types do not change.
    pub fn use_hash_tree(&mut self) {
        if let BindingIndex::ConsistentHash(all) = &mut self.index {
            all.use_tree();
        }
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
        match &mut self.index {
            BindingIndex::Direct(map) => map.entry(key.clone()).or_default().add(to),
            BindingIndex::Fanout(all) => all.add(to),
            BindingIndex::Topic(trie) => trie.add(key, to),
            BindingIndex::Headers(list) => list.add(arguments, to),
            BindingIndex::ConsistentHash(all) => all.add(key, to, name),
            BindingIndex::ModulusHash(list) | BindingIndex::Random(list, _) => list.add(to, name),
        }
    }

    /// Undoes one [`Bindings::add`] with the same parameters; does nothing if there was none.
    pub fn remove(&mut self, key: &str, arguments: &Table, to: D, name: &str) {
        let removed = match &mut self.index {
            BindingIndex::Direct(map) => match map.get_mut(key) {
                Some(destinations) => {
                    let removed = destinations.remove(to);
                    if destinations.is_empty() {
                        map.remove(key);
                    }
                    removed
                }
                None => false,
            },
            BindingIndex::Fanout(all) => all.remove(to),
            BindingIndex::Topic(trie) => trie.remove(key, to),
            BindingIndex::Headers(list) => list.remove(arguments, to),
            BindingIndex::ConsistentHash(all) => all.remove(key, to, name),
            BindingIndex::ModulusHash(list) | BindingIndex::Random(list, _) => {
                list.remove(to, name)
            }
        };
        debug_assert!(
            !removed || self.len > 0,
            "a binding with the key {key:?} to {to:?} was not counted"
        );
        self.len -= usize::from(removed);
    }

    /// Appends the destinations of a message with these keys; a destination may appear more than once. Each
    /// part of the message is requested at most once, and only if the exchange needs it.
    pub fn route(&self, keys: &[&str], message: &dyn RoutingInput, out: &mut Vec<D>) {
        match &self.index {
            BindingIndex::Direct(map) => {
                for key in keys {
                    if let Some(destinations) = map.get(*key) {
                        destinations.append_to(out);
                    }
                }
            }
            BindingIndex::Fanout(all) => all.append_to(out),
            BindingIndex::Topic(trie) => {
                for key in keys {
                    trie.route(key, b'.', out);
                }
            }
            BindingIndex::Headers(list) => {
                if !list.is_empty() {
                    list.route(&message.headers(), out);
                }
            }
            BindingIndex::ConsistentHash(all) => all.route(keys, message, out),
            BindingIndex::ModulusHash(list) => list.route_by_hash(keys, out),
            BindingIndex::Random(list, turn) => list.route_at_random(message, turn, out),
        }
    }

    /// Routes one key whose words are divided by an ASCII character other than a dot. For topic exchanges;
    /// keys of other types have no words.
    pub fn route_words(&self, key: &str, separator: u8, out: &mut Vec<D>) {
        if let BindingIndex::Topic(trie) = &self.index {
            trie.route(key, separator, out);
        }
    }
}
