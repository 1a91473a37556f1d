//! Audit records of HTTP requests. Every route that is not a read has an operation in [`OPERATIONS`].

use crate::access::AuthenticatedRequest;
use crate::dispatch::ApiResult;
use crate::error::ApiError;
use crate::login::HTTP;
use crate::routes::Route;
use audit::{AuditRecord, AuditSink, Client, Operation, Outcome};
use axum::http::StatusCode;
use metadata::Name;
use serde_json::{Map, Value as Json};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The operations of routes: method, path below `/api`, operation.
const OPERATIONS: &[(&str, &str, Operation)] = {
    use Operation as O;
    &[
        ("PUT", "cluster-name", O::GlobalParameterPut),
        ("DELETE", "auth/attempts/{node}", O::LoginCountsReset),
        ("PUT", "feature-flags/{name}/enable", O::FeatureFlagEnable),
        ("DELETE", "nodes/{node}", O::NodeForget),
        ("PUT", "nodes/{node}/maintenance", O::NodeMaintenance),
        ("DELETE", "nodes/{node}/maintenance", O::NodeMaintenance),
        ("PUT", "nodes/{node}/memory-watermark", O::NodeConfigure),
        ("PUT", "nodes/{node}/disk-free-limit", O::NodeConfigure),
        ("PUT", "nodes/{node}/log-levels", O::NodeConfigure),
        (
            "POST",
            "nodes/{node}/configuration/reload",
            O::NodeConfigure,
        ),
        ("POST", "rebalance/queues", O::QueueRebalance),
        ("POST", "recovery/majority", O::MajorityRecover),
        ("GET", "definitions", O::DefinitionsExport),
        ("POST", "definitions", O::DefinitionsImport),
        ("PUT", "definitions", O::DefinitionsImport),
        ("GET", "definitions/{vhost}", O::DefinitionsExport),
        ("POST", "definitions/{vhost}", O::DefinitionsImport),
        ("PUT", "definitions/{vhost}", O::DefinitionsImport),
        (
            "PUT",
            "parameters/{component}/{vhost}/{name}",
            O::ParameterPut,
        ),
        (
            "DELETE",
            "parameters/{component}/{vhost}/{name}",
            O::ParameterDelete,
        ),
        ("PUT", "global-parameters/{name}", O::GlobalParameterPut),
        (
            "DELETE",
            "global-parameters/{name}",
            O::GlobalParameterDelete,
        ),
        ("DELETE", "connections/{connection}", O::ConnectionClose),
        ("DELETE", "connections/username/{user}", O::ConnectionClose),
        (
            "DELETE",
            "stream/connections/{vhost}/{connection}",
            O::ConnectionClose,
        ),
        (
            "PUT",
            "stream/super-streams/{vhost}/{name}",
            O::SuperStreamCreate,
        ),
        (
            "DELETE",
            "stream/super-streams/{vhost}/{name}",
            O::SuperStreamDelete,
        ),
        (
            "DELETE",
            "stream/{vhost}/{stream}/tracking/{reference}",
            O::StreamResetOffset,
        ),
        ("PUT", "exchanges/{vhost}/{exchange}", O::ExchangeDeclare),
        ("DELETE", "exchanges/{vhost}/{exchange}", O::ExchangeDelete),
        (
            "POST",
            "exchanges/{vhost}/{exchange}/publish",
            O::MessagePublish,
        ),
        ("PUT", "queues/{vhost}/{queue}", O::QueueDeclare),
        ("DELETE", "queues/{vhost}/{queue}", O::QueueDelete),
        ("DELETE", "queues/{vhost}/{queue}/contents", O::QueuePurge),
        (
            "POST",
            "queues/quorum/{vhost}/{queue}/replicas/add",
            O::QueueChangeMembers,
        ),
        (
            "DELETE",
            "queues/quorum/{vhost}/{queue}/replicas/delete",
            O::QueueChangeMembers,
        ),
        (
            "POST",
            "queues/quorum/{vhost}/{queue}/replicas/delete",
            O::QueueChangeMembers,
        ),
        (
            "POST",
            "queues/quorum/{vhost}/{queue}/replicas/replace",
            O::QueueChangeMembers,
        ),
        (
            "POST",
            "queues/quorum/replicas/on/{node}/grow",
            O::QueueChangeMembers,
        ),
        (
            "DELETE",
            "queues/quorum/replicas/on/{node}/shrink",
            O::QueueChangeMembers,
        ),
        (
            "POST",
            "queues/quorum/replicas/on/{node}/shrink",
            O::QueueChangeMembers,
        ),
        (
            "POST",
            "queues/quorum/replicas/on/{node}/evacuate",
            O::QueueChangeMembers,
        ),
        ("POST", "queues/{vhost}/{queue}/actions", O::QueueAction),
        ("POST", "queues/{vhost}/{queue}/get", O::MessageGet),
        (
            "DELETE",
            "queues/{vhost}/{queue}/messages",
            O::MessageDelete,
        ),
        (
            "DELETE",
            "queues/{vhost}/{queue}/messages/{position}",
            O::MessageDelete,
        ),
        (
            "GET",
            "queues/{vhost}/{queue}/messages/export",
            O::MessageExport,
        ),
        (
            "POST",
            "queues/{vhost}/{queue}/messages/import",
            O::MessageImport,
        ),
        ("GET", "mqtt/retained/{vhost}/export", O::MessageExport),
        ("POST", "mqtt/retained/{vhost}/import", O::MessageImport),
        (
            "POST",
            "queues/{vhost}/{queue}/messages/move",
            O::MessageMove,
        ),
        (
            "POST",
            "queues/{vhost}/{queue}/messages/redrive",
            O::MessageRedrive,
        ),
        (
            "POST",
            "bindings/{vhost}/e/{source}/q/{destination}",
            O::BindingCreate,
        ),
        (
            "DELETE",
            "bindings/{vhost}/e/{source}/q/{destination}/{key}",
            O::BindingDelete,
        ),
        (
            "POST",
            "bindings/{vhost}/e/{source}/e/{destination}",
            O::BindingCreate,
        ),
        (
            "DELETE",
            "bindings/{vhost}/e/{source}/e/{destination}/{key}",
            O::BindingDelete,
        ),
        ("PUT", "policies/{vhost}/{name}", O::PolicyPut),
        ("DELETE", "policies/{vhost}/{name}", O::PolicyDelete),
        (
            "PUT",
            "operator-policies/{vhost}/{name}",
            O::OperatorPolicyPut,
        ),
        (
            "DELETE",
            "operator-policies/{vhost}/{name}",
            O::OperatorPolicyDelete,
        ),
        ("PUT", "vhosts/{vhost}", O::VhostPut),
        ("DELETE", "vhosts/{vhost}", O::VhostDelete),
        ("POST", "vhosts/{vhost}/start/{node}", O::VhostStart),
        (
            "POST",
            "vhosts/{vhost}/deletion/protection",
            O::VhostProtect,
        ),
        (
            "DELETE",
            "vhosts/{vhost}/deletion/protection",
            O::VhostUnprotect,
        ),
        ("PUT", "vhost-limits/{vhost}/{limit}", O::VhostLimitSet),
        ("DELETE", "vhost-limits/{vhost}/{limit}", O::VhostLimitClear),
        ("POST", "users/bulk-delete", O::UserDelete),
        ("PUT", "users/{user}", O::UserPut),
        ("DELETE", "users/{user}", O::UserDelete),
        ("PUT", "user-limits/{user}/{limit}", O::UserLimitSet),
        ("DELETE", "user-limits/{user}/{limit}", O::UserLimitClear),
        ("PUT", "permissions/{vhost}/{user}", O::PermissionPut),
        ("DELETE", "permissions/{vhost}/{user}", O::PermissionDelete),
        (
            "PUT",
            "topic-permissions/{vhost}/{user}",
            O::TopicPermissionPut,
        ),
        (
            "DELETE",
            "topic-permissions/{vhost}/{user}",
            O::TopicPermissionDelete,
        ),
        (
            "DELETE",
            "topic-permissions/{vhost}/{user}/{exchange}",
            O::TopicPermissionDelete,
        ),
    ]
};

/// Members of a request's body that are recorded. Values of parameters are not, because they may contain passwords.
const BODY_MEMBERS: &[&str] = &[
    "apply-to",
    "auto_delete",
    "configure",
    "destination",
    "durable",
    "exchange",
    "lost",
    "node",
    "pattern",
    "priority",
    "read",
    "routing_key",
    "tags",
    "tracing",
    "type",
    "users",
    "write",
];

/// The operation of a route. None: it is a read.
fn operation(method: &str, path: &str) -> Option<Operation> {
    let mut all = OPERATIONS.iter();
    let found = all.find(|(m, p, _)| *m == method && *p == path);
    let other = (method != "GET").then_some(Operation::HttpRequest);
    found.map(|(_, _, operation)| *operation).or(other)
}

/// Properties of a connection that records need.
#[derive(Clone, Debug, Default)]
pub(crate) struct AuditedConnection(Arc<AuditedState>);

#[derive(Debug, Default)]
struct AuditedState {
    is_encrypted: bool,
    /// The user of the last request: each request has credentials, but only the first one of a user is a login.
    user: Mutex<Option<Name>>,
}

impl AuditedConnection {
    pub(crate) fn new(is_encrypted: bool) -> AuditedConnection {
        AuditedConnection(Arc::new(AuditedState {
            is_encrypted,
            user: Mutex::default(),
        }))
    }

    /// Returns true if the previous request on the connection had another user, or there was none.
    fn is_login(&self, user: &Name) -> bool {
        let last = self.0.user.lock();
        let mut last = last.unwrap_or_else(PoisonError::into_inner);
        let is_same = last.as_ref() == Some(user);
        *last = Some(user.clone());
        !is_same
    }
}

/// The audit log as one request sees it.
pub(crate) struct RequestAudit<'a> {
    sink: &'a AuditSink,
    peer: SocketAddr,
    connection: AuditedConnection,
}

impl<'a> RequestAudit<'a> {
    /// None: there is no audit log.
    pub(crate) fn new(
        sink: Option<&'a AuditSink>,
        peer: SocketAddr,
        connection: Option<&AuditedConnection>,
    ) -> Option<RequestAudit<'a>> {
        Some(RequestAudit {
            sink: sink?,
            peer,
            connection: connection.cloned().unwrap_or_default(),
        })
    }

    fn begin(&self, user: &str, operation: Operation, name: &str) -> PendingRecord<'a> {
        PendingRecord {
            sink: self.sink,
            record: Some(AuditRecord {
                client: Client {
                    user: user.to_owned(),
                    protocol: HTTP,
                    peer: Some(self.peer),
                    connection: String::new(),
                    tls: self.connection.0.is_encrypted,
                },
                operation,
                vhost: None,
                name: name.to_owned(),
                details: Vec::new(),
                outcome: Outcome::Ok,
            }),
        }
    }

    /// Begins the record of a login.
    pub(crate) fn begin_login(&self, user: &str, mechanism: &str) -> PendingRecord<'a> {
        let mut pending = self.begin(user, Operation::Login, user);
        pending.add("mechanism", mechanism);
        pending
    }

    /// Ends the record of a login. A request without credentials is none.
    pub(crate) fn end_login(
        &self,
        mut pending: PendingRecord<'_>,
        has_credentials: bool,
        result: Result<&Name, &ApiError>,
    ) {
        match result {
            Ok(user) if self.connection.is_login(user) => {
                // A token names its user.
                if let Some(record) = &mut pending.record {
                    record.client.user = user.to_string();
                    record.name = user.to_string();
                }
                pending.end(Outcome::Ok);
            }
            Err(error) if has_credentials && error.status == StatusCode::UNAUTHORIZED => {
                pending.end(Outcome::Refused(error.text()));
            }
            Ok(_) | Err(_) => pending.discard(),
        }
    }

    /// Begins the record of a request. None: it is a read.
    pub(crate) fn begin_request(
        &self,
        route: &Route,
        call: &AuthenticatedRequest,
        path: &[&str],
    ) -> Option<PendingRecord<'a>> {
        let operation = operation(route.method, route.path)?;
        let mut pending = self.begin(&call.user.name, operation, "");
        let object = RequestedObject::new(route.path, path);
        if let Some(record) = &mut pending.record {
            record.vhost = object.vhost.map(Name::from);
            record.name = object.name.unwrap_or_default().to_owned();
        }
        for (key, value) in object.details {
            pending.add(key, value);
        }
        pending.add("request", &format!("{} {}", route.method, route.path));
        let is_definitions = operation == Operation::DefinitionsImport;
        match serde_json::from_slice::<Map<String, Json>>(&call.body) {
            Ok(body) if !is_definitions => {
                for member in BODY_MEMBERS {
                    if let Some(value) = body.get(*member) {
                        pending.add(member, &text_of(value));
                    }
                }
            }
            Ok(_) | Err(_) => {}
        }
        if is_definitions {
            pending.add("bytes", &call.body.len().to_string());
        }
        Some(pending)
    }

    /// Ends the record of a request. A read is recorded if the user lacks a permission.
    pub(crate) fn end_request(
        &self,
        pending: Option<PendingRecord<'a>>,
        (route, user, path): (&Route, &str, &[&str]),
        result: &ApiResult,
    ) {
        let outcome = outcome(result);
        let status = match result {
            Ok(response) => response.status(),
            Err(error) => error.status,
        };
        match (pending, &outcome) {
            (Some(mut pending), _) => {
                pending.add("status", status.as_str());
                pending.end(outcome);
            }
            (None, Outcome::Refused(_)) => {
                let path = format!("/api/{}", path.join("/"));
                let mut pending = self.begin(user, Operation::PermissionCheck, &path);
                pending.add("kind", "path");
                pending.add("permission", "read");
                pending.add("request", &format!("{} {}", route.method, route.path));
                pending.end(outcome);
            }
            (None, _) => {}
        }
    }
}

/// A record without its outcome. A request that is dropped, because it took too long or the client is gone, may have
/// been carried out nevertheless.
pub(crate) struct PendingRecord<'a> {
    sink: &'a AuditSink,
    record: Option<AuditRecord>,
}

impl PendingRecord<'_> {
    fn add(&mut self, key: &'static str, value: &str) {
        if let Some(record) = &mut self.record {
            record.details.push((key, value.to_owned()));
        }
    }

    fn end(mut self, outcome: Outcome) {
        if let Some(record) = &mut self.record {
            record.outcome = outcome;
        }
        self.flush();
    }

    fn discard(mut self) {
        self.record = None;
    }

    fn flush(&mut self) {
        if let Some(record) = self.record.take() {
            self.sink.record(record);
        }
    }
}

impl Drop for PendingRecord<'_> {
    fn drop(&mut self) {
        if let Some(record) = &mut self.record {
            let text = "no result: the request took too long, or the client disconnected";
            record.outcome = Outcome::Failed(text.to_owned());
        }
        self.flush();
    }
}

/// The object that a path names.
struct RequestedObject<'p> {
    vhost: Option<&'p str>,
    name: Option<&'p str>,
    details: Vec<(&'static str, &'p str)>,
}

impl<'p> RequestedObject<'p> {
    /// The parameter `name` is the object's name, otherwise the first one that is not the vhost, otherwise the vhost.
    fn new(pattern: &'static str, path: &[&'p str]) -> RequestedObject<'p> {
        let elements = pattern.split('/').zip(path.iter().copied());
        let parameters = elements.filter_map(|(element, value)| {
            let name = element.strip_prefix('{')?.strip_suffix('}')?;
            Some((name, value))
        });
        let mut details: Vec<(&'static str, &str)> = parameters.collect();
        let mut take = |wanted: &dyn Fn(&str) -> bool| {
            let at = details.iter().position(|(key, _)| wanted(key))?;
            Some(details.remove(at).1)
        };
        let vhost = take(&|key| key == "vhost");
        let name = take(&|key| key == "name").or_else(|| take(&|_| true));
        RequestedObject {
            vhost,
            name: name.or(vhost),
            details,
        }
    }
}

fn text_of(value: &Json) -> String {
    match value {
        Json::String(text) => text.clone(),
        Json::Array(all) => all.iter().map(text_of).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

fn outcome(result: &ApiResult) -> Outcome {
    match result {
        Ok(response) if response.status().is_client_error() => {
            Outcome::Failed(response.status().to_string())
        }
        Ok(_) => Outcome::Ok,
        Err(error) => match error.status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Outcome::Refused(error.text()),
            _ => Outcome::Failed(error.text()),
        },
    }
}

#[cfg(test)]
mod unit {
    use super::*;
    use crate::routes::{ROUTES, RequiredTag};

    /// Routes that are not a read and have no operation.
    fn unclassified<'r>(routes: impl Iterator<Item = (&'r str, &'r str)>) -> Vec<String> {
        let classified = |(method, path): &(&str, &str)| {
            *method == "GET" || OPERATIONS.iter().any(|(m, p, _)| m == method && p == path)
        };
        let missing = routes.filter(|route| !classified(route));
        missing.map(|(m, p)| format!("{m} {p}")).collect()
    }

    #[test]
    fn every_route_that_is_not_a_read_has_one_operation() {
        // Requests without credentials change nothing.
        let audited = || {
            ROUTES
                .iter()
                .filter(|r| r.required_tag != RequiredTag::Public)
        };
        let routes = || audited().map(|route| (route.method, route.path));
        let missing = unclassified(routes());
        assert!(missing.is_empty(), "add to OPERATIONS: {missing:?}");
        for (at, (method, path, _)) in OPERATIONS.iter().enumerate() {
            assert!(
                routes().any(|r| r == (*method, *path)),
                "no route: {method} {path}"
            );
            let is_same = |(m, p, _): &&(&str, &str, Operation)| (m, p) == (method, path);
            assert_eq!(
                OPERATIONS[at..].iter().filter(is_same).count(),
                1,
                "{method} {path}"
            );
        }
    }

    #[test]
    fn new_route_without_operation_is_found() {
        let new = [
            ("GET", "new"),
            ("PUT", "new/{name}"),
            ("PUT", "users/{user}"),
        ];
        assert_eq!(unclassified(new.into_iter()), ["PUT new/{name}"]);
        assert_eq!(operation("PUT", "new/{name}"), Some(Operation::HttpRequest));
        assert_eq!(operation("GET", "new"), None);
    }

    #[test]
    fn object_comes_from_the_parameters_of_the_path() {
        let of = |pattern, path: &'static str| {
            let path: Vec<&str> = path.split('/').collect();
            let object = RequestedObject::new(pattern, &path);
            (object.vhost, object.name, object.details)
        };
        let limit = of("user-limits/{user}/{limit}", "user-limits/u/max");
        assert_eq!(limit, (None, Some("u"), vec![("limit", "max")]));
        let parameter = of("parameters/{component}/{vhost}/{name}", "parameters/c/v/n");
        assert_eq!(parameter, (Some("v"), Some("n"), vec![("component", "c")]));
        assert_eq!(
            of("vhosts/{vhost}", "vhosts/v"),
            (Some("v"), Some("v"), vec![])
        );
        assert_eq!(of("definitions", "definitions"), (None, None, vec![]));
    }
}
