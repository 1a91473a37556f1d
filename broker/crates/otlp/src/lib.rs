//! Exports spans and metrics to an OpenTelemetry collector: OTLP over HTTP with protobuf bodies.
//!
//! [`TraceExporter`] and [`MetricExporter`] each have a thread of their own, so that a slow collector delays nothing else.
//! What waits for it is bounded; the rest is dropped and counted.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

mod client;
mod convert;
mod health;
mod messages;
mod metrics;
mod traces;

pub use client::{CollectorSettings, is_header};
pub use convert::NodeResource;
pub use metrics::{MetricExporter, MetricSink};
pub use traces::TraceExporter;

use env::Clock;
use std::sync::Arc;
use std::time::Duration;
use telemetry::ExportCounters;

/// What both exporters need.
#[derive(Clone)]
pub struct ExportParts {
    /// The node.
    pub resource: NodeResource,
    /// Waiting times between attempts.
    pub backoff: Backoff,
    /// Counts what was exported and what was not.
    pub counters: Arc<ExportCounters>,
    /// The clocks of the node.
    pub clock: Arc<dyn Clock + Send + Sync>,
}

/// Waiting times between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure; doubled after each further one.
    pub first: Duration,
    /// The longest.
    pub max: Duration,
    /// A request that has failed for this long is dropped.
    pub give_up: Duration,
}

/// The defaults of the collector's own exporters.
impl Default for Backoff {
    fn default() -> Backoff {
        Backoff {
            first: Duration::from_secs(5),
            max: Duration::from_secs(30),
            give_up: Duration::from_secs(300),
        }
    }
}

impl Backoff {
    /// The time before the attempt that follows this number of failures.
    fn after(&self, failures: u32) -> Duration {
        let doubled = 1u32.checked_shl(failures.saturating_sub(1));
        self.first
            .saturating_mul(doubled.unwrap_or(u32::MAX))
            .min(self.max)
    }
}
