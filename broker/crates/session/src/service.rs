//! Shard services: the part of a protocol that has state on every shard.
//!
//! A protocol whose subscriptions are not backed by queues routes messages itself, between the
//! shards and nodes of a cluster. It registers a [`ShardService`] for that. Each shard keeps one
//! state per service ([`ServiceStates`]) and calls the service's functions when something happens
//! that the service may need: a message was published, the metadata tree has changed, a node came or
//! went, another shard has sent a frame.
//!
//! A service and its state are separate, because a function of the service may call the node, which
//! calls a function of the service in turn. Functions find the state with
//! [`Broker::services`](crate::Broker::services); a reference to it is never held across a call.

use crate::{
    AnnounceOutcome, Broker, ControlEvent, PublishTag, QueueNotification, SessionEvent, TagRange,
};
use bytes::{Bytes, BytesMut};
use env::{Incarnation, NodeId, Time, WallTime};
use message::Message;
use metadata::{Change, ChangeError, ChangeResult, QueueId, QueueRecord, TreeEvent};
use std::any::Any;
use std::fmt;

/// Identifies a service in the whole cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u8);

/// Maximum number of services of a shard.
pub const MAX_SERVICES: usize = 16;

/// A shard of a node in one incarnation of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardAddress {
    /// The node.
    pub node: NodeId,
    /// The incarnation of the node.
    pub incarnation: Incarnation,
    /// The index of the shard on the node.
    pub shard: u16,
}

/// Another node of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// The newest incarnation that is known.
    pub incarnation: Incarnation,
    /// The number of shards of this incarnation.
    pub shards: u16,
    /// The node is reachable.
    pub is_up: bool,
}

/// The states of a shard's services, found by their types.
#[derive(Default)]
pub struct ServiceStates(Vec<Box<dyn Any + Send>>);

impl fmt::Debug for ServiceStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceStates({})", self.0.len())
    }
}

impl ServiceStates {
    /// Adds the state of one more service.
    pub fn push(&mut self, state: Box<dyn Any + Send>) {
        self.0.push(state);
    }

    /// The state of this type, if the node has the service.
    pub fn get<S: Any>(&self) -> Option<&S> {
        self.0.iter().find_map(|state| state.downcast_ref())
    }

    /// As [`ServiceStates::get`].
    pub fn get_mut<S: Any>(&mut self) -> Option<&mut S> {
        self.0.iter_mut().find_map(|state| state.downcast_mut())
    }
}

/// A service with its state for one shard.
pub struct ServiceRegistration {
    /// The functions.
    pub service: &'static dyn ShardService,
    /// The state; each service has a type of its own.
    pub state: Box<dyn Any + Send>,
    /// A place for one event: an empty `Option` of the type that the protocol's sessions expect in
    /// [`Session::service_event`](crate::Session::service_event).
    pub event: Box<dyn Any + Send>,
}

/// A published message.
#[derive(Clone, Copy, Debug)]
pub struct PublishedMessage<'a> {
    /// The session that published it.
    pub session: u64,
    /// Its tag.
    pub tag: PublishTag,
    /// The vhost.
    pub vhost: &'a str,
    /// The message.
    pub message: &'a Message,
}

/// An output of a service, see [`ShardService::next_output`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceOutput {
    /// The event in the given place is for this session.
    Event {
        /// The number of the session.
        session: u64,
    },
    /// Remote subscribers have these publishes, or can never get them.
    Confirmed {
        /// The number of the session.
        session: u64,
        /// The tags of the publishes.
        tags: TagRange,
    },
    /// No remote subscriber of a session whose publish was
    /// [`AnnounceOutcome::behind`] is behind any more.
    Unblocked {
        /// The number of the session.
        session: u64,
    },
    /// The event in the given place is for [`ShardService::carry_out`].
    Work,
}

/// The result of [`ShardService::tick`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TickOutcome {
    /// The service has neither outputs nor frames.
    Idle,
    /// The service has outputs or frames.
    Active,
    /// Work is due that needs the shard: [`ShardService::carry_out_due`] must follow.
    Due,
}

/// A frame of another shard cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the frame cannot be read")]
pub struct InvalidFrame;

/// The shard as a service sees it. As a [`Broker`] it is that of the service's own session: answers
/// to [`Broker::change`] arrive at [`ShardService::change_answered`], those to [`Broker::publish`] and
/// [`Broker::request`] at [`ShardService::queue_notification`].
pub trait ServiceHost: Broker {
    /// This shard.
    fn address(&self) -> ShardAddress;
    /// The number of shards of this node.
    fn shards(&self) -> u16;
    /// All other nodes whose incarnation is known, up or down.
    fn nodes(&self) -> Vec<NodeStatus>;
    /// Returns true if this other node is reachable.
    fn is_up(&self, node: NodeId) -> bool;
    /// Sends a frame, written by `write`, to the service on a shard of another node. Frames to one
    /// shard keep their order; they may be lost when the link breaks.
    fn send(&mut self, to: ShardAddress, write: &mut dyn FnMut(&mut BytesMut));
    /// Passes a message to the service on another shard of this node, as a value. Messages to one
    /// shard keep their order, and none is lost.
    fn pass(&mut self, shard: u16, message: Box<dyn Any + Send>);
    /// Passes an event to a session of this shard, or to [`ShardService::late_session_event`] if it has
    /// ended.
    fn notify(&mut self, session: u64, event: ControlEvent);
    /// Returns true if bindings between exchanges route the message from its exchange to this one.
    fn reaches_exchange(&self, vhost: &str, message: &Message, exchange: &str) -> bool;
    /// Deletes a queue whose deletion the service has postponed
    /// ([`ShardService::postpones_deletion`]).
    fn delete_postponed(&mut self, queue: QueueId);
    /// Collects the counters of all shards of this node for
    /// [`ShardService::counters_collected`].
    fn collect_counters(&mut self);
    /// The version of the program.
    fn version(&self) -> &'static str;
    /// When this shard was started.
    fn started_at(&self) -> Time;
}

/// A protocol's functions for every shard; see the module. `host` gives access to the state and to
/// the shard.
pub trait ShardService: Send + Sync {
    /// The identifier, the same on all nodes.
    fn id(&self) -> ServiceId;
    /// The shard has been created.
    fn started(&self, _host: &mut dyn ServiceHost) {}
    /// Time has passed. Every turn of the shard calls this, so it gets only the state.
    fn tick(&self, _states: &mut ServiceStates, _now: Time, _wall: WallTime) -> TickOutcome {
        TickOutcome::Idle
    }
    /// The rest of a tick that was [`TickOutcome::Due`].
    fn carry_out_due(&self, _host: &mut dyn ServiceHost) {}
    /// The next time at which the service needs a tick.
    fn wake_at(&self, _states: &ServiceStates) -> Option<Time> {
        None
    }
    /// Returns false while clients must wait, because messages that they publish would not reach
    /// subscribers on other shards.
    fn is_ready(&self, _states: &ServiceStates) -> bool {
        true
    }

    /// Returns false if no subscriber in the vhost can get a message. Called for each publish before
    /// [`ShardService::announce`].
    fn has_subscribers(&self, _states: &ServiceStates, _vhost: &str) -> bool {
        false
    }
    /// Passes a published message to subscribers and adds to `routes` the queues that must receive
    /// it in addition.
    fn announce(
        &self,
        _host: &mut dyn ServiceHost,
        _published: &PublishedMessage<'_>,
        _routes: &mut Vec<QueueId>,
    ) -> AnnounceOutcome {
        AnnounceOutcome::default()
    }
    /// The exchange to which all sessions with this protocol label publish, if there is one. Their
    /// publishes are not counted in the tree ([`metadata::Tree::count_traffic`]).
    fn publishes_to<'a>(&self, _states: &'a ServiceStates, _protocol: &str) -> Option<&'a str> {
        None
    }

    /// A frame of the service on another shard that exists in this incarnation.
    fn frame(
        &self,
        _host: &mut dyn ServiceHost,
        _from: ShardAddress,
        _frame: Bytes,
    ) -> Result<(), InvalidFrame> {
        Err(InvalidFrame)
    }
    /// A message of the service on another shard of this node ([`ServiceHost::pass`]).
    fn message(
        &self,
        _host: &mut dyn ServiceHost,
        _from: ShardAddress,
        _message: Box<dyn Any + Send>,
    ) {
    }
    /// Returns true if frames for other shards were collected.
    fn has_frames(&self, _states: &ServiceStates) -> bool {
        false
    }
    /// Sends the frames that were collected, at the end of a turn. Called only if
    /// [`ShardService::has_frames`] returns true.
    fn flush(&self, _host: &mut dyn ServiceHost) {}
    /// Takes the next output. `event` is the place for events of the registration. After `None`
    /// there is no output until the state was accessed again.
    fn next_output(
        &self,
        _states: &mut ServiceStates,
        _event: &mut dyn Any,
    ) -> Option<ServiceOutput> {
        None
    }
    /// Carries out an output that is [`ServiceOutput::Work`].
    fn carry_out(&self, _host: &mut dyn ServiceHost, _event: &mut dyn Any) {}

    /// A node is up: its shards are new, or frames may have been lost.
    fn node_up(&self, _host: &mut dyn ServiceHost, _node: NodeId, _incarnation: Incarnation) {}
    /// The link to a node is broken.
    fn node_down(&self, _host: &mut dyn ServiceHost, _node: NodeId) {}
    /// The nodes in the tree have changed.
    fn nodes_changed(&self, _host: &mut dyn ServiceHost) {}
    /// The enabled feature flags have changed.
    fn features_changed(&self, _host: &mut dyn ServiceHost) {}

    /// The tree has applied a change, successfully. Precedes the change's events.
    fn change_applied(&self, _host: &mut dyn ServiceHost, _change: &Change) {}
    /// An event of a change.
    fn tree_event(&self, _host: &mut dyn ServiceHost, _event: &TreeEvent) {}
    /// The tree was replaced. Removed queues were reported with [`ShardService::tree_event`].
    fn tree_replaced(&self, _host: &mut dyn ServiceHost) {}
    /// The tree has applied the metadata log up to this index.
    fn applied(&self, _host: &mut dyn ServiceHost, _index: u64) {}
    /// The answer to a change that the service has proposed.
    fn change_answered(
        &self,
        _host: &mut dyn ServiceHost,
        _token: u64,
        _result: Result<ChangeResult, ChangeError>,
    ) {
    }
    /// A notification of a queue for the service's own session.
    fn queue_notification(&self, _host: &mut dyn ServiceHost, _notification: QueueNotification) {}
    /// An event for a session that has ended.
    fn late_session_event(
        &self,
        _host: &mut dyn ServiceHost,
        _session: u64,
        _event: &SessionEvent,
    ) {
    }

    /// Returns true if the queue must not be deleted yet; the service calls
    /// [`ServiceHost::delete_postponed`] later.
    fn postpones_deletion(&self, _host: &mut dyn ServiceHost, _queue: &QueueRecord) -> bool {
        false
    }
    /// The client whose session the queue stores, if it is such a queue. The session is over when
    /// the queue is lost, and the queue is deleted then.
    fn client_of<'a>(&self, _queue: &'a QueueRecord) -> Option<&'a str> {
        None
    }

    /// Adds the service's counters to those of the shard.
    fn add_counters(&self, _host: &mut dyn ServiceHost, _counters: &mut control::Counters) {}
    /// The counters that [`ServiceHost::collect_counters`] asked for.
    fn counters_collected(&self, _host: &mut dyn ServiceHost, _counters: &control::Counters) {}
}
