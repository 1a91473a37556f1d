//! Complete write-ahead log files: their entries are moved to segments or written to the log again.

use super::Host;
use crate::GroupId;
use crate::entry;
use crate::sink::PendingAction;
use std::collections::BTreeMap;
use wal::RecordBody;

/// A complete file whose groups still have much uncommitted data. Only committed entries can move to
/// segments, and the rest would have to be written to the log again. After a restart that would be the whole
/// tail, because a node knows only its own recorded commit index.
#[derive(Debug)]
pub(super) struct DeferredLogFile {
    file: u64,
    /// Groups and the last indexes of their logs.
    tails: Vec<(GroupId, u64)>,
    /// The file is secured at this tick at the latest.
    until: u64,
}

impl Host {
    pub(super) fn handle_wal_rolled(&mut self, file: u64) {
        let (tails, bytes) = self.uncommitted_tails();
        let limits = &self.config.limits;
        if bytes <= limits.relog_total_bytes && self.pending_rolls.is_empty() {
            return self.secure_file(file);
        }
        let until = self.ticks + u64::from(limits.flush_delay_ticks);
        self.pending_rolls
            .push_back(DeferredLogFile { file, tails, until });
    }

    /// Groups whose last entries cannot move to segments yet, and the bytes of those entries in memory.
    fn uncommitted_tails(&self) -> (Vec<(GroupId, u64)>, usize) {
        let mut bytes = 0;
        let mut tails = Vec::new();
        for group in self.groups.values() {
            let (store, flushable) = (group.store(), group.flushable());
            if store.last() > flushable {
                bytes += store.bytes_above(flushable);
                tails.push((group.id, store.last()));
            }
        }
        (tails, bytes)
    }

    /// Secures files in order, each as soon as its groups have committed the recorded tails, or its time is
    /// up.
    pub(super) fn secure_pending_rolls(&mut self) {
        while let Some(roll) = self.pending_rolls.front_mut() {
            let groups = &self.groups;
            roll.tails.retain(|(id, last)| {
                let group = groups.get(id);
                group.is_some_and(|g| g.flushable() < *last && g.store().last() >= *last)
            });
            if !roll.tails.is_empty() && self.ticks < roll.until {
                return;
            }
            let file = roll.file;
            self.pending_rolls.pop_front();
            self.secure_file(file);
        }
    }

    /// Makes sure that everything in the file is stored elsewhere, so that the file can be deleted.
    fn secure_file(&mut self, file: u64) {
        let mut ids: Vec<GroupId> = self.groups.keys().copied().collect();
        ids.sort_unstable();
        let mut needs = BTreeMap::new();
        let before = self.sink.records.len();
        let mut budget = self.config.limits.relog_total_bytes;
        let at_tick = self.ticks + u64::from(self.config.limits.flush_delay_ticks);
        for id in ids {
            if let Some(upto) = self.secure_group(id, &mut budget) {
                needs.insert(id, upto);
                self.request_flush(id, upto, at_tick);
                let group = self.groups.get_mut(&id);
                if let Some(group) = group.filter(|g| !g.is_checkpoint_in_progress()) {
                    group.request_checkpoint(&mut self.sink);
                }
            }
        }
        let relogging = self.sink.records.len() > before;
        if relogging {
            self.sink.waiting.push(PendingAction::Relogged { file });
        }
        let deletions = self.deleting.keys().copied().collect();
        self.rolls.add_roll(file, needs, deletions, relogging);
    }

    /// Writes again the part of a group's log that cannot move to segments yet or is too small for one.
    /// Returns the index up to which the rest must be flushed.
    fn secure_group(&mut self, id: GroupId, budget: &mut usize) -> Option<u64> {
        let limit = self.config.limits.relog_bytes;
        let group = self.groups.get(&id)?;
        let store = group.store();
        let upto = group.flushable();
        let bytes = store.unflushed_bytes(store.last());
        let small = !store.has_retained() && bytes <= limit.min(*budget);
        let from = match small {
            true => store.first_unflushed(),
            false => upto + 1,
        };
        if small {
            debug_assert!(
                *budget >= bytes,
                "group {id:?}: {bytes} bytes exceed the budget of {budget}"
            );
            *budget -= bytes;
            let checkpoint = store.checkpoint();
            if checkpoint.position.index > 0 && !checkpoint.on_disk {
                let founding = entry::founding_entry(&checkpoint.membership);
                self.sink.record(id, RecordBody::Entry(founding));
            }
        }
        for e in store.memory_range(from, store.last()) {
            self.sink.record(id, RecordBody::Entry(e.clone()));
        }
        let founded = store.checkpoint().on_disk || store.checkpoint().position.index == 0;
        (!small && (store.needs_flush(upto) || !founded)).then_some(upto)
    }
}
