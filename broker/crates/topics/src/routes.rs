//! One vhost's subscriptions: filters to subscribers, and groups that share one.

use crate::{Hit, SubscriberId, key};
use codec_mqtt::{Qos, Shared};
use hashbrown::HashMap;
use message::Table;
use routing::{Bindings, Kind};
use slab::Slab;
use std::sync::Arc;

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
    /// What of it matters for a message that belongs to it.
    pub fn hit(self) -> Hit {
        Hit {
            qos: self.qos,
            retain_as_published: self.retain_as_published,
            identifier: self.identifier,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    One(SubscriberId),
    Group(usize),
}

/// What the trie has at the end of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Route {
    to: Target,
    subscription: Subscription,
    /// The filter begins with a wildcard: not for topics that begin with `$`.
    wild: bool,
}

/// Subscribers that share a filter: each message is for one of them (section 4.8.2).
#[derive(Debug, Default)]
struct Group {
    members: Vec<(SubscriberId, Subscription)>,
    /// Who was served last.
    turn: usize,
}

#[derive(Debug)]
pub(crate) struct Routes {
    trie: Bindings<Route>,
    groups: Slab<Group>,
    /// By the whole filter, `$share/` and all.
    by_filter: HashMap<Box<str>, usize, foldhash::fast::FixedState>,
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
pub(crate) struct Found {
    pub who: SubscriberId,
    pub subscription: Subscription,
    pub shared: bool,
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
        let to = if is_shared {
            let group = match self.by_filter.get(filter) {
                Some(&group) => group,
                None => {
                    let group = self.groups.insert(Group::default());
                    self.by_filter.insert(filter.into(), group);
                    self.bind(plain, group_route(group, plain));
                    group
                }
            };
            if let Some(group) = self.groups.get_mut(group) {
                group.members.push((who, subscription));
            }
            return;
        } else {
            Target::One(who)
        };
        let route = Route {
            to,
            subscription,
            wild: is_wild(plain),
        };
        self.bind(plain, route);
    }

    fn bind(&mut self, filter: &str, route: Route) {
        let key: Arc<str> = key::filter_key(filter).into();
        self.trie.add(&key, &Table::default(), route, "");
    }

    /// Undoes an [`Routes::add`] with the same words.
    pub fn remove(&mut self, filter: &str, who: SubscriberId, subscription: Subscription) {
        let (plain, is_shared) = plain(filter);
        let route = if is_shared {
            let Some(&index) = self.by_filter.get(filter) else {
                return;
            };
            let Some(group) = self.groups.get_mut(index) else {
                return;
            };
            group.members.retain(|(member, _)| *member != who);
            if !group.members.is_empty() {
                return;
            }
            self.groups.remove(index);
            self.by_filter.remove(filter);
            group_route(index, plain)
        } else {
            Route {
                to: Target::One(who),
                subscription,
                wild: is_wild(plain),
            }
        };
        let key = key::filter_key(plain);
        self.trie.remove(&key, &Table::default(), route);
    }

    /// Appends everybody a message with this topic is for, in order, one entry for each subscription. Of a group it is one
    /// member: the next one that `is_here`, or else the next one.
    pub fn find(
        &mut self,
        topic: &str,
        is_here: impl Fn(SubscriberId) -> bool,
        found: &mut Vec<Found>,
    ) {
        self.look_up(topic);
        for route in &self.scratch {
            match route.to {
                Target::One(who) => found.push(Found {
                    who,
                    subscription: route.subscription,
                    shared: false,
                }),
                Target::Group(index) => {
                    let group = self.groups.get_mut(index);
                    let member = group.and_then(|group| group.next(&is_here));
                    found.extend(member.map(|(who, subscription)| Found {
                        who,
                        subscription,
                        shared: true,
                    }));
                }
            }
        }
        found.sort_unstable();
    }

    /// What the trie has for a topic, in `scratch`.
    fn look_up(&mut self, topic: &str) {
        self.key.clear();
        key::push_topic(topic, &mut self.key);
        self.scratch.clear();
        self.trie
            .route(&[&self.key], &Table::default, &mut self.scratch);
        if topic.starts_with('$') {
            self.scratch.retain(|route| !route.wild);
        }
    }

    /// Appends the subscriptions of one client; those that are shared only when there are no others. Nobody's turn passes.
    pub fn find_of(&mut self, topic: &str, who: SubscriberId, found: &mut Vec<Subscription>) {
        self.look_up(topic);
        let own = self.scratch.iter().filter(|r| r.to == Target::One(who));
        found.extend(own.map(|route| route.subscription));
        if !found.is_empty() {
            return;
        }
        for route in &self.scratch {
            if let Target::Group(index) = route.to
                && let Some(group) = self.groups.get(index)
            {
                let own = group.members.iter().filter(|(member, _)| *member == who);
                found.extend(own.map(|(_, subscription)| *subscription));
            }
        }
    }
}

impl Group {
    fn next(
        &mut self,
        is_here: impl Fn(SubscriberId) -> bool,
    ) -> Option<(SubscriberId, Subscription)> {
        let len = self.members.len();
        let after = |n: usize| (self.turn + n) % len.max(1);
        let chosen = (1..=len)
            .map(after)
            .find(|&at| self.members.get(at).is_some_and(|m| is_here(m.0)))
            .unwrap_or_else(|| after(1));
        self.turn = chosen;
        self.members.get(chosen).copied()
    }
}

fn group_route(group: usize, filter: &str) -> Route {
    Route {
        to: Target::Group(group),
        subscription: Subscription::default(),
        wild: is_wild(filter),
    }
}

fn is_wild(filter: &str) -> bool {
    filter.starts_with(['+', '#'])
}
