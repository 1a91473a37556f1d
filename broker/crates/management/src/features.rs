//! `/api/feature-flags` and `/api/deprecated-features` (O8).

use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
use metadata::Change;
use metadata::features::KNOWN;
use serde_json::{Value as Json, json as object};

pub(crate) async fn list(api: &Api) -> Answer {
    let shown = api
        .read(|tree| {
            let all = KNOWN.iter().map(|f| {
                object!({
                    "name": f.name,
                    "desc": f.description,
                    "doc_url": "",
                    "state": if tree.feature_enabled(f.name) { "enabled" } else { "disabled" },
                    "stability": "stable",
                    "provided_by": "posthorn",
                })
            });
            all.collect::<Vec<Json>>()
        })
        .await?;
    json(Json::Array(shown))
}

/// `all` turns on every one.
pub(crate) async fn enable(api: &Api, name: &str) -> Answer {
    let wanted = KNOWN.iter().filter(|f| name == "all" || f.name == name);
    let wanted: Vec<_> = wanted.collect();
    if wanted.is_empty() {
        return Err(ApiError::bad_request(format!(
            "feature flag '{name}' is not known to this node"
        )));
    }
    for feature in wanted {
        let name = feature.name.into();
        api.change(Change::EnableFeature { name }).await?;
    }
    no_content()
}

/// What RabbitMQ has deprecated and is there all the same. Nothing of it will be taken away here without notice.
const DEPRECATED: &[(&str, &str)] = &[
    (
        "global_qos",
        "basic.qos with global=true limits a channel's classic queue consumers together",
    ),
    (
        "transient_nonexcl_queues",
        "Queues that are neither durable nor exclusive end with their node",
    ),
];

fn show((name, description): &(&str, &str)) -> Json {
    object!({
        "name": name,
        "desc": description,
        "deprecation_phase": "permitted_by_default",
        "doc_url": "",
        "provided_by": "posthorn",
    })
}

pub(crate) fn deprecated() -> Answer {
    json(Json::Array(DEPRECATED.iter().map(show).collect()))
}

pub(crate) async fn deprecated_in_use(api: &Api) -> Answer {
    let transient = api
        .read(|tree| {
            let mut queues = tree.all_queues();
            queues.any(|q| !q.durable && q.exclusive.is_none())
        })
        .await?;
    // Which channels use a limit of their own is not looked at: that would be a walk over all of them.
    let used = DEPRECATED.iter().filter(|(name, _)| match *name {
        "transient_nonexcl_queues" => transient,
        _ => false,
    });
    json(Json::Array(used.map(show).collect()))
}
