//! The host: all Raft groups of a shard, which share one log and send one frame per peer and turn.

use crate::codec::{FrameReader, GroupMessage};
use crate::entry::{self, FOUNDING, Position};
use crate::group::Group;
use crate::recovery::{self, RecoveryError, RestoredGroup};
use crate::rolls::CompleteLogFiles;
use crate::sink::{OutputBuffer, PendingAction};
use crate::snapshot::{Checkpoint, IncomingCheckpoint, OutgoingCheckpoint};
use crate::store::{LogStore, Segments};
use crate::tombstone::{self, Tombstone};
use crate::{
    GroupId, GroupStatus, HostConfig, HostOutput, JobId, JobResult, MAX_COMMAND_BYTES, Membership,
    MembershipChange, ProposeError, RaftHost, ReadError, RecoverMajorityError, WalToken,
};
use bytes::Bytes;
use env::{Disk, Incarnation, NodeId, SeededRng, Time};
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use raft::eraftpb::HardState;
use slots::IndexSet;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use wal::{RecordBody, RecoveredGroup};

mod departure;
mod disk;
mod liveness;
mod poll;
mod rolling;
mod transfers;

pub use departure::Departure;
use disk::{JobOwner, UnneededFiles};
use liveness::PeerLiveness;
use rolling::DeferredLogFile;

/// Counts of events since the process started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostCounters {
    /// Frames that could not be decoded completely.
    pub bad_frames: u64,
    /// Messages that no correct member sends, or that arrived too late.
    pub refused: u64,
    /// Messages for groups that this node does not have.
    pub unknown_group: u64,
    /// Checkpoint transfers that were aborted, in either direction.
    pub failed_transfers: u64,
    /// Elections that replicas here have won.
    pub elections_won: u64,
    /// Times a job was postponed because disk space, descriptors or memory were short.
    pub postponed_jobs: u64,
}

/// All Raft groups of one shard.
pub struct Host {
    config: HostConfig,
    disk: Arc<dyn Disk>,
    logger: slog::Logger,
    rng: SeededRng,
    groups: HashMap<GroupId, Group, FixedState>,
    next_epoch: u64,
    /// Groups with pending work; each at most once.
    dirty: Vec<GroupId>,
    /// Groups whose clocks run.
    awake: BTreeSet<GroupId>,
    sink: OutputBuffer,
    next_token: u64,
    /// Batches that are not durable yet, oldest first, with the actions to take once they are.
    pending: VecDeque<(WalToken, Vec<PendingAction>)>,
    next_job: u64,
    jobs: BTreeMap<JobId, JobOwner>,
    rolls: CompleteLogFiles,
    /// Complete log files whose contents are not secured elsewhere yet, oldest first.
    pending_rolls: VecDeque<DeferredLogFile>,
    /// Groups whose files are being deleted, with the membership to create the group with afterwards, if any.
    deleting: BTreeMap<GroupId, Option<Membership>>,
    /// Groups that were removed here before this process started.
    removed_groups: BTreeSet<GroupId>,
    /// Tombstones of replicas that departed.
    tombstones: BTreeMap<GroupId, Tombstone>,
    peers: BTreeMap<NodeId, PeerLiveness>,
    next_transfer: u64,
    outgoing: BTreeMap<(GroupId, NodeId), OutgoingCheckpoint>,
    incoming: BTreeMap<GroupId, IncomingCheckpoint>,
    /// Groups with a requested flush.
    flushes: BTreeSet<GroupId>,
    /// Postponed deletions, with the tick from which on they are retried.
    removals: Vec<(u64, JobOwner)>,
    /// Groups whose checkpoint was postponed, with the tick from which on they are asked for another.
    checkpoints: BTreeMap<GroupId, u64>,
    /// The disk is short of space.
    disk_short: bool,
    /// Bytes of log entries in memory, all groups together.
    memory: usize,
    last_tick: Option<Time>,
    ticks: u64,
    counters: HostCounters,
}

impl Host {
    /// Restores the groups from the recovered log and the files on `disk`, the disk that jobs run with.
    ///
    /// An error means that data which this node has acknowledged is missing or damaged: the node must not
    /// start.
    pub fn new(
        config: HostConfig,
        disk: Arc<dyn Disk>,
        recovered: BTreeMap<GroupId, RecoveredGroup>,
    ) -> Result<Host, RecoveryError> {
        let tombstones = tombstone::read_all(&*disk)?;
        let mut host = Host {
            tombstones,
            rng: SeededRng::new(config.seed),
            sink: OutputBuffer::new(&config),
            // Unique per incarnation, so that an id is never reused after a restart.
            next_transfer: config.incarnation.0 << 32,
            config,
            disk,
            logger: slog::Logger::root(slog::Discard, slog::o!()),
            groups: HashMap::default(),
            next_epoch: 1,
            dirty: Vec::new(),
            awake: BTreeSet::new(),
            next_token: 1,
            pending: VecDeque::new(),
            next_job: 1,
            jobs: BTreeMap::new(),
            rolls: CompleteLogFiles::default(),
            pending_rolls: VecDeque::new(),
            deleting: BTreeMap::new(),
            removed_groups: BTreeSet::new(),
            peers: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            flushes: BTreeSet::new(),
            removals: Vec::new(),
            checkpoints: BTreeMap::new(),
            disk_short: false,
            memory: 0,
            last_tick: None,
            ticks: 0,
            counters: HostCounters::default(),
        };
        for (id, wal) in recovered {
            if wal.deleted && !host.tombstones.contains_key(&id) {
                host.removed_groups.insert(id);
            }
            if let Some(restored) = recovery::restore(&host.disk, id, wal)? {
                host.install_restored(id, restored)?;
            }
        }
        Ok(host)
    }

    fn install_restored(
        &mut self,
        id: GroupId,
        restored: RestoredGroup,
    ) -> Result<(), RecoveryError> {
        let at = restored.store.compacted();
        self.insert_group(id, restored.store)
            .map_err(|e| RecoveryError::Damaged {
                group: id,
                what: e.to_string(),
            })?;
        if restored.must_record_checkpoint {
            let (index, term) = (at.index, at.term);
            self.sink
                .record(id, RecordBody::Checkpointed { index, term });
        }
        if let Some(group) = self.groups.get_mut(&id) {
            group.restore = restored.state;
            group.set_last_live_count(restored.live.len());
        }
        self.mark_dirty(id);
        Ok(())
    }

    fn insert_group(&mut self, id: GroupId, store: LogStore) -> raft::Result<()> {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let limits = &self.config.limits;
        let mut group = Group::new(id, epoch, self.config.node, limits, store, &self.logger)?;
        group.vote_floor = self.tombstones.get(&id).map(|tombstone| tombstone.last);
        group.refresh_election_timeout(&mut self.rng);
        self.groups.insert(id, group);
        self.awake.insert(id);
        self.update_memory(id);
        Ok(())
    }

    /// Counts of events.
    pub fn counters(&self) -> HostCounters {
        HostCounters {
            elections_won: self.sink.elections_won,
            ..self.counters
        }
    }

    /// Bytes of log entries in memory, for the node's memory accounting.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Number of groups on this node.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Number of groups whose clocks run.
    pub fn awake(&self) -> usize {
        self.awake.len()
    }

    /// True if the group's clock runs.
    pub fn is_awake(&self, group: GroupId) -> bool {
        self.awake.contains(&group)
    }

    /// Sets whether the disk is short of space. While it is, groups are asked for checkpoints more often.
    pub fn set_disk_short(&mut self, disk_short: bool) {
        self.disk_short = disk_short;
    }

    /// Schedules the group for processing at the next poll.
    fn mark_dirty(&mut self, id: GroupId) {
        if let Some(group) = self.groups.get_mut(&id).filter(|g| !g.dirty) {
            group.dirty = true;
            self.dirty.push(id);
        }
    }

    /// Updates the memory total after a group's memory may have changed.
    fn update_memory(&mut self, id: GroupId) {
        if let Some(group) = self.groups.get_mut(&id) {
            let now = group.store().mem_bytes();
            let before = std::mem::replace(&mut group.counted_bytes, now);
            self.memory = self.memory + now - before;
        }
    }

    /// Wakes the group and schedules it, for a request from its owner.
    fn wake_for_owner(&mut self, id: GroupId) -> Result<&mut Group, ProposeError> {
        self.wake(id);
        self.mark_dirty(id);
        self.groups.get_mut(&id).ok_or(ProposeError::NoGroup)
    }

    fn start_replica(&mut self, id: GroupId, membership: &Membership) {
        let departed = self.tombstones.get(&id).copied();
        // A replica that departed does not found the group again.
        let founder = membership.voters.contains(&self.config.node) && departed.is_none();
        if founder && !entry::is_valid(membership) {
            tracing::error!(group = id.0, "group with impossible members is not created");
            return;
        }
        let (position, checkpoint) = match founder {
            true => (FOUNDING, Checkpoint::founding(membership.clone())),
            false => (Position::default(), Checkpoint::default()),
        };
        let mut state = HardState::default();
        state.term = position.term;
        state.commit = position.index;
        if let Some(tombstone) = departed {
            (state.term, state.vote) = (tombstone.term, tombstone.vote);
        }
        let record = RecordBody::HardState {
            term: state.term,
            vote: state.vote,
            commit: state.commit,
        };
        let mut store = LogStore::new(id, position, checkpoint, Segments::new(id, Vec::new()));
        store.set_hard_state(state);
        if let Err(error) = self.insert_group(id, store) {
            // The members were checked above.
            tracing::error!(group = id.0, %error, "group is not created");
            return;
        }
        if founder {
            let founding = entry::founding_entry(membership);
            self.sink.record(id, RecordBody::Entry(founding));
        }
        self.sink.record(id, record);
        self.mark_dirty(id);
    }

    fn remove_replica(&mut self, group: GroupId) {
        if let Some(recreate_as) = self.deleting.get_mut(&group) {
            *recreate_as = None;
        }
        let Some(removed) = self.groups.remove(&group) else {
            return;
        };
        debug_assert!(
            self.memory >= removed.counted_bytes,
            "group {group:?}: {} bytes were not counted",
            removed.counted_bytes
        );
        self.memory -= removed.counted_bytes;
        self.awake.remove(&group);
        self.flushes.remove(&group);
        self.checkpoints.remove(&group);
        self.incoming.remove(&group);
        self.outgoing.retain(|(id, _), _| *id != group);
        self.deleting.insert(group, None);
        self.sink.record(group, RecordBody::Deleted);
        self.sink.waiting.push(PendingAction::Deleted { group });
    }

    fn handle_message(&mut self, from: NodeId, id: GroupId, message: GroupMessage) {
        if !self.groups.contains_key(&id) {
            self.counters.unknown_group += 1;
            return;
        }
        match message {
            GroupMessage::Raft(m) => {
                self.wake_for_message(id, &m);
                let Some(group) = self.groups.get_mut(&id) else {
                    return;
                };
                if let Err(refused) = group.step(*m, &mut self.rng) {
                    self.counters.refused += 1;
                    tracing::debug!(
                        group = id.0,
                        from = from.0,
                        why = refused.0,
                        "message dropped"
                    );
                }
                self.mark_dirty(id);
            }
            GroupMessage::Sleep { term, commit } => self.handle_sleep(from, id, term, commit),
            GroupMessage::Transfer(transfer) => self.transfer_message(from, id, transfer),
        }
    }
}

impl RaftHost for Host {
    fn create(&mut self, group: GroupId, membership: &Membership) {
        if let Some(recreate_as) = self.deleting.get_mut(&group) {
            recreate_as.get_or_insert_with(|| membership.clone());
        } else if !self.groups.contains_key(&group) {
            self.start_replica(group, membership);
        }
    }

    fn remove(&mut self, group: GroupId) {
        if self.tombstones.remove(&group).is_some() {
            self.clean_up(group, UnneededFiles::Tombstone);
        }
        self.removed_groups.remove(&group);
        self.remove_replica(group);
    }

    fn propose(&mut self, group: GroupId, command: Bytes) -> Result<(), ProposeError> {
        if command.is_empty() || command.len() > MAX_COMMAND_BYTES {
            return Err(ProposeError::InvalidCommand {
                bytes: command.len(),
            });
        }
        if self.memory >= self.config.limits.max_memory_bytes {
            self.mark_dirty(group);
            return Err(ProposeError::Overloaded);
        }
        self.wake(group);
        let Some(replica) = self.groups.get_mut(&group) else {
            return Err(ProposeError::NoGroup);
        };
        replica.propose(command, &self.config.limits)?;
        self.mark_dirty(group);
        Ok(())
    }

    fn change_membership(
        &mut self,
        group: GroupId,
        change: MembershipChange,
    ) -> Result<(), ProposeError> {
        self.wake_for_owner(group)?.change_membership(change)
    }

    fn recover_majority(
        &mut self,
        group: GroupId,
        lost: &[NodeId],
    ) -> Result<(), RecoverMajorityError> {
        self.wake(group);
        self.mark_dirty(group);
        let replica = self.groups.get_mut(&group);
        let replica = replica.ok_or(RecoverMajorityError::NoGroup)?;
        replica.recover_majority(lost, &mut self.rng)
    }

    fn transfer_leader(&mut self, group: GroupId, to: NodeId) -> Result<(), ProposeError> {
        self.wake_for_owner(group)?.transfer_leader(to)
    }

    fn receive(&mut self, from: NodeId, frame: Bytes) {
        if from == self.config.node || from.0 == 0 {
            self.counters.bad_frames += 1;
            return;
        }
        let mut reader = match FrameReader::new(&frame, from, self.config.node) {
            Ok(reader) => reader,
            Err(error) => {
                self.counters.bad_frames += 1;
                tracing::warn!(from = from.0, %error, "frame dropped");
                return;
            }
        };
        loop {
            match reader.next() {
                Ok(Some((group, message))) => self.handle_message(from, group, message),
                Ok(None) => return,
                Err(error) => {
                    self.counters.bad_frames += 1;
                    tracing::warn!(from = from.0, %error, "rest of a frame dropped");
                    return;
                }
            }
        }
    }

    fn peer_up(&mut self, node: NodeId, incarnation: Incarnation, shards: u16) {
        self.sink.set_peer_shards(node, shards);
        self.handle_peer_up(node, incarnation);
    }

    fn peer_down(&mut self, node: NodeId) {
        self.handle_peer_down(node);
    }

    fn tick(&mut self, now: Time) {
        self.advance_time(now);
    }

    fn wake_at(&self) -> Option<Time> {
        self.next_tick()
    }

    fn durable(&mut self, token: WalToken) {
        while self.pending.front().is_some_and(|(t, _)| *t <= token) {
            let Some((_, waiting)) = self.pending.pop_front() else {
                return;
            };
            waiting.into_iter().for_each(|w| self.handle_durable(w));
        }
    }

    fn wal_rolled(&mut self, file: u64) {
        self.handle_wal_rolled(file);
    }

    fn job_done(&mut self, id: JobId, result: JobResult) {
        self.handle_job_done(id, result);
    }

    fn read(&self, group: GroupId, index: u64) -> Result<Bytes, ReadError> {
        let group = self.groups.get(&group).ok_or(ReadError::Gone)?;
        group.store().read_command(index)
    }

    fn checkpoint(&mut self, group: GroupId, index: u64, state: Bytes, live: IndexSet) {
        self.accept_checkpoint(group, index, state, live);
    }

    fn status(&self, group: GroupId) -> Option<GroupStatus> {
        self.status_of(group)
    }

    fn poll(&mut self, out: &mut Vec<HostOutput>) {
        self.poll_groups(out);
    }
}
