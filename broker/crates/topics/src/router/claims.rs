//! Ownership of client ids: the part of a router that claims ids for its sessions and holds them.

use super::subscriber::SeatOwner;
use super::{MqttRouter, RouterOutput};
use crate::claims::claim_message::{ClaimMessage, ClaimVerb, ClientId};
use crate::claims::{
    ClaimProgress, Claims, PendingClaim, PendingYield, REPORTS_PER_TICK, SETTLE_TIMEOUT,
};
use crate::{HANDOVER_BYTES, RouterAddress, SubscriberId};
use bytes::Bytes;
use env::{Time, WallTime};

impl MqttRouter {
    /// Sets the time for the following calls.
    pub fn set_time(&mut self, now: Time, wall: WallTime) {
        self.claims.now = now;
        self.claims.wall = wall;
        self.routers.set_time(now);
    }

    /// Sets the live routers besides this one, over which the ownership of client ids is
    /// distributed. Call it whenever a router comes or goes. If a node left and came back, there
    /// must be a call without it in between.
    pub fn set_routers(&mut self, me: RouterAddress, others: Vec<RouterAddress>) {
        let Some(before) = self.claims.set(me, others) else {
            return;
        };
        self.schedule_reports(|claims, id| before.owner(id.0, id.1) != claims.owner(id.0, id.1));
        for address in self.claims.added_since(&before) {
            let id = ClientId::default();
            self.claims.send(address, id, ClaimVerb::ReportHolds);
        }
        self.owners_changed();
        self.replica_routers_changed();
        let claims = self.claims.local_claims.iter();
        let moved = claims.filter(|(id, _)| {
            before.owner(&id.vhost, &id.client) != self.claims.owner(&id.vhost, &id.client)
        });
        let moved: Vec<(ClientId, PendingClaim)> =
            moved.map(|(id, a)| (id.clone(), a.clone())).collect();
        for (id, claim) in moved {
            match claim.progress {
                ClaimProgress::Sent => self.send_claim(&id, &claim),
                ClaimProgress::Granted(stamp) => self.send_to_owner(id, ClaimVerb::Hold { stamp }),
                ClaimProgress::Deferred => {}
            }
        }
        self.handle_own_messages();
    }

    /// Schedules reports to the owners of the local ids that `chosen` selects by vhost and client.
    fn schedule_reports(&mut self, chosen: impl Fn(&Claims, (&str, &str)) -> bool) {
        for (key, subscriber) in self.subscribers.iter() {
            let id = (&**subscriber.vhost(), subscriber.client());
            if subscriber.stamp != 0 && chosen(&self.claims, id) {
                self.claims.unreported.insert(SubscriberId(key as u32));
            }
        }
    }

    /// The owner of ids requests reports of those held here.
    fn handle_report_request(&mut self, owner: RouterAddress) {
        self.wills.replicas_requested_by(owner);
        self.schedule_reports(|claims, id| claims.owner(id.0, id.1) == owner);
        let claims = self.claims.local_claims.iter();
        let granted = claims.filter_map(|(id, claim)| match claim.progress {
            ClaimProgress::Granted(stamp) => Some((id.clone(), stamp)),
            _ => None,
        });
        let granted: Vec<(ClientId, u64)> = granted.collect();
        for (id, stamp) in granted {
            if self.claims.owner_of(&id) == owner {
                self.claims.send(owner, id, ClaimVerb::Hold { stamp });
            }
        }
    }

    /// Returns the next frame about client ids for another router, at the end of a turn; `None` if
    /// there is none.
    pub fn next_claim_messages(&mut self) -> Option<(RouterAddress, Vec<ClaimMessage>)> {
        self.claims.take()
    }

    /// Handles messages of another router about client ids.
    pub fn handle_claim_messages(&mut self, from: RouterAddress, messages: Vec<ClaimMessage>) {
        for message in messages {
            self.handle_claim_message(from, message);
            self.handle_own_messages();
        }
    }

    fn handle_claim_message(&mut self, from: RouterAddress, message: ClaimMessage) {
        let ClaimMessage { id, verb } = message;
        match verb {
            ClaimVerb::Claim { session, clean } => self.handle_claim(id, from, session, clean),
            ClaimVerb::Free { stamp, handover } => self.handle_free(id, from, stamp, handover),
            ClaimVerb::Hold { stamp } => self.handle_hold(id, from, stamp),
            ClaimVerb::Granted {
                session,
                stamp,
                handover,
            } => self.handle_granted(id, from, (session, stamp), handover),
            ClaimVerb::Lost { session } => self.handle_lost(&id, session),
            ClaimVerb::ReportHolds => self.handle_report_request(from),
            ClaimVerb::Yield { stamp, clean } => {
                let owner = from;
                self.handle_yield(
                    id,
                    PendingYield {
                        owner,
                        stamp,
                        clean,
                    },
                );
            }
        }
    }

    pub(super) fn handle_own_messages(&mut self) {
        while let Some(message) = self.claims.own_messages.pop_front() {
            let me = self.claims.me();
            self.handle_claim_message(me, message);
        }
    }

    /// Claims an id that no client of this router holds. Returns the stamp and the handover if the
    /// id is granted at once or was granted before.
    pub(super) fn claim_from_owner(
        &mut self,
        vhost: &str,
        client: &str,
        session: u64,
        clean: bool,
        yielding: bool,
    ) -> Option<(u64, Bytes)> {
        if self.claims.is_alone() && !yielding && self.claims.local_claims.is_empty() {
            return Some((self.claims.stamp(0), Bytes::new()));
        }
        let id = ClientId {
            vhost: vhost.into(),
            client: client.into(),
        };
        let known = self.claims.local_claims.get(&id).cloned();
        let mut claim = PendingClaim {
            session,
            clean,
            handover: Bytes::new(),
            progress: match yielding {
                true => ClaimProgress::Deferred,
                false => ClaimProgress::Sent,
            },
        };
        if let Some(known) = known {
            if known.session != session {
                let session = known.session;
                self.outputs.push_back(RouterOutput::TakenOver { session });
            }
            match known.progress {
                ClaimProgress::Granted(stamp) => {
                    self.claims.local_claims.remove(&id);
                    return Some((stamp, known.handover));
                }
                _ if known.session == session => return None,
                ClaimProgress::Deferred => claim.progress = ClaimProgress::Deferred,
                ClaimProgress::Sent => {}
            }
        }
        self.claims.local_claims.insert(id.clone(), claim.clone());
        if claim.progress == ClaimProgress::Sent {
            self.claims.claiming = Some(session);
            self.send_claim(&id, &claim);
            self.handle_own_messages();
            self.claims.claiming = None;
        }
        let now = self.claims.local_claims.get(&id)?;
        let ClaimProgress::Granted(stamp) = now.progress else {
            return None;
        };
        let granted = self.claims.local_claims.remove(&id)?;
        Some((stamp, granted.handover))
    }

    fn send_claim(&mut self, id: &ClientId, claim: &PendingClaim) {
        let &PendingClaim { session, clean, .. } = claim;
        self.send_to_owner(id.clone(), ClaimVerb::Claim { session, clean });
    }

    fn send_to_owner(&mut self, id: ClientId, verb: ClaimVerb) {
        let owner = self.claims.owner_of(&id);
        self.claims.send(owner, id, verb);
    }

    /// A session withdraws its claim.
    pub(super) fn withdraw_claim(&mut self, vhost: &str, client: &str, session: u64) {
        if self.claims.local_claims.is_empty() {
            return;
        }
        let id = ClientId {
            vhost: vhost.into(),
            client: client.into(),
        };
        let claim = self.claims.local_claims.get(&id);
        if claim.is_none_or(|claim| claim.session != session) {
            return;
        }
        let claim = self.claims.local_claims.remove(&id);
        // A grant that arrives later is returned to the owner by `granted`.
        if let Some(PendingClaim {
            progress: ClaimProgress::Granted(stamp),
            handover,
            ..
        }) = claim
        {
            self.send_to_owner(id, ClaimVerb::Free { stamp, handover });
            self.handle_own_messages();
        }
    }

    pub(super) fn handle_granted(
        &mut self,
        id: ClientId,
        owner: RouterAddress,
        (session, stamp): (u64, u64),
        handover: Bytes,
    ) {
        let handover = match handover.is_empty() {
            true => self.claims.take_stranded(&id),
            false => handover,
        };
        if let Some(claim) = self.claims.local_claims.get_mut(&id)
            && (claim.session, claim.progress) == (session, ClaimProgress::Sent)
        {
            claim.progress = ClaimProgress::Granted(stamp);
            claim.handover = handover;
            if self.claims.claiming != Some(session) {
                self.outputs.push_back(RouterOutput::ClaimAgain { session });
            }
            if owner != self.claims.owner_of(&id) {
                self.send_to_owner(id, ClaimVerb::Hold { stamp });
            }
            return;
        }
        // The claim was withdrawn or has been granted already.
        match self.local_holder(&id) {
            Some((_, held)) if owner == self.claims.owner_of(&id) => {
                let verb = ClaimVerb::Hold { stamp: held };
                self.claims.send(owner, id, verb);
            }
            // A later local connection claims the id, and its grant comes without this state.
            _ if self.claims.local_claims.contains_key(&id) => {
                self.claims.strand(id.clone(), handover);
                self.claims.send(owner, id, free(stamp));
            }
            _ => {
                let verb = ClaimVerb::Free { stamp, handover };
                self.claims.send(owner, id, verb);
            }
        }
    }

    fn handle_lost(&mut self, id: &ClientId, session: u64) {
        let claim = self.claims.local_claims.get(id);
        if claim.is_some_and(|a| (a.session, a.progress) == (session, ClaimProgress::Sent)) {
            self.claims.local_claims.remove(id);
            self.outputs.push_back(RouterOutput::TakenOver { session });
        }
    }

    /// Returns the local holder of an id and its stamp. The subscriber is `None` if a session has
    /// the grant but no seat yet.
    pub(super) fn local_holder(&self, id: &ClientId) -> Option<(Option<SubscriberId>, u64)> {
        if let Some(claim) = self.claims.local_claims.get(id)
            && let ClaimProgress::Granted(stamp) = claim.progress
        {
            return Some((None, stamp));
        }
        let subscriber = self.client(&id.vhost, &id.client)?;
        let stamp = self.subscribers.get(subscriber.0 as usize)?.stamp;
        (stamp != 0).then_some((Some(subscriber), stamp))
    }

    /// An owner requests an id that this router holds.
    fn handle_yield(&mut self, id: ClientId, yielding: PendingYield) {
        let PendingYield {
            owner,
            stamp,
            clean,
        } = yielding;
        match self.local_holder(&id) {
            // The owner does not know about the newer holding.
            Some((_, held)) if held > stamp => {
                let verb = ClaimVerb::Hold { stamp: held };
                return self.claims.send(owner, id, verb);
            }
            Some((Some(subscriber), _)) => {
                if self.disconnect_holder(subscriber, yielding) {
                    return;
                }
                if self.claims.settling.contains_key(&subscriber)
                    || self.must_await_confirms(subscriber, clean)
                {
                    let yields = self.claims.yielding.entry(subscriber).or_default();
                    if !yields.contains(&yielding) {
                        yields.push(yielding);
                    }
                    return self.seat_released(subscriber, id);
                }
                self.release_id(subscriber, clean);
            }
            Some((None, held)) => {
                if let Some(claim) = self.claims.local_claims.remove(&id) {
                    let PendingClaim {
                        session, handover, ..
                    } = claim;
                    let verb = ClaimVerb::Free {
                        stamp: held,
                        handover,
                    };
                    self.send_to_owner(id.clone(), verb);
                    self.outputs.push_back(RouterOutput::TakenOver { session });
                }
            }
            None => {}
        }
        self.claims.send(owner, id, free(stamp));
    }

    /// Enables the handover of session state together with client ids.
    pub fn set_handover(&mut self, on: bool) {
        self.claims.handover_enabled = on;
    }

    /// Returns true if the id must stay here for now although its client is disconnected, because
    /// publishes of the last connection are unconfirmed.
    fn must_await_confirms(&mut self, subscriber: SubscriberId, clean: bool) -> bool {
        if clean || !self.claims.handover_enabled {
            return false;
        }
        let now = self.claims.now;
        let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
            return false;
        };
        let state = entry.away_mut().and_then(|away| away.state.as_ref());
        if state.is_none_or(|state| state.is_settled()) {
            return false;
        }
        let id = entry.id();
        let until = self.claims.settling.entry(subscriber);
        let (until, _) = until.or_insert((now + SETTLE_TIMEOUT, id));
        now < *until
    }

    /// A publish of a disconnected client was answered: its id may have waited for that.
    pub(super) fn confirm_arrived(&mut self, subscriber: SubscriberId) {
        if let Some((_, id)) = self.claims.settling.get(&subscriber) {
            let id = id.clone();
            self.seat_released(subscriber, id);
        }
    }

    /// Releases ids that have waited too long for unconfirmed publishes.
    pub(super) fn release_unsettled(&mut self) {
        if self.claims.settling.is_empty() {
            return;
        }
        let now = self.claims.now;
        let late = self.claims.settling.iter();
        let late = late.filter(|(_, (until, _))| *until <= now);
        let late: Vec<_> = late
            .map(|(subscriber, (_, id))| (*subscriber, id.clone()))
            .collect();
        for (subscriber, id) in late {
            self.seat_released(subscriber, id);
        }
    }

    /// Returns the session state of a disconnected client for the next holder of its id.
    fn hand_over_state(&mut self, subscriber: SubscriberId) -> Bytes {
        if !self.claims.handover_enabled {
            return Bytes::new();
        }
        let entry = self.subscribers.get_mut(subscriber.0 as usize);
        let away = entry.and_then(|entry| entry.away_mut());
        let state = away.and_then(|away| away.state.as_mut());
        let handover = state.map(|state| state.hand_over()).unwrap_or_default();
        match handover.len() <= HANDOVER_BYTES {
            true => handover,
            false => Bytes::new(),
        }
    }

    /// Tells a connected client to leave. Returns false if it is disconnected.
    fn disconnect_holder(&mut self, subscriber: SubscriberId, yielding: PendingYield) -> bool {
        let Some(entry) = self.subscribers.get(subscriber.0 as usize) else {
            return false;
        };
        let Some(session) = entry.session() else {
            return false;
        };
        let told = self.claims.yielding.entry(subscriber).or_default();
        if told.is_empty() {
            // A session that waits here claimed the id before the session for which the owner asks.
            let next = self.waiting.remove(&subscriber);
            for session in [Some(session), next].into_iter().flatten() {
                self.outputs.push_back(RouterOutput::TakenOver { session });
            }
        }
        if !told.contains(&yielding) {
            told.push(yielding);
        }
        true
    }

    /// Releases the id of a disconnected client, whose session continues elsewhere or is discarded
    /// (`clean`).
    fn release_id(&mut self, subscriber: SubscriberId, clean: bool) {
        let handover = match clean {
            true => Bytes::new(),
            false => self.hand_over_state(subscriber),
        };
        let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
            return;
        };
        let stamp = std::mem::take(&mut entry.stamp);
        let id = entry.id();
        // The router that requests the id need not be its owner any more.
        self.report_free((&id.vhost, &id.client), stamp, handover);
        if clean {
            return self.remove_client(subscriber);
        }
        let Some(entry) = self.subscribers.get(subscriber.0 as usize) else {
            return;
        };
        if entry.is_connected() {
            return;
        }
        // The client has reconnected: do not publish the will [MQTT-3.1.3-9].
        self.wills.drop(subscriber);
        self.late_answers.remove_client(subscriber);
        let nobody = SeatOwner::Away(Box::default());
        if let Some(SeatOwner::Away(previous)) = self.change_seat(subscriber, nobody) {
            self.stop_timer(
                subscriber,
                super::next_timer(previous.until, &previous.will),
            );
            self.cancel_will(&id.vhost, previous.will);
        }
        // Keep its shared subscriptions if it has a queue: every router may select that queue.
        let shares = |filter: &str| matches!(codec_mqtt::shared(filter), Ok(Some(_)));
        let (queue, filters) = match self.subscribers.get(subscriber.0 as usize) {
            Some(entry) => (entry.queue, entry.filters().iter()),
            None => return,
        };
        let own = filters.filter(|(f, _)| !shares(f)).map(|(f, _)| f.into());
        let own: Vec<Box<str>> = own.collect();
        for filter in own {
            self.unsubscribe(subscriber, &filter);
        }
        if queue == 0 || self.subscriptions_of(subscriber) == 0 {
            self.remove_client(subscriber);
        }
    }

    /// A client has released its seat: release its id to those who wait for it. `id` is its former
    /// client id.
    pub(super) fn seat_released(&mut self, subscriber: SubscriberId, id: ClientId) {
        let Some(yields) = self.claims.yielding.remove(&subscriber) else {
            return self.handle_own_messages();
        };
        let clean = yields.iter().any(|y| y.clean);
        if self.must_await_confirms(subscriber, clean) {
            self.claims.yielding.insert(subscriber, yields);
            return self.handle_own_messages();
        }
        self.claims.settling.remove(&subscriber);
        let away = self.local_holder(&id).and_then(|(at, _)| at);
        if let Some(subscriber) = away {
            self.release_id(subscriber, clean);
        }
        for PendingYield { owner, stamp, .. } in yields {
            self.claims.send(owner, id.clone(), free(stamp));
        }
        if let Some(claim) = self.claims.local_claims.get_mut(&id)
            && claim.progress == ClaimProgress::Deferred
        {
            claim.progress = ClaimProgress::Sent;
            let claim = claim.clone();
            self.send_claim(&id, &claim);
        }
        self.handle_own_messages();
    }

    /// Reports the end of a holding that nobody requested.
    pub(super) fn report_free(
        &mut self,
        (vhost, client): (&str, &str),
        stamp: u64,
        handover: Bytes,
    ) {
        if stamp == 0 || self.claims.is_alone() && self.claims.owned.is_empty() {
            return;
        }
        let id = ClientId {
            vhost: vhost.into(),
            client: client.into(),
        };
        self.send_to_owner(id, ClaimVerb::Free { stamp, handover });
    }

    /// The id now belongs to another subscriber of this router.
    pub(super) fn move_report(&mut self, before: SubscriberId, after: SubscriberId) {
        if self.claims.unreported.remove(&before) {
            self.claims.unreported.insert(after);
        }
    }

    /// Reports holdings to owners that may not know them.
    pub(super) fn report_holdings(&mut self) {
        for _ in 0..self.claims.unreported.len().min(REPORTS_PER_TICK) {
            let Some(subscriber) = self.claims.unreported.pop_first() else {
                break;
            };
            let Some(entry) = self.subscribers.get(subscriber.0 as usize) else {
                continue;
            };
            let stamp = entry.stamp;
            if stamp == 0 {
                continue;
            }
            let id = entry.id();
            self.send_to_owner(id, ClaimVerb::Hold { stamp });
        }
        self.handle_own_messages();
    }

    /// Returns true if a client of this router, connected or disconnected, holds the id. For tests
    /// and metrics.
    pub fn holds(&self, vhost: &str, client: &str) -> bool {
        let id = ClientId {
            vhost: vhost.into(),
            client: client.into(),
        };
        self.local_holder(&id).is_some()
    }

    /// Returns the number of unanswered claims and of ids that this router tracks as owner. For
    /// tests and metrics.
    pub fn claims(&self) -> (usize, usize) {
        (self.claims.local_claims.len(), self.claims.owned.len())
    }
}

/// The end of a holding, without a handover.
fn free(stamp: u64) -> ClaimVerb {
    ClaimVerb::Free {
        stamp,
        handover: Bytes::new(),
    }
}
