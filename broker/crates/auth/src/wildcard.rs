//! Patterns of the scopes in access tokens: `*` matches any characters, and everything else is percent-encoded.

/// A compiled pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wildcard {
    /// Matches every name: `*`.
    All,
    /// Matches this name only.
    Exact(Box<str>),
    /// Text between wildcards.
    Parts {
        /// The name starts with this text.
        start: Box<str>,
        /// The name has these texts between start and end, in this order.
        middle: Box<[Box<str>]>,
        /// The name ends with this text.
        end: Box<str>,
    },
}

impl Wildcard {
    /// Compiles a pattern. None: the percent-encoding is invalid, so that the pattern matches nothing.
    pub fn compile(pattern: &str) -> Option<Wildcard> {
        let mut parts = Vec::new();
        for part in pattern.split('*') {
            parts.push(decode(part)?);
        }
        let Some(end) = parts.pop().filter(|_| !parts.is_empty()) else {
            return decode(pattern).map(Wildcard::Exact);
        };
        let start = parts.remove(0);
        // Two wildcards in a row match what one matches.
        parts.retain(|part| !part.is_empty());
        if start.is_empty() && parts.is_empty() && end.is_empty() {
            return Some(Wildcard::All);
        }
        Some(Wildcard::Parts {
            start,
            middle: parts.into(),
            end,
        })
    }

    /// Returns true if the pattern matches the whole name.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Wildcard::All => true,
            Wildcard::Exact(text) => **text == *name,
            Wildcard::Parts { start, middle, end } => {
                let inner = name
                    .strip_prefix(&**start)
                    .and_then(|rest| rest.strip_suffix(&**end));
                let mut rest = match inner {
                    Some(inner) => inner,
                    None => return false,
                };
                // The first match of each text leaves the most for the next one.
                middle.iter().all(|text| match rest.split_once(&**text) {
                    Some((_, after)) => {
                        rest = after;
                        true
                    }
                    None => false,
                })
            }
        }
    }
}

/// Decodes a part of a URL query, where `+` is a space, as RabbitMQ does.
fn decode(part: &str) -> Option<Box<str>> {
    let mut decoded = Vec::with_capacity(part.len());
    let mut bytes = part.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => digit(bytes.next()?)? << 4 | digit(bytes.next()?)?,
            other => other,
        });
    }
    String::from_utf8(decoded).ok().map(String::into_boxed_str)
}

fn digit(byte: u8) -> Option<u8> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Wildcard::compile(pattern).is_some_and(|pattern| pattern.matches(name))
    }

    #[test]
    fn wildcards_match_any_characters_and_text_matches_itself() {
        for (pattern, yes, no) in [
            ("*", &["", "a", "a/b"][..], &[][..]),
            ("", &[""], &["a"]),
            ("a", &["a"], &["", "ab", "ba"]),
            ("a*", &["a", "ab"], &["ba", ""]),
            ("*a", &["a", "ba", "aa"], &["ab"]),
            ("a*a", &["aa", "aba"], &["a"]),
            ("a**b", &["ab", "acb"], &["a"]),
            ("a*b*c", &["abc", "axbxbxc"], &["acb", "ac"]),
            ("start*end", &["startend", "start-end-end"], &["start-end-"]),
            ("*b*b", &["bb", "abcb"], &["b"]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern} {name}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn special_characters_are_percent_encoded() {
        assert!(matches("%2F", "/") && matches("%2f", "/"));
        assert!(matches("a%2A", "a*") && !matches("a%2A", "ab"));
        assert!(matches("%D1%8E", "ю") && matches("ю*", "юг"));
        assert!(matches("a+b", "a b") && matches("a%2Bb", "a+b"));
        for invalid in ["%", "%2", "%zz", "%ff", "a*%"] {
            assert_eq!(Wildcard::compile(invalid), None, "{invalid}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_patterns_do_not_panic(pattern: String, name: String) {
            matches(&pattern, &name);
        }

        /// A regular expression with the same meaning agrees.
        #[test]
        fn wildcards_agree_with_regular_expressions(pattern in "[ab*]{0,6}", name in "[ab]{0,6}") {
            let regex = regex::Regex::new(&format!("^{}$", pattern.replace('*', ".*"))).unwrap();
            prop_assert_eq!(matches(&pattern, &name), regex.is_match(&name));
        }
    }
}
