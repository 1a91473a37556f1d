//! MQTT sessions whose client comes back at another node: the state that moves with them (sections 3.3.1.1 and 4.3.3).

use crate::cluster::Cluster;
use crate::cluster::mqtt::MqttClient;
use codec_mqtt::{AckKind, Packet, Properties, Publish, Qos};
use message::Value;
use metadata::{Change, QueueType};
use std::time::Duration;

fn cluster_of(kind: QueueType) -> Cluster {
    let mut cluster = Cluster::new(3);
    cluster.change(Change::SetDefaultQueueType {
        vhost: "/".into(),
        kind: Some(kind),
    });
    cluster
}

/// A queue that gets what is published under `a`; the node that leads it.
fn bound_queue(cluster: &mut Cluster, kind: &str) -> usize {
    let mut amqp = cluster.client(0);
    amqp.declare(cluster, "q", &[("x-queue-type", Value::from(kind))]);
    amqp.bind(cluster, "q", "amq.topic", "a", &[]);
    for at in 0..3 {
        cluster.until("the queue", |c| c.knows(at, "q").then_some(()));
    }
    let leader = cluster.until("a leader", |c| c.queue(0, "q")?.leader);
    leader.0 as usize - 1
}

fn open(cluster: &mut Cluster, at: usize, present: bool) -> MqttClient {
    let mut client = MqttClient::new(cluster, at, "p", 60, None);
    let said = cluster.until("CONNACK", |c| client.said(c).into_iter().next());
    assert_eq!(said, format!("CONNACK Success {present}"));
    client
}

/// The payload is the packet identifier.
fn publish(cluster: &mut Cluster, client: &mut MqttClient, packet_id: u16, dup: bool) {
    let payload = packet_id.to_string();
    let publish = Publish {
        dup,
        qos: Qos::ExactlyOnce,
        retain: false,
        topic: "a",
        packet_id,
        properties: Properties::default(),
        payload: payload.as_bytes(),
    };
    client.send(cluster, &Packet::Publish(publish));
}

fn expect(cluster: &mut Cluster, client: &mut MqttClient, wanted: &str) {
    let said = cluster.until("the answer", |c| client.said(c).into_iter().next());
    assert_eq!(said, wanted);
}

#[test]
fn resent_publish_is_recognised_on_every_node_that_the_session_comes_to() {
    // [MQTT-4.3.3-10]
    for kind in [QueueType::Quorum, QueueType::Classic] {
        for connected in [false, true] {
            let mut cluster = cluster_of(kind);
            bound_queue(&mut cluster, "quorum");
            let mut client = open(&mut cluster, 0, false);
            for id in [1, 2, 65_535] {
                publish(&mut cluster, &mut client, id, false);
                expect(&mut cluster, &mut client, "PubRec Success");
            }
            for at in [1, 2, 0, 1] {
                let before = client;
                if !connected {
                    before.cut(&mut cluster);
                }
                client = open(&mut cluster, at, true);
                for id in [1, 65_535] {
                    publish(&mut cluster, &mut client, id, true);
                    expect(&mut cluster, &mut client, "PubRec Success");
                }
                let ready = cluster.ready(0, "q");
                assert_eq!(ready, 3, "{kind:?}, node {at}, taken over: {connected}");
            }
            // A released identifier stands for a new message, on this node and on the next one.
            client.answer(&mut cluster, AckKind::PubRel, 1);
            expect(&mut cluster, &mut client, "PubComp Success");
            client.cut(&mut cluster);
            let mut client = open(&mut cluster, 2, true);
            publish(&mut cluster, &mut client, 1, false);
            expect(&mut cluster, &mut client, "PubRec Success");
            cluster.until("the new message", |c| (c.ready(0, "q") == 4).then_some(()));
        }
    }
}

#[test]
fn publish_that_no_queue_has_answered_is_recognised_on_another_node() {
    for kind in [QueueType::Quorum, QueueType::Classic] {
        let mut cluster = cluster_of(kind);
        let leader = bound_queue(&mut cluster, "quorum");
        let (before, after) = ((leader + 1) % 3, (leader + 2) % 3);
        let mut client = open(&mut cluster, before, false);
        cluster.pass(Duration::from_millis(100));
        cluster.delay_requests(before);
        publish(&mut cluster, &mut client, 7, false);
        assert!(client.said(&mut cluster).is_empty());
        client.cut(&mut cluster);
        let mut client = MqttClient::new(&mut cluster, after, "p", 60, None);
        cluster.pass(Duration::from_millis(500));
        assert!(client.said(&mut cluster).is_empty(), "the outcome decides");
        cluster.let_through(before);
        expect(&mut cluster, &mut client, "CONNACK Success true");
        publish(&mut cluster, &mut client, 7, true);
        expect(&mut cluster, &mut client, "PubRec Success");
        assert_eq!(cluster.ready(0, "q"), 1, "{kind:?}");
    }
}

#[test]
fn message_of_an_earlier_connection_precedes_those_of_the_next_one() {
    // [MQTT-4.6.0-5]: in the order in which they were received from the client.
    for kind in ["quorum", "classic"] {
        let mut cluster = cluster_of(QueueType::Quorum);
        let leader = bound_queue(&mut cluster, kind);
        let at = (leader + 1) % 3;
        let mut client = open(&mut cluster, at, false);
        cluster.pass(Duration::from_millis(100));
        cluster.delay_requests(at);
        publish(&mut cluster, &mut client, 1, false);
        client.cut(&mut cluster);
        // The request with the message is lost, and it is a while before it is sent again.
        cluster.lose_requests(at);
        let mut client = open(&mut cluster, at, true);
        publish(&mut cluster, &mut client, 1, true);
        publish(&mut cluster, &mut client, 2, false);
        assert!(client.said(&mut cluster).is_empty(), "1 is not sent again");
        client.cut(&mut cluster);
        let mut client = open(&mut cluster, at, true);
        for id in 1..=3 {
            publish(&mut cluster, &mut client, id, id < 3);
        }
        let mut said = Vec::new();
        cluster.until("PUBREC of each", |c| {
            said.extend(client.said(c));
            (said == ["PubRec Success"; 3]).then_some(())
        });
        let mut amqp = cluster.client(leader);
        let got = (1..=3).map(|_| amqp.must_get(&mut cluster, "q").body);
        assert_eq!(got.collect::<Vec<_>>(), ["1", "2", "3"], "{kind}");
    }
}

/// A queue that does not answer holds up its publisher's next connection for two seconds.
#[test]
fn session_moves_without_the_answer_of_a_queue_that_is_silent() {
    let mut cluster = cluster_of(QueueType::Quorum);
    let leader = bound_queue(&mut cluster, "classic");
    let (before, after) = ((leader + 1) % 3, (leader + 2) % 3);
    let mut client = open(&mut cluster, before, false);
    cluster.pass(Duration::from_millis(100));
    publish(&mut cluster, &mut client, 6, false);
    expect(&mut cluster, &mut client, "PubRec Success");
    cluster.delay_requests(before);
    publish(&mut cluster, &mut client, 7, false);
    client.cut(&mut cluster);
    let mut client = MqttClient::new(&mut cluster, after, "p", 60, None);
    cluster.pass(Duration::from_millis(2500));
    assert_eq!(client.said(&mut cluster), ["CONNACK Success true"]);
    // Nobody knows whether the queue has this message: PUBREC must not say so.
    for id in [6, 7] {
        publish(&mut cluster, &mut client, id, true);
        expect(&mut cluster, &mut client, "PubRec Success");
    }
    assert_eq!(cluster.ready(0, "q"), 2);
}

#[test]
fn dup_is_set_for_messages_that_were_sent_and_not_for_those_that_were_handed_out() {
    // [MQTT-3.3.1-1], [MQTT-3.3.1-3]
    for kind in [QueueType::Quorum, QueueType::Classic] {
        let mut cluster = cluster_of(kind);
        let mut client = open(&mut cluster, 0, false);
        for (filter, qos) in [("b", Qos::AtLeastOnce), ("large", Qos::AtMostOnce)] {
            client.subscribe(&mut cluster, filter, qos);
            expect(&mut cluster, &mut client, "SubAck");
        }
        let mut publisher = MqttClient::new(&mut cluster, 1, "other", 0, None);
        expect(&mut cluster, &mut publisher, "CONNACK Success false");
        // The socket takes nothing: no buffer has room for what comes behind the large message.
        let large = vec![b'x'; 2 << 20];
        for (topic, qos, payload) in [
            ("b", Qos::AtLeastOnce, &b"sent"[..]),
            ("large", Qos::AtMostOnce, &large),
            ("b", Qos::AtLeastOnce, b"waits"),
        ] {
            publisher.publish(&mut cluster, topic, qos, payload, Properties::default());
            if qos == Qos::AtLeastOnce {
                expect(&mut cluster, &mut publisher, "PubAck Success");
            }
        }
        let handed_out = |c: &mut Cluster| {
            let stats = c.queue(0, "mqtt-subscription-pqos1")?.stats?;
            ((stats.ready, stats.unacknowledged) == (0, 2)).then_some(())
        };
        cluster.until("both handed out", handed_out);
        client.cut(&mut cluster);
        for (at, waits_was_sent) in [(1, false), (2, true), (2, true)] {
            let mut client = MqttClient::new(&mut cluster, at, "p", 60, None);
            let mut count = 0;
            cluster.until("CONNACK and both messages", |c| {
                count += client.said(c).len();
                (count == 3).then_some(())
            });
            assert!(client.is_dup("sent"), "{kind:?}, node {at}");
            let waits = client.is_dup("waits");
            assert_eq!(waits, waits_was_sent, "{kind:?}, node {at}");
            client.cut(&mut cluster);
        }
    }
}
