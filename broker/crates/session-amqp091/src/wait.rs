//! Methods of a channel that wait for the metadata group or for a queue: the results and the
//! timeout.

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::consume::Cancellation;
use crate::content::PublishAssembly;
use crate::directory;
use crate::failure::{Failure, ReplyCode};
use crate::left_queues::LeftQueues;
use crate::method_failure::MethodFailure;
use crate::retry::RetriedMethod;
use crate::topology::Deletion;
use crate::unacked::DeliveryOrigin;
use codec_amqp091::Method;
use metadata::{Change, ChangeError, ChangeResult};
use queue::{ConsumerId, Delivery, QueueId, QueueReply, RequestBody};

/// The reason for a wait, with the data needed to continue.
#[derive(Debug)]
pub(crate) enum WaitReason {
    /// A metadata change, followed by this reply.
    Reply(Option<Method<'static>>),
    /// The change that declares a queue.
    Declare { no_wait: bool },
    /// Counts from the queue, for declare-ok.
    Stat { no_wait: bool },
    /// The queue did not answer with counts: wait for the log, then check that it exists.
    QueueExists,
    /// Counts of purged messages.
    Purge { no_wait: bool },
    /// The queue is not in this node's tree: wait for the log, then delete it if it exists.
    DeleteUnknown(Deletion),
    /// A queue or exchange is not in this node's tree: wait for the log, then retry the method.
    CatchUp(RetriedMethod),
    /// The queue stops; its record is deleted next.
    Delete {
        queue: QueueId,
        change: Box<Change>,
        deletion: Deletion,
    },
    /// The change that deletes the queue's record.
    Deleted {
        messages: u32,
        queue: QueueId,
        deletion: Deletion,
    },
    /// The queue's confirmation of a subscription.
    Consume { consumer: ConsumerId, no_wait: bool },
    /// A message for basic.get, or the information that the queue is empty.
    Get { consumer: ConsumerId, no_ack: bool },
    /// Any answer of the queue: it follows the consumer's last deliveries.
    Cancel(Cancellation),
    /// The number of consumers of an auto-delete queue that one of ours has left. `closing`:
    /// because the channel closes.
    CountLeft { left: LeftQueues, closing: bool },
    /// The change that deletes such a queue. Its owner requests the same change.
    DeleteLeft { left: LeftQueues, closing: bool },
    /// The change that declares the queue of direct reply-to.
    ReplyQueue { no_wait: bool },
    /// The queues' answers to the publishes of a transaction.
    Commit,
}

impl WaitReason {
    /// The publish that waits, if any.
    pub(crate) fn into_publish(self) -> Option<Box<PublishAssembly>> {
        match self {
            WaitReason::CatchUp(RetriedMethod::Publish(assembly)) => Some(assembly),
            _ => None,
        }
    }
}

impl Channel {
    /// Handles the result of a metadata change. Ignored unless this channel waits for it.
    pub(crate) fn handle_change_result(
        &mut self,
        token: u64,
        result: Result<ChangeResult, ChangeError>,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), MethodFailure> {
        let Some(waiting) = self.waiting.take_if(|w| w.token == token && token != 0) else {
            return Ok(());
        };
        let ids = waiting.ids;
        match (waiting.wait, result) {
            (WaitReason::Reply(reply), Ok(_)) => self.reply(reply, cx),
            (WaitReason::Declare { no_wait }, Ok(ChangeResult::Queue { record, created })) => {
                if created {
                    self.last_queue = record.name.clone();
                    if !no_wait {
                        let method = Method::QueueDeclareOk {
                            queue: &record.name,
                            message_count: 0,
                            consumer_count: 0,
                        };
                        cx.send(self.number, &method);
                    }
                } else {
                    self.reply_declared(record.id, record.name.clone(), no_wait, ids, conn, cx);
                }
            }
            (WaitReason::ReplyQueue { no_wait }, Ok(ChangeResult::Queue { record, .. })) => {
                self.start_reply_consumer(record.id, no_wait, conn, cx);
            }
            (
                WaitReason::Deleted {
                    messages, deletion, ..
                },
                Ok(_) | Err(ChangeError::NotFound(_)),
            ) => {
                let reply = Method::QueueDeleteOk {
                    message_count: messages,
                };
                self.reply((!deletion.no_wait).then_some(reply), cx);
                for consumer in deletion.ended {
                    self.handle_queue_cancel(consumer, conn, cx);
                }
            }
            (WaitReason::DeleteLeft { left, closing }, _) => {
                self.delete_left_queues(left, closing, conn, cx)
            }
            (WaitReason::QueueExists, Ok(_)) => {
                directory::available_queue(cx.broker, conn, &self.last_queue)
                    .map_err(|failure| MethodFailure { failure, ids })?;
                self.declared_without_counts(cx);
            }
            (WaitReason::CatchUp(retry), _) => self.retry_method(retry, ids, conn, cx)?,
            (WaitReason::DeleteUnknown(deletion), Ok(_)) => {
                self.delete_known(deletion, conn, cx)
                    .map_err(|failure| MethodFailure { failure, ids })?
            }
            (_, Err(error)) => {
                return Err(MethodFailure {
                    failure: Failure::from_change_error(error),
                    ids,
                });
            }
            (wait, Ok(_)) => self.mismatched_answer(wait, ids)?,
        }
        Ok(())
    }

    /// The answer does not fit the request: an internal error.
    fn mismatched_answer(&self, wait: WaitReason, ids: (u16, u16)) -> Result<(), MethodFailure> {
        tracing::error!(
            channel = self.number,
            ?wait,
            "the answer does not match the pending method"
        );
        let text = "the answer of the node does not match the pending method";
        Err(MethodFailure {
            failure: Failure::new(ReplyCode::InternalError, text),
            ids,
        })
    }

    /// Handles the answer of a queue.
    pub(crate) fn handle_queue_answer(
        &mut self,
        answer: QueueReply,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), MethodFailure> {
        let Some(waiting) = self.waiting.take() else {
            return Ok(());
        };
        let ids = waiting.ids;
        let count = |messages: u64| u32::try_from(messages).unwrap_or(u32::MAX);
        match (waiting.wait, answer) {
            (
                WaitReason::Stat { no_wait: false },
                QueueReply::Count {
                    messages,
                    consumers,
                },
            ) => {
                let method = Method::QueueDeclareOk {
                    queue: &self.last_queue,
                    message_count: count(messages),
                    consumer_count: consumers,
                };
                cx.send(self.number, &method);
            }
            (WaitReason::Stat { no_wait: true }, _) => {}
            (WaitReason::Purge { no_wait }, QueueReply::Count { messages, .. }) => {
                let reply = Method::QueuePurgeOk {
                    message_count: count(messages),
                };
                self.reply((!no_wait).then_some(reply), cx);
            }
            (
                WaitReason::Delete {
                    queue,
                    change,
                    deletion,
                },
                QueueReply::Count { messages, .. },
            ) => {
                let wait = WaitReason::Deleted {
                    messages: count(messages),
                    queue,
                    deletion,
                };
                self.change(*change, wait, ids, conn, cx);
            }
            (WaitReason::CountLeft { mut left, closing }, answer) => {
                match left.record_answer(&answer) {
                    Some(change) => self.change(
                        change,
                        WaitReason::DeleteLeft { left, closing },
                        ids,
                        conn,
                        cx,
                    ),
                    None => self.delete_left_queues(left, closing, conn, cx),
                }
            }
            (WaitReason::Cancel(cancellation), _) => self.finish_cancel(&cancellation, conn, cx),
            (WaitReason::Consume { consumer, no_wait }, QueueReply::Consuming) => {
                self.send_consume_ok(consumer, no_wait, conn, cx);
            }
            (WaitReason::Get { consumer, .. }, QueueReply::Empty) => {
                let subscription = conn.subscriptions.remove(&consumer.0);
                self.count_empty(subscription.map(|s| s.kind), conn);
                cx.send(self.number, &Method::BasicGetEmpty {});
            }
            // The queue was deleted in the meantime, or its node is down.
            (WaitReason::Delete { deletion, .. }, QueueReply::Refused { code: 404, .. }) => {
                self.catch_up_before_delete(deletion, conn, cx);
            }
            (wait, QueueReply::Refused { code, text }) => {
                self.abandon(&wait, conn);
                return Err(MethodFailure {
                    failure: Failure::from_queue_reply(code, text),
                    ids,
                });
            }
            (wait, _) => {
                self.abandon(&wait, conn);
                self.mismatched_answer(wait, ids)?;
            }
        }
        Ok(())
    }

    /// Sends declare-ok with counts of 0.
    fn declared_without_counts(&self, cx: &mut StepContext<'_>) {
        let method = Method::QueueDeclareOk {
            queue: &self.last_queue,
            message_count: 0,
            consumer_count: 0,
        };
        cx.send(self.number, &method);
    }

    /// Sends consume-ok.
    fn send_consume_ok(
        &self,
        consumer: ConsumerId,
        no_wait: bool,
        conn: &ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        if let Some(subscription) = conn.subscriptions.get(&consumer.0)
            && !no_wait
        {
            let method = Method::BasicConsumeOk {
                consumer_tag: &subscription.tag,
            };
            cx.send(self.number, &method);
        }
    }

    /// Removes the subscription that was added in anticipation of the answer.
    fn abandon(&mut self, wait: &WaitReason, conn: &mut ConnectionState) {
        if let WaitReason::Consume { consumer, .. } | WaitReason::Get { consumer, .. } = wait
            && let Some(subscription) = conn.subscriptions.remove(&consumer.0)
            && !subscription.get
        {
            self.forget_consumer(&subscription.tag, conn);
        }
    }

    /// Treats a delivery to a consumer that this channel waits for as the queue's answer. Returns
    /// true if the deliveries need no further handling.
    pub(crate) fn try_deliver_as_answer(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        deliveries: &[Delivery],
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> bool {
        let ours = self.waiting.take_if(|w| match w.wait {
            WaitReason::Consume { consumer: c, .. } | WaitReason::Get { consumer: c, .. } => {
                c == consumer
            }
            _ => false,
        });
        let Some(waiting) = ours else {
            return false;
        };
        conn.forget_requests(self.number);
        match waiting.wait {
            WaitReason::Get { no_ack, .. } => {
                conn.subscriptions.remove(&consumer.0);
                if let Some(delivery) = deliveries.first() {
                    let origin = DeliveryOrigin {
                        queue,
                        consumer,
                        id: delivery.id,
                    };
                    self.deliver_get(origin, no_ack, delivery, conn, cx);
                }
                true
            }
            WaitReason::Consume { no_wait, .. } => {
                self.send_consume_ok(consumer, no_wait, conn, cx);
                false
            }
            _ => false,
        }
    }

    /// Defers the cancellation of a consumer whose queue this channel is deleting. As in RabbitMQ,
    /// the client gets delete-ok before the consumer's basic.cancel. Returns true if it was
    /// deferred.
    pub(crate) fn defer_cancel_by_own_delete(
        &mut self,
        consumer: ConsumerId,
        conn: &ConnectionState,
    ) -> bool {
        let Some(deleted) = conn.subscriptions.get(&consumer.0).map(|s| s.queue) else {
            return false;
        };
        match self.waiting.as_mut().map(|w| &mut w.wait) {
            Some(WaitReason::Delete {
                queue, deletion, ..
            }) if *queue == deleted => {
                deletion.ended.push(consumer);
            }
            Some(WaitReason::Deleted {
                queue, deletion, ..
            }) if *queue == deleted => deletion.ended.push(consumer),
            _ => return false,
        }
        true
    }

    /// Handles a queue that ended a consumer this channel still waits for.
    pub(crate) fn fail_cancelled_wait(
        &mut self,
        consumer: ConsumerId,
        conn: &mut ConnectionState,
    ) -> Result<(), MethodFailure> {
        let ours = self.waiting.take_if(|w| match w.wait {
            WaitReason::Consume { consumer: c, .. } | WaitReason::Get { consumer: c, .. } => {
                c == consumer
            }
            _ => false,
        });
        let Some(waiting) = ours else {
            return Ok(());
        };
        conn.forget_requests(self.number);
        self.abandon(&waiting.wait, conn);
        let text = format!("the queue in vhost '{}' is gone", conn.vhost);
        let failure = Failure::new(ReplyCode::NotFound, text);
        Err(MethodFailure {
            failure,
            ids: waiting.ids,
        })
    }

    /// Handles a wait that exceeded the operation timeout.
    pub(crate) fn handle_timeout(
        &mut self,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), MethodFailure> {
        let Some(waiting) = self.waiting.take() else {
            return Ok(());
        };
        // A commit waits on: its publishes may still be confirmed, and the client must know the
        // result.
        if matches!(waiting.wait, WaitReason::Commit) {
            self.waiting = Some(waiting);
            return Ok(());
        }
        conn.forget_requests(self.number);
        // The owner deletes the queue when it is available again.
        if let WaitReason::CountLeft { closing, .. } | WaitReason::DeleteLeft { closing, .. } =
            waiting.wait
        {
            self.delete_left_queues(LeftQueues::default(), closing, conn, cx);
            return Ok(());
        }
        if let WaitReason::Cancel(cancellation) = waiting.wait {
            self.finish_cancel(&cancellation, conn, cx);
            return Ok(());
        }
        if let WaitReason::CatchUp(retry) = waiting.wait {
            return self.retry_method(retry, waiting.ids, conn, cx);
        }
        // The counts are optional, so declare-ok is sent without them. A disconnected node may have
        // missed the deletion of the queue; then the log decides.
        if matches!(waiting.wait, WaitReason::Stat { .. }) {
            match cx.broker.knows_all() {
                true => self.declared_without_counts(cx),
                false => {
                    let wait = WaitReason::QueueExists;
                    self.change(Change::Barrier {}, wait, waiting.ids, conn, cx);
                }
            }
            return Ok(());
        }
        if let WaitReason::Consume { consumer, .. } | WaitReason::Get { consumer, .. } =
            waiting.wait
            && let Some(queue) = conn.subscriptions.get(&consumer.0).map(|s| s.queue)
        {
            conn.send_oneway(cx, queue, RequestBody::CancelAndRequeue { consumer });
        }
        self.abandon(&waiting.wait, conn);
        let text = "the operation timed out";
        let failure = Failure::new(ReplyCode::InternalError, text);
        Err(MethodFailure {
            failure,
            ids: waiting.ids,
        })
    }
}
