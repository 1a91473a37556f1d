//! Single behaviours.

use super::*;
use crate::{Manifest, ManifestId, PartEntry, SegmentEntry, SegmentIndex};
use std::time::Duration;

const NO_RETENTION: Retention = Retention {
    max_bytes: None,
    max_age: None,
};

/// A leader with `chunks` chunks in the store and only the last segment on the disk.
fn filled(store: &MemoryStore, chunks: u64) -> Node {
    let mut node = Node::new(store);
    node.tier.set_leading(Some(1), Time(0));
    for at in 0..chunks {
        node.append(1, 1_000 + at, &[at as u8; 200]);
    }
    node.log.commit(node.log.next_offset());
    node.work(1, NO_RETENTION);
    node
}

#[test]
fn stream_is_read_through_the_store_after_local_segments_are_deleted() {
    let mut node = filled(&MemoryStore::new(1), 20);
    assert!(node.release(1));
    assert!(node.log.first_offset() > 10);
    assert_eq!(node.tier.first_offset(), Some(0));
    let mut offset = 0;
    while offset < node.log.readable() {
        let chunk = node.read(offset).expect("reads").expect("a chunk");
        assert_eq!(chunk.header().first_offset, offset);
        offset = chunk.header().next_offset();
    }
}

#[test]
fn timestamp_is_found_in_the_store() {
    let mut node = filled(&MemoryStore::new(1), 20);
    node.release(1);
    let local = node.log.first_offset();
    let read = node.tier.read_timestamp(1_003, local).expect("is remote");
    let result = read.run();
    assert_eq!(result.error, None);
    let chunk = node.read(result.next).expect("reads").expect("a chunk");
    assert_eq!(chunk.header().timestamp, 1_003);
    assert!(
        node.tier.read_timestamp(1_019, local).is_none(),
        "it is local"
    );
    assert!(node.tier.read_timestamp(5_000, local).is_none());
}

#[test]
fn retention_of_the_stream_deletes_objects() {
    let store = MemoryStore::new(1);
    let mut node = filled(&store, 20);
    node.release(1);
    let before = store.objects().len();
    let max = Retention {
        max_bytes: Some(2_000),
        max_age: None,
    };
    node.work(1, max);
    let first = node.tier.first_offset().expect("some are left");
    assert!(first > 0 && first < node.log.first_offset());
    assert!(store.objects().len() < before);
    assert_eq!(
        node.read(0)
            .expect("reads")
            .expect("a chunk")
            .header()
            .first_offset,
        first
    );
    let age = Retention {
        max_bytes: None,
        max_age: Some(Duration::from_millis(1)),
    };
    node.work(1_000_000, age);
    assert_eq!(node.tier.first_offset(), None);
    let manifests = format!("{PREFIX}streams/00000000000000ab/manifest/");
    let only_manifests = store
        .objects()
        .keys()
        .all(|key| key.starts_with(&manifests));
    assert!(only_manifests, "{:?}", store.objects().keys());
}

#[test]
fn wrong_object_is_an_error_and_is_uploaded_again_from_the_disk() {
    let store = MemoryStore::new(1);
    let mut node = filled(&store, 20);
    let is_part = |key: &&String| key.contains("part-");
    let key = store
        .objects()
        .keys()
        .find(is_part)
        .expect("a part")
        .clone();
    store.set(&key, Some(Bytes::from_static(b"x")));
    let read = node.tier.read_offset(0, u64::MAX).expect("is in the store");
    let result = read.run();
    assert!(matches!(
        result.error,
        Some(ReadError::Wrong { segment: 0, .. })
    ));
    assert!(result.error.is_some_and(|e| e.to_string().contains(&key)));
    assert!(node.tier.note_wrong(0) && !node.tier.note_wrong(0));
    assert!(!node.release(1), "the local copy stays");
    node.work(1, NO_RETENTION);
    assert!(node.release(1));
    assert_eq!(
        node.read(0)
            .expect("reads")
            .expect("a chunk")
            .header()
            .first_offset,
        0
    );
    assert!(
        !store.objects().contains_key(&key),
        "the wrong object is deleted"
    );
}

#[test]
fn failures_are_repeated_later_and_later() {
    let store = MemoryStore::new(1);
    store.set_faults(crate::MemoryFaults {
        is_gone: true,
        ..Default::default()
    });
    let mut node = Node::new(&store);
    node.tier.set_leading(Some(1), Time(0));
    let mut waits = Vec::new();
    let mut now = Time(0);
    for _ in 0..9 {
        let job = node
            .tier
            .take_job(now, WallTime(0), NO_RETENTION, &mut node.log);
        node.tier.done(now, job.expect("a job").run(&node.disk));
        let next = node.tier.wake_at().expect("a time");
        waits.push((next.0 - now.0) / 1_000_000_000);
        now = next;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    let faults = node.tier.take_faults();
    assert!(
        faults.len() == 9 && faults[0].contains("does not answer"),
        "{faults:?}"
    );
}

#[test]
fn deleted_stream_leaves_no_object() {
    let store = MemoryStore::new(1);
    let node = filled(&store, 20);
    assert!(!store.objects().is_empty());
    crate::purge(&node.remote, STREAM).expect("deleted");
    assert!(store.objects().is_empty());
}

#[test]
fn changed_or_cut_manifest_and_index_are_refused() {
    let entry = SegmentEntry {
        first_offset: 5,
        next_offset: 9,
        epoch: 2,
        attempt: 3,
        bytes: 100,
        parts: 1,
        index_bytes: 60,
        index_crc: 7,
        first_timestamp: -1,
        last_timestamp: 4,
    };
    let id = ManifestId {
        epoch: 2,
        version: 1,
    };
    let manifest = Manifest {
        stream: STREAM,
        id,
        known: ManifestId::default(),
        segments: vec![entry],
    };
    let index = SegmentIndex {
        stream: STREAM,
        first_offset: 5,
        next_offset: 9,
        parts: vec![PartEntry {
            first_offset: 5,
            first_timestamp: -1,
            bytes: 92,
            crc: 8,
        }],
    };
    let (good_manifest, good_index) = (manifest.encode(), index.encode());
    assert_eq!(Manifest::decode(&good_manifest), Ok(manifest));
    assert_eq!(SegmentIndex::decode(&good_index), Ok(index));
    for (good, is_manifest) in [(good_manifest, true), (good_index, false)] {
        for at in 0..good.len() {
            let mut bad = good.to_vec();
            bad[at] ^= 0x40;
            for bad in [&bad[..], &good[..at]] {
                let is_refused = match is_manifest {
                    true => Manifest::decode(bad).is_err(),
                    false => SegmentIndex::decode(bad).is_err(),
                };
                assert!(is_refused, "byte {at}");
            }
        }
    }
}
