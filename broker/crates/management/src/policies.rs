//! `/api/policies` and `/api/operator-policies`.

use crate::access::AuthenticatedRequest;
use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content, put as put_answer};
use crate::error::ApiError;
use crate::json::{JsonMembers, from_table, term};
use crate::page::ListRequest;
use metadata::{ApplyTo, Change, PolicyRecord, PolicyScope};
use serde_json::{Value as Json, json as object};
use std::sync::Arc;

pub(crate) fn show(policy: &PolicyRecord) -> Json {
    object!({
        "vhost": &*policy.vhost,
        "name": &*policy.name,
        "pattern": &*policy.pattern,
        "apply-to": policy.apply_to.name(),
        "definition": from_table(&policy.definition),
        "priority": policy.priority,
    })
}

pub(crate) async fn list(
    api: &Api,
    call: &AuthenticatedRequest,
    scope: PolicyScope,
    vhost: Option<&str>,
) -> ApiResult {
    if let Some(vhost) = vhost {
        api.require_vhost_visible(call, vhost).await?;
    }
    let visible = api.visible_vhosts(call).await?;
    let only = vhost.map(str::to_owned);
    let found: Vec<Arc<PolicyRecord>> = api
        .read(move |tree| {
            let all = tree.policies(scope).into_iter();
            all.filter(|p| {
                only.as_deref().is_none_or(|v| *p.vhost == *v)
                    && visible.as_ref().is_none_or(|set| set.contains(&*p.vhost))
            })
            .cloned()
            .collect()
        })
        .await?;
    let (part, cut) = ListRequest::of(&call.query)?.cut(found, |p| &p.name)?;
    Ok(cut.respond(part.iter().map(|p| show(p)).collect()))
}

async fn find(
    api: &Api,
    scope: PolicyScope,
    vhost: &str,
    name: &str,
) -> Result<Option<Arc<PolicyRecord>>, ApiError> {
    let (vhost, name) = (vhost.to_owned(), name.to_owned());
    api.read(move |tree| tree.policy(&vhost, scope, &name).cloned())
        .await
}

pub(crate) async fn get(
    api: &Api,
    call: &AuthenticatedRequest,
    scope: PolicyScope,
    vhost: &str,
    name: &str,
) -> ApiResult {
    api.require_vhost_visible(call, vhost).await?;
    match find(api, scope, vhost, name).await? {
        Some(policy) => json(show(&policy)),
        None => Err(ApiError::not_found()),
    }
}

/// Checks that the user may change policies: policymakers change policies, only administrators
/// change operator policies.
async fn require_policy_access(
    api: &Api,
    call: &AuthenticatedRequest,
    scope: PolicyScope,
    vhost: &str,
) -> Result<(), ApiError> {
    match scope {
        PolicyScope::User => call.require_policymaker()?,
        PolicyScope::Operator => call.require_administrator()?,
    }
    if call.is_administrator() {
        return api.require_vhost_visible(call, vhost).await;
    }
    api.require_vhost_access(call, vhost).await
}

pub(crate) async fn put(
    api: &Api,
    call: &AuthenticatedRequest,
    scope: PolicyScope,
    vhost: &str,
    name: &str,
) -> ApiResult {
    require_policy_access(api, call, scope, vhost).await?;
    let body = call.object()?;
    let record = record(scope, vhost, name, &JsonMembers(&body))?;
    let existed = find(api, scope, vhost, name).await?.is_some();
    api.change(Change::PutPolicy(record)).await?;
    put_answer(existed)
}

fn validation_failed(reason: String) -> ApiError {
    ApiError::bad_request(format!("Validation failed\n\n{reason}\n"))
}

/// Parses the policy of a request.
pub(crate) fn record(
    scope: PolicyScope,
    vhost: &str,
    name: &str,
    body: &JsonMembers<'_>,
) -> Result<PolicyRecord, ApiError> {
    body.require(&["pattern", "definition"])?;
    let member_or_null = |key: &str| body.0.get(key).unwrap_or(&Json::Null);
    let pattern = member_or_null("pattern");
    let pattern = pattern.as_str().ok_or_else(|| {
        validation_failed(format!(
            "pattern should be a binary but was {}",
            term(pattern)
        ))
    })?;
    let priority = match body.0.get("priority") {
        None => 0,
        Some(priority) => priority.as_i64().ok_or_else(|| {
            validation_failed(format!(
                "priority should be a number, actually was {}",
                term(priority)
            ))
        })?,
    };
    let definition = body
        .table("definition")?
        .ok_or_else(|| ApiError::bad_request("'definition' should be an object"))?;
    let apply_to = body.text("apply-to")?.unwrap_or("all");
    let apply_to = ApplyTo::ALL
        .into_iter()
        .find(|value| value.name() == apply_to)
        .ok_or_else(|| {
            validation_failed(format!(
                "apply-to '{apply_to}' unrecognised; should be one of: 'queues', 'classic_queues',  'quorum_queues', \
                 'streams', 'exchanges', or 'all'"
            ))
        })?;
    Ok(PolicyRecord {
        vhost: vhost.into(),
        name: name.into(),
        scope,
        pattern: pattern.into(),
        apply_to,
        priority,
        definition,
    })
}

pub(crate) async fn delete(
    api: &Api,
    call: &AuthenticatedRequest,
    scope: PolicyScope,
    vhost: &str,
    name: &str,
) -> ApiResult {
    require_policy_access(api, call, scope, vhost).await?;
    if find(api, scope, vhost, name).await?.is_none() {
        return Err(ApiError::not_found());
    }
    let change = Change::DeletePolicy {
        vhost: vhost.into(),
        name: name.into(),
        scope,
    };
    api.change(change).await?;
    no_content()
}
