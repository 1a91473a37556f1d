//! Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write as _};

/// Builds a page of metrics.
pub(crate) struct Page {
    text: String,
    /// Prefix of all metric names.
    prefix: &'static str,
}

impl Page {
    pub(crate) fn new(prefix: &'static str) -> Page {
        Page {
            text: String::new(),
            prefix,
        }
    }

    /// Sets the prefix of the following names and returns the previous one.
    pub(crate) fn prefix(&mut self, prefix: &'static str) -> &'static str {
        std::mem::replace(&mut self.prefix, prefix)
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Length of the text in bytes.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// Returns the text so far and empties the page.
    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Writes the `TYPE` and `HELP` lines of a metric.
    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        let prefix = self.prefix;
        let _ = writeln!(
            self.text,
            "# TYPE {prefix}{name} {kind}\n# HELP {prefix}{name} {help}"
        );
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(self.prefix);
        self.text.push_str(name);
        for (at, (key, text)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            self.text.push_str(key);
            self.text.push_str("=\"");
            self.push_escaped(text);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    fn push_escaped(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                other => self.text.push(other),
            }
        }
    }

    /// Writes a metric with one sample.
    pub(crate) fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.sample(name, &[], value);
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut page = Page::new("p_");
        page.head("m", "gauge", "Help");
        page.sample("m", &[("a", "x\"y\\z\n"), ("b", "é")], 4);
        page.one("n", "counter", "More", 1.5);
        assert_eq!(
            page.into_text(),
            "# TYPE p_m gauge\n# HELP p_m Help\np_m{a=\"x\\\"y\\\\z\\n\",b=\"é\"} 4\n\
             # TYPE p_n counter\n# HELP p_n More\np_n 1.5\n"
        );
    }
}
