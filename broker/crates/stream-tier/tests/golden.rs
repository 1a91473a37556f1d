//! Manifests and segment indexes as version 0.2 wrote them.
#![forbid(unsafe_code)]

use ids::QueueId;
use stream_tier::{Manifest, ManifestId, PartEntry, SegmentEntry, SegmentIndex};

#[test]
fn manifests_and_indexes_of_version_0_2_are_read() {
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/tier", |files| {
        let entry = |first_offset| SegmentEntry {
            first_offset,
            next_offset: first_offset + 90,
            epoch: 3,
            attempt: 4,
            bytes: 5_000_000,
            parts: 2,
            index_bytes: 100,
            index_crc: 0x0102_0304,
            first_timestamp: -5,
            last_timestamp: 1_700_000_000_000,
        };
        let manifest = Manifest {
            stream: QueueId(7),
            id: ManifestId {
                epoch: 3,
                version: 9,
            },
            known: ManifestId {
                epoch: 2,
                version: 1,
            },
            segments: vec![entry(0), entry(100)],
        };
        let encode = |manifest: &Manifest| manifest.encode().to_vec();
        files.check("manifest", &manifest, encode, Manifest::decode);
        let part = |first_offset| PartEntry {
            first_offset,
            first_timestamp: -5,
            bytes: 4_194_304,
            crc: 0x0506_0708,
        };
        let index = SegmentIndex {
            stream: QueueId(7),
            first_offset: 100,
            next_offset: 190,
            parts: vec![part(100), part(150)],
        };
        let encode = |index: &SegmentIndex| index.encode().to_vec();
        files.check("segment-index", &index, encode, SegmentIndex::decode);
    });
}
