//! The configuration of a shard, which its node gives it.

use crate::shard::MemoryBudget;
use env::{Incarnation, NodeId};
use metadata::features::Version;
use metadata::restrictions::Restrictions;
use metadata::{ClientAddress, Name, NodeRecord, QueueType, UserRecord};
use queue::quorum::DefaultTimeout;
use session::Protocols;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use wal::{GroupId, RecoveredGroup};

/// Facts about the node and the shard that do not change while the process lives.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// The node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The node's name in listings (`cluster.node`).
    pub name: Name,
    /// host:port under which other nodes reach this one.
    pub address: Name,
    /// Shards of this node; never 0.
    pub shards: u16,
    /// This shard; 0 holds the metadata group.
    pub index: u16,
    /// The cluster's first voters, on the nodes that are among them, at every start. It counts only when the
    /// log holds nothing of the metadata group yet. None: a node that joined later.
    pub founding: Option<Founding>,
    /// For everything random that need not be secret; differs per shard, node and start.
    pub seed: u64,
    /// Memory of the node, the same for all its shards.
    pub budget: MemoryBudget,
    /// The placement of queues.
    pub placement: Placement,
    /// Protocols of the node's listeners.
    pub protocols: Protocols,
    /// The program of this node.
    pub program: Version,
    /// Addresses of this node's client listeners.
    pub client_addresses: Vec<ClientAddress>,
    /// Names the run of the machine since its last start: what was written and not synced survives the end of the
    /// process, but not the end of the machine.
    pub machine: Box<[u8]>,
    /// The object store for sealed segments of streams. None: they stay on the disk.
    pub tier: Option<stream::TierConfig>,
    /// The acknowledgement timeout of consumers whose queue has none (`consumer_timeout`).
    pub consumer_timeout: DefaultTimeout,
    /// Time and memory of the Raft groups.
    pub groups: consensus::HostLimits,
    /// Limits on declarations by clients of this node.
    pub restrictions: Restrictions,
    /// Measures the resource usage of the node, which shard 0 reports with its counters.
    pub resources: ResourceMeter,
    /// Takes the sampled durations until messages of this shard's clients are confirmed.
    pub confirms: Arc<control::ConfirmTimings>,
    /// Takes the latencies of deliveries.
    pub deliveries: Arc<control::DeliveryTimings>,
}

/// A function that returns the resource usage of the node as last measured; `None`: it is unknown.
#[derive(Clone, Default)]
pub struct ResourceMeter(pub Option<Arc<dyn Fn() -> control::NodeResources + Send + Sync>>);

impl fmt::Debug for ResourceMeter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResourceMeter")
            .field(&self.0.is_some())
            .finish()
    }
}

/// The settings about the placement of queues.
#[derive(Clone, Debug, Default)]
pub struct Placement {
    /// `cluster.zone`: where this node is; empty: nobody says.
    pub zone: Name,
    /// `quorum_queue.continuous_membership_reconciliation.target_group_size`: members that every quorum queue is grown to
    /// when there are nodes for them; 0: none.
    pub target_group_size: u32,
}

/// How the cluster begins: each founder makes the metadata group with these voters, and whoever leads it first
/// proposes `Change::Bootstrap`.
#[derive(Clone, Debug)]
pub struct Founding {
    /// The cluster's id as hexadecimal text.
    pub cluster: Name,
    /// All founders, this node among them, all voters.
    pub nodes: Vec<NodeRecord>,
    /// `default_user` with its password hashed.
    pub user: UserRecord,
    /// Of the first vhost's queues (`default_queue_type`); None: classic.
    pub default_queue_type: Option<QueueType>,
    /// Feature flags that all founders know: they are on from the start.
    pub features: Vec<Name>,
}

/// The content of the write-ahead log for the groups of one shard.
#[derive(Debug, Default)]
pub struct RecoveredShard {
    /// The state of each group.
    pub groups: BTreeMap<GroupId, RecoveredGroup>,
    /// The newest file that `groups` come from. New records go to later files; `wal_rolled` with this number
    /// follows as the shard's first event, so that the old files can be emptied and deleted. 0: none.
    pub newest_file: u64,
}

impl RecoveredShard {
    /// Divides the content of the log among the shards.
    pub fn split(recovered: wal::Recovered, shards: u16) -> Vec<RecoveredShard> {
        let newest_file = recovered.files.last().copied().unwrap_or(0);
        let mut parts: Vec<RecoveredShard> = (0..shards)
            .map(|_| RecoveredShard {
                newest_file,
                ..RecoveredShard::default()
            })
            .collect();
        for (group, state) in recovered.groups {
            let shard = consensus::shard_of(group.0, shards);
            if let Some(part) = parts.get_mut(usize::from(shard)) {
                part.groups.insert(group, state);
            }
        }
        parts
    }
}
