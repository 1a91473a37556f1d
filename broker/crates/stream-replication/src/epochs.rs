//! Which epoch wrote which part of a log.

use wire::{Varint, wire_struct};

/// The end of a log. Of two logs, the one with the greater end has every committed chunk of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogEnd {
    /// The epoch of the last chunk; 0 for an empty log.
    pub epoch: u64,
    /// The offset after the last chunk.
    pub next: u64,
}
wire_struct!(LogEnd {
    epoch: u64 as Varint,
    next: u64 as Varint,
});

/// The first offset of each epoch in a log: 16 bytes for each change of leader that the retained log has seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EpochTable {
    /// Epochs with the offsets of their first chunks, both ascending.
    epochs: Vec<(u64, u64)>,
    /// The offset of the oldest retained chunk.
    start: u64,
    /// The offset after the last chunk.
    next: u64,
}

impl EpochTable {
    /// The table of an empty log that begins at `start`.
    pub fn starting_at(start: u64) -> EpochTable {
        EpochTable {
            epochs: Vec::new(),
            start,
            next: start,
        }
    }

    /// The offset of the oldest retained chunk.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// The offset after the last chunk.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The end of the log.
    pub fn end(&self) -> LogEnd {
        LogEnd {
            epoch: self.epochs.last().map_or(0, |(epoch, _)| *epoch),
            next: self.next,
        }
    }

    /// Adds a chunk at the end. Returns false, and changes nothing, unless it begins at the end, has an offset, and its
    /// epoch is not older than that of the last chunk.
    #[must_use]
    pub fn append(&mut self, epoch: u64, first: u64, next: u64) -> bool {
        let last = self.end().epoch;
        if first != self.next || next <= first || epoch < last || epoch == 0 {
            return false;
        }
        if epoch > last {
            self.epochs.push((epoch, first));
        }
        self.next = next;
        true
    }

    /// Drops all chunks from `next` on.
    pub fn truncate(&mut self, next: u64) {
        debug_assert!(next >= self.start, "{next} is before {}", self.start);
        self.next = self.next.min(next.max(self.start));
        let kept = self.epochs.partition_point(|(_, first)| *first < self.next);
        self.epochs.truncate(kept);
    }

    /// Forgets chunks before `start`, which retention deleted. Changes nothing if no chunk would stay: the end of the log
    /// has the epoch of the last one.
    pub fn trim(&mut self, start: u64) {
        if start <= self.start || start >= self.next {
            return;
        }
        self.start = start;
        // The epoch of the oldest chunk stays, with a first offset that is no longer retained.
        let begun = self.epochs.partition_point(|(_, first)| *first <= start);
        self.epochs.drain(..begun.saturating_sub(1));
    }

    /// The end of this log if it had no epochs after `epoch`: the offset up to which a log whose last chunk has that
    /// epoch can be equal to this one.
    pub fn end_of(&self, epoch: u64) -> LogEnd {
        let after = self.epochs.partition_point(|(e, _)| *e <= epoch);
        LogEnd {
            epoch: after.checked_sub(1).map_or(0, |at| self.epochs[at].0),
            next: self
                .epochs
                .get(after)
                .map_or(self.next, |(_, first)| *first),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> EpochTable {
        let mut table = EpochTable::default();
        assert!(table.append(1, 0, 10));
        assert!(table.append(1, 10, 20));
        assert!(table.append(4, 20, 21));
        assert!(table.append(6, 21, 30));
        table
    }

    #[test]
    fn chunks_only_follow_the_end() {
        let mut table = table();
        for (epoch, first, next) in [
            (6, 29, 31),
            (6, 31, 32),
            (5, 30, 31),
            (6, 30, 30),
            (0, 30, 31),
        ] {
            assert!(!table.append(epoch, first, next), "{epoch} {first}..{next}");
        }
        assert_eq!(table, self::table());
    }

    #[test]
    fn an_epoch_ends_where_the_next_one_begins() {
        let table = table();
        let end = |epoch| (table.end_of(epoch).epoch, table.end_of(epoch).next);
        assert_eq!(end(0), (0, 0));
        assert_eq!([1, 2, 3].map(end), [(1, 20); 3]);
        assert_eq!([4, 5].map(end), [(4, 21); 2]);
        assert_eq!([6, 7].map(end), [(6, 30); 2]);
    }

    #[test]
    fn a_truncated_table_forgets_the_later_epochs() {
        let mut table = table();
        table.truncate(21);
        assert_eq!(table.end(), LogEnd { epoch: 4, next: 21 });
        table.truncate(20);
        assert_eq!(table.end(), LogEnd { epoch: 1, next: 20 });
        table.truncate(25);
        assert_eq!(table.next(), 20);
        table.truncate(0);
        assert_eq!(table, EpochTable::default());
    }

    #[test]
    fn a_trimmed_table_keeps_the_epoch_of_its_oldest_chunk() {
        let mut table = table();
        table.trim(15);
        assert_eq!((table.start(), table.end_of(1).next), (15, 20));
        table.trim(21);
        assert_eq!((table.end_of(4).epoch, table.end_of(4).next), (0, 21));
        assert_eq!(table.end_of(6).next, 30);
        for useless in [30, 40, 2] {
            table.trim(useless);
            assert_eq!((table.start(), table.next()), (21, 30));
        }
        assert_eq!(table.end().epoch, 6);
    }
}
