//! What a queue's arguments and policies come to.

use crate::policy_keys::stricter;
use crate::{QueueKind, QueueRecord, Tree};
use message::Value;

/// Failed deliveries that a quorum queue allows unless it says otherwise (Q9).
pub const DEFAULT_DELIVERY_LIMIT: u32 = 20;

/// Settings of a queue, field by field those of `queue::QueueSettings`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    pub max_length: Option<u64>,
    pub max_length_bytes: Option<u64>,
    pub overflow: Overflow,
    /// None is no limit.
    pub delivery_limit: Option<u32>,
    pub message_ttl_ms: Option<u64>,
    pub single_active_consumer: bool,
    /// Classic: the highest priority; all are alike without.
    pub max_priority: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overflow {
    DropHead,
    RejectPublish,
}

impl Tree {
    /// Milliseconds that a consumer may keep a delivery (`x-consumer-timeout`, `consumer-timeout`); None: the queue does not say.
    pub fn consumer_timeout(&self, queue: &QueueRecord) -> Option<u64> {
        let argument = queue.arguments.get("x-consumer-timeout");
        let policy = self.effective_policy(queue);
        let both = [argument, policy.definition.get("consumer-timeout")];
        let known = both.into_iter().flatten().filter_map(Value::as_integer);
        known.filter_map(|n| u64::try_from(n).ok()).min()
    }

    /// Where argument and policy both name a limit the smaller holds. For `overflow` a classic queue goes by its
    /// argument, a quorum queue by the policy.
    pub fn queue_settings(&self, queue: &QueueRecord) -> QueueSettings {
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
        let natural = |key: &str| limit(key).and_then(|n| u64::try_from(n).ok());
        let said = policy.definition.get("overflow");
        let argued = queue.arguments.get("x-overflow");
        let overflow = match queue.kind {
            QueueKind::Classic => argued.or(said),
            QueueKind::Quorum => said.or(argued),
        };
        let delivery_limit = match (queue.kind, limit("delivery-limit")) {
            (QueueKind::Classic, _) => None,
            (QueueKind::Quorum, None) => Some(DEFAULT_DELIVERY_LIMIT),
            // Negative: none.
            (QueueKind::Quorum, Some(n)) if n < 0 => None,
            (QueueKind::Quorum, Some(n)) => Some(u32::try_from(n).unwrap_or(u32::MAX)),
        };
        QueueSettings {
            max_length: natural("max-length"),
            max_length_bytes: natural("max-length-bytes"),
            overflow: match overflow.and_then(Value::as_str) {
                Some("reject-publish" | "reject-publish-dlx") => Overflow::RejectPublish,
                _ => Overflow::DropHead,
            },
            delivery_limit,
            message_ttl_ms: natural("message-ttl"),
            single_active_consumer: queue.arguments.get("x-single-active-consumer")
                == Some(&Value::Bool(true)),
            max_priority: match queue.kind {
                QueueKind::Classic => max_priority(queue),
                QueueKind::Quorum => None,
            },
        }
    }
}

/// An argument only: a policy cannot say it. Its range was checked when the queue was declared.
fn max_priority(queue: &QueueRecord) -> Option<u8> {
    let said = queue.arguments.get("x-max-priority")?.as_integer()?;
    u8::try_from(said.clamp(0, u8::MAX.into())).ok()
}
