//! Exports to a server of the test, which answers as collectors do and as they should not.
#![forbid(unsafe_code)]

use env::real::RealClock;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use otlp::{Backoff, CollectorSettings, ExportParts, MetricExporter, NodeResource, TraceExporter};
use prost::Message as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;
use telemetry::{
    Attribute, AttributeValue, ExemplarPoint, ExportCounters, ExportCounts, HistogramPoint, Metric,
    MetricKind, MetricPoint, NumberPoint, Span, SpanId, SpanKind, TraceId,
};

/// A request as the server got it.
struct Request {
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
    /// Sends the answer; dropping it closes the connection without one.
    answer: Sender<Vec<u8>>,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        let mut all = self.headers.iter();
        all.find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }

    fn answer(self, status: &str, headers: &str, body: &[u8]) {
        let length = body.len();
        let head = format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n");
        self.answer
            .send([head.as_bytes(), body].concat())
            .expect("the connection waits");
    }

    fn spans(&self) -> Vec<opentelemetry_proto::tonic::trace::v1::Span> {
        let request = ExportTraceServiceRequest::decode(&*self.body).expect("protobuf");
        let resources = request.resource_spans.into_iter();
        let scopes = resources.flat_map(|r| r.scope_spans);
        scopes.flat_map(|s| s.spans).collect()
    }
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// Reads requests until the client closes; `to` gets each and answers it.
fn serve(mut stream: impl Stream, to: &Sender<Request>) {
    let mut buffer = Vec::new();
    loop {
        let (path, headers, begin, length) = loop {
            let mut headers = [httparse::EMPTY_HEADER; 32];
            let mut request = httparse::Request::new(&mut headers);
            if let Ok(httparse::Status::Complete(begin)) = request.parse(&buffer) {
                let path = request.path.unwrap_or_default().to_owned();
                let text = |v: &[u8]| String::from_utf8_lossy(v).into_owned();
                let all = request.headers.iter();
                let all: Vec<_> = all.map(|h| (h.name.to_owned(), text(h.value))).collect();
                let length = all
                    .iter()
                    .find(|(n, _)| n.eq_ignore_ascii_case("content-length"));
                let length = length.and_then(|(_, v)| v.parse().ok()).unwrap_or(0usize);
                if buffer.len() >= begin + length {
                    break (path, all, begin, length);
                }
            }
            let mut part = [0; 4096];
            match stream.read(&mut part) {
                Ok(0) | Err(_) => return,
                Ok(read) => buffer.extend_from_slice(&part[..read]),
            }
        };
        let body = buffer[begin..begin + length].to_vec();
        buffer.drain(..begin + length);
        let (answer, answered) = channel();
        let request = Request {
            path,
            headers,
            body,
            answer,
        };
        if to.send(request).is_err() {
            return;
        }
        let Ok(bytes) = answered.recv() else { return };
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

struct Server {
    address: SocketAddr,
    requests: Receiver<Request>,
}

impl Server {
    fn start() -> Server {
        Server::start_with(serve)
    }

    fn start_with(each: impl Fn(TcpStream, &Sender<Request>) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("port");
        let address = listener.local_addr().expect("address");
        let (to, requests) = channel();
        let each = Arc::new(each);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (to, each) = (to.clone(), each.clone());
                std::thread::spawn(move || each(stream, &to));
            }
        });
        Server { address, requests }
    }

    /// The next request. The time is that of a test that hangs.
    fn next(&self) -> Request {
        let within = Duration::from_secs(60);
        self.requests.recv_timeout(within).expect("a request")
    }

    fn settings(&self) -> CollectorSettings {
        CollectorSettings {
            endpoint: format!("http://{}", self.address),
            cacertfile: None,
            headers: vec![("x-tenant".to_owned(), "a".to_owned())],
            headers_file: None,
            timeout: Duration::from_secs(30),
        }
    }
}

fn parts() -> ExportParts {
    ExportParts {
        resource: NodeResource {
            attributes: vec![
                ("service.name".to_owned(), "posthorn".to_owned()),
                ("service.instance.id".to_owned(), "n1".to_owned()),
            ],
            version: "1.2.3".to_owned(),
            started_ns: 5,
        },
        backoff: Backoff {
            first: Duration::from_millis(1),
            max: Duration::from_millis(2),
            give_up: Duration::from_secs(3600),
        },
        counters: Arc::default(),
        clock: Arc::new(RealClock::new()),
    }
}

const BUFFER: usize = 1 << 20;

fn exporter(settings: &CollectorSettings, parts: &ExportParts) -> TraceExporter {
    TraceExporter::start(settings, parts.clone(), BUFFER).expect("started")
}

fn span(name: &str) -> Span {
    Span {
        trace: TraceId::from_random([1, 2]),
        id: SpanId::from_random(3),
        parent: Some(SpanId::from_random(4)),
        state: Some("a=b".into()),
        kind: SpanKind::Server,
        name: name.into(),
        start_ns: 10,
        end_ns: 20,
        attributes: vec![
            Attribute::text("messaging.system", "posthorn"),
            Attribute::int("messaging.message.body.size", 7),
            Attribute {
                name: "posthorn.redelivered",
                value: AttributeValue::Bool(true),
            },
        ],
        error: Some("rejected"),
    }
}

/// Waits until the counters have this value. Another thread counts, after the answer.
fn wait_for(counters: &ExportCounters, expected: ExportCounts) {
    let until = std::time::Duration::from_secs(60);
    let (_keep, never) = channel::<()>();
    for _ in 0..until.as_millis() / 5 {
        if counters.read() == expected {
            return;
        }
        let _ = never.recv_timeout(Duration::from_millis(5));
    }
    assert_eq!(counters.read(), expected);
}

fn counts(spans_exported: u64, spans_dropped: u64, failed_exports: u64) -> ExportCounts {
    ExportCounts {
        spans_exported,
        spans_dropped,
        failed_exports,
    }
}

#[test]
fn spans_arrive_with_all_their_fields() {
    let (server, parts) = (Server::start(), parts());
    let directory = authority::Dir::new("otlp_headers").expect("directory");
    let text = "# secrets\n\nauthorization: Bearer s3cret\n";
    let mut settings = server.settings();
    settings.headers_file = Some(directory.write("headers", text).expect("written"));
    let exporter = exporter(&settings, &parts);
    exporter
        .sink()
        .send(vec![span("publish a"), span("publish b")]);
    let request = server.next();
    assert_eq!(request.path, "/v1/traces");
    assert_eq!(
        request.header("content-type"),
        Some("application/x-protobuf")
    );
    assert_eq!(request.header("x-tenant"), Some("a"));
    assert_eq!(request.header("authorization"), Some("Bearer s3cret"));
    let decoded = ExportTraceServiceRequest::decode(&*request.body).expect("protobuf");
    let resource = decoded.resource_spans[0]
        .resource
        .as_ref()
        .expect("resource");
    let names: Vec<&str> = resource.attributes.iter().map(|a| a.key.as_str()).collect();
    assert_eq!(names, ["service.name", "service.instance.id"]);
    let scope = &decoded.resource_spans[0].scope_spans[0];
    assert_eq!(
        scope.scope.as_ref().map(|s| s.version.as_str()),
        Some("1.2.3")
    );
    let spans = request.spans();
    assert_eq!(spans.len(), 2);
    let first = &spans[0];
    assert_eq!(first.trace_id, TraceId::from_random([1, 2]).bytes());
    assert_eq!(first.span_id, SpanId::from_random(3).bytes());
    assert_eq!(first.parent_span_id, SpanId::from_random(4).bytes());
    assert_eq!(
        (first.trace_state.as_str(), first.name.as_str()),
        ("a=b", "publish a")
    );
    assert_eq!((first.kind, first.flags), (2, 0x301));
    assert_eq!(
        (first.start_time_unix_nano, first.end_time_unix_nano),
        (10, 20)
    );
    let status = first.status.as_ref().expect("status");
    assert_eq!((status.code, status.message.as_str()), (2, "rejected"));
    let values: Vec<(&str, Value)> = first
        .attributes
        .iter()
        .map(|a| {
            (
                a.key.as_str(),
                a.value.clone().and_then(|v| v.value).expect("value"),
            )
        })
        .collect();
    let text = |text: &str| Value::StringValue(text.to_owned());
    assert_eq!(
        values,
        [
            ("messaging.system", text("posthorn")),
            ("messaging.message.body.size", Value::IntValue(7)),
            ("posthorn.redelivered", Value::BoolValue(true)),
            ("error.type", text("rejected")),
        ]
    );
    request.answer("200 OK", "", b"");
    wait_for(&parts.counters, counts(2, 0, 0));
}

#[test]
fn errors_that_may_pass_are_retried_with_the_same_spans() {
    let (server, parts) = (Server::start(), parts());
    let exporter = exporter(&server.settings(), &parts);
    exporter.sink().send(vec![span("a")]);
    for status in ["503 Busy", "429 Slow down", "502 Gateway", "504 Late"] {
        let request = server.next();
        assert_eq!(request.spans().len(), 1);
        let after = if status.starts_with("429") {
            "retry-after: 0\r\n"
        } else {
            ""
        };
        request.answer(status, after, b"not protobuf");
    }
    // Without an answer.
    drop(server.next());
    server.next().answer("200 OK", "", b"");
    wait_for(&parts.counters, counts(1, 0, 5));
}

#[test]
fn refused_spans_are_dropped_and_later_ones_are_sent() {
    let (server, parts) = (Server::start(), parts());
    let exporter = exporter(&server.settings(), &parts);
    let statuses = [
        "400 Bad",
        "401 Who",
        "404 Where",
        "413 Big",
        "500 Broken",
        "301 Moved",
    ];
    for (n, status) in (1..).zip(statuses) {
        exporter.sink().send(vec![span(status)]);
        let request = server.next();
        assert_eq!(request.spans()[0].name, status);
        request.answer(
            status,
            "location: http://127.0.0.1:1/\r\n",
            &[0xff; 100_000],
        );
        wait_for(&parts.counters, counts(0, n, n));
    }
    exporter.sink().send(vec![span("good")]);
    server.next().answer("200 OK", "", b"");
    wait_for(&parts.counters, counts(1, 6, 6));
}

#[test]
fn partial_success_counts_rejected_spans() {
    let (server, parts) = (Server::start(), parts());
    let exporter = exporter(&server.settings(), &parts);
    for (rejected, expected) in [
        (2, counts(1, 2, 0)),
        (99, counts(1, 5, 0)),
        (-1, counts(4, 5, 0)),
    ] {
        exporter.sink().send(vec![span("a"), span("b"), span("c")]);
        let answer = ExportTraceServiceResponse {
            partial_success: Some(ExportTracePartialSuccess {
                rejected_spans: rejected,
                error_message: "too old".to_owned(),
            }),
        };
        server.next().answer("200 OK", "", &answer.encode_to_vec());
        wait_for(&parts.counters, expected);
    }
}

#[test]
fn spans_beyond_the_buffer_are_dropped_while_the_collector_is_slow() {
    let (server, parts) = (Server::start(), parts());
    let buffer = 10 * span("a").size();
    let exporter = TraceExporter::start(&server.settings(), parts.clone(), buffer).expect("starts");
    let sink = exporter.sink();
    sink.send(vec![span("a")]);
    let held = server.next();
    for _ in 0..15 {
        sink.send(vec![span("a")]);
    }
    // One is on its way and nine wait.
    wait_for(&parts.counters, counts(0, 6, 0));
    held.answer("200 OK", "", b"");
    let rest = server.next();
    assert_eq!(rest.spans().len(), 9);
    rest.answer("200 OK", "", b"");
    wait_for(&parts.counters, counts(10, 6, 0));
}

#[test]
fn collector_that_is_gone_delays_neither_the_sink_nor_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("port");
    let address = listener.local_addr().expect("address");
    drop(listener);
    let mut parts = parts();
    // The pause after the failure is longer than the test.
    parts.backoff.first = Duration::from_secs(3600);
    parts.backoff.max = Duration::from_secs(3600);
    let server = Server {
        address,
        requests: channel().1,
    };
    let exporter = exporter(&server.settings(), &parts);
    exporter.sink().send(vec![span("a")]);
    wait_for(&parts.counters, counts(0, 0, 1));
    exporter.sink().send(vec![span("b")]);
    drop(exporter);
    let read = parts.counters.read();
    assert_eq!((read.spans_exported, read.spans_dropped), (0, 2));
}

#[test]
fn spans_so_far_are_exported_at_the_end() {
    let (server, parts) = (Server::start(), parts());
    let exporter = exporter(&server.settings(), &parts);
    exporter.sink().send((0..600).map(|_| span("a")).collect());
    let end = std::thread::spawn(move || drop(exporter));
    let mut sizes = Vec::new();
    for _ in 0..2 {
        let request = server.next();
        sizes.push(request.spans().len());
        request.answer("200 OK", "", b"");
    }
    assert_eq!(sizes, [512, 88]);
    end.join().expect("ended");
    assert_eq!(parts.counters.read(), counts(600, 0, 0));
}

#[test]
fn collector_with_tls_needs_a_certificate_of_the_authority() {
    let authority = authority::Authority::new("collectors").expect("authority");
    let issued = authority
        .issue("collector", &["localhost"])
        .expect("issued");
    let directory = authority::Dir::new("otlp_tls").expect("directory");
    let ca = directory.write("ca.pem", authority.pem()).expect("written");
    let config = {
        use rustls_pki_types::pem::PemObject as _;
        let certificate =
            rustls_pki_types::CertificateDer::from_pem_slice(issued.certificate.as_bytes());
        let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(issued.key.as_bytes());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider);
        let config = config
            .with_safe_default_protocol_versions()
            .expect("versions");
        let config = config.with_no_client_auth();
        let certificates = vec![certificate.expect("certificate")];
        Arc::new(
            config
                .with_single_cert(certificates, key.expect("key"))
                .expect("pair"),
        )
    };
    let server = Server::start_with(move |stream, to| {
        let connection = rustls::ServerConnection::new(config.clone()).expect("connection");
        serve(rustls::StreamOwned::new(connection, stream), to);
    });
    let mut settings = server.settings();
    settings.endpoint = format!("https://localhost:{}", server.address.port());
    settings.cacertfile = Some(ca);
    let good = parts();
    let trusting = exporter(&settings, &good);
    trusting.sink().send(vec![span("a")]);
    server.next().answer("200 OK", "", b"");
    wait_for(&good.counters, counts(1, 0, 0));

    let other = authority::Authority::new("others").expect("authority");
    settings.cacertfile = Some(directory.write("other.pem", other.pem()).expect("written"));
    let mut bad = parts();
    bad.backoff.max = Duration::from_secs(3600);
    bad.backoff.first = Duration::from_secs(3600);
    let distrusting = exporter(&settings, &bad);
    distrusting.sink().send(vec![span("a")]);
    wait_for(&bad.counters, counts(0, 0, 1));
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let server = Server::start();
    let directory = authority::Dir::new("otlp_files").expect("directory");
    let refused = |settings: &CollectorSettings| {
        let started = TraceExporter::start(settings, parts(), BUFFER);
        started.map(|_| ()).expect_err("refused").to_string()
    };
    let mut settings = server.settings();
    for (name, text) in [
        ("a", "authorization Bearer s3cret"),
        ("b", "a: b\nauthorization: s3cret\u{7f}\n"),
        ("c", "content-type: s3cret"),
        ("d", "s3 cret: x"),
    ] {
        settings.headers_file = Some(directory.write(name, text).expect("written"));
        let error = refused(&settings);
        assert!(
            error.contains("`opentelemetry.headers_file`: line "),
            "{error}"
        );
        assert!(
            !error.contains("cret"),
            "the error shows the secret: {error}"
        );
    }
    settings.headers_file = Some(directory.path("missing"));
    assert!(refused(&settings).contains("cannot be read"));
    let mut settings = server.settings();
    settings.endpoint = "https://localhost:1".to_owned();
    settings.cacertfile = Some(directory.write("ca", "nothing").expect("written"));
    let error = refused(&settings);
    assert!(error.contains("`opentelemetry.cacertfile`"), "{error}");
    assert!(error.contains("has no certificate"), "{error}");
}

fn number(name: &str, kind: MetricKind, value: f64) -> Metric {
    Metric {
        name: name.to_owned(),
        help: "Help".to_owned(),
        points: MetricPoint::Numbers(
            kind,
            vec![NumberPoint {
                labels: vec![("protocol".to_owned(), "amqp".to_owned())],
                value,
            }],
        ),
    }
}

#[test]
fn metrics_arrive_and_newer_ones_replace_those_that_fail() {
    let (server, parts) = (Server::start(), parts());
    let sink = MetricExporter::start(&server.settings(), parts.clone()).expect("started");
    let trace = TraceId::from_random([3, 4]);
    let exemplar = ExemplarPoint {
        trace,
        value: 0.25,
        at_ns: 12_000_000,
    };
    let histogram = Metric {
        name: "h".to_owned(),
        help: "Durations".to_owned(),
        points: MetricPoint::Histograms(vec![HistogramPoint {
            labels: Vec::new(),
            bounds: vec![0.5, 1.0],
            buckets: vec![1, 0, 2],
            sum: 4.5,
            count: 3,
            exemplars: vec![exemplar],
        }]),
    };
    sink.send(vec![
        number("g", MetricKind::Gauge, 2.5),
        number("c_total", MetricKind::Counter, 7.0),
        histogram,
    ]);
    let request = server.next();
    assert_eq!(request.path, "/v1/metrics");
    let decoded = ExportMetricsServiceRequest::decode(&*request.body).expect("protobuf");
    let metrics = &decoded.resource_metrics[0].scope_metrics[0].metrics;
    let names: Vec<&str> = metrics.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(names, ["g", "c_total", "h"]);
    let Some(Data::Gauge(gauge)) = &metrics[0].data else {
        panic!("{:?}", metrics[0])
    };
    let expected = opentelemetry_proto::tonic::metrics::v1::number_data_point::Value::AsDouble(2.5);
    assert_eq!(gauge.data_points[0].value, Some(expected));
    assert_eq!(gauge.data_points[0].attributes[0].key, "protocol");
    assert!(gauge.data_points[0].time_unix_nano > 0);
    let Some(Data::Sum(sum)) = &metrics[1].data else {
        panic!("{:?}", metrics[1])
    };
    assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
    assert_eq!(sum.data_points[0].start_time_unix_nano, 5);
    let Some(Data::Histogram(histogram)) = &metrics[2].data else {
        panic!("{:?}", metrics[2])
    };
    let point = &histogram.data_points[0];
    assert_eq!((point.count, point.sum), (3, Some(4.5)));
    assert_eq!(
        (&*point.bucket_counts, &*point.explicit_bounds),
        (&[1, 0, 2][..], &[0.5, 1.0][..])
    );
    let [sent] = &*point.exemplars else {
        panic!("{:?}", point.exemplars)
    };
    assert_eq!(sent.trace_id, trace.bytes());
    assert_eq!(sent.time_unix_nano, 12_000_000);
    let value = opentelemetry_proto::tonic::metrics::v1::exemplar::Value::AsDouble(0.25);
    assert_eq!(sent.value, Some(value));

    // The newer ones wait when the older ones fail.
    sink.send(vec![number("newer", MetricKind::Gauge, 1.0)]);
    sink.send(vec![number("too many", MetricKind::Gauge, 1.0)]);
    request.answer("503 Busy", "retry-after: 3600\r\n", b"");
    let request = server.next();
    let decoded = ExportMetricsServiceRequest::decode(&*request.body).expect("protobuf");
    let metrics = &decoded.resource_metrics[0].scope_metrics[0].metrics;
    assert_eq!(metrics[0].name, "newer");
    request.answer("400 Bad", "", b"");
    wait_for(&parts.counters, counts(0, 0, 3));
    sink.send(vec![number("last", MetricKind::Gauge, 1.0)]);
    server.next().answer("200 OK", "", b"");
}

#[test]
fn exemplar_is_sent_until_the_collector_has_accepted_it() {
    let (server, parts) = (Server::start(), parts());
    let sink = MetricExporter::start(&server.settings(), parts.clone()).expect("started");
    let mut exemplar = ExemplarPoint {
        trace: TraceId::from_random([3, 4]),
        value: 0.25,
        at_ns: 1,
    };
    let sent = |answer: &str, exemplar: ExemplarPoint| {
        sink.send(vec![Metric {
            name: "h".to_owned(),
            help: "Durations".to_owned(),
            points: MetricPoint::Histograms(vec![HistogramPoint {
                labels: Vec::new(),
                bounds: vec![0.5],
                buckets: vec![1, 0],
                sum: 0.25,
                count: 1,
                exemplars: vec![exemplar],
            }]),
        }]);
        let request = server.next();
        let decoded = ExportMetricsServiceRequest::decode(&*request.body).expect("protobuf");
        let metric = &decoded.resource_metrics[0].scope_metrics[0].metrics[0];
        let Some(Data::Histogram(histogram)) = &metric.data else {
            panic!("{metric:?}")
        };
        let count = histogram.data_points[0].exemplars.len();
        request.answer(answer, "", b"");
        count
    };
    assert_eq!(sent("400 Bad", exemplar), 1);
    assert_eq!(sent("200 OK", exemplar), 1);
    assert_eq!(sent("200 OK", exemplar), 0);
    exemplar.at_ns = u64::MAX;
    assert_eq!(sent("200 OK", exemplar), 1);
}
