//! Missing or truncated log files: they are never mistaken for an incomplete write before a crash.

use bytes::Bytes;
use env::sim::SimDisk;
use env::{Disk, NodeId, SeededRng};
use std::sync::Arc;
use wal::{Entry, GroupId, Record, RecordBody, Recovered, Wal, WalConfig, WalError};

const NODE: NodeId = NodeId(7);
const RECORD: usize = 2000;

fn open(disk: &SimDisk, salt: u64) -> Result<(Wal, Recovered), WalError> {
    let config = WalConfig {
        max_file_bytes: 512 << 10,
        grow_bytes: 16 << 10,
        ..WalConfig::new(NODE, salt)
    };
    Wal::open(Arc::new(disk.clone()), config)
}

fn entry(index: u64) -> Record {
    Record {
        group: GroupId(1),
        body: RecordBody::Entry(Entry {
            index,
            term: 1,
            kind: 3,
            data: Bytes::from(vec![index as u8; RECORD]),
        }),
    }
}

/// Appends durable entries until the log has this many files; returns the index of the last.
fn fill(wal: &mut Wal, from: u64, files: usize) -> u64 {
    let mut index = from;
    while wal.files().len() < files {
        wal.append(&[entry(index)]).expect("append");
        wal.sync().expect("sync");
        index += 1;
    }
    index - 1
}

fn logs(disk: &SimDisk) -> Vec<String> {
    let names = disk.list("wal").expect("list");
    let logs = names.iter().filter(|name| name.ends_with(".wal"));
    logs.map(|name| format!("wal/{name}")).collect()
}

fn open_error(disk: &SimDisk) -> String {
    let refused = open(disk, 9).map(|(_, recovered)| recovered.files);
    refused.expect_err("must be refused").to_string()
}

#[test]
fn missing_file_is_named() {
    for missing in 0..3 {
        let disk = SimDisk::new();
        let (mut wal, _) = open(&disk, 1).expect("open");
        fill(&mut wal, 1, 4);
        wal.delete_through(1).expect("delete");
        drop(wal);
        let logs = logs(&disk);
        assert_eq!(logs.len(), 3);
        assert!(
            disk.list("wal")
                .expect("list")
                .iter()
                .any(|n| n.ends_with(".spare"))
        );
        disk.remove(&logs[missing]).expect("remove");
        let error = open_error(&disk);
        assert!(error.contains("is missing from wal/"), "{error}");
        assert!(error.contains(&logs[missing]), "{error}");
    }
}

#[test]
fn log_without_any_file_is_refused_despite_a_spare() {
    let disk = SimDisk::new();
    let (mut wal, _) = open(&disk, 1).expect("open");
    fill(&mut wal, 1, 2);
    wal.delete_through(1).expect("delete");
    drop(wal);
    for path in logs(&disk) {
        disk.remove(&path).expect("remove");
    }
    let error = open_error(&disk);
    assert!(error.contains("no log file at all"), "{error}");
}

#[test]
fn missing_manifest_is_refused_unless_an_older_version_wrote_the_log() {
    let disk = SimDisk::new();
    let (mut wal, _) = open(&disk, 1).expect("open");
    fill(&mut wal, 1, 2);
    drop(wal);
    disk.remove("wal/manifest").expect("remove");
    let error = open_error(&disk);
    assert!(error.contains("wal/manifest is missing"), "{error}");

    // A header of an older version, which has zeros where this version records a manifest.
    for path in logs(&disk) {
        let file = disk.open(&path).expect("open");
        let mut header = vec![0; 4096];
        file.read_at(0, &mut header).expect("read");
        header[56..64].fill(0);
        let crc = crc32fast::hash(&header[..4092]);
        header[4092..].copy_from_slice(&crc.to_le_bytes());
        file.write_at(0, &header).expect("write");
    }
    let (mut wal, recovered) = open(&disk, 2).expect("directory of an older version opens");
    assert_eq!(recovered.files, [1, 2]);
    // From now on a manifest exists.
    let last = recovered.groups[&GroupId(1)].entries.len() as u64;
    wal.append(&[entry(last + 1)]).expect("append");
    wal.sync().expect("sync");
    drop(wal);
    disk.remove(logs(&disk).last().expect("a log file"))
        .expect("remove");
    assert!(open_error(&disk).contains("0000000000000003.wal is missing"));
}

/// The file ends at a record boundary: only the manifest knows that more was durable.
#[test]
fn truncated_log_is_not_mistaken_for_a_torn_tail() {
    for stopped in [false, true] {
        for cut in [4096 + 30, 20_000, 50_000] {
            let disk = SimDisk::new();
            let (mut wal, _) = open(&disk, 1).expect("open");
            for index in 1..=100 {
                wal.append(&[entry(index)]).expect("append");
                wal.sync().expect("sync");
            }
            match stopped {
                true => wal.close().expect("close"),
                false => drop(wal),
            }
            let path = logs(&disk).remove(0);
            disk.open(&path).expect("open").truncate(cut).expect("cut");
            let error = open_error(&disk);
            assert!(
                error.contains("records that followed were durable"),
                "{error}"
            );
            assert!(error.contains(&path), "{error}");
        }
    }
}

/// A note costs one small write per sync, and no sync.
#[test]
fn manifest_costs_no_sync_between_rolls() {
    let disk = SimDisk::new();
    let (mut wal, _) = open(&disk, 1).expect("open");
    wal.append(&[entry(1)]).expect("append");
    wal.sync().expect("sync");
    let before = disk.counters();
    for index in 2..=151 {
        wal.append(&[entry(index)]).expect("append");
        wal.sync().expect("sync");
    }
    let after = disk.counters();
    assert_eq!(after.syncs - before.syncs, 150);
    assert_eq!(after.writes - before.writes, 2 * 150);
    let records = 150 * (RECORD as u64 + 46);
    let notes = after.bytes_written - before.bytes_written - records;
    assert!(notes <= 150 * 100, "{notes} bytes");
}

/// Whenever power fails, the remaining log opens and holds every durable record.
#[test]
fn log_opens_after_any_power_failure() {
    for cut in 1..260 {
        let disk = SimDisk::new();
        let (mut wal, _) = open(&disk, 1).expect("open");
        disk.cut_power_after(Some(cut));
        let mut durable = 0;
        for index in 1..=600 {
            let written = wal.append(&[entry(index)]).and_then(|rolled| {
                wal.sync()?;
                durable = index;
                match rolled {
                    Some(rolled) if rolled.file % 2 == 0 => wal.delete_through(rolled.file - 1),
                    _ => Ok(()),
                }
            });
            if written.is_err() {
                break;
            }
        }
        drop(wal);
        disk.crash(&mut SeededRng::new(cut));
        let (_, recovered) = open(&disk, 2).unwrap_or_else(|e| panic!("cut {cut}: {e}"));
        let group = recovered.groups.get(&GroupId(1));
        let newest = group.and_then(|g| g.entries.last()).map_or(0, |e| e.index);
        assert!(newest >= durable, "cut {cut}: {newest} of {durable}");
    }
}

/// A killed process has noted everything it acknowledged: even the newest record cannot pass for a torn tail.
#[test]
fn damage_to_the_newest_acknowledged_record_is_detected_after_a_kill() {
    const LEN: u64 = RECORD as u64 + 46;
    for damaged in 1..=3 {
        for cut in [false, true] {
            let disk = SimDisk::new();
            let (mut wal, _) = open(&disk, 1).expect("open");
            for index in 1..=3 {
                wal.append(&[entry(index)]).expect("append");
                wal.sync().expect("sync");
            }
            drop(wal);
            let path = logs(&disk).remove(0);
            let middle = 4096 + (damaged - 1) * LEN + LEN / 2;
            match cut {
                true => assert!(disk.lose_end(&path, middle)),
                false => assert!(disk.flip(&path, middle, 0x40)),
            }
            let error = open_error(&disk);
            assert!(error.contains(&path), "{error}");
        }
    }
}

/// Records written but not synced are not acknowledged: damage to them is a torn tail.
#[test]
fn damage_after_the_newest_acknowledged_record_is_a_torn_tail() {
    const LEN: u64 = RECORD as u64 + 46;
    let disk = SimDisk::new();
    let (mut wal, _) = open(&disk, 1).expect("open");
    wal.append(&[entry(1)]).expect("append");
    wal.sync().expect("sync");
    wal.append(&[entry(2), entry(3)]).expect("append");
    drop(wal);
    let path = logs(&disk).remove(0);
    assert!(disk.flip(&path, 4096 + LEN + LEN / 2, 0x40));
    let (_, recovered) = open(&disk, 9).expect("a torn tail is accepted");
    assert_eq!(recovered.groups[&GroupId(1)].entries.len(), 1);
    assert!(recovered.torn.is_some());
}
