//! `/api/feature-flags` and `/api/deprecated-features`.

use crate::ask::Api;
use crate::dispatch::{ApiResult, json, no_content};
use crate::error::ApiError;
use crate::nodes;
use control::NodeFacts;
use metadata::deprecated::DeprecatedFeature;
use metadata::features::not_supported;
use metadata::{Change, Name, QueueCursor};
use serde_json::{Value as Json, json as object};
use std::collections::BTreeSet;

/// Feature flags that are enabled or that any node supports, and the nodes.
struct FeatureFlags {
    nodes: Vec<NodeFacts>,
    enabled: BTreeSet<Name>,
    all: BTreeSet<Name>,
}

impl FeatureFlags {
    async fn gather(api: &Api) -> Result<FeatureFlags, ApiError> {
        let nodes = nodes::facts(api).await?;
        let enabled = api.read(|tree| tree.enabled_features().cloned().collect());
        let enabled: BTreeSet<Name> = enabled.await?;
        let mut all = enabled.clone();
        for version in nodes.iter().filter_map(|n| n.version.as_ref()) {
            all.extend(version.features.iter().cloned());
        }
        Ok(FeatureFlags {
            nodes,
            enabled,
            all,
        })
    }

    /// Nodes that do not support the flag or whose support is unknown: older versions and
    /// unreachable nodes. An enabled flag is supported by all nodes.
    fn unsupported_nodes(&self, flag: &str) -> Vec<Name> {
        if self.enabled.contains(flag) {
            return Vec::new();
        }
        let supports = |n: &NodeFacts| n.version.as_ref().is_some_and(|p| p.knows(flag));
        let unsupported_nodes = self.nodes.iter().filter(|n| !supports(n));
        unsupported_nodes.map(|n| n.name.as_str().into()).collect()
    }

    fn show(&self, api: &Api, flag: &Name) -> Json {
        let own_features = api.config().version.features;
        let own_features = own_features.iter().find(|f| f.name == &**flag);
        let unsupported_nodes = self.unsupported_nodes(flag);
        let state = match (self.enabled.contains(flag), unsupported_nodes.is_empty()) {
            (true, _) => "enabled",
            (false, true) => "disabled",
            (false, false) => "unavailable",
        };
        object!({
            "name": &**flag,
            "desc": own_features.map_or("", |f| f.description),
            "doc_url": "",
            "state": state,
            "stability": "stable",
            "provided_by": "posthorn",
            "not_known_by": unsupported_nodes.iter().map(|n| &**n).collect::<Vec<&str>>(),
        })
    }
}

pub(crate) async fn list(api: &Api) -> ApiResult {
    let flags = FeatureFlags::gather(api).await?;
    let shown = flags.all.iter().map(|flag| flags.show(api, flag));
    json(Json::Array(shown.collect()))
}

/// `all` enables every flag that all nodes support. It fails if the supported flags of any node are
/// unknown.
pub(crate) async fn enable(api: &Api, name: &str) -> ApiResult {
    let flags = FeatureFlags::gather(api).await?;
    let wanted: Vec<&Name> = match name {
        "all" => {
            let unknown = flags.nodes.iter().filter(|n| n.version.is_none());
            let unknown: Vec<Name> = unknown.map(|n| n.name.as_str().into()).collect();
            let any_off = flags.all.len() > flags.enabled.len();
            if any_off && !unknown.is_empty() {
                return Err(refused(name, &unknown));
            }
            let all = flags.all.iter();
            all.filter(|f| flags.unsupported_nodes(f).is_empty())
                .collect()
        }
        one => flags.all.get(one).into_iter().collect(),
    };
    if wanted.is_empty() && name != "all" {
        return Err(ApiError::bad_request(format!(
            "feature flag '{name}' is not known to any node"
        )));
    }
    for flag in wanted {
        let unsupported_nodes = flags.unsupported_nodes(flag);
        if !unsupported_nodes.is_empty() {
            return Err(refused(flag, &unsupported_nodes));
        }
        let change = Change::EnableKnownFeature {
            name: flag.clone(),
            known_by: flags.nodes.iter().map(|n| n.id).collect(),
        };
        api.change(change).await?;
    }
    no_content()
}

fn refused(flag: &str, unsupported_nodes: &[Name]) -> ApiError {
    ApiError::bad_request(not_supported(flag, unsupported_nodes).to_string())
}

fn show(api: &Api, feature: DeprecatedFeature) -> Json {
    let is_permitted = api.config().permitted.contains(feature);
    object!({
        "name": feature.name(),
        "desc": feature.description(),
        "deprecation_phase": feature.phase().name(),
        "state": if is_permitted { "permitted" } else { "denied" },
        "doc_url": "",
        "provided_by": "posthorn",
    })
}

pub(crate) fn deprecated(api: &Api) -> ApiResult {
    let all = DeprecatedFeature::ALL.into_iter();
    json(Json::Array(all.map(|f| show(api, f)).collect()))
}

pub(crate) async fn deprecated_in_use(api: &Api) -> ApiResult {
    let found = api
        .walk(QueueCursor::default(), |_, q| {
            let is_transient = !q.durable && q.exclusive.is_none();
            let is_located = q.arguments.get("x-queue-master-locator").is_some();
            (is_transient || is_located).then_some((is_transient, is_located))
        })
        .await?;
    // Checking `global_qos` would require a walk over all channels, so it is never reported.
    let used = DeprecatedFeature::ALL.into_iter().filter(|f| match f {
        DeprecatedFeature::TransientNonexclQueues => found.iter().any(|(yes, _)| *yes),
        DeprecatedFeature::QueueMasterLocator => found.iter().any(|(_, yes)| *yes),
        _ => false,
    });
    json(Json::Array(used.map(|f| show(api, f)).collect()))
}
