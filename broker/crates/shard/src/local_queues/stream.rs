//! A replica of a stream and its Raft group, which decides term, leader and members. The group's log has one command for
//! each term: that the leader has taken over. The messages are not in it.

use super::replica::CountedStats;
use super::{GroupOutput, LocalQueues, QueueReplica, label};
use crate::membership::MembershipStep;
use bytes::Bytes;
use consensus::{
    CommittedEntry, GroupId, GroupStatus, HostOutput, JobError, JobId, JobResult, Membership,
    MembershipChange, ProposeError, RaftHost, StorageJob,
};
use control::{
    StreamFilter, StreamFollowerFacts, StreamReaderFacts, StreamReplicaFacts, StreamTrackingFacts,
};
use env::{Disk, NodeId};
use metadata::{EffectiveSettings, QueueId, QueueRecord, StreamSettings};
use queue::cursor::{AddressedCursorEvent, CursorRequest, CursorSource};
use queue::{QueueOutput, SessionId, Timestamps};
use slots::IndexSet;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::time::Duration;
use stream::{
    PeerMessage, RaftState, ReplicaConfig, StoreLane, StreamEffect, StreamJob, StreamReplica,
    TierConfig,
};
use stream_log::{LogConfig, Retention, Tracking};

/// The version of the commands and checkpoints in the group's log.
const VERSION: u8 = 1;
/// The command that a new leader proposes: once it is applied, nothing of an earlier term can be applied any more.
const TAKE_OVER: u8 = 1;
/// Ids of the storage jobs of streams have this bit, those of the consensus host do not.
const JOB_OF_STREAM: u64 = 1 << 63;
/// Most bytes of chunks that one stream sends to its cursors in a turn.
const TURN_BYTES: usize = 1 << 20;

/// The settings of a stream's log.
pub(super) fn log_config(settings: &StreamSettings) -> LogConfig {
    let default = LogConfig::default();
    LogConfig {
        max_segment_bytes: settings
            .max_segment_bytes
            .unwrap_or(default.max_segment_bytes),
        filter_len: settings.filter_bytes.unwrap_or(default.filter_len),
        retention: Retention {
            max_bytes: settings.max_bytes,
            max_age: settings.max_age_ms.map(Duration::from_millis),
        },
        ..default
    }
}

/// See the module.
pub(super) struct HostedStream {
    pub(super) replica: StreamReplica,
    pub(super) counted: CountedStats,
    raft: RaftState,
    /// This node leads the group. It may not have taken over yet.
    is_leader: bool,
    /// The command of this term is yet to be proposed.
    must_propose: bool,
    /// Index of the last entry of the group's log that was applied.
    applied: u64,
}

impl Deref for HostedStream {
    type Target = StreamReplica;
    fn deref(&self) -> &StreamReplica {
        &self.replica
    }
}

impl DerefMut for HostedStream {
    fn deref_mut(&mut self) -> &mut StreamReplica {
        &mut self.replica
    }
}

impl HostedStream {
    /// The group has another term or leader.
    fn leadership(
        &mut self,
        at: Timestamps,
        (term, leader, is_leader): (u64, Option<NodeId>, bool),
        out: &mut QueueOutput,
    ) {
        self.must_propose = is_leader && (!self.is_leader || term != self.raft.term);
        let has_taken_over = is_leader && !self.must_propose && self.raft.leader == leader;
        self.is_leader = is_leader;
        let known = leader.filter(|_| !is_leader || has_taken_over);
        self.raft = RaftState {
            term,
            leader: known,
        };
        self.replica.set_raft(at, self.raft.clone(), out);
    }

    /// Applies entries of the group's log.
    ///
    /// # Errors
    ///
    /// If a newer version wrote an entry.
    fn apply(
        &mut self,
        at: Timestamps,
        me: NodeId,
        entries: &[CommittedEntry],
        out: &mut QueueOutput,
    ) -> Result<(), String> {
        for entry in entries {
            if *entry.command != [VERSION, TAKE_OVER] {
                return Err(unreadable("entry", entry.index));
            }
            debug_assert!(entry.index > self.applied, "entries are applied in order");
            self.applied = entry.index;
            if self.is_leader && entry.term == self.raft.term {
                self.raft.leader = Some(me);
                self.replica.set_raft(at, self.raft.clone(), out);
            }
        }
        Ok(())
    }

    /// Goes on from a checkpoint of the group's log.
    ///
    /// # Errors
    ///
    /// If a newer version wrote it.
    fn restore(&mut self, index: u64, state: &[u8]) -> Result<(), String> {
        if *state != [VERSION] {
            return Err(unreadable("the checkpoint after entry", index));
        }
        self.applied = index;
        Ok(())
    }

    fn set_members(&mut self, at: Timestamps, members: &Membership, out: &mut QueueOutput) {
        let (voters, learners) = (&members.voters, &members.learners);
        self.replica.set_members(at, voters, learners, out);
    }
}

fn unreadable(part: &str, index: u64) -> String {
    format!("{part} {index} of its log was written by a newer version")
}

/// A storage job of a replica.
#[derive(Debug)]
struct ReplicaJob(StreamJob);

impl StorageJob for ReplicaJob {
    fn space(&self) -> u64 {
        self.0.space()
    }

    fn lane(&self) -> consensus::JobLane {
        match self.0.lane() {
            None => consensus::JobLane::Storage,
            Some(StoreLane::Upload) => consensus::JobLane::Upload,
            Some(StoreLane::Fetch) => consensus::JobLane::Fetch,
        }
    }

    fn run(self: Box<Self>, disk: &dyn Disk) -> JobResult {
        Ok(Box::new(self.0.run(disk)))
    }

    fn refuse(self: Box<Self>) -> JobResult {
        Ok(Box::new(self.0.refuse()))
    }
}

/// Deletes the files of a stream.
#[derive(Debug)]
struct DeleteJob(QueueId);

impl DeleteJob {
    fn result(&self, result: Result<(), stream_log::LogError>) -> JobResult {
        match result {
            Ok(()) => Ok(Box::new(())),
            // The files that are left are deleted at the next start.
            Err(error) if error.is_passing() => Ok(Box::new(())),
            Err(error) => Err(JobError {
                what: format!("delete the files of stream {}", self.0.0),
                error: error.to_string(),
            }),
        }
    }
}

impl StorageJob for DeleteJob {
    fn space(&self) -> u64 {
        0
    }

    fn run(self: Box<Self>, disk: &dyn Disk) -> JobResult {
        self.result(stream_log::delete_stream(disk, self.0))
    }

    fn refuse(self: Box<Self>) -> JobResult {
        Ok(Box::new(()))
    }
}

/// The state of the log of a stream's replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLogState {
    /// The offset after the last written message.
    pub written: u64,
    /// The offset after the last message that the replica knows to be committed.
    pub committed: u64,
    /// The log has lost nothing in a stop of the machine, or has got it back.
    pub is_whole: bool,
    /// The replica leads and takes requests.
    pub leads: bool,
}

/// Streams of a shard: the parts that are not one replica's.
#[derive(Default)]
pub(super) struct Streams {
    /// Names the run of the machine; see [`ReplicaConfig::machine`].
    machine: Box<[u8]>,
    /// See [`ReplicaConfig::tier`].
    tier: Option<TierConfig>,
    next_job: u64,
    /// The streams of the jobs that run.
    jobs: BTreeMap<u64, QueueId>,
    /// Files of streams that were found at the start and that no replica has opened yet.
    unopened: BTreeSet<QueueId>,
    /// For the shard, from replicas.
    outputs: Vec<GroupOutput>,
    /// For cursors of sessions.
    events: Vec<(QueueId, AddressedCursorEvent)>,
}

impl LocalQueues {
    /// Sets the name of the machine's run, the object store, and the streams of this shard whose files are on the disk.
    pub fn set_streams(
        &mut self,
        machine: Box<[u8]>,
        tier: Option<TierConfig>,
        found: impl Iterator<Item = QueueId>,
    ) {
        self.streams.machine = machine;
        self.streams.tier = tier;
        self.streams.unopened = found.collect();
    }

    pub(super) fn open_stream(
        &mut self,
        record: &QueueRecord,
        settings: &EffectiveSettings,
        declared: bool,
    ) {
        let group = GroupId(record.id.0);
        if self.queues.contains_key(&record.id) || self.host.was_removed(group) {
            return;
        }
        let founds = declared && !self.host.has_group(group);
        self.create_group(record, declared);
        let config = ReplicaConfig {
            stream: record.id,
            label: label(record),
            node: self.me,
            incarnation: self.incarnation,
            machine: self.streams.machine.clone(),
            log: log_config(&settings.stream),
            founds,
            tier: self.streams.tier.clone(),
        };
        self.streams.unopened.remove(&record.id);
        let mut stream = HostedStream {
            replica: StreamReplica::new(config, self.at),
            counted: CountedStats::default(),
            raft: RaftState::default(),
            is_leader: false,
            must_propose: false,
            applied: 0,
        };
        if let Some(status) = self.host.status(group) {
            self.said.by(record.id, |out| {
                stream.set_members(self.at, &status.membership, out);
            });
        }
        self.insert_replica(record.id, QueueReplica::Stream(Box::new(stream)));
        self.touched.insert(record.id);
    }

    /// Carries out an output of the consensus host for a stream's group.
    pub(super) fn stream_output(
        &mut self,
        queue: QueueId,
        output: HostOutput,
        shard: &mut Vec<GroupOutput>,
    ) {
        let group = GroupId(queue.0);
        let (at, me) = (self.at, self.me);
        let Some(QueueReplica::Stream(stream)) = self.queues.get_mut(&queue) else {
            return;
        };
        self.touched.insert(queue);
        let result = match output {
            HostOutput::Committed { entries, .. } => self
                .said
                .by(queue, |out| stream.apply(at, me, &entries, out)),
            HostOutput::Restore { index, state, .. } => stream.restore(index, &state),
            HostOutput::Leadership {
                term,
                leader,
                is_leader,
                ..
            } => {
                let raft = (term, leader, is_leader);
                self.said.by(queue, |out| stream.leadership(at, raft, out));
                if let Some(leader) = leader {
                    shard.push(GroupOutput::QueueLeader {
                        queue,
                        leader,
                        is_me: is_leader,
                    });
                }
                Ok(())
            }
            HostOutput::CheckpointDue { .. } => {
                let state = Bytes::from_static(&[VERSION]);
                let live = IndexSet::default();
                self.host.checkpoint(group, stream.applied, state, live);
                Ok(())
            }
            _ => Ok(()),
        };
        if let Err(error) = result {
            return shard.push(GroupOutput::Fatal(format!("queue {}: {error}", queue.0)));
        }
        // The members that are applied, whichever output brought them: an entry, a checkpoint or a new group.
        if let Some(status) = self.host.status(group) {
            self.said.by(queue, |out| {
                stream.set_members(at, &status.membership, out);
            });
        }
    }

    /// Ends a turn of a stream: proposes, sends to cursors, and hands out the work of the replica. Returns true if it has more
    /// for its cursors than fits into a turn.
    pub(super) fn end_stream_turn(&mut self, queue: QueueId) -> bool {
        let Some(QueueReplica::Stream(stream)) = self.queues.get_mut(&queue) else {
            return false;
        };
        let group = GroupId(queue.0);
        if stream.must_propose {
            let command = Bytes::from_static(&[VERSION, TAKE_OVER]);
            match self.host.propose(group, command) {
                Err(ProposeError::Overloaded) => {
                    self.blocked.insert(queue);
                }
                // If it is not the leader any more, the next one is announced.
                Ok(()) | Err(_) => stream.must_propose = false,
            }
        }
        let mut events = stream.take_cursor_events();
        let has_more = stream.send_batches(TURN_BYTES, &mut events);
        let addressed = events.into_iter().map(|event| (queue, event));
        self.streams.events.extend(addressed);
        while let Some(effect) = stream.poll() {
            match effect {
                StreamEffect::Send { to, message } => {
                    let output = GroupOutput::SendToReplica { to, queue, message };
                    self.streams.outputs.push(output);
                }
                StreamEffect::Job(job) => {
                    let id = JobId(self.streams.begin_job(queue));
                    let job = Box::new(ReplicaJob(job));
                    self.streams.outputs.push(GroupOutput::Job { id, job });
                }
                StreamEffect::TransferLeadership(to) => {
                    if let Err(error) = self.host.transfer_leader(group, to) {
                        tracing::debug!(event = "stream_transfer_refused", queue = queue.0, %error);
                    }
                }
                StreamEffect::Fatal(text) => self.streams.outputs.push(GroupOutput::Fatal(text)),
            }
        }
        has_more
    }

    /// Passes the result of a storage job on to its stream. Returns the result if it is not a stream's.
    pub(super) fn stream_job_done(&mut self, id: JobId, result: JobResult) -> Option<JobResult> {
        if id.0 & JOB_OF_STREAM == 0 {
            return Some(result);
        }
        let queue = self.streams.jobs.remove(&id.0)?;
        let Some(QueueReplica::Stream(stream)) = self.queues.get_mut(&queue) else {
            return None;
        };
        let done = result.ok()?.downcast().ok()?;
        self.said
            .by(queue, |out| stream.job_done(self.at, *done, out));
        self.touched.insert(queue);
        None
    }

    /// A message of another replica of a stream.
    pub fn receive_from_replica(&mut self, from: NodeId, queue: QueueId, message: PeerMessage) {
        if let Some(QueueReplica::Stream(stream)) = self.queues.get_mut(&queue) {
            self.said
                .by(queue, |out| stream.receive(self.at, from, message, out));
            self.touched.insert(queue);
        }
    }

    /// Requests of a session's cursors.
    pub fn handle_cursor(&mut self, queue: QueueId, session: SessionId, request: CursorRequest) {
        match self.queues.get_mut(&queue) {
            Some(QueueReplica::Stream(stream)) => {
                let mut events = Vec::new();
                stream.handle(session, request, &mut events);
                let addressed = events.into_iter().map(|event| (queue, event));
                self.streams.events.extend(addressed);
                self.touched.insert(queue);
            }
            _ => {
                if let CursorRequest::Attach {
                    cursor, attachment, ..
                } = request
                {
                    let event = queue::cursor::CursorEvent::Detached { cursor, attachment };
                    let addressed = AddressedCursorEvent { session, event };
                    self.streams.events.push((queue, addressed));
                }
            }
        }
    }

    #[inline]
    pub fn has_cursor_events(&self) -> bool {
        !self.streams.events.is_empty()
    }

    /// Streams that are led here, with the terms.
    pub fn led_streams(&self) -> Vec<(QueueId, u64)> {
        let led = self
            .queues
            .iter()
            .filter_map(|(id, replica)| match replica {
                QueueReplica::Stream(stream) if stream.is_leader => Some((*id, stream.raft.term)),
                _ => None,
            });
        let mut led: Vec<_> = led.collect();
        led.sort_unstable();
        led
    }

    /// Whether a stream that is led here may take this step. Voters change only while a majority of them has every
    /// committed chunk: the group's log, which shows who is behind, has no chunks.
    pub fn stream_allows(&self, queue: QueueId, step: &MembershipStep) -> bool {
        let Some(QueueReplica::Stream(stream)) = self.queues.get(&queue) else {
            return true;
        };
        let changes_voters = match step {
            MembershipStep::Change(MembershipChange::Promote(_)) => true,
            MembershipStep::Change(MembershipChange::Remove(node)) => {
                let status = self.host.status(GroupId(queue.0));
                status.is_some_and(|status| status.membership.voters.contains(node))
            }
            _ => false,
        };
        !changes_voters || stream.may_change_voters()
    }

    /// Of a stream whose Raft group is led here: the state of the group while the leader waits for the logs of other
    /// members.
    pub fn waiting_stream_status(&self, queue: QueueId) -> Option<GroupStatus> {
        match self.queues.get(&queue)? {
            QueueReplica::Stream(stream) if stream.is_leader && !stream.leads() => {
                let status = self.host.status(GroupId(queue.0))?;
                status.is_leader.then_some(status)
            }
            _ => None,
        }
    }

    /// The state of the log of a stream's replica here. None if there is none, or while it is opened.
    pub fn stream_log_state(&self, queue: QueueId) -> Option<StreamLogState> {
        match self.queues.get(&queue)? {
            QueueReplica::Stream(stream) => Some(StreamLogState {
                written: stream.written()?,
                committed: stream.committed()?,
                is_whole: stream.is_whole(),
                leads: stream.leads(),
            }),
            _ => None,
        }
    }

    /// The state of a stream's replica here, with the parts that the filter asks for.
    pub fn stream_facts(&self, queue: QueueId, of: StreamFilter) -> Option<StreamReplicaFacts> {
        let Some(QueueReplica::Stream(stream)) = self.queues.get(&queue) else {
            return None;
        };
        let status = stream.status()?;
        let tracking = stream.tracking().filter(|_| of.tracking && status.leads);
        let readers = stream.lags().filter(|_| of.readers);
        let readers = readers.map(|(session, consumer, lag)| StreamReaderFacts {
            session_node: session.node.0,
            session_number: session.number,
            consumer: consumer.0.into(),
            lag,
        });
        Some(StreamReplicaFacts {
            queue: queue.0,
            node: self.me,
            leads: status.leads,
            epoch: status.epoch,
            first_offset: status.first_offset,
            next_offset: status.next_offset,
            committed_offset: status.committed_offset,
            segments: status.segments,
            chunks: status.chunks,
            bytes: status.bytes,
            reader_count: status.readers,
            max_lag: status.max_lag,
            followers: status.followers.into_iter().map(follower_facts).collect(),
            tracking: tracking.map(tracking_facts),
            readers: readers.collect(),
        })
    }

    /// The term of a stream that is led here.
    pub fn led_stream(&self, queue: QueueId) -> Option<u64> {
        match self.queues.get(&queue)? {
            QueueReplica::Stream(stream) if stream.is_leader => Some(stream.raft.term),
            _ => None,
        }
    }

    /// Takes the events for cursors, in order.
    pub fn take_cursor_events(&mut self) -> Vec<(QueueId, AddressedCursorEvent)> {
        std::mem::take(&mut self.streams.events)
    }

    /// Takes the outputs of replicas.
    #[inline]
    pub(super) fn take_stream_outputs(&mut self, shard: &mut Vec<GroupOutput>) {
        // To append an empty list costs instructions in every round.
        if !self.streams.outputs.is_empty() {
            shard.append(&mut self.streams.outputs);
        }
    }

    /// Deletes the files of a stream, after the jobs that were begun before.
    pub(super) fn delete_stream_files(&mut self, queue: QueueId) {
        let id = JobId(self.streams.begin_job(queue));
        let job = Box::new(DeleteJob(queue));
        self.streams.outputs.push(GroupOutput::Job { id, job });
    }

    /// Deletes the files of streams that are left from replicas which do not exist any more.
    pub(super) fn delete_unowned_streams(&mut self, is_kept: impl Fn(QueueId) -> bool) {
        if self.streams.unopened.is_empty() {
            return;
        }
        let unopened = std::mem::take(&mut self.streams.unopened);
        for queue in unopened {
            match is_kept(queue) {
                true => {
                    self.streams.unopened.insert(queue);
                }
                false => self.delete_stream_files(queue),
            }
        }
    }
}

fn follower_facts((node, next_offset): (NodeId, Option<u64>)) -> StreamFollowerFacts {
    StreamFollowerFacts {
        node: node.0,
        next_offset,
    }
}

fn tracking_facts(tracking: &Tracking) -> StreamTrackingFacts {
    let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    let offsets = tracking.offsets();
    let writers = tracking.sequences();
    StreamTrackingFacts {
        offsets: offsets.map(|(name, offset)| (text(name), offset)).collect(),
        writers: writers
            .map(|(name, newest)| (text(name), newest.sequence))
            .collect(),
    }
}

impl Streams {
    fn begin_job(&mut self, queue: QueueId) -> u64 {
        self.next_job += 1;
        let id = JOB_OF_STREAM | self.next_job;
        self.jobs.insert(id, queue);
        id
    }
}
