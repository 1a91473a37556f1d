//! The step function: what happened comes in, is carried through sessions, queues and groups until nothing is left
//! to do, and leaves as effects.

mod browsing;
mod budget;
mod control_requests;
mod dead_letters;
mod evictions;
mod internal_client;
mod metadata_log;
mod operations;
mod rate_limits;
mod reconcile;
mod recovery;
mod services;
mod state;
mod turn;
mod view;

pub(crate) use budget::Account;
pub use budget::{MemoryBudget, NodeMemory};
pub(crate) use evictions::RemovedAccount;
pub(crate) use state::ShardState;

use crate::audit_trail::AuditTrail;
use crate::browsers::Browsers;
use crate::frame::{AlarmReason, Frame};
use crate::listings::ListingTarget;
use crate::members::Plan;
use crate::members::frame::MembershipMessage;
use crate::sessions::{ActiveConnection, InternalSession, Sessions};
use crate::span_recorder::{SpanRecorder, SpanSettings};
use crate::stats::ShardStats;
use crate::walks::ReplyTo;
use crate::{
    CheckId, ConnectionInfo, ConnectionKey, Effect, IdentificationResult, LocalMessage,
    LoginBackend, ShardDriver, StartCheck, StartIdentification,
};
use bytes::{Bytes, BytesMut};
use consensus::{JobId, JobResult, WalToken};
use control::{ControlRequest, ShardFacts, ShardQuery, TrafficFacts};
use env::{Incarnation, NodeId, Time, WallTime};
use metadata::NodeRecord;
use metadata::features::VersionFacts;
use session::{ControlEvent, Outbox, Session, SessionEvent, SessionState};
use std::collections::BTreeMap;
use view::View;

/// Rounds of one poll: each round handles everything that the one before left, so a chain longer than this is a loop.
const MAX_ROUNDS: usize = 64;

/// A shard of a node: its sessions, its part of the queues, and its replica of the metadata.
pub struct Shard {
    pub(crate) state: ShardState,
    protocols: session::Protocols,
    pub(crate) sessions: Sessions,
    dirty: Vec<ConnectionKey>,
    shutting_down: bool,
}

impl Shard {
    pub(crate) fn from_state(state: ShardState) -> Shard {
        Shard {
            protocols: state.ctx.config().protocols.clone(),
            sessions: Sessions::new(state.ctx.shard()),
            state,
            dirty: Vec::new(),
            shutting_down: false,
        }
    }

    /// Costly password checks are done by `start`, not on the thread that steps the shard.
    pub fn check_elsewhere(&mut self, start: StartCheck) {
        self.state.limits.check_passwords_with(start);
    }

    /// Passwords are checked by these backends in order; `identify` asks the external ones.
    pub fn identify_with(
        &mut self,
        backends: std::sync::Arc<[LoginBackend]>,
        identify: StartIdentification,
    ) {
        self.state.limits.identify_with(backends, identify);
    }

    /// Gives the audit records of the shard's clients to `sink`.
    pub fn audit_to(&mut self, sink: audit::AuditSink) {
        self.state.ctx.set_audit(AuditTrail::new(sink));
    }

    /// Gives spans of the messages of the shard's clients to `sink`.
    pub fn record_spans(&mut self, settings: SpanSettings) {
        let seed = self.state.ctx.random();
        self.state.ctx.set_spans(SpanRecorder::new(settings, seed));
        self.state.metadata.trace_all();
    }

    /// The state without the sessions.
    pub fn state(&self) -> &ShardState {
        &self.state
    }

    pub(crate) fn step(
        &mut self,
        key: ConnectionKey,
        f: impl FnOnce(&mut dyn Session, &mut View<'_>, &mut Outbox) -> SessionState,
    ) -> SessionState {
        let Some(entered) = self.sessions.enter(key) else {
            return SessionState::Closing;
        };
        let ActiveConnection {
            slot,
            number,
            origin,
        } = entered;
        let had = slot.outbox.len();
        let before = slot.session_state;
        let mut view = View {
            state: &mut self.state,
            number,
            origin,
            marks: slot.marks,
        };
        slot.session_state = f(slot.session.as_mut(), &mut view, &mut slot.outbox);
        if let Some(trail) = view.state.ctx.audit_mut() {
            trail.flush_refusals(number, origin);
        }
        slot.marks = view.marks;
        let after = slot.session_state;
        let marks = slot.marks;
        if !marks.is_dirty() && (slot.outbox.len() != had || before != after) {
            slot.marks.set_dirty(true);
            self.dirty.push(key);
        }
        // With bytes in its outbox that no flush is owed for, the flush of an earlier turn left something.
        if marks.is_charged() || !marks.is_dirty() && had > 0 {
            self.state.limits.budget().touch(key, slot);
        }
        self.sessions.leave(key);
        after
    }

    /// A notice for a session, with those behind it that are for the same one: confirms and deliveries come in runs.
    fn tell(&mut self, number: u64, session_event: SessionEvent) {
        let Some(key) = self.sessions.by_number(number) else {
            return self.state.late_session_event(number, &session_event);
        };
        self.step(key, |s, view, out| {
            let mut session_state = s.session_event(session_event, view, out);
            while let Some(next) = view.state.ctx.next_notice_for(number) {
                session_state = s.session_event(next, view, out);
            }
            session_state
        });
    }

    fn notify_all(&mut self, event: &ControlEvent) {
        let keys: Vec<_> = self.sessions.iter_mut().map(|(k, _)| k).collect();
        for key in keys {
            self.step(key, |s, view, out| {
                s.session_event(event.clone().into(), view, out)
            });
        }
    }

    /// Carries everything on until nothing is left; true when it stopped for the bound.
    fn settle(&mut self) -> bool {
        for _ in 0..MAX_ROUNDS {
            let mut worked = self.state.queues.step_requests();
            worked |= self.state.poll_groups();
            worked |= self.state.pass_on_dead();
            while let Some((from, number, queue, event)) = self.state.queues.next_event() {
                self.state.handle_queue_event(from, number, queue, event);
                worked = true;
            }
            if self.state.queues.has_cursor_events() {
                self.pass_on_cursor_events();
                worked = true;
            }
            worked |= self.pass_on_service_outputs();
            worked |= self.evict();
            while let Some((number, session_event)) = self.state.ctx.next_notice() {
                self.tell(number, session_event);
                worked = true;
            }
            if self.state.queues.clients().has_relieved() {
                worked |= self.tell_relieved();
            }
            if !worked {
                return false;
            }
        }
        true
    }

    #[cold]
    fn pass_on_cursor_events(&mut self) {
        while let Some((from, number, queue, event)) = self.state.queues.next_cursor_event() {
            let queues = &mut self.state.queues;
            queues.handle_cursor_event(&mut self.state.ctx, from, number, queue, event);
        }
    }

    /// Sessions may publish again. True when any was told.
    fn tell_relieved(&mut self) -> bool {
        let mut worked = false;
        for number in self.state.queues.clients_mut().take_relieved() {
            if InternalSession::from_number(number) == Some(InternalSession::Firehose) {
                self.state.firehose.relieve();
            }
            if let Some(key) = self.sessions.by_number(number) {
                self.step(key, |s, view, out| {
                    s.session_event(ControlEvent::Unblocked.into(), view, out)
                });
                worked = true;
            }
        }
        worked
    }

    fn tick_sessions(&mut self) {
        if !self.sessions.has_due(self.state.ctx.now()) {
            return;
        }
        for key in self.sessions.due(self.state.ctx.now()) {
            self.step(key, |s, view, out| s.tick(view, out));
        }
    }

    fn take_frame(&mut self, from: NodeId, frame: Frame) {
        match frame {
            Frame::Raft(bytes) => self.state.queues.local_mut().receive_raft(from, bytes),
            Frame::ToQueue { queue, messages } => {
                // A peer speaks for its own sessions alone.
                let own = messages.into_iter().filter(|m| m.session().node == from);
                self.state.queues.handle_requests(queue, own);
            }
            Frame::Events {
                session,
                queue,
                events,
            } => {
                if session.node == self.state.ctx.node()
                    && session.incarnation == self.state.ctx.config().incarnation
                {
                    let number = session.number;
                    self.state.queues.handle_events(from, number, queue, events);
                }
            }
            Frame::Replica { queue, message } => {
                let local = self.state.queues.local_mut();
                local.receive_from_replica(from, queue, message);
            }
            // A peer speaks for its own sessions alone.
            Frame::CursorRequests {
                session,
                queue,
                requests,
            } if session.node == from => {
                self.state
                    .queues
                    .handle_cursor_requests(queue, session, requests);
            }
            Frame::CursorRequests { .. } => {}
            Frame::CursorEvents {
                session,
                queue,
                events,
            } => {
                if session.node == self.state.ctx.node()
                    && session.incarnation == self.state.ctx.config().incarnation
                {
                    let number = session.number;
                    self.state
                        .queues
                        .handle_cursor_events(from, number, queue, events);
                }
            }
            Frame::StreamLeaders { streams } => self.state.hear_stream_leaders(from, streams),
            Frame::Propose { origin, change } => {
                self.state.handle_forwarded_change(origin, &change)
            }
            Frame::StatsRequest {
                token,
                reply_shard,
                only,
                counting,
            } => {
                let to = ReplyTo {
                    node: from,
                    shard: reply_shard,
                    token,
                };
                let state = &mut self.state;
                let sources = (state.metadata.tree(), state.queues.local_mut());
                (state.reports).answer_stats(&mut state.ctx, sources, to, (only, counting));
                state.route_reports();
            }
            Frame::StatsReply {
                token,
                last,
                stats,
                counting,
            } => {
                let told = ShardStats {
                    stats,
                    counting,
                    ..ShardStats::default()
                };
                let state = &mut self.state;
                let from = (from, state.ctx.now());
                (state.reports).handle_stats(state.metadata.tree(), from, token, last, told);
                state.route_reports();
            }
            Frame::DelayedDetails { token, delayed } => {
                self.state.reports.handle_delayed_details(token, delayed);
            }
            Frame::HeadMessages { token, heads } => {
                self.state.reports.handle_head_messages(token, heads);
            }
            Frame::ReadyDetails { token, ready } => {
                self.state.reports.handle_ready_details(token, ready);
            }
            Frame::Alarm { reason, on } => self.set_alarm(reason, from, on),
            Frame::Join { node } => self.state.handle_join(node),
            Frame::ControlQuestion {
                token,
                reply_shard,
                question,
            } => {
                let to = ReplyTo {
                    node: from,
                    shard: reply_shard,
                    token,
                };
                match ShardQuery::decode(&question) {
                    Some(question) => self.answer(to, &question),
                    // A newer node's: an answer with nothing in it is better than none.
                    None => self.state.reports.tell_facts(
                        &mut self.state.ctx,
                        to,
                        ShardFacts::Closed(false),
                        true,
                    ),
                }
            }
            Frame::ControlAnswer { token, facts, .. } if Browsers::is_token(token) => {
                self.state
                    .take_page(from, token, ShardFacts::decode(&facts));
            }
            Frame::ControlAnswer { token, last, facts } => {
                let facts = ShardFacts::decode(&facts);
                let now = self.state.ctx.now();
                self.state
                    .reports
                    .handle_facts(now, from, token, last, facts);
            }
            Frame::Members(MembershipMessage::Drain { on }) if from == self.state.ctx.node() => {
                self.drain(on)
            }
            Frame::Members(peer_message) => self.state.take_members_message(from, peer_message),
            Frame::Service(frame) => {
                if let Err(error) = self.state.take_service_frame(from, frame) {
                    tracing::warn!(event = "peer_frame_unreadable", node = from.0, %error);
                }
            }
            Frame::LimitUsage(told) => self.state.limits.handle_usage_frame(from, told),
            Frame::StoredBytes(frame) => {
                self.state.limits.handle_stored_bytes(from, frame);
            }
            Frame::PublisherActivity(frame) => {
                let now = self.state.ctx.now();
                self.state.limits.handle_activity_frame(now, from, frame);
            }
            // Words between shards of one node; another node has no business with them.
            Frame::Applied { .. }
            | Frame::Restored { .. }
            | Frame::ChangeRequest { .. }
            | Frame::ChangeRefused { .. }
            | Frame::CaughtUp => {}
        }
    }

    fn set_alarm(&mut self, reason: AlarmReason, node: NodeId, on: bool) {
        let before = self.state.cluster.alarms().in_force();
        if self.state.cluster.alarms_mut().set(reason, node, on)
            && self.state.cluster.alarms().in_force() != before
        {
            self.announce_blocked();
        }
    }

    /// Asks every shard of every node, or of this one, this shard first.
    fn gather(&mut self, question: &ShardQuery, everywhere: bool, facts: ListingTarget) {
        let token = self.state.reports.ask_shards(
            &mut self.state.ctx,
            self.state.cluster.peers(),
            question,
            everywhere,
            facts,
        );
        let to = ReplyTo {
            node: self.state.ctx.node(),
            shard: self.state.ctx.shard(),
            token,
        };
        self.answer(to, question);
    }

    /// Tells what this shard has to say; a connection that is to be closed is.
    fn answer(&mut self, to: ReplyTo, question: &ShardQuery) {
        let ShardQuery::Close { name, reason } = question else {
            return self.state.answer_question(to, question);
        };
        let key = self.sessions.by_name(name);
        if let Some(key) = key {
            let text = reason.clone();
            self.step(key, |s, view, out| {
                s.session_event(ControlEvent::Close { text }.into(), view, out)
            });
        }
        self.state.reports.tell_facts(
            &mut self.state.ctx,
            to,
            ShardFacts::Closed(key.is_some()),
            true,
        );
    }

    /// Maintenance begins or ends.
    fn drain(&mut self, on: bool) {
        self.state.set_maintenance(on);
        if on {
            self.notify_all(&ControlEvent::Shutdown);
        }
    }

    /// Control requests that need the connections.
    fn control_connections(&mut self, request: ControlRequest) -> Option<ControlRequest> {
        match request {
            ControlRequest::Connections { reply } => {
                self.gather(
                    &ShardQuery::Connections,
                    true,
                    ListingTarget::Connections(vec![], reply),
                );
            }
            ControlRequest::Consumers { reply } => {
                self.gather(
                    &ShardQuery::Consumers,
                    true,
                    ListingTarget::Consumers(vec![], reply),
                );
            }
            ControlRequest::Counters { everywhere, reply } => {
                let facts = ListingTarget::Counters(BTreeMap::new(), reply);
                self.gather(&ShardQuery::Counters, everywhere, facts);
            }
            ControlRequest::Streams {
                of,
                everywhere,
                reply,
            } => {
                let facts = ListingTarget::Streams(vec![], reply);
                self.gather(&ShardQuery::Streams(of), everywhere, facts);
            }
            ControlRequest::Browse { of, reply } => {
                let facts = ListingTarget::Browsed(None, reply);
                self.gather(&ShardQuery::Browse(of), true, facts);
            }
            ControlRequest::Traffic { of, reply } => {
                let facts = ListingTarget::Traffic(TrafficFacts::default(), reply);
                self.gather(&ShardQuery::Traffic(of), true, facts);
            }
            ControlRequest::CloseConnection {
                name,
                reason,
                reply,
            } => {
                let question = ShardQuery::Close { name, reason };
                self.gather(&question, true, ListingTarget::Closed(false, reply));
            }
            ControlRequest::Maintenance { on, reply } => {
                self.drain(on);
                let connections_left = self.sessions.len() as u32;
                let plan = Plan::Drained {
                    on,
                    connections_left,
                    reply,
                };
                self.state.gather_for(None, plan);
            }
            other => return Some(other),
        }
        None
    }
}

impl ShardDriver for Shard {
    fn tick(&mut self, now: Time, wall: WallTime) {
        self.state.ctx.set_time(now, wall);
        self.state.reports.begin_turn();
        self.state.tick();
        if self.state.limits.budget().is_active() {
            self.keep_budget();
        }
        if self.state.limits.quotas_are_due(now) {
            self.release_throttled(now);
        }
        if self.state.limits.stored_bytes().is_due(now) {
            self.measure_stored_bytes();
        }
        self.tick_sessions();
    }

    fn wake_at(&self) -> Option<Time> {
        let sessions = self.sessions.wake_at();
        Time::earliest([self.state.wake_at(), sessions])
    }

    fn connected(&mut self, connection: ConnectionKey, info: ConnectionInfo) {
        let session = self.protocols.session(&info, self.state.ctx.now());
        let wall = self.state.ctx.wall();
        self.sessions.insert(connection, session, &info, wall);
        if self.state.cluster.is_draining() {
            self.step(connection, |s, view, out| {
                s.session_event(ControlEvent::Shutdown.into(), view, out)
            });
        }
    }

    fn received(&mut self, connection: ConnectionKey, input: &mut BytesMut) -> SessionState {
        let before = input.len();
        let is_rate_limited =
            (self.sessions.get(connection)).is_some_and(|slot| slot.marks.is_rate_limited());
        let session_state = match is_rate_limited {
            false => self.step(connection, |s, view, out| s.receive(input, view, out)),
            true => self.receive_within_quotas(connection, input),
        };
        if let Some(slot) = self.sessions.get(connection) {
            let partial = input.len();
            let taken = before.saturating_sub(partial);
            slot.received += taken as u64;
            if partial > 0 || slot.marks.is_charged() {
                self.note_input(connection, partial, taken > 0);
            }
        }
        session_state
    }

    fn outbox(&mut self, connection: ConnectionKey) -> Option<(&mut Outbox, SessionState)> {
        self.sessions.get(connection).map(|s| {
            s.marks.set_dirty(false);
            let session_state = s.driver_state();
            (&mut s.outbox, session_state)
        })
    }

    fn sealed(&mut self, connection: ConnectionKey, bytes: usize) {
        if let Some(slot) = self.sessions.get(connection) {
            let now = self.state.ctx.now();
            self.state.limits.budget().sealed(connection, bytes, now);
            slot.marks.set_charged(true);
            self.state.limits.budget().touch(connection, slot);
        }
    }

    fn handshakes(&mut self, bytes: usize) -> usize {
        self.state.limits.budget().handshakes(bytes)
    }

    fn drained(&mut self, connection: ConnectionKey) {
        self.step(connection, |s, view, out| s.drained(view, out));
    }

    fn gone(&mut self, connection: ConnectionKey) {
        let Some(entered) = self.sessions.enter(connection) else {
            return;
        };
        let ActiveConnection {
            slot,
            number,
            origin,
        } = entered;
        let mut view = View {
            state: &mut self.state,
            number,
            origin,
            marks: slot.marks,
        };
        slot.session.gone(&mut view);
        if slot.marks.is_throttled() {
            let now = self.state.ctx.now();
            self.state.limits.forget_throttled(now, connection, number);
        }
        if slot.marks.is_charged() {
            self.state.limits.budget().release(connection);
        }
        self.sessions.remove(connection);
        self.state.end_session(number);
        if self.shutting_down && self.sessions.is_empty() {
            self.state.queues.local_mut().write_all();
        }
    }

    fn peer_program(&mut self, node: NodeId, program: Option<VersionFacts>) {
        self.state.cluster.peers_mut().told(node, program);
    }

    fn peer_up(&mut self, node: NodeId, incarnation: Incarnation, shards: u16) {
        self.state.peer_up(node, incarnation, shards);
        for reason in [AlarmReason::Memory, AlarmReason::Disk] {
            if self.state.ctx.is_first_shard()
                && self
                    .state
                    .cluster
                    .alarms()
                    .has(reason, self.state.ctx.node())
            {
                let frame = Frame::Alarm { reason, on: true };
                self.state.ctx.send_to_shards_of_peer(node, shards, &frame);
            }
        }
    }

    fn peer_down(&mut self, node: NodeId) {
        let before = self.state.cluster.alarms().in_force();
        self.state.peer_down(node);
        if self.state.cluster.alarms().in_force() != before {
            self.announce_blocked();
        }
    }

    fn peer_frame(&mut self, from: NodeId, frame: Bytes) {
        match Frame::decode(frame) {
            Ok(frame) => self.take_frame(from, frame),
            Err(error) => tracing::warn!(event = "peer_frame_unreadable", node = from.0, %error),
        }
    }

    fn shard_message(&mut self, from: u16, message: LocalMessage) {
        let frame = match message {
            LocalMessage::Frame(frame) => *frame,
            LocalMessage::Service(service, message) => {
                return self.state.take_service_message(from, service, message);
            }
        };
        match frame {
            Frame::Applied {
                index,
                change,
                done_for,
            } => self.state.handle_applied(index, &change, done_for),
            Frame::Restored { index, tree } => self.state.restore_tree(index, &tree),
            Frame::CaughtUp => self.state.handle_caught_up(),
            Frame::ChangeRefused { token, why } => self.state.handle_change_refused(token, why),
            Frame::ChangeRequest {
                shard,
                token,
                change,
            } => {
                self.state.ask(
                    change,
                    crate::metadata_client::ChangeRequester::Shard { shard, token },
                );
            }
            other => self.take_frame(self.state.ctx.node(), other),
        }
    }

    fn durable(&mut self, token: WalToken) {
        self.state.queues.local_mut().durable(token);
    }

    fn wal_rolled(&mut self, file: u64) {
        self.state.queues.local_mut().wal_rolled(file);
    }

    fn job_done(&mut self, id: JobId, result: JobResult) {
        if let Err(error) = &result {
            self.state
                .ctx
                .push_effect(Effect::Fatal(format!("storage: {error}")));
            return;
        }
        self.state.queues.local_mut().job_done(id, result);
    }

    fn checked(&mut self, id: CheckId, right: bool) {
        let state = &mut self.state;
        state.limits.handle_check_result(&mut state.ctx, id, right);
    }

    fn identified(&mut self, id: u64, result: IdentificationResult) {
        let state = &mut self.state;
        state.limits.handle_identified(&mut state.ctx, id, result);
    }

    fn control(&mut self, request: ControlRequest) {
        if let Some(request) = self.control_connections(request) {
            self.state.control(request);
        }
    }

    fn join_requested(&mut self, node: NodeRecord) {
        self.state.begin_join(node);
    }

    fn alarm(&mut self, reason: &'static str, on: bool) {
        let reason = if reason == "disk" {
            AlarmReason::Disk
        } else {
            AlarmReason::Memory
        };
        let me = self.state.ctx.node();
        if reason == AlarmReason::Disk {
            self.state.queues.local_mut().disk_is_short(on);
        }
        self.set_alarm(reason, me, on);
        if self.state.ctx.is_first_shard() {
            let frame = Frame::Alarm { reason, on };
            for (peer, shards) in self.state.cluster.peers().shards_up(me) {
                self.state.ctx.send_to_shards_of_peer(peer, shards, &frame);
            }
        }
    }

    fn shut_down(&mut self) {
        self.shutting_down = true;
        self.state.start_draining();
        self.notify_all(&ControlEvent::Shutdown);
        self.state.queues.local_mut().write_all();
    }

    fn drained_fully(&self) -> bool {
        self.shutting_down
            && self.sessions.is_empty()
            && self
                .state
                .queues
                .local()
                .leaders_to_move(&self.state.topology().transfer_targets(&[]))
                == 0
    }

    fn poll(&mut self, out: &mut Vec<Effect>) {
        self.state.dead_letters.begin_turn();
        if self.state.reports.has_walks() {
            let state = &mut self.state;
            let queues = (state.metadata.tree(), state.queues.local_mut());
            let sessions = (&self.sessions, state.services.states());
            state.reports.walk(&mut state.ctx, queues, sessions);
            state.route_reports();
        }
        if self.state.limits.stored_bytes_mut().take_changes() {
            self.announce_blocked();
        }
        if self.settle() {
            tracing::warn!(event = "shard_turn_too_long", rounds = MAX_ROUNDS);
        }
        self.state.flush_services();
        if self.state.limits.take_quota_changes() {
            self.mark_rate_limited_sessions();
        }
        let state = &mut self.state;
        state
            .limits
            .flush(&mut state.ctx, state.metadata.tree(), state.cluster.peers());
        self.state.listen_when_ready();
        let state = &mut self.state;
        state.queues.flush(&mut state.ctx);
        self.state.ctx.drain_effects(out);
        if !self.dirty.is_empty() {
            out.extend(self.dirty.drain(..).map(Effect::Flush));
        }
    }
}
