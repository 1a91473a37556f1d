//! Segments and checkpoints as version 0.2 wrote them.

use bytes::Bytes;
use env::sim::SimDisk;
use segment::{
    Checkpoint, GroupFiles, Segment, SegmentName, list_group, read_checkpoint, write_checkpoint,
    write_segments,
};
use slots::IndexSet;
use std::sync::Arc;
use wal::{Entry, GroupId};

const GROUP: GroupId = GroupId(0xAB);
const NAME: SegmentName = SegmentName { first: 5, n: 1 };
const SEGMENT: &str = "segments/00000000000000ab/0000000000000005-00000001.seg";
const CHECKPOINT: &str = "segments/00000000000000ab/checkpoint-0000000000000384";

/// Two blocks, three terms, and a gap.
fn entries() -> Vec<Entry> {
    let entry = |index: u64, term, data: Bytes| Entry {
        index,
        term,
        kind: (index % 3) as u8,
        data,
    };
    let long = |index| entry(index, 2, vec![b'a' + index as u8; 400].into());
    let mut all = vec![
        entry(5, 1, Bytes::from_static(b"first")),
        entry(6, 1, Bytes::new()),
    ];
    all.extend((10..22).map(long));
    all.push(entry(1000, u64::MAX, Bytes::from_static(&[0, 1, 255])));
    all
}

fn checkpoint() -> Checkpoint {
    Checkpoint {
        index: 900,
        term: 4,
        membership: Bytes::from_static(b"members"),
        live: IndexSet::from_sorted([3, 4, 5, 9, 100, 101, 899]),
        state: Bytes::from_static(b"state of the machine"),
    }
}

#[test]
fn segment_of_version_0_2_is_read() {
    let written = SimDisk::new();
    write_segments(&written, GROUP, entries()).expect("write");
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/segment", |files| {
        let content = golden::read_file(&written, SEGMENT);
        let Some(content) = files.check_bytes("two-blocks", &content) else {
            return;
        };
        let stored = SimDisk::new();
        golden::write_file(&stored, SEGMENT, &content);
        let listed = list_group(&stored, GROUP).expect("list");
        let expected = GroupFiles {
            segments: vec![NAME],
            checkpoints: vec![],
        };
        assert_eq!(listed, expected);
        let segment = Segment::open(Arc::new(stored), GROUP, NAME).expect("open");
        assert!(!segment.rebuilt(), "the footer is read");
        let read: Result<Vec<Entry>, _> = segment.entries().collect();
        let read = read.expect("read all");
        files.check_text("two-blocks", &format!("{:#?}\n{read:#?}\n", segment.meta()));
        for entry in entries() {
            assert_eq!(segment.read(entry.index), Ok(Some(entry)));
        }

        // Without a valid footer, the entries are the index.
        let mut damaged = content;
        let last = damaged.last_mut().expect("a trailer");
        *last ^= 1;
        let stored = SimDisk::new();
        golden::write_file(&stored, SEGMENT, &damaged);
        let segment = Segment::open(Arc::new(stored), GROUP, NAME).expect("open");
        assert!(segment.rebuilt());
        let rebuilt: Result<Vec<Entry>, _> = segment.entries().collect();
        assert_eq!(rebuilt, Ok(read));
    });
}

#[test]
fn checkpoint_of_version_0_2_is_read() {
    let encode = |checkpoint: &Checkpoint| {
        let disk = SimDisk::new();
        write_checkpoint(&disk, GROUP, checkpoint).expect("write");
        golden::read_file(&disk, CHECKPOINT)
    };
    let decode = |content: &[u8]| {
        let disk = SimDisk::new();
        golden::write_file(&disk, CHECKPOINT, content);
        read_checkpoint(&disk, GROUP, 900)
    };
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/checkpoint", |files| {
        let nothing_live = Checkpoint {
            live: IndexSet::default(),
            ..checkpoint()
        };
        files.check("ranges", &checkpoint(), encode, decode);
        files.check("nothing-live", &nothing_live, encode, decode);
    });
}
