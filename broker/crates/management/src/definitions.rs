//! `/api/definitions`: export and import of all declared objects as one document.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content};
use crate::error::ApiError;
use crate::json::JsonMembers;
use crate::{
    bindings, exchanges, overview, parameters, permissions, policies, queues, users, vhosts,
};
use axum::http::StatusCode;
use metadata::{
    BindingCursor, BindingRecord, Change, Destination, ExchangeCursor, ExchangeRecord, Name,
    PermissionRecord, PolicyRecord, PolicyScope, QueueCursor, QueueRecord, TopicPermissionRecord,
    Tree, UserRecord, VhostRecord,
};
use operations::Caller;
use serde_json::{Map, Value as Json, json as object};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Queues, exchanges and bindings, of which there may be many. The walks run while the tree
/// changes, so bindings without a source or destination in the export are dropped.
struct Topology {
    queues: Vec<Arc<QueueRecord>>,
    exchanges: Vec<Arc<ExchangeRecord>>,
    bindings: Vec<Arc<BindingRecord>>,
}

impl Topology {
    /// Exclusive queues belong to a connection and system exchanges to the vhost: neither is
    /// exported.
    async fn gather(api: &Api) -> Result<Topology, ApiError> {
        let bindings = api.walk(BindingCursor::default(), |_, b| Some(b.clone()));
        let mut bindings = bindings.await?;
        let exchanges = api.walk(ExchangeCursor::default(), |_, x| Some(x.clone()));
        let mut exchanges = exchanges.await?;
        let queues = api.walk(QueueCursor::default(), |_, q| {
            q.exclusive.is_none().then(|| q.clone())
        });
        let mut queues = queues.await?;
        let named: BTreeSet<(&str, &str)> = queues.iter().map(|q| (&*q.vhost, &*q.name)).collect();
        let sources: BTreeSet<(&str, &str)> =
            exchanges.iter().map(|x| (&*x.vhost, &*x.name)).collect();
        bindings.retain(|b| {
            sources.contains(&(&b.vhost, &b.source))
                && match &b.destination {
                    Destination::Queue(name) => named.contains(&(&*b.vhost, &**name)),
                    Destination::Exchange(name) => sources.contains(&(&*b.vhost, &**name)),
                }
        });
        bindings::sort(&mut bindings);
        // Others whose name begins with `amq.` come from an import: RabbitMQ has `amq.rabbitmq.log`.
        exchanges.retain(|x| !metadata::is_predeclared_exchange(&x.name));
        exchanges.sort_unstable_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
        queues.sort_unstable_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
        Ok(Topology {
            queues,
            exchanges,
            bindings,
        })
    }

    /// Drops the objects that belong to none of these virtual hosts.
    fn keep_vhosts(&mut self, vhosts: &BTreeSet<Name>) {
        self.queues.retain(|q| vhosts.contains(&q.vhost));
        self.exchanges.retain(|x| vhosts.contains(&x.vhost));
        self.bindings.retain(|b| vhosts.contains(&b.vhost));
    }
}

/// All other objects, copied from the tree in one turn.
struct ClusterRecords {
    users: Vec<Arc<UserRecord>>,
    vhosts: Vec<VhostRecord>,
    permissions: Vec<Arc<PermissionRecord>>,
    topic_permissions: Vec<Arc<TopicPermissionRecord>>,
    parameters: Vec<Json>,
    globals: Vec<Json>,
    /// Operator policies and limits are exported as parameters, as in RabbitMQ.
    policies: Vec<Arc<PolicyRecord>>,
    cluster: String,
}

impl ClusterRecords {
    fn scope(tree: &Tree, configured: &str) -> ClusterRecords {
        let policies = tree.policies(PolicyScope::User).into_iter();
        ClusterRecords {
            users: tree.users().cloned().collect(),
            vhosts: tree.vhosts().into_iter().cloned().collect(),
            permissions: tree.permissions().cloned().collect(),
            topic_permissions: tree.topic_permissions().cloned().collect(),
            parameters: parameters::all(tree),
            globals: parameters::globals(tree, configured),
            policies: policies.cloned().collect(),
            cluster: parameters::cluster_name(tree, configured),
        }
    }
}

fn document(topology: &Topology, records: ClusterRecords) -> Map<String, Json> {
    fn shown<T>(all: &[Arc<T>], show: fn(&T) -> Json) -> Vec<Json> {
        all.iter().map(|record| show(record)).collect()
    }
    let parts = [
        ("users", shown(&records.users, users::show)),
        (
            "vhosts",
            records.vhosts.iter().map(vhosts::definition).collect(),
        ),
        (
            "permissions",
            shown(&records.permissions, permissions::show),
        ),
        (
            "topic_permissions",
            shown(&records.topic_permissions, permissions::show_topic),
        ),
        ("parameters", records.parameters),
        ("global_parameters", records.globals),
        ("policies", shown(&records.policies, policies::show)),
        ("queues", shown(&topology.queues, queues::definition)),
        (
            "exchanges",
            shown(&topology.exchanges, exchanges::definition),
        ),
        ("bindings", shown(&topology.bindings, bindings::show)),
    ];
    parts
        .into_iter()
        .map(|(name, list): (&str, Vec<Json>)| (name.to_owned(), Json::Array(list)))
        .collect()
}

/// Reduces a document to one vhost and removes the vhost from its entries. Cluster-wide objects are
/// dropped.
fn keep_only_vhost(document_json: &mut Map<String, Json>, vhost: &str) {
    const PARTS: [&str; 5] = ["parameters", "policies", "queues", "exchanges", "bindings"];
    document_json.retain(|kind, _| PARTS.contains(&kind.as_str()));
    for list in document_json.values_mut().filter_map(Json::as_array_mut) {
        list.retain(|entry| entry["vhost"] == vhost);
        for entry in list.iter_mut().filter_map(Json::as_object_mut) {
            entry.remove("vhost");
        }
    }
}

pub(crate) async fn export(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: Option<&str>,
) -> ApiResult {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let configured = api.config().cluster_name.clone();
    let mut topology = Topology::gather(api).await?;
    let records = api
        .read(move |tree| ClusterRecords::scope(tree, &configured))
        .await?;
    topology.keep_vhosts(&records.vhosts.iter().map(|v| v.name.clone()).collect());
    let cluster = records.cluster.clone();
    let mut document_json = document(&topology, records);
    let format = match vhost {
        Some(vhost) => {
            keep_only_vhost(&mut document_json, vhost);
            document_json.insert("description".to_owned(), object!(""));
            document_json.insert("metadata".to_owned(), object!({}));
            document_json.insert("original_vhost_name".to_owned(), object!(vhost));
            "single_virtual_host"
        }
        None => {
            document_json.insert("original_cluster_name".to_owned(), object!(cluster));
            "cluster"
        }
    };
    let scope = match vhost {
        Some(vhost) => format!("virtual host '{vhost}'"),
        None => format!("cluster '{cluster}'"),
    };
    let explanation = format!(
        "Definitions of {scope} from Posthorn {}",
        api.config().version.version
    );
    for (key, value) in [
        ("rabbitmq_definition_format", format),
        ("explanation", explanation.as_str()),
        ("rabbit_version", overview::RABBITMQ_VERSION),
        ("rabbitmq_version", overview::RABBITMQ_VERSION),
        ("product_name", "Posthorn"),
        ("product_version", api.config().version.version),
    ] {
        document_json.insert(key.to_owned(), object!(value));
    }
    json(Json::Object(document_json))
}

/// Imports a document in dependency order, into one vhost if given. As in RabbitMQ, existing queues
/// and exchanges are left unchanged. The first error stops the import and names the entry; entries
/// before it stay imported, so the import can be repeated.
pub(crate) async fn import(
    api: &Api,
    call: &AuthenticatedRequest,
    vhost: Option<&str>,
) -> ApiResult {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let document = call
        .object()
        .map_err(|_| ApiError::bad_request("failed_to_parse_json"))?;
    const KINDS: [&str; 11] = [
        "users",
        "vhosts",
        "permissions",
        "topic_permissions",
        "global_parameters",
        "parameters",
        "policies",
        "operator_policies",
        "queues",
        "exchanges",
        "bindings",
    ];
    // Users and vhosts belong to the cluster.
    let kinds = KINDS.into_iter().skip(if vhost.is_some() { 5 } else { 0 });
    for kind in kinds {
        let list = match document.get(kind) {
            None | Some(Json::Null) => continue,
            Some(Json::Array(list)) => list,
            Some(_) => return Err(ApiError::bad_request(format!("'{kind}' should be a list"))),
        };
        for (at, entry) in list.iter().enumerate() {
            let Json::Object(entry) = entry else {
                return Err(ApiError::bad_request(format!(
                    "{kind}[{at}] is not an object"
                )));
            };
            let mut entry = entry.clone();
            if let Some(vhost) = vhost {
                entry.insert("vhost".to_owned(), object!(vhost));
            }
            let result = import_one(api, call, kind, &JsonMembers(&entry)).await;
            result.map_err(|e| {
                let reason = Json::from(format!("{kind}[{at}]: {}", e.text()));
                match e.status {
                    // An entry refers to a missing object. The requested path itself exists, so the
                    // status is not 404.
                    StatusCode::NOT_FOUND => ApiError::bad_request(reason),
                    _ => ApiError { reason, ..e },
                }
            })?;
        }
    }
    no_content()
}

async fn exists(
    api: &Api,
    vhost: &str,
    name: &str,
    lookup: fn(&Tree, &str, &str) -> bool,
) -> Result<bool, ApiError> {
    let (vhost, name) = (vhost.to_owned(), name.to_owned());
    api.read(move |tree| lookup(tree, &vhost, &name)).await
}

async fn import_one(
    api: &Api,
    call: &AuthenticatedRequest,
    kind: &str,
    entry: &JsonMembers<'_>,
) -> Result<(), ApiError> {
    let named = || entry.required_text("name");
    let vhost = || entry.required_text("vhost");
    let user = || entry.required_text("user");
    let change = match kind {
        "users" => Change::PutUser(users::imported(api, call, named()?, entry).await?),
        "vhosts" => return vhosts::declare(api, call, named()?, entry, None).await,
        "global_parameters" => {
            let value = entry.0.get("value").unwrap_or(&Json::Null);
            return parameters::set_global(api, named()?, value).await;
        }
        "parameters" => {
            let value = entry.0.get("value").and_then(Json::as_object);
            let value =
                value.ok_or_else(|| ApiError::bad_request("'value' should be an object"))?;
            let component = entry.required_text("component")?;
            return parameters::set(api, component, vhost()?, named()?, value).await;
        }
        "permissions" => Change::PutPermission(permissions::record(vhost()?, user()?, entry)?),
        "topic_permissions" => {
            Change::PutTopicPermission(permissions::topic_record(vhost()?, user()?, entry)?)
        }
        "policies" => Change::PutPolicy(policies::record(
            PolicyScope::User,
            vhost()?,
            named()?,
            entry,
        )?),
        "operator_policies" => {
            let record = policies::record(PolicyScope::Operator, vhost()?, named()?, entry)?;
            Change::PutPolicy(record)
        }
        "queues" => {
            let (vhost, name) = (vhost()?, named()?);
            if exists(api, vhost, name, |tree, v, n| tree.queue(v, n).is_some()).await? {
                return Ok(());
            }
            let mut entry = entry.0.clone();
            // RabbitMQ exports the queue type beside the arguments.
            let kind = entry.get("type").and_then(Json::as_str);
            let kind = kind.filter(|k| *k != "classic").map(|k| object!(k));
            // Files of old RabbitMQ versions have the type `undefined`.
            if let Some(arguments) = entry.get_mut("arguments").and_then(Json::as_object_mut)
                && arguments
                    .get("x-queue-type")
                    .is_some_and(|t| t == "undefined")
            {
                arguments.remove("x-queue-type");
            }
            if let Some(kind) = kind {
                let arguments = entry.entry("arguments").or_insert_with(|| object!({}));
                if arguments.is_null() || arguments.as_array().is_some_and(Vec::is_empty) {
                    *arguments = object!({});
                }
                if let Some(arguments) = arguments.as_object_mut() {
                    arguments.entry("x-queue-type").or_insert(kind);
                }
            }
            let entry = JsonMembers(&entry);
            let declaration = queues::declaration(name, &entry)?;
            let record = move |caller: Caller<'_>| caller.queue_record(declaration);
            let record = api.operate(call, vhost, record).await?;
            Change::DeclareQueue(queues::place(api, record).await?)
        }
        "exchanges" => {
            let (vhost, name) = (vhost()?, named()?);
            if exists(api, vhost, name, |tree, v, n| tree.exchange(v, n).is_some()).await? {
                return Ok(());
            }
            Change::DeclareExchange(exchanges::record(vhost, name, entry)?)
        }
        _ => Change::Bind(bindings::record(vhost()?, entry)?),
    };
    api.change(change).await.map(|_| ())
}
