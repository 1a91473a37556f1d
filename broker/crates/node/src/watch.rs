//! Looking at free disk space, at the process's memory and at the files of certificates.

use crate::alarms::{Alarms, Cause, memory_limit, resident};
use crate::config::Config;
use crate::log_thread::KEEP_FREE;
use env::Disk;
use std::sync::Arc;
use std::time::Duration;

/// How often.
pub(crate) const EVERY: Duration = Duration::from_secs(2);

pub(crate) struct Watch {
    disk: Arc<dyn Disk>,
    disk_free_limit: u64,
    /// Bytes the process may use; None when nothing is known about the machine's memory.
    memory: Option<u64>,
    /// The share of it from which on the alarm is on.
    memory_watermark: f64,
    certificates: Vec<tls::Watched>,
}

impl Watch {
    pub fn new(disk: Arc<dyn Disk>, config: &Config, certificates: Vec<tls::Watched>) -> Watch {
        Watch {
            disk,
            disk_free_limit: config.disk_free_limit.max(KEEP_FREE),
            memory: memory_limit(),
            memory_watermark: config.memory_watermark,
            certificates,
        }
    }

    /// From the next look on.
    pub fn set_memory_watermark(&mut self, share: f64) {
        tracing::info!(event = "memory.watermark_set", share);
        self.memory_watermark = share;
    }

    pub fn look(&mut self, alarms: &Alarms) {
        match self.disk.available() {
            Ok(free) => alarms.set(Cause::LowDisk, free < self.disk_free_limit),
            Err(error) => tracing::warn!(event = "disk.free_space_unknown", %error),
        }
        if let (Some(memory), Some(used)) = (self.memory, resident()) {
            // Precision beyond 2^52 bytes does not matter.
            let limit = memory as f64 * self.memory_watermark;
            alarms.set(Cause::Memory, used as f64 > limit);
        }
        for certificates in &mut self.certificates {
            certificates.look();
        }
    }
}
