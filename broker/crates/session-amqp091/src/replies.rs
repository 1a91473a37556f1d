//! Direct reply-to: a consumer on the pseudo queue `amq.rabbitmq.reply-to` receives replies without
//! declaring a queue.
//!
//! Requests carry the name of the queue behind it ([`operations::Caller::direct_reply_queue`]) in
//! `reply-to`.

use crate::channel::Channel;
use crate::connection_state::{ConnectionState, StepContext};
use crate::directory;
use crate::failure::{MethodResult, refuse};
use crate::names;
use crate::wait::WaitReason;
use codec_amqp091::Method;
use message::Table;
use metadata::{Change, Name, QueueId, QueueType};
pub(crate) use operations::DIRECT_REPLY_TO as REPLY_TO;
use operations::OperationError;
use queue::ConsumerSpec;

/// The consumer of replies on a channel.
#[derive(Debug)]
pub(crate) struct ReplyConsumer {
    pub queue: Name,
    pub tag: Name,
}

impl Channel {
    pub(crate) fn consume_replies(
        &mut self,
        tag: &str,
        no_ack: bool,
        no_wait: bool,
        conn: &mut ConnectionState,
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
            name => name.into(),
        };
        let random = std::array::from_fn(|_| cx.broker.random());
        let mut record = directory::caller(cx.broker, conn).direct_reply_queue(random);
        record.members = cx.broker.place(record.kind, 0);
        conn.owns_queues = true;
        let queue = record.name.clone();
        self.replies = Some(Box::new(ReplyConsumer { queue, tag }));
        let change = Change::DeclareQueue(record);
        self.change(
            change,
            WaitReason::ReplyQueue { no_wait },
            (60, 20),
            conn,
            cx,
        );
        Ok(())
    }

    /// Starts the consumer when the queue has been created.
    pub(crate) fn start_reply_consumer(
        &mut self,
        queue: QueueId,
        no_wait: bool,
        conn: &mut ConnectionState,
        cx: &mut StepContext<'_>,
    ) {
        let Some(tag) = self.replies.as_ref().map(|r| r.tag.clone()) else {
            return;
        };
        let spec = ConsumerSpec {
            tag,
            channel: self.number,
            flow_mode: queue::FlowMode::Prefetch,
            prefetch: 0,
            no_ack: false,
            exclusive: true,
            priority: 0,
            arguments: Table::default(),
            filter: None,
        };
        self.subscribe((queue, QueueType::default()), spec, true, no_wait, conn, cx);
    }

    /// Ends the reply consumer and deletes its queue.
    pub(crate) fn end_replies(&mut self, conn: &mut ConnectionState, cx: &mut StepContext<'_>) {
        if let Some(replies) = self.replies.take() {
            let change = Change::DeleteQueue {
                vhost: conn.vhost.clone(),
                name: replies.queue,
                id: None,
            };
            // No channel waits for the result: channel 0 has no waits.
            let token = conn.new_token(0);
            cx.broker.change(token, change);
        }
    }

    /// Handles queue.declare for a reply address, which tests whether the requester still waits.
    pub(crate) fn declare_reply_queue(
        &mut self,
        name: &str,
        no_wait: bool,
        conn: &ConnectionState,
        cx: &mut StepContext<'_>,
    ) -> MethodResult {
        // The pseudo queue always exists.
        if name != REPLY_TO && cx.broker.tree().queue(&conn.vhost, name).is_none() {
            return Err(OperationError::missing("queue", name, &conn.vhost).into());
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
