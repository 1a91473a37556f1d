//! Error responses of RabbitMQ 4.0.5, with which clients and scripts compare.

use super::*;

/// A request, and the status, `error` and `reason` of its response.
type Case = (&'static str, &'static str, Json, u16, &'static str, Json);

fn check(server: &Server, cases: Vec<Case>) {
    for (method, path, body, status, error, reason) in cases {
        let got = server.ask(method, path, Some(body.clone()));
        let actual = (got.status, &got.body["error"], &got.body["reason"]);
        let expected = (status, &json!(error), &reason);
        assert_eq!(actual, expected, "{method} {path} {body}");
    }
}

#[test]
fn missing_objects_have_rabbitmq_errors() {
    let server = Server::start();
    server.quorum("q");
    let publish =
        json!({"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"});
    let get = json!({"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"});
    let vhost_not_found = || json!("vhost_not_found");
    let policy = json!({"pattern": "", "definition": {"max-length": 1}});
    #[rustfmt::skip]
    check(&server, vec![
        ("PUT", "/api/queues/none/q", json!({}), 404, "not_found", vhost_not_found()),
        ("PUT", "/api/exchanges/none/x", json!({}), 404, "not_found", vhost_not_found()),
        ("PUT", "/api/policies/none/p", policy, 404, "not_found", vhost_not_found()),
        ("PUT", "/api/parameters/vhost-limits/none/limits", json!({"value": {}}), 404, "not_found", vhost_not_found()),
        ("PUT", "/api/vhost-limits/none/max-queues", json!({"value": 1}), 404, "not_found", vhost_not_found()),
        ("DELETE", "/api/vhost-limits/none/max-queues", json!({}), 404, "not_found", vhost_not_found()),
        ("POST", "/api/definitions/none", json!({}), 404, "not_found", vhost_not_found()),
        ("POST", "/api/bindings/none/e/x/q/q", json!({}), 404, "not_found", vhost_not_found()),
        ("POST", "/api/bindings/%2F/e/x/q/q", json!({}), 404, "not_found", json!("no exchange 'x' in vhost '/'")),
        ("POST", "/api/exchanges/%2F/x/publish", publish, 404, "not_found", json!("exchange_not_found")),
        ("POST", "/api/queues/%2F/none/get", get, 404, "not_found", json!("queue_not_found")),
        ("POST", "/api/queues/%2F/none/actions", json!({"action": "sync"}), 404, "not_found", json!("queue_not_found")),
        ("DELETE", "/api/queues/none/q", json!({}), 404, "Object Not Found", json!("Not Found")),
        ("DELETE", "/api/queues/%2F/none", json!({}), 404, "Object Not Found", json!("Not Found")),
        ("PUT", "/api/permissions/%2F/none", json!({}), 400, "bad_request", json!("vhost_or_user_not_found")),
        ("PUT", "/api/topic-permissions/none/guest", json!({}), 400, "bad_request", json!("vhost_or_user_not_found")),
        ("PUT", "/api/user-limits/none/max-channels", json!({"value": 1}), 400, "bad_request", json!(["no_such_user", "none"])),
    ]);
}

#[test]
fn invalid_bodies_have_rabbitmq_errors() {
    let server = Server::start();
    server.quorum("q");
    let bad = |body: Json, path: &'static str, reason: &'static str| -> Case {
        ("PUT", path, body, 400, "bad_request", json!(reason))
    };
    #[rustfmt::skip]
    check(&server, vec![
        bad(json!({"value": "5"}), "/api/vhost-limits/%2F/max-queues",
            "Validation failed\n\nmax-queues should be a number, actually was <<\"5\">>\n"),
        bad(json!({"value": null}), "/api/vhost-limits/%2F/max-queues",
            "Validation failed\n\nmax-queues should be a number, actually was null\n"),
        bad(json!({"value": 5}), "/api/vhost-limits/%2F/max-cows",
            "Validation failed\n\nUnrecognised terms [{<<\"max-cows\">>,5}] in limits\n"),
        bad(json!({}), "/api/vhost-limits/%2F/max-queues", "[{key_missing,value}]"),
        bad(json!({"value": 1.5}), "/api/user-limits/guest/max-channels", "max-channels should be a number, actually was 1.5"),
        bad(json!({"value": -1}), "/api/user-limits/guest/max-cows", "Unrecognised terms [{<<\"max-cows\">>,-1}] in user-limits"),
        bad(json!({"value": {"max-queues": "x"}}), "/api/parameters/vhost-limits/%2F/limits",
            "Validation failed\n\nmax-queues should be a number, actually was <<\"x\">>\n"),
        bad(json!({"value": {}}), "/api/parameters/policy/%2F/p", "policies may not be set using this method"),
        bad(json!({}), "/api/permissions/%2F/guest", "[{key_missing,configure},{key_missing,write},{key_missing,read}]"),
        bad(json!({"pattern": 5, "definition": {"max-length": 1}}), "/api/operator-policies/%2F/p",
            "Validation failed\n\npattern should be a binary but was 5\n"),
        bad(json!({"pattern": "", "definition": {"a": [1, "b"], "max-length": 1, "c": {"d": true}}}), "/api/operator-policies/%2F/p",
            "Validation failed\n\n[{<<\"a\">>,[1,<<\"b\">>]},{<<\"c\">>,#{<<\"d\">> => true}}] are not recognised policy settings\n"),
        ("PUT", "/api/queues/%2F/new", json!({"durable": "troo"}), 400, "bad_request", json!(["not_boolean", "troo"])),
        ("PUT", "/api/users/u", json!({"password_hash": "?", "tags": ""}), 400, "bad_request", json!(["not_base64", "?"])),
        ("POST", "/api/users/bulk-delete", json!({}), 400, "bad_request", json!("[{key_missing,users}]")),
        ("POST", "/api/queues/%2F/q/actions", json!({}), 400, "bad_request", json!("[{key_missing,action}]")),
        ("POST", "/api/queues/%2F/q/actions", json!({"action": "sync"}), 400, "bad_request", json!(["unknown", "sync"])),
        ("POST", "/api/vhosts/%2F/start/c-9", json!({}), 400, "bad_request", json!("Request to node c-9 failed with nodedown")),
        ("POST", "/api/vhosts/none/start/c-0", json!({}), 400, "bad_request",
            json!("Request to node c-0 failed with {no_such_vhost,<<\"none\">>}")),
        ("POST", "/api/definitions", json!([]), 400, "bad_request", json!("failed_to_parse_json")),
        ("GET", "/api/queues?page=0", json!({}), 400, "invalid_pagination_parameters",
            json!("Invalid pagination parameters: page number 0, page size undefined")),
        ("GET", "/api/queues?page=x", json!({}), 400, "bad_request", json!("Pagination parameters are invalid")),
        ("GET", "/api/queues?lengths_age=6000&lengths_incr=1", json!({}), 400, "invalid_range_parameters",
            json!("Invalid range parameters: age 6000, incr 1")),
        ("PUT", "/api/queues/%2F/amq.mine", json!({}), 401, "not_authorised",
            json!("queue name 'amq.mine' contains reserved prefix 'amq.*'")),
    ]);
}

#[test]
fn unsupported_method_has_an_empty_body() {
    let server = Server::start();
    let got = server.ask("POST", "/api/overview", Some(json!({})));
    assert_eq!((got.status, got.body), (405, Json::Null));
}

#[test]
fn starting_a_vhost_succeeds() {
    let server = Server::start();
    let started = server.ask("POST", "/api/vhosts/%2F/start/c-0", Some(json!({})));
    assert_eq!(started.status, 204);
}

#[test]
fn missing_objects_have_no_bindings() {
    let server = Server::start();
    for path in [
        "exchanges/%2F/none/bindings/source",
        "exchanges/%2F/none/bindings/destination",
        "queues/%2F/none/bindings",
        "bindings/%2F/e/none/q/none",
    ] {
        assert_eq!(server.get(&format!("/api/{path}")), json!([]), "{path}");
    }
}

#[test]
fn null_body_is_an_empty_object() {
    let server = Server::start();
    let guest = Some(("guest", "guest"));
    let response = server.send(guest, "PUT", "/api/queues/%2F/q", b"null".to_vec());
    assert_eq!(response.status, 201);
}
