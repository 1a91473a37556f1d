//! Exports and imports of the messages of a queue.

use super::*;
use ::backup::records::{self, MessageState, Records, StoredMessage};
use bytes::Bytes;
use message::{MessageBuilder, Protocol};

const EXPORT: &str = "/api/queues/%2F/q/messages/export";
const IMPORT: &str = "/api/queues/%2F/q/messages/import";

fn message(body: &[u8]) -> Message {
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable: true,
        priority: None,
        ttl_ms: None,
        received: WallTime(1),
        exchange: "",
        routing_keys: &["elsewhere"],
        properties: &[0, 0],
    };
    builder.build(body.len(), [body]).unwrap()
}

fn queue_id(server: &Server) -> QueueId {
    let fake = server.fake.lock().unwrap();
    fake.tree.queue("/", "q").unwrap().id
}

fn server_with(messages: Vec<Message>) -> Server {
    let server = Server::start();
    server.quorum("q");
    let q = queue_id(&server);
    server.fake.lock().unwrap().messages.insert(q, messages);
    server
}

fn stored_in(server: &Server) -> Vec<Message> {
    let q = queue_id(server);
    let fake = server.fake.lock().unwrap();
    fake.messages.get(&q).cloned().unwrap_or_default()
}

fn parse(page: Vec<u8>) -> Vec<StoredMessage> {
    let records = Records::new(page.into()).unwrap();
    records.map(|record| record.unwrap().stored).collect()
}

fn page(messages: &[(Message, Option<u64>)]) -> Vec<u8> {
    let mut out = Vec::new();
    records::begin(&mut out);
    for (message, due_ms) in messages {
        let stored = StoredMessage {
            state: MessageState::Ready,
            redelivered: true,
            failed: Some(3),
            acquired: 4,
            due_ms: *due_ms,
            message: message.clone(),
        };
        records::append(&mut out, &stored).unwrap();
    }
    out
}

fn post(server: &Server, body: Vec<u8>) -> TestResponse {
    server.send(Some(("guest", "guest")), "POST", IMPORT, body)
}

#[test]
fn pages_have_each_message_once_with_its_state() {
    let messages: Vec<Message> = (0..250u8).map(|n| message(&[n])).collect();
    let server = server_with(messages.clone());
    let q = queue_id(&server);
    {
        let mut fake = server.fake.lock().unwrap();
        fake.unacknowledged.insert((q, 2));
        fake.due.insert((q, 3), 5_000);
    }
    for count in ["", "?count=7", "?count=100"] {
        let mut all = Vec::new();
        let mut cursor = None;
        loop {
            let separator = if count.is_empty() { "?" } else { "&" };
            let query = match &cursor {
                Some(cursor) => format!("{count}{separator}cursor={cursor}"),
                None => count.to_owned(),
            };
            let (next, body) = server.export(&format!("{EXPORT}{query}"));
            all.extend(parse(body));
            match next {
                Some(next) => cursor = Some(next),
                None => break,
            }
        }
        let read: Vec<Message> = all.iter().map(|stored| stored.message.clone()).collect();
        assert_eq!(read, messages);
        let states: Vec<_> = all[..4].iter().map(|s| (s.state, s.due_ms)).collect();
        assert_eq!(
            states,
            [
                (MessageState::Ready, None),
                (MessageState::Unacknowledged, None),
                (MessageState::Delayed, Some(5_000)),
                (MessageState::Ready, None),
            ]
        );
    }
    assert_eq!(stored_in(&server), messages);
}

#[test]
fn large_bodies_are_exported_whole() {
    let large: Vec<u8> = (0..9 << 20).map(|n: u32| (n % 251) as u8).collect();
    let messages = vec![
        message(b"a"),
        message(&large),
        message(b"b"),
        message(&large),
    ];
    let server = server_with(messages.clone());
    let mut all = Vec::new();
    let mut path = EXPORT.to_owned();
    loop {
        let (next, body) = server.export(&path);
        all.extend(parse(body).into_iter().map(|stored| stored.message));
        match next {
            Some(next) => path = format!("{EXPORT}?cursor={next}"),
            None => break,
        }
    }
    assert!(all == messages);
}

#[test]
fn imported_messages_are_in_the_queue_in_their_order() {
    let server = server_with(Vec::new());
    let delayed = queue::schedule(&message(b"delay is over"), 1_000).unwrap();
    let messages = [
        (message(b"first"), None),
        (delayed, None),
        (message(b"due long ago"), Some(1)),
        (message(b"due in the far future"), Some(u64::MAX)),
    ];
    let response = post(&server, page(&messages));
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(
        response.body,
        json!({"stored": 4, "refused": 0, "pending": 0, "untried": 0, "error": null})
    );
    let stored = stored_in(&server);
    let bodies: Vec<&[u8]> = stored.iter().map(Message::body).collect();
    let expected: [&[u8]; 4] = [
        b"first",
        b"delay is over",
        b"due long ago",
        b"due in the far future",
    ];
    assert_eq!(bodies, expected);
    let has_delay = |message: &Message| {
        let annotations = queue::Annotations::of(message);
        annotations.is_some_and(|a| a.table().get(queue::DELIVERY_DELAY).is_some())
    };
    let delays: Vec<bool> = stored.iter().map(has_delay).collect();
    assert_eq!(delays, [false, false, false, true]);
}

#[test]
fn damaged_import_is_refused_with_its_offset_and_stores_nothing() {
    let server = server_with(Vec::new());
    let whole = page(&[(message(b"one"), None), (message(b"two"), None)]);
    let second = Records::new(Bytes::from(whole.clone())).unwrap();
    let offset = second.last().unwrap().unwrap().offset;
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for damaged in [flipped, whole[..whole.len() - 1].to_vec()] {
        let response = post(&server, damaged);
        assert_eq!(response.status, 400);
        let text = response.reason_text();
        assert!(text.contains(&format!("offset {offset}")), "{text}");
    }
    let response = post(&server, b"{}".to_vec());
    assert_eq!(response.status, 400);
    assert!(response.reason_text().contains("PHMSGS"));
    assert!(stored_in(&server).is_empty());
}

#[test]
fn exports_and_imports_need_an_administrator() {
    let server = server_with(vec![message(b"secret")]);
    server.add_user("m", &["monitoring"]);
    let who = Some(("m", "m"));
    assert_eq!(server.ask_as(who, "GET", EXPORT, None).status, 401);
    assert_eq!(server.send(who, "POST", IMPORT, page(&[])).status, 401);
    let missing = server.ask("GET", "/api/queues/%2F/none/messages/export", None);
    assert_eq!(missing.status, 404);
    let invalid = server.ask("GET", &format!("{EXPORT}?count=0"), None);
    assert_eq!(invalid.status, 400);
}
