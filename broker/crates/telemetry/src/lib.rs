//! Spans and metrics as plain values, and the way from the threads that make them to the one that exports them.
//!
//! Nothing here knows OTLP or does I/O except [`channel`], whose sender never waits.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod channel;
mod context;
mod metric;
mod span;
mod state;

pub use channel::{Received, SpanReceiver, SpanSink, channel};
pub use context::{SpanId, TraceContext, TraceId};
pub use metric::{ExemplarPoint, HistogramPoint, Metric, MetricKind, MetricPoint, NumberPoint};
pub use span::{Attribute, AttributeValue, Span, SpanKind};
pub use state::{ExportCounters, ExportCounts};
