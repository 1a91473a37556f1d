//! The applied state and its queries. `apply` changes it.

use crate::access::User;
use crate::exchanges::{BindingKey, BindingTarget, Exchange, IncomingBinding};
use crate::features::{CONSUMER_FILTERS, MESSAGE_GROUPS, PUBLISHER_DEDUPLICATION};
use crate::placed::MemberCounts;
use crate::policies::{EffectivePolicy, Policy};
use crate::retained::RetainedMessages;
use crate::traffic::TrafficCounter;
use crate::{
    BindingRecord, ClientAddress, ExchangeRecord, Name, NodeRecord, PermissionRecord, PolicyRecord,
    PolicyScope, QueueId, QueueRecord, QueueType, SessionId, TopicPermissionRecord, UserRecord,
};
use bytes::Bytes;
use env::{Incarnation, NodeId};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) type NameMap<V> = HashMap<Name, V, FixedState>;

/// The applied tree. Each shard has one, so reading takes no lock.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub(crate) applied: u64,
    pub(crate) cluster: Name,
    pub(crate) vhosts: NameMap<Vhost>,
    /// Whether sessions report messages: any vhost is traced, or `traces_all`. Derived from both.
    pub(crate) traces: bool,
    /// Sessions report all messages. Set by the shard that has the tree; not replicated.
    pub(crate) traces_all: bool,
    pub(crate) queues: HashMap<QueueId, Queue, FixedState>,
    /// The keys of `queues` in order, so that a listing can continue from any of them.
    pub(crate) queue_ids: BTreeSet<QueueId>,
    /// Vhost and name of each exchange by its number.
    pub(crate) exchange_names: BTreeMap<u64, (Name, Name)>,
    /// Number for the next exchange of this tree. Not replicated.
    pub(crate) next_exchange: u64,
    /// Exclusive queues by owner.
    pub(crate) exclusive: BTreeMap<SessionId, BTreeSet<QueueId>>,
    /// Non-durable queues by the node that holds them.
    pub(crate) transient: BTreeMap<NodeId, BTreeSet<QueueId>>,
    /// Latest incarnation of each node that is known to have ended.
    pub(crate) ended: BTreeMap<NodeId, Incarnation>,
    pub(crate) users: BTreeMap<Name, User>,
    pub(crate) nodes: BTreeMap<NodeId, Arc<NodeRecord>>,
    /// Zones of the nodes with a known zone.
    pub(crate) zones: BTreeMap<NodeId, Name>,
    /// Addresses of the client listeners of the nodes that stated any.
    pub(crate) client_addresses: BTreeMap<NodeId, Vec<ClientAddress>>,
    /// Permanently removed nodes, and the index of the change that removed them.
    pub(crate) forgotten: BTreeMap<NodeId, u64>,
    /// Nodes that are or were members of replicated queues, and the index of the last change that made them a member of
    /// one.
    pub(crate) placed: BTreeMap<NodeId, u64>,
    /// Derived from `queues`.
    pub(crate) member_counts: MemberCounts,
    /// Number of queues that recognise messages which are published again. Derived from `queues`.
    pub(crate) deduplicating: usize,
    /// Number of queues that were declared with message groups. Derived from `queues`.
    pub(crate) grouping: usize,
    #[cfg(debug_assertions)]
    pub(crate) visited_queues: std::cell::Cell<u64>,
    /// Durable queues without a copy, and the name of the node that had the last one.
    pub(crate) lost: BTreeMap<QueueId, Name>,
    /// Global parameters: JSON values by name.
    pub(crate) globals: BTreeMap<Name, Name>,
    pub(crate) retained: RetainedMessages,
    /// Enabled feature flags.
    pub(crate) features: BTreeSet<Name>,
    /// Effects of the last change.
    pub(crate) events: Vec<TreeEvent>,
}

/// A virtual host with its settings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VhostRecord {
    /// Unique in the cluster.
    pub name: Name,
    /// Description for users.
    pub description: Name,
    /// Tags, which the broker does not interpret.
    pub tags: Vec<Name>,
    /// Type of queues that are declared without `x-queue-type`. `None`: classic.
    pub default_queue_type: Option<QueueType>,
    /// By names of [`crate::VHOST_LIMITS`]. A negative value means no limit.
    pub limits: Vec<(Name, i64)>,
    /// The vhost cannot be deleted.
    pub protected: bool,
    /// Its trace exchange gets copies of all publishes and deliveries.
    pub traced: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Vhost {
    pub(crate) record: Arc<VhostRecord>,
    pub(crate) exchanges: NameMap<Exchange>,
    /// Number of exchanges that have an alternate exchange.
    pub(crate) alternates: usize,
    /// Counts publishes to the default exchange.
    pub(crate) default_exchange: TrafficCounter,
    pub(crate) queues: NameMap<QueueId>,
    pub(crate) policies: BTreeMap<(PolicyScope, Name), Policy>,
    /// Effective policies by the names of the combined policies, shared by all objects that they apply to.
    pub(crate) effective: BTreeMap<(Option<Name>, Option<Name>), Arc<EffectivePolicy>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Queue {
    pub(crate) record: Arc<QueueRecord>,
    pub(crate) effective: Arc<EffectivePolicy>,
    /// Bindings that have this queue as destination.
    pub(crate) bound: BTreeSet<IncomingBinding>,
}

/// An effect of a change, for state outside the tree: Raft groups, queues, caches.
#[derive(Clone, Debug, PartialEq)]
pub enum TreeEvent {
    /// A queue was created.
    QueueAdded(Arc<QueueRecord>),
    /// A queue was deleted; the record is its last state.
    QueueRemoved(Arc<QueueRecord>),
    /// The wanted members of a quorum queue changed.
    QueueMembersChanged(Arc<QueueRecord>),
    /// The only copy of a queue was on a node that lost its data directory.
    QueueLost {
        /// The lost queue, with its last state.
        queue: Arc<QueueRecord>,
        /// Name of the node that had the only copy.
        node: Name,
    },
    /// The effective policies of these queues changed, so their settings may have changed.
    PolicyChanged(Vec<QueueId>),
    /// A member was added.
    NodeAdded(Arc<NodeRecord>),
    /// The record of a member changed.
    NodeChanged(Arc<NodeRecord>),
    /// A member was removed; the record is its last state.
    NodeRemoved(Arc<NodeRecord>),
    /// A vhost was deleted. Events for its queues precede this one.
    VhostRemoved(Name),
    /// The retained message of a topic was set, replaced or cleared.
    Retained {
        /// Vhost of the topic.
        vhost: Name,
        /// Topic name in MQTT syntax.
        topic: Name,
    },
    /// Permissions, password, tags or limits of a user changed, or the user was deleted.
    PermissionsChanged {
        /// Name of the user.
        user: Name,
    },
}

/// A right that a user may have on a resource.
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

    /// Name of the cluster. Empty until the cluster is formed.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Effects of the last [`Tree::apply`], in addition to its result.
    pub fn events(&self) -> &[TreeEvent] {
        &self.events
    }

    /// Takes the effects that [`Tree::events`] returns.
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

    /// All vhosts ordered by name.
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

    /// Returns the queue with that id.
    pub fn queue_by_id(&self, id: QueueId) -> Option<&Arc<QueueRecord>> {
        self.queues.get(&id).map(|q| &q.record)
    }

    /// All queues of all vhosts, in no particular order. Each step has constant cost.
    pub fn all_queues(&self) -> impl Iterator<Item = &Arc<QueueRecord>> {
        self.queues.values().map(|q| {
            #[cfg(debug_assertions)]
            self.visited_queues.set(self.visited_queues.get() + 1);
            &q.record
        })
    }

    /// Returns true if a queue recognises messages that are published again. Costs next to nothing if none does.
    #[inline]
    pub fn has_deduplicating_queues(&self) -> bool {
        self.deduplicating > 0 && self.feature_enabled(PUBLISHER_DEDUPLICATION.name)
    }

    /// Returns true if a queue has message groups. Costs next to nothing if none does.
    #[inline]
    pub fn has_queues_with_groups(&self) -> bool {
        self.grouping > 0 && self.feature_enabled(MESSAGE_GROUPS.name)
    }

    /// Returns true if the queue delivers the messages of each group in order.
    pub fn has_message_groups(&self, queue: &QueueRecord) -> bool {
        queue.declares_message_groups() && self.feature_enabled(MESSAGE_GROUPS.name)
    }

    /// Returns true if consumers of the queue can have filters that the queue evaluates. A queue that is declared with message
    /// groups selects consumers by the group.
    pub fn filters_consumers_of(&self, queue: &QueueRecord) -> bool {
        !queue.kind.descriptor().cursors
            && !queue.declares_message_groups()
            && self.feature_enabled(CONSUMER_FILTERS.name)
    }

    /// Number of queues in all vhosts.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// Number of exchanges in all virtual hosts.
    pub fn exchange_count(&self) -> usize {
        self.exchange_names.len()
    }

    /// Queues of a vhost ordered by name.
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

    /// Exchanges of a vhost ordered by name. The first is the default exchange.
    pub fn exchanges(&self, vhost: &str) -> Vec<&Arc<ExchangeRecord>> {
        let found = self.vhosts.get(vhost).map(|v| v.exchanges.values());
        let mut all: Vec<_> = found.into_iter().flatten().map(|x| &x.record).collect();
        all.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Explicit bindings of a vhost, ordered by source, destination, key and arguments. The implicit bindings of the
    /// default exchange are not included.
    pub fn bindings(&self, vhost: &str) -> Vec<&Arc<BindingRecord>> {
        let sources = self.exchanges(vhost);
        sources
            .into_iter()
            .flat_map(|x| self.bindings_from(vhost, &x.name))
            .collect()
    }

    /// Bindings that have this exchange as source.
    pub fn bindings_from(&self, vhost: &str, exchange: &str) -> Vec<&Arc<BindingRecord>> {
        let mut all: Vec<_> = self
            .find_exchange(vhost, exchange)
            .map(|x| x.bindings.values())
            .into_iter()
            .flatten()
            .collect();
        // Ordered by content, because the index is ordered by numbers that are not replicated.
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

    /// Bindings that have this queue as destination.
    pub fn bindings_of_queue(&self, queue: QueueId) -> Vec<&Arc<BindingRecord>> {
        let Some(queue) = self.queues.get(&queue) else {
            return Vec::new();
        };
        self.resolve_incoming_bindings(&queue.record.vhost, &queue.bound)
    }

    /// Bindings of a queue with this source and routing key. They differ in their arguments.
    pub fn bindings_of_queue_with_key<'a>(
        &'a self,
        queue: QueueId,
        source: &str,
        routing_key: &str,
    ) -> impl Iterator<Item = &'a Arc<BindingRecord>> {
        let first = IncomingBinding {
            source: source.into(),
            key: BindingKey {
                target: BindingTarget::Queue(queue),
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

    /// Bindings that have this exchange as destination.
    pub fn bindings_of_exchange(&self, vhost: &str, name: &str) -> Vec<&Arc<BindingRecord>> {
        match self.find_exchange(vhost, name) {
            Some(exchange) => self.resolve_incoming_bindings(vhost, &exchange.bound),
            None => Vec::new(),
        }
    }

    fn resolve_incoming_bindings<'a>(
        &'a self,
        vhost: &str,
        bound: &BTreeSet<IncomingBinding>,
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

    /// All users ordered by name.
    pub fn users(&self) -> impl Iterator<Item = &Arc<UserRecord>> {
        self.users.values().map(|u| &u.record)
    }

    /// All permissions ordered by user and vhost.
    pub fn permissions(&self) -> impl Iterator<Item = &Arc<PermissionRecord>> {
        self.users
            .values()
            .flat_map(|u| u.rights.values().map(|r| &r.record))
    }

    /// Returns the permissions of a user in a vhost. `None`: the user has none.
    pub fn permission(&self, user: &str, vhost: &str) -> Option<&Arc<PermissionRecord>> {
        self.users.get(user)?.rights.get(vhost).map(|r| &r.record)
    }

    /// All topic permissions ordered by user, vhost and exchange.
    pub fn topic_permissions(&self) -> impl Iterator<Item = &Arc<TopicPermissionRecord>> {
        self.users
            .values()
            .flat_map(|u| u.topics.values().map(|r| &r.record))
    }

    /// Returns the member with that id.
    pub fn node(&self, id: NodeId) -> Option<&Arc<NodeRecord>> {
        self.nodes.get(&id)
    }

    /// Zone of a node. Empty: unknown.
    pub fn zone(&self, id: NodeId) -> &str {
        self.zones.get(&id).map_or("", |zone| zone)
    }

    /// Whether the node was permanently removed from the cluster.
    pub fn is_forgotten(&self, id: NodeId) -> bool {
        self.forgotten.contains_key(&id)
    }

    /// Nodes that were permanently removed, ordered by id.
    pub fn forgotten_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.forgotten.keys().copied()
    }

    /// All nodes ordered by id.
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

    /// Events for the differences between an earlier state and this one, after a snapshot was installed.
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
            let is_same = match (before.users.get(name), self.users.get(name)) {
                (Some(old), Some(new)) => old.is_same(new),
                _ => false,
            };
            if !is_same {
                events.push(TreeEvent::PermissionsChanged { user: name.clone() });
            }
        }
    }
}
