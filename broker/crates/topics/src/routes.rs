//! One vhost's subscriptions: filters to subscribers, groups that share one, and other hubs that have either.

mod group;

use crate::exchange::RouterId;
use crate::{InterestCounts, SubscriberId, SubscriptionMatch, key};
use codec_mqtt::{Qos, Shared};
use env::planted::{self, Bug};
use group::Group;
use hashbrown::HashMap;
use message::Table;
use routing::{Bindings, Kind};
use slab::Slab;
use std::sync::Arc;

pub(crate) use group::{GroupChoice, MemberLocation, MemberLocations};

/// What a client asked for with a filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subscription {
    pub qos: Qos,
    pub no_local: bool,
    pub retain_as_published: bool,
    /// 0: none.
    pub identifier: u32,
}

impl Subscription {
    /// Whether what it matches goes into the queue of a client that has one.
    pub(crate) fn keeps(&self) -> bool {
        self.qos != Qos::AtMostOnce
    }

    /// What of it matters for a message that belongs to it.
    pub fn hit(self) -> SubscriptionMatch {
        SubscriptionMatch {
            qos: self.qos,
            retain_as_published: self.retain_as_published,
            identifier: self.identifier,
        }
    }
}

/// What another hub has subscribers of a filter for; see [`InterestCounts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Interest {
    plain: bool,
    acknowledged: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    One(SubscriberId),
    Group(u32),
    Hub(RouterId, Interest),
}

/// What the trie has at the end of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    to: Target,
    subscription: Subscription,
    /// The filter begins with a wildcard: not for topics that begin with `$`.
    wild: bool,
}

#[derive(Debug)]
pub(crate) struct Routes {
    trie: Bindings<Route>,
    groups: Slab<Group>,
    /// By the whole filter, `$share/` and all.
    by_filter: HashMap<Arc<str>, usize, foldhash::fast::FixedState>,
    scratch: Vec<Route>,
    key: String,
}

impl Default for Routes {
    fn default() -> Routes {
        Routes {
            trie: Bindings::new(Kind::Topic, &Table::default()),
            groups: Slab::new(),
            by_filter: HashMap::default(),
            scratch: Vec::new(),
            key: String::new(),
        }
    }
}

/// A match: who, and by which subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteMatch {
    pub who: SubscriberId,
    /// The group that chose the subscriber; see [`Delivery::group`](crate::Delivery). Before the subscription, so that those of a
    /// client that are not shared stand together.
    pub group: u32,
    pub subscription: Subscription,
}

impl RouteMatch {
    pub fn is_shared(&self) -> bool {
        self.group != 0
    }
}

/// A hub that is to have a message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerMatch {
    pub router: RouterId,
    /// For one member of this.
    pub group: Option<Arc<str>>,
    pub numbered: bool,
}

/// Everybody a message is for.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    /// In order, one entry for each subscription.
    pub here: Vec<RouteMatch>,
    /// In order, each hub once but for groups.
    pub routers: Vec<PeerMatch>,
}

fn plain(filter: &str) -> (&str, bool) {
    // It was checked when it came.
    match codec_mqtt::shared(filter) {
        Ok(Some(Shared { filter, .. })) => (filter, true),
        _ => (filter, false),
    }
}

impl Routes {
    pub fn is_empty(&self) -> bool {
        self.trie.is_empty()
    }

    pub fn add(&mut self, filter: &str, who: SubscriberId, subscription: Subscription) {
        let (plain, is_shared) = plain(filter);
        if is_shared {
            return self.group_of(filter).join(who, subscription);
        }
        let route = Route {
            to: Target::One(who),
            subscription,
            wild: is_wild(plain),
        };
        self.bind(plain, route);
    }

    /// The group of a shared filter, which is made if it is not there.
    fn group_of(&mut self, filter: &str) -> &mut Group {
        let index = match self.by_filter.get(filter) {
            Some(&index) => index,
            None => {
                let name: Arc<str> = filter.into();
                let index = self.groups.insert(Group::new(name.clone()));
                self.by_filter.insert(name, index);
                let (plain, _) = plain(filter);
                self.bind(plain, group_route(index, plain));
                index
            }
        };
        &mut self.groups[index]
    }

    fn bind(&mut self, filter: &str, route: Route) {
        let key: Arc<str> = key::filter_key(filter).into();
        self.trie.add(&key, &Table::default(), route, "");
    }

    fn unbind(&mut self, filter: &str, route: Route) {
        let key = key::filter_key(filter);
        self.trie.remove(&key, &Table::default(), route);
    }

    /// Undoes an [`Routes::add`] with the same words.
    pub fn remove(&mut self, filter: &str, who: SubscriberId, subscription: Subscription) {
        let (plain, is_shared) = plain(filter);
        if is_shared {
            return self.change_group(filter, |group| group.leave(who));
        }
        let route = Route {
            to: Target::One(who),
            subscription,
            wild: is_wild(plain),
        };
        self.unbind(plain, route);
    }

    /// Changes a group that is there; without members it goes.
    fn change_group(&mut self, filter: &str, change: impl FnOnce(&mut Group)) {
        let Some(&index) = self.by_filter.get(filter) else {
            return;
        };
        let Some(group) = self.groups.get_mut(index) else {
            return;
        };
        change(group);
        if group.is_empty() {
            self.groups.remove(index);
            self.by_filter.remove(filter);
            let (plain, _) = plain(filter);
            self.unbind(plain, group_route(index, plain));
        }
    }

    /// Another hub has subscribers of a filter, or others than before.
    pub fn set_router(
        &mut self,
        filter: &str,
        router: RouterId,
        was: InterestCounts,
        is: InterestCounts,
    ) {
        let route = |wants: InterestCounts| Route {
            to: Target::Hub(
                router,
                Interest {
                    plain: wants.plain > 0,
                    acknowledged: wants.acknowledged > 0,
                },
            ),
            subscription: Subscription::default(),
            wild: is_wild(filter),
        };
        if !is.is_none() {
            self.bind(filter, route(is));
        }
        if !was.is_none() {
            self.unbind(filter, route(was));
        }
    }

    /// Another hub has members of a group that are in no queue.
    pub fn set_members(&mut self, filter: &str, router: RouterId, members: InterestCounts) {
        match members.is_none() {
            true => self.change_group(filter, |group| group.set_elsewhere(router, members)),
            false => self.group_of(filter).set_elsewhere(router, members),
        }
    }

    /// Appends everybody a message with this topic is for. Of a group it is one member, wherever that is. `durable`: it is of QoS 1 or 2.
    pub fn find(
        &mut self,
        topic: &str,
        durable: bool,
        seats: &impl MemberLocations,
        found: &mut Matches,
    ) {
        self.look_up(topic);
        for route in &self.scratch {
            match route.to {
                Target::One(who) => found.here.push(one(who, route)),
                Target::Hub(router, wants) => {
                    let numbered = durable && wants.acknowledged;
                    if numbered || !durable || wants.plain {
                        found.routers.push(PeerMatch {
                            router,
                            group: None,
                            numbered,
                        });
                    }
                }
                Target::Group(index) => {
                    if let Some(group) = self.groups.get_mut(index as usize) {
                        let pick = group.pick(durable, seats);
                        let next =
                            planted::is(Bug::SharedTwice).then(|| group.pick(durable, seats));
                        pick.into_iter()
                            .chain(next.flatten())
                            .for_each(|p| found.picked(p, (&group.name, index + 1)));
                    }
                }
            }
        }
        found.here.sort_unstable();
        // Of the same hub the numbered one first: it goes as that.
        found.routers.sort_unstable_by(|a, b| {
            (a.router, &a.group, b.numbered).cmp(&(b.router, &b.group, a.numbered))
        });
        found
            .routers
            .dedup_by(|b, a| a.router == b.router && a.group == b.group);
    }

    /// The same, of a message that another hub has given out: subscribers here alone, and no groups.
    pub fn find_here(&mut self, topic: &str, found: &mut Vec<RouteMatch>) {
        self.look_up(topic);
        for route in &self.scratch {
            if let Target::One(who) = route.to {
                found.push(one(who, route));
            }
        }
        found.sort_unstable();
    }

    /// One member of a group, for a message that another hub gives to this one. `anywhere`: it need not be connected here.
    pub fn pick(
        &mut self,
        filter: &str,
        durable: bool,
        anywhere: bool,
        seats: &impl MemberLocations,
    ) -> Option<GroupChoice> {
        let group = self.groups.get_mut(*self.by_filter.get(filter)?)?;
        match anywhere {
            true => group.pick(durable, seats),
            false => group.pick_here(seats),
        }
    }

    /// The number of a group in [`Delivery::group`](crate::Delivery); 0: there is no such group.
    pub fn group_number(&self, filter: &str) -> u32 {
        let index = self.by_filter.get(filter);
        // Each group has a member, and clients have numbers of 32 bits.
        index.map_or(0, |index| *index as u32 + 1)
    }

    /// The filter of the group with this number.
    pub fn group_name(&self, number: u32) -> Option<&Arc<str>> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        Some(&self.groups.get(index)?.name)
    }

    /// What the trie has for a topic, in `scratch`.
    fn look_up(&mut self, topic: &str) {
        self.scratch.clear();
        if key::has_plain_levels(topic) {
            self.trie.route_words(topic, b'/', &mut self.scratch);
        } else {
            self.key.clear();
            key::push_topic(topic, &mut self.key);
            self.trie.route_words(&self.key, b'.', &mut self.scratch);
        }
        if topic.starts_with('$') {
            self.scratch.retain(|route| !route.wild);
        }
    }

    /// Appends the subscriptions of one client: those that are shared in the place of others only when none of these keeps messages.
    /// Nobody's turn passes.
    pub fn find_of(&mut self, topic: &str, who: SubscriberId, found: &mut Vec<Subscription>) {
        self.look_up(topic);
        let before = found.len();
        let own = self.scratch.iter().filter(|r| r.to == Target::One(who));
        found.extend(own.map(|route| route.subscription));
        let own = found.len();
        if found.iter().skip(before).any(Subscription::keeps) {
            return;
        }
        for route in &self.scratch {
            if let Target::Group(index) = route.to
                && let Some(group) = self.groups.get(index as usize)
            {
                found.extend(group.subscriptions_of(who));
            }
        }
        if found.len() > own {
            found.drain(before..own);
        }
    }
}

impl Matches {
    pub fn clear(&mut self) {
        self.here.clear();
        self.routers.clear();
    }

    /// `group`: its filter and its number.
    pub fn picked(&mut self, pick: GroupChoice, (group, number): (&Arc<str>, u32)) {
        match pick {
            GroupChoice::Member(who, subscription) => self.here.push(RouteMatch {
                who,
                subscription,
                group: number,
            }),
            GroupChoice::Hub { router, numbered } => self.routers.push(PeerMatch {
                router,
                group: Some(group.clone()),
                numbered,
            }),
        }
    }
}

fn one(who: SubscriberId, route: &Route) -> RouteMatch {
    RouteMatch {
        who,
        subscription: route.subscription,
        group: 0,
    }
}

fn group_route(group: usize, filter: &str) -> Route {
    Route {
        // Fewer than 2^32 groups fit in any memory.
        to: Target::Group(group as u32),
        subscription: Subscription::default(),
        wild: is_wild(filter),
    }
}

fn is_wild(filter: &str) -> bool {
    filter.starts_with(['+', '#'])
}
