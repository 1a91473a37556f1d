//! SUBSCRIBE, UNSUBSCRIBE, retained and shared messages (sections 3.3.1.3, 3.8 to 3.11, 4.7 and
//! 4.8).

use crate::fake::World;
use bytes::BytesMut;
use codec_mqtt::{
    AckKind, Packet, Properties, Qos, ReasonCode, RetainHandling, Subscribe, SubscribeOptions,
    SubscriptionFilters, Version,
};
use session_mqtt::{MqttSettings, SessionLimits, UnauthorizedAction};
use std::time::Duration;
use topics::MqttRouter;

fn options(qos: Qos) -> SubscribeOptions {
    SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    }
}

fn subscribe_all(w: &mut World, c: usize, version: Version, filters: &[(&str, Qos)]) {
    let mut raw = BytesMut::new();
    for (filter, qos) in filters {
        SubscriptionFilters::put(&mut raw, filter, options(*qos));
    }
    w.send(
        c,
        &Packet::Subscribe(Subscribe {
            packet_id: 300,
            properties: Properties::default(),
            filters: SubscriptionFilters::new(&raw, version),
        }),
    );
}

#[test]
fn suback_has_one_code_per_filter_in_order() {
    // 3.1.1: [MQTT-2.3.1-7], [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-4], [MQTT-3.8.4-5], [MQTT-3.9.3-1]
    // 3.1.1: [MQTT-3.9.3-2], [MQTT-3.10.4-1], [MQTT-3.10.4-2], [MQTT-3.10.4-4], [MQTT-3.10.4-5], [MQTT-3.10.4-6]
    // [MQTT-3.8.4-1], [MQTT-3.8.4-2], [MQTT-3.8.4-5], [MQTT-3.8.4-6], [MQTT-3.8.4-7], [MQTT-3.9.3-1], [MQTT-3.9.3-2], [MQTT-2.2.1-6]
    for version in [Version::V311, Version::V5] {
        let mut w = World::default();
        let c = w.client(version, "c");
        subscribe_all(
            &mut w,
            c,
            version,
            &[
                ("a", Qos::ExactlyOnce),
                ("b/#", Qos::AtMostOnce),
                ("+", Qos::AtLeastOnce),
            ],
        );
        assert_eq!(w.output(c), ["SUBACK 300 [2, 0, 1]"]);
        // [MQTT-3.10.4-1], [MQTT-3.10.4-4], [MQTT-3.10.4-5], [MQTT-3.10.4-6], [MQTT-3.11.3-1], [MQTT-3.11.3-2]
        w.unsubscribe(c, &["b/#", "nothing", "a"]);
        let output = if version.is_5() {
            "UNSUBACK 2 [0, 17, 0]"
        } else {
            "UNSUBACK 2 []"
        };
        assert_eq!(w.output(c), [output]);
        // [MQTT-3.10.4-2]
        w.publish(c, "b/x", Qos::AtMostOnce, 0, "x");
        assert_eq!(w.output(c), [""; 0]);
        w.publish(c, "x", Qos::AtMostOnce, 0, "x");
        assert_eq!(w.output(c), ["PUBLISH x x q0"]);
    }
}

#[test]
fn inflight_message_is_completed_after_unsubscribe() {
    // 3.1.1: [MQTT-3.10.4-3]
    // [MQTT-3.10.4-3]
    let mut w = World::default();
    let c = w.client(Version::V5, "c");
    w.subscribe(c, "a", Qos::ExactlyOnce);
    w.publish(c, "a", Qos::ExactlyOnce, 1, "x");
    w.unsubscribe(c, &["a"]);
    assert_eq!(
        w.output(c),
        ["PUBREC 1", "PUBLISH a x q2 #1", "UNSUBACK 2 [0]"]
    );
    w.ack(
        c,
        codec_mqtt::AckKind::PubRec,
        1,
        codec_mqtt::ReasonCode::Success,
    );
    assert_eq!(w.output(c), ["PUBREL 1"]);
}

#[test]
fn filters_of_one_packet_apply_in_order() {
    // 3.1.1: [MQTT-3.8.4-4]
    // [MQTT-3.8.4-5]
    for version in [Version::V31, Version::V311, Version::V5] {
        let mut w = World::default();
        let p = w.client(version, "p");
        w.publish_with(p, "a", Qos::ExactlyOnce, 1, "x", |publish| {
            publish.retain = true
        });
        w.output(p);
        let c = w.client(version, "c");
        let filters = [
            ("a", Qos::AtMostOnce),
            ("a", Qos::ExactlyOnce),
            ("a", Qos::AtLeastOnce),
        ];
        subscribe_all(&mut w, c, version, &filters);
        // The last subscription remains.
        w.publish(p, "a", Qos::ExactlyOnce, 2, "y");
        let mut output = w.output(c);
        output.sort();
        let retained = [
            "PUBLISH a x q0 retain",
            "PUBLISH a x q1 #2 retain",
            "PUBLISH a x q2 #1 retain",
        ];
        assert_eq!(output[..3], retained);
        assert_eq!(output[3..], ["PUBLISH a y q1 #3", "SUBACK 300 [0, 2, 1]"]);
    }
}

#[test]
fn invalid_filter_ends_the_connection() {
    // 3.1.1: [MQTT-4.7.1-2], [MQTT-4.7.1-3]
    // [MQTT-4.7.1-1], [MQTT-4.7.1-2], [MQTT-4.7.3-1], [MQTT-4.8.2-1], [MQTT-4.8.2-2]
    for (filter, reason) in [
        ("a/#/b", "0x81"),
        ("a+", "0x81"),
        ("", "0x81"),
        ("$share/g", "0x82"),
        ("$share/+/a", "0x82"),
        ("$share//a", "0x82"),
    ] {
        let mut w = World::default();
        let c = w.client(Version::V5, "c");
        subscribe_all(
            &mut w,
            c,
            Version::V5,
            &[("good", Qos::AtMostOnce), (filter, Qos::AtMostOnce)],
        );
        let told = [format!("DISCONNECT {reason}"), "END".to_owned()];
        assert_eq!(w.output(c), told, "{filter}");
        assert_eq!(w.node.router().counts().subscriptions, 0);
    }
    let mut w = World::default();
    let c = w.client(Version::V311, "c");
    w.unsubscribe(c, &["a/#/b"]);
    assert_eq!(w.output(c), ["END"]);
}

#[test]
fn overlapping_subscriptions_give_one_message_with_maximum_qos_and_all_identifiers() {
    // [MQTT-3.3.4-2], [MQTT-3.3.4-3], [MQTT-3.3.4-4]
    let mut w = World::default();
    let c = w.client(Version::V5, "c");
    w.subscribe_with(c, "a/+", options(Qos::AtMostOnce), Some(7));
    w.subscribe_with(c, "a/#", options(Qos::AtLeastOnce), Some(300));
    w.subscribe_with(c, "#", options(Qos::AtMostOnce), None);
    w.output(c);
    w.publish(c, "a/b", Qos::ExactlyOnce, 1, "x");
    assert_eq!(w.output(c), ["PUBREC 1", "PUBLISH a/b x q1 #1 ids[7, 300]"]);
    // [MQTT-3.8.4-3]: replaced, including the identifier.
    w.subscribe_with(c, "a/#", options(Qos::AtMostOnce), Some(8));
    w.subscribe_with(c, "a/+", options(Qos::AtMostOnce), None);
    w.output(c);
    w.publish(c, "a/b", Qos::AtLeastOnce, 2, "x");
    assert_eq!(w.output(c), ["PUBACK 2", "PUBLISH a/b x q0 ids[8]"]);
}

#[test]
fn topics_are_compared_byte_by_byte() {
    // 3.1.1: [MQTT-3.3.2-3], [MQTT-4.7.2-1], [MQTT-4.7.3-4]
    // [MQTT-4.7.2-1], [MQTT-4.7.3-4], [MQTT-1.5.4-3], [MQTT-3.3.2-3]
    let mut w = World::default();
    let c = w.client(Version::V5, "c");
    for filter in ["#", "+/x", "A", "/a", "a.b", "*/k"] {
        w.subscribe(c, filter, Qos::AtMostOnce);
        w.publish(c, "$x/x", Qos::AtMostOnce, 0, "");
        w.publish(c, "b/k", Qos::AtMostOnce, 0, "");
        w.unsubscribe(c, &["#"]);
        w.output(c);
    }
    for topic in ["$x/x", "a", "/a/", "\u{feff}A", "a/b", "b/k"] {
        w.publish(c, topic, Qos::AtLeastOnce, 1, "");
        assert_eq!(w.output(c), ["PUBACK 1 0x10"], "{topic}");
    }
    for topic in ["A", "/a", "a.b", "*/k", "/x"] {
        w.publish(c, topic, Qos::AtMostOnce, 0, "");
        assert_eq!(w.output(c), [format!("PUBLISH {topic}  q0")]);
    }
}

#[test]
fn retained_messages_are_sent_to_new_subscribers() {
    // [MQTT-3.3.1-5] to [MQTT-3.3.1-8]; 3.1.1: [MQTT-3.3.1-5] to [MQTT-3.3.1-12]
    let mut w = World::default();
    let p = w.client(Version::V5, "p");
    let keep = |w: &mut World, topic: &str, payload: &str| {
        w.publish_with(p, topic, Qos::AtLeastOnce, 1, payload, |p| p.retain = true);
        w.output(p);
    };
    keep(&mut w, "a/1", "old");
    keep(&mut w, "a/1", "new");
    keep(&mut w, "a/2", "two");
    keep(&mut w, "b", "three");
    w.publish(p, "a/2", Qos::AtMostOnce, 0, "not kept");
    w.publish(p, "a/2", Qos::AtMostOnce, 0, "");
    let c = w.client(Version::V311, "c");
    w.subscribe_with(c, "a/+", options(Qos::AtLeastOnce), None);
    assert_eq!(
        w.output(c),
        [
            "SUBACK 1 [1]",
            "PUBLISH a/1 new q1 #1 retain",
            "PUBLISH a/2 two q1 #2 retain"
        ]
    );
    // An empty message removes the retained one and is delivered to subscribers like any other.
    keep(&mut w, "a/1", "");
    assert_eq!(w.output(c), ["PUBLISH a/1  q1 #3"]);
    let d = w.client(Version::V5, "d");
    w.subscribe_with(d, "#", options(Qos::AtMostOnce), Some(5));
    assert_eq!(
        w.output(d),
        [
            "SUBACK 1 [0]",
            "PUBLISH a/2 two q0 retain ids[5]",
            "PUBLISH b three q0 retain ids[5]"
        ]
    );
    assert_eq!(w.node.router().counts().retained, 2);
}

#[test]
fn retain_handling_is_respected() {
    // [MQTT-3.3.1-9], [MQTT-3.3.1-10], [MQTT-3.3.1-11], [MQTT-3.8.4-4]
    let mut w = World::default();
    let c = w.client(Version::V5, "c");
    w.publish_with(c, "a", Qos::AtMostOnce, 0, "x", |p| p.retain = true);
    let mut ask = |handling| {
        let options = SubscribeOptions {
            retain_handling: handling,
            ..SubscribeOptions::default()
        };
        w.subscribe_with(c, "a", options, None);
        w.output(c).len() - 1
    };
    assert_eq!(ask(RetainHandling::DoNotSend), 0);
    assert_eq!(ask(RetainHandling::SendIfNew), 0, "it was there");
    assert_eq!(ask(RetainHandling::Send), 1);
    w.unsubscribe(c, &["a"]);
    w.output(c);
    let options = SubscribeOptions {
        retain_handling: RetainHandling::SendIfNew,
        ..SubscribeOptions::default()
    };
    w.subscribe_with(c, "a", options, None);
    assert_eq!(w.output(c).len(), 2);
}

#[test]
fn retained_message_expires_and_respects_packet_size() {
    let mut w = World::default();
    let c = w.client(Version::V5, "c");
    w.publish_with(c, "a", Qos::AtMostOnce, 0, "x", |p| {
        p.retain = true;
        p.properties.message_expiry = Some(10);
    });
    w.advance(Duration::from_secs(4));
    w.subscribe_with(c, "a", options(Qos::AtMostOnce), None);
    assert_eq!(
        w.output(c),
        ["SUBACK 1 [0]", "PUBLISH a x q0 retain expiry6"]
    );
    w.advance(Duration::from_secs(6));
    w.subscribe_with(c, "a", options(Qos::AtMostOnce), None);
    assert_eq!(w.output(c), ["SUBACK 1 [0]"]);
    *w.node.router() = MqttRouter::new(topics::RouterLimits {
        retained_messages: 0,
        ..topics::RouterLimits::default()
    });
    let p = w.client(Version::V5, "p");
    w.publish_with(p, "a", Qos::AtLeastOnce, 1, "x", |p| p.retain = true);
    assert_eq!(w.output(p), ["PUBACK 1 0x97"]);
}

#[test]
fn shared_subscription_selects_one_member_per_message() {
    // [MQTT-4.8.2-3], [MQTT-4.8.2-5]: granted QoS, and no retained messages.
    let mut w = World::default();
    let p = w.client(Version::V5, "p");
    w.publish_with(p, "a", Qos::AtMostOnce, 0, "kept", |p| p.retain = true);
    let members: Vec<usize> = (0..3)
        .map(|n| {
            let c = w.client(Version::V5, &format!("c{n}"));
            w.subscribe(c, "$share/g/a", Qos::AtMostOnce);
            c
        })
        .collect();
    let other = w.client(Version::V5, "other");
    w.subscribe(other, "$share/h/a", Qos::AtLeastOnce);
    for id in 1..=6 {
        w.publish(p, "a", Qos::AtLeastOnce, id, &id.to_string());
    }
    assert_eq!(w.output(other).len(), 6);
    let mut all = Vec::new();
    for c in members {
        let output = w.output(c);
        assert_eq!(output.len(), 2);
        all.extend(output);
    }
    all.sort();
    assert_eq!(
        all,
        (1..=6)
            .map(|n| format!("PUBLISH a {n} q0"))
            .collect::<Vec<_>>()
    );
}

#[test]
fn unacknowledged_messages_of_ended_member_go_to_another() {
    // Section 4.8.2, [MQTT-4.8.2-5]
    for version in [Version::V311, Version::V5] {
        let mut w = World::default();
        let members: Vec<usize> = ["a", "b"].map(|id| w.client(version, id)).into();
        for &c in &members {
            w.subscribe(c, "$share/g/t", Qos::ExactlyOnce);
            w.subscribe(c, "t", Qos::AtLeastOnce);
        }
        let p = w.client(Version::V5, "p");
        // Twelve for each member: it is sent ten, the others wait.
        for n in 1..=24 {
            w.publish(p, "t", Qos::AtLeastOnce, n, &n.to_string());
        }
        let shared = |output: Vec<String>| output.len();
        let before = members.clone().into_iter().map(|c| shared(w.output(c)));
        assert_eq!(before.collect::<Vec<_>>(), [10, 10]);
        w.cut(members[0]);
        // The other member acknowledges all messages sent to it, its own and those that are
        // redelivered.
        let mut got = 10;
        let mut next = 1;
        while next <= got {
            w.ack(
                members[1],
                AckKind::PubAck,
                next as u16,
                ReasonCode::Success,
            );
            got += w.output(members[1]).len();
            next += 1;
        }
        assert_eq!(
            got,
            24 + 24,
            "24 of its own, 12 of the group, 12 of the member that left"
        );
    }
}

#[test]
fn sent_qos_2_message_is_not_given_to_another_member() {
    // [MQTT-4.8.2-5]
    let mut w = World::default();
    let members: Vec<usize> = ["a", "b"].map(|id| w.client(Version::V5, id)).into();
    for &c in &members {
        w.subscribe(c, "$share/g/t", Qos::ExactlyOnce);
    }
    let p = w.client(Version::V5, "p");
    for n in 1..=24 {
        w.publish(p, "t", Qos::ExactlyOnce, n, &n.to_string());
    }
    let got: Vec<usize> = members.iter().map(|c| w.output(*c).len()).collect();
    assert_eq!(got, [10, 10]);
    w.cut(members[0]);
    let mut got = 10;
    let mut next = 1;
    while next <= got {
        w.ack(
            members[1],
            AckKind::PubRec,
            next as u16,
            ReasonCode::Success,
        );
        w.ack(
            members[1],
            AckKind::PubComp,
            next as u16,
            ReasonCode::Success,
        );
        let output = w.output(members[1]);
        got += output.iter().filter(|s| s.starts_with("PUBLISH")).count();
        next += 1;
    }
    assert_eq!(got, 12 + 2, "those that the other one was not sent");
}

#[test]
fn shared_subscriptions_are_independent_of_others() {
    // [MQTT-3.3.4-5], section 4.8.2: one copy for the non-shared subscriptions, and one for each
    // group that selects the client.
    let mut w = World::default();
    let c = w.client(Version::V5, "c");
    for (filter, qos, identifier) in [
        ("a", Qos::AtLeastOnce, 1),
        ("+", Qos::AtMostOnce, 2),
        ("$share/g/a", Qos::AtMostOnce, 3),
        ("$share/h/#", Qos::AtLeastOnce, 4),
    ] {
        w.subscribe_with(c, filter, options(qos), Some(identifier));
    }
    w.output(c);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    let mut output = w.output(c);
    output.sort();
    let wanted = [
        "PUBLISH a x q0 ids[3]",
        "PUBLISH a x q1 #1 ids[2, 1]",
        "PUBLISH a x q1 #2 ids[4]",
    ];
    assert_eq!(output, wanted);
}

#[test]
fn subscribe_needs_topic_permission() {
    // [MQTT-3.9.3-2]
    let actions = [
        (UnauthorizedAction::AnswerOrDisconnect, false),
        (UnauthorizedAction::Answer, false),
        (UnauthorizedAction::Disconnect, true),
    ];
    for (unauthorized, ends) in actions {
        subscribe_without_permission(unauthorized, ends);
    }
}

fn subscribe_without_permission(unauthorized: UnauthorizedAction, ends: bool) {
    let mut w = World::new(MqttSettings {
        unauthorized,
        ..MqttSettings::default()
    });
    for (version, refused) in [
        (Version::V311, "SUBACK 1 [128]"),
        (Version::V5, "SUBACK 1 [135]"),
    ] {
        for (id, output) in [("mine", "SUBACK 1 [0]"), ("theirs", refused)] {
            let c = w.open(version);
            w.connect(c, |connect| {
                connect.client_id = crate::fake::leak(id);
                connect.user_name = Some("other:small");
                connect.password = Some(b"small");
            });
            w.output(c);
            w.subscribe_with(c, "a", options(Qos::AtMostOnce), None);
            let mut expected = vec![output];
            if ends && output == refused {
                // As in RabbitMQ, the client gets the answer first.
                expected.extend((version == Version::V5).then_some("DISCONNECT 0x87"));
                expected.push("END");
            }
            assert_eq!(w.output(c), expected);
            w.cut(c);
        }
    }
}

#[test]
fn subscriptions_are_limited() {
    let limits = SessionLimits {
        subscriptions: 2,
        ..SessionLimits::default()
    };
    let mut w = World::new(MqttSettings {
        limits,
        ..MqttSettings::default()
    });
    let c = w.client(Version::V5, "c");
    let many: Vec<(&str, Qos)> = ["a", "b", "c", "d"].map(|f| (f, Qos::AtMostOnce)).to_vec();
    subscribe_all(&mut w, c, Version::V5, &many);
    assert_eq!(w.output(c), ["SUBACK 300 [0, 0, 151, 151]"]);
}

#[test]
fn ten_thousand_filters_in_one_packet_are_answered() {
    let mut w = World::default();
    let c = w.client(Version::V311, "c");
    let names: Vec<String> = (0..10_000).map(|n| format!("a/{n}/+")).collect();
    let filters: Vec<(&str, Qos)> = names
        .iter()
        .map(|n| (n.as_str(), Qos::AtMostOnce))
        .collect();
    subscribe_all(&mut w, c, Version::V311, &filters);
    assert_eq!(w.output(c).len(), 1);
    assert_eq!(w.node.router().counts().subscriptions, 10_000);
    w.publish(c, "a/77/x", Qos::AtMostOnce, 0, "x");
    assert_eq!(w.output(c).len(), 1);
    w.cut(c);
    assert_eq!(w.node.router().counts().subscriptions, 0);
}

#[test]
fn bridge_receives_no_own_messages_and_retain_flags() {
    let mut w = World::default();
    for (name, level) in [(&b"\0\x06MQIsdp"[..], 0x83), (b"\0\x04MQTT", 0x84)] {
        let b = w.open(Version::V311);
        let body = [name, &[level, 2, 0, 0, 0, 1, b'b']].concat();
        w.send_raw(b, &[&[0x10, body.len() as u8], &body[..]].concat());
        assert_eq!(w.output(b), ["CONNACK 0x00"]);
        w.subscribe(b, "a", Qos::AtLeastOnce);
        w.publish(b, "a", Qos::AtLeastOnce, 1, "its own");
        assert_eq!(w.output(b), ["PUBACK 1"]);
        let other = w.client(Version::V5, "o");
        w.publish_with(other, "a", Qos::AtMostOnce, 0, "x", |p| p.retain = true);
        assert_eq!(w.output(b), ["PUBLISH a x q0 retain"]);
        w.cut(b);
        w.cut(other);
        w.node.router().retain("/", "a", None).unwrap();
    }
}
