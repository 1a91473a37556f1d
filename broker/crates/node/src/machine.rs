//! Resource usage of this process and its limits.

use std::fs;
use std::path::{Path, PathBuf};

/// Names the run of the machine since its last start. It changes when the machine starts again, and with it everything
/// that was written and not synced may be lost. A random name if the machine does not tell: it counts as started again.
pub fn boot_id(rng: &mut dyn env::Rng) -> Box<[u8]> {
    match fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(id) if !id.is_empty() && id.len() <= MAX_BOOT_ID_BYTES => id.trim_ascii().into(),
        _ => Box::from(rng.next_u64().to_le_bytes()),
    }
}

/// The kernel's id has 36 characters.
const MAX_BOOT_ID_BYTES: usize = 64;

/// Resident memory in bytes.
pub fn resident() -> Option<u64> {
    field_kb(&status()?, "VmRSS:")
}

/// Number of threads of this process.
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

/// Number of open file descriptors, if it is cheap to get: since Linux 6.2 it is the size of
/// `/proc/self/fd`. None on older kernels.
pub fn descriptors() -> Option<u64> {
    let size = fs::metadata(DESCRIPTORS).ok()?.len();
    (size > 0).then_some(size)
}

/// Counts open file descriptors individually, which takes microseconds each.
pub fn count_descriptors() -> Option<u64> {
    // One of them belongs to this listing.
    let listed = fs::read_dir(DESCRIPTORS).ok()?.count() as u64;
    Some(listed.saturating_sub(1))
}

const DESCRIPTORS: &str = "/proc/self/fd";

/// Memory limit of this process in bytes: the tightest limit of its cgroups (v2 or v1), or the
/// machine's memory.
pub fn memory_limit() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| field_kb(&text, "MemTotal:"));
    tightest_limit(&MEMORY, machine)
}

/// Thread limit of this process, determined like [`memory_limit`].
pub fn thread_limit() -> Option<u64> {
    let machine = fs::read_to_string("/proc/sys/kernel/threads-max").ok();
    tightest_limit(&THREADS, machine.and_then(|text| text.trim().parse().ok()))
}

/// A cgroup limit, and the files that contain it.
struct CgroupLimits {
    /// File in cgroup v2.
    file: &'static str,
    /// Controller and file in cgroup v1.
    v1_controller: &'static str,
    v1_file: &'static str,
}

const MEMORY: CgroupLimits = CgroupLimits {
    file: "memory.max",
    v1_controller: "memory",
    v1_file: "memory.limit_in_bytes",
};

const THREADS: CgroupLimits = CgroupLimits {
    file: "pids.max",
    v1_controller: "pids",
    v1_file: "pids.max",
};

fn tightest_limit(limits: &CgroupLimits, machine: Option<u64>) -> Option<u64> {
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_files(Path::new("/sys/fs/cgroup"), &cgroups, limits)
        .iter()
        .filter_map(|path| fs::read_to_string(path).ok())
        // "max" (v2) is not a number; "no limit" in v1 is a huge number.
        .filter_map(|text| text.trim().parse::<u64>().ok())
        .chain(machine)
        .min()
}

/// All files that may limit the process with this `/proc/self/cgroup`: those of its groups and
/// their parents.
fn limit_files(root: &Path, cgroups: &str, limits: &CgroupLimits) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (base, name) = match controllers {
            "" => (root.to_owned(), limits.file),
            c if c.split(',').any(|c| c == limits.v1_controller) => {
                (root.join(limits.v1_controller), limits.v1_file)
            }
            _ => continue,
        };
        // In a container the path may be that of the host, of which only the mount root is visible.
        let relative = Path::new(path.trim_start_matches('/'));
        let safe = relative
            .components()
            .all(|c| matches!(c, std::path::Component::Normal(_)));
        let deepest = if safe { relative } else { Path::new("") };
        files.extend(deepest.ancestors().map(|a| base.join(a).join(name)));
    }
    files
}

/// Number of CPUs available to this process, at least 1, considering affinity and cgroup quota.
pub fn cpus() -> u16 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    u16::try_from(cpus).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_threads_of_this_process_are_read() {
        let limit = memory_limit().unwrap_or(0);
        let resident = resident().unwrap_or(0);
        assert!(resident > 0 && resident < limit, "{resident} of {limit}");
        assert!(cpus() >= 1);
        let (threads, limit) = (threads().unwrap_or(0), thread_limit().unwrap_or(0));
        assert!(threads > 0 && threads <= limit, "{threads} of {limit}");
    }

    #[test]
    fn cgroup_limits_of_both_versions_are_found() {
        let root = Path::new("/r");
        let v2 = limit_files(root, "0::/kubepods/pod1\n", &MEMORY);
        assert_eq!(
            v2,
            [
                "/r/kubepods/pod1/memory.max",
                "/r/kubepods/memory.max",
                "/r/memory.max"
            ]
            .map(PathBuf::from)
        );
        let v1 = limit_files(
            root,
            "5:cpu,cpuacct:/x\n4:memory:/docker/1\nnonsense\n",
            &MEMORY,
        );
        assert_eq!(
            v1.first().map(PathBuf::as_path),
            Some(Path::new("/r/memory/docker/1/memory.limit_in_bytes"))
        );
        assert_eq!(v1.len(), 3);
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
    fn open_descriptors_are_counted() {
        const MANY: u64 = 200;
        let before = count_descriptors().unwrap_or(u64::MAX);
        let open: Vec<_> = (0..MANY)
            .filter_map(|_| fs::File::open("/proc/self/status").ok())
            .collect();
        assert_eq!(open.len() as u64, MANY);
        // Other tests open and close files concurrently.
        for found in [count_descriptors(), descriptors()].into_iter().flatten() {
            assert!(
                found >= MANY && found + 50 > before,
                "{found} after {before}"
            );
        }
    }
}
