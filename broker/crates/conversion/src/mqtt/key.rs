//! Conversion of MQTT topics to routing keys: `/` and `.` are swapped.

use smallvec::SmallVec;

/// Swaps `/` (0x2f) and `.` (0x2e), which differ in the lowest bit, without a branch.
fn swapped(byte: u8) -> u8 {
    byte ^ u8::from(byte | 1 == b'/')
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

/// Appends `text` to `out`, with `/` and `.` swapped.
#[inline]
pub fn push_swapped(text: &str, out: &mut String) {
    let mut bytes = std::mem::take(out).into_bytes();
    bytes.extend(text.bytes().map(swapped));
    *out = String::from_utf8(bytes).unwrap_or_default();
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
    }
}
