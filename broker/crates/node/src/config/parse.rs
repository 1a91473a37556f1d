//! Parses lines of `key = value`.

/// The setting in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Line number, starting at 1.
    pub line: usize,
    pub key: String,
    pub value: String,
}

/// A line that is neither a setting nor empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadLine {
    pub line: usize,
    pub what: &'static str,
}

pub(super) fn parse(text: &str) -> Vec<Result<Setting, BadLine>> {
    let numbered = text.lines().enumerate();
    numbered
        .filter_map(|(i, line)| parse_line(i + 1, line))
        .collect()
}

fn parse_line(line: usize, text: &str) -> Option<Result<Setting, BadLine>> {
    let text = text.trim();
    if text.is_empty() || text.starts_with('#') {
        return None;
    }
    let Some((key, value)) = text.split_once('=') else {
        let what = "expected `key = value` or a `#` comment";
        return Some(Err(BadLine { line, what }));
    };
    Some(split_value(value).map_or_else(
        |what| Err(BadLine { line, what }),
        |value| {
            Ok(Setting {
                line,
                key: key.trim().to_owned(),
                value: value.to_owned(),
            })
        },
    ))
}

/// Returns the value without its comment; `'...'` keeps everything verbatim.
fn split_value(text: &str) -> Result<&str, &'static str> {
    let text = text.trim();
    if let Some(quoted) = text.strip_prefix('\'') {
        let Some((value, rest)) = quoted.rsplit_once('\'') else {
            return Err("a quoted value must end with '");
        };
        let rest = rest.trim();
        return if rest.is_empty() || rest.starts_with('#') {
            Ok(value)
        } else {
            Err("only a `#` comment may follow a quoted value")
        };
    }
    let comment = text
        .match_indices('#')
        .map(|(i, _)| i)
        .find(|i| text[..*i].is_empty() || text[..*i].ends_with(char::is_whitespace));
    Ok(comment.map_or(text, |i| text[..i].trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(line: &str) -> Option<Result<(String, String), &'static str>> {
        parse_line(1, line).map(|r| r.map(|s| (s.key, s.value)).map_err(|b| b.what))
    }

    #[test]
    fn lines_are_parsed() {
        let some = |k: &str, v: &str| Some(Ok((k.to_owned(), v.to_owned())));
        assert_eq!(one("a.b = c"), some("a.b", "c"));
        assert_eq!(one("  a=b=c  # why"), some("a", "b=c"));
        assert_eq!(one("pass = a#b"), some("pass", "a#b"));
        assert_eq!(one("pass = 'a # b' # c"), some("pass", "a # b"));
        assert_eq!(one("pass = ''"), some("pass", ""));
        assert_eq!(one("x = # nothing"), some("x", ""));
        assert_eq!(one("# x = y"), None);
        assert_eq!(one("   "), None);
        assert!(matches!(one("nothing"), Some(Err(_))));
        assert!(matches!(one("a = 'open"), Some(Err(_))));
        assert!(matches!(one("a = 'b' c"), Some(Err(_))));
    }

    proptest! {
        #[test]
        fn parser_never_panics(text in "\\PC{0,200}") {
            parse(&text);
        }
    }
}
