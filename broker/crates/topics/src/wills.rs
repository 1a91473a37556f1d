//! Replicas of wills, so that a will is published although its client's node fails
//! (docs/decisions/0012-mqtt-wills.md).
//!
//! Each will has one replica on a router of another node: the router that would own the client id
//! if the client's node were gone ([`crate::claims`]). That router learns when the client
//! reconnects elsewhere. Losses of a broken link are repaired as for claims: when the link is up
//! again, the replica router has forgotten that router's wills and receives all of them again.

pub(crate) mod will_message;

use crate::claims::claim_message::ClientId;
use crate::{RouterAddress, SubscriberId, Will};
use env::planted::{self, Bug};
use env::{Incarnation, NodeId, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use will_message::{WillMessage, peer_will_size};

/// Maximum bytes of replicas that a router keeps for other nodes. Wills beyond that are lost with
/// their node and counted.
pub(crate) const MAX_PEER_WILL_BYTES: usize = 64 << 20;

/// How long a node must be unreachable before it counts as failed; the same time as for forwarded
/// messages.
const FAILURE_TIMEOUT: Duration = Duration::from_secs(5);

/// For how long after a partition a node still attributes the end of connections to the partition.
const AFTERMATH_TIME: Duration = Duration::from_secs(60);

/// Maximum number of messages per frame, and the bytes after which a frame is full.
const MAX_MESSAGES: usize = 512;
const MAX_FRAME_BYTES: usize = 256 << 10;

/// Maximum number of wills published per tick.
const MAX_DUE_PER_TICK: usize = 1024;

/// The replica of a local client's will.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WillReplica {
    pub number: u64,
    pub router: Option<RouterAddress>,
    /// The replica router has requested all wills and may or may not have this one.
    pub is_requested: bool,
}

/// A replica of another router's will.
pub(crate) struct PeerWill {
    id: ClientId,
    /// Time between the failure of the node and the publication of the will.
    pub delay: Duration,
    pub will: Will,
}

#[derive(Default)]
pub(crate) struct Wills {
    /// True if all nodes of the cluster support replicas of wills.
    pub is_enabled: bool,
    /// Since when this node has no majority; `None` if it has.
    without_majority_since: Option<Time>,
    /// The time until which connections end because of the last partition, and the newest will at
    /// its end: the other nodes have published the wills up to that one.
    aftermath: Option<(Time, u64)>,
    /// Wills of this router's clients.
    pub replicas: BTreeMap<SubscriberId, WillReplica>,
    /// Clients whose replica router may have changed.
    pub outdated: BTreeSet<SubscriberId>,
    last_number: u64,
    peer_wills: BTreeMap<(RouterAddress, u64), PeerWill>,
    /// The newest replica of each client.
    by_client: BTreeMap<ClientId, (RouterAddress, u64)>,
    peer_will_bytes: usize,
    /// Routers with replicas here whose node is unreachable or whose incarnation is over, and since
    /// when.
    gone: BTreeMap<RouterAddress, Time>,
    due: BTreeSet<(Time, RouterAddress, u64)>,
    outgoing: BTreeMap<RouterAddress, VecDeque<WillMessage>>,
    /// Wills that exceeded [`MAX_PEER_WILL_BYTES`] since the start.
    pub rejected: u64,
}

/// Wills of this router's own clients.
impl Wills {
    pub(crate) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub(crate) fn send(&mut self, to: RouterAddress, message: WillMessage) {
        self.outgoing.entry(to).or_default().push_back(message);
    }

    /// The client has no will any more.
    pub(crate) fn drop(&mut self, subscriber: SubscriberId) {
        self.outdated.remove(&subscriber);
        if let Some(replica) = self.replicas.remove(&subscriber)
            && let Some(router) = replica.router
            && !planted::is(Bug::WillKeptOn)
        {
            let number = replica.number;
            self.send(router, WillMessage::Drop { number });
        }
    }

    /// A replica router requests all wills that it should have.
    pub(crate) fn replicas_requested_by(&mut self, router: RouterAddress) {
        let all = self.replicas.iter_mut();
        for (subscriber, replica) in all.filter(|(_, replica)| replica.router == Some(router)) {
            replica.is_requested = true;
            self.outdated.insert(*subscriber);
        }
    }

    pub(crate) fn has_frames(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Drops outgoing messages for all other routers.
    pub(crate) fn retain_outgoing(&mut self, is_live: impl Fn(RouterAddress) -> bool) {
        self.outgoing.retain(|address, _| is_live(*address));
    }

    /// Takes one frame of messages for another router.
    pub(crate) fn take(&mut self) -> Option<(RouterAddress, Vec<WillMessage>)> {
        let mut first = self.outgoing.first_entry()?;
        let (address, all) = (*first.key(), first.get_mut());
        let (mut messages, mut size) = (Vec::new(), 0);
        while size < MAX_FRAME_BYTES && messages.len() < MAX_MESSAGES {
            let Some(message) = all.pop_front() else {
                break;
            };
            size += message.size();
            messages.push(message);
        }
        if all.is_empty() {
            first.remove();
        }
        Some((address, messages))
    }

    pub(crate) fn set_majority(&mut self, majority: bool, now: Time) {
        let before = self.without_majority_since;
        self.without_majority_since = (!majority).then(|| before.unwrap_or(now));
        if let (true, Some(since)) = (majority, before)
            && now >= since + FAILURE_TIMEOUT
        {
            self.aftermath = Some((now + AFTERMATH_TIME, self.last_number));
        }
    }

    pub(crate) fn has_majority(&self) -> bool {
        self.without_majority_since.is_none()
    }

    /// Returns true if another node has published this will because this node was unreachable.
    pub(crate) fn was_published(&self, subscriber: SubscriberId, now: Time) -> bool {
        let Some(replica) = self.replicas.get(&subscriber) else {
            return false;
        };
        let is_alone = self
            .without_majority_since
            .is_some_and(|at| now >= at + FAILURE_TIMEOUT);
        let aftermath = self.aftermath;
        is_alone || aftermath.is_some_and(|(until, newest)| now < until && replica.number <= newest)
    }
}

/// Replicas of other routers' wills.
impl Wills {
    /// Handles a message of a reachable router: store a replica or drop it.
    pub(crate) fn handle(&mut self, from: RouterAddress, message: WillMessage) {
        match message {
            WillMessage::Drop { number } => drop(self.remove((from, number))),
            WillMessage::Keep {
                number,
                id,
                delay,
                will,
            } => {
                self.remove((from, number));
                // The client is connected to `from` now, so the older replica is obsolete.
                if let Some(older) = self.by_client.get(&id).copied() {
                    self.remove(older);
                }
                let size = peer_will_size(&id, &will);
                if self.peer_will_bytes + size > MAX_PEER_WILL_BYTES {
                    self.rejected += 1;
                    return;
                }
                self.peer_will_bytes += size;
                self.by_client.insert(id.clone(), (from, number));
                let delay = Duration::from_secs(delay.into());
                self.peer_wills
                    .insert((from, number), PeerWill { id, delay, will });
            }
        }
    }

    fn remove(&mut self, key: (RouterAddress, u64)) -> Option<PeerWill> {
        let peer_will = self.peer_wills.remove(&key)?;
        debug_assert!(
            self.peer_will_bytes >= peer_will_size(&peer_will.id, &peer_will.will),
            "will {} of router {:?} was not counted",
            key.1,
            key.0
        );
        self.peer_will_bytes -= peer_will_size(&peer_will.id, &peer_will.will);
        if self.by_client.get(&peer_will.id) == Some(&key) {
            self.by_client.remove(&peer_will.id);
        }
        let (address, number) = key;
        if let Some(since) = self.gone.get(&address) {
            self.due
                .remove(&(*since + FAILURE_TIMEOUT + peer_will.delay, address, number));
            if self.wills_of(address).next().is_none() {
                self.gone.remove(&address);
            }
        }
        Some(peer_will)
    }

    fn wills_of(&self, address: RouterAddress) -> impl Iterator<Item = (u64, &PeerWill)> {
        let all = self.peer_wills.range((address, 0)..=(address, u64::MAX));
        all.map(|((_, number), peer_will)| (*number, peer_will))
    }

    /// The routers of a node that have replicas here.
    fn routers_of(&self, node: NodeId) -> Vec<RouterAddress> {
        let mut all: Vec<RouterAddress> = self
            .peer_wills
            .keys()
            .map(|(address, _)| *address)
            .collect();
        all.dedup();
        all.retain(|address| address.node == node);
        all
    }

    /// The node became unreachable.
    pub(crate) fn node_down(&mut self, node: NodeId, now: Time) {
        for address in self.routers_of(node) {
            self.mark_gone(address, now);
        }
    }

    fn mark_gone(&mut self, address: RouterAddress, now: Time) {
        if self.gone.contains_key(&address) {
            return;
        }
        self.gone.insert(address, now);
        let due = |(number, peer_will): (u64, &PeerWill)| {
            (now + FAILURE_TIMEOUT + peer_will.delay, address, number)
        };
        let due: Vec<_> = self.wills_of(address).map(due).collect();
        self.due.extend(due);
    }

    /// The node is up with this incarnation, or will never come back if `None`. It sends its wills
    /// again; the clients of its other incarnations are gone.
    pub(crate) fn node_up(&mut self, node: NodeId, incarnation: Option<Incarnation>, now: Time) {
        for address in self.routers_of(node) {
            if Some(address.incarnation) != incarnation {
                self.mark_gone(address, now);
                continue;
            }
            let numbers: Vec<u64> = self.wills_of(address).map(|(number, _)| number).collect();
            for number in numbers {
                self.remove((address, number));
            }
        }
    }

    /// A client's newest connection is at this router. Takes the replica of an older connection's
    /// will.
    pub(crate) fn take_superseded(
        &mut self,
        id: &ClientId,
        address: RouterAddress,
    ) -> Option<PeerWill> {
        let key = *self.by_client.get(id)?;
        if key.0 == address {
            return None;
        }
        self.remove(key)
    }

    /// Returns true if replicas are due later, so that the shard has to report whether this node
    /// has a majority.
    pub(crate) fn waits_for_majority(&self) -> bool {
        !self.due.is_empty()
    }

    /// Takes the wills that are due, with their clients. Takes none without a majority.
    pub(crate) fn take_due(&mut self, now: Time) -> Vec<(ClientId, Will)> {
        let mut all = Vec::new();
        while self.has_majority()
            && !planted::is(Bug::WillOfTheDead)
            && all.len() < MAX_DUE_PER_TICK
            && let Some(&(at, address, number)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            if let Some(peer_will) = self.remove((address, number)) {
                all.push((peer_will.id, peer_will.will));
            }
        }
        all
    }

    pub(crate) fn wake_at(&self, now: Time) -> Option<Time> {
        if !self.outdated.is_empty() {
            return Some(now);
        }
        let first = self.due.first().map(|(at, _, _)| *at);
        first.filter(|_| self.has_majority())
    }

    /// Number of replicas kept for other nodes.
    pub(crate) fn peer_will_count(&self) -> usize {
        self.peer_wills.len()
    }
}
