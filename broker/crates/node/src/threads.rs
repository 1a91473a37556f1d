//! The threads of a node and the channels between them.

use crate::config::Config;
use crate::jobs::{JobThread, RemoteThreads};
use crate::link_tls::LinkTls;
use crate::links::{self, LinkParts, LinkStatus, LinkThread, StoreClusterRecord};
use crate::log_thread::{KEEP_FREE, LogDisk, LogThread};
use crate::peering::{Peering, PeeringConfig};
use control::{ConfirmTimings, DeliveryTimings, NodeTimings};
use env::{Clock, Disk};
use mio::Poll;
use reactor::{
    ClientListener, LoopConfig, LoopParts, LoopReport, Mailbox, MailboxInlet, Receiver, Sender,
    ShardLoop, ShardMessage, ThreadRings, ThreadWaker,
};
use shard::ShardDriver;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;
use wal::{Wal, Writer};

/// Capacity of a ring between two threads.
const RING: usize = 4096;

/// A notification from a thread to the node.
#[derive(Debug)]
pub enum ThreadNotification {
    /// Request to stop gracefully.
    Stop,
    /// The node now belongs to a cluster.
    Adopted,
    /// The node serves clients: it has the cluster's users and queues, and there is a metadata
    /// leader.
    Ready,
    /// The node does not serve clients yet, with the reason.
    NotReady(String),
    /// Enough was written that free disk space has to be checked again.
    DiskWritten,
    /// The disk of the log is full, or has space again.
    DiskFull(bool),
    /// Request to set the memory high watermark, as a share of memory, until the node restarts.
    MemoryWatermark(f64),
    /// Request to set the free disk space limit in bytes, until the node restarts.
    DiskFreeLimit(u64),
    /// Live settings have changed: the configuration that applies now.
    Reloaded(Box<Config>),
    /// Request to open the file of the audit log again.
    ReopenAuditLog,
    /// Load of the event loop of a shard.
    LoopReport(u16, LoopReport),
    /// A thread failed, with its error.
    Died(String),
}

/// Parts from which the threads are built.
pub(crate) struct ThreadParts {
    pub shards: u16,
    pub clock: Arc<dyn Clock + Send + Sync>,
    pub notices: mpsc::Sender<ThreadNotification>,
    pub timings: Arc<NodeTimings>,
    pub status: Arc<LinkStatus>,
    pub wal: Wal,
    /// The newest recovered log file; 0 if there is none.
    pub newest_file: u64,
    pub disk: Arc<dyn Disk>,
    /// The directory of `disk`, for log messages.
    pub directory: String,
    pub tls: Option<LinkTls>,
    pub listener: Option<TcpListener>,
    pub peering: PeeringConfig,
    pub persist: StoreClusterRecord,
    pub peer_buffer: usize,
    /// Sealed segments of streams go to an object store.
    pub has_object_store: bool,
}

/// A shard's channel ends, kept until its thread starts.
struct ShardChannels {
    poll: Poll,
    wake: Arc<ThreadWaker>,
    inlet: MailboxInlet,
    rings: Vec<Receiver<ShardMessage>>,
    links: ThreadRings,
}

pub(crate) struct Threads {
    timings: Arc<NodeTimings>,
    clock: Arc<dyn Clock + Send + Sync>,
    notices: mpsc::Sender<ThreadNotification>,
    ends: Vec<Option<ShardChannels>>,
    mailboxes: Vec<Mailbox>,
    shards: Vec<JoinHandle<()>>,
    status: Arc<LinkStatus>,
    links_wake: Arc<ThreadWaker>,
    links: Option<JoinHandle<()>>,
    stop_storage: Arc<AtomicBool>,
    storage_wakes: Vec<Arc<ThreadWaker>>,
    storage: Vec<JoinHandle<()>>,
}

/// Creates one ring for each shard, to or from another thread.
fn rings<T>(wakes: impl Iterator<Item = Arc<ThreadWaker>>) -> (Vec<Sender<T>>, Vec<Receiver<T>>) {
    wakes.map(|wake| reactor::ring(RING, wake)).unzip()
}

impl Threads {
    /// Connects all threads and starts them, except for the shards.
    pub(crate) fn start(wiring: ThreadParts) -> io::Result<Threads> {
        let count = usize::from(wiring.shards);
        let mut polls = Vec::new();
        for _ in 0..count {
            polls.push(ShardLoop::poll_and_wake()?);
        }
        let shard_wakes: Vec<Arc<ThreadWaker>> =
            polls.iter().map(|(_, wake)| wake.clone()).collect();
        let to_shards = || rings::<ShardMessage>(shard_wakes.iter().cloned());
        let log_wake = Arc::new(ThreadWaker::for_thread());
        let job_wake = Arc::new(ThreadWaker::for_thread());
        let (poll, links_wake) = links::poll_and_wake()?;

        let (wal_tx, wal_rx) = rings(std::iter::repeat_n(log_wake.clone(), count));
        let (job_tx, job_rx) = rings(std::iter::repeat_n(job_wake.clone(), count));
        let (peer_tx, peer_rx) = rings(std::iter::repeat_n(links_wake.clone(), count));
        let (mut from_wal_tx, from_wal_rx) = to_shards();
        let (from_jobs_tx, from_jobs_rx) = to_shards();
        let (from_peers_tx, from_peers_rx) = to_shards();
        if wiring.newest_file > 0 {
            for shard in &mut from_wal_tx {
                shard.send(ShardMessage::WalRolled {
                    file: wiring.newest_file,
                });
            }
        }

        let ins = from_wal_rx.into_iter().zip(from_jobs_rx).zip(from_peers_rx);
        let outs = wal_tx.into_iter().zip(job_tx).zip(peer_tx);
        let mut ends = Vec::new();
        let mut mailboxes = Vec::new();
        for (((poll, wake), ((a, b), c)), ((wal, jobs), peers)) in
            polls.into_iter().zip(ins).zip(outs)
        {
            let (mailbox, inlet) = reactor::mailbox(wake.clone());
            mailboxes.push(mailbox);
            let links = ThreadRings {
                wal,
                jobs,
                peers,
                shards: Vec::new(),
            };
            ends.push(ShardChannels {
                poll,
                wake,
                inlet,
                rings: vec![a, b, c],
                links,
            });
        }
        connect_shards(&mut ends, &shard_wakes);

        let mut threads = Threads::idle(&wiring, ends, mailboxes, links_wake.clone());
        threads.storage_wakes = vec![log_wake.clone(), job_wake.clone()];
        let notices = wiring.notices.clone();
        let space = LogDisk {
            disk: wiring.disk.clone(),
            directory: wiring.directory,
            keep_free: KEEP_FREE,
            on_full: Box::new(move |full| drop(notices.send(ThreadNotification::DiskFull(full)))),
        };
        let log = {
            let measured = (wiring.clock.clone(), wiring.timings.clone());
            LogThread::new(
                Writer::new(wiring.wal),
                wal_rx,
                from_wal_tx,
                space,
                measured,
            )
        };
        threads.start_log(log, log_wake)?;
        let remote = match wiring.has_object_store {
            true => Some(RemoteThreads::start(&wiring.disk, &job_wake)?),
            false => None,
        };
        let mut jobs = JobThread::new(wiring.disk, job_rx, from_jobs_tx);
        if let Some(remote) = remote {
            jobs.set_remote(remote);
        }
        threads.start_jobs(jobs, job_wake)?;
        let parts = LinkParts {
            peering: Peering::new(wiring.peering),
            clock: wiring.clock,
            poll,
            wake: links_wake,
            listener: wiring.listener,
            tls: wiring.tls,
            rings: peer_rx,
            shards: from_peers_tx,
            peer_buffer: wiring.peer_buffer,
            persist: persist_and_notify(wiring.persist, wiring.notices),
            status: wiring.status,
        };
        threads.start_links(LinkThread::new(parts)?)?;
        Ok(threads)
    }

    /// The state before any thread runs.
    fn idle(
        wiring: &ThreadParts,
        ends: Vec<ShardChannels>,
        mailboxes: Vec<Mailbox>,
        links_wake: Arc<ThreadWaker>,
    ) -> Threads {
        Threads {
            clock: wiring.clock.clone(),
            timings: wiring.timings.clone(),
            notices: wiring.notices.clone(),
            ends: ends.into_iter().map(Some).collect(),
            mailboxes,
            shards: Vec::new(),
            status: wiring.status.clone(),
            links_wake,
            links: None,
            stop_storage: Arc::new(AtomicBool::new(false)),
            storage_wakes: Vec::new(),
            storage: Vec::new(),
        }
    }

    fn start_log(&mut self, log: LogThread, wake: Arc<ThreadWaker>) -> io::Result<()> {
        let stop = self.stop_storage.clone();
        let handle = self.spawn("wal", move || {
            log.run(&wake, &stop).map_err(|e| e.to_string())
        })?;
        self.storage.push(handle);
        Ok(())
    }

    fn start_jobs(&mut self, jobs: JobThread, wake: Arc<ThreadWaker>) -> io::Result<()> {
        let stop = self.stop_storage.clone();
        let handle = self.spawn("storage", move || {
            jobs.run(&wake, &stop);
            Ok(())
        })?;
        self.storage.push(handle);
        Ok(())
    }

    fn start_links(&mut self, links: LinkThread) -> io::Result<()> {
        self.links = Some(self.spawn("links", move || links.run())?);
        Ok(())
    }

    /// The histograms of confirms that a shard fills.
    pub(crate) fn confirms_of(&self, shard: u16) -> Arc<ConfirmTimings> {
        self.timings.confirms_of(shard)
    }

    /// The latencies of deliveries that a shard fills.
    pub(crate) fn deliveries_of(&self, shard: u16) -> Arc<DeliveryTimings> {
        self.timings.deliveries_of(shard)
    }

    /// Starts a shard's thread. `make` creates its driver on that thread.
    pub(crate) fn start_shard(
        &mut self,
        index: u16,
        listeners: Vec<ClientListener>,
        config: LoopConfig,
        make: impl FnOnce() -> Result<Box<dyn ShardDriver>, String> + Send + 'static,
    ) -> io::Result<()> {
        let ends = self.ends.get_mut(usize::from(index)).and_then(Option::take);
        let ends = ends.ok_or_else(|| io::Error::other("no such shard"))?;
        let clock = self.clock.clone();
        let timings = (self.timings.clone(), index);
        let notices = self.notices.clone();
        let handle = self.spawn(&format!("shard-{index}"), move || {
            let parts = LoopParts {
                driver: make()?,
                config,
                clock,
                poll: ends.poll,
                wake: ends.wake,
                rings: ends.rings,
                mailbox: ends.inlet,
                links: ends.links,
                listeners,
                timings,
                report: Box::new(move |report| {
                    drop(notices.send(ThreadNotification::LoopReport(index, report)))
                }),
            };
            let shard = ShardLoop::new(parts).map_err(|e| e.to_string())?;
            shard.run().map_err(|e| e.to_string())
        })?;
        self.shards.push(handle);
        Ok(())
    }

    /// Spawns a thread whose failure stops the node.
    fn spawn(
        &self,
        name: &str,
        body: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let notices = self.notices.clone();
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                if let Err(text) = body() {
                    tracing::error!(event = "node.fatal", text);
                    let _ = notices.send(ThreadNotification::Died(text));
                }
            })
    }

    pub(crate) fn mailboxes(&self) -> Vec<Mailbox> {
        self.mailboxes.clone()
    }

    pub(crate) fn shut_down_shards(&self) {
        for mailbox in &self.mailboxes {
            mailbox.post_waiting(ShardMessage::ShutDown);
        }
    }

    /// Stops all threads: shards, then links, then storage. Threads that take longer than `timeout`
    /// in total are abandoned.
    pub(crate) fn stop(mut self, timeout: Duration) {
        let until = self.clock.now() + timeout;
        // Channel ends without a thread would keep their mailboxes open.
        self.ends.clear();
        for mailbox in &self.mailboxes {
            mailbox.post_waiting(ShardMessage::Stop);
        }
        for shard in std::mem::take(&mut self.shards) {
            self.join(shard, until);
        }
        self.status.stop();
        self.links_wake.wake();
        if let Some(links) = self.links.take() {
            self.join(links, until);
        }
        self.stop_storage.store(true, Ordering::Release);
        for wake in &self.storage_wakes {
            wake.wake();
        }
        for storage in std::mem::take(&mut self.storage) {
            self.join(storage, until);
        }
    }

    fn join(&self, thread: JoinHandle<()>, until: env::Time) {
        while !thread.is_finished() {
            if self.clock.now() > until + Duration::from_secs(2) {
                let name = thread.thread().name().unwrap_or_default();
                tracing::warn!(event = "node.thread_left", name);
                return;
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
        // A panic would have aborted the process.
        let _ = thread.join();
    }
}

/// Creates a ring from every shard to every other shard.
fn connect_shards(ends: &mut [ShardChannels], wakes: &[Arc<ThreadWaker>]) {
    for from in 0..ends.len() {
        let mut senders = Vec::new();
        for (to, wake) in wakes.iter().enumerate() {
            if from == to {
                senders.push(None);
                continue;
            }
            let (sender, receiver) = reactor::ring(RING, wake.clone());
            senders.push(Some(sender));
            if let Some(end) = ends.get_mut(to) {
                end.rings.push(receiver);
            }
        }
        if let Some(end) = ends.get_mut(from) {
            end.links.shards = senders;
        }
    }
}

/// Notifies the node after the record is durable.
fn persist_and_notify(
    mut persist: StoreClusterRecord,
    notices: mpsc::Sender<ThreadNotification>,
) -> StoreClusterRecord {
    Box::new(move |record| {
        persist(record)?;
        let _ = notices.send(ThreadNotification::Adopted);
        Ok(())
    })
}
