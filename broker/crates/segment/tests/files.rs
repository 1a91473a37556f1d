//! Segments and checkpoints: written, read, rewritten, damaged, interrupted.

use bytes::Bytes;
use env::sim::SimDisk;
use env::{Disk, SeededRng};
use proptest::prelude::*;
use segment::{
    Checkpoint, GroupFiles, Segment, SegmentError, SegmentName, delete_checkpoint, delete_group,
    delete_segment, list_group, list_groups, read_checkpoint, rewrite, write_checkpoint,
    write_segments,
};
use slots::IndexSet;
use std::sync::Arc;
use wal::{Entry, GroupId, MAX_RECORD_BYTES};

const GROUP: GroupId = GroupId(0xAB);

fn entry(index: u64, term: u64, len: usize) -> Entry {
    Entry {
        index,
        term,
        kind: (index % 3) as u8,
        data: vec![(index * 7 + term) as u8; len].into(),
    }
}

fn open(disk: &SimDisk, name: SegmentName) -> Result<Segment, SegmentError> {
    Segment::open(Arc::new(disk.clone()), GROUP, name)
}

fn all(segment: &Segment) -> Result<Vec<Entry>, SegmentError> {
    segment.entries().collect()
}

fn only_file(disk: &SimDisk) -> (String, u64) {
    let files = disk.files();
    assert_eq!(files.len(), 1, "{files:?}");
    files[0].clone()
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        index: 900,
        term: 4,
        membership: Bytes::from_static(b"members"),
        live: IndexSet::from_sorted([3, 4, 5, 9, 100, 101, 899]),
        state: vec![5; 10_000].into(),
    }
}

#[test]
fn files_are_listed_and_deleted() {
    let disk = SimDisk::new();
    assert_eq!(list_groups(&disk), Ok(vec![]));
    assert_eq!(list_group(&disk, GROUP), Ok(GroupFiles::default()));
    let first = write_segments(&disk, GROUP, [entry(5, 1, 10)]).expect("write");
    let second = write_segments(&disk, GROUP, [entry(5, 2, 10)]).expect("write");
    assert_eq!((first[0].name.n, second[0].name.n), (1, 2));
    assert_eq!(write_segments(&disk, GROUP, [] as [Entry; 0]), Ok(vec![]));
    write_checkpoint(&disk, GROUP, &checkpoint()).expect("write");
    disk.create("segments/00000000000000ab/rest.tmp")
        .expect("leftover");
    let files = list_group(&disk, GROUP).expect("list");
    assert_eq!(files.segments, [first[0].name, second[0].name]);
    assert_eq!(files.checkpoints, [900]);
    assert_eq!(disk.files().len(), 3);
    assert_eq!(list_groups(&disk), Ok(vec![GROUP]));
    for _ in 0..2 {
        delete_segment(&disk, GROUP, first[0].name).expect("delete");
        delete_checkpoint(&disk, GROUP, 900).expect("delete");
    }
    assert_eq!(disk.files().len(), 1);
    for _ in 0..2 {
        delete_group(&disk, GROUP).expect("delete");
    }
    assert_eq!(list_groups(&disk), Ok(vec![]));
}

#[test]
fn index_takes_less_than_a_byte_per_entry() {
    let disk = SimDisk::new();
    let metas = write_segments(&disk, GROUP, (1..=20_000).map(|i| entry(i, 1, 60))).expect("write");
    let segment = open(&disk, metas[0].name).expect("open");
    assert!(segment.memory() < 20_000, "{}", segment.memory());
    let read = disk.counters().bytes_read;
    assert_eq!(segment.read(12_345), Ok(Some(entry(12_345, 1, 60))));
    assert!(disk.counters().bytes_read - read < 8_192);
    let read = disk.counters().bytes_read;
    assert_eq!(segment.read(12_344), Ok(Some(entry(12_344, 1, 60))));
    assert_eq!(
        disk.counters().bytes_read,
        read,
        "entries of the same block are cached"
    );
}

#[test]
fn large_flush_writes_several_segments() {
    let disk = SimDisk::new();
    let entries: Vec<_> = (1..=5).map(|i| entry(i * 10, 1, 30 << 20)).collect();
    let metas = write_segments(&disk, GROUP, &entries).expect("write");
    let shape: Vec<_> = metas
        .iter()
        .map(|m| (m.name.first, m.last, m.count))
        .collect();
    assert_eq!(shape, [(10, 20, 2), (30, 40, 2), (50, 50, 1)]);
    let segment = open(&disk, metas[1].name).expect("open");
    assert_eq!(segment.read(40).expect("read").as_ref(), Some(&entries[3]));
    // A gap that a segment's index cannot span starts a new segment too.
    let far = [entry(1, 1, 1), entry(1 << 40, 1, 1)];
    assert_eq!(write_segments(&disk, GROUP, &far).expect("write").len(), 2);
}

#[test]
fn refused_writes_leave_no_files() {
    let disk = SimDisk::new();
    let unordered = write_segments(&disk, GROUP, [entry(2, 1, 1), entry(2, 1, 1)]);
    assert!(matches!(
        unordered,
        Err(SegmentError::Unordered {
            after: 2,
            index: 2,
            ..
        })
    ));
    // Zeroed memory that is never touched, so it takes no physical memory.
    let large = Entry {
        data: vec![0; MAX_RECORD_BYTES as usize].into(),
        ..entry(1, 1, 0)
    };
    let large = write_segments(&disk, GROUP, [large]);
    assert!(matches!(large, Err(SegmentError::TooLarge { .. })));
    disk.set_capacity(Some(20_000));
    let full = write_segments(&disk, GROUP, (1..100).map(|i| entry(i, 1, 1000)));
    assert!(matches!(full, Err(SegmentError::Full { .. })), "{full:?}");
    let big = Checkpoint {
        state: vec![0; 30_000].into(),
        ..checkpoint()
    };
    let full = write_checkpoint(&disk, GROUP, &big);
    assert!(matches!(full, Err(SegmentError::Full { .. })), "{full:?}");
    assert_eq!(disk.files(), []);
    disk.fail_syncs_after(Some(0));
    let failed = write_checkpoint(&disk, GROUP, &checkpoint());
    assert!(
        matches!(failed, Err(SegmentError::Sync { .. })),
        "{failed:?}"
    );
}

#[test]
fn damaged_footer_is_rebuilt_and_damaged_entry_is_refused() {
    let entries: Vec<_> = (1..400).map(|i| entry(i * 2, i / 100, 30)).collect();
    let disk = SimDisk::new();
    let name = write_segments(&disk, GROUP, &entries).expect("write")[0].name;
    let (path, len) = only_file(&disk);
    let whole = open(&disk, name).expect("open");
    assert!(!whole.rebuilt());
    assert!(disk.flip(&path, len - 40, 4));
    let rebuilt = open(&disk, name).expect("open");
    assert!(rebuilt.rebuilt());
    assert_eq!(rebuilt.meta(), whole.meta());
    assert_eq!(all(&rebuilt).as_ref(), Ok(&entries));
    assert_eq!(rebuilt.term(300), whole.term(300));
    assert!(disk.lose_end(&path, len - 30));
    assert_eq!(all(&open(&disk, name).expect("open")), Ok(entries));
    assert!(disk.flip(&path, 3000, 4));
    let refused = open(&disk, name).expect_err("damaged entry without a footer");
    assert!(matches!(&refused, SegmentError::Corrupt { file, .. } if *file == path));
}

#[test]
fn file_of_another_group_or_newer_version_is_refused() {
    let disk = SimDisk::new();
    let name = write_segments(&disk, GROUP, [entry(1, 1, 10)]).expect("write")[0].name;
    write_checkpoint(&disk, GROUP, &checkpoint()).expect("write");
    disk.create_dir("segments/00000000000000ac").expect("dir");
    for (file, _) in disk.files() {
        disk.rename(&file, &file.replace("ab/", "ac/"))
            .expect("rename");
    }
    let other = GroupId(0xAC);
    let refused = Segment::open(Arc::new(disk.clone()), other, name).expect_err("swapped");
    assert!(
        matches!(refused, SegmentError::OtherGroup { expected, found: GROUP, .. } if expected == other)
    );
    let refused = read_checkpoint(&disk, other, 900).expect_err("swapped");
    assert!(
        matches!(refused, SegmentError::OtherGroup { expected, found: GROUP, .. } if expected == other)
    );
    for (file, _) in disk.files() {
        assert!(disk.flip(&file, 8, 1 ^ 5));
    }
    let refused = Segment::open(Arc::new(disk.clone()), other, name).expect_err("newer");
    assert!(matches!(refused, SegmentError::Newer { version: 5, .. }));
    let refused = read_checkpoint(&disk, other, 900).expect_err("newer");
    assert!(matches!(refused, SegmentError::Newer { version: 5, .. }));
}

#[test]
fn deleted_segment_stays_readable_while_open() {
    let disk = SimDisk::new();
    let name =
        write_segments(&disk, GROUP, (1..500).map(|i| entry(i, 1, 30))).expect("write")[0].name;
    let segment = open(&disk, name).expect("open");
    assert!(segment.read(1).expect("read").is_some());
    delete_segment(&disk, GROUP, name).expect("delete");
    assert!(segment.read(499).expect("read").is_some());
    segment.release();
    segment.read(499).expect_err("deleted after release");
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let one = (1u64..40, 0u64..2, 0usize..3000);
    prop::collection::vec(one, 1..120).prop_map(|parts| {
        let (mut index, mut term) = (0, 1);
        let mut entries = Vec::new();
        for (gap, more, len) in parts {
            index += if gap > 20 { 1 } else { gap };
            term += more;
            entries.push(entry(index, term, if len > 1500 { 10 } else { len }));
        }
        entries
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn written_entries_are_read_back(entries in entries(), from in 0u64..2000, len in 0u64..500, max in 0u64..20_000) {
        let disk = SimDisk::new();
        let metas = write_segments(&disk, GROUP, &entries).expect("write");
        prop_assert_eq!(metas.len(), 1);
        disk.crash(&mut SeededRng::new(from));
        let segment = open(&disk, metas[0].name).expect("open");
        prop_assert_eq!(segment.meta(), &metas[0]);
        prop_assert_eq!(&all(&segment).expect("read"), &entries);
        for index in 0..=entries[entries.len() - 1].index + 1 {
            let expected = entries.iter().find(|e| e.index == index);
            let found = segment.read(index).expect("read");
            prop_assert_eq!(found.as_ref(), expected);
            if let Some(expected) = expected {
                prop_assert_eq!(segment.term(index), Some(expected.term));
            }
        }
        let to = from + len;
        let mut got = Vec::new();
        segment.read_range(from, to, max, &mut got).expect("read");
        let mut room = i64::try_from(max).expect("small");
        let expected: Vec<_> = entries.iter().filter(|e| e.index >= from && e.index <= to)
            .take_while(|e| {
                let goes = room >= 0;
                room -= e.data.len() as i64;
                goes
            })
            .cloned().collect();
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn rewrite_keeps_live_entries(entries in entries(), seed: u64) {
        let mut rng = SeededRng::new(seed);
        let disk = SimDisk::new();
        let old = write_segments(&disk, GROUP, &entries).expect("write")[0];
        let live_entries: Vec<_> = entries.iter().filter(|_| rng.chance(1, 3)).cloned().collect();
        let live = IndexSet::from_sorted(live_entries.iter().map(|e| e.index));
        let segment = open(&disk, old.name).expect("open");
        let new = rewrite(&disk, &segment, &live).expect("rewrite");
        prop_assert_eq!(new.is_empty(), live_entries.is_empty());
        for meta in new {
            prop_assert!(meta.name.n > old.name.n);
            prop_assert_eq!(&all(&open(&disk, meta.name).expect("open")).expect("read"), &live_entries);
        }
    }

    /// A flipped byte or a lost end never yields an entry that differs from the written one.
    #[test]
    fn damage_to_a_segment_is_detected(entries in entries(), place in 0.0..1.0f64, mask in 1u8.., cut: bool) {
        let disk = SimDisk::new();
        let name = write_segments(&disk, GROUP, &entries).expect("write")[0].name;
        let (path, len) = only_file(&disk);
        let at = (place * len as f64) as u64;
        let damaged = if cut { disk.lose_end(&path, at) } else { disk.flip(&path, at, mask) };
        prop_assert!(damaged);
        if let Ok(found) = open(&disk, name).and_then(|s| all(&s)) {
            prop_assert_eq!(found, entries);
        }
    }

    #[test]
    fn damaged_checkpoint_is_refused(place in 0.0..1.0f64, mask in 1u8.., cut: bool) {
        let disk = SimDisk::new();
        write_checkpoint(&disk, GROUP, &checkpoint()).expect("write");
        prop_assert_eq!(read_checkpoint(&disk, GROUP, 900).expect("read"), checkpoint());
        let (path, len) = only_file(&disk);
        let at = (place * len as f64) as u64;
        let damaged = if cut { disk.lose_end(&path, at) } else { disk.flip(&path, at, mask) };
        prop_assert!(damaged);
        let refused = read_checkpoint(&disk, GROUP, 900).expect_err("damaged");
        prop_assert!(refused.to_string().contains(&path));
    }

    /// Power fails at any sync while a file is replaced: the old or the new file is there, complete.
    #[test]
    fn interrupted_write_is_all_or_nothing(syncs in 0u64..8, seed: u64) {
        let disk = SimDisk::new();
        write_checkpoint(&disk, GROUP, &checkpoint()).expect("write");
        let newer = Checkpoint { index: 901, ..checkpoint() };
        disk.fail_syncs_after(Some(syncs));
        let wrote = write_checkpoint(&disk, GROUP, &newer).is_ok()
            && write_segments(&disk, GROUP, [entry(901, 4, 5000)]).is_ok();
        disk.crash(&mut SeededRng::new(seed));
        disk.fail_syncs_after(None);
        let files = list_group(&disk, GROUP).expect("list");
        prop_assert_eq!(files.checkpoints[0], 900);
        prop_assert!(!wrote || (files.checkpoints.len(), files.segments.len()) == (2, 1));
        for index in &files.checkpoints {
            prop_assert_eq!(read_checkpoint(&disk, GROUP, *index).expect("checkpoint is intact").state.len(), 10_000);
        }
        for name in &files.segments {
            prop_assert_eq!(all(&open(&disk, *name).expect("open")).expect("segment is intact"), [entry(901, 4, 5000)]);
        }
    }

    #[test]
    fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let disk = SimDisk::new();
        disk.create_dir("segments/00000000000000ab").expect("dir");
        for name in ["0000000000000001-00000001.seg", "checkpoint-0000000000000384"] {
            let file = disk.create(&format!("segments/00000000000000ab/{name}")).expect("create");
            file.write_at(0, &bytes).expect("write");
        }
        let name = SegmentName { first: 1, n: 1 };
        prop_assert!(open(&disk, name).is_err());
        prop_assert!(read_checkpoint(&disk, GROUP, 900).is_err());
    }
}
