//! Retained messages (section 3.3.1.3), by topic level, so that a filter visits only what it can match.

use env::WallTime;
use message::Message;
use std::collections::BTreeMap;

#[derive(Debug, Default)]
struct Node {
    message: Option<Message>,
    below: BTreeMap<Box<str>, Node>,
}

#[derive(Debug, Default)]
pub(crate) struct Retained {
    root: Node,
    messages: usize,
    bytes: usize,
}

impl Retained {
    pub fn len(&self) -> usize {
        self.messages
    }

    /// Of messages, containers included.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The bytes that a message under this topic has now.
    pub fn size_of(&self, topic: &str) -> Option<usize> {
        let mut at = &self.root;
        for level in topic.split('/') {
            at = at.below.get(level)?;
        }
        at.message.as_ref().map(|m| m.as_bytes().len())
    }

    pub fn set(&mut self, topic: &str, message: Message) {
        let mut at = &mut self.root;
        for level in topic.split('/') {
            // Looked up first: most are there, and a look-up needs no box.
            if !at.below.contains_key(level) {
                at.below.insert(level.into(), Node::default());
            }
            let Some(next) = at.below.get_mut(level) else {
                return;
            };
            at = next;
        }
        self.messages += 1;
        self.bytes += message.as_bytes().len();
        if let Some(old) = at.message.replace(message) {
            self.messages -= 1;
            self.bytes -= old.as_bytes().len();
        }
    }

    pub fn remove(&mut self, topic: &str) {
        let levels: Vec<&str> = topic.split('/').collect();
        // Down to the message, remembering the last node that must stay.
        let mut keep = 0;
        let mut at = &self.root;
        for (n, level) in levels.iter().enumerate() {
            if at.below.len() > 1 || at.message.is_some() {
                keep = n;
            }
            let Some(next) = at.below.get(*level) else {
                return;
            };
            at = next;
        }
        let Some(size) = at.message.as_ref().map(|m| m.as_bytes().len()) else {
            return;
        };
        let leaf = at.below.is_empty();
        self.messages -= 1;
        self.bytes -= size;
        let mut at = &mut self.root;
        for (n, level) in levels.iter().enumerate() {
            if leaf && n == keep {
                at.below.remove(*level);
                return;
            }
            let Some(next) = at.below.get_mut(*level) else {
                return;
            };
            at = next;
        }
        at.message = None;
    }

    /// All messages whose topic a filter matches and whose time has not run out, in the order of their topics' levels, as
    /// long as `found` wants more. False: it did not.
    pub fn matching(
        &self,
        filter: &str,
        now: WallTime,
        mut found: impl FnMut(&Message) -> bool,
    ) -> bool {
        let levels: Vec<&str> = filter.split('/').collect();
        // Depth-first by hand: a topic may have 32,768 levels.
        let mut walk: Vec<(&Node, usize)> = vec![(&self.root, 0)];
        while let Some((node, depth)) = walk.pop() {
            let wanted = levels.get(depth).copied();
            if matches!(wanted, None | Some("#"))
                && let Some(message) = &node.message
                && is_fresh(message, now)
                && !found(message)
            {
                return false;
            }
            match wanted {
                None => {}
                Some("#") => walk.extend(below(node, depth == 0).map(|child| (child, depth))),
                Some("+") => walk.extend(below(node, depth == 0).map(|child| (child, depth + 1))),
                Some(level) => {
                    walk.extend(node.below.get(level).map(|child| (child, depth + 1)));
                }
            }
        }
        true
    }
}

/// The last first, so that a stack yields them in order. Levels that begin with `$` are not for a wildcard in front
/// [MQTT-4.7.2-1].
fn below(node: &Node, first_level: bool) -> impl Iterator<Item = &Node> {
    let children = node.below.iter().rev();
    children
        .filter(move |(level, _)| !first_level || !level.starts_with('$'))
        .map(|(_, child)| child)
}

/// Its expiry, if it has one, is still ahead.
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

    fn found(retained: &Retained, filter: &str, now: u64) -> Vec<String> {
        let mut all = Vec::new();
        retained.matching(filter, WallTime(now), |m| {
            all.push(String::from_utf8(m.body().to_vec()).unwrap());
            true
        });
        all
    }

    #[test]
    fn what_has_expired_is_not_found() {
        let mut retained = Retained::default();
        retained.set("a", message("a", Some(500)));
        assert_eq!(found(&retained, "#", 1499), ["a"]);
        assert!(found(&retained, "#", 1500).is_empty());
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_plain_list(
            steps in proptest::collection::vec((any::<bool>(), "[ab$](/[ab]?){0,3}"), 1..40),
            filters in proptest::collection::vec("([ab$]|\\+)(/([ab]|\\+)?){0,2}(/#)?|#", 1..8),
        ) {
            let mut retained = Retained::default();
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
                let mut got = found(&retained, filter, 1000);
                got.sort();
                let want: Vec<&String> = model.keys().filter(|topic| matches(filter, topic)).collect();
                prop_assert_eq!(got.iter().collect::<Vec<_>>(), want, "{}", filter);
            }
            for topic in model.keys() {
                retained.remove(topic);
            }
            prop_assert!(retained.root.below.is_empty(), "nodes are left behind");
        }
    }
}
