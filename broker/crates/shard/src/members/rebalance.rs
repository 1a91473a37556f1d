//! Chooses the leaders to move so that every node leads its share. Pure.

use env::NodeId;
use metadata::QueueId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// A queue, who leads it, and who could: members that are up, have a vote and are not in maintenance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LedQueue {
    pub queue: QueueId,
    pub leader: NodeId,
    pub able: Vec<NodeId>,
}

/// The moves after which no node can be relieved any more: from whichever node leads the most, over others where the
/// direct way is closed, to one that leads at least two less. Queues move once, or not at all.
pub(crate) fn plan(queues: &[LedQueue]) -> Vec<(QueueId, NodeId)> {
    let mut state = State::new(queues);
    while let Some(way) = state.way() {
        for pair in way.windows(2) {
            if let [from, to] = pair {
                state.shift(*from, *to);
            }
        }
    }
    let moved = queues.iter().filter_map(|q| {
        let now = state.leader.get(&q.queue)?;
        (*now != q.leader).then_some((q.queue, *now))
    });
    moved.collect()
}

struct State<'a> {
    able: BTreeMap<QueueId, &'a [NodeId]>,
    leader: BTreeMap<QueueId, NodeId>,
    led: BTreeMap<NodeId, usize>,
    /// Queues by who leads them and who else could.
    open: BTreeMap<(NodeId, NodeId), BTreeSet<QueueId>>,
}

impl<'a> State<'a> {
    /// A queue whose leader should not lead it begins with the least loaded that may.
    fn new(queues: &'a [LedQueue]) -> State<'a> {
        let mut state = State {
            able: queues.iter().map(|q| (q.queue, &q.able[..])).collect(),
            leader: BTreeMap::new(),
            led: BTreeMap::new(),
            open: BTreeMap::new(),
        };
        let (settled, astray): (Vec<&LedQueue>, Vec<&LedQueue>) =
            queues.iter().partition(|q| q.able.contains(&q.leader));
        for node in queues.iter().flat_map(|q| &q.able) {
            state.led.entry(*node).or_default();
        }
        for q in settled {
            state.place(q.queue, q.leader);
        }
        for q in astray {
            let least = q.able.iter().min_by_key(|n| (state.count(**n), **n));
            if let Some(node) = least.copied() {
                state.place(q.queue, node);
            }
        }
        state
    }

    fn place(&mut self, queue: QueueId, leader: NodeId) {
        self.leader.insert(queue, leader);
        *self.led.entry(leader).or_default() += 1;
        for to in self.able.get(&queue).into_iter().copied().flatten() {
            self.open.entry((leader, *to)).or_default().insert(queue);
        }
    }

    fn take(&mut self, queue: QueueId, leader: NodeId) {
        if let Some(count) = self.led.get_mut(&leader) {
            *count -= 1;
        }
        for to in self.able.get(&queue).into_iter().copied().flatten() {
            if let Some(queues) = self.open.get_mut(&(leader, *to)) {
                queues.remove(&queue);
            }
        }
    }

    fn count(&self, node: NodeId) -> usize {
        self.led.get(&node).copied().unwrap_or(0)
    }

    /// Nodes that some queue of `from` could move to.
    fn reach(&self, from: NodeId) -> impl Iterator<Item = NodeId> + '_ {
        let all = self
            .open
            .range((from, NodeId(0))..=(from, NodeId(u64::MAX)));
        let some = all.filter(|(_, queues)| !queues.is_empty());
        some.map(|((_, to), _)| *to)
    }

    /// A way along which one leadership can be passed on to relieve the node that leads the most of those for which
    /// there is one.
    fn way(&self) -> Option<Vec<NodeId>> {
        let mut nodes: Vec<NodeId> = self.led.keys().copied().collect();
        nodes.sort_by_key(|n| (std::cmp::Reverse(self.count(*n)), *n));
        nodes.into_iter().find_map(|n| self.way_from(n))
    }

    fn way_from(&self, start: NodeId) -> Option<Vec<NodeId>> {
        let full = self.count(start);
        let mut came: BTreeMap<NodeId, NodeId> = BTreeMap::from([(start, start)]);
        let mut next = VecDeque::from([start]);
        while let Some(at) = next.pop_front() {
            if self.count(at) + 2 <= full {
                let mut way = vec![at];
                let mut node = at;
                while node != start {
                    node = *came.get(&node)?;
                    way.push(node);
                }
                way.reverse();
                return Some(way);
            }
            for to in self.reach(at) {
                if let std::collections::btree_map::Entry::Vacant(new) = came.entry(to) {
                    new.insert(at);
                    next.push_back(to);
                }
            }
        }
        None
    }

    fn shift(&mut self, from: NodeId, to: NodeId) {
        let queues = self.open.get(&(from, to));
        if let Some(queue) = queues.and_then(BTreeSet::last).copied() {
            self.take(queue, from);
            self.place(queue, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn led(rows: &[(u64, &[u64])]) -> Vec<LedQueue> {
        let each = rows.iter().zip(1..);
        each.map(|((leader, able), queue)| LedQueue {
            queue: QueueId(queue),
            leader: NodeId(*leader),
            able: able.iter().map(|n| NodeId(*n)).collect(),
        })
        .collect()
    }

    fn counts(queues: &[LedQueue], moves: &[(QueueId, NodeId)]) -> Vec<(u64, usize)> {
        let mut counts = BTreeMap::new();
        for q in queues {
            let to = moves.iter().find(|(id, _)| *id == q.queue);
            *counts.entry(to.map_or(q.leader, |m| m.1).0).or_default() += 1;
        }
        counts.into_iter().collect()
    }

    #[test]
    fn shares() {
        let (two, all) = (&[1, 2][..], &[1, 2, 3][..]);
        for (what, rows, moves, want) in [
            ("nothing", &[][..], 0, &[][..]),
            (
                "as even as it gets",
                &[(1, two), (2, two), (2, two)],
                0,
                &[(1, 1), (2, 2)],
            ),
            ("all on one", &[(1, all); 6], 4, &[(1, 2), (2, 2), (3, 2)]),
            ("nobody else can", &[(1, &[1][..]); 3], 0, &[(1, 3)]),
            (
                "over the one between",
                &[
                    (1, &[1, 2]),
                    (1, &[1, 2]),
                    (1, &[1, 2]),
                    (2, &[2, 3]),
                    (2, &[2, 3]),
                ],
                2,
                &[(1, 2), (2, 2), (3, 1)],
            ),
            (
                "in maintenance",
                &[(9, all), (9, all), (1, all)],
                2,
                &[(1, 1), (2, 1), (3, 1)],
            ),
            ("in maintenance, alone", &[(9, &[])], 0, &[(9, 1)]),
        ] {
            let queues = led(rows);
            let plan = plan(&queues);
            assert_eq!(
                (plan.len(), &counts(&queues, &plan)[..]),
                (moves, want),
                "{what}"
            );
        }
    }

    proptest! {
        #[test]
        fn only_to_who_is_able_and_never_worse(
            rows in proptest::collection::vec((1u64..5, proptest::collection::btree_set(1u64..5, 1..4)), 0..30)
        ) {
            let rows: Vec<(u64, Vec<u64>)> = rows.into_iter().map(|(l, a)| (l, a.into_iter().collect())).collect();
            let rows: Vec<(u64, &[u64])> = rows.iter().map(|(l, a)| (*l, &a[..])).collect();
            let queues = led(&rows);
            let moves = plan(&queues);
            for (id, to) in &moves {
                let queue = queues.iter().find(|q| q.queue == *id);
                prop_assert!(queue.is_some_and(|q| q.able.contains(to) && q.leader != *to));
            }
            // Nothing is left to do afterwards.
            let after: Vec<LedQueue> = queues.iter().map(|q| {
                let to = moves.iter().find(|(id, _)| *id == q.queue);
                LedQueue { leader: to.map_or(q.leader, |m| m.1), ..q.clone() }
            }).collect();
            prop_assert_eq!(plan(&after), vec![]);
            // The best that could be: no node leads more than it must, counting every set of nodes.
            let most = counts(&after, &[]).iter().map(|c| c.1).max().unwrap_or(0);
            let must = (1u32..16).map(|set| {
                let inside = |n: &NodeId| set & (1 << (n.0 - 1)) != 0;
                let bound = queues.iter().filter(|q| q.able.iter().all(inside)).count();
                bound.div_ceil(set.count_ones() as usize)
            }).max().unwrap_or(0);
            prop_assert!(most <= must.max(1), "{most} where {must} would do");
        }
    }
}
