//! Finding and reading chunks.

use super::*;
use crate::{FilterMatcher, Retention};
use env::{Rng, SeededRng};
use std::collections::BTreeMap;

fn first_read(disk: &SimDisk, view: &LogView, start: Start) -> u64 {
    let mut reader = ChunkReader::open(disk, view, start).expect("found");
    match reader.next(disk, view).expect("readable") {
        Some(located) => located.header().first_offset,
        None => view.end(),
    }
}

#[test]
fn empty_log_starts_at_its_next_offset() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let view = log.view();
    let starts = [
        Start::First,
        Start::Last,
        Start::Next,
        Start::Offset(7),
        Start::Timestamp(0),
    ];
    for start in starts {
        let mut reader = ChunkReader::open(&disk, &view, start).expect("found");
        assert_eq!(reader.offset(), 0);
        assert!(reader.next(&disk, &view).expect("readable").is_none());
    }
    // The reader goes on once there is something to read.
    let mut reader = ChunkReader::open(&disk, &view, Start::Next).expect("found");
    append(&mut log, 1, 1, &[b"a"]);
    settle(&mut log, &disk);
    let view = log.view();
    let located = reader
        .next(&disk, &view)
        .expect("readable")
        .expect("a chunk");
    assert_eq!(located.header().first_offset, 0);
    assert!(reader.next(&disk, &view).expect("readable").is_none());
}

#[test]
fn each_offset_and_timestamp_finds_its_chunk() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let mut rng = SeededRng::new(5);
    let mut at = 100;
    while log.segments().len() < 4 {
        let bodies = [&[7; 90][..]; 5];
        let count = 1 + rng.below(4) as usize;
        append(&mut log, 1, at, &bodies[..count]);
        at += rng.below(3);
    }
    settle(&mut log, &disk);
    let all = read_all(&mut log, &disk);
    let view = log.view();
    for offset in 0..log.next_offset() {
        let expected = all.iter().find(|c| c.header().next_offset() > offset);
        let expected = expected.expect("covered").header().first_offset;
        assert_eq!(
            first_read(&disk, &view, Start::Offset(offset)),
            expected,
            "offset {offset}"
        );
    }
    for timestamp in 98..at as i64 + 2 {
        let expected = all.iter().find(|c| c.header().timestamp >= timestamp);
        let expected = expected.map_or(view.end(), |c| c.header().first_offset);
        let found = first_read(&disk, &view, Start::Timestamp(timestamp));
        assert_eq!(found, expected, "timestamp {timestamp}");
    }
    assert_eq!(first_read(&disk, &view, Start::First), 0);
    assert_eq!(
        first_read(&disk, &view, Start::Offset(u64::MAX)),
        view.end()
    );
    let last = all.last().expect("some").header().first_offset;
    assert_eq!(first_read(&disk, &view, Start::Last), last);
}

#[test]
fn last_is_the_newest_committed_chunk_with_messages() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    append(&mut log, 1, 1, &[b"a"]);
    let wanted = append(&mut log, 1, 1, &[b"b", b"c"]);
    for n in 0..40_u64 {
        let mut builder = log.builder();
        builder
            .set_offset(format!("{n:030}").as_bytes(), n)
            .expect("fits");
        log.append(&mut builder, 1, WallTime(1)).expect("appended");
    }
    assert!(
        log.segments().len() > 1,
        "the newest segment has tracking chunks alone"
    );
    settle(&mut log, &disk);
    let view = log.view();
    assert_eq!(first_read(&disk, &view, Start::Last), wanted.first_offset);
    append(&mut log, 1, 1, &[b"not committed"]);
    write_all(&mut log, &disk);
    let view = log.view();
    assert_eq!(first_read(&disk, &view, Start::Last), wanted.first_offset);
}

#[test]
fn ranges_are_the_bytes_of_the_file() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let mut builder = log.builder();
    builder.push_message(b"hello", Some(b"emea")).expect("fits");
    builder.set_sequence(b"p", 1).expect("fits");
    log.append(&mut builder, 1, WallTime(1)).expect("appended");
    append(&mut log, 1, 2, &[b"x"]);
    settle(&mut log, &disk);
    let view = log.view();
    let mut reader = ChunkReader::open(&disk, &view, Start::First).expect("found");
    let content = golden::read_file(&disk, &segment_file(0));
    for _ in 0..2 {
        let located = reader
            .next(&disk, &view)
            .expect("readable")
            .expect("a chunk");
        let chunk = located.read().expect("valid");
        assert_eq!(located.segment(), 0);
        for (range, expected) in [
            (located.entries_range(), chunk.data()),
            (located.chunk_range(), &chunk.bytes()[..]),
        ] {
            let (from, to) = (
                range.position as usize,
                (range.position + range.len) as usize,
            );
            assert_eq!(&content[from..to], expected);
            let mut read = vec![0; expected.len()];
            range
                .file
                .read_at(range.position, &mut read)
                .expect("readable");
            assert_eq!(read, expected);
        }
    }
    // A consumer of another filter value does not have to read the first chunk.
    let mut reader = ChunkReader::open(&disk, &view, Start::First).expect("found");
    let located = reader
        .next(&disk, &view)
        .expect("readable")
        .expect("a chunk");
    assert!(FilterMatcher::new([&b"emea"[..]], false).may_match(located.filter()));
    assert!(!FilterMatcher::new([&b"apac"[..]], true).may_match(located.filter()));
}

#[test]
fn reader_of_deleted_offsets_is_told_the_first_one() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    fill(&mut log, &disk, 3);
    let old_view = log.view();
    let mut open_reader = ChunkReader::open(&disk, &old_view, Start::First).expect("found");
    open_reader
        .next(&disk, &old_view)
        .expect("readable")
        .expect("a chunk");
    let mut closed = ChunkReader::open(&disk, &old_view, Start::First).expect("found");
    let retention = Retention {
        max_bytes: Some(0),
        max_age: None,
    };
    log.set_config(LogConfig {
        retention,
        ..config()
    });
    assert!(log.retain(WallTime(0)));
    maintain(&mut log, &disk);
    let view = log.view();
    let deleted = LogError::Deleted {
        stream: STREAM,
        offset: 0,
        first_offset: view.first_offset(),
    };
    assert_eq!(closed.next(&disk, &view).expect_err("deleted"), deleted);
    // The old view does not know of the deletion.
    let error = ChunkReader::open(&disk, &old_view, Start::Offset(0)).expect_err("deleted");
    assert!(matches!(error, LogError::Deleted { .. }), "{error}");
    // An open file can be read to its end.
    let located = open_reader
        .next(&disk, &view)
        .expect("readable")
        .expect("a chunk");
    located.read().expect("valid");
    assert_eq!(
        first_read(&disk, &view, Start::Offset(0)),
        view.first_offset()
    );
    open_reader.release();
    let error = open_reader.next(&disk, &view).expect_err("deleted");
    assert!(matches!(error, LogError::Deleted { .. }), "{error}");
}

/// Messages of the log by offset, and the state that follows from them.
#[derive(Default)]
struct Model {
    messages: BTreeMap<u64, Vec<u8>>,
    sequences: BTreeMap<u8, u64>,
    offsets: BTreeMap<u8, u64>,
    /// First offset and timestamp of each chunk with messages.
    chunks: Vec<(u64, i64)>,
}

/// Random operations without failures agree with a map from offsets to messages.
#[test]
fn log_behaves_like_a_map_of_offsets() {
    for seed in 0..60 {
        let mut rng = SeededRng::new(seed);
        let disk = SimDisk::new();
        let (mut log, _) = open(&disk);
        let mut model = Model::default();
        let mut now = 1000;
        for step in 0..rng.below(120) {
            now += rng.below(3);
            match rng.below(12) {
                0..6 => append_random(&mut log, &mut model, &mut rng, now, step),
                6..8 => write_all(&mut log, &disk),
                8 => {
                    settle(&mut log, &disk);
                    let max_bytes = rng.below(6000);
                    let retention = Retention {
                        max_bytes: Some(max_bytes),
                        max_age: None,
                    };
                    log.set_config(LogConfig {
                        retention,
                        ..config()
                    });
                    log.retain(WallTime(now));
                    maintain(&mut log, &disk);
                    assert!(log.segments().len() == 1 || log.bytes() <= max_bytes);
                    let first = log.first_offset();
                    model.messages.retain(|offset, _| *offset >= first);
                    model.chunks.retain(|(offset, _)| *offset >= first);
                }
                9 => {
                    write_all(&mut log, &disk);
                    disk.restart();
                    let cut;
                    (log, cut) = open(&disk);
                    assert_eq!(cut, None);
                }
                _ => check(&mut log, &model, &disk, &mut rng),
            }
        }
        write_all(&mut log, &disk);
        check(&mut log, &model, &disk, &mut rng);
    }
}

fn append_random(log: &mut StreamLog, model: &mut Model, rng: &mut SeededRng, now: u64, step: u64) {
    let mut builder = log.builder();
    let count = 1 + rng.below(4);
    for n in 0..count {
        let body = [step as u8, n as u8].repeat(rng.below(80) as usize);
        builder.push_message(&body, None).expect("fits");
    }
    if rng.below(2) == 0 {
        let producer = rng.below(3) as u8;
        builder.set_sequence(&[producer], step).expect("fits");
        model.sequences.insert(producer, step);
    }
    if rng.below(3) == 0 {
        let (name, offset) = (rng.below(3) as u8, log.next_offset());
        builder.set_offset(&[name], offset).expect("fits");
        model.offsets.insert(name, offset);
    }
    let copy = builder_messages(&mut builder, log, now);
    let header = copy.header();
    for (offset, body) in messages(std::slice::from_ref(&copy)) {
        model.messages.insert(offset, body);
    }
    model.chunks.push((header.first_offset, header.timestamp));
}

/// Appends the builder and returns the chunk, built a second time.
fn builder_messages(builder: &mut ChunkBuilder, log: &mut StreamLog, now: u64) -> Chunk {
    let bodies = builder.finish(0, 1, now as i64).expect("a chunk");
    let mut again = log.builder();
    for (_, body) in messages(std::slice::from_ref(&bodies)) {
        again.push_message(&body, None).expect("fits");
    }
    for record in bodies.tracking_records() {
        match record.expect("valid") {
            crate::TrackingRecord::Sequence { producer, sequence } => {
                again.set_sequence(producer, sequence).expect("fits");
            }
            crate::TrackingRecord::Offset { name, offset } => {
                again.set_offset(name, offset).expect("fits");
            }
        }
    }
    let header = log.append(&mut again, 1, WallTime(now));
    let header = header.expect("appended").expect("a chunk");
    let mut copy = log.builder();
    for (_, body) in messages(std::slice::from_ref(&bodies)) {
        copy.push_message(&body, None).expect("fits");
    }
    copy.finish(header.first_offset, 1, now as i64)
        .expect("a chunk")
}

fn check(log: &mut StreamLog, model: &Model, disk: &SimDisk, rng: &mut SeededRng) {
    let written = log.written();
    let view = log.replication_view();
    let chunks = read_chunks(disk, &view, Start::First).expect("readable");
    let expected: Vec<(u64, Vec<u8>)> = (model.messages.range(..written))
        .map(|(offset, body)| (*offset, body.clone()))
        .collect();
    assert_eq!(messages(&chunks), expected);
    for (name, sequence) in &model.sequences {
        let found = log.tracking().sequence(&[*name]);
        assert_eq!(found.map(|s| s.sequence), Some(*sequence));
    }
    for (name, offset) in &model.offsets {
        // Offsets of deleted messages may be forgotten.
        let found = log.tracking().offset(&[*name]);
        assert!(found == Some(*offset) || (found.is_none() && *offset < log.first_offset()));
    }
    let wanted = rng.below(written + 2);
    let found = first_read(disk, &view, Start::Offset(wanted));
    assert!(found <= wanted.max(view.first_offset()) || found == view.end());
    let timestamp = 1000 + rng.below(100) as i64;
    let expected = chunks.iter().find(|c| c.header().timestamp >= timestamp);
    let expected = expected.map_or(view.end(), |c| c.header().first_offset);
    assert_eq!(
        first_read(disk, &view, Start::Timestamp(timestamp)),
        expected
    );
    let in_view = model.chunks.iter().filter(|(offset, _)| *offset < written);
    let last = in_view.map(|(offset, _)| *offset).next_back();
    assert_eq!(
        first_read(disk, &view, Start::Last),
        last.unwrap_or(view.end())
    );
}
