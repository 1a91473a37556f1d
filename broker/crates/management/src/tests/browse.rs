//! Listing, deleting, moving and redriving the messages of a queue.

use super::*;

const MESSAGES: &str = "/api/queues/%2F/q/messages";

fn publish(server: &Server, queue: &str, payload: &str) {
    let body = json!({
        "routing_key": queue, "payload": payload, "payload_encoding": "string",
        "properties": {"timestamp": 7, "headers": {"n": 1}},
    });
    let published = server.ask("POST", "/api/exchanges/%2F/amq.default/publish", Some(body));
    assert_eq!(published.body, json!({"routed": true}));
}

/// A server with these messages in queue `q`.
fn server_with(payloads: &[&str]) -> Server {
    let server = Server::start();
    server.quorum("q");
    server.quorum("other");
    payloads
        .iter()
        .for_each(|payload| publish(&server, "q", payload));
    server
}

fn queue_id(server: &Server, name: &str) -> QueueId {
    server
        .fake
        .lock()
        .unwrap()
        .tree
        .queue("/", name)
        .unwrap()
        .id
}

fn payloads(listing: &Json) -> Vec<&str> {
    let all = listing["messages"].as_array().unwrap().iter();
    all.map(|message| message["payload"].as_str().unwrap())
        .collect()
}

fn post(server: &Server, action: &str, body: Json) -> TestResponse {
    server.ask("POST", &format!("{MESSAGES}/{action}"), Some(body))
}

/// The counts of an outcome that are not zero, and its cursor.
fn outcome(response: &TestResponse) -> Json {
    assert_eq!(response.status, 200, "{response:?}");
    let mut counts = response.body.as_object().unwrap().clone();
    counts.retain(|_, value| *value != 0 && !value.is_null());
    Json::Object(counts)
}

#[test]
fn messages_are_listed_with_states_and_stay() {
    let server = server_with(&["one", "two", "three"]);
    let q = queue_id(&server, "q");
    server.fake.lock().unwrap().unacknowledged.insert((q, 1));
    for _ in 0..2 {
        let listed = server.get(MESSAGES);
        assert_eq!(payloads(&listed), ["one", "two", "three"]);
        assert_eq!(listed["next"], Json::Null);
        assert_eq!(
            listed["messages"][0],
            json!({
                "position": "1", "state": "unacknowledged", "due_at": null, "redelivered": false, "delivery_count": 0, "received_at": 1,
                "exchange": "", "routing_key": "q",
                "properties": {"timestamp": 7, "headers": {"n": 1}},
                "payload_bytes": 3, "payload_truncated": false, "payload": "one", "payload_encoding": "string",
            })
        );
        assert_eq!(listed["messages"][1]["state"], "ready");
    }
}

#[test]
fn listing_is_continued_and_payloads_are_cut_off() {
    let server = server_with(&["one", "two", "three"]);
    let first = server.get(&format!("{MESSAGES}?count=2&truncate=2"));
    assert_eq!(payloads(&first), ["on", "tw"]);
    assert_eq!(first["messages"][0]["payload_truncated"], true);
    assert_eq!(first["messages"][0]["payload_bytes"], 3);
    let next = first["next"].as_str().unwrap();
    let rest = server.get(&format!("{MESSAGES}?cursor={next}&encoding=base64"));
    assert_eq!(payloads(&rest), ["dGhyZWU="]);
    assert_eq!(
        payloads(&server.get(&format!("{MESSAGES}?position=2"))),
        ["two", "three"]
    );
}

#[test]
fn invalid_listings_are_refused() {
    let server = server_with(&["one"]);
    for (query, text) in [
        ("count=0", "count is a number from 1 to 1000, got '0'"),
        ("count=1001", "count is a number from 1 to 1000, got '1001'"),
        (
            "truncate=-1",
            "truncate is a number from 0 to 4194304, got '-1'",
        ),
        ("cursor=x", "cursor 'x' is invalid"),
        ("position=x", "position 'x' is invalid"),
        ("encoding=hex", "encoding 'hex' is not known"),
        ("state=late", "state 'late' is not known"),
    ] {
        let refused = server.ask("GET", &format!("{MESSAGES}?{query}"), None);
        assert_eq!(refused.status, 400, "{query}");
        let reason = refused.body["reason"].as_str().unwrap();
        assert!(reason.contains(text), "{reason}");
    }
    assert_eq!(
        server
            .ask("GET", "/api/queues/%2F/no/messages", None)
            .status,
        404
    );
    server.fake.lock().unwrap().is_leaderless = true;
    let away = server.ask("GET", MESSAGES, None);
    assert_eq!(away.status, 503);
    let reason = away.body["reason"].as_str().unwrap();
    assert!(
        reason.contains("no node that leads or stores the queue"),
        "{reason}"
    );
}

#[test]
fn ready_message_is_deleted_and_no_other() {
    let server = server_with(&["one", "two", "three"]);
    let q = queue_id(&server, "q");
    server.fake.lock().unwrap().unacknowledged.insert((q, 1));
    let unacknowledged = server.ask("DELETE", &format!("{MESSAGES}/1"), None);
    assert_eq!(unacknowledged.status, 412);
    let reason = unacknowledged.body["reason"].as_str().unwrap();
    assert!(
        reason.contains("only a ready or delayed message can be deleted"),
        "{reason}"
    );
    assert_eq!(server.delete(&format!("{MESSAGES}/2")), 204);
    assert_eq!(payloads(&server.get(MESSAGES)), ["one", "three"]);
    let gone = server.ask("DELETE", &format!("{MESSAGES}/9"), None);
    assert_eq!(gone.status, 404);
    let reason = gone.body["reason"].as_str().unwrap();
    assert!(
        reason.contains("has no ready or delayed message 9"),
        "{reason}"
    );
    assert_eq!(
        server.ask("DELETE", &format!("{MESSAGES}/x"), None).status,
        400
    );
}

#[test]
fn delayed_messages_are_listed_and_deleted() {
    let server = server_with(&["one", "two", "three"]);
    let q = queue_id(&server, "q");
    server.fake.lock().unwrap().due.insert((q, 3), 5_000);
    let listed = server.get(&format!("{MESSAGES}?state=delayed"));
    assert_eq!(payloads(&listed), ["three"]);
    assert_eq!(listed["messages"][0]["due_at"], 5_000);
    let ready = server.get(&format!("{MESSAGES}?state=ready"));
    assert_eq!(payloads(&ready), ["one", "two"]);
    // A request that does not name it leaves it in its queue.
    let moved = post(&server, "move", json!({"destination_queue": "other"}));
    assert_eq!(outcome(&moved), json!({"moved": 2, "not_ready": 1}));
    let mut fake = server.fake.lock().unwrap();
    fake.due = [((q, 1), 5_000)].into();
    drop(fake);
    assert_eq!(server.delete(&format!("{MESSAGES}/1")), 204);
    assert_eq!(payloads(&server.get(MESSAGES)), Vec::<&str>::new());
}

#[test]
fn delayed_messages_are_deleted_by_their_message_id() {
    let server = Server::start();
    server.quorum("q");
    for id in ["a", "a b", "a", "a b"] {
        let body = json!({
            "routing_key": "q", "payload": id, "payload_encoding": "string", "properties": {"message_id": id},
        });
        server.ask("POST", "/api/exchanges/%2F/amq.default/publish", Some(body));
    }
    let q = queue_id(&server, "q");
    server.fake.lock().unwrap().due = [((q, 2), 1), ((q, 3), 1)].into();
    let delete = |query: &str| server.ask("DELETE", &format!("{MESSAGES}?{query}"), None);
    let deleted =
        |count| json!({"deleted": count, "missing": 0, "untried": 0, "error": null, "next": null});
    let none = delete("message_id=x&state=delayed");
    assert_eq!((none.status, none.body), (200, deleted(0)));
    // The fourth is ready.
    assert_eq!(delete("message_id=a%20b&state=delayed").body, deleted(1));
    assert_eq!(payloads(&server.get(MESSAGES)), ["a", "a", "a b"]);
    for query in [
        "",
        "message_id=a",
        "message_id=a&state=ready",
        "state=delayed",
    ] {
        let refused = delete(query);
        assert_eq!(refused.status, 400, "{query}");
        let reason = refused.body["reason"].as_str().unwrap();
        assert!(
            reason.contains("only delayed messages are deleted"),
            "{reason}"
        );
    }
}

#[test]
fn messages_are_moved_by_count_and_by_position() {
    let server = server_with(&["one", "two", "three", "four"]);
    let moved = post(
        &server,
        "move",
        json!({"destination_queue": "other", "count": 1}),
    );
    assert_eq!(outcome(&moved), json!({"moved": 1, "next": "0-2-0-0"}));
    let body = json!({"destination_exchange": "amq.default", "routing_key": "other", "positions": ["3", 1, "9"]});
    let moved = post(&server, "move", body);
    assert_eq!(outcome(&moved), json!({"moved": 2, "missing": 1}));
    assert_eq!(payloads(&server.get(MESSAGES)), ["three"]);
    let other = server.get("/api/queues/%2F/other/messages");
    assert_eq!(payloads(&other), ["one", "two", "four"]);
    assert_eq!(other["messages"][0]["routing_key"], "other");
    let unroutable = post(&server, "move", json!({"destination_queue": "no"}));
    assert_eq!(outcome(&unroutable), json!({"unroutable": 1}));
    assert_eq!(payloads(&server.get(MESSAGES)), ["three"]);
}

#[test]
fn invalid_moves_are_refused() {
    let server = server_with(&["one"]);
    let target = json!({"destination_queue": "other"});
    for (change, text) in [
        (
            json!({"destination_queue": null}),
            "name either 'destination_queue'",
        ),
        (
            json!({"destination_exchange": "amq.direct"}),
            "name either 'destination_queue'",
        ),
        (json!({"count": 0}), "count is a number from 1 to 1000"),
        (json!({"count": 1001}), "count is a number from 1 to 1000"),
        (
            json!({"positions": "1"}),
            "positions is a list of at most 100",
        ),
        (json!({"positions": ["x"]}), "position 'x' is invalid"),
        (json!({"cursor": "x"}), "cursor 'x' is invalid"),
    ] {
        let mut body = target.as_object().unwrap().clone();
        body.extend(change.as_object().unwrap().clone());
        let refused = post(&server, "move", Json::Object(body));
        assert_eq!(refused.status, 400, "{change}");
        let reason = refused.body["reason"].as_str().unwrap();
        assert!(reason.contains(text), "{reason}");
    }
    let unknown = json!({"destination_exchange": "no", "routing_key": "k"});
    assert_eq!(post(&server, "move", unknown).status, 404);
}

#[test]
fn dead_letters_are_redriven_and_others_are_counted() {
    let server = server_with(&["never died", "died"]);
    {
        let mut fake = server.fake.lock().unwrap();
        let q = fake.tree.queue("/", "q").unwrap().id;
        let mut deaths = message::Deaths::default();
        deaths.record(&message::Dying {
            queue: "other",
            reason: message::DeadReason::Rejected,
            exchange: "",
            routing_keys: vec!["other"],
            ttl_ms: None,
            failed: true,
            at: WallTime(5),
        });
        let died = fake.messages.get_mut(&q).unwrap();
        died[1] = died[1].dead_lettered("dlx", Some("q"), &deaths).unwrap();
    }
    let listed = server.get(MESSAGES);
    let headers = &listed["messages"][1]["properties"]["headers"];
    assert_eq!(headers["x-first-death-queue"], "other");
    let redriven = post(&server, "redrive", json!({}));
    assert_eq!(
        outcome(&redriven),
        json!({"moved": 1, "without_history": 1})
    );
    assert_eq!(payloads(&server.get(MESSAGES)), ["never died"]);
    assert_eq!(
        payloads(&server.get("/api/queues/%2F/other/messages")),
        ["died"]
    );
}

#[test]
fn permissions_are_those_of_get_and_publish() {
    let server = server_with(&["one"]);
    server.add_user("reader", &["management"]);
    server.add_user("writer", &["management"]);
    server.add_user("nobody", &[]);
    let limit = |user: &str, write: &str, read: &str| {
        let change = Change::PutPermission(metadata::PermissionRecord {
            user: user.into(),
            vhost: "/".into(),
            configure: ".*".into(),
            write: write.into(),
            read: read.into(),
        });
        server.fake.lock().unwrap().apply(change).unwrap();
    };
    limit("reader", "", ".*");
    limit("writer", ".*", "");
    let delete = format!("{MESSAGES}/9");
    let (moves, redrives) = (format!("{MESSAGES}/move"), format!("{MESSAGES}/redrive"));
    let to_other = json!({"destination_queue": "other"});
    let requests = [
        ("GET", MESSAGES, None, [200, 401, 401]),
        ("DELETE", &delete, None, [404, 401, 401]),
        ("POST", &moves, Some(to_other), [400, 401, 401]),
        ("POST", &redrives, Some(json!({})), [400, 401, 401]),
    ];
    for (method, path, body, expected) in requests {
        let users = ["reader", "writer", "nobody"];
        let statuses = users.map(|user| {
            server
                .ask_as(Some((user, "secret")), method, path, body.clone())
                .status
        });
        assert_eq!(statuses, expected, "{method} {path}");
    }
    assert_eq!(payloads(&server.get(MESSAGES)), ["one"]);
}

#[test]
fn age_of_the_head_is_read_if_the_owner_does_not_tell_it() {
    let server = server_with(&["one"]);
    assert!(
        server
            .get("/api/queues/%2F/other")
            .get("head_message_age_seconds")
            .is_none()
    );
    server.set_stats("q", 1, 0);
    let queue = server.get("/api/queues/%2F/q");
    assert_eq!(queue["head_message_timestamp"], 7);
    assert_eq!(queue["head_message_received_at"], 1);
    assert!(queue["head_message_age_seconds"].is_u64());
}

/// Sets the oldest ready message of a queue.
fn set_head(server: &Server, name: &str, received: u64, timestamp: Option<u64>) {
    let mut fake = server.fake.lock().unwrap();
    let id = fake.tree.queue("/", name).unwrap().id;
    let head = queue::HeadMessage {
        received,
        timestamp,
    };
    fake.heads.insert(id, head);
}

#[test]
fn lists_and_metrics_have_the_age_of_the_head_that_the_owner_tells() {
    let server = server_with(&["one"]);
    for (name, ready) in [("q", 1), ("other", 2), ("empty", 0)] {
        if name == "empty" {
            server.fake.lock().unwrap().declare(name);
        }
        server.set_stats(name, ready, 0);
    }
    set_head(&server, "q", 2_000, Some(70));
    set_head(&server, "other", 1_000, None);
    let of = |list: &Json, name: &str| {
        let mut rows = list.as_array().unwrap().iter();
        rows.find(|q| q["name"] == name).unwrap().clone()
    };
    let list = server.get("/api/queues");
    for shown in [of(&list, "q"), server.get("/api/queues/%2F/q")] {
        assert_eq!(shown["head_message_received_at"], 2_000);
        assert_eq!(shown["head_message_timestamp"], 70);
        assert!(shown["head_message_age_seconds"].is_u64(), "{shown}");
    }
    let other = of(&list, "other");
    assert_eq!(other["head_message_received_at"], 1_000);
    assert!(other["head_message_timestamp"].is_null());
    let empty = of(&list, "empty");
    assert!(empty.get("head_message_age_seconds").is_none(), "{empty}");

    let sorted = |by: &str| -> Vec<String> {
        let list = server.get(&format!("/api/queues?sort={by}&sort_reverse=true"));
        let names = list.as_array().unwrap().iter();
        let names = names.map(|q| q["name"].as_str().unwrap().to_owned());
        names.filter(|name| name != "empty").collect()
    };
    assert_eq!(sorted("head_message_received_at"), ["q", "other"]);
    assert_eq!(sorted("head_message_age_seconds"), ["other", "q"]);

    let metrics = |path: &str| -> Vec<String> {
        let url = format!("http://{}{path}", server.metrics);
        let text = ureq::get(url).call().unwrap().body_mut().read_to_string();
        let text = text.unwrap();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        let heads = samples.filter(|line| line.contains("queue_head_message"));
        heads.map(str::to_owned).collect()
    };
    for (path, prefix) in [
        ("/metrics/per-object", ""),
        ("/metrics/detailed?family=queue_metrics", "detailed_"),
    ] {
        let samples = metrics(path);
        let timestamp =
            format!("rabbitmq_{prefix}queue_head_message_timestamp{{vhost=\"/\",queue=\"q\"}} 70");
        assert!(samples.contains(&timestamp), "{samples:?}");
        let age = format!("posthorn_{prefix}queue_head_message_age_seconds{{");
        let ages = samples.iter().filter(|line| line.starts_with(&age));
        assert_eq!(ages.count(), 2, "{samples:?}");
        assert_eq!(samples.len(), 3, "{samples:?}");
    }
    let coarse = "/metrics/detailed?family=queue_coarse_metrics";
    assert!(metrics(coarse).is_empty());
}

#[test]
fn age_is_in_whole_seconds_and_never_negative() {
    let head = queue::HeadMessage {
        received: 10_000,
        timestamp: None,
    };
    let age = |now| crate::queues::age_seconds(&head, env::WallTime(now));
    assert_eq!([age(10_999), age(11_000), age(9_000)], [0, 1, 0]);
}
