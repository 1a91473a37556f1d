use super::*;

fn settings(log: &Log, label: &str) -> QueueSettings {
    log.tree
        .queue_settings(log.tree.queue("/", label).unwrap())
        .queue
}

fn effective_settings(log: &Log, label: &str) -> EffectiveSettings {
    log.tree.queue_settings(log.tree.queue("/", label).unwrap())
}

fn effective(log: &Log, label: &str) -> std::sync::Arc<EffectivePolicy> {
    log.tree
        .effective_policy(log.tree.queue("/", label).unwrap())
}

#[test]
fn policy_with_highest_priority_applies_and_changes_are_reported() {
    let mut log = Log::new();
    let a = log.declare(queue("orders.a"));
    log.declare(queue("other"));
    log.ok(Change::PutPolicy(policy(
        "low",
        "^orders",
        &[("max-length", Value::I64(10))],
    )));
    assert_eq!(log.tree.events(), [TreeEvent::PolicyChanged(vec![a])]);
    assert_eq!(settings(&log, "orders.a").max_length, Some(10));
    assert_eq!(settings(&log, "other").max_length, None);
    let high = PolicyRecord {
        priority: 5,
        ..policy("high", "a$", &[("message-ttl", Value::I64(7))])
    };
    log.ok(Change::PutPolicy(high.clone()));
    // Only the matching policy with the highest priority counts. Policies of one scope do not add up.
    let found = effective(&log, "orders.a");
    assert_eq!(
        (found.name.as_deref(), found.operator_name.as_deref()),
        (Some("high"), None)
    );
    let now = settings(&log, "orders.a");
    assert_eq!((now.max_length, now.message_ttl_ms), (None, Some(7)));
    assert_eq!(log.ok(Change::PutPolicy(high)), ChangeResult::Unchanged);
    // Also applies to queues that are declared later.
    log.declare(queue("orders.b.a"));
    assert_eq!(effective(&log, "orders.b.a").name.as_deref(), Some("high"));
    log.ok(Change::DeletePolicy {
        vhost: name("/"),
        name: name("high"),
        scope: PolicyScope::User,
    });
    assert_eq!(effective(&log, "orders.a").name.as_deref(), Some("low"));
}

#[test]
fn operator_policies_limit_user_policies() {
    let mut log = Log::new();
    log.declare(QueueRecord {
        arguments: table(&[
            ("x-queue-type", Value::from("quorum")),
            ("x-max-length", Value::I32(50)),
            ("x-overflow", Value::from("drop-head")),
        ]),
        ..quorum("q")
    });
    log.ok(Change::PutPolicy(policy(
        "p",
        "",
        &[
            ("max-length", Value::I64(100)),
            ("delivery-limit", Value::I64(-1)),
            ("overflow", Value::from("reject-publish")),
        ],
    )));
    let first = settings(&log, "q");
    assert_eq!(
        (first.max_length, first.delivery_limit, first.overflow),
        (Some(50), None, Overflow::RejectPublish)
    );
    log.ok(Change::PutPolicy(PolicyRecord {
        scope: PolicyScope::Operator,
        ..policy(
            "p",
            "q",
            &[
                ("max-length", Value::I64(20)),
                ("delivery-limit", Value::I64(5)),
            ],
        )
    }));
    let found = effective(&log, "q");
    assert_eq!(
        (found.name.as_deref(), found.operator_name.as_deref()),
        (Some("p"), Some("p"))
    );
    assert_eq!(
        found.definition.get("overflow"),
        Some(&Value::from("reject-publish"))
    );
    let then = settings(&log, "q");
    assert_eq!((then.max_length, then.delivery_limit), (Some(20), Some(5)));
    assert_eq!(log.tree.policies(PolicyScope::Operator).len(), 1);
}

#[test]
fn default_settings_of_queue_types() {
    let mut log = Log::new();
    log.declare(quorum("q"));
    log.declare(queue("c"));
    assert_eq!(
        settings(&log, "q").delivery_limit,
        QueueType::Quorum.descriptor().delivery_limit
    );
    let classic = settings(&log, "c");
    assert_eq!(
        (classic.delivery_limit, classic.overflow),
        (None, Overflow::DropHead)
    );
    assert!(!classic.single_active_consumer);
}

#[test]
fn policy_applies_only_to_types_that_support_all_its_keys() {
    let mut log = Log::new();
    log.declare(quorum("q"));
    log.declare(queue("c"));
    let mixed = policy(
        "p",
        "",
        &[
            ("max-length", Value::I64(1)),
            ("delivery-limit", Value::I64(3)),
        ],
    );
    log.ok(Change::PutPolicy(mixed));
    assert_eq!(settings(&log, "q").delivery_limit, Some(3));
    assert_eq!(settings(&log, "c").max_length, None);
    for (apply_to, classic, quorum) in [
        (ApplyTo::All, true, true),
        (ApplyTo::Queues, true, true),
        (ApplyTo::ClassicQueues, true, false),
        (ApplyTo::QuorumQueues, false, true),
        (ApplyTo::Streams, false, false),
        (ApplyTo::Exchanges, false, false),
    ] {
        let narrow = PolicyRecord {
            apply_to,
            ..policy("p", "", &[("max-length", Value::I64(1))])
        };
        log.ok(Change::PutPolicy(narrow.clone()));
        for (label, expected) in [("c", classic), ("q", quorum)] {
            assert_eq!(
                settings(&log, label).max_length.is_some(),
                expected,
                "{apply_to:?} {label}"
            );
            let queue = log.tree.queue("/", label).unwrap();
            assert_eq!(log.tree.policy_matches(&narrow, queue), expected);
        }
    }
}

#[test]
fn invalid_policies_are_refused() {
    let mut log = Log::new();
    let cases = [
        (
            policy("p", "(", &[("max-length", Value::I64(1))]),
            "pattern should be regular expression but is invalid",
        ),
        (policy("p", "", &[]), "no policy provided"),
        (
            policy("p", "", &[("max-lenght", Value::I64(1))]),
            "[{<<\"max-lenght\">>,1}] are not recognised policy settings",
        ),
        (
            policy("p", "", &[("max-length", Value::I64(-1))]),
            "-1 is not a valid maximum length",
        ),
        (
            policy("p", "", &[("max-length", Value::from("1"))]),
            "<<\"1\">> is not a valid maximum length",
        ),
        (
            policy("p", "", &[("overflow", Value::from("x"))]),
            "<<\"x\">> is not a valid overflow value",
        ),
        (
            policy("", "", &[("max-length", Value::I64(1))]),
            "policy name",
        ),
        (
            PolicyRecord {
                scope: PolicyScope::Operator,
                ..policy("p", "", &[("alternate-exchange", Value::from("x"))])
            },
            "[{<<\"alternate-exchange\">>,<<\"x\">>}] are not recognised policy settings",
        ),
    ];
    for (record, expected) in cases {
        let refused = log.refused(Change::PutPolicy(record));
        assert!(matches!(refused, ChangeError::Invalid(_)), "{refused:?}");
        assert!(refused.to_string().contains(expected), "{refused}");
    }
    let nowhere = PolicyRecord {
        vhost: name("no"),
        ..policy("p", "", &[("max-length", Value::I64(1))])
    };
    assert!(matches!(
        log.refused(Change::PutPolicy(nowhere)),
        ChangeError::NotFound(_)
    ));
}

#[test]
fn overflow_is_set_by_argument_for_classic_and_by_policy_for_quorum_queues() {
    let mut log = Log::new();
    for (record, expected) in [
        (queue("classic"), Overflow::DropHead),
        (quorum("quorum"), Overflow::RejectPublish),
    ] {
        let label = record.name.to_string();
        let mut arguments = record.arguments.clone();
        arguments.set("x-overflow", Value::from("drop-head"));
        log.declare(QueueRecord {
            arguments,
            ..record
        });
        log.ok(Change::PutPolicy(policy(
            &label,
            &label,
            &[("overflow", Value::from("reject-publish"))],
        )));
        assert_eq!(settings(&log, &label).overflow, expected);
    }
}

#[test]
fn priorities_are_set_by_argument_of_classic_queues() {
    let mut log = Log::new();
    for (argument, expected) in [(0, Some(1)), (9, Some(9)), (255, Some(255))] {
        let label = format!("p{argument}");
        log.declare(QueueRecord {
            arguments: table(&[("x-max-priority", Value::I32(argument))]),
            ..queue(&label)
        });
        assert_eq!(settings(&log, &label).max_priority, expected);
    }
    log.declare(queue("none"));
    assert_eq!(settings(&log, "none").max_priority, None);
}

#[test]
fn dead_lettering_is_set_by_argument_and_otherwise_by_policy() {
    use crate::DeadLettering::{AtLeastOnce, AtMostOnce, Off};
    let mut log = Log::new();
    let with = |record: QueueRecord, list: &[(&str, Value)]| {
        let mut arguments = record.arguments.clone();
        for (key, value) in list {
            arguments.set(key, value.clone());
        }
        QueueRecord {
            arguments,
            ..record
        }
    };
    let reject = ("x-overflow", Value::from("reject-publish"));
    let surely = ("x-dead-letter-strategy", Value::from("at-least-once"));
    let dlx = ("x-dead-letter-exchange", Value::from("own"));
    log.declare(with(quorum("sure"), &[surely.clone(), reject.clone()]));
    log.declare(with(quorum("head"), &[surely, dlx.clone()]));
    let dlx_reject = ("x-overflow", Value::from("reject-publish-dlx"));
    log.declare(with(quorum("cannot"), std::slice::from_ref(&dlx_reject)));
    log.declare(with(queue("can"), &[dlx_reject, dlx]));
    log.declare(with(
        queue("lease"),
        &[("x-expires", Value::I32(500)), reject],
    ));
    assert_eq!(settings(&log, "sure").dead_letter, Off);
    log.ok(Change::PutPolicy(policy(
        "p",
        "",
        &[
            ("dead-letter-exchange", Value::from("theirs")),
            ("dead-letter-routing-key", Value::from("key")),
            ("overflow", Value::from("drop-head")),
            ("expires", Value::I64(900)),
        ],
    )));
    let of = |name: &str| {
        let s = effective_settings(&log, name);
        let exchange = s.dead_letter_exchange.map(|x| x.to_string());
        let queue = s.queue;
        (
            exchange.unwrap_or_default(),
            queue.dead_letter,
            queue.overflow,
        )
    };
    let (own, theirs) = ("own".to_owned(), "theirs".to_owned());
    // The policy decides the overflow of a quorum queue, the argument that of a classic queue.
    assert_eq!(of("sure"), (theirs.clone(), AtMostOnce, Overflow::DropHead));
    assert_eq!(of("head"), (own.clone(), AtMostOnce, Overflow::DropHead));
    assert_eq!(of("can"), (own, AtMostOnce, Overflow::RejectPublishDlx));
    assert_eq!(of("lease"), (theirs, AtMostOnce, Overflow::RejectPublish));
    let lease = effective_settings(&log, "lease");
    assert_eq!(lease.expires_ms, Some(500));
    assert_eq!(lease.dead_letter_routing_key.as_deref(), Some("key"));
    log.ok(Change::PutPolicy(policy(
        "p",
        "",
        &[("dead-letter-exchange", Value::from("theirs"))],
    )));
    assert_eq!(settings(&log, "sure").dead_letter, AtLeastOnce);
    assert_eq!(settings(&log, "cannot").overflow, Overflow::DropHead);
}
