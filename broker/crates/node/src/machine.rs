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

/// Unit of times in `/proc`, in milliseconds: part of the interface of Linux on all processors.
const TICK_MS: u64 = 10;

/// Processor time that this process has used, in milliseconds.
pub fn processor_time_ms() -> Option<u64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let time = stat_field(&stat, 14)?.checked_add(stat_field(&stat, 15)?)?;
    time.checked_mul(TICK_MS)
}

/// Start of this process in milliseconds since 1970.
pub fn started_ms() -> Option<u64> {
    let machine = fs::read_to_string("/proc/stat").ok()?;
    let booted: u64 = field(&machine, "btime ")?.parse().ok()?;
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let after_boot = stat_field(&stat, 22)?.checked_mul(TICK_MS)?;
    booted.checked_mul(1000)?.checked_add(after_boot)
}

/// A field of `/proc/self/stat` by its number in proc(5). The second one, in parentheses, may contain spaces.
fn stat_field(stat: &str, number: usize) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let field = after_name.split_whitespace().nth(number.checked_sub(3)?)?;
    field.parse().ok()
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

const CPU: CgroupLimits = CgroupLimits {
    file: "cpu.max",
    v1_controller: "cpu",
    v1_file: "cpu.cfs_quota_us",
};

/// Beside the quota in cgroup v1.
const V1_CPU_PERIOD: &str = "cpu.cfs_period_us";

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

/// CPUs that this process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuGrant {
    /// At least 1. A part of a CPU counts as one.
    pub cpus: u16,
    /// The quota of a cgroup determines the number, and not the CPUs that the process may run on.
    pub is_quota: bool,
}

/// The CPUs of this process: the tightest CPU quota of its cgroups (v2 or v1), rounded up, or the CPUs that the process may
/// run on if these are fewer.
pub fn granted_cpus() -> CpuGrant {
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let quota = cpu_quota(Path::new("/sys/fs/cgroup"), &cgroups);
    let listed = status().and_then(|text| count_cpus(field(&text, "Cpus_allowed_list:")?));
    // The standard library rounds quotas down, so it is only asked where the kernel does not list the CPUs.
    grant(quota, listed.unwrap_or_else(cpus))
}

fn grant(quota: Option<u16>, allowed: u16) -> CpuGrant {
    match quota {
        Some(quota) if quota < allowed => CpuGrant {
            cpus: quota.max(1),
            is_quota: true,
        },
        _ => CpuGrant {
            cpus: allowed.max(1),
            is_quota: false,
        },
    }
}

/// Counts the CPUs of a list like `0-3,8`. None: the text is no such list.
fn count_cpus(list: &str) -> Option<u16> {
    let mut count = 0u16;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// The tightest CPU quota in whole CPUs, rounded up.
fn cpu_quota(root: &Path, cgroups: &str) -> Option<u16> {
    let files = limit_files(root, cgroups, &CPU);
    let quotas = files.iter().filter_map(|path| {
        let text = fs::read_to_string(path).ok()?;
        match path.ends_with(CPU.file) {
            true => parse_quota(text.split_ascii_whitespace()),
            false => {
                let period = fs::read_to_string(path.with_file_name(V1_CPU_PERIOD)).ok()?;
                parse_quota([text.trim(), period.trim()].into_iter())
            }
        }
    });
    quotas.min()
}

/// Parses microseconds of a quota and of its period. None: there is no quota, which v2 calls `max` and v1 `-1`.
fn parse_quota<'a>(mut fields: impl Iterator<Item = &'a str>) -> Option<u16> {
    let quota: u64 = fields.next()?.parse().ok().filter(|quota| *quota > 0)?;
    let period: u64 = fields.next()?.parse().ok().filter(|period| *period > 0)?;
    Some(u16::try_from(quota.div_ceil(period)).unwrap_or(u16::MAX))
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

    /// A directory with these files, removed with the value.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, files: &[(&str, &str)]) -> Files {
            let root = std::env::temp_dir().join(format!("posthorn-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                let directory = path.parent().expect("a file in a directory");
                fs::create_dir_all(directory).expect("a directory");
                fs::write(path, text).expect("a file");
            }
            Files(root)
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn cpu_quota_of_both_cgroup_versions_is_rounded_up() {
        let v2 = Files::new(
            "quota-v2",
            &[
                ("cpu.max", "max 100000\n"),
                ("pods/cpu.max", "350000 100000\n"),
                ("pods/one/cpu.max", "150000 100000\n"),
                ("pods/two/cpu.max", "max 100000\n"),
                ("small/cpu.max", "1000 100000\n"),
                ("broken/cpu.max", "many\n"),
            ],
        );
        for (group, cpus) in [
            ("/pods/one", Some(2)),
            ("/pods/two", Some(4)),
            ("/small", Some(1)),
            ("/broken", None),
            ("/", None),
        ] {
            assert_eq!(cpu_quota(&v2.0, &format!("0::{group}\n")), cpus, "{group}");
        }
        let v1 = Files::new(
            "quota-v1",
            &[
                ("cpu/cpu.cfs_quota_us", "-1\n"),
                ("cpu/cpu.cfs_period_us", "100000\n"),
                ("cpu/docker/a/cpu.cfs_quota_us", "250000\n"),
                ("cpu/docker/a/cpu.cfs_period_us", "50000\n"),
                ("cpu/docker/b/cpu.cfs_quota_us", "250000\n"),
            ],
        );
        for (group, cpus) in [("a", Some(5)), ("b", None), ("c", None)] {
            let cgroups = format!("4:memory:/x\n3:cpu,cpuacct:/docker/{group}\n");
            assert_eq!(cpu_quota(&v1.0, &cgroups), cpus, "{group}");
        }
    }

    #[test]
    fn quota_counts_only_below_the_number_of_allowed_cpus() {
        let granted = |quota, allowed| {
            let grant = grant(quota, allowed);
            (grant.cpus, grant.is_quota)
        };
        assert_eq!(granted(Some(3), 8), (3, true));
        assert_eq!(granted(Some(8), 8), (8, false));
        assert_eq!(granted(Some(9), 8), (8, false));
        assert_eq!(granted(None, 8), (8, false));
        assert_eq!(granted(None, 0), (1, false));
        let here = granted_cpus().cpus;
        assert!(here >= cpus(), "{here}: the standard library rounds down");
    }

    #[test]
    fn lists_of_cpus_are_counted() {
        for (list, count) in [("0", 1), ("0-1", 2), ("0-3,8,10-11", 7)] {
            assert_eq!(count_cpus(list), Some(count), "{list}");
        }
        for list in ["", "a", "3-1", "0-65535", "0-", "1,,2"] {
            assert_eq!(count_cpus(list), None, "{list}");
        }
    }

    #[test]
    fn fields_after_a_name_with_spaces_are_found() {
        let stat = "7 (a b) c) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 9 0 12345 1 2";
        let times = [14, 15, 22].map(|number| stat_field(stat, number));
        assert_eq!(times, [Some(250), Some(50), Some(12345)]);
        assert_eq!(stat_field("no name", 14), None);
    }

    #[test]
    fn process_has_a_start_and_processor_time() {
        // In 2020, and later.
        assert!(started_ms().is_some_and(|at| at > 1_577_836_800_000));
        assert!(processor_time_ms().is_some());
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
