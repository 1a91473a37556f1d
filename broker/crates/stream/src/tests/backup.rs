//! Reads of chunks for a backup, and appends of these chunks to another stream.

use super::*;
use bytes::Bytes;
use queue::cursor::{MAX_APPEND_BYTES, MAX_READ_BYTES, StreamChunks, StreamReply, StreamRequest};
use queue::{QueueEvent, QueueReply};
use stream_log::{Chunk, ChunkKind, EntryBody, Retention};

impl Single {
    /// The answer to a request, which is the next one of a session.
    fn ask(&mut self, seq: u64, request: StreamRequest) -> QueueReply {
        self.request(session(9), seq, RequestBody::Stream(request));
        self.work();
        let answers = self.events(session(9)).into_iter();
        let answer = answers.rev().find_map(|event| match event {
            QueueEvent::Answer { seq: of, answer } if of == seq => Some(answer),
            _ => None,
        });
        answer.expect("an answer")
    }

    fn read_chunks(&mut self, seq: u64, from: u64, end: u64) -> StreamChunks {
        match self.ask(seq, StreamRequest::ReadChunks { from, end }) {
            QueueReply::Stream(StreamReply::Chunks(chunks)) => chunks,
            other => panic!("{other:?}"),
        }
    }

    fn append_chunk(&mut self, seq: u64, at: u64, chunk: &Bytes) -> Result<u64, (u16, String)> {
        self.append_chunks(seq, at, vec![chunk.clone()])
    }

    fn append_chunks(
        &mut self,
        seq: u64,
        at: u64,
        chunks: Vec<Bytes>,
    ) -> Result<u64, (u16, String)> {
        match self.ask(seq, StreamRequest::AppendChunks { at, chunks }) {
            QueueReply::Stream(StreamReply::Offset(Some(next))) => Ok(next),
            QueueReply::Refused { code, text } => Err((code, text)),
            other => panic!("{other:?}"),
        }
    }

    /// All chunks with messages, and the number of answers that had them.
    fn read_everything(&mut self) -> (Vec<Bytes>, u64) {
        let end = self.replica.committed().expect("open");
        let (mut from, mut all, mut answers) = (0, Vec::new(), 0);
        while from < end {
            answers += 1;
            let page = self.read_chunks(answers, from, end);
            assert!(page.next > from, "no progress at {from}");
            from = page.next;
            all.extend(page.chunks);
        }
        (all, answers)
    }
}

fn decode(bytes: &Bytes) -> Chunk {
    Chunk::decode(bytes.clone()).expect("valid")
}

fn bodies(chunks: &[Bytes]) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for bytes in chunks {
        for entry in decode(bytes).entries() {
            match entry.expect("valid").body {
                EntryBody::Message(body) => all.push(body.to_vec()),
                EntryBody::SubBatch(batch) => panic!("{batch:?}"),
            }
        }
    }
    all
}

/// Segments with a few messages each.
fn small_segments() -> LogConfig {
    LogConfig {
        max_segment_bytes: 1000,
        ..LogConfig::default()
    }
}

/// Publishes messages of a producer, each in a chunk of its own.
fn fill(one: &mut Single, count: u64, bytes: usize) {
    for id in 1..=count {
        one.ms += 1000;
        let body = vec![id as u8; bytes];
        let publish = batch(Some("p"), &[(id, &body)]);
        one.request(session(1), id, RequestBody::PublishBatch(publish));
        one.work();
    }
}

#[test]
fn restored_stream_has_the_messages_in_their_order_with_times_and_sequences() {
    let mut one = Single::new(small_segments());
    fill(&mut one, 20, 200);
    assert!(one.replica.status().expect("open").segments > 3);
    let before = one.replica.committed();
    let (chunks, _) = one.read_everything();
    assert_eq!(one.replica.committed(), before, "reading changes nothing");
    let expected: Vec<Vec<u8>> = (1..=20).map(|id| vec![id; 200]).collect();
    assert_eq!(bodies(&chunks), expected);

    let mut other = Single::new(small_segments());
    other.ms = one.ms + 1_000_000;
    let mut next = 0;
    for (seq, chunk) in (1..).zip(&chunks) {
        let after = other.append_chunk(seq, next, chunk).expect("appended");
        assert!(after > next && other.replica.committed() >= Some(after));
        next = after;
    }
    let query = StreamRequest::QueryPublisher { name: "p".into() };
    let known = other.ask(21, query);
    let expected_id = QueueReply::Stream(StreamReply::PublishingId(Some(20)));
    assert_eq!(known, expected_id);
    other.restart(2, b"machine-1", small_segments());
    let (copies, _) = other.read_everything();
    assert_eq!(bodies(&copies), expected);
    let times = |chunks: &[Bytes]| -> Vec<i64> {
        let chunks = chunks.iter().map(decode);
        chunks.map(|chunk| chunk.header().timestamp).collect()
    };
    assert_eq!(times(&copies), times(&chunks));
}

#[test]
fn answers_with_chunks_are_bounded_and_repeated_requests_get_none() {
    let mut one = Single::new(LogConfig::default());
    fill(&mut one, 6, MAX_READ_BYTES / 2 - 1000);
    let large = vec![7; MAX_READ_BYTES + 1];
    let publish = batch(None, &[(7, &large)]);
    one.request(session(1), 7, RequestBody::PublishBatch(publish));
    one.work();
    let (chunks, answers) = one.read_everything();
    assert_eq!(chunks.len(), 7);
    // Two chunks fit into an answer, and the large one is alone.
    assert_eq!(answers, 4);
    let repeated = one.read_chunks(4, 6, 7);
    assert_eq!((repeated.next, repeated.chunks.len()), (6, 0));
}

#[test]
fn chunks_above_the_end_and_without_messages_are_not_read() {
    let mut one = Single::new(small_segments());
    fill(&mut one, 10, 200);
    one.restart(2, b"machine-1", small_segments());
    let end = one.replica.committed().expect("open");
    let page = one.read_chunks(1, 0, 3);
    let last = decode(page.chunks.last().expect("a chunk"));
    assert!(last.header().next_offset() <= 3);
    let page = one.read_chunks(2, 0, end);
    assert_eq!((page.next, page.chunks.len()), (end, 10));
    let mut kinds = page.chunks.iter().map(|bytes| decode(bytes).header().kind);
    assert!(kinds.all(|kind| kind == ChunkKind::Messages));
}

#[test]
fn reading_begins_at_the_first_retained_offset() {
    let retention = Retention {
        max_bytes: Some(1500),
        max_age: None,
    };
    let mut one = Single::new(LogConfig {
        retention,
        ..small_segments()
    });
    fill(&mut one, 30, 200);
    let first = one.replica.first_offset().expect("open");
    assert!(first > 0);
    let end = one.replica.committed().expect("open");
    let page = one.read_chunks(1, 0, end);
    assert!(decode(&page.chunks[0]).header().first_offset >= first);
    assert_eq!(bodies(&page.chunks).last(), Some(&vec![30; 200]));
    let nothing = one.read_chunks(2, end, end);
    assert_eq!((nothing.next, nothing.chunks.len()), (end, 0));
}

#[test]
fn chunk_is_refused_if_the_log_ends_elsewhere_or_the_chunk_is_invalid() {
    let mut one = Single::new(LogConfig::default());
    fill(&mut one, 1, 10);
    let (chunks, _) = one.read_everything();
    let mut other = Single::new(LogConfig::default());
    assert_eq!(other.append_chunk(1, 0, &chunks[0]), Ok(1));
    // As after an answer that was lost, or messages of another publisher.
    let (code, text) = other.append_chunk(2, 0, &chunks[0]).unwrap_err();
    assert_eq!(code, 409, "{text}");
    assert!(
        text.contains(LABEL) && text.contains("offset 1 instead of 0"),
        "{text}"
    );
    let mut damaged = chunks[0].to_vec();
    *damaged.last_mut().unwrap() ^= 1;
    for (seq, bytes) in [(3, Bytes::new()), (4, damaged.into())] {
        let (code, text) = other.append_chunk(seq, 1, &bytes).unwrap_err();
        assert_eq!(code, 406, "{text}");
    }
    // Nothing of a request with one invalid chunk is stored.
    let mixed = vec![chunks[0].clone(), Bytes::from_static(b"none")];
    let (code, text) = other.append_chunks(5, 1, mixed).unwrap_err();
    assert_eq!(code, 406, "{text}");
    let large = Bytes::from(vec![0; MAX_APPEND_BYTES]);
    let (code, text) = other
        .append_chunks(6, 1, vec![chunks[0].clone(), large])
        .unwrap_err();
    assert!(code == 406 && text.contains("the most at once"), "{text}");
    assert_eq!(other.replica.committed(), Some(1));
    let both = vec![chunks[0].clone(), chunks[0].clone()];
    assert_eq!(other.append_chunks(7, 1, both), Ok(3));
    assert_eq!(other.replica.committed(), Some(3));
    assert_eq!(other.replica.counters().publish, 3);
    assert!(other.fatal.is_empty());
}
