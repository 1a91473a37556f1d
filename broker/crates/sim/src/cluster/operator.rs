//! Whoever runs the cluster: moves members and leaders, restarts nodes in turn, gives a machine that lost its disk a
//! successor under its name, and deletes the classic queues that are gone with it once the cluster has replaced it.

use super::node::{Identities, Node, Operation, Request};
use super::oracle::{Oracle, WindowId};
use crate::world::{Scenario, World};
use control::MemberChange;
use env::{NodeId, Rng, SeededRng};
use metadata::{Change, QueueId, QueueRecord, QueueType, Tree};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

#[derive(Default)]
pub struct Operator {
    /// Takes members away without giving others: a group of two or of one is lost with a machine of it, so in such a run none
    /// loses its data.
    shrinks: bool,
    /// Restarts that are still to come of those that were decided on.
    rolling: VecDeque<NodeId>,
    /// Queues of the plan that are gone with their machine and not deleted yet.
    lost: BTreeMap<QueueId, Option<WindowId>>,
    /// Nodes that are gone for good.
    gone: BTreeSet<NodeId>,
    leaving: Option<DepartingNode>,
    /// Nodes that another one was asked to forget.
    pub seen_off: BTreeSet<NodeId>,
    pub replaced: u64,
    /// Changes of members, rebalances, maintenance.
    pub asked: u64,
}

/// A node that is drained and forgotten while it runs.
struct DepartingNode {
    machine: NodeId,
    node: NodeId,
    /// How often it has ended because it was removed: once when it was told, and again when it came back as who it was.
    ended: u32,
    /// How often somebody else is still to put a queue on it when it has none.
    crossed: u32,
}

/// See [`DepartingNode::crossed`].
const CROSSED: u32 = 4;

/// What the operator wants done to a machine.
pub enum OperatorAction {
    ShutDown(NodeId),
}

impl Operator {
    pub fn new(shrinks: bool) -> Operator {
        Operator {
            shrinks,
            ..Operator::default()
        }
    }

    /// A machine is to be taken away: its classic queues are lost.
    pub fn takes_away<S: Scenario<Process = Node>>(
        &mut self,
        world: &World<S>,
        node: NodeId,
        oracle: &mut Oracle,
    ) -> Vec<String> {
        self.gone.insert(node);
        self.replaced += 1;
        let lost = newest_tree(world).map_or(Vec::new(), |tree| classic_of(tree, node));
        let mut names = Vec::new();
        for record in lost {
            self.lose(world.now(), &record, oracle);
            names.push(record.name.to_string());
        }
        names
    }

    fn lose(&mut self, now: env::Time, record: &QueueRecord, oracle: &mut Oracle) {
        let plan = oracle.queues.iter().position(|q| *q.name == *record.name);
        let open = |queue| oracle.lost(now, queue);
        let window = plan.map(open);
        self.lost.entry(record.id).or_insert(window);
    }

    /// Deletes what is lost. That a node which is gone leaves the cluster is the cluster's own work, and must not wait for this.
    /// The names of queues that are lost.
    pub fn clear<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        rng: &mut SeededRng,
        oracle: &mut Oracle,
    ) -> Vec<String> {
        let now = world.now();
        let Some(tree) = newest_tree(world) else {
            return Vec::new();
        };
        let (mut changes, mut names) = (Vec::new(), Vec::new());
        let leaving = self.leaving.as_ref().map(|l| l.node);
        for node in self.gone.clone().iter().chain(&leaving) {
            // Also those that were declared while nobody had noticed.
            for record in classic_of(tree, *node) {
                self.lose(now, &record, oracle);
                names.push(record.name.to_string());
                let is_replaced = tree.node(*node).is_none();
                if is_replaced || leaving == Some(*node) {
                    changes.push(Change::DeleteQueue {
                        vhost: record.vhost.clone(),
                        name: record.name.clone(),
                        id: Some(record.id),
                    });
                }
            }
        }
        let there = |id: QueueId| tree.queue_by_id(id).is_some();
        let over: Vec<QueueId> = self.lost.keys().copied().filter(|q| !there(*q)).collect();
        for queue in over {
            if let Some(Some(window)) = self.lost.remove(&queue) {
                oracle.closed(now, window);
            }
        }
        for change in changes {
            ask(world, rng, Operation::Change(change));
        }
        names
    }

    /// No queue is lost whose node has its disk.
    pub fn only_gone_disks_lose_queues<S: Scenario<Process = Node>>(
        &self,
        world: &World<S>,
    ) -> Result<(), String> {
        let tree = newest_tree(world);
        let lost = tree.iter().flat_map(|tree| tree.lost_queues());
        for (queue, node) in lost {
            let record = tree.and_then(|tree| tree.queue_by_id(queue));
            let has = |m: &NodeId| self.gone.contains(m);
            if !record.is_some_and(|r| r.members.iter().all(has)) {
                return Err(format!("queue {} is lost, and node {node} is not", queue.0));
            }
        }
        Ok(())
    }

    /// Something that operators do.
    pub fn act<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        identities: &Identities,
        rng: &mut SeededRng,
    ) -> Option<OperatorAction> {
        if let Some(next) = self.rolling.front().copied() {
            let nodes = world.nodes();
            if !nodes.contains(&next) {
                self.rolling.pop_front();
            } else if nodes.iter().all(|n| is_ready(world, *n)) {
                // Each when all are there again.
                self.rolling.pop_front();
                return Some(OperatorAction::ShutDown(next));
            }
            return None;
        }
        let all: Vec<NodeId> = identities.borrow().values().map(|i| i.node).collect();
        let mut node = || {
            all.get(rng.below(all.len().max(1) as u64) as usize)
                .copied()
        };
        let (old, new) = (node().unwrap_or_default(), node().unwrap_or_default());
        let tree = newest_tree(world)?;
        let mut queues: Vec<QueueId> = quorum_queues(tree).map(|q| q.id).collect();
        queues.sort_unstable();
        if rng.chance(1, 2) {
            // One of them.
            let at = rng.below(queues.len().max(1) as u64) as usize;
            queues = queues.get(at).copied().into_iter().collect();
        }
        let change = match rng.below(8) {
            0 if self.shrinks => MemberChange::Remove(old),
            1 if self.shrinks => MemberChange::Evacuate(old),
            0..3 => MemberChange::Replace { old, new },
            // So that most have three most of the time.
            3..6 => MemberChange::Add(new),
            6 => {
                self.rolling = world.nodes().into();
                return None;
            }
            _ => {
                let on = rng.chance(1, 3);
                let operation = match rng.below(4) {
                    0 | 1 => Operation::Rebalance,
                    3 if self.shrinks => {
                        self.leave(identities, old);
                        return None;
                    }
                    _ => Operation::Maintenance(on),
                };
                self.asked += 1;
                ask(world, rng, operation);
                return None;
            }
        };
        self.asked += 1;
        ask(world, rng, Operation::Members { queues, change });
        None
    }

    fn leave(&mut self, identities: &Identities, node: NodeId) {
        let all = identities.borrow();
        let machine = all.iter().find(|(_, i)| i.node == node && i.member);
        if let Some((machine, _)) = machine.filter(|_| self.leaving.is_none()) {
            self.asked += 1;
            self.leaving = Some(DepartingNode {
                machine: *machine,
                node,
                ended: 0,
                crossed: CROSSED,
            });
        }
    }

    pub fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Goes on with a node that leaves: it is drained, and another one is asked to forget it. Somebody who has not heard of
    /// that puts a queue on it when it has given up its last.
    pub fn see_off<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        rng: &mut SeededRng,
    ) {
        let Some(leaving) = self.leaving.as_mut().filter(|l| l.ended == 0) else {
            return;
        };
        let node = leaving.node;
        self.seen_off.insert(node);
        let drain = Request::Operate(Operation::Maintenance(true));
        world.request(leaving.machine, 0, drain);
        let free = newest_tree(world).and_then(|tree| {
            let lists = |q: &Arc<QueueRecord>| q.members.contains(&node);
            let one = quorum_queues(tree).map(|q| q.id).min();
            one.filter(|_| tree.node(node).is_some() && !quorum_queues(tree).any(lists))
        });
        ask(world, rng, Operation::Forget(node));
        if let Some(queue) = free.filter(|_| leaving.crossed > 0 && rng.chance(1, 2)) {
            leaving.crossed -= 1;
            let (queues, change) = (vec![queue], MemberChange::Add(node));
            ask(world, rng, Operation::Members { queues, change });
        }
    }

    /// A machine's software has ended with the word that its node was removed. False: nobody has asked for that.
    pub fn was_removed(&mut self, machine: NodeId) -> bool {
        let leaving = self.leaving.as_mut().filter(|l| l.machine == machine);
        if let Some(leaving) = leaving {
            leaving.ended += 1;
            return true;
        }
        false
    }

    /// A machine that was refused as who it was: it may come with an empty disk.
    pub fn has_left(&mut self) -> Option<NodeId> {
        let left = self.leaving.take_if(|l| l.ended > 1);
        left.map(|l| l.machine)
    }

    /// Ends maintenance, and restarts no more.
    pub fn finish<S: Scenario<Process = Node>>(&mut self, world: &mut World<S>) {
        self.rolling.clear();
        let stays = |n: &NodeId| self.leaving.as_ref().is_none_or(|l| l.machine != *n);
        for node in world.nodes().into_iter().filter(stays) {
            let operation = Operation::Maintenance(false);
            world.request(node, 0, Request::Operate(operation));
        }
    }
}

/// The node has applied what was decided when it came, and belongs to the cluster.
pub fn is_ready<S: Scenario<Process = Node>>(world: &World<S>, node: NodeId) -> bool {
    let process = world.process(node);
    process.is_some_and(|p| p.shards().next().is_some() && p.is_listening())
}

/// Of some node that is up.
pub fn ask<S: Scenario<Process = Node>>(
    world: &mut World<S>,
    rng: &mut SeededRng,
    operation: Operation,
) {
    let nodes = world.nodes();
    let up: Vec<NodeId> = (nodes.into_iter())
        .filter(|n| world.process(*n).is_some())
        .collect();
    if let Some(node) = up.get(rng.below(up.len().max(1) as u64) as usize) {
        world.request(*node, 0, Request::Operate(operation));
    }
}

/// The tree of whoever has applied most.
pub fn newest_tree<S: Scenario<Process = Node>>(world: &World<S>) -> Option<&Tree> {
    let nodes = world.nodes().into_iter();
    let shards = nodes.filter_map(|n| world.process(n)?.shards().next());
    let newest = shards.max_by_key(|s| s.core().applied)?;
    Some(&newest.core().tree)
}

fn quorum_queues(tree: &Tree) -> impl Iterator<Item = &Arc<QueueRecord>> {
    tree.all_queues().filter(|q| q.kind == QueueType::Quorum)
}

/// Classic queues that live on a node, by id.
fn classic_of(tree: &Tree, node: NodeId) -> Vec<Arc<QueueRecord>> {
    let there = |q: &&Arc<QueueRecord>| q.kind == QueueType::Classic && q.members == [node];
    let mut all: Vec<_> = tree.all_queues().filter(there).cloned().collect();
    all.sort_unstable_by_key(|q| q.id);
    all
}

/// Every group has the members that it is to have, and no machine that is gone is among them; and every queue has so many
/// of them at least. `Err`: what is still to be done.
pub fn all_is_replicated<S: Scenario<Process = Node>>(
    world: &World<S>,
    identities: &Identities,
    least: usize,
) -> Result<(), String> {
    let live: BTreeSet<NodeId> = identities.borrow().values().map(|i| i.node).collect();
    let tree = newest_tree(world).ok_or("no node is up")?;
    let known: BTreeSet<NodeId> = tree.nodes().map(|n| n.id).collect();
    if known != live {
        return Err(format!(
            "the tree has the nodes {known:?}, there are {live:?}"
        ));
    }
    if let Some((queue, node)) = tree.lost_queues().next() {
        let queue = queue.0;
        return Err(format!(
            "queue {queue} of node {node} is lost and still there"
        ));
    }
    let mut led = BTreeMap::new();
    let mut metadata = None;
    for node in world.nodes() {
        let process = world.process(node);
        for shard in process.iter().flat_map(|p| p.shards()) {
            let local_queues = &shard.core().local_queues;
            let queues = local_queues.led_queues().into_iter();
            let statuses = queues.filter_map(|q| Some((q, local_queues.led_status(q)?)));
            led.extend(statuses);
            let status = local_queues.metadata_status().filter(|s| s.is_leader);
            metadata = metadata.or(status);
        }
    }
    let voters: Option<BTreeSet<NodeId>> =
        metadata.map(|s| s.membership.voters.into_iter().collect());
    if voters.as_ref() != Some(&live) {
        return Err(format!("voters on metadata are {voters:?}"));
    }
    for record in quorum_queues(tree) {
        let members = record.members.len();
        if members < least {
            return Err(format!("{} has {members} members", record.name));
        }
        let status = led.get(&record.id).ok_or_else(|| {
            let (name, each) = (&record.name, replicas(world, record.id));
            format!("nobody leads {name} with {:?}: {each:?}", record.members)
        })?;
        let is: BTreeSet<&NodeId> = status.membership.voters.iter().collect();
        let wanted: BTreeSet<&NodeId> = record.members.iter().collect();
        if is != wanted || !status.membership.learners.is_empty() {
            return Err(format!("{} has {status:?}, wanted {wanted:?}", record.name));
        }
    }
    Ok(())
}

/// What each node that is up tells of its replica of a queue.
fn replicas<S: Scenario<Process = Node>>(world: &World<S>, queue: QueueId) -> Vec<String> {
    let mut all = Vec::new();
    for process in world.nodes().iter().filter_map(|n| world.process(*n)) {
        for shard in process.shards() {
            let local_queues = &shard.core().local_queues;
            if local_queues.has_replica(queue) {
                let told = local_queues.tell_replica(queue);
                all.push(format!("{}: {told:?}", process.id().0));
            }
        }
    }
    all
}
