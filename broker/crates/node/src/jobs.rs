//! The thread that runs storage jobs: segments, checkpoints, deletions.

use env::Disk;
use reactor::{Inbound, Receiver, Sender, ToJobs, Wake};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A job that finds less space than this waits: a job that fails is the end of the node, a full disk must not be.
const RESERVE: u64 = 8 << 20;

const FULL_RETRY: Duration = Duration::from_millis(500);
const IDLE: Duration = Duration::from_secs(60);

pub struct JobThread {
    disk: Arc<dyn Disk>,
    rings: Vec<Receiver<ToJobs>>,
    shards: Vec<Sender<Inbound>>,
    /// Bytes that must be free before a job starts.
    reserve: u64,
    waiting: bool,
}

impl JobThread {
    /// `rings` and `shards` by shard index.
    pub fn new(
        disk: Arc<dyn Disk>,
        rings: Vec<Receiver<ToJobs>>,
        shards: Vec<Sender<Inbound>>,
    ) -> JobThread {
        JobThread {
            disk,
            rings,
            shards,
            reserve: RESERVE,
            waiting: false,
        }
    }

    /// Runs until `stop` is set; jobs that were not begun are done again after the next start.
    pub fn run(mut self, wake: &Arc<Wake>, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            if self.turn() {
                wake.begin_turn();
                continue;
            }
            let backlog = self.shards.iter().any(|s| s.backlog() > 0);
            wake.wait(match (backlog, self.waiting) {
                (true, _) => Duration::from_millis(1),
                (false, true) => FULL_RETRY,
                (false, false) => IDLE,
            });
        }
    }

    /// One job of each shard. True when there was any.
    fn turn(&mut self) -> bool {
        let mut any = false;
        for (ring, sender) in self.rings.iter_mut().zip(&mut self.shards) {
            sender.flush();
            if ring.is_empty() {
                continue;
            }
            // Unknown is taken for enough: the job itself will tell.
            let short = self.disk.available().is_ok_and(|free| free < self.reserve);
            if short != self.waiting {
                self.waiting = short;
                tracing::warn!(event = "storage.jobs_wait_for_space", waiting = short);
            }
            if short {
                return false;
            }
            if let Some(ToJobs { id, job }) = ring.receive() {
                any = true;
                let result = job.run(&*self.disk);
                if let Err(error) = &result {
                    tracing::error!(event = "storage.job_failed", %error);
                }
                sender.send(Inbound::JobDone { id, result });
                sender.flush();
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consensus::{JobId, JobResult, StorageJob};
    use env::sim::SimDisk;

    #[derive(Debug)]
    struct Touch(&'static str);

    impl StorageJob for Touch {
        fn run(self: Box<Self>, disk: &dyn Disk) -> JobResult {
            let file = disk.create(self.0).map_err(|e| consensus::JobError {
                what: self.0.to_owned(),
                error: e.to_string(),
            })?;
            drop(file);
            Ok(Box::new(self.0))
        }
    }

    #[test]
    fn runs_jobs_and_waits_for_space() {
        let disk = SimDisk::new();
        let wake = Arc::new(Wake::for_thread());
        let (mut to, ring) = reactor::ring(8, wake.clone());
        let (shard, mut answers) = reactor::ring(8, wake);
        let mut thread = JobThread::new(Arc::new(disk.clone()), vec![ring], vec![shard]);
        let ask = |id| ToJobs {
            id: JobId(id),
            job: Box::new(Touch("a")),
        };
        disk.set_capacity(Some(10));
        to.send(ask(1));
        assert!(!thread.turn());
        assert!(answers.receive().is_none());
        disk.set_capacity(None);
        assert!(thread.turn());
        assert!(matches!(
            answers.receive(),
            Some(Inbound::JobDone {
                id: JobId(1),
                result: Ok(_)
            })
        ));
        to.send(ask(2));
        assert!(thread.turn());
        assert!(matches!(
            answers.receive(),
            Some(Inbound::JobDone {
                id: JobId(2),
                result: Err(_)
            })
        ));
        assert!(!thread.turn());
    }
}
