//! Filters of a source. A source that reads a stream has the position to start at, filter values of chunks, and conditions for
//! messages. A source that takes messages from a queue has conditions, which the queue evaluates.
//! As in RabbitMQ, filters that are unknown or invalid have no effect and are left out of the answer.

use codec_amqp10::{Described, Descriptor, Map, Reader, Value, map};
use filter::{Filter, FilterSet, StoredMessage};
use message::{Message, Table, Value as Argument};
use queue::{ConsumerFilter, MAX_FILTER_BYTES};
use session::LinkFilter;

const OFFSET: &str = "rabbitmq:stream-offset-spec";
const VALUES: &str = "rabbitmq:stream-filter";
const MATCH_UNFILTERED: &str = "rabbitmq:stream-match-unfiltered";
/// Most conditions of a link. Further ones have no effect.
const MAX_CONDITIONS: usize = 8;
/// Most filter values of a link. A filter with more has no effect.
const MAX_VALUES: usize = 128;

/// Most bytes of the encoded filters of a link, and of a connection, that are listed.
pub(crate) const MAX_LISTED_FILTER_BYTES: usize = 16 << 10;

/// The filters of a link.
#[derive(Debug, Default)]
pub(crate) struct SourceFilters {
    /// Arguments of the consumer at the stream.
    pub arguments: Table,
    /// A message is delivered if all of them match.
    pub conditions: Vec<Filter>,
    /// The conditions for a queue that evaluates them itself.
    pub consumer_filter: Option<ConsumerFilter>,
    /// The filters that have an effect, as an encoded map.
    pub effective: Option<Box<[u8]>>,
}

impl SourceFilters {
    /// Reads the filters of a source.
    pub(crate) fn read(filters: Option<Map<'_>>) -> SourceFilters {
        SourceFilters::collect(filters, SourceFilters::add)
    }

    /// Reads the filters of a source whose queue evaluates them itself: the conditions.
    pub(crate) fn read_conditions(filters: Option<Map<'_>>) -> SourceFilters {
        let mut conditions = Vec::new();
        let read = SourceFilters::collect(filters, |read, value| {
            let Value::Described(filter) = value else {
                return false;
            };
            let has_effect = read.add_condition(filter);
            conditions.extend(has_effect.then_some(*filter));
            has_effect
        });
        if conditions.is_empty() {
            return SourceFilters::default();
        }
        let Some(filter) = ConsumerFilter::new(&FilterSet::encode(conditions)) else {
            tracing::info!(
                limit = MAX_FILTER_BYTES,
                "filters of a receiver have no effect: they have too many bytes"
            );
            return SourceFilters::default();
        };
        SourceFilters {
            consumer_filter: Some(filter),
            effective: read.effective,
            ..SourceFilters::default()
        }
    }

    /// Reads the filters of a source that is browsed: the conditions, which the session evaluates.
    pub(crate) fn read_browsed(filters: Option<Map<'_>>) -> SourceFilters {
        SourceFilters::collect(filters, |read, value| match value {
            Value::Described(filter) => read.add_condition(filter),
            _ => false,
        })
    }

    /// Reads the filters for which `add` returns true. The others have no effect.
    fn collect<'a>(
        filters: Option<Map<'a>>,
        mut add: impl FnMut(&mut SourceFilters, &Value<'a>) -> bool,
    ) -> SourceFilters {
        let mut read = SourceFilters::default();
        let mut effective = Vec::new();
        let mut answer = map(&mut effective);
        let mut has_effect = false;
        for (key, value) in filters.into_iter().flat_map(|filters| filters.iter()) {
            if add(&mut read, &value) {
                answer.push(&key);
                answer.push(&value);
                has_effect = true;
            }
        }
        answer.finish();
        read.effective = has_effect.then(|| effective.into());
        read
    }

    /// Adds a filter. Returns false if it has no effect.
    ///
    /// The descriptor tells the kind of filter; its key in the map is only a name (section 3.5.8).
    fn add(&mut self, value: &Value<'_>) -> bool {
        let Value::Described(described) = value else {
            return false;
        };
        let name = match described.descriptor {
            Descriptor::Symbol(name) => Some(name.as_str()),
            Descriptor::Code(_) => None,
        };
        match name {
            Some(OFFSET) => self.set("x-stream-offset", offset(&described.value())),
            Some(VALUES) => self.set("x-stream-filter", values(&described.value())),
            Some(MATCH_UNFILTERED) => {
                let Value::Boolean(is_matched) = described.value() else {
                    return false;
                };
                let argument = Argument::Bool(is_matched);
                self.set("x-stream-match-unfiltered", Some(argument))
            }
            _ => self.add_condition(described),
        }
    }

    fn set(&mut self, name: &str, value: Option<Argument>) -> bool {
        let Some(value) = value else {
            return false;
        };
        self.arguments.set(name, value);
        true
    }

    fn add_condition(&mut self, described: &Described<'_>) -> bool {
        if self.conditions.len() >= MAX_CONDITIONS {
            return false;
        }
        match Filter::compile(described) {
            Some(Ok(filter)) => {
                self.conditions.push(filter);
                true
            }
            Some(Err(error)) => {
                tracing::info!(%error, "filter of a receiver has no effect");
                false
            }
            None => false,
        }
    }
}

/// Returns true if a message satisfies all conditions.
pub(crate) fn matches(conditions: &[Filter], message: &Message, now_ms: u64) -> bool {
    let stored = StoredMessage::new(message);
    conditions
        .iter()
        .all(|condition| condition.matches(&stored, now_ms))
}

/// Forgets filters that are too large for a listing.
pub(crate) fn keep_listed(encoded: Option<Box<[u8]>>) -> Option<Box<[u8]>> {
    encoded.filter(|encoded| encoded.len() <= MAX_LISTED_FILTER_BYTES)
}

/// The filters of an encoded map, for listings.
pub(crate) fn list(encoded: &[u8]) -> Vec<LinkFilter> {
    let Ok(Value::Map(filters)) = Reader::new(encoded).read() else {
        return Vec::new();
    };
    filters
        .iter()
        .filter_map(|(key, value)| filter_of(&key, &value))
        .collect()
}

fn filter_of(key: &Value<'_>, value: &Value<'_>) -> Option<LinkFilter> {
    let Value::Described(filter) = value else {
        return None;
    };
    Some(LinkFilter {
        name: key.as_text()?.to_owned(),
        descriptor: match filter.descriptor {
            Descriptor::Symbol(name) => Argument::from(name.as_str()),
            Descriptor::Code(code) => i64::try_from(code)
                .map_or_else(|_| Argument::from(code.to_string().as_str()), Argument::I64),
        },
        value: listed(&filter.value()),
    })
}

/// The value of a filter. A map is listed with its keys, which can be numbers.
fn listed(value: &Value<'_>) -> Argument {
    match value {
        Value::Map(map) => {
            Argument::Array(map.iter().map(|(key, value)| pair(&key, &value)).collect())
        }
        Value::List(list) => Argument::Array(list.iter().map(|value| listed(&value)).collect()),
        Value::Timestamp(at) => Argument::I64(at.0),
        Value::Described(described) => listed(&described.value()),
        other => conversion::amqp10::decode_value(other).unwrap_or(Argument::Void),
    }
}

fn pair(key: &Value<'_>, value: &Value<'_>) -> Argument {
    let mut pair = Table::default();
    pair.set("key", listed(key));
    pair.set("value", listed(value));
    Argument::Table(pair)
}

/// The argument for a position: a word, an interval, an instant or an offset.
fn offset(value: &Value<'_>) -> Option<Argument> {
    let number = match *value {
        Value::String(text) => return Some(Argument::from(text)),
        Value::Symbol(text) => return Some(Argument::from(text.as_str())),
        Value::Timestamp(at) => {
            let seconds = u64::try_from(at.0).ok()? / 1000;
            return Some(Argument::Timestamp(seconds));
        }
        Value::Ubyte(n) => i64::from(n),
        Value::Ushort(n) => i64::from(n),
        Value::Uint(n) => i64::from(n),
        Value::Ulong(n) => i64::try_from(n).ok()?,
        Value::Byte(n) => i64::from(n),
        Value::Short(n) => i64::from(n),
        Value::Int(n) => i64::from(n),
        Value::Long(n) => n,
        _ => return None,
    };
    (number >= 0).then_some(Argument::I64(number))
}

/// The argument for filter values: one or several.
fn values(value: &Value<'_>) -> Option<Argument> {
    let text = |value: &Value<'_>| match value {
        Value::String(text) => Some(Argument::from(*text)),
        _ => None,
    };
    let all: Option<Vec<Argument>> = match value {
        Value::List(list) if list.len() <= MAX_VALUES => list.iter().map(|v| text(&v)).collect(),
        Value::Array(array) if array.len() <= MAX_VALUES => {
            array.iter().map(|v| text(&v)).collect()
        }
        Value::String(_) => Some(text(value).into_iter().collect()),
        _ => None,
    };
    Some(Argument::Array(all?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec_amqp10::{Reader, Symbol, Timestamp, encode_described};

    fn filter_map(filters: &[(&str, &str, Value<'_>)]) -> Vec<u8> {
        let mut encoded = Vec::new();
        let mut entries = map(&mut encoded);
        for (key, descriptor, value) in filters {
            entries.push(&Symbol::new(key).expect("ASCII"));
            entries.push_with(|out| {
                encode_described(out, Symbol::new(descriptor).expect("ASCII"), value);
            });
        }
        entries.finish();
        encoded
    }

    fn read(filters: &[(&str, &str, Value<'_>)]) -> (SourceFilters, usize) {
        let encoded = filter_map(filters);
        let map: Map<'_> = Reader::new(&encoded).read().expect("a map");
        let read = SourceFilters::read(Some(map));
        let effective = read.effective.as_deref().map_or(0, |bytes| {
            let map: Map<'_> = Reader::new(bytes).read().expect("a map");
            map.len()
        });
        (read, effective)
    }

    #[test]
    fn positions_become_the_argument_of_the_consumer() {
        let positions = [
            (Value::String("first"), Some(Argument::from("first"))),
            (Value::String("1h"), Some(Argument::from("1h"))),
            (
                Value::Symbol(Symbol::from_static("next")),
                Some(Argument::from("next")),
            ),
            (Value::Ulong(7), Some(Argument::I64(7))),
            (
                Value::Timestamp(Timestamp(1_700_000_000_999)),
                Some(Argument::Timestamp(1_700_000_000)),
            ),
            (Value::Ulong(u64::MAX), None),
            (Value::Int(-1), None),
            (Value::Timestamp(Timestamp(-5)), None),
            (Value::Boolean(true), None),
        ];
        for (value, expected) in positions {
            let (read, effective) = read(&[(OFFSET, OFFSET, value)]);
            assert_eq!(read.arguments.get("x-stream-offset"), expected.as_ref());
            assert_eq!(effective, usize::from(expected.is_some()), "{value:?}");
        }
    }

    #[test]
    fn conditions_are_combined_and_invalid_ones_left_out() {
        let (read, effective) = read(&[
            (
                "sql",
                "amqp:sql-filter",
                Value::String("properties.subject = 'a'"),
            ),
            ("broken", "amqp:sql-filter", Value::String("properties.")),
            ("other", "com.example:filter", Value::String("x")),
            (VALUES, VALUES, Value::String("europe")),
            (MATCH_UNFILTERED, MATCH_UNFILTERED, Value::Boolean(true)),
        ]);
        assert_eq!((read.conditions.len(), effective), (1, 3));
        let values = Argument::Array(vec![Argument::from("europe")]);
        assert_eq!(read.arguments.get("x-stream-filter"), Some(&values));
        let is_matched = read.arguments.get("x-stream-match-unfiltered");
        assert_eq!(is_matched, Some(&Argument::Bool(true)));
    }

    #[test]
    fn descriptor_tells_the_kind_of_a_filter() {
        let (read, effective) = read(&[
            ("position", OFFSET, Value::String("first")),
            ("values", VALUES, Value::String("asia")),
            ("a", MATCH_UNFILTERED, Value::Boolean(false)),
            ("b", "amqp:sql-filter", Value::String("a = 1")),
        ]);
        assert_eq!((read.conditions.len(), effective), (1, 4));
        assert_eq!(
            read.arguments.get("x-stream-offset"),
            Some(&Argument::from("first"))
        );
        assert_eq!(
            read.arguments.get("x-stream-filter"),
            Some(&Argument::Array(vec![Argument::from("asia")]))
        );
    }

    #[test]
    fn filters_with_an_effect_are_listed_as_rabbitmq_does() {
        let mut fields = Vec::new();
        let mut entries = map(&mut fields);
        entries.push(&Symbol::new("subject").expect("ASCII"));
        entries.push(&Value::String("&p:a"));
        entries.push(&Symbol::new("group-sequence").expect("ASCII"));
        entries.push(&Value::Uint(7));
        entries.finish();
        let fields = Reader::new(&fields).read().expect("a map");
        let encoded = filter_map(&[
            ("by fields", "amqp:properties-filter", fields),
            (
                OFFSET,
                OFFSET,
                Value::Timestamp(Timestamp(1_700_000_000_123)),
            ),
            ("unknown", "com.example:filter", Value::String("x")),
            (VALUES, VALUES, Value::String("europe")),
        ]);
        let requested = Reader::new(&encoded).read().expect("a map");
        let effective = SourceFilters::read(Some(requested))
            .effective
            .expect("filters");
        let pair = |key: &str, value: Argument| {
            let mut pair = Table::default();
            pair.set("key", Argument::from(key));
            pair.set("value", value);
            Argument::Table(pair)
        };
        let filter = |name: &str, descriptor: &str, value: Argument| LinkFilter {
            name: name.to_owned(),
            descriptor: Argument::from(descriptor),
            value,
        };
        assert_eq!(
            list(&effective),
            [
                filter(
                    "by fields",
                    "amqp:properties-filter",
                    Argument::Array(vec![
                        pair("subject", Argument::from("&p:a")),
                        pair("group-sequence", Argument::U32(7)),
                    ]),
                ),
                filter(OFFSET, OFFSET, Argument::I64(1_700_000_000_123)),
                filter(VALUES, VALUES, Argument::from("europe")),
            ]
        );
        assert_eq!(list(b"no map"), []);
    }

    #[test]
    fn a_source_without_filters_has_none() {
        let read = SourceFilters::read(None);
        assert!(read.effective.is_none() && read.conditions.is_empty());
        assert_eq!(read.arguments, Table::default());
    }
}
