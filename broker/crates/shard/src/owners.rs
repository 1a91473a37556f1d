//! The queues that this shard owns or holds a replica of, and the consensus host behind the quorum queues.

#[cfg(test)]
mod tests;

use crate::core::FixedState;
use crate::frame::OwnerStats;
use crate::lease::Leases;
use crate::members::frame::Told;
use crate::membership::Step;
use crate::peers::Peers;
use bytes::Bytes;
use consensus::{
    Committed, Departure, GroupId, GroupStatus, Host, JobId, JobResult, Membership,
    Output as HostOutput, RaftHost, WalToken,
};
use control::QueueTotals;
use control::ReplicaStatus;
use env::{Disk, Incarnation, NodeId, Time};
use hashbrown::HashMap;
use metadata::{QueueId, QueueRecord};
use queue::classic::ClassicQueue;
use queue::quorum::{DEFAULT_DELIVERY_LIMIT, QuorumQueue};
use queue::{
    ConsumerInfo, DeadLettering, DeadReason, Event, GoneNode, Moment, Output, Overflow, Queue,
    QueueSettings, RequestBody, SessionId, ToQueue,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const METADATA: GroupId = GroupId(0);

/// What every quorum queue starts with, on every member alike, whatever its policies say: its leader then logs the
/// settings it should have, so replicas that were made at different times agree.
const FIRST_SETTINGS: QueueSettings = QueueSettings {
    max_length: None,
    max_length_bytes: None,
    overflow: Overflow::DropHead,
    delivery_limit: Some(DEFAULT_DELIVERY_LIMIT),
    message_ttl_ms: None,
    single_active_consumer: false,
    max_priority: None,
    dead_letter: DeadLettering::Off,
};

struct Classic {
    queue: ClassicQueue,
    auto_delete: bool,
    /// It had a consumer: an auto-delete queue goes with the last one.
    used: bool,
}

enum Owned {
    Classic(Box<Classic>),
    Quorum(Box<QuorumQueue>),
}

impl Owned {
    fn queue(&mut self) -> &mut dyn Queue {
        match self {
            Owned::Classic(q) => &mut q.queue,
            Owned::Quorum(q) => q.as_mut(),
        }
    }
}

/// What the consensus host has for the shard itself.
pub enum ForShard {
    Append {
        token: WalToken,
        records: Vec<wal::Record>,
    },
    Send {
        to: NodeId,
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
    /// This node's replica of a queue has heard of a leader.
    QueueLeader {
        queue: QueueId,
        leader: NodeId,
        is_me: bool,
    },
}

/// What the host has for the metadata group, which goes before all queues: they may be in it.
pub enum ForMetadata {
    Committed(Vec<Committed>),
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

pub struct Owners {
    me: NodeId,
    host: Host,
    disk: Arc<dyn Disk>,
    queues: HashMap<QueueId, Owned, FixedState>,
    /// Queues that were stepped in this turn.
    touched: BTreeSet<QueueId>,
    wakes: BTreeMap<QueueId, Time>,
    due: BTreeSet<(Time, QueueId)>,
    /// Queues whose proposal the log had no room for.
    blocked: BTreeSet<QueueId>,
    /// What the host has for groups whose queue is not in the tree yet (while the metadata log catches up at a start).
    held: BTreeMap<QueueId, Vec<HostOutput>>,
    host_out: Vec<HostOutput>,
    /// Of queue groups, to be carried out after the metadata group's.
    queue_out: Vec<HostOutput>,
    events: Vec<(SessionId, QueueId, Event)>,
    unused: Vec<QueueId>,
    leases: Leases,
    /// Queues with dead messages to be taken.
    dying: BTreeSet<QueueId>,
    /// Queues led or living here that have taken their deletion, and are still in the tree.
    over: BTreeSet<QueueId>,
    out: Output,
    at: Moment,
}

impl Owners {
    pub fn new(me: NodeId, host: Host, disk: Arc<dyn Disk>) -> Owners {
        Owners {
            me,
            host,
            disk,
            queues: HashMap::default(),
            touched: BTreeSet::new(),
            wakes: BTreeMap::new(),
            due: BTreeSet::new(),
            blocked: BTreeSet::new(),
            held: BTreeMap::new(),
            host_out: Vec::new(),
            queue_out: Vec::new(),
            events: Vec::new(),
            unused: Vec::new(),
            leases: Leases::default(),
            dying: BTreeSet::new(),
            over: BTreeSet::new(),
            out: Output::default(),
            at: Moment::default(),
        }
    }

    pub fn set_time(&mut self, at: Moment) {
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

    pub fn metadata_status(&self) -> Option<GroupStatus> {
        self.host.status(METADATA)
    }

    pub fn checkpoint_metadata(&mut self, index: u64, state: Bytes) {
        self.host.checkpoint(METADATA, index, state, Vec::new());
    }

    /// Makes this node's replica of a quorum queue. Its first members found the group; a later one starts empty.
    pub fn open_quorum(&mut self, record: &QueueRecord, declared: bool) {
        if self.queues.contains_key(&record.id) {
            return;
        }
        let group = GroupId(record.id.0);
        if !self.host.has(group) {
            let voters = if declared {
                record.members.clone()
            } else {
                Vec::new()
            };
            let founds = voters.first() == Some(&self.me);
            let learners = Vec::new();
            self.host.create(group, &Membership { voters, learners });
            if founds {
                self.host.stand_first(group);
            }
        }
        let queue = QuorumQueue::new(label(record), FIRST_SETTINGS);
        self.queues
            .insert(record.id, Owned::Quorum(Box::new(queue)));
        // Before what this very turn has brought: a replica passes over entries that come after newer ones.
        let held = self.held.remove(&record.id).unwrap_or_default();
        self.queue_out.splice(0..0, held);
    }

    /// `Err` is to be told to whoever looks: the queue's files are damaged beyond use or cannot be reached.
    pub fn open_classic(&mut self, record: &QueueRecord, settings: &QueueSettings) {
        if self.queues.contains_key(&record.id) {
            return;
        }
        let opened = ClassicQueue::open(
            Arc::clone(&self.disk),
            record.id,
            label(record),
            settings.clone(),
        );
        match opened {
            Ok(queue) => {
                let classic = Classic {
                    queue,
                    auto_delete: record.auto_delete,
                    used: false,
                };
                self.queues
                    .insert(record.id, Owned::Classic(Box::new(classic)));
                self.touched.insert(record.id);
            }
            Err(error) => {
                tracing::error!(event = "classic_queue_damaged", queue = %record.name, vhost = %record.vhost, %error);
            }
        }
    }

    /// The queue is deleted: its data goes.
    pub fn remove(&mut self, queue: QueueId) {
        match self.queues.remove(&queue) {
            Some(Owned::Quorum(_)) => self.host.remove(GroupId(queue.0)),
            Some(Owned::Classic(mut classic)) => {
                classic.queue.destroy(&mut self.out);
                self.note_events(queue);
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
        self.touched.remove(&queue);
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
    }

    pub fn has(&self, queue: QueueId) -> bool {
        self.queues.contains_key(&queue)
    }

    /// How long the queue may be unused.
    pub fn set_expires(&mut self, queue: QueueId, expires_ms: Option<u64>) {
        self.leases.set(queue, expires_ms);
        self.touched.insert(queue);
    }

    /// Queues whose dead messages wait to be taken.
    pub fn take_dying(&mut self) -> BTreeSet<QueueId> {
        std::mem::take(&mut self.dying)
    }

    /// Takes dead messages out of a queue that has some: `most` of them and about so many bytes.
    pub fn take_dead(&mut self, queue: QueueId, most: usize, most_bytes: usize, out: &mut Output) {
        let group = GroupId(queue.0);
        match self.queues.get_mut(&queue) {
            Some(Owned::Classic(classic)) => {
                classic.queue.take_dead(self.at, most, most_bytes, out)
            }
            Some(Owned::Quorum(quorum)) => {
                let host = &self.host;
                quorum.take_dead(most, most_bytes, &mut |i| host.read(group, i).ok(), out);
            }
            None => return,
        }
        self.touched.insert(queue);
        self.out.events.append(&mut out.events);
        self.out.faults.append(&mut out.faults);
        self.note_events(queue);
    }

    /// One that a queue keeps until it has been passed on, once more.
    pub fn read_dead(&self, queue: QueueId, id: u64) -> Option<(DeadReason, message::Message)> {
        match self.queues.get(&queue)? {
            Owned::Classic(_) => None,
            Owned::Quorum(quorum) => {
                let group = GroupId(queue.0);
                quorum.read_dead(id, &mut |index| self.host.read(group, index).ok())
            }
        }
    }

    pub fn passed_on(&mut self, queue: QueueId, id: u64) {
        if let Some(Owned::Quorum(quorum)) = self.queues.get_mut(&queue) {
            quorum.passed_on(id);
            self.touched.insert(queue);
        }
    }

    pub fn configure(&mut self, queue: QueueId, settings: &QueueSettings) {
        if let Some(owned) = self.queues.get_mut(&queue) {
            owned.queue().configure(self.at, settings, &mut self.out);
            self.touched.insert(queue);
        }
        self.note_events(queue);
    }

    pub fn step(&mut self, queue: QueueId, message: ToQueue) {
        if let ToQueue::Request(request) = &message
            && let RequestBody::Get { .. } | RequestBody::Stat = request.body
        {
            self.leases.renew(queue, self.at.now);
        }
        debug_assert!(self.out.events.is_empty(), "another queue's events");
        match self.queues.get_mut(&queue) {
            Some(owned) => {
                owned.queue().step(self.at, message, &mut self.out);
                self.touched.insert(queue);
            }
            None => {
                let session = match &message {
                    ToQueue::Request(request) => request.session,
                    ToQueue::Resume(resume) => resume.session,
                };
                self.out.event(session, Event::NotOwner { leader: None });
            }
        }
        self.note_events(queue);
    }

    /// Events of the queue that was just stepped, under its name. To be called whenever a queue was given `out`: what is left
    /// there goes out under the next one's name, and confirms messages that it does not have.
    fn note_events(&mut self, queue: QueueId) {
        for addressed in self.out.events.drain(..) {
            self.events
                .push((addressed.session, queue, addressed.event));
        }
        for fault in self.out.faults.drain(..) {
            tracing::error!(event = "queue_fault", queue = queue.0, fault);
        }
    }

    /// Takes what the host has; true when there was anything.
    pub fn poll_host(
        &mut self,
        metadata: &mut Vec<ForMetadata>,
        shard: &mut Vec<ForShard>,
    ) -> bool {
        self.host.poll(&mut self.host_out);
        let worked = !self.host_out.is_empty();
        for output in self.host_out.drain(..) {
            match output {
                HostOutput::Append { token, records } => {
                    shard.push(ForShard::Append { token, records })
                }
                HostOutput::Send { to, frame } => shard.push(ForShard::Send { to, frame }),
                HostOutput::Job { id, job } => shard.push(ForShard::Job { id, job }),
                HostOutput::WalFree { up_to } => shard.push(ForShard::WalFree { up_to }),
                HostOutput::Failed { group, error } => {
                    shard.push(ForShard::Fatal(format!("group {:016x}: {error}", group.0)));
                }
                HostOutput::Committed {
                    group: METADATA,
                    entries,
                } => metadata.push(ForMetadata::Committed(entries)),
                HostOutput::Restore {
                    group: METADATA,
                    index,
                    state,
                } => {
                    metadata.push(ForMetadata::Restore { index, state });
                }
                HostOutput::Leadership {
                    group: METADATA,
                    leader,
                    is_leader,
                    ..
                } => {
                    metadata.push(ForMetadata::Leadership { leader, is_leader });
                }
                HostOutput::CheckpointDue { group: METADATA } => {
                    metadata.push(ForMetadata::CheckpointDue)
                }
                HostOutput::Membership { .. } => {}
                other => self.queue_out.push(other),
            }
        }
        worked
    }

    /// Carries out what the host had for queues, and ends the turn of those that were stepped.
    pub fn turn(&mut self, shard: &mut Vec<ForShard>) -> bool {
        let outputs = std::mem::take(&mut self.queue_out);
        let worked = !outputs.is_empty() || !self.touched.is_empty();
        for output in outputs {
            self.queue_output(output, shard);
        }
        for queue in std::mem::take(&mut self.touched) {
            self.end_turn(queue);
        }
        worked
    }

    fn queue_output(&mut self, output: HostOutput, shard: &mut Vec<ForShard>) {
        let Some(group) = group_of(&output) else {
            return;
        };
        let queue = QueueId(group.0);
        let Some(Owned::Quorum(quorum)) = self.queues.get_mut(&queue) else {
            self.held.entry(queue).or_default().push(output);
            return;
        };
        self.touched.insert(queue);
        match output {
            HostOutput::Committed { entries, .. } => {
                for entry in entries {
                    quorum.applied(entry.index, entry.term, &entry.command);
                }
            }
            HostOutput::Restore { index, state, .. } => {
                if let Err(error) = quorum.restore(state) {
                    shard.push(ForShard::Fatal(format!(
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
                quorum.leadership(term, leader, is_leader, &mut self.out);
                if let Some(leader) = leader {
                    shard.push(ForShard::QueueLeader {
                        queue,
                        leader,
                        is_me: is_leader,
                    });
                }
                self.note_events(queue);
            }
            HostOutput::CheckpointDue { .. } => {
                // What was applied and not read yet may be freed by the checkpoint.
                let host = &self.host;
                quorum.resolve(&mut |index| host.read(group, index).ok(), &mut self.out);
                let checkpoint = quorum.checkpoint();
                self.host
                    .checkpoint(group, checkpoint.index, checkpoint.state, checkpoint.live);
                self.note_events(queue);
            }
            _ => {}
        }
    }

    /// What was applied becomes events, what was asked becomes a proposal or a write.
    fn end_turn(&mut self, queue: QueueId) {
        debug_assert!(self.out.events.is_empty(), "another queue's events");
        let Some(owned) = self.queues.get_mut(&queue) else {
            return;
        };
        let group = GroupId(queue.0);
        if let Owned::Quorum(quorum) = owned {
            let host = &self.host;
            quorum.resolve(&mut |index| host.read(group, index).ok(), &mut self.out);
        }
        owned.queue().flush(self.at, &mut self.out);
        if let Owned::Quorum(quorum) = owned {
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
        if let Owned::Classic(classic) = owned
            && classic.auto_delete
        {
            let consumers = classic.queue.stats().consumers;
            if classic.used && consumers == 0 {
                self.unused.push(queue);
            }
            classic.used |= consumers > 0;
        }
        let over = match owned {
            Owned::Classic(classic) => classic.queue.deleted(),
            Owned::Quorum(quorum) => quorum.leads() && quorum.machine().deleted(),
        };
        if over {
            self.over.insert(queue);
        }
        let wake = owned.queue().wake_at();
        if owned.queue().has_dead() {
            self.dying.insert(queue);
        }
        if !self.leases.is_empty() {
            let here = match owned {
                Owned::Classic(_) => true,
                Owned::Quorum(quorum) => quorum.leads(),
            };
            let expiring = here && !owned.queue().in_use();
            self.leases.note(queue, self.at.now, expiring);
        }
        self.note_events(queue);
        self.set_wake(queue, wake);
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
            if let Some(Owned::Classic(classic)) = self.queues.get_mut(&queue)
                && let Err(error) = classic.queue.write_all(&mut self.out)
            {
                tracing::error!(event = "classic_queue_not_written", queue = queue.0, %error);
            }
            self.note_events(queue);
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
        [due, self.leases.wake_at()].into_iter().flatten().min()
    }

    /// Queues whose time has come, and those that the log had no room for.
    pub fn tick(&mut self) {
        self.touched.append(&mut self.blocked);
        while let Some(queue) = self.leases.take_ended(self.at.now) {
            self.unused.push(queue);
        }
        while let Some((at, queue)) = self
            .due
            .first()
            .copied()
            .filter(|(at, _)| *at <= self.at.now)
        {
            self.due.remove(&(at, queue));
            self.wakes.remove(&queue);
            if let Some(owned) = self.queues.get_mut(&queue) {
                owned.queue().tick(self.at, &mut self.out);
                self.touched.insert(queue);
            }
            self.note_events(queue);
        }
    }

    pub fn take_events(&mut self) -> Vec<(SessionId, QueueId, Event)> {
        std::mem::take(&mut self.events)
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
        self.host.job_done(id, result);
    }

    pub fn disk_is_short(&mut self, short: bool) {
        self.host.disk_is_short(short);
    }

    pub fn peer_up(&mut self, node: NodeId, incarnation: Incarnation) {
        self.host.peer_up(node, incarnation);
        self.each_queue(|owned, at, out| match owned {
            Owned::Quorum(q) => q.peer_up(node),
            Owned::Classic(c) => c.queue.peer_up(at, node, out),
        });
    }

    pub fn peer_down(&mut self, node: NodeId) {
        self.host.peer_down(node);
        self.each_queue(|owned, at, out| match owned {
            Owned::Quorum(q) => q.peer_down(node),
            Owned::Classic(c) => c.queue.peer_down(at, node, out),
        });
    }

    fn each_queue(&mut self, f: impl Fn(&mut Owned, Moment, &mut Output)) {
        let mut ids: Vec<QueueId> = self.queues.keys().copied().collect();
        ids.sort_unstable();
        for queue in ids {
            if let Some(owned) = self.queues.get_mut(&queue) {
                f(owned, self.at, &mut self.out);
                self.touched.insert(queue);
            }
            self.note_events(queue);
        }
    }

    /// Earlier lives of a node are over.
    pub fn node_gone(&mut self, gone: GoneNode) {
        let mut ids: Vec<QueueId> = self.queues.keys().copied().collect();
        ids.sort_unstable();
        for queue in ids {
            if let Some(owned) = self.queues.get_mut(&queue) {
                owned.queue().node_gone(self.at, gone, &mut self.out);
                self.touched.insert(queue);
            }
            self.note_events(queue);
        }
    }

    /// A new leader is told what this node knows of others.
    pub fn tell_peers(&mut self, queue: QueueId, peers: &Peers) {
        let Some(owned) = self.queues.get_mut(&queue) else {
            return;
        };
        for (node, peer) in peers.lives() {
            owned.queue().node_gone(
                self.at,
                GoneNode {
                    node,
                    before: peer.incarnation,
                },
                &mut self.out,
            );
            if let Owned::Quorum(quorum) = owned {
                if peer.up {
                    quorum.peer_up(node)
                } else {
                    quorum.peer_down(node)
                }
            }
        }
        self.touched.insert(queue);
        self.note_events(queue);
    }

    /// The leader of a queue as this node's replica knows it.
    pub fn leader_of(&self, queue: QueueId) -> Option<NodeId> {
        match self.queues.get(&queue)? {
            Owned::Quorum(_) => self.host.status(GroupId(queue.0))?.leader,
            Owned::Classic(_) => None,
        }
    }

    pub fn led_groups(&self) -> Vec<(QueueId, GroupStatus)> {
        let mut led: Vec<_> = self
            .queues
            .iter()
            .filter(|(_, o)| matches!(o, Owned::Quorum(q) if q.leads()))
            .filter_map(|(id, _)| Some((*id, self.host.status(GroupId(id.0))?)))
            .filter(|(_, status)| status.is_leader)
            .collect();
        led.sort_by_key(|(id, _)| *id);
        led
    }

    /// Queues that are led here.
    pub fn led_queues(&self) -> BTreeSet<QueueId> {
        let led = self.queues.iter();
        led.filter(|(_, o)| matches!(o, Owned::Quorum(q) if q.leads()))
            .map(|(id, _)| *id)
            .collect()
    }

    /// Of a group that is led here.
    pub fn led_status(&self, queue: QueueId) -> Option<GroupStatus> {
        match self.queues.get(&queue)? {
            Owned::Quorum(q) if q.leads() => {
                let status = self.host.status(GroupId(queue.0))?;
                status.is_leader.then_some(status)
            }
            _ => None,
        }
    }

    pub fn has_replica(&self, queue: QueueId) -> bool {
        self.host.has(GroupId(queue.0))
    }

    /// Hands a queue that is led here to another member that is up.
    pub fn hand_over(&mut self, queue: QueueId, to: NodeId) {
        let able = |s: &GroupStatus| s.membership.voters.contains(&to) && s.active.contains(&to);
        if to != self.me && self.led_status(queue).as_ref().is_some_and(able) {
            self.membership_step(GroupId(queue.0), Step::TransferTo(to));
        }
    }

    /// Of a queue that is led here: whether `node` is out of it for good.
    pub fn departure(&self, queue: QueueId, node: NodeId) -> Option<Departure> {
        self.host.departure(GroupId(queue.0), node)
    }

    /// The leader says that this node's replica is not needed. False when it has to stay for now; otherwise it goes soon,
    /// see [`Owners::has_replica`] and [`Owners::departed`].
    pub fn depart(&mut self, queue: QueueId, told: Departure) -> bool {
        self.host.depart(GroupId(queue.0), told)
    }

    /// The replica has gone, and what was made of it goes too.
    pub fn departed(&mut self, queue: QueueId) {
        self.queues.remove(&queue);
        self.forget_traces(queue);
    }

    /// What this node's replica tells of itself.
    pub fn tell_replica(&self, queue: QueueId) -> Told {
        let mut told = Told::default();
        let Some(status) = self.host.status(GroupId(queue.0)) else {
            return told;
        };
        if status.is_leader {
            let members = &status.membership;
            members.voters.iter().for_each(|n| told.votes.add(*n, true));
            let learners = members.learners.iter();
            learners.for_each(|n| told.votes.add(*n, false));
        }
        told.replica = Some(ReplicaStatus {
            is_leader: status.is_leader,
            is_candidate: status.is_candidate,
            term: status.term,
            last_index: status.last_index,
            written: status.persisted,
            applied: status.applied,
            commit: status.commit,
            checkpoint: status.checkpoint,
        });
        told
    }

    /// Whether the metadata group is led here and could be elsewhere.
    pub fn metadata_is_movable(&self, peers: &Peers, avoid: &[NodeId]) -> bool {
        let led = self.metadata_status().filter(|s| s.is_leader);
        led.is_some_and(|s| successor(self.me, &s, peers, avoid).is_some())
    }

    pub fn membership_step(&mut self, group: GroupId, step: Step) {
        let done = match step {
            Step::Change(change) => self.host.change_membership(group, change),
            Step::TransferTo(node) => self.host.transfer_leader(group, node),
            Step::Wait | Step::Done => return,
        };
        if let Err(error) = done {
            tracing::debug!(event = "membership_step_refused", group = group.0, ?step, %error);
        }
    }

    pub fn stats(&self, only: Option<QueueId>) -> Vec<OwnerStats> {
        let mut all: Vec<OwnerStats> = match only {
            Some(id) => self
                .queues
                .get(&id)
                .and_then(|o| self.stats_of(id, o))
                .into_iter()
                .collect(),
            None => self
                .queues
                .iter()
                .filter_map(|(id, o)| self.stats_of(*id, o))
                .collect(),
        };
        all.sort_by_key(|s| s.queue);
        all
    }

    /// Of queues that are led or live here.
    fn stats_of(&self, queue: QueueId, owned: &Owned) -> Option<OwnerStats> {
        Some(match owned {
            Owned::Classic(classic) => OwnerStats {
                queue,
                members: vec![],
                online: vec![],
                stats: classic.queue.stats(),
                counters: classic.queue.counters(),
            },
            Owned::Quorum(quorum) if quorum.leads() => {
                let status = self.host.status(GroupId(queue.0))?;
                OwnerStats {
                    queue,
                    // Who has a vote: one that still catches up does not count yet.
                    members: status.membership.voters,
                    online: status.active,
                    stats: quorum.stats(),
                    counters: quorum.counters(),
                }
            }
            Owned::Quorum(_) => return None,
        })
    }

    /// Of queues that are led or live here, together.
    pub fn totals(&self) -> QueueTotals {
        let mut totals = QueueTotals::default();
        for owned in self.queues.values() {
            match owned {
                Owned::Classic(classic) => totals.add(&classic.queue.stats()),
                Owned::Quorum(quorum) if quorum.leads() => totals.add(&quorum.stats()),
                Owned::Quorum(_) => {}
            }
        }
        totals
    }

    /// Of queues that are led or live here, by queue.
    pub fn consumers(&self) -> Vec<(QueueId, ConsumerInfo)> {
        let listed = self.queues.iter().map(|(id, owned)| match owned {
            Owned::Classic(classic) => (*id, classic.queue.consumers()),
            Owned::Quorum(quorum) if quorum.leads() => (*id, quorum.consumers()),
            Owned::Quorum(_) => (*id, Vec::new()),
        });
        let mut all: Vec<_> = listed
            .flat_map(|(id, consumers)| consumers.into_iter().map(move |c| (id, c)))
            .collect();
        all.sort_by_key(|(id, _)| *id);
        all
    }

    /// Groups led here that another member, which is up, could lead.
    pub fn leaders_to_move(&self, peers: &Peers) -> usize {
        self.movable(peers, &[]).len()
    }

    fn movable(&self, peers: &Peers, avoid: &[NodeId]) -> Vec<(GroupId, NodeId)> {
        let queues = self
            .led_groups()
            .into_iter()
            .map(|(id, status)| (GroupId(id.0), status));
        let metadata = self
            .metadata_status()
            .filter(|s| s.is_leader)
            .map(|s| (METADATA, s));
        let all = metadata.into_iter().chain(queues);
        all.filter_map(|(group, status)| Some((group, successor(self.me, &status, peers, avoid)?)))
            .collect()
    }

    pub fn move_leaders(&mut self, peers: &Peers, avoid: &[NodeId]) {
        for (group, to) in self.movable(peers, avoid) {
            self.membership_step(group, Step::TransferTo(to));
        }
    }

    /// When the host wants to be told of time; None while all its groups sleep.
    pub fn host_wake(&self) -> Option<Time> {
        self.host.wake_at()
    }

    /// For checks: of each replica of a quorum queue here, how far it has applied and a number for its state.
    pub fn digests(&self) -> Vec<(QueueId, u64, u64)> {
        let quorum = self.queues.iter().filter_map(|(id, owned)| match owned {
            Owned::Quorum(quorum) => Some((*id, quorum.machine())),
            Owned::Classic(_) => None,
        });
        let mut all: Vec<_> = quorum
            .map(|(id, m)| (id, m.applied(), m.digest()))
            .collect();
        all.sort_unstable();
        all
    }

    /// Replicas that wait for their queue to show in the tree.
    pub fn recovering(&self) -> bool {
        !self.held.is_empty()
    }
}

/// The voter with the most of the log among those that are up; ties go by group term so that leaders spread.
fn successor(me: NodeId, status: &GroupStatus, peers: &Peers, avoid: &[NodeId]) -> Option<NodeId> {
    let able = |n: &NodeId| {
        *n != me && status.membership.voters.contains(n) && peers.is_up(*n) && !avoid.contains(n)
    };
    let best = status
        .matched
        .iter()
        .filter(|(n, _)| able(n))
        .map(|(_, matched)| *matched)
        .max()?;
    let mut ahead: Vec<NodeId> = status
        .matched
        .iter()
        .filter(|(n, m)| able(n) && *m == best)
        .map(|(n, _)| *n)
        .collect();
    ahead.sort_unstable();
    let turn = status.term as usize % ahead.len().max(1);
    ahead.get(turn).copied()
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
fn label(record: &QueueRecord) -> metadata::Name {
    format!("queue '{}' in vhost '{}'", record.name, record.vhost).into()
}
