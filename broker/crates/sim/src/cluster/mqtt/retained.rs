//! What is to be retained: each topic has one client that writes it.

use super::tracked_message::MessageId;
use std::collections::{BTreeMap, BTreeSet};

/// A message, or that there is none.
pub type RetainedContent = Option<MessageId>;

#[derive(Default)]
struct Topic {
    /// Numbers of writes whose outcome is not known, and what they write.
    open: BTreeMap<u64, RetainedContent>,
    /// The last one that was acknowledged.
    last: Option<(u64, RetainedContent)>,
    /// What may be there besides: nobody knows whether or when these are made.
    doubtful: BTreeSet<RetainedContent>,
}

#[derive(Default)]
pub struct RetainedOracle {
    topics: BTreeMap<String, Topic>,
    number: u64,
}

impl RetainedOracle {
    /// A client writes; the number of the write.
    pub fn written(&mut self, topic: &str, kept: RetainedContent) -> u64 {
        self.number += 1;
        let topic = self.topics.entry(topic.to_owned()).or_default();
        topic.open.insert(self.number, kept);
        self.number
    }

    /// The client does not know whether it was made: it may be, at any time.
    pub fn doubted(&mut self, number: u64) {
        for topic in self.topics.values_mut() {
            if let Some(kept) = topic.open.get(&number) {
                topic.doubtful.insert(*kept);
            }
        }
    }

    pub fn acknowledged(&mut self, number: u64) {
        for topic in self.topics.values_mut() {
            if let Some(kept) = topic.open.remove(&number)
                && topic.last.is_none_or(|(last, _)| last < number)
            {
                topic.last = Some((number, kept));
            }
        }
    }

    /// `found`: what a new subscriber of all topics got. An error when it is not what was acknowledged last.
    pub fn check(&self, found: &BTreeMap<String, MessageId>) -> Result<(), String> {
        for (name, topic) in &self.topics {
            let got = found.get(name).copied();
            let last = topic.last.and_then(|(_, kept)| kept);
            if got != last && !topic.doubtful.contains(&got) {
                return Err(format!(
                    "{name} retains {got:?}, acknowledged last was {last:?}"
                ));
            }
        }
        match found.keys().find(|name| !self.topics.contains_key(*name)) {
            Some(name) => Err(format!("{name} retains something that nobody wrote")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_acknowledged_last_is_there_or_something_doubtful() {
        let mut mqtt_oracle = RetainedOracle::default();
        let ids: Vec<MessageId> = (1..=4).map(|n| MessageId::new(1, n)).collect();
        let writes: Vec<u64> = ids
            .iter()
            .map(|id| mqtt_oracle.written("r", Some(*id)))
            .collect();
        mqtt_oracle.acknowledged(writes[1]);
        mqtt_oracle.acknowledged(writes[0]);
        let found = |id: MessageId| BTreeMap::from([("r".to_owned(), id)]);
        assert_eq!(mqtt_oracle.check(&found(ids[1])), Ok(()));
        assert!(mqtt_oracle.check(&found(ids[0])).is_err());
        assert!(mqtt_oracle.check(&found(ids[2])).is_err());
        assert!(mqtt_oracle.check(&BTreeMap::new()).is_err());
        mqtt_oracle.doubted(writes[2]);
        assert_eq!(mqtt_oracle.check(&found(ids[2])), Ok(()));
        let clear = mqtt_oracle.written("r", None);
        mqtt_oracle.acknowledged(clear);
        assert_eq!(mqtt_oracle.check(&BTreeMap::new()), Ok(()));
        let other = BTreeMap::from([("s".to_owned(), ids[0])]);
        assert!(mqtt_oracle.check(&other).is_err());
    }
}
