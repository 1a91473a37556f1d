//! Files of another queue or another format, and damaged headers.

use super::segment_header;
use super::tests::{Rig, settings};
use super::*;
use crate::SettlementOutcome;
use crate::model::message;
use bytes::BytesMut;
use env::sim::SimDisk;

const SEGMENT: &str = "classic/0000000000000005/00000001.seg";
const ACKS: &str = "classic/0000000000000005/00000001.ack";

/// Ten messages on disk, of which the first two are recorded as settled.
fn killed() -> SimDisk {
    killed_rig().disk
}

fn killed_rig() -> Rig {
    let mut rig = Rig::new(settings());
    for n in 1..=10 {
        let publish = RequestBody::Publish(message(n, None, None, 100));
        rig.request(9, publish);
    }
    rig.pass(WRITE_AFTER);
    rig.consume(1, 1, 2);
    for id in 1..=2 {
        rig.settle(1, 1, SettlementOutcome::Accepted, id);
    }
    rig.queue.write_all(&mut QueueOutput::default()).unwrap();
    rig
}

fn read(disk: &SimDisk, path: &str) -> Vec<u8> {
    let file = disk.open(path).unwrap();
    let mut bytes = vec![0; file.len().unwrap() as usize];
    file.read_at(0, &mut bytes).unwrap();
    bytes
}

fn replace(disk: &SimDisk, path: &str, bytes: &[u8]) {
    let _ = disk.remove(path);
    disk.create(path).unwrap().write_at(0, bytes).unwrap();
}

fn open(disk: &SimDisk, id: u64) -> io::Result<ClassicQueue> {
    let label = "queue 'q' in vhost '/'".into();
    ClassicQueue::open(
        Arc::new(disk.clone()),
        QueueId(id),
        label,
        settings(),
        Incarnation(2),
    )
}

/// The ready messages and the reported faults.
fn opened(disk: &SimDisk) -> (u64, Vec<String>) {
    let mut queue = open(disk, 5).unwrap();
    let mut out = QueueOutput::default();
    queue.flush(Timestamps::default(), &mut out);
    (queue.stats().ready, out.faults)
}

#[test]
fn file_of_another_queue_is_refused_and_unchanged() {
    let disk = killed();
    disk.create_dir("classic/0000000000000006").unwrap();
    for (path, other) in [
        (SEGMENT, "classic/0000000000000006/00000001.seg"),
        (SEGMENT, "classic/0000000000000006/00000002.seg"),
    ] {
        let bytes = read(&disk, path);
        replace(&disk, other, &bytes);
        let error = open(&disk, 6).err().unwrap().to_string();
        assert!(error.contains(other), "{error}");
        assert!(error.contains("of queue 0000000000000005"), "{error}");
        assert_eq!(read(&disk, other), bytes);
        disk.remove(other).unwrap();
    }
    // Its own segment with the ack file of another queue.
    let mut acks = read(&disk, ACKS);
    let mut of_another = BytesMut::new();
    let number = super::location::SegmentId::new(0, 1);
    segment_header::put(
        &mut of_another,
        segment_header::FileKind::Acks,
        QueueId(6),
        number,
    );
    acks[..segment_header::LEN].copy_from_slice(&of_another);
    replace(&disk, ACKS, &acks);
    let error = open(&disk, 5).err().unwrap().to_string();
    assert!(
        error.contains(ACKS) && error.contains("of queue 0000000000000006"),
        "{error}"
    );
}

#[test]
fn file_of_a_newer_format_is_refused_and_unchanged() {
    for path in [SEGMENT, ACKS] {
        let disk = killed();
        let mut bytes = read(&disk, path);
        bytes[8] = 2;
        replace(&disk, path, &bytes);
        let error = open(&disk, 5).err().unwrap().to_string();
        assert!(
            error.contains(path) && error.contains("format version 2"),
            "{error}"
        );
        assert_eq!(read(&disk, path), bytes);
    }
}

#[test]
fn file_without_a_header_is_reported_as_damaged() {
    for path in [SEGMENT, ACKS] {
        let disk = killed();
        let bytes = read(&disk, path);
        replace(&disk, path, &bytes[segment_header::LEN..]);
        let (_, faults) = opened(&disk);
        assert!(faults.iter().any(|f| f.contains(path)), "{faults:?}");
    }
}

/// A crash between the creation of an ack file and its first write leaves it empty or cut off in the header.
#[test]
fn ack_file_that_ends_in_its_header_gets_a_new_header() {
    for len in [0, 1, 8, segment_header::LEN - 1] {
        let mut rig = killed_rig();
        let acks = read(&rig.disk, ACKS);
        replace(&rig.disk, ACKS, &acks[..len]);
        rig.restart(false);
        rig.consume(1, 1, 2);
        rig.settle(1, 1, SettlementOutcome::Accepted, 1);
        rig.queue.write_all(&mut QueueOutput::default()).unwrap();
        assert_eq!(opened(&rig.disk), (9, Vec::new()), "{len} bytes");
    }
}

#[test]
fn damaged_header_loses_no_message_and_is_reported() {
    for at in (0..segment_header::LEN as u64).filter(|at| *at != 8) {
        let disk = killed();
        assert!(disk.flip(SEGMENT, at, 0x11));
        let (ready, faults) = opened(&disk);
        assert_eq!(ready, 8, "at {at}");
        assert!(faults.iter().any(|f| f.contains(SEGMENT)), "{faults:?}");
        let disk = killed();
        assert!(disk.flip(ACKS, at, 0x11));
        let (ready, faults) = opened(&disk);
        assert!((8..=10).contains(&ready), "{ready} at {at}");
        assert!(faults.iter().any(|f| f.contains(ACKS)), "{faults:?}");
    }
}

#[test]
fn file_without_a_readable_record_is_kept() {
    let disk = killed();
    let bytes = vec![0xA5; 5000];
    replace(&disk, SEGMENT, &bytes);
    let (ready, faults) = opened(&disk);
    assert_eq!(ready, 0);
    let aside = format!("{SEGMENT}.damaged");
    assert!(faults.iter().any(|f| f.contains(&aside)), "{faults:?}");
    assert_eq!(read(&disk, &aside), bytes);
}

/// The numbers of the messages that are left, whose content is checked, and whether the affected file was
/// reported.
fn left(mut rig: Rig, path: &str, what: &str) -> (Vec<u64>, bool) {
    rig.restart(false);
    let (left, faults) = rig.drain();
    assert!(left.is_sorted() && left.iter().all(|n| (1..=10).contains(n)));
    let events = faults.iter().any(|f| f.contains(path));
    assert_eq!(events, !faults.is_empty(), "{path} {what}: {faults:?}");
    (left, events)
}

#[test]
fn changed_byte_is_reported_or_has_no_effect() {
    for path in [SEGMENT, ACKS] {
        let len = read(&killed(), path).len() as u64;
        // The version has a test of its own.
        for at in (0..len).filter(|at| *at != 8) {
            let rig = killed_rig();
            assert!(rig.disk.flip(path, at, 0x81));
            let (left, events) = left(rig, path, &format!("bent at {at}"));
            assert!(
                events || left == (3..=10).collect::<Vec<_>>(),
                "at {at}: {left:?}"
            );
        }
    }
}

/// Nothing is synced, so after a kill a file may end after any record; any other end is damage. A clean stop
/// records the number of messages.
#[test]
fn segment_truncated_within_a_record_is_reported() {
    let whole = read(&killed(), SEGMENT);
    let record = (whole.len() - segment_header::LEN) / 10;
    let ends = (0..10).map(|n| segment_header::LEN + n * record);
    let ends: Vec<usize> = std::iter::once(0).chain(ends).collect();
    for (counted, expected) in [(true, Vec::new()), (false, ends)] {
        let mut untold = Vec::new();
        for len in 0..whole.len() {
            let rig = killed_rig();
            if !counted {
                rig.disk
                    .remove("classic-inventory/0000000000000005")
                    .unwrap();
            }
            replace(&rig.disk, SEGMENT, &whole[..len]);
            let (left, events) = left(rig, SEGMENT, &format!("cut off at {len}"));
            assert_eq!(left, (3..3 + left.len() as u64).collect::<Vec<_>>());
            if !events {
                untold.push(len);
            }
        }
        assert_eq!(untold, expected, "counted: {counted}");
    }
}
