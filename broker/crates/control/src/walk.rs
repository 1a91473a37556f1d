//! Looks at many items of the tree, of which each turn of shard 0 takes a bounded number.

use crate::Reply;
use metadata::{Cursor, Step, Tree};
use std::sync::Arc;

/// What a step of a listing did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Items that it looked at.
    pub looked_at: usize,
    pub done: bool,
}

/// A listing that goes on in each turn until it is done, and answers then.
pub trait TreeWalk: Send {
    /// Looks at `limit` items at most.
    fn step(&mut self, tree: &Tree, limit: usize) -> Progress;
}

/// Collects what `pick` makes of the items that a cursor finds.
pub struct Collect<C, F, T> {
    cursor: C,
    pick: F,
    found: Vec<T>,
    reply: Option<Reply<Vec<T>>>,
}

impl<C, F, T> Collect<C, F, T>
where
    C: Cursor,
    F: FnMut(&Tree, &Arc<C::Item>) -> Option<T> + Send,
    T: Send,
{
    pub fn new(cursor: C, pick: F, reply: Reply<Vec<T>>) -> Collect<C, F, T> {
        Collect {
            cursor,
            pick,
            found: Vec::new(),
            reply: Some(reply),
        }
    }
}

impl<C, F, T> TreeWalk for Collect<C, F, T>
where
    C: Cursor,
    F: FnMut(&Tree, &Arc<C::Item>) -> Option<T> + Send,
    T: Send,
{
    fn step(&mut self, tree: &Tree, limit: usize) -> Progress {
        for looked_at in 0..limit {
            match self.cursor.next(tree) {
                Step::Item(item) => self.found.extend((self.pick)(tree, item)),
                Step::Skipped => {}
                Step::End => {
                    if let Some(reply) = self.reply.take() {
                        reply(std::mem::take(&mut self.found));
                    }
                    let done = true;
                    return Progress { looked_at, done };
                }
            }
        }
        Progress {
            looked_at: limit,
            done: false,
        }
    }
}
