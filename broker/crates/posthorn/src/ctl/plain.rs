//! The API reports some errors as Erlang terms, as RabbitMQ does. People get plain text instead.

/// Replaces the terms in a reason.
pub(crate) fn text(reason: &str) -> String {
    let mut plain = String::new();
    let mut rest = reason;
    while let Some(start) = rest.find(['{', '<', '[']) {
        let (before, from) = rest.split_at(start);
        plain.push_str(before);
        match Parser(from).term() {
            Some((term, after)) if term.is_recognized() => {
                plain.push_str(&term.describe());
                rest = after;
            }
            _ => {
                let mut characters = from.chars();
                plain.extend(characters.next());
                rest = characters.as_str();
            }
        }
    }
    plain.push_str(rest);
    plain
}

/// Nesting of terms that is read.
const MAX_DEPTH: usize = 8;

enum Term {
    Binary(String),
    Tuple(Vec<Term>),
    List(Vec<Term>),
    /// A number or an atom.
    Word(String),
}

impl Term {
    /// False if the text merely has the brackets of a term, as JSON and regular expressions do.
    fn is_recognized(&self) -> bool {
        match self {
            Term::Binary(_) => true,
            Term::Word(_) => false,
            Term::List(terms) => !terms.is_empty() && terms.iter().all(Term::is_recognized),
            Term::Tuple(terms) => match terms.as_slice() {
                [Term::Word(name), ..] => name.starts_with(|c: char| c.is_ascii_lowercase()),
                [Term::Binary(_), _] => true,
                _ => false,
            },
        }
    }

    fn describe(&self) -> String {
        let all = |terms: &[Term], separator: &str| {
            let texts = terms.iter().map(Term::describe);
            texts.collect::<Vec<_>>().join(separator)
        };
        match self {
            Term::Binary(text) => format!("'{text}'"),
            Term::Word(text) => text.replace('_', " "),
            Term::List(terms) => all(terms, ", "),
            Term::Tuple(terms) => match terms.as_slice() {
                [Term::Binary(_), _] => all(terms, " = "),
                [Term::Word(name), values @ ..] => match (name.as_str(), values) {
                    ("value_negative", [n]) => format!("{} is negative", n.describe()),
                    ("value_zero", _) => "0 is not allowed".to_owned(),
                    ("value_too_large" | "max_value_exceeded", [n]) => {
                        format!("{} is too large", n.describe())
                    }
                    ("value_out_of_range", [n, low, high]) => format!(
                        "{} is not between {} and {}",
                        n.describe(),
                        low.describe(),
                        high.describe()
                    ),
                    ("unacceptable_type", [kind]) => {
                        format!("a value of type {} is not accepted", kind.describe())
                    }
                    ("error", [reason]) => reason.describe(),
                    _ => all(terms, " "),
                },
                _ => all(terms, " "),
            },
        }
    }
}

/// Reads one term from the start of a text.
struct Parser<'a>(&'a str);

impl<'a> Parser<'a> {
    fn term(mut self) -> Option<(Term, &'a str)> {
        let term = self.read(0)?;
        Some((term, self.0))
    }

    fn skip(&mut self, prefix: &str) -> bool {
        let rest = self.0.trim_start().strip_prefix(prefix);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    fn read(&mut self, depth: usize) -> Option<Term> {
        if depth > MAX_DEPTH {
            return None;
        }
        if self.skip("<<\"") {
            let (text, rest) = self.0.split_once("\">>")?;
            self.0 = rest;
            return Some(Term::Binary(text.to_owned()));
        }
        if self.skip("\"") {
            let (text, rest) = self.0.split_once('"')?;
            self.0 = rest;
            return Some(Term::Binary(text.to_owned()));
        }
        for (open, close) in [("{", "}"), ("[", "]")] {
            if self.skip(open) {
                let terms = self.until(close, depth)?;
                return Some(match open {
                    "{" => Term::Tuple(terms),
                    _ => Term::List(terms),
                });
            }
        }
        let is_word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '@');
        let end = self.0.find(|c| !is_word(c)).unwrap_or(self.0.len());
        let (word, rest) = self.0.split_at(end);
        self.0 = rest;
        (!word.is_empty()).then(|| Term::Word(word.to_owned()))
    }

    fn until(&mut self, close: &str, depth: usize) -> Option<Vec<Term>> {
        let mut terms = Vec::new();
        while !self.skip(close) {
            if !terms.is_empty() && !self.skip(",") {
                return None;
            }
            terms.push(self.read(depth + 1)?);
        }
        Some(terms)
    }
}

#[cfg(test)]
mod unit {
    use super::text;

    #[test]
    fn erlang_terms_become_plain_text() {
        for (reason, plain) in [
            (
                "Validation failed\n[{<<\"max-lenght\">>,9}] are not recognised policy settings",
                "Validation failed\n'max-lenght' = 9 are not recognised policy settings",
            ),
            (
                "invalid arg 'x-expires' for queue 'q' in vhost '/': {value_zero,0}",
                "invalid arg 'x-expires' for queue 'q' in vhost '/': 0 is not allowed",
            ),
            ("x: {value_negative,-1}", "x: -1 is negative"),
            (
                "x: {unacceptable_type,longstr}",
                "x: a value of type longstr is not accepted",
            ),
            ("x: {error,invalid_max_age}", "x: invalid max age"),
            ("x: {leftover_string,\"ms\"}", "x: leftover string 'ms'"),
            ("<<\"a\">> and <<\"b\">>", "'a' and 'b'"),
        ] {
            assert_eq!(text(reason), plain);
        }
    }

    #[test]
    fn other_brackets_are_kept() {
        for reason in [
            "the pattern ^[a-z]{1,3}$ is invalid",
            "a < b",
            "{\"max-length\":9} is no object",
            "queue '{' in vhost '['",
            "{value_zero",
            "é {",
        ] {
            assert_eq!(text(reason), reason);
        }
        let deep = "{a,".repeat(100);
        assert_eq!(text(&deep), deep);
    }
}
