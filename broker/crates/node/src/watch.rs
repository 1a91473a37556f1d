//! Looking at free disk space and at the process's memory.

use crate::alarms::{Alarms, Cause, memory_limit, resident};
use crate::config::Config;
use env::Disk;
use std::sync::Arc;
use std::time::Duration;

/// How often.
pub(crate) const EVERY: Duration = Duration::from_secs(2);

pub(crate) struct Watch {
    disk: Arc<dyn Disk>,
    disk_free_limit: u64,
    /// Bytes; None when nothing is known about the machine's memory.
    memory_limit: Option<u64>,
}

impl Watch {
    pub fn new(disk: Arc<dyn Disk>, config: &Config) -> Watch {
        // Precision beyond 2^52 bytes does not matter.
        let share = |limit: u64| (limit as f64 * config.memory_watermark) as u64;
        Watch {
            disk,
            disk_free_limit: config.disk_free_limit,
            memory_limit: memory_limit().map(share),
        }
    }

    pub fn look(&self, alarms: &Alarms) {
        match self.disk.available() {
            Ok(free) => alarms.set(Cause::LowDisk, free < self.disk_free_limit),
            Err(error) => tracing::warn!(event = "disk.free_space_unknown", %error),
        }
        if let (Some(limit), Some(used)) = (self.memory_limit, resident()) {
            alarms.set(Cause::Memory, used > limit);
        }
    }
}
