//! How many files of a directory are open, and how many may stay so.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shared by a directory and its open files.
#[derive(Debug)]
pub struct OpenFiles {
    open: AtomicU64,
    /// More than these do not stay open between two writes.
    most: AtomicU64,
    /// `most` while descriptors are not short.
    bound: AtomicU64,
    /// Calls that failed for want of descriptors or memory since the last look.
    failures: AtomicU64,
}

impl Default for OpenFiles {
    fn default() -> OpenFiles {
        OpenFiles {
            open: AtomicU64::new(0),
            most: AtomicU64::new(u64::MAX),
            bound: AtomicU64::new(u64::MAX),
            failures: AtomicU64::new(0),
        }
    }
}

impl OpenFiles {
    /// Bounds the files that stay open between two writes.
    pub fn set_bound(&self, files: u64) {
        self.bound.store(files, Ordering::Relaxed);
        self.most.store(files, Ordering::Relaxed);
    }

    pub(super) fn has_room(&self) -> bool {
        self.open.load(Ordering::Relaxed) <= self.most.load(Ordering::Relaxed)
    }

    pub(super) fn opened(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn closed(&self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// A call failed for want of a resource: from now on half of the files may stay open.
    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let half = self.open.load(Ordering::Relaxed) / 2;
        self.most.fetch_min(half, Ordering::Relaxed);
    }

    /// Whether any call failed for want of descriptors or memory since this was asked last. If none did, more files may
    /// stay open again.
    pub fn take_failures(&self) -> bool {
        let failed = self.failures.swap(0, Ordering::Relaxed) > 0;
        if !failed {
            let bound = self.bound.load(Ordering::Relaxed);
            let most = self.most.load(Ordering::Relaxed);
            let more = most.saturating_mul(2).saturating_add(1).min(bound);
            self.most.store(more, Ordering::Relaxed);
        }
        failed
    }
}

/// Whether the system refused for want of descriptors (of the process or of the machine) or of memory.
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
    fn fewer_files_stay_open_after_a_failure_and_more_when_none_follows() {
        let files = OpenFiles::default();
        files.set_bound(100);
        for _ in 0..100 {
            files.opened();
        }
        assert!(files.has_room());
        files.opened();
        assert!(!files.has_room(), "over the bound");
        files.failed();
        for _ in 0..50 {
            files.closed();
        }
        assert!(!files.has_room(), "51 of 50");
        files.closed();
        assert!(files.has_room());
        assert!(files.take_failures());
        assert!(!files.take_failures());
        for _ in 0..50 {
            files.opened();
        }
        assert!(files.has_room(), "the bound is back");
        files.opened();
        assert!(!files.has_room());
    }
}
