//! Damaged, missing and foreign files.

use super::*;

const MACHINE: &[u8] = b"machine";

/// The run of the machine in which the log is intact.
fn machine(disk: &SimDisk) -> Option<Vec<u8>> {
    crate::read_machine(disk, STREAM).expect("readable")
}

/// A log of three segments, the first two of them sealed.
fn three_segments() -> (SimDisk, Vec<Chunk>, Vec<u64>) {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    let mut builder = with_messages(log.builder(), &[b"m"]);
    builder.set_sequence(b"producer", 5).expect("fits");
    builder
        .push_message(b"filtered", Some(b"emea"))
        .expect("fits");
    log.append(&mut builder, 1, WallTime(1)).expect("appended");
    fill(&mut log, &disk, 3);
    let firsts = log.segments().map(|s| s.first_offset).collect();
    (disk.copy(), read_all(&mut log, &disk), firsts)
}

/// A changed byte of a sealed segment is found when the chunk is read, and no other chunk is affected.
#[test]
fn every_changed_byte_of_a_sealed_segment_is_found_by_readers() {
    let (disk, chunks, firsts) = three_segments();
    let path = segment_file(firsts[0]);
    let len = golden::read_file(&disk, &path).len() as u64;
    let (mut log, _) = open(&disk);
    log.commit(u64::MAX);
    let view = log.view();
    for at in 0..len {
        let mask = 1 << (at % 8);
        assert!(disk.flip(&path, at, mask));
        let error = read_chunks(&disk, &view, Start::First).expect_err("damaged");
        assert!(
            matches!(&error, LogError::Corrupt { file, .. } if *file == path)
                || (matches!(error, LogError::Newer { .. }) && at < 8),
            "byte {at}: {error}"
        );
        let second = read_chunks(&disk, &view, Start::Offset(firsts[1])).expect("not damaged");
        let expected = chunks
            .iter()
            .filter(|c| c.header().first_offset >= firsts[1]);
        assert!(second.iter().eq(expected));
        assert!(disk.flip(&path, at, mask));
    }
}

/// A changed byte of the last segment ends the log before its chunk.
#[test]
fn every_changed_byte_of_the_last_segment_ends_the_log() {
    let (disk, chunks, firsts) = three_segments();
    let path = segment_file(firsts[2]);
    let len = golden::read_file(&disk, &path).len() as u64;
    for at in 0..len {
        let copy = disk.copy();
        assert!(copy.flip(&path, at, 0x10));
        crate::write_machine(&copy, STREAM, MACHINE).expect("written");
        copy.restart();
        let (mut log, cut) = match StreamLog::open(&copy, STREAM, config(), 0) {
            Err(LogError::Newer { file, .. }) if at < 8 => {
                assert_eq!(file, path);
                continue;
            }
            other => other.expect("opens"),
        };
        let cut = cut.expect("damaged");
        assert!(cut.has_lost_chunks, "byte {at}: {cut:?}");
        assert_eq!(machine(&copy), None, "byte {at}");
        assert_eq!(
            (&cut.file, cut.next_offset),
            (&path, log.next_offset()),
            "byte {at}"
        );
        assert!(cut.position <= at && cut.bytes == len - cut.position);
        let found = read_all(&mut log, &copy);
        assert_eq!(found, chunks[..found.len()]);
        assert!(log.next_offset() >= firsts[2]);
        // The log goes on.
        append(&mut log, 2, 5, &[b"new"]);
        settle(&mut log, &copy);
        copy.restart();
        let (mut again, cut) = open(&copy);
        assert_eq!((again.next_offset(), cut), (log.next_offset(), None));
        assert_eq!(read_all(&mut again, &copy), read_all(&mut log, &copy));
    }
}

#[test]
fn segment_cut_anywhere_keeps_its_whole_chunks() {
    let (disk, chunks, firsts) = three_segments();
    let path = segment_file(firsts[2]);
    let len = golden::read_file(&disk, &path).len() as u64;
    for at in 0..len {
        let copy = disk.copy();
        assert!(copy.lose_end(&path, at));
        crate::write_machine(&copy, STREAM, MACHINE).expect("written");
        copy.restart();
        let (mut log, cut) = open(&copy);
        assert!(cut.expect("reported").has_lost_chunks, "cut at {at}");
        assert_eq!(machine(&copy), None);
        let found = read_all(&mut log, &copy);
        assert_eq!(found, chunks[..found.len()]);
        let next = chunks.get(found.len()).expect("at least one is lost");
        assert_eq!(log.next_offset(), next.header().first_offset);
    }
}

#[test]
fn every_changed_byte_of_an_index_changes_no_result() {
    let (disk, chunks, firsts) = three_segments();
    let (mut log, _) = open(&disk);
    let view = log.replication_view();
    let find = |start| {
        let mut reader = ChunkReader::open(&disk, &view, start).expect("found");
        let located = reader.next(&disk, &view).expect("readable");
        located.map(|located| located.read().expect("valid"))
    };
    for first in &firsts {
        let path = index_file(*first);
        let len = golden::read_file(&disk, &path).len() as u64;
        for at in 0..len {
            for mask in [0x80, 0x01] {
                assert!(disk.flip(&path, at, mask));
                for offset in [0, *first, *first + 2, log.next_offset() - 1] {
                    let expected = chunks.iter().find(|c| c.header().next_offset() > offset);
                    assert_eq!(find(Start::Offset(offset)).as_ref(), expected, "byte {at}");
                }
                assert_eq!(find(Start::Last).as_ref(), chunks.last(), "byte {at}");
                let expected = chunks.iter().find(|c| c.header().timestamp >= 1004);
                assert_eq!(find(Start::Timestamp(1004)).as_ref(), expected, "byte {at}");
                assert!(disk.flip(&path, at, mask));
            }
        }
    }
    // Without indexes too, before and after a restart.
    let paths: Vec<String> = firsts.iter().map(|first| index_file(*first)).collect();
    let contents: Vec<_> = paths
        .iter()
        .map(|path| golden::read_file(&disk, path))
        .collect();
    for path in &paths {
        disk.remove(path).expect("removed");
    }
    assert_eq!(find(Start::Last).as_ref(), chunks.last());
    assert_eq!(
        find(Start::Offset(firsts[1]))
            .expect("found")
            .header()
            .first_offset,
        firsts[1]
    );
    let (_, cut) = open(&disk);
    assert_eq!(cut, None);
    for (path, content) in paths.iter().zip(contents) {
        assert_eq!(golden::read_file(&disk, path), content, "{path} is rebuilt");
    }
}

#[test]
fn every_changed_byte_of_a_seal_only_costs_a_scan() {
    let (disk, chunks, firsts) = three_segments();
    let path = seal_file(firsts[0]);
    let len = golden::read_file(&disk, &path).len() as u64;
    let seal = crate::read_seal(&disk, STREAM, firsts[0])
        .expect("readable")
        .expect("sealed");
    let content = golden::read_file(&disk, &segment_file(firsts[0]));
    assert_eq!(
        (seal.bytes, seal.crc),
        (content.len() as u64, crc32fast::hash(&content))
    );
    for at in 0..len {
        let copy = disk.copy();
        assert!(copy.flip(&path, at, 0x40));
        if at == 8 {
            let newer = StreamLog::open(&copy, STREAM, config(), 0).map(drop);
            assert!(matches!(newer, Err(LogError::Newer { .. })), "{newer:?}");
            continue;
        }
        let (mut log, cut) = open(&copy);
        assert_eq!(cut, None);
        assert_eq!(read_all(&mut log, &copy), chunks);
        assert_eq!(log.segments().filter(|s| s.is_sealed).count(), 1);
        maintain(&mut log, &copy);
        assert_eq!(
            log.segments().filter(|s| s.is_sealed).count(),
            2,
            "it is sealed again"
        );
    }
}

#[test]
fn damaged_segment_is_not_sealed() {
    let disk = SimDisk::new();
    let (mut log, _) = open(&disk);
    while log.segments().len() < 2 {
        append(&mut log, 1, 1, &[&[1; 300]]);
    }
    write_all(&mut log, &disk);
    assert!(disk.flip(&segment_file(0), 100, 1));
    let job = log.take_maintenance().expect("a segment to seal");
    let error = log.maintenance_done(job.run(&disk)).expect_err("damaged");
    assert!(matches!(error, LogError::Corrupt { .. }), "{error}");
    assert!(log.take_maintenance().is_none(), "it is not tried again");
    assert!(!disk.files().iter().any(|(path, _)| *path == seal_file(0)));
}

#[test]
fn log_ends_before_a_missing_segment() {
    let (disk, chunks, firsts) = three_segments();
    disk.remove(&segment_file(firsts[1])).expect("removed");
    let (mut log, cut) = open(&disk);
    let cut = cut.expect("reported");
    assert_eq!((cut.next_offset, cut.segments), (firsts[1], 1));
    assert_eq!(cut.file, segment_file(firsts[2]));
    assert_eq!(log.next_offset(), firsts[1]);
    let found = read_all(&mut log, &disk);
    assert_eq!(found, chunks[..found.len()]);
    assert!(
        disk.files()
            .iter()
            .all(|(path, _)| !path.contains(&format!("{:020}", firsts[1])))
    );
    assert!(
        disk.files()
            .iter()
            .all(|(path, _)| !path.contains(&format!("{:020}", firsts[2])))
    );
}

#[test]
fn missing_newest_segment_is_noticed() {
    let (disk, chunks, firsts) = three_segments();
    crate::write_machine(&disk, STREAM, MACHINE).expect("written");
    disk.remove(&segment_file(firsts[2])).expect("removed");
    let (mut log, cut) = open(&disk);
    let cut = cut.expect("reported");
    assert!(cut.has_lost_chunks);
    assert_eq!(
        (cut.file, cut.next_offset),
        (segment_file(firsts[2]), firsts[2])
    );
    assert_eq!(machine(&disk), None);
    let found = read_all(&mut log, &disk);
    assert_eq!(found, chunks[..found.len()]);
    // The report is not repeated, and neither is the record: another replica must have the end of the log.
    disk.restart();
    let (_, cut) = open(&disk);
    assert_eq!((cut, machine(&disk)), (None, None));
}

/// The end of the process interrupts a write: the chunk has no record in the index, and was never confirmed.
#[test]
fn unfinished_chunk_at_the_end_is_no_loss() {
    let (disk, chunks, firsts) = three_segments();
    let before = golden::read_file(&disk, &segment_file(firsts[2])).len() as u64;
    let index = golden::read_file(&disk, &index_file(firsts[2])).len() as u64;
    let (mut log, _) = open(&disk);
    append(&mut log, 1, 9, &[b"unfinished"]);
    write_all(&mut log, &disk);
    let after = golden::read_file(&disk, &segment_file(firsts[2])).len() as u64;
    for at in before..after {
        let copy = disk.copy();
        assert!(copy.lose_end(&segment_file(firsts[2]), at));
        assert!(copy.lose_end(&index_file(firsts[2]), index));
        crate::write_machine(&copy, STREAM, MACHINE).expect("written");
        copy.restart();
        let (mut log, cut) = open(&copy);
        assert_eq!(
            cut.as_ref().map(|cut| cut.has_lost_chunks),
            (at > before).then_some(false)
        );
        assert_eq!(machine(&copy).as_deref(), Some(MACHINE));
        assert_eq!(read_all(&mut log, &copy), chunks);
    }
}

#[test]
fn newer_files_are_left_untouched() {
    let (disk, ..) = three_segments();
    let files = disk.files();
    for path in files
        .iter()
        .map(|(path, _)| path)
        .filter(|path| path.ends_with(".segment"))
    {
        let copy = disk.copy();
        assert!(copy.flip(path, 7, 2));
        let error = StreamLog::open(&copy, STREAM, config(), 0)
            .map(drop)
            .expect_err("newer");
        assert!(
            matches!(&error, LogError::Newer { file, version: 3, known: 1 } if file == path),
            "{error}"
        );
        assert_eq!(copy.files(), files);
    }
}

#[test]
fn unreadable_files_do_not_shorten_the_log() {
    let (disk, chunks, firsts) = three_segments();
    for path in [
        segment_file(firsts[2]),
        segment_file(firsts[0]),
        seal_file(firsts[0]),
    ] {
        disk.set_unreadable(&path, true);
        let error = StreamLog::open(&disk, STREAM, config(), 0)
            .map(drop)
            .expect_err("unreadable");
        assert!(
            matches!(&error, LogError::Io { file, .. } if *file == path),
            "{error}"
        );
        disk.set_unreadable(&path, false);
    }
    disk.set_out_of_memory(true);
    let error = StreamLog::open(&disk, STREAM, config(), 0)
        .map(drop)
        .expect_err("no memory");
    assert!(error.is_passing());
    disk.set_out_of_memory(false);
    let (mut log, cut) = open(&disk);
    assert_eq!(cut, None);
    assert_eq!(read_all(&mut log, &disk), chunks);
}

#[test]
fn leftovers_are_removed_and_other_names_are_kept() {
    let (disk, chunks, firsts) = three_segments();
    let leftovers = [
        index_file(9999),
        seal_file(9999),
        format!("{}.tmp", seal_file(firsts[1])),
    ];
    for path in &leftovers {
        disk.create(path).expect("created");
    }
    let other = format!("{DIR}/notes.txt");
    disk.create(&other).expect("created");
    let (mut log, cut) = open(&disk);
    assert_eq!(cut, None);
    assert_eq!(read_all(&mut log, &disk), chunks);
    let paths: Vec<String> = disk.files().into_iter().map(|(path, _)| path).collect();
    assert!(leftovers.iter().all(|path| !paths.contains(path)));
    assert!(paths.contains(&other));
}
