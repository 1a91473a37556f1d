//! Cursors over the tree's large collections, for listings that take several turns.
//!
//! The tree may change between two steps. An item that exists during the whole listing is visited exactly once. An item
//! that is removed before its turn is not visited, and one that is added meanwhile may be missing.

use crate::exchanges::BindingKey;
use crate::{BindingRecord, ExchangeRecord, Name, QueueId, QueueRecord, Tree};
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::Arc;

/// A position in one of the tree's collections. It holds no reference to the tree between two steps.
pub trait Cursor: Send {
    /// The record that the cursor visits.
    type Item;
    /// Advances to the next item. Each call costs about the same, however large the collection is.
    fn next<'t>(&mut self, tree: &'t Tree) -> CursorStep<'t, Self::Item>;
}

/// One step of a cursor.
pub enum CursorStep<'t, T> {
    /// The next item.
    Item(&'t Arc<T>),
    /// A position without an item, which costs as much as an item.
    Skipped,
    /// There are no more items.
    End,
}

/// All queues, in the order in which they were declared.
#[derive(Debug, Default)]
pub struct QueueCursor {
    next: QueueId,
}

impl Cursor for QueueCursor {
    type Item = QueueRecord;

    fn next<'t>(&mut self, tree: &'t Tree) -> CursorStep<'t, QueueRecord> {
        let Some(id) = tree.queue_ids.range(self.next..).next() else {
            return CursorStep::End;
        };
        self.next = QueueId(id.0.saturating_add(1));
        tree.queue_by_id(*id)
            .map_or(CursorStep::Skipped, CursorStep::Item)
    }
}

/// The queues with these ids.
#[derive(Debug)]
pub struct QueuesById {
    ids: std::vec::IntoIter<QueueId>,
}

impl From<Vec<QueueId>> for QueuesById {
    fn from(ids: Vec<QueueId>) -> QueuesById {
        QueuesById {
            ids: ids.into_iter(),
        }
    }
}

impl Cursor for QueuesById {
    type Item = QueueRecord;

    fn next<'t>(&mut self, tree: &'t Tree) -> CursorStep<'t, QueueRecord> {
        match self.ids.next() {
            Some(id) => tree
                .queue_by_id(id)
                .map_or(CursorStep::Skipped, CursorStep::Item),
            None => CursorStep::End,
        }
    }
}

/// All exchanges, in the order in which they were added to this tree.
#[derive(Debug, Default)]
pub struct ExchangeCursor {
    next: u64,
}

impl Cursor for ExchangeCursor {
    type Item = ExchangeRecord;

    fn next<'t>(&mut self, tree: &'t Tree) -> CursorStep<'t, ExchangeRecord> {
        let Some((number, (vhost, name))) = tree.exchange_names.range(self.next..).next() else {
            return CursorStep::End;
        };
        self.next = number.saturating_add(1);
        tree.exchange(vhost, name)
            .map_or(CursorStep::Skipped, CursorStep::Item)
    }
}

/// All explicit bindings, by source.
#[derive(Debug, Default)]
pub struct BindingCursor {
    source: u64,
    /// The last visited binding of this source.
    last: Option<BindingKey>,
}

impl Cursor for BindingCursor {
    type Item = BindingRecord;

    fn next<'t>(&mut self, tree: &'t Tree) -> CursorStep<'t, BindingRecord> {
        let Some((number, (vhost, name))) = tree.exchange_names.range(self.source..).next() else {
            return CursorStep::End;
        };
        if *number != self.source {
            (self.source, self.last) = (*number, None);
        }
        match next_binding(tree, (vhost, name), &mut self.last) {
            Some(binding) => CursorStep::Item(binding),
            None => {
                (self.source, self.last) = (number.saturating_add(1), None);
                CursorStep::Skipped
            }
        }
    }
}

/// The explicit bindings of one source.
#[derive(Debug)]
pub struct SourceCursor {
    vhost: Name,
    exchange: Name,
    last: Option<BindingKey>,
}

impl SourceCursor {
    /// Starts before the first binding of the exchange, which need not exist.
    pub fn new(vhost: &str, exchange: &str) -> SourceCursor {
        SourceCursor {
            vhost: vhost.into(),
            exchange: exchange.into(),
            last: None,
        }
    }
}

impl Cursor for SourceCursor {
    type Item = BindingRecord;

    fn next<'t>(&mut self, tree: &'t Tree) -> CursorStep<'t, BindingRecord> {
        let source = (&*self.vhost, &*self.exchange);
        next_binding(tree, source, &mut self.last).map_or(CursorStep::End, CursorStep::Item)
    }
}

fn next_binding<'t>(
    tree: &'t Tree,
    (vhost, exchange): (&str, &str),
    last: &mut Option<BindingKey>,
) -> Option<&'t Arc<BindingRecord>> {
    let first = last.as_ref().map_or(Unbounded, Excluded);
    let bindings = &tree.find_exchange(vhost, exchange)?.bindings;
    let (key, binding) = bindings.range((first, Unbounded)).next()?;
    *last = Some(key.clone());
    Some(binding)
}

impl Tree {
    /// Ids of the queues from this one on, in order.
    pub fn queue_ids_from(&self, first: QueueId) -> impl Iterator<Item = QueueId> {
        let range = (Included(first), Unbounded);
        self.queue_ids.range(range).copied()
    }
}
