//! Metrics at one moment.

use crate::TraceId;

/// The kind of a metric with numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// A value that goes up and down.
    Gauge,
    /// A value that only grows from the start of the node on.
    Counter,
}

/// A number with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberPoint {
    /// Names and values of the labels.
    pub labels: Vec<(String, String)>,
    /// The value.
    pub value: f64,
}

/// An observation of a message whose trace is recorded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExemplarPoint {
    /// The trace.
    pub trace: TraceId,
    /// The observation in the unit of the metric.
    pub value: f64,
    /// When it was observed, in nanoseconds since 1970.
    pub at_ns: u64,
}

/// A histogram with its labels.
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramPoint {
    /// Names and values of the labels.
    pub labels: Vec<(String, String)>,
    /// Upper bounds of the buckets, ascending; the last bucket has none.
    pub bounds: Vec<f64>,
    /// Observations in each bucket, one more than `bounds`; not cumulative.
    pub buckets: Vec<u64>,
    /// Sum of all observations.
    pub sum: f64,
    /// Number of all observations.
    pub count: u64,
    /// The newest exemplars, at most one of each bucket.
    pub exemplars: Vec<ExemplarPoint>,
}

/// The points of a metric.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricPoint {
    /// Numbers.
    Numbers(MetricKind, Vec<NumberPoint>),
    /// Histograms since the start of the node.
    Histograms(Vec<HistogramPoint>),
}

/// A metric with all its points.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// The name, as on the page of metrics.
    pub name: String,
    /// The description, as on the page of metrics.
    pub help: String,
    /// Its points.
    pub points: MetricPoint,
}
