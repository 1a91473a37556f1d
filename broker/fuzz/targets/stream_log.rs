//! Chunks and the files of a stream. Checksums that an input cannot guess are corrected here, so that the code behind them is
//! reached. No panic, bounded memory, and what recovery keeps can be read and is found again by a second recovery.
#![no_main]
mod script;

use bytes::Bytes;
use env::Disk;
use env::sim::SimDisk;
use ids::QueueId;
use libfuzzer_sys::fuzz_target;
use script::Script;
use stream_log::{
    Chunk, ChunkHeader, ChunkReader, EntryBody, LogConfig, Start, StreamLog, SubBatchMessages,
    Tracking, read_seal,
};

const STREAM: QueueId = QueueId(5);
const DIR: &str = "streams/0000000000000005";

fuzz_target!(|input: &[u8]| {
    let mut script = Script(input);
    match script.byte().unwrap_or(0) % 4 {
        0 => chunk(script.0),
        1 => chunk(&with_checksums(script.0)),
        2 => drop(Tracking::decode_snapshot(script.0)),
        _ => files(&mut script),
    }
});

fn chunk(bytes: &[u8]) {
    let header = ChunkHeader::decode(bytes).map(|(header, _)| header);
    let Ok(chunk) = Chunk::decode(Bytes::copy_from_slice(bytes)) else {
        return;
    };
    assert_eq!(Ok(*chunk.header()), header);
    assert_eq!(&chunk.bytes()[..], bytes);
    let mut next = chunk.header().first_offset;
    for entry in chunk.entries() {
        let entry = entry.expect("verified");
        assert_eq!(entry.offset, next);
        next += match entry.body {
            EntryBody::Message(_) => 1,
            EntryBody::SubBatch(batch) => {
                let messages = SubBatchMessages::new(batch.data, batch.records);
                assert!(messages.count() <= usize::from(batch.records));
                u64::from(batch.records)
            }
        };
    }
    assert_eq!(next, chunk.header().next_offset());
    let mut tracking = Tracking::default();
    let _ = chunk.apply_tracking(&mut tracking);
}

/// Corrects the checksums of the chunk at the front.
fn with_checksums(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.len() < 48 {
        return bytes;
    }
    bytes[0] = 0x51;
    let number = |bytes: &[u8], at: usize| {
        u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]) as usize
    };
    let data_start = 48 + usize::from(bytes[44]);
    let trailer_start = data_start.saturating_add(number(&bytes, 36));
    let end = trailer_start.saturating_add(number(&bytes, 40));
    if end > bytes.len() {
        return bytes;
    }
    let crc = crc32(&bytes[data_start..trailer_start]);
    bytes[32..36].copy_from_slice(&crc);
    if end - trailer_start >= 4 {
        let crc = crc32(&bytes[trailer_start..end - 4]);
        bytes[end - 4..end].copy_from_slice(&crc);
    }
    let crc = crc24(&[&bytes[..45], &bytes[48..data_start]]);
    bytes[45..48].copy_from_slice(&crc);
    bytes
}

fn crc32(bytes: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xEDB8_8320 * (crc & 1));
        }
    }
    (!crc).to_be_bytes()
}

fn crc24(parts: &[&[u8]]) -> [u8; 3] {
    let mut crc = 0xB7_04_CE_u32;
    for byte in parts.concat() {
        crc ^= u32::from(byte) << 16;
        for _ in 0..8 {
            crc <<= 1;
            if crc & 0x100_0000 != 0 {
                crc ^= 0x186_4CFB;
            }
        }
    }
    let [_, a, b, c] = crc.to_be_bytes();
    [a, b, c]
}

/// Segments of chunks with corrected checksums, and any other files.
fn files(script: &mut Script<'_>) {
    let disk = SimDisk::new();
    disk.create_dir(DIR).expect("a directory");
    let mut first_offset = script.number();
    while let Some(step) = script.byte() {
        let extension = match step % 4 {
            0 | 1 => "segment",
            2 => "index",
            _ => "seal",
        };
        let mut content = match extension {
            "segment" => b"OSIL\0\0\0\x01".to_vec(),
            "index" => b"OSII\0\0\0\x01".to_vec(),
            _ => b"PHORNSSL\x01".to_vec(),
        };
        let mut offset = first_offset;
        for _ in 0..step / 64 {
            let mut bytes = script.bytes().to_vec();
            if extension == "segment" && bytes.len() >= 48 {
                // The chunk continues the log.
                bytes[24..32].copy_from_slice(&offset.to_be_bytes());
                bytes = with_checksums(&bytes);
                if let Ok((header, _)) = ChunkHeader::decode(&bytes) {
                    offset = header.next_offset();
                }
            }
            content.extend_from_slice(&bytes);
        }
        if extension == "seal" {
            let crc = crc32(&content);
            content.extend_from_slice(&crc);
        }
        let path = format!("{DIR}/{first_offset:020}.{extension}");
        if let Ok(file) = disk.create(&path) {
            file.write_at(0, &content).expect("space");
        }
        if extension == "seal" {
            let _ = read_seal(&disk, STREAM, first_offset);
        }
        if step % 4 == 1 {
            first_offset = offset;
        }
    }
    let Ok((mut log, _)) = StreamLog::open(&disk, STREAM, LogConfig::default(), 0) else {
        return;
    };
    let range = (log.first_offset(), log.next_offset());
    let view = log.replication_view();
    for start in [
        Start::First,
        Start::Last,
        Start::Offset(range.1 / 2),
        Start::Timestamp(9),
    ] {
        // A sealed segment is not read by recovery, so it may be damaged.
        let Ok(mut reader) = ChunkReader::open(&disk, &view, start) else {
            continue;
        };
        while let Ok(Some(located)) = reader.next(&disk, &view) {
            if let Ok(chunk) = located.read() {
                assert_eq!(chunk.header(), located.header());
                located.verify().expect("verified");
            }
        }
    }
    let (again, cut) =
        StreamLog::open(&disk, STREAM, LogConfig::default(), 0).expect("opens again");
    assert_eq!((again.first_offset(), again.next_offset()), range);
    assert_eq!(cut, None);
}
