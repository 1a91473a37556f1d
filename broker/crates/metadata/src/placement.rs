//! The arguments and policy keys that place the replicas of a quorum queue.

use crate::{QueueRecord, Tree};
use message::Value;

/// Which member of a new queue is to lead it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaderLocator {
    /// The node that the declaring client is connected to.
    #[default]
    ClientLocal,
    /// The member that leads the fewest queues. RabbitMQ's older words `random` and `least-leaders` mean the same here.
    Balanced,
}

/// The placement that arguments and policies ask for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementRequest {
    /// Members at declaration (`x-quorum-initial-group-size`); 0: as many as is usual.
    pub initial: u32,
    /// Members that it is grown to when there are nodes for them (`x-quorum-target-group-size`, `target-group-size`; the
    /// larger one); 0: none.
    pub target: u32,
    /// The member that is to lead first.
    pub locator: LeaderLocator,
}

impl Tree {
    /// Of a queue that is there or about to be. Where both name a leader locator the policy's holds, as in RabbitMQ.
    pub fn placement_request(&self, queue: &QueueRecord) -> PlacementRequest {
        let policy = self.policy_for(queue);
        let size = |value: Option<&Value>| {
            let said = value.and_then(Value::as_integer).unwrap_or(0);
            u32::try_from(said).unwrap_or(0)
        };
        let argument = |name: &str| queue.arguments.get(name);
        let locator = policy
            .get("queue-leader-locator")
            .or_else(|| argument("x-queue-leader-locator"))
            .and_then(Value::as_str);
        PlacementRequest {
            initial: size(argument("x-quorum-initial-group-size")),
            target: size(argument("x-quorum-target-group-size"))
                .max(size(policy.get("target-group-size"))),
            locator: match locator {
                Some("balanced" | "random" | "least-leaders") => LeaderLocator::Balanced,
                _ => LeaderLocator::ClientLocal,
            },
        }
    }
}
