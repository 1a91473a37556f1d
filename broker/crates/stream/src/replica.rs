//! One replica of a stream: connects the log, its replication, the sessions and the cursors.

mod backup;
mod leading;
mod replication;
mod requests;
mod status;
mod tier;

pub use status::ReplicaStatus;

use crate::PeerMessage;
use crate::cursors::{Cursors, LogEnds, RecentChunk};
use crate::jobs::{OpenJob, OpenedLog, Outcome, StreamJob, StreamJobResult, Work};
use crate::sessions::Sessions;
use bytes::Bytes;
use env::{Incarnation, NodeId, Time, WallTime};
use queue::cursor::{AddressedCursorEvent, CursorEvent, CursorRequest, CursorSource};
use queue::{
    ConsumerInfo, DeadIncarnation, Name, Queue, QueueCounters, QueueId, QueueMessage, QueueOutput,
    QueueReply, QueueSettings, QueueStats, SessionId, Timestamps,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use stream_log::{
    Chunk, ChunkBuilder, ChunkReader, LogConfig, LogError, MAX_PENDING_BYTES, StreamLog,
};
use stream_replication::{Attachment, EpochTable, LogState, Member, WriteToken};
use stream_tier::{Tier, TierConfig};

/// Wait before a storage job is repeated that failed for lack of space, descriptors or memory.
const RETRY: Duration = Duration::from_secs(1);
/// Most attaches that wait until the log is open.
const MAX_PARKED: usize = 4_096;

/// The identity and the settings of a replica.
#[derive(Clone, Debug)]
pub struct ReplicaConfig {
    /// The stream.
    pub stream: QueueId,
    /// Names the stream in errors: `queue 'orders' in vhost '/'`.
    pub label: Name,
    /// This node.
    pub node: NodeId,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// Names the run of the machine: unsynced writes survive the end of the process, and not the end of the machine.
    pub machine: Box<[u8]>,
    /// Settings of the log.
    pub log: LogConfig,
    /// The stream has just been declared: a log without files is a whole one.
    pub founds: bool,
    /// Sealed segments go to an object store. None: they stay on the disk.
    pub tier: Option<TierConfig>,
}

/// The state of the stream's Raft group on this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RaftState {
    /// The term, which is durable.
    pub term: u64,
    /// The leader, if it is known. This node itself only after it has applied an entry of its term.
    pub leader: Option<NodeId>,
}

/// Work for the host of a replica.
#[derive(Debug)]
pub enum StreamEffect {
    /// Send a message to another replica. It may be lost.
    Send {
        /// The node of the replica.
        to: NodeId,
        /// The message.
        message: PeerMessage,
    },
    /// Run a job on a storage thread, then call [`StreamReplica::job_done`].
    Job(StreamJob),
    /// Hand the leadership of the Raft group to this node.
    TransferLeadership(NodeId),
    /// The disk cannot be trusted: the node must stop.
    Fatal(String),
}

/// Work on the log, in order.
#[derive(Debug)]
pub(crate) enum LogTask {
    /// Chunks of the leader.
    Accept {
        token: WriteToken,
        chunks: VecDeque<Chunk>,
    },
    Truncate {
        next: u64,
    },
    /// Delete the log and begin at this offset. None: only open it again.
    Restart {
        start: Option<u64>,
    },
    Marker {
        epoch: u64,
    },
}

/// The purpose of a running job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Open,
    Append,
    Maintain,
    Record,
    /// Reads chunks for a follower.
    Feed {
        to: NodeId,
        attachment: Attachment,
        first: u64,
        committed: u64,
    },
    /// Finds an offset for a request.
    Answer {
        session: SessionId,
        seq: u64,
        stats: bool,
    },
    /// Reads chunks for a backup, from this offset on.
    Export {
        session: SessionId,
        seq: u64,
        from: u64,
    },
    Cursor,
    Tier,
    /// Fetches a part of a segment in the store before it is asked for.
    ReadAhead,
    Purge,
}

/// The role in the replication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Another replica leads, or none.
    Follower,
    /// The marker is being replicated.
    Opening { epoch: u64 },
    /// Requests are applied.
    Open { epoch: u64 },
}

/// One replica of a stream. See the crate.
#[derive(Debug)]
pub struct StreamReplica {
    config: ReplicaConfig,
    at: Timestamps,
    raft: RaftState,
    voters: Vec<NodeId>,
    learners: Vec<NodeId>,
    unreachable: BTreeSet<NodeId>,
    /// None while it is opened.
    log: Option<Box<StreamLog>>,
    /// None until the log was opened for the first time.
    member: Option<Box<Member>>,
    role: Role,
    /// Where the log ended when this replica became the leader.
    opened_at: u64,
    tasks: VecDeque<LogTask>,
    task_bytes: usize,
    /// Writes that the log took: the offset after each and its token.
    issued: VecDeque<(u64, WriteToken)>,
    jobs: BTreeMap<u64, Purpose>,
    next_job: u64,
    /// A job failed for lack of space or descriptors.
    retry_at: Option<Time>,
    reopen: Option<OpenJob>,
    retention_at: Option<Time>,
    feeders: BTreeMap<NodeId, Box<ChunkReader>>,
    recent: VecDeque<RecentChunk>,
    recent_bytes: usize,
    builder: ChunkBuilder,
    /// Sessions with messages in the builder.
    building: BTreeSet<SessionId>,
    sessions: Sessions,
    /// Sessions of which a request was applied in this turn.
    touched: BTreeSet<SessionId>,
    /// Requests that are done once everything before an offset is committed.
    confirms: BTreeMap<(u64, SessionId), u64>,
    /// Answers that wait for a commit.
    deferred: VecDeque<(u64, SessionId, u64, QueueReply)>,
    /// Sessions whose requests were dropped for lack of room, and the first of these.
    stalled: BTreeMap<SessionId, u64>,
    /// Sessions to be told when this replica takes requests.
    waiting: BTreeSet<SessionId>,
    /// Segments in the object store.
    tier: Option<Box<Tier>>,
    /// The tier may have work.
    is_tier_due: bool,
    /// When the next failed read of the store may be logged.
    log_remote_at: Time,
    cursors: Cursors,
    cursor_events: Vec<AddressedCursorEvent>,
    parked: VecDeque<(SessionId, CursorRequest)>,
    counters: QueueCounters,
    is_deleted: bool,
    faults: Vec<String>,
    effects: VecDeque<StreamEffect>,
    scratch: Vec<u8>,
}

impl StreamReplica {
    /// A replica that opens its log.
    pub fn new(config: ReplicaConfig, at: Timestamps) -> StreamReplica {
        let builder = ChunkBuilder::new(config.log.filter_len);
        let mut replica = StreamReplica {
            at,
            raft: RaftState::default(),
            voters: Vec::new(),
            learners: Vec::new(),
            unreachable: BTreeSet::new(),
            log: None,
            member: None,
            role: Role::Follower,
            opened_at: 0,
            tasks: VecDeque::new(),
            task_bytes: 0,
            issued: VecDeque::new(),
            jobs: BTreeMap::new(),
            next_job: 1,
            retry_at: None,
            reopen: None,
            retention_at: None,
            feeders: BTreeMap::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            builder,
            building: BTreeSet::new(),
            sessions: Sessions::default(),
            touched: BTreeSet::new(),
            confirms: BTreeMap::new(),
            deferred: VecDeque::new(),
            stalled: BTreeMap::new(),
            waiting: BTreeSet::new(),
            tier: None,
            is_tier_due: false,
            log_remote_at: at.now,
            cursors: Cursors::default(),
            cursor_events: Vec::new(),
            parked: VecDeque::new(),
            counters: QueueCounters::default(),
            is_deleted: false,
            faults: Vec::new(),
            effects: VecDeque::new(),
            scratch: Vec::new(),
            config,
        };
        if let Some(config) = replica.config.tier.clone() {
            let tier = Tier::new(replica.config.stream, config, at.now);
            replica.tier = Some(Box::new(tier));
            replica.is_tier_due = true;
        }
        replica.start_open(None, replica.config.founds);
        replica
    }

    /// The next work for the host. Call until None, after each other call.
    pub fn poll(&mut self) -> Option<StreamEffect> {
        self.effects.pop_front()
    }

    /// Takes the events for cursors, in order.
    pub fn take_cursor_events(&mut self) -> Vec<AddressedCursorEvent> {
        std::mem::take(&mut self.cursor_events)
    }

    /// Returns true if this replica leads and takes requests.
    pub fn leads(&self) -> bool {
        matches!(self.role, Role::Open { .. })
    }

    /// Returns true if the leader has applied a request to delete the stream.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted
    }

    /// For a leader: followers that have written everything, and can take over without delay.
    pub fn caught_up(&self) -> Vec<NodeId> {
        let member = self.member.as_ref();
        member.map_or_else(Vec::new, |member| member.caught_up())
    }

    /// True if this replica leads and the voters may change: a majority of them has everything that is committed.
    pub fn may_change_voters(&self) -> bool {
        let member = self.member.as_ref();
        member.is_some_and(|member| member.voters_have_committed())
    }

    /// True if the log has not lost its end in a stop of the machine, or has got it back. False while the log is opened.
    pub fn is_whole(&self) -> bool {
        self.log.is_some() && self.is_intact()
    }

    /// The offset after the last written message. None while the log is opened.
    pub fn written(&self) -> Option<u64> {
        self.log.as_ref().map(|log| log.written())
    }

    /// The offset after the last committed message, as far as this replica knows. None while the log is opened.
    pub fn committed(&self) -> Option<u64> {
        self.log.as_ref().map(|log| log.readable())
    }

    /// The first retained offset. None while the log is opened.
    pub fn first_offset(&self) -> Option<u64> {
        self.log.as_ref().map(|log| self.stream_start(log))
    }

    /// When the leader stored the oldest committed chunk with messages, in milliseconds since the Unix epoch. None while the
    /// log is opened, and if there is none. If the oldest segment is in the object store: when it was begun.
    pub fn oldest_message(&self) -> Option<i64> {
        let log = self.log.as_ref()?;
        if self.stream_start(log) < log.first_offset() {
            return self.tier.as_ref()?.first_timestamp();
        }
        let first = log.first_message()?;
        (first.offset < log.readable()).then_some(first.timestamp)
    }

    /// The first offset of the stream, in the log or in the object store.
    pub(crate) fn stream_start(&self, log: &StreamLog) -> u64 {
        let local = log.first_offset();
        let remote = self.tier.as_ref().and_then(|tier| tier.first_offset());
        remote.map_or(local, |remote| remote.min(local))
    }

    /// Returns true if the log is open and the replica has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.log.is_some() && self.jobs.is_empty() && self.tasks.is_empty()
    }

    /// Changes the settings of the log.
    pub fn set_log_config(&mut self, at: Timestamps, config: LogConfig) {
        self.at = at;
        if self.config.log == config {
            return;
        }
        self.config.log = config;
        if let Some(log) = &mut self.log {
            log.set_config(config);
            if self.builder.is_empty() {
                self.builder = log.builder();
            }
        }
        self.retain();
        self.take_log_jobs();
    }

    /// The members of the Raft group, as applied on this node.
    pub fn set_members(
        &mut self,
        at: Timestamps,
        voters: &[NodeId],
        learners: &[NodeId],
        out: &mut QueueOutput,
    ) {
        self.at = at;
        self.voters = voters.to_vec();
        self.learners = learners.to_vec();
        if let Some(member) = &mut self.member {
            member.set_members(voters, learners, at.now);
        }
        self.settle(out);
    }

    /// The term or the leader of the Raft group changed.
    pub fn set_raft(&mut self, at: Timestamps, raft: RaftState, out: &mut QueueOutput) {
        self.at = at;
        if raft.term < self.raft.term {
            return;
        }
        self.raft = raft;
        let (term, leader) = (self.raft.term, self.raft.leader);
        if let Some(member) = &mut self.member {
            member.set_term(term, leader, at.now);
        }
        self.settle(out);
    }

    /// The node of another replica can be reached or not.
    pub fn set_reachable(
        &mut self,
        at: Timestamps,
        node: NodeId,
        is_reachable: bool,
        out: &mut QueueOutput,
    ) {
        self.at = at;
        match is_reachable {
            true => self.unreachable.remove(&node),
            false => self.unreachable.insert(node),
        };
        if let Some(member) = self.member.as_mut().filter(|_| node != self.config.node) {
            member.set_reachable(node, is_reachable, at.now);
        }
        self.settle(out);
    }

    /// A storage job is complete.
    pub fn job_done(&mut self, at: Timestamps, done: StreamJobResult, out: &mut QueueOutput) {
        self.at = at;
        let Some(purpose) = self.jobs.remove(&done.id) else {
            return;
        };
        let mut outcome = done.outcome;
        if let (Outcome::Read(result), Some(log)) = (&mut outcome, &self.log) {
            result.error = result.error.take().map(|error| log.read_error(error));
        }
        match (purpose, outcome) {
            (Purpose::Open, Outcome::Opened(result)) => self.opened(result),
            (Purpose::Append, Outcome::Appended(result)) => self.append_done(result, out),
            (Purpose::Maintain, Outcome::Maintained(result)) => self.maintenance_done(result),
            (Purpose::Record, Outcome::Recorded(result)) => {
                // Without the record the log only counts as not intact after a restart.
                if let Err(error) = result {
                    self.faults.push(error.to_string());
                }
            }
            (
                Purpose::Feed {
                    to,
                    attachment,
                    first,
                    committed,
                },
                Outcome::Read(result),
            ) => self.feed_done(to, attachment, (first, committed), *result),
            (
                Purpose::Answer {
                    session,
                    seq,
                    stats,
                },
                Outcome::Read(result),
            ) => self.position_found(session, seq, stats, &result, out),
            (Purpose::Export { session, seq, from }, Outcome::Read(result)) => {
                self.note_remote_read(&result);
                self.chunks_read((session, seq), from, *result, out);
            }
            (Purpose::Tier, Outcome::Tier(result)) => self.tier_done(*result),
            (Purpose::ReadAhead, Outcome::Read(result)) => self.note_remote_read(&result),
            (Purpose::Purge, Outcome::Purged(result)) => {
                if let Err(error) = result {
                    let label = &self.config.label;
                    self.faults.push(format!(
                        "{label} is deleted, but objects of it are left in the object store: {error}"
                    ));
                }
            }
            (Purpose::Cursor, Outcome::Read(result)) => {
                self.note_remote_read(&result);
                self.read_ahead(&result);
                let first = self.log.as_ref().map_or(0, |log| self.stream_start(log));
                let fault = self.cursors.read_done(
                    at.now,
                    done.id,
                    *result,
                    first,
                    &mut self.cursor_events,
                );
                self.faults.extend(fault);
            }
            (purpose, outcome) => debug_assert!(false, "{purpose:?} got {outcome:?}"),
        }
        self.settle(out);
    }

    // The log.

    pub(crate) fn start_job(&mut self, purpose: Purpose, work: Work) -> u64 {
        let id = self.next_job;
        self.next_job += 1;
        self.jobs.insert(id, purpose);
        self.effects
            .push_back(StreamEffect::Job(StreamJob { id, work }));
        id
    }

    /// Opens the log, after deleting it if it restarts at an offset.
    fn start_open(&mut self, restart_at: Option<u64>, is_intact_if_new: bool) {
        self.log = None;
        let job = OpenJob {
            stream: self.config.stream,
            config: self.config.log,
            machine: self.config.machine.clone(),
            restart_at,
            is_intact_if_new,
        };
        self.start_job(Purpose::Open, Work::Open(Box::new(job)));
    }

    fn opened(&mut self, result: Result<Box<OpenedLog>, LogError>) {
        let OpenedLog {
            mut log,
            cut,
            is_intact,
        } = match result {
            Ok(opened) => *opened,
            Err(error) if error.is_passing() => {
                self.faults.push(error.to_string());
                // A deletion that was begun is complete or is repeated: the rest of the log is opened.
                self.retry_at = Some(self.at.now + RETRY);
                let restart_at = self.member.as_ref().map(|member| member.log().start());
                let restart_at = restart_at.filter(|_| {
                    let member = self.member.as_ref();
                    member.is_some_and(|m| m.log().start() == m.log().next())
                });
                self.reopen = Some(OpenJob {
                    stream: self.config.stream,
                    config: self.config.log,
                    machine: self.config.machine.clone(),
                    restart_at,
                    is_intact_if_new: match self.member {
                        Some(_) => self.is_intact(),
                        None => self.config.founds,
                    },
                });
                return;
            }
            Err(error) => {
                let text = format!("{}: {error}", self.config.label);
                return self.effects.push_back(StreamEffect::Fatal(text));
            }
        };
        if let Some(cut) = cut {
            self.faults.push(format!("{}: {cut:?}", self.config.label));
        }
        log.set_config(self.config.log);
        if self.builder.is_empty() {
            self.builder = log.builder();
        }
        if self.member.is_none() {
            let state = LogState {
                epochs: epoch_table(&log),
                intact: is_intact,
            };
            let mut member = Member::new(self.config.node, self.config.incarnation, state);
            member.set_members(&self.voters, &self.learners, self.at.now);
            for node in &self.unreachable {
                member.set_reachable(*node, false, self.at.now);
            }
            member.set_term(self.raft.term, self.raft.leader, self.at.now);
            self.member = Some(Box::new(member));
        }
        let committed = self.member.as_ref().map_or(0, |m| m.committed());
        log.commit(committed);
        self.log = Some(Box::new(log));
        self.is_tier_due = self.tier.is_some();
        self.retain();
        for (session, request) in std::mem::take(&mut self.parked) {
            self.cursor_request(session, request);
        }
    }

    fn is_intact(&self) -> bool {
        self.member.as_ref().is_some_and(|m| m.is_intact())
    }

    fn has_job(&self, purpose: Purpose) -> bool {
        self.jobs.values().any(|running| *running == purpose)
    }

    /// Nothing is being written to the log or waits for it.
    fn is_log_still(&self) -> bool {
        let log = self.log.as_ref();
        log.is_some_and(|log| log.pending_bytes() == 0)
            && !self.has_job(Purpose::Append)
            && !self.has_job(Purpose::Maintain)
    }

    /// Starts the jobs that the log has.
    pub(crate) fn take_log_jobs(&mut self) {
        if self.retry_at.is_some() {
            return;
        }
        let Some(log) = &mut self.log else { return };
        if let Some(job) = log.take_append() {
            self.start_job(Purpose::Append, Work::Append(job));
        }
        let Some(log) = &mut self.log else { return };
        if let Some(job) = log.take_maintenance() {
            self.start_job(Purpose::Maintain, Work::Maintain(job));
        }
    }

    fn append_done(
        &mut self,
        result: Result<stream_log::Appended, LogError>,
        out: &mut QueueOutput,
    ) {
        let Some(log) = &mut self.log else { return };
        if let Err(error) = &result
            && error.is_passing()
        {
            self.faults.push(error.to_string());
            self.retry_at = Some(self.at.now + RETRY);
        }
        if let Err(error) = log.append_done(result) {
            let text = format!("{}: {error}", self.config.label);
            return self.effects.push_back(StreamEffect::Fatal(text));
        }
        let written = log.written();
        while let Some((next, token)) = self.issued.front().copied() {
            if next > written {
                break;
            }
            self.issued.pop_front();
            if let Some(member) = &mut self.member {
                member.written(token, next, self.at.now);
            }
        }
        self.retain();
        self.cursors.readable_advanced();
        self.relieve(out);
        self.end_turn(out);
    }

    fn maintenance_done(&mut self, result: Result<stream_log::MaintenanceResult, LogError>) {
        // A segment may be sealed now.
        self.is_tier_due = self.tier.is_some();
        let Some(log) = &mut self.log else { return };
        let is_passing = result.as_ref().is_err_and(LogError::is_passing);
        let is_damage = matches!(&result, Err(LogError::Corrupt { .. }));
        if let Err(error) = &result {
            self.faults.push(error.to_string());
        }
        match log.maintenance_done(result) {
            Ok(Some(cut)) => self.faults.push(format!("{}: {cut:?}", self.config.label)),
            Ok(None) => {}
            // A damaged segment stays as it is; reads of the damaged part fail.
            Err(_) if is_damage => {}
            Err(error) => {
                let text = format!("{}: {error}", self.config.label);
                self.effects.push_back(StreamEffect::Fatal(text));
            }
        }
        if is_passing {
            self.retry_at = Some(self.at.now + RETRY);
        }
        self.retain();
    }

    /// Deletes segments that are due, and notes when the next one can be.
    pub(crate) fn retain(&mut self) {
        let (Some(log), Some(member)) = (&mut self.log, &mut self.member) else {
            return;
        };
        let mut is_trimmed = log.retain(self.at.wall);
        if let Some(tier) = &self.tier {
            let cut = tier.local_cut(self.at.wall, log);
            is_trimmed |= cut.is_some_and(|cut| log.release_before(cut));
            // Until the store is known, the stream may begin anywhere.
            log.set_stream_start(match tier.is_loaded() {
                true => tier.first_offset(),
                false => Some(0),
            });
        }
        if is_trimmed {
            member.trimmed(log.first_offset());
        }
        self.retention_at = None;
        let max_age = self.config.log.retention.max_age;
        if let Some(max_age) = max_age
            && log.segments().len() > 1
            && let Some(oldest) = log.segments().next()
            && oldest.is_sealed
        {
            let max_age = u64::try_from(max_age.as_millis()).unwrap_or(u64::MAX);
            let last = u64::try_from(oldest.last_timestamp).unwrap_or(0);
            let due = last.saturating_add(max_age).saturating_add(1);
            let WallTime(wall) = self.at.wall;
            // Segments that are old enough and not committed are tried again later.
            let wait = Duration::from_millis(due.saturating_sub(wall)).max(RETRY);
            self.retention_at = Some(self.at.now + wait);
        }
    }

    /// Keeps a chunk in memory for readers that are nearly up to date.
    pub(crate) fn keep_recent(&mut self, chunk: RecentChunk) {
        let follows = self
            .recent
            .back()
            .is_none_or(|last| last.header.next_offset() == chunk.header.first_offset);
        if !follows {
            self.clear_recent();
        }
        self.recent_bytes += chunk.bytes.len();
        self.recent.push_back(chunk);
        while self.recent_bytes > crate::RECENT_BYTES && self.recent.len() > 1 {
            self.drop_oldest_recent();
        }
    }

    fn drop_oldest_recent(&mut self) {
        if let Some(chunk) = self.recent.pop_front() {
            self.recent_bytes -= chunk.bytes.len();
        }
    }

    pub(crate) fn clear_recent(&mut self) {
        self.recent.clear();
        self.recent_bytes = 0;
    }

    /// Frees chunks in memory that no follower and no cursor needs.
    fn trim_recent(&mut self) {
        let Some(first) = self.recent.front() else {
            return;
        };
        let first = first.header.first_offset;
        let Some(log) = &self.log else {
            return self.clear_recent();
        };
        let mut keep = log.readable();
        if let Some(next) = self.cursors.lowest_from(first) {
            keep = keep.min(next);
        }
        while self
            .recent
            .front()
            .is_some_and(|c| c.header.next_offset() <= keep)
        {
            self.drop_oldest_recent();
        }
    }

    // Cursors.

    fn ends(&self) -> Option<LogEnds> {
        let log = self.log.as_ref()?;
        let member = self.member.as_ref()?;
        Some(LogEnds {
            first: self.stream_start(log),
            readable: log.readable(),
            end: self.leads().then(|| member.log().next()),
        })
    }

    fn cursor_request(&mut self, session: SessionId, request: CursorRequest) {
        if self.is_deleted
            && let CursorRequest::Attach {
                cursor, attachment, ..
            } = request
        {
            let text = format!("no {}", self.config.label);
            let event = CursorEvent::Refused {
                cursor,
                attachment,
                text,
            };
            return self
                .cursor_events
                .push(AddressedCursorEvent { session, event });
        }
        let ends = self.ends().filter(|_| !self.waits_for_store(&request));
        if ends.is_none() && self.parked.len() < MAX_PARKED {
            return self.parked.push_back((session, request));
        }
        self.cursors
            .handle(session, request, ends, &mut self.cursor_events);
    }

    fn serve_cursors(&mut self, max_bytes: usize) -> bool {
        let Some(log) = &mut self.log else {
            return false;
        };
        let (jobs, effects, next_job) = (&mut self.jobs, &mut self.effects, &mut self.next_job);
        let start_read = |work: Work| {
            let id = *next_job;
            *next_job += 1;
            jobs.insert(id, Purpose::Cursor);
            effects.push_back(StreamEffect::Job(StreamJob { id, work }));
            id
        };
        let events = &mut self.cursor_events;
        let more = self.cursors.serve(
            log,
            &self.recent,
            self.tier.as_deref(),
            max_bytes,
            start_read,
            events,
        );
        self.trim_recent();
        more
    }

    /// Ends a call: carries out the outputs of the member, and starts jobs.
    fn settle(&mut self, out: &mut QueueOutput) {
        self.carry_out(out);
        self.take_log_jobs();
        if self.is_tier_due {
            self.take_tier_job();
        }
        out.faults.append(&mut self.faults);
    }
}

fn epoch_table(log: &StreamLog) -> EpochTable {
    let starts = log.epochs();
    let first = log.first_offset();
    let mut table = EpochTable::starting_at(match starts.is_empty() {
        true => log.next_offset(),
        false => first,
    });
    let ends = starts.iter().skip(1).map(|start| start.first_offset);
    for (start, end) in starts.iter().zip(ends.chain([log.next_offset()])) {
        let from = start.first_offset.max(first);
        let added = table.append(start.epoch, from, end);
        debug_assert!(added, "{start:?} does not follow in {table:?}");
    }
    table
}

impl Queue for StreamReplica {
    fn step(&mut self, at: Timestamps, item: QueueMessage, out: &mut QueueOutput) {
        self.at = at;
        if let QueueMessage::Request(request) = item {
            self.request(request, out);
        }
    }

    fn tick(&mut self, at: Timestamps, out: &mut QueueOutput) {
        self.at = at;
        let is_due = |due: Option<Time>| due.is_some_and(|due| due <= at.now);
        if is_due(self.retry_at) {
            self.retry_at = None;
            if let Some(job) = self.reopen.take() {
                self.start_job(Purpose::Open, Work::Open(Box::new(job)));
            }
        }
        if is_due(self.retention_at) {
            self.retain();
        }
        if is_due(self.tier_wake_at()) {
            self.is_tier_due = true;
            self.retain();
        }
        self.cursors.tick(at.now);
        if let Some(member) = &mut self.member
            && is_due(member.deadline())
        {
            member.tick(at.now);
        }
        self.settle(out);
    }

    fn flush(&mut self, at: Timestamps, out: &mut QueueOutput) {
        self.at = at;
        self.end_turn(out);
        self.settle(out);
        self.trim_recent();
    }

    fn wake_at(&self) -> Option<Time> {
        let member = self.member.as_ref().and_then(|member| member.deadline());
        let all = [
            member,
            self.retry_at,
            self.retention_at,
            self.cursors.wake_at(),
            self.tier_wake_at(),
        ];
        all.into_iter().flatten().min()
    }

    fn session_gone(&mut self, at: Timestamps, session: SessionId, _: &mut QueueOutput) {
        self.at = at;
        self.sessions.close(session);
        self.cursors.end_sessions(|of| *of == session);
    }

    fn node_gone(&mut self, at: Timestamps, gone: DeadIncarnation, _: &mut QueueOutput) {
        self.at = at;
        self.sessions.end_incarnations(gone);
        let is_over = |of: &SessionId| of.node == gone.node && of.incarnation < gone.before;
        self.cursors.end_sessions(is_over);
        self.waiting.retain(|of| !is_over(of));
        self.stalled.retain(|of, _| !is_over(of));
    }

    /// A stream has settings of its own: [`StreamReplica::set_log_config`].
    fn configure(&mut self, at: Timestamps, _: &QueueSettings, _: &mut QueueOutput) {
        self.at = at;
    }

    fn stats(&self) -> QueueStats {
        let Some(log) = &self.log else {
            return QueueStats::default();
        };
        QueueStats {
            ready: log.readable().saturating_sub(self.stream_start(log)),
            consumers: u32::try_from(self.consumer_keys().len()).unwrap_or(u32::MAX),
            bytes: log.bytes(),
            ..QueueStats::default()
        }
    }

    fn counters(&self) -> QueueCounters {
        self.counters
    }

    fn in_use(&self) -> bool {
        !self.consumer_keys().is_empty()
    }

    fn has_dead(&self) -> bool {
        false
    }

    fn consumers(&self) -> Vec<ConsumerInfo> {
        self.list_consumers()
    }

    fn session_nodes(&self) -> Vec<NodeId> {
        let sessions = self.sessions.iter().map(|(session, _)| session.node);
        let cursors = self.cursors.iter().map(|(session, _, _)| session.node);
        let nodes: BTreeSet<NodeId> = sessions.chain(cursors).collect();
        nodes.into_iter().collect()
    }
}

impl CursorSource for StreamReplica {
    /// As [`StreamReplica::take_cursor_events`] returns the events, `out` gets none.
    fn handle(
        &mut self,
        session: SessionId,
        request: CursorRequest,
        out: &mut Vec<AddressedCursorEvent>,
    ) {
        self.cursor_request(session, request);
        out.append(&mut self.cursor_events);
    }

    fn send_batches(&mut self, max_bytes: usize, out: &mut Vec<AddressedCursorEvent>) -> bool {
        let more = self.serve_cursors(max_bytes);
        out.append(&mut self.cursor_events);
        more
    }

    fn session_gone(&mut self, session: SessionId) {
        self.cursors.end_sessions(|of| *of == session);
    }
}

/// Bytes that can be added to the log without exceeding its own limit, in the worst case of one batch.
const _: () = assert!(crate::MAX_UNWRITTEN_BYTES + crate::MAX_BATCH_BYTES < MAX_PENDING_BYTES);

/// The header of a chunk whose bytes the log holds.
pub(crate) fn recent(bytes: &Bytes) -> Option<RecentChunk> {
    let (header, _) = stream_log::ChunkHeader::decode(bytes).ok()?;
    Some(RecentChunk {
        header,
        bytes: bytes.clone(),
    })
}
