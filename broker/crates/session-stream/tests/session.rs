//! Login, limits, closing, and the memory that a client can make the session hold.

use crate::fake::{FIRST, OK, World, bodies};
use bytes::BytesMut;
use codec_stream::{
    ClientCommand as C, PublishedBody, PublishedMessage, PublishedMessages, ResponseCode,
    ServerCommand as S,
};
use metadata::{Change, PermissionRecord};
use session::{ControlEvent, PasswordCheck, Session, SessionState};
use session_stream::{Limits, StreamConfig};

fn sasl_code(seen: &[crate::fake::Seen]) -> Option<ResponseCode> {
    seen.iter().find_map(|command| match command {
        S::SaslAuthenticate { code, .. } => Some(*code),
        _ => None,
    })
}

#[test]
fn refused_logins_have_the_code_of_their_reason() {
    let cases: [(&str, &[u8], ResponseCode); 5] = [
        (
            "PLAIN",
            b"\0guest\0wrong",
            ResponseCode::AUTHENTICATION_FAILURE,
        ),
        (
            "PLAIN",
            b"\0nobody\0nobody",
            ResponseCode::AUTHENTICATION_FAILURE,
        ),
        ("PLAIN", b"guest", ResponseCode::SASL_ERROR),
        ("EXTERNAL", b"", ResponseCode::SASL_MECHANISM_NOT_SUPPORTED),
        ("SCRAM", b"", ResponseCode::SASL_MECHANISM_NOT_SUPPORTED),
    ];
    for (mechanism, data, expected) in cases {
        let mut world = World::new(StreamConfig::default());
        world.accept();
        world.greet(0);
        world.take(0);
        world.authenticate(0, mechanism, data);
        // The response is late, to slow down guessing, except where nothing can be guessed.
        if expected != ResponseCode::SASL_MECHANISM_NOT_SUPPORTED {
            assert_eq!(world.take(0), [], "{mechanism}");
            world.pass(3);
        }
        assert_eq!(sasl_code(&world.take(0)), Some(expected), "{mechanism}");
        assert_eq!(world.clients[0].state, SessionState::Closing);
    }
}

#[test]
fn a_login_waits_for_its_password_check() {
    let mut world = World::new(StreamConfig::default());
    world.accept();
    world.greet(0);
    world.take(0);
    world.broker.verdict = Some(PasswordCheck::Later);
    world.authenticate(0, "PLAIN", b"\0guest\0guest");
    assert_eq!(world.take(0), []);
    assert_eq!(world.clients[0].state, SessionState::Paused);
    let event = ControlEvent::Verified {
        verdict: true.into(),
    }
    .into();
    world.broker.events.push_back((100, event));
    world.pump();
    let seen = world.take(0);
    assert_eq!(sasl_code(&seen), Some(OK));
    assert!(matches!(
        seen.last(),
        Some(S::Tune {
            frame_max: 1_048_576,
            heartbeat: 60
        })
    ));
    assert_eq!(world.broker.logins, (1, 0));
}

fn open(world: &mut World, virtual_host: &str) {
    world.accept();
    world.greet(0);
    world.authenticate(0, "PLAIN", b"\0guest\0guest");
    let tune = C::Tune {
        frame_max: 0,
        heartbeat: 0,
    };
    world.send(0, &tune);
    world.take(0);
    let open = C::Open {
        correlation_id: 3,
        virtual_host,
    };
    world.send(0, &open);
}

#[test]
fn the_virtual_host_is_refused_with_one_code() {
    let refused = ResponseCode::VIRTUAL_HOST_ACCESS_FAILURE;
    // The virtual host, whether the user has reached its limit, and whether the node is draining.
    let cases = [
        ("none", false, false),
        ("/", true, false),
        ("/", false, true),
    ];
    for (virtual_host, is_limited, is_draining) in cases {
        let mut world = World::new(StreamConfig::default());
        world.broker.admits = !is_limited;
        world.broker.draining = is_draining;
        open(&mut world, virtual_host);
        world.pass(3);
        let seen = world.take(0);
        assert!(
            matches!(seen[..], [S::Open { code, .. }] if code == refused),
            "{seen:?}"
        );
        assert_eq!(world.clients[0].state, SessionState::Closing);
    }
}

#[test]
fn the_server_states_its_properties_and_its_address() {
    let mut world = World::new(StreamConfig::default());
    world.accept();
    world.greet(0);
    let seen = world.take(0);
    let [S::PeerProperties { properties, .. }] = seen[..] else {
        panic!("{seen:?}");
    };
    let product = properties.iter().find(|p| p.key == "product");
    assert_eq!(product.map(|p| p.value), Some("RabbitMQ"));
    let mut world = World::new(StreamConfig::default());
    open(&mut world, "/");
    let seen = world.take(0);
    let [
        S::Open {
            code: OK,
            properties,
            ..
        },
    ] = &seen[..]
    else {
        panic!("{seen:?}");
    };
    let properties: Vec<_> = properties.0.iter().map(|p| (p.key, p.value)).collect();
    let expected = [
        ("advertised_host", "one.example"),
        ("advertised_port", "5552"),
    ];
    assert_eq!(properties, expected);
    let details = world.clients[0].session.details();
    assert_eq!(
        (details.state, details.auth_mechanism),
        ("running", "PLAIN")
    );
    assert!(details.client_properties.get("connection_name").is_some());
}

#[test]
fn the_handshake_has_a_time_limit() {
    let mut world = World::new(StreamConfig::default());
    world.accept();
    world.greet(0);
    world.pass(9);
    assert_eq!(world.clients[0].state, SessionState::Open);
    world.pass(1);
    assert_eq!(world.clients[0].state, SessionState::Closing);
}

#[test]
fn credentials_are_renewed_for_the_same_user_and_mechanism() {
    let cases: [(&str, &[u8], ResponseCode); 4] = [
        ("PLAIN", b"\0small\0small", OK),
        (
            "PLAIN",
            b"\0guest\0guest",
            ResponseCode::SASL_CANNOT_CHANGE_USERNAME,
        ),
        ("ANONYMOUS", b"", ResponseCode::SASL_CANNOT_CHANGE_MECHANISM),
        (
            "PLAIN",
            b"\0small\0wrong",
            ResponseCode::AUTHENTICATION_FAILURE,
        ),
    ];
    for (mechanism, data, expected) in cases {
        let mut world = World::open_with(StreamConfig::default(), "small");
        world.authenticate(0, mechanism, data);
        world.pass(3);
        assert_eq!(
            sasl_code(&world.take(0)),
            Some(expected),
            "{mechanism} {data:?}"
        );
        let is_open = world.clients[0].state == SessionState::Open;
        assert_eq!(is_open, expected == OK);
    }
}

#[test]
fn a_renewal_ends_what_is_not_permitted_any_more() {
    let mut world = World::open_with(StreamConfig::default(), "small");
    world.broker.declare("mine");
    world.broker.declare("mine too");
    assert_eq!(world.declare_publisher(1, "", "mine"), OK);
    assert_eq!(world.subscribe(0, 1, "mine", FIRST, 1, &[]), OK);
    assert_eq!(world.subscribe(0, 2, "mine too", FIRST, 1, &[]), OK);
    world.broker.must(Change::PutPermission(PermissionRecord {
        user: "small".into(),
        vhost: "/".into(),
        configure: "^mine".into(),
        write: "^$".into(),
        read: "^mine".into(),
    }));
    world.take(0);
    world.authenticate(0, "PLAIN", b"\0small\0small");
    let seen = world.take(0);
    let update = S::MetadataUpdate {
        code: ResponseCode::STREAM_NOT_AVAILABLE,
        stream: "mine",
    };
    assert_eq!(sasl_code(&seen), Some(OK));
    assert_eq!(seen.last(), Some(&update));
    let details = world.clients[0].session.details().stream.unwrap();
    assert_eq!(details.publishers, []);
    assert_eq!(details.consumers.len(), 1);
}

#[test]
fn invalid_frames_close_the_connection_with_a_code() {
    let unknown = ResponseCode::UNKNOWN_FRAME;
    let too_large = ResponseCode::FRAME_TOO_LARGE;
    let cases: [(&[u8], ResponseCode); 5] = [
        // An unknown key, an unknown version, a truncated field, a command of the server, and a frame that is too large.
        (b"\0\0\0\x04\x00\x7f\0\x01", unknown),
        (b"\0\0\0\x09\x00\x09\0\x02\0\0\0\0\0", unknown),
        (b"\0\0\0\x05\x00\x09\0\x01\0", unknown),
        (b"\0\0\0\x04\x00\x08\0\x01", unknown),
        (b"\0\x20\0\0", too_large),
    ];
    for (bytes, expected) in cases {
        let mut world = World::open();
        world.declare_publisher(1, "", "s");
        world.send_bytes(0, bytes);
        let seen = world.take(0);
        assert!(
            matches!(seen[..], [S::Close { code, .. }] if code == expected),
            "{seen:?}"
        );
        assert_eq!(world.broker.counters.publishers, 0, "released at once");
        // Nothing is done any more, except for the answer.
        world.publish(0, 1, &[(1, "a")]);
        assert_eq!(world.take(0), []);
        if expected == unknown {
            world.send(
                0,
                &C::CloseResponse {
                    correlation_id: 1,
                    code: OK,
                },
            );
        } else {
            world.pass(5);
        }
        assert_eq!(world.clients[0].state, SessionState::Closing);
    }
}

#[test]
fn a_publish_with_malformed_messages_closes_the_connection() {
    let mut world = World::open();
    world.declare_publisher(1, "", "s");
    let mut frame = vec![0, 0, 0, 0, 0, 2, 0, 1, 1, 0, 0, 0, 1];
    // A publishing id, and a message that is longer than the frame.
    frame.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, b'x']);
    frame[3] = (frame.len() - 4) as u8;
    world.send_bytes(0, &frame);
    let seen = world.take(0);
    let code = ResponseCode::UNKNOWN_FRAME;
    assert!(
        matches!(seen[..], [S::Close { code: c, .. }] if c == code),
        "{seen:?}"
    );
    assert!(world.broker.batches.is_empty());
}

#[test]
fn the_client_closes_the_connection() {
    let mut world = World::open();
    world.declare_publisher(1, "", "s");
    let seen = world.ask(&C::Close {
        correlation_id: 7,
        code: OK,
        reason: "done",
    });
    assert!(
        matches!(
            seen[..],
            [S::CloseResponse {
                correlation_id: 7,
                code: OK
            }]
        ),
        "{seen:?}"
    );
    assert_eq!(world.clients[0].state, SessionState::Closing);
    assert_eq!(world.broker.counters.publishers, 0);
}

#[test]
fn operators_and_the_node_close_the_connection() {
    let text = "an operator".to_owned();
    let can_hear = true;
    let cases = [
        (ControlEvent::Close { text: text.clone() }, false),
        (ControlEvent::Shed { text, can_hear }, true),
        (ControlEvent::Shutdown, true),
    ];
    for (event, ends_at_once) in cases {
        let mut world = World::open();
        world.subscribe(0, 1, "s", FIRST, 1, &[]);
        world.broker.events.push_back((100, event.into()));
        world.pump();
        let seen = world.take(0);
        assert!(matches!(seen[..], [S::Close { .. }]), "{seen:?}");
        assert_eq!(
            world.clients[0].state == SessionState::Closing,
            ends_at_once
        );
        assert_eq!(world.broker.stream("s").cursors.len(), 0);
        world.pass(5);
        assert_eq!(world.clients[0].state, SessionState::Closing);
    }
}

#[test]
fn a_silent_client_is_disconnected() {
    let mut world = World::open();
    world.pass(60);
    assert_eq!(world.take(0), [S::Heartbeat {}]);
    world.pass(59);
    assert_eq!(world.clients[0].state, SessionState::Open);
    world.pass(2);
    assert_eq!(world.clients[0].state, SessionState::Closing);
}

#[test]
fn a_throttled_client_does_not_count_as_silent() {
    let mut world = World::open();
    world.broker.is_throttled = true;
    world.pass(600);
    assert_eq!(world.clients[0].state, SessionState::Open);
    world.broker.is_throttled = false;
    world.pass(180);
    assert_eq!(world.clients[0].state, SessionState::Closing);
}

#[test]
fn a_consumer_that_does_not_read_holds_bounded_memory() {
    let limits = Limits {
        outbox_deliveries: 200 << 10,
        ..Limits::default()
    };
    let config = StreamConfig {
        limits: limits.clone(),
        ..StreamConfig::default()
    };
    let mut world = World::open_with(config, "guest");
    let publisher = world.connect("guest");
    world.send(
        publisher,
        &C::DeclarePublisher {
            correlation_id: 1,
            publisher_id: 1,
            reference: "",
            stream: "s",
        },
    );
    let body = "x".repeat(40 << 10);
    for id in 0..100 {
        world.publish(publisher, 1, &[(id, &body)]);
    }
    world.clients[0].is_deaf = true;
    for id in 0..8 {
        world.send(
            0,
            &C::Subscribe {
                correlation_id: 1,
                subscription_id: id,
                stream: "s",
                offset: FIRST,
                credit: u16::MAX,
                properties: codec_stream::Trailing(codec_stream::List::from(&[][..])),
            },
        );
    }
    let held = world.clients[0].out.len();
    assert!(held > 40 << 10, "{held}");
    // Beyond the limit, one chunk for each consumer.
    assert!(held <= limits.outbox_deliveries + 8 * (41 << 10), "{held}");
    world.clients[0].is_deaf = false;
    world.pump();
    assert_eq!(bodies(&world.take(0)).len(), 800);
}

#[test]
fn a_chunk_larger_than_the_limit_is_delivered() {
    let config = StreamConfig {
        limits: Limits {
            outbox_deliveries: 10,
            ..Limits::default()
        },
        ..StreamConfig::default()
    };
    let mut world = World::open_with(config, "guest");
    world.declare_publisher(1, "", "s");
    for id in 0..5 {
        world.publish(0, 1, &[(id, "larger than the limit")]);
    }
    world.take(0);
    world.subscribe(0, 1, "s", FIRST, 10, &[]);
    assert_eq!(bodies(&world.take(0)).len(), 5);
}

#[test]
fn publishes_in_flight_are_bounded() {
    let config = StreamConfig {
        limits: Limits {
            in_flight: 10_000,
            ..Limits::default()
        },
        ..StreamConfig::default()
    };
    let mut world = World::open_with(config, "guest");
    world.declare_publisher(1, "", "s");
    world.broker.holds_confirms = true;
    let body = "x".repeat(3000);
    for id in 0..8 {
        let mut buffer = BytesMut::new();
        let message = PublishedMessage {
            publishing_id: id,
            filter: None,
            body: PublishedBody::Message(body.as_bytes()),
        };
        let messages = PublishedMessages::encode(&[message], &mut buffer);
        world.send(
            0,
            &C::Publish {
                publisher_id: 1,
                messages,
            },
        );
    }
    assert_eq!(world.broker.batches.len(), 4);
    assert_eq!(world.clients[0].state, SessionState::Paused);
    while world.broker.batches.len() < 8 || !world.broker.unconfirmed.is_empty() {
        let before = world.broker.unconfirmed.len();
        world.broker.confirm_held();
        world.pump();
        assert!(before > 0, "the session goes on");
    }
    assert_eq!(world.clients[0].state, SessionState::Open);
}

#[test]
fn requests_without_answer_are_bounded() {
    let config = StreamConfig {
        limits: Limits {
            pending_requests: 3,
            ..Limits::default()
        },
        ..StreamConfig::default()
    };
    let mut world = World::open_with(config, "guest");
    world.broker.is_silent = true;
    for _ in 0..5 {
        world.send(
            0,
            &C::QueryOffset {
                correlation_id: 1,
                reference: "r",
                stream: "s",
            },
        );
    }
    assert_eq!(world.clients[0].state, SessionState::Paused);
    world.pass(15);
    assert_eq!(world.take(0).len(), 3);
    world.pass(15);
    assert_eq!(world.take(0).len(), 2);
}

#[test]
fn confirms_fit_into_the_frames_of_the_client() {
    let mut world = World::new(StreamConfig {
        limits: Limits {
            frame: 8192,
            ..Limits::default()
        },
        ..StreamConfig::default()
    });
    world.broker.declare("s");
    world.connect("guest");
    world.declare_publisher(1, "", "s");
    world.broker.holds_confirms = true;
    for first in 0..20 {
        let messages: Vec<(u64, &str)> = (0..100).map(|n| (first * 100 + n, "x")).collect();
        world.publish(0, 1, &messages);
    }
    world.broker.confirm_held();
    world.pump();
    let mut confirmed = 0;
    for command in world.take(0) {
        let S::PublishConfirm { publishing_ids, .. } = command else {
            panic!("{command:?}");
        };
        let mut frame = BytesMut::new();
        command.encode(&mut frame);
        assert!(frame.len() <= 8192 + 4);
        confirmed += publishing_ids.len();
    }
    assert_eq!(confirmed, 2000);
}
