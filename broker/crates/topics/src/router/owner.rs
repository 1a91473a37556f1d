//! Client ids among hubs: what a hub does as the owner of an id.

use super::MqttRouter;
use crate::RouterAddress;
use crate::claims::claim_message::{ClaimVerb, ClientId};
use crate::claims::{OwnedClientId, PATIENCE, WaitingClaim};
use bytes::Bytes;

impl MqttRouter {
    /// Who holds an id, and under which stamp.
    fn holder(&self, id: &ClientId) -> Option<(RouterAddress, u64)> {
        let elsewhere = self.claims.owned.get(id).and_then(|owned| owned.holder);
        elsewhere.or_else(|| {
            let (_, stamp) = self.held_here(id)?;
            Some((self.claims.me(), stamp))
        })
    }

    /// A session at `from` wants an id.
    pub(super) fn claimed(&mut self, id: ClientId, from: RouterAddress, session: u64, clean: bool) {
        let claim = WaitingClaim {
            address: from,
            session,
            clean,
        };
        let waits = self.claims.owned.get(&id).and_then(|owned| owned.pending);
        if let Some(older) = waits.filter(|older| *older != claim) {
            let session = older.session;
            let what = ClaimVerb::Lost { session };
            self.claims.send(older.address, id.clone(), what);
        }
        match self.holder(&id) {
            Some((address, stamp)) if address != from => {
                let owned = self.claims.owned.get(&id).copied().unwrap_or_default();
                let pending = Some(claim);
                self.claims
                    .keep(id.clone(), OwnedClientId { pending, ..owned });
                let patience = (self.claims.now + PATIENCE, id.clone(), claim);
                self.claims.patience.push_back(patience);
                self.claims
                    .send(address, id, ClaimVerb::Yield { stamp, clean });
            }
            // Who asks does not hold it any more: its word of that was lost.
            holder => {
                let floor = holder.map_or(0, |(_, stamp)| stamp);
                self.grant(id, claim, floor, Bytes::new());
            }
        }
    }

    /// `handover`: the previous holder's; if that had none, one that nobody was there for is used.
    fn grant(&mut self, id: ClientId, to: WaitingClaim, floor: u64, handover: Bytes) {
        let stranded = self.claims.take_stranded(&id);
        let handover = match (to.clean, handover.is_empty()) {
            (true, _) => Bytes::new(),
            (false, true) => stranded,
            (false, false) => handover,
        };
        let stamp = self.claims.stamp(floor);
        let session = to.session;
        self.client_comes_to(&id, to.address, to.clean);
        if to.address == self.claims.me() {
            self.claims.owned.remove(&id);
            return self.granted(id, to.address, (session, stamp), handover);
        }
        let owned = OwnedClientId {
            holder: Some((to.address, stamp)),
            pending: None,
        };
        self.claims.keep(id.clone(), owned);
        let what = ClaimVerb::Granted {
            session,
            stamp,
            handover,
        };
        self.claims.send(to.address, id, what);
    }

    /// A holding is over.
    pub(super) fn freed(&mut self, id: ClientId, from: RouterAddress, stamp: u64, handover: Bytes) {
        let me = self.claims.me();
        let Some(owned) = self.claims.owned.get_mut(&id) else {
            if from == me {
                self.claims.strand(id, handover);
            }
            return;
        };
        match owned.holder {
            Some(holder) if holder == (from, stamp) => owned.holder = None,
            None if from == me => {}
            // An earlier grant to a hub that has asked again since.
            _ => return self.claims.strand(id, handover),
        }
        match owned.pending {
            Some(pending) => {
                if self.holder(&id).is_none() {
                    self.grant(id, pending, stamp, handover);
                }
            }
            None => {
                self.claims.owned.remove(&id);
                self.claims.strand(id, handover);
            }
        }
    }

    /// A hub tells what it holds: it is new, or this one is, or the link was broken.
    pub(super) fn held_by(&mut self, id: ClientId, from: RouterAddress, stamp: u64) {
        let owned = self.claims.owned.get(&id).copied().unwrap_or_default();
        let mut keeper = (stamp, from);
        if let Some((address, held)) = self.holder(&id)
            && address != from
        {
            // Two hold it, for a while they did not know of each other. The younger one stays.
            let other = (held, address);
            keeper = keeper.max(other);
            let (stamp, sent_away) = if keeper == other {
                (stamp, from)
            } else {
                other
            };
            let clean = false;
            self.claims
                .send(sent_away, id.clone(), ClaimVerb::Yield { stamp, clean });
        }
        let (stamp, address) = keeper;
        self.client_is_at(&id, address);
        // Its own claim was granted by somebody else meanwhile.
        let pending = owned.pending.filter(|pending| pending.address != address);
        if let Some(WaitingClaim { clean, .. }) = pending {
            self.claims
                .send(address, id.clone(), ClaimVerb::Yield { stamp, clean });
        }
        let elsewhere = address != self.claims.me();
        let owned = OwnedClientId {
            holder: elsewhere.then_some((address, stamp)),
            pending,
        };
        match elsewhere || owned.pending.is_some() {
            true => self.claims.keep(id, owned),
            false => {
                self.claims.owned.remove(&id);
            }
        }
    }

    /// Hubs have come or gone: what was theirs is nobody's, and what is for others to keep is forgotten.
    pub(super) fn owners_changed(&mut self) {
        let claims = &self.claims;
        let keeps = |id: &ClientId, owned: &OwnedClientId| {
            let mut named = owned.holder.map(|(address, _)| address).into_iter();
            let mut waits = owned.pending.map(|pending| pending.address).into_iter();
            let there = |address| claims.is_there(address);
            named.all(there)
                && waits.all(there)
                && (owned.pending.is_some() || claims.owner_of(id) == claims.me())
        };
        let changed = claims.owned.iter().filter(|(id, owned)| !keeps(id, owned));
        let mut changed: Vec<(ClientId, OwnedClientId)> =
            changed.map(|(id, owned)| (id.clone(), *owned)).collect();
        changed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (id, mut owned) in changed {
            let there = |address: RouterAddress| self.claims.is_there(address);
            let floor = owned.holder.map_or(0, |(_, stamp)| stamp);
            owned.holder = owned.holder.filter(|(address, _)| there(*address));
            owned.pending = owned.pending.filter(|pending| there(pending.address));
            let kept = self.claims.owner_of(&id) == self.claims.me() && owned.holder.is_some();
            if !kept && owned.pending.is_none() {
                self.claims.owned.remove(&id);
                continue;
            }
            self.claims.keep(id.clone(), owned);
            if let Some(pending) = owned.pending
                && self.holder(&id).is_none()
            {
                self.grant(id, pending, floor, Bytes::new());
            }
        }
    }

    /// Those who do not let go in time are passed over.
    pub(super) fn lose_patience(&mut self) {
        while let Some((at, _, _)) = self.claims.patience.front()
            && *at <= self.claims.now
        {
            let Some((_, id, claim)) = self.claims.patience.pop_front() else {
                break;
            };
            let owned = self.claims.owned.get(&id).copied();
            if owned.is_some_and(|owned| owned.pending == Some(claim)) {
                let floor = self.holder(&id).map_or(0, |(_, stamp)| stamp);
                self.grant(id, claim, floor, Bytes::new());
            }
        }
        self.claims.sweep();
        self.hear_own_messages();
    }
}
