//! Carries out what the internal client wants done, and publishes copies of traced messages.

use super::ShardState;
use crate::firehose::TracedCopy;
use crate::internal_client::{
    BuildMessage, ImportPublish, InternalClientOutput, MovePublish, PROTOCOL, PublishReply,
    TracedEvent,
};
use crate::sessions::InternalSession;
use control::{PublishResult, Reply};
use metadata::{ChangeError, Name, QueueId};
use queue::RequestBody;
use queue::client::ClientEvent;
use session::{AnnounceOutcome, FlowState, PublishTag, TraceEvent, TracedMessage};
use std::fmt::Display;

impl ShardState {
    pub fn publish_internal(
        &mut self,
        publisher: (&Name, &Name),
        build: BuildMessage,
        reply: Reply<Result<PublishResult, ChangeError>>,
    ) {
        let alarm = self.blocked_in_vhost(publisher.0);
        let begun = self.internal_client.begin_publish(
            &self.ctx,
            self.metadata.tree(),
            alarm,
            publisher,
            build,
            PublishReply::Requester(reply),
        );
        let Some(mut publish) = begun else {
            return;
        };
        let session = InternalSession::InternalClient.number(self.ctx.shard());
        let published = (&*publish.vhost, &publish.message);
        let announced = self.announce(session, publish.tag, published, &mut publish.routes);
        self.internal_client
            .finish_publish(&self.ctx, self.metadata.tree(), publish, announced);
        self.route_internal_client();
    }

    /// Publishes a message that is moved from a queue.
    fn publish_moved(&mut self, publish: MovePublish) {
        let is_routed = publish.to.is_some();
        let alarm = self.blocked_in_vhost(&publish.vhost);
        let tree = self.metadata.tree();
        let begun = self
            .internal_client
            .begin_moved_publish(&self.ctx, tree, alarm, publish);
        let Some(mut publish) = begun else {
            return;
        };
        // A message that goes back to its queue is not for subscribers of the exchange: they had it.
        let announced = match is_routed {
            true => AnnounceOutcome::default(),
            false => {
                let session = InternalSession::InternalClient.number(self.ctx.shard());
                let published = (&*publish.vhost, &publish.message);
                self.announce(session, publish.tag, published, &mut publish.routes)
            }
        };
        self.internal_client
            .finish_publish(&self.ctx, self.metadata.tree(), publish, announced);
    }

    /// Stores a message of an import in its queue. Subscribers of its exchange had it before.
    fn publish_imported(&mut self, publish: ImportPublish) {
        let alarm = self.blocked_in_vhost(&publish.vhost);
        let begun = self.internal_client.begin_imported_publish(alarm, publish);
        if let Some(publish) = begun {
            let announced = AnnounceOutcome::default();
            self.internal_client.finish_publish(
                &self.ctx,
                self.metadata.tree(),
                publish,
                announced,
            );
        }
    }

    /// Carries out the outputs of the internal client.
    pub fn route_internal_client(&mut self) {
        let session = InternalSession::InternalClient.number(self.ctx.shard());
        while let Some(output) = self.internal_client.next_output() {
            match output {
                InternalClientOutput::Publish {
                    queue,
                    tag,
                    message,
                } => {
                    self.publish(session, queue, tag, message);
                }
                InternalClientOutput::Move(publish) => self.publish_moved(*publish),
                InternalClientOutput::Import(publish) => self.publish_imported(*publish),
                InternalClientOutput::Request { queue, body, get } => {
                    let moved = match &body {
                        RequestBody::GetAt(get) => Some(get.consumer),
                        _ => None,
                    };
                    let seq = (self.queues).request(
                        &mut self.ctx,
                        self.metadata.tree(),
                        session,
                        queue,
                        body,
                    );
                    if let Some(get) = get {
                        self.internal_client.note_request(get, moved, seq);
                    }
                }
                InternalClientOutput::Count { vhost, counted } => {
                    self.limits.count_internal_messages(
                        self.metadata.tree(),
                        &vhost,
                        PROTOCOL,
                        &counted,
                    );
                }
                InternalClientOutput::Trace {
                    vhost,
                    user,
                    message,
                    event,
                } => self.trace_internal((&vhost, &user), &message, &event),
            }
        }
    }

    fn trace_internal(
        &mut self,
        (vhost, user): (&Name, &Name),
        message: &message::Message,
        event: &TracedEvent,
    ) {
        // The control plane of RabbitMQ has a connection without an address, too; its name is that of the node.
        let name = self.ctx.config().name.clone();
        let what = match event {
            TracedEvent::Published(routes, tag) => TraceEvent::Published { routes, tag: *tag },
            TracedEvent::Delivered { queue, redelivered } => TraceEvent::Delivered {
                queue,
                redelivered: *redelivered,
                delivery: None,
            },
        };
        let traced = TracedMessage {
            vhost,
            user,
            channel: 1,
            protocol: PROTOCOL,
            message,
            what,
        };
        let session = InternalSession::InternalClient.number(self.ctx.shard());
        self.trace(session, &format_args!("<{name}.http>"), &traced);
    }

    pub fn handle_internal_client_event(&mut self, queue: QueueId, event: ClientEvent<PublishTag>) {
        self.internal_client
            .handle_event(self.metadata.tree(), queue, event);
        self.route_internal_client();
    }

    /// Publishes a copy of a message that is traced, and begins its span.
    pub fn trace(&mut self, number: u64, connection: &dyn Display, traced: &TracedMessage<'_>) {
        let tree = self.metadata.tree();
        self.ctx
            .note_spans(|spans, at| spans.record(at, tree, number, traced));
        let copy = self
            .firehose
            .copy(&self.ctx, self.metadata.tree(), connection, traced);
        let Some(TracedCopy { routes, message }) = copy else {
            return;
        };
        let session = InternalSession::Firehose.number(self.ctx.shard());
        for queue in routes {
            let no_confirm = PublishTag::NO_CONFIRM;
            let flow = self.publish(session, queue, no_confirm, message.clone());
            if flow == FlowState::Behind {
                self.firehose.fall_behind(traced.vhost);
            }
        }
    }
}
