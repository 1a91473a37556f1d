//! The thread that runs storage jobs: segments, checkpoints, deletions.

use consensus::{JobId, JobLane, JobResult, StorageJob};
use env::Disk;
use reactor::{Receiver, Sender, ShardMessage, StorageMessage, ThreadWaker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::Duration;

/// Free space that large jobs must leave for the log and for small jobs: a checkpoint is small and
/// frees more than it writes.
const RESERVE: u64 = 8 << 20;

const IDLE: Duration = Duration::from_secs(60);

/// Threads for uploads to an object store. Each has one part of a segment in memory.
pub const UPLOAD_THREADS: usize = 2;
/// Threads for reads of an object store. Each has one part of a segment in memory.
pub const FETCH_THREADS: usize = 4;

struct RemoteJob {
    shard: usize,
    id: JobId,
    job: Box<dyn StorageJob>,
}

/// Threads for jobs on an object store, so that a slow store delays neither local storage nor reads behind uploads.
pub struct RemoteThreads {
    uploads: mpsc::Sender<RemoteJob>,
    fetches: mpsc::Sender<RemoteJob>,
    done: mpsc::Receiver<(usize, JobId, JobResult)>,
}

impl RemoteThreads {
    /// Starts the threads. They end with their last job after this is dropped. `wake` wakes the storage thread, which
    /// passes the results on.
    ///
    /// # Errors
    ///
    /// If a thread cannot be started.
    pub fn start(disk: &Arc<dyn Disk>, wake: &Arc<ThreadWaker>) -> std::io::Result<RemoteThreads> {
        let (results, done) = mpsc::channel();
        let lane = |name: &str, threads: usize| {
            let (sender, jobs) = mpsc::channel::<RemoteJob>();
            let jobs = Arc::new(Mutex::new(jobs));
            for _ in 0..threads {
                let (disk, wake, jobs) = (disk.clone(), wake.clone(), jobs.clone());
                let results = results.clone();
                let body = move || loop {
                    let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(RemoteJob { shard, id, job }) = next else {
                        return;
                    };
                    if results.send((shard, id, job.run(&*disk))).is_err() {
                        return;
                    }
                    wake.wake();
                };
                std::thread::Builder::new()
                    .name(name.to_owned())
                    .spawn(body)?;
            }
            Ok::<_, std::io::Error>(sender)
        };
        Ok(RemoteThreads {
            uploads: lane("tier-upload", UPLOAD_THREADS)?,
            fetches: lane("tier-fetch", FETCH_THREADS)?,
            done,
        })
    }

    /// Hands a job over. Returns it if the threads have ended.
    fn send(&self, lane: JobLane, job: RemoteJob) -> Result<(), RemoteJob> {
        let lane = match lane {
            JobLane::Fetch => &self.fetches,
            JobLane::Storage | JobLane::Upload => &self.uploads,
        };
        lane.send(job).map_err(|refused| refused.0)
    }
}

/// A thread that runs storage jobs of shards.
pub struct JobThread {
    disk: Arc<dyn Disk>,
    rings: Vec<Receiver<StorageMessage>>,
    shards: Vec<Sender<ShardMessage>>,
    /// In bytes; see [`RESERVE`].
    reserve: u64,
    /// The last job that writes did not find enough space.
    is_short_of_space: bool,
    /// None without an object store.
    remote: Option<RemoteThreads>,
}

impl JobThread {
    /// `rings` and `shards` are indexed by shard.
    pub fn new(
        disk: Arc<dyn Disk>,
        rings: Vec<Receiver<StorageMessage>>,
        shards: Vec<Sender<ShardMessage>>,
    ) -> JobThread {
        JobThread {
            disk,
            rings,
            shards,
            reserve: RESERVE,
            is_short_of_space: false,
            remote: None,
        }
    }

    /// Has jobs on an object store run by these threads.
    pub fn set_remote(&mut self, remote: RemoteThreads) {
        self.remote = Some(remote);
    }

    /// Runs until `stop` is set. Pending jobs are repeated after the next start.
    pub fn run(mut self, wake: &Arc<ThreadWaker>, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            if self.turn() {
                wake.begin_turn();
                continue;
            }
            let backlog = self.shards.iter().any(|s| s.backlog() > 0);
            wake.wait(match backlog {
                true => Duration::from_millis(1),
                false => IDLE,
            });
        }
    }

    /// Runs one job of each shard. Returns true if there was any.
    fn turn(&mut self) -> bool {
        let mut any = self.pass_on_remote_results();
        for shard in 0..self.rings.len() {
            let Some(sender) = self.shards.get_mut(shard) else {
                continue;
            };
            sender.flush();
            let Some(StorageMessage { id, job }) =
                self.rings.get_mut(shard).and_then(Receiver::receive)
            else {
                continue;
            };
            any = true;
            let lane = job.lane();
            if lane != JobLane::Storage {
                self.start_remote(lane, RemoteJob { shard, id, job });
                continue;
            }
            let result = match self.has_space(job.space()) {
                true => job.run(&*self.disk),
                false => job.refuse(),
            };
            self.answer(shard, id, result);
        }
        any
    }

    fn start_remote(&mut self, lane: JobLane, job: RemoteJob) {
        let refused = match &self.remote {
            Some(threads) => threads.send(lane, job).err(),
            None => Some(job),
        };
        if let Some(RemoteJob { shard, id, job }) = refused {
            self.answer(shard, id, job.refuse());
        }
    }

    fn pass_on_remote_results(&mut self) -> bool {
        let mut any = false;
        while let Some(Ok((shard, id, result))) = self.remote.as_ref().map(|r| r.done.try_recv()) {
            any = true;
            self.answer(shard, id, result);
        }
        any
    }

    fn answer(&mut self, shard: usize, id: JobId, result: JobResult) {
        if let Err(error) = &result {
            tracing::error!(event = "storage.job_failed", %error);
        }
        if let Some(sender) = self.shards.get_mut(shard) {
            sender.send(ShardMessage::JobDone { id, result });
            sender.flush();
        }
    }

    /// Returns true if there is space for a job that writes `space` bytes.
    fn has_space(&mut self, space: u64) -> bool {
        if space == 0 {
            return true;
        }
        let needed = match space <= self.reserve {
            true => space,
            false => space.saturating_add(self.reserve),
        };
        // If free space is unknown, run the job: it reports its own failure.
        let is_short_of_space = self.disk.available().is_ok_and(|free| free < needed);
        if is_short_of_space != self.is_short_of_space {
            self.is_short_of_space = is_short_of_space;
            if is_short_of_space {
                tracing::warn!(event = "storage.jobs_wait_for_space", needed);
            } else {
                tracing::info!(event = "storage.jobs_have_space");
            }
        }
        !is_short_of_space
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use env::sim::SimDisk;

    #[derive(Debug)]
    struct CreateFile(&'static str, u64);

    impl StorageJob for CreateFile {
        fn space(&self) -> u64 {
            self.1
        }

        fn refuse(self: Box<Self>) -> JobResult {
            Ok(Box::new("refused"))
        }

        fn run(self: Box<Self>, disk: &dyn Disk) -> JobResult {
            let file = disk.create(self.0).map_err(|e| consensus::JobError {
                what: self.0.to_owned(),
                error: e.to_string(),
            })?;
            drop(file);
            Ok(Box::new(self.0))
        }
    }

    struct TestThread {
        disk: SimDisk,
        thread: JobThread,
        to: Sender<StorageMessage>,
        answers: Receiver<ShardMessage>,
    }

    impl TestThread {
        fn new() -> TestThread {
            let disk = SimDisk::new();
            let wake = Arc::new(ThreadWaker::for_thread());
            let (to, ring) = reactor::ring(8, wake.clone());
            let (shard, answers) = reactor::ring(8, wake);
            TestThread {
                thread: JobThread::new(Arc::new(disk.clone()), vec![ring], vec![shard]),
                disk,
                to,
                answers,
            }
        }

        /// Runs a job that writes `space` bytes to `file` with `free` bytes available, and returns
        /// its result.
        fn run(&mut self, file: &'static str, space: u64, free: u64) -> Result<String, String> {
            self.disk.set_capacity(Some(free));
            let job = Box::new(CreateFile(file, space));
            self.to.send(StorageMessage { id: JobId(1), job });
            assert!(self.thread.turn());
            let Some(ShardMessage::JobDone { result, .. }) = self.answers.receive() else {
                return Err("no answer".to_owned());
            };
            let text = result.map_err(|e| e.to_string())?;
            let text = text.downcast::<&'static str>();
            text.map(|s| (*s).to_owned())
                .map_err(|_| "what?".to_owned())
        }
    }

    #[test]
    fn large_jobs_leave_space_for_small_ones() {
        let mut rig = TestThread::new();
        let refused = Ok("refused".to_owned());
        assert_eq!(rig.run("a", RESERVE + 1, RESERVE * 2), refused);
        assert_eq!(rig.run("b", RESERVE / 2, RESERVE / 2 - 1), refused);
        assert_eq!(rig.run("c", RESERVE / 2, RESERVE / 2), Ok("c".to_owned()));
        assert_eq!(rig.run("d", 0, 1), Ok("d".to_owned()));
        let much = RESERVE + 1;
        assert_eq!(rig.run("e", much, much + RESERVE), Ok("e".to_owned()));
        assert!(!rig.thread.turn());
    }

    #[test]
    fn failed_job_is_reported() {
        let mut rig = TestThread::new();
        assert_eq!(rig.run("a", 1, 100), Ok("a".to_owned()));
        let again = rig.run("a", 1, 100);
        assert!(again.is_err_and(|e| e.contains("a: ")));
    }

    /// A call on an object store that lasts until the test ends it.
    #[derive(Debug)]
    struct SlowUpload(mpsc::Receiver<()>);

    impl StorageJob for SlowUpload {
        fn space(&self) -> u64 {
            0
        }

        fn lane(&self) -> JobLane {
            JobLane::Upload
        }

        fn refuse(self: Box<Self>) -> JobResult {
            Ok(Box::new("refused"))
        }

        fn run(self: Box<Self>, _: &dyn Disk) -> JobResult {
            let ended = self.0.recv().is_ok();
            Ok(Box::new(if ended { "uploaded" } else { "abandoned" }))
        }
    }

    impl TestThread {
        fn answer(&mut self) -> Option<(JobId, &'static str)> {
            match self.answers.receive() {
                Some(ShardMessage::JobDone { id, result }) => {
                    let text = result.ok()?.downcast::<&'static str>().ok()?;
                    Some((id, *text))
                }
                _ => None,
            }
        }
    }

    #[test]
    fn slow_upload_does_not_delay_local_jobs() {
        let mut rig = TestThread::new();
        let disk: Arc<dyn Disk> = Arc::new(rig.disk.clone());
        let wake = Arc::new(ThreadWaker::for_thread());
        let threads = RemoteThreads::start(&disk, &wake).expect("starts");
        rig.thread.set_remote(threads);
        let (end, ended) = mpsc::channel();
        let job = Box::new(SlowUpload(ended));
        rig.to.send(StorageMessage { id: JobId(1), job });
        assert!(rig.thread.turn());
        let job = Box::new(CreateFile("a", 0));
        rig.to.send(StorageMessage { id: JobId(2), job });
        assert!(rig.thread.turn());
        assert_eq!(rig.answer(), Some((JobId(2), "a")));
        end.send(()).expect("the job waits");
        let answer = loop {
            rig.thread.turn();
            if let Some(answer) = rig.answer() {
                break answer;
            }
            std::thread::yield_now();
        };
        assert_eq!(answer, (JobId(1), "uploaded"));
    }

    #[test]
    fn job_on_an_object_store_is_refused_without_one() {
        let mut rig = TestThread::new();
        let job = Box::new(SlowUpload(mpsc::channel().1));
        rig.to.send(StorageMessage { id: JobId(1), job });
        assert!(rig.thread.turn());
        assert_eq!(rig.answer(), Some((JobId(1), "refused")));
    }
}
