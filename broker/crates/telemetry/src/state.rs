//! Counters of the export, which all threads share.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what was exported and what was not.
#[derive(Debug, Default)]
pub struct ExportCounters {
    spans_exported: AtomicU64,
    spans_dropped: AtomicU64,
    failed_exports: AtomicU64,
}

/// The values of [`ExportCounters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExportCounts {
    /// Spans that the collector has accepted.
    pub spans_exported: u64,
    /// Spans that exceeded a limit, or that the collector refused.
    pub spans_dropped: u64,
    /// Requests with traces or metrics that failed, each attempt counted.
    pub failed_exports: u64,
}

impl ExportCounters {
    /// The collector has accepted spans.
    pub fn add_exported(&self, spans: u64) {
        self.spans_exported.fetch_add(spans, Ordering::Relaxed);
    }

    /// Spans are lost.
    pub fn add_dropped(&self, spans: u64) {
        self.spans_dropped.fetch_add(spans, Ordering::Relaxed);
    }

    /// A request has failed.
    pub fn add_failed(&self) {
        self.failed_exports.fetch_add(1, Ordering::Relaxed);
    }

    /// The values now.
    pub fn read(&self) -> ExportCounts {
        ExportCounts {
            spans_exported: self.spans_exported.load(Ordering::Relaxed),
            spans_dropped: self.spans_dropped.load(Ordering::Relaxed),
            failed_exports: self.failed_exports.load(Ordering::Relaxed),
        }
    }
}
