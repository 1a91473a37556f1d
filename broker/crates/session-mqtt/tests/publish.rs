//! PUBLISH in both directions and its acknowledgements (sections 3.3 to 3.7, 4.3, 4.6 and 4.9).

use crate::fake::{World, confirm_all, refuse_all};
use bytes::BytesMut;
use codec_mqtt::{
    AckKind, Packet, Properties, Publish, Qos, ReasonCode, RepeatedProperties, SubscribeOptions,
    Version, parse_frame, put_user_property,
};
use session::{ControlEvent, FlowState};
use session_mqtt::{MqttSettings, SessionLimits, UnauthorizedAction};
use std::num::{NonZeroU16, NonZeroU32};
use std::time::Duration;

const ANSWERED: [Version; 2] = [Version::V311, Version::V5];

#[test]
fn each_qos_has_its_acknowledgements() {
    // 3.1.1: [MQTT-2.3.1-4], [MQTT-2.3.1-6], [MQTT-3.3.1-2], [MQTT-3.3.4-1], [MQTT-3.8.4-6], [MQTT-4.3.1-1]
    // 3.1.1: [MQTT-4.3.2-1], [MQTT-4.3.2-2], [MQTT-4.3.3-1]
    // [MQTT-2.2.1-4], [MQTT-3.3.4-1], [MQTT-4.3.2-4], [MQTT-4.3.3-8], [MQTT-4.3.3-11], [MQTT-2.2.1-5]
    for version in ANSWERED {
        let mut w = World::default();
        let s = w.client(version, "s");
        w.subscribe(s, "a", Qos::ExactlyOnce);
        let p = w.client(version, "p");
        w.publish(p, "a", Qos::AtMostOnce, 0, "0");
        assert_eq!(w.output(p), [""; 0]);
        w.publish(p, "a", Qos::AtLeastOnce, 7, "1");
        assert_eq!(w.output(p), ["PUBACK 7"]);
        w.publish(p, "a", Qos::ExactlyOnce, 8, "2");
        assert_eq!(w.output(p), ["PUBREC 8"]);
        w.ack(p, AckKind::PubRel, 8, ReasonCode::Success);
        assert_eq!(w.output(p), ["PUBCOMP 8"]);
        // [MQTT-3.8.4-8], [MQTT-4.3.1-1], [MQTT-4.3.2-1], [MQTT-4.3.2-2], [MQTT-4.3.3-1], [MQTT-4.3.3-2], [MQTT-3.3.1-2]
        assert_eq!(
            w.output(s),
            ["PUBLISH a 0 q0", "PUBLISH a 1 q1 #1", "PUBLISH a 2 q2 #2"]
        );
        w.ack(s, AckKind::PubAck, 1, ReasonCode::Success);
        w.ack(s, AckKind::PubRec, 2, ReasonCode::Success);
        // [MQTT-4.3.3-4]
        assert_eq!(w.output(s), ["PUBREL 2"]);
        w.ack(s, AckKind::PubComp, 2, ReasonCode::Success);
        assert_eq!(w.output(s), [""; 0]);
    }
}

#[test]
fn messages_publishers_and_consumers_are_counted() {
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a", Qos::AtLeastOnce);
    w.subscribe(s, "b", Qos::AtMostOnce);
    let p = w.client(Version::V311, "p");
    w.publish(p, "a", Qos::AtMostOnce, 0, "0");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
    w.publish(p, "nobody", Qos::AtLeastOnce, 2, "2");
    w.output(s);
    w.ack(s, AckKind::PubAck, 1, ReasonCode::Success);
    let sent = w.node.all_counters["mqtt311"];
    let p311 = sent.publishes;
    assert_eq!(
        (p311.received, p311.received_confirm, p311.confirmed),
        (3, 2, 2)
    );
    assert_eq!((p311.routed, p311.unroutable_dropped), (2, 1));
    assert_eq!(sent.published_bytes, 3);
    assert_eq!((sent.sizes.counts[0], sent.sizes.bytes), (3, 3));
    assert_eq!((sent.publishers, sent.consumers), (1, 0));
    let got = w.node.all_counters["mqtt50"];
    let queueless = got.queueless;
    assert_eq!(
        (queueless.deliver_no_ack, queueless.deliver, queueless.ack),
        (1, 1, 1)
    );
    assert_eq!((got.publishers, got.consumers), (0, 1));
    // Counts only existing subscriptions.
    w.unsubscribe(s, &["a", "b"]);
    w.output(s);
    assert_eq!(w.node.all_counters["mqtt50"].consumers, 0);
    w.subscribe(s, "a", Qos::AtMostOnce);
    w.cut(s);
    w.cut(p);
    for message_counters in w.node.all_counters.values() {
        assert_eq!(
            (message_counters.publishers, message_counters.consumers),
            (0, 0)
        );
    }
}

#[test]
fn qos_2_publish_is_delivered_once() {
    // [MQTT-4.3.3-10], [MQTT-4.3.3-12], [MQTT-3.3.1-3]
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a", Qos::AtMostOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::ExactlyOnce, 8, "x");
    w.publish_with(p, "a", Qos::ExactlyOnce, 8, "x", |p| p.dup = true);
    assert_eq!(w.output(p), ["PUBREC 8", "PUBREC 8"]);
    assert_eq!(w.output(s), ["PUBLISH a x q0"]);
    w.ack(p, AckKind::PubRel, 8, ReasonCode::Success);
    w.ack(p, AckKind::PubRel, 8, ReasonCode::Success);
    assert_eq!(w.output(p), ["PUBCOMP 8", "PUBCOMP 8 0x92"]);
    // In a resumed session the first acknowledgement may have been lost.
    let p = w.open(Version::V5);
    w.connect(p, |c| {
        (c.client_id, c.clean_start) = ("kept", false);
        c.properties.session_expiry = Some(60);
    });
    w.cut(p);
    let p = w.open(Version::V5);
    w.connect(p, |c| {
        (c.client_id, c.clean_start) = ("kept", false);
        c.properties.session_expiry = Some(60);
    });
    w.output(p);
    w.ack(p, AckKind::PubRel, 8, ReasonCode::Success);
    w.ack(p, AckKind::PubRec, 8, ReasonCode::Success);
    assert_eq!(w.output(p), ["PUBCOMP 8", "PUBREL 8"]);
    w.publish(p, "a", Qos::ExactlyOnce, 8, "y");
    assert_eq!(w.output(s), ["PUBLISH a y q0"]);
    // [MQTT-4.3.2-5]: the same identifier after PUBACK is another message.
    for _ in 0..2 {
        w.publish_with(p, "a", Qos::AtLeastOnce, 9, "z", |p| p.dup = true);
    }
    assert_eq!(w.output(s).len(), 2);
}

#[test]
fn puback_reports_missing_subscribers() {
    let mut w = World::default();
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    w.publish(p, "a", Qos::ExactlyOnce, 2, "x");
    assert_eq!(w.output(p), ["PUBACK 1 0x10", "PUBREC 2"]);
    // There is a subscription, although it excludes this message.
    let no_local = SubscribeOptions {
        no_local: true,
        ..SubscribeOptions::default()
    };
    w.subscribe_with(p, "a", no_local, None);
    w.output(p);
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    assert_eq!(w.output(p), ["PUBACK 1"]);
    let p = w.client(Version::V311, "q");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    assert_eq!(w.output(p), ["PUBACK 1"]);
}

#[test]
fn acknowledgement_waits_for_queue_confirms() {
    let mut w = World::default();
    let (one, two) = (w.node.queue("one", "a.*"), w.node.queue("two", "#"));
    w.node.withholds_confirms = true;
    let p = w.client(Version::V5, "p");
    w.publish(p, "a/b", Qos::AtLeastOnce, 1, "x");
    w.publish(p, "c", Qos::AtLeastOnce, 2, "y");
    w.publish(p, "a/b", Qos::AtMostOnce, 0, "z");
    let to: Vec<_> = w
        .node
        .queued
        .iter()
        .map(|(queue, m)| (*queue, m.routing_key().to_owned(), m.durable()))
        .collect();
    assert_eq!(
        to,
        [
            (one, "a.b".to_owned(), true),
            (two, "a.b".to_owned(), true),
            (two, "c".to_owned(), true),
            (one, "a.b".to_owned(), false),
            (two, "a.b".to_owned(), false)
        ]
    );
    assert_eq!(w.output(p), [""; 0]);
    // The second is confirmed first: acknowledgements keep the order of the publishes.
    let first = w.node.unconfirmed.remove(0);
    confirm_all(&mut w);
    assert_eq!(w.output(p), [""; 0]);
    w.node.unconfirmed.push(first);
    confirm_all(&mut w);
    assert_eq!(w.output(p), ["PUBACK 1", "PUBACK 2"]);
}

#[test]
fn publish_rejected_by_queue_is_not_acknowledged() {
    // 3.1.1: [MQTT-4.8.0-2]
    // [MQTT-4.3.3-9]; 3.1.1: section 3.3.5.2
    let mut w = World::default();
    w.node.queue("q", "#");
    w.node.withholds_confirms = true;
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    w.publish(p, "a", Qos::ExactlyOnce, 2, "x");
    refuse_all(&mut w);
    assert_eq!(w.output(p), ["PUBACK 1 0x97", "PUBREC 2 0x97"]);
    w.publish(p, "a", Qos::ExactlyOnce, 2, "x");
    assert_eq!(w.node.queued.len(), 3, "a new message");
    let p = w.client(Version::V311, "q");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    refuse_all(&mut w);
    assert_eq!(w.output(p), ["END"]);
}

#[test]
fn open_publishes_are_limited_by_receive_maximum() {
    // [MQTT-3.3.4-7]
    let mut w = World::new(MqttSettings {
        limits: SessionLimits {
            receive: 2,
            ..SessionLimits::default()
        },
        ..MqttSettings::default()
    });
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a", Qos::AtMostOnce);
    let p = w.client(Version::V5, "p");
    // An acknowledged publish is not open any more; a resend with its identifier is the same
    // publish.
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    for id in [2, 3, 3] {
        w.publish(p, "a", Qos::ExactlyOnce, id, "x");
    }
    w.ack(p, AckKind::PubRel, 2, ReasonCode::Success);
    w.ack(p, AckKind::PubRel, 9, ReasonCode::Success);
    for id in [4, 5] {
        w.publish(p, "a", Qos::ExactlyOnce, id, "x");
    }
    w.publish(p, "a", Qos::AtMostOnce, 0, "y");
    assert_eq!(w.output(s).len(), 6);
    w.output(p);
    w.publish(p, "a", Qos::AtLeastOnce, 6, "z");
    assert_eq!(w.output(p), ["DISCONNECT 0x93", "END"]);
    assert_eq!(w.output(s), [""; 0]);
    // Earlier versions have no Receive Maximum.
    let p = w.client(Version::V311, "q");
    for id in 1..10 {
        w.publish(p, "a", Qos::ExactlyOnce, id, "x");
    }
    assert_eq!(w.output(p).len(), 9);
}

#[test]
fn slow_queues_and_alarms_pause_only_publishers() {
    let mut w = World::default();
    w.node.queue("q", "a");
    w.node.flow = Some(FlowState::Behind);
    let p = w.client(Version::V311, "p");
    w.publish(p, "a", Qos::AtMostOnce, 0, "x");
    assert!(w.is_paused(p));
    w.send(p, &Packet::PingReq);
    assert_eq!(w.output(p), [""; 0]);
    w.session_event(p, ControlEvent::Unblocked.into());
    assert_eq!(w.output(p), ["PINGRESP"]);
    // An alarm does not pause a client that has never published.
    let quiet = w.client(Version::V311, "r");
    for c in [p, quiet] {
        w.session_event(c, ControlEvent::Blocked(Some("memory")).into());
    }
    assert_eq!((w.is_paused(p), w.is_paused(quiet)), (true, false));
    w.session_event(p, ControlEvent::Blocked(None).into());
    assert!(!w.is_paused(p));
}

#[test]
fn publish_properties_are_forwarded() {
    // [MQTT-3.3.2-4], [MQTT-3.3.2-15], [MQTT-3.3.2-16], [MQTT-3.3.2-17], [MQTT-3.3.2-18], [MQTT-3.3.2-20]
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a/+", Qos::AtMostOnce);
    let old = w.client(Version::V311, "o");
    w.subscribe(old, "a/+", Qos::AtMostOnce);
    let p = w.client(Version::V5, "p");
    let mut users = BytesMut::new();
    for (name, value) in [("b", "1"), ("a", "2"), ("b", "1")] {
        put_user_property(&mut users, name, value);
    }
    let properties = Properties {
        payload_format: Some(true),
        content_type: Some("text/plain"),
        response_topic: Some("r/t"),
        correlation_data: Some(&[0, 255]),
        repeated: RepeatedProperties(&users),
        ..Properties::default()
    };
    w.send(
        p,
        &Packet::Publish(Publish {
            dup: false,
            qos: Qos::AtMostOnce,
            retain: false,
            topic: "a/b",
            packet_id: 0,
            properties,
            payload: b"x",
        }),
    );
    let raw = w.bytes(s);
    let frame = parse_frame(&raw, 1000).unwrap().unwrap();
    let Ok(Packet::Publish(got)) = Packet::decode(&frame, Version::V5) else {
        panic!("no PUBLISH");
    };
    assert_eq!(
        (got.topic, got.payload, got.properties),
        ("a/b", &b"x"[..], properties)
    );
    assert_eq!(w.bytes(old), [0x30, 6, 0, 3, b'a', b'/', b'b', b'x']);
}

#[test]
fn message_expiry_counts_down() {
    // [MQTT-3.3.2-5], [MQTT-3.3.2-6], [MQTT-4.3.3-7]
    let limits = SessionLimits {
        prefetch: 1,
        ..SessionLimits::default()
    };
    let mut w = World::new(MqttSettings {
        limits,
        ..MqttSettings::default()
    });
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    for (id, expiry) in [(1, None), (2, Some(5)), (3, Some(100))] {
        w.publish_with(p, "a", Qos::AtLeastOnce, id, "x", |p| {
            p.properties.message_expiry = expiry
        });
    }
    assert_eq!(w.output(s), ["PUBLISH a x q1 #1"]);
    w.advance(Duration::from_secs(30));
    w.ack(s, AckKind::PubAck, 1, ReasonCode::Success);
    assert_eq!(w.output(s), ["PUBLISH a x q1 #2 expiry70"]);
}

#[test]
fn inbound_topic_aliases_are_resolved() {
    // [MQTT-3.3.2-7], [MQTT-3.3.2-12]
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "#", Qos::AtMostOnce);
    let p = w.client(Version::V5, "p");
    let send = |w: &mut World, p, topic, alias| {
        w.publish_with(p, topic, Qos::AtMostOnce, 0, "x", |p| {
            p.properties.topic_alias = Some(alias)
        });
    };
    send(&mut w, p, "a", 1);
    send(&mut w, p, "", 1);
    send(&mut w, p, "b", 16);
    send(&mut w, p, "c", 1);
    send(&mut w, p, "", 1);
    send(&mut w, p, "", 16);
    let topics: Vec<String> = w
        .output(s)
        .iter()
        .map(|epoch| epoch[8..9].to_owned())
        .collect();
    assert_eq!(topics.concat(), "aabccb");
    send(&mut w, p, "", 2);
    assert_eq!(w.output(p), ["DISCONNECT 0x82", "END"]);
    let p = w.client(Version::V5, "p");
    send(&mut w, p, "", 1);
    assert_eq!(
        w.output(p),
        ["DISCONNECT 0x82", "END"],
        "not that of the last connection"
    );
    let p = w.client(Version::V5, "p");
    send(&mut w, p, "a", 17);
    assert_eq!(w.output(p), ["DISCONNECT 0x94", "END"]);
}

#[test]
fn outbound_topic_aliases_respect_maximum() {
    // [MQTT-3.1.2-26], [MQTT-3.1.2-27], [MQTT-3.3.2-11]
    let mut w = World::default();
    let s = w.open(Version::V5);
    w.connect(s, |connect| {
        connect.client_id = "s";
        connect.properties.topic_alias_maximum = Some(2);
    });
    w.output(s);
    w.subscribe(s, "#", Qos::AtMostOnce);
    let p = w.client(Version::V311, "p");
    for topic in ["a", "b", "c", "a", "b", "c"] {
        w.publish(p, topic, Qos::AtMostOnce, 0, "x");
    }
    assert_eq!(
        w.output(s),
        [
            "PUBLISH a x q0 alias1",
            "PUBLISH b x q0 alias2",
            "PUBLISH c x q0",
            "PUBLISH  x q0 alias1",
            "PUBLISH  x q0 alias2",
            "PUBLISH c x q0"
        ]
    );
}

#[test]
fn deliveries_respect_client_receive_maximum() {
    // [MQTT-3.3.4-9], [MQTT-3.3.4-10], [MQTT-4.9.0-1], [MQTT-4.9.0-2], [MQTT-4.9.0-3]
    let mut w = World::default();
    let s = w.open(Version::V5);
    w.connect(s, |connect| {
        connect.client_id = "s";
        connect.properties.receive_maximum = NonZeroU16::new(2);
    });
    w.output(s);
    w.subscribe(s, "a", Qos::ExactlyOnce);
    let p = w.client(Version::V5, "p");
    for (id, qos) in [
        (1, Qos::AtLeastOnce),
        (2, Qos::ExactlyOnce),
        (3, Qos::AtLeastOnce),
        (4, Qos::AtLeastOnce),
    ] {
        w.publish(p, "a", qos, id, &id.to_string());
    }
    assert_eq!(w.output(s), ["PUBLISH a 1 q1 #1", "PUBLISH a 2 q2 #2"]);
    w.publish(p, "a", Qos::AtMostOnce, 0, "now");
    w.send(s, &Packet::PingReq);
    assert_eq!(w.output(s), ["PUBLISH a now q0", "PINGRESP"]);
    w.ack(s, AckKind::PubRec, 2, ReasonCode::Success);
    assert_eq!(w.output(s), ["PUBREL 2"]);
    w.ack(s, AckKind::PubComp, 2, ReasonCode::Success);
    assert_eq!(w.output(s), ["PUBLISH a 3 q1 #3"]);
    w.ack(s, AckKind::PubAck, 1, ReasonCode::Success);
    assert_eq!(w.output(s), ["PUBLISH a 4 q1 #4"]);
}

#[test]
fn subscriber_may_reject_a_message() {
    // [MQTT-4.4.0-2], [MQTT-4.8.2-6]
    let limits = SessionLimits {
        prefetch: 1,
        ..SessionLimits::default()
    };
    let mut w = World::new(MqttSettings {
        limits,
        ..MqttSettings::default()
    });
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a", Qos::ExactlyOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
    w.publish(p, "a", Qos::ExactlyOnce, 2, "2");
    w.publish(p, "a", Qos::AtLeastOnce, 3, "3");
    w.ack(s, AckKind::PubAck, 1, ReasonCode::UnspecifiedError);
    w.ack(s, AckKind::PubRec, 2, ReasonCode::QuotaExceeded);
    assert_eq!(
        w.output(s),
        [
            "PUBLISH a 1 q1 #1",
            "PUBLISH a 2 q2 #2",
            "PUBLISH a 3 q1 #3"
        ]
    );
}

#[test]
fn unknown_acknowledgements_are_ignored_and_wrong_ones_are_errors() {
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.ack(s, AckKind::PubAck, 5, ReasonCode::Success);
    w.ack(s, AckKind::PubComp, 5, ReasonCode::Success);
    assert_eq!(w.output(s), [""; 0]);
    w.ack(s, AckKind::PubRec, 5, ReasonCode::Success);
    assert_eq!(w.output(s), ["PUBREL 5 0x92"]);
    for (qos, kind) in [
        (Qos::AtLeastOnce, AckKind::PubRec),
        (Qos::ExactlyOnce, AckKind::PubAck),
        (Qos::AtLeastOnce, AckKind::PubComp),
    ] {
        let s = w.client(Version::V5, "t");
        w.subscribe(s, "a", Qos::ExactlyOnce);
        w.publish(s, "a", qos, 9, "x");
        w.output(s);
        w.ack(s, kind, 1, ReasonCode::Success);
        assert_eq!(w.output(s), ["DISCONNECT 0x82", "END"]);
    }
}

#[test]
fn message_above_maximum_packet_size_counts_as_sent() {
    // [MQTT-3.1.2-24], [MQTT-3.1.2-25]
    let mut w = World::default();
    let s = w.open(Version::V5);
    w.connect(s, |connect| {
        connect.client_id = "s";
        connect.properties.maximum_packet_size = NonZeroU32::new(80);
    });
    w.output(s);
    w.subscribe(s, "a", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    for (qos, id) in [(Qos::AtMostOnce, 0), (Qos::AtLeastOnce, 1)] {
        w.publish(p, "a", qos, id, &"x".repeat(80));
    }
    w.publish(p, "a", Qos::AtLeastOnce, 2, "fits");
    assert_eq!(w.output(p), ["PUBACK 1", "PUBACK 2"]);
    assert_eq!(w.output(s).len(), 1);
}

#[test]
fn slow_client_loses_only_qos_0_messages() {
    let limits = SessionLimits {
        mailbox: 3,
        ..SessionLimits::default()
    };
    let mut w = World::new(MqttSettings {
        limits,
        ..MqttSettings::default()
    });
    let s = w.client(Version::V311, "s");
    w.subscribe(s, "a", Qos::AtLeastOnce);
    let p = w.client(Version::V311, "p");
    w.set_stalled(s, true);
    for _ in 0..50 {
        w.publish(p, "a", Qos::AtMostOnce, 0, "x");
    }
    assert_eq!(
        w.node.router().counts().dropped,
        0,
        "its socket has not been full yet"
    );
    w.partial_flush(s);
    for _ in 0..50 {
        w.publish(p, "a", Qos::AtMostOnce, 0, "x");
    }
    w.publish(p, "a", Qos::AtLeastOnce, 1, "kept");
    assert_eq!(w.node.router().counts().dropped, 50);
    w.set_stalled(s, false);
    assert_eq!(w.output(s).len(), 51);
    w.publish(p, "a", Qos::AtMostOnce, 0, "again");
    assert_eq!(w.output(s).len(), 1);
}

#[test]
fn client_that_never_acknowledges_is_disconnected() {
    let limits = SessionLimits {
        prefetch: 1,
        waiting_messages: 3,
        ..SessionLimits::default()
    };
    let mut w = World::new(MqttSettings {
        limits,
        ..MqttSettings::default()
    });
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "a", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    for id in 1..=4 {
        w.publish(p, "a", Qos::AtLeastOnce, id, "x");
    }
    assert_eq!(w.output(s), ["PUBLISH a x q1 #1"]);
    w.publish(p, "a", Qos::AtLeastOnce, 5, "x");
    assert_eq!(w.output(s), ["DISCONNECT 0x97", "END"]);
}

#[test]
fn topic_order_is_preserved() {
    // 3.1.1: [MQTT-4.6.0-5], [MQTT-4.6.0-6]
    // [MQTT-4.6.0-5], [MQTT-4.6.0-6]
    let mut w = World::default();
    let s = w.client(Version::V311, "s");
    w.subscribe(s, "a", Qos::AtLeastOnce);
    let p = w.client(Version::V311, "p");
    for id in 1..=25 {
        w.publish(p, "a", Qos::AtLeastOnce, id, &id.to_string());
    }
    let mut seen = Vec::new();
    for id in 1..=25u16 {
        seen.extend(
            w.output(s)
                .iter()
                .map(|epoch| epoch.split(' ').nth(2).unwrap().to_owned()),
        );
        w.ack(s, AckKind::PubAck, id, ReasonCode::Success);
    }
    assert_eq!(seen, (1..=25).map(|n| n.to_string()).collect::<Vec<_>>());
}

/// A world with a client that may publish to topics below "b" only.
fn with_permission_for_b(unauthorized: UnauthorizedAction) -> World {
    let mut w = World::new(MqttSettings {
        unauthorized,
        ..MqttSettings::default()
    });
    w.node.apply(metadata::Change::PutTopicPermission(
        metadata::TopicPermissionRecord {
            user: "small".into(),
            vhost: "other".into(),
            exchange: "amq.topic".into(),
            write: "^b\\.".into(),
            read: ".*".into(),
        },
    ));
    w
}

/// Connects that client. Returns its connection.
fn enter(w: &mut World, version: Version) -> usize {
    let p = w.open(version);
    w.connect(p, |connect| {
        connect.user_name = Some("other:small");
        connect.password = Some(b"small");
    });
    w.output(p);
    p
}

#[test]
fn publish_needs_topic_permission() {
    // 3.1.1: [MQTT-3.3.5-2]
    let mut w = with_permission_for_b(UnauthorizedAction::AnswerOrDisconnect);
    let p = enter(&mut w, Version::V5);
    w.publish(p, "b/c", Qos::AtLeastOnce, 1, "x");
    w.publish(p, "a", Qos::AtLeastOnce, 2, "x");
    w.publish(p, "a", Qos::ExactlyOnce, 3, "x");
    assert_eq!(
        w.output(p),
        ["PUBACK 1 0x10", "PUBACK 2 0x87", "PUBREC 3 0x87"]
    );
    w.publish(p, "a", Qos::AtMostOnce, 0, "x");
    assert_eq!(w.output(p), ["DISCONNECT 0x87", "END"]);
    let p = enter(&mut w, Version::V311);
    w.publish(p, "a", Qos::AtLeastOnce, 2, "x");
    assert_eq!(w.output(p), ["END"]);
}

/// As with `mqtt.disconnect_on_unauthorized = true` in RabbitMQ, its default.
#[test]
fn publish_without_permission_may_close_the_connection() {
    let mut w = with_permission_for_b(UnauthorizedAction::Disconnect);
    for qos in [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce] {
        let id = u16::from(qos != Qos::AtMostOnce);
        let p = enter(&mut w, Version::V5);
        w.publish(p, "a", qos, id, "x");
        assert_eq!(w.output(p), ["DISCONNECT 0x87", "END"]);
        let p = enter(&mut w, Version::V311);
        w.publish(p, "a", qos, id, "x");
        assert_eq!(w.output(p), ["END"]);
    }
}

/// As with `mqtt.disconnect_on_unauthorized = false` in RabbitMQ.
#[test]
fn publish_without_permission_may_leave_the_connection_open() {
    let mut w = with_permission_for_b(UnauthorizedAction::Answer);
    for (version, code) in [(Version::V311, ""), (Version::V5, " 0x87")] {
        let p = enter(&mut w, version);
        w.publish(p, "a", Qos::AtMostOnce, 0, "x");
        assert_eq!(w.output(p), [""; 0]);
        w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
        w.publish(p, "a", Qos::ExactlyOnce, 2, "x");
        assert_eq!(
            w.output(p),
            [format!("PUBACK 1{code}"), format!("PUBREC 2{code}")]
        );
        w.publish(p, "b/c", Qos::AtLeastOnce, 3, "x");
        let answer = match version {
            Version::V5 => "PUBACK 3 0x10",
            _ => "PUBACK 3",
        };
        assert_eq!(w.output(p), [answer]);
    }
    let counters = w.node.all_counters.values().map(|c| c.publishes);
    let dropped: u64 = counters.map(|c| c.unroutable_dropped).sum();
    assert_eq!(dropped, 2, "the other messages were not routed");
}

#[test]
fn clients_cannot_publish_to_sys_topics() {
    // Section 4.7.2
    let mut w = World::default();
    let s = w.client(Version::V5, "s");
    w.subscribe(s, "$SYS/#", Qos::AtMostOnce);
    w.subscribe(s, "$SYSTEM/#", Qos::AtMostOnce);
    for (version, code) in [(Version::V311, ""), (Version::V5, " 0x87")] {
        let p = w.client(version, "p");
        for (id, topic) in [(1, "$SYS"), (2, "$SYS/broker/uptime"), (3, "$share/g/a")] {
            w.publish(p, topic, Qos::AtLeastOnce, id, "x");
            w.publish(p, topic, Qos::AtMostOnce, 0, "x");
            assert_eq!(w.output(p), [format!("PUBACK {id}{code}")]);
        }
        w.publish(p, "$SYS/broker/uptime", Qos::ExactlyOnce, 4, "x");
        assert_eq!(w.output(p), [format!("PUBREC 4{code}")]);
        assert_eq!(w.output(s), [""; 0]);
        for topic in ["$SYS/broker/connection/bridge/state", "$SYSTEM/a"] {
            w.publish(p, topic, Qos::AtMostOnce, 0, "x");
            assert_eq!(w.output(s), [format!("PUBLISH {topic} x q0")]);
        }
    }
}

#[test]
fn malformed_packet_ends_the_connection_with_its_reason() {
    // 3.1.1: [MQTT-4.8.0-1]
    // [MQTT-3.3.4-6], [MQTT-4.13.1-1]
    for (raw, reason) in [
        (&[0x36, 5, 0, 1, b'a', 0, 1][..], "0x81"),
        (&[0x30, 4, 0, 1, b'#', 0], "0x81"),
        // An invalid response topic.
        (&[0x30, 8, 0, 1, b'a', 4, 0x08, 0, 1, b'#'], "0x82"),
        (&[0x82, 7, 0, 0, 0, 0, 1, b'a', 0], "0x81"),
        (&[0x82, 6, 0, 1, 0, 0, 0, 0], "0x81"),
        (&[0x82, 3, 0, 1, 0], "0x82"),
        (&[0x82, 9, 0, 1, 0, 0, 3, b'a', b'/', b'#', 0xC0], "0x81"),
        (&[0x30, 7, 0, 1, b'a', 3, 0x23, 0, 0], "0x94"),
        (&[0x30, 6, 0, 1, b'a', 2, 0x0B, 1], "0x82"),
        (&[0x60, 2, 0, 1], "0x81"),
        (&[0x00, 0], "0x82"),
        (&[0xD0, 0], "0x82"),
        // Whatever the body is, and for two of them whatever the flags are.
        (&[0x20, 3, 0, 0, 0], "0x82"),
        (&[0x20, 0], "0x82"),
        (&[0x91, 0], "0x81"),
        (&[0xD1, 0], "0x81"),
        (&[0x21, 0], "0x82"),
        (&[0xF0, 1, 0], "0x82"),
        (&[0xF1, 0], "0x82"),
    ] {
        let mut w = World::default();
        let c = w.client(Version::V5, "c");
        w.send_raw(c, raw);
        assert_eq!(
            w.output(c),
            [format!("DISCONNECT {reason}"), "END".to_owned()],
            "{raw:?}"
        );
    }
}

#[test]
fn no_local_and_retain_as_published_are_honoured() {
    // [MQTT-3.8.3-3], [MQTT-3.3.1-12], [MQTT-3.3.1-13]
    let mut w = World::default();
    let c = w.client(Version::V5, "c");
    let s = w.client(Version::V5, "s");
    let no_local = SubscribeOptions {
        no_local: true,
        ..SubscribeOptions::default()
    };
    w.subscribe_with(c, "a", no_local, None);
    let as_published = SubscribeOptions {
        retain_as_published: true,
        ..SubscribeOptions::default()
    };
    w.subscribe_with(s, "a", as_published, None);
    let plain = w.client(Version::V5, "t");
    w.subscribe(plain, "a", Qos::AtMostOnce);
    w.output(c);
    w.output(s);
    w.publish_with(c, "a", Qos::AtMostOnce, 0, "x", |p| p.retain = true);
    w.publish(c, "a", Qos::AtMostOnce, 0, "y");
    assert_eq!(w.output(c), [""; 0]);
    assert_eq!(w.output(s), ["PUBLISH a x q0 retain", "PUBLISH a y q0"]);
    assert_eq!(w.output(plain), ["PUBLISH a x q0", "PUBLISH a y q0"]);
}
