//! Retained messages (section 3.3.1.3) as a tree of topic levels, so that a filter visits only
//! levels that it can match.

use env::WallTime;
use message::Message;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
struct Node {
    message: Option<Message>,
    children: BTreeMap<Box<str>, Node>,
}

#[derive(Debug, Default)]
pub(crate) struct RetainedTree {
    root: Node,
    messages: usize,
    bytes: usize,
}

impl RetainedTree {
    pub(crate) fn len(&self) -> usize {
        self.messages
    }

    /// Size of the retained messages in bytes, containers included.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Size in bytes of the message that is currently retained for this topic.
    pub(crate) fn size_of(&self, topic: &str) -> Option<usize> {
        let mut at = &self.root;
        for level in topic.split('/') {
            at = at.children.get(level)?;
        }
        at.message.as_ref().map(|m| m.as_bytes().len())
    }

    pub(crate) fn set(&mut self, topic: &str, message: Message) {
        let mut at = &mut self.root;
        for level in topic.split('/') {
            // Look up first: most levels exist, and a look-up needs no `Box`.
            if !at.children.contains_key(level) {
                at.children.insert(level.into(), Node::default());
            }
            let Some(next) = at.children.get_mut(level) else {
                return;
            };
            at = next;
        }
        self.messages += 1;
        self.bytes += message.as_bytes().len();
        if let Some(old) = at.message.replace(message) {
            debug_assert!(
                self.messages > 0 && self.bytes >= old.as_bytes().len(),
                "the replaced retained message was not counted"
            );
            self.messages -= 1;
            self.bytes -= old.as_bytes().len();
        }
    }

    pub(crate) fn remove(&mut self, topic: &str) {
        let levels: Vec<&str> = topic.split('/').collect();
        // Walk down to the message and remember the deepest level whose node must stay.
        let mut deepest_kept = 0;
        let mut at = &self.root;
        for (n, level) in levels.iter().enumerate() {
            if at.children.len() > 1 || at.message.is_some() {
                deepest_kept = n;
            }
            let Some(next) = at.children.get(*level) else {
                return;
            };
            at = next;
        }
        let Some(size) = at.message.as_ref().map(|m| m.as_bytes().len()) else {
            return;
        };
        let leaf = at.children.is_empty();
        debug_assert!(
            self.messages > 0 && self.bytes >= size,
            "the retained message of topic {topic:?} was not counted"
        );
        self.messages -= 1;
        self.bytes -= size;
        let mut at = &mut self.root;
        for (n, level) in levels.iter().enumerate() {
            if leaf && n == deepest_kept {
                at.children.remove(*level);
                return;
            }
            let Some(next) = at.children.get_mut(*level) else {
                return;
            };
            at = next;
        }
        at.message = None;
    }

    /// Calls `visit` for each unexpired message whose topic matches the filter, in the order of
    /// their topic levels, until it returns false. Returns false if it did.
    pub(crate) fn matching(
        &self,
        filter: &str,
        now: WallTime,
        mut visit: impl FnMut(&Message) -> bool,
    ) -> bool {
        let levels: Vec<&str> = filter.split('/').collect();
        // An explicit stack instead of recursion: a topic may have 32,768 levels.
        let mut walk: Vec<(&Node, usize)> = vec![(&self.root, 0)];
        while let Some((node, depth)) = walk.pop() {
            let filter_level = levels.get(depth).copied();
            if matches!(filter_level, None | Some("#"))
                && let Some(message) = &node.message
                && is_fresh(message, now)
                && !visit(message)
            {
                return false;
            }
            match filter_level {
                None => {}
                Some("#") => {
                    walk.extend(children_in_reverse(node, depth == 0).map(|child| (child, depth)))
                }
                Some("+") => walk
                    .extend(children_in_reverse(node, depth == 0).map(|child| (child, depth + 1))),
                Some(level) => {
                    walk.extend(node.children.get(level).map(|child| (child, depth + 1)));
                }
            }
        }
        true
    }
}

/// Yields the children in reverse order, so that a stack pops them in order. A leading wildcard
/// does not match levels that begin with `$` [MQTT-4.7.2-1].
fn children_in_reverse(node: &Node, first_level: bool) -> impl Iterator<Item = &Node> {
    let children = node.children.iter().rev();
    children
        .filter(move |(level, _)| !first_level || !level.starts_with('$'))
        .map(|(_, child)| child)
}

/// Returns true if the message has no expiry or has not expired yet.
pub fn is_fresh(message: &Message, now: WallTime) -> bool {
    message
        .ttl_ms()
        .is_none_or(|ttl| message.received().0.saturating_add(ttl) > now.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use codec_mqtt::matches;
    use message::{MessageBuilder, Protocol};
    use proptest::prelude::*;

    fn message(topic: &str, ttl_ms: Option<u64>) -> Message {
        let builder = MessageBuilder {
            protocol: Protocol::Mqtt,
            durable: false,
            priority: None,
            ttl_ms,
            received: WallTime(1000),
            exchange: "",
            routing_keys: &[],
            properties: &[],
        };
        builder.build(topic.len(), [topic.as_bytes()]).unwrap()
    }

    fn matching(retained: &RetainedTree, filter: &str, now: u64) -> Vec<String> {
        let mut all = Vec::new();
        retained.matching(filter, WallTime(now), |m| {
            all.push(String::from_utf8(m.body().to_vec()).unwrap());
            true
        });
        all
    }

    #[test]
    fn expired_message_is_not_found() {
        let mut retained = RetainedTree::default();
        retained.set("a", message("a", Some(500)));
        assert_eq!(matching(&retained, "#", 1499), ["a"]);
        assert!(matching(&retained, "#", 1500).is_empty());
    }

    proptest! {
        #[test]
        fn retained_messages_match_a_plain_list(
            steps in proptest::collection::vec((any::<bool>(), "[ab$](/[ab]?){0,3}"), 1..40),
            filters in proptest::collection::vec("([ab$]|\\+)(/([ab]|\\+)?){0,2}(/#)?|#", 1..8),
        ) {
            let mut retained = RetainedTree::default();
            let mut model: BTreeMap<String, usize> = BTreeMap::new();
            for (set, topic) in &steps {
                if *set {
                    retained.set(topic, message(topic, None));
                    model.insert(topic.clone(), message(topic, None).as_bytes().len());
                } else {
                    retained.remove(topic);
                    model.remove(topic);
                }
                prop_assert_eq!(retained.len(), model.len());
                prop_assert_eq!(retained.bytes(), model.values().sum::<usize>());
                prop_assert_eq!(retained.size_of(topic), model.get(topic).copied());
            }
            for filter in &filters {
                let mut got = matching(&retained, filter, 1000);
                got.sort();
                let want: Vec<&String> = model.keys().filter(|topic| matches(filter, topic)).collect();
                prop_assert_eq!(got.iter().collect::<Vec<_>>(), want, "{}", filter);
            }
            for topic in model.keys() {
                retained.remove(topic);
            }
            prop_assert!(retained.root.children.is_empty(), "nodes are left behind");
        }
    }
}
