//! Patterns of permissions and policies: regular expressions that match anywhere in a name, as in RabbitMQ.

use regex::{Regex, RegexBuilder};

/// Longest accepted pattern, in bytes.
pub const MAX_PATTERN: usize = 1024;
/// Limit of the compiled size and of the lazily built automaton of one pattern, in bytes.
const MAX_COMPILED: usize = 256 * 1024;
const MAX_AUTOMATON: usize = 256 * 1024;

/// Why a pattern cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// The pattern is longer than [`MAX_PATTERN`]; the number is its length in bytes.
    #[error("the pattern has {0} bytes, the limit is {MAX_PATTERN}")]
    Long(usize),
    /// Not a regular expression, or too large when compiled; the text says why.
    #[error("{0}")]
    Syntax(String),
}

/// A compiled pattern. The most common forms of permissions need no automaton, so thousands of tenants take
/// little memory.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// Matches every name: `.*` and equivalents.
    All,
    /// Plain text, optionally anchored at the start or the end.
    Literal {
        /// The text to find, without metacharacters.
        text: Box<str>,
        /// The name must start with the text.
        start: bool,
        /// The name must end with the text.
        end: bool,
    },
    /// Any other pattern.
    Regex(Box<Regex>),
}

impl Pattern {
    /// Compiles a pattern that may match anywhere in a name. Time and memory are bounded for any input.
    pub fn compile(pattern: &str) -> Result<Pattern, PatternError> {
        if pattern.len() > MAX_PATTERN {
            return Err(PatternError::Long(pattern.len()));
        }
        if let Some(plain) = Pattern::as_literal(pattern) {
            return Ok(plain);
        }
        RegexBuilder::new(pattern)
            .size_limit(MAX_COMPILED)
            .dfa_size_limit(MAX_AUTOMATON)
            .nest_limit(64)
            .build()
            .map(|r| Pattern::Regex(Box::new(r)))
            .map_err(|e| PatternError::Syntax(e.to_string()))
    }

    /// Compiles the pattern of a permission: an empty one matches the empty name only.
    pub fn compile_right(pattern: &str) -> Result<Pattern, PatternError> {
        Pattern::compile(if pattern.is_empty() { "^$" } else { pattern })
    }

    fn as_literal(pattern: &str) -> Option<Pattern> {
        let (start, rest) = match pattern.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, pattern),
        };
        let (end, rest) = match rest.strip_suffix('$') {
            // An escaped dollar is text; the regular expression handles that.
            Some(rest) if !rest.ends_with('\\') => (true, rest),
            Some(_) => return None,
            None => (false, rest),
        };
        // `^a.*` and `^a.*$` equal `^a`, because names contain no newline at which `.` would stop.
        let (end, rest) = match rest.strip_suffix(".*") {
            Some(_) if end => return None,
            Some(rest) if !rest.ends_with('\\') => (false, rest),
            Some(_) => return None,
            None => (end, rest),
        };
        if rest.chars().any(|c| "\\.+*?()|[]{}^$".contains(c)) {
            return None;
        }
        if rest.is_empty() && !(start && end) {
            return Some(Pattern::All);
        }
        Some(Pattern::Literal {
            text: rest.into(),
            start,
            end,
        })
    }

    /// True if the pattern matches somewhere in `name`.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::All => true,
            Pattern::Literal { text, start, end } => match (start, end) {
                (true, true) => name == &**text,
                (true, false) => name.starts_with(&**text),
                (false, true) => name.ends_with(&**text),
                (false, false) => name.contains(&**text),
            },
            Pattern::Regex(regex) => regex.is_match(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_permission_matches_nothing_and_star_everything() {
        assert!(!Pattern::compile_right("").unwrap().matches("q"));
        assert!(Pattern::compile_right(".*").unwrap().matches("q"));
        assert!(Pattern::compile("").unwrap().matches("q"));
    }

    #[test]
    fn patterns_match_anywhere_unless_anchored() {
        assert!(Pattern::compile("rder").unwrap().matches("orders"));
        assert!(!Pattern::compile("^rder").unwrap().matches("orders"));
        assert!(
            Pattern::compile("^tenant-(a|b)")
                .unwrap()
                .matches("tenant-b.q")
        );
        assert!(
            !Pattern::compile("^tenant-(a|b)$")
                .unwrap()
                .matches("tenant-b.q")
        );
    }

    #[test]
    fn oversized_and_invalid_patterns_are_refused() {
        assert!(matches!(
            Pattern::compile(&"a".repeat(2000)),
            Err(PatternError::Long(2000))
        ));
        for invalid in ["(", "[a", "a{1000}{1000}{1000}", "(?=x)"] {
            assert!(
                matches!(Pattern::compile(invalid), Err(PatternError::Syntax(_))),
                "{invalid}"
            );
        }
    }

    proptest! {
        /// The literal form and the regular expression always agree.
        #[test]
        fn literal_patterns_agree_with_the_regex(
            pattern in r"\^?[ab.\-\\]{0,4}(\.\*)?\$?", name in "[ab.$-]{0,6}",
        ) {
            let Ok(regex) = Regex::new(&pattern) else { return Ok(()) };
            prop_assert_eq!(Pattern::compile(&pattern).unwrap().matches(&name), regex.is_match(&name));
        }
    }
}
