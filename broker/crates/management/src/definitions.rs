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
use metadata::{Change, PolicyScope, Tree};
use serde_json::{Map, Value as Json, json as object};

/// Exclusive queues belong to a connection and system exchanges to the vhost: neither is exported.
fn document(tree: &Tree, configured: &str) -> Map<String, Json> {
    let mut queues_ = Vec::new();
    let mut exchanges_ = Vec::new();
    let mut bindings_ = Vec::new();
    for vhost in tree.vhosts() {
        let shared = tree.queues(&vhost.name).into_iter();
        queues_.extend(
            shared
                .filter(|q| q.exclusive.is_none())
                .map(|q| queues::definition(q)),
        );
        let own = tree.exchanges(&vhost.name).into_iter();
        let own = own.filter(|x| !x.name.is_empty() && !x.name.starts_with("amq."));
        exchanges_.extend(own.map(|x| exchanges::definition(x)));
        let kept = tree.bindings(&vhost.name).into_iter();
        bindings_.extend(
            kept.filter(|b| !ends_in_exclusive(tree, b))
                .map(|b| bindings::show(b)),
        );
    }
    // Operator policies and limits are among the parameters, as RabbitMQ has them.
    let policies_ = || -> Vec<Json> {
        let all = tree.policies(PolicyScope::User).into_iter();
        all.map(|p| policies::show(p)).collect()
    };
    let parts = [
        ("users", tree.users().map(|u| users::show(u)).collect()),
        (
            "vhosts",
            tree.vhosts().into_iter().map(vhosts::definition).collect(),
        ),
        (
            "permissions",
            tree.permissions().map(|p| permissions::show(p)).collect(),
        ),
        (
            "topic_permissions",
            tree.topic_permissions()
                .map(|p| permissions::show_topic(p))
                .collect(),
        ),
        ("parameters", parameters::all(tree)),
        ("global_parameters", parameters::globals(tree, configured)),
        ("policies", policies_()),
        ("queues", queues_),
        ("exchanges", exchanges_),
        ("bindings", bindings_),
    ];
    parts
        .into_iter()
        .map(|(name, list): (&str, Vec<Json>)| (name.to_owned(), Json::Array(list)))
        .collect()
}

fn ends_in_exclusive(tree: &Tree, binding: &metadata::BindingRecord) -> bool {
    match &binding.destination {
        metadata::Destination::Exchange(_) => false,
        metadata::Destination::Queue(name) => tree
            .queue(&binding.vhost, name)
            .is_some_and(|q| q.exclusive.is_some()),
    }
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
    let (mut whole, cluster) = api
        .read(move |tree| {
            let name = parameters::cluster_name(tree, &configured);
            (document(tree, &configured), name)
        })
        .await?;
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
