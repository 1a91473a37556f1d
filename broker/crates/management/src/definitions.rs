//! `/api/definitions` (O2): everything that was declared, as one document, and back.

use crate::access::Call;
use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
use crate::json::Members;
use crate::{bindings, exchanges, permissions, policies, queues, users, vhosts};
use metadata::{Change, PolicyScope, Tree};
use serde_json::{Map, Value as Json, json as object};

/// Exclusive queues belong to a connection and system exchanges to the vhost: neither is exported.
fn document(tree: &Tree) -> Map<String, Json> {
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
    let policies_ = |scope| -> Vec<Json> {
        let all = tree.policies(scope).into_iter();
        all.map(|p| policies::show(p)).collect()
    };
    let parts = [
        ("users", tree.users().map(|u| users::show(u)).collect()),
        (
            "vhosts",
            tree.vhosts().into_iter().map(vhosts::show).collect(),
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
        ("policies", policies_(PolicyScope::User)),
        ("operator_policies", policies_(PolicyScope::Operator)),
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

pub(crate) async fn export(api: &Api, call: &Call) -> Answer {
    call.administrator()?;
    let mut whole = api.read(document).await?;
    whole.insert("product_name".to_owned(), object!("Posthorn"));
    whole.insert("product_version".to_owned(), object!(api.config().version));
    json(Json::Object(whole))
}

/// Imports what the document holds, in the order in which things need each other. What is there and the same stays; the
/// first refusal ends the import and names the entry. Entries before it remain: importing again goes on.
pub(crate) async fn import(api: &Api, call: &Call) -> Answer {
    call.administrator()?;
    let document = call.object()?;
    const KINDS: [&str; 9] = [
        "users",
        "vhosts",
        "permissions",
        "topic_permissions",
        "policies",
        "operator_policies",
        "queues",
        "exchanges",
        "bindings",
    ];
    for kind in KINDS {
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
            let done = import_one(api, call, kind, &Members(entry)).await;
            done.map_err(|e| ApiError {
                reason: format!("{kind}[{at}]: {}", e.reason),
                ..e
            })?;
        }
    }
    no_content()
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
        "vhosts" => vhosts::change(named()?, entry, None)?,
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
            Change::DeclareQueue(queues::record(api, call, vhost()?, named()?, entry).await?)
        }
        "exchanges" => Change::DeclareExchange(exchanges::record(vhost()?, named()?, entry)?),
        _ => Change::Bind(bindings::record(vhost()?, entry)?),
    };
    api.change(change).await.map(|_| ())
}
