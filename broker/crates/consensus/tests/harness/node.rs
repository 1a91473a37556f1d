//! A node: a host, its log and its storage jobs on a simulated disk, and its state machines.

use super::{Machine, Oracle};
use consensus::{
    GroupId, GroupStatus, Host, HostConfig, HostLimits, HostOutput, JobId, Membership, RaftHost,
    RecoveryError, StorageJob, WalToken,
};
use env::sim::SimDisk;
use env::{Disk, Incarnation, NodeId, SeededRng, Time};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use wal::{Wal, WalConfig, WalError, Writer};

#[derive(Debug)]
#[allow(dead_code, reason = "printed if a start fails")]
pub enum Start {
    Wal(WalError),
    Recovery(RecoveryError),
}

pub struct Node {
    pub id: NodeId,
    pub disk: SimDisk,
    pub host: Option<Host>,
    pub incarnation: Incarnation,
    writer: Option<Writer<WalToken>>,
    jobs: VecDeque<(JobId, Box<dyn StorageJob>)>,
    pub machines: BTreeMap<GroupId, Machine>,
    /// Groups that the node creates at each start.
    pub groups: BTreeMap<GroupId, Membership>,
    pub members: BTreeMap<GroupId, Membership>,
    /// Percentage of turns in which the log and the jobs make progress.
    pub disk_speed: u64,
    pub max_file_bytes: u64,
    /// Supplies no checkpoints.
    pub skip_checkpoints: bool,
    pub freed: u64,
    /// Every job is refused for lack of space.
    pub refuse_jobs: bool,
}

impl Node {
    pub fn new(id: NodeId, disk: SimDisk) -> Node {
        Node {
            id,
            disk,
            host: None,
            incarnation: Incarnation(0),
            writer: None,
            jobs: VecDeque::new(),
            machines: BTreeMap::new(),
            groups: BTreeMap::new(),
            members: BTreeMap::new(),
            disk_speed: 60,
            max_file_bytes: 24 << 10,
            skip_checkpoints: false,
            freed: 0,
            refuse_jobs: false,
        }
    }

    pub fn start(&mut self, seed: u64, limits: HostLimits, now: Time) -> Result<(), Start> {
        self.incarnation = Incarnation(self.incarnation.0 + 1);
        let disk: Arc<dyn Disk> = Arc::new(self.disk.clone());
        let config = WalConfig {
            max_file_bytes: self.max_file_bytes,
            grow_bytes: 4096,
            ..WalConfig::new(self.id, seed)
        };
        let (wal, recovered) = Wal::open(Arc::clone(&disk), config).map_err(Start::Wal)?;
        let config = HostConfig {
            node: self.id,
            incarnation: self.incarnation,
            shards: 1,
            shard: 0,
            seed,
            limits,
        };
        self.machines.clear();
        self.jobs.clear();
        let host = Host::new(config, disk, recovered.groups).map_err(Start::Recovery)?;
        let host = self.host.insert(host);
        host.tick(now);
        if let Some(newest) = recovered.files.last() {
            host.wal_rolled(*newest);
        }
        for (group, membership) in &self.groups {
            host.create(*group, membership);
        }
        self.writer = Some(Writer::new(wal));
        Ok(())
    }

    pub fn crash(&mut self, rng: &mut SeededRng) {
        self.host = None;
        self.writer = None;
        self.jobs.clear();
        self.machines.clear();
        self.disk.crash(rng);
    }

    pub fn status(&self, group: GroupId) -> Option<GroupStatus> {
        self.host.as_ref()?.status(group)
    }

    /// Lets the disk make progress, and advances time.
    pub fn advance(&mut self, now: Time, rng: &mut SeededRng) {
        let (Some(host), Some(writer)) = (self.host.as_mut(), self.writer.as_mut()) else {
            return;
        };
        host.tick(now);
        if rng.chance(self.disk_speed, 100) && !writer.is_idle() {
            let mut durable = Vec::new();
            let progress = writer.step(&mut durable).expect("log write succeeds");
            if let Some(rolled) = progress.rolled {
                host.wal_rolled(rolled.file);
            }
            if let Some(token) = durable.last() {
                host.durable(*token);
            }
        }
        if rng.chance(self.disk_speed, 100)
            && let Some((id, job)) = self.jobs.pop_front()
        {
            let result = match self.refuse_jobs {
                true => job.refuse(),
                false => job.run(&self.disk),
            };
            if let Err(error) = &result {
                panic!("{error}");
            }
            host.job_done(id, result);
        }
    }

    pub fn poll(&mut self, out: &mut Vec<HostOutput>) {
        if let Some(host) = self.host.as_mut() {
            host.poll(out);
        }
    }

    pub fn carry_out(&mut self, output: HostOutput, oracle: &mut Oracle) {
        match output {
            HostOutput::Append { token, records } => {
                if let Some(writer) = self.writer.as_mut() {
                    writer.push(token, records);
                }
            }
            HostOutput::Committed { group, entries } => {
                let machine = self.machines.entry(group).or_default();
                for e in entries {
                    oracle.record_applied(group, e.index, &e.command);
                    machine.apply(e.index, &e.command);
                }
            }
            HostOutput::Restore {
                group,
                index,
                state,
            } => {
                oracle.restores += 1;
                let machine = self.machines.entry(group).or_default();
                assert!(index >= machine.index, "restored below {}", machine.index);
                machine.load(index, state);
            }
            HostOutput::Leadership {
                group,
                term,
                is_leader,
                ..
            } => {
                if is_leader {
                    oracle.record_leader(group, term, self.id);
                }
            }
            HostOutput::Membership { group, membership } => {
                self.members.insert(group, membership);
            }
            HostOutput::CheckpointDue { group } => {
                if !self.skip_checkpoints {
                    self.checkpoint(group);
                }
            }
            HostOutput::Job { id, job } => self.jobs.push_back((id, job)),
            HostOutput::WalFree { up_to } => {
                assert!(up_to > self.freed || self.freed == 0, "file freed twice");
                self.freed = up_to;
                if let Some(writer) = self.writer.as_mut() {
                    match writer.wal().delete_through(up_to) {
                        // The next deletion includes these files.
                        Err(error) if !error.is_fatal() => {}
                        other => other.expect("log files are deleted"),
                    }
                }
            }
            HostOutput::Send { .. } | HostOutput::Failed { .. } => {}
        }
    }

    pub fn checkpoint(&mut self, group: GroupId) {
        let machine = self.machines.entry(group).or_default();
        let (state, live) = machine.save();
        if let Some(host) = self.host.as_mut() {
            host.checkpoint(group, machine.index, state, live);
        }
    }

    /// Checks that every live entry can be read and is unchanged.
    pub fn check_live(&self, group: GroupId) {
        let (Some(host), Some(machine)) = (&self.host, self.machines.get(&group)) else {
            return;
        };
        for (index, number) in &machine.live {
            let command = host.read(group, *index);
            let command = command.unwrap_or_else(|e| panic!("{:?} entry {index}: {e}", self.id));
            assert_eq!(Machine::number(&command), *number);
        }
    }

    pub fn log_files(&mut self) -> usize {
        self.writer.as_mut().map_or(0, |w| w.wal().files().len())
    }
}
