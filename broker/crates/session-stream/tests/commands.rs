//! Every command of an open connection, with its refusals.

use crate::fake::{FIRST, NODE, OK, OTHER_NODE, Seen, World, bodies};
use bytes::BytesMut;
use codec_stream::{
    ClientCommand as C, CommandKey, List, NO_LEADER, OffsetSpecification, Property, PublishedBody,
    PublishedMessage, PublishedMessages, ResponseCode, ServerCommand as S, Statistic,
};
use metadata::Change;
use queue::RejectReason;
use session::{ControlEvent, SessionState};
use session_stream::StreamConfig;

/// Properties or arguments: keys and values.
type Pairs<'a> = &'a [(&'a str, &'a str)];

const NO_PROPERTIES: &[Property<'static>] = &[];
const DENIED: ResponseCode = ResponseCode::ACCESS_REFUSED;
const MISSING: ResponseCode = ResponseCode::STREAM_DOES_NOT_EXIST;
const INVALID: ResponseCode = ResponseCode::PRECONDITION_FAILED;
const EXISTS: ResponseCode = ResponseCode::STREAM_ALREADY_EXISTS;
const UNAVAILABLE: ResponseCode = ResponseCode::STREAM_NOT_AVAILABLE;

fn create(world: &mut World, stream: &str, arguments: &[(&str, &str)]) -> ResponseCode {
    let arguments = properties(arguments);
    let seen = world.ask(&C::Create {
        correlation_id: 5,
        stream,
        arguments: List::from(&arguments[..]),
    });
    match seen[..] {
        [
            S::Create {
                correlation_id: 5,
                code,
            },
        ] => code,
        _ => panic!("{seen:?}"),
    }
}

fn properties<'a>(pairs: &[(&'a str, &'a str)]) -> Vec<Property<'a>> {
    let pairs = pairs.iter();
    pairs.map(|&(key, value)| Property { key, value }).collect()
}

fn confirmed(seen: &[Seen]) -> Vec<(u8, u64)> {
    let mut found = Vec::new();
    for command in seen {
        if let S::PublishConfirm {
            publisher_id,
            publishing_ids,
        } = command
        {
            found.extend(publishing_ids.iter().map(|id| (*publisher_id, id)));
        }
    }
    found
}

fn errors(seen: &[Seen]) -> Vec<(u8, u64, ResponseCode)> {
    let mut found = Vec::new();
    for command in seen {
        if let S::PublishError {
            publisher_id,
            errors,
        } = command
        {
            let of_publisher = errors
                .iter()
                .map(|e| (*publisher_id, e.publishing_id, e.code));
            found.extend(of_publisher);
        }
    }
    found
}

#[test]
fn streams_are_created_with_the_arguments_of_the_protocol() {
    let cases: [(&str, Pairs<'_>, ResponseCode); 14] = [
        ("new", &[], OK),
        ("new", &[], EXISTS),
        ("new", &[("max-age", "1h")], INVALID),
        ("", &[], INVALID),
        ("amq.stream", &[], INVALID),
        ("a", &[("max-length-bytes", "many")], INVALID),
        ("a", &[("initial-cluster-size", "0")], INVALID),
        ("a", &[("queue-leader-locator", "nowhere")], INVALID),
        ("a", &[("stream-filter-size-bytes", "15")], INVALID),
        ("a", &[("stream-filter-size-bytes", "256")], INVALID),
        ("a", &[("unknown", "1")], OK),
        ("b\r\n", &[], OK),
        ("b", &[], EXISTS),
        (
            "c",
            &[
                ("max-length-bytes", "5000000"),
                ("max-age", "7D"),
                ("stream-max-segment-size-bytes", "1000000"),
                ("initial-cluster-size", "1"),
                ("queue-leader-locator", "balanced"),
                ("stream-filter-size-bytes", "32"),
            ],
            OK,
        ),
    ];
    let mut world = World::open();
    for (stream, arguments, expected) in cases {
        assert_eq!(
            create(&mut world, stream, arguments),
            expected,
            "{stream:?} {arguments:?}"
        );
    }
    let record = world.broker.tree.queue("/", "c").unwrap();
    let integer = |key| {
        record
            .arguments
            .get(key)
            .and_then(message::Value::as_integer)
    };
    assert_eq!(integer("x-max-length-bytes"), Some(5_000_000));
    assert_eq!(integer("x-stream-filter-size-bytes"), Some(32));
    let mut members = record.members.clone();
    members.sort_unstable();
    assert_eq!(members, [NODE, OTHER_NODE]);
}

#[test]
fn a_queue_of_another_type_is_no_stream() {
    let mut world = World::open();
    let record = metadata::QueueRecord {
        kind: metadata::QueueType::Classic,
        name: "classic".into(),
        arguments: message::Table::default(),
        members: vec![NODE],
        ..(**world.broker.tree.queue("/", "s").unwrap()).clone()
    };
    world.broker.must(Change::DeclareQueue(record));
    assert_eq!(create(&mut world, "classic", &[]), INVALID);
    assert_eq!(world.declare_publisher(1, "", "classic"), MISSING);
    let seen = world.ask(&C::Delete {
        correlation_id: 1,
        stream: "classic",
    });
    assert!(
        matches!(seen[..], [S::Delete { code: MISSING, .. }]),
        "{seen:?}"
    );
    assert!(world.broker.tree.queue("/", "classic").is_some());
}

#[test]
fn every_command_needs_its_permission() {
    let mut world = World::open_with(StreamConfig::default(), "small");
    world.broker.declare("mine");
    assert_eq!(create(&mut world, "other", &[]), DENIED);
    assert_eq!(world.declare_publisher(1, "", "s"), DENIED);
    // The permission is checked before the length of the name.
    assert_eq!(world.declare_publisher(1, &"x".repeat(256), "s"), DENIED);
    assert_eq!(world.subscribe(0, 1, "s", FIRST, 1, &[]), DENIED);
    let (partitions, keys) = (["s-0"], ["0"]);
    let reads = [
        C::Delete {
            correlation_id: 1,
            stream: "s",
        },
        C::QueryOffset {
            correlation_id: 1,
            reference: "r",
            stream: "s",
        },
        C::QueryPublisherSequence {
            correlation_id: 1,
            reference: "r",
            stream: "s",
        },
        C::StreamStats {
            correlation_id: 1,
            stream: "s",
        },
        C::ResolveOffsetSpec {
            correlation_id: 1,
            stream: "s",
            offset: FIRST,
            properties: codec_stream::Trailing(List::from(NO_PROPERTIES)),
        },
        C::CreateSuperStream {
            correlation_id: 1,
            super_stream: "mine",
            partitions: List::from(&partitions[..]),
            binding_keys: List::from(&keys[..]),
            arguments: List::from(NO_PROPERTIES),
        },
        C::DeleteSuperStream {
            correlation_id: 1,
            super_stream: "amq.direct",
        },
    ];
    for command in reads {
        let seen = world.ask(&command);
        assert!(format!("{seen:?}").contains("ResponseCode(16)"), "{seen:?}");
    }
    // There is no response, and nothing is stored.
    let store = C::StoreOffset {
        reference: "r",
        stream: "s",
        offset: 5,
    };
    assert_eq!(world.ask(&store), []);
    assert!(world.broker.stream("s").offsets.is_empty());
    assert_eq!(world.declare_publisher(1, "", "mine"), OK);
    assert_eq!(world.subscribe(0, 1, "mine", FIRST, 1, &[]), OK);
}

#[test]
fn publisher_ids_and_references_are_unique_on_a_connection() {
    let mut world = World::open();
    world.broker.declare("t");
    let longest = "x".repeat(255);
    let cases = [
        (1, "", "nothing", MISSING),
        (1, "", "s", OK),
        (1, "", "s", INVALID),
        (2, &*longest, "s", OK),
        (3, &"x".repeat(256), "s", INVALID),
        (3, &*longest, "s", INVALID),
        (3, &*longest, "t", OK),
        (4, "", "s", OK),
    ];
    for (id, reference, stream, expected) in cases {
        assert_eq!(
            world.declare_publisher(id, reference, stream),
            expected,
            "{id} {stream}"
        );
    }
    for (id, expected) in [(2, OK), (2, ResponseCode::PUBLISHER_DOES_NOT_EXIST)] {
        let seen = world.ask(&C::DeletePublisher {
            correlation_id: 1,
            publisher_id: id,
        });
        assert!(matches!(seen[..], [S::DeletePublisher { code, .. }] if code == expected));
    }
    assert_eq!(world.declare_publisher(2, &longest, "s"), OK);
    assert_eq!(world.broker.counters.publishers, 4);
    world.broker.leader = Some(OTHER_NODE);
    world.broker.unreachable.push(OTHER_NODE);
    assert_eq!(world.declare_publisher(9, "", "s"), UNAVAILABLE);
}

#[test]
fn all_publisher_ids_can_be_used() {
    let mut world = World::open();
    for id in 0..=255 {
        assert_eq!(world.declare_publisher(id, "", "s"), OK);
    }
    world.publish(0, 255, &[(7, "x")]);
    assert_eq!(confirmed(&world.take(0)), [(255, 7)]);
    world.disconnect(0);
    assert_eq!(world.broker.counters.publishers, 0);
}

#[test]
fn published_messages_are_confirmed_once_they_are_stored() {
    let mut world = World::open();
    world.declare_publisher(1, "", "s");
    world.declare_publisher(2, "", "s");
    world.broker.holds_confirms = true;
    world.publish(0, 1, &[(1, "a"), (2, "b"), (9, "c")]);
    world.publish(0, 2, &[(1, "d")]);
    world.publish(0, 1, &[(10, "e")]);
    assert_eq!(world.take(0), []);
    world.broker.confirm_held();
    world.pump();
    let expected = [(1, 1), (1, 2), (1, 9), (2, 1), (1, 10)];
    assert_eq!(confirmed(&world.take(0)), expected);
    assert_eq!(world.broker.counters.publishes.received, 5);
    assert_eq!(world.broker.counters.published_bytes, 5 * (12 + 1));
    assert_eq!(world.broker.counters.publishes.confirmed, 5);
    // A confirm for a publisher that was deleted is not for its successor.
    world.publish(0, 2, &[(3, "f")]);
    world.ask(&C::DeletePublisher {
        correlation_id: 1,
        publisher_id: 2,
    });
    world.declare_publisher(2, "", "s");
    world.broker.confirm_held();
    world.pump();
    assert_eq!(world.take(0), []);
}

#[test]
fn large_publishes_pass_on_unchanged() {
    let mut world = World::open();
    world.declare_publisher(1, "", "s");
    let body = "x".repeat(50_000);
    // Two frames at once, of which the second one is incomplete at first.
    let mut bytes = BytesMut::new();
    let mut buffer = BytesMut::new();
    let message = PublishedMessage {
        publishing_id: 4,
        filter: None,
        body: PublishedBody::Message(body.as_bytes()),
    };
    let messages = PublishedMessages::encode(&[message], &mut buffer);
    let publish = C::Publish {
        publisher_id: 1,
        messages,
    };
    publish.encode(&mut bytes);
    publish.encode(&mut bytes);
    let rest = bytes.split_off(70_000);
    world.send_bytes(0, &bytes);
    assert_eq!(confirmed(&world.take(0)), [(1, 4)]);
    world.send_bytes(0, &rest);
    assert_eq!(confirmed(&world.take(0)), [(1, 4)]);
    world.subscribe(0, 1, "s", FIRST, 10, &[]);
    assert_eq!(bodies(&world.take(0)), [(1, body.clone()), (1, body)]);
}

#[test]
fn refused_messages_have_an_error_each() {
    let mut world = World::open();
    world.publish(0, 5, &[(1, "a"), (2, "b")]);
    let unknown = ResponseCode::PUBLISHER_DOES_NOT_EXIST;
    assert_eq!(errors(&world.take(0)), [(5, 1, unknown), (5, 2, unknown)]);
    world.declare_publisher(5, "", "s");
    world.broker.reject = Some(RejectReason::Unavailable);
    world.publish(0, 5, &[(3, "c")]);
    assert_eq!(errors(&world.take(0)), [(5, 3, UNAVAILABLE)]);
    world.broker.reject = Some(RejectReason::MaxLength);
    world.publish(0, 5, &[(4, "d")]);
    assert_eq!(
        errors(&world.take(0)),
        [(5, 4, ResponseCode::INTERNAL_ERROR)]
    );
}

#[test]
fn named_publishers_are_deduplicated_and_ask_for_their_sequence() {
    let mut world = World::open();
    let sequence = |world: &mut World, reference| {
        let seen = world.ask(&C::QueryPublisherSequence {
            correlation_id: 1,
            reference,
            stream: "s",
        });
        match seen[..] {
            [
                S::QueryPublisherSequence {
                    code: OK, sequence, ..
                },
            ] => sequence,
            _ => panic!("{seen:?}"),
        }
    };
    assert_eq!(sequence(&mut world, "p"), 0);
    world.declare_publisher(1, "p", "s");
    world.publish(0, 1, &[(1, "a"), (2, "b")]);
    world.publish(0, 1, &[(2, "b"), (3, "c")]);
    // Duplicates are confirmed, too.
    assert_eq!(confirmed(&world.take(0)), [(1, 1), (1, 2), (1, 2), (1, 3)]);
    assert_eq!(sequence(&mut world, "p"), 3);
    assert_eq!(world.broker.stream("s").next, 3);
}

#[test]
fn filter_values_and_sub_batches_reach_the_stream() {
    let mut world = World::open();
    world.declare_publisher(1, "", "s");
    let mut buffer = BytesMut::new();
    let messages = [
        PublishedMessage {
            publishing_id: 1,
            filter: Some("red"),
            body: PublishedBody::Message(b"a"),
        },
        PublishedMessage {
            publishing_id: 2,
            filter: None,
            body: PublishedBody::SubBatch {
                compression: 1,
                records: 3,
                uncompressed_len: 99,
                data: b"compressed",
            },
        },
    ];
    let messages = PublishedMessages::encode(&messages, &mut buffer);
    let seen = world.ask(&C::Publish {
        publisher_id: 1,
        messages,
    });
    assert_eq!(confirmed(&seen), [(1, 1), (1, 2)]);
    assert_eq!(world.broker.batches[0].version, 2);
    let chunk = &world.broker.stream("s").chunks[0];
    assert_eq!((chunk.header().entries, chunk.header().records), (2, 4));
    assert!(!chunk.filter().is_empty());
    // The filter is not delivered.
    world.subscribe(0, 1, "s", FIRST, 1, &[]);
    let seen = world.take(0);
    assert!(
        matches!(&seen[..], [S::Deliver { chunk, .. }] if chunk.0.len() == 48 + 5 + 11 + 10),
        "{seen:?}"
    );
}

#[test]
fn consumers_start_at_each_offset_specification() {
    let cases = [
        (FIRST, ["a", "b", "c"].as_slice()),
        (OffsetSpecification::Last, &["c"]),
        (OffsetSpecification::Next, &[]),
        // A chunk is delivered as a whole.
        (OffsetSpecification::Offset(1), &["b", "c"]),
        (OffsetSpecification::Timestamp(0), &["a", "b", "c"]),
        (OffsetSpecification::Timestamp(i64::MAX), &[]),
        (OffsetSpecification::Timestamp(-5), &["a", "b", "c"]),
    ];
    for (offset, expected) in cases {
        let mut world = World::open();
        world.declare_publisher(1, "", "s");
        for (id, body) in [(1, "a"), (2, "b"), (3, "c")] {
            world.publish(0, 1, &[(id, body)]);
        }
        world.take(0);
        assert_eq!(world.subscribe(0, 4, "s", offset, 10, &[]), OK);
        let seen = bodies(&world.take(0));
        let expected: Vec<_> = expected.iter().map(|body| (4, body.to_string())).collect();
        assert_eq!(seen, expected, "{offset:?}");
        world.publish(0, 1, &[(4, "d")]);
        assert_eq!(bodies(&world.take(0)), [(4, "d".to_owned())], "{offset:?}");
    }
}

#[test]
fn subscriptions_are_refused_like_in_rabbitmq() {
    let mut world = World::open();
    let long = "x".repeat(256);
    let cases: [(u8, &str, Pairs<'_>, ResponseCode); 6] = [
        (1, "nothing", &[], MISSING),
        (1, "s", &[], OK),
        (1, "s", &[], ResponseCode::SUBSCRIPTION_ID_ALREADY_EXISTS),
        (2, "s", &[("name", &long)], INVALID),
        (2, "s", &[("single-active-consumer", "true")], INVALID),
        (2, "s", &[("single-active-consumer", "false")], OK),
    ];
    for (id, stream, properties, expected) in cases {
        let code = world.subscribe(0, id, stream, FIRST, 1, properties);
        assert_eq!(code, expected, "{id} {stream} {properties:?}");
    }
    for (id, expected) in [(1, OK), (1, ResponseCode::SUBSCRIPTION_ID_DOES_NOT_EXIST)] {
        let seen = world.ask(&C::Unsubscribe {
            correlation_id: 1,
            subscription_id: id,
        });
        assert!(matches!(seen[..], [S::Unsubscribe { code, .. }] if code == expected));
    }
    assert_eq!(world.broker.counters.consumers, 1);
    assert_eq!(world.broker.stream("s").cursors.len(), 1);
}

#[test]
fn credit_counts_chunks() {
    let mut world = World::open();
    world.declare_publisher(1, "", "s");
    for id in 1..=5 {
        world.publish(0, 1, &[(id, "x"), (id + 10, "y")]);
    }
    world.take(0);
    world.subscribe(0, 1, "s", FIRST, 2, &[]);
    assert_eq!(bodies(&world.take(0)).len(), 4);
    assert_eq!(bodies(&world.credit(0, 1, 1)).len(), 2);
    // The sum of all credit has no limit.
    for _ in 0..10 {
        world.credit(0, 1, u16::MAX);
    }
    world.publish(0, 1, &[(30, "z")]);
    assert_eq!(bodies(&world.take(0)), [(1, "z".to_owned())]);
    let seen = world.credit(0, 9, 1);
    let unknown = S::Credit {
        code: ResponseCode::SUBSCRIPTION_ID_DOES_NOT_EXIST,
        subscription_id: 9,
    };
    assert_eq!(seen, [unknown]);
    assert_eq!(
        world
            .broker
            .counters
            .of(metadata::QueueType::Stream)
            .deliver_no_ack,
        11
    );
}

#[test]
fn filters_become_arguments_of_the_cursor() {
    let mut world = World::open();
    let filters = [
        ("filter.0", "red"),
        ("filter.1", "blue"),
        ("match-unfiltered", "true"),
    ];
    world.subscribe(0, 1, "s", FIRST, 2, &filters);
    let cursor = world.broker.stream("s").cursors.values().next().unwrap();
    let text = |text: &'static str| message::Value::String(text.into());
    let expected = message::Value::Array(vec![text("red"), text("blue")]);
    assert_eq!(cursor.arguments.get("x-stream-filter"), Some(&expected));
    let unfiltered = cursor.arguments.get("x-stream-match-unfiltered");
    assert_eq!(unfiltered, Some(&message::Value::Bool(true)));
}

#[test]
fn deliveries_have_the_committed_offset_in_version_2() {
    let mut world = World::open();
    world.declare_publisher(1, "", "s");
    world.publish(0, 1, &[(1, "a")]);
    world.take(0);
    let seen = world.exchange_versions(0);
    let [
        S::ExchangeCommandVersions {
            code: OK, commands, ..
        },
    ] = seen[..]
    else {
        panic!("{seen:?}");
    };
    let publish = commands
        .iter()
        .find(|c| c.key == CommandKey::Publish.number());
    assert_eq!(publish.map(|c| (c.min, c.max)), Some((1, 2)));
    world.subscribe(0, 1, "s", FIRST, 1, &[]);
    let seen = world.take(0);
    assert!(
        matches!(&seen[..], [S::Deliver { committed, .. }] if committed.0 == Some(0)),
        "{seen:?}"
    );
}

#[test]
fn offsets_are_stored_and_found() {
    let mut world = World::open();
    let query = |world: &mut World, reference, stream| {
        let seen = world.ask(&C::QueryOffset {
            correlation_id: 3,
            reference,
            stream,
        });
        match seen[..] {
            [S::QueryOffset { code, offset, .. }] => (code, offset),
            _ => panic!("{seen:?}"),
        }
    };
    assert_eq!(query(&mut world, "c", "s"), (ResponseCode::NO_OFFSET, 0));
    assert_eq!(query(&mut world, "c", "nothing"), (MISSING, 0));
    for offset in [7, 9] {
        world.ask(&C::StoreOffset {
            reference: "c",
            stream: "s",
            offset,
        });
    }
    assert_eq!(query(&mut world, "c", "s"), (OK, 9));
    let long = "x".repeat(256);
    world.ask(&C::StoreOffset {
        reference: &long,
        stream: "s",
        offset: 1,
    });
    assert_eq!(world.broker.stream("s").offsets.len(), 1);
}

#[test]
fn statistics_and_resolved_offsets_come_from_the_stream() {
    let mut world = World::open();
    let resolve = |world: &mut World, offset| {
        let seen = world.ask(&C::ResolveOffsetSpec {
            correlation_id: 3,
            stream: "s",
            offset,
            properties: codec_stream::Trailing(List::from(&[][..])),
        });
        match seen[..] {
            [S::ResolveOffsetSpec { code, offset, .. }] => (code, offset),
            _ => panic!("{seen:?}"),
        }
    };
    let zero = OffsetSpecification::Offset(0);
    assert_eq!(resolve(&mut world, FIRST), (ResponseCode::NO_OFFSET, zero));
    assert_eq!(
        resolve(&mut world, OffsetSpecification::None),
        (INVALID, zero)
    );
    world.declare_publisher(1, "", "s");
    world.publish(0, 1, &[(1, "a"), (2, "b")]);
    world.publish(0, 1, &[(3, "c")]);
    world.take(0);
    let last = resolve(&mut world, OffsetSpecification::Last);
    assert_eq!(last, (OK, OffsetSpecification::Offset(2)));
    let seen = world.ask(&C::StreamStats {
        correlation_id: 3,
        stream: "s",
    });
    let [
        S::StreamStats {
            code: OK,
            statistics,
            ..
        },
    ] = seen[..]
    else {
        panic!("{seen:?}");
    };
    let found: Vec<Statistic<'_>> = statistics.iter().collect();
    let value = |key: &str| found.iter().find(|s| s.key == key).map(|s| s.value);
    assert_eq!(value("first_chunk_id"), Some(0));
    assert_eq!(value("committed_chunk_id"), Some(2));
    assert_eq!(value("committed_offset"), Some(2));
}

#[test]
fn a_stream_that_does_not_answer_is_not_available() {
    let mut world = World::open();
    world.broker.is_silent = true;
    let seen = world.ask(&C::QueryOffset {
        correlation_id: 3,
        reference: "c",
        stream: "s",
    });
    assert_eq!(seen, []);
    world.pass(15);
    let expected = S::QueryOffset {
        correlation_id: 3,
        code: UNAVAILABLE,
        offset: 0,
    };
    assert_eq!(world.take(0), [expected]);
}

#[test]
fn metadata_names_the_leader_and_the_replicas() {
    let mut world = World::open();
    let streams = ["s", "nothing", "s"];
    let query = C::Metadata {
        correlation_id: 4,
        streams: List::from(&streams[..]),
    };
    let seen = world.ask(&query);
    let [
        S::Metadata {
            brokers, streams, ..
        },
    ] = seen[..]
    else {
        panic!("{seen:?}");
    };
    let brokers: Vec<_> = brokers
        .iter()
        .map(|b| (b.reference, b.host, b.port))
        .collect();
    assert_eq!(
        brokers,
        [(0, "one.example", 5552), (1, "two.example", 5552)]
    );
    let found: Vec<_> = streams
        .iter()
        .map(|s| {
            (
                s.stream,
                s.code,
                s.leader,
                s.replicas.iter().collect::<Vec<_>>(),
            )
        })
        .collect();
    let expected = [
        ("s", OK, 0, vec![1]),
        ("nothing", MISSING, NO_LEADER, vec![]),
    ];
    assert_eq!(found, expected);
    world.broker.unreachable.push(OTHER_NODE);
    world.broker.leader = Some(OTHER_NODE);
    let seen = world.ask(&query);
    let [
        S::Metadata {
            brokers, streams, ..
        },
    ] = seen[..]
    else {
        panic!("{seen:?}");
    };
    assert_eq!(brokers.len(), 1);
    let leader = streams.iter().next().map(|s| s.leader);
    assert_eq!(leader, Some(NO_LEADER));
}

#[test]
fn deletion_of_a_stream_updates_its_clients() {
    let mut world = World::open();
    let other = world.connect("guest");
    world.declare_publisher(1, "", "s");
    assert_eq!(world.subscribe(other, 1, "s", FIRST, 1, &[]), OK);
    let seen = world.ask(&C::Delete {
        correlation_id: 6,
        stream: "s",
    });
    let update = S::MetadataUpdate {
        code: UNAVAILABLE,
        stream: "s",
    };
    let response = S::Delete {
        correlation_id: 6,
        code: OK,
    };
    assert_eq!(seen, [response, update]);
    assert_eq!(world.take(other), [update]);
    world.publish(0, 1, &[(1, "a")]);
    let unknown = ResponseCode::PUBLISHER_DOES_NOT_EXIST;
    assert_eq!(errors(&world.take(0)), [(1, 1, unknown)]);
    let seen = world.ask(&C::Delete {
        correlation_id: 7,
        stream: "s",
    });
    assert!(matches!(seen[..], [S::Delete { code: MISSING, .. }]));
}

#[test]
fn idle_publisher_learns_at_once_that_its_stream_was_deleted() {
    let mut world = World::open();
    let other = world.connect("guest");
    world.declare_publisher(1, "", "s");
    world.send(
        other,
        &C::Delete {
            correlation_id: 6,
            stream: "s",
        },
    );
    let update = S::MetadataUpdate {
        code: UNAVAILABLE,
        stream: "s",
    };
    assert_eq!(world.take(0), [update]);
}

#[test]
fn publishers_of_a_stream_whose_leader_moved_connect_again() {
    let mut world = World::open();
    world.declare_publisher(1, "", "s");
    world.pass(2);
    assert_eq!(world.take(0), []);
    world.broker.leader = Some(OTHER_NODE);
    world.pass(2);
    let update = S::MetadataUpdate {
        code: UNAVAILABLE,
        stream: "s",
    };
    assert_eq!(world.take(0), [update]);
    assert_eq!(world.declare_publisher(1, "", "s"), OK);
}

#[test]
fn consumers_move_to_another_replica() {
    let mut world = World::open();
    world.broker.unreachable.push(OTHER_NODE);
    world.subscribe(0, 1, "s", FIRST, 10, &[]);
    world.declare_publisher(1, "", "s");
    world.publish(0, 1, &[(1, "a")]);
    assert_eq!(bodies(&world.take(0)).len(), 1);
    world.broker.unreachable = vec![NODE];
    world.pass(2);
    world.publish(0, 1, &[(2, "b")]);
    assert_eq!(bodies(&world.take(0)), [(1, "b".to_owned())]);
}

#[test]
fn a_stream_of_another_node_is_found_after_the_tree_has_caught_up() {
    let mut world = World::open();
    world.broker.knows_all = false;
    world.broker.hold_log = true;
    let mut record = (**world.broker.tree.queue("/", "s").unwrap()).clone();
    record.name = "late".into();
    world
        .broker
        .change_from_other_node(Change::DeclareQueue(record));
    let declare = C::DeclarePublisher {
        correlation_id: 2,
        publisher_id: 1,
        reference: "",
        stream: "late",
    };
    assert_eq!(world.ask(&declare), []);
    assert_eq!(world.clients[0].state, SessionState::Paused);
    while world.broker.apply_next() {}
    world.pump();
    let expected = S::DeclarePublisher {
        correlation_id: 2,
        code: OK,
    };
    assert_eq!(world.take(0), [expected]);
    let streams = ["nothing"];
    assert_eq!(
        world.ask(&C::Metadata {
            correlation_id: 2,
            streams: List::from(&streams[..]),
        }),
        []
    );
    while world.broker.apply_next() {}
    world.pump();
    assert!(matches!(world.take(0)[..], [S::Metadata { .. }]));
}

#[test]
fn alarms_stop_publishers_only() {
    let mut world = World::open();
    world.declare_publisher(1, "", "s");
    let other = world.connect("guest");
    world.broker.alarm = Some("disk");
    for number in [100, 101] {
        let event = ControlEvent::Blocked(Some("disk")).into();
        world.broker.events.push_back((number, event));
    }
    world.pump();
    world.publish(0, 1, &[(1, "a")]);
    assert_eq!(world.take(0), []);
    assert_eq!(world.clients[0].state, SessionState::Paused);
    // A consumer goes on, but cannot become a publisher.
    assert_eq!(world.subscribe(other, 1, "s", FIRST, 1, &[]), OK);
    world.send(
        other,
        &C::DeclarePublisher {
            correlation_id: 1,
            publisher_id: 1,
            reference: "",
            stream: "s",
        },
    );
    let seen = world.take(other);
    assert!(
        matches!(seen[..], [S::DeclarePublisher { code: INVALID, .. }]),
        "{seen:?}"
    );
    // The client is not silent while it is not read.
    world.pass(300);
    assert_eq!(world.clients[0].state, SessionState::Paused);
    let event = ControlEvent::Blocked(None).into();
    world.broker.events.push_back((100, event));
    world.pump();
    assert_eq!(confirmed(&world.take(0)), [(1, 1)]);
}

#[test]
fn a_stream_that_is_behind_pauses_the_client() {
    let mut world = World::open();
    world.declare_publisher(1, "", "s");
    world.broker.is_slow = true;
    world.publish(0, 1, &[(1, "a")]);
    world.publish(0, 1, &[(2, "b")]);
    assert_eq!(world.broker.batches.len(), 1);
    world.broker.is_slow = false;
    let event = ControlEvent::Unblocked.into();
    world.broker.events.push_back((100, event));
    world.pump();
    assert_eq!(confirmed(&world.take(0)), [(1, 1), (1, 2)]);
}

#[test]
fn errors_are_counted_by_name_and_connections_while_they_are_open() {
    let mut world = World::open();
    assert_eq!(world.broker.connections, 1);
    assert!(world.broker.errors.is_empty());
    assert_eq!(world.declare_publisher(1, "", "absent"), MISSING);
    world.publish(0, 9, &[(1, "a"), (2, "b")]);
    world.credit(0, 3, 1);
    let expected = [
        "stream_does_not_exist",
        // One frame, although it has two messages.
        "publisher_does_not_exist",
        "subscription_id_does_not_exist",
    ];
    assert_eq!(world.broker.errors, expected);
    world.send_bytes(0, &[0, 0, 0, 4, 0x7f, 0, 0, 1]);
    assert_eq!(world.broker.errors.last(), Some(&"unknown_frame"));
    world.disconnect(0);
    assert_eq!(world.broker.connections, 0);
}
