use super::*;

/// A directory that is removed at the end of the test.
struct Directory(PathBuf);

impl Directory {
    fn new(test: &str) -> Directory {
        let name = format!("golden-{}-{test}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        Directory(path)
    }

    /// Checks one number, encoded little-endian, in the file `number`.
    fn check(&self, number: u32, update: bool) -> Result<(), String> {
        let encode = |n: &u32| n.to_le_bytes().to_vec();
        self.check_with(number, update, encode, |bytes| {
            bytes.try_into().map(u32::from_le_bytes)
        })
    }

    fn check_with<E: Debug>(
        &self,
        number: u32,
        update: bool,
        encode: impl Fn(&u32) -> Vec<u8>,
        decode: impl FnOnce(&[u8]) -> Result<u32, E>,
    ) -> Result<(), String> {
        let mut files = GoldenFiles::new(self.0.clone(), "0.2", update);
        files.check("number", &number, encode, decode);
        files.finish()
    }

    fn write(&self, file: &str, content: &[u8]) {
        fs::write(self.0.join(file), content).expect("write");
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn assert_reports(result: Result<(), String>, parts: &[&str]) {
    let report = result.expect_err("a failure");
    for part in parts {
        assert!(report.contains(part), "{part:?} is not in {report:?}");
    }
    assert!(
        report.contains("Version 0.2 wrote this; a later version must read it. Formats change only behind a feature flag"),
        "{report}"
    );
}

#[test]
fn missing_file_fails_until_an_update_writes_it() {
    let directory = Directory::new("missing");
    assert_reports(directory.check(7, false), &["number.bin: is missing"]);
    assert_eq!(directory.check(7, true), Ok(()));
    assert_eq!(directory.check(7, false), Ok(()));
    assert_eq!(
        fs::read(directory.0.join("number.bin")).ok(),
        Some(vec![7, 0, 0, 0])
    );
}

#[test]
fn update_does_not_replace_a_file_that_differs() {
    let directory = Directory::new("replace");
    assert_eq!(directory.check(7, true), Ok(()));
    assert_reports(
        directory.check(8, true),
        &[
            "number.bin: this version writes the sample differently at byte 0",
            "never replaces a golden file",
        ],
    );
    assert_eq!(directory.check(7, false), Ok(()));
}

#[test]
fn undecodable_file_fails() {
    let directory = Directory::new("undecodable");
    assert_eq!(directory.check(7, true), Ok(()));
    directory.write("number.bin", &[7, 0, 0]);
    assert_reports(
        directory.check(7, false),
        &["differently at byte 3", "number.bin: cannot be decoded"],
    );
}

#[test]
fn differing_value_fails_although_the_bytes_are_equal() {
    let directory = Directory::new("value");
    assert_eq!(directory.check(7, true), Ok(()));
    let decoded_as_8 = directory.check_with(
        7,
        false,
        |_| vec![7, 0, 0, 0],
        |_| Ok::<_, std::convert::Infallible>(8),
    );
    assert_reports(
        decoded_as_8,
        &["number.txt: the decoded value differs (line 1: expected `7`, found `8`)"],
    );
}

#[test]
fn decoded_value_that_encodes_differently_fails() {
    let directory = Directory::new("encodes");
    assert_eq!(directory.check(7, true), Ok(()));
    // The text file is of the other value, so that only the bytes differ.
    directory.write("number.txt", b"8\n");
    let encode = |n: &u32| n.to_le_bytes().to_vec();
    let result = directory.check_with(7, false, encode, |_| Ok::<_, std::convert::Infallible>(8));
    assert_reports(result, &["its decoded value encodes differently at byte 0"]);
}

#[test]
fn file_without_a_sample_fails() {
    let directory = Directory::new("orphan");
    assert_eq!(directory.check(7, true), Ok(()));
    directory.write("other.bin", b"x");
    assert_reports(
        directory.check(7, false),
        &["other.bin: no sample belongs to this file"],
    );
}

variant_names! {
    fn option_name(Option<u8>) {
        Some(_) => "some",
        None => "none",
    }
}

#[test]
fn samples_of_one_variant_have_files_of_their_own() {
    let directory = Directory::new("enum");
    let samples = [Some(1), None, Some(2)];
    let encode = |value: &Option<u8>| value.iter().copied().collect();
    let decode = |bytes: &[u8]| Ok::<_, std::convert::Infallible>(bytes.first().copied());
    for update in [true, false] {
        let mut files = GoldenFiles::new(directory.0.clone(), "0.2", update);
        files.check_enum(&samples, option_name, encode, decode);
        assert_eq!(files.finish(), Ok(()));
    }
    for file in ["some.bin", "some-2.bin", "none.bin"] {
        assert!(directory.0.join(file).exists(), "{file}");
    }
}

#[test]
#[should_panic(expected = "no sample of core::option::Option<u8>: [\"none\"]")]
fn variant_without_a_sample_fails() {
    assert_covers(&[Some(1)], option_name);
}

#[test]
fn panic_of_a_check_names_the_files_and_the_version() {
    let directory = Directory::new("panic");
    assert_eq!(directory.check(7, true), Ok(()));
    let files = GoldenFiles::new(directory.0.clone(), "0.2", false);
    let result = files.run(|files| {
        files.check_bytes("number", &[7, 0, 0, 0]);
        panic!("the log is damaged");
    });
    assert_reports(
        result,
        &["number.bin: the check panicked: the log is damaged"],
    );
}
