//! A member of a quorum queue's Raft group: the machine and, while it leads, the handling of requests.
//!
//! The shard passes committed entries and leadership changes in. It proposes the commands of
//! [`QuorumQueue::take_proposal`] to the group, and at the end of its turn it calls [`QuorumQueue::resolve`]
//! with a function that reads the log.

use super::command::{Batch, Command, Configuration, judged};
use super::dead_letter::ForwardProgress;
use super::effects::{Effects, LogRead};
use super::head::KnownHead;
use super::machine::{Machine, UnknownCommand};
use super::snapshot::RestoreError;
use super::timeouts::TimeoutWatches;
use crate::checkout::{Admission, starts_numbering_epoch};
use crate::selection::Selection;
use crate::{
    ConsumerInfo, DeadIncarnation, Name, Queue, QueueCounters, QueueEvent, QueueMessage,
    QueueOutput, QueueReply, QueueSettings, QueueStats, QuorumFeatures, Request, RequestBody,
    ResumeConsumer, SessionId, Timestamps,
};
use bytes::Bytes;
use env::planted::{self, Bug};
use env::{NodeId, SteadyWallClock, Time, WallTime};
use slots::IndexSet;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

/// Most bytes of commands that wait to be proposed. Further requests are ignored; their sessions send them
/// again.
pub(crate) const MAX_WAITING_BYTES: usize = 32 << 20;
/// Most resumes that wait until this leader has caught up. Further ones are ignored; their sessions send them
/// again.
pub(crate) const MAX_WAITING_RESUMES: usize = 4096;

/// Wait before a failed read is repeated when file descriptors or memory are short.
pub(crate) const RETRY_AFTER: Duration = Duration::from_millis(500);

/// A snapshot of the machine for the Raft group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Index of the last entry that it contains.
    pub index: u64,
    /// The encoded machine.
    pub state: Bytes,
    /// Entries at or below `index` that are still needed.
    pub live: IndexSet,
}

/// Progress of this leader with a session's requests.
#[derive(Debug, Default)]
struct Progress {
    /// The last request number that was proposed.
    proposed: u64,
    /// The last missing request number that was reported, so that each gap is reported once.
    reported_gap: u64,
}

/// See the module.
#[derive(Debug)]
pub struct QuorumQueue {
    label: Name,
    pub(super) machine: Machine,
    pub(super) effects: Effects,
    pub(super) leads: bool,
    leader: Option<NodeId>,
    term: u64,
    /// This leader has applied an entry of its own term, and so all entries of earlier terms.
    pub(super) caught_up: bool,
    pub(super) forwarding: ForwardProgress,
    batch: Batch,
    proposals: VecDeque<Bytes>,
    waiting_bytes: usize,
    progress: BTreeMap<SessionId, Progress>,
    /// Sessions whose end is proposed.
    closing_sessions: Vec<SessionId>,
    /// Resumes that wait until this leader has caught up.
    waiting_resumes: Vec<ResumeConsumer>,
    /// The last state of each node that the failure detector reported.
    reachable: BTreeMap<NodeId, bool>,
    /// How many nodes in `reachable` are down.
    unreachable: usize,
    /// Nodes with a proposed and not yet applied suspicion or its end.
    pending_suspicions: BTreeSet<NodeId>,
    /// The settings to propose, unless the machine has them.
    desired: Option<QueueSettings>,
    /// Features that the cluster has enabled, as far as this member knows.
    features: QuorumFeatures,
    /// New settings are proposed and not yet applied.
    settings_proposed: bool,
    /// The clock that is proposed and not yet applied.
    time_proposed: Option<WallTime>,
    /// When messages are read again that could not be read because file descriptors or memory were short.
    retry_at: Option<Time>,
    pub(super) watches: TimeoutWatches,
    at: Timestamps,
    /// The clock of the queue, if it was ahead of this node's when this member became the leader. Without it the clock
    /// would stand still until this node's has caught up, and so would the times of expiring and delayed messages.
    clock_ahead: Option<SteadyWallClock>,
    /// The oldest ready message when it was asked for last.
    pub(super) head: Option<Box<KnownHead>>,
    /// The search for messages of consumers with filters.
    pub(super) selection: Selection,
}

impl QuorumQueue {
    /// Creates a member with an empty machine. `label` is the name of the queue in error texts.
    pub fn new(label: Name, settings: QueueSettings) -> QuorumQueue {
        QuorumQueue::with_machine(label.clone(), Machine::new(label, settings))
    }

    fn with_machine(label: Name, machine: Machine) -> QuorumQueue {
        QuorumQueue {
            label,
            machine,
            effects: Effects::discarding(),
            leads: false,
            leader: None,
            term: 0,
            caught_up: false,
            forwarding: ForwardProgress::default(),
            batch: Batch::default(),
            proposals: VecDeque::new(),
            waiting_bytes: 0,
            progress: BTreeMap::new(),
            closing_sessions: Vec::new(),
            waiting_resumes: Vec::new(),
            reachable: BTreeMap::new(),
            unreachable: 0,
            pending_suspicions: BTreeSet::new(),
            desired: None,
            features: QuorumFeatures::default(),
            settings_proposed: false,
            time_proposed: None,
            retry_at: None,
            watches: TimeoutWatches::default(),
            at: Timestamps::default(),
            clock_ahead: None,
            head: None,
            selection: Selection::default(),
        }
    }

    /// The time that the leader proposes.
    pub(super) fn wall(&self) -> WallTime {
        match self.clock_ahead {
            Some(mut clock) => clock.read(self.at.now, self.at.wall),
            None => self.at.wall,
        }
    }

    /// The replicated state.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns true if no effect waits for [`resolve`](Self::resolve).
    #[cfg(test)]
    pub(crate) fn effects_are_resolved(&self) -> bool {
        self.effects.list.is_empty()
    }

    /// Returns true if this member leads the group.
    pub fn leads(&self) -> bool {
        self.leads
    }

    /// Replaces the machine by a snapshot.
    pub fn restore(&mut self, state: Bytes) -> Result<(), RestoreError> {
        self.machine = Machine::restore(self.label.clone(), state)?;
        Ok(())
    }

    /// A snapshot of the machine, with the entries that are still needed.
    pub fn checkpoint(&self) -> Checkpoint {
        let applied = self.machine.applied();
        debug_assert!(self.machine.live_indexes().all(|index| index <= applied));
        let live = self.machine.live_indexes();
        let live = IndexSet::from_runs(live.chain(self.effects.dead_indexes()));
        Checkpoint {
            index: self.machine.applied(),
            state: self.machine.snapshot(),
            live,
        }
    }

    /// Records the leadership of the group. Drops commands that were not proposed yet: their sessions send them
    /// again.
    pub fn leadership(
        &mut self,
        term: u64,
        leader: Option<NodeId>,
        leads: bool,
        out: &mut QueueOutput,
    ) {
        self.leader = leader;
        if (leads, term) == (self.leads, self.term) {
            return;
        }
        debug_assert!(term >= self.term, "term {term} after {}", self.term);
        let was_leading = std::mem::replace(&mut self.leads, leads);
        self.term = term;
        self.caught_up = false;
        self.clock_ahead = None;
        self.forwarding = ForwardProgress::default();
        self.batch = Batch::default();
        self.proposals.clear();
        self.waiting_bytes = 0;
        self.closing_sessions.clear();
        self.waiting_resumes.clear();
        self.reachable.clear();
        self.unreachable = 0;
        self.pending_suspicions.clear();
        self.desired = None;
        self.settings_proposed = false;
        self.time_proposed = None;
        self.retry_at = None;
        self.watches.reset();
        self.selection.clear();
        self.effects = if leads {
            self.machine.begin_leading();
            Effects::collecting()
        } else {
            Effects::discarding()
        };
        if leads {
            // Events of earlier leaders may have been lost with them.
            for session in self.machine.sessions() {
                out.event(session, QueueEvent::Owner);
            }
        }
        let sessions = std::mem::take(&mut self.progress);
        if was_leading && !leads {
            for session in sessions.into_keys() {
                out.event(session, QueueEvent::NotOwner { leader });
            }
        }
    }

    /// Applies a committed entry. A leader must call [`resolve`](Self::resolve) before the turn ends. After an
    /// error this member must not report anything further, and the node must stop.
    pub fn applied(
        &mut self,
        index: u64,
        term: u64,
        command: &Bytes,
    ) -> Result<(), UnknownCommand> {
        if let Err(unreadable) = self.machine.apply(index, command, &mut self.effects) {
            self.effects = Effects::discarding();
            return Err(unreadable);
        }
        if !self.leads {
            return Ok(());
        }
        let clock = self.machine.clock;
        if self.time_proposed.is_some_and(|at| at.0 <= clock) {
            self.time_proposed = None;
        }
        if term == self.term && !self.caught_up {
            self.caught_up = true;
            self.clock_ahead = (clock > self.at.wall.0)
                .then(|| SteadyWallClock::new(self.at.now, WallTime(clock)));
            for resume in std::mem::take(&mut self.waiting_resumes) {
                self.machine.resume(&resume, &mut self.effects);
            }
            for node in self.reachable.keys().copied().collect::<Vec<_>>() {
                self.reconcile_suspicion(node);
            }
            // The applied entries may include settings of an earlier leader.
            self.settings_proposed = false;
            self.propose_settings();
        }
        // Commands of earlier leaders are not among those that are pending.
        if term == self.term
            && !self.pending_suspicions.is_empty()
            && let Some(node) = judged(command)
            && self.pending_suspicions.remove(&node)
        {
            self.reconcile_suspicion(node);
        }
        let (machine, progress) = (&self.machine, &mut self.progress);
        self.closing_sessions.retain(|session| {
            let open = machine.check_request(*session, 1) != Admission::Closed;
            if !open {
                progress.remove(session);
            }
            open
        });
        Ok(())
    }

    /// Turns effects into events. `read` returns the command of a log entry.
    pub fn resolve(&mut self, read: &mut dyn FnMut(u64) -> LogRead, out: &mut QueueOutput) {
        self.effects.resolve(read, out);
        if self.effects.is_short() {
            self.retry_later();
        }
    }

    /// Schedules another attempt after a read failed for a shortage of file descriptors or memory.
    pub(super) fn retry_later(&mut self) {
        let at = self.at.now + RETRY_AFTER;
        self.retry_at.get_or_insert(at);
    }

    /// Returns true between a read that failed for a shortage and its repetition.
    pub(super) fn waits_to_read(&self) -> bool {
        self.retry_at.is_some()
    }

    /// The next command to propose; call until None. A command that the group cannot take now is returned with
    /// [`give_back`](Self::give_back).
    pub fn take_proposal(&mut self) -> Option<Bytes> {
        if self.proposals.is_empty() {
            self.seal_batch();
        }
        let command = self.proposals.pop_front()?;
        self.waiting_bytes = self.waiting_bytes.saturating_sub(command.len());
        debug_assert!(self.waiting_bytes == 0 || !self.proposals.is_empty());
        Some(command)
    }

    /// Returns a command that could not be proposed.
    pub fn give_back(&mut self, command: Bytes) {
        if self.leads {
            self.waiting_bytes += command.len();
            self.proposals.push_front(command);
        }
    }

    /// Returns true if there are commands to propose.
    pub fn has_proposals(&self) -> bool {
        !self.proposals.is_empty() || !self.batch.is_empty()
    }

    pub(super) fn propose(&mut self, command: &Command) {
        debug_assert!(self.leads, "{}: only the leader proposes", self.label);
        // Earlier requests must be applied first.
        self.seal_batch();
        let command = command.encode();
        self.waiting_bytes += command.len();
        self.proposals.push_back(command);
    }

    fn seal_batch(&mut self) {
        if let Some(command) = self.batch.take(self.wall()) {
            self.waiting_bytes += command.len();
            self.proposals.push_back(command);
        }
    }

    fn request(&mut self, request: Request, out: &mut QueueOutput) {
        if self.waiting_bytes >= MAX_WAITING_BYTES {
            return;
        }
        let (session, seq) = (request.session, request.seq);
        match self.machine.check_request(session, seq) {
            Admission::Duplicate => {
                let effects = &mut self.effects;
                return self
                    .machine
                    .repeat_answer(session, seq, &request.body, effects);
            }
            Admission::Closed => return out.event(session, QueueEvent::Applied { up_to: seq }),
            Admission::Ignore => return,
            Admission::Apply | Admission::Gap { .. } => {}
        }
        let applied = self.machine.last_applied(session);
        let progress = self.progress.entry(session).or_default();
        progress.proposed = progress.proposed.max(applied);
        if starts_numbering_epoch(seq) {
            progress.proposed = progress.proposed.max(seq - 1);
        }
        let expected = progress.proposed + 1;
        if seq > expected {
            let closes = matches!(request.body, RequestBody::Close);
            if closes && progress.proposed == 0 {
                // Only the log decides whether the session is forgotten or not yet known.
                self.batch.push(&request);
            } else if progress.reported_gap != expected {
                progress.reported_gap = expected;
                out.event(session, QueueEvent::Expecting { expected });
            }
            return;
        }
        if seq < expected {
            // Proposed and not yet applied.
            return;
        }
        debug_assert!(applied < seq, "request {seq} is applied");
        progress.proposed = seq;
        if planted::is(Bug::ConfirmBeforeCommit) {
            out.event(session, QueueEvent::Applied { up_to: seq });
        }
        if matches!(request.body, RequestBody::Close) {
            self.closing_sessions.push(session);
        }
        let request = match request.body {
            RequestBody::Get { .. } | RequestBody::GetAt(_) if self.effects.is_short() => {
                self.refuse_get(request, out)
            }
            _ => request,
        };
        self.batch.push(&request);
        if self.batch.is_full() {
            self.seal_batch();
        }
    }

    /// Refuses a `Get` whose message could not be read at the moment. The request number is used up by a
    /// request that changes nothing.
    fn refuse_get(&self, request: Request, out: &mut QueueOutput) -> Request {
        let Request { session, seq, .. } = request;
        let text = format!(
            "{} cannot be read at the moment: try again later",
            self.label
        );
        let answer = QueueReply::Refused { code: 406, text };
        out.event(session, QueueEvent::Answer { seq, answer });
        let body = RequestBody::Stat;
        Request { session, seq, body }
    }

    fn resume(&mut self, resume: ResumeConsumer) {
        if self.caught_up {
            return self.machine.resume(&resume, &mut self.effects);
        }
        if self.waiting_resumes.is_empty() {
            // This leader knows the state of its predecessors once an entry of its own term is applied.
            let wall = self.wall();
            self.propose(&Command::Time(wall));
        }
        if self.waiting_resumes.len() < MAX_WAITING_RESUMES {
            self.waiting_resumes.push(resume);
        }
    }

    /// Proposes an entry of this leader's own term, so that it catches up.
    pub(super) fn ensure_caught_up_soon(&mut self) {
        if self.time_proposed.is_none() {
            let wall = self.wall();
            self.time_proposed = Some(wall);
            self.propose(&Command::Time(wall));
        }
    }

    fn propose_settings(&mut self) {
        let Some(desired) = &self.desired else { return };
        let enabled = self.machine.features();
        let features = enabled.union(self.features);
        let settings = QueueSettings {
            quorum: desired.quorum.supported_by(features),
            ..desired.clone()
        };
        let is_done = settings == *self.machine.settings() && features == enabled;
        if self.settings_proposed || is_done {
            return;
        }
        let command = match features.is_empty() {
            true => Command::Settings(settings),
            false => Command::Configure(Configuration { features, settings }),
        };
        self.settings_proposed = true;
        self.propose(&command);
    }

    /// The cluster has enabled these features. They take effect with the next [`configure`](Queue::configure), at the
    /// same log entry on all members.
    pub fn enable_features(&mut self, features: QuorumFeatures) {
        if self.features.union(features) != self.features {
            self.features = self.features.union(features);
            self.desired = None;
        }
    }

    /// The failure detector reports a node down: suspends its consumers until the node sends a request.
    pub fn peer_down(&mut self, node: NodeId) {
        self.set_reachable(node, false);
    }

    /// The failure detector reports a node up.
    pub fn peer_up(&mut self, node: NodeId) {
        self.set_reachable(node, true);
    }

    fn set_reachable(&mut self, node: NodeId, up: bool) {
        if !self.leads {
            return;
        }
        let was_up = self.reachable.insert(node, up).unwrap_or(true);
        self.unreachable += usize::from(was_up && !up);
        self.unreachable -= usize::from(!was_up && up);
        if self.caught_up {
            self.reconcile_suspicion(node);
        } else if !up && self.machine.has_sessions_of(node) {
            // Before any request of other nodes: what the node's consumers had is requeued in front, before
            // other consumers get newer messages. Unapplied entries may contain further sessions of the node or
            // its suspicion, so the two are compared again once they are applied.
            self.suspect(node);
        }
    }

    fn suspect(&mut self, node: NodeId) {
        if self.pending_suspicions.insert(node) {
            self.propose(&Command::NodeSuspected(node));
        }
    }

    /// Proposes to suspect or to trust a node if the machine differs from the failure detector. One command at
    /// a time: they are compared again once it is applied, since the detector may have changed its mind.
    fn reconcile_suspicion(&mut self, node: NodeId) {
        let Some(up) = self.reachable.get(&node).copied() else {
            return;
        };
        if self.pending_suspicions.contains(&node) {
            return;
        }
        let command = match (up, self.machine.is_suspended(node)) {
            (true, true) => Command::NodeTrusted(node),
            (false, false) if self.has_or_expects_sessions(node) => Command::NodeSuspected(node),
            _ => return,
        };
        self.pending_suspicions.insert(node);
        self.propose(&command);
    }

    /// Suspects nodes again whose last requests were applied after their suspicion: a request ends it, and a node
    /// that is down sends nothing that would return what its sessions took.
    fn suspect_unreachable(&mut self) {
        if self.unreachable == 0 || !self.leads || !self.caught_up {
            return;
        }
        let down = self.reachable.iter().filter(|(_, up)| !**up);
        for node in down.map(|(node, _)| *node).collect::<Vec<_>>() {
            self.reconcile_suspicion(node);
        }
    }

    /// Returns true if a node has sessions here, or proposed requests that may create one.
    fn has_or_expects_sessions(&self, node: NodeId) -> bool {
        let first = SessionId {
            node,
            ..SessionId::default()
        };
        let mut proposed = self.progress.range(first..);
        self.machine.has_sessions_of(node) || proposed.next().is_some_and(|(s, _)| s.node == node)
    }
}

impl Queue for QuorumQueue {
    fn step(&mut self, at: Timestamps, item: QueueMessage, out: &mut QueueOutput) {
        self.at = at;
        if !self.leads {
            let leader = self.leader;
            return out.event(item.session(), QueueEvent::NotOwner { leader });
        }
        match item {
            QueueMessage::Request(request) => self.request(request, out),
            QueueMessage::Resume(resume) => self.resume(resume),
            QueueMessage::Received(progress) => {
                self.machine.open_flow_window(&progress, &mut self.effects)
            }
        }
    }

    fn tick(&mut self, at: Timestamps, _out: &mut QueueOutput) {
        self.at = at;
        self.retry_at = self.retry_at.filter(|retry_at| *retry_at > at.now);
        let wall = self.wall();
        let due = self.machine.next_timer().is_some_and(|e| e <= wall);
        if self.leads && due && self.time_proposed.is_none() {
            self.time_proposed = Some(wall);
            self.propose(&Command::Time(wall));
        }
        if self.watches.next_check.is_some_and(|check| check <= at.now) {
            self.check_timeouts(at.now);
        }
    }

    fn flush(&mut self, at: Timestamps, _out: &mut QueueOutput) {
        self.at = at;
        self.schedule_timeouts(at.now);
        self.suspect_unreachable();
        self.propose_forwarded();
        self.seal_batch();
    }

    fn wake_at(&self) -> Option<Time> {
        if !self.leads {
            return None;
        }
        let timer = self.machine.next_timer();
        let due_at = timer.filter(|_| self.time_proposed.is_none()).map(|at| {
            let wait = at.0.saturating_sub(self.wall().0);
            self.at.now + Duration::from_millis(wait)
        });
        let check = self.watches.next_check;
        let search = self.selection.has_more() && !self.waits_to_read();
        let search = search.then_some(self.at.now);
        let others = self.retry_at.into_iter().chain(check).chain(search);
        due_at.into_iter().chain(others).min()
    }

    fn session_gone(&mut self, at: Timestamps, session: SessionId, _out: &mut QueueOutput) {
        self.at = at;
        let known = self.machine.last_applied(session) > 0 || self.progress.contains_key(&session);
        if self.leads && known {
            self.closing_sessions.push(session);
            self.propose(&Command::GoneSession(session));
        }
    }

    fn node_gone(&mut self, at: Timestamps, dead: DeadIncarnation, _out: &mut QueueOutput) {
        self.at = at;
        let is_over = |s: &SessionId| s.node == dead.node && s.incarnation < dead.before;
        let proposed = self.progress.keys().any(is_over);
        if self.leads && (!self.caught_up || proposed || self.machine.has_sessions_before(dead)) {
            self.progress.retain(|session, _| !is_over(session));
            self.propose(&Command::GoneNode(dead));
        }
    }

    fn configure(&mut self, at: Timestamps, settings: &QueueSettings, _out: &mut QueueOutput) {
        self.at = at;
        if !self.leads || self.desired.as_ref() == Some(settings) {
            return;
        }
        self.desired = Some(settings.clone());
        self.settings_proposed = false;
        self.propose_settings();
    }

    fn stats(&self) -> QueueStats {
        self.machine.stats()
    }

    fn counters(&self) -> QueueCounters {
        self.machine.counters()
    }

    fn in_use(&self) -> bool {
        self.machine.in_use()
    }

    fn has_dead(&self) -> bool {
        QuorumQueue::has_dead(self)
    }

    fn consumers(&self) -> Vec<ConsumerInfo> {
        self.machine.consumers()
    }

    fn session_nodes(&self) -> Vec<NodeId> {
        self.machine.session_nodes()
    }
}
