//! Conversion of MQTT topics and filters to routing keys: `/` and `.` are swapped and `+` becomes
//! `*`. In RabbitMQ a topic level that is a plain `*` turns into a wildcard; between MQTT clients
//! of this broker it is an ordinary level.

use smallvec::SmallVec;

/// Prefix of a level that would otherwise be a wildcard. No topic contains this character
/// [MQTT-4.7.3-2].
const LITERAL: char = '\0';

fn swapped(byte: u8) -> u8 {
    match byte {
        b'/' => b'.',
        b'.' => b'/',
        other => other,
    }
}

/// The routing key of a topic name. Short keys need no allocation.
#[derive(Clone, Debug)]
pub struct RoutingKey(SmallVec<[u8; 128]>);

impl RoutingKey {
    /// Converts a topic name.
    pub fn of(topic: &str) -> RoutingKey {
        let mut key = SmallVec::from_slice(topic.as_bytes());
        key.iter_mut().for_each(|byte| *byte = swapped(*byte));
        RoutingKey(key)
    }

    /// Returns the routing key.
    pub fn as_str(&self) -> &str {
        // Only ASCII bytes were replaced, so this is still UTF-8.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

/// Returns the routing key of a topic name, as exchanges use it.
pub fn key_of(topic: &str) -> String {
    let mut key = String::new();
    push_swapped(topic, &mut key);
    key
}

/// Returns the topic name of a routing key.
pub fn topic_of(key: &str) -> String {
    key_of(key)
}

fn push_swapped(text: &str, out: &mut String) {
    let mut bytes = std::mem::take(out).into_bytes();
    bytes.extend(text.bytes().map(swapped));
    *out = String::from_utf8(bytes).unwrap_or_default();
}

/// Returns true if the levels of the topic are stored unchanged in the trie.
pub(crate) fn has_plain_levels(topic: &str) -> bool {
    let plain = |byte: u8| byte != b'.' && byte != b'*';
    // `fold` instead of `all`: it compiles to code without a branch per byte.
    topic.bytes().fold(true, |all, byte| all & plain(byte))
}

/// Appends to `out` the key under which the trie stores a topic.
pub(crate) fn push_topic(topic: &str, out: &mut String) {
    if !topic.contains('*') {
        return push_swapped(topic, out);
    }
    for (n, level) in topic.split('/').enumerate() {
        push_level(n, level, out);
    }
}

/// Returns the key under which the trie stores a filter.
pub(crate) fn filter_key(filter: &str) -> String {
    let mut out = String::with_capacity(filter.len());
    for (n, level) in filter.split('/').enumerate() {
        match level {
            "+" => push_raw(n, "*", &mut out),
            "#" => push_raw(n, "#", &mut out),
            level => push_level(n, level, &mut out),
        }
    }
    out
}

fn push_raw(n: usize, text: &str, out: &mut String) {
    if n > 0 {
        out.push('.');
    }
    out.push_str(text);
}

fn push_level(n: usize, level: &str, out: &mut String) {
    push_raw(n, "", out);
    if level == "*" {
        out.push(LITERAL);
    }
    push_swapped(level, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slash_and_dot_are_swapped() {
        assert_eq!(key_of("a/b.c/*"), "a.b/c.*");
        assert_eq!(topic_of("a.b/c.*"), "a/b.c/*");
        let long = "é/ü.".repeat(100);
        for topic in ["", "a/b.c/*", "é/ü.", &long] {
            assert_eq!(RoutingKey::of(topic).as_str(), key_of(topic));
        }
        assert_eq!(filter_key("+/b.c/#"), "*.b/c.#");
        assert_eq!(filter_key("/+"), ".*");
    }

    #[test]
    fn star_is_no_wildcard_in_mqtt() {
        assert_eq!(filter_key("a/*/b*"), "a.\0*.b*");
        let mut out = String::new();
        push_topic("a/*/b*", &mut out);
        assert_eq!(out, filter_key("a/*/b*"));
    }
}
