//! How many quorum queues have each node as a member, and as the first one: kept with every change, so that to place a queue
//! does not mean to look at all that there are.

use crate::{QueueRecord, Tree};
use env::NodeId;
use std::collections::BTreeMap;

/// Quorum queues by node. Follows from their records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberCounts(BTreeMap<NodeId, NodeCount>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeCount {
    member: usize,
    first: usize,
}

impl MemberCounts {
    pub(crate) fn add(&mut self, queue: &QueueRecord) {
        if !queue.kind.is_replicated() {
            return;
        }
        for (at, node) in queue.members.iter().enumerate() {
            let count = self.0.entry(*node).or_default();
            count.member += 1;
            count.first += usize::from(at == 0);
        }
    }

    pub(crate) fn remove(&mut self, queue: &QueueRecord) {
        if !queue.kind.is_replicated() {
            return;
        }
        for (at, node) in queue.members.iter().enumerate() {
            let Some(count) = self.0.get_mut(node) else {
                continue;
            };
            count.member = count.member.saturating_sub(1);
            count.first = count.first.saturating_sub(usize::from(at == 0));
            if count.member == 0 {
                self.0.remove(node);
            }
        }
    }
}

impl Tree {
    /// Quorum queues that the node is a member of.
    pub fn member_count(&self, node: NodeId) -> usize {
        self.member_counts.0.get(&node).map_or(0, |c| c.member)
    }

    /// Quorum queues that the node is the first member of.
    pub fn first_member_count(&self, node: NodeId) -> usize {
        self.member_counts.0.get(&node).map_or(0, |c| c.first)
    }

    /// Whether the counts are those of the queues that there are. Looks at all of them.
    pub fn member_counts_are_right(&self) -> bool {
        let mut counted = MemberCounts::default();
        self.queues.values().for_each(|q| counted.add(&q.record));
        counted == self.member_counts
    }

    /// Queue records that [`Tree::all_queues`] has handed out, in builds with debug assertions: tests of what an operation costs
    /// compare it.
    #[cfg(debug_assertions)]
    pub fn queues_walked(&self) -> u64 {
        self.walked.get()
    }
}
