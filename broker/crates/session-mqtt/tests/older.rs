//! Behaviour for clients of 3.1 and 3.1.1. Statement numbers are those of 3.1.1.

use crate::fake::World;
use codec_mqtt::{AckKind, Qos, ReasonCode, SubscribeOptions, Version};

const OLDER: [Version; 2] = [Version::V31, Version::V311];

/// A client with a persistent session.
fn connect_persistent(w: &mut World, version: Version) -> usize {
    let c = w.open(version);
    w.connect(c, |connect| {
        connect.client_id = "keeper";
        connect.clean_start = false;
    });
    c
}

#[test]
fn mqtt3_unacknowledged_messages_are_resent() {
    // 3.1.1: [MQTT-3.3.1-1], [MQTT-4.4.0-1], [MQTT-4.6.0-1], [MQTT-2.3.1-3]
    for version in OLDER {
        let mut w = World::default();
        let c = connect_persistent(&mut w, version);
        w.output(c);
        w.subscribe(c, "a", Qos::ExactlyOnce);
        let p = w.client(version, "p");
        for (id, qos) in [
            (1, Qos::AtLeastOnce),
            (2, Qos::ExactlyOnce),
            (3, Qos::ExactlyOnce),
        ] {
            w.publish(p, "a", qos, id, &id.to_string());
        }
        w.ack(c, AckKind::PubRec, 2, ReasonCode::Success);
        w.cut(c);
        let c = connect_persistent(&mut w, version);
        let output = w.output(c);
        assert!(output[0].starts_with("CONNACK 0x00"), "{output:?}");
        assert_eq!(
            output[1..],
            ["PUBLISH a 1 q1 #1 dup", "PUBREL 2", "PUBLISH a 3 q2 #3 dup"]
        );
        w.ack(c, AckKind::PubAck, 1, ReasonCode::Success);
        w.ack(c, AckKind::PubComp, 2, ReasonCode::Success);
        w.ack(c, AckKind::PubRec, 3, ReasonCode::Success);
        assert_eq!(w.output(c), ["PUBREL 3"]);
    }
}

#[test]
fn mqtt3_qos_2_publish_is_delivered_once() {
    // 3.1.1: [MQTT-4.3.3-2], [MQTT-3.3.1-3]: DUP came with it, and does not go on.
    for version in OLDER {
        let mut w = World::default();
        let s = w.client(version, "s");
        w.subscribe(s, "a", Qos::AtLeastOnce);
        let p = w.client(version, "p");
        for _ in 0..2 {
            w.publish_with(p, "a", Qos::ExactlyOnce, 8, "x", |p| p.dup = true);
        }
        assert_eq!(w.output(p), ["PUBREC 8", "PUBREC 8"]);
        assert_eq!(w.output(s), ["PUBLISH a x q1 #1"]);
        w.ack(p, AckKind::PubRel, 8, ReasonCode::Success);
        w.publish(p, "a", Qos::ExactlyOnce, 8, "y");
        assert_eq!(w.output(p), ["PUBCOMP 8", "PUBREC 8"]);
    }
}

#[test]
fn mqtt3_subscriptions_are_replaced_and_may_overlap() {
    for version in OLDER {
        let mut w = World::default();
        let p = w.client(version, "p");
        w.publish_with(p, "a/b", Qos::ExactlyOnce, 1, "old", |p| p.retain = true);
        let s = w.client(version, "s");
        // 3.1.1: [MQTT-3.8.4-3], [MQTT-3.3.1-6]: retained messages are sent each time.
        for (qos, id) in [(Qos::ExactlyOnce, " #1"), (Qos::AtMostOnce, "")] {
            let options = SubscribeOptions {
                qos,
                ..SubscribeOptions::default()
            };
            w.subscribe_with(s, "a/+", options, None);
            let q = qos as u8;
            let retained = format!("PUBLISH a/b old q{q}{id} retain");
            assert_eq!(w.output(s), [format!("SUBACK 1 [{q}]"), retained]);
        }
        // 3.1.1: [MQTT-3.3.5-1]
        let options = SubscribeOptions {
            qos: Qos::AtLeastOnce,
            ..SubscribeOptions::default()
        };
        w.subscribe_with(s, "a/#", options, None);
        w.output(s);
        w.publish(p, "a/b", Qos::ExactlyOnce, 2, "new");
        let output = w.output(s);
        assert_eq!(output.len(), 1, "{output:?}");
        assert!(output[0].starts_with("PUBLISH a/b new q1"), "{output:?}");
    }
}
