//! Damage to files of the log, the segments and the checkpoints: truncated, modified, replaced by another
//! file, or of a newer format. A start either fails and names the file or group, or restores the same state;
//! damage that a start does not read is reported when it is read.

use crate::harness::{Cluster, GROUP, Machine, small_limits, voters};
use bytes::Bytes;
use consensus::{GroupId, RaftHost};
use env::sim::SimDisk;
use env::{Disk, NodeId, Time};
use std::collections::BTreeMap;
use std::time::Duration;

const OTHER: GroupId = GroupId(GROUP.0 + 1);
const NODE: NodeId = NodeId(1);
/// Number of offsets to modify per file, besides those at its ends.
const OFFSETS: usize = 24;
const ENDS: usize = 48;

type Files = BTreeMap<String, Vec<u8>>;

/// The state of a group after a start.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    term: u64,
    commit: u64,
    last: u64,
    checkpoint: u64,
    state: (u64, u64, usize),
    entries: BTreeMap<u64, Result<Bytes, String>>,
}

/// The files of a member of two groups, each with a checkpoint, segments and several log files.
fn files() -> Files {
    let mut cluster = Cluster::new(77, 3);
    for group in [GROUP, OTHER] {
        cluster.create(group, &voters(1..=3));
        cluster.elect(group);
        for n in 0..400 {
            cluster.commit(group, n < 30 || n % 2 == 0, 60);
        }
    }
    cluster.run(Duration::from_secs(5));
    for group in [GROUP, OTHER] {
        cluster.converge(group);
    }
    // Until there is a complete log file that is still needed.
    let logs = |c: &Cluster| {
        let files = c.nodes[&NODE].disk.files();
        files
            .iter()
            .filter(|(path, _)| path.ends_with(".wal"))
            .count()
    };
    while logs(&cluster) < 2 {
        cluster.commit(GROUP, true, 60);
        cluster.commit(OTHER, true, 60);
    }
    let disk = &cluster.nodes[&NODE].disk;
    let read = |path: &str, len: u64| {
        let mut bytes = vec![0; len as usize];
        let file = disk.open(path).expect("file is listed");
        file.read_at(0, &mut bytes).expect("file is readable");
        bytes
    };
    let all = disk.files().into_iter();
    all.map(|(path, len)| (path.clone(), read(&path, len)))
        .collect()
}

fn disk_of(files: &Files) -> SimDisk {
    let disk = SimDisk::new();
    for (path, bytes) in files {
        disk.create_dir(env::disk::parent(path))
            .expect("directory is created");
        let file = disk.create(path).expect("file is created");
        file.write_at(0, bytes).expect("file is written");
    }
    disk
}

fn start(files: &Files) -> Result<BTreeMap<GroupId, Found>, String> {
    let mut node = crate::harness::Node::new(NODE, disk_of(files));
    node.start(1, small_limits(), Time(1))
        .map_err(|e| match e {
            crate::harness::Start::Wal(e) => e.to_string(),
            crate::harness::Start::Recovery(e) => e.to_string(),
        })?;
    let mut out = Vec::new();
    node.poll(&mut out);
    let mut states = BTreeMap::new();
    for output in out {
        if let consensus::HostOutput::Restore {
            group,
            index,
            state,
        } = output
        {
            let mut machine = Machine::default();
            machine.load(index, state);
            states.insert(group, machine);
        }
    }
    let host = node.host.as_ref().expect("host runs");
    let mut found = BTreeMap::new();
    for group in [GROUP, OTHER] {
        let Some(status) = host.status(group) else {
            continue;
        };
        let read = |index| {
            let read = host.read(group, index);
            (index, read.map_err(|e| e.to_string()))
        };
        let machine = states.remove(&group).unwrap_or_default();
        // Only live entries: the rest of a segment may be deleted at any time.
        let live = machine.live.iter().map(|(index, _)| *index);
        let above = status.checkpoint + 1..=status.last_index;
        let group_found = Found {
            term: status.term,
            commit: status.commit,
            last: status.last_index,
            checkpoint: status.checkpoint,
            state: machine.digest(),
            entries: live.chain(above).map(read).collect(),
        };
        found.insert(group, group_found);
    }
    Ok(found)
}

/// The end of the newest log file may be an incomplete write: then the log is shorter and everything else is
/// unchanged.
fn is_shorter(found: &Found, whole: &Found) -> bool {
    let same = |(index, entry)| whole.entries.get(index) == Some(entry);
    found.last <= whole.last
        && found.commit <= whole.commit
        && found.term <= whole.term
        && (found.checkpoint, found.state) == (whole.checkpoint, whole.state)
        && found.entries.iter().all(same)
}

/// A difference must be reported, with the file's name, when the file is read.
fn is_reported(found: &Found, whole: &Found, path: &str) -> bool {
    let entries = whole.entries.iter().all(|(index, entry)| {
        let now = found.entries.get(index);
        now == Some(entry) || matches!(now, Some(Err(what)) if what.contains(path))
    });
    let rest = |f: &Found| (f.term, f.commit, f.last, f.checkpoint, f.state);
    entries && rest(found) == rest(whole)
}

fn check(whole: &BTreeMap<GroupId, Found>, damaged: &Files, path: &str, newest: bool, what: &str) {
    let found = match start(damaged) {
        Ok(found) => found,
        Err(text) => {
            // If a checkpoint or segment is missing or has a wrong name, the error names the group.
            let names_file_or_group = text.contains(path) || text.contains("group 0000");
            assert!(names_file_or_group, "{path} {what}: {text}");
            return;
        }
    };
    for (group, whole) in whole {
        let found = found.get(group);
        let is_acceptable = found.is_some_and(|found| {
            is_reported(found, whole, path) || (newest && is_shorter(found, whole))
        });
        assert!(is_acceptable, "{path} {what}, group {}: {found:?}", group.0);
    }
}

fn newest_log(files: &Files) -> String {
    let logs = files.keys().filter(|path| path.ends_with(".wal"));
    logs.max().expect("a log file exists").clone()
}

fn read_at_start(path: &str) -> bool {
    !path.ends_with(".spare")
}

/// Offsets near both ends, and some in between.
fn offsets(len: usize) -> Vec<usize> {
    let between = (0..OFFSETS).map(|n| n * len / OFFSETS);
    let ends = (0..ENDS).flat_map(|n| [n, len.saturating_sub(n + 1)]);
    let mut all: Vec<usize> = between.chain(ends).filter(|at| *at < len).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn fixture_has_logs_segments_and_checkpoints() {
    let files = files();
    let count = |part: &str| files.keys().filter(|path| path.contains(part)).count();
    assert!(count(".wal") >= 2, "{:?}", files.keys());
    assert!(count(".seg") >= 2, "{:?}", files.keys());
    assert!(count("checkpoint-") >= 2, "{:?}", files.keys());
    let whole = start(&files).expect("whole");
    assert_eq!(whole.len(), 2);
    assert!(
        whole
            .values()
            .all(|found| found.state.2 > 20 && found.entries.len() > 20)
    );
}

#[test]
fn modified_byte_is_detected_or_harmless() {
    let files = files();
    let (whole, newest) = (start(&files).expect("whole"), newest_log(&files));
    for (path, bytes) in files.iter().filter(|(path, _)| read_at_start(path)) {
        for at in offsets(bytes.len()) {
            let mut damaged = files.clone();
            damaged.get_mut(path).expect("file exists")[at] ^= 0x81;
            let what = format!("modified at {at}");
            check(&whole, &damaged, path, *path == newest, &what);
        }
    }
}

#[test]
fn truncated_or_missing_file_is_detected() {
    let files = files();
    let (whole, newest) = (start(&files).expect("whole"), newest_log(&files));
    for (path, bytes) in files.iter().filter(|(path, _)| read_at_start(path)) {
        for len in offsets(bytes.len()) {
            let mut damaged = files.clone();
            damaged.get_mut(path).expect("file exists").truncate(len);
            let what = format!("truncated at {len}");
            check(&whole, &damaged, path, *path == newest, &what);
        }
        // The remaining files cannot show that the log was longer. A cluster member without any log is
        // refused elsewhere.
        if *path != newest {
            let mut damaged = files.clone();
            damaged.remove(path);
            if let Ok(found) = start(&damaged) {
                let is_acceptable = found
                    .iter()
                    .all(|(group, f)| is_reported(f, &whole[group], path));
                assert!(is_acceptable, "{path} is missing: {found:?}");
            }
        }
    }
}

#[test]
fn file_of_another_name_is_refused() {
    let files = files();
    let whole = start(&files).expect("whole");
    let kind = |path: &str| match path {
        p if p.ends_with(".wal") => 1,
        p if p.ends_with(".seg") => 2,
        p if p.contains("checkpoint-") => 3,
        _ => 0,
    };
    for (path, bytes) in &files {
        let others = files
            .iter()
            .filter(|(p, b)| kind(p) == kind(path) && kind(p) > 0 && *b != bytes);
        for (other, theirs) in others {
            let mut damaged = files.clone();
            damaged.insert(path.clone(), theirs.clone());
            check(
                &whole,
                &damaged,
                path,
                false,
                &format!("replaced by {other}"),
            );
        }
    }
}

#[test]
fn newer_format_is_refused_by_version_and_left_untouched() {
    let files = files();
    for path in files.keys().filter(|path| read_at_start(path)) {
        let mut newer = files.clone();
        // The version byte follows the eight bytes of magic.
        newer.get_mut(path).expect("file exists")[8] = 9;
        let disk = disk_of(&newer);
        let text = start(&newer).expect_err("a newer format is refused");
        assert!(
            text.contains(path) && text.contains("version 9"),
            "{path}: {text}"
        );
        let left = disk
            .open(path)
            .expect("file exists")
            .len()
            .expect("file has a length");
        assert_eq!(left, newer[path].len() as u64);
    }
}
