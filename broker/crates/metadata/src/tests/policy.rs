use super::*;

fn settings(log: &Log, called: &str) -> QueueSettings {
    log.tree
        .queue_settings(log.tree.queue("/", called).unwrap())
        .queue
}

fn effective_settings(log: &Log, called: &str) -> EffectiveSettings {
    log.tree
        .queue_settings(log.tree.queue("/", called).unwrap())
}

fn effective(log: &Log, called: &str) -> std::sync::Arc<EffectivePolicy> {
    log.tree
        .effective_policy(log.tree.queue("/", called).unwrap())
}

#[test]
fn the_highest_priority_wins_and_changes_are_reported() {
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
    // The winner alone counts; policies of one scope do not add up.
    let found = effective(&log, "orders.a");
    assert_eq!(
        (found.name.as_deref(), found.operator_name.as_deref()),
        (Some("high"), None)
    );
    let now = settings(&log, "orders.a");
    assert_eq!((now.max_length, now.message_ttl_ms), (None, Some(7)));
    assert_eq!(log.ok(Change::PutPolicy(high)), ChangeResult::AsBefore);
    // What is declared later gets it too.
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
fn operator_policies_limit_what_users_say() {
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
fn defaults_of_the_types() {
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
fn a_policy_applies_only_where_all_of_it_can() {
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
        for (called, want) in [("c", classic), ("q", quorum)] {
            assert_eq!(
                settings(&log, called).max_length.is_some(),
                want,
                "{apply_to:?} {called}"
            );
            let queue = log.tree.queue("/", called).unwrap();
            assert_eq!(log.tree.policy_matches(&narrow, queue), want);
        }
    }
}

#[test]
fn bad_policies_are_refused() {
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
    for (record, want) in cases {
        let refused = log.refused(Change::PutPolicy(record));
        assert!(matches!(refused, ChangeError::Invalid(_)), "{refused:?}");
        assert!(refused.to_string().contains(want), "{refused}");
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
fn overflow_goes_by_the_argument_in_a_classic_queue_and_by_the_policy_in_a_quorum_queue() {
    let mut log = Log::new();
    for (record, want) in [
        (queue("classic"), Overflow::DropHead),
        (quorum("quorum"), Overflow::RejectPublish),
    ] {
        let called = record.name.to_string();
        let mut arguments = record.arguments.clone();
        arguments.set("x-overflow", Value::from("drop-head"));
        log.declare(QueueRecord {
            arguments,
            ..record
        });
        log.ok(Change::PutPolicy(policy(
            &called,
            &called,
            &[("overflow", Value::from("reject-publish"))],
        )));
        assert_eq!(settings(&log, &called).overflow, want);
    }
}

#[test]
fn priorities_are_an_argument_of_classic_queues() {
    let mut log = Log::new();
    for (said, want) in [(0, Some(1)), (9, Some(9)), (255, Some(255))] {
        let called = format!("p{said}");
        log.declare(QueueRecord {
            arguments: table(&[("x-max-priority", Value::I32(said))]),
            ..queue(&called)
        });
        assert_eq!(settings(&log, &called).max_priority, want);
    }
    log.declare(queue("none"));
    assert_eq!(settings(&log, "none").max_priority, None);
}

#[test]
fn dead_letters_take_the_queues_word_and_then_the_policys() {
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
    // A quorum queue's overflow is the policy's, a classic queue's its own.
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
