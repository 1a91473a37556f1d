//! Exports and imports of retained MQTT messages.

use super::*;
use ::backup::retained::{self, RetainedMessage, RetainedRecords};
use message::{MessageBuilder, Protocol};

const EXPORT: &str = "/api/mqtt/retained/%2F/export";
const IMPORT: &str = "/api/mqtt/retained/%2F/import";
const HOUR: u64 = 3_600_000;

fn message(body: &[u8], received: u64, ttl_ms: Option<u64>) -> Message {
    let builder = MessageBuilder {
        protocol: Protocol::Mqtt,
        durable: true,
        priority: None,
        ttl_ms,
        received: WallTime(received),
        exchange: "amq.topic",
        routing_keys: &["a.b"],
        properties: &[],
    };
    builder.build(body.len(), [body]).unwrap()
}

fn retain(server: &Server, topic: &str, message: &Message) {
    let change = Change::Retain {
        vhost: "/".into(),
        topic: topic.into(),
        message: Some(message.to_bytes()),
    };
    server.fake.lock().unwrap().apply(change).unwrap();
}

fn retained(server: &Server, topic: &str) -> Option<Message> {
    let fake = server.fake.lock().unwrap();
    let raw = fake.tree.retained("/", topic).cloned()?;
    Some(Message::decode(raw).unwrap())
}

fn page(all: &[(&str, Option<u64>, Message)]) -> Vec<u8> {
    let mut out = Vec::new();
    retained::begin(&mut out);
    for (topic, remaining_ms, message) in all {
        let record = RetainedMessage {
            topic: (*topic).to_owned(),
            remaining_ms: *remaining_ms,
            message: message.clone(),
        };
        retained::append(&mut out, &record).unwrap();
    }
    out
}

fn export_all(server: &Server) -> (Vec<RetainedMessage>, usize) {
    let (mut all, mut pages) = (Vec::new(), 0);
    let mut path = EXPORT.to_owned();
    loop {
        let (next, body) = server.export(&path);
        let records = RetainedRecords::new(body.into()).unwrap();
        all.extend(records.map(|record| record.unwrap().retained));
        pages += 1;
        match next {
            Some(next) => path = format!("{EXPORT}?cursor={next}"),
            None => return (all, pages),
        }
    }
}

fn post(server: &Server, body: Vec<u8>) -> TestResponse {
    server.send(Some(("guest", "guest")), "POST", IMPORT, body)
}

fn now() -> u64 {
    use env::Clock as _;
    env::real::RealClock::new().wall().0
}

#[test]
fn pages_have_each_topic_once_and_no_expired_message() {
    let server = Server::start();
    let large = vec![7; 200_000];
    let topics: Vec<String> = (0..40).map(|n| format!("sensors/é/{n:02}")).collect();
    for topic in &topics {
        retain(&server, topic, &message(&large, 5, None));
    }
    retain(&server, "sensors/expired", &message(b"old", 5, Some(10)));
    let rest = message(b"rest", now(), Some(HOUR));
    retain(&server, "sensors/rest", &rest);
    let (all, pages) = export_all(&server);
    assert!(pages > 1, "{pages}");
    let mut expected = topics.clone();
    expected.push("sensors/rest".to_owned());
    expected.sort();
    let read: Vec<&str> = all.iter().map(|m| m.topic.as_str()).collect();
    assert_eq!(read, expected);
    for found in &all {
        let is_right = match (found.topic.as_str(), found.remaining_ms) {
            ("sensors/rest", Some(ms)) => (1..=HOUR).contains(&ms),
            (topic, None) => topic != "sensors/rest",
            _ => false,
        };
        assert!(is_right, "{}: {:?}", found.topic, found.remaining_ms);
    }
    let small = Server::start();
    for n in 0..1000 {
        retain(&small, &format!("t/{n}"), &message(b"x", 5, None));
    }
    assert_eq!(export_all(&small).0.len(), 1000);
    let missing = small.ask("GET", "/api/mqtt/retained/none/export", None);
    assert_eq!(missing.status, 404);
    let invalid = small.ask("GET", &format!("{EXPORT}?cursor=*"), None);
    assert_eq!(invalid.status, 400);
}

#[test]
fn imported_messages_live_for_the_rest_of_their_time() {
    let server = Server::start();
    // Received years ago, when it was backed up with one hour left.
    let expiring = message(b"rest", 1_000_000, Some(24 * HOUR));
    let lying = message(b"more", 1_000_000, Some(HOUR));
    let body = page(&[
        ("a", None, message(b"for good", 7, None)),
        ("b", Some(HOUR), expiring),
        ("c", Some(u64::MAX), lying),
    ]);
    let before = now();
    let response = post(&server, body.clone());
    let counts = json!({"stored": 3, "kept": 0, "refused": 0, "untried": 0, "error": null});
    assert_eq!(response.body, counts, "{response:?}");
    let after = now();
    let found = retained(&server, "a").unwrap();
    let expected = (&b"for good"[..], WallTime(7));
    assert_eq!((found.body(), found.received()), expected);
    for topic in ["b", "c"] {
        let found = retained(&server, topic).unwrap();
        let expires = found.received().0 + found.ttl_ms().unwrap();
        let range = before + HOUR..=after + HOUR;
        assert!(range.contains(&expires), "{topic}: {expires} in {range:?}");
    }
    // Topics that have a message keep it.
    retain(&server, "a", &message(b"newer", 8, None));
    let again = post(&server, body);
    let counts = json!({"stored": 0, "kept": 3, "refused": 0, "untried": 0, "error": null});
    assert_eq!(again.body, counts);
    assert_eq!(retained(&server, "a").unwrap().body(), b"newer");
}

#[test]
fn invalid_retained_messages_are_refused_as_a_whole() {
    let server = Server::start();
    let good = ("good", None, message(b"x", 5, None));
    for topic in ["", "a/+", "#", "a\0b"] {
        let body = page(&[good.clone(), (topic, None, message(b"x", 5, None))]);
        let refused = post(&server, body);
        assert_eq!(refused.status, 400, "{topic}");
        assert!(refused.reason_text().contains("topic name"), "{refused:?}");
    }
    let mut damaged = page(std::slice::from_ref(&good));
    *damaged.last_mut().unwrap() ^= 1;
    assert_eq!(post(&server, damaged).status, 400);
    assert_eq!(retained(&server, "good"), None);
    // The metadata refuses a message that is too large.
    let large = vec![0; metadata::limits::RETAINED_BYTES];
    let large = ("large", None, message(&large, 5, None));
    let refused = post(&server, page(&[large, good]));
    assert_eq!(refused.status, 200, "{refused:?}");
    let counts = (&refused.body["refused"], &refused.body["stored"]);
    assert_eq!(counts, (&json!(1), &json!(1)));
    let error = refused.body["error"].as_str().unwrap();
    assert!(error.contains("cannot be retained"), "{error}");
}

#[test]
fn retained_messages_are_exported_and_imported_by_administrators() {
    let server = Server::start();
    server.add_user("m", &["monitoring"]);
    let who = Some(("m", "m"));
    assert_eq!(server.ask_as(who, "GET", EXPORT, None).status, 401);
    assert_eq!(server.send(who, "POST", IMPORT, page(&[])).status, 401);
}
