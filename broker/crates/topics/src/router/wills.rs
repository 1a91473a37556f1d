//! Replicas of wills: sends those of local clients to other routers and publishes those of clients
//! whose node failed.

use super::{MqttRouter, RouterOutput};
use crate::claims::REPORTS_PER_TICK;
use crate::claims::claim_message::ClientId;
use crate::wills::will_message::WillMessage;
use crate::wills::{PeerWill, WillReplica};
use crate::{RouterAddress, SubscriberId, Will};
use env::Time;

impl MqttRouter {
    /// Enables replicas of wills, once all nodes of the cluster support them.
    pub fn set_wills(&mut self, on: bool) {
        if std::mem::replace(&mut self.wills.is_enabled, on) != on {
            self.replica_routers_changed();
        }
    }

    /// Sets whether this node has a majority of the cluster. Only then can it tell that other nodes
    /// have failed.
    pub fn set_majority(&mut self, majority: bool) {
        self.wills.set_majority(majority, self.claims.now);
    }

    /// Returns true if [`MqttRouter::set_majority`] matters now.
    pub fn waits_for_majority(&self) -> bool {
        self.wills.waits_for_majority()
    }

    /// Replicates the will of a client's connection to a router of another node. `delay` is the
    /// Will Delay Interval in seconds. Call it when the connection is accepted and after
    /// [`RouterOutput::ReplicateWill`].
    pub fn replicate_will(&mut self, subscriber: SubscriberId, will: &Will, delay: u32) {
        let Some(entry) = self.subscribers.get(subscriber.0 as usize) else {
            return;
        };
        let router = match self.wills.is_enabled {
            true => self
                .claims
                .will_replica_router(entry.vhost(), entry.client()),
            false => None,
        };
        let before = self.wills.replicas.get(&subscriber).copied();
        let number = match before {
            Some(replica) if replica.router == router && !replica.is_requested => return,
            Some(replica) => replica.number,
            None => self.wills.next_number(),
        };
        let now = WillReplica {
            number,
            router,
            is_requested: false,
        };
        self.wills.replicas.insert(subscriber, now);
        if let Some(old) = before.and_then(|replica| replica.router)
            && Some(old) != router
        {
            self.wills.send(old, WillMessage::Drop { number });
        }
        if let Some(router) = router {
            let message = WillMessage::Keep {
                number,
                id: entry.id(),
                delay,
                will: will.clone(),
            };
            self.wills.send(router, message);
        }
    }

    /// Returns true if another node has published the will of a client's connection because this
    /// node was unreachable.
    pub fn will_was_published(&self, subscriber: SubscriberId) -> bool {
        self.wills.was_published(subscriber, self.claims.now)
    }

    /// Routers have come or gone, or replicas of wills were enabled.
    pub(super) fn replica_routers_changed(&mut self) {
        let wills = &mut self.wills;
        for (subscriber, replica) in &mut wills.replicas {
            // A router that is gone has lost its replicas or will receive them again when it is
            // back.
            replica.router = replica.router.filter(|router| self.claims.is_live(*router));
            let Some(entry) = self.subscribers.get(subscriber.0 as usize) else {
                continue;
            };
            let router = match wills.is_enabled {
                true => self
                    .claims
                    .will_replica_router(entry.vhost(), entry.client()),
                false => None,
            };
            if replica.router != router {
                wills.outdated.insert(*subscriber);
            }
        }
        wills.retain_outgoing(|address| self.claims.is_live(address));
    }

    /// Sends wills to their new replica routers.
    pub(super) fn send_replicas(&mut self, now: Time) {
        for _ in 0..self.wills.outdated.len().min(REPORTS_PER_TICK) {
            let Some(subscriber) = self.wills.outdated.pop_first() else {
                break;
            };
            let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
                continue;
            };
            if let Some(session) = entry.session() {
                self.outputs
                    .push_back(RouterOutput::ReplicateWill { session });
                continue;
            }
            let waiting = entry.away_mut().and_then(|away| away.will.clone());
            if let Some((at, will)) = waiting {
                let left = at.since(now).as_secs();
                self.replicate_will(subscriber, &will, u32::try_from(left).unwrap_or(u32::MAX));
            }
        }
    }

    /// Publishes the wills of failed nodes that are due.
    pub(super) fn publish_due_wills(&mut self, now: Time) {
        if !self.wills.waits_for_majority() {
            return;
        }
        for (id, will) in self.wills.take_due(now) {
            let vhost = id.vhost;
            self.outputs.push_back(RouterOutput::Will { vhost, will });
        }
    }

    /// A client is about to be accepted at the router `address`. The will of an older connection is
    /// published now or never. `clean`: its previous session has ended, and with it the Will Delay
    /// Interval.
    pub(super) fn client_moves_to(&mut self, id: &ClientId, address: RouterAddress, clean: bool) {
        let Some(PeerWill { delay, will, .. }) = self.wills.take_superseded(id, address) else {
            return;
        };
        if self.wills.has_majority() && (clean || delay.is_zero()) {
            let vhost = id.vhost.clone();
            self.outputs.push_back(RouterOutput::Will { vhost, will });
        }
    }

    /// A client has been at the router `address` for some time: drops the replica of an older
    /// connection's will.
    pub(super) fn client_seen_at(&mut self, id: &ClientId, address: RouterAddress) {
        self.wills.take_superseded(id, address);
    }

    /// Returns the next frame about wills for another router, at the end of a turn; `None` if there
    /// is none. To be sent before the frames about client ids: the replica of a published will must
    /// be dropped before the client's id is free.
    pub fn next_will_messages(&mut self) -> Option<(RouterAddress, Vec<WillMessage>)> {
        self.wills.take()
    }

    /// Handles messages of another router about wills.
    pub fn handle_will_messages(&mut self, from: RouterAddress, messages: Vec<WillMessage>) {
        for message in messages {
            self.wills.handle(from, message);
        }
    }
}
