//! Delayed retry: arguments, policies and the feature flag.

use super::*;
use crate::features::QUORUM_DELAYED_RETRY;

fn enable(log: &mut Log) {
    let name = QUORUM_DELAYED_RETRY.name.into();
    log.apply(Change::EnableFeature { name }).expect("allowed");
}

fn log_with_retry() -> Log {
    let mut log = Log::new();
    enable(&mut log);
    log
}

fn with(record: QueueRecord, arguments: &[(&str, Value)]) -> QueueRecord {
    let mut record = record;
    for (key, value) in arguments {
        record.arguments.set(key, value.clone());
    }
    record
}

fn retry(log: &Log, label: &str) -> Option<DelayedRetry> {
    let queue = log.tree.queue("/", label).unwrap();
    log.tree.queue_settings(queue).queue.quorum.delayed_retry
}

fn retry_policy(definition: &[(&str, Value)]) -> Change {
    Change::PutPolicy(policy("retry", "^q", definition))
}

#[test]
fn argument_type_precedes_the_policy_and_the_smaller_delay_applies() {
    let mut log = log_with_retry();
    let all = [
        ("x-delayed-retry-type", Value::from("all")),
        ("x-delayed-retry-min", Value::I32(1000)),
        ("x-delayed-retry-max", Value::I32(9000)),
    ];
    log.declare(with(quorum("q"), &all));
    let of = |returns, min_ms, max_ms| {
        Some(DelayedRetry {
            returns,
            min_ms,
            max_ms,
        })
    };
    assert_eq!(retry(&log, "q"), of(DelayedReturns::All, 1000, 9000));
    log.declare(quorum("q2"));
    assert_eq!(retry(&log, "q2"), None);
    log.ok(retry_policy(&[
        ("delayed-retry-type", Value::from("failed")),
        ("delayed-retry-min", Value::I64(2000)),
        ("delayed-retry-max", Value::I64(5000)),
    ]));
    assert_eq!(retry(&log, "q"), of(DelayedReturns::All, 1000, 5000));
    assert_eq!(retry(&log, "q2"), of(DelayedReturns::Failed, 2000, 5000));
    // Without a maximum the minimum is the maximum.
    log.ok(retry_policy(&[
        ("delayed-retry-type", Value::from("returned")),
        ("delayed-retry-min", Value::I64(70)),
    ]));
    assert_eq!(retry(&log, "q2"), of(DelayedReturns::Returned, 70, 70));
    // Without a minimum there is no delay.
    let kind = ("delayed-retry-type", Value::from("all"));
    log.ok(retry_policy(&[kind]));
    assert_eq!(retry(&log, "q2"), None);
    log.ok(retry_policy(&[
        ("delayed-retry-type", Value::from("disabled")),
        ("delayed-retry-min", Value::I64(70)),
    ]));
    assert_eq!(retry(&log, "q2"), None);
}

#[test]
fn invalid_values_are_refused() {
    let mut log = log_with_retry();
    for (key, value, reason) in [
        (
            "x-delayed-retry-type",
            Value::from("some"),
            "invalid_delayed_retry_type",
        ),
        ("x-delayed-retry-type", Value::I32(1), "unacceptable_type"),
        ("x-delayed-retry-min", Value::I32(-1), "value_negative"),
        (
            "x-delayed-retry-max",
            Value::I64(i64::MAX),
            "value_too_large",
        ),
    ] {
        let record = with(quorum("q"), &[(key, value)]);
        let refused = log.refused(Change::DeclareQueue(record)).to_string();
        assert!(
            refused.contains(key) && refused.contains(reason),
            "{refused}"
        );
    }
    for (key, value) in [
        ("delayed-retry-type", Value::from("some")),
        ("delayed-retry-min", Value::I64(-1)),
        ("delayed-retry-max", Value::I64(i64::MAX)),
    ] {
        let refused = log.refused(retry_policy(&[(key, value)])).to_string();
        assert!(refused.contains("is not a valid"), "{refused}");
    }
}

#[test]
fn classic_queues_refuse_the_arguments() {
    let mut log = log_with_retry();
    let record = with(queue("q"), &[("x-delayed-retry-min", Value::I32(1))]);
    let refused = log.refused(Change::DeclareQueue(record)).to_string();
    assert!(
        refused.contains("invalid arg 'x-delayed-retry-min'"),
        "{refused}"
    );
}

/// Nodes of versions without the feature accept any value of unknown arguments and refuse unknown policy keys. All nodes
/// must apply a change alike.
#[test]
fn without_the_flag_arguments_and_policies_are_treated_as_by_older_versions() {
    let mut log = Log::new();
    let odd = ("x-delayed-retry-type", Value::I32(1));
    let both = [queue("c"), quorum("q")];
    for record in &both {
        log.declare(with(record.clone(), std::slice::from_ref(&odd)));
        // An unknown argument does not make a declaration differ.
        log.declare(record.clone());
    }
    let definition = [("delayed-retry-type", Value::from("all"))];
    let refused = log.refused(retry_policy(&definition)).to_string();
    assert!(
        refused.contains("are not recognised policy settings"),
        "{refused}"
    );
    assert!(!log.tree.quorum_features().delayed_retry);
    enable(&mut log);
    assert!(log.tree.quorum_features().delayed_retry);
    log.ok(retry_policy(&definition));
    assert_eq!(retry(&log, "q"), None, "no delay without a minimum");
    let refused = log.refused(Change::DeclareQueue(both[1].clone()));
    assert!(
        refused.to_string().contains("inequivalent arg"),
        "{refused}"
    );
}
