use super::*;
use crate::MeasureResources;
use control::{ChannelFacts, NodeResources};

#[test]
fn readiness_and_liveness_report_node_state() {
    let server = Server::start();
    server.fake.lock().unwrap().readiness = Readiness::NotReady("joining".into());
    let got = server.ask_as(None, "GET", "/readyz", None);
    assert_eq!(
        (got.status, got.body),
        (503, json!({"status": "failed", "reason": "joining"}))
    );
    server.fake.lock().unwrap().stopping = true;
    assert_eq!(server.ask_as(None, "GET", "/readyz", None).status, 503);
    assert_eq!(server.ask("GET", "/api/whoami", None).status, 503);
    // A busy node is alive.
    assert_eq!(server.ask_as(None, "GET", "/livez", None).status, 200);
    assert_eq!(server.ask_as(None, "GET", "/livez", None).status, 200);
}

/// A node that lacks metadata may not know the newest user or password.
#[test]
fn node_that_lacks_metadata_refuses_no_password() {
    let server = Server::start();
    let status = |password: &str| {
        let credentials = Some(("guest", password));
        server
            .ask_as(credentials, "GET", "/api/whoami", None)
            .status
    };
    let set = |readiness| server.fake.lock().unwrap().readiness = readiness;
    set(Readiness::NotReady("catching up".into()));
    assert_eq!((status("guest"), status("wrong")), (200, 503));
    set(Readiness::Draining);
    assert_eq!((status("guest"), status("wrong")), (200, 401));
    let ready = server.ask_as(None, "GET", "/readyz", None);
    assert_eq!(
        (ready.status, ready.body),
        (503, json!({"status": "failed", "reason": "draining"}))
    );
}

#[test]
fn refused_liveness_probe_is_sent_again() {
    let server = Server::start();
    let status_of = |path| server.ask_as(None, "GET", path, None).status;
    server.fake.lock().unwrap().stopping = true;
    assert_eq!(status_of("/livez"), 200);
    let mut fake = server.fake.lock().unwrap();
    (fake.stopping, fake.held_requests) = (false, Some(Vec::new()));
    drop(fake);
    // No probe is pending: the next request sends one, and only one until it is answered.
    assert_eq!((status_of("/livez"), status_of("/livez")), (200, 200));
    let held_count = server
        .fake
        .lock()
        .unwrap()
        .held_requests
        .as_ref()
        .map(Vec::len);
    assert_eq!(held_count, Some(1));
}

#[test]
fn login_is_unavailable_before_the_cluster_is_formed() {
    let server = Server::start();
    let formed = std::mem::take(&mut server.fake.lock().unwrap().tree);
    for _ in 0..20 {
        let got = server.ask("GET", "/api/whoami", None);
        assert_eq!(
            (got.status, got.reason()),
            (503, "this node is not in a cluster yet")
        );
    }
    server.fake.lock().unwrap().tree = formed;
    assert_eq!(server.ask("GET", "/api/whoami", None).status, 200);
}

#[test]
fn unresponsive_shard_causes_503() {
    let server = Server::start();
    server.fake.lock().unwrap().held_requests = Some(Vec::new());
    let got = server.ask("GET", "/api/whoami", None);
    assert_eq!(
        (got.status, got.reason()),
        (503, "the node did not answer in time")
    );
    let held_count = server.fake.lock().unwrap().held_requests.take().unwrap();
    assert_eq!(held_count.len(), 1);
    drop(held_count);
    assert_eq!(server.ask("GET", "/api/whoami", None).status, 200);
}

#[test]
fn quorum_critical_check_lists_queues() {
    let server = Server::start();
    let path = "/api/health/checks/node-is-quorum-critical";
    assert_eq!(server.get(path), json!({"status": "ok"}));
    server.quorum("q");
    let id = server.fake.lock().unwrap().tree.queue("/", "q").unwrap().id;
    server.fake.lock().unwrap().critical = vec![id, QueueId(0)];
    let got = server.ask("GET", path, None);
    assert_eq!((got.status, &got.body["status"]), (503, &json!("failed")));
    assert!(!got.reason().is_empty());
    let queue = &got.body["queues"][0];
    assert_eq!(
        (&queue["name"], &queue["virtual_host"], &queue["type"]),
        (&json!("q"), &json!("/"), &json!("quorum"))
    );
    assert_eq!(got.body["queues"][1]["type"], "metadata");
}

#[test]
fn leader_check_lists_quorum_queues_without_a_leader() {
    let server = Server::start();
    let base = "/api/health/checks/quorum-queues-without-elected-leaders";
    let all = format!("{base}/all-vhosts");
    assert_eq!(server.get(&all), json!({"status": "ok"}));
    server.quorum("led");
    server.quorum("leaderless");
    assert_eq!(
        server.put(
            "/api/queues/%2F/classic-leaderless",
            json!({"durable": true})
        ),
        201
    );
    {
        let mut fake = server.fake.lock().unwrap();
        for name in ["leaderless", "classic-leaderless"] {
            let id = fake.tree.queue("/", name).unwrap().id;
            fake.stats.remove(&id);
        }
    }
    for path in [
        "all-vhosts",
        "all-vhosts/pattern/%5Elead",
        "vhost/%2F",
        "vhost/%2F/pattern/less%24",
    ] {
        let got = server.ask("GET", &format!("{base}/{path}"), None);
        assert_eq!(
            (got.status, &got.body["status"]),
            (503, &json!("failed")),
            "{path}"
        );
        assert_eq!(
            got.reason(),
            "Detected 1 quorum queue(s) without an elected leader"
        );
        let queues = got.body["queues"].as_array().unwrap();
        assert_eq!(
            (queues.len(), &queues[0]["name"]),
            (1, &json!("leaderless")),
            "{path}"
        );
    }
    assert_eq!(
        server.get(&format!("{all}/pattern/%5Eled%24")),
        json!({"status": "ok"})
    );
    let got = server.ask("GET", &format!("{all}/pattern/%28"), None);
    assert_eq!(got.status, 400);
    assert!(
        got.reason().contains("invalid pattern '('"),
        "{}",
        got.reason()
    );
    assert_eq!(
        server
            .ask("GET", &format!("{base}/vhost/none"), None)
            .status,
        404
    );
}

#[test]
fn checks_of_the_cluster_compare_with_limits() {
    let server = Server::start();
    let check = |name: &str| server.ask("GET", &format!("/api/health/checks/{name}"), None);
    for name in [
        "is-in-service",
        "below-node-connection-limit",
        "reached-target-cluster-size",
        "metadata-store/initialized",
        "metadata-store/initialized/with-data",
    ] {
        assert_eq!(check(name).body, json!({"status": "ok"}), "{name}");
    }
    server.fake.lock().unwrap().readiness = Readiness::NotReady("joining".into());
    for name in ["is-in-service", "metadata-store/initialized"] {
        let got = check(name);
        assert_eq!((got.status, got.reason()), (503, "joining"), "{name}");
    }
    let server = Server::start_with(|config| {
        config.initial_nodes = 9;
        let limit = NodeResources {
            connections: Some(0),
            ..NodeResources::default()
        };
        config.resources = Some(MeasureResources(Arc::new(move || limit)));
    });
    for (name, reason) in [
        ("reached-target-cluster-size", "nodes run"),
        ("below-node-connection-limit", "its limit is 0"),
    ] {
        let got = server.ask("GET", &format!("/api/health/checks/{name}"), None);
        assert_eq!(got.status, 503, "{name}");
        assert!(got.reason().contains(reason), "{}", got.reason());
    }
}

#[test]
fn lost_queues_fail_the_check_and_have_their_own_state() {
    let server = Server::start();
    let path = "/api/health/checks/lost-queues";
    assert_eq!(server.get(path), json!({"status": "ok"}));
    server.quorum("kept");
    {
        let mut fake = server.fake.lock().unwrap();
        let old = NodeRecord {
            id: NodeId(7),
            name: "c-7".into(),
            address: "c-7:25672".into(),
            voter: false,
            maintenance: false,
        };
        fake.apply(Change::PutNode(old.clone())).unwrap();
        let record = metadata::QueueRecord {
            id: QueueId(0),
            vhost: "/".into(),
            name: "gone".into(),
            kind: QueueType::Classic,
            durable: true,
            auto_delete: false,
            exclusive: None,
            arguments: Default::default(),
            members: vec![old.id],
            declared_by: "guest".into(),
        };
        fake.apply(Change::DeclareQueue(record)).unwrap();
        let new = NodeRecord {
            id: NodeId(8),
            ..old.clone()
        };
        fake.apply(Change::ReplaceNode { old: old.id, new })
            .unwrap();
    }
    let got = server.ask("GET", path, None);
    assert_eq!((got.status, &got.body["status"]), (503, &json!("failed")));
    assert!(!got.reason().is_empty());
    assert_eq!(
        got.body["queues"],
        json!([{"vhost": "/", "name": "gone", "node": "c-7"}])
    );
    let queue = server.get("/api/queues/%2F/gone");
    assert_eq!(
        (&queue["state"], &queue["node"]),
        (&json!("lost"), &json!("c-7"))
    );
    let url = format!("http://{}/metrics", server.metrics);
    let metrics = ureq::get(url).call().unwrap().body_mut().read_to_string();
    let metrics = metrics.unwrap();
    assert!(metrics.contains("posthorn_lost_queues 1"), "{metrics}");
    assert_eq!(
        server
            .ask("DELETE", "/api/queues/%2F/gone?if-empty=true", None)
            .status,
        204
    );
    assert_eq!(server.get(path), json!({"status": "ok"}));
}

#[test]
fn alarms_fail_the_check() {
    let server = Server::start();
    assert_eq!(
        server.get("/api/health/checks/alarms"),
        json!({"status": "ok"})
    );
    server.fake.lock().unwrap().disk_alarm = true;
    let got = server.ask("GET", "/api/health/checks/alarms", None);
    assert_eq!(
        (got.status, &got.body["alarms"]),
        (503, &json!([{"node": "c-1", "resource": "disk"}]))
    );
    assert_eq!(
        server.get("/api/health/checks/local-alarms"),
        json!({"status": "ok"})
    );
}

#[test]
fn maintenance_applies_only_to_this_node() {
    let server = Server::start();
    server.fake.lock().unwrap().progress.leaders_left = 2;
    let path = "/api/nodes/c-0/maintenance";
    let got = server.ask("PUT", path, Some(json!({})));
    assert_eq!(
        (got.status, &got.body["state"], &got.body["leaders"]),
        (200, &json!("draining"), &json!(2))
    );
    server.fake.lock().unwrap().progress.leaders_left = 0;
    assert_eq!(server.ask("PUT", path, None).body["state"], "drained");
    assert!(server.fake.lock().unwrap().progress.on);
    assert_eq!(server.delete(path), 204);
    assert!(!server.fake.lock().unwrap().progress.on);
    let other = server.ask("PUT", "/api/nodes/c-1/maintenance", None);
    assert_eq!(
        (other.status, other.reason()),
        (400, "this is node 'c-0'; ask node 'c-1' itself")
    );
    assert_eq!(
        server.ask("PUT", "/api/nodes/c-9/maintenance", None).status,
        404
    );
}

#[test]
fn nodes_are_listed_and_forgotten() {
    let server = Server::start();
    let nodes = server.get("/api/nodes");
    assert_eq!(nodes.as_array().unwrap().len(), 3);
    let first = &nodes[0];
    assert_eq!(
        (
            &first["name"],
            &first["running"],
            &first["uptime"],
            &first["being_drained"]
        ),
        (&json!("c-0"), &json!(true), &json!(5000), &json!(false))
    );
    assert_eq!(server.get("/api/nodes/c-1")["name"], "c-1");
    assert_eq!(server.ask("GET", "/api/nodes/c-9", None).status, 404);
    assert_eq!(server.delete("/api/nodes/c-2"), 400);
    server.fake.lock().unwrap().is_alone = true;
    assert_eq!(server.delete("/api/nodes/c-2"), 204);
    assert_eq!(server.delete("/api/nodes/c-2"), 404);
}

#[test]
fn overview_counts_objects() {
    let server = Server::start();
    server.quorum("q");
    server.set_stats("q", 3, 1);
    let shown = server.get("/api/overview");
    assert_eq!(
        (
            &shown["cluster_name"],
            &shown["node"],
            &shown["product_name"]
        ),
        (&json!("test"), &json!("c-0"), &json!("Posthorn"))
    );
    assert_eq!(shown["product_version"], env!("CARGO_PKG_VERSION"));
    for (key, count) in [
        ("messages", 4),
        ("messages_ready", 3),
        ("messages_unacknowledged", 1),
    ] {
        assert_eq!(shown["queue_totals"][key], count);
    }
    assert_eq!(shown["object_totals"]["queues"], 1);
    assert_eq!(shown["object_totals"]["exchanges"], 7);
    assert_eq!(server.get("/api/cluster-name"), json!({"name": "test"}));
}

#[test]
fn resource_usage_of_other_nodes_is_shown() {
    let server = Server::start();
    let counters = control::Counters {
        connections: 3,
        connections_opened: 8,
        resources: Some(control::NodeResources {
            memory_used: Some(11),
            disk_free: Some(33),
            descriptors_used: Some(55),
            threads: Some(77),
            uptime_s: Some(9),
            ..control::NodeResources::default()
        }),
        ..control::Counters::default()
    };
    server.fake.lock().unwrap().other_counters = vec![(NodeId(2), counters)];
    for of in [
        server.get("/api/nodes/c-1"),
        server.get("/api/nodes")[1].clone(),
    ] {
        for (name, value) in [
            ("mem_used", 11),
            ("disk_free", 33),
            ("fd_used", 55),
            ("proc_used", 77),
            ("sockets_used", 3),
            ("connection_created", 8),
            ("uptime", 9000),
        ] {
            assert_eq!(of[name], value, "{name}");
        }
        assert!(of.get("os_pid").is_none(), "the process of another node");
    }
    let samples = server.get("/api/nodes/c-1?node_stats_age=60&node_stats_incr=5");
    assert_eq!(samples["mem_used_details"]["samples"][0]["sample"], 11);
    let third = server.get("/api/nodes/c-2");
    assert!(third.get("mem_used").is_none(), "it does not answer");
}

#[test]
fn resource_usage_of_the_node_is_shown() {
    let measured = control::NodeResources {
        processor_time_ms: Some(1_250),
        started_ms: Some(1_700_000_000_123),
        memory_used: Some(11),
        memory_limit: Some(22),
        disk_free: Some(33),
        disk_free_limit: Some(44),
        descriptors_used: Some(55),
        connections: Some(66),
        threads: Some(77),
        thread_limit: Some(88),
        processors: Some(2),
        descriptors: None,
        is_short_of_files: true,
        uptime_s: None,
    };
    let server = Server::start_with(|c| {
        c.resources = Some(crate::MeasureResources(Arc::new(move || measured)));
    });
    server.fake.lock().unwrap().connections = vec![ConnectionFacts::default()];
    let own = server.get("/api/nodes/c-0");
    for (name, value) in [
        ("mem_used", 11),
        ("mem_limit", 22),
        ("disk_free", 33),
        ("disk_free_limit", 44),
        ("fd_used", 55),
        ("sockets_used", 1),
        ("sockets_total", 66),
        ("proc_used", 77),
        ("proc_total", 88),
        ("processors", 2),
    ] {
        assert_eq!(own[name], value, "{name}");
    }
    let checked = server.ask("GET", "/api/health/checks/local-alarms", None);
    assert_eq!(checked.status, 503);
    assert_eq!(checked.body["alarms"][0]["resource"], "file_descriptors");
    // The rate of change since the first request.
    for name in [
        "mem_used",
        "disk_free",
        "fd_used",
        "proc_used",
        "sockets_used",
    ] {
        let details = &own[format!("{name}_details")];
        assert_eq!(details, &json!({"rate": 0.0}), "{name}");
    }
    assert_eq!(own["os_pid"], std::process::id().to_string());
    assert!(own.get("fd_total").is_none(), "it is not known");
    // A node that does not answer.
    assert!(server.get("/api/nodes/c-1").get("mem_used").is_none());
    let url = format!("http://{}/metrics", server.metrics);
    let text = ureq::get(url).call().unwrap().body_mut().read_to_string();
    let text = text.unwrap();
    for line in [
        "rabbitmq_process_resident_memory_bytes 11",
        "rabbitmq_resident_memory_limit_bytes 22",
        "rabbitmq_disk_space_available_bytes 33",
        "rabbitmq_disk_space_available_limit_bytes 44",
        "rabbitmq_process_open_fds 55",
    ] {
        assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
    }
    assert!(!text.contains("process_max_fds"));
}

#[test]
fn connections_are_listed_and_closed() {
    let server = Server::start();
    let connection = |name: &str, user: &str| ConnectionFacts {
        name: name.into(),
        node: NodeId(1),
        user: user.into(),
        vhost: "/".into(),
        protocol: "amqp091".into(),
        client_name: "app".into(),
        channels: vec![ChannelFacts::default(), ChannelFacts::default()],
        peer: "10.0.0.1:4000".into(),
        ..ConnectionFacts::default()
    };
    let name = "10.0.0.1:4000 -> 10.0.0.2:5672";
    server.fake.lock().unwrap().connections = vec![connection(name, "guest"), connection("b", "m")];
    server.add_user("m", &["management"]);
    let shown = &server.get("/api/connections")[0];
    assert_eq!(
        (
            &shown["name"],
            &shown["node"],
            &shown["peer_host"],
            &shown["peer_port"]
        ),
        (
            &json!(name),
            &json!("c-0"),
            &json!("10.0.0.1"),
            &json!(4000)
        )
    );
    let own = server
        .ask_as(Some(("m", "secret")), "GET", "/api/connections", None)
        .body;
    assert_eq!(own.as_array().unwrap().len(), 1);
    let escaped = "10.0.0.1:4000%20-%3E%2010.0.0.2:5672";
    let path = format!("/api/connections/{escaped}");
    assert_eq!(
        server
            .ask_as(Some(("m", "secret")), "DELETE", &path, None)
            .status,
        404
    );
    assert_eq!(server.delete(&path), 204);
    assert_eq!(server.delete(&path), 404);
}

#[test]
fn metrics_have_rabbitmq_names() {
    let server = Server::start();
    server.quorum("q%221");
    server.set_stats("q\"1", 3, 1);
    let page = |path: &str| {
        let mut got = ureq::get(format!("http://{}{path}", server.metrics))
            .call()
            .unwrap();
        assert!(
            got.headers()["content-type"]
                .to_str()
                .unwrap()
                .starts_with("text/plain; version=0.0.4")
        );
        got.body_mut().read_to_string().unwrap()
    };
    let all = page("/metrics");
    for line in [
        "rabbitmq_identity_info{rabbitmq_node=\"c-0\",rabbitmq_cluster=\"test\",rabbitmq_cluster_permanent_id=\"test\"} 1",
        "rabbitmq_queue_messages_ready 3",
        "rabbitmq_queue_messages_unacked 1",
        "rabbitmq_queue_messages 4",
        "rabbitmq_queues 1",
        "# TYPE rabbitmq_connections gauge",
    ] {
        assert!(all.lines().any(|l| l == line), "{line} in\n{all}");
    }
    let each = page("/metrics/per-object");
    assert!(
        each.contains("rabbitmq_queue_messages{vhost=\"/\",queue=\"q\\\"1\"} 4"),
        "{each}"
    );
}

#[test]
fn definitions_round_trip_between_clusters() {
    let from = Server::start();
    from.quorum("q");
    assert_eq!(from.put("/api/vhosts/v", json!({"description": "d"})), 201);
    assert_eq!(
        from.put("/api/exchanges/v/x", json!({"type": "headers"})),
        201
    );
    assert_eq!(
        from.put("/api/queues/v/c", json!({"arguments": {"x-max-length": 5}})),
        201
    );
    let binding = json!({"routing_key": "k", "arguments": {"n": 1}});
    assert_eq!(
        from.ask("POST", "/api/bindings/v/e/x/q/c", Some(binding))
            .status,
        201
    );
    from.add_user("app", &["monitoring"]);
    assert_eq!(
        from.put("/api/user-limits/app/max-channels", json!({"value": 3})),
        204
    );
    let policy = json!({"pattern": "^c", "definition": {"max-length": 9}});
    assert_eq!(from.put("/api/policies/v/p", policy.clone()), 201);
    assert_eq!(from.put("/api/operator-policies/v/o", policy), 201);
    let topic = json!({"exchange": "amq.topic", "write": "a", "read": "b"});
    assert_eq!(from.put("/api/topic-permissions/%2F/app", topic), 201);
    let document = from.get("/api/definitions");
    let to = Server::start();
    for _ in 0..2 {
        let got = to.ask("POST", "/api/definitions", Some(document.clone()));
        assert_eq!(got.status, 204, "{got:?}");
    }
    assert_eq!(to.get("/api/definitions"), document);
    let whoami = to.ask_as(Some(("app", "secret")), "GET", "/api/whoami", None);
    assert_eq!(whoami.status, 200, "the password hash came along");
    // The error names the refused entry.
    let bad = json!({"queues": [{"name": "ok", "vhost": "/"}, {"name": "bad", "vhost": "/", "arguments": {"x-max-length": -1}}]});
    let got = to.ask("POST", "/api/definitions", Some(bad));
    assert_eq!(got.status, 400);
    assert!(
        got.reason()
            .starts_with("queues[1]: invalid arg 'x-max-length'"),
        "{got:?}"
    );
    // Existing objects are kept, and a missing object is an error of the document.
    let other = json!({
        "queues": [{"name": "ok", "vhost": "/", "durable": false, "arguments": {"x-queue-type": "undefined"}},
            {"name": "old", "vhost": "/", "arguments": {"x-queue-type": "undefined"}}],
        "exchanges": [{"name": "amq.direct", "vhost": "/", "type": "topic"}],
    });
    assert_eq!(to.ask("POST", "/api/definitions", Some(other)).status, 204);
    assert_eq!(to.get("/api/queues/%2F/ok")["durable"], true);
    assert_eq!(to.get("/api/queues/%2F/old")["type"], "classic");
    assert_eq!(to.get("/api/exchanges/%2F/amq.direct")["type"], "direct");
    for bad in [
        json!({"queues": [{"name": "q", "vhost": "nowhere"}]}),
        json!({"bindings": [{"vhost": "/", "source": "amq.direct", "destination": "none", "destination_type": "queue"}]}),
        json!({"users": 5}),
        json!({"users": [5]}),
        json!({"bindings": [{"vhost": "/"}]}),
    ] {
        assert_eq!(to.ask("POST", "/api/definitions", Some(bad)).status, 400);
    }
    from.add_user("m", &["management"]);
    assert_eq!(
        from.ask_as(Some(("m", "secret")), "GET", "/api/definitions", None)
            .status,
        401
    );
}

#[test]
fn listener_checks_find_configured_listeners() {
    let server = Server::start();
    assert_eq!(
        server.get("/api/health/checks/port-listener/5672"),
        json!({"status": "ok", "port": 5672})
    );
    assert_eq!(
        server
            .ask("GET", "/api/health/checks/port-listener/1", None)
            .status,
        503
    );
    assert_eq!(
        server
            .ask("GET", "/api/health/checks/port-listener/x", None)
            .status,
        400
    );
    assert_eq!(
        server.get("/api/health/checks/protocol-listener/amqp"),
        json!({"status": "ok", "protocols": ["amqp"]})
    );
    let several = server.ask(
        "GET",
        "/api/health/checks/protocol-listener/amqp0.9.1,doe",
        None,
    );
    assert_eq!(
        (several.status, &several.body["missing"]),
        (503, &json!(["doe"]))
    );
    assert_eq!(
        server
            .ask("GET", "/api/health/checks/protocol-listener/mqtt", None)
            .status,
        503
    );
}

#[test]
fn certificates_that_expire_soon_fail_the_check() {
    let status_of = |expires_in_days: Option<u64>, path: &str| {
        let server = Server::start_with(|config| {
            config.listeners.push(("amqp/ssl".into(), 5671));
            let now = env::Clock::wall(&env::real::RealClock::new()).0 / 1000;
            let expires = expires_in_days.map(|days| now + days * 86_400);
            config.certificates_expire = Some(crate::CertificateExpiry(Arc::new(move || expires)));
        });
        let path = format!("/api/health/checks/certificate-expiration/{path}");
        server.ask("GET", &path, None)
    };
    assert_eq!(status_of(None, "1/years").status, 200);
    assert_eq!(status_of(Some(20), "2/weeks").status, 200);
    let soon = status_of(Some(20), "3/weeks");
    assert_eq!((soon.status, soon.reason()), (503, "Certificates expiring"));
    assert_eq!(soon.body["expired"][0]["port"], 5671);
    assert_eq!(status_of(Some(0), "0/days").status, 503);
    assert_eq!(status_of(None, "x/days").status, 400);
    assert_eq!(status_of(None, "1/moons").status, 400);
}

/// A queue that belongs to a connection is locked for HTTP requests.
#[test]
fn exclusive_queue_is_locked_for_http_requests() {
    let server = Server::start();
    {
        let mut fake = server.fake.lock().unwrap();
        fake.declare("its");
        let mut record = (**fake.tree.queue("/", "its").unwrap()).clone();
        record.name = "mine".into();
        record.durable = false;
        record.exclusive = Some(metadata::SessionId {
            node: NodeId(1),
            incarnation: env::Incarnation(1),
            number: 1,
        });
        let _ = fake.apply(Change::DeclareQueue(record));
        fake.connections = vec![ConnectionFacts {
            name: "its".into(),
            node: NodeId(1),
            number: 1,
            peer: "10.0.0.9:4000".into(),
            ..ConnectionFacts::default()
        }];
    }
    let owner = json!({"name": "its", "peer_host": "10.0.0.9", "peer_port": 4000});
    assert_eq!(
        server.get("/api/queues/%2F/mine")["owner_pid_details"],
        owner
    );
    let shared = server.get("/api/queues/%2F/its");
    assert!(shared.get("owner_pid_details").is_none());
    let get = json!({"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"});
    for (method, path, body) in [
        ("DELETE", "/api/queues/%2F/mine", None),
        ("DELETE", "/api/queues/%2F/mine/contents", None),
        ("POST", "/api/queues/%2F/mine/get", Some(get)),
        (
            "PUT",
            "/api/queues/%2F/mine",
            Some(json!({"durable": false})),
        ),
    ] {
        let got = server.ask(method, path, body);
        assert_eq!(got.status, 400, "{method} {path}");
        let why = "cannot obtain exclusive access to locked queue 'mine' in vhost '/'. ";
        assert!(got.reason().contains(why), "{method} {path}: {got:?}");
    }
    assert_eq!(
        server.get("/api/queues/%2F/mine?columns=name,exclusive"),
        json!({"name": "mine", "exclusive": true})
    );
}

#[test]
fn rabbitmq_paths_without_effect_respond() {
    let server = Server::start();
    assert_eq!(
        server.get("/api/version"),
        json!(crate::overview::RABBITMQ_VERSION)
    );
    assert_eq!(
        server.get("/api/healthchecks/node"),
        json!({"status": "ok"})
    );
    assert_eq!(server.get("/api/queues/detailed"), json!([]));
}

#[test]
fn losses_of_a_classic_queue_are_reported() {
    let server = Server::start();
    let path = "/api/queues/%2F/q";
    assert_eq!(server.put(path, json!({"durable": true})), 201);
    server.set_stats("q", 3, 1);
    assert_eq!(server.get(path)["segments_lost"], Json::Null);
    server.set_lost_counts("q", 600, 2);
    let shown = server.get(path);
    assert_eq!(shown["messages_lost"], 600);
    assert_eq!(shown["segments_lost"], 2);
    let mut page = ureq::get(format!("http://{}/metrics", server.metrics))
        .call()
        .unwrap();
    let page = page.body_mut().read_to_string().unwrap();
    for line in [
        "rabbitmq_queue_messages_lost 600",
        "rabbitmq_queue_segments_lost 2",
    ] {
        assert!(page.lines().any(|l| l == line), "{line} in\n{page}");
    }
}
