//! Declaration and deletion of exchanges.

use crate::access::{Caller, Resource};
use crate::error::{OperationError, OperationResult, refuse};
use metadata::{Change, ExchangeRecord, Right};

/// The remaining work of a declaration or deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum ExchangePlan {
    /// The exchange already is as requested.
    Done,
    /// The change to propose.
    Propose(Change),
}

impl Caller<'_> {
    /// Checks that an exchange exists (`passive` of AMQP 0.9.1).
    pub fn check_exchange_exists(&self, name: &str) -> OperationResult {
        refuse_default(name)?;
        match self.exchange(name) {
            Some(_) => Ok(()),
            None => Err(OperationError::missing("exchange", name, self.vhost)),
        }
    }

    /// Plans the declaration of an exchange.
    pub fn plan_exchange_declaration(
        &self,
        record: ExchangeRecord,
    ) -> OperationResult<ExchangePlan> {
        check_kind(&record.kind)?;
        refuse_default(&record.name)?;
        self.check(Right::Configure, Resource::Exchange(&record.name))?;
        match self.exchange(&record.name) {
            // An identical declaration needs no log entry.
            Some(existing) if *existing == record => return Ok(ExchangePlan::Done),
            Some(_) => {}
            None => {
                refuse_reserved("exchange", &record.name)?;
                if let Some(alternate) = record.alternate()? {
                    self.check(Right::Read, Resource::Exchange(&record.name))?;
                    self.check(Right::Write, Resource::Exchange(alternate))?;
                }
            }
        }
        Ok(ExchangePlan::Propose(Change::DeclareExchange(record)))
    }

    /// Plans the deletion of an exchange. Deleting one that does not exist succeeds in AMQP.
    pub fn plan_exchange_deletion(&self, name: &str, if_unused: bool) -> OperationResult<Change> {
        refuse_default(name)?;
        if name.starts_with(RESERVED_PREFIX) {
            refuse!(
                AccessRefused,
                "deletion of system exchange '{name}' in vhost '{}' not allowed",
                self.vhost
            );
        }
        self.check(Right::Configure, Resource::Exchange(name))?;
        Ok(Change::DeleteExchange {
            vhost: self.vhost.clone(),
            name: name.into(),
            if_unused,
        })
    }
}

/// Prefix of names that only the broker may create.
const RESERVED_PREFIX: &str = "amq.";

/// Unknown exchange types fail with the text of RabbitMQ since 3.13.
fn check_kind(kind: &str) -> OperationResult {
    match routing::ExchangeType::from_name(kind) {
        Some(_) => Ok(()),
        None if kind.is_empty() => refuse!(PreconditionFailed, "invalid exchange type ''"),
        // RabbitMQ says "invalid" instead for types that exist as Erlang atoms, such as "foo".
        None => refuse!(PreconditionFailed, "unknown exchange type '{kind}'"),
    }
}

pub(crate) fn refuse_default(exchange: &str) -> OperationResult {
    if exchange.is_empty() {
        refuse!(
            AccessRefused,
            "operation not permitted on the default exchange"
        );
    }
    Ok(())
}

pub(crate) fn refuse_reserved(object: &str, name: &str) -> OperationResult {
    if name.starts_with(RESERVED_PREFIX) {
        refuse!(
            AccessRefused,
            "{object} name '{name}' contains reserved prefix 'amq.*'"
        );
    }
    Ok(())
}
