//! Golden files: samples of the formats on disk and between nodes as a version wrote them. Every later
//! version must read them. Only tests depend on this crate.
//!
//! The files of a crate are in `tests/golden/<version>/<format>/`: for each sample, its bytes (`NAME.bin`)
//! and the Debug text of the decoded value (`NAME.txt`). `UPDATE=1` writes missing files. It never replaces a
//! file, because a change of a golden file breaks the upgrade from the version that wrote it.
#![forbid(unsafe_code)]
#![deny(missing_docs, unreachable_pub)]

use env::Disk;
use std::collections::BTreeSet;
use std::fmt::{Debug, Write as _};
use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Ends the report of every failure.
const RULE: &str =
    "Formats change only behind a feature flag (docs/decisions/0010-feature-flags.md).";

/// The golden files of one format, written by one version.
#[derive(Debug)]
pub struct GoldenFiles {
    directory: PathBuf,
    /// The version that wrote the files, for example `0.2`.
    version: String,
    /// Write missing files.
    update: bool,
    /// Names of the files that samples were compared with.
    checked: BTreeSet<String>,
    failures: Vec<String>,
}

/// Runs `check` on the golden files of `format` (`<version>/<format>`) of the crate in `crate_directory`:
/// `golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/frames", |files| ...)`.
///
/// # Panics
///
/// If a sample differs from its file, a file is missing, or no sample belongs to a file.
pub fn verify(crate_directory: &str, format: &str, check: impl FnOnce(&mut GoldenFiles)) {
    let directory = Path::new(crate_directory).join("tests/golden").join(format);
    let version = format.split('/').next().unwrap_or(format);
    let update = std::env::var_os("UPDATE").is_some();
    let files = GoldenFiles::new(directory, version, update);
    if let Err(report) = files.run(check) {
        panic!("{report}");
    }
}

/// Defines a function that names the variant of a value and lists the names of all variants, for
/// [`GoldenFiles::check_enum`]. The patterns have no wildcard, so a new variant does not compile until it has a
/// name here, and then [`assert_covers`] fails until it has a sample.
#[macro_export]
macro_rules! variant_names {
    ($(fn $function:ident($type:ty) { $($pattern:pat => $name:literal),* $(,)? })*) => { $(
        fn $function(value: &$type) -> (&'static str, &'static [&'static str]) {
            let name = match value { $($pattern => $name,)* };
            (name, &[$($name),*])
        }
    )* };
}

/// A function that [`variant_names`] defines: the name of a value's variant, and all names.
pub type VariantNames<T> = fn(&T) -> (&'static str, &'static [&'static str]);

/// Checks that `samples` has every variant.
///
/// # Panics
///
/// If a variant has no sample.
pub fn assert_covers<'a, T: 'a>(samples: impl IntoIterator<Item = &'a T>, names: VariantNames<T>) {
    let mut all: &[&str] = &[];
    let mut found = BTreeSet::new();
    for sample in samples {
        let (name, names) = names(sample);
        found.insert(name);
        all = names;
    }
    let missing: Vec<_> = all.iter().filter(|name| !found.contains(*name)).collect();
    assert!(
        !found.is_empty() && missing.is_empty(),
        "no sample of {}: {missing:?}",
        std::any::type_name::<T>()
    );
}

/// Writes a file of a directory that a test prepares, and creates the directory of the file.
///
/// # Panics
///
/// If the disk returns an error.
pub fn write_file(disk: &dyn Disk, path: &str, content: &[u8]) {
    let mut directory = String::new();
    let parents = path.rsplit_once('/').map_or("", |(parents, _)| parents);
    for name in parents.split('/').filter(|name| !name.is_empty()) {
        if !directory.is_empty() {
            directory.push('/');
        }
        directory.push_str(name);
        disk.create_dir(&directory).expect("create the directory");
    }
    let file = disk.create(path).expect("create the file");
    file.write_at(0, content).expect("write the file");
    file.sync_data().expect("sync the file");
}

/// Reads a whole file.
///
/// # Panics
///
/// If the disk returns an error.
pub fn read_file(disk: &dyn Disk, path: &str) -> Vec<u8> {
    let file = disk.open(path).expect("open the file");
    let len = file.len().expect("length of the file");
    let mut content = vec![0; usize::try_from(len).expect("a small file")];
    let n = file.read_at(0, &mut content).expect("read the file");
    content.truncate(n);
    content
}

impl GoldenFiles {
    fn new(directory: PathBuf, version: &str, update: bool) -> GoldenFiles {
        GoldenFiles {
            directory,
            version: version.to_owned(),
            update,
            checked: BTreeSet::new(),
            failures: Vec::new(),
        }
    }

    /// Runs `check` and returns the report of all failures. A panic of the check is one of them, so that its
    /// report names the files too.
    fn run(mut self, check: impl FnOnce(&mut GoldenFiles)) -> Result<(), String> {
        let checked = panic::catch_unwind(AssertUnwindSafe(|| check(&mut self)));
        if let Err(panicked) = checked {
            let text = panicked.downcast_ref::<String>().map(String::as_str);
            let text = text.or(panicked.downcast_ref::<&str>().copied());
            let text = text.unwrap_or("no text");
            let files: Vec<_> = self.checked.iter().cloned().collect();
            self.fail(&files.join(", "), &format!("the check panicked: {text}"));
            return Err(self.report());
        }
        self.finish()
    }

    /// Checks that this version writes `sample` as the golden file has it, and that the golden file decodes
    /// to the value in its text file, which encodes to the same bytes.
    pub fn check<T: Debug, E: Debug>(
        &mut self,
        name: &str,
        sample: &T,
        encode: impl Fn(&T) -> Vec<u8>,
        decode: impl FnOnce(&[u8]) -> Result<T, E>,
    ) {
        let encoded = encode(sample);
        let Some(stored) = self.check_bytes(name, &encoded) else {
            return;
        };
        let file = format!("{name}.bin");
        match decode(&stored) {
            Ok(decoded) => {
                self.check_text(name, &format!("{decoded:#?}\n"));
                if let Some(at) = first_difference(&encode(&decoded), &stored) {
                    let what = format!("its decoded value encodes differently at byte {at}");
                    self.fail(&file, &what);
                }
            }
            Err(error) => {
                // It has no value to compare with the text.
                self.checked.insert(format!("{name}.txt"));
                self.fail(&file, &format!("cannot be decoded: {error:?}"));
            }
        }
    }

    /// Checks samples of every variant of an enum as [`GoldenFiles::check`] does. The files have the names of
    /// the variants; a further sample of a variant has a number behind it.
    ///
    /// # Panics
    ///
    /// If a variant has no sample.
    pub fn check_enum<T: Debug, E: Debug>(
        &mut self,
        samples: &[T],
        names: VariantNames<T>,
        encode: impl Fn(&T) -> Vec<u8>,
        decode: impl Fn(&[u8]) -> Result<T, E>,
    ) {
        assert_covers(samples, names);
        let mut counts = std::collections::BTreeMap::new();
        for sample in samples {
            let (name, _) = names(sample);
            let count: &mut u32 = counts.entry(name).or_default();
            *count += 1;
            let file = match *count {
                1 => name.to_owned(),
                n => format!("{name}-{n}"),
            };
            self.check(&file, sample, &encode, &decode);
        }
    }

    /// Compares `encoded` with the golden file `NAME.bin`. Returns the content of the file for decoding;
    /// `None` if there is no such file.
    pub fn check_bytes(&mut self, name: &str, encoded: &[u8]) -> Option<Vec<u8>> {
        let file = format!("{name}.bin");
        let stored = self.stored(&file, encoded)?;
        if let Some(at) = first_difference(encoded, &stored) {
            let what = format!("this version writes the sample differently at byte {at}");
            self.fail(&file, &what);
        }
        Some(stored)
    }

    /// Compares the Debug text of a decoded value with the golden file `NAME.txt`.
    pub fn check_text(&mut self, name: &str, text: &str) {
        let file = format!("{name}.txt");
        let Some(stored) = self.stored(&file, text.as_bytes()) else {
            return;
        };
        let stored = String::from_utf8_lossy(&stored);
        if stored != text {
            let what = format!(
                "the decoded value differs ({}); delete the text file only if a type or field was renamed or added",
                first_differing_line(&stored, text)
            );
            self.fail(&file, &what);
        }
    }

    /// Reads a golden file; with `UPDATE=1`, writes it first if it is missing.
    fn stored(&mut self, file: &str, content: &[u8]) -> Option<Vec<u8>> {
        if !self.checked.insert(file.to_owned()) {
            self.fail(file, "two samples have this name");
        }
        let path = self.directory.join(file);
        match fs::read(&path) {
            Ok(stored) => return Some(stored),
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => {
                self.fail(file, &format!("cannot be read: {e}"));
                return None;
            }
        }
        if !self.update {
            self.fail(file, "is missing; UPDATE=1 writes the file of a new sample");
            return None;
        }
        let written = fs::create_dir_all(&self.directory).and_then(|()| fs::write(&path, content));
        if let Err(e) = written {
            self.fail(file, &format!("cannot be written: {e}"));
            return None;
        }
        Some(content.to_vec())
    }

    fn fail(&mut self, file: &str, what: &str) {
        let path = self.directory.join(file);
        self.failures.push(format!("{}: {what}", path.display()));
    }

    /// Returns the report of all failures.
    fn finish(mut self) -> Result<(), String> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten();
        let names = entries.flatten().map(|e| e.file_name());
        let mut names: Vec<String> = names.map(|n| n.to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        for name in names {
            if !self.checked.contains(&name) {
                self.fail(&name, "no sample belongs to this file");
            }
        }
        match self.failures.is_empty() {
            true => Ok(()),
            false => Err(self.report()),
        }
    }

    fn report(&self) -> String {
        let mut report = String::new();
        for failure in &self.failures {
            let _ = writeln!(report, "{failure}");
        }
        if self.update {
            report.push_str("UPDATE=1 writes missing files only. It never replaces a golden file: delete the file first, on purpose.\n");
        }
        let version = &self.version;
        let _ = write!(
            report,
            "Version {version} wrote this; a later version must read it. {RULE}"
        );
        report
    }
}

/// The offset of the first difference, which may be the end of the shorter one.
fn first_difference(one: &[u8], other: &[u8]) -> Option<usize> {
    let common = one.iter().zip(other).take_while(|(a, b)| a == b).count();
    (one.len() != common || other.len() != common).then_some(common)
}

fn first_differing_line(expected: &str, found: &str) -> String {
    let (mut expected_lines, mut found_lines) = (expected.lines(), found.lines());
    for number in 1.. {
        match (expected_lines.next(), found_lines.next()) {
            (None, None) => break,
            (a, b) if a == b => {}
            (a, b) => {
                let [a, b] = [a, b].map(|line| line.unwrap_or("end of text").trim());
                return format!("line {number}: expected `{a}`, found `{b}`");
            }
        }
    }
    "only in line ends".to_owned()
}

#[cfg(test)]
mod tests;
