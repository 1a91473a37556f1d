//! Client ids among hubs: what a hub does for its own sessions, and what it holds.

use super::subscriber::SeatOwner;
use super::{MqttRouter, RouterOutput};
use crate::claims::claim_message::{ClaimMessage, ClaimVerb, ClientId};
use crate::claims::{Claims, PendingClaim, PendingYield, Progress, SETTLING, TOLD_AT_ONCE};
use crate::{HANDOVER_BYTES, RouterAddress, SubscriberId};
use bytes::Bytes;
use env::{Time, WallTime};

impl MqttRouter {
    /// What time it is for what follows.
    pub fn clock(&mut self, now: Time, wall: WallTime) {
        self.claims.now = now;
        self.claims.wall = wall;
    }

    /// The hubs that are there besides this one: among them client ids count. To be called whenever one comes or goes; a
    /// node that went and came back must have been left out in between.
    pub fn set_routers(&mut self, me: RouterAddress, others: Vec<RouterAddress>) {
        let Some(before) = self.claims.set(me, others) else {
            return;
        };
        self.hold_untold(|claims, id| before.owner(id.0, id.1) != claims.owner(id.0, id.1));
        for address in self.claims.new_since(&before) {
            let id = ClientId::default();
            self.claims.send(address, id, ClaimVerb::Tell);
        }
        self.owners_changed();
        self.keepers_changed();
        let asking = self.claims.asking.iter();
        let moved = asking.filter(|(id, _)| {
            before.owner(&id.vhost, &id.client) != self.claims.owner(&id.vhost, &id.client)
        });
        let moved: Vec<(ClientId, PendingClaim)> =
            moved.map(|(id, a)| (id.clone(), a.clone())).collect();
        for (id, asking) in moved {
            match asking.progress {
                Progress::Asked => self.send_claim(&id, &asking),
                Progress::Granted(stamp) => self.tell_owner(id, ClaimVerb::Hold { stamp }),
                Progress::Deferred => {}
            }
        }
        self.hear_own_messages();
    }

    /// What is held here, and chosen by its vhost and client, is to be told to its owner.
    fn hold_untold(&mut self, chosen: impl Fn(&Claims, (&str, &str)) -> bool) {
        for (key, subscriber) in self.subscribers.iter() {
            let id = (&**subscriber.vhost(), subscriber.client());
            if subscriber.stamp != 0 && chosen(&self.claims, id) {
                self.claims.untold.insert(SubscriberId(key as u32));
            }
        }
    }

    /// Another hub is the owner of what it asks for, and may not know of it.
    fn tell(&mut self, owner: RouterAddress) {
        self.wills.asked_by(owner);
        self.hold_untold(|claims, id| claims.owner(id.0, id.1) == owner);
        let asking = self.claims.asking.iter();
        let about = asking.filter_map(|(id, asking)| match asking.progress {
            Progress::Granted(stamp) => Some((id.clone(), stamp)),
            _ => None,
        });
        let about: Vec<(ClientId, u64)> = about.collect();
        for (id, stamp) in about {
            if self.claims.owner_of(&id) == owner {
                self.claims.send(owner, id, ClaimVerb::Hold { stamp });
            }
        }
    }

    /// What there is to say to another hub of client ids, at the end of a turn. None: there is no more.
    pub fn say_claims(&mut self) -> Option<(RouterAddress, Vec<ClaimMessage>)> {
        self.claims.take()
    }

    /// What another hub says of client ids.
    pub fn hear_claims(&mut self, from: RouterAddress, peer_messages: Vec<ClaimMessage>) {
        for peer_message in peer_messages {
            self.hear_claim(from, peer_message);
            self.hear_own_messages();
        }
    }

    fn hear_claim(&mut self, from: RouterAddress, peer_message: ClaimMessage) {
        let ClaimMessage { id, what } = peer_message;
        match what {
            ClaimVerb::Claim { session, clean } => self.claimed(id, from, session, clean),
            ClaimVerb::Free { stamp, handover } => self.freed(id, from, stamp, handover),
            ClaimVerb::Hold { stamp } => self.held_by(id, from, stamp),
            ClaimVerb::Granted {
                session,
                stamp,
                handover,
            } => self.granted(id, from, (session, stamp), handover),
            ClaimVerb::Lost { session } => self.lost(&id, session),
            ClaimVerb::Tell => self.tell(from),
            ClaimVerb::Yield { stamp, clean } => {
                let owner = from;
                self.yield_to(
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

    pub(super) fn hear_own_messages(&mut self) {
        let me = self.claims.me();
        while let Some(peer_message) = self.claims.own_messages.pop_front() {
            self.hear_claim(me, peer_message);
        }
    }

    /// Asks for an id that no client of this hub holds. When it is granted or was: its stamp, and the handover that came with it.
    pub(super) fn ask(
        &mut self,
        vhost: &str,
        client: &str,
        session: u64,
        clean: bool,
        yielding: bool,
    ) -> Option<(u64, Bytes)> {
        if self.claims.is_alone() && !yielding && self.claims.asking.is_empty() {
            return Some((self.claims.stamp(0), Bytes::new()));
        }
        let id = ClientId {
            vhost: vhost.into(),
            client: client.into(),
        };
        let known = self.claims.asking.get(&id).cloned();
        let mut asking = PendingClaim {
            session,
            clean,
            handover: Bytes::new(),
            progress: match yielding {
                true => Progress::Deferred,
                false => Progress::Asked,
            },
        };
        if let Some(known) = known {
            if known.session != session {
                let session = known.session;
                self.outputs.push_back(RouterOutput::TakenOver { session });
            }
            match known.progress {
                Progress::Granted(stamp) => {
                    self.claims.asking.remove(&id);
                    return Some((stamp, known.handover));
                }
                _ if known.session == session => return None,
                Progress::Deferred => asking.progress = Progress::Deferred,
                Progress::Asked => {}
            }
        }
        self.claims.asking.insert(id.clone(), asking.clone());
        if asking.progress == Progress::Asked {
            self.claims.claiming = Some(session);
            self.send_claim(&id, &asking);
            self.hear_own_messages();
            self.claims.claiming = None;
        }
        let now = self.claims.asking.get(&id)?;
        let Progress::Granted(stamp) = now.progress else {
            return None;
        };
        let granted = self.claims.asking.remove(&id)?;
        Some((stamp, granted.handover))
    }

    fn send_claim(&mut self, id: &ClientId, asking: &PendingClaim) {
        let &PendingClaim { session, clean, .. } = asking;
        self.tell_owner(id.clone(), ClaimVerb::Claim { session, clean });
    }

    fn tell_owner(&mut self, id: ClientId, what: ClaimVerb) {
        let owner = self.claims.owner_of(&id);
        self.claims.send(owner, id, what);
    }

    /// A session that asked gives up.
    pub(super) fn ask_no_more(&mut self, vhost: &str, client: &str, session: u64) {
        if self.claims.asking.is_empty() {
            return;
        }
        let id = ClientId {
            vhost: vhost.into(),
            client: client.into(),
        };
        let asking = self.claims.asking.get(&id);
        if asking.is_none_or(|asking| asking.session != session) {
            return;
        }
        let asking = self.claims.asking.remove(&id);
        // An answer that is still to come is sent back.
        if let Some(PendingClaim {
            progress: Progress::Granted(stamp),
            handover,
            ..
        }) = asking
        {
            self.tell_owner(id, ClaimVerb::Free { stamp, handover });
            self.hear_own_messages();
        }
    }

    pub(super) fn granted(
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
        if let Some(asking) = self.claims.asking.get_mut(&id)
            && (asking.session, asking.progress) == (session, Progress::Asked)
        {
            asking.progress = Progress::Granted(stamp);
            asking.handover = handover;
            if self.claims.claiming != Some(session) {
                self.outputs.push_back(RouterOutput::Free { session });
            }
            if owner != self.claims.owner_of(&id) {
                self.tell_owner(id, ClaimVerb::Hold { stamp });
            }
            return;
        }
        // Nobody waits for it any more, or it has been granted already.
        match self.held_here(&id) {
            Some((_, held)) if owner == self.claims.owner_of(&id) => {
                let what = ClaimVerb::Hold { stamp: held };
                self.claims.send(owner, id, what);
            }
            // A later connection asks for it here, and its grant comes without the state.
            _ if self.claims.asking.contains_key(&id) => {
                self.claims.strand(id.clone(), handover);
                self.claims.send(owner, id, free(stamp));
            }
            _ => {
                let what = ClaimVerb::Free { stamp, handover };
                self.claims.send(owner, id, what);
            }
        }
    }

    fn lost(&mut self, id: &ClientId, session: u64) {
        let asking = self.claims.asking.get(id);
        if asking.is_some_and(|a| (a.session, a.progress) == (session, Progress::Asked)) {
            self.claims.asking.remove(id);
            self.outputs.push_back(RouterOutput::TakenOver { session });
        }
    }

    /// The client of this hub that holds an id, if it has a seat yet, and under which stamp.
    pub(super) fn held_here(&self, id: &ClientId) -> Option<(Option<SubscriberId>, u64)> {
        if let Some(asking) = self.claims.asking.get(id)
            && let Progress::Granted(stamp) = asking.progress
        {
            return Some((None, stamp));
        }
        let subscriber = self.client(&id.vhost, &id.client)?;
        let stamp = self.subscribers.get(subscriber.0 as usize)?.stamp;
        (stamp != 0).then_some((Some(subscriber), stamp))
    }

    /// An owner wants an id from here.
    fn yield_to(&mut self, id: ClientId, yielding: PendingYield) {
        let PendingYield {
            owner,
            stamp,
            clean,
        } = yielding;
        match self.held_here(&id) {
            // It does not know of the newer one.
            Some((_, held)) if held > stamp => {
                let what = ClaimVerb::Hold { stamp: held };
                return self.claims.send(owner, id, what);
            }
            Some((Some(subscriber), _)) => {
                if self.must_leave(subscriber, yielding) {
                    return;
                }
                if self.claims.settling.contains_key(&subscriber)
                    || self.must_settle(subscriber, clean)
                {
                    let yields = self.claims.yielding.entry(subscriber).or_default();
                    if !yields.contains(&yielding) {
                        yields.push(yielding);
                    }
                    return self.left(subscriber, id);
                }
                self.give_up(subscriber, clean);
            }
            Some((None, held)) => {
                if let Some(asking) = self.claims.asking.remove(&id) {
                    let PendingClaim {
                        session, handover, ..
                    } = asking;
                    let what = ClaimVerb::Free {
                        stamp: held,
                        handover,
                    };
                    self.tell_owner(id.clone(), what);
                    self.outputs.push_back(RouterOutput::TakenOver { session });
                }
            }
            None => {}
        }
        self.claims.send(owner, id, free(stamp));
    }

    /// Whether session state moves with client ids to other hubs.
    pub fn set_handover(&mut self, on: bool) {
        self.claims.hands_over = on;
    }

    /// Whether an id stays here for the time being although its client is away: publishes of the last connection are not answered.
    fn must_settle(&mut self, subscriber: SubscriberId, clean: bool) -> bool {
        if clean || !self.claims.hands_over {
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
        let (until, _) = until.or_insert((now + SETTLING, id));
        now < *until
    }

    /// A publish of a client that is away was answered: its id may have waited for that.
    pub(super) fn settle(&mut self, subscriber: SubscriberId) {
        if let Some((_, id)) = self.claims.settling.get(&subscriber) {
            let id = id.clone();
            self.left(subscriber, id);
        }
    }

    /// Publishes are not waited for any longer.
    pub(super) fn settle_late(&mut self) {
        if self.claims.settling.is_empty() {
            return;
        }
        let now = self.claims.now;
        let late = self.claims.settling.iter();
        let late = late.filter(|(_, (until, _))| *until <= now);
        let late: Vec<_> = late.map(|(who, (_, id))| (*who, id.clone())).collect();
        for (subscriber, id) in late {
            self.left(subscriber, id);
        }
    }

    /// The session state of a client that is away, for the hub that it goes to.
    fn hand_over_state(&mut self, subscriber: SubscriberId) -> Bytes {
        if !self.claims.hands_over {
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

    /// Tells a client that is connected to leave. False: it is away.
    fn must_leave(&mut self, subscriber: SubscriberId, yielding: PendingYield) -> bool {
        let Some(entry) = self.subscribers.get(subscriber.0 as usize) else {
            return false;
        };
        let Some(session) = entry.session() else {
            return false;
        };
        let told = self.claims.yielding.entry(subscriber).or_default();
        if told.is_empty() {
            // Who waits here has come before whom the owner speaks for.
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

    /// A client is away and goes on elsewhere, or nowhere (`clean`): it is not this hub's any more.
    fn give_up(&mut self, subscriber: SubscriberId, clean: bool) {
        let handover = match clean {
            true => Bytes::new(),
            false => self.hand_over_state(subscriber),
        };
        let Some(entry) = self.subscribers.get_mut(subscriber.0 as usize) else {
            return;
        };
        let stamp = std::mem::take(&mut entry.stamp);
        let id = entry.id();
        // Who wants it need not be who is its owner now.
        self.let_go((&id.vhost, &id.client), stamp, handover);
        if clean {
            return self.forget(subscriber);
        }
        let Some(entry) = self.subscribers.get(subscriber.0 as usize) else {
            return;
        };
        if entry.is_connected() {
            return;
        }
        // It has come back: no will [MQTT-3.1.3-9].
        self.wills.drop(subscriber);
        self.late.forget(subscriber);
        let nobody = SeatOwner::Away(Box::default());
        if let Some(SeatOwner::Away(was)) = self.change_seat(subscriber, nobody) {
            self.stop_timer(subscriber, super::due(was.until, &was.will));
            self.spare(&id.vhost, was.will);
        }
        // Its queue may still be chosen for what it shares, from here as from everywhere.
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
            self.forget(subscriber);
        }
    }

    /// A client has left its seat, and is away or gone: who was promised its id gets it. `id` and the stamp that it had.
    pub(super) fn left(&mut self, subscriber: SubscriberId, id: ClientId) {
        let Some(yields) = self.claims.yielding.remove(&subscriber) else {
            return self.hear_own_messages();
        };
        let clean = yields.iter().any(|y| y.clean);
        if self.must_settle(subscriber, clean) {
            self.claims.yielding.insert(subscriber, yields);
            return self.hear_own_messages();
        }
        self.claims.settling.remove(&subscriber);
        let away = self.held_here(&id).and_then(|(at, _)| at);
        if let Some(subscriber) = away {
            self.give_up(subscriber, clean);
        }
        for PendingYield { owner, stamp, .. } in yields {
            self.claims.send(owner, id.clone(), free(stamp));
        }
        if let Some(asking) = self.claims.asking.get_mut(&id)
            && asking.progress == Progress::Deferred
        {
            asking.progress = Progress::Asked;
            let asking = asking.clone();
            self.send_claim(&id, &asking);
        }
        self.hear_own_messages();
    }

    /// A holding is over, and nobody asked for its end.
    pub(super) fn let_go(&mut self, (vhost, client): (&str, &str), stamp: u64, handover: Bytes) {
        if stamp == 0 || self.claims.is_alone() && self.claims.owned.is_empty() {
            return;
        }
        let id = ClientId {
            vhost: vhost.into(),
            client: client.into(),
        };
        self.tell_owner(id, ClaimVerb::Free { stamp, handover });
    }

    /// The same holding is another subscriber's now.
    pub(super) fn hold_on(&mut self, before: SubscriberId, after: SubscriberId) {
        if self.claims.untold.remove(&before) {
            self.claims.untold.insert(after);
        }
    }

    /// Tells owners what they may not know.
    pub(super) fn tell_owners(&mut self) {
        for _ in 0..self.claims.untold.len().min(TOLD_AT_ONCE) {
            let Some(subscriber) = self.claims.untold.pop_first() else {
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
            self.tell_owner(id, ClaimVerb::Hold { stamp });
        }
        self.hear_own_messages();
    }

    /// Whether an id is held by a client of this hub, connected or away. For tests and figures.
    pub fn holds(&self, vhost: &str, client: &str) -> bool {
        let id = ClientId {
            vhost: vhost.into(),
            client: client.into(),
        };
        self.held_here(&id).is_some()
    }

    /// Claims that have not been answered, and ids that this hub keeps for others. For tests and figures.
    pub fn claims(&self) -> (usize, usize) {
        (self.claims.asking.len(), self.claims.owned.len())
    }
}

/// A holding is over, and no state goes to the next one.
fn free(stamp: u64) -> ClaimVerb {
    ClaimVerb::Free {
        stamp,
        handover: Bytes::new(),
    }
}
