//! The thread that exports spans.

use crate::ExportParts;
use crate::client::{CollectorClient, CollectorSettings, ExportOutcome};
use crate::health::ExportHealth;
use env::Time;
use std::collections::VecDeque;
use std::io;
use std::thread::JoinHandle;
use std::time::Duration;
use telemetry::{Received, Span, SpanReceiver, SpanSink};

/// Most spans of a request.
const BATCH: usize = 512;
/// Time that spans wait for others.
const LINGER: Duration = Duration::from_secs(1);
/// Time without spans after which the exporter looks whether any were dropped.
const IDLE: Duration = Duration::from_secs(10);
/// Time for the spans that are left when the node stops.
const LAST_EXPORTS: Duration = Duration::from_secs(5);

/// The running export of spans.
pub struct TraceExporter {
    sink: SpanSink,
    thread: Option<JoinHandle<()>>,
}

impl TraceExporter {
    /// Starts the thread. At most `buffer` bytes of spans wait for the collector.
    ///
    /// # Errors
    ///
    /// If a file of the settings cannot be used, or the thread cannot start.
    pub fn start(
        settings: &CollectorSettings,
        parts: ExportParts,
        buffer: usize,
    ) -> io::Result<TraceExporter> {
        let client = CollectorClient::new(settings, "traces").map_err(io::Error::other)?;
        let (sink, receiver) = telemetry::channel(buffer, parts.counters.clone());
        let worker = TraceWorker {
            health: ExportHealth::new("traces", client.url()),
            client,
            parts,
            receiver,
            pending: VecDeque::new(),
            reported: 0,
            closed_at: None,
        };
        let thread = std::thread::Builder::new().name("otlp-traces".to_owned());
        let thread = Some(thread.spawn(move || worker.run())?);
        Ok(TraceExporter { sink, thread })
    }

    /// Takes spans of any thread.
    pub fn sink(&self) -> SpanSink {
        self.sink.clone()
    }
}

/// Exports the spans so far, for a few seconds at most, and ends the thread.
impl Drop for TraceExporter {
    fn drop(&mut self) {
        self.sink.close();
        if let Some(thread) = self.thread.take() {
            // A panic would have aborted the process.
            let _ = thread.join();
        }
    }
}

struct TraceWorker {
    client: CollectorClient,
    parts: ExportParts,
    receiver: SpanReceiver,
    /// Spans that are not exported, which the channel still counts, with their sizes.
    pending: VecDeque<(Span, usize)>,
    /// Dropped spans at the last look.
    reported: u64,
    /// The node is stopping since then.
    closed_at: Option<Time>,
    health: ExportHealth,
}

impl TraceWorker {
    fn run(mut self) {
        while self.closed_at.is_none() || !self.pending.is_empty() {
            self.receive_until(self.parts.clock.now() + IDLE, 1);
            // Spans that follow soon go into the same request.
            if !self.pending.is_empty() {
                self.receive_until(self.parts.clock.now() + LINGER, BATCH);
                self.export();
            }
            let total = self.parts.counters.read().spans_dropped;
            self.health.note_dropped(total > self.reported, total);
            self.reported = total;
        }
    }

    /// Receives spans until there are `enough`, until `deadline`, or until the node stops.
    fn receive_until(&mut self, deadline: Time, enough: usize) {
        while self.pending.len() < enough && self.closed_at.is_none() {
            let left = deadline.since(self.parts.clock.now());
            match self.receiver.next(left) {
                Received::Spans(spans, _) => {
                    let sized = spans.into_iter().map(|span| {
                        let size = span.size();
                        (span, size)
                    });
                    self.pending.extend(sized);
                }
                Received::Idle => return,
                Received::Closed => self.closed_at = Some(self.parts.clock.now()),
            }
        }
    }

    /// Exports the oldest spans; repeats a request that may succeed later.
    fn export(&mut self) {
        let count = self.pending.len().min(BATCH);
        let batch: Vec<(Span, usize)> = self.pending.drain(..count).collect();
        let size = batch.iter().map(|(_, size)| size).sum();
        let spans = batch.into_iter().map(|(span, _)| span);
        let body = self.parts.resource.encode_spans(spans);
        self.deliver(&body, count as u64);
        self.receiver.release(size);
    }

    fn deliver(&mut self, body: &[u8], count: u64) {
        let (began, mut failures) = (self.parts.clock.now(), 0);
        loop {
            let now = self.parts.clock.now();
            if self
                .closed_at
                .is_some_and(|at| now.since(at) > LAST_EXPORTS)
            {
                return self.parts.counters.add_dropped(count);
            }
            let outcome = self.client.send(body);
            self.health.note(&outcome);
            match outcome {
                ExportOutcome::Accepted { rejected, .. } => {
                    let rejected = rejected.min(count);
                    self.parts.counters.add_dropped(rejected);
                    return self.parts.counters.add_exported(count - rejected);
                }
                ExportOutcome::Refused(_) => {
                    self.parts.counters.add_failed();
                    return self.parts.counters.add_dropped(count);
                }
                ExportOutcome::Later(_, after) => {
                    self.parts.counters.add_failed();
                    failures += 1;
                    if self.closed_at.is_some()
                        || self.parts.clock.now().since(began) > self.parts.backoff.give_up
                    {
                        return self.parts.counters.add_dropped(count);
                    }
                    let pause = after.unwrap_or_else(|| self.parts.backoff.after(failures));
                    // Spans that come meanwhile stay within the limit of the channel.
                    self.receive_until(self.parts.clock.now() + pause, usize::MAX);
                }
            }
        }
    }
}
