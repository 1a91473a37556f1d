//! Arguments that are checked as in RabbitMQ 4.3 once the feature flag `queue_argument_checks` is enabled.

use super::*;
use crate::features::{QUEUE_ARGUMENT_CHECKS, STREAM_QUEUES};

fn log_with_checks() -> Log {
    let mut log = Log::new();
    for feature in [QUEUE_ARGUMENT_CHECKS, STREAM_QUEUES] {
        let name = feature.name.into();
        log.apply(Change::EnableFeature { name }).expect("allowed");
    }
    log
}

fn with(mut record: QueueRecord, key: &str, value: Value) -> QueueRecord {
    record.arguments.set(key, value);
    record
}

fn stream(label: &str) -> QueueRecord {
    QueueRecord {
        kind: QueueType::Stream,
        arguments: table(&[("x-queue-type", Value::from("stream"))]),
        ..quorum(label)
    }
}

fn refusal(log: &mut Log, record: QueueRecord) -> String {
    log.refused(Change::DeclareQueue(record)).to_string()
}

#[test]
fn consumer_timeout_is_an_integer_of_a_quorum_queue() {
    let mut log = log_with_checks();
    let key = "x-consumer-timeout";
    log.declare(with(quorum("taken"), key, Value::I64(60_000)));
    for (value, reason) in [
        (Value::I32(-5), "{value_negative,-5}"),
        (Value::from("5"), "\"expected integer, got longstr\""),
        (Value::Bool(true), "\"expected integer, got bool\""),
        (Value::Timestamp(5), "\"expected integer, got timestamp\""),
    ] {
        let text = refusal(&mut log, with(quorum("q"), key, value));
        let expected = format!("invalid arg '{key}' for queue 'q' in vhost '/': {reason}");
        assert!(text.ends_with(&expected), "{text}");
    }
    for (record, module) in [
        (queue("q"), "rabbit_classic_queue"),
        (stream("q"), "rabbit_stream_queue"),
    ] {
        let text = refusal(&mut log, with(record, key, Value::I64(5)));
        assert!(text.ends_with(&format!("of queue type {module}")), "{text}");
    }
}

#[test]
fn second_declaration_repeats_the_consumer_timeout() {
    let mut log = log_with_checks();
    let key = "x-consumer-timeout";
    log.declare(with(quorum("q"), key, Value::I32(60_000)));
    log.declare(with(quorum("q"), key, Value::I64(60_000)));
    let text = refusal(&mut log, with(quorum("q"), key, Value::I32(7)));
    let expected = "inequivalent arg 'x-consumer-timeout' for queue 'q' in vhost '/': received '7' but current is '60000'";
    assert!(text.ends_with(expected), "{text}");
    let text = refusal(&mut log, quorum("q"));
    assert!(text.contains("received none but current is"), "{text}");
}

#[test]
fn filter_size_belongs_to_streams() {
    let mut log = log_with_checks();
    let key = "x-stream-filter-size-bytes";
    log.declare(with(stream("s"), key, Value::I32(32)));
    let text = refusal(&mut log, with(stream("s"), key, Value::I32(64)));
    assert!(text.contains("inequivalent arg"), "{text}");
    for record in [queue("q"), quorum("q")] {
        let text = refusal(&mut log, with(record, key, Value::I32(32)));
        assert!(text.contains(&format!("invalid arg '{key}'")), "{text}");
    }
}

#[test]
fn empty_type_is_the_default_and_version_1_is_gone() {
    let mut log = log_with_checks();
    log.declare(with(queue("c"), "x-queue-type", Value::from("")));
    log.declare(queue("c"));
    log.declare(with(queue("c"), "x-queue-type", Value::from("classic")));
    log.declare(with(queue("v"), "x-queue-version", Value::I32(2)));
    let text = refusal(&mut log, with(queue("q"), "x-queue-version", Value::I32(1)));
    assert!(
        text.ends_with("\"unsupported queue version '1'\""),
        "{text}"
    );
    // The mode of classic queues has no effect, and any value is accepted.
    log.declare(with(queue("m"), "x-queue-mode", Value::I32(5)));
}

#[test]
fn without_the_flag_the_arguments_are_accepted_as_before() {
    let mut log = Log::new();
    log.declare(with(queue("a"), "x-consumer-timeout", Value::I32(-1)));
    log.declare(with(
        queue("b"),
        "x-stream-filter-size-bytes",
        Value::I32(32),
    ));
    log.declare(with(queue("c"), "x-queue-version", Value::I32(1)));
    assert!(
        refusal(&mut log, with(queue("d"), "x-queue-type", Value::from("")))
            .contains("x-queue-type")
    );
    assert!(
        refusal(&mut log, with(queue("d"), "x-queue-mode", Value::I32(5))).contains("x-queue-mode")
    );
    // Queues that exist keep their arguments when the flag is enabled, and can be declared again without them.
    let name = QUEUE_ARGUMENT_CHECKS.name.into();
    log.apply(Change::EnableFeature { name }).expect("allowed");
    assert_eq!(
        log.tree
            .queue("/", "a")
            .unwrap()
            .arguments
            .get("x-consumer-timeout"),
        Some(&Value::I32(-1))
    );
    log.declare(queue("a"));
}
