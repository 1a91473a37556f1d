//! `x-consistent-hash` exchanges: each message goes to one destination, selected by a hash of its routing
//! key, a header or a property.
//!
//! Weighted rendezvous hashing in a [`HashTree`]: the result depends on the set of bindings, not on their order, so all
//! nodes agree. Until the cluster enables the tree, all destinations compute a score for each message, as in version
//! 0.2, at the cost of one logarithm per destination and message.

use crate::hash_tree::{HashTree, WeightedDestination};
use crate::{
    BindingArgumentError, DestinationHandle, ExchangeArgumentError, HashedProperty, RoutingInput,
};
use message::{Table, Value};
use std::cmp::Ordering;

/// The part of a message that is hashed.
#[derive(Clone, Debug, PartialEq, Eq)]
enum HashInput {
    RoutingKey,
    Header(Box<str>),
    Property(HashedProperty),
}

#[derive(Clone, Debug)]
pub(crate) struct ConsistentHashBindings<D> {
    hash_input: HashInput,
    bindings: HashTree<D>,
    /// The tree selects the destination. Otherwise all destinations are compared.
    uses_tree: bool,
}

/// The part to hash, as the arguments of an exchange select it.
fn hash_input(arguments: &Table) -> Result<HashInput, ExchangeArgumentError> {
    let text = |key: &'static str| match arguments.get(key) {
        None => Ok(None),
        Some(value) => match value.as_str() {
            Some(text) => Ok(Some(text)),
            None => Err(ExchangeArgumentError::NotText(key)),
        },
    };
    match (text("hash-header")?, text("hash-property")?) {
        (None, None) => Ok(HashInput::RoutingKey),
        (Some(header), None) => Ok(HashInput::Header(header.into())),
        (None, Some(name)) => match HashedProperty::from_name(name) {
            Some(property) => Ok(HashInput::Property(property)),
            None => Err(ExchangeArgumentError::UnsupportedProperty(name.into())),
        },
        (Some(_), Some(_)) => Err(ExchangeArgumentError::HeaderAndProperty),
    }
}

pub(crate) fn check_exchange(arguments: &Table) -> Result<(), ExchangeArgumentError> {
    hash_input(arguments).map(|_| ())
}

/// Parses a binding's key, which is its weight.
pub(crate) fn weight(key: &str) -> Result<u64, BindingArgumentError> {
    let digits = key.strip_prefix(['-', '+']).unwrap_or(key);
    let number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    if !number {
        return Err(BindingArgumentError::NoWeight(key.into()));
    }
    // Saturates at 64 bits.
    match key.starts_with('-') {
        true => Err(BindingArgumentError::WeightBelowOne),
        false => match digits.parse::<u64>().unwrap_or(u64::MAX) {
            0 => Err(BindingArgumentError::WeightBelowOne),
            weight => Ok(weight),
        },
    }
}

impl<D: DestinationHandle> ConsistentHashBindings<D> {
    pub(crate) fn new(arguments: &Table) -> ConsistentHashBindings<D> {
        ConsistentHashBindings {
            // Validated when declared; an exchange stored by another version hashes the routing key.
            hash_input: hash_input(arguments).unwrap_or(HashInput::RoutingKey),
            bindings: HashTree::default(),
            uses_tree: false,
        }
    }

    pub(crate) fn use_tree(&mut self) {
        self.uses_tree = true;
    }

    pub(crate) fn add(&mut self, key: &str, to: D, name: &str) {
        self.bindings.add(weighted(key, to, name));
    }

    pub(crate) fn remove(&mut self, key: &str, to: D, name: &str) -> bool {
        self.bindings.remove(&weighted(key, to, name))
    }

    pub(crate) fn route(&self, keys: &[&str], message: &dyn RoutingInput, out: &mut Vec<D>) {
        let hash = match &self.hash_input {
            HashInput::RoutingKey => keys
                .first()
                .map_or(EMPTY, |k| hash_bytes(EMPTY, k.as_bytes())),
            HashInput::Header(name) => message
                .headers()
                .get(name)
                .map_or(EMPTY, |value| hash_value(EMPTY, value)),
            HashInput::Property(property) => message
                .property(*property)
                .map_or(EMPTY, |text| hash_bytes(EMPTY, text.as_bytes())),
        };
        out.extend(match self.uses_tree {
            true => self.bindings.find(hash),
            false => self.compare_all(hash),
        });
    }

    /// The destination with the highest score.
    fn compare_all(&self, hash: u64) -> Option<D> {
        let mut best: Option<(f64, D)> = None;
        self.bindings.for_each(|binding| {
            let score = score(hash, binding);
            let is_better = best.is_none_or(|(highest, to)| match score.total_cmp(&highest) {
                Ordering::Equal => binding.to < to,
                order => order == Ordering::Greater,
            });
            if is_better {
                best = Some((score, binding.to));
            }
        });
        best.map(|(_, to)| to)
    }
}

fn weighted<D>(key: &str, to: D, name: &str) -> WeightedDestination<D> {
    WeightedDestination {
        to,
        identity: identity(name),
        // Validated when the binding was declared.
        weight: weight(key).unwrap_or(1),
    }
}

/// The score of a destination; the probability that it is the highest follows the weights.
fn score<D>(hash: u64, entry: &WeightedDestination<D>) -> f64 {
    let bits = mix(hash ^ mix(entry.identity)) >> 11;
    // Strictly between 0 and 1.
    let uniform = (bits as f64 + 0.5) / (1u64 << 53) as f64;
    -(entry.weight as f64) / uniform.ln()
}

/// The hash of the empty string (FNV-1a's offset basis).
pub(crate) const EMPTY: u64 = 0xcbf2_9ce4_8422_2325;

/// 64-bit FNV-1a: the same on every node and in every version.
pub(crate) fn hash_bytes(start: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The number of a destination in hashed exchanges.
pub(crate) fn identity(name: &str) -> u64 {
    hash_bytes(EMPTY, name.as_bytes())
}

/// Equal values have equal hashes, whatever their integer type. The codec that decoded the value bounds its
/// depth.
fn hash_value(start: u64, value: &Value) -> u64 {
    if let Some(number) = value.as_integer() {
        return hash_bytes(start ^ 1, &number.to_be_bytes());
    }
    match value {
        Value::String(text) | Value::Binary(text) => hash_bytes(start, text),
        Value::Bool(v) => hash_bytes(start ^ 2, &[u8::from(*v)]),
        Value::F32(v) => hash_bytes(start ^ 3, &f64::from(*v).to_be_bytes()),
        Value::F64(v) => hash_bytes(start ^ 3, &v.to_be_bytes()),
        Value::Timestamp(v) => hash_bytes(start ^ 4, &v.to_be_bytes()),
        Value::Decimal { scale, value } => {
            hash_bytes(hash_bytes(start ^ 5, &[*scale]), &value.to_be_bytes())
        }
        Value::Array(all) => all.iter().fold(start ^ 6, hash_value),
        Value::Table(table) => table.0.iter().fold(start ^ 7, |hash, (key, value)| {
            hash_value(hash_bytes(hash, key.as_bytes()), value)
        }),
        // Integers were handled first.
        _ => start ^ 8,
    }
}

/// Finalizer of splitmix64: every input bit changes about half of the output bits.
pub(crate) fn mix(mut n: u64) -> u64 {
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn table(pairs: &[(&str, Value)]) -> Table {
        let pairs = pairs.iter();
        Table(pairs.map(|(k, v)| ((*k).into(), v.clone())).collect())
    }

    fn bound(weights: &[(u64, &str)], uses_tree: bool) -> ConsistentHashBindings<u64> {
        let mut all = ConsistentHashBindings::new(&Table::default());
        if uses_tree {
            all.use_tree();
        }
        for (to, weight) in weights {
            all.add(weight, *to, &format!("q{to}"));
        }
        all
    }

    fn destination(all: &ConsistentHashBindings<u64>, key: &str) -> u64 {
        let mut out = Vec::new();
        all.route(&[key], &Table::default, &mut out);
        assert_eq!(out.len(), 1);
        out[0]
    }

    const KEYS: u64 = 40_000;

    #[test]
    fn shares_are_proportional_to_weights() {
        for uses_tree in [false, true] {
            let all = bound(&[(1, "1"), (2, "1"), (3, "2"), (4, "4")], uses_tree);
            let mut counts = BTreeMap::new();
            for n in 0..KEYS {
                *counts.entry(destination(&all, &n.to_string())).or_insert(0) += 1;
            }
            for (to, weight) in [(1, 1), (2, 1), (3, 2), (4, 4)] {
                let (actual, expected) = (counts[&to], KEYS * weight / 8);
                assert!(
                    actual * 20 > expected * 19 && actual * 20 < expected * 21,
                    "{counts:?}"
                );
            }
        }
    }

    #[test]
    fn removed_destination_gives_up_only_its_share_in_any_order() {
        for uses_tree in [false, true] {
            let all = bound(&[(1, "3"), (2, "1"), (3, "2")], uses_tree);
            let mut fewer = bound(&[(3, "2"), (2, "1"), (1, "3")], uses_tree);
            for n in 0..1000 {
                let key = format!("key {n}");
                assert_eq!(destination(&all, &key), destination(&fewer, &key));
            }
            assert!(
                !fewer.remove("2", 2, "q2"),
                "another weight is another binding"
            );
            assert!(fewer.remove("1", 2, "q2"));
            for n in 0..1000 {
                let key = format!("key {n}");
                let before = destination(&all, &key);
                assert!(before == 2 || before == destination(&fewer, &key));
            }
        }
    }

    /// Nodes of version 0.2 select these destinations.
    #[test]
    fn comparison_of_all_destinations_keeps_the_results_of_version_0_2() {
        let all = bound(&[(1, "3"), (2, "1"), (3, "2"), (4, "1")], false);
        let selected: Vec<u64> = (0..12)
            .map(|n| destination(&all, &format!("key {n}")))
            .collect();
        assert_eq!(selected, [2, 1, 1, 1, 1, 1, 1, 1, 1, 3, 3, 1]);
    }

    #[test]
    fn header_or_property_can_be_hashed() {
        struct MessageWithId(Table);
        impl RoutingInput for MessageWithId {
            fn headers(&self) -> Table {
                self.0.clone()
            }
            fn property(&self, property: HashedProperty) -> Option<String> {
                (property == HashedProperty::MessageId).then(|| "id".into())
            }
        }
        let to = |arguments: &Table, key: &str, headers: Table| {
            let mut all = ConsistentHashBindings::new(arguments);
            (0..50).for_each(|n| all.add("1", n, &n.to_string()));
            let mut out = Vec::new();
            all.route(&[key], &MessageWithId(headers), &mut out);
            out[0]
        };
        let header = table(&[("hash-header", "h".into())]);
        let seen: Vec<u64> = (0..20)
            .map(|n| to(&header, "k", table(&[("h", Value::I32(n))])))
            .collect();
        assert!(seen.iter().any(|d| *d != seen[0]));
        let long = to(&header, "other", table(&[("h", Value::I64(7))]));
        assert_eq!(long, seen[7]);
        let property = table(&[("hash-property", "message_id".into())]);
        let (a, b) = (
            to(&property, "a", Table::default()),
            to(&property, "b", Table::default()),
        );
        assert_eq!(a, b);
    }

    #[test]
    fn invalid_arguments_and_weights_are_refused() {
        for (pairs, why) in [
            (
                &[("hash-property", "priority".into())][..],
                "Unsupported property: priority",
            ),
            (
                &[
                    ("hash-header", "a".into()),
                    ("hash-property", "message_id".into()),
                ],
                "hash-header and hash-property are mutually exclusive",
            ),
            (
                &[("hash-header", Value::I32(1))],
                "hash-header is not a string",
            ),
        ] {
            assert_eq!(check_exchange(&table(pairs)).unwrap_err().to_string(), why);
        }
        assert_eq!(weight("+12"), Ok(12));
        assert_eq!(weight("99999999999999999999999"), Ok(u64::MAX));
        for (key, why) in [
            ("0", "The binding key must be greater than 0"),
            ("-3", "The binding key must be greater than 0"),
            ("x", "The binding key must be an integer: <<\"x\">>"),
            ("", "The binding key must be an integer: <<>>"),
            ("1.5", "The binding key must be an integer: <<\"1.5\">>"),
        ] {
            assert_eq!(weight(key).unwrap_err().to_string(), why);
        }
    }
}
