//! Conversion of MQTT topics and filters to keys of the topic trie: `/` and `.` are swapped and `+`
//! becomes `*`. In RabbitMQ a topic level that is a plain `*` turns into a wildcard; between MQTT clients
//! of this broker it is an ordinary level.

use conversion::mqtt::push_swapped;

/// Prefix of a level that would otherwise be a wildcard. No topic contains this character
/// [MQTT-4.7.3-2].
const LITERAL: char = '\0';

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
    fn filter_wildcards_become_those_of_amqp() {
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
