//! Who holds a client id among all hubs of the cluster (M4), without a log.
//!
//! Each id has an owner: the hub that comes out first of a hash over those that are there (rendezvous hashing, so that few ids move
//! when hubs come and go). Who wants an id asks the owner; the owner asks who holds it to let go, waits for that, and grants.
//! Nothing of this is stored: when owners change, holders tell the new one what they hold. Between a hub's going and that,
//! an id may be granted twice; the younger holding stays, by its stamp.
//!
//! While a link is up its words come in order and none is lost; what a broken link lost is made up for when it is up again, for then
//! each side has forgotten the other, tells everything anew, and asks for everything anew: an id may have been granted over the new
//! link by an owner that had not heard yet that the old one was broken, and that forgot it then.

pub(crate) mod claim_message;

use crate::{RouterAddress, SubscriberId};
use bytes::Bytes;
use claim_message::{ClaimMessage, ClaimVerb, ClientId};
use env::{Time, WallTime};
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// How long an owner waits for a holder that is there. Sessions end at once; what takes longer hangs.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How long a holder keeps an id whose client is away until the publishes of its last connection are answered: the outcome goes
/// with the session. Less than [`PATIENCE`].
pub(crate) const SETTLING: Duration = Duration::from_secs(2);

/// Bytes of handovers that an owner keeps for clients whose new connection ended before it had the id.
const STRANDED_BYTES: usize = 4 << 20;

/// Bytes of handovers in a frame at most, but for the last one.
const FRAME_BYTES: usize = 256 << 10;

/// Ids that a hub tells new owners of at one time.
pub(crate) const TOLD_AT_ONCE: usize = 4096;

/// Words of a frame at most.
const WORDS: usize = 512;

/// A claim that waits for a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingClaim {
    pub address: RouterAddress,
    pub session: u64,
    pub clean: bool,
}

/// An id that is held elsewhere or waited for, at its owner. What the owner's own clients hold stands in its seats.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnedClientId {
    /// None: it is held by a client of the owner itself, or by nobody.
    pub holder: Option<(RouterAddress, u64)>,
    pub pending: Option<WaitingClaim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Another connection has it here and is leaving for somebody else: that comes first.
    Deferred,
    Asked,
    /// With this stamp; the session is about to take it.
    Granted(u64),
}

/// A session of this hub that wants an id.
#[derive(Clone, Debug)]
pub(crate) struct PendingClaim {
    pub session: u64,
    pub clean: bool,
    pub progress: Progress,
    /// What came with the grant.
    pub handover: Bytes,
}

/// An owner waits for a client of this hub to let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingYield {
    pub owner: RouterAddress,
    pub stamp: u64,
    pub clean: bool,
}

#[derive(Default)]
pub(crate) struct Claims {
    /// None: nobody has said; then it is alone.
    me: Option<RouterAddress>,
    others: Vec<RouterAddress>,
    pub now: Time,
    pub wall: WallTime,
    last_stamp: u64,
    pub owned: HashMap<ClientId, OwnedClientId, foldhash::fast::FixedState>,
    pub asking: BTreeMap<ClientId, PendingClaim>,
    pub yielding: BTreeMap<SubscriberId, Vec<PendingYield>>,
    /// Clients of `yielding` that are away, and until when their unanswered publishes are waited for.
    pub settling: BTreeMap<SubscriberId, (Time, ClientId)>,
    /// Whether session state moves with an id: all nodes understand it.
    pub hands_over: bool,
    /// Handovers of ids that nobody holds yet, at their owner or where a connection asks for them.
    stranded: BTreeMap<ClientId, Bytes>,
    /// Bytes of these.
    stranded_bytes: usize,
    /// Who may hold ids that their owners do not know of.
    pub untold: BTreeSet<SubscriberId>,
    /// When to grant to whom, whatever the holder says; in the order of time.
    pub patience: VecDeque<(Time, ClientId, WaitingClaim)>,
    /// When to forget ids that somebody asked for here, believing that this was their owner.
    pub sweep_at: Option<Time>,
    outgoing: BTreeMap<RouterAddress, VecDeque<ClaimMessage>>,
    /// From this hub to itself.
    pub own_messages: VecDeque<ClaimMessage>,
    /// The session that is claiming in this call: it need not be told.
    pub claiming: Option<u64>,
}

impl Claims {
    /// Whether there is no other hub to ask.
    pub fn is_alone(&self) -> bool {
        self.others.is_empty()
    }

    pub fn me(&self) -> RouterAddress {
        self.me.unwrap_or(RouterAddress::NOWHERE)
    }

    /// The hubs that are there. False: they were known.
    pub fn set(&mut self, me: RouterAddress, others: Vec<RouterAddress>) -> Option<KnownRouters> {
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

    pub fn is_there(&self, address: RouterAddress) -> bool {
        address == self.me() || self.others.contains(&address)
    }

    /// Those that were not there before.
    pub fn new_since(&self, before: &KnownRouters) -> Vec<RouterAddress> {
        let known = |address: &RouterAddress| before.others.contains(address);
        let all = self.others.iter().copied();
        all.filter(|address| !known(address)).collect()
    }

    pub fn owner(&self, vhost: &str, client: &str) -> RouterAddress {
        first(self.me(), &self.others, vhost, client)
    }

    /// The hub of another node that would be the owner if this node were gone.
    pub fn keeper(&self, vhost: &str, client: &str) -> Option<RouterAddress> {
        let elsewhere = |address: &&RouterAddress| address.node != self.me().node;
        best(self.others.iter().filter(elsewhere), vhost, client)
    }

    pub fn owner_of(&self, id: &ClientId) -> RouterAddress {
        self.owner(&id.vhost, &id.client)
    }

    /// A stamp above `floor`, above all that were given here, and above those of holdings that began earlier elsewhere, as far as
    /// clocks agree.
    pub fn stamp(&mut self, floor: u64) -> u64 {
        let least = floor.max(self.last_stamp).saturating_add(1);
        self.last_stamp = self.wall.0.max(least);
        self.last_stamp
    }

    /// Keeps who holds an id, or waits for it.
    pub fn keep(&mut self, id: ClientId, owned: OwnedClientId) {
        if self.sweep_at.is_none() && self.owner_of(&id) != self.me() {
            self.sweep_at = Some(self.now + PATIENCE);
        }
        self.owned.insert(id, owned);
    }

    /// Forgets what others own, except where somebody waits.
    pub fn sweep(&mut self) {
        if self.sweep_at.is_none_or(|at| at > self.now) {
            return;
        }
        let (me, others) = (self.me(), &self.others);
        let ours = |id: &ClientId| first(me, others, &id.vhost, &id.client) == me;
        self.owned
            .retain(|id, owned| owned.pending.is_some() || ours(id));
        let left = self.owned.iter().any(|(id, _)| !ours(id));
        self.sweep_at = left.then(|| self.now + PATIENCE);
    }

    /// Keeps a handover that nobody waits for, until the id is granted. If there is no room, others give way.
    pub fn strand(&mut self, id: ClientId, handover: Bytes) {
        if handover.is_empty() {
            return;
        }
        self.take_stranded(&id);
        self.stranded_bytes += handover.len();
        self.stranded.insert(id, handover);
        while self.stranded_bytes > STRANDED_BYTES
            && let Some((_, dropped)) = self.stranded.pop_first()
        {
            self.stranded_bytes -= dropped.len();
        }
    }

    pub fn take_stranded(&mut self, id: &ClientId) -> Bytes {
        let found = self.stranded.remove(id).unwrap_or_default();
        self.stranded_bytes -= found.len();
        found
    }

    pub fn send(&mut self, to: RouterAddress, id: ClientId, what: ClaimVerb) {
        let peer_message = ClaimMessage { id, what };
        match to == self.me() {
            true => self.own_messages.push_back(peer_message),
            false if self.others.contains(&to) => {
                self.outgoing.entry(to).or_default().push_back(peer_message);
            }
            // It is gone, and forgets us when it is back.
            false => {}
        }
    }

    /// Words for another hub, a frame's worth.
    pub fn take(&mut self) -> Option<(RouterAddress, Vec<ClaimMessage>)> {
        let mut first = self.outgoing.first_entry()?;
        let all = first.get_mut();
        let mut bytes = 0;
        let fits = |peer_message: &&ClaimMessage| {
            let is_first = bytes < FRAME_BYTES;
            bytes += peer_message.what.handover().len();
            is_first
        };
        let count = all.iter().take(WORDS).take_while(fits).count();
        let peer_messages: Vec<ClaimMessage> = all.drain(..count).collect();
        let address = *first.key();
        if first.get().is_empty() {
            first.remove();
        }
        Some((address, peer_messages))
    }

    pub fn wake_at(&self) -> Option<Time> {
        if !self.untold.is_empty() {
            return Some(self.now);
        }
        let patience = self.patience.front().map(|(at, _, _)| *at);
        let settling = self.settling.values().map(|(at, _)| *at).min();
        [patience, settling, self.sweep_at]
            .into_iter()
            .flatten()
            .min()
    }
}

/// The hubs that were there.
pub(crate) struct KnownRouters {
    me: RouterAddress,
    pub others: Vec<RouterAddress>,
}

impl KnownRouters {
    pub fn owner(&self, vhost: &str, client: &str) -> RouterAddress {
        first(self.me, &self.others, vhost, client)
    }
}

/// Rendezvous hashing. A node that comes back has the ids that it had: its life does not count.
fn first(me: RouterAddress, others: &[RouterAddress], vhost: &str, client: &str) -> RouterAddress {
    if others.is_empty() {
        return me;
    }
    best([&me].into_iter().chain(others), vhost, client).unwrap_or(me)
}

fn best<'a>(
    places: impl Iterator<Item = &'a RouterAddress>,
    vhost: &str,
    client: &str,
) -> Option<RouterAddress> {
    let id = hash(hash(0, vhost.as_bytes()), client.as_bytes());
    let weight = |address: &RouterAddress| {
        let router = mixed(address.node.0 ^ u64::from(address.shard).rotate_left(48));
        (mixed(id ^ router), *address)
    };
    places.map(weight).max().map(|(_, address)| address)
}

/// FNV-1a: the same on every node and in every version.
fn hash(start: u64, bytes: &[u8]) -> u64 {
    let start = start ^ 0xcbf2_9ce4_8422_2325;
    bytes.iter().fold(start, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The finisher of SplitMix64.
fn mixed(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::{Incarnation, NodeId};

    fn address(node: u64, life: u64) -> RouterAddress {
        RouterAddress {
            node: NodeId(node),
            incarnation: Incarnation(life),
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
    fn stranded_handovers_are_bounded_and_taken_once() {
        let mut claims = Claims::default();
        let state = Bytes::from(vec![7; claim_message::HANDOVER_BYTES]);
        let names: Vec<String> = (0..200).map(|n| format!("{n:03}")).collect();
        for name in &names {
            claims.strand(id(name), state.clone());
            claims.strand(id(name), state.clone());
        }
        let kept = names.iter().filter(|name| {
            let first = claims.take_stranded(&id(name));
            assert!(claims.take_stranded(&id(name)).is_empty());
            !first.is_empty()
        });
        assert_eq!(kept.count(), STRANDED_BYTES / claim_message::HANDOVER_BYTES);
        assert_eq!(claims.stranded_bytes, 0);
    }

    #[test]
    fn frame_of_handovers_is_bounded() {
        let mut claims = Claims::default();
        let there = address(2, 1);
        claims.set(address(1, 1), vec![there]);
        for n in 0..100 {
            let handover = Bytes::from(vec![7; claim_message::HANDOVER_BYTES]);
            let what = ClaimVerb::Free { stamp: n, handover };
            claims.send(there, id("c"), what);
        }
        let mut stamps = Vec::new();
        while let Some((_, peer_messages)) = claims.take() {
            assert!(peer_messages.len() <= FRAME_BYTES / claim_message::HANDOVER_BYTES);
            stamps.extend(
                peer_messages
                    .iter()
                    .map(|peer_message| match peer_message.what {
                        ClaimVerb::Free { stamp, .. } => stamp,
                        _ => u64::MAX,
                    }),
            );
        }
        assert!(stamps.into_iter().eq(0..100));
    }

    #[test]
    fn owners_are_spread_evenly_and_few_ids_move() {
        let three = [address(1, 1), address(2, 1), address(3, 1)];
        let ids: Vec<String> = (0..3000).map(|n| format!("client-{n}")).collect();
        let owner = |routers: &[RouterAddress], id: &str| first(routers[0], &routers[1..], "/", id);
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
