//! Effective settings of a queue: its arguments combined with its policies.

use crate::arguments::{MAX_EXPIRY_MS, max_age_ms};
use crate::features::QUORUM_CONSUMER_TIMEOUTS;
use crate::policy_keys::stricter;
use crate::{EffectivePolicy, QueueRecord, Tree};
use ids::{
    DeadLettering, DelayedRetry, DelayedReturns, Name, Overflow, QueueSettings, QueueType,
    QuorumFeatures, QuorumSettings,
};
use message::Value;

/// Settings of a queue that result from its arguments and policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSettings {
    /// The settings that the queue itself applies.
    pub queue: QueueSettings,
    /// Exchange for dead letters, in the queue's vhost. It need not exist.
    pub dead_letter_exchange: Option<Name>,
    /// Routing key of dead letters. `None`: each message keeps its own.
    pub dead_letter_routing_key: Option<Name>,
    /// Time without consumers and requests after which the queue is deleted, in milliseconds.
    pub expires_ms: Option<u64>,
    /// Milliseconds that a consumer may keep a delivery. `None`: the default of the node applies.
    pub consumer_timeout_ms: Option<u64>,
    /// The queue itself ends consumers that keep a delivery for longer.
    pub times_out_consumers: bool,
    /// Features of quorum queues that the cluster has enabled. Empty for other queue types.
    pub features: QuorumFeatures,
    /// The settings of a stream's log. Empty for other queue types.
    pub stream: StreamSettings,
}

/// Settings of a stream's log. `None`: the default applies, or there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamSettings {
    /// Bytes above which the oldest segments are deleted.
    pub max_bytes: Option<u64>,
    /// Age in milliseconds after which segments are deleted.
    pub max_age_ms: Option<u64>,
    /// Bytes after which a new segment is started.
    pub max_segment_bytes: Option<u64>,
    /// Length of the Bloom filters of new chunks in bytes.
    pub filter_bytes: Option<u8>,
}

/// Of an argument and a policy for a stream, the policy applies, as in RabbitMQ.
fn stream_settings(policy: &EffectivePolicy, queue: &QueueRecord) -> StreamSettings {
    let value_of = |key: &str| {
        let policy = policy.definition.get(key);
        policy.or_else(|| queue.arguments.get(&format!("x-{key}")))
    };
    let number = |key: &str| value_of(key)?.as_integer()?.try_into().ok();
    let filter_bytes = value_of("stream-filter-size-bytes").and_then(Value::as_integer);
    StreamSettings {
        max_bytes: number("max-length-bytes"),
        max_age_ms: value_of("max-age")
            .and_then(Value::as_str)
            .and_then(max_age_ms),
        max_segment_bytes: number("stream-max-segment-size-bytes"),
        filter_bytes: filter_bytes.and_then(|n| u8::try_from(n).ok()),
    }
}

/// The text value of a key. The queue's own argument takes precedence over the policy.
fn text_of<'a>(policy: &'a EffectivePolicy, queue: &'a QueueRecord, key: &str) -> Option<&'a str> {
    let argument = queue.arguments.get(&format!("x-{key}"));
    let value = argument.or_else(|| policy.definition.get(key));
    value.and_then(Value::as_str)
}

fn overflow(policy: &EffectivePolicy, queue: &QueueRecord) -> Overflow {
    let setting = if queue.kind.descriptor().policy_decides_overflow {
        let policy = policy.definition.get("overflow");
        let setting = policy.or_else(|| queue.arguments.get("x-overflow"));
        setting.and_then(Value::as_str)
    } else {
        text_of(policy, queue, "overflow")
    };
    queue.kind.overflow(match setting {
        Some("reject-publish") => Overflow::RejectPublish,
        Some("reject-publish-dlx") => Overflow::RejectPublishDlx,
        _ => Overflow::DropHead,
    })
}

fn dead_lettering(
    policy: &EffectivePolicy,
    queue: &QueueRecord,
    overflow: Overflow,
) -> DeadLettering {
    if text_of(policy, queue, "dead-letter-exchange").is_none() {
        return DeadLettering::Off;
    }
    let strategy = match text_of(policy, queue, "dead-letter-strategy") {
        Some("at-least-once") => DeadLettering::AtLeastOnce,
        _ => DeadLettering::AtMostOnce,
    };
    queue.kind.dead_lettering(strategy, overflow)
}

/// `number` returns the value of a setting that is a number. Without a minimum there is no delay, and without a maximum
/// the minimum is the maximum, as in RabbitMQ.
fn delayed_retry(
    policy: &EffectivePolicy,
    queue: &QueueRecord,
    number: &dyn Fn(&str) -> Option<u64>,
) -> Option<DelayedRetry> {
    if !queue.kind.descriptor().strict_priorities {
        return None;
    }
    let returns = match text_of(policy, queue, "delayed-retry-type")? {
        "all" => DelayedReturns::All,
        "failed" => DelayedReturns::Failed,
        "returned" => DelayedReturns::Returned,
        _ => return None,
    };
    let min_ms = number("delayed-retry-min").filter(|ms| *ms > 0)?;
    let max_ms = number("delayed-retry-max").unwrap_or(min_ms);
    Some(DelayedRetry {
        returns,
        min_ms,
        max_ms: max_ms.min(MAX_EXPIRY_MS.unsigned_abs()),
    })
}

impl Tree {
    /// Milliseconds that a consumer may keep a delivery (`x-consumer-timeout`, `consumer-timeout`). `None`: the queue
    /// does not set it.
    pub fn consumer_timeout(&self, queue: &QueueRecord) -> Option<u64> {
        let argument = queue.arguments.get("x-consumer-timeout");
        let policy = self.effective_policy(queue);
        let both = [argument, policy.definition.get("consumer-timeout")];
        let numbers = both.into_iter().flatten().filter_map(Value::as_integer);
        numbers.filter_map(|n| u64::try_from(n).ok()).min()
    }

    /// Returns true if queues of this type end consumers that do not acknowledge in time, and not their channels.
    pub fn times_out_consumers(&self, kind: QueueType) -> bool {
        kind.descriptor().strict_priorities && self.feature_enabled(QUORUM_CONSUMER_TIMEOUTS.name)
    }

    /// Combines arguments and policies. Of two limits the smaller one applies. Of two texts the argument applies,
    /// except that the policy decides the `overflow` of a quorum queue.
    pub fn queue_settings(&self, queue: &QueueRecord) -> EffectiveSettings {
        let policy = self.effective_policy(queue);
        let limit = |key: &str| -> Option<i64> {
            let argument = queue.arguments.get(&format!("x-{key}"));
            let argument = argument.and_then(Value::as_integer);
            let policy = policy.definition.get(key).and_then(Value::as_integer);
            match (argument, policy) {
                (Some(a), Some(p)) => Some(stricter(a, p)),
                (one, other) => one.or(other),
            }
        };
        let non_negative = |key: &str| limit(key).and_then(|n| u64::try_from(n).ok());
        let overflow = overflow(&policy, queue);
        let delivery_limit = queue.kind.descriptor().delivery_limit.and_then(|default| {
            match limit("delivery-limit") {
                None => Some(default),
                // A negative limit means no limit.
                Some(n) if n < 0 => None,
                Some(n) => Some(u32::try_from(n).unwrap_or(u32::MAX)),
            }
        });
        let queue_settings = QueueSettings {
            max_length: non_negative("max-length"),
            max_length_bytes: non_negative("max-length-bytes"),
            overflow,
            delivery_limit,
            message_ttl_ms: non_negative("message-ttl"),
            single_active_consumer: queue.arguments.get("x-single-active-consumer")
                == Some(&Value::Bool(true)),
            max_priority: max_priority(queue).filter(|_| queue.kind.descriptor().priorities),
            dead_letter: dead_lettering(&policy, queue, overflow),
            quorum: QuorumSettings {
                delayed_retry: delayed_retry(&policy, queue, &non_negative),
                deduplication_window_ms: queue.deduplication_window_ms(),
            },
        };
        EffectiveSettings {
            queue: queue_settings,
            dead_letter_exchange: text_of(&policy, queue, "dead-letter-exchange").map(Name::from),
            dead_letter_routing_key: text_of(&policy, queue, "dead-letter-routing-key")
                .map(Name::from),
            expires_ms: non_negative("expires"),
            consumer_timeout_ms: non_negative("consumer-timeout"),
            times_out_consumers: self.times_out_consumers(queue.kind),
            features: match queue.kind.descriptor().strict_priorities {
                true => QuorumFeatures {
                    message_groups: self.has_message_groups(queue),
                    ..self.quorum_features()
                },
                false => QuorumFeatures::default(),
            },
            stream: match queue.kind.descriptor().cursors {
                true => stream_settings(&policy, queue),
                false => StreamSettings::default(),
            },
        }
    }
}

/// The value of `x-max-priority`, which no policy can set. Its range is checked at declaration. A queue with priorities
/// has at least two, as in RabbitMQ.
fn max_priority(queue: &QueueRecord) -> Option<u8> {
    let value = queue.arguments.get("x-max-priority")?.as_integer()?;
    u8::try_from(value.clamp(1, u8::MAX.into())).ok()
}
