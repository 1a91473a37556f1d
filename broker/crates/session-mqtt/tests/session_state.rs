//! Sessions that outlive connections, client ids that change hands, and wills (sections 3.1.2, 3.1.3, 3.14, 4.1, 4.4).

mod fake;

use codec_mqtt::{AckKind, Disconnect, Packet, Properties, Qos, Reason, Version};
use fake::{World, confirm_all, refuse_all, will};
use session_mqtt::{Limits, Settings};
use std::time::Duration;

/// A client whose session is kept for an hour; what its CONNACK says.
fn keeper(w: &mut World, version: Version) -> (usize, String) {
    let c = w.open(version);
    w.connect(c, |connect| {
        connect.client_id = "keeper";
        connect.clean_start = false;
        if version.is_5() {
            connect.properties.session_expiry = Some(3600);
        }
    });
    let said = w.said(c);
    (c, said.join(", "))
}

fn goodbye(w: &mut World, c: usize, reason: Reason, expiry: Option<u32>) {
    let properties = Properties {
        session_expiry: expiry,
        ..Properties::default()
    };
    w.send(c, &Packet::Disconnect(Disconnect { reason, properties }));
}

#[test]
fn a_session_goes_on_where_it_was() {
    // 3.1.1: [MQTT-3.1.2-6], [MQTT-3.1.4-3], [MQTT-4.1.0-1], [MQTT-4.5.0-1]
    // [MQTT-3.1.2-5], [MQTT-3.1.2-6], [MQTT-3.1.2-23], [MQTT-3.2.2-3], [MQTT-4.1.0-1], [MQTT-4.5.0-1]
    // 3.1.1: [MQTT-3.1.2-4], [MQTT-3.1.2-5], [MQTT-3.2.2-2], [MQTT-3.2.2-3]
    for version in [Version::V311, Version::V5] {
        let mut w = World::default();
        let (c, said) = keeper(&mut w, version);
        assert_eq!(said, "CONNACK 0x00");
        w.subscribe(c, "a", Qos::ExactlyOnce);
        goodbye(&mut w, c, Reason::Success, None);
        assert_eq!(w.said(c), ["END"]);
        let p = w.client(version, "p");
        w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
        w.publish(p, "a", Qos::ExactlyOnce, 2, "2");
        w.publish(p, "a", Qos::AtMostOnce, 0, "not kept");
        assert_eq!(w.said(p), ["PUBACK 1", "PUBREC 2"]);
        let (c, said) = keeper(&mut w, version);
        assert_eq!(
            said,
            "CONNACK 0x00 present, PUBLISH a 1 q1 #1, PUBLISH a 2 q2 #2"
        );
        w.publish(p, "a", Qos::AtMostOnce, 0, "3");
        assert_eq!(w.said(c), ["PUBLISH a 3 q0"]);
        // A clean start ends it: [MQTT-3.1.2-4], [MQTT-3.1.4-4]
        w.cut(c);
        let c = w.client(version, "keeper");
        w.publish(p, "a", Qos::AtMostOnce, 0, "4");
        assert_eq!(w.said(c), [""; 0]);
        w.cut(c);
        assert_eq!(keeper(&mut w, version).1, "CONNACK 0x00");
    }
}

#[test]
fn what_was_not_acknowledged_comes_again_under_its_identifier_and_in_its_order() {
    // [MQTT-4.4.0-1], [MQTT-4.6.0-1], [MQTT-3.3.1-1], [MQTT-4.3.3-3], [MQTT-4.3.3-5], [MQTT-4.3.3-6], [MQTT-4.3.2-3], [MQTT-4.8.2-4]
    let mut w = World::default();
    let (c, _) = keeper(&mut w, Version::V5);
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
    w.ack(c, AckKind::PubRec, 2, Reason::Success);
    w.ack(c, AckKind::PubAck, 4, Reason::Success);
    w.cut(c);
    w.publish(p, "a", Qos::AtLeastOnce, 5, "5");
    let (c, said) = keeper(&mut w, Version::V5);
    assert_eq!(
        said,
        "CONNACK 0x00 present, PUBLISH a 1 q1 #1 dup, PUBREL 2, PUBLISH a 3 q2 #3 dup, PUBLISH a 5 q1 #5"
    );
    w.ack(c, AckKind::PubComp, 2, Reason::Success);
    w.ack(c, AckKind::PubAck, 1, Reason::Success);
    w.ack(c, AckKind::PubRec, 3, Reason::Success);
    assert_eq!(w.said(c), ["PUBREL 3"]);
}

#[test]
fn what_comes_again_respects_the_quota() {
    let mut w = World::default();
    let (c, _) = keeper(&mut w, Version::V311);
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
        w.said(c),
        [
            "CONNACK 0x00 present",
            "PUBLISH a 1 q1 #1 dup",
            "PUBLISH a 2 q1 #2 dup"
        ]
    );
    w.ack(c, AckKind::PubAck, 1, Reason::Success);
    assert_eq!(w.said(c), ["PUBLISH a 3 q1 #3 dup"]);
}

#[test]
fn a_publishers_half_of_exactly_once_is_kept_too() {
    // [MQTT-4.3.3-10], [MQTT-4.3.3-13]
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a", Qos::AtMostOnce);
    let (c, _) = keeper(&mut w, Version::V311);
    w.publish(c, "a", Qos::ExactlyOnce, 9, "x");
    w.cut(c);
    let (c, _) = keeper(&mut w, Version::V311);
    w.publish_with(c, "a", Qos::ExactlyOnce, 9, "x", |p| p.dup = true);
    assert_eq!(w.said(c), ["PUBREC 9"]);
    assert_eq!(w.said(s).len(), 1);
    w.ack(c, AckKind::PubRel, 9, Reason::Success);
    assert_eq!(w.said(c), ["PUBCOMP 9"]);
}

#[test]
fn publish_without_answer_is_remembered_when_its_connection_ends() {
    // [MQTT-4.3.3-10]
    for version in [Version::V311, Version::V5] {
        let mut w = World::default();
        w.node.queue("q", "a");
        w.node.silent = true;
        let (c, _) = keeper(&mut w, version);
        for (id, text) in [(8, "x"), (9, "y")] {
            w.publish(c, "a", Qos::ExactlyOnce, id, text);
        }
        w.cut(c);
        // PUBREC waits for the queue also on the connections that follow.
        for _ in 0..2 {
            let (c, _) = keeper(&mut w, version);
            w.publish_with(c, "a", Qos::ExactlyOnce, 8, "x", |p| p.dup = true);
            assert_eq!(w.said(c), [""; 0]);
            w.cut(c);
        }
        let (c, _) = keeper(&mut w, version);
        w.publish_with(c, "a", Qos::ExactlyOnce, 8, "x", |p| p.dup = true);
        confirm_all(&mut w);
        assert_eq!(w.said(c), ["PUBREC 8"]);
        w.publish_with(c, "a", Qos::ExactlyOnce, 9, "y", |p| p.dup = true);
        assert_eq!(w.said(c), ["PUBREC 9"], "answered before it came again");
        assert_eq!(w.node.queued.len(), 2, "each of them once");
        for id in [8, 9] {
            w.ack(c, AckKind::PubRel, id, Reason::Success);
        }
        assert_eq!(w.said(c), ["PUBCOMP 8", "PUBCOMP 9"]);
        w.publish(c, "a", Qos::ExactlyOnce, 8, "z");
        assert_eq!(w.node.queued.len(), 3, "the identifier is free again");
    }
}

#[test]
fn publish_answered_while_its_client_is_away_is_remembered() {
    let mut w = World::default();
    w.node.queue("q", "a");
    w.node.silent = true;
    let (c, _) = keeper(&mut w, Version::V5);
    w.publish(c, "a", Qos::AtLeastOnce, 8, "x");
    w.publish(c, "a", Qos::ExactlyOnce, 9, "y");
    w.cut(c);
    confirm_all(&mut w);
    let (c, _) = keeper(&mut w, Version::V5);
    w.publish_with(c, "a", Qos::ExactlyOnce, 9, "y", |p| p.dup = true);
    assert_eq!(w.said(c), ["PUBREC 9"]);
    assert_eq!(w.node.queued.len(), 2);
}

/// The connection that was taken over is still there: its last bytes are on their way.
#[test]
fn publish_answered_to_a_connection_that_was_taken_over_is_answered_to_the_next_one() {
    for early in [true, false] {
        let mut w = World::default();
        w.node.queue("q", "a");
        w.node.silent = true;
        let (taken_over, _) = keeper(&mut w, Version::V5);
        w.stick(taken_over, true);
        w.publish(taken_over, "a", Qos::ExactlyOnce, 9, "y");
        let (c, _) = keeper(&mut w, Version::V5);
        if early {
            confirm_all(&mut w);
        }
        w.publish_with(c, "a", Qos::ExactlyOnce, 9, "y", |p| p.dup = true);
        if !early {
            confirm_all(&mut w);
        }
        assert_eq!(w.said(c), ["PUBREC 9"], "answered early: {early}");
        assert_eq!(w.node.queued.len(), 1);
    }
}

#[test]
fn publish_refused_after_its_connection_ended_is_a_new_message_when_it_comes_again() {
    for away in [true, false] {
        let mut w = World::default();
        w.node.queue("q", "a");
        w.node.silent = true;
        let (c, _) = keeper(&mut w, Version::V5);
        w.publish(c, "a", Qos::ExactlyOnce, 9, "x");
        w.cut(c);
        if away {
            refuse_all(&mut w);
        }
        let (c, _) = keeper(&mut w, Version::V5);
        w.publish_with(c, "a", Qos::ExactlyOnce, 9, "x", |p| p.dup = true);
        if !away {
            refuse_all(&mut w);
            assert_eq!(w.said(c), ["PUBREC 9 0x97"]);
            w.publish_with(c, "a", Qos::ExactlyOnce, 9, "x", |p| p.dup = true);
        }
        confirm_all(&mut w);
        assert_eq!(w.said(c), ["PUBREC 9"]);
        assert_eq!(w.node.queued.len(), 2, "the queue took only the second");
    }
}

#[test]
fn session_that_begins_anew_remembers_no_publish() {
    let mut w = World::default();
    w.node.queue("q", "a");
    w.node.silent = true;
    let (c, _) = keeper(&mut w, Version::V5);
    w.publish(c, "a", Qos::ExactlyOnce, 9, "x");
    w.cut(c);
    let c = w.client(Version::V5, "keeper");
    refuse_all(&mut w);
    w.publish(c, "a", Qos::ExactlyOnce, 9, "y");
    assert_eq!(w.node.queued.len(), 2);
    confirm_all(&mut w);
    assert_eq!(w.said(c), ["PUBREC 9"]);
}

#[test]
fn sessions_end_when_their_time_is_over() {
    // 3.1.1: [MQTT-4.1.0-2]
    // [MQTT-4.1.0-2]
    let mut w = World::default();
    let (c, _) = keeper(&mut w, Version::V5);
    w.cut(c);
    w.after(Duration::from_secs(3599));
    let (c, said) = keeper(&mut w, Version::V5);
    assert_eq!(said, "CONNACK 0x00 present");
    w.cut(c);
    w.after(Duration::from_secs(3600));
    let (c, said) = keeper(&mut w, Version::V5);
    assert_eq!(said, "CONNACK 0x00");
    // A DISCONNECT may change it.
    goodbye(&mut w, c, Reason::Success, Some(0));
    assert_eq!(keeper(&mut w, Version::V5).1, "CONNACK 0x00");
    // Not from nothing.
    let c = w.client(Version::V5, "c");
    goodbye(&mut w, c, Reason::Success, Some(5));
    assert_eq!(w.said(c), ["DISCONNECT 0x82", "END"]);
    // Those of 3.1.1 are kept as long as the server keeps any.
    let limits = Limits {
        session_expiry: 60,
        ..Limits::default()
    };
    let mut w = World::new(Settings {
        limits,
        ..Settings::default()
    });
    let (c, _) = keeper(&mut w, Version::V311);
    w.cut(c);
    w.after(Duration::from_secs(60));
    assert_eq!(keeper(&mut w, Version::V311).1, "CONNACK 0x00");
}

#[test]
fn the_last_connection_has_the_client_id() {
    // 3.1.1: [MQTT-3.1.3-2]
    // [MQTT-3.1.4-3], [MQTT-3.1.3-2]; 3.1.1: [MQTT-3.1.4-2]
    let mut w = World::default();
    let five = w.client(Version::V5, "c");
    let three = w.client(Version::V311, "c");
    assert_eq!(w.said(five), ["DISCONNECT 0x8e", "END"]);
    let last = w.client(Version::V311, "c");
    assert_eq!(w.said(three), ["END"]);
    w.send(last, &Packet::PingReq);
    assert_eq!(w.said(last), ["PINGRESP"]);
    // A session goes over to it.
    let (c, _) = keeper(&mut w, Version::V311);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    w.publish(c, "a", Qos::AtLeastOnce, 1, "x");
    let (_, said) = keeper(&mut w, Version::V311);
    assert_eq!(said, "CONNACK 0x00 present, PUBLISH a x q1 #1 dup");
    assert_eq!(w.node.router.counts().connected, 2);
}

#[test]
fn a_will_is_published_when_the_client_is_gone_without_a_word() {
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
            w.said(c);
            c
        };
        let c = enter(&mut w);
        goodbye(&mut w, c, Reason::Success, None);
        assert_eq!(w.said(s), [""; 0]);
        let c = enter(&mut w);
        w.cut(c);
        assert_eq!(w.said(s), ["PUBLISH will gone q1 #1"]);
        let c = enter(&mut w);
        w.send_raw(c, &[0, 0]);
        assert_eq!(w.said(s), ["PUBLISH will gone q1 #2"], "a protocol error");
        let c = enter(&mut w);
        let d = enter(&mut w);
        assert!(w.is_closed(c));
        assert_eq!(w.said(s), ["PUBLISH will gone q1 #3"], "taken over");
        w.cut(d);
        assert_eq!(w.node.queued.len(), 4, "AMQP clients hear of it");
        assert_eq!(w.node.router.counts().retained, 0);
    }
}

#[test]
fn a_will_may_be_retained_and_asked_for() {
    // [MQTT-3.1.2-15]; 3.1.1: [MQTT-3.1.2-17]
    let mut w = World::default();
    for reason in [None, Some(Reason::DisconnectWithWill)] {
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
        assert_eq!(w.said(s), ["SUBACK 1 [0]", "PUBLISH will gone q0 retain"]);
        w.cut(s);
        w.node.router.retain("/", "will", None).unwrap();
    }
}

#[test]
fn a_will_has_a_topic_that_is_for_clients() {
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
        assert_eq!(w.said(c), [refused, "END"], "{topic}");
    }
    let c = w.open(Version::V311);
    let state = "$SYS/broker/connection/b/state";
    w.connect(c, |c| c.will = will(state, Qos::AtMostOnce, true));
    assert_eq!(w.said(c), ["CONNACK 0x00"]);
}

#[test]
fn a_will_may_wait() {
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
        w.said(c);
        c
    };
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "will", Qos::AtMostOnce);
    let c = enter(&mut w, 10, 100, true);
    w.cut(c);
    w.after(Duration::from_secs(9));
    // Back in time, and away again.
    let c = enter(&mut w, 10, 100, false);
    w.after(Duration::from_secs(20));
    assert_eq!(w.said(s), [""; 0]);
    w.cut(c);
    w.after(Duration::from_secs(10));
    assert_eq!(w.said(s), ["PUBLISH will gone q0"]);
    assert_eq!(w.node.router.counts().retained, 1);
    // The session's end comes first.
    let c = enter(&mut w, 10, 5, true);
    w.cut(c);
    w.after(Duration::from_secs(5));
    assert_eq!(w.said(s), ["PUBLISH will gone q0"]);
    // A new session does not let it wait.
    let c = enter(&mut w, 10, 100, true);
    w.cut(c);
    enter(&mut w, 10, 100, true);
    assert_eq!(w.said(s), ["PUBLISH will gone q0"]);
}

#[test]
fn a_will_waits_on_when_the_client_is_not_let_in() {
    // [MQTT-3.1.3-9]: that was no connection to the session.
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
    assert_eq!(w.said(c), ["CONNACK 0x00"]);
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
        assert_eq!(w.said(c), [""; 0]);
        c
    };
    let expires = |w: &World| {
        let queue = w.node.stored("c").expect("the session's queue");
        queue.arguments.get("x-expires").cloned()
    };
    let before = expires(&w);
    for expiry in [0, 5] {
        let c = knock(&mut w, expiry);
        w.after(Duration::from_secs(11));
        let why = "CONNACK 0x88 (the session's queue does not answer)";
        assert_eq!(w.said(c), [why, "END"]);
        assert_eq!(expires(&w), before);
    }
    w.hear();
    assert_eq!(w.said(s), [""; 0]);
    w.after(Duration::from_secs(40));
    assert_eq!(w.said(s), ["PUBLISH will gone q0"]);
    // The session is there as if nobody had come.
    w.after(Duration::from_secs(600));
    let c = w.open(Version::V5);
    w.connect(c, |connect| connect.clean_start = false);
    assert_eq!(w.said(c), ["CONNACK 0x00 present"]);
    assert_eq!(w.said(s), [""; 0]);
}

#[test]
fn a_client_disconnects_for_its_own_reasons_only() {
    // [MQTT-3.14.2-1]; sections 3.14.2.1 and 3.14.2.2.5
    let ours = [
        0, 4, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99,
    ];
    let mut w = World::default();
    for reason in 0..=255 {
        let c = w.client(Version::V5, "c");
        w.send_raw(c, &[0xE0, 1, reason]);
        let said = w.said(c);
        match ours.contains(&reason) {
            true => assert_eq!(said, ["END"], "{reason:#x}"),
            // Some are known, and some are no reasons of any DISCONNECT.
            false => {
                assert!(
                    said[0].starts_with("DISCONNECT 0x8"),
                    "{reason:#x}: {said:?}"
                );
                assert_eq!(said[1..], ["END"], "{reason:#x}");
            }
        }
    }
    // To another server only a server sends.
    let c = w.client(Version::V5, "c");
    w.send_raw(c, &[0xE0, 6, 0, 4, 0x1C, 0, 1, b's']);
    assert_eq!(w.said(c), ["DISCONNECT 0x82", "END"]);
}

#[test]
fn after_disconnect_nothing_is_read() {
    // [MQTT-3.14.4-1], [MQTT-3.14.4-2]
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a", Qos::AtMostOnce);
    let c = w.client(Version::V5, "c");
    w.send_raw(c, &[0xE0, 0, 0x30, 4, 0, 1, b'a', 0]);
    assert_eq!(w.said(c), ["END"]);
    assert_eq!(w.said(s), [""; 0]);
}
