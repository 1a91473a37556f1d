//! The operator of the cluster: moves members and leaders, restarts the nodes in turn, replaces a machine that lost its
//! disk under the same name, and deletes the classic queues that were lost with it once the cluster has replaced it.

use super::node::{Identities, Node, Operation, Request};
use super::oracle::{Oracle, WindowId};
use crate::world::{Scenario, World};
use control::MemberChange;
use env::{NodeId, Rng, SeededRng};
use metadata::{Change, QueueId, QueueRecord, QueueType, Tree};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Operator {
    /// Whether it removes members without adding others. Groups of one or two members are lost with a machine, so no
    /// machine loses its data in such a run.
    removes_members: bool,
    /// Nodes to restart, of the current rolling restart.
    pending_restarts: VecDeque<NodeId>,
    /// Queues that were lost with their machine and are not deleted yet. With the window of a queue of the workload.
    lost_queues: BTreeMap<QueueId, Option<WindowId>>,
    /// Nodes that were lost.
    lost_nodes: BTreeSet<NodeId>,
    departing: Option<DepartingNode>,
    /// Nodes that another node was asked to forget.
    pub forget_requested: BTreeSet<NodeId>,
    pub replaced: u64,
    /// Number of requested membership changes, rebalances and maintenance changes.
    pub operations: u64,
}

/// A node that is drained and forgotten while it runs.
struct DepartingNode {
    machine: NodeId,
    node: NodeId,
    /// How often it has ended because it was removed: first when it learns of the removal, again when it returns with
    /// its old identity.
    times_ended: u32,
    /// How many times a queue is still put on the node after it has given up its last one.
    queues_to_add: u32,
}

/// Initial value of [`DepartingNode::crossed`].
const QUEUES_TO_ADD: u32 = 4;

/// An action for the scenario to perform on a machine.
pub(super) enum OperatorAction {
    ShutDown(NodeId),
}

impl Operator {
    pub(super) fn new(removes_members: bool) -> Operator {
        Operator {
            removes_members,
            ..Operator::default()
        }
    }

    /// Records that a machine is to be removed. Returns the names of its classic queues, which are lost.
    pub(super) fn lose_machine<S: Scenario<Process = Node>>(
        &mut self,
        world: &World<S>,
        node: NodeId,
        oracle: &mut Oracle,
    ) -> Vec<String> {
        self.lost_nodes.insert(node);
        self.replaced += 1;
        let lost = newest_tree(world).map_or(Vec::new(), |tree| classic_queues_of(tree, node));
        let mut names = Vec::new();
        for record in lost {
            self.lose_queue(world.now(), &record, oracle);
            names.push(record.name.to_string());
        }
        names
    }

    fn lose_queue(&mut self, now: env::Time, record: &QueueRecord, oracle: &mut Oracle) {
        let queue = oracle.queues.iter().position(|q| *q.name == *record.name);
        let open_window = |queue| oracle.queue_lost(now, queue);
        let window = queue.map(open_window);
        self.lost_queues.entry(record.id).or_insert(window);
    }

    /// Deletes lost queues and returns their names. The cluster itself removes a lost node, and this does not wait for
    /// the deletion.
    pub(super) fn delete_lost_queues<S: Scenario<Process = Node>>(
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
        let departing = self.departing.as_ref().map(|l| l.node);
        for node in self.lost_nodes.clone().iter().chain(&departing) {
            // Includes queues that were declared before the loss was noticed.
            for record in classic_queues_of(tree, *node) {
                self.lose_queue(now, &record, oracle);
                names.push(record.name.to_string());
                let is_replaced = tree.node(*node).is_none();
                if is_replaced || departing == Some(*node) {
                    changes.push(Change::DeleteQueue {
                        vhost: record.vhost.clone(),
                        name: record.name.clone(),
                        id: Some(record.id),
                    });
                }
            }
        }
        let exists = |id: QueueId| tree.queue_by_id(id).is_some();
        let deleted: Vec<QueueId> = self
            .lost_queues
            .keys()
            .copied()
            .filter(|q| !exists(*q))
            .collect();
        for queue in deleted {
            if let Some(Some(window)) = self.lost_queues.remove(&queue) {
                oracle.window_closed(now, window);
            }
        }
        for change in changes {
            send_operation(world, rng, Operation::Change(change));
        }
        names
    }

    /// Checks that a queue is lost only if all its members have lost their disks.
    pub(super) fn check_lost_queues<S: Scenario<Process = Node>>(
        &self,
        world: &World<S>,
    ) -> Result<(), String> {
        let tree = newest_tree(world);
        let lost = tree.iter().flat_map(|tree| tree.lost_queues());
        for (queue, node) in lost {
            let record = tree.and_then(|tree| tree.queue_by_id(queue));
            let is_lost = |m: &NodeId| self.lost_nodes.contains(m);
            if !record.is_some_and(|r| r.members.iter().all(is_lost)) {
                return Err(format!("queue {} is lost, and node {node} is not", queue.0));
            }
        }
        Ok(())
    }

    /// Takes a random action.
    pub(super) fn act<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        identities: &Identities,
        rng: &mut SeededRng,
    ) -> Option<OperatorAction> {
        if let Some(next) = self.pending_restarts.front().copied() {
            let nodes = world.nodes();
            if !nodes.contains(&next) {
                self.pending_restarts.pop_front();
            } else if nodes.iter().all(|n| is_ready(world, *n)) {
                // The next node restarts when all nodes are ready.
                self.pending_restarts.pop_front();
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
        let mut queues: Vec<QueueId> = replicated_queues(tree).map(|q| q.id).collect();
        queues.sort_unstable();
        if rng.chance(1, 2) {
            // Act on one queue only.
            let position = rng.below(queues.len().max(1) as u64) as usize;
            queues = queues.get(position).copied().into_iter().collect();
        }
        let change = match rng.below(8) {
            0 if self.removes_members => MemberChange::Remove(old),
            1 if self.removes_members => MemberChange::Evacuate(old),
            0..3 => MemberChange::Replace { old, new },
            // Most queues then have three members most of the time.
            3..6 => MemberChange::Add(new),
            6 => {
                self.pending_restarts = world.nodes().into();
                return None;
            }
            _ => {
                let on = rng.chance(1, 3);
                let operation = match rng.below(4) {
                    0 | 1 => Operation::Rebalance,
                    3 if self.removes_members => {
                        self.start_removal(identities, old);
                        return None;
                    }
                    _ => Operation::Maintenance(on),
                };
                self.operations += 1;
                send_operation(world, rng, operation);
                return None;
            }
        };
        self.operations += 1;
        send_operation(world, rng, Operation::Members { queues, change });
        None
    }

    fn start_removal(&mut self, identities: &Identities, node: NodeId) {
        let all = identities.borrow();
        let machine = all.iter().find(|(_, i)| i.node == node && i.member);
        if let Some((machine, _)) = machine.filter(|_| self.departing.is_none()) {
            self.operations += 1;
            self.departing = Some(DepartingNode {
                machine: *machine,
                node,
                times_ended: 0,
                queues_to_add: QUEUES_TO_ADD,
            });
        }
    }

    pub(super) fn is_removing_node(&self) -> bool {
        self.departing.is_some()
    }

    /// Continues the removal of a node: drains it, and asks another node to forget it. Puts a queue on it after it has
    /// given up its last one, as an operator that does not know of the removal would.
    pub(super) fn continue_removal<S: Scenario<Process = Node>>(
        &mut self,
        world: &mut World<S>,
        rng: &mut SeededRng,
    ) {
        let Some(departing) = self.departing.as_mut().filter(|l| l.times_ended == 0) else {
            return;
        };
        let node = departing.node;
        self.forget_requested.insert(node);
        let drain = Request::Operate(Operation::Maintenance(true));
        world.request(departing.machine, 0, drain);
        let empty_node_queue = newest_tree(world).and_then(|tree| {
            let lists = |q: &Arc<QueueRecord>| q.members.contains(&node);
            let lowest = replicated_queues(tree).map(|q| q.id).min();
            lowest.filter(|_| tree.node(node).is_some() && !replicated_queues(tree).any(lists))
        });
        send_operation(world, rng, Operation::Forget(node));
        if let Some(queue) =
            empty_node_queue.filter(|_| departing.queues_to_add > 0 && rng.chance(1, 2))
        {
            departing.queues_to_add -= 1;
            let (queues, change) = (vec![queue], MemberChange::Add(node));
            send_operation(world, rng, Operation::Members { queues, change });
        }
    }

    /// Records that the software of a machine ended because its node was removed. Returns false if nobody requested the
    /// removal.
    pub(super) fn was_removed(&mut self, machine: NodeId) -> bool {
        let departing = self.departing.as_mut().filter(|l| l.machine == machine);
        if let Some(departing) = departing {
            departing.times_ended += 1;
            return true;
        }
        false
    }

    /// The machine whose node was refused with its old identity. It may return with an empty disk.
    pub(super) fn take_removed(&mut self) -> Option<NodeId> {
        let departed = self.departing.take_if(|l| l.times_ended > 1);
        departed.map(|l| l.machine)
    }

    /// Ends maintenance and the rolling restart.
    pub(super) fn finish<S: Scenario<Process = Node>>(&mut self, world: &mut World<S>) {
        self.pending_restarts.clear();
        let is_staying = |n: &NodeId| self.departing.as_ref().is_none_or(|l| l.machine != *n);
        for node in world.nodes().into_iter().filter(is_staying) {
            let operation = Operation::Maintenance(false);
            world.request(node, 0, Request::Operate(operation));
        }
    }
}

/// Whether the node belongs to the cluster and has applied all entries that existed when it started.
pub(super) fn is_ready<S: Scenario<Process = Node>>(world: &World<S>, node: NodeId) -> bool {
    let process = world.process(node);
    process.is_some_and(|p| p.shards().next().is_some() && p.is_listening())
}

/// Sends an operation to a random node that is up.
pub(super) fn send_operation<S: Scenario<Process = Node>>(
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

/// The tree of the node that has applied most entries.
pub(super) fn newest_tree<S: Scenario<Process = Node>>(world: &World<S>) -> Option<&Tree> {
    let nodes = world.nodes().into_iter();
    let shards = nodes.filter_map(|n| world.process(n)?.shards().next());
    let newest = shards.max_by_key(|s| s.state().applied())?;
    Some(newest.state().tree())
}

/// Queues with several members: quorum queues and streams.
fn replicated_queues(tree: &Tree) -> impl Iterator<Item = &Arc<QueueRecord>> {
    tree.all_queues().filter(|q| q.kind != QueueType::Classic)
}

/// Classic queues of a node, ordered by id.
fn classic_queues_of(tree: &Tree, node: NodeId) -> Vec<Arc<QueueRecord>> {
    let is_local = |q: &&Arc<QueueRecord>| q.kind == QueueType::Classic && q.members == [node];
    let mut all: Vec<_> = tree.all_queues().filter(is_local).cloned().collect();
    all.sort_unstable_by_key(|q| q.id);
    all
}

/// Checks that every group has exactly the members that the tree lists, without lost machines, and that every quorum
/// queue and stream has at least `min_members` of them. `Err`: the remaining work.
pub(super) fn check_replication<S: Scenario<Process = Node>>(
    world: &World<S>,
    identities: &Identities,
    min_members: usize,
) -> Result<(), String> {
    let live_nodes: BTreeSet<NodeId> = identities.borrow().values().map(|i| i.node).collect();
    let tree = newest_tree(world).ok_or("no node is up")?;
    let known_nodes: BTreeSet<NodeId> = tree.nodes().map(|n| n.id).collect();
    if known_nodes != live_nodes {
        return Err(format!(
            "the tree has the nodes {known_nodes:?}, there are {live_nodes:?}"
        ));
    }
    if let Some((queue, node)) = tree.lost_queues().next() {
        let queue = queue.0;
        return Err(format!(
            "queue {queue} of node {node} is lost and still exists"
        ));
    }
    let mut led = BTreeMap::new();
    let mut metadata = None;
    for node in world.nodes() {
        let process = world.process(node);
        for shard in process.iter().flat_map(|p| p.shards()) {
            let local_queues = shard.state().local_queues();
            let queues = local_queues.led_queues().into_iter();
            let statuses = queues.filter_map(|q| Some((q, local_queues.led_status(q)?)));
            led.extend(statuses);
            let status = local_queues.metadata_status().filter(|s| s.is_leader);
            metadata = metadata.or(status);
        }
    }
    let voters: Option<BTreeSet<NodeId>> =
        metadata.map(|s| s.membership.voters.into_iter().collect());
    if voters.as_ref() != Some(&live_nodes) {
        return Err(format!("voters on metadata are {voters:?}"));
    }
    for record in replicated_queues(tree) {
        let member_count = record.members.len();
        if member_count < min_members {
            return Err(format!("{} has {member_count} members", record.name));
        }
        let status = led.get(&record.id).ok_or_else(|| {
            let (name, each) = (&record.name, replicas(world, record.id));
            format!(
                "no leader of {name} with members {:?}: {each:?}",
                record.members
            )
        })?;
        let voters: BTreeSet<&NodeId> = status.membership.voters.iter().collect();
        let members: BTreeSet<&NodeId> = record.members.iter().collect();
        if voters != members || !status.membership.learners.is_empty() {
            return Err(format!(
                "{} has {status:?}, wanted {members:?}",
                record.name
            ));
        }
    }
    Ok(())
}

/// The state of a queue's replica on each node that is up.
fn replicas<S: Scenario<Process = Node>>(world: &World<S>, queue: QueueId) -> Vec<String> {
    let mut all = Vec::new();
    for process in world.nodes().iter().filter_map(|n| world.process(*n)) {
        for shard in process.shards() {
            let local_queues = shard.state().local_queues();
            if local_queues.has_replica(queue) {
                let state = local_queues.tell_replica(queue);
                all.push(format!("{}: {state:?}", process.id().0));
            }
        }
    }
    all
}
