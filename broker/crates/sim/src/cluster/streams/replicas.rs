//! The replicas of streams on all nodes.

use crate::cluster::node::Node;
use crate::cluster::operator::newest_tree;
use crate::world::{Scenario, World};
use metadata::{QueueRecord, QueueType};
use shard::StreamLogState;
use std::sync::Arc;

/// The state of a stream's replicas on all of its members. `Err`: a member has none.
fn states<S: Scenario<Process = Node>>(
    world: &World<S>,
    record: &QueueRecord,
) -> Result<Vec<StreamLogState>, String> {
    let nodes = world.nodes().into_iter();
    let processes: Vec<&Node> = nodes.filter_map(|node| world.process(node)).collect();
    let state_of = |member| {
        let process = processes.iter().find(|process| process.id() == member)?;
        let mut shards = process.shards().map(|shard| shard.state().local_queues());
        shards.find_map(|local_queues| local_queues.stream_log_state(record.id))
    };
    let member_states = record.members.iter().map(|member| {
        let name = &record.name;
        state_of(*member).ok_or_else(|| format!("no replica of {name} on node {}", member.0))
    });
    member_states.collect()
}

fn streams<S: Scenario<Process = Node>>(world: &World<S>) -> Vec<Arc<QueueRecord>> {
    let tree = newest_tree(world).into_iter();
    let queues = tree.flat_map(|tree| tree.all_queues());
    queues
        .filter(|q| q.kind == QueueType::Stream)
        .cloned()
        .collect()
}

/// Whether each stream still has all that it confirmed if any one machine loses unsynced data: all members but one have
/// everything. A log that is not whole is not among them.
pub(in crate::cluster) fn are_whole<S: Scenario<Process = Node>>(world: &World<S>) -> bool {
    streams(world).iter().all(|record| {
        let Ok(states) = states(world, record) else {
            return false;
        };
        let committed = states.iter().map(|s| s.committed).max().unwrap_or(0);
        states.len() > 1
            && states.iter().any(|s| s.leads)
            && states.iter().all(|s| s.is_whole && s.written >= committed)
    })
}

/// Checks that all replicas of a stream end at the same offset, with everything committed. `Err`: the difference.
pub(in crate::cluster) fn check_agreement<S: Scenario<Process = Node>>(
    world: &World<S>,
) -> Result<(), String> {
    for record in streams(world) {
        let states = states(world, &record)?;
        let ends = states.iter().map(|s| (s.written, s.committed));
        let end = states.iter().map(|s| s.written).max().unwrap_or(0);
        if ends.into_iter().any(|both| both != (end, end)) {
            return Err(format!("{} differs: {states:?}", record.name));
        }
    }
    Ok(())
}
