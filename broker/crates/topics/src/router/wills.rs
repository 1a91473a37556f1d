//! Wills: who keeps those of clients here, and those of other nodes' clients that this hub keeps.

use super::{MqttRouter, RouterOutput};
use crate::claims::TOLD_AT_ONCE;
use crate::claims::claim_message::ClientId;
use crate::wills::will_message::WillMessage;
use crate::wills::{PeerWill, WillReplica};
use crate::{RouterAddress, SubscriberId, Will};
use env::Time;

impl MqttRouter {
    /// Whether the whole cluster understands words about wills.
    pub fn set_wills(&mut self, on: bool) {
        if std::mem::replace(&mut self.wills.on, on) != on {
            self.keepers_changed();
        }
    }

    /// Whether this node is with a majority of the cluster's: only then it knows that others are gone.
    pub fn set_majority(&mut self, majority: bool) {
        self.wills.set_majority(majority, self.claims.now);
    }

    /// Whether [`MqttRouter::set_majority`] matters now.
    pub fn waits_for_majority(&self) -> bool {
        self.wills.waits_for_majority()
    }

    /// The connection of a client has a will, which waits for `delay` seconds: a hub of another node gets a copy. To be said when
    /// the connection is accepted, and when [`RouterOutput::TellWill`] asks for it.
    pub fn keep_will(&mut self, who: SubscriberId, will: &Will, delay: u32) {
        let Some(entry) = self.subscribers.get(who.0 as usize) else {
            return;
        };
        let keeper = match self.wills.on {
            true => self.claims.keeper(entry.vhost(), entry.client()),
            false => None,
        };
        let before = self.wills.told.get(&who).copied();
        let number = match before {
            Some(told) if told.keeper == keeper && !told.again => return,
            Some(told) => told.number,
            None => self.wills.next_number(),
        };
        let now = WillReplica {
            number,
            keeper,
            again: false,
        };
        self.wills.told.insert(who, now);
        if let Some(old) = before.and_then(|told| told.keeper)
            && Some(old) != keeper
        {
            self.wills.send(old, WillMessage::Drop { number });
        }
        if let Some(keeper) = keeper {
            let peer_message = WillMessage::Keep {
                number,
                id: entry.id(),
                delay,
                will: will.clone(),
            };
            self.wills.send(keeper, peer_message);
        }
    }

    /// Whether another node has published the will of a client's connection, because this one was out of reach.
    pub fn will_was_published(&self, who: SubscriberId) -> bool {
        self.wills.was_published(who, self.claims.now)
    }

    /// Hubs have come or gone, or words about wills are understood now.
    pub(super) fn keepers_changed(&mut self) {
        let wills = &mut self.wills;
        for (who, told) in &mut wills.told {
            // What it had it has no more, or will be told anew when it is back.
            told.keeper = told.keeper.filter(|keeper| self.claims.is_there(*keeper));
            let Some(entry) = self.subscribers.get(who.0 as usize) else {
                continue;
            };
            let keeper = match wills.on {
                true => self.claims.keeper(entry.vhost(), entry.client()),
                false => None,
            };
            if told.keeper != keeper {
                wills.untold.insert(*who);
            }
        }
        wills.only(|address| self.claims.is_there(address));
    }

    /// Has new keepers told.
    pub(super) fn tell_keepers(&mut self, now: Time) {
        for _ in 0..self.wills.untold.len().min(TOLD_AT_ONCE) {
            let Some(who) = self.wills.untold.pop_first() else {
                break;
            };
            let Some(entry) = self.subscribers.get_mut(who.0 as usize) else {
                continue;
            };
            if let Some(session) = entry.session() {
                self.outputs.push_back(RouterOutput::TellWill { session });
                continue;
            }
            let waiting = entry.away_mut().and_then(|away| away.will.clone());
            if let Some((at, will)) = waiting {
                let left = at.since(now).as_secs();
                self.keep_will(who, &will, u32::try_from(left).unwrap_or(u32::MAX));
            }
        }
    }

    /// Wills of other nodes' clients whose time has come.
    pub(super) fn publish_kept(&mut self, now: Time) {
        if !self.wills.waits_for_majority() {
            return;
        }
        for (id, will) in self.wills.overdue(now) {
            let vhost = id.vhost;
            self.outputs.push_back(RouterOutput::Will { vhost, will });
        }
    }

    /// A client is about to be let in at this hub: an older connection's will comes before that or never. `clean`: what was
    /// before is over, and with it the wait of a will.
    pub(super) fn client_comes_to(&mut self, id: &ClientId, address: RouterAddress, clean: bool) {
        let Some(PeerWill { delay, will, .. }) = self.wills.client_is_at(id, address) else {
            return;
        };
        if self.wills.has_majority() && (clean || delay.is_zero()) {
            let vhost = id.vhost.clone();
            self.outputs.push_back(RouterOutput::Will { vhost, will });
        }
    }

    /// A client has been at this hub for a while: an older connection's will would be no news.
    pub(super) fn client_is_at(&mut self, id: &ClientId, address: RouterAddress) {
        self.wills.client_is_at(id, address);
    }

    /// What there is to say to another hub about wills, at the end of a turn and before what is said about client ids: a will
    /// that is published is not kept any more when the client's id is free. None: there is no more.
    pub fn say_wills(&mut self) -> Option<(RouterAddress, Vec<WillMessage>)> {
        self.wills.take()
    }

    /// What another hub says about wills.
    pub fn hear_wills(&mut self, from: RouterAddress, peer_messages: Vec<WillMessage>) {
        for peer_message in peer_messages {
            self.wills.hear(from, peer_message);
        }
    }
}
