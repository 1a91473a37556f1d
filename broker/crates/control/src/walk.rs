//! Walks over collections of the tree. Each turn of shard 0 visits a bounded number of items.

use crate::Reply;
use metadata::{Cursor, CursorStep, Tree};
use std::sync::Arc;

/// The result of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalkProgress {
    /// Number of items visited.
    pub looked_at: usize,
    /// True if the walk has replied.
    pub done: bool,
}

/// A walk that continues in each turn until it is done, and then replies.
pub trait TreeWalk: Send {
    /// Visits at most `limit` items.
    fn step(&mut self, tree: &Tree, limit: usize) -> WalkProgress;
}

/// Collects the results of `pick` for the items of a cursor.
pub struct CollectWalk<C, F, T> {
    cursor: C,
    pick: F,
    found: Vec<T>,
    reply: Option<Reply<Vec<T>>>,
}

impl<C, F, T> CollectWalk<C, F, T>
where
    C: Cursor,
    F: FnMut(&Tree, &Arc<C::Item>) -> Option<T> + Send,
    T: Send,
{
    /// Creates a walk that passes the picked values to `reply` at its end.
    pub fn new(cursor: C, pick: F, reply: Reply<Vec<T>>) -> CollectWalk<C, F, T> {
        CollectWalk {
            cursor,
            pick,
            found: Vec::new(),
            reply: Some(reply),
        }
    }
}

impl<C, F, T> TreeWalk for CollectWalk<C, F, T>
where
    C: Cursor,
    F: FnMut(&Tree, &Arc<C::Item>) -> Option<T> + Send,
    T: Send,
{
    fn step(&mut self, tree: &Tree, limit: usize) -> WalkProgress {
        for looked_at in 0..limit {
            match self.cursor.next(tree) {
                CursorStep::Item(item) => self.found.extend((self.pick)(tree, item)),
                CursorStep::Skipped => {}
                CursorStep::End => {
                    if let Some(reply) = self.reply.take() {
                        reply(std::mem::take(&mut self.found));
                    }
                    let done = true;
                    return WalkProgress { looked_at, done };
                }
            }
        }
        WalkProgress {
            looked_at: limit,
            done: false,
        }
    }
}
