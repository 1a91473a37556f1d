//! Group commit: what a message costs until it is durable, on a node alone, against the number of Raft groups that share the
//! log and the size of the bodies. A shard's thread with the Raft host, the log's thread and a thread for storage jobs, on
//! the real disk, as in a node; each message is a proposal of its own, the groups in turn.
//!
//! `group-commit DIRECTORY [FILE.json]`: the directory must not be there; it is removed at the end.
//!
//! Processor time is each thread's own (Linux's schedstat). The last column compares with the disk alone: as many bytes
//! written to one file with as many syncs, right afterwards.

use bytes::Bytes;
use consensus::{GroupId, Host, HostConfig, HostLimits, HostOutput, JobId, JobResult, Membership};
use consensus::{ProposeError, RaftHost, StorageJob, WalToken};
use env::real::{RealClock, RealDisk};
use env::{Clock, Disk, Incarnation, NodeId};
use serde::Serialize;
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;
use wal::{Record, Wal, WalConfig, WalError, Writer};

const NODE: NodeId = NodeId(1);

/// Proposals that are not durable yet: messages, and bytes.
const WINDOW: u64 = 10_000;
const WINDOW_BYTES: u64 = 16 << 20;

#[derive(Serialize)]
struct Row {
    groups: u64,
    body_bytes: usize,
    messages: u64,
    syncs: u64,
    messages_per_sync: f64,
    /// Processor seconds per million messages.
    shard_cpu: f64,
    log_cpu: f64,
    jobs_cpu: f64,
    /// Bytes in the log for each byte of body.
    log_bytes_per_message: f64,
    seconds: f64,
    /// Of the disk alone, with the same bytes and syncs.
    disk_seconds: f64,
}

enum Told {
    Durable(WalToken),
    Rolled(u64),
    Done(JobId, JobResult),
}

enum ToLog {
    Append(WalToken, Vec<Record>),
    Free(u64),
    /// From here on it is counted.
    Count,
}

/// What a thread came to.
#[derive(Default)]
struct Spent {
    cpu: Duration,
    syncs: u64,
    bytes: u64,
}

fn cpu() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let first = text.split(' ').next().and_then(|n| n.parse().ok());
    Duration::from_nanos(first.unwrap_or(0))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments
        .next()
        .ok_or("usage: group-commit DIRECTORY [FILE.json]")?;
    std::fs::create_dir(&directory)?;
    // After an error threads may still write there; the next run says that it is in the way.
    let rows = all(&directory)?;
    std::fs::remove_dir_all(&directory)?;
    if let Some(file) = arguments.next() {
        std::fs::write(file, serde_json::to_string_pretty(&rows)?)?;
    }
    Ok(())
}

fn all(directory: &str) -> Result<Vec<Row>, Box<dyn Error>> {
    println!(
        "{:>7} {:>7} {:>9} {:>10} {:>10} {:>10} {:>10} {:>12} {:>10}",
        "groups",
        "body B",
        "messages",
        "per sync",
        "shard CPU",
        "log CPU",
        "jobs CPU",
        "B logged",
        "time/disk"
    );
    let mut rows = Vec::new();
    for (body, messages) in [(12, 1_000_000), (1 << 10, 400_000), (64 << 10, 10_000)] {
        for groups in [1, 100, 10_000] {
            let place = format!("{directory}/{groups}-{body}");
            let row = measure(&place, groups, body, messages)?;
            std::fs::remove_dir_all(&place)?;
            println!(
                "{:>7} {:>7} {:>9} {:>10.0} {:>10.2} {:>10.2} {:>10.2} {:>12.0} {:>10.2}",
                row.groups,
                row.body_bytes,
                row.messages,
                row.messages_per_sync,
                row.shard_cpu,
                row.log_cpu,
                row.jobs_cpu,
                row.log_bytes_per_message,
                row.seconds / row.disk_seconds,
            );
            rows.push(row);
        }
    }
    println!("CPU in seconds per million messages");
    Ok(rows)
}

fn measure(place: &str, groups: u64, body: usize, messages: u64) -> Result<Row, Box<dyn Error>> {
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(place)?);
    let clock = RealClock::new();
    let (wal, _) = Wal::open(Arc::clone(&disk), WalConfig::new(NODE, 1))?;
    let (told, inbox) = mpsc::channel();
    let (to_log, log_inbox) = mpsc::channel();
    let (to_jobs, jobs_inbox) = mpsc::channel();
    let log = {
        let told = told.clone();
        std::thread::spawn(move || run_log(Writer::new(wal), &log_inbox, &told))
    };
    let jobs = {
        let disk = Arc::clone(&disk);
        std::thread::spawn(move || run_jobs(&*disk, &jobs_inbox, &told))
    };
    let mut shard = Shard::new(Arc::clone(&disk), to_log, to_jobs, inbox)?;
    shard.found(groups, &clock)?;
    let began = clock.now();
    let before = cpu();
    shard.publish(groups, &Bytes::from(vec![7; body]), messages, &clock)?;
    let shard_cpu = cpu().saturating_sub(before);
    let seconds = clock.now().since(began).as_secs_f64();
    drop(shard);
    let log = log.join().map_err(|_| "the log's thread panicked")??;
    let jobs = jobs.join().map_err(|_| "the jobs' thread panicked")?;
    let millions = messages as f64 / 1e6;
    Ok(Row {
        groups,
        body_bytes: body,
        messages,
        syncs: log.syncs,
        messages_per_sync: messages as f64 / log.syncs as f64,
        shard_cpu: shard_cpu.as_secs_f64() / millions,
        log_cpu: log.cpu.as_secs_f64() / millions,
        jobs_cpu: jobs.as_secs_f64() / millions,
        log_bytes_per_message: log.bytes as f64 / messages as f64,
        seconds,
        disk_seconds: disk_alone(&*disk, &clock, &log)?,
    })
}

/// One sync for all that came meanwhile, as in a node.
fn run_log(
    mut writer: Writer<WalToken>,
    inbox: &Receiver<ToLog>,
    told: &Sender<Told>,
) -> Result<Spent, WalError> {
    let mut spent = Spent::default();
    let mut durable = Vec::new();
    // The founding of the groups is not counted.
    let mut counted = false;
    let mut before = cpu();
    while let Ok(first) = inbox.recv() {
        for message in std::iter::once(first).chain(inbox.try_iter()) {
            match message {
                ToLog::Append(token, records) => writer.push(token, records),
                ToLog::Count => (counted, before) = (true, cpu()),
                ToLog::Free(up_to) => writer.wal().delete_through(up_to)?,
            }
        }
        while !writer.is_idle() {
            let queued = writer.queued_bytes();
            let progress = writer.step(&mut durable)?;
            if counted {
                spent.syncs += 1;
                spent.bytes += queued - writer.queued_bytes();
            }
            if let Some(rolled) = progress.rolled {
                let _ = told.send(Told::Rolled(rolled.file));
            }
            if let Some(newest) = durable.drain(..).next_back() {
                let _ = told.send(Told::Durable(newest));
            }
        }
    }
    spent.cpu = cpu().saturating_sub(before);
    Ok(spent)
}

fn run_jobs(
    disk: &dyn Disk,
    inbox: &Receiver<(JobId, Box<dyn StorageJob>)>,
    told: &Sender<Told>,
) -> Duration {
    let before = cpu();
    for (id, job) in inbox {
        let result = job.run(disk);
        let _ = told.send(Told::Done(id, result));
    }
    cpu().saturating_sub(before)
}

struct Shard {
    host: Host,
    to_log: Sender<ToLog>,
    to_jobs: Sender<(JobId, Box<dyn StorageJob>)>,
    inbox: Receiver<Told>,
    out: Vec<HostOutput>,
    committed: u64,
    led: u64,
    applied: BTreeMap<GroupId, u64>,
}

impl Shard {
    fn new(
        disk: Arc<dyn Disk>,
        to_log: Sender<ToLog>,
        to_jobs: Sender<(JobId, Box<dyn StorageJob>)>,
        inbox: Receiver<Told>,
    ) -> Result<Shard, Box<dyn Error>> {
        let config = HostConfig {
            node: NODE,
            incarnation: Incarnation(1),
            shards: 1,
            shard: 0,
            seed: 1,
            limits: HostLimits::default(),
        };
        Ok(Shard {
            host: Host::new(config, disk, BTreeMap::new())?,
            to_log,
            to_jobs,
            inbox,
            out: Vec::new(),
            committed: 0,
            led: 0,
            applied: BTreeMap::new(),
        })
    }

    /// Groups of one member, all led.
    fn found(&mut self, groups: u64, clock: &RealClock) -> Result<(), Box<dyn Error>> {
        let membership = Membership {
            voters: vec![NODE],
            learners: Vec::new(),
        };
        self.host.tick(clock.now());
        for n in 0..groups {
            self.host.create(group(n), &membership);
        }
        self.turn(clock)?;
        while self.led < groups {
            self.wait(clock)?;
        }
        self.to_log.send(ToLog::Count)?;
        Ok(())
    }

    fn publish(
        &mut self,
        groups: u64,
        body: &Bytes,
        messages: u64,
        clock: &RealClock,
    ) -> Result<(), Box<dyn Error>> {
        let window = WINDOW.min(WINDOW_BYTES / body.len() as u64).max(1);
        let mut sent = 0;
        while self.committed < messages {
            // What a turn of a busy shard brings; see it as ten clients that send so many at a time.
            let room = window - (sent - self.committed);
            let mut held_off = false;
            for _ in 0..room.min(window / 10).min(messages - sent) {
                match self.host.propose(group(sent % groups), body.clone()) {
                    Ok(()) => sent += 1,
                    // The log's memory is full: jobs move it to segments.
                    Err(ProposeError::Overloaded) => {
                        held_off = true;
                        break;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
            self.turn(clock)?;
            if held_off || sent == messages || sent - self.committed >= window {
                self.wait(clock)?;
            }
        }
        Ok(())
    }

    /// Until something is told, or a tick is due.
    fn wait(&mut self, clock: &RealClock) -> Result<(), Box<dyn Error>> {
        let now = clock.now();
        let tick = self.host.wake_at().map(|at| at.since(now));
        match self
            .inbox
            .recv_timeout(tick.unwrap_or(Duration::from_secs(60)))
        {
            Ok(told) => self.hear(told),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(error) => return Err(error.into()),
        }
        self.turn(clock)
    }

    fn hear(&mut self, told: Told) {
        match told {
            Told::Durable(token) => self.host.durable(token),
            Told::Rolled(file) => self.host.wal_rolled(file),
            Told::Done(id, result) => self.host.job_done(id, result),
        }
    }

    fn turn(&mut self, clock: &RealClock) -> Result<(), Box<dyn Error>> {
        while let Ok(told) = self.inbox.try_recv() {
            self.hear(told);
        }
        self.host.tick(clock.now());
        let mut out = std::mem::take(&mut self.out);
        self.host.poll(&mut out);
        for output in out.drain(..) {
            self.carry_out(output)?;
        }
        self.out = out;
        Ok(())
    }

    fn carry_out(&mut self, output: HostOutput) -> Result<(), Box<dyn Error>> {
        match output {
            HostOutput::Append { token, records } => {
                self.to_log.send(ToLog::Append(token, records))?
            }
            HostOutput::Job { id, job } => self.to_jobs.send((id, job))?,
            HostOutput::WalFree { up_to } => self.to_log.send(ToLog::Free(up_to))?,
            HostOutput::Committed { group, entries } => {
                self.committed += entries.len() as u64;
                if let Some(last) = entries.last() {
                    self.applied.insert(group, last.index);
                }
            }
            // As of a queue whose messages were all consumed.
            HostOutput::CheckpointDue { group } => {
                let index = self.applied.get(&group).copied().unwrap_or(0);
                self.host
                    .checkpoint(group, index, Bytes::new(), Default::default());
            }
            HostOutput::Leadership { is_leader, .. } => self.led += u64::from(is_leader),
            HostOutput::Failed { error, .. } => return Err(error.into()),
            HostOutput::Send { .. }
            | HostOutput::Restore { .. }
            | HostOutput::Membership { .. } => {}
        }
        Ok(())
    }
}

fn group(n: u64) -> GroupId {
    GroupId(n + 1)
}

/// The same bytes and syncs, and nothing else.
fn disk_alone(disk: &dyn Disk, clock: &RealClock, spent: &Spent) -> Result<f64, Box<dyn Error>> {
    const FILE: &str = "alone";
    /// As in the log: a file's space is there before it is written, and is used again.
    const SPACE: u64 = 64 << 20;
    let file = disk.create(FILE)?;
    file.allocate(SPACE)?;
    file.sync_data()?;
    let piece = vec![7; (spent.bytes / spent.syncs.max(1)).min(SPACE) as usize];
    let began = clock.now();
    let mut at = 0;
    for _ in 0..spent.syncs {
        if at + piece.len() as u64 > SPACE {
            at = 0;
        }
        file.write_at(at, &piece)?;
        file.sync_data()?;
        at += piece.len() as u64;
    }
    let took = clock.now().since(began).as_secs_f64();
    disk.remove(FILE)?;
    Ok(took)
}
