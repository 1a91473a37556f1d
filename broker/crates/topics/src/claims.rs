//! Ownership of MQTT client ids across all routers of the cluster, without a replicated log.
//!
//! Each id has an owner router, chosen by rendezvous hashing over the live routers, so that few ids
//! move when routers come and go. A session that wants an id sends a claim to the owner. The owner
//! asks the current holder to yield, waits for it, and then grants the id. Nothing of this is
//! stored: when owners change, holders report their ids to the new owner. While the new owner lacks
//! these reports, it may grant an id a second time; the holding with the newer stamp wins.
//!
//! A link delivers messages in order and loses none while it is up. Losses of a broken link are
//! repaired when it is up again: each side has forgotten the other, reports all ids that it holds
//! and requests all reports. The request is necessary because an owner that has not yet noticed the
//! broken link may grant an id over the new link and then forget the grant.

pub(crate) mod claim_message;

use crate::{RouterAddress, SubscriberId};
use bytes::Bytes;
use claim_message::{ClaimMessage, ClaimVerb, ClientId};
use env::{Time, WallTime};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How long an owner waits for a reachable holder to yield. Sessions end at once; one that takes
/// longer hangs.
pub(crate) const YIELD_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a holder keeps the id of a disconnected client until the publishes of its last
/// connection are confirmed, so that their outcome is part of the handed-over session. Less than
/// [`YIELD_TIMEOUT`].
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
const _: () = assert!(SETTLE_TIMEOUT.as_nanos() < YIELD_TIMEOUT.as_nanos());

/// Maximum bytes of handovers that an owner keeps for clients whose new connection ended before it
/// was granted the id.
const STRANDED_BYTES: usize = 4 << 20;

/// Handover bytes after which no further message is added to a frame.
const FRAME_BYTES: usize = 256 << 10;

/// Maximum number of ids reported to new owners per tick.
pub(crate) const REPORTS_PER_TICK: usize = 4096;

/// Maximum number of messages per frame.
const MAX_MESSAGES: usize = 512;

/// A claim that waits until the holder yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingClaim {
    pub address: RouterAddress,
    pub session: u64,
    pub clean: bool,
}

/// State that the owner keeps for an id that is held by another router or waited for. Ids that are
/// held by the owner's own clients are recorded in its subscribers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnedClientId {
    /// `None` if a client of the owner itself or nobody holds the id.
    pub holder: Option<(RouterAddress, u64)>,
    pub pending: Option<WaitingClaim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimProgress {
    /// Another local session holds the id and is yielding it to an earlier claim. The claim is sent
    /// after that.
    Deferred,
    Sent,
    /// Granted with this stamp. The session is about to take the id.
    Granted(u64),
}

/// A claim of a local session.
#[derive(Clone, Debug)]
pub(crate) struct PendingClaim {
    pub session: u64,
    pub clean: bool,
    pub progress: ClaimProgress,
    /// Session state that came with the grant.
    pub handover: Bytes,
}

/// A request of an owner that a local client yields its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingYield {
    pub owner: RouterAddress,
    pub stamp: u64,
    pub clean: bool,
}

#[derive(Default)]
pub(crate) struct Claims {
    /// `None` until the shard has set the address; then this router is alone.
    me: Option<RouterAddress>,
    others: Vec<RouterAddress>,
    pub now: Time,
    pub wall: WallTime,
    last_stamp: u64,
    pub owned: HashMap<ClientId, OwnedClientId, foldhash::fast::FixedState>,
    pub local_claims: BTreeMap<ClientId, PendingClaim>,
    pub yielding: BTreeMap<SubscriberId, Vec<PendingYield>>,
    /// Clients in `yielding` that are disconnected, with the time until which the router waits for
    /// the confirms of their publishes.
    pub settling: BTreeMap<SubscriberId, (Time, ClientId)>,
    /// True if session state is handed over with an id. Requires that all nodes understand it.
    pub handover_enabled: bool,
    /// Handovers of ids that nobody holds yet. Kept by the owner or by the router whose session
    /// claims the id.
    stranded: BTreeMap<ClientId, Bytes>,
    /// Total bytes of `stranded`.
    stranded_bytes: usize,
    /// Subscribers that may hold an id without the owner knowing it.
    pub unreported: BTreeSet<SubscriberId>,
    /// When to grant a claim although the holder has not yielded, in the order of time.
    pub deadlines: VecDeque<(Time, ClientId, WaitingClaim)>,
    /// When to forget ids that were claimed here by mistake because this router is not their owner.
    pub sweep_at: Option<Time>,
    outgoing: BTreeMap<RouterAddress, VecDeque<ClaimMessage>>,
    /// Messages from this router to itself.
    pub own_messages: VecDeque<ClaimMessage>,
    /// The session that is inside [`MqttRouter::claim`](crate::MqttRouter::claim): it gets the
    /// result as the return value instead of an output.
    pub claiming: Option<u64>,
}

impl Claims {
    /// Returns true if there is no other router to ask.
    pub(crate) fn is_alone(&self) -> bool {
        self.others.is_empty()
    }

    pub(crate) fn me(&self) -> RouterAddress {
        self.me.unwrap_or(RouterAddress::NOWHERE)
    }

    /// Sets the live routers. Returns the previous ones, or `None` if nothing changed.
    pub(crate) fn set(
        &mut self,
        me: RouterAddress,
        others: Vec<RouterAddress>,
    ) -> Option<KnownRouters> {
        if self.me == Some(me) && self.others == others {
            return None;
        }
        let before = KnownRouters {
            me: self.me(),
            others: std::mem::replace(&mut self.others, others),
        };
        self.me = Some(me);
        let others = &self.others;
        self.outgoing.retain(|address, _| others.contains(address));
        Some(before)
    }

    pub(crate) fn is_live(&self, address: RouterAddress) -> bool {
        address == self.me() || self.others.contains(&address)
    }

    /// Returns the routers that are not in `before`.
    pub(crate) fn added_since(&self, before: &KnownRouters) -> Vec<RouterAddress> {
        let known = |address: &RouterAddress| before.others.contains(address);
        let all = self.others.iter().copied();
        all.filter(|address| !known(address)).collect()
    }

    pub(crate) fn owner(&self, vhost: &str, client: &str) -> RouterAddress {
        owner_among(self.me(), &self.others, vhost, client)
    }

    /// The router on another node that would own the id if this node were gone.
    pub(crate) fn will_replica_router(&self, vhost: &str, client: &str) -> Option<RouterAddress> {
        let elsewhere = |address: &&RouterAddress| address.node != self.me().node;
        highest_weight(self.others.iter().filter(elsewhere), vhost, client)
    }

    pub(crate) fn owner_of(&self, id: &ClientId) -> RouterAddress {
        self.owner(&id.vhost, &id.client)
    }

    /// Returns a stamp above `floor`, above all earlier stamps of this router and, as far as clocks
    /// agree, above the stamps of holdings that began earlier on other routers.
    pub(crate) fn stamp(&mut self, floor: u64) -> u64 {
        let least = floor.max(self.last_stamp).saturating_add(1);
        self.last_stamp = self.wall.0.max(least);
        self.last_stamp
    }

    /// Records the holder of an id or a claim that waits for it.
    pub(crate) fn track(&mut self, id: ClientId, owned: OwnedClientId) {
        if self.sweep_at.is_none() && self.owner_of(&id) != self.me() {
            self.sweep_at = Some(self.now + YIELD_TIMEOUT);
        }
        self.owned.insert(id, owned);
    }

    /// Forgets ids owned by other routers, except those with a waiting claim.
    pub(crate) fn sweep(&mut self) {
        if self.sweep_at.is_none_or(|at| at > self.now) {
            return;
        }
        let (me, others) = (self.me(), &self.others);
        let ours = |id: &ClientId| owner_among(me, others, &id.vhost, &id.client) == me;
        self.owned
            .retain(|id, owned| owned.pending.is_some() || ours(id));
        let left = self.owned.iter().any(|(id, _)| !ours(id));
        self.sweep_at = left.then(|| self.now + YIELD_TIMEOUT);
    }

    /// Keeps a handover that no claim waits for until the id is granted. If the limit is exceeded,
    /// other handovers are dropped.
    pub(crate) fn strand(&mut self, id: ClientId, handover: Bytes) {
        if handover.is_empty() {
            return;
        }
        self.take_stranded(&id);
        self.stranded_bytes += handover.len();
        self.stranded.insert(id, handover);
        while self.stranded_bytes > STRANDED_BYTES
            && let Some((_, dropped)) = self.stranded.pop_first()
        {
            debug_assert!(
                self.stranded_bytes >= dropped.len(),
                "a dropped handover of {} bytes was not counted",
                dropped.len()
            );
            self.stranded_bytes -= dropped.len();
        }
    }

    pub(crate) fn take_stranded(&mut self, id: &ClientId) -> Bytes {
        let found = self.stranded.remove(id).unwrap_or_default();
        debug_assert!(
            self.stranded_bytes >= found.len(),
            "the handover of client {id:?} was not counted"
        );
        self.stranded_bytes -= found.len();
        found
    }

    pub(crate) fn send(&mut self, to: RouterAddress, id: ClientId, verb: ClaimVerb) {
        let message = ClaimMessage { id, verb };
        match to == self.me() {
            true => self.own_messages.push_back(message),
            false if self.others.contains(&to) => {
                self.outgoing.entry(to).or_default().push_back(message);
            }
            // The router is gone. When it is back, it will have forgotten this one.
            false => {}
        }
    }

    pub(crate) fn has_frames(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Takes one frame of messages for another router.
    pub(crate) fn take(&mut self) -> Option<(RouterAddress, Vec<ClaimMessage>)> {
        let mut first = self.outgoing.first_entry()?;
        let all = first.get_mut();
        let mut bytes = 0;
        let is_within_limit = |message: &&ClaimMessage| {
            let is_first = bytes < FRAME_BYTES;
            bytes += message.verb.handover().len();
            is_first
        };
        let count = all
            .iter()
            .take(MAX_MESSAGES)
            .take_while(is_within_limit)
            .count();
        let messages: Vec<ClaimMessage> = all.drain(..count).collect();
        let address = *first.key();
        if first.get().is_empty() {
            first.remove();
        }
        Some((address, messages))
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        if !self.unreported.is_empty() {
            return Some(self.now);
        }
        let patience = self.deadlines.front().map(|(at, _, _)| *at);
        let settling = self.settling.values().map(|(at, _)| *at).min();
        Time::earliest([patience, settling, self.sweep_at])
    }
}

/// The routers that were live before a change.
pub(crate) struct KnownRouters {
    me: RouterAddress,
    pub others: Vec<RouterAddress>,
}

impl KnownRouters {
    pub(crate) fn owner(&self, vhost: &str, client: &str) -> RouterAddress {
        owner_among(self.me, &self.others, vhost, client)
    }
}

/// Rendezvous hashing. The incarnation is not part of the hash, so a restarted node owns the same
/// ids as before.
fn owner_among(
    me: RouterAddress,
    others: &[RouterAddress],
    vhost: &str,
    client: &str,
) -> RouterAddress {
    if others.is_empty() {
        return me;
    }
    highest_weight([&me].into_iter().chain(others), vhost, client).unwrap_or(me)
}

fn highest_weight<'a>(
    routers: impl Iterator<Item = &'a RouterAddress>,
    vhost: &str,
    client: &str,
) -> Option<RouterAddress> {
    let id = hash(hash(0, vhost.as_bytes()), client.as_bytes());
    let weight = |address: &RouterAddress| {
        let router = mix_bits(address.node.0 ^ u64::from(address.shard).rotate_left(48));
        (mix_bits(id ^ router), *address)
    };
    routers.map(weight).max().map(|(_, address)| address)
}

/// FNV-1a: must be the same on every node and in every version.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    let start = start ^ 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The finalizer of SplitMix64.
fn mix_bits(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{Incarnation, NodeId};

    fn address(node: u64, incarnation: u64) -> RouterAddress {
        RouterAddress {
            node: NodeId(node),
            incarnation: Incarnation(incarnation),
            shard: 0,
        }
    }

    fn id(client: &str) -> ClientId {
        ClientId {
            vhost: "/".into(),
            client: client.into(),
        }
    }

    #[test]
    fn stranded_handovers_are_limited_and_taken_once() {
        let mut claims = Claims::default();
        let state = Bytes::from(vec![7; claim_message::HANDOVER_BYTES]);
        let names: Vec<String> = (0..200).map(|n| format!("{n:03}")).collect();
        for name in &names {
            claims.strand(id(name), state.clone());
            claims.strand(id(name), state.clone());
        }
        let stranded = names.iter().filter(|name| {
            let handover = claims.take_stranded(&id(name));
            assert!(claims.take_stranded(&id(name)).is_empty());
            !handover.is_empty()
        });
        assert_eq!(
            stranded.count(),
            STRANDED_BYTES / claim_message::HANDOVER_BYTES
        );
        assert_eq!(claims.stranded_bytes, 0);
    }

    #[test]
    fn frame_of_handovers_is_limited() {
        let mut claims = Claims::default();
        let other = address(2, 1);
        claims.set(address(1, 1), vec![other]);
        for n in 0..100 {
            let handover = Bytes::from(vec![7; claim_message::HANDOVER_BYTES]);
            let verb = ClaimVerb::Free { stamp: n, handover };
            claims.send(other, id("c"), verb);
        }
        let mut stamps = Vec::new();
        while let Some((_, messages)) = claims.take() {
            assert!(messages.len() <= FRAME_BYTES / claim_message::HANDOVER_BYTES);
            stamps.extend(messages.iter().map(|message| match message.verb {
                ClaimVerb::Free { stamp, .. } => stamp,
                _ => u64::MAX,
            }));
        }
        assert!(stamps.into_iter().eq(0..100));
    }

    #[test]
    fn owners_are_spread_evenly_and_few_ids_move() {
        let three = [address(1, 1), address(2, 1), address(3, 1)];
        let ids: Vec<String> = (0..3000).map(|n| format!("client-{n}")).collect();
        let owner =
            |routers: &[RouterAddress], id: &str| owner_among(routers[0], &routers[1..], "/", id);
        for router in three {
            let own = ids.iter().filter(|id| owner(&three, id) == router).count();
            assert!((900..1100).contains(&own), "{own}");
        }
        for id in &ids {
            let before = owner(&three, id);
            let mut turned = three;
            turned.reverse();
            assert_eq!(owner(&turned, id), before, "everybody finds the same");
            let after = owner(&three[..2], id);
            assert!(before == three[2] || after == before);
            let again = [three[0], three[1], address(3, 2)];
            assert_eq!(owner(&again, id).node, before.node);
        }
    }
}
