//! Policies and operator policies: which of them apply to an object, and the settings that they combine to.

use crate::apply::{check_name, no_vhost};
use crate::arguments::check_table;
use crate::equivalence::ResourceName;
use crate::policy_keys::{check_definition, is_applicable, merge};
use crate::tree::{TreeEvent, Vhost};
use crate::{
    ApplyTo, ChangeError, ChangeResult, ExchangeRecord, Name, PolicyRecord, PolicyScope, QueueId,
    QueueRecord, QueueType, Tree,
};
use auth::Pattern;
use message::Table;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The policies that apply to one queue or exchange, combined.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EffectivePolicy {
    /// Name of the matching user policy with the highest priority.
    pub name: Option<Name>,
    /// Name of the matching operator policy with the highest priority.
    pub operator_name: Option<Name>,
    /// Both definitions merged. Where both set a limit, the operator policy bounds it.
    pub definition: Table,
}

#[derive(Clone, Debug)]
pub(crate) struct Policy {
    pub(crate) record: Arc<PolicyRecord>,
    /// `None`: an older or newer version accepted the pattern and this one does not compile it. The policy matches
    /// nothing.
    pattern: Option<Pattern>,
}

/// An object that policies are matched against.
#[derive(Clone, Copy)]
enum PolicySubject<'a> {
    Queue(QueueType, &'a str),
    Exchange(&'a str),
}

impl Policy {
    fn matches(&self, subject: PolicySubject<'_>) -> bool {
        let to = self.record.apply_to;
        let (is_target, name) = match subject {
            PolicySubject::Exchange(name) => {
                (matches!(to, ApplyTo::All | ApplyTo::Exchanges), name)
            }
            PolicySubject::Queue(kind, name) => {
                let target = kind.descriptor().policy_target;
                let is_target = matches!(to, ApplyTo::All | ApplyTo::Queues) || to.name() == target;
                (
                    is_target && is_applicable(&self.record.definition, kind),
                    name,
                )
            }
        };
        is_target && self.pattern.as_ref().is_some_and(|p| p.matches(name))
    }
}

impl Vhost {
    pub(crate) fn effective_of_queue(
        &mut self,
        kind: QueueType,
        name: &str,
    ) -> Arc<EffectivePolicy> {
        self.effective_of(PolicySubject::Queue(kind, name))
    }

    pub(crate) fn effective_of_exchange(&mut self, name: &str) -> Arc<EffectivePolicy> {
        self.effective_of(PolicySubject::Exchange(name))
    }

    /// The matching policy of a scope with the highest priority. Of policies with equal priority, the first by name.
    fn best_policy(&self, scope: PolicyScope, subject: PolicySubject<'_>) -> Option<&Policy> {
        let mut best: Option<&Policy> = None;
        for policy in self.policies.values().filter(|p| p.record.scope == scope) {
            let better = best.is_none_or(|b| policy.record.priority > b.record.priority);
            if better && policy.matches(subject) {
                best = Some(policy);
            }
        }
        best
    }

    fn effective_of(&mut self, subject: PolicySubject<'_>) -> Arc<EffectivePolicy> {
        let user = self
            .best_policy(PolicyScope::User, subject)
            .map(|p| &p.record);
        let operator = self
            .best_policy(PolicyScope::Operator, subject)
            .map(|p| &p.record);
        let names = (
            user.map(|p| p.name.clone()),
            operator.map(|p| p.name.clone()),
        );
        if let Some(known) = self.effective.get(&names) {
            return known.clone();
        }
        let definition = merge(user.map(|p| &p.definition), operator.map(|p| &p.definition));
        let combined = Arc::new(EffectivePolicy {
            name: names.0.clone(),
            operator_name: names.1.clone(),
            definition,
        });
        self.effective.insert(names, combined.clone());
        combined
    }
}

impl Tree {
    /// The policy that applies to a queue.
    pub fn effective_policy(&self, queue: &QueueRecord) -> Arc<EffectivePolicy> {
        self.queues
            .get(&queue.id)
            .map(|q| q.effective.clone())
            .unwrap_or_default()
    }

    /// The definition that applies to a queue, or would apply to one that is being declared.
    pub(crate) fn policy_for(&self, queue: &QueueRecord) -> Table {
        if self.queues.contains_key(&queue.id) {
            return self.effective_policy(queue).definition.clone();
        }
        let Some(vhost) = self.vhosts.get(&queue.vhost) else {
            return Table::default();
        };
        let subject = PolicySubject::Queue(queue.kind, &queue.name);
        let best_policy = |scope| {
            vhost
                .best_policy(scope, subject)
                .map(|p| &p.record.definition)
        };
        merge(
            best_policy(PolicyScope::User),
            best_policy(PolicyScope::Operator),
        )
    }

    /// The policy that applies to an exchange.
    pub fn effective_exchange_policy(&self, exchange: &ExchangeRecord) -> Arc<EffectivePolicy> {
        self.find_exchange(&exchange.vhost, &exchange.name)
            .map(|x| x.effective.clone())
            .unwrap_or_default()
    }

    /// Whether this policy matches this queue, even if another policy has precedence.
    pub fn policy_matches(&self, policy: &PolicyRecord, queue: &QueueRecord) -> bool {
        let found = self
            .vhosts
            .get(&policy.vhost)
            .and_then(|v| v.policies.get(&(policy.scope, policy.name.clone())));
        policy.vhost == queue.vhost
            && found.is_some_and(|p| p.matches(PolicySubject::Queue(queue.kind, &queue.name)))
    }

    pub(crate) fn put_policy(
        &mut self,
        policy: &PolicyRecord,
    ) -> Result<ChangeResult, ChangeError> {
        check_name("policy", &policy.name)?;
        let Some(vhost) = self.vhosts.get(&policy.vhost) else {
            return Err(no_vhost(&policy.vhost));
        };
        Pattern::compile(&policy.pattern).map_err(|e| {
            ChangeError::Invalid(format!(
                "Validation failed\n\npattern should be regular expression but is invalid: {e}\n"
            ))
        })?;
        let resource = ResourceName::policy(&policy.vhost, &policy.name);
        check_table(&resource, &policy.definition)
            .map_err(|e| ChangeError::Invalid(e.to_string()))?;
        check_definition(self, policy.scope, &policy.definition)?;
        let key = (policy.scope, policy.name.clone());
        let existing = vhost.policies.get(&key);
        if existing.is_some_and(|old| *old.record == *policy) {
            return Ok(ChangeResult::Unchanged);
        }
        self.insert_policy(policy.clone());
        self.update_effective_policies(&policy.vhost);
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn insert_policy(&mut self, record: PolicyRecord) {
        let Some(vhost) = self.vhosts.get_mut(&record.vhost) else {
            return;
        };
        let key = (record.scope, record.name.clone());
        let policy = Policy {
            pattern: Pattern::compile(&record.pattern).ok(),
            record: Arc::new(record),
        };
        vhost.policies.insert(key, policy);
        vhost.effective.clear();
    }

    pub(crate) fn delete_policy(
        &mut self,
        vhost: &Name,
        name: &Name,
        scope: PolicyScope,
    ) -> Result<ChangeResult, ChangeError> {
        let key = (scope, name.clone());
        let found = self.vhosts.get_mut(vhost);
        if found.and_then(|v| v.policies.remove(&key)).is_none() {
            return Ok(ChangeResult::Unchanged);
        }
        self.update_effective_policies(vhost);
        Ok(ChangeResult::Changed)
    }

    /// Updates the effective policies of all queues and exchanges of a vhost.
    fn update_effective_policies(&mut self, name: &str) {
        let Some(vhost) = self.vhosts.get_mut(name) else {
            return;
        };
        vhost.effective = BTreeMap::new();
        let exchanges: Vec<Name> = vhost.exchanges.keys().cloned().collect();
        for name in exchanges {
            let effective = vhost.effective_of_exchange(&name);
            if let Some(exchange) = vhost.exchanges.get_mut(&name) {
                exchange.set_effective(effective);
            }
        }
        let exchanges = vhost.exchanges.values();
        vhost.alternates = exchanges.filter(|e| e.alternate.is_some()).count();
        let mut ids: Vec<QueueId> = vhost.queues.values().copied().collect();
        ids.sort_unstable();
        let mut changed = Vec::new();
        for id in ids {
            let Some(queue) = self.queues.get_mut(&id) else {
                continue;
            };
            let effective = vhost.effective_of_queue(queue.record.kind, &queue.record.name);
            if queue.effective != effective {
                changed.push(id);
            }
            queue.effective = effective;
        }
        if !changed.is_empty() {
            self.events.push(TreeEvent::PolicyChanged(changed));
        }
    }
}
