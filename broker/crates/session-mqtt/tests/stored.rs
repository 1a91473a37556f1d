//! Sessions that outlive connections and the process: their queues.

use crate::fake::{World, confirm_all};
use codec_amqp091::Properties as Amqp;
use codec_mqtt::{
    AckKind, Disconnect, Packet, Properties, Qos, ReasonCode, SubscribeOptions, Version,
};
use env::WallTime;
use message::{Message, MessageBuilder, Protocol, Value};
use std::time::Duration;

/// A client with this session expiry in seconds; returns its first packets.
fn connect_persistent(w: &mut World, name: &'static str, expiry: u32) -> (usize, Vec<String>) {
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.client_id = name;
        connect.clean_start = false;
        connect.properties.session_expiry = Some(expiry);
    });
    let output = w.output(c);
    (c, output)
}

fn options(qos: Qos) -> SubscribeOptions {
    SubscribeOptions {
        qos,
        ..SubscribeOptions::default()
    }
}

fn amqp(key: &str, durable: bool) -> Message {
    let mut raw = bytes::BytesMut::new();
    Amqp::default().encode(&mut raw);
    let builder = MessageBuilder {
        protocol: Protocol::Amqp091,
        durable,
        priority: None,
        ttl_ms: None,
        received: WallTime(7),
        exchange: "amq.topic",
        routing_keys: &[key],
        properties: &raw,
    };
    builder.build(4, [&b"amqp"[..]]).unwrap()
}

#[test]
fn acknowledged_publishes_survive_restart_in_order() {
    // [MQTT-4.1.0-1], [MQTT-4.6.0-1]
    let mut w = World::default();
    let (c, output) = connect_persistent(&mut w, "k", 3600);
    assert_eq!(output, ["CONNACK 0x00"]);
    w.subscribe(c, "a/#", Qos::ExactlyOnce);
    let p = w.client(Version::V5, "p");
    for id in 1..=4 {
        let qos = if id == 3 {
            Qos::ExactlyOnce
        } else {
            Qos::AtLeastOnce
        };
        w.publish(p, "a/b", qos, id, &id.to_string());
    }
    assert_eq!(
        w.output(p),
        ["PUBACK 1", "PUBACK 2", "PUBREC 3", "PUBACK 4"]
    );
    w.ack(c, AckKind::PubAck, 1, ReasonCode::Success);
    w.ack(c, AckKind::PubRec, 3, ReasonCode::Success);
    w.kill();
    let p = w.client(Version::V5, "p");
    w.publish(p, "a/b", Qos::AtLeastOnce, 5, "5");
    assert_eq!(w.output(p), ["PUBACK 5"]);
    let (c, output) = connect_persistent(&mut w, "k", 3600);
    // The client may wait for any PUBREL of the earlier process: no message has an identifier that
    // it has not released.
    assert_eq!(output[0], "CONNACK 0x00 present");
    let released: Vec<String> = (1..=64).map(|id| format!("PUBREL {id}")).collect();
    assert_eq!(output[1..], released);
    w.cut(c);
    let (c, again) = connect_persistent(&mut w, "k", 3600);
    assert_eq!(again, output);
    for id in 1..=64 {
        w.ack(c, AckKind::PubComp, id, ReasonCode::Success);
    }
    let told = [
        "PUBLISH a/b 2 q1 #1",
        "PUBLISH a/b 3 q2 #2",
        "PUBLISH a/b 4 q1 #3",
        "PUBLISH a/b 5 q1 #4",
    ];
    let plain: Vec<String> = w.output(c).iter().map(|l| l.replace(" dup", "")).collect();
    assert_eq!(plain, told);
    for id in [1, 3, 4] {
        w.ack(c, AckKind::PubAck, id, ReasonCode::Success);
    }
    w.ack(c, AckKind::PubRec, 2, ReasonCode::Success);
    w.ack(c, AckKind::PubComp, 2, ReasonCode::Success);
    let queue = w.node.session_queue("k").expect("the session's queue");
    assert_eq!(w.node.queue_len(queue.id), 0);
}

/// The first connection after the restart receives the message but has no packet identifier for it.
#[test]
fn message_sent_before_restart_is_resent_with_dup() {
    // [MQTT-3.3.1-1]
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 3600);
    w.subscribe(c, "a", Qos::ExactlyOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
    assert_eq!(w.output(c), ["PUBLISH a 1 q1 #1"]);
    w.kill();
    for _ in 0..2 {
        let (c, output) = connect_persistent(&mut w, "k", 3600);
        assert_eq!(output.len(), 65, "CONNACK and PUBREL");
        w.cut(c);
    }
    let (c, _) = connect_persistent(&mut w, "k", 3600);
    for id in 1..=64 {
        w.ack(c, AckKind::PubComp, id, ReasonCode::Success);
    }
    assert_eq!(w.output(c), ["PUBLISH a 1 q1 #1 dup"]);
    // A message that only the queue had given out is sent for the first time.
    let p = w.client(Version::V5, "p");
    w.set_stalled(c, true);
    w.publish(p, "a", Qos::AtLeastOnce, 2, &"x".repeat(2 << 20));
    w.publish(p, "a", Qos::AtLeastOnce, 3, "3");
    w.cut(c);
    let (_, output) = connect_persistent(&mut w, "k", 3600);
    assert_eq!(output[1], "PUBLISH a 1 q1 #1 dup");
    assert_eq!(output.last().map(String::as_str), Some("PUBLISH a 3 q1 #3"));
}

/// The first connection after the restart ends before the queue has answered: the next one knows no
/// more about what the client waits for.
#[test]
fn identifiers_of_earlier_process_are_released_by_first_answered_connection() {
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 3600);
    w.subscribe(c, "a/#", Qos::ExactlyOnce);
    w.kill();
    let c = w.open(Version::V5);
    w.delay(c);
    w.connect(c, |connect| {
        connect.client_id = "k";
        connect.clean_start = false;
        connect.properties.session_expiry = Some(3600);
    });
    assert!(w.output(c).is_empty());
    w.cut(c);
    w.deliver_delayed();
    let (_, output) = connect_persistent(&mut w, "k", 3600);
    assert_eq!(output[0], "CONNACK 0x00 present");
    let released: Vec<String> = (1..=64).map(|id| format!("PUBREL {id}")).collect();
    assert_eq!(output[1..], released);
}

/// The client has used the session at another node in between, so the packet identifiers have
/// another meaning.
#[test]
fn packet_identifiers_are_discarded_when_session_was_elsewhere() {
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 3600);
    w.subscribe(c, "a", Qos::ExactlyOnce);
    w.publish(c, "a", Qos::ExactlyOnce, 9, "1");
    assert_eq!(w.output(c), ["PUBLISH a 1 q2 #1", "PUBREC 9"]);
    w.cut(c);
    w.consumed_elsewhere("k");
    let (c, output) = connect_persistent(&mut w, "k", 3600);
    assert_eq!(output[0], "CONNACK 0x00 present");
    let released: Vec<String> = (1..=64).map(|id| format!("PUBREL {id}")).collect();
    assert_eq!(output[1..], released);
    // The other node received PUBREL for the first message with this identifier.
    w.publish(c, "a", Qos::ExactlyOnce, 9, "2");
    assert_eq!(w.output(c), ["PUBREC 9"]);
    for id in 1..=64 {
        w.ack(c, AckKind::PubComp, id, ReasonCode::Success);
    }
    assert_eq!(w.output(c), ["PUBLISH a 1 q2 #1 dup", "PUBLISH a 2 q2 #2"]);
    // This is known now, also on a connection that sends nothing itself.
    w.cut(c);
    let (_, output) = connect_persistent(&mut w, "k", 0);
    let again = ["PUBLISH a 1 q2 #1 dup", "PUBLISH a 2 q2 #2 dup"];
    assert_eq!(output[1..], again);
}

/// Completed messages are identified by the numbers of the queue, so they remain completed.
#[test]
fn completed_messages_stay_completed_when_session_was_elsewhere() {
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 3600);
    w.subscribe(c, "a", Qos::ExactlyOnce);
    w.publish(c, "a", Qos::ExactlyOnce, 9, "1");
    w.publish(c, "a", Qos::ExactlyOnce, 10, "2");
    w.output(c);
    w.delay(c);
    w.ack(c, AckKind::PubRec, 1, ReasonCode::Success);
    w.ack(c, AckKind::PubComp, 1, ReasonCode::Success);
    w.take_over_consumer("k");
    w.consumed_elsewhere("k");
    w.deliver_delayed();
    let (c, output) = connect_persistent(&mut w, "k", 3600);
    let released: Vec<String> = (1..=64).map(|id| format!("PUBREL {id}")).collect();
    assert_eq!(output[1..], released);
    for id in 1..=64 {
        w.ack(c, AckKind::PubComp, id, ReasonCode::Success);
    }
    assert_eq!(w.output(c), ["PUBLISH a 2 q2 #1 dup"]);
    let queue = w.node.session_queue("k").expect("the session's queue");
    assert_eq!(w.node.queue_len(queue.id), 1);
}

#[test]
fn session_without_subscription_survives_restart() {
    // [MQTT-3.1.2-5], [MQTT-3.2.2-3]
    let mut w = World::default();
    assert_eq!(connect_persistent(&mut w, "k", 60).1, ["CONNACK 0x00"]);
    w.kill();
    let (c, output) = connect_persistent(&mut w, "k", 60);
    assert_eq!(output, ["CONNACK 0x00 present"]);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
    assert_eq!(w.output(p), ["PUBACK 1"]);
    assert_eq!(w.output(c), ["PUBLISH a 1 q1 #1"]);
    // Nor does a client that comes back in time only to leave again.
    w.cut(c);
    w.kill();
    let (_, output) = connect_persistent(&mut w, "k", 60);
    assert_eq!(output[0], "CONNACK 0x00 present");
    // If the cluster cannot store the session, it lives as long as the process.
    w.node.rejects_changes = true;
    assert_eq!(connect_persistent(&mut w, "m", 60).1, ["CONNACK 0x00"]);
    assert!(w.node.session_queue("m").is_none());
    assert_eq!(
        connect_persistent(&mut w, "m", 60).1,
        ["CONNACK 0x00 present"]
    );
    w.kill();
    assert_eq!(connect_persistent(&mut w, "m", 60).1, ["CONNACK 0x00"]);
}

#[test]
fn subscription_options_survive_restart() {
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 3600);
    let kept = SubscribeOptions {
        retain_as_published: true,
        no_local: true,
        ..options(Qos::AtLeastOnce)
    };
    w.subscribe_with(c, "a/+", kept, Some(7));
    w.subscribe_with(c, "a/b", options(Qos::AtLeastOnce), Some(8));
    w.subscribe_with(c, "mine", kept, None);
    w.subscribe_with(c, "zero", options(Qos::AtMostOnce), Some(9));
    assert_eq!(w.output(c).len(), 4);
    w.kill();
    let p = w.client(Version::V5, "p");
    w.publish_with(p, "a/b", Qos::AtLeastOnce, 1, "1", |p| p.retain = true);
    w.publish(p, "zero", Qos::AtLeastOnce, 2, "not kept");
    let (c, output) = connect_persistent(&mut w, "k", 3600);
    assert_eq!(output[1..], ["PUBLISH a/b 1 q1 #1 retain ids[7, 8]"]);
    w.publish(p, "zero", Qos::AtLeastOnce, 3, "2");
    assert_eq!(w.output(c), ["PUBLISH zero 2 q0 ids[9]"]);
    // No Local: [MQTT-3.8.3-3]
    w.publish(c, "mine", Qos::AtLeastOnce, 1, "x");
    assert_eq!(w.output(c), ["PUBACK 1"]);
    w.publish(p, "mine", Qos::AtLeastOnce, 4, "y");
    assert_eq!(w.output(c), ["PUBLISH mine y q1 #2"]);
}

#[test]
fn qos_0_messages_are_never_stored() {
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 3600);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtMostOnce, 0, "1");
    assert_eq!(w.output(c), ["PUBLISH a 1 q0"]);
    assert_eq!(w.node.queued.len(), 0);
    // A transient message from an AMQP client is in the queue, but the router has delivered it.
    let queue = w.node.session_queue("k").expect("the session's queue").id;
    w.node.amqp(queue, amqp("a", false));
    w.settle();
    assert_eq!((w.output(c).len(), w.node.queue_len(queue)), (0, 0));
    w.node.amqp(queue, amqp("a", true));
    w.settle();
    assert_eq!(w.output(c), ["PUBLISH a amqp q1 #1"]);
    // AMQP wildcards that are none in MQTT.
    w.subscribe(c, "s/*", Qos::AtLeastOnce);
    w.publish(p, "s/x", Qos::AtLeastOnce, 1, "no");
    w.publish(p, "s/*", Qos::AtLeastOnce, 2, "yes");
    assert_eq!(w.output(c), ["PUBLISH s/* yes q1 #2"]);
}

#[test]
fn amqp_messages_to_sys_topics_are_ignored() {
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 3600);
    w.subscribe(c, "$SYS/#", Qos::AtLeastOnce);
    w.subscribe(c, "$SYSTEM/#", Qos::AtLeastOnce);
    let queue = w.node.session_queue("k").expect("the session's queue").id;
    for key in ["$SYS.broker.version", "$SYSTEM.a"] {
        w.node.amqp(queue, amqp(key, true));
    }
    w.settle();
    assert_eq!(w.output(c), ["PUBLISH $SYSTEM/a amqp q1 #1"]);
    assert_eq!(w.node.queue_len(queue), 1);
}

#[test]
fn suback_waits_for_session_queue() {
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 3600);
    w.subscribe(c, "a/#", Qos::AtLeastOnce);
    w.node.withholds_confirms = true;
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
    assert_eq!(w.output(p), [""; 0]);
    confirm_all(&mut w);
    assert_eq!(w.output(p), ["PUBACK 1"]);
    // Topics that are too long for AMQP reach the session as well.
    let long = format!("a/{}", "x".repeat(300));
    w.publish(p, &long, Qos::ExactlyOnce, 2, "2");
    confirm_all(&mut w);
    assert_eq!(w.output(p), ["PUBREC 2"]);
    assert_eq!(w.output(c).len(), 2);
}

#[test]
fn session_and_its_queue_end_together() {
    // [MQTT-3.1.2-4], [MQTT-4.1.0-2]
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 60);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let expires = |w: &World| {
        let queue = w.node.session_queue("k").expect("the session's queue");
        queue.arguments.get("x-expires").cloned()
    };
    assert_eq!(expires(&w), Some(Value::I64(60_000)));
    w.cut(c);
    // A different expiry from now on.
    let (c, _) = connect_persistent(&mut w, "k", 120);
    assert_eq!(expires(&w), Some(Value::I64(120_000)));
    w.cut(c);
    w.advance(Duration::from_secs(120));
    assert!(w.node.session_queue("k").is_none());
    assert_eq!(connect_persistent(&mut w, "k", 60).1, ["CONNACK 0x00"]);
    // A clean start, also after a restart of the process.
    let (c, _) = connect_persistent(&mut w, "l", 60);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    w.kill();
    w.client(Version::V5, "l");
    assert!(w.node.session_queue("l").is_none());
    // A clean start with a new persistent session.
    let old = w.node.session_queue("k").expect("the session's queue").id;
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.client_id = "k";
        connect.properties.session_expiry = Some(60);
    });
    assert_eq!(w.output(c), ["CONNACK 0x00"]);
    let new = w.node.session_queue("k").expect("the session's queue").id;
    assert_ne!(old, new);
    // The client sets the expiry to 0 when it disconnects.
    let (c, _) = connect_persistent(&mut w, "m", 60);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let properties = Properties {
        session_expiry: Some(0),
        ..Properties::default()
    };
    let reason = ReasonCode::Success;
    w.send(c, &Packet::Disconnect(Disconnect { reason, properties }));
    assert!(w.node.session_queue("m").is_none());
    assert_eq!(connect_persistent(&mut w, "m", 60).1, ["CONNACK 0x00"]);
}

#[test]
fn session_ends_when_its_queue_is_deleted() {
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 60);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let queue = w.node.session_queue("k").expect("the session's queue");
    let (vhost, name, id) = (queue.vhost.clone(), queue.name.clone(), None);
    let delete = metadata::Change::DeleteQueue { vhost, name, id };
    session::Broker::change(&mut w.node, 0, delete);
    w.settle();
    assert_eq!(w.output(c), ["DISCONNECT 0x98", "END"]);
    assert_eq!(connect_persistent(&mut w, "k", 60).1, ["CONNACK 0x00"]);
}

#[test]
fn refusal_by_session_queue_ends_connection_with_valid_reason() {
    // Section 3.14.2.1
    let mut w = World::default();
    let refused = "CONNACK 0x88 (the queue's node is down)";
    // CONNACK need not wait for the queue of a new session.
    for told in [
        &["CONNACK 0x00", "DISCONNECT 0x83", "END"][..],
        &[refused, "END"],
    ] {
        let c = w.open(Version::V5);
        w.delay(c);
        w.connect(c, |connect| {
            connect.client_id = "k";
            connect.clean_start = false;
            connect.properties.session_expiry = Some(60);
        });
        let mut output = w.output(c);
        w.refuse();
        output.extend(w.output(c));
        assert_eq!(output, told);
        w.deliver_delayed();
    }
}

#[test]
fn unsubscribe_removes_queue_bindings() {
    // [MQTT-3.8.4-3], [MQTT-3.10.4-1], [MQTT-3.10.4-2]
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 60);
    for qos in [Qos::AtLeastOnce, Qos::AtMostOnce, Qos::ExactlyOnce] {
        w.subscribe(c, "a", qos);
    }
    w.subscribe(c, "b", Qos::AtLeastOnce);
    let queue = w.node.session_queue("k").expect("the session's queue").id;
    assert_eq!(w.node.tree.bindings_of_queue(queue).len(), 2);
    w.unsubscribe(c, &["a", "x"]);
    assert_eq!(w.output(c), ["UNSUBACK 2 [0, 17]"]);
    assert_eq!(w.node.tree.bindings_of_queue(queue).len(), 1);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    assert_eq!(w.output(p), ["PUBACK 1 0x10"]);
}

#[test]
fn subscription_that_cannot_be_stored_is_refused() {
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 60);
    w.node.rejects_changes = true;
    w.subscribe_with(c, "a", options(Qos::AtLeastOnce), None);
    assert_eq!(w.output(c), ["SUBACK 1 [131]"]);
    w.node.rejects_changes = false;
    let long = "x".repeat(256);
    w.subscribe_with(c, &long, options(Qos::AtLeastOnce), None);
    assert_eq!(w.output(c), ["SUBACK 1 [131]"]);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    // No other queue is affected.
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.client_id = "k";
        connect.user_name = Some("other:small");
        connect.password = Some(b"small");
    });
    assert_eq!(w.output(c).len(), 1);
    assert!(w.node.session_queue("k").is_some());
    let long = crate::fake::leak(&"k".repeat(300));
    let (_, output) = connect_persistent(&mut w, long, 60);
    assert!(output[0].starts_with("CONNACK 0x85"), "{output:?}");
}

#[test]
fn shared_subscription_members_may_have_queues() {
    // [MQTT-4.8.2-4]
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 60);
    w.subscribe(c, "$share/g/a", Qos::AtLeastOnce);
    let d = w.client(Version::V5, "d");
    w.subscribe(d, "$share/g/a", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    for id in 1..=4 {
        w.publish(p, "a", Qos::AtLeastOnce, id, &id.to_string());
    }
    assert_eq!((w.output(c).len(), w.output(d).len()), (2, 2));
    assert_eq!(w.output(p).len(), 4);
    // Without connected members: the queue of a member stores it.
    w.cut(d);
    w.cut(c);
    w.publish(p, "a", Qos::AtLeastOnce, 5, "5");
    assert_eq!(w.output(p), ["PUBACK 5"]);
    w.kill();
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 6, "6");
    assert_eq!(w.output(p), ["PUBACK 6"], "its queue is known without it");
    let (_, output) = connect_persistent(&mut w, "k", 60);
    assert_eq!(
        output.len(),
        7,
        "two that were not acknowledged, two of the member that left, and the last two: {output:?}"
    );
}

#[test]
fn queue_stores_an_extra_copy_for_shared_subscription() {
    // Section 4.8.2
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 60);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    w.subscribe(c, "$share/g/a", Qos::AtLeastOnce);
    w.subscribe(c, "b", Qos::AtMostOnce);
    w.subscribe(c, "$share/g/b", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    assert_eq!(w.output(p), ["PUBACK 1"]);
    assert_eq!(w.output(c), ["PUBLISH a x q1 #1", "PUBLISH a x q1 #2"]);
    w.publish(p, "b", Qos::AtLeastOnce, 2, "y");
    assert_eq!(w.output(p), ["PUBACK 2"]);
    let mut output = w.output(c);
    output.sort();
    assert_eq!(output, ["PUBLISH b y q0", "PUBLISH b y q1 #3"]);
}

#[test]
fn inflight_message_is_completed_after_unsubscribe_and_reconnect() {
    // 3.1.1: [MQTT-4.4.0-1], [MQTT-3.10.4-3]
    // [MQTT-4.4.0-1], [MQTT-3.10.4-3]
    for from_amqp in [false, true] {
        let mut w = World::default();
        let (c, _) = connect_persistent(&mut w, "k", 60);
        w.subscribe(c, "a", Qos::AtLeastOnce);
        w.subscribe(c, "b", Qos::AtLeastOnce);
        if from_amqp {
            let queue = w.node.session_queue("k").unwrap().id;
            w.node.amqp(queue, amqp("a", true));
            w.node.amqp(queue, amqp("b", true));
            w.settle();
        } else {
            let p = w.client(Version::V5, "p");
            w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
            w.publish(p, "b", Qos::AtLeastOnce, 2, "x");
        }
        let text = if from_amqp { "amqp" } else { "x" };
        let first = [
            format!("PUBLISH a {text} q1 #1"),
            format!("PUBLISH b {text} q1 #2"),
        ];
        assert_eq!(w.output(c), first);
        w.unsubscribe(c, &["a"]);
        w.subscribe_with(c, "b", options(Qos::AtMostOnce), None);
        assert_eq!(w.output(c), ["UNSUBACK 2 [0]", "SUBACK 1 [0]"]);
        w.cut(c);
        let (c, output) = connect_persistent(&mut w, "k", 60);
        assert_eq!(output[1..], first.map(|output| output + " dup"));
        for id in [1, 2] {
            w.ack(c, AckKind::PubAck, id, ReasonCode::Success);
        }
        w.cut(c);
        let (_, output) = connect_persistent(&mut w, "k", 60);
        assert_eq!(output.len(), 1, "{output:?}");
    }
}

#[test]
fn shared_message_is_stored_although_qos_0_subscription_matches() {
    // Two copies: section 4.8.2.
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 60);
    w.subscribe(c, "$share/g/a", Qos::AtLeastOnce);
    w.subscribe(c, "+", Qos::AtMostOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
    assert_eq!(w.output(c), ["PUBLISH a 1 q0", "PUBLISH a 1 q1 #1"]);
    // It has no binding of its own for QoS 0.
    w.publish(p, "b", Qos::AtLeastOnce, 2, "2");
    assert_eq!(w.output(c), ["PUBLISH b 2 q0"]);
    assert_eq!(w.output(p), ["PUBACK 1", "PUBACK 2"]);
}

#[test]
fn acknowledgement_waits_for_retained_message() {
    let mut w = World::default();
    let c = w.client(Version::V5, "c");
    w.publish_with(c, "a", Qos::AtLeastOnce, 1, "1", |p| p.retain = true);
    assert_eq!(w.output(c), ["PUBACK 1 0x10"]);
    w.node.rejects_changes = true;
    w.publish_with(c, "a", Qos::AtLeastOnce, 2, "2", |p| p.retain = true);
    assert_eq!(w.output(c), ["PUBACK 2 0x97"]);
    let old = w.client(Version::V311, "old");
    w.publish_with(old, "a", Qos::AtLeastOnce, 1, "3", |p| p.retain = true);
    assert_eq!(w.output(old), ["END"]);
}

#[test]
fn next_connection_precedes_end_of_last_one_at_the_queue() {
    // [MQTT-4.3.3-2], [MQTT-4.6.0-1]
    let mut w = World::default();
    let (c, _) = connect_persistent(&mut w, "k", 60);
    w.subscribe(c, "a", Qos::ExactlyOnce);
    let p = w.client(Version::V5, "p");
    for id in 1..=3 {
        w.publish(p, "a", Qos::ExactlyOnce, id, "same");
        w.ack(p, AckKind::PubRel, id, ReasonCode::Success);
    }
    w.output(p);
    w.output(c);
    w.delay(c);
    w.ack(c, AckKind::PubRec, 1, ReasonCode::Success);
    w.ack(c, AckKind::PubComp, 1, ReasonCode::Success);
    w.ack(c, AckKind::PubRec, 2, ReasonCode::Success);
    w.cut(c);
    w.publish(p, "a", Qos::ExactlyOnce, 4, "fresh");
    let (c, output) = connect_persistent(&mut w, "k", 60);
    // The first is completed, but the queue has not processed that; the second waits for PUBCOMP.
    let told = [
        "CONNACK 0x00 present",
        "PUBREL 2",
        "PUBLISH a same q2 #3 dup",
        "PUBLISH a fresh q2 #4",
    ];
    assert_eq!(output, told);
    w.deliver_delayed();
    assert_eq!(w.output(c), [""; 0]);
    w.ack(c, AckKind::PubComp, 2, ReasonCode::Success);
    for id in [3, 4] {
        w.ack(c, AckKind::PubRec, id, ReasonCode::Success);
        w.ack(c, AckKind::PubComp, id, ReasonCode::Success);
    }
    let queue = w.node.session_queue("k").expect("the session's queue");
    assert_eq!(w.node.queue_len(queue.id), 0);
    assert!(w.node.is_epoch_consumer(queue.id));
}
