//! Exchanges and bindings.

use crate::apply::{check_name, no_exchange, no_queue, no_vhost};
use crate::arguments::check_table;
use crate::codec::canonical;
use crate::equivalence::{ResourceName, check_exchange};
use crate::policies::EffectivePolicy;
use crate::traffic::TrafficCounter;
use crate::{
    BindingRecord, ChangeError, ChangeResult, Destination, ExchangeRecord, Name, QueueId, Tree,
    limits,
};
use bytes::Bytes;
use message::Value;
use routing::{Bindings, Kind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Where a binding leads, as routing sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Target {
    Queue(QueueId),
    /// [`Exchange::number`].
    Exchange(u64),
}

/// A binding's identity within its source: destination, key and arguments.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BindingKey {
    pub(crate) target: Target,
    pub(crate) routing_key: Name,
    /// In canonical form.
    pub(crate) arguments: Bytes,
}

/// A binding seen from its destination.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bound {
    pub(crate) source: Name,
    pub(crate) key: BindingKey,
}

#[derive(Clone, Debug)]
pub(crate) struct Exchange {
    pub(crate) record: Arc<ExchangeRecord>,
    /// This tree's own number for it.
    pub(crate) number: u64,
    pub(crate) kind: Kind,
    pub(crate) matcher: Bindings<Target>,
    pub(crate) bindings: BTreeMap<BindingKey, Arc<BindingRecord>>,
    /// Bindings that end here.
    pub(crate) bound: BTreeSet<Bound>,
    pub(crate) effective: Arc<EffectivePolicy>,
    /// Alternate exchange of its argument or else of its policy.
    pub(crate) alternate: Option<Name>,
    pub(crate) counter: TrafficCounter,
}

impl Exchange {
    pub(crate) fn set_effective(&mut self, effective: Arc<EffectivePolicy>) {
        let name = |v: Option<&Value>| v.and_then(Value::as_str).map(Name::from);
        // Queues are not bound to the default exchange: as an alternate it takes nothing, as in RabbitMQ.
        self.alternate = name(self.record.arguments.get("alternate-exchange"))
            .or_else(|| name(effective.definition.get("alternate-exchange")))
            .filter(|alternate| !alternate.is_empty());
        self.effective = effective;
    }
}

fn on_default() -> ChangeError {
    ChangeError::AccessRefused("operation not permitted on the default exchange".into())
}

impl Tree {
    pub(crate) fn declare_exchange(
        &mut self,
        wanted: &ExchangeRecord,
    ) -> Result<ChangeResult, ChangeError> {
        let Some(kind) = Kind::from_name(&wanted.kind) else {
            return Err(ChangeError::PreconditionFailed(format!(
                "unknown exchange type '{}'",
                wanted.kind
            )));
        };
        if !self.vhost_exists(&wanted.vhost) {
            return Err(no_vhost(&wanted.vhost));
        }
        if wanted.name.is_empty() {
            return Err(on_default());
        }
        if let Some(there) = self.exchange(&wanted.vhost, &wanted.name) {
            check_exchange(there, wanted)?;
            return Ok(ChangeResult::AsBefore);
        }
        check_name("exchange", &wanted.name)?;
        let thing = ResourceName::exchange(&wanted.vhost, &wanted.name);
        check_table(&thing, &wanted.arguments)?;
        wanted.alternate()?;
        kind.check_exchange(&wanted.arguments)
            .map_err(|e| ChangeError::PreconditionFailed(e.to_string()))?;
        self.insert_exchange(wanted.clone());
        Ok(ChangeResult::Changed)
    }

    /// False when its type or its vhost is not known.
    pub(crate) fn insert_exchange(&mut self, mut record: ExchangeRecord) -> bool {
        let Some(kind) = Kind::from_name(&record.kind) else {
            return false;
        };
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
        vhost.alternates += usize::from(exchange.alternate.is_some());
        let before = vhost.exchanges.insert(names.1.clone(), exchange);
        vhost.alternates -= before.map_or(0, |e| usize::from(e.alternate.is_some()));
        self.exchange_names.insert(number, names);
        true
    }

    pub(crate) fn delete_exchange(
        &mut self,
        vhost: &Name,
        name: &Name,
        if_unused: bool,
    ) -> Result<ChangeResult, ChangeError> {
        if name.is_empty() {
            return Err(on_default());
        }
        let Some(exchange) = self.find_exchange(vhost, name) else {
            return Ok(ChangeResult::AsBefore);
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

    /// Removes an exchange, its bindings, and auto-delete exchanges that lose their last binding by it.
    fn remove_exchange(&mut self, vhost: &str, name: &str) {
        let mut doomed: Vec<Name> = vec![name.into()];
        while let Some(name) = doomed.pop() {
            let Some(there) = self.vhosts.get_mut(vhost) else {
                return;
            };
            let Some(exchange) = there.exchanges.remove(&name) else {
                continue;
            };
            there.alternates -= usize::from(exchange.alternate.is_some());
            self.exchange_names.remove(&exchange.number);
            for key in exchange.bindings.into_keys() {
                let target = key.target;
                let bound = Bound {
                    source: name.clone(),
                    key,
                };
                if let Some(set) = self.bound_of(target) {
                    set.remove(&bound);
                }
            }
            for bound in exchange.bound {
                if self.remove_from_source(vhost, &bound) {
                    doomed.push(bound.source);
                }
            }
        }
    }

    /// Removes bindings that end at something that is gone, and auto-delete exchanges without bindings then.
    pub(crate) fn remove_bound(&mut self, vhost: &str, bound: BTreeSet<Bound>) {
        for bound in bound {
            if self.remove_from_source(vhost, &bound) {
                self.remove_exchange(vhost, &bound.source);
            }
        }
    }

    /// Takes a binding out of its source. True when the source is auto-delete and that was its last one.
    fn remove_from_source(&mut self, vhost: &str, bound: &Bound) -> bool {
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
        source
            .matcher
            .remove(&record.routing_key, &record.arguments, bound.key.target);
        source.record.auto_delete && source.bindings.is_empty()
    }

    fn bound_of(&mut self, target: Target) -> Option<&mut BTreeSet<Bound>> {
        match target {
            Target::Queue(id) => self.queues.get_mut(&id).map(|q| &mut q.bound),
            Target::Exchange(number) => {
                let (vhost, name) = self.exchange_names.get(&number)?;
                let exchange = self.vhosts.get_mut(vhost)?.exchanges.get_mut(name)?;
                Some(&mut exchange.bound)
            }
        }
    }

    /// Where a binding leads; None when its source, destination or vhost is not there.
    fn target(&self, binding: &BindingRecord) -> Option<Target> {
        let vhost = self.vhosts.get(&binding.vhost)?;
        match &binding.destination {
            Destination::Queue(name) => vhost.queues.get(name).copied().map(Target::Queue),
            Destination::Exchange(name) => {
                let exchange = vhost.exchanges.get(name)?;
                Some(Target::Exchange(exchange.number))
            }
        }
    }

    fn bound(target: Target, binding: &BindingRecord) -> Bound {
        Bound {
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
            return Err(on_default());
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
        let thing = ResourceName::exchange(vhost, &binding.source);
        check_table(&thing, &binding.arguments)?;
        source
            .kind
            .check_binding(&binding.routing_key, &binding.arguments)
            .map_err(|e| ChangeError::PreconditionFailed(e.to_string()))?;
        let Some(target) = self.target(binding) else {
            return Err(match &binding.destination {
                Destination::Queue(name) => no_queue(vhost, name),
                Destination::Exchange(name) => no_exchange(vhost, name),
            });
        };
        if source.kind == Kind::LocalRandom {
            self.check_local(target)?;
        }
        if source
            .bindings
            .contains_key(&Tree::bound(target, binding).key)
        {
            return Ok(ChangeResult::AsBefore);
        }
        self.insert_binding(binding.clone());
        Ok(ChangeResult::Changed)
    }

    /// Refuses a target that cannot be local to a node.
    fn check_local(&self, target: Target) -> Result<(), ChangeError> {
        let refuse = |why: &str| Err(ChangeError::PreconditionFailed(why.into()));
        match target {
            Target::Exchange(_) => refuse("Destination not found"),
            Target::Queue(id) => match self.queue_by_id(id).map(|q| q.kind.descriptor()) {
                Some(kind) if !kind.local => refuse(&format!(
                    "Queue type {} not valid for this exchange type",
                    kind.module
                )),
                _ => Ok(()),
            },
        }
    }

    /// False when source or destination is not there.
    pub(crate) fn insert_binding(&mut self, mut binding: BindingRecord) -> bool {
        let Some(target) = self.target(&binding) else {
            return false;
        };
        let mut bound = Tree::bound(target, &binding);
        let Some(source) = self
            .vhosts
            .get_mut(&binding.vhost)
            .and_then(|v| v.exchanges.get_mut(&binding.source))
        else {
            return false;
        };
        // One copy of the names that thousands of bindings share.
        binding.vhost = source.record.vhost.clone();
        binding.source = source.record.name.clone();
        bound.source = source.record.name.clone();
        let (Destination::Queue(name) | Destination::Exchange(name)) = &binding.destination;
        source
            .matcher
            .add(&binding.routing_key, &binding.arguments, target, name);
        source.bindings.insert(bound.key.clone(), Arc::new(binding));
        if let Some(set) = self.bound_of(target) {
            set.insert(bound);
        }
        true
    }

    pub(crate) fn unbind(&mut self, binding: &BindingRecord) -> Result<ChangeResult, ChangeError> {
        self.check_binding(binding)?;
        let Some(target) = self.target(binding) else {
            return Ok(ChangeResult::AsBefore);
        };
        let bound = Tree::bound(target, binding);
        let there = self
            .find_exchange(&binding.vhost, &binding.source)
            .is_some_and(|x| x.bindings.contains_key(&bound.key));
        if !there {
            return Ok(ChangeResult::AsBefore);
        }
        if let Some(set) = self.bound_of(target) {
            set.remove(&bound);
        }
        if self.remove_from_source(&binding.vhost, &bound) {
            self.remove_exchange(&binding.vhost, &binding.source);
        }
        Ok(ChangeResult::Changed)
    }
}
