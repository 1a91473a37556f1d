//! `/api/parameters`, `/api/global-parameters` and the cluster name.
//!
//! RabbitMQ stores vhost limits and operator policies as parameters of a vhost and exports them as
//! such. Both APIs change the same objects here. Other components belong to RabbitMQ plugins
//! (federation, shovel) and are not supported.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content, put as put_answer};
use crate::error::ApiError;
use crate::json::JsonMembers;
use crate::{limits, policies};
use metadata::{CLUSTER_NAME, Change, PolicyScope, Tree, VHOST_LIMITS};
use serde_json::{Map, Value as Json, json as object};

pub(crate) const LIMITS: &str = "vhost-limits";
pub(crate) const OPERATOR_POLICY: &str = "operator_policy";
/// RabbitMQ stores policies as parameters too, but rejects changes through this path.
const POLICY: &str = "policy";
/// Read-only: the identifier of the cluster.
const CLUSTER_ID: &str = "internal_cluster_id";

fn parameter_json(component: &str, vhost: &str, name: &str, value: Json) -> Json {
    object!({"component": component, "vhost": vhost, "name": name, "value": value})
}

/// All parameters, sorted by component, vhost and name.
pub(crate) fn all(tree: &Tree) -> Vec<Json> {
    let operator = tree.policies(PolicyScope::Operator).into_iter().map(|p| {
        let mut value = policies::show(p);
        if let Some(members) = value.as_object_mut() {
            members.remove("vhost");
            members.remove("name");
        }
        parameter_json(OPERATOR_POLICY, &p.vhost, &p.name, value)
    });
    let limits = tree.vhosts().into_iter().filter(|v| !v.limits.is_empty());
    let limits = limits.map(|v| {
        let value = Json::Object(limits::values(&v.limits));
        parameter_json(LIMITS, &v.name, "limits", value)
    });
    operator.chain(limits).collect()
}

fn unknown_component(component: &str) -> ApiError {
    ApiError::bad_request(format!(
        "Validation failed\n\ncomponent {component} not found\n"
    ))
}

fn has_value(parameter_json: &Json, key: &str, expected: Option<&str>) -> bool {
    expected.is_none_or(|w| parameter_json[key] == w)
}

async fn matching(
    api: &Api,
    call: &AuthenticatedRequest,
    component: Option<&str>,
    vhost: Option<&str>,
) -> Result<Vec<Json>, ApiError> {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let visible = api.visible_vhosts(call).await?;
    let mut found = api.read(all).await?;
    found.retain(|p| {
        let parameter_vhost = p["vhost"].as_str().unwrap_or_default();
        has_value(p, "component", component)
            && has_value(p, "vhost", vhost)
            && visible
                .as_ref()
                .is_none_or(|set| set.contains(parameter_vhost))
    });
    Ok(found)
}

pub(crate) async fn list(
    api: &Api,
    call: &AuthenticatedRequest,
    component: Option<&str>,
    vhost: Option<&str>,
) -> ApiResult {
    json(Json::Array(matching(api, call, component, vhost).await?))
}

pub(crate) async fn get(
    api: &Api,
    call: &AuthenticatedRequest,
    component: &str,
    vhost: &str,
    name: &str,
) -> ApiResult {
    let found = matching(api, call, Some(component), Some(vhost)).await?;
    let named = found.into_iter().find(|p| p["name"] == name);
    named.map_or_else(|| Err(ApiError::not_found()), json)
}

/// Changing operator policies and limits requires an administrator, through any path.
pub(crate) async fn put(
    api: &Api,
    call: &AuthenticatedRequest,
    component: &str,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    if component == POLICY {
        let why = "policies may not be set using this method";
        return Err(ApiError::bad_request(why));
    }
    let body = call.object()?;
    JsonMembers(&body).require(&["value"])?;
    if ![LIMITS, OPERATOR_POLICY].contains(&component) {
        return Err(unknown_component(component));
    }
    call.require_administrator()?;
    let value = body.get("value").and_then(Json::as_object);
    let value = value.ok_or_else(|| ApiError::bad_request("'value' should be an object"))?;
    let before = matching(api, call, Some(component), Some(vhost)).await?;
    set(api, component, vhost, name, value).await?;
    put_answer(before.iter().any(|p| p["name"] == name))
}

/// Also used for importing definitions.
pub(crate) async fn set(
    api: &Api,
    component: &str,
    vhost: &str,
    name: &str,
    value: &Map<String, Json>,
) -> Result<(), ApiError> {
    match component {
        LIMITS => {
            for (limit, number) in value {
                let number = limits::number(limit, number, VHOST_LIMITS);
                let number =
                    number.map_err(|bad| ApiError::bad_request(limits::rejection_text(bad)))?;
                let change = Change::SetVhostLimit {
                    vhost: vhost.into(),
                    limit: limit.as_str().into(),
                    value: Some(number),
                };
                api.change(change).await?;
            }
        }
        OPERATOR_POLICY => {
            let scope = PolicyScope::Operator;
            let record = policies::record(scope, vhost, name, &JsonMembers(value))?;
            api.change(Change::PutPolicy(record)).await?;
        }
        other => return Err(unknown_component(other)),
    }
    Ok(())
}

pub(crate) async fn delete(
    api: &Api,
    call: &AuthenticatedRequest,
    component: &str,
    vhost: &str,
    name: &str,
) -> ApiResult {
    let found = matching(api, call, Some(component), Some(vhost)).await?;
    let Some(parameter_json) = found.into_iter().find(|p| p["name"] == name) else {
        return Err(ApiError::not_found());
    };
    call.require_administrator()?;
    if component == OPERATOR_POLICY {
        let change = Change::DeletePolicy {
            vhost: vhost.into(),
            name: name.into(),
            scope: PolicyScope::Operator,
        };
        api.change(change).await?;
    } else {
        for limit in parameter_json["value"].as_object().into_iter().flatten() {
            let change = Change::SetVhostLimit {
                vhost: vhost.into(),
                limit: limit.0.as_str().into(),
                value: None,
            };
            api.change(change).await?;
        }
    }
    no_content()
}

/// The cluster's name: the global parameter, otherwise the name from this node's configuration.
pub(crate) fn cluster_name(tree: &Tree, configured: &str) -> String {
    let stored = tree.global_parameter(CLUSTER_NAME);
    let stored = stored.and_then(|json| serde_json::from_str::<String>(json).ok());
    stored.unwrap_or_else(|| configured.to_owned())
}

/// All global parameters by name, including the built-in ones.
pub(crate) fn globals(tree: &Tree, configured: &str) -> Vec<Json> {
    let mut all = Map::new();
    all.insert(
        CLUSTER_NAME.to_owned(),
        object!(cluster_name(tree, configured)),
    );
    all.insert(CLUSTER_ID.to_owned(), object!(tree.cluster()));
    for (name, value) in tree.global_parameters() {
        let value = serde_json::from_str(value).unwrap_or(Json::Null);
        all.insert(name.to_string(), value);
    }
    let all = all.into_iter();
    all.map(|(name, value)| object!({"name": name, "value": value}))
        .collect()
}

async fn all_globals(api: &Api) -> Result<Vec<Json>, ApiError> {
    let configured = api.config().cluster_name.clone();
    api.read(move |tree| globals(tree, &configured)).await
}

pub(crate) async fn list_globals(api: &Api) -> ApiResult {
    json(Json::Array(all_globals(api).await?))
}

pub(crate) async fn get_global(api: &Api, name: &str) -> ApiResult {
    let found = all_globals(api).await?;
    let named = found.into_iter().find(|p| p["name"] == name);
    named.map_or_else(|| Err(ApiError::not_found()), json)
}

pub(crate) async fn put_global(api: &Api, call: &AuthenticatedRequest, name: &str) -> ApiResult {
    let body = call.object()?;
    JsonMembers(&body).require(&["value"])?;
    let value = body.get("value").unwrap_or(&Json::Null);
    let expected = name.to_owned();
    let existed = api
        .read(move |tree| tree.global_parameter(&expected).is_some())
        .await?;
    set_global(api, name, value).await?;
    put_answer(existed)
}

/// Also used for importing definitions. An imported cluster identifier is ignored.
pub(crate) async fn set_global(api: &Api, name: &str, value: &Json) -> Result<(), ApiError> {
    if name == CLUSTER_ID {
        return Ok(());
    }
    if name == CLUSTER_NAME && !value.is_string() {
        return Err(ApiError::bad_request("a cluster's name is a string"));
    }
    let change = Change::PutGlobalParameter {
        name: name.into(),
        value: value.to_string().into(),
    };
    api.change(change).await.map(|_| ())
}

pub(crate) async fn delete_global(api: &Api, name: &str) -> ApiResult {
    let expected = name.to_owned();
    let exists = api
        .read(move |tree| tree.global_parameter(&expected).is_some())
        .await?;
    if !exists {
        return Err(ApiError::not_found());
    }
    let name = name.into();
    api.change(Change::DeleteGlobalParameter { name }).await?;
    no_content()
}

pub(crate) async fn get_cluster_name(api: &Api) -> ApiResult {
    let configured = api.config().cluster_name.clone();
    let name = api
        .read(move |tree| cluster_name(tree, &configured))
        .await?;
    json(object!({"name": name}))
}

pub(crate) async fn put_cluster_name(api: &Api, call: &AuthenticatedRequest) -> ApiResult {
    let body = call.object()?;
    let name = JsonMembers(&body).required_text("name")?.to_owned();
    set_global(api, CLUSTER_NAME, &object!(name)).await?;
    no_content()
}
