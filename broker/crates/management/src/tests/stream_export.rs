//! Exports and imports of the messages of a stream.

use super::*;
use ::backup::chunks::{self, ChunkRecords};
use bytes::Bytes;
use stream_log::ChunkBuilder;

const EXPORT: &str = "/api/queues/%2F/s/messages/export";
const IMPORT: &str = "/api/queues/%2F/s/messages/import";

/// A stream with chunks of two messages each.
fn server_with(count: u64, bytes: usize) -> Server {
    let server = Server::start();
    let body = json!({"durable": true, "arguments": {"x-queue-type": "stream"}});
    server.put("/api/queues/%2F/s", body);
    let mut fake = server.fake.lock().unwrap();
    let queue = fake.tree.queue("/", "s").unwrap().id;
    let all = (0..count).map(|number| {
        let mut builder = ChunkBuilder::new(16);
        for _ in 0..2 {
            let body = vec![number as u8; bytes];
            builder.push_message(&body, Some(b"eu")).unwrap();
        }
        builder
            .finish(2 * number, 1, 1_000 + number as i64)
            .unwrap()
    });
    let all = all.collect();
    fake.chunks.insert(queue, all);
    drop(fake);
    server
}

fn stored_in(server: &Server) -> Vec<Chunk> {
    let fake = server.fake.lock().unwrap();
    let queue = fake.tree.queue("/", "s").unwrap().id;
    fake.chunks.get(&queue).cloned().unwrap()
}

fn page(all: &[Chunk]) -> Vec<u8> {
    let mut out = Vec::new();
    chunks::begin(&mut out);
    for chunk in all {
        chunks::append(&mut out, chunk.bytes()).unwrap();
    }
    out
}

fn parse(page: Vec<u8>) -> Vec<Chunk> {
    let records = ChunkRecords::new(page.into()).unwrap();
    records.map(|record| record.unwrap().chunk).collect()
}

fn post(server: &Server, query: &str, body: Vec<u8>) -> TestResponse {
    let path = format!("{IMPORT}{query}");
    server.send(Some(("guest", "guest")), "POST", &path, body)
}

#[test]
fn pages_have_each_chunk_once_up_to_the_end_at_the_beginning() {
    for (count, bytes) in [(5, 10), (9, 600_000)] {
        let server = server_with(count, bytes);
        let before = stored_in(&server);
        let (mut all, mut pages) = (Vec::new(), 0);
        let mut path = EXPORT.to_owned();
        loop {
            let (next, body) = server.export(&path);
            all.extend(parse(body));
            pages += 1;
            if pages == 1 {
                // Messages that come later are not exported.
                let mut fake = server.fake.lock().unwrap();
                let queue = fake.tree.queue("/", "s").unwrap().id;
                let later = before[0].renumbered(2 * count, 1, 1).unwrap();
                fake.chunks.get_mut(&queue).unwrap().push(later);
            }
            match next {
                Some(next) => path = format!("{EXPORT}?cursor={next}"),
                None => break,
            }
        }
        assert!(all == before);
        assert_eq!(pages > 1, bytes > 10, "{pages} pages");
    }
    let server = server_with(3, 10);
    let (next, body) = server.export(&format!("{EXPORT}?count=1"));
    assert_eq!((next.as_deref(), parse(body).len()), (Some("4-6"), 2));
    for query in ["?cursor=x", "?cursor=1", "?cursor=-1-2", "?count=0"] {
        let refused = server.ask("GET", &format!("{EXPORT}{query}"), None);
        assert_eq!(refused.status, 400, "{query}");
    }
}

#[test]
fn imported_chunks_get_new_offsets_behind_the_offset_of_the_request() {
    let source = server_with(4, 10);
    let chunks = stored_in(&source);
    let target = server_with(0, 0);
    let first = post(&target, "", page(&chunks[2..]));
    assert_eq!(
        first.body,
        json!({"stored": 4, "refused": 0, "pending": 0, "untried": 0, "error": null, "next_offset": 4})
    );
    let second = post(&target, "?next_offset=4", page(&chunks[..1]));
    assert_eq!(second.body["next_offset"], 6, "{second:?}");
    // A repeated request stores nothing.
    let again = post(&target, "?next_offset=4", page(&chunks[..1]));
    let counts = (&again.body["stored"], &again.body["untried"]);
    assert_eq!(counts, (&json!(0), &json!(2)));
    let error = again.body["error"].as_str().unwrap();
    assert!(error.contains("offset 6 instead of 4"), "{error}");
    let stored = stored_in(&target);
    assert_eq!(stored.len(), 3);
    assert_eq!(stored[2].data(), chunks[0].data());
    assert_eq!(stored[2].filter(), chunks[0].filter());
    assert_eq!(stored[2].header().timestamp, chunks[0].header().timestamp);
    let invalid = post(&target, "?next_offset=x", page(&chunks));
    assert_eq!(invalid.status, 400);
}

#[test]
fn damaged_import_into_a_stream_stores_nothing() {
    let server = server_with(2, 10);
    let chunks = stored_in(&server);
    let whole = page(&chunks);
    let records = ChunkRecords::new(Bytes::from(whole.clone())).unwrap();
    let offset = records.last().unwrap().unwrap().offset;
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [flipped, whole[..whole.len() - 1].to_vec()] {
        let response = post(&server, "", damaged);
        assert_eq!(response.status, 400);
        let text = response.reason_text();
        assert!(text.contains(&format!("offset {offset}")), "{text}");
    }
    let mut messages = Vec::new();
    ::backup::records::begin(&mut messages);
    let other = post(&server, "", messages);
    assert_eq!(other.status, 400);
    assert!(other.reason_text().contains("PHCHNK"), "{other:?}");
    assert_eq!(stored_in(&server), chunks);
}

#[test]
fn streams_are_exported_once_the_feature_flag_is_enabled() {
    let server = server_with(1, 10);
    let mut fake = server.fake.lock().unwrap();
    fake.form_cluster();
    let stream = metadata::features::STREAM_QUEUES.name.into();
    fake.apply(Change::EnableFeature { name: stream }).unwrap();
    drop(fake);
    let body = json!({"durable": true, "arguments": {"x-queue-type": "stream"}});
    assert_eq!(server.put("/api/queues/%2F/s", body), 201);
    let refused = server.ask("GET", EXPORT, None);
    assert_eq!(refused.status, 400);
    assert!(
        refused.reason_text().contains("stream_backups"),
        "{refused:?}"
    );
    assert_eq!(post(&server, "", page(&[])).status, 400);
}
