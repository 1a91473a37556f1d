//! Chunks, segment files, index files, seals and tracking data as version 0.2 wrote them.

use bytes::Bytes;
use env::WallTime;
use env::sim::SimDisk;
use ids::QueueId;
use stream_log::{
    Chunk, ChunkBuilder, ChunkKind, ChunkReader, LogConfig, Start, StreamLog, SubBatch, Tracking,
    read_seal, snapshot_chunk,
};

const STREAM: QueueId = QueueId(0xAB);
const DIR: &str = "streams/00000000000000ab";

/// Messages with and without filter values, a sub-batch and a trailer.
fn messages() -> ChunkBuilder {
    let mut builder = ChunkBuilder::new(16);
    builder.push_message(b"plain", None).expect("fits");
    builder
        .push_message(b"filtered", Some(b"emea"))
        .expect("fits");
    let batch = SubBatch {
        compression: 4,
        records: 3,
        uncompressed_len: 30,
        data: b"compressed",
    };
    builder.push_sub_batch(&batch, Some(b"apac")).expect("fits");
    builder.set_sequence(b"producer", 42).expect("fits");
    builder.set_offset(b"consumer", 7).expect("fits");
    builder
}

fn delta() -> ChunkBuilder {
    let mut builder = ChunkBuilder::new(16);
    builder.set_offset(b"consumer", 8).expect("fits");
    builder.set_offset(b"other", u64::MAX).expect("fits");
    builder
}

fn tracking() -> Tracking {
    let mut tracking = Tracking::default();
    for (mut builder, offset) in [(messages(), 100), (delta(), 105)] {
        let chunk = builder.finish(offset, 3, 1).expect("a chunk");
        chunk.apply_tracking(&mut tracking).expect("applies");
    }
    tracking
}

#[test]
fn chunks_of_version_0_2_are_read() {
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/chunk", |files| {
        let timestamp = 1_700_000_000_000;
        let mut unfiltered = ChunkBuilder::new(16);
        unfiltered.push_message(b"", None).expect("fits");
        let samples = [
            (
                "messages",
                messages().finish(100, 3, timestamp).expect("a chunk"),
            ),
            ("unfiltered", unfiltered.finish(0, 0, -1).expect("a chunk")),
            (
                "tracking-delta",
                delta().finish(105, 3, timestamp).expect("a chunk"),
            ),
            (
                "tracking-snapshot",
                snapshot_chunk(&tracking(), 106, 4, timestamp),
            ),
        ];
        for (name, chunk) in samples {
            let decode = |bytes: &[u8]| Chunk::decode(Bytes::copy_from_slice(bytes));
            files.check(name, &chunk, |chunk| chunk.bytes().to_vec(), decode);
        }
    });
}

#[test]
fn tracking_of_version_0_2_is_read() {
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/tracking", |files| {
        let encode = |tracking: &Tracking| {
            let mut out = Vec::new();
            tracking.put_snapshot(&mut out);
            out
        };
        files.check("snapshot", &tracking(), encode, Tracking::decode_snapshot);
    });
}

fn config() -> LogConfig {
    LogConfig {
        max_segment_chunks: 3,
        ..LogConfig::default()
    }
}

/// Two segments; the first one is sealed.
fn written() -> SimDisk {
    let disk = SimDisk::new();
    let (mut log, _) = StreamLog::open(&disk, STREAM, config(), 0).expect("opens");
    let mut now = 1_700_000_000_000;
    for (mut builder, epoch) in [(messages(), 1), (delta(), 1), (messages(), 4), (delta(), 4)] {
        now += 1;
        let appended = log.append(&mut builder, epoch, WallTime(now));
        appended.expect("appended").expect("a chunk");
    }
    while let Some(job) = log.take_append() {
        log.append_done(job.run(&disk)).expect("written");
    }
    while let Some(job) = log.take_maintenance() {
        log.maintenance_done(job.run(&disk)).expect("sealed");
    }
    disk
}

#[test]
fn log_of_version_0_2_is_read() {
    let written = written();
    golden::verify(env!("CARGO_MANIFEST_DIR"), "0.2/log", |files| {
        let stored = SimDisk::new();
        for (path, _) in written.files() {
            let name = path.rsplit('/').next().expect("a name");
            let content = golden::read_file(&written, &path);
            let Some(content) = files.check_bytes(name, &content) else {
                continue;
            };
            golden::write_file(&stored, &format!("{DIR}/{name}"), &content);
        }
        let names: Vec<String> = stored.files().into_iter().map(|(path, _)| path).collect();
        assert_eq!(
            names.len(),
            5,
            "two segments, two indexes and a seal: {names:?}"
        );
        let (mut log, cut) = StreamLog::open(&stored, STREAM, config(), 0).expect("opens");
        assert_eq!(cut, None);
        assert_eq!(
            log.segments().filter(|segment| segment.is_sealed).count(),
            1
        );
        log.commit(log.next_offset());
        let view = log.view();
        let mut reader = ChunkReader::open(&stored, &view, Start::First).expect("found");
        let mut chunks = Vec::new();
        while let Some(located) = reader.next(&stored, &view).expect("readable") {
            chunks.push(located.read().expect("valid"));
        }
        let with_messages = chunks
            .iter()
            .filter(|c| c.header().kind == ChunkKind::Messages);
        assert_eq!(with_messages.count(), 2);
        let seal = read_seal(&stored, STREAM, 0)
            .expect("readable")
            .expect("sealed");
        let segments: Vec<_> = log.segments().collect();
        let facts = (seal, segments, log.epochs(), log.tracking(), chunks);
        files.check_text("content", &format!("{facts:#?}\n"));
    });
}
