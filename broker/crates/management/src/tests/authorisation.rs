use super::*;

#[test]
fn api_requires_login_and_probes_do_not() {
    let server = Server::start();
    for path in [
        "/api/overview",
        "/api/queues",
        "/api/nothing",
        "/api/users/guest",
    ] {
        for credentials in [
            None,
            Some(("guest", "wrong")),
            Some(("nobody", "x")),
            Some(("guest", "")),
        ] {
            let got = server.ask_as(credentials, "GET", path, None);
            assert_eq!(
                (got.status, got.reason()),
                (401, "Not_Authorized"),
                "{path} {credentials:?}"
            );
            assert_eq!(got.body["error"], "not_authorized");
            assert!(got.challenge.unwrap().starts_with("Basic realm="));
        }
    }
    for path in ["/livez", "/readyz"] {
        let got = server.ask_as(None, "GET", path, None);
        assert_eq!((got.status, got.body), (200, json!({"status": "ok"})));
    }
    // The web UI's files need no login either; other paths do not exist.
    assert_eq!(server.ask_as(None, "GET", "/", None).status, 200);
    assert_eq!(server.ask_as(None, "GET", "/other", None).status, 404);
}

#[test]
fn failed_logins_do_not_lock_out_correct_passwords() {
    let server = Server::start();
    server.add_user("other", &["administrator"]);
    // Also if the correct password was not used before.
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

/// Access by tag. The user has all permissions in `/` and none in other vhosts.
#[test]
fn tags_determine_access() {
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
        // Tags do not grant permissions in a vhost.
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
                // The user is authenticated, but not authorized.
                assert_eq!(got.body["error"], "not_authorised", "{method} {path}");
            }
        }
    }
}

#[test]
fn lists_contain_only_objects_visible_to_the_user() {
    let server = Server::start();
    assert_eq!(server.put("/api/vhosts/other", json!({})), 201);
    server.quorum("q");
    assert_eq!(server.put("/api/queues/other/hidden", json!({})), 201);
    server.add_user("m", &["management"]);
    let names = |credentials, path: &str| {
        let got = server.ask_as(Some(credentials), "GET", path, None);
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
fn vhost_permissions_apply_to_http_requests() {
    let server = Server::start();
    server.add_user("m", &["management"]);
    let limited_permissions = json!({"configure": "^m-", "write": "^m-", "read": "^m-"});
    assert_eq!(
        server.put("/api/permissions/%2F/m", limited_permissions),
        204
    );
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

/// Every route is requested without credentials, with a wrong password, and by users with each tag.
/// Users without the required tag are rejected before any object is looked up; users with it are
/// not.
#[test]
fn every_route_rejects_users_without_its_tag() {
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
    for route in crate::routes::ROUTES {
        let (method, path, needs) = (route.method, route.path, route.required_tag);
        if needs == crate::routes::RequiredTag::Public {
            let path = format!("/api/{path}");
            assert_ne!(server.ask_as(None, method, &path, None).status, 401);
            continue;
        }
        let elements = path.split('/').map(|element| match element {
            "{vhost}" => "%2F",
            "{node}" => "c-9",
            "{port}" => "1",
            parameter if parameter.starts_with('{') => "absent",
            fixed => fixed,
        });
        let path = format!("/api/{}", elements.collect::<Vec<_>>().join("/"));
        for credentials in [
            None,
            Some(("administrator", "wrong")),
            Some(("absent", "x")),
        ] {
            // A successful login resets the throttle.
            let logged_in = server.ask_as(
                Some(("administrator", "secret")),
                "GET",
                "/api/whoami",
                None,
            );
            assert_eq!(logged_in.status, 200);
            if credentials == Some(("absent", "x")) && path != "/api/overview" {
                continue;
            }
            assert_eq!(
                server.ask_as(credentials, method, &path, None).status,
                401,
                "{method} {path}"
            );
        }
        use crate::routes::RequiredTag::*;
        let allowed_tags: &[&str] = match needs {
            Public => continue,
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
            let prefix = match needs {
                Policymaker if name != "none" => "User not authorised to access object",
                _ => "Not ",
            };
            let refused = got.status == 401 && got.reason().starts_with(prefix);
            if allowed_tags.contains(&name) {
                assert!(!refused, "{method} {path} by {name}: {got:?}");
                assert_ne!(got.status, 501, "{method} {path}");
            } else {
                assert!(refused, "{method} {path} by {name}: {got:?}");
            }
        }
    }
}

/// The OpenAPI document matches the route table.
#[test]
fn openapi_document_contains_every_route() {
    let server = Server::start();
    let document = server.get("/api/openapi.json");
    assert_eq!(document["openapi"], "3.1.0");
    let paths = document["paths"].as_object().unwrap();
    let mut operations = 0;
    for (path, item) in paths {
        for (method, operation) in item.as_object().unwrap() {
            operations += 1;
            let route = (method.to_uppercase(), path.strip_prefix("/api/").unwrap());
            let mut table = crate::routes::ROUTES.iter();
            let found = table.find(|r| (r.method, r.path) == (route.0.as_str(), route.1));
            let is_public = found.unwrap().required_tag == crate::routes::RequiredTag::Public;
            assert_eq!(operation["security"] == json!([]), is_public, "{path}");
            let named = path.matches('{').count();
            assert_eq!(operation["parameters"].as_array().unwrap().len(), named);
        }
    }
    assert_eq!(operations, crate::routes::ROUTES.len());
}

/// RFC 9110, 9.3.7 and 15.5.6: browsers send OPTIONS without credentials.
#[test]
fn options_lists_methods_without_login() {
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
