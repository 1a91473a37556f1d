//! What a channel waits for, and what happens when it comes: the metadata group's word, a queue's answer, or neither.

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::consume::Cancellation;
use crate::content::PublishAssembly;
use crate::directory;
use crate::failure::{Failure, ReplyCode};
use crate::left_queues::LeftQueues;
use crate::method_failure::MethodFailure;
use crate::retry::{self, RetriedMethod};
use crate::topology::Deletion;
use crate::unacked::DeliveryOrigin;
use codec_amqp091::Method;
use metadata::{Change, ChangeError, ChangeResult, QueueRecord};
use queue::{ConsumerId, Delivery, QueueId, QueueReply, RequestBody};
use std::sync::Arc;

/// What happens when the wait is over.
#[derive(Debug)]
pub(crate) enum WaitReason {
    /// A change: then this reply.
    Reply(Option<Method<'static>>),
    /// A change that declares a queue.
    Declare {
        no_wait: bool,
    },
    /// An answer with counts, for declare-ok.
    Stat {
        no_wait: bool,
    },
    /// Nobody answered that: whether the queue is there at all.
    Still,
    Purge {
        no_wait: bool,
    },
    /// The tree of this node has no such queue: whether there is none.
    Unknown(Deletion),
    /// The tree of this node does not have what is needed: whether the log has.
    Learn(RetriedMethod),
    /// The queue stops; then its record goes.
    Delete {
        record: Arc<QueueRecord>,
        deletion: Deletion,
    },
    /// The change that removes the record.
    Deleted {
        messages: u32,
        queue: QueueId,
        deletion: Deletion,
    },
    Consume {
        consumer: ConsumerId,
        no_wait: bool,
    },
    Get {
        consumer: ConsumerId,
        no_ack: bool,
    },
    /// Whatever the queue says: a consumer's last deliveries have come before.
    Cancel(Cancellation),
    /// How many consumers an auto-delete queue has after ours left it; `closing`: with the channel.
    Left {
        left: LeftQueues,
        closing: bool,
    },
    /// The change that removes such a queue without consumers; its owner asks for the same.
    Unused {
        left: LeftQueues,
        closing: bool,
    },
    /// A change that makes the queue behind direct replies.
    ReplyQueue {
        no_wait: bool,
    },
    /// Until the queues have what the transaction published.
    Commit,
}

impl WaitReason {
    /// The publish that waits, if one does.
    pub fn into_publish(self) -> Option<Box<PublishAssembly>> {
        match self {
            WaitReason::Learn(RetriedMethod::Publish(assembly)) => Some(assembly),
            _ => None,
        }
    }
}

impl Channel {
    /// The metadata group's word. Not for this wait: ignored.
    pub(crate) fn changed(
        &mut self,
        token: u64,
        result: Result<ChangeResult, ChangeError>,
        link: &mut ConnectionState,
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
                    self.declared(record.id, record.name.clone(), no_wait, ids, link, cx);
                }
            }
            (WaitReason::ReplyQueue { no_wait }, Ok(ChangeResult::Queue { record, .. })) => {
                self.reply_queue_made(record.id, no_wait, link, cx);
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
                    self.cancelled(consumer, link, cx);
                }
            }
            (WaitReason::Unused { left, closing }, _) => {
                self.go_on_leaving(left, closing, link, cx)
            }
            (WaitReason::Still, Ok(_)) => {
                directory::queue_for(cx.broker, link, &self.last_queue)
                    .map_err(|failure| MethodFailure { failure, ids })?;
                self.declared_without_counts(cx);
            }
            (WaitReason::Learn(again), _) => self.try_again(again, ids, link, cx)?,
            (WaitReason::Unknown(deletion), Ok(_)) => self
                .delete_known(deletion, link, cx)
                .map_err(|failure| MethodFailure { failure, ids })?,
            (_, Err(refused)) => {
                return Err(MethodFailure {
                    failure: Failure::of_change(refused),
                    ids,
                });
            }
            (wait, Ok(_)) => self.waiting_mismatch(wait, ids)?,
        }
        Ok(())
    }

    /// The node answered something that does not belong to the question.
    fn waiting_mismatch(&self, wait: WaitReason, ids: (u16, u16)) -> Result<(), MethodFailure> {
        tracing::error!(channel = self.number, ?wait, "an answer of the wrong kind");
        let text = "the node gave an answer of the wrong kind";
        Err(MethodFailure {
            failure: Failure::new(ReplyCode::InternalError, text),
            ids,
        })
    }

    /// A queue's answer.
    pub(crate) fn got_answer(
        &mut self,
        answer: QueueReply,
        link: &mut ConnectionState,
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
            (WaitReason::Delete { record, deletion }, QueueReply::Count { messages, .. }) => {
                let change = Change::DeleteQueue {
                    vhost: record.vhost.clone(),
                    name: record.name.clone(),
                    id: Some(record.id),
                };
                let wait = WaitReason::Deleted {
                    messages: count(messages),
                    queue: record.id,
                    deletion,
                };
                self.change(change, wait, ids, link, cx);
            }
            (WaitReason::Left { mut left, closing }, answer) => match left.answered(&answer) {
                Some(change) => {
                    self.change(change, WaitReason::Unused { left, closing }, ids, link, cx)
                }
                None => self.go_on_leaving(left, closing, link, cx),
            },
            (WaitReason::Cancel(cancellation), _) => self.finish_cancel(&cancellation, link, cx),
            (WaitReason::Consume { consumer, no_wait }, QueueReply::Consuming) => {
                self.consuming(consumer, no_wait, link, cx);
            }
            (WaitReason::Get { consumer, .. }, QueueReply::Empty) => {
                let asked = link.subscriptions.remove(&consumer.0);
                self.count_empty(asked.map(|s| s.kind), link);
                cx.send(self.number, &Method::BasicGetEmpty {});
            }
            // Somebody else has deleted it meanwhile, or its node is down.
            (WaitReason::Delete { deletion, .. }, QueueReply::Refused { code: 404, .. }) => {
                self.ask_the_log(deletion, link, cx);
            }
            (wait, QueueReply::Refused { code, text }) => {
                self.abandon(&wait, link);
                return Err(MethodFailure {
                    failure: Failure::of_queue(code, text),
                    ids,
                });
            }
            (wait, _) => {
                self.abandon(&wait, link);
                self.waiting_mismatch(wait, ids)?;
            }
        }
        Ok(())
    }

    fn declared_without_counts(&self, cx: &mut StepContext<'_>) {
        let method = Method::QueueDeclareOk {
            queue: &self.last_queue,
            message_count: 0,
            consumer_count: 0,
        };
        cx.send(self.number, &method);
    }

    fn consuming(
        &self,
        consumer: ConsumerId,
        no_wait: bool,
        link: &ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        if let Some(subscription) = link.subscriptions.get(&consumer.0)
            && !no_wait
        {
            let method = Method::BasicConsumeOk {
                consumer_tag: &subscription.tag,
            };
            cx.send(self.number, &method);
        }
    }

    /// What was made in hope of the answer.
    fn abandon(&mut self, wait: &WaitReason, link: &mut ConnectionState) {
        if let WaitReason::Consume { consumer, .. } | WaitReason::Get { consumer, .. } = wait
            && let Some(subscription) = link.subscriptions.remove(&consumer.0)
            && !subscription.get
        {
            self.forget_consumer(&subscription.tag, link);
        }
    }

    /// Deliveries of a consumer that this channel waits for are its answer. True: they have been dealt with.
    pub(crate) fn delivery_as_answer(
        &mut self,
        queue: QueueId,
        consumer: ConsumerId,
        deliveries: &[Delivery],
        link: &mut ConnectionState,
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
        link.forget_asked(self.number);
        match waiting.wait {
            WaitReason::Get { no_ack, .. } => {
                link.subscriptions.remove(&consumer.0);
                if let Some(delivery) = deliveries.first() {
                    let origin = DeliveryOrigin {
                        queue,
                        consumer,
                        id: delivery.id,
                    };
                    self.deliver_got(origin, no_ack, delivery, link, cx);
                }
                true
            }
            WaitReason::Consume { no_wait, .. } => {
                self.consuming(consumer, no_wait, link, cx);
                false
            }
            _ => false,
        }
    }

    /// A channel that deletes the queue of its own consumer hears that it went, and then that the consumer did: RabbitMQ's
    /// order. True: it will.
    pub(crate) fn ended_by_own_delete(
        &mut self,
        consumer: ConsumerId,
        link: &ConnectionState,
    ) -> bool {
        let Some(of) = link.subscriptions.get(&consumer.0).map(|s| s.queue) else {
            return false;
        };
        match self.waiting.as_mut().map(|w| &mut w.wait) {
            Some(WaitReason::Delete { record, deletion }) if record.id == of => {
                deletion.ended.push(consumer);
            }
            Some(WaitReason::Deleted {
                queue, deletion, ..
            }) if *queue == of => deletion.ended.push(consumer),
            _ => return false,
        }
        true
    }

    /// The queue ended a consumer that this channel still waits for.
    pub(crate) fn cancelled_while_waiting(
        &mut self,
        consumer: ConsumerId,
        link: &mut ConnectionState,
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
        link.forget_asked(self.number);
        self.abandon(&waiting.wait, link);
        let text = format!("the queue in vhost '{}' is gone", link.vhost);
        let failure = Failure::new(ReplyCode::NotFound, text);
        Err(MethodFailure {
            failure,
            ids: waiting.ids,
        })
    }

    /// Nobody answered in time.
    pub(crate) fn timed_out(
        &mut self,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> Result<(), MethodFailure> {
        let Some(waiting) = self.waiting.take() else {
            return Ok(());
        };
        // What has been published may still arrive: the client asked to know.
        if matches!(waiting.wait, WaitReason::Commit) {
            self.waiting = Some(waiting);
            return Ok(());
        }
        link.forget_asked(self.number);
        // The queue goes when its owner is back.
        if let WaitReason::Left { closing, .. } | WaitReason::Unused { closing, .. } = waiting.wait
        {
            self.go_on_leaving(LeftQueues::default(), closing, link, cx);
            return Ok(());
        }
        if let WaitReason::Cancel(cancellation) = waiting.wait {
            self.finish_cancel(&cancellation, link, cx);
            return Ok(());
        }
        if let WaitReason::Learn(again) = waiting.wait {
            return self.try_again(again, waiting.ids, link, cx);
        }
        // Counts are a courtesy: the queue is there, only nobody can be asked. Or it is not: a node that is cut off has not
        // heard of its deletion. The log has.
        if matches!(waiting.wait, WaitReason::Stat { .. }) {
            match cx.broker.knows_all() {
                true => self.declared_without_counts(cx),
                false => {
                    let nothing = retry::nothing(self.last_queue.clone(), link);
                    self.change(nothing, WaitReason::Still, waiting.ids, link, cx);
                }
            }
            return Ok(());
        }
        if let WaitReason::Consume { consumer, .. } | WaitReason::Get { consumer, .. } =
            waiting.wait
            && let Some(queue) = link.subscriptions.get(&consumer.0).map(|s| s.queue)
        {
            link.tell(cx, queue, RequestBody::Leave { consumer });
        }
        self.abandon(&waiting.wait, link);
        let text = "the operation timed out";
        let failure = Failure::new(ReplyCode::InternalError, text);
        Err(MethodFailure {
            failure,
            ids: waiting.ids,
        })
    }
}
