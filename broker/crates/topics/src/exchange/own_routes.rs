//! The routes of this router as a versioned log that keeps only the newest entry of each key.
//! Whether a peer knows nothing, was away for a while or is one change behind, it receives the
//! changes since the version that it has.

use super::peer_message::{InterestCounts, InterestKey, RouteChanges};
use bytes::BytesMut;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use wire::Wire;

/// Maximum number of changes per message.
const MAX_CHANGES: usize = 1024;
/// Approximate maximum of bytes per message.
const MAX_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct RouteRow {
    counts: InterestCounts,
    /// The counts as announced to other routers.
    announced: InterestCounts,
    version: u64,
}

#[derive(Debug)]
pub(crate) struct OwnRoutes {
    rows: HashMap<InterestKey, RouteRow, foldhash::fast::FixedState>,
    by_version: BTreeMap<u64, InterestKey>,
    /// Versions of rows that only announce the removal of a route.
    removed: BTreeSet<u64>,
    /// Maximum size of `gone`. A peer whose version is older than a dropped row receives the full
    /// list.
    max_removed: usize,
    /// The newest version whose row was dropped.
    dropped_version: u64,
    version: u64,
    digest: u64,
}

/// The field of [`InterestCounts`] in which a subscriber counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterestClass {
    Stored,
    Plain,
    Acknowledged,
}

impl OwnRoutes {
    pub(crate) fn new(max_removed: usize) -> OwnRoutes {
        OwnRoutes {
            rows: HashMap::default(),
            by_version: BTreeMap::new(),
            removed: BTreeSet::new(),
            max_removed,
            dropped_version: 0,
            version: 0,
            digest: 0,
        }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// Adds or removes one subscriber.
    pub(crate) fn count_route(&mut self, key: InterestKey, class: InterestClass, add: bool) {
        let exact = matches!(key, InterestKey::Group { .. });
        let row = self.rows.entry(key.clone()).or_default();
        let count = match class {
            InterestClass::Stored => &mut row.counts.stored,
            InterestClass::Plain => &mut row.counts.plain,
            InterestClass::Acknowledged => &mut row.counts.acknowledged,
        };
        *count = match add {
            true => count.saturating_add(1),
            false => count.saturating_sub(1),
        };
        let announced = match exact {
            true => row.counts,
            false => InterestCounts {
                stored: row.counts.stored.min(1),
                plain: row.counts.plain.min(1),
                acknowledged: row.counts.acknowledged.min(1),
            },
        };
        if announced != row.announced {
            self.announce(key, announced);
        }
    }

    fn announce(&mut self, key: InterestKey, announced: InterestCounts) {
        let Some(row) = self.rows.get_mut(&key) else {
            return;
        };
        self.by_version.remove(&row.version);
        self.removed.remove(&row.version);
        self.digest ^= digest_of(&key, row.announced) ^ digest_of(&key, announced);
        self.version += 1;
        row.version = self.version;
        row.announced = announced;
        if announced.is_none() {
            self.removed.insert(self.version);
        }
        self.by_version.insert(self.version, key);
        while self.removed.len() > self.max_removed
            && let Some(oldest) = self.removed.pop_first()
        {
            self.dropped_version = oldest;
            if let Some(key) = self.by_version.remove(&oldest) {
                self.rows.remove(&key);
            }
        }
    }

    /// Returns the changes since this version, or the first part of them; `None` if there are none.
    pub(crate) fn changes_since(&self, known: u64) -> Option<RouteChanges> {
        if known == self.version {
            return None;
        }
        let from = match known {
            known if known < self.dropped_version || known > self.version => 0,
            known => known,
        };
        let (mut list, mut bytes, mut to) = (Vec::new(), 0, self.version);
        for (version, key) in self.by_version.range(from + 1..) {
            if list.len() == MAX_CHANGES || bytes >= MAX_BYTES {
                to = version - 1;
                break;
            }
            bytes += key.size();
            let announced = self.rows.get(key).map(|row| row.announced);
            list.push((key.clone(), announced.unwrap_or_default()));
        }
        Some(RouteChanges {
            from,
            to,
            digest: (to == self.version).then_some(self.digest),
            list,
        })
    }
}

/// The digest of one row. The digest of all rows is their exclusive or. FNV-1a: must be the same in
/// every version.
pub(crate) fn digest_of(key: &InterestKey, counts: InterestCounts) -> u64 {
    if counts.is_none() {
        return 0;
    }
    let mut bytes = BytesMut::new();
    key.put(&mut bytes);
    counts.put(&mut bytes);
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
