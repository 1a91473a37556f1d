//! Subscribers that share a filter: each message is for one of them (section 4.8.2), wherever in the cluster it is.

use super::Subscription;
use crate::exchange::RouterId;
use crate::{InterestCounts, SubscriberId};
use codec_mqtt::Qos;
use std::sync::Arc;

/// Where a member is, for a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberLocation {
    Here {
        stored: bool,
    },
    /// Its session is in a queue, and its connection at another hub.
    Elsewhere(RouterId),
    /// Its session is in a queue, and it has no connection.
    Away,
}

/// Where members are, and which hubs can be reached.
pub(crate) trait MemberLocations {
    fn seating(&self, who: SubscriberId) -> MemberLocation;
    fn is_up(&self, router: RouterId) -> bool;
}

/// Who is to have a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupChoice {
    Member(SubscriberId, Subscription),
    /// A member that is connected at this hub.
    Hub {
        router: RouterId,
        numbered: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Group {
    /// The filter, `$share/` and all.
    pub name: Arc<str>,
    /// Those of this hub, and those whose session is in a queue: every hub knows these.
    members: Vec<(SubscriberId, Subscription)>,
    /// Members of other hubs that are in no queue, as many as they say.
    elsewhere: Vec<(RouterId, InterestCounts)>,
    /// All of these together.
    others: usize,
    /// Who is served next: who came first begins.
    turn: usize,
}

impl Group {
    pub fn new(name: Arc<str>) -> Group {
        Group {
            name,
            members: Vec::new(),
            elsewhere: Vec::new(),
            others: 0,
            turn: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.members.is_empty() && self.elsewhere.is_empty()
    }

    pub fn join(&mut self, who: SubscriberId, subscription: Subscription) {
        self.members.push((who, subscription));
    }

    pub fn leave(&mut self, who: SubscriberId) {
        self.members.retain(|(member, _)| *member != who);
    }

    pub fn set_elsewhere(&mut self, router: RouterId, members: InterestCounts) {
        self.elsewhere.retain(|(other, _)| *other != router);
        if !members.is_none() {
            self.elsewhere.push((router, members));
            self.elsewhere.sort_unstable_by_key(|(other, _)| *other);
        }
        self.others = self.elsewhere.iter().map(|(_, w)| count(*w)).sum();
    }

    pub fn subscriptions_of(&self, who: SubscriberId) -> impl Iterator<Item = Subscription> + '_ {
        let own = self
            .members
            .iter()
            .filter(move |(member, _)| *member == who);
        own.map(|(_, subscription)| *subscription)
    }

    /// The next member in turn that is connected, or else the next one.
    pub fn pick(&mut self, durable: bool, seats: &impl MemberLocations) -> Option<GroupChoice> {
        let len = self.members.len() + self.others;
        let after = |n: usize| (self.turn + n) % len.max(1);
        let found = (0..len).map(after).find_map(|at| {
            let pick = self.seat(at, durable, seats)?;
            Some((at, pick))
        });
        if let Some((at, pick)) = found {
            self.turn = at + 1;
            return Some(pick);
        }
        let at = after(0);
        self.turn = at + 1;
        let Some(members) = at.checked_rem(self.members.len()) else {
            return self.other(at, durable);
        };
        let member = self.members.get(members);
        member.map(|(who, subscription)| GroupChoice::Member(*who, *subscription))
    }

    /// Who has this place in the group, if it can be reached.
    fn seat(&self, at: usize, durable: bool, seats: &impl MemberLocations) -> Option<GroupChoice> {
        let Some((who, subscription)) = self.members.get(at) else {
            let other = self.other(at - self.members.len(), durable);
            return other.filter(|pick| match pick {
                GroupChoice::Hub { router, .. } => seats.is_up(*router),
                GroupChoice::Member(..) => true,
            });
        };
        let through_queue = durable && subscription.qos != Qos::AtMostOnce;
        match seats.seating(*who) {
            MemberLocation::Elsewhere(router) if !seats.is_up(router) => None,
            MemberLocation::Elsewhere(router) if !through_queue => Some(GroupChoice::Hub {
                router,
                numbered: false,
            }),
            MemberLocation::Here { .. } | MemberLocation::Elsewhere(_) => {
                Some(GroupChoice::Member(*who, *subscription))
            }
            MemberLocation::Away => None,
        }
    }

    fn other(&self, mut at: usize, durable: bool) -> Option<GroupChoice> {
        for (router, members) in &self.elsewhere {
            let there = count(*members);
            if at < there {
                return Some(GroupChoice::Hub {
                    router: *router,
                    numbered: durable && members.acknowledged > 0,
                });
            }
            at -= there;
        }
        None
    }

    /// The next member that is connected here. One whose messages come through a queue only if there is no other.
    pub fn pick_here(&mut self, seats: &impl MemberLocations) -> Option<GroupChoice> {
        let len = self.members.len();
        let after = |n: usize| (self.turn + n) % len.max(1);
        let mut found = None;
        for at in (0..len).map(after) {
            match self.members.get(at).map(|(who, _)| seats.seating(*who)) {
                Some(MemberLocation::Here { stored: false }) => {
                    found = Some(at);
                    break;
                }
                Some(MemberLocation::Here { stored: true }) => found = found.or(Some(at)),
                _ => {}
            }
        }
        let at = found?;
        self.turn = at + 1;
        let (who, subscription) = self.members.get(at)?;
        Some(GroupChoice::Member(*who, *subscription))
    }
}

fn count(members: InterestCounts) -> usize {
    members.plain as usize + members.acknowledged as usize
}
