use codec_amqp10::{Described, List, Reader, Value, list};
use message::Message;

use crate::{Filter, StoredMessage};

/// The filters of a receiver. A message passes if it passes all of them.
#[derive(Clone, Debug)]
pub struct FilterSet(Vec<Filter>);

impl FilterSet {
    /// Encodes filters as a list of AMQP 1.0.
    pub fn encode<'a>(filters: impl IntoIterator<Item = Described<'a>>) -> Vec<u8> {
        let mut encoded = Vec::new();
        let mut entries = list(&mut encoded);
        for filter in filters {
            entries.push(&Value::Described(filter));
        }
        entries.finish();
        encoded
    }

    /// Compiles filters that were [encoded](Self::encode). `None`: the list is damaged, or this version does not understand one
    /// of the filters.
    pub fn decode(encoded: &[u8]) -> Option<FilterSet> {
        let entries: List<'_> = Reader::new(encoded).read().ok()?;
        let filters = entries.iter().map(|entry| match entry {
            Value::Described(filter) => Filter::compile(&filter)?.ok(),
            _ => None,
        });
        filters.collect::<Option<Vec<_>>>().map(FilterSet)
    }

    /// Returns true if the message passes all filters. `now_ms`: milliseconds since the Unix epoch.
    pub fn matches(&self, message: &Message, now_ms: u64) -> bool {
        let stored = StoredMessage::new(message);
        let mut filters = self.0.iter();
        filters.all(|filter| filter.matches(&stored, now_ms))
    }
}
