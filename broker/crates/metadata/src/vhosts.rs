//! Settings of vhosts: default queue type, limits, protection from deletion, tracing.

use crate::apply::no_vhost;
use crate::subject_limits::{LimitHolder, find_limit};
use crate::tree::VhostRecord;
use crate::{ChangeError, ChangeResult, Name, QueueType, Tree};
use message::{Table, Value};
use std::sync::Arc;

impl VhostRecord {
    /// A limit of the vhost. `None`: no limit, which is also the meaning of a negative value.
    pub fn limit(&self, name: &str) -> Option<u64> {
        find_limit(&self.limits, name)
    }
}

impl Tree {
    /// Adds the vhost's default queue type to the arguments of a declaration without a type. A queue that is
    /// non-durable, exclusive or auto-delete only gets it if the type allows such queues.
    pub fn with_default_type(
        &self,
        vhost: &str,
        is_persistent: bool,
        mut arguments: Table,
    ) -> Table {
        let kind = self.vhost(vhost).and_then(|v| v.default_queue_type);
        let Some(kind) = kind.filter(|k| is_persistent || k.descriptor().transient) else {
            return arguments;
        };
        if kind != QueueType::default() && arguments.get("x-queue-type").is_none() {
            arguments.set("x-queue-type", Value::from(kind.name()));
        }
        arguments
    }

    pub(crate) fn check_queue_limit(&self, vhost: &str, name: &str) -> Result<(), ChangeError> {
        let Some(found) = self.vhosts.get(vhost) else {
            return Err(no_vhost(vhost));
        };
        match found.record.limit("max-queues") {
            Some(limit) if found.queues.len() as u64 >= limit => {
                Err(ChangeError::PreconditionFailed(format!(
                    "cannot declare queue '{name}': queue limit in vhost '{vhost}' ({limit}) is reached"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Changes a vhost's record. The result is `Unchanged` if the record is equal afterwards.
    fn change_vhost(
        &mut self,
        vhost: &Name,
        change: impl FnOnce(&mut VhostRecord),
    ) -> Result<ChangeResult, ChangeError> {
        let found = self.vhosts.get_mut(vhost).ok_or_else(|| no_vhost(vhost))?;
        let mut record = (*found.record).clone();
        change(&mut record);
        if record == *found.record {
            return Ok(ChangeResult::Unchanged);
        }
        found.record = Arc::new(record);
        Ok(ChangeResult::Changed)
    }

    pub(crate) fn set_default_queue_type(
        &mut self,
        vhost: &Name,
        kind: Option<QueueType>,
    ) -> Result<ChangeResult, ChangeError> {
        self.change_vhost(vhost, |v| v.default_queue_type = kind)
    }

    pub(crate) fn protect_vhost(
        &mut self,
        vhost: &Name,
        on: bool,
    ) -> Result<ChangeResult, ChangeError> {
        self.change_vhost(vhost, |v| v.protected = on)
    }

    pub(crate) fn trace_vhost(
        &mut self,
        vhost: &Name,
        on: bool,
    ) -> Result<ChangeResult, ChangeError> {
        let result = self.change_vhost(vhost, |v| v.traced = on);
        self.update_traces();
        result
    }

    /// Lets sessions report all messages, whether their vhost is traced or not.
    pub fn trace_all(&mut self) {
        self.traces_all = true;
        self.update_traces();
    }

    /// Whether sessions report messages: any vhost is traced, or [`Tree::trace_all`] was called. Called for every message.
    pub fn traces(&self) -> bool {
        self.traces
    }

    pub(crate) fn update_traces(&mut self) {
        self.traces = self.traces_all || self.vhosts.values().any(|v| v.record.traced);
    }

    pub(crate) fn set_vhost_limit(
        &mut self,
        vhost: &Name,
        limit: &Name,
        value: Option<i64>,
    ) -> Result<ChangeResult, ChangeError> {
        self.check_limit(LimitHolder::Vhost(vhost), limit, value)?;
        self.change_vhost(vhost, |v| {
            v.limits.retain(|(l, _)| l != limit);
            v.limits.extend(value.map(|n| (limit.clone(), n)));
            v.limits.sort();
        })
    }
}
