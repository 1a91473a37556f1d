//! A directory of the log as version 0.2 wrote it.

use bytes::Bytes;
use env::sim::SimDisk;
use env::{Disk, NodeId};
use std::sync::Arc;
use wal::{Entry, GroupId, Record, RecordBody, Recovered, Wal, WalConfig};

const SPARE: &str = "wal/0000000000000001.spare";
const SEALED: &str = "wal/0000000000000002.wal";
const CUT: &str = "wal/0000000000000003.wal";
const MANIFEST: &str = "wal/manifest";

golden::variant_names! {
    fn body_name(RecordBody) {
        RecordBody::Entry(_) => "entry",
        RecordBody::HardState { .. } => "hard state",
        RecordBody::Checkpointed { .. } => "checkpointed",
        RecordBody::Deleted => "deleted",
    }
}

fn open(disk: &SimDisk, salt: u64) -> (Wal, Recovered) {
    let config = WalConfig {
        grow_bytes: 64,
        ..WalConfig::new(NodeId(7), salt)
    };
    Wal::open(Arc::new(disk.clone()), config).expect("open the log")
}

fn entry(index: u64, term: u64, kind: u8, data: &'static [u8]) -> RecordBody {
    let data = Bytes::from_static(data);
    RecordBody::Entry(Entry {
        index,
        term,
        kind,
        data,
    })
}

fn hard_state(term: u64, vote: u64, commit: u64) -> RecordBody {
    RecordBody::HardState { term, vote, commit }
}

/// The records of each of the three files.
fn batches() -> [Vec<Record>; 3] {
    let first = [
        (0, hard_state(1, 7, 0)),
        (0, entry(1, 1, 2, b"members")),
        (0, entry(2, 1, 0, b"command")),
        (1, hard_state(1, 9, 1)),
        (1, entry(1, 1, 0, b"replaced in file 2")),
        (u64::MAX, hard_state(5, 0, 8)),
        (u64::MAX, RecordBody::Checkpointed { index: 8, term: 4 }),
        (3, entry(1, 1, 0, b"deleted in file 2")),
    ];
    let second = [
        (0, entry(3, 2, 1, b"membership change")),
        (1, entry(1, 2, 0, b"")),
        (1, entry(2, 2, 255, &[0; 40])),
        (3, RecordBody::Deleted),
    ];
    let third = [
        (0, hard_state(2, 8, 3)),
        (0, entry(4, 2, 0, b"durable")),
        (u64::MAX, entry(9, 5, 0, b"after a checkpoint")),
    ];
    [first.to_vec(), second.to_vec(), third.to_vec()].map(|batch| {
        let records = batch.into_iter();
        let group = |(group, body)| Record {
            group: GroupId(group),
            body,
        };
        records.map(group).collect()
    })
}

/// Three starts of a node: each begins a file, and the third deletes the first file, which stays as a spare.
/// A power failure cuts the last record.
fn write_log(disk: &SimDisk) {
    let [first, second, third] = batches();
    for (salt, batch) in [(1, first), (2, second)] {
        let (mut wal, _) = open(disk, salt);
        wal.append(&batch).expect("append");
        wal.sync().expect("sync");
        wal.close().expect("close");
    }
    let (mut wal, _) = open(disk, 3);
    wal.delete_through(1).expect("delete");
    wal.append(&third).expect("append");
    wal.sync().expect("sync");
    let unsynced = Record {
        group: GroupId(0),
        body: entry(5, 2, 0, b"cut by a power failure"),
    };
    wal.append(&[unsynced]).expect("append");
    drop(wal);
    let content = golden::read_file(disk, CUT);
    let end = content.iter().rposition(|b| *b != 0).expect("records") + 1;
    let file = disk.open(CUT).expect("open");
    file.truncate(end as u64 - 5).expect("cut");
}

#[test]
fn log_of_version_0_2_is_recovered() {
    let all = batches();
    golden::assert_covers(all.iter().flatten().map(|r| &r.body), body_name);
    let written = SimDisk::new();
    write_log(&written);
    let names: Vec<String> = written.files().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [SPARE, SEALED, CUT, MANIFEST]);

    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/log", |files| {
        let stored = SimDisk::new();
        for path in names {
            let name = path.trim_start_matches("wal/");
            let content = golden::read_file(&written, &path);
            match files.check_bytes(name, &content) {
                Some(content) => golden::write_file(&stored, &path, &content),
                None => return,
            }
        }
        let (mut wal, recovered) = open(&stored, 4);
        files.check_text("recovered", &format!("{recovered:#?}\n"));
        assert!(recovered.torn.is_some() && recovered.files == [2, 3]);

        // The log continues, and the spare becomes the next file.
        let more = Record {
            group: GroupId(0),
            body: entry(5, 3, 0, b"by a later version"),
        };
        wal.append(std::slice::from_ref(&more)).expect("append");
        wal.sync().expect("sync");
        assert!(stored.open(SPARE).is_err(), "the spare is reused");
        drop(wal);
        let (_, again) = open(&stored, 5);
        let mut expected = recovered;
        let group = expected.groups.get_mut(&more.group).expect("a group");
        match more.body {
            RecordBody::Entry(entry) => group.entries.push(entry),
            other => panic!("{other:?}"),
        }
        assert_eq!(again.groups, expected.groups);
    });
}
