use super::*;

#[test]
fn queue_is_declared_shown_and_deleted() {
    let server = Server::start();
    let body = json!({"durable": true, "auto_delete": false, "arguments": {"x-queue-type": "quorum", "x-max-length": 10}});
    let path = "/api/queues/%2F/orders%2Fnew%20%C3%A9";
    assert_eq!(server.put(path, body.clone()), 201);
    assert_eq!(server.put(path, body), 204);
    server.set_stats("orders/new é", 4, 2);
    let shown = server.get(path);
    let mut plain = shown.clone();
    let none = json!({"rate": 0.0});
    for key in ["messages", "messages_ready", "messages_unacknowledged"] {
        let details = plain.as_object_mut().unwrap();
        assert_eq!(
            details.remove(&format!("{key}_details")).as_ref(),
            Some(&none)
        );
    }
    let stats = plain
        .as_object_mut()
        .unwrap()
        .remove("message_stats")
        .unwrap();
    assert_eq!(
        (&stats["publish"], &stats["publish_details"]),
        (&json!(0), &none)
    );
    assert_eq!(
        plain,
        json!({
            "name": "orders/new é", "vhost": "/", "type": "quorum", "durable": true, "auto_delete": false,
            "exclusive": false, "arguments": {"x-queue-type": "quorum", "x-max-length": 10},
            "node": "c-0", "leader": "c-0", "members": ["c-0", "c-1", "c-2"], "online": ["c-0", "c-1", "c-2"],
            "state": "running", "messages": 6, "messages_ready": 4, "messages_unacknowledged": 2,
            "messages_delayed": 0, "message_bytes": 400, "message_bytes_ready": 300, "message_bytes_unacknowledged": 100,
            "messages_persistent": 6, "message_bytes_persistent": 400, "incoming": [], "deliveries": [], "messages_dlx": 0, "message_bytes_dlx": 0, "consumers": 1, "consumer_details": [], "exclusive_consumer_tag": null, "single_active_consumer_tag": null, "policy": null, "operator_policy": null,
            "effective_policy_definition": {}, "user_who_performed_action": "guest",
        })
    );
    let mut listed = shown;
    for detail_only_key in [
        "consumer_details",
        "exclusive_consumer_tag",
        "single_active_consumer_tag",
        "incoming",
        "deliveries",
    ] {
        listed.as_object_mut().unwrap().remove(detail_only_key);
    }
    assert_eq!(server.get("/api/queues"), json!([listed]));
    assert_eq!(server.get("/api/queues/%2F"), json!([listed]));
    // A declaration with different arguments is refused with RabbitMQ's text.
    let other = server.ask(
        "PUT",
        path,
        Some(json!({"arguments": {"x-queue-type": "classic", "x-max-length": 10}})),
    );
    assert_eq!(
        (other.status, other.body["error"].as_str()),
        (400, Some("bad_request"))
    );
    assert!(
        other
            .reason()
            .starts_with("inequivalent arg 'x-queue-type' for queue 'orders/new é' in vhost '/'")
    );
    let bad = server.ask(
        "PUT",
        "/api/queues/%2F/x",
        Some(json!({"arguments": {"x-max-length": -1}})),
    );
    assert_eq!(
        bad.reason(),
        "invalid arg 'x-max-length' for queue 'x' in vhost '/': {value_negative,-1}"
    );
    assert_eq!(server.put("/api/queues/%2F/amq.mine", json!({})), 401);
    // Only the queue can decide whether it is empty.
    let not_empty = server.ask("DELETE", &format!("{path}?if-empty=true"), None);
    assert_eq!(
        (not_empty.status, not_empty.reason()),
        (400, "queue 'q' in vhost '/' is not empty")
    );
    assert_eq!(server.delete(&format!("{path}/contents")), 204);
    assert_eq!(server.delete(&format!("{path}?if-empty=true")), 204);
    assert_eq!(server.delete(path), 404);
    let got = server.ask("GET", path, None);
    assert_eq!(
        (got.status, got.body),
        (
            404,
            json!({"error": "Object Not Found", "reason": "Not Found"})
        )
    );
    assert_eq!(server.ask("GET", "/api/queues/nowhere", None).status, 404);
    let requests = server.fake.lock().unwrap().requests.len();
    assert_eq!(
        requests, 3,
        "two conditional deletes and a purge went to the queue"
    );
}

#[test]
fn queue_defaults_are_classic_and_durable_and_arguments_set_group_size() {
    let server = Server::start();
    let one = json!({"arguments": {"x-queue-type": "quorum", "x-quorum-initial-group-size": 1}});
    assert_eq!(server.put("/api/queues/%2F/one", one), 201);
    assert_eq!(server.get("/api/queues/%2F/one")["members"], json!(["c-0"]));
    assert_eq!(server.ask("PUT", "/api/queues/%2F/plain", None).status, 201);
    let plain = server.get("/api/queues/%2F/plain");
    assert_eq!(
        (&plain["type"], &plain["durable"]),
        (&json!("classic"), &json!(true))
    );
    assert_eq!(plain["online"], json!(["c-0"]));
    // No node answers for it: statistics are omitted rather than zero.
    server.fake.lock().unwrap().stats.clear();
    let without_stats = server.get("/api/queues/%2F/one");
    assert_eq!(
        (&without_stats["state"], &without_stats["leader"]),
        (&json!("down"), &Json::Null)
    );
    assert!(without_stats.get("messages").is_none());
}

#[test]
fn queue_list_is_paged() {
    let server = Server::start();
    for n in 0..25 {
        assert_eq!(
            server.put(&format!("/api/queues/%2F/q{n:02}"), json!({})),
            201
        );
    }
    let page = server.get("/api/queues?page=3&page_size=10");
    for (key, want) in [
        ("total_count", 25),
        ("filtered_count", 25),
        ("item_count", 5),
        ("page", 3),
        ("page_size", 10),
        ("page_count", 3),
    ] {
        assert_eq!(page[key], want, "{key}");
    }
    assert_eq!(page["items"][0]["name"], "q20");
    let some = server.get("/api/queues/%2F?page=1&page_size=100&name=q1");
    assert_eq!(
        (&some["filtered_count"], &some["total_count"]),
        (&json!(10), &json!(25))
    );
    assert_eq!(
        server
            .get("/api/queues?name=%5Eq0&use_regex=true")
            .as_array()
            .unwrap()
            .len(),
        10
    );
    assert_eq!(server.ask("GET", "/api/queues?page=9", None).status, 400);
}

#[test]
fn policies_apply_to_queues() {
    let server = Server::start();
    server.quorum("orders");
    let body = json!({"pattern": "^orders$", "definition": {"max-length": 100, "overflow": "reject-publish"}, "priority": 3, "apply-to": "quorum_queues"});
    assert_eq!(server.put("/api/policies/%2F/p", body.clone()), 201);
    assert_eq!(server.put("/api/policies/%2F/p", body), 204);
    let operator = json!({"pattern": "", "definition": {"max-length": 50}, "apply-to": "queues"});
    assert_eq!(
        server.put("/api/operator-policies/%2F/limit", operator),
        201
    );
    assert_eq!(
        server.get("/api/policies/%2F/p"),
        json!({"vhost": "/", "name": "p", "pattern": "^orders$", "apply-to": "quorum_queues",
            "definition": {"max-length": 100, "overflow": "reject-publish"}, "priority": 3})
    );
    assert_eq!(server.get("/api/operator-policies")[0]["name"], "limit");
    assert_eq!(server.get("/api/policies/%2F").as_array().unwrap().len(), 1);
    let queue = server.get("/api/queues/%2F/orders");
    assert_eq!(
        (&queue["policy"], &queue["operator_policy"]),
        (&json!("p"), &json!("limit"))
    );
    assert_eq!(
        queue["effective_policy_definition"],
        json!({"max-length": 50, "overflow": "reject-publish"})
    );
    for (body, why) in [
        (
            json!({"definition": {"max-length": 1}}),
            "[{key_missing,pattern}]",
        ),
        (json!({"pattern": "x"}), "[{key_missing,definition}]"),
        (
            json!({"pattern": "(", "definition": {"max-length": 1}}),
            "pattern should be regular expression but is invalid",
        ),
        (
            json!({"pattern": "x", "definition": {"max-lenght": 1}}),
            "[{<<\"max-lenght\">>,1}] are not recognised policy settings",
        ),
        (
            json!({"pattern": "x", "definition": {"max-length": "1"}}),
            "<<\"1\">> is not a valid maximum length",
        ),
        (
            json!({"pattern": "x", "definition": {"max-length": 1}, "apply-to": "cows"}),
            "apply-to 'cows' unrecognised",
        ),
        (
            json!({"pattern": "x", "definition": {"max-length": 1}, "priority": "high"}),
            "priority should be a number, actually was <<\"high\">>",
        ),
    ] {
        let got = server.ask("PUT", "/api/policies/%2F/bad", Some(body));
        assert_eq!(got.status, 400);
        assert!(got.reason().contains(why), "{got:?}");
    }
    assert_eq!(server.delete("/api/policies/%2F/p"), 204);
    assert_eq!(server.delete("/api/policies/%2F/p"), 404);
    assert_eq!(server.get("/api/queues/%2F/orders")["policy"], Json::Null);
    assert_eq!(server.ask("GET", "/api/policies/nowhere", None).status, 404);
}

#[test]
fn users_have_passwords_permissions_and_limits() {
    let server = Server::start();
    let body = json!({"password": "s3cret", "tags": "monitoring,management"});
    assert_eq!(server.put("/api/users/app", body.clone()), 201);
    let as_app =
        |password: &str| server.ask_as(Some(("app", password)), "GET", "/api/whoami", None);
    assert_eq!(
        as_app("s3cret").body,
        json!({"name": "app", "tags": ["monitoring", "management"], "is_internal_user": true, "auth_backend": "internal"})
    );
    assert_eq!(as_app("wrong").status, 401);
    assert_eq!(
        server.get("/api/users/app")["hashing_algorithm"],
        "argon2id"
    );
    // After a password change the old password is rejected.
    let changed = json!({"password": "other", "tags": ["monitoring"]});
    assert_eq!(server.put("/api/users/app", changed), 204);
    assert_eq!(
        (as_app("s3cret").status, as_app("other").status),
        (401, 200)
    );
    // RabbitMQ's hash of "test12".
    let hash = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR";
    let hashed = json!({"password_hash": hash, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""});
    assert_eq!(server.put("/api/users/app", hashed), 204);
    let shown = server.get("/api/users/app");
    assert_eq!(
        (&shown["password_hash"], &shown["tags"]),
        (&json!(hash), &json!([]))
    );
    assert_eq!(as_app("test12").status, 200);
    // No password.
    assert_eq!(
        server.put("/api/users/app", json!({"password_hash": "", "tags": ""})),
        204
    );
    assert_eq!((as_app("").status, as_app("test12").status), (401, 401));
    // As in RabbitMQ, a request without a password disables password login.
    assert_eq!(server.put("/api/users/app", json!({"tags": ""})), 204);
    assert_eq!(server.put("/api/users/without", json!({"tags": ""})), 201);
    for user in ["app", "without"] {
        let shown = server.get(&format!("/api/users/{user}"));
        assert_eq!(shown["password_hash"], "", "{user}");
    }
    // Column selection also works for lists.
    let only = json!({"name": "without", "tags": []});
    let cut = |path: &str| server.get(&format!("/api/users/{path}?columns=name,tags"));
    assert_eq!(cut("without"), only);
    let names = cut("without-permissions");
    assert!(names.as_array().unwrap().contains(&only), "{names}");
    for bad in [
        json!({"password": "x"}),
        json!({"password": "x", "password_hash": hash, "tags": ""}),
        json!({"password_hash": "???", "tags": ""}),
        json!({"password_hash": hash, "hashing_algorithm": "md5", "tags": ""}),
        json!({"password": 5, "tags": ""}),
    ] {
        assert_eq!(server.put("/api/users/bad", bad.clone()), 400, "{bad}");
    }
    // RabbitMQ also accepts: no password, the legacy `administrator` flag, and permissions in the
    // same request.
    assert_eq!(
        server.put("/api/users/empty", json!({"password": "", "tags": ""})),
        201
    );
    assert_eq!(server.get("/api/users/empty")["password_hash"], "");
    let old = json!({"password": "x", "administrator": "true"});
    assert_eq!(server.put("/api/users/old", old), 201);
    assert_eq!(
        server.get("/api/users/old")["tags"],
        json!(["administrator"])
    );
    let rights = json!({"configure": "", "write": ".*", "read": ".*"});
    let both = |vhost: &str| json!({"password": "x", "tags": "", "permissions": {vhost: rights}});
    assert_eq!(server.put("/api/users/both", both("nowhere")), 400);
    assert_eq!(server.ask("GET", "/api/users/both", None).status, 404);
    assert_eq!(server.put("/api/users/both", both("/")), 201);
    assert_eq!(server.get("/api/permissions/%2F/both")["write"], ".*");
    assert_eq!(server.put("/api/permissions/%2F/app", rights.clone()), 201);
    assert_eq!(server.put("/api/permissions/%2F/app", rights), 204);
    let want = json!({"user": "app", "vhost": "/", "configure": "", "write": ".*", "read": ".*"});
    assert_eq!(server.get("/api/users/app/permissions"), json!([want]));
    assert_eq!(server.get("/api/permissions/%2F/app"), want);
    assert_eq!(
        server.put(
            "/api/permissions/nowhere/app",
            json!({"configure": "", "write": "", "read": ""})
        ),
        400
    );
    assert_eq!(
        server.put(
            "/api/permissions/%2F/app",
            json!({"configure": "(", "write": "", "read": ""})
        ),
        400
    );
    assert_eq!(
        server.put("/api/permissions/%2F/app", json!({"configure": ""})),
        400
    );
    let topic = json!({"exchange": "amq.topic", "write": "^a", "read": ".*"});
    assert_eq!(server.put("/api/topic-permissions/%2F/app", topic), 201);
    assert_eq!(
        server.get("/api/users/app/topic-permissions")[0]["exchange"],
        "amq.topic"
    );
    assert_eq!(server.delete("/api/topic-permissions/%2F/app"), 204);
    assert_eq!(server.get("/api/users/app/topic-permissions"), json!([]));
    assert_eq!(
        server.put("/api/user-limits/app/max-connections", json!({"value": 5})),
        204
    );
    assert_eq!(
        server.get("/api/user-limits/app"),
        json!([{"user": "app", "value": {"max-connections": 5}}])
    );
    // A password change keeps the limits.
    assert_eq!(server.put("/api/users/app", body), 204);
    assert_eq!(
        server.get("/api/users/app")["limits"],
        json!({"max-connections": 5})
    );
    assert_eq!(server.delete("/api/user-limits/app/max-connections"), 204);
    for (path, status) in [
        ("user-limits/app/max-dreams", 204),
        ("user-limits/nobody/max-dreams", 404),
        ("vhost-limits/%2F/max-dreams", 204),
        ("vhost-limits/nowhere/max-dreams", 404),
    ] {
        assert_eq!(server.delete(&format!("/api/{path}")), status, "{path}");
    }
    assert_eq!(
        server.put("/api/user-limits/app/max-dreams", json!({"value": 5})),
        400
    );
    assert_eq!(server.delete("/api/permissions/%2F/app"), 204);
    assert_eq!(server.delete("/api/permissions/%2F/app"), 404);
    assert_eq!(server.delete("/api/users/app"), 204);
    assert_eq!(server.delete("/api/users/app"), 404);
    assert_eq!(server.ask("GET", "/api/users/app", None).status, 404);
}

#[test]
fn rate_limits_are_set_listed_and_cleared() {
    let server = Server::start();
    assert_eq!(
        server.put("/api/users/app", json!({"password": "p", "tags": ""})),
        201
    );
    for (path, value) in [
        ("vhost-limits/%2F/max-message-rate", 1000),
        ("vhost-limits/%2F/max-byte-rate", 1_000_000),
        ("vhost-limits/%2F/max-channels", 50),
        ("vhost-limits/%2F/max-stored-bytes", 1 << 30),
        ("user-limits/app/max-message-rate", 100),
        ("user-limits/app/max-byte-rate", -1),
    ] {
        let status = server.put(&format!("/api/{path}"), json!({"value": value}));
        assert_eq!(status, 204, "{path}");
    }
    assert_eq!(
        server.get("/api/vhost-limits/%2F"),
        json!([{"vhost": "/", "value": {"max-message-rate": 1000, "max-byte-rate": 1_000_000, "max-channels": 50, "max-stored-bytes": 1 << 30}}])
    );
    assert_eq!(
        server.get("/api/user-limits"),
        json!([{"user": "app", "value": {"max-message-rate": 100, "max-byte-rate": -1}}])
    );
    for path in [
        "vhost-limits/%2F/max-message-rate",
        "user-limits/app/max-byte-rate",
    ] {
        let answer = server.ask("PUT", &format!("/api/{path}"), Some(json!({"value": 0})));
        assert_eq!(answer.status, 400, "{path}");
        let text = answer.body.to_string();
        let limit = path.rsplit('/').next().unwrap_or(path);
        assert!(
            text.contains(limit) && text.contains("must not be 0"),
            "{text}"
        );
        assert_eq!(server.delete(&format!("/api/{path}")), 204);
    }
    assert_eq!(
        server.get("/api/user-limits/app"),
        json!([{"user": "app", "value": {"max-message-rate": 100}}])
    );
}

#[test]
fn md5_hash_of_old_rabbitmq_allows_login() {
    let server = Server::start();
    let hash = "IECV6PZI/Invh0DL187KFpkO5Jc=";
    let md5 = "rabbit_password_hashing_md5";
    // With the algorithm, or without it as in old definitions files.
    for body in [
        json!({"password_hash": hash, "hashing_algorithm": md5, "tags": ""}),
        json!({"password_hash": hash, "tags": ""}),
    ] {
        assert_eq!(server.put("/api/users/old", body), 201);
        let shown = server.get("/api/users/old");
        assert_eq!(
            (&shown["password_hash"], &shown["hashing_algorithm"]),
            (&json!(hash), &json!(md5))
        );
        let login = |password| server.ask_as(Some(("old", password)), "GET", "/api/whoami", None);
        assert_eq!((login("guest").status, login("other").status), (200, 401));
        assert_eq!(server.delete("/api/users/old"), 204);
    }
    let document = json!({"rabbit_version": "3.5.4", "users": [
        {"name": "older", "password_hash": "WAbU0ZIcvjTpxM3Q3SbJhEAM2tQ=", "tags": "management"}]});
    let imported = server.ask("POST", "/api/definitions", Some(document));
    assert_eq!(imported.status, 204);
    let login = server.ask_as(Some(("older", "myuser")), "GET", "/api/whoami", None);
    assert_eq!(login.status, 200);
}

#[test]
fn vhost_creator_gets_permissions() {
    let server = Server::start();
    assert_eq!(
        server.put(
            "/api/vhosts/a%2Fb",
            json!({"description": "x", "tags": "t"})
        ),
        201
    );
    assert_eq!(server.put("/api/vhosts/a%2Fb", json!({})), 204);
    let shown = server.get("/api/vhosts/a%2Fb");
    assert_eq!(
        (&shown["name"], &shown["description"], &shown["tags"]),
        (&json!("a/b"), &json!("x"), &json!(["t"]))
    );
    assert_eq!(server.put("/api/queues/a%2Fb/q", json!({})), 201);
    assert_eq!(
        server.get("/api/vhosts/a%2Fb/permissions")[0]["user"],
        "guest"
    );
    assert_eq!(server.delete("/api/vhosts/a%2Fb"), 204);
    assert_eq!(server.delete("/api/vhosts/a%2Fb"), 404);
    assert_eq!(server.ask("GET", "/api/queues/a%2Fb", None).status, 404);
}

#[test]
fn ready_messages_of_quorum_queues_are_counted_by_priority() {
    let server = Server::start();
    server.quorum("q");
    let shown = || {
        let mut queue = server.get("/api/queues/%2F/q");
        let mut take = |key: &str| queue[key].take();
        (
            take("messages_by_priority"),
            take("messages_ready_returned"),
        )
    };
    assert_eq!(shown(), (json!({}), json!(0)));
    server.set_stats("q", 9, 0);
    // Its messages have no strict priorities.
    assert_eq!(shown(), (json!(null), json!(null)));
    {
        let mut fake = server.fake.lock().unwrap();
        let id = fake.tree.queue("/", "q").unwrap().id;
        let ready = queue::ReadyDetails {
            by_priority: vec![(0, 1), (4, 5), (31, 1)],
            returned: 2,
        };
        fake.ready.insert(id, ready);
    }
    assert_eq!(shown(), (json!({"0": 1, "4": 5, "31": 1}), json!(2)));
    server.fake.lock().unwrap().declare("classic");
    let classic = server.get("/api/queues/%2F/classic");
    assert!(classic.get("messages_by_priority").is_none(), "{classic}");
}

#[test]
fn delayed_messages_of_quorum_queues_are_counted() {
    let server = Server::start();
    server.quorum("q");
    let shown = server.get("/api/queues/%2F/q");
    assert_eq!(shown["messages_delayed"], 0);
    assert!(shown.get("next_delayed_at").is_none(), "{shown}");
    {
        let mut fake = server.fake.lock().unwrap();
        let id = fake.tree.queue("/", "q").unwrap().id;
        let delayed = queue::DelayedDetails {
            messages: 4,
            bytes: 90,
            next_at: 1_790_000_000_123,
            last_at: 1_790_000_060_000,
        };
        fake.delayed.insert(id, delayed);
        let stats = QueueStats {
            ready: 1,
            unacknowledged: 2,
            bytes: 10,
            delayed: 4,
            delayed_bytes: 90,
            ..QueueStats::default()
        };
        fake.stats.insert(id, stats);
    }
    let shown = server.get("/api/queues/%2F/q");
    for (key, value) in [
        ("messages", 7u64),
        ("messages_ready", 1),
        ("messages_delayed", 4),
        ("message_bytes", 100),
        ("message_bytes_ready", 10),
        ("next_delayed_at", 1_790_000_000_123),
        ("last_delayed_at", 1_790_000_060_000),
    ] {
        assert_eq!(shown[key], value, "{key}");
    }
    server.fake.lock().unwrap().declare("classic");
    let classic = server.get("/api/queues/%2F/classic");
    assert!(classic.get("messages_delayed").is_none(), "{classic}");
}

#[test]
fn exchanges_and_bindings_are_declared_and_deleted() {
    let server = Server::start();
    server.quorum("q");
    let exchange = json!({"type": "topic", "durable": true});
    assert_eq!(server.put("/api/exchanges/%2F/x", exchange.clone()), 201);
    assert_eq!(server.put("/api/exchanges/%2F/x", exchange), 204);
    let unequal = server.ask(
        "PUT",
        "/api/exchanges/%2F/x",
        Some(json!({"type": "direct"})),
    );
    assert!(
        unequal
            .reason()
            .starts_with("inequivalent arg 'type' for exchange 'x'"),
        "{unequal:?}"
    );
    let unknown = server.ask(
        "PUT",
        "/api/exchanges/%2F/y",
        Some(json!({"type": "x-wheel"})),
    );
    assert_eq!(
        (unknown.status, unknown.reason()),
        (400, "unknown exchange type 'x-wheel'")
    );
    assert_eq!(server.get("/api/exchanges/%2F/amq.default")["name"], "");
    assert_eq!(
        server.get("/api/exchanges/%2F").as_array().unwrap().len(),
        8
    );
    let bind = |body| {
        server
            .ask("POST", "/api/bindings/%2F/e/x/q/q", Some(body))
            .status
    };
    assert_eq!(bind(json!({"routing_key": "a.#"})), 201);
    assert_eq!(
        bind(json!({"routing_key": "a.#", "arguments": {"n": 1}})),
        201
    );
    let list = server.get("/api/bindings/%2F/e/x/q/q");
    assert_eq!(list[0]["properties_key"], "a.%23");
    let second = list[1]["properties_key"].as_str().unwrap();
    assert!(second.starts_with("a.%23~"));
    assert_eq!(
        server
            .get("/api/queues/%2F/q/bindings")
            .as_array()
            .unwrap()
            .len(),
        3
    );
    assert_eq!(
        server
            .get("/api/exchanges/%2F/x/bindings/source")
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        server.get("/api/exchanges/%2F/amq.default/bindings/source")[0]["routing_key"],
        "q"
    );
    let twice = |key: &str| key.replace('%', "%25");
    assert_eq!(
        server.get(&format!("/api/bindings/%2F/e/x/q/q/{}", twice(second)))["arguments"],
        json!({"n": 1})
    );
    assert_eq!(
        server.delete(&format!("/api/bindings/%2F/e/x/q/q/{second}")),
        204
    );
    assert_eq!(server.delete("/api/bindings/%2F/e/x/q/q/a.%23"), 204);
    assert_eq!(server.delete("/api/bindings/%2F/e/x/q/q/a.%23"), 404);
    assert_eq!(
        server
            .ask("POST", "/api/bindings/%2F/e/x/q/none", Some(json!({})))
            .status,
        404
    );
    assert_eq!(
        server
            .ask(
                "POST",
                "/api/bindings/%2F/e/x/e/amq.fanout",
                Some(json!({}))
            )
            .status,
        201
    );
    assert_eq!(server.delete("/api/exchanges/%2F/x?if-unused=true"), 400);
    assert_eq!(server.delete("/api/exchanges/%2F/x"), 204);
    assert_eq!(server.delete("/api/exchanges/%2F/x"), 404);
    assert_eq!(server.delete("/api/exchanges/%2F/amq.topic"), 401);
}

#[test]
fn invalid_requests_are_refused_with_a_reason() {
    let server = Server::start();
    let guest = Some(("guest", "guest"));
    let text = server.send(guest, "PUT", "/api/queues/%2F/q", b"{not json".to_vec());
    assert_eq!(text.status, 400);
    assert_eq!(text.reason(), "not_json");
    assert_eq!(
        server
            .send(guest, "PUT", "/api/queues/%2F/q", b"[1]".to_vec())
            .status,
        400
    );
    let large = vec![b' '; crate::MAX_BODY + 1];
    assert_eq!(
        server.send(guest, "PUT", "/api/queues/%2F/q", large).status,
        413
    );
    assert_eq!(server.ask("GET", "/api/queues/%FF/q", None).status, 400);
    assert_eq!(
        server
            .ask("POST", "/api/queues/%2F/q", Some(json!({})))
            .status,
        405
    );
    assert_eq!(
        server
            .ask("GET", "/api/a/b/c/d/e/f/g/h/i/j/k/l/m/n", None)
            .status,
        404
    );
    assert_eq!(server.ask("GET", "/api/streams", None).status, 404);
    let deep = format!(
        "{{\"arguments\":{}1{}}}",
        "{\"a\":".repeat(60),
        "}".repeat(60)
    );
    assert_eq!(
        server
            .send(guest, "PUT", "/api/queues/%2F/q", deep.into_bytes())
            .status,
        400
    );
    let name = "x".repeat(300);
    let long = server.ask("PUT", &format!("/api/queues/%2F/{name}"), Some(json!({})));
    assert_eq!(long.status, 400);
}

#[test]
fn bindings_permissions_policies_and_vhosts_are_paged() {
    let server = Server::start();
    for n in 0..5 {
        assert_eq!(server.put(&format!("/api/vhosts/v{n}"), json!({})), 201);
        let queue = format!("/api/queues/%2F/q{n}");
        assert_eq!(server.put(&queue, json!({"durable": true})), 201);
        let binding = format!("/api/bindings/%2F/e/amq.fanout/q/q{n}");
        let body = Some(json!({"routing_key": format!("k{n}")}));
        assert_eq!(server.ask("POST", &binding, body).status, 201);
        let policy = json!({"pattern": "^q", "definition": {"max-length": n + 1}});
        let path = format!("/api/policies/%2F/p{n}");
        assert_eq!(server.put(&path, policy), 201);
    }
    for (path, filter, all, filtered) in [
        ("vhosts", "v", 6, 5),
        ("policies", "p4", 5, 1),
        ("policies/%2F", "p", 5, 5),
        ("permissions", "guest", 6, 6),
        ("users/guest/permissions", "none", 6, 0),
        ("vhosts/%2F/permissions", "g", 1, 1),
        ("bindings/%2F", "k", 10, 5),
        ("exchanges/%2F/amq.fanout/bindings/source", "k2", 5, 1),
        ("queues/%2F/q1/bindings", "k", 2, 1),
    ] {
        let page = server.get(&format!("/api/{path}?page=1&page_size=1&name={filter}"));
        assert_eq!(page["total_count"], all, "{path}: {page}");
        assert_eq!(page["filtered_count"], filtered, "{path}");
        let items = page["items"].as_array().unwrap();
        assert_eq!(items.len(), filtered.min(1), "{path}");
        let whole = server.get(&format!("/api/{path}"));
        assert_eq!(whole.as_array().unwrap().len(), all, "{path}");
        let bad = server.ask("GET", &format!("/api/{path}?page=x"), None);
        assert_eq!(bad.status, 400, "{path}");
    }
}
