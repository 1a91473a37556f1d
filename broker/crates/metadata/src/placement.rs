//! The arguments and policy keys that place the replicas of a quorum queue or a stream.

use crate::{QueueRecord, Tree};
use message::Value;

/// Selects the first leader of a new queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeaderLocator {
    /// The node that the declaring client is connected to.
    #[default]
    ClientLocal,
    /// The member that leads the fewest queues. RabbitMQ's older values `random` and `least-leaders` mean the same
    /// here.
    Balanced,
}

/// The placement that arguments and policies request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlacementRequest {
    /// Number of members at declaration (`x-quorum-initial-group-size`, and `x-initial-cluster-size` or
    /// `initial-cluster-size` of a stream). 0: the default.
    pub initial: u32,
    /// Number of members that the queue grows to when there are enough nodes (`x-quorum-target-group-size` or
    /// `target-group-size`, whichever is larger). 0: no growth.
    pub target: u32,
    /// Selects the first leader.
    pub locator: LeaderLocator,
}

impl Tree {
    /// The placement of a queue that exists or is being declared. If both argument and policy set a leader locator, the
    /// policy applies, as in RabbitMQ.
    pub fn placement_request(&self, queue: &QueueRecord) -> PlacementRequest {
        let policy = self.policy_for(queue);
        let size = |value: Option<&Value>| {
            let size = value.and_then(Value::as_integer).unwrap_or(0);
            u32::try_from(size).unwrap_or(0)
        };
        let argument = |name: &str| queue.arguments.get(name);
        let locator = policy
            .get("queue-leader-locator")
            .or_else(|| argument("x-queue-leader-locator"))
            .and_then(Value::as_str);
        let initial = match queue.kind.descriptor().cursors {
            true => policy
                .get("initial-cluster-size")
                .or_else(|| argument("x-initial-cluster-size")),
            false => argument("x-quorum-initial-group-size"),
        };
        PlacementRequest {
            initial: size(initial),
            target: size(argument("x-quorum-target-group-size"))
                .max(size(policy.get("target-group-size"))),
            locator: match locator {
                Some("balanced" | "random" | "least-leaders") => LeaderLocator::Balanced,
                _ => LeaderLocator::ClientLocal,
            },
        }
    }
}
