//! Ownership of client ids: the part of a router that owns ids and grants them.

use super::MqttRouter;
use crate::RouterAddress;
use crate::claims::claim_message::{ClaimVerb, ClientId};
use crate::claims::{OwnedClientId, WaitingClaim, YIELD_TIMEOUT};
use bytes::Bytes;

impl MqttRouter {
    /// Returns the holder of an id and its stamp.
    fn holder(&self, id: &ClientId) -> Option<(RouterAddress, u64)> {
        let elsewhere = self.claims.owned.get(id).and_then(|owned| owned.holder);
        elsewhere.or_else(|| {
            let (_, stamp) = self.local_holder(id)?;
            Some((self.claims.me(), stamp))
        })
    }

    /// A session at router `from` claims an id.
    pub(super) fn handle_claim(
        &mut self,
        id: ClientId,
        from: RouterAddress,
        session: u64,
        clean: bool,
    ) {
        let claim = WaitingClaim {
            address: from,
            session,
            clean,
        };
        let waits = self.claims.owned.get(&id).and_then(|owned| owned.pending);
        if let Some(older) = waits.filter(|older| *older != claim) {
            let session = older.session;
            let verb = ClaimVerb::Lost { session };
            self.claims.send(older.address, id.clone(), verb);
        }
        match self.holder(&id) {
            Some((address, stamp)) if address != from => {
                let owned = self.claims.owned.get(&id).copied().unwrap_or_default();
                let pending = Some(claim);
                self.claims
                    .track(id.clone(), OwnedClientId { pending, ..owned });
                let deadline = (self.claims.now + YIELD_TIMEOUT, id.clone(), claim);
                self.claims.deadlines.push_back(deadline);
                self.claims
                    .send(address, id, ClaimVerb::Yield { stamp, clean });
            }
            // A holder that claims again has released the id; its message about that was lost.
            holder => {
                let floor = holder.map_or(0, |(_, stamp)| stamp);
                self.grant(id, claim, floor, Bytes::new());
            }
        }
    }

    /// Grants the id. `handover` is the state from the previous holder; if it is empty, a stranded
    /// handover is used.
    fn grant(&mut self, id: ClientId, to: WaitingClaim, floor: u64, handover: Bytes) {
        let stranded = self.claims.take_stranded(&id);
        let handover = match (to.clean, handover.is_empty()) {
            (true, _) => Bytes::new(),
            (false, true) => stranded,
            (false, false) => handover,
        };
        let stamp = self.claims.stamp(floor);
        let session = to.session;
        self.client_moves_to(&id, to.address, to.clean);
        if to.address == self.claims.me() {
            self.claims.owned.remove(&id);
            return self.handle_granted(id, to.address, (session, stamp), handover);
        }
        let owned = OwnedClientId {
            holder: Some((to.address, stamp)),
            pending: None,
        };
        self.claims.track(id.clone(), owned);
        let verb = ClaimVerb::Granted {
            session,
            stamp,
            handover,
        };
        self.claims.send(to.address, id, verb);
    }

    /// A holding has ended.
    pub(super) fn handle_free(
        &mut self,
        id: ClientId,
        from: RouterAddress,
        stamp: u64,
        handover: Bytes,
    ) {
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
            // The end of an earlier grant, whose router has claimed the id again since.
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

    /// A router reports a holding: one of the two routers is new, or their link was broken.
    pub(super) fn handle_hold(&mut self, id: ClientId, from: RouterAddress, stamp: u64) {
        let owned = self.claims.owned.get(&id).copied().unwrap_or_default();
        let mut keeper = (stamp, from);
        if let Some((address, held)) = self.holder(&id)
            && address != from
        {
            // Two routers hold the id, granted by owners that did not know of each other. The newer
            // holding stays.
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
        self.client_seen_at(&id, address);
        // Another owner has granted the id to the waiting router in the meantime.
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
            true => self.claims.track(id, owned),
            false => {
                self.claims.owned.remove(&id);
            }
        }
    }

    /// Routers have come or gone: frees the ids of those that are gone and forgets ids that now
    /// have another owner.
    pub(super) fn owners_changed(&mut self) {
        let claims = &self.claims;
        let keeps = |id: &ClientId, owned: &OwnedClientId| {
            let mut named = owned.holder.map(|(address, _)| address).into_iter();
            let mut waits = owned.pending.map(|pending| pending.address).into_iter();
            let is_live = |address| claims.is_live(address);
            named.all(is_live)
                && waits.all(is_live)
                && (owned.pending.is_some() || claims.owner_of(id) == claims.me())
        };
        let changed = claims.owned.iter().filter(|(id, owned)| !keeps(id, owned));
        let mut changed: Vec<(ClientId, OwnedClientId)> =
            changed.map(|(id, owned)| (id.clone(), *owned)).collect();
        changed.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (id, mut owned) in changed {
            let is_live = |address: RouterAddress| self.claims.is_live(address);
            let floor = owned.holder.map_or(0, |(_, stamp)| stamp);
            owned.holder = owned.holder.filter(|(address, _)| is_live(*address));
            owned.pending = owned.pending.filter(|pending| is_live(pending.address));
            let kept = self.claims.owner_of(&id) == self.claims.me() && owned.holder.is_some();
            if !kept && owned.pending.is_none() {
                self.claims.owned.remove(&id);
                continue;
            }
            self.claims.track(id.clone(), owned);
            if let Some(pending) = owned.pending
                && self.holder(&id).is_none()
            {
                self.grant(id, pending, floor, Bytes::new());
            }
        }
    }

    /// Grants claims whose holder has not yielded in time.
    pub(super) fn grant_overdue_claims(&mut self) {
        while let Some((at, _, _)) = self.claims.deadlines.front()
            && *at <= self.claims.now
        {
            let Some((_, id, claim)) = self.claims.deadlines.pop_front() else {
                break;
            };
            let owned = self.claims.owned.get(&id).copied();
            if owned.is_some_and(|owned| owned.pending == Some(claim)) {
                let floor = self.holder(&id).map_or(0, |(_, stamp)| stamp);
                self.grant(id, claim, floor, Bytes::new());
            }
        }
        self.claims.sweep();
        self.handle_own_messages();
    }
}
