//! Looking at free disk space, at the process's memory and at the files of certificates.

use crate::alarms::{Alarms, Cause};
use crate::config::Config;
use crate::log_thread::KEEP_FREE;
use crate::machine;
use crate::node::most_connections;
use control::NodeResources;
use env::Disk;
use env::real::{OpenFiles, WriteBudget};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often.
pub(crate) const EVERY: Duration = Duration::from_secs(2);

/// Bytes that are written between two looks at the least: this much below its limit free space may be when the alarm comes,
/// and what the buffers of queues hold.
const LEAST_BUDGET: u64 = 1 << 20;

/// Looks between counts of open descriptors where the system does not tell their number.
const COUNT_EVERY: u32 = 8;

/// What the last look saw.
#[derive(Debug, Default)]
pub(crate) struct LastLook(Mutex<NodeResources>);

impl LastLook {
    pub fn resources(&self) -> NodeResources {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that may be written before the next look: a quarter of the space above the limit. So writers cannot use up that
/// space between two looks, however fast they are.
fn budget_before_look(free: u64, limit: u64) -> u64 {
    match free.checked_sub(limit) {
        // Publishers are blocked; what is written now frees space.
        None | Some(0) => u64::MAX,
        Some(margin) => (margin / 4).max(LEAST_BUDGET),
    }
}

pub(crate) struct Watch {
    seen: Arc<LastLook>,
    descriptors: Option<u64>,
    /// Those that were open at the last count, and how many looks ago that was.
    counted: (Option<u64>, u32),
    /// Connections that clients may have.
    connections: u64,
    thread_limit: Option<u64>,
    processors: u64,
    disk: Arc<dyn Disk>,
    files: Arc<OpenFiles>,
    writes: Arc<WriteBudget>,
    /// Calls failed for want of descriptors or memory.
    files_short: bool,
    disk_free_limit: u64,
    /// Bytes the process may use; None when nothing is known about the machine's memory.
    memory: Option<u64>,
    /// The share of it from which on the alarm is on.
    memory_watermark: f64,
    certificates: Vec<tls::Watched>,
}

impl Watch {
    pub fn new(
        disk: Arc<dyn Disk>,
        files: Arc<OpenFiles>,
        writes: Arc<WriteBudget>,
        config: &Config,
        certificates: Vec<tls::Watched>,
        seen: Arc<LastLook>,
    ) -> Watch {
        let descriptors = env::real::descriptor_limit().ok();
        Watch {
            seen,
            descriptors,
            counted: (None, COUNT_EVERY),
            connections: most_connections(config, descriptors),
            thread_limit: machine::thread_limit(),
            processors: machine::cpus().into(),
            disk,
            files,
            writes,
            files_short: false,
            disk_free_limit: config.disk_free_limit.max(KEEP_FREE),
            memory: machine::memory_limit(),
            memory_watermark: config.memory_watermark,
            certificates,
        }
    }

    /// From the next look on.
    pub fn set_memory_watermark(&mut self, share: f64) {
        tracing::info!(event = "memory.watermark_set", share);
        self.memory_watermark = share;
    }

    /// From the next look on.
    pub fn set_disk_free_limit(&mut self, bytes: u64) {
        tracing::info!(event = "disk.free_limit_set", bytes);
        self.disk_free_limit = bytes.max(KEEP_FREE);
    }

    /// Where they must be counted one by one that is done now and then.
    fn descriptors_used(&mut self) -> Option<u64> {
        if let Some(told) = machine::descriptors() {
            return Some(told);
        }
        let (counted, looks) = &mut self.counted;
        *looks += 1;
        if *looks >= COUNT_EVERY {
            *looks = 0;
            *counted = machine::count_descriptors();
        }
        *counted
    }

    /// Tells once when files cannot be opened for want of descriptors or memory, and once when that is over.
    fn look_at_files(&mut self) {
        let short = self.files.take_failures();
        if short == self.files_short {
            return;
        }
        self.files_short = short;
        let (limit, used) = (self.descriptors, self.descriptors_used());
        if short {
            tracing::error!(
                event = "storage.files_short",
                limit,
                used,
                "files cannot be opened for want of descriptors or memory: classic queues refuse requests until there \
                 are some. Raise the limit (ulimit -n, LimitNOFILE) or close connections"
            );
        } else {
            tracing::info!(event = "storage.files_enough", limit, used);
        }
    }

    pub fn look(&mut self, alarms: &Alarms) {
        self.look_at_files();
        let free = self.disk.available();
        match &free {
            Ok(free) => {
                self.writes
                    .set(budget_before_look(*free, self.disk_free_limit));
                alarms.set(Cause::LowDisk, *free < self.disk_free_limit);
            }
            Err(error) => tracing::warn!(event = "disk.free_space_unknown", %error),
        }
        // Precision beyond 2^52 bytes does not matter.
        let limit = self.memory.map(|all| all as f64 * self.memory_watermark);
        let used = machine::resident();
        if let (Some(limit), Some(used)) = (limit, used) {
            alarms.set(Cause::Memory, used as f64 > limit);
        }
        let seen = NodeResources {
            memory_used: used,
            memory_limit: limit.map(|bytes| bytes as u64),
            disk_free: free.ok(),
            disk_free_limit: Some(self.disk_free_limit),
            descriptors_used: self.descriptors_used(),
            descriptors: self.descriptors,
            files_short: self.files_short,
            connections: Some(self.connections),
            threads: machine::threads(),
            thread_limit: self.thread_limit,
            processors: Some(self.processors),
        };
        *self.seen.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        for certificates in &mut self.certificates {
            certificates.reload_if_changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fastest writers there can be: each look comes when the budget is spent, however little time has passed.
    #[test]
    fn writers_cannot_outrun_the_alarm() {
        let limit: u64 = 50 << 20;
        let mut free: u64 = 200 << 30;
        let mut looks = 0;
        while free >= limit {
            free -= budget_before_look(free, limit);
            looks += 1;
        }
        assert!(limit - free <= LEAST_BUDGET, "{} below", limit - free);
        assert!(looks < 200, "{looks}");
        assert_eq!(budget_before_look(free, limit), u64::MAX, "the alarm is on");
    }

    #[test]
    fn the_budget_reaches_the_disk_and_its_end_is_told() -> std::io::Result<()> {
        let dir = std::env::temp_dir().join(format!("posthorn-watch-{}", std::process::id()));
        let disk = env::real::RealDisk::open(&dir)?;
        let (told, looks) = std::sync::mpsc::channel();
        let budget = disk.write_budget();
        budget.on_spent(move || {
            let _ = told.send(());
        });
        let config = Config {
            disk_free_limit: disk.available()?.saturating_sub(8 << 20),
            ..Config::default()
        };
        let alarms = Alarms::new(Vec::new());
        let mut watch = Watch::new(
            Arc::new(disk.clone()),
            disk.open_files(),
            budget,
            &config,
            Vec::new(),
            Arc::default(),
        );
        watch.look(&alarms);
        let file = disk.create("classic")?;
        for at in 0..16 {
            file.write_at(at << 20, &vec![1; 1 << 20])?;
        }
        let asked = looks.try_iter().count();
        drop(file);
        std::fs::remove_dir_all(&dir)?;
        assert_eq!(asked, 1, "a look is asked for before 8 MiB are written");
        Ok(())
    }
}
