use super::*;

#[test]
fn nothing_below_api_is_open_and_the_probes_are() {
    let server = Server::start();
    for path in [
        "/api/overview",
        "/api/queues",
        "/api/nothing",
        "/api/users/guest",
    ] {
        for who in [
            None,
            Some(("guest", "wrong")),
            Some(("nobody", "x")),
            Some(("guest", "")),
        ] {
            let got = server.ask_as(who, "GET", path, None);
            assert_eq!(
                (got.status, got.reason()),
                (401, "Not_Authorized"),
                "{path} {who:?}"
            );
            assert_eq!(got.body["error"], "not_authorized");
            assert!(got.challenge.unwrap().starts_with("Basic realm="));
        }
    }
    for path in ["/livez", "/readyz"] {
        let got = server.ask_as(None, "GET", path, None);
        assert_eq!((got.status, got.body), (200, json!({"status": "ok"})));
    }
    // The web UI's files are open too; anything else is not there.
    assert_eq!(server.ask_as(None, "GET", "/", None).status, 200);
    assert_eq!(server.ask_as(None, "GET", "/other", None).status, 404);
}

#[test]
fn wrong_passwords_keep_nobody_out() {
    let server = Server::start();
    server.add_user("other", &["administrator"]);
    // Also when the right one was not seen before.
    for name in ["guest"; 11].iter().chain(&["other", "nobody"]) {
        let got = server.ask_as(Some((name, "wrong")), "GET", "/api/whoami", None);
        assert_eq!(got.status, 401, "{name}");
    }
    assert_eq!(server.ask("GET", "/api/whoami", None).status, 200);
    let other = server.ask_as(Some(("other", "secret")), "GET", "/api/whoami", None);
    assert_eq!(other.status, 200);
    let metrics = ureq::get(format!("http://{}/metrics", server.metrics)).call();
    let text = metrics.unwrap().body_mut().read_to_string().unwrap();
    let failed = "rabbitmq_auth_attempts_failed_total{protocol=\"http\"} 13\n";
    assert!(text.contains(failed), "{text}");
    let none = "rabbitmq_auth_attempts_failed_total{protocol=\"amqp091\"} 0\n";
    assert!(text.contains(none), "{text}");
}

/// Who may do what, by tag. The user has all rights in `/` and none elsewhere.
#[test]
fn tags_decide_what_is_open() {
    let server = Server::start();
    assert_eq!(server.put("/api/vhosts/other", json!({})), 201);
    server.quorum("q");
    let policy = json!({"pattern": "^a", "definition": {"max-length": 5}});
    assert_eq!(server.put("/api/policies/%2F/p", policy.clone()), 201);
    let tags = [
        "",
        "management",
        "policymaker",
        "monitoring",
        "administrator",
    ];
    let matrix: &[(&str, &str, Option<Json>, [u16; 5])] = &[
        ("GET", "/api/whoami", None, [200, 200, 200, 200, 200]),
        ("GET", "/api/overview", None, [401, 200, 200, 200, 200]),
        ("GET", "/api/queues", None, [401, 200, 200, 200, 200]),
        ("GET", "/api/queues/%2F/q", None, [401, 200, 200, 200, 200]),
        ("GET", "/api/queues/other", None, [401, 401, 401, 401, 200]),
        ("GET", "/api/user-limits", None, [401, 200, 200, 200, 200]),
        ("GET", "/api/parameters", None, [401, 401, 200, 401, 200]),
        (
            "GET",
            "/api/global-parameters",
            None,
            [401, 401, 200, 401, 200],
        ),
        ("GET", "/api/nodes", None, [401, 401, 401, 200, 200]),
        (
            "GET",
            "/api/health/checks/node-is-quorum-critical",
            None,
            [401, 401, 401, 200, 200],
        ),
        ("GET", "/api/users", None, [401, 401, 401, 401, 200]),
        ("GET", "/api/users/guest", None, [401, 401, 401, 401, 200]),
        ("GET", "/api/permissions", None, [401, 401, 401, 401, 200]),
        ("GET", "/api/policies", None, [401, 200, 200, 200, 200]),
        ("GET", "/api/feature-flags", None, [401, 200, 200, 200, 200]),
        ("GET", "/api/connections", None, [401, 200, 200, 200, 200]),
        (
            "PUT",
            "/api/policies/%2F/p",
            Some(policy.clone()),
            [401, 401, 204, 401, 204],
        ),
        (
            "PUT",
            "/api/policies/other/p",
            Some(policy.clone()),
            [401, 401, 401, 401, 201],
        ),
        (
            "PUT",
            "/api/operator-policies/%2F/p",
            Some(policy),
            [401, 401, 401, 401, 201],
        ),
        (
            "PUT",
            "/api/queues/%2F/made",
            Some(json!({})),
            [401, 201, 204, 204, 204],
        ),
        // Tags are no rights in a vhost.
        (
            "PUT",
            "/api/queues/other/made",
            Some(json!({})),
            [401, 401, 401, 401, 401],
        ),
        (
            "PUT",
            "/api/vhosts/new",
            Some(json!({})),
            [401, 401, 401, 401, 201],
        ),
        (
            "PUT",
            "/api/nodes/c-0/maintenance",
            None,
            [401, 401, 401, 401, 200],
        ),
        (
            "DELETE",
            "/api/users/nobody",
            None,
            [401, 401, 401, 401, 404],
        ),
        (
            "PUT",
            "/api/permissions/%2F/guest",
            Some(json!({"configure": ".*", "write": ".*", "read": ".*"})),
            [401, 401, 401, 401, 204],
        ),
    ];
    for (at, tag) in tags.iter().enumerate() {
        let name = format!("u{at}");
        server.add_user(
            &name,
            if tag.is_empty() {
                &[]
            } else {
                std::slice::from_ref(tag)
            },
        );
        for (method, path, body, want) in matrix {
            let got = server.ask_as(Some((&name, "secret")), method, path, body.clone());
            assert_eq!(
                got.status, want[at],
                "{method} {path} with tag '{tag}': {got:?}"
            );
            if got.status == 401 {
                // The user is who it says it is.
                assert_eq!(got.body["error"], "not_authorised", "{method} {path}");
            }
        }
    }
}

#[test]
fn lists_show_only_what_the_user_may_see() {
    let server = Server::start();
    assert_eq!(server.put("/api/vhosts/other", json!({})), 201);
    server.quorum("q");
    assert_eq!(server.put("/api/queues/other/hidden", json!({})), 201);
    server.add_user("m", &["management"]);
    let names = |who, path: &str| {
        let got = server.ask_as(Some(who), "GET", path, None);
        let list = got.body.as_array().unwrap().clone();
        list.iter()
            .map(|q| q["name"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(("m", "secret"), "/api/queues"), ["q"]);
    assert_eq!(names(("m", "secret"), "/api/vhosts"), ["/"]);
    assert_eq!(names(("guest", "guest"), "/api/queues"), ["q", "hidden"]);
    assert_eq!(names(("guest", "guest"), "/api/vhosts"), ["/", "other"]);
    let bindings = server
        .ask_as(Some(("m", "secret")), "GET", "/api/bindings", None)
        .body;
    assert_eq!(bindings.as_array().unwrap().len(), 1);
    let hidden = server.ask_as(
        Some(("m", "secret")),
        "GET",
        "/api/queues/other/hidden",
        None,
    );
    assert_eq!(hidden.status, 401);
}

#[test]
fn rights_in_the_vhost_hold_over_http_too() {
    let server = Server::start();
    server.add_user("m", &["management"]);
    let narrow = json!({"configure": "^m-", "write": "^m-", "read": "^m-"});
    assert_eq!(server.put("/api/permissions/%2F/m", narrow), 204);
    let as_m = |method: &str, path: &str, body| {
        server.ask_as(Some(("m", "secret")), method, path, Some(body))
    };
    assert_eq!(as_m("PUT", "/api/queues/%2F/m-q", json!({})).status, 201);
    let refused = as_m("PUT", "/api/queues/%2F/x", json!({}));
    assert_eq!(refused.status, 401);
    assert_eq!(
        refused.reason(),
        "configure access to queue 'x' in vhost '/' refused for user 'm'"
    );
    let dead = json!({"arguments": {"x-dead-letter-exchange": "amq.fanout"}});
    assert_eq!(as_m("PUT", "/api/queues/%2F/m-dead", dead).status, 401);
    assert_eq!(
        as_m("POST", "/api/bindings/%2F/e/amq.topic/q/m-q", json!({})).status,
        401
    );
    assert_eq!(
        as_m("DELETE", "/api/exchanges/%2F/amq.topic", json!({})).status,
        401
    );
}

/// Each path of the table, asked by nobody, by somebody with a wrong password, and by users of every tag: who lacks the tag
/// is refused before anything is looked at, and who has it is not.
#[test]
fn every_path_is_closed_to_who_may_not() {
    let server = Server::start();
    let users: [(&str, &[&str]); 5] = [
        ("none", &[]),
        ("management", &["management"]),
        ("policymaker", &["policymaker"]),
        ("monitoring", &["monitoring"]),
        ("administrator", &["administrator"]),
    ];
    for (name, tags) in users {
        server.add_user(name, tags);
    }
    for (method, path, needs, _) in crate::routes::ROUTES {
        let elements = path.split('/').map(|element| match element {
            "{vhost}" => "%2F",
            "{node}" => "c-9",
            "{port}" => "1",
            parameter if parameter.starts_with('{') => "absent",
            fixed => fixed,
        });
        let path = format!("/api/{}", elements.collect::<Vec<_>>().join("/"));
        for who in [
            None,
            Some(("administrator", "wrong")),
            Some(("absent", "x")),
        ] {
            // Not to be slowed down for guessing.
            let logged_in = server.ask_as(
                Some(("administrator", "secret")),
                "GET",
                "/api/whoami",
                None,
            );
            assert_eq!(logged_in.status, 200);
            if who == Some(("absent", "x")) && path != "/api/overview" {
                continue;
            }
            assert_eq!(
                server.ask_as(who, method, &path, None).status,
                401,
                "{method} {path}"
            );
        }
        use crate::routes::RequiredTag::*;
        let may: &[&str] = match needs {
            Login => &[
                "none",
                "management",
                "policymaker",
                "monitoring",
                "administrator",
            ],
            Management => &["management", "policymaker", "monitoring", "administrator"],
            Policymaker => &["policymaker", "administrator"],
            Monitor => &["monitoring", "administrator"],
            Administrator => &["administrator"],
        };
        for (name, _) in users {
            let got = server.ask_as(Some((name, "secret")), method, &path, None);
            let words = match needs {
                Policymaker if name != "none" => "User not authorised to access object",
                _ => "Not ",
            };
            let refused = got.status == 401 && got.reason().starts_with(words);
            if may.contains(&name) {
                assert!(!refused, "{method} {path} by {name}: {got:?}");
                // In the table, and nobody takes it.
                assert_ne!(got.status, 501, "{method} {path}");
            } else {
                assert!(refused, "{method} {path} by {name}: {got:?}");
            }
        }
    }
}

/// The document says what the table says, and what it says is there: none of its operations ends in "no such path".
#[test]
fn the_openapi_document_has_every_path() {
    let server = Server::start();
    let document = server.get("/api/openapi.json");
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    let mut operations = 0;
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            operations += 1;
            let route = (method.to_uppercase(), path.strip_prefix("/api/").unwrap());
            let table = crate::routes::ROUTES.iter();
            assert!(
                table
                    .clone()
                    .any(|(m, p, ..)| (*m, *p) == (route.0.as_str(), route.1))
            );
            let named = path.matches('{').count();
            assert_eq!(operation["parameters"].as_array().unwrap().len(), named);
        }
    }
    assert_eq!(operations, crate::routes::ROUTES.len());
}

/// RFC 9110, 9.3.7 and 15.5.6: a browser asks before it knows who asks.
#[test]
fn a_path_tells_its_methods_to_anybody() {
    let server = Server::start();
    assert_eq!(
        server
            .ask_as(None, "OPTIONS", "/api/queues/%2F/q", None)
            .status,
        200
    );
    assert_eq!(
        server.ask_as(None, "OPTIONS", "/api/nothing", None).status,
        404
    );
}
