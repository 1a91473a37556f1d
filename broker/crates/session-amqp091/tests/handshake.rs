//! The handshake and the close of connections.

use crate::fake::{Conn, FakeBroker, capabilities, queue_declare};
use auth::{Mechanism, TlsPeer};
use codec_amqp091::{Method, PROTOCOL_HEADER};
use message::{Table, Value};
use metadata::Change;
use session::{ControlEvent, PasswordCheck, Session, SessionState};
use session_amqp091::{LoginConfig, SessionConfig};
use std::sync::Arc;
use std::time::Duration;

fn started() -> Conn {
    started_with(SessionConfig::default())
}

fn started_with(config: SessionConfig) -> Conn {
    let mut conn = Conn::new(config);
    conn.raw(&PROTOCOL_HEADER);
    conn.next_frame();
    conn
}

fn start_ok<'a>(mechanism: &'a str, response: &'a [u8], client_properties: Table) -> Method<'a> {
    Method::ConnectionStartOk {
        client_properties,
        mechanism,
        response,
        locale: "en_US",
    }
}

#[test]
fn server_sends_connection_start_with_its_properties() {
    let mut conn = Conn::new(SessionConfig::default());
    conn.raw(&PROTOCOL_HEADER[..3]);
    conn.raw(&PROTOCOL_HEADER[3..]);
    let (_, channel, payload) = conn.next_frame().unwrap();
    let Method::ConnectionStart {
        version_major,
        version_minor,
        server_properties,
        mechanisms,
        locales,
    } = Method::decode(&payload).unwrap()
    else {
        panic!("not connection.start")
    };
    assert_eq!((channel, version_major, version_minor), (0, 0, 9));
    assert_eq!(
        (mechanisms, locales),
        (&b"PLAIN AMQPLAIN ANONYMOUS"[..], &b"en_US"[..])
    );
    assert_eq!(
        server_properties.get("product").and_then(Value::as_str),
        Some("RabbitMQ")
    );
    let platform = server_properties.get("platform").and_then(Value::as_str);
    assert!(
        platform.is_some_and(|p| p.starts_with("Posthorn ")),
        "{platform:?}"
    );
    let version = server_properties.get("version").and_then(Value::as_str);
    // Clients compare it with RabbitMQ's version.
    assert!(version.is_some_and(|v| v.starts_with("4.")), "{version:?}");
    assert_eq!(
        server_properties
            .get("product_version")
            .and_then(Value::as_str),
        Some(env!("CARGO_PKG_VERSION"))
    );
    let Some(Value::Table(capabilities)) = server_properties.get("capabilities") else {
        panic!("no capabilities")
    };
    for name in [
        "publisher_confirms",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
    ] {
        assert_eq!(capabilities.get(name), Some(&Value::Bool(true)), "{name}");
    }
}

/// kombu checks `product` and `version` before it raises the prefetch of a running consumer.
#[test]
fn server_properties_name_the_configured_product_and_version() {
    let mut conn = Conn::new(SessionConfig {
        product: "Posthorn".into(),
        version: "3.13.7".into(),
        ..SessionConfig::default()
    });
    conn.raw(&PROTOCOL_HEADER);
    let (_, _, payload) = conn.next_frame().unwrap();
    let Ok(Method::ConnectionStart {
        server_properties, ..
    }) = Method::decode(&payload)
    else {
        panic!("not connection.start")
    };
    let text = |name| server_properties.get(name).and_then(Value::as_str);
    assert_eq!(text("product"), Some("Posthorn"));
    assert_eq!(text("version"), Some("3.13.7"));
}

#[test]
fn foreign_protocol_header_is_answered_with_ours() {
    for header in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"AMQP\x03\x01\x00\x00",
        b"AMQP\x00\x00\x08\x00",
    ] {
        let mut conn = Conn::new(SessionConfig::default());
        conn.raw(header);
        conn.drain();
        assert_eq!(
            (&conn.received[..], conn.session_state),
            (&PROTOCOL_HEADER[..], SessionState::Closing)
        );
    }
}

/// The password check is pending: the client waits, and its frames are buffered.
#[test]
fn pending_password_check_pauses_the_connection() {
    for right in [true, false] {
        let mut conn = started();
        conn.broker.verdict = Some(PasswordCheck::Later);
        conn.send(0, start_ok("PLAIN", b"\0guest\0guest", capabilities()));
        conn.expect_nothing();
        assert_eq!(conn.session_state, SessionState::Paused);
        let tune_ok = Method::ConnectionTuneOk {
            channel_max: 2047,
            frame_max: 131_072,
            heartbeat: 10,
        };
        conn.send(0, tune_ok);
        conn.send(0, Method::ConnectionOpen { virtual_host: "/" });
        conn.expect_nothing();
        assert_eq!(conn.broker.logins, (0, 0));
        conn.broker.notices.push_back(
            ControlEvent::Verified {
                verdict: right.into(),
            }
            .into(),
        );
        conn.settle();
        assert_eq!(conn.broker.logins, (u32::from(right), u32::from(!right)));
        if right {
            assert_eq!(conn.next_method(), (0, "connection.tune"));
            assert_eq!(conn.next_method(), (0, "connection.open-ok"));
        } else {
            let text = "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the \
                        broker logfile.";
            conn.expect_connection_close(403, text, (0, 0));
        }
    }
}

#[test]
fn handshake_timeout_ends_a_pending_password_check() {
    let mut conn = started();
    conn.broker.verdict = Some(PasswordCheck::Later);
    conn.send(0, start_ok("PLAIN", b"\0guest\0guest", capabilities()));
    conn.advance(Duration::from_secs(11));
    assert_eq!(conn.session_state, SessionState::Closing);
    conn.broker.notices.push_back(
        ControlEvent::Verified {
            verdict: true.into(),
        }
        .into(),
    );
    conn.settle();
    conn.expect_nothing();
}

#[test]
fn too_many_pending_checks_close_with_320() {
    let mut conn = started();
    conn.broker.verdict = Some(PasswordCheck::Busy);
    conn.send(0, start_ok("PLAIN", b"\0guest\0guest", capabilities()));
    let text = "CONNECTION_FORCED - too many logins are waiting to be checked; try again";
    conn.expect_connection_close(320, text, (0, 0));
    assert_eq!(conn.broker.logins, (0, 0), "no login was checked");
}

#[test]
fn amqplain_login_succeeds() {
    let mut conn = started();
    let response = b"\x05LOGINS\0\0\0\x05guest\x08PASSWORDS\0\0\0\x05guest";
    conn.send(0, start_ok("AMQPLAIN", response, Table::default()));
    assert_eq!(conn.next_method(), (0, "connection.tune"));
    assert_eq!(
        conn.session.info(&session::ServiceStates::default()).user,
        "guest"
    );
}

#[test]
fn wrong_password_is_refused_with_403_if_the_client_supports_it() {
    let mut conn = started();
    conn.send(0, start_ok("PLAIN", b"\0guest\0wrong", capabilities()));
    conn.expect_connection_close(
        403,
        "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.",
        (0, 0),
    );
    conn.send(0, Method::ConnectionCloseOk {});
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn unanswered_refusal_closes_the_socket_after_three_seconds() {
    let mut conn = started();
    conn.send(0, start_ok("PLAIN", b"\0guest\0wrong", capabilities()));
    conn.next_frame();
    conn.advance(Duration::from_millis(2_999));
    assert_eq!(conn.session_state, SessionState::Open);
    conn.advance(Duration::from_millis(1));
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn malformed_sasl_response_gets_no_answer() {
    for (mechanism, response) in [
        ("PLAIN", &b""[..]),
        ("PLAIN", b"\0guest"),
        ("AMQPLAIN", b"\x05LOGINS"),
        ("AMQPLAIN", b"\x05LOGINS\0\0\0\x05guest"),
    ] {
        let mut conn = started();
        conn.send(0, start_ok(mechanism, response, capabilities()));
        conn.expect_nothing();
        assert_eq!(conn.broker.logins, (0, 1));
        conn.advance(Duration::from_secs(3));
        assert_eq!(conn.session_state, SessionState::Closing);
    }
}

#[test]
fn frames_before_tune_ok_are_limited_to_the_minimum_size() {
    let start_ok = |len: usize| {
        let mut properties = capabilities();
        properties.set("long", Value::String("x".repeat(len).into()));
        start_ok("PLAIN", b"\0guest\0guest", properties)
    };
    let mut conn = started();
    conn.send(0, start_ok(3800));
    let (_, _, payload) = conn.next_frame().unwrap();
    assert!(matches!(
        Method::decode(&payload),
        Ok(Method::ConnectionTune { .. })
    ));
    let mut conn = started();
    conn.send(0, start_ok(4096));
    conn.expect_nothing();
    conn.advance(Duration::from_secs(3));
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn refusal_is_silent_and_delayed_for_other_clients() {
    for (mechanism, response) in [
        ("PLAIN", &b"\0guest\0wrong"[..]),
        ("PLAIN", b"\0nobody\0x"),
        ("PLAIN", b"\0guest\0"),
        ("PLAIN", b"garbage"),
        ("EXTERNAL", b""),
    ] {
        let mut conn = started();
        conn.send(0, start_ok(mechanism, response, Table::default()));
        conn.expect_nothing();
        assert_ne!(conn.session_state, SessionState::Closing);
        conn.send(0, start_ok("PLAIN", b"\0guest\0guest", Table::default()));
        conn.expect_nothing();
        conn.advance(Duration::from_secs(3));
        assert_eq!(conn.session_state, SessionState::Closing);
    }
}

#[test]
fn loopback_users_are_refused_from_remote_addresses() {
    let remote = || SessionConfig {
        peer_is_loopback: false,
        ..SessionConfig::default()
    };
    let mut conn = Conn::new(remote());
    conn.raw(&PROTOCOL_HEADER);
    conn.next_frame();
    conn.send(0, start_ok("PLAIN", b"\0guest\0guest", capabilities()));
    assert_eq!(conn.next_method(), (0, "connection.close"));
    Conn::open_as(remote(), "small");
    let with_loopback_users = |names: &[&str]| SessionConfig {
        logins: Arc::new(LoginConfig {
            loopback_users: names.iter().map(|&n| n.into()).collect(),
            ..LoginConfig::default()
        }),
        ..remote()
    };
    Conn::open_as(with_loopback_users(&["small"]), "guest");
    let mut conn = Conn::new(with_loopback_users(&["small"]));
    conn.raw(&PROTOCOL_HEADER);
    conn.next_frame();
    conn.send(0, start_ok("PLAIN", b"\0small\0small", capabilities()));
    assert_eq!(conn.next_method(), (0, "connection.close"));
}

#[test]
fn anonymous_login_uses_the_configured_user() {
    let mut conn = started();
    conn.send(0, start_ok("ANONYMOUS", b"whoever", capabilities()));
    assert_eq!(conn.next_method(), (0, "connection.tune"));
    let as_user = |user: &str, password: &[u8]| auth::Credentials {
        user: user.into(),
        password: password.to_vec(),
    };
    let logins = |anonymous| SessionConfig {
        logins: Arc::new(LoginConfig {
            anonymous,
            ..LoginConfig::default()
        }),
        ..SessionConfig::default()
    };
    for (anonymous, text) in [
        (Some(as_user("small", b"wrong")), "ACCESS_REFUSED"),
        (Some(as_user("nobody", b"x")), "ACCESS_REFUSED"),
    ] {
        let mut conn = Conn::new(logins(anonymous));
        conn.raw(&PROTOCOL_HEADER);
        conn.next_frame();
        conn.send(0, start_ok("ANONYMOUS", b"", capabilities()));
        let (_, _, payload) = conn.next_frame().unwrap();
        let Ok(Method::ConnectionClose { reply_text, .. }) = Method::decode(&payload) else {
            panic!("{payload:?}");
        };
        assert!(reply_text.starts_with(text), "{reply_text}");
    }
    // Without a configured user the mechanism is refused.
    let mut conn = Conn::new(logins(None));
    conn.raw(&PROTOCOL_HEADER);
    conn.next_frame();
    conn.send(0, start_ok("ANONYMOUS", b"", capabilities()));
    conn.expect_nothing();
    conn.advance(Duration::from_secs(3));
    assert_eq!(conn.session_state, SessionState::Closing);
}

fn mechanisms_of(config: SessionConfig) -> String {
    let mut conn = Conn::new(config);
    conn.raw(&PROTOCOL_HEADER);
    let (_, _, payload) = conn.next_frame().unwrap();
    let Ok(Method::ConnectionStart { mechanisms, .. }) = Method::decode(&payload) else {
        panic!("{payload:?}");
    };
    String::from_utf8_lossy(mechanisms).into_owned()
}

/// A listener with these mechanisms and this TLS peer.
fn listener(mechanisms: &[Mechanism], tls: Option<TlsPeer>) -> SessionConfig {
    SessionConfig {
        tls: tls.map(Arc::new),
        logins: Arc::new(LoginConfig {
            mechanisms: mechanisms.to_vec(),
            ..LoginConfig::default()
        }),
        ..SessionConfig::default()
    }
}

fn with_certificate(name: Option<&str>) -> Option<TlsPeer> {
    Some(TlsPeer {
        subject: Some("CN=whoever".into()),
        name: name.map(Into::into),
        ..TlsPeer::default()
    })
}

#[test]
fn mechanisms_are_offered_in_the_configured_order() {
    let all = [Mechanism::External, Mechanism::Plain, Mechanism::Anonymous];
    assert_eq!(
        mechanisms_of(listener(&all, with_certificate(None))),
        "EXTERNAL PLAIN ANONYMOUS"
    );
    // EXTERNAL is offered to a client without a certificate, so that the refusal names the missing
    // certificate, but not without TLS.
    let without = Some(TlsPeer::default());
    assert_eq!(
        mechanisms_of(listener(&all, without)),
        "EXTERNAL PLAIN ANONYMOUS"
    );
    assert_eq!(mechanisms_of(listener(&all, None)), "PLAIN ANONYMOUS");
    // Mechanisms that are not offered are refused.
    for (mechanism, text) in [("AMQPLAIN", "invalid"), ("SCRAM-SHA-256", "unknown")] {
        let mut conn = started_with(listener(&all, None));
        conn.send(0, start_ok(mechanism, b"", capabilities()));
        conn.expect_nothing();
        conn.advance(Duration::from_secs(3));
        assert_eq!(conn.session_state, SessionState::Closing, "{text}");
    }
}

#[test]
fn external_login_uses_the_name_in_the_certificate() {
    let external = [Mechanism::External];
    let log_in = |config: SessionConfig| {
        let mut conn = started_with(config);
        // The response is ignored.
        conn.send(0, start_ok("EXTERNAL", b"\0guest\0guest", capabilities()));
        conn
    };
    let mut conn = log_in(listener(&external, with_certificate(Some("small"))));
    assert_eq!(conn.next_method(), (0, "connection.tune"));
    assert_eq!(
        conn.session.info(&session::ServiceStates::default()).user,
        "small"
    );
    let details = conn.session.details();
    let subject = details.tls.as_ref().and_then(|tls| tls.subject.as_deref());
    assert_eq!(
        (details.auth_mechanism, subject),
        ("EXTERNAL", Some("CN=whoever"))
    );

    let remote = SessionConfig {
        peer_is_loopback: false,
        ..listener(&external, with_certificate(Some("guest")))
    };
    for refused in [
        listener(&external, with_certificate(Some("nobody"))),
        listener(&external, with_certificate(None)),
        listener(&external, Some(TlsPeer::default())),
        listener(&external, None),
        remote,
    ] {
        let mut conn = log_in(refused);
        let (_, _, payload) = conn.next_frame().unwrap();
        let Ok(Method::ConnectionClose {
            reply_code,
            reply_text,
            ..
        }) = Method::decode(&payload)
        else {
            panic!("{payload:?}");
        };
        assert_eq!(reply_code, 403);
        assert_eq!(
            reply_text,
            "ACCESS_REFUSED - Login was refused using authentication mechanism EXTERNAL. \
             For details see the broker logfile."
        );
    }
}

#[test]
fn tune_ok_values_are_checked() {
    for (channel_max, frame_max, text) in [
        (
            2047,
            100,
            "negotiated frame_max = 100 is lower than the minimum allowed value (4096)",
        ),
        (
            2047,
            131_073,
            "negotiated frame_max = 131073 is higher than the maximum allowed value (131072)",
        ),
        (
            0,
            4096,
            "negotiated channel_max = 0 (no limit) is higher than the maximum allowed value (2047)",
        ),
        (
            2048,
            4096,
            "negotiated channel_max = 2048 is higher than the maximum allowed value (2047)",
        ),
    ] {
        let mut conn = started();
        conn.send(0, start_ok("PLAIN", b"\0guest\0guest", capabilities()));
        conn.next_frame();
        conn.send(
            0,
            Method::ConnectionTuneOk {
                channel_max,
                frame_max,
                heartbeat: 0,
            },
        );
        conn.expect_connection_close(530, &format!("NOT_ALLOWED - {text}"), (10, 31));
    }
}

fn opening(user: &str, vhost: &str, prepare: impl FnOnce(&mut FakeBroker)) -> Conn {
    let mut conn = started();
    prepare(&mut conn.broker);
    let response = format!("\0{user}\0{user}");
    conn.send(0, start_ok("PLAIN", response.as_bytes(), capabilities()));
    conn.next_frame();
    conn.send(
        0,
        Method::ConnectionTuneOk {
            channel_max: 10,
            frame_max: 4096,
            heartbeat: 0,
        },
    );
    conn.send(
        0,
        Method::ConnectionOpen {
            virtual_host: vhost,
        },
    );
    conn
}

#[test]
fn connection_open_checks_the_vhost() {
    opening("guest", "nowhere", |_| ()).expect_connection_close(
        530,
        "NOT_ALLOWED - vhost nowhere not found",
        (10, 40),
    );
    opening("small", "other", |_| ()).expect_connection_close(
        530,
        "NOT_ALLOWED - access to vhost 'other' refused for user 'small'",
        (10, 40),
    );
    opening("guest", "/", |b| b.admits = false).expect_connection_close(
        530,
        "NOT_ALLOWED - connection refused for user 'guest': user connection limit (3) is reached",
        (10, 40),
    );
    opening("guest", "/", |b| b.vhost_is_full = true).expect_connection_close(
        530,
        "NOT_ALLOWED - access to vhost '/' refused for user 'guest': connection limit (5) is reached",
        (10, 40),
    );
    let mut conn = opening("guest", "/", |b| b.draining = true);
    assert_eq!(conn.next_method(), (0, "connection.close"));
}

#[test]
fn unexpected_method_ends_the_handshake() {
    let mut conn = started();
    conn.send(0, Method::ConnectionOpen { virtual_host: "/" });
    conn.expect_nothing();
    conn.advance(Duration::from_secs(3));
    assert_eq!(conn.session_state, SessionState::Closing);
    let mut conn = started();
    conn.send(1, Method::ChannelOpen {});
    conn.expect_nothing();
}

#[test]
fn handshake_times_out_after_ten_seconds() {
    let mut conn = started();
    assert_eq!(
        conn.session.wake_at(),
        Some(conn.broker.now + Duration::from_secs(10))
    );
    conn.advance(Duration::from_secs(9));
    assert_eq!(conn.session_state, SessionState::Open);
    conn.advance(Duration::from_secs(1));
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn silent_connection_times_out() {
    let mut conn = Conn::new(SessionConfig::default());
    conn.advance(Duration::from_secs(10));
    assert_eq!(conn.session_state, SessionState::Closing);
}

const CLOSE: Method<'static> = Method::ConnectionClose {
    reply_code: 200,
    reply_text: "bye",
    class_id: 0,
    method_id: 0,
};

/// Section 1.4.2.10: close-ok confirms the close. The client closes the socket and has the closing
/// timeout for it.
#[test]
fn server_answers_close_and_waits_for_the_client_to_close_the_socket() {
    let mut conn = Conn::with_channel();
    conn.send(0, CLOSE);
    conn.expect(0, Method::ConnectionCloseOk {});
    assert_eq!(conn.session_state, SessionState::Open);
    conn.send(1, Method::BasicRecover { requeue: true });
    conn.send(0, CLOSE);
    conn.expect_nothing();
    conn.advance(Duration::from_secs(29));
    assert_eq!(conn.session_state, SessionState::Open);
    conn.advance(Duration::from_secs(1));
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn close_ok_follows_deletion_of_exclusive_queues() {
    let mut conn = Conn::with_channel();
    conn.send(
        1,
        Method::QueueDeclare {
            queue: "own",
            passive: false,
            durable: false,
            exclusive: true,
            auto_delete: false,
            no_wait: false,
            arguments: Table::default(),
        },
    );
    assert_eq!(conn.next_method(), (1, "queue.declare-ok"));
    assert!(conn.broker.queue("/", "own").is_some());
    conn.send(
        0,
        Method::ConnectionClose {
            reply_code: 200,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        },
    );
    assert!(conn.broker.queue("/", "own").is_none());
    conn.expect(0, Method::ConnectionCloseOk {});
}

#[test]
fn broken_socket_deletes_exclusive_queues() {
    let mut conn = Conn::with_channel();
    conn.send(
        1,
        Method::QueueDeclare {
            queue: "own",
            passive: false,
            durable: false,
            exclusive: true,
            auto_delete: false,
            no_wait: true,
            arguments: Table::default(),
        },
    );
    conn.session.gone(&mut conn.broker);
    assert_eq!(
        conn.broker.changes.last(),
        Some(&Change::EndSession {
            session: crate::fake::ME
        })
    );
    assert!(conn.broker.queue("/", "own").is_none());
}

#[test]
fn heartbeats_are_sent_and_expected() {
    let mut conn = Conn::open();
    conn.advance(Duration::from_secs(5));
    let (kind, channel, _) = conn.next_frame().unwrap();
    assert_eq!((kind, channel), (codec_amqp091::FrameKind::Heartbeat, 0));
    conn.expect_nothing();
    conn.heartbeat();
    conn.advance(Duration::from_secs(19));
    assert_eq!(conn.session_state, SessionState::Open);
    conn.advance(Duration::from_secs(1));
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn throttled_connection_does_not_count_as_silent() {
    let mut conn = Conn::open();
    conn.broker.is_throttled = true;
    for _ in 0..20 {
        conn.advance(Duration::from_secs(5));
        conn.out.clear();
        assert_eq!(conn.session_state, SessionState::Open);
    }
    conn.broker.is_throttled = false;
    conn.advance(Duration::from_secs(19));
    assert_eq!(conn.session_state, SessionState::Open);
    conn.advance(Duration::from_secs(5));
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn unsent_heartbeat_is_not_followed_by_another() {
    let mut conn = Conn::open();
    for _ in 0..3 {
        conn.advance(Duration::from_secs(5));
    }
    assert_eq!(conn.out.len(), 8);
}

#[test]
fn operators_and_shutdown_close_with_320() {
    for (session_event, text) in [
        (
            ControlEvent::Close {
                text: "Closed via management plugin".into(),
            },
            "Closed via management plugin",
        ),
        (
            ControlEvent::Shutdown,
            "broker forced connection closure with reason 'shutdown'",
        ),
    ] {
        let mut conn = Conn::open();
        conn.broker.notices.push_back(session_event.into());
        conn.settle();
        conn.expect_connection_close(320, &format!("CONNECTION_FORCED - {text}"), (0, 0));
        conn.send(1, Method::ChannelOpen {});
        conn.expect_nothing();
        conn.send(0, Method::ConnectionCloseOk {});
        assert_eq!(conn.session_state, SessionState::Closing);
    }
}

const SHUTDOWN: &str =
    "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'";

/// Clients take the end of a connection during the login for a refusal of their password.
#[test]
fn shutdown_during_a_login_closes_with_320() {
    // Before connection.start-ok.
    let mut conn = started();
    conn.broker.notices.push_back(ControlEvent::Shutdown.into());
    conn.settle();
    conn.expect_nothing();
    assert_eq!(conn.session_state, SessionState::Open);
    conn.send(0, start_ok("PLAIN", b"\0guest\0guest", capabilities()));
    conn.expect_connection_close(320, SHUTDOWN, (0, 0));
    // While the password is checked.
    let mut conn = started();
    conn.broker.verdict = Some(PasswordCheck::Later);
    conn.send(0, start_ok("PLAIN", b"\0guest\0guest", capabilities()));
    conn.broker.notices.push_back(ControlEvent::Shutdown.into());
    conn.settle();
    conn.expect_connection_close(320, SHUTDOWN, (0, 0));
    // After connection.tune.
    let mut conn = started();
    conn.send(0, start_ok("PLAIN", b"\0guest\0guest", capabilities()));
    assert_eq!(conn.next_method(), (0, "connection.tune"));
    conn.broker.notices.push_back(ControlEvent::Shutdown.into());
    conn.settle();
    conn.expect_connection_close(320, SHUTDOWN, (0, 0));
}

/// A client without `authentication_failure_close` must get no connection.close before connection.tune.
#[test]
fn shutdown_during_a_login_is_told_to_older_clients_at_connection_open() {
    let mut conn = started();
    conn.broker.notices.push_back(ControlEvent::Shutdown.into());
    conn.settle();
    conn.broker.draining = true;
    conn.send(0, start_ok("PLAIN", b"\0guest\0guest", Table::default()));
    assert_eq!(conn.next_method(), (0, "connection.tune"));
    let tune_ok = Method::ConnectionTuneOk {
        channel_max: 10,
        frame_max: 4096,
        heartbeat: 0,
    };
    conn.send(0, tune_ok);
    conn.send(0, Method::ConnectionOpen { virtual_host: "/" });
    let text = "CONNECTION_FORCED - the node is shutting down or in maintenance mode";
    conn.expect_connection_close(320, text, (10, 40));
}

#[test]
fn shutdown_waits_a_second_for_a_login() {
    let mut conn = started();
    conn.broker.notices.push_back(ControlEvent::Shutdown.into());
    conn.settle();
    conn.advance(Duration::from_millis(999));
    assert_eq!(conn.session_state, SessionState::Open);
    conn.advance(Duration::from_secs(4));
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn shutdown_does_not_wait_after_close_ok() {
    let mut conn = Conn::open();
    conn.send(0, CLOSE);
    conn.expect(0, Method::ConnectionCloseOk {});
    conn.broker.notices.push_back(ControlEvent::Shutdown.into());
    conn.settle();
    conn.expect_nothing();
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn unanswered_close_ends_at_the_closing_timeout() {
    let mut conn = Conn::open();
    conn.broker.notices.push_back(ControlEvent::Shutdown.into());
    conn.settle();
    conn.advance(Duration::from_secs(29));
    assert_ne!(conn.session_state, SessionState::Closing);
    conn.advance(Duration::from_secs(1));
    assert_eq!(conn.session_state, SessionState::Closing);
}

#[test]
fn update_secret_is_accepted() {
    let mut conn = Conn::open();
    conn.send(
        0,
        Method::ConnectionUpdateSecret {
            new_secret: b"guest",
            reason: "because",
        },
    );
    conn.expect(0, Method::ConnectionUpdateSecretOk {});
    conn.send(
        0,
        Method::ConnectionUpdateSecret {
            new_secret: b"wrong",
            reason: "",
        },
    );
    conn.expect(0, Method::ConnectionUpdateSecretOk {});
}

#[test]
fn client_properties_are_stored_for_listings() {
    let conn = Conn::open();
    assert_eq!(conn.session.details().client_properties, capabilities());
    assert_eq!(
        conn.session
            .info(&session::ServiceStates::default())
            .client_name,
        "tester"
    );
    assert_eq!(conn.session.details().auth_mechanism, "PLAIN");
}

#[test]
fn alarm_blocks_only_publishers() {
    let mut conn = Conn::with_channel();
    conn.declare(1, "q");
    conn.broker
        .notices
        .push_back(ControlEvent::Blocked(Some("low on memory")).into());
    conn.settle();
    conn.declare(1, "r");
    assert_eq!(conn.session_state, SessionState::Open);
    conn.publish(1, "", "q", b"one");
    conn.expect(
        0,
        Method::ConnectionBlocked {
            reason: "low on memory",
        },
    );
    assert_eq!(conn.session_state, SessionState::Paused);
    conn.send(1, queue_declare("s"));
    conn.expect_nothing();
    // A paused connection is not read, so missing heartbeats do not count.
    conn.advance(Duration::from_secs(100));
    assert_eq!(conn.session_state, SessionState::Paused);
    conn.broker
        .notices
        .push_back(ControlEvent::Blocked(None).into());
    conn.settle();
    while let Some((kind, _, payload)) = conn.next_frame() {
        if kind != codec_amqp091::FrameKind::Heartbeat {
            assert_eq!(
                Method::decode(&payload).unwrap().name(),
                "connection.unblocked"
            );
            break;
        }
    }
    assert_eq!(conn.next_method(), (1, "queue.declare-ok"));
    assert_eq!(conn.session_state, SessionState::Open);
    assert_eq!(conn.broker.queue("/", "q").unwrap().ready.len(), 1);
}

#[test]
fn channel_max_is_enforced() {
    let mut conn = opening("guest", "/", |_| ());
    conn.next_frame();
    for n in 1..=10 {
        conn.open_channel(n);
    }
    assert_eq!(
        conn.session
            .info(&session::ServiceStates::default())
            .channels,
        10
    );
    conn.send(11, Method::ChannelOpen {});
    conn.expect_connection_close(
        530,
        "NOT_ALLOWED - number of channels opened (10) has reached the negotiated channel_max (10)",
        (0, 0),
    );
}

#[test]
fn channel_limit_of_a_user_is_enforced() {
    let mut conn = opening("guest", "/", |b| b.channels_left = 2);
    conn.next_frame();
    conn.open_channel(1);
    conn.open_channel(2);
    conn.send(
        2,
        Method::ChannelClose {
            reply_code: 200,
            reply_text: "",
            class_id: 0,
            method_id: 0,
        },
    );
    conn.expect(2, Method::ChannelCloseOk {});
    conn.open_channel(3);
    conn.send(4, Method::ChannelOpen {});
    conn.expect_connection_close(
        530,
        "NOT_ALLOWED - number of channels opened for user 'guest' has reached the maximum allowed user limit of (2)",
        (0, 0),
    );
    assert_eq!(conn.broker.channels_left, 2, "all channels are released");
}

#[test]
fn channel_limit_of_a_vhost_is_enforced() {
    let mut conn = opening("guest", "/", |b| {
        b.channels_left = 1;
        b.vhost_limits_channels = true;
    });
    conn.next_frame();
    conn.open_channel(1);
    conn.send(2, Method::ChannelOpen {});
    conn.expect_connection_close(
        530,
        "NOT_ALLOWED - number of channels opened for vhost '/' has reached the maximum allowed vhost limit of (2)",
        (0, 0),
    );
}

#[test]
fn session_info_names_user_and_vhost() {
    let conn = Conn::with_channel();
    let info = conn.session.info(&session::ServiceStates::default());
    assert_eq!(
        (
            info.protocol,
            &*info.user,
            &*info.vhost,
            &*info.client_name,
            info.channels
        ),
        ("amqp091", "guest", "/", "tester", 1)
    );
}
