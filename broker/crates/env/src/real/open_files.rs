//! Number of open files of a data directory, and the limit of files that stay open.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters shared by a data directory and its open files.
#[derive(Debug)]
pub struct OpenFiles {
    open: AtomicU64,
    /// While more files than this are open, none stays open between two writes.
    limit: AtomicU64,
    /// The value of `limit` while descriptors are not short.
    bound: AtomicU64,
    /// Calls that failed for lack of descriptors or memory since the last [`OpenFiles::take_failures`].
    failures: AtomicU64,
}

impl Default for OpenFiles {
    fn default() -> OpenFiles {
        OpenFiles {
            open: AtomicU64::new(0),
            limit: AtomicU64::new(u64::MAX),
            bound: AtomicU64::new(u64::MAX),
            failures: AtomicU64::new(0),
        }
    }
}

impl OpenFiles {
    /// Sets the number of files that may stay open between two writes.
    pub fn set_bound(&self, files: u64) {
        self.bound.store(files, Ordering::Relaxed);
        self.limit.store(files, Ordering::Relaxed);
    }

    pub(super) fn has_room(&self) -> bool {
        self.open.load(Ordering::Relaxed) <= self.limit.load(Ordering::Relaxed)
    }

    pub(super) fn record_opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn record_closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records a call that failed for lack of a resource: from now on half of the open files may stay open.
    pub(super) fn record_failure(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let half = self.open.load(Ordering::Relaxed) / 2;
        self.limit.fetch_min(half, Ordering::Relaxed);
    }

    /// True if any call failed for lack of descriptors or memory since the last call. Otherwise raises the
    /// limit again.
    pub fn take_failures(&self) -> bool {
        let failed = self.failures.swap(0, Ordering::Relaxed) > 0;
        if !failed {
            let bound = self.bound.load(Ordering::Relaxed);
            let limit = self.limit.load(Ordering::Relaxed);
            let raised = limit.saturating_mul(2).saturating_add(1).min(bound);
            self.limit.store(raised, Ordering::Relaxed);
        }
        failed
    }
}

/// True if the system refused for lack of descriptors (of the process or the machine) or memory.
pub(super) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_of_open_files_halves_after_a_failure_and_recovers() {
        let files = OpenFiles::default();
        files.set_bound(100);
        for _ in 0..100 {
            files.record_opened();
        }
        assert!(files.has_room());
        files.record_opened();
        assert!(!files.has_room(), "above the limit");
        files.record_failure();
        for _ in 0..50 {
            files.record_closed();
        }
        assert!(!files.has_room(), "51 open, limit 50");
        files.record_closed();
        assert!(files.has_room());
        assert!(files.take_failures());
        assert!(!files.take_failures());
        for _ in 0..50 {
            files.record_opened();
        }
        assert!(files.has_room(), "the limit is raised again");
        files.record_opened();
        assert!(!files.has_room());
    }
}
