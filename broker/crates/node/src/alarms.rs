//! Disk and memory alarms of this node: while one is raised, shards block their publishers.

use reactor::{Mailbox, ShardMessage};
use std::sync::{Mutex, PoisonError};

/// The cause of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmCause {
    /// The log ran out of disk space.
    LogFull,
    /// Free space is below `disk_free_limit.absolute`.
    LowDisk,
    /// Memory usage is above `vm_memory_high_watermark.relative`.
    Memory,
}

#[derive(Debug, Default, Clone, Copy)]
struct AlarmState {
    log_full: bool,
    low_disk: bool,
    memory: bool,
}

impl AlarmState {
    fn disk(self) -> bool {
        self.log_full || self.low_disk
    }
}

/// The alarms of the node. Every change is sent to every shard.
pub struct Alarms {
    state: Mutex<AlarmState>,
    mailboxes: Vec<Mailbox>,
}

impl Alarms {
    /// Alarms that are announced to the shards behind these mailboxes.
    pub fn new(mailboxes: Vec<Mailbox>) -> Alarms {
        Alarms {
            state: Mutex::default(),
            mailboxes,
        }
    }

    /// Raises or clears an alarm on all shards.
    pub fn set(&self, cause: AlarmCause, on: bool) {
        // Held while sending, so that all shards receive changes in order.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *state;
        match cause {
            AlarmCause::LogFull => state.log_full = on,
            AlarmCause::LowDisk => state.low_disk = on,
            AlarmCause::Memory => state.memory = on,
        }
        if before.disk() != state.disk() {
            self.tell("disk", state.disk());
        }
        if before.memory != state.memory {
            self.tell("memory", state.memory);
        }
    }

    fn tell(&self, reason: &'static str, on: bool) {
        if on {
            tracing::warn!(event = "alarm.set", reason);
        } else {
            tracing::info!(event = "alarm.cleared", reason);
        }
        for mailbox in &self.mailboxes {
            mailbox.post_waiting(ShardMessage::Alarm { reason, on });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::ThreadWaker;
    use std::sync::Arc;

    #[test]
    fn shards_receive_only_changes() {
        let wake = Arc::new(ThreadWaker::for_thread());
        let (mailbox, inlet) = reactor::mailbox(wake);
        let alarms = Alarms::new(vec![mailbox]);
        alarms.set(AlarmCause::LowDisk, true);
        alarms.set(AlarmCause::LogFull, true);
        alarms.set(AlarmCause::LowDisk, false);
        alarms.set(AlarmCause::Memory, true);
        alarms.set(AlarmCause::LogFull, false);
        let received: Vec<(&str, bool)> = inlet
            .drain()
            .into_iter()
            .filter_map(|m| match m {
                ShardMessage::Alarm { reason, on } => Some((reason, on)),
                _ => None,
            })
            .collect();
        assert_eq!(
            received,
            [("disk", true), ("memory", true), ("disk", false)]
        );
    }
}
