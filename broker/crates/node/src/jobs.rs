//! The thread that runs storage jobs: segments, checkpoints, deletions.

use env::Disk;
use reactor::{Inbound, Receiver, Sender, ToJobs, Wake};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What large jobs leave free, for the log and for small jobs: a checkpoint is small and frees more than it takes.
const RESERVE: u64 = 8 << 20;

const IDLE: Duration = Duration::from_secs(60);

pub struct JobThread {
    disk: Arc<dyn Disk>,
    rings: Vec<Receiver<ToJobs>>,
    shards: Vec<Sender<Inbound>>,
    /// Bytes; see [`RESERVE`].
    reserve: u64,
    /// The last job with something to write found too little space.
    short: bool,
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
            short: false,
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
            wake.wait(match backlog {
                true => Duration::from_millis(1),
                false => IDLE,
            });
        }
    }

    /// One job of each shard. True when there was any.
    fn turn(&mut self) -> bool {
        let mut any = false;
        for shard in 0..self.rings.len() {
            let Some(sender) = self.shards.get_mut(shard) else {
                continue;
            };
            sender.flush();
            let Some(ToJobs { id, job }) = self.rings.get_mut(shard).and_then(Receiver::receive)
            else {
                continue;
            };
            any = true;
            let result = match self.fits(job.space()) {
                true => job.run(&*self.disk),
                false => job.refuse(),
            };
            if let Err(error) = &result {
                tracing::error!(event = "storage.job_failed", %error);
            }
            if let Some(sender) = self.shards.get_mut(shard) {
                sender.send(Inbound::JobDone { id, result });
                sender.flush();
            }
        }
        any
    }

    /// Whether a job that writes this much may begin.
    fn fits(&mut self, space: u64) -> bool {
        if space == 0 {
            return true;
        }
        let needed = match space <= self.reserve {
            true => space,
            false => space.saturating_add(self.reserve),
        };
        // Unknown is taken for enough: the job itself will tell.
        let short = self.disk.available().is_ok_and(|free| free < needed);
        if short != self.short {
            self.short = short;
            if short {
                tracing::warn!(event = "storage.jobs_wait_for_space", needed);
            } else {
                tracing::info!(event = "storage.jobs_have_space");
            }
        }
        !short
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use consensus::{JobId, JobResult, StorageJob};
    use env::sim::SimDisk;

    #[derive(Debug)]
    struct Touch(&'static str, u64);

    impl StorageJob for Touch {
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

    struct Rig {
        disk: SimDisk,
        thread: JobThread,
        to: Sender<ToJobs>,
        answers: Receiver<Inbound>,
    }

    impl Rig {
        fn new() -> Rig {
            let disk = SimDisk::new();
            let wake = Arc::new(Wake::for_thread());
            let (to, ring) = reactor::ring(8, wake.clone());
            let (shard, answers) = reactor::ring(8, wake);
            Rig {
                thread: JobThread::new(Arc::new(disk.clone()), vec![ring], vec![shard]),
                disk,
                to,
                answers,
            }
        }

        /// What comes of a job that writes `space` bytes to `file`, with so much free.
        fn run(&mut self, file: &'static str, space: u64, free: u64) -> Result<String, String> {
            self.disk.set_capacity(Some(free));
            let job = Box::new(Touch(file, space));
            self.to.send(ToJobs { id: JobId(1), job });
            assert!(self.thread.turn());
            let Some(Inbound::JobDone { result, .. }) = self.answers.receive() else {
                return Err("no answer".to_owned());
            };
            let said = result.map_err(|e| e.to_string())?;
            let said = said.downcast::<&'static str>();
            said.map(|s| (*s).to_owned())
                .map_err(|_| "what?".to_owned())
        }
    }

    #[test]
    fn jobs_leave_space_to_those_that_free_some() {
        let mut rig = Rig::new();
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
    fn a_failed_job_is_told() {
        let mut rig = Rig::new();
        assert_eq!(rig.run("a", 1, 100), Ok("a".to_owned()));
        let again = rig.run("a", 1, 100);
        assert!(again.is_err_and(|e| e.contains("a: ")));
    }
}
