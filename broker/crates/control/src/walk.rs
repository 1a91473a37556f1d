//! Walks over collections of the tree. Each turn of shard 0 visits a bounded number of items.

use crate::Reply;
use metadata::{Cursor, Step, Tree};
use std::sync::Arc;

/// The result of one step of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of items visited.
    pub looked_at: usize,
    pub done: bool,
}

/// A walk that continues in each turn until it is done, and then replies.
pub trait TreeWalk: Send {
    /// Visits at most `limit` items.
    fn step(&mut self, tree: &Tree, limit: usize) -> Progress;
}

/// Collects the results of `pick` for the items of a cursor.
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
