//! Expected retained messages. Each topic has one client that writes it.

use super::tracked_message::MessageId;
use std::collections::{BTreeMap, BTreeSet};

/// A retained message, or none.
pub(super) type RetainedContent = Option<MessageId>;

#[derive(Default)]
struct Topic {
    /// Writes without a known outcome, by number.
    open: BTreeMap<u64, RetainedContent>,
    /// The last acknowledged write.
    last: Option<(u64, RetainedContent)>,
    /// Other possible contents: writes that may take effect at any time, or never.
    uncertain: BTreeSet<RetainedContent>,
}

#[derive(Default)]
pub(super) struct RetainedOracle {
    topics: BTreeMap<String, Topic>,
    number: u64,
}

impl RetainedOracle {
    /// A client writes a retained message. Returns the number of the write.
    pub(super) fn written(&mut self, topic: &str, content: RetainedContent) -> u64 {
        self.number += 1;
        let topic = self.topics.entry(topic.to_owned()).or_default();
        topic.open.insert(self.number, content);
        self.number
    }

    /// The outcome of the write will not be known: it may take effect at any time.
    pub(super) fn record_unknown(&mut self, number: u64) {
        for topic in self.topics.values_mut() {
            if let Some(content) = topic.open.get(&number) {
                topic.uncertain.insert(*content);
            }
        }
    }

    pub(super) fn acknowledged(&mut self, number: u64) {
        for topic in self.topics.values_mut() {
            if let Some(content) = topic.open.remove(&number)
                && topic.last.is_none_or(|(last, _)| last < number)
            {
                topic.last = Some((number, content));
            }
        }
    }

    /// Checks the messages that a new subscriber of all topics received against the last acknowledged writes.
    pub(super) fn check(&self, found: &BTreeMap<String, MessageId>) -> Result<(), String> {
        for (name, topic) in &self.topics {
            let content = found.get(name).copied();
            let last = topic.last.and_then(|(_, content)| content);
            if content != last && !topic.uncertain.contains(&content) {
                return Err(format!(
                    "{name} retains {content:?}, acknowledged last was {last:?}"
                ));
            }
        }
        match found.keys().find(|name| !self.topics.contains_key(*name)) {
            Some(name) => Err(format!("{name} retains a message that no client wrote")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retained_message_is_the_last_acknowledged_or_an_uncertain_one() {
        let mut oracle = RetainedOracle::default();
        let ids: Vec<MessageId> = (1..=4).map(|n| MessageId::new(1, n)).collect();
        let writes: Vec<u64> = ids
            .iter()
            .map(|id| oracle.written("r", Some(*id)))
            .collect();
        oracle.acknowledged(writes[1]);
        oracle.acknowledged(writes[0]);
        let found = |id: MessageId| BTreeMap::from([("r".to_owned(), id)]);
        assert_eq!(oracle.check(&found(ids[1])), Ok(()));
        assert!(oracle.check(&found(ids[0])).is_err());
        assert!(oracle.check(&found(ids[2])).is_err());
        assert!(oracle.check(&BTreeMap::new()).is_err());
        oracle.record_unknown(writes[2]);
        assert_eq!(oracle.check(&found(ids[2])), Ok(()));
        let clear = oracle.written("r", None);
        oracle.acknowledged(clear);
        assert_eq!(oracle.check(&BTreeMap::new()), Ok(()));
        let other = BTreeMap::from([("s".to_owned(), ids[0])]);
        assert!(oracle.check(&other).is_err());
    }
}
