//! The paths of the API: which there are, who may call them, what they do. A request for anything else goes no further,
//! and `/api/openapi.json` is made from this table, so that it says neither more nor less.

use crate::access::Call;
use crate::error::ApiError;
use Needs::{Administrator, Login, Management, Monitor, Policymaker};
use serde_json::{Map, Value as Json, json};

/// The tags that open a path. Rights in vhosts are looked at beyond that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Any user.
    Login,
    /// One of the tags that open this API.
    Management,
    Policymaker,
    Monitor,
    Administrator,
}

impl Needs {
    pub(crate) fn check(self, call: &Call) -> Result<(), ApiError> {
        if self != Login {
            call.management()?;
        }
        match self {
            Login | Management => Ok(()),
            Policymaker => call.policymaker(),
            Monitor => call.monitor(),
            Administrator => call.administrator(),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Login => "any user",
            Management => "any management tag",
            Policymaker => "tag policymaker or administrator",
            Monitor => "tag monitoring or administrator",
            Administrator => "tag administrator",
        }
    }
}

/// Method, path below `/api` with its parameters in braces, who may, and what it does.
pub(crate) type Route = (&'static str, &'static str, Needs, &'static str);

#[rustfmt::skip]
pub(crate) const ROUTES: &[Route] = &[
    ("GET", "overview", Management, "The cluster at a glance: totals, rates, listeners"),
    ("GET", "version", Login, "The RabbitMQ version whose behaviour clients find here"),
    ("GET", "whoami", Login, "The user that asks"),
    ("GET", "openapi.json", Management, "This document"),
    ("GET", "cluster-name", Management, "What people call the cluster"),
    ("PUT", "cluster-name", Administrator, "Names the cluster"),
    ("GET", "extensions", Management, "Extensions of the API"),
    ("GET", "auth", Login, "How this API logs in"),
    ("GET", "auth/attempts/{node}", Monitor, "Logins at this node by protocol"),
    ("DELETE", "auth/attempts/{node}", Administrator, "Counts logins anew"),
    ("GET", "auth/hash_password/{password}", Administrator, "A password as password_hash takes it"),
    ("GET", "feature-flags", Management, "Feature flags and their state"),
    ("PUT", "feature-flags/{name}/enable", Administrator, "Turns a feature flag on"),
    ("GET", "deprecated-features", Management, "Features that will go"),
    ("GET", "deprecated-features/used", Management, "Of those, the ones in use"),
    ("GET", "nodes", Monitor, "Nodes"),
    ("GET", "nodes/{node}", Monitor, "A node"),
    ("DELETE", "nodes/{node}", Administrator, "Forgets a node that is gone"),
    ("PUT", "nodes/{node}/maintenance", Administrator, "Drains a node"),
    ("DELETE", "nodes/{node}/maintenance", Administrator, "Takes a node back"),
    ("PUT", "nodes/{node}/memory-watermark", Administrator, "Share of memory from which on publishers wait"),
    ("PUT", "nodes/{node}/disk-free-limit", Administrator, "Free disk space below which publishers wait"),
    ("GET", "nodes/{node}/log-levels", Monitor, "What the node logs, by category"),
    ("PUT", "nodes/{node}/log-levels", Administrator, "Level of one category of the log, or of all, until the node ends"),
    ("POST", "rebalance/queues", Administrator, "Moves queue leaders so that each node has its share"),
    ("GET", "definitions", Administrator, "Everything that was declared"),
    ("POST", "definitions", Administrator, "Declares what a document says"),
    ("PUT", "definitions", Administrator, "The same"),
    ("GET", "definitions/{vhost}", Administrator, "What was declared in a vhost"),
    ("POST", "definitions/{vhost}", Administrator, "Declares what a document says in a vhost"),
    ("PUT", "definitions/{vhost}", Administrator, "The same"),
    ("GET", "parameters", Policymaker, "Parameters of vhosts"),
    ("GET", "parameters/{component}", Policymaker, "Of one component"),
    ("GET", "parameters/{component}/{vhost}", Policymaker, "Of one component in a vhost"),
    ("GET", "parameters/{component}/{vhost}/{name}", Policymaker, "A parameter"),
    ("PUT", "parameters/{component}/{vhost}/{name}", Policymaker, "Sets a parameter"),
    ("DELETE", "parameters/{component}/{vhost}/{name}", Policymaker, "Clears a parameter"),
    ("GET", "global-parameters", Policymaker, "Global parameters"),
    ("GET", "global-parameters/{name}", Policymaker, "A global parameter"),
    ("PUT", "global-parameters/{name}", Administrator, "Sets a global parameter"),
    ("DELETE", "global-parameters/{name}", Administrator, "Clears a global parameter"),
    ("GET", "connections", Management, "Client connections"),
    ("GET", "connections/{connection}", Management, "A connection"),
    ("DELETE", "connections/{connection}", Management, "Closes a connection; the client is told what X-Reason says"),
    ("GET", "connections/{connection}/channels", Management, "Channels of a connection"),
    ("GET", "connections/username/{user}", Management, "Connections of a user"),
    ("DELETE", "connections/username/{user}", Management, "Closes all connections of a user"),
    ("GET", "channels", Management, "Channels"),
    ("GET", "channels/{channel}", Management, "A channel"),
    ("GET", "consumers", Management, "Consumers"),
    ("GET", "consumers/{vhost}", Management, "Consumers of a vhost"),
    ("GET", "exchanges", Management, "Exchanges"),
    ("GET", "exchanges/{vhost}", Management, "Exchanges of a vhost"),
    ("GET", "exchanges/{vhost}/{exchange}", Management, "An exchange"),
    ("PUT", "exchanges/{vhost}/{exchange}", Management, "Declares an exchange"),
    ("DELETE", "exchanges/{vhost}/{exchange}", Management, "Deletes an exchange"),
    ("GET", "exchanges/{vhost}/{exchange}/bindings/source", Management, "Bindings that start here"),
    ("GET", "exchanges/{vhost}/{exchange}/bindings/destination", Management, "Bindings that end here"),
    ("POST", "exchanges/{vhost}/{exchange}/publish", Management, "Publishes a message and waits until it is safe"),
    ("GET", "queues", Management, "Queues"),
    ("GET", "queues/detailed", Management, "Queues, as RabbitMQ's clients ask for all that is known of them"),
    ("GET", "queues/{vhost}", Management, "Queues of a vhost"),
    ("GET", "queues/{vhost}/{queue}", Management, "A queue"),
    ("PUT", "queues/{vhost}/{queue}", Management, "Declares a queue"),
    ("DELETE", "queues/{vhost}/{queue}", Management, "Deletes a queue"),
    ("DELETE", "queues/{vhost}/{queue}/contents", Management, "Drops what is ready"),
    ("GET", "queues/quorum/{vhost}/{queue}/status", Management, "A quorum queue's replicas"),
    ("POST", "queues/quorum/{vhost}/{queue}/replicas/add", Administrator, "One more member"),
    ("DELETE", "queues/quorum/{vhost}/{queue}/replicas/delete", Administrator, "One member less"),
    ("POST", "queues/quorum/{vhost}/{queue}/replicas/delete", Administrator, "The same, for clients whose DELETE has no body"),
    ("POST", "queues/quorum/{vhost}/{queue}/replicas/replace", Administrator, "One member for another"),
    ("POST", "queues/quorum/replicas/on/{node}/grow", Administrator, "Replicas of many queues on a node"),
    ("DELETE", "queues/quorum/replicas/on/{node}/shrink", Administrator, "No replicas on a node any more"),
    ("POST", "queues/quorum/replicas/on/{node}/shrink", Administrator, "The same"),
    ("POST", "queues/quorum/replicas/on/{node}/evacuate", Administrator, "The same, with others in their place"),
    ("GET", "queues/{vhost}/{queue}/bindings", Management, "Bindings that end here"),
    ("POST", "queues/{vhost}/{queue}/actions", Administrator, "Actions of RabbitMQ's mirrored queues: there are none any more"),
    ("POST", "queues/{vhost}/{queue}/get", Management, "Takes messages from the front, or looks at them"),
    ("GET", "bindings", Management, "Bindings"),
    ("GET", "bindings/{vhost}", Management, "Bindings of a vhost"),
    ("GET", "bindings/{vhost}/e/{source}/q/{destination}", Management, "Bindings between an exchange and a queue"),
    ("POST", "bindings/{vhost}/e/{source}/q/{destination}", Management, "Binds a queue"),
    ("GET", "bindings/{vhost}/e/{source}/q/{destination}/{key}", Management, "A binding"),
    ("DELETE", "bindings/{vhost}/e/{source}/q/{destination}/{key}", Management, "Unbinds a queue"),
    ("GET", "bindings/{vhost}/e/{source}/e/{destination}", Management, "Bindings between two exchanges"),
    ("POST", "bindings/{vhost}/e/{source}/e/{destination}", Management, "Binds an exchange"),
    ("GET", "bindings/{vhost}/e/{source}/e/{destination}/{key}", Management, "A binding"),
    ("DELETE", "bindings/{vhost}/e/{source}/e/{destination}/{key}", Management, "Unbinds an exchange"),
    ("GET", "policies", Management, "Policies"),
    ("GET", "policies/{vhost}", Management, "Policies of a vhost"),
    ("GET", "policies/{vhost}/{name}", Management, "A policy"),
    ("PUT", "policies/{vhost}/{name}", Policymaker, "Makes or replaces a policy"),
    ("DELETE", "policies/{vhost}/{name}", Policymaker, "Deletes a policy"),
    ("GET", "operator-policies", Management, "Operator policies"),
    ("GET", "operator-policies/{vhost}", Management, "Operator policies of a vhost"),
    ("GET", "operator-policies/{vhost}/{name}", Management, "An operator policy"),
    ("PUT", "operator-policies/{vhost}/{name}", Administrator, "Makes or replaces an operator policy"),
    ("DELETE", "operator-policies/{vhost}/{name}", Administrator, "Deletes an operator policy"),
    ("GET", "vhosts", Management, "Virtual hosts"),
    ("GET", "vhosts/{vhost}", Management, "A virtual host"),
    ("PUT", "vhosts/{vhost}", Administrator, "Makes or changes a virtual host"),
    ("DELETE", "vhosts/{vhost}", Administrator, "Deletes a virtual host and all that is in it"),
    ("POST", "vhosts/{vhost}/start/{node}", Administrator, "Starts a virtual host on a node: it is, wherever a node runs"),
    ("POST", "vhosts/{vhost}/deletion/protection", Administrator, "Protects a virtual host from deletion"),
    ("DELETE", "vhosts/{vhost}/deletion/protection", Administrator, "Ends the protection"),
    ("GET", "vhosts/{vhost}/permissions", Administrator, "Rights in a virtual host"),
    ("GET", "vhosts/{vhost}/topic-permissions", Administrator, "Topic rights in a virtual host"),
    ("GET", "vhosts/{vhost}/connections", Management, "Connections to a virtual host"),
    ("GET", "vhosts/{vhost}/channels", Management, "Channels in a virtual host"),
    ("GET", "vhost-limits", Management, "Limits of virtual hosts"),
    ("GET", "vhost-limits/{vhost}", Management, "Limits of a virtual host"),
    ("PUT", "vhost-limits/{vhost}/{limit}", Administrator, "Sets max-connections or max-queues"),
    ("DELETE", "vhost-limits/{vhost}/{limit}", Administrator, "Clears a limit"),
    ("GET", "users", Administrator, "Users"),
    ("GET", "users/without-permissions", Administrator, "Users without rights in any virtual host"),
    ("POST", "users/bulk-delete", Administrator, "Deletes several users"),
    ("GET", "users/{user}", Administrator, "A user"),
    ("PUT", "users/{user}", Administrator, "Makes or changes a user"),
    ("DELETE", "users/{user}", Administrator, "Deletes a user"),
    ("GET", "users/{user}/permissions", Administrator, "A user's rights"),
    ("GET", "users/{user}/topic-permissions", Administrator, "A user's topic rights"),
    ("GET", "user-limits", Management, "Limits of users"),
    ("GET", "user-limits/{user}", Management, "Limits of a user"),
    ("PUT", "user-limits/{user}/{limit}", Administrator, "Sets max-connections or max-channels"),
    ("DELETE", "user-limits/{user}/{limit}", Administrator, "Clears a limit"),
    ("GET", "permissions", Administrator, "Rights of all users"),
    ("GET", "permissions/{vhost}/{user}", Administrator, "A user's rights in a virtual host"),
    ("PUT", "permissions/{vhost}/{user}", Administrator, "Sets them"),
    ("DELETE", "permissions/{vhost}/{user}", Administrator, "Takes them away"),
    ("GET", "topic-permissions", Administrator, "Topic rights of all users"),
    ("GET", "topic-permissions/{vhost}/{user}", Administrator, "A user's topic rights in a virtual host"),
    ("PUT", "topic-permissions/{vhost}/{user}", Administrator, "Sets those for an exchange"),
    ("DELETE", "topic-permissions/{vhost}/{user}", Administrator, "Takes all away"),
    ("DELETE", "topic-permissions/{vhost}/{user}/{exchange}", Administrator, "Takes those for an exchange away"),
    ("GET", "aliveness-test/{vhost}", Management, "Whether the node serves"),
    ("GET", "healthchecks/node", Management, "Whether the node answers; a check that RabbitMQ keeps for old clients"),
    ("GET", "health/checks/alarms", Management, "Alarms in the cluster"),
    ("GET", "health/checks/local-alarms", Management, "Alarms of this node"),
    ("GET", "health/checks/port-listener/{port}", Management, "Whether this node listens on a port"),
    ("GET", "health/checks/protocol-listener/{protocol}", Management, "Whether this node speaks a protocol"),
    ("GET", "health/checks/virtual-hosts", Management, "Whether all virtual hosts can be used"),
    ("GET", "health/checks/node-is-quorum-critical", Monitor, "Whether queues would lose their majority without this node"),
    ("GET", "health/checks/lost-queues", Monitor, "Queues whose only copy was on a node that lost its data directory"),
    ("GET", "health/checks/ready-to-serve-clients", Management, "As /readyz"),
    ("GET", "health/checks/certificate-expiration/{within}/{unit}", Management, "Certificates that expire soon"),
];

fn is_parameter(element: &str) -> bool {
    element.starts_with('{')
}

fn fits(pattern: &str, path: &[&str]) -> bool {
    let mut pattern = pattern.split('/');
    for element in path {
        match pattern.next() {
            Some(wanted) if is_parameter(wanted) || wanted == *element => {}
            _ => return false,
        }
    }
    pattern.next().is_none()
}

/// How many elements of the path the pattern names.
fn named(pattern: &str) -> usize {
    pattern.split('/').filter(|e| !is_parameter(e)).count()
}

/// The route of a request: 404 when there is no such path, 405 when it does not take the method. Of several that fit the
/// one counts that names most of the path: `users/bulk-delete` is no user.
pub(crate) fn find(method: &str, path: &[&str]) -> Result<&'static Route, ApiError> {
    let there = || ROUTES.iter().filter(|(_, pattern, ..)| fits(pattern, path));
    let best = there().filter(|(m, ..)| *m == method);
    match best.max_by_key(|(_, pattern, ..)| named(pattern)) {
        Some(route) => Ok(route),
        None if there().next().is_some() => Err(ApiError::method()),
        None => Err(ApiError::not_found()),
    }
}

/// The methods of a path as `Allow` says them (RFC 9110, 10.2.1); None when there is no such path.
pub(crate) fn allowed(path: &[&str]) -> Option<String> {
    let mut methods: Vec<&str> = Vec::new();
    for (method, ..) in ROUTES.iter().filter(|(_, pattern, ..)| fits(pattern, path)) {
        if *method == "GET" && !methods.contains(&"HEAD") {
            methods.push("HEAD");
        }
        if !methods.contains(method) {
            methods.push(method);
        }
    }
    if methods.is_empty() {
        return None;
    }
    methods.push("OPTIONS");
    Some(methods.join(", "))
}

/// The table as an OpenAPI 3.1 document.
pub(crate) fn openapi(version: &str) -> Json {
    let mut paths = Map::new();
    for (method, path, needs, summary) in ROUTES {
        let parameters = path.split('/').filter_map(|element| {
            let name = element.strip_prefix('{')?.strip_suffix('}')?;
            Some(
                json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}),
            )
        });
        let mut operation = json!({
            "summary": summary,
            "description": format!("Needs: {}.", needs.words()),
            "parameters": parameters.collect::<Vec<_>>(),
            "responses": responses(),
        });
        if matches!(*method, "PUT" | "POST") {
            operation["requestBody"] = json!({
                "required": false,
                "content": {"application/json": {"schema": {"type": "object"}}},
            });
        }
        let at = paths
            .entry(format!("/api/{path}"))
            .or_insert_with(|| json!({}));
        at[method.to_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {"title": "Posthorn management API", "version": version},
        "security": [{"basic": []}],
        "components": {
            "securitySchemes": {"basic": {"type": "http", "scheme": "basic"}},
            "schemas": {"Error": {
                "type": "object",
                "required": ["error", "reason"],
                "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
            }},
        },
        "paths": paths,
    })
}

/// What any path may answer.
fn responses() -> Json {
    let error = |text: &str| {
        json!({"description": text, "content": {"application/json": {
            "schema": {"$ref": "#/components/schemas/Error"},
        }}})
    };
    json!({
        "200": {"description": "What was asked for", "content": {"application/json": {}}},
        "201": {"description": "Made"},
        "202": {"description": "It is wanted, and will be so", "content": {"application/json": {}}},
        "204": {"description": "Done"},
        "400": error("The request cannot be carried out as it is"),
        "401": error("Not logged in, or not permitted"),
        "404": error("There is no such thing"),
        "405": {"description": "The path does not take the method"},
        "412": error("What is there does not allow it"),
        "413": error("The body is too large"),
        "403": error("A page of another site sent the request"),
        "503": {"description": "Not now, or a check that failed", "content": {"application/json": {}}},
    })
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_most_exact_route_is_found() {
        let of = |method, path: &str| {
            let path: Vec<&str> = path.split('/').collect();
            find(method, &path).map(|(_, pattern, ..)| *pattern)
        };
        assert_eq!(of("GET", "users/bob"), Ok("users/{user}"));
        assert_eq!(of("POST", "users/bulk-delete"), Ok("users/bulk-delete"));
        assert_eq!(
            of("GET", "users/without-permissions"),
            Ok("users/without-permissions")
        );
        assert_eq!(
            of("GET", "connections/username/bob"),
            Ok("connections/username/{user}")
        );
        assert_eq!(
            of("GET", "connections/x/channels"),
            Ok("connections/{connection}/channels")
        );
        assert_eq!(of("POST", "whoami"), Err(ApiError::method()));
        assert_eq!(of("GET", "whoami/now"), Err(ApiError::not_found()));
        assert_eq!(of("GET", "nothing"), Err(ApiError::not_found()));
    }

    #[test]
    fn a_path_says_which_methods_it_takes() {
        let of = |path: &str| allowed(&path.split('/').collect::<Vec<_>>());
        assert_eq!(of("overview").as_deref(), Some("HEAD, GET, OPTIONS"));
        assert_eq!(
            of("queues/a/b").as_deref(),
            Some("HEAD, GET, PUT, DELETE, OPTIONS")
        );
        assert_eq!(of("queues/a/b/get").as_deref(), Some("POST, OPTIONS"));
        assert_eq!(of("nothing"), None);
    }

    #[test]
    fn no_route_is_there_twice() {
        for (at, (method, path, ..)) in ROUTES.iter().enumerate() {
            let again = ROUTES[..at]
                .iter()
                .any(|(m, p, ..)| (m, p) == (method, path));
            assert!(!again, "{method} {path}");
        }
    }
}
