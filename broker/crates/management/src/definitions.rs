//! `/api/definitions` (O2): everything that was declared, as one document, and back.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
use crate::json::Members;
use crate::{
    bindings, exchanges, overview, parameters, permissions, policies, queues, users, vhosts,
};
use axum::http::StatusCode;
use metadata::{
    BindingCursor, BindingRecord, Change, Destination, ExchangeCursor, ExchangeRecord, Name,
    PermissionRecord, PolicyRecord, PolicyScope, QueueCursor, QueueRecord, TopicPermissionRecord,
    Tree, UserRecord, VhostRecord,
};
use serde_json::{Map, Value as Json, json as object};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What there may be many of. It is gathered while the tree changes: only what belongs together is exported.
struct Topology {
    queues: Vec<Arc<QueueRecord>>,
    exchanges: Vec<Arc<ExchangeRecord>>,
    bindings: Vec<Arc<BindingRecord>>,
}

impl Topology {
    /// Exclusive queues belong to a connection and system exchanges to the vhost: neither is exported.
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
        exchanges.retain(|x| !x.name.is_empty() && !x.name.starts_with("amq."));
        exchanges.sort_unstable_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
        queues.sort_unstable_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
        Ok(Topology {
            queues,
            exchanges,
            bindings,
        })
    }

    /// Leaves out what is in none of these virtual hosts.
    fn keep_vhosts(&mut self, vhosts: &BTreeSet<Name>) {
        self.queues.retain(|q| vhosts.contains(&q.vhost));
        self.exchanges.retain(|x| vhosts.contains(&x.vhost));
        self.bindings.retain(|b| vhosts.contains(&b.vhost));
    }
}

/// Everything else, copied out of the tree in one turn.
struct Rest {
    users: Vec<Arc<UserRecord>>,
    vhosts: Vec<VhostRecord>,
    permissions: Vec<Arc<PermissionRecord>>,
    topic_permissions: Vec<Arc<TopicPermissionRecord>>,
    parameters: Vec<Json>,
    globals: Vec<Json>,
    /// Operator policies and limits are among the parameters, as RabbitMQ has them.
    policies: Vec<Arc<PolicyRecord>>,
    cluster: String,
}

impl Rest {
    fn of(tree: &Tree, configured: &str) -> Rest {
        let policies = tree.policies(PolicyScope::User).into_iter();
        Rest {
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

fn document(topology: &Topology, rest: Rest) -> Map<String, Json> {
    fn shown<T>(all: &[Arc<T>], show: fn(&T) -> Json) -> Vec<Json> {
        all.iter().map(|record| show(record)).collect()
    }
    let parts = [
        ("users", shown(&rest.users, users::show)),
        (
            "vhosts",
            rest.vhosts.iter().map(vhosts::definition).collect(),
        ),
        ("permissions", shown(&rest.permissions, permissions::show)),
        (
            "topic_permissions",
            shown(&rest.topic_permissions, permissions::show_topic),
        ),
        ("parameters", rest.parameters),
        ("global_parameters", rest.globals),
        ("policies", shown(&rest.policies, policies::show)),
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

/// Only a vhost's part of a document, with names that are its own: what belongs to the cluster is left out.
fn part(whole: &mut Map<String, Json>, vhost: &str) {
    const PARTS: [&str; 5] = ["parameters", "policies", "queues", "exchanges", "bindings"];
    whole.retain(|kind, _| PARTS.contains(&kind.as_str()));
    for list in whole.values_mut().filter_map(Json::as_array_mut) {
        list.retain(|entry| entry["vhost"] == vhost);
        for entry in list.iter_mut().filter_map(Json::as_object_mut) {
            entry.remove("vhost");
        }
    }
}

pub(crate) async fn export(api: &Api, call: &Call, vhost: Option<&str>) -> Answer {
    if let Some(vhost) = vhost {
        api.visible(call, vhost).await?;
    }
    let configured = api.config().cluster_name.clone();
    let mut topology = Topology::gather(api).await?;
    let rest = api.read(move |tree| Rest::of(tree, &configured)).await?;
    topology.keep_vhosts(&rest.vhosts.iter().map(|v| v.name.clone()).collect());
    let cluster = rest.cluster.clone();
    let mut whole = document(&topology, rest);
    let format = match vhost {
        Some(vhost) => {
            part(&mut whole, vhost);
            whole.insert("description".to_owned(), object!(""));
            whole.insert("metadata".to_owned(), object!({}));
            whole.insert("original_vhost_name".to_owned(), object!(vhost));
            "single_virtual_host"
        }
        None => {
            whole.insert("original_cluster_name".to_owned(), object!(cluster));
            "cluster"
        }
    };
    let of = match vhost {
        Some(vhost) => format!("virtual host '{vhost}'"),
        None => format!("cluster '{cluster}'"),
    };
    let explanation = format!(
        "Definitions of {of} from Posthorn {}",
        api.config().program.version
    );
    for (key, value) in [
        ("rabbitmq_definition_format", format),
        ("explanation", explanation.as_str()),
        ("rabbit_version", overview::SPEAKS_LIKE),
        ("rabbitmq_version", overview::SPEAKS_LIKE),
        ("product_name", "Posthorn"),
        ("product_version", api.config().program.version),
    ] {
        whole.insert(key.to_owned(), object!(value));
    }
    json(Json::Object(whole))
}

/// Imports what the document holds, in the order in which things need each other; into one vhost where one is named. Queues and
/// exchanges that are there stay as they are, as in RabbitMQ; the first refusal ends the import and names the entry. Entries before it remain: importing
/// again goes on.
pub(crate) async fn import(api: &Api, call: &Call, vhost: Option<&str>) -> Answer {
    if let Some(vhost) = vhost {
        api.visible(call, vhost).await?;
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
    // Users and vhosts are the cluster's.
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
            let done = import_one(api, call, kind, &Members(&entry)).await;
            done.map_err(|e| {
                let reason = Json::from(format!("{kind}[{at}]: {}", e.text()));
                match e.status {
                    // What an entry needs: the path that was asked for is there.
                    StatusCode::NOT_FOUND => ApiError::bad_request(reason),
                    _ => ApiError { reason, ..e },
                }
            })?;
        }
    }
    no_content()
}

async fn is_there(
    api: &Api,
    vhost: &str,
    name: &str,
    found: fn(&Tree, &str, &str) -> bool,
) -> Result<bool, ApiError> {
    let (vhost, name) = (vhost.to_owned(), name.to_owned());
    api.read(move |tree| found(tree, &vhost, &name)).await
}

async fn import_one(
    api: &Api,
    call: &Call,
    kind: &str,
    entry: &Members<'_>,
) -> Result<(), ApiError> {
    let named = || entry.required_text("name");
    let vhost = || entry.required_text("vhost");
    let user = || entry.required_text("user");
    let change = match kind {
        "users" => Change::PutUser(users::record(api, named()?, entry).await?),
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
            if is_there(api, vhost, name, |tree, v, n| tree.queue(v, n).is_some()).await? {
                return Ok(());
            }
            let mut entry = entry.0.clone();
            // RabbitMQ's files say the type beside the arguments.
            let kind = entry.get("type").and_then(Json::as_str);
            let kind = kind.filter(|k| *k != "classic").map(|k| object!(k));
            // And old ones that it is not known.
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
            let entry = Members(&entry);
            Change::DeclareQueue(queues::record(api, call, vhost, name, &entry).await?)
        }
        "exchanges" => {
            let (vhost, name) = (vhost()?, named()?);
            if is_there(api, vhost, name, |tree, v, n| tree.exchange(v, n).is_some()).await? {
                return Ok(());
            }
            Change::DeclareExchange(exchanges::record(vhost, name, entry)?)
        }
        _ => Change::Bind(bindings::record(vhost()?, entry)?),
    };
    api.change(change).await.map(|_| ())
}
