//! The rules for the contents of streams.
//!
//! - An offset never changes its content, whichever node and consumer reads it.
//! - A consumer gets ascending offsets and leaves out none with a message.
//! - A consumer that has read from the first offset on has got every message that was confirmed before the publish of a
//!   message that it gets, unless retention deletes segments of the stream.
//! - It gets the messages of a publisher's channel in the order of their publishes. A message can come again, because a
//!   publish without a producer may be stored again after a change of the leader.

use super::{PUBLISHERS, StreamPlan};
use crate::cluster::tracked_message::MessageId;
use std::collections::{BTreeMap, BTreeSet};

/// A published message.
#[derive(Debug)]
struct Published {
    stream: usize,
    /// Number of messages of the stream that were confirmed before.
    confirmed_before: usize,
    /// Whether an offset with it is known.
    is_stored: bool,
}

/// Known contents of a stream.
#[derive(Debug, Default)]
struct Contents {
    messages: BTreeMap<u64, MessageId>,
    /// Offsets that a consumer left out: from the first on, without the last.
    gaps: BTreeSet<(u64, u64)>,
    /// In the order of their confirms.
    confirmed: Vec<MessageId>,
}

/// The messages that a consumer has got since the first offset.
#[derive(Debug, Default)]
pub(super) struct History {
    seen: BTreeSet<MessageId>,
    /// How many confirmed messages were found in it, in the order of the confirms.
    checked: usize,
    /// The newest message of each channel.
    newest: BTreeMap<u32, u32>,
}

pub(in crate::cluster) struct StreamOracle {
    pub(super) streams: Vec<StreamPlan>,
    contents: Vec<Contents>,
    published: BTreeMap<MessageId, Published>,
    pub read: u64,
    /// Messages that a stream has more than once.
    pub repeated: u64,
    /// Publishers and streams with a confirmed message that was published after the faults had ended.
    finished: BTreeSet<(u32, usize)>,
}

impl StreamOracle {
    pub(super) fn new(streams: Vec<StreamPlan>) -> StreamOracle {
        StreamOracle {
            contents: streams.iter().map(|_| Contents::default()).collect(),
            streams,
            published: BTreeMap::new(),
            read: 0,
            repeated: 0,
            finished: BTreeSet::new(),
        }
    }

    pub(in crate::cluster) fn has_streams(&self) -> bool {
        !self.streams.is_empty()
    }

    pub(in crate::cluster) fn published(&self) -> u64 {
        self.published.len() as u64
    }

    pub(in crate::cluster) fn confirmed(&self) -> u64 {
        self.contents.iter().map(|c| c.confirmed.len() as u64).sum()
    }

    pub(super) fn publish(&mut self, stream: usize, id: MessageId) {
        let contents = self.contents.get(stream);
        let published = Published {
            stream,
            confirmed_before: contents.map_or(0, |c| c.confirmed.len()),
            is_stored: false,
        };
        self.published.insert(id, published);
    }

    pub(super) fn confirm(&mut self, stream: usize, id: MessageId) {
        tracing::debug!(?id, stream, "confirmed");
        if let Some(contents) = self.contents.get_mut(stream) {
            contents.confirmed.push(id);
        }
    }

    /// A publisher's message to this stream, published after the faults had ended, is confirmed.
    pub(super) fn finish(&mut self, publisher: u32, stream: usize) {
        self.finished.insert((publisher, stream));
    }

    pub(super) fn has_finished(&self, publisher: u32, stream: usize) -> bool {
        self.finished.contains(&(publisher, stream))
    }

    /// A consumer got a message. It had to begin at `expected`, if that is known.
    pub(super) fn deliver(
        &mut self,
        (stream, offset): (usize, u64),
        id: MessageId,
        expected: Option<u64>,
    ) -> Result<(), String> {
        let (Some(plan), Some(contents)) =
            (self.streams.get(stream), self.contents.get_mut(stream))
        else {
            return Err(format!(
                "a message of stream {stream}, which does not exist"
            ));
        };
        let name = plan.name;
        let published = self.published.get_mut(&id).filter(|p| p.stream == stream);
        let Some(published) = published else {
            return Err(format!("{name}: {id:?} was not published there"));
        };
        self.read += 1;
        match contents.messages.get(&offset) {
            Some(known) if *known != id => {
                return Err(format!("{name}: offset {offset} is {id:?}, was {known:?}"));
            }
            Some(_) => {}
            None => {
                contents.messages.insert(offset, id);
                self.repeated += u64::from(published.is_stored);
                published.is_stored = true;
                let is_inside = |(from, to): &&(u64, u64)| (*from..*to).contains(&offset);
                if let Some(gap) = contents.gaps.iter().find(is_inside) {
                    return Err(format!(
                        "{name}: offset {offset} is {id:?}, and a consumer left out {gap:?}"
                    ));
                }
            }
        }
        let Some(expected) = expected else {
            return Ok(());
        };
        if offset < expected {
            return Err(format!(
                "{name}: offset {offset} comes again: {expected} was next"
            ));
        }
        if plan.keeps_all() && offset > expected {
            if let Some((left_out, id)) = contents.messages.range(expected..offset).next() {
                return Err(format!(
                    "{name}: a consumer left out offset {left_out}, {id:?}"
                ));
            }
            contents.gaps.insert((expected, offset));
        }
        Ok(())
    }

    /// A consumer that has read from the first offset on got a message.
    pub(super) fn extend(
        &self,
        history: &mut History,
        stream: usize,
        id: MessageId,
    ) -> Result<(), String> {
        let (Some(plan), Some(contents)) = (self.streams.get(stream), self.contents.get(stream))
        else {
            return Ok(());
        };
        if !history.seen.insert(id) || !plan.keeps_all() {
            return Ok(());
        }
        let newest = history.newest.entry(id.stream()).or_default();
        if id.number() < *newest {
            let name = plan.name;
            return Err(format!(
                "{name}: {id:?} comes after number {newest} of its channel"
            ));
        }
        *newest = id.number();
        let before = self.published.get(&id).map_or(0, |p| p.confirmed_before);
        while history.checked < before {
            let confirmed = contents.confirmed.get(history.checked);
            if let Some(missing) = confirmed.filter(|c| !history.seen.contains(c)) {
                let name = plan.name;
                return Err(format!(
                    "{name}: the confirmed {missing:?} is missing before {id:?}"
                ));
            }
            history.checked += 1;
        }
        Ok(())
    }

    /// Describes the confirmed messages that a consumer still has to get. None: all have come, and no more are published.
    pub(super) fn describe_wait(&self, history: &History, stream: usize) -> Option<String> {
        let (plan, contents) = (self.streams.get(stream)?, self.contents.get(stream)?);
        let name = plan.name;
        if self.finished.len() < PUBLISHERS as usize * self.streams.len() {
            return Some(format!("{name}: the last publishes"));
        }
        let mut confirmed = contents.confirmed.iter();
        let missing = match plan.keeps_all() {
            true => confirmed.find(|id| !history.seen.contains(id)),
            false => confirmed
                .next_back()
                .filter(|id| !history.seen.contains(id)),
        };
        missing.map(|id| format!("{name}: the confirmed {id:?}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn oracle(max_bytes: Option<i64>) -> StreamOracle {
        StreamOracle::new(vec![StreamPlan {
            name: "s",
            segment_bytes: None,
            max_bytes,
        }])
    }

    fn id(number: u32) -> MessageId {
        MessageId::new(1, number)
    }

    #[test]
    fn changed_offsets_gaps_and_repetitions_are_violations() {
        let mut all = oracle(None);
        (1..=4).for_each(|n| all.publish(0, id(n)));
        assert!(all.deliver((0, 0), id(1), Some(0)).is_ok());
        assert!(all.deliver((0, 1), id(2), Some(1)).is_ok());
        assert!(all.deliver((0, 1), id(3), None).is_err(), "other content");
        assert!(all.deliver((0, 0), id(1), Some(1)).is_err(), "again");
        assert!(all.deliver((0, 2), id(3), Some(1)).is_err(), "left out 1");
        assert!(all.deliver((0, 4), id(4), Some(3)).is_ok(), "a marker");
        assert!(all.deliver((0, 3), id(3), None).is_err(), "no marker");
        assert!(all.deliver((0, 5), id(9), None).is_err(), "not published");
        let mut short = oracle(Some(100));
        (1..=3).for_each(|n| short.publish(0, id(n)));
        assert!(short.deliver((0, 1), id(2), None).is_ok());
        assert!(short.deliver((0, 2), id(3), Some(0)).is_ok(), "retention");
    }

    #[test]
    fn a_missing_confirmed_message_and_another_order_are_violations() {
        let mut oracle = oracle(None);
        oracle.publish(0, id(1));
        oracle.publish(0, id(2));
        oracle.confirm(0, id(1));
        oracle.publish(0, id(3));
        let mut history = History::default();
        assert!(oracle.extend(&mut history, 0, id(2)).is_ok(), "not before");
        assert!(oracle.extend(&mut history, 0, id(1)).is_err(), "order");
        let mut history = History::default();
        assert!(oracle.extend(&mut history, 0, id(3)).is_err(), "missing");
        let mut history = History::default();
        for number in [1, 2, 2, 3] {
            assert!(oracle.extend(&mut history, 0, id(number)).is_ok());
        }
    }
}
