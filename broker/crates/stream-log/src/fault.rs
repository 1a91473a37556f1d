//! Faults that tests plant into this crate to prove that the crash test finds them.

/// A fault of this crate's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "planted by tests alone"))]
pub(crate) enum Fault {
    /// A segment is sealed before its data is durable.
    SealBeforeSync,
    /// Recovery removes the segments behind a cut last instead of first.
    LaterSegmentsKept,
    /// Truncation does not make its cut durable.
    TruncationNotSynced,
    /// A removal that the end of the process interrupted is not made durable.
    RemovalNotCompleted,
    /// Chunks count as written when their job starts.
    WrittenEarly,
    /// A new segment does not start with a tracking snapshot of all names.
    SnapshotIncomplete,
    /// Retention deletes segments that are not committed.
    UncommittedDeleted,
    /// A job that failed for lack of space is not repeated.
    FullForgotten,
}

pub(crate) use switch::*;

#[cfg(not(test))]
mod switch {
    #[inline(always)]
    pub(crate) const fn is(_: super::Fault) -> bool {
        false
    }
}

#[cfg(test)]
mod switch {
    use super::Fault;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
    }

    pub(crate) fn is(fault: Fault) -> bool {
        PLANTED.get() == Some(fault)
    }

    pub(crate) fn plant(fault: Option<Fault>) {
        PLANTED.set(fault);
    }
}
