//! The step function: what happened comes in, is carried through sessions, queues and groups until nothing is left
//! to do, and leaves as effects.

use crate::core::Core;
use crate::frame::{AlarmReason, Frame};
use crate::listings::Gathered;
use crate::members::Plan;
use crate::members::frame::MembersWord;
use crate::protocols::Protocols;
use crate::sessions::{Entered, Sessions};
use crate::stats::ShardStats;
use crate::view::View;
use crate::walks::ReplyTo;
use crate::{CheckId, ConnectionInfo, ConnectionKey, Effect, Route, ShardDriver, StartCheck};
use bytes::{Bytes, BytesMut};
use consensus::{JobId, JobResult, WalToken};
use control::{ControlRequest, Facts, Question, TrafficFacts};
use env::{Incarnation, NodeId, Time, WallTime};
use metadata::features::ProgramFacts;
use metadata::{NodeRecord, QueueId};
use session::{Notice, Outbox, PublishTag, Session, Standing};
use std::collections::BTreeMap;
use topics::Output;

/// Rounds of one poll: each round handles everything that the one before left, so a chain longer than this is a loop.
const MAX_ROUNDS: usize = 64;

pub struct Shard {
    pub(crate) core: Core,
    protocols: Protocols,
    pub(crate) sessions: Sessions,
    dirty: Vec<ConnectionKey>,
    shutting_down: bool,
}

impl Shard {
    pub(crate) fn from_core(core: Core) -> Shard {
        Shard {
            protocols: Protocols::new(&core.config),
            sessions: Sessions::new(core.config.index),
            core,
            dirty: Vec::new(),
            shutting_down: false,
        }
    }

    /// Costly password checks are done by `start`, not on the thread that steps the shard.
    pub fn check_elsewhere(&mut self, start: StartCheck) {
        self.core.passwords.check_elsewhere(start);
    }

    pub fn core(&self) -> &Core {
        &self.core
    }

    pub(crate) fn step(
        &mut self,
        key: ConnectionKey,
        f: impl FnOnce(&mut dyn Session, &mut View<'_>, &mut Outbox) -> Standing,
    ) -> Standing {
        let Some(entered) = self.sessions.enter(key) else {
            return Standing::Closing;
        };
        let Entered {
            slot,
            number,
            origin,
        } = entered;
        let had = slot.outbox.len();
        let before = slot.standing;
        let mut view = View {
            core: &mut self.core,
            number,
            origin,
        };
        slot.standing = f(slot.session.as_mut(), &mut view, &mut slot.outbox);
        let after = slot.standing;
        let marks = slot.marks;
        if !marks.is_dirty() && (slot.outbox.len() != had || before != after) {
            slot.marks.set_dirty(true);
            self.dirty.push(key);
        }
        // With bytes in its outbox that no flush is owed for, the flush of an earlier turn left something.
        if marks.is_charged() || !marks.is_dirty() && had > 0 {
            self.core.budget.touch(key, slot);
        }
        self.sessions.leave(key);
        after
    }

    /// A notice for a session, with those behind it that are for the same one: confirms and deliveries come in runs.
    fn tell(&mut self, number: u64, notice: Notice) {
        let Some(key) = self.sessions.by_number(number) else {
            return self.core.tell_late(number, &notice);
        };
        self.step(key, |s, view, out| {
            let mut standing = s.notice(notice, view, out);
            while let Some((_, next)) = view.core.notices.pop_front_if(|(n, _)| *n == number) {
                standing = s.notice(next, view, out);
            }
            standing
        });
    }

    fn notify_all(&mut self, notice: &Notice) {
        let keys: Vec<_> = self.sessions.iter_mut().map(|(k, _)| k).collect();
        for key in keys {
            self.step(key, |s, view, out| s.notice(notice.clone(), view, out));
        }
    }

    /// Carries everything on until nothing is left; true when it stopped for the bound.
    fn settle(&mut self) -> bool {
        for _ in 0..MAX_ROUNDS {
            let mut worked = false;
            while let Some((queue, message)) = self.core.requests.pop_front() {
                self.core.step_owner(queue, message);
                worked = true;
            }
            worked |= self.core.poll_groups();
            worked |= self.core.pass_on_dead();
            while let Some((from, number, queue, event)) = self.core.events.pop_front() {
                self.core.take_event(from, number, queue, event);
                worked = true;
            }
            worked |= self.hear_topics();
            worked |= self.evict();
            while let Some((number, notice)) = self.core.notices.pop_front() {
                self.tell(number, notice);
                worked = true;
            }
            for number in self.core.clients.take_relieved() {
                self.core.firehose_relieved(number);
                if let Some(key) = self.sessions.by_number(number) {
                    self.step(key, |s, view, out| s.notice(Notice::Relieved, view, out));
                    worked = true;
                }
            }
            if !worked {
                return false;
            }
        }
        true
    }

    /// Tells sessions what the hub has for them, one by one: what a session has not been given when it leaves, the hub
    /// keeps for its client. True when there was anything.
    fn hear_topics(&mut self) -> bool {
        let mut worked = false;
        self.core.tell_figures();
        while let Some(output) = self.core.topics.take() {
            worked = true;
            let (number, notice) = match output {
                Output::Deliver { session, delivery } => {
                    // One for each message: it is not moved about with the others.
                    if let Some(key) = self.sessions.by_number(session) {
                        self.step(key, |s, view, out| {
                            s.notice(Notice::Topic(delivery), view, out)
                        });
                    }
                    continue;
                }
                Output::TakenOver { session } => (session, Notice::TakenOver),
                Output::Free { session } => (session, Notice::ClaimAgain),
                Output::Will { vhost, will } => {
                    self.core.publish_will(&vhost, will);
                    continue;
                }
                Output::ToQueue { queue, message } => {
                    self.core.pass_to_queue(QueueId(queue), message);
                    continue;
                }
                Output::Figures => {
                    self.core.ask_figures();
                    continue;
                }
                Output::Heard {
                    session,
                    channel,
                    tag,
                } => {
                    if self.core.heard(session, tag) {
                        continue;
                    }
                    let tag = PublishTag { channel, tag };
                    (session, Notice::Heard { tag })
                }
                Output::AnsweredLate {
                    session,
                    client,
                    publisher,
                    tag,
                    taken,
                } => {
                    // An output before this one may have ended that connection.
                    if !self.core.topics.is_connected_by(client, session) {
                        let publish = (publisher, tag);
                        self.core.topics.pass_answer(client, publish, taken);
                        continue;
                    }
                    let notice = Notice::AnsweredLate {
                        publisher,
                        tag,
                        taken,
                    };
                    (session, notice)
                }
                Output::Relieved { session } => (session, Notice::Relieved),
                Output::Known { session } => (session, Notice::Known),
                Output::Missed { session } => (session, Notice::Missed),
                Output::TellWill { session } => (session, Notice::TellWill),
            };
            match self.sessions.by_number(number) {
                Some(key) => {
                    self.step(key, |s, view, out| s.notice(notice, view, out));
                }
                None => self.core.tell_late(number, &notice),
            }
        }
        worked
    }

    fn tick_sessions(&mut self) {
        for key in self.sessions.due(self.core.now) {
            self.step(key, |s, view, out| s.tick(view, out));
        }
    }

    fn take_frame(&mut self, from: NodeId, frame: Frame) {
        match frame {
            Frame::Raft(bytes) => self.core.owners.receive_raft(from, bytes),
            Frame::ToQueue { queue, messages } => {
                // A peer speaks for its own sessions alone.
                let own = messages.into_iter().filter(|m| m.session().node == from);
                self.core.requests.extend(own.map(|m| (queue, m)));
            }
            Frame::Events {
                session,
                queue,
                events,
            } => {
                if session.node == self.core.me()
                    && session.incarnation == self.core.config.incarnation
                {
                    let number = session.number;
                    self.core
                        .events
                        .extend(events.into_iter().map(|e| (from, number, queue, e)));
                }
            }
            Frame::Propose { origin, change } => self.core.propose_for(origin, &change),
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
                self.core.answer_stats(to, (only, counting));
            }
            Frame::StatsReply {
                token,
                last,
                stats,
                counting,
            } => {
                let told = ShardStats { stats, counting };
                self.core.take_stats(from, token, last, told);
            }
            Frame::Alarm { reason, on } => self.set_alarm(reason, from, on),
            Frame::Join { node } => self.core.join(node),
            Frame::Ask {
                token,
                reply_shard,
                question,
            } => {
                let to = ReplyTo {
                    node: from,
                    shard: reply_shard,
                    token,
                };
                match Question::decode(&question) {
                    Some(question) => self.answer(to, &question),
                    // A newer node's: an answer with nothing in it is better than none.
                    None => self.core.tell_facts(to, Facts::Closed(false), true),
                }
            }
            Frame::Told { token, last, facts } => {
                let facts = Facts::decode(&facts);
                let from = (from, self.core.now);
                self.core.listings.take(token, from, last, facts);
            }
            Frame::Members(MembersWord::Drain { on }) if from == self.core.me() => self.drain(on),
            Frame::Members(word) => self.core.take_members_word(from, word),
            Frame::Hub(frame) => self.core.take_hub_frame(from, frame),
            Frame::Uses(told) => self.core.uses.hear(from, told),
            // Words between shards of one node; another node has no business with them.
            Frame::Applied { .. }
            | Frame::Restored { .. }
            | Frame::ChangeRequest { .. }
            | Frame::ChangeRefused { .. }
            | Frame::CaughtUp => {}
        }
    }

    fn set_alarm(&mut self, reason: AlarmReason, node: NodeId, on: bool) {
        let before = self.core.alarms.in_force();
        if self.core.alarms.set(reason, node, on) && self.core.alarms.in_force() != before {
            self.notify_all(&Notice::Blocked(self.core.alarms.in_force()));
        }
    }

    /// Asks every shard of every node, or of this one, this shard first.
    fn gather(&mut self, question: &Question, everywhere: bool, facts: Gathered) {
        let token = self.core.ask_shards(question, everywhere, facts);
        let to = ReplyTo {
            node: self.core.me(),
            shard: self.core.config.index,
            token,
        };
        self.answer(to, question);
    }

    /// Tells what this shard has to say; a connection that is to be closed is.
    fn answer(&mut self, to: ReplyTo, question: &Question) {
        let Question::Close { name, reason } = question else {
            return self.core.answer_question(to, question);
        };
        let key = self.sessions.by_name(name);
        if let Some(key) = key {
            let text = reason.clone();
            self.step(key, |s, view, out| {
                s.notice(Notice::Close { text }, view, out)
            });
        }
        self.core.tell_facts(to, Facts::Closed(key.is_some()), true);
    }

    /// Maintenance begins or ends.
    fn drain(&mut self, on: bool) {
        self.core.set_maintenance(on);
        if on {
            self.notify_all(&Notice::Shutdown);
        }
    }

    /// Control requests that need the connections.
    fn control_connections(&mut self, request: ControlRequest) -> Option<ControlRequest> {
        match request {
            ControlRequest::Connections { reply } => {
                self.gather(
                    &Question::Connections,
                    true,
                    Gathered::Connections(vec![], reply),
                );
            }
            ControlRequest::Consumers { reply } => {
                self.gather(
                    &Question::Consumers,
                    true,
                    Gathered::Consumers(vec![], reply),
                );
            }
            ControlRequest::Counters { everywhere, reply } => {
                let facts = Gathered::Counters(BTreeMap::new(), reply);
                self.gather(&Question::Counters, everywhere, facts);
            }
            ControlRequest::Traffic { of, reply } => {
                let facts = Gathered::Traffic(TrafficFacts::default(), reply);
                self.gather(&Question::Traffic(of), true, facts);
            }
            ControlRequest::CloseConnection {
                name,
                reason,
                reply,
            } => {
                let question = Question::Close { name, reason };
                self.gather(&question, true, Gathered::Closed(false, reply));
            }
            ControlRequest::Maintenance { on, reply } => {
                self.drain(on);
                let connections_left = self.sessions.len() as u32;
                let plan = Plan::Drained {
                    on,
                    connections_left,
                    reply,
                };
                self.core.gather_for(None, plan);
            }
            other => return Some(other),
        }
        None
    }
}

impl ShardDriver for Shard {
    fn tick(&mut self, now: Time, wall: WallTime) {
        self.core.now = now;
        self.core.wall = self.core.steady_wall.read(now, wall);
        self.core.walks.begin_turn();
        self.core.tick();
        if self.core.budget.is_active() {
            self.keep_budget();
        }
        self.tick_sessions();
    }

    fn wake_at(&self) -> Option<Time> {
        let sessions = self.sessions.wake_at();
        [self.core.wake_at(), sessions].into_iter().flatten().min()
    }

    fn connected(&mut self, connection: ConnectionKey, info: ConnectionInfo) {
        let session = self.protocols.session(&info, self.core.now);
        let wall = self.core.wall;
        self.sessions.insert(connection, session, &info, wall);
        if self.core.draining {
            self.step(connection, |s, view, out| {
                s.notice(Notice::Shutdown, view, out)
            });
        }
    }

    fn received(&mut self, connection: ConnectionKey, input: &mut BytesMut) -> Standing {
        let before = input.len();
        let standing = self.step(connection, |s, view, out| s.receive(input, view, out));
        if let Some(slot) = self.sessions.get(connection) {
            let partial = input.len();
            let taken = before.saturating_sub(partial);
            slot.received += taken as u64;
            if partial > 0 || slot.marks.is_charged() {
                self.note_input(connection, partial, taken > 0);
            }
        }
        standing
    }

    fn outbox(&mut self, connection: ConnectionKey) -> Option<(&mut Outbox, Standing)> {
        self.sessions.get(connection).map(|s| {
            s.marks.set_dirty(false);
            let standing = s.standing;
            (&mut s.outbox, standing)
        })
    }

    fn sealed(&mut self, connection: ConnectionKey, bytes: usize) {
        if let Some(slot) = self.sessions.get(connection) {
            let now = self.core.now;
            self.core.budget.sealed(connection, bytes, now);
            slot.marks.set_charged(true);
            self.core.budget.touch(connection, slot);
        }
    }

    fn handshakes(&mut self, bytes: usize) -> usize {
        self.core.budget.handshakes(bytes)
    }

    fn drained(&mut self, connection: ConnectionKey) {
        self.step(connection, |s, view, out| s.drained(view, out));
    }

    fn gone(&mut self, connection: ConnectionKey) {
        let Some(entered) = self.sessions.enter(connection) else {
            return;
        };
        let Entered {
            slot,
            number,
            origin,
        } = entered;
        let mut view = View {
            core: &mut self.core,
            number,
            origin,
        };
        slot.session.gone(&mut view);
        if slot.marks.is_charged() {
            self.core.budget.release(connection);
        }
        self.sessions.remove(connection);
        self.core.session_gone(number);
        if self.shutting_down && self.sessions.is_empty() {
            self.core.owners.write_all();
        }
    }

    fn peer_program(&mut self, node: NodeId, program: Option<ProgramFacts>) {
        self.core.peers.told(node, program);
    }

    fn peer_up(&mut self, node: NodeId, incarnation: Incarnation) {
        self.core.peer_up(node, incarnation);
        for reason in [AlarmReason::Memory, AlarmReason::Disk] {
            if self.core.config.index == 0 && self.core.alarms.has(reason, self.core.me()) {
                self.core.tell_alarm(node, reason, true);
            }
        }
    }

    fn peer_down(&mut self, node: NodeId) {
        let before = self.core.alarms.in_force();
        self.core.peer_down(node);
        if self.core.alarms.in_force() != before {
            self.notify_all(&Notice::Blocked(self.core.alarms.in_force()));
        }
    }

    fn peer_frame(&mut self, from: NodeId, frame: Bytes) {
        match Frame::decode(frame) {
            Ok(frame) => self.take_frame(from, frame),
            Err(error) => tracing::warn!(event = "peer_frame_unreadable", node = from.0, %error),
        }
    }

    fn shard_frame(&mut self, from: u16, frame: Bytes) {
        let frame = match Frame::decode(frame) {
            Ok(frame) => frame,
            Err(error) => {
                return tracing::error!(event = "shard_frame_unreadable", shard = from, %error);
            }
        };
        match frame {
            Frame::Applied {
                index,
                change,
                done_for,
            } => self.core.applied_on_shard_0(index, &change, done_for),
            Frame::Restored { index, tree } => self.core.restored_on_shard_0(index, &tree),
            Frame::CaughtUp => self.core.is_caught_up(),
            Frame::ChangeRefused { token, why } => self.core.refused_on_shard_0(token, why),
            Frame::ChangeRequest {
                shard,
                token,
                change,
            } => {
                self.core
                    .ask(change, crate::directory::Asker::Shard { shard, token });
            }
            other => self.take_frame(self.core.me(), other),
        }
    }

    fn durable(&mut self, token: WalToken) {
        self.core.owners.durable(token);
    }

    fn wal_rolled(&mut self, file: u64) {
        self.core.owners.wal_rolled(file);
    }

    fn job_done(&mut self, id: JobId, result: JobResult) {
        if let Err(error) = &result {
            self.core
                .effects
                .push(Effect::Fatal(format!("storage: {error}")));
            return;
        }
        self.core.owners.job_done(id, result);
    }

    fn checked(&mut self, id: CheckId, right: bool) {
        let core = &mut self.core;
        for session in core.passwords.checked(core.now, id, right) {
            // One that has ended meanwhile is not there to hear it.
            core.notices
                .push_back((session, Notice::Verified { right }));
        }
    }

    fn control(&mut self, request: ControlRequest) {
        if let Some(request) = self.control_connections(request) {
            self.core.control(request);
        }
    }

    fn join_requested(&mut self, node: NodeRecord) {
        self.core.join_requested(node);
    }

    fn alarm(&mut self, reason: &'static str, on: bool) {
        let reason = if reason == "disk" {
            AlarmReason::Disk
        } else {
            AlarmReason::Memory
        };
        let me = self.core.me();
        if reason == AlarmReason::Disk {
            self.core.owners.disk_is_short(on);
        }
        self.set_alarm(reason, me, on);
        if self.core.config.index == 0 {
            let peers: Vec<_> = self.core.peers.all_up().collect();
            for peer in peers {
                self.core.tell_alarm(peer, reason, on);
            }
        }
    }

    fn shut_down(&mut self) {
        self.shutting_down = true;
        self.core.start_draining();
        self.notify_all(&Notice::Shutdown);
        self.core.owners.write_all();
    }

    fn drained_fully(&self) -> bool {
        self.shutting_down
            && self.sessions.is_empty()
            && self.core.owners.leaders_to_move(&self.core.heirs(&[])) == 0
    }

    fn poll(&mut self, out: &mut Vec<Effect>) {
        self.core.dead_letters.begin_turn();
        self.core.walk_on(&self.sessions);
        if self.settle() {
            tracing::warn!(event = "shard_turn_too_long", rounds = MAX_ROUNDS);
        }
        self.core.flush_hubs();
        self.core.flush_uses();
        self.core.listen_when_introduced();
        self.core.flush_outgoing();
        out.append(&mut self.core.effects);
        out.extend(self.dirty.drain(..).map(Effect::Flush));
    }
}

/// Frames for every shard of a peer go to the shard of the same index there.
pub(crate) fn same_shard(core: &Core) -> Route {
    Route::Shard(core.config.index)
}
