//! Streams: their declaration, their arguments and policies.

use super::*;

fn stream(arguments: &[(&str, Value)]) -> QueueRecord {
    let kind = ("x-queue-type", Value::from("stream"));
    QueueRecord {
        kind: QueueType::Stream,
        arguments: table(&[&[kind], arguments].concat()),
        ..quorum("s")
    }
}

fn log_with_streams() -> Log {
    let mut log = Log::new();
    let name = crate::features::STREAM_QUEUES.name.into();
    log.apply(Change::EnableFeature { name }).expect("allowed");
    log
}

fn refusal(log: &mut Log, record: QueueRecord) -> String {
    log.refused(Change::DeclareQueue(record)).to_string()
}

#[test]
fn a_stream_needs_the_feature_flag() {
    let mut log = Log::new();
    let refused = refusal(&mut log, stream(&[]));
    assert!(
        refused.contains("needs the feature flag 'stream_queues'"),
        "{refused}"
    );
    log_with_streams().declare(stream(&[]));
}

#[test]
fn arguments_of_a_stream_are_checked() {
    let mut log = log_with_streams();
    let refused = [
        ("x-max-age", Value::from("yesterday")),
        ("x-max-age", Value::from("D")),
        ("x-max-age", Value::from("+5D")),
        ("x-max-age", Value::from("99999999999999999999D")),
        ("x-max-age", Value::I32(5)),
        ("x-max-length-bytes", Value::I32(-1)),
        ("x-stream-max-segment-size-bytes", Value::I64(3_000_000_001)),
        ("x-stream-max-segment-size-bytes", Value::from("1GB")),
        ("x-stream-filter-size-bytes", Value::I32(15)),
        ("x-stream-filter-size-bytes", Value::I32(256)),
        ("x-initial-cluster-size", Value::I32(0)),
        ("x-queue-leader-locator", Value::from("nearest")),
        ("x-max-length", Value::I32(5)),
        ("x-single-active-consumer", Value::Bool(true)),
        ("x-dead-letter-exchange", Value::from("dlx")),
        ("x-quorum-initial-group-size", Value::I32(3)),
    ];
    for (key, value) in refused {
        let text = refusal(&mut log, stream(&[(key, value.clone())]));
        assert!(
            text.contains(&format!("invalid arg '{key}' for queue 's'")),
            "{value:?}: {text}"
        );
    }
    let accepted = [
        ("x-max-age", Value::from("7D")),
        ("x-max-length-bytes", Value::I64(20_000_000_000)),
        ("x-stream-max-segment-size-bytes", Value::I64(3_000_000_000)),
        ("x-stream-filter-size-bytes", Value::I32(255)),
        ("x-initial-cluster-size", Value::I32(1)),
        ("x-queue-leader-locator", Value::from("balanced")),
    ];
    log.declare(stream(&accepted));
    // Arguments of streams are refused for other types.
    let classic = QueueRecord {
        arguments: table(&[("x-stream-max-segment-size-bytes", Value::I32(16))]),
        ..queue("q")
    };
    let text = refusal(&mut log, classic);
    assert!(
        text.ends_with("of queue type rabbit_classic_queue"),
        "{text}"
    );
}

#[test]
fn a_stream_is_durable_and_belongs_to_nobody() {
    let mut log = log_with_streams();
    let transient = QueueRecord {
        durable: false,
        ..stream(&[])
    };
    assert!(refusal(&mut log, transient).contains("'non-durable'"));
    let auto_delete = QueueRecord {
        auto_delete: true,
        ..stream(&[])
    };
    assert!(refusal(&mut log, auto_delete).contains("'auto-delete'"));
}

#[test]
fn a_policy_takes_precedence_over_the_arguments_of_a_stream() {
    let mut log = log_with_streams();
    let arguments = [
        ("x-max-age", Value::from("2h")),
        ("x-max-length-bytes", Value::I64(1_000)),
        ("x-stream-filter-size-bytes", Value::I32(32)),
    ];
    let id = log.declare(stream(&arguments));
    let settings = |log: &Log| {
        let record = log.tree.queue_by_id(id).expect("declared");
        log.tree.queue_settings(record).stream
    };
    let declared = StreamSettings {
        max_bytes: Some(1_000),
        max_age_ms: Some(7_200_000),
        max_segment_bytes: None,
        filter_bytes: Some(32),
    };
    assert_eq!(settings(&log), declared);
    let definition = [
        ("max-age", Value::from("1m")),
        ("max-length-bytes", Value::I64(5_000)),
        ("stream-max-segment-size-bytes", Value::I64(100)),
        ("initial-cluster-size", Value::I64(5)),
    ];
    log.apply(Change::PutPolicy(PolicyRecord {
        vhost: name("/"),
        name: name("streams"),
        scope: PolicyScope::User,
        pattern: name(".*"),
        apply_to: ApplyTo::Streams,
        priority: 0,
        definition: table(&definition),
    }))
    .expect("a valid policy");
    let by_policy = StreamSettings {
        max_bytes: Some(5_000),
        max_age_ms: Some(60_000),
        max_segment_bytes: Some(100),
        ..declared
    };
    assert_eq!(settings(&log), by_policy);
    let record = log.tree.queue_by_id(id).expect("declared");
    assert_eq!(log.tree.placement_request(record).initial, 5);
}

#[test]
fn policies_with_keys_that_a_type_does_not_support_do_not_apply() {
    let mut log = log_with_streams();
    let id = log.declare(stream(&[]));
    let put = |log: &mut Log, definition: &[(&str, Value)]| {
        log.apply(Change::PutPolicy(PolicyRecord {
            vhost: name("/"),
            name: name("all"),
            scope: PolicyScope::User,
            pattern: name(".*"),
            apply_to: ApplyTo::All,
            priority: 0,
            definition: table(definition),
        }))
    };
    let bytes = ("max-length-bytes", Value::I64(5));
    for key in ["expires", "message-ttl", "max-length", "delivery-limit"] {
        put(&mut log, &[bytes.clone(), (key, Value::I64(5))]).expect("valid");
        let record = log.tree.queue_by_id(id).expect("declared");
        let settings = log.tree.queue_settings(record).stream;
        assert_eq!(settings, StreamSettings::default(), "{key}");
    }
    put(&mut log, &[bytes]).expect("valid");
    let record = log.tree.queue_by_id(id).expect("declared");
    assert_eq!(log.tree.queue_settings(record).stream.max_bytes, Some(5));
    let refused = put(&mut log, &[("max-age", Value::from("soon"))]);
    assert!(refused.is_err_and(|error| error.to_string().contains("is not a valid max age")));
}
