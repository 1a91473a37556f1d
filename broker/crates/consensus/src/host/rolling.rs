//! Files of the write-ahead log that are complete: what is in them moves to segments, or is written again.

use super::Host;
use crate::GroupId;
use crate::entry;
use crate::sink::Waiting;
use std::collections::BTreeMap;
use wal::RecordBody;

/// A complete file whose groups still have much to commit. Only what is committed can go to segments; the rest would
/// have to be written to the log again, all of it when a node starts: it knows of no commit but its own.
#[derive(Debug)]
pub struct LateRoll {
    file: u64,
    /// Groups and the ends of their logs.
    tails: Vec<(GroupId, u64)>,
    /// Not longer than until this tick.
    until: u64,
}

impl Host {
    pub(super) fn rolled(&mut self, file: u64) {
        let (tails, bytes) = self.uncommitted_tails();
        let limits = &self.config.limits;
        if bytes <= limits.relog_total_bytes && self.late_rolls.is_empty() {
            return self.secure_all(file);
        }
        let until = self.ticks + u64::from(limits.flush_delay_ticks);
        self.late_rolls.push_back(LateRoll { file, tails, until });
    }

    /// Logs whose ends cannot go to segments yet, and what is in memory of them, in bytes.
    fn uncommitted_tails(&self) -> (Vec<(GroupId, u64)>, usize) {
        let mut bytes = 0;
        let mut tails = Vec::new();
        for group in self.groups.values() {
            let (store, movable) = (group.store(), group.movable());
            if store.last() > movable {
                bytes += store.bytes_above(movable);
                tails.push((group.id, store.last()));
            }
        }
        (tails, bytes)
    }

    /// Files are secured in their order, each as soon as its groups have committed what they had, or have had their time.
    pub(super) fn secure_late(&mut self) {
        while let Some(roll) = self.late_rolls.front_mut() {
            let groups = &self.groups;
            roll.tails.retain(|(id, last)| {
                let group = groups.get(id);
                group.is_some_and(|g| g.movable() < *last && g.store().last() >= *last)
            });
            if !roll.tails.is_empty() && self.ticks < roll.until {
                return;
            }
            let file = roll.file;
            self.late_rolls.pop_front();
            self.secure_all(file);
        }
    }

    /// Everything of the file's groups is to be elsewhere, so that the file can go.
    fn secure_all(&mut self, file: u64) {
        let mut ids: Vec<GroupId> = self.groups.keys().copied().collect();
        ids.sort_unstable();
        let mut needs = BTreeMap::new();
        let before = self.sink.records.len();
        let mut budget = self.config.limits.relog_total_bytes;
        let at_tick = self.ticks + u64::from(self.config.limits.flush_delay_ticks);
        for id in ids {
            if let Some(upto) = self.secure(id, &mut budget) {
                needs.insert(id, upto);
                self.want_flush(id, upto, at_tick);
                let group = self.groups.get_mut(&id);
                if let Some(group) = group.filter(|g| !g.checkpoint_under_way()) {
                    group.tell_due(&mut self.sink);
                }
            }
        }
        let relogging = self.sink.records.len() > before;
        if relogging {
            self.sink.waiting.push(Waiting::Relogged { file });
        }
        let deletions = self.deleting.keys().copied().collect();
        self.rolls.rolled(file, needs, deletions, relogging);
    }

    /// Writes again what of a group's log cannot go to segments yet, or is too little for them. Returns up to where
    /// the rest must go there.
    fn secure(&mut self, id: GroupId, budget: &mut usize) -> Option<u64> {
        let limit = self.config.limits.relog_bytes;
        let group = self.groups.get(&id)?;
        let store = group.store();
        let upto = group.movable();
        let bytes = store.unflushed_bytes(store.last());
        let small = !store.has_retained() && bytes <= limit.min(*budget);
        let from = match small {
            true => store.first_unflushed(),
            false => upto + 1,
        };
        if small {
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
