//! Faults that tests plant into this crate to prove that the test of several replicas finds them. The simulator plants
//! some of them, too.

/// A fault of this crate's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "planted by tests alone"))]
pub(crate) enum Fault {
    /// Publishes are confirmed before they are committed.
    ConfirmEarly,
    /// Cursors read written chunks that are not committed.
    ReadsUncommitted,
    /// A new leader does not know the sequences of producers.
    SequencesLost,
    /// A follower keeps the chunks that it has to drop.
    TruncationForgotten,
    /// A leader applies requests that do not follow the last one.
    GapApplied,
}

pub(crate) use switch::*;

#[cfg(not(test))]
mod switch {
    use super::Fault;
    use env::planted::{self, Bug};

    #[inline(always)]
    pub(crate) fn is(fault: Fault) -> bool {
        match fault {
            Fault::ConfirmEarly => planted::is(Bug::StreamConfirmEarly),
            Fault::ReadsUncommitted => planted::is(Bug::StreamReadsUncommitted),
            Fault::TruncationForgotten => planted::is(Bug::StreamTruncationForgotten),
            Fault::GapApplied | Fault::SequencesLost => false,
        }
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
