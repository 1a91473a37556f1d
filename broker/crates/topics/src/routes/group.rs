//! Shared subscriptions: each message goes to one member (section 4.8.2), anywhere in the cluster.

use super::Subscription;
use crate::exchange::RouterId;
use crate::{InterestCounts, SubscriberId};
use codec_mqtt::Qos;
use std::sync::Arc;

/// Where a member is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemberLocation {
    Here {
        stored: bool,
    },
    /// The session is stored in a queue and the connection is at another router.
    Elsewhere(RouterId),
    /// The session is stored in a queue and has no connection.
    Away,
}

/// Locations of members and reachability of routers.
pub(crate) trait MemberLocations {
    fn location_of(&self, subscriber: SubscriberId) -> MemberLocation;
    fn is_up(&self, router: RouterId) -> bool;
}

/// The receiver that a group selected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GroupChoice {
    Member(SubscriberId, Subscription),
    /// Some member that is connected to this router.
    Hub {
        router: RouterId,
        numbered: bool,
    },
}

#[derive(Debug)]
pub(crate) struct Group {
    /// The whole filter, including `$share/`.
    pub name: Arc<str>,
    /// Local members, and all members of the cluster whose session is stored in a queue.
    members: Vec<(SubscriberId, Subscription)>,
    /// Members that are connected to other routers and have no queue, as these routers reported.
    peers: Vec<(RouterId, InterestCounts)>,
    /// Total number of members in `peers`.
    peer_members: usize,
    /// Index of the next member. Members are served in the order in which they joined.
    next_turn: usize,
}

impl Group {
    pub(super) fn new(name: Arc<str>) -> Group {
        Group {
            name,
            members: Vec::new(),
            peers: Vec::new(),
            peer_members: 0,
            next_turn: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.members.is_empty() && self.peers.is_empty()
    }

    pub(super) fn join(&mut self, subscriber: SubscriberId, subscription: Subscription) {
        self.members.push((subscriber, subscription));
    }

    pub(super) fn leave(&mut self, subscriber: SubscriberId) {
        self.members.retain(|(member, _)| *member != subscriber);
    }

    pub(super) fn set_peer_members(&mut self, router: RouterId, members: InterestCounts) {
        self.peers.retain(|(other, _)| *other != router);
        if !members.is_none() {
            self.peers.push((router, members));
            self.peers.sort_unstable_by_key(|(other, _)| *other);
        }
        self.peer_members = self.peers.iter().map(|(_, w)| member_count(*w)).sum();
    }

    pub(super) fn subscriptions_of(
        &self,
        subscriber: SubscriberId,
    ) -> impl Iterator<Item = Subscription> + '_ {
        let own = self
            .members
            .iter()
            .filter(move |(member, _)| *member == subscriber);
        own.map(|(_, subscription)| *subscription)
    }

    /// Selects the next connected member in turn; if none is connected, the next member.
    pub(super) fn pick(
        &mut self,
        durable: bool,
        locations: &impl MemberLocations,
    ) -> Option<GroupChoice> {
        let len = self.members.len() + self.peer_members;
        let after = |n: usize| (self.next_turn + n) % len.max(1);
        let found = (0..len).map(after).find_map(|at| {
            let pick = self.member_at(at, durable, locations)?;
            Some((at, pick))
        });
        if let Some((at, pick)) = found {
            self.next_turn = at + 1;
            return Some(pick);
        }
        let at = after(0);
        self.next_turn = at + 1;
        let Some(members) = at.checked_rem(self.members.len()) else {
            return self.peer_member_at(at, durable);
        };
        let member = self.members.get(members);
        member.map(|(subscriber, subscription)| GroupChoice::Member(*subscriber, *subscription))
    }

    /// Returns the member with this index if it can be reached.
    fn member_at(
        &self,
        at: usize,
        durable: bool,
        locations: &impl MemberLocations,
    ) -> Option<GroupChoice> {
        let Some((subscriber, subscription)) = self.members.get(at) else {
            let other = self.peer_member_at(at - self.members.len(), durable);
            return other.filter(|pick| match pick {
                GroupChoice::Hub { router, .. } => locations.is_up(*router),
                GroupChoice::Member(..) => true,
            });
        };
        let through_queue = durable && subscription.qos != Qos::AtMostOnce;
        match locations.location_of(*subscriber) {
            MemberLocation::Elsewhere(router) if !locations.is_up(router) => None,
            MemberLocation::Elsewhere(router) if !through_queue => Some(GroupChoice::Hub {
                router,
                numbered: false,
            }),
            MemberLocation::Here { .. } | MemberLocation::Elsewhere(_) => {
                Some(GroupChoice::Member(*subscriber, *subscription))
            }
            MemberLocation::Away => None,
        }
    }

    fn peer_member_at(&self, mut at: usize, durable: bool) -> Option<GroupChoice> {
        for (router, members) in &self.peers {
            let count = member_count(*members);
            if at < count {
                return Some(GroupChoice::Hub {
                    router: *router,
                    numbered: durable && members.acknowledged > 0,
                });
            }
            at -= count;
        }
        None
    }

    /// Selects the next member that is connected here. Prefers members without a queue.
    pub(super) fn pick_here(&mut self, locations: &impl MemberLocations) -> Option<GroupChoice> {
        let len = self.members.len();
        let after = |n: usize| (self.next_turn + n) % len.max(1);
        let mut found = None;
        for at in (0..len).map(after) {
            match self
                .members
                .get(at)
                .map(|(subscriber, _)| locations.location_of(*subscriber))
            {
                Some(MemberLocation::Here { stored: false }) => {
                    found = Some(at);
                    break;
                }
                Some(MemberLocation::Here { stored: true }) => found = found.or(Some(at)),
                _ => {}
            }
        }
        let at = found?;
        self.next_turn = at + 1;
        let (subscriber, subscription) = self.members.get(at)?;
        Some(GroupChoice::Member(*subscriber, *subscription))
    }
}

fn member_count(members: InterestCounts) -> usize {
    members.plain as usize + members.acknowledged as usize
}
