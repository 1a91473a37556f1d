use super::*;

/// A definitions file in RabbitMQ 4 format.
const RABBITMQ_DEFINITIONS: &str = r#"{
  "rabbit_version": "4.0.5", "rabbitmq_version": "4.0.5", "product_name": "RabbitMQ", "product_version": "4.0.5",
  "rabbitmq_definition_format": "cluster", "original_cluster_name": "rabbit@host",
  "explanation": "Definitions of cluster 'rabbit@host'",
  "users": [
    {"name": "app", "password_hash": "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR",
     "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ["management"], "limits": {"max-connections": 10, "max-byte-rate": 1000000}},
    {"name": "external", "password_hash": "", "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": [], "limits": {}}
  ],
  "vhosts": [
    {"name": "/", "limits": [], "metadata": {"description": "Default virtual host", "tags": ["first"], "default_queue_type": "undefined"}},
    {"name": "v", "description": "", "tags": [], "default_queue_type": "quorum",
     "metadata": {"description": "", "tags": [], "default_queue_type": "quorum"}}
  ],
  "permissions": [{"user": "app", "vhost": "v", "configure": ".*", "write": ".*", "read": ".*"}],
  "topic_permissions": [{"user": "app", "vhost": "v", "exchange": "amq.topic", "write": "^a", "read": ".*"}],
  "parameters": [
    {"value": {"max-channels": 7, "max-connections": 100, "max-message-rate": 500, "max-queues": 50}, "vhost": "v", "component": "vhost-limits", "name": "limits"},
    {"value": {"pattern": "^o", "definition": {"max-length": 9}, "priority": 1, "apply-to": "queues"},
     "vhost": "v", "component": "operator_policy", "name": "limit"}
  ],
  "global_parameters": [
    {"name": "cluster_tags", "value": []},
    {"name": "cluster_name", "value": "orders"},
    {"name": "internal_cluster_id", "value": "rabbitmq-cluster-id-7Zc"}
  ],
  "policies": [{"vhost": "v", "name": "p", "pattern": "^o", "apply-to": "queues", "definition": {"message-ttl": 1000}, "priority": 0}],
  "queues": [
    {"name": "orders", "vhost": "v", "durable": true, "auto_delete": false, "type": "quorum", "arguments": {"x-queue-type": "quorum"}},
    {"name": "by-type", "vhost": "v", "durable": true, "auto_delete": false, "type": "quorum", "arguments": {}},
    {"name": "old", "vhost": "/", "durable": true, "auto_delete": false, "type": "classic", "arguments": {"x-queue-type": "classic"}}
  ],
  "exchanges": [{"name": "x", "vhost": "v", "type": "topic", "durable": true, "auto_delete": false, "internal": false, "arguments": {}}],
  "bindings": [{"source": "x", "vhost": "v", "destination": "orders", "destination_type": "queue", "routing_key": "a.#", "arguments": {}}]
}"#;

#[test]
fn rabbitmq_definitions_file_is_imported() {
    let server = Server::start();
    let document: Json = serde_json::from_str(RABBITMQ_DEFINITIONS).unwrap();
    for _ in 0..2 {
        let got = server.ask("POST", "/api/definitions", Some(document.clone()));
        assert_eq!(got.status, 204, "{got:?}");
    }
    assert_eq!(server.get("/api/cluster-name"), json!({"name": "orders"}));
    assert_eq!(server.get("/api/vhosts/v")["default_queue_type"], "quorum");
    let first = server.get("/api/vhosts/%2F");
    assert_eq!(
        (
            &first["description"],
            &first["tags"],
            &first["default_queue_type"]
        ),
        (
            &json!("Default virtual host"),
            &json!(["first"]),
            &json!("classic")
        )
    );
    assert_eq!(
        server.get("/api/vhost-limits"),
        json!([{"vhost": "v", "value": {"max-channels": 7, "max-connections": 100, "max-message-rate": 500, "max-queues": 50}}])
    );
    let orders = server.get("/api/queues/v/orders");
    assert_eq!(
        (
            &orders["type"],
            &orders["policy"],
            &orders["operator_policy"]
        ),
        (&json!("quorum"), &json!("p"), &json!("limit"))
    );
    assert_eq!(server.get("/api/queues/v/by-type")["type"], "quorum");
    assert_eq!(server.get("/api/queues/%2F/old")["type"], "classic");
    assert_eq!(
        server.get("/api/user-limits/app")[0]["value"]["max-connections"],
        10
    );
    // As in RabbitMQ, the importing user gets permissions in a new vhost, but not in an existing
    // one.
    let guest_permissions = server.get("/api/users/guest/permissions");
    let guest_permissions: Vec<_> = guest_permissions
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["vhost"])
        .collect();
    assert_eq!(guest_permissions, ["/", "v"]);
    // The password is the one of RabbitMQ's documentation.
    let app = server.ask_as(Some(("app", "test12")), "GET", "/api/whoami", None);
    assert_eq!(app.status, 200, "{app:?}");
    let other = server.ask_as(Some(("external", "")), "GET", "/api/whoami", None);
    assert_eq!(other.status, 401);
    // This cluster keeps its own identifier.
    assert_eq!(
        server.get("/api/global-parameters/internal_cluster_id")["value"],
        "test"
    );
    // The export has the structure that RabbitMQ reads.
    let exported = server.get("/api/definitions");
    for parameter in document["parameters"].as_array().unwrap() {
        assert!(
            exported["parameters"]
                .as_array()
                .unwrap()
                .contains(parameter),
            "{exported}"
        );
    }
    assert!(
        exported["rabbitmq_version"].is_string() && exported.get("operator_policies").is_none()
    );
    // It has every field that RabbitMQ writes.
    for field in document.as_object().unwrap().keys() {
        assert!(exported.get(field).is_some(), "{field}");
    }
    for list in [
        "users",
        "vhosts",
        "permissions",
        "topic_permissions",
        "policies",
        "queues",
        "exchanges",
        "bindings",
    ] {
        let fields = document[list][0].as_object().unwrap().keys();
        let exported_fields = exported[list][0].as_object().unwrap();
        fields.for_each(|f| assert!(exported_fields.contains_key(f), "{list}: {f}"));
    }
    assert_eq!(exported["rabbitmq_definition_format"], "cluster");
    let limits = |v: &Json| v["name"] == "v" && v["limits"]["max-queues"] == 50;
    assert!(exported["vhosts"].as_array().unwrap().iter().any(limits));
}

#[test]
fn vhost_definitions_can_be_imported_into_another_vhost() {
    let server = Server::start();
    let document: Json = serde_json::from_str(RABBITMQ_DEFINITIONS).unwrap();
    assert_eq!(
        server
            .ask("POST", "/api/definitions", Some(document))
            .status,
        204
    );
    let part = server.get("/api/definitions/v");
    assert!(part.get("users").is_none() && part.get("vhosts").is_none());
    assert_eq!(part["queues"].as_array().unwrap().len(), 2);
    assert_eq!(server.put("/api/vhosts/w", json!({})), 201);
    let got = server.ask("POST", "/api/definitions/w", Some(part));
    assert_eq!(got.status, 204, "{got:?}");
    assert_eq!(server.get("/api/queues/w").as_array().unwrap().len(), 2);
    assert_eq!(server.get("/api/exchanges/w/x")["type"], "topic");
    assert_eq!(
        server.ask("GET", "/api/definitions/nowhere", None).status,
        404
    );
    assert_eq!(
        server
            .ask("POST", "/api/definitions/nowhere", Some(json!({})))
            .status,
        404
    );
}

#[test]
fn parameters_of_unknown_components_are_refused() {
    let server = Server::start();
    let body = json!({"value": {"uri": "amqp://elsewhere"}});
    let got = server.ask("PUT", "/api/parameters/shovel/%2F/s", Some(body));
    assert_eq!(
        (got.status, got.reason()),
        (400, "Validation failed\n\ncomponent shovel not found\n")
    );
    let limits = json!({"value": {"max-queues": 7}});
    let path = "/api/parameters/vhost-limits/%2F/limits";
    assert_eq!(server.put(path, limits), 201);
    assert_eq!(
        server.get("/api/vhost-limits/%2F")[0]["value"]["max-queues"],
        7
    );
    assert_eq!(server.get(path)["value"], json!({"max-queues": 7}));
    assert_eq!(server.get("/api/parameters").as_array().unwrap().len(), 1);
    assert_eq!(server.get("/api/parameters/operator_policy"), json!([]));
    assert_eq!(server.delete(path), 204);
    assert_eq!(server.delete(path), 404);
    assert_eq!(server.get("/api/vhost-limits"), json!([]));
}

#[test]
fn global_parameters_include_the_cluster_name() {
    let server = Server::start();
    let path = "/api/global-parameters/tool";
    assert_eq!(server.put(path, json!({"value": {"a": [1]}})), 201);
    assert_eq!(server.put(path, json!({"value": "b"})), 204);
    assert_eq!(server.get(path), json!({"name": "tool", "value": "b"}));
    assert_eq!(server.put(path, json!({})), 400);
    assert_eq!(server.delete(path), 204);
    assert_eq!(server.delete(path), 404);
    assert_eq!(server.put("/api/cluster-name", json!({"name": "new"})), 204);
    assert_eq!(server.get("/api/overview")["cluster_name"], "new");
    assert_eq!(server.put("/api/cluster-name", json!({"name": 5})), 400);
}

#[test]
fn feature_flags_are_enabled_and_unknown_flags_refused() {
    let server = Server::start();
    let flags = server.get("/api/feature-flags");
    let flags: Vec<_> = flags
        .as_array()
        .into_iter()
        .flatten()
        .map(|f| (f["name"].as_str().unwrap(), f["state"].as_str().unwrap()))
        .collect();
    assert_eq!(
        flags,
        [
            ("baseline_0_2", "enabled"),
            ("client_addresses", "enabled"),
            ("consistent_hash_tree", "enabled"),
            ("consumer_activity", "enabled"),
            ("consumer_filters", "enabled"),
            ("exact_expiry", "enabled"),
            ("head_message_ages", "enabled"),
            ("majority_recovery", "enabled"),
            ("message_groups", "enabled"),
            ("message_moves", "enabled"),
            ("modulus_and_random_exchanges", "enabled"),
            ("publisher_deduplication", "enabled"),
            ("queue_argument_checks", "enabled"),
            ("quorum_consumer_timeouts", "enabled"),
            ("quorum_delayed_retry", "enabled"),
            ("quorum_delivery_counts", "enabled"),
            ("quorum_strict_priorities", "enabled"),
            ("quotas", "enabled"),
            ("scheduled_delivery", "enabled"),
            ("shards_per_node", "enabled"),
            ("stream_backups", "enabled"),
            ("stream_queues", "enabled")
        ]
    );
    let enable = |name: &str| {
        server
            .ask("PUT", &format!("/api/feature-flags/{name}/enable"), None)
            .status
    };
    assert_eq!(
        (
            enable("baseline_0_2"),
            enable("all"),
            enable("teleportation")
        ),
        (204, 204, 400)
    );
    let deprecated = server.get("/api/deprecated-features");
    let deprecated: Vec<_> = deprecated
        .as_array()
        .into_iter()
        .flatten()
        .map(|f| {
            let text = |key: &str| f[key].as_str().unwrap().to_owned();
            (text("name"), text("deprecation_phase"), text("state"))
        })
        .collect();
    let expected = [
        ("amqp_address_v1", "denied_by_default", "denied"),
        ("amqp_filter_set_bug", "denied_by_default", "denied"),
        ("classic_queue_mirroring", "removed", "denied"),
        ("global_qos", "denied_by_default", "denied"),
        (
            "management_metrics_collection",
            "permitted_by_default",
            "permitted",
        ),
        ("queue_master_locator", "denied_by_default", "denied"),
        ("ram_node_type", "removed", "denied"),
        ("transient_nonexcl_queues", "denied_by_default", "denied"),
    ];
    let expected = expected.map(|(a, b, c)| (a.to_owned(), b.to_owned(), c.to_owned()));
    assert_eq!(deprecated, expected);
    assert_eq!(server.get("/api/deprecated-features/used"), json!([]));
    assert_eq!(
        server.put("/api/queues/%2F/t", json!({"durable": false})),
        201
    );
    assert_eq!(
        server.get("/api/deprecated-features/used")[0]["name"],
        "transient_nonexcl_queues"
    );
}

/// State of the flag `later`, and the nodes that do not support it.
fn later_flag(server: &Server) -> Option<(Json, Json)> {
    let flags = server.get("/api/feature-flags");
    let found = flags.as_array()?.iter().find(|f| f["name"] == "later")?;
    Some((found["state"].clone(), found["not_known_by"].clone()))
}

fn enable(server: &Server, name: &str) -> (u16, String) {
    let got = server.ask("PUT", &format!("/api/feature-flags/{name}/enable"), None);
    (got.status, got.reason().to_owned())
}

/// With two versions in a cluster, a flag that a node does not support stays disabled, and the
/// error names that node.
#[test]
fn feature_flag_is_enabled_only_if_every_node_supports_it() {
    let server = Server::start();
    assert_eq!(later_flag(&server), None);
    server.fake.lock().unwrap().newer_nodes = vec![NodeId(3)];
    let lacking = Some((json!("unavailable"), json!(["c-0", "c-1"])));
    assert_eq!(later_flag(&server), lacking);
    let (status, why) = enable(&server, "later");
    assert_eq!(status, 400);
    let expected = "feature flag 'later' is not supported by node(s) c-0, c-1:";
    assert!(why.starts_with(expected), "{why}");
    // `all` enables the flags that all nodes support.
    assert_eq!(enable(&server, "all").0, 204);
    assert_eq!(later_flag(&server), lacking);

    server.fake.lock().unwrap().newer_nodes = vec![NodeId(1), NodeId(2), NodeId(3)];
    assert_eq!(later_flag(&server), Some((json!("disabled"), json!([]))));
    assert_eq!(enable(&server, "all").0, 204);
    let on = Some((json!("enabled"), json!([])));
    assert_eq!(later_flag(&server), on);
    server.fake.lock().unwrap().is_alone = true;
    assert_eq!(later_flag(&server), on, "all knew it when it was turned on");
    assert_eq!(enable(&server, "later").0, 204, "it is so already");
}

/// A node that is down may return with any version.
#[test]
fn feature_flag_is_not_enabled_while_a_node_is_down() {
    let server = Server::start();
    {
        let mut fake = server.fake.lock().unwrap();
        fake.newer_nodes = vec![NodeId(1), NodeId(2), NodeId(3)];
        fake.is_alone = true;
    }
    for name in ["later", "all"] {
        let (status, why) = enable(&server, name);
        assert_eq!(status, 400, "{name}");
        assert!(why.contains("c-1, c-2"), "{why}");
    }
}

#[test]
fn vhost_has_default_queue_type_and_deletion_protection() {
    let server = Server::start();
    let body = json!({"default_queue_type": "quorum", "tags": "a,b"});
    assert_eq!(server.put("/api/vhosts/v", body), 201);
    assert_eq!(server.put("/api/queues/v/plain", json!({})), 201);
    assert_eq!(server.put("/api/queues/v/plain", json!({})), 204);
    let plain = server.get("/api/queues/v/plain");
    assert_eq!(
        (&plain["type"], &plain["arguments"]),
        (&json!("quorum"), &json!({"x-queue-type": "quorum"}))
    );
    assert_eq!(
        server.put("/api/queues/v/short", json!({"auto_delete": true})),
        201
    );
    assert_eq!(server.get("/api/queues/v/short")["type"], "classic");
    // Keys that a later request omits are kept.
    assert_eq!(
        server.put("/api/vhosts/v", json!({"description": "d"})),
        204
    );
    assert_eq!(server.get("/api/vhosts/v")["default_queue_type"], "quorum");
    assert_eq!(
        server.get("/api/vhosts/v")["cluster_state"]["c-0"],
        "running"
    );
    assert_eq!(
        server.put("/api/vhosts/w", json!({"default_queue_type": "jms"})),
        400
    );
    assert_eq!(
        server
            .ask("POST", "/api/vhosts/v/deletion/protection", None)
            .status,
        204
    );
    assert_eq!(server.delete("/api/vhosts/v"), 412);
    assert_eq!(server.delete("/api/vhosts/v/deletion/protection"), 204);
    assert_eq!(server.delete("/api/vhosts/v"), 204);
}

#[test]
fn login_attempts_are_counted_and_passwords_hashed() {
    let server = Server::start();
    assert_eq!(
        server
            .ask_as(Some(("guest", "no")), "GET", "/api/whoami", None)
            .status,
        401
    );
    let path = "/api/auth/attempts/c-0";
    let counts = |server: &Server| -> Vec<(String, u64, u64)> {
        let rows = server.get(path);
        let rows = rows.as_array().unwrap().iter().map(|row| {
            let count = |name: &str| row[name].as_u64().unwrap();
            let (succeeded, failed) = (
                count("auth_attempts_succeeded"),
                count("auth_attempts_failed"),
            );
            assert_eq!(count("auth_attempts"), succeeded + failed);
            (
                row["protocol"].as_str().unwrap().to_owned(),
                succeeded,
                failed,
            )
        });
        rows.collect()
    };
    let row = |protocol: &str, succeeded, failed| (protocol.to_owned(), succeeded, failed);
    assert_eq!(
        counts(&server),
        [row("amqp091", 0, 0), row("amqp10", 0, 0), row("http", 1, 1)]
    );
    let clients = control::LoginCounts {
        succeeded: 3,
        failed: 4,
    };
    let mut fake = server.fake.lock().unwrap();
    fake.counters.logins.insert("amqp091".to_owned(), clients);
    drop(fake);
    assert_eq!(
        counts(&server),
        [row("amqp091", 3, 4), row("amqp10", 0, 0), row("http", 2, 1)]
    );
    assert_eq!(server.delete(path), 204);
    assert_eq!(
        counts(&server),
        [row("amqp091", 0, 0), row("amqp10", 0, 0), row("http", 1, 0)]
    );
    assert_eq!(
        server.ask("GET", "/api/auth/attempts/c-9", None).status,
        404
    );
    let hash = server.get("/api/auth/hash_password/p%C3%A4ss")["ok"].clone();
    let body = json!({"password_hash": hash, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": ""});
    assert_eq!(server.put("/api/users/hashed", body), 201);
    let login = server.ask_as(Some(("hashed", "päss")), "GET", "/api/whoami", None);
    assert_eq!(login.status, 200);
    assert_eq!(
        server.get("/api/users/without-permissions")[0]["name"],
        "hashed"
    );
    let unknown_node = server.ask(
        "POST",
        "/api/users/bulk-delete",
        Some(json!({"users": ["hashed", "nobody"]})),
    );
    assert_eq!(unknown_node.status, 204);
    assert_eq!(server.ask("GET", "/api/users/hashed", None).status, 404);
}

#[test]
fn new_vhost_gets_the_nodes_default_queue_type() {
    let server = Server::start_with(|c| c.default_queue_type = Some(QueueType::Quorum));
    let kind =
        |vhost: &str| server.get(&format!("/api/vhosts/{vhost}"))["default_queue_type"].clone();
    assert_eq!(server.put("/api/vhosts/v", json!({})), 201);
    assert_eq!(kind("v"), "quorum");
    assert_eq!(
        server.put("/api/vhosts/w", json!({"default_queue_type": "classic"})),
        201
    );
    assert_eq!(kind("w"), "classic");
    // An existing vhost keeps its type.
    assert_eq!(
        server.put("/api/vhosts/w", json!({"description": "more"})),
        204
    );
    assert_eq!(server.put("/api/vhosts/%2F", json!({})), 204);
    assert_eq!(
        (kind("w"), kind("%2F")),
        (json!("classic"), json!("classic"))
    );
    let declared = server.put("/api/queues/v/q", json!({}));
    assert_eq!(
        (declared, &server.get("/api/queues/v/q")["type"]),
        (201, &json!("quorum"))
    );
}

#[test]
fn log_levels_are_set_and_shown_on_this_node() {
    let levels = Arc::new(Mutex::new(Vec::new()));
    let recorded = levels.clone();
    let server = Server::start_with(move |c| {
        let set = move |category: Option<&str>, level: &str| {
            if level == "loud" {
                return Err("log level 'loud' is not known".to_owned());
            }
            recorded
                .lock()
                .unwrap()
                .push((category.map(str::to_owned), level.to_owned()));
            Ok(())
        };
        c.log_levels = Some(crate::LogLevels {
            set: Arc::new(set),
            shown: Arc::new(|| vec![("default", "info"), ("queue", "debug")]),
        });
    });
    let path = "/api/nodes/c-0/log-levels";
    assert_eq!(server.put(path, json!({"level": "debug"})), 204);
    assert_eq!(
        server.put(path, json!({"level": "error", "category": "http"})),
        204
    );
    assert_eq!(
        server.get(path),
        json!({"default": "info", "queue": "debug"})
    );
    let bad = server.ask("PUT", path, Some(json!({"level": "loud"})));
    assert_eq!(
        (bad.status, bad.reason()),
        (400, "log level 'loud' is not known")
    );
    assert_eq!(server.put(path, json!({})), 400);
    assert_eq!(
        server.put("/api/nodes/c-1/log-levels", json!({"level": "debug"})),
        400
    );
    let expected = [(None, "debug"), (Some("http"), "error")];
    let expected =
        expected.map(|(c, l): (Option<&str>, &str)| (c.map(str::to_owned), l.to_owned()));
    assert_eq!(*levels.lock().unwrap(), expected);
}

#[test]
fn configuration_is_reloaded_on_this_node() {
    let server = Server::start_with(|c| {
        let live = c.live.clone();
        let setting = |value: &str| crate::Setting {
            key: "heartbeat".into(),
            value: value.into(),
            source: "posthorn.conf:1".into(),
            live: true,
            restart: false,
        };
        live.replace(vec![setting("10")], None);
        c.keys = Arc::new([crate::SettingKey {
            key: "heartbeat",
            default: "60",
            live: true,
        }]);
        let mut calls = 0;
        let reload = Mutex::new(move || {
            calls += 1;
            if calls > 1 {
                return Err("posthorn.conf:1: unknown key `x`".to_owned());
            }
            live.replace(vec![setting("20")], None);
            Ok(crate::Reloaded {
                changed: vec!["heartbeat".into()],
                restart: vec!["frame_max".into()],
            })
        });
        c.reload = Some(crate::ReloadSettings(Arc::new(move || {
            (reload.lock().unwrap())()
        })));
    });
    let path = "/api/nodes/c-0/configuration";
    let shown = |value: &str| json!([{"key": "heartbeat", "value": value, "source": "posthorn.conf:1", "live": true, "restart": false}]);
    assert_eq!(server.get(path), shown("10"));
    assert_eq!(
        server.get(&format!("{path}/keys")),
        json!([{"key": "heartbeat", "default": "60", "live": true}])
    );
    let reload = format!("{path}/reload");
    let answer = server.ask("POST", &reload, Some(json!({})));
    assert_eq!(
        (answer.status, &answer.body),
        (
            200,
            &json!({"changed": ["heartbeat"], "restart": ["frame_max"]})
        )
    );
    assert_eq!(server.get(path), shown("20"));
    let bad = server.ask("POST", &reload, Some(json!({})));
    assert_eq!(
        (bad.status, bad.reason()),
        (400, "posthorn.conf:1: unknown key `x`")
    );
    let other = "/api/nodes/c-1/configuration/reload";
    assert_eq!(server.ask("POST", other, Some(json!({}))).status, 400);
}

#[test]
fn tracing_is_a_field_of_the_vhost() {
    let server = Server::start();
    let traced = |vhost: &str| server.get(&format!("/api/vhosts/{vhost}"))["tracing"].clone();
    assert_eq!(traced("%2F"), false);
    assert_eq!(server.put("/api/vhosts/%2F", json!({"tracing": true})), 204);
    assert_eq!(
        server.put("/api/vhosts/%2F", json!({"description": "x"})),
        204
    );
    assert_eq!(traced("%2F"), true, "what is not said stays");
    assert_eq!(server.put("/api/vhosts/v", json!({"tracing": true})), 201);
    let document = server.get("/api/definitions");
    assert!(
        document["vhosts"]
            .as_array()
            .unwrap()
            .iter()
            .all(|v| v["tracing"] == true)
    );
    assert_eq!(
        server.put("/api/vhosts/%2F", json!({"tracing": false})),
        204
    );
    assert_eq!((traced("%2F"), traced("v")), (json!(false), json!(true)));
    assert_eq!(server.put("/api/vhosts/v", json!({"tracing": 3})), 400);
}

/// Responses that RabbitMQ's rabbitmqadmin relies on.
#[test]
fn responses_contain_what_rabbitmqadmin_reads() {
    let server = Server::start_with(|c| c.listeners.push(("mqtt".into(), 1883)));
    let page = server.get("/api/users?page=1&page_size=50");
    assert_eq!(
        (&page["item_count"], &page["items"][0]["name"]),
        (&json!(1), &json!("guest"))
    );
    // The length identifies the algorithm of a hash without `hashing_algorithm`.
    let hash = base64::engine::general_purpose::STANDARD.encode([7; 68]);
    let user = json!({"password_hash": hash, "tags": ""});
    assert_eq!(server.put("/api/users/long", user), 201);
    let user = server.get("/api/users/long");
    assert_eq!(user["hashing_algorithm"], "rabbit_password_hashing_sha512");
    assert_eq!(server.get("/api/queues/%2F/nothing/bindings"), json!([]));
    assert_eq!(
        server.get("/api/bindings/%2F/e/nowhere/q/nothing"),
        json!([])
    );
    let failed = |path: &str| {
        server
            .ask("GET", &format!("/api/health/checks/{path}"), None)
            .body
    };
    let protocol = failed("protocol-listener/stomp");
    assert_eq!(
        (&protocol["missing"], &protocol["protocols"]),
        (&json!(["stomp"]), &json!(["amqp", "mqtt"]))
    );
    let port = failed("port-listener/9");
    assert_eq!(
        (&port["missing"], &port["ports"]),
        (&json!(9), &json!([5672, 1883]))
    );
    let plugins = &server.get("/api/nodes/c-0")["enabled_plugins"];
    assert_eq!(plugins, &json!(["rabbitmq_management", "rabbitmq_mqtt"]));
}

#[test]
fn protected_user_is_changed_and_deleted_only_with_an_override_from_the_machine() {
    let server = Server::start();
    let user = |tags: &str| json!({"password": "p", "tags": tags});
    assert_eq!(server.put("/api/users/kept", user("protected")), 201);
    let refused = server.ask("PUT", "/api/users/kept", Some(user("")));
    assert_eq!(refused.status, 412);
    assert!(
        refused
            .reason()
            .starts_with("user 'kept' has the tag 'protected'"),
        "{refused:?}"
    );
    let bulk = Some(json!({"users": ["kept"]}));
    assert_eq!(
        server.ask("POST", "/api/users/bulk-delete", bulk).status,
        412
    );
    assert_eq!(server.delete("/api/users/kept"), 412);
    let import = json!({"users": [{"name": "kept", "password": "other", "tags": ""}]});
    assert_eq!(
        server.ask("POST", "/api/definitions", Some(import)).status,
        412
    );
    // The exported user is the same, and its import changes nothing.
    let exported = json!({"users": server.get("/api/definitions")["users"]});
    assert_eq!(
        server
            .ask("POST", "/api/definitions", Some(exported))
            .status,
        204
    );
    // Other properties of the user are not protected.
    assert_eq!(
        server.put("/api/user-limits/kept/max-channels", json!({"value": 5})),
        204
    );
    let mut other = user("protected,monitoring");
    other["override_protection"] = json!(true);
    assert_eq!(server.put("/api/users/kept", other), 204);
    assert_eq!(
        server.delete("/api/users/kept?override_protection=true"),
        204
    );
}
