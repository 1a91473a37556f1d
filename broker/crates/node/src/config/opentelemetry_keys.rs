//! Keys of the export to an OpenTelemetry collector.

use super::keys::{BOOL, ConfigKey, PATH, filled, number, path};
use super::values::{parse_bool, parse_bytes};
use auth_backends::is_safe_url;
use otlp::CollectorSettings;
use std::collections::BTreeMap;
use std::time::Duration;

/// The export of traces and metrics. Both are off by default.
#[derive(Clone, Debug, PartialEq)]
pub struct OpenTelemetryConfig {
    /// The collector; its endpoint is empty by default.
    pub collector: CollectorSettings,
    /// The endpoint may be without TLS on another machine.
    pub allow_http: bool,
    /// Attributes of the resource besides those of the node.
    pub resource: BTreeMap<String, String>,
    /// Spans are exported.
    pub traces: bool,
    /// The share of messages without a trace context that begin a trace; 0 to 1.
    pub sample_ratio: f64,
    /// Bytes of spans that may wait for the collector.
    pub buffer: usize,
    /// Metrics are exported.
    pub metrics: bool,
    /// Time between two exports of metrics.
    pub interval: Duration,
}

impl Default for OpenTelemetryConfig {
    fn default() -> OpenTelemetryConfig {
        OpenTelemetryConfig {
            collector: CollectorSettings {
                endpoint: String::new(),
                cacertfile: None,
                headers: Vec::new(),
                headers_file: None,
                timeout: Duration::from_secs(10),
            },
            allow_http: false,
            resource: BTreeMap::new(),
            traces: false,
            sample_ratio: 0.0,
            buffer: 8 << 20,
            metrics: false,
            interval: Duration::from_secs(60),
        }
    }
}

impl OpenTelemetryConfig {
    /// Missing or contradictory keys.
    pub(super) fn check(&self) -> Vec<String> {
        let mut errors = Vec::new();
        let endpoint = &self.collector.endpoint;
        for (name, is_on) in [("traces", self.traces), ("metrics", self.metrics)] {
            if is_on && endpoint.is_empty() {
                errors.push(format!(
                    "`opentelemetry.endpoint` is missing: `opentelemetry.{name} = true` needs it"
                ));
            }
        }
        if endpoint.starts_with("http://") && !self.allow_http && !is_safe_url(endpoint) {
            let text = "`opentelemetry.endpoint` has no TLS and is not on this machine: use https, or set \
                        `opentelemetry.allow_http = true` if the network is trusted";
            errors.push(text.to_owned());
        }
        errors
    }
}

/// A URL without a query. `/v1/traces` and `/v1/metrics` are appended to its path.
fn endpoint(text: &str) -> Option<String> {
    let rest = text
        .strip_prefix("https://")
        .or(text.strip_prefix("http://"))?;
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '?' | '#' | '@');
    let is_url = filled(rest).is_some() && rest.chars().all(is_plain) && !rest.starts_with('/');
    is_url.then(|| text.trim_end_matches('/').to_owned())
}

/// The name of an attribute: printable and without spaces.
fn attribute_name(text: &str) -> Option<String> {
    filled(text).filter(|t| t.chars().all(|c| c.is_ascii_graphic()))
}

/// All keys, in the order of the reference.
pub(super) const OPENTELEMETRY_KEYS: &[ConfigKey] = &[
    ConfigKey {
        name: "opentelemetry.endpoint",
        accepts: "a URL with http or https, without a query",
        default: "",
        doc: "OTLP/HTTP endpoint of an OpenTelemetry collector; `/v1/traces` and `/v1/metrics` are \
              appended. Plain http needs an address of this machine or `opentelemetry.allow_http`.",
        set: |c, _, v| endpoint(v).map(|e| c.opentelemetry.collector.endpoint = e),
    },
    ConfigKey {
        name: "opentelemetry.protocol",
        accepts: "http/protobuf",
        default: "http/protobuf",
        doc: "Protocol of the export: OTLP over HTTP with protobuf bodies.",
        set: |_, _, v| (v == "http/protobuf").then_some(()),
    },
    ConfigKey {
        name: "opentelemetry.allow_http",
        accepts: BOOL,
        default: "false",
        doc: "Allows an endpoint without TLS on another machine.",
        set: |c, _, v| parse_bool(v).map(|b| c.opentelemetry.allow_http = b),
    },
    ConfigKey {
        name: "opentelemetry.cacertfile",
        accepts: PATH,
        default: "",
        doc: "PEM file of the authorities that sign the collector's certificate, instead of those of \
              the operating system; read at the start.",
        set: |c, _, v| path(v).map(|p| c.opentelemetry.collector.cacertfile = Some(p)),
    },
    ConfigKey {
        name: "opentelemetry.headers_file",
        accepts: PATH,
        default: "",
        doc: "File with headers of each request, `name: value` in each line, for access tokens; read at \
              the start.",
        set: |c, _, v| path(v).map(|p| c.opentelemetry.collector.headers_file = Some(p)),
    },
    ConfigKey {
        name: "opentelemetry.headers.*",
        accepts: "the value of an HTTP header",
        default: "",
        doc: "Header of each request that is no secret; `*` is its name.",
        set: |c, name, v| {
            otlp::is_header(name, v).then(|| {
                let headers = &mut c.opentelemetry.collector.headers;
                headers.retain(|(n, _)| n != name);
                headers.push((name.to_owned(), v.to_owned()));
            })
        },
    },
    ConfigKey {
        name: "opentelemetry.timeout",
        accepts: "seconds, 1 to 300",
        default: "10",
        doc: "Longest time of a request to the collector.",
        set: |c, _, v| {
            number(v, 1, 300).map(|s| c.opentelemetry.collector.timeout = Duration::from_secs(s))
        },
    },
    ConfigKey {
        name: "opentelemetry.resource_attributes.*",
        accepts: "a text of 1 to 255 bytes",
        default: "",
        doc: "Attribute of the exporting resource; `*` is its name. By default `service.name` is \
              `posthorn` and `service.instance.id` the name of the node.",
        set: |c, name, v| {
            let (name, value) = (attribute_name(name)?, filled(v)?);
            c.opentelemetry.resource.insert(name, value);
            Some(())
        },
    },
    ConfigKey {
        name: "opentelemetry.traces",
        accepts: BOOL,
        default: "false",
        doc: "Exports spans of messages whose publisher records a trace.",
        set: |c, _, v| parse_bool(v).map(|b| c.opentelemetry.traces = b),
    },
    ConfigKey {
        name: "opentelemetry.traces.sample_ratio",
        accepts: "a number from 0 to 1",
        default: "0",
        doc: "Share of messages without a trace context for which the node begins a trace.",
        set: |c, _, v| number(v, 0.0, 1.0).map(|n| c.opentelemetry.sample_ratio = n),
    },
    ConfigKey {
        name: "opentelemetry.traces.buffer",
        accepts: "64 KiB to 1 GiB, in bytes or with a unit",
        default: "8MiB",
        doc: "Spans that may wait for the collector. Further ones are dropped, counted and logged.",
        set: |c, _, v| {
            let bytes = parse_bytes(v).filter(|b| (64 << 10..=1 << 30).contains(b))?;
            c.opentelemetry.buffer = usize::try_from(bytes).ok()?;
            Some(())
        },
    },
    ConfigKey {
        name: "opentelemetry.metrics",
        accepts: BOOL,
        default: "false",
        doc: "Exports the metrics of `/metrics`.",
        set: |c, _, v| parse_bool(v).map(|b| c.opentelemetry.metrics = b),
    },
    ConfigKey {
        name: "opentelemetry.metrics.interval",
        accepts: "seconds, 1 to 3600",
        default: "60",
        doc: "Time between two exports of metrics.",
        set: |c, _, v| {
            number(v, 1, 3600).map(|s| c.opentelemetry.interval = Duration::from_secs(s))
        },
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_a_url_without_a_query() {
        for good in [
            "http://127.0.0.1:4318",
            "https://collector.example/otlp",
            "http://[::1]:4318",
        ] {
            assert_eq!(endpoint(good).as_deref(), Some(good));
            assert_eq!(endpoint(&format!("{good}/")).as_deref(), Some(good));
        }
        let long = format!("http://{}", "x".repeat(300));
        for bad in [
            "",
            "localhost:4318",
            "grpc://c:4317",
            "http://",
            "http:///v1",
            "http://c?x",
            "http://c#x",
            "http://user:secret@c",
            "http://a b",
            "http://a\nb",
            &long,
        ] {
            assert_eq!(endpoint(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn contradictory_keys_are_named() {
        let mut config = OpenTelemetryConfig::default();
        assert_eq!(config.check(), Vec::<String>::new());
        (config.traces, config.metrics) = (true, true);
        let errors = config.check().join("\n");
        for key in ["traces", "metrics"] {
            assert!(
                errors.contains(&format!("`opentelemetry.{key} = true`")),
                "{errors}"
            );
        }
        config.collector.endpoint = "http://127.0.0.1:4318".to_owned();
        assert_eq!(config.check(), Vec::<String>::new());
        config.collector.endpoint = "http://collector:4318".to_owned();
        assert!(config.check()[0].contains("`opentelemetry.allow_http = true`"));
        config.allow_http = true;
        assert_eq!(config.check(), Vec::<String>::new());
    }
}
