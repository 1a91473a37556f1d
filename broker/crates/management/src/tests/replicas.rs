use super::*;
use control::{QueueRecovery, RecoveredGroup};

fn server_with_four_nodes() -> Server {
    let server = Server::start();
    let mut fake = server.fake.lock().unwrap();
    fake.apply(Change::PutNode(node(4))).unwrap();
    drop(fake);
    server
}

fn members(server: &Server, queue: &str) -> Vec<u64> {
    let fake = server.fake.lock().unwrap();
    let record = fake.tree.queue("/", queue).unwrap();
    record.members.iter().map(|n| n.0).collect()
}

#[test]
fn members_of_a_queue_can_be_changed() {
    let server = server_with_four_nodes();
    server.quorum("q");
    let path = |action: &str| format!("/api/queues/quorum/%2F/q/replicas/{action}");
    let ask =
        |method: &str, action: &str, body: Json| server.ask(method, &path(action), Some(body));
    assert_eq!(ask("POST", "add", json!({"node": "c-3"})).status, 204);
    assert_eq!(members(&server, "q"), [1, 2, 3, 4]);
    assert_eq!(ask("DELETE", "delete", json!({"node": "c-0"})).status, 202);
    assert_eq!(members(&server, "q"), [2, 3, 4]);
    let both = json!({"node": "c-1", "with": "c-0"});
    assert_eq!(ask("POST", "replace", both).status, 202);
    assert_eq!(members(&server, "q"), [3, 4, 1]);
    let unknown = ask("POST", "add", json!({"node": "c-9"}));
    assert_eq!(
        (unknown.status, unknown.reason()),
        (400, "there is no node 'c-9' in this cluster")
    );
    assert_eq!(
        ask("POST", "add", json!({})).reason(),
        "[{key_missing,node}]"
    );
    let none = "/api/queues/quorum/%2F/none/replicas/add";
    let body = Some(json!({"node": "c-3"}));
    assert_eq!(server.ask("POST", none, body).status, 404);
    server.quorum("stuck");
    let stuck = "/api/queues/quorum/%2F/stuck/replicas/delete";
    let refused = server.ask("POST", stuck, Some(json!({"node": "c-0"})));
    assert_eq!(
        (refused.status, refused.reason()),
        (400, "queue 'stuck' would lose its majority")
    );
}

#[test]
fn grow_and_shrink_change_matching_queues() {
    let server = server_with_four_nodes();
    for name in ["a1", "a2", "b1", "stuck"] {
        server.quorum(name);
    }
    let grow = "/api/queues/quorum/replicas/on/c-3/grow";
    let body = json!({"vhost_pattern": ".*", "queue_pattern": "^a|stuck", "strategy": "all"});
    let got = server.ask("POST", grow, Some(body));
    assert_eq!(got.status, 200);
    let rows = got.body.as_array().unwrap();
    assert_eq!(rows.len(), 3);
    assert_eq!(
        rows[0],
        json!({
            "vhost": "/", "name": "a1", "size": 4, "members": ["c-0", "c-1", "c-2", "c-3"],
            "result": "ok", "reason": null,
        })
    );
    assert_eq!(
        (&rows[2]["result"], &rows[2]["reason"], &rows[2]["size"]),
        (
            &json!("error"),
            &json!("queue 'stuck' would lose its majority"),
            &json!(3)
        )
    );
    assert_eq!(members(&server, "b1"), [1, 2, 3]);
    let even = json!({"vhost_pattern": ".*", "queue_pattern": ".*", "strategy": "even"});
    assert_eq!(server.ask("POST", grow, Some(even)).body, json!([]));
    for bad in [
        json!({"strategy": "some"}),
        json!({}),
        json!({"strategy": "all", "queue_pattern": "("}),
    ] {
        assert_eq!(server.ask("POST", grow, Some(bad)).status, 400);
    }
    for (method, action, remaining) in [
        ("DELETE", "shrink", &[1, 2, 3][..]),
        ("POST", "evacuate", &[2, 3]),
    ] {
        let node = if action == "shrink" { "c-3" } else { "c-0" };
        let path = format!("/api/queues/quorum/replicas/on/{node}/{action}");
        let got = server.ask(method, &path, None);
        assert_eq!(got.status, 202);
        assert!(got.body.as_array().is_some_and(|rows| rows.len() >= 2));
        assert_eq!(members(&server, "a1"), remaining);
    }
    assert_eq!(
        server
            .ask("POST", "/api/queues/quorum/replicas/on/c-9/grow", None)
            .status,
        404
    );
}

#[test]
fn queue_status_has_rabbitmq_format() {
    let server = Server::start();
    server.quorum("q");
    let shown = server.get("/api/queues/quorum/%2F/q/status");
    assert_eq!(
        shown[0],
        json!({
            "Node Name": "c-0", "Raft State": "leader", "Membership": "voter", "Last Log Index": 9,
            "Last Written": 9, "Last Applied": 8, "Commit Index": 8, "Snapshot Index": 1, "Term": 4,
        })
    );
    assert_eq!(shown[1]["Raft State"], "follower");
    assert_eq!(
        (
            &shown[2]["Raft State"],
            &shown[2]["Membership"],
            &shown[2]["Term"]
        ),
        (&json!("noproc"), &json!("promotable"), &Json::Null)
    );
    assert_eq!(server.put("/api/queues/%2F/c", json!({})), 201);
    let classic = server.ask("GET", "/api/queues/quorum/%2F/c/status", None);
    assert_eq!(
        (classic.status, classic.reason()),
        (503, "classic_queue_not_supported")
    );
    assert_eq!(
        server
            .ask("GET", "/api/queues/quorum/%2F/x/status", None)
            .status,
        404
    );
    // A vhost may be named `quorum`.
    assert_eq!(server.put("/api/vhosts/quorum", json!({})), 201);
    let body = json!({"durable": true});
    server.ask(
        "PUT",
        "/api/permissions/quorum/guest",
        Some(json!({"configure": ".*", "write": ".*", "read": ".*"})),
    );
    assert_eq!(server.put("/api/queues/quorum/mine", body), 201);
    assert_eq!(
        server
            .get("/api/queues/quorum/mine/bindings")
            .as_array()
            .map(Vec::len),
        Some(1)
    );
}

#[test]
fn only_administrators_change_replicas_and_forget_nodes() {
    let server = server_with_four_nodes();
    server.quorum("q");
    server.add_user("m", &["monitoring"]);
    let as_m = |method: &str, path: &str| {
        let body = Some(json!({"node": "c-3", "strategy": "all"}));
        server
            .ask_as(Some(("m", "secret")), method, path, body)
            .status
    };
    for (method, path) in [
        ("POST", "/api/queues/quorum/%2F/q/replicas/add"),
        ("DELETE", "/api/queues/quorum/%2F/q/replicas/delete"),
        ("POST", "/api/queues/quorum/%2F/q/replicas/replace"),
        ("POST", "/api/queues/quorum/replicas/on/c-3/grow"),
        ("DELETE", "/api/queues/quorum/replicas/on/c-0/shrink"),
        ("POST", "/api/queues/quorum/replicas/on/c-0/evacuate"),
        ("POST", "/api/rebalance/queues"),
        ("DELETE", "/api/nodes/c-2"),
        ("POST", "/api/recovery/majority"),
    ] {
        assert_eq!(as_m(method, path), 401, "{path}");
    }
    assert_eq!(as_m("GET", "/api/queues/quorum/%2F/q/status"), 200);
    assert_eq!(members(&server, "q"), [1, 2, 3]);
}

#[test]
fn forgetting_a_node_reports_remaining_queues() {
    let server = Server::start();
    let mut fake = server.fake.lock().unwrap();
    (fake.is_alone, fake.queues_to_move) = (true, 2);
    drop(fake);
    let got = server.ask("DELETE", "/api/nodes/c-2", None);
    assert_eq!(
        (got.status, got.body),
        (202, json!({"state": "moving", "queues": 2}))
    );
    server.fake.lock().unwrap().queues_to_move = 0;
    assert_eq!(server.delete("/api/nodes/c-2"), 204);
    let moved = server.ask("POST", "/api/rebalance/queues", None);
    assert_eq!(
        (moved.status, moved.body),
        (200, json!({"leaders_moved": 3}))
    );
}

#[test]
fn steps_of_a_recovery_name_nodes_and_queues() {
    let server = Server::start();
    server.quorum("q");
    server.quorum("stuck");
    let mut fake = server.fake.lock().unwrap();
    fake.is_alone = true;
    let id = |name: &str| fake.tree.queue("/", name).unwrap().id;
    let (q, stuck) = (id("q"), id("stuck"));
    let group = RecoveredGroup {
        node: NodeId(1),
        last_index: 17,
        replicas: 1,
        voters: 3,
    };
    let reason = "node 'c-1' has a replica and does not answer";
    let outcomes = vec![
        QueueRecovery {
            queue: q,
            result: Ok(group.clone()),
        },
        QueueRecovery {
            queue: stuck,
            result: Err(ChangeError::PreconditionFailed(reason.into())),
        },
        // A queue that was deleted meanwhile.
        QueueRecovery {
            queue: QueueId(99_999),
            result: Ok(group.clone()),
        },
    ];
    // The last response is the first one here.
    fake.recovery = vec![
        Ok(RecoveryStep::Queues { outcomes, left: 4 }),
        Ok(RecoveryStep::Forgotten),
        Ok(RecoveryStep::Metadata(group)),
    ];
    drop(fake);
    let step = |body| {
        let got = server.ask("POST", "/api/recovery/majority", body);
        assert_eq!(got.status, 200, "{}", got.body);
        got.body
    };
    let lost = json!({"lost": ["c-2", "c-1", "c-2"]});
    assert_eq!(
        step(Some(lost.clone())),
        json!({"step": "metadata", "node": "c-0", "last_index": 17, "replicas": 1, "voters": 3})
    );
    assert_eq!(step(Some(lost)), json!({"step": "forgotten"}));
    assert_eq!(
        step(None),
        json!({"step": "queues", "left": 4, "queues": [
            {"vhost": "/", "name": "q", "result": "recovered", "node": "c-0", "last_index": 17,
             "replicas": 1, "voters": 3},
            {"vhost": "/", "name": "stuck", "result": "refused", "reason": reason},
        ]})
    );
    let named = server.fake.lock().unwrap().named_lost.clone();
    let both = vec![NodeId(2), NodeId(3)];
    assert_eq!(named, [both.clone(), both, Vec::new()]);
}

#[test]
fn recovery_refuses_other_bodies_and_unknown_nodes() {
    let server = Server::start();
    let ask = |body: serde_json::Value| {
        let got = server.ask("POST", "/api/recovery/majority", Some(body));
        (got.status, got.reason().to_owned())
    };
    for body in [
        json!({"lost": "c-1"}),
        json!({"lost": [1]}),
        json!({"lost": ["c-1"], "accept": true}),
        json!({"nodes": ["c-1"]}),
    ] {
        let (status, reason) = ask(body.clone());
        assert_eq!(status, 400, "{body}");
        assert!(reason.contains(r#"{"lost": ["NODE", ...]}"#), "{reason}");
    }
    assert_eq!(ask(json!([])).0, 400);
    let (status, reason) = ask(json!({"lost": ["c-9"]}));
    assert_eq!(status, 404);
    assert!(
        reason.contains("node 'c-9' is not in the cluster") && reason.contains("leave it out"),
        "{reason}"
    );
    assert!(server.fake.lock().unwrap().named_lost.is_empty());
    // The broker's own refusals have its text.
    let refusals = [
        ChangeError::Unavailable("node 'c-1' may only be slow".into()),
        ChangeError::PreconditionFailed("node 'c-1' is running".into()),
    ];
    server.fake.lock().unwrap().recovery = refusals.map(Err).into();
    let lost = || json!({"lost": ["c-1"]});
    assert_eq!(ask(lost()), (400, "node 'c-1' is running".into()));
    assert_eq!(ask(lost()), (503, "node 'c-1' may only be slow".into()));
}

#[test]
fn recovery_names_the_node_that_is_down_if_two_have_its_name() {
    let server = Server::start();
    let mut fake = server.fake.lock().unwrap();
    // Node 5 has the name of node 1, which runs.
    let twin = metadata::NodeRecord {
        name: "c-0".into(),
        ..node(5)
    };
    fake.apply(Change::PutNode(twin)).unwrap();
    fake.is_alone = true;
    fake.recovery = vec![Ok(RecoveryStep::Forgotten)];
    drop(fake);
    let body = Some(json!({"lost": ["c-0"]}));
    let got = server.ask("POST", "/api/recovery/majority", body);
    assert_eq!(got.status, 200, "{}", got.body);
    let named = server.fake.lock().unwrap().named_lost.clone();
    assert_eq!(named, [[NodeId(5)]]);
}
