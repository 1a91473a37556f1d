//! What this process uses of its machine, and what it may use.

use std::fs;
use std::path::{Path, PathBuf};

/// Bytes of memory that this process has in RAM.
pub fn resident() -> Option<u64> {
    field_kb(&status()?, "VmRSS:")
}

/// Threads that this process has.
pub fn threads() -> Option<u64> {
    field(&status()?, "Threads:")?.parse().ok()
}

fn status() -> Option<String> {
    fs::read_to_string("/proc/self/status").ok()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let line = text.lines().find_map(|l| l.strip_prefix(name))?;
    Some(line.trim())
}

fn field_kb(text: &str, name: &str) -> Option<u64> {
    let kb: u64 = field(text, name)?.strip_suffix("kB")?.trim().parse().ok()?;
    kb.checked_mul(1024)
}

/// Files and sockets that are open, where asking costs next to nothing: None before Linux 6.2, which has their number as the size
/// of the directory that lists them.
pub fn descriptors() -> Option<u64> {
    let size = fs::metadata(DESCRIPTORS).ok()?.len();
    (size > 0).then_some(size)
}

/// The same, one by one: some microseconds for each.
pub fn count_descriptors() -> Option<u64> {
    // One of them is this list.
    let listed = fs::read_dir(DESCRIPTORS).ok()?.count() as u64;
    Some(listed.saturating_sub(1))
}

const DESCRIPTORS: &str = "/proc/self/fd";

/// Bytes of memory this process may use: the tightest limit of its cgroups (v2 or v1), or the machine's memory.
pub fn memory_limit() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| field_kb(&text, "MemTotal:"));
    tightest(&MEMORY, machine)
}

/// Threads this process may have, as [`memory_limit`].
pub fn thread_limit() -> Option<u64> {
    let machine = fs::read_to_string("/proc/sys/kernel/threads-max").ok();
    tightest(&THREADS, machine.and_then(|text| text.trim().parse().ok()))
}

/// What cgroups limit, and the files that say so.
struct CgroupLimits {
    /// Of version 2.
    file: &'static str,
    /// Of version 1.
    controller: &'static str,
    old_file: &'static str,
}

const MEMORY: CgroupLimits = CgroupLimits {
    file: "memory.max",
    controller: "memory",
    old_file: "memory.limit_in_bytes",
};

const THREADS: CgroupLimits = CgroupLimits {
    file: "pids.max",
    controller: "pids",
    old_file: "pids.max",
};

fn tightest(what: &CgroupLimits, machine: Option<u64>) -> Option<u64> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_files(Path::new("/sys/fs/cgroup"), &cgroups, what)
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        // "max" (v2) is no number; v1's "no limit" is a huge one.
        .filter_map(|text| text.trim().parse::<u64>().ok())
        .chain(machine)
        .min()
}

/// Every file that may hold a limit for the process whose `/proc/self/cgroup` this is: its groups and their parents.
fn limit_files(root: &Path, cgroups: &str, what: &CgroupLimits) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (base, name) = match controllers {
            "" => (root.to_owned(), what.file),
            c if c.split(',').any(|c| c == what.controller) => {
                (root.join(what.controller), what.old_file)
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

    #[test]
    fn reads_this_machine() {
        let limit = memory_limit().unwrap_or(0);
        let resident = resident().unwrap_or(0);
        assert!(resident > 0 && resident < limit, "{resident} of {limit}");
        assert!(cpus() >= 1);
        let (threads, most) = (threads().unwrap_or(0), thread_limit().unwrap_or(0));
        assert!(threads > 0 && threads <= most, "{threads} of {most}");
    }

    #[test]
    fn finds_limits_of_both_versions() {
        let root = Path::new("/r");
        let two = limit_files(root, "0::/kubepods/pod1\n", &MEMORY);
        assert_eq!(
            two,
            [
                "/r/kubepods/pod1/memory.max",
                "/r/kubepods/memory.max",
                "/r/memory.max"
            ]
            .map(PathBuf::from)
        );
        let one = limit_files(
            root,
            "5:cpu,cpuacct:/x\n4:memory:/docker/1\nnonsense\n",
            &MEMORY,
        );
        assert_eq!(
            one.first().map(PathBuf::as_path),
            Some(Path::new("/r/memory/docker/1/memory.limit_in_bytes"))
        );
        assert_eq!(one.len(), 3);
        assert_eq!(
            limit_files(root, "0::/../../outside", &MEMORY),
            [PathBuf::from("/r/memory.max")]
        );
        assert_eq!(
            limit_files(root, "0::/a", &THREADS),
            ["/r/a/pids.max", "/r/pids.max"].map(PathBuf::from)
        );
    }

    #[test]
    fn open_files_are_told_and_counted() {
        const MANY: u64 = 200;
        let before = count_descriptors().unwrap_or(u64::MAX);
        let open: Vec<_> = (0..MANY)
            .filter_map(|_| fs::File::open("/proc/self/status").ok())
            .collect();
        assert_eq!(open.len() as u64, MANY);
        // Other tests open and close some meanwhile.
        for found in [count_descriptors(), descriptors()].into_iter().flatten() {
            assert!(
                found >= MANY && found + 50 > before,
                "{found} after {before}"
            );
        }
    }
}
