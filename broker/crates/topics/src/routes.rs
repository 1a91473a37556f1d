//! The subscriptions of one vhost: maps topic filters to subscribers, to shared subscriptions and
//! to other routers with interest in them.

mod cache;
mod group;

use crate::exchange::RouterId;
use crate::{InterestCounts, SubscriberId, SubscriptionMatch, key};
use cache::{Entry, Version};
use codec_mqtt::{Qos, SharedFilter};
use env::planted::{self, Bug};
use group::Group;
use hashbrown::HashMap;
use message::Table;
use routing::{Bindings, ExchangeType};
use slab::Slab;
use std::sync::Arc;

pub(crate) use cache::RouteCache;
pub(crate) use group::{GroupChoice, MemberLocation, MemberLocations};

/// The options of a client's subscription (section 3.8.3.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subscription {
    /// The maximum QoS.
    pub qos: Qos,
    /// The No Local option.
    pub no_local: bool,
    /// The Retain As Published option.
    pub retain_as_published: bool,
    /// The Subscription Identifier; 0 if there is none.
    pub identifier: u32,
}

impl Subscription {
    /// Returns true if matching messages are stored in the client's queue, if it has one.
    pub(crate) fn is_stored(&self) -> bool {
        self.qos != Qos::AtMostOnce
    }

    /// Returns the part that a delivery needs.
    pub fn to_match(self) -> SubscriptionMatch {
        SubscriptionMatch {
            qos: self.qos,
            retain_as_published: self.retain_as_published,
            identifier: self.identifier,
        }
    }
}

/// The interest of another router in a filter; see [`InterestCounts`].
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

/// An entry in the trie for a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    to: Target,
    subscription: Subscription,
    /// True if the filter begins with a wildcard, so that it does not match topics that begin with
    /// `$`.
    is_wild: bool,
}

#[derive(Debug)]
pub(crate) struct Routes {
    trie: Bindings<Route>,
    /// Identifies the content of the trie in the cache. `None` since a change.
    version: Option<Version>,
    groups: Slab<Group>,
    /// Index into `groups` by the whole filter, including `$share/`.
    by_filter: HashMap<Arc<str>, usize, foldhash::fast::FixedState>,
    scratch: Vec<Route>,
    key: String,
}

impl Default for Routes {
    fn default() -> Routes {
        Routes {
            trie: Bindings::new(ExchangeType::Topic, &Table::default()),
            version: None,
            groups: Slab::new(),
            by_filter: HashMap::default(),
            scratch: Vec::new(),
            key: String::new(),
        }
    }
}

/// A matching subscription of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteMatch {
    pub subscriber: SubscriberId,
    /// The group that selected the subscriber; see [`Delivery::group`](crate::Delivery). Ordered
    /// before the subscription, so that the non-shared subscriptions of a client are adjacent.
    pub group: u32,
    pub subscription: Subscription,
}

impl RouteMatch {
    pub(crate) fn is_shared(&self) -> bool {
        self.group != 0
    }
}

/// Another router that must receive the message.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PeerMatch {
    pub router: RouterId,
    /// The shared subscription one member of which must receive the message.
    pub group: Option<Arc<str>>,
    pub numbered: bool,
}

/// All receivers of a message.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    /// Sorted, one entry per subscription.
    pub here: Vec<RouteMatch>,
    /// Sorted, one entry per router and shared subscription.
    pub routers: Vec<PeerMatch>,
}

fn plain(filter: &str) -> (&str, bool) {
    // The filter was validated when the client subscribed.
    match codec_mqtt::shared(filter) {
        Ok(Some(SharedFilter { filter, .. })) => (filter, true),
        _ => (filter, false),
    }
}

impl Routes {
    pub(crate) fn is_empty(&self) -> bool {
        self.trie.is_empty()
    }

    pub(crate) fn add(
        &mut self,
        filter: &str,
        subscriber: SubscriberId,
        subscription: Subscription,
    ) {
        let (plain, is_shared) = plain(filter);
        if is_shared {
            return self.group_mut(filter).join(subscriber, subscription);
        }
        let route = Route {
            to: Target::One(subscriber),
            subscription,
            is_wild: is_wild(plain),
        };
        self.bind(plain, route);
    }

    /// Returns the group of a shared filter; creates it if necessary.
    fn group_mut(&mut self, filter: &str) -> &mut Group {
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
        self.version = None;
        let key: Arc<str> = key::filter_key(filter).into();
        self.trie.add(&key, &Table::default(), route, "");
    }

    fn unbind(&mut self, filter: &str, route: Route) {
        self.version = None;
        let key = key::filter_key(filter);
        self.trie.remove(&key, &Table::default(), route, "");
    }

    /// Undoes [`Routes::add`] with the same arguments.
    pub(crate) fn remove(
        &mut self,
        filter: &str,
        subscriber: SubscriberId,
        subscription: Subscription,
    ) {
        let (plain, is_shared) = plain(filter);
        if is_shared {
            return self.change_group(filter, |group| group.leave(subscriber));
        }
        let route = Route {
            to: Target::One(subscriber),
            subscription,
            is_wild: is_wild(plain),
        };
        self.unbind(plain, route);
    }

    /// Changes an existing group and removes it when it has no member left.
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

    /// Replaces the interest of another router in a filter.
    pub(crate) fn set_router(
        &mut self,
        filter: &str,
        router: RouterId,
        previous: InterestCounts,
        current: InterestCounts,
    ) {
        let route = |interest: InterestCounts| Route {
            to: Target::Hub(
                router,
                Interest {
                    plain: interest.plain > 0,
                    acknowledged: interest.acknowledged > 0,
                },
            ),
            subscription: Subscription::default(),
            is_wild: is_wild(filter),
        };
        if !current.is_none() {
            self.bind(filter, route(current));
        }
        if !previous.is_none() {
            self.unbind(filter, route(previous));
        }
    }

    /// Sets the members of a shared subscription that are connected to another router and have no
    /// queue.
    pub(crate) fn set_members(&mut self, filter: &str, router: RouterId, members: InterestCounts) {
        match members.is_none() {
            true => self.change_group(filter, |group| group.set_peer_members(router, members)),
            false => self.group_mut(filter).set_peer_members(router, members),
        }
    }

    /// Appends all receivers of a message. Selects one member per shared subscription, anywhere in
    /// the cluster. `durable`: the message has QoS 1 or 2.
    pub(crate) fn find(
        &mut self,
        topic: &str,
        durable: bool,
        locations: &impl MemberLocations,
        cache: &mut RouteCache,
        found: &mut Matches,
    ) {
        self.look_up(topic, cache);
        for route in &self.scratch {
            match route.to {
                Target::One(subscriber) => found.here.push(non_shared_match(subscriber, route)),
                Target::Hub(router, interest) => {
                    let numbered = durable && interest.acknowledged;
                    if numbered || !durable || interest.plain {
                        found.routers.push(PeerMatch {
                            router,
                            group: None,
                            numbered,
                        });
                    }
                }
                Target::Group(index) => {
                    if let Some(group) = self.groups.get_mut(index as usize) {
                        let pick = group.pick(durable, locations);
                        let next =
                            planted::is(Bug::SharedTwice).then(|| group.pick(durable, locations));
                        pick.into_iter()
                            .chain(next.flatten())
                            .for_each(|p| found.add_choice(p, (&group.name, index + 1)));
                    }
                }
            }
        }
        found.here.sort_unstable();
        // Numbered entries first: `dedup_by` keeps the first entry of a router.
        found.routers.sort_unstable_by(|a, b| {
            (a.router, &a.group, b.numbered).cmp(&(b.router, &b.group, a.numbered))
        });
        found
            .routers
            .dedup_by(|b, a| a.router == b.router && a.group == b.group);
    }

    /// Like [`Routes::find`] for a message forwarded by another router: only local subscribers, no
    /// shared subscriptions.
    pub(crate) fn find_here(
        &mut self,
        topic: &str,
        cache: &mut RouteCache,
        found: &mut Vec<RouteMatch>,
    ) {
        self.look_up(topic, cache);
        for route in &self.scratch {
            if let Target::One(subscriber) = route.to {
                found.push(non_shared_match(subscriber, route));
            }
        }
        found.sort_unstable();
    }

    /// Selects a member of a shared subscription for a message forwarded by another router.
    /// `anywhere`: the member may be connected elsewhere or disconnected.
    pub(crate) fn pick(
        &mut self,
        filter: &str,
        durable: bool,
        anywhere: bool,
        locations: &impl MemberLocations,
    ) -> Option<GroupChoice> {
        let group = self.groups.get_mut(*self.by_filter.get(filter)?)?;
        match anywhere {
            true => group.pick(durable, locations),
            false => group.pick_here(locations),
        }
    }

    /// Returns the number of a group for [`Delivery::group`](crate::Delivery); 0 if there is no
    /// such group.
    pub(crate) fn group_number(&self, filter: &str) -> u32 {
        let index = self.by_filter.get(filter);
        // Each group has a member and client numbers have 32 bits, so the index fits.
        index.map_or(0, |index| *index as u32 + 1)
    }

    /// Returns the filter of the group with this number.
    pub(crate) fn group_name(&self, number: u32) -> Option<&Arc<str>> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        Some(&self.groups.get(index)?.name)
    }

    /// Writes the trie entries that match the topic to `scratch`.
    fn look_up(&mut self, topic: &str, cache: &mut RouteCache) {
        self.scratch.clear();
        let version = *self.version.get_or_insert_with(|| cache.next_version());
        match cache.entry(topic, version) {
            Entry::Occupied(routes) => self.scratch.extend_from_slice(routes),
            Entry::Vacant(entry) => {
                self.search(topic);
                entry.store(topic, &self.scratch);
            }
        }
    }

    fn search(&mut self, topic: &str) {
        if key::has_plain_levels(topic) {
            self.trie.route_words(topic, b'/', &mut self.scratch);
        } else {
            self.key.clear();
            key::push_topic(topic, &mut self.key);
            self.trie.route_words(&self.key, b'.', &mut self.scratch);
        }
        if topic.starts_with('$') {
            self.scratch.retain(|route| !route.is_wild);
        }
    }

    /// Appends the matching subscriptions of one client. If none of its non-shared subscriptions
    /// stores messages in its queue and it has shared ones, only the shared ones are appended. Does
    /// not advance the turn of any group.
    pub(crate) fn find_client_subscriptions(
        &mut self,
        topic: &str,
        subscriber: SubscriberId,
        cache: &mut RouteCache,
        found: &mut Vec<Subscription>,
    ) {
        self.look_up(topic, cache);
        let before = found.len();
        let own = self
            .scratch
            .iter()
            .filter(|r| r.to == Target::One(subscriber));
        found.extend(own.map(|route| route.subscription));
        let own = found.len();
        if found.iter().skip(before).any(Subscription::is_stored) {
            return;
        }
        for route in &self.scratch {
            if let Target::Group(index) = route.to
                && let Some(group) = self.groups.get(index as usize)
            {
                found.extend(group.subscriptions_of(subscriber));
            }
        }
        if found.len() > own {
            found.drain(before..own);
        }
    }
}

impl Matches {
    pub(crate) fn clear(&mut self) {
        self.here.clear();
        self.routers.clear();
    }

    /// Adds a selected member. `group` and `number` are the filter and the number of the shared
    /// subscription.
    pub(crate) fn add_choice(&mut self, pick: GroupChoice, (group, number): (&Arc<str>, u32)) {
        match pick {
            GroupChoice::Member(subscriber, subscription) => self.here.push(RouteMatch {
                subscriber,
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

fn non_shared_match(subscriber: SubscriberId, route: &Route) -> RouteMatch {
    RouteMatch {
        subscriber,
        subscription: route.subscription,
        group: 0,
    }
}

fn group_route(group: usize, filter: &str) -> Route {
    Route {
        // Fewer than 2^32 groups fit in memory.
        to: Target::Group(group as u32),
        subscription: Subscription::default(),
        is_wild: is_wild(filter),
    }
}

fn is_wild(filter: &str) -> bool {
    filter.starts_with(['+', '#'])
}
