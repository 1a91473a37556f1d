//! Patterns of permissions and policies: regular expressions matched anywhere in a name, as RabbitMQ does.

use regex::{Regex, RegexBuilder};

/// Longest pattern taken, in bytes.
pub const MAX_PATTERN: usize = 1024;
/// Compiled size and lazily built automaton of one pattern, in bytes.
const MAX_COMPILED: usize = 256 * 1024;
const MAX_AUTOMATON: usize = 256 * 1024;

/// Why a pattern cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPattern {
    /// Longer than [`MAX_PATTERN`]; the number is the pattern's length in bytes.
    #[error("the pattern has {0} bytes, {MAX_PATTERN} are allowed")]
    Long(usize),
    /// Not a regular expression, or too large when compiled; the text says why.
    #[error("{0}")]
    Syntax(String),
}

/// A compiled pattern. The forms most rights have need no automaton: thousands of tenants cost little memory.
#[derive(Clone, Debug)]
pub enum Pattern {
    /// `.*` and its like.
    All,
    /// Plain text, tied to the start or the end where the pattern says so.
    Literal {
        /// The text to find, without metacharacters.
        text: Box<str>,
        /// The name must start with the text.
        start: bool,
        /// The name must end with the text.
        end: bool,
    },
    /// Every other pattern.
    Regex(Box<Regex>),
}

impl Pattern {
    /// Compiles a pattern that may match anywhere in a name. Time and memory are bounded whatever the pattern is.
    pub fn compile(pattern: &str) -> Result<Pattern, BadPattern> {
        if pattern.len() > MAX_PATTERN {
            return Err(BadPattern::Long(pattern.len()));
        }
        if let Some(plain) = Pattern::plain(pattern) {
            return Ok(plain);
        }
        RegexBuilder::new(pattern)
            .size_limit(MAX_COMPILED)
            .dfa_size_limit(MAX_AUTOMATON)
            .nest_limit(64)
            .build()
            .map(|r| Pattern::Regex(Box::new(r)))
            .map_err(|e| BadPattern::Syntax(e.to_string()))
    }

    /// A right's pattern: an empty one permits nothing but the empty name.
    pub fn compile_right(pattern: &str) -> Result<Pattern, BadPattern> {
        Pattern::compile(if pattern.is_empty() { "^$" } else { pattern })
    }

    fn plain(pattern: &str) -> Option<Pattern> {
        let (start, rest) = match pattern.strip_prefix('^') {
            Some(rest) => (true, rest),
            None => (false, pattern),
        };
        let (end, rest) = match rest.strip_suffix('$') {
            // An escaped dollar is text; the regular expression deals with that.
            Some(rest) if !rest.ends_with('\\') => (true, rest),
            Some(_) => return None,
            None => (false, rest),
        };
        // `^a.*` and `^a.*$` are `^a`: names hold no newline that `.` would stop at, or it is the regex's matter.
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

    /// Whether the pattern is found in `name`.
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
    fn an_empty_right_permits_nothing_and_star_everything() {
        assert!(!Pattern::compile_right("").unwrap().matches("q"));
        assert!(Pattern::compile_right(".*").unwrap().matches("q"));
        assert!(Pattern::compile("").unwrap().matches("q"));
    }

    #[test]
    fn patterns_match_anywhere_unless_tied() {
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
    fn hostile_patterns_are_refused() {
        assert!(matches!(
            Pattern::compile(&"a".repeat(2000)),
            Err(BadPattern::Long(2000))
        ));
        for bad in ["(", "[a", "a{1000}{1000}{1000}", "(?=x)"] {
            assert!(
                matches!(Pattern::compile(bad), Err(BadPattern::Syntax(_))),
                "{bad}"
            );
        }
    }

    proptest! {
        /// The short cut and the regular expression never disagree.
        #[test]
        fn the_short_cut_agrees_with_the_regex(
            pattern in r"\^?[ab.\-\\]{0,4}(\.\*)?\$?", name in "[ab.$-]{0,6}",
        ) {
            let Ok(regex) = Regex::new(&pattern) else { return Ok(()) };
            prop_assert_eq!(Pattern::compile(&pattern).unwrap().matches(&name), regex.is_match(&name));
        }
    }
}
