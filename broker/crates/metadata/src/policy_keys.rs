//! Keys of policy definitions: their valid values, the queue types that support them, and how two policies merge.

use crate::arguments::{MAX_EXPIRY_MS, max_age_ms};
use crate::features::{Feature, QUORUM_DELAYED_RETRY};
use crate::{ChangeError, PolicyScope, QueueType, Tree};
use message::{Table, Value};

/// A key of a policy definition.
struct PolicyKey {
    name: &'static str,
    /// The name of its value in error texts.
    value_name: &'static str,
    accepted: AcceptedValues,
    /// How an operator policy merges with a user policy. `None`: operator policies cannot set the key.
    operator: Option<PolicyMerge>,
    /// The feature flag without which the key is not known.
    flag: Option<&'static str>,
    /// The queue types that do not support the key. A policy with the key does not apply to queues of these types.
    unsupported_by: &'static [QueueType],
}

enum AcceptedValues {
    AtLeast(i64),
    Between(i64, i64),
    Text,
    /// A time such as `7D`.
    MaxAge,
    OneOf(&'static [&'static str]),
}

#[derive(Clone, Copy)]
enum PolicyMerge {
    Smaller,
    Larger,
    /// The smaller value. A negative value means no limit and loses.
    SmallerUnlessNegative,
    /// The value of the operator policy.
    OperatorValue,
}

const fn key(name: &'static str, value_name: &'static str, accepted: AcceptedValues) -> PolicyKey {
    PolicyKey {
        name,
        value_name,
        accepted,
        operator: None,
        flag: None,
        unsupported_by: &[],
    }
}

impl PolicyKey {
    const fn operator(self, merge: PolicyMerge) -> PolicyKey {
        PolicyKey {
            operator: Some(merge),
            ..self
        }
    }

    const fn behind(self, flag: Feature) -> PolicyKey {
        PolicyKey {
            flag: Some(flag.name),
            ..self
        }
    }

    const fn unsupported_by(self, kinds: &'static [QueueType]) -> PolicyKey {
        PolicyKey {
            unsupported_by: kinds,
            ..self
        }
    }
}

use AcceptedValues::{AtLeast, Between, MaxAge, OneOf, Text};
use PolicyMerge::{Larger, OperatorValue, Smaller, SmallerUnlessNegative};
use QueueType::{Classic, Quorum, Stream};

const KEYS: &[PolicyKey] = &[
    key("alternate-exchange", "alternate exchange name", Text),
    key("consumer-timeout", "consumer timeout", AtLeast(0)),
    key("dead-letter-exchange", "dead letter exchange name", Text).unsupported_by(&[Stream]),
    key("dead-letter-routing-key", "dead letter routing key", Text).unsupported_by(&[Stream]),
    key(
        "dead-letter-strategy",
        "dead letter strategy",
        OneOf(&["at-most-once", "at-least-once"]),
    )
    .unsupported_by(&[Classic, Stream]),
    key(
        "delayed-retry-max",
        "maximum delay",
        Between(0, MAX_EXPIRY_MS),
    )
    .behind(QUORUM_DELAYED_RETRY)
    .unsupported_by(&[Classic, Stream]),
    key(
        "delayed-retry-min",
        "minimum delay",
        Between(0, MAX_EXPIRY_MS),
    )
    .behind(QUORUM_DELAYED_RETRY)
    .unsupported_by(&[Classic, Stream]),
    key(
        "delayed-retry-type",
        "delayed retry type",
        OneOf(&["disabled", "all", "failed", "returned"]),
    )
    .behind(QUORUM_DELAYED_RETRY)
    .unsupported_by(&[Classic, Stream]),
    key("delivery-limit", "delivery limit", AtLeast(-1))
        .operator(SmallerUnlessNegative)
        .unsupported_by(&[Classic, Stream]),
    key("expires", "queue expiry", AtLeast(1))
        .operator(Smaller)
        .unsupported_by(&[Stream]),
    key("initial-cluster-size", "cluster size", AtLeast(0)).unsupported_by(&[Classic, Quorum]),
    key("max-age", "max age", MaxAge).unsupported_by(&[Classic, Quorum]),
    key("max-in-memory-bytes", "maximum memory in bytes", AtLeast(0))
        .operator(Smaller)
        .unsupported_by(&[Classic, Stream]),
    key(
        "max-in-memory-length",
        "maximum memory in messages",
        AtLeast(0),
    )
    .operator(Smaller)
    .unsupported_by(&[Classic, Stream]),
    key("max-length", "maximum length", AtLeast(0))
        .operator(Smaller)
        .unsupported_by(&[Stream]),
    key("max-length-bytes", "maximum length in bytes", AtLeast(0)).operator(Smaller),
    key("max-segment-size", "segment size", AtLeast(0)),
    key("message-ttl", "message TTL", AtLeast(0))
        .operator(Smaller)
        .unsupported_by(&[Stream]),
    key(
        "overflow",
        "overflow value",
        OneOf(&["drop-head", "reject-publish", "reject-publish-dlx"]),
    )
    .operator(OperatorValue)
    .unsupported_by(&[Stream]),
    key(
        "queue-leader-locator",
        "queue leader locator value",
        OneOf(&[
            "client-local",
            "balanced",
            "random",
            "least-leaders",
            "min-masters",
        ]),
    ),
    key(
        "queue-mode",
        "queue-mode value",
        OneOf(&["default", "lazy"]),
    )
    .unsupported_by(&[Quorum, Stream]),
    key("queue-version", "queue-version value", Between(1, 2)).unsupported_by(&[Quorum, Stream]),
    key("stream-filter-size-bytes", "filter size", Between(16, 255)),
    key("stream-max-segment-size-bytes", "segment size", AtLeast(0))
        .unsupported_by(&[Classic, Quorum]),
    key("target-group-size", "target group size", AtLeast(1))
        .operator(Larger)
        .unsupported_by(&[Classic, Stream]),
];

fn find(name: &str) -> Option<&'static PolicyKey> {
    KEYS.iter().find(|k| k.name == name)
}

impl AcceptedValues {
    fn accepts(&self, value: &Value) -> bool {
        match self {
            AtLeast(min) => value.as_integer().is_some_and(|n| n >= *min),
            Between(min, max) => value
                .as_integer()
                .is_some_and(|n| (*min..=*max).contains(&n)),
            Text => value.as_str().is_some(),
            MaxAge => value.as_str().is_some_and(|s| max_age_ms(s).is_some()),
            OneOf(choices) => value.as_str().is_some_and(|s| choices.contains(&s)),
        }
    }
}

/// Checks a policy definition of this scope.
pub(crate) fn check_definition(
    tree: &Tree,
    scope: PolicyScope,
    definition: &Table,
) -> Result<(), ChangeError> {
    let refuse = |reason: String| {
        Err(ChangeError::Invalid(format!(
            "Validation failed\n\n{reason}\n"
        )))
    };
    if definition.is_empty() {
        return refuse("no policy provided".into());
    }
    let find_allowed = |name: &str| {
        let is_allowed = |k: &&PolicyKey| scope == PolicyScope::User || k.operator.is_some();
        let is_known = |k: &&PolicyKey| k.flag.is_none_or(|flag| tree.feature_enabled(flag));
        find(name).filter(is_allowed).filter(is_known)
    };
    let unknown = definition
        .0
        .iter()
        .filter(|(name, _)| find_allowed(name).is_none());
    let unknown: Vec<String> = unknown
        .map(|(name, value)| format!("{{<<\"{name}\">>,{}}}", term(value)))
        .collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(",");
        return refuse(format!("[{unknown}] are not recognised policy settings"));
    }
    for (index, (name, value)) in definition.0.iter().enumerate() {
        let Some(key) = find_allowed(name) else {
            continue;
        };
        if !key.accepted.accepts(value) {
            return refuse(format!("{} is not a valid {}", term(value), key.value_name));
        }
        if definition
            .0
            .iter()
            .take(index)
            .any(|(other, _)| other == name)
        {
            return refuse(format!("'{name}' is set twice"));
        }
    }
    Ok(())
}

/// The value as an Erlang term, as in RabbitMQ's error texts.
fn term(value: &Value) -> String {
    match value {
        Value::String(s) => format!("<<\"{}\">>", String::from_utf8_lossy(s)),
        Value::Bool(b) => b.to_string(),
        Value::F64(f) => f.to_string(),
        Value::Array(list) => {
            let terms: Vec<String> = list.iter().map(term).collect();
            format!("[{}]", terms.join(","))
        }
        Value::Table(table) => {
            let pairs = table.0.iter();
            let pairs = pairs.map(|(key, value)| format!("<<\"{key}\">> => {}", term(value)));
            format!("#{{{}}}", pairs.collect::<Vec<_>>().join(","))
        }
        Value::Void => "null".into(),
        other => other
            .as_integer()
            .map_or_else(|| "this value".into(), |n| n.to_string()),
    }
}

/// Whether a queue type supports all keys of a definition. If not, the policy does not apply to queues of this type.
pub(crate) fn is_applicable(definition: &Table, kind: QueueType) -> bool {
    let is_unsupported = |name: &str| find(name).is_some_and(|k| k.unsupported_by.contains(&kind));
    !definition.0.iter().any(|(name, _)| is_unsupported(name))
}

/// Merges the definitions of a user policy and an operator policy.
pub(crate) fn merge(user: Option<&Table>, operator: Option<&Table>) -> Table {
    let mut all = user.cloned().unwrap_or_default();
    for (name, operator_value) in operator.into_iter().flat_map(|o| &o.0) {
        let value = match (all.get(name), find(name).and_then(|k| k.operator)) {
            (Some(user_value), Some(rule)) => merge_values(rule, user_value, operator_value),
            _ => operator_value.clone(),
        };
        all.set(name, value);
    }
    all
}

fn merge_values(rule: PolicyMerge, user_value: &Value, operator_value: &Value) -> Value {
    let (Some(u), Some(o)) = (user_value.as_integer(), operator_value.as_integer()) else {
        return operator_value.clone();
    };
    let user_wins = match rule {
        Smaller => u < o,
        Larger => u > o,
        SmallerUnlessNegative => stricter(u, o) == u,
        OperatorValue => false,
    };
    if user_wins {
        user_value
    } else {
        operator_value
    }
    .clone()
}

/// The stricter of two limits. A negative limit means no limit.
pub(crate) fn stricter(a: i64, b: i64) -> i64 {
    if a < 0 || b < 0 { a.max(b) } else { a.min(b) }
}
