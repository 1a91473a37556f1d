//! The thread that exports metrics.

use crate::ExportParts;
use crate::client::{CollectorClient, CollectorSettings, ExportOutcome};
use crate::health::ExportHealth;
use env::Clock;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use telemetry::{ExportCounters, Metric};

/// Metrics of one moment.
struct Snapshot {
    metrics: Vec<Metric>,
    taken_ns: u64,
}

/// Takes the metrics of one moment after the other. Cloning increments reference counts.
#[derive(Clone)]
pub struct MetricSink {
    sender: SyncSender<Snapshot>,
    clock: Arc<dyn Clock + Send + Sync>,
    counters: Arc<ExportCounters>,
}

impl MetricSink {
    /// Gives metrics to the exporter. Never waits: if earlier ones are still on their way, these are left out and count as
    /// a failed export.
    pub fn send(&self, metrics: Vec<Metric>) {
        let snapshot = Snapshot {
            metrics,
            taken_ns: self.clock.wall().0.saturating_mul(1_000_000),
        };
        if self.sender.try_send(snapshot).is_err() {
            self.counters.add_failed();
        }
    }
}

/// The export of metrics. Its thread ends when all sinks are dropped.
pub struct MetricExporter;

impl MetricExporter {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If a file of the settings cannot be used, or the thread cannot start.
    pub fn start(settings: &CollectorSettings, parts: ExportParts) -> io::Result<MetricSink> {
        let client = CollectorClient::new(settings, "metrics").map_err(io::Error::other)?;
        // One waits while another one is sent.
        let (sender, receiver) = sync_channel(1);
        let sink = MetricSink {
            sender,
            clock: parts.clock.clone(),
            counters: parts.counters.clone(),
        };
        let worker = MetricWorker {
            health: ExportHealth::new("metrics", client.url()),
            client,
            parts,
            receiver,
            accepted_ns: 0,
        };
        let thread = std::thread::Builder::new().name("otlp-metrics".to_owned());
        thread.spawn(move || worker.run())?;
        Ok(sink)
    }
}

struct MetricWorker {
    client: CollectorClient,
    parts: ExportParts,
    receiver: Receiver<Snapshot>,
    health: ExportHealth,
    /// The time of the newest metrics that the collector has accepted, in nanoseconds since 1970.
    accepted_ns: u64,
}

impl MetricWorker {
    fn run(mut self) {
        let mut next = self.receiver.recv().ok();
        while let Some(snapshot) = next {
            next = match self.deliver(snapshot) {
                Some(newer) => Some(newer),
                None => self.receiver.recv().ok(),
            };
        }
    }

    /// Sends metrics; repeats a request that may succeed later, until there are newer ones, which it returns.
    fn deliver(&mut self, snapshot: Snapshot) -> Option<Snapshot> {
        let Snapshot { metrics, taken_ns } = snapshot;
        let resource = &self.parts.resource;
        let body = resource.encode_metrics(metrics, taken_ns, self.accepted_ns);
        let (began, mut failures) = (self.parts.clock.now(), 0);
        loop {
            let outcome = self.client.send(&body);
            self.health.note(&outcome);
            let after = match outcome {
                ExportOutcome::Accepted { .. } => {
                    self.accepted_ns = taken_ns;
                    return None;
                }
                ExportOutcome::Refused(_) => {
                    self.parts.counters.add_failed();
                    return None;
                }
                ExportOutcome::Later(_, after) => after,
            };
            self.parts.counters.add_failed();
            failures += 1;
            if self.parts.clock.now().since(began) > self.parts.backoff.give_up {
                return None;
            }
            let pause = after.unwrap_or_else(|| self.parts.backoff.after(failures));
            match self.receiver.recv_timeout(pause) {
                Ok(newer) => return Some(newer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}
