//! Permissions in virtual hosts. The table below lists what each route with a vhost requires; a new
//! route fails the test until it is added.

use super::*;
use crate::routes::{ROUTES, RequiredTag};

/// Requirement in addition to the route's tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum VhostRequirement {
    /// Any permission in the vhost, or the administrator tag.
    Any,
    /// Any permission in the vhost, or a tag that shows every vhost.
    AnyOrMonitoring,
    /// Permissions on the named object, whatever the tags.
    OnResource,
    /// Any permission in the vhost, except for administrators, who need none.
    AnyUnlessAdministrator,
    /// Nothing: only administrators have access, or the response reveals nothing to other users.
    Nothing,
}

fn vhost_requirement(method: &str, path: &str) -> VhostRequirement {
    match (method, path) {
        (
            "GET",
            "queues/{vhost}"
            | "queues/{vhost}/{queue}"
            | "queues/{vhost}/{queue}/bindings"
            | "queues/quorum/{vhost}/{queue}/status"
            | "exchanges/{vhost}"
            | "exchanges/{vhost}/{exchange}"
            | "exchanges/{vhost}/{exchange}/bindings/source"
            | "exchanges/{vhost}/{exchange}/bindings/destination"
            | "bindings/{vhost}"
            | "bindings/{vhost}/e/{source}/q/{destination}"
            | "bindings/{vhost}/e/{source}/q/{destination}/{key}"
            | "bindings/{vhost}/e/{source}/e/{destination}"
            | "bindings/{vhost}/e/{source}/e/{destination}/{key}"
            | "parameters/{component}/{vhost}"
            | "parameters/{component}/{vhost}/{name}"
            | "policies/{vhost}"
            | "policies/{vhost}/{name}"
            | "operator-policies/{vhost}"
            | "operator-policies/{vhost}/{name}"
            | "vhosts/{vhost}"
            | "vhosts/{vhost}/connections"
            | "vhosts/{vhost}/channels"
            | "aliveness-test/{vhost}"
            | "health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}"
            | "health/checks/quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}"
            | "mqtt/connections/{vhost}"
            | "stream/connections/{vhost}"
            | "stream/connections/{vhost}/{connection}"
            | "stream/connections/{vhost}/{connection}/publishers"
            | "stream/connections/{vhost}/{connection}/consumers"
            | "stream/publishers/{vhost}"
            | "stream/publishers/{vhost}/{stream}"
            | "stream/consumers/{vhost}"
            | "stream/super-streams/{vhost}"
            | "stream/{vhost}/{stream}/tracking"
            | "stream/{vhost}/{stream}/status",
        ) => VhostRequirement::Any,
        ("PUT" | "DELETE", "queues/{vhost}/{queue}" | "exchanges/{vhost}/{exchange}")
        | ("DELETE", "queues/{vhost}/{queue}/contents")
        | ("POST", "queues/{vhost}/{queue}/get")
        | ("GET", "queues/{vhost}/{queue}/messages")
        | (
            "DELETE",
            "queues/{vhost}/{queue}/messages" | "queues/{vhost}/{queue}/messages/{position}",
        )
        | (
            "POST",
            "queues/{vhost}/{queue}/messages/move" | "queues/{vhost}/{queue}/messages/redrive",
        )
        | ("POST", "exchanges/{vhost}/{exchange}/publish")
        | (
            "POST",
            "bindings/{vhost}/e/{source}/q/{destination}"
            | "bindings/{vhost}/e/{source}/e/{destination}",
        )
        | (
            "DELETE",
            "bindings/{vhost}/e/{source}/q/{destination}/{key}"
            | "bindings/{vhost}/e/{source}/e/{destination}/{key}",
        )
        | ("PUT" | "DELETE", "stream/super-streams/{vhost}/{name}")
        | ("DELETE", "stream/{vhost}/{stream}/tracking/{reference}") => {
            VhostRequirement::OnResource
        }
        ("PUT" | "DELETE", "policies/{vhost}/{name}" | "parameters/{component}/{vhost}/{name}") => {
            VhostRequirement::AnyUnlessAdministrator
        }
        ("GET", "vhost-limits/{vhost}") => VhostRequirement::AnyOrMonitoring,
        ("DELETE", "stream/connections/{vhost}/{connection}") => VhostRequirement::Any,
        // Without permissions the list of consumers is empty.
        ("GET", "consumers/{vhost}")
        | ("PUT" | "DELETE", "operator-policies/{vhost}/{name}")
        | ("GET" | "POST" | "PUT", "definitions/{vhost}")
        | ("GET", "mqtt/retained/{vhost}/export")
        | ("POST", "mqtt/retained/{vhost}/import")
        | ("GET", "queues/{vhost}/{queue}/messages/export")
        | ("POST", "queues/{vhost}/{queue}/messages/import")
        | ("POST", "queues/{vhost}/{queue}/actions")
        | ("POST", "queues/quorum/{vhost}/{queue}/replicas/add")
        | ("POST" | "DELETE", "queues/quorum/{vhost}/{queue}/replicas/delete")
        | ("POST", "queues/quorum/{vhost}/{queue}/replicas/replace")
        | ("PUT" | "DELETE", "vhosts/{vhost}")
        | ("POST", "vhosts/{vhost}/start/{node}")
        | ("POST" | "DELETE", "vhosts/{vhost}/deletion/protection")
        | ("GET", "vhosts/{vhost}/permissions" | "vhosts/{vhost}/topic-permissions")
        | ("PUT" | "DELETE", "vhost-limits/{vhost}/{limit}")
        | ("GET" | "PUT" | "DELETE", "permissions/{vhost}/{user}")
        | ("GET" | "PUT" | "DELETE", "topic-permissions/{vhost}/{user}")
        | ("DELETE", "topic-permissions/{vhost}/{user}/{exchange}") => VhostRequirement::Nothing,
        other => panic!("{other:?}: add its requirement to this table"),
    }
}

fn routes_with_vhost() -> impl Iterator<Item = (&'static str, &'static str, RequiredTag)> {
    let routes = ROUTES.iter().filter(|route| route.path.contains("{vhost}"));
    routes.map(|route| (route.method, route.path, route.required_tag))
}

fn with_names(path: &str, vhost: &str) -> String {
    let elements = path.split('/').map(|element| match element {
        "{vhost}" => vhost,
        "{queue}" => "q",
        "{exchange}" | "{source}" => "x",
        "{destination}" if path.contains("/q/") => "q",
        "{destination}" => "y",
        "{key}" => "~",
        "{position}" => "1",
        "{stream}" => "s",
        "{reference}" => "app",
        parameter if parameter.starts_with('{') => "absent",
        fixed => fixed,
    });
    format!("/api/{}", elements.collect::<Vec<_>>().join("/"))
}

#[test]
fn routes_reject_users_without_vhost_permissions() {
    let server = Server::start();
    assert_eq!(server.put("/api/vhosts/other", json!({})), 201);
    let tags = ["management", "policymaker", "monitoring", "administrator"];
    for tag in tags {
        server.add_user(tag, &[tag]);
    }
    for (method, path, required_tag) in routes_with_vhost() {
        let rule = vhost_requirement(method, path);
        // Created again for every route, because a route may delete it.
        let _ = server.put("/api/vhosts/other", json!({}));
        for tag in tags {
            let address = with_names(path, "other");
            let got = server.ask_as(Some((tag, "secret")), method, &address, None);
            let why = format!("{method} {path} by {tag}: {got:?}");
            let allowed_by_tag = match required_tag {
                RequiredTag::Public | RequiredTag::Login | RequiredTag::Management => true,
                RequiredTag::Policymaker => tag == "policymaker" || tag == "administrator",
                RequiredTag::Monitor => tag == "monitoring" || tag == "administrator",
                RequiredTag::Administrator => tag == "administrator",
            };
            let denied_by_vhost = match rule {
                _ if !allowed_by_tag => true,
                VhostRequirement::Any | VhostRequirement::AnyUnlessAdministrator => {
                    tag != "administrator"
                }
                VhostRequirement::AnyOrMonitoring => tag == "management" || tag == "policymaker",
                VhostRequirement::OnResource => true,
                VhostRequirement::Nothing => false,
            };
            assert_eq!(got.status == 401, denied_by_vhost, "{why}");
            if denied_by_vhost && allowed_by_tag {
                assert_eq!(
                    got.reason(),
                    "User not authorised to access virtual host",
                    "{why}"
                );
            }
        }
    }
}

/// The body of a valid request.
fn body(method: &str, path: &str) -> Json {
    match (method, path) {
        ("PUT", "exchanges/{vhost}/{exchange}") => json!({"type": "direct"}),
        ("PUT", "stream/super-streams/{vhost}/{name}") => json!({"partitions": 2}),
        ("PUT", "queues/{vhost}/{queue}") => json!({"arguments": {"x-queue-type": "quorum"}}),
        ("POST", "queues/{vhost}/{queue}/get") => {
            json!({"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
        }
        ("POST", "queues/{vhost}/{queue}/messages/move") => {
            json!({"destination_queue": "q", "positions": []})
        }
        ("POST", "exchanges/{vhost}/{exchange}/publish") => {
            json!({"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"})
        }
        _ => json!({}),
    }
}

#[test]
fn operations_require_permission_on_the_named_object() {
    for is_granted in [false, true] {
        let server = Server::start();
        server.quorum("q");
        for exchange in ["x", "y"] {
            let path = format!("/api/exchanges/%2F/{exchange}");
            assert_eq!(server.put(&path, json!({"type": "direct"})), 201);
        }
        server.stream("s");
        for _ in 0..2 {
            let message = json!({
                "properties": {}, "routing_key": "q", "payload": "x", "payload_encoding": "string",
            });
            let path = "/api/exchanges/%2F/amq.default/publish";
            assert_eq!(server.ask("POST", path, Some(message)).status, 200);
        }
        server.add_user("m", &["administrator"]);
        let right = if is_granted { ".*" } else { "^nothing$" };
        let rights = json!({"configure": right, "write": right, "read": right});
        assert_eq!(server.put("/api/permissions/%2F/m", rights), 204);
        let mut routes: Vec<_> = routes_with_vhost()
            .filter(|(method, path, _)| {
                vhost_requirement(method, path) == VhostRequirement::OnResource
            })
            .collect();
        // Deletions come last, bindings before the objects they bind.
        routes
            .sort_by_key(|(method, path, _)| (*method == "DELETE", std::cmp::Reverse(path.len())));
        assert_eq!(routes.len(), 19);
        for (method, path, _) in routes {
            let mut address = with_names(path, "%2F");
            if (method, path) == ("DELETE", "queues/{vhost}/{queue}/messages") {
                address += "?message_id=x&state=delayed";
            }
            let request_body = Some(body(method, path));
            let got = server.ask_as(Some(("m", "secret")), method, &address, request_body);
            let why = format!("{method} {path}: {got:?}");
            if is_granted {
                assert!(got.status < 300, "{why}");
            } else {
                // RabbitMQ's one exception.
                let status = if path.ends_with("/publish") { 400 } else { 401 };
                assert_eq!(got.status, status, "{why}");
                assert!(got.reason().contains(" access to "), "{why}");
            }
        }
        let fake = server.fake.lock().unwrap();
        assert_eq!(fake.tree.queue("/", "q").is_some(), !is_granted);
        assert_eq!(fake.tree.exchange("/", "x").is_some(), !is_granted);
        assert_eq!(fake.requests.is_empty(), !is_granted);
    }
}
