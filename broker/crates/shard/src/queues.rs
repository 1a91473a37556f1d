//! The queues of a shard and the clients of its sessions for queues anywhere.
//!
//! Owns: the replicas and the consensus host ([`LocalQueues`]), for each session and queue a client that numbers requests
//! ([`QueueClients`]), the requests and events that are on their way in this turn ([`Outgoing`]), and the deletions that the
//! shard has requested itself.
//!
//! Inputs: requests of sessions, frames of other shards, links that come and go, queues that the metadata log adds or removes.
//! Lookups go to the tree, which is a read-only argument.
//!
//! Outputs: notices for sessions and frames through the [`Context`]; what concerns sessions of the shard itself as
//! [`QueuesOutput`]s, which the loop passes on.

use crate::clients::QueueClients;
use crate::confirm_sampler::ConfirmSampler;
use crate::context::Context;
use crate::local_queues::LocalQueues;
use crate::outgoing::Outgoing;
use crate::sessions::InternalSession;
use crate::stream_leaders::StreamLeaders;
use env::{NodeId, Time};
use metadata::{QueueId, QueueRecord, SessionId, Tree};
use queue::client::ClientEvent;
use queue::cursor::{AddressedCursorEvent, CursorEvent, CursorRequest, CursorSend};
use queue::{QueueEvent, QueueMessage};
use session::{PublishTag, QueueNotification};
use std::collections::{BTreeSet, VecDeque};

/// An event for a session of the shard itself.
pub(crate) enum QueuesOutput {
    DeadLetter(QueueId, ClientEvent<PublishTag>),
    /// A queue has taken a message of the dead letter session: further ones have room.
    DeadLettersRelieved,
    InternalClient(QueueId, ClientEvent<PublishTag>),
    /// For the service at this position.
    Service(usize, QueueNotification),
}

pub(crate) struct Queues {
    pub(super) clients: QueueClients,
    pub(super) local: LocalQueues,
    pub(super) outgoing: Outgoing,
    pub(super) stream_leaders: StreamLeaders,
    pub(super) confirm_sampler: ConfirmSampler,
    /// Other nodes that are linked.
    pub(super) linked: BTreeSet<NodeId>,
    /// Queues whose deletion this shard has requested, because nobody else may do so.
    deleting: BTreeSet<QueueId>,
    outputs: VecDeque<QueuesOutput>,
}

impl Queues {
    pub(crate) fn new(local: LocalQueues, confirm_sampler: ConfirmSampler) -> Queues {
        Queues {
            clients: QueueClients::default(),
            local,
            outgoing: Outgoing::default(),
            stream_leaders: StreamLeaders::default(),
            confirm_sampler,
            linked: BTreeSet::new(),
            deleting: BTreeSet::new(),
            outputs: VecDeque::new(),
        }
    }

    pub(crate) fn local(&self) -> &LocalQueues {
        &self.local
    }

    pub(crate) fn local_mut(&mut self) -> &mut LocalQueues {
        &mut self.local
    }

    pub(crate) fn clients(&self) -> &QueueClients {
        &self.clients
    }

    pub(crate) fn clients_mut(&mut self) -> &mut QueueClients {
        &mut self.clients
    }

    pub(crate) fn next_output(&mut self) -> Option<QueuesOutput> {
        self.outputs.pop_front()
    }

    pub(super) fn push_output(&mut self, output: QueuesOutput) {
        self.outputs.push_back(output);
    }

    /// Requests of another shard or node to a queue of this one.
    pub(crate) fn handle_requests(
        &mut self,
        queue: QueueId,
        messages: impl Iterator<Item = QueueMessage>,
    ) {
        let requests = messages.map(|message| (queue, message));
        self.outgoing.local_requests.extend(requests);
    }

    /// Events of a queue on another shard or node for a session of this one.
    pub(crate) fn handle_events(
        &mut self,
        from: NodeId,
        session: u64,
        queue: QueueId,
        events: Vec<QueueEvent>,
    ) {
        let events = events
            .into_iter()
            .map(|event| (from, session, queue, event));
        self.outgoing.local_events.extend(events);
    }

    /// Carries out the requests to queues of this shard. Returns true if there were any.
    pub(crate) fn step_requests(&mut self) -> bool {
        let mut worked = false;
        while let Some((queue, message)) = self.outgoing.local_requests.pop_front() {
            self.local.step(queue, message);
            worked = true;
        }
        if !self.outgoing.local_cursors.is_empty() {
            self.step_cursors();
            worked = true;
        }
        worked
    }

    /// The next event for a session of this shard, to be handed to [`Queues::handle_event`].
    pub(crate) fn next_event(&mut self) -> Option<(NodeId, u64, QueueId, QueueEvent)> {
        self.outgoing.local_events.pop_front()
    }

    #[cold]
    fn step_cursors(&mut self) {
        while let Some((queue, session, request)) = self.outgoing.local_cursors.pop_front() {
            self.local.handle_cursor(queue, session, request);
        }
    }

    /// Returns true if there are events for cursors of sessions of this shard.
    #[inline]
    pub(crate) fn has_cursor_events(&self) -> bool {
        !self.outgoing.local_cursor_events.is_empty()
    }

    /// The next event for a cursor of a session of this shard, to be handed to [`Queues::handle_cursor_event`].
    pub(crate) fn next_cursor_event(&mut self) -> Option<(NodeId, u64, QueueId, CursorEvent)> {
        self.outgoing.local_cursor_events.pop_front()
    }

    /// Events of a replica of a stream on another shard or node for a session of this one.
    pub(crate) fn handle_cursor_events(
        &mut self,
        from: NodeId,
        session: u64,
        queue: QueueId,
        events: Vec<CursorEvent>,
    ) {
        let events = events
            .into_iter()
            .map(|event| (from, session, queue, event));
        self.outgoing.local_cursor_events.extend(events);
    }

    /// A session sends a request of a cursor to a replica.
    pub(crate) fn send_cursor(
        &mut self,
        ctx: &Context,
        session: u64,
        queue: QueueId,
        send: CursorSend,
    ) {
        let session = ctx.session(session);
        self.outgoing.send_cursor(ctx, session, queue, send);
    }

    /// Requests of cursors on another shard or node.
    pub(crate) fn handle_cursor_requests(
        &mut self,
        queue: QueueId,
        session: SessionId,
        requests: Vec<CursorRequest>,
    ) {
        let requests = requests
            .into_iter()
            .map(|request| (queue, session, request));
        self.outgoing.local_cursors.extend(requests);
    }

    /// A node leads a stream. Returns true if that is news.
    pub(crate) fn handle_stream_leader(
        &mut self,
        queue: QueueId,
        term: u64,
        leader: NodeId,
    ) -> bool {
        self.stream_leaders.heard(queue, term, leader)
    }

    /// The leader of a queue, or the node that has it, as far as this shard knows.
    pub(crate) fn leader_of(&self, record: &QueueRecord) -> Option<NodeId> {
        if !record.kind.is_replicated() {
            return record.members.first().copied();
        }
        let heard = self.stream_leaders.leader_of(record.id);
        heard.or_else(|| self.local.leader_of(record.id))
    }

    /// The leader of a queue, or else the node that a session takes to be it, because that node answers the session.
    pub(crate) fn leader_for(&self, session: u64, record: &QueueRecord) -> Option<NodeId> {
        let leader = self.leader_of(record);
        leader.or_else(|| self.clients.owner_of(session, record.id))
    }

    /// Sends the events of this shard's queues to their sessions. Returns true if there were any.
    pub(crate) fn forward_events(&mut self, tree: &Tree, ctx: &Context) -> bool {
        let mut has_cursor_events = false;
        if self.local.has_cursor_events() {
            has_cursor_events = true;
            for (queue, addressed) in self.local.take_cursor_events() {
                let AddressedCursorEvent { session, event } = addressed;
                self.outgoing.send_cursor_event(ctx, session, queue, event);
            }
        }
        if !self.local.has_events() {
            return has_cursor_events;
        }
        let mut events: Vec<(SessionId, QueueId, QueueEvent)> = self.local.take_events();
        for (session, queue, event) in events.drain(..) {
            self.outgoing.send_event(tree, ctx, session, queue, event);
        }
        self.local.reuse_events(events);
        true
    }

    /// Sends the requests and events for other shards and nodes.
    pub(crate) fn flush(&mut self, ctx: &mut Context) {
        self.outgoing.flush(ctx);
    }

    /// Notes that this shard deletes a queue. Returns false if it does so already.
    pub(crate) fn begin_deletion(&mut self, queue: QueueId) -> bool {
        self.deleting.insert(queue)
    }

    pub(crate) fn is_deleting(&self, queue: QueueId) -> bool {
        self.deleting.contains(&queue)
    }

    /// The deletion was refused, or the queue is removed from the tree.
    pub(crate) fn end_deletion(&mut self, queue: QueueId) {
        self.deleting.remove(&queue);
    }

    /// Queues whose deletion must be completed here.
    ///
    /// A queue takes its deletion first, then the session that requested it removes the record from the tree. If that session
    /// ends in between, the queue would stay for ever and take nothing.
    pub(crate) fn begin_overdue_deletions(&mut self) -> Vec<QueueId> {
        let mut overdue = self.local.over();
        overdue.retain(|queue| self.deleting.insert(*queue));
        overdue
    }

    pub(crate) fn wake_at(&self) -> Option<Time> {
        let times = [
            self.local.wake_at(),
            self.local.host_wake(),
            self.clients.wake_at(),
        ];
        Time::earliest(times)
    }

    /// Passes an event of a queue on to a session of the shard itself.
    #[cold]
    pub(super) fn output_for(
        &mut self,
        session: InternalSession,
        queue: QueueId,
        event: ClientEvent<PublishTag>,
    ) {
        let output = match session {
            InternalSession::DeadLetters => QueuesOutput::DeadLetter(queue, event),
            InternalSession::InternalClient => QueuesOutput::InternalClient(queue, event),
            InternalSession::Service(at) => {
                QueuesOutput::Service(at, crate::clients::notification(queue, event))
            }
            InternalSession::Control => return self.clients.answer_control(queue, event),
            // Copies of traced messages ask for no confirm.
            InternalSession::Firehose => return,
        };
        self.push_output(output);
    }
}
