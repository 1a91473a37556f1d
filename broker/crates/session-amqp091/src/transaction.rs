//! Transactions (class tx): publishes and settlements are buffered until the commit.
//!
//! As in RabbitMQ, commit-ok means that every queue has its messages. There is no atomicity across
//! queues.

use crate::channel::Channel;
use crate::connection_state::{ClientOutcome, ConnectionState, StepContext};
use crate::failure::{Failure, MethodResult, ReplyCode, refuse};
use crate::method_failure::MethodFailure;
use crate::publish::{count_traffic, dispatch};
use crate::unacked::UnackedDelivery;
use crate::wait::WaitReason;
use codec_amqp091::Method;
use message::Message;
use metadata::QueueId;

/// The operations of a channel since tx.select or the last commit or rollback.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    messages: Vec<PendingOperation>,
    settlements: Vec<(UnackedDelivery, ClientOutcome)>,
    consumed: usize,
    octets: usize,
    /// A queue rejected a message of the last commit.
    pub failed: bool,
}

#[derive(Debug)]
struct PendingOperation {
    message: Message,
    routes: Vec<QueueId>,
    mandatory: bool,
}

impl Transaction {
    pub(crate) fn publish(
        &mut self,
        message: Message,
        routes: Vec<QueueId>,
        mandatory: bool,
        conn: &ConnectionState,
    ) -> MethodResult {
        let queues = routes.len() * size_of::<QueueId>();
        self.grow(
            message.as_bytes().len() + queues + size_of::<PendingOperation>(),
            conn,
        )?;
        self.messages.push(PendingOperation {
            message,
            routes,
            mandatory,
        });
        Ok(())
    }

    pub(crate) fn settle(
        &mut self,
        unacked: UnackedDelivery,
        outcome: ClientOutcome,
        conn: &ConnectionState,
    ) -> MethodResult {
        self.consumed += usize::from(!unacked.by_get);
        self.settlements.push((unacked, outcome));
        self.grow(size_of::<(UnackedDelivery, ClientOutcome)>(), conn)
    }

    fn grow(&mut self, octets: usize, conn: &ConnectionState) -> MethodResult {
        self.octets += octets;
        if self.octets > conn.limits.transaction {
            refuse!(
                PreconditionFailed,
                "the transaction exceeds {} octets, commit it in parts",
                conn.limits.transaction
            );
        }
        Ok(())
    }

    /// Number of settled deliveries to consumers, without those of basic.get.
    pub(crate) fn consumed(&self) -> usize {
        self.consumed
    }

    /// Memory of the transaction in octets.
    pub(crate) fn octets(&self) -> usize {
        self.octets
    }

    /// Number of uncommitted messages and settlements.
    pub(crate) fn uncommitted(&self) -> (usize, usize) {
        (self.messages.len(), self.settlements.len())
    }

    /// Discards the transaction and returns the deliveries that it would have settled.
    pub(crate) fn abandon(self) -> impl Iterator<Item = UnackedDelivery> {
        self.settlements.into_iter().map(|(delivery, _)| delivery)
    }
}

impl Channel {
    pub(crate) fn transaction_method(
        &mut self,
        method: Method<'_>,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        if matches!(method, Method::TxSelect {}) {
            if self.confirm_base.is_some() {
                refuse!(PreconditionFailed, "cannot switch from confirm to tx mode");
            }
            self.transaction.get_or_insert_default();
            conn.channels_may_hold = true;
            cx.send(self.number, &Method::TxSelectOk {});
            return Ok(());
        }
        let Some(transaction) = &mut self.transaction else {
            refuse!(PreconditionFailed, "channel is not transactional");
        };
        let operations = std::mem::take(&mut **transaction);
        if matches!(method, Method::TxRollback {}) {
            self.unacked.restore(operations.abandon());
            cx.send(self.number, &Method::TxRollbackOk {});
            return Ok(());
        }
        for PendingOperation {
            message,
            mut routes,
            mandatory,
        } in operations.messages
        {
            // The message was routed when it was published. Skip queues deleted since.
            routes.retain(|queue| cx.broker.tree().queue_by_id(*queue).is_some());
            count_traffic(1, routes.len(), &message, conn, cx);
            dispatch(self, message, routes, mandatory, conn, cx);
        }
        for (unacked, outcome) in operations.settlements {
            conn.settle(unacked.origin, outcome);
        }
        conn.flush_settlements(cx);
        if self.confirms.is_empty() {
            cx.send(self.number, &Method::TxCommitOk {});
        } else {
            self.wait(WaitReason::Commit, 0, (90, 20), conn, cx);
        }
        self.pump(conn, cx);
        Ok(())
    }

    /// Sends commit-ok when all queues have answered.
    pub(crate) fn finish_commit(&mut self, cx: &mut StepContext<'_>) -> Result<(), MethodFailure> {
        if !self.confirms.is_empty() {
            return Ok(());
        }
        let finished = self
            .waiting
            .take_if(|w| matches!(w.wait, WaitReason::Commit));
        if finished.is_none() {
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
