//! Prometheus' text format, version 0.0.4.

use control::HistogramSnapshot;
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

    /// Writes the samples of one histogram of a metric.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        histogram: &HistogramSnapshot,
    ) {
        let bucket = format!("{name}_bucket");
        let bounds = histogram.buckets.iter();
        let bounds = bounds.map(|(bound, count)| (bound.to_string(), *count));
        for (bound, count) in bounds.chain([("+Inf".to_owned(), histogram.count)]) {
            let bound = ("le", bound.as_str());
            let labels: Vec<_> = labels.iter().copied().chain([bound]).collect();
            self.sample(&bucket, &labels, count);
        }
        self.sample(&format!("{name}_sum"), labels, histogram.sum);
        self.sample(&format!("{name}_count"), labels, histogram.count);
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
    use control::DurationHistogram;
    use std::time::Duration;

    #[test]
    fn histogram_ends_with_its_count() {
        let histogram = DurationHistogram::default();
        histogram.observe(Duration::from_millis(2));
        histogram.observe(Duration::from_secs(60));
        let mut page = Page::new("p_");
        page.histogram("d", &[("shard", "0")], &histogram.snapshot());
        let text = page.into_text();
        for line in [
            "p_d_bucket{shard=\"0\",le=\"0.001\"} 0",
            "p_d_bucket{shard=\"0\",le=\"0.0025\"} 1",
            "p_d_bucket{shard=\"0\",le=\"5\"} 1",
            "p_d_bucket{shard=\"0\",le=\"+Inf\"} 2",
            "p_d_sum{shard=\"0\"} 60.002",
            "p_d_count{shard=\"0\"} 2",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing: {text}");
        }
    }

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
