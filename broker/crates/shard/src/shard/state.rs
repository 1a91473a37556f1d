//! The state of a shard except its client connections: its services, and the routing between them.
//!
//! A service owns its state. It gets the [`Context`] and read-only references as arguments, and what it wants from another
//! service it returns or offers as outputs. The modules below carry these outputs from one service to the next; they are the
//! only code that reaches several services.
//!
//! | service | owns |
//! |---|---|
//! | [`MetadataReplica`] | the metadata tree, changes that are requested, catching up |
//! | [`Queues`] | replicas of queues, the clients of sessions for queues, requests and events of this turn |
//! | [`DeadLetters`] | messages on their way through dead letter exchanges |
//! | [`InternalClient`], [`Firehose`] | messages of the control plane; copies of traced messages |
//! | [`Limits`] | logins, limit usage, counters, the memory account |
//! | [`Cluster`] | other nodes, alarms, changes of group members, maintenance |
//! | [`Browsers`] | requests of sessions for pages of queues that they browse |
//! | [`Reports`] | statistics and listings that are gathered from all shards |
//! | [`Services`] | parts of protocols with state on every shard |

use crate::browsers::Browsers;
use crate::clients::QueueClients;
use crate::cluster::Cluster;
use crate::context::Context;
use crate::dead_letter::DeadLetters;
use crate::delivery_sampler::DeliverySampler;
use crate::firehose::Firehose;
use crate::internal_client::InternalClient;
use crate::limits::Limits;
use crate::local_queues::LocalQueues;
use crate::metadata_replica::MetadataReplica;
use crate::queues::Queues;
use crate::reports::Reports;
use crate::shard::services::Services;
use env::NodeId;
use metadata::{ClientAddress, Tree};
use session::ServiceStates;

pub struct ShardState {
    pub(super) ctx: Context,
    pub(super) metadata: MetadataReplica,
    pub(super) queues: Queues,
    pub(super) dead_letters: DeadLetters,
    pub(super) internal_client: InternalClient,
    pub(super) firehose: Firehose,
    /// Addresses of this node's client listeners; a reload of the configuration may change them.
    pub(super) client_addresses: Vec<ClientAddress>,
    pub(super) limits: Limits,
    pub(super) cluster: Cluster,
    pub(super) reports: Reports,
    pub(super) browsers: Browsers,
    pub(super) delivery_sampler: DeliverySampler,
    pub(super) services: Services,
}

/// Queries of drivers and tests.
impl ShardState {
    pub fn node(&self) -> NodeId {
        self.ctx.node()
    }

    pub fn tree(&self) -> &Tree {
        self.metadata.tree()
    }

    /// The index of the last metadata log entry that the tree has applied.
    pub fn applied(&self) -> u64 {
        self.metadata.applied()
    }

    pub fn local_queues(&self) -> &LocalQueues {
        self.queues.local()
    }

    pub fn queue_clients(&self) -> &QueueClients {
        self.queues.clients()
    }

    pub fn service_states(&self) -> &ServiceStates {
        self.services.states()
    }

    /// The number of groups whose members were reviewed, each time counted.
    pub fn reviewed_groups(&self) -> u64 {
        self.cluster.members().review.looked_at()
    }

    /// The number of items that listings have visited.
    pub fn listed_items(&self) -> u64 {
        self.reports.listed_items()
    }
}
