//! Shortage of descriptors: the log waits, and neither stops nor loses durable records.

use bytes::Bytes;
use env::sim::SimDisk;
use env::{NodeId, SeededRng};
use std::sync::Arc;
use wal::{Entry, GroupId, Record, RecordBody, Recovered, Wal, WalConfig, WalError, Writer};

const GROUP: GroupId = GroupId(1);
/// More file openings than a new file needs.
const OPENINGS: u64 = 8;

fn open(disk: &SimDisk, salt: u64) -> Result<(Wal, Recovered), WalError> {
    let config = WalConfig {
        max_file_bytes: 16 << 10,
        grow_bytes: 3000,
        ..WalConfig::new(NodeId(7), salt)
    };
    Wal::open(Arc::new(disk.clone()), config)
}

fn entry(index: u64) -> Record {
    Record {
        group: GROUP,
        body: RecordBody::Entry(Entry {
            index,
            term: 1,
            kind: 3,
            data: Bytes::from(vec![index as u8; 3000]),
        }),
    }
}

/// A log with a few files, of which the oldest are obsolete.
fn log_with_a_spare(disk: &SimDisk) -> (Wal, u64) {
    let (mut wal, _) = open(disk, 1).expect("open");
    let mut index = 0;
    while wal.files().len() < 4 {
        index += 1;
        wal.append(&[entry(index)]).expect("append");
        wal.sync().expect("sync");
    }
    wal.delete_through(1).expect("delete");
    (wal, index)
}

/// Each file opening needed for a new file fails once, with and without a spare file, and possibly followed
/// by a power failure.
#[test]
fn records_wait_for_descriptors_without_losing_durable_records() {
    let mut shortages = 0;
    for after in 0..OPENINGS {
        for (fresh, crashes) in [(true, true), (true, false), (false, true), (false, false)] {
            let disk = SimDisk::new();
            let (wal, first) = match fresh {
                true => (open(&disk, 1).expect("open").0, 0),
                false => log_with_a_spare(&disk),
            };
            let mut writer = Writer::new(wal);
            disk.run_out_of_descriptors_after(Some(after));
            let last = first + 20;
            for token in first + 1..=last {
                writer.push(token, vec![entry(token)]);
            }
            let mut durable = Vec::new();
            while !writer.is_idle() {
                let progress = writer
                    .step(&mut durable)
                    .expect("a shortage is not an error");
                if progress.full {
                    shortages += 1;
                    if crashes {
                        break;
                    }
                    // It is refused again while the shortage lasts.
                    let retried = writer
                        .step(&mut durable)
                        .expect("a shortage is not an error");
                    assert!(retried.full || after > 0);
                    disk.set_out_of_descriptors(false);
                }
            }
            disk.set_out_of_descriptors(false);
            drop(writer);
            disk.crash(&mut SeededRng::new(after));
            let (_, recovered) = open(&disk, 2).expect("log is intact");
            let found = recovered.groups.get(&GROUP);
            let found = found.and_then(|g| g.entries.last()).map_or(0, |e| e.index);
            let acknowledged = durable.last().copied().unwrap_or(first);
            assert!(found >= acknowledged, "{found} of {acknowledged}");
            assert!(crashes || acknowledged == last);
        }
    }
    assert!(shortages > 4, "only {shortages} shortages");
}

#[test]
fn deletion_succeeds_once_descriptors_are_available() {
    for after in 0..OPENINGS {
        let disk = SimDisk::new();
        let (mut wal, last) = log_with_a_spare(&disk);
        let complete = wal.files().len() as u64;
        disk.run_out_of_descriptors_after(Some(after));
        if let Err(error) = wal.delete_through(complete) {
            assert!(!error.is_fatal(), "{error}");
        }
        disk.set_out_of_descriptors(false);
        wal.delete_through(complete).expect("descriptors are back");
        wal.append(&[entry(last + 1)]).expect("append");
        wal.sync().expect("sync");
        assert_eq!(wal.files().len(), 1);
        disk.crash(&mut SeededRng::new(after));
        open(&disk, 2).expect("log is intact");
    }
}

#[test]
fn start_without_descriptors_names_the_limit_not_damage() {
    let disk = SimDisk::new();
    drop(log_with_a_spare(&disk));
    for after in 0..OPENINGS {
        disk.run_out_of_descriptors_after(Some(after));
        let Err(error) = open(&disk, 2) else { continue };
        let text = error.to_string();
        assert!(text.contains("limit"), "{text}");
        assert!(!text.contains("damaged"), "{text}");
    }
    disk.set_out_of_descriptors(false);
    open(&disk, 2).expect("log is intact");
}
