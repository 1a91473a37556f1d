//! CONNECT and CONNACK (sections 3.1, 3.2 and 4.12). Statement numbers are those of MQTT 5.0 unless
//! 3.1.1 is named.

use crate::fake::{World, will};
use auth::TlsPeer;
use bytes::BytesMut;
use codec_mqtt::{Connect, Packet, Properties, Qos, ReasonCode, Version, Will, parse_frame};
use metadata::{Identity, IdentityPermissions, Scope};
use session::{ControlEvent, LoginVerdict, PasswordCheck};
use session_mqtt::{MqttSettings, SessionLimits};
use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;
use std::time::Duration;

const VERSIONS: [Version; 3] = [Version::V31, Version::V311, Version::V5];

#[test]
fn connack_is_the_first_packet_in_every_version() {
    // 3.1.1: [MQTT-3.1.4-4], [MQTT-3.12.4-1]
    // [MQTT-3.12.4-1], [MQTT-3.2.0-1], [MQTT-3.2.0-2], [MQTT-3.1.4-5], [MQTT-3.2.2-2]; 3.1.1: [MQTT-3.2.0-1], [MQTT-3.2.2-1]
    for version in VERSIONS {
        let mut w = World::default();
        let c = w.open(version);
        w.connect(c, |_| ());
        w.send(c, &Packet::PingReq);
        assert_eq!(w.output(c), ["CONNACK 0x00", "PINGRESP"]);
    }
}

#[test]
fn connect_is_first_packet_and_only_sent_once() {
    // 3.1.1: [MQTT-3.1.0-1], [MQTT-3.1.0-2]
    // [MQTT-3.1.0-1], [MQTT-3.1.0-2]
    let mut w = World::default();
    let c = w.open(Version::V5);
    w.send(c, &Packet::PingReq);
    assert_eq!(w.output(c), ["END"]);
    for (version, output) in [
        (Version::V311, &["END"][..]),
        (Version::V5, &["DISCONNECT 0x82", "END"]),
    ] {
        let c = w.client(version, "c");
        w.connect(c, |_| ());
        assert_eq!(w.output(c), output);
    }
}

#[test]
fn malformed_connect_ends_the_connection() {
    // 3.1.1: [MQTT-3.1.2-1], [MQTT-3.1.2-3], [MQTT-3.1.4-1]
    let mut w = World::default();
    // [MQTT-3.1.2-1]: another protocol gets no answer.
    let c = w.open(Version::V311);
    w.send_raw(
        c,
        &[0x10, 12, 0, 4, b'H', b'T', b'T', b'P', 4, 2, 0, 0, 0, 0],
    );
    assert_eq!(w.output(c), ["END"]);
    // [MQTT-3.1.2-2]; 3.1.1: [MQTT-3.1.2-2]
    let unknown = |level| [0x10, 12, 0, 4, b'M', b'Q', b'T', b'T', level, 2, 0, 0, 0, 0];
    for level in [0, 1, 2, 0x83, 0x82, 6, 0x85, 0xFF] {
        let c = w.open(Version::V311);
        w.send_raw(c, &unknown(level));
        assert_eq!(w.bytes(c), [0x20, 2, 0, 1]);
        assert!(w.is_closed(c));
    }
    // [MQTT-3.1.2-3], [MQTT-3.1.4-1]
    let c = w.open(Version::V311);
    w.send_raw(
        c,
        &[
            0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, 3, 0, 0, 0, 1, b'c',
        ],
    );
    assert_eq!(w.output(c), ["END"]);
    let c = w.open(Version::V5);
    w.send_raw(
        c,
        &[
            0x10, 14, 0, 4, b'M', b'Q', b'T', b'T', 5, 3, 0, 0, 0, 0, 1, b'c',
        ],
    );
    assert_eq!(w.output(c), ["CONNACK 0x81 (a reserved bit is set)", "END"]);
    // [MQTT-2.1.3-1]; 3.1.1: [MQTT-2.2.2-1]
    let four = [
        0x12, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, 1, b'c',
    ];
    let five = [
        0x12, 14, 0, 4, b'M', b'Q', b'T', b'T', 5, 2, 0, 0, 0, 0, 1, b'c',
    ];
    for raw in [&four[..], &five] {
        let c = w.open(Version::V311);
        w.send_raw(c, raw);
        assert_eq!(w.output(c), ["END"]);
    }
    // Bytes after a rejected CONNECT are ignored: [MQTT-3.1.4-6]; 3.1.1: [MQTT-3.1.4-5]
    let c = w.open(Version::V5);
    w.send_raw(
        c,
        &[
            0x10, 14, 0, 4, b'M', b'Q', b'T', b'T', 5, 3, 0, 0, 0, 0, 1, b'c', 0xC0, 0,
        ],
    );
    assert_eq!(w.output(c).len(), 2);
}

#[test]
fn packets_may_arrive_byte_by_byte() {
    let mut w = World::default();
    let c = w.open(Version::V311);
    for byte in [
        0x10, 13, 0, 4, b'M', b'Q', b'T', b'T', 4, 2, 0, 0, 0, 1, b'c', 0xC0, 0,
    ] {
        w.send_raw(c, &[byte]);
    }
    assert_eq!(w.output(c), ["CONNACK 0x00", "PINGRESP"]);
}

#[test]
fn client_ids_are_validated_or_assigned() {
    // 3.1.1: [MQTT-3.1.3-5], [MQTT-3.1.3-6], [MQTT-3.1.3-9]
    let mut w = World::default();
    // [MQTT-3.1.3-5], and longer ones.
    for id in [
        "0123456789abcdefghijklm",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ-longer-than-23",
        "é",
    ] {
        w.client(Version::V311, id);
    }
    // The longest string, with a will of that size.
    let long = crate::fake::leak(&"i".repeat(65_535));
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.client_id = long;
        connect.will = will(long, Qos::AtMostOnce, false).map(|will| codec_mqtt::Will {
            payload: long.as_bytes(),
            ..will
        });
    });
    assert_eq!(w.output(c), ["CONNACK 0x00"]);
    // [MQTT-3.1.3-6], [MQTT-3.1.3-7], [MQTT-3.2.2-16]
    let mut assigned = Vec::new();
    for _ in 0..2 {
        let c = w.open(Version::V5);
        w.connect(c, |connect| connect.client_id = "");
        let raw = w.bytes(c);
        let frame = parse_frame(&raw, 1000).unwrap().unwrap();
        let Ok(Packet::ConnAck(ack)) = Packet::decode(&frame, Version::V5) else {
            panic!("no CONNACK");
        };
        assigned.push(ack.properties.assigned_client_id.unwrap().to_owned());
    }
    assert_ne!(assigned[0], assigned[1]);
    // 3.1.1: [MQTT-3.1.3-7], [MQTT-3.1.3-8]
    let c = w.open(Version::V311);
    w.connect(c, |connect| connect.client_id = "");
    assert_eq!(w.output(c), ["CONNACK 0x00"]);
    for version in [Version::V31, Version::V311] {
        let c = w.open(version);
        w.connect(c, |connect| {
            connect.client_id = "";
            connect.clean_start = false;
        });
        assert_eq!(w.bytes(c), [0x20, 2, 0, 2]);
        assert!(w.is_closed(c));
    }
}

#[test]
fn credentials_and_vhost_access_decide_about_connect() {
    // [MQTT-3.1.4-2], [MQTT-3.2.2-6], [MQTT-3.2.2-7], [MQTT-3.2.2-8]; 3.1.1: [MQTT-3.2.2-4], [MQTT-3.2.2-5]
    for (user, password, codes) in [
        (Some("guest"), Some("guest"), [0, 0]),
        (None, None, [0, 0]),
        (Some("/:guest"), Some("guest"), [0, 0]),
        (Some("other:small"), Some("small"), [0, 0]),
        (Some("guest"), Some("wrong"), [4, 0x86]),
        (Some("nobody"), Some("guest"), [4, 0x86]),
        (Some("guest"), Some(""), [4, 0x86]),
        (Some("guest"), None, [4, 0x86]),
        (Some("small"), Some("small"), [5, 0x87]),
        (Some("nowhere:guest"), Some("guest"), [5, 0x87]),
    ] {
        for (version, code) in [(Version::V311, codes[0]), (Version::V5, codes[1])] {
            let mut w = World::default();
            let c = w.open(version);
            w.connect(c, |connect| {
                connect.user_name = user;
                connect.password = password.map(str::as_bytes);
            });
            let raw = w.bytes(c);
            assert_eq!(raw[raw.len().min(3)], code, "{user:?} {password:?}");
            // A user without access to the vhost has logged in successfully.
            let logins = if matches!(code, 4 | 0x86) {
                (0, 1)
            } else {
                (1, 0)
            };
            assert_eq!(w.node.logins, logins, "{user:?} {password:?}");
            assert_eq!(w.is_closed(c), code != 0);
        }
    }
}

#[test]
fn loopback_users_and_anonymous_clients_are_restricted() {
    let mut w = World::default();
    let c = w.open_from(Version::V311, false);
    w.connect(c, |_| ());
    assert_eq!(w.bytes(c), [0x20, 2, 0, 4]);
    let mut w = World::new(MqttSettings {
        anonymous: None,
        ..MqttSettings::default()
    });
    let c = w.open(Version::V311);
    w.connect(c, |_| ());
    assert_eq!(w.bytes(c), [0x20, 2, 0, 4]);
}

#[test]
fn user_name_without_password_is_anonymous_only_if_allowed() {
    let connects = |settings: MqttSettings, name: &'static str, password| {
        let mut w = World::new(settings);
        let c = w.open(Version::V311);
        w.connect(c, |connect| {
            connect.user_name = Some(name);
            connect.password = password;
        });
        w.bytes(c)
    };
    let allowed = || MqttSettings {
        name_without_password: true,
        ..MqttSettings::default()
    };
    let (accepted, refused) = ([0x20, 2, 0, 0], [0x20, 2, 0, 4]);
    assert_eq!(connects(MqttSettings::default(), "sensor", None), refused);
    assert_eq!(connects(MqttSettings::default(), "guest", None), refused);
    for name in ["sensor", "guest", "other:small", "nowhere:small"] {
        assert_eq!(connects(allowed(), name, None), accepted, "{name}");
        // An empty password counts as a password.
        assert_eq!(connects(allowed(), name, Some(b"")), refused, "{name}");
        assert_eq!(connects(allowed(), name, Some(b"x")), refused, "{name}");
    }
    let nobody = MqttSettings {
        anonymous: None,
        ..allowed()
    };
    assert_eq!(connects(nobody, "sensor", None), refused);
}

#[test]
fn certificate_names_user_of_client_without_user_name() {
    // Section 5.4.1 leaves it to the server; RabbitMQ's `mqtt.ssl_cert_login`.
    let shown = |name: Option<&str>| TlsPeer {
        subject: name.map(|n| format!("CN={n}").into()),
        name: name.map(Into::into),
        ..TlsPeer::default()
    };
    let with = |by_certificate, anonymous| MqttSettings {
        by_certificate,
        anonymous,
        vhost: "other".into(),
        ..MqttSettings::default()
    };
    let anyone = || MqttSettings::default().anonymous;
    for (settings, tls, user, code) in [
        (with(true, None), Some(shown(Some("small"))), None, 0),
        // Not enabled, not sent, without a name, or naming an unknown user.
        (with(false, None), Some(shown(Some("small"))), None, 0x86),
        (with(true, None), Some(shown(None)), None, 0x86),
        (with(true, None), None, None, 0x86),
        (
            with(true, anyone()),
            Some(shown(Some("nobody"))),
            None,
            0x86,
        ),
        (
            with(true, None),
            Some(shown(Some("other:small"))),
            None,
            0x86,
        ),
        // A user name from the client counts and needs its password.
        (
            with(true, None),
            Some(shown(Some("small"))),
            Some("guest"),
            0x86,
        ),
    ] {
        let mut w = World::new(settings);
        let c = w.open_over(Version::V5, true, tls.clone());
        w.connect(c, |connect| connect.user_name = user);
        let raw = w.bytes(c);
        assert_eq!(raw[raw.len().min(3)], code, "{tls:?} {user:?}");
        let logins = if code == 0 { (1, 0) } else { (0, 1) };
        assert_eq!(w.node.logins, logins, "{tls:?} {user:?}");
    }
    // A user restricted to loopback cannot connect from elsewhere with a certificate either.
    let mut w = World::new(with(true, None));
    let c = w.open_over(Version::V311, false, Some(shown(Some("guest"))));
    w.connect(c, |_| ());
    assert_eq!(w.bytes(c), [0x20, 2, 0, 4]);
}

#[test]
fn password_check_may_be_asynchronous() {
    for (right, output) in [
        (true, &["CONNACK 0x00", "PINGRESP"][..]),
        (
            false,
            &["CONNACK 0x86 (wrong user name or password)", "END"],
        ),
    ] {
        let mut w = World::default();
        w.node.password_check = Some(PasswordCheck::Later);
        let c = w.open(Version::V5);
        w.connect(c, |_| ());
        w.send(c, &Packet::PingReq);
        assert!(w.is_paused(c));
        assert_eq!(w.output(c), [""; 0]);
        assert_eq!(w.node.logins, (0, 0));
        w.session_event(
            c,
            ControlEvent::Verified {
                verdict: right.into(),
            }
            .into(),
        );
        assert_eq!(w.output(c), output);
        assert_eq!(w.node.logins, (u32::from(right), u32::from(!right)));
    }
    let mut w = World::default();
    w.node.password_check = Some(PasswordCheck::Busy);
    let c = w.open(Version::V5);
    w.connect(c, |_| ());
    assert!(w.output(c)[0].starts_with("CONNACK 0x89"));
    assert_eq!(w.node.logins, (0, 0), "nothing was checked");
}

#[test]
fn identity_has_its_own_permissions_and_its_end_disconnects() {
    for (version, end) in [
        (Version::V311, &["END"][..]),
        (Version::V5, &["DISCONNECT 0xa0", "END"]),
    ] {
        let mut w = World::default();
        w.node.password_check = Some(PasswordCheck::Later);
        let c = w.open(version);
        w.connect(c, |connect| {
            connect.user_name = Some("guest");
            connect.password = Some(b"token");
        });
        let scopes = ["write:%2F/amq.topic/a", "read:other/q"];
        let scopes = scopes.into_iter().filter_map(Scope::parse);
        let identity = Arc::new(Identity {
            user: "token-user".into(),
            tags: Vec::new(),
            permissions: IdentityPermissions::Scopes(scopes.collect()),
            expires_at: None,
            backend: 0,
        });
        let verdict = LoginVerdict::Identified(identity);
        w.session_event(c, ControlEvent::Verified { verdict }.into());
        assert_eq!(w.output(c), ["CONNACK 0x00"]);
        assert_eq!(w.node.logins, (1, 0));
        w.session_event(c, ControlEvent::Expired.into());
        assert_eq!(w.output(c), end);
    }
}

#[test]
fn connect_is_refused_when_node_is_full_or_draining() {
    let mut w = World::default();
    w.node.admits = false;
    let c = w.open(Version::V5);
    w.connect(c, |_| ());
    assert!(w.output(c)[0].starts_with("CONNACK 0x97"));
    w.node.admits = true;
    w.node.draining = true;
    let c = w.open(Version::V311);
    w.connect(c, |_| ());
    assert_eq!(w.bytes(c), [0x20, 2, 0, 3]);
}

#[test]
fn enhanced_authentication_is_refused() {
    // [MQTT-4.12.0-1], [MQTT-4.12.0-6], [MQTT-4.12.0-7]
    let mut w = World::default();
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.properties.authentication_method = Some("SCRAM-SHA-1")
    });
    assert_eq!(
        w.output(c),
        ["CONNACK 0x8c (no authentication method is offered)", "END"]
    );
    let c = w.client(Version::V5, "c");
    w.send_raw(c, &[0xF0, 2, 0x19, 0]);
    assert_eq!(w.output(c), ["DISCONNECT 0x82", "END"]);
}

#[test]
fn throttled_client_does_not_count_as_silent() {
    let mut w = World::default();
    let c = w.open(Version::V5);
    w.connect(c, |connect| connect.keep_alive = 10);
    w.output(c);
    w.node.is_throttled = true;
    for _ in 0..10 {
        w.advance(Duration::from_millis(15_068));
        assert_eq!(w.output(c), [""; 0]);
    }
    w.node.is_throttled = false;
    for _ in 0..2 {
        w.advance(Duration::from_millis(15_068));
    }
    assert_eq!(w.output(c), ["DISCONNECT 0x8d", "END"]);
}

#[test]
fn silent_client_is_disconnected() {
    // [MQTT-3.1.2-22], [MQTT-3.2.2-22]; 3.1.1: [MQTT-3.1.2-24]
    for (version, output) in [
        (Version::V311, &["END"][..]),
        (Version::V5, &["DISCONNECT 0x8d", "END"]),
    ] {
        let mut w = World::default();
        let c = w.open(version);
        w.connect(c, |connect| connect.keep_alive = 10);
        w.output(c);
        for _ in 0..3 {
            w.advance(Duration::from_millis(14_900));
            w.send(c, &Packet::PingReq);
            assert_eq!(w.output(c), ["PINGRESP"]);
        }
        // Exact to one unit of wake-ups.
        w.advance(Duration::from_millis(15_068));
        assert_eq!(w.output(c), output);
    }
    // Without a keep alive there is no timeout, but CONNECT has one.
    let mut w = World::default();
    let c = w.client(Version::V311, "c");
    let idle = w.open(Version::V311);
    w.advance(Duration::from_millis(10_068));
    assert_eq!(w.output(idle), ["END"]);
    w.advance(Duration::from_secs(1_000_000));
    assert!(!w.is_closed(c));
}

#[test]
fn keep_alive_is_limited() {
    // [MQTT-3.2.2-21]
    let mut w = World::new(MqttSettings {
        limits: SessionLimits {
            keep_alive: 60,
            ..SessionLimits::default()
        },
        ..MqttSettings::default()
    });
    for (asked, told) in [(59, None), (60, Some(60)), (61, Some(60)), (0, Some(60))] {
        let c = w.open(Version::V5);
        w.connect(c, |connect| connect.keep_alive = asked);
        let raw = w.bytes(c);
        let frame = parse_frame(&raw, 1000).unwrap().unwrap();
        let Ok(Packet::ConnAck(ack)) = Packet::decode(&frame, Version::V5) else {
            panic!("no CONNACK");
        };
        assert_eq!(ack.properties.server_keep_alive, told, "{asked}");
        if told.is_some() {
            w.advance(Duration::from_millis(89_900));
            assert_eq!(w.output(c), [""; 0], "{asked}");
            // Exact to one unit of wake-ups.
            w.advance(Duration::from_millis(168));
            assert_eq!(w.output(c), ["DISCONNECT 0x8d", "END"], "{asked}");
        }
    }
    // Earlier versions cannot be told a different keep alive.
    for version in [Version::V31, Version::V311] {
        for (asked, code) in [(60, 0), (61, 2), (0, 2)] {
            let c = w.open(version);
            w.connect(c, |connect| connect.keep_alive = asked);
            assert_eq!(w.bytes(c), [0x20, 2, 0, code]);
        }
    }
}

#[test]
fn packet_size_is_limited() {
    let limits = SessionLimits {
        packet_unauthenticated: 100,
        packet: 200,
        ..SessionLimits::default()
    };
    let mut w = World::new(MqttSettings {
        limits,
        ..MqttSettings::default()
    });
    let c = w.open(Version::V311);
    w.send_raw(c, &[0x10, 99]);
    assert_eq!(w.output(c), ["END"]);
    let c = w.open(Version::V5);
    w.connect(c, |_| ());
    let raw = w.bytes(c);
    let frame = parse_frame(&raw, 1000).unwrap().unwrap();
    let Ok(Packet::ConnAck(ack)) = Packet::decode(&frame, Version::V5) else {
        panic!("no CONNACK");
    };
    assert_eq!(ack.properties.maximum_packet_size, NonZeroU32::new(200));
    w.publish(c, "a", Qos::AtLeastOnce, 1, &"x".repeat(150));
    assert_eq!(w.output(c), ["PUBACK 1 0x10"]);
    // Rejected as soon as its header has arrived.
    w.send_raw(c, &[0x30, 0xFF, 0xFF, 0x7F]);
    assert_eq!(w.output(c), ["DISCONNECT 0x95", "END"]);
}

#[test]
fn concurrent_large_connects_are_limited() {
    let mut w = World::default();
    let large = |id: &str| {
        let mut raw = BytesMut::new();
        let connect = Connect {
            version: Version::V311,
            clean_start: true,
            keep_alive: 0,
            properties: Properties::default(),
            client_id: id,
            will: None,
            user_name: Some("guest"),
            password: Some(b"guest"),
        };
        let payload = vec![b'x'; 65_535];
        let will = Will {
            qos: Qos::AtMostOnce,
            retain: false,
            properties: Properties::default(),
            topic: "w",
            payload: &payload,
        };
        Packet::Connect(Connect {
            will: Some(will),
            ..connect
        })
        .encode(Version::V311, &mut raw);
        raw.to_vec()
    };
    let whole = large("a");
    let most = whole.len() - 5;
    assert!(most > 64 << 10);
    // A CONNECT that arrives in one piece needs no slot, nor does a small one.
    let (a, b, c) = (
        w.open(Version::V311),
        w.open(Version::V311),
        w.open(Version::V311),
    );
    w.send_raw(a, &whole[..most]);
    w.send_raw(b, &whole[..64 << 10]);
    w.send_raw(c, &large("c"));
    assert_eq!(
        (w.output(b), w.output(c)),
        (vec![], vec!["CONNACK 0x00".to_owned()])
    );
    assert_eq!(w.node.connect_slots, 0);
    w.send_raw(b, &whole[64 << 10..most]);
    assert_eq!(w.output(b), ["END"]);
    w.send_raw(a, &whole[most..]);
    assert_eq!(
        (w.output(a), w.node.connect_slots),
        (vec!["CONNACK 0x00".to_owned()], 1)
    );
    // A connection that breaks releases its slot too.
    let d = w.open(Version::V311);
    w.send_raw(d, &large("d")[..most]);
    assert_eq!(w.node.connect_slots, 0);
    w.cut(d);
    assert_eq!(w.node.connect_slots, 1);
}

#[test]
fn connack_contains_server_decisions() {
    let mut w = World::default();
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.properties.session_expiry = Some(1_000_000)
    });
    let raw = w.bytes(c);
    let frame = parse_frame(&raw, 1000).unwrap().unwrap();
    let Ok(Packet::ConnAck(ack)) = Packet::decode(&frame, Version::V5) else {
        panic!("no CONNACK");
    };
    let expected = Properties {
        session_expiry: Some(86_400),
        receive_maximum: NonZeroU16::new(4096),
        topic_alias_maximum: Some(16),
        maximum_packet_size: NonZeroU32::new(16 << 20),
        retain_available: Some(true),
        wildcard_subscription_available: Some(true),
        subscription_identifier_available: Some(true),
        shared_subscription_available: Some(true),
        ..Properties::default()
    };
    // [MQTT-3.2.2-9], [MQTT-3.1.2-28]: no Maximum QoS and no response information.
    assert_eq!(
        (ack.reason, ack.properties),
        (ReasonCode::Success, expected)
    );
}

#[test]
fn connack_respects_maximum_packet_size() {
    // [MQTT-3.1.2-24]
    let connack = |size| {
        let mut w = World::default();
        let c = w.open(Version::V5);
        w.connect(c, |connect| {
            connect.properties.maximum_packet_size = NonZeroU32::new(size)
        });
        (w.bytes(c).len(), w.is_closed(c))
    };
    assert_eq!(connack(24), (24, false));
    // Without the properties that state a default.
    assert_eq!(connack(23), (16, false));
    assert_eq!(connack(16), (16, false));
    // Without topic aliases: a client that is told no maximum sends none.
    assert_eq!(connack(15), (13, false));
    assert_eq!(connack(13), (13, false));
    // CONNACK with reason code 0x95 alone, or nothing.
    assert_eq!(connack(12), (5, true));
    assert_eq!(connack(5), (5, true));
    assert_eq!(connack(4), (0, true));
}

#[test]
fn assigned_client_id_fits_maximum_packet_size() {
    // [MQTT-3.1.2-24], [MQTT-3.2.2-16]
    for size in 13..80 {
        let mut w = World::default();
        let c = w.open(Version::V5);
        w.connect(c, |connect| {
            connect.client_id = "";
            connect.properties.maximum_packet_size = NonZeroU32::new(size);
        });
        let raw = w.bytes(c);
        assert!(raw.len() <= size as usize, "{} of {size}", raw.len());
        let frame = parse_frame(&raw, 1000).unwrap().expect("CONNACK");
        let Ok(Packet::ConnAck(ack)) = Packet::decode(&frame, Version::V5) else {
            panic!("no CONNACK");
        };
        let assigned = ack.properties.assigned_client_id.map(str::len);
        match size {
            ..27 => assert_eq!((ack.reason, assigned), (ReasonCode::PacketTooLarge, None)),
            27..57 => assert_eq!((ack.reason, assigned), (ReasonCode::Success, Some(11))),
            _ => assert_eq!((ack.reason, assigned), (ReasonCode::Success, Some(41))),
        }
    }
}

#[test]
fn refusal_before_login_omits_reason_string_that_does_not_fit() {
    // [MQTT-3.2.2-19]
    let refused = |change: fn(&mut codec_mqtt::Connect<'static>)| {
        let mut w = World::default();
        let c = w.open(Version::V5);
        w.connect(c, |connect| {
            connect.properties.maximum_packet_size = NonZeroU32::new(20);
            change(connect);
        });
        w.bytes(c)
    };
    let method = refused(|c| c.properties.authentication_method = Some("SCRAM-SHA-1"));
    assert_eq!(method, [0x20, 3, 0, 0x8C, 0]);
    let long = refused(|c| {
        c.client_id = crate::fake::leak(&"i".repeat(1000));
        c.properties.session_expiry = Some(10);
    });
    assert_eq!(long, [0x20, 3, 0, 0x85, 0]);
}

#[test]
fn refused_client_does_not_take_over_client_id() {
    let mut w = World::new(MqttSettings {
        anonymous: None,
        ..MqttSettings::default()
    });
    let owner = |w: &mut World, expiry| {
        let c = w.open(Version::V5);
        w.connect(c, |connect| {
            connect.client_id = "owners";
            connect.user_name = Some("other:guest");
            connect.password = Some(b"guest");
            connect.properties.session_expiry = expiry;
            connect.clean_start = false;
        });
        assert!(w.output(c)[0].starts_with("CONNACK 0x00"));
        c
    };
    w.node.apply(metadata::Change::PutPermission(
        metadata::PermissionRecord {
            user: "guest".into(),
            vhost: "other".into(),
            configure: ".*".into(),
            write: ".*".into(),
            read: ".*".into(),
        },
    ));
    let c = owner(&mut w, Some(100));
    // The user has no permissions on the session's queue.
    for clean in [false, true] {
        for expiry in [None, Some(100)] {
            let other = w.open(Version::V5);
            w.connect(other, |connect| {
                connect.client_id = "owners";
                connect.user_name = Some("other:small");
                connect.password = Some(b"small");
                connect.clean_start = clean;
                connect.properties.session_expiry = expiry;
            });
            assert!(w.output(other)[0].starts_with("CONNACK 0x87"));
            assert_eq!(w.output(c), [""; 0], "the owner stays");
        }
    }
    // CONNACK exceeds the Maximum Packet Size.
    let other = w.open(Version::V5);
    w.connect(other, |connect| {
        connect.client_id = "owners";
        connect.user_name = Some("other:guest");
        connect.password = Some(b"guest");
        connect.properties.maximum_packet_size = NonZeroU32::new(6);
    });
    assert_eq!(w.output(other), ["CONNACK 0x95", "END"]);
    assert_eq!(w.output(c), [""; 0], "the owner stays");
}

#[test]
fn reason_string_that_does_not_fit_is_omitted() {
    // [MQTT-3.2.2-19], [MQTT-3.14.2-3], [MQTT-3.14.2-2]
    let mut w = World::default();
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.properties.maximum_packet_size = NonZeroU32::new(30);
        connect.user_name = Some("guest");
        connect.password = Some(b"wrong");
    });
    assert_eq!(w.output(c), ["CONNACK 0x86", "END"]);
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.properties.maximum_packet_size = NonZeroU32::new(60)
    });
    w.output(c);
    w.session_event(
        c,
        ControlEvent::Close {
            text: "t".repeat(100),
        }
        .into(),
    );
    assert_eq!(w.bytes(c), [0xE0, 1, 0x98]);
}

#[test]
fn server_disconnect_states_the_reason() {
    let mut w = World::default();
    let (five, three) = (w.client(Version::V5, "a"), w.client(Version::V311, "b"));
    let before = w.open(Version::V5);
    for c in [five, three, before] {
        w.session_event(c, ControlEvent::Shutdown.into());
    }
    assert_eq!(w.output(five), ["DISCONNECT 0x8b", "END"]);
    // [MQTT-3.14.0-1], and 3.1.1 has no DISCONNECT from the server.
    assert_eq!(w.output(three), ["END"]);
    assert_eq!(w.output(before), ["END"]);
}

#[test]
fn login_during_a_shutdown_is_told_that_the_server_is_unavailable() {
    for (version, connack) in [
        (Version::V5, "CONNACK 0x88 (the node stops)"),
        (Version::V311, "CONNACK 0x88"),
    ] {
        let mut w = World::default();
        w.node.password_check = Some(PasswordCheck::Later);
        let c = w.open(version);
        w.connect(c, |_| ());
        w.session_event(c, ControlEvent::Shutdown.into());
        assert_eq!(w.output(c), [connack, "END"]);
        assert_eq!(w.node.logins, (0, 0));
    }
}

#[test]
fn will_without_publish_permission_is_refused_at_connect() {
    let mut w = World::default();
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.user_name = Some("other:small");
        connect.password = Some(b"small");
        connect.will = will("a", Qos::AtMostOnce, false);
    });
    assert_eq!(w.output(c), ["CONNACK 0x00"]);
    w.node.apply(metadata::Change::PutTopicPermission(
        metadata::TopicPermissionRecord {
            user: "small".into(),
            vhost: "other".into(),
            exchange: "amq.topic".into(),
            write: "^b".into(),
            read: ".*".into(),
        },
    ));
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.user_name = Some("other:small");
        connect.password = Some(b"small");
        connect.will = will("a", Qos::AtMostOnce, false);
    });
    assert!(w.output(c)[0].starts_with("CONNACK 0x87"));
}
