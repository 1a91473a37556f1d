//! Listings of everything of a kind, which take as many turns as they need.
//!
//! A turn looks at [`STEP`] items for all listings together, however many there are, so that clients never wait for a whole
//! listing. An item that is there during the whole listing is told of once; one that goes meanwhile may be left out, and one that
//! comes meanwhile may be missing.

use crate::stats::Merge;
use control::{StreamFilter, TreeWalk, WalkProgress};
use env::NodeId;
use metadata::QueueId;
use std::collections::VecDeque;

/// Items that one turn looks at, of all listings together.
pub(crate) const STEP: usize = 256;
/// Cost in items of a connection or a consumer: its facts are a dozen texts.
pub(crate) const COST_OF_CLIENT: usize = 4;
/// Cost in items of a message that is read from the log or the files of its queue.
pub(crate) const COST_OF_READ: usize = 16;
/// Listings that wait for their turn, at most: one beyond that is not answered, and its asker does without.
const MAX_WALKS: usize = 1_024;

/// The shard that a listing is told to, and its name for it.
#[derive(Clone, Copy, Debug)]
pub struct ReplyTo {
    pub node: NodeId,
    pub shard: u16,
    pub token: u64,
}

/// A listing and how far it is.
pub(crate) enum Walk {
    /// Figures of the queues here.
    Figures {
        to: ReplyTo,
        /// The node that replicas are asked about.
        counting: Option<NodeId>,
        next: QueueId,
    },
    /// Consumers of the queues that are led or live here.
    Consumers { to: ReplyTo, next: QueueId },
    /// Replicas of streams of this shard.
    Streams {
        to: ReplyTo,
        of: StreamFilter,
        next: QueueId,
    },
    /// Connections of this shard.
    Connections { to: ReplyTo, next: usize },
    /// Figures that owners have told, put together with the tree.
    Merge(Box<Merge>),
    /// Of the tree alone.
    Tree(Box<dyn TreeWalk>),
}

/// Listings that are not done, each in its turn.
#[derive(Default)]
pub(crate) struct StatsWalks {
    waiting: VecDeque<Walk>,
    /// Items that may still be looked at in this turn.
    left: usize,
    /// Items that were looked at since the shard began.
    looked_at: u64,
}

impl StatsWalks {
    pub(crate) fn add(&mut self, walk: Walk) {
        if self.waiting.len() < MAX_WALKS {
            self.waiting.push_back(walk);
        } else {
            tracing::warn!(event = "listing_refused", waiting = self.waiting.len());
        }
    }

    pub(crate) fn begin_turn(&mut self) {
        self.left = STEP;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Items that listings have looked at since the shard began.
    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// The listing to go on with, and how many items it may look at. None: this turn has done its share.
    pub(crate) fn take(&mut self) -> Option<(Walk, usize)> {
        (self.left > 0).then_some(())?;
        Some((self.waiting.pop_front()?, self.left))
    }

    /// A listing has made a step.
    pub(crate) fn count(&mut self, progress: WalkProgress) {
        // Beginning one costs something, too.
        self.left = self.left.saturating_sub(progress.looked_at.max(1));
        self.looked_at += progress.looked_at as u64;
    }

    /// If a listing is not done it goes on after all others.
    pub(crate) fn give_back(&mut self, walk: Walk, progress: WalkProgress) {
        if !progress.done {
            self.waiting.push_back(walk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use metadata::Tree;
    use std::sync::{Arc, Mutex};

    /// A listing of so many items, which notes its number at each step.
    struct Items(usize, usize, Arc<Mutex<Vec<usize>>>);

    impl TreeWalk for Items {
        fn step(&mut self, _: &Tree, limit: usize) -> WalkProgress {
            self.2.lock().unwrap().push(self.0);
            let looked_at = self.1.min(limit);
            self.1 -= looked_at;
            WalkProgress {
                looked_at,
                done: looked_at < limit,
            }
        }
    }

    fn turn(walks: &mut StatsWalks) -> usize {
        let before = walks.looked_at();
        walks.begin_turn();
        while let Some((mut walk, limit)) = walks.take() {
            let Walk::Tree(items) = &mut walk else {
                panic!("a listing of the tree");
            };
            let progress = items.step(&Tree::default(), limit);
            walks.count(progress);
            walks.give_back(walk, progress);
        }
        (walks.looked_at() - before) as usize
    }

    #[test]
    fn a_turn_looks_at_a_bounded_number_of_items_and_listings_take_turns() {
        let mut walks = StatsWalks::default();
        let steps = Arc::new(Mutex::new(Vec::new()));
        for (number, items) in [(1, 3 * STEP), (2, STEP + 1), (3, 10)] {
            let items = Items(number, items, steps.clone());
            walks.add(Walk::Tree(Box::new(items)));
        }
        let mut turns = Vec::new();
        while !walks.is_empty() {
            turns.push(turn(&mut walks));
        }
        assert!(
            turns.iter().all(|looked_at| *looked_at <= STEP),
            "{turns:?}"
        );
        assert_eq!(turns.iter().sum::<usize>(), 4 * STEP + 11);
        assert_eq!(steps.lock().unwrap()[..3], [1, 2, 3]);
    }

    #[test]
    fn listings_that_wait_are_bounded() {
        let mut walks = StatsWalks::default();
        let steps = Arc::new(Mutex::new(Vec::new()));
        for number in 0..2 * MAX_WALKS {
            walks.add(Walk::Tree(Box::new(Items(number, 1, steps.clone()))));
        }
        assert_eq!(walks.waiting.len(), MAX_WALKS);
    }
}
