//! The sessions' side of queues: for each session and queue a [`QueueClient`] that numbers and keeps requests.

mod link_table;
mod stream_consumers;
#[cfg(test)]
mod tests;

use crate::FixedState;
use crate::context::Context;
use crate::precedence::Precedence;
use crate::queues::{Queues, QueuesOutput};
use crate::sessions::InternalSession;
use control::Reply;
use env::{NodeId, Time};
use hashbrown::HashMap;
use link_table::LinkTable;
use metadata::{ChangeError, QueueId, QueueRecord, QueueType, Tree};
use queue::client::{ClientEvent, QueueClient};
use queue::cursor::{CursorEvent, StreamBatch, StreamReply, StreamRequest};
use queue::{ConsumerId, QueueEvent, QueueReply, RejectReason, RequestBody, SettlementOutcome};
use session::{FlowState, PublishTag, QueueNotification, RequestSeq};
use std::collections::BTreeSet;
use std::sync::Arc;
use stream_consumers::{Handling, Output, StreamConsumers, cursor_of};

/// One session's way to one queue.
struct QueueLink {
    client: QueueClient<PublishTag>,
    kind: QueueType,
    /// Too much is on its way: the session is not read.
    full: bool,
    /// The entry in `QueueClients::due`.
    due: Option<Time>,
    /// Bytes of messages on their way, as counted in its session.
    bytes: usize,
    /// An earlier connection of the client has requests on their way to this queue: nothing is sent before they are applied.
    waits: bool,
    /// Of a stream only.
    stream: Option<Box<StreamConsumers>>,
}

impl QueueLink {
    /// When the client or a consumer needs to be told of the time.
    fn wake_at(&self) -> Option<Time> {
        let client = self.client.wake_at();
        match self.stream.as_ref().and_then(|stream| stream.wake_at()) {
            None => client,
            Some(consumers) => Some(client.map_or(consumers, |client| client.min(consumers))),
        }
    }

    fn has_requests(&self) -> bool {
        self.client.in_flight() > 0
    }
}

#[derive(Default)]
struct SessionQueueLinks {
    queues: LinkTable<QueueLink>,
    totals: LinkTotals,
}

/// Totals over all links of a session.
#[derive(Default)]
struct LinkTotals {
    /// Links that are full.
    full: usize,
    /// Of messages on their way to all queues.
    bytes: usize,
    /// The session is over: each link goes when its queue knows.
    closing: bool,
}

/// The totals after something happened to a link, as far as others must know.
struct LinkUpdate {
    flow: FlowState,
    /// The last full link of the session has room again.
    is_unblocked: bool,
    /// Less is on its way than before.
    is_relieved: bool,
    /// The session is over, and the queue knows.
    is_over: bool,
}

impl LinkUpdate {
    /// Of a link that is gone.
    const NOTHING: LinkUpdate = LinkUpdate {
        flow: FlowState::Steady,
        is_unblocked: false,
        is_relieved: false,
        is_over: false,
    };
}

impl LinkTotals {
    /// Brings the totals, and the entry of the link in `due`, up to date.
    #[inline]
    fn update(
        &mut self,
        link: &mut QueueLink,
        (number, queue): (u64, QueueId),
        due: &mut BTreeSet<(Time, u64, QueueId)>,
    ) -> LinkUpdate {
        let bytes = link.client.in_flight_bytes();
        let is_relieved = bytes < link.bytes;
        self.bytes = self.bytes - link.bytes + bytes;
        link.bytes = bytes;
        let full = link.client.is_full();
        let has_changed = full != link.full;
        if has_changed {
            link.full = full;
            self.full = if full { self.full + 1 } else { self.full - 1 };
        }
        // An entry that is too early stays: nearly every message moves the time to later.
        if let Some(at) = link.wake_at()
            && link.due.is_none_or(|before| at < before)
        {
            if let Some(before) = link.due.replace(at) {
                due.remove(&(before, number, queue));
            }
            due.insert((at, number, queue));
        }
        LinkUpdate {
            flow: match self.full {
                0 => FlowState::Steady,
                _ => FlowState::Behind,
            },
            is_unblocked: has_changed && self.full == 0,
            is_relieved,
            is_over: self.closing && link.client.in_flight() == 0,
        }
    }
}

#[derive(Default)]
pub struct QueueClients {
    sessions: HashMap<u64, SessionQueueLinks, FixedState>,
    /// The links by queue, so that a leader that changes does not visit the links of all queues.
    by_queue: BTreeSet<(QueueId, u64)>,
    /// Sessions whose last full link has moved on.
    relieved: Vec<u64>,
    /// When links need to be told of the time, or earlier. At most one entry for each.
    due: BTreeSet<(Time, u64, QueueId)>,
    control: HashMap<(QueueId, u64), Reply<Result<QueueReply, ChangeError>>, FixedState>,
    told: Vec<ClientEvent<PublishTag>>,
    precedence: Precedence,
}

impl QueueClients {
    /// Requests that their queues have not applied yet, of all sessions.
    pub fn in_flight(&self) -> usize {
        let links = self.sessions.values().flat_map(|s| s.queues.values());
        links.map(|l| l.client.in_flight()).sum()
    }

    /// The same by session and queue, and which node the queue's owner is taken to be on.
    pub fn waiting(&self) -> Vec<(u64, QueueId, Option<NodeId>, usize)> {
        let waits = |_, l: &QueueLink| l.client.in_flight() > 0;
        let told = |(session, queue): (u64, QueueId)| {
            let client = &self.sessions.get(&session)?.queues.get(&queue)?.client;
            Some((session, queue, client.owner(), client.in_flight()))
        };
        self.links(waits).into_iter().filter_map(told).collect()
    }

    /// The node that a session takes to be the owner of a queue.
    pub fn owner_of(&self, session: u64, queue: QueueId) -> Option<NodeId> {
        self.sessions
            .get(&session)?
            .queues
            .get(&queue)?
            .client
            .owner()
    }

    pub fn has_relieved(&self) -> bool {
        !self.relieved.is_empty()
    }

    /// Sessions none of whose queues is behind any more.
    pub fn take_relieved(&mut self) -> Vec<u64> {
        let mut relieved = std::mem::take(&mut self.relieved);
        // Some may be behind again.
        relieved.retain(|n| self.sessions.get(n).is_none_or(|s| s.totals.full == 0));
        relieved
    }

    /// Bytes of messages on their way from this session.
    pub fn in_flight_bytes(&self, number: u64) -> usize {
        self.sessions.get(&number).map_or(0, |s| s.totals.bytes)
    }

    pub fn link_is_full(&self, number: u64, queue: QueueId) -> bool {
        let session = self.sessions.get(&number);
        session
            .and_then(|s| s.queues.get(&queue))
            .is_some_and(|l| l.client.is_full())
    }

    /// What a session is done with and its queue may not have heard of.
    pub fn settling(&self, number: u64, queue: QueueId, consumer: ConsumerId) -> Vec<(u64, u64)> {
        let session = self.sessions.get(&number);
        let link = session.and_then(|s| s.queues.get(&queue));
        link.map_or_else(Vec::new, |l| l.client.settling(consumer))
    }

    pub fn wake_at(&self) -> Option<Time> {
        self.due.first().map(|(t, _, _)| *t)
    }

    fn link(&mut self, number: u64, queue: QueueId) -> Option<&mut QueueLink> {
        let session = self.sessions.get_mut(&number)?;
        session.queues.get_mut(&queue)
    }

    fn links(&self, pred: impl Fn(QueueId, &QueueLink) -> bool) -> Vec<(u64, QueueId)> {
        let all = self
            .sessions
            .iter()
            .flat_map(|(n, s)| s.queues.iter().map(move |(q, l)| (*n, q, l)));
        let mut found: Vec<_> = all
            .filter(|(_, q, l)| pred(*q, l))
            .map(|(n, q, _)| (n, q))
            .collect();
        // Hash order must not decide what is sent first.
        found.sort_unstable();
        found
    }

    /// The sessions with a link to a queue, in order.
    fn sessions_of(&self, queue: QueueId) -> Vec<u64> {
        let links = self.by_queue.range((queue, 0)..=(queue, u64::MAX));
        links.map(|(_, number)| *number).collect()
    }

    /// Orders all requests of `later` behind those of `earlier`, an ended session, at each queue.
    pub fn send_after(&mut self, later: u64, earlier: u64) {
        let links = self.sessions.get(&earlier).map(|s| &s.queues);
        let open: Vec<QueueId> = links
            .into_iter()
            .flat_map(LinkTable::iter)
            .filter(|(_, link)| link.has_requests())
            .map(|(queue, _)| queue)
            .collect();
        if open.is_empty() {
            return;
        }
        self.precedence.insert(later, earlier);
        for queue in open {
            if let Some(link) = self.link(later, queue) {
                link.waits = true;
            }
        }
    }

    /// True if a session for which this one waits has unapplied requests at the queue.
    fn must_wait(&self, number: u64, queue: QueueId) -> bool {
        let mut earlier = self.precedence.earlier_than(number);
        earlier.any(|earlier| {
            let session = self.sessions.get(&earlier);
            let link = session.and_then(|s| s.queues.get(&queue));
            link.is_some_and(|link| link.has_requests())
        })
    }

    /// Handles the end of a session's requests at a queue, which has applied them or never will. Returns the later sessions
    /// that need not wait for the queue any more.
    fn release(&mut self, number: u64, queue: QueueId) -> Vec<u64> {
        let later: Vec<u64> = self.precedence.later_than(number).collect();
        let session = self.sessions.get(&number);
        if !session.is_some_and(|s| s.queues.values().any(|link| link.has_requests())) {
            self.precedence.remove_earlier(number);
        }
        let mut released = Vec::new();
        for later in later {
            if self.must_wait(later, queue) {
                continue;
            }
            if let Some(link) = self.link(later, queue)
                && std::mem::take(&mut link.waits)
            {
                released.push(later);
            }
        }
        released
    }

    /// Forgets a link, and takes it out of the session's totals.
    fn drop_link(&mut self, number: u64, queue: QueueId) {
        let Some(session) = self.sessions.get_mut(&number) else {
            return;
        };
        let Some(link) = session.queues.remove(&queue) else {
            return;
        };
        let is_indexed = self.by_queue.remove(&(queue, number));
        debug_assert!(
            is_indexed,
            "the link of session {number} to {queue:?} is not indexed"
        );
        if let Some(at) = link.due {
            self.due.remove(&(at, number, queue));
        }
        session.totals.bytes -= link.bytes;
        if link.full {
            session.totals.full -= 1;
            if session.totals.full == 0 {
                self.relieved.push(number);
            }
        }
        if session.queues.is_empty() {
            self.sessions.remove(&number);
        }
    }

    /// Answers a request of the control plane.
    pub fn answer_control(&mut self, queue: QueueId, event: ClientEvent<PublishTag>) {
        if let ClientEvent::Answer { seq, answer } = event
            && let Some(reply) = self.control.remove(&(queue, seq))
        {
            reply(Ok(answer));
        }
    }
}

impl Queues {
    /// A session's request to a queue; returns its number.
    pub(crate) fn request(
        &mut self,
        ctx: &mut Context,
        tree: &Tree,
        number: u64,
        queue: QueueId,
        body: RequestBody,
    ) -> u64 {
        match self.client_link(ctx, tree, number, queue) {
            Some(link) if link.stream.is_some() => self.request_to_stream(ctx, number, queue, body),
            Some(link) => {
                let seq = link.client.request(body);
                self.carry_on(ctx, number, queue);
                seq
            }
            None => {
                let answer = QueueReply::Refused {
                    code: 404,
                    text: format!("NOT_FOUND - {}", no_link_reason(tree, queue)),
                };
                let notification = QueueNotification::Answer {
                    queue,
                    seq: RequestSeq(0),
                    answer,
                };
                ctx.notify(number, notification.into());
                0
            }
        }
    }

    /// A session's request to a stream. The session's side carries out those about deliveries and credit.
    fn request_to_stream(
        &mut self,
        ctx: &mut Context,
        number: u64,
        queue: QueueId,
        body: RequestBody,
    ) -> u64 {
        let mut outputs = Vec::new();
        let Some(link) = self.clients.link(number, queue) else {
            return 0;
        };
        let Some(stream) = &mut link.stream else {
            return link.client.request(body);
        };
        // Nothing stops a client that stores offsets, since they have no answer. One that is dropped is replaced by the next.
        if link.client.is_full()
            && matches!(body, RequestBody::Stream(StreamRequest::StoreOffset { .. }))
        {
            return 0;
        }
        let seq = match stream.request(body, &mut outputs) {
            Handling::Done(seq) => seq,
            Handling::Forward(body) => {
                let requested = match &body {
                    RequestBody::Consume { consumer, spec } => Some((*consumer, spec.clone())),
                    _ => None,
                };
                let seq = link.client.request(body);
                if let Some((consumer, spec)) = requested {
                    stream.requested(seq, consumer, spec);
                }
                seq
            }
        };
        self.carry_out_consumers(ctx, number, queue, outputs);
        self.carry_on(ctx, number, queue);
        seq
    }

    /// Sends requests of consumers of streams to replicas, and their events to the session.
    fn carry_out_consumers(
        &mut self,
        ctx: &mut Context,
        number: u64,
        queue: QueueId,
        outputs: Vec<Output>,
    ) {
        for output in outputs {
            match output {
                Output::Send(send) => {
                    let session = ctx.session(number);
                    self.outgoing.send_cursor(ctx, session, queue, send);
                }
                // Sessions of the shard itself do not consume from streams.
                Output::Notify(notification) => ctx.notify(number, notification.into()),
            }
        }
    }

    /// Calls `f` with the consumers of a session of a stream, if there are any.
    fn with_consumers(
        &mut self,
        ctx: &mut Context,
        number: u64,
        queue: QueueId,
        f: impl FnOnce(&mut StreamConsumers, &mut Vec<Output>),
    ) {
        let link = self.clients.link(number, queue);
        if let Some(stream) = link.and_then(|link| link.stream.as_mut()) {
            let mut outputs = Vec::new();
            f(stream, &mut outputs);
            self.carry_out_consumers(ctx, number, queue, outputs);
        }
    }

    /// A session publishes a batch to a stream, as a whole.
    pub(crate) fn publish_batch(
        &mut self,
        ctx: &mut Context,
        tree: &Tree,
        number: u64,
        queue: QueueId,
        tag: PublishTag,
        batch: StreamBatch,
    ) -> FlowState {
        let wanted = tag.expects_confirm().then_some(tag);
        match self.client_link(ctx, tree, number, queue) {
            Some(link) => {
                link.client.publish_batch(wanted, batch);
                if let Some(tag) = wanted {
                    let queue_type = link.kind;
                    self.sample_publish(ctx, (number, queue, tag), queue_type);
                }
                self.carry_on(ctx, number, queue)
            }
            None => refuse_publish(ctx, number, queue, wanted),
        }
    }

    /// An event of a replica of a stream for a cursor of a session.
    pub(crate) fn handle_cursor_event(
        &mut self,
        ctx: &mut Context,
        from: NodeId,
        number: u64,
        queue: QueueId,
        event: CursorEvent,
    ) {
        let link = self.clients.link(number, queue);
        let stream = link.and_then(|link| link.stream.as_mut());
        let now = ctx.now();
        if stream.is_some_and(|stream| stream.has(cursor_of(&event))) {
            self.with_consumers(ctx, number, queue, |consumers, outputs| {
                consumers.event(now, event, outputs);
            });
            self.carry_on(ctx, number, queue);
        } else if InternalSession::from_number(number).is_none() {
            let notification = QueueNotification::Cursor { queue, from, event };
            ctx.notify(number, notification.into());
        }
    }

    pub(crate) fn publish(
        &mut self,
        ctx: &mut Context,
        tree: &Tree,
        number: u64,
        queue: QueueId,
        tag: PublishTag,
        message: message::Message,
    ) -> FlowState {
        let wanted = tag.expects_confirm().then_some(tag);
        match self.client_link(ctx, tree, number, queue) {
            Some(link) => {
                link.client.publish(wanted, message);
                if let Some(tag) = wanted {
                    let queue_type = link.kind;
                    self.sample_publish(ctx, (number, queue, tag), queue_type);
                }
                self.carry_on(ctx, number, queue)
            }
            None => refuse_publish(ctx, number, queue, wanted),
        }
    }

    /// May measure the time until a message of a client is confirmed. Messages of the shard itself are not counted.
    #[inline]
    fn sample_publish(
        &mut self,
        ctx: &Context,
        key: (u64, QueueId, PublishTag),
        queue_type: QueueType,
    ) {
        if InternalSession::from_number(key.0).is_none() {
            self.confirm_sampler.publish(key, queue_type, ctx.now());
        }
    }

    /// A session's client was sent a consumer's deliveries up to this one.
    pub(crate) fn handle_deliveries_sent(
        &mut self,
        ctx: &mut Context,
        number: u64,
        queue: QueueId,
        consumer: ConsumerId,
        up_to: u64,
    ) {
        let Some(link) = self.clients.link(number, queue) else {
            return;
        };
        match link.stream {
            None => link.client.received(consumer, up_to),
            Some(_) => self.with_consumers(ctx, number, queue, |consumers, outputs| {
                consumers.received(consumer, up_to, outputs);
            }),
        }
        self.carry_on(ctx, number, queue);
    }

    /// None: the queue is deleted or lost.
    fn client_link(
        &mut self,
        ctx: &Context,
        tree: &Tree,
        number: u64,
        queue: QueueId,
    ) -> Option<&mut QueueLink> {
        let record = tree.queue_by_id(queue)?;
        if tree.lost_on(queue).is_some() {
            return None;
        }
        let waits = !self.clients.precedence.is_empty() && self.clients.must_wait(number, queue);
        let links = self.clients.sessions.entry(number).or_default();
        let link = links.queues.get_or_insert_with(queue, || {
            let owner = self.local.leader_of(queue);
            let owner = owner.or_else(|| self.stream_leaders.leader_of(queue));
            let owner = owner.or_else(|| likeliest_leader(record, ctx.node(), &self.linked));
            let (session, members) = (ctx.session(number), record.members.clone());
            let is_stream = record.kind.descriptor().cursors;
            let client = match is_stream {
                true => QueueClient::of_stream(session, members, owner, ctx.now()),
                false => QueueClient::new(session, record.kind, members, owner, ctx.now()),
            };
            self.clients.by_queue.insert((queue, number));
            QueueLink {
                stream: is_stream.then(|| Box::new(StreamConsumers::new(Arc::clone(record)))),
                client,
                kind: record.kind,
                full: false,
                due: None,
                bytes: 0,
                waits,
            }
        });
        Some(link)
    }

    /// After anything happened to a link: sends what it wants sent, tells the session what it is told, updates the totals.
    fn carry_on(&mut self, ctx: &mut Context, number: u64, queue: QueueId) -> FlowState {
        self.step_link(ctx, number, queue, |_, _| {})
    }

    /// Does something to a link, and carries it on. This is the hot path: the link is looked up once, or twice if the session
    /// is told something.
    #[inline]
    fn step_link(
        &mut self,
        ctx: &mut Context,
        number: u64,
        queue: QueueId,
        step: impl FnOnce(&mut QueueLink, &mut Vec<ClientEvent<PublishTag>>),
    ) -> FlowState {
        let clients = &mut self.clients;
        let mut update = None;
        if let Some(session) = clients.sessions.get_mut(&number)
            && let Some(link) = session.queues.get_mut(&queue)
        {
            step(link, &mut clients.told);
            if !link.waits {
                while let Some(owner) = link.client.owner()
                    && let Some(message) = link.client.poll_send()
                {
                    self.outgoing.send_request(ctx, owner, queue, message);
                }
            }
            if clients.told.is_empty() {
                update = Some(
                    session
                        .totals
                        .update(link, (number, queue), &mut clients.due),
                );
            }
        }
        let update = update.unwrap_or_else(|| self.tell_all(ctx, number, queue));
        if update.is_unblocked {
            self.clients.relieved.push(number);
        }
        if update.is_over {
            self.clients.drop_link(number, queue);
        }
        if update.is_relieved
            && InternalSession::from_number(number) == Some(InternalSession::DeadLetters)
        {
            self.push_output(QueuesOutput::DeadLettersRelieved);
        }
        if !self.clients.precedence.is_empty() {
            self.release_later(ctx, number, queue);
        }
        update.flow
    }

    /// Tells a session what its link has for it, and updates the totals.
    fn tell_all(&mut self, ctx: &mut Context, number: u64, queue: QueueId) -> LinkUpdate {
        let mut told = std::mem::take(&mut self.clients.told);
        for peer_message in told.drain(..) {
            self.tell(ctx, number, queue, peer_message);
        }
        let clients = &mut self.clients;
        clients.told = told;
        let Some(session) = clients.sessions.get_mut(&number) else {
            return LinkUpdate::NOTHING;
        };
        match session.queues.get_mut(&queue) {
            Some(link) => session
                .totals
                .update(link, (number, queue), &mut clients.due),
            None => LinkUpdate::NOTHING,
        }
    }

    /// Lets later sessions send what waited for this one's requests to a queue, if none is on its way.
    #[cold]
    fn release_later(&mut self, ctx: &mut Context, number: u64, queue: QueueId) {
        let link = self.clients.link(number, queue);
        if link.is_some_and(|link| link.has_requests()) {
            return;
        }
        // The order of a client's connections ends the recursion.
        for later in self.clients.release(number, queue) {
            self.carry_on(ctx, later, queue);
        }
    }

    /// Passes an event of a queue on to its session.
    fn tell(
        &mut self,
        ctx: &mut Context,
        number: u64,
        queue: QueueId,
        event: ClientEvent<PublishTag>,
    ) {
        match &event {
            ClientEvent::Answer { seq, answer } => {
                self.handle_answer(ctx, number, queue, (*seq, answer));
            }
            ClientEvent::Published(tag) => {
                let is_recorded = ctx.records_spans();
                let trace = match is_recorded {
                    true => ctx.trace_of_publish((number, *tag)),
                    false => None,
                };
                let key = (number, queue, *tag);
                self.confirm_sampler.confirmed(key, ctx.now(), trace);
                if is_recorded {
                    ctx.note_answer((number, *tag), true);
                }
            }
            ClientEvent::NotPublished(tag, _) => {
                self.confirm_sampler.forget(number, queue);
                ctx.note_answer((number, *tag), false);
            }
            ClientEvent::TimedOut { consumer, up_to } => {
                let settled = RequestBody::Settle {
                    consumer: *consumer,
                    outcome: SettlementOutcome::Requeue,
                    ids: vec![(0, *up_to)],
                };
                ctx.note_request((number, queue), &settled);
            }
            _ => {}
        }
        match InternalSession::from_number(number) {
            None => ctx.notify(number, notification(queue, event).into()),
            Some(session) => self.output_for(session, queue, event),
        }
    }

    /// The leader of a stream has answered a request: a consumer may have been accepted.
    #[inline]
    fn handle_answer(
        &mut self,
        ctx: &mut Context,
        number: u64,
        queue: QueueId,
        answer: (u64, &QueueReply),
    ) {
        if let Some(trail) = ctx.audit_mut() {
            trail.queue_answered(number, queue, answer);
        }
        let link = self.clients.link(number, queue);
        if let Some(stream) = link.and_then(|link| link.stream.as_mut()) {
            let mut outputs = Vec::new();
            stream.answered(ctx, answer, &mut outputs);
            self.carry_out_consumers(ctx, number, queue, outputs);
        }
    }

    /// A queue's word for a session of this shard.
    pub(crate) fn handle_event(
        &mut self,
        ctx: &mut Context,
        from: NodeId,
        number: u64,
        queue: QueueId,
        event: QueueEvent,
    ) {
        let now = ctx.now();
        self.step_link(ctx, number, queue, |link, told| {
            link.client.event(now, from, event, told);
        });
    }

    pub(crate) fn tick_clients(&mut self, ctx: &mut Context) {
        let now = ctx.now();
        while self.clients.wake_at().is_some_and(|at| at <= now) {
            let Some((_, number, queue)) = self.clients.due.pop_first() else {
                return;
            };
            if let Some(link) = self.clients.link(number, queue) {
                link.due = None;
                let is_linked = |node| node == ctx.node() || self.linked.contains(&node);
                link.client.tick(now, is_linked);
            }
            self.with_consumers(ctx, number, queue, |consumers, outputs| {
                consumers.each(outputs, |consumer, outputs| consumer.tick(now, outputs));
            });
            self.carry_on(ctx, number, queue);
        }
    }

    /// This node's own replica of a queue has heard of a leader.
    pub(crate) fn handle_leader(&mut self, ctx: &mut Context, queue: QueueId, leader: NodeId) {
        let now = ctx.now();
        for number in self.clients.sessions_of(queue) {
            let link = self.clients.link(number, queue);
            if let Some(link) = link.filter(|link| link.client.owner() != Some(leader)) {
                link.client.owner_is(now, Some(leader));
                self.carry_on(ctx, number, queue);
            }
        }
    }

    pub(crate) fn handle_members_changed(
        &mut self,
        ctx: &mut Context,
        queue: QueueId,
        members: &[NodeId],
    ) {
        let (now, node) = (ctx.now(), ctx.node());
        for number in self.clients.sessions_of(queue) {
            if let Some(link) = self.clients.link(number, queue) {
                link.client.set_members(members.to_vec());
            }
            self.with_consumers(ctx, number, queue, |consumers, outputs| {
                consumers.set_members(now, node, members, outputs);
            });
            self.carry_on(ctx, number, queue);
        }
    }

    /// The link to a node is lost: a quorum queue that was led there is led elsewhere soon; a classic one is out of reach.
    pub(crate) fn handle_node_down(&mut self, ctx: &mut Context, node: NodeId) {
        let now = ctx.now();
        self.linked.remove(&node);
        for (number, queue) in self.clients.links(|_, l| l.client.owner() == Some(node)) {
            let mut told = std::mem::take(&mut self.clients.told);
            let hint = self.local.leader_of(queue).filter(|l| *l != node);
            match self.clients.link(number, queue) {
                Some(link) if !link.kind.is_replicated() => link.client.owner_lost(&mut told),
                Some(link) => link.client.owner_is(now, hint),
                None => {}
            }
            self.clients.told = told;
            self.carry_on(ctx, number, queue);
        }
        for (number, queue) in self.clients.links(|_, l| l.stream.is_some()) {
            self.with_consumers(ctx, number, queue, |consumers, outputs| {
                consumers.each(outputs, |consumer, outputs| {
                    consumer.node_lost(node, now, outputs);
                });
            });
            self.carry_on(ctx, number, queue);
        }
    }

    /// Frames may have been lost on the way to that node.
    pub(crate) fn handle_node_up(&mut self, ctx: &mut Context, node: NodeId) {
        let now = ctx.now();
        self.linked.insert(node);
        for (number, queue) in self.clients.links(|_, l| l.stream.is_some()) {
            self.with_consumers(ctx, number, queue, |consumers, outputs| {
                consumers.each(outputs, |consumer, outputs| {
                    consumer.node_restored(node, outputs);
                });
            });
            self.carry_on(ctx, number, queue);
        }
        for (number, queue) in self.clients.links(|_, l| l.client.owner() == Some(node)) {
            if let Some(link) = self.clients.link(number, queue) {
                link.client.link_restored(now);
            }
            self.carry_on(ctx, number, queue);
        }
    }

    /// The queue is no more: nothing sent to it will be answered.
    pub(crate) fn handle_queue_removed(&mut self, ctx: &mut Context, queue: QueueId) {
        for number in self.clients.sessions_of(queue) {
            let mut told = std::mem::take(&mut self.clients.told);
            if let Some(link) = self.clients.link(number, queue) {
                link.client.owner_lost(&mut told);
            }
            for peer_message in told.drain(..) {
                self.tell(ctx, number, queue, peer_message);
            }
            self.clients.told = told;
            self.with_consumers(ctx, number, queue, |consumers, outputs| {
                consumers.end(outputs)
            });
            self.clients.drop_link(number, queue);
            self.release_later(ctx, number, queue);
            if InternalSession::from_number(number).is_none() {
                ctx.notify(number, QueueNotification::Removed { queue }.into());
            }
        }
        self.clients.control.retain(|(q, _), _| *q != queue);
        self.stream_leaders.forget(queue);
    }

    /// The session is over: its queues are told, and forgotten when they know.
    pub(crate) fn handle_session_end(&mut self, ctx: &mut Context, tree: &Tree, number: u64) {
        let Some(session) = self.clients.sessions.get_mut(&number) else {
            return;
        };
        session.totals.closing = true;
        let mut queues: Vec<QueueId> = session.queues.keys().collect();
        queues.sort_unstable();
        for queue in queues {
            self.confirm_sampler.forget(number, queue);
            self.with_consumers(ctx, number, queue, |consumers, outputs| {
                consumers.each(outputs, |consumer, outputs| consumer.cancel(outputs));
            });
            self.request(ctx, tree, number, queue, RequestBody::Close);
        }
    }

    pub(crate) fn request_for_control(
        &mut self,
        ctx: &mut Context,
        tree: &Tree,
        number: u64,
        queue: QueueId,
        body: RequestBody,
        reply: Reply<Result<QueueReply, ChangeError>>,
    ) {
        let Some(link) = self.client_link(ctx, tree, number, queue) else {
            return reply(Err(ChangeError::NotFound(no_link_reason(tree, queue))));
        };
        let is_answered = match &body {
            RequestBody::Stream(request) => request.has_answer(),
            _ => true,
        };
        let seq = link.client.request(body);
        match is_answered {
            true => drop(self.clients.control.insert((queue, seq), reply)),
            // A later request in this session is applied after it.
            false => reply(Ok(QueueReply::Stream(StreamReply::Offset(None)))),
        }
        self.carry_on(ctx, number, queue);
    }
}

/// Tells a session that a queue which is deleted or lost did not take its publish, if it expects a confirm.
/// The member to ask for the leader of a queue. The own node comes before others whose replica need not lead, because another
/// shard of it knows the leader. `None`: no member is linked.
fn likeliest_leader(
    record: &QueueRecord,
    node: NodeId,
    linked: &BTreeSet<NodeId>,
) -> Option<NodeId> {
    let is_linked = |member: &NodeId| *member == node || linked.contains(member);
    let first = record.members.first().copied().filter(is_linked);
    let own = || record.members.contains(&node).then_some(node);
    let other = || record.members.iter().copied().find(is_linked);
    first.or_else(own).or_else(other)
}

#[cold]
fn refuse_publish(
    ctx: &mut Context,
    number: u64,
    queue: QueueId,
    tag: Option<PublishTag>,
) -> FlowState {
    if let Some(tag) = tag {
        ctx.note_answer((number, tag), false);
        let why = RejectReason::Unavailable;
        let notification = QueueNotification::NotPublished { queue, tag, why };
        ctx.notify(number, notification.into());
    }
    FlowState::Steady
}

/// Why a session gets no client of a queue.
fn no_link_reason(tree: &Tree, queue: QueueId) -> String {
    let record = tree.queue_by_id(queue);
    let lost = record.and_then(|record| tree.lost_reason(record));
    lost.unwrap_or_else(|| "the queue is gone".into())
}

/// The event of a queue client as its session gets it.
pub(crate) fn notification(queue: QueueId, event: ClientEvent<PublishTag>) -> QueueNotification {
    match event {
        ClientEvent::Published(tag) => QueueNotification::Published { queue, tag },
        ClientEvent::NotPublished(tag, why) => QueueNotification::NotPublished { queue, tag, why },
        ClientEvent::Answer { seq, answer } => QueueNotification::Answer {
            queue,
            seq: RequestSeq(seq),
            answer,
        },
        ClientEvent::Deliver {
            consumer,
            deliveries,
        } => QueueNotification::Deliver {
            queue,
            consumer,
            deliveries,
        },
        ClientEvent::Cancelled { consumer, reason } => QueueNotification::Cancelled {
            queue,
            consumer,
            reason,
        },
        ClientEvent::TimedOut { consumer, up_to } => QueueNotification::TimedOut {
            queue,
            consumer,
            up_to,
        },
        ClientEvent::Activity {
            consumer,
            is_active,
            owner,
        } => QueueNotification::Activity {
            queue,
            consumer,
            is_active,
            owner,
        },
    }
}
