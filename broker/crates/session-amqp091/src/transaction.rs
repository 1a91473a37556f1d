//! Transactions (class tx): publishes and settlements are kept until commit.
//!
//! As in RabbitMQ: commit-ok says that every queue has its messages; there is no atomicity over several queues.

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::failure::{Failure, MethodResult, ReplyCode, refuse};
use crate::method_failure::MethodFailure;
use crate::publish::{count_traffic, dispatch};
use crate::unacked::UnackedDelivery;
use crate::wait::WaitReason;
use codec_amqp091::Method;
use message::Message;
use metadata::QueueId;

/// What a channel has done since tx.select or the last commit or rollback.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    messages: Vec<PendingOperation>,
    settlements: Vec<(UnackedDelivery, queue::SettlementOutcome)>,
    consumed: usize,
    octets: usize,
    /// A queue refused a message.
    pub failed: bool,
}

#[derive(Debug)]
struct PendingOperation {
    message: Message,
    routes: Vec<QueueId>,
    mandatory: bool,
}

impl Transaction {
    pub fn publish(
        &mut self,
        message: Message,
        routes: Vec<QueueId>,
        mandatory: bool,
        link: &ConnectionState,
    ) -> MethodResult {
        let queues = routes.len() * size_of::<QueueId>();
        self.grow(
            message.as_bytes().len() + queues + size_of::<PendingOperation>(),
            link,
        )?;
        self.messages.push(PendingOperation {
            message,
            routes,
            mandatory,
        });
        Ok(())
    }

    pub fn settle(
        &mut self,
        owed: UnackedDelivery,
        outcome: queue::SettlementOutcome,
        link: &ConnectionState,
    ) -> MethodResult {
        self.consumed += usize::from(!owed.got);
        self.settlements.push((owed, outcome));
        self.grow(
            size_of::<(UnackedDelivery, queue::SettlementOutcome)>(),
            link,
        )
    }

    fn grow(&mut self, octets: usize, link: &ConnectionState) -> MethodResult {
        self.octets += octets;
        if self.octets > link.limits.transaction {
            refuse!(
                PreconditionFailed,
                "the transaction exceeds {} octets, commit it in parts",
                link.limits.transaction
            );
        }
        Ok(())
    }

    /// Deliveries to consumers among the settlements.
    pub fn consumed(&self) -> usize {
        self.consumed
    }

    /// Octets of them.
    pub fn octets(&self) -> usize {
        self.octets
    }

    /// Messages and settlements that wait for the commit.
    pub fn uncommitted(&self) -> (usize, usize) {
        (self.messages.len(), self.settlements.len())
    }

    /// The channel ends: what was to be settled is not.
    pub fn abandon(self) -> impl Iterator<Item = UnackedDelivery> {
        self.settlements.into_iter().map(|(owed, _)| owed)
    }
}

impl Channel {
    pub(crate) fn transaction_method(
        &mut self,
        method: Method<'_>,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        if matches!(method, Method::TxSelect {}) {
            if self.confirm_base.is_some() {
                refuse!(PreconditionFailed, "cannot switch from confirm to tx mode");
            }
            self.transaction.get_or_insert_default();
            link.channels_hold = true;
            cx.send(self.number, &Method::TxSelectOk {});
            return Ok(());
        }
        let Some(transaction) = &mut self.transaction else {
            refuse!(PreconditionFailed, "channel is not transactional");
        };
        let done = std::mem::take(&mut **transaction);
        if matches!(method, Method::TxRollback {}) {
            self.unacked.restore(done.abandon());
            cx.send(self.number, &Method::TxRollbackOk {});
            return Ok(());
        }
        for PendingOperation {
            message,
            mut routes,
            mandatory,
        } in done.messages
        {
            // Routed when they were published; a queue that is gone since is none.
            routes.retain(|queue| cx.broker.tree().queue_by_id(*queue).is_some());
            count_traffic(1, routes.len(), &message, link, cx);
            dispatch(self, message, routes, mandatory, link, cx);
        }
        for (owed, outcome) in done.settlements {
            link.settle(owed.origin, outcome);
        }
        link.flush_settlements(cx);
        if self.confirms.is_empty() {
            cx.send(self.number, &Method::TxCommitOk {});
        } else {
            self.wait(WaitReason::Commit, 0, (90, 20), link, cx);
        }
        self.pump(link, cx);
        Ok(())
    }

    /// A queue has answered: is that all?
    pub(crate) fn committing(&mut self, cx: &mut StepContext<'_>) -> Result<(), MethodFailure> {
        if !self.confirms.is_empty() {
            return Ok(());
        }
        let done = self
            .waiting
            .take_if(|w| matches!(w.wait, WaitReason::Commit));
        if done.is_none() {
            return Ok(());
        }
        let failed = self
            .transaction
            .as_mut()
            .is_some_and(|t| std::mem::take(&mut t.failed));
        if failed {
            let failure = Failure::new(ReplyCode::PreconditionFailed, "partial tx completion");
            return Err(MethodFailure {
                failure,
                ids: (90, 20),
            });
        }
        cx.send(self.number, &Method::TxCommitOk {});
        Ok(())
    }
}
