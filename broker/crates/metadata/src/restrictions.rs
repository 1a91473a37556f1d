//! Restrictions of a node on the objects that its clients may declare. They come from the configuration of the node and
//! are no part of the tree: a node checks them before it proposes a change, and the log may exceed a limit by changes
//! that several nodes propose at once.

use crate::deprecated::{DeprecatedFeature, PermittedFeatures};
use crate::equivalence::ResourceName;
use crate::{Change, ChangeError, ExchangeRecord, QueueRecord, QueueType, Tree};
use routing::{ExchangeType, is_direct_reply_name};

/// Limits on declarations by the clients of a node. Existing objects are not affected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restrictions {
    /// Most exchanges of the cluster, including predeclared ones (`cluster_exchange_limit`). None: unlimited.
    pub max_exchanges: Option<u64>,
    /// Most queues of the cluster (`cluster_queue_limit`). None: unlimited.
    pub max_queues: Option<u64>,
    /// Most virtual hosts of the cluster (`vhost_max`). None: unlimited.
    pub max_vhosts: Option<u64>,
    /// Types of queues that cannot be declared (`queue_types.TYPE.enabled`).
    pub disabled_queue_types: Vec<QueueType>,
    /// Exchanges of the type `x-local-random` can be declared (`exchange_types.local_random.enabled`).
    pub permits_local_random: bool,
    /// Deprecated features that clients may use.
    pub permitted: PermittedFeatures,
}

impl Default for Restrictions {
    /// As RabbitMQ 4.3 without a setting.
    fn default() -> Restrictions {
        Restrictions {
            permitted: PermittedFeatures::default(),
            ..Restrictions::none()
        }
    }
}

impl Restrictions {
    /// No restriction, and every deprecated feature is permitted.
    pub fn none() -> Restrictions {
        Restrictions {
            max_exchanges: None,
            max_queues: None,
            max_vhosts: None,
            disabled_queue_types: Vec::new(),
            permits_local_random: true,
            permitted: PermittedFeatures::all(),
        }
    }

    /// Checks a change that a client requests, against the tree of its node.
    ///
    /// # Errors
    ///
    /// If the change declares a new object that the restrictions exclude.
    pub fn check(&self, tree: &Tree, change: &Change) -> Result<(), ChangeError> {
        match change {
            Change::DeclareQueue(queue) if tree.queue(&queue.vhost, &queue.name).is_none() => {
                self.check_queue(tree, queue)
            }
            Change::DeclareExchange(exchange)
                if tree.exchange(&exchange.vhost, &exchange.name).is_none() =>
            {
                self.check_exchange(tree, exchange)
            }
            Change::PutVhost { name, .. } if !tree.vhost_exists(name) => match self.max_vhosts {
                Some(limit) if tree.vhosts().len() as u64 >= limit => {
                    Err(ChangeError::PreconditionFailed(format!(
                        "cannot create vhost '{name}': vhost limit of {limit} is reached"
                    )))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn check_queue(&self, tree: &Tree, queue: &QueueRecord) -> Result<(), ChangeError> {
        let (vhost, name, kind) = (&queue.vhost, &queue.name, queue.kind);
        if is_direct_reply_name(name) {
            return Ok(());
        }
        self.check_permitted(
            DeprecatedFeature::QueueMasterLocator,
            queue.arguments.get("x-queue-master-locator").is_some(),
        )?;
        if self.disabled_queue_types.contains(&kind) {
            let resource = ResourceName::queue(vhost, name);
            return Err(ChangeError::NotPermitted(format!(
                "Cannot declare a queue '{resource}' of type '{}': this node has queue_types.{}.enabled = false",
                kind.module(),
                kind.name()
            )));
        }
        self.check_permitted(
            DeprecatedFeature::TransientNonexclQueues,
            !queue.durable && queue.exclusive.is_none(),
        )?;
        match self.max_queues {
            Some(limit) if tree.queue_count() as u64 >= limit => {
                Err(ChangeError::PreconditionFailed(format!(
                    "cannot declare queue '{name}': queue limit in cluster ({limit}) is reached"
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_exchange(&self, tree: &Tree, exchange: &ExchangeRecord) -> Result<(), ChangeError> {
        let resource = ResourceName::exchange(&exchange.vhost, &exchange.name);
        if !self.permits_local_random && *exchange.kind == *ExchangeType::LocalRandom.name() {
            return Err(ChangeError::PreconditionFailed(format!(
                "cannot declare {resource} of type '{}': this node has exchange_types.local_random.enabled = false",
                exchange.kind
            )));
        }
        match self.max_exchanges {
            Some(limit) if tree.exchange_count() as u64 >= limit => {
                Err(ChangeError::PreconditionFailed(format!(
                    "cannot declare {resource}: exchange limit of {limit} is reached"
                )))
            }
            _ => Ok(()),
        }
    }

    fn check_permitted(
        &self,
        feature: DeprecatedFeature,
        is_used: bool,
    ) -> Result<(), ChangeError> {
        match is_used && !self.permitted.contains(feature) {
            true => Err(ChangeError::NotPermitted(feature.denial())),
            false => Ok(()),
        }
    }
}
