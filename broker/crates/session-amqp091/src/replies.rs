//! Direct reply-to: a consumer on the pseudo queue `amq.rabbitmq.reply-to` receives replies without a queue of its own.
//!
//! Behind it stands an exclusive queue whose name cannot be guessed; requests carry that name as their `reply-to`, and
//! the default exchange brings replies from anywhere in the cluster. It goes with its consumer.

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::failure::{Failure, MethodResult, refuse};
use crate::names;
use crate::wait::WaitReason;
use codec_amqp091::Method;
use message::Table;
use metadata::{Change, Name, QueueId, QueueRecord, QueueType};
use queue::ConsumerSpec;

/// The name that clients consume from and put into `reply-to`.
pub(crate) const REPLY_TO: &str = "amq.rabbitmq.reply-to";
/// What the names behind it begin with.
const PREFIX: &str = "amq.rabbitmq.reply-to.";

/// The channel's consumer of replies.
#[derive(Debug)]
pub(crate) struct ReplyConsumer {
    pub queue: Name,
    pub tag: Name,
}

pub(crate) fn is_reply_queue(name: &str) -> bool {
    name.starts_with(REPLY_TO)
}

impl Channel {
    pub(crate) fn consume_replies(
        &mut self,
        tag: &str,
        no_ack: bool,
        no_wait: bool,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        if !no_ack {
            refuse!(PreconditionFailed, "reply consumer cannot acknowledge");
        }
        if self.replies.is_some() {
            refuse!(PreconditionFailed, "reply consumer already set");
        }
        let tag: Name = match tag {
            "" => names::generated("amq.ctag-", cx.broker).into(),
            given => given.into(),
        };
        // In two parts, as RabbitMQ's, by which clients' tests tell such a name.
        let name = names::generated(PREFIX, cx.broker) + ".";
        let name: Name = (names::generated(&name, cx.broker) + "==").into();
        let record = QueueRecord {
            id: QueueId::default(),
            vhost: link.vhost.clone(),
            name: name.clone(),
            kind: QueueType::default(),
            durable: false,
            auto_delete: false,
            exclusive: Some(cx.broker.id()),
            arguments: Table::default(),
            members: cx.broker.place(QueueType::default(), 0),
            declared_by: link.user.clone(),
        };
        link.owns_queues = true;
        self.replies = Some(Box::new(ReplyConsumer { queue: name, tag }));
        let change = Change::DeclareQueue(record);
        self.change(
            change,
            WaitReason::ReplyQueue { no_wait },
            (60, 20),
            link,
            cx,
        );
        Ok(())
    }

    /// The queue is there: its consumer follows.
    pub(crate) fn reply_queue_made(
        &mut self,
        queue: QueueId,
        no_wait: bool,
        link: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Some(tag) = self.replies.as_ref().map(|r| r.tag.clone()) else {
            return;
        };
        let spec = ConsumerSpec {
            tag,
            channel: self.number,
            prefetch: 0,
            no_ack: false,
            exclusive: true,
            priority: 0,
            arguments: Table::default(),
        };
        self.subscribe((queue, QueueType::default()), spec, true, no_wait, link, cx);
    }

    /// No more replies are wanted.
    pub(crate) fn end_replies(&mut self, link: &mut ConnectionState, cx: &mut StepContext<'_>) {
        if let Some(replies) = self.replies.take() {
            let change = Change::DeleteQueue {
                vhost: link.vhost.clone(),
                name: replies.queue,
                id: None,
            };
            // Nobody waits for it: channel 0 has no waits.
            let token = link.new_token(0);
            cx.broker.change(token, change);
        }
    }

    /// Every declaration of such a name asks whether somebody still waits for the reply.
    pub(crate) fn declare_reply_queue(
        &mut self,
        name: &str,
        no_wait: bool,
        link: &ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        // The name that all consume from is there for everybody.
        if name != REPLY_TO && cx.broker.tree().queue(&link.vhost, name).is_none() {
            return Err(Failure::unknown("queue", name, &link.vhost));
        }
        self.last_queue = name.into();
        if !no_wait {
            let method = Method::QueueDeclareOk {
                queue: name,
                message_count: 0,
                consumer_count: 1,
            };
            cx.send(self.number, &method);
        }
        Ok(())
    }
}
