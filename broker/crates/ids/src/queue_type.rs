//! The queue types, each with a descriptor of everything that code outside the type's own crate has to know about it.
//!
//! A crate that treats queue types differently asks the descriptor; it does not match on [`QueueType`]. A new type is a new
//! variant with a descriptor here, a crate with its state machine, and one arm where a shard opens its replicas.

use crate::{DeadLettering, Overflow};
use std::fmt;
use std::ops::{Index, IndexMut};

/// The type of a queue (`x-queue-type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueueType {
    /// One replica on one node, with files of its own.
    #[default]
    Classic,
    /// A Raft group with a replica on each member.
    Quorum,
    /// A replicated log that consumers read by offset.
    Stream,
}

/// Number and placement of a queue's replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replication {
    /// One replica, on the node of the client that declares the queue.
    None,
    /// A Raft group of several members, placed by the placement policy. Members can be added and removed.
    Raft,
}

/// Rules for the consumers of a queue type.
///
/// Every member of a replicated queue applies the same commands in the same order, so its rules must not depend on
/// anything that only the leader knows.
#[derive(Debug)]
pub struct ConsumerRules {
    /// A consumer's credit and prefetch can change while it consumes. A 0.9.1 channel needs this for a prefetch that all
    /// its consumers share (`basic.qos` with `global`).
    pub adjustable_credit: bool,
    /// Most unacknowledged deliveries of a consumer that sets no prefetch.
    pub unlimited_prefetch: usize,
    /// A consumer can be exclusive (`basic.consume` with `exclusive`).
    pub exclusive: bool,
    /// A waiting consumer of higher priority replaces the single active consumer once its deliveries are settled.
    pub priority_replaces_active: bool,
    /// `basic.get` is allowed on a queue with a single active consumer.
    pub get_with_single_active: bool,
    /// A consumer with credit is told whether it gets messages, and each time that this changes (AMQP 1.0).
    pub reports_activity: bool,
    /// A consumer can set its own acknowledgement timeout (`x-consumer-timeout`).
    pub own_timeout: bool,
}

/// Facts about a queue type.
#[derive(Debug)]
pub struct QueueTypeDescriptor {
    /// The name in `x-queue-type` and in the HTTP API.
    pub name: &'static str,
    /// The name in RabbitMQ's error texts and metrics, which clients and dashboards match on.
    pub module: &'static str,
    /// The number on disk and between nodes. Never reused.
    pub code: u8,
    /// The value of a policy's `apply-to` that selects queues of this type only.
    pub policy_target: &'static str,
    /// Number and placement of replicas.
    pub replication: Replication,
    /// Arguments that a declaration can carry and that a second declaration must repeat, in the order of comparison.
    /// As in RabbitMQ, `x-quorum-target-group-size` is not among them: it may differ the next time, on a queue of any
    /// type.
    pub arguments: &'static [&'static str],
    /// The queue can be non-durable, exclusive or auto-delete.
    pub transient: bool,
    /// The server can choose the queue's name.
    pub server_named: bool,
    /// `queue.delete` accepts the flags if-unused and if-empty.
    pub conditional_delete: bool,
    /// The queue can be bound to an exchange of type `x-local-random`, which needs the queue on the publisher's node.
    pub local: bool,
    /// Failed deliveries after which a message becomes a dead letter, unless the queue sets another limit. None: the type
    /// counts no failed deliveries.
    pub delivery_limit: Option<u32>,
    /// Messages have the priority that their publisher set, up to the argument `x-max-priority`.
    pub priorities: bool,
    /// Messages have 32 strict priority levels without an argument, once the feature flag `quorum_strict_priorities` is
    /// enabled.
    pub strict_priorities: bool,
    /// Supported effects of a length limit. Any other setting acts as [`Overflow::DropHead`].
    pub overflow: &'static [Overflow],
    /// `overflow` of a policy takes precedence over the queue's argument.
    pub policy_decides_overflow: bool,
    /// [`DeadLettering::AtLeastOnce`] is supported.
    pub dead_letter_at_least_once: bool,
    /// A message that was rejected counts a failed delivery before it becomes a dead letter.
    pub rejection_counts_as_failure: bool,
    /// A message can be held back until the time that its publisher set.
    pub scheduled_delivery: bool,
    /// A message that is published again can be recognised and not stored.
    pub deduplication: bool,
    /// Messages of one group can be delivered in order and to one consumer at a time.
    pub message_groups: bool,
    /// Every message is on disk, also one that was published as transient.
    pub all_persistent: bool,
    /// The feature flag without which queues of this type cannot be declared, because other versions cannot read them.
    pub feature: Option<&'static str>,
    /// Consumers read by position and remove nothing. The session's side keeps the position.
    pub cursors: bool,
    /// Rules for consumers.
    pub consumers: ConsumerRules,
}

static CLASSIC: QueueTypeDescriptor = QueueTypeDescriptor {
    name: "classic",
    module: "rabbit_classic_queue",
    code: 1,
    policy_target: "classic_queues",
    replication: Replication::None,
    arguments: &[
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-priority",
        "x-overflow",
        "x-queue-mode",
        "x-queue-version",
        "x-single-active-consumer",
        "x-queue-type",
        "x-queue-leader-locator",
        "x-queue-master-locator",
    ],
    transient: true,
    server_named: true,
    conditional_delete: true,
    local: true,
    delivery_limit: None,
    priorities: true,
    strict_priorities: false,
    overflow: &[
        Overflow::DropHead,
        Overflow::RejectPublish,
        Overflow::RejectPublishDlx,
    ],
    policy_decides_overflow: false,
    dead_letter_at_least_once: false,
    rejection_counts_as_failure: false,
    scheduled_delivery: false,
    deduplication: false,
    message_groups: false,
    all_persistent: false,
    feature: None,
    cursors: false,
    consumers: ConsumerRules {
        adjustable_credit: true,
        unlimited_prefetch: usize::MAX,
        exclusive: true,
        priority_replaces_active: false,
        get_with_single_active: true,
        reports_activity: false,
        own_timeout: false,
    },
};

static QUORUM: QueueTypeDescriptor = QueueTypeDescriptor {
    name: "quorum",
    module: "rabbit_quorum_queue",
    code: 2,
    policy_target: "quorum_queues",
    replication: Replication::Raft,
    arguments: &[
        "x-expires",
        "x-message-ttl",
        "x-dead-letter-exchange",
        "x-dead-letter-routing-key",
        "x-dead-letter-strategy",
        "x-max-length",
        "x-max-length-bytes",
        "x-max-in-memory-length",
        "x-max-in-memory-bytes",
        "x-overflow",
        "x-single-active-consumer",
        "x-queue-type",
        "x-quorum-initial-group-size",
        "x-delivery-limit",
        "x-consumer-timeout",
        "x-delayed-retry-type",
        "x-delayed-retry-min",
        "x-delayed-retry-max",
        "x-message-deduplication",
        "x-deduplication-window",
        "x-message-groups",
        "x-queue-leader-locator",
    ],
    transient: false,
    server_named: false,
    conditional_delete: false,
    local: false,
    delivery_limit: Some(20),
    priorities: false,
    strict_priorities: true,
    overflow: &[Overflow::DropHead, Overflow::RejectPublish],
    policy_decides_overflow: true,
    dead_letter_at_least_once: true,
    rejection_counts_as_failure: true,
    scheduled_delivery: true,
    deduplication: true,
    message_groups: true,
    all_persistent: true,
    feature: None,
    cursors: false,
    consumers: ConsumerRules {
        adjustable_credit: false,
        unlimited_prefetch: 2_000,
        exclusive: false,
        priority_replaces_active: true,
        get_with_single_active: false,
        reports_activity: true,
        own_timeout: true,
    },
};

static STREAM: QueueTypeDescriptor = QueueTypeDescriptor {
    name: "stream",
    module: "rabbit_stream_queue",
    code: 3,
    policy_target: "streams",
    replication: Replication::Raft,
    arguments: &[
        "x-queue-type",
        "x-max-length-bytes",
        "x-max-age",
        "x-stream-max-segment-size-bytes",
        "x-stream-filter-size-bytes",
        "x-initial-cluster-size",
        "x-queue-leader-locator",
    ],
    transient: false,
    server_named: false,
    conditional_delete: false,
    local: false,
    delivery_limit: None,
    priorities: false,
    strict_priorities: false,
    overflow: &[Overflow::DropHead],
    policy_decides_overflow: false,
    dead_letter_at_least_once: false,
    rejection_counts_as_failure: false,
    scheduled_delivery: false,
    deduplication: false,
    message_groups: false,
    all_persistent: true,
    feature: Some("stream_queues"),
    cursors: true,
    consumers: ConsumerRules {
        adjustable_credit: false,
        unlimited_prefetch: 0,
        exclusive: false,
        priority_replaces_active: false,
        get_with_single_active: false,
        reports_activity: false,
        own_timeout: false,
    },
};

impl QueueType {
    /// Number of queue types.
    pub const COUNT: usize = QueueType::ALL.len();

    /// All queue types, in the order of their names.
    pub const ALL: [QueueType; 3] = [QueueType::Classic, QueueType::Quorum, QueueType::Stream];

    /// Facts about the type.
    pub fn descriptor(self) -> &'static QueueTypeDescriptor {
        match self {
            QueueType::Classic => &CLASSIC,
            QueueType::Quorum => &QUORUM,
            QueueType::Stream => &STREAM,
        }
    }

    /// The name in `x-queue-type` and in the HTTP API.
    pub fn name(self) -> &'static str {
        self.descriptor().name
    }

    /// The name in RabbitMQ's error texts and metrics.
    pub fn module(self) -> &'static str {
        self.descriptor().module
    }

    /// The type of that name, if there is one.
    pub fn from_name(name: &str) -> Option<QueueType> {
        QueueType::ALL.into_iter().find(|t| t.name() == name)
    }

    /// The type of that number on disk, if this version knows it.
    pub fn from_code(code: u8) -> Option<QueueType> {
        QueueType::ALL
            .into_iter()
            .find(|t| t.descriptor().code == code)
    }

    /// True if the queue has members that can be added, removed and elected.
    pub fn is_replicated(self) -> bool {
        self.descriptor().replication == Replication::Raft
    }

    /// The effect of a length limit that the type applies when `setting` is asked for.
    pub fn overflow(self, setting: Overflow) -> Overflow {
        if self.descriptor().overflow.contains(&setting) {
            setting
        } else {
            Overflow::DropHead
        }
    }

    /// The treatment of dead letters that the type applies when `strategy` is asked for.
    pub fn dead_lettering(self, strategy: DeadLettering, overflow: Overflow) -> DeadLettering {
        // A queue that keeps dead letters cannot drop messages to stay within its length.
        let possible =
            self.descriptor().dead_letter_at_least_once && overflow == Overflow::RejectPublish;
        match strategy {
            DeadLettering::AtLeastOnce if !possible => DeadLettering::AtMostOnce,
            strategy => strategy,
        }
    }
}

/// One value for each queue type.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ByQueueType<T>([T; QueueType::COUNT]);

impl<T: Default + PartialEq> ByQueueType<T> {
    /// Types and values without streams that have the default value. Formats that are older than
    /// streams list values this way, so that a node without streams writes the bytes that it always
    /// wrote.
    pub fn iter_compatible(&self) -> impl Iterator<Item = (QueueType, &T)> {
        self.iter()
            .filter(|(t, value)| *t != QueueType::Stream || **value != T::default())
    }
}

/// Leaves out a default value of streams, as [`ByQueueType::iter_compatible`] does.
impl<T: fmt::Debug + Default + PartialEq> fmt::Debug for ByQueueType<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        struct List<'a, T>(&'a ByQueueType<T>);
        impl<T: fmt::Debug + Default + PartialEq> fmt::Debug for List<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let values = self.0.iter_compatible().map(|(_, value)| value);
                f.debug_list().entries(values).finish()
            }
        }
        f.debug_tuple("ByQueueType").field(&List(self)).finish()
    }
}

impl<T> ByQueueType<T> {
    /// A value for each type, made by `value`.
    pub fn from_fn(mut value: impl FnMut(QueueType) -> T) -> Self {
        ByQueueType(QueueType::ALL.map(&mut value))
    }

    /// Types and values, in the order of [`QueueType::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (QueueType, &T)> {
        QueueType::ALL.into_iter().zip(&self.0)
    }

    /// The same, for changes.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (QueueType, &mut T)> {
        QueueType::ALL.into_iter().zip(&mut self.0)
    }

    /// The values without their types.
    pub fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter()
    }
}

impl<T> Index<QueueType> for ByQueueType<T> {
    type Output = T;

    fn index(&self, queue_type: QueueType) -> &T {
        &self.0[queue_type as usize]
    }
}

impl<T> IndexMut<QueueType> for ByQueueType<T> {
    fn index_mut(&mut self, queue_type: QueueType) -> &mut T {
        &mut self.0[queue_type as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_codes_identify_one_type_each() {
        for queue_type in QueueType::ALL {
            assert_eq!(QueueType::from_name(queue_type.name()), Some(queue_type));
            let code = queue_type.descriptor().code;
            assert_eq!(QueueType::from_code(code), Some(queue_type));
        }
        assert_eq!(QueueType::from_name("Classic"), None);
        assert_eq!(QueueType::from_code(0), None);
    }

    #[test]
    fn values_are_indexed_in_the_order_of_all() {
        let names = ByQueueType::from_fn(QueueType::name);
        for (queue_type, name) in names.iter() {
            assert_eq!(*name, queue_type.name());
            assert_eq!(names[queue_type], *name);
        }
    }

    #[test]
    fn debug_text_leaves_out_streams_with_the_default_value() {
        let mut values = ByQueueType::<u64>::default();
        values[QueueType::Quorum] = 3;
        assert_eq!(format!("{values:?}"), "ByQueueType([0, 3])");
        values[QueueType::Stream] = 4;
        assert_eq!(format!("{values:?}"), "ByQueueType([0, 3, 4])");
    }

    #[test]
    fn unsupported_overflow_drops_the_oldest_message() {
        let classic = QueueType::Classic;
        let quorum = QueueType::Quorum;
        let setting = Overflow::RejectPublishDlx;
        assert_eq!(classic.overflow(setting), Overflow::RejectPublishDlx);
        assert_eq!(quorum.overflow(setting), Overflow::DropHead);
    }

    #[test]
    fn at_least_once_needs_reject_publish() {
        let (once, least) = (DeadLettering::AtMostOnce, DeadLettering::AtLeastOnce);
        let quorum = QueueType::Quorum;
        let strategy = |t: QueueType, overflow| t.dead_lettering(least, overflow);
        assert_eq!(strategy(quorum, Overflow::RejectPublish), least);
        assert_eq!(strategy(quorum, Overflow::DropHead), once);
        assert_eq!(strategy(QueueType::Classic, Overflow::RejectPublish), once);
    }
}
