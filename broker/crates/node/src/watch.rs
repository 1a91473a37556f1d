//! Periodic checks of free disk space, memory usage and certificate files.

use crate::alarms::{AlarmCause, Alarms};
use crate::config::Config;
use crate::log_thread::KEEP_FREE;
use crate::machine;
use crate::node::max_connections_of;
use control::NodeResources;
use env::Disk;
use env::real::{OpenFiles, WriteBudget};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Interval of the checks.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);

/// Minimum number of bytes written between two checks of free space. Free space may be this much
/// below its limit when the alarm is raised, plus the contents of queue buffers.
const MIN_WRITE_BUDGET: u64 = 1 << 20;

/// Number of checks between two counts of open descriptors, on kernels that do not report their
/// number.
const CHECKS_PER_COUNT: u32 = 8;

/// Results of the last check.
#[derive(Debug, Default)]
pub(crate) struct LastDiskCheck(Mutex<NodeResources>);

impl LastDiskCheck {
    pub(crate) fn resources(&self) -> NodeResources {
        let last = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        NodeResources {
            processor_time_ms: machine::processor_time_ms(),
            started_ms: machine::started_ms(),
            ..last
        }
    }
}

/// Number of bytes that may be written before the next check: a quarter of the space above the
/// limit. Writers cannot use up that space between two checks, however fast they are.
fn write_budget_until_next_check(free: u64, limit: u64) -> u64 {
    match free.checked_sub(limit) {
        // Publishers are blocked; current writes free space.
        None | Some(0) => u64::MAX,
        Some(margin) => (margin / 4).max(MIN_WRITE_BUDGET),
    }
}

pub(crate) struct ResourceMonitor {
    last_look: Arc<LastDiskCheck>,
    descriptors: Option<u64>,
    /// Number of open descriptors at the last count, and how many checks ago that was.
    counted: (Option<u64>, u32),
    /// Maximum number of client connections.
    connections: u64,
    thread_limit: Option<u64>,
    processors: u64,
    disk: Arc<dyn Disk>,
    files: Arc<OpenFiles>,
    writes: Arc<WriteBudget>,
    /// Opening files failed for lack of descriptors or memory.
    is_short_of_files: bool,
    disk_free_limit: u64,
    /// Memory limit of the process in bytes; None if unknown.
    memory: Option<u64>,
    /// Memory high watermark, as a share of `memory`.
    memory_watermark: f64,
    certificates: Vec<tls::WatchedFiles>,
}

impl ResourceMonitor {
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        files: Arc<OpenFiles>,
        writes: Arc<WriteBudget>,
        config: &Config,
        certificates: Vec<tls::WatchedFiles>,
        last_look: Arc<LastDiskCheck>,
    ) -> ResourceMonitor {
        let descriptors = env::real::descriptor_limit().ok();
        ResourceMonitor {
            last_look,
            descriptors,
            counted: (None, CHECKS_PER_COUNT),
            connections: max_connections_of(config, descriptors),
            thread_limit: machine::thread_limit(),
            processors: machine::cpus().into(),
            disk,
            files,
            writes,
            is_short_of_files: false,
            disk_free_limit: config.disk_free_limit.max(KEEP_FREE),
            memory: machine::memory_limit(),
            memory_watermark: config.memory_watermark,
            certificates,
        }
    }

    /// Takes effect at the next check.
    pub(crate) fn set_memory_watermark(&mut self, share: f64) {
        tracing::info!(event = "memory.watermark_set", share);
        self.memory_watermark = share;
    }

    /// Takes effect at the next check.
    pub(crate) fn set_disk_free_limit(&mut self, bytes: u64) {
        tracing::info!(event = "disk.free_limit_set", bytes);
        self.disk_free_limit = bytes.max(KEEP_FREE);
    }

    /// Takes effect at the next check.
    pub(crate) fn set_connection_limit(&mut self, config: &Config) {
        self.connections = max_connections_of(config, self.descriptors);
    }

    /// Counted only occasionally if the kernel does not report the number.
    fn descriptors_used(&mut self) -> Option<u64> {
        if let Some(reported) = machine::descriptors() {
            return Some(reported);
        }
        let (counted, checks) = &mut self.counted;
        *checks += 1;
        if *checks >= CHECKS_PER_COUNT {
            *checks = 0;
            *counted = machine::count_descriptors();
        }
        *counted
    }

    /// Logs once when files cannot be opened for lack of descriptors or memory, and once when that
    /// ends.
    fn check_files(&mut self) {
        let is_short = self.files.take_failures();
        if is_short == self.is_short_of_files {
            return;
        }
        self.is_short_of_files = is_short;
        let (limit, used) = (self.descriptors, self.descriptors_used());
        if is_short {
            tracing::error!(
                event = "storage.files_short",
                limit,
                used,
                "files cannot be opened for lack of descriptors or memory: classic queues refuse requests until there \
                 are some. Raise the limit (ulimit -n, LimitNOFILE) or close connections"
            );
        } else {
            tracing::info!(event = "storage.files_enough", limit, used);
        }
    }

    pub(crate) fn look(&mut self, alarms: &Alarms) {
        self.check_files();
        let free = self.disk.available();
        match &free {
            Ok(free) => {
                self.writes
                    .set(write_budget_until_next_check(*free, self.disk_free_limit));
                alarms.set(AlarmCause::LowDisk, *free < self.disk_free_limit);
            }
            Err(error) => tracing::warn!(event = "disk.free_space_unknown", %error),
        }
        // f64 is exact up to 2^52 bytes.
        let limit = self.memory.map(|all| all as f64 * self.memory_watermark);
        let used = machine::resident();
        if let (Some(limit), Some(used)) = (limit, used) {
            alarms.set(AlarmCause::Memory, used as f64 > limit);
        }
        let last_look = NodeResources {
            memory_used: used,
            memory_limit: limit.map(|bytes| bytes as u64),
            disk_free: free.ok(),
            disk_free_limit: Some(self.disk_free_limit),
            descriptors_used: self.descriptors_used(),
            descriptors: self.descriptors,
            is_short_of_files: self.is_short_of_files,
            connections: Some(self.connections),
            threads: machine::threads(),
            thread_limit: self.thread_limit,
            processors: Some(self.processors),
            // The shard and the node add the rest.
            ..NodeResources::default()
        };
        *self
            .last_look
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = last_look;
        for certificates in &mut self.certificates {
            certificates.reload_if_changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writers of any speed: each check happens when the budget is spent, however little time has
    /// passed.
    #[test]
    fn alarm_is_raised_before_writers_pass_the_limit() {
        let limit: u64 = 50 << 20;
        let mut free: u64 = 200 << 30;
        let mut checks = 0;
        while free >= limit {
            free -= write_budget_until_next_check(free, limit);
            checks += 1;
        }
        assert!(limit - free <= MIN_WRITE_BUDGET, "{} below", limit - free);
        assert!(checks < 200, "{checks}");
        assert_eq!(
            write_budget_until_next_check(free, limit),
            u64::MAX,
            "the alarm is raised"
        );
    }

    #[test]
    fn spent_write_budget_triggers_a_check() -> std::io::Result<()> {
        let dir = std::env::temp_dir().join(format!("posthorn-watch-{}", std::process::id()));
        let disk = env::real::RealDisk::open(&dir)?;
        let (reported, checks) = std::sync::mpsc::channel();
        let budget = disk.write_budget();
        budget.on_spent(move || {
            let _ = reported.send(());
        });
        let config = Config {
            disk_free_limit: disk.available()?.saturating_sub(8 << 20),
            ..Config::default()
        };
        let alarms = Alarms::new(Vec::new());
        let mut watch = ResourceMonitor::new(
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
        let requested_checks = checks.try_iter().count();
        drop(file);
        std::fs::remove_dir_all(&dir)?;
        assert_eq!(
            requested_checks, 1,
            "a look is asked for before 8 MiB are written"
        );
        Ok(())
    }
}
