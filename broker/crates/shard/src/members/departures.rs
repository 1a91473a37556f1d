//! Replicas of queues of which this node is no longer a member: kept until the queue's leader says that they are not
//! needed, then deleted. A node that was down at that time learns of it from its metadata.

use super::frame::MembershipMessage;
use crate::Route;
use crate::core::Core;
use crate::frame::Frame;
use consensus::Departure;
use env::NodeId;
use metadata::{QueueId, QueueRecord};
use std::collections::BTreeSet;

/// Leaders are asked about this many at a time; the others follow when these are gone or have been asked.
const ASK_AT_ONCE: usize = 500;

#[derive(Debug, Default)]
pub struct Departures {
    leftovers: BTreeSet<QueueId>,
    /// Their replicas are being deleted.
    leaving: BTreeSet<QueueId>,
    /// Where asking goes on.
    next: QueueId,
}

impl Departures {
    pub fn note(&mut self, queue: QueueId, is_member: bool) {
        match is_member {
            true => self.leftovers.remove(&queue),
            false => self.leftovers.insert(queue),
        };
    }

    pub fn forget(&mut self, queue: QueueId) {
        self.leftovers.remove(&queue);
        self.leaving.remove(&queue);
    }

    /// The next to ask about, going round.
    fn turn(&mut self) -> Vec<QueueId> {
        let later = self.leftovers.range(self.next..);
        let all = later.chain(self.leftovers.range(..self.next));
        let turn: Vec<QueueId> = all.take(ASK_AT_ONCE).copied().collect();
        self.next = turn.last().map_or(QueueId(0), |q| QueueId(q.0 + 1));
        turn
    }
}

impl Core {
    /// Goes on with replicas that are to go: what is gone is forgotten, leaders are asked about the others.
    pub fn review_departures(&mut self) {
        for queue in self.members.departures.leaving.clone() {
            if self.queues.local().has_replica(queue) {
                continue;
            }
            self.members.departures.forget(queue);
            self.queues.local_mut().departed(queue);
            self.members.leaders.forget(queue);
            if let Some(record) = self.tree.queue_by_id(queue).cloned() {
                tracing::info!(event = "replica_deleted", queue = %record.name, vhost = %record.vhost);
                // This node may be a member again by now.
                self.queue_added(&record, false);
            }
        }
        for queue in self.members.departures.turn() {
            let members = self.tree.queue_by_id(queue).map(|r| r.members.clone());
            for member in members.unwrap_or_default() {
                if self.is_up(member) {
                    let peer_message = MembershipMessage::DepartureRequest { queue };
                    self.ctx.send_to_peer(
                        member,
                        Route::Owner(queue.0),
                        &Frame::Members(peer_message),
                    );
                }
            }
        }
    }

    /// Another node has a replica of a queue that may be led here.
    pub fn departure_asked(&mut self, from: NodeId, queue: QueueId) {
        if let Some(told) = self.queues.local().departure(queue, from) {
            let peer_message = MembershipMessage::Depart { queue, told };
            self.ctx
                .send_to_peer(from, Route::Owner(queue.0), &Frame::Members(peer_message));
        }
    }

    pub fn depart(&mut self, queue: QueueId, told: Departure) {
        let me = self.ctx.node();
        let is_out = |r: &QueueRecord| !r.members.contains(&me);
        let Some(record) = self.tree.queue_by_id(queue).filter(|r| is_out(r)) else {
            return;
        };
        tracing::debug!(event = "replica_departs", queue = %record.name, ?told);
        if self.queues.local_mut().depart(queue, told) {
            self.dead_letters.forget(queue);
            self.members.departures.leaving.insert(queue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_have_their_turn() {
        let mut departures = Departures::default();
        let last = 2 * ASK_AT_ONCE as u64 + 7;
        for id in 1..=last {
            departures.note(QueueId(id), false);
        }
        departures.note(QueueId(3), true);
        let mut asked = BTreeSet::new();
        for _ in 0..3 {
            let turn = departures.turn();
            assert_eq!(turn.len(), ASK_AT_ONCE);
            asked.extend(turn);
        }
        assert_eq!(asked.len() as u64, last - 1);
        let all: Vec<QueueId> = asked.into_iter().collect();
        all.iter().for_each(|q| departures.forget(*q));
        assert!(departures.turn().is_empty());
    }
}
