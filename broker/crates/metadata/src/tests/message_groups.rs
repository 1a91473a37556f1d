//! Message groups: the argument and the feature flag.

use super::*;
use crate::features::MESSAGE_GROUPS;

fn enable(log: &mut Log) {
    let name = MESSAGE_GROUPS.name.into();
    log.apply(Change::EnableFeature { name }).expect("allowed");
}

fn with_groups(record: QueueRecord, value: Value) -> QueueRecord {
    let mut record = record;
    record.arguments.set("x-message-groups", value);
    record
}

fn has_groups(log: &Log, label: &str) -> bool {
    let queue = log.tree.queue("/", label).unwrap();
    let features = log.tree.queue_settings(queue).features;
    assert_eq!(features.message_groups, log.tree.has_message_groups(queue));
    features.message_groups
}

#[test]
fn only_queues_that_are_declared_with_groups_have_the_feature() {
    let mut log = Log::new();
    enable(&mut log);
    log.declare(quorum("plain"));
    log.declare(with_groups(quorum("off"), Value::Bool(false)));
    assert!(!log.tree.has_queues_with_groups());
    log.declare(with_groups(quorum("on"), Value::Bool(true)));
    assert!(log.tree.has_queues_with_groups());
    assert!(!has_groups(&log, "plain") && !has_groups(&log, "off") && has_groups(&log, "on"));
    let restored = Tree::restore(&log.tree.snapshot()).unwrap();
    assert!(restored.has_queues_with_groups());
    log.ok(Change::DeleteQueue {
        vhost: "/".into(),
        name: "on".into(),
        id: None,
    });
    assert!(!log.tree.has_queues_with_groups());
}

#[test]
fn argument_is_fixed_and_for_quorum_queues() {
    let mut log = Log::new();
    enable(&mut log);
    log.declare(with_groups(quorum("q"), Value::Bool(true)));
    let declare = |record| Change::DeclareQueue(record);
    for (record, expected) in [
        (quorum("q"), "inequivalent arg 'x-message-groups'"),
        (
            with_groups(quorum("q"), Value::Bool(false)),
            "inequivalent arg 'x-message-groups'",
        ),
        (
            with_groups(queue("c"), Value::Bool(true)),
            "invalid arg 'x-message-groups' for queue 'c' in vhost '/' of queue type rabbit_classic_queue",
        ),
        (
            with_groups(quorum("new"), Value::I32(1)),
            "invalid arg 'x-message-groups' for queue 'new' in vhost '/': {unacceptable_type",
        ),
    ] {
        let refused = log.refused(declare(record)).to_string();
        assert!(refused.contains(expected), "{refused}");
    }
}

/// Versions without the flag accept any value and ignore it, and all nodes must apply a declaration alike.
#[test]
fn without_the_flag_the_argument_has_no_effect() {
    let mut log = Log::new();
    log.declare(with_groups(queue("c"), Value::Bool(true)));
    log.declare(with_groups(quorum("q"), Value::Bool(true)));
    log.declare(quorum("q"));
    assert!(!log.tree.has_queues_with_groups());
    assert!(!has_groups(&log, "q") && !has_groups(&log, "c"));
    enable(&mut log);
    assert!(log.tree.has_queues_with_groups());
    assert!(has_groups(&log, "q") && !has_groups(&log, "c"));
}
