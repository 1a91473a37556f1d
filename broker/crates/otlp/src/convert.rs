//! Spans and metrics as OTLP messages.

use crate::messages::*;
use prost::Message as _;
use telemetry::{
    Attribute, AttributeValue, ExemplarPoint, HistogramPoint, Metric, MetricKind, MetricPoint,
    NumberPoint, Span, SpanKind,
};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`
const CUMULATIVE: i32 = 2;
/// `STATUS_CODE_ERROR`
const ERROR: i32 = 2;
/// Bits of `flags`: sampled, and whether the parent is in another process is known and true.
const FLAGS: u32 = 0x1 | 0x100 | 0x200;

/// The node that the spans and metrics are about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeResource {
    /// Attributes, `service.name` and `service.instance.id` among them.
    pub attributes: Vec<(String, String)>,
    /// The version of the node.
    pub version: String,
    /// Start of the node in nanoseconds since 1970, from which counters count.
    pub started_ns: u64,
}

impl NodeResource {
    fn resource(&self) -> Option<Resource> {
        Some(Resource {
            attributes: labels(&self.attributes),
        })
    }

    fn scope(&self) -> Option<InstrumentationScope> {
        Some(InstrumentationScope {
            name: "posthorn".to_owned(),
            version: self.version.clone(),
        })
    }

    /// `ExportTraceServiceRequest`
    pub(crate) fn encode_spans(&self, spans: impl Iterator<Item = Span>) -> Vec<u8> {
        let request = TracesRequest {
            resource_spans: vec![ResourceSpans {
                resource: self.resource(),
                scope_spans: vec![ScopeSpans {
                    scope: self.scope(),
                    spans: spans.map(span).collect(),
                }],
            }],
        };
        request.encode_to_vec()
    }

    /// `ExportMetricsServiceRequest`. `now_ns` is the time of the values, and `since_ns` that of the values before, whose
    /// exemplars are left out; both in nanoseconds since 1970.
    pub(crate) fn encode_metrics(
        &self,
        metrics: Vec<Metric>,
        now_ns: u64,
        since_ns: u64,
    ) -> Vec<u8> {
        let times = Times {
            started_ns: self.started_ns,
            since_ns,
            now_ns,
        };
        let request = MetricsRequest {
            resource_metrics: vec![ResourceMetrics {
                resource: self.resource(),
                scope_metrics: vec![ScopeMetrics {
                    scope: self.scope(),
                    metrics: metrics.into_iter().map(|m| metric(m, times)).collect(),
                }],
            }],
        };
        request.encode_to_vec()
    }
}

fn key_value(key: String, value: Value) -> KeyValue {
    let value = Some(AnyValue { value: Some(value) });
    KeyValue { key, value }
}

fn labels(labels: &[(String, String)]) -> Vec<KeyValue> {
    let all = labels.iter();
    all.map(|(key, text)| key_value(key.clone(), Value::Text(text.clone())))
        .collect()
}

fn attribute(attribute: Attribute) -> KeyValue {
    let value = match attribute.value {
        AttributeValue::Text(text) => Value::Text(text.into()),
        AttributeValue::Int(number) => Value::Int(number),
        AttributeValue::Bool(is_true) => Value::Bool(is_true),
    };
    key_value(attribute.name.to_owned(), value)
}

fn span(span: Span) -> ProtoSpan {
    let mut attributes: Vec<KeyValue> = span.attributes.into_iter().map(attribute).collect();
    let status = span.error.map(|error| {
        let value = Value::Text(error.to_owned());
        attributes.push(key_value("error.type".to_owned(), value));
        SpanStatus {
            message: error.to_owned(),
            code: ERROR,
        }
    });
    ProtoSpan {
        trace_id: span.trace.bytes().into(),
        span_id: span.id.bytes().into(),
        trace_state: span.state.map(String::from).unwrap_or_default(),
        parent_span_id: span.parent.map_or(Vec::new(), |id| id.bytes().into()),
        name: span.name.into(),
        kind: match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Server => 2,
        },
        start_time_unix_nano: span.start_ns,
        end_time_unix_nano: span.end_ns,
        attributes,
        status,
        flags: if span.parent.is_some() { FLAGS } else { 1 },
    }
}

/// Times of metrics in nanoseconds since 1970.
#[derive(Clone, Copy)]
struct Times {
    /// Start of the node.
    started_ns: u64,
    /// Time of the values that were exported before.
    since_ns: u64,
    /// Time of the values.
    now_ns: u64,
}

fn exemplar(exemplar: &ExemplarPoint) -> ProtoExemplar {
    ProtoExemplar {
        time_unix_nano: exemplar.at_ns,
        as_double: Some(exemplar.value),
        trace_id: exemplar.trace.bytes().into(),
    }
}

fn metric(metric: Metric, times: Times) -> ProtoMetric {
    let Times {
        started_ns,
        since_ns,
        now_ns,
    } = times;
    let number = |point: NumberPoint, start: u64| NumberDataPoint {
        start_time_unix_nano: start,
        time_unix_nano: now_ns,
        as_double: Some(point.value),
        attributes: labels(&point.labels),
    };
    let histogram = |point: HistogramPoint| HistogramDataPoint {
        start_time_unix_nano: started_ns,
        time_unix_nano: now_ns,
        count: point.count,
        sum: Some(point.sum),
        bucket_counts: point.buckets,
        explicit_bounds: point.bounds,
        exemplars: (point.exemplars.iter())
            .filter(|e| e.at_ns >= since_ns)
            .map(exemplar)
            .collect(),
        attributes: labels(&point.labels),
    };
    let data = match metric.points {
        MetricPoint::Numbers(MetricKind::Gauge, points) => Data::Gauge(Gauge {
            data_points: points.into_iter().map(|p| number(p, 0)).collect(),
        }),
        MetricPoint::Numbers(MetricKind::Counter, points) => Data::Sum(Sum {
            data_points: points.into_iter().map(|p| number(p, started_ns)).collect(),
            aggregation_temporality: CUMULATIVE,
            is_monotonic: true,
        }),
        MetricPoint::Histograms(points) => Data::Histogram(Histogram {
            data_points: points.into_iter().map(histogram).collect(),
            aggregation_temporality: CUMULATIVE,
        }),
    };
    ProtoMetric {
        name: metric.name,
        description: metric.help,
        data: Some(data),
    }
}
