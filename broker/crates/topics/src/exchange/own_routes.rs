//! What this hub is there for, as a numbered log of which only the newest word on each key is kept: a hub that knows nothing,
//! one that was away for a while and one that is a single change behind are all told what came after the version they have.

use super::peer_message::{InterestCounts, InterestKey, RouteChanges};
use bytes::BytesMut;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};

/// Changes told at once.
const CHUNK: usize = 1024;
/// Bytes of the same, about.
const CHUNK_BYTES: usize = 64 << 10;

#[derive(Debug, Default)]
struct RouteRow {
    counts: InterestCounts,
    /// As the others are told.
    shown: InterestCounts,
    version: u64,
}

#[derive(Debug)]
pub(crate) struct OwnRoutes {
    rows: HashMap<InterestKey, RouteRow, foldhash::fast::FixedState>,
    by_version: BTreeMap<u64, InterestKey>,
    /// Versions of rows that are there only to say that nobody is.
    gone: BTreeSet<u64>,
    /// Of these, how many at most. Who knows less than what was forgotten begins anew.
    keep_gone: usize,
    /// The newest version that was forgotten.
    forgotten: u64,
    version: u64,
    digest: u64,
}

/// Which of the counts somebody is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InterestClass {
    Stored,
    Plain,
    Acknowledged,
}

impl OwnRoutes {
    pub fn new(keep_gone: usize) -> OwnRoutes {
        OwnRoutes {
            rows: HashMap::default(),
            by_version: BTreeMap::new(),
            gone: BTreeSet::new(),
            keep_gone,
            forgotten: 0,
            version: 0,
            digest: 0,
        }
    }

    pub fn version(&self) -> u64 {
        self.version
    }

    /// One more, or one fewer.
    pub fn count(&mut self, key: InterestKey, class: InterestClass, more: bool) {
        let exact = matches!(key, InterestKey::Group { .. });
        let row = self.rows.entry(key.clone()).or_default();
        let count = match class {
            InterestClass::Stored => &mut row.counts.stored,
            InterestClass::Plain => &mut row.counts.plain,
            InterestClass::Acknowledged => &mut row.counts.acknowledged,
        };
        *count = match more {
            true => count.saturating_add(1),
            false => count.saturating_sub(1),
        };
        let shown = match exact {
            true => row.counts,
            false => InterestCounts {
                stored: row.counts.stored.min(1),
                plain: row.counts.plain.min(1),
                acknowledged: row.counts.acknowledged.min(1),
            },
        };
        if shown != row.shown {
            self.show(key, shown);
        }
    }

    fn show(&mut self, key: InterestKey, shown: InterestCounts) {
        let Some(row) = self.rows.get_mut(&key) else {
            return;
        };
        self.by_version.remove(&row.version);
        self.gone.remove(&row.version);
        self.digest ^= digest_of(&key, row.shown) ^ digest_of(&key, shown);
        self.version += 1;
        row.version = self.version;
        row.shown = shown;
        if shown.is_none() {
            self.gone.insert(self.version);
        }
        self.by_version.insert(self.version, key);
        while self.gone.len() > self.keep_gone
            && let Some(oldest) = self.gone.pop_first()
        {
            self.forgotten = oldest;
            if let Some(key) = self.by_version.remove(&oldest) {
                self.rows.remove(&key);
            }
        }
    }

    /// What is new to a hub that knows this version, or a part of it. None: nothing is.
    pub fn since(&self, known: u64) -> Option<RouteChanges> {
        if known == self.version {
            return None;
        }
        let from = match known {
            known if known < self.forgotten || known > self.version => 0,
            known => known,
        };
        let (mut list, mut bytes, mut to) = (Vec::new(), 0, self.version);
        for (version, key) in self.by_version.range(from + 1..) {
            if list.len() == CHUNK || bytes >= CHUNK_BYTES {
                to = version - 1;
                break;
            }
            bytes += key.size();
            let shown = self.rows.get(key).map(|row| row.shown);
            list.push((key.clone(), shown.unwrap_or_default()));
        }
        Some(RouteChanges {
            from,
            to,
            digest: (to == self.version).then_some(self.digest),
            list,
        })
    }
}

/// Of all rows it is the sum (exclusive or). FNV-1a: the same in every version of the program.
pub(crate) fn digest_of(key: &InterestKey, wants: InterestCounts) -> u64 {
    if wants.is_none() {
        return 0;
    }
    let mut bytes = BytesMut::new();
    key.encode(&mut bytes);
    wants.encode(&mut bytes);
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
