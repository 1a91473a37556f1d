//! Sessions that outlive connections and the process: their queues (M2, M3, C7).

mod fake;

use codec_amqp091::Properties as Amqp;
use codec_mqtt::{AckKind, Disconnect, Packet, Properties, Qos, Reason, SubscribeOptions, Version};
use env::WallTime;
use fake::{World, confirm_all};
use message::{Message, MessageBuilder, Protocol, Value};
use std::time::Duration;

/// A client whose session is kept for that many seconds; what it is told first.
fn keeper(w: &mut World, name: &'static str, expiry: u32) -> (usize, Vec<String>) {
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.client_id = name;
        connect.clean_start = false;
        connect.properties.session_expiry = Some(expiry);
    });
    let said = w.said(c);
    (c, said)
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
fn what_was_acknowledged_outlives_the_process_and_keeps_its_order() {
    // [MQTT-4.1.0-1], [MQTT-4.6.0-1]
    let mut w = World::default();
    let (c, said) = keeper(&mut w, "k", 3600);
    assert_eq!(said, ["CONNACK 0x00"]);
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
    assert_eq!(w.said(p), ["PUBACK 1", "PUBACK 2", "PUBREC 3", "PUBACK 4"]);
    w.ack(c, AckKind::PubAck, 1, Reason::Success);
    w.ack(c, AckKind::PubRec, 3, Reason::Success);
    w.kill();
    let p = w.client(Version::V5, "p");
    w.publish(p, "a/b", Qos::AtLeastOnce, 5, "5");
    assert_eq!(w.said(p), ["PUBACK 5"]);
    let (c, said) = keeper(&mut w, "k", 3600);
    // The client may wait for any PUBREL of the earlier life: no message has an identifier that it has not let go.
    assert_eq!(said[0], "CONNACK 0x00 present");
    let released: Vec<String> = (1..=64).map(|id| format!("PUBREL {id}")).collect();
    assert_eq!(said[1..], released);
    w.cut(c);
    let (c, again) = keeper(&mut w, "k", 3600);
    assert_eq!(again, said);
    for id in 1..=64 {
        w.ack(c, AckKind::PubComp, id, Reason::Success);
    }
    let told = [
        "PUBLISH a/b 2 q1 #1",
        "PUBLISH a/b 3 q2 #2",
        "PUBLISH a/b 4 q1 #3",
        "PUBLISH a/b 5 q1 #4",
    ];
    let plain: Vec<String> = w.said(c).iter().map(|l| l.replace(" dup", "")).collect();
    assert_eq!(plain, told);
    for id in [1, 3, 4] {
        w.ack(c, AckKind::PubAck, id, Reason::Success);
    }
    w.ack(c, AckKind::PubRec, 2, Reason::Success);
    w.ack(c, AckKind::PubComp, 2, Reason::Success);
    let queue = w.node.stored("k").expect("the session's queue");
    assert_eq!(w.node.kept(queue.id), 0);
}

/// The first connection after the restart is given the message and has no packet identifier for it.
#[test]
fn message_sent_before_a_restart_has_dup_on_the_connection_that_sends_it_again() {
    // [MQTT-3.3.1-1]
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 3600);
    w.subscribe(c, "a", Qos::ExactlyOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
    assert_eq!(w.said(c), ["PUBLISH a 1 q1 #1"]);
    w.kill();
    for _ in 0..2 {
        let (c, said) = keeper(&mut w, "k", 3600);
        assert_eq!(said.len(), 65, "CONNACK and PUBREL");
        w.cut(c);
    }
    let (c, _) = keeper(&mut w, "k", 3600);
    for id in 1..=64 {
        w.ack(c, AckKind::PubComp, id, Reason::Success);
    }
    assert_eq!(w.said(c), ["PUBLISH a 1 q1 #1 dup"]);
    // One that was given to an earlier connection alone is sent for the first time.
    let p = w.client(Version::V5, "p");
    w.stick(c, true);
    w.publish(p, "a", Qos::AtLeastOnce, 2, &"x".repeat(2 << 20));
    w.publish(p, "a", Qos::AtLeastOnce, 3, "3");
    w.cut(c);
    let (_, said) = keeper(&mut w, "k", 3600);
    assert_eq!(said[1], "PUBLISH a 1 q1 #1 dup");
    assert_eq!(said.last().map(String::as_str), Some("PUBLISH a 3 q1 #3"));
}

/// The first connection after that ends before it was answered: the next one knows no more of what the client waits for.
#[test]
fn what_an_earlier_life_sent_is_let_go_by_the_first_connection_that_is_answered() {
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 3600);
    w.subscribe(c, "a/#", Qos::ExactlyOnce);
    w.kill();
    let c = w.open(Version::V5);
    w.delay(c);
    w.connect(c, |connect| {
        connect.client_id = "k";
        connect.clean_start = false;
        connect.properties.session_expiry = Some(3600);
    });
    assert!(w.said(c).is_empty());
    w.cut(c);
    w.hear();
    let (_, said) = keeper(&mut w, "k", 3600);
    assert_eq!(said[0], "CONNACK 0x00 present");
    let released: Vec<String> = (1..=64).map(|id| format!("PUBREL {id}")).collect();
    assert_eq!(said[1..], released);
}

/// The client has used the session at another node since: packet identifiers are what that one made of them.
#[test]
fn what_was_kept_of_identifiers_is_not_believed_when_the_session_was_elsewhere() {
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 3600);
    w.subscribe(c, "a", Qos::ExactlyOnce);
    w.publish(c, "a", Qos::ExactlyOnce, 9, "1");
    assert_eq!(w.said(c), ["PUBLISH a 1 q2 #1", "PUBREC 9"]);
    w.cut(c);
    w.consumed_elsewhere("k");
    let (c, said) = keeper(&mut w, "k", 3600);
    assert_eq!(said[0], "CONNACK 0x00 present");
    let released: Vec<String> = (1..=64).map(|id| format!("PUBREL {id}")).collect();
    assert_eq!(said[1..], released);
    // The other node had PUBREL of the first message under this identifier.
    w.publish(c, "a", Qos::ExactlyOnce, 9, "2");
    assert_eq!(w.said(c), ["PUBREC 9"]);
    for id in 1..=64 {
        w.ack(c, AckKind::PubComp, id, Reason::Success);
    }
    assert_eq!(w.said(c), ["PUBLISH a 1 q2 #1 dup", "PUBLISH a 2 q2 #2"]);
    // That is known now: also a connection that sends nothing of its own may ask for it.
    w.cut(c);
    let (_, said) = keeper(&mut w, "k", 0);
    let again = ["PUBLISH a 1 q2 #1 dup", "PUBLISH a 2 q2 #2 dup"];
    assert_eq!(said[1..], again);
}

/// What the client was done with is known by the queue's own numbers, and stays known.
#[test]
fn what_is_completed_stays_so_when_the_session_was_elsewhere() {
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 3600);
    w.subscribe(c, "a", Qos::ExactlyOnce);
    w.publish(c, "a", Qos::ExactlyOnce, 9, "1");
    w.publish(c, "a", Qos::ExactlyOnce, 10, "2");
    w.said(c);
    w.delay(c);
    w.ack(c, AckKind::PubRec, 1, Reason::Success);
    w.ack(c, AckKind::PubComp, 1, Reason::Success);
    w.usurp("k");
    w.consumed_elsewhere("k");
    w.hear();
    let (c, said) = keeper(&mut w, "k", 3600);
    let released: Vec<String> = (1..=64).map(|id| format!("PUBREL {id}")).collect();
    assert_eq!(said[1..], released);
    for id in 1..=64 {
        w.ack(c, AckKind::PubComp, id, Reason::Success);
    }
    assert_eq!(w.said(c), ["PUBLISH a 2 q2 #1 dup"]);
    let queue = w.node.stored("k").expect("the session's queue");
    assert_eq!(w.node.kept(queue.id), 1);
}

#[test]
fn a_session_without_a_subscription_outlives_the_process() {
    // [MQTT-3.1.2-5], [MQTT-3.2.2-3]
    let mut w = World::default();
    assert_eq!(keeper(&mut w, "k", 60).1, ["CONNACK 0x00"]);
    w.kill();
    let (c, said) = keeper(&mut w, "k", 60);
    assert_eq!(said, ["CONNACK 0x00 present"]);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
    assert_eq!(w.said(p), ["PUBACK 1"]);
    assert_eq!(w.said(c), ["PUBLISH a 1 q1 #1"]);
    // Who comes back in time only to go again does not lose it either.
    w.cut(c);
    w.kill();
    let (_, said) = keeper(&mut w, "k", 60);
    assert_eq!(said[0], "CONNACK 0x00 present");
    // Where the cluster cannot keep it, it is kept as long as the process lives.
    w.node.refuses = true;
    assert_eq!(keeper(&mut w, "m", 60).1, ["CONNACK 0x00"]);
    assert!(w.node.stored("m").is_none());
    assert_eq!(keeper(&mut w, "m", 60).1, ["CONNACK 0x00 present"]);
    w.kill();
    assert_eq!(keeper(&mut w, "m", 60).1, ["CONNACK 0x00"]);
}

#[test]
fn what_a_subscription_asked_for_outlives_the_process() {
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 3600);
    let kept = SubscribeOptions {
        retain_as_published: true,
        no_local: true,
        ..options(Qos::AtLeastOnce)
    };
    w.subscribe_with(c, "a/+", kept, Some(7));
    w.subscribe_with(c, "a/b", options(Qos::AtLeastOnce), Some(8));
    w.subscribe_with(c, "mine", kept, None);
    w.subscribe_with(c, "zero", options(Qos::AtMostOnce), Some(9));
    assert_eq!(w.said(c).len(), 4);
    w.kill();
    let p = w.client(Version::V5, "p");
    w.publish_with(p, "a/b", Qos::AtLeastOnce, 1, "1", |p| p.retain = true);
    w.publish(p, "zero", Qos::AtLeastOnce, 2, "not kept");
    let (c, said) = keeper(&mut w, "k", 3600);
    assert_eq!(said[1..], ["PUBLISH a/b 1 q1 #1 retain ids[7, 8]"]);
    w.publish(p, "zero", Qos::AtLeastOnce, 3, "2");
    assert_eq!(w.said(c), ["PUBLISH zero 2 q0 ids[9]"]);
    // No Local: [MQTT-3.8.3-3]
    w.publish(c, "mine", Qos::AtLeastOnce, 1, "x");
    assert_eq!(w.said(c), ["PUBACK 1"]);
    w.publish(p, "mine", Qos::AtLeastOnce, 4, "y");
    assert_eq!(w.said(c), ["PUBLISH mine y q1 #2"]);
}

#[test]
fn quality_0_is_never_written_down() {
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 3600);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtMostOnce, 0, "1");
    assert_eq!(w.said(c), ["PUBLISH a 1 q0"]);
    assert_eq!(w.node.queued.len(), 0);
    // What an AMQP client does not want kept is in the queue, and the hub has handed it out.
    let queue = w.node.stored("k").expect("the session's queue").id;
    w.node.amqp(queue, amqp("a", false));
    w.settle();
    assert_eq!((w.said(c).len(), w.node.kept(queue)), (0, 0));
    w.node.amqp(queue, amqp("a", true));
    w.settle();
    assert_eq!(w.said(c), ["PUBLISH a amqp q1 #1"]);
    // Wildcards of AMQP that are none here.
    w.subscribe(c, "s/*", Qos::AtLeastOnce);
    w.publish(p, "s/x", Qos::AtLeastOnce, 1, "no");
    w.publish(p, "s/*", Qos::AtLeastOnce, 2, "yes");
    assert_eq!(w.said(c), ["PUBLISH s/* yes q1 #2"]);
}

#[test]
fn what_amqp_says_in_the_servers_name_is_not_heard() {
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 3600);
    w.subscribe(c, "$SYS/#", Qos::AtLeastOnce);
    w.subscribe(c, "$SYSTEM/#", Qos::AtLeastOnce);
    let queue = w.node.stored("k").expect("the session's queue").id;
    for key in ["$SYS.broker.version", "$SYSTEM.a"] {
        w.node.amqp(queue, amqp(key, true));
    }
    w.settle();
    assert_eq!(w.said(c), ["PUBLISH $SYSTEM/a amqp q1 #1"]);
    assert_eq!(w.node.kept(queue), 1);
}

#[test]
fn the_answer_waits_for_the_sessions_queue() {
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 3600);
    w.subscribe(c, "a/#", Qos::AtLeastOnce);
    w.node.silent = true;
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
    assert_eq!(w.said(p), [""; 0]);
    confirm_all(&mut w);
    assert_eq!(w.said(p), ["PUBACK 1"]);
    // Topics that no AMQP client could be told reach it too.
    let long = format!("a/{}", "x".repeat(300));
    w.publish(p, &long, Qos::ExactlyOnce, 2, "2");
    confirm_all(&mut w);
    assert_eq!(w.said(p), ["PUBREC 2"]);
    assert_eq!(w.said(c).len(), 2);
}

#[test]
fn a_session_and_its_queue_end_together() {
    // [MQTT-3.1.2-4], [MQTT-4.1.0-2]
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 60);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let expires = |w: &World| {
        let queue = w.node.stored("k").expect("the session's queue");
        queue.arguments.get("x-expires").cloned()
    };
    assert_eq!(expires(&w), Some(Value::I64(60_000)));
    w.cut(c);
    // Another time from now on.
    let (c, _) = keeper(&mut w, "k", 120);
    assert_eq!(expires(&w), Some(Value::I64(120_000)));
    w.cut(c);
    w.after(Duration::from_secs(120));
    assert!(w.node.stored("k").is_none());
    assert_eq!(keeper(&mut w, "k", 60).1, ["CONNACK 0x00"]);
    // A clean start, also in another life of the process.
    let (c, _) = keeper(&mut w, "l", 60);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    w.kill();
    w.client(Version::V5, "l");
    assert!(w.node.stored("l").is_none());
    // One that is to be kept in its turn.
    let old = w.node.stored("k").expect("the session's queue").id;
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.client_id = "k";
        connect.properties.session_expiry = Some(60);
    });
    assert_eq!(w.said(c), ["CONNACK 0x00"]);
    let new = w.node.stored("k").expect("the session's queue").id;
    assert_ne!(old, new);
    // The client says so as it leaves.
    let (c, _) = keeper(&mut w, "m", 60);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let properties = Properties {
        session_expiry: Some(0),
        ..Properties::default()
    };
    let reason = Reason::Success;
    w.send(c, &Packet::Disconnect(Disconnect { reason, properties }));
    assert!(w.node.stored("m").is_none());
    assert_eq!(keeper(&mut w, "m", 60).1, ["CONNACK 0x00"]);
}

#[test]
fn a_session_whose_queue_is_deleted_is_over() {
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 60);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    let queue = w.node.stored("k").expect("the session's queue");
    let (vhost, name, id) = (queue.vhost.clone(), queue.name.clone(), None);
    let delete = metadata::Change::DeleteQueue { vhost, name, id };
    session::Broker::change(&mut w.node, 0, delete);
    w.settle();
    assert_eq!(w.said(c), ["DISCONNECT 0x98", "END"]);
    assert_eq!(keeper(&mut w, "k", 60).1, ["CONNACK 0x00"]);
}

#[test]
fn a_session_whose_queue_refuses_it_ends_for_a_reason_that_disconnect_has() {
    // Section 3.14.2.1
    let mut w = World::default();
    let refused = "CONNACK 0x88 (the queue's node is down)";
    // The queue of a new session need not have answered before CONNACK.
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
        let mut said = w.said(c);
        w.refuse();
        said.extend(w.said(c));
        assert_eq!(said, told);
        w.hear();
    }
}

#[test]
fn subscriptions_end_in_the_queue_too() {
    // [MQTT-3.8.4-3], [MQTT-3.10.4-1], [MQTT-3.10.4-2]
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 60);
    for qos in [Qos::AtLeastOnce, Qos::AtMostOnce, Qos::ExactlyOnce] {
        w.subscribe(c, "a", qos);
    }
    w.subscribe(c, "b", Qos::AtLeastOnce);
    let queue = w.node.stored("k").expect("the session's queue").id;
    assert_eq!(w.node.tree.bindings_of_queue(queue).len(), 2);
    w.unsubscribe(c, &["a", "x"]);
    assert_eq!(w.said(c), ["UNSUBACK 2 [0, 17]"]);
    assert_eq!(w.node.tree.bindings_of_queue(queue).len(), 1);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    assert_eq!(w.said(p), ["PUBACK 1 0x10"]);
}

#[test]
fn a_subscription_that_cannot_be_kept_is_refused() {
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 60);
    w.node.refuses = true;
    w.subscribe_with(c, "a", options(Qos::AtLeastOnce), None);
    assert_eq!(w.said(c), ["SUBACK 1 [131]"]);
    w.node.refuses = false;
    let long = "x".repeat(256);
    w.subscribe_with(c, &long, options(Qos::AtLeastOnce), None);
    assert_eq!(w.said(c), ["SUBACK 1 [131]"]);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    // Nobody else's queue is touched.
    let c = w.open(Version::V5);
    w.connect(c, |connect| {
        connect.client_id = "k";
        connect.user_name = Some("other:small");
        connect.password = Some(b"small");
    });
    assert_eq!(w.said(c).len(), 1);
    assert!(w.node.stored("k").is_some());
    let long = fake::unstatic(&"k".repeat(300));
    let (_, said) = keeper(&mut w, long, 60);
    assert!(said[0].starts_with("CONNACK 0x85"), "{said:?}");
}

#[test]
fn who_shares_a_subscription_may_have_a_queue() {
    // [MQTT-4.8.2-4]
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 60);
    w.subscribe(c, "$share/g/a", Qos::AtLeastOnce);
    let d = w.client(Version::V5, "d");
    w.subscribe(d, "$share/g/a", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    for id in 1..=4 {
        w.publish(p, "a", Qos::AtLeastOnce, id, &id.to_string());
    }
    assert_eq!((w.said(c).len(), w.said(d).len()), (2, 2));
    assert_eq!(w.said(p).len(), 4);
    // Alone and away: its queue keeps it.
    w.cut(d);
    w.cut(c);
    w.publish(p, "a", Qos::AtLeastOnce, 5, "5");
    assert_eq!(w.said(p), ["PUBACK 5"]);
    w.kill();
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 6, "6");
    assert_eq!(w.said(p), ["PUBACK 6"], "its queue is known without it");
    let (_, said) = keeper(&mut w, "k", 60);
    assert_eq!(
        said.len(),
        7,
        "two that were not acknowledged, two of the member that left, and the last two: {said:?}"
    );
}

#[test]
fn a_queue_has_a_copy_for_what_its_client_shares() {
    // Section 4.8.2
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 60);
    w.subscribe(c, "a", Qos::AtLeastOnce);
    w.subscribe(c, "$share/g/a", Qos::AtLeastOnce);
    w.subscribe(c, "b", Qos::AtMostOnce);
    w.subscribe(c, "$share/g/b", Qos::AtLeastOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "x");
    assert_eq!(w.said(p), ["PUBACK 1"]);
    assert_eq!(w.said(c), ["PUBLISH a x q1 #1", "PUBLISH a x q1 #2"]);
    w.publish(p, "b", Qos::AtLeastOnce, 2, "y");
    assert_eq!(w.said(p), ["PUBACK 2"]);
    let mut said = w.said(c);
    said.sort();
    assert_eq!(said, ["PUBLISH b y q0", "PUBLISH b y q1 #3"]);
}

#[test]
fn what_is_started_is_finished_though_the_client_unsubscribed_before_it_was_cut_off() {
    // 3.1.1: [MQTT-4.4.0-1], [MQTT-3.10.4-3]
    // [MQTT-4.4.0-1], [MQTT-3.10.4-3]
    for from_amqp in [false, true] {
        let mut w = World::default();
        let (c, _) = keeper(&mut w, "k", 60);
        w.subscribe(c, "a", Qos::AtLeastOnce);
        w.subscribe(c, "b", Qos::AtLeastOnce);
        if from_amqp {
            let queue = w.node.stored("k").unwrap().id;
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
        assert_eq!(w.said(c), first);
        w.unsubscribe(c, &["a"]);
        w.subscribe_with(c, "b", options(Qos::AtMostOnce), None);
        assert_eq!(w.said(c), ["UNSUBACK 2 [0]", "SUBACK 1 [0]"]);
        w.cut(c);
        let (c, said) = keeper(&mut w, "k", 60);
        assert_eq!(said[1..], first.map(|said| said + " dup"));
        for id in [1, 2] {
            w.ack(c, AckKind::PubAck, id, Reason::Success);
        }
        w.cut(c);
        let (_, said) = keeper(&mut w, "k", 60);
        assert_eq!(said.len(), 1, "{said:?}");
    }
}

#[test]
fn what_a_group_gives_a_client_is_kept_though_another_subscription_of_it_matches_with_qos_0() {
    // Two copies: section 4.8.2.
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 60);
    w.subscribe(c, "$share/g/a", Qos::AtLeastOnce);
    w.subscribe(c, "+", Qos::AtMostOnce);
    let p = w.client(Version::V5, "p");
    w.publish(p, "a", Qos::AtLeastOnce, 1, "1");
    assert_eq!(w.said(c), ["PUBLISH a 1 q0", "PUBLISH a 1 q1 #1"]);
    // For QoS 0 it has nothing of its own in the queue.
    w.publish(p, "b", Qos::AtLeastOnce, 2, "2");
    assert_eq!(w.said(c), ["PUBLISH b 2 q0"]);
    assert_eq!(w.said(p), ["PUBACK 1", "PUBACK 2"]);
}

#[test]
fn the_answer_waits_for_the_cluster_to_retain_the_message() {
    let mut w = World::default();
    let c = w.client(Version::V5, "c");
    w.publish_with(c, "a", Qos::AtLeastOnce, 1, "1", |p| p.retain = true);
    assert_eq!(w.said(c), ["PUBACK 1 0x10"]);
    w.node.refuses = true;
    w.publish_with(c, "a", Qos::AtLeastOnce, 2, "2", |p| p.retain = true);
    assert_eq!(w.said(c), ["PUBACK 2 0x97"]);
    let old = w.client(Version::V311, "old");
    w.publish_with(old, "a", Qos::AtLeastOnce, 1, "3", |p| p.retain = true);
    assert_eq!(w.said(old), ["END"]);
}

#[test]
fn the_next_connection_comes_before_its_queue_hears_of_the_last_ones_end() {
    // [MQTT-4.3.3-2], [MQTT-4.6.0-1]
    let mut w = World::default();
    let (c, _) = keeper(&mut w, "k", 60);
    w.subscribe(c, "a", Qos::ExactlyOnce);
    let p = w.client(Version::V5, "p");
    for id in 1..=3 {
        w.publish(p, "a", Qos::ExactlyOnce, id, "same");
        w.ack(p, AckKind::PubRel, id, Reason::Success);
    }
    w.said(p);
    w.said(c);
    w.delay(c);
    w.ack(c, AckKind::PubRec, 1, Reason::Success);
    w.ack(c, AckKind::PubComp, 1, Reason::Success);
    w.ack(c, AckKind::PubRec, 2, Reason::Success);
    w.cut(c);
    w.publish(p, "a", Qos::ExactlyOnce, 4, "fresh");
    let (c, said) = keeper(&mut w, "k", 60);
    // The first is done with, which the queue has yet to hear; the second waits for PUBCOMP.
    let told = [
        "CONNACK 0x00 present",
        "PUBREL 2",
        "PUBLISH a same q2 #3 dup",
        "PUBLISH a fresh q2 #4",
    ];
    assert_eq!(said, told);
    w.hear();
    assert_eq!(w.said(c), [""; 0]);
    w.ack(c, AckKind::PubComp, 2, Reason::Success);
    for id in [3, 4] {
        w.ack(c, AckKind::PubRec, id, Reason::Success);
        w.ack(c, AckKind::PubComp, id, Reason::Success);
    }
    let queue = w.node.stored("k").expect("the session's queue");
    assert_eq!(w.node.kept(queue.id), 0);
    assert!(w.node.is_epoch_consumer(queue.id));
}
