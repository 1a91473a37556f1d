//! Pages of metrics: Prometheus' text format, version 0.0.4, or plain values for an export.

use control::HistogramSnapshot;
use std::fmt::{Display, Write as _};
use telemetry::{HistogramPoint, Metric, MetricKind, MetricPoint, NumberPoint};

/// Builds a page of metrics.
pub(crate) struct Page {
    text: String,
    /// The metrics as values instead of text. None: the page is text.
    values: Option<Vec<Metric>>,
    /// Prefix of all metric names.
    prefix: &'static str,
}

impl Page {
    pub(crate) fn new(prefix: &'static str) -> Page {
        Page {
            text: String::new(),
            values: None,
            prefix,
        }
    }

    /// A page of values.
    pub(crate) fn of_values(prefix: &'static str) -> Page {
        Page {
            values: Some(Vec::new()),
            ..Page::new(prefix)
        }
    }

    pub(crate) fn into_values(self) -> Vec<Metric> {
        self.values.unwrap_or_default()
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
        if let Some(values) = &mut self.values {
            values.push(Metric {
                name: format!("{prefix}{name}"),
                help: help.to_owned(),
                points: match kind {
                    "histogram" => MetricPoint::Histograms(Vec::new()),
                    "counter" => MetricPoint::Numbers(MetricKind::Counter, Vec::new()),
                    _ => MetricPoint::Numbers(MetricKind::Gauge, Vec::new()),
                },
            });
            return;
        }
        let _ = writeln!(
            self.text,
            "# TYPE {prefix}{name} {kind}\n# HELP {prefix}{name} {help}"
        );
    }

    /// Writes a sample of the metric whose head was written last.
    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        if let Some(values) = &mut self.values {
            // The text of a number is its exact value.
            if let Some(MetricPoint::Numbers(_, points)) = last_of(values, self.prefix, name)
                && let Ok(value) = value.to_string().parse()
            {
                let labels = owned(labels);
                points.push(NumberPoint { labels, value });
            }
            return;
        }
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
        if let Some(values) = &mut self.values {
            if let Some(MetricPoint::Histograms(points)) = last_of(values, self.prefix, name) {
                points.push(histogram_point(labels, histogram));
            }
            return;
        }
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

/// The points of the metric whose head was written last.
fn last_of<'a>(values: &'a mut [Metric], prefix: &str, name: &str) -> Option<&'a mut MetricPoint> {
    let last = values.last_mut()?;
    let is_own = last.name.strip_prefix(prefix) == Some(name);
    debug_assert!(is_own, "sample of {name} after the head of {}", last.name);
    is_own.then_some(&mut last.points)
}

fn owned(labels: &[(&str, &str)]) -> Vec<(String, String)> {
    let all = labels.iter();
    all.map(|(key, text)| ((*key).to_owned(), (*text).to_owned()))
        .collect()
}

/// The buckets of the snapshot are cumulative.
fn histogram_point(labels: &[(&str, &str)], histogram: &HistogramSnapshot) -> HistogramPoint {
    let mut before = 0;
    let counts = histogram.buckets.iter().map(|(_, count)| *count);
    let buckets = counts.chain([histogram.count]).map(|count| {
        let own = count.saturating_sub(before);
        before = count.max(before);
        own
    });
    HistogramPoint {
        labels: owned(labels),
        buckets: buckets.collect(),
        bounds: histogram.buckets.iter().map(|(bound, _)| *bound).collect(),
        sum: histogram.sum,
        count: histogram.count,
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use control::DurationHistogram;
    use std::time::Duration;

    #[test]
    fn values_are_those_of_the_text() {
        let histogram = DurationHistogram::default();
        for ms in [2, 3, 60_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let write = |page: &mut Page| {
            page.one("a", "gauge", "A", 2.5);
            page.head("b_total", "counter", "B");
            page.sample("b_total", &[("x", "1\"")], 7u64);
            page.sample("b_total", &[("x", "2")], u64::MAX);
            page.head("d", "histogram", "D");
            page.histogram("d", &[("shard", "0")], &histogram.snapshot());
        };
        let mut page = Page::of_values("p_");
        write(&mut page);
        let values = page.into_values();
        let names: Vec<&str> = values.iter().map(|m| m.name.as_str()).collect();
        assert_eq!(names, ["p_a", "p_b_total", "p_d"]);
        let MetricPoint::Numbers(MetricKind::Gauge, a) = &values[0].points else {
            panic!("{:?}", values[0])
        };
        assert_eq!((a[0].value, values[0].help.as_str()), (2.5, "A"));
        let MetricPoint::Numbers(MetricKind::Counter, b) = &values[1].points else {
            panic!("{:?}", values[1])
        };
        assert_eq!((b[0].value, b[1].value), (7.0, u64::MAX as f64));
        assert_eq!(b[0].labels, [("x".to_owned(), "1\"".to_owned())]);
        let MetricPoint::Histograms(d) = &values[2].points else {
            panic!("{:?}", values[2])
        };
        assert_eq!(d[0].buckets.len(), d[0].bounds.len() + 1);
        assert_eq!((d[0].buckets.iter().sum::<u64>(), d[0].count), (3, 3));
        assert_eq!(d[0].buckets.last(), Some(&1));
    }

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
