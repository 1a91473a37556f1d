//! Which files of the write-ahead log are still needed, and by whom.

use crate::GroupId;
use env::planted::{self, Bug};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Debug)]
struct Roll {
    file: u64,
    /// What must be in segments of these groups before the file can go.
    groups: BTreeMap<GroupId, u64>,
    /// Groups whose files must be gone first, lest they come back without their end.
    deletions: BTreeSet<GroupId>,
    /// What was written again is not durable yet.
    relogging: bool,
}

impl Roll {
    fn is_free(&self) -> bool {
        self.groups.is_empty() && self.deletions.is_empty() && !self.relogging
    }
}

/// Completed files, oldest first.
#[derive(Debug, Default)]
pub struct Rolls {
    rolls: VecDeque<Roll>,
}

impl Rolls {
    pub fn rolled(
        &mut self,
        file: u64,
        groups: BTreeMap<GroupId, u64>,
        deletions: BTreeSet<GroupId>,
        relogging: bool,
    ) {
        self.rolls.push_back(Roll {
            file,
            groups,
            deletions,
            relogging,
        });
    }

    pub fn relogged(&mut self, file: u64) {
        for roll in &mut self.rolls {
            if roll.file == file {
                roll.relogging = false;
            }
        }
    }

    pub fn flushed(&mut self, group: GroupId, upto: u64) {
        for roll in &mut self.rolls {
            if roll.groups.get(&group).is_some_and(|need| *need <= upto) {
                roll.groups.remove(&group);
            }
        }
    }

    /// The group is gone, or its log was replaced.
    pub fn forget(&mut self, group: GroupId) {
        for roll in &mut self.rolls {
            roll.groups.remove(&group);
        }
    }

    pub fn deleted(&mut self, group: GroupId) {
        for roll in &mut self.rolls {
            roll.deletions.remove(&group);
        }
    }

    /// The newest file that is not needed any more, with all before it; each answer once.
    pub fn take_free(&mut self) -> Option<u64> {
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
    fn files_go_in_order() {
        let (a, b) = (GroupId(1), GroupId(2));
        let mut rolls = Rolls::default();
        rolls.rolled(1, BTreeMap::from([(a, 10), (b, 5)]), BTreeSet::new(), true);
        rolls.rolled(2, BTreeMap::new(), BTreeSet::from([b]), false);
        rolls.rolled(3, BTreeMap::from([(a, 20)]), BTreeSet::new(), false);
        rolls.flushed(a, 9);
        rolls.flushed(b, 5);
        rolls.relogged(1);
        assert_eq!(rolls.take_free(), None);
        rolls.flushed(a, 12);
        assert_eq!(rolls.take_free(), Some(1));
        assert_eq!(rolls.take_free(), None);
        rolls.forget(a);
        assert_eq!(rolls.take_free(), None);
        rolls.deleted(b);
        assert_eq!(rolls.take_free(), Some(3));
    }
}
