//! Wills of clients whose node dies: each has a copy at a hub of another node, its keeper (docs/decisions/0012-mqtt-wills.md).
//!
//! The keeper of a will is the hub that would own the client's id if the client's node were gone ([`crate::claims`]): so it hears of it
//! when the client comes back elsewhere. What a broken link lost is made up for as there: when it is up again the keeper has forgotten
//! that hub's wills, and is told all of them anew.

pub(crate) mod will_message;

use crate::claims::claim_message::ClientId;
use crate::{RouterAddress, SubscriberId, Will};
use env::planted::{self, Bug};
use env::{Incarnation, NodeId, Time};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use will_message::{WillMessage, size_of_kept};

/// Bytes of other nodes' wills that a hub keeps at most; what is beyond that goes with its node, and is counted.
pub(crate) const KEPT_BYTES: usize = 64 << 20;

/// How long a node is out of reach before it counts as gone, as with messages for its hubs.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long after it was out of reach a node ends connections because of that.
const AFTERMATH: Duration = Duration::from_secs(60);

/// Words of a frame, and their bytes, at most.
const WORDS: usize = 512;
const WORDS_BYTES: usize = 256 << 10;

/// Wills that are published at one time.
const AT_ONCE: usize = 1024;

/// Where another hub's copy of a will is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WillReplica {
    pub number: u64,
    pub keeper: Option<RouterAddress>,
    /// That one has asked for it, and may have it or not.
    pub again: bool,
}

/// Another hub's will.
pub(crate) struct PeerWill {
    id: ClientId,
    /// From when its node counts as gone.
    pub delay: Duration,
    pub will: Will,
}

#[derive(Default)]
pub(crate) struct Wills {
    /// The whole cluster understands words about wills.
    pub on: bool,
    /// Since when this node is not with a majority; None: it is.
    alone_since: Option<Time>,
    /// Until when connections end because this node was not with a majority, and the newest will of then: others have published it.
    aftermath: Option<(Time, u64)>,
    /// Of clients of this hub that have a will.
    pub told: BTreeMap<SubscriberId, WillReplica>,
    /// Those whose keeper may have changed.
    pub untold: BTreeSet<SubscriberId>,
    last_number: u64,
    kept: BTreeMap<(RouterAddress, u64), PeerWill>,
    /// The newest one of each client.
    by_client: BTreeMap<ClientId, (RouterAddress, u64)>,
    kept_bytes: usize,
    /// Hubs of nodes that are out of reach, or of lives that are over, and that have wills here.
    gone: BTreeMap<RouterAddress, Time>,
    due: BTreeSet<(Time, RouterAddress, u64)>,
    outgoing: BTreeMap<RouterAddress, VecDeque<WillMessage>>,
    /// Wills that there was no room for, since the start.
    pub not_kept: u64,
}

/// Of this hub's own clients.
impl Wills {
    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    pub fn send(&mut self, to: RouterAddress, peer_message: WillMessage) {
        self.outgoing.entry(to).or_default().push_back(peer_message);
    }

    /// A client has no will any more.
    pub fn drop(&mut self, who: SubscriberId) {
        self.untold.remove(&who);
        if let Some(told) = self.told.remove(&who)
            && let Some(keeper) = told.keeper
            && !planted::is(Bug::WillKeptOn)
        {
            let number = told.number;
            self.send(keeper, WillMessage::Drop { number });
        }
    }

    /// A hub asks for all that is told to it.
    pub fn asked_by(&mut self, keeper: RouterAddress) {
        let all = self.told.iter_mut();
        for (who, told) in all.filter(|(_, told)| told.keeper == Some(keeper)) {
            told.again = true;
            self.untold.insert(*who);
        }
    }

    /// Words for other hubs than these are forgotten.
    pub fn only(&mut self, is_there: impl Fn(RouterAddress) -> bool) {
        self.outgoing.retain(|address, _| is_there(*address));
    }

    /// Words for another hub, a frame's worth.
    pub fn take(&mut self) -> Option<(RouterAddress, Vec<WillMessage>)> {
        let mut first = self.outgoing.first_entry()?;
        let (address, all) = (*first.key(), first.get_mut());
        let (mut peer_messages, mut size) = (Vec::new(), 0);
        while size < WORDS_BYTES && peer_messages.len() < WORDS {
            let Some(peer_message) = all.pop_front() else {
                break;
            };
            size += peer_message.size();
            peer_messages.push(peer_message);
        }
        if all.is_empty() {
            first.remove();
        }
        Some((address, peer_messages))
    }

    pub fn set_majority(&mut self, majority: bool, now: Time) {
        let before = self.alone_since;
        self.alone_since = (!majority).then(|| before.unwrap_or(now));
        if let (true, Some(since)) = (majority, before)
            && now >= since + PATIENCE
        {
            self.aftermath = Some((now + AFTERMATH, self.last_number));
        }
    }

    pub fn has_majority(&self) -> bool {
        self.alone_since.is_none()
    }

    /// Whether another node has published this will because this one was out of reach.
    pub fn was_published(&self, who: SubscriberId, now: Time) -> bool {
        let Some(told) = self.told.get(&who) else {
            return false;
        };
        let alone = self.alone_since.is_some_and(|at| now >= at + PATIENCE);
        let after = self.aftermath;
        alone || after.is_some_and(|(until, newest)| now < until && told.number <= newest)
    }
}

/// Of other hubs' clients.
impl Wills {
    /// A hub that is there wants this kept, or no more.
    pub fn hear(&mut self, from: RouterAddress, peer_message: WillMessage) {
        match peer_message {
            WillMessage::Drop { number } => drop(self.forget((from, number))),
            WillMessage::Keep {
                number,
                id,
                delay,
                will,
            } => {
                self.forget((from, number));
                // Its client is there now.
                if let Some(older) = self.by_client.get(&id).copied() {
                    self.forget(older);
                }
                let size = size_of_kept(&id, &will);
                if self.kept_bytes + size > KEPT_BYTES {
                    self.not_kept += 1;
                    return;
                }
                self.kept_bytes += size;
                self.by_client.insert(id.clone(), (from, number));
                let delay = Duration::from_secs(delay.into());
                self.kept
                    .insert((from, number), PeerWill { id, delay, will });
            }
        }
    }

    fn forget(&mut self, which: (RouterAddress, u64)) -> Option<PeerWill> {
        let kept = self.kept.remove(&which)?;
        self.kept_bytes -= size_of_kept(&kept.id, &kept.will);
        if self.by_client.get(&kept.id) == Some(&which) {
            self.by_client.remove(&kept.id);
        }
        let (address, number) = which;
        if let Some(since) = self.gone.get(&address) {
            self.due
                .remove(&(*since + PATIENCE + kept.delay, address, number));
            if self.of(address).next().is_none() {
                self.gone.remove(&address);
            }
        }
        Some(kept)
    }

    fn of(&self, address: RouterAddress) -> impl Iterator<Item = (u64, &PeerWill)> {
        let all = self.kept.range((address, 0)..=(address, u64::MAX));
        all.map(|((_, number), kept)| (*number, kept))
    }

    /// The hubs of a node that have wills here.
    fn places(&self, node: NodeId) -> Vec<RouterAddress> {
        let mut all: Vec<RouterAddress> = self.kept.keys().map(|(address, _)| *address).collect();
        all.dedup();
        all.retain(|address| address.node == node);
        all
    }

    /// A node is out of reach.
    pub fn part(&mut self, node: NodeId, now: Time) {
        for address in self.places(node) {
            self.mourn(address, now);
        }
    }

    fn mourn(&mut self, address: RouterAddress, now: Time) {
        if self.gone.contains_key(&address) {
            return;
        }
        self.gone.insert(address, now);
        let due = |(number, kept): (u64, &PeerWill)| (now + PATIENCE + kept.delay, address, number);
        let due: Vec<_> = self.of(address).map(due).collect();
        self.due.extend(due);
    }

    /// A node is up in this life (None: it never comes back): it tells its wills anew, and clients of its other lives are gone.
    pub fn meet(&mut self, node: NodeId, life: Option<Incarnation>, now: Time) {
        for address in self.places(node) {
            if Some(address.incarnation) != life {
                self.mourn(address, now);
                continue;
            }
            let numbers: Vec<u64> = self.of(address).map(|(number, _)| number).collect();
            for number in numbers {
                self.forget((address, number));
            }
        }
    }

    /// A client's newest connection is at this hub: what an older one's will was, if it was kept here.
    pub fn client_is_at(&mut self, id: &ClientId, address: RouterAddress) -> Option<PeerWill> {
        let which = *self.by_client.get(id)?;
        if which.0 == address {
            return None;
        }
        self.forget(which)
    }

    /// Whether what this node knows of the others matters.
    pub fn waits_for_majority(&self) -> bool {
        !self.due.is_empty()
    }

    /// Wills to be published now, with their clients.
    pub fn overdue(&mut self, now: Time) -> Vec<(ClientId, Will)> {
        let mut all = Vec::new();
        while self.has_majority()
            && !planted::is(Bug::WillOfTheDead)
            && all.len() < AT_ONCE
            && let Some(&(at, address, number)) = self.due.first()
            && at <= now
        {
            self.due.pop_first();
            if let Some(kept) = self.forget((address, number)) {
                all.push((kept.id, kept.will));
            }
        }
        all
    }

    pub fn wake_at(&self, now: Time) -> Option<Time> {
        if !self.untold.is_empty() {
            return Some(now);
        }
        let first = self.due.first().map(|(at, _, _)| *at);
        first.filter(|_| self.has_majority())
    }

    /// How many are kept for others.
    pub fn kept(&self) -> usize {
        self.kept.len()
    }
}
