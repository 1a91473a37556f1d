//! The number of quorum queues that each node leads, as far as this shard knows. It is updated when leaders are announced, so
//! that placing a queue does not look at all others. A queue without a replica here counts for its first member.

use crate::FixedState;
use env::NodeId;
use hashbrown::HashMap;
use metadata::{QueueId, Tree};
use std::collections::BTreeMap;

/// Queues whose leader was heard of.
#[derive(Debug, Default)]
pub(crate) struct KnownLeaders {
    queues: HashMap<QueueId, KnownLeader, FixedState>,
    by_leader: BTreeMap<NodeId, usize>,
    by_first_member: BTreeMap<NodeId, usize>,
}

#[derive(Clone, Copy, Debug)]
struct KnownLeader {
    leader: NodeId,
    first_member: NodeId,
}

fn add(counts: &mut BTreeMap<NodeId, usize>, node: NodeId) {
    *counts.entry(node).or_default() += 1;
}

fn subtract(counts: &mut BTreeMap<NodeId, usize>, node: NodeId) {
    if let Some(count) = counts.get_mut(&node) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&node);
        }
    }
}

impl KnownLeaders {
    /// A replica here has heard of the queue's leader.
    pub(crate) fn heard(&mut self, tree: &Tree, queue: QueueId, leader: NodeId) {
        self.forget(queue);
        let first = tree.queue_by_id(queue).and_then(|q| q.members.first());
        let Some(first_member) = first.copied() else {
            return;
        };
        add(&mut self.by_leader, leader);
        add(&mut self.by_first_member, first_member);
        let known = KnownLeader {
            leader,
            first_member,
        };
        self.queues.insert(queue, known);
    }

    /// The queue has other members.
    pub(crate) fn members_changed(&mut self, tree: &Tree, queue: QueueId) {
        if let Some(known) = self.queues.get(&queue).copied() {
            self.heard(tree, queue, known.leader);
        }
    }

    /// The queue, or the replica here, is gone.
    pub(crate) fn forget(&mut self, queue: QueueId) {
        if let Some(known) = self.queues.remove(&queue) {
            subtract(&mut self.by_leader, known.leader);
            subtract(&mut self.by_first_member, known.first_member);
        }
    }

    /// The tree was replaced by another one.
    pub(crate) fn restore(&mut self, tree: &Tree) {
        let known: Vec<(QueueId, NodeId)> =
            self.queues.iter().map(|(q, k)| (*q, k.leader)).collect();
        *self = KnownLeaders::default();
        for (queue, leader) in known {
            self.heard(tree, queue, leader);
        }
    }

    /// Queues that the node leads.
    pub(crate) fn count(&self, tree: &Tree, node: NodeId) -> usize {
        let known = self.by_leader.get(&node).copied().unwrap_or_default();
        let first = self.by_first_member.get(&node).copied().unwrap_or_default();
        known + tree.first_member_count(node).saturating_sub(first)
    }

    /// As [`KnownLeaders::count`] of all nodes, with a look at every queue.
    #[cfg(any(test, debug_assertions))]
    pub(crate) fn recount(&self, tree: &Tree) -> BTreeMap<NodeId, usize> {
        let mut counts = BTreeMap::new();
        for record in tree.all_queues() {
            if record.kind.is_replicated() {
                let known = self.queues.get(&record.id).map(|k| k.leader);
                if let Some(leader) = known.or(record.members.first().copied()) {
                    add(&mut counts, leader);
                }
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{Rng, SeededRng};
    use metadata::{Change, NodeRecord, QueueRecord, QueueType, UserRecord};

    fn nodes() -> Vec<NodeRecord> {
        let node = |id: u64| NodeRecord {
            id: NodeId(id),
            name: format!("n{id}").into(),
            address: format!("n{id}:1").into(),
            voter: true,
            maintenance: false,
        };
        (1..=3).map(node).collect()
    }

    #[test]
    fn counts_equal_a_recount_after_any_changes() {
        let mut tree = Tree::default();
        let mut index = 0;
        let mut apply = |tree: &mut Tree, change: Change| {
            index += 1;
            let _ = tree.apply(index, &change);
        };
        let user = UserRecord {
            name: "guest".into(),
            password: None,
            tags: Vec::new(),
            limits: Vec::new(),
        };
        let (cluster, nodes) = ("c".into(), nodes());
        let bootstrap = Change::Bootstrap {
            cluster,
            nodes,
            user,
        };
        apply(&mut tree, bootstrap);
        let mut leaders = KnownLeaders::default();
        let mut rng = SeededRng::new(7);
        let members = |rng: &mut SeededRng| -> Vec<NodeId> {
            let mut all: Vec<NodeId> = (1..=3).map(NodeId).collect();
            all.rotate_left(rng.below(3) as usize);
            all.truncate(1 + rng.below(3) as usize);
            all
        };
        for _ in 0..2_000 {
            let name = format!("q{}", rng.below(20));
            let there = tree.queue("/", &name).map(|q| q.id);
            match (rng.below(4), there) {
                (0, _) => {
                    let record = QueueRecord {
                        id: QueueId(0),
                        vhost: "/".into(),
                        name: name.as_str().into(),
                        kind: QueueType::Quorum,
                        durable: true,
                        auto_delete: false,
                        exclusive: None,
                        arguments: Default::default(),
                        members: members(&mut rng),
                        declared_by: "".into(),
                    };
                    apply(&mut tree, Change::DeclareQueue(record));
                }
                (1, Some(id)) => {
                    let members = members(&mut rng);
                    apply(&mut tree, Change::SetQueueMembers { id, members });
                    leaders.members_changed(&tree, id);
                }
                (2, Some(id)) => leaders.heard(&tree, id, NodeId(1 + rng.below(3))),
                (3, Some(id)) if rng.chance(1, 3) => {
                    let (vhost, name) = ("/".into(), name.as_str().into());
                    let id_of = Some(id);
                    let change = Change::DeleteQueue {
                        vhost,
                        name,
                        id: id_of,
                    };
                    apply(&mut tree, change);
                    leaders.forget(id);
                }
                _ if rng.chance(1, 50) => {
                    tree = Tree::restore(&tree.snapshot()).expect("its own snapshot");
                    leaders.restore(&tree);
                }
                _ => {}
            }
            assert!(tree.member_counts_match_queues());
            let recount = leaders.recount(&tree);
            for node in (1..=3).map(NodeId) {
                let want = recount.get(&node).copied().unwrap_or_default();
                assert_eq!(leaders.count(&tree, node), want);
            }
        }
    }
}
