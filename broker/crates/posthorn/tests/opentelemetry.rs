//! Traces and metrics that a node exports to a collector of the test.

use crate::client::{Client, connect};
use crate::program::{Result, Scratch, Serving, address, eventually, posthorn, serve};
use bytes::BytesMut;
use codec_amqp091::{Method, Properties, encode_body, encode_content_header, encode_method, table};
use message::{Table, Value};
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// Accepts everything.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<ReceivedRequest>>>);

/// Path and body.
type ReceivedRequest = (String, Vec<u8>);

impl Collector {
    fn start() -> Result<(Collector, String)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let collector = Collector::default();
        let own = collector.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let own = own.clone();
                std::thread::spawn(move || own.serve(stream));
            }
        });
        Ok((collector, endpoint))
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        loop {
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_exact(&mut byte).ok()?;
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).ok()?.to_lowercase();
            let (_, length) = head.split_once("content-length: ")?;
            let mut body = vec![0; length.lines().next()?.parse().ok()?];
            stream.read_exact(&mut body).ok()?;
            let path = head.split(' ').nth(1)?.to_owned();
            self.0.lock().ok()?.push((path, body));
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
                .ok()?;
        }
    }

    fn bodies(&self, path: &str) -> Vec<Vec<u8>> {
        let all = self.0.lock().expect("lock");
        let of_path = all.iter().filter(|(p, _)| p == path);
        of_path.map(|(_, body)| body.clone()).collect()
    }

    fn spans(&self) -> Vec<Span> {
        let bodies = self.bodies("/v1/traces").into_iter();
        let requests =
            bodies.map(|body| ExportTraceServiceRequest::decode(&*body).expect("protobuf"));
        let resources = requests.flat_map(|r| r.resource_spans);
        let scopes = resources.flat_map(|r| r.scope_spans);
        scopes.flat_map(|s| s.spans).collect()
    }

    fn wait_for_spans(&self, count: usize) -> Result<Vec<Span>> {
        eventually("the spans", || {
            Some(self.spans()).filter(|spans| spans.len() >= count)
        })
    }
}

fn start(scratch: &Scratch, settings: &[String]) -> Result<(Serving, std::path::PathBuf)> {
    let ready = scratch.0.join("ready");
    let mut command = serve(&scratch.0.join("data"), &ready);
    for setting in settings {
        command.arg("--set").arg(setting);
    }
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    Ok((Serving(child), ready))
}

fn publish(client: &mut Client, to: (&str, &str), headers: &[(&str, &str)]) -> Result<()> {
    let mut all = Table::default();
    for (name, text) in headers {
        all.set(name, Value::from(*text));
    }
    let mut encoded = BytesMut::new();
    table::encode(&all, &mut encoded);
    let mut properties = BytesMut::new();
    let with_headers = Properties::<&str> {
        headers: encoded.get(4..),
        ..Properties::default()
    };
    with_headers.encode(&mut properties);
    client.sent += 1;
    let mut bytes = BytesMut::new();
    let method = Method::BasicPublish {
        exchange: to.0,
        routing_key: to.1,
        mandatory: false,
        immediate: false,
    };
    encode_method(&mut bytes, 1, &method);
    encode_content_header(&mut bytes, 1, 5, &properties);
    encode_body(&mut bytes, 1, b"hello", 4096);
    client.raw(&bytes)
}

fn attribute<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a any_value::Value> {
    let found = attributes.iter().find(|a| a.key == name)?;
    found.value.as_ref()?.value.as_ref()
}

fn text<'a>(span: &'a Span, name: &str) -> &'a str {
    match attribute(&span.attributes, name) {
        Some(any_value::Value::StringValue(text)) => text,
        _ => "",
    }
}

fn parent(flags: &str) -> String {
    format!("00-{TRACE}-{PARENT}-{flags}")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn messages_with_a_sampled_context_have_spans_of_publish_and_delivery() -> Result<()> {
    let scratch = Scratch::new("otel-traces")?;
    let (collector, endpoint) = Collector::start()?;
    let settings = [
        "opentelemetry.traces=true".to_owned(),
        format!("opentelemetry.endpoint={endpoint}"),
        "opentelemetry.resource_attributes.deployment.environment.name=test".to_owned(),
        "cluster.node=traced-node".to_owned(),
    ];
    let (_node, ready) = start(&scratch, &settings)?;
    let address_of = |listener| address(&ready, listener);
    let mut publisher = Client::publisher(&address_of("amqp")?)?;
    publisher.declare("orders", "classic")?;
    publisher.declare("other", "quorum")?;
    let sampled = parent("01");
    let state = ("tracestate", "congo=t61rcWkgMzE");
    publish(
        &mut publisher,
        ("", "orders"),
        &[("traceparent", &sampled), state],
    )?;
    // None of these has a span: not sampled, invalid, none, in another case.
    publish(
        &mut publisher,
        ("", "orders"),
        &[("traceparent", &parent("00"))],
    )?;
    publish(&mut publisher, ("", "orders"), &[("traceparent", "00-xyz")])?;
    publish(&mut publisher, ("", "orders"), &[])?;
    publish(&mut publisher, ("", "orders"), &[("Traceparent", &sampled)])?;
    // To both queues, and to none.
    let bind = |queue| Method::QueueBind {
        queue,
        exchange: "amq.fanout",
        routing_key: "",
        no_wait: false,
        arguments: Table::default(),
    };
    publisher.ask(&bind("orders"), "queue.bind-ok")?;
    publisher.ask(&bind("other"), "queue.bind-ok")?;
    publish(
        &mut publisher,
        ("amq.fanout", "k"),
        &[("traceparent", &sampled)],
    )?;
    publish(
        &mut publisher,
        ("amq.direct", "nowhere"),
        &[("traceparent", &sampled)],
    )?;
    publisher.until_true(|c| c.unconfirmed() == 0)?;

    let spans = collector.wait_for_spans(3)?;
    assert_eq!(spans.len(), 3, "{spans:#?}");
    let named = |spans: &[Span], name: &str| -> Vec<Span> {
        spans.iter().filter(|s| s.name == name).cloned().collect()
    };
    let published = named(&spans, "publish amq.default");
    let [published] = &*published else {
        panic!("{spans:#?}")
    };
    assert_eq!(hex(&published.trace_id), TRACE);
    assert_eq!(hex(&published.parent_span_id), PARENT);
    assert_eq!(
        (published.kind, published.trace_state.as_str()),
        (2, state.1)
    );
    assert!(published.end_time_unix_nano >= published.start_time_unix_nano);
    assert!(published.status.is_none(), "{published:#?}");
    for (name, value) in [
        ("messaging.system", "posthorn"),
        ("messaging.operation.name", "publish"),
        ("messaging.operation.type", "send"),
        ("messaging.destination.name", "orders"),
        ("messaging.rabbitmq.destination.routing_key", "orders"),
        ("network.protocol.name", "amqp"),
        ("network.protocol.version", "0.9.1"),
        ("posthorn.vhost", "/"),
        ("posthorn.queue", "orders"),
    ] {
        assert_eq!(text(published, name), value, "{name}");
    }
    let int = |span: &Span, name| attribute(&span.attributes, name).cloned();
    let size = int(published, "messaging.message.body.size");
    assert_eq!(size, Some(any_value::Value::IntValue(5)));
    for (name, queues) in [("publish amq.fanout", 2), ("publish amq.direct", 0)] {
        let spans = named(&spans, name);
        let routed = int(&spans[0], "posthorn.routed_queues");
        assert_eq!(routed, Some(any_value::Value::IntValue(queues)), "{name}");
    }
    let fanout = &named(&spans, "publish amq.fanout")[0];
    assert_eq!(text(fanout, "messaging.destination.name"), "amq.fanout:k");

    // One consumer acknowledges the first message and ends with the others unsettled.
    let mut consumer = Client::open(&address_of("amqp")?, "guest", "guest", "/")?;
    let consume = |queue, no_ack| Method::BasicConsume {
        queue,
        consumer_tag: "tag",
        no_local: false,
        no_ack,
        exclusive: false,
        no_wait: false,
        arguments: Table::default(),
    };
    consumer.ask(&consume("orders", false), "basic.consume-ok")?;
    consumer.until_true(|c| c.delivered.len() == 6)?;
    let first = consumer.delivered[0].0;
    let ack = Method::BasicAck {
        delivery_tag: first,
        multiple: false,
    };
    consumer.tell(&ack)?;
    let spans = collector.wait_for_spans(4)?;
    let [accepted] = &*named(&spans, "deliver orders") else {
        panic!("{spans:#?}")
    };
    assert_eq!(hex(&accepted.parent_span_id), PARENT);
    assert_eq!(
        (accepted.kind, hex(&accepted.trace_id).as_str()),
        (1, TRACE)
    );
    assert_ne!(accepted.span_id, published.span_id);
    for (name, value) in [
        ("messaging.operation.name", "deliver"),
        ("messaging.operation.type", "process"),
        ("messaging.destination.name", "orders"),
        ("posthorn.queue", "orders"),
        ("posthorn.outcome", "accepted"),
    ] {
        assert_eq!(text(accepted, name), value, "{name}");
    }
    drop(consumer);
    let spans = collector.wait_for_spans(5)?;
    let outcomes: Vec<String> = named(&spans, "deliver orders")
        .iter()
        .map(|span| text(span, "posthorn.outcome").to_owned())
        .collect();
    assert_eq!(outcomes, ["accepted", "requeued"]);

    // A redelivery, without acknowledgement.
    let mut consumer = Client::open(&address_of("amqp")?, "guest", "guest", "/")?;
    consumer.ask(&consume("orders", true), "basic.consume-ok")?;
    let spans = collector.wait_for_spans(6)?;
    let redelivered = named(&spans, "deliver orders");
    let redelivered = attribute(&redelivered[2].attributes, "posthorn.redelivered");
    assert_eq!(redelivered, Some(&any_value::Value::BoolValue(true)));
    // basic.get
    let get = Method::BasicGet {
        queue: "other",
        no_ack: true,
    };
    consumer.tell(&get)?;
    let spans = collector.wait_for_spans(7)?;
    assert_eq!(named(&spans, "deliver other").len(), 1);

    // The context of a request to publish.
    let management = address_of("management")?;
    let http = |body: &str| -> Result<()> {
        let mut stream = connect(&management)?;
        let length = body.len();
        let request = format!(
            "POST /api/exchanges/%2F/amq.default/publish HTTP/1.1\r\nhost: a\r\n\
             authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\ntraceparent: {sampled}\r\ntracestate: x=y\r\n\
             connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        assert!(answer.contains(r#"{"routed":true}"#), "{answer}");
        Ok(())
    };
    let rest = r#""routing_key":"other","payload":"abc","payload_encoding":"string"}"#;
    http(&format!(r#"{{"properties":{{}},{rest}"#))?;
    let unsampled = parent("00");
    let own = format!(r#"{{"properties":{{"headers":{{"traceparent":"{unsampled}"}}}},{rest}"#);
    http(&own)?;
    http(&format!(r#"{{"properties":[],{rest}"#))?;
    let spans = collector.wait_for_spans(9)?;
    assert_eq!(
        spans.len(),
        9,
        "a message with a context keeps it: {spans:#?}"
    );
    let published = named(&spans, "publish amq.default");
    for span in &published[1..] {
        assert_eq!(hex(&span.parent_span_id), PARENT);
        assert_eq!(span.trace_state, "x=y");
        assert!(span.status.is_none(), "{span:#?}");
    }

    let body = &collector.bodies("/v1/traces")[0];
    let request = ExportTraceServiceRequest::decode(&**body)?;
    let resource = request.resource_spans[0]
        .resource
        .clone()
        .unwrap_or_default();
    for (name, value) in [
        ("service.name", "posthorn"),
        ("service.instance.id", "traced-node"),
        ("deployment.environment.name", "test"),
    ] {
        let expected = any_value::Value::StringValue(value.to_owned());
        assert_eq!(
            attribute(&resource.attributes, name),
            Some(&expected),
            "{name}"
        );
    }
    let metrics = page(&address_of("prometheus")?)?;
    for line in [
        "posthorn_otlp_spans_exported_total 9",
        "posthorn_otlp_spans_dropped_total 0",
    ] {
        assert!(metrics.lines().any(|l| l == line), "{line}: {metrics}");
    }
    Ok(())
}

/// The page of metrics.
fn page(address: &str) -> Result<String> {
    let mut stream = connect(address)?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

#[test]
fn spans_are_exported_when_the_node_stops_and_roots_are_sampled() -> Result<()> {
    let scratch = Scratch::new("otel-stop")?;
    let (collector, endpoint) = Collector::start()?;
    let settings = [
        "opentelemetry.traces=true".to_owned(),
        "opentelemetry.traces.sample_ratio=1".to_owned(),
        format!("opentelemetry.endpoint={endpoint}"),
    ];
    let (mut node, ready) = start(&scratch, &settings)?;
    let mut publisher = Client::publisher(&address(&ready, "amqp")?)?;
    publisher.declare("q", "classic")?;
    for _ in 0..3 {
        publish(&mut publisher, ("", "q"), &[])?;
    }
    publish(&mut publisher, ("", "q"), &[("traceparent", &parent("00"))])?;
    publisher.until_true(|c| c.unconfirmed() == 0)?;
    drop(publisher);
    let id = node.0.id().to_string();
    Command::new("kill").args(["-TERM", &id]).status()?;
    assert!(node.0.wait()?.success());
    let spans = collector.spans();
    assert_eq!(
        spans.len(),
        3,
        "the publisher of the last one records no trace: {spans:#?}"
    );
    assert!(
        spans
            .iter()
            .all(|s| s.parent_span_id.is_empty() && s.trace_id.len() == 16)
    );
    assert_ne!(spans[0].trace_id, spans[1].trace_id);
    Ok(())
}

#[test]
fn metrics_are_those_of_the_page() -> Result<()> {
    let scratch = Scratch::new("otel-metrics")?;
    let (collector, endpoint) = Collector::start()?;
    let settings = [
        "opentelemetry.metrics=true".to_owned(),
        "opentelemetry.metrics.interval=1".to_owned(),
        format!("opentelemetry.endpoint={endpoint}"),
    ];
    let (_node, ready) = start(&scratch, &settings)?;
    let mut publisher = Client::publisher(&address(&ready, "amqp")?)?;
    publisher.declare("q", "classic")?;
    publisher.publish_all("q", 3, 10)?;
    let data = |name: &str| {
        let bodies = collector.bodies("/v1/metrics");
        let last = ExportMetricsServiceRequest::decode(&**bodies.last()?).expect("protobuf");
        let metrics = last.resource_metrics[0].scope_metrics[0].metrics.iter();
        let found = metrics.clone().find(|m| m.name == name);
        found.and_then(|m| m.data.clone())
    };
    eventually("the depth of the queue", || {
        match data("rabbitmq_queue_messages_ready")? {
            Data::Gauge(gauge) => {
                use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
                (gauge.data_points[0].value == Some(Value::AsDouble(3.0))).then_some(())
            }
            other => panic!("{other:?}"),
        }
    })?;
    let received = data("rabbitmq_global_messages_received_total");
    assert!(
        matches!(&received, Some(Data::Sum(sum)) if sum.is_monotonic && sum.data_points.len() > 1),
        "{received:?}"
    );
    let writes = data("posthorn_wal_write_duration_seconds");
    let Some(Data::Histogram(writes)) = &writes else {
        panic!("{writes:?}")
    };
    let point = &writes.data_points[0];
    assert_eq!(point.bucket_counts.iter().sum::<u64>(), point.count);
    // Every metric of the page is exported, and no other.
    let page = page(&address(&ready, "prometheus")?)?;
    let of_page = page
        .lines()
        .filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next());
    let of_page: std::collections::BTreeSet<&str> = of_page.collect();
    let bodies = collector.bodies("/v1/metrics");
    let last = ExportMetricsServiceRequest::decode(&**bodies.last().ok_or("none")?)?;
    let metrics = &last.resource_metrics[0].scope_metrics[0].metrics;
    let exported = metrics.iter().map(|m| m.name.as_str()).collect();
    assert_eq!(of_page, exported);
    Ok(())
}

#[test]
fn settings_that_cannot_be_used_stop_the_start() -> Result<()> {
    let scratch = Scratch::new("otel-settings")?;
    for (settings, expected) in [
        (
            &["opentelemetry.traces=true"][..],
            "`opentelemetry.endpoint` is missing: `opentelemetry.traces = true` needs it",
        ),
        (
            &["opentelemetry.endpoint=http://collector:4318"],
            "`opentelemetry.allow_http = true`",
        ),
        (
            &["opentelemetry.endpoint=collector:4318"],
            "`opentelemetry.endpoint`: bad value `collector:4318`; expected a URL",
        ),
        (
            &["opentelemetry.protocol=grpc"],
            "`opentelemetry.protocol`: bad value `grpc`; expected http/protobuf",
        ),
        (
            &["opentelemetry.traces.sample_ratio=1.5"],
            "expected a number from 0 to 1",
        ),
        (
            &["opentelemetry.traces.sample_ratio=NaN"],
            "expected a number from 0 to 1",
        ),
        (
            &["opentelemetry.headers.content-type=x"],
            "`opentelemetry.headers.content-type`: bad value; expected",
        ),
        (
            &[
                "opentelemetry.traces=true",
                "opentelemetry.endpoint=http://127.0.0.1:1",
                "opentelemetry.headers_file=/nonexistent/headers",
            ],
            "`opentelemetry.headers_file`: /nonexistent/headers cannot be read",
        ),
    ] {
        let mut command = posthorn();
        crate::program::serve_arguments(&mut command, &scratch.0.join("d"), &scratch.0.join("r"));
        for setting in settings {
            command.arg("--set").arg(setting);
        }
        let output = command.output()?;
        let stderr = crate::program::stderr(&output);
        assert!(
            !output.status.success() && stderr.contains(expected),
            "{expected}: {stderr}"
        );
    }
    Ok(())
}
