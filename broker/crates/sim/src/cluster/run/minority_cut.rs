//! After the faults, when no work is left: cuts one node off from the others while publishers are busy, and requires that the
//! publishers of the others get their confirms before the cut ends.

use super::super::operator::check_replication;
use super::{Client, ClientRole, Run, SAFE_MEMBERS};
use crate::faults::{Fault, calm};
use crate::world::World;
use env::{NodeId, Time};
use std::collections::BTreeSet;
use std::time::Duration;

/// How long publishers are busy before the cut.
const BUSY_BEFORE: Duration = Duration::from_secs(1);
/// How long they go on after it.
const BUSY_AFTER: Duration = Duration::from_secs(8);
/// Time until every confirm must be there, from the cut: the others notice it, elect leaders, and requests are sent again.
const MOST_DELAY: Duration = Duration::from_secs(25);

/// Progress of this scene.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum MinorityCut {
    #[default]
    /// Not begun.
    Pending,
    /// Publishers are busy, and this node will be cut off at this time.
    Publishing(NodeId, Time),
    /// The node was cut off at this time, after this number of confirms.
    Cut(NodeId, Time, u64),
    /// Publishers wait for the confirms of the last messages since the cut of this time.
    Draining(NodeId, Time, u64),
    /// Done.
    Done,
}

impl MinorityCut {
    /// Whether the scene has begun and is not over.
    pub(super) fn has_begun(self) -> bool {
        !matches!(self, MinorityCut::Pending | MinorityCut::Done)
    }

    /// Whether the scene causes effects of faults.
    pub(super) fn has_effects(self) -> bool {
        matches!(self, MinorityCut::Cut(..) | MinorityCut::Draining(..))
    }
}

impl Run {
    /// Takes the next step. Returns true if there is none. `Err`: a publisher still waits for the majority.
    pub(super) fn cut_is_over(&mut self, world: &mut World<Run>) -> Result<bool, String> {
        let now = world.now();
        match self.cut {
            MinorityCut::Pending => {
                let node = Client::pick(&mut self.rng, &world.nodes()).unwrap_or_default();
                let queues = self.replicated_queues(world);
                self.cut = match queues.is_empty() {
                    true => MinorityCut::Done,
                    false => MinorityCut::Publishing(node, now + BUSY_BEFORE),
                };
                self.make_busy(&queues);
                return Ok(queues.is_empty());
            }
            MinorityCut::Publishing(_, at) if now < at => {}
            MinorityCut::Publishing(node, _) => {
                Fault::Partition(vec![node]).apply(world)?;
                self.oracle.record_fault(now);
                self.cut = MinorityCut::Cut(node, now, self.oracle.confirmed);
            }
            MinorityCut::Cut(_, at, _) if now.since(at) < BUSY_AFTER => {}
            MinorityCut::Cut(node, at, before) => {
                self.make_busy(&BTreeSet::new());
                self.cut = MinorityCut::Draining(node, at, before);
            }
            MinorityCut::Draining(node, at, before) => {
                let waiting = self.waiting_publishers(node);
                if waiting.is_empty() {
                    self.confirmed_beside_cut = self.oracle.confirmed - before;
                    calm(world);
                    self.oracle.record_fault(now);
                    self.cut = MinorityCut::Done;
                } else if now.since(at) >= MOST_DELAY {
                    let s = MOST_DELAY.as_secs();
                    return Err(format!(
                        "{s} s after node {} was cut off, publishers of the others wait: {waiting:?}",
                        node.0
                    ));
                }
            }
            MinorityCut::Done => return Ok(true),
        }
        Ok(false)
    }

    /// The quorum queues for which two of three members are a majority and which keep every message. None if a group is
    /// smaller: a cut could stop it.
    fn replicated_queues(&self, world: &World<Run>) -> BTreeSet<usize> {
        let is_safe = check_replication(world, &self.identities, SAFE_MEMBERS).is_ok();
        if !is_safe || world.nodes().len() < SAFE_MEMBERS {
            return BTreeSet::new();
        }
        let plans = self.oracle.queues.iter().enumerate();
        let plain = plans.filter(|(_, plan)| plan.is_plain_quorum());
        plain.map(|(queue, _)| queue).collect()
    }

    fn make_busy(&mut self, queues: &BTreeSet<usize>) {
        for client in &mut self.clients {
            if let ClientRole::Publisher(publisher) = &mut client.role {
                publisher.make_busy(queues);
            }
        }
    }

    /// The publishers of other nodes than this one that wait for confirms, as text.
    fn waiting_publishers(&self, node: NodeId) -> Vec<String> {
        let others = self.clients.iter().filter(|client| {
            let link = client.link.as_ref();
            link.is_some_and(|link| link.node != node)
                && matches!(client.role, ClientRole::Publisher(_))
        });
        let roles = others.map(|client| client.role.as_role());
        roles
            .filter(|role| role.has_work_left())
            .map(|role| role.describe_wait())
            .collect()
    }
}
