//! `/api/recovery/majority`: the cluster continues after most of its nodes are lost.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json};
use crate::error::ApiError;
use crate::nodes;
use crate::queues::{NodeNames, node_names};
use control::{
    ControlRequest, MembershipRequest, NodeFacts, QueueRecovery, RecoveredGroup, RecoveryStep,
};
use env::NodeId;
use metadata::QueueRecord;
use serde_json::{Map, Value as Json, json as object};
use std::sync::Arc;

const EXPECTED: &str = r#"the body must be {"lost": ["NODE", ...]}, with the names of the lost nodes that are still in the cluster"#;

/// Does one step of the recovery: `{"lost": ["c-1", "c-2"]}`. The client repeats the request until a response has no
/// queues and nothing left. Nothing is needed for it but the local copy of the metadata.
pub(crate) async fn majority(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    call.require_administrator()?;
    let body = call.object()?;
    let named = lost_nodes(&body)?;
    // Without names the list of nodes is not needed.
    let known = match named.is_empty() {
        true => Vec::new(),
        false => nodes::facts(api).await?,
    };
    let lost = named.iter().map(|name| resolve(&known, name));
    let lost = lost.collect::<Result<Vec<NodeId>, ApiError>>()?;
    let step = api
        .ask(|reply| ControlRequest::Membership(MembershipRequest::RecoverMajority { lost, reply }))
        .await??;
    match step {
        RecoveryStep::Metadata(group) => {
            let names = api.read(node_names).await?;
            let mut shown = show_group(&group, &names);
            shown["step"] = object!("metadata");
            json(shown)
        }
        RecoveryStep::Forgotten => json(object!({"step": "forgotten"})),
        RecoveryStep::Queues { outcomes, left } => {
            let queues = show_queues(api, outcomes).await?;
            json(object!({"step": "queues", "queues": queues, "left": left}))
        }
    }
}

/// The names in the body, each of them once.
fn lost_nodes(body: &Map<String, Json>) -> Result<Vec<&str>, ApiError> {
    let invalid = || ApiError::bad_request(EXPECTED);
    if body.keys().any(|key| key != "lost") {
        return Err(invalid());
    }
    let mut names = match body.get("lost") {
        None | Some(Json::Null) => Vec::new(),
        Some(Json::Array(list)) => {
            let names = list.iter().map(Json::as_str);
            names.collect::<Option<Vec<_>>>().ok_or_else(invalid)?
        }
        Some(_) => return Err(invalid()),
    };
    names.sort_unstable();
    names.dedup();
    Ok(names)
}

/// If two nodes have this name, the one that is down is meant.
fn resolve(nodes: &[NodeFacts], name: &str) -> Result<NodeId, ApiError> {
    let named = nodes.iter().filter(|n| n.name == name);
    let found = named.min_by_key(|n| n.running).map(|n| n.id);
    found.ok_or_else(|| {
        ApiError::missing(format!(
            "node '{name}' is not in the cluster; if it was removed already, leave it out"
        ))
    })
}

fn show_group(group: &RecoveredGroup, names: &NodeNames) -> Json {
    let known = names.get(&group.node).cloned();
    object!({
        "node": known.unwrap_or_else(|| format!("{:016x}", group.node.0)),
        "last_index": group.last_index,
        "replicas": group.replicas,
        "voters": group.voters,
    })
}

/// Leaves out queues that were deleted meanwhile.
async fn show_queues(api: &Api, outcomes: Vec<QueueRecovery>) -> Result<Vec<Json>, ApiError> {
    if outcomes.is_empty() {
        return Ok(Vec::new());
    }
    let (named, names) = api
        .read(move |tree| {
            let record = |id| tree.queue_by_id(id).cloned();
            let named = outcomes
                .into_iter()
                .filter_map(|o| Some((record(o.queue)?, o)));
            let named: Vec<(Arc<QueueRecord>, QueueRecovery)> = named.collect();
            (named, node_names(tree))
        })
        .await?;
    let shown = named.iter().map(|(record, outcome)| {
        let mut shown = match &outcome.result {
            Ok(group) => {
                let mut shown = show_group(group, &names);
                shown["result"] = object!("recovered");
                shown
            }
            Err(refused) => object!({"result": "refused", "reason": refused.to_string()}),
        };
        shown["vhost"] = object!(&*record.vhost);
        shown["name"] = object!(&*record.name);
        shown
    });
    Ok(shown.collect())
}
