//! The node as one session sees it: [`session::Broker`] over the shard's core.

use super::ShardState;
use crate::ConnectionKey;
use crate::listener_origin::Origin;
use crate::metadata_client::ChangeRequester;
use crate::sessions::{Marks, key_of};
use env::{NodeId, Time, WallTime};
use message::Message;
use metadata::{Change, Name, QueueId, QueueRecord, QueueType, SessionId, Tree};
use queue::cursor::{CursorSend, StreamBatch};
use queue::{BrowseRequest, ConsumerId, RequestBody};
use session::{
    AnnounceOutcome, Broker, ChannelLimit, FlowState, LoginAttempt, MessageCounters, PasswordCheck,
    PublishTag, Refusals, RequestSeq, ServiceId, ServiceStates, SessionEvent, SessionOwner,
    TracedEntries, TracedMessage,
};
use std::net::SocketAddr;
use std::sync::Arc;

pub struct View<'a> {
    pub state: &'a mut ShardState,
    pub number: u64,
    pub origin: Origin<'a>,
    /// Of the session's connection.
    pub(crate) marks: Marks,
}

impl View<'_> {
    /// The session has got a user or a virtual host.
    fn mark_rate_limited(&mut self) {
        let key = ConnectionKey(key_of(self.number));
        let has_quota = self.state.limits.has_quota(key);
        self.marks.set_rate_limited(has_quota);
    }
}

impl Broker for View<'_> {
    fn id(&self) -> SessionId {
        self.state.ctx.session(self.number)
    }

    fn peer(&self) -> SocketAddr {
        self.origin.peer()
    }

    fn now(&self) -> Time {
        self.state.ctx.now()
    }

    fn wall(&self) -> WallTime {
        self.state.ctx.wall()
    }

    fn random(&mut self) -> u64 {
        self.state.ctx.random()
    }

    fn tree(&self) -> &Tree {
        self.state.metadata.tree()
    }

    /// On a node alone the first shard's tree is the first to have a change.
    fn knows_all(&self) -> bool {
        self.state.metadata.knows_all()
    }

    fn change(&mut self, token: u64, change: Change) {
        let number = self.number;
        let requester = match self.state.services.of_session(number) {
            Some(at) => ChangeRequester::Service { at, token },
            None => {
                let trail = self.state.ctx.audit();
                let record =
                    trail.and_then(|trail| trail.change_requested(number, self.origin, &change));
                ChangeRequester::Session {
                    number,
                    token,
                    record,
                }
            }
        };
        self.state.ask(change, requester);
    }

    fn place(&mut self, _: QueueType, _: u32) -> Vec<NodeId> {
        // What needs no record lives where its client is.
        vec![self.state.ctx.node()]
    }

    fn place_queue(&mut self, queue: &QueueRecord) -> Vec<NodeId> {
        self.state.topology().place(queue)
    }

    fn publish(&mut self, queue: QueueId, tag: PublishTag, message: Message) -> FlowState {
        let state = &mut *self.state;
        state.queues.publish(
            &mut state.ctx,
            state.metadata.tree(),
            self.number,
            queue,
            tag,
            message,
        )
    }

    fn request(&mut self, queue: QueueId, body: RequestBody) -> RequestSeq {
        let is_audited = matches!(body, RequestBody::Purge | RequestBody::Delete { .. })
            && self.state.ctx.audit().is_some();
        let audited = is_audited.then(|| body.clone());
        let state = &mut *self.state;
        if state.ctx.records_spans() {
            state.ctx.note_request((self.number, queue), &body);
        }
        let seq = state.queues.request(
            &mut state.ctx,
            state.metadata.tree(),
            self.number,
            queue,
            body,
        );
        if let Some(body) = audited
            && let Some(trail) = state.ctx.audit_mut()
            && let Some(record) = state.metadata.tree().queue_by_id(queue)
        {
            trail.queue_requested((self.number, seq), self.origin, record, &body);
        }
        RequestSeq(seq)
    }

    fn send_after(&mut self, earlier: u64) {
        self.state
            .queues
            .clients_mut()
            .send_after(self.number, earlier);
    }

    fn publish_batch(&mut self, queue: QueueId, tag: PublishTag, batch: StreamBatch) -> FlowState {
        let state = &mut *self.state;
        state.queues.publish_batch(
            &mut state.ctx,
            state.metadata.tree(),
            self.number,
            queue,
            tag,
            batch,
        )
    }

    fn cursor(&mut self, queue: QueueId, send: CursorSend) {
        let state = &mut *self.state;
        state
            .queues
            .send_cursor(&state.ctx, self.number, queue, send);
    }

    fn browse(&mut self, queue: QueueId, request: &BrowseRequest, owner: Option<NodeId>) -> u64 {
        self.state.request_page(self.number, queue, request, owner)
    }

    fn watch(&mut self, queue: QueueId) {
        self.state.browsers.watch(self.number, queue);
    }

    fn leader_of(&self, queue: &QueueRecord) -> Option<NodeId> {
        self.state.queues.leader_for(self.number, queue)
    }

    fn is_reachable(&self, node: NodeId) -> bool {
        node == self.state.ctx.node() || self.state.cluster.peers().is_up(node)
    }

    fn received(&mut self, queue: QueueId, consumer: ConsumerId, up_to: u64) {
        let state = &mut *self.state;
        state
            .queues
            .handle_deliveries_sent(&mut state.ctx, self.number, queue, consumer, up_to);
    }

    fn settling(&self, queue: QueueId, consumer: ConsumerId) -> Vec<(u64, u64)> {
        self.state
            .queues
            .clients()
            .settling(self.number, queue, consumer)
    }

    fn unreachable_home(&self, queue: &QueueRecord) -> Option<Name> {
        if let Some(node) = self.state.metadata.tree().lost_on(queue.id) {
            return Some(node.clone());
        }
        let home = match &*queue.members {
            [home] if !queue.kind.is_replicated() && *home != self.state.ctx.node() => *home,
            _ => return None,
        };
        let name = || {
            self.state
                .metadata
                .tree()
                .node(home)
                .map(|n| n.name.clone())
        };
        (!self.state.cluster.peers().is_up(home)).then(|| name().unwrap_or_else(|| "?".into()))
    }

    fn publishers_blocked(&self) -> Option<&'static str> {
        self.state.blocked_reason(self.number)
    }

    fn is_throttled(&self) -> bool {
        self.marks.is_throttled()
    }

    fn draining(&self) -> bool {
        self.state.cluster.is_draining()
    }

    fn account(&mut self, user: &str, vhost: &str) -> Arc<SessionOwner> {
        let state = &mut *self.state;
        state.limits.owner(user, vhost, state.metadata.tree())
    }

    fn admit(&mut self, user: &str) -> Result<(), u64> {
        let state = &mut *self.state;
        let (now, tree) = (state.ctx.now(), state.metadata.tree());
        state.limits.admit(now, tree, self.number, user)?;
        self.mark_rate_limited();
        Ok(())
    }

    fn admit_to(&mut self, vhost: &str) -> Result<(), u64> {
        let state = &mut *self.state;
        let (now, tree) = (state.ctx.now(), state.metadata.tree());
        state.limits.admit_to(now, tree, self.number, vhost)?;
        self.mark_rate_limited();
        Ok(())
    }

    fn hold_unknown(&mut self, begins: bool) -> bool {
        self.state.limits.hold_unknown(begins)
    }

    fn note_held(&mut self) {
        let key = key_of(self.number);
        self.state.limits.budget().note(ConnectionKey(key));
    }

    fn admit_unread(&mut self, waiting: usize, bytes: usize) -> bool {
        self.state.limits.budget().admit_unread(waiting, bytes)
    }

    fn next_event(&mut self) -> Option<SessionEvent> {
        self.state.ctx.next_notice_for(self.number)
    }

    fn message_counters(&mut self, protocol: &'static str, message_counters: &MessageCounters) {
        let state = &mut *self.state;
        let sample = message_counters.sample.as_ref();
        let trace = match state.ctx.records_spans() {
            true => state.ctx.trace_of_delivery(self.number, sample),
            false => None,
        };
        if let Some(sample) = sample {
            let at = (state.ctx.now(), state.ctx.wall());
            state.delivery_sampler.offer(sample, at, trace);
        }
        state.limits.count_messages(
            state.metadata.tree(),
            self.number,
            protocol,
            message_counters,
        );
        if self.marks.is_rate_limited() && message_counters.publishes.received > 0 {
            let key = ConnectionKey(key_of(self.number));
            state.limits.charge(state.ctx.now(), key, message_counters);
        }
    }

    fn open_channel(&mut self) -> Result<(), ChannelLimit> {
        self.state
            .limits
            .open_channel(self.state.metadata.tree(), self.number)
    }

    fn close_channel(&mut self) {
        self.state
            .limits
            .close_channel(self.state.metadata.tree(), self.number);
    }

    fn services(&mut self) -> Option<&mut ServiceStates> {
        Some(self.state.services.states_mut())
    }

    fn change_by_service(&mut self, service: ServiceId, token: u64, change: Change) {
        let requester = self.state.services.requester(service, token);
        self.state.ask(change, requester);
    }

    fn announce(
        &mut self,
        vhost: &str,
        message: &Message,
        tag: PublishTag,
        routes: &mut Vec<QueueId>,
    ) -> AnnounceOutcome {
        let published = (vhost, message);
        self.state.announce(self.number, tag, published, routes)
    }

    fn trace(&mut self, traced: &TracedMessage<'_>) {
        let name = self.origin.name();
        self.state
            .trace(self.number, &format_args!("{name}"), traced);
    }

    fn trace_entries(
        &mut self,
        traced: &TracedEntries<'_>,
        messages: &mut dyn Iterator<Item = &[u8]>,
    ) {
        let number = self.number;
        self.state
            .ctx
            .note_spans(|spans, at| spans.record_entries(at, number, traced, messages));
    }

    fn note_login(&mut self, attempt: &LoginAttempt<'_>) {
        let succeeded = attempt.refusal.is_none();
        self.state.limits.count_login(attempt.protocol, succeeded);
        if let Some(trail) = self.state.ctx.audit_mut() {
            trail.login(self.number, self.origin, attempt);
        }
    }

    fn note_refused_vhost(&mut self, user: &str, vhost: &str, reason: &str) {
        if let Some(trail) = self.state.ctx.audit() {
            trail.refused_vhost(self.number, self.origin, (user, vhost), reason);
        }
    }

    fn refusals(&self) -> Option<&Refusals> {
        self.state.ctx.audit().map(|trail| trail.refusals())
    }

    fn count_stream_connection(&mut self, change: i64) {
        self.state.limits.count_stream_connection(change);
    }

    fn count_stream_error(&mut self, error: &'static str) {
        self.state.limits.count_stream_error(error);
    }

    fn verify(&mut self, user: &str, hash: &auth::PasswordHash, password: &[u8]) -> PasswordCheck {
        let client = (self.number, self.origin.peer());
        let state = &mut *self.state;
        state
            .limits
            .verify(state.ctx.now(), client, user, (hash, password))
    }

    fn renew(&mut self, identity: &metadata::Identity, secret: &[u8]) -> PasswordCheck {
        let client = (self.number, self.origin.peer());
        self.state.limits.renew(client, identity, secret)
    }
}
