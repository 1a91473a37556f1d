//! Appending, following, truncation, retention and recovery without damage.

use super::*;
use crate::{
    ChunkKind, Deduplication, EpochEnd, EpochStart, MAX_OFFSETS, Retention, TruncateError,
};
use bytes::Bytes;
use env::SeededRng;
use std::time::Duration;

#[test]
fn appended_messages_are_read_at_their_offsets() {
    let disk = SimDisk::new();
    let (mut log, cut) = open(&disk);
    assert_eq!(cut, None);
    let first = append(&mut log, 1, 10, &[b"a", b"b"]);
    let second = append(&mut log, 1, 11, &[b"c"]);
    assert_eq!((first.first_offset, second.first_offset), (0, 2));
    assert_eq!(
        (log.next_offset(), log.written(), log.readable()),
        (3, 0, 0)
    );
    write_all(&mut log, &disk);
    assert_eq!(
        (log.written(), log.readable(), log.pending_bytes()),
        (3, 0, 0)
    );
    let view = log.view();
    assert!(
        read_chunks(&disk, &view, Start::First)
            .expect("reads")
            .is_empty()
    );
    log.commit(2);
    let view = log.view();
    let chunks = read_chunks(&disk, &view, Start::First).expect("reads");
    assert_eq!(messages(&chunks), [(0, b"a".to_vec()), (1, b"b".to_vec())]);
    log.commit(1);
    assert_eq!(log.readable(), 2, "the committed offset never decreases");
}

#[test]
fn empty_builder_appends_nothing() {
    let (mut log, _) = open(&SimDisk::new());
    let mut builder = log.builder();
    assert_eq!(log.append(&mut builder, 1, WallTime(1)), Ok(None));
    assert!(log.take_append().is_none() && log.take_maintenance().is_none());
}

#[test]
fn one_job_writes_what_accumulated() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    append(&mut log, 1, 10, &[b"a"]);
    let job = log.take_append().expect("a job");
    assert_eq!(job.next_offset(), 1);
    append(&mut log, 1, 10, &[b"b"]);
    append(&mut log, 1, 10, &[b"c"]);
    assert!(log.take_append().is_none(), "one job at a time");
    log.append_done(job.run(&disk)).expect("written");
    let job = log.take_append().expect("a job");
    assert_eq!(job.next_offset(), 3);
    assert!(job.space() > job.bytes() as u64);
    log.append_done(job.run(&disk)).expect("written");
    assert_eq!(messages(&read_all(&mut log, &disk)).len(), 3);
}

#[test]
fn log_with_too_many_unwritten_bytes_is_busy() {
    let (mut log, _) = open(&SimDisk::new());
    let large = vec![0; 9 << 20];
    while log.pending_bytes() < crate::MAX_PENDING_BYTES {
        append(&mut log, 1, 1, &[&large]);
    }
    let mut builder = with_messages(log.builder(), &[b"x"]);
    let refused = log.append(&mut builder, 1, WallTime(1));
    assert_eq!(refused, Err(AppendError::Busy));
    assert_eq!(builder.records(), 1, "the builder keeps its content");
    let job = log.take_append().expect("a job");
    assert!(job.bytes() < 10 << 20, "a job is bounded");
}

#[test]
fn segments_after_the_first_start_with_a_snapshot() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let mut builder = with_messages(log.builder(), &[b"m"]);
    builder.set_sequence(b"producer", 5).expect("fits");
    builder.set_offset(b"consumer", 0).expect("fits");
    log.append(&mut builder, 1, WallTime(1)).expect("appended");
    fill(&mut log, &disk, 3);
    let chunks = read_all(&mut log, &disk);
    let snapshots: Vec<u64> = (chunks.iter())
        .filter(|c| c.header().kind == crate::ChunkKind::TrackingSnapshot)
        .map(|c| c.header().first_offset)
        .collect();
    let firsts: Vec<u64> = log.segments().map(|s| s.first_offset).collect();
    assert_eq!(firsts[0], 0);
    assert_eq!(snapshots, firsts[1..]);
    assert!(
        log.segments()
            .take(2)
            .all(|s| s.bytes >= 1000 && s.is_sealed)
    );
    // A restart takes the tracking data from the newest segment.
    disk.restart();
    let (reopened, cut) = open(&disk);
    assert_eq!(cut, None);
    assert_eq!(reopened.tracking(), log.tracking());
    assert_eq!(
        reopened
            .tracking()
            .sequence(b"producer")
            .map(|s| s.sequence),
        Some(5)
    );
}

#[test]
fn duplicates_are_recognized_in_the_log_and_in_the_next_chunk() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let mut builder = log.builder();
    let duplicate = |committed_above| Deduplication::Duplicate { committed_above };
    assert_eq!(log.deduplicate(&builder, b"p", 5), Deduplication::New);
    builder.push_message(b"five", None).expect("fits");
    builder.set_sequence(b"p", 5).expect("fits");
    assert_eq!(log.deduplicate(&builder, b"p", 5), duplicate(0));
    assert_eq!(log.deduplicate(&builder, b"p", 6), Deduplication::New);
    assert_eq!(log.deduplicate(&builder, b"q", 1), Deduplication::New);
    log.append(&mut builder, 1, WallTime(1)).expect("appended");
    append(&mut log, 1, 1, &[b"x"]);
    assert_eq!(log.deduplicate(&builder, b"p", 3), duplicate(0));
    settle(&mut log, &disk);
    let (log, _) = open(&disk);
    assert_eq!(log.deduplicate(&builder, b"p", 5), duplicate(0));
    assert_eq!(log.deduplicate(&builder, b"p", 6), Deduplication::New);
}

/// The snapshot of a new segment takes an offset before the chunk.
#[test]
fn duplicate_in_the_first_chunk_of_a_segment_waits_for_that_chunk() {
    let (mut log, _) = open(&SimDisk::new());
    let mut sequence = 0;
    while log.segments().len() < 3 {
        let mut builder = with_messages(log.builder(), &[&[0; 300]]);
        sequence += 1;
        builder.set_sequence(b"p", sequence).expect("fits");
        let expected = log.deduplicate(&builder, b"p", sequence);
        let header = log.append(&mut builder, 1, WallTime(1));
        let committed_above = header.expect("appended").expect("a chunk").first_offset;
        assert_eq!(expected, Deduplication::Duplicate { committed_above });
        assert_eq!(log.deduplicate(&builder, b"p", sequence), expected);
    }
}

#[test]
fn stored_offsets_are_limited_and_survive() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let mut builder = log.builder();
    for n in 0..MAX_OFFSETS {
        let name = format!("consumer-{n}");
        assert_eq!(log.store_offset(&mut builder, name.as_bytes(), 7), Ok(true));
    }
    assert_eq!(log.store_offset(&mut builder, b"one more", 7), Ok(false));
    assert_eq!(log.store_offset(&mut builder, b"consumer-3", 8), Ok(true));
    log.append(&mut builder, 1, WallTime(1)).expect("appended");
    assert_eq!(log.store_offset(&mut builder, b"one more", 7), Ok(false));
    builder.set_offset(b"one more", 7).expect("fits");
    let refused = log.append(&mut builder, 1, WallTime(1));
    assert_eq!(refused, Err(AppendError::TooManyOffsets));
    settle(&mut log, &disk);
    let (log, _) = open(&disk);
    assert_eq!(log.tracking().offset(b"consumer-3"), Some(8));
    assert_eq!(log.tracking().offset_count(), MAX_OFFSETS);
}

/// Copies the chunks that `follower` lacks.
fn follow(follower: &mut StreamLog, leader: &mut StreamLog, disk: &SimDisk) {
    let view = leader.replication_view();
    let start = Start::Offset(follower.next_offset());
    for chunk in read_chunks(disk, &view, start).expect("reads") {
        follower.accept(chunk.bytes().clone()).expect("accepted");
    }
}

#[test]
fn followers_have_identical_files() {
    let (disk, other) = (SimDisk::new(), SimDisk::new());
    let (mut log, _) = open(&disk);
    let (mut follower, _) = open(&other);
    fill(&mut log, &disk, 4);
    follow(&mut follower, &mut log, &disk);
    settle(&mut follower, &other);
    let files = disk.files();
    assert_eq!(files, other.files());
    for (path, _) in files {
        let content = golden::read_file(&disk, &path);
        assert_eq!(content, golden::read_file(&other, &path), "{path}");
    }
    assert_eq!(log.epochs(), follower.epochs());
    assert_eq!(log.tracking(), follower.tracking());
}

#[test]
fn follower_refuses_chunks_that_do_not_continue_its_log() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 2);
    let chunks = read_all(&mut log, &disk);
    let bytes = |at: usize| chunks[at].bytes().clone();
    let (mut follower, _) = open(&SimDisk::new());
    let gap = AppendError::Gap {
        expected: 0,
        found: 1,
    };
    assert_eq!(follower.accept(bytes(1)), Err(gap));
    let damaged = Bytes::from([&bytes(0)[..100], b"x"].concat());
    assert!(matches!(
        follower.accept(damaged),
        Err(AppendError::Fault(_))
    ));
    follower.accept(bytes(0)).expect("accepted");
    let gap = AppendError::Gap {
        expected: 1,
        found: 0,
    };
    assert_eq!(follower.accept(bytes(0)), Err(gap));
    // A new epoch begins here; the leader of the old one is not accepted any more.
    append(&mut follower, 9, 1, &[b"x"]);
    let (mut other, _) = open(&SimDisk::new());
    append(&mut other, 1, 1, &[b"y"]);
    append(&mut other, 1, 1, &[b"z"]);
    let stale = other.append(&mut with_messages(other.builder(), &[b"a"]), 0, WallTime(1));
    assert_eq!(
        stale,
        Err(AppendError::StaleEpoch {
            epoch: 0,
            newest: 1
        })
    );
    let mut builder = with_messages(ChunkBuilder::new(16), &[b"late"]);
    let late = builder.finish(2, 8, 1).expect("a chunk");
    let stale = AppendError::StaleEpoch {
        epoch: 8,
        newest: 9,
    };
    assert_eq!(follower.accept(late.bytes().clone()), Err(stale));
}

#[test]
fn replica_can_start_at_a_segment_of_its_leader() {
    let (disk, other) = (SimDisk::new(), SimDisk::new());
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 3);
    let start = log.segments().nth(1).expect("three").first_offset;
    let (mut follower, _) = StreamLog::open(&other, STREAM, config(), start).expect("opens");
    let all = read_all(&mut log, &disk);
    let message = all
        .iter()
        .find(|c| c.header().first_offset > start)
        .expect("some");
    let (mut misplaced, _) =
        StreamLog::open(&other, STREAM, config(), message.header().first_offset).expect("opens");
    let refused = misplaced.accept(message.bytes().clone());
    assert_eq!(refused, Err(AppendError::SnapshotMissing));
    follow(&mut follower, &mut log, &disk);
    settle(&mut follower, &other);
    assert_eq!(
        (follower.first_offset(), follower.next_offset()),
        (start, log.next_offset())
    );
    assert_eq!(follower.tracking(), log.tracking());
    disk.restart();
    let (follower, cut) = open(&other);
    assert_eq!((follower.first_offset(), cut), (start, None));
}

#[test]
fn epochs_state_where_logs_differ() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    for (epoch, at) in [(1, 10), (1, 11), (4, 12), (6, 13)] {
        append(&mut log, epoch, at, &[b"m"]);
    }
    let end = |epoch, end| Some(EpochEnd { epoch, end });
    assert_eq!(log.epoch_end(0), None);
    assert_eq!((log.epoch_end(1), log.epoch_end(3)), (end(1, 2), end(1, 2)));
    assert_eq!((log.epoch_end(5), log.epoch_end(9)), (end(4, 3), end(6, 4)));
    settle(&mut log, &disk);
    let (reopened, _) = open(&disk);
    assert_eq!(reopened.epochs(), log.epochs());
    // The leader had one more record in epoch 4 and none of epoch 6.
    assert_eq!(log.divergence(end(4, 4)), 3);
    // The leader lacks the last record of epoch 1.
    assert_eq!(log.divergence(end(1, 1)), 1);
    assert_eq!(log.divergence(None), 0);
}

#[test]
fn marker_starts_an_epoch_without_messages() {
    let (disk, other) = (SimDisk::new(), SimDisk::new());
    let (mut log, _) = open(&disk);
    let marker = log.append_marker(3, WallTime(1)).expect("appended");
    assert_eq!(
        (marker.first_offset, marker.next_offset(), marker.epoch),
        (0, 1, 3)
    );
    let stale = AppendError::StaleEpoch {
        epoch: 2,
        newest: 3,
    };
    assert_eq!(log.append_marker(2, WallTime(1)), Err(stale));
    while log.segments().len() < 2 {
        append(&mut log, 3, 1, &[&[0; 300]]);
    }
    // A log without segments that does not begin at 0 begins with a snapshot, which is the marker.
    let (mut later, _) = StreamLog::open(&other, STREAM, config(), 50).expect("opens");
    let marker = later.append_marker(4, WallTime(1)).expect("appended");
    assert_eq!(
        (marker.kind, marker.first_offset),
        (crate::ChunkKind::TrackingSnapshot, 50)
    );
    settle(&mut log, &disk);
    let (mut follower, _) = open(&SimDisk::new());
    follow(&mut follower, &mut log, &disk);
    assert_eq!(follower.epochs(), log.epochs());
    let (reopened, cut) = open(&disk);
    assert_eq!((reopened.next_offset(), cut), (log.next_offset(), None));
    let first = &read_all(&mut log, &disk)[0];
    assert_eq!(first.tracking_records().count(), 0);
    assert!(messages(std::slice::from_ref(first)).is_empty());
}

#[test]
fn log_that_is_truncated_at_its_start_is_not_intact_after_a_restart() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 3);
    log.set_config(LogConfig {
        retention: Retention {
            max_bytes: Some(1),
            max_age: None,
        },
        ..config()
    });
    assert!(log.retain(WallTime(10)));
    settle(&mut log, &disk);
    let first = log.first_offset();
    assert!(first > 0);
    // After a restart nothing is known to be committed.
    let (mut log, _) = open(&disk);
    log.truncate(first).expect("not committed");
    crate::write_machine(&disk, STREAM, b"machine").expect("written");
    maintain(&mut log, &disk);
    assert_eq!((log.first_offset(), log.next_offset()), (first, first));
    let record = crate::read_machine(&disk, STREAM).expect("readable");
    assert_eq!(record, None, "a restart does not know the offset {first}");
}

#[test]
fn truncation_removes_whole_chunks_durably() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 3);
    let all = read_all(&mut log, &disk);
    let boundaries: Vec<u64> = all.iter().map(|c| c.header().first_offset).collect();
    for offset in boundaries.iter().rev().copied() {
        let copy = disk.copy();
        let (mut log, _) = open(&copy);
        log.truncate(offset).expect("starts");
        let mut builder = with_messages(log.builder(), &[b"x"]);
        let refused = log.append(&mut builder, 2, WallTime(1));
        assert_eq!(refused, Err(AppendError::Truncating));
        maintain(&mut log, &copy);
        assert_eq!(log.next_offset(), offset);
        let kept = all.iter().filter(|c| c.header().next_offset() <= offset);
        let kept: Vec<Chunk> = kept.cloned().collect();
        assert_eq!(read_all(&mut log, &copy), kept);
        let mut tracking = crate::Tracking::default();
        kept.iter()
            .for_each(|c| c.apply_tracking(&mut tracking).expect("applies"));
        assert_eq!(*log.tracking(), tracking);
        // The log continues in another epoch, and nothing of the old one returns.
        append(&mut log, 2, 9, &[b"new"]);
        settle(&mut log, &copy);
        copy.restart();
        let (mut reopened, cut) = open(&copy);
        assert_eq!((cut, reopened.next_offset()), (None, log.next_offset()));
        assert_eq!(read_all(&mut reopened, &copy), read_all(&mut log, &copy));
        let expected = read_all(&mut reopened, &copy);
        copy.crash(&mut SeededRng::new(offset));
        let (mut crashed, _) = open(&copy);
        let found = read_all(&mut crashed, &copy);
        assert_eq!(found, expected[..found.len()], "a prefix survives");
    }
}

#[test]
fn offset_inside_a_chunk_truncates_the_whole_chunk() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    append(&mut log, 1, 1, &[b"a"]);
    append(&mut log, 1, 1, &[b"b", b"c", b"d"]);
    write_all(&mut log, &disk);
    log.truncate(3).expect("starts");
    maintain(&mut log, &disk);
    assert_eq!(log.next_offset(), 1);
}

#[test]
fn committed_or_busy_logs_are_not_truncated() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    append(&mut log, 1, 1, &[b"a"]);
    assert_eq!(log.truncate(0), Err(TruncateError::Busy));
    let job = log.take_append().expect("a job");
    assert_eq!(log.truncate(0), Err(TruncateError::Busy));
    log.append_done(job.run(&disk)).expect("written");
    append(&mut log, 1, 1, &[b"b"]);
    write_all(&mut log, &disk);
    log.commit(1);
    let refused = TruncateError::Committed {
        offset: 0,
        committed: 1,
    };
    assert_eq!(log.truncate(0), Err(refused));
    log.truncate(1).expect("not committed");
    assert_eq!(log.truncate(1), Err(TruncateError::Busy));
    maintain(&mut log, &disk);
    log.truncate(1).expect("nothing to remove");
    assert!(log.take_maintenance().is_none());
}

#[test]
fn retention_by_bytes_keeps_the_newest_whole_segments() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 5);
    let sizes: Vec<u64> = log.segments().map(|s| s.bytes).collect();
    let newest_two: u64 = sizes[3..].iter().sum();
    let firsts: Vec<u64> = log.segments().map(|s| s.first_offset).collect();
    let retention = Retention {
        max_bytes: Some(newest_two),
        max_age: None,
    };
    log.set_config(LogConfig {
        retention,
        ..config()
    });
    assert!(log.retain(WallTime(0)));
    assert_eq!(log.first_offset(), firsts[3]);
    assert!(!log.retain(WallTime(0)));
    maintain(&mut log, &disk);
    let paths: Vec<String> = disk.files().into_iter().map(|(path, _)| path).collect();
    let kept = [
        index_file(firsts[3]),
        seal_file(firsts[3]),
        segment_file(firsts[3]),
        index_file(firsts[4]),
        segment_file(firsts[4]),
    ];
    assert_eq!(paths, kept);
    let retention = Retention {
        max_bytes: Some(0),
        max_age: None,
    };
    log.set_config(LogConfig {
        retention,
        ..config()
    });
    assert!(log.retain(WallTime(0)));
    assert_eq!(log.segments().len(), 1, "the last segment always stays");
    maintain(&mut log, &disk);
    disk.restart();
    let (reopened, cut) = open(&disk);
    assert_eq!((reopened.first_offset(), cut), (firsts[4], None));
    assert_eq!(reopened.epochs(), log.epochs());
    let start = EpochStart {
        epoch: 1,
        first_offset: firsts[4],
    };
    assert_eq!(log.epochs(), [start]);
}

#[test]
fn retention_by_age_deletes_segments_whose_last_chunk_is_older() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 3);
    let last = log.segments().next().expect("three").last_timestamp as u64;
    let retention = Retention {
        max_bytes: None,
        max_age: Some(Duration::from_millis(50)),
    };
    log.set_config(LogConfig {
        retention,
        ..config()
    });
    assert!(!log.retain(WallTime(last + 50)));
    assert!(log.retain(WallTime(last + 51)));
    assert_eq!(log.segments().len(), 2);
}

#[test]
fn retention_keeps_what_is_not_committed_or_not_sealed() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let retention = Retention {
        max_bytes: Some(0),
        max_age: None,
    };
    log.set_config(LogConfig {
        retention,
        ..config()
    });
    while log.segments().len() < 3 {
        append(&mut log, 1, 1, &[&[0; 300]]);
    }
    write_all(&mut log, &disk);
    let second = log.segments().nth(1).expect("three").first_offset;
    log.commit(second);
    assert!(!log.retain(WallTime(0)), "not sealed");
    let (mut log, _) = open(&disk);
    log.set_config(LogConfig {
        retention,
        ..config()
    });
    maintain(&mut log, &disk);
    log.commit(second - 1);
    assert!(!log.retain(WallTime(0)), "not committed");
    log.commit(second);
    assert!(!log.retain(WallTime(0)), "no committed chunk would stay");
    log.commit(second + 1);
    assert!(log.retain(WallTime(0)));
    assert_eq!(log.first_offset(), second);
}

#[test]
fn stored_offsets_of_deleted_messages_are_forgotten_in_the_next_snapshot() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let mut builder = with_messages(log.builder(), &[b"m"]);
    builder.set_offset(b"slow", 0).expect("fits");
    builder.set_offset(b"fast", 1 << 40).expect("fits");
    log.append(&mut builder, 1, WallTime(1)).expect("appended");
    fill(&mut log, &disk, 3);
    let retention = Retention {
        max_bytes: Some(0),
        max_age: None,
    };
    log.set_config(LogConfig {
        retention,
        ..config()
    });
    assert!(log.retain(WallTime(0)));
    fill(&mut log, &disk, 2);
    assert_eq!(log.tracking().offset(b"slow"), None);
    assert_eq!(log.tracking().offset(b"fast"), Some(1 << 40));
}

#[test]
fn full_disk_repeats_the_job() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    append(&mut log, 1, 1, &[&[1; 500]]);
    disk.set_capacity(Some(100));
    let job = log.take_append().expect("a job");
    log.append_done(job.run(&disk))
        .expect("a shortage is not fatal");
    assert_eq!((log.written(), log.next_offset()), (0, 1));
    append(&mut log, 1, 1, &[b"later"]);
    let job = log.take_append().expect("the job again");
    assert_eq!(job.next_offset(), 1);
    log.append_done(job.run(&disk)).expect("still full");
    disk.set_capacity(None);
    write_all(&mut log, &disk);
    assert_eq!(messages(&read_all(&mut log, &disk)).len(), 2);
}

#[test]
fn shortage_of_descriptors_repeats_jobs() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    while log.segments().len() < 2 {
        append(&mut log, 1, 1, &[&[1; 300]]);
    }
    for opens in 0..5 {
        disk.run_out_of_descriptors_after(Some(opens));
        let Some(job) = log.take_append() else { break };
        log.append_done(job.run(&disk))
            .expect("a shortage is not fatal");
    }
    disk.run_out_of_descriptors_after(None);
    write_all(&mut log, &disk);
    for opens in 0..12 {
        disk.run_out_of_descriptors_after(Some(opens));
        let Some(job) = log.take_maintenance() else {
            break;
        };
        log.maintenance_done(job.run(&disk))
            .expect("a shortage is not fatal");
    }
    disk.run_out_of_descriptors_after(None);
    maintain(&mut log, &disk);
    assert!(log.segments().next().is_some_and(|s| s.is_sealed));
    // Without free descriptors the files are not kept open.
    append(&mut log, 1, 1, &[b"x"]);
    write_all(&mut log, &disk);
    log.release();
    append(&mut log, 1, 1, &[b"y"]);
    write_all(&mut log, &disk);
    let (mut reopened, cut) = open(&disk);
    assert_eq!(cut, None);
    assert_eq!(read_all(&mut reopened, &disk), read_all(&mut log, &disk));
}

#[test]
fn failed_disk_is_fatal() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 1);
    append(&mut log, 1, 1, &[b"x"]);
    disk.set_gone(true);
    let job = log.take_append().expect("a job");
    assert!(log.append_done(job.run(&disk)).is_err());
    assert!(log.take_append().is_none(), "it is not repeated");
}

#[test]
fn failed_fsync_of_a_seal_is_fatal() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    while log.segments().len() < 2 {
        append(&mut log, 1, 1, &[&[1; 300]]);
    }
    write_all(&mut log, &disk);
    for syncs in 0..4 {
        let copy = disk.copy();
        let (mut log, _) = open(&copy);
        copy.fail_syncs_after(Some(syncs));
        let job = log.take_maintenance().expect("a segment to seal");
        let failed = log.maintenance_done(job.run(&copy));
        assert!(
            matches!(failed, Err(LogError::Sync { .. })),
            "{syncs}: {failed:?}"
        );
        assert!(!log.segments().any(|s| s.is_sealed));
    }
}

#[test]
fn sealed_segments_survive_a_power_failure() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 4);
    let sealed = log.segments().last().expect("four").first_offset;
    let expected: Vec<Chunk> = (read_all(&mut log, &disk).into_iter())
        .filter(|c| c.header().next_offset() <= sealed)
        .collect();
    for seed in 0..20 {
        let copy = disk.copy();
        copy.crash(&mut SeededRng::new(seed));
        let (mut log, _) = open(&copy);
        assert!(log.next_offset() >= sealed);
        let found = read_all(&mut log, &copy);
        assert_eq!(found[..expected.len()], expected);
    }
}

#[test]
fn streams_are_listed_and_deleted() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 2);
    let (mut other, _) = StreamLog::open(&disk, QueueId(3), config(), 0).expect("opens");
    append(&mut other, 1, 1, &[b"x"]);
    write_all(&mut other, &disk);
    assert_eq!(crate::list_streams(&disk), Ok(vec![QueueId(3), STREAM]));
    crate::delete_stream(&disk, STREAM).expect("deleted");
    crate::delete_stream(&disk, STREAM).expect("deleted before");
    disk.crash(&mut SeededRng::new(1));
    assert!(!disk.files().iter().any(|(path, _)| path.starts_with(DIR)));
    let (log, cut) = open(&disk);
    assert_eq!((log.next_offset(), cut), (0, None));
}

#[test]
fn idle_log_has_no_open_files_and_no_jobs_after_release() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 2);
    log.release();
    let before = disk.counters();
    assert!(log.take_append().is_none() && log.take_maintenance().is_none());
    assert!(!log.retain(WallTime(u64::MAX)));
    assert_eq!(disk.counters(), before);
}

/// The leader of a new stream writes a marker long before the first message.
#[test]
fn first_message_is_the_first_chunk_with_messages() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let timestamp = |log: &StreamLog| log.first_message().map(|first| first.timestamp);
    assert_eq!(timestamp(&log), None);
    log.append_marker(1, WallTime(10)).expect("a marker");
    assert_eq!(timestamp(&log), None);
    settle(&mut log, &disk);
    assert_eq!(timestamp(&open(&disk).0), None);
    append(&mut log, 1, 500, &[b"a"]);
    append(&mut log, 1, 600, &[b"b"]);
    assert_eq!(timestamp(&log), Some(500));
    settle(&mut log, &disk);
    assert_eq!(timestamp(&open(&disk).0), Some(500), "recovered");
    fill(&mut log, &disk, 4);
    assert_eq!(timestamp(&log), Some(500));
    let (mut log, _) = open(&disk);
    assert_eq!(
        timestamp(&log),
        Some(500),
        "recovered from a sealed segment"
    );
    let last_of_first = log.segments().next().expect("a segment").last_timestamp;
    log.commit(log.next_offset());
    log.set_config(LogConfig {
        retention: Retention {
            max_bytes: None,
            max_age: Some(Duration::from_millis(1)),
        },
        ..config()
    });
    assert!(log.retain(WallTime(last_of_first as u64 + 2)));
    maintain(&mut log, &disk);
    let oldest = timestamp(&log).expect("messages");
    assert!(oldest > last_of_first, "{oldest}");
    let first = read_all(&mut log, &disk);
    let first = first
        .iter()
        .find(|chunk| chunk.header().kind == ChunkKind::Messages);
    assert_eq!(Some(oldest), first.map(|chunk| chunk.header().timestamp));
    assert_eq!(timestamp(&open(&disk).0), Some(oldest), "recovered");
}

/// A chunk with a filter value, a sequence and a stored offset.
fn chunk_with_everything() -> Chunk {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    append(&mut log, 1, 400, &[b"before"]);
    let mut builder = log.builder();
    builder.push_message(b"a", Some(b"apac")).expect("fits");
    builder.push_message(b"b", None).expect("fits");
    builder.set_sequence(b"producer", 5).expect("fits");
    builder.set_offset(b"consumer", 1).expect("fits");
    let header = log.append(&mut builder, 3, WallTime(500));
    assert_eq!(header.expect("appended").expect("a chunk").first_offset, 1);
    settle(&mut log, &disk);
    read_all(&mut log, &disk).pop().expect("a chunk")
}

#[test]
fn copied_chunk_keeps_messages_time_filter_and_sequences_but_no_stored_offsets() {
    let chunk = chunk_with_everything();
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let header = log.append_copy(&chunk, 7, WallTime(900)).expect("appended");
    assert_eq!(
        (header.first_offset, header.epoch, header.timestamp),
        (0, 7, 500)
    );
    settle(&mut log, &disk);
    let copy = read_all(&mut log, &disk).pop().expect("a chunk");
    assert_eq!(copy.data(), chunk.data());
    assert_eq!(copy.filter(), chunk.filter());
    assert!(!copy.filter().is_empty());
    let sequence = log.tracking().sequence(b"producer").map(|s| s.sequence);
    assert_eq!(sequence, Some(5));
    assert_eq!(log.tracking().offset_count(), 0);
    // The disk has the same.
    disk.restart();
    let (reopened, cut) = open(&disk);
    assert_eq!(cut, None);
    assert_eq!(reopened.tracking(), log.tracking());
}

#[test]
fn times_of_copied_chunks_neither_go_back_nor_into_the_future() {
    let chunk = chunk_with_everything();
    let (mut log, _) = open(&SimDisk::new());
    let early = log.append_copy(&chunk, 1, WallTime(450)).expect("appended");
    assert_eq!(early.timestamp, 450);
    append(&mut log, 1, 800, &[b"x"]);
    let late = log.append_copy(&chunk, 1, WallTime(900)).expect("appended");
    assert_eq!(late.timestamp, 800);
}

#[test]
fn copied_chunks_begin_segments_with_a_snapshot_and_have_messages() {
    let chunk = chunk_with_everything();
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    while log.segments().len() < 3 {
        log.append_copy(&chunk, 1, WallTime(900)).expect("appended");
    }
    settle(&mut log, &disk);
    let chunks = read_all(&mut log, &disk);
    let snapshot = chunks
        .iter()
        .find(|chunk| chunk.header().kind == ChunkKind::TrackingSnapshot);
    let snapshot = snapshot.expect("a snapshot").clone();
    let before = log.next_offset();
    let refused = log.append_copy(&snapshot, 1, WallTime(900));
    assert_eq!(refused, Err(AppendError::Fault(crate::ChunkFault::Entries)));
    let stale = log.append_copy(&chunk, 0, WallTime(900));
    assert!(matches!(stale, Err(AppendError::StaleEpoch { .. })));
    assert_eq!(log.next_offset(), before);
}
