//! Segments that are missing or truncated at the end of a record: the queue reports them, and their messages as
//! far as it knows the number.

use super::tests::{Rig, settings};
use super::*;
use crate::SettlementOutcome;
use env::Disk;

const FIRST: &str = "classic/0000000000000005/00000001.seg";
const SECOND: &str = "classic/0000000000000005/00000002.seg";

/// Messages in three segments; the inventory counts those of the first two.
fn three_segments() -> (Rig, u64) {
    let mut rig = Rig::new(settings());
    let mut n = 0;
    let segments = |rig: &Rig| {
        let files = rig.disk.files();
        files
            .iter()
            .filter(|(path, _)| path.ends_with(".seg"))
            .count()
    };
    while segments(&rig) < 3 {
        n += 1;
        rig.publish(n, true, 60_000);
        rig.pass(WRITE_AFTER);
    }
    (rig, n)
}

/// The losses reported after the next start, and the number of messages.
fn restarted(rig: &mut Rig, stops: bool, lose: &[&str]) -> (Vec<String>, u64) {
    if stops {
        rig.queue.write_all(&mut QueueOutput::default()).unwrap();
    }
    for path in lose {
        rig.disk.remove(path).unwrap();
    }
    rig.restart(false);
    let mut out = QueueOutput::default();
    rig.queue.flush(rig.at, &mut out);
    (out.faults, rig.queue.stats().ready)
}

#[test]
fn missing_segment_is_reported_with_its_number_of_messages() {
    for lose in [FIRST, SECOND] {
        for stops in [true, false] {
            let (mut rig, all) = three_segments();
            let (faults, ready) = restarted(&mut rig, stops, &[lose]);
            let lost = format!("{lose} is missing: {} messages are lost", all - ready);
            assert_eq!(faults, [format!("queue 'q' in vhost '/': {lost}")]);
            // It is reported once.
            assert_eq!(restarted(&mut rig, stops, &[]), (Vec::new(), ready));
        }
    }
}

#[test]
fn missing_only_segment_is_reported() {
    for (stops, count) in [
        (true, "5 messages are lost"),
        (false, "how many is not known"),
    ] {
        let mut rig = Rig::new(settings());
        for n in 1..=5 {
            rig.publish(n, true, 100);
        }
        rig.pass(WRITE_AFTER);
        let (faults, ready) = restarted(&mut rig, stops, &[FIRST]);
        assert_eq!((faults.len(), ready), (1, 0), "{faults:?}");
        // A clean stop leaves another file.
        let path = if stops {
            FIRST
        } else {
            "classic/0000000000000005/ is missing or empty"
        };
        assert!(
            faults[0].contains(path) && faults[0].contains(count),
            "{faults:?}"
        );
    }
}

/// Settled messages are not lost, and deleted segments are not reported.
#[test]
fn settled_messages_and_deleted_segments_are_not_reported() {
    let (mut rig, all) = three_segments();
    rig.consume(1, 1, 0);
    rig.settle(1, 1, SettlementOutcome::Accepted, 1);
    rig.pass(WRITE_AT_LAST);
    let (faults, ready) = restarted(&mut rig, true, &[FIRST]);
    let lost = format!("{} messages are lost", all - 1 - ready);
    assert!(faults.len() == 1 && faults[0].contains(&lost), "{faults:?}");
    assert_eq!(rig.drain().0.len() as u64, ready);
    assert_eq!(restarted(&mut rig, false, &[]), (Vec::new(), 0));
    assert_eq!(restarted(&mut rig, true, &[]), (Vec::new(), 0));
}

#[test]
fn segment_truncated_between_two_messages_is_reported() {
    let mut rig = Rig::new(settings());
    for n in 1..=5 {
        rig.publish(n, true, 100);
    }
    rig.pass(WRITE_AFTER);
    rig.queue.write_all(&mut QueueOutput::default()).unwrap();
    let len = rig.disk.open(FIRST).unwrap().len().unwrap();
    let front = segment_header::LEN as u64;
    let record = (len - front) / 5;
    assert!(rig.disk.lose_end(FIRST, front + 3 * record));
    let (faults, ready) = restarted(&mut rig, false, &[]);
    assert_eq!(ready, 3);
    assert!(
        faults.len() == 1 && faults[0].contains("2 messages are lost"),
        "{faults:?}"
    );
}

/// A full disk may have cost the queue its inventory.
#[test]
fn queue_without_an_inventory_opens() {
    let (mut rig, all) = three_segments();
    let path = "classic-inventory/0000000000000005";
    assert_eq!(restarted(&mut rig, false, &[path, FIRST]).0, [""; 0]);
    let (faults, ready) = restarted(&mut rig, false, &[SECOND]);
    assert!(ready < all);
    assert!(
        faults.len() == 1 && faults[0].contains("how many is not known"),
        "{faults:?}"
    );
}

/// The inventory is outside of the directory that it describes.
#[test]
fn missing_directory_is_reported_with_the_number_of_messages() {
    const DIR: &str = "classic/0000000000000005";
    for (stops, count) in [
        (true, "5 messages are lost at most"),
        (false, "how many is not known"),
    ] {
        let mut rig = Rig::new(settings());
        for n in 1..=5 {
            rig.publish(n, true, 100);
        }
        rig.pass(WRITE_AFTER);
        if stops {
            rig.queue.write_all(&mut QueueOutput::default()).unwrap();
        }
        rig.disk.remove_dir(DIR).unwrap();
        let (faults, ready) = restarted(&mut rig, false, &[]);
        assert_eq!((faults.len(), ready), (1, 0), "{faults:?}");
        let faults = &faults[0];
        assert!(faults.starts_with("queue 'q' in vhost '/': "), "{faults}");
        assert!(
            faults.contains(&format!("{DIR}/ is missing or empty")),
            "{faults}"
        );
        assert!(faults.contains(count), "{faults}");
        let lost = rig.queue.stats().lost;
        let messages = if stops { 5 } else { 0 };
        assert_eq!((lost.messages, lost.segments), (messages, 1));
        // It is reported once, and the queue works.
        assert_eq!(restarted(&mut rig, false, &[]), (Vec::new(), 0));
        rig.publish(6, true, 100);
        rig.pass(WRITE_AFTER);
        assert_eq!(restarted(&mut rig, true, &[]), (Vec::new(), 1));
    }
}

#[test]
fn missing_directory_of_an_empty_queue_is_not_reported() {
    // Never written to.
    let mut rig = Rig::new(settings());
    rig.disk.remove_dir("classic/0000000000000005").unwrap();
    assert_eq!(restarted(&mut rig, true, &[]), (Vec::new(), 0));
    // All messages are settled.
    let (mut rig, _) = three_segments();
    rig.drain();
    rig.pass(WRITE_AT_LAST);
    assert_eq!(restarted(&mut rig, true, &[]), (Vec::new(), 0));
    rig.disk.remove_dir("classic/0000000000000005").unwrap();
    assert_eq!(restarted(&mut rig, false, &[]), (Vec::new(), 0));
    // Deleted, while the metadata log still contains the queue.
    let (mut rig, _) = three_segments();
    rig.queue.destroy(&mut QueueOutput::default());
    assert_eq!(restarted(&mut rig, false, &[]), (Vec::new(), 0));
}
