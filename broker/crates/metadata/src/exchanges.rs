//! Exchanges and bindings.

use crate::apply::{check_name, no_exchange, no_queue, no_vhost};
use crate::arguments::check_table;
use crate::codec::canonical;
use crate::equivalence::{ResourceName, check_exchange};
use crate::policies::EffectivePolicy;
use crate::traffic::TrafficCounter;
use crate::{
    BindingRecord, ChangeError, ChangeResult, Destination, ExchangeRecord, Name, QueueId, Tree,
    features, limits,
};
use bytes::Bytes;
use message::Value;
use routing::{Bindings, ExchangeType};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The destination of a binding, as routing uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum BindingTarget {
    Queue(QueueId),
    /// [`Exchange::number`].
    Exchange(u64),
}

/// A binding's identity within its source: destination, key and arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BindingKey {
    pub(crate) target: BindingTarget,
    pub(crate) routing_key: Name,
    /// Canonical encoding of the arguments.
    pub(crate) arguments: Bytes,
}

/// A binding seen from its destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct IncomingBinding {
    pub(crate) source: Name,
    pub(crate) key: BindingKey,
}

#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) record: Arc<ExchangeRecord>,
    /// Number of the exchange in this tree, which is not replicated.
    pub(crate) number: u64,
    pub(crate) kind: ExchangeType,
    pub(crate) matcher: Bindings<BindingTarget>,
    pub(crate) bindings: BTreeMap<BindingKey, Arc<BindingRecord>>,
    /// Bindings that have this exchange as destination.
    pub(crate) bound: BTreeSet<IncomingBinding>,
    pub(crate) effective: Arc<EffectivePolicy>,
    /// The alternate exchange, from the argument or else from the policy.
    pub(crate) alternate: Option<Name>,
    pub(crate) counter: TrafficCounter,
}

impl Exchange {
    pub(crate) fn set_effective(&mut self, effective: Arc<EffectivePolicy>) {
        let name = |v: Option<&Value>| v.and_then(Value::as_str).map(Name::from);
        // An empty name is ignored: no queue is bound to the default exchange, so that as an alternate it takes no
        // message, as in RabbitMQ.
        self.alternate = name(self.record.arguments.get("alternate-exchange"))
            .or_else(|| name(effective.definition.get("alternate-exchange")))
            .filter(|alternate| !alternate.is_empty());
        self.effective = effective;
    }
}

fn default_exchange_refused() -> ChangeError {
    ChangeError::AccessRefused("operation not permitted on the default exchange".into())
}

impl Tree {
    pub(crate) fn declare_exchange(
        &mut self,
        requested: &ExchangeRecord,
    ) -> Result<ChangeResult, ChangeError> {
        let Some(kind) = ExchangeType::from_name(&requested.kind) else {
            return Err(ChangeError::PreconditionFailed(format!(
                "unknown exchange type '{}'",
                requested.kind
            )));
        };
        if !self.vhost_exists(&requested.vhost) {
            return Err(no_vhost(&requested.vhost));
        }
        if requested.name.is_empty() {
            return Err(default_exchange_refused());
        }
        if let Some(existing) = self.exchange(&requested.vhost, &requested.name) {
            check_exchange(existing, requested)?;
            return Ok(ChangeResult::Unchanged);
        }
        check_name("exchange", &requested.name)?;
        let resource = ResourceName::exchange(&requested.vhost, &requested.name);
        if let Some(feature) = features::needed_by(kind)
            && !self.feature_enabled(feature.name)
        {
            return Err(ChangeError::PreconditionFailed(format!(
                "{resource} of type {} needs the feature flag '{}': enable it when all nodes run a version that knows it",
                kind.name(),
                feature.name
            )));
        }
        check_table(&resource, &requested.arguments)?;
        requested.alternate()?;
        kind.check_exchange(&requested.arguments)
            .map_err(|e| ChangeError::PreconditionFailed(e.to_string()))?;
        self.insert_exchange(requested.clone());
        Ok(ChangeResult::Changed)
    }

    /// Returns false if the exchange type or the vhost is unknown.
    pub(crate) fn insert_exchange(&mut self, mut record: ExchangeRecord) -> bool {
        let Some(kind) = ExchangeType::from_name(&record.kind) else {
            return false;
        };
        let uses_hash_tree = self.feature_enabled(features::CONSISTENT_HASH_TREE.name);
        let Some(vhost) = self.vhosts.get_mut(&record.vhost) else {
            return false;
        };
        record.vhost = vhost.record.name.clone();
        let effective = vhost.effective_of_exchange(&record.name);
        self.next_exchange += 1;
        let number = self.next_exchange;
        let names = (record.vhost.clone(), record.name.clone());
        let mut exchange = Exchange {
            kind,
            matcher: Bindings::new(kind, &record.arguments),
            record: Arc::new(record),
            number,
            bindings: BTreeMap::new(),
            bound: BTreeSet::new(),
            effective: effective.clone(),
            alternate: None,
            counter: TrafficCounter::default(),
        };
        exchange.set_effective(effective);
        if uses_hash_tree {
            exchange.matcher.use_hash_tree();
        }
        vhost.alternates += usize::from(exchange.alternate.is_some());
        let replaced = vhost.exchanges.insert(names.1.clone(), exchange);
        vhost.alternates -= replaced.map_or(0, |e| usize::from(e.alternate.is_some()));
        self.exchange_names.insert(number, names);
        true
    }

    /// Makes all consistent-hash exchanges select queues in logarithmic time.
    pub(crate) fn use_hash_trees(&mut self) {
        for vhost in self.vhosts.values_mut() {
            for exchange in vhost.exchanges.values_mut() {
                exchange.matcher.use_hash_tree();
            }
        }
    }

    pub(crate) fn delete_exchange(
        &mut self,
        vhost: &Name,
        name: &Name,
        if_unused: bool,
    ) -> Result<ChangeResult, ChangeError> {
        if name.is_empty() {
            return Err(default_exchange_refused());
        }
        let Some(exchange) = self.find_exchange(vhost, name) else {
            return Ok(ChangeResult::Unchanged);
        };
        if name.starts_with("amq.") {
            return Err(ChangeError::AccessRefused(format!(
                "deletion of system exchange '{name}' in vhost '{vhost}' not allowed"
            )));
        }
        if if_unused && !exchange.bindings.is_empty() {
            return Err(ChangeError::PreconditionFailed(format!(
                "exchange '{name}' in vhost '{vhost}' in use"
            )));
        }
        self.remove_exchange(vhost, name);
        Ok(ChangeResult::Changed)
    }

    /// Removes an exchange, its bindings, and auto-delete exchanges that thereby lose their last binding.
    fn remove_exchange(&mut self, vhost: &str, name: &str) {
        let mut pending: Vec<Name> = vec![name.into()];
        while let Some(name) = pending.pop() {
            let Some(found_vhost) = self.vhosts.get_mut(vhost) else {
                return;
            };
            let Some(exchange) = found_vhost.exchanges.remove(&name) else {
                continue;
            };
            found_vhost.alternates -= usize::from(exchange.alternate.is_some());
            self.exchange_names.remove(&exchange.number);
            for key in exchange.bindings.into_keys() {
                let target = key.target;
                let bound = IncomingBinding {
                    source: name.clone(),
                    key,
                };
                if let Some(set) = self.incoming_bindings_mut(target) {
                    set.remove(&bound);
                }
            }
            for bound in exchange.bound {
                if self.remove_from_source(vhost, &bound) {
                    pending.push(bound.source);
                }
            }
        }
    }

    /// Removes bindings whose destination was removed, and auto-delete exchanges that have no binding left.
    pub(crate) fn remove_incoming_bindings(
        &mut self,
        vhost: &str,
        bound: BTreeSet<IncomingBinding>,
    ) {
        for bound in bound {
            if self.remove_from_source(vhost, &bound) {
                self.remove_exchange(vhost, &bound.source);
            }
        }
    }

    /// Removes a binding from its source. Returns true if the source is auto-delete and this was its last binding.
    fn remove_from_source(&mut self, vhost: &str, bound: &IncomingBinding) -> bool {
        let Some(source) = self
            .vhosts
            .get_mut(vhost)
            .and_then(|v| v.exchanges.get_mut(&bound.source))
        else {
            return false;
        };
        let Some(record) = source.bindings.remove(&bound.key) else {
            return false;
        };
        let (Destination::Queue(name) | Destination::Exchange(name)) = &record.destination;
        source.matcher.remove(
            &record.routing_key,
            &record.arguments,
            bound.key.target,
            name,
        );
        source.record.auto_delete && source.bindings.is_empty()
    }

    fn incoming_bindings_mut(
        &mut self,
        target: BindingTarget,
    ) -> Option<&mut BTreeSet<IncomingBinding>> {
        match target {
            BindingTarget::Queue(id) => self.queues.get_mut(&id).map(|q| &mut q.bound),
            BindingTarget::Exchange(number) => {
                let (vhost, name) = self.exchange_names.get(&number)?;
                let exchange = self.vhosts.get_mut(vhost)?.exchanges.get_mut(name)?;
                Some(&mut exchange.bound)
            }
        }
    }

    /// The destination of a binding. `None`: its destination or vhost does not exist.
    fn target_of(&self, binding: &BindingRecord) -> Option<BindingTarget> {
        let vhost = self.vhosts.get(&binding.vhost)?;
        match &binding.destination {
            Destination::Queue(name) => vhost.queues.get(name).copied().map(BindingTarget::Queue),
            Destination::Exchange(name) => {
                let exchange = vhost.exchanges.get(name)?;
                Some(BindingTarget::Exchange(exchange.number))
            }
        }
    }

    fn incoming_binding(target: BindingTarget, binding: &BindingRecord) -> IncomingBinding {
        IncomingBinding {
            source: binding.source.clone(),
            key: BindingKey {
                target,
                routing_key: binding.routing_key.clone(),
                arguments: canonical(&binding.arguments),
            },
        }
    }

    fn check_binding(&self, binding: &BindingRecord) -> Result<(), ChangeError> {
        if binding.source.is_empty() || binding.destination == Destination::Exchange("".into()) {
            return Err(default_exchange_refused());
        }
        if binding.routing_key.len() > limits::NAME_BYTES {
            return Err(ChangeError::Invalid("the routing key is too long".into()));
        }
        Ok(())
    }

    pub(crate) fn bind(&mut self, binding: &BindingRecord) -> Result<ChangeResult, ChangeError> {
        self.check_binding(binding)?;
        let vhost = &binding.vhost;
        if !self.vhost_exists(vhost) {
            return Err(no_vhost(vhost));
        }
        let source = self
            .find_exchange(vhost, &binding.source)
            .ok_or_else(|| no_exchange(vhost, &binding.source))?;
        let resource = ResourceName::exchange(vhost, &binding.source);
        check_table(&resource, &binding.arguments)?;
        let selecting_type = source
            .kind
            .selecting_type(&source.record.arguments)
            .unwrap_or(source.kind);
        selecting_type
            .check_binding(&binding.routing_key, &binding.arguments)
            .map_err(|e| ChangeError::PreconditionFailed(e.to_string()))?;
        let Some(target) = self.target_of(binding) else {
            return Err(match &binding.destination {
                Destination::Queue(name) => no_queue(vhost, name),
                Destination::Exchange(name) => no_exchange(vhost, name),
            });
        };
        if source.kind == ExchangeType::LocalRandom {
            self.check_local(target)?;
        }
        self.check_delays(source, target)?;
        if source
            .bindings
            .contains_key(&Tree::incoming_binding(target, binding).key)
        {
            return Ok(ChangeResult::Unchanged);
        }
        self.insert_binding(binding.clone());
        Ok(ChangeResult::Changed)
    }

    /// Refuses bindings through which a message would be delivered before its time: to a queue that does not hold messages
    /// back, and from another exchange, because the exchange to which a message is published reads its delay.
    fn check_delays(&self, source: &Exchange, target: BindingTarget) -> Result<(), ChangeError> {
        let delayed = ExchangeType::DelayedMessage;
        let refuse = |reason: String| Err(ChangeError::PreconditionFailed(reason));
        match target {
            BindingTarget::Queue(id) if source.kind == delayed => {
                let queue = self.queue_by_id(id);
                match queue.filter(|queue| !queue.kind.descriptor().scheduled_delivery) {
                    Some(queue) => refuse(format!(
                        "queue '{}' in vhost '{}' of type {} delivers messages at once and cannot be bound to an exchange of \
                         type {}: declare it with x-queue-type=quorum",
                        queue.name,
                        queue.vhost,
                        queue.kind.name(),
                        delayed.name()
                    )),
                    None => Ok(()),
                }
            }
            BindingTarget::Queue(_) => Ok(()),
            BindingTarget::Exchange(number) => {
                let Some((vhost, name)) = self.exchange_names.get(&number) else {
                    return Ok(());
                };
                let target = self.find_exchange(vhost, name);
                match target.is_some_and(|target| target.kind == delayed) {
                    true => refuse(format!(
                        "exchange '{name}' in vhost '{vhost}' of type {} cannot be the destination of a binding: publish to \
                         it, because it reads the delay of messages that are published to it",
                        delayed.name()
                    )),
                    false => Ok(()),
                }
            }
        }
    }

    /// Refuses a destination that cannot be local to a node.
    fn check_local(&self, target: BindingTarget) -> Result<(), ChangeError> {
        let refuse = |reason: &str| Err(ChangeError::PreconditionFailed(reason.into()));
        match target {
            BindingTarget::Exchange(_) => refuse("Destination not found"),
            BindingTarget::Queue(id) => match self.queue_by_id(id).map(|q| q.kind.descriptor()) {
                Some(kind) if !kind.local => refuse(&format!(
                    "Queue type {} not valid for this exchange type",
                    kind.module
                )),
                _ => Ok(()),
            },
        }
    }

    /// Returns false if source or destination does not exist.
    pub(crate) fn insert_binding(&mut self, mut binding: BindingRecord) -> bool {
        let Some(target) = self.target_of(&binding) else {
            return false;
        };
        let mut bound = Tree::incoming_binding(target, &binding);
        let Some(source) = self
            .vhosts
            .get_mut(&binding.vhost)
            .and_then(|v| v.exchanges.get_mut(&binding.source))
        else {
            return false;
        };
        // Thousands of bindings share one copy of these names.
        binding.vhost = source.record.vhost.clone();
        binding.source = source.record.name.clone();
        bound.source = source.record.name.clone();
        let (Destination::Queue(name) | Destination::Exchange(name)) = &binding.destination;
        source
            .matcher
            .add(&binding.routing_key, &binding.arguments, target, name);
        source.bindings.insert(bound.key.clone(), Arc::new(binding));
        if let Some(set) = self.incoming_bindings_mut(target) {
            set.insert(bound);
        }
        true
    }

    pub(crate) fn unbind(&mut self, binding: &BindingRecord) -> Result<ChangeResult, ChangeError> {
        self.check_binding(binding)?;
        let Some(target) = self.target_of(binding) else {
            return Ok(ChangeResult::Unchanged);
        };
        let bound = Tree::incoming_binding(target, binding);
        let is_bound = self
            .find_exchange(&binding.vhost, &binding.source)
            .is_some_and(|x| x.bindings.contains_key(&bound.key));
        if !is_bound {
            return Ok(ChangeResult::Unchanged);
        }
        if let Some(set) = self.incoming_bindings_mut(target) {
            set.remove(&bound);
        }
        if self.remove_from_source(&binding.vhost, &bound) {
            self.remove_exchange(&binding.vhost, &binding.source);
        }
        Ok(ChangeResult::Changed)
    }
}
