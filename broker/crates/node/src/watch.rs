//! Looking at free disk space, at the process's memory and at the files of certificates.

use crate::alarms::{Alarms, Cause, memory_limit, resident};
use crate::config::Config;
use crate::log_thread::KEEP_FREE;
use control::Resources;
use env::Disk;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often.
pub(crate) const EVERY: Duration = Duration::from_secs(2);

/// What the last look saw.
#[derive(Debug, Default)]
pub(crate) struct Seen(Mutex<Resources>);

impl Seen {
    pub fn resources(&self) -> Resources {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Watch {
    seen: Arc<Seen>,
    descriptors: Option<u64>,
    disk: Arc<dyn Disk>,
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
        config: &Config,
        certificates: Vec<tls::Watched>,
        seen: Arc<Seen>,
    ) -> Watch {
        Watch {
            seen,
            descriptors: env::real::descriptor_limit().ok(),
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
        let free = self.disk.available();
        match &free {
            Ok(free) => alarms.set(Cause::LowDisk, *free < self.disk_free_limit),
            Err(error) => tracing::warn!(event = "disk.free_space_unknown", %error),
        }
        // Precision beyond 2^52 bytes does not matter.
        let limit = self.memory.map(|all| all as f64 * self.memory_watermark);
        let used = resident();
        if let (Some(limit), Some(used)) = (limit, used) {
            alarms.set(Cause::Memory, used as f64 > limit);
        }
        let seen = Resources {
            memory_used: used,
            memory_limit: limit.map(|bytes| bytes as u64),
            disk_free: free.ok(),
            disk_free_limit: Some(self.disk_free_limit),
            descriptors: self.descriptors,
        };
        *self.seen.0.lock().unwrap_or_else(PoisonError::into_inner) = seen;
        for certificates in &mut self.certificates {
            certificates.look();
        }
    }
}
