//! Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write as _};

/// Text in the making.
pub(crate) struct Page {
    text: String,
    /// Of every name.
    prefix: &'static str,
}

impl Page {
    pub(crate) fn new(prefix: &'static str) -> Page {
        Page {
            text: String::new(),
            prefix,
        }
    }

    /// What names begin with from here on; what they began with before.
    pub(crate) fn prefix(&mut self, prefix: &'static str) -> &'static str {
        std::mem::replace(&mut self.prefix, prefix)
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// Bytes that are there.
    pub(crate) fn len(&self) -> usize {
        self.text.len()
    }

    /// What is there, and begins anew.
    pub(crate) fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    /// Begins a metric.
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
            self.escaped(text);
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    fn escaped(&mut self, text: &str) {
        for c in text.chars() {
            match c {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                other => self.text.push(other),
            }
        }
    }

    /// A metric with one sample.
    pub(crate) fn one(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.head(name, kind, help);
        self.sample(name, &[], value);
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn names_cannot_break_a_line() {
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
