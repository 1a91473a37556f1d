//! Time, randomness and disk of the operating system.

mod open_files;
mod write_budget;

pub use open_files::OpenFiles;
pub use write_budget::WriteBudget;

use crate::disk::{ResourceShortage, check_path, parent};
use crate::{Clock, Disk, File, SeededRng, Time, WallTime};
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Monotonic time since this value was created.
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    origin: Instant,
}

impl RealClock {
    /// Creates a clock whose origin is now.
    #[expect(
        clippy::disallowed_methods,
        reason = "the only place that reads the system clock"
    )]
    pub fn new() -> RealClock {
        RealClock {
            origin: Instant::now(),
        }
    }
}

impl Default for RealClock {
    fn default() -> RealClock {
        RealClock::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Time {
        Time(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the only place that reads the system clock"
    )]
    fn wall(&self) -> WallTime {
        let since = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        WallTime(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

/// Fills `buf` with random bytes from the kernel, fit for secrets.
pub fn fill_random(buf: &mut [u8]) -> io::Result<()> {
    fs::File::open("/dev/urandom")?.read_exact(buf)
}

/// A generator seeded from the kernel.
pub fn seeded_rng() -> io::Result<SeededRng> {
    let mut seed = [0; 8];
    fill_random(&mut seed)?;
    Ok(SeededRng::new(u64::from_le_bytes(seed)))
}

/// A directory of the file system.
#[derive(Clone, Debug)]
pub struct RealDisk {
    root: PathBuf,
    files: Arc<OpenFiles>,
    writes: Arc<WriteBudget>,
}

impl RealDisk {
    /// Opens a data directory, creating it if it does not exist.
    pub fn open(root: impl Into<PathBuf>) -> io::Result<RealDisk> {
        let root = root.into();
        fs::create_dir_all(&root).map_err(|e| at(&root, e))?;
        Ok(RealDisk {
            root,
            files: Arc::default(),
            writes: Arc::default(),
        })
    }

    /// The counters of its open files.
    pub fn open_files(&self) -> Arc<OpenFiles> {
        self.files.clone()
    }

    /// The budget of bytes until free space is checked again.
    pub fn write_budget(&self) -> Arc<WriteBudget> {
        self.writes.clone()
    }

    fn wrap_opened(&self, file: io::Result<fs::File>, path: PathBuf) -> io::Result<Box<dyn File>> {
        match file {
            Ok(file) => {
                self.files.record_opened();
                Ok(Box::new(RealFile {
                    file,
                    path,
                    files: self.files.clone(),
                    writes: self.writes.clone(),
                }))
            }
            Err(error) => Err(self.open_failed(&path, error)),
        }
    }

    /// Handles a failure to open a file or directory.
    fn open_failed(&self, path: &Path, error: io::Error) -> io::Error {
        if open_files::is_shortage(&error) {
            self.files.record_failure();
        }
        at(path, error)
    }

    /// The directory that contains all paths of this disk.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn path(&self, path: &str) -> io::Result<PathBuf> {
        check_path(path)?;
        Ok(if path.is_empty() {
            self.root.clone()
        } else {
            self.root.join(path)
        })
    }
}

/// Adds the path to the error's text and keeps its kind and its meaning.
fn at(path: &Path, error: io::Error) -> io::Error {
    let text = format!("{}: {error}", path.display());
    match open_files::is_shortage(&error) {
        true => io::Error::new(error.kind(), ResourceShortage(text)),
        false => io::Error::new(error.kind(), text),
    }
}

/// As [`at`], but never a [`ResourceShortage`]: the state of the disk after a failed fsync is unknown, whatever the
/// reason.
fn sync_failed(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Disk for RealDisk {
    fn create(&self, path: &str) -> io::Result<Box<dyn File>> {
        let path = self.path(path)?;
        let file = fs::OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(&path);
        self.wrap_opened(file, path)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn File>> {
        let path = self.path(path)?;
        let file = fs::OpenOptions::new().read(true).write(true).open(&path);
        self.wrap_opened(file, path)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let path = self.path(path)?;
        fs::remove_file(&path).map_err(|e| at(&path, e))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.path(from)?, self.path(to)?);
        fs::rename(&from, &to).map_err(|e| at(&from, e))
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        let path = self.path(path)?;
        fs::create_dir_all(&path).map_err(|e| at(&path, e))
    }

    fn remove_dir(&self, path: &str) -> io::Result<()> {
        if path.is_empty() || parent(path) == path {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the data directory itself is never removed",
            ));
        }
        let path = self.path(path)?;
        match fs::remove_dir_all(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(at(&path, e)),
            _ => Ok(()),
        }
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let dir = self.path(dir)?;
        let entries = match fs::read_dir(&dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|e| self.open_failed(&dir, e))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            // This broker creates no names that are not UTF-8.
            if let Ok(name) = entry.map_err(|e| at(&dir, e))?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let path = self.path(dir)?;
        let dir = fs::File::open(&path).map_err(|e| self.open_failed(&path, e))?;
        dir.sync_all().map_err(|e| sync_failed(&path, &e))
    }

    fn available(&self) -> io::Result<u64> {
        available(&self.root).map_err(|e| at(&self.root, e))
    }

    fn may_keep_open(&self) -> bool {
        self.files.has_room()
    }
}

#[derive(Debug)]
struct RealFile {
    file: fs::File,
    path: PathBuf,
    files: Arc<OpenFiles>,
    writes: Arc<WriteBudget>,
}

impl Drop for RealFile {
    fn drop(&mut self) {
        self.files.record_closed();
    }
}

impl File for RealFile {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|r| !r.is_empty()) {
            match self.file.read_at(rest, offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(at(&self.path, e)),
            }
        }
        Ok(done)
    }

    fn read_vec_at(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(len);
        while bytes.len() < len {
            let position = offset + bytes.len() as u64;
            let wanted = len - bytes.len();
            match append_from(self.file.as_raw_fd(), position, wanted, &mut bytes) {
                Ok(0) => break,
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(at(&self.path, e)),
            }
        }
        Ok(bytes)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.writes.spend(data.len());
        self.file
            .write_all_at(data, offset)
            .map_err(|e| at(&self.path, e))
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata().map_err(|e| at(&self.path, e))?.len())
    }

    fn truncate(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len).map_err(|e| at(&self.path, e))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let now = self.len()?;
        if len <= now {
            return Ok(());
        }
        match fallocate(self.file.as_raw_fd(), now, len - now) {
            // Some file systems have no fallocate: writing zeros reserves the space.
            Err(e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => self.fill(now, len),
            Err(e) => {
                // Undoes a partial extension, because a failure must have no effect. The first error is the
                // one to report.
                let _ = self.file.set_len(now);
                Err(e)
            }
            Ok(()) => Ok(()),
        }
        .map_err(|e| at(&self.path, e))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file
            .sync_data()
            .map_err(|e| sync_failed(&self.path, &e))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

impl RealFile {
    fn fill(&self, from: u64, to: u64) -> io::Result<()> {
        static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];
        let mut at = from;
        while at < to {
            let n = (to - at).min(ZEROS.len() as u64);
            if let Err(e) = self.file.write_all_at(&ZEROS[..n as usize], at) {
                let _ = self.file.set_len(from);
                return Err(e);
            }
            at += n;
        }
        Ok(())
    }
}

/// Appends up to `len` bytes of a file to `bytes`; returns how many. Chunks of streams are read in this way: clearing the
/// memory before was up to a tenth of the cost of a consumer.
#[expect(
    unsafe_code,
    reason = "std reads at a position into initialized memory only"
)]
fn append_from(fd: RawFd, position: u64, len: usize, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let position = libc::off_t::try_from(position);
    let position = position.map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    bytes.reserve(len);
    let spare = bytes.spare_capacity_mut();
    let len = len.min(spare.len());
    // SAFETY: `spare` is valid for writes of `len` bytes, and `fd` is open while the caller borrows its file.
    let read = unsafe { libc::pread(fd, spare.as_mut_ptr().cast(), len, position) };
    let Ok(read) = usize::try_from(read) else {
        return Err(io::Error::last_os_error());
    };
    debug_assert!(read <= len);
    // SAFETY: the kernel has initialized `read` bytes behind the old length, which are within the capacity.
    unsafe { bytes.set_len(bytes.len() + read) };
    Ok(read)
}

#[expect(unsafe_code, reason = "std has no fallocate")]
fn fallocate(fd: RawFd, offset: u64, len: u64) -> io::Result<()> {
    let too_big = |_| io::Error::from(io::ErrorKind::FileTooLarge);
    let offset = libc::off_t::try_from(offset).map_err(too_big)?;
    let len = libc::off_t::try_from(len).map_err(too_big)?;
    loop {
        // SAFETY: the arguments are plain integers; `fd` is open while the caller borrows its file.
        if unsafe { libc::fallocate(fd, 0, offset, len) } == 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Number of descriptors that this process may open. First raises its soft limit to the hard limit.
#[expect(unsafe_code, reason = "std has no getrlimit")]
pub fn descriptor_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` is the struct that the call fills.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let raised = libc::rlimit {
        rlim_cur: limit.rlim_max,
        ..limit
    };
    // SAFETY: `raised` is the struct that the call reads. If it fails, the limit is unchanged.
    let refused = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) } != 0;
    Ok(if refused {
        limit.rlim_cur
    } else {
        limit.rlim_max
    })
}

/// Limits the lookup of host names to `/etc/hosts` and DNS in a binary that is linked statically with
/// glibc. Otherwise `/etc/nsswitch.conf` may name modules such as `resolve`, which glibc loads together
/// with the libc of the machine; the process crashes if that is another version. Call it before the
/// first lookup.
pub fn limit_host_lookup() {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    {
        #[expect(unsafe_code, reason = "libc has no binding for this function of glibc")]
        unsafe extern "C" {
            fn __nss_configure_lookup(
                database: *const libc::c_char,
                services: *const libc::c_char,
            ) -> libc::c_int;
        }
        // SAFETY: both strings are NUL-terminated constants. The result does not matter: the call
        // fails only for a wrong service line, and changes nothing then.
        #[expect(unsafe_code, reason = "libc has no binding for this function of glibc")]
        let _ = unsafe { __nss_configure_lookup(c"hosts".as_ptr(), c"files dns".as_ptr()) };
    }
}

#[expect(unsafe_code, reason = "std has no statvfs")]
fn available(path: &Path) -> io::Result<u64> {
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is NUL-terminated, `stat` has the size that the call writes, and it is read only after
    // success.
    let stat = unsafe {
        if libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        stat.assume_init()
    };
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            let mut name = [0; 8];
            fill_random(&mut name).expect("urandom");
            Scratch(
                std::env::temp_dir()
                    .join(format!("posthorn-env-{:016x}", u64::from_le_bytes(name))),
            )
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn real_disk_reads_and_writes_files_and_names() {
        let scratch = Scratch::new();
        let disk = RealDisk::open(&scratch.0).expect("open");
        disk.create_dir("a/b").expect("dir");
        let file = disk.create("a/b/f").expect("create");
        assert_eq!(
            disk.create("a/b/f").err().map(|e| e.kind()),
            Some(io::ErrorKind::AlreadyExists)
        );
        file.write_at(3, b"xyz").expect("write");
        file.allocate(4096).expect("allocate");
        assert_eq!(file.len().expect("len"), 4096);
        file.truncate(6).expect("truncate");
        file.sync_data().expect("sync");
        let mut buf = [9; 10];
        assert_eq!(file.read_at(0, &mut buf).expect("read"), 6);
        assert_eq!(&buf[..6], b"\0\0\0xyz");
        let descriptor = file.descriptor().expect("a file of the operating system");
        let copy = fs::File::from(descriptor.try_clone_to_owned().expect("cloned"));
        assert_eq!(copy.metadata().expect("metadata").len(), 6);
        disk.rename("a/b/f", "a/b/g").expect("rename");
        disk.sync_dir("a/b").expect("sync dir");
        assert_eq!(disk.list("a/b").expect("list"), ["g"]);
        assert_eq!(disk.list("nowhere").expect("list"), [""; 0]);
        assert!(disk.available().expect("statvfs") > 0);
        disk.remove_dir("a").expect("remove");
        disk.remove_dir("a").expect("remove again");
        assert_eq!(
            disk.open("a/b/g").err().map(|e| e.kind()),
            Some(io::ErrorKind::NotFound)
        );
    }

    #[test]
    fn paths_outside_the_data_directory_are_refused() {
        let scratch = Scratch::new();
        let disk = RealDisk::open(&scratch.0).expect("open");
        for path in ["../x", "a/../../x", "/etc/x", "a//b", "./a", "a\0b"] {
            assert_eq!(
                disk.create(path).err().map(|e| e.kind()),
                Some(io::ErrorKind::InvalidInput),
                "{path:?}"
            );
        }
        assert!(disk.remove_dir("").is_err());
    }
}
