//! Every file of the log, the segments and the checkpoints: cut off, bent, in another's place, or of a newer format. A start either refuses,
//! and names what it is about, or finds the very same; what cannot be read says so when it is read.

mod harness;

use bytes::Bytes;
use consensus::{GroupId, RaftHost};
use env::sim::SimDisk;
use env::{Disk, NodeId, Time};
use harness::{Cluster, GROUP, Machine, small_limits, voters};
use std::collections::BTreeMap;
use std::time::Duration;

const OTHER: GroupId = GroupId(GROUP.0 + 1);
const NODE: NodeId = NodeId(1);
/// Places of a file that are bent, besides those at its ends.
const PLACES: usize = 24;
const ENDS: usize = 48;

type Files = BTreeMap<String, Vec<u8>>;

/// What a start finds of a group.
#[derive(Debug, PartialEq, Eq)]
struct Found {
    term: u64,
    commit: u64,
    last: u64,
    checkpoint: u64,
    state: (u64, u64, usize),
    entries: BTreeMap<u64, Result<Bytes, String>>,
}

/// A member of two groups with a checkpoint, segments and several files of the log each.
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
    // Until there is a complete file of the log that is still needed.
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
        let file = disk.open(path).expect("it is listed");
        file.read_at(0, &mut bytes).expect("reads");
        bytes
    };
    let all = disk.files().into_iter();
    all.map(|(path, len)| (path.clone(), read(&path, len)))
        .collect()
}

fn disk_of(files: &Files) -> SimDisk {
    let disk = SimDisk::new();
    for (path, bytes) in files {
        disk.create_dir(env::disk::parent(path)).expect("makes");
        let file = disk.create(path).expect("makes");
        file.write_at(0, bytes).expect("writes");
    }
    disk
}

fn start(files: &Files) -> Result<BTreeMap<GroupId, Found>, String> {
    let mut node = harness::Node::new(NODE, disk_of(files));
    node.start(1, small_limits(), Time(1))
        .map_err(|e| match e {
            harness::Start::Wal(e) => e.to_string(),
            harness::Start::Recovery(e) => e.to_string(),
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
    let host = node.host.as_ref().expect("it runs");
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
        // What is still read: the rest of a segment may go at any time.
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

/// The end of the newest file of the log may be a write that the power cut off: then it is shorter, and nothing else is different.
fn is_shorter(found: &Found, whole: &Found) -> bool {
    let same = |(index, entry)| whole.entries.get(index) == Some(entry);
    found.last <= whole.last
        && found.commit <= whole.commit
        && found.term <= whole.term
        && (found.checkpoint, found.state) == (whole.checkpoint, whole.state)
        && found.entries.iter().all(same)
}

/// What is different must be told, by the file's name, when it is read.
fn is_told(found: &Found, whole: &Found, path: &str) -> bool {
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
            // A group whose checkpoint or segment is gone for its name is wrong is named itself.
            let named = text.contains(path) || text.contains("group 0000");
            assert!(named, "{path} {what}: {text}");
            return;
        }
    };
    for (group, whole) in whole {
        let found = found.get(group);
        let good = found.is_some_and(|found| {
            is_told(found, whole, path) || (newest && is_shorter(found, whole))
        });
        assert!(good, "{path} {what}, group {}: {found:?}", group.0);
    }
}

fn newest_log(files: &Files) -> String {
    let logs = files.keys().filter(|path| path.ends_with(".wal"));
    logs.max().expect("there is a log").clone()
}

fn read_at_start(path: &str) -> bool {
    !path.ends_with(".spare")
}

/// Places near both ends, and some in between.
fn places(len: usize) -> Vec<usize> {
    let between = (0..PLACES).map(|n| n * len / PLACES);
    let ends = (0..ENDS).flat_map(|n| [n, len.saturating_sub(n + 1)]);
    let mut all: Vec<usize> = between.chain(ends).filter(|at| *at < len).collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[test]
fn the_files_of_a_member_are_there_to_be_damaged() {
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
fn a_bent_byte_is_found_or_changes_nothing() {
    let files = files();
    let (whole, newest) = (start(&files).expect("whole"), newest_log(&files));
    for (path, bytes) in files.iter().filter(|(path, _)| read_at_start(path)) {
        for at in places(bytes.len()) {
            let mut damaged = files.clone();
            damaged.get_mut(path).expect("there")[at] ^= 0x81;
            let what = format!("bent at {at}");
            check(&whole, &damaged, path, *path == newest, &what);
        }
    }
}

#[test]
fn a_file_that_is_cut_off_or_gone_is_found() {
    let files = files();
    let (whole, newest) = (start(&files).expect("whole"), newest_log(&files));
    for (path, bytes) in files.iter().filter(|(path, _)| read_at_start(path)) {
        for len in places(bytes.len()) {
            let mut damaged = files.clone();
            damaged.get_mut(path).expect("there").truncate(len);
            let what = format!("cut off at {len}");
            check(&whole, &damaged, path, *path == newest, &what);
        }
        // That a log was longer cannot be seen by what is left of it: who belongs to a cluster with no log at all is refused elsewhere.
        if *path != newest {
            let mut damaged = files.clone();
            damaged.remove(path);
            if let Ok(found) = start(&damaged) {
                let good = found
                    .iter()
                    .all(|(group, f)| is_told(f, &whole[group], path));
                assert!(good, "{path} is gone: {found:?}");
            }
        }
    }
}

#[test]
fn a_file_in_anothers_place_is_refused() {
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
            check(&whole, &damaged, path, false, &format!("is {other}"));
        }
    }
}

#[test]
fn a_newer_format_is_named_and_left_alone() {
    let files = files();
    for path in files.keys().filter(|path| read_at_start(path)) {
        let mut newer = files.clone();
        // Behind the eight bytes of its kind.
        newer.get_mut(path).expect("there")[8] = 9;
        let disk = disk_of(&newer);
        let text = start(&newer).expect_err("of a newer program");
        assert!(
            text.contains(path) && text.contains("version 9"),
            "{path}: {text}"
        );
        let left = disk.open(path).expect("there").len().expect("a length");
        assert_eq!(left, newer[path].len() as u64);
    }
}
