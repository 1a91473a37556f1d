//! Sessions that outlive connections, takeover of client ids, and wills (sections 3.1.2, 3.1.3,
//! 3.14, 4.1 and 4.4).

use crate::fake::{World, confirm_all, refuse_all, will};
use codec_mqtt::{AckKind, Disconnect, Packet, Properties, Qos, ReasonCode, Version};
use session_mqtt::{MqttSettings, SessionLimits};
use std::time::Duration;

/// A client with a session expiry of one hour; returns its CONNACK.
fn connect_persistent(w: &mut World, version: Version) -> (usize, String) {
    let c = w.open(version);
    w.connect(c, |connect| {
        connect.client_id = "keeper";
        connect.clean_start = false;
        if version.is_5() {
            connect.properties.session_expiry = Some(3600);
        }
    });
    let output = w.output(c);
    (c, output.join(", "))
}

fn goodbye(w: &mut World, c: usize, reason: ReasonCode, expiry: Option<u32>) {
    let properties = Properties {
        session_expiry: expiry,
        ..Properties::default()
    };
    w.send(c, &Packet::Disconnect(Disconnect { reason, properties }));
}

#[test]
fn session_is_resumed() {
    // 3.1.1: [MQTT-3.1.2-6], [MQTT-3.1.4-3], [MQTT-4.1.0-1], [MQTT-4.5.0-1]
    // [MQTT-3.1.2-5], [MQTT-3.1.2-6], [MQTT-3.1.2-23], [MQTT-3.2.2-3], [MQTT-4.1.0-1], [MQTT-4.5.0-1]
    // 3.1.1: [MQTT-3.1.2-4], [MQTT-3.1.2-5], [MQTT-3.2.2-2], [MQTT-3.2.2-3]
    for version in [Version::V311, Version::V5] {
        let mut w = World::default();
        let (c, output) = connect_persistent(&mut w, version);
        assert_eq!(output, "CONNACK 0x00");
        w.subscribe(c, "a", Qos::ExactlyOnce);
        goodbye(&mut w, c, ReasonCode::Success, None);
        assert_eq!(w.output(c), ["END"]);
        let p = w.client(version, "p");
        w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
        w.publish(p, "a", Qos::ExactlyOnce, 2, "2");
        w.publish(p, "a", Qos::AtMostOnce, 0, "not kept");
        assert_eq!(w.output(p), ["PUBACK 1", "PUBREC 2"]);
        let (c, output) = connect_persistent(&mut w, version);
        assert_eq!(
            output,
            "CONNACK 0x00 present, PUBLISH a 1 q1 #1, PUBLISH a 2 q2 #2"
        );
        w.publish(p, "a", Qos::AtMostOnce, 0, "3");
        assert_eq!(w.output(c), ["PUBLISH a 3 q0"]);
        // A clean start ends the session: [MQTT-3.1.2-4], [MQTT-3.1.4-4]
        w.cut(c);
        let c = w.client(version, "keeper");
        w.publish(p, "a", Qos::AtMostOnce, 0, "4");
        assert_eq!(w.output(c), [""; 0]);
        w.cut(c);
        assert_eq!(connect_persistent(&mut w, version).1, "CONNACK 0x00");
    }
}

#[test]
fn unacknowledged_messages_are_resent_in_order_with_their_identifiers() {
    // [MQTT-4.4.0-1], [MQTT-4.6.0-1], [MQTT-3.3.1-1], [MQTT-4.3.3-3], [MQTT-4.3.3-5], [MQTT-4.3.3-6], [MQTT-4.3.2-3], [MQTT-4.8.2-4]
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, Version::V5);
    w.subscribe(c, "a", Qos::ExactlyOnce);
    let p = w.client(Version::V5, "p");
    for (id, qos) in [
        (1, Qos::AtLeastOnce),
        (2, Qos::ExactlyOnce),
        (3, Qos::ExactlyOnce),
        (4, Qos::AtLeastOnce),
    ] {
        w.publish(p, "a", qos, id, &id.to_string());
    }
    w.ack(c, AckKind::PubRec, 2, ReasonCode::Success);
    w.ack(c, AckKind::PubAck, 4, ReasonCode::Success);
    w.cut(c);
    w.publish(p, "a", Qos::AtLeastOnce, 5, "5");
    let (c, output) = connect_persistent(&mut w, Version::V5);
    assert_eq!(
        output,
        "CONNACK 0x00 present, PUBLISH a 1 q1 #1 dup, PUBREL 2, PUBLISH a 3 q2 #3 dup, PUBLISH a 5 q1 #5"
    );
    w.ack(c, AckKind::PubComp, 2, ReasonCode::Success);
    w.ack(c, AckKind::PubAck, 1, ReasonCode::Success);
    w.ack(c, AckKind::PubRec, 3, ReasonCode::Success);
    assert_eq!(w.output(c), ["PUBREL 3"]);
}

#[test]
fn resent_messages_respect_receive_maximum() {
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, Version::V311);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    for id in 1..=3 {
        w.publish(p, "a", Qos::AtLeastOnce, id, &id.to_string());
    }
    w.cut(c);
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.client_id = "keeper";
        connect.clean_start = false;
        connect.properties.receive_maximum = std::num::NonZeroU16::new(2);
    });
    assert_eq!(
        w.output(c),
        [
            "CONNACK 0x00 present",
            "PUBLISH a 1 q1 #1 dup",
            "PUBLISH a 2 q1 #2 dup"
        ]
    );
    w.ack(c, AckKind::PubAck, 1, ReasonCode::Success);
    assert_eq!(w.output(c), ["PUBLISH a 3 q1 #3 dup"]);
}

#[test]
fn received_qos_2_identifiers_survive_reconnect() {
    // [MQTT-4.3.3-10], [MQTT-4.3.3-13]
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a", Qos::AtMostOnce);
    let (c, _) = connect_persistent(&mut w, Version::V311);
    w.publish(c, "a", Qos::ExactlyOnce, 9, "x");
    w.cut(c);
    let (c, _) = connect_persistent(&mut w, Version::V311);
    w.publish_with(c, "a", Qos::ExactlyOnce, 9, "x", |p| p.dup = true);
    assert_eq!(w.output(c), ["PUBREC 9"]);
    assert_eq!(w.output(s).len(), 1);
    w.ack(c, AckKind::PubRel, 9, ReasonCode::Success);
    assert_eq!(w.output(c), ["PUBCOMP 9"]);
}

#[test]
fn unanswered_publish_is_remembered_when_its_connection_ends() {
    // [MQTT-4.3.3-10]
    for version in [Version::V311, Version::V5] {
        let mut w = World::default();
        w.node.queue("q", "a");
        w.node.withholds_confirms = true;
        let (c, _) = connect_persistent(&mut w, version);
        for (id, text) in [(8, "x"), (9, "y")] {
            w.publish(c, "a", Qos::ExactlyOnce, id, text);
        }
        w.cut(c);
        // PUBREC also waits for the queue on later connections.
        for _ in 0..2 {
            let (c, _) = connect_persistent(&mut w, version);
            w.publish_with(c, "a", Qos::ExactlyOnce, 8, "x", |p| p.dup = true);
            assert_eq!(w.output(c), [""; 0]);
            w.cut(c);
        }
        let (c, _) = connect_persistent(&mut w, version);
        w.publish_with(c, "a", Qos::ExactlyOnce, 8, "x", |p| p.dup = true);
        confirm_all(&mut w);
        assert_eq!(w.output(c), ["PUBREC 8"]);
        w.publish_with(c, "a", Qos::ExactlyOnce, 9, "y", |p| p.dup = true);
        assert_eq!(w.output(c), ["PUBREC 9"], "answered before it came again");
        assert_eq!(w.node.queued.len(), 2, "each of them once");
        for id in [8, 9] {
            w.ack(c, AckKind::PubRel, id, ReasonCode::Success);
        }
        assert_eq!(w.output(c), ["PUBCOMP 8", "PUBCOMP 9"]);
        w.publish(c, "a", Qos::ExactlyOnce, 8, "z");
        assert_eq!(w.node.queued.len(), 3, "the identifier is free again");
    }
}

#[test]
fn publish_confirmed_while_client_is_away_is_remembered() {
    let mut w = World::default();
    w.node.queue("q", "a");
    w.node.withholds_confirms = true;
    let (c, _) = connect_persistent(&mut w, Version::V5);
    w.publish(c, "a", Qos::AtLeastOnce, 8, "x");
    w.publish(c, "a", Qos::ExactlyOnce, 9, "y");
    w.cut(c);
    confirm_all(&mut w);
    let (c, _) = connect_persistent(&mut w, Version::V5);
    w.publish_with(c, "a", Qos::ExactlyOnce, 9, "y", |p| p.dup = true);
    assert_eq!(w.output(c), ["PUBREC 9"]);
    assert_eq!(w.node.queued.len(), 2);
}

/// The last bytes of the connection that was taken over are still being written.
#[test]
fn publish_confirmed_to_replaced_connection_is_answered_on_the_next_one() {
    for early in [true, false] {
        let mut w = World::default();
        w.node.queue("q", "a");
        w.node.withholds_confirms = true;
        let (taken_over, _) = connect_persistent(&mut w, Version::V5);
        w.set_stalled(taken_over, true);
        w.publish(taken_over, "a", Qos::ExactlyOnce, 9, "y");
        let (c, _) = connect_persistent(&mut w, Version::V5);
        if early {
            confirm_all(&mut w);
        }
        w.publish_with(c, "a", Qos::ExactlyOnce, 9, "y", |p| p.dup = true);
        if !early {
            confirm_all(&mut w);
        }
        assert_eq!(w.output(c), ["PUBREC 9"], "answered early: {early}");
        assert_eq!(w.node.queued.len(), 1);
    }
}

#[test]
fn publish_rejected_after_its_connection_ended_is_new_when_resent() {
    for away in [true, false] {
        let mut w = World::default();
        w.node.queue("q", "a");
        w.node.withholds_confirms = true;
        let (c, _) = connect_persistent(&mut w, Version::V5);
        w.publish(c, "a", Qos::ExactlyOnce, 9, "x");
        w.cut(c);
        if away {
            refuse_all(&mut w);
        }
        let (c, _) = connect_persistent(&mut w, Version::V5);
        w.publish_with(c, "a", Qos::ExactlyOnce, 9, "x", |p| p.dup = true);
        if !away {
            refuse_all(&mut w);
            assert_eq!(w.output(c), ["PUBREC 9 0x97"]);
            w.publish_with(c, "a", Qos::ExactlyOnce, 9, "x", |p| p.dup = true);
        }
        confirm_all(&mut w);
        assert_eq!(w.output(c), ["PUBREC 9"]);
        assert_eq!(w.node.queued.len(), 2, "the queue took only the second");
    }
}

#[test]
fn clean_start_forgets_unanswered_publishes() {
    let mut w = World::default();
    w.node.queue("q", "a");
    w.node.withholds_confirms = true;
    let (c, _) = connect_persistent(&mut w, Version::V5);
    w.publish(c, "a", Qos::ExactlyOnce, 9, "x");
    w.cut(c);
    let c = w.client(Version::V5, "keeper");
    refuse_all(&mut w);
    w.publish(c, "a", Qos::ExactlyOnce, 9, "y");
    assert_eq!(w.node.queued.len(), 2);
    confirm_all(&mut w);
    assert_eq!(w.output(c), ["PUBREC 9"]);
}

#[test]
fn sessions_end_at_their_expiry() {
    // 3.1.1: [MQTT-4.1.0-2]
    // [MQTT-4.1.0-2]
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, Version::V5);
    w.cut(c);
    w.advance(Duration::from_secs(3599));
    let (c, output) = connect_persistent(&mut w, Version::V5);
    assert_eq!(output, "CONNACK 0x00 present");
    w.cut(c);
    w.advance(Duration::from_secs(3600));
    let (c, output) = connect_persistent(&mut w, Version::V5);
    assert_eq!(output, "CONNACK 0x00");
    // DISCONNECT may change the expiry.
    goodbye(&mut w, c, ReasonCode::Success, Some(0));
    assert_eq!(connect_persistent(&mut w, Version::V5).1, "CONNACK 0x00");
    // But not from zero.
    let c = w.client(Version::V5, "c");
    goodbye(&mut w, c, ReasonCode::Success, Some(5));
    assert_eq!(w.output(c), ["DISCONNECT 0x82", "END"]);
    // Sessions of 3.1.1 are kept for the server's maximum.
    let limits = SessionLimits {
        session_expiry: 60,
        ..SessionLimits::default()
    };
    let mut w = World::new(MqttSettings {
        limits,
        ..MqttSettings::default()
    });
    let (c, _) = connect_persistent(&mut w, Version::V311);
    w.cut(c);
    w.advance(Duration::from_secs(60));
    assert_eq!(connect_persistent(&mut w, Version::V311).1, "CONNACK 0x00");
}

#[test]
fn newest_connection_takes_over_the_client_id() {
    // 3.1.1: [MQTT-3.1.3-2]
    // [MQTT-3.1.4-3], [MQTT-3.1.3-2]; 3.1.1: [MQTT-3.1.4-2]
    let mut w = World::default();
    let five = w.client(Version::V5, "c");
    let three = w.client(Version::V311, "c");
    assert_eq!(w.output(five), ["DISCONNECT 0x8e", "END"]);
    let last = w.client(Version::V311, "c");
    assert_eq!(w.output(three), ["END"]);
    w.send(last, &Packet::PingReq);
    assert_eq!(w.output(last), ["PINGRESP"]);
    // The session moves to the new connection.
    let (c, _) = connect_persistent(&mut w, Version::V311);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    w.publish(c, "a", Qos::AtLeastOnce, 1, "x");
    let (_, output) = connect_persistent(&mut w, Version::V311);
    assert_eq!(output, "CONNACK 0x00 present, PUBLISH a x q1 #1 dup");
    assert_eq!(w.node.router().counts().connected, 2);
}

#[test]
fn will_is_published_when_connection_breaks() {
    // 3.1.1: [MQTT-3.1.2-10], [MQTT-3.1.2-12], [MQTT-3.1.2-16]
    // [MQTT-3.1.2-7], [MQTT-3.1.2-8], [MQTT-3.1.2-10], [MQTT-3.1.2-14], [MQTT-3.14.4-3]; 3.1.1: [MQTT-3.1.2-8], [MQTT-3.14.4-3]
    for version in [Version::V31, Version::V311, Version::V5] {
        let mut w = World::default();
        w.node.queue("q", "will");
        let s = w.client(Version::V5, "s");
        w.subscribe(s, "will", Qos::AtLeastOnce);
        let enter = |w: &mut World| {
            let c = w.open(version);
            w.connect(c, |connect| {
                connect.will = will("will", Qos::AtLeastOnce, false)
            });
            w.output(c);
            c
        };
        let c = enter(&mut w);
        goodbye(&mut w, c, ReasonCode::Success, None);
        assert_eq!(w.output(s), [""; 0]);
        let c = enter(&mut w);
        w.cut(c);
        assert_eq!(w.output(s), ["PUBLISH will gone q1 #1"]);
        let c = enter(&mut w);
        w.send_raw(c, &[0, 0]);
        assert_eq!(w.output(s), ["PUBLISH will gone q1 #2"], "a protocol error");
        let c = enter(&mut w);
        let d = enter(&mut w);
        assert!(w.is_closed(c));
        assert_eq!(w.output(s), ["PUBLISH will gone q1 #3"], "taken over");
        w.cut(d);
        assert_eq!(w.node.queued.len(), 4, "AMQP clients hear of it");
        assert_eq!(w.node.router().counts().retained, 0);
    }
}

#[test]
fn will_may_be_retained_and_requested_by_disconnect() {
    // [MQTT-3.1.2-15]; 3.1.1: [MQTT-3.1.2-17]
    let mut w = World::default();
    for reason in [None, Some(ReasonCode::DisconnectWithWill)] {
        let c = w.open(Version::V5);
        w.connect(c, |connect| {
            connect.will = will("will", Qos::AtMostOnce, true)
        });
        match reason {
            Some(reason) => goodbye(&mut w, c, reason, None),
            None => w.cut(c),
        }
        let s = w.client(Version::V5, "s");
        w.subscribe_with(s, "will", Default::default(), None);
        assert_eq!(w.output(s), ["SUBACK 1 [0]", "PUBLISH will gone q0 retain"]);
        w.cut(s);
        w.node.router().retain("/", "will", None).unwrap();
    }
}

#[test]
fn will_topic_is_validated() {
    // [MQTT-4.7.3-1]
    let mut w = World::default();
    for (topic, version, refused) in [
        ("", Version::V5, "CONNACK 0x82 (a will without a topic)"),
        ("a/#", Version::V5, "CONNACK 0x81 (not a topic name)"),
        (
            "$SYS/broker/uptime",
            Version::V5,
            "CONNACK 0x87 (the user may not publish to the will's topic)",
        ),
        ("$SYS/broker/uptime", Version::V311, "CONNACK 0x87"),
    ] {
        let c = w.open(version);
        w.connect(c, |c| c.will = will(topic, Qos::AtMostOnce, false));
        assert_eq!(w.output(c), [refused, "END"], "{topic}");
    }
    let c = w.open(Version::V311);
    let state = "$SYS/broker/connection/b/state";
    w.connect(c, |c| c.will = will(state, Qos::AtMostOnce, true));
    assert_eq!(w.output(c), ["CONNACK 0x00"]);
}

#[test]
fn will_delay_is_respected() {
    // [MQTT-3.1.3-9], [MQTT-3.1.2-8]; delayed and retained
    let enter = |w: &mut World, delay, expiry, clean| {
        let c = w.open(Version::V5);
        w.connect(c, |connect| {
            connect.clean_start = clean;
            connect.properties.session_expiry = Some(expiry);
            connect.will = will("will", Qos::AtMostOnce, true);
            if let Some(will) = &mut connect.will {
                will.properties.will_delay = Some(delay);
            }
        });
        w.output(c);
        c
    };
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "will", Qos::AtMostOnce);
    let c = enter(&mut w, 10, 100, true);
    w.cut(c);
    w.advance(Duration::from_secs(9));
    // The client comes back in time, and leaves again.
    let c = enter(&mut w, 10, 100, false);
    w.advance(Duration::from_secs(20));
    assert_eq!(w.output(s), [""; 0]);
    w.cut(c);
    w.advance(Duration::from_secs(10));
    assert_eq!(w.output(s), ["PUBLISH will gone q0"]);
    assert_eq!(w.node.router().counts().retained, 1);
    // The session expires before the will delay.
    let c = enter(&mut w, 10, 5, true);
    w.cut(c);
    w.advance(Duration::from_secs(5));
    assert_eq!(w.output(s), ["PUBLISH will gone q0"]);
    // A clean start ends the session and the will delay.
    let c = enter(&mut w, 10, 100, true);
    w.cut(c);
    enter(&mut w, 10, 100, true);
    assert_eq!(w.output(s), ["PUBLISH will gone q0"]);
}

#[test]
fn delayed_will_stays_pending_when_reconnect_is_refused() {
    // [MQTT-3.1.3-9]: a rejected connection does not resume the session.
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "will", Qos::AtMostOnce);
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.clean_start = false;
        connect.properties.session_expiry = Some(3600);
        connect.will = will("will", Qos::AtMostOnce, false);
        connect.will.as_mut().unwrap().properties.will_delay = Some(60);
    });
    assert_eq!(w.output(c), ["CONNACK 0x00"]);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    w.cut(c);
    let knock = |w: &mut World, expiry| {
        let c = w.open(Version::V5);
        // Its queue does not answer.
        w.delay(c);
        w.connect(c, |connect| {
            connect.clean_start = false;
            connect.properties.session_expiry = Some(expiry);
            connect.will = will("other", Qos::AtMostOnce, false);
        });
        assert_eq!(w.output(c), [""; 0]);
        c
    };
    let expires = |w: &World| {
        let queue = w.node.session_queue("c").expect("the session's queue");
        queue.arguments.get("x-expires").cloned()
    };
    let before = expires(&w);
    for expiry in [0, 5] {
        let c = knock(&mut w, expiry);
        w.advance(Duration::from_secs(11));
        let why = "CONNACK 0x88 (the session's queue does not answer)";
        assert_eq!(w.output(c), [why, "END"]);
        assert_eq!(expires(&w), before);
    }
    w.deliver_delayed();
    assert_eq!(w.output(s), [""; 0]);
    w.advance(Duration::from_secs(40));
    assert_eq!(w.output(s), ["PUBLISH will gone q0"]);
    // The session is unchanged.
    w.advance(Duration::from_secs(600));
    let c = w.open(Version::V5);
    w.connect(c, |connect| connect.clean_start = false);
    assert_eq!(w.output(c), ["CONNACK 0x00 present"]);
    assert_eq!(w.output(s), [""; 0]);
}

#[test]
fn disconnect_accepts_only_client_reason_codes() {
    // [MQTT-3.14.2-1]; sections 3.14.2.1 and 3.14.2.2.5
    let ours = [
        0, 4, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
    ];
    let mut w = World::default();
    for reason in 0..=255 {
        let c = w.client(Version::V5, "c");
        w.send_raw(c, &[0xE0, 1, reason]);
        let output = w.output(c);
        match ours.contains(&reason) {
            true => assert_eq!(output, ["END"], "{reason:#x}"),
            // The other codes are unknown or not allowed in DISCONNECT.
            false => {
                assert!(
                    output[0].starts_with("DISCONNECT 0x8"),
                    "{reason:#x}: {output:?}"
                );
                assert_eq!(output[1..], ["END"], "{reason:#x}");
            }
        }
    }
    // Only servers send a server reference.
    let c = w.client(Version::V5, "c");
    w.send_raw(c, &[0xE0, 6, 0, 4, 0x1C, 0, 1, b's']);
    assert_eq!(w.output(c), ["DISCONNECT 0x82", "END"]);
}

#[test]
fn packets_after_disconnect_are_ignored() {
    // [MQTT-3.14.4-1], [MQTT-3.14.4-2]
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a", Qos::AtMostOnce);
    let c = w.client(Version::V5, "c");
    w.send_raw(c, &[0xE0, 0, 0x30, 4, 0, 1, b'a', 0]);
    assert_eq!(w.output(c), ["END"]);
    assert_eq!(w.output(s), [""; 0]);
}
