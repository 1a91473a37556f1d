//! Creation and removal of bindings.

use crate::access::{Caller, Resource};
use crate::error::OperationResult;
use crate::exchanges::refuse_default;
use metadata::{BindingRecord, Change, Destination, Right};

/// Creation or removal of a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingOperation {
    /// Creates the binding, unless it exists.
    Bind,
    /// Removes the binding, if it exists.
    Unbind,
}

impl Caller<'_> {
    /// Plans the creation or removal of a binding. The metadata change checks that source and destination exist.
    pub fn plan_binding(
        &self,
        operation: BindingOperation,
        binding: BindingRecord,
    ) -> OperationResult<Change> {
        match &binding.destination {
            Destination::Queue(name) => self.check(Right::Write, Resource::Queue(name))?,
            Destination::Exchange(name) => {
                self.check(Right::Write, Resource::Exchange(name))?;
                refuse_default(name)?;
            }
        }
        refuse_default(&binding.source)?;
        self.check(Right::Read, Resource::Exchange(&binding.source))?;
        if let Some(source) = self.exchange(&binding.source) {
            self.check_topic(Right::Read, source, &binding.routing_key)?;
        }
        if let Destination::Queue(name) = &binding.destination
            && let Some(queue) = self.queue(name)
            && let Err(locked) = self.check_exclusive(queue)
        {
            // Removing a binding that does not exist always succeeds.
            let bindings = || self.tree.bindings_of_queue(queue.id);
            if operation == BindingOperation::Bind || bindings().iter().any(|b| ***b == binding) {
                return Err(locked);
            }
        }
        Ok(match operation {
            BindingOperation::Bind => Change::Bind(binding),
            BindingOperation::Unbind => Change::Unbind(binding),
        })
    }
}
