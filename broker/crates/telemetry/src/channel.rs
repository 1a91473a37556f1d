//! The way of spans from the shards to the thread that exports them.

use crate::span::Span;
use crate::state::ExportCounters;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

enum Message {
    Spans(Vec<Span>, usize),
    Close,
}

/// Takes spans of any thread. Cloning increments a reference count.
#[derive(Clone)]
pub struct SpanSink {
    sender: Sender<Message>,
    waiting: Arc<AtomicUsize>,
    limit: usize,
    counters: Arc<ExportCounters>,
}

impl std::fmt::Debug for SpanSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SpanSink")
            .field("waiting", &self.waiting)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The end of the exporter.
pub struct SpanReceiver {
    receiver: Receiver<Message>,
    waiting: Arc<AtomicUsize>,
}

/// An item for the exporter.
#[derive(Debug)]
pub enum Received {
    /// Spans, and their size in bytes. They count as waiting until [`SpanReceiver::release`].
    Spans(Vec<Span>, usize),
    /// Nothing came in time.
    Idle,
    /// No further spans follow.
    Closed,
}

/// A sink and its receiver. At most `limit` bytes of spans wait; further ones are dropped and counted.
pub fn channel(limit: usize, counters: Arc<ExportCounters>) -> (SpanSink, SpanReceiver) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let waiting = Arc::<AtomicUsize>::default();
    let sink = SpanSink {
        sender,
        waiting: waiting.clone(),
        limit,
        counters,
    };
    (sink, SpanReceiver { receiver, waiting })
}

impl SpanSink {
    /// Gives spans to the exporter. Never waits: spans that exceed the limit are dropped and counted.
    pub fn send(&self, spans: Vec<Span>) {
        let size: usize = spans.iter().map(Span::size).sum();
        let before = self.waiting.fetch_add(size, Ordering::Relaxed);
        if before.saturating_add(size) > self.limit {
            self.waiting.fetch_sub(size, Ordering::Relaxed);
            self.drop_spans(spans.len());
            return;
        }
        // The exporter ends with the process.
        let _ = self.sender.send(Message::Spans(spans, size));
    }

    /// Counts spans that were dropped before they came here.
    pub fn drop_spans(&self, spans: usize) {
        self.counters.add_dropped(spans as u64);
    }

    /// Asks the exporter to end after the spans so far.
    pub fn close(&self) {
        let _ = self.sender.send(Message::Close);
    }
}

impl SpanReceiver {
    /// The next item. Waits for at most `timeout`.
    pub fn next(&self, timeout: Duration) -> Received {
        match self.receiver.recv_timeout(timeout) {
            Ok(Message::Spans(spans, size)) => Received::Spans(spans, size),
            Ok(Message::Close) | Err(RecvTimeoutError::Disconnected) => Received::Closed,
            Err(RecvTimeoutError::Timeout) => Received::Idle,
        }
    }

    /// Spans of this size are exported or dropped.
    pub fn release(&self, size: usize) {
        self.waiting.fetch_sub(size, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::{SpanId, TraceId};
    use crate::span::SpanKind;

    fn span(name: &str) -> Span {
        Span {
            trace: TraceId::from_random([1, 2]),
            id: SpanId::from_random(3),
            parent: None,
            state: None,
            kind: SpanKind::Internal,
            name: name.into(),
            start_ns: 0,
            end_ns: 1,
            attributes: Vec::new(),
            error: None,
        }
    }

    #[test]
    fn spans_beyond_the_limit_are_dropped_until_those_before_are_released() {
        let counters = Arc::<ExportCounters>::default();
        let (sink, receiver) = channel(2 * span("aaaa").size(), counters.clone());
        for name in ["aaaa", "bbbb", "cccc"] {
            sink.send(vec![span(name)]);
        }
        assert_eq!(counters.read().spans_dropped, 1);
        let next = || match receiver.next(Duration::ZERO) {
            Received::Spans(spans, size) => (spans[0].name.to_string(), size),
            other => (format!("{other:?}"), 0),
        };
        let (name, size) = next();
        assert_eq!(name, "aaaa");
        // Spans of a batch that is being retried still count.
        sink.send(vec![span("dddd")]);
        assert_eq!(counters.read().spans_dropped, 2);
        receiver.release(size);
        sink.send(vec![span("eeee")]);
        assert_eq!((next().0, next().0), ("bbbb".into(), "eeee".into()));
        assert_eq!(next().0, "Idle");
        sink.close();
        assert_eq!(next().0, "Closed");
        assert_eq!(counters.read().spans_dropped, 2);
    }
}
