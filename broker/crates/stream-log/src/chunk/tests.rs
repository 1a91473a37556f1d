use super::*;
use crate::filter::FilterMatcher;
use proptest::prelude::*;

/// Every feature of the format in one chunk.
fn sample() -> Chunk {
    let mut builder = ChunkBuilder::new(16);
    builder.push_message(b"first", None).expect("fits");
    let batch = SubBatch {
        compression: 0,
        records: 2,
        uncompressed_len: 10,
        data: b"\0\0\0\x01a\0\0\0\x01b",
    };
    builder.push_sub_batch(&batch, Some(b"emea")).expect("fits");
    builder.push_message(b"", Some(b"apac")).expect("fits");
    builder.set_sequence(b"producer", 6).expect("fits");
    builder.set_sequence(b"producer", 7).expect("fits");
    builder.set_offset(b"consumer", 12).expect("fits");
    builder.finish(100, 3, 1_700_000_000_000).expect("a chunk")
}

#[test]
fn chunk_has_the_layout_of_osiris() {
    let chunk = sample();
    let bytes = chunk.bytes();
    let field = |at: usize, len: usize| {
        bytes[at..at + len]
            .iter()
            .fold(0_u64, |n, b| n << 8 | u64::from(*b))
    };
    assert_eq!((field(0, 1), field(1, 1)), (0x51, 0));
    assert_eq!((field(2, 2), field(4, 4)), (3, 4));
    assert_eq!(field(8, 8), 1_700_000_000_000);
    assert_eq!((field(16, 8), field(24, 8)), (3, 100));
    let data_len = (4 + 5) + (11 + 10) + 4;
    assert_eq!(field(36, 4), data_len);
    assert_eq!((field(40, 4), field(44, 1)), (2 * (10 + 8) + 4, 16));
    let data = &bytes[48 + 16..48 + 16 + data_len as usize];
    assert_eq!(field(32, 4), u64::from(crc32fast::hash(data)));
    let expected = b"\0\0\0\x05first\x80\0\x02\0\0\0\x0a\0\0\0\x0a\0\0\0\x01a\0\0\0\x01b\0\0\0\0";
    assert_eq!(data, expected);
    assert_eq!(chunk.header().encode_for_clients()[45..], [0; 3]);
    assert_eq!(chunk.header().encode_for_clients()[..45], bytes[..45]);
}

#[test]
fn checksum_of_many_entries_is_that_of_all_bytes() {
    let mut builder = ChunkBuilder::new(16);
    for sizes in [
        &[1][..],
        &[40_000, 0, 3],
        &[5_000; 60],
        &[HASHED_TOGETHER - 4],
    ] {
        for (n, size) in sizes.iter().enumerate() {
            builder
                .push_message(&vec![n as u8; *size], None)
                .expect("fits");
        }
        let chunk = builder.finish(0, 1, 0).expect("a chunk");
        let data = &chunk.bytes()[HEADER_BYTES..];
        assert_eq!(data.len(), sizes.iter().map(|size| 4 + size).sum::<usize>());
        assert_eq!(chunk.header().data_crc, crc32fast::hash(data));
        assert_eq!(chunk.verify(), Ok(()));
    }
}

#[test]
fn small_chunk_after_a_large_one_keeps_no_room() {
    let mut builder = ChunkBuilder::new(16);
    let large = vec![1; 100_000];
    for body in [&large[..], b"small", &large, &large] {
        builder.push_message(body, None).expect("fits");
        let bytes = builder.finish(0, 1, 0).expect("a chunk").bytes().clone();
        let len = bytes.len();
        let room = bytes.try_into_mut().expect("the only owner").capacity();
        assert!(room <= 2 * (FRONT + len), "{room} for {len}");
    }
}

#[test]
fn entries_and_tracking_are_read_back() {
    let chunk = Chunk::decode(sample().bytes().clone()).expect("decodes");
    assert_eq!(chunk, sample());
    assert_eq!(chunk.header().next_offset(), 104);
    let entries: Vec<_> = chunk.entries().map(|e| e.expect("valid")).collect();
    assert_eq!(
        entries.iter().map(|e| e.offset).collect::<Vec<_>>(),
        [100, 101, 103]
    );
    assert_eq!(entries[0].body, EntryBody::Message(b"first"));
    let EntryBody::SubBatch(batch) = entries[1].body else {
        panic!("{:?}", entries[1]);
    };
    let messages: Vec<_> = batch.messages().expect("not compressed").collect();
    assert_eq!(messages, [Ok(&b"a"[..]), Ok(b"b")]);
    let mut tracking = Tracking::default();
    chunk.apply_tracking(&mut tracking).expect("applies");
    let newest = tracking.sequence(b"producer").expect("known");
    assert_eq!((newest.sequence, newest.chunk), (7, 100));
    assert_eq!(tracking.offset(b"consumer"), Some(12));
    assert!(FilterMatcher::new([&b"apac"[..]], false).may_match(chunk.filter()));
    assert!(FilterMatcher::new([&b"x"[..]], true).may_match(chunk.filter()));

    let snapshot = snapshot_chunk(&tracking, 104, 3, -1);
    let snapshot = Chunk::decode(snapshot.bytes().clone()).expect("decodes");
    assert_eq!(snapshot.header().kind, ChunkKind::TrackingSnapshot);
    assert_eq!(
        (snapshot.header().next_offset(), snapshot.header().timestamp),
        (105, -1)
    );
    let mut restored = Tracking::default();
    snapshot.apply_tracking(&mut restored).expect("applies");
    assert_eq!(restored, tracking);
}

#[test]
fn stored_offsets_without_messages_are_a_tracking_delta() {
    let mut builder = ChunkBuilder::new(16);
    assert_eq!(builder.finish(1, 1, 1), None);
    builder.set_offset(b"c", 5).expect("fits");
    let delta = builder.finish(1, 1, 1).expect("a chunk");
    assert!(builder.is_empty());
    let delta = Chunk::decode(delta.bytes().clone()).expect("decodes");
    assert_eq!(
        (delta.header().kind, delta.header().records),
        (ChunkKind::TrackingDelta, 1)
    );
    let record = TrackingRecord::Offset {
        name: b"c",
        offset: 5,
    };
    assert_eq!(delta.tracking_records().collect::<Vec<_>>(), [Ok(record)]);
}

#[test]
fn every_changed_or_missing_byte_is_found() {
    let mut tracking = Tracking::default();
    sample().apply_tracking(&mut tracking).expect("applies");
    let mut delta = ChunkBuilder::new(16);
    delta.set_offset(b"c", 5).expect("fits");
    let delta = delta.finish(9, 1, 1).expect("a chunk");
    for chunk in [sample(), snapshot_chunk(&tracking, 1, 1, 1), delta] {
        for at in 0..chunk.bytes().len() {
            for mask in 1..=u8::MAX {
                let mut bytes = chunk.bytes().to_vec();
                bytes[at] ^= mask;
                let decoded = Chunk::decode(bytes.into());
                assert!(
                    decoded.is_err(),
                    "byte {at} changed by {mask:#x}: {decoded:?}"
                );
            }
            let cut = Chunk::decode(chunk.bytes().slice(..at));
            assert_eq!(cut, Err(ChunkFault::Truncated));
        }
        let longer = [chunk.bytes(), &b"x"[..]].concat();
        assert_eq!(Chunk::decode(longer.into()), Err(ChunkFault::Trailing));
    }
}

/// Rewrites the checksums of a chunk whose fields were changed.
fn with_checksums(mut bytes: Vec<u8>) -> Bytes {
    let len =
        |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (data, trailer, filter) = (len(36) as usize, len(40) as usize, usize::from(bytes[44]));
    let start = HEADER_BYTES + filter;
    if let Some(covered) = bytes.get(start..start.saturating_add(data)) {
        let crc = crc32fast::hash(covered).to_be_bytes();
        bytes[32..36].copy_from_slice(&crc);
    }
    let trailer_start = start.saturating_add(data);
    let crc_at = trailer_start.saturating_add(trailer).saturating_sub(4);
    if trailer >= 4 && crc_at + 4 <= bytes.len() {
        let crc = crc32fast::hash(&bytes[trailer_start..crc_at]).to_be_bytes();
        bytes[crc_at..crc_at + 4].copy_from_slice(&crc);
    }
    if bytes.len() >= start {
        let crc = crc24::checksum(&[&bytes[..45], &bytes[HEADER_BYTES..start]]);
        bytes[45..48].copy_from_slice(&crc.to_be_bytes()[1..]);
    }
    bytes.into()
}

#[test]
fn chunks_with_valid_checksums_and_wrong_fields_are_refused() {
    let good = sample().bytes().to_vec();
    assert_eq!(Chunk::decode(with_checksums(good.clone())), Ok(sample()));
    let changes: [(usize, u8, ChunkFault); 10] = [
        (0, 0x52, ChunkFault::Magic),
        (1, 3, ChunkFault::Header),
        (1, 2, ChunkFault::Header),
        (3, 0, ChunkFault::Header),
        (3, 2, ChunkFault::Entries),
        (7, 5, ChunkFault::Entries),
        (7, 2, ChunkFault::Header),
        (36, 0xFF, ChunkFault::Header),
        (44, 15, ChunkFault::Header),
        // The high bit of a message length makes it a sub-batch.
        (64, 0x80, ChunkFault::Entries),
    ];
    for (at, value, fault) in changes {
        let mut bytes = good.clone();
        bytes[at] = value;
        assert_eq!(
            Chunk::decode(with_checksums(bytes)),
            Err(fault),
            "byte {at}"
        );
    }
    let mut last_offset = good;
    last_offset[24..32].fill(0xFF);
    assert_eq!(
        Chunk::decode(with_checksums(last_offset)),
        Err(ChunkFault::Header)
    );
}

#[test]
fn builder_enforces_its_limits() {
    let mut builder = ChunkBuilder::new(16);
    let long = vec![0; MAX_ENTRY_BYTES + 1];
    let bytes = long.len();
    assert_eq!(
        builder.push_message(&long, None),
        Err(BuildError::TooLarge { bytes })
    );
    assert!(builder.is_empty());
    let none = SubBatch {
        compression: 0,
        records: 0,
        uncompressed_len: 0,
        data: b"",
    };
    assert_eq!(
        builder.push_sub_batch(&none, None),
        Err(BuildError::InvalidSubBatch)
    );
    let name = [b'x'; MAX_NAME_BYTES + 1];
    assert_eq!(
        builder.set_sequence(&name, 1),
        Err(BuildError::LongName { bytes: 256 })
    );
    builder
        .push_message(&vec![0; FULL_CHUNK_BYTES - 4], None)
        .expect("fits");
    assert!(builder.is_full());
    assert_eq!(builder.push_message(b"", None), Err(BuildError::Full));
    let chunk = builder.finish(0, 1, 1).expect("a chunk");
    assert_eq!(chunk.header().records, 1);
    for _ in 0..MAX_ENTRIES {
        builder.push_message(b"", None).expect("fits");
    }
    assert_eq!(builder.push_message(b"", None), Err(BuildError::Full));
    let chunk = builder.finish(0, 1, 1).expect("a chunk");
    assert_eq!(chunk.entries().count(), usize::from(MAX_ENTRIES));
}

/// The largest entry fits into a chunk together with everything that was accepted before it.
#[test]
fn largest_chunk_is_within_the_limit() {
    let mut builder = ChunkBuilder::new(255);
    builder
        .push_message(&vec![1; FULL_CHUNK_BYTES - 5], Some(b"f"))
        .expect("fits");
    assert!(!builder.is_full());
    builder
        .push_message(&vec![1; MAX_ENTRY_BYTES], Some(b"f"))
        .expect("fits");
    let mut names = 0_u32;
    while builder
        .set_sequence(&[&[0; 251][..], &names.to_be_bytes()].concat(), 1)
        .is_ok()
    {
        names += 1;
    }
    let chunk = builder.finish(0, 1, 1).expect("a chunk");
    assert!(chunk.bytes().len() <= MAX_CHUNK_BYTES);
    assert_eq!(Chunk::decode(chunk.bytes().clone()), Ok(chunk));
}

#[test]
fn sub_batch_of_a_careless_publisher_is_a_fault_of_its_messages() {
    let batch = SubBatch {
        compression: 0,
        records: 3,
        uncompressed_len: 1,
        data: b"\0\0\0\x01a\0",
    };
    let messages: Vec<_> = batch.messages().expect("not compressed").collect();
    assert_eq!(messages, [Ok(&b"a"[..]), Err(ChunkFault::Entries)]);
    let compressed = SubBatch {
        compression: 1,
        ..batch
    };
    assert!(compressed.messages().is_none());
}

proptest! {
    #[test]
    fn chunks_round_trip(
        entries in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..200), 0_u16..4, prop::option::of(prop::collection::vec(any::<u8>(), 0..9))),
            1..40,
        ),
        (offset, epoch, timestamp, filter_len) in (0..u64::MAX / 2, any::<u64>(), any::<i64>(), any::<u8>()),
    ) {
        let mut builder = ChunkBuilder::new(filter_len);
        for (body, records, filter) in &entries {
            let pushed = match records {
                0 => builder.push_message(body, filter.as_deref()),
                n => builder.push_sub_batch(
                    &SubBatch { compression: 4, records: *n, uncompressed_len: 77, data: body },
                    filter.as_deref(),
                ),
            };
            prop_assert_eq!(pushed, Ok(()));
        }
        let chunk = builder.finish(offset, epoch, timestamp).expect("a chunk");
        let decoded = Chunk::decode(chunk.bytes().clone());
        prop_assert_eq!(decoded.as_ref(), Ok(&chunk));
        let mut next = offset;
        for (entry, (body, records, filter)) in chunk.entries().zip(&entries) {
            let entry = entry.expect("valid");
            prop_assert_eq!(entry.offset, next);
            match entry.body {
                EntryBody::Message(found) => prop_assert_eq!(found, &body[..]),
                EntryBody::SubBatch(found) => prop_assert_eq!(found.data, &body[..]),
            }
            if let Some(filter) = filter {
                let matcher = FilterMatcher::new([&filter[..]], true);
                prop_assert!(matcher.may_match(chunk.filter()));
            }
            next += u64::from(*records).max(1);
        }
        prop_assert_eq!(next, chunk.header().next_offset());
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 48..400),
        entries in 0_u8..3, records in 0_u8..4, data in 0_u8..200, trailer in 0_u8..60, filter in 0_u8..20,
    ) {
        let kind = bytes[1] % 4;
        bytes[..4].copy_from_slice(&[0x51, kind, 0, entries]);
        bytes[4..8].copy_from_slice(&[0, 0, 0, records]);
        bytes[36..45].copy_from_slice(&[0, 0, 0, data, 0, 0, 0, trailer, filter]);
        let bytes = with_checksums(bytes);
        if let Ok(chunk) = Chunk::decode(bytes.clone()) {
            prop_assert_eq!(chunk.bytes(), &bytes);
            prop_assert!(chunk.entries().all(|e| e.is_ok()));
        }
    }
}
