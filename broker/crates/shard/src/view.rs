//! The node as one session sees it: [`session::Broker`] over the shard's core.

use crate::ConnectionKey;
use crate::core::Core;
use crate::listener_origin::Origin;
use crate::metadata_client::ChangeRequester;
use env::{NodeId, Time, WallTime};
use message::Message;
use metadata::{Change, Name, QueueId, QueueRecord, QueueType, SessionId, Tree};
use queue::{ConsumerId, RequestBody};
use session::{
    AnnounceOutcome, Broker, FlowState, MessageCounters, PasswordCheck, PublishTag, RequestSeq,
    ServiceId, ServiceStates, SessionOwner, TracedMessage,
};
use std::net::SocketAddr;
use std::sync::Arc;

pub struct View<'a> {
    pub core: &'a mut Core,
    pub number: u64,
    pub origin: Origin<'a>,
}

impl Broker for View<'_> {
    fn id(&self) -> SessionId {
        self.core.ctx.session(self.number)
    }

    fn peer(&self) -> SocketAddr {
        self.origin.peer()
    }

    fn now(&self) -> Time {
        self.core.ctx.now()
    }

    fn wall(&self) -> WallTime {
        self.core.ctx.wall()
    }

    fn random(&mut self) -> u64 {
        self.core.ctx.random()
    }

    fn tree(&self) -> &Tree {
        &self.core.tree
    }

    /// On a node alone the first shard's tree is the first to have a change.
    fn knows_all(&self) -> bool {
        self.core.directory.is_some() && self.core.tree.nodes().nth(1).is_none()
    }

    fn change(&mut self, token: u64, change: Change) {
        let number = self.number;
        let requester = match self.core.services.of_session(number) {
            Some(at) => ChangeRequester::Service { at, token },
            None => ChangeRequester::Session { number, token },
        };
        self.core.ask(change, requester);
    }

    fn place(&mut self, _: QueueType, _: u32) -> Vec<NodeId> {
        // What needs no record lives where its client is.
        vec![self.core.ctx.node()]
    }

    fn place_queue(&mut self, queue: &QueueRecord) -> Vec<NodeId> {
        self.core.place(queue)
    }

    fn publish(&mut self, queue: QueueId, tag: PublishTag, message: Message) -> FlowState {
        let core = &mut *self.core;
        core.queues
            .publish(&mut core.ctx, &core.tree, self.number, queue, tag, message)
    }

    fn request(&mut self, queue: QueueId, body: RequestBody) -> RequestSeq {
        let core = &mut *self.core;
        RequestSeq(
            core.queues
                .request(&mut core.ctx, &core.tree, self.number, queue, body),
        )
    }

    fn send_after(&mut self, earlier: u64) {
        self.core
            .queues
            .clients_mut()
            .send_after(self.number, earlier);
    }

    fn received(&mut self, queue: QueueId, consumer: ConsumerId, up_to: u64) {
        let core = &mut *self.core;
        core.queues
            .handle_deliveries_sent(&mut core.ctx, self.number, queue, consumer, up_to);
    }

    fn settling(&self, queue: QueueId, consumer: ConsumerId) -> Vec<(u64, u64)> {
        self.core
            .queues
            .clients()
            .settling(self.number, queue, consumer)
    }

    fn unreachable_home(&self, queue: &QueueRecord) -> Option<Name> {
        if let Some(node) = self.core.tree.lost_on(queue.id) {
            return Some(node.clone());
        }
        let home = match &*queue.members {
            [home] if !queue.kind.is_replicated() && *home != self.core.ctx.node() => *home,
            _ => return None,
        };
        let name = || self.core.tree.node(home).map(|n| n.name.clone());
        (!self.core.peers.is_up(home)).then(|| name().unwrap_or_else(|| "?".into()))
    }

    fn publishers_blocked(&self) -> Option<&'static str> {
        self.core.alarms.in_force()
    }

    fn draining(&self) -> bool {
        self.core.draining
    }

    fn account(&mut self, user: &str, vhost: &str) -> Arc<SessionOwner> {
        let core = &mut *self.core;
        core.limits.owner(user, vhost, &core.tree)
    }

    fn admit(&mut self, user: &str) -> Result<(), u64> {
        self.core.limits.admit(&self.core.tree, self.number, user)
    }

    fn admit_to(&mut self, vhost: &str) -> Result<(), u64> {
        self.core
            .limits
            .admit_to(&self.core.tree, self.number, vhost)
    }

    fn hold_unknown(&mut self, begins: bool) -> bool {
        self.core.limits.hold_unknown(begins)
    }

    fn note_held(&mut self) {
        let key = crate::sessions::key_of(self.number);
        self.core.limits.budget().note(ConnectionKey(key));
    }

    fn admit_unread(&mut self, waiting: usize, bytes: usize) -> bool {
        self.core.limits.budget().admit_unread(waiting, bytes)
    }

    fn message_counters(&mut self, protocol: &'static str, message_counters: &MessageCounters) {
        let core = &mut *self.core;
        core.limits
            .count_messages(&core.tree, self.number, protocol, message_counters);
    }

    fn open_channel(&mut self) -> Result<(), u64> {
        self.core.limits.open_channel(&self.core.tree, self.number)
    }

    fn close_channel(&mut self) {
        self.core.limits.close_channel(&self.core.tree, self.number);
    }

    fn services(&mut self) -> Option<&mut ServiceStates> {
        Some(self.core.services.states_mut())
    }

    fn change_by_service(&mut self, service: ServiceId, token: u64, change: Change) {
        let requester = self.core.service_requester(service, token);
        self.core.ask(change, requester);
    }

    fn announce(
        &mut self,
        vhost: &str,
        message: &Message,
        tag: PublishTag,
        routes: &mut Vec<QueueId>,
    ) -> AnnounceOutcome {
        let published = (vhost, message);
        self.core.announce(self.number, tag, published, routes)
    }

    fn trace(&mut self, traced: &TracedMessage<'_>) {
        let name = self.origin.name();
        self.core.trace(&format_args!("{name}"), traced);
    }

    fn count_login(&mut self, protocol: &'static str, succeeded: bool) {
        self.core.limits.count_login(protocol, succeeded);
    }

    fn verify(&mut self, user: &str, hash: &auth::PasswordHash, password: &[u8]) -> PasswordCheck {
        let client = (self.number, self.origin.peer());
        let core = &mut *self.core;
        core.limits
            .verify(core.ctx.now(), client, user, (hash, password))
    }
}
