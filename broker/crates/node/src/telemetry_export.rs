//! The export of traces and metrics to an OpenTelemetry collector. Nothing runs while both are off.

use crate::config::OpenTelemetryConfig;
use env::Clock;
use otlp::{Backoff, ExportParts, MetricExporter, MetricSink, NodeResource, TraceExporter};
use shard::SpanSettings;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use telemetry::ExportCounters;

/// The running exports of a node.
#[derive(Default)]
pub(crate) struct TelemetryExport {
    traces: Option<(TraceExporter, f64)>,
    metrics: Option<MetricExport>,
    counters: Option<Arc<ExportCounters>>,
}

/// Where metrics go, and how often.
#[derive(Clone)]
pub struct MetricExport {
    /// Takes the metrics.
    pub sink: MetricSink,
    /// Time between two exports.
    pub interval: Duration,
}

impl TelemetryExport {
    /// Starts the threads of the exports that are on.
    ///
    /// # Errors
    ///
    /// If a file of the settings cannot be used, or a thread cannot start.
    pub(crate) fn start(
        config: &OpenTelemetryConfig,
        (node, version): (&str, &str),
        clock: Arc<dyn Clock + Send + Sync>,
    ) -> io::Result<TelemetryExport> {
        if !config.traces && !config.metrics {
            return Ok(TelemetryExport::default());
        }
        let counters = Arc::<ExportCounters>::default();
        let parts = ExportParts {
            resource: resource(config, (node, version), &*clock),
            backoff: Backoff::default(),
            counters: counters.clone(),
            clock,
        };
        let collector = &config.collector;
        let metrics = match config.metrics {
            true => Some(MetricExport {
                sink: MetricExporter::start(collector, parts.clone())?,
                interval: config.interval,
            }),
            false => None,
        };
        let traces = match config.traces {
            true => {
                let exporter = TraceExporter::start(collector, parts, config.buffer)?;
                Some((exporter, config.sample_ratio))
            }
            false => None,
        };
        Ok(TelemetryExport {
            traces,
            metrics,
            counters: Some(counters),
        })
    }

    /// What a shard needs to record spans. None: traces are off.
    pub(crate) fn spans(&self) -> Option<SpanSettings> {
        let (exporter, sample_ratio) = self.traces.as_ref()?;
        Some(SpanSettings {
            sink: exporter.sink(),
            sample_ratio: *sample_ratio,
        })
    }

    /// None: metrics are off.
    pub(crate) fn metrics(&self) -> Option<MetricExport> {
        self.metrics.clone()
    }

    /// None: both are off.
    pub(crate) fn counters(&self) -> Option<Arc<ExportCounters>> {
        self.counters.clone()
    }
}

/// The attributes of the configuration take precedence over those of the node.
fn resource(
    config: &OpenTelemetryConfig,
    (node, version): (&str, &str),
    clock: &dyn Clock,
) -> NodeResource {
    let mut attributes = config.resource.clone();
    for (name, value) in [
        ("service.name", "posthorn"),
        ("service.instance.id", node),
        ("service.version", version),
    ] {
        let attribute = attributes.entry(name.to_owned());
        attribute.or_insert_with(|| value.to_owned());
    }
    NodeResource {
        attributes: attributes.into_iter().collect(),
        version: version.to_owned(),
        started_ns: clock.wall().0.saturating_mul(1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_of_the_configuration_take_precedence() {
        let mut config = OpenTelemetryConfig::default();
        for (name, value) in [
            ("service.name", "orders"),
            ("deployment.environment.name", "test"),
        ] {
            config.resource.insert(name.to_owned(), value.to_owned());
        }
        let clock = env::real::RealClock::new();
        let resource = resource(&config, ("node-1", "1.2.3"), &clock);
        let shown: Vec<String> = resource
            .attributes
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        assert_eq!(
            shown,
            [
                "deployment.environment.name=test",
                "service.instance.id=node-1",
                "service.name=orders",
                "service.version=1.2.3",
            ]
        );
        assert!(resource.started_ns > 0);
    }
}
