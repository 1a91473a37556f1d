//! A log in a directory of the file system.

use env::real::{RealDisk, fill_random};
use env::{Disk, WallTime};
use ids::QueueId;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use stream_log::{ChunkReader, LogConfig, Start, StreamLog};

const STREAM: QueueId = QueueId(7);

/// A directory that is removed at the end of the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Scratch {
        let mut name = [0; 8];
        fill_random(&mut name).expect("random bytes");
        let name = format!("posthorn-stream-log-{:016x}", u64::from_le_bytes(name));
        Scratch(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn ranges_can_be_sent_from_the_descriptor() {
    let scratch = Scratch::new();
    let disk = RealDisk::open(&scratch.0).expect("opens");
    let config = LogConfig {
        max_segment_bytes: 10_000,
        ..LogConfig::default()
    };
    let (mut log, _) = StreamLog::open(&disk, STREAM, config, 0).expect("opens");
    let mut builder = log.builder();
    while log.segments().len() < 3 {
        for _ in 0..10 {
            builder
                .push_message(&[7; 100], Some(b"emea"))
                .expect("fits");
        }
        log.append(&mut builder, 1, WallTime(1)).expect("appended");
    }
    while let Some(job) = log.take_append() {
        log.append_done(job.run(&disk)).expect("written");
    }
    while let Some(job) = log.take_maintenance() {
        log.maintenance_done(job.run(&disk)).expect("sealed");
    }
    log.commit(log.next_offset());
    let view = log.view();
    let mut reader = ChunkReader::open(&disk, &view, Start::First).expect("found");
    let mut chunks = 0;
    while let Some(located) = reader.next(&disk, &view).expect("readable") {
        let chunk = located.read().expect("valid");
        let range = located.entries_range();
        let descriptor = range
            .file
            .descriptor()
            .expect("a file of the operating system");
        let file = fs::File::from(descriptor.try_clone_to_owned().expect("cloned"));
        let mut sent = vec![0; range.len as usize];
        file.read_exact_at(&mut sent, range.position)
            .expect("readable");
        assert_eq!(sent, chunk.data());
        chunks += 1;
    }
    assert!(chunks > 10, "{chunks}");
    let (reopened, cut) = StreamLog::open(&disk, STREAM, config, 0).expect("opens");
    assert_eq!((reopened.next_offset(), cut), (log.next_offset(), None));
    assert_eq!(
        reopened
            .segments()
            .filter(|segment| segment.is_sealed)
            .count(),
        2
    );
    stream_log::delete_stream(&disk, STREAM).expect("deleted");
    assert_eq!(stream_log::list_streams(&disk), Ok(Vec::new()));
}

#[test]
fn reads_end_with_the_file() {
    let scratch = Scratch::new();
    let disk = RealDisk::open(&scratch.0).expect("opens");
    let file = disk.create("part").expect("created");
    let content: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
    file.write_at(0, &content).expect("written");
    for (offset, len, expected) in [
        (0, 100_000, 0..100_000),
        (0, 200_000, 0..100_000),
        (99_999, 5, 99_999..100_000),
        (100_000, 5, 0..0),
        (7, 0, 0..0),
        (500, 1_000, 500..1_500),
    ] {
        let read = file.read_vec_at(offset, len).expect("readable");
        assert_eq!(read, content[expected], "{len} bytes at {offset}");
    }
    assert!(file.read_vec_at(u64::MAX, 1).is_err());
}
