//! Super streams and single active consumers.

use crate::fake::{FIRST, NODE, OK, OTHER_NODE, Seen, World, bodies};
use codec_stream::{
    ClientCommand as C, List, OffsetSpecification, ResponseCode, ServerCommand as S,
};
use message::Value;
use metadata::Destination;
use queue::cursor::CursorStart;

fn create(world: &mut World, name: &str, partitions: &[&str], keys: &[&str]) -> ResponseCode {
    let seen = world.ask(&C::CreateSuperStream {
        correlation_id: 5,
        super_stream: name,
        partitions: List::from(partitions),
        binding_keys: List::from(keys),
        arguments: List::from(&[][..]),
    });
    match seen[..] {
        [S::CreateSuperStream { code, .. }] => code,
        _ => panic!("{seen:?}"),
    }
}

fn partitions(world: &mut World, super_stream: &str) -> (ResponseCode, Vec<&'static str>) {
    let seen = world.ask(&C::Partitions {
        correlation_id: 5,
        super_stream,
    });
    match seen[..] {
        [S::Partitions { code, streams, .. }] => (code, streams.iter().collect()),
        _ => panic!("{seen:?}"),
    }
}

#[test]
fn super_streams_are_exchanges_with_ordered_bindings() {
    let mut world = World::open();
    // Not in the order of the names.
    assert_eq!(
        create(&mut world, "o", &["o-2", "o-0", "o-1"], &["z", "x", "y"]),
        OK
    );
    assert_eq!(partitions(&mut world, "o"), (OK, vec!["o-2", "o-0", "o-1"]));
    let exchange = world.broker.tree.exchange("/", "o").unwrap();
    assert_eq!(
        exchange.arguments.get("x-super-stream"),
        Some(&Value::Bool(true))
    );
    assert_eq!((&*exchange.kind, exchange.durable), ("direct", true));
    let bindings = world.broker.tree.bindings_from("/", "o");
    let binding = bindings
        .iter()
        .find(|b| b.destination == Destination::Queue("o-0".into()));
    let order = binding.unwrap().arguments.get("x-stream-partition-order");
    assert_eq!(order.and_then(Value::as_integer), Some(1));
    let missing = ResponseCode::STREAM_DOES_NOT_EXIST;
    for (key, exchange, expected) in [
        ("x", "o", (OK, vec!["o-0"])),
        ("none", "o", (OK, vec![])),
        ("x", "nothing", (missing, vec![])),
    ] {
        let seen = world.ask(&C::Route {
            correlation_id: 2,
            routing_key: key,
            super_stream: exchange,
        });
        let [S::Route { code, streams, .. }] = seen[..] else {
            panic!("{seen:?}");
        };
        assert_eq!((code, streams.iter().collect::<Vec<_>>()), expected);
    }
    let seen = world.ask(&C::DeleteSuperStream {
        correlation_id: 3,
        super_stream: "o",
    });
    assert!(
        matches!(seen[..], [S::DeleteSuperStream { code: OK, .. }]),
        "{seen:?}"
    );
    assert_eq!(world.broker.tree.queues("/").len(), 1);
    assert_eq!(partitions(&mut world, "o").0, missing);
    let seen = world.ask(&C::DeleteSuperStream {
        correlation_id: 3,
        super_stream: "o",
    });
    assert!(matches!(seen[..], [S::DeleteSuperStream { code, .. }] if code == missing));
}

#[test]
fn leaders_of_the_partitions_spread_over_the_nodes() {
    let mut world = World::open();
    let partitions = ["o-0", "o-1", "o-2", "o-3"];
    assert_eq!(
        create(&mut world, "o", &partitions, &["0", "1", "2", "3"]),
        OK
    );
    let leaders = partitions.map(|name| {
        let record = world.broker.tree.queue("/", name).expect("created");
        *record.members.first().expect("a member")
    });
    for node in [NODE, OTHER_NODE] {
        let led = leaders.iter().filter(|leader| **leader == node).count();
        assert_eq!(led, 2, "{leaders:?}");
    }
}

#[test]
fn invalid_super_streams_create_nothing() {
    let invalid = ResponseCode::PRECONDITION_FAILED;
    let exists = ResponseCode::STREAM_ALREADY_EXISTS;
    let cases: [(&str, &[&str], &[&str], ResponseCode); 7] = [
        ("o", &["o-0", "o-1"], &["0"], invalid),
        ("o", &["o-0", "o-0"], &["0", "1"], invalid),
        ("o", &["amq.x"], &["0"], invalid),
        ("", &["o-0"], &["0"], invalid),
        ("amq.o", &["o-0"], &["0"], invalid),
        ("o", &["o-0", "s"], &["0", "1"], exists),
        ("amq.direct\n", &["o-0"], &["0"], invalid),
    ];
    let mut world = World::open();
    let exchanges = world.broker.tree.exchange_count();
    for (name, partitions, keys, expected) in cases {
        let code = create(&mut world, name, partitions, keys);
        assert_eq!(code, expected, "{name:?} {partitions:?}");
    }
    assert_eq!(world.broker.tree.exchange_count(), exchanges);
    assert_eq!(world.broker.tree.queue_count(), 1);
    assert_eq!(create(&mut world, "o", &["o-0"], &["0"]), OK);
    assert_eq!(create(&mut world, "o", &["o-9"], &["0"]), exists);
}

#[test]
fn a_super_stream_that_fails_half_way_is_undone() {
    let mut world = World::open();
    world.broker.hold_log = true;
    let partitions = ["o-0", "o-1"];
    assert_eq!(
        world.ask(&C::CreateSuperStream {
            correlation_id: 5,
            super_stream: "o",
            partitions: List::from(&partitions[..]),
            binding_keys: List::from(&partitions[..]),
            arguments: List::from(&[][..]),
        }),
        []
    );
    // The exchange and the first partition are there; then another client creates the second one.
    for _ in 0..2 {
        assert!(world.broker.apply_next());
        world.pump();
    }
    world.broker.declare("o-1");
    while world.broker.apply_next() {
        world.pump();
    }
    let seen = world.take(0);
    let exists = ResponseCode::STREAM_ALREADY_EXISTS;
    let invalid = ResponseCode::PRECONDITION_FAILED;
    assert!(
        matches!(seen[..], [S::CreateSuperStream { code, .. }] if code == exists || code == invalid),
        "{seen:?}"
    );
    assert!(world.broker.tree.exchange("/", "o").is_none());
    let mut names: Vec<_> = world
        .broker
        .tree
        .queues("/")
        .iter()
        .map(|q| q.name.clone())
        .collect();
    names.sort();
    assert_eq!(names.iter().map(|n| &**n).collect::<Vec<_>>(), ["o-1", "s"]);
}

const SINGLE: [(&str, &str); 2] = [("single-active-consumer", "true"), ("name", "group")];

/// The consumer updates that a client has received: correlation id, subscription and state.
fn updates(seen: &[Seen]) -> Vec<(u32, u8, bool)> {
    let mut found = Vec::new();
    for command in seen {
        if let S::ConsumerUpdate {
            correlation_id,
            subscription_id,
            is_active,
        } = command
        {
            found.push((*correlation_id, *subscription_id, *is_active));
        }
    }
    found
}

fn answer(world: &mut World, at: usize, correlation_id: u32, offset: OffsetSpecification) {
    world.send(
        at,
        &C::ConsumerUpdateResponse {
            correlation_id,
            code: OK,
            offset,
        },
    );
}

#[test]
fn one_consumer_of_a_name_is_active() {
    let mut world = World::open();
    let other = world.connect("guest");
    world.declare_publisher(1, "", "s");
    world.publish(0, 1, &[(1, "a")]);
    world.publish(0, 1, &[(2, "b")]);
    world.take(0);
    assert_eq!(world.subscribe(0, 1, "s", FIRST, 10, &SINGLE), OK);
    assert_eq!(world.subscribe(other, 4, "s", FIRST, 10, &SINGLE), OK);
    // A consumer of another name is not in the group.
    let alone = [("single-active-consumer", "true"), ("name", "alone")];
    assert_eq!(world.subscribe(other, 5, "s", FIRST, 10, &alone), OK);
    let seen = world.take(0);
    assert_eq!(updates(&seen), [(0, 1, true)]);
    assert_eq!(bodies(&seen), [], "the client has not said where to start");
    let seen = world.take(other);
    assert_eq!(updates(&seen), [(0, 5, true)]);
    // The answer takes precedence over the subscription.
    answer(&mut world, 0, 0, OffsetSpecification::Offset(1));
    assert_eq!(bodies(&world.take(0)), [(1, "b".to_owned())]);
    // Credit of a consumer that is not active counts later.
    let seen = world.credit(other, 4, 3);
    assert!(
        matches!(
            seen[..],
            [S::Credit {
                code: ResponseCode::PRECONDITION_FAILED,
                subscription_id: 4
            }]
        ),
        "{seen:?}"
    );
    world.ask(&C::Unsubscribe {
        correlation_id: 1,
        subscription_id: 1,
    });
    let seen = world.take(other);
    assert_eq!(updates(&seen), [(1, 4, true)]);
    answer(&mut world, other, 1, OffsetSpecification::None);
    assert_eq!(bodies(&world.take(other)).len(), 2);
}

#[test]
fn the_next_consumer_becomes_active_when_a_connection_breaks() {
    let mut world = World::open();
    let second = world.connect("guest");
    let third = world.connect("guest");
    for at in [0, second, third] {
        assert_eq!(world.subscribe(at, 1, "s", FIRST, 1, &SINGLE), OK);
    }
    world.take(0);
    world.disconnect(0);
    assert_eq!(updates(&world.take(second)), [(0, 1, true)]);
    assert_eq!(updates(&world.take(third)), []);
    world.disconnect(second);
    assert_eq!(updates(&world.take(third)), [(0, 1, true)]);
}

#[test]
fn partitions_of_a_super_stream_spread_over_the_consumers() {
    let mut world = World::open();
    assert_eq!(create(&mut world, "o", &["o-0", "o-1"], &["0", "1"]), OK);
    let other = world.connect("guest");
    let single = [SINGLE[0], SINGLE[1], ("super-stream", "o")];
    for (id, stream) in [(0, "o-0"), (1, "o-1")] {
        assert_eq!(world.subscribe(0, id, stream, FIRST, 1, &single), OK);
    }
    assert_eq!(updates(&world.take(0)), [(0, 0, true), (1, 1, true)]);
    answer(&mut world, 0, 0, FIRST);
    answer(&mut world, 0, 1, FIRST);
    for (id, stream) in [(0, "o-0"), (1, "o-1")] {
        assert_eq!(world.subscribe(other, id, stream, FIRST, 1, &single), OK);
    }
    // Partition 1 goes to the second consumer, once the first one has stepped down.
    assert_eq!(updates(&world.take(0)), [(2, 1, false)]);
    assert_eq!(updates(&world.take(other)), []);
    assert_eq!(world.broker.stream("o-1").cursors.len(), 0);
    answer(&mut world, 0, 2, OffsetSpecification::None);
    assert_eq!(updates(&world.take(other)), [(0, 1, true)]);
    answer(&mut world, other, 0, OffsetSpecification::Next);
    let cursor = world.broker.stream("o-1").cursors.values().next().unwrap();
    assert_eq!(cursor.start, CursorStart::Next);
    // Back again.
    world.disconnect(other);
    assert_eq!(updates(&world.take(0)), [(3, 1, true)]);
}

#[test]
fn a_client_that_does_not_answer_a_consumer_update_is_disconnected() {
    let mut world = World::open();
    assert_eq!(world.subscribe(0, 1, "s", FIRST, 1, &SINGLE), OK);
    world.take(0);
    let mut seen = Vec::new();
    for _ in 0..31 {
        world.send_bytes(0, b"\0\0\0\x04\0\x17\0\x01");
        world.pass(2);
        seen.extend(world.take(0));
    }
    seen.retain(|command| !matches!(command, S::Heartbeat {}));
    assert!(matches!(seen[..], [S::Close { .. }]), "{seen:?}");
}

#[test]
fn a_consumer_without_coordinator_becomes_inactive() {
    let mut world = World::open();
    assert_eq!(world.subscribe(0, 1, "s", FIRST, 1, &SINGLE), OK);
    answer(&mut world, 0, 0, FIRST);
    world.take(0);
    world.broker.leader = None;
    world.pass(1);
    world.pass(3);
    assert_eq!(updates(&world.take(0)), []);
    world.pass(3);
    assert_eq!(updates(&world.take(0)), [(1, 1, false)]);
    answer(&mut world, 0, 1, OffsetSpecification::None);
    // The leader is back; the group is new to it, so it waits for other members.
    world.broker.leader = Some(NODE);
    world.pass(1);
    assert_eq!(updates(&world.take(0)), []);
    world.pass(5);
    assert_eq!(updates(&world.take(0)), [(2, 1, true)]);
}

#[test]
fn a_consumer_waits_for_a_coordinator_on_another_node() {
    let mut world = World::open();
    world.broker.leader = Some(OTHER_NODE);
    assert_eq!(world.subscribe(0, 1, "s", FIRST, 1, &SINGLE), OK);
    world.pass(1);
    assert_eq!(world.take(0), []);
    world.broker.leader = Some(NODE);
    world.pass(1);
    assert_eq!(updates(&world.take(0)), [(0, 1, true)]);
}
