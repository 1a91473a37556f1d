//! Shard services: the parts of protocols that have state on every shard ([`session::ShardService`]).

use super::ShardState;
use crate::Route;
use crate::frame::{FrameError, ServiceFrame};
use crate::listener_origin::Origin;
use crate::listings::ListingTarget;
use crate::metadata_client::ChangeRequester;
use crate::sessions::InternalSession;
use crate::sessions::Marks;
use crate::shard::Shard;
use crate::shard::view::View;
use crate::{Effect, LocalMessage};
use bytes::BytesMut;
use control::{ShardFacts, ShardQuery};
use env::{Incarnation, NodeId, Time};
use message::Message;
use metadata::{Change, QueueId, QueueRecord, TreeEvent};
use session::{
    AnnounceOutcome, ControlEvent, NodeStatus, Protocols, PublishTag, PublishedMessage,
    ServiceHost, ServiceId, ServiceNotification, ServiceOutput, ServiceStates, SessionEvent,
    ShardAddress, ShardService, TagRange, TickOutcome,
};
use smallvec::SmallVec;
use std::any::Any;
use std::collections::BTreeMap;

/// A deletion that waits for a service, and its requesters.
struct PostponedDeletion {
    change: Change,
    requesters: Vec<ChangeRequester>,
}

/// The services of a shard.
#[derive(Default)]
pub(super) struct Services {
    /// Their positions are those of their sessions ([`InternalSession::Service`]).
    list: Vec<&'static dyn ShardService>,
    states: ServiceStates,
    /// False after all outputs were passed on, until a service can have another one.
    may_have_outputs: bool,
    /// False after all frames were sent, until a service can have another one.
    may_have_frames: bool,
    /// The places for their events; `None` while the service's outputs are passed on.
    events: Vec<Option<Box<dyn Any + Send>>>,
    postponed: BTreeMap<QueueId, PostponedDeletion>,
}

impl Services {
    pub(super) fn new(protocols: &Protocols) -> Services {
        let mut services = Services::default();
        for registration in protocols.services() {
            services.list.push(registration.service);
            services.states_mut().push(registration.state);
            services.events.push(Some(registration.event));
        }
        services
    }

    pub(super) fn states(&self) -> &ServiceStates {
        &self.states
    }

    /// Access to the states for services and sessions, which may add outputs and frames.
    pub(super) fn states_mut(&mut self) -> &mut ServiceStates {
        self.note_access();
        &mut self.states
    }

    fn note_access(&mut self) {
        self.may_have_outputs = true;
        self.may_have_frames = true;
    }

    fn position(&self, id: ServiceId) -> Option<usize> {
        self.list.iter().position(|service| service.id() == id)
    }

    /// The position of the service whose session has this number.
    pub(super) fn of_session(&self, number: u64) -> Option<usize> {
        match InternalSession::from_number(number) {
            Some(InternalSession::Service(at)) => (at < self.list.len()).then_some(at),
            _ => None,
        }
    }

    pub(super) fn are_ready(&self) -> bool {
        let mut all = self.list.iter();
        all.all(|service| service.is_ready(&self.states))
    }

    pub(super) fn wake_at(&self) -> Option<Time> {
        let all = self.list.iter();
        all.filter_map(|service| service.wake_at(&self.states))
            .min()
    }

    /// The exchange to which sessions with this protocol label publish without counting that in the
    /// tree.
    pub(super) fn publishes_to(&self, protocol: &str) -> Option<&str> {
        let mut all = self.list.iter();
        all.find_map(|service| service.publishes_to(&self.states, protocol))
    }

    /// A service as the requester of a change. A service that the shard does not have gets no answer.
    pub(super) fn requester(&self, id: ServiceId, token: u64) -> ChangeRequester {
        match self.position(id) {
            Some(at) => ChangeRequester::Service { at, token },
            None => ChangeRequester::Nobody,
        }
    }

    /// The client whose session the queue stores.
    pub(super) fn client_of<'a>(&self, record: &'a QueueRecord) -> Option<&'a str> {
        self.list
            .iter()
            .find_map(|service| service.client_of(record))
    }
}

impl ShardState {
    /// Calls a function of each service.
    pub fn each_service(&mut self, mut call: impl FnMut(&dyn ShardService, &mut View<'_>)) {
        for at in 0..self.services.list.len() {
            self.with_service(at, &mut call);
        }
    }

    pub fn with_service<R>(
        &mut self,
        at: usize,
        call: impl FnOnce(&dyn ShardService, &mut View<'_>) -> R,
    ) -> Option<R> {
        let service = *self.services.list.get(at)?;
        let mut view = View {
            number: InternalSession::Service(at).number(self.ctx.shard()),
            origin: Origin::HERE,
            marks: Marks::default(),
            state: self,
        };
        Some(call(service, &mut view))
    }

    /// Does not note an access to the states, because services report outputs and frames of a tick:
    /// in most turns there are none.
    pub fn tick_services(&mut self) {
        for at in 0..self.services.list.len() {
            let Services { list, states, .. } = &mut self.services;
            let outcome = list[at].tick(states, self.ctx.now(), self.ctx.wall());
            if outcome != TickOutcome::Idle {
                self.services.note_access();
            }
            if outcome == TickOutcome::Due {
                self.with_service(at, |service, view| service.carry_out_due(view));
            }
        }
    }

    /// Sends the frames that services have collected in a turn.
    pub fn flush_services(&mut self) {
        if !self.services.may_have_frames {
            return;
        }
        for at in 0..self.services.list.len() {
            let Services { list, states, .. } = &self.services;
            if list[at].has_frames(states) {
                self.with_service(at, |service, view| service.flush(view));
            }
        }
        self.services.may_have_frames = false;
    }

    /// Announces a published message to subscriptions that are not backed by a queue.
    pub fn announce(
        &mut self,
        session: u64,
        tag: PublishTag,
        (vhost, message): (&str, &Message),
        routes: &mut Vec<QueueId>,
    ) -> AnnounceOutcome {
        let mut outcome = AnnounceOutcome::default();
        for at in 0..self.services.list.len() {
            let Services { list, states, .. } = &self.services;
            if list[at].has_subscribers(states, vhost) {
                let published = PublishedMessage {
                    session,
                    tag,
                    vhost,
                    message,
                };
                outcome += self.announce_to(at, &published, routes);
            }
        }
        outcome
    }

    /// Not inlined, because most messages of other protocols have no such subscribers.
    #[inline(never)]
    fn announce_to(
        &mut self,
        at: usize,
        published: &PublishedMessage<'_>,
        routes: &mut Vec<QueueId>,
    ) -> AnnounceOutcome {
        let announced = self.with_service(at, |service, view| {
            service.announce(view, published, routes)
        });
        announced.unwrap_or_default()
    }

    /// Remote subscribers have what a session of the shard itself published. Returns false for
    /// sessions of clients.
    pub fn publishes_confirmed(&mut self, session: u64, tags: TagRange) -> bool {
        match InternalSession::from_number(session) {
            Some(InternalSession::InternalClient) => {
                for tag in tags {
                    self.internal_client.handle_publish_result(tag, true);
                }
                self.route_internal_client();
            }
            Some(InternalSession::DeadLetters) => {
                for tag in tags {
                    self.handle_dead_letter_announced(tag.0);
                }
            }
            _ => return false,
        }
        true
    }

    /// An event for a session that has ended.
    #[cold]
    #[inline(never)]
    pub fn late_session_event(&mut self, session: u64, event: &SessionEvent) {
        if session == InternalSession::Firehose.number(self.ctx.shard()) {
            // See `Context::note_spans`.
            return self.ctx.flush_spans();
        }
        self.each_service(|service, view| service.late_session_event(view, session, event));
    }

    pub fn service_tree_event(&mut self, event: &TreeEvent) {
        self.each_service(|service, view| service.tree_event(view, event));
    }

    /// A frame of a service on another shard.
    pub fn take_service_frame(
        &mut self,
        node: NodeId,
        frame: ServiceFrame,
    ) -> Result<(), FrameError> {
        let (incarnation, shard) = frame.from;
        let from = ShardAddress {
            node,
            incarnation,
            shard,
        };
        if frame.to != self.ctx.config().incarnation
            || !self.cluster.peers().has_shard(&self.ctx, from)
        {
            return Ok(());
        }
        // A node without this protocol has no subscribers of it.
        let Some(at) = self.services.position(frame.service) else {
            return Ok(());
        };
        let taken = self.with_service(at, |service, view| service.frame(view, from, frame.body));
        taken.unwrap_or(Ok(())).map_err(|_| FrameError)
    }

    /// A message of a service on another shard of this node.
    pub fn take_service_message(
        &mut self,
        shard: u16,
        service: ServiceId,
        message: Box<dyn Any + Send>,
    ) {
        let from = ShardAddress {
            node: self.ctx.node(),
            incarnation: self.ctx.config().incarnation,
            shard,
        };
        let at = self.services.position(service);
        debug_assert!(at.is_some(), "all shards of a node have the same services");
        if let Some(at) = at {
            self.with_service(at, |service, view| service.message(view, from, message));
        }
    }

    /// Asks each service whether the deletion of a queue must wait. `None`: it waits, and the
    /// requester is answered when the queue is deleted.
    pub fn postpone_deletion(
        &mut self,
        change: &Change,
        requester: ChangeRequester,
    ) -> Option<ChangeRequester> {
        let Change::DeleteQueue { vhost, name, id } = change else {
            return Some(requester);
        };
        // The shard that asks has done this.
        if matches!(requester, ChangeRequester::Shard { .. }) {
            return Some(requester);
        }
        let Some(record) = self.metadata.tree().queue(vhost, name).cloned() else {
            return Some(requester);
        };
        let queue = record.id;
        if id.is_some_and(|id| id != queue) || self.metadata.tree().lost_on(queue).is_some() {
            return Some(requester);
        }
        if let Some(postponed) = self.services.postponed.get_mut(&queue) {
            postponed.requesters.push(requester);
            return None;
        }
        // Stored first, because the service may continue the deletion within the call.
        let postponed = PostponedDeletion {
            change: change.clone(),
            requesters: vec![requester],
        };
        self.services.postponed.insert(queue, postponed);
        let waits = (0..self.services.list.len()).any(|at| {
            let waits = self.with_service(at, |service, view| {
                service.postpones_deletion(view, &record)
            });
            waits == Some(true)
        });
        if waits {
            return None;
        }
        self.services.postponed.remove(&queue)?.requesters.pop()
    }

    fn delete_postponed(&mut self, queue: QueueId) {
        let Some(postponed) = self.services.postponed.remove(&queue) else {
            return;
        };
        for requester in postponed.requesters {
            self.ask_now(postponed.change.clone(), requester);
        }
    }

    /// Collects the counters of this node's shards for a service, those of this shard first.
    fn collect_counters(&mut self, at: usize) {
        let target = ListingTarget::Service(at, Box::default());
        let token = self.reports.ask_shards(
            &mut self.ctx,
            self.cluster.peers(),
            &ShardQuery::Counters,
            false,
            target,
        );
        let own = ShardFacts::Counters(Box::new(self.counters()));
        let me = (self.ctx.node(), self.ctx.now());
        self.reports
            .handle_facts(me.1, me.0, token, true, Some(own));
    }

    fn pass_on_collected_counters(&mut self) {
        while let Some((at, counters)) = self.reports.next_collected() {
            self.with_service(at, |service, view| {
                service.counters_collected(view, &counters);
            });
        }
    }
}

impl Shard {
    /// Passes the outputs of services on, one by one: an output that a session has not received when
    /// it ends stays with the service. Returns true if there were any.
    pub(crate) fn pass_on_service_outputs(&mut self) -> bool {
        self.state.pass_on_collected_counters();
        if !std::mem::take(&mut self.state.services.may_have_outputs) {
            return false;
        }
        let mut worked = false;
        for at in 0..self.state.services.list.len() {
            let service = self.state.services.list[at];
            let place = self.state.services.events[at].take();
            let Some(mut event) = place else { continue };
            while let Some(output) =
                service.next_output(&mut self.state.services.states, &mut *event)
            {
                worked = true;
                self.pass_on_output(at, output, &mut *event);
            }
            self.state.services.events[at] = Some(event);
        }
        worked
    }

    fn pass_on_output(&mut self, at: usize, output: ServiceOutput, event: &mut dyn Any) {
        match output {
            ServiceOutput::Event { session } => {
                if let Some(key) = self.sessions.by_number(session) {
                    self.step(key, |s, view, out| s.service_event(event, view, out));
                }
            }
            ServiceOutput::Confirmed { session, tags } => {
                if !self.state.publishes_confirmed(session, tags) {
                    self.notify(session, ServiceNotification::Confirmed { tags }.into());
                }
            }
            ServiceOutput::Unblocked { session } => {
                self.notify(session, ControlEvent::Unblocked.into());
            }
            ServiceOutput::Work => {
                self.state
                    .with_service(at, |service, view| service.carry_out(view, event));
            }
        }
    }

    /// Passes an event to a session, alone.
    fn notify(&mut self, number: u64, event: SessionEvent) {
        match self.sessions.by_number(number) {
            Some(key) => {
                self.step(key, |s, view, out| s.session_event(event, view, out));
            }
            None => self.state.late_session_event(number, &event),
        }
    }
}

impl ServiceHost for View<'_> {
    fn address(&self) -> ShardAddress {
        ShardAddress {
            node: self.state.ctx.node(),
            incarnation: self.state.ctx.config().incarnation,
            shard: self.state.ctx.shard(),
        }
    }

    fn shards(&self) -> u16 {
        self.state.ctx.config().shards
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        let me = self.state.ctx.node();
        let others = self
            .state
            .cluster
            .peers()
            .lives()
            .filter(|(node, _)| *node != me);
        others
            .map(|(node, peer)| NodeStatus {
                node,
                incarnation: peer.incarnation,
                shards: peer.shards,
                is_up: peer.up,
            })
            .collect()
    }

    fn is_up(&self, node: NodeId) -> bool {
        self.state.cluster.peers().is_up(node)
    }

    fn send(&mut self, to: ShardAddress, write: &mut dyn FnMut(&mut BytesMut)) {
        let Some(at) = self.state.services.of_session(self.number) else {
            return;
        };
        let state = &mut *self.state;
        let from: (Incarnation, u16) = (state.ctx.config().incarnation, state.ctx.shard());
        let service = state.services.list[at].id();
        debug_assert_ne!(
            to.node,
            state.ctx.node(),
            "pass() is for shards of this node"
        );
        let frame = ServiceFrame::encode_with(service, from, to.incarnation, write);
        state.ctx.push_effect(Effect::Peer {
            to: to.node,
            route: Route::Shard(to.shard),
            frame,
        });
    }

    fn pass(&mut self, shard: u16, message: Box<dyn Any + Send>) {
        let Some(at) = self.state.services.of_session(self.number) else {
            return;
        };
        let service = self.state.services.list[at].id();
        let message = LocalMessage::Service(service, message);
        self.state.ctx.send_local(shard, message);
    }

    fn notify(&mut self, session: u64, event: ControlEvent) {
        self.state.ctx.notify(session, event.into());
    }

    fn reaches_exchange(&self, vhost: &str, message: &Message, exchange: &str) -> bool {
        let keys: SmallVec<[&str; 4]> = message.routing_keys().collect();
        let deaths = message.deaths();
        let envelope = conversion::MessageEnvelope {
            message,
            deaths: deaths.as_ref(),
        };
        let way = (message.exchange(), exchange);
        self.state
            .metadata
            .tree()
            .passes_exchange(vhost, way, &keys, &envelope)
    }

    fn delete_postponed(&mut self, queue: QueueId) {
        self.state.delete_postponed(queue);
    }

    fn collect_counters(&mut self) {
        if let Some(at) = self.state.services.of_session(self.number) {
            self.state.collect_counters(at);
        }
    }

    fn version(&self) -> &'static str {
        self.state.ctx.config().program.version
    }

    fn started_at(&self) -> Time {
        self.state.ctx.started()
    }
}
