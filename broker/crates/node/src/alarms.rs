//! Disk and memory alarms of this node (O6): when they are on, shards stop their publishers.

use reactor::{Inbound, Mailbox};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// What can be alarming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The log found no space.
    LogFull,
    /// Less free space than `disk_free_limit.absolute`.
    LowDisk,
    /// More memory than `vm_memory_high_watermark.relative` allows.
    Memory,
}

#[derive(Debug, Default, Clone, Copy)]
struct State {
    log_full: bool,
    low_disk: bool,
    memory: bool,
}

impl State {
    fn disk(self) -> bool {
        self.log_full || self.low_disk
    }
}

/// The alarms of the node, told to every shard as they change.
pub struct Alarms {
    state: Mutex<State>,
    mailboxes: Vec<Mailbox>,
}

impl Alarms {
    pub fn new(mailboxes: Vec<Mailbox>) -> Alarms {
        Alarms {
            state: Mutex::default(),
            mailboxes,
        }
    }

    pub fn set(&self, cause: Cause, on: bool) {
        // Held while telling, so that shards hear changes in their order.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let before = *state;
        match cause {
            Cause::LogFull => state.log_full = on,
            Cause::LowDisk => state.low_disk = on,
            Cause::Memory => state.memory = on,
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
            mailbox.post_waiting(Inbound::Alarm { reason, on });
        }
    }
}

/// Bytes of memory that this process has in RAM.
pub fn resident() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    field_kb(&status, "VmRSS:")
}

fn field_kb(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    let kb: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kb.checked_mul(1024)
}

/// Bytes of memory this process may use: the tightest limit of its cgroups (v2 or v1), or the machine's memory.
pub fn memory_limit() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| field_kb(&text, "MemTotal:"));
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_files(Path::new("/sys/fs/cgroup"), &cgroups)
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        // "max" (v2) is no number; v1's "no limit" is a huge one.
        .filter_map(|text| text.trim().parse::<u64>().ok())
        .chain(machine)
        .min()
}

/// Every file that may hold a limit for the process whose `/proc/self/cgroup` this is: its groups and their parents.
fn limit_files(root: &Path, cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (base, name) = match controllers {
            "" => (root.to_owned(), "memory.max"),
            c if c.split(',').any(|c| c == "memory") => {
                (root.join("memory"), "memory.limit_in_bytes")
            }
            _ => continue,
        };
        // In a container the path may be that of the host, with only the mount itself to be seen.
        let relative = Path::new(path.trim_start_matches('/'));
        let safe = relative
            .components()
            .all(|c| matches!(c, std::path::Component::Normal(_)));
        let deepest = if safe { relative } else { Path::new("") };
        files.extend(deepest.ancestors().map(|a| base.join(a).join(name)));
    }
    files
}

/// CPUs that this process may use, at least 1: affinity and cgroup quota both count.
pub fn cpus() -> u16 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(cpus).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use reactor::Wake;
    use std::sync::Arc;

    #[test]
    fn reads_this_machine() {
        let limit = memory_limit().unwrap_or(0);
        let resident = resident().unwrap_or(0);
        assert!(resident > 0 && resident < limit, "{resident} of {limit}");
        assert!(cpus() >= 1);
    }

    #[test]
    fn finds_limits_of_both_versions() {
        let root = Path::new("/r");
        let two = limit_files(root, "0::/kubepods/pod1\n");
        assert_eq!(
            two,
            [
                "/r/kubepods/pod1/memory.max",
                "/r/kubepods/memory.max",
                "/r/memory.max"
            ]
            .map(PathBuf::from)
        );
        let one = limit_files(root, "5:cpu,cpuacct:/x\n4:memory:/docker/1\nnonsense\n");
        assert_eq!(
            one.first().map(PathBuf::as_path),
            Some(Path::new("/r/memory/docker/1/memory.limit_in_bytes"))
        );
        assert_eq!(one.len(), 3);
        assert_eq!(
            limit_files(root, "0::/../../outside"),
            [PathBuf::from("/r/memory.max")]
        );
    }

    #[test]
    fn shards_hear_changes_only() {
        let wake = Arc::new(Wake::for_thread());
        let (mailbox, inlet) = reactor::mailbox(wake);
        let alarms = Alarms::new(vec![mailbox]);
        alarms.set(Cause::LowDisk, true);
        alarms.set(Cause::LogFull, true);
        alarms.set(Cause::LowDisk, false);
        alarms.set(Cause::Memory, true);
        alarms.set(Cause::LogFull, false);
        let told: Vec<(&str, bool)> = inlet
            .drain()
            .into_iter()
            .filter_map(|m| match m {
                Inbound::Alarm { reason, on } => Some((reason, on)),
                _ => None,
            })
            .collect();
        assert_eq!(told, [("disk", true), ("memory", true), ("disk", false)]);
    }
}
