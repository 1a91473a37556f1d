//! `/api/feature-flags` and `/api/deprecated-features` (O8).

use crate::ask::Api;
use crate::dispatch::{Answer, json, no_content};
use crate::error::ApiError;
use crate::nodes;
use control::NodeFacts;
use metadata::features::not_supported;
use metadata::{Change, Name, QueueCursor};
use serde_json::{Value as Json, json as object};
use std::collections::BTreeSet;

/// Flags that any node knows or that are on, and who can have them.
struct Flags {
    nodes: Vec<NodeFacts>,
    enabled: BTreeSet<Name>,
    all: BTreeSet<Name>,
}

impl Flags {
    async fn look(api: &Api) -> Result<Flags, ApiError> {
        let nodes = nodes::facts(api).await?;
        let enabled = api.read(|tree| tree.enabled_features().cloned().collect());
        let enabled: BTreeSet<Name> = enabled.await?;
        let mut all = enabled.clone();
        for program in nodes.iter().filter_map(|n| n.program.as_ref()) {
            all.extend(program.features.iter().cloned());
        }
        Ok(Flags {
            nodes,
            enabled,
            all,
        })
    }

    /// Nodes that are not known to know the flag: of an older version, or down. One that is on is known to all.
    fn lacking(&self, flag: &str) -> Vec<Name> {
        if self.enabled.contains(flag) {
            return Vec::new();
        }
        let knows = |n: &NodeFacts| n.program.as_ref().is_some_and(|p| p.knows(flag));
        let lacking = self.nodes.iter().filter(|n| !knows(n));
        lacking.map(|n| n.name.as_str().into()).collect()
    }

    fn show(&self, api: &Api, flag: &Name) -> Json {
        let own = api.config().program.features;
        let own = own.iter().find(|f| f.name == &**flag);
        let lacking = self.lacking(flag);
        let state = match (self.enabled.contains(flag), lacking.is_empty()) {
            (true, _) => "enabled",
            (false, true) => "disabled",
            (false, false) => "unavailable",
        };
        object!({
            "name": &**flag,
            "desc": own.map_or("", |f| f.description),
            "doc_url": "",
            "state": state,
            "stability": "stable",
            "provided_by": "posthorn",
            "not_known_by": lacking.iter().map(|n| &**n).collect::<Vec<&str>>(),
        })
    }
}

pub(crate) async fn list(api: &Api) -> Answer {
    let flags = Flags::look(api).await?;
    let shown = flags.all.iter().map(|flag| flags.show(api, flag));
    json(Json::Array(shown.collect()))
}

/// `all` turns on every one that all nodes know, if it is known of all nodes what they know.
pub(crate) async fn enable(api: &Api, name: &str) -> Answer {
    let flags = Flags::look(api).await?;
    let wanted: Vec<&Name> = match name {
        "all" => {
            let silent = flags.nodes.iter().filter(|n| n.program.is_none());
            let silent: Vec<Name> = silent.map(|n| n.name.as_str().into()).collect();
            let any_off = flags.all.len() > flags.enabled.len();
            if any_off && !silent.is_empty() {
                return Err(refused(name, &silent));
            }
            let all = flags.all.iter();
            all.filter(|f| flags.lacking(f).is_empty()).collect()
        }
        one => flags.all.get(one).into_iter().collect(),
    };
    if wanted.is_empty() && name != "all" {
        return Err(ApiError::bad_request(format!(
            "feature flag '{name}' is not known to any node"
        )));
    }
    for flag in wanted {
        let lacking = flags.lacking(flag);
        if !lacking.is_empty() {
            return Err(refused(flag, &lacking));
        }
        let change = Change::EnableKnownFeature {
            name: flag.clone(),
            known_by: flags.nodes.iter().map(|n| n.id).collect(),
        };
        api.change(change).await?;
    }
    no_content()
}

fn refused(flag: &str, lacking: &[Name]) -> ApiError {
    ApiError::bad_request(not_supported(flag, lacking).to_string())
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
        .walk(QueueCursor::default(), |_, q| {
            (!q.durable && q.exclusive.is_none()).then_some(())
        })
        .await?;
    // Which channels use a limit of their own is not looked at: that would be a walk over all of them.
    let used = DEPRECATED.iter().filter(|(name, _)| match *name {
        "transient_nonexcl_queues" => !transient.is_empty(),
        _ => false,
    });
    json(Json::Array(used.map(show).collect()))
}
