//! Number of quorum queues that each node is a member of, and the first member of. Updated with every change, so that
//! placing a queue does not have to visit all queues.

use crate::{QueueRecord, Tree};
use env::NodeId;
use std::collections::BTreeMap;

/// Numbers of quorum queues by node. Derived from their records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemberCounts(BTreeMap<NodeId, NodeMemberCount>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct NodeMemberCount {
    member: usize,
    first: usize,
}

impl MemberCounts {
    pub(crate) fn add(&mut self, queue: &QueueRecord) {
        if !queue.kind.is_replicated() {
            return;
        }
        for (position, node) in queue.members.iter().enumerate() {
            let count = self.0.entry(*node).or_default();
            count.member += 1;
            count.first += usize::from(position == 0);
        }
    }

    pub(crate) fn remove(&mut self, queue: &QueueRecord) {
        if !queue.kind.is_replicated() {
            return;
        }
        for (position, node) in queue.members.iter().enumerate() {
            let Some(count) = self.0.get_mut(node) else {
                continue;
            };
            debug_assert!(
                count.member > 0 && count.first >= usize::from(position == 0),
                "queue {:?}: its member {node:?} was not counted",
                queue.id
            );
            count.member = count.member.saturating_sub(1);
            count.first = count.first.saturating_sub(usize::from(position == 0));
            if count.member == 0 {
                self.0.remove(node);
            }
        }
    }
}

impl Tree {
    /// Number of quorum queues that the node is a member of.
    pub fn member_count(&self, node: NodeId) -> usize {
        self.member_counts.0.get(&node).map_or(0, |c| c.member)
    }

    /// Number of quorum queues that the node is the first member of.
    pub fn first_member_count(&self, node: NodeId) -> usize {
        self.member_counts.0.get(&node).map_or(0, |c| c.first)
    }

    /// Whether the counts agree with the queue records. Visits all queues.
    pub fn member_counts_match_queues(&self) -> bool {
        let mut counted = MemberCounts::default();
        self.queues.values().for_each(|q| counted.add(&q.record));
        counted == self.member_counts
    }

    /// Number of queue records that [`Tree::all_queues`] has returned, in builds with debug assertions. Tests of the
    /// cost of an operation compare it.
    #[cfg(debug_assertions)]
    pub fn visited_queue_count(&self) -> u64 {
        self.visited_queues.get()
    }
}
