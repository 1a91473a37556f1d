//! Tests of the whole log on a simulated disk.

mod crash;
mod damage;
mod log;
mod reading;

use crate::{
    AppendError, Chunk, ChunkBuilder, ChunkHeader, ChunkReader, Cut, EntryBody, LogConfig,
    LogError, LogView, Start, StreamLog,
};
use env::sim::SimDisk;
use env::{Disk, WallTime};
use ids::QueueId;

const STREAM: QueueId = QueueId(0xAB);
const DIR: &str = "streams/00000000000000ab";

/// Small segments.
fn config() -> LogConfig {
    LogConfig {
        max_segment_bytes: 1000,
        ..LogConfig::default()
    }
}

fn segment_file(first_offset: u64) -> String {
    format!("{DIR}/{first_offset:020}.segment")
}

fn index_file(first_offset: u64) -> String {
    format!("{DIR}/{first_offset:020}.index")
}

fn seal_file(first_offset: u64) -> String {
    format!("{DIR}/{first_offset:020}.seal")
}

fn open(disk: &SimDisk) -> (StreamLog, Option<Cut>) {
    StreamLog::open(disk, STREAM, config(), 0).expect("opens")
}

fn with_messages(mut builder: ChunkBuilder, messages: &[&[u8]]) -> ChunkBuilder {
    for message in messages {
        builder.push_message(message, None).expect("fits");
    }
    builder
}

/// Appends one chunk of messages without writing it.
fn append(log: &mut StreamLog, epoch: u64, at: u64, messages: &[&[u8]]) -> ChunkHeader {
    let mut builder = with_messages(log.builder(), messages);
    let header = log.append(&mut builder, epoch, WallTime(at));
    header.expect("appended").expect("a chunk")
}

fn write_all(log: &mut StreamLog, disk: &SimDisk) {
    while let Some(job) = log.take_append() {
        log.append_done(job.run(disk)).expect("written");
    }
}

fn maintain(log: &mut StreamLog, disk: &SimDisk) {
    while let Some(job) = log.take_maintenance() {
        let cut = log.maintenance_done(job.run(disk)).expect("done");
        assert_eq!(cut, None);
    }
}

/// Writes everything, seals, and commits all of it.
fn settle(log: &mut StreamLog, disk: &SimDisk) {
    write_all(log, disk);
    maintain(log, disk);
    log.commit(log.next_offset());
}

/// Chunks of one message of 200 bytes until there are `segments` segments. Chunk n has timestamp 1000 + n.
fn fill(log: &mut StreamLog, disk: &SimDisk, segments: usize) {
    let mut at = 1000;
    while log.segments().len() < segments {
        append(log, 1, at, &[&[at as u8; 200]]);
        at += 1;
    }
    settle(log, disk);
}

fn read_chunks(disk: &dyn Disk, view: &LogView, start: Start) -> Result<Vec<Chunk>, LogError> {
    let mut reader = ChunkReader::open(disk, view, start)?;
    let mut chunks = Vec::new();
    while let Some(located) = reader.next(disk, view)? {
        located.verify()?;
        let chunk = located.read()?;
        assert_eq!(chunk.header(), located.header());
        assert_eq!(chunk.filter(), located.filter());
        chunks.push(chunk);
    }
    assert_eq!(reader.offset(), view.end());
    Ok(chunks)
}

/// Offsets and bodies of the messages in chunks, without tracking chunks.
fn messages(chunks: &[Chunk]) -> Vec<(u64, Vec<u8>)> {
    let with_messages = chunks
        .iter()
        .filter(|chunk| chunk.header().kind == crate::ChunkKind::Messages);
    let entries = with_messages.flat_map(Chunk::entries);
    let entries = entries.map(|entry| entry.expect("valid"));
    entries
        .map(|entry| match entry.body {
            EntryBody::Message(body) => (entry.offset, body.to_vec()),
            EntryBody::SubBatch(batch) => (entry.offset, batch.data.to_vec()),
        })
        .collect()
}

fn read_all(log: &mut StreamLog, disk: &dyn Disk) -> Vec<Chunk> {
    let view = log.replication_view();
    read_chunks(disk, &view, Start::First).expect("readable")
}
