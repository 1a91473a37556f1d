//! What is to be retained: each topic has one client that writes it.

use super::post::PostId;
use std::collections::{BTreeMap, BTreeSet};

/// A message, or that there is none.
pub type Kept = Option<PostId>;

#[derive(Default)]
struct Topic {
    /// Numbers of writes whose outcome is not known, and what they write.
    open: BTreeMap<u64, Kept>,
    /// The last one that was acknowledged.
    last: Option<(u64, Kept)>,
    /// What may be there besides: nobody knows whether or when these are made.
    doubtful: BTreeSet<Kept>,
}

#[derive(Default)]
pub struct RetainedBook {
    topics: BTreeMap<String, Topic>,
    number: u64,
}

impl RetainedBook {
    /// A client writes; the number of the write.
    pub fn written(&mut self, topic: &str, kept: Kept) -> u64 {
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
    pub fn check(&self, found: &BTreeMap<String, PostId>) -> Result<(), String> {
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
        let mut book = RetainedBook::default();
        let ids: Vec<PostId> = (1..=4).map(|n| PostId::new(1, n)).collect();
        let writes: Vec<u64> = ids.iter().map(|id| book.written("r", Some(*id))).collect();
        book.acknowledged(writes[1]);
        book.acknowledged(writes[0]);
        let found = |id: PostId| BTreeMap::from([("r".to_owned(), id)]);
        assert_eq!(book.check(&found(ids[1])), Ok(()));
        assert!(book.check(&found(ids[0])).is_err());
        assert!(book.check(&found(ids[2])).is_err());
        assert!(book.check(&BTreeMap::new()).is_err());
        book.doubted(writes[2]);
        assert_eq!(book.check(&found(ids[2])), Ok(()));
        let clear = book.written("r", None);
        book.acknowledged(clear);
        assert_eq!(book.check(&BTreeMap::new()), Ok(()));
        let other = BTreeMap::from([("s".to_owned(), ids[0])]);
        assert!(book.check(&other).is_err());
    }
}
