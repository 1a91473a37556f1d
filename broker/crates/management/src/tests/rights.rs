//! Rights in virtual hosts. What each path that names one needs there is said here: a new path without it fails.

use super::*;
use crate::routes::{ROUTES, RequiredTag};

/// Beyond the tag that opens the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum There {
    /// Rights of any kind, or the administrator's tag.
    Any,
    /// Rights of any kind, or a tag that shows every vhost.
    OrMonitors,
    /// Rights on what is named, whatever the tags.
    OnIt,
    /// Rights of any kind; administrators need none.
    AnyButAdministrators,
    /// Nothing: none but administrators get here, or it says nothing to others.
    Nothing,
}

fn there(method: &str, path: &str) -> There {
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
            | "aliveness-test/{vhost}",
        ) => There::Any,
        ("PUT" | "DELETE", "queues/{vhost}/{queue}" | "exchanges/{vhost}/{exchange}")
        | ("DELETE", "queues/{vhost}/{queue}/contents")
        | ("POST", "queues/{vhost}/{queue}/get")
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
        ) => There::OnIt,
        ("PUT" | "DELETE", "policies/{vhost}/{name}" | "parameters/{component}/{vhost}/{name}") => {
            There::AnyButAdministrators
        }
        ("GET", "vhost-limits/{vhost}") => There::OrMonitors,
        // Who has no rights sees none of the consumers.
        ("GET", "consumers/{vhost}")
        | ("PUT" | "DELETE", "operator-policies/{vhost}/{name}")
        | ("GET" | "POST" | "PUT", "definitions/{vhost}")
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
        | ("DELETE", "topic-permissions/{vhost}/{user}/{exchange}") => There::Nothing,
        other => panic!("{other:?}: say what it needs in the vhost"),
    }
}

fn of_vhosts() -> impl Iterator<Item = (&'static str, &'static str, RequiredTag)> {
    let routes = ROUTES
        .iter()
        .filter(|(_, path, ..)| path.contains("{vhost}"));
    routes.map(|(method, path, needs, _)| (*method, *path, *needs))
}

fn with_names(path: &str, vhost: &str) -> String {
    let elements = path.split('/').map(|element| match element {
        "{vhost}" => vhost,
        "{queue}" => "q",
        "{exchange}" | "{source}" => "x",
        "{destination}" if path.contains("/q/") => "q",
        "{destination}" => "y",
        "{key}" => "~",
        parameter if parameter.starts_with('{') => "absent",
        fixed => fixed,
    });
    format!("/api/{}", elements.collect::<Vec<_>>().join("/"))
}

#[test]
fn no_path_opens_a_vhost_to_who_has_no_rights_there() {
    let server = Server::start();
    assert_eq!(server.put("/api/vhosts/other", json!({})), 201);
    let tags = ["management", "policymaker", "monitoring", "administrator"];
    for tag in tags {
        server.add_user(tag, &[tag]);
    }
    for (method, path, needs) in of_vhosts() {
        let rule = there(method, path);
        // Deleted and made again, so that the next path finds it.
        let _ = server.put("/api/vhosts/other", json!({}));
        for tag in tags {
            let address = with_names(path, "other");
            let got = server.ask_as(Some((tag, "secret")), method, &address, None);
            let why = format!("{method} {path} by {tag}: {got:?}");
            let opened = match needs {
                RequiredTag::Login | RequiredTag::Management => true,
                RequiredTag::Policymaker => tag == "policymaker" || tag == "administrator",
                RequiredTag::Monitor => tag == "monitoring" || tag == "administrator",
                RequiredTag::Administrator => tag == "administrator",
            };
            let closed = match rule {
                _ if !opened => true,
                There::Any | There::AnyButAdministrators => tag != "administrator",
                There::OrMonitors => tag == "management" || tag == "policymaker",
                There::OnIt => true,
                There::Nothing => false,
            };
            assert_eq!(got.status == 401, closed, "{why}");
            if closed && opened {
                assert_eq!(
                    got.reason(),
                    "User not authorised to access virtual host",
                    "{why}"
                );
            }
        }
    }
}

/// A request that would be carried out.
fn body(method: &str, path: &str) -> Json {
    match (method, path) {
        ("PUT", "exchanges/{vhost}/{exchange}") => json!({"type": "direct"}),
        ("PUT", "queues/{vhost}/{queue}") => json!({"arguments": {"x-queue-type": "quorum"}}),
        ("POST", "queues/{vhost}/{queue}/get") => {
            json!({"count": 1, "ackmode": "ack_requeue_false", "encoding": "auto"})
        }
        ("POST", "exchanges/{vhost}/{exchange}/publish") => {
            json!({"properties": {}, "routing_key": "k", "payload": "x", "payload_encoding": "string"})
        }
        _ => json!({}),
    }
}

#[test]
fn what_needs_a_right_on_a_thing_is_refused_without_it_and_done_with_it() {
    for granted in [false, true] {
        let server = Server::start();
        server.quorum("q");
        for exchange in ["x", "y"] {
            let path = format!("/api/exchanges/%2F/{exchange}");
            assert_eq!(server.put(&path, json!({"type": "direct"})), 201);
        }
        server.add_user("m", &["administrator"]);
        let right = if granted { ".*" } else { "^nothing$" };
        let rights = json!({"configure": right, "write": right, "read": right});
        assert_eq!(server.put("/api/permissions/%2F/m", rights), 204);
        let mut routes: Vec<_> = of_vhosts()
            .filter(|(method, path, _)| there(method, path) == There::OnIt)
            .collect();
        // What takes things away comes last, bindings before what they bind.
        routes
            .sort_by_key(|(method, path, _)| (*method == "DELETE", std::cmp::Reverse(path.len())));
        assert_eq!(routes.len(), 11);
        for (method, path, _) in routes {
            let address = with_names(path, "%2F");
            let asked = Some(body(method, path));
            let got = server.ask_as(Some(("m", "secret")), method, &address, asked);
            let why = format!("{method} {path}: {got:?}");
            if granted {
                assert!(got.status < 300, "{why}");
            } else {
                // RabbitMQ's one exception.
                let status = if path.ends_with("/publish") { 400 } else { 401 };
                assert_eq!(got.status, status, "{why}");
                assert!(got.reason().contains(" access to "), "{why}");
            }
        }
        let fake = server.fake.lock().unwrap();
        assert_eq!(fake.tree.queue("/", "q").is_some(), !granted);
        assert_eq!(fake.tree.exchange("/", "x").is_some(), !granted);
        assert_eq!(fake.requests.is_empty(), !granted);
    }
}
