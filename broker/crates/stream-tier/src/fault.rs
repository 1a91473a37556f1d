//! Faults that tests plant into this crate to prove that the randomised test finds them.

/// A fault of this crate's own code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code, reason = "planted by tests alone"))]
pub(crate) enum Fault {
    /// Segments are uploaded before they are committed.
    UploadsUncommitted,
    /// An upload is not read back before the manifest lists it.
    NotVerified,
    /// Local segments are deleted as soon as they are uploaded, before the manifest is published.
    DeletesBeforePublish,
    /// A leader does not look for manifests of other leaders.
    StaleLeaderPublishes,
    /// The checksums of objects that are read from the store are ignored.
    WrongBytesAccepted,
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
