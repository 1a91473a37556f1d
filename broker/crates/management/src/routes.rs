//! The table of API routes: method, path, required tag and summary. Requests without a route are
//! rejected, and `/api/openapi.json` is generated from this table.

use crate::access::Call;
use crate::error::ApiError;
use RequiredTag::{Administrator, Login, Management, Monitor, Policymaker};
use serde_json::{Map, Value as Json, json};

/// The user tag that a route requires. Handlers check permissions in vhosts in addition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequiredTag {
    /// Any user.
    Login,
    /// Any tag that grants access to this API.
    Management,
    Policymaker,
    Monitor,
    Administrator,
}

impl RequiredTag {
    pub(crate) fn check(self, call: &Call) -> Result<(), ApiError> {
        if self != Login {
            call.require_management()?;
        }
        match self {
            Login | Management => Ok(()),
            Policymaker => call.require_policymaker(),
            Monitor => call.require_monitoring(),
            Administrator => call.require_administrator(),
        }
    }

    fn description(self) -> &'static str {
        match self {
            Login => "any user",
            Management => "any management tag",
            Policymaker => "tag policymaker or administrator",
            Monitor => "tag monitoring or administrator",
            Administrator => "tag administrator",
        }
    }
}

/// Method, path below `/api` with parameters in braces, required tag, and summary.
pub(crate) type Route = (&'static str, &'static str, RequiredTag, &'static str);

#[rustfmt::skip]
pub(crate) const ROUTES: &[Route] = &[
    ("GET", "overview", Management, "The cluster at a glance: totals, rates, listeners"),
    ("GET", "version", Login, "The RabbitMQ version whose API is implemented"),
    ("GET", "whoami", Login, "The authenticated user"),
    ("GET", "openapi.json", Management, "This document"),
    ("GET", "cluster-name", Management, "The cluster name"),
    ("PUT", "cluster-name", Administrator, "Sets the cluster name"),
    ("GET", "extensions", Management, "Extensions of the API"),
    ("GET", "auth", Login, "Authentication methods of this API"),
    ("GET", "auth/attempts/{node}", Monitor, "Login attempts on a node by protocol"),
    ("DELETE", "auth/attempts/{node}", Administrator, "Resets the login attempt counts"),
    ("GET", "auth/hash_password/{password}", Administrator, "Hashes a password for use as password_hash"),
    ("GET", "feature-flags", Management, "Feature flags and their state"),
    ("PUT", "feature-flags/{name}/enable", Administrator, "Enables a feature flag"),
    ("GET", "deprecated-features", Management, "Deprecated features"),
    ("GET", "deprecated-features/used", Management, "Deprecated features in use"),
    ("GET", "nodes", Monitor, "Nodes"),
    ("GET", "nodes/{node}", Monitor, "A node"),
    ("DELETE", "nodes/{node}", Administrator, "Forgets a node that left the cluster"),
    ("PUT", "nodes/{node}/maintenance", Administrator, "Puts a node into maintenance mode"),
    ("DELETE", "nodes/{node}/maintenance", Administrator, "Ends the maintenance mode of a node"),
    ("PUT", "nodes/{node}/memory-watermark", Administrator, "Sets the memory high watermark of a node until it restarts"),
    ("PUT", "nodes/{node}/disk-free-limit", Administrator, "Sets the free disk space limit of a node until it restarts"),
    ("GET", "nodes/{node}/log-levels", Monitor, "Log levels of a node by category"),
    ("PUT", "nodes/{node}/log-levels", Administrator, "Sets the log level of one or all categories until the node restarts"),
    ("POST", "rebalance/queues", Administrator, "Rebalances queue leaders over the nodes"),
    ("GET", "definitions", Administrator, "Exports the definitions of the cluster"),
    ("POST", "definitions", Administrator, "Imports definitions"),
    ("PUT", "definitions", Administrator, "Imports definitions"),
    ("GET", "definitions/{vhost}", Administrator, "Exports the definitions of a vhost"),
    ("POST", "definitions/{vhost}", Administrator, "Imports definitions into a vhost"),
    ("PUT", "definitions/{vhost}", Administrator, "Imports definitions into a vhost"),
    ("GET", "parameters", Policymaker, "Parameters of vhosts"),
    ("GET", "parameters/{component}", Policymaker, "Parameters of one component"),
    ("GET", "parameters/{component}/{vhost}", Policymaker, "Parameters of one component in a vhost"),
    ("GET", "parameters/{component}/{vhost}/{name}", Policymaker, "A parameter"),
    ("PUT", "parameters/{component}/{vhost}/{name}", Policymaker, "Sets a parameter"),
    ("DELETE", "parameters/{component}/{vhost}/{name}", Policymaker, "Clears a parameter"),
    ("GET", "global-parameters", Policymaker, "Global parameters"),
    ("GET", "global-parameters/{name}", Policymaker, "A global parameter"),
    ("PUT", "global-parameters/{name}", Administrator, "Sets a global parameter"),
    ("DELETE", "global-parameters/{name}", Administrator, "Clears a global parameter"),
    ("GET", "connections", Management, "Client connections"),
    ("GET", "connections/{connection}", Management, "A connection"),
    ("DELETE", "connections/{connection}", Management, "Closes a connection with the reason in X-Reason"),
    ("GET", "connections/{connection}/channels", Management, "Channels of a connection"),
    ("GET", "connections/{connection}/sessions", Management, "Sessions and links of an AMQP 1.0 connection"),
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
    ("GET", "exchanges/{vhost}/{exchange}/bindings/source", Management, "Bindings with this exchange as source"),
    ("GET", "exchanges/{vhost}/{exchange}/bindings/destination", Management, "Bindings with this exchange as destination"),
    ("POST", "exchanges/{vhost}/{exchange}/publish", Management, "Publishes a message and waits for its confirmation"),
    ("GET", "queues", Management, "Queues"),
    ("GET", "queues/detailed", Management, "Queues with all details"),
    ("GET", "queues/{vhost}", Management, "Queues of a vhost"),
    ("GET", "queues/{vhost}/{queue}", Management, "A queue"),
    ("PUT", "queues/{vhost}/{queue}", Management, "Declares a queue"),
    ("DELETE", "queues/{vhost}/{queue}", Management, "Deletes a queue"),
    ("DELETE", "queues/{vhost}/{queue}/contents", Management, "Purges a queue"),
    ("GET", "queues/quorum/{vhost}/{queue}/status", Management, "Replicas of a quorum queue"),
    ("POST", "queues/quorum/{vhost}/{queue}/replicas/add", Administrator, "Adds a member to a quorum queue"),
    ("DELETE", "queues/quorum/{vhost}/{queue}/replicas/delete", Administrator, "Removes a member from a quorum queue"),
    ("POST", "queues/quorum/{vhost}/{queue}/replicas/delete", Administrator, "Removes a member from a quorum queue, for clients whose DELETE has no body"),
    ("POST", "queues/quorum/{vhost}/{queue}/replicas/replace", Administrator, "Replaces a member of a quorum queue"),
    ("POST", "queues/quorum/replicas/on/{node}/grow", Administrator, "Adds replicas of quorum queues on a node"),
    ("DELETE", "queues/quorum/replicas/on/{node}/shrink", Administrator, "Removes replicas of quorum queues from a node"),
    ("POST", "queues/quorum/replicas/on/{node}/shrink", Administrator, "Removes replicas of quorum queues from a node"),
    ("POST", "queues/quorum/replicas/on/{node}/evacuate", Administrator, "Moves replicas of quorum queues from a node to other nodes"),
    ("GET", "queues/{vhost}/{queue}/bindings", Management, "Bindings of a queue"),
    ("POST", "queues/{vhost}/{queue}/actions", Administrator, "Actions of RabbitMQ's mirrored queues: none is supported"),
    ("POST", "queues/{vhost}/{queue}/get", Management, "Gets messages from the head of a queue"),
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
    ("PUT", "policies/{vhost}/{name}", Policymaker, "Creates or replaces a policy"),
    ("DELETE", "policies/{vhost}/{name}", Policymaker, "Deletes a policy"),
    ("GET", "operator-policies", Management, "Operator policies"),
    ("GET", "operator-policies/{vhost}", Management, "Operator policies of a vhost"),
    ("GET", "operator-policies/{vhost}/{name}", Management, "An operator policy"),
    ("PUT", "operator-policies/{vhost}/{name}", Administrator, "Creates or replaces an operator policy"),
    ("DELETE", "operator-policies/{vhost}/{name}", Administrator, "Deletes an operator policy"),
    ("GET", "vhosts", Management, "Virtual hosts"),
    ("GET", "vhosts/{vhost}", Management, "A virtual host"),
    ("PUT", "vhosts/{vhost}", Administrator, "Creates or changes a virtual host"),
    ("DELETE", "vhosts/{vhost}", Administrator, "Deletes a virtual host and its contents"),
    ("POST", "vhosts/{vhost}/start/{node}", Administrator, "Starts a virtual host on a node; without effect, because it runs on every node"),
    ("POST", "vhosts/{vhost}/deletion/protection", Administrator, "Protects a virtual host from deletion"),
    ("DELETE", "vhosts/{vhost}/deletion/protection", Administrator, "Removes the deletion protection"),
    ("GET", "vhosts/{vhost}/permissions", Administrator, "Permissions in a virtual host"),
    ("GET", "vhosts/{vhost}/topic-permissions", Administrator, "Topic permissions in a virtual host"),
    ("GET", "vhosts/{vhost}/connections", Management, "Connections to a virtual host"),
    ("GET", "vhosts/{vhost}/channels", Management, "Channels in a virtual host"),
    ("GET", "vhost-limits", Management, "Limits of virtual hosts"),
    ("GET", "vhost-limits/{vhost}", Management, "Limits of a virtual host"),
    ("PUT", "vhost-limits/{vhost}/{limit}", Administrator, "Sets max-connections or max-queues"),
    ("DELETE", "vhost-limits/{vhost}/{limit}", Administrator, "Clears a limit"),
    ("GET", "users", Administrator, "Users"),
    ("GET", "users/without-permissions", Administrator, "Users without permissions in any virtual host"),
    ("POST", "users/bulk-delete", Administrator, "Deletes several users"),
    ("GET", "users/{user}", Administrator, "A user"),
    ("PUT", "users/{user}", Administrator, "Creates or changes a user"),
    ("DELETE", "users/{user}", Administrator, "Deletes a user"),
    ("GET", "users/{user}/permissions", Administrator, "Permissions of a user"),
    ("GET", "users/{user}/topic-permissions", Administrator, "Topic permissions of a user"),
    ("GET", "user-limits", Management, "Limits of users"),
    ("GET", "user-limits/{user}", Management, "Limits of a user"),
    ("PUT", "user-limits/{user}/{limit}", Administrator, "Sets max-connections or max-channels"),
    ("DELETE", "user-limits/{user}/{limit}", Administrator, "Clears a limit"),
    ("GET", "permissions", Administrator, "Permissions of all users"),
    ("GET", "permissions/{vhost}/{user}", Administrator, "Permissions of a user in a virtual host"),
    ("PUT", "permissions/{vhost}/{user}", Administrator, "Sets permissions of a user in a virtual host"),
    ("DELETE", "permissions/{vhost}/{user}", Administrator, "Clears permissions of a user in a virtual host"),
    ("GET", "topic-permissions", Administrator, "Topic permissions of all users"),
    ("GET", "topic-permissions/{vhost}/{user}", Administrator, "Topic permissions of a user in a virtual host"),
    ("PUT", "topic-permissions/{vhost}/{user}", Administrator, "Sets topic permissions of a user for an exchange"),
    ("DELETE", "topic-permissions/{vhost}/{user}", Administrator, "Clears all topic permissions of a user in a virtual host"),
    ("DELETE", "topic-permissions/{vhost}/{user}/{exchange}", Administrator, "Clears topic permissions of a user for an exchange"),
    ("GET", "aliveness-test/{vhost}", Management, "Checks that the node is ready to serve clients"),
    ("GET", "healthchecks/node", Management, "Checks that the node responds; kept for old clients"),
    ("GET", "health/checks/alarms", Management, "Alarms in the cluster"),
    ("GET", "health/checks/local-alarms", Management, "Alarms of this node"),
    ("GET", "health/checks/port-listener/{port}", Management, "Checks that this node listens on a port"),
    ("GET", "health/checks/protocol-listener/{protocol}", Management, "Checks that this node has a listener for a protocol"),
    ("GET", "health/checks/virtual-hosts", Management, "Checks that all virtual hosts are usable"),
    ("GET", "health/checks/node-is-quorum-critical", Monitor, "Checks that no quorum queue would lose its quorum without this node"),
    ("GET", "health/checks/lost-queues", Monitor, "Queues whose only copy was on a node that lost its data directory"),
    ("GET", "health/checks/ready-to-serve-clients", Management, "Checks that the node is ready to serve clients, as /readyz"),
    ("GET", "health/checks/certificate-expiration/{within}/{unit}", Management, "Checks for certificates that expire within a period"),
];

fn is_parameter(element: &str) -> bool {
    element.starts_with('{')
}

fn matches(pattern: &str, path: &[&str]) -> bool {
    let mut pattern = pattern.split('/');
    for element in path {
        match pattern.next() {
            Some(expected) if is_parameter(expected) || expected == *element => {}
            _ => return false,
        }
    }
    pattern.next().is_none()
}

/// The number of literal elements of a pattern.
fn literal_count(pattern: &str) -> usize {
    pattern.split('/').filter(|e| !is_parameter(e)).count()
}

/// Finds the route of a request: 404 if the path does not exist, 405 if it does not support the
/// method. Among matching routes, the one with the most literal elements wins: `users/bulk-delete`
/// is not a user.
pub(crate) fn find(method: &str, path: &[&str]) -> Result<&'static Route, ApiError> {
    let candidates = || {
        ROUTES
            .iter()
            .filter(|(_, pattern, ..)| matches(pattern, path))
    };
    let best = candidates().filter(|(m, ..)| *m == method);
    match best.max_by_key(|(_, pattern, ..)| literal_count(pattern)) {
        Some(route) => Ok(route),
        None if candidates().next().is_some() => Err(ApiError::method()),
        None => Err(ApiError::not_found()),
    }
}

/// The methods of a path for the `Allow` header (RFC 9110, 10.2.1). None if the path does not
/// exist.
pub(crate) fn allowed_methods(path: &[&str]) -> Option<String> {
    let mut methods: Vec<&str> = Vec::new();
    for (method, ..) in ROUTES
        .iter()
        .filter(|(_, pattern, ..)| matches(pattern, path))
    {
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

/// Renders the table as an OpenAPI 3.1 document.
pub(crate) fn openapi(version: &str) -> Json {
    let mut paths = Map::new();
    for (method, path, required_tag, summary) in ROUTES {
        let parameters = path.split('/').filter_map(|element| {
            let name = element.strip_prefix('{')?.strip_suffix('}')?;
            Some(
                json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}),
            )
        });
        let mut operation = json!({
            "summary": summary,
            "description": format!("Needs: {}.", required_tag.description()),
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

/// The responses that any path may return.
fn responses() -> Json {
    let error = |text: &str| {
        json!({"description": text, "content": {"application/json": {
            "schema": {"$ref": "#/components/schemas/Error"},
        }}})
    };
    json!({
        "200": {"description": "The requested object", "content": {"application/json": {}}},
        "201": {"description": "Created"},
        "202": {"description": "Accepted; the change is in progress", "content": {"application/json": {}}},
        "204": {"description": "Done"},
        "400": error("The request is invalid"),
        "401": error("Not authenticated, or not authorized"),
        "404": error("The object does not exist"),
        "405": {"description": "The path does not support the method"},
        "412": error("The state of the object does not allow the request"),
        "413": error("The body is too large"),
        "403": error("The request was sent by a page of another site"),
        "503": {"description": "Temporarily unavailable, or a failed health check", "content": {"application/json": {}}},
    })
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn most_specific_route_wins() {
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
    fn allowed_methods_of_a_path_are_listed() {
        let of = |path: &str| allowed_methods(&path.split('/').collect::<Vec<_>>());
        assert_eq!(of("overview").as_deref(), Some("HEAD, GET, OPTIONS"));
        assert_eq!(
            of("queues/a/b").as_deref(),
            Some("HEAD, GET, PUT, DELETE, OPTIONS")
        );
        assert_eq!(of("queues/a/b/get").as_deref(), Some("POST, OPTIONS"));
        assert_eq!(of("nothing"), None);
    }

    #[test]
    fn routes_are_unique() {
        for (at, (method, path, ..)) in ROUTES.iter().enumerate() {
            let is_duplicate = ROUTES[..at]
                .iter()
                .any(|(m, p, ..)| (m, p) == (method, path));
            assert!(!is_duplicate, "{method} {path}");
        }
    }
}
