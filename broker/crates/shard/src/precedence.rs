//! Order between the connections of one MQTT client.
//!
//! Each session sends its requests to a queue by itself, and sends them again by itself when the queue's leader changes. A
//! publish of a client's last connection that its queue has not answered would thus arrive behind publishes of the next
//! connection. So the next session's requests to a queue wait until the queue has applied all of the earlier session's.

use std::collections::BTreeSet;

/// Pairs of sessions of this shard of which one waits for the other.
#[derive(Default)]
pub struct Precedence {
    /// (later, earlier)
    earlier: BTreeSet<(u64, u64)>,
    /// (earlier, later)
    later: BTreeSet<(u64, u64)>,
}

impl Precedence {
    pub fn is_empty(&self) -> bool {
        self.later.is_empty()
    }

    pub fn insert(&mut self, later: u64, earlier: u64) {
        self.earlier.insert((later, earlier));
        self.later.insert((earlier, later));
    }

    /// The sessions that this one waits for.
    pub fn earlier_than(&self, later: u64) -> impl Iterator<Item = u64> {
        let all = self.earlier.range((later, 0)..=(later, u64::MAX));
        all.map(|(_, earlier)| *earlier)
    }

    /// The sessions that wait for this one.
    pub fn later_than(&self, earlier: u64) -> impl Iterator<Item = u64> {
        let all = self.later.range((earlier, 0)..=(earlier, u64::MAX));
        all.map(|(_, later)| *later)
    }

    /// Nobody has to wait for this session any more.
    pub fn remove_earlier(&mut self, earlier: u64) {
        while let Some(&(_, later)) = self.later.range((earlier, 0)..=(earlier, u64::MAX)).next() {
            self.later.remove(&(earlier, later));
            self.earlier.remove(&(later, earlier));
        }
    }
}
