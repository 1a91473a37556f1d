//! Policy definitions: the keys there are, what they may be, which queue types know them, how two policies merge.

use crate::{ChangeError, PolicyScope, QueueType};
use message::{Table, Value};

/// A key of a definition.
struct Key {
    name: &'static str,
    /// What an error text calls its value.
    what: &'static str,
    takes: Takes,
    /// Whether operator policies may have it, and which value wins then.
    operator: Option<Merge>,
    /// Types of queue that cannot do it: a policy with it does not apply to them at all.
    not_for: Option<QueueType>,
}

enum Takes {
    AtLeast(i64),
    Between(i64, i64),
    Text,
    OneOf(&'static [&'static str]),
}

#[derive(Clone, Copy)]
enum Merge {
    Smaller,
    Larger,
    /// Smaller, but a negative one means none and loses.
    SmallerUnlessNegative,
    Operators,
}

const fn key(name: &'static str, what: &'static str, takes: Takes) -> Key {
    Key {
        name,
        what,
        takes,
        operator: None,
        not_for: None,
    }
}

impl Key {
    const fn operator(self, merge: Merge) -> Key {
        Key {
            operator: Some(merge),
            ..self
        }
    }

    const fn not_for(self, kind: QueueType) -> Key {
        Key {
            not_for: Some(kind),
            ..self
        }
    }
}

use Merge::{Larger, Operators, Smaller, SmallerUnlessNegative};
use QueueType::{Classic, Quorum};
use Takes::{AtLeast, Between, OneOf, Text};

const KEYS: &[Key] = &[
    key("alternate-exchange", "alternate exchange name", Text),
    key("consumer-timeout", "consumer timeout", AtLeast(0)),
    key("dead-letter-exchange", "dead letter exchange name", Text),
    key("dead-letter-routing-key", "dead letter routing key", Text),
    key(
        "dead-letter-strategy",
        "dead letter strategy",
        OneOf(&["at-most-once", "at-least-once"]),
    )
    .not_for(Classic),
    key("delivery-limit", "delivery limit", AtLeast(-1))
        .operator(SmallerUnlessNegative)
        .not_for(Classic),
    key("expires", "queue expiry", AtLeast(1)).operator(Smaller),
    key("initial-cluster-size", "cluster size", AtLeast(0)),
    key("max-age", "max age", Text),
    key("max-in-memory-bytes", "maximum memory in bytes", AtLeast(0))
        .operator(Smaller)
        .not_for(Classic),
    key(
        "max-in-memory-length",
        "maximum memory in messages",
        AtLeast(0),
    )
    .operator(Smaller)
    .not_for(Classic),
    key("max-length", "maximum length", AtLeast(0)).operator(Smaller),
    key("max-length-bytes", "maximum length in bytes", AtLeast(0)).operator(Smaller),
    key("max-segment-size", "segment size", AtLeast(0)),
    key("message-ttl", "message TTL", AtLeast(0)).operator(Smaller),
    key(
        "overflow",
        "overflow value",
        OneOf(&["drop-head", "reject-publish", "reject-publish-dlx"]),
    )
    .operator(Operators),
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
    .not_for(Quorum),
    key("queue-version", "queue-version value", Between(1, 2)).not_for(Quorum),
    key("stream-filter-size-bytes", "filter size", Between(16, 255)),
    key("stream-max-segment-size-bytes", "segment size", AtLeast(0)),
    key("target-group-size", "target group size", AtLeast(1))
        .operator(Larger)
        .not_for(Classic),
];

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|k| k.name == name)
}

impl Takes {
    fn accepts(&self, value: &Value) -> bool {
        match self {
            AtLeast(least) => value.as_integer().is_some_and(|n| n >= *least),
            Between(least, most) => value
                .as_integer()
                .is_some_and(|n| (*least..=*most).contains(&n)),
            Text => value.as_str().is_some(),
            OneOf(choices) => value.as_str().is_some_and(|s| choices.contains(&s)),
        }
    }
}

/// Whether a policy of this scope may say this.
pub(crate) fn check_definition(scope: PolicyScope, definition: &Table) -> Result<(), ChangeError> {
    let refuse = |why: String| {
        Err(ChangeError::Invalid(format!(
            "Validation failed\n\n{why}\n"
        )))
    };
    if definition.is_empty() {
        return refuse("no policy provided".into());
    }
    let known =
        |name: &str| find(name).filter(|k| scope == PolicyScope::User || k.operator.is_some());
    let unknown = definition
        .0
        .iter()
        .filter(|(name, _)| known(name).is_none());
    let unknown: Vec<String> = unknown
        .map(|(name, value)| format!("{{<<\"{name}\">>,{}}}", term(value)))
        .collect();
    if !unknown.is_empty() {
        let unknown = unknown.join(",");
        return refuse(format!("[{unknown}] are not recognised policy settings"));
    }
    for (at, (name, value)) in definition.0.iter().enumerate() {
        let Some(key) = known(name) else {
            continue;
        };
        if !key.takes.accepts(value) {
            return refuse(format!("{} is not a valid {}", term(value), key.what));
        }
        if definition.0.iter().take(at).any(|(other, _)| other == name) {
            return refuse(format!("'{name}' is there twice"));
        }
    }
    Ok(())
}

/// As RabbitMQ's texts have values: Erlang terms.
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

/// Whether all that a definition says exists for this type of queue. If not, the policy does not apply to it.
pub(crate) fn applicable(definition: &Table, kind: QueueType) -> bool {
    let unable = |name: &str| find(name).is_some_and(|k| k.not_for == Some(kind));
    !definition.0.iter().any(|(name, _)| unable(name))
}

/// The definition that a policy and an operator policy make together.
pub(crate) fn merged(user: Option<&Table>, operator: Option<&Table>) -> Table {
    let mut all = user.cloned().unwrap_or_default();
    for (name, operators) in operator.into_iter().flat_map(|o| &o.0) {
        let value = match (all.get(name), find(name).and_then(|k| k.operator)) {
            (Some(users), Some(merge)) => merge_values(merge, users, operators),
            _ => operators.clone(),
        };
        all.set(name, value);
    }
    all
}

fn merge_values(merge: Merge, users: &Value, operators: &Value) -> Value {
    let (Some(u), Some(o)) = (users.as_integer(), operators.as_integer()) else {
        return operators.clone();
    };
    let users_wins = match merge {
        Smaller => u < o,
        Larger => u > o,
        SmallerUnlessNegative => stricter(u, o) == u,
        Operators => false,
    };
    if users_wins { users } else { operators }.clone()
}

/// The stricter of two limits where a negative one is none.
pub(crate) fn stricter(a: i64, b: i64) -> i64 {
    if a < 0 || b < 0 { a.max(b) } else { a.min(b) }
}
