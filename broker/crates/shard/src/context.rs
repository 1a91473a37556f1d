//! The context that a shard lends its services: the facts that they all need, and the outputs that they all have.
//!
//! A service gets it as an argument of each call, so that no service needs access to another one for the time, the identity
//! of the shard, or for sending something.

use crate::audit_trail::AuditTrail;
use crate::config::ShardConfig;
use crate::frame::Frame;
use crate::local_message::LocalMessage;
use crate::sessions::InternalSession;
use crate::span_recorder::SpanRecorder;
use crate::{Effect, Route, shard_of};
use bytes::Bytes;
use env::{NodeId, Rng, SteadyWallClock, Time, WallTime};
use metadata::{QueueId, SessionId};
use queue::{RequestBody, Timestamps};
use session::{ControlEvent, PublishTag, SampledDelivery, SessionEvent};
use std::collections::VecDeque;
use telemetry::TraceId;

/// The location of a queue, as seen from a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QueueLocation {
    /// On this shard.
    Here,
    /// On another shard of this node.
    Shard(u16),
    Node(NodeId),
}

/// Configuration, time and random numbers of a shard, and its effects and notices of this turn.
pub struct Context {
    config: ShardConfig,
    started: Time,
    now: Time,
    /// From `steady_wall`, so that nothing expires because somebody set the node's clock.
    wall: WallTime,
    steady_wall: SteadyWallClock,
    rng: Box<dyn Rng + Send>,
    effects: Vec<Effect>,
    /// Events for sessions of this shard, by session number.
    notices: VecDeque<(u64, SessionEvent)>,
    /// None: there is no audit log.
    audit: Option<Box<AuditTrail>>,
    /// None: the node exports no spans.
    spans: Option<Box<SpanRecorder>>,
}

impl Context {
    pub fn new(
        config: ShardConfig,
        rng: Box<dyn Rng + Send>,
        now: Time,
        wall: WallTime,
    ) -> Context {
        Context {
            config,
            started: now,
            now,
            wall,
            steady_wall: SteadyWallClock::new(now, wall),
            rng,
            effects: Vec::new(),
            notices: VecDeque::new(),
            audit: None,
            spans: None,
        }
    }

    pub fn set_audit(&mut self, trail: AuditTrail) {
        self.audit = Some(Box::new(trail));
    }

    #[inline]
    pub fn audit(&self) -> Option<&AuditTrail> {
        self.audit.as_deref()
    }

    #[inline]
    pub fn audit_mut(&mut self) -> Option<&mut AuditTrail> {
        self.audit.as_deref_mut()
    }

    pub fn set_spans(&mut self, recorder: SpanRecorder) {
        self.spans = Some(Box::new(recorder));
    }

    /// Returns true if the node exports spans.
    #[inline]
    pub fn records_spans(&self) -> bool {
        self.spans.is_some()
    }

    /// Passes the recorder of spans to `note`, if there is one.
    #[cold]
    #[inline(never)]
    pub fn note_spans(&mut self, note: impl FnOnce(&mut SpanRecorder, Timestamps)) {
        let at = self.timestamps();
        let Some(spans) = self.spans.as_deref_mut() else {
            return;
        };
        note(spans, at);
        if spans.begin_flush() {
            // A notice, because each turn handles them: a test for spans in each turn would cost nodes without traces.
            let number = InternalSession::Firehose.number(self.config.index);
            self.notify(number, ControlEvent::Unblocked.into());
        }
    }

    /// A queue has answered a publish.
    #[cold]
    #[inline(never)]
    pub fn note_answer(&mut self, publish: (u64, PublishTag), accepted: bool) {
        self.note_spans(|spans, at| spans.answered(at, publish, accepted));
    }

    /// The recorded trace of a publish that queues have not all answered, and the wall time of this turn.
    #[cold]
    #[inline(never)]
    pub fn trace_of_publish(&self, publish: (u64, PublishTag)) -> Option<(TraceId, WallTime)> {
        let trace = self.spans.as_deref()?.trace_of_publish(publish)?;
        Some((trace, self.wall))
    }

    /// The recorded trace of a session's sampled delivery. A session calls it at the end of each step that has counted messages.
    #[cold]
    #[inline(never)]
    pub fn trace_of_delivery(
        &mut self,
        session: u64,
        sample: Option<&SampledDelivery>,
    ) -> Option<TraceId> {
        self.spans
            .as_deref_mut()?
            .trace_of_delivery(session, sample)
    }

    /// A session sends a request to a queue.
    #[cold]
    #[inline(never)]
    pub fn note_request(&mut self, link: (u64, QueueId), body: &RequestBody) {
        self.note_spans(|spans, at| spans.requested(at, link, body));
    }

    /// Gives the spans that have ended to the exporter.
    pub fn flush_spans(&mut self) {
        if let Some(spans) = self.spans.as_deref_mut() {
            spans.flush();
        }
    }

    /// The times of this turn.
    pub fn timestamps(&self) -> Timestamps {
        Timestamps {
            now: self.now,
            wall: self.wall,
        }
    }

    pub fn set_time(&mut self, now: Time, wall: WallTime) {
        self.now = now;
        self.wall = self.steady_wall.read(now, wall);
    }

    pub fn config(&self) -> &ShardConfig {
        &self.config
    }

    /// The time at which this incarnation of the shard began.
    pub fn started(&self) -> Time {
        self.started
    }

    pub fn now(&self) -> Time {
        self.now
    }

    pub fn wall(&self) -> WallTime {
        self.wall
    }

    pub fn random(&mut self) -> u64 {
        self.rng.next_u64()
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.config.node
    }

    /// The index of this shard.
    pub fn shard(&self) -> u16 {
        self.config.index
    }

    /// Returns true for the shard that holds the metadata group.
    pub fn is_first_shard(&self) -> bool {
        self.config.index == 0
    }

    pub fn session(&self, number: u64) -> SessionId {
        SessionId {
            node: self.config.node,
            incarnation: self.config.incarnation,
            number,
        }
    }

    /// The shard of this node that owns the queue.
    pub fn owner_shard(&self, queue: QueueId) -> u16 {
        shard_of(queue.0, self.config.shards)
    }

    /// Returns true if this shard owns the queue on this node.
    pub fn owns(&self, queue: QueueId) -> bool {
        self.owner_shard(queue) == self.config.index
    }

    /// The location of a queue whose owner is on `node`.
    pub fn locate(&self, queue: QueueId, node: NodeId) -> QueueLocation {
        if node != self.config.node {
            return QueueLocation::Node(node);
        }
        match self.owner_shard(queue) {
            shard if shard == self.config.index => QueueLocation::Here,
            shard => QueueLocation::Shard(shard),
        }
    }

    pub fn push_effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Moves the effects of this turn to the driver.
    pub fn drain_effects(&mut self, out: &mut Vec<Effect>) {
        if !self.effects.is_empty() {
            out.append(&mut self.effects);
        }
    }

    /// Queues an event for a session of this shard.
    #[inline]
    pub fn notify(&mut self, session: u64, event: SessionEvent) {
        self.notices.push_back((session, event));
    }

    pub fn next_notice(&mut self) -> Option<(u64, SessionEvent)> {
        self.notices.pop_front()
    }

    /// The next notice if it is for this session: confirms and deliveries come in runs.
    #[inline]
    pub fn next_notice_for(&mut self, session: u64) -> Option<SessionEvent> {
        let next = self
            .notices
            .pop_front_if(|(number, _)| *number == session)?;
        Some(next.1)
    }

    pub fn send_to_peer(&mut self, to: NodeId, route: Route, frame: &Frame) {
        let frame = frame.encode();
        self.effects.push(Effect::Peer { to, route, frame });
    }

    /// Sends a frame to every shard of another node, which has this number of them.
    pub fn send_to_shards_of_peer(&mut self, to: NodeId, shards: u16, frame: &Frame) {
        let bytes: Bytes = frame.encode();
        for shard in 0..shards {
            let (route, frame) = (Route::Shard(shard), bytes.clone());
            self.effects.push(Effect::Peer { to, route, frame });
        }
    }

    pub fn send_to_shard(&mut self, to: u16, frame: Frame) {
        self.send_local(to, frame.into());
    }

    /// Sends a message to a shard of this node.
    pub fn send_local(&mut self, to: u16, message: LocalMessage) {
        let from = self.config.index;
        self.effects.push(Effect::Shard { to, from, message });
    }

    /// Sends a frame to a shard of any node, this one included.
    pub fn send_to(&mut self, node: NodeId, shard: u16, frame: Frame) {
        if node == self.config.node {
            self.send_to_shard(shard, frame);
        } else {
            self.send_to_peer(node, Route::Shard(shard), &frame);
        }
    }

    /// Sends a frame to the other shards of this node.
    pub fn send_to_other_shards(&mut self, frame: &Frame) {
        let from = self.config.index;
        for to in (0..self.config.shards).filter(|shard| *shard != from) {
            self.send_to_shard(to, frame.clone());
        }
    }
}
