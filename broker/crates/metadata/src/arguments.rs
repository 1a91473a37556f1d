//! Arguments of queue and exchange declarations: the known ones, their valid values, and RabbitMQ's 406 error texts.

use crate::codec::table_len;
use crate::equivalence::ResourceName;
use crate::features::{
    MESSAGE_GROUPS, PUBLISHER_DEDUPLICATION, QUEUE_ARGUMENT_CHECKS, QUORUM_DELAYED_RETRY,
};
use crate::{ChangeError, ExchangeRecord, QueueRecord, QueueType, Tree, limits};
use message::{Table, Value, bare};

/// Longest time in milliseconds: ten years. RabbitMQ has no limit; here, sums of times must not overflow.
pub(crate) const MAX_EXPIRY_MS: i64 = 315_360_000_000;
const MAX_PRIORITY: i64 = 255;
/// Largest segment of a stream in bytes, as in RabbitMQ.
const MAX_SEGMENT_BYTES: i64 = 3_000_000_000;

/// Only streams have it. Before [`QUEUE_ARGUMENT_CHECKS`] the other types ignored it.
const FILTER_SIZE: &str = "x-stream-filter-size-bytes";

/// The queue recognises messages that are published again.
const DEDUPLICATION: &str = "x-message-deduplication";
/// Milliseconds for which it remembers values of the header `x-deduplication-header`.
const DEDUPLICATION_WINDOW: &str = "x-deduplication-window";
const DEFAULT_DEDUPLICATION_WINDOW_MS: u64 = 600_000;
const MAX_DEDUPLICATION_WINDOW_MS: i64 = 86_400_000;

/// The queue delivers the messages of each group in order and to one consumer at a time.
const GROUPS: &str = "x-message-groups";

/// The result of checking a value. The error is RabbitMQ's text.
type CheckResult = Result<(), String>;
type ArgumentCheck = fn(&Value, &Table) -> CheckResult;

/// Checks of arguments, in the order in which they are performed. Arguments that RabbitMQ accepts with any value have
/// no check (`x-delivery-limit`, `x-quorum-target-group-size`): a value that is not a number is ignored.
const CHECKS: &[(&str, ArgumentCheck)] = &[
    ("x-expires", |v, _| {
        let n = integer(v)?;
        if n == 0 {
            return Err("{value_zero,0}".into());
        }
        check_expiry(n)
    }),
    ("x-message-ttl", |v, _| check_expiry(integer(v)?)),
    ("x-dead-letter-routing-key", |v, all| {
        string(v)?;
        match all.get("x-dead-letter-exchange") {
            Some(_) => Ok(()),
            None => Err("routing_key_but_no_dlx_defined".into()),
        }
    }),
    ("x-dead-letter-strategy", |v, _| {
        check_one_of(
            v,
            &["at-most-once", "at-least-once"],
            "invalid_dlx_strategy",
        )
    }),
    ("x-consumer-timeout", |v, _| check_consumer_timeout(v)),
    ("x-delayed-retry-type", |v, _| {
        check_one_of(
            v,
            &["disabled", "all", "failed", "returned"],
            "invalid_delayed_retry_type",
        )
    }),
    ("x-delayed-retry-min", |v, _| check_expiry(non_negative(v)?)),
    ("x-delayed-retry-max", |v, _| check_expiry(non_negative(v)?)),
    ("x-max-length", |v, _| non_negative(v).map(|_| ())),
    ("x-max-length-bytes", |v, _| non_negative(v).map(|_| ())),
    ("x-max-in-memory-length", |v, _| non_negative(v).map(|_| ())),
    ("x-max-in-memory-bytes", |v, _| non_negative(v).map(|_| ())),
    ("x-max-priority", |v, _| match non_negative(v)? {
        n if n > MAX_PRIORITY => Err(format!("{{max_value_exceeded,{n}}}")),
        _ => Ok(()),
    }),
    ("x-overflow", |v, _| {
        let modes = ["drop-head", "reject-publish", "reject-publish-dlx"];
        check_one_of(v, &modes, "invalid_overflow")
    }),
    ("x-queue-mode", |v, _| {
        let mode = string(v)?;
        let reason = format!("\"unsupported queue mode '{mode}'\"");
        check_one_of(v, &["default", "lazy"], &reason)
    }),
    ("x-queue-version", |v, _| match non_negative(v)? {
        1 | 2 => Ok(()),
        n => Err(format!("\"unsupported queue version '{n}'\"")),
    }),
    ("x-single-active-consumer", |v, _| match v {
        Value::Bool(_) => Ok(()),
        other => Err(unacceptable_type(other)),
    }),
    (DEDUPLICATION, |v, _| match v {
        Value::Bool(_) => Ok(()),
        other => Err(unacceptable_type(other)),
    }),
    (DEDUPLICATION_WINDOW, |v, _| match non_negative(v)? {
        1..=MAX_DEDUPLICATION_WINDOW_MS => Ok(()),
        n => Err(format!(
            "{{value_out_of_range,{n},1,{MAX_DEDUPLICATION_WINDOW_MS}}}"
        )),
    }),
    (GROUPS, |v, _| match v {
        Value::Bool(_) => Ok(()),
        other => Err(unacceptable_type(other)),
    }),
    ("x-quorum-initial-group-size", |v, _| check_positive(v)),
    ("x-max-age", |v, _| match max_age_ms(string(v)?) {
        Some(_) => Ok(()),
        None => Err("{error,invalid_max_age}".into()),
    }),
    (
        "x-stream-max-segment-size-bytes",
        |v, _| match non_negative(v)? {
            n if n > MAX_SEGMENT_BYTES => Err(format!("{{max_value_exceeded,{n}}}")),
            _ => Ok(()),
        },
    ),
    (FILTER_SIZE, |v, _| match non_negative(v)? {
        16..=255 => Ok(()),
        n => Err(format!("{{value_out_of_range,{n},16,255}}")),
    }),
    ("x-initial-cluster-size", |v, _| check_positive(v)),
    ("x-queue-leader-locator", |v, _| {
        // Those after the second are old names of the second.
        let locators = [
            "client-local",
            "balanced",
            "random",
            "least-leaders",
            "min-masters",
        ];
        check_one_of(v, &locators, "invalid_queue_locator_arg")
    }),
];

/// Checks that replace those of [`CHECKS`] once [`QUEUE_ARGUMENT_CHECKS`] is enabled. RabbitMQ 4.3 ignores the queue
/// mode and has only one version of classic queues.
const STRICT_CHECKS: &[(&str, ArgumentCheck)] = &[
    ("x-queue-mode", |_, _| Ok(())),
    ("x-queue-version", |v, _| match non_negative(v)? {
        2 => Ok(()),
        n => Err(format!("\"unsupported queue version '{n}'\"")),
    }),
];

/// Arguments that versions without a feature flag accept everywhere and ignore. While the flag is disabled every version
/// does so, because all nodes must apply a declaration alike.
const BEHIND_FLAGS: &[(&str, &str)] = &[
    (GROUPS, MESSAGE_GROUPS.name),
    (DEDUPLICATION, PUBLISHER_DEDUPLICATION.name),
    (DEDUPLICATION_WINDOW, PUBLISHER_DEDUPLICATION.name),
    ("x-consumer-timeout", QUEUE_ARGUMENT_CHECKS.name),
    (FILTER_SIZE, QUEUE_ARGUMENT_CHECKS.name),
    ("x-delayed-retry-type", QUORUM_DELAYED_RETRY.name),
    ("x-delayed-retry-min", QUORUM_DELAYED_RETRY.name),
    ("x-delayed-retry-max", QUORUM_DELAYED_RETRY.name),
];

/// Returns true if a flag that is disabled hides the argument.
pub(crate) fn is_hidden(tree: &Tree, key: &str) -> bool {
    let mut flags = BEHIND_FLAGS.iter();
    flags.any(|(argument, flag)| *argument == key && !tree.feature_enabled(flag))
}

/// Returns true if the value of `x-queue-type` stands for the default type.
pub(crate) fn is_default_type(tree: &Tree, value: &Value) -> bool {
    tree.feature_enabled(QUEUE_ARGUMENT_CHECKS.name) && value.as_str() == Some("")
}

/// The type that a declaration requests with `x-queue-type`, or the default type without this argument.
pub(crate) fn queue_kind(
    tree: &Tree,
    vhost: &str,
    name: &str,
    arguments: &Table,
) -> Result<QueueType, ChangeError> {
    let requested = arguments.get("x-queue-type");
    let Some(value) = requested.filter(|value| !is_default_type(tree, value)) else {
        return Ok(QueueType::default());
    };
    let found = match value {
        Value::String(octets) => std::str::from_utf8(octets)
            .ok()
            .and_then(QueueType::from_name)
            .ok_or_else(|| format!("\"unsupported queue type '{}'\"", bare(octets))),
        other => Err(unacceptable_type(other)),
    };
    found.map_err(|reason| invalid(&ResourceName::queue(vhost, name), "x-queue-type", &reason))
}

impl Tree {
    /// The type of a queue that is being declared. If the requested type is invalid and a queue of this name exists,
    /// returns the type of that queue: the declaration is then compared with it.
    pub fn queue_kind(
        &self,
        vhost: &str,
        name: &str,
        arguments: &Table,
    ) -> Result<QueueType, ChangeError> {
        queue_kind(self, vhost, name, arguments).or_else(|refused| match self.queue(vhost, name) {
            Some(existing) => Ok(existing.kind),
            None => Err(refused),
        })
    }
}

/// The exchange name in an argument. A value that is not text is refused with RabbitMQ's error text.
fn named_exchange<'a>(
    resource: &ResourceName<'_>,
    key: &str,
    arguments: &'a Table,
) -> Result<Option<&'a str>, ChangeError> {
    let Some(value) = arguments.get(key) else {
        return Ok(None);
    };
    value.as_str().map(Some).ok_or_else(|| {
        let kind = value.type_name();
        ChangeError::PreconditionFailed(format!(
            "invalid type '{kind}' for arg '{key}' in {resource}"
        ))
    })
}

impl QueueRecord {
    /// The name of a property that queues of this type cannot have, as RabbitMQ names it in its error.
    pub fn unsupported_property(&self) -> Option<&'static str> {
        if self.kind.descriptor().transient {
            None
        } else if self.auto_delete {
            Some("auto-delete")
        } else if self.exclusive.is_some() {
            Some("exclusive-owner")
        } else if !self.durable {
            Some("non-durable")
        } else {
            None
        }
    }

    /// Milliseconds for which the queue remembers values of `x-deduplication-header`. None: it does not recognise messages
    /// that are published again. It does so only once the feature flag `publisher_deduplication` is enabled.
    pub fn deduplication_window_ms(&self) -> Option<u64> {
        if !self.kind.descriptor().deduplication
            || self.arguments.get(DEDUPLICATION) != Some(&Value::Bool(true))
        {
            return None;
        }
        let window = self.arguments.get(DEDUPLICATION_WINDOW);
        let window = window.and_then(Value::as_integer);
        // A queue that was declared without the flag may have any value.
        let window = window.map(|ms| ms.clamp(1, MAX_DEDUPLICATION_WINDOW_MS).unsigned_abs());
        Some(window.unwrap_or(DEFAULT_DEDUPLICATION_WINDOW_MS))
    }

    /// Returns true if the queue was declared with message groups. It has them only once the feature flag `message_groups`
    /// is enabled; see [`Tree::has_message_groups`].
    pub fn declares_message_groups(&self) -> bool {
        self.kind.descriptor().message_groups
            && self.arguments.get(GROUPS) == Some(&Value::Bool(true))
    }

    /// The exchange name in `x-dead-letter-exchange`.
    pub fn dead_letter_exchange(&self) -> Result<Option<&str>, ChangeError> {
        let resource = ResourceName::queue(&self.vhost, &self.name);
        named_exchange(&resource, "x-dead-letter-exchange", &self.arguments)
    }
}

impl ExchangeRecord {
    /// The exchange name in `alternate-exchange`.
    pub fn alternate(&self) -> Result<Option<&str>, ChangeError> {
        let resource = ResourceName::exchange(&self.vhost, &self.name);
        named_exchange(&resource, "alternate-exchange", &self.arguments)
    }
}

/// Checks the arguments for a queue of this type.
pub(crate) fn check_queue_arguments(
    tree: &Tree,
    resource: &ResourceName<'_>,
    kind: QueueType,
    arguments: &Table,
) -> Result<(), ChangeError> {
    check_table(resource, arguments)?;
    named_exchange(resource, "x-dead-letter-exchange", arguments)?;
    let known = kind.descriptor().arguments;
    let is_checked = |key: &str| {
        let is_known = known.contains(&key) && !is_hidden(tree, key);
        is_known || (key == FILTER_SIZE && kind.descriptor().cursors)
    };
    let is_strict = tree.feature_enabled(QUEUE_ARGUMENT_CHECKS.name);
    for (key, check) in CHECKS.iter().filter(|(key, _)| is_checked(key)) {
        let mut replacements = STRICT_CHECKS.iter().filter(|_| is_strict);
        let check = match replacements.find(|(replaced, _)| replaced == key) {
            Some((_, replacement)) => replacement,
            None => check,
        };
        if let Some(value) = arguments.get(key) {
            check(value, arguments).map_err(|reason| invalid(resource, key, &reason))?;
        }
    }
    let mut all_known = Vec::new();
    for queue_type in QueueType::ALL {
        all_known.extend(queue_type.descriptor().arguments);
    }
    let misplaced = arguments
        .0
        .iter()
        .filter(|(key, _)| !is_hidden(tree, key))
        .find(|(key, _)| !known.contains(&&**key) && all_known.contains(&&**key));
    match misplaced {
        None => Ok(()),
        Some((key, _)) => Err(ChangeError::PreconditionFailed(format!(
            "invalid arg '{key}' for {resource} of queue type {}",
            kind.module()
        ))),
    }
}

fn invalid(resource: &ResourceName<'_>, key: &str, reason: &str) -> ChangeError {
    ChangeError::PreconditionFailed(format!("invalid arg '{key}' for {resource}: {reason}"))
}

/// Checks the bounds of all tables in the tree.
pub(crate) fn check_table(resource: &ResourceName<'_>, table: &Table) -> Result<(), ChangeError> {
    let refuse = |reason: String| {
        Err(ChangeError::PreconditionFailed(format!(
            "arguments of {resource} {reason}"
        )))
    };
    if !table.is_shallow() {
        return refuse(format!("are nested deeper than {}", limits::TABLE_DEPTH));
    }
    let len = table_len(table);
    if len > limits::TABLE_BYTES {
        return refuse(format!(
            "have {len} bytes, {} are allowed",
            limits::TABLE_BYTES
        ));
    }
    if !table.0.iter().all(|(_, v)| has_no_nan(v)) {
        return refuse("contain NaN, which cannot be compared".into());
    }
    Ok(())
}

/// A table with NaN is refused, because NaN is not equal to itself, so that a binding with it could never be found
/// again. The nesting depth is checked before.
fn has_no_nan(value: &Value) -> bool {
    match value {
        Value::F32(v) => !v.is_nan(),
        Value::F64(v) => !v.is_nan(),
        Value::Array(a) => a.iter().all(has_no_nan),
        Value::Table(t) => t.0.iter().all(|(_, v)| has_no_nan(v)),
        _ => true,
    }
}

/// RabbitMQ's error text for a value of the wrong type.
fn unacceptable_type(value: &Value) -> String {
    format!("{{unacceptable_type,{}}}", value.type_name())
}

fn integer(value: &Value) -> Result<i64, String> {
    value
        .as_integer()
        .ok_or_else(|| format!("\"expected integer, got {}\"", value.type_name()))
}

fn non_negative(value: &Value) -> Result<i64, String> {
    match integer(value)? {
        n if n < 0 => Err(format!("{{value_negative,{n}}}")),
        n => Ok(n),
    }
}

/// Milliseconds of an age such as `7D`: a number and one of Y, M, D, h, m and s.
pub(crate) fn max_age_ms(text: &str) -> Option<u64> {
    let unit = text.chars().next_back()?;
    let number = text.strip_suffix(unit)?;
    if number.is_empty() || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let seconds: u64 = match unit {
        'Y' => 365 * 24 * 3600,
        'M' => 30 * 24 * 3600,
        'D' => 24 * 3600,
        'h' => 3600,
        'm' => 60,
        's' => 1,
        _ => return None,
    };
    let number: u64 = number.parse().ok()?;
    number.checked_mul(seconds)?.checked_mul(1000)
}

fn check_positive(value: &Value) -> CheckResult {
    match non_negative(value)? {
        0 => Err("{value_zero,0}".into()),
        _ => Ok(()),
    }
}

/// Checks a consumer timeout in milliseconds, on a queue or a consumer. The error is RabbitMQ's text.
pub fn check_consumer_timeout(value: &Value) -> Result<(), String> {
    match value.as_integer() {
        Some(n) if n < 0 => Err(format!("{{value_negative,{n}}}")),
        Some(_) => Ok(()),
        None => Err(format!("\"expected integer, got {}\"", value.type_name())),
    }
}

fn check_expiry(n: i64) -> CheckResult {
    if n > MAX_EXPIRY_MS {
        return Err(format!("{{value_too_large,{n}}}"));
    }
    if n < 0 {
        return Err(format!("{{value_negative,{n}}}"));
    }
    Ok(())
}

fn string(value: &Value) -> Result<&str, String> {
    match value {
        Value::String(_) => value.as_str().ok_or_else(|| "\"not UTF-8\"".into()),
        other => Err(unacceptable_type(other)),
    }
}

fn check_one_of(value: &Value, choices: &[&str], reason: &str) -> CheckResult {
    if choices.contains(&string(value)?) {
        Ok(())
    } else {
        Err(reason.into())
    }
}
