//! Retained MQTT messages: one message per topic, the same on every node.

use crate::apply::no_vhost;
use crate::tree::TreeEvent;
use crate::{ChangeError, ChangeResult, Name, Tree, limits};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound;

#[derive(Clone, Debug, Default)]
pub(crate) struct RetainedMessages {
    vhosts: BTreeMap<Name, BTreeMap<Name, Bytes>>,
    messages: usize,
    /// Bytes of topics and messages.
    bytes: usize,
}

impl RetainedMessages {
    pub(crate) fn set(&mut self, vhost: &Name, topic: &Name, message: Bytes) {
        self.remove(vhost, topic);
        self.messages += 1;
        self.bytes += topic.len() + message.len();
        let topics = self.vhosts.entry(vhost.clone()).or_default();
        topics.insert(topic.clone(), message);
    }

    /// Returns false if the topic had no retained message.
    fn remove(&mut self, vhost: &str, topic: &str) -> bool {
        let Some(topics) = self.vhosts.get_mut(vhost) else {
            return false;
        };
        let Some(old) = topics.remove(topic) else {
            return false;
        };
        debug_assert!(
            self.messages > 0 && self.bytes >= topic.len() + old.len(),
            "the retained message of topic {topic:?} in vhost {vhost:?} was not counted"
        );
        self.messages -= 1;
        self.bytes -= topic.len() + old.len();
        if topics.is_empty() {
            self.vhosts.remove(vhost);
        }
        true
    }

    pub(crate) fn remove_vhost(&mut self, vhost: &str) {
        for (topic, message) in self.vhosts.remove(vhost).unwrap_or_default() {
            debug_assert!(
                self.messages > 0 && self.bytes >= topic.len() + message.len(),
                "the retained message of topic {topic:?} in vhost {vhost:?} was not counted"
            );
            self.messages -= 1;
            self.bytes -= topic.len() + message.len();
        }
    }
}

impl Tree {
    pub(crate) fn retain(
        &mut self,
        vhost: &Name,
        topic: &Name,
        message: Option<&Bytes>,
    ) -> Result<ChangeResult, ChangeError> {
        match message {
            Some(message) => {
                self.check_retained_limits(vhost, topic, message.len())?;
                self.retained.set(vhost, topic, message.clone());
            }
            None if self.retained.remove(vhost, topic) => {}
            None => return Ok(ChangeResult::Unchanged),
        }
        self.events.push(TreeEvent::Retained {
            vhost: vhost.clone(),
            topic: topic.clone(),
        });
        Ok(ChangeResult::Changed)
    }

    /// Checks that a message of `len` bytes can be retained for a topic within the limits.
    pub fn check_retained_limits(
        &self,
        vhost: &str,
        topic: &str,
        len: usize,
    ) -> Result<(), ChangeError> {
        if !self.vhost_exists(vhost) {
            return Err(no_vhost(vhost));
        }
        if topic.is_empty() || topic.len() > limits::TOPIC_BYTES || len > limits::RETAINED_BYTES {
            let max = limits::RETAINED_BYTES;
            return Err(ChangeError::Invalid(format!(
                "a message of {len} bytes cannot be retained: the most is {max}"
            )));
        }
        let before = self.retained(vhost, topic).map(|m| topic.len() + m.len());
        let bytes = self.retained.bytes - before.unwrap_or(0) + topic.len() + len;
        let messages = self.retained.messages + usize::from(before.is_none());
        if messages > limits::RETAINED || bytes > limits::RETAINED_TOTAL_BYTES {
            return Err(ChangeError::PreconditionFailed(
                "there is no room for more retained messages".into(),
            ));
        }
        Ok(())
    }

    /// Number of retained messages, and their bytes including topics.
    pub fn retained_size(&self) -> (usize, usize) {
        (self.retained.messages, self.retained.bytes)
    }

    /// The retained message of a topic, as a message container.
    pub fn retained(&self, vhost: &str, topic: &str) -> Option<&Bytes> {
        self.retained.vhosts.get(vhost)?.get(topic)
    }

    /// Topic and message of the retained messages of a vhost behind a topic, ordered by topic. `None`: all of them.
    pub fn retained_after(
        &self,
        vhost: &str,
        after: Option<&str>,
    ) -> impl Iterator<Item = (&Name, &Bytes)> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let topics = self.retained.vhosts.get(vhost).into_iter();
        topics.flat_map(move |topics| topics.range::<str, _>((after, Bound::Unbounded)))
    }

    /// Vhost, topic and message of all retained messages, ordered by vhost and topic.
    pub fn all_retained(&self) -> impl Iterator<Item = (&Name, &Name, &Bytes)> {
        let vhosts = self.retained.vhosts.iter();
        vhosts.flat_map(|(vhost, all)| all.iter().map(move |(topic, m)| (vhost, topic, m)))
    }
}
