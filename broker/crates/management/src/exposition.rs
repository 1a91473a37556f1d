//! Pages of metrics: Prometheus' text format, version 0.0.4, OpenMetrics, version 1.0, or plain values for an export.

use control::{Exemplar, HistogramSnapshot};
use std::fmt::{Display, Write as _};
use telemetry::{ExemplarPoint, HistogramPoint, Metric, MetricKind, MetricPoint, NumberPoint};

/// The text format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextFormat {
    /// Prometheus' text format.
    Prometheus,
    /// OpenMetrics, which has exemplars.
    OpenMetrics,
}

const OPEN_METRICS: &str = "application/openmetrics-text";

impl TextFormat {
    /// The format for a request with this `Accept` header: OpenMetrics if the client asks for it, and does not prefer plain text.
    pub(crate) fn accepted(accept: &str) -> TextFormat {
        let (mut open_metrics, mut plain) = (0.0, 0.0_f32);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default();
            let (mut quality, mut is_known) = (1.0_f32, true);
            for (name, value) in parts.filter_map(|parameter| parameter.split_once('=')) {
                match name.to_ascii_lowercase().as_str() {
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    "version" => is_known = ["0.0.1", "1.0.0"].contains(&value.trim()),
                    _ => {}
                }
            }
            let best = match media_type.to_ascii_lowercase().as_str() {
                OPEN_METRICS if is_known => &mut open_metrics,
                "text/plain" => &mut plain,
                _ => continue,
            };
            *best = quality.max(*best);
        }
        match open_metrics > 0.0 && open_metrics >= plain {
            true => TextFormat::OpenMetrics,
            false => TextFormat::Prometheus,
        }
    }

    pub(crate) fn content_type(self) -> &'static str {
        match self {
            TextFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Builds a page of metrics.
pub(crate) struct Page {
    text: String,
    format: TextFormat,
    /// The metrics as values instead of text. None: the page is text.
    values: Option<Vec<Metric>>,
    /// Prefix of all metric names.
    prefix: &'static str,
}

impl Page {
    pub(crate) fn new(prefix: &'static str, format: TextFormat) -> Page {
        Page {
            text: String::new(),
            format,
            values: None,
            prefix,
        }
    }

    /// A page of values.
    pub(crate) fn of_values(prefix: &'static str) -> Page {
        Page {
            values: Some(Vec::new()),
            ..Page::new(prefix, TextFormat::Prometheus)
        }
    }

    pub(crate) fn into_values(self) -> Vec<Metric> {
        self.values.unwrap_or_default()
    }

    /// Sets the prefix of the following names and returns the previous one.
    pub(crate) fn prefix(&mut self, prefix: &'static str) -> &'static str {
        std::mem::replace(&mut self.prefix, prefix)
    }

    pub(crate) fn into_text(mut self) -> String {
        self.text.push_str(self.end());
        self.text
    }

    /// The last line of the page.
    pub(crate) fn end(&self) -> &'static str {
        match self.format {
            TextFormat::Prometheus => "",
            TextFormat::OpenMetrics => "# EOF\n",
        }
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
        let (family, kind) = match self.format {
            TextFormat::Prometheus => (name, kind),
            TextFormat::OpenMetrics => open_metrics_family(name, kind),
        };
        let _ = write!(
            self.text,
            "# TYPE {prefix}{family} {kind}\n# HELP {prefix}{family} "
        );
        match self.format {
            TextFormat::Prometheus => self.text.push_str(help),
            TextFormat::OpenMetrics => self.push_escaped(help),
        }
        self.text.push('\n');
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
        self.push_sample(name, labels, value);
        self.text.push('\n');
    }

    /// Writes a line without its end.
    fn push_sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
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
        let _ = write!(self.text, " {value}");
    }

    /// Appends an exemplar to the line of a bucket: trace, value, and time in seconds since 1970.
    fn push_exemplar(&mut self, exemplar: &Exemplar) {
        self.text.push_str(" # {trace_id=\"");
        for byte in exemplar.trace.bytes() {
            let _ = write!(self.text, "{byte:02x}");
        }
        let (value, ms) = (exemplar.value, exemplar.at.0);
        let _ = write!(self.text, "\"}} {value} {}.{:03}", ms / 1000, ms % 1000);
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
        let is_open_metrics = self.format == TextFormat::OpenMetrics;
        let bounds = histogram.buckets.iter();
        let bounds = bounds.map(|(bound, count)| match is_open_metrics {
            // A bound is a float there: 1.0 instead of 1.
            true => (format!("{bound:?}"), *count),
            false => (bound.to_string(), *count),
        });
        let all = bounds.chain([("+Inf".to_owned(), histogram.count)]);
        for (at, (bound, count)) in all.enumerate() {
            let bound = ("le", bound.as_str());
            let labels: Vec<_> = labels.iter().copied().chain([bound]).collect();
            self.push_sample(&bucket, &labels, count);
            if is_open_metrics && let Some(Some(exemplar)) = histogram.exemplars.get(at) {
                self.push_exemplar(exemplar);
            }
            self.text.push('\n');
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

/// Name and type of a family in OpenMetrics, where the samples of a counter have the suffix `_total` and the family has not.
fn open_metrics_family<'a>(name: &'a str, kind: &'a str) -> (&'a str, &'a str) {
    match (kind, name.strip_suffix("_total")) {
        ("counter", Some(family)) => (family, kind),
        ("counter" | "untyped", _) => (name, "unknown"),
        _ => (name, kind),
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
        exemplars: histogram
            .exemplars
            .iter()
            .flatten()
            .map(exemplar_point)
            .collect(),
    }
}

fn exemplar_point(exemplar: &Exemplar) -> ExemplarPoint {
    ExemplarPoint {
        trace: exemplar.trace,
        value: exemplar.value,
        at_ns: exemplar.at.0.saturating_mul(1_000_000),
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use control::DurationHistogram;
    use env::WallTime;
    use std::time::Duration;
    use telemetry::TraceId;

    #[test]
    fn values_are_those_of_the_text() {
        let histogram = DurationHistogram::default();
        for ms in [2, 60_000] {
            histogram.observe(Duration::from_millis(ms));
        }
        let trace = TraceId::from_random([0x0102, 0xff]);
        histogram.observe_message(Duration::from_millis(7), Some((trace, WallTime(12))));
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
        let expected = ExemplarPoint {
            trace,
            value: 0.007,
            at_ns: 12_000_000,
        };
        assert_eq!(d[0].exemplars, [expected]);
    }

    #[test]
    fn histogram_ends_with_its_count() {
        let histogram = DurationHistogram::default();
        histogram.observe(Duration::from_millis(2));
        histogram.observe(Duration::from_secs(60));
        let mut page = Page::new("p_", TextFormat::Prometheus);
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
        let mut page = Page::new("p_", TextFormat::Prometheus);
        page.head("m", "gauge", "Help");
        page.sample("m", &[("a", "x\"y\\z\n"), ("b", "é")], 4);
        page.one("n", "counter", "More", 1.5);
        assert_eq!(
            page.into_text(),
            "# TYPE p_m gauge\n# HELP p_m Help\np_m{a=\"x\\\"y\\\\z\\n\",b=\"é\"} 4\n\
             # TYPE p_n counter\n# HELP p_n More\np_n 1.5\n"
        );
    }

    #[test]
    fn exemplars_are_on_open_metrics_pages_only() {
        let histogram = DurationHistogram::default();
        histogram.observe(Duration::from_millis(2));
        let trace = TraceId::from_random([0x0102, 0xff]);
        let at = env::WallTime(1_700_000_000_012);
        histogram.observe_message(Duration::from_millis(800), Some((trace, at)));
        histogram.observe_message(Duration::from_secs(9), Some((trace, at)));
        let write = |format| {
            let mut page = Page::new("p_", format);
            page.head("a_total", "counter", "A \"b\"");
            page.sample("a_total", &[("x", "1")], 7u64);
            page.one("b", "counter", "B", 2);
            page.one("c_info", "untyped", "C", 1);
            page.head("d", "histogram", "D");
            page.histogram("d", &[("x", "1")], &histogram.snapshot());
            page.into_text()
        };
        let plain = write(TextFormat::Prometheus);
        assert!(
            !plain.contains("trace_id") && !plain.contains("EOF"),
            "{plain}"
        );
        for line in [
            "# TYPE p_a_total counter",
            "# HELP p_a_total A \"b\"",
            "# TYPE p_c_info untyped",
            "p_d_bucket{x=\"1\",le=\"1\"} 2",
        ] {
            assert!(plain.lines().any(|l| l == line), "{line}: {plain}");
        }
        let open = write(TextFormat::OpenMetrics);
        let exemplar = "# {trace_id=\"000000000000010200000000000000ff\"}";
        for line in [
            "# TYPE p_a counter",
            "# HELP p_a A \\\"b\\\"",
            "p_a_total{x=\"1\"} 7",
            "# TYPE p_b unknown",
            "# TYPE p_c_info unknown",
            "p_c_info 1",
            "p_d_bucket{x=\"1\",le=\"0.0025\"} 1",
            &format!("p_d_bucket{{x=\"1\",le=\"1.0\"}} 2 {exemplar} 0.8 1700000000.012"),
            "p_d_bucket{x=\"1\",le=\"5.0\"} 2",
            &format!("p_d_bucket{{x=\"1\",le=\"+Inf\"}} 3 {exemplar} 9 1700000000.012"),
            "p_d_sum{x=\"1\"} 9.802",
            "p_d_count{x=\"1\"} 3",
        ] {
            assert!(open.lines().any(|l| l == line), "{line}: {open}");
        }
        assert!(open.ends_with("\n# EOF\n"), "{open}");
    }

    #[test]
    fn open_metrics_is_sent_only_if_it_is_asked_for() {
        // The header of Prometheus 3.
        let prometheus = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
             application/openmetrics-text;version=0.0.1;q=0.5,\
             text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for accept in [
            prometheus,
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=1.0.0; q=0.1",
            "text/plain;q=0.5, application/openmetrics-text;q=0.5",
        ] {
            let format = TextFormat::accepted(accept);
            assert_eq!(format, TextFormat::OpenMetrics, "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/plain",
            "application/json",
            "text/plain, application/openmetrics-text;q=0.9",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=x",
            "application/openmetrics-text;q=NaN",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-textual",
            ";,;q=1,=,application/openmetrics-text;q",
        ] {
            let format = TextFormat::accepted(accept);
            let expected = match accept.ends_with(";q") {
                // A parameter without a value is ignored.
                true => TextFormat::OpenMetrics,
                false => TextFormat::Prometheus,
            };
            assert_eq!(format, expected, "{accept}");
        }
    }
}
