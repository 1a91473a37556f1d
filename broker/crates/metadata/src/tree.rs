//! The applied state and what may be asked of it. Changing it is `apply`'s.

use crate::access::User;
use crate::exchanges::{BindingKey, Bound, Exchange, Target};
use crate::placed::MemberCounts;
use crate::policies::{EffectivePolicy, Policy};
use crate::retained::Retained;
use crate::traffic::TrafficCounter;
use crate::{
    BindingRecord, ExchangeRecord, Name, NodeRecord, PermissionRecord, PolicyRecord, PolicyScope,
    QueueId, QueueRecord, QueueType, SessionId, TopicPermissionRecord, UserRecord,
};
use bytes::Bytes;
use env::{Incarnation, NodeId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) type Map<V> = HashMap<Name, V, FixedState>;

/// The applied tree. One per shard; reading it takes no lock.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub(crate) applied: u64,
    pub(crate) cluster: Name,
    pub(crate) vhosts: Map<Vhost>,
    /// A vhost is traced. Follows from them.
    pub(crate) traces: bool,
    pub(crate) queues: HashMap<QueueId, Queue, FixedState>,
    /// The keys of `queues`, in order: a listing goes on from any of them.
    pub(crate) queue_ids: BTreeSet<QueueId>,
    /// Vhost and name of exchanges by the number that routing uses for them.
    pub(crate) exchange_names: BTreeMap<u64, (Name, Name)>,
    /// Of this tree only, not part of the replicated state.
    pub(crate) next_exchange: u64,
    /// Exclusive queues by owner.
    pub(crate) exclusive: BTreeMap<SessionId, BTreeSet<QueueId>>,
    /// Non-durable queues by the node that holds them.
    pub(crate) transient: BTreeMap<NodeId, BTreeSet<QueueId>>,
    /// Latest life of each node that is known to be over.
    pub(crate) ended: BTreeMap<NodeId, Incarnation>,
    pub(crate) users: BTreeMap<Name, User>,
    pub(crate) nodes: BTreeMap<NodeId, Arc<NodeRecord>>,
    /// Of nodes that say where they are.
    pub(crate) zones: BTreeMap<NodeId, Name>,
    /// Nodes that were removed for good, and the index of the change that did it.
    pub(crate) forgotten: BTreeMap<NodeId, u64>,
    /// Nodes of the cluster that are or were members of replicated queues, and the index of the last change that made
    /// them one.
    pub(crate) placed: BTreeMap<NodeId, u64>,
    /// Follows from the queues.
    pub(crate) member_counts: MemberCounts,
    #[cfg(debug_assertions)]
    pub(crate) walked: std::cell::Cell<u64>,
    /// Durable queues without any copy left, and the name of the node that had the last one.
    pub(crate) lost: BTreeMap<QueueId, Name>,
    /// Global parameters: JSON by name.
    pub(crate) globals: BTreeMap<Name, Name>,
    pub(crate) retained: Retained,
    /// Feature flags that are on.
    pub(crate) features: BTreeSet<Name>,
    /// What the last change did.
    pub(crate) events: Vec<TreeEvent>,
}

/// A virtual host with its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostRecord {
    /// Unique in the cluster.
    pub name: Name,
    /// Text for people.
    pub description: Name,
    /// Tags, which the broker does not interpret.
    pub tags: Vec<Name>,
    /// What a queue is whose declaration does not say; None: classic.
    pub default_queue_type: Option<QueueType>,
    /// `max-connections` and `max-queues`; a negative one is none.
    pub limits: Vec<(Name, i64)>,
    /// It cannot be deleted.
    pub protected: bool,
    /// Its trace exchange gets copies of what is published and delivered.
    pub traced: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Vhost {
    pub(crate) record: Arc<VhostRecord>,
    pub(crate) exchanges: Map<Exchange>,
    /// How many of them have an alternate exchange.
    pub(crate) alternates: usize,
    /// What was published to the default exchange.
    pub(crate) default_exchange: TrafficCounter,
    pub(crate) queues: Map<QueueId>,
    pub(crate) policies: BTreeMap<(PolicyScope, Name), Policy>,
    /// Effective policies by the names that make them, shared by all that they apply to.
    pub(crate) effective: BTreeMap<(Option<Name>, Option<Name>), Arc<EffectivePolicy>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) record: Arc<QueueRecord>,
    pub(crate) effective: Arc<EffectivePolicy>,
    /// Bindings that end here.
    pub(crate) bound: BTreeSet<Bound>,
}

/// What a change did, for those who keep something beside the tree: groups, queues, caches.
#[derive(Clone, Debug, PartialEq)]
pub enum TreeEvent {
    /// A queue was created.
    QueueAdded(Arc<QueueRecord>),
    /// A queue was deleted; the record is its last state.
    QueueRemoved(Arc<QueueRecord>),
    /// The wanted members of a quorum queue changed.
    QueueMembersChanged(Arc<QueueRecord>),
    /// Its only copy was on a node that lost its data directory.
    QueueLost {
        /// The lost queue, with its last state.
        queue: Arc<QueueRecord>,
        /// Name of the node that had the only copy.
        node: Name,
    },
    /// The effective policies, and so perhaps the settings, of these queues are others now.
    PolicyChanged(Vec<QueueId>),
    /// A member was added.
    NodeAdded(Arc<NodeRecord>),
    /// The record of a member changed.
    NodeChanged(Arc<NodeRecord>),
    /// A member was removed; the record is its last state.
    NodeRemoved(Arc<NodeRecord>),
    /// A vhost was deleted. Its queues had an event each before.
    VhostRemoved(Name),
    /// What is retained for a topic is another message now, or none.
    Retained {
        /// Vhost of the topic.
        vhost: Name,
        /// Topic name in MQTT's form.
        topic: Name,
    },
    /// Rights, password, tags or limits of this user, who may be gone.
    PermissionsChanged {
        /// Name of the user.
        user: Name,
    },
}

/// What a user may be permitted to do with a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Right {
    /// Declare and delete.
    Configure,
    /// Publish to an exchange, bind a queue, bind an exchange as destination.
    Write,
    /// Consume from a queue, bind an exchange as source.
    Read,
}

impl Tree {
    /// Index of the last change applied.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The cluster's name; empty until it is formed.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// What the last [`Tree::apply`] did, beyond its own result.
    pub fn events(&self) -> &[TreeEvent] {
        &self.events
    }

    /// As [`Tree::events`], handed over.
    pub fn take_events(&mut self) -> Vec<TreeEvent> {
        std::mem::take(&mut self.events)
    }

    /// Returns true if a vhost has that name.
    pub fn vhost_exists(&self, vhost: &str) -> bool {
        self.vhosts.contains_key(vhost)
    }

    /// Returns the vhost with that name.
    pub fn vhost(&self, vhost: &str) -> Option<&Arc<VhostRecord>> {
        self.vhosts.get(vhost).map(|v| &v.record)
    }

    /// By name.
    pub fn vhosts(&self) -> Vec<&VhostRecord> {
        let mut all: Vec<&VhostRecord> = self.vhosts.values().map(|v| &*v.record).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Returns the queue with that name.
    pub fn queue(&self, vhost: &str, name: &str) -> Option<&Arc<QueueRecord>> {
        let id = self.vhosts.get(vhost)?.queues.get(name)?;
        self.queue_by_id(*id)
    }

    /// Returns the queue with that id, also if another queue had its name before.
    pub fn queue_by_id(&self, id: QueueId) -> Option<&Arc<QueueRecord>> {
        self.queues.get(&id).map(|q| &q.record)
    }

    /// All queues of all vhosts, in no order. Cheap per step.
    pub fn all_queues(&self) -> impl Iterator<Item = &Arc<QueueRecord>> {
        self.queues.values().map(|q| {
            #[cfg(debug_assertions)]
            self.walked.set(self.walked.get() + 1);
            &q.record
        })
    }

    /// Number of queues in all vhosts.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Number of exchanges in all virtual hosts.
    pub fn exchange_count(&self) -> usize {
        self.exchange_names.len()
    }

    /// A vhost's queues by name.
    pub fn queues(&self, vhost: &str) -> Vec<&Arc<QueueRecord>> {
        let ids = self.vhosts.get(vhost).map(|v| v.queues.values());
        let mut all: Vec<_> = ids
            .into_iter()
            .flatten()
            .filter_map(|id| self.queue_by_id(*id))
            .collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Returns the exchange with that name, which is empty for the default exchange.
    pub fn exchange(&self, vhost: &str, name: &str) -> Option<&Arc<ExchangeRecord>> {
        self.find_exchange(vhost, name).map(|x| &x.record)
    }

    pub(crate) fn find_exchange(&self, vhost: &str, name: &str) -> Option<&Exchange> {
        self.vhosts.get(vhost)?.exchanges.get(name)
    }

    /// A vhost's exchanges by name; the first is the default exchange.
    pub fn exchanges(&self, vhost: &str) -> Vec<&Arc<ExchangeRecord>> {
        let found = self.vhosts.get(vhost).map(|v| v.exchanges.values());
        let mut all: Vec<_> = found.into_iter().flatten().map(|x| &x.record).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// A vhost's explicit bindings, by source, destination, key and arguments. (The default exchange's are implied.)
    pub fn bindings(&self, vhost: &str) -> Vec<&Arc<BindingRecord>> {
        let sources = self.exchanges(vhost);
        sources
            .into_iter()
            .flat_map(|x| self.bindings_from(vhost, &x.name))
            .collect()
    }

    /// Bindings whose source is this exchange.
    pub fn bindings_from(&self, vhost: &str, exchange: &str) -> Vec<&Arc<BindingRecord>> {
        let mut all: Vec<_> = self
            .find_exchange(vhost, exchange)
            .map(|x| x.bindings.values())
            .into_iter()
            .flatten()
            .collect();
        // By what it says: the index is by numbers that are this tree's own.
        all.sort_by(|a, b| {
            (&a.destination, &a.routing_key)
                .cmp(&(&b.destination, &b.routing_key))
                .then_with(|| {
                    crate::codec::canonical(&a.arguments)
                        .cmp(&crate::codec::canonical(&b.arguments))
                })
        });
        all
    }

    /// Bindings that end at this queue.
    pub fn bindings_of_queue(&self, queue: QueueId) -> Vec<&Arc<BindingRecord>> {
        let Some(queue) = self.queues.get(&queue) else {
            return Vec::new();
        };
        self.resolve_bound(&queue.record.vhost, &queue.bound)
    }

    /// Of these, the ones of an exchange with a routing key: they differ in their arguments.
    pub fn bindings_of_queue_under<'a>(
        &'a self,
        queue: QueueId,
        source: &str,
        routing_key: &str,
    ) -> impl Iterator<Item = &'a Arc<BindingRecord>> {
        let first = Bound {
            source: source.into(),
            key: BindingKey {
                target: Target::Queue(queue),
                routing_key: routing_key.into(),
                arguments: Bytes::new(),
            },
        };
        let state = self.queues.get(&queue);
        let found = state.and_then(|q| {
            let exchange = self.find_exchange(&q.record.vhost, source)?;
            Some((exchange, q.bound.range(first.clone()..)))
        });
        found.into_iter().flat_map(move |(exchange, all)| {
            let first = first.clone();
            let all = all.take_while(move |b| {
                b.source == first.source && b.key.routing_key == first.key.routing_key
            });
            all.filter_map(|b| exchange.bindings.get(&b.key))
        })
    }

    /// Bindings that end at this exchange.
    pub fn bindings_of_exchange(&self, vhost: &str, name: &str) -> Vec<&Arc<BindingRecord>> {
        match self.find_exchange(vhost, name) {
            Some(exchange) => self.resolve_bound(vhost, &exchange.bound),
            None => Vec::new(),
        }
    }

    fn resolve_bound<'a>(
        &'a self,
        vhost: &str,
        bound: &BTreeSet<Bound>,
    ) -> Vec<&'a Arc<BindingRecord>> {
        bound
            .iter()
            .filter_map(|b| self.find_exchange(vhost, &b.source)?.bindings.get(&b.key))
            .collect()
    }

    /// Policies of one scope in all vhosts, by vhost and name.
    pub fn policies(&self, scope: PolicyScope) -> Vec<&Arc<PolicyRecord>> {
        let vhosts = self.vhosts();
        vhosts
            .into_iter()
            .flat_map(|v| self.policies_of(&v.name))
            .filter(|p| p.scope == scope)
            .collect()
    }

    pub(crate) fn policies_of(&self, vhost: &str) -> impl Iterator<Item = &Arc<PolicyRecord>> {
        let found = self.vhosts.get(vhost).map(|v| v.policies.values());
        found.into_iter().flatten().map(|p| &p.record)
    }

    /// Returns a policy by its scope and name.
    pub fn policy(
        &self,
        vhost: &str,
        scope: PolicyScope,
        name: &str,
    ) -> Option<&Arc<PolicyRecord>> {
        let policies = &self.vhosts.get(vhost)?.policies;
        policies.get(&(scope, name.into())).map(|p| &p.record)
    }

    /// Returns the user with that name.
    pub fn user(&self, name: &str) -> Option<&Arc<UserRecord>> {
        self.users.get(name).map(|u| &u.record)
    }

    /// By name.
    pub fn users(&self) -> impl Iterator<Item = &Arc<UserRecord>> {
        self.users.values().map(|u| &u.record)
    }

    /// By user, then vhost.
    pub fn permissions(&self) -> impl Iterator<Item = &Arc<PermissionRecord>> {
        self.users
            .values()
            .flat_map(|u| u.rights.values().map(|r| &r.record))
    }

    /// Returns the permissions of a user in a vhost; None permits nothing.
    pub fn permission(&self, user: &str, vhost: &str) -> Option<&Arc<PermissionRecord>> {
        self.users.get(user)?.rights.get(vhost).map(|r| &r.record)
    }

    /// By user, then vhost, then exchange.
    pub fn topic_permissions(&self) -> impl Iterator<Item = &Arc<TopicPermissionRecord>> {
        self.users
            .values()
            .flat_map(|u| u.topics.values().map(|r| &r.record))
    }

    /// Returns the member with that id.
    pub fn node(&self, id: NodeId) -> Option<&Arc<NodeRecord>> {
        self.nodes.get(&id)
    }

    /// Where a node is; empty: nobody said.
    pub fn zone(&self, id: NodeId) -> &str {
        self.zones.get(&id).map_or("", |zone| zone)
    }

    /// Whether the node was removed from the cluster for good.
    pub fn is_forgotten(&self, id: NodeId) -> bool {
        self.forgotten.contains_key(&id)
    }

    /// By id.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<NodeRecord>> {
        self.nodes.values()
    }

    /// Exclusive queues of a session.
    pub fn exclusive_queues(&self, session: SessionId) -> impl Iterator<Item = &Arc<QueueRecord>> {
        let ids = self.exclusive.get(&session);
        ids.into_iter()
            .flatten()
            .filter_map(|id| self.queue_by_id(*id))
    }

    /// What happened between another state of the tree (before a snapshot was installed) and this one.
    pub fn events_since(&self, before: &Tree) -> Vec<TreeEvent> {
        let mut events = Vec::new();
        for (name, _) in before.vhosts.iter().filter(|(n, _)| !self.vhost_exists(n)) {
            events.push(TreeEvent::VhostRemoved(name.clone()));
        }
        let mut changed = Vec::new();
        for (id, queue) in &before.queues {
            if !self.queues.contains_key(id) {
                events.push(TreeEvent::QueueRemoved(queue.record.clone()));
            }
        }
        for (id, queue) in &self.queues {
            match before.queues.get(id) {
                None => events.push(TreeEvent::QueueAdded(queue.record.clone())),
                Some(old) => {
                    if old.record.members != queue.record.members {
                        events.push(TreeEvent::QueueMembersChanged(queue.record.clone()));
                    }
                    if old.effective != queue.effective {
                        changed.push(*id);
                    }
                }
            }
        }
        for (id, node) in self.lost_queues() {
            if before.lost_on(id).is_none()
                && let Some(queue) = self.queue_by_id(id).cloned()
            {
                let node = node.clone();
                events.push(TreeEvent::QueueLost { queue, node });
            }
        }
        if !changed.is_empty() {
            events.push(TreeEvent::PolicyChanged(changed));
        }
        self.access_events_since(before, &mut events);
        events
    }

    fn access_events_since(&self, before: &Tree, events: &mut Vec<TreeEvent>) {
        for (id, node) in &before.nodes {
            if !self.nodes.contains_key(id) {
                events.push(TreeEvent::NodeRemoved(node.clone()));
            }
        }
        for (id, node) in &self.nodes {
            match before.nodes.get(id) {
                None => events.push(TreeEvent::NodeAdded(node.clone())),
                Some(old) if old != node => events.push(TreeEvent::NodeChanged(node.clone())),
                Some(_) => {}
            }
        }
        let names: BTreeSet<&Name> = before.users.keys().chain(self.users.keys()).collect();
        for name in names {
            let same = match (before.users.get(name), self.users.get(name)) {
                (Some(old), Some(new)) => old.same(new),
                _ => false,
            };
            if !same {
                events.push(TreeEvent::PermissionsChanged { user: name.clone() });
            }
        }
    }
}
