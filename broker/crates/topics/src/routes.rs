//! One vhost's subscriptions: filters to subscribers, and groups that share one.

use crate::{SubscriberId, key};
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
pub(crate) type Found = (SubscriberId, Subscription);

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
        self.key.clear();
        key::push_topic(topic, &mut self.key);
        self.scratch.clear();
        self.trie
            .route(&[&self.key], &Table::default, &mut self.scratch);
        let hidden = topic.starts_with('$');
        for route in &self.scratch {
            if hidden && route.wild {
                continue;
            }
            match route.to {
                Target::One(who) => found.push((who, route.subscription)),
                Target::Group(index) => {
                    let group = self.groups.get_mut(index);
                    found.extend(group.and_then(|group| group.next(&is_here)));
                }
            }
        }
        found.sort_unstable();
    }
}

impl Group {
    fn next(&mut self, is_here: impl Fn(SubscriberId) -> bool) -> Option<Found> {
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
