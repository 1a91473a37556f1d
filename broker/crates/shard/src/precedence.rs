//! Order between the connections of one client whose session outlives them.
//!
//! Each session sends its requests to a queue by itself, and sends them again by itself when the queue's leader changes. A
//! publish of a client's last connection that its queue has not answered would thus arrive behind publishes of the next
//! connection. The next session's requests to a queue therefore wait until the queue has applied all requests of the earlier
//! session.

use std::collections::BTreeSet;

/// Pairs of sessions of this shard, of which the later one waits for the earlier one.
#[derive(Default)]
pub(crate) struct Precedence {
    /// Pairs of a later and an earlier session, to find the earlier sessions of a later one.
    earlier: BTreeSet<(u64, u64)>,
    /// The same pairs, earlier session first, to find the later sessions of an earlier one.
    later: BTreeSet<(u64, u64)>,
}

impl Precedence {
    /// True if no session waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.later.is_empty()
    }

    /// Makes `later` wait for `earlier`.
    pub(crate) fn insert(&mut self, later: u64, earlier: u64) {
        self.earlier.insert((later, earlier));
        self.later.insert((earlier, later));
    }

    /// Sessions for which `later` waits.
    pub(crate) fn earlier_than(&self, later: u64) -> impl Iterator<Item = u64> {
        let all = self.earlier.range((later, 0)..=(later, u64::MAX));
        all.map(|(_, earlier)| *earlier)
    }

    /// Sessions that wait for `earlier`.
    pub(crate) fn later_than(&self, earlier: u64) -> impl Iterator<Item = u64> {
        let all = self.later.range((earlier, 0)..=(earlier, u64::MAX));
        all.map(|(_, later)| *later)
    }

    /// Ends all waiting for `earlier`.
    pub(crate) fn remove_earlier(&mut self, earlier: u64) {
        while let Some(&(_, later)) = self.later.range((earlier, 0)..=(earlier, u64::MAX)).next() {
            self.later.remove(&(earlier, later));
            self.earlier.remove(&(later, earlier));
        }
    }
}
