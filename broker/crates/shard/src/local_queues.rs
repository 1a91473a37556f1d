//! The queues that this shard owns or holds a replica of, and the consensus host behind the quorum queues.

mod browse;
mod event_buffer;
mod figures;
mod filters;
mod head;
mod leading;
mod reading;
mod replica;
mod stream;
#[cfg(test)]
mod tests;
pub(crate) mod transfer_targets;

pub use self::stream::StreamLogState;
use self::stream::Streams;
use crate::FixedState;
use crate::lease::Leases;
use crate::peers::Peers;
use ::stream::PeerMessage;
use bytes::Bytes;
use consensus::{
    CommittedEntry, GroupId, Host, HostOutput, JobId, JobResult, Membership, RaftHost, WalToken,
};
use control::QueueTotals;
use env::planted::{self, Bug};
use env::{Disk, Incarnation, NodeId, Time};
use event_buffer::EventBuffer;
use hashbrown::HashMap;
use metadata::{EffectiveSettings, QueueId, QueueRecord};
use queue::classic::ClassicQueue;
use queue::quorum::{ConsumerTimeouts, DeadRead, DefaultTimeout, QuorumQueue, UnknownCommand};
use queue::{
    DeadIncarnation, DeadLettering, Overflow, PendingSet, Queue, QueueEvent, QueueMessage,
    QueueOutput, QueueSettings, QueueType, QuorumSettings, RequestBody, SessionId, Timestamps,
};
use reading::{DamagedLog, commands};
use replica::{ClassicReplica, CountedStats, QueueReplica, QuorumReplica};
use slots::IndexSet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const METADATA: GroupId = GroupId(0);

/// What every quorum queue starts with, on every member alike, whatever its policies say: its leader then logs the
/// settings it should have, so replicas that were made at different times agree.
const FIRST_SETTINGS: QueueSettings = QueueSettings {
    max_length: None,
    max_length_bytes: None,
    overflow: Overflow::DropHead,
    delivery_limit: Some(20),
    message_ttl_ms: None,
    single_active_consumer: false,
    max_priority: None,
    dead_letter: DeadLettering::Off,
    quorum: QuorumSettings {
        delayed_retry: None,
        deduplication_window_ms: None,
    },
};

/// What the consensus host has for the shard itself.
pub enum GroupOutput {
    Append {
        token: WalToken,
        records: Vec<wal::Record>,
    },
    Send {
        to: NodeId,
        /// The shard of the receiving node.
        shard: u16,
        frame: Bytes,
    },
    Job {
        id: JobId,
        job: Box<dyn consensus::StorageJob>,
    },
    WalFree {
        up_to: u64,
    },
    Fatal(String),
    /// A queue's log has a command that this program does not understand.
    Unreadable {
        queue: QueueId,
        unreadable: UnknownCommand,
    },
    /// A message of a stream's replica to another one.
    SendToReplica {
        to: NodeId,
        queue: QueueId,
        message: PeerMessage,
    },
    /// This node's replica of a queue has heard of a leader.
    QueueLeader {
        queue: QueueId,
        leader: NodeId,
        is_me: bool,
    },
}

/// What the host has for the metadata group, which goes before all queues: they may be in it.
pub enum MetadataOutput {
    Committed(Vec<CommittedEntry>),
    Restore {
        index: u64,
        state: Bytes,
    },
    Leadership {
        leader: Option<NodeId>,
        is_leader: bool,
    },
    CheckpointDue,
}

pub struct LocalQueues {
    me: NodeId,
    incarnation: Incarnation,
    host: Host,
    disk: Arc<dyn Disk>,
    queues: HashMap<QueueId, QueueReplica, FixedState>,
    /// The keys of `queues`, in order: a listing goes on from any of them.
    ids: BTreeSet<QueueId>,
    /// Of the queues that are led or live here, as their last turns left them.
    totals: QueueTotals,
    /// Queues that were stepped in this turn.
    touched: PendingSet<QueueId>,
    wakes: BTreeMap<QueueId, Time>,
    due: BTreeSet<(Time, QueueId)>,
    /// Queues whose proposal the log had no room for.
    blocked: BTreeSet<QueueId>,
    /// What the host has for groups whose queue is not in the tree yet (while the metadata log catches up at a start).
    held: BTreeMap<QueueId, Vec<HostOutput>>,
    host_out: Vec<HostOutput>,
    /// Of queue groups, to be carried out after the metadata group's.
    queue_out: Vec<HostOutput>,
    said: EventBuffer,
    unused: Vec<QueueId>,
    leases: Leases,
    /// Queues with dead messages to be taken.
    dying: BTreeSet<QueueId>,
    /// Queues led or living here that have taken their deletion, and are still in the tree.
    over: BTreeSet<QueueId>,
    /// Found in this turn.
    damage: Option<DamagedLog>,
    streams: Streams,
    at: Timestamps,
}

impl LocalQueues {
    pub fn new(
        me: NodeId,
        incarnation: Incarnation,
        host: Host,
        disk: Arc<dyn Disk>,
    ) -> LocalQueues {
        LocalQueues {
            me,
            incarnation,
            host,
            disk,
            queues: HashMap::default(),
            ids: BTreeSet::new(),
            totals: QueueTotals::default(),
            touched: PendingSet::default(),
            wakes: BTreeMap::new(),
            due: BTreeSet::new(),
            blocked: BTreeSet::new(),
            held: BTreeMap::new(),
            host_out: Vec::new(),
            queue_out: Vec::new(),
            said: EventBuffer::default(),
            unused: Vec::new(),
            leases: Leases::default(),
            dying: BTreeSet::new(),
            over: BTreeSet::new(),
            damage: None,
            streams: Streams::default(),
            at: Timestamps::default(),
        }
    }

    pub fn set_time(&mut self, at: Timestamps) {
        self.at = at;
        self.host.tick(at.now);
    }

    /// The metadata group's replica of this node: founded with these voters, or empty until the leader fills it.
    pub fn found_metadata(&mut self, voters: Vec<NodeId>) {
        self.host.create(
            METADATA,
            &Membership {
                voters,
                learners: Vec::new(),
            },
        );
    }

    pub fn propose_metadata(&mut self, command: Bytes) -> Result<(), consensus::ProposeError> {
        self.host.propose(METADATA, command)
    }

    pub fn checkpoint_metadata(&mut self, index: u64, state: Bytes) {
        let live = IndexSet::default();
        self.host.checkpoint(METADATA, index, state, live);
    }

    /// Opens this node's replica of a queue. `is_founding`: the queue has just been declared, so a member that has no
    /// group yet founds it with all members as voters; otherwise it waits for the group's leader.
    pub fn open(&mut self, record: &QueueRecord, settings: &EffectiveSettings, is_founding: bool) {
        match record.kind {
            QueueType::Classic => self.open_classic(record, &settings.queue),
            QueueType::Quorum => self.open_quorum(record, is_founding),
            QueueType::Stream => self.open_stream(record, settings, is_founding),
        }
    }

    fn open_quorum(&mut self, record: &QueueRecord, declared: bool) {
        if self.queues.contains_key(&record.id) {
            return;
        }
        if self.host.was_removed(GroupId(record.id.0)) {
            // The tree is behind: it has yet to hear again of the queue's deletion. Founded once more, the group would not be the
            // one that other members still have.
            return;
        }
        self.create_group(record, declared);
        let quorum = QuorumReplica {
            queue: QuorumQueue::new(label(record), FIRST_SETTINGS),
            counted: CountedStats::default(),
        };
        self.insert_replica(record.id, QueueReplica::Quorum(Box::new(quorum)));
    }

    /// Makes this node's replica of a queue's group, if there is none. The first members found the group; a later one
    /// starts empty.
    fn create_group(&mut self, record: &QueueRecord, declared: bool) {
        let group = GroupId(record.id.0);
        if self.host.has_group(group) {
            return;
        }
        let voters = if declared {
            record.members.clone()
        } else {
            Vec::new()
        };
        let founds = voters.first() == Some(&self.me);
        let learners = Vec::new();
        self.host.create(group, &Membership { voters, learners });
        if founds {
            self.host.campaign_now(group);
        }
    }

    fn insert_replica(&mut self, queue: QueueId, replica: QueueReplica) {
        self.ids.insert(queue);
        self.queues.insert(queue, replica);
        // Before what this very turn has brought: a replica passes over entries that come after newer ones.
        let held = self.held.remove(&queue).unwrap_or_default();
        self.queue_out.splice(0..0, held);
    }

    /// `Err` is to be told to whoever looks: the queue's files are damaged beyond use or cannot be reached.
    fn open_classic(&mut self, record: &QueueRecord, settings: &QueueSettings) {
        if self.queues.contains_key(&record.id) {
            return;
        }
        let opened = ClassicQueue::open(
            Arc::clone(&self.disk),
            record.id,
            label(record),
            settings.clone(),
            self.incarnation,
        );
        match opened {
            Ok(queue) => {
                let classic = ClassicReplica {
                    queue,
                    auto_delete: record.auto_delete,
                    used: false,
                    counted: CountedStats::default(),
                };
                self.ids.insert(record.id);
                self.queues
                    .insert(record.id, QueueReplica::Classic(Box::new(classic)));
                self.touched.insert(record.id);
            }
            Err(error) => {
                tracing::error!(event = "classic_queue_damaged", queue = %record.name, vhost = %record.vhost, %error);
            }
        }
    }

    /// The queue is deleted: its data goes.
    pub fn remove(&mut self, queue: QueueId) {
        let mut removed = self.queues.remove(&queue);
        self.ids.remove(&queue);
        if let Some(owned) = &mut removed {
            owned.counted().set(None, &mut self.totals);
        }
        match removed {
            Some(QueueReplica::Quorum(_)) => self.host.remove(GroupId(queue.0)),
            Some(QueueReplica::Stream(_)) => {
                self.host.remove(GroupId(queue.0));
                self.delete_stream_files(queue);
            }
            Some(QueueReplica::Classic(mut classic)) => {
                self.said.by(queue, |out| classic.queue.destroy(out));
            }
            // A replica that waits for its queue, or what is kept of one that departed.
            None => self.host.remove(GroupId(queue.0)),
        }
        self.forget_traces(queue);
    }

    fn forget_traces(&mut self, queue: QueueId) {
        self.held.remove(&queue);
        self.over.remove(&queue);
        self.blocked.remove(&queue);
        self.set_wake(queue, None);
        self.touched.remove(queue);
        self.leases.set(queue, None);
        self.dying.remove(&queue);
    }

    /// Replicas of queues that the tree, being newer than they are, does not have any more.
    pub fn remove_deleted(&mut self, applied: u64, known: impl Fn(QueueId) -> bool) {
        let stale: Vec<QueueId> = self
            .held
            .keys()
            .copied()
            .filter(|q| q.0 <= applied && !known(*q))
            .collect();
        for queue in stale {
            self.remove(queue);
        }
        self.delete_unowned_streams(|queue| queue.0 > applied || known(queue));
    }

    pub fn has(&self, queue: QueueId) -> bool {
        self.queues.contains_key(&queue)
    }

    /// How long the queue may be unused.
    pub fn set_expires(&mut self, queue: QueueId, expires_ms: Option<u64>) {
        self.leases.set(queue, expires_ms);
        self.touched.insert(queue);
    }

    /// Returns true if [`Self::next_dying`] has a queue.
    pub(crate) fn has_dying(&self) -> bool {
        !self.dying.is_empty()
    }

    /// A queue whose dead messages wait to be taken.
    pub fn next_dying(&mut self) -> Option<QueueId> {
        self.dying.pop_first()
    }

    /// Takes dead messages out of a queue that has some: `most` of them and about so many bytes.
    pub fn take_dead(
        &mut self,
        queue: QueueId,
        most: usize,
        most_bytes: usize,
        out: &mut QueueOutput,
    ) {
        match self.queues.get_mut(&queue) {
            Some(QueueReplica::Classic(classic)) => {
                classic.queue.take_dead(self.at, most, most_bytes, out)
            }
            Some(QueueReplica::Quorum(quorum)) => {
                let mut read = commands(&self.host, queue, &mut self.damage);
                quorum.take_dead(most, most_bytes, &mut read, out);
            }
            Some(QueueReplica::Stream(_)) | None => return,
        }
        self.touched.insert(queue);
        self.said.by(queue, |said| {
            said.events.append(&mut out.events);
            said.faults.append(&mut out.faults);
            if let Some(deaths) = out.deaths.take() {
                said.add_deaths(deaths);
            }
            said.gone = said.gone.take().or(out.gone.take());
        });
    }

    /// Reads once more a message that a queue keeps until it has been passed on.
    pub fn read_dead(&mut self, queue: QueueId, id: u64) -> DeadRead {
        match self.queues.get(&queue) {
            None | Some(QueueReplica::Classic(_) | QueueReplica::Stream(_)) => DeadRead::Gone,
            Some(QueueReplica::Quorum(quorum)) => {
                let mut read = commands(&self.host, queue, &mut self.damage);
                quorum.read_dead(id, &mut read)
            }
        }
    }

    pub fn passed_on(&mut self, queue: QueueId, id: u64) {
        if let Some(QueueReplica::Quorum(quorum)) = self.queues.get_mut(&queue) {
            quorum.passed_on(id);
            self.touched.insert(queue);
        }
    }

    /// `default`: the timeout of consumers whose queue has none.
    pub fn configure(
        &mut self,
        queue: QueueId,
        settings: &EffectiveSettings,
        default: &DefaultTimeout,
    ) {
        if let Some(owned) = self.queues.get_mut(&queue) {
            match owned {
                QueueReplica::Stream(replica) => {
                    replica.set_log_config(self.at, stream::log_config(&settings.stream));
                }
                QueueReplica::Classic(_) | QueueReplica::Quorum(_) => {
                    if let QueueReplica::Quorum(quorum) = owned {
                        quorum.enable_features(settings.features);
                        quorum.set_consumer_timeouts(ConsumerTimeouts {
                            is_enabled: settings.times_out_consumers,
                            queue_ms: settings.consumer_timeout_ms,
                            default: default.clone(),
                        });
                    }
                    let settings = &settings.queue;
                    self.said
                        .by(queue, |out| owned.queue().configure(self.at, settings, out));
                }
            }
            self.touched.insert(queue);
        }
    }

    pub fn step(&mut self, queue: QueueId, message: QueueMessage) {
        // A consumer that comes and goes within a turn uses it, too.
        if let QueueMessage::Request(request) = &message
            && let RequestBody::Get { .. }
            | RequestBody::GetAt(_)
            | RequestBody::Stat
            | RequestBody::Consume { .. }
            | RequestBody::TakeOver(_)
            | RequestBody::Cancel { .. }
            | RequestBody::CancelAndRequeue { .. } = request.body
        {
            self.leases.renew(queue, self.at.now);
        }
        match self.queues.get_mut(&queue) {
            Some(owned) => {
                self.said
                    .by(queue, |out| owned.queue().step(self.at, message, out));
                self.touched.insert(queue);
            }
            None => {
                let nobody = QueueEvent::NotOwner { leader: None };
                self.said
                    .by(queue, |out| out.event(message.session(), nobody));
            }
        }
    }

    pub fn poll_host(
        &mut self,
        metadata: &mut Vec<MetadataOutput>,
        shard: &mut Vec<GroupOutput>,
    ) -> bool {
        self.host.poll(&mut self.host_out);
        if self.host_out.is_empty() {
            return false;
        }
        for output in self.host_out.drain(..) {
            match output {
                HostOutput::Append { token, records } => {
                    shard.push(GroupOutput::Append { token, records })
                }
                HostOutput::Send {
                    to,
                    shard: receiver,
                    frame,
                } => shard.push(GroupOutput::Send {
                    to,
                    shard: receiver,
                    frame,
                }),
                HostOutput::Job { id, job } => shard.push(GroupOutput::Job { id, job }),
                HostOutput::WalFree { up_to } => shard.push(GroupOutput::WalFree { up_to }),
                HostOutput::Failed { group, error } => {
                    shard.push(GroupOutput::Fatal(format!(
                        "group {:016x}: {error}",
                        group.0
                    )));
                }
                HostOutput::Committed {
                    group: METADATA,
                    entries,
                } => metadata.push(MetadataOutput::Committed(entries)),
                HostOutput::Restore {
                    group: METADATA,
                    index,
                    state,
                } => {
                    metadata.push(MetadataOutput::Restore { index, state });
                }
                HostOutput::Leadership {
                    group: METADATA,
                    leader,
                    is_leader,
                    ..
                } => {
                    metadata.push(MetadataOutput::Leadership { leader, is_leader });
                }
                HostOutput::CheckpointDue { group: METADATA } => {
                    metadata.push(MetadataOutput::CheckpointDue)
                }
                HostOutput::Membership { group, .. } => {
                    let queue = QueueId(group.0);
                    if matches!(self.queues.get(&queue), Some(QueueReplica::Stream(_))) {
                        self.queue_out.push(output);
                    }
                }
                other => self.queue_out.push(other),
            }
        }
        true
    }

    /// Carries out what the host had for queues, and ends the turn of those that were stepped.
    pub fn turn(&mut self, shard: &mut Vec<GroupOutput>) -> bool {
        if self.queue_out.is_empty() && self.touched.is_empty() {
            self.take_stream_outputs(shard);
            self.tell_damage(shard);
            return false;
        }
        if !self.queue_out.is_empty() {
            let mut outputs = std::mem::take(&mut self.queue_out);
            for output in outputs.drain(..) {
                self.queue_output(output, shard);
            }
            std::mem::swap(&mut outputs, &mut self.queue_out);
            self.queue_out.append(&mut outputs);
        }
        let touched = self.touched.take();
        for queue in touched.iter().copied() {
            self.end_turn(queue);
        }
        self.touched.reuse(touched);
        self.take_stream_outputs(shard);
        self.tell_damage(shard);
        true
    }

    fn queue_output(&mut self, output: HostOutput, shard: &mut Vec<GroupOutput>) {
        let Some(group) = group_of(&output) else {
            return;
        };
        let queue = QueueId(group.0);
        let quorum = match self.queues.get_mut(&queue) {
            Some(QueueReplica::Quorum(quorum)) => quorum,
            Some(QueueReplica::Stream(_)) => return self.stream_output(queue, output, shard),
            Some(QueueReplica::Classic(_)) | None => {
                self.held.entry(queue).or_default().push(output);
                return;
            }
        };
        self.touched.insert(queue);
        match output {
            HostOutput::Committed { entries, .. } => {
                for entry in entries {
                    if let Err(unreadable) = quorum.applied(entry.index, entry.term, &entry.command)
                    {
                        return shard.push(GroupOutput::Unreadable { queue, unreadable });
                    }
                }
            }
            HostOutput::Restore { index, state, .. } => {
                if let Err(error) = quorum.restore(state) {
                    shard.push(GroupOutput::Fatal(format!(
                        "queue {}: checkpoint after entry {index}: {error}",
                        queue.0
                    )));
                }
            }
            HostOutput::Leadership {
                term,
                leader,
                is_leader,
                ..
            } => {
                self.said.by(queue, |out| {
                    quorum.leadership(term, leader, is_leader, out);
                });
                if let Some(leader) = leader {
                    shard.push(GroupOutput::QueueLeader {
                        queue,
                        leader,
                        is_me: is_leader,
                    });
                }
            }
            HostOutput::CheckpointDue { .. } => {
                // What was applied and not read yet may be freed by the checkpoint.
                let mut read = commands(&self.host, queue, &mut self.damage);
                self.said.by(queue, |out| quorum.resolve(&mut read, out));
                drop(read);
                let checkpoint = quorum.checkpoint();
                self.host
                    .checkpoint(group, checkpoint.index, checkpoint.state, checkpoint.live);
            }
            _ => {}
        }
    }

    /// What was applied becomes events, what was asked becomes a proposal or a write.
    fn end_turn(&mut self, queue: QueueId) {
        let Some(owned) = self.queues.get_mut(&queue) else {
            return;
        };
        let group = GroupId(queue.0);
        self.said.by(queue, |out| {
            match owned {
                QueueReplica::Quorum(quorum) => {
                    let mut read = commands(&self.host, queue, &mut self.damage);
                    quorum.resolve(&mut read, out);
                    quorum.select(&mut read, filters::compile);
                }
                QueueReplica::Classic(classic) => {
                    classic.queue.select(self.at, filters::compile, out);
                }
                QueueReplica::Stream(_) => {}
            }
            owned.queue().flush(self.at, out);
        });
        if let QueueReplica::Quorum(quorum) = owned {
            while let Some(command) = quorum.take_proposal() {
                match self.host.propose(group, command.clone()) {
                    Ok(()) => {}
                    Err(consensus::ProposeError::Overloaded) => {
                        quorum.give_back(command);
                        self.blocked.insert(queue);
                        break;
                    }
                    // The leadership that is on its way here tells the sessions to go elsewhere.
                    Err(_) => break,
                }
            }
        }
        let has_more = matches!(owned, QueueReplica::Stream(_)) && self.end_stream_turn(queue);
        let Some(owned) = self.queues.get_mut(&queue) else {
            return;
        };
        if let QueueReplica::Classic(classic) = owned
            && classic.auto_delete
        {
            let consumers = classic.queue.stats().consumers;
            if classic.used && consumers == 0 {
                self.unused.push(queue);
            }
            classic.used |= consumers > 0;
        }
        owned.count(&mut self.totals);
        let over = match owned {
            QueueReplica::Classic(classic) => classic.queue.deleted(),
            QueueReplica::Quorum(quorum) => quorum.leads() && quorum.machine().deleted(),
            QueueReplica::Stream(stream) => stream.leads() && stream.is_deleted(),
        };
        if over {
            self.over.insert(queue);
        }
        let wake = match has_more {
            true => Some(self.at.now),
            false => owned.queue().wake_at(),
        };
        if owned.queue().has_dead() {
            self.dying.insert(queue);
        }
        if !self.leases.is_empty() {
            let expiring = owned.is_owner() && !owned.queue().in_use();
            self.leases.note(queue, self.at.now, expiring);
        }
        self.set_wake(queue, wake);
    }

    pub fn has_unused(&self) -> bool {
        !self.unused.is_empty()
    }

    /// Queues to be deleted: auto-delete ones whose last consumer went in this turn, and those whose lease has ended.
    pub fn take_unused(&mut self) -> Vec<QueueId> {
        std::mem::take(&mut self.unused)
    }

    /// Queues that take nothing any more, for the tree has yet to lose them.
    pub fn over(&self) -> Vec<QueueId> {
        self.over.iter().copied().collect()
    }

    /// A clean stop: what classic queues have in memory goes to the disk.
    pub fn write_all(&mut self) {
        let mut ids: Vec<QueueId> = self.queues.keys().copied().collect();
        ids.sort_unstable();
        for queue in ids {
            if let Some(QueueReplica::Classic(classic)) = self.queues.get_mut(&queue)
                && let Err(error) = self.said.by(queue, |out| classic.queue.write_all(out))
            {
                tracing::error!(event = "classic_queue_not_written", queue = queue.0, %error);
            }
        }
    }

    fn set_wake(&mut self, queue: QueueId, wake: Option<Time>) {
        let before = match wake {
            Some(at) => self.wakes.insert(queue, at),
            None => self.wakes.remove(&queue),
        };
        if before != wake {
            if let Some(before) = before {
                self.due.remove(&(before, queue));
            }
            if let Some(at) = wake {
                self.due.insert((at, queue));
            }
        }
    }

    pub fn wake_at(&self) -> Option<Time> {
        let due = self.due.first().map(|(at, _)| *at);
        Time::earliest([due, self.leases.wake_at()])
    }

    /// Queues whose time has come, and those that the log had no room for.
    pub fn tick(&mut self) {
        if !self.blocked.is_empty() {
            self.touched.extend(std::mem::take(&mut self.blocked));
        }
        while let Some(queue) = self.leases.take_ended(self.at.now) {
            self.unused.push(queue);
        }
        while self.due.first().is_some_and(|(at, _)| *at <= self.at.now) {
            let Some((_, queue)) = self.due.pop_first() else {
                return;
            };
            self.wakes.remove(&queue);
            if let Some(owned) = self.queues.get_mut(&queue) {
                self.said.by(queue, |out| owned.queue().tick(self.at, out));
                self.touched.insert(queue);
            }
        }
    }

    /// Queues have said something to sessions.
    pub fn has_events(&mut self) -> bool {
        self.said.has_events()
    }

    /// What queues say to sessions, to be given back empty.
    pub fn take_events(&mut self) -> Vec<(SessionId, QueueId, QueueEvent)> {
        self.said.take()
    }

    pub fn reuse_events(&mut self, events: Vec<(SessionId, QueueId, QueueEvent)>) {
        self.said.reuse(events);
    }

    pub fn receive_raft(&mut self, from: NodeId, frame: Bytes) {
        self.host.receive(from, frame);
    }

    pub fn durable(&mut self, token: WalToken) {
        self.host.durable(token);
    }

    pub fn wal_rolled(&mut self, file: u64) {
        self.host.wal_rolled(file);
    }

    pub fn job_done(&mut self, id: JobId, result: JobResult) {
        if let Some(result) = self.stream_job_done(id, result) {
            self.host.job_done(id, result);
        }
    }

    pub fn disk_is_short(&mut self, short: bool) {
        self.host.set_disk_short(short);
    }

    pub fn peer_up(&mut self, node: NodeId, incarnation: Incarnation, shards: u16) {
        self.host.peer_up(node, incarnation, shards);
        self.each_queue(|owned, at, out| match owned {
            QueueReplica::Quorum(q) => q.peer_up(node),
            QueueReplica::Stream(s) => s.set_reachable(at, node, true, out),
            QueueReplica::Classic(c) => c.queue.peer_up(at, node, out),
        });
    }

    pub fn peer_down(&mut self, node: NodeId) {
        self.host.peer_down(node);
        self.each_queue(|owned, at, out| match owned {
            QueueReplica::Quorum(q) => q.peer_down(node),
            QueueReplica::Stream(s) => s.set_reachable(at, node, false, out),
            QueueReplica::Classic(c) => c.queue.peer_down(at, node, out),
        });
    }

    fn each_queue(&mut self, f: impl Fn(&mut QueueReplica, Timestamps, &mut QueueOutput)) {
        let mut ids: Vec<QueueId> = self.queues.keys().copied().collect();
        ids.sort_unstable();
        for queue in ids {
            if let Some(owned) = self.queues.get_mut(&queue) {
                self.said.by(queue, |out| f(owned, self.at, out));
                self.touched.insert(queue);
            }
        }
    }

    /// Earlier lives of a node are over.
    pub fn node_gone(&mut self, gone: DeadIncarnation) {
        self.each_queue(|owned, at, out| owned.queue().node_gone(at, gone, out));
    }

    /// Nodes that were removed from the cluster have no later life that would tell of their end: a queue that is led or lives
    /// here takes back what their sessions have. True when there are none.
    pub fn end_removed(&mut self, queue: QueueId, removed: impl Fn(NodeId) -> bool) -> bool {
        let Some(owned) = self.queues.get_mut(&queue) else {
            return true;
        };
        let mut gone = owned.queue().session_nodes();
        gone.retain(|node| removed(*node) && !planted::is(Bug::RemovedKeeps));
        let before = Incarnation(u64::MAX);
        for node in &gone {
            let gone = DeadIncarnation {
                node: *node,
                before,
            };
            self.said
                .by(queue, |out| owned.queue().node_gone(self.at, gone, out));
            self.touched.insert(queue);
        }
        gone.is_empty()
    }

    /// Queues that live here.
    pub fn classic_queues(&self) -> Vec<QueueId> {
        let classic = |(id, owned): (&QueueId, &QueueReplica)| match owned {
            QueueReplica::Classic(_) => Some(*id),
            QueueReplica::Quorum(_) | QueueReplica::Stream(_) => None,
        };
        let mut all: Vec<QueueId> = self.queues.iter().filter_map(classic).collect();
        all.sort_unstable();
        all
    }

    /// Ids of the quorum queues that are led here.
    pub fn led_quorum_queues(&self) -> Vec<QueueId> {
        let led = |(id, owned): (&QueueId, &QueueReplica)| match owned {
            QueueReplica::Quorum(quorum) if quorum.leads() => Some(*id),
            QueueReplica::Classic(_) | QueueReplica::Quorum(_) | QueueReplica::Stream(_) => None,
        };
        let mut all: Vec<QueueId> = self.queues.iter().filter_map(led).collect();
        all.sort_unstable();
        all
    }

    /// A new leader is told what this node knows of others.
    pub fn tell_peers(&mut self, queue: QueueId, peers: &Peers) {
        let Some(owned) = self.queues.get_mut(&queue) else {
            return;
        };
        for (node, peer) in peers.lives() {
            let before = peer.incarnation;
            let gone = DeadIncarnation { node, before };
            self.said
                .by(queue, |out| owned.queue().node_gone(self.at, gone, out));
            match owned {
                QueueReplica::Quorum(quorum) if peer.up => quorum.peer_up(node),
                QueueReplica::Quorum(quorum) => quorum.peer_down(node),
                QueueReplica::Stream(stream) => self.said.by(queue, |out| {
                    stream.set_reachable(self.at, node, peer.up, out)
                }),
                QueueReplica::Classic(_) => {}
            }
        }
        self.touched.insert(queue);
    }

    /// When the host wants to be told of time; None while all its groups sleep.
    pub fn host_wake(&self) -> Option<Time> {
        self.host.wake_at()
    }

    /// Replicas that wait for their queue to show in the tree.
    pub fn recovering(&self) -> bool {
        !self.held.is_empty()
    }
}

fn group_of(output: &HostOutput) -> Option<GroupId> {
    match output {
        HostOutput::Committed { group, .. }
        | HostOutput::Restore { group, .. }
        | HostOutput::Leadership { group, .. }
        | HostOutput::CheckpointDue { group }
        | HostOutput::Membership { group, .. }
        | HostOutput::Failed { group, .. } => Some(*group),
        _ => None,
    }
}

/// What people call a queue, as RabbitMQ's texts do.
pub(crate) fn label(record: &QueueRecord) -> metadata::Name {
    format!("queue '{}' in vhost '{}'", record.name, record.vhost).into()
}
