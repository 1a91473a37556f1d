//! Tracks which complete write-ahead log files are still needed, and by which groups.

use crate::GroupId;
use env::planted::{self, Bug};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug)]
struct CompleteLogFile {
    file: u64,
    /// The index up to which each group must be flushed before the file can be deleted.
    groups: BTreeMap<GroupId, u64>,
    /// Groups whose deletion must finish first: without their deletion record in the log, their files would
    /// bring them back.
    deletions: BTreeSet<GroupId>,
    /// Entries of this file that were written again are not durable yet.
    relogging: bool,
}

impl CompleteLogFile {
    fn is_free(&self) -> bool {
        self.groups.is_empty() && self.deletions.is_empty() && !self.relogging
    }
}

/// Complete files, oldest first.
#[derive(Debug, Default)]
pub(crate) struct CompleteLogFiles {
    rolls: VecDeque<CompleteLogFile>,
}

impl CompleteLogFiles {
    pub(crate) fn add_roll(
        &mut self,
        file: u64,
        groups: BTreeMap<GroupId, u64>,
        deletions: BTreeSet<GroupId>,
        relogging: bool,
    ) {
        debug_assert!(
            self.rolls.back().is_none_or(|roll| roll.file < file),
            "log file {file} is complete before an older one"
        );
        self.rolls.push_back(CompleteLogFile {
            file,
            groups,
            deletions,
            relogging,
        });
    }

    pub(crate) fn mark_relogged(&mut self, file: u64) {
        for roll in &mut self.rolls {
            if roll.file == file {
                roll.relogging = false;
            }
        }
    }

    pub(crate) fn mark_flushed(&mut self, group: GroupId, upto: u64) {
        for roll in &mut self.rolls {
            if roll.groups.get(&group).is_some_and(|need| *need <= upto) {
                roll.groups.remove(&group);
            }
        }
    }

    /// The group is deleted, or its log was replaced.
    pub(crate) fn forget_group(&mut self, group: GroupId) {
        for roll in &mut self.rolls {
            roll.groups.remove(&group);
        }
    }

    pub(crate) fn mark_deleted(&mut self, group: GroupId) {
        for roll in &mut self.rolls {
            roll.deletions.remove(&group);
        }
    }

    /// The newest file that can be deleted together with all before it. Each file is returned once.
    pub(crate) fn take_free_file(&mut self) -> Option<u64> {
        let mut free = None;
        while self
            .rolls
            .front()
            .is_some_and(|r| r.is_free() || planted::is(Bug::LogFileFreedEarly))
        {
            free = self.rolls.pop_front().map(|r| r.file);
        }
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_freed_in_order() {
        let (a, b) = (GroupId(1), GroupId(2));
        let mut rolls = CompleteLogFiles::default();
        rolls.add_roll(1, BTreeMap::from([(a, 10), (b, 5)]), BTreeSet::new(), true);
        rolls.add_roll(2, BTreeMap::new(), BTreeSet::from([b]), false);
        rolls.add_roll(3, BTreeMap::from([(a, 20)]), BTreeSet::new(), false);
        rolls.mark_flushed(a, 9);
        rolls.mark_flushed(b, 5);
        rolls.mark_relogged(1);
        assert_eq!(rolls.take_free_file(), None);
        rolls.mark_flushed(a, 12);
        assert_eq!(rolls.take_free_file(), Some(1));
        assert_eq!(rolls.take_free_file(), None);
        rolls.forget_group(a);
        assert_eq!(rolls.take_free_file(), None);
        rolls.mark_deleted(b);
        assert_eq!(rolls.take_free_file(), Some(3));
    }
}
