use super::*;

fn publish(server: &Server, path: &str, body: Json) -> TestResponse {
    server.ask(
        "POST",
        &format!("/api/exchanges/%2F/{path}/publish"),
        Some(body),
    )
}

fn message(key: &str, payload: &str, encoding: &str) -> Json {
    json!({"routing_key": key, "payload": payload, "payload_encoding": encoding, "properties": {}})
}

fn get(server: &Server, queue: &str, mode: &str, count: i64) -> TestResponse {
    let body = json!({"count": count, "ackmode": mode, "encoding": "auto"});
    server.ask("POST", &format!("/api/queues/%2F/{queue}/get"), Some(body))
}

#[test]
fn message_is_published_inspected_and_consumed() {
    let server = Server::start();
    server.quorum("q");
    let mut body = message("q", "héllo", "string");
    body["properties"] = json!({
        "delivery_mode": 2, "priority": 7, "content_type": "text/plain", "timestamp": 5, "type": "greeting",
        "headers": {"n": 1, "nested": {"list": ["a", true]}},
    });
    let got = publish(&server, "amq.default", body);
    assert_eq!((got.status, got.body), (200, json!({"routed": true})));
    let released = server
        .fake
        .lock()
        .unwrap()
        .messages
        .values()
        .next()
        .unwrap()[0]
        .clone();
    assert!(released.durable());
    assert_eq!(released.priority(), Some(7));
    for _ in 0..2 {
        let inspected = get(&server, "q", "ack_requeue_true", 5);
        assert_eq!(
            inspected.body,
            json!([{
                "payload": "héllo", "payload_encoding": "string", "payload_bytes": 6, "redelivered": false,
                "exchange": "", "routing_key": "q", "message_count": 0,
                "properties": {
                    "delivery_mode": 2, "priority": 7, "content_type": "text/plain", "timestamp": 5, "type": "greeting",
                    "headers": {"n": 1, "nested": {"list": ["a", true]}},
                },
            }])
        );
    }
    assert_eq!(
        get(&server, "q", "ack_requeue_false", 1).body[0]["payload"],
        "héllo"
    );
    assert_eq!(get(&server, "q", "ack_requeue_false", 1).body, json!([]));
}

#[test]
fn payload_is_encoded_and_truncated() {
    let server = Server::start();
    server.quorum("q");
    let raw = base64::engine::general_purpose::STANDARD.encode([0xff, 0xfe, 1]);
    assert_eq!(
        publish(&server, "amq.default", message("q", &raw, "base64")).status,
        200
    );
    assert_eq!(
        publish(&server, "amq.default", message("q", "long", "string")).status,
        200
    );
    let body =
        json!({"count": 2, "ackmode": "reject_requeue_true", "encoding": "auto", "truncate": 2});
    let got = server.ask("POST", "/api/queues/%2F/q/get", Some(body)).body;
    assert_eq!(
        (
            &got[0]["payload_encoding"],
            &got[0]["payload_bytes"],
            &got[0]["payload"]
        ),
        (&json!("base64"), &json!(3), &json!("//4="))
    );
    assert_eq!(
        (&got[1]["payload"], &got[1]["payload_bytes"]),
        (&json!("lo"), &json!(4))
    );
}

#[test]
fn invalid_publish_and_get_requests_are_refused() {
    let server = Server::start();
    server.quorum("q");
    let unrouted = publish(&server, "amq.fanout", message("q", "x", "string"));
    assert_eq!(
        (unrouted.status, unrouted.body),
        (200, json!({"routed": false}))
    );
    assert_eq!(
        publish(&server, "nowhere", message("q", "x", "string")).status,
        404
    );
    let with = |key: &str, value: Json| {
        let mut body = message("q", "x", "string");
        body["properties"][key] = value;
        body
    };
    for (body, why) in [
        (json!({}), "{key_missing,properties}"),
        (message("q", "!", "base64"), "[\"not_base64\",\"!\"]"),
        (
            message("q", "x", "hex"),
            "[\"unsupported_encoding\",\"hex\"]",
        ),
        (
            message(&"k".repeat(256), "x", "string"),
            "'routing_key' is longer than 255",
        ),
        (
            with("content_type", json!("c".repeat(256))),
            "'content_type' is longer",
        ),
        (
            with("content_type", json!(5)),
            "[\"not_string\",\"content_type\"]",
        ),
        (
            with("priority", json!("high")),
            "[\"not_int\",\"priority\"]",
        ),
        (with("priority", json!(256)), "'priority' is out of range"),
        (
            with("expiration", json!("soon")),
            "406 PRECONDITION_FAILED - invalid expiration 'soon': no_integer",
        ),
        (with("expiration", json!("-1")), "invalid expiration '-1'"),
        (
            with("expiration", json!(1234)),
            "[\"not_string\",\"expiration\"]",
        ),
        (with("headers", json!([1])), "'headers' should be an object"),
        (
            with("user_id", json!("eve")),
            "authenticated user was 'guest'",
        ),
    ] {
        let got = publish(&server, "amq.default", body);
        assert_eq!(got.status, 400, "{got:?}");
        assert!(got.reason_text().contains(why), "{got:?}");
    }
    let internal = publish(&server, "amq.rabbitmq.trace", message("q", "x", "string"));
    assert_eq!(internal.status, 400);
    for (body, why) in [
        (
            json!({"count": 1, "encoding": "auto"}),
            "[{key_missing,ackmode}]",
        ),
        (
            json!({"count": 1, "encoding": "auto", "ackmode": "keep"}),
            "'keep' is not known",
        ),
        (
            json!({"encoding": "auto", "ackmode": "ack_requeue_true"}),
            "[{key_missing,count}]",
        ),
        (
            json!({"count": -1, "encoding": "auto", "ackmode": "ack_requeue_true"}),
            "count is a number",
        ),
        (
            json!({"count": 9_999_999, "encoding": "auto", "ackmode": "ack_requeue_true"}),
            "count is a number",
        ),
        (
            json!({"count": 1, "encoding": "hex", "ackmode": "ack_requeue_true"}),
            "Unsupported encoding",
        ),
    ] {
        let got = server.ask("POST", "/api/queues/%2F/q/get", Some(body));
        assert_eq!(got.status, 400, "{got:?}");
        assert!(got.reason_text().contains(why), "{got:?}");
    }
    assert_eq!(get(&server, "nowhere", "ack_requeue_true", 1).status, 404);
    assert_eq!(get(&server, "q", "ack_requeue_true", 0).body, json!([]));
}

#[test]
fn publish_and_get_require_the_amqp_permissions() {
    let server = Server::start();
    server.quorum("q");
    server.add_user("m", &["management"]);
    let ask = |path: &str, body: Json| {
        let got = server.ask_as(Some(("m", "secret")), "POST", path, Some(body));
        (got.status, got.reason().to_owned())
    };
    let rights = |write: &str, read: &str| {
        let body = json!({"configure": "", "write": write, "read": read});
        assert_eq!(server.put("/api/permissions/%2F/m", body), 204);
    };
    let publish_path = "/api/exchanges/%2F/amq.topic/publish";
    let get_path = "/api/queues/%2F/q/get";
    let wanted = json!({"count": 1, "ackmode": "ack_requeue_true", "encoding": "auto"});
    rights("", "");
    // RabbitMQ reports the close reason of its internal AMQP connection.
    let why = "403 ACCESS_REFUSED - write access to exchange 'amq.topic' in vhost '/' refused for user 'm'";
    let refused = ask(publish_path, message("a.b", "x", "string"));
    assert_eq!(refused, (400, why.to_owned()));
    let why = "ACCESS_REFUSED - read access to queue 'q' in vhost '/' refused for user 'm'";
    assert_eq!(ask(get_path, wanted.clone()), (401, why.to_owned()));
    rights("^amq\\.topic$", "^q$");
    assert_eq!(ask(publish_path, message("a.b", "x", "string")).0, 200);
    assert_eq!(ask(get_path, wanted).0, 200);
    let topic = json!({"exchange": "amq.topic", "write": "^a", "read": ""});
    assert_eq!(server.put("/api/topic-permissions/%2F/m", topic), 201);
    assert_eq!(ask(publish_path, message("a.b", "x", "string")).0, 200);
    let refused = ask(publish_path, message("b.a", "x", "string"));
    let why = "403 ACCESS_REFUSED - write access to topic 'b.a' in exchange 'amq.topic' in vhost '/' refused for user 'm'";
    assert_eq!(refused, (400, why.to_owned()));
}
